//! The statements that compute one step of a row program.
//!
//! Every step rounds once. A function of f16 or bf16 operands is computed in f32 and rounded again. The second rounding
//! is innocuous for `add`, `sub`, `mul`, `div`, `sqrt` and `reciprocal`: f32 has 24 >= 2p + 2 digits for p = 8 and 11
//! (Figueroa, 1995), and subnormal results are never closer to a tie than f32 resolves. Other functions have an error
//! bound. Two conversions need more care:
//! `narrow_of_i32` and the dequantization by three factors round to odd first.

use fourfold_ir::{BinaryKind, BitwiseKind, ElementType, Predicate, UnaryKind};
use fourfold_scheduler::{RowProgram, RowRef, RowStepKind};

use super::functions::prefix;
use super::values::{declare, is_element, is_packed, literal, name, number, number_type, word};
use crate::epilogue::body::{comparison, function};

/// The statement that computes a step.
pub(super) fn statement(program: &RowProgram, position: usize) -> String {
    let element = program.steps[position].element;
    let name = name(RowRef::Step(position));
    if !is_element(program, RowRef::Step(position)) {
        let value = rounded(program, position, expression(program, position, 0));
        return format!("{} const {name} = {value};", number_type(element));
    }
    if let Some(value) = packed(program, position) {
        return format!("uint32_t const {name} = {value};");
    }
    if let Some([left, by]) = rounded_quotient(program, position) {
        let halves = [0, 1].map(|half| number(program, left, half));
        return format!(
            "uint32_t const {name} = {}.pack_quotients({}, {});",
            divisor(by),
            halves[0],
            halves[1]
        );
    }
    let halves = [0, 1].map(|half| expression(program, position, half));
    if is_packed(element) {
        return format!("uint32_t const {name} = pack_{element}({}, {});", halves[0], halves[1]);
    }
    declare(&name, element, halves.map(|value| rounded(program, position, value)))
}

/// The expression of packed words that computes a step of two 16-bit operands; `None` if there is none. The
/// instructions round the exact result once.
fn packed(program: &RowProgram, position: usize) -> Option<String> {
    let step = &program.steps[position];
    if !is_packed(step.element) || step.operands.iter().any(|of| program.element(*of) != step.element) {
        return None;
    }
    let function = match step.kind {
        RowStepKind::Binary(BinaryKind::Add) => "add",
        RowStepKind::Binary(BinaryKind::Sub) => "sub",
        RowStepKind::Binary(BinaryKind::Mul) => "mul",
        RowStepKind::Binary(BinaryKind::Max) => "max",
        RowStepKind::Binary(BinaryKind::Min) => "min",
        RowStepKind::Unary(UnaryKind::Neg) => "neg",
        RowStepKind::Unary(UnaryKind::Abs) => "abs",
        RowStepKind::Convert => return word(program, step.operands[0]),
        _ => return None,
    };
    let words: Option<Vec<String>> = step.operands.iter().map(|of| word(program, *of)).collect();
    Some(format!("{function}_{}x2({})", step.element, words?.join(", ")))
}

fn rounded(program: &RowProgram, position: usize, value: String) -> String {
    match has_more_digits(program, position) {
        true => format!("round_{}({value})", program.steps[position].element),
        false => value,
    }
}

/// One number of a step, before it is rounded to a type other than f32.
fn expression(program: &RowProgram, position: usize, half: usize) -> String {
    let step = &program.steps[position];
    let operand = |index: usize| number(program, step.operands[index], half);
    match step.kind {
        RowStepKind::Constant(bits) => literal(step.element, bits),
        RowStepKind::Unary(kind) => format!("{}_{kind}({})", prefix(kind), operand(0)),
        RowStepKind::Binary(kind) => binary(program, position, kind, [operand(0), operand(1)]),
        RowStepKind::Bitwise(kind) => {
            let function = match kind {
                BitwiseKind::And => "and",
                BitwiseKind::Or => "or",
                BitwiseKind::ShiftLeft => "shift_left",
                BitwiseKind::ShiftRight => "shift_right",
            };
            format!("{function}_i32({}, {})", operand(0), operand(1))
        }
        RowStepKind::Bitcast => {
            let from = program.element(step.operands[0]);
            match from == step.element {
                true => operand(0),
                false => format!("bitcast_{from}_{}({})", step.element, operand(0)),
            }
        }
        RowStepKind::Dequantize => dequantize(program, position, half),
        RowStepKind::Clamp { lower, upper } => {
            let [max, min] = match step.element {
                ElementType::I32 => ["max_i32", "min_i32"],
                _ => ["op_max", "op_min"],
            };
            let [lower, upper] = [lower, upper].map(|bound| literal(step.element, bound));
            format!("{min}({max}({}, {lower}), {upper})", operand(0))
        }
        RowStepKind::Compare(predicate) => compare(predicate, &operand(0), &operand(1)),
        RowStepKind::Select => format!("{} ? {} : {}", operand(0), operand(1), operand(2)),
        RowStepKind::Convert => convert(program.element(step.operands[0]), step.element, &operand(0)),
        RowStepKind::Reduce(_) => operand(0),
    }
}

fn compare(predicate: Predicate, left: &str, right: &str) -> String {
    format!("{left} {} {right}", comparison(predicate))
}

fn binary(program: &RowProgram, position: usize, kind: BinaryKind, operands: [String; 2]) -> String {
    let step = &program.steps[position];
    let [left, right] = operands;
    if step.element == ElementType::I32 {
        return format!("{kind}_i32({left}, {right})");
    }
    if kind == BinaryKind::Div && has_divisor(program, position) {
        // An estimate within 1.5 ulp of f32 is on the right side of every tie of a quotient of 11-bit numbers.
        let way = if step.element == ElementType::F32 { "quotient" } else { "estimate" };
        return format!("{}.{way}({left})", divisor(step.operands[1]));
    }
    let function = function(kind).unwrap_or("op_pow");
    format!("{function}({left}, {right})")
}

/// A number as one of another type, before it is rounded.
fn convert(from: ElementType, to: ElementType, number: &str) -> String {
    match (number_type(from), number_type(to)) {
        (from, to) if from == to => number.to_owned(),
        ("int32_t", "float") if to != ElementType::F32 => format!("narrow_of_i32({number})"),
        ("int32_t", "float") => format!("float_of_i32({number})"),
        ("bool", "float") => format!("float_of_bool({number})"),
        ("bool", _) => format!("i32_of_bool({number})"),
        ("float", "int32_t") => format!("i32_of_float({number})"),
        // Nothing converts to i1.
        _ => format!("{number} != 0"),
    }
}

fn dequantize(program: &RowProgram, position: usize, half: usize) -> String {
    let step = &program.steps[position];
    let numbers: Vec<String> = step.operands.iter().map(|of| number(program, *of, half)).collect();
    if numbers.len() < 3 {
        return format!("dequantize({})", numbers.join(", "));
    }
    let format = match program.element(step.operands[1]) {
        ElementType::F8E8M0FNU => "mx",
        _ => "nvfp4",
    };
    let rounding = if step.element == ElementType::F32 { "" } else { "_odd" };
    format!("dequantize_{format}{rounding}({})", numbers.join(", "))
}

/// The operands of the f32 quotient that a step rounds to bf16; `None` if it does something else.
pub(super) fn rounded_quotient(program: &RowProgram, position: usize) -> Option<[RowRef; 2]> {
    let step = &program.steps[position];
    let RowRef::Step(of) = *step.operands.first()? else { return None };
    let quotient = &program.steps[of];
    let is_rounded = step.kind == RowStepKind::Convert
        && step.element == ElementType::BF16
        && quotient.element == ElementType::F32
        && quotient.kind == RowStepKind::Binary(BinaryKind::Div);
    match quotient.operands[..] {
        [left, by] if is_rounded && is_element(program, RowRef::Step(of)) && has_divisor(program, of) => {
            (program.element(left) == ElementType::F32).then_some([left, by])
        }
        _ => None,
    }
}

/// Returns whether a step divides elements by a number of the row.
fn has_divisor(program: &RowProgram, position: usize) -> bool {
    match program.steps[position].operands[..] {
        [left, right] => is_element(program, left) && !is_element(program, right),
        _ => false,
    }
}

/// The name of the prepared divisor that a row value is.
fn divisor(value: RowRef) -> String {
    format!("by_{value}")
}

/// The statement that prepares a divisor.
pub(super) fn divisor_statement(program: &RowProgram, value: RowRef) -> String {
    format!("Divisor const {} = Divisor::of({});", divisor(value), number(program, value, 0))
}

/// The divisors that elements are divided by, each prepared once per row.
pub(super) fn divisors(program: &RowProgram) -> Vec<RowRef> {
    let mut divisors = Vec::new();
    for (position, step) in program.steps.iter().enumerate() {
        if step.kind != RowStepKind::Binary(BinaryKind::Div) || !has_divisor(program, position) {
            continue;
        }
        if !divisors.contains(&step.operands[1]) {
            divisors.push(step.operands[1]);
        }
    }
    divisors
}

/// Returns whether a step can have more digits than its element type.
fn has_more_digits(program: &RowProgram, position: usize) -> bool {
    use UnaryKind::{Abs, Ceil, Floor, Neg, Relu, Round};
    let step = &program.steps[position];
    if matches!(step.element, ElementType::F32 | ElementType::I32 | ElementType::I1) {
        return false;
    }
    match step.kind {
        // An integer between two values of a type is a value of that type.
        RowStepKind::Unary(kind) => !matches!(kind, Neg | Abs | Relu | Floor | Ceil | Round),
        RowStepKind::Binary(kind) => !matches!(kind, BinaryKind::Max | BinaryKind::Min),
        RowStepKind::Convert | RowStepKind::Reduce(_) | RowStepKind::Dequantize => true,
        RowStepKind::Constant(_)
        | RowStepKind::Bitwise(_)
        | RowStepKind::Bitcast
        | RowStepKind::Clamp { .. }
        | RowStepKind::Compare(_)
        | RowStepKind::Select => false,
    }
}

/// The functions of one operand that the steps call.
pub(super) fn unary_kinds(program: &RowProgram) -> Vec<UnaryKind> {
    let kinds = program.steps.iter().filter_map(|step| match step.kind {
        RowStepKind::Unary(kind) => Some(kind),
        _ => None,
    });
    let mut kinds: Vec<UnaryKind> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
