//! A row program as device code: phases, each a loop over the elements of a row between two reductions.
//!
//! The statements handle two elements at once, `a` and `b`. A bf16 or f16 value is one packed word, so that a product
//! of two bf16 values is one instruction; every other value is two variables.

use fourfold_ir::{BinaryKind, ElementType, ReduceKind, UnaryKind};
use fourfold_scheduler::{RowProgram, RowRef, RowShape, RowStep, RowStepKind};
use serde::Serialize;

use crate::epilogue::body::{comparison, function, literal};

/// The statements between two reductions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Phase {
    /// Statements per row, before the loop.
    pub(crate) row: Vec<String>,
    /// Statements per pair of elements.
    pub(crate) element: Vec<String>,
    /// The same where earlier phases kept the results of expensive steps in registers.
    pub(crate) element_kept: Vec<String>,
    /// The positions of operands that the loop reads, one per element.
    pub(crate) reads: Vec<usize>,
    /// The reductions that the loop feeds.
    pub(crate) reductions: Vec<Reduction>,
    /// The outputs that the loop writes, by position.
    pub(crate) outputs: Vec<Written>,
    /// The outputs with one element per row that are written before the loop.
    pub(crate) columns: Vec<Written>,
}

/// A reduction over a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Reduction {
    /// The step's position.
    pub(crate) step: usize,
    /// The position among all reductions, for shared memory.
    pub(crate) slot: usize,
    /// The C++ type that combines two numbers.
    pub(crate) combine: &'static str,
    /// The two operands.
    pub(crate) values: [String; 2],
    /// The factors of both operands if they are f32 products that are added; they are not rounded then.
    pub(crate) products: Option<[[String; 2]; 2]>,
    /// The result, given the combined number `total`.
    pub(crate) result: String,
}

/// A value that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Written {
    /// The output's position.
    pub(crate) output: usize,
    /// The two elements as f32; the first alone for a column.
    pub(crate) values: [String; 2],
    /// The packed word of both elements; empty if there is none.
    pub(crate) packed: String,
}

/// Returns whether a value has one number per element of a row.
pub(crate) fn is_element(program: &RowProgram, value: RowRef) -> bool {
    matches!(program.shape(value), RowShape::Matrix | RowShape::Row)
}

/// Returns whether elements of this type are packed in pairs.
fn is_packed(element: ElementType) -> bool {
    matches!(element, ElementType::BF16 | ElementType::F16)
}

/// The number of reductions on the longest path to each step.
fn levels(program: &RowProgram) -> Vec<usize> {
    let mut levels: Vec<usize> = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let of = |value: &RowRef| match *value {
            RowRef::Operand(_) => 0,
            RowRef::Step(step) => levels[step],
        };
        let before = step.operands.iter().map(of).max().unwrap_or(0);
        levels.push(before + usize::from(matches!(step.kind, RowStepKind::Reduce(_))));
    }
    levels
}

/// The phases of a program, in order.
pub(crate) fn phases(program: &RowProgram) -> Vec<Phase> {
    let levels = levels(program);
    let level = |value: RowRef| match value {
        RowRef::Operand(_) => 0,
        RowRef::Step(step) => levels[step],
    };
    let count = levels.iter().max().map_or(1, |last| last + 1);
    let kept = kept(program);
    let divisors = divisors(program);
    let mut slot = 0;
    (0..count)
        .map(|at| {
            let mut phase = Phase::default();
            let mut needed = vec![false; program.steps.len()];
            for (position, step) in program.steps.iter().enumerate() {
                let RowStepKind::Reduce(kind) = step.kind else { continue };
                if levels[position] == at + 1 {
                    let value = step.operands[0];
                    need(program, value, &mut needed, &mut phase.reads);
                    phase.reductions.push(reduction(program, position, slot, kind));
                    slot += 1;
                }
            }
            for (position, output) in program.outputs.iter().enumerate() {
                if level(output.of) != at {
                    continue;
                }
                let written = written(program, position);
                if is_element(program, output.of) {
                    need(program, output.of, &mut needed, &mut phase.reads);
                    phase.outputs.push(written);
                } else {
                    phase.columns.push(written);
                }
            }
            for (position, step) in program.steps.iter().enumerate() {
                if matches!(step.kind, RowStepKind::Reduce(_)) {
                    continue;
                }
                if is_element(program, RowRef::Step(position)) {
                    if needed[position] {
                        let lines = statement(program, position);
                        phase.element.extend(lines.clone());
                        match kept.iter().find(|kept| kept.step == position) {
                            Some(kept) if kept.phase == at => {
                                phase.element_kept.extend(lines);
                                phase.element_kept.push(kept.keep());
                            }
                            Some(kept) => phase.element_kept.push(kept.read()),
                            None => phase.element_kept.extend(lines),
                        }
                    }
                } else if levels[position] == at {
                    phase.row.extend(statement(program, position));
                }
            }
            let divisors = divisors.iter().filter(|value| level(**value) == at);
            phase.row.extend(divisors.map(|value| {
                format!("Divisor const {} = Divisor::of({});", divisor(*value), number(program, *value, 0))
            }));
            phase.reads.sort_unstable();
            phase
        })
        .collect()
}

/// A step whose results stay in registers, because a later phase needs them and they are expensive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Kept {
    /// The step's position.
    pub(crate) step: usize,
    /// The phase that computes it.
    pub(crate) phase: usize,
    /// True if two results are one word.
    pub(crate) is_packed: bool,
}

impl Kept {
    fn keep(&self) -> String {
        let step = self.step;
        match self.is_packed {
            true => format!("k{step}[turn][pair] = s{step};"),
            false => format!("k{step}[turn][2 * pair] = s{step}a, k{step}[turn][2 * pair + 1] = s{step}b;"),
        }
    }

    fn read(&self) -> String {
        let step = self.step;
        match self.is_packed {
            true => format!("uint32_t const s{step} = k{step}[turn][pair];"),
            false => {
                format!(
                    "float const s{step}a = k{step}[turn][2 * pair], s{step}b = k{step}[turn][2 * pair + 1];"
                )
            }
        }
    }
}

/// The expensive steps that several phases need.
pub(crate) fn kept(program: &RowProgram) -> Vec<Kept> {
    let levels = levels(program);
    let level = |value: RowRef| match value {
        RowRef::Operand(_) => 0,
        RowRef::Step(step) => levels[step],
    };
    let count = levels.iter().max().map_or(1, |last| last + 1);
    let needed_in = |at: usize| {
        let mut needed = vec![false; program.steps.len()];
        let mut reads = Vec::new();
        for (position, step) in program.steps.iter().enumerate() {
            if matches!(step.kind, RowStepKind::Reduce(_)) && levels[position] == at + 1 {
                need(program, step.operands[0], &mut needed, &mut reads);
            }
        }
        for output in program.outputs.iter().filter(|output| level(output.of) == at) {
            need(program, output.of, &mut needed, &mut reads);
        }
        needed
    };
    let needed: Vec<Vec<bool>> = (0..count).map(needed_in).collect();
    let steps = program.steps.iter().enumerate().filter(|(_, step)| is_expensive(step.kind));
    let kept = steps.filter_map(|(position, step)| {
        let mut phases = (0..count).filter(|at| needed[*at][position]);
        let first = phases.next()?;
        phases.next()?;
        Some(Kept { step: position, phase: first, is_packed: is_packed(step.element) })
    });
    kept.collect()
}

fn is_expensive(kind: RowStepKind) -> bool {
    match kind {
        RowStepKind::Unary(kind) => !matches!(kind, UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu),
        RowStepKind::Binary(kind) => matches!(kind, BinaryKind::Div | BinaryKind::Pow),
        _ => false,
    }
}

/// Marks the element steps that a value needs, and the operands that they read.
fn need(program: &RowProgram, value: RowRef, needed: &mut [bool], reads: &mut Vec<usize>) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        if !is_element(program, value) {
            continue;
        }
        match value {
            RowRef::Operand(operand) if !reads.contains(&operand) => reads.push(operand),
            RowRef::Step(step) if !needed[step] => {
                needed[step] = true;
                open.extend(&program.steps[step].operands);
            }
            _ => {}
        }
    }
}

/// One number of a value as f32 (or bool): element `a` or `b`, or the row's only one.
fn number(program: &RowProgram, value: RowRef, half: usize) -> String {
    let name = match value {
        RowRef::Operand(operand) => format!("x{operand}"),
        RowRef::Step(step) => format!("s{step}"),
    };
    if !is_element(program, value) {
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
fn word(program: &RowProgram, value: RowRef) -> Option<String> {
    let element = program.element(value);
    if !is_packed(element) {
        return None;
    }
    let name = match value {
        RowRef::Operand(operand) => format!("x{operand}"),
        RowRef::Step(step) => format!("s{step}"),
    };
    Some(if is_element(program, value) { name } else { format!("pack_{element}({name}, {name})") })
}

fn reduction(program: &RowProgram, step: usize, slot: usize, kind: ReduceKind) -> Reduction {
    let value = program.steps[step].operands[0];
    let element = program.steps[step].element;
    let total = if kind == ReduceKind::Mean { "total * p.per_column" } else { "total" };
    let result = match element {
        ElementType::F32 => total.to_owned(),
        _ => format!("round_{element}({total})"),
    };
    let combine = match kind {
        ReduceKind::Sum | ReduceKind::Mean => "Sum",
        ReduceKind::Max => "Max",
        ReduceKind::Min => "Min",
        ReduceKind::Amax => "Amax",
    };
    let product = match value {
        RowRef::Step(of) if matches!(kind, ReduceKind::Sum | ReduceKind::Mean) => Some(&program.steps[of]),
        _ => None,
    };
    let is_product = |step: &&RowStep| {
        step.kind == RowStepKind::Binary(BinaryKind::Mul) && step.element == ElementType::F32
    };
    let products = product.filter(is_product).map(|product| {
        [0, 1].map(|half| [0, 1].map(|factor| number(program, product.operands[factor], half)))
    });
    Reduction {
        step,
        slot,
        combine,
        values: [0, 1].map(|half| number(program, value, half)),
        products,
        result,
    }
}

fn written(program: &RowProgram, output: usize) -> Written {
    let value = program.outputs[output].of;
    Written {
        output,
        values: [0, 1].map(|half| number(program, value, half)),
        packed: if is_element(program, value) {
            word(program, value).unwrap_or_default()
        } else {
            String::new()
        },
    }
}

/// The function of packed words that computes a step of two 16-bit operands exactly; `None` if there is none. One
/// rounding of the exact result is all that the step needs.
fn packed_function(program: &RowProgram, position: usize) -> Option<String> {
    let step = &program.steps[position];
    if !is_packed(step.element) || step.operands.iter().any(|of| program.element(*of) != step.element) {
        return None;
    }
    let name = match step.kind {
        RowStepKind::Binary(BinaryKind::Add) => "add",
        RowStepKind::Binary(BinaryKind::Sub) => "sub",
        RowStepKind::Binary(BinaryKind::Mul) => "mul",
        RowStepKind::Binary(BinaryKind::Max) => "max",
        RowStepKind::Binary(BinaryKind::Min) => "min",
        RowStepKind::Unary(UnaryKind::Neg) => "neg",
        RowStepKind::Unary(UnaryKind::Abs) => "abs",
        _ => return None,
    };
    Some(format!("{name}_{}x2", step.element))
}

/// The statements that compute a step.
fn statement(program: &RowProgram, position: usize) -> Vec<String> {
    let step = &program.steps[position];
    let element = step.element;
    if !is_element(program, RowRef::Step(position)) {
        let value = expression(program, position, 0);
        let value =
            if has_more_digits(program, position) { format!("round_{element}({value})") } else { value };
        let ty = if element == ElementType::I1 { "bool" } else { "float" };
        return vec![format!("{ty} const s{position} = {value};")];
    }
    if let Some(function) = packed_function(program, position) {
        let words: Option<Vec<String>> = step.operands.iter().map(|of| word(program, *of)).collect();
        if let Some(words) = words {
            return vec![format!("uint32_t const s{position} = {function}({});", words.join(", "))];
        }
    }
    let [a, b] = [0, 1].map(|half| expression(program, position, half));
    if is_packed(element) {
        return vec![format!("uint32_t const s{position} = pack_{element}({a}, {b});")];
    }
    let ty = if element == ElementType::I1 { "bool" } else { "float" };
    let round = |value: String| match has_more_digits(program, position) {
        true => format!("round_{element}({value})"),
        false => value,
    };
    vec![format!("{ty} const s{position}a = {}, s{position}b = {};", round(a), round(b))]
}

fn expression(program: &RowProgram, position: usize, half: usize) -> String {
    let step = &program.steps[position];
    let operand = |index: usize| number(program, step.operands[index], half);
    match step.kind {
        RowStepKind::Constant(bits) => literal(bits),
        RowStepKind::Unary(kind) => format!("fn_{kind}({})", operand(0)),
        RowStepKind::Binary(BinaryKind::Div)
            if !is_element(program, step.operands[1]) && is_element(program, step.operands[0]) =>
        {
            let way = if step.element == ElementType::F32 { "quotient" } else { "estimate" };
            format!("{}.{way}({})", divisor(step.operands[1]), operand(0))
        }
        RowStepKind::Binary(kind) => {
            let function = function(kind).unwrap_or("unsupported");
            format!("{function}({}, {})", operand(0), operand(1))
        }
        RowStepKind::Clamp { lower, upper } => {
            format!("op_min(op_max({}, {}), {})", operand(0), literal(lower), literal(upper))
        }
        RowStepKind::Compare(predicate) => format!("{} {} {}", operand(0), comparison(predicate), operand(1)),
        RowStepKind::Select => format!("{} ? {} : {}", operand(0), operand(1), operand(2)),
        RowStepKind::Bitwise(_) | RowStepKind::Bitcast | RowStepKind::Dequantize => "unsupported".to_owned(),
        RowStepKind::Convert | RowStepKind::Reduce(_) => operand(0),
    }
}

/// The name of the prepared divisor that a row value is.
fn divisor(value: RowRef) -> String {
    format!("by_{value}")
}

/// The divisors that elements are divided by, each prepared once per row.
fn divisors(program: &RowProgram) -> Vec<RowRef> {
    let mut divisors = Vec::new();
    for step in &program.steps {
        let [left, right] = step.operands[..] else { continue };
        let is_uniform = !is_element(program, right) && is_element(program, left);
        if step.kind == RowStepKind::Binary(BinaryKind::Div) && is_uniform && !divisors.contains(&right) {
            divisors.push(right);
        }
    }
    divisors
}

/// Returns whether a step can have more digits than its element type.
fn has_more_digits(program: &RowProgram, position: usize) -> bool {
    let step = &program.steps[position];
    if matches!(step.element, ElementType::F32 | ElementType::I1) {
        return false;
    }
    match step.kind {
        RowStepKind::Unary(kind) => !matches!(kind, UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu),
        RowStepKind::Binary(kind) => !matches!(kind, BinaryKind::Max | BinaryKind::Min),
        RowStepKind::Convert | RowStepKind::Reduce(_) => true,
        RowStepKind::Bitwise(_) | RowStepKind::Bitcast | RowStepKind::Dequantize => false,
        RowStepKind::Constant(_)
        | RowStepKind::Clamp { .. }
        | RowStepKind::Compare(_)
        | RowStepKind::Select => false,
    }
}

/// The elementwise functions that the steps call.
pub(crate) fn unary_kinds(program: &RowProgram) -> Vec<UnaryKind> {
    let kinds = program.steps.iter().filter_map(|step| match step.kind {
        RowStepKind::Unary(kind) => Some(kind),
        _ => None,
    });
    let mut kinds: Vec<UnaryKind> = kinds.collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}
