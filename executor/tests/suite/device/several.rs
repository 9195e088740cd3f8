//! Many launches: graphs that are replayed and updated to other addresses, two devices, and recorded work.

use std::collections::HashMap;
use std::hint::black_box;

use fourfold_executor::PreparedProgram;
use fourfold_executor::device::{Device, DeviceError, KernelNode, MemsetNode, Node};
use fourfold_executor::kernel::{Addresses, Extents};
use fourfold_ir::Tensor;
use fourfold_ir::sample::{Recipe, Rule, inputs};

use super::allocations::during;
use super::fixture::{Between, EMULATED, Fixture, layers};
use super::placed::Placed;
use super::stand_in::{Counter, StandIn};

const POISON: u8 = 0xFF;

/// The same program with kernels for the second device.
fn emulated(m: usize) -> Fixture {
    let with = |first: &'static str| [first, EMULATED[0], EMULATED[1]];
    layers(m, 64, Between::Nothing).with_kernel(0, &with("RELU")).with_kernel(1, &with("WORKSPACE=300"))
}

/// Other inputs of the same program, and its result.
fn variants(m: usize, count: u64) -> Vec<(HashMap<String, Tensor>, Vec<u8>)> {
    let mut fixture = layers(m, 64, Between::Nothing);
    let variant = |seed| {
        let recipe = Recipe { rule: Rule::Exact, seed, symbols: vec![("M".to_owned(), m as u64)] };
        fixture.tensors = inputs(&fixture.program, &recipe).unwrap();
        (fixture.tensors.clone(), fixture.expected("y").bytes().to_vec())
    };
    (100..100 + count).map(variant).collect()
}

impl Placed<'_> {
    fn bring(&self, tensors: &HashMap<String, Tensor>) {
        for &input in &self.fixture.program.module().inputs {
            let bytes = tensors[self.fixture.program.module().name_of(input)].bytes();
            self.device.stream().upload(&self.buffers[&input], 0, bytes).unwrap();
        }
    }

    fn poison(&self) {
        let y = &self.buffers[&self.fixture.value("y")];
        self.device.stream().fill(y, 0, y.len(), POISON).unwrap();
        self.device.stream().synchronize().unwrap();
    }

    fn is_poisoned(&self) -> bool {
        self.y().iter().all(|byte| *byte == POISON)
    }
}

#[test]
fn a_graph_is_replayed_with_other_data_and_other_addresses() {
    const M: usize = 5;
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let variants = variants(M, 5);
    assert!(variants.windows(2).all(|pair| pair[0].1 != pair[1].1));
    let fixture = layers(M, 64, Between::Nothing);
    let places = [Placed::new(&fixture, &device), Placed::new(&fixture, &device)];
    let mut prepared = places[0].prepare(&places[0].addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
    let mut graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    for turn in 0..300 {
        let at = turn / 25 % 2;
        if turn > 0 && turn % 25 == 0 {
            // SAFETY: nothing is in flight.
            unsafe { prepared.update_addresses(&places[at].addresses()) }.unwrap();
            // SAFETY: as above.
            let mut record = || unsafe { prepared.launch(&stream) };
            match turn / 25 % 3 {
                0 => graph = stream.capture(record).unwrap(),
                _ => graph.update(&stream, &mut record).unwrap(),
            }
        }
        let (tensors, expected) = &variants[turn * 3 % variants.len()];
        places[at].bring(tensors);
        places.iter().for_each(Placed::poison);
        // SAFETY: as above.
        unsafe { graph.launch(&stream) }.unwrap();
        stream.synchronize().unwrap();
        assert!(places[at].y() == *expected && places[1 - at].is_poisoned(), "turn {turn}");
    }
}

#[test]
fn launches_in_flight_keep_their_addresses() {
    const M: usize = 5;
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let variants = variants(M, 4);
    let fixture = layers(M, 64, Between::Nothing);
    let places: Vec<Placed<'_>> = variants.iter().map(|_| Placed::new(&fixture, &device)).collect();
    let mut prepared = places[0].prepare(&places[0].addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    for (place, (tensors, _)) in places.iter().zip(&variants) {
        place.bring(tensors);
        place.poison();
    }
    for place in places.iter().rev() {
        // SAFETY: the buffers live until the end, and one stream orders the launches.
        unsafe { prepared.update_addresses(&place.addresses()) }.unwrap();
        // SAFETY: as above.
        unsafe { prepared.launch(&stream) }.unwrap();
    }
    assert!(places.iter().all(Placed::is_poisoned), "the stand-in runs nothing before it is waited for");
    stream.synchronize().unwrap();
    for (index, (place, (_, expected))) in places.iter().zip(&variants).enumerate() {
        assert!(place.y() == *expected, "launch {index}");
    }
}

#[test]
fn a_graph_becomes_no_other_work() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(5, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    // SAFETY: nothing is launched.
    let mut graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    let y = &placed.buffers[&fixture.value("y")];
    let error = graph.update(&stream, || stream.fill(y, 0, 8, 0)).unwrap_err();
    assert!(matches!(&error, DeviceError::Cuda { call: "cuGraphExecUpdate", code: 910, .. }), "{error}");
    // Work that cannot be recorded is an error, and the stream stays usable.
    let error = graph.update(&stream, || stream.upload(y, 0, &[1])).unwrap_err();
    assert!(matches!(&error, DeviceError::Cuda { call: "cuMemcpyHtoDAsync", code: 900, .. }), "{error}");
    stream.upload(y, 0, &[1]).unwrap();
}

#[test]
fn a_launch_allocates_nothing() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    let before = stand_in.count(Counter::Allocations);
    assert_eq!(during(|| drop(black_box(vec![1]))), 1, "allocations are counted");
    // SAFETY: the buffers live until the end; the stand-in runs launches one by one, when it is waited for.
    let allocated = during(|| (0..50).for_each(|_| unsafe { prepared.launch(&stream) }.unwrap()));
    assert_eq!((allocated, stand_in.count(Counter::Allocations)), (0, before));
    // SAFETY: as above.
    let graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    // SAFETY: as above.
    let replay = || unsafe { graph.launch(&stream) }.unwrap();
    // A function of the driver is looked up when it is first called.
    replay();
    assert_eq!(during(|| (0..50).for_each(|_| replay())), 0);
    stream.synchronize().unwrap();
    assert!(placed.y() == fixture.expected("y").bytes());
}

#[test]
fn two_devices_are_used_in_turns_and_at_once() {
    let stand_in = StandIn::new();
    let devices = [Device::open(0).unwrap(), Device::open(1).unwrap()];
    let fixtures = [layers(37, 64, Between::Nothing), emulated(91)];
    let expected = [0, 1].map(|at| fixtures[at].expected("y").bytes().to_vec());
    let placed = [0, 1].map(|at| Placed::new(&fixtures[at], &devices[at]));
    let mut prepared = [0, 1].map(|at| placed[at].prepare(&placed[at].addresses(), None).unwrap());
    let streams = [0, 1].map(|at| devices[at].new_stream().unwrap());

    // One thread launches on both devices before it waits for either. Its host has the other device's context current.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..8 {
                if turn >= 2 {
                    stand_in.make_current(turn % 2);
                }
                placed.iter().for_each(Placed::poison);
                for at in [0, 1] {
                    // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
                    unsafe { prepared[at].launch(&streams[at]) }.unwrap();
                }
                for at in [1, 0] {
                    streams[at].synchronize().unwrap();
                    assert!(placed[at].y() == expected[at], "turn {turn}, device {at}");
                }
                assert_eq!(stand_in.count(Counter::Depth), u64::from(turn >= 2));
            }
        });
    });

    // Graphs of both, one recorded within the other.
    let [first, second] = &mut prepared;
    let mut inner = None;
    let outer = streams[0].capture(|| {
        // SAFETY: nothing is launched while it is recorded.
        inner = Some(streams[1].capture(|| unsafe { second.launch(&streams[1]) })?);
        // SAFETY: as above.
        unsafe { first.launch(&streams[0]) }
    });
    let graphs = [outer.unwrap(), inner.unwrap()];
    for turn in 0..4 {
        placed.iter().for_each(Placed::poison);
        for at in [turn % 2, 1 - turn % 2] {
            // SAFETY: as above.
            unsafe { graphs[at].launch(&streams[at]) }.unwrap();
        }
        for at in [0, 1] {
            streams[at].synchronize().unwrap();
            assert!(placed[at].y() == expected[at], "replay {turn}, device {at}");
        }
    }

    // Two threads with one device each, and then two more.
    for round in 0..2 {
        std::thread::scope(|scope| {
            for (at, prepared) in prepared.iter_mut().enumerate() {
                let (placed, stream, expected) = (&placed[at], &streams[at], &expected[at]);
                let work = move || {
                    for turn in 0..20 {
                        placed.poison();
                        // SAFETY: as above.
                        unsafe { prepared.launch(stream) }.unwrap();
                        stream.synchronize().unwrap();
                        assert!(placed.y() == *expected, "round {round}, turn {turn}, device {at}");
                    }
                };
                scope.spawn(work);
            }
        });
    }
}

#[test]
fn a_stream_of_another_device_is_refused_before_anything_is_launched() {
    let stand_in = StandIn::new();
    let (device, other) = (Device::open(0).unwrap(), Device::open(1).unwrap());
    let fixture = layers(5, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared: PreparedProgram = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    // SAFETY: here and below: the buffers live until the end, and nothing is launched.
    let mut graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    // SAFETY: as above.
    let recording = stream.inspect(|| unsafe { prepared.launch(&stream) }).unwrap();
    let launches = stand_in.count(Counter::Launches);
    let refused = Err(DeviceError::OtherDevice { what: "stream" });
    // SAFETY: as above.
    unsafe {
        assert_eq!(prepared.launch(other.stream()), refused);
        assert_eq!(graph.launch(other.stream()), refused);
        assert_eq!(recording.launch(other.stream()), refused);
        assert_eq!(graph.update(other.stream(), || prepared.launch(other.stream())), refused);
    }
    assert_eq!(stand_in.count(Counter::Launches), launches);
}

#[test]
fn a_recording_says_what_a_launch_is_and_does_it_again() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    let other = device.alloc(91).unwrap();
    let recording = stream.inspect(|| {
        stream.fill(&other, 7, 37, 0x5A)?;
        // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(&stream) }
    });
    let recording = recording.unwrap();
    let kernel = KernelNode {
        grid: [5, 2, 1],
        block: [384, 1, 1],
        cluster: Some([2, 1, 1]),
        cooperative: false,
        shared_memory: 1000,
        parameters: 1,
        // The stand-in kernel takes the extents and addresses of its preparation, and the address and size of its
        // workspace.
        parameter_bytes: size_of::<Extents>() + size_of::<Addresses>() + 16,
    };
    let memset = MemsetNode {
        address: other.address() + 7,
        value: 0x5A,
        element_bytes: 1,
        width: 37,
        height: 1,
        pitch: 0,
    };
    assert_eq!(memset.bytes(), Some((0x5A, 37)));
    let (words, rows) =
        (MemsetNode { element_bytes: 2, ..memset.clone() }, MemsetNode { height: 2, ..memset.clone() });
    assert_eq!((words.bytes(), rows.bytes()), (None, None));
    let kernel = Node::Kernel(kernel);
    assert_eq!(recording.nodes(), [Node::Memset(memset), kernel.clone(), kernel]);
    // Nothing has run.
    stream.fill(&other, 0, 91, POISON).unwrap();
    stream.synchronize().unwrap();
    assert!(placed.is_poisoned());
    // SAFETY: as above.
    unsafe { recording.launch(&stream) }.unwrap();
    let mut bytes = [0; 91];
    stream.download(&other, 0, &mut bytes).unwrap();
    assert!(bytes[..7].iter().chain(&bytes[44..]).all(|byte| *byte == POISON));
    assert!(bytes[7..44] == [0x5A; 37] && placed.y() == fixture.expected("y").bytes());
    // A part of the work cannot be recorded.
    assert!(stream.inspect(|| stream.upload(&other, 0, &[1])).is_err());
    assert_eq!(stream.inspect(|| Ok(())).unwrap().nodes(), []);
}

#[test]
fn free_memory_is_what_the_driver_counts() {
    let _stand_in = StandIn::new();
    let device = Device::open(1).unwrap();
    let before = device.free_memory().unwrap();
    let buffer = device.alloc(1000).unwrap();
    assert_eq!(device.free_memory(), Ok(before - 1000));
    drop(buffer);
    assert_eq!(device.free_memory(), Ok(before));
}
