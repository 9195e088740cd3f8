//! Sessions: params are uploaded once, and calls allocate nothing once their extents are known.

use std::collections::HashMap;

use fourfold_executor::device::{Buffer, Device, DeviceError};
use fourfold_executor::{
    DeviceTensor, Machine, MemoryContent, Preparation, Ran, RunOptions, Session, SessionError, SessionInput,
    SessionRun,
};
use fourfold_ir::{ElementType, Tensor};

use super::blas::Setup;
use super::fixture::{Between, EMULATED, Fixture, layers};
use super::stand_in::{Counter, StandIn};
use super::tier::tier;

/// `%wn` and `%r` depend on `%w` only. `%r` is computed by the fallback.
const PROGRAM: &str = "fir 1
func @layers(%x: tensor<[M, 6], f32>, param %w: tensor<[5, 6], f32>) {
  %wn = neg %w : tensor<[5, 6], f32>
  %r = relu %wn : tensor<[5, 6], f32>
  %unused = relu %r : tensor<[5, 6], f32>
  %p = mma %x, %wn : tensor<[M, 5], f32>
  %q = mma %x, %r : tensor<[M, 5], f32>
  %y = add %p, %q : tensor<[M, 5], f32>
  return %y, %wn, %x
}
";

const COUNTERS: [Counter; 4] = [Counter::Allocations, Counter::Up, Counter::Down, Counter::Launches];

fn counts(stand_in: &StandIn) -> [u64; 4] {
    COUNTERS.map(|counter| stand_in.count(counter))
}

fn since(stand_in: &StandIn, before: [u64; 4]) -> [u64; 4] {
    let now = counts(stand_in);
    [0, 1, 2, 3].map(|at| now[at] - before[at])
}

impl Fixture {
    fn params(&self) -> HashMap<String, Tensor> {
        self.tensors.clone()
    }

    fn session(&self, device: &Device) -> Session {
        self.session_with(self.params(), Some(device)).unwrap()
    }

    /// Checks the outputs that a call returned on the host.
    #[track_caller]
    fn check_outputs(&self, run: &SessionRun) {
        let module = self.program.module();
        assert_eq!(run.outputs.len(), module.outputs.len());
        for (value, output) in module.outputs.iter().zip(&run.outputs) {
            let name = module.name_of(*value);
            assert_eq!(output.as_ref(), Some(&self.expected(name)), "%{name}");
        }
    }
}

#[test]
fn params_are_uploaded_once_and_calls_allocate_nothing() {
    let setup = Setup::new();
    let fixture = tier(PROGRAM, &[("M", 70)]).with_library(Ok(setup.blas()));
    let before = counts(&setup._stand_in);
    let more = || {
        [Counter::Waits, Counter::Loads, Counter::PinnedAllocations, Counter::Pageable, Counter::Copies]
            .map(|counter| setup._stand_in.count(counter))
    };
    let [_, no_loads, no_pinned, ..] = more();
    let mut session = fixture.session(&setup.device);
    // Products read `%wn` and `%r`. Only the dropped segments read `%w`.
    assert_eq!(since(&setup._stand_in, before), [2, 2 * 5 * 6 * 4, 0, 0]);
    assert_eq!(session.constant(fixture.value("wn")), Some(&fixture.expected("wn")));
    assert_eq!(session.constant(fixture.value("unused")), None, "nothing reads it");
    let x = &fixture.tensors["x"];
    let first = session.run(&[x.into()], &[]).unwrap();
    assert_eq!(first.refused, None);
    fixture.check_outputs(&first);
    let (x_bytes, y_bytes) = (70 * 6 * 4, 70 * 5 * 4);
    let before = counts(&setup._stand_in);
    let [waits, loads, pinned, pageable, copies] = more();
    for _ in 0..5 {
        let run = session.run(&[SessionInput::Host(x)], &[]).unwrap();
        fixture.check_outputs(&run);
        assert!(run.segments.is_empty());
    }
    // Each call has two products and one kernel, and copies through the page-locked memory of the first.
    assert_eq!(since(&setup._stand_in, before), [0, 5 * x_bytes, 5 * y_bytes, 15]);
    assert_eq!((loads, pinned), (no_loads + 1, no_pinned + 1), "the kernel is loaded once");
    assert_eq!(more(), [waits + 5, loads, pinned, pageable, copies + 10], "one wait for each call");
}

/// Inputs and outputs that are small, large, and empty with M = 0.
const SEVERAL: &str = "fir 1
func @several(
    %a: tensor<[M, 3], f32>, %b: tensor<[M, 5], f32>, %large: tensor<[M, 4096], f32>, %c: tensor<[M, 7], f32>
) {
  %ya = neg %a : tensor<[M, 3], f32>
  %yb = neg %b : tensor<[M, 5], f32>
  %yl = neg %large : tensor<[M, 4096], f32>
  %yc = neg %c : tensor<[M, 7], f32>
  return %ya, %yb, %yl, %yc
}
";

#[test]
fn small_tensors_share_a_copy_and_large_ones_are_copied_by_the_driver() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixtures: Vec<Fixture> = [70, 60, 0].map(|m| tier(SEVERAL, &[("M", m)])).into();
    let inputs_of = |fixture: &Fixture| ["a", "b", "large", "c"].map(|name| fixture.tensors[name].clone());
    let count = || [Counter::Copies, Counter::Pageable, Counter::Waits].map(|it| stand_in.count(it));
    let allocated = || [Counter::Allocations, Counter::PinnedAllocations].map(|it| stand_in.count(it));
    let mut session = fixtures[0].session(&device);
    // 70 rows of `%large` have 1.09 MiB, which the driver copies each way. 60 rows are uploaded in four pieces.
    for (fixture, copies, pageable) in [(&fixtures[0], 4, 2), (&fixtures[1], 5, 0), (&fixtures[2], 0, 0)] {
        let tensors = inputs_of(fixture);
        let inputs: Vec<SessionInput<'_>> = tensors.iter().map(SessionInput::from).collect();
        for turn in 0..3 {
            let (before, kept) = (count(), allocated());
            let run = session.run(&inputs, &[]).unwrap();
            assert_eq!(run.refused, None);
            fixture.check_outputs(&run);
            if turn > 0 {
                assert_eq!(count(), [before[0] + copies, before[1] + pageable, before[2] + 1]);
                assert_eq!(allocated(), kept);
            }
        }
    }
    assert_eq!(stand_in.count(Counter::Pinned), 1, "the session keeps the largest only");

    // A tensor on the device separates its neighbors.
    let (fixture, tensors) = (&fixtures[0], inputs_of(&fixtures[0]));
    let [b, yb] = [tensors[1].bytes().len(); 2].map(|bytes| device.alloc(bytes).unwrap());
    device.stream().upload(&b, 0, tensors[1].bytes()).unwrap();
    let on_device = |buffer| DeviceTensor::new(&device, buffer, ElementType::F32, vec![70, 5], None).unwrap();
    let mut inputs: Vec<SessionInput<'_>> = tensors.iter().map(SessionInput::from).collect();
    inputs[1] = on_device(&b).into();
    let outputs = [None, Some(on_device(&yb)), None, None];
    for _ in 0..2 {
        let before = count();
        let mut run = session.run(&inputs, &outputs).unwrap();
        assert_eq!(count(), [before[0] + 3 + 3, before[1] + 2, before[2] + 1]);
        let mut found = Tensor::zeros(ElementType::F32, vec![70, 5], None).unwrap();
        device.stream().download(&yb, 0, found.bytes_mut()).unwrap();
        run.outputs[1] = Some(found);
        fixture.check_outputs(&run);
    }
    drop(session);

    // Without page-locked memory, the driver copies everything.
    stand_in.limit_pinned(1 << 10);
    let mut session = fixture.session(&device);
    for _ in 0..2 {
        let before = count();
        fixture.check_outputs(&session.run(&inputs, &[]).unwrap());
        assert_eq!(count()[1] - before[1], count()[0] - before[0]);
    }
    assert_eq!(stand_in.count(Counter::Pinned), 0);
}

#[test]
fn tensors_may_be_on_the_device() {
    let setup = Setup::new();
    let fixture = tier(PROGRAM, &[("M", 33)]).with_library(Ok(setup.blas()));
    let device = &setup.device;
    let mut session = fixture.session(device);
    let x = &fixture.tensors["x"];
    let buffers: Vec<Buffer> = [x.bytes().len(), 33 * 5 * 4, 5 * 6 * 4, x.bytes().len()]
        .map(|bytes| device.alloc(bytes).unwrap())
        .into();
    device.stream().upload(&buffers[0], 0, x.bytes()).unwrap();
    let dims = [[33, 6], [33, 5], [5, 6], [33, 6]];
    let tensors: Vec<DeviceTensor<'_>> = buffers
        .iter()
        .zip(dims)
        .map(|(buffer, dims)| {
            DeviceTensor::new(device, buffer, ElementType::F32, dims.to_vec(), None).unwrap()
        })
        .collect();
    let outputs: Vec<Option<DeviceTensor<'_>>> = tensors[1..].iter().cloned().map(Some).collect();
    let check = |run: &SessionRun| {
        assert_eq!(run.refused, None);
        assert!(run.outputs.iter().all(Option::is_none));
        for (name, buffer) in ["y", "wn", "x"].iter().zip(&buffers[1..]) {
            let mut found = vec![0; buffer.len()];
            device.stream().download(buffer, 0, &mut found).unwrap();
            assert_eq!(found, fixture.expected(name).bytes(), "%{name}");
            device.stream().fill(buffer, 0, buffer.len(), 0xFF).unwrap();
            device.stream().synchronize().unwrap();
        }
    };
    check(&session.run(&[tensors[0].clone().into()], &outputs).unwrap());
    let before = counts(&setup._stand_in);
    let run = session.run(&[tensors[0].clone().into()], &outputs).unwrap();
    // Constants that are returned are uploaded from the host.
    assert_eq!(since(&setup._stand_in, before), [0, 5 * 6 * 4, 0, 3]);
    check(&run);
    // Each call may have other places, and extents are those of the call.
    let run = session.run(&[x.into()], &outputs).unwrap();
    check(&run);
    let run = session.run(&[tensors[0].clone().into()], &[]).unwrap();
    fixture.check_outputs(&run);
    let before = counts(&setup._stand_in);
    fixture.check_outputs(&session.run(&[tensors[0].clone().into()], &[]).unwrap());
    assert_eq!(since(&setup._stand_in, before)[0], 0);
}

/// `%m` runs on the fallback in every call.
const MIXED: &str = "fir 1
func @mixed(%x: tensor<[M, 6], f32>, param %w: tensor<[6], f32>) {
  %v = relu %w : tensor<[6], f32>
  %a = neg %x : tensor<[M, 6], f32>
  %m = mul %a, %v : tensor<[M, 6], f32>
  %b = neg %m : tensor<[M, 6], f32>
  %y = add %b, %a : tensor<[M, 6], f32>
  return %y
}
";

#[test]
fn a_program_with_the_fallback_runs_segment_by_segment_and_allocates_nothing_either() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(MIXED, &[("M", 70)]);
    let mut session = fixture.session(&device);
    let x = &fixture.tensors["x"];
    let run = session.run(&[x.into()], &[]).unwrap();
    fixture.check_outputs(&run);
    assert_eq!(run.refused.map(|refused| refused.code), Some("fallback_segment"));
    let ran: Vec<Ran> = run.segments.iter().map(|segment| segment.ran).collect();
    assert_eq!(ran, [Ran::Resident, Ran::Kernel, Ran::Fallback, Ran::Kernel, Ran::Kernel]);
    let before = counts(&stand_in);
    fixture.check_outputs(&session.run(&[x.into()], &[]).unwrap());
    let bytes = 70 * 6 * 4;
    assert_eq!(since(&stand_in, before), [0, 2 * bytes, 2 * bytes, 3], "x and %m, %a and %y");
    // A tensor on the device is copied.
    let buffer = device.alloc(bytes as usize).unwrap();
    device.stream().upload(&buffer, 0, x.bytes()).unwrap();
    let input = DeviceTensor::new(&device, &buffer, ElementType::F32, vec![70, 6], None).unwrap();
    let output = device.alloc(bytes as usize).unwrap();
    let to = DeviceTensor::new(&device, &output, ElementType::F32, vec![70, 6], None).unwrap();
    let run = session.run(&[input.into()], &[Some(to)]).unwrap();
    assert!(run.outputs[0].is_none());
    let mut found = vec![0; bytes as usize];
    device.stream().download(&output, 0, &mut found).unwrap();
    assert_eq!(found, fixture.expected("y").bytes());
}

#[test]
fn the_last_extents_are_kept_and_memory_is_bounded() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let text = "fir 1
func @chain(%x: tensor<[M, 6], f32>) {
  %a = neg %x : tensor<[M, 6], f32>
  %b = neg %a : tensor<[M, 6], f32>
  %y = neg %b : tensor<[M, 6], f32>
  return %y
}
";
    let fixtures: Vec<Fixture> = (0..20).map(|m| tier(text, &[("M", m)])).collect();
    let mut session = fixtures[0].session(&device);
    let mut most = 0;
    for fixture in &fixtures {
        fixture.check_outputs(&session.run(&[(&fixture.tensors["x"]).into()], &[]).unwrap());
        most = most.max(stand_in.count(Counter::Memories));
    }
    // An input, an output and intermediates for each.
    assert_eq!(most, 8 * 3);
    let before = counts(&stand_in);
    for fixture in fixtures[12..].iter().rev().chain(&fixtures[12..]) {
        fixture.check_outputs(&session.run(&[(&fixture.tensors["x"]).into()], &[]).unwrap());
    }
    assert_eq!(since(&stand_in, before)[0], 0, "the last eight");
    fixtures[3].check_outputs(&session.run(&[(&fixtures[3].tensors["x"]).into()], &[]).unwrap());
    assert_eq!(since(&stand_in, before)[0], 3);
    // Without memory for another one, the others are given up.
    stand_in.limit(stand_in.count(Counter::Bytes) + 64);
    let run = session.run(&[(&fixtures[10].tensors["x"]).into()], &[]).unwrap();
    fixtures[10].check_outputs(&run);
    assert_eq!((run.refused, stand_in.count(Counter::Memories)), (None, 3));
    stand_in.limit(10);
    let run = session.run(&[(&fixtures[11].tensors["x"]).into()], &[]).unwrap();
    fixtures[11].check_outputs(&run);
    assert_eq!(run.refused.map(|refused| refused.code), Some("device_memory"));
    assert!(run.segments.iter().all(|segment| segment.ran == Ran::Fallback));
}

#[test]
fn what_does_not_fit_is_refused() {
    let setup = Setup::new();
    let fixture = tier(PROGRAM, &[("M", 7)]).with_library(Ok(setup.blas()));
    let new = |params| fixture.session_with(params, Some(&setup.device));
    let missing = new(HashMap::new()).unwrap_err();
    assert!(matches!(&missing, SessionError::Bind(_)) && missing.to_string().contains("`%w: "), "{missing}");
    let other = Tensor::zeros(ElementType::F32, vec![5, 7], None).unwrap();
    let wrong = new(HashMap::from([("w".to_owned(), other.clone())])).unwrap_err();
    assert_eq!(wrong.to_string(), "`%w` is tensor<[5, 6], f32>, but its tensor is [5, 7], f32");

    let mut session = fixture.session(&setup.device);
    assert_eq!(session.inputs(), [fixture.value("x")]);
    let error = session.run(&[], &[]).unwrap_err();
    assert_eq!(error.to_string(), "`@layers` has 1 inputs besides params, not 0");
    let x = &fixture.tensors["x"];
    assert!(matches!(session.run(&[x.into()], &[None]), Err(SessionError::Count { what: "outputs", .. })));
    assert!(matches!(session.run(&[(&other).into()], &[]), Err(SessionError::Bind(_))));
    let codes = Tensor::zeros(ElementType::BF16, vec![7, 6], None).unwrap();
    assert!(matches!(session.run(&[(&codes).into()], &[]), Err(SessionError::Type { .. })));
    let second = Device::open(1).unwrap();
    let (here, there) = (setup.device.alloc(7 * 6 * 4).unwrap(), second.alloc(7 * 6 * 4).unwrap());
    let dims = || vec![7, 6];
    let foreign = DeviceTensor::new(&second, &there, ElementType::F32, dims(), None).unwrap();
    let error = session.run(&[foreign.into()], &[]).unwrap_err();
    assert_eq!(error, SessionError::Device(DeviceError::OtherDevice { what: "tensor" }));
    let mixed_up = DeviceTensor::new(&setup.device, &there, ElementType::F32, dims(), None);
    assert_eq!(mixed_up.unwrap_err(), DeviceError::OtherDevice { what: "buffer" });
    let small = DeviceTensor::new(&setup.device, &here, ElementType::F32, vec![8, 6], None);
    assert!(matches!(small, Err(DeviceError::Range { .. })));
    fixture.check_outputs(&session.run(&[x.into()], &[]).unwrap());
}

#[test]
fn a_session_prepares_launches_for_its_host() {
    let setup = Setup::new();
    let device = &setup.device;
    let fixture = tier(PROGRAM, &[("M", 33)]).with_library(Ok(setup.blas()));
    let session = fixture.session(device);
    let x = &fixture.tensors["x"];
    let [from, to] = [x.bytes().len(), 33 * 5 * 4].map(|bytes| device.alloc(bytes).unwrap());
    device.stream().upload(&from, 0, x.bytes()).unwrap();
    let addresses = [(fixture.value("x"), from.address()), (fixture.value("y"), to.address())];
    let preparation = session.prepare(&fixture.symbols()).unwrap().bind_all(addresses);
    // SAFETY: the buffers live until the end.
    let mut prepared = unsafe { preparation.build() }.unwrap();
    // The prepared program keeps the params.
    drop(session);
    assert_eq!(prepared.kernels(), 3, "two products and a sum");
    let stream = device.new_stream().unwrap();
    // SAFETY: as above; each launch is waited for.
    let graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }.unwrap();
    let mut found = vec![0; to.len()];
    stream.download(&to, 0, &mut found).unwrap();
    assert_eq!(found, fixture.expected("y").bytes());
}

#[test]
fn a_session_without_a_device_runs_on_the_fallback() {
    let fixture = tier(PROGRAM, &[("M", 7)]);
    let mut session = fixture.session_with(fixture.params(), None).unwrap();
    let run = session.run(&[(&fixture.tensors["x"]).into()], &[]).unwrap();
    fixture.check_outputs(&run);
    assert_eq!(run.refused.map(|refused| refused.code), Some("no_device"));
}

#[test]
fn a_session_moves_between_threads() {
    let setup = Setup::new();
    let fixture = tier(PROGRAM, &[("M", 7)]).with_library(Ok(setup.blas()));
    let mut sessions = [fixture.session(&setup.device), fixture.session(&setup.device)];
    for _ in 0..3 {
        for session in &mut sessions {
            std::thread::scope(|scope| {
                let run = scope.spawn(|| session.run(&[(&fixture.tensors["x"]).into()], &[]).unwrap());
                fixture.check_outputs(&run.join().unwrap());
            });
        }
    }
}

#[test]
fn sessions_run_at_the_same_time_on_one_device() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixtures: Vec<Fixture> = (0..3).map(|m| tier(MIXED, &[("M", 3 + m)])).collect();
    let chain = MIXED.replace("mul %a, %v", "add %a, %a").replace("  %v = relu %w : tensor<[6], f32>\n", "");
    let on_device: Vec<Fixture> = (0..3).map(|m| tier(&chain, &[("M", 9 + m)])).collect();
    let expected = |fixtures: &[Fixture]| fixtures.iter().map(|it| it.expected("y")).collect::<Vec<_>>();
    let programs = [(&fixtures, expected(&fixtures)), (&on_device, expected(&on_device))];
    std::thread::scope(|scope| {
        for (fixtures, expected) in programs.iter().chain(&programs) {
            let mut session = fixtures[0].session(&device);
            scope.spawn(move || {
                for turn in 0..60 {
                    let at = turn % fixtures.len();
                    let run = session.run(&[(&fixtures[at].tensors["x"]).into()], &[]).unwrap();
                    assert_eq!(run.outputs[0].as_ref(), Some(&expected[at]), "turn {turn}");
                }
            });
        }
    });
    assert_eq!(stand_in.count(Counter::Memories), 0);
}

#[test]
fn a_fault_of_the_emulation_is_an_error_of_the_call() {
    let _stand_in = StandIn::new();
    let device = Device::open(1).unwrap();
    for fault in ["EMULATION_FAULT=0", "EMULATION_FAULT=3"] {
        let fixture = layers(37, 64, Between::Nothing)
            .with_kernel(0, &["RELU", EMULATED[0], EMULATED[1]])
            .with_kernel(1, &["WORKSPACE=300", EMULATED[0], EMULATED[1], fault]);
        let mut session = fixture.session(&device);
        // A workspace in which faults are collected shares memory with nothing.
        let plan = session.prepare(&fixture.symbols()).unwrap().memory().clone();
        let workspace = MemoryContent::Workspace { segment: 1 };
        let part = plan.parts.iter().find(|part| part.content == workspace).unwrap();
        assert_eq!((part.first, part.last, plan.steps), (0, 1, 2), "it is live in every step");
        let inputs = ["x", "sx"].map(|name| SessionInput::from(&fixture.tensors[name]));
        for _ in 0..2 {
            match session.run(&inputs, &[]) {
                Ok(run) => {
                    assert_eq!((fault, run.refused.clone()), ("EMULATION_FAULT=0", None));
                    fixture.check_outputs(&run);
                }
                Err(error) => {
                    assert_eq!(fault, "EMULATION_FAULT=3");
                    let of_emulation = matches!(error, SessionError::Device(DeviceError::Emulation { .. }));
                    assert!(of_emulation, "{error}");
                }
            }
        }
    }
}

/// Two gathers, the second at indices that are always within its axis.
const GATHERS: &str = "fir 1
func @gathers(%x: tensor<[A, 6], f32>, %i: tensor<[M], i32>, %j: tensor<[M], i32>) {
  %n = neg %x : tensor<[A, 6], f32>
  %first = gather %n, %i {axis = 0} : tensor<[M, 6], f32>
  %second = gather %n, %j {axis = 0} : tensor<[M, 6], f32>
  %y = add %first, %second : tensor<[M, 6], f32>
  return %y
}
";

#[test]
fn a_bad_index_is_an_error_that_names_the_op() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let mut fixture = tier(GATHERS, &[("A", 5), ("M", 4)]);
    let good = Tensor::from_f64(ElementType::I32, vec![4], None, &[4.0, 0.0, 2.0, 2.0]).unwrap();
    let bad = Tensor::from_f64(ElementType::I32, vec![4], None, &[1.0, 0.0, -3.0, 5.0]).unwrap();
    fixture.tensors.extend([("i".to_owned(), good.clone()), ("j".to_owned(), good.clone())]);
    let mut session = fixture.session(&device);
    let x = &fixture.tensors["x"];
    let run = session.run(&[x.into(), (&good).into(), (&good).into()], &[]).unwrap();
    assert_eq!(run.refused, None);
    fixture.check_outputs(&run);
    let text =
        "`%first = gather` in segment 1: index -3, element 2 of the indices, is outside axis 0 of extent 5";
    for inputs in [[x, &bad, &good], [x, &bad, &bad]] {
        let error = session.run(&inputs.map(SessionInput::from), &[]).unwrap_err();
        assert_eq!(error.to_string(), text);
        // The next call knows nothing of it.
        fixture.check_outputs(&session.run(&[x.into(), (&good).into(), (&good).into()], &[]).unwrap());
    }
    let error = session.run(&[x.into(), (&good).into(), (&bad).into()], &[]).unwrap_err();
    assert_eq!(error.to_string(), text.replace("first", "second").replace("segment 1", "segment 2"));
    drop(session);
    assert_eq!(stand_in.count(Counter::Pinned), 0);
    fixture.tensors.insert("i".to_owned(), bad.clone());
    let error = fixture.run(Some(&device), &RunOptions::default()).unwrap_err();
    assert_eq!(error.to_string(), text, "as in a run");

    // A prepared program is asked by its host.
    let buffers = ["x", "i", "j"].map(|name| {
        let bytes = fixture.tensors[name].bytes();
        let buffer = device.alloc(bytes.len()).unwrap();
        device.stream().upload(&buffer, 0, bytes).unwrap();
        (fixture.value(name), buffer)
    });
    let y = device.alloc(4 * 6 * 4).unwrap();
    let machine = Machine::new(&device, &fixture.kernels);
    let (program, partition) = (&fixture.program, &fixture.partition);
    let preparation = Preparation::of_program(program, partition, &fixture.symbols(), &machine).unwrap();
    let preparation = preparation.bind_all(buffers.iter().map(|(value, buffer)| (*value, buffer.address())));
    // SAFETY: the buffers live until the end.
    let mut prepared = unsafe { preparation.bind(fixture.value("y"), y.address()).build() }.unwrap();
    // SAFETY: as above, and nothing is in flight after the wait.
    let mut launch = || unsafe {
        prepared.launch(device.stream()).unwrap();
        device.stream().synchronize().unwrap();
        prepared.fault()
    };
    let text = "kernel stand_in_row in segment 1 (%first = gather): the launch failed: the kernel returned status 104 \
                (index_out_of_range): index -3, element 2 of the indices, is outside an axis of extent 5 (correct the \
                indices: each must be within the axis that its `gather` reads)";
    assert_eq!(launch().unwrap().unwrap().to_string(), text);
    device.stream().upload(&buffers[1].1, 0, good.bytes()).unwrap();
    assert_eq!(launch(), Ok(None));
}

#[test]
fn a_fault_of_the_device_is_an_error_of_the_call() {
    let setup = Setup::new();
    let fixture = tier(PROGRAM, &[("M", 7)]).with_library(Ok(setup.blas()));
    let mut session = fixture.session(&setup.device);
    let x = &fixture.tensors["x"];
    session.run(&[x.into()], &[]).unwrap();
    setup._stand_in.fault(700);
    let error = session.run(&[x.into()], &[]).unwrap_err();
    assert!(matches!(&error, SessionError::Device(error) if error.is_sticky()), "{error}");
    setup._stand_in.fault(0);
    fixture.check_outputs(&session.run(&[x.into()], &[]).unwrap());
}
