//! Kernels that are measured: what becomes of right ones, slow ones, and those that fail in any way.

use std::time::{Duration, Instant};

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::kernel::{Kernel, Problem};
use fourfold_executor::measure::{
    CALL_MISMATCH, CallData, EMPTY_PROBLEM, MeasureOptions, Outcome, Refusal, Slot, Timing, Wrong, measure,
};
use fourfold_ir::Tensor;

use crate::fixture::{Between, N, layers};
use crate::stand_in::{Counter, StandIn, kernel};

/// Three times this is less than 6 copies of the call, and more than 5.
const L2: u64 = 6000;
const COPIES: usize = 6;
/// 20, and as many more as give each copy the same number of turns.
const CALLS: usize = 24;
const M: usize = 5;
/// Bytes of D.
const D: u64 = 4 * M as u64 * N;

const FIRST: &str = "nvfp4 alpha row=f32 d=f32";
const OPTIONS: MeasureOptions = MeasureOptions {
    calls: 20,
    replays: 6,
    warm_up: Duration::ZERO,
    quick_us: None,
    time_limit: Duration::from_secs(10),
};
/// The stand-in takes half a millisecond for each call, and for the event behind them.
const MICROSECONDS: f64 = 500.0 * (CALLS + 1) as f64 / CALLS as f64;

struct Call {
    problem: Problem,
    inputs: Vec<(Slot, Vec<u8>)>,
    expected: Vec<Vec<u8>>,
}

impl Call {
    /// r = relu(alpha · x·w1 + bias), or the product that follows it: y = x·w2 + beta · r.
    fn new(segment: usize, k: u64) -> Call {
        let fixture = layers(M, k, Between::Nothing);
        let bytes = |tensor: &Tensor| tensor.bytes().to_vec();
        let given = |slot, name: &str| (slot, bytes(&fixture.tensors[name]));
        let mut inputs = vec![given(Slot::A, "x"), given(Slot::Sfa, "sx")];
        let expected = match segment {
            0 => {
                inputs.extend([given(Slot::B, "w1"), given(Slot::Sfb, "sw1")]);
                inputs.extend([given(Slot::Operand(0), "bias"), given(Slot::Alpha, "alpha")]);
                bytes(&fixture.expected("r"))
            }
            _ => {
                inputs.extend([given(Slot::B, "w2"), given(Slot::Sfb, "sw2"), given(Slot::Beta, "beta")]);
                inputs.push((Slot::C, bytes(&fixture.expected("r"))));
                bytes(&fixture.expected("y"))
            }
        };
        let problem = Problem { l: 1, m: M as i64, n: N as i64, k: k as i64 };
        Call { problem, inputs, expected: vec![expected] }
    }

    fn measure(
        &self,
        kernel: &Kernel,
        device: &Device,
        options: &MeasureOptions,
    ) -> Result<Outcome, DeviceError> {
        let Call { problem, inputs, expected } = self;
        measure(kernel, device, CallData { problem: *problem, inputs, expected }, options)
    }

    fn slot(&mut self, slot: Slot) -> &mut Vec<u8> {
        &mut self.inputs.iter_mut().find(|(of, _)| *of == slot).unwrap().1
    }
}

fn open(stand_in: &StandIn) -> Device {
    stand_in.l2(L2);
    Device::open(0).unwrap()
}

fn timing(outcome: Result<Outcome, DeviceError>) -> Timing {
    match outcome {
        Ok(Outcome::Good { timing, .. }) => timing,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_right_kernel_is_timed_over_copies_beyond_the_cache() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let relu = kernel(FIRST, &["RELU"]);
    let call = Call::new(0, 64);
    let launches = stand_in.count(Counter::Launches);
    let outcome = call.measure(&relu, &device, &OPTIONS).unwrap();
    let Outcome::Good { timing, compared } = &outcome else { panic!("{outcome:?}") };
    assert_eq!(timing.samples_us, [MICROSECONDS; 6]);
    let expected = Timing {
        samples_us: timing.samples_us.clone(),
        median_us: MICROSECONDS,
        min_us: MICROSECONDS,
        p90_us: MICROSECONDS,
        dispersion: 0.0,
        calls: CALLS,
        copies: COPIES,
        // A, its scales, B, its scales, alpha and the bias.
        rotation_bytes: 6 * (160 + 512 + 1280 + 512 + 4 + 160 + D),
        l2_bytes: L2,
    };
    assert_eq!(timing, &expected);
    assert!(timing.is_rotating());
    // Before anything is timed those of both halves, and at the end those that were timed.
    assert_eq!(*compared, 3 * COPIES as u64 * D);
    // Each call once, and once more when it is recorded.
    assert_eq!(stand_in.count(Counter::Launches) - launches, 2 * 2 * CALLS as u64);
}

#[test]
fn operands_of_every_kind_and_several_outputs_are_placed() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let second = kernel("nvfp4 c=f32 beta d=f32", &["WORKSPACE=300"]);
    assert_eq!(timing(Call::new(1, 64).measure(&second, &device, &OPTIONS)).samples_us.len(), 6);

    let mut call = Call::new(0, 64);
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    let r: Vec<f32> = call.expected[0].chunks(4).map(value).collect();
    let column = |n: usize| r[n..].iter().step_by(N as usize).fold(0f32, |most, value| most.max(*value));
    let amax = (0..N as usize).flat_map(|n| column(n).to_le_bytes()).collect();
    call.expected.push(amax);
    let signature = "nvfp4 alpha row=f32 d=f32 amax=row";
    timing(call.measure(&kernel(signature, &["RELU"]), &device, &OPTIONS));
    // One byte of the second.
    let outcome = call.measure(&kernel(signature, &["RELU", "SPOIL=7"]), &device, &OPTIONS).unwrap();
    let Outcome::Wrong(wrong) = &outcome else { panic!("{outcome:?}") };
    assert_eq!((wrong.output, wrong.byte, wrong.bytes, wrong.copy), (1, 7, 4 * N, 0));
    assert_eq!((wrong.found, wrong.expected), (0x5A, call.expected[1][7]));
    let copies = COPIES as u64;
    assert_eq!((wrong.wrong, wrong.compared), (2 * copies, 2 * copies * (D + 4 * N)));
}

#[test]
fn the_least_of_everything_is_kept_and_warming_up_takes_its_time() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let relu = kernel(FIRST, &["RELU"]);
    let warm_up = Duration::from_millis(40);
    let options = MeasureOptions { calls: 0, replays: 0, warm_up, ..OPTIONS };
    let begun = Instant::now();
    let timing = timing(Call::new(0, 64).measure(&relu, &device, &options));
    assert!(begun.elapsed() >= warm_up);
    assert_eq!((timing.calls, timing.samples_us.len()), (CALLS, 5));
}

#[test]
fn a_slow_kernel_is_right_and_not_measured_further() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let relu = kernel(FIRST, &["RELU"]);
    let call = Call::new(0, 64);
    let quick = |quick_us| MeasureOptions { quick_us: Some(quick_us), ..OPTIONS };
    let slow = call.measure(&relu, &device, &quick(MICROSECONDS - 1.0)).unwrap();
    assert_eq!(slow, Outcome::Slow { estimate_us: MICROSECONDS, compared: 2 * COPIES as u64 * D });
    timing(call.measure(&relu, &device, &quick(MICROSECONDS + 1.0)));
    // One call and its event; two of them were made.
    let options = MeasureOptions { time_limit: Duration::from_millis(100), ..OPTIONS };
    let slow = call.measure(&relu, &device, &options).unwrap();
    assert_eq!(slow, Outcome::Slow { estimate_us: 1000.0, compared: 2 * D });
    // What is wrong is not called slow.
    let silent = kernel(FIRST, &["WRITES_NOTHING"]);
    for options in [options, quick(1.0)] {
        let outcome = call.measure(&silent, &device, &options).unwrap();
        assert!(matches!(&outcome, Outcome::Wrong(_)), "{outcome:?}");
    }
}

#[test]
fn a_kernel_that_writes_nothing_more_or_beside_its_output_is_wrong() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let call = Call::new(0, 64);
    let wrong = |defines: &[&str]| match call.measure(&kernel(FIRST, defines), &device, &OPTIONS).unwrap() {
        Outcome::Wrong(wrong) => wrong,
        other => panic!("{other:?}"),
    };
    let all = 2 * COPIES as u64 * D;
    // Bytes that are as expected although nobody writes them: other ones at first than later.
    let expected_to_be =
        |byte: u8| call.expected[0].iter().filter(|expected| **expected == byte).count() as u64;
    assert!(expected_to_be(0xFF) > 0);
    let first = Wrong {
        output: 0,
        copy: 0,
        byte: 0,
        bytes: D,
        found: 0xFF,
        expected: call.expected[0][0],
        unwritten: true,
        wrong: all - 2 * COPIES as u64 * expected_to_be(0xFF),
        compared: all,
    };
    assert_eq!(wrong(&["WRITES_NOTHING"]), first);
    // Each call twice, an estimate, and six replays of both halves, in the last of which nothing is written any more.
    let before = 2 * CALLS * 7;
    let late = wrong(&["RELU", &format!("RIGHT_RUNS={before}")]);
    let half = all / 2 - COPIES as u64 * expected_to_be(0x7F);
    assert_eq!(late, Wrong { found: 0x7F, wrong: half, compared: 3 * all / 2, ..first });
    timing(call.measure(
        &kernel(FIRST, &["RELU", &format!("RIGHT_RUNS={}", before + 48)]),
        &device,
        &OPTIONS,
    ));
    let without_relu = wrong(&[]);
    assert!(!without_relu.unwritten && (1..all).contains(&without_relu.wrong), "{without_relu:?}");

    let behind = wrong(&["RELU", &format!("SPOIL={D}")]);
    assert_eq!((behind.byte, behind.bytes, behind.found, behind.expected), (D, D, 0x5A, 0xFF));
    assert_eq!(behind.wrong, 2 * COPIES as u64);
    assert!(behind.to_string().contains("was written 0 bytes behind the end of output 0; "), "{behind}");
}

#[test]
fn a_call_that_is_not_the_kernel_s_is_refused_before_anything_is_launched() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let launches = stand_in.count(Counter::Launches);
    let relu = kernel(FIRST, &["RELU"]);
    let refused = |call: &Call, kernel: &Kernel, device: &Device| match call.measure(kernel, device, &OPTIONS)
    {
        Ok(Outcome::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let mismatch = |change: &dyn Fn(&mut Call), message: &str| {
        let mut call = Call::new(0, 64);
        change(&mut call);
        let expected = Refusal { code: CALL_MISMATCH, message: message.to_owned() };
        assert_eq!(refused(&call, &relu, &device), expected);
    };
    for (slot, words) in [
        (Slot::A, "the kernel reads 160 bytes of A, and the call has 159"),
        (Slot::Sfa, "the kernel reads 512 bytes of the scales of A, and the call has 511"),
        (Slot::B, "the kernel reads 1280 bytes of B, and the call has 1279"),
        (Slot::Sfb, "the kernel reads 512 bytes of the scales of B, and the call has 511"),
        (Slot::Alpha, "the kernel reads 4 bytes of alpha, and the call has 3"),
        (Slot::Operand(0), "the kernel reads 160 bytes of operand 0, and the call has 159"),
    ] {
        let shorter = |call: &mut Call| {
            let bytes = call.slot(slot);
            bytes.truncate(bytes.len() - 1);
        };
        mismatch(&shorter, words);
        mismatch(&|call| call.inputs.push(call.inputs[0].clone()), "the call has A twice");
    }
    mismatch(
        &|call| call.inputs.retain(|(slot, _)| *slot != Slot::Alpha),
        "the kernel reads 4 bytes of alpha, and the call has 0",
    );
    mismatch(
        &|call| call.inputs.push((Slot::Operand(1), vec![0; 4])),
        "the call has operand 1, which the kernel does not read",
    );
    mismatch(
        &|call| call.inputs.push((Slot::C, vec![0; 4])),
        "the call has C, which the kernel does not read",
    );
    mismatch(
        &|call| call.expected[0].push(0),
        "the kernel writes 800 bytes of output 0, and 801 are expected",
    );
    mismatch(&|call| call.expected.clear(), "the kernel writes 800 bytes of output 0, and 0 are expected");
    mismatch(
        &|call| call.expected.push(vec![0]),
        "the kernel writes 0 bytes of output 1, and 1 are expected",
    );
    mismatch(&|call| call.expected = vec![vec![0]; 9], "9 outputs are expected, and no kernel has them");

    let call = Call::new(0, 64);
    let code = |kernel: &Kernel| refused(&call, kernel, &device).code;
    assert_eq!(code(&kernel(FIRST, &["EXTRA_SCALES=1"])), CALL_MISMATCH);
    assert_eq!(code(&kernel(FIRST, &["EXTRA_OUTPUT=0"])), CALL_MISMATCH);
    assert_eq!(code(&kernel("mixed d=f32", &[])), CALL_MISMATCH);
    assert_eq!(code(&kernel(FIRST, &["PREPARE_STATUS=7"])), "internal");
    assert_eq!(code(&kernel(FIRST, &["TARGET=\"sm_120a\""])), "no_device");
    let other = Device::open(1).unwrap();
    assert_eq!(
        refused(&call, &relu, &other).to_string(),
        "no_device: a kernel for sm_100a needs a GPU of target sm_100a, and this is Stand-in 1 (sm_90, 148 SMs, \
         1.0 GiB)"
    );
    // What the kernel itself refuses.
    let refusal = refused(&Call::new(0, 160), &relu, &device);
    assert_eq!(refusal.to_string(), "invalid: the kernel answered 11 (invalid): K is 160");
    for problem in [Problem { l: 0, ..call.problem }, Problem { m: 0, ..call.problem }] {
        let nothing = Call { problem, inputs: Vec::new(), expected: Vec::new() };
        assert_eq!(refused(&nothing, &relu, &device).code, EMPTY_PROBLEM);
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn a_kernel_that_cannot_be_launched_leaves_the_device_well() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let call = Call::new(0, 64);
    // 1701 is cudaErrorLaunchOutOfResources.
    for (define, code) in
        [("LAUNCH_STATUS=7", 7), ("LAUNCH_STATUS=1701", 1701), ("PREPARE_STATUS=1002", 1002)]
    {
        let outcome = call.measure(&kernel(FIRST, &[define]), &device, &OPTIONS).unwrap();
        let Outcome::LaunchFailed(error @ DeviceError::Launch { status }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((status.code, error.is_sticky()), (code, false));
    }
    timing(call.measure(&kernel(FIRST, &["RELU"]), &device, &OPTIONS));
}

#[test]
fn a_kernel_that_loses_the_device_is_an_error_and_not_an_outcome() {
    let stand_in = StandIn::new();
    let call = Call::new(0, 64);
    for defines in [
        &["RUN_STATUS=719"][..],
        &["LAUNCH_STATUS=1719"],
        &["PREPARE_STATUS=1719"],
        // The kernel's own status hides what the driver knows.
        &["CLEAR=719", "PREPARE_STATUS=7"],
        &["CLEAR=719"],
    ] {
        let device = open(&stand_in);
        let error = call.measure(&kernel(FIRST, defines), &device, &OPTIONS).unwrap_err();
        assert!(error.is_sticky() && error.to_string().contains("719"), "{defines:?}: {error}");
        drop(device);
        stand_in.reset();
    }
}

#[test]
fn a_device_without_room_has_fewer_copies_and_at_last_none() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let relu = kernel(FIRST, &["RELU"]);
    let call = Call::new(0, 64);
    // Operands once, outputs with what follows them and workspaces twice.
    let needed = |copies: u64, calls: u64| copies * 3072 + 2 * copies * 1280 + 2 * calls * 256;
    stand_in.limit(needed(6, 24));
    assert_eq!(timing(call.measure(&relu, &device, &OPTIONS)).copies, 6);
    for limit in [needed(6, 24) - 1, needed(4, 20)] {
        stand_in.limit(limit);
        let timing = timing(call.measure(&relu, &device, &OPTIONS));
        assert_eq!((timing.copies, timing.calls, timing.is_rotating()), (4, 20, false));
    }
    stand_in.limit(needed(4, 20) - 1);
    let error = call.measure(&relu, &device, &OPTIONS).unwrap_err();
    assert_eq!(error, DeviceError::OutOfMemory { bytes: 2 * 20 * 256 });
    assert_eq!(stand_in.count(Counter::Memories), 0);
}
