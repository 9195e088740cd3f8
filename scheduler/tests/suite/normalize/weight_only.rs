//! Products of a 16-bit value and a dequantized weight: weight-only where the target has a kernel, `mma` elsewhere.

use expect_test::{Expect, expect};
use fourfold_codegen::capabilities;
use fourfold_ir::{BlockFormat, Capabilities, ElementType, FormatCapability, Program, SymbolValues};
use fourfold_scheduler::{NormalizeOptions, Normalized, normalize, normalize_for};

use super::support::{check_bookkeeping, check_same_bits, describe, function};

/// A target whose library multiplies 16-bit matrices, without kernels for weight-only products.
pub fn without_kernels() -> Capabilities {
    let mut capabilities = capabilities("sm_90a").expect("a target");
    capabilities.formats.retain(|rules| !rules.format.is_weight_only());
    capabilities
}

/// The same with kernels for every weight-only product of NVFP4 and MXFP4.
pub fn with_kernels() -> Capabilities {
    let mut capabilities = without_kernels();
    let rules = capabilities.formats[0].clone();
    for a in [ElementType::F16, ElementType::BF16] {
        for b in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
            capabilities.formats.push(FormatCapability { format: b.weight_only(a), ..rules.clone() });
        }
    }
    capabilities
}

/// Normalizes for a target, and checks that a second pass changes nothing.
#[track_caller]
pub fn normalized_for(program: &Program, contract: bool, capabilities: &Capabilities) -> Normalized {
    let options = NormalizeOptions { contract };
    let normalized = normalize_for(program, &options, capabilities);
    check_bookkeeping(program, &normalized);
    let again = normalize_for(normalized.program(), &options, capabilities);
    assert!(!again.is_changed(), "{}", describe(normalized.program(), &again));
    normalized
}

const WEIGHT: &str = "param %w: tensor<[24, 64], f4E2M1FN>, param %sw: tensor<[24, 4], f8E4M3FN, linear>";

fn inputs(x: &str) -> String {
    format!("%x: tensor<[37, 64], {x}>, {WEIGHT}, %g: tensor<[], f32>, %c: tensor<[37, 24], bf16>")
}

const MX: &str = "%x: tensor<[37, 64], bf16>, param %w: tensor<[24, 64], f4E2M1FN>, \
     param %sw: tensor<[24, 2], f8E8M0FNU, linear>";

fn dequantized(element: &str, x: &str, result: &str) -> String {
    format!(
        "  %y = block_dequantize %w, %sw {{block = 16}} : tensor<[24, 64], {element}>
  %d = mma {x}, %y : tensor<[37, 24], {result}>
  return %d"
    )
}

/// Checks an exact rewrite: the same bits on poisoned data.
#[track_caller]
fn check(program: &Program, capabilities: &Capabilities, expected: Expect) {
    let normalized = normalized_for(program, false, capabilities);
    expected.assert_eq(&describe(program, &normalized));
    assert!(normalized.contracted().next().is_none());
    check_same_bits(program, &normalized, 12, &SymbolValues::default());
}

/// Checks a rewrite that needs `contract`.
#[track_caller]
fn check_contract(program: &Program, capabilities: &Capabilities, expected: Expect) {
    assert!(normalized_for(program, false, capabilities).contracted().next().is_none());
    let contracted = normalized_for(program, true, capabilities);
    assert!(contracted.contracted().next().is_some());
    expected.assert_eq(&describe(program, &contracted));
}

#[test]
fn a_product_with_a_dequantized_weight_is_weight_only() {
    for element in ["bf16", "f16"] {
        let program = function(&inputs(element), &dequantized(element, "%x", "f32"));
        check(
            &program,
            &with_kernels(),
            expect![[r#"
            %sw.blocked = swizzle_scales %sw : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-weight-is-weight-only
            %d = scaled_mma %x, %w, %sw.blocked {block = 16} : tensor<[37, 24], f32>  ; from y d: mma-of-dequantized-weight-is-weight-only
        "#]],
        );
    }
    let widened = format!("  %x2 = convert %x : tensor<[37, 64], f32>\n{}", dequantized("f32", "%x2", "f32"));
    check(
        &function(&inputs("bf16"), &widened),
        &with_kernels(),
        expect![[r#"
        %sw.blocked = swizzle_scales %sw : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-weight-is-weight-only
        %d = scaled_mma %x, %w, %sw.blocked {block = 16} : tensor<[37, 24], f32>  ; from x2 y d: mma-of-dequantized-weight-is-weight-only
    "#]],
    );
}

#[test]
fn a_factor_of_the_product_is_alpha() {
    let body = "  %y = block_dequantize %w, %sw {block = 16} : tensor<[24, 64], bf16>
  %p = mma %x, %y : tensor<[37, 24], f32>
  %d = mul %p, %g : tensor<[37, 24], f32>
  return %d";
    check(
        &function(&inputs("bf16"), body),
        &with_kernels(),
        expect![[r#"
        %sw.blocked = swizzle_scales %sw : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: mma-of-dequantized-weight-is-weight-only
        %d = scaled_mma %x, %w, %sw.blocked, alpha = %g {block = 16} : tensor<[37, 24], f32>  ; from y p d: mma-of-dequantized-weight-is-weight-only, factor-is-alpha
    "#]],
    );
}

#[test]
fn rounded_weights_narrow_results_and_powers_of_two_need_contract() {
    let with_g = "  %y = block_dequantize %w, %sw, %g {block = 16} : tensor<[24, 64], bf16>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d";
    check_contract(
        &function(&inputs("bf16"), with_g),
        &with_kernels(),
        expect![[r#"
        %sw.blocked = swizzle_scales %sw : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: factor-of-dequantized-weight-is-alpha (contract)
        %d = scaled_mma %x, %w, %sw.blocked, alpha = %g {block = 16} : tensor<[37, 24], f32>  ; from y d: factor-of-dequantized-weight-is-alpha (contract)
    "#]],
    );
    let narrow = function(&inputs("f16"), &dequantized("f16", "%x", "f16"));
    check_contract(
        &narrow,
        &with_kernels(),
        expect![[r#"
        %sw.blocked = swizzle_scales %sw : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: narrow-mma-is-weight-only (contract)
        %d = scaled_mma %x, %w, %sw.blocked {block = 16} : tensor<[37, 24], f16>  ; from y d: narrow-mma-is-weight-only (contract)
    "#]],
    );
    let mx = "  %y = block_dequantize %w, %sw {block = 32} : tensor<[24, 64], bf16>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d";
    check_contract(
        &function(MX, mx),
        &with_kernels(),
        expect![[r#"
        %sw.blocked = swizzle_scales %sw : tensor<[24, 2], f8E8M0FNU, blocked>  ; inserted: mma-of-mx-weight-is-weight-only (contract)
        %d = scaled_mma %x, %w, %sw.blocked {block = 32} : tensor<[37, 24], f32>  ; from y d: mma-of-mx-weight-is-weight-only (contract)
    "#]],
    );
}

#[test]
fn weights_that_torch_dequantizes_in_f32_are_those_of_a_weight_only_product() {
    let body = "  %wide = block_dequantize %w, %sw, %g {block = 16} : tensor<[24, 64], f32>
  %y = convert %wide : tensor<[24, 64], bf16>
  %d = mma %x, %y : tensor<[37, 24], bf16>
  return %d";
    check_contract(
        &function(&inputs("bf16"), body),
        &with_kernels(),
        expect![[r#"
        %sw.blocked = swizzle_scales %sw : tensor<[24, 4], f8E4M3FN, blocked>  ; inserted: convert-joins-scaled-dequantize (contract), factor-of-dequantized-weight-is-alpha (contract)
        %d = scaled_mma %x, %w, %sw.blocked, alpha = %g {block = 16} : tensor<[37, 24], bf16>  ; from wide y d: convert-joins-scaled-dequantize (contract), factor-of-dequantized-weight-is-alpha (contract)
    "#]],
    );
    let mx = "  %wide = block_dequantize %w, %sw {block = 32} : tensor<[24, 64], f32>
  %y = convert %wide : tensor<[24, 64], bf16>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d";
    check(
        &function(MX, mx),
        &with_kernels(),
        expect![[r#"
        %y = block_dequantize %w, %sw {block = 32} : tensor<[24, 64], bf16>  ; from wide y: convert-joins-dequantize
        %d = mma %x, %y : tensor<[37, 24], f32>
    "#]],
    );
}

#[test]
fn a_product_stays_without_a_kernel_or_a_16_bit_a() {
    let bf16 = function(&inputs("bf16"), &dequantized("bf16", "%x", "f32"));
    assert!(!normalized_for(&bf16, true, &without_kernels()).is_changed());
    assert!(!normalize(&bf16, &NormalizeOptions { contract: true }).is_changed(), "no target is known");
    let f32 = function(&inputs("f32"), &dequantized("f32", "%x", "f32"));
    assert!(!normalized_for(&f32, true, &with_kernels()).is_changed());
    // K = 48 is no multiple of 32, and N = 22 none of 4, that of f32 results.
    for (n, k, blocks, has_kernel) in [(24, 48, 3, false), (22, 64, 4, false), (20, 64, 4, true)] {
        let inputs = format!(
            "%x: tensor<[37, {k}], bf16>, param %w: tensor<[{n}, {k}], f4E2M1FN>, \
             param %sw: tensor<[{n}, {blocks}], f8E4M3FN, blocked>"
        );
        let body = format!(
            "  %y = block_dequantize %w, %sw {{block = 16}} : tensor<[{n}, {k}], bf16>
  %d = mma %x, %y : tensor<[37, {n}], f32>
  return %d"
        );
        let normalized = normalized_for(&function(&inputs, &body), true, &with_kernels());
        assert_eq!(normalized.is_changed(), has_kernel, "N = {n}, K = {k}");
    }
}

#[test]
fn two_dequantized_operands_of_one_format_need_no_weight_only_product() {
    let inputs = format!(
        "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 4], f8E4M3FN, blocked>, {}",
        WEIGHT.replace("linear", "blocked")
    );
    let body = format!(
        "  %x = block_dequantize %a, %sa {{block = 16}} : tensor<[37, 64], bf16>\n{}",
        dequantized("bf16", "%x", "f32")
    );
    check(
        &function(&inputs, &body),
        &with_kernels(),
        expect![[r#"
        %d = scaled_mma %a, %sa, %w, %sw {block = 16} : tensor<[37, 24], f32>  ; from x y d: mma-of-dequantized-is-scaled-mma
    "#]],
    );
}

#[test]
fn without_a_kernel_a_weight_only_product_is_an_mma_of_the_dequantized_weight() {
    let body = "  %p = scaled_mma %x, %w, %sw {block = 16} : tensor<[37, 24], f32>
  %q = scaled_mma %x, %w, %sw, alpha = %g, c = %c {block = 16} : tensor<[37, 24], f16>
  return %p, %q";
    for element in ["bf16", "f16"] {
        let program = function(&inputs(element), body);
        let blocked = function(&inputs(element).replace("linear", "blocked"), body);
        assert!(!normalized_for(&blocked, true, &with_kernels()).is_changed());
        let normalized = normalized_for(&program, false, &without_kernels());
        check_same_bits(&program, &normalized, 12, &SymbolValues::default());
    }
    check(
        &function(&inputs("bf16"), body),
        &without_kernels(),
        expect![[r#"
        %w.dequantized = block_dequantize %w, %sw {block = 16} : tensor<[24, 64], bf16>  ; inserted: weight-only-without-kernel-is-mma
        %p = mma %x, %w.dequantized : tensor<[37, 24], f32>  ; from p: weight-only-without-kernel-is-mma
        %q.product = mma %x, %w.dequantized : tensor<[37, 24], f32>  ; from q: weight-only-without-kernel-is-mma
        %q.mul = mul %q.product, %g : tensor<[37, 24], f32>  ; from q: weight-only-without-kernel-is-mma
        %q.add = add %q.mul, %c : tensor<[37, 24], f32>  ; from q: weight-only-without-kernel-is-mma
        %q = convert %q.add : tensor<[37, 24], f16>  ; from q: weight-only-without-kernel-is-mma
    "#]],
    );
    // The sum of beta · C and the product is rounded once, which no other op does.
    let beta =
        "  %d = scaled_mma %x, %w, %sw, c = %c, beta = %g {block = 16} : tensor<[37, 24], f32>\n  return %d";
    assert!(!normalized_for(&function(&inputs("bf16"), beta), true, &without_kernels()).is_changed());
    // The CPU has no library either.
    let cpu = capabilities("cpu").expect("a target");
    assert!(!normalized_for(&function(&inputs("bf16"), body), true, &cpu).is_changed());
}

#[test]
fn powers_of_two_beyond_bf16_stay_unless_contracted() {
    let body = "  %d = scaled_mma %x, %w, %sw {block = 32} : tensor<[37, 24], f32>\n  return %d";
    check_contract(
        &function(MX, body),
        &without_kernels(),
        expect![[r#"
        %w.dequantized = block_dequantize %w, %sw {block = 32} : tensor<[24, 64], bf16>  ; inserted: mx-weight-only-without-kernel-is-mma (contract)
        %d = mma %x, %w.dequantized : tensor<[37, 24], f32>  ; from d: mx-weight-only-without-kernel-is-mma (contract)
    "#]],
    );
    // bf16 holds every code of FP6, too.
    for six in ["f6E2M3FN", "f6E3M2FN"] {
        let program = function(&MX.replace("f4E2M1FN", six), body);
        assert!(!normalized_for(&program, false, &without_kernels()).is_changed());
        let normalized = normalized_for(&program, true, &without_kernels());
        assert!(normalized.is_changed());
        check_same_bits(&program, &normalized, 12, &SymbolValues::default());
    }
    let f16 = MX.replace("bf16", "f16");
    assert!(!normalized_for(&function(&f16, body), true, &without_kernels()).is_changed());
}
