//! The rules of normalization. Each gives the same bits as what it replaces, for every input, NaN and infinity
//! included, but for those marked `contract`, which drop a rounding that the program states. The one exception is the sum
//! of a product with K above 1188, whose rule says how close it stays.
//!
//! A contract rule that drops only roundings keeps every NaN and infinity: its result is one exactly where what it
//! replaces is. Those that drop a range as well, which a factor or a scale can leave, say what must not overflow.

use egg::Id;
use fourfold_ir::{BinaryKind, BlockFormat, Dim, ElementType, ScaleLayout, TensorType, dim_product};

use super::activations;
use super::language::{Attribute, OwnAttribute, Term};
use super::rule_match::{Rule, RuleMatch};

const fn exact(
    name: &'static str,
    left: &'static str,
    apply: fn(&mut RuleMatch<'_>) -> Vec<Id>,
    why: &'static str,
) -> Rule {
    Rule { name, why, contract: false, left, apply }
}

const fn contract(
    name: &'static str,
    left: &'static str,
    apply: fn(&mut RuleMatch<'_>) -> Vec<Id>,
    why: &'static str,
) -> Rule {
    Rule { name, why, contract: true, left, apply }
}

const MMA_OF_DEQUANTIZED: &str = "(mma ?e (dequantize ?d ?v ?a ?sa ?ga) (dequantize ?d ?v ?b ?sb ?gb))";

/// Every rule, in the order in which proofs prefer them.
pub(crate) const RULES: &[Rule] = &[
    exact(
        "mma-of-dequantized-is-scaled-mma",
        MMA_OF_DEQUANTIZED,
        |matched| scaled_mma(matched, |product| product.nvfp4 && !product.factors && product.wide),
        "code · scale has 6 significant bits, so that no dequantized element was rounded; both sums are exact while \
         K <= 1188, where f64 holds every partial sum of multiples of 2^-20 up to 2688². Beyond, the f64 sum of mma \
         may be off by K·2^-53·Σ|a·b|, which is 2^-29 of what comparing two multiplications allows",
    ),
    contract(
        "factors-of-dequantized-are-alpha",
        MMA_OF_DEQUANTIZED,
        |matched| scaled_mma(matched, |product| product.nvfp4 && product.factors),
        "drops the rounding of each dequantized element code · scale · g, rounds gA·gB and alpha·acc instead, and \
         rounds the sum to f32 before it is rounded to a narrower result. Range: no code · scale · g overflows or is \
         infinite, and gA·gB does not overflow or underflow",
    ),
    contract(
        "narrow-mma-is-scaled-mma",
        MMA_OF_DEQUANTIZED,
        |matched| scaled_mma(matched, |product| product.nvfp4 && !product.factors && !product.wide),
        "the sum is rounded to f32 first and to the result type then, instead of once. Range: in f16, a sum that is \
         less than 2^-8 from ±65520, where f16 overflows, may be rounded to either side",
    ),
    contract(
        "mma-of-mx-is-scaled-mma",
        MMA_OF_DEQUANTIZED,
        |matched| scaled_mma(matched, |product| !product.nvfp4),
        "drops the range of code · 2^e, of which the dequantized type holds only a part, and with factors their \
         roundings. Range: no code · 2^e · g overflows or is infinite, and with factors neither gA·gB nor the sum \
         without them overflows or underflows",
    ),
    exact(
        "factor-is-alpha",
        "(binary mul (scaled_mma f32 ?v ?a ?sa ?b ?sb none none none) ?s)",
        |matched| factor_is_alpha(matched, "?s"),
        "rn(acc · s) is what alpha means, and the f32 result of a scaled_mma without alpha is acc",
    ),
    exact(
        "factor-before-is-alpha",
        "(binary mul ?s (scaled_mma f32 ?v ?a ?sa ?b ?sb none none none))",
        |matched| factor_is_alpha(matched, "?s"),
        "as factor-is-alpha: a product does not depend on the order of its factors",
    ),
    exact(
        "factor-joins-dequantize",
        "(binary mul (dequantize f32 ?v ?c ?sc none) ?s)",
        factor_joins_dequantize,
        "code · scale of NVFP4 is exact in f32, so that rn(rn(code · scale) · s) is rn(code · scale · s)",
    ),
    exact(
        "factor-before-joins-dequantize",
        "(binary mul ?s (dequantize f32 ?v ?c ?sc none))",
        factor_joins_dequantize,
        "as factor-joins-dequantize",
    ),
    exact(
        "widening-joins-dequantize",
        "(convert ?e (dequantize ?w ?v ?c ?sc none))",
        widening_joins_dequantize,
        "code · scale of NVFP4 is exact in f16, bf16 and f32 alike",
    ),
    exact(
        "transposes-merge",
        "(transpose ?p (transpose ?q ?x))",
        transposes_merge,
        "elements are moved, and one permutation moves them to where two did",
    ),
    exact(
        "identity-transpose-vanishes",
        "(transpose ?p ?x)",
        |matched| {
            let identity = |axes: Vec<u32>| axes.iter().enumerate().all(|(i, axis)| *axis as usize == i);
            if matched.permutation(matched.get("?p")).is_some_and(identity) {
                vec![matched.get("?x")]
            } else {
                vec![]
            }
        },
        "no element moves",
    ),
    exact(
        "reshapes-merge",
        "(reshape ?s (reshape ?t ?x))",
        |matched| {
            let reshape = Term::Reshape([matched.get("?s"), matched.get("?x")]);
            vec![matched.add(reshape)]
        },
        "the elements and their row-major order are those of x throughout",
    ),
    exact(
        "identity-reshape-vanishes",
        "(reshape ?s ?x)",
        |matched| {
            let x = matched.get("?x");
            let shape = matched.ty(x).map(|ty| ty.shape.clone());
            let same = shape.is_some_and(|shape| matched.shape_term(&shape) == matched.get("?s"));
            if same { vec![x] } else { vec![] }
        },
        "the shape is the same",
    ),
    exact(
        "identity-convert-vanishes",
        "(convert ?e ?x)",
        |matched| {
            let x = matched.get("?x");
            let Some(ty) = matched.ty(x) else { return vec![] };
            // Saturating, a convert of f8E5M2 to itself makes infinity finite.
            let changes = ty.layout.is_some() || ty.element == ElementType::F8E5M2;
            let same = matched.attribute(matched.get("?e")) == Some(Attribute::Element(ty.element));
            if same && !changes { vec![x] } else { vec![] }
        },
        "every value of a type is rounded to itself",
    ),
    exact(
        "convert-after-widening-is-one",
        "(convert ?e (convert ?w ?x))",
        |matched| {
            let x = matched.get("?x");
            let Some(ty) = matched.ty(x) else { return vec![] };
            let Some(Attribute::Element(wide)) = matched.attribute(matched.get("?w")) else { return vec![] };
            if ty.layout.is_some() || !holds_exactly(wide, ty.element) {
                return vec![];
            }
            let convert = Term::Convert([matched.get("?e"), x]);
            vec![matched.add(convert)]
        },
        "the wider type holds every value of the narrower one, so that the second convert sees the value of x",
    ),
    exact(
        "reshape-joins-dequantize",
        "(reshape ?s (dequantize ?e ?v ?c ?sc ?g))",
        reshape_joins_dequantize,
        "with the last extent kept, blocks stay whole, and linear scales lie in the order of their blocks",
    ),
    exact("reshape-moves-behind-unary", "(unary ?k ?x)", reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-clamp", "(clamp ?k ?x)", reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-convert", "(convert ?k ?x)", reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-binary", "(binary ?k ?x ?y)", reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-compare", "(compare ?k ?x ?y)", reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-select", "(select ?c ?x ?y)", reshape_moves, ELEMENT_BY_ELEMENT),
    exact(
        "swizzle-undoes-swizzle",
        "(swizzle ?l (swizzle ?m ?x))",
        |matched| {
            let x = matched.get("?x");
            let layout = matched.ty(x).and_then(|ty| ty.layout);
            let back = matched.attribute(matched.get("?l")).map(layout_of) == Some(layout);
            if back { vec![x] } else { vec![] }
        },
        "scales are moved there and back; the padding may differ, and consumers tolerate any",
    ),
    exact(
        "max-with-zero-is-relu",
        "(binary max ?x ?z)",
        |matched| activations::relu(matched, "?x", "?z"),
        "relu is max(x, +0), NaN and -0 included",
    ),
    exact(
        "max-of-zero-is-relu",
        "(binary max ?z ?x)",
        |matched| activations::relu(matched, "?x", "?z"),
        "max does not depend on the order of its operands",
    ),
    exact(
        "min-of-max-is-clamp",
        "(binary min ?m ?h)",
        |matched| activations::clamp(matched, BinaryKind::Max),
        "clamp is min(max(x, lo), hi); max gives x or lo, which the type holds, so that nothing is rounded between",
    ),
    exact(
        "max-of-min-is-clamp",
        "(binary max ?m ?h)",
        |matched| activations::clamp(matched, BinaryKind::Min),
        "with lo below hi, -0 being below +0, max(min(x, hi), lo) is x or the bound that x passed either way",
    ),
    contract(
        "sigmoid-written-with-div",
        "(binary div ?one (binary add ?p ?q))",
        |matched| activations::sigmoid(matched, true),
        "drops the roundings of exp(-x) and of 1 + exp(-x)",
    ),
    contract(
        "sigmoid-written-with-reciprocal",
        "(unary reciprocal (binary add ?p ?q))",
        |matched| activations::sigmoid(matched, false),
        "drops the roundings of exp(-x) and of 1 + exp(-x)",
    ),
    contract(
        "silu-written-with-sigmoid",
        "(binary mul ?x (unary sigmoid ?x))",
        activations::silu,
        "drops the rounding of sigmoid(x)",
    ),
    contract(
        "silu-written-with-sigmoid-before",
        "(binary mul (unary sigmoid ?x) ?x)",
        activations::silu,
        "drops the rounding of sigmoid(x)",
    ),
    contract(
        "silu-written-with-div",
        "(binary div ?x (binary add ?p ?q))",
        activations::silu_of_quotient,
        "drops the roundings of exp(-x) and of 1 + exp(-x)",
    ),
    contract(
        "gelu-written-with-erf",
        "(binary mul ?x ?y)",
        activations::gelu,
        "drops the roundings of x/√2, erf, the sum with 1 and the products but the last; x·(1 + erf(x/√2)), which \
         overflows where 2·x does, becomes gelu(x) + gelu(x)",
    ),
    contract(
        "gelu-written-with-tanh",
        "(binary mul ?x ?y)",
        activations::gelu_tanh,
        "drops the roundings of the polynomial, tanh, the sum with 1 and the products but the last; x·(1 + tanh(u)), \
         which overflows where 2·x does, becomes gelu_tanh(x) + gelu_tanh(x)",
    ),
];

const ELEMENT_BY_ELEMENT: &str = "the op sees the same elements in the same order, beside the same elements of its \
     other operands: those are one number, a row along the last axis, which the reshape keeps, or reshaped alike";

/// What is multiplied by an `mma` of two dequantized operands.
struct Product {
    /// NVFP4 on both sides, else one MX format on both, not dequantized to f16.
    nvfp4: bool,
    /// Whether a side has a per-tensor factor.
    factors: bool,
    /// Whether the result is f32.
    wide: bool,
}

fn scaled_mma(matched: &mut RuleMatch<'_>, applies: fn(&Product) -> bool) -> Vec<Id> {
    let [a, sa, ga, b, sb, gb] = ["?a", "?sa", "?ga", "?b", "?sb", "?gb"].map(|name| matched.get(name));
    let Some(Attribute::Own(OwnAttribute::Block(block))) = matched.attribute(matched.get("?v")) else {
        return vec![];
    };
    let element_attribute = |matched: &RuleMatch<'_>, name| match matched.attribute(matched.get(name)) {
        Some(Attribute::Element(element)) => Some(element),
        _ => None,
    };
    let (Some(result), Some(dequantized)) =
        (element_attribute(matched, "?e"), element_attribute(matched, "?d"))
    else {
        return vec![];
    };
    let [Some(a_element), Some(b_element), Some(scale), Some(b_scale)] =
        [a, b, sa, sb].map(|class| matched.element(class))
    else {
        return vec![];
    };
    let format = BlockFormat { a: a_element, b: b_element, scale, block };
    // Mixed formats are never rewritten: no dequantize of one side says how the other is scaled.
    if a_element != b_element || scale != b_scale || !format.is_standard() {
        return vec![];
    }
    let nvfp4 = format == BlockFormat::NVFP4;
    let [no_ga, no_gb] = [ga, gb].map(|class| matched.is_absent(class));
    let product = Product { nvfp4, factors: !(no_ga && no_gb), wide: result == ElementType::F32 };
    if !applies(&product) || (!nvfp4 && dequantized == ElementType::F16) {
        return vec![];
    }
    let alpha = match (no_ga, no_gb) {
        (true, _) => gb,
        (_, true) => ga,
        _ => multiply(matched, ga, gb),
    };
    let (sfa, sfb) = (blocked(matched, sa), blocked(matched, sb));
    let none = matched.absent();
    let (to, block) = (matched.get("?e"), matched.get("?v"));
    vec![matched.add(Term::ScaledMma([to, block, a, sfa, b, sfb, alpha, none, none]))]
}

fn multiply(matched: &mut RuleMatch<'_>, left: Id, right: Id) -> Id {
    let mul = matched.attribute_term(Attribute::Binary(BinaryKind::Mul));
    matched.add(Term::Binary([mul, left, right]))
}

/// Scales in the blocked layout.
fn blocked(matched: &mut RuleMatch<'_>, scales: Id) -> Id {
    if matched.ty(scales).and_then(|ty| ty.layout) == Some(ScaleLayout::Blocked) {
        return scales;
    }
    let layout = matched.attribute_term(Attribute::Own(OwnAttribute::Blocked(true)));
    matched.add(Term::Swizzle([layout, scales]))
}

fn layout_of(attribute: Attribute) -> Option<ScaleLayout> {
    match attribute {
        Attribute::Own(OwnAttribute::Blocked(true)) => Some(ScaleLayout::Blocked),
        Attribute::Own(OwnAttribute::Blocked(false)) => Some(ScaleLayout::Linear),
        _ => None,
    }
}

/// Whether alpha may be this: an f32 of shape [] or [1].
fn is_factor(ty: &TensorType) -> bool {
    ty.element == ElementType::F32 && ty.rank() <= 1 && ty.is_scalar() && ty.layout.is_none()
}

/// The whole is `mul` of a `scaled_mma` that nothing else uses and of a factor. Gives the children of the former.
fn product_with_factor(matched: &mut RuleMatch<'_>, factor: Id) -> Option<[Id; 9]> {
    let Some(Term::Binary([_, x, y])) = matched.whole() else { return None };
    let product = if matched.same(x, factor) { y } else { x };
    // A kernel has constants inside: as alpha one would have to be computed before, outside of any kernel.
    let constant = matched.splat(factor).is_some();
    if constant || matched.is_shared(product) || !matched.ty(factor).is_some_and(is_factor) {
        return None;
    }
    let names = ["?v", "?a", "?sa", "?b", "?sb"].map(|name| matched.get(name));
    let [v, a, sa, b, sb] = names;
    let none = matched.absent();
    let f32 = matched.attribute_term(Attribute::Element(ElementType::F32));
    Some([f32, v, a, sa, b, sb, factor, none, none])
}

fn factor_is_alpha(matched: &mut RuleMatch<'_>, factor: &str) -> Vec<Id> {
    let factor = matched.get(factor);
    match product_with_factor(matched, factor) {
        Some(children) => vec![matched.add(Term::ScaledMma(children))],
        None => vec![],
    }
}

fn factor_joins_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let [v, c, sc, s] = ["?v", "?c", "?sc", "?s"].map(|name| matched.get(name));
    let Some(Term::Binary([_, x, y])) = matched.whole() else { return vec![] };
    let dequantized = if matched.same(x, s) { y } else { x };
    if !is_nvfp4(matched, v, c, sc) || !matched.ty(s).is_some_and(is_factor) || matched.is_shared(dequantized)
    {
        return vec![];
    }
    let f32 = matched.attribute_term(Attribute::Element(ElementType::F32));
    vec![matched.add(Term::Dequantize([f32, v, c, sc, s]))]
}

fn is_nvfp4(matched: &RuleMatch<'_>, block: Id, codes: Id, scales: Id) -> bool {
    matched.attribute(block) == Some(Attribute::Own(OwnAttribute::Block(BlockFormat::NVFP4.block)))
        && matched.element(codes) == Some(BlockFormat::NVFP4.a)
        && matched.element(scales) == Some(BlockFormat::NVFP4.scale)
}

fn widening_joins_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let [e, v, c, sc] = ["?e", "?v", "?c", "?sc"].map(|name| matched.get(name));
    let arithmetic =
        matches!(matched.attribute(e), Some(Attribute::Element(element)) if element.is_arithmetic());
    if !arithmetic || !is_nvfp4(matched, v, c, sc) {
        return vec![];
    }
    let none = matched.absent();
    vec![matched.add(Term::Dequantize([e, v, c, sc, none]))]
}

fn transposes_merge(matched: &mut RuleMatch<'_>) -> Vec<Id> {
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

fn reshape_joins_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let [shape, e, v, c, sc, g] = ["?s", "?e", "?v", "?c", "?sc", "?g"].map(|name| matched.get(name));
    let reshaped = {
        let (Some(codes), Some(scales)) = (matched.ty(c), matched.ty(sc)) else { return vec![] };
        let Some(Term::Reshape(_)) = matched.whole() else { return vec![] };
        let Some(to) = matched.reshaped_shape(shape) else { return vec![] };
        let ([rows @ .., last], [to_rows @ .., to_last]) = (&codes.shape[..], &to[..]) else {
            return vec![];
        };
        let Some(blocks) = scales.shape.last() else { return vec![] };
        // An empty last extent would make any rows fit.
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

/// An elementwise op some of whose operands are reshaped from one shape: the reshape of the same op on those.
fn reshape_moves(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let Some(whole) = matched.whole() else { return vec![] };
    let operands = whole.operands().to_vec();
    // Each operand with what it is reshaped from.
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

fn move_from(
    matched: &mut RuleMatch<'_>,
    whole: &Term,
    operands: &[Id],
    sources: &[Vec<(Term, Id)>],
    shape: &[Dim],
) -> Option<Id> {
    let mut to = None;
    let mut moved = Vec::new();
    let mut used = Vec::new();
    for (operand, sources) in operands.iter().zip(sources) {
        let source = sources.iter().find(|(_, x)| matched.ty(*x).is_some_and(|ty| ty.shape == shape));
        if let Some((term, x)) = source {
            let ty = matched.ty(*operand)?;
            if ty.shape.last() != shape.last() || ty.shape.is_empty() {
                return None;
            }
            to = Some(ty.shape.clone());
            used.push(term.clone());
            moved.push(*x);
        } else {
            matched.ty(*operand).filter(|ty| lies_along_last_axis(ty, shape))?;
            moved.push(*operand);
        }
    }
    let to = to?;
    let added = whole.operands().len();
    let mut position = 0;
    let attributes = egg::Language::children(whole).len() - added;
    let inner = egg::Language::map_children(whole.clone(), |child| {
        position += 1;
        if position > attributes { moved[position - 1 - attributes] } else { child }
    });
    // What else the op reads must not make the result larger than the reshape.
    let result = matched.type_of_term(whole)?;
    if result.shape != to || broadcasts_beyond(matched, &moved, shape) {
        return None;
    }
    for term in used {
        matched.using(term);
    }
    let inner = matched.add(inner);
    let to = matched.shape_term(&to);
    Some(matched.add(Term::Reshape([to, inner])))
}

fn broadcasts_beyond(matched: &RuleMatch<'_>, operands: &[Id], shape: &[Dim]) -> bool {
    operands.iter().any(|operand| matched.ty(*operand).is_none_or(|ty| ty.rank() > shape.len()))
}

/// One number, or a row along the last axis of a tensor of this shape.
fn lies_along_last_axis(ty: &TensorType, shape: &[Dim]) -> bool {
    let is_one = |dim: &Dim| dim.as_fixed() == Some(1);
    ty.layout.is_none()
        && match &ty.shape[..] {
            [] => true,
            [ones @ .., last] => ones.iter().all(is_one) && (is_one(last) || Some(last) == shape.last()),
        }
}

/// Whether every value of the narrower type is one of the wider.
fn holds_exactly(wide: ElementType, narrow: ElementType) -> bool {
    use ElementType::{BF16, F4E2M1FN, F8E4M3FN, F8E5M2, F16, F32};
    match narrow {
        F4E2M1FN => matches!(wide, F4E2M1FN | F8E4M3FN | F8E5M2 | F16 | BF16 | F32),
        F8E4M3FN => matches!(wide, F8E4M3FN | F16 | BF16 | F32),
        F8E5M2 => matches!(wide, F16 | BF16 | F32),
        F16 => matches!(wide, F16 | F32),
        BF16 => matches!(wide, BF16 | F32),
        F32 => wide == F32,
        _ => false,
    }
}
