//! Plans a plain `mma` as a call of the vendor's library.

use fourfold_ir::{Dim, MmaCapability, Op, OpKind, Program, dim_product};

use crate::plan::{Constraint, MmaPlan};

/// The plan of a plain `mma`; `None` if the library does not multiply its types or its fixed extents. Empty results are
/// planned: the executor launches nothing for them.
pub(crate) fn plan_mma(program: &Program, capability: &MmaCapability, op: Op) -> Option<MmaPlan> {
    let module = program.module();
    let operation = &module.ops[op];
    let (OpKind::Mma, &[a, b], &[d]) = (&operation.kind, &operation.operands[..], &operation.results[..])
    else {
        return None;
    };
    let elements = [a, b, d].map(|value| module.ty(value).element);
    if !capability.elements.contains(&elements) {
        return None;
    }
    let [leading @ .., m, k] = &module.ty(a).shape[..] else { return None };
    let [b_leading @ .., n, _] = &module.ty(b).shape[..] else { return None };
    let (batch, b_batched) = (dim_product(leading)?, !b_leading.is_empty());
    Some(MmaPlan {
        op,
        a,
        b,
        d,
        elements,
        constraints: constraints(capability.max_extent, [&batch, m, n, k], b_batched)?,
        batch,
        m: m.clone(),
        n: n.clone(),
        k: k.clone(),
        b_batched,
    })
}

/// The conditions that do not hold for all symbol values; `None` if one holds for no symbol values.
fn constraints(limit: u64, [l, m, n, k]: [&Dim; 4], b_batched: bool) -> Option<Vec<Constraint>> {
    let mut extents = if b_batched || l.as_fixed() == Some(1) {
        vec![("L", l.clone()), ("M", m.clone())]
    } else {
        vec![("L*M", l.times(m)?)]
    };
    extents.extend([("N", n.clone()), ("K", k.clone())]);
    let exceeds = |dim: &Dim| dim.as_fixed().is_some_and(|extent| limit < extent);
    if extents.iter().any(|(_, dim)| exceeds(dim)) || k.as_fixed() == Some(0) {
        return None;
    }
    let mut found: Vec<Constraint> = extents
        .into_iter()
        .filter(|(_, dim)| dim.as_fixed().is_none())
        .map(|(name, dim)| Constraint::AtMost { name, dim, limit })
        .collect();
    if k.as_fixed().is_none() {
        found.push(Constraint::NotEmpty { name: "K", dim: k.clone() });
    }
    Some(found)
}

#[cfg(test)]
mod tests;
