//! Programs with branches: short ones run on a second stream, in order with the caller's work before and after.

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::{MemoryContent, plan_memory};

use super::stand_in::{Counter, StandIn};
use super::tier::{OnDevice, tier};

/// Steps 0, 2 and 4 are a branch, and 1 and 3 another.
const BRANCHES: &str = "fir 1
func @branches(%x: tensor<[M, 6], f32>, %w: tensor<[M, 5], f32>) {
  %a = neg %x : tensor<[M, 6], f32>
  %b = neg %w : tensor<[M, 5], f32>
  %c = add %a, %x : tensor<[M, 6], f32>
  %d = add %b, %w : tensor<[M, 5], f32>
  %y = neg %c : tensor<[M, 6], f32>
  return %y, %d
}
";

#[test]
fn the_shorter_branch_runs_on_a_second_stream() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(BRANCHES, &[("M", 70)]);
    let placed = OnDevice::new(&fixture, &device);
    let memory = placed.preparation().unwrap().memory().clone();
    assert_eq!((memory.second_stream.as_slice(), memory.steps), (&[1, 3][..], 5));
    let streams = stand_in.count(Counter::Streams);
    let mut prepared = placed.prepare().unwrap();
    assert_eq!(stand_in.count(Counter::Streams), streams + 1);
    placed.check_launches(&mut prepared);
    drop(prepared);
    assert_eq!(stand_in.count(Counter::Streams), streams);
}

#[test]
fn parts_of_the_second_stream_share_no_memory() {
    let fixture = tier(BRANCHES, &[("M", 70)]);
    let memory = plan_memory(&fixture.program, &fixture.partition, &fixture.symbols()).unwrap();
    let parts: Vec<_> = memory.parts.iter().map(|part| (part.content, part.first, part.last)).collect();
    let value = |name| MemoryContent::Value(fixture.value(name));
    assert_eq!(parts, [(value("a"), 0, 2), (value("b"), 0, 4), (value("c"), 2, 4)]);
    assert_eq!(memory.second_stream, [1, 3]);
}

#[test]
fn launches_and_other_work_keep_their_order() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(BRANCHES, &[("M", 7)]);
    let (placed, other) = (OnDevice::new(&fixture, &device), OnDevice::new(&fixture, &device));
    let mut prepared = placed.prepare().unwrap();
    let stream = device.new_stream().unwrap();
    let d = fixture.value("d");
    // Nothing waits between the fill, two launches, and the copy of the second stream's result.
    let fill = |byte| stream.fill(&placed.buffers[&d], 0, placed.buffers[&d].len(), byte);
    fill(1).unwrap();
    // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
    unsafe { prepared.launch(&stream) }.unwrap();
    fill(2).unwrap();
    // SAFETY: as above.
    unsafe { prepared.launch(&stream) }.unwrap();
    let len = placed.buffers[&d].len();
    stream.copy(&placed.buffers[&d], 0, &other.buffers[&d], 0, len).unwrap();
    fill(3).unwrap();
    stream.synchronize().unwrap();
    let read = |placed: &OnDevice<'_>| {
        let mut found = vec![0; len];
        stream.download(&placed.buffers[&d], 0, &mut found).unwrap();
        found
    };
    assert_eq!(read(&other), fixture.expected("d").bytes());
    assert_eq!(read(&placed), vec![3; len]);
}

#[test]
fn a_launch_during_another_stream_s_capture_keeps_to_its_own_stream() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(BRANCHES, &[("M", 7)]);
    let placed = OnDevice::new(&fixture, &device);
    let mut prepared = placed.prepare().unwrap();
    let (captured, stream) = (device.new_stream().unwrap(), device.new_stream().unwrap());
    placed.poison();
    let graph = captured.capture(|| {
        // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(&captured) }?;
        // SAFETY: as above.
        unsafe { prepared.launch(&stream) }?;
        // SAFETY: as above. The capture has the second stream already.
        unsafe { prepared.launch(&captured) }
    });
    stream.synchronize().unwrap();
    placed.check("beside a capture");
    placed.poison();
    // SAFETY: as above.
    unsafe { graph.unwrap().launch(&captured) }.unwrap();
    captured.synchronize().unwrap();
    placed.check("captured twice");
    placed.poison();
    // The capture has given the second stream back.
    // SAFETY: as above.
    unsafe { prepared.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    placed.check("after a capture");
}

#[test]
fn a_capture_that_fails_gives_the_second_stream_back() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(BRANCHES, &[("M", 7)]);
    let placed = OnDevice::new(&fixture, &device);
    let mut prepared = placed.prepare().unwrap();
    let stream = device.new_stream().unwrap();
    let failed = stream.capture(|| {
        // SAFETY: here and below: the buffers live until the end, and each launch is waited for.
        unsafe { prepared.launch(&stream) }?;
        stream.synchronize()
    });
    assert!(matches!(failed, Err(DeviceError::Cuda { .. })), "{failed:?}");
    placed.check_launches(&mut prepared);
}

#[test]
fn constants_zeros_and_copies_stay_in_order_with_what_reads_them() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    // A constant, a sum over nothing and a view are outputs, and other steps read them.
    let text = "fir 1
func @steps(%x: tensor<[M, 6], f32>, %e: tensor<[M, K], f32>) {
  %k = constant {value = [1.0, -2.0, 3.5, 4.0, 5.0, 6.0]} : tensor<[6], f32>
  %s = reduce %e {kind = sum, axes = [1]} : tensor<[M], f32>
  %n = neg %s : tensor<[M], f32>
  %v = reshape %x : tensor<[M, 2, 3], f32>
  %t = neg %k : tensor<[6], f32>
  %u = neg %v : tensor<[M, 2, 3], f32>
  %w = neg %u : tensor<[M, 2, 3], f32>
  return %k, %s, %n, %v, %t, %w
}
";
    let fixture = tier(text, &[("M", 9), ("K", 0)]);
    let placed = OnDevice::new(&fixture, &device);
    let mut prepared = placed.prepare().unwrap();
    placed.check_launches(&mut prepared);
}
