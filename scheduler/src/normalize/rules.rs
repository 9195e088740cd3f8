//! The rules of normalization. A rule preserves the bits of the term it replaces, for every input including NaN
//! and infinity. Two kinds of rules are exceptions: those marked `contract`, which drop a rounding that the
//! program states, and the rule for sums with K above 1188, which states its error bound.
//!
//! A contract rule that drops only roundings keeps every NaN and infinity: its result is one exactly where
//! the original is. A contract rule that also widens the range of a factor or a scale names the values that
//! must not overflow.

use egg::Id;
use fourfold_ir::{BinaryKind, ElementType, ScaleLayout};

use super::language::{Attribute, OwnAttribute, Term};
use super::rule_match::{Rule, RuleMatch};
use super::{activations, moves, products};

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

const MMA_OF_WEIGHT: &str = "(mma ?e ?x (dequantize ?d ?v ?b ?sb ?gb))";

/// All rules, in the order in which proofs prefer them.
pub(crate) const RULES: &[Rule] = &[
    exact(
        "mma-of-dequantized-is-scaled-mma",
        MMA_OF_DEQUANTIZED,
        |matched| products::scaled_mma(matched, |product| product.nvfp4 && !product.factors && product.wide),
        "code · scale has 6 significant bits, so no dequantized element was rounded. Both sums are exact while K <= \
         1188, because f64 holds every partial sum of multiples of 2^-20 up to 2688². For larger K, the f64 sum of \
         mma may be off by K·2^-53·Σ|a·b|, which is 2^-29 of the bound for comparing two multiplications",
    ),
    contract(
        "factors-of-dequantized-are-alpha",
        MMA_OF_DEQUANTIZED,
        |matched| products::scaled_mma(matched, |product| product.nvfp4 && product.factors),
        "drops the rounding of each dequantized element code · scale · g, rounds gA·gB and alpha·acc instead, and \
         rounds the sum to f32 before it is rounded to a narrower result. Range: no code · scale · g overflows or is \
         infinite, and gA·gB does not overflow or underflow",
    ),
    contract(
        "narrow-mma-is-scaled-mma",
        MMA_OF_DEQUANTIZED,
        |matched| products::scaled_mma(matched, |product| product.nvfp4 && !product.factors && !product.wide),
        "rounds the sum to f32 and then to the result type, instead of once. Range: in f16, a sum that is \
         less than 2^-8 from ±65520, where f16 overflows, may be rounded to either side",
    ),
    contract(
        "mma-of-mx-is-scaled-mma",
        MMA_OF_DEQUANTIZED,
        |matched| products::scaled_mma(matched, |product| !product.nvfp4),
        "drops the limited range that the dequantized type imposes on code · 2^e, and the roundings of factors if \
         there are any. Range: no code · 2^e · g overflows or is infinite; with factors, neither gA·gB nor the sum \
         without them overflows or underflows",
    ),
    exact(
        "mma-of-dequantized-weight-is-weight-only",
        MMA_OF_WEIGHT,
        |matched| products::weight_only(matched, |product| product.nvfp4 && !product.factors && product.wide),
        "code · scale has 6 significant bits from 2^-10 to 2688, so f16, bf16 and f32 hold the dequantized weight, and f32 \
         a widened x. Both products take the sum of the same terms in f64 with k ascending, and round it to f32",
    ),
    contract(
        "factor-of-dequantized-weight-is-alpha",
        MMA_OF_WEIGHT,
        |matched| products::weight_only(matched, |product| product.nvfp4 && product.factors),
        "drops the rounding of each dequantized element code · scale · g, rounds alpha·acc instead, and rounds the sum \
         to f32 before it is rounded to a narrower result. Range: neither code · scale · g nor the sum without g \
         overflows or underflows",
    ),
    contract(
        "narrow-mma-is-weight-only",
        MMA_OF_WEIGHT,
        |matched| {
            products::weight_only(matched, |product| product.nvfp4 && !product.factors && !product.wide)
        },
        "rounds the sum to f32 and then to the result type, instead of once. Range: in f16, a sum that is \
         less than 2^-8 from ±65520, where f16 overflows, may be rounded to either side",
    ),
    contract(
        "mma-of-mx-weight-is-weight-only",
        MMA_OF_WEIGHT,
        |matched| products::weight_only(matched, |product| !product.nvfp4),
        "drops the limited range that the dequantized type imposes on code · 2^e, and the rounding of a factor if \
         there is one. Range: no code · 2^e · g overflows or underflows; with a factor, neither does the sum without it",
    ),
    exact(
        "factor-is-alpha",
        "(binary mul (scaled_mma f32 ?v ?a ?sa ?b ?sb none none none) ?s)",
        |matched| products::factor_is_alpha(matched, "?s"),
        "rn(acc · s) is what alpha means, and the f32 result of a scaled_mma without alpha is acc",
    ),
    exact(
        "factor-before-is-alpha",
        "(binary mul ?s (scaled_mma f32 ?v ?a ?sa ?b ?sb none none none))",
        |matched| products::factor_is_alpha(matched, "?s"),
        "as factor-is-alpha: a product does not depend on the order of its factors",
    ),
    exact(
        "factor-joins-dequantize",
        "(binary mul (dequantize f32 ?v ?c ?sc none) ?s)",
        products::factor_joins_dequantize,
        "code · scale of NVFP4 is exact in f32, so rn(rn(code · scale) · s) is rn(code · scale · s)",
    ),
    exact(
        "factor-before-joins-dequantize",
        "(binary mul ?s (dequantize f32 ?v ?c ?sc none))",
        products::factor_joins_dequantize,
        "as factor-joins-dequantize",
    ),
    exact(
        "convert-joins-dequantize",
        "(convert ?e (dequantize ?w ?v ?c ?sc none))",
        products::convert_joins_dequantize,
        "code · scale of NVFP4 is exact in f16, bf16 and f32 alike. f32 holds code · 2^e too, or it overflows, and then \
         narrower types do as well",
    ),
    contract(
        "convert-joins-scaled-dequantize",
        "(convert ?e (dequantize f32 ?v ?c ?sc ?g))",
        products::convert_joins_scaled_dequantize,
        "rounds code · scale · g to the narrower type, instead of to f32 first. Range: in f16, a product that is less \
         than 2^-8 from ±65520, where f16 overflows, may be rounded to either side",
    ),
    exact(
        "transposes-merge",
        "(transpose ?p (transpose ?q ?x))",
        moves::transposes_merge,
        "transposes only move elements, and one permutation has the effect of both",
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
        "every reshape keeps the elements of x in row-major order",
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
            // A saturating convert of f8E5M2 to itself turns infinity into a finite value.
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
        "the wider type represents every value of the narrower one, so the second convert reads the exact value of x",
    ),
    exact(
        "reshape-joins-dequantize",
        "(reshape ?s (dequantize ?e ?v ?c ?sc ?g))",
        moves::reshape_joins_dequantize,
        "the last extent is kept, so blocks stay whole and linear scales keep the order of their blocks",
    ),
    exact("reshape-moves-behind-unary", "(unary ?k ?x)", moves::reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-clamp", "(clamp ?k ?x)", moves::reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-convert", "(convert ?k ?x)", moves::reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-binary", "(binary ?k ?x ?y)", moves::reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-compare", "(compare ?k ?x ?y)", moves::reshape_moves, ELEMENT_BY_ELEMENT),
    exact("reshape-moves-behind-select", "(select ?c ?x ?y)", moves::reshape_moves, ELEMENT_BY_ELEMENT),
    exact(
        "swizzle-undoes-swizzle",
        "(swizzle ?l (swizzle ?m ?x))",
        |matched| {
            let x = matched.get("?x");
            let layout = matched.ty(x).and_then(|ty| ty.layout);
            let back = matched.attribute(matched.get("?l")).map(layout_of) == Some(layout);
            if back { vec![x] } else { vec![] }
        },
        "the second swizzle undoes the first; the padding may differ, and consumers tolerate any padding",
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
        "clamp is min(max(x, lo), hi); max returns x or lo, which the type represents, so it rounds nothing",
    ),
    exact(
        "max-of-min-is-clamp",
        "(binary max ?m ?h)",
        |matched| activations::clamp(matched, BinaryKind::Min),
        "if lo <= hi, with -0 < +0, both max(min(x, hi), lo) and clamp return x or the bound that x exceeds",
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

const ELEMENT_BY_ELEMENT: &str = "the op combines the same elements in the same order: each other operand is one \
     number, a row along the last axis, which the reshape keeps, or is reshaped in the same way or back";

fn layout_of(attribute: Attribute) -> Option<ScaleLayout> {
    match attribute {
        Attribute::Own(OwnAttribute::Blocked(true)) => Some(ScaleLayout::Blocked),
        Attribute::Own(OwnAttribute::Blocked(false)) => Some(ScaleLayout::Linear),
        _ => None,
    }
}

/// Returns whether the wide type holds every value of the narrow type.
pub(crate) fn holds_exactly(wide: ElementType, narrow: ElementType) -> bool {
    use ElementType::{BF16, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F16, F32};
    match narrow {
        F4E2M1FN => matches!(wide, F4E2M1FN | F6E2M3FN | F6E3M2FN | F8E4M3FN | F8E5M2 | F16 | BF16 | F32),
        F6E2M3FN => matches!(wide, F6E2M3FN | F8E4M3FN | F16 | BF16 | F32),
        F6E3M2FN => matches!(wide, F6E3M2FN | F8E4M3FN | F8E5M2 | F16 | BF16 | F32),
        F8E4M3FN => matches!(wide, F8E4M3FN | F16 | BF16 | F32),
        F8E5M2 => matches!(wide, F16 | BF16 | F32),
        F16 => matches!(wide, F16 | F32),
        BF16 => matches!(wide, BF16 | F32),
        F32 => wide == F32,
        _ => false,
    }
}
