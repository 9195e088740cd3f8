//! Slices of columns move before the elementwise steps that follow a product, so that its epilogue may pair columns. Gate
//! and up of one weight have such steps where a bias is added to both at once.

use fourfold_ir::{Dim, Op, OpKind, SliceRange, TensorType, Value};

use super::draft::{Draft, Note};

/// The most steps between a product and the slices.
const MOST_STEPS: usize = 8;

/// A step between a product and two slices of columns: an op, and the position of the operand that comes from the product.
struct Step {
    op: Op,
    position: usize,
}

/// Two slices that take the even and the odd columns of a value, or its halves, and the steps from a product to it.
pub(super) struct Split {
    product: Value,
    steps: Vec<Step>,
    slices: [(Op, SliceRange); 2],
}

impl Split {
    /// The `scaled_mma` or `grouped_scaled_mma`.
    pub(super) fn product(&self, draft: &Draft) -> Option<Op> {
        draft.module.defining_op(self.product)
    }

    /// The results of the slices.
    pub(super) fn values(&self, draft: &Draft) -> [Value; 2] {
        self.slices.map(|(op, _)| draft.module.ops[op].results[0])
    }

    /// Returns whether the slices take every second column.
    pub(super) fn alternates(&self) -> bool {
        self.slices[0].1.step == 2
    }
}

/// Returns the split of a value whose users are two slices, if steps lead from a product to it. Nothing else uses the values
/// between them.
pub(super) fn find_split(draft: &Draft, slice: Op, is_product: impl Fn(&OpKind) -> bool) -> Option<Split> {
    let value = *draft.module.ops[slice].operands.first()?;
    let shape = &draft.module.ty(value).shape;
    let n = shape.last()?.as_fixed().filter(|n| *n > 0 && n.is_multiple_of(2))?;
    let range = |op: Op| {
        let OpKind::Slice { ranges } = &draft.module.ops[op].kind else { return None };
        let &[range] = &ranges[..] else { return None };
        (range.axis as usize + 1 == shape.len()).then_some((op, range))
    };
    let mut users = draft.users(value).iter().copied();
    let (Some(first), Some(second), None) = (users.next(), users.next(), users.next()) else { return None };
    let mut slices = [range(first)?, range(second)?];
    slices.sort_by_key(|(_, range)| range.start);
    let parts = slices.map(|(_, range)| (range.start, range.extent(), range.step));
    let are_parts = parts == [(0, n / 2, 2), (1, n / 2, 2)] || parts == [(0, n / 2, 1), (n / 2, n / 2, 1)];
    if !are_parts || draft.is_output(value) {
        return None;
    }
    let mut steps = Vec::new();
    let mut value = value;
    while steps.len() <= MOST_STEPS {
        let (op, kind) = draft.definition(value)?;
        if is_product(kind) {
            steps.reverse();
            return (!steps.is_empty()).then_some(Split { product: value, steps, slices });
        }
        let operands = &draft.module.ops[op].operands;
        let leads = |operand: &&Value| {
            draft.module.ty(**operand).shape == *shape
                && draft.users(**operand).len() == 1
                && !draft.is_output(**operand)
                && draft.definition(**operand).is_some_and(|(_, kind)| is_product(kind) || is_step(kind))
        };
        let mut leading = operands.iter().filter(leads);
        let (Some(next), None) = (leading.next(), leading.next()) else { return None };
        let position = operands.iter().position(|operand| operand == next)?;
        let others = operands.iter().enumerate().filter(|(at, _)| *at != position);
        if !is_step(kind)
            || !others.clone().all(|(_, other)| *other != *next && is_divisible(draft, *other, n))
        {
            return None;
        }
        steps.push(Step { op, position });
        value = *next;
    }
    None
}

fn is_step(kind: &OpKind) -> bool {
    matches!(kind, OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Clamp { .. } | OpKind::Convert)
}

/// Returns whether the columns of an operand of a step are cheap to slice: it has one column, or follows from params, or a
/// `gather` of rows of a param makes it.
fn is_divisible(draft: &Draft, value: Value, n: u64) -> bool {
    let columns = draft.module.ty(value).shape.last().map(Dim::as_fixed);
    match columns {
        None | Some(Some(1)) => true,
        Some(Some(columns)) if columns == n => {
            draft.module.is_param(value) || gathered(draft, value).is_some()
        }
        Some(_) => false,
    }
}

/// The param of which a `gather` along the first of two axes makes a value, and its indices. Nothing else uses the value.
fn gathered(draft: &Draft, value: Value) -> Option<(Value, Value)> {
    let (op, OpKind::Gather { axis: 0 }) = draft.definition(value)? else { return None };
    let &[table, indices] = &draft.module.ops[op].operands[..] else { return None };
    let is_table = draft.module.is_param(table) && draft.module.ty(table).shape.len() == 2;
    (is_table && draft.users(value).len() == 1 && !draft.is_output(value)).then_some((table, indices))
}

/// Moves the slices of a split before its steps. `rule` is the position of the rule.
pub(super) fn split(draft: &mut Draft, split: &Split, rule: usize) {
    let position = draft.note(split.steps[0].op).position;
    let from: Vec<Op> =
        split.steps.iter().map(|step| step.op).chain(split.slices.map(|(op, _)| op)).collect();
    let note = |from: Vec<Op>| Note { position, made: Some((from, vec![rule])), ..Note::default() };
    for (slice, range) in split.slices {
        let result = draft.module.ops[slice].results[0];
        let name = draft.module.name_of(result).to_owned();
        let mut value = sliced(draft, split.product, range, &name, note(Vec::new()));
        let last = split.steps.len() - 1;
        for (index, step) in split.steps.iter().enumerate() {
            let operation = draft.module.ops[step.op].clone();
            let mut operands = operation.operands.clone();
            for (at, operand) in operands.iter_mut().enumerate() {
                *operand = if at == step.position {
                    value
                } else {
                    part_of(draft, *operand, range, note(Vec::new()))
                };
            }
            if index == last {
                let made = draft.redefine(&[result], operation.kind, operands, note(from.clone()));
                for op in split.steps.iter().map(|step| step.op).chain([slice]) {
                    draft.note_mut(op).successor = Some(made);
                }
            } else {
                let ty = columns_of(draft.module.ty(operation.results[0]), range);
                let name = format!("{}.{name}", draft.module.name_of(operation.results[0]));
                let op = draft.add(operation.kind, operands, &name, ty, note(vec![step.op]));
                value = draft.module.ops[op].results[0];
            }
        }
    }
    draft.remove_unused(from);
}

/// The columns of an operand of a step.
fn part_of(draft: &mut Draft, value: Value, range: SliceRange, note: Note) -> Value {
    if draft.module.ty(value).shape.last().is_none_or(|last| last.as_fixed() == Some(1)) {
        return value;
    }
    let name = format!("{}.columns", draft.module.name_of(value));
    let Some((table, indices)) = gathered(draft, value) else {
        return sliced(draft, value, range, &name, note);
    };
    let of_table = format!("{}.columns", draft.module.name_of(table));
    let part = sliced(draft, table, range, &of_table, note.clone());
    let ty = columns_of(draft.module.ty(value), range);
    let op = draft.add(OpKind::Gather { axis: 0 }, vec![part, indices], &name, ty, note);
    draft.module.ops[op].results[0]
}

fn sliced(draft: &mut Draft, value: Value, range: SliceRange, name: &str, note: Note) -> Value {
    let ty = draft.module.ty(value).clone();
    let range = SliceRange { axis: ty.shape.len() as u32 - 1, ..range };
    let ty = columns_of(&ty, range);
    let op = draft.add(OpKind::Slice { ranges: vec![range] }, vec![value], name, ty, note);
    draft.module.ops[op].results[0]
}

fn columns_of(ty: &TensorType, range: SliceRange) -> TensorType {
    let mut ty = ty.clone();
    if let Some(last) = ty.shape.last_mut() {
        *last = Dim::fixed(range.extent());
    }
    ty
}
