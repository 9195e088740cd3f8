//! Comparisons where normalization changed the program and a kernel computed its outputs.

use fourfold::{Backend, CompileOptions, DeviceChoice, Options};
use fourfold_executor::RunOptions;
use fourfold_ir::sample::{self, Recipe};
use fourfold_ir::{ElementType, OpKind, ScaleLayout, UnaryKind, bind, interpret, text, verify};

use super::*;

/// A conversion that normalization removes, and two outputs.
const TWICE: &str = "fir 1
func @f(
    %a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[96, 96], f4E2M1FN>, param %sfb: tensor<[96, 6], f8E4M3FN, blocked>
) {
  %p = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 96], f32>
  %x = convert %p : tensor<[37, 96], f32>
  %r = relu %x : tensor<[37, 96], f32>
  %s = convert %r : tensor<[37, 96], bf16>
  return %r, %s
}
";

/// A product that becomes a `scaled_mma` if contraction is allowed.
const DEQUANTIZED: &str = "fir 1
func @f(
    %a: tensor<[37, 96], f4E2M1FN>, %sa: tensor<[37, 6], f8E4M3FN, linear>, %g: tensor<[], f32>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sb: tensor<[72, 6], f8E4M3FN, linear>
) {
  %x = block_dequantize %a, %sa, %g {block = 16} : tensor<[37, 96], f32>
  %w = block_dequantize %b, %sb {block = 16} : tensor<[72, 96], f32>
  %p = mma %x, %w : tensor<[37, 72], f32>
  %r = relu %p : tensor<[37, 72], f32>
  return %r
}
";

struct Case {
    planned: Planned,
    inputs: Inputs,
    run: Run,
}

impl Case {
    /// A run on the CPU whose kernels are marked as having run.
    fn new(source: &str, contract: bool) -> Case {
        let mut case = Case::on_cpu(source, contract, &[]);
        for (segment, _) in case.planned.partition().kernels() {
            case.run.segments[segment].ran = Ran::Kernel;
        }
        case
    }

    /// A run on the CPU, on seeded inputs except for the given ones.
    fn on_cpu(source: &str, contract: bool, given: &[(&str, Tensor)]) -> Case {
        let (program, _) = fourfold_ir::load(source).unwrap_or_else(|errors| panic!("{}", errors[0].message));
        let (target, device) = (Some("sm_120a".to_owned()), DeviceChoice::None);
        let backend =
            Backend::new(&Options::default().maybe_target(target).device(device).contract(contract));
        let backend = backend.expect("a target");
        let recipe = Recipe { rule: Rule::Normal, seed: 7, symbols: Vec::new() };
        let mut tensors = sample::inputs(&program, &recipe).expect("inputs");
        tensors.extend(given.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone())));
        let planned = backend.plan(program);
        assert!(planned.normalized().is_changed(), "{}", text::print(planned.program().module()));
        let compiled = backend.compile(planned.clone(), &CompileOptions::default(), &|_| {});
        let bound = bind::bind(planned.program(), &tensors).expect("they fit");
        let options = RunOptions::default().keep_all(true);
        let run = compiled.run_normalized(&bound, &options).expect("it runs");
        Case { planned, inputs: Inputs::Sampled { recipe, tensors }, run }
    }

    fn compared(&self) -> Vec<OutputReport> {
        let (tensors, _) = self.inputs.tensors();
        let bound = bind::bind(self.planned.program(), tensors).expect("they fit");
        let header = Header::default();
        let comparer = Comparer::new(&self.planned, &header, &self.inputs, &bound, &self.run);
        let mut notes = Vec::new();
        let reports = comparer.compare_all(&self.inputs, Scope::Outputs, &mut notes).expect("it is small");
        assert_eq!(notes, Vec::<String>::new());
        reports
    }

    /// The normalized program, with negation in place of relu.
    fn wrong(&self) -> Program {
        let mut module = self.planned.program().module().clone();
        let relu = module.ops.keys().find(|op| module.ops[*op].kind == OpKind::Unary(UnaryKind::Relu));
        module.ops[relu.expect("a relu")].kind = OpKind::Unary(UnaryKind::Neg);
        verify(module).unwrap_or_else(|_| panic!("it is of the same types"))
    }
}

#[test]
fn each_output_of_a_kernel_has_a_row_of_its_own_and_one_of_its_normalization() {
    let reports = Case::new(TWICE, false).compared();
    let rows: Vec<(&str, &str, bool)> =
        reports.iter().map(|report| (report.name.as_str(), report.source, report.ok)).collect();
    assert_eq!(
        rows,
        [("r", "run", true), ("s", "run", true), ("r", "interpreter", true), ("s", "interpreter", true),]
    );
    assert!(reports[..2].iter().all(|report| !report.rule.starts_with(NORMALIZED)));
    assert!(reports[2..].iter().all(|report| report.rule == "normalized against original: bit-equal"));
}

#[test]
fn a_program_that_was_normalized_wrongly_is_seen_though_its_kernels_are_right() {
    for (source, contract) in [(TWICE, false), (DEQUANTIZED, true)] {
        let case = Case::new(source, contract);
        let is_contracted = case.planned.normalized().contracted().next().is_some();
        assert_eq!(is_contracted, contract);
        let right = case.compared();
        assert!(right.iter().all(|report| report.ok), "{right:?}");
        let rule = if contract { "1e-5 of the largest" } else { BIT_EQUAL };
        let wanted = format!("{NORMALIZED}: {rule}");
        assert!(right.iter().any(|report| report.rule == wanted), "{right:?}");

        // The run agrees with the kernels' ops but not with the program.
        let wrong = case.wrong();
        let (tensors, _) = case.inputs.tensors();
        let bound = bind::bind(&wrong, tensors).expect("they fit");
        let values = interpret(&wrong, &bound).expect("it is small");
        let mut run = case.run.clone();
        run.values = values.into_iter().map(Some).collect();
        let header = Header::default();
        let mut comparer = Comparer::new(&case.planned, &header, &case.inputs, &bound, &run);
        comparer.program = &wrong;
        let reports =
            comparer.compare_all(&case.inputs, Scope::Outputs, &mut Vec::new()).expect("it is small");
        let wrong: Vec<&OutputReport> = reports.iter().filter(|report| !report.ok).collect();
        assert!(!wrong.is_empty(), "{reports:?}");
        assert!(wrong.iter().all(|report| report.rule == wanted), "{wrong:?}");
    }
}

/// The result of `body` for `%x`, which follows a product that is zero where the codes of `%a` are.
fn behind_product(element: &str, body: &str) -> String {
    format!(
        "fir 1
func @f(
    %a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>, %given: tensor<[37, 72], T>
) {{
  %p = scaled_mma %a, %sfa, %b, %sfb {{block = 16}} : tensor<[37, 72], T>
  %x = add %p, %given : tensor<[37, 72], T>
{body}  return %y
}}
"
    )
    .replace(", T>", &format!(", {element}>"))
    .replace("<[], T", &format!("<[], {element}"))
}

const GELU: &str = "  %one = constant {value = 1} : tensor<[], T>
  %half = constant {value = 0.5} : tensor<[], T>
  %root = constant {value = 1.4142135} : tensor<[], T>
  %v = div %x, %root : tensor<[37, 72], T>
  %e = erf %v : tensor<[37, 72], T>
  %g = add %one, %e : tensor<[37, 72], T>
  %h = mul %half, %x : tensor<[37, 72], T>
  %y = mul %h, %g : tensor<[37, 72], T>
";

const SILU: &str = "  %s = sigmoid %x : tensor<[37, 72], T>\n  %y = mul %x, %s : tensor<[37, 72], T>\n";

fn behind_zero(element: ElementType, body: &str, given: impl Fn(usize) -> f64) -> Case {
    let given: Vec<f64> = (0..37 * 72).map(given).collect();
    let given = Tensor::from_f64(element, vec![37, 72], None, &given).expect("the shape");
    let zeros = Tensor::from_f64(ElementType::F4E2M1FN, vec![37, 96], None, &vec![0.0; 37 * 96]);
    let source = behind_product(element.name(), body);
    Case::on_cpu(&source, true, &[("given", given), ("a", zeros.expect("the shape"))])
}

impl Case {
    /// Returns the report of the only output if the run computed `got` for it.
    fn changed(&self, change: impl Fn(&mut Vec<f64>)) -> OutputReport {
        let mut run = self.run.clone();
        let output = self.planned.program().module().outputs[0];
        let got = run.values[output.index()].as_mut().expect("an output is kept");
        let mut values = got.to_f64();
        change(&mut values);
        *got = Tensor::from_f64(got.element(), got.dims().to_vec(), None, &values).expect("the shape");
        let Inputs::Sampled { recipe, tensors } = &self.inputs else { panic!("they are seeded") };
        let inputs = Inputs::Sampled { recipe: recipe.clone(), tensors: tensors.clone() };
        let mut reports = Case { planned: self.planned.clone(), inputs, run }.compared();
        assert_eq!(reports.len(), 1, "{reports:?}");
        reports.remove(0)
    }
}

/// In bf16, 1 + erf(x/√2) has hardly a correct digit where x is about -3; gelu has all of them.
#[test]
fn what_contraction_moves_is_right_and_what_it_does_not_is_wrong() {
    let case = behind_zero(ElementType::BF16, GELU, |index| -4.0 + index as f64 / 2664.0);
    let right = case.changed(|_| {});
    assert!(right.ok && right.rule.ends_with("of the largest, or the effect of contraction"), "{right:?}");
    for factor in [3.0, -1.0, f64::NAN, f64::INFINITY] {
        let wrong = case.changed(|values| values[2000] *= factor);
        assert!(!wrong.ok && wrong.mismatches == 1, "{factor}: {wrong:?}");
    }
}

#[test]
fn contraction_makes_no_number_of_a_nan() {
    for (element, body) in [(ElementType::F32, SILU), (ElementType::F16, SILU), (ElementType::F32, GELU)] {
        let special = |index: usize| match index % 72 {
            3 => f64::NEG_INFINITY,
            5 => f64::INFINITY,
            7 => f64::NAN,
            _ => index as f64 / 300.0 - 4.0,
        };
        let case = behind_zero(element, body, special);
        let right = case.changed(|_| {});
        assert!(right.ok, "{right:?}");
        for (index, value) in [(3, -0.0), (3, f64::NEG_INFINITY), (5, 65_504.0), (7, 0.0), (0, f64::NAN)] {
            let wrong = case.changed(|values| values[index] = value);
            assert_eq!((wrong.ok, wrong.mismatches), (false, 1), "{value} at {index}: {wrong:?}");
        }
    }
}

/// Elements that were rounded to bf16, and a sum that grows exponentially.
const GROWING: &str = "fir 1
func @f(
    %a: tensor<[37, 96], f4E2M1FN>, %sa: tensor<[37, 6], f8E4M3FN, linear>, %g: tensor<[], f32>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sb: tensor<[72, 6], f8E4M3FN, linear>
) {
  %x = block_dequantize %a, %sa, %g {block = 16} : tensor<[37, 96], bf16>
  %w = block_dequantize %b, %sb {block = 16} : tensor<[72, 96], bf16>
  %p = mma %x, %w : tensor<[37, 72], f32>
  %y = exp %p : tensor<[37, 72], f32>
  return %y
}
";

#[test]
fn what_contraction_moves_is_carried_on_and_what_is_beyond_its_range_is_said() {
    // The product of these codes and scales is 1.5 · 1.5 · 96 = 216 times the factor.
    let given = |factor: f32| {
        let codes =
            |rows: usize| Tensor::from_codes(ElementType::F4E2M1FN, vec![rows, 96], None, vec![3; rows * 96]);
        let scales = |rows: usize| {
            let ones = vec![0x38; rows * 6];
            Tensor::from_codes(ElementType::F8E4M3FN, vec![rows, 6], Some(ScaleLayout::Linear), ones)
        };
        [
            ("a", codes(37).expect("the shape")),
            ("sa", scales(37).expect("the shape")),
            ("b", codes(72).expect("the shape")),
            ("sb", scales(72).expect("the shape")),
            ("g", Tensor::from_f32(vec![], &[factor]).expect("a number")),
        ]
    };
    // Rounding 1.5 · 0.37 changes it by 2^-10.3 of itself, in the same direction each time: a factor of e^(0.06).
    let case = Case::on_cpu(GROWING, true, &given(0.37));
    let right = case.changed(|_| {});
    assert!(right.ok && right.rule.ends_with(", or the effect of contraction"), "{right:?}");
    let wrong = case.changed(|values| values[9] *= 100.0);
    assert_eq!((wrong.ok, wrong.mismatches), (false, 1), "{wrong:?}");

    // 1.5 · g overflows in bf16; the product with g contracted does not.
    let beyond = Case::on_cpu(GROWING, true, &given(3e38));
    let infinite = beyond.changed(|values| values[9] = 1.0);
    assert!(
        !infinite.ok && infinite.rule.ends_with("(1 outside the range that its rules assume)"),
        "{infinite:?}"
    );
}
