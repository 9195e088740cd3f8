//! Each rule, before and after, and the nearest programs to which it must not apply.

use expect_test::{Expect, expect};
use fourfold_ir::SymbolValues;
use fourfold_scheduler::normalize_rules;

use super::support::{check_bookkeeping, check_same_bits, describe, function, normalized};

const OPERANDS: &str = "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 4], f8E4M3FN, linear>, \
     param %b: tensor<[24, 64], f4E2M1FN>, param %sb: tensor<[24, 4], f8E4M3FN, linear>";
const BLOCKED: &str = "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 4], f8E4M3FN, blocked>, \
     param %b: tensor<[24, 64], f4E2M1FN>, param %sb: tensor<[24, 4], f8E4M3FN, blocked>";
const PRODUCT: &str = "  %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>\n";

/// Checks an exact rewrite: the same bits on poisoned data.
#[track_caller]
fn check(inputs: &str, body: &str, expected: Expect) {
    let program = function(inputs, body);
    let normalized = normalized(&program, false);
    expected.assert_eq(&describe(&program, &normalized));
    check_same_bits(&program, &normalized, 12, &SymbolValues::default());
}

/// Checks a rewrite that drops roundings, and that is off by default.
#[track_caller]
fn check_contract(inputs: &str, body: &str, expected: Expect) {
    let program = function(inputs, body);
    let contracted = normalized(&program, true);
    expected.assert_eq(&describe(&program, &contracted));
    assert!(contracted.contracted().next().is_some(), "a contract rule applied");
    let exact = normalized(&program, false);
    assert!(exact.contracted().next().is_none(), "none applies unasked");
    check_same_bits(&program, &exact, 4, &SymbolValues::default());
}

/// Checks that nothing changes, with contract rules or without.
#[track_caller]
fn check_left_alone(inputs: &str, body: &str) {
    let program = function(inputs, body);
    for contract in [false, true] {
        let normalized = normalized(&program, contract);
        assert!(!normalized.is_changed(), "{}", describe(&program, &normalized));
    }
}

#[test]
fn a_product_of_dequantized_operands_is_a_scaled_mma() {
    let body = |element: &str| {
        format!(
            "  %x = block_dequantize %a, %sa {{block = 16}} : tensor<[37, 64], {element}>
  %y = block_dequantize %b, %sb {{block = 16}} : tensor<[24, 64], {element}>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d"
        )
    };
    check(
        OPERANDS,
        &body("f32"),
        expect![[r#"
        %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
    "#]],
    );
    check(
        OPERANDS,
        &body("bf16"),
        expect![[r#"
        %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
    "#]],
    );
    check(
        OPERANDS,
        &body("f16"),
        expect![[r#"
        %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
    "#]],
    );
}

#[test]
fn blocked_scales_are_read_as_they_are_and_a_shared_operand_stays_for_its_other_users() {
    check(
        BLOCKED,
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  %also = neg %x : tensor<[37, 64], f32>
  return %d, %also, %y",
        expect![[r#"
            %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
            %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
            %d = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
            %also = neg %x : tensor<[37, 64], f32>
        "#]],
    );
}

#[test]
fn moves_and_conversions_between_dequantize_and_product_vanish() {
    check(
        "%a: tensor<[2, 5, 64], f4E2M1FN>, %sa: tensor<[2, 5, 4], f8E4M3FN, linear>, \
         param %b: tensor<[24, 64], f4E2M1FN>, param %sb: tensor<[24, 4], f8E4M3FN, linear>",
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[2, 5, 64], bf16>
  %wide = convert %x : tensor<[2, 5, 64], f32>
  %flat = reshape %wide : tensor<[10, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %turned = transpose %y {permutation = [1, 0]} : tensor<[64, 24], f32>
  %back = transpose %turned {permutation = [1, 0]} : tensor<[24, 64], f32>
  %d = mma %flat, %back : tensor<[10, 24], f32>
  %out = reshape %d : tensor<[2, 5, 24], f32>
  return %out",
        expect![[r#"
            %a.reshaped = reshape %a : tensor<[10, 64], f4E2M1FN>  ; inserted: convert-joins-dequantize, reshape-joins-dequantize
            %sa.reshaped = reshape %sa : tensor<[10, 4], f8E4M3FN, linear>  ; inserted: convert-joins-dequantize, reshape-joins-dequantize
            %sa.reshaped.blocked = swizzle_scales %sa.reshaped : tensor<[10, 4], f8E4M3FN, blocked>  ; inserted: transposes-merge, identity-transpose-vanishes, convert-joins-dequantize, reshape-joins-dequantize, mma-of-dequantized-is-scaled-mma
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: transposes-merge, identity-transpose-vanishes, convert-joins-dequantize, reshape-joins-dequantize, mma-of-dequantized-is-scaled-mma
            %d = scaled_mma %a.reshaped, %sa.reshaped.blocked, %b, %sb.blocked {block = 16} : tensor<[10, 24], f32>  ; from x wide flat y turned back d: transposes-merge, identity-transpose-vanishes, convert-joins-dequantize, reshape-joins-dequantize, mma-of-dequantized-is-scaled-mma
            %out = reshape %d : tensor<[2, 5, 24], f32>
        "#]],
    );
}

#[test]
fn a_widening_undone_and_reshapes_in_a_row_are_nothing() {
    check(
        "%x: tensor<[6, 8], bf16>, %y: tensor<[4, 8], bf16>, %z: tensor<[4, 8], f8E5M2>",
        "  %wide = convert %x : tensor<[6, 8], f32>
  %narrow = convert %wide : tensor<[6, 8], bf16>
  %same = convert %narrow : tensor<[6, 8], bf16>
  %r = reshape %same : tensor<[2, 3, 8], bf16>
  %s = reshape %r : tensor<[1, 6, 8], bf16>
  %t = reshape %s : tensor<[6, 8], bf16>
  %d = mma %t, %y : tensor<[6, 4], f32>
  return %d",
        expect![[r#"
            %d = mma %x, %y : tensor<[6, 4], f32>
            ; %wide = convert is gone: 
            ; %narrow = convert is gone: identity-convert-vanishes, convert-after-widening-is-one
            ; %same = convert is gone: identity-convert-vanishes
            ; %r = reshape is gone: 
            ; %s = reshape is gone: 
            ; %t = reshape is gone: reshapes-merge, identity-convert-vanishes, reshapes-merge, identity-convert-vanishes, identity-reshape-vanishes
        "#]],
    );
}

#[test]
fn an_output_that_equals_another_value_keeps_its_name() {
    check(
        &format!("{BLOCKED}, %x: tensor<[37, 24], f32>"),
        &format!(
            "{PRODUCT}  %same = reshape %p : tensor<[37, 24], f32>
  %again = convert %same : tensor<[37, 24], f32>
  %y = relu %again : tensor<[37, 24], f32>
  return %p, %same, %y"
        ),
        expect![[r#"
            %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>
            %same = reshape %p : tensor<[37, 24], f32>
            %y = relu %p : tensor<[37, 24], f32>
        "#]],
    );
}

#[test]
fn a_factor_is_alpha_on_either_side() {
    let rest = "  %y = mul %p, %s : tensor<[37, 24], f32>\n  return %y";
    check(
        &format!("{BLOCKED}, %s: tensor<[1], f32>"),
        &format!("{PRODUCT}{rest}"),
        expect![[r#"
        %y = scaled_mma %a, %sa, %b, %sb, alpha = %s {block = 16} : tensor<[37, 24], f32>  ; from p y: factor-is-alpha
    "#]],
    );
    let rest = "  %y = mul %s, %p : tensor<[37, 24], f32>\n  return %y";
    check(
        &format!("{BLOCKED}, %s: tensor<[], f32>"),
        &format!("{PRODUCT}{rest}"),
        expect![[r#"
        %y = scaled_mma %a, %sa, %b, %sb, alpha = %s {block = 16} : tensor<[37, 24], f32>  ; from p y: factor-before-is-alpha
    "#]],
    );
}

#[test]
fn a_factor_that_comes_after_the_product_is_computed_before() {
    check(
        &format!("{OPERANDS}, %v: tensor<[7], f32>"),
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  %s = reduce %v {axes = [0], kind = amax} : tensor<[], f32>
  %z = mul %d, %s : tensor<[37, 24], f32>
  return %z",
        expect![[r#"
            %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
            %s = reduce %v {axes = [0], kind = amax} : tensor<[], f32>
            %z = scaled_mma %a, %sa.blocked, %b, %sb.blocked, alpha = %s {block = 16} : tensor<[37, 24], f32>  ; from x y d z: mma-of-dequantized-is-scaled-mma, factor-is-alpha
        "#]],
    );
}

#[test]
fn no_factor_is_alpha_where_that_would_change_something() {
    let scalar = format!("{BLOCKED}, %s: tensor<[1], f32>, %c: tensor<[37, 24], f32>");
    for body in [
        // Another user, possibly the caller.
        format!("{PRODUCT}  %y = mul %p, %s : tensor<[37, 24], f32>\n  return %p, %y"),
        format!(
            "{PRODUCT}  %y = mul %p, %s : tensor<[37, 24], f32>
  %z = softmax %p {{axis = 1}} : tensor<[37, 24], f32>\n  return %y, %z"
        ),
        // C is present.
        "  %p = scaled_mma %a, %sa, %b, %sb, c = %c {block = 16} : tensor<[37, 24], f32>
  %y = mul %p, %s : tensor<[37, 24], f32>\n  return %y"
            .to_owned(),
        // The product is rounded first.
        "  %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], bf16>
  %y = mul %p, %s : tensor<[37, 24], f32>\n  return %y"
            .to_owned(),
        // A constant of another shape.
        format!(
            "{PRODUCT}  %k = constant {{value = 0.5}} : tensor<[37, 24], f32>
  %y = mul %p, %k : tensor<[37, 24], f32>\n  return %y"
        ),
        format!(
            "{PRODUCT}  %k = constant {{value = 0.5}} : tensor<[1, 1], f32>
  %y = mul %p, %k : tensor<[37, 24], f32>\n  return %y"
        ),
    ] {
        check_left_alone(&scalar, &body);
    }
    let bf16 = format!("{BLOCKED}, %s: tensor<[1], bf16>");
    check_left_alone(&bf16, &format!("{PRODUCT}  %y = mul %p, %s : tensor<[37, 24], f32>\n  return %y"));
    // A kernel inlines the constant.
    check_left_alone(
        BLOCKED,
        &format!(
            "{PRODUCT}  %k = constant {{value = 0.3}} : tensor<[], f32>
  %y = mul %p, %k : tensor<[37, 24], f32>\n  return %y"
        ),
    );
    // alpha is present: another factor adds a rounding, and multiplying both adds an op.
    check_left_alone(
        &format!("{BLOCKED}, %s: tensor<[1], f32>, %t: tensor<[], f32>"),
        "  %p = scaled_mma %a, %sa, %b, %sb, alpha = %t {block = 16} : tensor<[37, 24], f32>
  %y = mul %p, %s : tensor<[37, 24], f32>
  return %y",
    );
}

#[test]
fn a_reshape_moves_behind_the_epilogue() {
    check(
        &format!(
            "{BLOCKED}, %bias: tensor<[24], bf16>, %one: tensor<[1, 1, 24], f32>, %x: tensor<[37, 24], f32>, %k: tensor<[], f32>"
        ),
        &format!(
            "{PRODUCT}  %r = reshape %p : tensor<[1, 37, 24], f32>
  %biased = add %r, %bias : tensor<[1, 37, 24], f32>
  %gelu = gelu %biased : tensor<[1, 37, 24], f32>
  %scaled = mul %k, %gelu : tensor<[1, 37, 24], f32>
  %residual = reshape %x : tensor<[1, 37, 24], f32>
  %sum = add %residual, %scaled : tensor<[1, 37, 24], f32>
  %mask = compare %sum, %bias {{predicate = lt}} : tensor<[1, 37, 24], i1>
  %chosen = select %mask, %sum, %k : tensor<[1, 37, 24], f32>
  %limited = clamp %chosen {{max = 3, min = -1}} : tensor<[1, 37, 24], f32>
  %y = convert %limited : tensor<[1, 37, 24], bf16>
  return %y"
        ),
        expect![[r#"
            %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>
            %biased.moved = add %p, %bias : tensor<[37, 24], f32>  ; from biased: reshape-moves-behind-binary
            %gelu.moved = gelu %biased.moved : tensor<[37, 24], f32>  ; from gelu: reshape-moves-behind-binary, reshape-moves-behind-unary
            %scaled.moved = mul %k, %gelu.moved : tensor<[37, 24], f32>  ; from scaled: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary
            %sum.moved = add %x, %scaled.moved : tensor<[37, 24], f32>  ; from sum: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary
            %mask.moved = compare %sum.moved, %bias {predicate = lt} : tensor<[37, 24], i1>  ; from mask: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary, reshape-moves-behind-compare
            %chosen.moved = select %mask.moved, %sum.moved, %k : tensor<[37, 24], f32>  ; from chosen: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary, reshape-moves-behind-compare, reshape-moves-behind-select
            %limited.moved = clamp %chosen.moved {max = 3, min = -1} : tensor<[37, 24], f32>  ; from limited: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary, reshape-moves-behind-compare, reshape-moves-behind-select, reshape-moves-behind-clamp
            %y.moved = convert %limited.moved : tensor<[37, 24], bf16>  ; from y: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary, reshape-moves-behind-compare, reshape-moves-behind-select, reshape-moves-behind-clamp, reshape-moves-behind-convert
            %y = reshape %y.moved : tensor<[1, 37, 24], bf16>  ; from r residual: reshape-moves-behind-binary, reshape-moves-behind-unary, reshape-moves-behind-binary, reshape-moves-behind-compare, reshape-moves-behind-select, reshape-moves-behind-clamp, reshape-moves-behind-convert
        "#]],
    );
}

#[test]
fn a_reshape_stays_where_the_ops_behind_it_see_more_than_elements() {
    let inputs = format!(
        "{BLOCKED}, %column: tensor<[1, 37, 1], f32>, %batch: tensor<[5, 37, 24], f32>, %matrix: tensor<[1, 37, 24], f32>, \
         %row: tensor<[37], f32>, %rows: tensor<[37, 24], f32>"
    );
    for body in [
        // An operand that does not lie along the last axis, or makes the result larger.
        "  %r = reshape %p : tensor<[1, 37, 24], f32>\n  %y = mul %r, %column : tensor<[1, 37, 24], f32>",
        "  %r = reshape %p : tensor<[1, 37, 24], f32>\n  %y = mul %r, %batch : tensor<[5, 37, 24], f32>",
        "  %r = reshape %p : tensor<[1, 37, 24], f32>\n  %y = mul %r, %rows : tensor<[1, 37, 24], f32>",
        // The last extent changes: a row is along another axis.
        "  %r = reshape %p : tensor<[24, 37], f32>\n  %y = add %r, %row : tensor<[24, 37], f32>",
        "  %r = reshape %p : tensor<[24, 37], f32>\n  %y = relu %r : tensor<[24, 37], f32>",
        // No product comes before the reshape: a kernel gains nothing.
        "  %r = reshape %rows : tensor<[1, 37, 24], f32>\n  %q = relu %p : tensor<[37, 24], f32>
  %s = reshape %q : tensor<[1, 37, 24], f32>\n  %t = mul %r, %matrix : tensor<[1, 37, 24], f32>
  %y = mul %t, %column : tensor<[1, 37, 24], f32>\n  %z = mul %s, %column : tensor<[1, 37, 24], f32>",
    ] {
        check_left_alone(&inputs, &format!("{PRODUCT}{body}\n  return %y"));
    }
}

/// A residual has the shape of the result, perhaps after a reshape of its own; a bias may have leading extents of 1.
#[test]
fn operands_of_the_result_shape_are_reshaped_for_the_epilogue() {
    let inputs = format!(
        "{BLOCKED}, %other: tensor<[24, 37], f32>, %matrix: tensor<[1, 37, 24], f32>, %high: tensor<[1, 1, 24], f32>, \
         %mask: tensor<[1, 37, 24], i1>"
    );
    check(
        &inputs,
        &format!(
            "{PRODUCT}  %r = reshape %p : tensor<[1, 37, 24], f32>
  %o = reshape %other : tensor<[1, 37, 24], f32>
  %biased = add %high, %r : tensor<[1, 37, 24], f32>
  %sum = add %biased, %matrix : tensor<[1, 37, 24], f32>
  %chosen = select %mask, %sum, %o : tensor<[1, 37, 24], f32>
  %y = convert %chosen : tensor<[1, 37, 24], bf16>
  return %y"
        ),
        expect![[r#"
            %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>
            %high.reshaped = reshape %high : tensor<[24], f32>  ; inserted: reshape-moves-behind-binary
            %biased.moved = add %high.reshaped, %p : tensor<[37, 24], f32>  ; from biased: reshape-moves-behind-binary
            %matrix.reshaped = reshape %matrix : tensor<[37, 24], f32>  ; inserted: reshape-moves-behind-binary
            %sum.moved = add %biased.moved, %matrix.reshaped : tensor<[37, 24], f32>  ; from sum: reshape-moves-behind-binary
            %mask.reshaped = reshape %mask : tensor<[37, 24], i1>  ; inserted: reshape-moves-behind-binary, reshape-moves-behind-select
            %other.reshaped = reshape %other : tensor<[37, 24], f32>  ; from o: reshape-moves-behind-binary, reshape-moves-behind-select, reshapes-merge
            %chosen.moved = select %mask.reshaped, %sum.moved, %other.reshaped : tensor<[37, 24], f32>  ; from chosen: reshape-moves-behind-binary, reshape-moves-behind-select
            %y.moved = convert %chosen.moved : tensor<[37, 24], bf16>  ; from y: reshape-moves-behind-binary, reshape-moves-behind-select, reshape-moves-behind-convert
            %y = reshape %y.moved : tensor<[1, 37, 24], bf16>  ; from r: reshape-moves-behind-binary, reshape-moves-behind-select, reshape-moves-behind-convert
        "#]],
    );
}

/// An operand may repeat itself, if the result has the same shape.
#[test]
fn a_broadcast_operand_is_read_as_it_is() {
    let inputs = format!(
        "{BLOCKED}, %bias: tensor<[24], f32>, %k: tensor<[], f32>, %column: tensor<[37, 1], f32>, %mask: tensor<[24], i1>"
    );
    check(
        &inputs,
        &format!(
            "{PRODUCT}  %rows = broadcast %bias : tensor<[37, 24], f32>
  %biased = add %p, %rows : tensor<[37, 24], f32>
  %factor = broadcast %k : tensor<[37, 24], f32>
  %scaled = mul %factor, %biased : tensor<[37, 24], f32>
  %m = broadcast %mask : tensor<[37, 24], i1>
  %chosen = select %m, %scaled, %rows : tensor<[37, 24], f32>
  %c = broadcast %column : tensor<[37, 24], f32>
  %outer = mul %rows, %c : tensor<[37, 24], f32>
  %large = mul %factor, %factor : tensor<[37, 24], f32>
  return %chosen, %outer, %large, %c"
        ),
        expect![[r#"
            %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>
            %biased = add %p, %bias : tensor<[37, 24], f32>
            %factor = broadcast %k : tensor<[37, 24], f32>
            %scaled = mul %k, %biased : tensor<[37, 24], f32>
            %chosen = select %mask, %scaled, %bias : tensor<[37, 24], f32>
            %c = broadcast %column : tensor<[37, 24], f32>
            %outer = mul %bias, %column : tensor<[37, 24], f32>
            %large = mul %k, %factor : tensor<[37, 24], f32>
            ; %rows = broadcast is gone: operand-repeats-itself
            ; %m = broadcast is gone: operand-repeats-itself
        "#]],
    );
}

#[test]
fn swizzles_of_one_value_are_one_and_back_and_forth_is_nothing() {
    check(
        OPERANDS,
        "  %one = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>
  %two = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>
  %sfb = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>
  %linear = swizzle_scales %sfb : tensor<[24, 4], f8E4M3FN, linear>
  %again = swizzle_scales %linear : tensor<[24, 4], f8E4M3FN, blocked>
  %d = scaled_mma %a, %one, %b, %sfb {block = 16} : tensor<[37, 24], f32>
  %e = scaled_mma %a, %two, %b, %again {block = 16} : tensor<[37, 24], f32>
  return %d, %e",
        expect![[r#"
            %one = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>
            %sfb = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>
            %d = scaled_mma %a, %one, %b, %sfb {block = 16} : tensor<[37, 24], f32>
            %e = scaled_mma %a, %one, %b, %sfb {block = 16} : tensor<[37, 24], f32>
            ; %linear = swizzle_scales is gone: swizzle-undoes-swizzle
        "#]],
    );
}

#[test]
fn quantized_activations_get_blocked_scales() {
    let inputs = "%v: tensor<[37, 64], f32>, %g: tensor<[], f32>, param %b: tensor<[24, 64], f4E2M1FN>, \
                  param %sb: tensor<[24, 4], f8E4M3FN, linear>";
    check(
        inputs,
        "  %q, %s = block_quantize %v, %g {block = 16} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, linear>
  %x = block_dequantize %q, %s {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        expect![[r#"
            %q, %s.blocked = block_quantize %v, %g {block = 16} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, blocked>  ; from q: mma-of-dequantized-is-scaled-mma, quantize-gives-blocked-scales
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
            %d = scaled_mma %q, %s.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
        "#]],
    );
    // The linear scales have another use, so they stay.
    check(
        inputs,
        "  %q, %s = block_quantize %v, %g {block = 16} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, linear>
  %x = block_dequantize %q, %s {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d, %s",
        expect![[r#"
            %q, %s = block_quantize %v, %g {block = 16} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, linear>
            %s.blocked = swizzle_scales %s : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
            %d = scaled_mma %q, %s.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
        "#]],
    );
}

#[test]
fn relu_and_clamp_written_with_max_and_min_are_recognized() {
    let constants = "  %zero = constant {value = 0} : tensor<[], f32>
  %lo = constant {value = -0.3} : tensor<[1, 24], f32>
  %hi = constant {value = 2.7} : tensor<[], bf16>\n";
    check(
        BLOCKED,
        &format!(
            "{PRODUCT}{constants}  %r = max %zero, %p : tensor<[37, 24], f32>
  %floor = max %p, %lo : tensor<[37, 24], f32>
  %between = min %hi, %floor : tensor<[37, 24], f32>
  %top = min %p, %hi : tensor<[37, 24], f32>
  %low = constant {{value = -2}} : tensor<[], f16>
  %other = max %low, %top : tensor<[37, 24], f32>
  return %r, %between, %other"
        ),
        expect![[r#"
            %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], f32>
            %r = relu %p : tensor<[37, 24], f32>  ; from r: max-of-zero-is-relu
            %between = clamp %p {max = 2.703125, min = -0.30000001192092896} : tensor<[37, 24], f32>  ; from floor between: min-of-max-is-clamp
            %other = clamp %p {max = 2.703125, min = -2} : tensor<[37, 24], f32>  ; from top other: max-of-min-is-clamp
            ; %zero = constant is gone: 
            ; %lo = constant is gone: 
            ; %hi = constant is gone: 
            ; %low = constant is gone: 
        "#]],
    );
}

#[test]
fn max_and_min_that_are_no_relu_or_clamp_stay() {
    let product = "  %p = scaled_mma %a, %sa, %b, %sb {block = 16} : tensor<[37, 24], bf16>\n";
    for body in [
        // relu(-0) is +0, but max(-0, -0) is -0.
        "  %z = constant {value = -0.0} : tensor<[], bf16>\n  %y = max %p, %z : tensor<[37, 24], bf16>",
        // The constant widens the result.
        "  %z = constant {value = 0} : tensor<[], f32>\n  %y = max %p, %z : tensor<[37, 24], f32>",
        "  %z = constant {value = 1e-30} : tensor<[], bf16>\n  %y = max %p, %z : tensor<[37, 24], bf16>",
        "  %z = constant {value = 0} : tensor<[5, 1, 1], bf16>\n  %y = max %p, %z : tensor<[5, 37, 24], bf16>",
        // The bounds cross, or are NaN.
        "  %l = constant {value = 2} : tensor<[], bf16>\n  %h = constant {value = 1} : tensor<[], bf16>
  %m = max %p, %l : tensor<[37, 24], bf16>\n  %y = min %m, %h : tensor<[37, 24], bf16>",
        "  %l = constant {value = nan} : tensor<[], bf16>\n  %h = constant {value = 1} : tensor<[], bf16>
  %m = max %p, %l : tensor<[37, 24], bf16>\n  %y = min %m, %h : tensor<[37, 24], bf16>",
        "  %l = constant {value = 1} : tensor<[], bf16>\n  %h = constant {value = nan} : tensor<[], bf16>
  %m = min %p, %h : tensor<[37, 24], bf16>\n  %y = max %m, %l : tensor<[37, 24], bf16>",
        // max(min(x, -0), +0) is +0, but min(max(x, +0), -0) is -0.
        "  %l = constant {value = 0} : tensor<[1], bf16>\n  %h = constant {value = -0.0} : tensor<[1], bf16>
  %one = constant {value = 1} : tensor<[1], bf16>
  %m = min %p, %h : tensor<[37, 24], bf16>\n  %s = mul %l, %one : tensor<[1], bf16>
  %y = max %m, %s : tensor<[37, 24], bf16>",
        // A bound that is a row of numbers.
        "  %l = constant {value = 1} : tensor<[24], bf16>\n  %h = add %l, %l : tensor<[24], bf16>
  %m = max %p, %l : tensor<[37, 24], bf16>\n  %y = min %m, %h : tensor<[37, 24], bf16>",
    ] {
        check_left_alone(BLOCKED, &format!("{product}{body}\n  return %y"));
    }
}

#[test]
fn products_that_are_no_scaled_mma_stay() {
    for (inputs, body) in [
        // Weights stored as [K, N]: their blocks lie along N.
        (
            "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 4], f8E4M3FN, linear>, \
             %b: tensor<[64, 32], f4E2M1FN>, %sb: tensor<[64, 2], f8E4M3FN, linear>",
            "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[64, 32], f32>
  %t = transpose %y {permutation = [1, 0]} : tensor<[32, 64], f32>
  %d = mma %x, %t : tensor<[37, 32], f32>
  return %d",
        ),
        // Only one side is quantized.
        (
            "%x: tensor<[37, 64], f32>, %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 4], f8E4M3FN, linear>",
            "  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        ),
        // Formats that no hardware multiplies, or that differ.
        (
            "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 2], f8E4M3FN, linear>, \
             %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 2], f8E4M3FN, linear>",
            "  %x = block_dequantize %a, %sa {block = 32} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 32} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        ),
        (
            "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 4], f8E4M3FN, linear>, \
             %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 2], f8E8M0FNU, linear>",
            "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 32} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        ),
        (
            "%a: tensor<[37, 64], f8E4M3FN>, %sa: tensor<[37, 2], f8E8M0FNU, linear>, \
             %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 2], f8E8M0FNU, linear>",
            "  %x = block_dequantize %a, %sa {block = 32} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 32} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        ),
        // MX through f16, whose range is too small.
        (
            "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 2], f8E8M0FNU, linear>, \
             %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 2], f8E8M0FNU, linear>",
            "  %x = block_dequantize %a, %sa {block = 32} : tensor<[37, 64], f16>
  %y = block_dequantize %b, %sb {block = 32} : tensor<[24, 64], f16>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        ),
        // The scales of a reshape that splits rows of blocks, and blocked scales.
        (
            "%a: tensor<[10, 64], f4E2M1FN>, %sa: tensor<[10, 4], f8E4M3FN, linear>, \
             %b: tensor<[24, 32], f4E2M1FN>, %sb: tensor<[24, 2], f8E4M3FN, linear>",
            "  %x = block_dequantize %a, %sa {block = 16} : tensor<[10, 64], f32>
  %r = reshape %x : tensor<[20, 32], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 32], f32>
  %d = mma %r, %y : tensor<[20, 24], f32>
  return %d",
        ),
        (
            "%a: tensor<[2, 5, 64], f4E2M1FN>, %sa: tensor<[2, 5, 4], f8E4M3FN, blocked>, \
             %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 4], f8E4M3FN, linear>",
            "  %x = block_dequantize %a, %sa {block = 16} : tensor<[2, 5, 64], f32>
  %r = reshape %x : tensor<[10, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %r, %y : tensor<[10, 24], f32>
  return %d",
        ),
    ] {
        check_left_alone(inputs, body);
    }
}

#[test]
fn a_conversion_that_saturates_or_rounds_is_not_dropped() {
    let inputs = "%x: tensor<[4, 8], f8E5M2>, %y: tensor<[5, 8], bf16>, %z: tensor<[4, 8], f32>";
    for body in [
        // Infinity becomes finite.
        "  %w = convert %x : tensor<[4, 8], f8E5M2>\n  %v = convert %w : tensor<[4, 8], bf16>
  %d = mma %v, %y : tensor<[4, 5], f32>",
        // bf16 does not hold every f32.
        "  %w = convert %z : tensor<[4, 8], f16>\n  %v = convert %w : tensor<[4, 8], bf16>
  %d = mma %v, %y : tensor<[4, 5], f32>",
    ] {
        check_left_alone(inputs, &format!("{body}\n  return %d"));
    }
}

#[test]
fn factors_of_dequantize_go_into_alpha_under_contract() {
    let inputs =
        format!("{OPERANDS}, %ga: tensor<[1], f32>, param %gb: tensor<[], f32>, %s: tensor<[], f32>");
    check_contract(
        &inputs,
        "  %x = block_dequantize %a, %sa, %ga {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb, %gb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  %z = mul %d, %s : tensor<[37, 24], f32>
  return %z",
        expect![[r#"
            %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: factors-of-dequantized-are-alpha (contract)
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: factors-of-dequantized-are-alpha (contract)
            %d.alpha = mul %ga, %gb : tensor<[1], f32>  ; inserted: factors-of-dequantized-are-alpha (contract)
            %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked, alpha = %d.alpha {block = 16} : tensor<[37, 24], f32>  ; from x y d: factors-of-dequantized-are-alpha (contract)
            %z = mul %d, %s : tensor<[37, 24], f32>
        "#]],
    );
    check_contract(
        &inputs,
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %xs = mul %x, %s : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %xs, %y : tensor<[37, 24], bf16>
  return %d",
        expect![[r#"
            %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: factor-joins-dequantize, factors-of-dequantized-are-alpha (contract)
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: factor-joins-dequantize, factors-of-dequantized-are-alpha (contract)
            %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked, alpha = %s {block = 16} : tensor<[37, 24], bf16>  ; from x xs y d: factor-joins-dequantize, factors-of-dequantized-are-alpha (contract)
        "#]],
    );
    // Dequantized to bf16 with a factor, multiplied without.
    check_contract(
        &inputs,
        "  %x = block_dequantize %a, %sa, %ga {block = 16} : tensor<[37, 64], bf16>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], bf16>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        expect![[r#"
            %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: factors-of-dequantized-are-alpha (contract)
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: factors-of-dequantized-are-alpha (contract)
            %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked, alpha = %ga {block = 16} : tensor<[37, 24], f32>  ; from x y d: factors-of-dequantized-are-alpha (contract)
        "#]],
    );
}

#[test]
fn narrow_results_and_mx_formats_are_scaled_mma_under_contract() {
    check_contract(
        OPERANDS,
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], bf16>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], bf16>
  %d = mma %x, %y : tensor<[37, 24], bf16>
  return %d",
        expect![[r#"
            %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: narrow-mma-is-scaled-mma (contract)
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: narrow-mma-is-scaled-mma (contract)
            %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], bf16>  ; from x y d: narrow-mma-is-scaled-mma (contract)
        "#]],
    );
    check_contract(
        "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 2], f8E8M0FNU, linear>, \
         %b: tensor<[24, 64], f4E2M1FN>, %sb: tensor<[24, 2], f8E8M0FNU, linear>",
        "  %x = block_dequantize %a, %sa {block = 32} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 32} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        expect![[r#"
            %sa.blocked = swizzle_scales %sa : tensor<[37, 2], f8E8M0FNU, blocked>  ; inserted: mma-of-mx-is-scaled-mma (contract)
            %sb.blocked = swizzle_scales %sb : tensor<[24, 2], f8E8M0FNU, blocked>  ; inserted: mma-of-mx-is-scaled-mma (contract)
            %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked {block = 32} : tensor<[37, 24], f32>  ; from x y d: mma-of-mx-is-scaled-mma (contract)
        "#]],
    );
}

#[test]
fn activations_written_out_are_recognized_under_contract() {
    let one = "  %one = constant {value = 1} : tensor<[], f32>\n";
    let silu = "  %n = neg %p : tensor<[37, 24], f32>
  %e = exp %n : tensor<[37, 24], f32>
  %q = add %one, %e : tensor<[37, 24], f32>\n";
    for (body, expected) in [
        (
            "  %s = sigmoid %p : tensor<[37, 24], f32>\n  %y = mul %s, %p : tensor<[37, 24], f32>".to_owned(),
            "silu",
        ),
        (format!("{one}{silu}  %y = div %p, %q : tensor<[37, 24], f32>"), "silu"),
        (format!("{one}{silu}  %y = div %one, %q : tensor<[37, 24], f32>"), "sigmoid"),
        (
            format!(
                "{one}{silu}  %r = reciprocal %q : tensor<[37, 24], f32>\n  %y = mul %p, %r : tensor<[37, 24], f32>"
            ),
            "silu",
        ),
        (
            format!(
                "{one}  %half = constant {{value = 0.5}} : tensor<[], f32>
  %root = constant {{value = 1.4142135}} : tensor<[], f32>
  %v = div %p, %root : tensor<[37, 24], f32>
  %f = erf %v : tensor<[37, 24], f32>
  %g = add %f, %one : tensor<[37, 24], f32>
  %h = mul %p, %half : tensor<[37, 24], f32>
  %y = mul %h, %g : tensor<[37, 24], f32>"
            ),
            "gelu",
        ),
        (
            format!(
                "{one}  %half = constant {{value = 0.5}} : tensor<[], f32>
  %c = constant {{value = 0.044715}} : tensor<[], f32>
  %k = constant {{value = 0.7978845608}} : tensor<[], f32>
  %square = mul %p, %p : tensor<[37, 24], f32>
  %cube = mul %square, %p : tensor<[37, 24], f32>
  %term = mul %c, %cube : tensor<[37, 24], f32>
  %inner = add %p, %term : tensor<[37, 24], f32>
  %arg = mul %k, %inner : tensor<[37, 24], f32>
  %t = tanh %arg : tensor<[37, 24], f32>
  %g = add %one, %t : tensor<[37, 24], f32>
  %h = mul %half, %p : tensor<[37, 24], f32>
  %y = mul %h, %g : tensor<[37, 24], f32>"
            ),
            "gelu_tanh",
        ),
        (
            format!(
                "{one}  %half = constant {{value = 0.5}} : tensor<[], f32>
  %c = constant {{value = 0.035677408}} : tensor<[], f32>
  %k = constant {{value = 0.7978845608}} : tensor<[], f32>
  %sq = mul %p, %p : tensor<[37, 24], f32>
  %c1 = constant {{value = 0.044715}} : tensor<[1], f32>
  %cs = mul %sq, %c1 : tensor<[37, 24], f32>
  %poly = add %cs, %one : tensor<[37, 24], f32>
  %kx = mul %p, %k : tensor<[37, 24], f32>
  %arg = mul %kx, %poly : tensor<[37, 24], f32>
  %t = tanh %arg : tensor<[37, 24], f32>
  %g = add %t, %one : tensor<[37, 24], f32>
  %hg = mul %g, %half : tensor<[37, 24], f32>
  %y = mul %hg, %p : tensor<[37, 24], f32>"
            ),
            "gelu_tanh",
        ),
    ] {
        let program = function(BLOCKED, &format!("{PRODUCT}{body}\n  return %y"));
        let contracted = normalized(&program, true);
        let module = contracted.program().module();
        let op = module.defining_op(module.outputs[0]).expect("an op");
        assert_eq!(module.op_label(op), format!("%y = {expected}"), "{}", describe(&program, &contracted));
        assert_eq!(module.name_of(module.ops[op].operands[0]), "p");
        assert!(!normalized(&program, false).is_changed());
    }
}

#[test]
fn formulas_that_only_look_like_an_activation_stay() {
    let one = "  %one = constant {value = 1} : tensor<[], f32>\n  %half = constant {value = 0.5} : tensor<[], f32>\n";
    for body in [
        // x · sigmoid(1.702 x), another x, another constant, a missing half.
        "  %k = constant {value = 1.702} : tensor<[], f32>\n  %v = mul %p, %k : tensor<[37, 24], f32>
  %s = sigmoid %v : tensor<[37, 24], f32>\n  %y = mul %s, %p : tensor<[37, 24], f32>"
            .to_owned(),
        "  %s = sigmoid %p : tensor<[37, 24], f32>\n  %y = mul %s, %x : tensor<[37, 24], f32>".to_owned(),
        format!(
            "{one}  %e = exp %p : tensor<[37, 24], f32>\n  %q = add %one, %e : tensor<[37, 24], f32>
  %y = div %p, %q : tensor<[37, 24], f32>"
        ),
        format!(
            "{one}  %k = constant {{value = 0.72}} : tensor<[], f32>\n  %v = mul %p, %k : tensor<[37, 24], f32>
  %f = erf %v : tensor<[37, 24], f32>\n  %g = add %f, %one : tensor<[37, 24], f32>
  %h = mul %p, %g : tensor<[37, 24], f32>\n  %y = mul %h, %half : tensor<[37, 24], f32>"
        ),
        format!(
            "{one}  %k = constant {{value = 0.70710678}} : tensor<[], f32>\n  %v = mul %p, %k : tensor<[37, 24], f32>
  %f = erf %v : tensor<[37, 24], f32>\n  %g = add %f, %one : tensor<[37, 24], f32>
  %y = mul %p, %g : tensor<[37, 24], f32>"
        ),
        format!(
            "{one}  %k = constant {{value = 0.70710678}} : tensor<[], f32>\n  %v = mul %p, %k : tensor<[37, 24], f32>
  %f = erf %v : tensor<[37, 24], f32>\n  %g = add %f, %one : tensor<[37, 24], f32>
  %h = mul %x, %g : tensor<[37, 24], f32>\n  %y = mul %h, %half : tensor<[37, 24], f32>"
        ),
    ] {
        let inputs = format!("{BLOCKED}, %x: tensor<[37, 24], f32>");
        check_left_alone(&inputs, &format!("{PRODUCT}{body}\n  return %p, %y"));
    }
}

#[test]
fn an_op_that_nothing_used_stays_and_one_that_nothing_uses_now_goes() {
    check(
        OPERANDS,
        "  %unused = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %after = neg %unused : tensor<[37, 64], f32>
  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %wide = convert %x : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %wide, %y : tensor<[37, 24], f32>
  return %d",
        expect![[r#"
            %unused = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
            %after = neg %unused : tensor<[37, 64], f32>
            %sa.blocked = swizzle_scales %sa : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: convert-joins-dequantize, mma-of-dequantized-is-scaled-mma
            %sb.blocked = swizzle_scales %sb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: convert-joins-dequantize, mma-of-dequantized-is-scaled-mma
            %d = scaled_mma %a, %sa.blocked, %b, %sb.blocked {block = 16} : tensor<[37, 24], f32>  ; from x wide y d: convert-joins-dequantize, mma-of-dequantized-is-scaled-mma
        "#]],
    );
}

#[test]
fn every_rule_has_a_name_of_its_own_and_a_reason() {
    let rules: Vec<_> = normalize_rules().collect();
    assert!(rules.iter().all(|rule| rule.why.len() > 10), "{rules:?}");
    let mut names: Vec<&str> = rules.iter().map(|rule| rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), rules.len());
}

#[test]
fn names_that_are_taken_are_numbered() {
    let program = function(
        &format!("{OPERANDS}, %sa.blocked: tensor<[37, 4], f8E4M3FN, blocked>"),
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %sb.blocked = mma %x, %y : tensor<[37, 24], f32>
  return %sb.blocked, %sa.blocked",
    );
    let normalized = normalized(&program, false);
    check_bookkeeping(&program, &normalized);
    let text = describe(&program, &normalized);
    assert!(text.contains("%sa.blocked.2 = ") && text.contains("%sb.blocked.2 = "), "{text}");
}
