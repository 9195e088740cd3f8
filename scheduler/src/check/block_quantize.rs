//! Matches one segment of a `block_quantize` against its plan and the target's rules.

use fourfold_ir::{Capabilities, Dim, OpKind, Program, QuantizedFormat};

use super::CheckError;
use crate::plan::{BlockQuantizePlan, Constraint, Segment};

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &BlockQuantizePlan,
    errors: &mut Vec<CheckError>,
) {
    let module = program.module();
    let mut shape = |what: &str| errors.push(CheckError::Shape { segment: index, what: what.to_owned() });
    if segment.ops != [plan.op] {
        return shape("the segment does not consist of the planned op");
    }
    let operation = &module.ops[plan.op];
    let OpKind::BlockQuantize { block, scale_rounding, formula } = operation.kind else {
        return shape("the planned op is not a block_quantize");
    };
    let expected_operands: Vec<_> = std::iter::once(plan.values).chain(plan.global).collect();
    if operation.operands != expected_operands || operation.results != [plan.codes, plan.scales] {
        return shape("the operands or outputs of the plan are not those of the op");
    }
    let (values, codes, scales) = (module.ty(plan.values), module.ty(plan.codes), module.ty(plan.scales));
    let format = QuantizedFormat { element: codes.element, scale: scales.element, block };
    let rank = values.shape.len();
    let (leading, rows) = values.shape.split_at(rank.saturating_sub(2));
    let mut batch = Dim::fixed(1);
    for dim in leading {
        batch = batch.times(dim).unwrap_or(Dim::fixed(0));
    }
    let mut field = |field: &'static str, holds: bool| {
        if !holds {
            errors.push(CheckError::Capability {
                segment: index,
                rule: format!("`{field}` does not match the op or the target"),
            });
        }
    };
    field("input", plan.input == values.element);
    field("format", plan.format == format);
    field("scale_rounding", plan.scale_rounding == scale_rounding);
    field("formula", plan.formula == formula);
    field("layout", Some(plan.layout) == scales.layout);
    field("batch", plan.batch == batch);
    field("m, k", rows == [plan.m.clone(), plan.k.clone()]);
    let Some(rules) = &capabilities.block_quantize else {
        let rule = format!("{} has no kernel for block_quantize", capabilities.target);
        return errors.push(CheckError::Capability { segment: index, rule });
    };
    field("input type", rules.inputs.contains(&plan.input));
    field("output format", rules.formats.contains(&plan.format));

    let mut needed: Vec<Constraint> = [plan.values, plan.codes, plan.scales]
        .map(|value| Constraint::PointerAlignment { value, bytes: rules.pointer_alignment })
        .to_vec();
    let symbolic = |dim: &Dim| !dim.symbols().is_empty();
    let extents = [("L", &plan.batch), ("M", &plan.m), ("K", &plan.k)];
    for (name, dim) in extents {
        if symbolic(dim) {
            needed.push(Constraint::AtMost { name, dim: dim.clone(), limit: rules.max_extent });
        } else {
            field("extent", dim.constant() <= rules.max_extent && (name != "K" || dim.constant() > 0));
        }
    }
    if extents.iter().any(|(_, dim)| symbolic(dim)) {
        needed.push(Constraint::ScaleBytes {
            name: "the result",
            matrices: plan.batch.clone(),
            rows: plan.m.clone(),
            k: plan.k.clone(),
            block,
            limit: rules.max_scale_bytes,
        });
    } else {
        let columns = plan.k.constant().div_ceil(u64::from(block)).next_multiple_of(4);
        let padded = u128::from(plan.m.constant().next_multiple_of(128)) * u128::from(columns);
        let bytes = padded * u128::from(plan.batch.constant());
        field("scales", bytes <= u128::from(rules.max_scale_bytes));
    }
    if symbolic(&plan.k) {
        needed.push(Constraint::NotEmpty { name: "K", dim: plan.k.clone() });
    }
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
