//! Rejected programs of `slice`, `concat`, `gather` and `pad`, and of integer arithmetic.

use expect_test::{Expect, expect};

use crate::load::load;

/// Compares the errors of these ops on inputs of several types, one per line: code, message. Ops with several results
/// name them.
#[track_caller]
fn check(ops: &[&str], expected: Expect) {
    let body: String = ops
        .iter()
        .enumerate()
        .map(
            |(index, op)| {
                if op.starts_with('%') { format!("  {op}\n") } else { format!("  %y{index} = {op}\n") }
            },
        )
        .collect();
    let source = format!(
        "fir 1
func @main(
    %x: tensor<[4, 6], f32>, %m: tensor<[M, 6], f32>, %n: tensor<[N, 6], f32>, %m4: tensor<[4*M, 6], f32>,
    %q: tensor<[4, 32], f4E2M1FN>, %i: tensor<[M], i32>, %b: tensor<[4, 6], i1>, %e8: tensor<[4, 2], f8E4M3FN>,
    %sl: tensor<[4, 2], f8E4M3FN, linear>, %sb: tensor<[4, 2], f8E4M3FN, blocked>, %scalar: tensor<[], f32>
) {{
{body}  return %y0
}}"
    );
    let text = match load(&source) {
        Ok(_) => "accepted\n".to_owned(),
        Err(errors) => {
            errors.iter().map(|error| format!("error: {}: {}\n", error.code, error.message)).collect()
        }
    };
    expected.assert_eq(&text);
}

#[test]
fn routing() {
    check(
        &[
            "scatter_add %i, %i : tensor<[4], f32>",
            "scatter_add %x, %i : tensor<[9, 6], f32>",
            "scatter_add %m, %i : tensor<[9, 5], f32>",
            "scatter_add %m, %i : tensor<[9, 6], i32>",
            "scatter_add %m, %i : tensor<[], f32>",
            "scatter_add %scalar, %i : tensor<[9], f32>",
            "%v0, %i0 = top_k %x {k = 0} : tensor<[4, 0], f32>, tensor<[4, 0], i32>",
            "%v1, %i1 = top_k %x {k = 7} : tensor<[4, 7], f32>, tensor<[4, 7], i32>",
            "%v2, %i2 = top_k %i {k = 1} : tensor<[1], i32>, tensor<[1], i32>",
            "%v3, %i3 = top_k %x {k = 2} : tensor<[4, 3], f16>, tensor<[4, 2], f32>",
            "%v4, %i4 = top_k %scalar {k = 1} : tensor<[1], f32>, tensor<[1], i32>",
            "%p0, %r0, %e0 = group_rows %i {groups = 3} : tensor<[M], i32>, tensor<[M], i32>, tensor<[3], i32>",
            "%p2, %r2, %e2 = group_rows %x {groups = 0} : tensor<[24], i32>, tensor<[24], i32>, tensor<[0], i32>",
            "%p1, %r1, %e1 = group_rows %x {groups = 3} : tensor<[24], f32>, tensor<[4], i32>, tensor<[2], i32>",
        ],
        expect![[r#"
            error: operand_element: scatter_add takes f16, bf16 or f32 as x, but `%i` is tensor<[M], i32>
            error: operand_shape: indices must have the shape [4], but `%i` is tensor<[M], i32>
            error: result_shape: the shape of `%y2: tensor<[9, 5], f32>` must be [9, 6]
            error: result_element: the element type of `%y3: tensor<[9, 6], i32>` must be f16, bf16 or f32
            error: result_shape: the shape of `%y4: tensor<[], f32>` must be [M, 6]
            error: operand_rank: x must have rank 1 or more, but `%scalar` is tensor<[], f32>
            error: top_k: the last axis of `%x: tensor<[4, 6], f32>` has no k = 0 elements to take
            error: top_k: the last axis of `%x: tensor<[4, 6], f32>` has no k = 7 elements to take
            error: operand_element: top_k takes f16, bf16 or f32 as x, but `%i` is tensor<[M], i32>
            error: top_k: the last axis of `%i: tensor<[M], i32>` has no k = 1 elements to take
            error: result_element: the element type of `%v3: tensor<[4, 3], f16>` must be f32
            error: result_element: the element type of `%i3: tensor<[4, 2], f32>` must be i32
            error: result_shape: the shape of `%v3: tensor<[4, 3], f16>` must be [4, 2]
            error: operand_rank: x must have rank 1 or more, but `%scalar` is tensor<[], f32>
            error: operand_rank: ids must have rank 2 or more, but `%i` is tensor<[M], i32>
            error: operand_element: group_rows takes i32 as ids, but `%x` is tensor<[4, 6], f32>
            error: no_groups: group_rows needs at least one group
            error: operand_element: group_rows takes i32 as ids, but `%x` is tensor<[4, 6], f32>
            error: result_element: the element type of `%p1: tensor<[24], f32>` must be i32
            error: result_shape: the shape of `%r1: tensor<[4], i32>` must be [24]
            error: result_shape: the shape of `%e1: tensor<[2], i32>` must be [3]
        "#]],
    );
}

#[test]
fn slice() {
    check(
        &[
            "slice %x {axes = [0], starts = [3], ends = [2]} : tensor<[0, 6], f32>",
            "slice %x {axes = [1], starts = [0], ends = [7]} : tensor<[4, 7], f32>",
            "slice %x {axes = [1], starts = [0], ends = [6], steps = [0]} : tensor<[4, 0], f32>",
            "slice %x {axes = [2], starts = [0], ends = [1]} : tensor<[4, 6], f32>",
            "slice %x {axes = [1, 0], starts = [0, 0], ends = [1, 1]} : tensor<[1, 1], f32>",
            "slice %x {axes = [1], starts = [0], ends = [6], steps = [4]} : tensor<[4, 1], f32>",
            "slice %m {axes = [0], starts = [0], ends = [1]} : tensor<[1, 6], f32>",
            "slice %q {axes = [1], starts = [1], ends = [3]} : tensor<[4, 2], f4E2M1FN>",
            "slice %q {axes = [1], starts = [0], ends = [4], steps = [2]} : tensor<[4, 2], f4E2M1FN>",
            "slice %sb {axes = [0], starts = [0], ends = [1]} : tensor<[1, 2], f8E4M3FN, blocked>",
            "slice %sl {axes = [0], starts = [0], ends = [1]} : tensor<[1, 2], f8E4M3FN>",
        ],
        expect![[r#"
            error: slice_range: start 3, end 2 and step 1 do not fit axis 0 of `%x: tensor<[4, 6], f32>`
            error: slice_range: start 0, end 7 and step 1 do not fit axis 1 of `%x: tensor<[4, 6], f32>`
            error: slice_range: start 0, end 6 and step 0 do not fit axis 1 of `%x: tensor<[4, 6], f32>`
            error: axis_out_of_range: `%x: tensor<[4, 6], f32>` has no axis 2
            error: axes_order: the axes [1, 0] are not distinct and ascending
            error: result_shape: the shape of `%y5: tensor<[4, 1], f32>` must be [4, 2]
            error: slice_symbol: axis 0 of `%m: tensor<[M, 6], f32>` has a symbolic extent, so it cannot be sliced
            error: packed_axis: slice would split bytes of `%q: tensor<[4, 32], f4E2M1FN>` along its last axis
            error: packed_axis: slice would split bytes of `%q: tensor<[4, 32], f4E2M1FN>` along its last axis
            error: unexpected_scales: slice takes no scale tensor as operand, but `%sb` is tensor<[4, 2], f8E4M3FN, blocked>
            error: result_layout: slice does not produce scales, but `%y9` is tensor<[1, 2], f8E4M3FN, blocked>
            error: unexpected_scales: slice takes no scale tensor as operand, but `%sl` is tensor<[4, 2], f8E4M3FN, linear>
        "#]],
    );
    check(
        &["slice %x {axes = [0, 1], starts = [0], ends = [2, 2]} : tensor<[2, 2], f32>"],
        expect![[r#"
            error: bad_attribute: attribute `starts` of `slice` must be a list of whole numbers, one for each of `axes`, not [0]
        "#]],
    );
    check(
        &["slice %x {axes = [0], starts = [0], ends = [2], steps = [-1]} : tensor<[2, 2], f32>"],
        expect![[r#"
            error: bad_attribute: attribute `steps` of `slice` must be a list of whole numbers, one for each of `axes`, not [-1]
        "#]],
    );
}

#[test]
fn choose() {
    check(
        &[
            "choose %x {axis = 0, ends = []} : tensor<[4, 6], f32>",
            "choose %x, %b {axis = 0, ends = [1]} : tensor<[4, 6], f32>",
            "choose %m, %n {axis = 0, ends = [1]} : tensor<[M, 6], f32>",
            "choose %m, %m {axis = 0, ends = [1]} : tensor<[N, 6], f32>",
            "choose %m, %m {axis = 2, ends = [1]} : tensor<[M, 6], f32>",
            "choose %scalar, %scalar {axis = 0, ends = [1]} : tensor<[], f32>",
            "choose %m, %m {axis = 0, ends = []} : tensor<[M, 6], f32>",
            "choose %m, %m, %m {axis = 0, ends = [9, 8]} : tensor<[M, 6], f32>",
            "choose %m, %m, %m {axis = 0, ends = [9, 9]} : tensor<[M, 6], f32>",
            "choose %sl, %sl {axis = 0, ends = [1]} : tensor<[4, 2], f8E4M3FN, linear>",
        ],
        expect![[r#"
            error: operand_count: choose takes 2 or more operand(s), not 1
            error: element_mismatch: `%x: tensor<[4, 6], f32>` and `%b: tensor<[4, 6], i1>` must have the same element type
            error: operand_shape: operand must have the shape [M, 6], but `%n` is tensor<[N, 6], f32>
            error: result_shape: the shape of `%y3: tensor<[N, 6], f32>` must be [M, 6]
            error: axis_out_of_range: `%m: tensor<[M, 6], f32>` has no axis 2
            error: axis_out_of_range: `%scalar: tensor<[], f32>` has no axis 0
            error: choose_ends: the ends [] do not fit the 2 operands of choose
            error: choose_ends: the ends [9, 8] do not fit the 3 operands of choose
            error: choose_ends: the ends [9, 9] do not fit the 3 operands of choose
            error: unexpected_scales: choose takes no scale tensor as operand, but `%sl` is tensor<[4, 2], f8E4M3FN, linear>
            error: unexpected_scales: choose takes no scale tensor as operand, but `%sl` is tensor<[4, 2], f8E4M3FN, linear>
            error: result_layout: choose does not produce scales, but `%y9` is tensor<[4, 2], f8E4M3FN, linear>
        "#]],
    );
}

#[test]
fn concat() {
    check(
        &[
            "concat {axis = 0} : tensor<[4, 6], f32>",
            "concat %x, %i {axis = 0} : tensor<[4, 6], f32>",
            "concat %x, %b {axis = 0} : tensor<[8, 6], f32>",
            "concat %x, %scalar {axis = 0} : tensor<[5, 6], f32>",
            "concat %x, %m {axis = 1} : tensor<[4, 12], f32>",
            "concat %m, %x {axis = 0} : tensor<[M, 6], f32>",
            "concat %m, %n, %x, %m, %m {axis = 0} : tensor<[M, 6], f32>",
            "concat %m, %m4 {axis = 0} : tensor<[4*M, 6], f32>",
            "concat %scalar {axis = 0} : tensor<[], f32>",
            "concat %sl, %e8 {axis = 0} : tensor<[8, 2], f8E4M3FN, linear>",
            "concat %e8, %sl {axis = 0} : tensor<[8, 2], f8E4M3FN, linear>",
            "concat %sl, %sb {axis = 0} : tensor<[8, 2], f8E4M3FN, linear>",
        ],
        expect![[r#"
            error: operand_count: concat takes 1 or more operand(s), not 0
            error: element_mismatch: `%x: tensor<[4, 6], f32>` and `%i: tensor<[M], i32>` must have the same element type
            error: operand_shape: operand must have the shape [4, 6], but `%i` is tensor<[M], i32>
            error: element_mismatch: `%x: tensor<[4, 6], f32>` and `%b: tensor<[4, 6], i1>` must have the same element type
            error: operand_shape: operand must have the shape [4, 6], but `%scalar` is tensor<[], f32>
            error: operand_shape: operand must have the shape [4, 6], but `%m` is tensor<[M, 6], f32>
            error: extent_sum: concat would give axis 0 the extent M + 4
            error: extent_sum: concat would give axis 0 the extent M + N + 4 + M + ..
            error: result_shape: the shape of `%y7: tensor<[4*M, 6], f32>` must be [5*M, 6]
            error: axis_out_of_range: `%scalar: tensor<[], f32>` has no axis 0
            error: expected_scales: concat requires a scale tensor as operand, but `%e8` is tensor<[4, 2], f8E4M3FN>
            error: unexpected_scales: concat takes no scale tensor as operand, but `%sl` is tensor<[4, 2], f8E4M3FN, linear>
            error: result_layout: concat does not produce scales, but `%y10` is tensor<[8, 2], f8E4M3FN, linear>
            error: unexpected_scales: concat takes no scale tensor as operand, but `%sb` is tensor<[4, 2], f8E4M3FN, blocked>
        "#]],
    );
}

#[test]
fn gather() {
    check(
        &[
            "gather %x, %x {axis = 0} : tensor<[4, 6, 6], f32>",
            "gather %x, %i {axis = 2} : tensor<[M, 6], f32>",
            "gather %x, %i {axis = 1} : tensor<[M, 6], f32>",
            "gather %q, %i {axis = 1} : tensor<[4, 2*M], f4E2M1FN>",
            "gather %scalar, %i {axis = 0} : tensor<[M], f32>",
            "gather %sl, %i {axis = 0} : tensor<[M, 2], f8E4M3FN>",
        ],
        expect![[r#"
            error: operand_element: gather takes i32 as indices, but `%x` is tensor<[4, 6], f32>
            error: axis_out_of_range: `%x: tensor<[4, 6], f32>` has no axis 2
            error: result_shape: the shape of `%y2: tensor<[M, 6], f32>` must be [4, M]
            error: packed_axis: gather would split bytes of `%q: tensor<[4, 32], f4E2M1FN>` along its last axis
            error: result_shape: the shape of `%y3: tensor<[4, 2*M], f4E2M1FN>` must be [4, M]
            error: axis_out_of_range: `%scalar: tensor<[], f32>` has no axis 0
            error: unexpected_scales: gather takes no scale tensor as x, but `%sl` is tensor<[4, 2], f8E4M3FN, linear>
        "#]],
    );
}

#[test]
fn pad() {
    check(
        &[
            "pad %m {axes = [0], low = [0], high = [2], value = 0} : tensor<[M, 6], f32>",
            "pad %q {axes = [1], low = [1], high = [1], value = 0} : tensor<[4, 34], f4E2M1FN>",
            "pad %b {axes = [1], low = [1], high = [1], value = 2} : tensor<[4, 8], i1>",
            "pad %i {axes = [], low = [], high = [], value = nan} : tensor<[M], i32>",
            "pad %x {axes = [0, 0], low = [1, 1], high = [1, 1], value = 0} : tensor<[8, 6], f32>",
            "pad %x {axes = [0], low = [0], high = [9007199254740992], value = 0} : tensor<[4, 6], f32>",
            "pad %sl {axes = [0], low = [0], high = [1], value = 0} : tensor<[5, 2], f8E4M3FN, linear>",
        ],
        expect![[r#"
            error: extent_sum: pad would give axis 0 the extent 0 + M + 2
            error: packed_axis: pad would split bytes of `%q: tensor<[4, 32], f4E2M1FN>` along its last axis
            error: pad_value: the padding 2 is not a value of i1
            error: pad_value: the padding nan is not a value of i32
            error: axes_order: the axes [0, 0] are not distinct and ascending
            error: result_shape: the shape of `%y5: tensor<[4, 6], f32>` must be [9007199254740996, 6]
            error: unexpected_scales: pad takes no scale tensor as operand, but `%sl` is tensor<[4, 2], f8E4M3FN, linear>
            error: result_layout: pad does not produce scales, but `%y6` is tensor<[5, 2], f8E4M3FN, linear>
        "#]],
    );
}

#[test]
fn integers() {
    check(
        &[
            "div %i, %i : tensor<[M], i32>",
            "pow %i, %i : tensor<[M], i32>",
            "add %i, %scalar : tensor<[M], f32>",
            "add %i, %i : tensor<[M], f32>",
            "mul %b, %b : tensor<[4, 6], i1>",
            "floor %i : tensor<[M], i32>",
        ],
        expect![[r#"
            error: operand_element: div takes f16, bf16 or f32 as left, but `%i` is tensor<[M], i32>
            error: operand_element: div takes f16, bf16 or f32 as right, but `%i` is tensor<[M], i32>
            error: operand_element: pow takes f16, bf16 or f32 as left, but `%i` is tensor<[M], i32>
            error: operand_element: pow takes f16, bf16 or f32 as right, but `%i` is tensor<[M], i32>
            error: element_mismatch: `%i: tensor<[M], i32>` and `%scalar: tensor<[], f32>` must have the same element type
            error: result_element: the element type of `%y3: tensor<[M], f32>` must be i32
            error: operand_element: mul takes f16, bf16, f32 or i32 as left, but `%b` is tensor<[4, 6], i1>
            error: operand_element: mul takes f16, bf16, f32 or i32 as right, but `%b` is tensor<[4, 6], i1>
            error: operand_element: floor takes f16, bf16 or f32 as operand, but `%i` is tensor<[M], i32>
        "#]],
    );
}
