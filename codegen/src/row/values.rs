//! Names and types of values in device code.
//!
//! The statements handle two elements at once, `a` and `b`. A bf16 or f16 value is one packed word, so that a product
//! of two bf16 values is one instruction; every other value is two variables.

use fourfold_ir::ElementType;
use fourfold_scheduler::{RowOutputKind, RowProgram, RowRef, RowShape};

/// Returns whether a value has one number per element of a row.
pub(super) fn is_element(program: &RowProgram, value: RowRef) -> bool {
    matches!(program.shape(value), RowShape::Matrix | RowShape::Row)
}

/// Returns whether all rows share a value.
pub(super) fn is_shared(program: &RowProgram, value: RowRef) -> bool {
    matches!(program.shape(value), RowShape::Scalar | RowShape::Row)
}

/// Returns whether elements of this type are packed in pairs.
pub(super) fn is_packed(element: ElementType) -> bool {
    matches!(element, ElementType::BF16 | ElementType::F16)
}

/// The C++ type of one number.
pub(super) fn number_type(element: ElementType) -> &'static str {
    match element {
        ElementType::I32 => "int32_t",
        ElementType::I1 => "bool",
        _ => "float",
    }
}

/// The literal of a number, given the bits of an f32 or i32, or 0 or 1 for i1.
pub(super) fn literal(element: ElementType, bits: u32) -> String {
    match element {
        ElementType::I32 => format!("static_cast<int32_t>(0x{bits:08x}u)"),
        ElementType::I1 => (bits != 0).to_string(),
        _ => crate::epilogue::body::literal(bits),
    }
}

/// Returns whether the program reads, computes or writes FP6.
pub(super) fn has_fp6(program: &RowProgram) -> bool {
    let quantized = program.outputs.iter().filter_map(|output| match output.kind {
        RowOutputKind::Quantized { format, .. } => Some(format.element),
        RowOutputKind::Value => None,
    });
    let operands = program.operands.iter().map(|operand| operand.element);
    let steps = program.steps.iter().map(|step| step.element);
    quantized.chain(operands).chain(steps).any(ElementType::is_fp6)
}

/// Returns whether rows of FP6 are written as values. A thread then writes whole bytes: four elements.
pub(super) fn writes_fp6(program: &RowProgram) -> bool {
    let is_fp6 = |of| is_element(program, of) && program.element(of).is_fp6();
    program.outputs.iter().any(|output| output.kind == RowOutputKind::Value && is_fp6(output.of))
}

/// Returns whether rows of FP6 are read or written as values.
pub(super) fn has_rows_of_fp6(program: &RowProgram) -> bool {
    let mut operands = (0..program.operands.len()).map(RowRef::Operand);
    operands.any(|of| is_element(program, of) && program.element(of).is_fp6()) || writes_fp6(program)
}

/// The name of a value.
pub(super) fn name(value: RowRef) -> String {
    match value {
        RowRef::Operand(operand) => format!("x{operand}"),
        RowRef::Step(step) => format!("s{step}"),
    }
}

/// One number of a value: element `a` or `b`, or the row's only one.
pub(super) fn number(program: &RowProgram, value: RowRef, half: usize) -> String {
    let name = name(value);
    // The two elements of a pair have scales of their own if blocks are of one element.
    let is_single = matches!(program.shape(value), RowShape::Scales { block: 1, .. });
    if !is_element(program, value) && !is_single {
        return name;
    }
    let element = program.element(value);
    match (is_packed(element), half) {
        (true, 0) => format!("low_{element}({name})"),
        (true, _) => format!("high_{element}({name})"),
        (false, 0) => format!("{name}a"),
        (false, _) => format!("{name}b"),
    }
}

/// The packed word of a bf16 or f16 value; `None` for other types.
pub(super) fn word(program: &RowProgram, value: RowRef) -> Option<String> {
    let element = program.element(value);
    let name = name(value);
    match (is_packed(element), is_element(program, value)) {
        (false, _) => None,
        (true, true) => Some(name),
        (true, false) => Some(format!("pack_{element}({name}, {name})")),
    }
}

/// The bytes before a number of elements, as an expression.
pub(super) fn bytes(elements: &str, bits: usize) -> String {
    match bits {
        4 => format!("({elements} >> 1)"),
        6 => format!("({elements} >> 2) * 3"),
        8 => elements.to_owned(),
        _ => format!("{elements} * {}", bits / 8),
    }
}

/// The declaration of the two numbers of an element step or operand.
pub(super) fn declare(name: &str, element: ElementType, [a, b]: [String; 2]) -> String {
    format!("{} const {name}a = {a}, {name}b = {b};", number_type(element))
}
