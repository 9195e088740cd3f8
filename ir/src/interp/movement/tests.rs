//! Tests of `slice`, `concat`, `gather` and `pad`, and of integers, against literal numbers.

use super::super::InterpretError;
use super::super::testing::{f32s, run, scales_ty, tensor, try_run, ty};
use crate::ops::{BinaryKind, OpKind, PadAmount, SliceRange};
use crate::tensor::Tensor;
use crate::types::ElementType::{BF16, F4E2M1FN, F8E4M3FN, F32, I1, I32};
use crate::types::ScaleLayout::Linear;

fn range(axis: u32, start: u64, end: u64, step: u64) -> SliceRange {
    SliceRange { axis, start, end, step }
}

/// The numbers from 0, as f32.
fn counted(dims: &[usize]) -> Tensor {
    let values: Vec<f64> = (0..dims.iter().product::<usize>()).map(|value| value as f64).collect();
    f32s(dims, &values)
}

#[test]
fn slice_takes_every_step_of_a_range() {
    let x = counted(&[4, 5]);
    let of = |ranges: &[SliceRange], dims: &[usize]| {
        run(OpKind::Slice { ranges: ranges.to_vec() }, &[&x], ty(dims, F32)).to_f64()
    };
    assert_eq!(of(&[range(0, 1, 3, 1)], &[2, 5]), [5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0]);
    assert_eq!(of(&[range(0, 0, 4, 3), range(1, 1, 5, 2)], &[2, 2]), [1.0, 3.0, 16.0, 18.0]);
    assert_eq!(of(&[range(1, 4, 5, 1 << 53)], &[4, 1]), [4.0, 9.0, 14.0, 19.0]);
    assert_eq!(of(&[range(1, 5, 5, 1)], &[4, 0]), [0.0; 0]);
    assert_eq!(of(&[], &[4, 5]), x.to_f64());
    let scalar = run(OpKind::Slice { ranges: vec![] }, &[&f32s(&[], &[-0.0])], ty(&[], F32));
    assert_eq!(scalar.to_f64()[0].to_bits(), (-0.0f64).to_bits());
}

#[test]
fn fp4_and_linear_scales_are_sliced_as_codes() {
    let x = tensor(F4E2M1FN, &[2, 4], &[0.5, 1.0, -2.0, 6.0, -0.0, 3.0, 4.0, -6.0]);
    let inner = run(OpKind::Slice { ranges: vec![range(1, 2, 4, 1)] }, &[&x], ty(&[2, 2], F4E2M1FN));
    assert_eq!(inner.to_f64(), [-2.0, 6.0, 4.0, -6.0]);
    let outer = run(OpKind::Slice { ranges: vec![range(0, 1, 2, 1)] }, &[&x], ty(&[1, 4], F4E2M1FN));
    assert_eq!(outer.to_f64(), [-0.0, 3.0, 4.0, -6.0]);
    let scales =
        Tensor::from_codes(F8E4M3FN, vec![2, 2], Some(Linear), vec![0x38, 0xB8, 0x7F, 0x40]).unwrap();
    let kind = OpKind::Slice { ranges: vec![range(1, 1, 2, 1)] };
    let sliced = run(kind, &[&scales], scales_ty(&[2, 1], F8E4M3FN, Linear));
    assert_eq!(sliced.bytes(), [0xB8, 0x40]);
}

#[test]
fn concat_joins_any_number_of_operands_along_any_axis() {
    let (x, y, none) = (counted(&[2, 2]), f32s(&[2, 1], &[-1.0, -2.0]), f32s(&[2, 0], &[]));
    let across = run(OpKind::Concat { axis: 1 }, &[&x, &none, &y, &x], ty(&[2, 5], F32));
    assert_eq!(across.to_f64(), [0.0, 1.0, -1.0, 0.0, 1.0, 2.0, 3.0, -2.0, 2.0, 3.0]);
    let down = run(OpKind::Concat { axis: 0 }, &[&x, &f32s(&[1, 2], &[f64::NAN, 9.0])], ty(&[3, 2], F32));
    assert!(down.to_f64()[4].is_nan());
    assert_eq!(down.to_f64()[5], 9.0);
    assert_eq!(run(OpKind::Concat { axis: 0 }, &[&x], ty(&[2, 2], F32)), x);
    let codes = tensor(F4E2M1FN, &[1, 2], &[6.0, -0.5]);
    let joined = run(OpKind::Concat { axis: 1 }, &[&codes, &codes], ty(&[1, 4], F4E2M1FN));
    assert_eq!(joined.to_f64(), [6.0, -0.5, 6.0, -0.5]);
}

#[test]
fn choose_takes_the_first_operand_whose_end_is_at_least_the_extent() {
    let choose = |axis, ends: &[u32], dims: &[usize]| {
        let counted = counted(dims);
        let others = [-1.0, -2.0].map(|value| f32s(dims, &vec![value; counted.count()]));
        let kind = OpKind::Choose { axis, ends: ends.to_vec() };
        let taken = run(kind, &[&counted, &others[0], &others[1]], ty(dims, F32));
        [&counted, &others[0], &others[1]].iter().position(|operand| **operand == taken)
    };
    for (rows, taken) in [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (9, 2)] {
        assert_eq!(choose(0, &[2, 4], &[rows, 3]), Some(taken), "{rows} rows");
        assert_eq!(choose(1, &[2, 4], &[3, rows]), Some(taken), "{rows} columns");
    }
    assert_eq!(choose(0, &[0, u32::MAX], &[1, 1]), Some(1));
    // Codes are kept bit for bit.
    let codes = [tensor(F4E2M1FN, &[1, 2], &[6.0, -0.5]), tensor(F4E2M1FN, &[1, 2], &[-0.0, 4.0])];
    let kind = OpKind::Choose { axis: 1, ends: vec![1] };
    assert_eq!(run(kind, &[&codes[0], &codes[1]], ty(&[1, 2], F4E2M1FN)), codes[1]);
}

#[test]
fn gather_replaces_an_axis_by_the_axes_of_the_indices() {
    let x = counted(&[3, 2]);
    let indices = tensor(I32, &[2, 2], &[2.0, 0.0, 0.0, 1.0]);
    let rows = run(OpKind::Gather { axis: 0 }, &[&x, &indices], ty(&[2, 2, 2], F32));
    assert_eq!(rows.to_f64(), [4.0, 5.0, 0.0, 1.0, 0.0, 1.0, 2.0, 3.0]);
    let column = run(OpKind::Gather { axis: 1 }, &[&x, &tensor(I32, &[], &[1.0])], ty(&[3], F32));
    assert_eq!(column.to_f64(), [1.0, 3.0, 5.0]);
    let none = run(OpKind::Gather { axis: 0 }, &[&x, &tensor(I32, &[0], &[])], ty(&[0, 2], F32));
    assert_eq!(none.count(), 0);
}

#[test]
fn gather_refuses_an_index_outside_the_axis_and_names_it() {
    let x = counted(&[3, 2]);
    for (values, position, index) in
        [([0.0, 3.0], 1, 3), ([-1.0, 9.0], 0, -1), ([2.0, -2147483648.0], 1, i32::MIN)]
    {
        let indices = tensor(I32, &[2], &values);
        let error = try_run(OpKind::Gather { axis: 0 }, &[&x, &indices], &[ty(&[2, 2], F32)]).unwrap_err();
        let place = "%y0 = gather".to_owned();
        assert_eq!(error, InterpretError::Index { place, position, index, axis: 0, extent: 3 });
    }
    // An axis without elements has no index, and a result without elements is no excuse.
    for (x, dims) in [(f32s(&[0, 2], &[]), [1, 2]), (f32s(&[2, 0], &[]), [1, 0])] {
        let indices = tensor(I32, &[1], &[2.0]);
        let error = try_run(OpKind::Gather { axis: 0 }, &[&x, &indices], &[ty(&dims, F32)]).unwrap_err();
        assert!(error.to_string().contains("index 2, element 0 of the indices"), "{error}");
    }
}

#[test]
fn pad_adds_a_value_before_and_after() {
    let amount = |axis, low, high| PadAmount { axis, low, high };
    let pad = |amounts: &[PadAmount], value| OpKind::Pad { amounts: amounts.to_vec(), value };
    let both = pad(&[amount(0, 0, 1), amount(1, 2, 1)], 0.5);
    let padded = run(both, &[&counted(&[1, 2])], ty(&[2, 5], F32));
    assert_eq!(padded.to_f64(), [0.5, 0.5, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]);
    let rounded = run(pad(&[amount(0, 1, 0)], 0.1), &[&tensor(BF16, &[0], &[])], ty(&[1], BF16));
    assert_eq!(rounded.to_f64(), [0.100_097_656_25]);
    let codes = tensor(F4E2M1FN, &[1, 2], &[6.0, -0.5]);
    let padded = run(pad(&[amount(1, 2, 0)], -1.5), &[&codes], ty(&[1, 4], F4E2M1FN));
    assert_eq!(padded.to_f64(), [-1.5, -1.5, 6.0, -0.5]);
    let masks = run(pad(&[amount(0, 1, 1)], 1.0), &[&tensor(I1, &[1], &[0.0])], ty(&[3], I1));
    assert_eq!(masks.bytes(), [1, 0, 1]);
    assert_eq!(run(pad(&[], 1.0), &[&f32s(&[], &[7.0])], ty(&[], F32)).to_f64(), [7.0]);
}

#[test]
fn integers_wrap_around_and_every_bit_of_a_product_is_right() {
    let (a, b) = (tensor(I32, &[2], &[2147483647.0, -46341.0]), tensor(I32, &[], &[46341.0]));
    let of = |kind| run(OpKind::Binary(kind), &[&a, &b], ty(&[2], I32)).to_f64();
    assert_eq!(of(BinaryKind::Add), [-2147437308.0, 0.0]);
    assert_eq!(of(BinaryKind::Sub), [2147437306.0, -92682.0]);
    assert_eq!(of(BinaryKind::Mul), [2147437307.0, 2147479015.0]);
    assert_eq!(of(BinaryKind::Max), [2147483647.0, 46341.0]);
    assert_eq!(of(BinaryKind::Min), [46341.0, -46341.0]);
}
