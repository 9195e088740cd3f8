//! Kernels with several outputs: the results accepted and rejected for each kind.

use fourfold_ir::sample::{self, Recipe, Rule};
use fourfold_ir::{Dim, Op, OpKind, OperandShape, Program, ScaleLayout, bind};
use fourfold_scheduler::EpilogueOperand;

use super::*;

const M: usize = 37;
const N: usize = 96;

struct Case {
    program: Program,
    plan: ScaledMmaPlan,
    tensors: HashMap<String, Tensor>,
    rule: Rule,
}

/// The values that a kernel wrote, by name.
type Written = HashMap<String, Tensor>;

impl Case {
    /// A kernel with every op in `epilogue`, which follows `%p`.
    fn new(epilogue: &str, results: &str, rule: Rule) -> Case {
        let source = format!(
            "fir 1
func @f(
    %a: tensor<[{M}, 352], f4E2M1FN>, %sfa: tensor<[{M}, 22], f8E4M3FN, blocked>,
    param %b: tensor<[{N}, 352], f4E2M1FN>, param %sfb: tensor<[{N}, 22], f8E4M3FN, blocked>,
    %alpha: tensor<[], f32>, %bias: tensor<[{N}], f32>, %g: tensor<[], f32>
) {{
  %p = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha {{block = 16}} : tensor<[{M}, {N}], f32>
{epilogue}  return {results}
}}
"
        )
        .replace("MN", &format!("[{M}, {N}]"));
        let (program, _) =
            fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{}", errors[0].message));
        let plan = plan_of(&program);
        let mut case = Case { program, plan, tensors: HashMap::new(), rule };
        case.sample(5);
        case
    }

    fn sample(&mut self, seed: u64) {
        let recipe = Recipe { rule: self.rule, seed, symbols: Vec::new() };
        self.tensors = sample::inputs(&self.program, &recipe).expect("inputs");
        let scalar = |value: f32| Tensor::from_f32(vec![], &[value]).expect("a scalar");
        // Results have a size of about 1, so that scales are in range.
        let alpha = match self.rule {
            Rule::Exact => 2f32.powi(-14),
            _ => 3e-5,
        };
        self.tensors.extend([("alpha".to_owned(), scalar(alpha)), ("g".to_owned(), scalar(0.0123))]);
    }

    fn value(&self, name: &str) -> Value {
        self.program.facts().value_named(name).expect(name)
    }

    /// Calls `body` with the kernel's run.
    fn with_run<R>(&self, body: impl FnOnce(&KernelRun<'_>) -> R) -> R {
        let bound = bind::bind(&self.program, &self.tensors).expect("they fit");
        let module = self.program.module();
        let ops: Vec<Op> = module.ops.keys().collect();
        let operands = module.inputs.iter().copied().zip(bound.inputs.iter().copied()).collect();
        let run = SegmentOps {
            program: &self.program,
            segment: 0,
            ops: &ops,
            symbols: &bound.symbols,
            rule: Some(self.rule),
            operands,
            interpret: true,
        };
        body(&KernelRun { run, plan: &self.plan })
    }

    /// Returns the values that a kernel with this sum writes.
    fn written(&self, sum: impl FnOnce(&KernelRun<'_>, &[f64]) -> Vec<f64>) -> Written {
        self.with_run(|run| {
            let root = self.value("p");
            let right = run.run.evaluate(Values::new()).expect("it is small");
            let sum = sum(run, &right[&root].to_f64());
            let sum = Tensor::from_f64(ElementType::F32, vec![M, N], None, &sum).expect("the shape");
            let values = run.run.evaluate(Values::from([(root, sum)])).expect("it is small");
            let name = |value| self.program.module().name_of(value).to_owned();
            self.plan.written().map(|value| (name(value), values[&value].clone())).collect()
        })
    }

    fn right(&self) -> Written {
        self.written(|_, sum| sum.to_vec())
    }

    /// Sums off by this part of their largest error, up and down.
    fn off(&self, part: f64) -> Written {
        self.written(|run, sum| {
            let error = run.accumulation_error().expect("it is small").expect("an inexact sum");
            let off = |(index, sum): (usize, &f64)| sum + [part, -part][index % 2] * error[index];
            sum.iter().enumerate().map(off).collect()
        })
    }

    fn compare(&self, written: &Written) -> Vec<Compared> {
        let name = |value| self.program.module().name_of(value);
        self.with_run(|run| run.compare(&|value| written.get(name(value))).expect("it is small"))
    }

    /// Returns the names of the values that are wrong.
    fn wrong(&self, written: &Written) -> Vec<&str> {
        let module = self.program.module();
        self.compare(written).iter().filter(|c| !c.comparison.ok).map(|c| module.name_of(c.value)).collect()
    }
}

/// Returns the plan of a kernel that is the whole program.
fn plan_of(program: &Program) -> ScaledMmaPlan {
    let module = program.module();
    let root = module.ops.keys().next().expect("a scaled_mma");
    let (matmul, operands) = (program.facts().matmul(root), module.scaled_mma_operands(root));
    let (matmul, operands) = (matmul.expect("a scaled_mma"), operands.expect("a scaled_mma"));
    let mut plan = ScaledMmaPlan {
        root,
        format: matmul.format,
        batch: Dim::fixed(1),
        m: Dim::fixed(M as u64),
        n: Dim::fixed(N as u64),
        k: Dim::fixed(352),
        b_batched: false,
        groups: None,
        a: operands.a,
        sfa: operands.sfa,
        linear_sfa: false,
        b: operands.b,
        sfb: operands.sfb,
        alpha: operands.alpha,
        c: operands.c,
        beta: operands.beta,
        accumulator: module.ty(module.ops[root].results[0]).element,
        pair: None,
        epilogue: Vec::new(),
        operands: Vec::new(),
        outputs: Vec::new(),
        proof: Vec::new(),
        constraints: Vec::new(),
    };
    let mut known = HashMap::from([(module.ops[root].results[0], EpilogueRef::Accumulator)]);
    for (op, operation) in module.ops.iter() {
        let mut reference = |plan: &mut ScaledMmaPlan, value: Value| {
            *known.entry(value).or_insert_with(|| {
                let ty = module.ty(value);
                let shape = if ty.shape.is_empty() { OperandShape::Scalar } else { OperandShape::Row };
                plan.operands.push(EpilogueOperand { value, shape, element: ty.element });
                EpilogueRef::Operand(plan.operands.len() - 1)
            })
        };
        let result = operation.results[0];
        let kind = match &operation.kind {
            OpKind::ScaledMma(_) => None,
            OpKind::Unary(kind) => Some(EpilogueKind::Unary(*kind)),
            OpKind::Binary(kind) => Some(EpilogueKind::Binary(*kind)),
            OpKind::Convert => Some(EpilogueKind::Convert),
            OpKind::BlockQuantize { block, scale_rounding, formula } => {
                let of = reference(&mut plan, operation.operands[0]);
                let global = operation.operands.get(1).map(|global| reference(&mut plan, *global));
                let global = global.and_then(|global| match global {
                    EpilogueRef::Operand(operand) => Some(operand),
                    _ => None,
                });
                let (codes, scales) = (result, operation.results[1]);
                let (element, block) = (module.ty(codes).element, *block);
                let (scale_rounding, formula) = (*scale_rounding, *formula);
                let kind = OutputKind::Quantized {
                    op,
                    codes,
                    scales,
                    global,
                    element,
                    block,
                    scale_rounding,
                    formula,
                };
                plan.outputs.push(KernelOutput { of, kind });
                continue;
            }
            OpKind::Reduce { kind, axes, .. } => {
                let of = reference(&mut plan, operation.operands[0]);
                let shape = match axes[..] {
                    [0] => OperandShape::Row,
                    [1] => OperandShape::Column,
                    _ => OperandShape::Scalar,
                };
                let kind = OutputKind::Reduced { op, value: result, kind: *kind, shape };
                plan.outputs.push(KernelOutput { of, kind });
                continue;
            }
            other => panic!("{} is in no test", other.mnemonic()),
        };
        if let Some(kind) = kind {
            let operands = operation.operands.iter().map(|value| reference(&mut plan, *value)).collect();
            plan.epilogue.push(EpilogueStep { op, kind, operands, element: module.ty(result).element });
            known.insert(result, EpilogueRef::Step(plan.epilogue.len() - 1));
        }
        if module.outputs.contains(&result) {
            let kind = OutputKind::Value { value: result };
            plan.outputs.push(KernelOutput { of: known[&result], kind });
        }
    }
    plan
}

fn change(written: &Written, name: &str, change: impl FnOnce(&mut Vec<f64>)) -> Written {
    let tensor = &written[name];
    let mut values = tensor.to_f64();
    change(&mut values);
    let changed = Tensor::from_f64(tensor.element(), tensor.dims().to_vec(), tensor.layout(), &values);
    let mut written = written.clone();
    written.insert(name.to_owned(), changed.expect("the shape"));
    written
}

fn change_codes(written: &Written, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Written {
    let tensor = &written[name];
    let mut codes = tensor.to_codes();
    change(&mut codes);
    let changed = Tensor::from_codes(tensor.element(), tensor.dims().to_vec(), tensor.layout(), codes);
    let mut written = written.clone();
    written.insert(name.to_owned(), changed.expect("the shape"));
    written
}

/// Returns the position of a padding byte of blocked scales with 6 columns.
fn spoil_padding(written: &Written, name: &str, row: usize, column: usize) -> Written {
    let mut written = written.clone();
    let scales = written.get_mut(name).expect("scales");
    assert_eq!(scales.layout(), Some(ScaleLayout::Blocked));
    let columns = *scales.dims().last().expect("columns");
    scales.bytes_mut()[fourfold_ir::numeric::blocked_offset(row, column, columns)] = 0x38;
    written
}

const MANY: &str = "  %x = add %p, %bias : tensor<MN, f32>
  %r = relu %x : tensor<MN, f32>
  %q, %sq = block_quantize %r, %g {block = 16} : tensor<MN, f4E2M1FN>, tensor<[37, 6], f8E4M3FN, blocked>
  %peak = reduce %x {axes = [0, 1], kind = amax} : tensor<[], f32>
  %row = reduce %p {axes = [0], kind = max} : tensor<[96], f32>
  %column = reduce %r {axes = [1], kind = amax} : tensor<[37], f32>
  %y = convert %r : tensor<MN, bf16>
";
const MANY_RESULTS: &str = "%p, %q, %sq, %peak, %row, %column, %y";

#[test]
fn exact_outputs_must_have_the_interpreter_s_bits_each_of_them() {
    let case = Case::new(MANY, MANY_RESULTS, Rule::Exact);
    let right = case.right();
    let compared = case.compare(&right);
    assert_eq!(compared.len(), 7);
    for compared in &compared {
        assert!(compared.comparison.ok && compared.rule.starts_with(BIT_EQUAL), "{}", compared.rule);
    }
    for name in ["p", "peak", "row", "column", "y"] {
        let largest = |values: &mut Vec<f64>| {
            let value = values.iter_mut().max_by(|a, b| a.abs().total_cmp(&b.abs())).expect("a value");
            *value *= if name == "y" { 1.01 } else { 1.0 + 2f64.powi(-23) };
        };
        assert_eq!(case.wrong(&change(&right, name, largest)), [name]);
        let nan = |values: &mut Vec<f64>| values[0] = f64::NAN;
        assert_eq!(case.wrong(&change(&right, name, nan)), [name]);
    }
    assert_eq!(case.wrong(&change_codes(&right, "q", |codes| codes[1234] ^= 1)), ["q"]);
    assert_eq!(case.wrong(&change_codes(&right, "q", |codes| codes.swap(15, 16))).len(), {
        usize::from(right["q"].to_codes()[15] != right["q"].to_codes()[16])
    });
    assert_eq!(case.wrong(&change_codes(&right, "sq", |codes| codes[123] += 1)), ["sq"]);
    for (row, column) in [(37, 0), (0, 6), (127, 7), (36, 7)] {
        let spoiled = spoil_padding(&right, "sq", row, column);
        assert_eq!(case.wrong(&spoiled), ["sq"], "({row}, {column})");
        let compared = case.compare(&spoiled);
        let worst = compared.iter().find_map(|compared| compared.comparison.worst.as_ref()).expect("one");
        assert_eq!((worst.index.as_slice(), worst.got), (&[row, column][..], 56.0));
    }
}

#[test]
fn only_what_follows_from_an_inexact_function_is_inexact() {
    let epilogue = "  %r = relu %p : tensor<MN, f32>
  %h = tanh %r : tensor<MN, f32>
  %q, %sq = block_quantize %r, %g {block = 16} : tensor<MN, f4E2M1FN>, tensor<[37, 6], f8E4M3FN, blocked>
  %t, %st = block_quantize %h, %g {block = 16} : tensor<MN, f4E2M1FN>, tensor<[37, 6], f8E4M3FN, blocked>
  %peak = reduce %h {axes = [0, 1], kind = amax} : tensor<[], f32>
";
    let case = Case::new(epilogue, "%p, %q, %sq, %t, %st, %peak", Rule::Exact);
    let right = case.right();
    let compared = case.compare(&right);
    let rule = |name: &str| {
        let of = compared.iter().find(|compared| compared.value == case.value(name)).expect(name);
        assert!(of.comparison.ok, "{name}");
        of.rule.as_str()
    };
    assert_eq!(["p", "q"].map(rule), [BIT_EQUAL; 2]);
    assert_eq!(rule("sq"), "bit-equal, zero padding");
    assert_eq!(rule("t"), "codes of 4 ulp of f32, 1 in 50 moved");
    assert_eq!(rule("st"), "scales of 4 ulp of f32, 1 in 50 moved, zero padding");
    assert_eq!(rule("peak"), "4 ulp of f32");
    let by = |factor: f64| move |values: &mut Vec<f64>| values[0] *= factor;
    assert!(case.wrong(&change(&right, "peak", by(1.0 + 1e-7))).is_empty());
    assert_eq!(case.wrong(&change(&right, "peak", by(1.0 + 2e-6))), ["peak"]);
}

#[test]
fn inexact_outputs_are_bounded_each_by_its_own_rule() {
    let case = Case::new(MANY, MANY_RESULTS, Rule::Normal);
    let (right, off) = (case.right(), case.off(0.1));
    assert!(case.wrong(&right).is_empty());
    assert_eq!(case.wrong(&off), Vec::<&str>::new(), "as far off as sums are");
    assert_eq!(case.wrong(&case.off(0.9)), ["y"], "more bf16 roundings move than a right kernel moves");

    for (name, factor) in [("p", 1.01), ("peak", 1.001), ("row", 1.01), ("column", 0.99), ("y", 1.1)] {
        let by = |values: &mut Vec<f64>| values.iter_mut().for_each(|value| *value *= factor);
        assert_eq!(case.wrong(&change(&right, name, by)), [name]);
        let nothing = |values: &mut Vec<f64>| values.iter_mut().for_each(|value| *value = f64::NAN);
        assert_eq!(case.wrong(&change(&right, name, nothing)), [name]);
    }
    // max differs from amax where the largest magnitude is that of a negative element.
    let values = case.written(|_, sum| sum.iter().map(|value| -value).collect());
    assert!(case.wrong(&values).contains(&"row"));

    // A code is wrong by one in its last bit although its value is nowhere near the middle of two.
    let codes = right["q"].to_codes();
    let sixes = codes.iter().filter(|code| **code == 7).count();
    let at = codes.iter().position(|code| *code == 7).expect("the largest of a block");
    assert_eq!(case.wrong(&change_codes(&right, "q", |codes| codes[at] = 6)), ["q"]);
    assert!(sixes > 100);
    assert_eq!(case.wrong(&change_codes(&right, "q", |codes| codes[at] = 0xF)), ["q"], "its sign");
    let scaled = change_codes(&right, "sq", |scales| scales[7] += 1);
    assert_eq!(case.wrong(&scaled), ["q", "sq"], "another scale, and codes that are not of it");
    let all = change_codes(&right, "sq", |scales| scales.iter_mut().for_each(|scale| *scale += 8));
    assert!(case.wrong(&all).contains(&"sq"));
    assert_eq!(case.wrong(&spoil_padding(&right, "sq", 99, 3)), ["sq"]);
    let poisoned = change_codes(&right, "q", |codes| codes[2000..2032].fill(0xF));
    assert_eq!(case.wrong(&poisoned), ["q"], "a block that was not written");
}

#[test]
fn errors_of_a_sum_move_codes_and_few_of_them() {
    let mut case = Case::new(MANY, MANY_RESULTS, Rule::Normal);
    let (mut moved, mut differ) = (0, 0);
    for seed in 0..12 {
        case.sample(seed);
        let (right, far) = (case.right(), case.off(0.9));
        for compared in case.compare(&far) {
            if compared.want.element().storage_bits() <= 8 {
                assert!(compared.comparison.ok, "{}", compared.rule);
                moved += compared.comparison.moved_roundings;
            }
        }
        let codes = right["q"].to_codes().into_iter().zip(far["q"].to_codes());
        differ += codes.filter(|(right, far)| right != far).count();
    }
    assert!(moved > 0 && differ > 0, "{moved} {differ}");
}

#[test]
fn a_kernel_that_quantizes_by_another_formula_is_wrong() {
    let case = Case::new(MANY, MANY_RESULTS, Rule::Normal);
    let right = case.right();
    // The per-tensor scale is left out, or is another one.
    for g in [1.0f32, 0.0124] {
        let mut other = Case::new(MANY, MANY_RESULTS, Rule::Normal);
        other.tensors.insert("g".to_owned(), Tensor::from_f32(vec![], &[g]).expect("a scalar"));
        let other = other.right();
        let mut written = right.clone();
        for name in ["q", "sq"] {
            written.insert(name.to_owned(), other[name].clone());
        }
        assert!(case.wrong(&written).contains(&"sq"), "g = {g}");
    }
    // The scales are those of the rows below.
    let shifted = change_codes(&right, "sq", |scales| scales.rotate_left(6));
    assert!(case.wrong(&shifted).contains(&"sq"));
}

#[test]
fn mx_blocks_are_compared_by_the_same_rules() {
    for (element, rounding) in [
        ("f4E2M1FN", "floor"),
        ("f4E2M1FN", "ceil"),
        ("f8E4M3FN", "floor"),
        ("f8E4M3FN", "ceil"),
        ("f8E5M2", "floor"),
        ("f8E5M2", "ceil"),
    ] {
        let epilogue = format!(
            "  %h = convert %p : tensor<MN, bf16>
  %q, %sq = block_quantize %h {{block = 32, scale_rounding = {rounding}}} : tensor<MN, {element}>, tensor<[37, 3], f8E8M0FNU, blocked>
"
        );
        for rule in [Rule::Exact, Rule::Normal] {
            let case = Case::new(&epilogue, "%q, %sq", rule);
            let right = case.right();
            let name = format!("{element} {rounding} {rule:?}");
            assert!(case.wrong(&right).is_empty(), "{name}");
            if rule == Rule::Normal {
                assert_eq!(case.wrong(&case.off(0.9)), Vec::<&str>::new(), "{name}");
            }
            assert_eq!(case.wrong(&change_codes(&right, "sq", |scales| scales[50] += 1)).last(), Some(&"sq"));
            assert_eq!(case.wrong(&spoil_padding(&right, "sq", 0, 3)), ["sq"], "{name}");
            // The sign of an element far from zero is wrong.
            let sign = if element == "f4E2M1FN" { 0x8 } else { 0x80 };
            let codes = right["q"].to_codes();
            let at = (0..codes.len()).max_by_key(|at| codes[*at] & (sign - 1)).expect("codes");
            assert_eq!(case.wrong(&change_codes(&right, "q", |codes| codes[at] ^= sign)), ["q"], "{name}");
            assert_eq!(case.wrong(&change_codes(&right, "q", |codes| codes[at] -= 1)), ["q"], "{name}");
        }
        let other = if rounding == "floor" { "ceil" } else { "floor" };
        let case = Case::new(&epilogue, "%q, %sq", Rule::Normal);
        let other = Case::new(&epilogue.replace(rounding, other), "%q, %sq", Rule::Normal).right();
        assert!(case.wrong(&other).contains(&"sq"), "{element} {rounding}");
    }
}

#[test]
fn steps_and_values_of_eight_bits_are_followed() {
    for element in ["f8E4M3FN", "f8E5M2"] {
        let epilogue = format!(
            "  %n = convert %p : tensor<MN, {element}>
  %back = convert %n : tensor<MN, f32>
  %y = add %back, %bias : tensor<MN, f32>
"
        );
        let exact = Case::new(&epilogue, "%n, %y", Rule::Exact);
        let right = exact.right();
        assert!(
            exact.compare(&right).iter().all(|compared| compared.rule == BIT_EQUAL && compared.comparison.ok)
        );
        let case = Case::new(&epilogue, "%n, %y", Rule::Normal);
        assert!(case.wrong(&case.right()).is_empty(), "{element}");
        assert_eq!(case.wrong(&case.off(0.9)), Vec::<&str>::new(), "{element}");
        for (case, right) in [(&exact, &right), (&case, &case.right())] {
            let codes = right["n"].to_codes();
            let largest = (0..codes.len()).max_by_key(|at| codes[*at] & 0x7F).expect("codes");
            let wrong = case.wrong(&change_codes(right, "n", |codes| codes[largest] -= 1));
            assert_eq!(wrong, ["n"], "{element}: one code");
            let wrong = case.wrong(&change_codes(right, "n", |codes| codes[largest] ^= 0x80));
            assert_eq!(wrong, ["n"], "{element}: a sign");
            let without = |values: &mut Vec<f64>| values[largest] += 1e-3 * values[largest].abs();
            assert_eq!(case.wrong(&change(right, "y", without)), ["y"], "{element}: not rounded on the way");
        }
    }
}

#[test]
fn sums_have_the_error_of_their_own_order() {
    let epilogue = "  %total = reduce %p {axes = [0, 1], kind = sum} : tensor<[], f32>
  %mean = reduce %p {axes = [1], kind = mean} : tensor<[37], f32>
  %least = reduce %p {axes = [0], kind = min} : tensor<[96], f32>
";
    for rule in [Rule::Exact, Rule::Normal] {
        let case = Case::new(epilogue, "%total, %mean, %least", rule);
        let right = case.right();
        assert!(case.wrong(&right).is_empty());
        let in_f32 = |values: &mut Vec<f64>| values[0] *= 1.0 + 1e-7;
        assert!(case.wrong(&change(&right, "mean", in_f32)).is_empty(), "{rule:?}");
        for (name, at) in [("total", 0), ("mean", 36), ("least", 95)] {
            let off = |values: &mut Vec<f64>| values[at] += values[at].abs() * 0.2 + 1.0;
            assert_eq!(case.wrong(&change(&right, name, off)), [name], "{rule:?}");
        }
    }
    let case = Case::new(epilogue, "%total, %mean, %least", Rule::Normal);
    assert!(case.wrong(&case.off(0.9)).is_empty());
}

#[test]
fn where_d_is_nan_every_output_shows_it() {
    let case = Case::new(MANY, MANY_RESULTS, Rule::Normal);
    let nan = case.written(|_, sum| vec![f64::NAN; sum.len()]);
    assert!(nan["sq"].to_codes().iter().all(|scale| *scale == 0x7F));
    let name = |value| case.program.module().name_of(value);
    let wrong = |written: &Written| -> Vec<&str> {
        let compared =
            case.with_run(|run| run.compare_nan(&|value| written.get(name(value))).expect("it is small"));
        assert_eq!(compared.len(), 7);
        compared.iter().filter(|c| !c.comparison.ok).map(|c| name(c.value)).collect()
    };
    assert!(wrong(&nan).is_empty());
    for name in ["p", "peak", "row", "column", "y"] {
        assert_eq!(wrong(&change(&nan, name, |values| values[0] = 1.0)), [name]);
    }
    assert_eq!(wrong(&change_codes(&nan, "q", |codes| codes[99] = 0xF)), ["q"]);
    assert_eq!(wrong(&change_codes(&nan, "sq", |scales| scales[99] = 0x7E)), ["sq"]);
    assert_eq!(wrong(&spoil_padding(&nan, "sq", 64, 6)), ["sq"]);
    let right = case.right();
    assert_eq!(wrong(&right).len(), 7, "nothing of it is NaN");
}

#[test]
fn a_value_that_was_not_kept_is_an_error() {
    let case = Case::new(MANY, MANY_RESULTS, Rule::Normal);
    let mut written = case.right();
    written.remove("sq");
    let name = |value| case.program.module().name_of(value);
    let error = case.with_run(|run| run.compare(&|value| written.get(name(value))).err()).expect("no scales");
    assert!(matches!(error, Error::NotKept(value) if value == "sq"));
}
