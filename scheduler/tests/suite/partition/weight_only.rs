//! Kernels of a 16-bit A, which has no scales.

use expect_test::expect;
use fourfold_ir::ElementType::{BF16, F4E2M1FN, F6E3M2FN, F8E4M3FN, F8E8M0FNU, F16, F32};
use fourfold_ir::{
    BlockFormat, Builder, Capabilities, Dim, ElementType, FormatCapability, Module, ScaleLayout,
    ScaledMmaOptions, TensorType, UnaryKind,
};
use fourfold_scheduler::{Plan, ReasonCode};

use super::support::*;

fn without_weight_only() -> Capabilities {
    let mut capabilities = blackwell();
    capabilities.formats.retain(|rules| rules.format.a == rules.format.b && rules.format.b == F4E2M1FN);
    capabilities
}

/// The capabilities of [`blackwell`], with kernels for a bf16 A beside NVFP4 whose D has few tiles.
fn with_weight_only() -> Capabilities {
    let mut capabilities = without_weight_only();
    let nvfp4 = capabilities.format(BlockFormat::NVFP4).expect("the target has nvfp4").clone();
    let mut weight_only = FormatCapability { format: BlockFormat::NVFP4.weight_only(BF16), ..nvfp4 };
    weight_only.grid.max_tiles = 1 << 24;
    capabilities.formats.push(weight_only);
    capabilities
}

/// A relu of `[lead.., m, 96]` times an NVFP4 matrix of 72 rows, quantized on request.
fn module(a: ElementType, lead: &[u64], m: Option<u64>, layout: ScaleLayout, quantized: bool) -> Module {
    let mut builder = Builder::new("weight_only");
    let m = m.map_or_else(|| builder.symbol("M"), Dim::fixed);
    let shape: Vec<Dim> = lead.iter().map(|dim| Dim::fixed(*dim)).chain([m, Dim::fixed(96)]).collect();
    let x = builder.input("x", TensorType::new(shape, a));
    let w = builder.param("w", tensor(&[96, 96], F4E2M1FN));
    let scales = TensorType::scales(vec![Dim::fixed(96), Dim::fixed(6)], F8E4M3FN, layout);
    let sfw = builder.param("sfw", scales);
    let alpha = builder.input("alpha", tensor(&[], F32));
    let options = ScaledMmaOptions { alpha: Some(alpha), ..ScaledMmaOptions::default() };
    let d = builder.scaled_mma("d", x, None, w, sfw, 16, F32, options);
    let y = builder.unary("y", UnaryKind::Relu, d);
    if !quantized {
        return builder.finish(&[y]);
    }
    let one = builder.input("g", tensor(&[], F32));
    let [codes, scales] = quantize(&mut builder, "y", y, one);
    builder.finish(&[codes, scales])
}

#[test]
fn the_plan_has_no_scales_of_a_and_bounds_the_rows_by_the_grid() {
    let (program, partition) =
        planned(module(BF16, &[], None, ScaleLayout::Blocked, false), &with_weight_only());
    expect![[r#"
        0 kernel bf16 x nvfp4 1xMx96x96 f32 -> %y
            %y = relu(acc) f32
          %x %w %sfw %alpha -> %y
    "#]]
    .assert_eq(&text(&program, &partition));
    let plan = partition.kernels().next().expect("a kernel").1.clone();
    assert_eq!(plan.sfa, None);
    let plan = Plan::from(plan);
    let roles: Vec<String> = plan.roles().operands.into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["a", "b", "sfb"]);
    assert_eq!(plan.signature(&program), "bf16 x nvfp4 alpha d=f32");
    // M = 2^31 - 1 would have more tiles than a launch computes; no scales of A bound it.
    expect![[r#"
        M = M <= 2147483647
        1 x M x 96 in 128x64 <= 16777216
        %x by 16
        %w by 16
        %sfw by 16
        %y by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
}

#[test]
fn a_batch_is_flattened_whatever_its_rows_unless_scales_of_d_are_padded() {
    let three = |m, quantized| module(BF16, &[3], Some(m), ScaleLayout::Blocked, quantized);
    let (program, partition) = planned(three(37, false), &with_weight_only());
    assert_eq!(partition.kernels().count(), 1, "{}", text(&program, &partition));
    assert_eq!(reason(three(128, true), &with_weight_only(), "y.q"), None);
    let (code, message) = reason(three(37, true), &with_weight_only(), "y.q").expect("the scales are padded");
    assert_eq!(code, ReasonCode::UnsupportedEpilogueOp);
    expect!["%y.q, %y.s = block_quantize: the scales of 3 matrices of 37 rows are padded separately, and the kernel computes one matrix; expected M a multiple of 128"].assert_eq(&message);
}

#[test]
fn a_format_without_kernels_and_linear_scales_have_their_reasons() {
    let of = |a, layout| reason(module(a, &[], Some(45), layout, false), &with_weight_only(), "d");
    let (code, message) = of(F16, ScaleLayout::Blocked).expect("no kernel has an f16 A");
    assert_eq!(code, ReasonCode::TargetLacksFormat);
    expect!["%d = scaled_mma: the operands are f16 x nvfp4; expected a format of sm_100a, which has nvfp4, mxfp4, bf16 x nvfp4"].assert_eq(&message);
    let (code, message) = of(BF16, ScaleLayout::Linear).expect("kernels read blocked scales");
    assert_eq!(code, ReasonCode::ScaleLayout);
    expect!["%d = scaled_mma: %sfw, the scales of B, are linear; expected blocked"].assert_eq(&message);
    assert_eq!(of(BF16, ScaleLayout::Blocked), None);
}

#[test]
fn a_target_without_weight_only_kernels_names_the_quantized_product() {
    let nvfp4 = module(BF16, &[], Some(45), ScaleLayout::Blocked, false);
    let (code, message) = reason(nvfp4, &without_weight_only(), "d").expect("no kernel has a 16-bit A");
    assert_eq!(code, ReasonCode::WeightOnly);
    expect!["%d = scaled_mma: A is bf16, and the kernels of sm_100a take a block-scaled A; expected a quantized A: nvfp4 (W4A4)"].assert_eq(&message);
    let mx = |element, k| {
        let mut builder = Builder::new("mx");
        let x = builder.input("x", tensor(&[45, k], F16));
        let w = builder.param("w", tensor(&[72, k], element));
        let scales = vec![Dim::fixed(72), Dim::fixed(k / 32)];
        let sfw = builder.param("sfw", TensorType::scales(scales, F8E8M0FNU, ScaleLayout::Blocked));
        let d = builder.scaled_mma("d", x, None, w, sfw, 32, F32, ScaledMmaOptions::default());
        builder.finish(&[d])
    };
    for target in ["sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
        let capabilities = fourfold_codegen::capabilities(target).expect("a target");
        for (element, expected) in
            [(F4E2M1FN, "mxfp8 x mxfp4 (W4A8)"), (F6E3M2FN, "mxfp8 x mxfp6_e3m2 (W6A8)")]
        {
            let (code, message) =
                reason(mx(element, 128), &capabilities, "d").expect("no kernel has a 16-bit A");
            assert_eq!(code, ReasonCode::WeightOnly);
            assert_eq!(
                message,
                format!(
                    "%d = scaled_mma: A is f16, and the kernels of {target} take a block-scaled A; expected a \
                     quantized A: {expected}"
                )
            );
        }
    }
    // No kernel of these has an A of FP8.
    let (code, _) = reason(mx(F4E2M1FN, 128), &without_weight_only(), "d").expect("no kernel has a 16-bit A");
    assert_eq!(code, ReasonCode::TargetLacksFormat);
}
