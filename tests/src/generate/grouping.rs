//! Random ops that route rows to groups, and products of groups of rows.

use fourfold::ir::{Dim, ElementType, GroupedScaledMma, OpKind, ScaleLayout, TensorType, Value, dim_product};

use super::{ARITHMETIC, Generator};

impl Generator {
    /// Routes the greatest elements of rows to groups, and adds them up in another order.
    pub(super) fn routed(&mut self, m: &Dim) -> Value {
        let Some((value, ty)) = self.pick_small(m) else { return self.constant() };
        let [leading @ .., last] = &ty.shape[..] else { return self.slice(m) };
        let fits = !leading.is_empty() && ty.element.is_arithmetic();
        let (true, Some(extent @ 1..), Some(rows)) = (fits, last.as_fixed(), dim_product(leading)) else {
            return self.slice(m);
        };
        let k = 1 + self.random.below(extent.min(4) as usize) as u64;
        let taken = [leading, &[Dim::fixed(k)]].concat();
        let types = [TensorType::new(taken.clone(), ty.element), TensorType::new(taken, ElementType::I32)];
        let [best, ids] = self.ops(OpKind::TopK { k: k as u32 }, &[value], types);
        let Some(count) = rows.times(&Dim::fixed(k)) else { return best };
        let indices = TensorType::new(vec![count.clone()], ElementType::I32);
        let ends = TensorType::new(vec![Dim::fixed(extent)], ElementType::I32);
        let types = [indices.clone(), indices, ends];
        let [positions, sources, ends] = self.ops(OpKind::GroupRows { groups: extent as u32 }, &[ids], types);
        self.ends.push(ends);
        let of_values = TensorType::new(vec![count], ty.element);
        let flat = self.op(OpKind::Reshape, &[best], of_values.clone());
        let sorted = self.op(OpKind::Gather { axis: 0 }, &[flat, positions], of_values);
        let element = self.random.pick(&ARITHMETIC);
        self.op(OpKind::ScatterAdd, &[sorted, sources], TensorType::new(vec![rows], element))
    }

    /// Multiplies groups of rows with a matrix each: consecutive rows, or some rows of a matrix for each group. The ids of
    /// the rows are numbers near 0, so of many groups some are empty.
    pub(super) fn grouped(&mut self, m: &Dim) -> Value {
        let nvfp4 = self.random.percent(50);
        let (block, scale) =
            if nvfp4 { (16u32, ElementType::F8E4M3FN) } else { (32, ElementType::F8E8M0FNU) };
        let mx = [ElementType::F4E2M1FN, ElementType::F8E4M3FN, ElementType::F8E5M2, ElementType::F6E2M3FN];
        let data = if nvfp4 { &mx[..1] } else { &mx[..] };
        let (groups, n) = (self.random.pick(&[1u64, 2, 5, 40]), self.random.pick(&[2u64, 10, 24]));
        let k = u64::from(block) * self.random.pick(&[1u64, 2, 3]);
        let blocks = Dim::fixed(k / u64::from(block));
        let weight_only = self.random.percent(40);
        let a_element =
            self.random.pick(if weight_only { &[ElementType::F16, ElementType::BF16] } else { data });
        let masked = self.extended && self.random.percent(40);
        let rows = |last: Dim| {
            let lead = masked.then(|| Dim::fixed(groups));
            lead.into_iter().chain([m.clone(), last]).collect::<Vec<Dim>>()
        };
        let mut operands = vec![self.input(TensorType::new(rows(Dim::fixed(k)), a_element))];
        let mut sfa = None;
        if !weight_only {
            let layouts = [ScaleLayout::Linear, ScaleLayout::Blocked];
            let layout = if masked { self.random.pick(&layouts) } else { ScaleLayout::Linear };
            sfa = Some(self.input(TensorType::scales(rows(blocks.clone()), scale, layout)));
            operands.extend(sfa);
        }
        let matrices = vec![Dim::fixed(groups), Dim::fixed(n), Dim::fixed(k)];
        let b_element = self.random.pick(data);
        operands.push(self.input(TensorType::new(matrices, b_element)));
        let layout = self.random.pick(&[ScaleLayout::Linear, ScaleLayout::Blocked]);
        let shape = vec![Dim::fixed(groups), Dim::fixed(n), blocks];
        operands.push(self.input(TensorType::scales(shape, scale, layout)));

        let ends = TensorType::new(vec![Dim::fixed(groups)], ElementType::I32);
        if masked {
            operands.push(self.input(ends));
        } else {
            let ids = self.indices_of(vec![m.clone(), Dim::fixed(1)], groups);
            let flat = TensorType::new(vec![m.clone()], ElementType::I32);
            let [_, _, ends] =
                self.ops(OpKind::GroupRows { groups: groups as u32 }, &[ids], [flat.clone(), flat, ends]);
            operands.push(ends);
        }
        let alpha = self.random.percent(60);
        if alpha {
            let shape = if self.random.percent(50) { vec![] } else { vec![Dim::fixed(groups)] };
            operands.push(self.input(TensorType::new(shape, ElementType::F32)));
        }
        let padded = sfa.filter(|_| !masked && self.extended && self.random.percent(50));
        if let Some(sfa) = padded {
            let ends = operands[4];
            let [scales, sfa_ends] = self.padded(sfa, ends, groups);
            operands[1] = scales;
            operands.push(sfa_ends);
        }
        let sfa_ends = padded.is_some();
        let kind = OpKind::GroupedScaledMma(GroupedScaledMma { block, weight_only, alpha, masked, sfa_ends });
        let element = self.random.pick(&ARITHMETIC);
        self.op(kind, &operands, TensorType::new(rows(Dim::fixed(n)), element))
    }

    /// Scales of rows in groups, moved to whole tiles for each group, and the ends of the groups there.
    fn padded(&mut self, scales: Value, ends: Value, groups: u64) -> [Value; 2] {
        const TILE_ROWS: u64 = 128;
        // No program has more rows.
        const MOST_ROWS: u64 = 130;
        let ty = TensorType::new(vec![Dim::fixed(groups)], ElementType::I32);
        let sfa_ends = self.op(OpKind::PaddedEnds { multiple: TILE_ROWS as u32 }, &[ends], ty);
        let ty = self.builder.ty(scales).clone();
        // Each group may have one more tile than whole ones.
        let rows = Dim::fixed((groups + MOST_ROWS / TILE_ROWS) * TILE_ROWS);
        let shape = vec![rows, ty.shape[1].clone()];
        let ty = TensorType::scales(shape, ty.element, ScaleLayout::Blocked);
        [self.op(OpKind::GroupScales, &[scales, ends, sfa_ends], ty), sfa_ends]
    }
}
