//! Debug mode: it records the arguments of each launch, reveals unwritten results, and locates errors.

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::{LaunchRecord, RunError, RunOptions};

use super::fixture::{Between, N, flattened, layers, story};
use super::stand_in::StandIn;

fn debug() -> RunOptions {
    RunOptions::default().debug(true)
}

#[test]
fn a_launch_says_what_it_was_given() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::AnOpOfTheHost);
    let run = fixture.run(Some(&device), &debug()).unwrap();
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    let [first, host, second] = &run.segments[..] else { panic!("three segments") };
    assert!(host.launch.is_none() && first.kernel_seconds.is_some() && second.synchronized);
    let [first, second]: [&LaunchRecord; 2] = [first, second].map(|ran| &**ran.launch.as_ref().unwrap());
    assert_eq!((first.segment, &first.extents[..], first.device), (0, &[1, 37, N as i64, 64][..], 0));
    assert_eq!(first.extent_names, ["L", "M", "N", "K"]);
    assert_eq!(first.ops, ["%product = scaled_mma", "%biased = add", "%r = relu"]);
    assert_eq!((first.kernel.as_str(), first.sm_count), ("stand_in_gemm", device.gpu().sm_count as i32));
    let names = |record: &LaunchRecord| -> Vec<String> {
        record.arguments.iter().map(|argument| format!("{} {}", argument.role, argument.value)).collect()
    };
    assert_eq!(names(first), ["a x", "sfa sx", "b w1", "sfb sw1", "x0 bias", "alpha alpha", "y0 r"]);
    assert_eq!(names(second), ["a x", "sfa sx", "b w2", "sfb sw2", "c c", "beta beta", "y0 y"]);
    for argument in first.arguments.iter().chain(&second.arguments) {
        assert!(argument.address != 0 && argument.bytes <= argument.capacity, "{argument:?}");
        assert!(argument.address.is_multiple_of(argument.alignment), "{argument:?}");
        assert!(!argument.address.is_multiple_of(2 * argument.alignment), "{argument:?}");
        let is_output = argument.role == "y0";
        assert_eq!((argument.written, argument.poison), (is_output, is_output.then_some(0xFF)));
        let is_wide = !["alpha", "beta", "c", "x0"].contains(&argument.role.as_str());
        assert_eq!(argument.required_alignment, is_wide.then_some(16), "{argument:?}");
    }
    let a = &first.arguments[0];
    assert_eq!((a.ty.as_str(), a.bytes), ("[37, 64], f4E2M1FN", 37 * 32));
    assert_eq!(first.arguments[1].ty, "[37, 4], f8E4M3FN, blocked");
    // Both kernels read the same copy of x.
    assert_eq!(a.address, second.arguments[0].address);
    assert_eq!((first.workspace.bytes, first.workspace.poison), (100, Some(0xFF)));
    assert_eq!((second.workspace.bytes, second.workspace.poison), (300, Some(0xFF)));
    assert_ne!(second.workspace.address, 0);
    let text = second.to_string();
    assert!(text.contains("workspace") && text.contains("filled with 0xff before"), "{text}");
    assert!(
        text.contains("sfb") && text.contains("needs 16") && text.contains("L=1 M=37 N=40 K=64"),
        "{text}"
    );
}

#[test]
fn nothing_is_recorded_unless_it_is_asked_for() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing);
    for locate in [false, true] {
        let options = RunOptions::default().locate(locate).poison(0xFF);
        let run = fixture.run(Some(&device), &options).unwrap();
        assert!(run.segments.iter().all(|segment| segment.launch.is_none()));
    }
    // Without a device there are no launches to record.
    assert!(fixture.run(None, &debug()).unwrap().segments.iter().all(|segment| segment.launch.is_none()));
}

#[test]
fn an_emulated_kernel_is_recorded_as_one() {
    let _stand_in = StandIn::new();
    let device = Device::open(1).unwrap();
    let fixture = flattened(3, 128);
    let run = fixture.run(Some(&device), &debug()).unwrap();
    assert_eq!(story(&run), [("emulated", None)]);
    assert_eq!(run.value(fixture.value("y")), Some(&fixture.expected("y")));
    let record = run.segments[0].launch.as_ref().unwrap();
    assert!(record.emulated && record.target == "sm_120a" && record.device == 1);
    // The batch is flattened in the extents that the kernel gets.
    assert_eq!(record.extents, [1, 384, N as i64, 64]);
}

#[test]
fn a_kernel_that_faults_is_named_with_its_ops_and_what_it_was_given() {
    let stand_in = StandIn::new();
    for (faulty, ops) in [(0, "(%product = scaled_mma; %biased = add; %r = relu)"), (1, "(%y = scaled_mma)")]
    {
        let device = Device::open(0).unwrap();
        let fixture = layers(37, 64, Between::Nothing).with_kernel(faulty, &["RUN_STATUS=719"]);
        let error = fixture.run(Some(&device), &debug()).unwrap_err();
        let text = error.to_string();
        let RunError::Device { segment, source, place, .. } = error else { panic!("{error}") };
        assert_eq!((segment, source.is_sticky()), (faulty, true), "{text}");
        assert!(text.starts_with(&format!("kernel stand_in_gemm in segment {faulty} {ops}: ")), "{text}");
        let launch = place.launch.expect("debug mode keeps it");
        assert_eq!((launch.segment, launch.arguments[0].value.as_str()), (faulty, "x"));
        drop((fixture, device));
        stand_in.reset();
    }
    // A launch that fails at once is recorded in the error; a refused one, in the segment.
    let device = Device::open(0).unwrap();
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["LAUNCH_STATUS=7"]);
    let error = fixture.run(Some(&device), &debug()).unwrap_err();
    let RunError::Device { source: DeviceError::Launch { .. }, place, .. } = &error else {
        panic!("{error}")
    };
    assert!(place.launch.is_some());
    let fixture = layers(37, 64, Between::Nothing).with_kernel(1, &["PREPARE_STATUS=7"]);
    let run = fixture.run(Some(&device), &debug()).unwrap();
    assert_eq!(story(&run), [("kernel", None), ("fallback", Some("kernel_refused"))]);
    assert!(run.segments[1].launch.is_some());
}
