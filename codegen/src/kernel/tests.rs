//! The template against its context, and what a source may depend on.

use std::collections::BTreeSet;

use fourfold_ir::{BlockFormat, ElementType, UnaryKind, text};

use super::emit::{context, template_variables};
use super::*;
use crate::capabilities;
use crate::configuration::{Cluster, TileScheduler};

fn spec(target: &str, steps: Vec<Step>, c: Option<ElementType>) -> KernelSpec {
    spec_of(BlockFormat::NVFP4, target, steps, c)
}

fn spec_of(format: BlockFormat, target: &str, steps: Vec<Step>, c: Option<ElementType>) -> KernelSpec {
    let target = crate::target(target).expect("a known target");
    let family = defaults::family(target.name).expect("a Blackwell");
    let epilogue = Epilogue { alpha: true, c, beta: c.is_some(), accumulator: ElementType::BF16, steps };
    let configuration = defaults::defaults(family, format, CutlassVersion::PINNED)[0]
        .with_elements(epilogue.c, epilogue.output());
    KernelSpec { target, configuration, epilogue }
}

fn activation(kind: UnaryKind) -> Step {
    Step { kind: StepKind::Activation(kind), element: ElementType::F32 }
}

#[test]
fn the_template_has_exactly_the_variables_of_its_context() {
    let context = serde_json::to_value(context(&spec("sm_100a", vec![activation(UnaryKind::Gelu)], None)))
        .expect("the context is an object");
    let fields: BTreeSet<String> = context.as_object().expect("an object").keys().cloned().collect();
    assert_eq!(template_variables(), fields);
}

#[test]
fn every_activation_is_defined_once_with_what_it_calls() {
    for kind in UnaryKind::ALL {
        let source = emit(&spec("sm_120a", vec![activation(*kind), activation(*kind)], None)).text;
        let definition = format!("float fn_{}(float x) {{", kind.name());
        assert_eq!(source.matches(&definition).count(), 1, "{kind}");
        assert_eq!(source.matches(&format!("v = fn_{}(v);", kind.name())).count(), 2, "{kind}");
        for helper in ["exp_negative", "logistic_product"] {
            let defined = source.matches(&format!("float {helper}(")).count();
            let mentioned = source.matches(&format!("{helper}(")).count();
            assert_eq!(defined, usize::from(0 < mentioned), "{helper} of {kind}");
        }
    }
}

#[test]
fn each_narrowing_that_a_program_states_is_in_the_source() {
    let narrow = |element| Step { kind: StepKind::Activation(UnaryKind::Relu), element };
    let source = emit(&spec("sm_100a", vec![narrow(ElementType::BF16), narrow(ElementType::F16)], None)).text;
    let body: Vec<&str> = source.lines().map(str::trim).filter(|line| line.starts_with("v = ")).collect();
    let expected = [
        "v = __fmul_rn(alpha[i], v);",
        "v = round_bf16(v);",
        "v = fn_relu(v);",
        "v = round_bf16(v);",
        "v = fn_relu(v);",
    ];
    assert_eq!(body, expected, "the last rounding is the conversion to D");
}

#[test]
fn equal_specifications_give_equal_bytes_and_different_ones_different_hashes() {
    let steps = || vec![activation(UnaryKind::Silu)];
    let one = emit(&spec("sm_100a", steps(), None));
    assert_eq!(one, emit(&spec("sm_100a", steps(), None)));
    let others = [
        spec("sm_103a", steps(), None),
        spec("sm_100a", steps(), Some(ElementType::F16)),
        spec("sm_120a", steps(), None),
        spec_of(BlockFormat::MXFP4, "sm_100a", steps(), None),
    ];
    for other in others {
        assert_ne!(one.hash, emit(&other).hash);
    }
}

/// The format is in the name, the header, the signature, the operands' type, the scales' type, the bound on their bytes and the
/// offset of one, and nowhere else but in a schedule that names it.
#[test]
fn nothing_but_the_format_differs_between_formats() {
    for target in ["sm_100a", "sm_121a"] {
        let source = |format| emit(&spec_of(format, target, vec![activation(UnaryKind::Gelu)], None));
        let (nv, mx) = (source(BlockFormat::NVFP4), source(BlockFormat::MXFP4));
        assert!(nv.kernel.starts_with("nvfp4_scaled_mm_") && mx.kernel.starts_with("mxfp4_scaled_mm_"));
        let translated = nv
            .text
            .replace(&nv.hash, &mx.hash)
            .replace("nvfp4_scaled_mm", "mxfp4_scaled_mm")
            .replace("\"signature\\\":\\\"nvfp4 ", "\"signature\\\":\\\"mxfp4 ")
            .replace("ue4m3, one per 16 of K", "ue8m0, one per 32 of K")
            .replace("nv_float4_t", "mx_float4_t")
            .replace("Nvf4Sm100", "Mxf4Sm100")
            .replace("float_ue4m3_t", "float_ue8m0_t")
            .replace("(problem.k + 63) / 64", "(problem.k + 127) / 128")
            .replace("static_cast<int>(block) * 16", "static_cast<int>(block) * 32");
        assert_eq!(translated, mx.text);
        assert!(!mx.text.contains("ue4m3") && !mx.text.contains("nv_float4"));
    }
}

#[test]
fn names_of_a_program_never_reach_the_source() {
    let program = "fir 1
func @secret.function(
    %secret.a: tensor<[M.secret, 64], f4E2M1FN>, %secret.sa: tensor<[M.secret, 4], f8E4M3FN, blocked>,
    %secret.b: tensor<[24, 64], f4E2M1FN>, %secret.sb: tensor<[24, 4], f8E4M3FN, blocked>, %secret.bias: tensor<[24], f16>
) {
  %secret.d = scaled_mma %secret.a, %secret.sa, %secret.b, %secret.sb {block = 16} : tensor<[M.secret, 24], f32>
  %secret.y = add %secret.d, %secret.bias : tensor<[M.secret, 24], f32>
  return %secret.y
}
";
    let (program, _) = text::load(program).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    for name in ["sm_100a", "sm_121a"] {
        let partition = fourfold_scheduler::partition(&program, &capabilities(name).expect("a known target"));
        let (_, plan) = partition.kernels().next().expect("one kernel");
        let target = crate::target(name).expect("a known target");
        let (spec, _) = specify(&program, plan, target, CutlassVersion::PINNED).expect("a Blackwell");
        let source = emit(&spec);
        assert!(!source.text.contains("secret") && !source.kernel.contains("secret"));
        assert_eq!(spec.epilogue.bias(), Some(ElementType::F16));
    }
}

#[test]
fn a_kernel_says_what_it_reads_and_writes() {
    let bias = Step { kind: StepKind::ColumnBias(ElementType::F16), element: ElementType::F32 };
    let full = spec("sm_120a", vec![bias, activation(UnaryKind::Gelu)], Some(ElementType::BF16));
    assert_eq!(full.signature(), "nvfp4 alpha c=bf16 beta bias=f16 d=f32");
    let mut bare = spec_of(BlockFormat::MXFP4, "sm_100a", Vec::new(), None);
    bare.epilogue.alpha = false;
    assert_eq!(bare.signature(), "mxfp4 d=bf16");
    for spec in [full, bare] {
        let text = emit(&spec).text;
        assert_eq!(text.matches(&format!("\\\"signature\\\":\\\"{}\\\"", spec.signature())).count(), 1);
    }
}

#[test]
fn a_kernel_knows_whether_it_is_emulated() {
    let source = emit(&spec("sm_120a", Vec::new(), None));
    assert_eq!(source.text.matches("#ifdef FOURFOLD_EMULATED\n").count(), 1);
    let prelude = emulate(&source).and_then(|source| source.prelude).expect("the family can be emulated");
    assert!(prelude.contains("\n#define FOURFOLD_EMULATED"));
}

/// Callers say 0 for the clusters that fit a device. The scheduler of the sm_100 family takes one cluster per tile,
/// whatever the device has; only the static and the stream-K ones would ask, and only for clusters of several blocks.
#[test]
fn no_kernel_asks_how_many_clusters_fit_a_device() {
    for target in ["sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
        let family = defaults::family(target).expect("a Blackwell");
        for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
            let configurations = defaults::defaults(family, format, CutlassVersion::PINNED);
            assert!(!configurations.is_empty());
            for configuration in configurations {
                let single = configuration.cluster == Cluster::Static([1, 1]);
                assert!(
                    single || configuration.scheduler == TileScheduler::Default,
                    "{}",
                    configuration.name()
                );
            }
        }
    }
}
