//! Bounds the error of a kernel's sum, which is accumulated in f32 in an order that the kernel chooses.

use fourfold_executor::fallback::{BlockScaled, BlockScaledShape, Epilogue, FallbackError, scaled_mma};
use fourfold_ir::{ElementType, ScaleLayout, Tensor, Value};

use super::units::row_units;
use super::{KernelRun, Values};
use crate::error::Error;
use crate::precision::is_exact_product;

impl KernelRun<'_> {
    /// Returns the largest error of each element's sum, times alpha; `None` if every order of summation is exact.
    pub(super) fn accumulation_error(&self) -> Result<Option<Vec<f64>>, Error> {
        if is_exact_product(self.run.program, self.run.rule, self.plan.root) {
            return Ok(None);
        }
        let sums = self.magnitudes()?;
        if self.is_exact_in_any_order(&sums)? {
            return Ok(None);
        }
        let groups = self.groups()?;
        let alpha = match self.plan.alpha {
            _ if groups.is_some() => 1.0,
            Some(alpha) => self.run.operand(alpha)?.to_f64().first().copied().unwrap_or(1.0).abs(),
            None => 1.0,
        };
        let k = *self.run.operand(self.plan.a)?.dims().last().unwrap_or(&0) as f64;
        // Kernels of sm_90a multiply an f16 A beside MX scales in two terms.
        let format = self.plan.format;
        let terms =
            if format.a == ElementType::F16 && format.scale == ElementType::F8E8M0FNU { 2.0 } else { 1.0 };
        let unit = terms * k * 2f64.powi(-24);
        // The fallback sums in f32 as well, so both sides may err.
        let orders = if self.run.interpret { 1.0 } else { 2.0 };
        let gamma = orders * unit / (1.0 - unit);
        let columns = self.run.operand(self.plan.b)?.dims().iter().rev().nth(1).copied().unwrap_or(1).max(1);
        let of_group =
            |index: usize| groups.as_ref().map_or(1.0, |it| f64::from(it.alpha(index / columns)).abs());
        let bound = |(index, sum): (usize, &f32)| gamma * alpha * of_group(index) * f64::from(*sum);
        Ok(Some(sums.iter().enumerate().map(bound).collect()))
    }

    /// Returns true if every partial sum is a whole number of units that f32 can hold. The elements of a row of A are
    /// multiples of a unit, as are those of a row of B, and no partial sum exceeds the sum of magnitudes.
    fn is_exact_in_any_order(&self, sums: &[f32]) -> Result<bool, Error> {
        let plan = self.plan;
        let (a, b) = (self.run.operand(plan.a)?, self.run.operand(plan.b)?);
        let block = plan.format.block as usize;
        let sfa = self.scales_of_a()?;
        let (Some(a_units), Some(b_units)) =
            (row_units(a, sfa.as_deref(), block), row_units(b, Some(self.run.operand(plan.sfb)?), block))
        else {
            return Ok(false);
        };
        let ([.., m, _], [.., n, _]) = (a.dims(), b.dims()) else { return Ok(false) };
        let groups = self.groups()?;
        let holds = |(index, sum): (usize, &f32)| {
            let (row, column) = (index / n, index % n);
            let matrix = match &groups {
                Some(groups) => match groups.of_row(row) {
                    Some(group) => group,
                    None => return true,
                },
                None if plan.b_batched => row / m,
                None => 0,
            };
            f64::from(*sum) < a_units[row] * b_units[matrix * n + column] * 2f64.powi(24)
        };
        Ok(sums.iter().enumerate().all(holds))
    }

    /// Returns Σ|a·b| for every element of D.
    fn magnitudes(&self) -> Result<Vec<f32>, Error> {
        let (a, b) = (self.run.operand(self.plan.a)?, self.run.operand(self.plan.b)?);
        let unsigned = |tensor: &Tensor| {
            Tensor::new(tensor.element(), tensor.dims().to_vec(), None, without_signs(tensor))
                .map_err(|error| self.no_tensor(error))
        };
        let (a, b) = (unsigned(a)?, unsigned(b)?);
        match self.multiply_groups([&a, &b], None)? {
            Some(sums) => Ok(sums.to_f32()),
            None => self.multiply(a.bytes(), b.bytes(), Epilogue::default()),
        }
    }

    /// Returns the result of the `scaled_mma` before it is rounded to its type.
    pub(super) fn sum(&self, values: &Values) -> Result<Tensor, Error> {
        let module = self.run.program.module();
        let root = self.run.take(values, module.ops[self.plan.root].results[0])?;
        if self.plan.accumulator == ElementType::F32 {
            return Ok(root);
        }
        let (a, b) = (self.run.operand(self.plan.a)?, self.run.operand(self.plan.b)?);
        if let Some(sums) = self.multiply_groups([a, b], self.plan.alpha)? {
            return Ok(sums);
        }
        let scalar = |value: Option<Value>| -> Result<Option<f32>, Error> {
            let Some(value) = value else { return Ok(None) };
            Ok(self.run.operand(value)?.to_f64().first().map(|value| *value as f32))
        };
        let c = match self.plan.c {
            Some(c) => Some(self.run.operand(c)?),
            None => None,
        };
        let epilogue = Epilogue {
            alpha: scalar(self.plan.alpha)?,
            c: c.map(|c| (c.bytes(), c.element())),
            beta: scalar(self.plan.beta)?,
        };
        let sums = self.multiply(a.bytes(), b.bytes(), epilogue)?;
        Tensor::from_f32(root.dims().to_vec(), &sums).map_err(|error| self.no_tensor(error))
    }

    fn multiply(&self, a: &[u8], b: &[u8], epilogue: Epilogue<'_>) -> Result<Vec<f32>, Error> {
        let plan = self.plan;
        let block = plan.format.block as usize;
        let shape = |tensor: &Tensor| match tensor.dims() {
            [batch @ .., rows, k] => {
                BlockScaledShape { batch: batch.iter().product(), rows: *rows, k: *k, block }
            }
            _ => BlockScaledShape { batch: 0, rows: 0, k: 0, block },
        };
        let (a_shape, b_shape) = (shape(self.run.operand(plan.a)?), shape(self.run.operand(plan.b)?));
        let root = |source: FallbackError| self.run.failed(plan.root, source);
        let mut out = vec![0; a_shape.batch * a_shape.rows * b_shape.rows * size_of::<f32>()];
        let operand = |data, shape, scales: Option<Value>| {
            let Some(scales) = scales else {
                return BlockScaled::unscaled(data, shape).map_err(|error| root(error.into()));
            };
            let scales = self.run.operand(scales)?;
            let layout = scales.layout().unwrap_or(ScaleLayout::Linear);
            BlockScaled::new(data, (scales.bytes(), scales.element(), layout), shape)
                .map_err(|error| root(error.into()))
        };
        let a = operand((a, plan.format.a), a_shape, plan.sfa)?;
        let b = operand((b, plan.format.b), b_shape, Some(plan.sfb))?;
        scaled_mma(&a, &b, epilogue, ElementType::F32, &mut out).map_err(|error| root(error.into()))?;
        let word = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Ok(out.chunks_exact(4).map(word).collect())
    }
}

/// Returns the codes with every sign cleared.
fn without_signs(tensor: &Tensor) -> Vec<u8> {
    let mask: &[u8] = match tensor.element() {
        ElementType::F4E2M1FN => &[0x77],
        // Bits 5, 11, 17 and 23 of three bytes.
        element if element.is_fp6() => &[0xDF, 0xF7, 0x7D],
        element if element.is_half() => &[0xFF, 0x7F],
        _ => &[0x7F],
    };
    tensor.bytes().iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte & mask).collect()
}
