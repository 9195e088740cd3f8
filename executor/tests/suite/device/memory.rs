//! Devices, buffers, streams, events and graphs.

use fourfold_executor::device::{Device, DeviceError, discover};

use super::stand_in::{Counter, StandIn};

#[test]
fn devices_are_described_and_opened_by_number() {
    let _stand_in = StandIn::new();
    let gpus = discover().unwrap();
    assert_eq!(gpus.len(), 2);
    assert_eq!(gpus[1].to_string(), "Stand-in 1 (sm_90, 148 SMs, 1.0 GiB)");
    assert_eq!([gpus[0].target(), gpus[1].target()], [Some("sm_100a"), Some("sm_90a")]);
    assert_eq!(gpus[1].driver_version, (13, 0));
    assert_eq!((gpus[1].l2_bytes, gpus[1].shared_memory_per_block_optin), (1 << 20, 232_448));
    let device = Device::open(1).unwrap();
    assert_eq!(device.gpu(), &gpus[1]);
    let error = Device::open(2).unwrap_err();
    assert_eq!(error, DeviceError::NoSuchDevice { ordinal: 2, count: 2 });
    assert_eq!(
        (error.code(), error.to_string().as_str()),
        ("no_device", "there is no CUDA device 2; the number of devices is 2")
    );
}

#[test]
fn a_thread_keeps_the_context_that_it_had() {
    let stand_in = StandIn::new();
    let (_first, second) = (Device::open(0).unwrap(), Device::open(1).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            stand_in.make_current(0);
            let depth = stand_in.count(Counter::Depth);
            let buffer = second.alloc(8).unwrap();
            second.stream().upload(&buffer, 0, &[1; 8]).unwrap();
            second.synchronize().unwrap();
            drop(buffer);
            assert_eq!((depth, stand_in.count(Counter::Depth)), (1, 1));
        });
    });
}

#[test]
fn what_is_uploaded_filled_and_copied_is_downloaded() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let (a, b) = (device.alloc(1000).unwrap(), device.alloc(600).unwrap());
    assert_eq!((a.len(), a.address() % 256, b.address() % 256), (1000, 0, 0));
    let stream = device.new_stream().unwrap();
    let bytes: Vec<u8> = (0..91).collect();
    stream.upload(&a, 37, &bytes).unwrap();
    stream.fill(&a, 40, 3, 0xFF).unwrap();
    stream.copy(&a, 37, &b, 509, 91).unwrap();
    let mut found = vec![0; 91];
    stream.download(&b, 509, &mut found).unwrap();
    assert_eq!((&found[..3], &found[3..6], &found[6..]), (&[0, 1, 2][..], &[0xFF; 3][..], &bytes[6..]));
    assert_eq!((stand_in.count(Counter::Memories), stand_in.count(Counter::Bytes)), (2, 1600));
    // The buffers keep the device open.
    drop((stream, device));
    assert_eq!(stand_in.count(Counter::Contexts), 1);
}

#[test]
fn a_buffer_may_go_while_it_is_written() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let buffer = device.alloc(1 << 20).unwrap();
    device.stream().fill(&buffer, 0, 1 << 20, 1).unwrap();
    drop(buffer);
    device.synchronize().unwrap();
}

#[test]
fn nothing_takes_no_memory_and_everything_outside_a_buffer_is_refused() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let (empty, buffer) = (device.alloc(0).unwrap(), device.alloc(10).unwrap());
    assert_eq!((empty.len(), empty.is_empty(), empty.address()), (0, true, 0));
    let stream = device.stream();
    stream.upload(&empty, 0, &[]).unwrap();
    stream.fill(&buffer, 10, 0, 1).unwrap();
    let error = stream.upload(&buffer, 8, &[0; 3]).unwrap_err();
    assert_eq!(error, DeviceError::Range { offset: 8, bytes: 3, len: 10 });
    assert!(stream.download(&empty, 0, &mut [0]).is_err());
    assert!(stream.fill(&buffer, usize::MAX, 2, 0).is_err());
    assert!(stream.copy(&buffer, 0, &empty, 0, 1).is_err() && stream.copy(&empty, 0, &buffer, 0, 1).is_err());
    stand_in.limit(100);
    let error = device.alloc(91).unwrap_err();
    assert_eq!((&error, error.code()), (&DeviceError::OutOfMemory { bytes: 91 }, "device_memory"));
}

#[test]
fn several_uploads_are_waited_for_once_and_all_are_checked_first() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let buffers = [5, 70, 0, 300].map(|len| device.alloc(len).unwrap());
    let bytes: Vec<u8> = (0..=255).collect();
    let counts = || [Counter::Waits, Counter::Up].map(|counter| stand_in.count(counter));
    let before = counts();
    let copies: Vec<(_, _, &[u8])> =
        buffers.iter().map(|b| (b, b.len() / 5, &bytes[..b.len() / 2])).collect();
    device.stream().upload_all(&copies).unwrap();
    assert_eq!(counts(), [before[0] + 1, before[1] + 2 + 35 + 150]);
    for buffer in &buffers {
        let mut found = vec![0; buffer.len() / 2];
        device.stream().download(buffer, buffer.len() / 5, &mut found).unwrap();
        assert_eq!(found, bytes[..found.len()]);
    }
    let before = counts();
    device.stream().upload_all(&[]).unwrap();
    device.stream().upload_all(&[(&buffers[2], 0, &[])]).unwrap();
    let error = device.stream().upload_all(&[(&buffers[0], 0, &[1]), (&buffers[1], 70, &[1])]).unwrap_err();
    assert_eq!(error, DeviceError::Range { offset: 70, bytes: 1, len: 70 });
    assert_eq!(counts(), before);
}

#[test]
fn what_belongs_to_another_device_is_refused() {
    let _stand_in = StandIn::new();
    let (device, other) = (Device::open(0).unwrap(), Device::open(1).unwrap());
    let (here, there) = (device.alloc(8).unwrap(), other.alloc(8).unwrap());
    let stream = device.stream();
    let error = Err(DeviceError::OtherDevice { what: "buffer" });
    assert_eq!(stream.upload(&there, 0, &[1]), error);
    assert_eq!(stream.download(&there, 0, &mut [1]), error);
    assert_eq!(stream.fill(&there, 0, 8, 1), error);
    assert_eq!(stream.copy(&here, 0, &there, 0, 8), error);
    assert_eq!(stream.copy(&there, 0, &here, 0, 8), error);
    // Opening the same device again gives the same context.
    let again = Device::open(0).unwrap();
    assert_eq!(again.stream().upload(&here, 0, &[1; 8]), Ok(()));
}

#[test]
fn events_measure_what_is_between_them() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let buffer = device.alloc(8).unwrap();
    let stream = device.stream();
    let start = stream.record().unwrap();
    for byte in 0..4 {
        stream.fill(&buffer, 0, 8, byte).unwrap();
    }
    let end = stream.record().unwrap();
    // The stand-in takes half a millisecond for each operation.
    assert_eq!(start.elapsed_ms(&end), Ok(2.5));
}

#[test]
fn a_graph_does_its_work_when_it_is_launched_and_as_often() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let (a, b) = (device.alloc(64).unwrap(), device.alloc(64).unwrap());
    let stream = device.new_stream().unwrap();
    stream.fill(&a, 0, 64, 1).unwrap();
    stream.fill(&b, 0, 64, 2).unwrap();
    let graph = stream.capture(|| stream.copy(&a, 0, &b, 0, 32)).unwrap();
    let mut found = [0; 64];
    stream.download(&b, 0, &mut found).unwrap();
    assert_eq!(found, [2; 64]);
    for byte in [5, 6] {
        device.stream().fill(&a, 0, 64, byte).unwrap();
        // SAFETY: both buffers live until the end.
        unsafe { graph.launch(device.stream()) }.unwrap();
        device.stream().download(&b, 0, &mut found).unwrap();
        assert_eq!((&found[..32], &found[32..]), (&[byte; 32][..], &[2; 32][..]));
    }
}

#[test]
fn a_capture_that_fails_leaves_the_stream_usable() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let buffer = device.alloc(64).unwrap();
    let stream = device.stream();
    let error = stream.capture(|| stream.upload(&buffer, 0, &[1; 64])).unwrap_err();
    assert!(matches!(&error, DeviceError::Cuda { call: "cuMemcpyHtoDAsync", code: 900, .. }), "{error}");
    let error = stream.capture(|| stream.download(&buffer, 0, &mut [1; 64])).unwrap_err();
    assert!(matches!(&error, DeviceError::Cuda { call: "cuMemcpyDtoHAsync", code: 900, .. }), "{error}");
    // Waiting invalidates a capture even if its error is ignored.
    let error = stream.capture(|| stream.synchronize().or(Ok(()))).unwrap_err();
    assert!(matches!(&error, DeviceError::Cuda { call: "cuStreamEndCapture", code: 901, .. }), "{error}");
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        stream.capture(|| std::panic::resume_unwind(Box::new("the host's own trouble")))
    }));
    assert!(unwound.is_err());
    stream.upload(&buffer, 0, &[3; 64]).unwrap();
}

#[test]
fn a_borrowed_stream_is_used_and_not_destroyed() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let host = device.new_stream().unwrap();
    // SAFETY: `host` is a stream of this device and lives longer. The default stream always does.
    let (borrowed, default) =
        unsafe { (device.borrow_stream(host.raw()), device.borrow_stream(std::ptr::null_mut())) };
    let buffer = device.alloc(4).unwrap();
    borrowed.fill(&buffer, 0, 4, 9).unwrap();
    borrowed.synchronize().unwrap();
    let mut found = [0; 4];
    default.download(&buffer, 0, &mut found).unwrap();
    assert_eq!(found, [9; 4]);
    drop((borrowed, default));
    assert_eq!(stand_in.count(Counter::Streams), 2);
    host.synchronize().unwrap();
}
