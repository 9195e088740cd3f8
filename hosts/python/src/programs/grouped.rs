//! The program of a product whose rows are sorted by expert.

use super::{Format, Left, Writer, layout, shape};
use crate::error::Error;

/// A product of `[T, K]` rows and the matrix of each row's expert.
#[derive(Debug)]
pub struct GroupedMm {
    /// A. Its scales are linear.
    pub a: Left,
    /// The format of B.
    pub format: Format,
    /// The number of experts.
    pub experts: usize,
    /// Columns of the result.
    pub n: usize,
    /// Elements of a row.
    pub k: usize,
    /// Scales of B are swizzled.
    pub swizzled_b: bool,
    /// The number of f32 factors: one, or one for each expert.
    pub alphas: Option<usize>,
    /// The type of a bias of `[E, N]`.
    pub bias: Option<&'static str>,
    /// `none`, `relu`, `gelu`, `gelu_tanh` or `silu`.
    pub activation: String,
    /// The result type.
    pub out: &'static str,
}

impl GroupedMm {
    /// The text. Inputs: a, sfa, b, sfb, ends, alpha, bias, expert, without those that are absent.
    pub fn program(&self) -> Result<String, Error> {
        let Format { block, codes, scale, .. } = self.format;
        let mut writer = Writer::default();
        let rows = ["T".to_owned()];
        let columns = [self.experts.to_string(), self.n.to_string()];
        let (d, scales) = (shape(&rows, self.n), shape(&columns, self.k / block));
        let mut left = "%a";
        match self.a {
            Left::Blocks { format, swizzled } => {
                writer.input("a", &shape(&rows, self.k), format.codes);
                let element = format!("{}, {}", format.scale, layout(swizzled));
                writer.input("sfa", &shape(&rows, self.k / block), &element);
                left = "%a, %sfa";
            }
            Left::Dense(element) => writer.input("a", &shape(&rows, self.k), element),
        }
        writer.input("b", &shape(&columns, self.k), codes);
        writer.input("sfb", &scales, &format!("{scale}, {}", layout(self.swizzled_b)));
        writer.input("ends", &format!("[{}]", self.experts), "i32");
        if let Some(alphas) = self.alphas {
            writer.input("alpha", &format!("[{alphas}]"), "f32");
        }
        if let Some(element) = self.bias {
            writer.input("bias", &shape(&columns[..1], self.n), element);
            writer.input("expert", "[T]", "i32");
        }
        let mut sfb = "sfb";
        if !self.swizzled_b {
            writer.op("sfb.blocked", "swizzle_scales %sfb", &scales, &format!("{scale}, blocked"));
            sfb = "sfb.blocked";
        }
        let alpha = if self.alphas.is_some() { ", alpha = %alpha" } else { "" };
        let product = format!("grouped_scaled_mma {left}, %b, %{sfb}, %ends{alpha} {{block = {block}}}");
        writer.op("product", &product, &d, "f32");
        let mut last = "product";
        if let Some(element) = self.bias {
            // Rows of no expert have this index, and no bias.
            let padded = format!("[{}, {}]", self.experts + 1, self.n);
            let pad = "pad %bias {axes = [0], high = [1], low = [0], value = 0}";
            writer.op("bias.padded", pad, &padded, element);
            writer.op("bias.rows", "gather %bias.padded, %expert {axis = 0}", &d, element);
            writer.op("biased", "add %product, %bias.rows", &d, "f32");
            last = "biased";
        }
        let last = writer.end_product(last, &self.activation, &d, self.out)?;
        Ok(writer.finish("grouped_mm", &format!("%{last}")))
    }
}
