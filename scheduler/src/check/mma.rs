//! Matches one segment of a plain `mma` against its plan and the target's rules.

use fourfold_ir::{Capabilities, Dim, OpKind, Program};

use super::{CheckError, known};
use crate::plan::{Constraint, MmaPlan, Segment};

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &MmaPlan,
    errors: &mut Vec<CheckError>,
) {
    let module = program.module();
    let mut shape = |what: &str| errors.push(CheckError::Shape { segment: index, what: what.to_owned() });
    if segment.ops != [plan.op] {
        return shape("the segment does not consist of the planned op");
    }
    let operation = &module.ops[plan.op];
    if operation.kind != OpKind::Mma {
        return shape("the planned op is not an mma");
    }
    if operation.operands != [plan.a, plan.b] || operation.results != [plan.d] {
        return shape("the operands or the result of the plan are not those of the op");
    }
    let types = [plan.a, plan.b, plan.d].map(|value| module.ty(value));
    let mut field = |field: &'static str, found: String, expected: String| {
        if found != expected {
            errors.push(CheckError::Field { segment: index, field, found, expected });
        }
    };
    let [a, b, d] = types.map(|ty| &ty.shape[..]);
    field("elements", format!("{:?}", plan.elements), format!("{:?}", types.map(|ty| ty.element)));
    // D `[.., M, N]` states L, M and N; the last extent of A is K.
    let (outer, rows) = d.split_at(d.len().saturating_sub(2));
    let matrices = outer.iter().try_fold(Dim::fixed(1), |product, dim| product.times(dim));
    let dim = |dim: Option<&Dim>| format!("{dim:?}");
    field("batch", dim(Some(&plan.batch)), dim(matrices.as_ref()));
    field("m", dim(Some(&plan.m)), dim(rows.first()));
    field("n", dim(Some(&plan.n)), dim(rows.last()));
    field("k", dim(Some(&plan.k)), dim(a.last()));
    field("b_batched", plan.b_batched.to_string(), (b.len() > 2).to_string());
    let mut refused =
        |rule: &str| errors.push(CheckError::Capability { segment: index, rule: rule.to_owned() });
    let Some(rules) = &capabilities.device.mma else { return refused("it has no library for mma") };
    if !rules.elements.contains(&types.map(|ty| ty.element)) {
        refused("its library does not multiply these types");
    }
    let (Some(matrices), [m, n], Some(k)) = (matrices, rows, a.last()) else {
        return refused("the number of matrices exceeds 64 bits");
    };
    let shares = b.len() <= 2 && known(&matrices) != Some(1);
    let mut limited = vec![("N", n.clone()), ("K", k.clone())];
    match (shares, matrices.times(m)) {
        (true, None) => refused("L*M exceeds 64 bits"),
        (true, Some(rows)) => limited.push(("L*M", rows)),
        (false, _) => limited.extend([("L", matrices), ("M", m.clone())]),
    }
    let mut needed = Vec::new();
    for (name, dim) in limited {
        match known(&dim) {
            None => needed.push(Constraint::AtMost { name, dim, limit: rules.max_extent }),
            Some(extent) if rules.max_extent < extent => refused("an extent exceeds its limit"),
            Some(_) => {}
        }
    }
    match known(k) {
        None => needed.push(Constraint::NotEmpty { name: "K", dim: k.clone() }),
        Some(0) => refused("its library does not sum over an empty K"),
        Some(_) => {}
    }
    let lacking = needed.iter().filter(|constraint| !plan.constraints.contains(constraint));
    errors.extend(lacking.map(|it| CheckError::Constraint { segment: index, needed: it.clone() }));
    let extra = plan.constraints.iter().filter(|constraint| !needed.contains(constraint));
    errors.extend(extra.map(|it| CheckError::ExtraConstraint { segment: index, found: it.clone() }));
}
