//! Intervals of i32 values and of bits. An interval of more than one number is kept where the function is monotonic
//! there; otherwise the result may be any number.

use fourfold_ir::{BinaryKind, BitwiseKind, ElementType, scalar};

use super::super::interval::{Interval, UNKNOWN, as_point};

const LEAST: f64 = i32::MIN as f64;
const MOST: f64 = i32::MAX as f64;
/// The bits of +inf.
const INFINITY: f64 = 0x7F80_0000 as f64;
/// The code of 2^127, the largest scale.
const LARGEST_SCALE: f64 = 254.0;

/// Returns the interval of a function of two integers, which wraps around.
pub(super) fn binary(kind: BinaryKind, a: Interval, b: Interval) -> Interval {
    if let (Some(a), Some(b)) = (as_integer(a), as_integer(b)) {
        return scalar::integer(kind, a, b).map_or(UNKNOWN, |result| [f64::from(result); 2]);
    }
    let products = [a[0] * b[0], a[0] * b[1], a[1] * b[0], a[1] * b[1]];
    let ends = match kind {
        BinaryKind::Add => [a[0] + b[0], a[1] + b[1]],
        BinaryKind::Sub => [a[0] - b[1], a[1] - b[0]],
        BinaryKind::Mul => [
            products.into_iter().fold(f64::INFINITY, f64::min),
            products.into_iter().fold(f64::NEG_INFINITY, f64::max),
        ],
        BinaryKind::Max => [a[0].max(b[0]), a[1].max(b[1])],
        BinaryKind::Min => [a[0].min(b[0]), a[1].min(b[1])],
        BinaryKind::Div | BinaryKind::Pow => return UNKNOWN,
    };
    // A result that may wrap around may be anything.
    if LEAST <= ends[0] && ends[1] <= MOST { ends } else { UNKNOWN }
}

/// Returns the interval of a function of the bits of two integers.
pub(super) fn bitwise(kind: BitwiseKind, a: Interval, b: Interval) -> Interval {
    let Some(second) = as_integer(b) else {
        // `and` and `or` may have the constant on the left.
        return match (kind, as_integer(a)) {
            (BitwiseKind::And | BitwiseKind::Or, Some(_)) => bitwise(kind, b, a),
            _ => UNKNOWN,
        };
    };
    let f = |end: f64| f64::from(scalar::bitwise(kind, end as i32, second));
    if let Some(first) = as_integer(a) {
        return [f(f64::from(first)); 2];
    }
    let is_bounded = LEAST <= a[0] && a[1] <= MOST;
    let is_monotonic = is_bounded
        && match kind {
            // A mask that clears the low bits rounds down.
            BitwiseKind::And => a[0] >= 0.0 && clears_low_bits(second),
            BitwiseKind::Or => false,
            BitwiseKind::ShiftLeft => {
                (0..31).contains(&second) && {
                    let factor = f64::from(1u32 << second);
                    LEAST <= a[0] * factor && a[1] * factor <= MOST
                }
            }
            BitwiseKind::ShiftRight => true,
        };
    if is_monotonic { a.map(f) } else { UNKNOWN }
}

/// Returns true if a mask keeps the high bits of a non-negative number, down to some bit, and clears the others.
fn clears_low_bits(mask: i32) -> bool {
    let mask = (mask & i32::MAX) as u32;
    mask.trailing_zeros().min(31) + mask.count_ones() == 31
}

/// Returns the interval of the bits of a value as another type.
pub(super) fn bitcast(from: ElementType, to: ElementType, x: Interval) -> Interval {
    let point = as_point(x);
    match (from, to) {
        (ElementType::F32, ElementType::I32) => match (point, x) {
            (Some(x), _) => [bits(x); 2],
            // The bits of negative numbers, as integers, rise with the magnitude.
            (None, [low, high]) if low > 0.0 => [bits(low), bits(high)],
            (None, [low, high]) if high < 0.0 => [bits(high), bits(low)],
            _ => UNKNOWN,
        },
        (ElementType::I32, ElementType::F32) => match as_integer(x) {
            Some(bits) => [f64::from(scalar::of_bits(bits)); 2],
            None if x[0] >= 0.0 && x[1] <= INFINITY => x.map(|end| f64::from(scalar::of_bits(end as i32))),
            None => UNKNOWN,
        },
        (ElementType::F8E8M0FNU, ElementType::I32) => match point {
            Some(scale) => [scale_code(scale); 2],
            None if x[0] > 0.0 && x[1].is_finite() => x.map(scale_code),
            None => UNKNOWN,
        },
        (ElementType::I32, ElementType::F8E8M0FNU) => match as_integer(x) {
            Some(code) => [scale_of(f64::from(code & 0xFF)); 2],
            None if x[0] >= 0.0 && x[1] <= LARGEST_SCALE => x.map(scale_of),
            None => UNKNOWN,
        },
        _ if from == to => x,
        _ => UNKNOWN,
    }
}

fn as_integer(x: Interval) -> Option<i32> {
    as_point(x).filter(|x| (LEAST..=MOST).contains(x)).map(|x| x as i32)
}

fn bits(x: f64) -> f64 {
    f64::from(scalar::bits_of(x as f32))
}

/// Returns the code of a power of two.
fn scale_code(scale: f64) -> f64 {
    if scale.is_nan() {
        return 255.0;
    }
    ((scale.to_bits() >> 52) as i32 - 1023 + 127).into()
}

fn scale_of(code: f64) -> f64 {
    if code > LARGEST_SCALE { f64::NAN } else { 2f64.powi(code as i32 - 127) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_integer_stays_within_its_interval() {
        let ends = [-70_000, -4096, -3, 0, 1, 5, 127, 4095, 70_000, 0x3F80_0001, i32::MAX - 9];
        for low in ends {
            let x = [f64::from(low), f64::from(low) + 9.0];
            for second in [-8, -1, 0, 1, 3, 23, 31, 40, 0x7F80_0000, 0x7FFF_FFF0, !0xFF, i32::MIN] {
                let y = [f64::from(second); 2];
                for point in [0, 4, 9].map(|more| low + more) {
                    let inside = |value: i32, [least, most]: Interval| {
                        least <= f64::from(value) && f64::from(value) <= most
                    };
                    for kind in BitwiseKind::ALL {
                        let value = scalar::bitwise(*kind, point, second);
                        assert!(inside(value, bitwise(*kind, x, y)), "{kind} of {x:?} and {second}");
                    }
                    for kind in BinaryKind::ALL {
                        let Some(value) = scalar::integer(*kind, point, second) else { continue };
                        assert!(inside(value, binary(*kind, x, y)), "{kind} of {x:?} and {second}");
                    }
                    let float = f64::from(scalar::of_bits(point));
                    let [least, most] = bitcast(ElementType::I32, ElementType::F32, x);
                    assert!(float.is_nan() || least <= float && float <= most, "{point}");
                }
            }
        }
        assert_eq!(bitwise(BitwiseKind::And, [5.0, 40.0], [f64::from(!15); 2]), [0.0, 32.0]);
    }

    #[test]
    fn the_bits_of_numbers_are_ordered_on_either_side_of_zero() {
        let (float, int) = (ElementType::F32, ElementType::I32);
        let bits = |x: f32| f64::from(x.to_bits() as i32);
        assert_eq!(bitcast(float, int, [1.0, 2.0]), [bits(1.0), bits(2.0)]);
        assert_eq!(bitcast(float, int, [-2.0, -1.0]), [bits(-1.0), bits(-2.0)]);
        assert_eq!(bitcast(float, int, [-1.0, 1.0]), UNKNOWN);
        assert_eq!(bitcast(float, int, [f64::NAN; 2]), [f64::from(0x7FC0_0000); 2]);
        let scale = ElementType::F8E8M0FNU;
        assert_eq!(bitcast(scale, int, [0.5, 2.0]), [126.0, 128.0]);
        assert_eq!(bitcast(int, scale, [126.0, 128.0]), [0.5, 2.0]);
        assert!(bitcast(int, scale, [255.0; 2])[0].is_nan());
    }
}
