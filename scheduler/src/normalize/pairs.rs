//! Gate and up products become one: the rows of their weights alternate in one weight, so that columns which an op
//! combines are adjacent, and one kernel computes both.
//!
//! The rewritten product is `[.., M, 2·F]`. Two slices take its even and its odd columns, which are the former products.
//! Only weights that depend on params only are rearranged, by ordinary ops, so a session does it once. The matrices of
//! a `grouped_scaled_mma` are rearranged each on its own.

use std::collections::HashMap;

use fourfold_ir::{
    BinaryKind, BlockFormat, Capabilities, Dim, ElementType, FormatCapability, GroupedScaledMma, Op, OpKind,
    OperandShape, ScaleLayout, ScaledMma, ScaledMmaOperands, Shape, SliceRange, TensorType, Value,
};

use super::NormalizeRule;
use super::draft::Draft;
use super::interleave::Writer;
use super::slices::{Split, find_split, split};
use crate::geometry::{SCALE_ROWS, operand_shape, scale_bytes};

/// The rules of this module. Their positions follow those of weight-only products.
pub(crate) const PAIR_RULES: &[NormalizeRule] = &[
    NormalizeRule {
        name: "combined-products-are-one",
        why: "a column of a product depends on one row of B only, so the product of alternating rows has the columns of both \
              products in turn. A mul by alpha rounds as the product does: to f32, and then to its type",
        contract: false,
    },
    NormalizeRule {
        name: "slices-before-steps",
        why: "a column of an elementwise op depends on the same column of its operands only. A slice of the columns of a \
              gather along rows is the gather of the sliced columns",
        contract: false,
    },
];

/// The most steps between a product and the op that combines it with another.
const MOST_STEPS: usize = 8;

/// The most ops from which a weight is followed back to params.
const MOST_OPS: usize = 64;

/// The formats of a target whose kernels pair columns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pairs {
    formats: Vec<FormatCapability>,
}

impl Pairs {
    pub(crate) fn of(capabilities: &Capabilities) -> Pairs {
        let formats = capabilities.formats.iter().filter(|rules| rules.pairs.is_some());
        Pairs { formats: formats.cloned().collect() }
    }
}

/// The columns that an operand of a combining op is computed from: of a whole product, or a half of them.
#[derive(Clone, Copy)]
struct Half {
    /// The `scaled_mma` or `grouped_scaled_mma`.
    product: Op,
    /// The `slice` that takes the half; `None` for a whole product.
    slice: Option<Op>,
    /// The former value with these columns.
    value: Value,
    /// The first row of B.
    first_row: u64,
}

/// The attributes of a product.
#[derive(Clone, Copy)]
enum Product {
    OfRows(ScaledMma),
    OfGroups(GroupedScaledMma),
}

impl Product {
    fn of(kind: &OpKind) -> Option<Product> {
        match *kind {
            OpKind::ScaledMma(attributes) => Some(Product::OfRows(attributes)),
            OpKind::GroupedScaledMma(attributes) => Some(Product::OfGroups(attributes)),
            _ => None,
        }
    }

    fn block(self) -> u32 {
        match self {
            Product::OfRows(attributes) => attributes.block,
            Product::OfGroups(attributes) => attributes.block,
        }
    }

    /// The op with an alpha or without, and without C.
    fn with(self, alpha: bool) -> OpKind {
        match self {
            Product::OfRows(attributes) => {
                OpKind::ScaledMma(ScaledMma { alpha, c: false, beta: false, ..attributes })
            }
            Product::OfGroups(attributes) => {
                OpKind::GroupedScaledMma(GroupedScaledMma { alpha, ..attributes })
            }
        }
    }
}

/// The type of a product and the rules of its kernels.
struct Kind<'a> {
    attributes: Product,
    rules: &'a FormatCapability,
    /// F, the columns of each half.
    columns: u64,
}

/// Rewrites every pair of products that an op combines; returns true if something changed. `first` is the position of the
/// rule.
pub(crate) fn pair(draft: &mut Draft, target: &Pairs, first: usize) -> bool {
    if target.formats.is_empty() {
        return false;
    }
    let mut changed = split_columns(draft, target, first + 1);
    let is_binary =
        |op: &Op| matches!(draft.module.ops[*op].kind, OpKind::Binary(_)) && !draft.note(*op).gone;
    let mut joins: Vec<Op> = draft.module.ops.keys().filter(is_binary).collect();
    joins.sort_by_key(|op| (draft.note(*op).position, *op));
    for join in joins {
        if let Some((halves, kind)) = find(draft, target, join) {
            rewrite(draft, halves, &kind, first);
            changed = true;
        }
    }
    changed
}

/// Moves slices of columns before the steps that follow a product, where its columns may then be pairs; returns true if
/// something changed.
fn split_columns(draft: &mut Draft, target: &Pairs, rule: usize) -> bool {
    let is_slice =
        |op: &Op| matches!(draft.module.ops[*op].kind, OpKind::Slice { .. }) && !draft.note(*op).gone;
    let slices: Vec<Op> = draft.module.ops.keys().filter(is_slice).collect();
    let mut changed = false;
    for slice in slices {
        if draft.note(slice).gone {
            continue;
        }
        let is_product = |kind: &OpKind| Product::of(kind).is_some();
        let Some(found) = find_split(draft, slice, is_product) else { continue };
        if may_pair(draft, target, &found) {
            split(draft, &found, rule);
            changed = true;
        }
    }
    changed
}

/// Returns whether a kernel of the target may pair the columns that two slices take: every second one, or halves that an op
/// combines.
fn may_pair(draft: &Draft, target: &Pairs, split: &Split) -> bool {
    let Some(product) = split.product(draft) else { return false };
    let Some(attributes) = Product::of(&draft.module.ops[product].kind) else { return false };
    let has_c = draft.module.scaled_mma_operands(product).is_none_or(|operands| operands.c.is_some());
    let format = format(draft, product, attributes.block());
    let is_known = target.formats.iter().any(|rules| Some(rules.format) == format);
    let meets =
        || split.alternates() || (meet(draft, split.values(draft)) && is_constant_weight(draft, product));
    !has_c && is_known && meets()
}

/// Returns whether elementwise ops lead from two values to the same op, and nothing else uses the values on the way.
fn meet(draft: &Draft, values: [Value; 2]) -> bool {
    let reached = values.map(|mut value| {
        let mut ops = Vec::new();
        while ops.len() <= MOST_STEPS && draft.users(value).len() == 1 && !draft.is_output(value) {
            let Some(op) = draft.users(value).first().copied() else { break };
            let operation = &draft.module.ops[op];
            if !matches!(
                operation.kind,
                OpKind::Unary(_) | OpKind::Binary(_) | OpKind::Clamp { .. } | OpKind::Convert
            ) {
                break;
            }
            ops.push(op);
            value = operation.results[0];
        }
        ops
    });
    reached[0].iter().any(|op| reached[1].contains(op))
}

/// Returns the halves that an op combines, if a kernel of the target computes all three.
fn find<'a>(draft: &Draft, target: &'a Pairs, join: Op) -> Option<([Half; 2], Kind<'a>)> {
    let operation = &draft.module.ops[join];
    let (&[left, right], &[result]) = (&operation.operands[..], &operation.results[..]) else { return None };
    let ty = draft.module.ty(result);
    let halves = [half(draft, left, &ty.shape)?, half(draft, right, &ty.shape)?];
    let [even, odd] = halves;
    let attributes = Product::of(&draft.module.ops[even.product].kind)?;
    let of = |half: Half| draft.module.scaled_mma_operands(half.product);
    let (of_even, of_odd) = (of(even)?, of(odd)?);
    let element = |half: Half| draft.module.ty(half.value).element;
    let of_rows = |it: ScaledMmaOperands| (it.a, it.sfa, it.offsets, it.sfa_ends, it.c);
    // Rows of no group are 0 for any alpha, so alpha cannot become a step of their epilogue.
    let differ_in_alpha = of_even.offsets.is_some() && of_even.alpha != of_odd.alpha;
    if of_rows(of_even) != of_rows(of_odd)
        || of_even.c.is_some()
        || differ_in_alpha
        || element(even) != element(odd)
    {
        return None;
    }
    let columns = ty.shape.last()?.as_fixed()?;
    let is_whole = |half: Half| half.slice.is_none() && draft.users(half.value).len() == 1;
    let are_apart = even.product != odd.product && is_whole(even) && is_whole(odd);
    // Both slices of one product, which nothing else uses.
    let product = draft.module.ops[even.product].results[0];
    let are_of_one = even.product == odd.product
        && even.first_row != odd.first_row
        && even.slice.is_some()
        && odd.slice.is_some()
        && draft.users(product).len() == 2
        && draft.module.ty(product).shape.last()?.as_fixed() == columns.checked_mul(2);
    if !are_apart && !are_of_one {
        return None;
    }
    let format = format(draft, even.product, attributes.block())?;
    if format != self::format(draft, odd.product, attributes.block())? {
        return None;
    }
    let rules = target.formats.iter().find(|rules| rules.format == format)?;
    let kind = Kind { attributes, rules, columns };
    let fits = halves.iter().all(|half| fits(draft, &kind, ty, half.product))
        && halves.iter().all(|half| joins(draft, &kind, join, &ty.shape, *half))
        && halves.iter().all(|half| is_constant_weight(draft, half.product));
    fits.then_some((halves, kind))
}

fn format(draft: &Draft, product: Op, block: u32) -> Option<BlockFormat> {
    let operands = draft.module.scaled_mma_operands(product)?;
    let element = |value: Value| draft.module.ty(value).element;
    let [a, b, scale] = [operands.a, operands.b, operands.sfb].map(element);
    Some(BlockFormat { a, b, scale, block })
}

/// Follows a value back through elementwise ops that nothing else uses, to a product or a half of one.
fn half(draft: &Draft, value: Value, shape: &Shape) -> Option<Half> {
    let mut value = value;
    for _ in 0..=MOST_STEPS {
        let is_alone = draft.users(value).len() == 1 && !draft.is_output(value);
        if !is_alone || draft.module.ty(value).shape != *shape {
            return None;
        }
        let (op, kind) = draft.definition(value)?;
        let operands = &draft.module.ops[op].operands;
        match kind {
            kind if Product::of(kind).is_some() => {
                return Some(Half { product: op, slice: None, value, first_row: 0 });
            }
            OpKind::Slice { ranges } => return sliced(draft, op, value, ranges),
            OpKind::Unary(_) | OpKind::Clamp { .. } | OpKind::Convert => value = *operands.first()?,
            OpKind::Binary(_) => value = continued(draft, operands, shape)?,
            _ => return None,
        }
    }
    None
}

/// The operand of a binary op that a product may have led to: the only one with the shape of D that such an op computes.
fn continued(draft: &Draft, operands: &[Value], shape: &Shape) -> Option<Value> {
    let is_step = |kind: &OpKind| {
        Product::of(kind).is_some()
            || matches!(
                kind,
                OpKind::Slice { .. }
                    | OpKind::Unary(_)
                    | OpKind::Clamp { .. }
                    | OpKind::Convert
                    | OpKind::Binary(_)
            )
    };
    let is_computed = |value: &&Value| {
        draft.module.ty(**value).shape == *shape
            && draft.definition(**value).is_some_and(|(_, kind)| is_step(kind))
    };
    let mut computed = operands.iter().filter(is_computed);
    let value = *computed.next()?;
    computed.next().is_none().then_some(value)
}

/// A slice that takes the first or the last half of the columns of a product.
fn sliced(draft: &Draft, slice: Op, value: Value, ranges: &[SliceRange]) -> Option<Half> {
    let product = draft.module.ops[slice].operands[0];
    let (op, _) = draft.definition(product).filter(|(_, kind)| Product::of(kind).is_some())?;
    let shape = &draft.module.ty(product).shape;
    let n = shape.last()?.as_fixed()?;
    let &[SliceRange { axis, start, end, step: 1 }] = ranges else { return None };
    let is_half = n.is_multiple_of(2) && [(0, n / 2), (n / 2, n)].contains(&(start, end));
    (is_half && axis as usize + 1 == shape.len() && !draft.is_output(product)).then_some(Half {
        product: op,
        slice: Some(slice),
        value,
        first_row: start,
    })
}

/// Returns whether the target computes the product of both weights, and writes the combined columns.
fn fits(draft: &Draft, kind: &Kind<'_>, d: &TensorType, product: Op) -> bool {
    let Some(operands) = draft.module.scaled_mma_operands(product) else { return false };
    let Kind { rules, columns, .. } = kind;
    if matches!(kind.attributes, Product::OfGroups(mma) if mma.masked && !rules.has_masked) {
        return false;
    }
    let ([leading @ .., m, k], [of_b @ .., _, _]) =
        (&draft.module.ty(operands.a).shape[..], &draft.module.ty(operands.b).shape[..])
    else {
        return false;
    };
    let is_one = |dim: &Dim| dim.as_fixed() == Some(1);
    // The blocked scales of a flattened batch have no padding. Those of groups do not depend on it.
    let has_blocks = operands.sfa.is_some() && operands.offsets.is_none();
    let flattens = !has_blocks || leading.iter().all(is_one) || m.is_multiple_of(SCALE_ROWS);
    let matrices = match (of_b, operands.offsets) {
        ([], None) => Some(1),
        // Weights with a symbol are not rearranged once.
        ([groups], Some(_)) => {
            groups.as_fixed().filter(|groups| rules.max_groups.is_some_and(|most| *groups <= most))
        }
        _ => None,
    };
    let Some(matrices) = matrices.filter(|matrices| *matrices > 0) else { return false };
    let Some(k) = k.as_fixed().filter(|k| *k > 0 && k.is_multiple_of(rules.k_multiple)) else { return false };
    let Some(n) = columns.checked_mul(2) else { return false };
    let scales = scale_bytes([Some(matrices), Some(n), Some(k)], kind.attributes.block());
    let accumulates = rules.output(draft.module.ty(draft.module.ops[product].results[0]).element);
    flattens
        && 0 < *columns
        && n <= rules.max_extent.min(rules.grid.max_columns)
        && scales.is_some_and(|bytes| bytes <= rules.max_scale_bytes)
        && accumulates.is_some()
        && rules.output(d.element).is_some_and(|rule| columns.is_multiple_of(rule.n_multiple))
}

/// Returns whether an epilogue computes the combining op and every step between it and a half.
fn joins(draft: &Draft, kind: &Kind<'_>, join: Op, shape: &Shape, half: Half) -> bool {
    let epilogue = &kind.rules.epilogue;
    let mut value = half.value;
    for _ in 0..=MOST_STEPS {
        let Some(op) = draft.users(value).first().copied() else { return false };
        let operation = &draft.module.ops[op];
        let element = draft.module.ty(operation.results[0]).element;
        let is_step = match &operation.kind {
            OpKind::Unary(kind) => epilogue.unary.contains(kind),
            OpKind::Binary(kind) => epilogue.binary.contains(kind),
            OpKind::Clamp { .. } => epilogue.clamp,
            OpKind::Convert => true,
            _ => false,
        };
        // FP8 can only be written or widened, which an op between the halves would do for nothing.
        if !is_step || !epilogue.elements.contains(&element) || !element.is_arithmetic() {
            return false;
        }
        if op == join {
            return true;
        }
        let others = operation.operands.iter().filter(|operand| **operand != value);
        if !others.clone().all(|other| is_readable(draft, kind, *other, shape)) {
            return false;
        }
        value = operation.results[0];
    }
    false
}

fn is_readable(draft: &Draft, kind: &Kind<'_>, value: Value, d: &Shape) -> bool {
    let ty = draft.module.ty(value);
    if ty.layout.is_some() {
        return false;
    }
    let Some(shape) = operand_shape(&ty.shape, d) else { return false };
    let rule = kind.rules.epilogue.operand(shape).and_then(|rule| rule.element(ty.element));
    rule.is_some_and(|rule| shape != OperandShape::Matrix || kind.columns.is_multiple_of(rule.n_multiple))
}

/// Returns whether B and its scales depend on params only.
fn is_constant_weight(draft: &Draft, product: Op) -> bool {
    let Some(operands) = draft.module.scaled_mma_operands(product) else { return false };
    let mut open = vec![operands.b, operands.sfb];
    let mut left = MOST_OPS;
    while let Some(value) = open.pop() {
        if left == 0 {
            return false;
        }
        left -= 1;
        match draft.module.defining_op(value) {
            Some(op) => open.extend(&draft.module.ops[op].operands),
            None if draft.module.is_param(value) => {}
            None => return false,
        }
    }
    true
}

fn rewrite(draft: &mut Draft, halves: [Half; 2], kind: &Kind<'_>, rule: usize) {
    let operands = halves.map(|half| draft.module.scaled_mma_operands(half.product));
    let [Some(of_even), Some(of_odd)] = operands else { return };
    let [even, odd] = halves;
    let position = draft.note(even.product).position.min(draft.note(odd.product).position);
    let mut from: Vec<Op> =
        halves.iter().flat_map(|half| [Some(half.product), half.slice]).flatten().collect();
    from.sort_unstable();
    from.dedup();
    let mut writer = Writer { draft, position, from, rule, rows: HashMap::new() };
    let b = writer.interleaved([(of_even.b, even.first_row), (of_odd.b, odd.first_row)], kind.columns);
    let scales = [of_even.sfb, of_odd.sfb].map(|scales| writer.linear(scales));
    let linear = writer.interleaved([(scales[0], even.first_row), (scales[1], odd.first_row)], kind.columns);
    let sfb = writer.swizzled(linear, ScaleLayout::Blocked);
    // An alpha of its own is a step of the epilogue.
    let shared = of_even.alpha.filter(|alpha| of_odd.alpha == Some(*alpha));
    let own = if shared.is_some() { [None; 2] } else { [of_even.alpha, of_odd.alpha] };
    let ty = writer.draft.module.ty(even.value).clone();
    let accumulator = if own == [None; 2] { ty.element } else { ElementType::F32 };
    let read = [Some(of_even.a), of_even.sfa, Some(b), Some(sfb), of_even.offsets, shared, of_even.sfa_ends];
    let mut wide = TensorType::new(ty.shape.clone(), accumulator);
    if let Some(last) = wide.shape.last_mut() {
        *last = Dim::fixed(2 * kind.columns);
    }
    let axis = wide.shape.len() - 1;
    let name = format!("{}.pair", writer.draft.module.name_of(even.value));
    let product =
        writer.add(kind.attributes.with(shared.is_some()), read.into_iter().flatten().collect(), &name, wide);
    for ((half, start), alpha) in halves.into_iter().zip([0, 1]).zip(own) {
        let range = SliceRange { axis: axis as u32, start, end: 2 * kind.columns, step: 2 };
        let mut steps = vec![(OpKind::Slice { ranges: vec![range] }, vec![product])];
        steps.extend(alpha.map(|alpha| (OpKind::Binary(BinaryKind::Mul), vec![alpha])));
        steps.extend((accumulator != ty.element).then(|| (OpKind::Convert, Vec::new())));
        writer.redefine(half, steps, TensorType::new(ty.shape.clone(), accumulator));
    }
    let from = writer.from.clone();
    draft.remove_unused(from);
}

impl Writer<'_> {
    /// Adds the steps after the product, the last of which defines the half's value.
    fn redefine(&mut self, half: Half, steps: Vec<(OpKind, Vec<Value>)>, ty: TensorType) {
        let name = self.draft.module.name_of(half.value).to_owned();
        let last = steps.len() - 1;
        let mut before: Option<Value> = None;
        for (index, (kind, others)) in steps.into_iter().enumerate() {
            let operands: Vec<Value> = before.into_iter().chain(others).collect();
            if index < last {
                let name = format!("{name}.{}", if index == 0 { "columns" } else { "scaled" });
                before = Some(self.add(kind, operands, &name, ty.clone()));
                continue;
            }
            let note = self.note(self.from.clone());
            let made = self.draft.redefine(&[half.value], kind, operands, note);
            let replaced = half.slice.unwrap_or(half.product);
            self.draft.note_mut(replaced).successor = Some(made);
            if half.slice.is_some() {
                self.draft.note_mut(half.product).successor = Some(made);
            }
        }
    }
}
