//! Tests that a wrong kernel is never accepted: results are altered slightly, in each way that occurs.

mod masked;
mod outputs;
mod padded;

use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{Entity, Program, bind, interpret};
use fourfold_scheduler::{Partition, partition};

use super::*;
use crate::compare::Comparison;

struct Case {
    program: Program,
    partition: Partition,
    tensors: HashMap<String, Tensor>,
    rule: Rule,
}

impl Case {
    /// A kernel with K = 352 and this epilogue after `%p`, whose type is `root`.
    fn new(root: &str, epilogue: &str, result: &str, rule: Rule) -> Case {
        let source = format!(
            "fir 1
func @f(
    %a: tensor<[37, 352], f4E2M1FN>, %sfa: tensor<[37, 22], f8E4M3FN, blocked>,
    param %b: tensor<[72, 352], f4E2M1FN>, param %sfb: tensor<[72, 22], f8E4M3FN, blocked>,
    %alpha: tensor<[], f32>, param %bias: tensor<[72], f32>
) {{
  %p = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha {{block = 16}} : tensor<[37, 72], {root}>
{epilogue}  return %{result}
}}
"
        );
        let (program, _) =
            fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{}", errors[0].message));
        let capabilities = fourfold_codegen::capabilities("sm_120a").expect("a target");
        let partition = partition(&program, &capabilities);
        let tensors =
            sample::inputs(&program, &Recipe { rule, seed: 5, symbols: Vec::new() }).expect("inputs");
        Case { program, partition, tensors, rule }
    }

    /// Compares the right result, altered by `change`.
    fn compared(&self, interpret_it: bool, change: impl Fn(&mut Vec<f64>)) -> Compared {
        let bound = bind::bind(&self.program, &self.tensors).expect("they fit");
        let module = self.program.module();
        let (segment, plan) = self.partition.kernels().next().expect("a kernel");
        let planned = &self.partition.segments[segment];
        let operands = module.inputs.iter().copied().zip(bound.inputs.iter().copied()).collect();
        let run = SegmentOps {
            program: &self.program,
            segment,
            ops: &planned.ops,
            symbols: &bound.symbols,
            rule: Some(self.rule),
            operands,
            interpret: interpret_it,
        };
        let run = KernelRun { run, plan };
        let written = plan.written().next().expect("a kernel writes something");
        let right = interpret(&self.program, &bound).expect("it is small").swap_remove(written.index());
        let mut values = right.to_f64();
        change(&mut values);
        let got = Tensor::from_f64(right.element(), right.dims().to_vec(), None, &values).expect("the shape");
        let mut compared = run.compare(&|_| Some(&got)).expect("it is small");
        assert_eq!(compared.len(), 1);
        compared.remove(0)
    }

    fn check(&self, interpret_it: bool, change: impl Fn(&mut Vec<f64>)) -> Comparison {
        self.compared(interpret_it, change).comparison
    }

    fn accepts(&self, change: impl Fn(&mut Vec<f64>)) -> bool {
        self.check(true, &change).ok && self.check(false, &change).ok
    }
}

const GELU: &str = "  %d = add %p, %bias : tensor<[37, 72], f32>\n  %y = gelu %d : tensor<[37, 72], f32>\n";

fn scale(factor: f64) -> impl Fn(&mut Vec<f64>) {
    move |values| values.iter_mut().for_each(|value| *value *= factor)
}

#[test]
fn exact_sums_must_have_the_interpreter_s_bits() {
    for (root, unit) in [("f32", 1e-7), ("bf16", 1e-2), ("f16", 1e-3)] {
        let case = Case::new(root, "", "p", Rule::Exact);
        assert!(case.accepts(|_| {}), "{root}");
        assert!(!case.accepts(|values| values[1000] *= 1.0 + unit), "{root}: one step in one element");
    }
}

#[test]
fn functions_may_be_four_ulp_off_and_not_more() {
    let case = Case::new("f32", GELU, "y", Rule::Exact);
    assert!(case.accepts(scale(1.0 + 2e-7)));
    let one_of_some_size = |values: &mut Vec<f64>| {
        let value = values.iter_mut().find(|value| **value > 0.1).expect("there is one");
        *value *= 1.0 + 2e-6;
    };
    assert!(!case.accepts(one_of_some_size));
}

#[test]
fn an_inexact_sum_is_bounded_element_by_element() {
    for (root, epilogue, result) in [("f32", "", "p"), ("bf16", "", "p"), ("f32", GELU, "y")] {
        let case = Case::new(root, epilogue, result, Rule::Normal);
        let name = format!("{root} {result}");
        assert!(case.accepts(|_| {}), "{name}");
        assert!(!case.accepts(scale(1.2)), "{name}: a wrong alpha");
        assert!(!case.accepts(|values| values.swap(100, 101)), "{name}: two columns exchanged");
        assert!(!case.accepts(|values| values[2000] = f64::NAN), "{name}: an element that was not written");
        // The rows of this rule differ by orders of magnitude: the smallest must be right too.
        let smallest = |values: &mut Vec<f64>| {
            let row = (0..37).min_by(|a, b| {
                let size = |row: &usize| values[row * 72..][..72].iter().map(|v| v.abs()).fold(0.0, f64::max);
                size(a).total_cmp(&size(b))
            });
            let row = row.expect("37 rows");
            values[row * 72..][..72].iter_mut().for_each(|value| *value *= 1.05);
        };
        assert!(!case.accepts(smallest), "{name}: a small row");
    }
}

#[test]
fn another_function_is_not_the_function() {
    let mut case = Case::new("f32", GELU, "y", Rule::Normal);
    let mut tanh = Case::new("f32", &GELU.replace("= gelu", "= gelu_tanh"), "y", Rule::Normal);
    // Arguments at which the two functions differ, by at most 5e-4.
    for case in [&mut case, &mut tanh] {
        let alpha = Tensor::from_f32(vec![], &[3e-5]).expect("a scalar");
        case.tensors.insert("alpha".to_owned(), alpha);
    }
    assert!(case.accepts(|_| {}));
    let bound = bind::bind(&tanh.program, &tanh.tensors).expect("they fit");
    let other = interpret(&tanh.program, &bound).expect("it is small");
    let output = tanh.program.module().outputs[0];
    let other = other[output.index()].to_f64();
    assert!(!case.accepts(|values| values.copy_from_slice(&other)));
}

#[test]
fn contest_sums_beyond_the_rule_s_limit_are_exact_where_their_magnitudes_say_so() {
    let case = Case::new("f32", "", "p", Rule::Contest);
    assert!(!case.accepts(|values| values[1] += 0.001));
}

/// A value with three uses, a choice by comparison, and steps in bf16.
const GATED: &str = "  %x = add %p, %bias : tensor<[37, 72], f32>
  %g = sigmoid %x : tensor<[37, 72], f32>
  %m = mul %x, %g : tensor<[37, 72], f32>
  %n = convert %m : tensor<[37, 72], bf16>
  %q = compare %x, %bias {predicate = ge} : tensor<[37, 72], i1>
  %s = select %q, %n, %x : tensor<[37, 72], f32>
  %y = convert %s : tensor<[37, 72], bf16>
";

#[test]
fn errors_are_carried_through_a_dag() {
    for rule in [Rule::Exact, Rule::Normal] {
        let case = Case::new("f32", GATED, "y", rule);
        assert!(case.accepts(|_| {}), "{rule:?}");
        assert!(!case.accepts(scale(1.2)), "{rule:?}: a wrong alpha");
        assert!(!case.accepts(|values| values.swap(100, 101)), "{rule:?}: two columns exchanged");
        assert!(!case.accepts(|values| values[2000] = f64::NAN), "{rule:?}: an element that was not written");
    }
}

#[test]
fn exact_steps_on_exact_sums_must_have_the_interpreter_s_bits() {
    let steps = GATED.replace("= sigmoid", "= abs");
    let case = Case::new("bf16", &steps, "y", Rule::Exact);
    assert!(case.accepts(|_| {}));
    let one_step = |values: &mut Vec<f64>| {
        let value = values.iter_mut().find(|value| **value != 0.0).expect("there is one");
        *value *= 1.0 + 2f64.powi(-7);
    };
    assert!(!case.accepts(one_step));
}

#[test]
fn elements_near_a_pole_have_no_bound_and_the_rule_says_how_many() {
    let near = "  %z = sub %p, %p : tensor<[37, 72], f32>\n  %d = add %z, %bias : tensor<[37, 72], f32>\n  \
                %y = reciprocal %d : tensor<[37, 72], f32>\n";
    let compared = Case::new("f32", near, "y", Rule::Normal).compared(true, |_| {});
    let Tolerance::Each(each) = &compared.tolerance else { panic!("an inexact sum has a bound") };
    let free = each.iter().filter(|each| each.is_infinite()).count();
    assert!(free > 0, "an error of the sum reaches over the pole");
    let said = format!("({free} without a bound, more than 1 in 50)");
    assert!(compared.rule.ends_with(&said), "{}", compared.rule);
    assert!(!compared.comparison.ok, "nothing is demanded of too many");
    let exact = Case::new("f32", near, "y", Rule::Exact).compared(true, |_| {});
    assert_eq!(exact.rule, BIT_EQUAL);
}
