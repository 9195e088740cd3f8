//! Partitions with one defect each: the checker reports each.

use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, Capabilities, Dim, ElementType, Entity, FormatCapability, Module, Op,
    OperandShape, Program, ReduceKind, ScaleRounding, ScaledMmaOptions, TensorType, UnaryKind, Value,
};
use fourfold_scheduler::{
    CheckError, Constraint, Decision, EpilogueKind, EpilogueRef, OutputKind, Partition, Plan, ReasonCode,
    Rejection, ScaledMmaPlan, Segment, SegmentKind, check,
};

use super::support::*;

use ElementType::{BF16, F16, F32};

/// Segments: 0, softmax (fallback); 1, a batched kernel with everything; 2, softmax and quantize (fallback);
/// 3, a kernel; and a plain `mma`.
fn program() -> Program {
    let mut builder = Builder::new("program");
    let l = Dim::fixed(3);
    let m = builder.symbol("M");
    let [j, s] = ["J", "S"].map(|name| builder.symbol(name));
    let n = Dim::product(16, j.symbols().to_vec());
    let k = Dim::product(16, s.symbols().to_vec());
    let shape = vec![l.clone(), m.clone(), n.clone()];
    let global = builder.input("g", tensor(&[], F32));
    let alpha = builder.input("alpha", tensor(&[], F32));
    let beta = builder.input("beta", tensor(&[], F32));
    let c_in = builder.input("c_in", TensorType::new(shape, F32));
    let bias = builder.param("bias", TensorType::new(vec![n.clone()], BF16));
    let other_bias = builder.param("other_bias", TensorType::new(vec![n.clone()], F32));
    let c = softmax(&mut builder, "c", c_in);
    let options = ScaledMmaOptions { alpha: Some(alpha), c: Some(c), beta: Some(beta) };
    let gemm =
        Gemm { batch: vec![l.clone()], b_batch: vec![l], n: n.clone(), k, options, ..Gemm::new(m, 0, 0) };
    let d = gemm.build(&mut builder, "d");
    let biased = builder.binary("biased", BinaryKind::Add, d, bias);
    let y = builder.unary("y", UnaryKind::Silu, biased);
    let out = builder.convert("out", y, BF16);
    let blocks = quantize(&mut builder, "blocks", out, global);
    let largest = reduce(&mut builder, "largest", ReduceKind::Max, &[2], y);
    let soft = softmax(&mut builder, "soft", out);
    let [q, s] = quantize(&mut builder, "out", soft, global);
    let w = Gemm { n: Dim::fixed(56), k: n, ..Gemm::new(Dim::fixed(1), 0, 0) };
    let w = Gemm { batch: vec![Dim::fixed(3)], b_batch: vec![Dim::fixed(3)], ..w };
    let [_, _, b, sfb] = w.inputs(&mut builder, "w");
    let e = builder.scaled_mma("e", q, s, b, sfb, 16, F32, ScaledMmaOptions::default());
    let p = builder.input("p", tensor(&[9, 72], F16));
    let plain = builder.mma("plain", p, p, F32);
    let rows = builder.unary("rows", UnaryKind::Relu, other_bias);
    verified(builder.finish(&[e, plain, rows, blocks[0], blocks[1], largest]))
}

fn base() -> (Program, Partition) {
    let program = program();
    let partition = fourfold_scheduler::partition(&program, &blackwell());
    assert_eq!(check(&program, &blackwell(), &partition), Ok(()));
    assert_eq!(partition.segments.len(), 4, "{}", text(&program, &partition));
    (program, partition)
}

fn plan_mut(partition: &mut Partition, segment: usize) -> &mut ScaledMmaPlan {
    match &mut partition.segments[segment].kind {
        SegmentKind::Kernel(plan) => match &mut **plan {
            Plan::ScaledMma(plan) => plan,
            _ => panic!("segment {segment} quantizes"),
        },
        SegmentKind::Fallback => panic!("segment {segment} is no kernel"),
    }
}

fn is_boundary(error: &CheckError) -> bool {
    matches!(error, CheckError::Boundary { .. })
}

fn is_shape(error: &CheckError) -> bool {
    matches!(error, CheckError::Shape { segment: 1, .. })
}

fn is_field(field: &'static str) -> impl Fn(&CheckError) -> bool {
    move |error| matches!(error, CheckError::Field { segment: 1, field: found, .. } if *found == field)
}

/// Applies a change to the correct partition and expects an error of this kind.
#[track_caller]
fn caught(change: impl FnOnce(&Program, &mut Partition), expected: impl Fn(&CheckError) -> bool) {
    let (program, mut partition) = base();
    let correct = partition.clone();
    change(&program, &mut partition);
    assert_ne!(partition, correct, "the change changes something");
    let errors = check(&program, &blackwell(), &partition).expect_err("the checker notices");
    assert!(errors.iter().any(expected), "{errors:?}");
    for error in errors {
        assert!(!error.to_string().is_empty());
    }
}

fn op(program: &Program, name: &str) -> Op {
    op_named(program, name)
}

fn value(program: &Program, name: &str) -> Value {
    program.facts().value_named(name).expect(name)
}

/// Moves an op and its decision.
fn move_op(partition: &mut Partition, op: Op, to: usize) {
    for segment in &mut partition.segments {
        segment.ops.retain(|other| *other != op);
    }
    partition.segments[to].ops.push(op);
    partition.segments[to].ops.sort_unstable();
    partition.decisions[op.index()].segment = to;
}

#[test]
fn an_op_in_another_segment() {
    caught(|program, partition| move_op(partition, op(program, "out"), 2), is_shape);
    caught(|program, partition| move_op(partition, op(program, "rows"), 1), is_shape);
    caught(|program, partition| move_op(partition, op(program, "plain"), 1), is_shape);
    caught(|program, partition| move_op(partition, op(program, "e"), 1), is_shape);
    caught(|program, partition| move_op(partition, op(program, "d"), 0), is_shape);
    let not_runnable = |error: &CheckError| matches!(error, CheckError::NotRunnable { segment: 1, .. });
    caught(|program, partition| move_op(partition, op(program, "c"), 2), not_runnable);
}

#[test]
fn segments_in_another_order() {
    for (first, second, waiting) in [(0, 1, 0), (1, 2, 1), (2, 3, 2)] {
        caught(
            |_, partition| {
                partition.segments.swap(first, second);
                for decision in &mut partition.decisions {
                    decision.segment = match decision.segment {
                        segment if segment == first => second,
                        segment if segment == second => first,
                        segment => segment,
                    };
                }
            },
            |error| matches!(error, CheckError::NotRunnable { segment, .. } if *segment == waiting),
        );
    }
}

#[test]
fn an_op_missing_doubled_unknown_or_out_of_order() {
    caught(
        |_, partition| {
            partition.segments[2].ops.pop();
        },
        |error| matches!(error, CheckError::Cover { count: 0, .. }),
    );
    caught(
        |program, partition| partition.segments[3].ops.insert(0, op(program, "c")),
        |error| matches!(error, CheckError::Cover { count: 2, .. }),
    );
    caught(
        |program, partition| partition.segments[0].ops.insert(0, op(program, "c")),
        |error| matches!(error, CheckError::OpOrder { segment: 0 }),
    );
    caught(
        |_, partition| partition.segments[0].ops.push(Op::from_index(1000)),
        |error| matches!(error, CheckError::UnknownOp { segment: 0, .. }),
    );
    caught(
        |_, partition| partition.segments[1].ops.swap(1, 2),
        |error| matches!(error, CheckError::OpOrder { segment: 1 }),
    );
    caught(
        |_, partition| {
            let kind = SegmentKind::Fallback;
            partition.segments.push(Segment { ops: vec![], inputs: vec![], outputs: vec![], kind });
        },
        |error| matches!(error, CheckError::Empty { segment: 4 }),
    );
}

#[test]
fn boundaries_that_are_not_exact() {
    for segment in 0..4 {
        caught(
            |_, partition| {
                partition.segments[segment].outputs.pop();
            },
            is_boundary,
        );
        caught(
            |_, partition| {
                partition.segments[segment].inputs.remove(0);
            },
            is_boundary,
        );
        caught(|_, partition| partition.segments[segment].inputs.push(Value::from_index(999)), is_boundary);
        caught(|_, partition| partition.segments[segment].inputs.reverse(), is_boundary);
    }
    caught(
        |program, partition| {
            partition.segments[1].outputs.insert(0, value(program, "y"));
        },
        is_boundary,
    );
}

#[test]
fn decisions_that_are_wrong() {
    caught(
        |_, partition| {
            partition.decisions.pop();
        },
        |error| matches!(error, CheckError::Decisions { .. }),
    );
    for segment in [2, 77] {
        caught(
            |program, partition| partition.decisions[op(program, "c").index()].segment = segment,
            |error| matches!(error, CheckError::DecisionSegment { .. }),
        );
    }
    let wrong_reason = |error: &CheckError| matches!(error, CheckError::Reason { .. });
    let why = |code| Some(Rejection::new(code, "because"));
    caught(|program, partition| partition.decisions[op(program, "c").index()].rejection = None, wrong_reason);
    caught(
        |program, partition| {
            partition.decisions[op(program, "y").index()].rejection = why(ReasonCode::ValueEscapes);
        },
        wrong_reason,
    );
    caught(
        |program, partition| {
            partition.decisions[op(program, "plain").index()].rejection =
                why(ReasonCode::NoScaledMmaProducer);
        },
        wrong_reason,
    );
    caught(
        |program, partition| {
            partition.decisions[op(program, "c").index()].rejection = why(ReasonCode::NotScaledMma);
        },
        wrong_reason,
    );
    caught(|_, partition| partition.segments[1].kind = SegmentKind::Fallback, wrong_reason);
    caught(
        |_, partition| partition.target = "sm_120a".to_owned(),
        |error| matches!(error, CheckError::Target { .. }),
    );
}

#[test]
fn a_fallback_segment_dressed_as_a_kernel() {
    caught(
        |program, partition| {
            let mut plan = plan_mut(partition, 1).clone();
            plan.root = op(program, "plain");
            plan.epilogue.clear();
            let segment = partition.decisions[plan.root.index()].segment;
            partition.segments[segment].kind = SegmentKind::Kernel(Box::new(plan.into()));
        },
        |error| matches!(error, CheckError::Shape { .. }),
    );
    let mut builder = Builder::new("plain");
    let p = builder.input("p", tensor(&[9, 72], F16));
    let plain = builder.mma("plain", p, p, F32);
    let program = verified(builder.finish(&[plain]));
    let (_, mut with_kernel) = base();
    let mut plan = plan_mut(&mut with_kernel, 3).clone();
    plan.root = op(&program, "plain");
    let partition = Partition {
        target: "sm_100a".to_owned(),
        segments: vec![Segment {
            ops: vec![plan.root],
            inputs: vec![p],
            outputs: vec![plain],
            kind: SegmentKind::Kernel(Box::new(plan.into())),
        }],
        decisions: vec![Decision { segment: 0, rejection: None }],
    };
    let errors = check(&program, &blackwell(), &partition).expect_err("plain mma is in a kernel");
    assert!(errors.iter().any(|error| matches!(error, CheckError::Shape { segment: 0, .. })), "{errors:?}");
}

#[test]
fn steps_that_are_not_the_ops() {
    type Change = fn(&Program, &mut ScaledMmaPlan);
    let changes: [Change; 16] = [
        |_, plan| plan.epilogue[0].kind = EpilogueKind::Binary(BinaryKind::Mul),
        |_, plan| plan.epilogue[0].operands.reverse(),
        |_, plan| plan.epilogue[0].operands[0] = EpilogueRef::Operand(0),
        |_, plan| plan.epilogue[0].operands[1] = EpilogueRef::Accumulator,
        |_, plan| plan.epilogue[0].operands[1] = EpilogueRef::Operand(7),
        |_, plan| plan.epilogue[1].operands[0] = EpilogueRef::Accumulator,
        |_, plan| plan.epilogue[1].operands[0] = EpilogueRef::Step(1),
        |_, plan| plan.epilogue[2].operands[0] = EpilogueRef::Step(0),
        |_, plan| plan.epilogue[1].operands.clear(),
        |_, plan| plan.epilogue[1].kind = EpilogueKind::Unary(UnaryKind::Gelu),
        |_, plan| plan.epilogue[1].kind = EpilogueKind::Clamp { min: 0.0, max: 1.0 },
        |_, plan| plan.epilogue[1].kind = EpilogueKind::Constant { bits: 0 },
        |_, plan| plan.epilogue[2].kind = EpilogueKind::Unary(UnaryKind::Silu),
        |_, plan| plan.epilogue.swap(0, 1),
        |_, plan| {
            plan.epilogue.remove(1);
        },
        |program, plan| plan.root = op(program, "e"),
    ];
    for change in changes {
        caught(|program, partition| change(program, plan_mut(partition, 1)), is_shape);
    }
    let operands: [Change; 6] = [
        |program, plan| plan.operands[0].value = value(program, "other_bias"),
        |program, plan| plan.operands[0].value = value(program, "d"),
        |_, plan| plan.operands[0].value = Value::from_index(999),
        |_, plan| plan.operands.push(plan.operands[0]),
        |_, plan| plan.operands.clear(),
        |_, plan| plan.operands.reverse(),
    ];
    for change in operands {
        caught(|program, partition| change(program, plan_mut(partition, 1)), is_field("operands"));
    }
    caught(|_, partition| plan_mut(partition, 1).operands[0].element = F32, is_field("operand element"));
    for shape in [OperandShape::Scalar, OperandShape::Column, OperandShape::Matrix] {
        let capability = |error: &CheckError| matches!(error, CheckError::Capability { segment: 1, .. });
        caught(|_, partition| plan_mut(partition, 1).operands[0].shape = shape, capability);
    }
    caught(|_, partition| plan_mut(partition, 1).epilogue[1].element = F16, is_field("element"));
    caught(|_, partition| plan_mut(partition, 1).accumulator = F16, is_field("accumulator"));
    caught(
        |program, partition| {
            plan_mut(partition, 1).outputs[0].kind = OutputKind::Value { value: value(program, "y") }
        },
        is_field("outputs"),
    );
}

/// The kernel writes %out, the quantized %out, and the maximum of each row of %y.
#[test]
fn outputs_that_are_not_what_is_seen() {
    type Change = fn(&Program, &mut ScaledMmaPlan);
    let changes: [Change; 25] = [
        |_, plan| plan.outputs.clear(),
        |_, plan| plan.outputs.reverse(),
        |_, plan| plan.outputs.swap(1, 2),
        |_, plan| plan.outputs.push(plan.outputs[0].clone()),
        |_, plan| {
            plan.outputs.remove(0);
        },
        |_, plan| {
            plan.outputs.remove(1);
        },
        |_, plan| {
            plan.outputs.remove(2);
        },
        |_, plan| plan.outputs[0].of = EpilogueRef::Accumulator,
        |_, plan| plan.outputs[0].of = EpilogueRef::Step(1),
        |_, plan| plan.outputs[1].of = EpilogueRef::Operand(0),
        |_, plan| plan.outputs[1].of = EpilogueRef::Step(99),
        |_, plan| plan.outputs[2].of = EpilogueRef::Step(0),
        |program, plan| {
            let OutputKind::Value { value: found } = &mut plan.outputs[0].kind else { panic!("a value") };
            *found = value(program, "d");
        },
        |_, plan| *quantized(plan).0 = Value::from_index(999),
        |_, plan| *quantized(plan).1 = Value::from_index(999),
        |_, plan| *quantized(plan).0 = *quantized(plan).1,
        |_, plan| *quantized(plan).2 = None,
        |_, plan| *quantized(plan).2 = Some(0),
        |_, plan| *quantized(plan).2 = Some(99),
        |_, plan| {
            let OutputKind::Quantized { element, .. } = &mut plan.outputs[1].kind else { panic!("blocks") };
            *element = ElementType::F8E4M3FN;
        },
        |_, plan| {
            let OutputKind::Quantized { block, .. } = &mut plan.outputs[1].kind else { panic!("blocks") };
            *block = 32;
        },
        |_, plan| {
            let OutputKind::Quantized { scale_rounding, .. } = &mut plan.outputs[1].kind else {
                panic!("blocks")
            };
            *scale_rounding = Some(ScaleRounding::Ceil);
        },
        |_, plan| *reduced(plan).0 = Value::from_index(999),
        |_, plan| *reduced(plan).1 = ReduceKind::Amax,
        |_, plan| *reduced(plan).2 = OperandShape::Row,
    ];
    let noticed = |error: &CheckError| is_field("outputs")(error) || is_shape(error);
    for change in changes {
        caught(|program, partition| change(program, plan_mut(partition, 1)), noticed);
    }
    let ops: [fn(&mut ScaledMmaPlan, Op); 2] = [
        |plan, other| {
            let OutputKind::Quantized { op, .. } = &mut plan.outputs[1].kind else { panic!("blocks") };
            *op = other;
        },
        |plan, other| {
            let OutputKind::Reduced { op, .. } = &mut plan.outputs[2].kind else { panic!("a reduction") };
            *op = other;
        },
    ];
    for change in ops {
        for other in ["out.q", "blocks.q", "largest", "y", "e"] {
            let (program, mut partition) = base();
            let correct = partition.clone();
            change(plan_mut(&mut partition, 1), op(&program, other));
            if partition != correct {
                let errors =
                    check(&program, &blackwell(), &partition).expect_err("the plan names another op");
                assert!(errors.iter().any(is_shape), "{errors:?}");
            }
        }
    }
}

fn quantized(plan: &mut ScaledMmaPlan) -> (&mut Value, &mut Value, &mut Option<usize>) {
    match &mut plan.outputs[1].kind {
        OutputKind::Quantized { codes, scales, global, .. } => (codes, scales, global),
        other => panic!("{other:?}"),
    }
}

fn reduced(plan: &mut ScaledMmaPlan) -> (&mut Value, &mut ReduceKind, &mut OperandShape) {
    match &mut plan.outputs[2].kind {
        OutputKind::Reduced { value, kind, shape, .. } => (value, kind, shape),
        other => panic!("{other:?}"),
    }
}

#[test]
fn fields_that_are_not_the_operands() {
    type Change = fn(&mut ScaledMmaPlan);
    let changes: [(&str, Change); 14] = [
        ("a", |plan| plan.a = plan.b),
        ("b", |plan| plan.b = plan.a),
        ("sfa", |plan| plan.sfa = Some(plan.sfb)),
        ("sfb", |plan| plan.sfb = plan.a),
        ("alpha", |plan| plan.alpha = plan.beta),
        ("beta", |plan| plan.beta = None),
        ("c", |plan| plan.c = None),
        ("format", |plan| plan.format = BlockFormat::MXFP4),
        ("m", |plan| plan.m = plan.n.clone()),
        ("n", |plan| plan.n = plan.n.times(&Dim::fixed(2)).expect("a small extent")),
        ("k", |plan| plan.k = plan.n.clone()),
        ("batch", |plan| plan.batch = Dim::fixed(1)),
        ("b_batched", |plan| plan.b_batched = false),
        ("m", |plan| plan.m = Dim::fixed(128)),
    ];
    for (field, change) in changes {
        caught(|_, partition| change(plan_mut(partition, 1)), is_field(field));
    }
}

#[test]
fn every_constraint_is_needed() {
    let count = |segment| plan_mut(&mut base().1, segment).constraints.len();
    assert!(count(1) >= 12, "the program has every kind of constraint");
    for segment in [1, 3] {
        for index in 0..count(segment) {
            caught(
                |_, partition| {
                    plan_mut(partition, segment).constraints.remove(index);
                },
                |error| matches!(error, CheckError::Constraint { segment: found, .. } if *found == segment),
            );
            let weakened = |_: &Program, partition: &mut Partition| match &mut plan_mut(partition, segment)
                .constraints[index]
            {
                Constraint::Multiple { of, .. } => *of /= 2,
                Constraint::AtMost { limit, .. }
                | Constraint::ScaleBytes { limit, .. }
                | Constraint::Tiles { limit, .. } => *limit += 1,
                Constraint::NotEmpty { dim, .. } => *dim = Dim::fixed(1),
                Constraint::PointerAlignment { bytes, .. } => *bytes /= 2,
            };
            caught(weakened, |error| matches!(error, CheckError::Constraint { .. }));
        }
    }
}

#[test]
fn no_constraint_is_more_than_is_needed() {
    let count = |segment| plan_mut(&mut base().1, segment).constraints.len();
    let extra = |error: &CheckError| matches!(error, CheckError::ExtraConstraint { .. });
    for segment in [1, 3] {
        for index in 0..count(segment) {
            let doubled = |_: &Program, partition: &mut Partition| {
                let constraints = &mut plan_mut(partition, segment).constraints;
                constraints.push(constraints[index].clone());
            };
            caught(doubled, extra);
            let strengthened = |_: &Program, partition: &mut Partition| {
                let constraint = &mut plan_mut(partition, segment).constraints[index];
                match constraint {
                    Constraint::Multiple { of, .. } => *of *= 2,
                    Constraint::AtMost { limit, .. }
                    | Constraint::ScaleBytes { limit, .. }
                    | Constraint::Tiles { limit, .. } => *limit = 0,
                    Constraint::NotEmpty { dim, name } => {
                        *constraint = Constraint::AtMost { name, dim: dim.clone(), limit: 1 };
                    }
                    Constraint::PointerAlignment { bytes, .. } => *bytes *= 2,
                }
            };
            caught(strengthened, extra);
            let renamed = |_: &Program, partition: &mut Partition| match &mut plan_mut(partition, segment)
                .constraints[index]
            {
                Constraint::Multiple { name, .. }
                | Constraint::AtMost { name, .. }
                | Constraint::ScaleBytes { name, .. }
                | Constraint::NotEmpty { name, .. } => *name = "extent",
                Constraint::PointerAlignment { bytes, .. } => *bytes = 1,
                Constraint::Tiles { tile, .. } => *tile = [1, 1],
            };
            caught(renamed, extra);
        }
        // Not even M = 0 satisfies this, so every call would run on the fallback.
        let added: [fn(&ScaledMmaPlan) -> Constraint; 4] = [
            |plan| Constraint::AtMost { name: "M", dim: plan.m.clone(), limit: 0 },
            |plan| Constraint::NotEmpty { name: "M", dim: plan.m.clone() },
            |plan| Constraint::Multiple {
                name: "M",
                dim: plan.m.clone(),
                of: 128,
                code: ReasonCode::NAlignment,
            },
            |_| Constraint::PointerAlignment { value: Value::from_index(0), bytes: 16 },
        ];
        for added in added {
            let add = |_: &Program, partition: &mut Partition| {
                let plan = plan_mut(partition, segment);
                plan.constraints.push(added(plan));
            };
            caught(add, extra);
        }
    }
}

#[test]
fn a_refusal_of_a_scaled_mma_that_does_not_hold() {
    use ReasonCode::*;
    use fourfold_ir::ScaleLayout::{Blocked, Linear};
    let good = Gemm::of(F32, 37, 72, 96);
    let batch = |l: u64| vec![Dim::fixed(l)];
    let cpu = fourfold_codegen::capabilities("cpu").expect("a target");
    let none = Capabilities {
        target: "sm_99a".to_owned(),
        formats: Vec::new(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device: Default::default(),
    };
    let emulated = Capabilities { not_emulated: vec![fourfold_ir::BlockFormat::NVFP4], ..none.clone() };
    let cases: Vec<(Capabilities, Gemm, &[ReasonCode])> = vec![
        (emulated, good.clone(), &[FormatNotEmulated]),
        (cpu, good.clone(), &[CpuTarget, TargetLacksFormat]),
        (none, good.clone(), &[TargetLacksFormat]),
        (blackwell(), Gemm { scale: ElementType::F8E8M0FNU, ..good.clone() }, &[ScaleDtype]),
        (blackwell(), Gemm { layouts: [Linear, Blocked], ..good.clone() }, &[ScaleLayout]),
        (blackwell(), Gemm { layouts: [Blocked, Linear], ..good.clone() }, &[ScaleLayout]),
        (blackwell(), Gemm { k: Dim::fixed(48), ..good.clone() }, &[KAlignment]),
        (blackwell(), Gemm { n: Dim::fixed(6), ..good.clone() }, &[NAlignment]),
        (blackwell(), Gemm { n: Dim::fixed(0), ..good.clone() }, &[ExtentRange]),
        (blackwell(), Gemm { m: Dim::fixed(1 << 31), ..good.clone() }, &[ExtentRange]),
        (blackwell(), Gemm { batch: batch(1 << 30), m: Dim::fixed(128), ..good.clone() }, &[ExtentRange]),
        // Beyond the grid of one launch: matrices, tiles along N, total tiles.
        (
            blackwell(),
            Gemm { batch: batch(65_536), b_batch: batch(65_536), ..Gemm::of(F32, 1, 72, 96) },
            &[ExtentRange],
        ),
        (blackwell(), Gemm::of(F32, 1, 4_194_052, 96), &[ExtentRange]),
        (blackwell(), Gemm::of(F32, 1 << 21, 1 << 20, 96), &[ExtentRange]),
        (blackwell(), Gemm { batch: batch(3), ..good.clone() }, &[OperandLayout]),
        (
            narrow(),
            Gemm { batch: batch(3), b_batch: batch(3), ..Gemm::of(BF16, 45, 48, 128) },
            &[OperandLayout],
        ),
        (narrow(), Gemm::of(F16, 45, 48, 128), &[OutputDtype]),
        (
            blackwell(),
            Gemm { layouts: [Linear; 2], k: Dim::fixed(48), n: Dim::fixed(6), ..good },
            &[KAlignment, NAlignment, ScaleLayout],
        ),
    ];
    for (capabilities, gemm, holds) in cases {
        let mut builder = Builder::new("refused");
        let d = gemm.build(&mut builder, "d");
        let (program, partition) = planned(builder.finish(&[d]), &capabilities);
        let stated = partition.decisions[0].rejection.as_ref().map(|rejection| rejection.code);
        assert_eq!(stated, Some(holds[0]));
        for code in ReasonCode::ALL {
            let mut partition = partition.clone();
            partition.decisions[0].rejection = Some(Rejection::new(*code, "because"));
            let result = check(&program, &capabilities, &partition);
            if holds.contains(code) {
                assert_eq!(result, Ok(()), "{code} of {holds:?}");
                continue;
            }
            let errors = result.expect_err("the reason does not hold");
            let refusal = CheckError::Refusal { op: op(&program, "d"), found: *code, holds: holds.to_vec() };
            assert!(errors.contains(&refusal), "{code}: {errors:?}");
        }
    }
    // Nothing prevents a kernel here.
    let (program, mut partition) = planned(small(false), &blackwell());
    partition.segments[0].kind = SegmentKind::Fallback;
    for decision in &mut partition.decisions {
        decision.rejection = Some(Rejection::new(KAlignment, "because"));
    }
    let errors = check(&program, &blackwell(), &partition).expect_err("the target supports the op");
    let refusal = CheckError::Refusal { op: op(&program, "d"), found: KAlignment, holds: vec![] };
    assert!(errors.contains(&refusal), "{errors:?}");
}

#[test]
fn a_kernel_that_the_target_does_not_take() {
    let (program, partition) = base();
    type Change = fn(&mut FormatCapability);
    let changes: [Change; 26] = [
        |rules| rules.k_multiple = 64,
        |rules| rules.max_extent = 2,
        |rules| rules.grid.max_matrices = 1,
        |rules| rules.grid.max_columns = 2,
        |rules| rules.grid.max_tiles = 0,
        |rules| rules.max_scale_bytes = 100,
        |rules| rules.operand_alignment[0] = 32,
        |rules| rules.operand_alignment[1] = 32,
        |rules| rules.pointer_alignment = 32,
        |rules| rules.batched = false,
        |rules| rules.outputs.retain(|output| output.element != BF16),
        |rules| rules.c.retain(|c| c.element != F32),
        |rules| rules.epilogue.operands.retain(|operand| operand.shape != OperandShape::Row),
        |rules| rules.epilogue.operands[1].elements.retain(|rule| rule.element != BF16),
        |rules| rules.epilogue.operands[1].most = 0,
        |rules| rules.epilogue.unary.retain(|kind| *kind != UnaryKind::Silu),
        |rules| rules.epilogue.binary.retain(|kind| *kind != BinaryKind::Add),
        |rules| rules.epilogue.elements.retain(|element| *element != BF16),
        |rules| rules.epilogue.max_steps = 2,
        |rules| rules.outputs.iter_mut().for_each(|output| output.n_multiple = 64),
        |rules| rules.epilogue.quantized.iter_mut().for_each(|rule| rule.n_multiple = 64),
        |rules| rules.epilogue.quantized.retain(|rule| rule.block != 16),
        |rules| rules.epilogue.quantized.retain(|rule| rule.scale != ElementType::F8E4M3FN),
        |rules| rules.epilogue.reductions.retain(|kind| *kind != ReduceKind::Max),
        |rules| rules.epilogue.max_outputs = 3,
        |rules| rules.epilogue.operands.retain(|operand| operand.shape != OperandShape::Scalar),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut capabilities = blackwell();
        change(&mut capabilities.formats[0]);
        let errors = check(&program, &capabilities, &partition).expect_err("the rule is broken");
        let about_rules = |error: &CheckError| {
            matches!(
                error,
                CheckError::Capability { .. }
                    | CheckError::Constraint { .. }
                    | CheckError::ExtraConstraint { .. }
            )
        };
        assert!(errors.iter().all(about_rules), "{index}: {errors:?}");
    }
    let none = Capabilities { formats: vec![], ..blackwell() };
    assert!(check(&program, &none, &partition).is_err());
}

/// `%d`, `%y = relu %d`; `escaping` returns both.
fn small(escaping: bool) -> Module {
    let mut builder = Builder::new("small");
    let d = Gemm::of(F32, 37, 72, 96).build(&mut builder, "d");
    let y = builder.unary("y", UnaryKind::Relu, d);
    if escaping { builder.finish(&[d, y]) } else { builder.finish(&[y]) }
}

#[test]
fn a_value_inside_a_kernel_that_the_program_returns() {
    let (_, partition) = planned(small(false), &blackwell());
    let program = verified(small(true));
    let errors = check(&program, &blackwell(), &partition).expect_err("%d is returned");
    assert!(errors.iter().any(|error| matches!(error, CheckError::Escape { segment: 0, .. })), "{errors:?}");
    assert!(errors.iter().any(is_boundary), "{errors:?}");
}

#[test]
fn a_kernel_of_another_program() {
    let (_, partition) = planned(small(false), &blackwell());
    let of = |gemm: Gemm| {
        let mut builder = Builder::new("other");
        let d = gemm.build(&mut builder, "d");
        let y = builder.unary("y", UnaryKind::Relu, d);
        verified(builder.finish(&[y]))
    };
    use fourfold_ir::ScaleLayout::{Blocked, Linear};
    let same = Gemm::of(F32, 37, 72, 96);
    assert_eq!(check(&of(same.clone()), &blackwell(), &partition), Ok(()));
    for other in [
        Gemm { layouts: [Linear, Blocked], ..same.clone() },
        Gemm { layouts: [Blocked, Linear], ..same.clone() },
        Gemm { scale: ElementType::F8E8M0FNU, ..same.clone() },
        Gemm { element: BF16, ..same.clone() },
        Gemm { batch: vec![Dim::fixed(3)], ..same.clone() },
        Gemm { n: Dim::fixed(0), ..same.clone() },
        Gemm { n: Dim::fixed(6), ..same.clone() },
        Gemm { k: Dim::fixed(48), ..same.clone() },
    ] {
        assert!(check(&of(other), &blackwell(), &partition).is_err());
    }
}

#[test]
fn linear_scales_of_a_are_stated_and_supported() {
    use fourfold_ir::ScaleLayout::{Blocked, Linear};
    caught(|_, partition| plan_mut(partition, 1).linear_sfa = true, is_field("linear_sfa"));
    let hopper = fourfold_codegen::capabilities("sm_90a").expect("a target");
    let mut builder = Builder::new("linear");
    let d = Gemm { layouts: [Linear, Blocked], ..Gemm::of(F32, 37, 72, 96) }.build(&mut builder, "d");
    let (program, partition) = planned(builder.finish(&[d]), &hopper);
    assert!(partition.segments[0].kernel().is_some_and(|plan| plan.linear_sfa));
    let mut without = hopper.clone();
    without.formats.iter_mut().for_each(|rules| rules.has_linear_scales = false);
    let errors = check(&program, &without, &partition).expect_err("the target does not read them");
    assert!(errors.iter().any(|error| matches!(error, CheckError::Capability { .. })), "{errors:?}");
    let refused = fourfold_scheduler::partition(&program, &without);
    let code = refused.decisions[0].rejection.as_ref().map(|rejection| rejection.code);
    assert_eq!(code, Some(ReasonCode::ScaleLayout));
    assert_eq!(check(&program, &without, &refused), Ok(()));
}
