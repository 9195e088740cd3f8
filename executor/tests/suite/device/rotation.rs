//! Measurements of prepared programs over rotating sets.

use std::collections::HashMap;
use std::time::Duration;

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::measure::{CaptureError, Captured, Rotation, Rounds};
use fourfold_executor::{Machine, Preparation, Session};
use fourfold_ir::Value;

use super::fixture::{Between, Fixture, N, layers};
use super::stand_in::{Counter, StandIn};

const ROUNDS: Rounds = Rounds { warm_up: Duration::ZERO, replays: 6, limit: Duration::from_secs(10) };
const M: usize = 37;

fn session(fixture: &Fixture, device: &Device) -> Session {
    fixture.session_with(fixture.tensors.clone(), Some(device)).expect("params")
}

/// The bytes of the inputs that are no params.
fn inputs<'a>(fixture: &'a Fixture, session: &Session) -> HashMap<Value, &'a [u8]> {
    let module = fixture.program.module();
    let bytes = |value: &Value| (*value, fixture.tensors[module.name_of(*value)].bytes());
    session.inputs().iter().map(bytes).collect()
}

fn refused(made: Result<Rotation, CaptureError>) -> String {
    made.expect_err("it is refused").to_string()
}

#[test]
fn a_program_is_timed_over_sets_beyond_l2_and_its_last_outputs_are_kept() {
    let stand_in = StandIn::new();
    let device = Device::open(0).expect("a device");
    let fixture = layers(M, 64, Between::Nothing);
    let session = session(&fixture, &device);
    let inputs = inputs(&fixture, &session);
    let given: usize = inputs.values().map(|bytes| bytes.len()).sum();
    let bytes = given + M * 40 * 4;
    stand_in.l2(bytes as u64 * 2);
    let device = Device::open(0).expect("a device with another cache");
    let prepare = || session.prepare(&fixture.symbols());
    let mut rotation = Rotation::new(&device, &inputs, 0, 20, &prepare).expect("a rotation");
    assert_eq!((rotation.sets(), rotation.calls(), rotation.kernels()), (7, 21, 2));
    assert_eq!((rotation.bytes(), rotation.is_rotating()), (bytes as u64, true));
    assert!(rotation.workspace_bytes() >= (M as u64 * N * 4));
    let allocations = stand_in.count(Counter::Allocations);
    for _ in 0..2 {
        assert_eq!(rotation.program_round(&ROUNDS).expect("samples").len(), 6);
        assert_eq!(rotation.copy_round(&ROUNDS).expect("samples").len(), 6);
    }
    assert_eq!(stand_in.count(Counter::Allocations), allocations, "replays allocate nothing");
    let outputs = rotation.last_outputs().expect("outputs").expect("no flaw");
    let y = fixture.expected("y");
    assert_eq!(outputs, [(fixture.value("y"), y.bytes().to_vec())]);
}

#[test]
fn shared_bytes_count_and_fewer_sets_suffice() {
    let stand_in = StandIn::new();
    stand_in.l2(1 << 20);
    let device = Device::open(0).expect("a device");
    let fixture = layers(M, 64, Between::Nothing);
    let session = session(&fixture, &device);
    let inputs = inputs(&fixture, &session);
    let prepare = || session.prepare(&fixture.symbols());
    let rotation = Rotation::new(&device, &inputs, 1 << 20, 20, &prepare).expect("a rotation");
    assert_eq!((rotation.sets(), rotation.calls()), (4, 20));
    assert!(rotation.bytes() > 1 << 20 && rotation.is_rotating());
    drop(rotation);
    stand_in.limit(1 << 10);
    let error = Rotation::new(&device, &inputs, 0, 20, &prepare).expect_err("no memory");
    assert!(matches!(error, CaptureError::Device(DeviceError::OutOfMemory { .. })), "{error}");
}

#[test]
fn a_captured_program_computes_from_the_inputs_of_each_replay() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).expect("a device");
    let fixture = layers(M, 64, Between::Nothing);
    let session = session(&fixture, &device);
    let own = inputs(&fixture, &session);
    let mut captured =
        Captured::new(&device, session.prepare(&fixture.symbols()).expect("a preparation")).expect("a graph");
    let (x, y) = (fixture.value("x"), fixture.value("y"));
    // With zeros every row of the result is the same. The graph was captured before any input was there.
    let zeros: HashMap<Value, Vec<u8>> =
        own.iter().map(|(value, bytes)| (*value, vec![0; bytes.len()])).collect();
    let zeros = zeros.iter().map(|(value, bytes)| (*value, &bytes[..])).collect();
    for _ in 0..2 {
        assert!(
            captured.replay(&own, 0xFF).expect("outputs") == [(y, fixture.expected("y").bytes().to_vec())]
        );
        let [(value, of_zeros)] = &captured.replay(&zeros, 0xFF).expect("outputs")[..] else {
            panic!("one output")
        };
        let row = of_zeros.len() / M;
        assert!(
            *value == y
                && of_zeros[..] == of_zeros[..row].repeat(M)
                && of_zeros != fixture.expected("y").bytes()
        );
    }
    let short = HashMap::from([(x, &own[&x][1..])]);
    let message = captured.replay(&short, 0xFF).expect_err("too short").to_string();
    assert_eq!(message, format!("`%x` takes {} bytes, but {} are given", M * 32, M * 32 - 1));
    let memory = device.alloc(1 << 20).expect("memory");
    let bound = session.prepare(&fixture.symbols()).expect("a preparation").bind(x, memory.address());
    assert!(matches!(Captured::new(&device, bound), Err(CaptureError::Bound)));
}

#[test]
fn inputs_and_addresses_that_do_not_fit_are_refused() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).expect("a device");
    let fixture = layers(M, 64, Between::Nothing);
    let session = session(&fixture, &device);
    let inputs = inputs(&fixture, &session);
    let prepare = || session.prepare(&fixture.symbols());
    let x = fixture.value("x");
    let short = HashMap::from([(x, &inputs[&x][1..])]);
    let message = refused(Rotation::new(&device, &short, 0, 20, &prepare));
    assert_eq!(message, format!("`%x` takes {} bytes, but {} are given", M * 32, M * 32 - 1));
    let memory = device.alloc(1 << 20).expect("memory");
    let bound = || Ok(session.prepare(&fixture.symbols())?.bind(x, memory.address()));
    let rest: HashMap<Value, &[u8]> =
        inputs.iter().filter(|(value, _)| **value != x).map(|(v, b)| (*v, *b)).collect();
    let message = refused(Rotation::new(&device, &rest, 0, 20, &bound));
    assert_eq!(message, "the preparation to capture has addresses already");
    // Without a session, params are inputs like others.
    let machine = Machine::new(&device, &fixture.kernels);
    let whole =
        || Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine);
    let message = refused(Rotation::new(&device, &inputs, 0, 20, &whole));
    assert!(message.contains("bytes, but 0 are given"), "{message}");
}
