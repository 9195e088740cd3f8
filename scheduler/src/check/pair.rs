//! Checks the halves of a product that an epilogue pairs.

use fourfold_ir::{FormatCapability, Op, OpKind, SliceRange, Value};

use super::kernel::Checker;
use super::known;
use crate::plan::OutputKind;

impl Checker<'_> {
    /// The even columns of the product, if the epilogue pairs columns.
    pub(super) fn even(&self) -> Option<Value> {
        self.result_of(self.plan.pair.as_ref()?.even)
    }

    /// The odd columns of the product, if the epilogue pairs columns.
    pub(super) fn odd(&self) -> Option<Value> {
        self.result_of(self.plan.pair.as_ref()?.odd)
    }

    fn result_of(&self, op: Op) -> Option<Value> {
        self.module.ops.get(op)?.results.first().copied()
    }

    /// Returns the values that the epilogue begins with: the result of the root, or its even and its odd columns. Checks
    /// that two slices take these, and that nothing else uses the product.
    pub(super) fn halves(&mut self) -> Option<(Value, Option<Value>)> {
        let module = self.module;
        let root = module.ops[self.plan.root].results[0];
        let Some(pair) = &self.plan.pair else { return Some((root, None)) };
        let (even, odd) = (self.even(), self.odd());
        let (Some(even), Some(odd)) = (even, odd) else {
            self.shape("a half of the pair does not exist");
            return None;
        };
        let n = known(&self.plan.n);
        let takes = |op: Op, first: u64| {
            let operation = &module.ops[op];
            let rank = module.ty(root).shape.len();
            let ranges: &[SliceRange] = match &operation.kind {
                OpKind::Slice { ranges } => ranges,
                _ => return false,
            };
            let [range] = ranges else { return false };
            let last = range.start + range.step * range.extent().saturating_sub(1);
            operation.operands == [root]
                && range.axis as usize + 1 == rank
                && (range.start, range.step) == (first, 2)
                && n.is_some_and(|n| range.extent() * 2 == n && last < n)
        };
        if !takes(pair.even, 0) || !takes(pair.odd, 1) {
            self.shape("the halves of the pair are not the even and the odd columns of the product");
            return None;
        }
        let users = self.program.facts().users(root);
        let is_half = |user: &Op| [pair.even, pair.odd].contains(user);
        if !users.iter().all(is_half) || self.program.facts().is_output(root) {
            self.shape("the product of the pair is used whole");
            return None;
        }
        let columns = module.ty(even).shape.last().cloned();
        self.field("columns", &Some(pair.columns.clone()), &columns);
        Some((even, Some(odd)))
    }

    /// Checks a pair against the target's rules.
    pub(super) fn pair_capability(&mut self, rules: &FormatCapability) {
        if self.plan.pair.is_none() {
            return;
        }
        let Some(pairs) = rules.pairs else {
            return self.rule(false, || "pairing columns is not supported".to_owned());
        };
        let has_c = self.plan.c.is_some();
        self.rule(!has_c, || "a C beside paired columns is not supported".to_owned());
        for output in &self.plan.outputs {
            if let OutputKind::Quantized { block, .. } = output.kind {
                self.rule(block <= pairs.max_block, || {
                    format!(
                        "{block} elements per scale exceed the limit of {} for paired columns",
                        pairs.max_block
                    )
                });
            }
        }
    }
}
