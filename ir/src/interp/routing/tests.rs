//! Tests of `top_k`, `group_rows` and `scatter_add` against literal numbers.

use super::super::InterpretError;
use super::super::testing::{f32s, run, run_all, tensor, try_run, ty};
use crate::ops::OpKind;
use crate::types::ElementType::{BF16, F16, F32, I32};

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
