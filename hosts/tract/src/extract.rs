//! Cuts the program of one segment out of the program of the model.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use fourfold::ClaimedSegment;
use fourfold::ir::{
    Builder, Dim, Module, Op as FourfoldOp, OpKind, ScaleLayout, Tensor, TensorType, Value, ValueDef,
};
use tract_core::internal::{HashMap, OutletId, TDim};

use crate::format::Form;
use crate::import::Imported;

/// The program of one segment.
pub(crate) struct Extract {
    pub(crate) module: Module,
    pub(crate) params: HashMap<String, Tensor>,
    /// The inputs that are no params: name, and the outlet that holds it.
    pub(crate) inputs: Vec<(String, OutletId, Form)>,
    /// The outlets that hold the outputs, in order.
    pub(crate) outputs: Vec<(OutletId, Form)>,
    /// The extents behind the symbols.
    pub(crate) symbols: Vec<(String, TDim)>,
}

/// Extracts the ops of a claimed segment, and those that lead from outlets to its inputs: constants, changes of scale
/// layout, and quantizations that no segment of `claimed` computes. `None` if an output is at no outlet, or no input
/// varies.
pub(crate) fn extract(
    imported: &Imported,
    claim: &ClaimedSegment,
    claimed: &HashSet<FourfoldOp>,
) -> Option<Extract> {
    let module = &imported.module;
    let mut ops: BTreeSet<FourfoldOp> = claim.ops.iter().copied().collect();
    let mut inputs = BTreeSet::new();
    let mut waiting: Vec<Value> = claim.inputs.clone();
    waiting.extend(claim.ops.iter().flat_map(|op| &module.ops[*op].operands));
    while let Some(value) = waiting.pop() {
        match module.values[value].def {
            ValueDef::Result { op, .. } if ops.contains(&op) => {}
            ValueDef::Result { op, .. } => {
                let is_at_outlet = imported.outlets.contains_key(&value);
                let quantizes = matches!(module.ops[op].kind, OpKind::BlockQuantize { .. });
                if is_at_outlet && (claimed.contains(&op) || !quantizes) {
                    inputs.insert(value);
                } else {
                    ops.insert(op);
                    waiting.extend(&module.ops[op].operands);
                }
            }
            ValueDef::Input { .. } => {
                inputs.insert(value);
            }
        }
    }
    let mut writer = Writer { module, builder: Builder::new("segment"), values: BTreeMap::new() };
    let (mut params, mut given) = (HashMap::new(), Vec::new());
    for value in inputs {
        let name = module.name_of(value);
        let ty = writer.ty(value);
        let copy = match imported.params.get(&value) {
            Some(tensor) => {
                params.insert(name.to_owned(), tensor.clone());
                writer.builder.param(name, ty)
            }
            None => {
                let (outlet, form) = *imported.outlets.get(&value)?;
                given.push((name.to_owned(), outlet, form));
                writer.input(name, ty)
            }
        };
        writer.values.insert(value, copy);
    }
    for op in ops {
        writer.op(op)?;
    }
    let (mut outputs, mut values) = (Vec::new(), Vec::new());
    for value in &claim.outputs {
        outputs.push(*imported.outlets.get(value)?);
        values.push(*writer.values.get(value)?);
    }
    let module = writer.builder.finish(&values);
    let is_used = |name: &String| module.symbols.values().any(|known| known == name);
    let symbols = imported.symbols.iter().filter(|(name, _)| is_used(name)).cloned().collect();
    (!given.is_empty()).then_some(Extract { module, params, inputs: given, outputs, symbols })
}

/// Copies ops to another module.
struct Writer<'a> {
    module: &'a Module,
    builder: Builder,
    values: BTreeMap<Value, Value>,
}

impl Writer<'_> {
    fn ty(&mut self, value: Value) -> TensorType {
        let ty = self.module.ty(value).clone();
        let dim = |dim: &Dim| {
            let symbols = dim.symbols().iter().map(|symbol| {
                let copy = self.builder.symbol(&self.module.symbols[*symbol]);
                copy.symbols()[0]
            });
            Dim::product(dim.constant(), symbols.collect())
        };
        TensorType { shape: ty.shape.iter().map(dim).collect(), ..ty }
    }

    /// An input. tract holds linear scales.
    fn input(&mut self, name: &str, ty: TensorType) -> Value {
        if ty.layout != Some(ScaleLayout::Blocked) {
            return self.builder.input(name, ty);
        }
        let linear = TensorType { layout: Some(ScaleLayout::Linear), ..ty };
        let scales = self.builder.input(name, linear);
        self.builder.swizzle_scales(&format!("{name}.blocked"), scales, ScaleLayout::Blocked)
    }

    fn op(&mut self, op: FourfoldOp) -> Option<()> {
        let operation = &self.module.ops[op];
        let operands: Option<Vec<Value>> =
            operation.operands.iter().map(|operand| self.values.get(operand).copied()).collect();
        let types: Vec<TensorType> = operation.results.iter().map(|result| self.ty(*result)).collect();
        let names = operation.results.iter().map(|result| self.module.name_of(*result));
        let results: Vec<(&str, TensorType)> = names.zip(types).collect();
        let copies = self.builder.op(operation.kind.clone(), &operands?, &results);
        self.values.extend(operation.results.iter().copied().zip(copies));
        Some(())
    }
}
