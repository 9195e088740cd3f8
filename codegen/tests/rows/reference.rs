//! The meaning of a row program, by the scalar functions of `fourfold_ir`, and calls with random operands.

use fourfold_ir::scalar::{self, round_to};
use fourfold_ir::{BinaryKind, ElementType, ReduceKind, ScaleLayout, ScaleRounding, UnaryKind, numeric};
use fourfold_scheduler::{RowOutputKind, RowProgram, RowRef, RowShape, RowStep, RowStepKind};

use ElementType::{BF16, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32, I1, I32};

/// The extents of a call.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    pub l: usize,
    pub m: usize,
    pub k: usize,
    /// True if addresses are multiples of 256 bytes, not of one element.
    pub is_aligned: bool,
}

/// A tensor of a call.
#[derive(Debug)]
pub struct Tensor {
    pub element: ElementType,
    pub bytes: Vec<u8>,
    /// True if the tensor may differ from the kernel's by the error of functions.
    pub is_close: bool,
}

/// One call with its expected outputs.
#[derive(Debug)]
pub struct Call {
    pub extents: Vec<i64>,
    pub operands: Vec<Tensor>,
    pub outputs: Vec<Tensor>,
}

/// A seeded generator (SplitMix64).
pub struct Random(pub u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.bits() % limit
    }

    /// A code of an element. Sums of `tame` floats are exact.
    pub fn code(&mut self, element: ElementType, tame: bool) -> u32 {
        const SPECIAL: [f64; 16] = [
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            0.5,
            -3.5,
            1e-40,
            6e-8,
            65504.0,
            448.0,
            0.75,
            1.25,
            5.0,
            464.0,
            61440.0,
        ];
        let mask = (1 << element.storage_bits()) - 1;
        match element {
            I1 => self.below(2) as u32,
            I32 => {
                let magnitude = self.bits() as u32 >> self.below(32);
                if self.below(2) == 0 { magnitude } else { magnitude.wrapping_neg() }
            }
            BF16 | F16 | F32 if tame => encode(element, (self.below(33) as f64 - 16.0) / 4.0),
            BF16 | F16 | F32 => match self.below(8) {
                0 => (self.bits() & mask) as u32,
                1 => encode(element, SPECIAL[self.below(16) as usize]),
                2 => encode(element, self.below(300) as f64 - 150.0),
                _ => encode(element, (self.below(1 << 24) as f64 / f64::from(1 << 22)) - 2.0),
            },
            _ => (self.bits() & mask) as u32,
        }
    }
}

pub fn encode(element: ElementType, x: f64) -> u32 {
    match element {
        F32 => (x as f32).to_bits(),
        I32 => x as i32 as u32,
        I1 => u32::from(x != 0.0),
        BF16 => numeric::f64_to_bf16_bits(x).into(),
        F16 => numeric::f64_to_f16_bits(x).into(),
        F8E4M3FN => numeric::e4m3_from_f64(x).into(),
        F8E5M2 => numeric::e5m2_from_f64(x).into(),
        F4E2M1FN => numeric::e2m1_from_f64(x).into(),
        F6E2M3FN => numeric::e2m3_from_f64(x).into(),
        F6E3M2FN => numeric::e3m2_from_f64(x).into(),
        F8E8M0FNU => numeric::e8m0_from_f32(x as f32, ScaleRounding::Floor).into(),
    }
}

/// The number that a code stands for.
pub fn decode(element: ElementType, code: u32) -> f64 {
    f64::from(match element {
        I32 => return f64::from(code as i32),
        I1 => return f64::from(u8::from(code != 0)),
        F32 => f32::from_bits(code),
        BF16 => numeric::bf16_bits_to_f32(code as u16),
        F16 => numeric::f16_bits_to_f32(code as u16),
        F8E4M3FN => numeric::e4m3_to_f32(code as u8),
        F8E5M2 => numeric::e5m2_to_f32(code as u8),
        F4E2M1FN => numeric::e2m1_to_f32(code as u8),
        F6E2M3FN => numeric::e2m3_to_f32(code as u8),
        F6E3M2FN => numeric::e3m2_to_f32(code as u8),
        F8E8M0FNU => numeric::e8m0_to_f32(code as u8),
    })
}

/// The bytes of codes in memory order.
pub fn pack(element: ElementType, codes: &[u32]) -> Vec<u8> {
    match element.storage_bits() {
        4 => codes.chunks(2).map(|pair| (pair[0] | pair.get(1).copied().unwrap_or(0) << 4) as u8).collect(),
        6 => numeric::pack_codes(&codes.iter().map(|code| *code as u8).collect::<Vec<_>>(), 6),
        bits => codes.iter().flat_map(|code| code.to_le_bytes().into_iter().take(bits / 8)).collect(),
    }
}

/// The codes in memory order of bytes.
pub fn unpack(element: ElementType, bytes: &[u8]) -> Vec<u32> {
    match element.storage_bits() {
        4 => bytes.iter().flat_map(|byte| [u32::from(byte & 0xF), u32::from(byte >> 4)]).collect(),
        6 => (0..bytes.len() * 8 / 6).map(|index| numeric::code_at(bytes, index, 6).into()).collect(),
        bits => {
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
            bytes.chunks(bits / 8).map(word).collect()
        }
    }
}

/// Values by shape: repeated rows are written out.
struct Values {
    extents: Extents,
    operands: usize,
    values: Vec<(RowShape, Vec<f64>)>,
}

impl Values {
    fn index(&self, value: RowRef) -> usize {
        match value {
            RowRef::Operand(operand) => operand,
            RowRef::Step(step) => self.operands + step,
        }
    }

    fn at(&self, value: RowRef, row: usize, column: usize) -> f64 {
        let (shape, values) = &self.values[self.index(value)];
        let k = self.extents.k;
        values[match shape {
            RowShape::Scalar => 0,
            RowShape::Row => column,
            RowShape::Column => row,
            RowShape::Matrix => row * k + column,
            RowShape::Scales { block, .. } => (row * k + column) / *block as usize,
        }]
    }

    fn size(&self, shape: RowShape) -> (usize, usize) {
        let Extents { l, m, k, .. } = self.extents;
        match shape {
            RowShape::Scalar => (1, 1),
            RowShape::Row => (1, k),
            RowShape::Column => (l * m, 1),
            RowShape::Matrix => (l * m, k),
            RowShape::Scales { block, .. } => (l * m, k / block as usize),
        }
    }

    fn step(&self, program: &RowProgram, step: &RowStep) -> Vec<f64> {
        let (rows, columns) = self.size(step.shape);
        let elements = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        elements.map(|(row, column)| self.element(program, step, row, column)).collect()
    }

    fn element(&self, program: &RowProgram, step: &RowStep, row: usize, column: usize) -> f64 {
        let element = step.element;
        let number = |bits: u32| decode(if matches!(element, I32 | I1) { element } else { F32 }, bits);
        let x = |index: usize| self.at(step.operands[index], row, column);
        match step.kind {
            RowStepKind::Constant(bits) => number(bits),
            RowStepKind::Unary(kind) => round_to(element, scalar::unary(kind, x(0))),
            RowStepKind::Binary(kind) if element == I32 => {
                scalar::integer(kind, x(0) as i32, x(1) as i32).expect("an integer function").into()
            }
            RowStepKind::Binary(kind) => round_to(element, scalar::binary(kind, x(0), x(1))),
            RowStepKind::Bitwise(kind) => scalar::bitwise(kind, x(0) as i32, x(1) as i32).into(),
            RowStepKind::Bitcast => match (program.element(step.operands[0]), element) {
                (F32, _) => scalar::bits_of(x(0) as f32).into(),
                (from, I32) => encode(from, x(0)).into(),
                (_, F32) => scalar::of_bits(x(0) as i32).into(),
                _ => decode(element, u32::from(x(0) as i32 as u8)),
            },
            RowStepKind::Dequantize => {
                round_to(element, x(0) * x(1) * if step.operands.len() > 2 { x(2) } else { 1.0 })
            }
            RowStepKind::Clamp { lower, upper } => scalar::clamp(x(0), number(lower), number(upper)),
            RowStepKind::Compare(predicate) => u8::from(scalar::compare(predicate, x(0), x(1))).into(),
            RowStepKind::Select => x(if x(0) != 0.0 { 1 } else { 2 }),
            RowStepKind::Convert => round_to(element, x(0)),
            RowStepKind::Reduce(kind) => round_to(element, self.reduce(kind, step.operands[0], row)),
        }
    }

    fn reduce(&self, kind: ReduceKind, value: RowRef, row: usize) -> f64 {
        let k = self.extents.k;
        let numbers = (0..k).map(|column| self.at(value, row, column));
        match kind {
            ReduceKind::Sum => numbers.sum(),
            ReduceKind::Mean => numbers.sum::<f64>() / k as f64,
            ReduceKind::Max => {
                numbers.fold(f64::NEG_INFINITY, |max, x| scalar::binary(BinaryKind::Max, max, x))
            }
            ReduceKind::Min => numbers.fold(f64::INFINITY, |min, x| scalar::binary(BinaryKind::Min, min, x)),
            ReduceKind::Amax => numbers.fold(0.0, |max, x| scalar::binary(BinaryKind::Max, max, x.abs())),
        }
    }

    /// The codes and scales of a quantized output.
    fn quantized(&self, value: RowRef, kind: RowOutputKind) -> [(ElementType, Vec<u8>); 2] {
        let RowOutputKind::Quantized { format, layout, global, scale_rounding, formula } = kind else {
            panic!("the output is quantized");
        };
        let Extents { l, m, k, .. } = self.extents;
        let is_row = self.values[self.index(value)].0 == RowShape::Row;
        let (l, m) = if is_row { (1, 1) } else { (l, m) };
        let block = format.block as usize;
        let (mut codes, mut scales) = (Vec::new(), Vec::new());
        for (row, start) in (0..l * m).flat_map(|row| (0..k / block).map(move |at| (row, at * block))) {
            let values: Vec<f32> =
                (0..block).map(|column| self.at(value, row, start + column) as f32).collect();
            let mut block = vec![0u8; block];
            scales.push(match scale_rounding {
                None => {
                    let global = global.map_or(1.0, |global| self.values[global].1[0] as f32);
                    numeric::quantize_nvfp4_block_by(formula, &values, global, &mut block)
                }
                Some(rounding) => {
                    let element = numeric::MxElement::of(format.element).expect("an element of MX");
                    numeric::quantize_mx_block_by((rounding, formula.mx), &values, element, &mut block)
                }
            });
            codes.extend(block.into_iter().map(u32::from));
        }
        if layout == ScaleLayout::Blocked {
            let columns = k / format.block as usize;
            scales = numeric::linear_to_blocked(&scales, l, m, columns).expect("the sizes fit");
        }
        [(format.element, pack(format.element, &codes)), (format.scale, scales)]
    }
}

/// Returns whether a step's function is not exact, or an operand of it is not.
fn is_close(program: &RowProgram, value: RowRef) -> bool {
    use UnaryKind::{Abs, Ceil, Floor, Neg, Reciprocal, Relu, Round, Sqrt};
    let RowRef::Step(position) = value else { return false };
    let step = &program.steps[position];
    let own = match step.kind {
        RowStepKind::Unary(kind) => {
            !matches!(kind, Abs | Ceil | Floor | Neg | Reciprocal | Relu | Round | Sqrt)
        }
        RowStepKind::Binary(kind) => kind == BinaryKind::Pow,
        _ => false,
    };
    own || step.operands.iter().any(|operand| is_close(program, *operand))
}

/// A call with random operands.
pub fn call(program: &RowProgram, extents: Extents, random: &mut Random) -> Call {
    let Extents { l, m, k, .. } = extents;
    let mut values = Values { extents, operands: program.operands.len(), values: Vec::new() };
    let mut call =
        Call { extents: vec![l as i64, m as i64, k as i64], operands: Vec::new(), outputs: Vec::new() };
    let reduces = program.steps.iter().any(|step| matches!(step.kind, RowStepKind::Reduce(_)));
    let repeats = [(1, l * m), (2, 2), (1, 3), (3, 1)];
    let mut repeats = repeats.iter().cycle();
    for operand in &program.operands {
        let (each, count) = match operand.repeats {
            true => *repeats.next().expect("a cycle has no end"),
            false => (1, l * m),
        };
        if operand.repeats {
            call.extents.extend([each as i64, count as i64]);
        }
        let (_, columns) = values.size(operand.shape);
        let has_rows = !matches!(operand.shape, RowShape::Scalar | RowShape::Row);
        let element = operand.element;
        let codes: Vec<u32> = (0..if has_rows { count } else { 1 } * columns)
            .map(|_| match (operand.shape, element) {
                (RowShape::Scalar, F32) => [0.0131f32, 1.0, 3.1, 1e-30][random.below(4) as usize].to_bits(),
                (RowShape::Scales { .. }, F8E8M0FNU) if random.below(3) > 0 => 120 + random.below(14) as u32,
                _ => random.code(element, reduces),
            })
            .collect();
        // A scale of type f8E4M3FN has no sign.
        let is_scales = matches!(operand.shape, RowShape::Scales { .. });
        let mask = if is_scales && element == F8E4M3FN { 0x7F } else { u32::MAX };
        let numbers: Vec<f64> = codes.iter().map(|code| decode(element, code & mask)).collect();
        let mut bytes = pack(element, &codes);
        if let RowShape::Scales { layout: ScaleLayout::Blocked, .. } = operand.shape {
            bytes = numeric::linear_to_blocked(&bytes, l, m, columns).expect("the sizes fit");
        }
        let written_out = match has_rows {
            true => (0..l * m)
                .flat_map(|row| &numbers[row / each % count * columns..][..columns])
                .copied()
                .collect(),
            false => numbers,
        };
        call.operands.push(Tensor { element, bytes, is_close: false });
        values.values.push((operand.shape, written_out));
    }
    for step in &program.steps {
        let computed = values.step(program, step);
        values.values.push((step.shape, computed));
    }
    for output in &program.outputs {
        let is_close = is_close(program, output.of);
        let tensors = match output.kind {
            RowOutputKind::Value => {
                let element = program.element(output.of);
                let numbers = &values.values[values.index(output.of)].1;
                let codes: Vec<u32> = numbers.iter().map(|x| encode(element, *x)).collect();
                vec![(element, pack(element, &codes))]
            }
            RowOutputKind::Quantized { .. } => values.quantized(output.of, output.kind).into(),
        };
        call.outputs.extend(tensors.into_iter().map(|(element, bytes)| Tensor { element, bytes, is_close }));
    }
    call
}
