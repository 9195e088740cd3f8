//! Tests of every op against the interpreter or literal numbers.

mod grouped;
mod joining;
mod routing;

use fourfold_ir::ScaleLayout::{Blocked, Linear};
use fourfold_ir::numeric;
use fourfold_ir::{
    BinaryKind, BitwiseKind, Builder, ConstantValue, Dim, Module, Predicate, ReduceKind, ScaleRounding,
    TensorType, UnaryKind, interpret_op, verify,
};

use super::*;
use crate::parallel::tests::alone;

type Layout = Option<ScaleLayout>;

const F4: ElementType = ElementType::F4E2M1FN;
const E2M3: ElementType = ElementType::F6E2M3FN;
const E3M2: ElementType = ElementType::F6E3M2FN;
const E4M3: ElementType = ElementType::F8E4M3FN;
const E5M2: ElementType = ElementType::F8E5M2;
const E8M0: ElementType = ElementType::F8E8M0FNU;
const F16: ElementType = ElementType::F16;
const BF16: ElementType = ElementType::BF16;
const F32: ElementType = ElementType::F32;
const I32: ElementType = ElementType::I32;
const I1: ElementType = ElementType::I1;
const FLOATS: [ElementType; 3] = [F16, BF16, F32];

/// A verified program of one op on operands of these types.
#[track_caller]
fn program(kind: &OpKind, operands: &[&Tensor], results: &[(ElementType, &[usize], Layout)]) -> Program {
    let ty = |element, dims: &[usize], layout| TensorType {
        shape: dims.iter().map(|dim| Dim::fixed(*dim as u64)).collect(),
        element,
        layout,
    };
    let mut module = Module::new("main");
    let mut inputs = Vec::new();
    for (index, tensor) in operands.iter().enumerate() {
        let ty = ty(tensor.element(), tensor.dims(), tensor.layout());
        inputs.push(module.push_input(format!("in{index}"), ty, false));
    }
    let results = results
        .iter()
        .enumerate()
        .map(|(index, (element, dims, layout))| (format!("out{index}"), ty(*element, dims, *layout)))
        .collect();
    let op = module.push_op(kind.clone(), inputs, results);
    module.outputs = module.ops[op].results.clone();
    verify(module).unwrap_or_else(|invalid| panic!("{:?}", invalid.errors))
}

#[track_caller]
fn run(kind: &OpKind, operands: &[&Tensor], results: &[(ElementType, &[usize], Layout)]) -> Vec<Tensor> {
    let program = program(kind, operands, results);
    let op = program.module().ops.keys().next().unwrap();
    run_op(&program, op, operands, &SymbolValues::default()).unwrap()
}

/// Checks that an op equals the interpreter bit for bit, with any number of threads, including only the caller's.
#[track_caller]
fn check(kind: &OpKind, operands: &[&Tensor], results: &[(ElementType, &[usize], Layout)]) {
    let program = program(kind, operands, results);
    let op = program.module().ops.keys().next().unwrap();
    let symbols = SymbolValues::default();
    let expected = interpret_op(&program, op, operands, &symbols).unwrap();
    let run = || run_op(&program, op, operands, &symbols).unwrap();
    for threads in [0, 1, 2, 5] {
        let found = match threads {
            0 => alone(run),
            _ => rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run),
        };
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!((found.element(), found.dims()), (expected.element(), expected.dims()));
            assert_eq!(found.layout(), expected.layout());
            if found.bytes() == expected.bytes() {
                continue;
            }
            for (index, (found, expected)) in found.to_f64().iter().zip(expected.to_f64()).enumerate() {
                let same = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
                assert!(same, "{kind:?}: element {index} is {found:e}, not {expected:e}");
            }
        }
    }
}

fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Values of mixed sign and magnitude, including the type's special values.
fn sample(element: ElementType, dims: &[usize], seed: u64) -> Tensor {
    const SPECIAL: [f64; 9] =
        [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1e-40, -3e-7, 65519.0, 1.0];
    let mut values = tame(element, dims, seed).to_f64();
    let mut state = seed;
    for value in &mut values {
        if random(&mut state).is_multiple_of(7) {
            *value = SPECIAL[random(&mut state) as usize % SPECIAL.len()];
        }
    }
    Tensor::from_f64(element, dims.to_vec(), None, &values).unwrap()
}

/// Finite values of moderate magnitude.
fn tame(element: ElementType, dims: &[usize], seed: u64) -> Tensor {
    let mut state = seed.wrapping_mul(977).wrapping_add(13);
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count)
        .map(|_| {
            let mantissa = random(&mut state) as f64 / 2f64.powi(30) - 1.0;
            mantissa * 2f64.powi((random(&mut state) % 9) as i32 - 4)
        })
        .collect();
    Tensor::from_f64(element, dims.to_vec(), None, &values).unwrap()
}

fn f32s(dims: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(dims.to_vec(), values).unwrap()
}

/// Shapes of two operands that broadcast, and of their result.
const BROADCASTS: [[&[usize]; 3]; 7] = [
    [&[37, 91], &[37, 91], &[37, 91]],
    [&[37, 91], &[91], &[37, 91]],
    [&[37, 1], &[91], &[37, 91]],
    [&[3, 1, 130], &[5, 1], &[3, 5, 130]],
    [&[], &[2, 3], &[2, 3]],
    [&[1], &[1], &[1]],
    [&[0, 4], &[4], &[0, 4]],
];

#[test]
fn unary_functions_equal_the_interpreter() {
    for (index, kind) in UnaryKind::ALL.iter().enumerate() {
        for element in FLOATS {
            let x = sample(element, &[7, 331], index as u64);
            check(&OpKind::Unary(*kind), &[&x], &[(element, &[7, 331], None)]);
        }
    }
}

#[test]
fn binary_functions_equal_the_interpreter_under_broadcasting() {
    for kind in BinaryKind::ALL {
        for (index, [left, right, result]) in BROADCASTS.into_iter().enumerate() {
            for (left_element, right_element) in
                [(F32, F32), (BF16, BF16), (F16, F16), (F16, F32), (BF16, F16)]
            {
                let left = sample(left_element, left, index as u64);
                let right = sample(right_element, right, 100 + index as u64);
                let element = left_element.join(right_element).unwrap();
                check(&OpKind::Binary(*kind), &[&left, &right], &[(element, result, None)]);
            }
        }
    }
}

#[test]
fn comparisons_clamps_and_selections_equal_the_interpreter() {
    for (index, [left, right, result]) in BROADCASTS.into_iter().enumerate() {
        let (left, right) = (sample(F16, left, index as u64), sample(F16, right, 50 + index as u64));
        for predicate in Predicate::ALL {
            check(&OpKind::Compare(*predicate), &[&left, &right], &[(I1, result, None)]);
        }
        let condition = sample(I1, result, 3);
        check(&OpKind::Select, &[&condition, &left, &right], &[(F16, result, None)]);
    }
    let x = sample(BF16, &[1500], 8);
    check(&OpKind::Clamp { min: -0.3, max: f64::INFINITY }, &[&x], &[(BF16, &[1500], None)]);
}

#[test]
fn select_takes_elements_bit_for_bit() {
    let nan = f32::from_bits(0xFFA0_1234);
    let condition = Tensor::new(I1, vec![3], None, vec![1, 0, 1]).unwrap();
    let (then, other) = (f32s(&[3], &[nan, 2.0, -0.0]), f32s(&[], &[nan]));
    let selected = run(&OpKind::Select, &[&condition, &then, &other], &[(F32, &[3], None)]);
    let bits: Vec<u32> =
        selected[0].bytes().as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    assert_eq!(bits, [nan.to_bits(), nan.to_bits(), 0x8000_0000]);
}

#[test]
fn select_widens_a_choice_of_another_type() {
    let condition = Tensor::new(I1, vec![2], None, vec![1, 0]).unwrap();
    for (then, other) in [(F16, BF16), (F32, F16), (BF16, F32)] {
        let (then, other) = (sample(then, &[3, 2], 5), sample(other, &[3, 1], 6));
        check(&OpKind::Select, &[&condition, &then, &other], &[(F32, &[3, 2], None)]);
    }
}

#[test]
fn every_conversion_equals_the_interpreter() {
    for from in ElementType::ALL.into_iter().filter(|element| *element != E8M0) {
        for to in ElementType::ALL.into_iter().filter(|element| ![E8M0, I1].contains(element)) {
            let x = sample(from, &[13, 188], 4);
            check(&OpKind::Convert, &[&x], &[(to, &[13, 188], None)]);
        }
    }
    let all: Vec<u8> = (0..=255).collect();
    for element in [E4M3, E8M0] {
        let scales = Tensor::from_codes(element, vec![8, 32], Some(Linear), all.clone()).unwrap();
        for to in FLOATS {
            check(&OpKind::Convert, &[&scales], &[(to, &[8, 32], None)]);
        }
    }
    let large = Tensor::new(
        I32,
        vec![2],
        None,
        [16_777_217i32, i32::MIN].iter().flat_map(|v| v.to_le_bytes()).collect(),
    );
    check(&OpKind::Convert, &[&large.unwrap()], &[(F32, &[2], None)]);
}

#[test]
fn bits_equal_the_interpreter() {
    let words = |dims: &[usize], seed: u32| {
        let special =
            [0u32, 1, 31, 32, 33, u32::MAX, 1 << 31, 0x7F80_0000, 0x7FC0_0001, 0xFF80_0001, 23, 255];
        let count: usize = dims.iter().product();
        let word = |index: usize| match index % 3 {
            0 => special[(index / 3 + seed as usize) % special.len()],
            _ => (index as u32 + seed).wrapping_mul(0x9E37_79B9),
        };
        let bytes = (0..count).flat_map(|index| word(index).to_le_bytes()).collect();
        Tensor::new(I32, dims.to_vec(), None, bytes).unwrap()
    };
    for (index, [left, right, result]) in BROADCASTS.into_iter().enumerate() {
        let (left, right) = (words(left, index as u32), words(right, 7));
        for kind in BitwiseKind::ALL {
            check(&OpKind::Bitwise(*kind), &[&left, &right], &[(I32, result, None)]);
        }
    }
    let dims: &[usize] = &[9, 331];
    let x = words(dims, 5);
    let as_f32 = Tensor::new(F32, dims.to_vec(), None, x.bytes().to_vec()).unwrap();
    check(&OpKind::Bitcast, &[&x], &[(F32, dims, None)]);
    check(&OpKind::Bitcast, &[&as_f32], &[(I32, dims, None)]);
    check(&OpKind::Bitcast, &[&x], &[(E8M0, dims, Some(Linear))]);
    check(&OpKind::Convert, &[&as_f32], &[(E8M0, dims, Some(Linear))]);
    let all = Tensor::from_codes(E8M0, vec![8, 32], Some(Linear), (0..=255).collect()).unwrap();
    check(&OpKind::Bitcast, &[&all], &[(I32, &[8, 32], None)]);
    for element in [F16, BF16] {
        check(&OpKind::Convert, &[&sample(element, dims, 6)], &[(E8M0, dims, Some(Linear))]);
    }
}

#[test]
fn moved_elements_are_where_the_interpreter_puts_them() {
    for element in [E5M2, I1, BF16, F32, I32] {
        let x = sample(element, &[3, 5, 14], 6);
        check(&OpKind::Reshape, &[&x], &[(element, &[5, 42], None)]);
        check(&OpKind::Broadcast, &[&x], &[(element, &[2, 3, 5, 14], None)]);
        for (permutation, dims) in [([1, 0, 2], [5, 3, 14]), ([2, 1, 0], [14, 5, 3]), ([0, 2, 1], [3, 14, 5])]
        {
            let kind = OpKind::Transpose { permutation: permutation.to_vec() };
            check(&kind, &[&x], &[(element, &dims, None)]);
        }
        let column = sample(element, &[9, 1, 2], 7);
        check(&OpKind::Broadcast, &[&column], &[(element, &[9, 91, 2], None)]);
        let tall = sample(element, &[91, 37], 8);
        check(&OpKind::Transpose { permutation: vec![1, 0] }, &[&tall], &[(element, &[37, 91], None)]);
    }
    check(&OpKind::Reshape, &[&sample(F4, &[6, 10], 6)], &[(F4, &[5, 12], None)]);
    check(&OpKind::Reshape, &[&sample(E3M2, &[6, 20], 6)], &[(E3M2, &[10, 12], None)]);
    let large = sample(BF16, &[260, 130], 9);
    check(&OpKind::Transpose { permutation: vec![1, 0] }, &[&large], &[(BF16, &[130, 260], None)]);
}

#[test]
fn constants_equal_the_interpreter() {
    let splat = OpKind::Constant(ConstantValue::Splat(0.3));
    for element in [F4, E2M3, E4M3, F16, F32] {
        check(&splat, &[], &[(element, &[41, 132], None)]);
    }
    check(&OpKind::Constant(ConstantValue::Splat(-3.0)), &[], &[(I32, &[3000], None)]);
    let dense = OpKind::Constant(ConstantValue::Dense(vec![1.0, -2.5, 1e9, 0.1]));
    check(&dense, &[], &[(F16, &[2, 2], None)]);
}

#[test]
fn reductions_equal_the_interpreter_along_any_axes() {
    let axes: [&[u32]; 6] = [&[0], &[1], &[2], &[0, 2], &[1, 2], &[0, 1, 2]];
    for kind in ReduceKind::ALL {
        for axes in axes {
            for (element, dims) in
                [(F32, [5, 37, 91]), (BF16, [3, 2, 700]), (F16, [600, 3, 1]), (F32, [2, 0, 3])]
            {
                for x in [tame(element, &dims, 1), sample(element, &dims, 2)] {
                    let is_reduced = |axis: usize| axes.contains(&(axis as u32));
                    let kept: Vec<usize> =
                        (0..3).filter(|axis| !is_reduced(*axis)).map(|axis| dims[axis]).collect();
                    let kind = OpKind::Reduce { kind: *kind, axes: axes.to_vec(), keep_dims: false };
                    check(&kind, &[&x], &[(element, &kept, None)]);
                }
            }
        }
    }
    let kind = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![1], keep_dims: true };
    check(&kind, &[&tame(F32, &[4, 9], 3)], &[(F32, &[4, 1], None)]);
}

#[test]
fn reductions_have_the_values_that_one_computes_by_hand() {
    let x = f32s(&[2, 3], &[1.0, -7.0, 2.5, 0.5, 0.25, f32::NEG_INFINITY]);
    for (kind, expected) in [
        (ReduceKind::Sum, [-3.5, f32::NEG_INFINITY]),
        (ReduceKind::Max, [2.5, 0.5]),
        (ReduceKind::Min, [-7.0, f32::NEG_INFINITY]),
        (ReduceKind::Amax, [7.0, f32::INFINITY]),
    ] {
        let kind = OpKind::Reduce { kind, axes: vec![1], keep_dims: false };
        assert_eq!(run(&kind, &[&x], &[(F32, &[2], None)])[0].to_f32(), expected, "{kind:?}");
    }
}

#[test]
fn softmax_and_layer_norm_equal_the_interpreter() {
    for (element, dims) in [(F32, [4, 37, 91]), (BF16, [1, 130, 2]), (F16, [2, 3, 0])] {
        for x in [tame(element, &dims, 1), sample(element, &dims, 2)] {
            for axis in 0..3 {
                check(&OpKind::Softmax { axis }, &[&x], &[(element, &dims, None)]);
            }
            let (weight, bias) = (tame(element, &dims[2..], 3), tame(element, &dims[2..], 4));
            check(&OpKind::LayerNorm { eps: 1e-5 }, &[&x, &weight, &bias], &[(element, &dims, None)]);
        }
    }
    let even = run(&OpKind::Softmax { axis: 0 }, &[&f32s(&[4], &[3.0; 4])], &[(F32, &[4], None)]);
    assert_eq!(even[0].to_f32(), [0.25; 4]);
}

#[test]
fn quantization_equals_the_interpreter_in_both_layouts() {
    for (dims, scale_dims) in [([37, 96], [37, 6]), ([130, 208], [130, 13])] {
        for element in FLOATS {
            // The third of every five blocks is zeros.
            let mut values = sample(element, &dims, 5).to_f64();
            values.chunks_mut(16).skip(2).step_by(5).for_each(|block| block.fill(0.0));
            let v = Tensor::from_f64(element, dims.to_vec(), None, &values).unwrap();
            for layout in [Linear, Blocked] {
                let results: [(ElementType, &[usize], Layout); 2] =
                    [(F4, &dims, None), (E4M3, &scale_dims, Some(layout))];
                let kind = OpKind::block_quantize(16, None);
                for global in [0.037, 0.0, -1.0, f32::INFINITY, f32::NAN] {
                    check(&kind, &[&v, &f32s(&[], &[global])], &results);
                    let quantized = run(&kind, &[&v, &f32s(&[], &[global])], &results);
                    let zeros = |codes: Vec<u8>, block: usize| {
                        codes.chunks(block).skip(2).step_by(5).flatten().all(|code| *code == 0)
                    };
                    assert!(zeros(quantized[0].to_codes(), 16) && zeros(quantized[1].to_codes(), 1));
                }
            }
        }
    }
    let v = sample(BF16, &[37, 96], 7);
    for (index, &codes) in numeric::CodeFormula::ALL.iter().enumerate() {
        for (guard, scale_min) in [(true, 0.015625), (false, 0.015625), (false, f32::NEG_INFINITY)] {
            let formula = numeric::Nvfp4Formula {
                scale_min: numeric::ScaleMin::new(scale_min).unwrap(),
                amax: [numeric::Scaling::Multiply, numeric::Scaling::Divide][index % 2],
                global: [numeric::Scaling::Divide, numeric::Scaling::Multiply][index % 2],
                codes,
                guard,
                ..numeric::Nvfp4Formula::DEFAULT
            };
            let kind = OpKind::BlockQuantize { block: 16, scale_rounding: None, formula };
            for layout in [Linear, Blocked] {
                let results: [(ElementType, &[usize], Layout); 2] =
                    [(F4, &[37, 96], None), (E4M3, &[37, 6], Some(layout))];
                for global in [0.037, 0.0, -1.0, f32::INFINITY, f32::NAN] {
                    check(&kind, &[&v, &f32s(&[], &[global])], &results);
                }
                if !guard {
                    check(&kind, &[&v], &results);
                }
            }
        }
    }
    let v = tame(BF16, &[2, 37, 96], 6);
    let formats = [(F4, Linear), (E2M3, Linear), (E3M2, Blocked), (E4M3, Blocked), (E5M2, Blocked)];
    for (element, layout) in formats {
        for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even] {
            let kind = OpKind::block_quantize(32, Some(rounding));
            check(&kind, &[&v], &[(element, &[2, 37, 96], None), (E8M0, &[2, 37, 3], Some(layout))]);
        }
    }
}

#[test]
fn quantized_data_is_restored_as_the_interpreter_does() {
    let dims: [usize; 3] = [2, 37, 160];
    let codes = sample(F4, &dims, 1);
    let scale_codes = (0..2 * 37 * 10).map(|index| (index * 29 % 127) as u8).collect();
    let scales = Tensor::from_codes(E4M3, vec![2, 37, 10], Some(Blocked), scale_codes).unwrap();
    let global = f32s(&[1], &[0.4567]);
    for result in FLOATS {
        let kind = OpKind::BlockDequantize { block: 16 };
        check(&kind, &[&codes, &scales, &global], &[(result, &dims, None)]);
        check(&kind, &[&codes, &scales], &[(result, &dims, None)]);
    }
    let scale_codes = (0..2 * 37 * 5).map(|index| (index * 31 % 256) as u8).collect();
    let scales = Tensor::from_codes(E8M0, vec![2, 37, 5], Some(Linear), scale_codes).unwrap();
    for element in [E2M3, E3M2, E5M2] {
        let codes = tame(element, &dims, 2);
        for result in [BF16, F32] {
            check(&OpKind::BlockDequantize { block: 32 }, &[&codes, &scales], &[(result, &dims, None)]);
        }
    }
}

#[test]
fn scales_are_laid_out_by_the_formula_and_back() {
    for (batch, rows, columns) in [(1, 1, 1), (2, 37, 9), (3, 130, 16), (1, 257, 5)] {
        let dims = vec![batch, rows, columns];
        let codes: Vec<u8> = (0..batch * rows * columns).map(|index| (index % 251) as u8).collect();
        let linear = Tensor::from_codes(E8M0, dims.clone(), Some(Linear), codes.clone()).unwrap();
        let blocked = &run(&OpKind::SwizzleScales, &[&linear], &[(E8M0, &dims, Some(Blocked))])[0];
        let matrix = numeric::blocked_len(rows, columns);
        let mut expected = vec![0; batch * matrix];
        for (index, code) in codes.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            expected[row / rows * matrix + numeric::blocked_offset(row % rows, column, columns)] = *code;
        }
        assert_eq!(blocked.bytes(), expected);
        // The padding's content is ignored.
        let mut poisoned = blocked.clone();
        for (byte, padding) in poisoned.bytes_mut().iter_mut().zip(numeric_padding(batch, rows, columns)) {
            if padding {
                *byte = 0x6B;
            }
        }
        let back = run(&OpKind::SwizzleScales, &[&poisoned], &[(E8M0, &dims, Some(Linear))]);
        assert_eq!(back, [linear]);
        // The same bytes as numbers without a layout.
        let plain = Tensor::from_codes(E4M3, dims.clone(), None, codes.clone()).unwrap();
        let blocked = run(&OpKind::SwizzleScales, &[&plain], &[(E4M3, &dims, Some(Blocked))]);
        assert_eq!(blocked[0].bytes(), expected);
        let linear = run(&OpKind::SwizzleScales, &[&plain], &[(E4M3, &dims, Some(Linear))]);
        assert_eq!(linear[0].bytes(), codes);
        for scales in [&blocked[0], &linear[0]] {
            let numbers = run(&OpKind::SwizzleScales, &[scales], &[(E4M3, &dims, None)]);
            assert_eq!((numbers.len(), &numbers[0]), (1, &plain));
        }
    }
}

/// The positions of padding bytes in blocked scales.
fn numeric_padding(batch: usize, rows: usize, columns: usize) -> Vec<bool> {
    let ones = vec![1; batch * rows * columns];
    let marked = numeric::linear_to_blocked(&ones, batch, rows, columns).unwrap();
    marked.into_iter().map(|byte| byte == 0).collect()
}

#[test]
fn plain_multiplications_are_within_the_bound() {
    for (a_element, b_element, result) in
        [(F16, F16, F16), (BF16, BF16, F32), (F32, F32, F32), (BF16, BF16, BF16)]
    {
        let shapes: [[&[usize]; 3]; 4] = [
            [&[37, 200], &[91, 200], &[37, 91]],
            [&[3, 1, 64], &[5, 64], &[3, 1, 5]],
            [&[2, 3, 7, 33], &[2, 3, 4, 33], &[2, 3, 7, 4]],
            [&[4, 0], &[3, 0], &[4, 3]],
        ];
        for [a, b, d] in shapes {
            let k = *a.last().unwrap() as f64;
            let (a, b) = (tame(a_element, a, 1), tame(b_element, b, 2));
            let program = program(&OpKind::Mma, &[&a, &b], &[(result, d, None)]);
            let op = program.module().ops.keys().next().unwrap();
            let symbols = SymbolValues::default();
            let found = run_op(&program, op, &[&a, &b], &symbols).unwrap()[0].to_f64();
            let expected = interpret_op(&program, op, &[&a, &b], &symbols).unwrap()[0].to_f64();
            let gamma = k * 2f64.powi(-24) / (1.0 - k * 2f64.powi(-24));
            // |a|, |b| < 16; a result of 8 bits may also fall to the other side of a tie.
            let unit = if result == F32 { 2f64.powi(-21) } else { 2f64.powi(-7) };
            for (found, expected) in found.iter().zip(&expected) {
                let bound = gamma * k * 256.0 + unit * expected.abs();
                assert!((found - expected).abs() <= bound, "{found} is not {expected}");
            }
            assert_eq!(found.len(), d.iter().product::<usize>());
        }
    }
}

#[test]
fn plain_multiplications_beyond_the_range_of_f32_are_what_they_mean() {
    // Partial sums overflow, the sum does not; f32 sums give NaN or infinity.
    for element in [BF16, F32] {
        let [a, b] = [[3e38, 3e38, 1.0], [2.0, -2.0, 0.75]]
            .map(|values| Tensor::from_f64(element, vec![1, 3], None, &values).unwrap());
        for result in [F16, BF16, F32] {
            check(&OpKind::Mma, &[&a, &b], &[(result, &[1, 1], None)]);
        }
        assert_eq!(run(&OpKind::Mma, &[&a, &b], &[(F32, &[1, 1], None)])[0].to_f64(), [0.75]);
    }
    // Rows 0 to 2 of A overflow against some rows of B; the others hold infinities, NaN and zeros.
    let inf = f64::INFINITY;
    let special = [3e38, -3e38, inf, -inf, f64::NAN, 0.0, -0.0, 1.0];
    let (batch, m, n, k) = (2, 37, 91, 8);
    let matrix = |rows: usize, step: usize| -> Vec<f64> {
        (0..batch * rows * k)
            .map(|index| {
                let row = index / k % rows;
                match row {
                    0..3 => [3e38, -2e38, 1e38][index * step % 3],
                    3..6 => special[(index * step + row) % special.len()],
                    _ => f64::from((index * step % 13) as u32) - 6.0,
                }
            })
            .collect()
    };
    for element in FLOATS {
        let of = |rows: usize, step| {
            Tensor::from_f64(element, vec![batch, rows, k], None, &matrix(rows, step)).unwrap()
        };
        let (a, b) = (of(m, 5), of(n, 7));
        for result in [F16, BF16, F32] {
            check(&OpKind::Mma, &[&a, &b], &[(result, &[batch, m, n], None)]);
        }
    }
}

#[test]
fn scaled_mma_runs_with_every_named_operand() {
    let a = tame(F4, &[2, 5, 64], 1);
    let b = tame(F4, &[38, 64], 2);
    let scales = |rows: usize, dims: &[usize], layout| {
        let codes = (0..rows * 4).map(|index| 0x30 | (index * 5 % 8) as u8).collect();
        Tensor::from_codes(E4M3, dims.to_vec(), Some(layout), codes).unwrap()
    };
    let (sfa, sfb) = (scales(10, &[2, 5, 4], Linear), scales(38, &[38, 4], Blocked));
    let (alpha, beta) = (f32s(&[], &[0.3]), f32s(&[1], &[-2.0]));
    let c = tame(BF16, &[2, 5, 38], 3);
    for (has_alpha, has_c, has_beta) in
        [(false, false, false), (true, false, false), (true, true, true), (false, true, false)]
    {
        let attributes =
            ScaledMma { block: 16, weight_only: false, alpha: has_alpha, c: has_c, beta: has_beta };
        let mut operands = vec![&a, &sfa, &b, &sfb];
        operands.extend(has_alpha.then_some(&alpha));
        operands.extend(has_c.then_some(&c));
        operands.extend(has_beta.then_some(&beta));
        for element in FLOATS {
            // Scales of one octave: the sums are exact, so that the results are equal bit for bit.
            check(&OpKind::ScaledMma(attributes), &operands, &[(element, &[2, 5, 38], None)]);
        }
    }
}

#[test]
fn weight_only_scaled_mma_runs_with_every_named_operand() {
    let (alpha, beta) = (f32s(&[], &[0.3]), f32s(&[1], &[-2.0]));
    let c = tame(BF16, &[2, 5, 38], 3);
    for a_element in [F16, BF16] {
        // Quarters, so that sums are exact.
        let a: Vec<f64> = (0..640).map(|index| f64::from(index * 37 % 65 - 32) / 4.0).collect();
        let a = Tensor::from_f64(a_element, vec![2, 5, 64], None, &a).unwrap();
        for (element, scale, block) in [(F4, E4M3, 16), (F4, E8M0, 32), (E2M3, E8M0, 32), (E4M3, E8M0, 32)] {
            let b = tame(element, &[38, 64], 2);
            let first = if scale == E4M3 { 0x30 } else { 124 };
            let count = 38 * 64 / block as usize;
            let codes = (0..count).map(|index| first + (index * 5 % 4) as u8).collect();
            let sfb = Tensor::from_codes(scale, vec![38, 64 / block as usize], Some(Blocked), codes).unwrap();
            for named in [false, true] {
                let attributes = ScaledMma { block, weight_only: true, alpha: named, c: named, beta: named };
                let mut operands = vec![&a, &b, &sfb];
                operands.extend([&alpha, &c, &beta].into_iter().filter(|_| named));
                for result in FLOATS {
                    check(&OpKind::ScaledMma(attributes), &operands, &[(result, &[2, 5, 38], None)]);
                }
            }
        }
    }
}

#[test]
fn tensors_of_another_type_are_refused_by_name() {
    let x = f32s(&[2, 3], &[1.0; 6]);
    let program = program(&OpKind::Unary(UnaryKind::Neg), &[&x], &[(F32, &[2, 3], None)]);
    let op = program.module().ops.keys().next().unwrap();
    let run = |operands: &[&Tensor]| run_op(&program, op, operands, &SymbolValues::default());
    assert_eq!(run(&[]), Err(FallbackError::Count { expected: 1, found: 0 }));
    let error = run(&[&f32s(&[3, 2], &[1.0; 6])]).unwrap_err();
    assert_eq!(error.to_string(), "`%in0` is [2, 3], f32, but its tensor is [3, 2], f32");
    assert!(matches!(run(&[&tame(BF16, &[2, 3], 1)]), Err(FallbackError::Type { .. })));
}

#[test]
fn a_result_beyond_memory_is_an_error() {
    // An empty tensor may have any extents beside its zero, and its result may lack the zero.
    let mut builder = Builder::new("main");
    let n = builder.symbol("N");
    let ty = TensorType::new(vec![Dim::fixed(0), n.clone()], F32);
    let x = builder.input("x", ty.clone());
    let softmax = builder.op(OpKind::Softmax { axis: 1 }, &[x], &[("softmax", ty)])[0];
    let sum = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep_dims: false };
    let sum = builder.op(sum, &[x], &[("sum", TensorType::new(vec![n.clone()], F32))])[0];
    let program =
        verify(builder.finish(&[softmax, sum])).unwrap_or_else(|invalid| panic!("{:?}", invalid.errors));
    let mut symbols = SymbolValues::default();
    symbols.set(n.symbols()[0], 1 << 45);
    let x = Tensor::zeros(F32, vec![0, 1 << 45], None).unwrap();
    let mut ops = program.module().ops.keys();
    let mut next = || run_op(&program, ops.next().unwrap(), &[&x], &symbols);
    assert_eq!(next().unwrap()[0].count(), 0);
    let error = next().unwrap_err();
    assert!(matches!(error, FallbackError::Memory { bytes, .. } if bytes == 1 << 47), "{error}");
}
