//! Ranges of numbers through scalar functions. A range contains every value that the function takes.
//!
//! The ends of a monotonic function bound it, and so do its rounded ends. A function that is not known to be monotonic
//! on a range gives [`Range::Any`]; on a single number, every function is evaluated.

use fourfold_ir::{BinaryKind, BitwiseKind, ElementType, Predicate, UnaryKind, scalar};

/// The values that a node may take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Range {
    /// Numbers between two, both included, of which -0 is below +0. None is NaN.
    Numbers(f64, f64),
    /// NaN.
    Nan,
    /// Integers between two, both included. A boolean is 0 or 1.
    Integers(i32, i32),
    /// Any value.
    Any,
}

use Range::{Any, Integers, Nan, Numbers};

impl Range {
    /// The range of one value of a type.
    pub(crate) fn of(element: ElementType, x: f64) -> Range {
        match element {
            ElementType::I32 | ElementType::I1 => Integers(x as i32, x as i32),
            _ => numbers(x, x),
        }
    }

    /// The one number of a range; NaN is one.
    pub(crate) fn single(self) -> Option<f64> {
        match self {
            Numbers(low, high) => (low.to_bits() == high.to_bits()).then_some(low),
            Nan => Some(f64::NAN),
            Integers(low, high) => (low == high).then_some(f64::from(low)),
            Any => None,
        }
    }

    /// The ends of a range of numbers or integers.
    fn ends(self) -> Option<[f64; 2]> {
        match self {
            Numbers(low, high) => Some([low, high]),
            Integers(low, high) => Some([f64::from(low), f64::from(high)]),
            Nan | Any => None,
        }
    }
}

/// The range between two numbers, in any order.
fn numbers(a: f64, b: f64) -> Range {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => Nan,
        (false, false) if a.total_cmp(&b).is_le() => Numbers(a, b),
        (false, false) => Numbers(b, a),
        _ => Any,
    }
}

/// The range of these numbers, rounded to a type if it is given.
fn hull(ends: &[f64], element: Option<ElementType>) -> Range {
    let rounded = |x: f64| element.map_or(x, |element| scalar::round_to(element, x));
    let ends: Vec<f64> = ends.iter().map(|end| rounded(*end)).collect();
    if ends.iter().all(|end| end.is_nan()) {
        return Nan;
    }
    if ends.iter().any(|end| end.is_nan()) {
        return Any;
    }
    let least = ends.iter().copied().min_by(f64::total_cmp).unwrap_or(f64::NAN);
    let most = ends.iter().copied().max_by(f64::total_cmp).unwrap_or(f64::NAN);
    numbers(least, most)
}

/// A conversion to another type.
pub(crate) fn convert(x: Range, element: ElementType) -> Range {
    let is_negative = |x: Range| x.ends().is_none_or(|[low, _]| low < 0.0);
    match (x, element) {
        (Any, _) => Any,
        (Nan, _) => Range::of(element, scalar::round_to(element, f64::NAN)),
        // Negative numbers become NaN.
        (_, ElementType::F8E8M0FNU) if x.single().is_none() && is_negative(x) => Any,
        (_, ElementType::I32) => {
            let Some(ends) = x.ends() else { return Any };
            let [low, high] = ends.map(|end| scalar::round_to(ElementType::I32, end) as i32);
            Integers(low, high)
        }
        _ => x.ends().map_or(Any, |ends| hull(&ends, Some(element))),
    }
}

/// The same bits in another type.
pub(crate) fn bitcast(x: Range, from: ElementType, to: ElementType) -> Range {
    const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;
    match (from, to, x) {
        (ElementType::F32, _, Nan) => Integers(scalar::bits_of(f32::NAN), scalar::bits_of(f32::NAN)),
        // The bits of numbers without a sign are in the order of the numbers.
        (ElementType::F32, _, Numbers(low, high)) => {
            let [low, high] = [low, high].map(|end| scalar::round_to(ElementType::F32, end) as f32);
            let bits = [low, high].map(scalar::bits_of);
            if bits[0] == bits[1] || low.is_sign_positive() { Integers(bits[0], bits[1]) } else { Any }
        }
        (_, ElementType::F32, Integers(low, high)) => {
            let ends = [low, high].map(|bits| f64::from(scalar::of_bits(bits)));
            if low == high || low >= 0 { hull(&ends, None) } else { Any }
        }
        (ElementType::F8E8M0FNU, _, Nan) => Integers(0xFF, 0xFF),
        (ElementType::F8E8M0FNU, _, Numbers(low, high)) => {
            let byte = |power: f64| (power.to_bits() >> (f64::MANTISSA_DIGITS - 1)) as i32 - 1023 + 127;
            Integers(byte(low), byte(high))
        }
        (_, ElementType::F8E8M0FNU, Integers(low, high)) => {
            let [first, last] = [low & 0xFF, high & 0xFF];
            let power = |byte: i32| match byte {
                0 => f64::from(f32::from_bits(1 << (MANTISSA - 1))),
                byte => f64::from(f32::from_bits((byte as u32) << MANTISSA)),
            };
            match (first, last) {
                _ if low >> 8 != high >> 8 => Any,
                (0xFF, 0xFF) => Nan,
                (_, 0xFF) => Any,
                _ => Numbers(power(first), power(last)),
            }
        }
        _ => Any,
    }
}

/// A function of one number, rounded to a type if it is given.
pub(crate) fn unary(kind: UnaryKind, x: Range, element: Option<ElementType>) -> Range {
    let f = |x: f64| scalar::unary(kind, x);
    if let Some(x) = x.single() {
        return hull(&[f(x)], element);
    }
    let Numbers(low, high) = x else { return Any };
    match kind {
        // Each is monotonic in f64, or its error is far below half a step of f32 wherever neighbours differ.
        UnaryKind::Exp
        | UnaryKind::Exp2
        | UnaryKind::Relu
        | UnaryKind::Floor
        | UnaryKind::Ceil
        | UnaryKind::Round
        | UnaryKind::Neg => hull(&[f(low), f(high)], element),
        UnaryKind::Abs if low.is_sign_positive() || high.is_sign_negative() => {
            hull(&[f(low), f(high)], element)
        }
        UnaryKind::Sqrt | UnaryKind::Log | UnaryKind::Log2 if low.is_sign_positive() => {
            hull(&[f(low), f(high)], element)
        }
        UnaryKind::Reciprocal if low > 0.0 || high < 0.0 => hull(&[f(low), f(high)], element),
        _ => Any,
    }
}

/// A function of two numbers or of two integers, rounded to a type if it is given.
pub(crate) fn binary(kind: BinaryKind, a: Range, b: Range, element: Option<ElementType>) -> Range {
    if let (Integers(..), Integers(..)) = (a, b) {
        return integers(kind, a, b);
    }
    let f = |x: f64, y: f64| scalar::binary(kind, x, y);
    if let (Some(x), Some(y)) = (a.single(), b.single()) {
        return hull(&[f(x, y)], element);
    }
    if a == Nan || b == Nan {
        // No other function than pow has a number for NaN.
        return if kind == BinaryKind::Pow || a == Any || b == Any { Any } else { Nan };
    }
    let (Numbers(a0, a1), Numbers(b0, b1)) = (a, b) else { return Any };
    let is_infinite = |low: f64, high: f64| low.is_infinite() || high.is_infinite();
    let has_zero = |low: f64, high: f64| low <= 0.0 && high >= 0.0;
    let corners = [f(a0, b0), f(a0, b1), f(a1, b0), f(a1, b1)];
    let infinite = [is_infinite(a0, a1), is_infinite(b0, b1)];
    match kind {
        BinaryKind::Max | BinaryKind::Min => hull(&corners, element),
        // Infinities cancel.
        BinaryKind::Add | BinaryKind::Sub if infinite == [true, true] => Any,
        BinaryKind::Add | BinaryKind::Sub => hull(&corners, element),
        BinaryKind::Mul if infinite[0] && has_zero(b0, b1) || infinite[1] && has_zero(a0, a1) => Any,
        BinaryKind::Mul => hull(&corners, element),
        BinaryKind::Div if has_zero(b0, b1) || infinite == [true, true] => Any,
        BinaryKind::Div => hull(&corners, element),
        BinaryKind::Pow if a0 == 2.0 && a1 == 2.0 => hull(&corners, element),
        BinaryKind::Pow => Any,
    }
}

fn integers(kind: BinaryKind, a: Range, b: Range) -> Range {
    let (Integers(a0, a1), Integers(b0, b1)) = (a, b) else { return Any };
    if a0 == a1 && b0 == b1 {
        return scalar::integer(kind, a0, b0).map_or(Any, |result| Integers(result, result));
    }
    let f = |x: i32, y: i32| {
        let (x, y) = (i64::from(x), i64::from(y));
        match kind {
            BinaryKind::Add => Some(x + y),
            BinaryKind::Sub => Some(x - y),
            BinaryKind::Mul => Some(x * y),
            BinaryKind::Max => Some(x.max(y)),
            BinaryKind::Min => Some(x.min(y)),
            BinaryKind::Div | BinaryKind::Pow => None,
        }
    };
    let corners = [f(a0, b0), f(a0, b1), f(a1, b0), f(a1, b1)];
    let (least, most) = (corners.iter().min().copied().flatten(), corners.iter().max().copied().flatten());
    // Beyond the range of integers, results wrap around.
    let ends = [least, most].map(|end| end.and_then(|end| i32::try_from(end).ok()));
    match ends {
        [Some(low), Some(high)] => Integers(low, high),
        _ => Any,
    }
}

/// A function of the bits of two integers.
pub(crate) fn bitwise(kind: BitwiseKind, a: Range, b: Range) -> Range {
    let (Integers(a0, a1), Integers(b0, b1)) = (a, b) else { return Any };
    let f = |x: i32, y: i32| scalar::bitwise(kind, x, y);
    if a0 == a1 && b0 == b1 {
        return Integers(f(a0, b0), f(a0, b0));
    }
    match kind {
        BitwiseKind::And if b0 == b1 && keeps_order(a0, a1, b0) => Integers(a0 & b0, a1 & b0),
        BitwiseKind::And if a0 == a1 && keeps_order(b0, b1, a0) => Integers(b0 & a0, b1 & a0),
        BitwiseKind::And | BitwiseKind::Or => {
            let [[a0, a1], [b0, b1]] = [bits_of(a0, a1), bits_of(b0, b1)];
            let [low, high] = [f(a0, b0), f(a1, b1)];
            // The sign bit is common to a range, or else the ends are not in order.
            if low <= high { Integers(low, high) } else { Any }
        }
        BitwiseKind::ShiftLeft if b0 == b1 && (0..32).contains(&b0) => {
            let ends = [a0, a1].map(|x| i32::try_from(i64::from(x) << b0));
            match ends {
                [Ok(low), Ok(high)] => Integers(low, high),
                _ => Any,
            }
        }
        BitwiseKind::ShiftRight if b0 == b1 => Integers(f(a0, b0), f(a1, b0)),
        BitwiseKind::ShiftLeft | BitwiseKind::ShiftRight => Any,
    }
}

/// The bits that all integers of a range have, and those that some may have.
fn bits_of(low: i32, high: i32) -> [i32; 2] {
    let differing = (low ^ high) as u32;
    let below = u32::MAX.checked_shr(differing.leading_zeros()).unwrap_or(0) as i32;
    [low & !below, low | below]
}

/// Returns whether a mask keeps the order of the integers of a range: of the bits in which they differ, it keeps all or
/// the highest, and the sign is none of them.
fn keeps_order(low: i32, high: i32, mask: i32) -> bool {
    let differing = (low ^ high) as u32;
    let below = u32::MAX.checked_shr(differing.leading_zeros()).unwrap_or(0);
    let kept = mask as u32 & below;
    let highest = below & u32::MAX.checked_shl(kept.trailing_zeros()).unwrap_or(0);
    (low ^ high) >= 0 && kept == highest
}

/// Bounds, in the type of the operand.
pub(crate) fn clamp(x: Range, [min, max]: [f64; 2], element: ElementType) -> Range {
    match x {
        Nan => Nan,
        Numbers(low, high) => hull(&[low, high].map(|end| scalar::clamp(end, min, max)), Some(element)),
        Integers(..) | Any => Any,
    }
}

/// A comparison. `same` is true if both operands are the same value.
pub(crate) fn compare(predicate: Predicate, a: Range, b: Range, same: bool) -> Range {
    let truth = |holds: bool| Integers(i32::from(holds), i32::from(holds));
    if a == Nan || b == Nan {
        return truth(predicate == Predicate::Ne);
    }
    let (Some([a0, a1]), Some([b0, b1])) = (a.ends(), b.ends()) else { return Integers(0, 1) };
    if same {
        return truth(matches!(predicate, Predicate::Eq | Predicate::Le | Predicate::Ge));
    }
    let (holds, fails) = match predicate {
        Predicate::Lt => (a1 < b0, a0 >= b1),
        Predicate::Le => (a1 <= b0, a0 > b1),
        Predicate::Gt => (a0 > b1, a1 <= b0),
        Predicate::Ge => (a0 >= b1, a1 < b0),
        Predicate::Eq | Predicate::Ne => {
            let equal = a0 == a1 && b0 == b1 && a0 == b0;
            let apart = a1 < b0 || b1 < a0;
            if predicate == Predicate::Eq { (equal, apart) } else { (apart, equal) }
        }
    };
    match (holds, fails) {
        (true, _) => truth(true),
        (_, true) => truth(false),
        _ => Integers(0, 1),
    }
}

/// A choice between two values.
pub(crate) fn select(condition: Range, then: Range, otherwise: Range) -> Range {
    match (condition.single(), then, otherwise) {
        (Some(0.0), ..) => otherwise,
        (Some(_), ..) => then,
        (None, Numbers(a0, a1), Numbers(b0, b1)) => hull(&[a0, a1, b0, b1], None),
        (None, Integers(a0, a1), Integers(b0, b1)) => Integers(a0.min(b0), a1.max(b1)),
        _ => Any,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDS: [f64; 14] = [
        f64::NEG_INFINITY,
        -3.5,
        -1.0,
        -0.0,
        0.0,
        0.25,
        1.0,
        1.5,
        2.0,
        7.0,
        1e30,
        f64::INFINITY,
        -1e-40,
        1e-40,
    ];
    const WORDS: [i32; 10] = [i32::MIN, -2, -1, 0, 1, 5, 6, 255, 0x7F80_0000, i32::MAX];

    fn contains(range: Range, x: f64) -> bool {
        match range {
            Any => true,
            Nan => x.is_nan(),
            Numbers(low, high) => low.total_cmp(&x).is_le() && x.total_cmp(&high).is_le(),
            Integers(low, high) => (f64::from(low)..=f64::from(high)).contains(&x),
        }
    }

    /// Ranges between the ends, each with points inside it.
    fn ranges() -> Vec<(Range, Vec<f64>)> {
        let mut ranges = vec![(Nan, vec![f64::NAN])];
        for low in ENDS {
            for high in ENDS.into_iter().filter(|high| low.total_cmp(high).is_le()) {
                let inside =
                    ENDS.into_iter().filter(|x| low.total_cmp(x).is_le() && x.total_cmp(&high).is_le());
                ranges.push((Numbers(low, high), inside.collect()));
            }
        }
        ranges
    }

    fn integer_ranges() -> Vec<(Range, Vec<i32>)> {
        let mut ranges = Vec::new();
        for (index, low) in WORDS.into_iter().enumerate() {
            for high in &WORDS[index..] {
                let step = ((i64::from(*high) - i64::from(low)) / 37).max(1);
                let inside = (0..38).map(|i| i64::from(low) + i * step).filter(|x| *x <= i64::from(*high));
                let inside = inside.map(|x| x as i32).chain([*high]).collect();
                ranges.push((Integers(low, *high), inside));
            }
        }
        ranges
    }

    #[test]
    fn a_range_contains_what_a_function_of_numbers_takes() {
        let f32 = ElementType::F32;
        for (x, inside) in ranges() {
            for kind in UnaryKind::ALL {
                let range = unary(*kind, x, Some(f32));
                for point in &inside {
                    let value = scalar::round_to(f32, scalar::unary(*kind, *point));
                    assert!(
                        contains(range, value),
                        "{kind} of {point} in {x:?}: {value} is not in {range:?}"
                    );
                }
            }
            for element in
                [f32, ElementType::BF16, ElementType::I32, ElementType::F8E8M0FNU, ElementType::F8E4M3FN]
            {
                for point in &inside {
                    assert!(
                        contains(convert(x, element), scalar::round_to(element, *point)),
                        "{element} {x:?}"
                    );
                }
            }
            for (y, others) in ranges() {
                for kind in BinaryKind::ALL {
                    let range = binary(*kind, x, y, Some(f32));
                    for point in &inside {
                        for other in &others {
                            let value = scalar::round_to(f32, scalar::binary(*kind, *point, *other));
                            assert!(
                                contains(range, value),
                                "{kind} of {point} in {x:?}, {other} in {y:?}: {range:?}"
                            );
                        }
                    }
                }
                for predicate in Predicate::ALL {
                    let range = compare(*predicate, x, y, false);
                    for point in &inside {
                        for other in &others {
                            let holds = f64::from(u8::from(scalar::compare(*predicate, *point, *other)));
                            assert!(contains(range, holds), "{predicate} of {x:?} and {y:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_range_contains_what_a_function_of_bits_takes() {
        for (x, inside) in integer_ranges() {
            for to in [ElementType::F32, ElementType::F8E8M0FNU] {
                let range = bitcast(x, ElementType::I32, to);
                for point in &inside {
                    let value = match to {
                        ElementType::F32 => f64::from(scalar::of_bits(*point)),
                        _ => f64::from(fourfold_ir::numeric::e8m0_to_f32(*point as u8)),
                    };
                    assert!(contains(range, value), "{to} of {point} in {x:?}: {range:?}");
                    let back = f64::from(match to {
                        ElementType::F32 => scalar::bits_of(value as f32),
                        _ => *point & 0xFF,
                    });
                    assert!(contains(bitcast(range, to, ElementType::I32), back), "{to} {point} in {x:?}");
                }
            }
            for (y, others) in integer_ranges() {
                for point in &inside {
                    for other in &others {
                        for kind in BitwiseKind::ALL {
                            let value = f64::from(scalar::bitwise(*kind, *point, *other));
                            assert!(
                                contains(bitwise(*kind, x, y), value),
                                "{kind} {point} {other} {x:?} {y:?}"
                            );
                        }
                        for kind in [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max] {
                            let value = scalar::integer(kind, *point, *other).map_or(f64::NAN, f64::from);
                            assert!(contains(binary(kind, x, y, None), value), "{kind} {point} {other}");
                        }
                    }
                }
            }
        }
    }
}
