//! Row kernels.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{BinaryKind, Predicate, QuantizedFormat, ReduceKind, UnaryKind};

use super::device::computed;
use super::*;

use ElementType::{BF16, F16, F32};
use RowStepKind::{Binary, Constant, Convert, Reduce, Unary};

/// Builds the plan of a row kernel, step by step.
struct RowBuilder<'a> {
    program: &'a Program,
    operands: Vec<RowInput>,
    row: RowProgram,
    written: Vec<Value>,
}

impl<'a> RowBuilder<'a> {
    fn new(program: &'a Program) -> RowBuilder<'a> {
        let row = RowProgram { operands: Vec::new(), steps: Vec::new(), outputs: Vec::new() };
        RowBuilder { program, operands: Vec::new(), row, written: Vec::new() }
    }

    fn read(&mut self, name: &str, shape: RowShape) -> RowRef {
        let value = value(self.program, name);
        let element = self.program.module().ty(value).element;
        self.operands.push(RowInput { value, repeat: None });
        self.row.operands.push(RowOperand { shape, element, repeats: false });
        RowRef::Operand(self.operands.len() - 1)
    }

    fn step(&mut self, kind: RowStepKind, operands: &[RowRef], element: ElementType) -> RowRef {
        let shapes: Vec<RowShape> = operands.iter().map(|of| self.row.shape(*of)).collect();
        let shape = match kind {
            Reduce(_) => RowShape::Column,
            _ if shapes.contains(&RowShape::Column) && shapes.contains(&RowShape::Row) => RowShape::Matrix,
            _ => shapes.into_iter().max().unwrap_or(RowShape::Scalar),
        };
        self.row.steps.push(RowStep { kind, operands: operands.to_vec(), element, shape });
        RowRef::Step(self.row.steps.len() - 1)
    }

    fn write(&mut self, name: &str, of: RowRef) {
        self.written.push(value(self.program, name));
        self.row.outputs.push(RowOutput { of, kind: RowOutputKind::Value });
    }

    fn quantize(&mut self, codes: &str, scales: &str, of: RowRef, global: RowRef) {
        let RowRef::Operand(global) = global else { panic!("an operand") };
        let format =
            QuantizedFormat { element: ElementType::F4E2M1FN, scale: ElementType::F8E4M3FN, block: 16 };
        let kind = RowOutputKind::Quantized {
            format,
            layout: ScaleLayout::Blocked,
            global: Some(global),
            scale_rounding: None,
            formula: Nvfp4Formula::DEFAULT,
        };
        self.written.extend([value(self.program, codes), value(self.program, scales)]);
        self.row.outputs.push(RowOutput { of, kind });
    }

    fn plan(self, [batch, m, k]: [u64; 3]) -> Plan {
        Plan::Row(RowPlan {
            ops: self.program.module().ops.keys().collect(),
            batch: Dim::fixed(batch),
            m: Dim::fixed(m),
            k: Dim::fixed(k),
            program: self.row,
            operands: self.operands,
            written: self.written,
            constraints: Vec::new(),
        })
    }
}

const M: usize = 6;

/// The steps of `softmax`, with an f32 result unless another type is given.
fn softmax_steps(row: &mut RowBuilder<'_>, x: RowRef, result: ElementType) -> RowRef {
    let element = row.row.element(x);
    let max = row.step(Reduce(ReduceKind::Max), &[x], element);
    let apart = row.step(Binary(BinaryKind::Sub), &[x, max], F32);
    let power = row.step(Unary(UnaryKind::Exp), &[apart], F32);
    let sum = row.step(Reduce(ReduceKind::Sum), &[power], F32);
    row.step(Binary(BinaryKind::Div), &[power, sum], result)
}

fn softmax(element: ElementType, columns: usize, change: impl Fn(&mut Vec<f64>)) -> Case {
    let source = format!(
        "func @f(%x: tensor<[2, 3, {columns}], {element}>) {{
  %y = softmax %x {{axis = 2}} : tensor<[2, 3, {columns}], {element}>
  return %y
}}
"
    );
    let mut values = numbers(11, M * columns);
    change(&mut values);
    Case::new(&source, &[("x", tensor(element, &[2, 3, columns], &values))], |program| {
        let mut row = RowBuilder::new(program);
        let x = row.read("x", RowShape::Matrix);
        let y = softmax_steps(&mut row, x, element);
        row.write("y", y);
        row.plan([2, 3, columns as u64])
    })
}

#[test]
fn softmax_is_bounded_element_by_element() {
    for columns in [1, 97, 1000] {
        for interpret in [true, false] {
            let case = Case { interpret, ..softmax(F32, columns, |_| {}) };
            let right = case.right();
            assert!(case.accepts(&right));
            for error in [0.0, 2e-7, -2e-7] {
                assert!(case.accepts(&computed(&case, error)), "{columns} {error}");
            }
            assert!(case.accepts_altered(&right, 0, scale(1.0 + 2e-7)));
            assert!(!case.accepts_altered(&right, 0, one(1.001)), "{columns}");
            assert!(!case.accepts_altered(&right, 0, |values| values[0] = f64::NAN));
            if columns > 1 {
                assert!(!case.accepts_altered(&right, 0, |values| values.swap(0, 1)));
            }
        }
    }
    assert_eq!(softmax(F32, 97, |_| {}).rule(), "γ_K·Σ|x| + 4 ulp");
}

#[test]
fn a_narrow_softmax_may_round_near_a_tie_only() {
    for (element, step) in [(BF16, 2f64.powi(-7)), (F16, 2f64.powi(-10))] {
        let case = softmax(element, 200, |_| {});
        let right = case.right();
        assert!(case.accepts(&right));
        assert!(case.accepts(&computed(&case, 2e-7)), "{element}");
        assert!(!case.accepts_altered(&right, 0, scale(1.0 + step)), "{element}: all are a step off");
        assert!(!case.accepts_altered(&right, 0, one(1.0 + 2.0 * step)), "{element}: one is two steps off");
    }
}

#[test]
fn masked_elements_are_zero_and_a_row_of_them_is_nan() {
    let mask = |values: &mut Vec<f64>| {
        values[..50].fill(f64::NEG_INFINITY);
        values[50..75].fill(f64::NEG_INFINITY);
        values[150] = f64::NAN;
        values[250] = f64::INFINITY;
    };
    for element in [F32, BF16] {
        let case = softmax(element, 50, mask);
        let right = case.right();
        let values = right[&case.plan.written()[0]].to_f64();
        assert!(values[..50].iter().all(|value| value.is_nan()) && values[50..75] == [0.0; 25]);
        assert!(case.accepts(&right));
        assert!(case.accepts(&computed(&case, 2e-7)));
        for index in [0, 160, 260] {
            assert!(!case.accepts_altered(&right, 0, |values| values[index] = 0.5), "NaN became a number");
        }
        assert!(!case.accepts_altered(&right, 0, |values| values[60] = 0.01), "a masked element");
        assert!(!case.accepts_altered(&right, 0, |values| values[60] = f64::NAN), "a masked element");
    }
}

fn layer_norm(columns: usize, offset: f64) -> Case {
    let source = format!(
        "func @f(%x: tensor<[{M}, {columns}], bf16>, %w: tensor<[{columns}], f32>, %b: tensor<[{columns}], f32>) {{
  %y = layer_norm %x, %w, %b {{eps = 0.00001}} : tensor<[{M}, {columns}], f32>
  return %y
}}
"
    );
    let values: Vec<f64> = numbers(21, M * columns).into_iter().map(|value| value + offset).collect();
    let vector = |seed| random(F32, &[columns], seed);
    let tensors = [("x", tensor(BF16, &[M, columns], &values)), ("w", vector(22)), ("b", vector(23))];
    Case::new(&source, &tensors, |program| {
        let mut row = RowBuilder::new(program);
        let [x, w, b] = [("x", RowShape::Matrix), ("w", RowShape::Row), ("b", RowShape::Row)]
            .map(|(name, shape)| row.read(name, shape));
        let mean = row.step(Reduce(ReduceKind::Mean), &[x], F32);
        let apart = row.step(Binary(BinaryKind::Sub), &[x, mean], F32);
        let square = row.step(Binary(BinaryKind::Mul), &[apart, apart], F32);
        let variance = row.step(Reduce(ReduceKind::Mean), &[square], F32);
        let eps = row.step(Constant(1e-5f32.to_bits()), &[], F32);
        let above = row.step(Binary(BinaryKind::Add), &[variance, eps], F32);
        let deviation = row.step(Unary(UnaryKind::Sqrt), &[above], F32);
        let normal = row.step(Binary(BinaryKind::Div), &[apart, deviation], F32);
        let weighted = row.step(Binary(BinaryKind::Mul), &[normal, w], F32);
        let y = row.step(Binary(BinaryKind::Add), &[weighted, b], F32);
        row.write("y", y);
        row.plan([1, M as u64, columns as u64])
    })
}

#[test]
fn layer_norm_is_bounded_element_by_element() {
    for (columns, offset) in [(3, 0.0), (64, 0.0), (200, 0.0), (200, 3.0)] {
        let case = layer_norm(columns, offset);
        let right = case.right();
        assert!(case.accepts(&right), "{columns} {offset}");
        assert!(case.accepts(&computed(&case, 0.0)), "{columns} {offset}");
        let moved = |error: f64| {
            case.accepts_altered(&right, 0, |values| {
                let value = values.iter_mut().find(|value| value.abs() > 0.5).expect("one of some size");
                *value += error;
            })
        };
        assert!(moved(1e-7), "{columns} {offset}");
        assert!(!moved(1e-2), "{columns} {offset}");
        assert!(!case.accepts_altered(&right, 0, |values| values.swap(1, 2)));
    }
}

/// rms_norm to NVFP4, written op by op.
fn rms_norm() -> Case {
    let source = format!(
        "func @f(%x: tensor<[{M}, 96], bf16>, %w: tensor<[96], bf16>, %g: tensor<[], f32>) {{
  %f = convert %x : tensor<[{M}, 96], f32>
  %s = mul %f, %f : tensor<[{M}, 96], f32>
  %m = reduce %s {{axes = [1], keep_dims = true, kind = mean}} : tensor<[{M}, 1], f32>
  %eps = constant {{value = 0.00001}} : tensor<[], f32>
  %e = add %m, %eps : tensor<[{M}, 1], f32>
  %r = rsqrt %e : tensor<[{M}, 1], f32>
  %n = mul %f, %r : tensor<[{M}, 96], f32>
  %h = convert %n : tensor<[{M}, 96], bf16>
  %y = mul %h, %w : tensor<[{M}, 96], bf16>
  %q, %sq = block_quantize %y, %g {{block = 16}} : tensor<[{M}, 96], f4E2M1FN>, tensor<[{M}, 6], f8E4M3FN, blocked>
  return %q, %sq
}}
"
    );
    let g = tensor(F32, &[], &[0.0123]);
    let tensors = [("x", random(BF16, &[M, 96], 31)), ("w", random(BF16, &[96], 32)), ("g", g)];
    Case::new(&source, &tensors, |program| {
        let mut row = RowBuilder::new(program);
        let [x, w, g] = [("x", RowShape::Matrix), ("w", RowShape::Row), ("g", RowShape::Scalar)]
            .map(|(name, shape)| row.read(name, shape));
        let f = row.step(Convert, &[x], F32);
        let square = row.step(Binary(BinaryKind::Mul), &[f, f], F32);
        let mean = row.step(Reduce(ReduceKind::Mean), &[square], F32);
        let eps = row.step(Constant(1e-5f32.to_bits()), &[], F32);
        let above = row.step(Binary(BinaryKind::Add), &[mean, eps], F32);
        let factor = row.step(Unary(UnaryKind::Rsqrt), &[above], F32);
        let normal = row.step(Binary(BinaryKind::Mul), &[f, factor], F32);
        let narrow = row.step(Convert, &[normal], BF16);
        let y = row.step(Binary(BinaryKind::Mul), &[narrow, w], BF16);
        row.quantize("q", "sq", y, g);
        row.plan([1, M as u64, 96])
    })
}

/// Alters codes: FP4 elements or the scales.
fn accepts_codes(case: &Case, written: &Written, of: usize, change: impl Fn(&mut Vec<u8>)) -> bool {
    let value = case.plan.written()[of];
    let mut written = written.clone();
    let tensor = &written[&value];
    let mut codes = tensor.to_codes();
    change(&mut codes);
    let altered = Tensor::from_codes(tensor.element(), tensor.dims().to_vec(), tensor.layout(), codes);
    written.insert(value, altered.expect("the shape"));
    case.accepts(&written)
}

#[test]
fn quantized_rows_have_the_codes_of_their_intervals() {
    let case = rms_norm();
    let right = case.right();
    assert!(case.accepts(&right));
    for error in [0.0, 2e-7, -2e-7] {
        assert!(case.accepts(&computed(&case, error)), "{error}");
    }
    // Most codes are certain.
    let flips = (0..M * 96).filter(|at| accepts_codes(&case, &right, 0, |codes| codes[*at] ^= 1)).count();
    assert!(flips < M * 96 / 50, "{flips} codes may differ");
    assert!(!accepts_codes(&case, &right, 0, |codes| codes[7] ^= 8), "a sign");
    let steps = (0..M * 6).filter(|at| accepts_codes(&case, &right, 1, |scales| scales[*at] += 1)).count();
    assert!(steps <= 1, "{steps} scales may differ");
    assert!(!accepts_codes(&case, &right, 1, |scales| scales[3] += 8), "twice the scale");
}

#[test]
fn padding_of_quantized_rows_is_zero() {
    let case = rms_norm();
    let mut wrong = case.right();
    let scales = wrong.get_mut(&case.plan.written()[1]).expect("scales");
    let padding = scales.bytes().iter().position(|byte| *byte == 0).expect("6 of 128 rows have scales");
    scales.bytes_mut()[padding] = 1;
    assert!(!case.accepts(&wrong));
}

#[test]
fn a_gated_activation_is_within_four_ulp() {
    let source = format!(
        "func @f(%x: tensor<[{M}, 40], f32>, %u: tensor<[{M}, 40], f32>) {{
  %s = silu %x : tensor<[{M}, 40], f32>
  %y = mul %s, %u : tensor<[{M}, 40], f32>
  return %y
}}
"
    );
    let tensors = [("x", random(F32, &[M, 40], 41)), ("u", random(F32, &[M, 40], 42))];
    let case = Case::new(&source, &tensors, |program| {
        let mut row = RowBuilder::new(program);
        let (x, u) = (row.read("x", RowShape::Matrix), row.read("u", RowShape::Matrix));
        let silu = row.step(Unary(UnaryKind::Silu), &[x], F32);
        let y = row.step(Binary(BinaryKind::Mul), &[silu, u], F32);
        row.write("y", y);
        row.plan([1, M as u64, 40])
    });
    assert_eq!(case.rule(), "4 ulp of f32");
    let right = case.right();
    assert!(case.accepts(&right) && case.accepts(&computed(&case, 2e-7)));
    assert!(!case.accepts(&computed(&case, 2e-6)));
    assert!(case.accepts_altered(&right, 0, scale(1.0 + 2e-7)));
    assert!(!case.accepts_altered(&right, 0, one(1.0 + 2e-6)));
}

fn sum(element: ElementType, values: &[f64]) -> Case {
    let columns = values.len() / M;
    let source = format!(
        "func @f(%x: tensor<[{M}, {columns}], {element}>) {{
  %y = reduce %x {{axes = [1], keep_dims = false, kind = sum}} : tensor<[{M}], {element}>
  return %y
}}
"
    );
    Case::new(&source, &[("x", tensor(element, &[M, columns], values))], |program| {
        let mut row = RowBuilder::new(program);
        let x = row.read("x", RowShape::Matrix);
        let y = row.step(Reduce(ReduceKind::Sum), &[x], element);
        row.write("y", y);
        row.plan([1, M as u64, columns as u64])
    })
}

#[test]
fn a_row_sum_with_cancellation_has_the_error_of_its_magnitudes() {
    // The elements cancel, up to one of them.
    let mut values = Vec::new();
    for row in 0..M {
        let half = numbers(51 + row as u64, 500);
        values.extend(half.iter().copied().chain(half.iter().rev().map(|x| -x)));
        let last = values.len() - 1;
        values[last] += 1e-3;
    }
    let case = sum(F32, &values);
    let right = case.right();
    assert!(case.accepts(&right) && case.accepts(&computed(&case, 0.0)));
    // The sum of magnitudes is about 500, so the bound is about 0.03.
    let add = |error: f64| case.accepts_altered(&right, 0, |values| values[2] += error);
    assert!(add(1e-3) && !add(0.2));
    assert_eq!(case.rule(), "γ_K·Σ|x|");
}

#[test]
fn a_row_sum_of_small_integers_has_the_interpreter_s_bits() {
    let values: Vec<f64> = numbers(61, M * 300).into_iter().map(|x| (x * 8.0).round()).collect();
    for element in [F32, F16] {
        let case = sum(element, &values);
        assert_eq!(case.rule(), BIT_EQUAL);
        let right = case.right();
        assert!(case.accepts(&right) && case.accepts(&computed(&case, 0.0)));
        let step = if element == F32 { 2f64.powi(-23) } else { 2f64.powi(-10) };
        assert!(!case.accepts_altered(&right, 0, one(1.0 + step)));
    }
}

/// Elementwise ops without an inexact function.
fn exact(result: ElementType) -> Case {
    let source = format!(
        "func @f(%x: tensor<[{M}, 24], bf16>, %c: tensor<[{M}, 1], f32>, %r: tensor<[24], f32>) {{
  %a = mul %x, %c : tensor<[{M}, 24], f32>
  %q = div %a, %r : tensor<[{M}, 24], f32>
  %d = abs %q : tensor<[{M}, 24], f32>
  %s = sqrt %d : tensor<[{M}, 24], f32>
  %p = compare %d, %r {{predicate = lt}} : tensor<[{M}, 24], i1>
  %t = select %p, %s, %a : tensor<[{M}, 24], f32>
  %y = convert %t : tensor<[{M}, 24], {result}>
  %m = reduce %t {{axes = [1], keep_dims = true, kind = amax}} : tensor<[{M}, 1], f32>
  return %y, %m
}}
"
    );
    let tensors =
        [("x", random(BF16, &[M, 24], 71)), ("c", random(F32, &[M, 1], 72)), ("r", random(F32, &[24], 73))];
    Case::new(&source, &tensors, |program| {
        let mut row = RowBuilder::new(program);
        let [x, c, r] = [("x", RowShape::Matrix), ("c", RowShape::Column), ("r", RowShape::Row)]
            .map(|(name, shape)| row.read(name, shape));
        let a = row.step(Binary(BinaryKind::Mul), &[x, c], F32);
        let q = row.step(Binary(BinaryKind::Div), &[a, r], F32);
        let d = row.step(Unary(UnaryKind::Abs), &[q], F32);
        let s = row.step(Unary(UnaryKind::Sqrt), &[d], F32);
        let p = row.step(RowStepKind::Compare(Predicate::Lt), &[d, r], ElementType::I1);
        let t = row.step(RowStepKind::Select, &[p, s, a], F32);
        let y = row.step(Convert, &[t], result);
        let m = row.step(Reduce(ReduceKind::Amax), &[t], F32);
        row.write("y", y);
        row.write("m", m);
        row.plan([1, M as u64, 24])
    })
}

#[test]
fn exact_steps_must_have_the_interpreter_s_bits() {
    for (result, step) in [(F32, 2f64.powi(-23)), (BF16, 2f64.powi(-7)), (ElementType::F8E4M3FN, 0.125)] {
        let case = exact(result);
        let right = case.right();
        assert!(case.accepts(&right));
        assert!(case.compare(&right).iter().all(|compared| compared.rule == BIT_EQUAL));
        assert!(!case.accepts_altered(&right, 0, one(1.0 + step)), "{result}: one step off");
        let is_finite = |value: &&mut f64| value.is_finite() && **value != 0.0;
        let one_ulp = |values: &mut Vec<f64>| {
            *values.iter_mut().find(is_finite).expect("one is a number") *= 1.0 + 2f64.powi(-23);
        };
        assert!(!case.accepts_altered(&right, 1, one_ulp), "{result}: a maximum one step off");
    }
}

#[test]
fn the_intervals_of_exact_steps_are_the_interpreter_s_values() {
    // The rule is the same if such steps are followed like any others.
    use super::super::row::{Row, Rows};
    let case = exact(F32);
    let right = case.right();
    let [y, m] = [0, 1].map(|of| right[&case.plan.written()[of]].to_f64());
    let Plan::Row(plan) = &case.plan else { panic!("a row kernel") };
    case.with_ops(|run| {
        let rows = Rows::new(&run, plan).expect("operands");
        let mut row = Row::default();
        for index in 0..M {
            rows.evaluate(index, &mut row);
            let is = |[low, high]: [f64; 2], want: f64| {
                low == want && high == want || low.is_nan() && high.is_nan() && want.is_nan()
            };
            for column in 0..24 {
                let [ends, _] = row.value(plan.program.outputs[0].of, column);
                assert!(is(ends, y[index * 24 + column]), "{ends:?}");
            }
            assert!(is(row.value(plan.program.outputs[1].of, 0)[0], m[index]));
        }
    });
}

#[test]
fn a_kernel_that_follows_a_wrong_plan_is_wrong() {
    // The plan forgets to subtract the mean, and the kernel does what the plan says.
    let mut case = layer_norm(64, 0.5);
    let Plan::Row(plan) = &mut case.plan else { panic!("a row kernel") };
    plan.program.steps[7].operands[0] = RowRef::Operand(0);
    let as_planned = computed(&case, 0.0);
    assert!(!case.accepts(&as_planned));
    assert!(case.accepts(&case.right()), "the right values are right, whatever the plan says");
    // Likewise for codes: the plan forgets the weight.
    let mut case = rms_norm();
    let Plan::Row(plan) = &mut case.plan else { panic!("a row kernel") };
    plan.program.outputs[0].of = RowRef::Step(7);
    let as_planned = computed(&case, 0.0);
    assert!(!case.accepts(&as_planned) && case.accepts(&case.right()));
}

#[test]
fn operands_repeat_rows() {
    let source = "func @f(%x: tensor<[2, 3, 8], f32>, %t: tensor<[3, 8], f32>, %c: tensor<[2, 1, 1], f32>) {
  %a = add %x, %t : tensor<[2, 3, 8], f32>
  %b = mul %a, %c : tensor<[2, 3, 8], f32>
  %y = sigmoid %b : tensor<[2, 3, 8], f32>
  return %y
}
";
    let tensors = [
        ("x", random(F32, &[2, 3, 8], 81)),
        ("t", random(F32, &[3, 8], 82)),
        ("c", random(F32, &[2, 1, 1], 83)),
    ];
    let case = Case::new(source, &tensors, |program| {
        let mut row = RowBuilder::new(program);
        let [x, t, c] = [("x", RowShape::Matrix), ("t", RowShape::Matrix), ("c", RowShape::Column)]
            .map(|(name, shape)| row.read(name, shape));
        let a = row.step(Binary(BinaryKind::Add), &[x, t], F32);
        let b = row.step(Binary(BinaryKind::Mul), &[a, c], F32);
        let y = row.step(Unary(UnaryKind::Sigmoid), &[b], F32);
        row.write("y", y);
        for (operand, [each, rows]) in [(1, [1, 3]), (2, [3, 2])] {
            row.row.operands[operand].repeats = true;
            let repeat = fourfold_scheduler::Repeat { each: Dim::fixed(each), rows: Dim::fixed(rows) };
            row.operands[operand].repeat = Some(repeat);
        }
        row.plan([2, 3, 8])
    });
    let right = case.right();
    assert!(case.accepts(&right));
    assert!(case.accepts_altered(&right, 0, scale(1.0 + 1e-7)), "the intervals are those of these rows");
    assert!(!case.accepts_altered(&right, 0, one(1.0 + 1e-5)));
}

#[test]
fn rows_without_elements_and_no_rows_have_results() {
    for (rows, columns) in [(0, 8), (3, 0)] {
        let source = format!(
            "func @f(%x: tensor<[{rows}, {columns}], f32>) {{
  %y = reduce %x {{axes = [1], keep_dims = false, kind = mean}} : tensor<[{rows}], f32>
  return %y
}}
"
        );
        let x = tensor(F32, &[rows, columns], &[]);
        let case = Case::new(&source, &[("x", x)], |program| {
            let mut row = RowBuilder::new(program);
            let x = row.read("x", RowShape::Matrix);
            let y = row.step(Reduce(ReduceKind::Mean), &[x], F32);
            row.write("y", y);
            row.plan([1, rows as u64, columns as u64])
        });
        let right = case.right();
        assert!(case.accepts(&right));
        assert!(rows == 0 || !case.accepts_altered(&right, 0, |values| values[0] = 0.0));
    }
}
