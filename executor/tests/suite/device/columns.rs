//! Column kernels and constants on the device.

use fourfold_executor::device::Device;
use fourfold_executor::{MemoryContent, RunOptions, plan_memory};

use super::fixture::{Fixture, story};
use super::stand_in::{Counter, StandIn};
use super::tier::{OnDevice, tier};

const KERNEL: (&str, Option<&str>) = ("kernel", None);

/// Checks every output of a run against the fallback.
#[track_caller]
fn check(fixture: &Fixture, device: &Device) -> Vec<(&'static str, Option<&'static str>)> {
    let run = fixture.run(Some(device), &RunOptions::default().poison(0xFF)).unwrap();
    for output in &fixture.program.module().outputs {
        let name = fixture.program.module().name_of(*output);
        assert_eq!(run.value(*output), Some(&fixture.expected(name)), "%{name}");
    }
    story(&run)
}

const SUMS: &str = "fir 1
func @sums(%x: tensor<[M, 6], f32>) {
  %a = neg %x : tensor<[M, 6], f32>
  %s = reduce %a {axes = [0], keep_dims = false, kind = sum} : tensor<[6], f32>
  %y = neg %s : tensor<[6], f32>
  return %y
}
";

#[test]
fn a_column_kernel_has_a_workspace_and_two_launches() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for m in [1, 2, 70] {
        let fixture = tier(SUMS, &[("M", m)]);
        assert_eq!(check(&fixture, &device), [KERNEL; 3]);
        let placed = OnDevice::new(&fixture, &device);
        let mut prepared = placed.prepare().unwrap();
        assert_eq!(prepared.kernels(), 3);
        placed.check_launches(&mut prepared);
    }
}

#[test]
fn a_column_of_nothing_is_neutral() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(SUMS, &[("M", 0)]);
    assert_eq!(check(&fixture, &device), [KERNEL; 3]);
    let placed = OnDevice::new(&fixture, &device);
    let mut prepared = placed.prepare().unwrap();
    placed.check_launches(&mut prepared);
}

/// A constant that kernels read, one with a view, and one that is returned with its view.
const CONSTANTS: &str = "fir 1
func @constants(%x: tensor<[2, 3], f32>) {
  %c = constant {value = [1, 2, 3, 4, 5, 6]} : tensor<[2, 3], f32>
  %a = add %x, %c : tensor<[2, 3], f32>
  %flat = constant {value = [6, 5, 4, 3, 2, 1]} : tensor<[6], f32>
  %v = reshape %flat : tensor<[2, 3], f32>
  %y = add %a, %v : tensor<[2, 3], f32>
  %z = add %y, %c : tensor<[2, 3], f32>
  %out = constant {value = [-1, -2]} : tensor<[2], f32>
  %seen = reshape %out : tensor<[1, 2], f32>
  return %z, %out, %seen
}
";

#[test]
fn a_constant_is_uploaded_once() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(CONSTANTS, &[]);
    let before = stand_in.count(Counter::Up);
    assert_eq!(check(&fixture, &device), [KERNEL; 8]);
    // x, c, flat and out.
    assert_eq!(stand_in.count(Counter::Up) - before, 24 + 24 + 24 + 8);
    let run = fixture.run(None, &RunOptions::default()).unwrap();
    assert_eq!(story(&run)[0], ("fallback", Some("no_device")));
}

#[test]
fn prepared_launches_upload_no_constant() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(CONSTANTS, &[]);
    let plan = plan_memory(&fixture.program, &fixture.partition, &fixture.symbols()).unwrap();
    let stored = plan.parts.iter().filter(|part| matches!(part.content, MemoryContent::Stored(_)));
    assert_eq!(stored.map(|part| part.bytes).collect::<Vec<_>>(), [24, 24, 8]);
    let placed = OnDevice::new(&fixture, &device);
    let mut prepared = placed.prepare().unwrap();
    // Constants and views are no kernels.
    assert_eq!(prepared.kernels(), 3);
    placed.check_launches(&mut prepared);
    let before = stand_in.count(Counter::Up);
    let stream = device.new_stream().unwrap();
    // SAFETY: the buffers live until the end, and the launch is waited for.
    unsafe { prepared.launch(&stream) }.unwrap();
    stream.synchronize().unwrap();
    assert_eq!(stand_in.count(Counter::Up), before);
    placed.check("without an upload");
}

#[test]
fn a_session_keeps_constants_and_their_views() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(CONSTANTS, &[]);
    let mut session = fixture.session_with(fixture.tensors.clone(), Some(&device)).unwrap();
    let x = &fixture.tensors["x"];
    for call in 0..3 {
        let before = stand_in.count(Counter::Up);
        let run = session.run(&[x.into()], &[]).unwrap();
        assert_eq!(run.refused, None);
        for (output, found) in fixture.program.module().outputs.iter().zip(&run.outputs) {
            let name = fixture.program.module().name_of(*output);
            assert_eq!(found.as_ref(), Some(&fixture.expected(name)), "%{name}");
        }
        assert_eq!(stand_in.count(Counter::Up) - before, 24, "call {call} uploads %x");
    }
}
