//! Values are bound to the roles of a kernel by name, in any order. Roles that one side lacks are refused.

use std::collections::HashMap;

use fourfold_executor::device::Device;
use fourfold_executor::kernel::{Extents, MAX_OPERANDS};
use fourfold_executor::{KERNEL_REFUSED, Machine, Preparation, RunOptions, SegmentKernel};
use fourfold_ir::sample::{Recipe, Rule, inputs};
use fourfold_ir::{BinaryKind, BlockFormat, Dim, ElementType, Op, OperandShape};
use fourfold_scheduler::{
    Decision, EpilogueKind, EpilogueOperand, EpilogueRef, EpilogueStep, KernelOutput, OutputKind, Partition,
    Plan, ScaledMmaPlan, Segment, SegmentKind,
};

use super::fixture::{Between, Fixture, N, layers, story};
use super::interface::{Interface, role};
use super::placed::Placed;
use super::stand_in::{Counter, StandIn};

const KERNEL: (&str, Option<&str>) = ("kernel", None);

/// One kernel with a value in each role that a product can have.
const PROGRAM: &str = "fir 1
func @every_role(
    %x: tensor<[M, 64], f4E2M1FN>, %sx: tensor<[M, 4], f8E4M3FN, blocked>, %c: tensor<[M, 40], f32>,
    param %w: tensor<[40, 64], f4E2M1FN>, param %sw: tensor<[40, 4], f8E4M3FN, blocked>,
    param %alpha: tensor<[], f32>, param %beta: tensor<[], f32>, param %bias: tensor<[40], f32>
) {
  %product = scaled_mma %x, %sx, %w, %sw, alpha = %alpha, c = %c, beta = %beta {block = 16} : tensor<[M, 40], f32>
  %y = add %product, %bias : tensor<[M, 40], f32>
  return %y
}
";

fn every_role(m: u64) -> Fixture {
    let (program, _) = fourfold_ir::load(PROGRAM).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let value = |name: &str| program.facts().value_named(name).unwrap();
    let ops: Vec<Op> = program.module().ops.keys().collect();
    let plan = ScaledMmaPlan {
        root: ops[0],
        format: BlockFormat::NVFP4,
        batch: Dim::fixed(1),
        m: program.module().ty(value("x")).shape[0].clone(),
        n: Dim::fixed(40),
        k: Dim::fixed(64),
        b_batched: false,
        groups: None,
        a: value("x"),
        sfa: Some(value("sx")),
        linear_sfa: false,
        b: value("w"),
        sfb: value("sw"),
        alpha: Some(value("alpha")),
        c: Some(value("c")),
        beta: Some(value("beta")),
        accumulator: ElementType::F32,
        pair: None,
        epilogue: vec![EpilogueStep {
            op: ops[1],
            kind: EpilogueKind::Binary(BinaryKind::Add),
            operands: vec![EpilogueRef::Accumulator, EpilogueRef::Operand(0)],
            element: ElementType::F32,
        }],
        operands: vec![EpilogueOperand {
            value: value("bias"),
            shape: OperandShape::Row,
            element: ElementType::F32,
        }],
        outputs: vec![KernelOutput {
            of: EpilogueRef::Step(0),
            kind: OutputKind::Value { value: value("y") },
        }],
        proof: Vec::new(),
        constraints: Vec::new(),
    };
    let mut read = program.module().inputs.clone();
    read.sort_unstable();
    let segment = Segment {
        ops,
        inputs: read,
        outputs: vec![value("y")],
        kind: SegmentKind::Kernel(Box::new(Plan::ScaledMma(plan))),
    };
    let decisions = vec![Decision { segment: 0, rejection: None }; 2];
    let partition = Partition { target: "sm_100a".to_owned(), segments: vec![segment], decisions };
    let recipe = Recipe { rule: Rule::Exact, seed: 5, symbols: vec![("M".to_owned(), m)] };
    let tensors = inputs(&program, &recipe).unwrap();
    // The values differ, so that an exchange is detected.
    assert_ne!(tensors["alpha"], tensors["beta"]);
    Fixture { program, partition, tensors, kernels: HashMap::new() }.with_kernel(0, &[])
}

/// The names of the roles, operands before scalars before outputs.
fn names(interface: &Interface) -> Vec<String> {
    let Interface { operands, scalars, outputs, .. } = interface;
    let tensors =
        |roles: &[_]| roles.iter().map(|role: &fourfold_executor::kernel::Role| role.role.clone()).collect();
    let [read, written]: [Vec<String>; 2] = [tensors(operands), tensors(outputs)];
    [read, scalars.clone(), written].concat()
}

#[test]
fn values_are_bound_by_role_in_the_order_of_the_kernel() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let planned = every_role(37).interface(0);
    assert_eq!(names(&planned), ["a", "sfa", "b", "sfb", "c", "x0", "alpha", "beta", "y0"]);
    let values = HashMap::from([
        ("a", "x"),
        ("sfa", "sx"),
        ("b", "w"),
        ("sfb", "sw"),
        ("c", "c"),
        ("x0", "bias"),
        ("alpha", "alpha"),
        ("beta", "beta"),
        ("y0", "y"),
    ]);
    for turn in 0..6 {
        for reversed in [false, true] {
            let mut interface = planned.clone();
            interface.operands.rotate_left(turn);
            interface.scalars.rotate_left(turn % 2);
            interface.extents.rotate_left(turn % 4);
            if reversed {
                interface.operands.reverse();
                interface.extents.reverse();
            }
            let fixture = every_role(37).with_interface(0, &interface, &[]);
            let expected = fixture.expected("y");
            assert!(expected.to_f32().iter().any(|value| *value != 0.0));
            let run = fixture.run(Some(&device), &RunOptions::default().debug(true)).unwrap();
            assert_eq!(story(&run), [KERNEL], "{interface:?}");
            assert_eq!(run.value(fixture.value("y")), Some(&expected), "{interface:?}");
            // The record lists the arguments in the kernel's order.
            let record = run.segments[0].launch.as_ref().unwrap();
            let found: Vec<_> =
                record.arguments.iter().map(|it| (it.role.clone(), it.value.as_str())).collect();
            let named = |role: String| (role.clone(), values[role.as_str()]);
            assert_eq!(found, names(&interface).into_iter().map(named).collect::<Vec<_>>());
            assert_eq!(record.extent_names, interface.extents);
            let extents = HashMap::from([("L", 1), ("M", 37), ("N", N as i64), ("K", 64)]);
            let extents: Vec<i64> = interface.extents.iter().map(|name| extents[name.as_str()]).collect();
            assert_eq!(record.extents, extents);

            let placed = Placed::new(&fixture, &device);
            let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
            // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
            unsafe { prepared.launch(device.stream()) }.unwrap();
            assert_eq!(placed.y(), expected.bytes());
            let other = Placed::new(&fixture, &device);
            // SAFETY: nothing is in flight.
            unsafe { prepared.update_addresses(&other.addresses()) }.unwrap();
            // SAFETY: as above.
            unsafe { prepared.launch(device.stream()) }.unwrap();
            assert_eq!(other.y(), expected.bytes());
        }
    }
}

#[test]
fn kernels_of_one_program_may_differ_in_their_order() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for between in [Between::Nothing, Between::AnOpOfTheHost] {
        let fixture = layers(91, 64, between);
        let last = fixture.partition.segments.len() - 1;
        let mut interface = fixture.interface(last);
        interface.operands.reverse();
        interface.extents.swap(1, 3);
        let fixture = fixture.with_interface(last, &interface, &["WORKSPACE=300"]);
        let run = fixture.run(Some(&device), &RunOptions::default().poison(0xFF)).unwrap();
        assert_eq!((story(&run)[0], story(&run)[last]), (KERNEL, KERNEL));
        assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    }
}

/// Checks that a kernel of the first layer with changed metadata is refused, in a run and in a preparation.
#[track_caller]
fn refuse(device: &Device, change: &dyn Fn(&mut Interface), words: &str) {
    let fixture = layers(37, 64, Between::Nothing);
    let mut interface = fixture.interface(0);
    change(&mut interface);
    refuse_fixture(device, &fixture.with_interface(0, &interface, &["RELU"]), words);
}

#[track_caller]
fn refuse_fixture(device: &Device, fixture: &Fixture, words: &str) {
    let run = fixture.run(Some(device), &RunOptions::default()).unwrap();
    let expected = format!("{words}; this is a bug in Fourfold: an accepted kernel must run");
    assert_eq!(story(&run), [("fallback", Some(KERNEL_REFUSED)), KERNEL], "{words}");
    assert_eq!(run.segments[0].reason.as_ref().unwrap().message, expected);
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    let machine = Machine::new(device, &fixture.kernels);
    let symbols = fixture.symbols();
    let preparation = Preparation::of_program(&fixture.program, &fixture.partition, &symbols, &machine);
    let refused = preparation.err().expect(words);
    assert_eq!((refused.code, refused.segment, &refused.message), (KERNEL_REFUSED, Some(0), &expected));
}

#[test]
fn a_role_that_the_kernel_or_the_plan_lacks_is_a_refusal() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let launches = stand_in.count(Counter::Launches);
    let mut cases = 0;
    let mut refuse = |change: &dyn Fn(&mut Interface), words: &str| {
        refuse(&device, change, words);
        cases += 1;
    };
    let planned = layers(37, 64, Between::Nothing).interface(0);
    assert_eq!(names(&planned), ["a", "sfa", "b", "sfb", "x0", "alpha", "y0"]);
    for (position, lacked) in planned.operands.iter().enumerate() {
        let name = &lacked.role;
        let none = format!("the plan has the operand `{name}`, but the kernel does not");
        refuse(&|it| _ = it.operands.remove(position), &none);
        let twice = format!("the kernel has the operand `{name}` twice");
        refuse(&|it| it.operands.push(lacked.clone()), &twice);
        let other = "the kernel has the operand `values`, but the plan does not";
        refuse(&|it| it.operands[position].role = "values".to_owned(), other);
    }
    for (name, element) in [("c", "f32"), ("x1", "f32"), ("y0", "f32"), ("A", "f4E2M1FN"), ("alpha", "f32")] {
        let words = format!("the kernel has the operand `{name}`, but the plan does not");
        refuse(&|it| it.operands.push(role(name, element, Some(&[]))), &words);
        refuse(&|it| it.operands.insert(0, role(name, element, None)), &words);
    }
    refuse(&|it| it.scalars.clear(), "the plan has the scalar `alpha`, but the kernel does not");
    for (name, fault) in
        [("beta", ", but the plan does not"), ("alpha", " twice"), ("x0", ", but the plan does not")]
    {
        let words = format!("the kernel has the scalar `{name}`{fault}");
        refuse(&|it| it.scalars.push(name.to_owned()), &words);
    }
    refuse(
        &|it| it.scalars[0] = "global".to_owned(),
        "the kernel has the scalar `global`, but the plan does not",
    );
    refuse(&|it| it.outputs.clear(), "the plan has the output `y0`, but the kernel does not");
    for (name, fault) in
        [("y1", ", but the plan does not"), ("y0", " twice"), ("d", ", but the plan does not")]
    {
        let words = format!("the kernel has the output `{name}`{fault}");
        refuse(&|it| it.outputs.push(role(name, "f32", Some(&["L", "M", "N"]))), &words);
    }
    refuse(
        &|it| it.outputs[0].role = "y1".to_owned(),
        "the kernel has the output `y1`, but the plan does not",
    );
    let others = "the kernel's extents differ from the plan's";
    for position in 0..4 {
        refuse(&|it| _ = it.extents.remove(position), others);
        let twice = format!("the kernel has the extent `{}` twice", planned.extents[position]);
        refuse(&|it| it.extents.push(it.extents[position].clone()), &twice);
        let unknown = "the kernel has the extent `H`, but the plan does not";
        refuse(&|it| it.extents[position] = "H".to_owned(), unknown);
    }
    refuse(&|it| it.extents.clear(), others);
    refuse(&|it| it.extents = vec!["M".to_owned(); 9], "the kernel has the extent `M` twice");
    assert_eq!(
        stand_in.count(Counter::Launches) - launches,
        cases,
        "the second kernel of each, and no other"
    );
}

#[test]
fn a_role_of_another_size_is_a_refusal() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let refuse = |change: &dyn Fn(&mut Interface), words: &str| refuse(&device, change, words);
    refuse(
        &|it| it.operands[0] = role("a", "f4E2M1FN", Some(&["L", "M", "N"])),
        "`a` has 2368 elements, but the kernel expects 1480",
    );
    refuse(
        &|it| it.operands[2] = role("b", "f4E2M1FN", Some(&["L", "N", "K", "M"])),
        "`b` has 2560 elements, but the kernel expects 94720",
    );
    refuse(
        &|it| it.operands[4] = role("x0", "f32", Some(&["L", "M"])),
        "`x0` has 40 elements, but the kernel expects 37",
    );
    refuse(
        &|it| it.operands[4] = role("x0", "f32", Some(&[])),
        "`x0` has 40 elements, but the kernel expects 1",
    );
    refuse(
        &|it| it.operands[4] = role("x0", "f32", Some(&["H"])),
        "`x0` has 40 elements, but the kernel expects unknown",
    );
    // The kernel reports the size of a tensor without extents as 0.
    refuse(&|it| it.operands[0].extents = None, "`a` takes 1184 bytes, but the kernel reads 0");
    refuse(&|it| it.operands[4].extents = None, "`x0` takes 160 bytes, but the kernel reads 0");
    // The scales are padded.
    refuse(
        &|it| it.operands[1] = role("sfa", "f8E4M3FN", Some(&["L", "M"])),
        "`sfa` has 148 elements, but the kernel expects 37",
    );
    // Four extents with a repeated name: another one is missing.
    refuse(&|it| it.extents[2] = "M".to_owned(), "the kernel has the extent `M` twice");

    let mut fixture = layers(37, 64, Between::Nothing);
    let bias = fixture.value("bias");
    fixture.plan(0).alpha = Some(bias);
    refuse_fixture(&device, &fixture, "`alpha` has 40 elements, but the kernel expects 1");
}

#[test]
fn a_kernel_that_reads_more_than_a_call_has_room_for_is_refused() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let crowded = |operands: usize| {
        let mut fixture = layers(37, 64, Between::Nothing);
        let bias = fixture.plan(0).operands[0];
        // A and B with their scales are the first four.
        fixture.plan(0).operands = vec![bias; operands - 4];
        let fixture = fixture.with_kernel(0, &["RELU"]);
        assert_eq!(fixture.interface(0).operands.len(), operands);
        fixture
    };
    let fixture = crowded(MAX_OPERANDS);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [KERNEL; 2]);
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    let words = "it has more operands or outputs than the kernel ABI allows";
    refuse_fixture(&device, &crowded(MAX_OPERANDS + 1), words);
}

#[test]
fn an_empty_problem_is_known_by_the_names_of_its_extents() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let launches = stand_in.count(Counter::Launches);
    let mut interface = every_role(0).interface(0);
    interface.extents.reverse();
    interface.operands.reverse();
    let fixture = every_role(0).with_interface(0, &interface, &[]);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [KERNEL]);
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    // The kernel is not called for an empty problem: this one would refuse its K.
    let fixture = layers(0, 160, Between::Nothing);
    let mut backwards = fixture.interface(0);
    backwards.extents.reverse();
    let run = fixture.with_interface(0, &backwards, &["RELU"]).run(Some(&device), &RunOptions::default());
    assert_eq!(story(&run.unwrap()), [KERNEL; 2]);
    assert_eq!(stand_in.count(Counter::Launches), launches);
    // Roles are compared nevertheless.
    interface.operands.pop();
    let fixture = every_role(0).with_interface(0, &interface, &[]);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [("fallback", Some(KERNEL_REFUSED))]);
}

#[test]
fn a_kernel_that_lacks_the_offsets_of_scales_runs() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = every_role(37);
    let SegmentKernel::Ready(kernel) = &fixture.kernels[&0] else { panic!("it is built") };
    assert_eq!(kernel.scale_offset("sfa", &Extents::of_product(1, 37, N as i64, 64), 0, 0, 0), None);
    assert_eq!(story(&fixture.run(Some(&device), &RunOptions::default()).unwrap()), [KERNEL]);
}
