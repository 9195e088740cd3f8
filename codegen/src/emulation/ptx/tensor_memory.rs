//! Replaces the `tcgen05` instructions, which allocate, fill, multiply into and read tensor memory.

use super::block::{Block, Replacement, Type};
use super::error::RewriteProblem;
use super::operand::{Operand, Operands, is_immediate, unsupported};
use super::statement::Instruction;

/// The bytes between the registers of one thread in emulated tensor memory: 128 lanes of 4 bytes.
const REGISTER_STRIDE: usize = 512;

/// The numbers of registers that a load or a store may move.
const COUNTS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];

/// Replaces an instruction. `modifiers` are its opcode's components after `tcgen05`.
pub(super) fn replace(
    instruction: &Instruction<'_>,
    modifiers: &[&str],
    quote: &str,
) -> Result<Replacement, RewriteProblem> {
    match modifiers {
        ["alloc", group, "sync", "aligned", "shared::cta", "b32"] => {
            alloc(instruction, cta_group(group)?, quote)
        }
        ["dealloc", group, "sync", "aligned", "b32"] => dealloc(instruction, cta_group(group)?, quote),
        ["relinquish_alloc_permit", group, "sync", "aligned"] => {
            cta_group(group)?;
            nothing(instruction, quote)
        }
        ["cp", group, "32x128b", "warpx4"] => copy(instruction, cta_group(group)?, quote),
        ["mma", group, kind, "block_scale", block @ ..] => match block_size(kind, block) {
            Some(size) => multiply(instruction, size, cta_group(group)?, quote),
            None => Err(unknown(modifiers)),
        },
        ["commit", group, "mbarrier::arrive::one", "shared::cluster", multicast @ .., "b64"] => {
            match multicast {
                [] => commit(instruction, false, cta_group(group)?, quote),
                ["multicast::cluster"] => commit(instruction, true, cta_group(group)?, quote),
                _ => Err(unknown(modifiers)),
            }
        }
        ["ld", "sync", "aligned", "32x32b", count, "b32"] => load(instruction, registers(count)?, quote),
        ["st", "sync", "aligned", "32x32b", count, "b32"] => store(instruction, registers(count)?, quote),
        ["wait::ld" | "wait::st", "sync", "aligned"]
        | ["fence::before_thread_sync" | "fence::after_thread_sync"] => nothing(instruction, quote),
        _ => Err(unknown(modifiers)),
    }
}

/// The modifiers of each supported instruction, to name the one that an unsupported form adds.
const KNOWN: &[(&str, &[&str])] = &[
    ("alloc", &["cta_group::1", "cta_group::2", "sync", "aligned", "shared::cta", "b32"]),
    ("dealloc", &["cta_group::1", "cta_group::2", "sync", "aligned", "b32"]),
    ("relinquish_alloc_permit", &["cta_group::1", "cta_group::2", "sync", "aligned"]),
    ("cp", &["cta_group::1", "cta_group::2", "32x128b", "warpx4"]),
    (
        "mma",
        &[
            "cta_group::1",
            "cta_group::2",
            "kind::mxf4nvf4",
            "kind::mxf4",
            "kind::mxf8f6f4",
            "block_scale",
            "block16",
            "block32",
            "scale_vec::4X",
            "scale_vec::2X",
            "scale_vec::1X",
        ],
    ),
    (
        "commit",
        &[
            "cta_group::1",
            "cta_group::2",
            "mbarrier::arrive::one",
            "shared::cluster",
            "multicast::cluster",
            "b64",
        ],
    ),
    ("ld", &["sync", "aligned", "32x32b", "b32", "x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"]),
    ("st", &["sync", "aligned", "32x32b", "b32", "x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128"]),
    ("wait::ld", &["sync", "aligned"]),
    ("wait::st", &["sync", "aligned"]),
    ("fence::before_thread_sync", &[]),
    ("fence::after_thread_sync", &[]),
];

/// Returns the problem of an unsupported form: its first unknown modifier, if it has one.
fn unknown(modifiers: &[&str]) -> RewriteProblem {
    let full = || format!("tcgen05.{}", modifiers.join("."));
    let Some((name, rest)) = modifiers.split_first() else {
        return RewriteProblem::Opcode("tcgen05".to_owned());
    };
    let Some((_, known)) = KNOWN.iter().find(|(known, _)| known == name) else {
        return RewriteProblem::Opcode(full());
    };
    match rest.iter().find(|modifier| !known.contains(modifier)) {
        Some(modifier) => {
            RewriteProblem::Modifier { opcode: format!("tcgen05.{name}"), modifier: (*modifier).to_owned() }
        }
        None => RewriteProblem::Form(full()),
    }
}

/// Returns the number of CTAs that execute the instruction together, as text.
fn cta_group(modifier: &str) -> Result<&'static str, RewriteProblem> {
    match modifier {
        "cta_group::1" => Ok("1"),
        "cta_group::2" => Ok("2"),
        other => Err(RewriteProblem::Modifier { opcode: "tcgen05".to_owned(), modifier: other.to_owned() }),
    }
}

/// Returns the number of codes along K per scale as text, or `1` for the kind whose elements are bytes; `None` for an
/// unsupported kind.
fn block_size(kind: &str, block: &[&str]) -> Option<&'static str> {
    match (kind, block) {
        ("kind::mxf4nvf4", ["block16" | "scale_vec::4X"]) => Some("16"),
        ("kind::mxf4", [] | ["block32" | "scale_vec::2X"]) => Some("32"),
        ("kind::mxf8f6f4", [] | ["block32" | "scale_vec::1X"]) => Some("1"),
        _ => None,
    }
}

/// Returns N of the modifier `xN`.
fn registers(modifier: &str) -> Result<usize, RewriteProblem> {
    let count = modifier.strip_prefix('x').and_then(|count| count.parse().ok());
    count.filter(|count| COUNTS.contains(count)).ok_or_else(|| RewriteProblem::Modifier {
        opcode: "tcgen05".to_owned(),
        modifier: modifier.to_owned(),
    })
}

/// Removes an instruction that orders what the emulation does in order.
fn nothing(instruction: &Instruction<'_>, quote: &str) -> Result<Replacement, RewriteProblem> {
    Operands::of(instruction, 0)?;
    Ok(Replacement { text: format!("// fourfold: {quote}\n"), callee: None })
}

fn alloc(instruction: &Instruction<'_>, group: &str, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (place, columns) = (operands.address()?, operands.value()?);
    let mut block = Block::new(quote);
    let place = block.address(&place);
    let arguments = [(Type::B32, place.as_str()), (Type::B32, columns.as_str()), (Type::B32, group)];
    block.call("fourfold_alloc", &arguments, None);
    Ok(block.close())
}

fn dealloc(instruction: &Instruction<'_>, group: &str, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (start, columns) = (operands.value()?, operands.value()?);
    let mut block = Block::new(quote);
    let arguments = [(Type::B32, start.as_str()), (Type::B32, columns.as_str()), (Type::B32, group)];
    block.call("fourfold_dealloc", &arguments, None);
    Ok(block.close())
}

fn copy(instruction: &Instruction<'_>, group: &str, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (target, descriptor) = (operands.address()?, operands.value()?);
    let mut block = Block::new(quote);
    let target = block.address(&target);
    let arguments = [(Type::B32, target.as_str()), (Type::B64, descriptor.as_str()), (Type::B32, group)];
    block.call("fourfold_copy_scales", &arguments, None);
    Ok(block.close())
}

fn multiply(
    instruction: &Instruction<'_>,
    size: &str,
    group: &str,
    quote: &str,
) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 7)?;
    // A is a descriptor; `[a]` would be an address in tensor memory.
    let (d, a, b, descriptor) =
        (operands.address()?, operands.value()?, operands.value()?, operands.value()?);
    let (sfa, sfb) = (operands.address()?, operands.address()?);
    let (yes, no, accumulate) = match operands.any()? {
        Operand::Value(predicate) if !is_immediate(&predicate) && predicate != "_" => ("1", "0", predicate),
        Operand::Not(predicate) => ("0", "1", predicate.to_owned()),
        other => return Err(unsupported(&other)),
    };
    let mut block = Block::new(quote);
    block.line(".reg .b32 fourfold_accumulate;");
    block.line(&format!("selp.b32 fourfold_accumulate, {yes}, {no}, {accumulate};"));
    let (d, sfa, sfb) = (block.address(&d), block.address(&sfa), block.address(&sfb));
    let arguments = [
        (Type::B32, d.as_str()),
        (Type::B64, a.as_str()),
        (Type::B64, b.as_str()),
        (Type::B32, descriptor.as_str()),
        (Type::B32, sfa.as_str()),
        (Type::B32, sfb.as_str()),
        (Type::B32, "fourfold_accumulate"),
        (Type::B32, size),
        (Type::B32, group),
    ];
    block.call("fourfold_mma", &arguments, None);
    Ok(block.close())
}

fn commit(
    instruction: &Instruction<'_>,
    multicast: bool,
    group: &str,
    quote: &str,
) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, if multicast { 2 } else { 1 })?;
    let barrier = operands.address()?;
    let mut block = Block::new(quote);
    let barrier = block.address(&barrier);
    let mut mask = "0";
    if multicast {
        // The mask is a register of 16 bits: one per CTA of the cluster.
        let narrow = operands.value()?;
        if is_immediate(&narrow) {
            return Err(RewriteProblem::Operand(narrow));
        }
        block.line(".reg .b32 fourfold_mask;");
        block.line(&format!("cvt.u32.u16 fourfold_mask, {narrow};"));
        mask = "fourfold_mask";
    }
    let multicast = if multicast { "1" } else { "0" };
    let arguments =
        [(Type::B32, barrier.as_str()), (Type::B32, mask), (Type::B32, group), (Type::B32, multicast)];
    block.call("fourfold_commit", &arguments, None);
    Ok(block.close())
}

fn load(instruction: &Instruction<'_>, count: usize, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (list, address) = (operands.list()?, operands.address()?);
    check_count(instruction, &list, count)?;
    let mut block = Block::new(quote);
    // The call reads the address before the loads write registers, which may include the address.
    memory(&mut block, "fourfold_load_address", &address, count);
    for (index, register) in list.iter().enumerate() {
        let offset = REGISTER_STRIDE * index;
        block.line(&format!("ld.volatile.global.b32 {register}, [fourfold_memory+{offset}];"));
    }
    Ok(block.close())
}

fn store(instruction: &Instruction<'_>, count: usize, quote: &str) -> Result<Replacement, RewriteProblem> {
    let mut operands = Operands::of(instruction, 2)?;
    let (address, list) = (operands.address()?, operands.list()?);
    check_count(instruction, &list, count)?;
    let mut block = Block::new(quote);
    memory(&mut block, "fourfold_store_address", &address, count);
    for (index, register) in list.iter().enumerate() {
        let offset = REGISTER_STRIDE * index;
        block.line(&format!("st.volatile.global.b32 [fourfold_memory+{offset}], {register};"));
    }
    Ok(block.close())
}

/// Converts an address in tensor memory to the global address of the thread's first register.
fn memory(block: &mut Block, function: &'static str, address: &super::operand::Address<'_>, count: usize) {
    let (address, count) = (block.address(address), count.to_string());
    block.line(".reg .b64 fourfold_memory;");
    let arguments = [(Type::B32, address.as_str()), (Type::B32, count.as_str())];
    block.call(function, &arguments, Some((Type::B64, "fourfold_memory")));
}

fn check_count(
    instruction: &Instruction<'_>,
    list: &[String],
    expected: usize,
) -> Result<(), RewriteProblem> {
    let found = list.len();
    if found == expected {
        return Ok(());
    }
    Err(RewriteProblem::OperandCount { opcode: instruction.opcode.clone(), expected, found })
}
