//! A linear layer in NVFP4 with bias and GELU, for any number of rows.

use std::fmt::Write;

use fourfold_tract::{BlockQuantize, Format, REPORT_PROPERTY, ScaledMm};
use tract_core::internal::*;
use tract_core::ops::{math::add, nn::gelu_exact::gelu_exact};

fn main() -> TractResult<()> {
    print!("{}", layer()?);
    Ok(())
}

/// Builds, prepares and runs the layer. Returns the report and the results as text.
pub fn layer() -> TractResult<String> {
    let (format, k, n) = (Format::Nvfp4, 64, 8);
    let mut model = TypedModel::default();
    let m = model.symbols.sym("M");
    let x = model.add_source("x", f32::fact(dims![m, k]))?;
    // A checkpoint has these: per-tensor scales g, codes [N, K/2], scales [N, K/16], a bias.
    let g = model.add_const("g", tensor0(0.01f32))?;
    let codes = model.add_const("codes", Tensor::from_shape(&[n, k / 2], &vec![0x21u8; n * k / 2])?)?;
    let scales = model.add_const("scales", Tensor::from_shape(&[n, k / 16], &vec![0x30u8; n * k / 16])?)?;
    let alpha = model.add_const("alpha", tensor0(0.01f32 * 0.5))?;
    let bias = model.add_const("bias", Tensor::from_shape(&[1, n], &vec![0.5f32; n])?)?;

    let a = model.wire_node("quantize", BlockQuantize { format }, &[x, g])?;
    let product = ScaledMm { format, output: f32::datum_type() };
    let product = model.wire_node("product", product, &[a[0], a[1], codes, scales, alpha])?;
    let biased = model.wire_node("biased", add(), &[product[0], bias])?;
    let y = model.wire_node("gelu", gelu_exact(), &biased)?;
    model.select_output_outlets(&y)?;

    let runtime = runtime_for_name("fourfold")?.context("the runtime is not linked")?;
    let prepared = runtime.prepare(model)?;
    let report = prepared.properties()[REPORT_PROPERTY].try_as_plain_ram()?;
    let mut text = report.to_scalar::<String>()?.clone();
    for rows in [1, 7] {
        let x = Tensor::from_shape(&[rows, k], &vec![0.25f32; rows * k])?;
        let y = prepared.run(tvec!(x.into_tvalue()))?;
        let values = y[0].to_plain_array_view::<f32>()?;
        writeln!(text, "{:?}: {}", y[0].shape(), values[[rows - 1, n - 1]])?;
    }
    Ok(text)
}
