//! Every program runs on a GPU without the fallback, since calls with CUDA tensors do not fall back.

use fourfold::ir::load;
use fourfold::scheduler::Tier;
use fourfold::{Backend, Options};

use super::{
    Alpha, Form, Format, Forms, GroupedMm, Left, Quantized, ScaledMm, ScaledMmByM, copy_transpose,
    dequantize, quantize, quantize_dynamic, reduce, softmax, softmax_backward,
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

/// A product of 256 columns and 512 elements of K. Of the formats, the first is A's, `f16` or `bf16` for no scales.
fn product(
    formats: (&str, &str),
    leading: &[String],
    batch: &[String],
    activation: &str,
    bias: Option<&'static str>,
) -> ScaledMm {
    let a = match formats.0 {
        "f16" => Left::Dense("f16"),
        "bf16" => Left::Dense("bf16"),
        name => Left::Blocks { format: Format::named(name).expect("a format"), swizzled: true },
    };
    ScaledMm {
        a,
        format: Format::named(formats.1).expect("a format"),
        leading: leading.to_vec(),
        batch: batch.to_vec(),
        n: 256,
        k: 512,
        swizzled_b: bias.is_none(),
        alpha: match bias {
            None => Alpha::Absent,
            Some("f32") => Alpha::Columns,
            Some(_) => Alpha::Number,
        },
        bias,
        activation: activation.to_owned(),
        out: "bf16",
    }
}

/// Formats of A and B that have a kernel on every target.
const EVERYWHERE: &[(&str, &str)] = &[
    ("nvfp4", "nvfp4"),
    ("mxfp4", "mxfp4"),
    ("mxfp8", "mxfp8"),
    ("mxfp8_e5m2", "mxfp8_e5m2"),
    ("mxfp8", "mxfp4"),
    ("mxfp8_e5m2", "mxfp4"),
];
/// Those that have one on Hopper only.
const ON_HOPPER: &[(&str, &str)] = &[("bf16", "nvfp4"), ("f16", "nvfp4"), ("bf16", "mxfp4")];

#[test]
fn products_are_one_kernel() {
    let mut checked = 0;
    for formats in EVERYWHERE.iter().chain(ON_HOPPER) {
        for (leading, batch) in [(strings(&["M"]), strings(&[])), (strings(&["3", "M"]), strings(&["3"]))] {
            for (activation, bias) in [("none", None), ("gelu", Some("bf16")), ("relu", Some("f32"))] {
                let product = product(*formats, &leading, &batch, activation, bias);
                let out = if formats.1 == "mxfp8_e5m2" { "mxfp8" } else { formats.1 };
                for quantized in [None, Some(quantized(out, true, out == "nvfp4"))] {
                    let program = product.program(quantized.as_ref()).expect("a program");
                    for (target, tiers) in tiers(&program) {
                        if target != "sm_90a" && ON_HOPPER.contains(formats) {
                            // Dequantized once where that is exact.
                            let on_device = !tiers.contains(&Tier::Fallback);
                            assert_eq!(on_device, formats.1 == "nvfp4", "{target}: {tiers:?}\n{program}");
                            continue;
                        }
                        let kernels = tiers.iter().filter(|tier| **tier == Tier::Kernel).count();
                        assert_eq!(kernels, 1, "{target}\n{program}");
                        assert!(!tiers.contains(&Tier::Fallback), "{target}: {tiers:?}\n{program}");
                    }
                    checked += 1;
                }
            }
        }
    }
    assert_eq!(checked, 12 * (EVERYWHERE.len() + ON_HOPPER.len()));
}

#[test]
fn grouped_products_are_one_kernel() {
    for (a, b) in
        [("nvfp4", "nvfp4"), ("mxfp4", "mxfp4"), ("mxfp8", "mxfp4"), ("bf16", "nvfp4"), ("bf16", "mxfp4")]
    {
        let format = Format::named(b).expect("a format");
        let left = match a {
            "bf16" => Left::Dense("bf16"),
            name => Left::Blocks { format: Format::named(name).expect("a format"), swizzled: false },
        };
        for (swizzled_b, alphas, bias, activation) in [
            (true, None, None, "none"),
            (false, Some(1), Some("bf16"), "silu"),
            (true, Some(8), Some("f32"), "none"),
        ] {
            let activation = activation.to_owned();
            let (experts, n, k) = (8, 256, 512);
            let product = GroupedMm {
                a: left,
                format,
                experts,
                n,
                k,
                swizzled_b,
                alphas,
                bias,
                activation,
                out: "bf16",
            };
            let program = product.program().expect("a program");
            for (target, tiers) in tiers(&program) {
                // Blackwell's kernels take no A of 16 bits.
                let expected = usize::from(target == "sm_90a" || a != "bf16");
                let kernels = tiers.iter().filter(|tier| **tier == Tier::Kernel).count();
                assert_eq!(kernels, expected, "{target}: {tiers:?}\n{program}");
                assert_eq!(tiers.contains(&Tier::Fallback), expected == 0, "{target}: {tiers:?}\n{program}");
            }
        }
    }
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
                    quantized("mxfp8", swizzled, false),
                    quantized("mxfp8_e5m2", swizzled, false),
                ] {
                    assert_on_device(&quantize(leading, 64, element, &quantized).expect("a program"));
                    let (format, has_scale) = (quantized.format, quantized.has_scale);
                    let program = dequantize(leading, 64, format, swizzled, has_scale, element);
                    assert_on_device(&program.expect("a program"));
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

/// The choice is the only op besides those of each form alone, whose products have the same text.
#[test]
fn products_by_m_have_the_forms_that_they_choose_between() {
    let of = |first, ends: &[u32], is_static, bias, out| {
        let forms = Forms { first, ends: ends.to_vec() };
        let product = ScaledMmByM { element: "bf16", n: 256, k: 512, is_static, bias, forms, out };
        product.program().expect("a program")
    };
    for (is_static, bias, out) in
        [(true, None, "bf16"), (false, Some("f16"), "f16"), (false, None, "f32"), (true, Some("f32"), "f32")]
    {
        let [dense, quantized] = [Form::W4A16, Form::W4A4].map(|form| of(form, &[], is_static, bias, out));
        assert!(!dense.contains("block_quantize") && !quantized.contains("scaled_mma %a"));
        for (first, ends, operands) in [
            (Form::W4A16, &[64][..], "choose %W4A16, %W4A4 {axis = 0, ends = [64]}"),
            (Form::W4A4, &[1, 9][..], "choose %W4A4, %W4A16, %W4A4 {axis = 0, ends = [1, 9]}"),
        ] {
            let both = of(first, ends, is_static, bias, out);
            assert_eq!(both.matches("choose").count(), 1);
            assert!(both.contains(operands), "{both}");
            let ops = dense.lines().chain(quantized.lines()).filter(|line| line.contains(" = "));
            for line in ops {
                assert!(both.contains(line), "{line}\n{both}");
            }
            let (_, tiers) = &tiers(&both)[0];
            assert!(!tiers.contains(&Tier::Fallback), "{tiers:?}\n{both}");
        }
        // Blackwell's kernels quantize.
        assert_on_device(&quantized);
    }
}
