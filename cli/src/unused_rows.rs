//! Rows of matrices that no group of a `masked_scaled_mma` uses. They hold anything, so no comparison counts them.

use fourfold_executor::Run;
use fourfold_ir::{Bound, Entity, OpKind, Program, Tensor, Value};

use crate::compare::Wanted;

/// Returns, by value, the counts of each `masked_scaled_mma` that the value follows from row by row. A row of a group is
/// defined if it is below all counts of that group. Empty for a value whose elements are all defined.
pub(crate) fn counts_of_values(program: &Program) -> Vec<Vec<Value>> {
    let module = program.module();
    let mut counts: Vec<Vec<Value>> = vec![Vec::new(); module.values.len()];
    // The groups and rows of a value of matrices. A value of lower rank is aligned to the last axes of others.
    let matrices = |value: Value| match &module.ty(value).shape[..] {
        [groups, rows, ..] => Some([groups, rows]),
        _ => None,
    };
    for operation in module.ops.values() {
        for result in &operation.results {
            let rank = |value: &Value| module.ty(*value).shape.len();
            let keeps_rank = |operand: &&Value| rank(operand) == rank(result);
            let follows = |operand: &&Value| matrices(**operand) == matrices(*result);
            let of = |operand: &Value| counts[operand.index()].iter().copied();
            let operands = operation.operands.iter().filter(follows);
            let mut found: Vec<Value> = match &operation.kind {
                OpKind::GroupedScaledMma(mma) if mma.masked => {
                    let own = operation.operands.get(mma.positional().len() - 1).copied();
                    // A row of A that is undefined has no defined product.
                    let a = operation.operands.first();
                    own.into_iter().chain(a.into_iter().flat_map(of)).collect()
                }
                // Rows of the second operand are columns of the result.
                OpKind::ScaledMma(_) | OpKind::Mma => {
                    operation.operands.first().filter(follows).into_iter().flat_map(of).collect()
                }
                OpKind::Reduce { axes, .. } if axes.iter().all(|axis| *axis >= 2) => {
                    operands.flat_map(of).collect()
                }
                OpKind::Softmax { axis } if *axis < 2 => Vec::new(),
                OpKind::Unary(_)
                | OpKind::Binary(_)
                | OpKind::Bitwise(_)
                | OpKind::Bitcast
                | OpKind::Broadcast
                | OpKind::Choose { .. }
                | OpKind::Clamp { .. }
                | OpKind::Compare(_)
                | OpKind::Concat { .. }
                | OpKind::Pad { .. }
                | OpKind::Select
                | OpKind::Convert
                | OpKind::Slice { .. }
                | OpKind::Softmax { .. }
                | OpKind::LayerNorm { .. }
                | OpKind::SwizzleScales
                | OpKind::BlockQuantize { .. }
                | OpKind::BlockDequantize { .. } => operands.filter(keeps_rank).flat_map(of).collect(),
                _ => Vec::new(),
            };
            found.sort_unstable();
            found.dedup();
            counts[result.index()] = found;
        }
    }
    counts
}

/// Returns the tensors of values that are inputs, or that a run kept.
pub(crate) fn held<'a>(
    program: &Program,
    bound: &'a Bound<'_>,
    run: &'a Run,
    values: &[Value],
) -> Vec<&'a Tensor> {
    let tensor = |value: &Value| match program.module().inputs.iter().position(|input| input == value) {
        Some(position) => bound.inputs.get(position).copied(),
        None => run.value(*value),
    };
    values.iter().filter_map(tensor).collect()
}

/// Returns `got` with the expected elements in the rows of each matrix beyond one of its counts; `None` if there are none.
pub(crate) fn without_unused_rows(got: &Tensor, want: &dyn Wanted, counts: &[&Tensor]) -> Option<Tensor> {
    let &[groups, rows, ref inner @ ..] = got.dims() else { return None };
    let width = got.element().storage_bits().div_ceil(8) * inner.iter().product::<usize>();
    let (mut codes, wanted) = (got.to_codes(), want.codes(got));
    let fits = counts.iter().all(|counts| counts.dims() == [groups]);
    if counts.is_empty() || !fits || codes.len() != wanted.len() || codes.len() != groups * rows * width {
        return None;
    }
    for counts in counts {
        for (group, count) in counts.to_f64().into_iter().enumerate() {
            let used = (count.max(0.0) as usize).min(rows);
            let unused = (group * rows + used) * width..(group + 1) * rows * width;
            codes[unused.clone()].copy_from_slice(&wanted[unused]);
        }
    }
    Tensor::from_codes(got.element(), got.dims().to_vec(), got.layout(), codes).ok()
}

#[cfg(test)]
mod tests {
    use fourfold_ir::{ElementType, ScaleLayout};

    use super::*;

    #[test]
    fn values_that_follow_row_by_row_have_the_counts_of_their_product() {
        let text = "fir 1
func @main(%x: tensor<[3, M, 32], bf16>, %w: tensor<[3, 64, 32], f4E2M1FN>,
    %sw: tensor<[3, 64, 2], f8E4M3FN, linear>, %n: tensor<[3], i32>, %m: tensor<[3], i32>, %g: tensor<[], f32>,
    %ids: tensor<[5], i32>, %cube: tensor<[3, 3, M], f32>) {
  %d = masked_scaled_mma %x, %w, %sw, %n {block = 16} : tensor<[3, M, 64], f32>
  %y = add %g, %d : tensor<[3, M, 64], f32>
  %half = slice %y {axes = [2], ends = [64], starts = [32]} : tensor<[3, M, 32], f32>
  %q, %s = block_quantize %half, %g {block = 16} : tensor<[3, M, 32], f4E2M1FN>, tensor<[3, M, 2], f8E4M3FN, linear>
  %amax = reduce %y {axes = [0, 1], kind = amax} : tensor<[64], f32>
  %flat = reshape %y : tensor<[3*M, 64], f32>
  %some = gather %flat, %ids {axis = 0} : tensor<[5, 64], f32>
  %z = neg %g : tensor<[], f32>
  %e = masked_scaled_mma %x, %w, %sw, %m {block = 16} : tensor<[3, M, 64], f32>
  %both = mul %e, %y : tensor<[3, M, 64], f32>
  %beside = concat %y, %y {axis = 2} : tensor<[3, M, 128], f32>
  %a = convert %half : tensor<[3, M, 32], bf16>
  %next = masked_scaled_mma %a, %w, %sw, %m {block = 16} : tensor<[3, M, 64], f32>
  %most = reduce %y {axes = [2], keep_dims = false, kind = max} : tensor<[3, M], f32>
  %square = mul %most, %cube : tensor<[3, 3, M], f32>
  return %q, %s, %amax, %some, %z, %both, %beside, %next, %square
}";
        let program = fourfold_ir::load(text).expect("a program").0;
        let named = |name: &str| program.facts().value_named(name).expect("a value");
        let counts = counts_of_values(&program);
        let has = |name: &str| -> Vec<&str> {
            counts[named(name).index()].iter().map(|counts| program.module().name_of(*counts)).collect()
        };
        for name in ["d", "y", "half", "q", "s"] {
            assert_eq!(has(name), ["n"], "{name}");
        }
        for name in ["x", "amax", "flat", "some", "z", "n"] {
            assert!(has(name).is_empty(), "{name}");
        }
        assert_eq!((has("e"), has("both")), (vec!["m"], vec!["n", "m"]));
        assert_eq!((has("beside"), has("next"), has("most")), (vec!["n"], vec!["n", "m"], vec!["n"]));
        assert!(has("square").is_empty());
    }

    #[test]
    fn only_rows_beyond_the_count_are_replaced() {
        let of = |values: &[f64]| {
            Tensor::from_f64(ElementType::BF16, vec![2, 3, 2], None, values).expect("twelve numbers")
        };
        let got = of(&[1.0, 2.0, f64::NAN, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, f64::INFINITY]);
        let want = of(&[0.0; 12]);
        let counts = |values: &[f64]| Tensor::from_f64(ElementType::I32, vec![2], None, values).expect("two");
        let patched = without_unused_rows(&got, &want, &[&counts(&[1.0, 2.0])]).expect("matrices");
        assert_eq!(patched.to_f64(), [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0, 10.0, 0.0, 0.0]);
        let both = [&counts(&[1.0, 3.0]), &counts(&[2.0, 2.0])];
        let patched = without_unused_rows(&got, &want, &both).expect("matrices");
        assert_eq!(patched.to_f64(), [1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 7.0, 8.0, 9.0, 10.0, 0.0, 0.0]);
        assert!(without_unused_rows(&got, &want, &[]).is_none());
        let all = without_unused_rows(&got, &want, &[&counts(&[3.0, 3.0])]).expect("matrices");
        assert_eq!(all.bytes(), got.bytes());
        let codes = |first: u8| {
            let codes = (0..20).map(|index| first + index).collect();
            Tensor::from_codes(ElementType::F8E4M3FN, vec![2, 2, 5], Some(ScaleLayout::Blocked), codes)
        };
        let (got, want) = (codes(0).expect("scales"), codes(50).expect("scales"));
        let patched = without_unused_rows(&got, &want, &[&counts(&[2.0, 1.0])]).expect("matrices").to_codes();
        assert_eq!((&patched[..15], patched[15]), (&got.to_codes()[..15], 65));
    }
}
