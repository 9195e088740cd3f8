//! The scalar functions behind the elementwise ops, shared by every implementation.
//!
//! They compute in `f64`; [`round_to`] rounds once to the type of the result. `exp`, `exp2`, `tanh`, `log`, `log2`,
//! `sin`, `cos`, `pow` and the error function come from the `libm` crate, so results do not depend on the system's math library.
//! [`integer`] and [`bitwise`] have the functions of two integers.
//!
//! # Double rounding
//!
//! Rounding an f64 result to a narrower type is a second rounding. It is innocuous for the basic operations. Let the
//! operands have p bits of precision. Sums, differences, products, quotients and square roots, first rounded to 53
//! bits, round to the correct p-bit result if 53 >= 2p + 2 (Figueroa, "When is double rounding innocuous?", 1995).
//! That holds for f32 (p = 24), f16 (11) and bf16 (8).
//!
//! Subnormal results are correct as well: such sums and all products are exact in f64, and a quotient is never closer
//! to a midpoint than f64 resolves. Therefore `neg`, `abs`, `relu`, `sqrt`, `reciprocal` and every binary op but `pow`
//! equal the IEEE operation of the result type. `floor`, `ceil` and `round` are exact: an integer between two values of
//! a type is a value of that type.

use std::f64::consts::FRAC_1_SQRT_2;

use crate::numeric;
use crate::ops::{BinaryKind, BitwiseKind, Predicate, ScaleRounding, UnaryKind};
use crate::types::ElementType;

/// Computes an elementwise function of one operand.
///
/// `sigmoid`, `silu`, `gelu` and `gelu_tanh` keep their relative accuracy near zero, and no finite operand gives NaN.
/// At -inf, `silu`, `gelu` and `gelu_tanh` are NaN, as in PyTorch: their formulas multiply -inf by 0. Each function
/// thus agrees with its formula everywhere.
pub fn unary(kind: UnaryKind, x: f64) -> f64 {
    match kind {
        UnaryKind::Neg => -x,
        UnaryKind::Abs => x.abs(),
        UnaryKind::Exp => libm::exp(x),
        UnaryKind::Sqrt => x.sqrt(),
        UnaryKind::Rsqrt => 1.0 / x.sqrt(),
        UnaryKind::Reciprocal => 1.0 / x,
        UnaryKind::Tanh => libm::tanh(x),
        UnaryKind::Erf => libm::erf(x),
        UnaryKind::Sigmoid => sigmoid(x),
        UnaryKind::Relu => maximum(x, 0.0),
        // Φ(x) = erfc(-x/√2)/2 stays accurate where 1 + erf(x/√2) cancels.
        UnaryKind::Gelu => x * (0.5 * libm::erfc(-x * FRAC_1_SQRT_2)),
        // (1 + tanh(u))/2 = sigmoid(2u) stays accurate where the sum cancels.
        UnaryKind::GeluTanh => x * sigmoid(2.0 * gelu_tanh_argument(x)),
        UnaryKind::Silu => x * sigmoid(x),
        UnaryKind::Log => libm::log(x),
        UnaryKind::Sin => libm::sin(x),
        UnaryKind::Cos => libm::cos(x),
        UnaryKind::Floor => x.floor(),
        UnaryKind::Ceil => x.ceil(),
        UnaryKind::Round => x.round_ties_even(),
        UnaryKind::Exp2 => libm::exp2(x),
        UnaryKind::Log2 => libm::log2(x),
    }
}

/// Computes an elementwise function of two operands. `max` and `min` are IEEE 754-2019 maximum and minimum: NaN
/// propagates and -0 < +0.
pub fn binary(kind: BinaryKind, a: f64, b: f64) -> f64 {
    match kind {
        BinaryKind::Add => a + b,
        BinaryKind::Sub => a - b,
        BinaryKind::Mul => a * b,
        BinaryKind::Div => a / b,
        BinaryKind::Max => maximum(a, b),
        BinaryKind::Min => -maximum(-a, -b),
        BinaryKind::Pow => libm::pow(a, b),
    }
}

/// Computes a function of two integers. `add`, `sub` and `mul` wrap around: the result is the exact one modulo 2^32.
/// `None` for `div` and `pow`, which integers do not have.
pub fn integer(kind: BinaryKind, a: i32, b: i32) -> Option<i32> {
    match kind {
        BinaryKind::Add => Some(a.wrapping_add(b)),
        BinaryKind::Sub => Some(a.wrapping_sub(b)),
        BinaryKind::Mul => Some(a.wrapping_mul(b)),
        BinaryKind::Max => Some(a.max(b)),
        BinaryKind::Min => Some(a.min(b)),
        BinaryKind::Div | BinaryKind::Pow => None,
    }
}

/// Computes a function of the bits of two integers.
pub fn bitwise(kind: BitwiseKind, a: i32, b: i32) -> i32 {
    // A negative amount becomes a large one.
    let amount = b as u32;
    match kind {
        BitwiseKind::And => a & b,
        BitwiseKind::Or => a | b,
        BitwiseKind::ShiftLeft => a.checked_shl(amount).unwrap_or(0),
        BitwiseKind::ShiftRight => a >> amount.min(i32::BITS - 1),
    }
}

/// Returns the bits of an f32 as an integer. Every NaN has the bits 0x7FC00000.
pub fn bits_of(x: f32) -> i32 {
    if x.is_nan() { CANONICAL_NAN } else { x.to_bits() as i32 }
}

/// Returns the f32 with these bits. Every NaN is the one with the bits 0x7FC00000.
pub fn of_bits(bits: i32) -> f32 {
    let x = f32::from_bits(bits as u32);
    if x.is_nan() { f32::from_bits(CANONICAL_NAN as u32) } else { x }
}

/// The bits of every NaN.
const CANONICAL_NAN: i32 = 0x7FC0_0000;

/// Computes min(max(x, min), max) with the `max` and `min` of [`binary`]: NaN propagates, from bounds as well.
pub fn clamp(x: f64, min: f64, max: f64) -> f64 {
    binary(BinaryKind::Min, binary(BinaryKind::Max, x, min), max)
}

/// Compares two numbers. Comparisons with NaN are false, except `ne`; -0 equals +0.
pub fn compare(predicate: Predicate, a: f64, b: f64) -> bool {
    match predicate {
        Predicate::Eq => a == b,
        Predicate::Ne => a != b,
        Predicate::Lt => a < b,
        Predicate::Le => a <= b,
        Predicate::Gt => a > b,
        Predicate::Ge => a >= b,
    }
}

/// Rounds `x` once to a value of the element type, to nearest even, as `convert` does:
/// - `f16`, `bf16` and `f32` overflow to infinity;
/// - FP4, FP6 and FP8 saturate;
/// - `i32` saturates and maps NaN to 0;
/// - `i1` is 0 for zero and 1 otherwise, NaN included;
/// - `f8E8M0FNU` rounds down to a power of two.
pub fn round_to(element: ElementType, x: f64) -> f64 {
    f64::from(match element {
        ElementType::F4E2M1FN => numeric::e2m1_to_f32(numeric::e2m1_from_f64(x)),
        ElementType::F6E2M3FN => numeric::e2m3_to_f32(numeric::e2m3_from_f64(x)),
        ElementType::F6E3M2FN => numeric::e3m2_to_f32(numeric::e3m2_from_f64(x)),
        ElementType::F8E4M3FN => numeric::e4m3_to_f32(numeric::e4m3_from_f64(x)),
        ElementType::F8E5M2 => numeric::e5m2_to_f32(numeric::e5m2_from_f64(x)),
        ElementType::F8E8M0FNU => {
            numeric::e8m0_to_f32(numeric::e8m0_from_f32(x as f32, ScaleRounding::Floor))
        }
        ElementType::F16 => numeric::f16_bits_to_f32(numeric::f64_to_f16_bits(x)),
        ElementType::BF16 => numeric::bf16_bits_to_f32(numeric::f64_to_bf16_bits(x)),
        ElementType::F32 => numeric::f64_to_f32(x),
        // `as` saturates and maps NaN to 0, but truncates: round first.
        ElementType::I32 => return f64::from(x.round_ties_even() as i32),
        ElementType::I1 => return f64::from(u8::from(x != 0.0)),
    })
}

fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else if a == b {
        // -0 == +0: return +0 if either operand is.
        if a.is_sign_positive() { a } else { b }
    } else if a > b {
        a
    } else {
        b
    }
}

/// Evaluates `exp` only at non-positive arguments, so it cannot overflow and small results keep their relative
/// accuracy.
fn sigmoid(x: f64) -> f64 {
    if x < 0.0 {
        let e = libm::exp(x);
        e / (1.0 + e)
    } else {
        1.0 / (1.0 + libm::exp(-x))
    }
}

fn gelu_tanh_argument(x: f64) -> f64 {
    // sqrt(2/π), rounded to f64.
    const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
    SQRT_2_OVER_PI * (x + 0.044715 * (x * x * x))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check_close(kind: UnaryKind, x: f64, expected: f64) {
        let found = unary(kind, x);
        let error = ((found - expected) / expected).abs();
        assert!(error < 1e-14, "{kind}({x}) = {found:e}, not {expected:e}");
    }

    #[track_caller]
    fn check_bits(found: f64, expected: f64) {
        assert_eq!(found.to_bits(), expected.to_bits(), "{found} is not {expected}");
    }

    #[test]
    fn transcendental_functions_have_their_tabulated_values() {
        check_close(UnaryKind::Exp, 1.0, std::f64::consts::E);
        check_close(UnaryKind::Tanh, 0.5, 0.462_117_157_260_009_76);
        check_close(UnaryKind::Erf, 0.5, 0.520_499_877_813_046_5);
        check_close(UnaryKind::Erf, -1.0, -0.842_700_792_949_714_9);
        check_close(UnaryKind::Erf, 1e-20, 1.128_379_167_095_512_6e-20);
        check_close(UnaryKind::Sigmoid, 2.0, 0.880_797_077_977_882_4);
        check_close(UnaryKind::Sigmoid, -2.0, 0.119_202_922_022_117_57);
        check_close(UnaryKind::Silu, 1.0, 0.731_058_578_630_004_9);
        check_close(UnaryKind::Silu, -1.0, -0.268_941_421_369_995_1);
        check_close(UnaryKind::Gelu, 1.0, 0.841_344_746_068_542_9);
        check_close(UnaryKind::Gelu, -1.0, -0.158_655_253_931_457_05);
        check_close(UnaryKind::GeluTanh, 1.0, 0.841_191_990_608_276_1);
        check_close(UnaryKind::Rsqrt, 4.0, 0.5);
        check_close(UnaryKind::Reciprocal, -8.0, -0.125);
    }

    #[test]
    fn small_results_in_the_left_tail_keep_their_relative_accuracy() {
        // Φ(-10) = 7.619853024160526e-24; 1 + erf(-10/√2) is zero in f64.
        check_close(UnaryKind::Gelu, -10.0, -7.619_853_024_160_526e-23);
        check_close(UnaryKind::Silu, -100.0, -100.0 * 3.720_075_976_020_836e-44);
        check_close(UnaryKind::Sigmoid, -700.0, 9.859_676_543_759_77e-305);
        check_close(UnaryKind::GeluTanh, -10.0, -1.204_092_348_209_806e-37);
    }

    #[test]
    fn activations_are_what_their_formulas_are_at_the_infinities() {
        for kind in [UnaryKind::Gelu, UnaryKind::GeluTanh, UnaryKind::Silu] {
            assert!(unary(kind, f64::NEG_INFINITY).is_nan(), "-inf · 0");
            check_bits(unary(kind, f64::from(-f32::MAX)), -0.0);
            check_bits(unary(kind, f64::INFINITY), f64::INFINITY);
            check_bits(unary(kind, f64::from(f32::MAX)), f64::from(f32::MAX));
            assert!(unary(kind, f64::NAN).is_nan());
        }
        check_bits(unary(UnaryKind::Sigmoid, f64::NEG_INFINITY), 0.0);
        check_bits(unary(UnaryKind::Sigmoid, f64::INFINITY), 1.0);
        check_bits(unary(UnaryKind::Tanh, f64::NEG_INFINITY), -1.0);
        check_bits(unary(UnaryKind::Exp, f64::NEG_INFINITY), 0.0);
    }

    #[test]
    fn max_min_relu_and_clamp_propagate_nan_and_order_the_zeros() {
        let nan = f64::NAN;
        for kind in [BinaryKind::Max, BinaryKind::Min] {
            assert!(binary(kind, nan, 1.0).is_nan() && binary(kind, 1.0, nan).is_nan());
        }
        assert!(unary(UnaryKind::Relu, nan).is_nan());
        assert!(clamp(nan, -1.0, 1.0).is_nan());
        for (a, b) in [(0.0, -0.0), (-0.0, 0.0)] {
            check_bits(binary(BinaryKind::Max, a, b), 0.0);
            check_bits(binary(BinaryKind::Min, a, b), -0.0);
        }
        check_bits(binary(BinaryKind::Min, 2.0, -3.0), -3.0);
        check_bits(binary(BinaryKind::Max, 2.0, -3.0), 2.0);
        check_bits(unary(UnaryKind::Relu, -0.0), 0.0);
        check_bits(unary(UnaryKind::Relu, -2.0), 0.0);
        check_bits(unary(UnaryKind::Relu, 2.5), 2.5);
        assert_eq!([-3.0, 0.5, 9.0].map(|x| clamp(x, -1.0, 6.0)), [-1.0, 0.5, 6.0]);
        assert_eq!(clamp(0.0, 2.0, 1.0), 1.0, "the upper bound wins");
    }

    #[test]
    fn logarithms_sines_and_powers_have_their_tabulated_values() {
        check_close(UnaryKind::Log, 10.0, std::f64::consts::LN_10);
        check_close(UnaryKind::Log, 1e-40, -92.103_403_719_761_83);
        check_close(UnaryKind::Sin, 0.5, 0.479_425_538_604_203);
        check_close(UnaryKind::Sin, 1e10, -0.487_506_025_087_510_7);
        check_close(UnaryKind::Cos, 0.5, 0.877_582_561_890_372_8);
        check_close(UnaryKind::Cos, -3.0, -0.989_992_496_600_445_4);
        check_bits(unary(UnaryKind::Log, 0.0), f64::NEG_INFINITY);
        check_bits(unary(UnaryKind::Log, f64::INFINITY), f64::INFINITY);
        check_bits(unary(UnaryKind::Sin, -0.0), -0.0);
        assert!(unary(UnaryKind::Log, -1e-300).is_nan());
        for kind in [UnaryKind::Sin, UnaryKind::Cos] {
            assert!(unary(kind, f64::INFINITY).is_nan() && unary(kind, f64::NAN).is_nan());
        }
        let pow = |a, b| binary(BinaryKind::Pow, a, b);
        assert!((pow(2.0, 0.5) - std::f64::consts::SQRT_2).abs() < 1e-15);
        assert_eq!(
            [pow(-2.0, 3.0), pow(3.0, -1.0), pow(f64::NAN, 0.0), pow(1.0, f64::NAN)],
            [-8.0, 1.0 / 3.0, 1.0, 1.0]
        );
        assert!(pow(-2.0, 0.5).is_nan() && pow(f64::NAN, 1.0).is_nan());
        check_bits(pow(0.0, -1.0), f64::INFINITY);
        check_bits(pow(-0.0, -1.0), f64::NEG_INFINITY);
    }

    #[test]
    fn rounding_functions_keep_the_sign_of_zero_and_go_to_even() {
        let of = |kind| [-2.5, -0.5, 0.5, 1.5, 2.5].map(|x| unary(kind, x));
        assert_eq!(of(UnaryKind::Floor), [-3.0, -1.0, 0.0, 1.0, 2.0]);
        assert_eq!(of(UnaryKind::Ceil), [-2.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(of(UnaryKind::Round), [-2.0, 0.0, 0.0, 2.0, 2.0]);
        for kind in [UnaryKind::Floor, UnaryKind::Ceil, UnaryKind::Round] {
            check_bits(unary(kind, -0.0), -0.0);
            check_bits(unary(kind, f64::NEG_INFINITY), f64::NEG_INFINITY);
            assert!(unary(kind, f64::NAN).is_nan());
        }
        check_bits(unary(UnaryKind::Ceil, -0.5), -0.0);
        check_bits(unary(UnaryKind::Round, -0.5), -0.0);
    }

    #[test]
    fn integers_wrap_around() {
        let of = |kind, a, b| integer(kind, a, b);
        assert_eq!(of(BinaryKind::Add, i32::MAX, 1), Some(i32::MIN));
        assert_eq!(of(BinaryKind::Sub, i32::MIN, 1), Some(i32::MAX));
        assert_eq!(of(BinaryKind::Mul, 65_537, 65_537), Some(131_073));
        assert_eq!(of(BinaryKind::Max, -3, 2), Some(2));
        assert_eq!(of(BinaryKind::Min, i32::MIN, 2), Some(i32::MIN));
        assert_eq!([of(BinaryKind::Div, 4, 2), of(BinaryKind::Pow, 4, 2)], [None, None]);
    }

    #[test]
    fn only_ne_is_true_of_nan() {
        let holds = |predicate: &Predicate| compare(*predicate, f64::NAN, 1.0);
        assert_eq!(Predicate::ALL.iter().copied().filter(holds).collect::<Vec<_>>(), [Predicate::Ne]);
        let of = |a, b| Predicate::ALL.iter().map(|p| compare(*p, a, b)).collect::<Vec<_>>();
        assert_eq!(of(1.0, 2.0), [false, true, true, true, false, false]);
        assert_eq!(of(-0.0, 0.0), [true, false, false, true, false, true]);
    }

    #[test]
    fn rounding_saturates_overflows_or_wraps_as_the_type_says() {
        use ElementType::{BF16, F4E2M1FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32, I1, I32};
        let big = [F4E2M1FN, F8E4M3FN, F8E5M2, F16, BF16, F32, I32].map(|element| round_to(element, 1e300));
        assert_eq!(big, [6.0, 448.0, 57344.0, f64::INFINITY, f64::INFINITY, f64::INFINITY, 2147483647.0]);
        assert_eq!([F4E2M1FN, I32, I1].map(|element| round_to(element, f64::NAN)), [6.0, 0.0, 1.0]);
        assert!(
            [F8E4M3FN, F8E5M2, F16, BF16, F32].iter().all(|element| round_to(*element, f64::NAN).is_nan())
        );
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5].map(|x| round_to(I32, x)), [0.0, 2.0, 2.0, 0.0, -2.0]);
        assert_eq!([1.25, 1.3, 2.5].map(|x| round_to(F4E2M1FN, x)), [1.0, 1.5, 2.0]);
        assert_eq!(round_to(BF16, 1.00390625), 1.0, "a tie goes to the even neighbour");
        assert_eq!(round_to(F16, 2049.0), 2048.0);
        assert_eq!(round_to(F32, 16_777_217.0), 16_777_216.0);
        assert_eq!(round_to(F8E8M0FNU, 3.9), 2.0);
        check_bits(round_to(F16, -1e-300), -0.0);
    }

    fn same(found: f64, expected: f32) -> bool {
        let found = round_to(ElementType::F32, found) as f32;
        found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn rounding_the_f64_result_is_the_ieee_operation_in_f32(a: u32, b: u32, small_b in 0u32..1 << 25) {
            let a = f32::from_bits(a);
            for b in [f32::from_bits(b), f32::from_bits(small_b), a.next_up()] {
                let (x, y) = (f64::from(a), f64::from(b));
                prop_assert!(same(binary(BinaryKind::Add, x, y), a + b));
                prop_assert!(same(binary(BinaryKind::Sub, x, y), a - b));
                prop_assert!(same(binary(BinaryKind::Mul, x, y), a * b));
                prop_assert!(same(binary(BinaryKind::Div, x, y), a / b));
                prop_assert!(same(binary(BinaryKind::Div, y, x), b / a));
            }
            prop_assert!(same(unary(UnaryKind::Sqrt, f64::from(a)), a.sqrt()));
            prop_assert!(same(unary(UnaryKind::Reciprocal, f64::from(a)), 1.0 / a));
        }

        #[test]
        fn subnormal_quotients_are_rounded_correctly(a in 0u32..1 << 25, b in 0x3F00_0000u32..0x4F00_0000) {
            let (a, b) = (f32::from_bits(a), f32::from_bits(b));
            prop_assert!(same(binary(BinaryKind::Div, f64::from(a), f64::from(b)), a / b));
        }
    }
}
