//! The groups of rows of a `grouped_scaled_mma` or `masked_scaled_mma` in one run.

use std::borrow::Cow;

use fourfold_executor::fallback::{GroupedOperands, grouped_scaled_mma, scales_of_rows};
use fourfold_ir::{ElementType, Tensor, Value};

use super::{Got, KernelRun, Values};
use crate::error::Error;
use crate::unused_rows::without_unused_rows;

/// The rows of each group, and its alpha.
pub(super) struct GroupRows {
    /// The end of each group, or its rows.
    ends: Vec<usize>,
    /// The rows of a matrix of A, if each group has one.
    rows: Option<usize>,
    /// One alpha, or one for each group; 1 without alpha.
    alphas: Vec<f32>,
}

impl GroupRows {
    /// Returns the group of a row; `None` for a row of no group.
    pub(super) fn of_row(&self, row: usize) -> Option<usize> {
        if let Some(rows) = self.rows {
            return Some(row / rows).filter(|group| row % rows < self.ends[*group]);
        }
        // Ends ascend, and an empty group is never the first with a greater end.
        Some(self.ends.partition_point(|end| *end <= row)).filter(|group| *group < self.ends.len())
    }

    /// Returns the alpha of a row; 0 for a row of no group, whose result is 0.
    pub(super) fn alpha(&self, row: usize) -> f32 {
        let Some(group) = self.of_row(row) else { return 0.0 };
        self.alphas.get(group).or(self.alphas.first()).copied().unwrap_or(1.0)
    }
}

impl KernelRun<'_> {
    /// Returns the groups of rows; `None` for a `scaled_mma`.
    pub(super) fn groups(&self) -> Result<Option<GroupRows>, Error> {
        let Some(groups) = &self.plan.groups else { return Ok(None) };
        let ends = self.run.operand(groups.offsets)?.to_f64();
        let alphas = match self.plan.alpha {
            Some(alpha) => self.run.operand(alpha)?.to_f32(),
            None => vec![1.0],
        };
        let rows = if groups.masked { self.run.operand(self.plan.a)?.dims().get(1).copied() } else { None };
        let ends = ends.into_iter().map(|end| end as usize).collect();
        Ok(Some(GroupRows { ends, rows, alphas }))
    }

    /// Returns the outputs with the expected elements in rows that no group uses, if there are such rows.
    pub(super) fn defined(&self, values: &Values, got: &Got<'_>) -> Result<Values, Error> {
        let mut defined = Values::new();
        let Some(groups) = self.plan.groups.as_ref().filter(|groups| groups.masked) else {
            return Ok(defined);
        };
        let counts = self.run.operand(groups.offsets)?;
        for value in self.plan.written() {
            let want = self.run.take(values, value)?;
            let patched = without_unused_rows(self.run.got(got, value)?, &want, &[counts]);
            defined.extend(patched.map(|patched| (value, patched)));
        }
        Ok(defined)
    }

    /// Returns the scales of A by row of A: linear ones where groups have whole tiles.
    pub(super) fn scales_of_a(&self) -> Result<Option<Cow<'_, Tensor>>, Error> {
        let plan = self.plan;
        let Some(sfa) = plan.sfa else { return Ok(None) };
        let sfa = self.run.operand(sfa)?;
        let Some((groups, (sfa_ends, _))) = plan.groups.as_ref().zip(plan.padded()) else {
            return Ok(Some(Cow::Borrowed(sfa)));
        };
        let ends = [self.run.operand(groups.offsets)?, self.run.operand(sfa_ends)?];
        let rows = self.run.operand(plan.a)?.dims().first().copied().unwrap_or(0);
        let scales = scales_of_rows(sfa, rows, ends);
        scales.map(|scales| Some(Cow::Owned(scales))).map_err(|source| self.run.failed(plan.root, source))
    }

    /// Returns the product of each row of A with the matrix of its group. Rows of no group give 0.
    pub(super) fn multiply_groups(
        &self,
        [a, b]: [&Tensor; 2],
        alpha: Option<Value>,
    ) -> Result<Option<Tensor>, Error> {
        let plan = self.plan;
        let Some(groups) = &plan.groups else { return Ok(None) };
        let operand = |value: Option<Value>| value.map(|value| self.run.operand(value)).transpose();
        let sfa = self.scales_of_a()?;
        let (sfb, offsets) = (self.run.operand(plan.sfb)?, self.run.operand(groups.offsets)?);
        let operands = GroupedOperands {
            a,
            sfa: sfa.as_deref(),
            b,
            sfb,
            offsets,
            alpha: operand(alpha)?,
            sfa_ends: None,
        };
        let product = grouped_scaled_mma(operands, plan.format.block, ElementType::F32);
        product.map(Some).map_err(|source| self.run.failed(plan.root, source))
    }
}
