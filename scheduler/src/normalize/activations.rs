//! Recognizes activation functions that a program spells out as elementary ops.

use egg::Id;
use fourfold_ir::{BinaryKind, ElementType, UnaryKind};

use super::language::{Attribute, Term};
use super::rule_match::RuleMatch;

/// `max(x, +0)`. The bound is not -0: relu(-0) is +0, but max(-0, -0) is -0.
pub(crate) fn relu(matched: &mut RuleMatch<'_>, x: &str, zero: &str) -> Vec<Id> {
    let (x, zero) = (matched.get(x), matched.get(zero));
    let is_zero = matched.splat(zero).is_some_and(|zero| zero.to_bits() == 0);
    if is_zero && has_type_of_whole(matched, x) { vec![unary(matched, UnaryKind::Relu, x)] } else { vec![] }
}

/// `min(max(x, lo), hi)` if `inner` is max, or `max(min(x, hi), lo)` if `inner` is min, with operands in any
/// order.
pub(crate) fn clamp(matched: &mut RuleMatch<'_>, inner: BinaryKind) -> Vec<Id> {
    let (m, h) = (matched.get("?m"), matched.get("?h"));
    for (within, outer_bound) in [(m, h), (h, m)] {
        let Some(outer) = matched.splat(outer_bound) else { continue };
        for term in matched.terms(within) {
            let Some([p, q]) = binary(matched, &term, inner) else { continue };
            for (x, inner_bound) in [(p, q), (q, p)] {
                let Some(inner_value) = matched.splat(inner_bound) else { continue };
                let (lo, hi, ordered) = match inner {
                    BinaryKind::Max => (inner_value, outer, inner_value <= outer),
                    // -0 and +0 are distinct bounds here. NaN is no bound.
                    _ => {
                        let ordered = outer <= inner_value && outer.total_cmp(&inner_value).is_le();
                        (outer, inner_value, ordered)
                    }
                };
                if !ordered || !has_type_of_whole(matched, x) || !has_type_of_whole(matched, within) {
                    continue;
                }
                matched.using(term);
                let bounds = matched.attribute_term(Attribute::Bounds([lo.to_bits(), hi.to_bits()]));
                return vec![matched.add(Term::Clamp([bounds, x]))];
            }
        }
    }
    vec![]
}

/// `1 / (1 + exp(-x))`, as a division or as `reciprocal`.
pub(crate) fn sigmoid(matched: &mut RuleMatch<'_>, divided: bool) -> Vec<Id> {
    if divided && !is_number(matched, matched.get("?one"), 1.0) {
        return vec![];
    }
    let Some(x) = one_and_exp(matched) else { return vec![] };
    if has_type_of_whole(matched, x) { vec![unary(matched, UnaryKind::Sigmoid, x)] } else { vec![] }
}

/// `x · sigmoid(x)`.
pub(crate) fn silu(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let x = matched.get("?x");
    if has_type_of_whole(matched, x) { vec![unary(matched, UnaryKind::Silu, x)] } else { vec![] }
}

/// `x / (1 + exp(-x))`.
pub(crate) fn silu_of_quotient(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    let x = matched.get("?x");
    if matched.splat(x).is_some() || !has_type_of_whole(matched, x) {
        return vec![];
    }
    match one_and_exp(matched) {
        Some(of) if matched.same(of, x) => vec![unary(matched, UnaryKind::Silu, x)],
        _ => vec![],
    }
}

/// `x/2 · (1 + erf(x/√2))`, with the factors in any order that overflows at most where `x · (1 + erf(x/√2))` does.
pub(crate) fn gelu(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    written_gelu(matched, UnaryKind::Erf, |matched, argument, x| {
        let Some(product) = factors(matched, argument, x, None) else { return false };
        product.others.is_empty()
            && product.powers == 1
            && is_close(matched, x, product.number, 0.5f64.sqrt())
    })
}

/// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))` or `x · (1 + 0.044715 x²)` inside, the factors in any
/// order, and the powers as products or `pow`.
pub(crate) fn gelu_tanh(matched: &mut RuleMatch<'_>) -> Vec<Id> {
    written_gelu(matched, UnaryKind::Tanh, |matched, argument, x| {
        let Some(product) = factors(matched, argument, x, None) else { return false };
        let &[polynomial] = &product.others[..] else { return false };
        if !is_close(matched, x, product.number, (2.0 / std::f64::consts::PI).sqrt()) {
            return false;
        }
        matched.terms(polynomial).into_iter().any(|term| {
            let Some([p, q]) = binary(matched, &term, BinaryKind::Add) else { return false };
            matched.using(term);
            [(p, q), (q, p)].into_iter().any(|(first, cubic)| {
                let is_first = match product.powers {
                    0 => matched.same(first, x),
                    _ => is_number(matched, first, 1.0),
                };
                is_first
                    && factors(matched, cubic, x, None).is_some_and(|cubic| {
                        cubic.others.is_empty()
                            && cubic.powers + product.powers == 3
                            && is_close(matched, x, cubic.number, 0.044715)
                    })
            })
        })
    })
}

/// Matches `x · 1/2 · (1 + inner(argument))` with a valid argument for x. The result is the function of x. If the
/// program multiplies x by the sum before it halves the product, the result is instead half of twice the function,
/// which overflows where that product does.
fn written_gelu(
    matched: &mut RuleMatch<'_>,
    inner: UnaryKind,
    is_argument: impl Fn(&mut RuleMatch<'_>, Id, Id) -> bool,
) -> Vec<Id> {
    let (p, q) = (matched.get("?x"), matched.get("?y"));
    let Some((sum, argument)) = sum_of_one_and(matched, inner, [p, q]) else { return vec![] };
    for x in candidates(matched, argument) {
        if !has_type_of_whole(matched, x) {
            continue;
        }
        let mut product = Factors::default();
        let whole = collect(matched, p, x, Some(sum), 0, &mut product)
            && collect(matched, q, x, Some(sum), 0, &mut product);
        let in_range = product.number <= 0.5 && product.most_of_x <= 1.0;
        if whole
            && product.powers == 1
            && product.sums == 1
            && product.others.is_empty()
            && in_range
            && is_close(matched, x, product.number, 0.5)
            && is_argument(matched, argument, x)
        {
            let kind = if inner == UnaryKind::Erf { UnaryKind::Gelu } else { UnaryKind::GeluTanh };
            if product.most_of_product <= 1.0 {
                return vec![unary(matched, kind, x)];
            }
            let Some(half) = [p, q].into_iter().find(|class| is_number(matched, *class, 0.5)) else {
                continue;
            };
            if product.most_of_product == 2.0 {
                let function = unary(matched, kind, x);
                let [add, mul] = [BinaryKind::Add, BinaryKind::Mul]
                    .map(|kind| matched.attribute_term(Attribute::Binary(kind)));
                let twice = matched.add(Term::Binary([add, function, function]));
                return vec![matched.add(Term::Binary([mul, twice, half]))];
            }
        }
    }
    vec![]
}

/// The class of `1 + inner(argument)` among the factors of a product, with the argument.
fn sum_of_one_and(matched: &mut RuleMatch<'_>, inner: UnaryKind, of: [Id; 2]) -> Option<(Id, Id)> {
    let mut open = of.to_vec();
    for _ in 0..MOST_FACTORS {
        let class = open.pop()?;
        for term in matched.terms(class) {
            if let Some([p, q]) = binary(matched, &term, BinaryKind::Mul) {
                open.extend([p, q]);
            }
            let Some([p, q]) = binary(matched, &term, BinaryKind::Add) else { continue };
            for (one, value) in [(p, q), (q, p)] {
                if is_number(matched, one, 1.0)
                    && let Some((function, argument)) = unary_of(matched, value, inner)
                {
                    matched.using(term);
                    matched.using(function);
                    return Some((class, argument));
                }
            }
        }
    }
    None
}

/// The classes that may be x in an argument: all its factors and summands.
fn candidates(matched: &RuleMatch<'_>, argument: Id) -> Vec<Id> {
    let mut found = vec![argument];
    let mut next = 0;
    while next < found.len() && found.len() < MOST_FACTORS {
        for term in matched.terms(found[next]) {
            if let Term::Binary([_, p, q]) = term {
                for class in [p, q] {
                    if !found.contains(&class) && matched.splat(class).is_none() {
                        found.push(class);
                    }
                }
            }
        }
        next += 1;
    }
    found
}

/// The maximum number of classes that a search visits.
const MOST_FACTORS: usize = 24;

/// The factors of a product.
struct Factors {
    /// The product of the constant factors.
    number: f64,
    /// The exponent of x.
    powers: u32,
    /// The multiple of the known sum. The sum is at most 2.
    sums: u32,
    others: Vec<Id>,
    /// The largest multiple of x in a partial product that contains x but not the sum.
    most_of_x: f64,
    /// The same for a partial product that contains both. At -inf the sum is 0.
    most_of_product: f64,
}

impl Default for Factors {
    fn default() -> Factors {
        Factors { number: 1.0, powers: 0, sums: 0, others: Vec::new(), most_of_x: 1.0, most_of_product: 0.0 }
    }
}

impl Factors {
    /// Records a partial product: the factors collected since the state `before`.
    fn note_partial(&mut self, [number, powers, sums]: [f64; 3]) {
        let multiple = (self.number / number).abs();
        if f64::from(self.powers) > powers && f64::from(self.sums) > sums {
            self.most_of_product = self.most_of_product.max(2.0 * multiple);
        } else if f64::from(self.powers) > powers {
            self.most_of_x = self.most_of_x.max(multiple);
        }
    }

    fn known(&self) -> [f64; 3] {
        [self.number, f64::from(self.powers), f64::from(self.sums)]
    }
}

fn factors(matched: &mut RuleMatch<'_>, class: Id, x: Id, sum: Option<Id>) -> Option<Factors> {
    let mut product = Factors::default();
    collect(matched, class, x, sum, 0, &mut product).then_some(product)
}

/// Adds the factors of a class; returns false beyond the depth limit.
fn collect(
    matched: &mut RuleMatch<'_>,
    class: Id,
    x: Id,
    sum: Option<Id>,
    depth: usize,
    into: &mut Factors,
) -> bool {
    const DEEPEST: usize = 6;
    // A factor within these bounds makes no partial product of the formula vanish or overflow.
    let is_usual = |number: &f64| (2f64.powi(-10)..=2f64.powi(10)).contains(&number.abs());
    let before = into.known();
    if matched.same(class, x) {
        into.powers += 1;
        return true;
    }
    if sum.is_some_and(|sum| matched.same(class, sum)) {
        into.sums += 1;
        return true;
    }
    if let Some(number) = matched.splat(class).filter(is_usual) {
        into.number *= number;
        return true;
    }
    if depth > DEEPEST {
        return false;
    }
    for term in matched.terms(class) {
        if let Some([p, q]) = binary(matched, &term, BinaryKind::Mul) {
            matched.using(term);
            let known =
                collect(matched, p, x, sum, depth + 1, into) && collect(matched, q, x, sum, depth + 1, into);
            into.note_partial(before);
            return known;
        }
        if let Some([p, q]) = binary(matched, &term, BinaryKind::Pow)
            && let Some(exponent) = matched.splat(q).filter(|exponent| [2.0, 3.0].contains(exponent))
            && matched.same(p, x)
        {
            matched.using(term);
            into.powers += exponent as u32;
            into.note_partial(before);
            return true;
        }
        if let Some([p, q]) = binary(matched, &term, BinaryKind::Div)
            && let Some(number) = matched.splat(q).filter(is_usual)
        {
            matched.using(term);
            let known = collect(matched, p, x, sum, depth + 1, into);
            into.number /= number;
            into.note_partial(before);
            return known;
        }
    }
    into.others.push(class);
    true
}

/// Returns whether a number equals a formula's constant within the precision of x's element type.
fn is_close(matched: &RuleMatch<'_>, x: Id, number: f64, expected: f64) -> bool {
    // The product of two rounded constants has twice their relative error.
    let tolerance = match matched.element(x) {
        Some(ElementType::BF16) => 2f64.powi(-7),
        Some(ElementType::F16) => 2f64.powi(-10),
        _ => 1e-5,
    };
    (number - expected).abs() <= tolerance * expected
}

/// The x in `1 + exp(-x)`, whose summands are `?p` and `?q`.
fn one_and_exp(matched: &mut RuleMatch<'_>) -> Option<Id> {
    let (p, q) = (matched.get("?p"), matched.get("?q"));
    for (one, value) in [(p, q), (q, p)] {
        if is_number(matched, one, 1.0)
            && let Some((exp, argument)) = unary_of(matched, value, UnaryKind::Exp)
            && let Some((neg, x)) = unary_of(matched, argument, UnaryKind::Neg)
        {
            matched.using(exp);
            matched.using(neg);
            return Some(x);
        }
    }
    None
}

/// The term of a class that applies this function, with its operand.
fn unary_of(matched: &RuleMatch<'_>, class: Id, kind: UnaryKind) -> Option<(Term, Id)> {
    matched.terms(class).into_iter().find_map(|term| match term {
        Term::Unary([function, x]) if matched.attribute(function) == Some(Attribute::Unary(kind)) => {
            Some((term, x))
        }
        _ => None,
    })
}

/// The operands of a term that applies this function.
fn binary(matched: &RuleMatch<'_>, term: &Term, kind: BinaryKind) -> Option<[Id; 2]> {
    match *term {
        Term::Binary([function, x, y]) if matched.attribute(function) == Some(Attribute::Binary(kind)) => {
            Some([x, y])
        }
        _ => None,
    }
}

fn unary(matched: &mut RuleMatch<'_>, kind: UnaryKind, x: Id) -> Id {
    let function = matched.attribute_term(Attribute::Unary(kind));
    matched.add(Term::Unary([function, x]))
}

fn is_number(matched: &RuleMatch<'_>, class: Id, number: f64) -> bool {
    matched.splat(class) == Some(number)
}

/// Returns whether a class has the type of the whole match, so that no constant widens or broadcasts it.
fn has_type_of_whole(matched: &RuleMatch<'_>, class: Id) -> bool {
    let whole = matched.whole().and_then(|whole| matched.type_of_term(&whole));
    whole.is_some() && whole == matched.ty(class)
}
