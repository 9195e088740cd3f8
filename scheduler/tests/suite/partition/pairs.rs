//! Epilogues that pair the even and the odd columns of a product, and the checker's verdict on wrong ones.

use fourfold_codegen::capabilities;
use fourfold_ir::{Capabilities, Program};
use fourfold_scheduler::{
    CheckError, EpilogueRef, OutputKind, Partition, Plan, ReasonCode, ScaledMmaPlan, SegmentKind, check,
    partition,
};

use super::support::op_named;

const INPUTS: &str = "%x: tensor<[M, 96], f4E2M1FN>, %sx: tensor<[M, 6], f8E4M3FN, blocked>, \
     %w: tensor<[64, 96], f4E2M1FN>, %sw: tensor<[64, 6], f8E4M3FN, blocked>, %c: tensor<[M, 64], bf16>, \
     %row: tensor<[32], bf16>, %wide: tensor<[64], bf16>, %global: tensor<[], f32>";

const BODY: &str = "  %d = scaled_mma %x, %sx, %w, %sw {block = 16} : tensor<[M, 64], f32>
  %g = slice %d {axes = [1], ends = [64], starts = [0], steps = [2]} : tensor<[M, 32], f32>
  %u = slice %d {axes = [1], ends = [64], starts = [1], steps = [2]} : tensor<[M, 32], f32>
  %b = add %g, %row : tensor<[M, 32], f32>
  %y = mul %b, %u : tensor<[M, 32], f32>
  %z = convert %y : tensor<[M, 32], bf16>
";

fn sm90() -> Capabilities {
    capabilities("sm_90a").expect("a target")
}

fn program(body: &str) -> Program {
    let source = format!("fir 1\nfunc @f({INPUTS}) {{\n{body}}}\n");
    match fourfold_ir::load(&source) {
        Ok((program, _)) => program,
        Err(errors) => {
            panic!("{}", errors.iter().map(|error| error.render("f", &source)).collect::<String>())
        }
    }
}

/// Partitions and proves the result with the checker.
#[track_caller]
fn planned(body: &str) -> (Program, Partition) {
    let program = program(body);
    let partition = partition(&program, &sm90());
    assert_eq!(check(&program, &sm90(), &partition), Ok(()));
    (program, partition)
}

#[track_caller]
fn kernel(partition: &Partition) -> &ScaledMmaPlan {
    let mut kernels = partition.kernels();
    let (_, plan) = kernels.next().expect("a kernel");
    assert!(kernels.next().is_none(), "one kernel");
    plan
}

#[test]
fn an_epilogue_combines_even_and_odd_columns() {
    let (program, partition) = planned(&format!("{BODY}  return %z\n"));
    let plan = kernel(&partition);
    let pair = plan.pair.as_ref().expect("a pair");
    assert_eq!((pair.even, pair.odd), (op_named(&program, "g"), op_named(&program, "u")));
    assert_eq!((plan.columns().as_fixed(), plan.n.as_fixed()), (Some(32), Some(64)));
    assert_eq!(plan.epilogue[1].operands, [EpilogueRef::Step(0), EpilogueRef::Odd]);
    assert_eq!(plan.ops().count(), 6);
    assert!(partition.decisions.iter().all(|decision| decision.rejection.is_none()));
    let signature = Plan::from(plan.clone()).signature(&program);
    assert_eq!(signature, "nvfp4 pair row=bf16 d=bf16");
    let names = ["scaled_mma-is-root", "even-columns-join", "odd-columns-join"];
    assert_eq!(plan.proof[..3], names);
}

#[test]
fn a_product_that_is_used_whole_or_in_other_parts_is_not_paired() {
    let is_paired = |body: String| {
        let (_, partition) = planned(&body);
        kernel(&partition).pair.is_some()
    };
    assert!(is_paired(format!("{BODY}  return %z\n")));
    assert!(is_paired(format!("{BODY}  return %z, %y\n")), "a step may be written");
    for body in [
        format!("{BODY}  return %z, %d\n"),
        format!("{BODY}  return %z, %u\n"),
        format!("{BODY}  %other = relu %d : tensor<[M, 64], f32>\n  return %z, %other\n"),
        format!(
            "{BODY}  %other = transpose %g {{permutation = [1, 0]}} : tensor<[32, M], f32>\n  return %z, %other\n"
        ),
        // The halves are not the even and the odd columns.
        format!("{BODY}  return %z\n")
            .replace("ends = [64], starts = [1], steps = [2]", "ends = [64], starts = [32]"),
        format!("{BODY}  return %z\n").replace("starts = [0], steps = [2]", "starts = [1], steps = [2]"),
        // C has the columns of the product.
        format!("{BODY}  return %z\n").replace("%sw {", "%sw, c = %c {"),
        // Nothing combines them.
        format!("{BODY}  return %g, %u\n"),
    ] {
        assert!(!is_paired(body.clone()), "{body}");
    }
    // A pair is a property of the target.
    let program = program(&format!("{BODY}  return %z\n"));
    for target in ["sm_100a", "sm_120a"] {
        let capabilities = capabilities(target).expect("a target");
        let partition = partition(&program, &capabilities);
        assert_eq!(check(&program, &capabilities, &partition), Ok(()));
        assert!(kernel(&partition).pair.is_none(), "{target}");
    }
}

#[test]
fn a_pair_is_quantized_in_blocks_of_16_if_m_is_small_or_a_host_takes_kernels_only() {
    let of = |m: &str, op: &str, scales: &str| {
        let results = format!("tensor<[M, 32], f4E2M1FN>, tensor<[M, {scales}, blocked>");
        let body = format!("{BODY}  %q, %s = block_quantize {op} : {results}\n  return %q, %s\n");
        let source = format!("fir 1\nfunc @f({INPUTS}) {{\n{body}}}\n").replace("[M,", &format!("[{m},"));
        let Ok((program, _)) = fourfold_ir::load(&source) else { panic!("{source}") };
        program
    };
    let quantized = |op: &str, scales: &str| of("M", op, scales);
    let fixed = [16, 17].map(|m| of(&m.to_string(), "%z, %global {block = 16}", "2], f8E4M3FN"));
    let nvfp4 = quantized("%z, %global {block = 16}", "2], f8E4M3FN");
    let mx = quantized("%z {block = 32, scale_rounding = floor}", "1], f8E8M0FNU");
    let kernels_only = Capabilities { block_quantize: None, device: Default::default(), ..sm90() };
    let cases = [
        (&nvfp4, &kernels_only, None),
        (&nvfp4, &sm90(), Some(ReasonCode::FasterAlone)),
        (&fixed[0], &sm90(), None),
        (&fixed[1], &sm90(), Some(ReasonCode::FasterAlone)),
        (&mx, &kernels_only, Some(ReasonCode::UnsupportedEpilogueOp)),
    ];
    for (program, capabilities, expected) in cases {
        let partition = partition(program, capabilities);
        assert_eq!(check(program, capabilities, &partition), Ok(()));
        let plan = kernel(&partition);
        assert!(plan.pair.is_some());
        let quantizes = matches!(plan.outputs[0].kind, OutputKind::Quantized { block: 16, .. });
        let op = op_named(program, "q");
        let rejection = &partition.decisions[fourfold_ir::Entity::index(op)].rejection;
        assert_eq!(rejection.as_ref().map(|rejection| rejection.code), expected, "{rejection:?}");
        assert_eq!(quantizes, expected.is_none());
    }
}

/// Applies a change to the correct plan and expects an error of the checker.
#[track_caller]
fn caught(change: impl FnOnce(&Program, &mut ScaledMmaPlan), expected: fn(&CheckError) -> bool) {
    let (program, mut partition) = planned(&format!("{BODY}  return %z\n"));
    let SegmentKind::Kernel(plan) = &mut partition.segments[0].kind else { panic!("a kernel") };
    let Plan::ScaledMma(plan) = &mut **plan else { panic!("a product") };
    let before = plan.clone();
    change(&program, plan);
    assert_ne!(*plan, before, "the change changes something");
    let errors = check(&program, &sm90(), &partition).expect_err("the checker notices");
    assert!(errors.iter().any(expected), "{errors:?}");
}

#[test]
fn the_checker_finds_wrong_pairs() {
    let is_shape = |error: &CheckError| matches!(error, CheckError::Shape { .. });
    let is_field = |error: &CheckError| matches!(error, CheckError::Field { .. });
    caught(|_, plan| plan.pair = None, is_shape);
    caught(|_, plan| plan.epilogue[1].operands.swap(0, 1), is_shape);
    caught(
        |_, plan| {
            let pair = plan.pair.as_mut().expect("a pair");
            std::mem::swap(&mut pair.even, &mut pair.odd);
        },
        is_shape,
    );
    caught(|program, plan| plan.pair.as_mut().expect("a pair").even = op_named(program, "b"), is_shape);
    caught(|_, plan| plan.pair.as_mut().expect("a pair").columns = plan.n.clone(), is_field);
    caught(|_, plan| plan.epilogue[1].operands[1] = EpilogueRef::Accumulator, is_shape);
    caught(|_, plan| plan.outputs[0].of = EpilogueRef::Odd, is_field);
    // A target without pairs.
    let (program, partition) = planned(&format!("{BODY}  return %z\n"));
    let mut without = sm90();
    without.formats.iter_mut().for_each(|format| format.pairs = None);
    let errors = check(&program, &without, &partition).expect_err("the target has no pairs");
    assert!(errors.iter().any(|error| matches!(error, CheckError::Capability { .. })), "{errors:?}");
}
