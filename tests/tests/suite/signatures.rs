//! Compares the signature in a kernel's metadata with that of its plan, which is checked before each launch: two
//! independent implementations.

use anyhow::{Context, Result, ensure};
use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::{KernelSpec, Role, specify, target};
use fourfold::ir::numeric::{CodeFormula, Nvfp4Formula};
use fourfold::ir::{
    BinaryKind, Dim, ElementType, Op, OperandShape, Program, ReduceKind, ScaleRounding, SymbolValues,
    UnaryKind, Value,
};
use fourfold::kernels::planned_kernels;
use fourfold::scheduler::{
    EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, KernelOutput, OutputKind, Plan, ScaledMmaPlan,
};

#[test]
fn the_generator_and_the_executor_agree_on_every_signature() -> Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for target in ["sm_100a", "sm_121a"] {
        let backend = fourfold_tests::backend(target)?;
        for file in fourfold_tests::fixtures()? {
            let Ok((program, _)) = fourfold::ir::load(&std::fs::read_to_string(&file)?) else { continue };
            let planned = backend.plan(program);
            for kernel in planned_kernels(&planned, CutlassVersion::PINNED, false) {
                let plan = planned.partition().segments[kernel.segment].plan().context("a plan")?;
                let signature = plan.signature(planned.program());
                ensure!(agree(&kernel.spec, plan), "{}: {:?}", file.display(), kernel.spec.interface());
                let stated = format!("\\\"signature\\\":\\\"{signature}\\\",");
                ensure!(kernel.source.text.contains(&stated), "{}: {signature}", file.display());
                seen.insert(signature);
            }
        }
    }
    ensure!(seen.len() >= 8, "the fixtures have too few kinds of kernels: {seen:?}");
    Ok(())
}

/// Every kind of output, once.
const PROGRAM: &str = "fir 1
func @outputs(
    %a: tensor<[37, 96], f4E2M1FN>, %sfa: tensor<[37, 6], f8E4M3FN, blocked>,
    param %b: tensor<[96, 96], f4E2M1FN>, param %sfb: tensor<[96, 6], f8E4M3FN, blocked>,
    %bias: tensor<[96], f32>, %g: tensor<[], f32>
) {
  %p = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 96], f32>
  %x = add %p, %bias : tensor<[37, 96], f32>
  %r = relu %x : tensor<[37, 96], f32>
  %h = convert %r : tensor<[37, 96], bf16>
  %e = convert %r : tensor<[37, 96], f8E5M2>
  %nv, %snv = block_quantize %x, %g {block = 16} : tensor<[37, 96], f4E2M1FN>, tensor<[37, 6], f8E4M3FN, blocked>
  %mx, %smx = block_quantize %h {block = 32, scale_rounding = floor} : tensor<[37, 96], f4E2M1FN>, tensor<[37, 3], f8E8M0FNU, blocked>
  %m8, %sm8 = block_quantize %p {block = 32, scale_rounding = ceil} : tensor<[37, 96], f8E4M3FN>, tensor<[37, 3], f8E8M0FNU, blocked>
  %peak = reduce %x {axes = [0, 1], kind = amax} : tensor<[], f32>
  %row = reduce %p {axes = [0], kind = max} : tensor<[96], f32>
  %column = reduce %r {axes = [1], kind = amax} : tensor<[37], f32>
  return %p, %h, %e, %nv, %snv, %mx, %smx, %m8, %sm8, %peak, %row, %column
}
";

/// Returns a plan with these outputs, and as many steps.
fn plan(program: &Program, steps: usize, outputs: Vec<KernelOutput>) -> ScaledMmaPlan {
    let module = program.module();
    let ops: Vec<Op> = module.ops.keys().collect();
    let value = |name: &str| program.facts().value_named(name).unwrap();
    let step = |op: usize, kind, operands: &[EpilogueRef], element| EpilogueStep {
        op: ops[op],
        kind,
        operands: operands.to_vec(),
        element,
    };
    let operand =
        |name: &str, shape| EpilogueOperand { value: value(name), shape, element: ElementType::F32 };
    let (sum, bias) = (EpilogueRef::Accumulator, EpilogueRef::Operand(0));
    let f32 = ElementType::F32;
    let mut epilogue = vec![
        step(1, EpilogueKind::Binary(BinaryKind::Add), &[sum, bias], f32),
        step(2, EpilogueKind::Unary(UnaryKind::Relu), &[EpilogueRef::Step(0)], f32),
        step(3, EpilogueKind::Convert, &[EpilogueRef::Step(1)], ElementType::BF16),
        step(4, EpilogueKind::Convert, &[EpilogueRef::Step(1)], ElementType::F8E5M2),
    ];
    epilogue.truncate(steps);
    let matmul = program.facts().matmul(ops[0]).unwrap();
    ScaledMmaPlan {
        root: ops[0],
        format: matmul.format,
        batch: Dim::fixed(1),
        m: Dim::fixed(37),
        n: Dim::fixed(96),
        k: Dim::fixed(96),
        b_batched: false,
        groups: None,
        a: value("a"),
        sfa: Some(value("sfa")),
        linear_sfa: false,
        b: value("b"),
        sfb: value("sfb"),
        alpha: None,
        c: None,
        beta: None,
        accumulator: f32,
        pair: None,
        operands: vec![operand("bias", OperandShape::Row), operand("g", OperandShape::Scalar)],
        epilogue,
        outputs,
        proof: Vec::new(),
        constraints: Vec::new(),
    }
}

/// Returns true if a kernel describes the roles of its plan, in the same order.
fn agree(spec: &KernelSpec, plan: &Plan) -> bool {
    let (interface, planned) = (spec.interface(), plan.roles());
    let extents = plan.extents(&SymbolValues::default());
    let names = |roles: &[(String, Value)]| roles.iter().map(|(role, _)| role.clone()).collect::<Vec<_>>();
    let described = |roles: &[Role]| roles.iter().map(|role| role.name.clone()).collect::<Vec<_>>();
    described(&interface.operands) == names(&planned.operands)
        && interface.scalars == names(&planned.scalars)
        && described(&interface.outputs) == names(&planned.outputs)
        && extents
            .is_none_or(|extents| extents.iter().map(|(name, _)| *name).eq(interface.extents.iter().copied()))
}

#[test]
fn every_kind_of_output_has_a_word_in_which_both_agree() -> Result<()> {
    use EpilogueRef::{Accumulator, Step};
    let (program, _) =
        fourfold::ir::load(PROGRAM).map_err(|errors| anyhow::anyhow!("{}", errors[0].message))?;
    let value = |name: &str| program.facts().value_named(name).unwrap();
    let op = |value: Value| program.module().defining_op(value).unwrap();
    let is = |of, name: &str| KernelOutput { of, kind: OutputKind::Value { value: value(name) } };
    let by = |of, [codes, scales]: [&str; 2], global, block, scale_rounding, formula| {
        let (codes, scales) = (value(codes), value(scales));
        let element = program.module().ty(codes).element;
        let op = op(codes);
        let kind =
            OutputKind::Quantized { op, codes, scales, global, element, block, scale_rounding, formula };
        KernelOutput { of, kind }
    };
    let blocks = |of, names: [&str; 2], global, block, scale_rounding| {
        by(of, names, global, block, scale_rounding, Nvfp4Formula::DEFAULT)
    };
    let unguarded =
        Nvfp4Formula { guard: false, codes: CodeFormula::ReciprocalStep, ..Nvfp4Formula::DEFAULT };
    let reduced = |of, name: &str, kind, shape| {
        let value = value(name);
        KernelOutput { of, kind: OutputKind::Reduced { op: op(value), value, kind, shape } }
    };
    let nv = ["nv", "snv"];
    let [floor, ceil, even] = [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even].map(Some);
    let cases = [
        (0, vec![is(Accumulator, "p")], "d=f32"),
        (2, vec![is(Accumulator, "p")], "d=f32@acc"),
        (3, vec![is(Step(2), "h")], "d=bf16"),
        (4, vec![is(Step(2), "h"), is(Step(3), "e")], "d=bf16@s2 d=f8E5M2"),
        (1, vec![blocks(Step(0), nv, Some(1), 16, None)], "q=f4E2M1FN:f8E4M3FN/16*x1"),
        (2, vec![blocks(Step(0), nv, Some(1), 16, None)], "q=f4E2M1FN:f8E4M3FN/16*x1@s0"),
        (1, vec![by(Step(0), nv, None, 16, None, unguarded)], "q=f4E2M1FN:f8E4M3FN/16:rstep_unguarded"),
        (3, vec![blocks(Step(2), ["mx", "smx"], None, 32, floor)], "q=f4E2M1FN:f8E8M0FNU/32:floor"),
        (1, vec![blocks(Accumulator, ["m8", "sm8"], None, 32, ceil)], "q=f8E4M3FN:f8E8M0FNU/32:ceil@acc"),
        (3, vec![blocks(Step(2), ["mx", "smx"], None, 32, even)], "q=f4E2M1FN:f8E8M0FNU/32:even"),
        (1, vec![reduced(Step(0), "peak", ReduceKind::Amax, OperandShape::Scalar)], "amax=scalar"),
        (1, vec![reduced(Accumulator, "row", ReduceKind::Max, OperandShape::Row)], "max=row@acc"),
        (3, vec![reduced(Step(1), "column", ReduceKind::Amax, OperandShape::Column)], "amax=column@s1"),
        (
            3,
            vec![
                is(Accumulator, "p"),
                is(Step(2), "h"),
                blocks(Step(0), nv, Some(1), 16, None),
                reduced(Step(0), "peak", ReduceKind::Amax, OperandShape::Scalar),
            ],
            "d=f32@acc d=bf16 q=f4E2M1FN:f8E4M3FN/16*x1@s0 amax=scalar@s0",
        ),
    ];
    for target_name in ["sm_100a", "sm_120a"] {
        let target = target(target_name).context("a target")?;
        for (steps, outputs, words) in &cases {
            let plan = plan(&program, *steps, outputs.clone());
            let plan = Plan::from(plan);
            let signature = plan.signature(&program);
            ensure!(signature == format!("nvfp4 row=f32 scalar=f32 {words}"), "{signature}");
            let (spec, _) =
                specify(&program, &plan, target, CutlassVersion::PINNED, None).context("a kernel")?;
            ensure!(spec.signature() == signature, "{}, not {signature}", spec.signature());
            let stated = format!("\\\"signature\\\":\\\"{signature}\\\",");
            ensure!(spec.emit().text.contains(&stated), "{signature}");
            ensure!(agree(&spec, &plan), "{:?}", spec.interface());
        }
    }
    Ok(())
}
