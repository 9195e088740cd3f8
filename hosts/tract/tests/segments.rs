//! The borders of segments: shared results, batches, host ops between products, and products that stay with tract.

mod common;

use common::{K, Matrix, N, bias, both, cpu, exact_activations, floats, fourfold, rewrite, run, start};
use fourfold_tract::{BlockDequantize, BlockQuantize, Fate, Format, ScaledMm, reason};
use tract_core::internal::*;
use tract_core::ops::einsum::EinSum;
use tract_core::ops::math::{add, max};
use tract_core::ops::nn::gelu_exact::gelu_exact;
use tract_core::ops::nn::{Reduce, Reducer};

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
        let want = run(cpu(), &model, std::slice::from_ref(&x))?;
        assert_eq!(got[0].shape(), want[0].shape(), "{extents:?}");
        assert_eq!(floats(&got[0]), floats(&want[0]), "{extents:?}");
        // Symbols may be fixed later.
        let mut rewritten = model.into_decluttered()?;
        fourfold("sm_90a").rewrite(&mut rewritten)?;
        let values = if extents[0] == b {
            [("B", 2), ("S", 3)]
        } else {
            [("B", 2), ("S", if shape[0] == 6 { 5 } else { 2 })]
        };
        let subs = values.map(|(name, value)| (scope.sym(name), value.to_dim()));
        let fixed = run(cpu(), &rewritten.set_symbols(&HashMap::from(subs))?, &[x])?;
        assert_eq!(floats(&fixed[0]), floats(&want[0]), "{extents:?}");
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

#[test]
fn extents_that_the_verifier_refuses_stay_with_tract() -> TractResult<()> {
    // Fourfold's extents are at most 2^40.
    let model = batched(&SymbolScope::default(), tvec![(1i64 << 50).to_dim(), K.to_dim()], None)?;
    let mut rewritten = model.into_decluttered()?;
    let before = rewritten.nodes().len();
    let report = fourfold("sm_90a").rewrite(&mut rewritten)?;
    assert!(report.segments.is_empty() && rewritten.nodes().len() == before, "{report}");
    for name in ["quantize", "mm", "out"] {
        assert_eq!(report.kept(name).map(|reason| reason.code), Some(reason::INVALID), "{report}");
    }
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
