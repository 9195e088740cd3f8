//! Plans reductions along other axes than the last, and over whole tensors.

use fourfold_ir::{ColumnCapability, Dim, Op, OpKind, Program, Value, dim_product};

use crate::plan::{ColumnPlan, ColumnProgram, Constraint};
use crate::reason::exceeded_extent;

/// The elements that one CTA reduces about as fast as all SMs together. A row kernel reduces a whole tensor of at most
/// this size, beside its other steps.
const MAX_WHOLE_ROW: u64 = 1 << 16;

/// Returns whether a reduction has a kernel of its own: no row kernel can compute it, or only one CTA of it would.
pub(crate) fn is_column(program: &Program, capability: &ColumnCapability, op: Op) -> bool {
    let module = program.module();
    let operation = &module.ops[op];
    let OpKind::Reduce { axes, .. } = &operation.kind else { return false };
    let shape = &module.ty(operation.operands[0]).shape;
    let trailing = shape.len().saturating_sub(axes.len());
    let is_along_rows = axes.iter().map(|axis| *axis as usize).eq(trailing..shape.len());
    if is_along_rows {
        let rows = dim_product(&shape[..trailing]).and_then(|rows| rows.as_fixed());
        let elements = dim_product(shape).and_then(|elements| elements.as_fixed());
        if rows != Some(1) || elements.is_some_and(|elements| elements <= MAX_WHOLE_ROW) {
            return false;
        }
    }
    plan_column(program, capability, op).is_some()
}

/// The plan of a reduction; `None` if the op is none, or if it has more than two groups of reduced axes.
pub(crate) fn plan_column(program: &Program, capability: &ColumnCapability, op: Op) -> Option<ColumnPlan> {
    let (program, operand, result, extents) = supported(program, capability, op)?;
    let limit = capability.max_extent;
    let mut constraints = Vec::new();
    for (name, dim) in ColumnPlan::EXTENTS.into_iter().zip(&extents) {
        match dim.as_fixed() {
            Some(extent) if limit < extent => return None,
            Some(_) => {}
            None => constraints.push(Constraint::AtMost { name, dim: dim.clone(), limit }),
        }
    }
    let bytes = program.element.storage_bits() as u32 / 8;
    constraints.extend([operand, result].map(|value| Constraint::PointerAlignment { value, bytes }));
    Some(ColumnPlan { op, program, operand, result, extents, constraints })
}

/// The extent of a reduction beyond the limit of column kernels, worded for a message; `None` if there is none, or if
/// they do not compute the op at all.
pub(crate) fn exceeded(program: &Program, capability: &ColumnCapability, op: Op) -> Option<String> {
    let (.., extents) = supported(program, capability, op)?;
    let named = ColumnPlan::EXTENTS.into_iter().zip(&extents);
    exceeded_extent(program.module(), named, capability.max_extent)
}

/// The parts of a plan, if column kernels compute the op with any extents: the program, the operand, the result, and
/// the extents.
fn supported(
    program: &Program,
    capability: &ColumnCapability,
    op: Op,
) -> Option<(ColumnProgram, Value, Value, [Dim; 5])> {
    let module = program.module();
    let operation = &module.ops[op];
    let (OpKind::Reduce { kind, axes, .. }, &[operand], &[result]) =
        (&operation.kind, &operation.operands[..], &operation.results[..])
    else {
        return None;
    };
    let ty = module.ty(operand);
    let element = ty.element;
    if !capability.elements.contains(&element) || !capability.reductions.contains(kind) {
        return None;
    }
    Some((ColumnProgram { kind: *kind, element }, operand, result, view(&ty.shape, axes)?))
}

/// O, A, B, C and I of an operand with this shape.
fn view(shape: &[Dim], axes: &[u32]) -> Option<[Dim; 5]> {
    // Kept and reduced axes in turn, beginning and ending with kept ones.
    let mut groups = vec![Dim::fixed(1)];
    for (axis, extent) in shape.iter().enumerate().filter(|(_, extent)| extent.as_fixed() != Some(1)) {
        let is_reduced = axes.contains(&(axis as u32));
        if is_reduced == groups.len().is_multiple_of(2) {
            let last = groups.last_mut()?;
            *last = last.times(extent)?;
        } else {
            groups.push(extent.clone());
        }
    }
    if groups.len().is_multiple_of(2) {
        groups.push(Dim::fixed(1));
    }
    let one = || Dim::fixed(1);
    match <[Dim; 5]>::try_from(groups) {
        Ok(all) => Some(all),
        Err(groups) => match <[Dim; 3]>::try_from(groups) {
            Ok([outer, reduced, inner]) => Some([outer, one(), one(), reduced, inner]),
            Err(groups) => match <[Dim; 1]>::try_from(groups) {
                Ok([kept]) => Some([one(), one(), one(), one(), kept]),
                Err(_) => None,
            },
        },
    }
}

#[cfg(test)]
mod tests;
