//! Replaces the instructions that synchronize threads or clusters: `elect`, `mbarrier.try_wait`,
//! `clusterlaunchcontrol`.

use super::block::{Block, Replacement, Type};
use super::error::RewriteProblem;
use super::operand::{Operand, Operands, unsupported};
use super::statement::Instruction;

/// The register that holds when a thread began to wait on a barrier; 0 while it does not wait.
pub(super) const SINCE: &str = "%fourfold_since";

/// Replaces `elect.sync`: the warp then executes its deferred instructions.
pub(super) fn elect(instruction: &Instruction<'_>, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    match operands.any()? {
        Operand::Pair => {}
        other => return Err(unsupported(&other)),
    }
    let mask = operands.value()?;
    let mut block = Block::new(quote);
    // The instruction may write the register that holds its mask.
    block.line(".reg .b32 fourfold_mask;");
    block.line(&format!("mov.b32 fourfold_mask, {mask};"));
    block.line(quote);
    block.call("fourfold_flush", &[(Type::B32, "fourfold_mask")], None);
    Ok(block.close())
}

/// Replaces `mbarrier.try_wait.parity`: counts the time since the first attempt that failed.
pub(super) fn try_wait(instruction: &Instruction<'_>, quote: &str) -> Result<Replacement, RewriteProblem> {
    // The fourth operand is a time limit in nanoseconds.
    let mut operands = Operands::of(instruction, 4).or_else(|_| Operands::of(instruction, 3))?;
    let (done, barrier, parity) = (operands.value()?, operands.address()?, operands.value()?);
    let mut block = Block::new(quote);
    block.line(quote);
    block.line(&format!("@{done} mov.b64 {SINCE}, 0;"));
    block.line(&format!("@{done} bra fourfold_done;"));
    let barrier = block.address(&barrier);
    let arguments = [(Type::B64, SINCE), (Type::B32, barrier.as_str()), (Type::B32, parity.as_str())];
    block.call("fourfold_waited", &arguments, Some((Type::B64, SINCE)));
    block.line("fourfold_done:");
    Ok(block.close())
}

/// Replaces `clusterlaunchcontrol.try_cancel`.
pub(super) fn try_cancel(
    instruction: &Instruction<'_>,
    multicast: bool,
    quote: &str,
) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (result, barrier) = (operands.address()?, operands.address()?);
    let mut block = Block::new(quote);
    let (result, barrier) = (block.address(&result), block.address(&barrier));
    let multicast = if multicast { "1" } else { "0" };
    let arguments = [(Type::B32, result.as_str()), (Type::B32, barrier.as_str()), (Type::B32, multicast)];
    block.call("fourfold_try_cancel", &arguments, None);
    Ok(block.close())
}

/// Splits a 128-bit response into two 64-bit registers.
fn response(block: &mut Block, register: &str) {
    block.line(".reg .b64 fourfold_low, fourfold_high;");
    block.line(&format!("mov.b128 {{fourfold_low, fourfold_high}}, {register};"));
}

/// Replaces `clusterlaunchcontrol.query_cancel.is_canceled`: the upper 32 bits of the response are not 0.
pub(super) fn is_canceled(instruction: &Instruction<'_>, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (predicate, register) = (operands.value()?, operands.value()?);
    let mut block = Block::new(quote);
    response(&mut block, &register);
    block.line("shr.u64 fourfold_high, fourfold_high, 32;");
    block.line(&format!("setp.ne.b64 {predicate}, fourfold_high, 0;"));
    Ok(block.close())
}

/// Replaces `clusterlaunchcontrol.query_cancel.get_first_ctaid`: x, y, z are the first words of the response.
///
/// `axis` is 0, 1 or 2 for the form that returns one index; `None` for the vector, whose last element is 0.
pub(super) fn first_ctaid(
    instruction: &Instruction<'_>,
    axis: Option<usize>,
    quote: &str,
) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let targets = match (axis, operands.any()?) {
        (None, Operand::List(list)) if list.len() == 4 => list,
        (Some(_), Operand::Value(target)) => vec![target],
        (_, other) => return Err(unsupported(&other)),
    };
    let register = operands.value()?;
    let mut block = Block::new(quote);
    response(&mut block, &register);
    block.line(".reg .b32 fourfold_x, fourfold_y, fourfold_z, fourfold_w;");
    block.line("mov.b64 {fourfold_x, fourfold_y}, fourfold_low;");
    block.line("mov.b64 {fourfold_z, fourfold_w}, fourfold_high;");
    let guard = instruction.guard.as_ref().map_or(String::new(), |guard| format!("@{guard} "));
    let sources = ["fourfold_x", "fourfold_y", "fourfold_z", "0"];
    for (target, source) in targets.iter().zip(&sources[axis.unwrap_or(0)..]) {
        if target != "_" {
            block.line(&format!("{guard}mov.b32 {target}, {source};"));
        }
    }
    Ok(block.close())
}
