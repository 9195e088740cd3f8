//! Prepared programs: workspaces, launches, graphs, addresses, and refusals.

use std::collections::HashMap;

use fourfold_executor::device::{Buffer, Device, DeviceError};
use fourfold_executor::{
    DEVICE_ERROR, DEVICE_MEMORY, KERNEL_REFUSED, Machine, NO_DEVICE, NO_SUCH_SEGMENT, Preparation, Refused,
    SegmentKernel,
};
use fourfold_ir::{Tensor, Value};
use fourfold_scheduler::{Constraint, ReasonCode};

use super::fixture::{Between, EMULATED, Fixture, N, layers};
use super::placed::Placed;
use super::stand_in::{Counter, StandIn};

/// The refusal of a preparation.
#[track_caller]
fn refused(preparation: Result<Preparation<'_>, Refused>) -> Refused {
    preparation.err().expect("it must be refused")
}

impl Placed<'_> {
    #[track_caller]
    fn refuse(&self, name: &str, address: Option<u64>, code: &str, words: &str) {
        let mut addresses = self.addresses();
        match address {
            Some(address) => addresses.insert(self.fixture.value(name), address),
            None => addresses.remove(&self.fixture.value(name)),
        };
        check(&self.prepare(&addresses, None).unwrap_err(), code, words);
    }
}

#[track_caller]
fn check(refused: &Refused, code: &str, words: &str) {
    assert_eq!(refused.code, code, "{refused}");
    assert!(refused.message.contains(words), "{refused}");
}

#[test]
fn a_program_of_kernels_is_launched_without_waiting_or_allocating() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for m in [1, 37, 130] {
        let fixture = layers(m, 64, Between::Nothing);
        let placed = Placed::new(&fixture, &device);
        let machine = Machine::new(&device, &fixture.kernels);
        let size =
            Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine)
                .unwrap()
                .workspace_size();
        // r, and the workspaces of 100 and 300 bytes, which share memory. Each is at a multiple of 256.
        assert_eq!(size, (m as u64 * N * 4).next_multiple_of(256) + 512);
        let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
        assert_eq!((prepared.workspace().1, prepared.kernels()), (size, 2));
        let counts =
            || [Counter::Waits, Counter::Allocations, Counter::Up].map(|counter| stand_in.count(counter));
        let before = counts();
        let stream = device.new_stream().unwrap();
        // SAFETY: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(&stream) }.unwrap();
        assert_eq!(counts(), before);
        stream.synchronize().unwrap();
        assert_eq!(placed.y(), fixture.expected("y").bytes());
    }
}

#[test]
fn a_launch_can_be_recorded_in_a_graph() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.stream();
    // SAFETY: the buffers live until the end, and each launch is waited for.
    let graph = stream.capture(|| unsafe { prepared.launch(stream) }).unwrap();
    assert_eq!(placed.y(), vec![0xFF; 37 * 40 * 4]);
    // The graph reads the memory at its addresses when it is launched.
    let other = Tensor::zeros(fixture.tensors["x"].element(), vec![37, 64], None).unwrap();
    let mut changed = layers(37, 64, Between::Nothing);
    changed.tensors.insert("x".to_owned(), other.clone());
    for (x, expected) in [(&fixture.tensors["x"], fixture.expected("y")), (&other, changed.expected("y"))] {
        stream.upload(&placed.buffers[&fixture.value("x")], 0, x.bytes()).unwrap();
        // SAFETY: as above.
        unsafe { graph.launch(stream) }.unwrap();
        assert_eq!(placed.y(), expected.bytes());
    }
}

#[test]
fn addresses_change_all_or_none() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let (x, y) = (fixture.value("x"), fixture.value("y"));
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let result = device.alloc(37 * 40 * 4).unwrap();
    // SAFETY: the buffers live until the end, and each launch is waited for.
    unsafe {
        let misaligned = HashMap::from([(y, result.address()), (x, placed.buffers[&x].address() + 8)]);
        check(&prepared.update_addresses(&misaligned).unwrap_err(), "pointer_alignment", "`%x` is at 0x");
        let aliased = HashMap::from([(y, placed.buffers[&x].address())]);
        check(&prepared.update_addresses(&aliased).unwrap_err(), "alias", "share memory");
        prepared.launch(device.stream()).unwrap();
        assert_eq!(placed.y(), fixture.expected("y").bytes());

        let mut found = vec![0; result.len()];
        prepared.update_addresses(&HashMap::from([(y, result.address())])).unwrap();
        prepared.launch(device.stream()).unwrap();
        device.stream().download(&result, 0, &mut found).unwrap();
        assert_eq!(found, fixture.expected("y").bytes());
    }
}

#[test]
fn the_workspace_may_be_the_caller_s() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(91, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let machine = Machine::new(&device, &fixture.kernels);
    let size = Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine)
        .unwrap()
        .workspace_size();
    let memory = device.alloc(size as usize + 256).unwrap();
    let addresses = placed.addresses();
    let prepare = |address, bytes| placed.prepare(&addresses, Some((address, bytes)));
    let at = memory.address();
    check(&prepare(at, size - 1).unwrap_err(), "workspace_size", &format!("{size} bytes are required"));
    check(&prepare(0, size).unwrap_err(), "workspace_size", "at 0x0");
    check(&prepare(u64::MAX - 255, size).unwrap_err(), "workspace_size", "are required");
    check(&prepare(at + 128, size).unwrap_err(), "pointer_alignment", "not a multiple of 256");
    let x = addresses[&fixture.value("x")];
    check(&prepare(x, size).unwrap_err(), "alias", "`%x` and the workspace share memory");
    let before = stand_in.count(Counter::Allocations);
    let mut prepared = prepare(at, size + 256).unwrap();
    assert_eq!((prepared.workspace(), stand_in.count(Counter::Allocations)), ((at, size), before));
    // SAFETY: the buffers live until the end.
    unsafe { prepared.launch(device.stream()) }.unwrap();
    assert_eq!(placed.y(), fixture.expected("y").bytes());
}

#[test]
fn addresses_that_do_not_do_are_refused() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let [w1, y] = ["w1", "y"].map(|name| placed.addresses()[&fixture.value(name)]);
    placed.refuse("sw2", None, "missing_address", "`%sw2` of 512 bytes has no address");
    placed.refuse("y", Some(0), "missing_address", "`%y` of 5920 bytes");
    placed.refuse("x", Some(u64::MAX - 15), "missing_address", "`%x`");
    placed.refuse("w1", Some(w1 + 8), "pointer_alignment", "which is not a multiple of 16");
    placed.refuse("y", Some(w1), "alias", "`%w1`");
    // The last bytes of y, which is 5920 long.
    placed.refuse("w1", Some(y + 5904), "alias", "`%y` and `%w1` share memory, and a kernel writes to it");
    // Inputs may share memory.
    let mut addresses = placed.addresses();
    addresses.insert(fixture.value("w2"), w1);
    assert!(placed.prepare(&addresses, None).is_ok());
}

#[test]
fn programs_that_do_not_run_as_kernels_only_are_refused() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let refuse = |fixture: &Fixture, code: &str, segment: Option<usize>, words: &str| {
        let placed = Placed::new(fixture, &device);
        let refused = placed.prepare(&placed.addresses(), None).unwrap_err();
        check(&refused, code, words);
        assert_eq!(refused.segment, segment);
    };
    refuse(
        &layers(37, 64, Between::AnOpOfTheHost),
        "fallback_segment",
        Some(1),
        "segment 1 runs on the fallback",
    );
    refuse(&layers(37, 160, Between::Nothing), "kernel_refused", Some(0), "K is 160");
    let mut fixture = layers(37, 64, Between::Nothing);
    let dim = fixture.plan(1).m.clone();
    let code = ReasonCode::KAlignment;
    fixture.plan(1).constraints.push(Constraint::Multiple { name: "M", dim, of: 4, code });
    refuse(&fixture, "k_alignment", Some(1), "M is 37; expected a multiple of 4");
    fixture.plan(1).constraints.pop();
    fixture.kernels.remove(&1);
    refuse(&fixture, "not_built", Some(1), "no kernel was passed");
    fixture = fixture.with_kernel(1, &["PREPARE_STATUS=1001"]);
    refuse(&fixture, DEVICE_ERROR, Some(1), "the stand-in does not prepare");
    fixture = fixture.with_kernel(1, &["PREPARE_STATUS=1002"]);
    refuse(&fixture, DEVICE_MEMORY, Some(1), "the stand-in does not prepare");
    fixture = fixture.with_kernel(1, &["PREPARE_STATUS=100"]);
    refuse(&fixture, KERNEL_REFUSED, Some(1), "this is a bug in Fourfold");
    fixture = fixture.with_kernel(1, &EMULATED);
    refuse(&fixture, NO_DEVICE, Some(1), "a kernel for sm_120a, emulated, needs a GPU of target sm_90a");
    let mut fixture = layers(37, 64, Between::Nothing);
    fixture.partition.segments.swap(0, 1);
    // Each kernel moves with its segment.
    let (first, second) = (fixture.kernels.remove(&0).unwrap(), fixture.kernels.remove(&1).unwrap());
    fixture.kernels.extend([(1, first), (0, second)]);
    let machine = Machine::new(&device, &fixture.kernels);
    let refused =
        refused(Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine));
    check(&refused, "missing_address", "no segment computes `%r` before segment 0 reads it");

    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    stand_in.limit(stand_in.count(Counter::Bytes));
    check(&placed.prepare(&placed.addresses(), None).unwrap_err(), "device_memory", "cannot allocate");
}

#[test]
fn a_program_that_is_refused_leaves_its_workspace_alone() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    // The first kernel clears its workspace while it is prepared, and the second is refused.
    let fixture = layers(37, 64, Between::Nothing)
        .with_kernel(0, &["RELU", "CLEAR=0"])
        .with_kernel(1, &["WORKSPACE=300", "PREPARE_STATUS=100"]);
    let placed = Placed::new(&fixture, &device);
    let machine = Machine::new(&device, &fixture.kernels);
    let size = Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine)
        .unwrap()
        .workspace_size();
    let memory = device.alloc(size as usize).unwrap();
    let refused = placed.prepare(&placed.addresses(), Some((memory.address(), size))).unwrap_err();
    check(&refused, KERNEL_REFUSED, "does not prepare");
    // After the refusal the caller may use the workspace again, here on another stream.
    let stream = device.new_stream().unwrap();
    stream.fill(&memory, 0, memory.len(), 0x5A).unwrap();
    stream.synchronize().unwrap();
    device.synchronize().unwrap();
    let mut found = vec![0; memory.len()];
    stream.download(&memory, 0, &mut found).unwrap();
    assert_eq!(found, vec![0x5A; memory.len()]);

    // The device is lost meanwhile: the device error is reported, not the refusal.
    let fixture = layers(37, 64, Between::Nothing)
        .with_kernel(0, &["RELU", "CLEAR=719"])
        .with_kernel(1, &["WORKSPACE=300", "PREPARE_STATUS=7"]);
    let addresses = placed.addresses();
    let lost = Placed { fixture: &fixture, device: &device, buffers: HashMap::new() };
    let refused = lost.prepare(&addresses, Some((memory.address(), size))).unwrap_err();
    check(&refused, DEVICE_ERROR, "CUDA_ERROR_719");
    check(&refused, DEVICE_ERROR, "restart the process");
    drop((placed, memory));
    stand_in.reset();
}

#[test]
fn a_launch_that_fails_on_a_lost_device_says_so_and_spoils_no_capture() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["WORKSPACE=300", "LAUNCH_STATUS=7"]);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    let waits = stand_in.count(Counter::Waits);
    // SAFETY: the buffers live until the end, and each launch is waited for.
    let mut launch = || unsafe { prepared.launch(&stream) };
    // The device is healthy and still busy.
    let error = launch().unwrap_err();
    assert!(matches!(&error, DeviceError::Launch { status } if status.code == 7), "{error}");
    assert_eq!(stand_in.count(Counter::Waits), waits);
    stream.synchronize().unwrap();
    let mut failed = None;
    let graph = stream.capture(|| {
        failed = launch().err();
        Ok(())
    });
    assert!(matches!(failed, Some(DeviceError::Launch { .. })), "{failed:?}");
    drop(graph.expect("the capture goes on"));

    stand_in.fault(700);
    stream.fill(&placed.buffers[&fixture.value("y")], 0, 4, 0).unwrap();
    assert!(stream.synchronize().is_err());
    let error = launch().unwrap_err();
    assert!(error.is_sticky(), "{error}");
    assert!(matches!(&error, DeviceError::Cuda { call: "cuStreamQuery", code: 700, .. }), "{error}");
    stand_in.fault(0);
}

#[test]
fn kernels_of_a_mixed_program_are_prepared_one_by_one() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for m in [1, 37, 130] {
        let fixture = layers(m, 64, Between::AnOpOfTheHost);
        let (program, partition, symbols) = (&fixture.program, &fixture.partition, fixture.symbols());
        let host = device.new_stream().unwrap();
        // SAFETY: `host` is a stream of this device and lives longer.
        let stream = unsafe { device.borrow_stream(host.raw()) };
        let machine = Machine::new(&device, &fixture.kernels).with_stream(&stream).unwrap();
        let refusal = refused(Preparation::of_program(program, partition, &symbols, &machine));
        assert_eq!((refusal.code, refusal.segment), ("fallback_segment", Some(1)));
        for (segment, result, own) in [(0, "r", 256), (2, "y", 512)] {
            let size = Preparation::of_segment(program, partition, segment, &symbols, &machine)
                .unwrap()
                .workspace_size();
            assert_eq!(size, own, "only the kernel's own");
            let planned = &partition.segments[segment];
            let mut buffers: HashMap<Value, Buffer> = HashMap::new();
            for &value in &planned.inputs {
                let name = program.module().name_of(value);
                let tensor = fixture.tensors.get(name).cloned().unwrap_or_else(|| fixture.expected(name));
                let buffer = device.alloc(tensor.bytes().len()).unwrap();
                stream.upload(&buffer, 0, tensor.bytes()).unwrap();
                buffers.insert(value, buffer);
            }
            let expected = fixture.expected(result);
            assert_eq!(planned.outputs, [fixture.value(result)]);
            let d = device.alloc(expected.bytes().len()).unwrap();
            stream.fill(&d, 0, d.len(), 0xFF).unwrap();
            let mut addresses: HashMap<Value, u64> =
                buffers.iter().map(|(value, buffer)| (*value, buffer.address())).collect();
            let workspace = device.alloc(size as usize).unwrap();
            let prepare = |addresses: &HashMap<Value, u64>, workspace| {
                // SAFETY: the addresses are those of buffers that outlive the result, or are refused.
                unsafe {
                    let mut preparation =
                        Preparation::of_segment(program, partition, segment, &symbols, &machine)?
                            .bind_all(addresses.clone());
                    if let Some((address, bytes)) = workspace {
                        preparation = preparation.workspace(address, bytes);
                    }
                    preparation.build()
                }
            };
            check(&prepare(&addresses, None).unwrap_err(), "missing_address", &format!("`%{result}`"));
            addresses.insert(planned.outputs[0], d.address());
            for given in [None, Some((workspace.address(), size))] {
                let mut prepared = prepare(&addresses, given).unwrap();
                assert_eq!((prepared.kernels(), prepared.workspace().1), (1, size));
                let waits = stand_in.count(Counter::Waits);
                // SAFETY: the buffers live until the end, and each launch is waited for.
                unsafe { prepared.launch(&stream) }.unwrap();
                assert_eq!(stand_in.count(Counter::Waits), waits);
                let mut found = vec![0; d.len()];
                stream.download(&d, 0, &mut found).unwrap();
                assert_eq!(found, expected.bytes(), "`%{result}` for M = {m}");
                stream.fill(&d, 0, d.len(), 0xFF).unwrap();
            }
        }
        let refuse =
            |segment| refused(Preparation::of_segment(program, partition, segment, &symbols, &machine));
        check(&refuse(1), "fallback_segment", "segment 1 runs on the fallback");
        check(&refuse(3), NO_SUCH_SEGMENT, "the partition has no segment 3; it has 3");
    }
}

#[test]
fn an_empty_program_is_prepared_and_launches_nothing() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(0, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let launches = stand_in.count(Counter::Launches);
    // SAFETY: nothing is launched.
    unsafe { prepared.launch(device.stream()) }.unwrap();
    assert_eq!(
        (prepared.kernels(), prepared.workspace().1, stand_in.count(Counter::Launches)),
        (0, 0, launches)
    );
}

#[test]
fn a_prepared_program_outlives_what_it_was_prepared_from() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let mut fixture = layers(37, 64, Between::Nothing);
    let expected = fixture.expected("y");
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let Placed { buffers, .. } = placed;
    let y = fixture.value("y");
    fixture.kernels = HashMap::<usize, SegmentKernel>::new();
    drop(fixture);
    let stream = device.new_stream().unwrap();
    drop(device);
    let mut found = vec![0; buffers[&y].len()];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // SAFETY: the buffers live until the end.
            unsafe { prepared.launch(&stream) }.unwrap();
            stream.download(&buffers[&y], 0, &mut found).unwrap();
        });
    });
    assert_eq!(found, expected.bytes());
}
