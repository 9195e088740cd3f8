//! Operands and their products, without a layout.

use fourfold::ir::numeric;
use fourfold_tests::random::Random;

use super::case::Format;

/// The rows of A and B, and the codes of a row.
pub(super) const ROWS: usize = 256;
pub(super) const K: usize = 256;

/// The codes that one instruction multiplies.
pub(super) const STEP: usize = 64;

/// The product of a row of A and a row of B over one step along K.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    pub value: f64,
    /// The sum of the absolute values of the blocks' products.
    pub magnitude: f64,
}

/// Operands and their products.
pub(super) struct Problem {
    /// The 256 codes of each row.
    pub a: Vec<Vec<u8>>,
    pub b: Vec<Vec<u8>>,
    /// The scale codes of each row.
    pub sfa: Vec<Vec<u8>>,
    pub sfb: Vec<Vec<u8>>,
    /// For each step, the product of row m of A and row n of B at `m * ROWS + n`.
    pub sums: Vec<Vec<Sum>>,
    /// The power of two of which each product with these rows is a multiple, for exact results.
    pub units: Option<[Vec<i32>; 2]>,
}

fn value_of(format: Format, code: u8) -> f64 {
    match format {
        Format::Nvfp4 => f64::from(numeric::ue4m3_to_f32(code & 0x7F)),
        Format::Mxfp4 => f64::from(numeric::e8m0_to_f32(code)),
    }
}

impl Problem {
    fn new(format: Format, [a, b, sfa, sfb]: [Vec<Vec<u8>>; 4], units: Option<[Vec<i32>; 2]>) -> Problem {
        let halves: Vec<i32> = (0..16).map(|code| (2.0 * numeric::e2m1_to_f32(code)) as i32).collect();
        let values = |rows: &[Vec<u8>]| -> Vec<Vec<i32>> {
            rows.iter().map(|row| row.iter().map(|code| halves[usize::from(*code)]).collect()).collect()
        };
        let scales = |rows: &[Vec<u8>]| -> Vec<Vec<f64>> {
            rows.iter().map(|row| row.iter().map(|code| value_of(format, *code)).collect()).collect()
        };
        let (values_a, values_b, scales_a, scales_b) = (values(&a), values(&b), scales(&sfa), scales(&sfb));
        let block = format.block();
        let sum = |step: usize, m: usize, n: usize| {
            let mut sum = Sum { value: 0.0, magnitude: 0.0 };
            for block_of_k in step * STEP / block..(step + 1) * STEP / block {
                let codes = block_of_k * block..(block_of_k + 1) * block;
                let quarters: i32 =
                    values_a[m][codes.clone()].iter().zip(&values_b[n][codes]).map(|(x, y)| x * y).sum();
                let product = f64::from(quarters) / 4.0 * (scales_a[m][block_of_k] * scales_b[n][block_of_k]);
                sum.value += product;
                sum.magnitude += product.abs();
            }
            sum
        };
        let sums = (0..K / STEP)
            .map(|step| (0..ROWS * ROWS).map(|at| sum(step, at / ROWS, at % ROWS)).collect())
            .collect();
        Problem { a, b, sfa, sfb, sums, units }
    }

    fn codes(random: &mut Random) -> Vec<Vec<u8>> {
        (0..ROWS).map(|_| (0..K).map(|_| random.below(16) as u8).collect()).collect()
    }

    /// Random operands whose products fit 24 bits, over all steps, in any order.
    ///
    /// NVFP4: the scales of a row have one exponent, and any mantissa. MXFP4: they are within a factor of eight.
    pub fn exact(format: Format, random: &mut Random) -> Problem {
        let blocks = K / format.block();
        let mut scales = || -> (Vec<Vec<u8>>, Vec<i32>) {
            let row = |_| match format {
                Format::Nvfp4 => {
                    let exponent = random.below(16);
                    let code = |_| {
                        // Zero and NaN are left out.
                        let (first, last) = match exponent {
                            0 => (1, 7),
                            15 => (0, 6),
                            _ => (0, 7),
                        };
                        let mantissa = first + random.below(last - first + 1);
                        (random.below(2) << 7 | exponent << 3 | mantissa) as u8
                    };
                    ((0..blocks).map(code).collect(), exponent.max(1) as i32 - 10)
                }
                Format::Mxfp4 => {
                    let first = 72 + random.below(104);
                    let code = |_| (first + random.below(4)) as u8;
                    ((0..blocks).map(code).collect(), first as i32 - 127)
                }
            };
            (0..ROWS).map(row).unzip()
        };
        let ((sfa, unit_a), (sfb, unit_b)) = (scales(), scales());
        let (a, b) = (Problem::codes(random), Problem::codes(random));
        let problem = Problem::new(format, [a, b, sfa, sfb], Some([unit_a, unit_b]));
        for sum in problem.sums.iter().flatten() {
            assert_eq!(f64::from(sum.value as f32), sum.value, "the product is exact");
        }
        problem
    }

    /// Each product is one scale of A times one of B: all pairs of codes.
    pub fn scales(format: Format) -> Problem {
        let blocks = K / format.block();
        let per_step = STEP / format.block();
        let one = numeric::e2m1_from_f32(1.0);
        let is_first = |at: usize| at.is_multiple_of(format.block());
        let a = (0..ROWS).map(|m| {
            let is_in = |at: usize| at / format.block() % per_step == m % per_step;
            (0..K).map(|at| if is_first(at) && is_in(at) { one } else { 0 }).collect()
        });
        let b = (0..ROWS).map(|_| (0..K).map(|at| if is_first(at) { one } else { 0 }).collect());
        let scales: Vec<Vec<u8>> = (0..ROWS).map(|code| vec![code as u8; blocks]).collect();
        Problem::new(format, [a.collect(), b.collect(), scales.clone(), scales], None)
    }

    /// Random operands, with some NaN scales.
    pub fn any(format: Format, random: &mut Random) -> Problem {
        let blocks = K / format.block();
        let mut scales = || -> Vec<Vec<u8>> {
            let mut code = || match format {
                _ if random.below(1000) == 0 => format.nan(),
                Format::Nvfp4 => random.below(256) as u8,
                Format::Mxfp4 => 100 + random.below(56) as u8,
            };
            (0..ROWS).map(|_| (0..blocks).map(|_| code()).collect()).collect()
        };
        let (sfa, sfb) = (scales(), scales());
        let (a, b) = (Problem::codes(random), Problem::codes(random));
        Problem::new(format, [a, b, sfa, sfb], None)
    }
}
