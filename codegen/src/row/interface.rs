//! The C interface of a row kernel: its roles, the sizes of its tensors, and the conditions of a call.

use fourfold_ir::{ElementType, ScaleLayout};
use fourfold_scheduler::{RowOutputKind, RowPlan, RowProgram, RowRef, RowShape};
use serde::Serialize;

use super::phases::is_once;
use super::values::is_element;
use crate::source::{Interface, Role};

/// The names of the extents of the operand that repeats rows as number `repeat`.
fn repeat_extents(repeat: usize) -> [&'static str; 2] {
    RowPlan::REPEAT_EXTENTS[repeat]
}

/// The number of operands that repeat rows.
pub(super) fn repeats(program: &RowProgram) -> usize {
    program.operands.iter().filter(|operand| operand.repeats).count()
}

/// The number of the repeat of each operand.
fn repeat_numbers(program: &RowProgram) -> impl Iterator<Item = Option<usize>> {
    program.operands.iter().scan(0, |next, operand| {
        let number = operand.repeats.then_some(*next);
        *next += usize::from(operand.repeats);
        Some(number)
    })
}

/// Elements of FP4 and FP6 share bytes; others have whole bytes.
fn alignment(element: ElementType) -> u32 {
    (element.storage_bits() as u32 / 8).max(1)
}

/// The roles of a call: the operands `x0`, .., then the outputs, codes before their scales.
pub(super) fn interface(program: &RowProgram) -> Interface {
    let operands = program.operands.iter().zip(repeat_numbers(program)).enumerate();
    let operands = operands.map(|(index, (operand, repeat))| {
        let rows = repeat.map(|repeat| repeat_extents(repeat)[1]);
        let extents = match (operand.shape, rows) {
            (RowShape::Scalar, _) => Some(vec![]),
            (RowShape::Row, _) => Some(vec!["K"]),
            (RowShape::Column, None) => Some(vec!["L", "M"]),
            (RowShape::Column, Some(rows)) => Some(vec![rows]),
            (RowShape::Matrix, None) => Some(vec!["L", "M", "K"]),
            (RowShape::Matrix, Some(rows)) => Some(vec![rows, "K"]),
            // K / block is no extent, so the kernel states the size.
            (RowShape::Scales { .. }, _) => None,
        };
        let (name, element) = (format!("x{index}"), operand.element.to_string());
        Role { name, element, extents, alignment: alignment(operand.element) }
    });
    let mut outputs: Vec<Role> = Vec::new();
    let mut add = |element: ElementType, extents: Option<&[&'static str]>| {
        let (name, element, alignment) =
            (format!("y{}", outputs.len()), element.to_string(), alignment(element));
        outputs.push(Role { name, element, extents: extents.map(<[_]>::to_vec), alignment });
    };
    for (position, output) in program.outputs.iter().enumerate() {
        let extents: &[&'static str] = match (is_once(program, position), is_element(program, output.of)) {
            (true, true) => &["K"],
            (true, false) => &[],
            (false, true) => &["L", "M", "K"],
            (false, false) => &["L", "M"],
        };
        match output.kind {
            RowOutputKind::Value => add(program.element(output.of), Some(extents)),
            RowOutputKind::Quantized { format, .. } => {
                let extents: &[&'static str] = if extents == ["K"] { extents } else { &["L", "M", "K"] };
                add(format.element, Some(extents));
                add(format.scale, None);
            }
        }
    }
    let mut extents = vec!["L", "M", "K"];
    extents.extend((0..repeats(program)).flat_map(repeat_extents));
    Interface { extents, operands: operands.collect(), scalars: Vec::new(), outputs }
}

/// A tensor that the kernel writes, for `abi.cu.j2`.
#[derive(Serialize)]
pub(super) struct Output {
    bytes: String,
    /// 0, because the kernel's own functions locate scales.
    scale_block: u32,
}

/// The bytes of scales, as an expression.
fn scale_bytes(batches: &str, rows: &str, block: u32, layout: ScaleLayout) -> String {
    match layout {
        ScaleLayout::Blocked => format!("{batches} * scale_bytes({rows}, k / {block})"),
        ScaleLayout::Linear => format!("{batches} * {rows} * (k / {block})"),
    }
}

/// The size of each written tensor, as an expression.
pub(super) fn output_sizes(program: &RowProgram) -> Vec<Output> {
    let mut sizes = Vec::new();
    for (position, output) in program.outputs.iter().enumerate() {
        let once = is_once(program, position);
        match output.kind {
            RowOutputKind::Value => {
                let bits = program.element(output.of).storage_bits();
                let elements = match (once, is_element(program, output.of)) {
                    (true, true) => "k",
                    (true, false) => "1",
                    (false, true) => "l * m * k",
                    (false, false) => "l * m",
                };
                sizes.push(format!("{elements} * {bits} / 8"));
            }
            RowOutputKind::Quantized { format, layout, .. } => {
                let [batches, rows] = if once { ["1", "1"] } else { ["l", "m"] };
                sizes.push(format!("{batches} * {rows} * k * {} / 8", format.element.storage_bits()));
                sizes.push(scale_bytes(batches, rows, format.block, layout));
            }
        }
    }
    sizes.into_iter().map(|bytes| Output { bytes, scale_block: 0 }).collect()
}

/// The operands whose size the kernel states, with their bytes as an expression in `l`, `m`, `k` and `rowsN`, the rows
/// of the operand that repeats rows as number N.
pub(super) fn operand_sizes(program: &RowProgram) -> Vec<(usize, String)> {
    let operands = program.operands.iter().zip(repeat_numbers(program)).enumerate();
    let sizes = operands.filter_map(|(index, (operand, repeat))| {
        let RowShape::Scales { block, layout } = operand.shape else { return None };
        let rows = repeat.map(|repeat| format!("problem->{}", repeat_extents(repeat)[1].to_lowercase()));
        let bytes = match (rows, layout) {
            (None, _) => scale_bytes("l", "m", block, layout),
            (Some(rows), ScaleLayout::Linear) => scale_bytes("1", &rows, block, layout),
            (Some(rows), ScaleLayout::Blocked) => {
                scale_bytes(&format!("({rows} / (m > 0 ? m : 1))"), "m", block, layout)
            }
        };
        Some((index, bytes))
    });
    sizes.collect()
}

/// The elements per scale of all quantized outputs and scales.
fn blocks(program: &RowProgram) -> impl Iterator<Item = u32> {
    let outputs = program.outputs.iter().filter_map(|output| match output.kind {
        RowOutputKind::Quantized { format, .. } => Some(format.block),
        RowOutputKind::Value => None,
    });
    let operands = program.operands.iter().filter_map(|operand| match operand.shape {
        RowShape::Scales { block, .. } => Some(block),
        _ => None,
    });
    outputs.chain(operands)
}

/// The fewest elements per scale, which determine the most bytes of scales; 0 without scales.
pub(super) fn least_block(program: &RowProgram) -> u32 {
    blocks(program).min().unwrap_or(0)
}

/// K is a multiple of this number: a block of every scale, and the elements of whole bytes.
pub(super) fn k_multiple(program: &RowProgram) -> u32 {
    let operands = (0..program.operands.len()).map(RowRef::Operand);
    let outputs = program.outputs.iter().filter(|output| output.kind == RowOutputKind::Value);
    let rows = operands.chain(outputs.map(|output| output.of)).filter(|of| is_element(program, *of));
    let packed = rows.map(|of| program.element(of).packed_count() as u32);
    blocks(program).chain(packed).max().unwrap_or(1)
}
