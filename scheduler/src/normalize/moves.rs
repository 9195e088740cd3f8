//! Rules on moves: transposes and reshapes merge, and reshapes move after elementwise ops and before dequantization.

use egg::{Id, Language};
use fourfold_ir::{Dim, ScaleLayout, TensorType, dim_product};

use super::language::Term;
use super::rule_match::RuleMatch;

/// Merges two transposes into one.
pub(crate) fn transposes_merge(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let (Some(outer), Some(inner)) =
        (matched.permutation(matched.get("?p")), matched.permutation(matched.get("?q")))
    else {
        return vec![];
    };
    let merged: Option<Vec<u32>> = outer.iter().map(|axis| inner.get(*axis as usize).copied()).collect();
    let Some(merged) = merged else { return vec![] };
    let permutation = matched.permutation_term(&merged);
    let x = matched.get("?x");
    vec![matched.add(Term::Transpose([permutation, x]))]
}

/// Moves a reshape before `dequantize`, for a reshape that keeps the last extent.
pub(crate) fn reshape_joins_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let [shape, e, v, c, sc, g] = ["?s", "?e", "?v", "?c", "?sc", "?g"].map(|name| matched.get(name));
    let reshaped = {
        let (Some(codes), Some(scales)) = (matched.ty(c), matched.ty(sc)) else { return vec![] };
        let Some(Term::Reshape(_)) = matched.whole() else { return vec![] };
        let Some(to) = matched.reshaped_shape(shape) else { return vec![] };
        let ([rows @ .., last], [to_rows @ .., to_last]) = (&codes.shape[..], &to[..]) else {
            return vec![];
        };
        let Some(blocks) = scales.shape.last() else { return vec![] };
        // With an empty last extent, any number of rows would match.
        let keeps =
            last == to_last && last.as_fixed() != Some(0) && dim_product(rows) == dim_product(to_rows);
        let linear = scales.layout == Some(ScaleLayout::Linear);
        (keeps && linear && to.len() >= 2).then(|| to_rows.iter().chain([blocks]).cloned().collect())
    };
    let Some(scale_shape) = reshaped else { return vec![] };
    let scale_shape = matched.shape_term(&scale_shape);
    let codes = matched.add(Term::Reshape([shape, c]));
    let scales = matched.add(Term::Reshape([scale_shape, sc]));
    vec![matched.add(Term::Dequantize([e, v, codes, scales, g]))]
}

/// Moves reshapes of a common source shape from an elementwise op's operands to its result.
pub(crate) fn reshape_moves(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let Some(whole) = matched.whole() else { return vec![] };
    let operands = whole.operands().to_vec();
    // Each operand with its sources before a reshape.
    let sources: Vec<Vec<(Term, Id)>> = operands
        .iter()
        .map(|operand| {
            let terms = matched.terms(*operand);
            terms
                .into_iter()
                .filter_map(|term| match term {
                    Term::Reshape([_, x]) if !matched.same(x, *operand) => Some((term, x)),
                    _ => None,
                })
                .collect()
        })
        .collect();
    let mut shapes: Vec<Vec<Dim>> = Vec::new();
    for (_, x) in sources.iter().flatten() {
        if let Some(ty) = matched.ty(*x)
            && !shapes.contains(&ty.shape)
        {
            shapes.push(ty.shape.clone());
        }
    }
    let mut results = Vec::new();
    for shape in shapes {
        results.extend(move_from(matched, &whole, &operands, &sources, &shape));
    }
    results
}

/// Moves reshapes from operands of this shape to the result; `None` if the other operands do not allow it. An operand
/// of the result's shape is reshaped to this shape.
fn move_from(
    matched: &mut RuleMatch<'_>,
    whole: &Term,
    operands: &[Id],
    sources: &[Vec<(Term, Id)>],
    shape: &[Dim],
) -> Option<Id> {
    let to = matched.type_of_term(whole)?.shape.clone();
    let mut is_reshaped = false;
    let mut moved = Vec::new();
    let mut used = Vec::new();
    for (operand, sources) in operands.iter().zip(sources) {
        let source = sources.iter().find(|(_, x)| matched.ty(*x).is_some_and(|ty| ty.shape == shape));
        if let Some((term, x)) = source {
            let ty = matched.ty(*operand)?;
            if ty.shape.last() != shape.last() || ty.shape.is_empty() || ty.shape != to {
                return None;
            }
            is_reshaped = true;
            used.push(term.clone());
            moved.push(*x);
        } else {
            moved.push(*operand);
        }
    }
    if !is_reshaped {
        return None;
    }
    // A reshape of an input may as well stay where it is.
    let is_computed = |class: &Id| !matched.terms(*class).iter().any(|term| matches!(term, Term::Leaf(_)));
    let may_reshape = moved.iter().zip(operands).any(|(x, operand)| x != operand && is_computed(x));
    for (moved, operand) in moved.iter_mut().zip(operands) {
        if moved == operand {
            *moved = beside(matched, *operand, shape, &to, may_reshape)?;
        }
    }
    let added = whole.operands().len();
    let mut position = 0;
    let attributes = whole.children().len() - added;
    let inner = whole.clone().map_children(|child| {
        position += 1;
        if position > attributes { moved[position - 1 - attributes] } else { child }
    });
    for term in used {
        matched.using(term);
    }
    let inner = matched.add(inner);
    let to = matched.shape_term(&to);
    Some(matched.add(Term::Reshape([to, inner])))
}

/// An operand beside one whose reshape from `shape` to `to` moves: a number, a row along the last axis, or a tensor of
/// the shape `to`, which is reshaped back. `None` for others.
fn beside(
    matched: &mut RuleMatch<'_>,
    operand: Id,
    shape: &[Dim],
    to: &[Dim],
    may_reshape: bool,
) -> Option<Id> {
    let ty = matched.ty(operand)?;
    let wanted = if lies_along_last_axis(ty, shape) {
        if ty.rank() <= shape.len() {
            return Some(operand);
        }
        // Leading extents of 1 would make the result larger.
        vec![ty.shape.last()?.clone()]
    } else if may_reshape && ty.layout.is_none() && ty.shape == to {
        shape.to_vec()
    } else {
        return None;
    };
    let wanted = matched.shape_term(&wanted);
    Some(matched.add(Term::Reshape([wanted, operand])))
}

/// Returns whether a tensor is one number, or a row along the last axis of a tensor of this shape.
fn lies_along_last_axis(ty: &TensorType, shape: &[Dim]) -> bool {
    let is_one = |dim: &Dim| dim.as_fixed() == Some(1);
    ty.layout.is_none()
        && match &ty.shape[..] {
            [] => true,
            [ones @ .., last] => ones.iter().all(is_one) && (is_one(last) || Some(last) == shape.last()),
        }
}
