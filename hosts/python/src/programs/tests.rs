//! Every program runs on a GPU without the fallback, since calls with CUDA tensors do not fall back.

use fourfold::ir::load;
use fourfold::scheduler::Tier;
use fourfold::{Backend, Options};

use super::{
    Alpha, Format, Quantized, ScaledMm, copy_transpose, quantize, quantize_dynamic, reduce, softmax,
    softmax_backward,
};

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn quantized(format: &str, swizzled: bool, has_scale: bool) -> Quantized {
    let format = Format::named(format).expect("a format");
    Quantized { format, swizzled, has_scale, rounding: "floor".to_owned() }
}

/// The tiers of a program's segments, for each target.
fn tiers(program: &str) -> Vec<(&'static str, Vec<Tier>)> {
    let one = |target| {
        let mut options = Options::default().target(target);
        options.device = "none".parse().expect("a choice");
        let backend = Backend::new(&options).expect("a backend");
        let (loaded, _) = load(program).unwrap_or_else(|errors| panic!("{program}\n{errors:?}"));
        let planned = backend.plan(loaded);
        (target, planned.partition().segments.iter().map(|segment| segment.tier()).collect())
    };
    ["sm_90a", "sm_100a", "sm_120a"].map(one).to_vec()
}

fn assert_on_device(program: &str) {
    for (target, tiers) in tiers(program) {
        assert!(!tiers.contains(&Tier::Fallback), "{target}: {tiers:?}\n{program}");
    }
}

#[test]
fn products_are_one_kernel() {
    let mut checked = 0;
    for format in ["nvfp4", "mxfp4"] {
        for (leading, batch) in [(strings(&["M"]), strings(&[])), (strings(&["3", "M"]), strings(&["3"]))] {
            for (activation, bias) in [("none", None), ("gelu", Some("bf16")), ("relu", Some("f32"))] {
                let product = ScaledMm {
                    format: Format::named(format).expect("a format"),
                    leading: leading.clone(),
                    batch: batch.clone(),
                    n: 256,
                    k: 512,
                    swizzled_a: true,
                    swizzled_b: bias.is_none(),
                    alpha: match bias {
                        None => Alpha::Absent,
                        Some("f32") => Alpha::Columns,
                        Some(_) => Alpha::Number,
                    },
                    bias,
                    activation: activation.to_owned(),
                    out: "bf16",
                };
                for quantized in [None, Some(quantized(format, true, format == "nvfp4"))] {
                    let program = product.program(quantized.as_ref()).expect("a program");
                    for (target, tiers) in tiers(&program) {
                        let kernels = tiers.iter().filter(|tier| **tier == Tier::Kernel).count();
                        assert_eq!(kernels, 1, "{target}\n{program}");
                        assert!(!tiers.contains(&Tier::Fallback), "{target}: {tiers:?}\n{program}");
                    }
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 24);
}

#[test]
fn other_ops_are_on_the_device() {
    let (leading, batch) = (strings(&["M"]), strings(&["3", "M"]));
    for element in ["f32", "bf16", "f16"] {
        for leading in [&leading, &batch] {
            for swizzled in [false, true] {
                for quantized in [
                    quantized("nvfp4", swizzled, true),
                    quantized("nvfp4", swizzled, false),
                    quantized("mxfp4", swizzled, false),
                ] {
                    assert_on_device(&quantize(leading, 64, element, &quantized).expect("a program"));
                }
                assert_on_device(&quantize_dynamic(leading, 64, element, swizzled).expect("a program"));
            }
        }
        let extents = [5, 7, 33];
        for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]] {
            for kind in ["sum", "mean", "max", "min", "amax"] {
                assert_on_device(&reduce(&extents, element, kind, axes, true).expect("a program"));
                assert_on_device(&reduce(&extents, element, kind, axes, false).expect("a program"));
            }
        }
        for axis in 0..3 {
            assert_on_device(&softmax(&extents, element, axis));
            assert_on_device(&softmax_backward(&extents, element, axis));
        }
        for permutation in [[1, 0, 2], [2, 1, 0], [0, 2, 1], [1, 2, 0], [0, 1, 2]] {
            assert_on_device(&copy_transpose(&extents, element, &permutation));
        }
    }
}
