//! Tests of placement, kept values, and reasons for kernels that do not run.

use std::collections::HashMap;

use fourfold_ir::bind::bind;
use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, Dim, ElementType, Op, ScaleLayout, ScaledMmaOptions, TensorType,
    UnaryKind, verify,
};
use fourfold_scheduler::{
    Constraint, Decision, EpilogueRef, KernelOutput, OutputKind, Plan, ScaledMmaPlan, Segment, SegmentKind,
};

use super::*;

/// y = relu(scaled_mma(x, w)) as a kernel, z = y + neg(y) · 2 on the fallback, for M rows.
struct Fixture {
    program: Program,
    partition: Partition,
    tensors: HashMap<String, Tensor>,
}

impl Fixture {
    fn new(rows: usize) -> Fixture {
        let mut builder = Builder::new("main");
        let m = builder.symbol("M");
        let matrix = |rows: &Dim, columns: u64, element| {
            TensorType::new(vec![rows.clone(), Dim::fixed(columns)], element)
        };
        let scales = |rows: &Dim| TensorType {
            layout: Some(ScaleLayout::Blocked),
            ..matrix(rows, 2, ElementType::F8E4M3FN)
        };
        let n = Dim::fixed(8);
        let x = builder.input("x", matrix(&m, 32, ElementType::F4E2M1FN));
        let sx = builder.input("sx", scales(&m));
        let w = builder.param("w", matrix(&n, 32, ElementType::F4E2M1FN));
        let sw = builder.param("sw", scales(&n));
        let acc = builder.scaled_mma("acc", x, sx, w, sw, 16, ElementType::F32, ScaledMmaOptions::default());
        let y = builder.unary("y", UnaryKind::Relu, acc);
        let negated = builder.unary("negated", UnaryKind::Neg, y);
        let doubled = builder.binary("doubled", BinaryKind::Add, negated, negated);
        let z = builder.binary("z", BinaryKind::Add, y, doubled);
        let program = verify(builder.finish(&[z])).unwrap();
        let ops: Vec<Op> = program.module().ops.keys().collect();
        let plan = ScaledMmaPlan {
            root: ops[0],
            format: BlockFormat::NVFP4,
            batch: Dim::fixed(1),
            m,
            n,
            k: Dim::fixed(32),
            b_batched: false,
            groups: None,
            a: x,
            sfa: Some(sx),
            linear_sfa: false,
            b: w,
            sfb: sw,
            alpha: None,
            c: None,
            beta: None,
            accumulator: ElementType::F32,
            pair: None,
            epilogue: Vec::new(),
            operands: Vec::new(),
            outputs: vec![KernelOutput {
                of: EpilogueRef::Accumulator,
                kind: OutputKind::Value { value: y },
            }],
            proof: Vec::new(),
            constraints: Vec::new(),
        };
        let kernel = Segment {
            ops: ops[..2].to_vec(),
            inputs: vec![x, sx, w, sw],
            outputs: vec![y],
            kind: SegmentKind::Kernel(Box::new(plan.into())),
        };
        let rest = Segment {
            ops: ops[2..].to_vec(),
            inputs: vec![y],
            outputs: vec![z],
            kind: SegmentKind::Fallback,
        };
        let decisions = [0, 0, 1, 1, 1].map(|segment| Decision { segment, rejection: None }).to_vec();
        let partition = Partition { target: "sm_100a".to_owned(), segments: vec![kernel, rest], decisions };

        // Row r of x is the code of 1 in its first r % 3 columns and 0 elsewhere, every scale is 1.
        let codes = (0..rows * 32).map(|index| if index % 32 < index / 32 % 3 { 2 } else { 0 }).collect();
        let layout = Some(ScaleLayout::Blocked);
        let ones = |rows: usize| {
            Tensor::from_codes(ElementType::F8E4M3FN, vec![rows, 2], layout, vec![0x38; rows * 2]).unwrap()
        };
        let element = ElementType::F4E2M1FN;
        let tensors = HashMap::from([
            ("x".to_owned(), Tensor::from_codes(element, vec![rows, 32], None, codes).unwrap()),
            ("sx".to_owned(), ones(rows)),
            ("w".to_owned(), Tensor::from_codes(element, vec![8, 32], None, vec![5; 8 * 32]).unwrap()),
            ("sw".to_owned(), ones(8)),
        ]);
        Fixture { program, partition, tensors }
    }

    fn run(&self, options: &RunOptions) -> Result<Run, RunError> {
        run(&self.program, &self.partition, &bind(&self.program, &self.tensors).unwrap(), options, None)
    }

    fn value(&self, name: &str) -> Value {
        self.program.facts().value_named(name).unwrap()
    }
}

#[test]
fn a_planned_kernel_without_a_device_runs_on_the_fallback_and_says_so() {
    let fixture = Fixture::new(37);
    let run = fixture.run(&RunOptions::default()).unwrap();
    let rans: Vec<&str> = run.segments.iter().map(|segment| segment.ran.as_str()).collect();
    assert_eq!(rans, ["fallback", "fallback"]);
    let reason = run.segments[0].reason.as_ref().unwrap();
    assert_eq!(reason.code, "no_device");
    assert!(reason.message.contains("sm_100a"), "{}", reason.message);
    assert_eq!(run.segments[1].reason, None);
    let z = run.value(fixture.value("z")).unwrap();
    let expected: Vec<f32> = (0..37 * 8).map(|index| -3.0 * (index / 8 % 3) as f32).collect();
    assert_eq!(z.to_f32(), expected);
}

#[test]
fn a_constraint_that_the_call_does_not_meet_is_the_reason() {
    let mut fixture = Fixture::new(37);
    let SegmentKind::Kernel(plan) = &mut fixture.partition.segments[0].kind else {
        unreachable!("the fixture plans a kernel")
    };
    let Plan::ScaledMma(plan) = &mut **plan else { unreachable!("the kernel multiplies") };
    plan.constraints.push(Constraint::AtMost { name: "M", dim: plan.m.clone(), limit: 36 });
    let run = fixture.run(&RunOptions::default()).unwrap();
    let reason = run.segments[0].reason.as_ref().unwrap();
    assert_eq!(reason.code, "extent_range");
    assert!(reason.message.contains("37"), "{}", reason.message);
    assert!(run.value(fixture.value("z")).is_some());
}

#[test]
fn outputs_are_kept_and_everything_on_request() {
    let fixture = Fixture::new(3);
    let kept = |options: &RunOptions| {
        let run = fixture.run(options).unwrap();
        ["x", "acc", "y", "negated", "doubled", "z"].map(|name| run.value(fixture.value(name)).is_some())
    };
    assert_eq!(kept(&RunOptions::default()), [false, false, false, false, false, true]);
    assert_eq!(
        kept(&RunOptions { keep_all: true, ..RunOptions::default() }),
        [false, true, true, true, true, true]
    );
}

#[test]
fn no_rows_run_to_an_empty_result() {
    let fixture = Fixture::new(0);
    let run = fixture.run(&RunOptions::default()).unwrap();
    assert_eq!(run.value(fixture.value("z")).unwrap().dims(), [0, 8]);
    assert_eq!(run.segments.len(), 2);
}

#[test]
fn a_partition_of_another_program_is_refused() {
    let mut fixture = Fixture::new(2);
    fixture.partition.segments.swap(0, 1);
    let error = fixture.run(&RunOptions::default()).unwrap_err();
    assert_eq!(error, RunError::Partition { segment: 0, value: "y".to_owned() });
    fixture.partition.segments.clear();
    let error = fixture.run(&RunOptions::default()).unwrap_err();
    assert_eq!(error, RunError::Partition { segment: 0, value: "z".to_owned() });
}

#[test]
fn an_error_names_the_op_and_the_segment() {
    let fixture = Fixture::new(2);
    let mut bound = bind(&fixture.program, &fixture.tensors).unwrap();
    bound.inputs[2] = &fixture.tensors["x"];
    let error = run(&fixture.program, &fixture.partition, &bound, &RunOptions::default(), None).unwrap_err();
    assert!(error.to_string().starts_with("`%acc = scaled_mma` in segment 0: `%w` is"), "{error}");
    bound.inputs.pop();
    let error = run(&fixture.program, &fixture.partition, &bound, &RunOptions::default(), None).unwrap_err();
    assert_eq!(error, RunError::Inputs { program: "main".to_owned(), expected: 4, found: 3 });
}
