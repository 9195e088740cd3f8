//! Compares the number formats code by code with four independent crates, and names each intended difference.
//!
//! `float8` and `float4` follow CUDA's `satfinite` conversions, `microfloat` follows ml_dtypes, and `half` implements
//! `f16` and `bf16`.

use float4::{E8M0, F4E2M1};
use float8::{F8E4M3, F8E5M2};
use fourfold_ir::numeric::*;
use half::{bf16, f16};
use microfloat::{f4e2m1fn, f8e4m3fn, f8e5m2, f8e8m0fnu};

/// The sweep has 4.2 million magnitudes. Fewer probes than this mean that a filter removed it.
const MIN_PROBES: usize = 4_000_000;

/// Returns true if two decoders agree: the same bits, or both NaN.
#[track_caller]
fn assert_same_value(ours: f32, theirs: f32, code: u16) {
    let same = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
    assert!(same, "code {code:#x}: ours {ours:e}, theirs {theirs:e}");
}

/// The critical inputs of a format's encoder, given all values of the format. They are each value, the midpoints
/// between them and beyond the last, the adjacent `f32`s, both ends, and a sweep over all magnitudes. Both signs,
/// no NaN.
fn probes(decode: impl Fn(u16) -> f32, codes: u32) -> Vec<f32> {
    let mut magnitudes: Vec<f32> = (0..codes)
        .map(|code| decode(code as u16))
        .filter(|v| v.is_finite() && v.is_sign_positive())
        .collect();
    magnitudes.sort_by(f32::total_cmp);
    magnitudes.dedup();

    let last = magnitudes.len() - 1;
    let last_unit = magnitudes[last] - magnitudes[last - 1];
    let midpoints = magnitudes.windows(2).map(|pair| f32::midpoint(pair[0], pair[1]));
    let edge = [0.5, 1.0, 1.5, 2.0].map(|units| magnitudes[last] + units * last_unit);
    let extremes = [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1e30, f32::MAX];

    let mut probes: Vec<f32> =
        midpoints.chain(edge).chain(extremes).chain(magnitudes.iter().copied()).collect();
    for v in probes.clone() {
        probes.push(v.next_up());
        probes.push(v.next_down().max(0.0));
    }
    probes.extend(sweep());
    probes.push(f32::INFINITY);
    for v in probes.clone() {
        probes.push(-v);
    }
    probes
}

/// Four million finite magnitudes over all exponents. The step is prime, so that the low bits vary.
fn sweep() -> impl Iterator<Item = f32> {
    (0..f32::INFINITY.to_bits()).step_by(509).map(f32::from_bits)
}

#[track_caller]
fn assert_same_codes(probes: &[f32], ours: impl Fn(f32) -> u16, theirs: impl Fn(f32) -> u16) {
    assert!(probes.len() >= MIN_PROBES, "the sweep has too few probes");
    for &v in probes {
        let (ours, theirs) = (ours(v), theirs(v));
        assert_eq!(
            ours,
            theirs,
            "encoding {v:e} ({:#010x}): ours {ours:#x}, theirs {theirs:#x}",
            v.to_bits()
        );
    }
}

fn float8_e4m3(v: f32) -> u8 {
    F8E4M3::from_f32(v).to_bits()
}

fn float8_e5m2(v: f32) -> u8 {
    F8E5M2::from_f32(v).to_bits()
}

fn float4_e2m1(v: f32) -> u8 {
    F4E2M1::from_f64(f64::from(v)).to_bits()
}

fn microfloat_e2m1(v: f32) -> u8 {
    f4e2m1fn::from_f32(v).to_bits()
}

fn microfloat_e4m3(v: f32) -> u8 {
    f8e4m3fn::from_f32(v).to_bits()
}

fn microfloat_e5m2(v: f32) -> u8 {
    f8e5m2::from_f32(v).to_bits()
}

fn microfloat_e8m0(v: f32) -> u8 {
    f8e8m0fnu::from_f32(v).to_bits()
}

#[test]
fn every_e2m1_code_decodes_like_float4_and_microfloat() {
    for code in 0..16u8 {
        assert_same_value(e2m1_to_f32(code), F4E2M1::from_bits(code).to_f64() as f32, code.into());
        assert_same_value(e2m1_to_f32(code), f4e2m1fn::from_bits(code).to_f32(), code.into());
    }
}

#[test]
fn every_eight_bit_code_decodes_like_float8_and_microfloat() {
    for code in 0..=255u8 {
        assert_same_value(e4m3_to_f32(code), F8E4M3::from_bits(code).to_f32(), code.into());
        assert_same_value(e4m3_to_f32(code), f8e4m3fn::from_bits(code).to_f32(), code.into());
        assert_same_value(e5m2_to_f32(code), F8E5M2::from_bits(code).to_f32(), code.into());
        assert_same_value(e5m2_to_f32(code), f8e5m2::from_bits(code).to_f32(), code.into());
    }
}

#[test]
fn every_e8m0_code_decodes_like_float4_and_microfloat() {
    for code in 0..=255u8 {
        assert_same_value(e8m0_to_f32(code), E8M0::from_bits(code).to_f64() as f32, code.into());
        assert_same_value(e8m0_to_f32(code), f8e8m0fnu::from_bits(code).to_f32(), code.into());
    }
}

#[test]
fn every_sixteen_bit_code_decodes_like_half() {
    for code in 0..=u16::MAX {
        assert_same_value(f16_bits_to_f32(code), f16::from_bits(code).to_f32_const(), code);
        assert_same_value(bf16_bits_to_f32(code), bf16::from_bits(code).to_f32_const(), code);
    }
}

#[test]
fn e2m1_encodes_like_float4_and_microfloat() {
    let probes = probes(|code| f4e2m1fn::from_bits(code as u8).to_f32(), 16);
    assert_same_codes(&probes, |v| e2m1_from_f32(v).into(), |v| float4_e2m1(v).into());
    assert_same_codes(&probes, |v| e2m1_from_f32(v).into(), |v| microfloat_e2m1(v).into());
    assert_eq!([f32::NAN, -f32::NAN].map(e2m1_from_f32), [f32::NAN, -f32::NAN].map(float4_e2m1));
}

#[test]
fn e4m3_encodes_like_float8_everywhere_and_like_microfloat_until_it_overflows() {
    let mut probes = probes(|code| F8E4M3::from_bits(code as u8).to_f32(), 256);
    assert_same_codes(&probes, |v| e4m3_from_f32(v).into(), |v| float8_e4m3(v).into());
    // Half a unit of 32 above 448.
    probes.retain(|v| v.abs() < 464.0);
    assert_same_codes(&probes, |v| e4m3_from_f32(v).into(), |v| microfloat_e4m3(v).into());
}

#[test]
fn e5m2_encodes_like_float8_everywhere_and_like_microfloat_until_it_overflows() {
    let mut probes = probes(|code| F8E5M2::from_bits(code as u8).to_f32(), 256);
    assert_same_codes(&probes, |v| e5m2_from_f32(v).into(), |v| float8_e5m2(v).into());
    // Half a unit of 8192 above 57344.
    probes.retain(|v| v.abs() < 61440.0);
    assert_same_codes(&probes, |v| e5m2_from_f32(v).into(), |v| microfloat_e5m2(v).into());
}

#[test]
fn an_f64_next_to_a_midpoint_encodes_like_float8_and_float4() {
    let mut compared = 0;
    for code in 0..0x7Eu8 {
        for (decode, encode, theirs) in [
            (
                e2m1_to_f32 as fn(u8) -> f32,
                e2m1_from_f64 as fn(f64) -> u8,
                (|v| F4E2M1::from_f64(v).to_bits()) as fn(f64) -> u8,
            ),
            (e4m3_to_f32, e4m3_from_f64, |v| F8E4M3::from_f64(v).to_bits()),
            (e5m2_to_f32, e5m2_from_f64, |v| F8E5M2::from_f64(v).to_bits()),
        ] {
            let midpoint = f64::midpoint(decode(code).into(), decode(code + 1).into());
            if midpoint.is_finite() {
                for v in [midpoint.next_down(), midpoint, midpoint.next_up()] {
                    assert_eq!([encode(v), encode(-v)], [theirs(v), theirs(-v)], "{v:e}");
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 3 * (126 + 126 + 123));
}

#[test]
fn sixteen_bits_encode_an_f32_like_half() {
    let f16_probes = probes(|code| f16::from_bits(code).to_f32(), 1 << 16);
    assert_same_codes(&f16_probes, f32_to_f16_bits, |v| f16::from_f32_const(v).to_bits());
    let bf16_probes = probes(|code| bf16::from_bits(code).to_f32(), 1 << 16);
    assert_same_codes(&bf16_probes, f32_to_bf16_bits, |v| bf16::from_f32(v).to_bits());
}

#[test]
fn e8m0_rounded_up_encodes_positive_numbers_like_float4() {
    let mut probes = probes(|code| E8M0::from_bits(code as u8).to_f64() as f32, 256);
    probes.retain(|v| *v >= 0.0);
    probes.extend(sweep().map(f32::next_up));
    assert_same_codes(
        &probes,
        |v| e8m0_from_f32(v, ScaleRounding::Ceil).into(),
        |v| E8M0::from_f64(f64::from(v)).to_bits().into(),
    );
}

#[test]
fn packing_puts_the_even_element_where_float4_does() {
    let codes: Vec<u8> = (0..=255u8).flat_map(|byte| [byte & 0xF, byte >> 4]).collect();
    let values: Vec<F4E2M1> = codes.iter().map(|&code| F4E2M1::from_bits(code)).collect();
    let theirs: Vec<u8> = float4::pack(&values).iter().map(|pair| pair.to_bits()).collect();
    assert_eq!(pack_e2m1(&codes), theirs);
    assert_eq!(theirs, (0..=255).collect::<Vec<u8>>());
}

// The intended differences. Each test pins both sides.

#[test]
fn float4_rounds_e8m0_up_ours_states_floor_or_ceil() {
    for (v, floor, ceil) in [(std::f32::consts::SQRT_2, 127, 128), (0.7, 126, 127)] {
        assert_eq!(E8M0::from_f64(f64::from(v)).to_bits(), ceil);
        assert_eq!(e8m0_from_f32(v, ScaleRounding::Ceil), ceil);
        assert_eq!(e8m0_from_f32(v, ScaleRounding::Floor), floor);
    }
}

#[test]
fn microfloat_rounds_e8m0_to_nearest_ours_states_floor_or_ceil() {
    // 1.4 is nearer to 1, 1.6 nearer to 2: each time, microfloat agrees with one of the two roundings here.
    assert_eq!([1.4, 1.6].map(microfloat_e8m0), [127, 128]);
    assert_eq!([1.4, 1.6].map(|v| e8m0_from_f32(v, ScaleRounding::Floor)), [127, 127]);
    assert_eq!([1.4, 1.6].map(|v| e8m0_from_f32(v, ScaleRounding::Ceil)), [128, 128]);
}

#[test]
fn microfloat_turns_zero_and_infinity_into_an_e8m0_nan_ours_saturates() {
    assert_eq!([0.0, f32::INFINITY].map(microfloat_e8m0), [0xFF, 0xFF]);
    for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil] {
        assert_eq!([0.0, f32::INFINITY].map(|v| e8m0_from_f32(v, rounding)), [0x00, 0xFE]);
    }
}

#[test]
fn float4_turns_a_negative_number_into_the_smallest_e8m0_ours_into_nan() {
    for v in [-1.0, f32::NEG_INFINITY] {
        assert_eq!(E8M0::from_f64(f64::from(v)).to_bits(), 0x00);
        for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil] {
            assert_eq!(e8m0_from_f32(v, rounding), 0xFF);
        }
    }
}

#[test]
fn microfloat_turns_e4m3_overflow_into_nan_ours_saturates() {
    let values = [464.0, 1e9, f32::INFINITY];
    assert_eq!(values.map(microfloat_e4m3), [0x7F; 3]);
    assert_eq!(values.map(|v| microfloat_e4m3(-v)), [0xFF; 3]);
    assert_eq!(values.map(e4m3_from_f32), [0x7E; 3]);
    assert_eq!(values.map(|v| e4m3_from_f32(-v)), [0xFE; 3]);
}

#[test]
fn microfloat_turns_e5m2_overflow_into_infinity_ours_saturates() {
    let values = [61440.0, 1e9, f32::INFINITY];
    assert_eq!(values.map(microfloat_e5m2), [0x7C; 3]);
    assert_eq!(values.map(|v| microfloat_e5m2(-v)), [0xFC; 3]);
    assert_eq!(values.map(e5m2_from_f32), [0x7B; 3]);
    assert_eq!(values.map(|v| e5m2_from_f32(-v)), [0xFB; 3]);
}

#[test]
fn microfloat_nan_to_e2m1_is_negative_zero_ours_is_six() {
    for nan in [f32::NAN, -f32::NAN] {
        assert_eq!(microfloat_e2m1(nan), 0x8);
        assert_eq!(e2m1_from_f32(nan), 0x7);
        assert_eq!(e2m1_to_f32(0x7), 6.0);
    }
}

#[test]
fn float8_keeps_sign_and_payload_of_a_nan_ours_has_one_nan() {
    assert_eq!([f32::NAN, -f32::NAN].map(float8_e4m3), [0x7F, 0xFF]);
    assert_eq!([f32::NAN, -f32::NAN].map(float8_e5m2), [0x7E, 0xFE]);
    assert_eq!([f32::NAN, -f32::NAN].map(e4m3_from_f32), [0x7F; 2]);
    assert_eq!([f32::NAN, -f32::NAN].map(e5m2_from_f32), [0x7F; 2]);
}

#[test]
fn microfloat_keeps_the_sign_of_a_nan_ours_has_one_nan() {
    assert_eq!([f32::NAN, -f32::NAN].map(microfloat_e4m3), [0x7F, 0xFF]);
    assert_eq!([f32::NAN, -f32::NAN].map(microfloat_e5m2), [0x7E, 0xFE]);
    assert_eq!([f32::NAN, -f32::NAN].map(e4m3_from_f32), [0x7F; 2]);
    assert_eq!([f32::NAN, -f32::NAN].map(e5m2_from_f32), [0x7F; 2]);
}

#[test]
fn no_crate_reads_e4m3_as_unsigned_ours_ignores_bit_seven() {
    // 0x38 is 1; with bit 7 set, a signed decoder gives -1.
    assert_eq!(F8E4M3::from_bits(0xB8).to_f32(), -1.0);
    assert_eq!(f8e4m3fn::from_bits(0xB8).to_f32(), -1.0);
    assert_eq!(ue4m3_to_f32(0xB8), 1.0);
    assert_eq!([float8_e4m3(-1.0), microfloat_e4m3(-1.0)], [0xB8; 2]);
    assert_eq!(ue4m3_from_f32(-1.0), 0x00);
}

#[test]
fn microfloat_rounds_an_f64_twice_ours_once() {
    // Above the ties 2.5, 1.0625 and 1.125 by less than an f32 can hold.
    let above = |tie: f64| tie + 1e-12;
    assert_eq!(f4e2m1fn::from_f64(above(2.5)).to_bits(), 0x4);
    assert_eq!(e2m1_from_f64(above(2.5)), 0x5);
    assert_eq!(f8e4m3fn::from_f64(above(1.0625)).to_bits(), 0x38);
    assert_eq!(e4m3_from_f64(above(1.0625)), 0x39);
    assert_eq!(f8e5m2::from_f64(above(1.125)).to_bits(), 0x3C);
    assert_eq!(e5m2_from_f64(above(1.125)), 0x3D);
}

#[test]
fn half_drops_the_low_bits_of_an_f64_ours_rounds_with_them() {
    // Above a tie by one bit among the lower 32 of the f64.
    let above_f16_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-50);
    assert_eq!(f16::from_f64_const(above_f16_tie).to_bits(), 0x3C00);
    assert_eq!(f64_to_f16_bits(above_f16_tie), 0x3C01);
    let above_bf16_tie = 1.0 + 2f64.powi(-8) + 2f64.powi(-50);
    assert_eq!(bf16::from_f64_const(above_bf16_tie).to_bits(), 0x3F80);
    assert_eq!(f64_to_bf16_bits(above_bf16_tie), 0x3F81);
}

#[test]
fn half_keeps_sign_and_payload_of_a_nan_ours_has_one_nan() {
    let nans = [f32::NAN, -f32::NAN];
    assert_eq!(nans.map(|nan| f16::from_f32_const(nan).to_bits()), [0x7E00, 0xFE00]);
    assert_eq!(nans.map(|nan| bf16::from_f32(nan).to_bits()), [0x7FC0, 0xFFC0]);
    assert_eq!(nans.map(f32_to_f16_bits), [0x7FFF; 2]);
    assert_eq!(nans.map(f32_to_bf16_bits), [0x7FFF; 2]);
}
