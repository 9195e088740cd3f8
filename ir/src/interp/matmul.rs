//! Matrix multiplications. Operands are K-major: each element of D is the dot product of a row of A and a row of B.

use super::routing;
use crate::numeric;
use crate::ops::{GroupedScaledMma, ScaledMma};
use crate::tensor::Tensor;
use crate::types::{ElementType, ScaleLayout};

/// Computes alpha · Σ_k (a·sfa)(b·sfb) + beta · C in f32, with the roundings listed in `lib.rs` except the last, to
/// the result type. The operands are those of the attributes.
pub(super) fn scaled_mma(attributes: ScaledMma, operands: &[&Tensor]) -> Vec<f64> {
    let (positional, named) = operands.split_at(attributes.positional().len());
    let mut named = named.iter();
    let mut take = |present: bool| if present { named.next() } else { None };
    let (alpha, c, beta) = (take(attributes.alpha), take(attributes.c), take(attributes.beta));
    let block = attributes.block as usize;
    let (a, sfa, b, sfb) = match *positional {
        [a, sfa, b, sfb] => (a, Some(sfa), b, sfb),
        [a, b, sfb] => (a, None, b, sfb),
        _ => unreachable!("a scaled_mma has three or four positional operands"),
    };
    let acc = multiply(a, b, products((a, sfa), (b, sfb), block));

    let scaled: Vec<f32> = match alpha.map(|alpha| alpha.to_f32()[0]) {
        Some(alpha) => acc.into_iter().map(|acc| alpha * acc).collect(),
        None => acc,
    };
    let Some(c) = c else {
        return scaled.into_iter().map(f64::from).collect();
    };
    let beta = beta.map_or(1.0, |beta| beta.to_f32()[0]);
    scaled.into_iter().zip(c.to_f32()).map(|(t, c)| f64::from(libm::fmaf(beta, c, t))).collect()
}

/// Computes alpha · Σ_k (a·sfa)(b·sfb) of each row of A with the matrix of its group, as [`scaled_mma`]. Rows of no
/// group give 0. Offsets ascend and are at most the number of rows. Ends in sfa are those of padded groups. Counts are at most the rows of a matrix.
pub(super) fn grouped_scaled_mma(attributes: GroupedScaledMma, operands: &[&Tensor]) -> Vec<f64> {
    let (positional, named) = operands.split_at(attributes.positional().len());
    let (a, sfa, b, sfb, offsets) = match *positional {
        [a, sfa, b, sfb, offsets] => (a, Some(sfa), b, sfb, offsets),
        [a, b, sfb, offsets] => (a, None, b, sfb, offsets),
        _ => unreachable!("a grouped_scaled_mma has four or five positional operands"),
    };
    let alpha = if attributes.alpha { named.first() } else { None };
    let of_rows = sfa.zip(named.last().filter(|_| attributes.sfa_ends)).map(|(sfa, sfa_ends)| {
        let (rows, columns) = (a.dims()[0], sfa.dims()[1]);
        let codes = routing::scales_of_rows(sfa, offsets, sfa_ends, rows);
        Tensor::from_codes(sfa.element(), vec![rows, columns], Some(ScaleLayout::Linear), codes)
            .expect("a row of A has as many bytes or more")
    });
    let sfa = of_rows.as_ref().or(sfa);
    let product = products((a, sfa), (b, sfb), attributes.block as usize);
    let (of_a, rows, _) = matrices(a);
    let (_, n, _) = matrices(b);
    let ends = offsets.to_f64();
    let group_of = |row: usize| {
        if attributes.masked {
            return Some(row / rows).filter(|group| ((row % rows) as f64) < ends[*group]);
        }
        // An empty group ends where the one before it does, so it is never the first with a greater end.
        ends.iter().position(|end| (row as f64) < *end)
    };
    let alphas = alpha.map(|alpha| alpha.to_f32());
    let mut values = Vec::with_capacity(of_a * rows * n);
    for row in 0..of_a * rows {
        let Some(group) = group_of(row) else {
            values.extend(std::iter::repeat_n(0.0, n));
            continue;
        };
        let alpha = alphas.as_ref().map(|alphas| alphas[if alphas.len() == 1 { 0 } else { group }]);
        values.extend((0..n).map(|column| {
            let sum = product(row, group * n + column);
            f64::from(alpha.map_or(sum, |alpha| alpha * sum))
        }));
    }
    values
}

/// Returns the function that multiplies a row of A with a row of B: Σ_k (a·sfa)(b·sfb), rounded to f32.
fn products(
    (a, sfa): (&Tensor, Option<&Tensor>),
    (b, sfb): (&Tensor, &Tensor),
    block: usize,
) -> Box<dyn Fn(usize, usize) -> f32> {
    let b = BlockScaled { data: b, scales: sfb, block };
    match sfa.map(|scales| BlockScaled { data: a, scales, block }) {
        Some(a) if a.is_integer() && b.is_integer() => {
            let (a_rows, b_rows) = (a.integer_rows(), b.integer_rows());
            Box::new(move |a, b| match (&a_rows[a], &b_rows[b]) {
                (Some(a), Some(b)) => integer_dot(a, b),
                _ => f32::NAN,
            })
        }
        scaled => {
            let a_rows = scaled.map_or_else(|| plain_rows(a), |a| a.real_rows());
            let b_rows = b.real_rows();
            Box::new(move |a, b| dot(&a_rows[a], &b_rows[b]) as f32)
        }
    }
}

/// Σ_k a·b in f64, k ascending.
pub(super) fn mma(a: &Tensor, b: &Tensor) -> Vec<f64> {
    let (_, _, k) = matrices(a);
    let (a_values, b_values) = (a.to_f64(), b.to_f64());
    multiply(a, b, |a, b| dot(&a_values[a * k..][..k], &b_values[b * k..][..k]))
}

/// Computes each element of D as `product(row of A, row of B)`. Row indices run through the whole batch.
fn multiply<T>(a: &Tensor, b: &Tensor, product: impl Fn(usize, usize) -> T) -> Vec<T> {
    let (batch, m, _) = matrices(a);
    let (_, n, _) = matrices(b);
    // A B of rank 2 is shared by all matrices of the batch.
    let b_matrix_rows = if b.dims().len() > 2 { n } else { 0 };
    let product = &product;
    (0..batch)
        .flat_map(|l| {
            (0..m).flat_map(move |i| (0..n).map(move |j| product(l * m + i, l * b_matrix_rows + j)))
        })
        .collect()
}

/// The batch L, and the rows and columns of a matrix.
fn matrices(tensor: &Tensor) -> (usize, usize, usize) {
    match tensor.dims() {
        [batch @ .., rows, columns] => (batch.iter().product(), *rows, *columns),
        _ => unreachable!("the verifier proved that operands of a multiplication have rank two or more"),
    }
}

/// The rows of an unscaled matrix.
fn plain_rows(matrix: &Tensor) -> Vec<Vec<f64>> {
    let (batch, rows, k) = matrices(matrix);
    let values = matrix.to_f64();
    (0..batch * rows).map(|row| values[row * k..][..k].to_vec()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).fold(0.0, |sum, (a, b)| sum + a * b)
}

/// A batch of matrices with one scale per `block` elements of a row.
struct BlockScaled<'a> {
    data: &'a Tensor,
    scales: &'a Tensor,
    block: usize,
}

/// Inverse units of FP4 codes and of `f8E4M3FN` scales: codes are multiples of 2^-1, scales of 2^-9.
const CODE_UNITS: f32 = 2.0;
const SCALE_UNITS: f32 = 512.0;
/// The unit of a product of two scaled operands, 2^-10 each.
const PRODUCT_UNIT: f32 = 1.0 / ((1 << 20) as f32);
/// The largest operand, 6 · 448, in its units of 2^-10.
const MAX_OPERAND: i64 = 6 * 448 * 1024;
/// The largest number of products whose sum cannot overflow i64: 1 217 394.
const MAX_I64_TERMS: usize = (i64::MAX / (MAX_OPERAND * MAX_OPERAND)) as usize;

impl BlockScaled<'_> {
    fn is_integer(&self) -> bool {
        self.data.element() == ElementType::F4E2M1FN && self.scales.element() == ElementType::F8E4M3FN
    }

    /// Each row in units of 2^-10; `None` if one of its scales is NaN, which makes every sum over the row NaN.
    fn integer_rows(&self) -> Vec<Option<Vec<i64>>> {
        self.rows(|codes, scales| {
            let scales: Option<Vec<i64>> = scales
                .iter()
                .map(|scale| numeric::ue4m3_to_f32(*scale))
                .map(|scale| (!scale.is_nan()).then_some((scale * SCALE_UNITS) as i64))
                .collect();
            let code_units = |code: &u8| (numeric::e2m1_to_f32(*code) * CODE_UNITS) as i64;
            scales.map(|scales| {
                codes.iter().enumerate().map(|(k, code)| code_units(code) * scales[k / self.block]).collect()
            })
        })
    }

    /// Each row as code · scale, exact in f64: a product has at most 8 significant bits.
    fn real_rows(&self) -> Vec<Vec<f64>> {
        let decode: fn(u8) -> f32 = match self.data.element() {
            ElementType::F8E4M3FN => numeric::e4m3_to_f32,
            ElementType::F8E5M2 => numeric::e5m2_to_f32,
            ElementType::F6E2M3FN => numeric::e2m3_to_f32,
            ElementType::F6E3M2FN => numeric::e3m2_to_f32,
            _ => numeric::e2m1_to_f32,
        };
        let decode_scale: fn(u8) -> f32 = match self.scales.element() {
            ElementType::F8E4M3FN => numeric::ue4m3_to_f32,
            _ => numeric::e8m0_to_f32,
        };
        self.rows(|codes, scales| {
            let scale = |k: usize| f64::from(decode_scale(scales[k / self.block]));
            codes.iter().enumerate().map(|(k, code)| f64::from(decode(*code)) * scale(k)).collect()
        })
    }

    /// Decodes each row of the batch from its codes and its scales.
    fn rows<T>(&self, decode: impl Fn(&[u8], &[u8]) -> T) -> Vec<T> {
        let (batch, rows, k) = matrices(self.data);
        let blocks = k / self.block;
        let (codes, scales) = (self.data.to_codes(), self.scales.to_codes());
        (0..batch * rows)
            .map(|row| decode(&codes[row * k..][..k], &scales[row * blocks..][..blocks]))
            .collect()
    }
}

/// The exact sum of products, rounded once to f32.
fn integer_dot(a: &[i64], b: &[i64]) -> f32 {
    // `as` rounds to nearest even. Multiplying by 2^-20 is exact: the result is zero or at least 2^-20.
    let sum = if a.len() <= MAX_I64_TERMS {
        a.iter().zip(b).map(|(a, b)| a * b).sum::<i64>() as f32
    } else {
        a.iter().zip(b).map(|(a, b)| i128::from(a * b)).sum::<i128>() as f32
    };
    sum * PRODUCT_UNIT
}

#[cfg(test)]
mod tests;
