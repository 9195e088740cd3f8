//! The precision of values: exact where accumulation gives the same bits in any order, inexact elsewhere.

use fourfold_ir::sample::Rule;
use fourfold_ir::{BinaryKind, ElementType, Entity, Op, OpKind, Program, ReduceKind, UnaryKind, Value};

/// The precision of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// Every implementation computes the same bits.
    Exact,
    /// The value follows from an accumulation in f32 whose order changes the last bits.
    Inexact {
        /// The narrowest type to which such a value was rounded on the way, its own type included.
        narrowest: ElementType,
    },
}

impl Precision {
    /// Returns the default tolerance, relative to the largest magnitude.
    ///
    /// f32 accumulation in another order typically moves a sum by 1e-7 of the largest. A wrong scale, layout or
    /// rounding moves it by 1e-3. A value that follows from a narrow one may differ by as many steps as that one.
    pub(crate) fn tolerance(self) -> f64 {
        match self {
            Precision::Exact => 0.0,
            Precision::Inexact { narrowest: ElementType::F32 } => 1e-5,
            Precision::Inexact { narrowest: ElementType::F16 } => 2f64.powi(-10),
            Precision::Inexact { narrowest: ElementType::BF16 } => 2f64.powi(-7),
            // One step of an FP8 or FP4 code.
            Precision::Inexact { .. } => 2f64.powi(-2),
        }
    }

    /// Returns true if an error proves little although it is within the default tolerance: a value of this precision
    /// may follow from a moved FP8 or FP4 code, and the error exceeds the tolerance of the value's own type.
    pub(crate) fn proves_little(self, element: ElementType, relative_error: f64) -> bool {
        let own = Precision::Inexact { narrowest: element }.tolerance();
        // The steps of FP8 and FP4 are too wide to tell a right value from a wrong one.
        let own = if own > WIDE { 0.0 } else { own };
        self.tolerance() > WIDE && relative_error > own
    }
}

/// A wrong scale, activation function or constant changes results by less than a wider tolerance allows.
const WIDE: f64 = 1e-2;

/// Returns the precision of every value, by value index. `rule` is that of seeded inputs; stored data guarantee
/// nothing. `on_device` returns true for ops that ran on the GPU, where some functions and sums have other last bits.
/// `contracted` returns true for ops that lost a rounding the program states.
pub(crate) fn precisions(
    program: &Program,
    rule: Option<Rule>,
    on_device: &dyn Fn(Op) -> bool,
    contracted: &dyn Fn(Op) -> bool,
) -> Vec<Precision> {
    let module = program.module();
    let mut precisions = vec![Precision::Exact; module.values.len()];
    for (op, operation) in module.ops.iter() {
        let accumulates = match operation.kind {
            OpKind::Mma => true,
            OpKind::ScaledMma(_) | OpKind::GroupedScaledMma(_) => !is_exact_product(program, rule, op),
            OpKind::Unary(kind) => on_device(op) && !is_correctly_rounded(kind),
            OpKind::Binary(BinaryKind::Pow) | OpKind::Softmax { .. } | OpKind::LayerNorm { .. } => {
                on_device(op)
            }
            OpKind::Reduce { kind: ReduceKind::Sum | ReduceKind::Mean, .. } => on_device(op),
            _ => false,
        };
        let accumulates = accumulates || contracted(op);
        let operands = operation.operands.iter().map(|operand| precisions[operand.index()]);
        let inherited = operands.fold(Precision::Exact, narrower);
        for result in &operation.results {
            let element = module.ty(*result).element;
            precisions[result.index()] = match (inherited, accumulates) {
                (Precision::Exact, false) => Precision::Exact,
                // An accumulation moves bits of its own result type, or of a narrower one on the way.
                (inherited, _) => narrower(inherited, Precision::Inexact { narrowest: element }),
            };
        }
    }
    precisions
}

fn narrower(left: Precision, right: Precision) -> Precision {
    match (left, right) {
        (Precision::Exact, other) | (other, Precision::Exact) => other,
        (Precision::Inexact { narrowest: a }, Precision::Inexact { narrowest: b }) => {
            // bf16 has fewer digits than f16.
            let coarseness = |element: ElementType| match element {
                ElementType::BF16 => 12,
                other => other.storage_bits(),
            };
            Precision::Inexact { narrowest: if coarseness(a) <= coarseness(b) { a } else { b } }
        }
    }
}

/// Returns true if a `scaled_mma` has sampled block-scaled operands and K is small enough for the rule to keep every
/// sum exact. A 16-bit A may have been sampled for another program, in which nothing requires exact sums.
pub(crate) fn is_exact_product(program: &Program, rule: Option<Rule>, op: Op) -> bool {
    let module = program.module();
    let is_sampled = |value: Value| match module.defining_op(value) {
        None => true,
        Some(op) => {
            let operation = &module.ops[op];
            matches!(operation.kind, OpKind::SwizzleScales | OpKind::GroupScales)
                && module.defining_op(operation.operands[0]).is_none()
        }
    };
    let (Some(matmul), Some(operands)) = (program.facts().matmul(op), module.scaled_mma_operands(op)) else {
        return false;
    };
    let Some(sfa) = operands.sfa else { return false };
    let limit = rule.and_then(|rule| rule.exact_k(matmul.format.scale)).unwrap_or(0);
    matmul.k.as_fixed().is_some_and(|k| k <= limit)
        && [operands.a, sfa, operands.b, operands.sfb].into_iter().all(is_sampled)
}

/// Returns true if device and CPU compute the same bits.
pub(crate) fn is_correctly_rounded(kind: UnaryKind) -> bool {
    use UnaryKind::{Abs, Ceil, Floor, Neg, Reciprocal, Relu, Round, Sqrt};
    matches!(kind, Neg | Abs | Relu | Sqrt | Reciprocal | Floor | Ceil | Round)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_behind_a_quantization_proves_little_unless_the_type_of_the_value_explains_it() {
        let behind = |narrowest| Precision::Inexact { narrowest };
        let fp4 = behind(ElementType::F4E2M1FN);
        assert!(fp4.proves_little(ElementType::F32, 2e-5));
        assert!(!fp4.proves_little(ElementType::F32, 9e-6));
        assert!(fp4.proves_little(ElementType::BF16, 1e-2));
        assert!(!fp4.proves_little(ElementType::BF16, 7e-3));
        assert!(fp4.proves_little(ElementType::F4E2M1FN, 0.1));
        assert!(!fp4.proves_little(ElementType::F4E2M1FN, 0.0));
        assert!(!behind(ElementType::BF16).proves_little(ElementType::F32, 7e-3));
        assert!(!Precision::Exact.proves_little(ElementType::F32, 0.0));
    }

    #[test]
    fn exactness_ends_at_an_inexact_sum_and_narrowing_is_remembered() {
        let source = "fir 1
func @f(
    %a: tensor<[5, 512], f4E2M1FN>, %sa: tensor<[5, 32], f8E4M3FN, linear>,
    %b: tensor<[7, 512], f4E2M1FN>, %sb: tensor<[7, 32], f8E4M3FN, blocked>, %w: tensor<[9, 7], bf16>
) {
  %ss = swizzle_scales %sa : tensor<[5, 32], f8E4M3FN, blocked>
  %d = scaled_mma %a, %ss, %b, %sb {block = 16} : tensor<[5, 7], bf16>
  %r = relu %d : tensor<[5, 7], bf16>
  %p = mma %r, %w : tensor<[5, 9], f32>
  %n = convert %p : tensor<[5, 9], bf16>
  %z = convert %n : tensor<[5, 9], f32>
  return %r, %z
}
";
        let (program, _) = fourfold_ir::load(source).expect("the program is valid");
        let of = |rule, name: &str| {
            precisions(&program, rule, &|_| false, &|_| false)
                [program.facts().value_named(name).expect(name).index()]
        };
        let inexact = |narrowest| Precision::Inexact { narrowest };
        assert_eq!(of(Some(Rule::Exact), "r"), Precision::Exact);
        assert_eq!(of(Some(Rule::Normal), "r"), inexact(ElementType::BF16));
        assert_eq!(of(None, "d"), inexact(ElementType::BF16));
        assert_eq!(of(Some(Rule::Exact), "p"), inexact(ElementType::F32));
        assert_eq!(of(Some(Rule::Exact), "z"), inexact(ElementType::BF16));
    }

    #[test]
    fn sums_and_functions_of_the_device_are_inexact_and_those_of_the_fallback_are_exact() {
        let source = "fir 1
func @f(%x: tensor<[5, 8], f32>, %w: tensor<[8], f32>) {
  %s = reduce %x {axes = [1], keep_dims = true, kind = sum} : tensor<[5, 1], f32>
  %m = reduce %x {axes = [1], keep_dims = true, kind = max} : tensor<[5, 1], f32>
  %p = pow %x, %w : tensor<[5, 8], f32>
  %t = softmax %x {axis = 1} : tensor<[5, 8], f32>
  %n = layer_norm %x, %w, %w {eps = 0.00001} : tensor<[5, 8], f32>
  return %s, %m, %p, %t, %n
}
";
        let (program, _) = fourfold_ir::load(source).expect("the program is valid");
        for on_device in [false, true] {
            let found = precisions(&program, None, &|_| on_device, &|_| false);
            for name in ["s", "m", "p", "t", "n"] {
                let value = program.facts().value_named(name).expect(name);
                let is_exact = !on_device || name == "m";
                assert_eq!(found[value.index()] == Precision::Exact, is_exact, "{name} {on_device}");
            }
        }
    }
}
