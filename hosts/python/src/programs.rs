//! The programs of ops, as text.
//!
//! The first extent is the symbol M where the op allows it, so that one program serves every number of rows. Other
//! extents are numbers, which kernels are specialized for.

use std::fmt::Write;

use crate::error::Error;

mod by_m;
mod grouped;

pub use by_m::{Form, Forms, ScaledMmByM};
pub use grouped::GroupedMm;

/// A block-scaled format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// Elements for each scale.
    pub block: usize,
    /// The type of codes.
    pub codes: &'static str,
    /// Codes in a byte.
    pub packed: usize,
    /// The type of scales.
    pub scale: &'static str,
    /// A per-tensor scale multiplies the scales.
    pub has_global: bool,
}

impl Format {
    /// `nvfp4`, `mxfp4`, `mxfp8` or `mxfp8_e5m2`.
    pub fn named(name: &str) -> Result<Format, Error> {
        let mx = |codes, packed| Format { block: 32, codes, packed, scale: "f8E8M0FNU", has_global: false };
        match name {
            "nvfp4" => {
                Ok(Format { block: 16, codes: "f4E2M1FN", packed: 2, scale: "f8E4M3FN", has_global: true })
            }
            "mxfp4" => Ok(mx("f4E2M1FN", 2)),
            "mxfp8" => Ok(mx("f8E4M3FN", 1)),
            "mxfp8_e5m2" => Ok(mx("f8E5M2", 1)),
            other => {
                let expected = "\"nvfp4\", \"mxfp4\", \"mxfp8\" or \"mxfp8_e5m2\"";
                Err(Error::unknown("format", format!("\"{other}\""), expected))
            }
        }
    }

    /// The formats of A and B: `mxfp8 x mxfp4`, or one name for both.
    pub fn pair(name: &str) -> Result<(Format, Format), Error> {
        let (a, b) = name.split_once(" x ").unwrap_or((name, name));
        let pair = (Format::named(a)?, Format::named(b)?);
        if pair.0.block != pair.1.block {
            return Err(Error::argument(format!(
                "format is \"{name}\"; NVFP4 multiplies NVFP4 only. Without scales of a, it also multiplies float16 \
                 and bfloat16"
            )));
        }
        Ok(pair)
    }
}

/// The A of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Codes and scales, swizzled or linear.
    Blocks {
        /// The format.
        format: Format,
        /// Scales are swizzled.
        swizzled: bool,
    },
    /// Numbers of this 16-bit type.
    Dense(&'static str),
}

/// The extents of a program's value: the leading ones, and the last.
fn shape(leading: &[String], last: usize) -> String {
    let mut text = String::from("[");
    for extent in leading {
        text.push_str(extent);
        text.push_str(", ");
    }
    let _ = write!(text, "{last}]");
    text
}

/// The layout of scales.
fn layout(swizzled: bool) -> &'static str {
    if swizzled { "blocked" } else { "linear" }
}

/// A program under construction.
#[derive(Debug, Default)]
struct Writer {
    inputs: Vec<String>,
    ops: String,
}

impl Writer {
    /// Adds an input.
    fn input(&mut self, name: &str, shape: &str, element: &str) {
        self.inputs.push(format!("%{name}: tensor<{shape}, {element}>"));
    }

    /// Adds an op with one result.
    fn op(&mut self, name: &str, op: &str, shape: &str, element: &str) {
        let _ = writeln!(self.ops, "  %{name} = {op} : tensor<{shape}, {element}>");
    }

    /// Adds an op with any number of results.
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.ops, "  {line}");
    }

    /// Adds the activation and the rounding of a product. Returns the name of the result.
    fn end_product<'a>(
        &mut self,
        product: &'a str,
        activation: &str,
        shape: &str,
        out: &str,
    ) -> Result<&'a str, Error> {
        let mut last = product;
        match activation {
            "none" => {}
            "relu" | "gelu" | "gelu_tanh" | "silu" => {
                self.op("active", &format!("{activation} %{last}"), shape, "f32");
                last = "active";
            }
            other => {
                let expected = "\"none\", \"relu\", \"gelu\", \"gelu_tanh\" or \"silu\"";
                return Err(Error::unknown("activation", format!("\"{other}\""), expected));
            }
        }
        if out != "f32" {
            self.op("rounded", &format!("convert %{last}"), shape, out);
            last = "rounded";
        }
        Ok(last)
    }

    /// The text of the program.
    fn finish(self, name: &str, outputs: &str) -> String {
        format!("fir 1\nfunc @{name}({}) {{\n{}  return {outputs}\n}}\n", self.inputs.join(", "), self.ops)
    }
}

/// The f32 factors of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpha {
    /// None.
    Absent,
    /// One number.
    Number,
    /// A number for each column.
    Columns,
}

/// A block-scaled product with its epilogue.
#[derive(Debug)]
pub struct ScaledMm {
    /// A.
    pub a: Left,
    /// The format of B.
    pub format: Format,
    /// The leading extents of A, the batch first and M last.
    pub leading: Vec<String>,
    /// The leading extents of B, without N.
    pub batch: Vec<String>,
    /// Columns of the result.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Scales of B are swizzled.
    pub swizzled_b: bool,
    /// The alpha.
    pub alpha: Alpha,
    /// The type of a bias of N elements.
    pub bias: Option<&'static str>,
    /// `none`, `relu`, `gelu`, `gelu_tanh` or `silu`.
    pub activation: String,
    /// The result type before quantization.
    pub out: &'static str,
}

/// The attributes of torchao's formula for NVFP4, which multiplies by the reciprocal of a scale of at least 2^-6.
const TORCHAO: &str = ", scale_min = 0.015625, codes = reciprocal_scale, guard = false";

/// A quantized result.
#[derive(Debug)]
pub struct Quantized {
    /// The format.
    pub format: Format,
    /// The scales are swizzled.
    pub swizzled: bool,
    /// There is a per-tensor scale.
    pub has_scale: bool,
    /// The rounding of MX scales, or `torchao`.
    pub rounding: String,
}

impl Quantized {
    /// Quantizes `%value`. Returns the names of codes and scales.
    fn write(
        &self,
        writer: &mut Writer,
        value: &str,
        leading: &[String],
        columns: usize,
    ) -> Result<String, Error> {
        let block = self.format.block;
        if !columns.is_multiple_of(block) {
            return Err(Error::argument(format!("{columns} columns are no multiple of the block, {block}")));
        }
        let formula = match self.rounding.as_str() {
            "floor" | "ceil" | "even" => "",
            "torchao" if self.format.has_global => TORCHAO,
            other => {
                let expected = "\"floor\", \"ceil\", \"even\" or, for NVFP4, \"torchao\"";
                return Err(Error::unknown("rounding", format!("\"{other}\""), expected));
            }
        };
        let attributes = match (self.format.has_global, self.has_scale) {
            (true, true) => format!(", %g {{block = 16{formula}}}"),
            (true, false) => {
                writer.op("g", "constant {value = 1}", "[1]", "f32");
                format!(", %g {{block = 16{formula}}}")
            }
            (false, false) => format!(" {{block = {block}, scale_rounding = {}}}", self.rounding),
            (false, true) => {
                return Err(Error::argument("MX formats have no per-tensor scale; leave scale out"));
            }
        };
        writer.line(&format!(
            "%codes, %scales = block_quantize %{value}{attributes} : tensor<{}, {}>, tensor<{}, {}, {}>",
            shape(leading, columns),
            self.format.codes,
            shape(leading, columns / block),
            self.format.scale,
            layout(self.swizzled)
        ));
        Ok("%codes, %scales".to_owned())
    }
}

impl ScaledMm {
    /// Writes the inputs of the operands, and their scales as the product takes them. Returns the names of both scales.
    fn operands(&self, writer: &mut Writer) -> (Option<&'static str>, &'static str) {
        let mut b = self.batch.clone();
        b.push(self.n.to_string());
        let mut conversions = Vec::new();
        let mut scales =
            |writer: &mut Writer, name, converted, extents: &[String], format: Format, swizzled| {
                let shape = shape(extents, self.k / format.block);
                writer.input(name, &shape, &format!("{}, {}", format.scale, layout(swizzled)));
                if swizzled {
                    return name;
                }
                conversions.push((converted, name, shape, format!("{}, blocked", format.scale)));
                converted
            };
        let sfa = match self.a {
            Left::Blocks { format, swizzled } => {
                writer.input("a", &shape(&self.leading, self.k), format.codes);
                Some(scales(writer, "sfa", "sfa.blocked", &self.leading, format, swizzled))
            }
            Left::Dense(element) => {
                writer.input("a", &shape(&self.leading, self.k), element);
                None
            }
        };
        writer.input("b", &shape(&b, self.k), self.format.codes);
        let sfb = scales(writer, "sfb", "sfb.blocked", &b, self.format, self.swizzled_b);
        for (converted, name, shape, element) in conversions {
            writer.op(converted, &format!("swizzle_scales %{name}"), &shape, &element);
        }
        (sfa, sfb)
    }

    /// Makes the rows of A a number, so that the program serves this number only.
    pub fn state_rows(&mut self, m: usize) {
        if let Some(rows) = self.leading.last_mut() {
            *rows = m.to_string();
        }
    }

    /// The text. Inputs: a, sfa, b, sfb, alpha, bias, g, without those that are absent.
    pub fn program(&self, quantized: Option<&Quantized>) -> Result<String, Error> {
        let mut writer = Writer::default();
        let (sfa, sfb) = self.operands(&mut writer);
        match self.alpha {
            Alpha::Absent => {}
            Alpha::Number => writer.input("alpha", "[1]", "f32"),
            Alpha::Columns => writer.input("alpha", &format!("[{}]", self.n), "f32"),
        }
        if let Some(element) = self.bias {
            writer.input("bias", &format!("[{}]", self.n), element);
        }
        if quantized.is_some_and(|quantized| quantized.has_scale) {
            writer.input("g", "[1]", "f32");
        }
        let d = shape(&self.leading, self.n);
        let alpha = if self.alpha == Alpha::Number { ", alpha = %alpha" } else { "" };
        let sfa = sfa.map_or(String::new(), |name| format!("%{name}, "));
        let block = self.format.block;
        let product = format!("scaled_mma %a, {sfa}%b, %{sfb}{alpha} {{block = {block}}}");
        writer.op("product", &product, &d, "f32");
        let mut last = "product";
        if self.alpha == Alpha::Columns {
            writer.op("scaled", "mul %product, %alpha", &d, "f32");
            last = "scaled";
        }
        if self.bias.is_some() {
            writer.op("biased", &format!("add %{last}, %bias"), &d, "f32");
            last = "biased";
        }
        let last = writer.end_product(last, &self.activation, &d, self.out)?;
        match quantized {
            None => Ok(writer.finish("scaled_mm", &format!("%{last}"))),
            Some(quantized) => {
                let outputs = quantized.write(&mut writer, last, &self.leading, self.n)?;
                Ok(writer.finish("scaled_mm_quantized", &outputs))
            }
        }
    }
}

/// Quantizes x of these extents.
pub fn quantize(
    leading: &[String],
    columns: usize,
    element: &str,
    quantized: &Quantized,
) -> Result<String, Error> {
    let mut writer = Writer::default();
    writer.input("x", &shape(leading, columns), element);
    if quantized.has_scale {
        writer.input("g", "[1]", "f32");
    }
    let outputs = quantized.write(&mut writer, "x", leading, columns)?;
    Ok(writer.finish("quantize", &outputs))
}

/// The numbers of codes and scales: code * scale * per-tensor scale, each rounded once.
pub fn dequantize(
    leading: &[String],
    columns: usize,
    format: Format,
    swizzled: bool,
    has_scale: bool,
    out: &str,
) -> Result<String, Error> {
    let Format { block, codes, scale, has_global, .. } = format;
    if has_scale && !has_global {
        return Err(Error::argument("MX formats have no per-tensor scale; leave scale out"));
    }
    let mut writer = Writer::default();
    writer.input("codes", &shape(leading, columns), codes);
    let scales = shape(leading, columns / block);
    writer.input("scales", &scales, &format!("{scale}, {}", layout(swizzled)));
    let mut name = "scales";
    if swizzled {
        writer.op("linear", "swizzle_scales %scales", &scales, &format!("{scale}, linear"));
        name = "linear";
    }
    let factor = if has_scale { ", %g" } else { "" };
    if has_scale {
        writer.input("g", "[1]", "f32");
    }
    let op = format!("block_dequantize %codes, %{name}{factor} {{block = {block}}}");
    writer.op("y", &op, &shape(leading, columns), out);
    Ok(writer.finish("dequantize", "%y"))
}

/// Writes the per-tensor scale amax / (448 * 6) of a value, `%g`.
fn dynamic_scale(writer: &mut Writer, value: &str, leading: &[String], element: &str) {
    let axes: Vec<String> = (0..=leading.len()).map(|axis| axis.to_string()).collect();
    let ones = format!("[{}]", vec!["1"; leading.len() + 1].join(", "));
    let amax = format!("reduce %{value} {{axes = [{}], keep_dims = true, kind = amax}}", axes.join(", "));
    writer.op("amax", &amax, &ones, element);
    writer.op("amax.one", "reshape %amax", "[1]", element);
    let amax = if element == "f32" {
        "amax.one"
    } else {
        writer.op("amax.f32", "convert %amax.one", "[1]", "f32");
        "amax.f32"
    };
    writer.op("largest", "constant {value = 2688}", "[1]", "f32");
    writer.op("g", &format!("div %{amax}, %largest"), "[1]", "f32");
}

/// Quantizes x to NVFP4 with the per-tensor scale amax / (448 * 6).
pub fn quantize_dynamic(
    leading: &[String],
    columns: usize,
    element: &str,
    swizzled: bool,
) -> Result<String, Error> {
    let quantized = Quantized {
        format: Format::named("nvfp4")?,
        swizzled,
        has_scale: true,
        rounding: "floor".to_owned(),
    };
    let mut writer = Writer::default();
    writer.input("x", &shape(leading, columns), element);
    dynamic_scale(&mut writer, "x", leading, element);
    let outputs = quantized.write(&mut writer, "x", leading, columns)?;
    Ok(writer.finish("quantize_dynamic", &format!("{outputs}, %g")))
}

/// The extents as text. The first is the symbol M, unless its axis is among `fixed`.
fn symbolic(extents: &[usize], fixed: &[usize]) -> Vec<String> {
    let mut texts: Vec<String> = extents.iter().map(ToString::to_string).collect();
    if let (Some(first), false) = (texts.first_mut(), fixed.contains(&0)) {
        *first = "M".to_owned();
    }
    texts
}

fn bracketed<T: ToString>(items: &[T]) -> String {
    let items: Vec<String> = items.iter().map(ToString::to_string).collect();
    format!("[{}]", items.join(", "))
}

/// Combines elements along these axes, which are sorted.
pub fn reduce(
    extents: &[usize],
    element: &str,
    kind: &str,
    axes: &[usize],
    keep_dims: bool,
) -> Result<String, Error> {
    if !["sum", "mean", "max", "min", "amax"].contains(&kind) {
        let expected = "\"sum\", \"mean\", \"max\", \"min\" or \"amax\"";
        return Err(Error::unknown("kind", format!("\"{kind}\""), expected));
    }
    let texts = symbolic(extents, axes);
    let result: Vec<String> = (texts.iter().enumerate())
        .filter_map(|(axis, text)| match (axes.contains(&axis), keep_dims) {
            (false, _) => Some(text.clone()),
            (true, true) => Some("1".to_owned()),
            (true, false) => None,
        })
        .collect();
    let mut writer = Writer::default();
    writer.input("x", &bracketed(&texts), element);
    let op = format!("reduce %x {{axes = {}, keep_dims = {keep_dims}, kind = {kind}}}", bracketed(axes));
    writer.op("y", &op, &bracketed(&result), element);
    Ok(writer.finish("reduce", "%y"))
}

/// Softmax along an axis. Kernels take the last one only, so others are exchanged with it.
pub fn softmax(extents: &[usize], element: &str, axis: usize) -> String {
    let (texts, last) = (symbolic(extents, &[axis]), extents.len() - 1);
    let mut writer = Writer::default();
    writer.input("x", &bracketed(&texts), element);
    if axis == last {
        writer.op("y", &format!("softmax %x {{axis = {last}}}"), &bracketed(&texts), element);
        return writer.finish("softmax", "%y");
    }
    let (mut places, mut exchanged): (Vec<usize>, _) = ((0..extents.len()).collect(), texts.clone());
    places.swap(axis, last);
    exchanged.swap(axis, last);
    let permutation = bracketed(&places);
    let transposed = bracketed(&exchanged);
    writer.op("t", &format!("transpose %x {{permutation = {permutation}}}"), &transposed, element);
    writer.op("s", &format!("softmax %t {{axis = {last}}}"), &transposed, element);
    writer.op("y", &format!("transpose %s {{permutation = {permutation}}}"), &bracketed(&texts), element);
    writer.finish("softmax", "%y")
}

/// The gradient of softmax: y * (grad - sum(y * grad)), in f32.
pub fn softmax_backward(extents: &[usize], element: &str, axis: usize) -> String {
    let texts = symbolic(extents, &[axis]);
    let full = bracketed(&texts);
    let mut reduced = texts.clone();
    reduced[axis] = "1".to_owned();
    let mut writer = Writer::default();
    writer.input("grad", &full, element);
    writer.input("y", &full, element);
    let (mut grad, mut y) = ("grad", "y");
    if element != "f32" {
        writer.op("grad.f32", "convert %grad", &full, "f32");
        writer.op("y.f32", "convert %y", &full, "f32");
        (grad, y) = ("grad.f32", "y.f32");
    }
    writer.op("weighted", &format!("mul %{grad}, %{y}"), &full, "f32");
    let sum = format!("reduce %weighted {{axes = [{axis}], keep_dims = true, kind = sum}}");
    writer.op("sum", &sum, &bracketed(&reduced), "f32");
    writer.op("centered", &format!("sub %{grad}, %sum"), &full, "f32");
    writer.op("dx", &format!("mul %centered, %{y}"), &full, "f32");
    let mut last = "%dx";
    if element != "f32" {
        writer.op("rounded", "convert %dx", &full, element);
        last = "%rounded";
    }
    writer.finish("softmax_backward", last)
}

/// Permutes axes.
pub fn copy_transpose(extents: &[usize], element: &str, permutation: &[usize]) -> String {
    let texts = symbolic(extents, &[]);
    let result: Vec<&String> = permutation.iter().map(|axis| &texts[*axis]).collect();
    let mut writer = Writer::default();
    writer.input("x", &bracketed(&texts), element);
    let op = format!("transpose %x {{permutation = {}}}", bracketed(permutation));
    writer.op("y", &op, &bracketed(&result), element);
    writer.finish("copy_transpose", "%y")
}

#[cfg(test)]
mod tests;
