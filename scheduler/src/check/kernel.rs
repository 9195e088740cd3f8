//! Matches one kernel segment against its plan and the target's rules.

use fourfold_ir::{
    BlockFormat, Capabilities, Dim, ElementType, FormatCapability, Module, OpKind, OperandShape, Program,
    ReduceKind, ScaleLayout, ScaledMmaOperands, TensorType, Value, dim_product,
};

use super::{CheckError, known, may_divide};
use crate::plan::{Constraint, Groups, KernelOutput, OutputKind, ScaledMmaPlan, Segment};
use crate::reason::ReasonCode;

pub(super) fn check(
    program: &Program,
    capabilities: &Capabilities,
    index: usize,
    segment: &Segment,
    plan: &ScaledMmaPlan,
    errors: &mut Vec<CheckError>,
) {
    let module = program.module();
    let mut checker = Checker { program, module, index, plan, errors };
    let Some((block, operands)) = checker.root(segment) else { return };
    let Some(inside) = checker.epilogue() else { return };
    checker.fields(block, &operands);
    if !checker.outputs(segment, &inside) {
        // The outputs of the plan may still refer to missing steps or operands.
        return;
    }
    let d = module.ty(inside[0]);
    let Some(rules) = capabilities.format(plan.format) else {
        return checker.rule(false, || format!("{} does not support {}", capabilities.target, plan.format));
    };
    checker.pair_capability(rules);
    checker.capability(rules, &operands, d);
    checker.epilogue_capability(rules, d);
    checker.output_capability(rules);
    checker.constraints(rules, &operands);
}

pub(super) struct Checker<'a> {
    pub(super) program: &'a Program,
    pub(super) module: &'a Module,
    pub(super) index: usize,
    pub(super) plan: &'a ScaledMmaPlan,
    pub(super) errors: &'a mut Vec<CheckError>,
}

impl<'a> Checker<'a> {
    pub(super) fn shape(&mut self, what: impl Into<String>) {
        self.errors.push(CheckError::Shape { segment: self.index, what: what.into() });
    }

    pub(super) fn rule(&mut self, holds: bool, rule: impl FnOnce() -> String) {
        if !holds {
            self.errors.push(CheckError::Capability { segment: self.index, rule: rule() });
        }
    }

    pub(super) fn field<T: PartialEq + std::fmt::Debug>(
        &mut self,
        field: &'static str,
        found: &T,
        expected: &T,
    ) {
        if found != expected {
            let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
            self.errors.push(CheckError::Field { segment: self.index, field, found, expected });
        }
    }

    /// Checks that the segment is the plan's root, the steps and the sinks, with no second multiplication.
    fn root(&mut self, segment: &Segment) -> Option<(u32, ScaledMmaOperands)> {
        let kind = |op| &self.module.ops[op].kind;
        let mut multiplications = segment.ops.iter().copied().filter(|op| is_multiplication(kind(*op)));
        let (root, another) = (multiplications.next(), multiplications.next());
        if root != Some(self.plan.root) || another.is_some() {
            self.shape("the root of the plan is not the only multiplication");
            return None;
        }
        let ends = self.plan.outputs.iter().filter_map(|output| match output.kind {
            OutputKind::Value { .. } => None,
            OutputKind::Quantized { op, .. } | OutputKind::Reduced { op, .. } => Some(op),
        });
        let steps = self.plan.epilogue.iter().map(|step| step.op);
        let halves = self.plan.pair.iter().flat_map(|pair| [pair.even, pair.odd]);
        let mut planned: Vec<_> =
            std::iter::once(self.plan.root).chain(halves).chain(steps).chain(ends).collect();
        planned.sort_unstable();
        if planned != segment.ops {
            self.shape("the ops are not exactly the root, the steps and the sinks");
            return None;
        }
        let block = match self.module.ops[self.plan.root].kind {
            OpKind::ScaledMma(mma) => mma.block,
            OpKind::GroupedScaledMma(mma) => mma.block,
            _ => {
                self.shape("the root is not a scaled_mma");
                return None;
            }
        };
        let operands = self.module.scaled_mma_operands(self.plan.root);
        if operands.is_none() || self.module.ops[self.plan.root].results.len() != 1 {
            self.shape("the root lacks the operands or the single result of a scaled_mma");
        }
        Some((block, operands?))
    }

    /// Checks that the plan's operands and extents are the root's.
    fn fields(&mut self, block: u32, operands: &ScaledMmaOperands) {
        let plan = self.plan;
        let ScaledMmaOperands { a, sfa, b, sfb, offsets, alpha, sfa_ends, c, beta } = *operands;
        let masked = matches!(self.module.ops[plan.root].kind, OpKind::GroupedScaledMma(mma) if mma.masked);
        self.field("a", &plan.a, &a);
        self.field("sfa", &plan.sfa, &sfa);
        self.field("b", &plan.b, &b);
        self.field("sfb", &plan.sfb, &sfb);
        self.field("alpha", &plan.alpha, &alpha);
        self.field("c", &plan.c, &c);
        self.field("beta", &plan.beta, &beta);
        let (a_type, b_type) = (self.module.ty(a), self.module.ty(b));
        let (sfa_type, sfb_type) = (sfa.map(|sfa| self.module.ty(sfa)), self.module.ty(sfb));
        let format = BlockFormat { a: a_type.element, b: b_type.element, scale: sfb_type.element, block };
        self.field("format", &plan.format, &format);
        self.rule(sfa_type.is_none_or(|sfa| sfa.element == sfb_type.element), || {
            "the element types of SFA and SFB differ".to_owned()
        });
        self.rule(sfa_type.is_none() == format.is_weight_only(), || {
            format!("{format} has {} scales of A", if sfa_type.is_none() { "no" } else { "the" })
        });
        self.rule(format.is_standard(), || format!("{format} is not a standard format"));
        let is_blocked = sfa_type.is_some_and(|ty| ty.layout == Some(ScaleLayout::Blocked));
        self.field("linear_sfa", &plan.linear_sfa, &(sfa_type.is_some() && !is_blocked));
        let of_groups = offsets.is_some() && !(is_blocked && (sfa_ends.is_some() || masked));
        let of_a = if of_groups || plan.linear_sfa { ScaleLayout::Linear } else { ScaleLayout::Blocked };
        let layouts = sfa_type.map(|ty| (ty, of_a)).into_iter().chain([(sfb_type, ScaleLayout::Blocked)]);
        for (ty, layout) in layouts {
            self.rule(ty.layout == Some(layout), || format!("the layout of the scales is not {layout}"));
        }
        let ([a_leading @ .., m, k], [b_leading @ .., n, b_k]) = (&a_type.shape[..], &b_type.shape[..])
        else {
            return self.shape("A or B is not a matrix");
        };
        // The matrices of groups are consecutive rows of one.
        let (a_leading, m) = match dim_product(a_leading).and_then(|matrices| matrices.times(m)) {
            Some(rows) if masked => (&[][..], rows),
            _ => (a_leading, m.clone()),
        };
        self.field("m", &plan.m, &m);
        self.field("n", &plan.n, n);
        self.field("k", &plan.k, k);
        self.field("k", &plan.k, b_k);
        self.field("batch", &Some(plan.batch.clone()), &dim_product(a_leading));
        let groups = offsets.map(|offsets| Groups {
            offsets,
            masked,
            count: b_leading.first().cloned().unwrap_or(Dim::fixed(0)),
            scales: sfa_type.filter(|_| is_blocked).and_then(|sfa| match &sfa.shape[..] {
                [matrices @ .., rows, _] => Some([dim_product(matrices)?, rows.clone()]),
                _ => None,
            }),
            sfa_ends,
            has_alphas: alpha
                .is_some_and(|alpha| self.module.ty(alpha).shape.iter().any(|dim| known(dim) != Some(1))),
        });
        self.field("groups", &plan.groups, &groups);
        let b_leading = if groups.is_some() { &[][..] } else { b_leading };
        self.field("b_batched", &plan.b_batched, &!b_leading.is_empty());
        self.rule(a_leading == b_leading || b_leading.is_empty(), || {
            "the batches of A and B differ".to_owned()
        });
    }

    /// Checks the kernel against the target's rules, as far as extents are fixed.
    fn capability(&mut self, rules: &FormatCapability, operands: &ScaledMmaOperands, d: &TensorType) {
        let plan = self.plan;
        self.rule(known(&plan.k) != Some(0) && known(&plan.n) != Some(0), || "K or N is 0".to_owned());
        let is_dense = plan.groups.is_none();
        self.rule(rules.has_linear_scales || !(is_dense && plan.linear_sfa), || {
            "linear scales of A are not supported".to_owned()
        });
        if let Some(groups) = &plan.groups {
            self.rule(rules.max_groups.is_some(), || "groups of rows are not supported".to_owned());
            self.rule(rules.has_masked || !groups.masked, || "counts of rows are not supported".to_owned());
            self.rule(rules.has_group_scales || groups.scales.is_none(), || {
                "blocked scales of groups are not supported".to_owned()
            });
            self.rule(known(&groups.count) != Some(0), || "E is 0".to_owned());
            let is_value = |output: &KernelOutput| matches!(output.kind, OutputKind::Value { .. });
            self.rule(plan.outputs.iter().all(is_value), || {
                "a kernel of groups of rows writes values only".to_owned()
            });
        }
        let one_matrix = known(&plan.batch) == Some(1);
        if plan.b_batched {
            self.rule(rules.batched || one_matrix, || "a batch is not supported".to_owned());
        } else if !one_matrix {
            let quantizes =
                plan.outputs.iter().any(|output| matches!(output.kind, OutputKind::Quantized { .. }));
            // Only the blocked layout pads the rows of each matrix.
            let scaled = (operands.sfa.is_some() && !plan.linear_sfa) || quantizes;
            self.rule(!scaled || plan.m.constant().is_multiple_of(128), || {
                "M is not a multiple of the scales' 128 rows".to_owned()
            });
        }
        for (name, dim, most) in self.sizes(rules) {
            let fits = dim.as_ref().is_some_and(|dim| known(dim).is_none_or(|extent| extent <= most));
            self.rule(fits, || format!("{name} exceeds {most}"));
        }
        if let Some(extents) = self.launched() {
            let tiles = tiles(extents.each_ref().map(known), rules.grid.tile);
            let fits = tiles.is_none_or(|tiles| tiles <= u128::from(rules.grid.max_tiles));
            self.rule(fits, || "D has too many tiles for one launch".to_owned());
        }
        for (name, extents, block) in self.scaled() {
            let fits = padded_scales(&extents, block);
            let fits = fits.is_none_or(|bytes| bytes <= u128::from(rules.max_scale_bytes));
            self.rule(fits, || format!("the scales of {name} exceed {} bytes", rules.max_scale_bytes));
        }
        self.rule(may_divide(&plan.k, rules.k_multiple), || format!("K % {} != 0", rules.k_multiple));
        if let Some(c) = operands.c {
            let ty = self.module.ty(c);
            let entry = rules.c.iter().find(|entry| entry.element == ty.element);
            self.rule(entry.is_some(), || format!("a C of type {} is not supported", ty.element));
            self.rule(entry.is_none_or(|entry| may_divide(&plan.n, entry.n_multiple)), || {
                format!("N is not aligned for a {} C", ty.element)
            });
            self.rule(ty.shape == d.shape, || "the shapes of C and D differ".to_owned());
        }
        let rounds = [ElementType::F16, ElementType::BF16, ElementType::F32].contains(&plan.accumulator);
        self.rule(rounds, || format!("rounding the accumulator to {} is not supported", plan.accumulator));
    }

    /// The operands with blocked scales. Each entry has a name, the number of scale matrices, rows and
    /// columns of one, and elements per scale.
    fn scaled(&self) -> Vec<(&'static str, [Dim; 3], u32)> {
        let plan = self.plan;
        let single = Dim::fixed(1);
        let shared = !plan.b_batched;
        let of_a = if shared && known(&plan.batch) != Some(1) {
            plan.m.times(&plan.batch).map(|rows| [single.clone(), rows])
        } else {
            Some([plan.batch.clone(), plan.m.clone()])
        };
        let matrices_of_b = match &plan.groups {
            Some(groups) => groups.count.clone(),
            None if shared => single,
            None => plan.batch.clone(),
        };
        let of_b = [matrices_of_b, plan.n.clone(), plan.k.clone()];
        let mut scaled = vec![("B", of_b, plan.format.block)];
        let Some([matrices, rows]) = of_a else { return scaled };
        if plan.sfa.is_some() {
            scaled.push(("A", [matrices.clone(), rows.clone(), plan.k.clone()], plan.format.block));
        }
        if let Some([matrices, rows]) = plan.groups.as_ref().and_then(|groups| groups.scales.clone()) {
            scaled.push(("A's groups", [matrices, rows, plan.k.clone()], plan.format.block));
        }
        for output in &plan.outputs {
            if let OutputKind::Quantized { block, .. } = output.kind {
                let of_d = ("D", [matrices.clone(), rows.clone(), plan.columns().clone()], block);
                if !scaled.contains(&of_d) {
                    scaled.push(of_d);
                }
            }
        }
        scaled
    }

    /// Checks that the plan states every condition on symbols and pointers that the target requires, once,
    /// and no other.
    fn constraints(&mut self, rules: &FormatCapability, operands: &ScaledMmaOperands) {
        let plan = self.plan;
        let symbolic = |dim: &Dim| known(dim).is_none();
        let mut needed = Vec::new();
        let c = operands.c.map(|c| self.module.ty(c).element);
        let of_c = rules.c.iter().filter(|entry| Some(entry.element) == c).map(|entry| entry.n_multiple);
        let n_multiple = of_c
            .chain(self.read_rules(rules).into_iter().map(|entry| entry.n_multiple))
            .chain(self.written_multiples(rules))
            .fold(1, common_multiple);
        for (name, dim, of, code) in [
            ("K", &plan.k, rules.k_multiple, ReasonCode::KAlignment),
            ("N", &plan.n, n_multiple, ReasonCode::NAlignment),
        ] {
            if !dim.constant().is_multiple_of(of) {
                needed.push(Constraint::Multiple { name, dim: dim.clone(), of, code });
            }
        }
        for (name, dim, limit) in self.sizes(rules) {
            if let Some(dim) = dim.filter(symbolic) {
                needed.push(Constraint::AtMost { name, dim, limit });
            }
        }
        if let Some([matrices, rows, columns]) = self.launched()
            && [&matrices, &rows, &columns].into_iter().any(symbolic)
            && self.may_have_too_many_tiles(rules)
        {
            let (tile, limit) = (rules.grid.tile, rules.grid.max_tiles);
            needed.push(Constraint::Tiles { matrices, rows, columns, tile, limit });
        }
        for (name, extents, block) in self.scaled() {
            if extents.iter().any(symbolic) {
                let ([matrices, rows, k], limit) = (extents, rules.max_scale_bytes);
                needed.push(Constraint::ScaleBytes { name, matrices, rows, k, block, limit });
            }
        }
        let nothing_is_known = |output: &KernelOutput| matches!(output.kind, OutputKind::Reduced { kind, .. } if kind != ReduceKind::Amax);
        let mut filled = vec![("N", &plan.n), ("K", &plan.k)];
        filled.extend(plan.groups.as_ref().map(|groups| ("E", &groups.count)));
        if plan.outputs.iter().any(nothing_is_known) {
            filled.extend([("M", &plan.m), ("L", &plan.batch)]);
        }
        for (name, dim) in filled {
            if symbolic(dim) {
                needed.push(Constraint::NotEmpty { name, dim: dim.clone() });
            }
        }
        let read = plan.operands.iter().filter(|read| read.shape != OperandShape::Scalar);
        let read = read.map(|read| read.value);
        let ScaledMmaOperands { a, sfa, b, sfb, offsets, alpha, sfa_ends, c, .. } = *operands;
        let [of_a, of_b] = rules.operand_alignment;
        let wide = |value: Value| (value, rules.pointer_alignment);
        let mut pointers = vec![(a, of_a), (b, of_b), wide(sfb)];
        let any_byte = plan.groups.is_none() && plan.linear_sfa;
        pointers.extend(sfa.filter(|_| !any_byte).into_iter().chain(c).chain(read).map(wide));
        let alphas = if plan.groups.as_ref().is_some_and(|it| it.has_alphas) { alpha } else { None };
        pointers.extend(offsets.into_iter().chain(sfa_ends).chain(alphas).map(|value| (value, 4)));
        for output in &plan.outputs {
            match output.kind {
                OutputKind::Value { value } => pointers.push(wide(value)),
                OutputKind::Quantized { codes, scales, .. } => pointers.extend([codes, scales].map(wide)),
                // A reduction writes single f32 elements.
                OutputKind::Reduced { value, .. } => pointers.push((value, 4)),
            }
        }
        pointers.sort_unstable();
        pointers.dedup();
        let aligned = |(value, bytes)| Constraint::PointerAlignment { value, bytes };
        needed.extend(pointers.into_iter().map(aligned));

        let mut stated: Vec<&Constraint> = plan.constraints.iter().collect();
        for needed in needed {
            match stated.iter().position(|stated| **stated == needed) {
                Some(index) => {
                    stated.swap_remove(index);
                }
                None => self.errors.push(CheckError::Constraint { segment: self.index, needed }),
            }
        }
        for found in stated.into_iter().cloned() {
            self.errors.push(CheckError::ExtraConstraint { segment: self.index, found });
        }
    }

    /// The extents that the kernel indexes with, each with its limit; `None` for an extent beyond 64 bits.
    fn sizes(&self, rules: &FormatCapability) -> Vec<(&'static str, Option<Dim>, u64)> {
        let plan = self.plan;
        let most = |of_grid: u64| of_grid.min(rules.max_extent);
        let mut sizes = vec![
            ("N", Some(plan.n.clone()), most(rules.grid.max_columns)),
            ("K", Some(plan.k.clone()), rules.max_extent),
        ];
        if self.has_matrices() {
            sizes.push(("L", Some(plan.batch.clone()), most(rules.grid.max_matrices)));
            sizes.push(("M", Some(plan.m.clone()), rules.max_extent));
        } else {
            sizes.push(("L*M", plan.batch.times(&plan.m), rules.max_extent));
        }
        let groups = plan.groups.as_ref();
        sizes.extend(plan.padded().map(|(_, rows)| ("P", Some(rows.clone()), rules.max_extent)));
        sizes.extend(groups.map(|groups| ("E", Some(groups.count.clone()), rules.max_groups.unwrap_or(0))));
        sizes
    }

    /// Returns whether the kernel keeps the matrices of a batch apart instead of flattening them into one.
    fn has_matrices(&self) -> bool {
        self.plan.b_batched || known(&self.plan.batch) == Some(1)
    }

    /// The launched extents: matrices, rows and columns of D.
    fn launched(&self) -> Option<[Dim; 3]> {
        let ScaledMmaPlan { batch, m, n, .. } = self.plan;
        if self.has_matrices() {
            return Some([batch.clone(), m.clone(), n.clone()]);
        }
        Some([Dim::fixed(1), batch.times(m)?, n.clone()])
    }

    /// Returns whether a call within the limit on scale bytes can exceed the grid's tile limit. That limit
    /// bounds the 128-row blocks of an operand over all its matrices. It does not bound an A without scales.
    fn may_have_too_many_tiles(&self, rules: &FormatCapability) -> bool {
        let Some([matrices, rows, columns]) = self.launched() else { return true };
        let [tile_rows, tile_columns] = rules.grid.tile.map(|extent| u128::from(extent.max(1)));
        let scale_columns = 4 * u128::from(self.plan.format.block);
        let along_k = known(&self.plan.k).map_or(1, |k| u128::from(k).div_ceil(scale_columns).max(1));
        let blocks = u128::from(rules.max_scale_bytes) / (512 * along_k);
        let of = |dim: &Dim, tile: u128| match known(dim) {
            Some(extent) => u128::from(extent).div_ceil(tile),
            None => blocks * 128_u128.div_ceil(tile),
        };
        let all_rows = match known(&matrices) {
            matrices if self.plan.sfa.is_none() => {
                let matrices = matrices.unwrap_or(rules.grid.max_matrices);
                let rows = known(&rows).unwrap_or(rules.max_extent);
                u128::from(matrices) * u128::from(rows).div_ceil(tile_rows)
            }
            Some(matrices) => u128::from(matrices) * of(&rows, tile_rows),
            None => blocks * 128_u128.div_ceil(tile_rows),
        };
        all_rows.saturating_mul(of(&columns, tile_columns)) > u128::from(rules.grid.max_tiles)
    }
}

fn is_multiplication(kind: &OpKind) -> bool {
    matches!(kind, OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) | OpKind::Mma)
}

/// The number of tiles in matrices of these rows and columns; `None` unless all extents are known.
pub(super) fn tiles([matrices, rows, columns]: [Option<u64>; 3], tile: [u64; 2]) -> Option<u128> {
    let along = |extent: u64, tile: u64| u128::from(extent.div_ceil(tile.max(1)));
    let of_matrix = along(rows?, tile[0]) * along(columns?, tile[1]);
    Some(of_matrix.saturating_mul(u128::from(matrices?)))
}

/// The least common multiple.
fn common_multiple(a: u64, b: u64) -> u64 {
    fn greatest_divisor(a: u64, b: u64) -> u64 {
        if b == 0 { a } else { greatest_divisor(b, a % b) }
    }
    a.checked_div(greatest_divisor(a, b)).unwrap_or(0).saturating_mul(b)
}

/// Bytes of blocked scales, padded to 128 rows and 4 scales per row; `None` unless all extents are known.
fn padded_scales(extents: &[Dim; 3], block: u32) -> Option<u128> {
    let [matrices, rows, length] = extents.each_ref().map(|dim| known(dim).map(u128::from));
    let tiles = rows?.div_ceil(128) * length?.div_ceil(4 * u128::from(block));
    Some(matrices? * tiles * 512)
}
