//! Generates random valid programs: odd shapes, symbolic extents, values used inside and outside of kernels,
//! several roots, chains of roots through quantization, and near misses.

mod grouping;

use fourfold::codegen::{BINARY_FUNCTIONS, UNARY_FUNCTIONS};
use fourfold::ir::numeric::{
    CodeFormula, InfinityScale, LeastScale, LeastStep, MxEdges, NanScale, Nvfp4Formula, ScaleMin, Scaling,
};
use fourfold::ir::sample::{Recipe, Rule};
use fourfold::ir::{
    BinaryKind, BitwiseKind, Builder, ConstantValue, Dim, ElementType, Module, OpKind, PadAmount, Predicate,
    ReduceKind, ScaleLayout, ScaleRounding, ScaledMmaOptions, Shape, SliceRange, TensorType, UnaryKind,
    Value,
};

use crate::random::Random;

/// A program and the recipe of its inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// The module, which verifies.
    pub module: Module,
    /// The recipe of seeded inputs.
    pub recipe: Recipe,
}

/// Returns a random program of about this many steps. The same seed gives the same program.
pub fn case(seed: u64, steps: usize) -> Case {
    let mut random = Random::new(seed);
    let builder = Builder::new("random");
    let rule = random.pick(&[Rule::Exact, Rule::Exact, Rule::Contest, Rule::Normal]);
    let rows = random.pick(&[1u64, 3, 37, 91, 130]);
    let mut generator = Generator {
        random,
        builder,
        inputs: 0,
        pool: Vec::new(),
        ends: Vec::new(),
        quantized: Vec::new(),
        sampled: Vec::new(),
        used: Vec::new(),
        // The other seeds give the programs that they gave before there were ops of the fallback only.
        extended: seed.is_multiple_of(2),
    };
    let symbolic = generator.random.percent(50);
    let m = if symbolic { generator.builder.symbol("M") } else { Dim::fixed(rows) };
    if symbolic {
        // Every symbol needs an input that determines it.
        let seen = generator.input(TensorType::new(vec![m.clone()], ElementType::F32));
        generator.pool.push(seen);
    }
    for _ in 0..steps.max(1) {
        generator.step(&m);
        generator.extra_step(&m);
    }
    let outputs = generator.outputs();
    let symbols = if symbolic { vec![("M".to_owned(), rows)] } else { Vec::new() };
    Case { module: generator.builder.finish(&outputs), recipe: Recipe { rule, seed, symbols } }
}

struct Generator {
    random: Random,
    builder: Builder,
    inputs: usize,
    /// Values that arithmetic ops accept.
    pool: Vec<Value>,
    /// Other values that may be returned.
    ends: Vec<Value>,
    /// Values quantized by the program, to be multiplied.
    quantized: Vec<Quantized>,
    /// The A operands of products.
    sampled: Vec<Quantized>,
    used: Vec<Value>,
    /// True if the program has ops and functions that only the fallback computes.
    extended: bool,
}

/// A matrix quantized in blocks.
#[derive(Clone)]
struct Quantized {
    codes: Value,
    scales: Value,
    block: u32,
    k: u64,
    /// The leading extents.
    lead: Shape,
}

const ARITHMETIC: [ElementType; 4] =
    [ElementType::F32, ElementType::F32, ElementType::BF16, ElementType::F16];

impl Generator {
    fn input(&mut self, ty: TensorType) -> Value {
        let name = format!("in.{}", self.inputs);
        self.inputs += 1;
        if self.random.percent(40) { self.builder.param(&name, ty) } else { self.builder.input(&name, ty) }
    }

    fn op(&mut self, kind: OpKind, operands: &[Value], ty: TensorType) -> Value {
        self.used.extend(operands);
        self.builder.op(kind, operands, &[("", ty)])[0]
    }

    fn ops<const N: usize>(
        &mut self,
        kind: OpKind,
        operands: &[Value],
        types: [TensorType; N],
    ) -> [Value; N] {
        self.used.extend(operands);
        let results = types.map(|ty| ("", ty));
        self.builder.op(kind, operands, &results).try_into().expect("one value per result")
    }

    fn unary(&mut self, value: Value) -> Value {
        let any = self.extended && self.random.percent(10);
        let kind = self.random.pick(if any { UnaryKind::ALL } else { &UNARY_FUNCTIONS });
        let ty = self.builder.ty(value).clone();
        self.op(OpKind::Unary(kind), &[value], ty)
    }

    /// Returns mostly a kind that kernels compute.
    fn binary_kind(&mut self) -> BinaryKind {
        let any = self.extended && self.random.percent(5);
        self.random.pick(if any { BinaryKind::ALL } else { &BINARY_FUNCTIONS })
    }

    fn convert(&mut self, value: Value, element: ElementType) -> Value {
        let ty = TensorType::new(self.builder.ty(value).shape.clone(), element);
        self.op(OpKind::Convert, &[value], ty)
    }

    fn binary(&mut self, kind: BinaryKind, left: Value, right: Value) -> Value {
        self.used.extend([left, right]);
        self.builder.binary("", kind, left, right)
    }

    fn pick_from_pool(&mut self, m: &Dim) -> Value {
        if self.pool.is_empty() || self.random.percent(5) {
            let columns = self.random.pick(&[7u64, 16, 33, 48, 64]);
            let element = self.random.pick(&ARITHMETIC);
            let value = self.input(TensorType::new(vec![m.clone(), Dim::fixed(columns)], element));
            self.pool.push(value);
        }
        let index = self.random.below(self.pool.len());
        self.pool[index]
    }

    fn step(&mut self, m: &Dim) {
        let value = match self.random.below(24) {
            0..=6 | 22 | 23 => self.scaled_mma(m),
            7 => self.plain_mma(m),
            8 => self.quantized_layer(m),
            9..=11 => {
                let value = self.pick_from_pool(m);
                self.unary(value)
            }
            12 | 13 => self.random_binary(m),
            14 => {
                let value = self.pick_from_pool(m);
                let element = self.random.pick(&ARITHMETIC);
                self.convert(value, element)
            }
            15 => self.compare_and_select(m),
            16 => self.reshape_or_transpose(m),
            17 => self.reduce(m),
            18 => self.softmax_or_norm(m),
            19 => self.clamp(m),
            20 => self.constant(),
            _ => self.broadcast(m),
        };
        self.pool.push(value);
    }

    /// Adds, now and then, an op that only the fallback computes.
    fn extra_step(&mut self, m: &Dim) {
        if !self.extended || self.random.percent(60) {
            return;
        }
        let value = match self.random.below(8) {
            7 => self.choose(m),
            6 => self.grouped(m),
            5 => self.routed(m),
            4 => self.bits(m),
            0 => self.slice(m),
            1 => self.concat(m),
            2 => self.gather(m),
            _ => self.pad(m),
        };
        self.pool.push(value);
    }

    /// Returns f32 numbers whose bits have changed.
    fn bits(&mut self, m: &Dim) -> Value {
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
    fn scales(
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

    fn scaled_mma(&mut self, m: &Dim) -> Value {
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
    fn perhaps_unscaled(&mut self, codes: Value, scales: Value) -> (Value, Option<Value>) {
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
    fn finish_mma(
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

    /// Adds a DAG of elementwise ops over a product, mostly one that an epilogue can compute and that ends in one
    /// value.
    fn epilogue(&mut self, m: &Dim, product: Value, n: u64, shape: &Shape) -> Value {
        // Values without a use so far, the newest last.
        let mut open = vec![product];
        let mut all = vec![product];
        for _ in 0..self.random.below(8) {
            let last = *open.last().unwrap_or(&product);
            // Another branch from an earlier value.
            let value = if self.random.percent(25) { self.random.pick(&all) } else { last };
            if self.random.percent(8) {
                self.pool.push(value); // Another op may use it, or the program returns it.
            }
            let result = self.epilogue_step(value, &all, m, n, shape);
            open.retain(|open| *open != value);
            open.push(result);
            all.push(result);
        }
        while self.random.percent(if n.is_multiple_of(32) { 45 } else { 20 }) {
            let value = self.random.pick(&all);
            self.end(value, n, shape);
        }
        if self.random.percent(10) {
            // Branches that do not join.
            self.pool.extend(open.split_off(1));
        }
        while open.len() > 1 {
            let (left, right) = (open.remove(0), open.remove(0));
            let kind = self.binary_kind();
            open.push(self.binary(kind, left, right));
        }
        open.pop().unwrap_or(product)
    }

    /// Adds another output that a kernel may write: blocks or a reduction, with near misses.
    fn end(&mut self, value: Value, n: u64, shape: &Shape) {
        let element = self.builder.ty(value).element;
        if !element.is_arithmetic() {
            return;
        }
        if self.random.percent(60) && n.is_multiple_of(16) {
            let nvfp4 = !n.is_multiple_of(32) || self.random.percent(60);
            let blocks = self.quantize(value, if nvfp4 { 16 } else { 32 });
            self.ends.extend([blocks.codes, blocks.scales]);
            self.quantized.push(blocks);
            return;
        }
        let value = if element == ElementType::F32 || self.random.percent(20) {
            value
        } else {
            self.convert(value, ElementType::F32)
        };
        let rank = shape.len() as u32;
        let axes: Vec<u32> = match self.random.below(8) {
            0 | 1 => (0..rank).collect(),
            2 | 3 => (0..rank - 1).collect(),
            4..=6 => vec![rank - 1],
            _ => vec![rank - 2],
        };
        let kind = self.random.pick(&[ReduceKind::Amax, ReduceKind::Amax, ReduceKind::Max, ReduceKind::Sum]);
        let reduced = self.reduce_along(kind, axes, value);
        // It may be used further, such as for a scale.
        if self.random.percent(40) { self.pool.push(reduced) } else { self.ends.push(reduced) }
    }

    /// Returns codes, mostly with blocked scales.
    /// The default formula in most cases.
    fn formula(&mut self) -> Nvfp4Formula {
        if self.random.percent(60) {
            return Nvfp4Formula::DEFAULT;
        }
        let bound = self.random.pick(&[0.0, 0.015625, f32::NEG_INFINITY]);
        Nvfp4Formula {
            scale_min: ScaleMin::new(bound).expect("the bound is valid"),
            amax: self.random.pick(&[Scaling::Divide, Scaling::Multiply]),
            global: self.random.pick(&[Scaling::Divide, Scaling::Multiply]),
            codes: self.random.pick(&CodeFormula::ALL),
            guard: self.random.percent(30),
            ..Nvfp4Formula::DEFAULT
        }
    }

    /// The default edges in most cases.
    fn edges(&mut self) -> Nvfp4Formula {
        if self.random.percent(60) {
            return Nvfp4Formula::DEFAULT;
        }
        let mx = MxEdges {
            infinity: self.random.pick(InfinityScale::ALL),
            nan: self.random.pick(NanScale::ALL),
            least_scale: LeastScale::of_byte(self.random.pick(&[0, 1, 120])).expect("a number"),
            least_step: self.random.pick(LeastStep::ALL),
        };
        Nvfp4Formula { mx, ..Nvfp4Formula::DEFAULT }
    }

    fn quantize(&mut self, value: Value, block: u32) -> Quantized {
        let shape = self.builder.ty(value).shape.clone();
        let nvfp4 = block == 16;
        let codes = if nvfp4 {
            ElementType::F4E2M1FN
        } else {
            let six = self.extended && self.random.percent(25);
            self.random.pick(if six {
                &[ElementType::F6E2M3FN, ElementType::F6E3M2FN]
            } else {
                &[ElementType::F4E2M1FN, ElementType::F8E4M3FN, ElementType::F8E5M2]
            })
        };
        let scale = if nvfp4 { ElementType::F8E4M3FN } else { ElementType::F8E8M0FNU };
        let layout = if self.random.percent(80) { ScaleLayout::Blocked } else { ScaleLayout::Linear };
        let mut operands = vec![value];
        let formula = if nvfp4 { self.formula() } else { self.edges() };
        if nvfp4 && (formula.guard || self.random.percent(70)) {
            let one = if self.random.percent(50) { vec![] } else { vec![Dim::fixed(1)] };
            operands.push(self.input(TensorType::new(one, ElementType::F32)));
        }
        let rounding = self.random.pick(&[ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even]);
        let kind = OpKind::BlockQuantize { block, scale_rounding: (!nvfp4).then_some(rounding), formula };
        let (lead, last) = shape.split_at(shape.len() - 1);
        let k = last[0].as_fixed().expect("only rows are symbolic");
        let scale_shape = [lead, &[Dim::fixed(k / u64::from(block))]].concat();
        let results = [
            ("", TensorType::new(shape.clone(), codes)),
            ("", TensorType::scales(scale_shape, scale, layout)),
        ];
        self.used.extend(&operands);
        let results = self.builder.op(kind, &operands, &results);
        let lead = lead[..lead.len() - 1].to_vec();
        Quantized { codes: results[0], scales: results[1], block, k, lead }
    }

    fn epilogue_step(&mut self, value: Value, all: &[Value], m: &Dim, n: u64, shape: &Shape) -> Value {
        match self.random.below(16) {
            0..=4 => {
                let operand = self.epilogue_operand(m, n, shape);
                let kind = self.binary_kind();
                let (left, right) = if self.random.percent(70) { (value, operand) } else { (operand, value) };
                self.binary(kind, left, right)
            }
            5..=8 => self.unary(value),
            9 | 10 => {
                let other = self.random.pick(all);
                let kind = self.binary_kind();
                self.binary(kind, value, other)
            }
            11 | 12 => {
                let element = self.random.pick(&ARITHMETIC);
                self.convert(value, element)
            }
            13 => {
                let ty = self.builder.ty(value).clone();
                let min = self.random.pick(&[-100.3, -0.0, 0.1]);
                let max = self.random.pick(&[0.3, 6.0, f64::INFINITY]);
                self.op(OpKind::Clamp { min, max }, &[value], ty)
            }
            14 => {
                let (threshold, other) = (self.epilogue_operand(m, n, shape), self.random.pick(all));
                let predicate = self.random.pick(Predicate::ALL);
                let shape = self.builder.ty(value).shape.clone();
                let mask = TensorType::new(shape.clone(), ElementType::I1);
                let mask = self.op(OpKind::Compare(predicate), &[value, threshold], mask);
                let (then, otherwise) = (self.builder.ty(value).element, self.builder.ty(other).element);
                let element = then.join(otherwise).expect("both types are arithmetic");
                self.op(OpKind::Select, &[mask, value, other], TensorType::new(shape, element))
            }
            _ => {
                let element = self.random.pick(&[ElementType::F8E4M3FN, ElementType::F8E5M2]);
                let narrow = self.convert(value, element);
                if self.random.percent(30) {
                    self.ends.push(narrow);
                }
                self.convert(narrow, ElementType::F32)
            }
        }
    }

    /// Returns an operand that an epilogue can read and, now and then, one that it cannot.
    fn epilogue_operand(&mut self, m: &Dim, n: u64, shape: &Shape) -> Value {
        let rows: Shape = shape[..shape.len() - 1].iter().cloned().chain([Dim::fixed(1)]).collect();
        let operand = match self.random.below(12) {
            0..=3 => vec![Dim::fixed(n)],
            4 => vec![Dim::fixed(1), Dim::fixed(n)],
            5 | 6 => rows,
            7 => vec![m.clone(), Dim::fixed(1)],
            8 => vec![],
            9 => {
                let number = self.random.pick(&[0.5, -1.5, 0.0, 1e-3]);
                let kind = OpKind::Constant(ConstantValue::Splat(number));
                let element = self.random.pick(&ARITHMETIC);
                return self.op(kind, &[], TensorType::new(vec![], element));
            }
            _ => shape.clone(),
        };
        let element = self.random.pick(&ARITHMETIC);
        self.input(TensorType::new(operand, element))
    }

    /// Quantizes a value of the pool and multiplies it with weights.
    fn quantized_layer(&mut self, m: &Dim) -> Value {
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

    fn plain_mma(&mut self, m: &Dim) -> Value {
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
    fn dequantized(&mut self, rows: Dim, k: u64, element: ElementType) -> Value {
        const BLOCK: u32 = 16;
        let shape = vec![rows.clone(), Dim::fixed(k)];
        let codes = self.input(TensorType::new(shape.clone(), ElementType::F4E2M1FN));
        let layout = self.random.pick(&[ScaleLayout::Linear, ScaleLayout::Blocked]);
        let scales_shape = vec![rows, Dim::fixed(k / u64::from(BLOCK))];
        let scales = self.input(TensorType::scales(scales_shape, ElementType::F8E4M3FN, layout));
        self.used.extend([codes, scales]);
        self.op(OpKind::BlockDequantize { block: BLOCK }, &[codes, scales], TensorType::new(shape, element))
    }

    fn random_binary(&mut self, m: &Dim) -> Value {
        let left = self.pick_from_pool(m);
        let kind = self.binary_kind();
        let shape = self.builder.ty(left).shape.clone();
        let right = if self.random.percent(30) && self.builder.ty(left).element.is_arithmetic() {
            left
        } else {
            // An operand to broadcast: some extents become 1, leading ones may be dropped.
            let keep = self.random.below(shape.len() + 1);
            let mut shape = shape[shape.len() - keep..].to_vec();
            for dim in &mut shape {
                if self.random.percent(25) {
                    *dim = Dim::fixed(1);
                }
            }
            let element = self.random.pick(&ARITHMETIC);
            self.input(TensorType::new(shape, element))
        };
        if self.random.percent(50) { self.binary(kind, left, right) } else { self.binary(kind, right, left) }
    }

    fn compare_and_select(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        let threshold = self.op(
            OpKind::Constant(ConstantValue::Splat(0.25)),
            &[],
            TensorType::new(vec![], ElementType::F32),
        );
        let predicate = self.random.pick(Predicate::ALL);
        let mask_ty = TensorType::new(ty.shape.clone(), ElementType::I1);
        let mask = self.op(OpKind::Compare(predicate), &[value, threshold], mask_ty);
        let other = self.unary(value);
        self.op(OpKind::Select, &[mask, value, other], ty)
    }

    fn reshape_or_transpose(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        let rank = ty.rank();
        if rank >= 2 && self.random.percent(60) {
            let mut permutation: Vec<u32> = (0..rank as u32).collect();
            permutation.rotate_left(1 + self.random.below(rank - 1));
            let shape = permutation.iter().map(|axis| ty.shape[*axis as usize].clone()).collect();
            return self.op(OpKind::Transpose { permutation }, &[value], TensorType::new(shape, ty.element));
        }
        let flat = fourfold::ir::dim_product(&ty.shape).expect("small extents");
        let shape =
            if self.random.percent(50) { vec![flat] } else { vec![Dim::fixed(1), flat, Dim::fixed(1)] };
        self.op(OpKind::Reshape, &[value], TensorType::new(shape, ty.element))
    }

    fn reduce(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        if ty.rank() == 0 {
            return self.unary(value);
        }
        let axes: Vec<u32> = (0..ty.rank() as u32).filter(|_| self.random.percent(60)).collect();
        let axes = if axes.is_empty() { vec![0] } else { axes };
        let kind = self.random.pick(ReduceKind::ALL);
        self.reduce_along(kind, axes, value)
    }

    fn reduce_along(&mut self, kind: ReduceKind, axes: Vec<u32>, value: Value) -> Value {
        let ty = self.builder.ty(value).clone();
        let keep_dims = self.random.percent(50);
        let reduced = |axis: usize| axes.contains(&(axis as u32));
        let shape = ty
            .shape
            .iter()
            .enumerate()
            .filter(|(axis, _)| keep_dims || !reduced(*axis))
            .map(|(axis, dim)| if reduced(axis) { Dim::fixed(1) } else { dim.clone() })
            .collect();
        let kind = OpKind::Reduce { kind, axes: axes.clone(), keep_dims };
        self.op(kind, &[value], TensorType::new(shape, ty.element))
    }

    fn softmax_or_norm(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        let Some(last) = ty.shape.last().cloned() else { return self.unary(value) };
        if self.random.percent(50) {
            let axis = self.random.below(ty.rank()) as u32;
            return self.op(OpKind::Softmax { axis }, &[value], ty);
        }
        let weight = self.input(TensorType::new(vec![last.clone()], ElementType::F32));
        let bias = self.input(TensorType::new(vec![last], ElementType::F32));
        let ty = TensorType::new(ty.shape, ElementType::F32);
        self.op(OpKind::LayerNorm { eps: 1e-5 }, &[value, weight, bias], ty)
    }

    fn clamp(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        self.op(OpKind::Clamp { min: -0.75, max: 1.5 }, &[value], ty)
    }

    fn constant(&mut self) -> Value {
        let values: Vec<f64> = (0..5).map(|_| self.random.below(2000) as f64 / 128.0 - 7.0).collect();
        let ty = TensorType::new(vec![Dim::fixed(5)], self.random.pick(&ARITHMETIC));
        self.op(OpKind::Constant(ConstantValue::Dense(values)), &[], ty)
    }

    fn broadcast(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        if ty.rank() > 3 {
            return self.unary(value);
        }
        let mut shape = ty.shape.clone();
        for dim in &mut shape {
            if dim.as_fixed() == Some(1) && self.random.percent(50) {
                *dim = Dim::fixed(3);
            }
        }
        shape.insert(0, Dim::fixed(2));
        self.op(OpKind::Broadcast, &[value], TensorType::new(shape, ty.element))
    }

    /// Returns a value of the pool with at least one axis, and not so many elements that repeated joins could exceed
    /// memory.
    fn pick_small(&mut self, m: &Dim) -> Option<(Value, TensorType)> {
        const MOST: u64 = 1 << 14;
        const SYMBOL: u64 = 130;
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        let extents = ty.shape.iter().map(|dim| dim.constant() * SYMBOL.pow(dim.symbols().len() as u32));
        (ty.rank() > 0 && extents.product::<u64>() <= MOST).then_some((value, ty))
    }

    fn slice(&mut self, m: &Dim) -> Value {
        let Some((value, ty)) = self.pick_small(m) else { return self.constant() };
        if let (Some(codes), true) = (self.quantized.last().cloned(), self.random.percent(30)) {
            self.slice_codes(&codes);
        }
        let mut shape = ty.shape.clone();
        let mut ranges = Vec::new();
        for (axis, dim) in shape.iter_mut().enumerate() {
            let Some(extent) = dim.as_fixed().filter(|_| self.random.percent(60)) else { continue };
            let start = self.random.below(extent as usize + 1) as u64;
            let end = start + self.random.below((extent - start) as usize + 1) as u64;
            let step = self.random.pick(&[1u64, 1, 1, 2, 3, 1000]);
            // An empty result is rare, because it tests little of the ops behind it.
            let (start, end) =
                if start == end && self.random.percent(80) { (0, extent) } else { (start, end) };
            let range = SliceRange { axis: axis as u32, start, end, step };
            *dim = Dim::fixed(range.extent());
            ranges.push(range);
        }
        self.op(OpKind::Slice { ranges }, &[value], TensorType::new(shape, ty.element))
    }

    /// Slices codes along K, and their scales if they are linear.
    fn slice_codes(&mut self, of: &Quantized) {
        let from = u64::from(of.block);
        for (value, start, end) in [(of.codes, from, of.k), (of.scales, 1, of.k / u64::from(of.block))] {
            let mut ty = self.builder.ty(value).clone();
            if ty.layout == Some(ScaleLayout::Blocked) || ty.element.is_fp6() {
                continue;
            }
            let axis = ty.rank() - 1;
            let range = SliceRange { axis: axis as u32, start, end, step: 1 };
            ty.shape[axis] = Dim::fixed(range.extent());
            let sliced = self.op(OpKind::Slice { ranges: vec![range] }, &[value], ty);
            self.ends.push(sliced);
        }
    }

    fn concat(&mut self, m: &Dim) -> Value {
        let Some((value, ty)) = self.pick_small(m) else { return self.constant() };
        let axis = self.random.below(ty.rank());
        let mut operands = vec![value];
        let mut sum = ty.shape[axis].clone();
        for _ in 0..self.random.below(3) {
            let mut other = ty.clone();
            if other.shape[axis].as_fixed().is_some() {
                other.shape[axis] = Dim::fixed(self.random.pick(&[0u64, 1, 5]));
            }
            sum = sum.plus(&other.shape[axis]).expect("both have the same symbols");
            let same = other == ty && self.random.percent(50);
            operands.push(if same { value } else { self.input(other) });
        }
        let rotation = self.random.below(operands.len());
        operands.rotate_left(rotation);
        let mut shape = ty.shape;
        shape[axis] = sum;
        self.op(OpKind::Concat { axis: axis as u32 }, &operands, TensorType::new(shape, ty.element))
    }

    /// Chooses between a value, its negation and perhaps an input.
    fn choose(&mut self, m: &Dim) -> Value {
        let value = self.pick_from_pool(m);
        let ty = self.builder.ty(value).clone();
        if ty.rank() == 0 {
            return self.constant();
        }
        let mut operands = vec![value, self.op(OpKind::Unary(UnaryKind::Neg), &[value], ty.clone())];
        if self.random.percent(30) {
            operands.push(self.input(ty.clone()));
        }
        let rotation = self.random.below(operands.len());
        operands.rotate_left(rotation);
        let axis = self.random.below(ty.rank()) as u32;
        let first = self.random.pick(&[0u32, 1, 2, 16, 63, 128]);
        let ends = (1..operands.len() as u32).map(|more| first + more - 1).collect();
        self.op(OpKind::Choose { axis, ends }, &operands, ty)
    }

    fn gather(&mut self, m: &Dim) -> Value {
        let Some((value, ty)) = self.pick_small(m) else { return self.constant() };
        let axis = self.random.below(ty.rank());
        // A symbolic axis has at least one element.
        let extent = ty.shape[axis].as_fixed().unwrap_or(1);
        if extent == 0 {
            return self.unary(value);
        }
        let indices = self.indices(m, ty.rank() > 3, extent);
        let taken = self.builder.ty(indices).shape.clone();
        let shape = [&ty.shape[..axis], &taken, &ty.shape[axis + 1..]].concat();
        self.op(OpKind::Gather { axis: axis as u32 }, &[value, indices], TensorType::new(shape, ty.element))
    }

    /// Returns integers below `extent`: arithmetic on sampled integers, or on converted floats.
    fn indices(&mut self, m: &Dim, flat: bool, extent: u64) -> Value {
        let shape = match self.random.below(if flat { 1 } else { 4 }) {
            0 => vec![],
            1 => vec![m.clone()],
            2 => vec![Dim::fixed(2), Dim::fixed(3)],
            _ => vec![Dim::fixed(0)],
        };
        self.indices_of(shape, extent)
    }

    fn indices_of(&mut self, shape: Shape, extent: u64) -> Value {
        let converted = self.random.percent(30);
        let element = if converted { ElementType::F32 } else { ElementType::I32 };
        let mut value = self.input(TensorType::new(shape, element));
        if converted {
            value = self.convert(value, ElementType::I32);
        }
        for kind in [BinaryKind::Mul, BinaryKind::Sub, BinaryKind::Add] {
            if self.random.percent(40) {
                let number = self.random.pick(&[3.0, -7.0, 65_537.0, 2_147_483_647.0]);
                let number = self.integer(number);
                value = self.binary(kind, value, number);
            }
        }
        if self.random.percent(30) {
            self.ends.push(value);
        }
        let (least, most) = (self.integer(0.0), self.integer((extent - 1) as f64));
        value = self.binary(BinaryKind::Max, value, least);
        self.binary(BinaryKind::Min, value, most)
    }

    fn integer(&mut self, number: f64) -> Value {
        let ty = TensorType::new(vec![], ElementType::I32);
        self.op(OpKind::Constant(ConstantValue::Splat(number)), &[], ty)
    }

    fn pad(&mut self, m: &Dim) -> Value {
        let Some((value, ty)) = self.pick_small(m) else { return self.constant() };
        let mut shape = ty.shape.clone();
        let mut amounts = Vec::new();
        for (axis, dim) in shape.iter_mut().enumerate() {
            let Some(extent) = dim.as_fixed().filter(|_| self.random.percent(60)) else { continue };
            let (low, high) = (self.random.below(3) as u64, self.random.below(4) as u64);
            amounts.push(PadAmount { axis: axis as u32, low, high });
            *dim = Dim::fixed(extent + low + high);
        }
        let value_of_padding = self.random.pick(&[0.0, -0.0, 1.1, f64::NEG_INFINITY]);
        let kind = OpKind::Pad { amounts, value: value_of_padding };
        self.op(kind, &[value], TensorType::new(shape, ty.element))
    }

    /// Returns the values without a use and, now and then, one with a use.
    fn outputs(&mut self) -> Vec<Value> {
        let mut outputs = Vec::new();
        let ends = std::mem::take(&mut self.ends);
        for value in self.pool.iter().copied().chain(ends).collect::<Vec<_>>() {
            let escapes = self.used.contains(&value) && self.random.percent(4);
            if (!self.used.contains(&value) || escapes) && !outputs.contains(&value) {
                outputs.push(value);
            }
        }
        outputs
    }
}
