//! The programs that the benchmarks share.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// Returns a program of about `ops` ops as text. Each layer has a swizzle, a `scaled_mma`, a bias, an activation,
/// a quantization and a plain op, and reads the layer before; one op in six is a `scaled_mma`.
pub fn layers(ops: usize) -> String {
    let count = ops / 6;
    let mut inputs = vec!["%x0: tensor<[M, 64], f32>".to_owned(), "%g: tensor<[], f32>".to_owned()];
    let mut body = String::new();
    for layer in 0..count {
        inputs.push(format!("param %l{layer}.weight: tensor<[64, 64], f4E2M1FN>"));
        inputs.push(format!("param %l{layer}.scale: tensor<[64, 4], f8E4M3FN, linear>"));
        inputs.push(format!("param %l{layer}.bias: tensor<[64], bf16>"));
        let next = layer + 1;
        let _ = write!(
            body,
            "  %l{layer}.sfb = swizzle_scales %l{layer}.scale : tensor<[64, 4], f8E4M3FN, blocked>
  %l{layer}.q, %l{layer}.sfa = block_quantize %x{layer}, %g {{block = 16}} : tensor<[M, 64], f4E2M1FN>, tensor<[M, 4], f8E4M3FN, blocked>
  %l{layer}.product = scaled_mma %l{layer}.q, %l{layer}.sfa, %l{layer}.weight, %l{layer}.sfb {{block = 16}} : tensor<[M, 64], f32>
  %l{layer}.biased = add %l{layer}.product, %l{layer}.bias : tensor<[M, 64], f32>
  %l{layer}.y = gelu %l{layer}.biased : tensor<[M, 64], f32>
  %x{next} = add %x{layer}, %l{layer}.y : tensor<[M, 64], f32>
"
        );
    }
    format!("fir 1\nfunc @layers(\n    {}\n) {{\n{body}  return %x{count}\n}}\n", inputs.join(",\n    "))
}
