//! Parts that multiply: plain `mma`, and `scaled_mma` with three epilogues.

use super::draft::{Draft, Extent, Fixed, Origin, Rows, Val};
use super::rows::blocks;

/// Columns of plain products.
const COLUMNS: [u64; 8] = [2, 3, 8, 31, 33, 64, 80, 96];

/// Columns of scaled products.
const SCALED_COLUMNS: [u64; 4] = [8, 40, 72, 136];

/// The largest number of elements of an operand, so that the interpreter is quick.
const MOST_ELEMENTS: u64 = 1 << 15;

impl Draft {
    /// A plain product of an earlier result or an input with a weight, or with another value.
    pub(super) fn mma_part(&mut self) {
        let is_operand = |value: &Val| {
            ["f32", "bf16", "f16"].contains(&value.element)
                && (2..=3).contains(&value.dims.len())
                && value.origin != Origin::Apart
                && value.elements() <= MOST_ELEMENTS
        };
        let earlier = self.find(is_operand).filter(|_| self.random.percent(80));
        let a = match earlier {
            Some(value) => self.perhaps_viewed(value),
            None => {
                let element = self.random.pick(&["f32", "bf16", "f16"]);
                let dims = self.extents(&[8, 17, 48, 64, 91], false);
                self.input(&dims, element)
            }
        };
        let (k, rank) = (a.last(), a.dims.len());
        let fits = |value: &Val| is_operand(value) && value.element == a.element && value.last() == k;
        let batch = a.dims[..rank - 2].to_vec();
        let other = self.find(|value| {
            fits(value) && (value.dims.len() == 2 || value.dims[..value.dims.len() - 2] == batch[..])
        });
        let b = match (other, k) {
            (Some(value), _) if self.random.percent(40) => value,
            (Some(value), Rows(_)) => value,
            (None, Rows(_)) => {
                let n = Fixed(self.random.pick(&COLUMNS));
                self.input(&[n, k], a.element)
            }
            _ => {
                let n = Fixed(self.random.pick(&COLUMNS));
                match batch.iter().all(|extent| extent.fixed().is_some()) && self.random.percent(50) {
                    true => self.param(&[&batch[..], &[n, k]].concat(), a.element),
                    false => self.weight(n, k, a.element),
                }
            }
        };
        self.read(&a.name, false);
        self.read(&b.name, false);
        let n = b.dims[b.dims.len() - 2];
        let dims: Vec<Extent> = a.dims[..rank - 1].iter().copied().chain([n]).collect();
        let element = if self.random.percent(50) { "f32" } else { a.element };
        self.result(&format!("mma %{}, %{}", a.name, b.name), &dims, element, Origin::Mma);
    }

    /// A weight: a param, or a transposed one, which a session computes once.
    fn weight(&mut self, n: Extent, k: Extent, element: &'static str) -> Val {
        if self.random.percent(60) {
            return self.param(&[n, k], element);
        }
        let transposed = self.param(&[k, n], element);
        let op = format!("transpose %{} {{permutation = [1, 0]}}", transposed.name);
        // No other part reads it: a session computes what depends on params on the CPU, whose sums differ from the GPU's.
        let weight = self.result(&op, &[n, k], element, Origin::Move);
        self.values.pop();
        weight
    }

    /// A scaled product of codes from a norm, an activation, a swizzle or the program's inputs.
    pub(super) fn scaled_mma_part(&mut self) {
        let is_mx = self.random.percent(30);
        let (scale, block) = if is_mx { ("f8E8M0FNU", 32) } else { ("f8E4M3FN", 16) };
        let [codes, scales] = match self.pair(scale, block) {
            Some(pair) => pair,
            None => self.new_pair(is_mx, scale, block),
        };
        self.read(&codes.name, false);
        // Swizzled scales stay an output. Otherwise normalization would drop the swizzle, and the kernel have another source.
        if scales.origin != Origin::Move {
            self.read(&scales.name, false);
        }
        let (k, n) = (codes.last(), Fixed(self.random.pick(&SCALED_COLUMNS)));
        let b = self.param(&[n, k], "f4E2M1FN");
        let sfb = self.weight_scales(&blocks(&[n, k], block), scale);
        let product = format!("scaled_mma %{}, %{}, %{}, %{}", codes.name, scales.name, b.name, sfb.name);
        let dims = [codes.dims[0], n];
        if is_mx {
            let op = format!("{product} {{block = 32}}");
            self.result(&op, &dims, "f32", Origin::ScaledMma);
            return;
        }
        let alpha = self.param(&[], "f32");
        let product = format!("{product}, alpha = %{} {{block = 16}}", alpha.name);
        if self.random.percent(50) {
            self.result(&product, &dims, "f32", Origin::ScaledMma);
            return;
        }
        let sum = self.step(&product, &dims, "f32");
        let bias = self.param(&[n], "f32");
        let biased = self.step(&format!("add %{sum}, %{}", bias.name), &dims, "f32");
        let active = self.step(&format!("gelu %{biased}"), &dims, "f32");
        self.result(&format!("convert %{active}"), &dims, "bf16", Origin::ScaledMma);
    }

    /// Scales of a weight: a param, or one whose layout a session converts once.
    fn weight_scales(&mut self, dims: &[Extent], scale: &'static str) -> Val {
        if self.random.percent(60) {
            return self.scales(dims, scale, "blocked", Origin::Param);
        }
        let linear = self.scales(dims, scale, "linear", Origin::Param);
        let op = format!("swizzle_scales %{}", linear.name);
        let scales = self.result_with(&op, dims, scale, Some("blocked"), Origin::Move);
        self.values.pop();
        scales
    }

    /// Codes and blocked scales of an earlier part, of the same quantization.
    fn pair(&mut self, scale: &str, block: u64) -> Option<[Val; 2]> {
        let position = self.values.windows(2).position(|pair| {
            let [codes, scales] = pair else { return false };
            let is_pair =
                codes.element == "f4E2M1FN" && codes.origin == Origin::Row && codes.name.starts_with('q');
            let fits = matches!(codes.dims[..], [Rows(_), Fixed(_)])
                && scales.dims == blocks(&codes.dims, block)
                && (scales.element, scales.layout) == (scale, Some("blocked"));
            is_pair && fits
        })?;
        Some([self.values[position].clone(), self.values[position + 1].clone()])
    }

    fn new_pair(&mut self, is_mx: bool, scale: &'static str, block: u64) -> [Val; 2] {
        let dims = self.extents(&[32, 64, 96, 160, 224], true);
        match self.random.below(3) {
            0 => {
                let x = self.input(&dims, "bf16");
                match is_mx {
                    true => self.silu_mul_mxfp4(&x),
                    false => self.rms_norm_nvfp4(&x),
                }
            }
            1 => {
                let codes = self.input(&dims, "f4E2M1FN");
                let linear = self.scales(&blocks(&dims, block), scale, "linear", Origin::Input);
                let op = format!("swizzle_scales %{}", linear.name);
                let scales = self.result_with(&op, &linear.dims, scale, Some("blocked"), Origin::Move);
                [codes, scales]
            }
            _ => {
                let codes = self.input(&dims, "f4E2M1FN");
                let scales = self.scales(&blocks(&dims, block), scale, "blocked", Origin::Input);
                [codes, scales]
            }
        }
    }
}
