//! Compares a column kernel with its op, element by element: for sampled extents and elements of the operand, the plan
//! must add the element to the result that the op means.

use fourfold_ir::{Capabilities, OpKind, Program, SymbolValues};

use super::moves::{dims, places, row_major, samples};
use super::{CheckError, known};
use crate::plan::{ColumnPlan, Constraint, Segment};

/// Operands of up to this many elements are compared whole; of others, this many elements.
const MOST_ELEMENTS: u64 = 1024;

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &ColumnPlan,
    errors: &mut Vec<CheckError>,
) {
    let module = program.module();
    let shape = |what: String| CheckError::Shape { segment: index, what };
    let operation = &module.ops[plan.op];
    let OpKind::Reduce { kind, .. } = &operation.kind else {
        return errors.push(shape("the planned op is no reduce".to_owned()));
    };
    let is_op = segment.ops == [plan.op];
    if !is_op || operation.operands != [plan.operand] || operation.results != [plan.result] {
        let what = "the op, operand or result of the plan are not those of the segment";
        return errors.push(shape(what.to_owned()));
    }
    let mut field = |field: &'static str, found: String, expected: String| {
        if found != expected {
            errors.push(CheckError::Field { segment: index, field, found, expected });
        }
    };
    field("kind", plan.program.kind.to_string(), kind.to_string());
    for value in [plan.operand, plan.result] {
        field("element", plan.program.element.to_string(), module.ty(value).element.to_string());
    }
    let samples = samples(program, plan.op);
    if samples.is_empty() {
        errors.push(shape("no extents of the op are valid".to_owned()));
    }
    for symbols in &samples {
        if let Err(what) = compare(program, symbols, plan) {
            return errors.push(shape(what));
        }
    }
    limits(capabilities, index, plan, errors);
}

/// Compares the result to which sampled elements of the operand are added.
fn compare(program: &Program, symbols: &SymbolValues, plan: &ColumnPlan) -> Result<(), String> {
    let unknown = || "an extent exceeds 64 bits".to_owned();
    let numbers: Option<Vec<u64>> = plan.extents.iter().map(|dim| dim.evaluate(symbols)).collect();
    let numbers = numbers.ok_or_else(unknown)?;
    let operand = dims(program, plan.operand, symbols).ok_or_else(unknown)?;
    let result = dims(program, plan.result, symbols).ok_or_else(unknown)?;
    let is_reduced = |axis: &usize| match &program.module().ops[plan.op].kind {
        OpKind::Reduce { axes, .. } => axes.iter().any(|reduced| *reduced as usize == *axis),
        _ => false,
    };
    let product = |extents: &[u64]| extents.iter().try_fold(1, |all: u64, extent| all.checked_mul(*extent));
    let chosen = |extents: &[u64], at: [bool; 5]| -> Vec<u64> {
        extents.iter().zip(at).filter(|(_, chosen)| *chosen).map(|(extent, _)| *extent).collect()
    };
    const KEPT: [bool; 5] = [true, false, true, false, true];
    let reduced: Vec<u64> = (0..operand.len()).filter(is_reduced).map(|axis| operand[axis]).collect();
    let sizes = [
        ("the operand has", &numbers[..], &operand[..]),
        ("the result has", &chosen(&numbers, KEPT), &result),
        ("a result combines", &chosen(&numbers, KEPT.map(|kept| !kept)), &reduced),
    ];
    for (what, found, expected) in sizes {
        let [found, expected] = [found, expected].map(product);
        if found.is_none() || found != expected {
            return Err(format!("{what} {found:?} elements in the plan, not {expected:?}"));
        }
    }
    let elements = product(&operand).ok_or_else(unknown)?;
    let kept: Vec<usize> = (0..operand.len()).filter(|axis| !is_reduced(axis)).collect();
    for sample in 0..elements.min(MOST_ELEMENTS) {
        let at = match sample {
            _ if elements <= MOST_ELEMENTS => sample,
            0 => 0,
            1 => elements - 1,
            _ => sample.wrapping_mul(0x9E37_79B9_7F4A_7C15) % elements,
        };
        let of_op = places(at, &operand).ok_or_else(unknown)?;
        let of_plan = places(at, &numbers).ok_or_else(unknown)?;
        let of_kept = |from: &[u64]| kept.iter().map(|axis| from[*axis]).collect::<Vec<_>>();
        let expected = row_major(&of_kept(&of_op), &of_kept(&operand));
        let found = row_major(&chosen(&of_plan, KEPT), &chosen(&numbers, KEPT));
        if found != expected {
            return Err(format!("element {at} of the operand is part of result {found}, not {expected}"));
        }
    }
    Ok(())
}

/// The limits of the target, as exactly the constraints of the plan.
fn limits(capabilities: &Capabilities, index: usize, plan: &ColumnPlan, errors: &mut Vec<CheckError>) {
    let mut refused = |rule: String| errors.push(CheckError::Capability { segment: index, rule });
    let Some(rules) = &capabilities.device.columns else {
        return refused(format!("{} has no column kernel", capabilities.target));
    };
    if !rules.elements.contains(&plan.program.element) || !rules.reductions.contains(&plan.program.kind) {
        refused(format!("its column kernels have no {}", plan.program.signature()));
    }
    let mut needed = Vec::new();
    for (name, dim) in ["O", "A", "B", "C", "I"].into_iter().zip(&plan.extents) {
        match known(dim) {
            None => needed.push(Constraint::AtMost { name, dim: dim.clone(), limit: rules.max_extent }),
            Some(extent) if extent <= rules.max_extent => {}
            Some(_) => refused(format!("{name} exceeds {}", rules.max_extent)),
        }
    }
    let bytes = plan.program.element.storage_bits() as u32 / 8;
    let pointers = [plan.operand, plan.result];
    needed.extend(pointers.map(|value| Constraint::PointerAlignment { value, bytes }));
    for needed in &needed {
        if !plan.constraints.contains(needed) {
            errors.push(CheckError::Constraint { segment: index, needed: needed.clone() });
        }
    }
    for found in &plan.constraints {
        if !needed.contains(found) {
            errors.push(CheckError::ExtraConstraint { segment: index, found: found.clone() });
        }
    }
}
