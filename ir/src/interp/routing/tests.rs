//! Tests of `top_k`, `group_rows`, `padded_ends`, `group_scales` and `scatter_add` against literal numbers.

use super::super::InterpretError;
use super::super::testing::{f32s, run, run_all, tensor, try_run, ty};
use crate::ops::OpKind;
use crate::tensor::Tensor;
use crate::types::ElementType::{BF16, F8E4M3FN, F16, F32, I32};
use crate::types::ScaleLayout::{Blocked, Linear};
use crate::types::{Dim, TensorType};

#[test]
fn top_k_takes_nan_first_and_the_first_of_equal_elements() {
    let x = f32s(&[2, 5], &[1.0, f64::NAN, 3.0, 1.0, f64::NAN, -0.0, 0.0, -5.0, f64::NEG_INFINITY, 0.0]);
    let [values, indices] = &run_all(OpKind::TopK { k: 4 }, &[&x], &[ty(&[2, 4], F32), ty(&[2, 4], I32)])[..]
    else {
        panic!("two results")
    };
    assert_eq!(indices.to_f64(), [1.0, 4.0, 2.0, 0.0, 0.0, 1.0, 4.0, 2.0]);
    let values = values.to_f64();
    assert!(values[0].is_nan() && values[1].is_nan());
    assert_eq!(values[2..], [3.0, 1.0, 0.0, 0.0, 0.0, -5.0]);
    assert!(values[4].is_sign_negative() && values[5].is_sign_positive(), "elements are moved as they are");
    let one = tensor(F16, &[3], &[2.0, 7.0, 7.0]);
    let taken = run_all(OpKind::TopK { k: 1 }, &[&one], &[ty(&[1], F16), ty(&[1], I32)]);
    assert_eq!(taken.iter().map(|taken| taken.to_f64()[0]).collect::<Vec<_>>(), [7.0, 1.0]);
}

#[test]
fn group_rows_sorts_positions_by_group() {
    let ids = tensor(I32, &[3, 2], &[2.0, 0.0, 2.0, 2.0, 0.0, 3.0]);
    let results = [ty(&[6], I32), ty(&[6], I32), ty(&[5], I32)];
    let found = run_all(OpKind::GroupRows { groups: 5 }, &[&ids], &results);
    assert_eq!(found[0].to_f64(), [1.0, 4.0, 0.0, 2.0, 3.0, 5.0], "positions");
    assert_eq!(found[1].to_f64(), [0.0, 2.0, 0.0, 1.0, 1.0, 2.0], "rows");
    assert_eq!(found[2].to_f64(), [2.0, 2.0, 5.0, 6.0, 6.0], "ends; groups 1 and 4 are empty");
    let none = tensor(I32, &[0, 2], &[]);
    let results = [ty(&[0], I32), ty(&[0], I32), ty(&[2], I32)];
    assert_eq!(run_all(OpKind::GroupRows { groups: 2 }, &[&none], &results)[2].to_f64(), [0.0, 0.0]);
}

#[test]
fn group_rows_refuses_an_id_without_a_group_and_names_it() {
    for (values, position, id) in [([0.0, 3.0], 1, 3), ([-1.0, 9.0], 0, -1)] {
        let ids = tensor(I32, &[1, 2], &values);
        let results = [ty(&[2], I32), ty(&[2], I32), ty(&[3], I32)];
        let error = try_run(OpKind::GroupRows { groups: 3 }, &[&ids], &results).unwrap_err();
        let place = "%y0, %y1, %y2 = group_rows".to_owned();
        assert_eq!(error, InterpretError::Group { place, position, id, groups: 3 });
    }
}

#[test]
fn padded_ends_round_each_group_up() {
    let ends = tensor(I32, &[5], &[2.0, 2.0, 131.0, 259.0, 260.0]);
    let padded = run(OpKind::PaddedEnds { multiple: 128 }, &[&ends], ty(&[5], I32));
    assert_eq!(padded.to_f64(), [128.0, 128.0, 384.0, 512.0, 640.0]);
    let same = run(OpKind::PaddedEnds { multiple: 1 }, &[&ends], ty(&[5], I32));
    assert_eq!(same.to_f64(), ends.to_f64());
}

#[test]
fn padded_ends_refuse_descending_ends_and_sums_beyond_i32() {
    let place = || "%y0 = padded_ends".to_owned();
    let ends = tensor(I32, &[3], &[2.0, 1.0, 3.0]);
    let error = try_run(OpKind::PaddedEnds { multiple: 4 }, &[&ends], &[ty(&[3], I32)]).unwrap_err();
    let (offset, least, rows) = (1, 2, i32::MAX as usize);
    assert_eq!(error, InterpretError::Offset { place: place(), position: 1, offset, least, rows });
    let ends = tensor(I32, &[3], &[1.0, 1.0, 3.0]);
    let multiple = 1 << 30;
    let error = try_run(OpKind::PaddedEnds { multiple }, &[&ends], &[ty(&[3], I32)]).unwrap_err();
    let (end, most) = (1 << 31, i32::MAX as usize);
    assert_eq!(
        error,
        InterpretError::PaddedEnd { place: place(), position: 2, end, multiple, least: 0, most }
    );
}

/// Marks the scale of row r and column c.
fn marked(rows: usize, columns: usize) -> Tensor {
    let codes = (0..rows * columns).map(|at| 1 + (at * 37 % 113) as u8).collect();
    Tensor::from_codes(F8E4M3FN, vec![rows, columns], Some(Linear), codes).unwrap()
}

#[test]
fn group_scales_moves_each_group_to_its_first_tile() {
    let scales = marked(6, 5);
    // The second group is empty, and row 5 belongs to none. The first group has a tile too many.
    let (ends, padded) = (tensor(I32, &[3], &[2.0, 2.0, 5.0]), tensor(I32, &[3], &[256.0, 256.0, 384.0]));
    let result = TensorType::scales([400, 5].map(Dim::fixed).to_vec(), F8E4M3FN, Blocked);
    let moved = run(OpKind::GroupScales, &[&scales, &ends, &padded], result);
    let (codes, from) = (moved.to_codes(), scales.to_codes());
    let mut expected = vec![0; 400 * 5];
    for (row, place) in [(0, 0), (1, 1), (2, 256), (3, 257), (4, 258)] {
        expected[place * 5..][..5].copy_from_slice(&from[row * 5..][..5]);
    }
    assert_eq!(codes, expected);
}

#[test]
fn ends_in_scales_are_whole_tiles_with_room_for_each_group() {
    let scales = marked(200, 1);
    let ends = tensor(I32, &[2], &[130.0, 200.0]);
    for (padded, position, end, least) in [
        ([128.0, 384.0], 0, 128, 130),
        ([200.0, 384.0], 0, 200, 130),
        ([256.0, 256.0], 1, 256, 326),
        ([256.0, 512.0], 1, 512, 326),
        ([-128.0, 384.0], 0, -128, 130),
    ] {
        let padded = tensor(I32, &[2], &padded);
        let result = TensorType::scales([400, 1].map(Dim::fixed).to_vec(), F8E4M3FN, Blocked);
        let error = try_run(OpKind::GroupScales, &[&scales, &ends, &padded], &[result]).unwrap_err();
        let place = "%y0 = group_scales".to_owned();
        let expected = InterpretError::PaddedEnd { place, position, end, multiple: 128, least, most: 400 };
        assert_eq!(error, expected);
    }
}

#[test]
fn scatter_add_sums_in_f32_in_the_order_of_the_rows() {
    let x = f32s(&[4, 2], &[16_777_216.0, 1.0, 1.0, 2.0, 1.0, 4.0, -0.0, 8.0]);
    let indices = tensor(I32, &[4], &[1.0, 1.0, 1.0, 3.0]);
    let sums = run(OpKind::ScatterAdd, &[&x, &indices], ty(&[4, 2], F32)).to_f64();
    // 2^24 + 1 rounds to 2^24, twice.
    assert_eq!(sums, [0.0, 0.0, 16_777_216.0, 7.0, 0.0, 0.0, 0.0, 8.0]);
    assert!(sums[6].is_sign_negative(), "one addend is the sum");
    assert!(sums[0].is_sign_positive(), "no addend gives +0");
    // Sums are rounded to the result type once, at the end.
    let halves = tensor(BF16, &[3], &[256.0, 1.0, 1.0]);
    let sum = run(OpKind::ScatterAdd, &[&halves, &tensor(I32, &[3], &[0.0; 3])], ty(&[1], BF16));
    assert_eq!(sum.to_f64(), [258.0]);
}

#[test]
fn scatter_add_refuses_an_index_outside_the_result() {
    let x = f32s(&[2], &[1.0, 2.0]);
    for (values, position, index) in [([0.0, 3.0], 1, 3), ([-1.0, 9.0], 0, -1)] {
        let error =
            try_run(OpKind::ScatterAdd, &[&x, &tensor(I32, &[2], &values)], &[ty(&[3], F32)]).unwrap_err();
        let place = "%y0 = scatter_add".to_owned();
        assert_eq!(error, InterpretError::Index { place, position, index, axis: 0, extent: 3 });
    }
}
