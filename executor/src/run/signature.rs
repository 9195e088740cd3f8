//! What a kernel reads and writes, in the words that a generated kernel has for it.

use fourfold_ir::{Program, ScaleRounding};
use fourfold_scheduler::{EpilogueOperand, EpilogueRef, KernelOutput, KernelPlan, OutputKind};

/// What a plan's kernel must read and write, in the words in which a generated kernel says it of itself
/// ([`Metadata::signature`](crate::kernel::Metadata::signature)). A kernel that says something else is not launched for
/// the plan.
///
/// The format comes first, and then, where there are any, `alpha`, the type of C, `beta`, and the shape and type of each
/// operand of the epilogue. The rest is what it writes, in order: `d=bf16` is a value; `q=f4E2M1FN:f8E4M3FN/16*x2` are
/// codes with a scale for each 16 under the per-tensor scale at position 2 among the operands, and
/// `q=f8E4M3FN:f8E8M0FNU/32:floor` is how an MX scale is rounded; `amax=row` and `max=scalar` are reductions. `@acc` or
/// `@s3` follows what is not made of the last step: of the result of the `scaled_mma`, or of the step at position 3.
pub fn signature_of(program: &Program, plan: &KernelPlan) -> String {
    let element = |value| program.module().ty(value).element;
    let mut parts = vec![plan.format.to_string()];
    parts.extend(plan.alpha.map(|_| "alpha".to_owned()));
    parts.extend(plan.c.map(|c| format!("c={}", element(c))));
    parts.extend(plan.beta.map(|_| "beta".to_owned()));
    let operand = |operand: &EpilogueOperand| format!("{}={}", operand.shape, element(operand.value));
    parts.extend(plan.operands.iter().map(operand));
    parts.extend(plan.outputs.iter().map(|output| output_of(program, plan, output)));
    parts.join(" ")
}

fn output_of(program: &Program, plan: &KernelPlan, output: &KernelOutput) -> String {
    let element = |value| program.module().ty(value).element;
    let mut word = match &output.kind {
        OutputKind::Value { value } => format!("d={}", element(*value)),
        OutputKind::Quantized { codes, scales, global, block, scale_rounding, .. } => {
            let rounding = match scale_rounding {
                None => "",
                Some(ScaleRounding::Floor) => ":floor",
                Some(ScaleRounding::Ceil) => ":ceil",
            };
            let global = global.map_or(String::new(), |operand| format!("*x{operand}"));
            format!("q={}:{}/{block}{rounding}{global}", element(*codes), element(*scales))
        }
        OutputKind::Reduced { kind, shape, .. } => format!("{}={shape}", kind.name()),
    };
    let last = plan.epilogue.len().checked_sub(1).map_or(EpilogueRef::Accumulator, EpilogueRef::Step);
    if output.of != last {
        word += &match output.of {
            EpilogueRef::Accumulator => "@acc".to_owned(),
            EpilogueRef::Step(step) => format!("@s{step}"),
            // No plan has it, and no kernel says it.
            EpilogueRef::Operand(operand) => format!("@x{operand}"),
        };
    }
    word
}
