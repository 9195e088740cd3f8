//! Row programs that cover every kind of step, element type, shape and form of output.

use fourfold_ir::numeric::{
    CodeFormula, InfinityScale, LeastScale, LeastStep, MxEdges, NanScale, Nvfp4Formula, ScaleMin, Scaling,
};
use fourfold_ir::{
    BinaryKind, BitwiseKind, ElementType, Predicate, QuantizedFormat, ReduceKind, ScaleLayout, ScaleRounding,
    UnaryKind,
};
use fourfold_scheduler::{
    RowOperand, RowOutput, RowOutputKind, RowProgram, RowRef, RowShape, RowStep, RowStepKind,
};

use ElementType::{BF16, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32, I1, I32};
use RowShape::{Column, Matrix, Row, Scalar};

const ARITHMETIC: [ElementType; 3] = [F32, BF16, F16];
const LAYOUTS: [ScaleLayout; 2] = [ScaleLayout::Linear, ScaleLayout::Blocked];

/// A program in the making.
pub struct Draft(RowProgram);

impl Draft {
    pub fn new() -> Draft {
        Draft(RowProgram { operands: Vec::new(), steps: Vec::new(), outputs: Vec::new() })
    }

    fn read(&mut self, shape: RowShape, element: ElementType) -> RowRef {
        self.0.operands.push(RowOperand { shape, element, repeats: false });
        RowRef::Operand(self.0.operands.len() - 1)
    }

    fn repeat(&mut self, shape: RowShape, element: ElementType) -> RowRef {
        self.0.operands.push(RowOperand { shape, element, repeats: true });
        RowRef::Operand(self.0.operands.len() - 1)
    }

    fn step(&mut self, kind: RowStepKind, operands: &[RowRef], element: ElementType) -> RowRef {
        let shape = match kind {
            RowStepKind::Reduce(_) => Column,
            RowStepKind::Dequantize => Matrix,
            _ => {
                operands.iter().map(|of| self.0.shape(*of)).fold(Scalar, |left, right| match (left, right) {
                    (Scalar, other) | (other, Scalar) => other,
                    (left, right) if left == right => left,
                    _ => Matrix,
                })
            }
        };
        self.0.steps.push(RowStep { kind, operands: operands.to_vec(), element, shape });
        RowRef::Step(self.0.steps.len() - 1)
    }

    fn unary(&mut self, kind: UnaryKind, of: RowRef) -> RowRef {
        self.step(RowStepKind::Unary(kind), &[of], self.0.element(of))
    }

    fn binary(&mut self, kind: BinaryKind, left: RowRef, right: RowRef) -> RowRef {
        let [a, b] = [left, right].map(|of| self.0.element(of));
        self.step(RowStepKind::Binary(kind), &[left, right], if a == b { a } else { F32 })
    }

    fn convert(&mut self, of: RowRef, element: ElementType) -> RowRef {
        self.step(RowStepKind::Convert, &[of], element)
    }

    fn reduce(&mut self, kind: ReduceKind, of: RowRef) -> RowRef {
        self.step(RowStepKind::Reduce(kind), &[of], self.0.element(of))
    }

    fn constant(&mut self, x: f32, element: ElementType) -> RowRef {
        self.step(RowStepKind::Constant(x.to_bits()), &[], element)
    }

    fn write(&mut self, of: RowRef) -> &mut Draft {
        self.0.outputs.push(RowOutput { of, kind: RowOutputKind::Value });
        self
    }

    fn quantize(&mut self, of: RowRef, kind: RowOutputKind) -> &mut Draft {
        self.0.outputs.push(RowOutput { of, kind });
        self
    }
}

fn nvfp4(layout: ScaleLayout, global: Option<usize>, formula: Nvfp4Formula) -> RowOutputKind {
    let format = QuantizedFormat { element: F4E2M1FN, scale: F8E4M3FN, block: 16 };
    RowOutputKind::Quantized { format, layout, global, scale_rounding: None, formula }
}

fn mx(element: ElementType, layout: ScaleLayout, rounding: ScaleRounding, mx: MxEdges) -> RowOutputKind {
    let format = QuantizedFormat { element, scale: F8E8M0FNU, block: 32 };
    let formula = Nvfp4Formula { mx, ..Nvfp4Formula::DEFAULT };
    RowOutputKind::Quantized { format, layout, global: None, scale_rounding: Some(rounding), formula }
}

type Programs = Vec<(String, RowProgram)>;

/// Every program, with its name.
pub fn programs() -> Programs {
    let mut all = Vec::new();
    unary(&mut all);
    binary(&mut all);
    integers(&mut all);
    conversions(&mut all);
    dequantized(&mut all);
    quantized(&mut all);
    norms(&mut all);
    reread(&mut all);
    shapes(&mut all);
    all
}

fn unary(all: &mut Programs) {
    for element in ARITHMETIC {
        for (index, kinds) in UnaryKind::ALL.chunks(4).enumerate() {
            let mut draft = Draft::new();
            let x = draft.read(Matrix, element);
            for kind in kinds {
                let y = draft.unary(*kind, x);
                draft.write(y);
            }
            all.push((format!("unary_{element}_{index}"), draft.0));
        }
    }
}

fn binary(all: &mut Programs) {
    let shapes = [Matrix, Row, Column, Scalar];
    let pairs = [(F32, F32), (BF16, BF16), (F16, F16), (BF16, F32), (F16, BF16)];
    for (at, (left, right)) in pairs.into_iter().enumerate() {
        for (index, kinds) in BinaryKind::ALL.chunks(4).enumerate() {
            for shape in [Matrix, shapes[1 + (at + index) % 3]] {
                let mut draft = Draft::new();
                let (x, y) = (draft.read(Matrix, left), draft.read(shape, right));
                for kind in kinds {
                    let z = draft.binary(*kind, x, y);
                    draft.write(z);
                }
                all.push((format!("binary_{left}_{right}_{shape}_{index}"), draft.0));
            }
        }
    }
    for element in [F32, BF16, I32] {
        for (index, predicates) in Predicate::ALL.chunks(2).enumerate() {
            let mut draft = Draft::new();
            let (x, y) = (draft.read(Matrix, element), draft.read(Matrix, element));
            for predicate in predicates {
                let is = draft.step(RowStepKind::Compare(*predicate), &[x, y], I1);
                let z = draft.step(RowStepKind::Select, &[is, y, x], element);
                draft.write(is).write(z);
            }
            all.push((format!("compare_{element}_{index}"), draft.0));
        }
    }
    let mut draft = Draft::new();
    let (i, x, y) = (draft.read(Matrix, I1), draft.read(Matrix, BF16), draft.read(Row, F32));
    let z = draft.step(RowStepKind::Select, &[i, x, y], F32);
    let bounds = [(-1.5f32).to_bits(), 2.25f32.to_bits()];
    let c = draft.step(RowStepKind::Clamp { lower: bounds[0], upper: bounds[1] }, &[x], BF16);
    let d = draft.step(RowStepKind::Clamp { lower: bounds[0], upper: bounds[1] }, &[z], F32);
    let one = draft.constant(1.5, F32);
    let e = draft.binary(BinaryKind::Sub, one, d);
    draft.write(z).write(c).write(d).write(e);
    all.push(("select".to_owned(), draft.0));
}

fn integers(all: &mut Programs) {
    for shape in [Matrix, Row, Column, Scalar] {
        let mut draft = Draft::new();
        let (x, y) = (draft.read(Matrix, I32), draft.read(shape, I32));
        for kind in [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max] {
            let z = draft.binary(kind, x, y);
            draft.write(z);
        }
        all.push((format!("integers_{shape}"), draft.0));
    }
    let mut draft = Draft::new();
    let (x, y) = (draft.read(Matrix, I32), draft.read(Matrix, I32));
    for kind in BitwiseKind::ALL {
        let z = draft.step(RowStepKind::Bitwise(*kind), &[x, y], I32);
        draft.write(z);
    }
    all.push(("bitwise".to_owned(), draft.0));
    let mut draft = Draft::new();
    let (x, y) = (draft.read(Matrix, I32), draft.read(Matrix, I32));
    let least = draft.binary(BinaryKind::Min, x, y);
    let lower = (-5i32) as u32;
    let clamped = draft.step(RowStepKind::Clamp { lower, upper: 70_000 }, &[x], I32);
    let seven = draft.step(RowStepKind::Constant((-7i32) as u32), &[], I32);
    let sum = draft.binary(BinaryKind::Add, clamped, seven);
    draft.write(least).write(clamped).write(sum);
    all.push(("integer_bounds".to_owned(), draft.0));
    let bitcast = RowStepKind::Bitcast;
    let mut draft = Draft::new();
    let (x, i, s) = (draft.read(Matrix, F32), draft.read(Matrix, I32), draft.read(Matrix, F8E8M0FNU));
    let bits = draft.step(bitcast, &[x], I32);
    let float = draft.step(bitcast, &[i], F32);
    let power = draft.step(bitcast, &[s], I32);
    let scale = draft.step(bitcast, &[i], F8E8M0FNU);
    draft.write(bits).write(float).write(power).write(scale);
    all.push(("bitcast".to_owned(), draft.0));
}

fn conversions(all: &mut Programs) {
    for from in ElementType::ALL {
        let to = |to: &ElementType| *to != I1 && *to != from && (*to != F8E8M0FNU || from.is_arithmetic());
        let targets: Vec<ElementType> = ElementType::ALL.into_iter().filter(to).collect();
        for (index, targets) in targets.chunks(4).enumerate() {
            let mut draft = Draft::new();
            let x = draft.read(Matrix, from);
            for to in targets {
                let y = draft.convert(x, *to);
                draft.write(y);
            }
            all.push((format!("convert_{from}_{index}"), draft.0));
        }
    }
}

fn dequantized(all: &mut Programs) {
    let formats = [
        (F4E2M1FN, F8E4M3FN, 16),
        (F4E2M1FN, F8E8M0FNU, 32),
        (F8E4M3FN, F8E8M0FNU, 32),
        (F8E5M2, F8E8M0FNU, 32),
        (F6E2M3FN, F8E8M0FNU, 32),
        (F6E3M2FN, F8E8M0FNU, 32),
    ];
    for (at, (code, scale, block)) in formats.into_iter().enumerate() {
        for has_global in [false, true] {
            let layout = LAYOUTS[(at + usize::from(has_global)) % 2];
            let mut draft = Draft::new();
            let mut operands =
                vec![draft.read(Matrix, code), draft.read(RowShape::Scales { block, layout }, scale)];
            if has_global {
                operands.push(draft.read(Scalar, F32));
            }
            for element in ARITHMETIC {
                let y = draft.step(RowStepKind::Dequantize, &operands, element);
                draft.write(y);
            }
            let global = if has_global { "_global" } else { "" };
            all.push((format!("dequantize_{code}_{scale}{global}"), draft.0));
        }
    }
    // Two scales per thread, and codes and scales that repeat rows.
    let mut draft = Draft::new();
    let layout = ScaleLayout::Linear;
    let scales = RowShape::Scales { block: 16, layout };
    let (codes, scales) = (draft.repeat(Matrix, F4E2M1FN), draft.repeat(scales, F8E4M3FN));
    let x = draft.read(Matrix, BF16);
    let y = draft.step(RowStepKind::Dequantize, &[codes, scales], BF16);
    let sum = draft.binary(BinaryKind::Add, x, y);
    draft.write(sum).quantize(sum, mx(F8E4M3FN, layout, ScaleRounding::Floor, MxEdges::DEFAULT));
    all.push(("requantize".to_owned(), draft.0));
    let mut draft = Draft::new();
    let scales = RowShape::Scales { block: 32, layout };
    let (codes, scales) = (draft.repeat(Matrix, F6E2M3FN), draft.repeat(scales, F8E8M0FNU));
    let x = draft.read(Matrix, F16);
    let y = draft.step(RowStepKind::Dequantize, &[codes, scales], F16);
    let sum = draft.binary(BinaryKind::Add, x, y);
    let narrow = draft.convert(sum, F6E3M2FN);
    draft.write(narrow);
    draft.quantize(sum, mx(F6E3M2FN, ScaleLayout::Blocked, ScaleRounding::Ceil, MxEdges::DEFAULT));
    all.push(("requantize_fp6".to_owned(), draft.0));
}

fn quantized(all: &mut Programs) {
    for element in ARITHMETIC {
        for layout in LAYOUTS {
            let mut draft = Draft::new();
            let (x, _) = (draft.read(Matrix, element), draft.read(Scalar, F32));
            let y = draft.unary(UnaryKind::Neg, x);
            draft.quantize(y, nvfp4(layout, Some(1), Nvfp4Formula::DEFAULT)).write(y);
            all.push((format!("nvfp4_{element}_{layout}"), draft.0));
        }
    }
    for (index, codes) in CodeFormula::ALL.iter().enumerate() {
        let formula = Nvfp4Formula {
            scale_min: ScaleMin::new([0.0, 0.015625, f32::NEG_INFINITY][index]).expect("the bound is valid"),
            amax: [Scaling::Divide, Scaling::Multiply][index % 2],
            global: [Scaling::Multiply, Scaling::Divide][index % 2],
            codes: *codes,
            guard: index == 1,
            ..Nvfp4Formula::DEFAULT
        };
        let mut draft = Draft::new();
        let (x, _) = (draft.read(Matrix, BF16), draft.read(Scalar, F32));
        draft.quantize(x, nvfp4(LAYOUTS[index % 2], Some(1), formula));
        if !formula.guard {
            draft.quantize(x, nvfp4(LAYOUTS[1 - index % 2], None, formula));
        }
        all.push((format!("nvfp4_formula_{index}"), draft.0));
    }
    let roundings = [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];
    for (index, element) in [F4E2M1FN, F8E4M3FN, F8E5M2, F6E2M3FN, F6E3M2FN].into_iter().enumerate() {
        let edges = MxEdges {
            infinity: InfinityScale::ALL[index % 2],
            nan: NanScale::ALL[index % 3],
            least_scale: LeastScale::of_byte([0, 1, 97][index % 3]).expect("a number"),
            least_step: LeastStep::ALL[index % 3],
        };
        let mut draft = Draft::new();
        let x = draft.read(Matrix, ARITHMETIC[index % 3]);
        draft.quantize(x, mx(element, LAYOUTS[index % 2], roundings[index % 3], MxEdges::DEFAULT));
        draft.quantize(x, mx(element, LAYOUTS[1 - index % 2], roundings[(index + 1) % 3], edges));
        all.push((format!("mx_{element}"), draft.0));
    }
    for layout in LAYOUTS {
        let mut draft = Draft::new();
        let (x, _) = (draft.read(Matrix, F16), draft.read(Scalar, F32));
        draft.quantize(x, nvfp4(layout, Some(1), Nvfp4Formula::DEFAULT));
        draft.quantize(x, mx(F8E4M3FN, layout, ScaleRounding::Even, MxEdges::DEFAULT));
        all.push((format!("two_blocks_{layout}"), draft.0));
    }
    // Blocks of equal values, and blocks that all rows share.
    let mut draft = Draft::new();
    let (x, _) = (draft.read(Matrix, BF16), draft.read(Scalar, F32));
    let (row, max) = (draft.read(Row, BF16), draft.reduce(ReduceKind::Amax, x));
    draft.quantize(max, nvfp4(ScaleLayout::Blocked, Some(1), Nvfp4Formula::DEFAULT));
    draft.quantize(row, nvfp4(ScaleLayout::Blocked, Some(1), Nvfp4Formula::DEFAULT));
    all.push(("quantize_column_and_row".to_owned(), draft.0));
    let mut draft = Draft::new();
    let row = draft.read(Row, F32);
    let twice = draft.binary(BinaryKind::Add, row, row);
    draft.quantize(twice, mx(F8E5M2, ScaleLayout::Blocked, ScaleRounding::Ceil, MxEdges::DEFAULT));
    draft.quantize(twice, mx(F4E2M1FN, ScaleLayout::Linear, ScaleRounding::Floor, MxEdges::DEFAULT));
    all.push(("quantize_row".to_owned(), draft.0));
}

fn norms(all: &mut Programs) {
    for element in ARITHMETIC {
        let mut draft = Draft::new();
        let x = draft.read(Matrix, element);
        for kind in ReduceKind::ALL.iter().filter(|kind| **kind != ReduceKind::Min) {
            let y = draft.reduce(*kind, x);
            draft.write(y);
        }
        all.push((format!("reduce_{element}"), draft.0));
        let mut draft = Draft::new();
        let x = draft.read(Matrix, element);
        let (least, max) = (draft.reduce(ReduceKind::Min, x), draft.reduce(ReduceKind::Max, x));
        let shifted = draft.binary(BinaryKind::Sub, x, max);
        let exp = draft.unary(UnaryKind::Exp, shifted);
        let wide = draft.convert(exp, F32);
        let sum = draft.reduce(ReduceKind::Sum, wide);
        let y = draft.binary(BinaryKind::Div, wide, sum);
        draft.write(least).write(y);
        all.push((format!("softmax_{element}"), draft.0));
    }
    // The norm of a sum, quantized and written.
    let mut draft = Draft::new();
    let (x, residual) = (draft.read(Matrix, BF16), draft.read(Matrix, BF16));
    let (weight, _) = (draft.read(Row, BF16), draft.read(Scalar, F32));
    let sum = draft.binary(BinaryKind::Add, x, residual);
    let wide = draft.convert(sum, F32);
    let square = draft.binary(BinaryKind::Mul, wide, wide);
    let mean = draft.reduce(ReduceKind::Mean, square);
    let eps = draft.constant(1e-6, F32);
    let shifted = draft.binary(BinaryKind::Add, mean, eps);
    let scale = draft.unary(UnaryKind::Rsqrt, shifted);
    let normed = draft.binary(BinaryKind::Mul, wide, scale);
    let narrow = draft.convert(normed, BF16);
    let y = draft.binary(BinaryKind::Mul, narrow, weight);
    draft.quantize(y, nvfp4(ScaleLayout::Blocked, Some(3), Nvfp4Formula::DEFAULT)).write(sum).write(scale);
    all.push(("rms_norm_nvfp4".to_owned(), draft.0));
}

/// Programs whose three loops read rows several times and keep the results of a function. No result is rounded twice.
fn reread(all: &mut Programs) {
    let elements =
        [("f32", F32, F32), ("f16", F16, F16), ("wide", BF16, F32), ("i1", I1, F32), ("fp6", F6E3M2FN, F32)];
    for (name, element, wide) in elements {
        let mut draft = Draft::new();
        let x = draft.read(Matrix, element);
        let x = if element == wide { x } else { draft.convert(x, wide) };
        let max = draft.reduce(ReduceKind::Max, x);
        let one = draft.constant(1.0, wide);
        let shifted = draft.binary(BinaryKind::Sub, max, x);
        let least_one = draft.binary(BinaryKind::Add, shifted, one);
        let kept = draft.unary(UnaryKind::Reciprocal, least_one);
        let least = draft.reduce(ReduceKind::Min, kept);
        let y = draft.binary(BinaryKind::Div, kept, least);
        draft.write(y).write(max);
        all.push((format!("kept_{name}"), draft.0));
    }
    // Operands of all widths: some are read by all loops, one by the last alone, and one repeats.
    let mut draft = Draft::new();
    let (x, last) = (draft.read(Matrix, BF16), draft.read(Matrix, F32));
    let (mask, narrow) = (draft.repeat(Matrix, I1), draft.read(Matrix, F8E4M3FN));
    let (weight, wide) = (draft.read(Row, F16), draft.convert(x, F32));
    let zero = draft.constant(0.0, F32);
    let masked = draft.step(RowStepKind::Select, &[mask, wide, zero], F32);
    let sum = draft.reduce(ReduceKind::Sum, masked);
    let root = draft.unary(UnaryKind::Sqrt, masked);
    let shifted = draft.binary(BinaryKind::Sub, masked, sum);
    let amax = draft.reduce(ReduceKind::Amax, shifted);
    let narrow = draft.convert(narrow, F32);
    let most = draft.reduce(ReduceKind::Max, narrow);
    let ratio = draft.binary(BinaryKind::Div, root, amax);
    let more = draft.binary(BinaryKind::Add, ratio, most);
    let product = draft.binary(BinaryKind::Mul, more, narrow);
    let scaled = draft.binary(BinaryKind::Mul, last, weight);
    let y = draft.binary(BinaryKind::Add, product, scaled);
    draft.write(y).write(sum);
    all.push(("kept_beside".to_owned(), draft.0));
}

fn shapes(all: &mut Programs) {
    let mut draft = Draft::new();
    let (x, row) = (draft.read(Matrix, F32), draft.read(Row, F16));
    let (column, scalar) = (draft.read(Column, BF16), draft.read(Scalar, F32));
    let sum = draft.reduce(ReduceKind::Sum, x);
    let scaled = draft.binary(BinaryKind::Mul, row, row);
    let ratio = draft.binary(BinaryKind::Div, column, sum);
    let half = draft.binary(BinaryKind::Sub, scalar, scalar);
    draft.write(scaled).write(ratio).write(half).write(sum);
    all.push(("shapes".to_owned(), draft.0));
    // No matrix at all: rows and columns make one.
    let mut draft = Draft::new();
    let (row, column) = (draft.read(Row, I32), draft.read(Column, I32));
    let (sum, small) = (draft.binary(BinaryKind::Add, row, column), draft.convert(column, F4E2M1FN));
    let (narrow, halves) = (draft.convert(row, F8E4M3FN), draft.convert(row, F4E2M1FN));
    draft.write(sum).write(small).write(narrow).write(halves);
    all.push(("outer".to_owned(), draft.0));
    // A row of FP6 that is read, and one that is written.
    let mut draft = Draft::new();
    let (row, column) = (draft.read(Row, F6E2M3FN), draft.read(Column, F32));
    let wide = draft.convert(row, F32);
    let (sum, other) = (draft.binary(BinaryKind::Add, wide, column), draft.convert(wide, F6E3M2FN));
    draft.write(sum).write(other);
    all.push(("outer_fp6".to_owned(), draft.0));
    let mut draft = Draft::new();
    let (i, s) = (draft.read(Row, I1), draft.read(Scalar, I32));
    let zero = draft.step(RowStepKind::Constant(0), &[], I32);
    let chosen = draft.step(RowStepKind::Select, &[i, s, zero], I32);
    let is = draft.step(RowStepKind::Compare(Predicate::Gt), &[s, zero], I1);
    let yes = draft.step(RowStepKind::Constant(1), &[], I1);
    let x = draft.read(Matrix, F8E8M0FNU);
    let y = draft.convert(x, F16);
    draft.write(chosen).write(is).write(yes).write(y);
    all.push(("shared".to_owned(), draft.0));
    // Rows that repeat, and columns that repeat.
    let mut draft = Draft::new();
    let (x, other) = (draft.read(Matrix, BF16), draft.repeat(Matrix, F32));
    let last = draft.repeat(Matrix, I1);
    let sum = draft.binary(BinaryKind::Add, x, other);
    let y = draft.step(RowStepKind::Select, &[last, other, sum], F32);
    let max = draft.reduce(ReduceKind::Max, y);
    draft.write(y).write(max);
    all.push(("repeats".to_owned(), draft.0));
    let mut draft = Draft::new();
    let (x, column) = (draft.read(Matrix, F16), draft.repeat(Column, F16));
    let product = draft.binary(BinaryKind::Mul, x, column);
    draft.write(product);
    all.push(("repeated_column".to_owned(), draft.0));
}
