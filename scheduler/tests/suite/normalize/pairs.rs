//! Two products that an op combines: one product of a rearranged weight where the target pairs columns.

use expect_test::{Expect, expect};
use fourfold_codegen::capabilities;
use fourfold_ir::{Program, SymbolValues};
use fourfold_scheduler::{NormalizeOptions, check, normalize, normalize_for, partition};

use super::support::{Random, check_same_bits, describe, function};
use super::weight_only::normalized_for;

const INPUTS: &str = "%x: tensor<[37, 96], f4E2M1FN>, %sx: tensor<[37, 6], f8E4M3FN, blocked>, \
     param %wg: tensor<[24, 96], f4E2M1FN>, param %sg: tensor<[24, 6], f8E4M3FN, blocked>, \
     param %wu: tensor<[24, 96], f4E2M1FN>, param %su: tensor<[24, 6], f8E4M3FN, blocked>, %alpha: tensor<[], f32>";

const TWO: &str = "  %g = scaled_mma %x, %sx, %wg, %sg {block = 16} : tensor<[37, 24], f32>
  %u = scaled_mma %x, %sx, %wu, %su {block = 16} : tensor<[37, 24], f32>
  %a = silu %g : tensor<[37, 24], f32>
  %y = mul %a, %u : tensor<[37, 24], f32>
";

#[track_caller]
fn is_rewritten(program: &Program, expected: Expect) {
    let sm90 = capabilities("sm_90a").expect("a target");
    let normalized = normalized_for(program, false, &sm90);
    expected.assert_eq(&describe(program, &normalized));
    check_same_bits(program, &normalized, 12, &SymbolValues::default());
    let partition = partition(normalized.program(), &sm90);
    assert_eq!(check(normalized.program(), &sm90, &partition), Ok(()));
    let paired: Vec<bool> = partition.kernels().map(|(_, plan)| plan.pair.is_some()).collect();
    assert_eq!(paired, [true]);
}

#[test]
fn two_weights_become_one_whose_rows_alternate() {
    is_rewritten(
        &function(INPUTS, &format!("{TWO}  return %y")),
        expect![[r#"
        %wg.rows = reshape %wg : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wu.rows = reshape %wu : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wg.beside = concat %wg.rows, %wu.rows {axis = 1} : tensor<[24, 2, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wg.pair = reshape %wg.beside : tensor<[48, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %sg.linear = swizzle_scales %sg : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %su.linear = swizzle_scales %su : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.rows = reshape %sg.linear : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %su.linear.rows = reshape %su.linear : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.beside = concat %sg.linear.rows, %su.linear.rows {axis = 1} : tensor<[24, 2, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.pair = reshape %sg.linear.beside : tensor<[48, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.pair.blocked = swizzle_scales %sg.linear.pair : tensor<[48, 6], f8E4M3FN, blocked>  ; inserted: combined-products-are-one
        %g.pair = scaled_mma %x, %sx, %wg.pair, %sg.linear.pair.blocked {block = 16} : tensor<[37, 48], f32>  ; from g u: combined-products-are-one
        %g = slice %g.pair {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], f32>  ; from g u: combined-products-are-one
        %u = slice %g.pair {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], f32>  ; from g u: combined-products-are-one
        %a = silu %g : tensor<[37, 24], f32>
        %y = mul %a, %u : tensor<[37, 24], f32>
    "#]],
    );
}

#[test]
fn both_halves_of_a_product_become_its_even_and_odd_columns() {
    let inputs = "%x: tensor<[37, 96], bf16>, param %w: tensor<[48, 96], f4E2M1FN>, \
         param %s: tensor<[48, 6], f8E4M3FN, linear>";
    let body = "  %sw = swizzle_scales %s : tensor<[48, 6], f8E4M3FN, blocked>
  %d = scaled_mma %x, %w, %sw {block = 16} : tensor<[37, 48], bf16>
  %u = slice %d {axes = [1], ends = [24], starts = [0]} : tensor<[37, 24], bf16>
  %g = slice %d {axes = [1], ends = [48], starts = [24]} : tensor<[37, 24], bf16>
  %a = gelu %g : tensor<[37, 24], bf16>
  %y = mul %a, %u : tensor<[37, 24], bf16>
  return %y";
    is_rewritten(
        &function(inputs, body),
        expect![[r#"
        %w.half = slice %w {axes = [0], ends = [48], starts = [24]} : tensor<[24, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.rows = reshape %w.half : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.half.2 = slice %w {axes = [0], ends = [24], starts = [0]} : tensor<[24, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.rows.2 = reshape %w.half.2 : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.beside = concat %w.rows, %w.rows.2 {axis = 1} : tensor<[24, 2, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.pair = reshape %w.beside : tensor<[48, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %s.half = slice %s {axes = [0], ends = [48], starts = [24]} : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.rows = reshape %s.half : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.half.2 = slice %s {axes = [0], ends = [24], starts = [0]} : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.rows.2 = reshape %s.half.2 : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.beside = concat %s.rows, %s.rows.2 {axis = 1} : tensor<[24, 2, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.pair = reshape %s.beside : tensor<[48, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.pair.blocked = swizzle_scales %s.pair : tensor<[48, 6], f8E4M3FN, blocked>  ; inserted: combined-products-are-one
        %g.pair = scaled_mma %x, %w.pair, %s.pair.blocked {block = 16} : tensor<[37, 48], bf16>  ; from d u g: combined-products-are-one
        %g = slice %g.pair {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], bf16>  ; from d u g: combined-products-are-one
        %u = slice %g.pair {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], bf16>  ; from d u g: combined-products-are-one
        %a = gelu %g : tensor<[37, 24], bf16>
        %y = mul %a, %u : tensor<[37, 24], bf16>
        ; %sw = swizzle_scales is gone: 
    "#]],
    );
}

#[test]
fn an_alpha_of_its_own_multiplies_in_the_epilogue() {
    let body = "  %g = scaled_mma %x, %sx, %wg, %sg, alpha = %alpha {block = 16} : tensor<[37, 24], bf16>
  %u = scaled_mma %x, %sx, %wu, %su {block = 16} : tensor<[37, 24], bf16>
  %a = silu %g : tensor<[37, 24], bf16>
  %y = mul %a, %u : tensor<[37, 24], bf16>
  return %y";
    is_rewritten(
        &function(INPUTS, body),
        expect![[r#"
        %wg.rows = reshape %wg : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wu.rows = reshape %wu : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wg.beside = concat %wg.rows, %wu.rows {axis = 1} : tensor<[24, 2, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wg.pair = reshape %wg.beside : tensor<[48, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %sg.linear = swizzle_scales %sg : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %su.linear = swizzle_scales %su : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.rows = reshape %sg.linear : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %su.linear.rows = reshape %su.linear : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.beside = concat %sg.linear.rows, %su.linear.rows {axis = 1} : tensor<[24, 2, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.pair = reshape %sg.linear.beside : tensor<[48, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.linear.pair.blocked = swizzle_scales %sg.linear.pair : tensor<[48, 6], f8E4M3FN, blocked>  ; inserted: combined-products-are-one
        %g.pair = scaled_mma %x, %sx, %wg.pair, %sg.linear.pair.blocked {block = 16} : tensor<[37, 48], f32>  ; from g u: combined-products-are-one
        %g.columns = slice %g.pair {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], f32>  ; inserted: combined-products-are-one
        %g.scaled = mul %g.columns, %alpha : tensor<[37, 24], f32>  ; inserted: combined-products-are-one
        %g = convert %g.scaled : tensor<[37, 24], bf16>  ; from g u: combined-products-are-one
        %u.columns = slice %g.pair {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], f32>  ; inserted: combined-products-are-one
        %u = convert %u.columns : tensor<[37, 24], bf16>  ; from g u: combined-products-are-one
        %a = silu %g : tensor<[37, 24], bf16>
        %y = mul %a, %u : tensor<[37, 24], bf16>
    "#]],
    );
}

#[test]
fn the_matrices_of_groups_are_rearranged_each_on_its_own() {
    let inputs = "%x: tensor<[37, 96], bf16>, %ends: tensor<[3], i32>, %expert: tensor<[37], i32>, \
         param %wg: tensor<[3, 24, 96], f4E2M1FN>, param %sg: tensor<[3, 24, 6], f8E4M3FN, linear>, \
         param %wu: tensor<[3, 24, 96], f4E2M1FN>, param %su: tensor<[3, 24, 6], f8E4M3FN, blocked>, \
         param %alpha: tensor<[3], f32>, param %bias: tensor<[3, 24], bf16>";
    let body = "  %sgb = swizzle_scales %sg : tensor<[3, 24, 6], f8E4M3FN, blocked>
  %g = grouped_scaled_mma %x, %wg, %sgb, %ends, alpha = %alpha {block = 16} : tensor<[37, 24], f32>
  %u = grouped_scaled_mma %x, %wu, %su, %ends, alpha = %alpha {block = 16} : tensor<[37, 24], f32>
  %rows = gather %bias, %expert {axis = 0} : tensor<[37, 24], bf16>
  %b = add %g, %rows : tensor<[37, 24], f32>
  %a = silu %b : tensor<[37, 24], f32>
  %y = mul %a, %u : tensor<[37, 24], f32>
  return %y";
    is_rewritten(
        &function(inputs, body),
        expect![[r#"
        %wg.rows = reshape %wg : tensor<[3, 24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wu.rows = reshape %wu : tensor<[3, 24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wg.beside = concat %wg.rows, %wu.rows {axis = 2} : tensor<[3, 24, 2, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %wg.pair = reshape %wg.beside : tensor<[3, 48, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %su.linear = swizzle_scales %su : tensor<[3, 24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.rows = reshape %sg : tensor<[3, 24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %su.linear.rows = reshape %su.linear : tensor<[3, 24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.beside = concat %sg.rows, %su.linear.rows {axis = 2} : tensor<[3, 24, 2, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.pair = reshape %sg.beside : tensor<[3, 48, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %sg.pair.blocked = swizzle_scales %sg.pair : tensor<[3, 48, 6], f8E4M3FN, blocked>  ; inserted: combined-products-are-one
        %g.pair = grouped_scaled_mma %x, %wg.pair, %sg.pair.blocked, %ends, alpha = %alpha {block = 16} : tensor<[37, 48], f32>  ; from g u: combined-products-are-one
        %g = slice %g.pair {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], f32>  ; from g u: combined-products-are-one
        %u = slice %g.pair {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], f32>  ; from g u: combined-products-are-one
        %rows = gather %bias, %expert {axis = 0} : tensor<[37, 24], bf16>
        %b = add %g, %rows : tensor<[37, 24], f32>
        %a = silu %b : tensor<[37, 24], f32>
        %y = mul %a, %u : tensor<[37, 24], f32>
        ; %sgb = swizzle_scales is gone: 
    "#]],
    );
    let sm90 = capabilities("sm_90a").expect("a target");
    let changed = |before: &str, after: &str| {
        let body = body.replace(before, after);
        normalize_for(&function(inputs, &body), &NormalizeOptions::default(), &sm90).is_changed()
    };
    assert!(changed("silu", "relu"));
    // An alpha of its own would make rows of no group -0 or NaN. Other ends are other products.
    assert!(!changed("%su, %ends, alpha = %alpha", "%su, %ends"));
    let other = inputs.replace("%expert:", "%others: tensor<[3], i32>, %expert:");
    let program = function(&other, &body.replace("%su, %ends", "%su, %others"));
    assert!(!normalize_for(&program, &NormalizeOptions::default(), &sm90).is_changed());
    let mut without = sm90.clone();
    without.formats.iter_mut().for_each(|format| format.max_groups = Some(2));
    let program = function(inputs, body);
    assert!(
        !normalize_for(&program, &NormalizeOptions::default(), &without).is_changed(),
        "3 groups of at most 2"
    );
}

#[test]
fn halves_of_a_sum_with_a_bias_are_sums_of_halves() {
    let inputs = "%x: tensor<[37, 96], bf16>, param %w: tensor<[48, 96], f4E2M1FN>, \
         param %s: tensor<[48, 6], f8E4M3FN, blocked>, param %bias: tensor<[48], bf16>, %column: tensor<[37, 1], f32>";
    let body = "  %d = scaled_mma %x, %w, %s {block = 16} : tensor<[37, 48], f32>
  %b = add %bias, %d : tensor<[37, 48], f32>
  %c = sub %column, %b : tensor<[37, 48], f32>
  %g = slice %c {axes = [1], ends = [24], starts = [0]} : tensor<[37, 24], f32>
  %u = slice %c {axes = [1], ends = [48], starts = [24]} : tensor<[37, 24], f32>
  %a = silu %g : tensor<[37, 24], f32>
  %y = mul %a, %u : tensor<[37, 24], f32>
  return %y";
    is_rewritten(
        &function(inputs, body),
        expect![[r#"
        %w.half = slice %w {axes = [0], ends = [24], starts = [0]} : tensor<[24, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.rows = reshape %w.half : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.half.2 = slice %w {axes = [0], ends = [48], starts = [24]} : tensor<[24, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.rows.2 = reshape %w.half.2 : tensor<[24, 1, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.beside = concat %w.rows, %w.rows.2 {axis = 1} : tensor<[24, 2, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %w.pair = reshape %w.beside : tensor<[48, 96], f4E2M1FN>  ; inserted: combined-products-are-one
        %s.linear = swizzle_scales %s : tensor<[48, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.half = slice %s.linear {axes = [0], ends = [24], starts = [0]} : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.rows = reshape %s.linear.half : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.2.half = slice %s.linear {axes = [0], ends = [48], starts = [24]} : tensor<[24, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.2.rows = reshape %s.linear.2.half : tensor<[24, 1, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.beside = concat %s.linear.rows, %s.linear.2.rows {axis = 1} : tensor<[24, 2, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.pair = reshape %s.linear.beside : tensor<[48, 6], f8E4M3FN, linear>  ; inserted: combined-products-are-one
        %s.linear.pair.blocked = swizzle_scales %s.linear.pair : tensor<[48, 6], f8E4M3FN, blocked>  ; inserted: combined-products-are-one
        %g.2.pair = scaled_mma %x, %w.pair, %s.linear.pair.blocked {block = 16} : tensor<[37, 48], f32>  ; from d: slices-before-steps, combined-products-are-one
        %g.2 = slice %g.2.pair {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], f32>  ; from d: slices-before-steps, combined-products-are-one
        %u.2 = slice %g.2.pair {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], f32>  ; from d: slices-before-steps, combined-products-are-one
        %bias.columns = slice %bias {axes = [0], ends = [24], starts = [0]} : tensor<[24], bf16>  ; inserted: slices-before-steps
        %b.g = add %bias.columns, %g.2 : tensor<[37, 24], f32>  ; from b: slices-before-steps
        %g = sub %column, %b.g : tensor<[37, 24], f32>  ; from b c g u: slices-before-steps
        %bias.columns.2 = slice %bias {axes = [0], ends = [48], starts = [24]} : tensor<[24], bf16>  ; inserted: slices-before-steps
        %b.u = add %bias.columns.2, %u.2 : tensor<[37, 24], f32>  ; from b: slices-before-steps
        %u = sub %column, %b.u : tensor<[37, 24], f32>  ; from b c g u: slices-before-steps
        %a = silu %g : tensor<[37, 24], f32>
        %y = mul %a, %u : tensor<[37, 24], f32>
    "#]],
    );
    let near = |before: &str, after: &str| {
        let (inputs, body) = (inputs.replace(before, after), body.replace(before, after));
        let sm90 = capabilities("sm_90a").expect("a target");
        let program = function(&inputs, &body);
        assert!(!normalize_for(&program, &NormalizeOptions::default(), &sm90).is_changed(), "{after}");
    };
    near("param %bias", "%bias");
    near("param %w", "%w");
    near("return %y", "return %y, %c");
    near("return %y", "return %y, %b");
    near("return %y", "return %y, %g");
}

#[test]
fn alternating_columns_of_a_sum_with_gathered_rows_are_sums_of_columns() {
    let inputs = "%x: tensor<[37, 64], bf16>, %ends: tensor<[3], i32>, %expert: tensor<[37], i32>, \
         param %w: tensor<[3, 48, 64], f4E2M1FN>, param %s: tensor<[3, 48, 2], f8E8M0FNU, blocked>, \
         param %bias: tensor<[3, 48], bf16>";
    let body = "  %d = grouped_scaled_mma %x, %w, %s, %ends {block = 32} : tensor<[37, 48], f32>
  %rows = gather %bias, %expert {axis = 0} : tensor<[37, 48], bf16>
  %b = add %d, %rows : tensor<[37, 48], f32>
  %g = slice %b {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], f32>
  %u = slice %b {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], f32>
  %low = clamp %g {max = 7, min = -inf} : tensor<[37, 24], f32>
  %open = sigmoid %low : tensor<[37, 24], f32>
  %a = mul %low, %open : tensor<[37, 24], f32>
  %y = mul %a, %u : tensor<[37, 24], f32>
  return %y";
    is_rewritten(
        &function(inputs, body),
        expect![[r#"
        %d = grouped_scaled_mma %x, %w, %s, %ends {block = 32} : tensor<[37, 48], f32>
        %g.2 = slice %d {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[37, 24], f32>  ; inserted: slices-before-steps
        %bias.columns = slice %bias {axes = [1], ends = [48], starts = [0], steps = [2]} : tensor<[3, 24], bf16>  ; inserted: slices-before-steps
        %rows.columns = gather %bias.columns, %expert {axis = 0} : tensor<[37, 24], bf16>  ; inserted: slices-before-steps
        %g = add %g.2, %rows.columns : tensor<[37, 24], f32>  ; from b g u: slices-before-steps
        %u.2 = slice %d {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[37, 24], f32>  ; inserted: slices-before-steps
        %bias.columns.2 = slice %bias {axes = [1], ends = [48], starts = [1], steps = [2]} : tensor<[3, 24], bf16>  ; inserted: slices-before-steps
        %rows.columns.2 = gather %bias.columns.2, %expert {axis = 0} : tensor<[37, 24], bf16>  ; inserted: slices-before-steps
        %u = add %u.2, %rows.columns.2 : tensor<[37, 24], f32>  ; from b g u: slices-before-steps
        %low = clamp %g {max = 7, min = -inf} : tensor<[37, 24], f32>
        %open = sigmoid %low : tensor<[37, 24], f32>
        %a = mul %low, %open : tensor<[37, 24], f32>
        %y = mul %a, %u : tensor<[37, 24], f32>
        ; %rows = gather is gone: 
    "#]],
    );
}

#[test]
fn products_that_no_kernel_combines_remain() {
    let sm90 = capabilities("sm_90a").expect("a target");
    let changed = |inputs: &str, body: &str| {
        let program = function(inputs, body);
        let options = NormalizeOptions::default();
        assert!(!normalize(&program, &options).is_changed(), "no target is known");
        normalize_for(&program, &options, &sm90).is_changed()
    };
    let text = format!("{TWO}  return %y");
    assert!(changed(INPUTS, &text));
    let near = |before: &str, after: &str| {
        assert!(text.contains(before), "{before}");
        assert!(!changed(INPUTS, &text.replace(before, after)), "{after}");
    };
    // Another user, or the caller, needs a value between the products and the op.
    near("  return %y", "  %z = relu %u : tensor<[37, 24], f32>\n  return %y, %z");
    near("return %y", "return %y, %u");
    near("return %y", "return %y, %a");
    near("return %y", "return %y, %g");
    // No epilogue computes the op or a step.
    near("%y = mul", "%y = pow");
    near("%a = silu", "%a = log");
    // An operand of the op is no product, or both are the same.
    near("mul %a, %u", "mul %a, %a");
    near("mul %a, %u", "mul %u, %u");
    for (before, after) in [
        ("param %wg", "%wg"),
        ("param %su", "%su"),
        // F is not a multiple of 4, which rows of f32 need.
        ("24", "22"),
    ] {
        let (inputs, text) = (INPUTS.replace(before, after), text.replace(before, after));
        assert!(!changed(&inputs, &text), "{after}");
    }
    let other_a = INPUTS.replace("%x:", "%v: tensor<[37, 96], f4E2M1FN>, %x:");
    assert!(!changed(&other_a, &text.replace("%x, %sx, %wu", "%v, %sx, %wu")), "another A");
    let other_f = "  %c = convert %y : tensor<[37, 24], bf16>\n  return %c";
    assert!(changed(INPUTS, &text.replace("  return %y", other_f)));
    let program = function(INPUTS, &text);
    for target in ["sm_100a", "sm_120a"] {
        let capabilities = capabilities(target).expect("a target");
        assert!(
            !normalize_for(&program, &NormalizeOptions::default(), &capabilities).is_changed(),
            "{target}"
        );
    }
}

/// Layers whose products, steps, scales and weights vary.
#[test]
fn random_layers_keep_their_bits_in_one_kernel() {
    const PROGRAMS: u64 = 300;
    let sm90 = capabilities("sm_90a").expect("a target");
    let (mut changed, mut expected) = (0, 0);
    for seed in 0..PROGRAMS {
        let Layer { inputs, body, is_near } = layer(&mut Random(seed));
        let program = function(&inputs, &body);
        let normalized = normalized_for(&program, false, &sm90);
        check_same_bits(&program, &normalized, 2, &SymbolValues::default());
        let partition = partition(normalized.program(), &sm90);
        assert_eq!(check(normalized.program(), &sm90, &partition), Ok(()), "{seed}");
        let pairs = partition.kernels().filter(|(_, plan)| plan.pair.is_some()).count();
        assert_eq!(pairs, usize::from(normalized.is_changed()), "{seed}: {body}");
        changed += pairs;
        expected += usize::from(!is_near);
        assert!(is_near || pairs == 1, "{seed}: {body}");
    }
    assert!(changed == expected && changed * 2 > PROGRAMS as usize, "{changed} of {PROGRAMS} changed");
}

struct Layer {
    inputs: String,
    body: String,
    /// True if the products must remain apart.
    is_near: bool,
}

fn layer(random: &mut Random) -> Layer {
    let (a, codes, scale, block) = random.pick(&[
        ("f4E2M1FN", "f4E2M1FN", "f8E4M3FN", 16),
        ("bf16", "f4E2M1FN", "f8E4M3FN", 16),
        ("f8E4M3FN", "f4E2M1FN", "f8E8M0FNU", 32),
        ("f8E5M2", "f8E4M3FN", "f8E8M0FNU", 32),
    ]);
    let (m, f, k) = (random.pick(&[1, 7, 37]), random.pick(&[8, 24, 40, 136]), random.pick(&[32, 96, 160]));
    let (ty, groups) = (random.pick(&["f32", "bf16", "f16"]), k / block);
    let is_whole = random.percent(40);
    let is_near = random.percent(20);
    let near = if is_near { random.below(3) } else { 3 };
    let param = if near == 0 { "" } else { "param " };
    // Groups have kernels for FP4 weights only.
    let is_grouped = codes == "f4E2M1FN" && random.percent(60);
    let is_masked = is_grouped && random.percent(40);
    let (op, lead, ends) = match (is_grouped, is_masked) {
        (false, _) => ("scaled_mma", "", ""),
        (true, false) => ("grouped_scaled_mma", "5, ", ", %ends"),
        (true, true) => ("masked_scaled_mma", "5, ", ", %ends"),
    };
    let (of_d, axis) = if is_masked { ("5, ", 2) } else { ("", 1) };
    let d = format!("tensor<[{of_d}{m}, {f}], {ty}>");
    let has_scales_a = a != "bf16";
    let mut inputs = vec![format!("%x: tensor<[{of_d}{m}, {k}], {a}>")];
    let of_x = if is_grouped && random.percent(60) { "linear" } else { "blocked" };
    // Blocked scales of groups have a tile for each, and no group has more rows.
    let is_padded = is_grouped && !is_masked && has_scales_a && of_x == "blocked";
    let rows = if is_padded { 640 } else { m };
    inputs.extend(has_scales_a.then(|| format!("%sx: tensor<[{of_d}{rows}, {groups}], {scale}, {of_x}>")));
    inputs.extend(is_padded.then(|| "%sfa_ends: tensor<[5], i32>".to_owned()));
    let sfa_ends = if is_padded { ", sfa_ends = %sfa_ends" } else { "" };
    inputs.extend(is_grouped.then(|| "%ends: tensor<[5], i32>".to_owned()));
    let of_alpha = if is_grouped { random.pick(&["5", ""]) } else { "" };
    inputs.extend([0, 1].map(|i| format!("%alpha{i}: tensor<[{of_alpha}], f32>")));
    inputs.extend([0, 1].map(|i| format!("%row{i}: tensor<[{f}], {ty}>")));
    inputs.push(format!("%column: tensor<[{of_d}{m}, 1], {ty}>"));
    let mut body = String::new();
    let mut weight = |name: &str, rows: u64, body: &mut String, random: &mut Random| {
        inputs.push(format!("{param}%w{name}: tensor<[{lead}{rows}, {k}], {codes}>"));
        let is_linear = random.percent(50);
        let (given, layout) = if is_linear { ("given", "linear") } else { ("", "blocked") };
        inputs.push(format!("{param}%s{name}{given}: tensor<[{lead}{rows}, {groups}], {scale}, {layout}>"));
        if is_linear {
            let ty = format!("tensor<[{lead}{rows}, {groups}], {scale}, blocked>");
            *body += &format!("  %s{name} = swizzle_scales %s{name}given : {ty}\n");
        }
    };
    let of_a = if has_scales_a { "%x, %sx" } else { "%x" };
    let halves = if is_whole {
        weight("w", 2 * f, &mut body, random);
        let alpha = random.pick(&["", ", alpha = %alpha0"]);
        let wide = format!("tensor<[{of_d}{m}, {}], {ty}>", 2 * f);
        body +=
            &format!("  %d = {op} {of_a}, %ww, %sw{ends}{alpha}{sfa_ends} {{block = {block}}} : {wide}\n");
        body += &format!("  %p0 = slice %d {{axes = [{axis}], ends = [{f}], starts = [0]}} : {d}\n");
        body += &format!("  %p1 = slice %d {{axes = [{axis}], ends = [{}], starts = [{f}]}} : {d}\n", 2 * f);
        random.pick(&[[0, 1], [1, 0]])
    } else {
        // Groups share alpha.
        let shared = random.pick(&["", ", alpha = %alpha0"]);
        for i in [0, 1] {
            weight(&i.to_string(), f, &mut body, random);
            let own = random.pick(&["", ", alpha = %alpha0", ", alpha = %alpha1"]);
            let alpha = if is_grouped { shared } else { own };
            body += &format!(
                "  %p{i} = {op} {of_a}, %w{i}, %s{i}{ends}{alpha}{sfa_ends} {{block = {block}}} : {d}\n"
            );
        }
        [0, 1]
    };
    let steps = |of: usize, body: &mut String, random: &mut Random| {
        let mut value = format!("%p{of}");
        for step in 0..random.below(4) {
            let name = format!("%t{of}.{step}");
            let op = random.pick(&["silu", "relu", "tanh", "clamp", "row", "column", "constant"]);
            let text = match op {
                "clamp" => format!("clamp {value} {{max = 2.0, min = -1.5}}"),
                "row" => format!("add {value}, %row{of}"),
                "column" => format!("mul %column, {value}"),
                "constant" => {
                    *body += &format!("  %c{of}.{step} = constant {{value = 0.75}} : tensor<[], {ty}>\n");
                    format!("mul {value}, %c{of}.{step}")
                }
                unary => format!("{unary} {value}"),
            };
            *body += &format!("  {name} = {text} : {d}\n");
            value = name;
        }
        value
    };
    let values = halves.map(|half| steps(half, &mut body, random));
    let join = random.pick(&["mul", "add", "sub", "div", "max", "min"]);
    body += &format!("  %y = {join} {}, {} : {d}\n", values[0], values[1]);
    let last = random.pick(&["%p0", "%p1"]);
    match near {
        1 => body += &format!("  return %y, {last}"),
        2 => body += &format!("  %other = neg {last} : {d}\n  return %y, %other"),
        _ => body += "  %z = neg %y : tensor<D>\n  return %z",
    }
    Layer { inputs: inputs.join(", "), body: body.replace("tensor<D>", &d), is_near }
}
