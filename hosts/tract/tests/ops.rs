//! Single ops: their values, the functions of epilogues, fan-out, products of dequantized matrices, and refusals.

mod common;

use common::{Matrix, bias, cpu, dequantize, exact_activations, floats, fourfold, run};
use fourfold_tract::{BlockDequantize, BlockQuantize, Error, Fate, Format, Report, ScaledMm, reason};
use tract_core::internal::*;
use tract_core::ops::cast::cast;
use tract_core::ops::einsum::EinSum;
use tract_core::ops::math::{abs, add, div, exp, max, min, mul, neg, recip, rsqrt, sqrt, square, sub, tanh};
use tract_core::ops::nn::gelu_approximate::gelu_approximate;
use tract_core::ops::nn::gelu_exact::gelu_exact;
use tract_core::ops::nn::silu::silu;
use tract_core::ops::nn::{Reduce, Reducer, sigmoid};

const K: usize = 64;
const N: usize = 40;

/// A model with activations `[M, K]`, quantized, and the result of `ScaledMm` with a weight of N rows and alpha 1/256.
struct Start {
    model: TypedModel,
    quantized: TVec<OutletId>,
    product: OutletId,
}

fn start(output: DatumType) -> TractResult<Start> {
    let mut model = TypedModel::default();
    let m = model.symbols.sym("M");
    let x = model.add_source("x", f32::fact(dims![m, K]))?;
    let g = model.add_const("g", tensor0(1f32))?;
    let format = Format::Nvfp4;
    let quantized = model.wire_node("quantize", BlockQuantize { format }, &[x, g])?;
    let weight = Matrix::random(format, 11, N, K);
    let b = model.add_const("w", weight.codes)?;
    let sfb = model.add_const("sf", weight.scales)?;
    let alpha = model.add_const("alpha", tensor0(1f32 / 256.0))?;
    let inputs = [quantized[0], quantized[1], b, sfb, alpha];
    let product = model.wire_node("mm", ScaledMm { format, output }, &inputs)?[0];
    Ok(Start { model, quantized, product })
}

fn rewrite(model: &TypedModel) -> TractResult<Report> {
    let mut model = model.clone().into_decluttered()?;
    Ok(fourfold("sm_90a").rewrite(&mut model)?)
}

/// Runs a model on Fourfold and on tract, and returns the values of their first outputs.
fn both(model: &TypedModel, rows: usize) -> TractResult<(Vec<f32>, Vec<f32>)> {
    let x = exact_activations(rows as u64 + 50, rows, K);
    let got = run(&fourfold("sm_90a"), model, std::slice::from_ref(&x))?;
    let want = run(cpu(), model, &[x])?;
    assert_eq!(got[0].shape(), want[0].shape());
    Ok((floats(&got[0]), floats(&want[0])))
}

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
fn a_result_with_several_readers_is_an_output_of_its_segment() -> TractResult<()> {
    let mut start = start(f32::datum_type())?;
    let model = &mut start.model;
    let gelu = model.wire_node("gelu", gelu_exact(), &[start.product])?[0];
    let both_read = model.wire_node("sum", add(), &[gelu, start.product])?[0];
    model.select_output_outlets(&[both_read, start.product, gelu, start.product])?;
    let report = rewrite(model)?;
    assert_eq!(report.segments.len(), 1, "{report}");
    let x = exact_activations(3, 5, K);
    let got = run(&fourfold("sm_90a"), model, std::slice::from_ref(&x))?;
    let want = run(cpu(), model, &[x])?;
    assert_eq!(floats(&got[1]), floats(&want[1]));
    assert_eq!(floats(&got[3]), floats(&want[1]));
    for index in [0, 2] {
        for (got, want) in floats(&got[index]).into_iter().zip(floats(&want[index])) {
            assert!((got - want).abs() <= 2e-6 * want.abs().max(1.0), "{got}, not {want}");
        }
    }
    Ok(())
}

#[test]
fn several_linears_read_one_quantization() -> TractResult<()> {
    let mut start = start(f32::datum_type())?;
    let model = &mut start.model;
    let mut outputs = vec![start.product];
    for (seed, rows) in [(31, 24), (32, 56)] {
        let weight = Matrix::random(Format::Nvfp4, seed, rows, K);
        let b = model.add_const(format!("w{seed}"), weight.codes)?;
        let sfb = model.add_const(format!("sf{seed}"), weight.scales)?;
        let inputs = [start.quantized[0], start.quantized[1], b, sfb];
        let op = ScaledMm { format: Format::Nvfp4, output: f32::datum_type() };
        outputs.push(model.wire_node(format!("mm{seed}"), op, &inputs)?[0]);
    }
    model.select_output_outlets(&outputs)?;
    let report = rewrite(model)?;
    assert_eq!(report.segments.len(), 3, "{report}");
    assert_eq!(report.nodes[0].fate, Fate::Absorbed, "{report}");
    let x = exact_activations(8, 6, K);
    let got = run(&fourfold("sm_90a"), model, std::slice::from_ref(&x))?;
    for (got, want) in got.iter().zip(run(cpu(), model, &[x])?) {
        assert_eq!(floats(got), floats(&want));
    }
    Ok(())
}

/// A linear of activations with these extents, K last, reshaped to a matrix first if `rows` has their product.
fn batched(scope: &SymbolScope, extents: TVec<TDim>, rows: Option<TDim>) -> TractResult<TypedModel> {
    let mut model = TypedModel { symbols: scope.clone(), ..TypedModel::default() };
    let rank = extents.len();
    let mut x = model.add_source("x", f32::fact(&*extents))?;
    let mut row = bias(61, N);
    match rows {
        Some(rows) => {
            let reshape = AxisOp::Reshape(0, extents[..rank - 1].into(), tvec![rows]);
            x = model.wire_node("flat", reshape, &[x])?[0];
        }
        None => row = row.broadcast_into_rank(rank)?,
    }
    let g = model.add_const("g", tensor0(1f32))?;
    let format = Format::Nvfp4;
    let quantized = model.wire_node("quantize", BlockQuantize { format }, &[x, g])?;
    let weight = Matrix::random(format, 62, N, K);
    let b = model.add_const("w", weight.codes)?;
    let sfb = model.add_const("sf", weight.scales)?;
    let op = ScaledMm { format, output: f32::datum_type() };
    let product = model.wire_node("mm", op, &[quantized[0], quantized[1], b, sfb])?[0];
    let row = model.add_const("row", row)?;
    let out = model.wire_node("out", add(), &[product, row])?;
    model.select_output_outlets(&out)?;
    Ok(model)
}

#[test]
fn extents_may_be_batches_products_and_sums_of_symbols() -> TractResult<()> {
    let scope = SymbolScope::default();
    let [b, s] = ["B", "S"].map(|name| scope.sym(name).to_dim());
    let k = K.to_dim();
    let cases = [
        (tvec![b.clone(), s.clone(), k.clone()], None, vec![2, 3, K]),
        (tvec![b.clone(), s.clone(), k.clone()], Some(b.clone() * &s), vec![2, 3, K]),
        (tvec![s.clone() + 1, k.clone()], None, vec![6, K]),
        (tvec![s.clone() * 4, k.clone()], None, vec![8, K]),
        (tvec![b.clone(), s.clone() + &b, k], None, vec![2, 5, K]),
    ];
    for (extents, rows, shape) in cases {
        let model = batched(&scope, extents.clone(), rows)?;
        let report = rewrite(&model)?;
        assert_eq!(report.segments.len(), 1, "{extents:?}\n{report}");
        let kept = report.nodes.iter().filter(|node| matches!(node.fate, Fate::Kept(_))).count();
        assert_eq!(kept, usize::from(report.nodes.iter().any(|node| node.name == "flat")), "{report}");
        let x = exact_activations(63, shape.iter().product::<usize>() / K, K).into_shape(&shape)?;
        let got = run(&fourfold("sm_90a"), &model, std::slice::from_ref(&x))?;
        let want = run(cpu(), &model, &[x])?;
        assert_eq!(got[0].shape(), want[0].shape(), "{extents:?}");
        assert_eq!(floats(&got[0]), floats(&want[0]), "{extents:?}");
    }
    Ok(())
}

#[test]
fn an_operand_repeated_along_some_leading_extents_stays_with_tract() -> TractResult<()> {
    let scope = SymbolScope::default();
    let [b, s] = ["B", "S"].map(|name| scope.sym(name).to_dim());
    let mut model = batched(&scope, tvec![b.clone(), s, K.to_dim()], None)?;
    let other = model.add_source("other", f32::fact(dims![b, 1, N]))?;
    let out = model.outputs[0];
    let sum = model.wire_node("sum", add(), &[out, other])?;
    model.select_output_outlets(&sum)?;
    let report = rewrite(&model)?;
    assert_eq!(report.segments.len(), 1, "{report}");
    assert_eq!(report.kept("sum").map(|reason| reason.code), Some(reason::UNSUPPORTED_SHAPE), "{report}");
    let inputs = [exact_activations(1, 6, K).into_shape(&[2, 3, K])?, bias(5, 2 * N).into_shape(&[2, 1, N])?];
    let got = run(&fourfold("sm_90a"), &model, &inputs)?;
    assert_eq!(floats(&got[0]), floats(&run(cpu(), &model, &inputs)?[0]));
    Ok(())
}

/// relu(linear(x)) quantized for a second linear.
fn two_layers() -> TractResult<TypedModel> {
    let mut model = TypedModel::default();
    let m = model.symbols.sym("M");
    let x = model.add_source("x", f32::fact(dims![m, K]))?;
    let (format, output) = (Format::Nvfp4, f32::datum_type());
    let g = model.add_const("g", tensor0(1f32))?;
    let zero = model.add_const("zero", tensor2(&[[0f32]]))?;
    let mut hidden = x;
    for (layer, rows, k) in [(1, 96, K), (2, N, 96)] {
        let a = model.wire_node(format!("quantize{layer}"), BlockQuantize { format }, &[hidden, g])?;
        let weight = Matrix::random(format, 80 + layer, rows, k);
        let b = model.add_const(format!("w{layer}"), weight.codes)?;
        let sfb = model.add_const(format!("sf{layer}"), weight.scales)?;
        let alpha = model.add_const(format!("alpha{layer}"), tensor0(1f32 / 16.0))?;
        let product = ScaledMm { format, output };
        let product = model.wire_node(format!("mm{layer}"), product, &[a[0], a[1], b, sfb, alpha])?;
        hidden = model.wire_node(format!("relu{layer}"), max(), &[product[0], zero])?[0];
    }
    model.select_output_outlets(&[hidden])?;
    Ok(model)
}

#[test]
fn a_quantization_between_products_is_part_of_a_segment() -> TractResult<()> {
    let model = two_layers()?;
    for target in ["sm_90a", "sm_100a", "sm_120a"] {
        let mut rewritten = model.clone().into_decluttered()?;
        let report = fourfold(target).rewrite(&mut rewritten)?;
        let fates: Vec<&Fate> = report.nodes.iter().map(|node| &node.fate).collect();
        let [first, second] = [&Fate::Segment(0), &Fate::Segment(1)];
        assert_eq!(fates, [&Fate::Absorbed, first, first, first, second, second], "{target}\n{report}");
        for rows in [1, 7, 130] {
            let x = exact_activations(rows as u64, rows, K);
            let got = run(&fourfold(target), &model, std::slice::from_ref(&x))?;
            let want = run(cpu(), &model, &[x])?;
            assert_eq!(floats(&got[0]), floats(&want[0]), "{target}, M = {rows}");
            assert!(floats(&got[0]).iter().any(|value| *value > 1.0));
        }
    }
    Ok(())
}

#[test]
fn segments_do_not_wait_for_each_other() -> TractResult<()> {
    let mut start = start(f32::datum_type())?;
    let model = &mut start.model;
    let weight = Matrix::random(Format::Nvfp4, 71, N, K);
    let b = model.add_const("w2", weight.codes)?;
    let sfb = model.add_const("sf2", weight.scales)?;
    let op = ScaledMm { format: Format::Nvfp4, output: f32::datum_type() };
    let inputs = [start.quantized[0], start.quantized[1], b, sfb];
    let second = model.wire_node("mm2", op, &inputs)?[0];
    // Each sum needs, through an op of tract, the other product. One segment for each pair would close a cycle.
    let mut sums = tvec!();
    for (name, left, right) in [("first", start.product, second), ("second", second, start.product)] {
        let column = Reduce::new(tvec![1], Reducer::Max);
        let column = model.wire_node(format!("{name}.max"), column, &[right])?[0];
        sums.push(model.wire_node(name, add(), &[left, column])?[0]);
    }
    model.select_output_outlets(&sums)?;
    let report = rewrite(model)?;
    assert_eq!(report.segments.len(), 2, "{report}");
    let behind = ["first", "second"].into_iter().filter_map(|name| report.kept(name));
    let codes: Vec<&str> = behind.map(|reason| reason.code).collect();
    assert_eq!(codes, [reason::BEHIND_HOST_OP], "{report}");
    let x = exact_activations(8, 6, K);
    let got = run(&fourfold("sm_90a"), model, std::slice::from_ref(&x))?;
    for (got, want) in got.iter().zip(run(cpu(), model, &[x])?) {
        assert_eq!(floats(got), floats(&want));
    }
    Ok(())
}

#[test]
fn codes_may_be_inputs_and_weights_may_vary() -> TractResult<()> {
    let mut model = TypedModel::default();
    let m = model.symbols.sym("M");
    let byte = u8::datum_type();
    let facts = [dims![m, 32], dims![m, 2], dims![N, 32], dims![N, 2]];
    let mut inputs = tvec!();
    for (index, shape) in facts.into_iter().enumerate() {
        inputs.push(model.add_source(format!("in{index}"), byte.fact(shape))?);
    }
    let op = ScaledMm { format: Format::Mxfp4, output: f32::datum_type() };
    let out = model.wire_node("mm", op, &inputs)?;
    model.select_output_outlets(&out)?;
    let report = rewrite(&model)?;
    assert_eq!(report.segments.len(), 1, "{report}");
    let (a, b) = (Matrix::random(Format::Mxfp4, 1, 3, 64), Matrix::random(Format::Mxfp4, 2, N, 64));
    let given = [a.codes, a.scales, b.codes, b.scales].map(Arc::unwrap_or_clone);
    let got = run(&fourfold("sm_120a"), &model, &given)?;
    assert_eq!(floats(&got[0]), floats(&run(cpu(), &model, &given)?[0]));
    Ok(())
}

/// dequantize(A) times dequantize(B)ᵀ, with the axes of the product.
fn dequantized(axes: &str, b_format: Format) -> TractResult<TypedModel> {
    let mut start = start(f32::datum_type())?;
    let model = &mut start.model;
    let a = model.wire_node("a", BlockDequantize { format: Format::Nvfp4 }, &start.quantized)?[0];
    let weight = Matrix::random(b_format, 41, K, K);
    let codes = model.add_const("codes", weight.codes)?;
    let scales = model.add_const("scales", weight.scales)?;
    let b = model.wire_node("b", BlockDequantize { format: b_format }, &[codes, scales])?[0];
    let op = EinSum::new(axes.parse()?, f32::datum_type());
    let out = model.wire_node("product", op, &[a, b])?;
    model.select_output_outlets(&out)?;
    Ok(start.model)
}

#[test]
fn a_product_of_dequantized_matrices_is_a_segment() -> TractResult<()> {
    let model = dequantized("mk,nk->mn", Format::Nvfp4)?;
    let report = rewrite(&model)?;
    assert_eq!(report.segments.len(), 1, "{report}");
    for node in &report.nodes {
        let fate = if node.name == "product" { Fate::Segment(0) } else { Fate::Absorbed };
        assert_eq!(node.fate, fate, "{}\n{report}", node.name);
    }
    let (got, want) = both(&model, 5)?;
    assert_eq!(got, want);
    Ok(())
}

#[test]
fn other_products_stay_with_tract() -> TractResult<()> {
    for (axes, format) in
        [("mk,kn->mn", Format::Nvfp4), ("mk,nk->nm", Format::Nvfp4), ("mk,nk->mn", Format::Mxfp4)]
    {
        let model = dequantized(axes, format)?;
        let report = rewrite(&model)?;
        assert_eq!(report.segments.len(), 0, "{axes}\n{report}");
        assert_eq!(report.kept("product").map(|reason| reason.code), Some(reason::PLAIN_PRODUCT), "{report}");
        assert_eq!(report.kept("b").map(|reason| reason.code), Some(reason::DEQUANTIZED), "{report}");
        let (got, want) = both(&model, 3)?;
        assert_eq!(got, want, "{axes}");
    }
    Ok(())
}

#[test]
fn a_product_that_no_kernel_takes_stays_with_tract() -> TractResult<()> {
    // K is 48: kernels need a multiple of 32.
    let mut model = TypedModel::default();
    let a = Matrix::random(Format::Nvfp4, 1, 4, 48);
    let (m, byte) = (model.symbols.sym("M"), u8::datum_type());
    let codes = model.add_source("codes", byte.fact(dims![m.clone(), 24]))?;
    let scales = model.add_source("scales", byte.fact(dims![m, 3]))?;
    let weight = Matrix::random(Format::Nvfp4, 2, N, 48);
    let b = model.add_const("b", weight.codes)?;
    let sfb = model.add_const("sfb", weight.scales)?;
    let op = ScaledMm { format: Format::Nvfp4, output: f32::datum_type() };
    let out = model.wire_node("mm", op, &[codes, scales, b, sfb])?;
    model.select_output_outlets(&out)?;
    let report = rewrite(&model)?;
    assert_eq!(report.segments.len(), 0, "{report}");
    let kept = report.kept("mm").expect("it stays");
    assert!(fourfold::scheduler::ReasonCode::ALL.iter().any(|code| code.as_str() == kept.code), "{kept:?}");
    let given = [a.codes, a.scales].map(Arc::unwrap_or_clone);
    let got = run(&fourfold("sm_90a"), &model, &given)?;
    assert_eq!(floats(&got[0]), floats(&run(cpu(), &model, &given)?[0]));
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
