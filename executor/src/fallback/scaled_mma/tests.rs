//! Tests of every kernel against a naive second implementation.

use std::collections::BTreeSet;

use fourfold_ir::ScaleLayout::{Blocked, Linear};
use fourfold_ir::numeric;
use fourfold_ir::{BlockFormat, ElementType, ScaleLayout};

use super::*;
use crate::parallel::tests::alone;

/// Random bits, the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, limit: u64) -> u8 {
        (self.next() % limit) as u8
    }
}

/// One operand, in logical order: a code and a scale byte for every element and block.
#[derive(Clone)]
struct Matrix {
    element: ElementType,
    scale_element: ElementType,
    layout: ScaleLayout,
    shape: BlockScaledShape,
    /// Codes, or the bits of 16-bit elements, which have no scales.
    codes: Vec<u16>,
    scales: Vec<u8>,
    /// The content of blocked padding.
    padding: u8,
}

impl Matrix {
    fn random(
        format: BlockFormat,
        element: ElementType,
        layout: ScaleLayout,
        [batch, rows, k]: [usize; 3],
        random: &mut Random,
    ) -> Matrix {
        let block = format.block as usize;
        let halves = |least: u64, count: u64, random: &mut Random| {
            (least + random.next() % count) as u16 | u16::from(random.below(2)) << 15
        };
        let code = |random: &mut Random| match element {
            ElementType::F4E2M1FN => u16::from(random.below(16)),
            ElementType::F6E2M3FN | ElementType::F6E3M2FN => u16::from(random.below(64)),
            // Finite codes of either sign.
            ElementType::F8E4M3FN => u16::from(random.below(0x7F) | random.below(2) << 7),
            ElementType::F8E5M2 => u16::from(random.below(0x7C) | random.below(2) << 7),
            // 2^-8 to 2^8 with a full significand.
            ElementType::F16 => halves(7 << 10, 16 << 10, random),
            _ => halves(119 << 7, 16 << 7, random),
        };
        let scale = |random: &mut Random| match format.scale {
            ElementType::F8E4M3FN => random.below(0x7F),
            _ => 117 + random.below(20),
        };
        Matrix {
            element,
            scale_element: format.scale,
            layout,
            shape: BlockScaledShape { batch, rows, k, block },
            codes: (0..batch * rows * k).map(|_| code(random)).collect(),
            scales: (0..batch * rows * k / block).map(|_| scale(random)).collect(),
            padding: 0,
        }
    }

    /// Scales 2^e(row) · (8 + m)/8 with m of the row and block: every order of f32 sums is exact.
    fn exact([batch, rows, k]: [usize; 3], layout: ScaleLayout, random: &mut Random) -> Matrix {
        let mut matrix =
            Matrix::random(BlockFormat::NVFP4, ElementType::F4E2M1FN, layout, [batch, rows, k], random);
        for row in matrix.scales.chunks_mut(k / 16) {
            let exponent = 4 + random.below(8);
            row.iter_mut().for_each(|scale| *scale = exponent << 3 | random.below(8));
        }
        matrix
    }

    fn store(&self) -> (Vec<u8>, Vec<u8>) {
        let BlockScaledShape { batch, rows, k, block } = self.shape;
        let narrow = || self.codes.iter().map(|code| *code as u8).collect::<Vec<u8>>();
        let codes = match self.element {
            ElementType::F4E2M1FN => numeric::pack_e2m1(&narrow()),
            ElementType::F6E2M3FN | ElementType::F6E3M2FN => numeric::pack_codes(&narrow(), 6),
            ElementType::F16 | ElementType::BF16 => {
                self.codes.iter().flat_map(|bits| bits.to_le_bytes()).collect()
            }
            _ => narrow(),
        };
        if self.layout == Linear {
            return (codes, self.scales.clone());
        }
        let columns = k / block;
        let matrix = numeric::blocked_len(rows, columns);
        let mut scales = vec![self.padding; batch * matrix];
        for (index, scale) in self.scales.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            scales[row / rows * matrix + numeric::blocked_offset(row % rows, column, columns)] = *scale;
        }
        (codes, scales)
    }

    fn value(&self, row: usize, column: usize) -> f64 {
        let code = self.codes[row * self.shape.k + column];
        let code = match self.element {
            ElementType::F4E2M1FN => numeric::e2m1_to_f32(code as u8),
            ElementType::F6E2M3FN => numeric::e2m3_to_f32(code as u8),
            ElementType::F6E3M2FN => numeric::e3m2_to_f32(code as u8),
            ElementType::F8E4M3FN => numeric::e4m3_to_f32(code as u8),
            ElementType::F8E5M2 => numeric::e5m2_to_f32(code as u8),
            ElementType::F16 => return f64::from(numeric::f16_bits_to_f32(code)),
            _ => return f64::from(numeric::bf16_bits_to_f32(code)),
        };
        let scale = self.scales[row * (self.shape.k / self.shape.block) + column / self.shape.block];
        let scale = match self.scale_element {
            ElementType::F8E4M3FN => numeric::ue4m3_to_f32(scale),
            _ => numeric::e8m0_to_f32(scale),
        };
        f64::from(code) * f64::from(scale)
    }

    /// Runs `with` on the operand in its memory format.
    fn with<T>(&self, with: impl FnOnce(&BlockScaled) -> T) -> T {
        let (codes, scales) = self.store();
        if self.element.is_half() {
            return with(&BlockScaled::unscaled((&codes, self.element), self.shape).unwrap());
        }
        let scales = (scales.as_slice(), self.scale_element, self.layout);
        with(&BlockScaled::new((&codes, self.element), scales, self.shape).unwrap())
    }
}

fn multiply(kernel: ScaledMmaKernel, a: &Matrix, b: &Matrix, epilogue: Epilogue) -> Vec<f32> {
    let mut out = vec![0u8; a.shape.batch * a.shape.rows * b.shape.rows * 4];
    a.with(|a| b.with(|b| scaled_mma_with(kernel, a, b, epilogue, ElementType::F32, &mut out))).unwrap();
    out.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn kernels(a: &Matrix, b: &Matrix) -> Vec<ScaledMmaKernel> {
    a.with(|a| b.with(|b| ScaledMmaKernel::available(a, b)))
}

/// The sum of products, and the sum of their magnitudes, for every pair of rows: one loop in f64.
fn naive(a: &Matrix, b: &Matrix) -> Vec<(f64, f64)> {
    let (m, n, k) = (a.shape.rows, b.shape.rows, a.shape.k);
    let pair = |row: usize, column: usize| {
        let matrix = if b.shape.batch == 1 { 0 } else { row / m };
        let products = (0..k).map(|k| a.value(row, k) * b.value(matrix * n + column, k));
        products.fold((0.0, 0.0), |(sum, magnitude), product| (sum + product, magnitude + product.abs()))
    };
    (0..a.shape.batch * m)
        .flat_map(|row| (0..n).map(move |column| (row, column)))
        .map(|(r, c)| pair(r, c))
        .collect()
}

/// Checks that every kernel is within the defined error bound.
#[track_caller]
fn check_accuracy(a: &Matrix, b: &Matrix) {
    let expected = naive(a, b);
    let k = a.shape.k as f64;
    let gamma = k * 2f64.powi(-24) / (1.0 - k * 2f64.powi(-24));
    for kernel in kernels(a, b) {
        let found = multiply(kernel, a, b, Epilogue::default());
        assert_eq!(found.len(), expected.len());
        for (index, (found, (sum, magnitude))) in found.iter().zip(&expected).enumerate() {
            let ulp = f64::from((*sum as f32).abs().next_up() - (*sum as f32).abs());
            let error = (f64::from(*found) - sum).abs();
            assert!(
                error <= gamma * magnitude + 4.0 * ulp,
                "{kernel:?} {:?} {:?}: element {index} is {found}, not {sum}",
                a.shape,
                b.shape
            );
        }
    }
}

#[test]
fn odd_shapes_are_within_the_bound_in_every_layout() {
    let mut random = Random(1);
    for (m, n, k) in [(1, 1, 16), (1, 91, 208), (3, 33, 16), (37, 91, 144), (130, 45, 64), (7, 257, 1056)] {
        for (a_layout, b_layout) in [(Linear, Linear), (Blocked, Blocked), (Linear, Blocked)] {
            let nvfp4 = BlockFormat::NVFP4;
            let a = Matrix::random(nvfp4, nvfp4.a, a_layout, [1, m, k], &mut random);
            let b = Matrix::random(nvfp4, nvfp4.b, b_layout, [1, n, k], &mut random);
            check_accuracy(&a, &b);
        }
    }
}

#[test]
fn every_format_is_within_the_bound() {
    use ElementType::{F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F8E8M0FNU};
    let mut random = Random(2);
    let data = [F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2];
    let a_data = data.into_iter().chain([ElementType::F16, ElementType::BF16]);
    for (a, b) in a_data.flat_map(|a| data.map(|b| (a, b))) {
        for (scale, block) in [(F8E8M0FNU, 32), (F8E4M3FN, 32), (F8E4M3FN, 16), (F8E8M0FNU, 16)] {
            let format = BlockFormat { a, b, scale, block };
            for m in [2, 11] {
                let a = Matrix::random(format, a, Blocked, [1, m, 96], &mut random);
                let b = Matrix::random(format, b, Linear, [1, 19, 96], &mut random);
                check_accuracy(&a, &b);
            }
        }
    }
}

#[test]
fn a_16_bit_a_is_within_the_bound_in_f32_and_in_f64() {
    let mut random = Random(15);
    for a_type in [ElementType::F16, ElementType::BF16] {
        for (m, n, k) in [(1, 91, 208), (5, 33, 16), (37, 70, 528), (130, 45, 64)] {
            let format = BlockFormat::NVFP4.weight_only(a_type);
            let a = Matrix::random(format, a_type, Linear, [2, m, k], &mut random);
            for batch in [1, 2] {
                let b = Matrix::random(format, format.b, Blocked, [batch, n, k], &mut random);
                assert_eq!(kernels(&a, &b), [ScaledMmaKernel::Float, ScaledMmaKernel::Double]);
                check_accuracy(&a, &b);
            }
        }
    }
}

#[test]
fn f32_is_used_exactly_where_its_range_suffices() {
    let mut random = Random(16);
    let mut weight_only = |a_type: ElementType, of_b: BlockFormat| {
        let format = of_b.weight_only(a_type);
        let a = Matrix::random(format, a_type, Linear, [1, 3, 64], &mut random);
        (a, Matrix::random(format, format.b, Blocked, [1, 5, 64], &mut random))
    };
    let (mut a, b) = weight_only(ElementType::BF16, BlockFormat::NVFP4);
    // Beside NVFP4, whose elements are multiples of 2^-10 below 2^12, and for K = 64: below 2^108. The least subnormal
    // of bf16, 2^-133, is large enough.
    for (bits, fits) in [((127 + 107) << 7, true), ((127 + 108) << 7, false), (1, true)] {
        a.codes[70] = bits;
        assert_eq!(kernels(&a, &b)[0] == ScaledMmaKernel::Float, fits, "{bits:#x}");
        check_accuracy(&a, &b);
    }
    // Infinity and NaN are the same in f32 and f64.
    for bits in [0x7F80, 0xFF80, 0x7FC0] {
        a.codes[70] = bits;
        assert_eq!(kernels(&a, &b)[0], ScaledMmaKernel::Float);
        let expected: Vec<bool> = naive(&a, &b).iter().map(|(sum, _)| sum.is_finite()).collect();
        for kernel in kernels(&a, &b) {
            let found = multiply(kernel, &a, &b, Epilogue::default());
            assert_eq!(found.iter().map(|sum| sum.is_finite()).collect::<Vec<_>>(), expected);
        }
        assert_eq!(expected.iter().filter(|finite| !**finite).count(), 5);
    }
    let (a, mut b) = weight_only(ElementType::F16, BlockFormat::MXFP4);
    for (scale, fits) in
        [(0, false), (2, false), (3, true), (227, true), (228, false), (254, false), (255, true)]
    {
        b.scales[3] = scale;
        assert_eq!(kernels(&a, &b)[0] == ScaledMmaKernel::Float, fits, "{scale}");
        // With 2^127 sums overflow, and 0xFF is NaN.
        if scale < 254 {
            check_accuracy(&a, &b);
        }
    }
}

#[test]
fn exact_rule_data_gives_the_exact_sum_in_every_kernel() {
    let mut random = Random(3);
    for (m, n, k) in [(1, 70, 512), (5, 33, 496), (37, 91, 512), (129, 40, 256)] {
        let a = Matrix::exact([1, m, k], Blocked, &mut random);
        let b = Matrix::exact([1, n, k], Blocked, &mut random);
        let expected: Vec<f32> = naive(&a, &b).iter().map(|(sum, _)| *sum as f32).collect();
        assert!(
            expected.iter().map(|value| value.to_bits()).collect::<BTreeSet<_>>().len() > expected.len() / 2
        );
        for kernel in kernels(&a, &b) {
            assert_eq!(multiply(kernel, &a, &b, Epilogue::default()), expected, "{kernel:?} ({m}, {n}, {k})");
        }
    }
}

#[test]
fn a_batch_takes_its_own_b_or_one_for_all() {
    let mut random = Random(4);
    // Blocked scales of 37 rows are padded in each matrix, so the batch is not simply one tall matrix.
    for layout in [Linear, Blocked] {
        let a = Matrix::exact([3, 37, 48], layout, &mut random);
        for batch in [1, 3] {
            let b = Matrix::exact([batch, 21, 48], layout, &mut random);
            let expected: Vec<f32> = naive(&a, &b).iter().map(|(sum, _)| *sum as f32).collect();
            for kernel in kernels(&a, &b) {
                assert_eq!(
                    multiply(kernel, &a, &b, Epilogue::default()),
                    expected,
                    "{kernel:?} {layout} {batch}"
                );
            }
        }
    }
}

#[test]
fn many_rows_are_multiplied_group_by_group() {
    let mut random = Random(5);
    let a = Matrix::exact([2, 2 * ROW_GROUP + 1, 32], Blocked, &mut random);
    for batch in [1, 2] {
        let b = Matrix::exact([batch, 9, 32], Linear, &mut random);
        let expected: Vec<f32> = naive(&a, &b).iter().map(|(sum, _)| *sum as f32).collect();
        for kernel in kernels(&a, &b) {
            assert_eq!(multiply(kernel, &a, &b, Epilogue::default()), expected, "{kernel:?}");
        }
    }
}

#[test]
fn many_columns_are_multiplied_group_by_group() {
    let mut random = Random(15);
    let n = 2 * COLUMN_GROUP + 35;
    let a = Matrix::exact([2, 9, 32], Linear, &mut random);
    let (mut c, alpha, beta) = (vec![0f32; 2 * 9 * n], 0.5f32, 4.0f32);
    c.iter_mut().enumerate().for_each(|(index, c)| *c = (index % 1021) as f32);
    let bytes: Vec<u8> = c.iter().flat_map(|c| c.to_le_bytes()).collect();
    for batch in [1, 2] {
        let b = Matrix::exact([batch, n, 32], Blocked, &mut random);
        let sums = naive(&a, &b);
        let expected = sums.iter().zip(&c).map(|((sum, _), c)| beta.mul_add(*c, *sum as f32 * alpha));
        let expected: Vec<f32> = expected.collect();
        for kernel in kernels(&a, &b) {
            let epilogue =
                Epilogue { alpha: Some(alpha), c: Some((&bytes, ElementType::F32)), beta: Some(beta) };
            assert!(multiply(kernel, &a, &b, epilogue) == expected, "{kernel:?}, batch {batch}");
        }
    }
}

#[test]
fn memory_for_decoded_rows_is_bounded() {
    use ScaledMmaKernel::{Double, Float};
    assert_eq!([Float, Double].map(|kernel| kernel.row_group(0)), [ROW_GROUP; 2]);
    assert_eq!([Float, Double].map(|kernel| kernel.row_group(8192)), [ROW_GROUP, ROW_GROUP]);
    assert_eq!([Float, Double].map(|kernel| kernel.row_group(28_672)), [146, 73]);
    assert_eq!([Float, Double].map(|kernel| kernel.row_group(1 << 30)), [LEAST_ROWS; 2]);
}

#[test]
fn finite_padding_of_blocked_scales_has_no_effect() {
    let mut random = Random(6);
    let mut a = Matrix::exact([2, 37, 80], Blocked, &mut random);
    let mut b = Matrix::exact([2, 91, 80], Blocked, &mut random);
    for kernel in kernels(&a, &b) {
        (a.padding, b.padding) = (0, 0);
        let clean = multiply(kernel, &a, &b, Epilogue::default());
        (a.padding, b.padding) = (0x7E, 0x33);
        assert_eq!(multiply(kernel, &a, &b, Epilogue::default()), clean, "{kernel:?}");
    }
}

#[test]
fn bit_seven_of_an_unsigned_scale_is_ignored() {
    let mut random = Random(7);
    let a = Matrix::exact([1, 9, 64], Linear, &mut random);
    let b = Matrix::exact([1, 35, 64], Blocked, &mut random);
    let mut signed = (a.clone(), b.clone());
    signed.0.scales.iter_mut().step_by(3).for_each(|scale| *scale |= 0x80);
    signed.1.scales.iter_mut().step_by(2).for_each(|scale| *scale |= 0x80);
    for kernel in kernels(&a, &b) {
        let expected = multiply(kernel, &a, &b, Epilogue::default());
        assert_eq!(multiply(kernel, &signed.0, &signed.1, Epilogue::default()), expected, "{kernel:?}");
    }
}

#[test]
fn a_nan_scale_spoils_its_row_and_its_column_only() {
    let mut random = Random(8);
    for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
        let nan = if format == BlockFormat::NVFP4 { 0x7F } else { 0xFF };
        let mut a = Matrix::random(format, format.a, Blocked, [1, 10, 96], &mut random);
        let mut b = Matrix::random(format, format.b, Linear, [1, 40, 96], &mut random);
        let blocks = 96 / format.block as usize;
        // Even where every code of the block is zero.
        a.scales[4 * blocks + 1] = nan;
        a.codes[4 * 96..5 * 96].fill(0);
        b.scales[33 * blocks + blocks - 1] = nan;
        for kernel in kernels(&a, &b) {
            for (index, value) in multiply(kernel, &a, &b, Epilogue::default()).iter().enumerate() {
                assert_eq!(
                    value.is_nan(),
                    index / 40 == 4 || index % 40 == 33,
                    "{kernel:?} {format} {index}"
                );
            }
        }
    }
}

#[test]
fn power_of_two_scales_beyond_f32_meet_in_the_product() {
    let mut random = Random(9);
    let mut a = Matrix::random(BlockFormat::MXFP4, BlockFormat::MXFP4.a, Linear, [1, 3, 64], &mut random);
    let mut b = Matrix::random(BlockFormat::MXFP4, BlockFormat::MXFP4.b, Linear, [1, 5, 64], &mut random);
    // 6 · 2^127 exceeds f32, 2^-127 is subnormal there; their product is neither.
    a.scales.fill(254);
    b.scales.fill(0);
    check_accuracy(&a, &b);
    a.codes.fill(7);
    b.codes.fill(7);
    assert_eq!(multiply(ScaledMmaKernel::Double, &a, &b, Epilogue::default()), [36.0 * 64.0; 15]);
    b.scales.fill(254);
    assert_eq!(multiply(ScaledMmaKernel::Double, &a, &b, Epilogue::default()), [f32::INFINITY; 15]);
}

#[test]
fn the_epilogue_scales_adds_and_rounds_once_each() {
    let mut random = Random(10);
    let a = Matrix::exact([2, 5, 32], Linear, &mut random);
    let b = Matrix::exact([1, 38, 32], Linear, &mut random);
    let count = 2 * 5 * 38;
    let c: Vec<f32> = (0..count).map(|index| index as f32 * 0.37 - 11.0).collect();
    let c_bf16: Vec<u8> = c.iter().flat_map(|c| numeric::f32_to_bf16_bits(*c).to_le_bytes()).collect();
    let (alpha, beta) = (0.3f32, -1.7f32);
    let (ta, tb) = (a.store(), b.store());
    let operand = |(codes, scales): &(Vec<u8>, Vec<u8>), shape| {
        let scales: &'static [u8] = scales.clone().leak();
        let codes: &'static [u8] = codes.clone().leak();
        BlockScaled::new((codes, ElementType::F4E2M1FN), (scales, ElementType::F8E4M3FN, Linear), shape)
            .unwrap()
    };
    let (oa, ob) = (operand(&ta, a.shape), operand(&tb, b.shape));
    for kernel in ScaledMmaKernel::available(&oa, &ob) {
        let epilogue =
            Epilogue { alpha: Some(alpha), c: Some((&c_bf16, ElementType::BF16)), beta: Some(beta) };
        let mut out = vec![0u8; count * 2];
        scaled_mma_with(kernel, &oa, &ob, epilogue, ElementType::F16, &mut out).unwrap();
        for (index, (sum, _)) in naive(&a, &b).iter().enumerate() {
            let t = alpha * *sum as f32;
            let c = numeric::bf16_bits_to_f32(numeric::f32_to_bf16_bits(c[index]));
            let expected = numeric::f32_to_f16_bits(beta.mul_add(c, t));
            assert_eq!(out[2 * index..2 * index + 2], expected.to_le_bytes(), "{kernel:?} {index}");
        }
        // Without beta, C has the factor 1; without alpha, the sum does.
        let epilogue = Epilogue { c: Some((&c_bf16, ElementType::BF16)), ..Epilogue::default() };
        let mut out = vec![0u8; count * 4];
        scaled_mma_with(kernel, &oa, &ob, epilogue, ElementType::F32, &mut out).unwrap();
        let c = numeric::bf16_bits_to_f32(numeric::f32_to_bf16_bits(c[count - 1]));
        let expected = naive(&a, &b)[count - 1].0 as f32 + c;
        assert_eq!(out[4 * count - 4..], expected.to_le_bytes());
    }
}

#[test]
fn empty_extents_give_empty_or_zero_results() {
    let mut random = Random(11);
    for [batch, m, n, k] in [[1, 0, 5, 32], [0, 4, 5, 32], [2, 3, 0, 32], [2, 3, 5, 0]] {
        for (layout, b_batch) in [(Linear, 1), (Blocked, batch)] {
            let format = BlockFormat::NVFP4;
            let a = Matrix::random(format, format.a, layout, [batch, m, k], &mut random);
            let b = Matrix::random(format, format.b, layout, [b_batch, n, k], &mut random);
            for kernel in kernels(&a, &b) {
                let found = multiply(kernel, &a, &b, Epilogue { alpha: Some(2.0), ..Epilogue::default() });
                assert_eq!(found, vec![0.0; batch * m * n], "{kernel:?}");
            }
        }
    }
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let mut random = Random(12);
    for format in [BlockFormat::NVFP4, BlockFormat::MXFP4] {
        for m in [3, 131] {
            let a = Matrix::random(format, format.a, Blocked, [1, m, 736], &mut random);
            let b = Matrix::random(format, format.b, Blocked, [1, 330, 736], &mut random);
            for kernel in kernels(&a, &b) {
                let multiply = || multiply(kernel, &a, &b, Epilogue::default());
                let bits = |threads: usize| -> Vec<u32> {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    let values = if threads == 0 { alone(multiply) } else { pool.install(multiply) };
                    values.iter().map(|value| value.to_bits()).collect()
                };
                let one = bits(1);
                assert!(one.iter().collect::<BTreeSet<_>>().len() > 500);
                assert!([2, 5, 0].map(bits) == [one.clone(), one.clone(), one], "{kernel:?} {format} {m}");
            }
        }
    }
}

#[test]
fn dequantize_gives_code_times_scale() {
    let mut random = Random(13);
    use ElementType::{F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E5M2};
    for (element, layout) in [(F4E2M1FN, Blocked), (F8E5M2, Linear), (F6E2M3FN, Blocked), (F6E3M2FN, Linear)]
    {
        let matrix = Matrix::random(BlockFormat::NVFP4, element, layout, [2, 5, 176], &mut random);
        let values = matrix.with(dequantize);
        for (index, value) in values.iter().enumerate() {
            assert_eq!(f64::from(*value), matrix.value(index / 176, index % 176));
        }
    }
}

#[test]
fn shapes_that_do_not_go_together_are_refused() {
    let mut random = Random(14);
    let format = BlockFormat::NVFP4;
    let mut matrix = |batch, rows, k| Matrix::random(format, format.a, Linear, [batch, rows, k], &mut random);
    let (a, b) = (matrix(2, 3, 32), matrix(2, 4, 32));
    let mut out = [0u8; 2 * 3 * 4 * 4];
    let mut run = |a: &Matrix, b: &Matrix, len: usize| {
        a.with(|a| b.with(|b| scaled_mma(a, b, Epilogue::default(), ElementType::F32, &mut out[..len])))
    };
    assert_eq!(run(&a, &b, 96), Ok(()));
    assert_eq!(run(&a, &b, 92), Err(ScaledMmaError::Size { what: "D", expected: 96, found: 92 }));
    assert!(matches!(run(&a, &matrix(2, 4, 48), 96), Err(ScaledMmaError::Shapes { .. })));
    assert!(matches!(run(&a, &matrix(3, 4, 32), 96), Err(ScaledMmaError::Shapes { .. })));

    let (codes, scales) = a.store();
    let new = |codes: &[u8], scales: &[u8], k: usize| {
        let shape = BlockScaledShape { k, ..a.shape };
        let scales = (scales, ElementType::F8E4M3FN, Linear);
        BlockScaled::new((codes, ElementType::F4E2M1FN), scales, shape).map(|_| ())
    };
    assert_eq!(new(&codes, &scales, 32), Ok(()));
    assert!(matches!(new(&codes[1..], &scales, 32), Err(OperandError::Size { what: "codes", .. })));
    assert!(matches!(new(&codes, &scales[1..], 32), Err(OperandError::Size { what: "scales", .. })));
    assert_eq!(new(&codes, &scales, 40), Err(OperandError::Block { k: 40, block: 16 }));
    assert!(matches!(new(&codes, &scales, usize::MAX - 15), Err(OperandError::Size { .. })));
}
