//! Runs with kernels: their results, the tensors moved, and the reasons why a kernel does not run.

use std::collections::HashMap;

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::{
    Machine, Moved, Ran, RunError, RunOptions, RunReason, SegmentKernel, run, run_segment,
};
use fourfold_ir::bind::bind;
use fourfold_ir::{Dim, Tensor};
use fourfold_scheduler::{Constraint, ReasonCode};

use super::fixture::{Between, EMULATED, Fixture, N, flattened, layers, story};
use super::stand_in::{Counter, StandIn};

const KERNEL: (&str, Option<&str>) = ("kernel", None);
const HOST: (&str, Option<&str>) = ("fallback", None);

fn not(code: &'static str) -> (&'static str, Option<&'static str>) {
    ("fallback", Some(code))
}

fn bytes(fixture: &Fixture, names: &[&str]) -> u64 {
    names.iter().map(|name| fixture.tensors[*name].bytes().len() as u64).sum()
}

#[test]
fn kernels_compute_what_the_fallback_computes() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for (m, between) in [
        (1, Between::Nothing),
        (37, Between::AnOpOfTheHost),
        (130, Between::Nothing),
        (91, Between::AnOpOfTheHost),
    ] {
        let fixture = layers(m, 64, between);
        let expected = fixture.expected("y");
        assert!(expected.to_f32().iter().any(|value| *value != 0.0));
        for bits in 0..8 {
            let [keep_all, poison, locate] = [1, 2, 4].map(|bit| bits & bit != 0);
            let poison = poison.then_some(0xFF);
            let run = fixture
                .run(Some(&device), &RunOptions::default().keep_all(keep_all).poison(poison).locate(locate))
                .unwrap();
            assert_eq!(run.value(fixture.value("y")), Some(&expected), "M = {m}");
            let host = (between == Between::AnOpOfTheHost).then_some(HOST);
            let segments: Vec<_> = [KERNEL].into_iter().chain(host).chain([KERNEL]).collect();
            assert_eq!(story(&run), segments);
            let measured: Vec<bool> = run
                .segments
                .iter()
                .map(|segment| segment.kernel_seconds.is_some_and(|time| time > 0.0))
                .collect();
            let expected: Vec<bool> = segments.iter().map(|segment| locate && *segment == KERNEL).collect();
            assert_eq!(measured, expected);
        }
    }
}

#[test]
fn a_batch_with_one_b_is_given_to_the_kernel_as_one_matrix() {
    let _stand_in = StandIn::new();
    let device = Device::open(1).unwrap();
    for batch in [3, 1] {
        let fixture = flattened(batch, 128);
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        assert_eq!(story(&run), [("emulated", None)]);
        assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    }
    // The scales of 150 rows are padded for each matrix, so a plan that flattens the batch is wrong and is refused.
    let fixture = flattened(2, 150);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [not("kernel_refused")]);
    let message = &run.segments[0].reason.as_ref().unwrap().message;
    assert!(
        message.starts_with("`sfa` takes 2048 bytes, but the kernel reads 1536; this is a bug"),
        "{message}"
    );
}

#[test]
fn a_value_moves_once_and_only_where_it_is_needed() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::AnOpOfTheHost);
    let before = [Counter::Up, Counter::Down].map(|counter| stand_in.count(counter));
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    let d = 37 * N * 4;
    let moved: Vec<Moved> = run.segments.iter().map(|segment| segment.moved).collect();
    let expected = [
        Moved { to_device: bytes(&fixture, &["x", "sx", "w1", "sw1", "alpha", "bias"]), to_host: 0 },
        // r, which the host negates.
        Moved { to_device: 0, to_host: d },
        // c is copied, but not x and sx again; y is returned to the caller.
        Moved { to_device: bytes(&fixture, &["w2", "sw2", "beta"]) + d, to_host: d },
    ];
    assert_eq!(moved, expected);
    let up: u64 = moved.iter().map(|moved| moved.to_device).sum();
    let after = [Counter::Up, Counter::Down].map(|counter| stand_in.count(counter));
    assert_eq!([after[0] - before[0], after[1] - before[1]], [up, 2 * d]);

    let fixture = layers(37, 64, Between::Nothing);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!([run.segments[0].moved.to_host, run.segments[1].moved.to_host], [0, d]);
    // With `keep_all`, r is returned too. Values that were fused away do not exist.
    let run = fixture.run(Some(&device), &RunOptions::default().keep_all(true)).unwrap();
    assert_eq!(run.segments[0].moved.to_host, d);
    assert_eq!(run.value(fixture.value("r")), Some(&fixture.expected("r")));
    assert_eq!(["product", "biased", "x"].map(|name| run.value(fixture.value(name)).is_some()), [false; 3]);
}

#[test]
fn memory_is_used_again_within_a_run() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    // C of the second kernel has the size of r, which is no longer needed by then.
    let fixture = layers(130, 64, Between::AnOpOfTheHost);
    let before = stand_in.count(Counter::Allocations);
    fixture.run(Some(&device), &RunOptions::default()).unwrap();
    let operands = 6 + 3;
    let (results, workspaces) = (2, 2);
    let allocations = stand_in.count(Counter::Allocations) - before;
    assert!(allocations < operands + 1 + results + workspaces, "{allocations}");
}

#[test]
fn why_a_kernel_does_not_run_is_found_out_in_a_fixed_order() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    // The stand-in kernel refuses K = 160.
    let mut fixture = layers(37, 160, Between::Nothing);
    let (dim, code) = (fixture.plan(0).m.clone(), ReasonCode::KAlignment);
    fixture.plan(0).constraints.push(Constraint::Multiple { name: "M", dim, of: 2, code });
    let unavailable = RunReason { code: "compile_error", message: "the compiler was tired".to_owned() };
    fixture.kernels.insert(0, SegmentKernel::Unavailable(unavailable.clone()));
    let expected = fixture.expected("y");
    let reason = |fixture: &Fixture, device: Option<&Device>| {
        let run = fixture.run(device, &RunOptions::default()).unwrap();
        assert_eq!(run.value(fixture.value("y")), Some(&expected));
        assert_eq!(run.segments[0].ran, Ran::Fallback);
        run.segments[0].reason.clone().unwrap()
    };
    assert_eq!(reason(&fixture, None).code, "k_alignment");
    assert_eq!(reason(&fixture, Some(&device)).code, "k_alignment");
    fixture.plan(0).constraints.pop();
    assert_eq!(reason(&fixture, None).code, "no_device");
    assert_eq!(reason(&fixture, Some(&device)), unavailable);
    fixture.kernels.remove(&0);
    let found = reason(&fixture, Some(&device));
    assert_eq!((found.code, found.message.as_str()), ("not_built", "no kernel was passed for segment 0"));
    stand_in.limit(64);
    let fixture = fixture.with_kernel(0, &["RELU"]);
    let found = reason(&fixture, Some(&device));
    assert_eq!(found.code, "kernel_refused");
    assert_eq!(
        found.message,
        "the kernel returned status 11 (invalid): K is 160; this is a bug in Fourfold: an accepted kernel must run"
    );
}

#[test]
fn no_kernel_is_launched_on_buffers_that_are_not_what_it_reads() {
    let stand_in = StandIn::new();
    let device = Device::open(1).unwrap();
    let launches = stand_in.count(Counter::Launches);
    let fixture = flattened(2, 128).with_kernel(0, &[&EMULATED[..], &["EXTRA_SCALES=1"]].concat());
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [not("kernel_refused")]);
    let message = &run.segments[0].reason.as_ref().unwrap().message;
    assert!(
        message.starts_with("`sfb` takes 512 bytes, but the kernel reads 513; this is a bug"),
        "{message}"
    );

    let mut fixture = flattened(2, 128);
    fixture.plan(0).m = Dim::fixed(256);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [not("kernel_refused")]);
    let message = &run.segments[0].reason.as_ref().unwrap().message;
    assert!(
        message.starts_with("`a` has 16384 elements, but the kernel expects 32768; this is a bug"),
        "{message}"
    );
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn a_kernel_that_does_not_prepare_falls_back_unless_the_device_failed() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["PREPARE_STATUS=7"]);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [KERNEL, not("kernel_refused")]);
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));

    for define in ["PREPARE_STATUS=1001", "LAUNCH_STATUS=7"] {
        let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &[define]);
        let error = fixture.run(Some(&device), &RunOptions::default()).unwrap_err();
        let RunError::Device { segment: 1, kernel, source: DeviceError::Launch { .. }, .. } = &error else {
            panic!("{error}")
        };
        assert_eq!(kernel, "stand_in_gemm");
        assert!(
            error
                .to_string()
                .starts_with("kernel stand_in_gemm in segment 1 (%y = scaled_mma): the launch failed"),
            "{error}"
        );
        // Drops the kernel launched before, with its code. Nothing may be in flight.
        drop(fixture);
    }
}

#[test]
fn a_fault_of_the_emulation_is_an_error_that_names_it() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["EMULATION_FAULT=0"]);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    assert!(run.segments[1].synchronized, "the fault is read behind the launch");
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["EMULATION_FAULT=6"]);
    let error = fixture.run(Some(&device), &RunOptions::default()).unwrap_err();
    let RunError::Device { segment: 1, source: source @ DeviceError::Emulation { .. }, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((source.code(), source.is_sticky()), ("device_error", false));
    let words = "(%y = scaled_mma): the emulated kernel is wrong: fault 6: columns of tensor memory";
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn a_kernel_for_which_the_device_has_no_room_leaves_the_work_to_the_host() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    // 2 is cudaErrorMemoryAllocation.
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["PREPARE_STATUS=1002"]);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    assert_eq!(story(&run), [KERNEL, not("device_memory")]);
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    let message = &run.segments[1].reason.as_ref().unwrap().message;
    let words = "cannot allocate device memory for the kernel (the kernel returned status 1002";
    assert!(message.starts_with(words), "{message}");
}

#[test]
fn a_device_that_is_lost_while_a_kernel_is_prepared_is_not_a_refusal_of_the_kernel() {
    let stand_in = StandIn::new();
    // CUTLASS returns 7 for every error; only the driver knows the cause.
    for defines in [&["CLEAR=719", "PREPARE_STATUS=7"][..], &["PREPARE_STATUS=1719"]] {
        let device = Device::open(0).unwrap();
        let fixture = layers(37, 64, Between::Nothing).with_kernel(1, defines);
        let error = fixture.run(Some(&device), &RunOptions::default()).unwrap_err();
        let RunError::Device { segment: 1, source, .. } = &error else { panic!("{error}") };
        assert!(source.is_sticky(), "{error}");
        assert!(error.to_string().contains("719") && error.to_string().ends_with(')'), "{error}");
        assert!(error.to_string().contains("(restart the process; "), "{error}");
        drop((fixture, device));
        stand_in.reset();
    }
}

#[test]
fn a_kernel_of_another_signature_is_not_launched() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let launches = stand_in.count(Counter::Launches);
    let refuse = |fixture: &Fixture, words: &str| {
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        assert_eq!(story(&run), [not("kernel_refused"); 2]);
        assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
        let message = &run.segments[0].reason.as_ref().unwrap().message;
        assert!(message.contains(words), "{message}");
    };
    let mut fixture = layers(37, 64, Between::Nothing);
    let (first, second) = (fixture.kernels.remove(&0).unwrap(), fixture.kernels.remove(&1).unwrap());
    fixture.kernels.extend([(1, first), (0, second)]);
    refuse(&fixture, "signature is `nvfp4 c=f32 beta d=f32`, but the plan's is `nvfp4 alpha row=f32 d=f32`");
    for (signature, said) in [
        ("", "nothing"),
        ("nvfp4 alpha row=f32 d=bf16", "nvfp4 alpha row=f32 d=bf16"),
        ("nvfp4 row=f32 d=f32", "nvfp4 row=f32 d=f32"),
        ("mxfp4 alpha row=f32 d=f32", "mxfp4 alpha row=f32 d=f32"),
        ("nvfp4 alpha row=f16 d=f32", "nvfp4 alpha row=f16 d=f32"),
    ] {
        let other = fixture.interface(0).signed(signature);
        fixture.kernels.insert(0, SegmentKernel::Ready(other.kernel(&["RELU"])));
        refuse(&fixture, &format!("the kernel's signature is `{said}`"));
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn a_kernel_runs_only_on_the_device_that_it_is_for() {
    let _stand_in = StandIn::new();
    let (blackwell, hopper) = (Device::open(0).unwrap(), Device::open(1).unwrap());
    let run = |fixture: &Fixture, device| fixture.run(Some(device), &RunOptions::default()).unwrap();
    let native = flattened(3, 128).with_kernel(0, &[]);
    assert_eq!(story(&run(&native, &blackwell)), [KERNEL]);
    let refused = run(&native, &hopper);
    assert_eq!(story(&refused), [not("no_device")]);
    assert_eq!(
        refused.segments[0].reason.as_ref().unwrap().message,
        "a kernel for sm_100a needs a GPU of target sm_100a, but this GPU is Stand-in 1 (sm_90, 148 SMs, 1.0 GiB)"
    );
    let emulated = flattened(3, 128);
    assert_eq!(story(&run(&emulated, &hopper)), [("emulated", None)]);
    let refused = run(&emulated, &blackwell);
    assert_eq!(story(&refused), [not("no_device")]);
    let message = &refused.segments[0].reason.as_ref().unwrap().message;
    assert!(message.starts_with("a kernel for sm_120a, emulated, needs a GPU of target sm_90a"), "{message}");
}

#[test]
fn operands_are_waited_for_together_and_waiting_is_reported() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::AnOpOfTheHost);
    let before = stand_in.count(Counter::Waits);
    let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
    // Waits: for the operands of each kernel, for r, for y, and at the end.
    assert_eq!(stand_in.count(Counter::Waits) - before, 2 + 1 + 1 + 1);
    assert!(run.segments.iter().all(|segment| segment.synchronized), "{:?}", run.segments);
    let run = fixture.run(None, &RunOptions::default()).unwrap();
    assert!(run.segments.iter().all(|segment| !segment.synchronized), "{:?}", run.segments);
}

#[test]
fn a_device_without_room_leaves_the_work_to_the_host() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(130, 64, Between::Nothing);
    let expected = fixture.expected("y");
    let d = 130 * N * 4;
    let all = bytes(&fixture, &["x", "sx", "w1", "sw1", "w2", "sw2", "alpha", "beta", "bias"]) + 2 * d + 400;
    let mut stories = Vec::new();
    for limit in (0..=all).step_by(499).chain([all]) {
        stand_in.limit(limit);
        let run = fixture.run(Some(&device), &RunOptions::default()).unwrap();
        assert_eq!(run.value(fixture.value("y")), Some(&expected), "{limit} bytes");
        if stories.last() != Some(&story(&run)) {
            stories.push(story(&run));
        }
        if let Some(reason) = &run.segments[0].reason {
            assert!(reason.message.starts_with("cannot allocate "), "{}", reason.message);
        }
    }
    assert_eq!(stories.first().unwrap(), &[not("device_memory"); 2]);
    assert_eq!(stories.last().unwrap(), &[KERNEL; 2]);
}

#[test]
fn a_fault_of_the_device_is_located() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    // The upload of the first operand fails.
    stand_in.fault(700);
    let error = fixture.run(Some(&device), &RunOptions::default()).unwrap_err();
    let RunError::Device { segment: 0, source, .. } = &error else { panic!("{error}") };
    assert!(source.is_sticky() && source.code() == "device_error", "{source}");
    assert!(source.to_string().contains("CUDA_ERROR_700 (700): the stand-in says so"), "{source}");
    // The context stays lost.
    assert!(device.alloc(1).is_err());
    stand_in.fault(0);
    assert!(fixture.run(Some(&device), &RunOptions::default()).is_ok());
    // Memory that could not be freed in the lost context stays allocated.
    assert_ne!(stand_in.count(Counter::Memories), 0);
    stand_in.reset();
}

#[test]
fn a_kernel_that_faults_is_named_when_it_is_waited_for() {
    let stand_in = StandIn::new();
    for faulty in [0, 1] {
        let device = Device::open(0).unwrap();
        let fixture = layers(37, 64, Between::Nothing).with_kernel(faulty, &["RUN_STATUS=719"]);
        let options = RunOptions::default().locate(true);
        let error = fixture.run(Some(&device), &options).unwrap_err();
        let RunError::Device { segment, source, .. } = &error else { panic!("{error}") };
        assert_eq!((*segment, source.is_sticky()), (faulty, true), "{error}");
        drop((fixture, device));
        stand_in.reset();
    }
    // Otherwise the error appears at the next wait: for the operands of the second kernel, or for the result.
    for faulty in [0, 1] {
        let device = Device::open(0).unwrap();
        let fixture = layers(37, 64, Between::Nothing).with_kernel(faulty, &["RUN_STATUS=719"]);
        let error = fixture.run(Some(&device), &RunOptions::default()).unwrap_err();
        let RunError::Device { segment: 1, source, .. } = &error else { panic!("{error}") };
        assert!(
            matches!(source, DeviceError::Cuda { call: "cuStreamSynchronize", code: 719, .. }),
            "{error}"
        );
        drop((fixture, device));
        stand_in.reset();
    }
}

#[test]
fn an_empty_problem_launches_nothing_and_counts_as_run() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let emulating = Device::open(1).unwrap();
    let launches = stand_in.count(Counter::Launches);
    for (fixture, device) in [
        (layers(0, 64, Between::Nothing), &device),
        (layers(0, 160, Between::AnOpOfTheHost), &device),
        (flattened(0, 128), &emulating),
    ] {
        let run = fixture.run(Some(device), &RunOptions::default().locate(true)).unwrap();
        assert!(run.segments.iter().all(|segment| segment.reason.is_none()), "{:?}", run.segments);
        assert!(run.segments.iter().all(|segment| !segment.synchronized));
        assert_eq!(run.segments[0].kernel_seconds, None);
        assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn a_host_s_stream_is_worked_on() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::AnOpOfTheHost);
    let host = device.new_stream().unwrap();
    // SAFETY: the stream lives until the end.
    let stream = unsafe { device.borrow_stream(host.raw()) };
    let machine = Machine::new(&device, &fixture.kernels).with_stream(&stream).unwrap();
    let other = Device::open(1).unwrap();
    let refused = machine.with_stream(other.stream()).unwrap_err();
    assert_eq!(refused, DeviceError::OtherDevice { what: "stream" });
    assert_eq!(refused.to_string(), "the stream belongs to another device");
    let bound = bind(&fixture.program, &fixture.tensors).unwrap();
    let run =
        run(&fixture.program, &fixture.partition, &bound, &RunOptions::default(), Some(&machine)).unwrap();
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
}

#[test]
fn a_wrong_tensor_is_not_uploaded() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let mut bound = bind(&fixture.program, &fixture.tensors).unwrap();
    let position =
        fixture.program.module().inputs.iter().position(|input| *input == fixture.value("bias")).unwrap();
    bound.inputs[position] = &fixture.tensors["alpha"];
    let machine = Machine::new(&device, &fixture.kernels);
    let error = run(&fixture.program, &fixture.partition, &bound, &RunOptions::default(), Some(&machine))
        .unwrap_err();
    assert_eq!(error.to_string(), "`%bias` in segment 0 is [40], f32, but its tensor is [], f32");
}

#[test]
fn one_segment_runs_by_itself_under_the_same_rules() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(91, 64, Between::AnOpOfTheHost);
    let symbols = fixture.symbols();
    let machine = Machine::new(&device, &fixture.kernels);
    let values: HashMap<_, Tensor> =
        ["r", "c"].map(|name| (fixture.value(name), fixture.expected(name))).into();
    let given = |segment: usize| -> Vec<&Tensor> {
        let tensor = |value| {
            values.get(value).unwrap_or_else(|| &fixture.tensors[fixture.program.module().name_of(*value)])
        };
        fixture.partition.segments[segment].inputs.iter().map(tensor).collect()
    };
    let run = |segment, inputs: &[&Tensor], machine| {
        let options = RunOptions::default();
        run_segment(&fixture.program, &fixture.partition, segment, inputs, &symbols, &options, machine)
    };
    for (segment, name) in ["r", "c", "y"].into_iter().enumerate() {
        for machine in [Some(&machine), None] {
            let (outputs, ran) = run(segment, &given(segment), machine).unwrap();
            assert_eq!(outputs, [fixture.expected(name)]);
            let code = ran.reason.map(|reason| reason.code);
            let expected = match (segment, machine) {
                (1, _) => HOST,
                (_, Some(_)) => KERNEL,
                (_, None) => not("no_device"),
            };
            assert_eq!((ran.ran.as_str(), code), expected);
            assert_eq!(ran.moved.to_host > 0, expected == KERNEL);
        }
    }
    assert_eq!(run(3, &[], None).unwrap_err(), RunError::NoSuchSegment { segment: 3, count: 3 });
    assert!(matches!(run(0, &given(1), None), Err(RunError::Inputs { expected: 6, found: 1, .. })));
    let error = run(1, &[&fixture.tensors["x"]], None).unwrap_err();
    assert_eq!(error.to_string(), "`%r` in segment 1 is [91, 40], f32, but its tensor is [91, 64], f4E2M1FN");
}
