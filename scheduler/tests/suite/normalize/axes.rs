//! The axes of reductions: transposes bring them to where the target's kernels compute them.

use expect_test::{Expect, expect};
use fourfold_codegen::capabilities;
use fourfold_ir::SymbolValues;

use super::support::{check_same_bits, describe, function};
use super::weight_only::normalized_for;

#[track_caller]
fn check(inputs: &str, body: &str, expected: Expect) {
    let program = function(inputs, body);
    let normalized = normalized_for(&program, false, &capabilities("sm_90a").expect("a target"));
    expected.assert_eq(&describe(&program, &normalized));
    check_same_bits(&program, &normalized, 12, &SymbolValues::default());
}

#[track_caller]
fn check_unchanged(inputs: &str, body: &str) {
    let program = function(inputs, body);
    let normalized = normalized_for(&program, false, &capabilities("sm_90a").expect("a target"));
    assert!(!normalized.is_changed(), "{}", describe(&program, &normalized));
}

#[test]
fn a_softmax_is_along_the_last_axis() {
    check(
        "%x: tensor<[5, 3, 4, 2], bf16>",
        "  %y = softmax %x {axis = 1} : tensor<[5, 3, 4, 2], bf16>\n  return %y",
        expect![[r#"
            %x.transposed = transpose %x {permutation = [0, 2, 3, 1]} : tensor<[5, 4, 2, 3], bf16>  ; inserted: softmax-along-last-axis
            %y.lines = softmax %x.transposed {axis = 3} : tensor<[5, 4, 2, 3], bf16>  ; from y: softmax-along-last-axis
            %y = transpose %y.lines {permutation = [0, 3, 1, 2]} : tensor<[5, 3, 4, 2], bf16>  ; inserted: softmax-along-last-axis
        "#]],
    );
}

#[test]
fn two_transposes_are_one_or_none() {
    check(
        "%x: tensor<[5, 3, 4], f32>",
        "  %t = transpose %x {permutation = [0, 2, 1]} : tensor<[5, 4, 3], f32>
  %y = softmax %t {axis = 1} : tensor<[5, 4, 3], f32>
  %u = transpose %x {permutation = [2, 0, 1]} : tensor<[4, 5, 3], f32>
  %z = softmax %u {axis = 0} : tensor<[4, 5, 3], f32>
  return %y, %z",
        expect![[r#"
            %y.lines = softmax %x {axis = 2} : tensor<[5, 3, 4], f32>  ; from y: softmax-along-last-axis
            %y = transpose %y.lines {permutation = [0, 2, 1]} : tensor<[5, 4, 3], f32>  ; inserted: softmax-along-last-axis
            %z.lines = softmax %x {axis = 2} : tensor<[5, 3, 4], f32>  ; from z: softmax-along-last-axis
            %z = transpose %z.lines {permutation = [2, 0, 1]} : tensor<[4, 5, 3], f32>  ; inserted: softmax-along-last-axis
            ; %t = transpose is gone: 
            ; %u = transpose is gone: 
        "#]],
    );
}

#[test]
fn a_reduction_is_along_two_groups_of_axes() {
    check(
        "%x: tensor<[2, 3, 4, 3, 2, 5, 2], f32>",
        "  %y = reduce %x {kind = sum, axes = [1, 3, 5]} : tensor<[2, 4, 2, 2], f32>
  %z = reduce %x {kind = amax, axes = [0, 2, 4, 6]} : tensor<[3, 3, 5], f32>
  return %y, %z",
        expect![[r#"
            %x.transposed = transpose %x {permutation = [0, 2, 1, 3, 4, 5, 6]} : tensor<[2, 4, 3, 3, 2, 5, 2], f32>  ; inserted: reduction-along-fewer-groups
            %y = reduce %x.transposed {axes = [2, 3, 5], kind = sum} : tensor<[2, 4, 2, 2], f32>  ; from y: reduction-along-fewer-groups
            %x.transposed.2 = transpose %x {permutation = [1, 3, 0, 2, 4, 5, 6]} : tensor<[3, 3, 2, 4, 2, 5, 2], f32>  ; inserted: reduction-along-fewer-groups
            %z = reduce %x.transposed.2 {axes = [2, 3, 4, 6], kind = amax} : tensor<[3, 3, 5], f32>  ; from z: reduction-along-fewer-groups
        "#]],
    );
}

#[test]
fn kept_extents_of_1_return_to_their_places() {
    check(
        "%x: tensor<[2, 3, 4, 1, 5, 3], f32>",
        "  %y = reduce %x {kind = min, axes = [0, 2, 3, 5], keep_dims = true} : tensor<[1, 3, 1, 1, 5, 1], f32>
  return %y",
        expect![[r#"
            %x.transposed = transpose %x {permutation = [1, 0, 2, 3, 4, 5]} : tensor<[3, 2, 4, 1, 5, 3], f32>  ; inserted: reduction-along-fewer-groups
            %y.reduced = reduce %x.transposed {axes = [1, 2, 3, 5], keep_dims = true, kind = min} : tensor<[3, 1, 1, 1, 5, 1], f32>  ; from y: reduction-along-fewer-groups
            %y = reshape %y.reduced : tensor<[1, 3, 1, 1, 5, 1], f32>  ; inserted: reduction-along-fewer-groups
        "#]],
    );
}

/// Both permutations at once would move eight runs of axes, which no kernel does.
#[test]
fn transposes_that_no_kernel_joins_stay_two() {
    check(
        "%x: tensor<[2, 3, 2, 3, 2, 3, 2, 3], f32>",
        "  %t = transpose %x {permutation = [0, 1, 2, 3, 4, 6, 5, 7]} : tensor<[2, 3, 2, 3, 2, 2, 3, 3], f32>
  %y = reduce %t {kind = sum, axes = [1, 3, 5, 7]} : tensor<[2, 2, 2, 3], f32>
  %z = reduce %t {kind = max, axes = [1, 3, 5, 7], keep_dims = true} : tensor<[2, 1, 2, 1, 2, 1, 3, 1], f32>
  return %y, %z",
        expect![[r#"
            %t = transpose %x {permutation = [0, 1, 2, 3, 4, 6, 5, 7]} : tensor<[2, 3, 2, 3, 2, 2, 3, 3], f32>
            %t.transposed = transpose %t {permutation = [0, 2, 4, 1, 3, 5, 6, 7]} : tensor<[2, 2, 2, 3, 3, 2, 3, 3], f32>  ; inserted: reduction-along-fewer-groups
            %y = reduce %t.transposed {axes = [3, 4, 5, 7], kind = sum} : tensor<[2, 2, 2, 3], f32>  ; from y: reduction-along-fewer-groups
            %z.reduced = reduce %t.transposed {axes = [3, 4, 5, 7], keep_dims = true, kind = max} : tensor<[2, 2, 2, 1, 1, 1, 3, 1], f32>  ; from z: reduction-along-fewer-groups
            %z = reshape %z.reduced : tensor<[2, 1, 2, 1, 2, 1, 3, 1], f32>  ; inserted: reduction-along-fewer-groups
        "#]],
    );
}

#[test]
fn axes_that_a_kernel_computes_stay() {
    check_unchanged(
        "%x: tensor<[5, 3, 4], f32>",
        "  %y = softmax %x {axis = 2} : tensor<[5, 3, 4], f32>
  %z = reduce %x {kind = sum, axes = [0, 2]} : tensor<[3], f32>
  return %y, %z",
    );
    // As many rows have no kernel.
    check_unchanged(
        "%x: tensor<[3, 2147483648, 4], f32>",
        "  %y = softmax %x {axis = 0} : tensor<[3, 2147483648, 4], f32>\n  return %y",
    );
    // An extent of 1 is in no group.
    check_unchanged(
        "%x: tensor<[5, 1, 4, 3, 2], f32>",
        "  %z = reduce %x {kind = sum, axes = [0, 2, 4]} : tensor<[1, 3], f32>\n  return %z",
    );
}
