//! Rules on products: an `mma` of dequantized operands becomes a `scaled_mma`, and factors become its alpha.

use egg::Id;
use fourfold_ir::{BinaryKind, BlockFormat, ElementType, ScaleLayout, TensorType};

use super::language::{Attribute, OwnAttribute, Term};
use super::rule_match::RuleMatch;

/// The properties of an `mma` of two dequantized operands that select a rule.
pub(crate) struct Product {
    /// True for NVFP4; false for an MX format, not dequantized to f16. Two dequantized operands have one format.
    pub(crate) nvfp4: bool,
    /// True if a side has a per-tensor factor.
    pub(crate) factors: bool,
    /// True for an f32 result.
    pub(crate) wide: bool,
}

/// Rewrites an `mma` of two dequantized operands to the `scaled_mma` of their codes and scales.
pub(crate) fn scaled_mma(matched: &mut RuleMatch<'_>, applies: fn(&Product) -> bool) -> Vec<Id> {
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
    // Mixed formats are not rewritten: a dequantize of one side does not state the other side's scaling.
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

/// Rewrites an `mma` of a 16-bit value, perhaps widened, and a dequantized weight to a weight-only `scaled_mma`.
pub(crate) fn weight_only(matched: &mut RuleMatch<'_>, applies: fn(&Product) -> bool) -> Vec<Id> {
    let [x, b, sb, gb] = ["?x", "?b", "?sb", "?gb"].map(|name| matched.get(name));
    let Some(Attribute::Own(OwnAttribute::Block(block))) = matched.attribute(matched.get("?v")) else {
        return vec![];
    };
    let (Some(Attribute::Element(result)), Some(b_element), Some(scale)) =
        (matched.attribute(matched.get("?e")), matched.element(b), matched.element(sb))
    else {
        return vec![];
    };
    let Some((a, widening)) = half(matched, x) else { return vec![] };
    let Some(a_element) = matched.element(a) else { return vec![] };
    let format = BlockFormat { a: a_element, b: b_element, scale, block };
    let nvfp4 = format == BlockFormat::NVFP4.weight_only(a_element);
    let no_factor = matched.is_absent(gb);
    let product = Product { nvfp4, factors: !no_factor, wide: result == ElementType::F32 };
    // f16 does not hold the range of powers of two.
    let narrow = matched.element(x) == Some(ElementType::F16);
    if !format.is_standard()
        || !applies(&product)
        || (!nvfp4 && narrow)
        || !matched.has_weight_only_kernel(format, b, result)
    {
        return vec![];
    }
    if let Some(widening) = widening {
        matched.using(widening);
    }
    let sfb = blocked(matched, sb);
    let none = matched.absent();
    let alpha = if no_factor { none } else { gb };
    let (to, block) = (matched.get("?e"), matched.get("?v"));
    vec![matched.add(Term::ScaledMma([to, block, a, none, b, sfb, alpha, none, none]))]
}

/// The 16-bit value that a class is, or that it widens by a `convert`, which is returned too.
fn half(matched: &RuleMatch<'_>, x: Id) -> Option<(Id, Option<Term>)> {
    if matched.element(x)?.is_half() {
        return Some((x, None));
    }
    matched.terms(x).into_iter().find_map(|term| match term {
        Term::Convert([_, y]) if matched.element(y).is_some_and(ElementType::is_half) => {
            Some((y, Some(term)))
        }
        _ => None,
    })
}

fn multiply(matched: &mut RuleMatch<'_>, left: Id, right: Id) -> Id {
    let mul = matched.attribute_term(Attribute::Binary(BinaryKind::Mul));
    matched.add(Term::Binary([mul, left, right]))
}

/// Converts scales to the blocked layout.
fn blocked(matched: &mut RuleMatch<'_>, scales: Id) -> Id {
    if matched.ty(scales).and_then(|ty| ty.layout) == Some(ScaleLayout::Blocked) {
        return scales;
    }
    let layout = matched.attribute_term(Attribute::Own(OwnAttribute::Blocked(true)));
    matched.add(Term::Swizzle([layout, scales]))
}

/// Returns whether a value can be alpha: f32, of shape [] or [1].
fn is_factor(ty: &TensorType) -> bool {
    ty.element == ElementType::F32 && ty.rank() <= 1 && ty.is_scalar() && ty.layout.is_none()
}

/// Matches a `mul` of a factor and a `scaled_mma` without other users. Returns the children of the
/// `scaled_mma`.
fn product_with_factor(matched: &mut RuleMatch<'_>, factor: Id) -> Option<[Id; 9]> {
    let Some(Term::Binary([_, x, y])) = matched.whole() else { return None };
    let product = if matched.same(x, factor) { y } else { x };
    // A kernel inlines constants. As alpha, a constant would have to be computed before the kernel.
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

/// Turns a factor of a `scaled_mma` without alpha into its alpha.
pub(crate) fn factor_is_alpha(matched: &mut RuleMatch<'_>, factor: &str) -> Vec<Id> {
    let factor = matched.get(factor);
    match product_with_factor(matched, factor) {
        Some(children) => vec![matched.add(Term::ScaledMma(children))],
        None => vec![],
    }
}

/// Turns a factor of a dequantized operand into its per-tensor scale, if it has none.
pub(crate) fn factor_joins_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
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

/// Merges a `convert` into the `dequantize` before it, which rounds nothing.
pub(crate) fn convert_joins_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let [w, v, c, sc] = ["?w", "?v", "?c", "?sc"].map(|name| matched.get(name));
    let from_f32 = matched.attribute(w) == Some(Attribute::Element(ElementType::F32));
    let mx = matched.element(sc) == Some(ElementType::F8E8M0FNU);
    if is_nvfp4(matched, v, c, sc) || (mx && from_f32) {
        let none = matched.absent();
        dequantize_to_converted(matched, none)
    } else {
        vec![]
    }
}

/// Merges a `convert` into the `dequantize` with a factor before it.
pub(crate) fn convert_joins_scaled_dequantize(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let [v, c, sc, g] = ["?v", "?c", "?sc", "?g"].map(|name| matched.get(name));
    if matched.is_absent(g) || !is_nvfp4(matched, v, c, sc) {
        return vec![];
    }
    dequantize_to_converted(matched, g)
}

fn dequantize_to_converted(matched: &mut RuleMatch<'_>, g: Id) -> Vec<Id> {
    let [e, v, c, sc] = ["?e", "?v", "?c", "?sc"].map(|name| matched.get(name));
    match matched.attribute(e) {
        Some(Attribute::Element(element)) if element.is_arithmetic() => {
            vec![matched.add(Term::Dequantize([e, v, c, sc, g]))]
        }
        _ => vec![],
    }
}
