//! A row program as phases, each a loop over the elements of a row between two reductions.

use fourfold_ir::{BinaryKind, ElementType, ReduceKind, UnaryKind};
use fourfold_scheduler::{RowOutputKind, RowProgram, RowRef, RowShape, RowStep, RowStepKind};
use serde::Serialize;

use super::statements::{divisor_statement, divisors, rounded_quotient, statement};
use super::values::{is_element, is_packed, is_shared, number, word};

/// The statements between two reductions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Phase {
    /// Statements per row, before the loop.
    pub(super) row: Vec<String>,
    /// Statements per pair of elements.
    pub(super) element: Vec<String>,
    /// The same where earlier phases kept the results of expensive steps in registers.
    pub(super) element_kept: Vec<String>,
    /// The positions of operands that the loop reads, one per element or per block.
    pub(super) reads: Vec<usize>,
    /// Those of them that are in global memory where shared memory keeps rows: neither scales nor read by several
    /// phases.
    pub(super) loads: Vec<usize>,
    /// The reductions that the loop feeds.
    pub(super) reductions: Vec<Reduction>,
    /// The outputs that the loop writes.
    pub(super) outputs: Vec<Written>,
    /// The outputs with one element per row, or one element, that are written before the loop.
    pub(super) columns: Vec<Written>,
}

/// A reduction over a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Reduction {
    /// The step's position.
    pub(super) step: usize,
    /// The position among all reductions, for shared memory.
    pub(super) slot: usize,
    /// The C++ type that combines two numbers.
    pub(super) combine: &'static str,
    /// The two operands.
    pub(super) values: [String; 2],
    /// The factors of both operands if they are f32 products that are added; they are not rounded then.
    pub(super) products: Option<[[String; 2]; 2]>,
    /// The result, given the combined number `total`.
    pub(super) result: String,
}

/// A value that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Written {
    /// The output's position.
    pub(super) output: usize,
    /// The two elements; the first alone for a column or scalar.
    pub(super) values: [String; 2],
    /// The packed word of both elements; empty if there is none.
    pub(super) packed: String,
}

/// A step whose results stay in registers, because a later phase needs them and they are expensive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Kept {
    /// The step's position.
    pub(super) step: usize,
    /// The phase that computes it.
    pub(super) phase: usize,
    /// True if two results are one word.
    pub(super) is_packed: bool,
}

/// The number of reductions on the longest path to each value.
struct Levels(Vec<usize>);

impl Levels {
    fn of(program: &RowProgram) -> Levels {
        let mut levels = Levels(Vec::with_capacity(program.steps.len()));
        for step in &program.steps {
            let before = step.operands.iter().map(|value| levels.level(*value)).max().unwrap_or(0);
            levels.0.push(before + usize::from(matches!(step.kind, RowStepKind::Reduce(_))));
        }
        levels
    }

    fn level(&self, value: RowRef) -> usize {
        match value {
            RowRef::Operand(_) => 0,
            RowRef::Step(step) => self.0[step],
        }
    }

    fn phases(&self) -> usize {
        self.0.iter().max().map_or(1, |last| last + 1)
    }
}

/// The steps and operands that a loop needs.
struct Needs {
    steps: Vec<bool>,
    operands: Vec<usize>,
}

impl Needs {
    fn none(program: &RowProgram) -> Needs {
        Needs { steps: vec![false; program.steps.len()], operands: Vec::new() }
    }

    /// The needs of one phase.
    fn of_phase(program: &RowProgram, levels: &Levels, at: usize) -> Needs {
        let mut needs = Needs::none(program);
        for (position, step) in program.steps.iter().enumerate() {
            if matches!(step.kind, RowStepKind::Reduce(_)) && levels.0[position] == at + 1 {
                needs.add(program, step.operands[0]);
            }
        }
        for (position, output) in program.outputs.iter().enumerate() {
            if levels.level(output.of) == at && !is_once(program, position) {
                needs.add(program, output.of);
            }
        }
        needs.operands.sort_unstable();
        needs
    }

    /// Adds a value and everything per element that it needs.
    fn add(&mut self, program: &RowProgram, value: RowRef) {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            let is_read =
                is_element(program, value) || matches!(program.shape(value), RowShape::Scales { .. });
            match value {
                RowRef::Operand(operand) if is_read && !self.operands.contains(&operand) => {
                    self.operands.push(operand);
                }
                RowRef::Step(step) if is_element(program, value) && !self.steps[step] => {
                    self.steps[step] = true;
                    match rounded_quotient(program, step) {
                        Some([left, _]) => open.push(left),
                        None => open.extend(&program.steps[step].operands),
                    }
                }
                _ => {}
            }
        }
    }
}

/// Returns whether an output is written once, not for each row.
pub(super) fn is_once(program: &RowProgram, output: usize) -> bool {
    let output = &program.outputs[output];
    match output.kind {
        RowOutputKind::Value => is_shared(program, output.of),
        RowOutputKind::Quantized { .. } => program.shape(output.of) == RowShape::Row,
    }
}

/// The phases of a program, in order.
pub(super) fn phases(program: &RowProgram) -> Vec<Phase> {
    let levels = Levels::of(program);
    let kept = kept(program);
    let divisors = divisors(program);
    let stored = stored(program);
    let mut slot = 0;
    (0..levels.phases())
        .map(|at| {
            let mut phase = Phase::default();
            for (position, step) in program.steps.iter().enumerate() {
                let RowStepKind::Reduce(kind) = step.kind else { continue };
                if levels.0[position] == at + 1 {
                    phase.reductions.push(reduction(program, position, slot, kind));
                    slot += 1;
                }
            }
            for (position, output) in program.outputs.iter().enumerate() {
                if levels.level(output.of) != at || is_once(program, position) {
                    continue;
                }
                let is_value = output.kind == RowOutputKind::Value;
                let is_column = is_value && !is_element(program, output.of);
                let to = if is_column { &mut phase.columns } else { &mut phase.outputs };
                to.push(written(program, position));
            }
            let needs = Needs::of_phase(program, &levels, at);
            for (position, step) in program.steps.iter().enumerate() {
                if matches!(step.kind, RowStepKind::Reduce(_)) {
                    continue;
                }
                if !is_element(program, RowRef::Step(position)) {
                    if levels.0[position] == at {
                        phase.row.push(statement(program, position));
                    }
                } else if needs.steps[position] {
                    let line = statement(program, position);
                    phase.add(line, kept.iter().find(|it| it.step == position), at);
                }
            }
            let divisors = divisors.iter().filter(|value| levels.level(**value) == at);
            phase.row.extend(divisors.map(|value| divisor_statement(program, *value)));
            let is_loaded =
                |operand: &usize| is_element(program, RowRef::Operand(*operand)) && !stored.contains(operand);
            phase.loads = needs.operands.iter().copied().filter(is_loaded).collect();
            phase.reads = needs.operands;
            phase
        })
        .collect()
}

/// The statements that write what all rows share; `None` if there is no such output.
pub(super) fn once(program: &RowProgram) -> Option<Phase> {
    let mut phase = Phase::default();
    let mut needs = Needs::none(program);
    for (position, output) in program.outputs.iter().enumerate() {
        if !is_once(program, position) {
            continue;
        }
        needs.add(program, output.of);
        let to = if is_element(program, output.of) { &mut phase.outputs } else { &mut phase.columns };
        to.push(written(program, position));
    }
    if phase.outputs.is_empty() && phase.columns.is_empty() {
        return None;
    }
    for (position, needed) in needs.steps.iter().enumerate() {
        if program.steps[position].shape == RowShape::Scalar {
            phase.row.push(statement(program, position));
        } else if *needed {
            phase.element.push(statement(program, position));
        }
    }
    let divisors = divisors(program).into_iter();
    let divisors = divisors.filter(|value| program.shape(*value) == RowShape::Scalar);
    phase.row.extend(divisors.map(|value| divisor_statement(program, value)));
    phase.reads = needs.operands;
    phase.reads.sort_unstable();
    Some(phase)
}

impl Phase {
    fn add(&mut self, line: String, kept: Option<&Kept>, at: usize) {
        match kept {
            Some(kept) if kept.phase != at => self.element_kept.push(kept.read()),
            Some(kept) => self.element_kept.extend([line.clone(), kept.keep()]),
            None => self.element_kept.push(line.clone()),
        }
        self.element.push(line);
    }
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

/// The matrices that several phases read, in ascending order.
pub(super) fn stored(program: &RowProgram) -> Vec<usize> {
    let levels = Levels::of(program);
    let needs: Vec<Needs> = (0..levels.phases()).map(|at| Needs::of_phase(program, &levels, at)).collect();
    let readers = |operand: usize| needs.iter().filter(|phase| phase.operands.contains(&operand)).count();
    let is_matrix = |operand: usize| program.operands[operand].shape == RowShape::Matrix;
    (0..program.operands.len()).filter(|operand| is_matrix(*operand) && readers(*operand) > 1).collect()
}

/// The expensive steps that several phases need.
pub(super) fn kept(program: &RowProgram) -> Vec<Kept> {
    let levels = Levels::of(program);
    let needs: Vec<Needs> = (0..levels.phases()).map(|at| Needs::of_phase(program, &levels, at)).collect();
    let steps = program.steps.iter().enumerate().filter(|(_, step)| is_expensive(step.kind));
    let kept = steps.filter_map(|(position, step)| {
        let mut phases = (0..needs.len()).filter(|at| needs[*at].steps[position]);
        let first = phases.next()?;
        phases.next()?;
        Some(Kept { step: position, phase: first, is_packed: is_packed(step.element) })
    });
    kept.collect()
}

fn is_expensive(kind: RowStepKind) -> bool {
    use UnaryKind::{Abs, Ceil, Floor, Neg, Relu, Round};
    match kind {
        RowStepKind::Unary(kind) => !matches!(kind, Neg | Abs | Relu | Floor | Ceil | Round),
        RowStepKind::Binary(kind) => matches!(kind, BinaryKind::Div | BinaryKind::Pow),
        _ => false,
    }
}

fn reduction(program: &RowProgram, step: usize, slot: usize, kind: ReduceKind) -> Reduction {
    let value = program.steps[step].operands[0];
    let element = program.steps[step].element;
    let total = match kind {
        ReduceKind::Mean => "mean_of(p, total)",
        _ => "total",
    };
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
    let is_computed = is_element(program, value);
    let products = product.filter(is_product).filter(|_| is_computed).map(|product| {
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
    let packed = if is_element(program, value) { word(program, value) } else { None };
    Written {
        output,
        values: [0, 1].map(|half| number(program, value, half)),
        packed: packed.unwrap_or_default(),
    }
}
