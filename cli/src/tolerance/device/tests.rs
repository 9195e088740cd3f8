//! Tests that a right device is accepted and a wrong one is not: the interpreter's results, those of a device that
//! computes in f32 ([`device`]), and alterations of them.

mod device;
mod planned;
mod rows;

use std::collections::HashMap;

use fourfold_ir::{Dim, ElementType, Op, Program, ScaleLayout, Tensor, Value, bind};
use fourfold_scheduler::{
    ColumnPlan, ColumnProgram, MmaPlan, MovePlan, MoveProgram, Plan, RowInput, RowOperand, RowOutput,
    RowOutputKind, RowPlan, RowProgram, RowRef, RowShape, RowStep, RowStepKind, ViewPlan,
};

use super::super::{BIT_EQUAL, Compared, SegmentOps, Values, compare_plan};

/// The values that a segment wrote, by value.
type Written = HashMap<Value, Tensor>;

struct Case {
    program: Program,
    plan: Plan,
    tensors: HashMap<String, Tensor>,
    interpret: bool,
}

impl Case {
    /// A segment with every op of a function.
    fn new(source: &str, tensors: &[(&str, Tensor)], plan: impl FnOnce(&Program) -> Plan) -> Case {
        let (program, _) = fourfold_ir::load(&format!("fir 1\n{source}"))
            .unwrap_or_else(|errors| panic!("{}", errors[0].message));
        let plan = plan(&program);
        let tensors = tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())).collect();
        Case { program, plan, tensors, interpret: true }
    }

    fn with_ops<R>(&self, body: impl FnOnce(SegmentOps<'_>) -> R) -> R {
        let bound = bind::bind(&self.program, &self.tensors).expect("they fit");
        let module = self.program.module();
        let ops: Vec<Op> = module.ops.keys().collect();
        let operands = module.inputs.iter().copied().zip(bound.inputs.iter().copied()).collect();
        body(SegmentOps {
            program: &self.program,
            segment: 0,
            ops: &ops,
            symbols: &bound.symbols,
            rule: None,
            operands,
            interpret: self.interpret,
        })
    }

    /// The reference: what the ops define.
    fn right(&self) -> Written {
        self.with_ops(|run| {
            let values = run.evaluate(Values::new()).expect("it is small");
            let written = self.plan.written().into_iter();
            written.map(|value| (value, run.take(&values, value).expect("an op defines it"))).collect()
        })
    }

    fn compare(&self, written: &Written) -> Vec<Compared> {
        self.with_ops(|run| compare_plan(run, &self.plan, &|value| written.get(&value)).expect("it is small"))
    }

    fn accepts(&self, written: &Written) -> bool {
        let compared = self.compare(written);
        assert_eq!(compared.len(), self.plan.written().len());
        compared.iter().all(|compared| compared.comparison.ok)
    }

    /// Compares the results with the elements of one value altered.
    fn accepts_altered(&self, written: &Written, of: usize, change: impl Fn(&mut Vec<f64>)) -> bool {
        let value = self.plan.written()[of];
        let mut written = written.clone();
        let tensor = &written[&value];
        let mut values = tensor.to_f64();
        change(&mut values);
        let altered = Tensor::from_f64(tensor.element(), tensor.dims().to_vec(), tensor.layout(), &values)
            .expect("the shape");
        written.insert(value, altered);
        self.accepts(&written)
    }

    fn rule(&self) -> String {
        self.compare(&self.right())[0].rule.clone()
    }
}

/// Returns the value of a name.
fn value(program: &Program, name: &str) -> Value {
    program.facts().value_named(name).expect(name)
}

fn last_op(program: &Program) -> Op {
    program.module().ops.keys().last().expect("an op")
}

/// Returns numbers of about 1 with both signs, the same in every run.
fn numbers(seed: u64, count: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f64 / f64::from(1u32 << 24)
    };
    (0..count).map(|_| (next() - 0.5) * 4.0 * next()).collect()
}

fn tensor(element: ElementType, dims: &[usize], values: &[f64]) -> Tensor {
    Tensor::from_f64(element, dims.to_vec(), None, values).expect("the shape")
}

fn random(element: ElementType, dims: &[usize], seed: u64) -> Tensor {
    tensor(element, dims, &numbers(seed, dims.iter().product()))
}

fn scale(factor: f64) -> impl Fn(&mut Vec<f64>) {
    move |values| values.iter_mut().for_each(|value| *value *= factor)
}

/// Alters the first element of some size.
fn one(factor: f64) -> impl Fn(&mut Vec<f64>) {
    move |values| {
        let value = values.iter_mut().find(|value| value.abs() > 1e-3).expect("there is one");
        *value *= factor;
    }
}

mod moves {
    use super::*;

    fn transpose() -> Case {
        let source = "func @f(%x: tensor<[3, 5], f32>) {
  %y = transpose %x {permutation = [1, 0]} : tensor<[5, 3], f32>
  return %y
}
";
        let mut values = numbers(1, 15);
        (values[3], values[4], values[5]) = (-0.0, f64::INFINITY, 0.0);
        let mut x = tensor(ElementType::F32, &[3, 5], &values);
        // A NaN with a payload.
        x.bytes_mut()[..4].copy_from_slice(&0x7F81_2345u32.to_le_bytes());
        Case::new(source, &[("x", x)], |program| {
            Plan::Move(MovePlan {
                op: last_op(program),
                program: MoveProgram::Gather,
                operands: vec![value(program, "x")],
                results: vec![value(program, "y")],
                extents: Vec::new(),
                constraints: Vec::new(),
            })
        })
    }

    #[test]
    fn a_move_keeps_every_bit() {
        for interpret in [true, false] {
            let case = Case { interpret, ..transpose() };
            let right = case.right();
            assert!(case.accepts(&right));
            assert_eq!(case.rule(), "every bit");
            let y = value(&case.program, "y");
            for byte in 0..15 * 4 {
                let mut wrong = right.clone();
                wrong.get_mut(&y).expect("a value").bytes_mut()[byte] ^= 1 << (byte % 8);
                assert!(!case.accepts(&wrong), "byte {byte}: a payload, a sign of zero, or a number");
            }
        }
    }

    #[test]
    fn a_view_keeps_every_bit() {
        let source = "func @f(%x: tensor<[3, 4], f8E4M3FN>) {
  %y = reshape %x : tensor<[12], f8E4M3FN>
  return %y
}
";
        let x = random(ElementType::F8E4M3FN, &[3, 4], 2);
        let case = Case::new(source, &[("x", x)], |program| {
            let (operand, result) = (value(program, "x"), value(program, "y"));
            Plan::View(ViewPlan { op: last_op(program), operand, result })
        });
        assert!(case.accepts(&case.right()));
        assert!(!case.accepts_altered(&case.right(), 0, |values| values.swap(0, 1)));
    }

    #[test]
    fn the_padding_of_moved_scales_is_zero() {
        let source = "func @f(%x: tensor<[3, 5], f8E4M3FN, linear>) {
  %y = swizzle_scales %x : tensor<[3, 5], f8E4M3FN, blocked>
  return %y
}
";
        let codes: Vec<u8> = (0..15).map(|code| code * 17).collect();
        let linear = Some(ScaleLayout::Linear);
        let x = Tensor::from_codes(ElementType::F8E4M3FN, vec![3, 5], linear, codes).expect("the shape");
        let case = Case::new(source, &[("x", x)], |program| {
            Plan::Move(MovePlan {
                op: last_op(program),
                program: MoveProgram::Gather,
                operands: vec![value(program, "x")],
                results: vec![value(program, "y")],
                extents: Vec::new(),
                constraints: Vec::new(),
            })
        });
        let right = case.right();
        assert!(case.accepts(&right));
        let y = value(&case.program, "y");
        let bytes = right[&y].bytes().len();
        let altered = |byte: usize, flip: u8| {
            let mut wrong = right.clone();
            wrong.get_mut(&y).expect("a value").bytes_mut()[byte] ^= flip;
            case.accepts(&wrong)
        };
        assert!((0..bytes).all(|byte| !altered(byte, 0x80)), "a sign of a scale is kept, padding is zero");
    }
}

mod products {
    use super::*;

    /// A product with K = 100 of these element types.
    fn product(elements: [ElementType; 3], values: impl Fn(u64, usize) -> Vec<f64>) -> Case {
        let [a, b, d] = elements;
        let source = format!(
            "func @f(%a: tensor<[2, 5, 100], {a}>, %b: tensor<[7, 100], {b}>) {{
  %d = mma %a, %b : tensor<[2, 5, 7], {d}>
  return %d
}}
"
        );
        let tensors =
            [("a", tensor(a, &[2, 5, 100], &values(3, 1000))), ("b", tensor(b, &[7, 100], &values(4, 700)))];
        Case::new(&source, &tensors, |program| {
            Plan::Mma(MmaPlan {
                op: last_op(program),
                a: value(program, "a"),
                b: value(program, "b"),
                d: value(program, "d"),
                elements,
                batch: Dim::fixed(2),
                m: Dim::fixed(5),
                n: Dim::fixed(7),
                k: Dim::fixed(100),
                b_batched: false,
                constraints: Vec::new(),
            })
        })
    }

    #[test]
    fn a_product_is_bounded_element_by_element() {
        use ElementType::{BF16, F16, F32};
        for elements in
            [[F32, F32, F32], [BF16, BF16, F32], [F16, F16, F32], [BF16, BF16, BF16], [F16, F16, F16]]
        {
            for interpret in [true, false] {
                let case = Case { interpret, ..product(elements, numbers) };
                let right = case.right();
                assert!(case.accepts(&right), "{elements:?}");
                let is_wide = elements[2] == F32;
                assert!(!is_wide || case.accepts_altered(&right, 0, scale(1.0 + 2e-7)), "{elements:?}");
                assert!(
                    !case.accepts_altered(&right, 0, one(if is_wide { 1.001 } else { 1.02 })),
                    "{elements:?}"
                );
                assert!(!case.accepts_altered(&right, 0, |values| values.swap(10, 11)), "{elements:?}");
                assert!(!case.accepts_altered(&right, 0, |values| values[69] = f64::NAN), "{elements:?}");
            }
        }
    }

    #[test]
    fn a_product_of_small_integers_has_the_interpreter_s_bits() {
        use ElementType::{BF16, F32};
        let integers = |seed, count| numbers(seed, count).into_iter().map(|x| (x * 8.0).round()).collect();
        for d in [F32, BF16] {
            let case = product([BF16, BF16, d], integers);
            assert_eq!(case.rule(), BIT_EQUAL);
            let right = case.right();
            assert!(case.accepts(&right));
            let step = if d == F32 { 2f64.powi(-23) } else { 2f64.powi(-7) };
            assert!(!case.accepts_altered(&right, 0, one(1.0 + step)), "one step off");
        }
    }

    #[test]
    fn a_product_with_nan_or_an_overflow_has_them_where_the_interpreter_has() {
        let with = |special: f64| {
            move |seed, count| {
                let mut values = numbers(seed, count);
                values[0] = special;
                values
            }
        };
        let nan = product([ElementType::F32; 3], with(f64::NAN));
        let right = nan.right();
        assert!(nan.accepts(&right));
        assert!(!nan.accepts_altered(&right, 0, |values| values[0] = 1.0));
        let large = product([ElementType::F32; 3], with(3e38));
        assert!(large.compare(&large.right())[0].comparison.mismatches == 0);
    }
}

mod columns {
    use fourfold_ir::ReduceKind;

    use super::*;

    /// A reduction of `[3, 37, 2, 5, 4]` along the second and the fourth axis.
    fn reduction(kind: ReduceKind, element: ElementType, values: &[f64]) -> Case {
        let source = format!(
            "func @f(%x: tensor<[3, 37, 2, 5, 4], {element}>) {{
  %y = reduce %x {{axes = [1, 3], keep_dims = false, kind = {kind}}} : tensor<[3, 2, 4], {element}>
  return %y
}}
"
        );
        Case::new(&source, &[("x", tensor(element, &[3, 37, 2, 5, 4], values))], |program| {
            Plan::Column(ColumnPlan {
                op: last_op(program),
                program: ColumnProgram { kind, element },
                operand: value(program, "x"),
                result: value(program, "y"),
                extents: [3, 37, 2, 5, 4].map(Dim::fixed),
                constraints: Vec::new(),
            })
        })
    }

    /// The results of a device that sums in f32, in pairs of neighbours.
    fn by_device(case: &Case) -> Written {
        fn sum(terms: &[f32]) -> f32 {
            match terms {
                [] => 0.0,
                [term] => *term,
                _ => {
                    let (low, high) = terms.split_at(terms.len() / 2);
                    sum(low) + sum(high)
                }
            }
        }
        let Plan::Column(plan) = &case.plan else { panic!("a column kernel") };
        let x = case.tensors["x"].to_f64();
        let results: Vec<f64> = (0..24)
            .map(|index| {
                let (outer, middle, inner) = (index / 8, index / 4 % 2, index % 4);
                let at = |a: usize, c: usize| (((outer * 37 + a) * 2 + middle) * 5 + c) * 4 + inner;
                let terms: Vec<f32> = (0..37)
                    .flat_map(|a| (0..5).map(move |c| (a, c)))
                    .map(|(a, c)| x[at(a, c)] as f32)
                    .collect();
                let total = sum(&terms);
                f64::from(if plan.program.kind == ReduceKind::Mean { total / 185.0 } else { total })
            })
            .collect();
        Written::from([(plan.result, tensor(plan.program.element, &[3, 2, 4], &results))])
    }

    #[test]
    fn a_sum_is_bounded_element_by_element() {
        for kind in [ReduceKind::Sum, ReduceKind::Mean] {
            for element in [ElementType::F32, ElementType::BF16, ElementType::F16] {
                let case = reduction(kind, element, &numbers(7, 4440));
                let (right, device) = (case.right(), by_device(&case));
                assert!(case.accepts(&right) && case.accepts(&device), "{kind} {element}");
                let factor = if element == ElementType::F32 { 1.001 } else { 1.05 };
                assert!(!case.accepts_altered(&device, 0, scale(factor)), "{kind} {element}");
                assert!(!case.accepts_altered(&right, 0, |values| values.swap(3, 4)), "{kind} {element}");
                assert!(!case.accepts_altered(&right, 0, |values| values[23] = f64::NAN), "{kind} {element}");
            }
        }
    }

    #[test]
    fn extremes_and_sums_of_small_integers_have_the_interpreter_s_bits() {
        let integers: Vec<f64> = numbers(8, 4440).into_iter().map(|x| (x * 8.0).round()).collect();
        for kind in ReduceKind::ALL.iter().copied().filter(|kind| *kind != ReduceKind::Mean) {
            let case = reduction(kind, ElementType::F32, &integers);
            assert_eq!(case.rule(), BIT_EQUAL, "{kind}");
            assert!(!case.accepts_altered(&case.right(), 0, scale(1.0 + 2f64.powi(-23))), "{kind}");
        }
    }

    #[test]
    fn sums_with_nan_or_infinities_have_them_where_the_interpreter_has() {
        for (special, other) in [(f64::NAN, 1.0), (f64::NEG_INFINITY, f64::INFINITY)] {
            let mut values = numbers(9, 4440);
            values[0] = special;
            let case = reduction(ReduceKind::Sum, ElementType::BF16, &values);
            let right = case.right();
            assert!(case.accepts(&right) && case.accepts(&by_device(&case)));
            assert!(!case.accepts_altered(&right, 0, |values| values[0] = other));
        }
    }
}
