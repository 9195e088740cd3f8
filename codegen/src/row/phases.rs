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
    /// The same where shared memory keeps rows and, if `keeps_shared`, these results.
    pub(super) element_stored: Vec<String>,
    /// The kept steps whose results the loop writes to and reads from shared memory.
    pub(super) writes_kept: Vec<Kept>,
    pub(super) reads_kept: Vec<Kept>,
    /// The positions of operands that the loop reads, one per element or per block.
    pub(super) reads: Vec<usize>,
    /// The same where shared memory keeps rows, and those of them that are in global memory: neither scales nor read by
    /// several phases.
    pub(super) stored_reads: Vec<usize>,
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
        Needs::beside(program, levels, at, &[])
    }

    /// The needs of one phase besides the results that earlier phases kept.
    fn beside(program: &RowProgram, levels: &Levels, at: usize, kept: &[Kept]) -> Needs {
        let mut needs = Needs::none(program);
        let is_kept = |step: usize| kept.iter().any(|it| it.step == step && it.phase < at);
        for (position, step) in program.steps.iter().enumerate() {
            if matches!(step.kind, RowStepKind::Reduce(_)) && levels.0[position] == at + 1 {
                needs.add(program, step.operands[0], &is_kept);
            }
        }
        for (position, output) in program.outputs.iter().enumerate() {
            if levels.level(output.of) == at && !is_once(program, position) {
                needs.add(program, output.of, &is_kept);
            }
        }
        needs.operands.sort_unstable();
        needs
    }

    /// Adds a value and everything per element that it needs, but not what kept steps need.
    fn add(&mut self, program: &RowProgram, value: RowRef, is_kept: &dyn Fn(usize) -> bool) {
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
                    if is_kept(step) {
                        continue;
                    }
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
pub(super) fn phases(program: &RowProgram, keeps_shared: bool) -> Vec<Phase> {
    let levels = Levels::of(program);
    let kept = kept(program);
    let divisors = divisors(program);
    let kept_shared = if keeps_shared { kept.clone() } else { Vec::new() };
    let stored = stored(program, keeps_shared);
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
            let beside = Needs::beside(program, &levels, at, &kept_shared);
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
                    let of = |kept: &[Kept]| kept.iter().find(|it| it.step == position).cloned();
                    if beside.steps[position] {
                        phase.add_stored(&line, of(&kept_shared), at);
                    }
                    phase.add(line, of(&kept), at);
                }
            }
            let divisors = divisors.iter().filter(|value| levels.level(**value) == at);
            phase.row.extend(divisors.map(|value| divisor_statement(program, *value)));
            let is_loaded =
                |operand: &usize| is_element(program, RowRef::Operand(*operand)) && !stored.contains(operand);
            phase.loads = beside.operands.iter().copied().filter(is_loaded).collect();
            phase.stored_reads = beside.operands;
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
        needs.add(program, output.of, &|_| false);
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
    fn add_stored(&mut self, line: &str, kept: Option<Kept>, at: usize) {
        match kept {
            Some(kept) if kept.phase != at => {
                self.element_stored.push(kept.read_shared());
                self.reads_kept.push(kept);
            }
            Some(kept) => {
                self.element_stored.extend([line.to_owned(), kept.keep_shared()]);
                self.writes_kept.push(kept);
            }
            None => self.element_stored.push(line.to_owned()),
        }
    }

    fn add(&mut self, line: String, kept: Option<Kept>, at: usize) {
        match kept {
            Some(kept) if kept.phase != at => self.element_kept.push(kept.read()),
            Some(kept) => self.element_kept.extend([line.clone(), kept.keep()]),
            None => self.element_kept.push(line.clone()),
        }
        self.element.push(line);
    }
}

impl Kept {
    /// The bytes per element.
    pub(super) fn bytes(&self) -> u32 {
        if self.is_packed { 2 } else { 4 }
    }

    fn keep_shared(&self) -> String {
        let step = self.step;
        match self.is_packed {
            true => format!("h{step}.words[pair] = s{step};"),
            false => format!(
                "h{step}.words[2 * pair] = bits_of(s{step}a), h{step}.words[2 * pair + 1] = bits_of(s{step}b);"
            ),
        }
    }

    fn read_shared(&self) -> String {
        let step = self.step;
        match self.is_packed {
            true => format!("uint32_t const s{step} = h{step}.words[pair];"),
            false => format!(
                "float const s{step}a = float_of(h{step}.words[2 * pair]), s{step}b = float_of(h{step}.words[2 * pair + 1]);"
            ),
        }
    }

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

/// The matrices that several phases read, in ascending order. `keeps_shared`: results of kept steps are not computed
/// again.
pub(super) fn stored(program: &RowProgram, keeps_shared: bool) -> Vec<usize> {
    let readers = readers(program, keeps_shared).into_iter().enumerate();
    readers.filter(|(_, phases)| phases.len() > 1).map(|(operand, _)| operand).collect()
}

/// Returns whether the results of kept steps may replace the operands that shared memory keeps: later phases read none.
pub(super) fn replaces(program: &RowProgram) -> bool {
    let kept = kept(program);
    let mut last = readers(program, true).into_iter().filter(|phases| phases.len() > 1).flatten();
    last.all(|phase| kept.iter().all(|kept| phase <= kept.phase))
}

/// The phases that read each operand, if it is a matrix.
fn readers(program: &RowProgram, keeps_shared: bool) -> Vec<Vec<usize>> {
    let levels = Levels::of(program);
    let kept = if keeps_shared { kept(program) } else { Vec::new() };
    let needs: Vec<Needs> =
        (0..levels.phases()).map(|at| Needs::beside(program, &levels, at, &kept)).collect();
    let reads = |operand: usize, phase: &usize| {
        program.operands[operand].shape == RowShape::Matrix && needs[*phase].operands.contains(&operand)
    };
    let of = |operand: usize| (0..needs.len()).filter(|phase| reads(operand, phase)).collect();
    (0..program.operands.len()).map(of).collect()
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
