//! Single ops: their values, the functions of epilogues, and operands that do not fit.

mod common;

use common::{
    K, Matrix, N, bias, both, cpu, dequantize, exact_activations, floats, fourfold, rewrite, run, start,
};
use fourfold_tract::{BlockDequantize, BlockQuantize, Error, Fate, Format, ScaledMm};
use tract_core::internal::*;
use tract_core::ops::cast::cast;
use tract_core::ops::math::{abs, add, div, exp, max, min, mul, neg, recip, rsqrt, sqrt, square, sub, tanh};
use tract_core::ops::nn::gelu_approximate::gelu_approximate;
use tract_core::ops::nn::gelu_exact::gelu_exact;
use tract_core::ops::nn::sigmoid;
use tract_core::ops::nn::silu::silu;

#[test]
fn a_product_equals_its_values_in_f64() -> TractResult<()> {
    for (format, seed) in [(Format::Nvfp4, 1), (Format::Mxfp4, 2)] {
        let (a, b) = (Matrix::random(format, seed, 5, 96), Matrix::random(format, seed + 10, 24, 96));
        let inputs = [&a.codes, &a.scales, &b.codes, &b.scales].map(|tensor| tensor.clone().into_tvalue());
        let op = ScaledMm { format, output: f32::datum_type() };
        let got = op.eval(&EvalContext::out_of_plan(), inputs.into_iter().collect())?;
        let (a, b) = (a.values(), b.values());
        for (index, got) in floats(&got[0]).into_iter().enumerate() {
            let (row, column) = (index / 24, index % 24);
            let want: f64 = (0..96).map(|k| a[row * 96 + k] * b[column * 96 + k]).sum();
            assert_eq!(got, want as f32, "{format:?} ({row}, {column})");
        }
    }
    Ok(())
}

#[test]
fn a_dequantization_equals_its_values() -> TractResult<()> {
    for format in [Format::Nvfp4, Format::Mxfp4] {
        let matrix = Matrix::random(format, 3, 7, 64);
        let inputs = tvec!(matrix.codes.clone().into_tvalue(), matrix.scales.clone().into_tvalue());
        let got = BlockDequantize { format }.eval(&EvalContext::out_of_plan(), inputs)?;
        assert_eq!(*got[0], matrix.dense());
    }
    Ok(())
}

#[test]
fn exact_activations_survive_quantization() -> TractResult<()> {
    let x = exact_activations(5, 9, K);
    let inputs = tvec!(x.clone().into_tvalue(), tensor0(1f32).into_tvalue());
    let got = BlockQuantize { format: Format::Nvfp4 }.eval(&EvalContext::out_of_plan(), inputs)?;
    let values = dequantize(Format::Nvfp4, &got[0], &got[1]);
    assert_eq!(floats(&x), values.iter().map(|value| *value as f32).collect::<Vec<_>>());
    let inputs = tvec!(x.clone().into_tvalue());
    let got = BlockQuantize { format: Format::Mxfp4 }.eval(&EvalContext::out_of_plan(), inputs)?;
    assert_eq!((got[0].shape(), got[1].shape()), (&[9, K / 2][..], &[9, K / 32][..]));
    Ok(())
}

#[test]
fn functions_are_part_of_the_segment() -> TractResult<()> {
    type Function = Box<dyn Fn(&mut TypedModel, OutletId) -> TractResult<OutletId>>;
    fn unary<O: Into<Box<dyn TypedOp>> + Clone + 'static>(op: O) -> Function {
        Box::new(move |model, x| Ok(model.wire_node("f", op.clone(), &[x])?[0]))
    }
    fn binary(op: tract_core::ops::binary::TypedBinOp, left: bool) -> Function {
        Box::new(move |model, x| {
            let row = model.add_const("row", bias(21, N))?;
            let inputs = if left { [x, row] } else { [row, x] };
            Ok(model.wire_node("f", op.clone(), &inputs)?[0])
        })
    }
    // The largest error of tract's own approximation and Fourfold's, relative to 1 or the value.
    let cases: Vec<(&str, f64, Function)> = vec![
        ("add", 0.0, binary(add(), true)),
        ("sub", 0.0, binary(sub(), true)),
        ("sub from", 0.0, binary(sub(), false)),
        ("mul", 0.0, binary(mul(), true)),
        ("div", 1.2e-7, binary(div(), false)),
        ("max", 0.0, binary(max(), true)),
        ("min", 0.0, binary(min(), true)),
        ("neg", 0.0, unary(neg())),
        ("abs", 0.0, unary(abs())),
        ("square", 0.0, unary(square())),
        ("exp", 5e-7, unary(exp())),
        ("tanh", 1e-6, unary(tanh())),
        ("sigmoid", 1e-6, unary(sigmoid())),
        ("silu", 1e-6, unary(silu())),
        ("gelu", 1e-6, unary(gelu_exact())),
        ("gelu_tanh", 1e-6, unary(gelu_approximate(false))),
        (
            "sqrt of abs",
            1.2e-7,
            Box::new(|model, x| {
                let x = model.wire_node("f.abs", abs(), &[x])?;
                Ok(model.wire_node("f", sqrt(), &x)?[0])
            }),
        ),
        (
            "rsqrt of abs + 1",
            2.4e-7,
            Box::new(|model, x| {
                let x = model.wire_node("f.abs", abs(), &[x])?;
                let one = model.add_const("one", tensor2(&[[1f32]]))?;
                let x = model.wire_node("f.one", add(), &[x[0], one])?;
                Ok(model.wire_node("f", rsqrt(), &x)?[0])
            }),
        ),
        (
            "reciprocal of square + 1",
            1.2e-7,
            Box::new(|model, x| {
                let x = model.wire_node("f.square", square(), &[x])?;
                let one = model.add_const("one", tensor2(&[[1f32]]))?;
                let x = model.wire_node("f.one", add(), &[x[0], one])?;
                Ok(model.wire_node("f", recip(), &x)?[0])
            }),
        ),
        ("cast", 0.0, unary(cast(DatumType::F16))),
    ];
    for (name, bound, function) in cases {
        let mut start = start(f32::datum_type())?;
        let out = function(&mut start.model, start.product)?;
        start.model.select_output_outlets(&[out])?;
        let report = rewrite(&start.model)?;
        let inside = report.nodes.iter().filter(|node| node.fate == Fate::Segment(0)).count();
        assert!(inside >= 2 && report.segments.len() == 1, "{name}\n{report}");
        let (got, want) = both(&start.model, 9)?;
        let distinct: std::collections::BTreeSet<u32> = want.iter().map(|value| value.to_bits()).collect();
        assert!(distinct.len() > 50, "{name}: {} distinct values", distinct.len());
        for (got, want) in got.into_iter().zip(want) {
            let error = f64::from(got - want).abs() / f64::from(want.abs()).max(1.0);
            assert!(error <= bound || got == want, "{name}: {got}, not {want}: {error:e}");
        }
    }
    Ok(())
}

#[test]
fn f16_results_and_biases_are_rounded_as_tract_rounds_them() -> TractResult<()> {
    let mut start = start(f16::datum_type())?;
    let row = bias(9, N).cast_to_dt(f16::datum_type())?.into_owned();
    let row = start.model.add_const("row", row)?;
    let out = start.model.wire_node("out", add(), &[start.product, row])?;
    start.model.select_output_outlets(&out)?;
    let report = rewrite(&start.model)?;
    assert_eq!(report.nodes.iter().filter(|node| node.fate == Fate::Segment(0)).count(), 2, "{report}");
    let (got, want) = both(&start.model, 7)?;
    assert_eq!(got, want);
    Ok(())
}

#[test]
fn operands_that_do_not_fit_are_typed_errors() -> TractResult<()> {
    let matrix = Matrix::random(Format::Nvfp4, 1, 8, 64);
    let byte = |shape: &[usize]| Tensor::zero::<u8>(shape).unwrap();
    let [codes, scales] = [(*matrix.codes).clone(), (*matrix.scales).clone()];
    let cases: Vec<(&str, Vec<Tensor>)> = vec![
        ("scales of another block", vec![codes.clone(), byte(&[8, 2]), codes.clone(), scales.clone()]),
        ("one scale too many", vec![codes.clone(), byte(&[8, 5]), codes.clone(), scales.clone()]),
        ("scales of other rows", vec![codes.clone(), byte(&[7, 4]), codes.clone(), scales.clone()]),
        ("another K", vec![codes.clone(), scales.clone(), byte(&[8, 16]), byte(&[8, 2])]),
        ("a vector", vec![byte(&[32]), byte(&[4]), codes.clone(), scales.clone()]),
        ("a batch of B", vec![codes.clone(), scales.clone(), byte(&[2, 8, 32]), byte(&[2, 8, 4])]),
        ("floats", vec![matrix.dense(), scales.clone(), codes.clone(), scales.clone()]),
        (
            "a wide alpha",
            vec![codes.clone(), scales.clone(), codes.clone(), scales.clone(), tensor1(&[1f32, 2.0])],
        ),
        ("three inputs", vec![codes.clone(), scales.clone(), codes.clone()]),
        ("six inputs", vec![codes.clone(); 6]),
    ];
    for (name, tensors) in cases {
        let mut model = TypedModel::default();
        let mut inputs = tvec!();
        for (index, tensor) in tensors.iter().enumerate() {
            let fact = tensor.datum_type().fact(tensor.shape());
            inputs.push(model.add_source(format!("in{index}"), fact)?);
        }
        let op = ScaledMm { format: Format::Nvfp4, output: f32::datum_type() };
        let error = model.wire_node("mm", op.clone(), &inputs).expect_err(name);
        let is_typed = matches!(error.downcast_ref::<Error>(), Some(Error::Op { op: "ScaledMm", .. }));
        assert!(is_typed, "{name}: {error:#}");
        // The op itself must not panic on them, either.
        let values = tensors.into_iter().map(IntoTValue::into_tvalue).collect();
        op.eval(&EvalContext::out_of_plan(), values).expect_err(name);
    }
    let mut model = TypedModel::default();
    let x = model.add_source("x", f32::fact([4, 40]))?;
    let g = model.add_source("g", f32::fact([1]))?;
    let quantize = BlockQuantize { format: Format::Nvfp4 };
    for inputs in [&[x][..], &[x, g][..], &[g, g][..], &[x, x][..]] {
        let error = model.wire_node("quantize", quantize.clone(), inputs).expect_err("K is 40");
        assert!(matches!(error.downcast_ref::<Error>(), Some(Error::Op { .. })), "{error:#}");
    }
    Ok(())
}

#[test]
fn tensors_that_do_not_fit_a_segment_are_errors() -> TractResult<()> {
    let mut start = start(f32::datum_type())?;
    start.model.select_output_outlets(&[start.product])?;
    let prepared = fourfold("sm_90a").prepare(start.model)?;
    for x in [Tensor::zero::<f32>(&[3, 32])?, Tensor::zero::<f64>(&[3, K])?, Tensor::zero::<f32>(&[K])?] {
        prepared.run(tvec!(x.into_tvalue())).expect_err("the input does not fit");
    }
    // It still runs.
    let x = exact_activations(2, 3, K);
    assert_eq!(prepared.run(tvec!(x.into_tvalue()))?[0].shape(), [3, N]);
    Ok(())
}

#[test]
fn bad_options_are_typed_errors_and_change_nothing() -> TractResult<()> {
    let mut start = start(f32::datum_type())?;
    start.model.select_output_outlets(&[start.product])?;
    let before = start.model.nodes().len();
    let error = fourfold("sm_1a").rewrite(&mut start.model).expect_err("no such target");
    assert!(matches!(error, Error::Fourfold(fourfold::Error::UnknownTarget { .. })), "{error}");
    assert_eq!(start.model.nodes().len(), before);
    Ok(())
}

#[test]
fn hostile_scales_give_what_tract_gives() -> TractResult<()> {
    // Every byte is a scale: zeros, subnormals, NaN.
    let mut model = TypedModel::default();
    let scales: Vec<u8> = (0..=255).collect();
    let codes = vec![0x2Au8; 64 * 32];
    let byte = u8::datum_type();
    let inputs = [byte.fact([64, 32]), byte.fact([64, 4]), byte.fact([8, 32]), byte.fact([8, 4])];
    let mut outlets = tvec!();
    for (index, fact) in inputs.into_iter().enumerate() {
        outlets.push(model.add_source(format!("in{index}"), fact)?);
    }
    let op = ScaledMm { format: Format::Nvfp4, output: f32::datum_type() };
    let out = model.wire_node("mm", op, &outlets)?;
    model.select_output_outlets(&out)?;
    let b = Matrix::random(Format::Nvfp4, 2, 8, 64);
    let a = [Tensor::from_shape(&[64, 32], &codes)?, Tensor::from_shape(&[64, 4], &scales)?];
    let given = [a[0].clone(), a[1].clone(), (*b.codes).clone(), (*b.scales).clone()];
    let got = run(&fourfold("sm_90a"), &model, &given)?;
    let want = run(cpu(), &model, &given)?;
    let bits = |tensor: &Tensor| floats(tensor).into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(&got[0]), bits(&want[0]));
    assert!(floats(&got[0]).iter().any(|value| value.is_nan()));
    Ok(())
}
