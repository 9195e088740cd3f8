//! Compares the outputs of a row kernel.

use fourfold_ir::{ElementType, ReduceKind, Value};
use fourfold_scheduler::{RowOutput, RowOutputKind, RowPlan, RowProgram, RowRef, RowShape, RowStepKind};

use super::super::blocks::{BlockRule, Blocks, compare_blocks};
use super::super::interval::{Interval, UNKNOWN};
use super::super::within::Bounds;
use super::super::{BIT_EQUAL, Compared, Got, SegmentOps, Values, missing};
use super::row::{Row, Rows};
use super::step;
use crate::compare::Tolerance;
use crate::error::Error;

/// Compares every value that a row kernel wrote.
pub(super) fn compare_rows<'g>(
    run: &SegmentOps<'_>,
    plan: &RowPlan,
    values: &Values,
    got: &Got<'g>,
) -> Result<Vec<Compared>, Error> {
    let outputs = with_values(run, plan)?;
    let mut found = Vec::with_capacity(outputs.len());
    for (output, written) in &outputs {
        found.push(match output.kind {
            _ if is_exact(&plan.program, output.of) => Ends::None,
            RowOutputKind::Value => Ends::Value {
                bounds: Bounds::with_capacity(run.count(written[0])),
                want: run.take(values, written[0])?.to_f64(),
            },
            RowOutputKind::Quantized { .. } => Ends::Blocks(Vec::with_capacity(run.count(written[0]))),
        });
    }
    if found.iter().any(|ends| !matches!(ends, Ends::None)) {
        let rows = Rows::new(run, plan)?;
        let mut row = Row::default();
        for index in 0..rows.rows {
            rows.evaluate(index, &mut row);
            for ((output, _), ends) in outputs.iter().zip(&mut found) {
                ends.add(&plan.program, output.of, &row, (index, rows.columns));
            }
        }
    }
    let mut compared = Vec::new();
    for ((output, written), ends) in outputs.iter().zip(found) {
        let bound = bound_text(&plan.program, output.of);
        match (ends, written) {
            (Ends::Value { bounds, .. }, [value, ..]) => {
                let want = run.take(values, *value)?;
                compared.push(named(run.within(*value, want, bounds, &bound, got)?));
            }
            (Ends::Blocks(ends), [codes, scales]) => {
                let rule = block_rule(run, plan, output)?;
                compared.extend(blocks([*codes, *scales], (run, values), (rule, &bound), got, &ends)?);
            }
            (_, [codes, scales]) => compared.extend(run.equal_blocks(*codes, *scales, values, got)?),
            (_, written) => {
                for value in *written {
                    compared.push(run.equal_value(*value, values, got)?);
                }
            }
        }
    }
    Ok(compared)
}

/// Returns each output with the values that it writes.
fn with_values<'p>(
    run: &SegmentOps<'_>,
    plan: &'p RowPlan,
) -> Result<Vec<(&'p RowOutput, &'p [Value])>, Error> {
    let mut rest = &plan.written[..];
    let mut outputs = Vec::with_capacity(plan.program.outputs.len());
    for output in &plan.program.outputs {
        let count = match output.kind {
            RowOutputKind::Value => 1,
            RowOutputKind::Quantized { .. } => 2,
        };
        let lacks = || missing(&format!("an output of segment {}", run.segment));
        let (written, others) = rest.split_at_checked(count).ok_or_else(lacks)?;
        outputs.push((output, written));
        rest = others;
    }
    Ok(outputs)
}

/// The intervals of an output.
enum Ends {
    /// None: the bits must be equal.
    None,
    /// The bounds of a value, and the expected values.
    Value { bounds: Bounds, want: Vec<f64> },
    /// The interval of each element that is quantized.
    Blocks(Vec<Interval>),
}

impl Ends {
    /// Adds the elements of the row at `index`, which has this number of columns.
    fn add(&mut self, program: &RowProgram, of: RowRef, row: &Row, (index, columns): (usize, usize)) {
        let count = if program.shape(of) == RowShape::Column { 1 } else { columns };
        match self {
            Ends::None => {}
            Ends::Blocks(ends) => ends.extend((0..count).map(|column| row.value(of, column)[0])),
            Ends::Value { bounds, want } => {
                let element = program.element(of);
                for (column, want) in want.iter().skip(index * count).take(count).enumerate() {
                    push(bounds, element, row.value(of, column), *want);
                }
            }
        }
    }
}

/// Adds the bounds of an element. If the plan does not give the expected value, only that value is right.
pub(super) fn push(
    bounds: &mut Bounds,
    element: ElementType,
    [rounded, unrounded]: [Interval; 2],
    want: f64,
) {
    let explains = want.is_nan() || rounded[0] <= want && want <= rounded[1];
    let range = match element {
        ElementType::I1 => [0.0, 1.0],
        ElementType::I32 => [f64::from(i32::MIN), f64::from(i32::MAX)],
        _ => UNKNOWN,
    };
    match (explains, element) {
        (false, _) => bounds.push(element, [want; 2], want, range),
        (true, ElementType::F32) => bounds.push(element, rounded, want, range),
        // The expected value before it was rounded is unknown, so distances are those of the middle.
        (true, _) => bounds.push(element, unrounded, unrounded[0] / 2.0 + unrounded[1] / 2.0, range),
    }
}

/// Compares codes and scales whose elements lie within intervals. If the intervals of the plan do not give the expected
/// blocks, the bits must be equal.
fn blocks<'g>(
    [codes, scales]: [Value; 2],
    (run, values): (&SegmentOps<'_>, &Values),
    (rule, bound): (BlockRule, &str),
    got: &Got<'g>,
    ends: &[Interval],
) -> Result<Vec<Compared>, Error> {
    let (want_codes, want_scales) = (run.take(values, codes)?, run.take(values, scales)?);
    let interval = |index: usize| ends.get(index).copied().unwrap_or(UNKNOWN);
    let want = Blocks { codes: &want_codes, scales: &want_scales };
    let explained = compare_blocks(rule, want, want, interval);
    if explained.codes.mismatches + explained.scales.mismatches > 0 {
        return run.equal_blocks(codes, scales, values, got);
    }
    run.blocks_within([codes, scales], values, rule, bound, got, interval).map(Vec::from)
}

fn block_rule(run: &SegmentOps<'_>, plan: &RowPlan, output: &RowOutput) -> Result<BlockRule, Error> {
    let RowOutputKind::Quantized { format, global, scale_rounding, formula, .. } = output.kind else {
        return Err(missing(&format!("the format of an output of segment {}", run.segment)));
    };
    let global = match global.and_then(|operand| plan.operands.get(operand)) {
        Some(operand) => run.operand(operand.value)?.to_f64().first().map_or(1.0, |global| *global as f32),
        None => 1.0,
    };
    let (element, block) = (format.element, format.block as usize);
    Ok(BlockRule { element, block, rounding: scale_rounding, formula, global })
}

/// Names the rule of a value whose bounds turned out to be exact.
pub(super) fn named(compared: Compared) -> Compared {
    match &compared.tolerance {
        Tolerance::Each(each) if each.iter().all(|bound| *bound == 0.0) => {
            Compared { rule: BIT_EQUAL.to_owned(), ..compared }
        }
        _ => compared,
    }
}

/// Returns true if the device computes a value without error.
fn is_exact(program: &RowProgram, of: RowRef) -> bool {
    reached(program, of).all(step::is_exact)
}

/// Returns the rule of an inexact value in words.
fn bound_text(program: &RowProgram, of: RowRef) -> String {
    let sums = |kind| matches!(kind, RowStepKind::Reduce(ReduceKind::Sum | ReduceKind::Mean));
    let has_sum = reached(program, of).any(sums);
    let has_function = reached(program, of).any(|kind| !sums(kind) && !step::is_exact(kind));
    match (has_sum, has_function) {
        (true, true) => "γ_K·Σ|x| + 4 ulp",
        (true, false) => "γ_K·Σ|x|",
        (false, _) => "4 ulp of f32",
    }
    .to_owned()
}

/// Returns the functions of the steps behind a value.
fn reached(program: &RowProgram, of: RowRef) -> impl Iterator<Item = RowStepKind> + '_ {
    let mut is_reached = vec![false; program.steps.len()];
    let mut pending = vec![of];
    while let Some(of) = pending.pop() {
        if let RowRef::Step(step) = of
            && !std::mem::replace(&mut is_reached[step], true)
        {
            pending.extend(&program.steps[step].operands);
        }
    }
    program.steps.iter().zip(is_reached).filter(|(_, reached)| *reached).map(|(step, _)| step.kind)
}
