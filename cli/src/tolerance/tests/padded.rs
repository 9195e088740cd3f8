//! The bound of a product whose scales of A have whole tiles for each group is that of its rows.

use super::*;

/// A kernel of five groups of 23 rows, each of which may have all.
fn padded(rule: Rule) -> Case {
    let source = "fir 1
func @f(
    %a: tensor<[23, 384], f4E2M1FN>, %sfa: tensor<[640, 24], f8E4M3FN, blocked>,
    param %b: tensor<[5, 72, 384], f4E2M1FN>, param %sfb: tensor<[5, 72, 24], f8E4M3FN, blocked>,
    %ends: tensor<[5], i32>, %sfa_ends: tensor<[5], i32>, %alpha: tensor<[5], f32>
) {
  %p = grouped_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha, sfa_ends = %sfa_ends {block = 16} : tensor<[23, 72], f32>
  %y = relu %p : tensor<[23, 72], f32>
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
fn sums_are_compared_by_the_scales_of_their_rows() {
    for rule in [Rule::Exact, Rule::Normal] {
        let case = padded(rule);
        let ends = case.tensors["ends"].to_f64();
        assert!(ends[0] > 0.0 && ends[0] < 23.0, "several groups have rows: {ends:?}");
        for interpret_it in [true, false] {
            assert!(case.check(interpret_it, |_| {}).ok, "{rule:?}");
            let last = case.check(interpret_it, |values| {
                let largest = values.iter_mut().max_by(|left, right| left.total_cmp(right)).expect("values");
                *largest *= 1.0 + 2f64.powi(-23);
            });
            // In exact sums the last bit counts.
            assert_eq!(last.ok, rule == Rule::Normal);
            let wrong = case.check(interpret_it, |values| {
                let largest = values.iter_mut().max_by(|left, right| left.total_cmp(right)).expect("values");
                *largest *= 1.001;
            });
            assert_eq!((wrong.ok, wrong.mismatches), (false, 1), "{rule:?}");
        }
    }
}
