//! Completes a program: names its outputs, and drops what they do not need.

use std::collections::{HashMap, HashSet};

use fourfold_ir::{ElementType, Entity, Module, OpKind, TensorType, Value, ValueDef};

use super::super::problem::{Problem, shown};
use super::state::{Source, Translator};
use crate::origins::Origins;

/// An output of a program.
pub(in super::super) struct Wanted {
    /// The tensor of the graph.
    pub(in super::super) tensor: String,
    /// The name of the value.
    pub(in super::super) name: String,
    /// The element type; `None` for that of the tensor.
    pub(in super::super) element: Option<ElementType>,
}

/// A complete program.
pub(in super::super) struct Finished {
    pub(in super::super) module: Module,
    /// The source of each `param`, by name.
    pub(in super::super) params: Vec<(String, Source)>,
    pub(in super::super) notes: Vec<String>,
    /// The nodes of the ops, as they were translated.
    pub(in super::super) origins: Origins,
    /// The position of each op when it was translated.
    pub(in super::super) originals: Vec<usize>,
}

impl Translator<'_> {
    /// Reserves the names of outputs. Must precede every value.
    pub(in super::super) fn reserve(&mut self, wanted: &[Wanted]) {
        for output in wanted {
            self.names.reserve(&output.name);
        }
    }

    /// Completes the program.
    pub(in super::super) fn finish(mut self, wanted: &[Wanted]) -> Result<Finished, Problem> {
        let mut outputs: Vec<Value> = Vec::new();
        for output in wanted {
            let item = self.item_named(&output.tensor)?;
            self.origins.begin(self.out.op_count(), format!("output `{}`", shown(&output.tensor)));
            let mut value = self.value_of(&output.tensor, &item)?;
            let found = self.ty(value).element;
            if let Some(element) = output.element.filter(|element| *element != found && found.is_arithmetic())
            {
                value = self.converted(&output.name, value, element);
            }
            let is_input = self.params.iter().any(|(param, _)| *param == value);
            if is_input || outputs.contains(&value) || self.is_input(value) {
                let ty = self.ty(value).clone();
                value = self.step(&output.name, OpKind::Reshape, &[value], ty);
            }
            outputs.push(value);
        }
        let names: HashMap<Value, &str> =
            outputs.iter().copied().zip(wanted.iter().map(|output| output.name.as_str())).collect();
        let (module, kept, originals) = rebuilt(&self.out.finish(&outputs), &names);
        let params = self.params.into_iter().filter_map(|(value, source)| {
            let kept = kept.get(&value)?;
            Some((module.name_of(*kept).to_owned(), source))
        });
        let (params, notes, origins) = (params.collect(), self.notes, self.origins);
        Ok(Finished { module, params, notes, origins, originals })
    }

    fn is_input(&self, value: Value) -> bool {
        self.inputs.contains(&value)
    }
}

/// Copies what the outputs need: inputs, then params, then ops. Returns the copy of each kept value, and the former
/// position of each kept op.
fn rebuilt(module: &Module, names: &HashMap<Value, &str>) -> (Module, HashMap<Value, Value>, Vec<usize>) {
    let mut needed: HashSet<Value> = module.outputs.iter().copied().collect();
    let ops: Vec<_> = module.ops.values().collect();
    let mut kept_ops = vec![false; ops.len()];
    for (at, op) in ops.iter().enumerate().rev() {
        if op.results.iter().any(|result| needed.contains(result)) {
            kept_ops[at] = true;
            needed.extend(op.operands.iter().copied());
        }
    }
    let mut copy = Module::new(module.name.clone());
    copy.symbols = module.symbols.clone();
    let mut kept = HashMap::new();
    for params in [false, true] {
        for input in &module.inputs {
            let data = &module.values[*input];
            let ValueDef::Input { param, .. } = data.def else { continue };
            // An input of the graph stays, because callers give it.
            if param == params && (!param || needed.contains(input)) {
                kept.insert(*input, copy.push_input(data.name.clone(), data.ty.clone(), param));
            }
        }
    }
    let originals = (0..ops.len()).filter(|at| kept_ops[*at]).collect();
    for (op, _) in ops.into_iter().zip(kept_ops).filter(|(_, kept)| *kept) {
        let operands = op.operands.iter().filter_map(|operand| kept.get(operand).copied()).collect();
        let results: Vec<(String, TensorType)> = op
            .results
            .iter()
            .map(|result| {
                let data = &module.values[*result];
                let name = names.get(result).map_or_else(|| data.name.clone(), |name| (*name).to_owned());
                (name, data.ty.clone())
            })
            .collect();
        let new = copy.push_op(op.kind.clone(), operands, results);
        let new_results = copy.ops[new].results.clone();
        kept.extend(op.results.iter().copied().zip(new_results));
    }
    copy.outputs = module.outputs.iter().filter_map(|output| kept.get(output).copied()).collect();
    debug_assert!(copy.outputs.iter().all(|output| output.index() < copy.values.len()));
    (copy, kept, originals)
}
