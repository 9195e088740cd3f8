//! Generates random valid programs: odd shapes, symbolic extents, values used inside and outside of kernels,
//! several roots, chains of roots through quantization, and near misses.

mod epilogue;
mod grouping;
mod moves;
mod products;

use fourfold::codegen::{BINARY_FUNCTIONS, UNARY_FUNCTIONS};
use fourfold::ir::sample::{Recipe, Rule};
use fourfold::ir::{
    BinaryKind, Builder, ConstantValue, Dim, ElementType, Module, OpKind, Predicate, ReduceKind, Shape,
    TensorType, UnaryKind, Value,
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
