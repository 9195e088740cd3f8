//! Rows that no group of a `masked_scaled_mma` uses may hold anything; others must be right.

use super::*;

/// A kernel of five groups, whose counts are random.
fn masked(rule: Rule) -> Case {
    let source = "fir 1
func @f(
    %a: tensor<[5, 9, 352], f4E2M1FN>, %sfa: tensor<[5, 9, 22], f8E4M3FN, linear>,
    param %b: tensor<[5, 72, 352], f4E2M1FN>, param %sfb: tensor<[5, 72, 22], f8E4M3FN, blocked>,
    %counts: tensor<[5], i32>, %alpha: tensor<[5], f32>, param %bias: tensor<[72], f32>
) {
  %p = masked_scaled_mma %a, %sfa, %b, %sfb, %counts, alpha = %alpha {block = 16} : tensor<[5, 9, 72], f32>
  %y = add %p, %bias : tensor<[5, 9, 72], f32>
  return %y
}
";
    let program = fourfold_ir::load(source).expect("a program").0;
    let capabilities = fourfold_codegen::capabilities("sm_90a").expect("a target");
    let partition = partition(&program, &capabilities);
    let recipe = Recipe { rule, seed: 6, symbols: Vec::new() };
    let tensors = sample::inputs(&program, &recipe).expect("inputs");
    Case { program, partition, tensors, rule }
}

#[test]
fn only_rows_that_groups_use_are_compared() {
    for rule in [Rule::Exact, Rule::Normal] {
        let case = masked(rule);
        let counts = case.tensors["counts"].to_f64();
        assert!(counts.iter().any(|count| *count > 0.0) && counts.iter().any(|count| *count < 9.0));
        let is_used = |at: usize| ((at / 72 % 9) as f64) < counts[at / 72 / 9];
        for interpret_it in [true, false] {
            let unused = case.check(interpret_it, |values| {
                values
                    .iter_mut()
                    .enumerate()
                    .filter(|(at, _)| !is_used(*at))
                    .for_each(|(_, it)| *it = f64::NAN);
            });
            assert!(unused.ok && unused.mismatches == 0, "{rule:?}");
            let used = (0..5 * 9 * 72).filter(|at| is_used(*at));
            for at in used.step_by(101) {
                let wrong = case.check(interpret_it, |values| values[at] = f64::NAN);
                assert_eq!((wrong.ok, wrong.mismatches), (false, 1), "{rule:?}: element {at}");
            }
        }
    }
}
