//! Tests of the multiplications: hand-computed values, a direct evaluation of the definition, and edge cases.

use super::super::testing::{f32s, run, scales_ty, tensor, ty};
use super::*;
use crate::numeric::{blocked_offset, e2m1_to_f32};
use crate::ops::OpKind;
use crate::sample::{self, Rule};
use crate::types::ScaleLayout::{self, Blocked, Linear};
use ElementType::{BF16, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32};

fn options(block: u32, alpha: bool, c: bool, beta: bool) -> OpKind {
    OpKind::ScaledMma(ScaledMma { block, weight_only: false, alpha, c, beta })
}

fn plain(block: u32) -> OpKind {
    options(block, false, false, false)
}

/// Two rows of A, one of B, K = 16: the products are 192 and -16.5.
///
/// Row 0 of A is 1 · 2, row 1 is 0.5 · 0.5 and -6 · 0.5 and then zeros, B is 1.5 · 4.
fn small() -> [Tensor; 4] {
    let mut a = vec![1.0; 16];
    a.extend([0.5, -6.0]);
    a.resize(32, 0.0);
    let scales =
        |rows, values: &[f64]| Tensor::from_f64(F8E4M3FN, vec![rows, 1], Some(Linear), values).unwrap();
    [
        tensor(F4E2M1FN, &[2, 16], &a),
        scales(2, &[2.0, 0.5]),
        tensor(F4E2M1FN, &[1, 16], &[1.5; 16]),
        scales(1, &[4.0]),
    ]
}

#[test]
fn a_small_product_is_what_it_is_by_hand() {
    let [a, sfa, b, sfb] = small();
    let d = run(plain(16), &[&a, &sfa, &b, &sfb], ty(&[2, 1], F32));
    assert_eq!(d.to_f64(), [192.0, -16.5]);
    let (alpha, c, beta) = (f32s(&[1], &[0.5]), tensor(BF16, &[2, 1], &[1.0, 2.0]), f32s(&[], &[3.0]));
    let of = |kind, named: &[&Tensor]| run(kind, &[&[&a, &sfa, &b, &sfb], named].concat(), ty(&[2, 1], F32));
    assert_eq!(of(options(16, true, false, false), &[&alpha]).to_f64(), [96.0, -8.25]);
    assert_eq!(of(options(16, false, true, false), &[&c]).to_f64(), [193.0, -14.5]);
    assert_eq!(of(options(16, true, true, false), &[&alpha, &c]).to_f64(), [97.0, -6.25]);
    assert_eq!(of(options(16, false, true, true), &[&c, &beta]).to_f64(), [195.0, -10.5]);
    assert_eq!(of(options(16, true, true, true), &[&alpha, &c, &beta]).to_f64(), [99.0, -2.25]);
}

#[test]
fn the_result_is_rounded_to_its_type() {
    let [a, sfa, b, sfb] = small();
    let c = tensor(F32, &[2, 1], &[0.75, 0.0625]);
    let of = |element| run(options(16, false, true, false), &[&a, &sfa, &b, &sfb, &c], ty(&[2, 1], element));
    // 192.75 and -16.4375; bf16 has steps of 1 and 1/8 there, f16 steps of 1/8 and 1/64.
    assert_eq!(of(F32).to_f64(), [192.75, -16.4375]);
    assert_eq!(of(F16).to_f64(), [192.75, -16.4375]);
    assert_eq!(of(BF16).to_f64(), [193.0, -16.5]);
}

/// A product of ones: acc = `acc`, from the codes 1 and 1.
fn unit(acc: f64) -> [Tensor; 4] {
    let scale = |value: f64| Tensor::from_f64(F8E4M3FN, vec![1, 1], Some(Linear), &[value]).unwrap();
    let mut one = vec![1.0];
    one.resize(16, 0.0);
    [tensor(F4E2M1FN, &[1, 16], &one), scale(acc), tensor(F4E2M1FN, &[1, 16], &one), scale(1.0)]
}

#[test]
fn beta_times_c_is_not_rounded_before_it_is_added() {
    // (1 + 2^-12)² = 1 + 2^-11 + 2^-24, of which f32 would drop the last bit.
    let [a, sfa, b, sfb] = unit(1.0);
    let (alpha, x) = (f32s(&[1], &[-(1.0 + 2f64.powi(-11))]), f32s(&[1, 1], &[1.0 + 2f64.powi(-12)]));
    let beta = f32s(&[1], &x.to_f64());
    let d = run(options(16, true, true, true), &[&a, &sfa, &b, &sfb, &alpha, &x, &beta], ty(&[1, 1], F32));
    assert_eq!(d.to_f64(), [2f64.powi(-24)]);
}

#[test]
fn alpha_times_acc_is_rounded_before_c_is_added() {
    // 3 · (1 + 2^-23) lies between 3 + 2^-22 and 3 + 2^-21, and the latter is even.
    let [a, sfa, b, sfb] = unit(3.0);
    let (alpha, c) = (f32s(&[1], &[1.0 + 2f64.powi(-23)]), f32s(&[1, 1], &[-3.0]));
    let d = run(options(16, true, true, false), &[&a, &sfa, &b, &sfb, &alpha, &c], ty(&[1, 1], F32));
    assert_eq!(d.to_f64(), [2f64.powi(-21)]);
}

/// A seeded operand [dims.., k] with its scales, in either layout.
struct Operand {
    data: Tensor,
    linear: Tensor,
    blocked: Tensor,
}

#[derive(Clone, Copy)]
struct Format {
    data: ElementType,
    scale: ElementType,
    block: usize,
}

const NVFP4: Format = Format { data: F4E2M1FN, scale: F8E4M3FN, block: 16 };

fn operand(rows: &[usize], k: usize, format: Format, seed: u64) -> Operand {
    let dims = |last| [rows, &[last]].concat();
    let data = sample::tensor(format.data, dims(k), None, Rule::Normal, seed).unwrap();
    let blocks = dims(k / format.block);
    let blocked =
        sample::tensor(format.scale, blocks.clone(), Some(Blocked), Rule::Normal, seed + 1000).unwrap();
    let linear = Tensor::new(format.scale, blocks, Some(Linear), blocked.to_codes()).unwrap();
    Operand { data, linear, blocked }
}

/// Evaluates the definition directly: Σ_k (a·sfa)(b·sfb) in f64, exact for FP4 with `f8E4M3FN` scales and K <= 1188.
fn by_definition(a: &Operand, b: &Operand, block: usize) -> Vec<f32> {
    let ([batch @ .., m, k], [.., n, _]) = (a.data.dims(), b.data.dims()) else { panic!("rank") };
    let (x, sx) = (a.data.to_f64(), a.linear.to_f64());
    let (y, sy) = (b.data.to_f64(), b.linear.to_f64());
    let mut d = Vec::new();
    for l in 0..batch.iter().product() {
        for i in 0..*m {
            for j in 0..*n {
                let row_of_a = l * m + i;
                let row_of_b = if b.data.dims().len() > 2 { l * n + j } else { j };
                let mut sum = 0.0;
                for p in 0..*k {
                    let left = x[row_of_a * k + p] * sx[row_of_a * (k / block) + p / block];
                    let right = y[row_of_b * k + p] * sy[row_of_b * (k / block) + p / block];
                    sum += left * right;
                }
                d.push(sum as f32);
            }
        }
    }
    d
}

#[track_caller]
fn check_against_definition(
    batch: &[usize],
    b_batch: &[usize],
    (m, n, k): (usize, usize, usize),
    formats: [Format; 2],
) {
    let a = operand(&[batch, &[m]].concat(), k, formats[0], 7);
    let b = operand(&[b_batch, &[n]].concat(), k, formats[1], 8);
    let block = formats[0].block;
    let expected = by_definition(&a, &b, block);
    let result = ty(&[batch, &[m, n]].concat(), F32);
    for (sfa, sfb) in
        [(&a.linear, &b.linear), (&a.blocked, &b.linear), (&a.linear, &b.blocked), (&a.blocked, &b.blocked)]
    {
        let d = run(plain(block as u32), &[&a.data, sfa, &b.data, sfb], result.clone()).to_f32();
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&d), bits(&expected));
    }
    assert!(
        expected.iter().any(|v| *v != expected[0]) || expected.len() < 2,
        "the case distinguishes elements"
    );
}

#[test]
fn nvfp4_is_the_exact_sum_for_odd_shapes_and_either_scale_layout() {
    for shape in [(1, 5, 16), (37, 130, 48), (91, 33, 160), (130, 7, 1184)] {
        check_against_definition(&[], &[], shape, [NVFP4; 2]);
    }
}

#[test]
fn a_batch_has_its_own_b_or_shares_one() {
    check_against_definition(&[3], &[3], (37, 5, 80), [NVFP4; 2]);
    check_against_definition(&[3], &[], (37, 5, 80), [NVFP4; 2]);
    check_against_definition(&[2, 3], &[2, 3], (5, 130, 32), [NVFP4; 2]);
    check_against_definition(&[2, 3], &[], (1, 9, 32), [NVFP4; 2]);
}

#[test]
fn mx_formats_are_summed_in_f64_in_order() {
    let mx = |data| Format { data, scale: F8E8M0FNU, block: 32 };
    let pairs = [[F4E2M1FN, F4E2M1FN], [F8E4M3FN, F8E5M2], [F8E5M2, F4E2M1FN], [F4E2M1FN, F8E4M3FN]];
    let with_six = [[F6E2M3FN, F6E2M3FN], [F6E3M2FN, F6E2M3FN], [F8E4M3FN, F6E3M2FN], [F6E2M3FN, F4E2M1FN]];
    for formats in pairs.into_iter().chain(with_six) {
        check_against_definition(&[], &[], (37, 11, 96), formats.map(mx));
        check_against_definition(&[2], &[], (5, 3, 64), formats.map(mx));
    }
}

#[test]
fn mx_by_hand() {
    // Two of 32 products are -1.5 · 2^3 times 448 · 2^-1 = -12 · 224; the other codes of A are zero.
    let mut a = vec![-1.5, -1.5];
    a.resize(32, 0.0);
    let scale = |byte| Tensor::new(F8E8M0FNU, vec![1, 1], Some(Linear), vec![byte]).unwrap();
    let operands =
        [tensor(F4E2M1FN, &[1, 32], &a), scale(130), tensor(F8E4M3FN, &[1, 32], &[448.0; 32]), scale(126)];
    let d = run(plain(32), &operands.each_ref(), ty(&[1, 1], F32));
    assert_eq!(d.to_f64(), [-5376.0]);
    // 1 · 2^127 squared overflows the f32 that acc is rounded to.
    let one = tensor(F4E2M1FN, &[1, 32], &[1.0; 32]);
    let d = run(plain(32), &[&one, &scale(0xFE), &one, &scale(0xFE)], ty(&[1, 1], F32));
    assert_eq!(d.to_f64(), [f64::INFINITY]);
}

fn weight_only(block: u32) -> OpKind {
    OpKind::ScaledMma(ScaledMma { block, weight_only: true, alpha: false, c: false, beta: false })
}

#[test]
fn a_16_bit_a_is_multiplied_as_it_is() {
    let mx = |data| Format { data, scale: F8E8M0FNU, block: 32 };
    let formats = [NVFP4, mx(F4E2M1FN), mx(F6E2M3FN), mx(F6E3M2FN), mx(F8E4M3FN), mx(F8E5M2)];
    for (element, format) in [BF16, F16].into_iter().flat_map(|a| formats.map(|b| (a, b))) {
        for (batch, b_batch, m, n, k) in
            [(&[][..], &[][..], 37, 19, 96), (&[3], &[], 5, 7, 64), (&[2], &[2], 1, 9, 160)]
        {
            let dims = [batch, &[m, k]].concat();
            let a = sample::tensor(element, dims, None, Rule::Normal, 21).unwrap();
            let b = operand(&[b_batch, &[n]].concat(), k, format, 8);
            // An A with scales of 1 has the same elements.
            let blocks = [batch, &[m, k / format.block]].concat();
            let ones = f32s(&blocks, &vec![1.0; blocks.iter().product()]);
            let scaled = Operand { data: a.clone(), linear: ones.clone(), blocked: ones };
            let expected = by_definition(&scaled, &b, format.block);
            for sfb in [&b.linear, &b.blocked] {
                let result = ty(&[batch, &[m, n]].concat(), F32);
                let found = run(weight_only(format.block as u32), &[&a, &b.data, sfb], result).to_f32();
                assert_eq!(found, expected, "{element} {} {}", format.data, format.scale);
            }
            assert!(expected.iter().any(|v| *v != expected[0]));
        }
    }
}

#[test]
fn infinities_of_a_follow_ieee_and_the_epilogue_is_that_of_other_products() {
    let scale = |values: &[f64]| Tensor::from_f64(F8E4M3FN, vec![2, 1], Some(Linear), values).unwrap();
    let mut codes = vec![1.5; 16];
    codes.extend([0.0, 1.0].repeat(8));
    let b = tensor(F4E2M1FN, &[2, 16], &codes);
    let row = |first: f64| [vec![first], vec![0.25; 15]].concat();
    let rows = [row(f64::INFINITY), row(f64::NAN), row(-4.0)].concat();
    let a = tensor(BF16, &[3, 16], &rows);
    let sfb = scale(&[2.0, 0.5]);
    let d = run(weight_only(16), &[&a, &b, &sfb], ty(&[3, 2], F32)).to_f64();
    // Row 1 of B begins with 0, and infinity times zero is NaN.
    assert_eq!(d[0], f64::INFINITY);
    assert!(d[1..4].iter().all(|v| v.is_nan()));
    assert_eq!(d[4..], [(-4.0 + 15.0 * 0.25) * 3.0, 8.0 * 0.25 * 0.5]);

    let (alpha, c, beta) = (f32s(&[], &[0.5]), tensor(F16, &[3, 2], &[1.0; 6]), f32s(&[1], &[3.0]));
    let kind =
        OpKind::ScaledMma(ScaledMma { block: 16, weight_only: true, alpha: true, c: true, beta: true });
    let scaled = run(kind, &[&a, &b, &sfb, &alpha, &c, &beta], ty(&[3, 2], F32)).to_f64();
    assert_eq!(scaled[4..], [d[4] * 0.5 + 3.0, d[5] * 0.5 + 3.0]);
}

#[test]
fn the_ends_of_e8m0_meet_those_of_bf16_in_the_sum() {
    let scale = |byte| Tensor::new(F8E8M0FNU, vec![1, 1], Some(Linear), vec![byte]).unwrap();
    let one = tensor(F4E2M1FN, &[1, 32], &[1.0; 32]);
    let of = |a: f64, byte| {
        let a = tensor(BF16, &[1, 32], &[a; 32]);
        run(weight_only(32), &[&a, &one, &scale(byte)], ty(&[1, 1], F32)).to_f64()[0]
    };
    // The least subnormal of bf16 times 2^127, and 2^127 times 2^-127: neither factor limits the product.
    assert_eq!(of(2f64.powi(-133), 254), 2f64.powi(-1));
    assert_eq!(of(2f64.powi(127), 0), 32.0);
    assert_eq!(of(2f64.powi(127), 254), f64::INFINITY);
    // 32 · 2^-133 · 2^-127 is below half of the least subnormal of f32.
    assert_eq!(of(2f64.powi(-133), 0), 0.0);
    assert!(of(1.0, 255).is_nan());
}

#[test]
fn fp4_with_e4m3_scales_per_32_is_exact_too() {
    let format = Format { block: 32, ..NVFP4 };
    check_against_definition(&[], &[], (37, 19, 160), [format; 2]);
}

#[test]
fn a_nan_scale_spoils_exactly_its_row_or_column() {
    let (m, n, k) = (37, 19, 64);
    for (scale, block, nans) in [(F8E4M3FN, 16, [0x7F, 0xFF]), (F8E8M0FNU, 32, [0xFF, 0xFF])] {
        let format = Format { scale, block, ..NVFP4 };
        let (a, b) = (operand(&[m], k, format, 1), operand(&[n], k, format, 2));
        let of = |sfa: &Tensor, sfb: &Tensor| {
            run(plain(block as u32), &[&a.data, sfa, &b.data, sfb], ty(&[m, n], F32)).to_f32()
        };
        let clean = of(&a.blocked, &b.blocked);
        let (mut sfa, mut sfb) = (a.blocked.clone(), b.blocked.clone());
        sfa.bytes_mut()[blocked_offset(5, 1, k / block)] = nans[0];
        sfb.bytes_mut()[blocked_offset(11, 0, k / block)] = nans[1];
        for (index, (spoiled, clean)) in of(&sfa, &sfb).into_iter().zip(clean).enumerate() {
            assert!(!clean.is_nan());
            if index / n == 5 || index % n == 11 {
                assert!(spoiled.is_nan(), "({}, {})", index / n, index % n);
            } else {
                assert_eq!(spoiled.to_bits(), clean.to_bits());
            }
        }
    }
}

#[test]
fn bit_seven_of_an_e4m3_scale_is_ignored() {
    let (a, b) = (operand(&[9], 32, NVFP4, 3), operand(&[4], 32, NVFP4, 4));
    let mut signed = a.linear.clone();
    for (index, byte) in signed.bytes_mut().iter_mut().enumerate() {
        *byte |= if index % 3 == 0 { 0x80 } else { 0 };
    }
    let of = |sfa: &Tensor| run(plain(16), &[&a.data, sfa, &b.data, &b.linear], ty(&[9, 4], F32));
    assert_eq!(of(&signed), of(&a.linear));
}

#[test]
fn empty_extents_give_empty_results_or_zeros() {
    for (m, n, k) in [(0, 8, 32), (8, 0, 32), (3, 2, 0)] {
        let (a, b) = (operand(&[m], k, NVFP4, 5), operand(&[n], k, NVFP4, 6));
        let c = f32s(&[m, n], &vec![2.5; m * n]);
        let d = run(plain(16), &[&a.data, &a.blocked, &b.data, &b.linear], ty(&[m, n], F32));
        assert_eq!(d.to_f64(), vec![0.0; m * n]);
        let operands = [&a.data, &a.linear, &b.data, &b.blocked, &c];
        assert_eq!(
            run(options(16, false, true, false), &operands, ty(&[m, n], F32)).to_f64(),
            vec![2.5; m * n]
        );
    }
    let (a, b) = (operand(&[0, 4], 32, NVFP4, 5), operand(&[0, 6], 32, NVFP4, 6));
    let d = run(plain(16), &[&a.data, &a.blocked, &b.data, &b.blocked], ty(&[0, 4, 6], BF16));
    assert_eq!(d.count(), 0);
}

#[test]
fn a_sum_beyond_i64_stays_exact() {
    // 1 217 408 products of the largest operands, (6 · 448)² each: 2^43 + 94 · 2^20.
    let k = 1_217_408;
    assert!(k > MAX_I64_TERMS && k - 16 < MAX_I64_TERMS);
    let data = Tensor::new(F4E2M1FN, vec![1, k], None, vec![0x77; k / 2]).unwrap();
    let scales = Tensor::new(F8E4M3FN, vec![1, k / 16], Some(Linear), vec![0x7E; k / 16]).unwrap();
    let d = run(plain(16), &[&data, &scales, &data, &scales], ty(&[1, 1], F32));
    assert_eq!(d.to_f64(), [8_796_191_588_352.0]);
}

#[test]
fn the_whole_range_of_operands_fits_the_integer_units() {
    for code in 0..16u8 {
        for scale in 0..0x7Fu8 {
            let data = Tensor::new(F4E2M1FN, vec![1, 16], None, vec![code * 0x11; 8]).unwrap();
            let scales = Tensor::new(F8E4M3FN, vec![1, 1], Some(Linear), vec![scale]).unwrap();
            let operand = BlockScaled { data: &data, scales: &scales, block: 16 };
            let units = operand.integer_rows()[0].as_ref().unwrap()[0];
            let value = f64::from(e2m1_to_f32(code)) * f64::from(numeric::ue4m3_to_f32(scale));
            assert_eq!(units as f64 / 1024.0, value);
            assert!(units.abs() <= MAX_OPERAND);
        }
    }
}

#[test]
fn plain_mma_by_hand_and_rounded_once() {
    let a = f32s(&[2, 3], &[1.0, 2.0, 3.0, -1.0, 0.5, 4.0]);
    let b = f32s(&[2, 3], &[1.0, 1.0, 1.0, 2.0, 0.0, -1.0]);
    assert_eq!(run(OpKind::Mma, &[&a, &b], ty(&[2, 2], F32)).to_f64(), [6.0, -1.0, 3.5, -6.0]);
    // 2^24 + 1 + 1 in f32 steps would stay 2^24; in bf16 the product 256 + 1 + 1 is 258.
    let a = f32s(&[1, 3], &[16_777_216.0, 1.0, 1.0]);
    let ones = f32s(&[1, 3], &[1.0; 3]);
    assert_eq!(run(OpKind::Mma, &[&a, &ones], ty(&[1, 1], F32)).to_f64(), [16_777_218.0]);
    let a = tensor(BF16, &[1, 3], &[256.0, 1.0, 1.0]);
    let ones = tensor(BF16, &[1, 3], &[1.0; 3]);
    assert_eq!(run(OpKind::Mma, &[&a, &ones], ty(&[1, 1], BF16)).to_f64(), [258.0]);
}

#[test]
fn plain_mma_takes_batches_and_a_shared_b() {
    let a = f32s(&[2, 1, 2], &[1.0, 2.0, 3.0, 4.0]);
    let shared = f32s(&[1, 2], &[10.0, 1.0]);
    assert_eq!(run(OpKind::Mma, &[&a, &shared], ty(&[2, 1, 1], F32)).to_f64(), [12.0, 34.0]);
    let own = f32s(&[2, 1, 2], &[10.0, 1.0, 1.0, 100.0]);
    assert_eq!(run(OpKind::Mma, &[&a, &own], ty(&[2, 1, 1], F32)).to_f64(), [12.0, 403.0]);
    let (a, b) = (f32s(&[2, 0], &[]), f32s(&[3, 0], &[]));
    assert_eq!(run(OpKind::Mma, &[&a, &b], ty(&[2, 3], F32)).to_f64(), [0.0; 6]);
}

#[test]
fn scales_of_a_quantized_operand_feed_the_product() {
    // Quantize, multiply: the same as multiplying what dequantization gives, where every step is exact.
    let v = sample::tensor(BF16, vec![5, 64], None, Rule::Normal, 12).unwrap();
    let g = f32s(&[1], &[0.0078125]);
    let results = super::super::testing::run_all(
        OpKind::block_quantize(16, None),
        &[&v, &g],
        &[ty(&[5, 64], F4E2M1FN), scales_ty(&[5, 4], F8E4M3FN, ScaleLayout::Blocked)],
    );
    let (codes, scales) = (&results[0], &results[1]);
    let product = run(
        options(16, true, false, false),
        &[codes, scales, codes, scales, &f32s(&[1], &[2f64.powi(-14)])],
        ty(&[5, 5], F32),
    );
    let restored = run(OpKind::BlockDequantize { block: 16 }, &[codes, scales, &g], ty(&[5, 64], F32));
    assert_eq!(product, run(OpKind::Mma, &[&restored, &restored], ty(&[5, 5], F32)));
    // Quantization keeps each value within a quarter of its block's largest magnitude over six.
    for (v, q) in v.to_f64().chunks(16).zip(restored.to_f64().chunks(16)) {
        let amax = v.iter().fold(0.0f64, |max, v| max.max(v.abs()));
        assert!(v.iter().zip(q).all(|(v, q)| (v - q).abs() <= amax / 6.0 * 1.3), "{v:?} {q:?}");
    }
}

#[test]
fn masked_rows_beyond_the_count_are_zero_whatever_a_has_there() {
    let nan = f64::NAN;
    let mut a: Vec<f64> = [1.0, 2.0, nan, 4.0, nan, nan].iter().flat_map(|value| [*value; 16]).collect();
    a[0] = -1.0;
    let a = tensor(F16, &[2, 3, 16], &a);
    let b = tensor(F4E2M1FN, &[2, 1, 16], &[[1.0; 16], [-0.5; 16]].concat());
    let scales = Tensor::from_f64(F8E4M3FN, vec![2, 1, 1], Some(Linear), &[2.0, 0.5]).unwrap();
    let counts = tensor(ElementType::I32, &[2], &[2.0, 1.0]);
    let kind = |alpha| {
        OpKind::GroupedScaledMma(GroupedScaledMma {
            block: 16,
            weight_only: true,
            alpha,
            masked: true,
            sfa_ends: false,
        })
    };
    let d = run(kind(false), &[&a, &b, &scales, &counts], ty(&[2, 3, 1], F32));
    assert_eq!(d.to_f64(), [28.0, 64.0, 0.0, -16.0, 0.0, 0.0]);
    let alphas = f32s(&[2], &[0.5, -1.0]);
    let d = run(kind(true), &[&a, &b, &scales, &counts, &alphas], ty(&[2, 3, 1], F32));
    assert_eq!(d.to_f64(), [14.0, 32.0, 0.0, 16.0, 0.0, 0.0]);
}
