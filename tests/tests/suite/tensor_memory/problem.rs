//! Operands and their products, without a layout.

use fourfold::ir::numeric;
use fourfold_tests::random::Random;

use super::case::{Element, Format};

/// The rows of A and B.
pub(super) const ROWS: usize = 256;

/// The steps along K.
const STEPS: usize = 4;

/// The product of a row of A and a row of B over one step along K.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sum {
    pub value: f64,
    /// The sum of the absolute values of the blocks' products.
    pub magnitude: f64,
}

/// Operands and their products.
pub(super) struct Problem {
    /// The codes of each row.
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
        _ => f64::from(numeric::e8m0_to_f32(code)),
    }
}

impl Problem {
    fn new(format: Format, [a, b, sfa, sfb]: [Vec<Vec<u8>>; 4], units: Option<[Vec<i32>; 2]>) -> Problem {
        let [of_a, of_b] = format.elements();
        let values = |rows: &[Vec<u8>], element: Element| -> Vec<Vec<f64>> {
            let table: Vec<f64> = (0..element.codes()).map(|code| element.value(code as u8)).collect();
            rows.iter().map(|row| row.iter().map(|code| table[usize::from(*code)]).collect()).collect()
        };
        let scales = |rows: &[Vec<u8>]| -> Vec<Vec<f64>> {
            rows.iter().map(|row| row.iter().map(|code| value_of(format, *code)).collect()).collect()
        };
        let (values_a, values_b) = (values(&a, of_a), values(&b, of_b));
        let (scales_a, scales_b) = (scales(&sfa), scales(&sfb));
        let (block, length) = (format.block(), format.step());
        let sum = |step: usize, m: usize, n: usize| {
            let mut sum = Sum { value: 0.0, magnitude: 0.0 };
            for block_of_k in step * length / block..(step + 1) * length / block {
                let codes = block_of_k * block..(block_of_k + 1) * block;
                let products: f64 =
                    values_a[m][codes.clone()].iter().zip(&values_b[n][codes]).map(|(x, y)| x * y).sum();
                let product = products * (scales_a[m][block_of_k] * scales_b[n][block_of_k]);
                sum.value += product;
                sum.magnitude += product.abs();
            }
            sum
        };
        let sums = (0..STEPS)
            .map(|step| (0..ROWS * ROWS).map(|at| sum(step, at / ROWS, at % ROWS)).collect())
            .collect();
        Problem { a, b, sfa, sfb, sums, units }
    }

    /// Codes of A and B. Those of 8 bits are multiples of a quarter or a half.
    fn codes(format: Format, random: &mut Random) -> [Vec<Vec<u8>>; 2] {
        format.elements().map(|element| {
            let mut code = || match element {
                Element::E2m1 => random.below(16) as u8,
                Element::E4m3 => numeric::e4m3_from_f32(random.below(25) as f32 / 4.0 - 3.0),
                Element::E5m2 => numeric::e5m2_from_f32(random.below(17) as f32 / 2.0 - 4.0),
            };
            (0..ROWS).map(|_| (0..format.k()).map(|_| code()).collect()).collect()
        })
    }

    /// Random operands whose products fit 24 bits, over all steps, in any order.
    ///
    /// NVFP4: the scales of a row have one exponent, and any mantissa. Others: they are within a factor of eight.
    pub fn exact(format: Format, random: &mut Random) -> Problem {
        let blocks = format.k() / format.block();
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
                _ => {
                    let first = 72 + random.below(104);
                    let code = |_| (first + random.below(4)) as u8;
                    ((0..blocks).map(code).collect(), first as i32 - 127)
                }
            };
            (0..ROWS).map(row).unzip()
        };
        let ((sfa, unit_a), (sfb, unit_b)) = (scales(), scales());
        let [a, b] = Problem::codes(format, random);
        let problem = Problem::new(format, [a, b, sfa, sfb], Some([unit_a, unit_b]));
        for sum in problem.sums.iter().flatten() {
            assert_eq!(f64::from(sum.value as f32), sum.value, "the product is exact");
        }
        problem
    }

    /// Each product is one scale of A times one of B: all pairs of codes.
    pub fn scales(format: Format) -> Problem {
        let blocks = format.k() / format.block();
        let (k, per_step) = (format.k(), format.step() / format.block());
        let [of_a, of_b] = format.elements().map(|element| match element {
            Element::E2m1 => numeric::e2m1_from_f32(1.0),
            Element::E4m3 => numeric::e4m3_from_f32(1.0),
            Element::E5m2 => numeric::e5m2_from_f32(1.0),
        });
        let is_first = |at: usize| at.is_multiple_of(format.block());
        let a = (0..ROWS).map(|m| {
            let is_in = |at: usize| at / format.block() % per_step == m % per_step;
            (0..k).map(|at| if is_first(at) && is_in(at) { of_a } else { 0 }).collect()
        });
        let b = (0..ROWS).map(|_| (0..k).map(|at| if is_first(at) { of_b } else { 0 }).collect());
        let scales: Vec<Vec<u8>> = (0..ROWS).map(|code| vec![code as u8; blocks]).collect();
        Problem::new(format, [a.collect(), b.collect(), scales.clone(), scales], None)
    }

    /// Each product is one element of A times one of B: all pairs of codes.
    pub fn elements(format: Format) -> Problem {
        let blocks = format.k() / format.block();
        let one = if format == Format::Nvfp4 { numeric::ue4m3_from_f32(1.0) } else { 127 };
        let [a, b] = format.elements().map(|element| -> Vec<Vec<u8>> {
            let row = |row: usize| {
                // Another element of the block in each step, the same for A and B.
                let is_in = |at: usize| at % format.step() == at / format.step() * 5;
                (0..format.k()).map(|at| if is_in(at) { (row % element.codes()) as u8 } else { 0 }).collect()
            };
            (0..ROWS).map(row).collect()
        });
        let scales = vec![vec![one; blocks]; ROWS];
        Problem::new(format, [a, b, scales.clone(), scales], None)
    }

    /// Random operands, with some NaN scales.
    pub fn any(format: Format, random: &mut Random) -> Problem {
        let blocks = format.k() / format.block();
        let mut scales = || -> Vec<Vec<u8>> {
            let mut code = || match format {
                _ if random.below(300) == 0 => format.nan(),
                Format::Nvfp4 => random.below(256) as u8,
                _ => 100 + random.below(56) as u8,
            };
            (0..ROWS).map(|_| (0..blocks).map(|_| code()).collect()).collect()
        };
        let (sfa, sfb) = (scales(), scales());
        let [a, b] = Problem::codes(format, random);
        Problem::new(format, [a, b, sfa, sfb], None)
    }
}
