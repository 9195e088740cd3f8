//! What is held against what, where normalization changed the program and a kernel computed its outputs.

use fourfold_executor::RunOptions;
use fourfold_ir::sample::{self, Recipe};
use fourfold_ir::{UnaryKind, text, verify};

use super::*;
use crate::backend::{Backend, DeviceChoice, Options};
use crate::service::CompileOptions;

/// A conversion that vanishes, and two outputs.
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

/// A product that becomes a `scaled_mma`, where that is allowed.
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
    /// A run on the CPU that says of its kernels that they ran as such.
    fn new(source: &str, contract: bool) -> Case {
        let (program, _) = text::load(source).unwrap_or_else(|errors| panic!("{}", errors[0].message));
        let (target, device) = (Some("sm_120a".to_owned()), DeviceChoice::None);
        let backend = Backend::new(&Options { target, device, contract, ..Options::default() });
        let backend = backend.expect("a target");
        let recipe = Recipe { rule: Rule::Normal, seed: 7, symbols: Vec::new() };
        let tensors = sample::inputs(&program, &recipe).expect("inputs");
        let planned = backend.plan(program);
        assert!(planned.normalized().is_changed(), "{}", text::print(planned.program().module()));
        let compiled = backend.compile(planned.clone(), &CompileOptions::default(), &|_| {});
        let bound = bind::bind(planned.program(), &tensors).expect("they fit");
        let options = RunOptions { keep_all: true, ..RunOptions::default() };
        let mut run = compiled.run_normalized(&bound, &options).expect("it runs");
        for (segment, _) in planned.partition().kernels() {
            run.segments[segment].ran = Ran::Kernel;
        }
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

    /// The normalized program, but that it negates where it should rectify.
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

        // What ran is what the kernels stand for, but not the program.
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
