//! Quantization and dequantization written out op by op: before and after, and the nearest programs that stay. The tests
//! of the workspace generate all forms.

use expect_test::{Expect, expect};
use fourfold_ir::SymbolValues;

use super::support::{check_same_bits, describe, function, normalized};

#[track_caller]
fn check(inputs: &str, body: &str, expected: Expect) {
    let program = function(inputs, body);
    let normalized = normalized(&program, false);
    expected.assert_eq(&describe(&program, &normalized));
    check_same_bits(&program, &normalized, 12, &SymbolValues::default());
}

#[track_caller]
fn check_left_alone(inputs: &str, body: &str) {
    let program = function(inputs, body);
    let normalized = normalized(&program, false);
    assert!(!normalized.is_changed(), "{}", describe(&program, &normalized));
}

const X: &str = "%x: tensor<[37, 64], f32>";

/// A quantization of `%x`; names start with `p`.
fn quantized(p: &str) -> String {
    format!(
        "  %{p}six = constant {{value = 6}} : tensor<[], f32>
  %{p}blocks = reshape %x : tensor<[37, 4, 16], f32>
  %{p}amax = reduce %{p}blocks {{axes = [2], keep_dims = true, kind = amax}} : tensor<[37, 4, 1], f32>
  %{p}t = div %{p}amax, %{p}six : tensor<[37, 4, 1], f32>
  %{p}s = convert %{p}t : tensor<[37, 4, 1], f8E4M3FN>
  %{p}step = convert %{p}s : tensor<[37, 4, 1], f32>
  %{p}quotients = div %{p}blocks, %{p}step : tensor<[37, 4, 16], f32>
  %{p}codes = convert %{p}quotients : tensor<[37, 4, 16], f4E2M1FN>
  %{p}q = reshape %{p}codes : tensor<[37, 64], f4E2M1FN>
  %{p}flat = reshape %{p}s : tensor<[37, 4], f8E4M3FN>
  %{p}sf = swizzle_scales %{p}flat : tensor<[37, 4], f8E4M3FN, blocked>
"
    )
}

#[test]
fn a_quantization_takes_over_the_names_of_its_codes_and_scales() {
    check(
        X,
        &format!("{}  return %q, %sf", quantized("")),
        expect![[r#"
        %q, %sf = block_quantize %x {block = 16, guard = false, scale_min = -inf} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, blocked>  ; from blocks amax t s step quotients codes q flat sf: written-quantization-is-block-quantize, quantize-gives-blocked-scales
        ; %six = constant is gone: 
    "#]],
    );
}

#[test]
fn intermediates_that_are_used_elsewhere_stay() {
    let body = format!(
        "{}  %y = neg %quotients : tensor<[37, 4, 16], f32>\n  return %q, %sf, %y, %codes, %s",
        quantized("")
    );
    check(
        X,
        &body,
        expect![[r#"
        %blocks = reshape %x : tensor<[37, 4, 16], f32>
        %q, %s.linear = block_quantize %x {block = 16, guard = false, scale_min = -inf} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, linear>  ; from amax t s codes q flat: written-quantization-is-block-quantize
        %s.flat = swizzle_scales %s.linear : tensor<[37, 4], f8E4M3FN>  ; inserted: written-quantization-is-block-quantize
        %s = reshape %s.flat : tensor<[37, 4, 1], f8E4M3FN>  ; inserted: written-quantization-is-block-quantize
        %step = convert %s : tensor<[37, 4, 1], f32>
        %quotients = div %blocks, %step : tensor<[37, 4, 16], f32>
        %codes = reshape %q : tensor<[37, 4, 16], f4E2M1FN>  ; inserted: written-quantization-is-block-quantize
        %sf = swizzle_scales %s.linear : tensor<[37, 4], f8E4M3FN, blocked>
        %y = neg %quotients : tensor<[37, 4, 16], f32>
        ; %six = constant is gone: 
    "#]],
    );
}

#[test]
fn equal_quantizations_are_one() {
    let body = format!(
        "{}{}  %y = scaled_mma %q, %sf, %b, %sb {{block = 16}} : tensor<[37, 24], f32>
  %z = scaled_mma %a.q, %a.sf, %b, %sb {{block = 16}} : tensor<[37, 24], f32>
  return %y, %z",
        quantized(""),
        quantized("a.")
    );
    let inputs =
        format!("{X}, param %b: tensor<[24, 64], f4E2M1FN>, param %sb: tensor<[24, 4], f8E4M3FN, blocked>");
    check(
        &inputs,
        &body,
        expect![[r#"
        %q, %sf = block_quantize %x {block = 16, guard = false, scale_min = -inf} : tensor<[37, 64], f4E2M1FN>, tensor<[37, 4], f8E4M3FN, blocked>  ; from blocks amax t s step quotients codes q flat sf: written-quantization-is-block-quantize, quantize-gives-blocked-scales
        %y = scaled_mma %q, %sf, %b, %sb {block = 16} : tensor<[37, 24], f32>
        %z = scaled_mma %q, %sf, %b, %sb {block = 16} : tensor<[37, 24], f32>
        ; %six = constant is gone: 
        ; %a.six = constant is gone: 
    "#]],
    );
}

const CODES: &str =
    "%c: tensor<[37, 64], f4E2M1FN>, %s: tensor<[37, 4], f8E4M3FN, linear>, %g: tensor<[], f32>";

/// A dequantization whose numbers have these types.
fn dequantized(codes: &str, scales: &str, product: &str) -> String {
    format!(
        "  %cw = convert %c : tensor<[37, 64], {codes}>
  %cb = reshape %cw : tensor<[37, 4, 16], {codes}>
  %sw = convert %s : tensor<[37, 4], {scales}>
  %sb = reshape %sw : tensor<[37, 4, 1], {scales}>
  %p = mul %cb, %sb : tensor<[37, 4, 16], {product}>
"
    )
}

#[test]
fn a_product_of_codes_and_scales_is_a_dequantization() {
    let body =
        format!("{}  %y = reshape %p : tensor<[37, 64], f32>\n  return %y", dequantized("f32", "f32", "f32"));
    check(
        CODES,
        &body,
        expect![[r#"
        %y = block_dequantize %c, %s {block = 16} : tensor<[37, 64], f32>  ; from cw cb sw sb p y: written-dequantization-is-block-dequantize
    "#]],
    );
    // 6 bits of a product fit bf16. The per-tensor scale stays, because it has a rounding of its own.
    let body = format!(
        "{}  %w = convert %p : tensor<[37, 4, 16], f32>
  %y = mul %w, %g : tensor<[37, 4, 16], f32>
  return %y",
        dequantized("bf16", "bf16", "bf16")
    );
    check(
        CODES,
        &body,
        expect![[r#"
        %p.values = block_dequantize %c, %s {block = 16} : tensor<[37, 64], bf16>  ; from cw cb sw sb p: written-dequantization-is-block-dequantize
        %p = reshape %p.values : tensor<[37, 4, 16], bf16>  ; inserted: written-dequantization-is-block-dequantize
        %w = convert %p : tensor<[37, 4, 16], f32>
        %y = mul %w, %g : tensor<[37, 4, 16], f32>
    "#]],
    );
}

#[test]
fn written_out_operands_of_a_product_make_a_scaled_mma() {
    let body = format!(
        "{}  %y = reshape %p : tensor<[37, 64], f32>
  %w = block_dequantize %b, %sfb {{block = 16}} : tensor<[24, 64], f32>
  %d = mma %y, %w : tensor<[37, 24], f32>
  return %d",
        dequantized("f32", "f32", "f32")
    );
    let inputs = format!(
        "{CODES}, param %b: tensor<[24, 64], f4E2M1FN>, param %sfb: tensor<[24, 4], f8E4M3FN, linear>"
    );
    check(
        &inputs,
        &body,
        expect![[r#"
        %s.blocked = swizzle_scales %s : tensor<[37, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %sfb.blocked = swizzle_scales %sfb : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-is-scaled-mma
        %d = scaled_mma %c, %s.blocked, %b, %sfb.blocked {block = 16} : tensor<[37, 24], f32>  ; from cw cb sw sb p y w d: written-dequantization-is-block-dequantize, mma-of-dequantized-is-scaled-mma
    "#]],
    );
}

#[test]
fn other_products_are_no_dequantization() {
    // As numbers without a layout, scales may be negative.
    let signed = CODES.replace(", linear", "");
    check_left_alone(&signed, &format!("{}  return %p", dequantized("f32", "f32", "f32")));
    // The scale is rounded with the per-tensor scale first.
    let body = "  %cw = convert %c : tensor<[37, 64], f32>
  %cb = reshape %cw : tensor<[37, 4, 16], f32>
  %sw = convert %s : tensor<[37, 4], f32>
  %sg = mul %sw, %g : tensor<[37, 4], f32>
  %sb = reshape %sg : tensor<[37, 4, 1], f32>
  %p = mul %cb, %sb : tensor<[37, 4, 16], f32>
  return %p";
    check_left_alone(CODES, body);
    // One scale per row.
    let body = "  %cw = convert %c : tensor<[37, 64], f32>
  %sw = convert %s : tensor<[37, 1], f32>
  %p = mul %cw, %sw : tensor<[37, 64], f32>
  return %p";
    check_left_alone(&CODES.replace("[37, 4]", "[37, 1]"), body);
    // f16 holds neither 2^127 nor 2^-127.
    let mx = "%c: tensor<[37, 64], f4E2M1FN>, %s: tensor<[37, 2], f8E8M0FNU, linear>";
    let body = |element: &str| {
        format!(
            "  %cw = convert %c : tensor<[37, 64], {element}>
  %cb = reshape %cw : tensor<[37, 2, 32], {element}>
  %sw = convert %s : tensor<[37, 2], {element}>
  %sb = reshape %sw : tensor<[37, 2, 1], {element}>
  %p = mul %cb, %sb : tensor<[37, 2, 32], {element}>
  return %p"
        )
    };
    check_left_alone(mx, &body("f16"));
    check(
        mx,
        &body("bf16"),
        expect![[r#"
        %p.values = block_dequantize %c, %s {block = 32} : tensor<[37, 64], bf16>  ; from cw cb sw sb p: written-dequantization-is-block-dequantize
        %p = reshape %p.values : tensor<[37, 2, 32], bf16>  ; inserted: written-dequantization-is-block-dequantize
    "#]],
    );
}
