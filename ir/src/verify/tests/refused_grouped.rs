//! Refused forms of `grouped_scaled_mma` and `masked_scaled_mma`.

use expect_test::{Expect, expect};

use crate::load::load;

#[track_caller]
fn check(ops: &[&str], expected: Expect) {
    let body: String = ops.iter().enumerate().map(|(index, op)| format!("  %y{index} = {op}\n")).collect();
    let source = format!(
        "fir 1
func @main(
    %a: tensor<[T, 64], f4E2M1FN>, %sfa: tensor<[T, 4], f8E4M3FN, linear>,
    %blocked: tensor<[T, 4], f8E4M3FN, blocked>, %mx: tensor<[T, 2], f8E8M0FNU, linear>,
    %h: tensor<[T, 64], f16>, %short: tensor<[T, 32], f16>, %batch: tensor<[3, T, 64], f16>,
    %other: tensor<[2, T, 64], f16>,
    %b: tensor<[3, 10, 64], f4E2M1FN>, %sfb: tensor<[3, 10, 4], f8E4M3FN, blocked>,
    %flat: tensor<[10, 64], f4E2M1FN>, %sfflat: tensor<[10, 4], f8E4M3FN, linear>,
    %e: tensor<[3], i32>, %e4: tensor<[4], i32>, %f: tensor<[3], f32>, %f4: tensor<[4], f32>,
    %padded: tensor<[640, 4], f8E4M3FN, blocked>, %narrow: tensor<[640, 3], f8E4M3FN, blocked>,
    %half: tensor<[3], f16>, %sfbatch: tensor<[3, T, 4], f8E4M3FN, blocked>
) {{
{body}  return %y0
}}
"
    );
    let errors = load(&source).expect_err("refused");
    let text: String =
        errors.iter().map(|error| format!("error: {}: {}\n", error.code, error.message)).collect();
    expected.assert_eq(&text);
}

#[test]
fn operands() {
    check(
        &[
            "grouped_scaled_mma %a, %blocked, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %a, %mx, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %a, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %sfa, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %short, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %batch, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %flat, %sfflat, %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %e {block = 32} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %e {block = 8} : tensor<[T, 10], f32>",
        ],
        expect![[r#"
            error: grouped_layout: `%blocked: tensor<[T, 4], f8E4M3FN, blocked>` has the blocked layout, but its ends of groups are not stated
            error: element_mismatch: `%mx: tensor<[T, 2], f8E8M0FNU, linear>` and `%sfb: tensor<[3, 10, 4], f8E4M3FN, blocked>` must have the same element type
            error: scale_shape: the scales of `%a` must have the shape [T, 4], but `%mx` is tensor<[T, 2], f8E8M0FNU, linear>
            error: scales_missing: grouped_scaled_mma takes `%a: tensor<[T, 64], f4E2M1FN>` as a without its scales
            error: scales_unexpected: grouped_scaled_mma takes `%h: tensor<[T, 64], f16>` as a, which has no scales, and `%sfa` as sfa
            error: k_mismatch: `%short: tensor<[T, 32], f16>` and `%b: tensor<[3, 10, 64], f4E2M1FN>` differ in their last extent, K
            error: operand_shape: a must have the shape [T, 64], but `%batch` is tensor<[3, T, 64], f16>
            error: operand_rank: b must have rank 3 or more, but `%flat` is tensor<[10, 64], f4E2M1FN>
            error: scale_shape: the scales of `%b` must have the shape [3, 10, 2], but `%sfb` is tensor<[3, 10, 4], f8E4M3FN, blocked>
            error: block_size: a block has 16 or 32 elements, not 8
        "#]],
    );
}

#[test]
fn offsets_alpha_and_results() {
    check(
        &[
            "grouped_scaled_mma %h, %b, %sfb, %e4 {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %f {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %e, alpha = %f4 {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %e, alpha = %half {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %e {block = 16} : tensor<[T, 10], i32>",
            "grouped_scaled_mma %h, %b, %sfb, %e {block = 16} : tensor<[3, T, 10], f32>",
        ],
        expect![[r#"
            error: operand_shape: offsets must have the shape [3], but `%e4` is tensor<[4], i32>
            error: operand_element: grouped_scaled_mma takes i32 as offsets, but `%f` is tensor<[3], f32>
            error: operand_shape: alpha must have the shape [3], but `%f4` is tensor<[4], f32>
            error: operand_element: grouped_scaled_mma takes f32 as alpha, but `%half` is tensor<[3], f16>
            error: result_element: the element type of `%y4: tensor<[T, 10], i32>` must be f16, bf16 or f32
            error: result_shape: the shape of `%y5: tensor<[3, T, 10], f32>` must be [T, 10]
        "#]],
    );
}

#[test]
fn matrices_and_counts() {
    check(
        &[
            "masked_scaled_mma %h, %b, %sfb, %e {block = 16} : tensor<[3, T, 10], f32>",
            "masked_scaled_mma %batch, %b, %sfb, %e4 {block = 16} : tensor<[3, T, 10], f32>",
            "masked_scaled_mma %batch, %flat, %sfflat, %e {block = 16} : tensor<[3, T, 10], f32>",
            "masked_scaled_mma %batch, %sfbatch, %b, %sfb, %e, alpha = %f4 {block = 16} : tensor<[3, T, 10], f32>",
            "masked_scaled_mma %other, %b, %sfb, %e {block = 16} : tensor<[2, T, 10], f32>",
            "masked_scaled_mma %batch, %b, %sfb, %e {block = 16} : tensor<[T, 10], f32>",
        ],
        expect![[r#"
            error: operand_rank: a must have rank 3 or more, but `%h` is tensor<[T, 64], f16>
            error: operand_shape: counts must have the shape [3], but `%e4` is tensor<[4], i32>
            error: operand_rank: b must have rank 3 or more, but `%flat` is tensor<[10, 64], f4E2M1FN>
            error: scales_unexpected: masked_scaled_mma takes `%batch: tensor<[3, T, 64], f16>` as a, which has no scales, and `%sfbatch` as sfa
            error: operand_shape: alpha must have the shape [3], but `%f4` is tensor<[4], f32>
            error: batch_mismatch: the leading extents of `%b: tensor<[3, 10, 64], f4E2M1FN>` differ from those of `%other: tensor<[2, T, 64], f16>`
            error: result_shape: the shape of `%y5: tensor<[T, 10], f32>` must be [3, T, 10]
        "#]],
    );
}

#[test]
fn ends_in_scales() {
    check(
        &[
            "grouped_scaled_mma %a, %sfa, %b, %sfb, %e, sfa_ends = %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %h, %b, %sfb, %e, sfa_ends = %e {block = 16} : tensor<[T, 10], f32>",
            "masked_scaled_mma %batch, %b, %sfb, %e, sfa_ends = %e {block = 16} : tensor<[3, T, 10], f32>",
            "grouped_scaled_mma %a, %padded, %b, %sfb, %e, sfa_ends = %e4 {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %a, %padded, %b, %sfb, %e, sfa_ends = %f {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %a, %narrow, %b, %sfb, %e, sfa_ends = %e {block = 16} : tensor<[T, 10], f32>",
            "grouped_scaled_mma %a, %sfbatch, %b, %sfb, %e, sfa_ends = %e {block = 16} : tensor<[T, 10], f32>",
        ],
        expect![[r#"
            error: sfa_ends_unexpected: grouped_scaled_mma has sfa_ends = `%e`, but its sfa has no padded groups
            error: sfa_ends_unexpected: grouped_scaled_mma has sfa_ends = `%e`, but its sfa has no padded groups
            error: sfa_ends_unexpected: masked_scaled_mma has sfa_ends = `%e`, but its sfa has no padded groups
            error: operand_shape: sfa_ends must have the shape [3], but `%e4` is tensor<[4], i32>
            error: operand_element: grouped_scaled_mma takes i32 as sfa_ends, but `%f` is tensor<[3], f32>
            error: scale_shape: the scales of `%a` must have the shape [640, 4], but `%narrow` is tensor<[640, 3], f8E4M3FN, blocked>
            error: scale_shape: the scales of `%a` must have the shape [3, 4], but `%sfbatch` is tensor<[3, T, 4], f8E4M3FN, blocked>
        "#]],
    );
}

#[test]
fn padded_ends_and_group_scales() {
    check(
        &[
            "padded_ends %f {multiple = 128} : tensor<[3], i32>",
            "padded_ends %e {multiple = 0} : tensor<[3], i32>",
            "padded_ends %e {multiple = 128} : tensor<[4], i32>",
            "padded_ends %e {multiple = 128} : tensor<[3], f32>",
            "group_scales %sfa, %e, %e : tensor<[640, 4], f8E4M3FN, linear>",
            "group_scales %blocked, %e, %e : tensor<[640, 4], f8E4M3FN, blocked>",
            "group_scales %sfa, %e, %e4 : tensor<[640, 4], f8E4M3FN, blocked>",
            "group_scales %sfa, %f, %e : tensor<[640, 4], f8E4M3FN, blocked>",
            "group_scales %sfa, %e, %e : tensor<[640, 5], f8E4M3FN, blocked>",
            "group_scales %mx, %e, %e : tensor<[640, 2], f8E4M3FN, blocked>",
            "group_scales %sfbatch, %e, %e : tensor<[3, 640, 4], f8E4M3FN, blocked>",
            "group_scales %h, %e, %e : tensor<[640, 64], f8E4M3FN, blocked>",
            "group_scales %sfa, %e : tensor<[640, 4], f8E4M3FN, blocked>",
        ],
        expect![[r#"
            error: operand_element: padded_ends takes i32 as ends, but `%f` is tensor<[3], f32>
            error: no_multiple: padded_ends needs a multiple of at least 1
            error: result_shape: the shape of `%y2: tensor<[4], i32>` must be [3]
            error: result_element: the element type of `%y3: tensor<[3], f32>` must be i32
            error: group_scales_layout: group_scales converts linear scales to blocked ones, not `tensor<[T, 4], f8E4M3FN, linear>` to `tensor<[640, 4], f8E4M3FN, linear>`
            error: group_scales_layout: group_scales converts linear scales to blocked ones, not `tensor<[T, 4], f8E4M3FN, blocked>` to `tensor<[640, 4], f8E4M3FN, blocked>`
            error: operand_shape: sfa_ends must have the shape [3], but `%e4` is tensor<[4], i32>
            error: operand_element: group_scales takes i32 as ends, but `%f` is tensor<[3], f32>
            error: result_shape: the shape of `%y8: tensor<[640, 5], f8E4M3FN, blocked>` must be [640, 4]
            error: result_element: the element type of `%y9: tensor<[640, 2], f8E4M3FN, blocked>` must be f8E8M0FNU
            error: group_scales_layout: group_scales converts linear scales to blocked ones, not `tensor<[3, T, 4], f8E4M3FN, blocked>` to `tensor<[3, 640, 4], f8E4M3FN, blocked>`
            error: operand_shape: scales must have the shape [T, 4], but `%sfbatch` is tensor<[3, T, 4], f8E4M3FN, blocked>
            error: expected_scales: group_scales requires a scale tensor as scales, but `%h` is tensor<[T, 64], f16>
            error: operand_count: group_scales takes 3 operand(s), not 2
        "#]],
    );
    // Blocked scales of groups have whole tiles of 128 rows.
    check(
        &[
            "padded_ends %e {multiple = 64} : tensor<[3], i32>",
            "group_scales %sfa, %e, %y0 : tensor<[640, 4], f8E4M3FN, blocked>",
            "grouped_scaled_mma %a, %blocked, %b, %sfb, %e, sfa_ends = %y0 {block = 16} : tensor<[T, 10], f32>",
            "padded_ends %e {multiple = 384} : tensor<[3], i32>",
            "group_scales %sfa, %e, %y3 : tensor<[640, 4], f8E4M3FN, blocked>",
        ],
        expect![[r#"
            error: padded_multiple: group_scales takes groups of whole tiles of 128 rows, but padded_ends pads those of `%y0` to a multiple of 64
            error: padded_multiple: grouped_scaled_mma takes groups of whole tiles of 128 rows, but padded_ends pads those of `%y0` to a multiple of 64
        "#]],
    );
}
