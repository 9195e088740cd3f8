//! Random products of matrices, and their operands.

use fourfold::ir::{
    BitwiseKind, ConstantValue, Dim, ElementType, OpKind, ScaleLayout, ScaledMmaOptions, Shape, TensorType,
    Value,
};

use super::{ARITHMETIC, Generator, Quantized};
use crate::random::Random;

impl Generator {
    /// Returns f32 numbers whose bits have changed.
    pub(super) fn bits(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let value = self.convert(value, ElementType::F32);
        let shape = self.builder.ty(value).shape.clone();
        let bits = TensorType::new(shape.clone(), ElementType::I32);
        if self.random.percent(30) {
            // Scales have at least two axes.
            let as_scales = TensorType::scales(shape.clone(), ElementType::F8E8M0FNU, ScaleLayout::Linear);
            if shape.len() >= 2 {
                let powers = self.op(OpKind::Convert, &[value], as_scales);
                return self.convert(powers, ElementType::F32);
            }
        }
        let cast = self.op(OpKind::Bitcast, &[value], bits.clone());
        let kind = self.random.pick(BitwiseKind::ALL);
        let number =
            self.random.pick(&[0.0, 1.0, 31.0, 32.0, -1.0, 8_388_607.0, -2_147_483_648.0, 2_139_095_040.0]);
        let other = OpKind::Constant(ConstantValue::Splat(number));
        let other = self.op(other, &[], TensorType::new(Shape::new(), ElementType::I32));
        let changed = self.op(OpKind::Bitwise(kind), &[cast, other], bits);
        self.op(OpKind::Bitcast, &[changed], TensorType::new(shape, ElementType::F32))
    }

    /// Returns scales of `[.., rows, k]`: linear, blocked, or converted from one to the other.
    pub(super) fn scales(
        &mut self,
        mut shape: Shape,
        k: u64,
        element: ElementType,
        block: u32,
        prefer_blocked: bool,
    ) -> Value {
        *shape.last_mut().expect("a matrix") = Dim::fixed(k / u64::from(block));
        let want_blocked = if prefer_blocked { self.random.percent(92) } else { self.random.percent(50) };
        let want = if want_blocked { ScaleLayout::Blocked } else { ScaleLayout::Linear };
        if self.random.percent(40) {
            let other = if want_blocked { ScaleLayout::Linear } else { ScaleLayout::Blocked };
            let stored = self.input(TensorType::scales(shape, element, other));
            self.used.push(stored);
            return self.builder.swizzle_scales("", stored, want);
        }
        self.input(TensorType::scales(shape, element, want))
    }

    pub(super) fn scaled_mma(&mut self, m: &Dim) -> Value {
        let mut wide = vec![ElementType::F4E2M1FN, ElementType::F8E4M3FN, ElementType::F8E5M2];
        if self.extended {
            wide.extend([ElementType::F6E2M3FN, ElementType::F6E3M2FN]);
        }
        // Ops of the fallback only take the places of kernels, so such programs reuse more of what kernels quantize.
        let often = if self.extended { 9 } else { 4 };
        let reused = match (self.quantized.last().cloned(), self.random.below(10)) {
            (Some(newest), draw) if draw < often => Some(newest),
            _ if !self.sampled.is_empty() && self.random.percent(15) => {
                Some(self.random.pick(&self.sampled.clone()))
            }
            _ => None,
        };
        let a = match reused {
            Some(a) => a,
            None => {
                let nvfp4 = self.random.percent(80);
                let block = if nvfp4 { 16 } else { 32 };
                let scale = if nvfp4 { ElementType::F8E4M3FN } else { ElementType::F8E8M0FNU };
                let element = if nvfp4 { ElementType::F4E2M1FN } else { self.random.pick(&wide) };
                // Mostly a K that kernels take, with near misses.
                let k = u64::from(block) * self.random.pick(&[2u64, 2, 4, 6, 8, 10, 3, 1]);
                let batch = if self.random.percent(15) { Some(self.random.pick(&[2u64, 3])) } else { None };
                let lead: Shape = batch.map(Dim::fixed).into_iter().collect();
                let shape = [&lead[..], &[m.clone(), Dim::fixed(k)]].concat();
                let codes = self.input(TensorType::new(shape.clone(), element));
                let scales = self.scales(shape, k, scale, block, true);
                let a = Quantized { codes, scales, block, k, lead };
                self.sampled.push(a.clone());
                a
            }
        };
        let Quantized { codes, scales, block, k, lead } = a;
        let scale = self.builder.ty(scales).element;
        let (codes, scales) = self.perhaps_unscaled(codes, scales);
        let nvfp4 = scale == ElementType::F8E4M3FN;
        let b_element = if nvfp4 { ElementType::F4E2M1FN } else { self.random.pick(&wide) };
        let n = self.random.pick(&[8u64, 24, 32, 40, 64, 64, 72, 96, 96, 12, 5]);
        let shared = !lead.is_empty() && self.random.percent(40);
        let b_lead = if shared { Shape::new() } else { lead.clone() };
        let b_shape = [&b_lead[..], &[Dim::fixed(n), Dim::fixed(k)]].concat();
        let b = self.input(TensorType::new(b_shape.clone(), b_element));
        let sfb = self.scales(b_shape, k, scale, block, true);
        let d = [&lead[..], &[m.clone(), Dim::fixed(n)]].concat();
        self.finish_mma(m, codes, scales, b, sfb, block, n, d)
    }

    /// Replaces, now and then, block-scaled codes by a 16-bit A of their shape without scales.
    pub(super) fn perhaps_unscaled(&mut self, codes: Value, scales: Value) -> (Value, Option<Value>) {
        if !self.extended || self.random.percent(75) {
            return (codes, Some(scales));
        }
        let element = self.random.pick(&[ElementType::BF16, ElementType::F16]);
        let shape = self.builder.ty(codes).shape.clone();
        let same = |value: &&Value| self.builder.ty(**value).shape == shape;
        let value = self.pool.iter().rev().find(same).copied();
        let a = match value.filter(|_| self.random.percent(50)) {
            Some(value) if self.builder.ty(value).element.is_half() => value,
            Some(value) => self.convert(value, element),
            None => self.input(TensorType::new(shape, element)),
        };
        (a, None)
    }

    #[expect(clippy::too_many_arguments, reason = "the four operands are the op")]
    pub(super) fn finish_mma(
        &mut self,
        m: &Dim,
        a: Value,
        sfa: Option<Value>,
        b: Value,
        sfb: Value,
        block: u32,
        n: u64,
        shape: Shape,
    ) -> Value {
        let scalar = |random: &mut Random| {
            TensorType::new(if random.percent(50) { vec![] } else { vec![Dim::fixed(1)] }, ElementType::F32)
        };
        let mut options = ScaledMmaOptions::default();
        if self.random.percent(50) {
            let ty = scalar(&mut self.random);
            options.alpha = Some(self.input(ty));
        }
        if self.random.percent(25) {
            let element = self.random.pick(&ARITHMETIC);
            options.c = Some(self.input(TensorType::new(shape.clone(), element)));
            if self.random.percent(50) {
                let ty = scalar(&mut self.random);
                options.beta = Some(self.input(ty));
            }
        }
        let element = self.random.pick(&ARITHMETIC);
        self.used.extend([a, b, sfb].into_iter().chain(sfa));
        let product = self.builder.scaled_mma("", a, sfa, b, sfb, block, element, options);
        self.epilogue(m, product, n, &shape)
    }

    /// Quantizes a value of the pool and multiplies it with weights.
    pub(super) fn quantized_layer(&mut self, m: &Dim) -> Value {
        let nvfp4 = self.random.percent(70);
        let block = if nvfp4 { 16u32 } else { 32 };
        let k = u64::from(block) * self.random.pick(&[2u64, 4, 6]);
        let element = self.random.pick(&ARITHMETIC);
        let x = self.input(TensorType::new(vec![m.clone(), Dim::fixed(k)], element));
        let x = if self.random.percent(50) { self.unary(x) } else { x };
        let quantized = self.quantize(x, block);
        if self.random.percent(30) {
            let Quantized { codes, scales, .. } = quantized;
            self.used.extend([codes, scales]);
            let mut operands = vec![codes, scales];
            operands
                .extend(nvfp4.then_some(()).map(|()| self.input(TensorType::new(vec![], ElementType::F32))));
            let element = self.random.pick(&ARITHMETIC);
            let shape = vec![m.clone(), Dim::fixed(k)];
            return self.op(OpKind::BlockDequantize { block }, &operands, TensorType::new(shape, element));
        }
        self.quantized.push(quantized);
        self.scaled_mma(m)
    }

    pub(super) fn plain_mma(&mut self, m: &Dim) -> Value {
        let n = self.random.pick(&[8u64, 24, 13]);
        let element = self.random.pick(&ARITHMETIC);
        let dequantized = self.random.percent(50);
        let k = self.random.pick(if dequantized { &[32u64, 64, 96] } else { &[16u64, 33, 64] });
        let mut operand = |rows: Dim| {
            if dequantized {
                return self.dequantized(rows, k, element);
            }
            let value = self.input(TensorType::new(vec![rows, Dim::fixed(k)], element));
            self.used.push(value);
            value
        };
        let (a, b) = (operand(m.clone()), operand(Dim::fixed(n)));
        let out = self.random.pick(&ARITHMETIC);
        let product = self.builder.mma("", a, b, out);
        self.epilogue(m, product, n, &vec![m.clone(), Dim::fixed(n)])
    }

    /// Multiplies NVFP4 codes with their scales: normalization turns the product into a `scaled_mma`.
    pub(super) fn dequantized(&mut self, rows: Dim, k: u64, element: ElementType) -> Value {
        const BLOCK: u32 = 16;
        let shape = vec![rows.clone(), Dim::fixed(k)];
        let codes = self.input(TensorType::new(shape.clone(), ElementType::F4E2M1FN));
        let layout = self.random.pick(&[ScaleLayout::Linear, ScaleLayout::Blocked]);
        let scales_shape = vec![rows, Dim::fixed(k / u64::from(BLOCK))];
        let scales = self.input(TensorType::scales(scales_shape, ElementType::F8E4M3FN, layout));
        self.used.extend([codes, scales]);
        self.op(OpKind::BlockDequantize { block: BLOCK }, &[codes, scales], TensorType::new(shape, element))
    }
}
