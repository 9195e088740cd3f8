//! Follows the elements of one row through the steps of a row kernel, one interval per element.
//!
//! `softmax` and `layer_norm` are several steps of a plan. The interpreter computes them in f64 and rounds once; a row
//! kernel rounds each step to f32. So in plans of these ops, the interval of an f32 step also contains the result
//! without its rounding, and with it the interpreter's value.

use fourfold_ir::{BinaryKind, ElementType, OpKind, Program, SymbolValues};
use fourfold_scheduler::{RowInput, RowPlan, RowRef, RowShape, RowStep, RowStepKind};

use super::super::interval::{self, Interval, UNKNOWN, as_point};
use super::super::{SegmentOps, missing};
use super::step::{self, Operands};
use super::sum::{self, Elements};
use crate::error::Error;

/// The inputs from which the intervals of a row follow.
pub(super) struct Rows<'a> {
    plan: &'a RowPlan,
    operands: Vec<Operand>,
    /// The number of rows, over all matrices.
    pub(super) rows: usize,
    /// The elements of a row.
    pub(super) columns: usize,
    /// True if the interpreter does not round every f32 step.
    is_expanded: bool,
}

/// The values of an operand.
struct Operand {
    values: Vec<f64>,
    shape: RowShape,
    /// Row r of the kernel reads row `r / each % rows`.
    each: usize,
    rows: usize,
}

/// The intervals of one row. Its buffers serve row after row.
#[derive(Default)]
pub(super) struct Row {
    operands: Vec<Vec<Interval>>,
    /// By step, rounded to its type: one interval per element, or one for all of them.
    steps: Vec<Vec<Interval>>,
    /// By step, before it is rounded.
    unrounded: Vec<Vec<Interval>>,
    /// By step: true if no element was changed by rounding.
    was_exact: Vec<bool>,
}

impl Row {
    /// Returns the interval of an element, and the one before it was rounded.
    pub(super) fn value(&self, of: RowRef, column: usize) -> [Interval; 2] {
        match of {
            RowRef::Operand(operand) => [at(&self.operands[operand], column); 2],
            RowRef::Step(step) => [at(&self.steps[step], column), at(&self.unrounded[step], column)],
        }
    }

    fn ends(&self, of: RowRef) -> &[Interval] {
        match of {
            RowRef::Operand(operand) => &self.operands[operand],
            RowRef::Step(step) => &self.steps[step],
        }
    }
}

/// Returns the interval of an element of a value that may have one for all elements.
fn at(ends: &[Interval], column: usize) -> Interval {
    let index = if ends.len() == 1 { 0 } else { column };
    ends.get(index).copied().unwrap_or(UNKNOWN)
}

impl<'a> Rows<'a> {
    /// Reads the operands of a row kernel.
    ///
    /// # Errors
    /// Fails if an operand was not kept or has too few elements for the plan, an extent is unknown, or memory is
    /// insufficient.
    pub(super) fn new(run: &SegmentOps<'_>, plan: &'a RowPlan) -> Result<Rows<'a>, Error> {
        let extents = [&plan.batch, &plan.m, &plan.k].map(|dim| extent(dim, run.symbols));
        let [Some(batch), Some(m), Some(columns)] = extents else {
            return Err(missing(&format!("an extent of segment {}", run.segment)));
        };
        let rows = batch.saturating_mul(m);
        // Each step of a row has two intervals per element, each operand one.
        const EACH: usize = 2 * size_of::<Interval>();
        let lines = plan.program.steps.len() + plan.program.operands.len();
        run.check_room(columns.saturating_mul(lines).saturating_mul(EACH))?;
        let read = plan.operands.iter().zip(&plan.program.operands);
        let operands = read.map(|(input, operand)| {
            let values = run.operand(input.value)?.to_f64();
            let (each, own_rows) = repeat(input, rows, run.symbols);
            let needed = match operand.shape {
                RowShape::Scalar => 1,
                RowShape::Row => columns,
                RowShape::Column => own_rows,
                RowShape::Matrix => own_rows.saturating_mul(columns),
                RowShape::Scales { block, .. } => own_rows.saturating_mul(columns / (block as usize).max(1)),
            };
            if values.len() < needed || own_rows == 0 && rows > 0 {
                return Err(missing(run.program.module().name_of(input.value)));
            }
            Ok(Operand { values, shape: operand.shape, each: each.max(1), rows: own_rows.max(1) })
        });
        let operands = operands.collect::<Result<_, _>>()?;
        Ok(Rows { plan, operands, rows, columns, is_expanded: is_expanded(run.program, plan) })
    }

    /// Evaluates every step for one row.
    pub(super) fn evaluate(&self, row: usize, into: &mut Row) {
        let program = &self.plan.program;
        into.operands.resize_with(self.operands.len(), Vec::new);
        into.steps.resize_with(program.steps.len(), Vec::new);
        into.unrounded.resize_with(program.steps.len(), Vec::new);
        into.was_exact.clear();
        for (operand, ends) in self.operands.iter().zip(&mut into.operands) {
            ends.clear();
            ends.extend(operand.of_row(row, self.columns).map(|value| [value; 2]));
        }
        for (position, step) in program.steps.iter().enumerate() {
            let mut unrounded = std::mem::take(&mut into.unrounded[position]);
            let mut rounded = std::mem::take(&mut into.steps[position]);
            unrounded.clear();
            rounded.clear();
            match step.kind {
                RowStepKind::Reduce(kind) => unrounded.push(self.reduce(kind, step, into)),
                _ => self.elementwise(step, into, &mut unrounded),
            }
            rounded.extend(unrounded.iter().map(|ends| self.rounded(step.element, *ends)));
            let pairs = rounded.iter().zip(&unrounded);
            into.was_exact.push(pairs.clone().all(|(rounded, unrounded)| rounded == unrounded));
            (into.unrounded[position], into.steps[position]) = (unrounded, rounded);
        }
    }

    fn elementwise(&self, step: &RowStep, row: &Row, unrounded: &mut Vec<Interval>) {
        let program = &self.plan.program;
        let elements: Vec<ElementType> = step.operands.iter().map(|of| program.element(*of)).collect();
        let is_square = matches!(&step.operands[..], [a, b] if a == b);
        let is_wide = |of: &RowRef| !matches!(program.shape(*of), RowShape::Scalar | RowShape::Column);
        let count = if step.operands.iter().any(is_wide) { self.columns } else { 1 };
        let mut ends = Vec::with_capacity(step.operands.len());
        for column in 0..count {
            ends.clear();
            ends.extend(step.operands.iter().map(|of| match program.shape(*of) {
                // Even a row of one block has one scale for all elements.
                RowShape::Scales { block, .. } => at(row.ends(*of), column / (block as usize).max(1)),
                _ => at(row.ends(*of), column),
            }));
            unrounded.push(step::unrounded(step, &Operands { ends: &ends, elements: &elements, is_square }));
        }
    }

    fn reduce(&self, kind: fourfold_ir::ReduceKind, step: &RowStep, row: &Row) -> Interval {
        let program = &self.plan.program;
        let Some(of) = step.operands.first() else { return UNKNOWN };
        let product = match of {
            RowRef::Step(position) => {
                let of = &program.steps[*position];
                let is_product = of.kind == RowStepKind::Binary(BinaryKind::Mul);
                (is_product && of.element == ElementType::F32).then(|| row.was_exact[*position])
            }
            RowRef::Operand(_) => None,
        };
        let ends = row.ends(*of);
        let repeated;
        let ends = match ends {
            [one] if self.columns != 1 => {
                repeated = vec![*one; self.columns];
                &repeated[..]
            }
            ends => ends,
        };
        let (are_products, are_exact_products) = (product.is_some(), product.unwrap_or(true));
        sum::reduce(kind, &Elements { ends, are_products, are_exact_products })
    }

    /// Rounds an interval to the type of a step.
    fn rounded(&self, element: ElementType, ends: Interval) -> Interval {
        match element {
            ElementType::I1 => ends,
            // Below zero there is no power of two.
            ElementType::F8E8M0FNU if as_point(ends).is_none() => {
                interval::sound(interval::round(element, ends))
            }
            ElementType::F32 if self.is_expanded && as_point(ends).is_none_or(f64::is_finite) => {
                let [low, high] = interval::round(element, ends);
                [low.min(ends[0]), high.max(ends[1])]
            }
            _ => interval::round(element, ends),
        }
    }
}

impl Operand {
    /// Returns the values of a row: one per element or block, or one for all.
    fn of_row(&self, row: usize, columns: usize) -> impl Iterator<Item = f64> + '_ {
        let row = row / self.each % self.rows;
        let range = match self.shape {
            RowShape::Scalar => 0..1,
            RowShape::Row => 0..columns,
            RowShape::Column => row..row + 1,
            RowShape::Matrix => row * columns..(row + 1) * columns,
            RowShape::Scales { block, .. } => {
                let blocks = columns / (block as usize).max(1);
                row * blocks..(row + 1) * blocks
            }
        };
        self.values[range].iter().copied()
    }
}

/// Returns true if an op of the plan is several steps, between which the interpreter does not round.
fn is_expanded(program: &Program, plan: &RowPlan) -> bool {
    let module = program.module();
    let is = |kind: &OpKind| matches!(kind, OpKind::Softmax { .. } | OpKind::LayerNorm { .. });
    plan.ops.iter().any(|op| is(&module.ops[*op].kind))
}

fn extent(dim: &fourfold_ir::Dim, symbols: &SymbolValues) -> Option<usize> {
    usize::try_from(dim.evaluate(symbols)?).ok()
}

/// Returns the rows that share one of an operand, and its rows.
fn repeat(input: &RowInput, rows: usize, symbols: &SymbolValues) -> (usize, usize) {
    let Some(repeat) = &input.repeat else { return (1, rows) };
    // An unknown extent is reported as an operand that lacks rows.
    (extent(&repeat.each, symbols).unwrap_or(1), extent(&repeat.rows, symbols).unwrap_or(0))
}
