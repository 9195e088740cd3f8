//! Builds the plan of a kernel from its proved region.

use std::collections::HashMap;

use fourfold_ir::{Op, OpKind, Program, ScaleLayout, Value};

use crate::constraints::constraints;
use crate::geometry::{operand_shape, reduced_shape};
use crate::grow::Grown;
use crate::pair::Pair;
use crate::plan::{
    EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, Groups, KernelOutput, OutputKind,
    PairedColumns, ScaledMmaPlan,
};
use crate::properties::splat;
use crate::prove::ProvedKernel;
use crate::region::Region;
use crate::root::Root;

/// Builds the plan of a grown kernel from its proved region.
pub(crate) fn build_plan(
    program: &Program,
    grown: &Grown<'_>,
    region: &Region,
    found: ProvedKernel,
) -> ScaledMmaPlan {
    let module = program.module();
    let Grown { root, ops } = grown;
    let members = &region.expression.members;
    let inlined = found.inlined.iter().map(|leaf| region.leaves[*leaf]).collect();
    let mut steps = EpilogueBuilder {
        program,
        root,
        inlined,
        steps: Vec::new(),
        operands: Vec::new(),
        known: HashMap::new(),
    };
    match root.pair {
        None => {
            steps.known.insert(root.result, EpilogueRef::Accumulator);
        }
        Some(Pair { values: [even, odd], .. }) => {
            steps.known.extend([(even, EpilogueRef::Accumulator), (odd, EpilogueRef::Odd)]);
        }
    }
    for member in found.members.iter().filter(|member| **member != 0 && !members[**member].sink) {
        steps.add(ops[*member]);
    }
    let mut outputs = Vec::new();
    for member in &found.members {
        let op = ops[*member];
        if members[*member].sink {
            outputs.push(steps.sink(op));
        } else if found.written.contains(member) {
            let value = module.ops[op].results[0];
            outputs.push(KernelOutput { of: steps.known[&value], kind: OutputKind::Value { value } });
        }
    }
    let EpilogueBuilder { steps: epilogue, operands: read, .. } = steps;
    let (matmul, operands) = (root.matmul, root.operands);
    let constraints = constraints(module, root, &read, &outputs);
    ScaledMmaPlan {
        root: root.op,
        format: matmul.format,
        batch: matmul.batch.clone(),
        m: matmul.m.clone(),
        n: matmul.n.clone(),
        k: matmul.k.clone(),
        b_batched: matmul.b_batched,
        groups: operands.offsets.zip(matmul.groups.clone()).map(|(offsets, count)| {
            let has_alphas = operands.alpha.is_some_and(|alpha| !module.ty(alpha).is_scalar());
            let (masked, scales, sfa_ends) = (matmul.masked, matmul.group_scales.clone(), operands.sfa_ends);
            Groups { offsets, masked, count, scales, sfa_ends, has_alphas }
        }),
        a: operands.a,
        sfa: operands.sfa,
        linear_sfa: matmul.sfa_layout == Some(ScaleLayout::Linear),
        b: operands.b,
        sfb: operands.sfb,
        alpha: operands.alpha,
        c: operands.c,
        beta: operands.beta,
        accumulator: module.ty(root.result).element,
        pair: root.pair.map(|Pair { ops: [even, odd], columns, .. }| PairedColumns {
            even,
            odd,
            columns: columns.clone(),
        }),
        epilogue,
        operands: read,
        outputs,
        proof: found.proof,
        constraints,
    }
}

struct EpilogueBuilder<'a> {
    program: &'a Program,
    root: &'a Root<'a>,
    /// The constants that the kernel inlines.
    inlined: Vec<Value>,
    steps: Vec<EpilogueStep>,
    operands: Vec<EpilogueOperand>,
    known: HashMap<Value, EpilogueRef>,
}

impl EpilogueBuilder<'_> {
    fn add(&mut self, op: Op) {
        let module = self.program.module();
        let operation = &module.ops[op];
        let operands = operation.operands.iter().map(|value| self.reference(*value)).collect();
        let result = operation.results[0];
        self.push(op, step_kind(&operation.kind), operands, result);
    }

    fn push(&mut self, op: Op, kind: EpilogueKind, operands: Vec<EpilogueRef>, result: Value) {
        self.known.insert(result, EpilogueRef::Step(self.steps.len()));
        let element = self.program.module().ty(result).element;
        self.steps.push(EpilogueStep { op, kind, operands, element });
    }

    fn reference(&mut self, value: Value) -> EpilogueRef {
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        let module = self.program.module();
        if self.inlined.contains(&value)
            && let Some((op, number)) = splat(self.program, value)
        {
            let number = fourfold_ir::scalar::round_to(module.ty(value).element, number);
            let bits = if number.is_nan() { f32::NAN } else { number as f32 }.to_bits();
            self.push(op, EpilogueKind::Constant { bits }, Vec::new(), value);
            return self.known[&value];
        }
        let ty = module.ty(value);
        let shape = operand_shape(&ty.shape, &self.root.d(module).shape)
            .expect("rewriting accepted the operand for its shape");
        self.known.insert(value, EpilogueRef::Operand(self.operands.len()));
        self.operands.push(EpilogueOperand { value, shape, element: ty.element });
        self.known[&value]
    }

    fn sink(&mut self, op: Op) -> KernelOutput {
        let module = self.program.module();
        let operation = &module.ops[op];
        let of = self.known[&operation.operands[0]];
        let kind = match (&operation.kind, &operation.results[..]) {
            (OpKind::BlockQuantize { block, scale_rounding, formula }, &[codes, scales]) => {
                let global = operation.operands.get(1).map(|global| self.reference(*global));
                OutputKind::Quantized {
                    op,
                    codes,
                    scales,
                    global: global.and_then(|global| match global {
                        EpilogueRef::Operand(position) => Some(position),
                        EpilogueRef::Accumulator | EpilogueRef::Odd | EpilogueRef::Step(_) => None,
                    }),
                    element: module.ty(codes).element,
                    block: *block,
                    scale_rounding: *scale_rounding,
                    formula: *formula,
                }
            }
            (OpKind::Reduce { kind, axes, .. }, &[value]) => {
                let rank = module.ty(operation.operands[0]).rank();
                let shape = reduced_shape(axes, rank).expect("rewriting accepted the axes");
                OutputKind::Reduced { op, value, kind: *kind, shape }
            }
            _ => unreachable!("only these ops end an epilogue"),
        };
        KernelOutput { of, kind }
    }
}

fn step_kind(kind: &OpKind) -> EpilogueKind {
    match *kind {
        OpKind::Unary(kind) => EpilogueKind::Unary(kind),
        OpKind::Binary(kind) => EpilogueKind::Binary(kind),
        OpKind::Clamp { min, max } => EpilogueKind::Clamp { min, max },
        OpKind::Compare(predicate) => EpilogueKind::Compare(predicate),
        OpKind::Select => EpilogueKind::Select,
        OpKind::Convert => EpilogueKind::Convert,
        _ => unreachable!("a region has no other ops after its scaled_mma"),
    }
}
