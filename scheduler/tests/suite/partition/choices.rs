//! Choices by an extent: their plans, and plans with one defect each, which the checker reports.

use fourfold_ir::{Program, SymbolValues};
use fourfold_scheduler::{
    CheckError, ChoosePlan, Partition, Plan, ReasonCode, SegmentKind, check, partition,
};

const PROGRAM: &str = "fir 1
func @f(%x: tensor<[M, 2*S], f32>, %y: tensor<[M, 2*S], f32>) {
  %a = neg %x : tensor<[M, 2*S], f32>
  %z = choose %a, %y, %a {axis = 1, ends = [8, 17]} : tensor<[M, 2*S], f32>
  return %z
}
";

fn planned() -> (Program, Partition) {
    let (program, _) = fourfold_ir::load(PROGRAM).expect("a valid program");
    let partition = partition(&program, &capabilities());
    assert_eq!(check(&program, &capabilities(), &partition), Ok(()));
    (program, partition)
}

fn capabilities() -> fourfold_ir::Capabilities {
    fourfold_codegen::capabilities("sm_90a").expect("a known target")
}

fn choice(partition: &mut Partition) -> &mut ChoosePlan {
    match &mut partition.segments[1].kind {
        SegmentKind::Kernel(plan) => match &mut **plan {
            Plan::Choose(plan) => plan,
            other => panic!("{other:?} is no choice"),
        },
        SegmentKind::Fallback => panic!("the choice runs on the fallback"),
    }
}

#[test]
fn an_extent_chooses_the_first_operand_whose_end_is_at_least_as_large() {
    let (program, mut partition) = planned();
    let module = program.module();
    assert_eq!(partition.decisions[1].rejection.as_ref().map(|it| it.code), Some(ReasonCode::Choice));
    let plan = choice(&mut partition).clone();
    let symbol = |name: &str| module.symbols.iter().find(|(_, it)| *it == name).expect(name).0;
    let mut symbols = SymbolValues::default();
    symbols.set(symbol("M"), 1000);
    assert_eq!(plan.chosen(&symbols), None, "S is unknown");
    for (s, operand) in [(0, 0), (4, 0), (5, 1), (8, 1), (9, 2), (1 << 40, 2)] {
        symbols.set(symbol("S"), s);
        assert_eq!(plan.chosen(&symbols), Some(plan.operands[operand]), "{s}");
        assert_eq!(plan.view(&symbols).map(|view| view.operand), plan.chosen(&symbols));
    }
}

#[test]
fn a_wrong_choice_is_noticed() {
    let caught = |change: fn(&mut ChoosePlan)| {
        let (program, mut partition) = planned();
        change(choice(&mut partition));
        let errors = check(&program, &capabilities(), &partition).expect_err("the checker notices");
        assert!(
            errors.iter().any(|error| matches!(error, CheckError::Shape { segment: 1, .. })),
            "{errors:?}"
        );
    };
    caught(|plan| plan.ends[0] = 7);
    caught(|plan| plan.operands.swap(0, 1));
    caught(|plan| plan.operands.truncate(2));
    caught(|plan| plan.extent = plan.extent.times(&fourfold_ir::Dim::fixed(2)).expect("an extent"));
    caught(|plan| plan.result = plan.operands[0]);

    let (program, mut partition) = planned();
    let mut without = capabilities();
    without.device.moves = None;
    let errors = check(&program, &without, &partition).expect_err("the checker notices");
    assert!(errors.iter().any(|error| matches!(error, CheckError::Capability { segment: 1, .. })));
    partition.decisions[1].rejection.as_mut().expect("a reason").code = ReasonCode::NoScaledMmaProducer;
    let errors = check(&program, &capabilities(), &partition).expect_err("the checker notices");
    assert!(matches!(errors[..], [CheckError::Reason { .. }]), "{errors:?}");
}
