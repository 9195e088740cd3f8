//! Tests of every op against values computed by hand, and of the errors.

use super::testing::{f32s, run, run_all, scales_ty, tensor, ty};
use super::*;
use crate::builder::Builder;
use crate::numeric::{Nvfp4Formula, ScaleMin};
use crate::ops::{BinaryKind, ConstantValue, Predicate, ReduceKind, ScaleRounding, UnaryKind};
use crate::sample;
use crate::types::Dim;
use crate::verify::verify;
use ElementType::{BF16, F4E2M1FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32, I1, I32};

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

#[track_caller]
fn check_values(found: &Tensor, expected: &[f64]) {
    let found = found.to_f64();
    let same = |(a, b): (&f64, &f64)| a == b || (a.is_nan() && b.is_nan());
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(same),
        "{found:?} != {expected:?}"
    );
}

#[test]
fn binary_ops_broadcast_and_round_once_to_the_join() {
    let add = OpKind::Binary(BinaryKind::Add);
    let column = f32s(&[2, 1], &[1.0, 10.0]);
    let row = f32s(&[3], &[0.5, -0.25, 4.0]);
    check_values(&run(add.clone(), &[&column, &row], ty(&[2, 3], F32)), &[1.5, 0.75, 5.0, 10.5, 9.75, 14.0]);
    // 256 + 1 is a tie in bf16, between 256 and 258; in the join of bf16 and f32 it is exact.
    let (big, one) = (tensor(BF16, &[1], &[256.0]), tensor(BF16, &[1], &[1.0]));
    check_values(&run(add.clone(), &[&big, &one], ty(&[1], BF16)), &[256.0]);
    check_values(&run(add, &[&big, &f32s(&[1], &[1.0])], ty(&[1], F32)), &[257.0]);
    // f16 overflows to infinity.
    let big = tensor(F16, &[2], &[300.0, -300.0]);
    check_values(
        &run(OpKind::Binary(BinaryKind::Mul), &[&big, &tensor(F16, &[], &[300.0])], ty(&[2], F16)),
        &[INF, -INF],
    );
    let (a, b) = (f32s(&[4], &[1.0, NAN, -0.0, 7.0]), f32s(&[4], &[3.0, 1.0, 2.0, -2.0]));
    check_values(
        &run(OpKind::Binary(BinaryKind::Div), &[&a, &b], ty(&[4], F32)),
        &[0.333_333_343_267_440_8, NAN, 0.0, -3.5],
    );
    check_values(&run(OpKind::Binary(BinaryKind::Max), &[&a, &b], ty(&[4], F32)), &[3.0, NAN, 2.0, 7.0]);
    check_values(&run(OpKind::Binary(BinaryKind::Min), &[&a, &b], ty(&[4], F32)), &[1.0, NAN, -0.0, -2.0]);
    check_values(&run(OpKind::Binary(BinaryKind::Sub), &[&a, &b], ty(&[4], F32)), &[-2.0, NAN, -2.0, 9.0]);
}

#[test]
fn unary_ops_round_to_the_operands_type() {
    let x = tensor(BF16, &[4], &[-2.0, 0.0, 1.0, 3.0]);
    let of = |kind| run(OpKind::Unary(kind), &[&x], ty(&[4], BF16));
    check_values(&of(UnaryKind::Neg), &[2.0, -0.0, -1.0, -3.0]);
    check_values(&of(UnaryKind::Abs), &[2.0, 0.0, 1.0, 3.0]);
    check_values(&of(UnaryKind::Relu), &[0.0, 0.0, 1.0, 3.0]);
    // e^-2 = 0.13534, e = 2.71828, e^3 = 20.0855; bf16 has 8 bits.
    check_values(&of(UnaryKind::Exp), &[0.135_742_187_5, 1.0, 2.718_75, 20.125]);
    check_values(&of(UnaryKind::Sqrt), &[NAN, 0.0, 1.0, 1.734_375]);
    check_values(&of(UnaryKind::Reciprocal), &[-0.5, INF, 1.0, 0.333_984_375]);
    check_values(
        &run(OpKind::Clamp { min: -0.5, max: 1.01 }, &[&x], ty(&[4], BF16)),
        &[-0.5, 0.0, 1.0, 1.007_812_5],
    );
}

#[test]
fn compare_and_select_broadcast_and_copy_bits() {
    let a = f32s(&[2, 1], &[1.0, NAN]);
    let b = f32s(&[3], &[0.0, 1.0, 2.0]);
    let of = |predicate| run(OpKind::Compare(predicate), &[&a, &b], ty(&[2, 3], I1)).bytes().to_vec();
    assert_eq!(of(Predicate::Le), [0, 1, 1, 0, 0, 0]);
    assert_eq!(of(Predicate::Ne), [1, 0, 1, 1, 1, 1]);
    let condition = tensor(I1, &[3], &[1.0, 0.0, 1.0]);
    // A NaN with a payload: select moves it, bit for bit.
    let then = Tensor::new(F32, vec![1], None, 0x7FC0_1234u32.to_le_bytes().to_vec()).unwrap();
    let chosen = run(OpKind::Select, &[&condition, &then, &b], ty(&[3], F32));
    let bits: Vec<u32> = chosen.bytes().as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    assert_eq!(bits, [0x7FC0_1234, 0x3F80_0000, 0x7FC0_1234]);
    // f16 and bf16 join to f32, which holds both.
    let (small, large) = (tensor(F16, &[3], &[2f64.powi(-24); 3]), tensor(BF16, &[3], &[2f64.powi(100); 3]));
    let chosen = run(OpKind::Select, &[&condition, &small, &large], ty(&[3], F32));
    check_values(&chosen, &[2f64.powi(-24), 2f64.powi(100), 2f64.powi(-24)]);
    let (minus, zero) = (tensor(I32, &[], &[-7.0]), tensor(I32, &[3], &[0.0; 3]));
    check_values(&run(OpKind::Select, &[&condition, &minus, &zero], ty(&[3], I32)), &[-7.0, 0.0, -7.0]);
}

#[test]
fn convert_saturates_or_overflows_as_the_type_says() {
    let x = f32s(&[8], &[0.3, -5.1, 2.5, 500.0, 1e6, -1e30, INF, NAN]);
    let to = |element| run(OpKind::Convert, &[&x], ty(&[8], element));
    check_values(&to(F4E2M1FN), &[0.5, -6.0, 2.0, 6.0, 6.0, -6.0, 6.0, 6.0]);
    check_values(&to(F8E4M3FN), &[0.3125, -5.0, 2.5, 448.0, 448.0, -448.0, 448.0, NAN]);
    check_values(&to(F8E5M2), &[0.3125, -5.0, 2.5, 512.0, 57344.0, -57344.0, 57344.0, NAN]);
    check_values(&to(F16), &[0.300_048_828_125, -5.101_562_5, 2.5, 500.0, INF, -INF, INF, NAN]);
    check_values(&to(I32), &[0.0, -5.0, 2.0, 500.0, 1e6, -2_147_483_648.0, 2_147_483_647.0, 0.0]);
    // 2^24 + 1 is not an f32; conversion from i32 rounds it once, to even.
    let x = Tensor::new(I32, vec![2], None, [16_777_217i32, -3].map(i32::to_le_bytes).concat()).unwrap();
    check_values(&run(OpKind::Convert, &[&x], ty(&[2], F32)), &[16_777_216.0, -3.0]);
    // FP4 widens exactly, low nibble first.
    let x = Tensor::new(F4E2M1FN, vec![1, 4], None, vec![0xF1, 0x29]).unwrap();
    check_values(&run(OpKind::Convert, &[&x], ty(&[1, 4], F16)), &[0.5, -6.0, -0.5, 1.0]);
    // 0xC0 is -2 as data and 2 as a scale.
    let data = Tensor::new(F8E4M3FN, vec![1, 2], None, vec![0xC0, 0xFF]).unwrap();
    let scales = Tensor::new(F8E4M3FN, vec![1, 2], Some(ScaleLayout::Linear), vec![0xC0, 0xFF]).unwrap();
    check_values(&run(OpKind::Convert, &[&data], ty(&[1, 2], F32)), &[-2.0, NAN]);
    check_values(&run(OpKind::Convert, &[&scales], ty(&[1, 2], F32)), &[2.0, NAN]);
}

#[test]
fn constants_are_rounded_to_their_type() {
    let splat = run(OpKind::Constant(ConstantValue::Splat(0.1)), &[], ty(&[3], BF16));
    check_values(&splat, &[0.100_097_656_25; 3]);
    let dense = OpKind::Constant(ConstantValue::Dense(vec![1.5, -2.0, 1e300, 0.0]));
    check_values(&run(dense, &[], ty(&[2, 2], F32)), &[1.5, -2.0, INF, 0.0]);
    check_values(&run(OpKind::Constant(ConstantValue::Splat(7.0)), &[], ty(&[], F32)), &[7.0]);
}

#[test]
fn transpose_puts_operand_axis_p_i_at_result_axis_i() {
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let transposed = run(OpKind::Transpose { permutation: vec![1, 0] }, &[&x], ty(&[3, 2], F32));
    check_values(&transposed, &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    // x[a, b, c] = 100a + 10b + c, and result[i, j, k] = x[j, k, i].
    let values: Vec<f64> = (0..24).map(|i| f64::from(100 * (i / 12) + 10 * (i / 4 % 3) + i % 4)).collect();
    let x = tensor(F16, &[2, 3, 4], &values);
    let transposed = run(OpKind::Transpose { permutation: vec![2, 0, 1] }, &[&x], ty(&[4, 2, 3], F16));
    check_values(
        &transposed,
        &[
            0.0, 10.0, 20.0, 100.0, 110.0, 120.0, 1.0, 11.0, 21.0, 101.0, 111.0, 121.0, 2.0, 12.0, 22.0,
            102.0, 112.0, 122.0, 3.0, 13.0, 23.0, 103.0, 113.0, 123.0,
        ],
    );
}

#[test]
fn reshape_keeps_the_row_major_order_also_of_packed_fp4() {
    let x = Tensor::new(F4E2M1FN, vec![2, 4], None, vec![0x21, 0x43, 0x65, 0x87]).unwrap();
    let moved = run(OpKind::Reshape, &[&x], ty(&[4, 2], F4E2M1FN));
    assert_eq!(moved.bytes(), [0x21, 0x43, 0x65, 0x87]);
    let x = f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let moved = run(OpKind::Reshape, &[&x], ty(&[3, 1, 2], F32));
    assert_eq!((moved.dims(), moved.bytes()), (&[3, 1, 2][..], x.bytes()));
}

#[test]
fn broadcast_repeats_extents_of_one_and_adds_leading_ones() {
    let x = f32s(&[3, 1], &[1.0, 2.0, 3.0]);
    let repeated = run(OpKind::Broadcast, &[&x], ty(&[2, 3, 2], F32));
    check_values(&repeated, &[1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
    check_values(&run(OpKind::Broadcast, &[&f32s(&[], &[4.0])], ty(&[2], F32)), &[4.0, 4.0]);
    check_values(&run(OpKind::Broadcast, &[&f32s(&[1], &[4.0])], ty(&[2, 0], F32)), &[]);
}

#[test]
fn reduce_combines_along_each_choice_of_axes() {
    let x = f32s(&[2, 3], &[1.0, -5.0, 2.0, 0.5, 4.0, -3.0]);
    let over = |kind, axes: &[u32], keep_dims, dims: &[usize]| {
        run(OpKind::Reduce { kind, axes: axes.to_vec(), keep_dims }, &[&x], ty(dims, F32))
    };
    check_values(&over(ReduceKind::Sum, &[1], false, &[2]), &[-2.0, 1.5]);
    check_values(&over(ReduceKind::Sum, &[0], false, &[3]), &[1.5, -1.0, -1.0]);
    check_values(&over(ReduceKind::Sum, &[0, 1], false, &[]), &[-0.5]);
    check_values(&over(ReduceKind::Max, &[1], true, &[2, 1]), &[2.0, 4.0]);
    check_values(&over(ReduceKind::Min, &[0], true, &[1, 3]), &[0.5, -5.0, -3.0]);
    check_values(&over(ReduceKind::Mean, &[1], false, &[2]), &[-0.666_666_686_534_881_6, 0.5]);
    check_values(&over(ReduceKind::Amax, &[1], false, &[2]), &[5.0, 4.0]);
    // Axes 0 and 2 of [2, 2, 2].
    let x = f32s(&[2, 2, 2], &[1.0, 2.0, 3.0, 4.0, 50.0, 60.0, 70.0, 80.0]);
    let outer = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![0, 2], keep_dims: false };
    check_values(&run(outer, &[&x], ty(&[2], F32)), &[113.0, 157.0]);
}

#[test]
fn reduce_rounds_once_at_the_end() {
    let sum = |element, values: &[f64]| {
        let kind = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep_dims: false };
        run(kind, &[&tensor(element, &[values.len()], values)], ty(&[], element))
    };
    check_values(&sum(BF16, &[256.0, 1.0, 1.0]), &[258.0]);
    check_values(&sum(F32, &[1e8, 1.0, -1e8]), &[1.0]);
}

#[test]
fn reducing_nothing_gives_the_neutral_element_and_nan_propagates() {
    let nothing = f32s(&[2, 0], &[]);
    let spoiled = f32s(&[2, 2], &[1.0, NAN, 2.0, 3.0]);
    let cases = [
        (ReduceKind::Sum, 0.0, 5.0),
        (ReduceKind::Max, -INF, 3.0),
        (ReduceKind::Min, INF, 2.0),
        (ReduceKind::Mean, NAN, 2.5),
        (ReduceKind::Amax, 0.0, 3.0),
    ];
    for (kind, of_nothing, of_second_row) in cases {
        let reduce = OpKind::Reduce { kind, axes: vec![1], keep_dims: false };
        check_values(&run(reduce.clone(), &[&nothing], ty(&[2], F32)), &[of_nothing; 2]);
        check_values(&run(reduce, &[&spoiled], ty(&[2], F32)), &[NAN, of_second_row]);
    }
}

#[test]
fn softmax_normalizes_along_its_axis() {
    // e^0 : e^ln(3) = 1 : 3, with ln(3) in bf16 = 1.1015625, e^1.1015625 = 3.00887.
    let x = tensor(BF16, &[2, 2], &[0.0, 1000.0, 1.1015625, 1000.0]);
    let down = run(OpKind::Softmax { axis: 0 }, &[&x], ty(&[2, 2], BF16));
    check_values(&down, &[0.249_023_437_5, 0.5, 0.75, 0.5]);
    let x = f32s(&[3, 2], &[-INF, -INF, NAN, 1.0, -INF, 5.0]);
    let across = run(OpKind::Softmax { axis: 1 }, &[&x], ty(&[3, 2], F32));
    check_values(&across, &[NAN, NAN, NAN, NAN, 0.0, 1.0]);
    let x = f32s(&[1, 3], &[1.0, 2.0, 3.0]);
    let across = run(OpKind::Softmax { axis: 1 }, &[&x], ty(&[1, 3], F32));
    check_values(&across, &[0.09003057330846786, 0.2447284758090973, 0.6652409434318542]);
    let x = f32s(&[0, 3], &[]);
    check_values(&run(OpKind::Softmax { axis: 1 }, &[&x], ty(&[0, 3], F32)), &[]);
}

#[test]
fn layer_norm_uses_the_biased_variance_with_eps_inside_the_root() {
    // Mean 2.5, variance 1.25, with eps 2.25: (x - 2.5) / 1.5 = -1, -1/3, 1/3, 1. The second row is constant.
    let x = f32s(&[2, 4], &[1.0, 2.0, 3.0, 4.0, 7.0, 7.0, 7.0, 7.0]);
    let (weight, bias) = (f32s(&[4], &[2.0, 3.0, 3.0, 0.5]), f32s(&[4], &[1.0, 0.0, 0.5, -3.0]));
    let normal = run(OpKind::LayerNorm { eps: 1.0 }, &[&x, &weight, &bias], ty(&[2, 4], F32));
    check_values(&normal, &[-1.0, -1.0, 1.5, -2.5, 1.0, 0.0, 0.5, -3.0]);
    let normal = run(OpKind::LayerNorm { eps: 0.0 }, &[&x, &weight, &bias], ty(&[2, 4], F32));
    assert!(normal.to_f64()[4..].iter().all(|y| y.is_nan()), "0 / 0");
    let empty = f32s(&[0, 4], &[]);
    check_values(&run(OpKind::LayerNorm { eps: 1.0 }, &[&empty, &weight, &bias], ty(&[0, 4], F32)), &[]);
}

/// Sixteen values with the largest magnitude 12: as multiples of 2 they are 6, 0.5, -1.5, 0.2, 2.5 (a tie), zeros.
fn twelve() -> Vec<f64> {
    let mut values = vec![12.0, 1.0, -3.0, 0.4, 5.0];
    values.resize(16, 0.0);
    values
}

#[test]
fn nvfp4_quantization_scales_each_block_by_its_largest_magnitude_over_six() {
    let mut values = twelve();
    values.extend(vec![0.0; 16]);
    values.extend(twelve().iter().map(|v| v * 16.0));
    values.extend(twelve().iter().map(|v| -v / 8.0));
    let v = f32s(&[2, 32], &values);
    for (g, scales) in [(1.0, [2.0, 0.0, 32.0, 0.25]), (0.5, [4.0, 0.0, 64.0, 0.5])] {
        let kind = OpKind::block_quantize(16, None);
        let results = run_all(
            kind,
            &[&v, &f32s(&[], &[g])],
            &[ty(&[2, 32], F4E2M1FN), scales_ty(&[2, 2], F8E4M3FN, ScaleLayout::Linear)],
        );
        check_values(&results[1], &scales);
        assert_eq!(results[0].bytes()[..8], [0x17, 0x0B, 0x04, 0, 0, 0, 0, 0]);
        assert_eq!(results[0].bytes()[8..16], [0; 8]);
        assert_eq!(results[0].bytes()[16..24], [0x17, 0x0B, 0x04, 0, 0, 0, 0, 0]);
        // The signs of the zeros are those of -0.
        assert_eq!(results[0].bytes()[24..], [0x9F, 0x83, 0x8C, 0x88, 0x88, 0x88, 0x88, 0x88]);

        let kind = OpKind::BlockDequantize { block: 16 };
        let operands = [&results[0], &results[1], &f32s(&[], &[g])];
        let restored = run(kind, &operands, ty(&[2, 32], F32)).to_f64();
        assert_eq!(restored[..5], [12.0, 1.0, -3.0, 0.0, 4.0]);
        assert_eq!(restored[32..37], [192.0, 16.0, -48.0, 0.0, 64.0]);
        assert_eq!(restored[48..53], [-1.5, -0.125, 0.375, 0.0, -0.5]);
    }
}

/// Dynamic quantization as frameworks write it: the global scale of zeros is 0.
#[test]
fn an_activation_of_zeros_has_the_product_zero() {
    let source = "fir 1
func @main(
    %x: tensor<[2, 32], f32>, %w: tensor<[8, 32], f4E2M1FN>, %ws: tensor<[8, 2], f8E4M3FN, blocked>
) {
  %amax = reduce %x {axes = [0, 1], kind = amax} : tensor<[], f32>
  %most = constant {value = 2688} : tensor<[], f32>
  %g = div %amax, %most : tensor<[], f32>
  %q, %s = block_quantize %x, %g {block = 16} : tensor<[2, 32], f4E2M1FN>, tensor<[2, 2], f8E4M3FN, blocked>
  %y = scaled_mma %q, %s, %w, %ws, alpha = %g {block = 16} : tensor<[2, 8], f32>
  return %y
}
";
    let (program, _) = crate::load(source).unwrap();
    let recipe = sample::Recipe { rule: sample::Rule::Normal, seed: 1, symbols: Vec::new() };
    let mut tensors = sample::inputs(&program, &recipe).unwrap();
    for (values, is_zero) in [([0.0; 64], true), ([-0.0; 64], true), ([0.37; 64], false)] {
        tensors.insert("x".to_owned(), f32s(&[2, 32], &values));
        let bound = crate::bind::bind(&program, &tensors).unwrap();
        let y = super::interpret(&program, &bound).unwrap().pop().unwrap().to_f64();
        assert!(y.iter().all(|y| if is_zero { *y == 0.0 } else { y.is_finite() }), "{y:?}");
    }
}

#[test]
fn mx_quantization_scales_by_a_power_of_two_below_or_above() {
    let mut values = vec![13.0, 1.0, -3.0, 5.0];
    values.resize(32, 0.0);
    let v = tensor(BF16, &[1, 32], &values);
    let quantize = |element, rounding| {
        let kind = OpKind::block_quantize(32, Some(rounding));
        run_all(kind, &[&v], &[ty(&[1, 32], element), scales_ty(&[1, 1], F8E8M0FNU, ScaleLayout::Linear)])
    };
    let floor = quantize(F4E2M1FN, ScaleRounding::Floor);
    assert_eq!(floor[1].bytes(), [128], "2^(3 - 2)");
    check_values(&floor[0], &[&[6.0, 0.5, -1.5, 2.0][..], &[0.0; 28]].concat());
    let ceil = quantize(F4E2M1FN, ScaleRounding::Ceil);
    assert_eq!(ceil[1].bytes(), [129], "13 / 4 is within 6");
    check_values(&ceil[0], &[&[3.0, 0.0, -1.0, 1.0][..], &[0.0; 28]].concat());
    let wide = quantize(F8E4M3FN, ScaleRounding::Floor);
    assert_eq!(wide[1].bytes(), [127 + 3 - 8]);
    check_values(&wide[0], &[&[416.0, 32.0, -96.0, 160.0][..], &[0.0; 28]].concat());
    let wider = quantize(F8E5M2, ScaleRounding::Floor);
    assert_eq!(wider[1].bytes(), [127 + 3 - 15]);
    check_values(&wider[0], &[&[49152.0, 4096.0, -12288.0, 20480.0][..], &[0.0; 28]].concat());
    // Without a per-tensor scale. The values are exact in f16.
    let restored = run(OpKind::BlockDequantize { block: 32 }, &[&ceil[0], &ceil[1]], ty(&[1, 32], F16));
    check_values(&restored, &[&[12.0, 0.0, -4.0, 4.0][..], &[0.0; 28]].concat());
}

#[test]
fn dequantization_rounds_once() {
    // 3 · 1.125 · g with g = 1 + 2^-23 needs 26 bits: 3.375 + 27·2^-26, where f32 has steps of 2^-22 = 16·2^-26.
    let codes = tensor(F4E2M1FN, &[1, 16], &[3.0; 16]);
    let scales = Tensor::from_f64(F8E4M3FN, vec![1, 1], Some(ScaleLayout::Linear), &[1.125]).unwrap();
    let g = f32s(&[1], &[1.0 + 2f64.powi(-23)]);
    let restored = run(OpKind::BlockDequantize { block: 16 }, &[&codes, &scales, &g], ty(&[1, 16], F32));
    check_values(&restored, &[3.375 + 2f64.powi(-21); 16]);
}

#[test]
fn quantization_writes_either_scale_layout_with_zero_padding() {
    let v = sample::tensor(BF16, vec![3, 37, 96], None, sample::Rule::Normal, 5).unwrap();
    let g = f32s(&[1], &[0.001]);
    let quantize = |layout| {
        let kind = OpKind::block_quantize(16, None);
        run_all(kind, &[&v, &g], &[ty(&[3, 37, 96], F4E2M1FN), scales_ty(&[3, 37, 6], F8E4M3FN, layout)])
    };
    let (linear, blocked) = (quantize(ScaleLayout::Linear), quantize(ScaleLayout::Blocked));
    assert_eq!(linear[0], blocked[0]);
    assert_eq!(linear[1].bytes(), blocked[1].to_codes());
    assert_eq!(blocked[1].bytes().len(), 3 * 128 * 8);
    let held = |code: &&u8| **code != 0;
    assert_eq!(blocked[1].bytes().iter().filter(held).count(), linear[1].bytes().iter().filter(held).count());
    assert!(linear[1].bytes().iter().all(|code| *code != 0));
}

#[test]
fn swizzled_scales_come_back_and_ignore_padding() {
    let of = |kind, x: &Tensor, layout| run(kind, &[x], scales_ty(x.dims(), x.element(), layout));
    let blocked =
        sample::tensor(F8E4M3FN, vec![2, 130, 5], Some(ScaleLayout::Blocked), sample::Rule::Normal, 1)
            .unwrap();
    let linear = of(OpKind::SwizzleScales, &blocked, ScaleLayout::Linear);
    let again = of(OpKind::SwizzleScales, &linear, ScaleLayout::Blocked);
    // Row 129, column 4 of matrix 1: the second row tile, the second column tile, line 1.
    let offset = 256 * 8 + 3 * 512 + 16;
    assert_eq!(linear.bytes()[2 * 130 * 5 - 1], blocked.bytes()[offset]);
    assert_eq!(again.bytes()[offset], blocked.bytes()[offset]);
    assert_ne!(again.bytes(), blocked.bytes(), "the padding is zero");
    assert_eq!(again.to_codes(), linear.bytes());
}

#[test]
fn scales_keep_their_bytes_without_a_layout() {
    let bytes: Vec<u8> = (0..2 * 130 * 5).map(|index| (index * 7) as u8).collect();
    let linear =
        Tensor::from_codes(F8E4M3FN, vec![2, 130, 5], Some(ScaleLayout::Linear), bytes.clone()).unwrap();
    let plain = run(OpKind::SwizzleScales, &[&linear], ty(&[2, 130, 5], F8E4M3FN));
    assert_eq!((plain.layout(), plain.bytes()), (None, bytes.as_slice()));
    let blocked =
        run(OpKind::SwizzleScales, &[&plain], scales_ty(&[2, 130, 5], F8E4M3FN, ScaleLayout::Blocked));
    assert_eq!(blocked.to_codes(), bytes);
    let again = run(OpKind::SwizzleScales, &[&blocked], ty(&[2, 130, 5], F8E4M3FN));
    assert_eq!(again.bytes(), bytes);
}

#[test]
fn a_written_out_formula_has_a_lower_bound_and_no_guards() {
    let mut values = vec![-0.0; 16];
    values.extend(twelve());
    let v = f32s(&[1, 32], &values);
    let results = [ty(&[1, 32], F4E2M1FN), scales_ty(&[1, 2], F8E4M3FN, ScaleLayout::Linear)];
    let of = |scale_min: f32, guard: bool| {
        let formula =
            Nvfp4Formula { scale_min: ScaleMin::new(scale_min).unwrap(), guard, ..Nvfp4Formula::DEFAULT };
        let kind = OpKind::BlockQuantize { block: 16, scale_rounding: None, formula };
        run_all(kind, &[&v, &f32s(&[], &[1.0])], &results)
    };
    // Codes of a block of -0: 0 with guards, those of -0 / 2^-6 without, and those of 0/0 without a bound.
    for (scale_min, guard, scale, code) in
        [(0.015625, true, 0.015625, 0x0), (0.015625, false, 0.015625, 0x8), (0.0, false, 0.0, 0x7)]
    {
        let found = of(scale_min, guard);
        check_values(&found[1], &[scale, 2.0]);
        assert_eq!(found[0].to_codes()[..16], [code; 16]);
        assert_eq!(found[0].bytes()[8..11], [0x17, 0x0B, 0x04]);
    }
    check_values(&of(4.0, false)[1], &[4.0; 2]);
}

#[test]
fn a_nan_result_has_one_bit_pattern() {
    let x = Tensor::new(F32, vec![2], None, [0xFFC0_1234u32, 0x7F80_0001].map(u32::to_le_bytes).concat())
        .unwrap();
    let y = run(OpKind::Unary(UnaryKind::Neg), &[&x], ty(&[2], F32));
    assert_eq!(y.bytes(), [0x7FC0_0000u32; 2].map(u32::to_le_bytes).concat());
}

#[test]
fn every_value_of_a_program_is_at_its_index() {
    let mut builder = Builder::new("main");
    let m = builder.symbol("M");
    let x = builder.input("x", TensorType::new(vec![m, Dim::fixed(2)], F32));
    let bias = builder.param("bias", ty(&[2], F32));
    let sum = builder.binary("sum", BinaryKind::Add, x, bias);
    let y = builder.unary("y", UnaryKind::Relu, sum);
    let program = verify(builder.finish(&[y])).unwrap();
    let tensors =
        [("x", f32s(&[3, 2], &[1.0, -2.0, 3.0, 4.0, -9.0, 0.0])), ("bias", f32s(&[2], &[0.5, 1.0]))];
    let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor)).into();
    let values = interpret(&program, &crate::bind::bind(&program, &tensors).unwrap()).unwrap();
    assert_eq!(values.len(), 4);
    assert_eq!(&values[bias.index()], &tensors["bias"]);
    check_values(&values[sum.index()], &[1.5, -1.0, 3.5, 5.0, -8.5, 1.0]);
    check_values(&values[y.index()], &[1.5, 0.0, 3.5, 5.0, 0.0, 1.0]);
}

#[test]
fn an_impossible_call_is_refused_with_the_op() {
    let mut builder = Builder::new("main");
    let m = builder.symbol("M");
    let x = builder.input("x", ty(&[1], F32));
    let z = builder.input("z", TensorType::new(vec![m.clone()], F32));
    let y = builder.op(OpKind::Broadcast, &[x], &[("y", TensorType::new(vec![m], F32))])[0];
    let program = verify(builder.finish(&[y, z])).unwrap();
    let op = Op::from_index(0);
    let one = f32s(&[1], &[1.0]);
    let with = |extent: Option<u64>, operands: &[&Tensor]| {
        let mut symbols = SymbolValues::default();
        if let Some(extent) = extent {
            symbols.set(Entity::from_index(0), extent);
        }
        interpret_op(&program, op, operands, &symbols).map_err(|error| error.to_string())
    };
    assert_eq!(with(Some(2), &[&one]).unwrap()[0].to_f64(), [1.0, 1.0]);
    let refused = |result: Result<Vec<Tensor>, String>| result.unwrap_err();
    assert_eq!(
        refused(with(Some(1 << 40), &[&one])),
        "`%y = broadcast`: the shape [1099511627776] exceeds the interpreter's limit of 2^28 elements or 1 GiB"
    );
    assert!(refused(with(Some((1 << 28) + 1), &[&one])).contains("limit of 2^28 elements"));
    assert_eq!(
        refused(with(None, &[&one])),
        "`%y = broadcast`: the symbol values determine no valid extents for tensor<[M], f32>"
    );
    assert_eq!(refused(with(Some(2), &[])), "`%y = broadcast` takes 1 tensors, not 0");
    assert_eq!(
        refused(with(Some(2), &[&f32s(&[2], &[1.0, 2.0])])),
        "`%y = broadcast`: `%x` is [1], f32, but its tensor is [2], f32"
    );
    let bound = Bound { symbols: SymbolValues::default(), inputs: vec![&one] };
    assert_eq!(interpret(&program, &bound).unwrap_err().to_string(), "`@main` takes 2 tensors, not 1");
}

#[test]
fn scales_that_are_mostly_padding_are_refused_before_they_are_written() {
    let mut builder = Builder::new("main");
    let scales = builder.input("s", scales_ty(&[1 << 26, 1, 1], F8E4M3FN, ScaleLayout::Linear));
    let swizzled = builder.swizzle_scales("t", scales, ScaleLayout::Blocked);
    let program = verify(builder.finish(&[swizzled])).unwrap();
    let scales = Tensor::zeros(F8E4M3FN, vec![1 << 26, 1, 1], Some(ScaleLayout::Linear)).unwrap();
    let error = interpret_op(&program, Op::from_index(0), &[&scales], &SymbolValues::default()).unwrap_err();
    assert!(matches!(error, InterpretError::TooLarge { .. }), "512 bytes for each: {error}");
}
