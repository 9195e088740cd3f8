//! The layout of scales: swizzles are removed where the target's kernels read linear scales of A, and inserted elsewhere.

use expect_test::{Expect, expect};
use fourfold_codegen::capabilities;
use fourfold_ir::SymbolValues;

use super::support::{check_same_bits, describe, function};
use super::weight_only::normalized_for;

const INPUTS: &str = "%a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, linear>, \
     param %b: tensor<[24, 96], f4E2M1FN>, param %sfb: tensor<[24, 6], f8E4M3FN, blocked>, \
     %other: tensor<[37, 96], f4E2M1FN>";

const SWIZZLE: &str = "  %s = swizzle_scales %sfa : tensor<[37, 6], f8E4M3FN, blocked>\n";

fn product(name: &str, a: &str, sfa: &str) -> String {
    format!("  %{name} = scaled_mma {a}, {sfa}, %b, %sfb {{block = 16}} : tensor<[37, 24], f32>\n")
}

#[track_caller]
fn check(inputs: &str, body: &str, target: &str, expected: Expect) {
    let program = function(inputs, body);
    let normalized = normalized_for(&program, false, &capabilities(target).expect("a target"));
    expected.assert_eq(&describe(&program, &normalized));
    check_same_bits(&program, &normalized, 12, &SymbolValues::default());
}

#[test]
fn products_read_linear_scales() {
    let products = product("d", "%a", "%s") + &product("e", "%other", "%s");
    check(
        INPUTS,
        &format!("{SWIZZLE}{products}  return %d, %e"),
        "sm_90a",
        expect![[r#"
        %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>
        %e = scaled_mma %other, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>
        ; %s = swizzle_scales is gone: kernel-reads-linear-scales
    "#]],
    );
}

#[test]
fn a_swizzle_remains_for_other_users_params_and_targets() {
    let d = product("d", "%a", "%s");
    let unchanged = |inputs: &str, body: &str, target: &str| {
        let program = function(inputs, body);
        let normalized = normalized_for(&program, false, &capabilities(target).expect("a target"));
        assert!(!normalized.is_changed(), "{}", describe(&program, &normalized));
    };
    // CUTLASS reads blocked scales.
    unchanged(INPUTS, &format!("{SWIZZLE}{d}  return %d"), "sm_100a");
    // Scales of a param are swizzled once.
    unchanged(&INPUTS.replace("%sfa", "param %sfa"), &format!("{SWIZZLE}{d}  return %d"), "sm_90a");
    unchanged(INPUTS, &format!("{SWIZZLE}{d}  return %d, %s"), "sm_90a");
    // Another product reads them as those of B.
    let e = "  %e = scaled_mma %b, %sfb, %a, %s {block = 16} : tensor<[24, 37], f32>\n";
    unchanged(INPUTS, &format!("{SWIZZLE}{d}{e}  return %d, %e"), "sm_90a");
}

#[test]
fn linear_scales_are_swizzled_for_kernels_that_read_blocked_ones() {
    let inputs = INPUTS.replace("blocked", "linear");
    let products = product("d", "%a", "%sfa") + &product("e", "%other", "%sfa");
    let body = format!("{products}  return %d, %e");
    check(
        &inputs,
        &body,
        "sm_120a",
        expect![[r#"
        %sfb.blocked = swizzle_scales %sfb : tensor<[24, 6], f8E4M3FN, blocked>  ; inserted: kernel-reads-blocked-scales
        %sfa.blocked = swizzle_scales %sfa : tensor<[37, 6], f8E4M3FN, blocked>  ; inserted: kernel-reads-blocked-scales
        %d = scaled_mma %a, %sfa.blocked, %b, %sfb.blocked {block = 16} : tensor<[37, 24], f32>
        %e = scaled_mma %other, %sfa.blocked, %b, %sfb.blocked {block = 16} : tensor<[37, 24], f32>
    "#]],
    );
    check(
        &inputs,
        &body,
        "sm_90a",
        expect![[r#"
        %sfb.blocked = swizzle_scales %sfb : tensor<[24, 6], f8E4M3FN, blocked>  ; inserted: kernel-reads-blocked-scales
        %d = scaled_mma %a, %sfa, %b, %sfb.blocked {block = 16} : tensor<[37, 24], f32>
        %e = scaled_mma %other, %sfa, %b, %sfb.blocked {block = 16} : tensor<[37, 24], f32>
    "#]],
    );
    // No kernel computes it.
    let program = function(&inputs, &body);
    assert!(!normalized_for(&program, false, &capabilities("cpu").expect("a target")).is_changed());
}

#[test]
fn a_quantization_for_products_writes_blocked_scales() {
    let inputs = "%x: tensor<[37, 96], bf16>, %g: tensor<[], f32>, %y: tensor<[37, 6], f8E4M3FN, blocked>";
    let quantize = "  %q, %s = block_quantize %x, %g {block = 16} : \
                    tensor<[37, 96], f4E2M1FN>, tensor<[37, 6], f8E4M3FN, linear>\n";
    let product = "  %d = scaled_mma %q, %s, %q, %s {block = 16} : tensor<[37, 37], f32>\n";
    check(
        inputs,
        &format!("{quantize}{product}  return %d"),
        "sm_90a",
        expect![[r#"
        %q, %s.blocked = block_quantize %x, %g {block = 16} : tensor<[37, 96], f4E2M1FN>, tensor<[37, 6], f8E4M3FN, blocked>  ; from q: kernel-reads-blocked-scales, quantize-gives-blocked-scales
        %d = scaled_mma %q, %s.blocked, %q, %s.blocked {block = 16} : tensor<[37, 37], f32>
    "#]],
    );
    // The linear scales are needed anyway.
    let product = product.replace("%q, %s {", "%q, %y {");
    let program = function(inputs, &format!("{quantize}{product}  return %d, %s"));
    let normalized = normalized_for(&program, false, &capabilities("sm_90a").expect("a target"));
    assert!(!normalized.is_changed(), "{}", describe(&program, &normalized));
}

#[test]
fn a_swizzle_is_not_inserted_where_no_kernel_would_read_it() {
    let unchanged = |inputs: &str, body: &str, target: &str| {
        let program = function(inputs, body);
        let normalized = normalized_for(&program, false, &capabilities(target).expect("a target"));
        assert!(!normalized.is_changed(), "{target}: {}", describe(&program, &normalized));
    };
    // Three matrices of 45 rows share one B.
    let batch = "%a: tensor<[3, 45, 96], f4E2M1FN>, %sfa: tensor<[3, 45, 6], f8E4M3FN, linear>, \
         param %b: tensor<[24, 96], f4E2M1FN>, param %sfb: tensor<[24, 6], f8E4M3FN, linear>";
    let body = "  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[3, 45, 24], f32>\n  return %d";
    // The rows of blocked scales would be padded in each matrix.
    unchanged(batch, body, "sm_100a");
    check(
        batch,
        body,
        "sm_90a",
        expect![[r#"
            %sfb.blocked = swizzle_scales %sfb : tensor<[24, 6], f8E4M3FN, blocked>  ; inserted: kernel-reads-blocked-scales
            %d = scaled_mma %a, %sfa, %b, %sfb.blocked {block = 16} : tensor<[3, 45, 24], f32>
        "#]],
    );
    // K is no multiple of 32.
    let narrow = "%a: tensor<[37, 48], f4E2M1FN>, %sfa: tensor<[37, 3], f8E4M3FN, linear>, \
         param %b: tensor<[24, 48], f4E2M1FN>, param %sfb: tensor<[24, 3], f8E4M3FN, linear>";
    let body = "  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>\n  return %d";
    unchanged(narrow, body, "sm_100a");
    unchanged(narrow, body, "sm_90a");
    // Scales that a quantization makes stay linear, too.
    let quantized = "%x: tensor<[3, 45, 96], bf16>, %g: tensor<[], f32>, \
         param %b: tensor<[24, 96], f4E2M1FN>, param %sfb: tensor<[24, 6], f8E4M3FN, blocked>";
    let body = "  %q, %s = block_quantize %x, %g {block = 16} : tensor<[3, 45, 96], f4E2M1FN>, \
                tensor<[3, 45, 6], f8E4M3FN, linear>\n  \
                %d = scaled_mma %q, %s, %b, %sfb {block = 16} : tensor<[3, 45, 24], f32>\n  return %d";
    unchanged(quantized, body, "sm_90a");
    unchanged(quantized, body, "sm_100a");
}

/// One B for three matrices of 45 rows needs linear scales of A, and has them once the swizzle is dropped.
#[test]
fn scales_of_b_are_swizzled_where_those_of_a_become_linear() {
    let inputs = "%a: tensor<[3, 45, 96], f4E2M1FN>, %sfa: tensor<[3, 45, 6], f8E4M3FN, linear>, \
         param %b: tensor<[24, 96], f4E2M1FN>, param %sfb: tensor<[24, 6], f8E4M3FN, linear>";
    let body = "  %s = swizzle_scales %sfa : tensor<[3, 45, 6], f8E4M3FN, blocked>
  %d = scaled_mma %a, %s, %b, %sfb {block = 16} : tensor<[3, 45, 24], f32>
  return %d";
    check(
        inputs,
        body,
        "sm_90a",
        expect![[r#"
        %sfb.blocked = swizzle_scales %sfb : tensor<[24, 6], f8E4M3FN, blocked>  ; inserted: kernel-reads-blocked-scales
        %d = scaled_mma %a, %sfa, %b, %sfb.blocked {block = 16} : tensor<[3, 45, 24], f32>
        ; %s = swizzle_scales is gone: kernel-reads-linear-scales
    "#]],
    );
    let program = function(inputs, body);
    let capabilities = capabilities("sm_90a").expect("a target");
    let once = normalized_for(&program, false, &capabilities);
    assert!(!normalized_for(once.program(), false, &capabilities).is_changed());
}

#[test]
fn scales_that_many_products_share_are_examined_once() {
    let capabilities = capabilities("sm_90a").expect("a target");
    // The least of several runs, because other tests run at the same time.
    let seconds = |count: usize| {
        let products: String = (0..count).map(|index| product(&format!("d{index}"), "%a", "%s")).collect();
        let results: Vec<String> = (0..count).map(|index| format!("%d{index}")).collect();
        let program = function(INPUTS, &format!("{SWIZZLE}{products}  return {}", results.join(", ")));
        let run = || {
            let start = std::time::Instant::now();
            assert!(normalized_for(&program, false, &capabilities).is_changed());
            start.elapsed().as_secs_f64()
        };
        (0..3).map(|_| run()).fold(f64::INFINITY, f64::min)
    };
    let (tenth, whole) = (seconds(1000), seconds(10_000));
    assert!(whole < 40.0 * tenth, "{whole} s, and {tenth} s for a tenth");
}
