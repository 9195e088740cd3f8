//! Chooses the replacement of each instruction.

use super::block::{Block, Replacement, Type, components};
use super::error::RewriteProblem;
use super::operand::{Operands, is_immediate};
use super::statement::Instruction;
use super::vocabulary::check_instruction;
use super::{synchronize, tensor_memory};

/// Returns the replacement of an instruction, or `None` if sm_90a has it. `quote` is the instruction on one line.
///
/// # Errors
/// Returns the part of the instruction that is neither replaced nor known on sm_90a.
pub(super) fn replace(
    instruction: &Instruction<'_>,
    quote: &str,
) -> Result<Option<Replacement>, RewriteProblem> {
    let components = components(instruction);
    let replacement = match components.as_slice() {
        ["elect", "sync"] => synchronize::elect(instruction, quote),
        ["elect", ..] => unsupported(instruction),
        ["mbarrier", "try_wait", form @ ..] => match form {
            ["parity", "shared::cta", "b64"] => synchronize::try_wait(instruction, quote),
            _ => unsupported(instruction),
        },
        ["tcgen05", modifiers @ ..] => tensor_memory::replace(instruction, modifiers, quote),
        ["clusterlaunchcontrol", modifiers @ ..] => launch_control(instruction, modifiers, quote),
        ["cvt", "rn", "satfinite", "e2m1x2", "f32"] => convert(instruction, quote),
        _ => return check(instruction).map(|()| None),
    }?;
    // Only the indices of a CTA are written under a guard; a call is not.
    if instruction.guard.is_some() && !is_first_ctaid(&components) {
        return Err(RewriteProblem::Guard(instruction.opcode.clone()));
    }
    Ok(Some(replacement))
}

/// Checks that sm_90a has an instruction.
///
/// # Errors
/// Returns the first unknown part.
pub(super) fn check(instruction: &Instruction<'_>) -> Result<(), RewriteProblem> {
    let mut depth = 0_usize;
    let commas = instruction.operands.iter().filter(|token| {
        match token.text {
            "[" | "{" | "(" => depth += 1,
            "]" | "}" | ")" => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.is(",")
    });
    check_instruction(&instruction.opcode, commas.count() + 1)
}

/// Returns the problem of a form that sm_90a may have, but not its emulation.
fn unsupported(instruction: &Instruction<'_>) -> Result<Replacement, RewriteProblem> {
    check(instruction)?;
    Err(RewriteProblem::Form(instruction.opcode.clone()))
}

/// Returns true for a `clusterlaunchcontrol.try_cancel`.
pub(super) fn is_try_cancel(instruction: &Instruction<'_>) -> bool {
    instruction.opcode.starts_with("clusterlaunchcontrol.try_cancel")
}

/// Returns true for a replaced `mbarrier.try_wait`.
pub(super) fn is_try_wait(instruction: &Instruction<'_>) -> bool {
    instruction.opcode.starts_with("mbarrier.try_wait")
}

fn is_first_ctaid(components: &[&str]) -> bool {
    components.get(2).is_some_and(|component| component.starts_with("get_first_ctaid"))
}

fn launch_control(
    instruction: &Instruction<'_>,
    modifiers: &[&str],
    quote: &str,
) -> Result<Replacement, RewriteProblem> {
    let first_ctaid = |axis| synchronize::first_ctaid(instruction, axis, quote);
    match modifiers {
        ["try_cancel", "async", "shared::cta", "mbarrier::complete_tx::bytes", "b128"] => {
            synchronize::try_cancel(instruction, false, quote)
        }
        [
            "try_cancel",
            "async",
            "shared::cta",
            "mbarrier::complete_tx::bytes",
            "multicast::cluster::all",
            "b128",
        ] => synchronize::try_cancel(instruction, true, quote),
        ["query_cancel", "is_canceled", "pred", "b128"] => synchronize::is_canceled(instruction, quote),
        ["query_cancel", "get_first_ctaid", "v4", "b32", "b128"] => first_ctaid(None),
        ["query_cancel", "get_first_ctaid::x", "b32", "b128"] => first_ctaid(Some(0)),
        ["query_cancel", "get_first_ctaid::y", "b32", "b128"] => first_ctaid(Some(1)),
        ["query_cancel", "get_first_ctaid::z", "b32", "b128"] => first_ctaid(Some(2)),
        _ => Err(RewriteProblem::Form(instruction.opcode.clone())),
    }
}

/// Replaces a conversion of two f32 to a byte of two e2m1.
fn convert(instruction: &Instruction<'_>, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 3)?;
    let (target, high, low) = (operands.value()?, operands.value()?, operands.value()?);
    if is_immediate(&target) {
        return Err(RewriteProblem::Operand(target));
    }
    let mut block = Block::new(quote);
    block.line(".reg .b32 fourfold_byte;");
    let arguments = [(Type::F32, high.as_str()), (Type::F32, low.as_str())];
    block.call("fourfold_e2m1x2", &arguments, Some((Type::B32, "fourfold_byte")));
    block.line(&format!("cvt.u8.u32 {target}, fourfold_byte;"));
    Ok(block.close())
}

/// Returns the PTX at the entry of a kernel that cancels launches: a CTA without work returns.
pub(super) fn enter() -> Replacement {
    let mut block = Block::new("enter");
    block.line(".reg .b32 fourfold_entered;");
    block.line(".reg .pred fourfold_leave;");
    block.call("fourfold_enter", &[], Some((Type::B32, "fourfold_entered")));
    block.line("setp.eq.b32 fourfold_leave, fourfold_entered, 0;");
    block.line("@fourfold_leave ret;");
    block.close()
}
