//! The groups of rows of a `grouped_scaled_mma` in one run.

use fourfold_executor::fallback::{BlockScaled, BlockScaledShape, Epilogue, FallbackError, scaled_mma};
use fourfold_ir::{ElementType, ScaleLayout, Value};

use super::KernelRun;
use crate::error::Error;

/// The rows of each group, and its alpha.
pub(super) struct GroupRows {
    /// The end of each group.
    ends: Vec<usize>,
    /// One alpha, or one for each group; 1 without alpha.
    alphas: Vec<f32>,
}

impl GroupRows {
    /// Returns the group of a row; `None` for a row of no group.
    pub(super) fn of_row(&self, row: usize) -> Option<usize> {
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
        Ok(Some(GroupRows { ends: ends.into_iter().map(|end| end as usize).collect(), alphas }))
    }

    /// Returns the product of each row of A with the matrix of its group. Rows of no group give 0.
    pub(super) fn multiply_groups(
        &self,
        rows: &GroupRows,
        a: &[u8],
        b: &[u8],
        scaled: bool,
    ) -> Result<Vec<f32>, Error> {
        let plan = self.plan;
        let block = plan.format.block as usize;
        let (&[m, k], &[count, n, _]) = (self.run.operand(plan.a)?.dims(), self.run.operand(plan.b)?.dims())
        else {
            return Ok(Vec::new());
        };
        let root = |source: FallbackError| self.run.failed(plan.root, source);
        // Units are rows of A, or matrices of B.
        let operand =
            |bytes: &'_ [u8], element, scales: Option<Value>, [first, taken, units]: [usize; 3], rows| {
                let part = |all: &[u8]| -> Vec<u8> {
                    let each = all.len() / units.max(1);
                    all[first * each..(first + taken) * each].to_vec()
                };
                let scales = scales.map(|scales| self.run.operand(scales)).transpose()?;
                let scales = scales.map(|scales| {
                    let layout = scales.layout().unwrap_or(ScaleLayout::Linear);
                    (part(scales.bytes()), scales.element(), layout)
                });
                let shape = BlockScaledShape { batch: 1, rows, k, block };
                Ok::<_, Error>(Part { codes: part(bytes), element, scales, shape })
            };
        let mut sums = vec![0.0; m * n];
        let mut begin = 0;
        for (group, &end) in rows.ends.iter().enumerate() {
            if begin < end {
                let of_a = operand(a, plan.format.a, plan.sfa, [begin, end - begin, m], end - begin)?;
                let of_b = operand(b, plan.format.b, Some(plan.sfb), [group, 1, count], n)?;
                let alpha = scaled.then(|| rows.alpha(begin));
                let epilogue = Epilogue { alpha, ..Epilogue::default() };
                let mut out = vec![0u8; (end - begin) * n * size_of::<f32>()];
                let mut multiplied = || -> Result<(), FallbackError> {
                    scaled_mma(&of_a.view()?, &of_b.view()?, epilogue, ElementType::F32, &mut out)?;
                    Ok(())
                };
                multiplied().map_err(root)?;
                let words = out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                sums[begin * n..end * n].iter_mut().zip(words).for_each(|(to, sum)| *to = sum);
            }
            begin = end;
        }
        Ok(sums)
    }
}

/// A part of an operand.
struct Part {
    codes: Vec<u8>,
    element: ElementType,
    scales: Option<(Vec<u8>, ElementType, ScaleLayout)>,
    shape: BlockScaledShape,
}

impl Part {
    fn view(&self) -> Result<BlockScaled<'_>, FallbackError> {
        let data = (&self.codes[..], self.element);
        match &self.scales {
            None => Ok(BlockScaled::unscaled(data, self.shape)?),
            Some((scales, element, layout)) => {
                Ok(BlockScaled::new(data, (&scales[..], *element, *layout), self.shape)?)
            }
        }
    }
}
