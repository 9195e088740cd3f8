//! The epilogue as formulas, for the reader of a kernel's source.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{BinaryKind, OperandShape};
use fourfold_scheduler::EpilogueRef;

use super::body::comparison;
use super::name::direction;
use super::{Epilogue, Output, OutputKind, StepKind, outputs};

/// The formulas of the steps and outputs, one per line.
pub(crate) fn formula(epilogue: &Epilogue) -> Vec<String> {
    let sum_of = |row: &str| {
        let sum = format!("sum over k of (A · SFA)[l, m, k] · (B · SFB)[l, {row}, k]");
        if epilogue.alpha { format!("alpha · {sum}") } else { sum }
    };
    let mut sum = sum_of(if epilogue.pair { "2 · n" } else { "n" });
    if epilogue.c.is_some() {
        sum = format!("{sum} + {}C[l, m, n]", if epilogue.beta { "beta · " } else { "" });
    }
    const D: &str = "D[l, m, n]";
    let is_d = |value: EpilogueRef| epilogue.is_plain() && value == epilogue.last();
    let name = |position: usize| {
        if is_d(EpilogueRef::Step(position)) { D.to_owned() } else { format!("s{position}") }
    };
    let first = if is_d(EpilogueRef::Accumulator) { D } else { "v" };
    let mut lines = vec![format!("{first} = {}({sum})", epilogue.accumulator)];
    lines.extend(epilogue.pair.then(|| format!("w = {}({})", epilogue.accumulator, sum_of("2 · n + 1"))));
    for (position, step) in epilogue.steps.iter().enumerate() {
        let operand = |index: usize| match step.operands.get(index) {
            Some(EpilogueRef::Step(step)) => format!("s{step}"),
            Some(EpilogueRef::Operand(operand)) => match epilogue.operands[*operand].shape {
                OperandShape::Scalar => format!("x{operand}"),
                OperandShape::Row => format!("x{operand}[n]"),
                OperandShape::Column => format!("x{operand}[l, m]"),
                OperandShape::Matrix => format!("x{operand}[l, m, n]"),
            },
            Some(EpilogueRef::Odd) => "w".to_owned(),
            Some(EpilogueRef::Accumulator) | None => "v".to_owned(),
        };
        let value = match step.kind {
            StepKind::Constant(bits) => number(bits),
            StepKind::Unary(kind) => format!("{kind}({})", operand(0)),
            StepKind::Binary(kind) => match sign(kind) {
                Some(sign) => format!("{} {sign} {}", operand(0), operand(1)),
                None => format!("{kind}({}, {})", operand(0), operand(1)),
            },
            StepKind::Clamp { lower, upper } => {
                format!("min(max({}, {}), {})", operand(0), number(lower), number(upper))
            }
            StepKind::Compare(predicate) => {
                format!("{} {} {}", operand(0), comparison(predicate), operand(1))
            }
            StepKind::Select => format!("{} ? {} : {}", operand(0), operand(1), operand(2)),
            StepKind::Convert => operand(0),
        };
        lines.push(format!("{} = {}({value})", name(position), step.element));
    }
    if !epilogue.is_plain() {
        lines.extend(output_lines(epilogue));
    }
    lines
}

/// The formulas of the outputs.
fn output_lines(epilogue: &Epilogue) -> Vec<String> {
    let value = |of: EpilogueRef| match of {
        EpilogueRef::Step(step) => format!("s{step}"),
        EpilogueRef::Odd => "w".to_owned(),
        EpilogueRef::Accumulator | EpilogueRef::Operand(_) => "v".to_owned(),
    };
    let line = |(position, output): (usize, &Output)| {
        let (tensor, of) = (outputs::index(epilogue, position), value(output.of));
        match output.kind {
            OutputKind::Value => format!("y{tensor}[l, m, n] = {of}"),
            OutputKind::Quantized { global, element, block, scale_rounding, formula } => {
                let mut how = format!("{element} per {block}");
                how += &scale_rounding.map_or(String::new(), |rounding| format!(", {}", direction(rounding)));
                if formula != Nvfp4Formula::DEFAULT {
                    how += &format!(", {formula}");
                }
                how += &global.map_or(String::new(), |operand| format!(", global x{operand}"));
                format!("y{tensor}[l, m, n], y{}[l, m, n / {block}] = quantize({of}; {how})", tensor + 1)
            }
            OutputKind::Reduced { kind, shape } => match shape {
                OperandShape::Row => format!("y{tensor}[n] = {kind} over l, m of {of}"),
                OperandShape::Column => format!("y{tensor}[l, m] = {kind} over n of {of}"),
                OperandShape::Scalar | OperandShape::Matrix => {
                    format!("y{tensor} = {kind} over l, m, n of {of}")
                }
            },
        }
    };
    epilogue.outputs.iter().enumerate().map(line).collect()
}

fn sign(kind: BinaryKind) -> Option<&'static str> {
    match kind {
        BinaryKind::Add => Some("+"),
        BinaryKind::Sub => Some("-"),
        BinaryKind::Mul => Some("·"),
        BinaryKind::Div => Some("/"),
        BinaryKind::Max | BinaryKind::Min | BinaryKind::Pow => None,
    }
}

fn number(bits: u32) -> String {
    f32::from_bits(bits).to_string()
}
