//! Rewrites without an e-graph: block quantization and dequantization that a program writes out op by op become
//! `block_quantize` and `block_dequantize`, and norms become `layer_norm` and `softmax`. The e-graph follows values
//! forwards from multiplications; these rewrites start at the last op of a form, such as a conversion to FP4 or a
//! product with scales, and follow its operands.

mod dequantization;
mod norms;
mod quantization;
mod values;

use std::collections::{HashMap, HashSet};

use fourfold_ir::{
    BinaryKind, ConstantValue, Dim, ElementType, Module, Op, OpKind, Operation, ReduceKind, ScaleLayout,
    Shape, TensorType, Value, text,
};

use self::dequantization::{Dequantization, dequantization};
use self::norms::{Norm, layer_norm, softmax};
use self::quantization::{Difference, Quantization, quantization};
use self::values::Graph;
use super::draft::{Definition, Draft, Note};

/// A rule of this module, as listed by [`super::normalize_rules`].
pub(crate) struct WrittenRule {
    pub(crate) name: &'static str,
    pub(crate) why: &'static str,
    pub(crate) contract: bool,
}

/// All rules of this module. Their positions follow those of the sharing rules.
pub(crate) const WRITTEN_RULES: &[WrittenRule] = &[
    WrittenRule {
        name: "written-quantization-is-block-quantize",
        why: "with guard = false, block_quantize means these f32 ops in this order, one rounding each; bounds of a \
              conversion that saturates change nothing, and reshapes keep blocks of 16 in row-major order",
        contract: false,
    },
    WrittenRule {
        name: "written-dequantization-is-block-dequantize",
        why: "both round code · scale once; codes and scales are converted exactly, and scales with a layout are read \
              unsigned by both",
        contract: false,
    },
    WrittenRule {
        name: "equal-quantizations-are-one",
        why: "the same values, per-tensor scale and formula give the same codes and scales",
        contract: false,
    },
    WrittenRule {
        name: "written-layer-norm",
        why: "drops the roundings of the mean, the differences, their squares, the variance, the root, the quotient \
              and its product with the weight. Range: eps is normal in f32, no square of a difference overflows, weights \
              are finite, and no product with them overflows",
        contract: true,
    },
    WrittenRule {
        name: "written-softmax",
        why: "drops the roundings of x - max, exp and the sum",
        contract: true,
    },
];

const QUANTIZE: usize = 0;
const DEQUANTIZE: usize = 1;
const MERGE: usize = 2;
const LAYER_NORM: usize = 3;
const SOFTMAX: usize = 4;

/// Applies the enabled rules; returns true if something changed. `first` is the position of the first rule.
pub(crate) fn recognize(draft: &mut Draft, first: usize, contract: bool) -> bool {
    let mut scalars = HashMap::new();
    let mut changed = false;
    for op in live(draft, is_anchor) {
        if let Ok(found) = quantization(&draft.module, op) {
            quantize(draft, op, found, first + QUANTIZE, &mut scalars);
            changed = true;
        }
    }
    for op in live(draft, |module, op| module.ops[op].kind == OpKind::Binary(BinaryKind::Mul)) {
        if let Some(found) = dequantization(&draft.module, op) {
            dequantize(draft, op, found, first + DEQUANTIZE);
            changed = true;
        }
    }
    if contract {
        changed |= norms(draft, first);
    }
    changed | merge(draft, first + MERGE)
}

/// Recognizes norms. The bias of a layer norm comes after its weight, so sums are tried first.
fn norms(draft: &mut Draft, first: usize) -> bool {
    let is_reduction = |(op, operation): (Op, &Operation)| {
        matches!(operation.kind, OpKind::Reduce { .. }) && !draft.note(op).gone
    };
    if !draft.module.ops.iter().any(is_reduction) {
        return false;
    }
    let mut changed = false;
    for kinds in [&[BinaryKind::Add][..], &[BinaryKind::Mul, BinaryKind::Div]] {
        let is_last = |module: &Module, op: Op| match &module.ops[op].kind {
            OpKind::Binary(kind) => kinds.contains(kind),
            _ => false,
        };
        for op in live(draft, is_last) {
            if draft.note(op).gone {
                continue;
            }
            let found = match layer_norm(&draft.module, op) {
                Some(norm) => Some((norm, first + LAYER_NORM)),
                None => softmax(&draft.module, op).map(|norm| (norm, first + SOFTMAX)),
            };
            if let Some((norm, rule)) = found.filter(|(norm, _)| is_alone(draft, &norm.ops, op)) {
                changed |= write_norm(draft, op, norm, rule);
            }
        }
    }
    changed
}

/// Returns whether only the matched ops use the results of the matched ops other than the last.
fn is_alone(draft: &Draft, ops: &[Op], last: Op) -> bool {
    let all: HashSet<Op> = ops.iter().copied().collect();
    ops.iter()
        .filter(|op| **op != last)
        .flat_map(|op| &draft.module.ops[*op].results)
        .all(|result| !draft.is_output(*result) && draft.users(*result).iter().all(|user| all.contains(user)))
}

/// Replaces a norm that is written out. Returns false if an absent weight would have a symbolic extent.
fn write_norm(draft: &mut Draft, last: Op, found: Norm, rule: usize) -> bool {
    let position = draft.note(last).position;
    let result = draft.module.ops[last].results[0];
    let mut operands = vec![found.x];
    if matches!(found.kind, OpKind::LayerNorm { .. }) {
        let Some(channels) = draft.module.ty(found.x).shape.last().cloned() else { return false };
        let is_complete = found.weight.is_some() && found.bias.is_some();
        if !is_complete && channels.as_fixed().is_none() {
            return false;
        }
        for (given, default, what) in [(found.weight, 1.0, "weight"), (found.bias, 0.0, "bias")] {
            let shape = Shape::from([channels.clone()]);
            let name = format!("{}.{what}", draft.module.name_of(result));
            operands.push(match given {
                Some(value) if draft.module.ty(value).rank() == 1 => value,
                Some(value) => {
                    let ty = TensorType::new(shape, draft.module.ty(value).element);
                    insert(draft, OpKind::Reshape, value, (name, ty), position, rule)
                }
                None => {
                    let ty = TensorType::new(shape, draft.module.ty(found.x).element);
                    let kind = OpKind::Constant(ConstantValue::Splat(default));
                    let note = Note { position, made: Some((Vec::new(), vec![rule])), ..Note::default() };
                    let op = draft.add(kind, Vec::new(), &name, ty, note);
                    draft.module.ops[op].results[0]
                }
            });
        }
    }
    let note = Note { position, ..Note::default() };
    let made = draft.define(found.kind, operands, vec![Definition::Known(result)], note);
    replace(draft, found.ops, made, rule);
    true
}

/// The reason why a conversion to FP4 ends no quantization that equals a `block_quantize`; `None` if it does, or if no
/// block quantization is before it.
pub(crate) fn near_miss(module: &Module, op: Op) -> Option<String> {
    if !is_anchor(module, op) || !follows_quantization(module, op) {
        return None;
    }
    let Difference { op, expected } = quantization(module, op).err()?;
    let found = text::print_op(module, op);
    Some(format!("the quantization written out before it differs in `{found}`; expected {expected}"))
}

/// Returns whether a conversion to FP4 follows an extreme of a block, or a reduction and FP8 scales.
fn follows_quantization(module: &Module, op: Op) -> bool {
    /// The maximum number of ops to visit, so that the time is linear.
    const MOST_VISITED: usize = 48;
    let mut open = std::collections::VecDeque::from([op]);
    let mut seen = std::collections::HashSet::from([op]);
    let (mut reduces, mut scales) = (false, false);
    while let Some(op) = open.pop_front() {
        let operation = &module.ops[op];
        if let OpKind::Reduce { kind, .. } = operation.kind {
            reduces = true;
            scales |= matches!(kind, ReduceKind::Max | ReduceKind::Min | ReduceKind::Amax);
        }
        scales |= operation.kind == OpKind::Convert
            && operation.results.iter().any(|result| {
                matches!(module.ty(*result).element, ElementType::F8E4M3FN | ElementType::F8E5M2)
            });
        for producer in operation.operands.iter().filter_map(|operand| module.defining_op(*operand)) {
            if seen.len() < MOST_VISITED && seen.insert(producer) {
                open.push_back(producer);
            }
        }
    }
    reduces && scales
}

/// Returns whether an op converts to FP4.
fn is_anchor(module: &Module, op: Op) -> bool {
    let operation = &module.ops[op];
    let is_fp4 = |result: &Value| module.ty(*result).element == ElementType::F4E2M1FN;
    operation.kind == OpKind::Convert && operation.results.iter().any(is_fp4)
}

/// The live ops of a kind, in program order.
fn live(draft: &Draft, is_wanted: impl Fn(&Module, Op) -> bool) -> Vec<Op> {
    let is_live = |op: &Op| !draft.note(*op).gone && is_wanted(&draft.module, *op);
    let mut ops: Vec<Op> = draft.module.ops.keys().filter(is_live).collect();
    ops.sort_by_key(|op| (draft.note(*op).position, *op));
    ops
}

/// Replaces a written-out quantization by a `block_quantize`.
fn quantize(
    draft: &mut Draft,
    anchor: Op,
    found: Quantization,
    rule: usize,
    scalars: &mut HashMap<Value, Value>,
) {
    let position = draft.note(found.scales).position;
    let mut operands = vec![found.values];
    operands.extend(found.global.map(|global| scalar_operand(draft, global, position, rule, scalars)));
    let (written_codes, written_scales) =
        (draft.module.ops[anchor].results[0], draft.module.ops[found.scales].results[0]);
    let shape = draft.module.ty(found.values).shape.clone();
    let mut scale_shape = shape.clone();
    let last = scale_shape.last_mut().expect("a match has blocks along its last axis");
    *last = last.divided_by(16).expect("a match has whole blocks");
    let codes = place(draft, written_codes, TensorType::new(shape, ElementType::F4E2M1FN), "codes");
    let scales_type = TensorType::scales(scale_shape, ElementType::F8E4M3FN, ScaleLayout::Linear);
    let (uses, reshapes) = scale_uses(draft, written_scales);
    let known =
        uses.iter().find(|swizzle| *draft.module.ty(draft.module.ops[**swizzle].results[0]) == scales_type);
    let scales = match known {
        Some(swizzle) => Definition::Known(draft.module.ops[*swizzle].results[0]),
        None => {
            let name = format!("{}.linear", draft.module.name_of(written_scales));
            Definition::New(name, scales_type.clone())
        }
    };
    let mut replaced = found.ops.clone();
    replaced.extend(known.into_iter().chain(&reshapes));
    let kind = OpKind::BlockQuantize { block: 16, scale_rounding: None, formula: found.formula };
    let note = Note { position, ..Note::default() };
    let made = draft.define(kind, operands, vec![codes, scales], note);
    let [codes, scales] = draft.module.ops[made].results[..] else { return };
    replaced.extend(settle(draft, written_codes, codes, rule));
    for swizzle in uses {
        attach(draft, swizzle, scales, rule);
    }
    draft.remove_unused(replaced.iter().copied());
    if draft.is_output(written_scales) || !draft.users(written_scales).is_empty() {
        as_numbers(draft, written_scales, scales, position, rule);
    }
    replace(draft, replaced, made, rule);
}

/// Replaces a written-out dequantization by a `block_dequantize`.
fn dequantize(draft: &mut Draft, product: Op, found: Dequantization, rule: usize) {
    let position = draft.note(product).position;
    let written = draft.module.ops[product].results[0];
    let scales = draft.module.ty(found.scales);
    let scales = if scales.shape == found.scale_shape {
        found.scales
    } else {
        let ty = TensorType::scales(found.scale_shape, scales.element, ScaleLayout::Linear);
        let name = format!("{}.reshaped", draft.module.name_of(found.scales));
        insert(draft, OpKind::Reshape, found.scales, (name, ty), position, rule)
    };
    let shape = draft.module.ty(found.codes).shape.clone();
    let values = place(draft, written, TensorType::new(shape, draft.module.ty(written).element), "values");
    let note = Note { position, ..Note::default() };
    let kind = OpKind::BlockDequantize { block: found.block };
    let made = draft.define(kind, vec![found.codes, scales], vec![values], note);
    let values = draft.module.ops[made].results[0];
    let mut replaced = found.ops;
    replaced.extend(settle(draft, written, values, rule));
    replace(draft, replaced, made, rule);
}

/// Replaces equal quantizations by the first. One that defines an output stays, to keep the name.
fn merge(draft: &mut Draft, rule: usize) -> bool {
    let mut known: HashMap<(String, Vec<Value>, Vec<ElementType>), Op> = HashMap::new();
    let mut changed = false;
    for op in live(draft, |module, op| matches!(module.ops[op].kind, OpKind::BlockQuantize { .. })) {
        let operation = &draft.module.ops[op];
        let types = operation.results.iter().map(|result| draft.module.ty(*result));
        let key = (
            format!("{:?} {:?}", operation.kind, types.clone().map(|ty| ty.layout).collect::<Vec<_>>()),
            operation.operands.clone(),
            types.map(|ty| ty.element).collect(),
        );
        let first = *known.entry(key).or_insert(op);
        let results = draft.module.ops[op].results.clone();
        let is_used = results.iter().any(|result| !draft.users(*result).is_empty());
        if first == op || !is_used || results.iter().any(|result| draft.is_output(*result)) {
            continue;
        }
        for (result, by) in results.into_iter().zip(draft.module.ops[first].results.clone()) {
            draft.replace(result, by);
        }
        let note = draft.note_mut(op);
        note.successor = Some(first);
        note.reasons = vec![rule];
        draft.remove_unused([op]);
        changed = true;
    }
    changed
}

/// The value that a new op of this type should define: the written value, a reshape of it, or a new one.
fn place(draft: &Draft, written: Value, ty: TensorType, what: &str) -> Definition {
    if *draft.module.ty(written) == ty {
        return Definition::Known(written);
    }
    match reshapes(draft, written).find(|op| *draft.module.ty(draft.module.ops[*op].results[0]) == ty) {
        Some(op) => Definition::Known(draft.module.ops[op].results[0]),
        None => Definition::New(format!("{}.{what}", draft.module.name_of(written)), ty),
    }
}

/// Makes a written value a reshape of the value that a new op defines. Returns the op that defined the latter before.
fn settle(draft: &mut Draft, written: Value, made: Value, rule: usize) -> Option<Op> {
    if written == made {
        return None;
    }
    let without_results = reshapes(draft, written).find(|op| draft.module.ops[*op].results.is_empty());
    draft.remove_unused(without_results);
    if draft.is_output(written) || !draft.users(written).is_empty() {
        let position = draft.module.defining_op(written).map_or(0, |op| draft.note(op).position);
        let note = Note { position, made: Some((Vec::new(), vec![rule])), ..Note::default() };
        draft.redefine(&[written], OpKind::Reshape, vec![made], note);
    }
    without_results
}

fn reshapes(draft: &Draft, value: Value) -> impl Iterator<Item = Op> + '_ {
    draft.users(value).iter().copied().filter(|user| draft.module.ops[*user].kind == OpKind::Reshape)
}

/// The conversions of written scales, or of reshapes of them, to a scale layout; and these reshapes.
fn scale_uses(draft: &Draft, scales: Value) -> (Vec<Op>, Vec<Op>) {
    const MOST_VALUES: usize = 8;
    let (mut values, mut swizzles, mut reshapes) = (vec![scales], Vec::new(), Vec::new());
    for index in 0..MOST_VALUES {
        let Some(value) = values.get(index).copied() else { break };
        for user in draft.users(value) {
            let operation = &draft.module.ops[*user];
            match operation.kind {
                OpKind::Reshape => {
                    values.push(operation.results[0]);
                    reshapes.push(*user);
                }
                OpKind::SwizzleScales => swizzles.push(*user),
                _ => {}
            }
        }
    }
    (swizzles, reshapes)
}

/// Makes a conversion of written scales read the scales of the new op instead.
fn attach(draft: &mut Draft, swizzle: Op, scales: Value, rule: usize) {
    let Some(result) = draft.module.ops[swizzle].results.first().copied() else { return };
    let (ty, have) = (draft.module.ty(result).clone(), draft.module.ty(scales).clone());
    let position = draft.note(swizzle).position;
    let shaped = if ty.shape == have.shape {
        scales
    } else {
        let name = format!("{}.reshaped", draft.module.name_of(scales));
        let to = TensorType { shape: ty.shape.clone(), ..have };
        insert(draft, OpKind::Reshape, scales, (name, to), position, rule)
    };
    if ty.layout == Some(ScaleLayout::Blocked) {
        draft.set_operand(swizzle, 0, shaped);
    } else if !draft.is_output(result) {
        draft.replace(result, shaped);
        let successor = draft.module.defining_op(shaped);
        let note = draft.note_mut(swizzle);
        note.successor = successor;
        note.reasons = vec![rule];
        draft.remove_unused([swizzle]);
    } else if shaped != scales {
        // The reshape takes over the name of the output.
        let note = Note { position, made: Some((vec![swizzle], vec![rule])), ..Note::default() };
        let made = draft.redefine(&[result], OpKind::Reshape, vec![scales], note);
        draft.note_mut(swizzle).successor = Some(made);
        let unused = draft.module.defining_op(shaped);
        draft.remove_unused([swizzle].into_iter().chain(unused));
    }
    // Otherwise two outputs are the same scales, and the second keeps reading the numbers.
}

/// Defines written scales, which are numbers without a layout, by the scales of the new op.
fn as_numbers(draft: &mut Draft, written: Value, scales: Value, position: usize, rule: usize) {
    let ty = TensorType::new(draft.module.ty(scales).shape.clone(), ElementType::F8E4M3FN);
    let note = Note { position, made: Some((Vec::new(), vec![rule])), ..Note::default() };
    if *draft.module.ty(written) == ty {
        draft.redefine(&[written], OpKind::SwizzleScales, vec![scales], note);
        return;
    }
    let name = format!("{}.flat", draft.module.name_of(written));
    let numbers = insert(draft, OpKind::SwizzleScales, scales, (name, ty), position, rule);
    draft.redefine(&[written], OpKind::Reshape, vec![numbers], note);
}

/// The per-tensor scale as an operand: f32 with at most one axis.
fn scalar_operand(
    draft: &mut Draft,
    global: Value,
    position: usize,
    rule: usize,
    scalars: &mut HashMap<Value, Value>,
) -> Value {
    let base = Graph::new(&draft.module).scalar(global).unwrap_or(global);
    if let Some(known) = scalars.get(&base) {
        return *known;
    }
    let mut current = base;
    if draft.module.ty(current).element != ElementType::F32 {
        let ty = TensorType::new(draft.module.ty(current).shape.clone(), ElementType::F32);
        let name = format!("{}.f32", draft.module.name_of(current));
        current = insert(draft, OpKind::Convert, current, (name, ty), position, rule);
    }
    if draft.module.ty(current).rank() > 1 {
        let ty = TensorType::new(Shape::from([Dim::fixed(1)]), ElementType::F32);
        let name = format!("{}.reshaped", draft.module.name_of(current));
        current = insert(draft, OpKind::Reshape, current, (name, ty), position, rule);
    }
    scalars.insert(base, current);
    current
}

/// Inserts an op with one operand and a new result, which it returns.
fn insert(
    draft: &mut Draft,
    kind: OpKind,
    operand: Value,
    (name, ty): (String, TensorType),
    position: usize,
    rule: usize,
) -> Value {
    let note = Note { position, made: Some((Vec::new(), vec![rule])), ..Note::default() };
    let op = draft.add(kind, vec![operand], &name, ty, note);
    draft.module.ops[op].results[0]
}

/// Removes the replaced ops that nothing uses, and records that the new op replaces them.
fn replace(draft: &mut Draft, mut replaced: Vec<Op>, made: Op, rule: usize) {
    draft.remove_unused(replaced.iter().copied());
    replaced.sort_unstable();
    replaced.dedup();
    replaced.retain(|op| draft.note(*op).gone);
    for op in &replaced {
        let note = draft.note_mut(*op);
        note.successor = Some(made);
        note.reasons.clear();
    }
    draft.note_mut(made).made = Some((replaced, vec![rule]));
}
