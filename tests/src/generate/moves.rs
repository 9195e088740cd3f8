//! Random ops that move elements.

use fourfold::ir::{
    BinaryKind, ConstantValue, Dim, ElementType, OpKind, PadAmount, ScaleLayout, Shape, SliceRange,
    TensorType, UnaryKind, Value,
};

use super::{Generator, Quantized};

impl Generator {
    pub(super) fn reshape_or_transpose(&mut self, m: &Dim) -> Value {
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

    pub(super) fn broadcast(&mut self, m: &Dim) -> Value {
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

    pub(super) fn slice(&mut self, m: &Dim) -> Value {
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
    pub(super) fn slice_codes(&mut self, of: &Quantized) {
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

    pub(super) fn concat(&mut self, m: &Dim) -> Value {
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
    pub(super) fn choose(&mut self, m: &Dim) -> Value {
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

    pub(super) fn gather(&mut self, m: &Dim) -> Value {
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
    pub(super) fn indices(&mut self, m: &Dim, flat: bool, extent: u64) -> Value {
        let shape = match self.random.below(if flat { 1 } else { 4 }) {
            0 => vec![],
            1 => vec![m.clone()],
            2 => vec![Dim::fixed(2), Dim::fixed(3)],
            _ => vec![Dim::fixed(0)],
        };
        self.indices_of(shape, extent)
    }

    pub(super) fn indices_of(&mut self, shape: Shape, extent: u64) -> Value {
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

    pub(super) fn integer(&mut self, number: f64) -> Value {
        let ty = TensorType::new(vec![], ElementType::I32);
        self.op(OpKind::Constant(ConstantValue::Splat(number)), &[], ty)
    }

    pub(super) fn pad(&mut self, m: &Dim) -> Value {
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
}
