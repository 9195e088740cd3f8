//! Choices by an extent: a call runs only what computes the operands that its extents choose.

use fourfold_executor::device::Device;
use fourfold_executor::{
    FALLBACK_SEGMENT, Machine, NOT_CHOSEN, Preparation, Ran, Run, RunOptions, plan_memory,
};

use super::blas::Setup;
use super::fixture::Fixture;
use super::stand_in::{Counter, StandIn};
use super::tier::{OnDevice, tier};

/// Two products of one weight. The second takes another kernel first, as a quantization of x would.
const PRODUCTS: &str = "fir 1
func @products(%x: tensor<[M, 6], f32>, param %w: tensor<[5, 6], f32>) {
  %few = mma %x, %w : tensor<[M, 5], f32>
  %n = neg %x : tensor<[M, 6], f32>
  %many = mma %n, %w : tensor<[M, 5], f32>
  %y = choose %few, %many {axis = 0, ends = [64]} : tensor<[M, 5], f32>
  return %y
}
";

/// Up to eight rows are negated by a kernel, more by the fallback. `%y` is read by a kernel, and chosen again.
const CHAIN: &str = "fir 1
func @chain(%x: tensor<[M, 6], f32>, param %w: tensor<[6], f32>) {
  %a = neg %x : tensor<[M, 6], f32>
  %r = relu %x : tensor<[M, 6], f32>
  %m = mul %r, %w : tensor<[M, 6], f32>
  %y = choose %a, %m {axis = 0, ends = [8]} : tensor<[M, 6], f32>
  %s = add %y, %y : tensor<[M, 6], f32>
  %z = choose %x, %s, %y {axis = 0, ends = [2, 30]} : tensor<[M, 6], f32>
  %u = neg %s : tensor<[M, 6], f32>
  return %z, %u
}
";

fn run(fixture: &Fixture, device: &Device) -> Run {
    let machine = Machine::new(device, &fixture.kernels);
    let inputs = fixture.tensors.clone();
    let bound = fourfold_ir::bind::bind(&fixture.program, &inputs).unwrap();
    let run = fourfold_executor::run(
        &fixture.program,
        &fixture.partition,
        &bound,
        &RunOptions::default(),
        Some(&machine),
    );
    run.unwrap()
}

#[track_caller]
fn check(fixture: &Fixture, run: &Run) {
    for value in &fixture.program.module().outputs {
        let name = fixture.program.module().name_of(*value);
        assert_eq!(run.value(*value), Some(&fixture.expected(name)), "%{name}");
    }
}

#[test]
fn one_weight_is_uploaded_once_for_two_products() {
    let setup = Setup::new();
    let stand_in = &setup._stand_in;
    let fixtures = [1, 64, 65, 130].map(|m| tier(PRODUCTS, &[("M", m)]).with_library(Ok(setup.blas())));
    let w = fixtures[0].tensors["w"].clone();
    let up = stand_in.count(Counter::Up);
    let params = fixtures[0].tensors.clone();
    let mut session = fixtures[0].session_with(params, Some(&setup.device)).unwrap();
    assert_eq!(stand_in.count(Counter::Up) - up, w.bytes().len() as u64, "the weight, once");
    for (mut fixture, launches) in fixtures.into_iter().zip([1, 1, 2, 2]) {
        // The session's own weight.
        fixture.tensors.insert("w".to_owned(), w.clone());
        let x = fixture.tensors["x"].clone();
        for turn in 0..2 {
            let counters = [Counter::Launches, Counter::Up, Counter::Allocations];
            let before = counters.map(|counter| stand_in.count(counter));
            let call = session.run(&[(&x).into()], &[]).unwrap();
            assert_eq!(call.refused, None);
            assert_eq!(call.outputs[0].as_ref(), Some(&fixture.expected("y")));
            let now = counters.map(|counter| stand_in.count(counter));
            assert_eq!(now[0] - before[0], launches);
            assert_eq!(now[1] - before[1], x.bytes().len() as u64, "the weight is resident");
            assert!(turn == 0 || now[2] == before[2], "nothing is allocated");
        }
    }
}

#[test]
fn a_launch_has_the_kernels_and_the_memory_of_the_chosen_operand() {
    let setup = Setup::new();
    for (m, kernels, bytes) in [(64, 1, 0), (65, 2, (65 * 6 * 4u64).next_multiple_of(256))] {
        let fixture = tier(PRODUCTS, &[("M", m)]).with_library(Ok(setup.blas()));
        let placed = OnDevice::new(&fixture, &setup.device);
        let planned = plan_memory(&fixture.program, &fixture.partition, &fixture.symbols()).unwrap();
        assert_eq!((planned.bytes, planned.steps), (bytes, kernels));
        let mut prepared = placed.prepare().unwrap();
        assert_eq!(prepared.kernels(), kernels);
        placed.check_launches(&mut prepared);
    }
}

#[test]
fn what_is_not_chosen_does_not_run() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let not = Ran::NotRun;
    // Segments are ops here, in order: a, r, m, y, s, z, u.
    let (kernel, fallback) = (Ran::Kernel, Ran::Fallback);
    for (m, ran) in [
        (1, [kernel, not, not, kernel, kernel, kernel, kernel]),
        (8, [kernel, not, not, kernel, kernel, kernel, kernel]),
        // `%y` is computed by the fallback.
        (9, [not, fallback, fallback, fallback, kernel, kernel, kernel]),
        (31, [not, fallback, fallback, fallback, kernel, kernel, kernel]),
    ] {
        let fixture = tier(CHAIN, &[("M", m)]);
        let found = run(&fixture, &device);
        check(&fixture, &found);
        let tiers: Vec<Ran> = found.segments.iter().map(|segment| segment.ran).collect();
        assert_eq!(tiers, ran, "{m} rows");
        for segment in found.segments.iter().filter(|segment| segment.ran == not) {
            assert_eq!(segment.reason.as_ref().map(|reason| reason.code), Some(NOT_CHOSEN));
        }
        // A session, with and without a device.
        for device in [Some(&device), None] {
            let mut session = fixture.session_with(fixture.tensors.clone(), device).unwrap();
            let call = session.run(&[(&fixture.tensors["x"]).into()], &[]).unwrap();
            for (output, name) in call.outputs.iter().zip(["z", "u"]) {
                assert_eq!(output.as_ref(), Some(&fixture.expected(name)), "%{name} of {m} rows");
            }
        }
        // A segment of the fallback prevents a launch only if it runs.
        let machine = Machine::new(&device, &fixture.kernels);
        let preparation =
            Preparation::of_program(&fixture.program, &fixture.partition, &fixture.symbols(), &machine);
        match (m, preparation) {
            (..=8, Ok(_)) => {
                let placed = OnDevice::new(&fixture, &device);
                placed.check_launches(&mut placed.prepare().unwrap());
            }
            (9.., Err(refused)) => assert_eq!(refused.code, FALLBACK_SEGMENT),
            (_, preparation) => panic!("{m} rows: {:?}", preparation.err()),
        }
    }
}
