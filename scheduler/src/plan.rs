//! Writes down the kernel that a region was proved to be.

use std::collections::HashMap;

use fourfold_ir::{Op, OpKind, Program, Value};

use crate::constraints::constraints;
use crate::partition::{
    EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, KernelOutput, KernelPlan, OutputKind,
};
use crate::region::{Region, splat};
use crate::rewrite::{Match, operand_shape};
use crate::root::Root;

/// The plan of the kernel that the first ops of a region are.
pub(crate) fn plan(program: &Program, root: &Root<'_>, region: &Region, found: Match) -> KernelPlan {
    let module = program.module();
    let mut steps = Steps {
        program,
        root,
        region,
        ops: found.ops,
        steps: Vec::new(),
        operands: Vec::new(),
        known: HashMap::new(),
    };
    steps.known.insert(root.result, EpilogueRef::Accumulator);
    for op in &region.ops[1..found.ops] {
        steps.add(*op);
    }
    let Steps { steps: epilogue, operands: read, .. } = steps;
    let of = match epilogue.len() {
        0 => EpilogueRef::Accumulator,
        count => EpilogueRef::Step(count - 1),
    };
    let output = epilogue.last().map_or(root.result, |step| module.ops[step.op].results[0]);
    let (matmul, operands) = (root.matmul, root.operands);
    let c_element = operands.c.map(|c| module.ty(c).element);
    KernelPlan {
        root: root.op,
        format: matmul.format,
        batch: matmul.batch.clone(),
        m: matmul.m.clone(),
        n: matmul.n.clone(),
        k: matmul.k.clone(),
        b_batched: matmul.b_batched,
        a: operands.a,
        sfa: operands.sfa,
        b: operands.b,
        sfb: operands.sfb,
        alpha: operands.alpha,
        c: operands.c,
        beta: operands.beta,
        accumulator: module.ty(root.result).element,
        constraints: constraints(root, &read, output, module.ty(output).element, c_element),
        epilogue,
        operands: read,
        outputs: vec![KernelOutput { of, kind: OutputKind::Value { value: output } }],
        proof: found.proof,
    }
}

struct Steps<'a> {
    program: &'a Program,
    root: &'a Root<'a>,
    region: &'a Region,
    /// How many of the region's ops are in the kernel.
    ops: usize,
    steps: Vec<EpilogueStep>,
    operands: Vec<EpilogueOperand>,
    known: HashMap<Value, EpilogueRef>,
}

impl Steps<'_> {
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
        let leaf = self.region.leaves.iter().position(|leaf| *leaf == value);
        let inlined = leaf.and_then(|leaf| self.region.expression.types.leaves[leaf].inlined);
        if inlined.is_some_and(|needed| needed <= self.ops)
            && let Some((op, number)) = splat(self.program, value)
        {
            let number = fourfold_ir::scalar::round_to(module.ty(value).element, number);
            let bits = if number.is_nan() { f32::NAN } else { number as f32 }.to_bits();
            self.push(op, EpilogueKind::Constant { bits }, Vec::new(), value);
            return self.known[&value];
        }
        let ty = module.ty(value);
        let shape = operand_shape(&ty.shape, &module.ty(self.root.result).shape)
            .expect("rewriting accepted the operand for its shape");
        self.known.insert(value, EpilogueRef::Operand(self.operands.len()));
        self.operands.push(EpilogueOperand { value, shape, element: ty.element });
        self.known[&value]
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
