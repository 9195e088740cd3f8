//! Converts the epilogue of a plan.

use fourfold_ir::{Program, scalar};
use fourfold_scheduler::{
    EpilogueKind, EpilogueStep, KernelOutput, OutputKind as PlannedOutput, ScaledMmaPlan,
};

use super::{Epilogue, Operand, Output, OutputKind, Step, StepKind};

/// Converts the epilogue of a plan.
pub(crate) fn of_plan(program: &Program, plan: &ScaledMmaPlan) -> Epilogue {
    let element = |value| program.module().ty(value).element;
    let operands =
        plan.operands.iter().map(|operand| Operand { shape: operand.shape, element: operand.element });
    Epilogue {
        pair: plan.pair.is_some(),
        alpha: plan.alpha.is_some(),
        c: plan.c.map(element),
        beta: plan.beta.is_some(),
        accumulator: plan.accumulator,
        steps: plan.epilogue.iter().map(step).collect(),
        operands: operands.collect(),
        outputs: plan.outputs.iter().map(output).collect(),
    }
}

fn output(output: &KernelOutput) -> Output {
    let kind = match output.kind {
        PlannedOutput::Value { .. } => OutputKind::Value,
        PlannedOutput::Quantized { global, element, block, scale_rounding, formula, .. } => {
            OutputKind::Quantized { global, element, block, scale_rounding, formula }
        }
        PlannedOutput::Reduced { kind, shape, .. } => OutputKind::Reduced { kind, shape },
    };
    Output { of: output.of, kind }
}

fn step(step: &EpilogueStep) -> Step {
    let bound = |bound: f64| (scalar::round_to(step.element, bound) as f32).to_bits();
    let kind = match step.kind {
        EpilogueKind::Constant { bits } => StepKind::Constant(bits),
        EpilogueKind::Unary(kind) => StepKind::Unary(kind),
        EpilogueKind::Binary(kind) => StepKind::Binary(kind),
        EpilogueKind::Clamp { min, max } => StepKind::Clamp { lower: bound(min), upper: bound(max) },
        EpilogueKind::Compare(predicate) => StepKind::Compare(predicate),
        EpilogueKind::Select => StepKind::Select,
        EpilogueKind::Convert => StepKind::Convert,
    };
    Step { kind, operands: step.operands.clone(), element: step.element }
}
