//! Kernels that write several tensors: values, blocks with their scales, and reductions.

use std::collections::HashMap;

use fourfold_executor::device::{Buffer, Device};
use fourfold_executor::{
    Machine, Preparation, PreparedProgram, Refused, RunOptions, SegmentKernel, run_segment,
};
use fourfold_ir::bind::bind;
use fourfold_ir::sample::{Recipe, Rule, inputs};
use fourfold_ir::{
    BinaryKind, BlockFormat, Dim, ElementType, Op, OperandShape, ReduceKind, Tensor, UnaryKind, Value,
};
use fourfold_scheduler::{
    Decision, EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, KernelOutput, OutputKind, Partition,
    Plan, ScaledMmaPlan, Segment, SegmentKind,
};

use super::fixture::{Fixture, story};
use super::interface::Interface;
use super::stand_in::{Counter, StandIn};

const KERNEL: (&str, Option<&str>) = ("kernel", None);

/// The first kernel writes all values from `%acc` to `%highest` except the steps; the second writes `%y`.
const PROGRAM: &str = "fir 1
func @outputs(
    %x: tensor<[M, 64], f4E2M1FN>, %sx: tensor<[M, 4], f8E4M3FN, blocked>,
    param %w1: tensor<[96, 64], f4E2M1FN>, param %sw1: tensor<[96, 4], f8E4M3FN, blocked>,
    param %w2: tensor<[40, 96], f4E2M1FN>, param %sw2: tensor<[40, 6], f8E4M3FN, blocked>,
    param %bias: tensor<[96], f32>, %g: tensor<[], f32>
) {
  %acc = scaled_mma %x, %sx, %w1, %sw1 {block = 16} : tensor<[M, 96], f32>
  %biased = add %acc, %bias : tensor<[M, 96], f32>
  %r = relu %biased : tensor<[M, 96], f32>
  %q, %sq = block_quantize %r, %g {block = 16} : tensor<[M, 96], f4E2M1FN>, tensor<[M, 6], f8E4M3FN, blocked>
  %peak = reduce %biased {axes = [0, 1], kind = amax} : tensor<[], f32>
  %peaks = reduce %r {axes = [0], kind = amax} : tensor<[96], f32>
  %highest = reduce %acc {axes = [1], keep_dims = true, kind = max} : tensor<[M, 1], f32>
  %y = scaled_mma %q, %sq, %w2, %sw2, alpha = %peak {block = 16} : tensor<[M, 40], f32>
  return %acc, %sq, %peak, %peaks, %highest, %y
}
";

const SIGNATURE: &str = "nvfp4 row=f32 scalar=f32 d=f32@acc q=f4E2M1FN:f8E4M3FN/16*x1 amax=scalar@s0 amax=row \
                         max=column@acc";

/// The values that the program returns and the first kernel writes.
const RETURNED: [&str; 5] = ["acc", "sq", "peak", "peaks", "highest"];

fn outputs(m: u64) -> Fixture {
    let (program, _) = fourfold_ir::load(PROGRAM).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let value = |name: &str| program.facts().value_named(name).unwrap();
    let values = |names: &[&str]| {
        let mut values: Vec<Value> = names.iter().map(|name| value(name)).collect();
        values.sort_unstable();
        values
    };
    let ops: Vec<Op> = program.module().ops.keys().collect();
    let rows = program.module().ty(value("x")).shape[0].clone();
    let plan = |root: Op, [a, sfa, b, sfb]: [&str; 4], n: u64, k: u64| ScaledMmaPlan {
        root,
        format: BlockFormat::NVFP4,
        batch: Dim::fixed(1),
        m: rows.clone(),
        n: Dim::fixed(n),
        k: Dim::fixed(k),
        b_batched: false,
        groups: None,
        a: value(a),
        sfa: Some(value(sfa)),
        linear_sfa: false,
        b: value(b),
        sfb: value(sfb),
        alpha: None,
        c: None,
        beta: None,
        accumulator: ElementType::F32,
        pair: None,
        epilogue: Vec::new(),
        operands: Vec::new(),
        outputs: Vec::new(),
        proof: Vec::new(),
        constraints: Vec::new(),
    };
    let step = |op: Op, kind: EpilogueKind, operands: &[EpilogueRef]| EpilogueStep {
        op,
        kind,
        operands: operands.to_vec(),
        element: ElementType::F32,
    };
    let operand =
        |name: &str, shape| EpilogueOperand { value: value(name), shape, element: ElementType::F32 };
    let reduced = |of, op, name: &str, kind, shape| KernelOutput {
        of,
        kind: OutputKind::Reduced { op, value: value(name), kind, shape },
    };
    let is = |of, name: &str| KernelOutput { of, kind: OutputKind::Value { value: value(name) } };
    let quantized = OutputKind::Quantized {
        op: ops[3],
        codes: value("q"),
        scales: value("sq"),
        global: Some(1),
        element: ElementType::F4E2M1FN,
        block: 16,
        scale_rounding: None,
        formula: Default::default(),
    };
    let (sum, last) = (EpilogueRef::Accumulator, EpilogueRef::Step(1));
    let first = ScaledMmaPlan {
        epilogue: vec![
            step(ops[1], EpilogueKind::Binary(BinaryKind::Add), &[sum, EpilogueRef::Operand(0)]),
            step(ops[2], EpilogueKind::Unary(UnaryKind::Relu), &[EpilogueRef::Step(0)]),
        ],
        operands: vec![operand("bias", OperandShape::Row), operand("g", OperandShape::Scalar)],
        outputs: vec![
            is(sum, "acc"),
            KernelOutput { of: last, kind: quantized },
            reduced(EpilogueRef::Step(0), ops[4], "peak", ReduceKind::Amax, OperandShape::Scalar),
            reduced(last, ops[5], "peaks", ReduceKind::Amax, OperandShape::Row),
            reduced(sum, ops[6], "highest", ReduceKind::Max, OperandShape::Column),
        ],
        ..plan(ops[0], ["x", "sx", "w1", "sw1"], 96, 64)
    };
    let second = ScaledMmaPlan {
        alpha: Some(value("peak")),
        outputs: vec![is(sum, "y")],
        ..plan(ops[7], ["q", "sq", "w2", "sw2"], 40, 96)
    };
    let segment = |ops: &[Op], inputs: &[&str], outputs: &[&str], plan| Segment {
        ops: ops.to_vec(),
        inputs: values(inputs),
        outputs: values(outputs),
        kind: SegmentKind::Kernel(Box::new(Plan::ScaledMma(plan))),
    };
    let results = ["acc", "q", "sq", "peak", "peaks", "highest"];
    let segments = vec![
        segment(&ops[..7], &["x", "sx", "w1", "sw1", "bias", "g"], &results, first),
        segment(&ops[7..], &["q", "sq", "w2", "sw2", "peak"], &["y"], second),
    ];
    let decisions = (0..8).map(|op| Decision { segment: op / 7, rejection: None }).collect();
    let partition = Partition { target: "sm_100a".to_owned(), segments, decisions };
    let recipe = Recipe { rule: Rule::Exact, seed: 9, symbols: vec![("M".to_owned(), m)] };
    let mut tensors = inputs(&program, &recipe).unwrap();
    tensors.insert("g".to_owned(), Tensor::from_f32(Vec::new(), &[0.37]).unwrap());
    let fixture = Fixture { program, partition, tensors, kernels: HashMap::new() };
    assert_eq!(fixture.interface(0).signature, SIGNATURE);
    assert_eq!(fixture.interface(1).signature, "nvfp4 alpha d=f32");
    fixture.with_kernel(0, &["RELU"]).with_kernel(1, &["WORKSPACE=0"])
}

/// Compares `%y` with a tolerance, because the second sum is not exact in every order.
#[track_caller]
fn check_y(found: &Tensor, fixture: &Fixture) {
    let (found, expected) = (found.to_f64(), fixture.expected("y").to_f64());
    let largest = expected.iter().fold(0f64, |largest, value| largest.max(value.abs()));
    assert!(largest > 0.0 || expected.is_empty());
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found - expected).abs() <= 1e-6 * largest, "{found}, not {expected}");
    }
}

#[test]
fn every_output_is_what_the_fallback_computes() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for m in [1, 37, 91, 130] {
        let fixture = outputs(m);
        let distinct = |name: &str| {
            let mut codes = fixture.expected(name).to_codes();
            codes.sort_unstable();
            codes.dedup();
            codes.len()
        };
        assert!(distinct("sq") > 4 && distinct("q") > 4, "M = {m}");
        for bits in 0..8 {
            let [keep_all, poison, locate] = [1, 2, 4].map(|bit| bits & bit != 0);
            let down = stand_in.count(Counter::Down);
            let poison = poison.then_some(0xFF);
            let run = fixture
                .run(Some(&device), &RunOptions::default().keep_all(keep_all).poison(poison).locate(locate))
                .unwrap();
            assert_eq!(story(&run), [KERNEL; 2]);
            for name in RETURNED {
                // The padding of scales is part of a tensor.
                assert_eq!(run.value(fixture.value(name)), Some(&fixture.expected(name)), "%{name}, M = {m}");
            }
            check_y(run.value(fixture.value("y")).unwrap(), &fixture);
            let q = keep_all.then(|| fixture.expected("q"));
            assert_eq!(run.value(fixture.value("q")), q.as_ref());
            assert_eq!(run.value(fixture.value("r")), None, "it is nowhere");
            let bytes = |name: &&str| fixture.expected(name).bytes().len() as u64;
            let first: u64 = RETURNED.iter().chain(keep_all.then_some(&"q")).map(bytes).sum();
            assert_eq!(run.segments[0].moved.to_host, first, "only what is wanted");
            assert_eq!(stand_in.count(Counter::Down) - down, first + bytes(&"y"));
        }
    }
}

#[test]
fn what_a_kernel_does_not_write_is_seen() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = outputs(37).with_kernel(0, &["RELU", "WRITES_NOTHING"]);
    let run = fixture.run(Some(&device), &RunOptions::default().poison(0xFF)).unwrap();
    for name in RETURNED {
        let tensor = run.value(fixture.value(name)).unwrap();
        assert!(tensor.bytes().iter().all(|byte| *byte == 0xFF), "%{name}");
    }
}

#[test]
fn a_reduction_over_nothing_is_zero_and_launches_nothing() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = outputs(0);
    let launches = stand_in.count(Counter::Launches);
    let run = fixture.run(Some(&device), &RunOptions::default().poison(0xFF)).unwrap();
    assert_eq!(story(&run), [KERNEL; 2]);
    for name in RETURNED.into_iter().chain(["y"]) {
        assert_eq!(run.value(fixture.value(name)), Some(&fixture.expected(name)), "%{name}");
    }
    assert_eq!(run.value(fixture.value("peaks")).unwrap().to_f64(), [0.0; 96]);
    assert_eq!(run.value(fixture.value("peak")).unwrap().to_f64(), [0.0]);
    assert_eq!(run.value(fixture.value("highest")).unwrap().dims(), [0, 1]);

    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&fixture, &device).unwrap();
    let stream = device.new_stream().unwrap();
    // SAFETY: the buffers live until the end, and each launch is waited for.
    unsafe { prepared.launch(&stream) }.unwrap();
    placed.check(&fixture, &device, "launched");
    placed.poison(&device);
    // SAFETY: as above.
    let graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    placed.check(&fixture, &device, "as a graph");
    drop(graph);
    let other = Placed::new(&fixture, &device);
    // SAFETY: nothing is in flight.
    unsafe { prepared.update_addresses(&other.addresses()) }.unwrap();
    // SAFETY: as above.
    unsafe { prepared.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    other.check(&fixture, &device, "at other addresses");
    assert_eq!((prepared.kernels(), stand_in.count(Counter::Launches)), (0, launches));
}

#[test]
fn a_reduction_that_does_not_begin_at_zero_is_not_prepared_over_nothing() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let source = PROGRAM.replace("kind = amax} : tensor<[], f32>", "kind = max} : tensor<[], f32>");
    let fixture = outputs(0);
    let fixture = Fixture { program: fourfold_ir::load(&source).unwrap().0, ..fixture };
    let refused = Placed::new(&fixture, &device).prepare(&fixture, &device).unwrap_err();
    assert_eq!((refused.code, refused.segment), ("kernel_refused", Some(0)));
    assert!(refused.message.starts_with("`%peak` is not zero although its problem is empty"), "{refused}");
}

#[test]
fn outputs_that_are_not_the_segment_s_are_refused() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let launches = stand_in.count(Counter::Launches);
    let refuse = |change: &dyn Fn(&mut Fixture), words: &str| {
        let mut fixture = outputs(37);
        change(&mut fixture);
        let fixture = fixture.with_kernel(0, &["RELU"]);
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        let reason = run.segments[0].reason.as_ref().expect(words);
        assert_eq!(reason.code, "kernel_refused");
        assert!(reason.message.starts_with(words), "{}", reason.message);
        assert_eq!(run.value(fixture.value("sq")), Some(&fixture.expected("sq")));
    };
    refuse(
        &|fixture| _ = fixture.plan(0).outputs.pop(),
        "it does not write `%highest`, an output of its segment",
    );
    refuse(
        &|fixture| {
            let peak = fixture.plan(0).outputs[2].clone();
            fixture.plan(0).outputs.push(peak);
        },
        "it writes `%peak` twice",
    );
    refuse(
        &|fixture| {
            let value = fixture.value("y");
            let output = KernelOutput { of: EpilogueRef::Step(1), kind: OutputKind::Value { value } };
            fixture.plan(0).outputs.push(output);
        },
        "it writes `%y`, which its segment does not define",
    );
    refuse(
        &|fixture| {
            let output = fixture.plan(0).outputs[0].clone();
            fixture.plan(0).outputs.extend([output.clone(), output.clone(), output]);
        },
        "it has more operands or outputs than the kernel ABI allows",
    );
    refuse(
        &|fixture| {
            let (acc, peak) = (fixture.value("acc"), fixture.value("peak"));
            for output in &mut fixture.plan(0).outputs {
                match &mut output.kind {
                    OutputKind::Value { value } => *value = peak,
                    OutputKind::Reduced { value, .. } if *value == peak => *value = acc,
                    _ => {}
                }
            }
        },
        "`%peak` takes 4 bytes, but the kernel writes 14208",
    );
    assert_eq!(stand_in.count(Counter::Launches) - launches, 5, "the second kernel of each, and no other");
}

#[test]
fn an_output_that_the_kernel_writes_beyond_is_refused_each_in_turn() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for (index, name) in ["acc", "q", "sq", "peak", "peaks", "highest"].into_iter().enumerate() {
        let fixture = outputs(37).with_kernel(0, &["RELU", &format!("EXTRA_OUTPUT={index}")]);
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        let reason = run.segments[0].reason.as_ref().unwrap();
        assert_eq!(reason.code, "kernel_refused");
        let bytes = fixture.expected(name).bytes().len();
        let words = format!("`%{name}` takes {bytes} bytes, but the kernel writes {}", bytes + 1);
        assert!(reason.message.starts_with(&words), "{}", reason.message);
    }
}

#[test]
fn a_kernel_with_other_outputs_is_not_launched() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let launches = stand_in.count(Counter::Launches);
    for (from, to) in [
        ("d=f32@acc", "d=f32"),
        ("*x1", ""),
        ("*x1", "*x0"),
        ("/16", "/32"),
        ("amax=row", "max=row"),
        ("amax=scalar@s0", "amax=scalar"),
        ("max=column@acc", "max=row@acc"),
        (" max=column@acc", ""),
    ] {
        let mut fixture = outputs(37);
        assert!(SIGNATURE.contains(from));
        let signature = SIGNATURE.replacen(from, to, 1);
        let other = fixture.interface(0).signed(&signature);
        fixture.kernels.insert(0, SegmentKernel::Ready(other.kernel(&["RELU"])));
        fixture.kernels.remove(&1);
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        let reason = run.segments[0].reason.as_ref().unwrap();
        let words = format!("the kernel's signature is `{signature}`, but the plan's is `{SIGNATURE}`");
        assert!(reason.message.starts_with(&words), "{}", reason.message);
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn scales_that_are_not_blocked_are_refused() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    // Both layouts have the same size.
    let source =
        PROGRAM.replace("%sq, %w2", "%bq, %w2").replace("tensor<[M, 6], f8E4M3FN, blocked>\n", "LINEAR\n");
    let source = source
        .replace("LINEAR\n", "tensor<[M, 6], f8E4M3FN, linear>\n")
        .replace("  %y =", "  %bq = swizzle_scales %sq : tensor<[M, 6], f8E4M3FN, blocked>\n  %y =");
    let (program, _) = fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let fixture = Fixture { program, ..outputs(128) };
    let bound = bind(&fixture.program, &fixture.tensors).unwrap();
    let segment = &fixture.partition.segments[0];
    let given: Vec<&Tensor> = segment
        .inputs
        .iter()
        .map(|value| &fixture.tensors[fixture.program.module().name_of(*value)])
        .collect();
    let machine = Machine::new(&device, &fixture.kernels);
    let (program, partition, options) = (&fixture.program, &fixture.partition, RunOptions::default());
    let (_, run) =
        run_segment(program, partition, 0, &given, &bound.symbols, &options, Some(&machine)).unwrap();
    let reason = run.reason.unwrap();
    assert_eq!(reason.code, "kernel_refused");
    assert!(
        reason.message.starts_with("kernels write blocked scales, but `%sq` has another layout"),
        "{}",
        reason.message
    );
}

#[test]
fn a_segment_gives_its_outputs_in_their_order() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = outputs(91);
    let machine = Machine::new(&device, &fixture.kernels);
    let segment = &fixture.partition.segments[0];
    let given: Vec<&Tensor> = segment
        .inputs
        .iter()
        .map(|value| &fixture.tensors[fixture.program.module().name_of(*value)])
        .collect();
    let (program, partition, options) = (&fixture.program, &fixture.partition, RunOptions::default());
    for machine in [Some(&machine), None] {
        let (results, _) =
            run_segment(program, partition, 0, &given, &fixture.symbols(), &options, machine).unwrap();
        let expected: Vec<Tensor> =
            ["acc", "q", "sq", "peak", "peaks", "highest"].map(|name| fixture.expected(name)).into();
        assert_eq!(results, expected);
    }
}

/// A program's inputs and outputs on a device, the outputs poisoned.
struct Placed {
    buffers: HashMap<Value, Buffer>,
    outputs: Vec<Value>,
}

impl Placed {
    fn new(fixture: &Fixture, device: &Device) -> Placed {
        let module = fixture.program.module();
        let mut buffers = HashMap::new();
        for &input in &module.inputs {
            let bytes = fixture.tensors[module.name_of(input)].bytes();
            let buffer = device.alloc(bytes.len()).unwrap();
            device.stream().upload(&buffer, 0, bytes).unwrap();
            buffers.insert(input, buffer);
        }
        for &output in &module.outputs {
            let bytes = fixture.expected(module.name_of(output)).bytes().len();
            buffers.insert(output, device.alloc(bytes).unwrap());
        }
        let placed = Placed { buffers, outputs: module.outputs.clone() };
        placed.poison(device);
        placed
    }

    fn addresses(&self) -> HashMap<Value, u64> {
        self.buffers.iter().map(|(value, buffer)| (*value, buffer.address())).collect()
    }

    fn poison(&self, device: &Device) {
        for output in &self.outputs {
            let buffer = &self.buffers[output];
            device.stream().fill(buffer, 0, buffer.len(), 0xFF).unwrap();
        }
        device.synchronize().unwrap();
    }

    fn prepare(&self, fixture: &Fixture, device: &Device) -> Result<PreparedProgram, Refused> {
        self.prepare_at(fixture, device, &self.addresses())
    }

    fn prepare_at(
        &self,
        fixture: &Fixture,
        device: &Device,
        addresses: &HashMap<Value, u64>,
    ) -> Result<PreparedProgram, Refused> {
        let machine = Machine::new(device, &fixture.kernels);
        let (program, partition) = (&fixture.program, &fixture.partition);
        // SAFETY: the addresses are those of buffers that outlive the result, or are refused.
        unsafe {
            Preparation::of_program(program, partition, &fixture.symbols(), &machine)?
                .bind_all(addresses.clone())
                .build()
        }
    }

    #[track_caller]
    fn check(&self, fixture: &Fixture, device: &Device, what: &str) {
        let module = fixture.program.module();
        for output in &self.outputs {
            let name = module.name_of(*output);
            let expected = fixture.expected(name);
            let mut bytes = vec![0; expected.bytes().len()];
            device.synchronize().unwrap();
            device.stream().download(&self.buffers[output], 0, &mut bytes).unwrap();
            let found =
                Tensor::new(expected.element(), expected.dims().to_vec(), expected.layout(), bytes).unwrap();
            if name == "y" {
                check_y(&found, fixture);
            } else {
                assert_eq!(found, expected, "%{name} {what}");
            }
        }
    }
}

#[test]
fn a_prepared_program_writes_every_output_and_keeps_the_rest_in_its_workspace() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for m in [1, 37, 130] {
        let fixture = outputs(m);
        let machine = Machine::new(&device, &fixture.kernels);
        let size =
            Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine)
                .unwrap()
                .workspace_size();
        // The codes, which only the second kernel reads, and the workspace of the first.
        assert_eq!(size, (m * 48).next_multiple_of(256) + 256);
        let placed = Placed::new(&fixture, &device);
        let mut prepared = placed.prepare(&fixture, &device).unwrap();
        assert_eq!((prepared.workspace().1, prepared.kernels()), (size, 2));
        let counts =
            || [Counter::Waits, Counter::Allocations, Counter::Up].map(|counter| stand_in.count(counter));
        let before = counts();
        let stream = device.new_stream().unwrap();
        // SAFETY: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(&stream) }.unwrap();
        assert_eq!(counts(), before);
        placed.check(&fixture, &device, "launched");
        let other = Placed::new(&fixture, &device);
        // SAFETY: as above.
        unsafe { prepared.update_addresses(&other.addresses()) }.unwrap();
        // SAFETY: as above.
        unsafe { prepared.launch(&stream) }.unwrap();
        other.check(&fixture, &device, "at other addresses");
    }
}

#[test]
fn outputs_are_bound_by_role_in_the_order_of_the_kernel() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for turn in 0..6 {
        let fixture = outputs(37);
        let mut interface = fixture.interface(0);
        interface.outputs.rotate_left(turn);
        if turn % 2 == 1 {
            interface.outputs.reverse();
            interface.operands.reverse();
        }
        let fixture = fixture.with_interface(0, &interface, &["RELU"]);
        let run = fixture.run(Some(&device), &RunOptions::default().keep_all(true).poison(0xFF)).unwrap();
        assert_eq!(story(&run), [KERNEL; 2]);
        for name in RETURNED.into_iter().chain(["q"]) {
            let expected = fixture.expected(name);
            assert_eq!(run.value(fixture.value(name)), Some(&expected), "%{name} of {interface:?}");
        }
        check_y(run.value(fixture.value("y")).unwrap(), &fixture);

        let machine = Machine::new(&device, &fixture.kernels);
        let segment = &fixture.partition.segments[0];
        let module = fixture.program.module();
        let given: Vec<&Tensor> =
            segment.inputs.iter().map(|value| &fixture.tensors[module.name_of(*value)]).collect();
        let (program, partition, options) = (&fixture.program, &fixture.partition, RunOptions::default());
        let symbols = fixture.symbols();
        let (results, _) =
            run_segment(program, partition, 0, &given, &symbols, &options, Some(&machine)).unwrap();
        let expected: Vec<Tensor> =
            ["acc", "q", "sq", "peak", "peaks", "highest"].map(|name| fixture.expected(name)).into();
        assert_eq!(results, expected, "in the order of the segment");

        let placed = Placed::new(&fixture, &device);
        let mut prepared = placed.prepare(&fixture, &device).unwrap();
        // SAFETY: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(device.stream()) }.unwrap();
        placed.check(&fixture, &device, "launched");
        let other = Placed::new(&fixture, &device);
        // SAFETY: as above.
        unsafe { prepared.update_addresses(&other.addresses()) }.unwrap();
        // SAFETY: as above.
        unsafe { prepared.launch(device.stream()) }.unwrap();
        other.check(&fixture, &device, "at other addresses");

        // A size that is one byte too large is reported with its value, wherever the kernel lists that value.
        let beyond = ["acc", "q", "sq", "peak", "peaks", "highest"][turn];
        let fixture = fixture.with_interface(0, &interface, &["RELU", &format!("EXTRA_OUTPUT={turn}")]);
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        let message = &run.segments[0].reason.as_ref().unwrap().message;
        let bytes = fixture.expected(beyond).bytes().len();
        let words = format!("`%{beyond}` takes {bytes} bytes, but the kernel writes {}", bytes + 1);
        assert!(message.starts_with(&words), "{message}");
    }
}

#[test]
fn a_kernel_whose_outputs_have_other_roles_is_not_launched() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let launches = stand_in.count(Counter::Launches);
    for position in 0..6 {
        let (lacks, has) = (format!("`y{position}`"), format!("`y{}`", position + 6));
        let refuse = |change: &dyn Fn(&mut Interface), words: &str| {
            let mut fixture = outputs(37);
            let mut interface = fixture.interface(0);
            change(&mut interface);
            fixture.kernels.remove(&1);
            let fixture = fixture.with_interface(0, &interface, &["RELU"]);
            let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
            let reason = run.segments[0].reason.as_ref().expect(words);
            assert_eq!(reason.code, "kernel_refused");
            assert!(reason.message.starts_with(words), "{}", reason.message);
            assert_eq!(run.value(fixture.value("sq")), Some(&fixture.expected("sq")));
        };
        refuse(
            &|it| _ = it.outputs.remove(position),
            &format!("the plan has the output {lacks}, but the kernel does not"),
        );
        refuse(
            &|it| it.outputs[position].role = format!("y{}", position + 6),
            &format!("the kernel has the output {has}, but the plan does not"),
        );
        refuse(
            &|it| it.outputs.push(it.outputs[position].clone()),
            &format!("the kernel has the output {lacks} twice"),
        );
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn outputs_share_memory_with_nothing() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = outputs(37);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&fixture, &device).unwrap();
    let mut refuse = |name: &str, address: u64, words: &str| {
        let changed = HashMap::from([(fixture.value(name), address)]);
        let mut addresses = placed.addresses();
        addresses.extend(&changed);
        let refused = placed.prepare_at(&fixture, &device, &addresses).unwrap_err();
        assert_eq!(refused.code, "alias", "{refused}");
        assert!(refused.message.contains(words), "{refused}");
        // SAFETY: the new addresses are refused, and the old ones remain.
        let refused = unsafe { prepared.update_addresses(&changed) }.unwrap_err();
        assert_eq!(refused.code, "alias", "{refused}");
    };
    let at = |name: &str| placed.buffers[&fixture.value(name)].address();
    refuse("sq", at("acc") + 1024, "`%acc` and `%sq` share memory, and a kernel writes to it");
    refuse("peak", at("peaks") + 380, "`%peaks` and `%peak` share memory");
    refuse("highest", at("y"), "share memory");
    refuse("peak", at("g"), "share memory");
    refuse("peaks", at("bias") + 16, "`%bias` and `%peaks` share memory");
    // SAFETY: the buffers live until the end, and each launch is waited for.
    unsafe { prepared.launch(device.stream()) }.unwrap();
    placed.check(&fixture, &device, "at the old addresses");
}

#[test]
fn scales_that_nobody_reads_are_written_to_the_workspace() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let source = PROGRAM
        .replace(
            "  return %acc, %sq, %peak, %peaks, %highest, %y",
            "  return %acc, %q, %peak, %peaks, %highest",
        )
        .lines()
        .filter(|line| !line.contains("%y ="))
        .fold(String::new(), |source, line| source + line + "\n");
    let mut fixture = outputs(37);
    fixture.program = fourfold_ir::load(&source).unwrap().0;
    fixture.partition.segments.pop();
    let unused = fixture.value("sq");
    fixture.partition.segments[0].outputs.retain(|value| *value != unused);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [KERNEL]);
    assert_eq!(run.value(fixture.value("q")), Some(&fixture.expected("q")));
    assert_eq!(run.value(unused), None);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&fixture, &device).unwrap();
    assert_eq!(prepared.workspace().1, 1024 + 256, "the scales, and the kernel's own");
    // SAFETY: the buffers live until the end, and each launch is waited for.
    unsafe { prepared.launch(device.stream()) }.unwrap();
    placed.check(&fixture, &device, "without scales");
}
