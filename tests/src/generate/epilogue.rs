//! Random steps after a product, and quantization.

use fourfold::ir::numeric::{
    CodeFormula, InfinityScale, LeastScale, LeastStep, MxEdges, NanScale, Nvfp4Formula, ScaleMin, Scaling,
};
use fourfold::ir::{
    ConstantValue, Dim, ElementType, OpKind, Predicate, ReduceKind, ScaleLayout, ScaleRounding, Shape,
    TensorType, Value,
};

use super::{ARITHMETIC, Generator, Quantized};

impl Generator {
    /// Adds a DAG of elementwise ops over a product, mostly one that an epilogue can compute and that ends in one
    /// value.
    pub(super) fn epilogue(&mut self, m: &Dim, product: Value, n: u64, shape: &Shape) -> Value {
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
    pub(super) fn end(&mut self, value: Value, n: u64, shape: &Shape) {
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
    pub(super) fn formula(&mut self) -> Nvfp4Formula {
        if self.random.percent(60) {
            return Nvfp4Formula::DEFAULT;
        }
        let bound = self.random.pick(&[0.0, 0.015625, f32::NEG_INFINITY]);
        Nvfp4Formula {
            scale_min: ScaleMin::new(bound).expect("the bound is valid"),
            amax: self.random.pick(&[Scaling::Divide, Scaling::Multiply]),
            global: self.random.pick(&[Scaling::Divide, Scaling::Multiply]),
            codes: self.random.pick(CodeFormula::ALL),
            guard: self.random.percent(30),
            ..Nvfp4Formula::DEFAULT
        }
    }

    /// The default edges in most cases.
    pub(super) fn edges(&mut self) -> Nvfp4Formula {
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

    pub(super) fn quantize(&mut self, value: Value, block: u32) -> Quantized {
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

    pub(super) fn epilogue_step(
        &mut self,
        value: Value,
        all: &[Value],
        m: &Dim,
        n: u64,
        shape: &Shape,
    ) -> Value {
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
    pub(super) fn epilogue_operand(&mut self, m: &Dim, n: u64, shape: &Shape) -> Value {
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
}
