//! Measurements: the outcomes of right kernels, slow kernels, and kernels that fail in any way.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::kernel::{Extents, Kernel, MAX_OPERANDS};
use fourfold_executor::measure::{
    CALL_MISMATCH, CallData, EMPTY_PROBLEM, MeasureOptions, Outcome, Refusal, Timing, Wrong, measure,
};
use fourfold_ir::Tensor;

use super::fixture::{Between, N, layers};
use super::interface::{Interface, role};
use super::stand_in::{Counter, StandIn};

/// Three times this is less than 6 copies of the call, and more than 5.
const L2: u64 = 6000;
const COPIES: usize = 6;
/// 20, rounded up so that each copy has the same number of turns.
const CALLS: usize = 24;
const M: usize = 5;
/// Bytes of D.
const D: u64 = 4 * M as u64 * N;

/// The interfaces of the two kernels of the layers.
static LAYERS: LazyLock<[Interface; 2]> = LazyLock::new(|| {
    let fixture = layers(M, 64, Between::Nothing);
    [0, 1].map(|segment| fixture.interface(segment))
});

fn first() -> Interface {
    LAYERS[0].clone()
}

fn first_kernel(defines: &[&str]) -> Kernel {
    first().kernel(defines)
}

const OPTIONS: MeasureOptions = MeasureOptions {
    calls: 20,
    replays: 6,
    warm_up: Duration::ZERO,
    quick_us: None,
    time_limit: Duration::from_secs(10),
};
/// The stand-in takes half a millisecond for each call, and for the event after them.
const MICROSECONDS: f64 = 500.0 * (CALLS + 1) as f64 / CALLS as f64;

struct Call {
    extents: Extents,
    inputs: Vec<(String, Vec<u8>)>,
    expected: Vec<Vec<u8>>,
}

impl Call {
    /// r = relu(alpha · x·w1 + bias), or the product that follows it: y = x·w2 + beta · r.
    fn new(segment: usize, k: u64) -> Call {
        let fixture = layers(M, k, Between::Nothing);
        let bytes = |tensor: &Tensor| tensor.bytes().to_vec();
        let given = |role: &str, name: &str| (role.to_owned(), bytes(&fixture.tensors[name]));
        let mut inputs = vec![given("a", "x"), given("sfa", "sx")];
        let expected = match segment {
            0 => {
                inputs.extend([given("b", "w1"), given("sfb", "sw1")]);
                inputs.extend([given("x0", "bias"), given("alpha", "alpha")]);
                bytes(&fixture.expected("r"))
            }
            _ => {
                inputs.extend([given("b", "w2"), given("sfb", "sw2"), given("beta", "beta")]);
                inputs.push(("c".to_owned(), bytes(&fixture.expected("r"))));
                bytes(&fixture.expected("y"))
            }
        };
        let extents = Extents::of_product(1, M as i64, N as i64, k as i64);
        Call { extents, inputs, expected: vec![expected] }
    }

    fn measure(
        &self,
        kernel: &Kernel,
        device: &Device,
        options: &MeasureOptions,
    ) -> Result<Outcome, DeviceError> {
        let Call { extents, inputs, expected } = self;
        measure(kernel, device, CallData { extents: *extents, inputs, expected }, options)
    }

    fn input(&mut self, role: &str) -> &mut Vec<u8> {
        &mut self.inputs.iter_mut().find(|(of, _)| of == role).unwrap().1
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
    let relu = first_kernel(&["RELU"]);
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
    // Compared before timing: the outputs of both halves. Compared at the end: those of the timed half.
    assert_eq!(*compared, 3 * COPIES as u64 * D);
    // Each call is launched once, and once more when it is recorded.
    assert_eq!(stand_in.count(Counter::Launches) - launches, 2 * 2 * CALLS as u64);
}

#[test]
fn operands_of_every_kind_and_several_outputs_are_placed() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let second = LAYERS[1].kernel(&["WORKSPACE=300"]);
    assert_eq!(timing(Call::new(1, 64).measure(&second, &device, &OPTIONS)).samples_us.len(), 6);

    let mut call = Call::new(0, 64);
    let value = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
    let r: Vec<f32> = call.expected[0].chunks(4).map(value).collect();
    let column = |n: usize| r[n..].iter().step_by(N as usize).fold(0f32, |most, value| most.max(*value));
    let amax = (0..N as usize).flat_map(|n| column(n).to_le_bytes()).collect();
    call.expected.push(amax);
    let mut reduces = first().signed("nvfp4 alpha row=f32 d=f32 amax=row");
    reduces.outputs.push(role("y1", "f32", Some(&["N"])));
    timing(call.measure(&reduces.kernel(&["RELU"]), &device, &OPTIONS));
    // A wrong byte of the second output.
    let outcome = call.measure(&reduces.kernel(&["RELU", "SPOIL=7"]), &device, &OPTIONS).unwrap();
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
    let relu = first_kernel(&["RELU"]);
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
    let relu = first_kernel(&["RELU"]);
    let call = Call::new(0, 64);
    let quick = |quick_us| MeasureOptions { quick_us: Some(quick_us), ..OPTIONS };
    let slow = call.measure(&relu, &device, &quick(MICROSECONDS - 1.0)).unwrap();
    assert_eq!(slow, Outcome::Slow { estimate_us: MICROSECONDS, compared: 2 * COPIES as u64 * D });
    timing(call.measure(&relu, &device, &quick(MICROSECONDS + 1.0)));
    // The estimate covers a call and its event. Two calls were made.
    let options = MeasureOptions { time_limit: Duration::from_millis(100), ..OPTIONS };
    let slow = call.measure(&relu, &device, &options).unwrap();
    assert_eq!(slow, Outcome::Slow { estimate_us: 1000.0, compared: 2 * D });
    // A wrong kernel is not reported as slow.
    let silent = first_kernel(&["WRITES_NOTHING"]);
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
    let wrong = |defines: &[&str]| match call.measure(&first_kernel(defines), &device, &OPTIONS).unwrap() {
        Outcome::Wrong(wrong) => wrong,
        other => panic!("{other:?}"),
    };
    let all = 2 * COPIES as u64 * D;
    // The numbers of bytes that match without being written. The first poison differs from the later one.
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
    // Two launches of each call, an estimate, and six replays of both halves, the last of which writes nothing.
    let before = 2 * CALLS * 7;
    let late = wrong(&["RELU", &format!("RIGHT_RUNS={before}")]);
    let half = all / 2 - COPIES as u64 * expected_to_be(0x7F);
    assert_eq!(late, Wrong { found: 0x7F, wrong: half, compared: 3 * all / 2, ..first });
    timing(call.measure(&first_kernel(&["RELU", &format!("RIGHT_RUNS={}", before + 48)]), &device, &OPTIONS));
    let without_relu = wrong(&[]);
    assert!(!without_relu.unwritten && (1..all).contains(&without_relu.wrong), "{without_relu:?}");

    let behind = wrong(&["RELU", &format!("SPOIL={D}")]);
    assert_eq!((behind.byte, behind.bytes, behind.found, behind.expected), (D, D, 0x5A, 0xFF));
    assert_eq!(behind.wrong, 2 * COPIES as u64);
    assert!(behind.to_string().contains("was written 0 bytes past the end of output 0; "), "{behind}");
}

#[test]
fn a_call_that_is_not_the_kernel_s_is_refused_before_anything_is_launched() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let launches = stand_in.count(Counter::Launches);
    let relu = first_kernel(&["RELU"]);
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
    for (role, words) in [
        ("a", "the kernel reads 160 bytes of `a`, but the call passes 159"),
        ("sfa", "the kernel reads 512 bytes of `sfa`, but the call passes 511"),
        ("b", "the kernel reads 1280 bytes of `b`, but the call passes 1279"),
        ("sfb", "the kernel reads 512 bytes of `sfb`, but the call passes 511"),
        ("alpha", "the kernel reads 4 bytes of `alpha`, but the call passes 3"),
        ("x0", "the kernel reads 160 bytes of `x0`, but the call passes 159"),
    ] {
        let shorter = |call: &mut Call| {
            let bytes = call.input(role);
            bytes.truncate(bytes.len() - 1);
        };
        mismatch(&shorter, words);
        let twice = |call: &mut Call| {
            let bytes = call.input(role).clone();
            call.inputs.push((role.to_owned(), bytes));
        };
        mismatch(&twice, &format!("the call passes `{role}` twice"));
        let full = Call::new(0, 64).input(role).len();
        mismatch(
            &|call| call.inputs.retain(|(of, _)| of != role),
            &format!("the kernel reads {full} bytes of `{role}`, but the call passes 0"),
        );
    }
    for role in ["x1", "c", "beta", "y0", "", "A"] {
        mismatch(
            &|call| call.inputs.push((role.to_owned(), vec![0; 4])),
            &format!("the call passes `{role}`, which the kernel does not read"),
        );
    }
    mismatch(
        &|call| call.expected[0].push(0),
        "the kernel writes 800 bytes of output 0, but 801 are expected",
    );
    mismatch(&|call| call.expected.clear(), "the kernel writes 800 bytes of output 0, but 0 are expected");
    mismatch(
        &|call| call.expected.push(vec![0]),
        "the kernel writes 0 bytes of output 1, but 1 are expected",
    );
    mismatch(
        &|call| call.expected = vec![vec![0]; 9],
        "9 outputs are expected, more than the kernel ABI allows",
    );

    let call = Call::new(0, 64);
    let code = |kernel: &Kernel| refused(&call, kernel, &device).code;
    assert_eq!(code(&first_kernel(&["EXTRA_SCALES=1"])), CALL_MISMATCH);
    assert_eq!(code(&first_kernel(&["EXTRA_OUTPUT=0"])), CALL_MISMATCH);
    let nothing = Interface { operands: Vec::new(), scalars: Vec::new(), ..first() };
    let without = nothing.kernel(&[]);
    let says_nothing = "call_mismatch: the metadata of the kernel lists no operands";
    assert_eq!(refused(&call, &without, &device).to_string(), says_nothing);
    assert_eq!(code(&first_kernel(&["PREPARE_STATUS=7"])), "internal");
    assert_eq!(code(&first_kernel(&["TARGET=\"sm_120a\""])), "no_device");
    let other = Device::open(1).unwrap();
    assert_eq!(
        refused(&call, &relu, &other).to_string(),
        "no_device: a kernel for sm_100a needs a GPU of target sm_100a, but this GPU is Stand-in 1 (sm_90, 148 SMs, \
         1.0 GiB)"
    );
    // A refusal by the kernel itself.
    let refusal = refused(&Call::new(0, 160), &relu, &device);
    assert_eq!(refusal.to_string(), "invalid: the kernel returned status 11 (invalid): K is 160");
    for (l, m) in [(0, M as i64), (1, 0)] {
        let extents = Extents::of_product(l, m, N as i64, 64);
        let nothing = Call { extents, inputs: Vec::new(), expected: Vec::new() };
        assert_eq!(refused(&nothing, &relu, &device).code, EMPTY_PROBLEM);
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn roles_are_bound_in_the_kernel_s_order_and_never_guessed() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let call = Call::new(0, 64);
    let mut reversed = first();
    reversed.operands.reverse();
    assert_eq!(timing(call.measure(&reversed.kernel(&["RELU"]), &device, &OPTIONS)).copies, COPIES);
    let mut other_way = Call::new(0, 64);
    other_way.inputs.reverse();
    timing(other_way.measure(&reversed.kernel(&["RELU"]), &device, &OPTIONS));
    // The kernel orders its extents differently, and so does the call.
    reversed.extents.reverse();
    let backwards = reversed.kernel(&["RELU"]);
    other_way.extents = Extents::new(&[64, N as i64, M as i64, 1]);
    timing(other_way.measure(&backwards, &device, &OPTIONS));
    let launches = stand_in.count(Counter::Launches);
    let refused = |call: &Call, kernel: &Kernel| match call.measure(kernel, &device, &OPTIONS) {
        Ok(Outcome::Refused(refusal)) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(refused(&call, &backwards).starts_with(CALL_MISMATCH));

    let other = |change: &dyn Fn(&mut Interface), words: &str| {
        let mut interface = first();
        change(&mut interface);
        assert_eq!(refused(&call, &interface.kernel(&["RELU"])), words);
    };
    other(&|it| _ = it.operands.pop(), "call_mismatch: the call passes `x0`, which the kernel does not read");
    other(
        &|it| _ = it.scalars.pop(),
        "call_mismatch: the call passes `alpha`, which the kernel does not read",
    );
    other(
        &|it| it.operands.push(role("x1", "bf16", Some(&["L", "M"]))),
        "call_mismatch: the kernel reads 10 bytes of `x1`, but the call passes 0",
    );
    other(
        &|it| it.scalars.push("beta".to_owned()),
        "call_mismatch: the kernel reads 4 bytes of `beta`, but the call passes 0",
    );
    other(
        &|it| it.operands[0].role = "values".to_owned(),
        "call_mismatch: the call passes `a`, which the kernel does not read",
    );
    other(
        &|it| it.operands[0].element = "f8E4M3FN".to_owned(),
        "call_mismatch: the kernel reads 320 bytes of `a`, but the call passes 160",
    );
    other(
        &|it| it.operands[4].element = "f12".to_owned(),
        "call_mismatch: the kernel reads `x0` of the unknown element type f12",
    );
    let unknown = "call_mismatch: the extents of `x0` are negative, unknown or too large";
    other(&|it| it.operands[4] = role("x0", "f32", Some(&["H"])), unknown);
    // The kernel reports the size of a tensor without extents as 0.
    other(
        &|it| it.operands[4].extents = None,
        "call_mismatch: the kernel reads 0 bytes of `x0`, but the call passes 160",
    );
    other(
        &|it| it.extents.push("H".to_owned()),
        "extent_out_of_range: the kernel returned status 100 (extent_out_of_range): the extents are others",
    );
    // The maximum number of arguments, and one more.
    let (mut crowded, mut call) = (first(), Call::new(0, 64));
    let mut add = |crowded: &mut Interface| {
        let name = format!("x{}", crowded.operands.len() - 4);
        crowded.operands.push(role(&name, "f32", Some(&[])));
        call.inputs.push((name, vec![0; 4]));
    };
    while crowded.operands.len() < MAX_OPERANDS {
        add(&mut crowded);
    }
    let full = crowded.kernel(&["RELU"]);
    add(&mut crowded);
    let overfull = crowded.kernel(&["RELU"]);
    refused(&call, &overfull);
    assert!(refused(&call, &full).ends_with("the call passes `x28`, which the kernel does not read"));
    call.inputs.pop();
    refused(&call, &overfull);
    assert_eq!(stand_in.count(Counter::Launches), launches);
    timing(call.measure(&full, &device, &OPTIONS));
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
        let outcome = call.measure(&first_kernel(&[define]), &device, &OPTIONS).unwrap();
        let Outcome::LaunchFailed(error @ DeviceError::Launch { status }) = &outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!((status.code, error.is_sticky()), (code, false));
    }
    timing(call.measure(&first_kernel(&["RELU"]), &device, &OPTIONS));
}

#[test]
fn a_kernel_that_loses_the_device_is_an_error_and_not_an_outcome() {
    let stand_in = StandIn::new();
    let call = Call::new(0, 64);
    for defines in [
        &["RUN_STATUS=719"][..],
        &["LAUNCH_STATUS=1719"],
        &["PREPARE_STATUS=1719"],
        // The kernel's own status hides the driver's error.
        &["CLEAR=719", "PREPARE_STATUS=7"],
        &["CLEAR=719"],
    ] {
        let device = open(&stand_in);
        let error = call.measure(&first_kernel(defines), &device, &OPTIONS).unwrap_err();
        assert!(error.is_sticky() && error.to_string().contains("719"), "{defines:?}: {error}");
        drop(device);
        stand_in.reset();
    }
}

#[test]
fn a_device_without_room_has_fewer_copies_and_at_last_none() {
    let stand_in = StandIn::new();
    let device = open(&stand_in);
    let relu = first_kernel(&["RELU"]);
    let call = Call::new(0, 64);
    // The memory for one copy of the operands per set, and twice the outputs with guards and the workspaces.
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
