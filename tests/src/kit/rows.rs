//! Parts that are row kernels. Each writes the same steps whenever it is used, so it has one kernel.

use super::draft::{Draft, Extent, Fixed, Origin, Rows, Val};

/// The numbers of columns whose rows the same threads compute. With one column, a bias would be a scalar.
pub(super) const COLUMNS: [u64; 14] = [2, 7, 16, 31, 32, 33, 48, 64, 91, 96, 127, 128, 160, 255];

/// Numbers of columns that NVFP4 and MXFP4 quantize and kernels multiply.
const BLOCKED: [u64; 5] = [32, 64, 96, 160, 224];

/// Fixed numbers of rows. One row would be a vector.
pub(super) const FIXED_ROWS: [u64; 6] = [2, 3, 7, 17, 33, 130];

/// The largest number of columns of a row part with a fixed number.
const MOST_COLUMNS: u64 = 256;

const REDUCTIONS: [&str; 5] = ["sum", "mean", "max", "min", "amax"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum RowPart {
    Softmax,
    WideSoftmax,
    SoftmaxGradient,
    Masked,
    LayerNorm,
    RmsNorm,
    RmsNormNvfp4,
    SiluMul,
    SiluMulMxfp4,
    BiasRelu,
    Residual,
    Repeated,
    WideChain,
    Reduce,
    Statistics,
    Narrow,
    ToFp8,
    Nvfp4Values,
    MxValues,
    QuantizeNvfp4,
    QuantizeMxfp8,
}

const PARTS: [RowPart; 21] = [
    RowPart::Softmax,
    RowPart::WideSoftmax,
    RowPart::SoftmaxGradient,
    RowPart::Masked,
    RowPart::LayerNorm,
    RowPart::RmsNorm,
    RowPart::RmsNormNvfp4,
    RowPart::SiluMul,
    RowPart::SiluMulMxfp4,
    RowPart::BiasRelu,
    RowPart::Residual,
    RowPart::Repeated,
    RowPart::WideChain,
    RowPart::Reduce,
    RowPart::Statistics,
    RowPart::Narrow,
    RowPart::ToFp8,
    RowPart::Nvfp4Values,
    RowPart::MxValues,
    RowPart::QuantizeNvfp4,
    RowPart::QuantizeMxfp8,
];

impl Draft {
    /// The extents of a new matrix with these columns. The rows of `in_m` are a multiple of M.
    pub(super) fn extents(&mut self, columns: &[u64], in_m: bool) -> Vec<Extent> {
        let columns = Fixed(self.random.pick(columns));
        match self.random.below(10) {
            0..=5 => vec![Rows(1), columns],
            6..=7 if in_m => vec![Rows(1), columns],
            6 => vec![Fixed(2), Rows(1), columns],
            7 => vec![Rows(1), Fixed(3), columns],
            _ if in_m => vec![Rows(2), columns],
            _ => vec![Fixed(self.random.pick(&FIXED_ROWS)), columns],
        }
    }

    /// A matrix that one row part may read: an input, or an earlier result, moved if a kernel would absorb it.
    fn matrix(&mut self, element: &'static str, columns: &[u64], fits: impl Fn(&Val) -> bool) -> Val {
        let suits = |value: &Val| {
            value.element == element && value.layout.is_none() && is_matrix(&value.dims) && fits(value)
        };
        if self.random.percent(75) {
            let ready = |value: &Val| suits(value) && !value.in_row && value.ends_a_kernel();
            if let Some(value) = self.find(ready) {
                self.read(&value.name, true);
                return value;
            }
            if let Some(value) = self.find(|value| value.element == element && value.dims.len() > 1)
                && let Some(moved) = self.link(&value).filter(|moved| suits(moved) && moved.ends_a_kernel())
            {
                self.read(&moved.name, true);
                return moved;
            }
        }
        let dims = self.extents(columns, false);
        self.input(&dims, element)
    }

    pub(super) fn row_part(&mut self) {
        let part = self.random.pick(&PARTS);
        match part {
            RowPart::Softmax => {
                // The epilogue of a scaled_mma has no softmax, so its result may be read, too.
                let product = |value: &Val| value.origin == Origin::ScaledMma && is_matrix(&value.dims);
                let x = match self.find(|value| product(value) && value.element == "f32" && !value.in_row) {
                    Some(value) => {
                        self.read(&value.name, true);
                        value
                    }
                    None => self.matrix("f32", &COLUMNS, |_| true),
                };
                self.softmax(&x);
            }
            RowPart::WideSoftmax => {
                let x = self.wide("f32");
                self.softmax(&x);
            }
            RowPart::WideChain => {
                let x = self.wide("f32");
                let y = self.input(&x.dims, "f32");
                let sum = self.step(&format!("add %{}, %{}", x.name, y.name), &x.dims, "f32");
                self.result(&format!("tanh %{sum}"), &x.dims, "f32", Origin::Row);
            }
            RowPart::SoftmaxGradient => self.softmax_gradient(),
            RowPart::Masked => self.masked(),
            RowPart::LayerNorm => {
                let x = self.matrix("f32", &COLUMNS, |_| true);
                let [w, b] = [0, 1].map(|_| self.param(&[x.last()], "f32"));
                let op = format!("layer_norm %{}, %{}, %{} {{eps = 1e-05}}", x.name, w.name, b.name);
                self.result(&op, &x.dims, "f32", Origin::Row);
            }
            RowPart::RmsNorm => {
                let x = self.matrix("bf16", &COLUMNS, |_| true);
                let (op, dims) = self.rms_norm(&x);
                self.result(&op, &dims, "bf16", Origin::Row);
            }
            RowPart::RmsNormNvfp4 => {
                let x = self.blocked("bf16");
                self.rms_norm_nvfp4(&x);
            }
            RowPart::SiluMul => {
                let x = self.matrix("bf16", &COLUMNS, |_| true);
                let op = self.silu_mul(&x);
                self.result(&op, &x.dims, "bf16", Origin::Row);
            }
            RowPart::SiluMulMxfp4 => {
                let x = self.blocked("bf16");
                self.silu_mul_mxfp4(&x);
            }
            RowPart::BiasRelu => {
                let x = self.matrix("f32", &COLUMNS, |_| true);
                let b = self.param(&[x.last()], "f32");
                let sum = self.step(&format!("add %{}, %{}", x.name, b.name), &x.dims, "f32");
                let relu = self.step(&format!("relu %{sum}"), &x.dims, "f32");
                self.result(&format!("convert %{relu}"), &x.dims, "f16", Origin::Row);
            }
            RowPart::Residual => self.residual(),
            RowPart::Repeated => self.repeated(),
            RowPart::Reduce => {
                let kind = self.random.pick(&REDUCTIONS);
                let x = self.matrix("f32", &COLUMNS, |_| true);
                self.reduce(&x, kind);
            }
            RowPart::Statistics => {
                let x = self.matrix("f16", &COLUMNS, |_| true);
                let wide = self.step(&format!("convert %{}", x.name), &x.dims, "f32");
                let peak = self.reduce_step(&wide, &x.dims, "max");
                let far = self.step(&format!("sub %{wide}, %{peak}"), &x.dims, "f32");
                let grown = self.step(&format!("exp %{far}"), &x.dims, "f32");
                let column = column(&x.dims);
                let axis = x.dims.len() - 1;
                let op = format!("reduce %{grown} {{axes = [{axis}], keep_dims = true, kind = sum}}");
                self.result(&op, &column, "f32", Origin::Row);
                self.result(&format!("convert %{far}"), &x.dims, "f16", Origin::Row);
            }
            RowPart::Narrow => {
                let x = self.matrix("f32", &COLUMNS, |_| true);
                let clamped =
                    self.step(&format!("clamp %{} {{max = 2.5, min = -1}}", x.name), &x.dims, "f32");
                self.result(&format!("convert %{clamped}"), &x.dims, "bf16", Origin::Row);
            }
            RowPart::ToFp8 => {
                let x = self.matrix("f16", &COLUMNS, |_| true);
                self.result(&format!("convert %{}", x.name), &x.dims, "f8E4M3FN", Origin::Row);
            }
            RowPart::Nvfp4Values => self.dequantize("f4E2M1FN", "f8E4M3FN", 16, "linear", "bf16"),
            RowPart::MxValues => self.dequantize("f8E4M3FN", "f8E8M0FNU", 32, "blocked", "f32"),
            RowPart::QuantizeNvfp4 => {
                let x = self.blocked("f32");
                let g = self.param(&[], "f32");
                let op = format!("block_quantize %{}, %{} {{block = 16}}", x.name, g.name);
                self.quantize(&op, &x, "f4E2M1FN", "f8E4M3FN", 16, "linear");
            }
            RowPart::QuantizeMxfp8 => {
                let x = self.blocked("bf16");
                let op = format!("block_quantize %{} {{block = 32, scale_rounding = ceil}}", x.name);
                self.quantize(&op, &x, "f8E4M3FN", "f8E8M0FNU", 32, "blocked");
            }
        }
    }

    /// A matrix that can be quantized in blocks.
    fn blocked(&mut self, element: &'static str) -> Val {
        self.matrix(element, &BLOCKED, |value| value.last().fixed().is_some_and(|k| k.is_multiple_of(32)))
    }

    /// A matrix whose columns are M: of two axes, or a transposed result.
    fn wide(&mut self, element: &'static str) -> Val {
        let suits = |value: &Val| value.element == element && value.ends_a_kernel() && !value.in_row;
        let found = self.find(|value| suits(value) && value.dims.len() > 1 && value.last().fixed().is_none());
        match found {
            Some(value) => {
                self.read(&value.name, true);
                value
            }
            None => {
                let rows = self.random.pick(&FIXED_ROWS);
                self.input(&[Fixed(rows), Rows(1)], element)
            }
        }
    }

    fn softmax(&mut self, x: &Val) {
        let op = format!("softmax %{} {{axis = {}}}", x.name, x.dims.len() - 1);
        self.result(&op, &x.dims, "f32", Origin::Row);
    }

    fn softmax_gradient(&mut self) {
        let y = self.matrix("bf16", &COLUMNS, |_| true);
        let dy = self.input(&y.dims, "bf16");
        let product = self.step(&format!("mul %{}, %{}", dy.name, y.name), &y.dims, "bf16");
        let wide = self.step(&format!("convert %{product}"), &y.dims, "f32");
        let total = self.reduce_step(&wide, &y.dims, "sum");
        let change = self.step(&format!("sub %{}, %{total}", dy.name), &y.dims, "f32");
        let gradient = self.step(&format!("mul %{}, %{change}", y.name), &y.dims, "f32");
        self.result(&format!("convert %{gradient}"), &y.dims, "bf16", Origin::Row);
    }

    fn masked(&mut self) {
        let x = self.matrix("f32", &COLUMNS, |_| true);
        let mask = self.input(&x.dims, "i1");
        let scale = self.step("constant {value = 0.25}", &[], "f32");
        let scaled = self.step(&format!("mul %{}, %{scale}", x.name), &x.dims, "f32");
        let lowest = self.step("constant {value = -inf}", &[], "f32");
        let op = format!("select %{}, %{scaled}, %{lowest}", mask.name);
        let masked = self.step(&op, &x.dims, "f32");
        let op = format!("softmax %{masked} {{axis = {}}}", x.dims.len() - 1);
        self.result(&op, &x.dims, "f32", Origin::Row);
    }

    /// Writes a norm without its last op, which it returns.
    fn rms_norm(&mut self, x: &Val) -> (String, Vec<Extent>) {
        let (dims, column) = (x.dims.clone(), column(&x.dims));
        let weight = self.param(&[x.last()], "bf16");
        let wide = self.step(&format!("convert %{}", x.name), &dims, "f32");
        let square = self.step(&format!("mul %{wide}, %{wide}"), &dims, "f32");
        let mean = self.reduce_step(&square, &dims, "mean");
        let eps = self.step("constant {value = 1e-05}", &[], "f32");
        let moment = self.step(&format!("add %{mean}, %{eps}"), &column, "f32");
        let factor = self.step(&format!("rsqrt %{moment}"), &column, "f32");
        let normal = self.step(&format!("mul %{wide}, %{factor}"), &dims, "f32");
        let short = self.step(&format!("convert %{normal}"), &dims, "bf16");
        (format!("mul %{short}, %{}", weight.name), dims)
    }

    pub(super) fn rms_norm_nvfp4(&mut self, x: &Val) -> [Val; 2] {
        let (op, dims) = self.rms_norm(x);
        let normal = self.step(&op, &dims, "bf16");
        let g = self.param(&[], "f32");
        let op = format!("block_quantize %{normal}, %{} {{block = 16}}", g.name);
        self.quantize(&op, x, "f4E2M1FN", "f8E4M3FN", 16, "blocked")
    }

    fn silu_mul(&mut self, gate: &Val) -> String {
        let up = self.input(&gate.dims, "bf16");
        let active = self.step(&format!("silu %{}", gate.name), &gate.dims, "bf16");
        format!("mul %{active}, %{}", up.name)
    }

    pub(super) fn silu_mul_mxfp4(&mut self, gate: &Val) -> [Val; 2] {
        let op = self.silu_mul(gate);
        let product = self.step(&op, &gate.dims, "bf16");
        let op = format!("block_quantize %{product} {{block = 32, scale_rounding = floor}}");
        self.quantize(&op, gate, "f4E2M1FN", "f8E8M0FNU", 32, "blocked")
    }

    fn residual(&mut self) {
        let x = self.matrix("bf16", &COLUMNS, |_| true);
        let r = self.input(&x.dims, "bf16");
        let scale = self.input(&column(&x.dims), "f32");
        let shift = self.param(&[], "f32");
        let sum = self.step(&format!("add %{}, %{}", x.name, r.name), &x.dims, "bf16");
        let scaled = self.step(&format!("mul %{sum}, %{}", scale.name), &x.dims, "f32");
        self.result(&format!("sub %{scaled}, %{}", shift.name), &x.dims, "f32", Origin::Row);
    }

    /// An operand with fewer matrices than the result.
    fn repeated(&mut self) {
        let columns = Fixed(self.random.pick(&COLUMNS));
        let x = self.input(&[Fixed(3), Rows(1), columns], "f32");
        let y = self.input(&[Rows(1), columns], "f32");
        self.result(&format!("max %{}, %{}", x.name, y.name), &x.dims, "f32", Origin::Row);
    }

    /// A reduction inside a part.
    fn reduce_step(&mut self, value: &str, dims: &[Extent], kind: &str) -> String {
        let op = format!("reduce %{value} {{axes = [{}], keep_dims = true, kind = {kind}}}", dims.len() - 1);
        self.step(&op, &column(dims), "f32")
    }

    fn reduce(&mut self, x: &Val, kind: &str) {
        let axis = x.dims.len() - 1;
        let op = format!("reduce %{} {{axes = [{axis}], keep_dims = false, kind = {kind}}}", x.name);
        self.result(&op, &x.dims[..axis], "f32", Origin::Row);
    }

    fn quantize(
        &mut self,
        op: &str,
        x: &Val,
        element: &'static str,
        scale: &'static str,
        block: u64,
        layout: &'static str,
    ) -> [Val; 2] {
        let codes = Val { element, origin: Origin::Row, in_row: false, ..x.clone() };
        let dims = blocks(&x.dims, block);
        let scales = Val { element: scale, layout: Some(layout), dims, ..codes.clone() };
        self.quantized(op, codes, scales)
    }

    fn dequantize(
        &mut self,
        element: &'static str,
        scale: &'static str,
        block: u64,
        layout: &'static str,
        to: &'static str,
    ) {
        let dims = self.extents(&BLOCKED, false);
        let codes = self.input(&dims, element);
        let scales = self.scales(&blocks(&dims, block), scale, layout, Origin::Input);
        let op = format!("block_dequantize %{}, %{} {{block = {block}}}", codes.name, scales.name);
        self.result(&op, &dims, to, Origin::Apart);
    }

    /// Integers from 0 to 7.
    pub(super) fn indices(&mut self, count: u64) -> Val {
        let drawn = self.input(&[Fixed(count)], "i32");
        let seven = self.step("constant {value = 7}", &[], "i32");
        let dims = drawn.dims.clone();
        self.result(&format!("and %{}, %{seven}", drawn.name), &dims, "i32", Origin::Row)
    }
}

/// Extents of a row part: a fixed number of columns, and rows that are no vector.
fn is_matrix(dims: &[Extent]) -> bool {
    let Some((last, rows)) = dims.split_last() else { return false };
    let is_many = |extent: &Extent| extent.fixed().is_none_or(|extent| extent > 1);
    last.fixed().is_some_and(|columns| (2..=MOST_COLUMNS).contains(&columns)) && rows.iter().any(is_many)
}

fn column(dims: &[Extent]) -> Vec<Extent> {
    let mut dims = dims.to_vec();
    if let Some(last) = dims.last_mut() {
        *last = Fixed(1);
    }
    dims
}

/// The extents of scales.
pub(super) fn blocks(dims: &[Extent], block: u64) -> Vec<Extent> {
    let mut dims = dims.to_vec();
    if let Some(last) = dims.last_mut()
        && let Fixed(columns) = *last
    {
        *last = Fixed(columns / block);
    }
    dims
}
