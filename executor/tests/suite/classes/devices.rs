//! Several GPUs, and several kernels one after the other.

use fourfold_executor::RunOptions;
use fourfold_executor::device::{Device, Node};

use crate::device::fixture::{Between, EMULATED, layers, story};
use crate::device::placed::Placed;
use crate::device::stand_in::{Counter, StandIn};

/// TileKernels#30, CUTLASS 4.4.2. A kernel loaded on one GPU is launched neither on another GPU nor in its context.
#[test]
fn a_kernel_in_memory_is_not_reused_on_another_gpu() {
    let stand_in = StandIn::new();
    let devices = [Device::open(0).unwrap(), Device::open(1).unwrap()];
    let of_first = layers(37, 64, Between::Nothing);
    let with = |first: &'static str| [first, EMULATED[0], EMULATED[1]];
    let of_second =
        layers(37, 64, Between::Nothing).with_kernel(0, &with("RELU")).with_kernel(1, &with("WORKSPACE=300"));
    let expected = of_first.expected("y");
    // Runs in a thread of its own, on which the other device's context is current.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..6 {
                let device = &devices[turn % 2];
                for (fixture, own) in [(&of_first, 0), (&of_second, 1)] {
                    stand_in.make_current((turn as u64 + 1) % 2);
                    let launches = stand_in.count(Counter::Launches);
                    let run = fixture.run(Some(device), &RunOptions::default()).unwrap();
                    let is_own = own == turn % 2;
                    let refused = story(&run)
                        .iter()
                        .all(|(ran, code)| (*ran, *code) == ("fallback", Some("no_device")));
                    assert_eq!(refused, !is_own, "turn {turn}: {:?}", story(&run));
                    assert_eq!(stand_in.count(Counter::Launches) > launches, is_own, "turn {turn}");
                    assert_eq!(run.value(fixture.value("y")), Some(&expected), "turn {turn}");
                }
            }
        });
    });
    assert_eq!(stand_in.count(Counter::Strays), 0, "work on a stream while another context was current");
}

/// facebookexperimental/triton#3514. A launch does not inherit the cluster size of the launch before.
#[test]
fn a_launch_keeps_no_attribute_of_the_one_before() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    let mut recordings = Vec::new();
    for blocks in [2, 0, 4, 1] {
        stand_in.cluster(blocks);
        // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
        let recording = stream.inspect(|| unsafe { prepared.launch(&stream) }).unwrap();
        for node in recording.nodes() {
            let Node::Kernel(kernel) = node else { panic!("{node:?}") };
            assert_eq!(kernel.cluster.map(|[x, ..]| u64::from(x)), (blocks > 0).then_some(blocks));
        }
        recordings.push((blocks, recording));
    }
    // The driver refuses a launch with other attributes than those that the kernel was recorded with.
    for (blocks, recording) in recordings.iter().chain(recordings.iter().rev()) {
        stand_in.cluster(*blocks);
        // SAFETY: as above.
        unsafe { recording.launch(&stream) }.unwrap_or_else(|error| panic!("{blocks}: {error}"));
        stream.synchronize().unwrap();
        assert!(placed.y() == fixture.expected("y").bytes());
    }
}

/// newton#357. Everything is loaded when a program is prepared: the very first launch may be part of a capture, which
/// the driver would end with error 900 otherwise.
#[test]
fn the_first_launch_may_be_captured() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    let placed = Placed::new(&fixture, &device);
    let mut prepared = placed.prepare(&placed.addresses(), None).unwrap();
    let stream = device.new_stream().unwrap();
    let counts =
        || [Counter::Waits, Counter::Allocations, Counter::Up].map(|counter| stand_in.count(counter));
    let before = counts();
    // SAFETY: the buffers live until the end, and the launch is waited for.
    let graph = stream.capture(|| unsafe { prepared.launch(&stream) }).unwrap();
    assert_eq!(counts(), before, "a wait, an allocation or an upload is not allowed in a capture");
    // SAFETY: as above.
    unsafe { graph.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    assert!(placed.y() == fixture.expected("y").bytes());
}
