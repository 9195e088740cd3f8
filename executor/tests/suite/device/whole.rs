//! Whole programs on the device: views share memory, products go to the library, and preparations take all of it.

use fourfold_executor::device::Device;
use fourfold_executor::{MemoryContent, RunOptions, RunReason, plan_memory};
use fourfold_ir::SymbolValues;

use super::blas::Setup;
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

const VIEWS: &str = "fir 1
func @views(%x: tensor<[M, 6], f32>) {
  %a = neg %x : tensor<[M, 6], f32>
  %v = reshape %a : tensor<[M, 2, 3], f32>
  %b = neg %a : tensor<[M, 6], f32>
  %c = neg %b : tensor<[M, 6], f32>
  %w = reshape %c : tensor<[M, 2, 3], f32>
  %y = add %v, %w : tensor<[M, 2, 3], f32>
  return %y
}
";

#[test]
fn a_view_shares_the_memory_of_its_operand() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(VIEWS, &[("M", 70)]);
    let before = [Counter::Allocations, Counter::Up, Counter::Down].map(|counter| stand_in.count(counter));
    assert_eq!(check(&fixture, &device), [KERNEL; 6]);
    let after = [Counter::Allocations, Counter::Up, Counter::Down].map(|counter| stand_in.count(counter));
    // x, a and c: b is in the memory of x, and y in that of b. a lives as long as its view.
    let bytes = 70 * 6 * 4;
    assert_eq!([0, 1, 2].map(|at| after[at] - before[at]), [3, bytes, bytes]);
}

#[test]
fn a_view_of_a_value_on_the_host_stays_there() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let text = "fir 1
func @views(%x: tensor<[M, 6], f32>) {
  %v = reshape %x : tensor<[M, 2, 3], f32>
  %e = exp %v : tensor<[M, 2, 3], f32>
  return %e
}
";
    let fixture = tier(text, &[("M", 70)]);
    let before = stand_in.count(Counter::Up);
    assert_eq!(check(&fixture, &device), [("fallback", Some("host_operand")), ("fallback", None)]);
    assert_eq!((stand_in.count(Counter::Up), stand_in.count(Counter::Memories)), (before, 0));
    let run = fixture.run(None, &RunOptions::default()).unwrap();
    assert_eq!(story(&run)[0], ("fallback", Some("no_device")));
}

const PRODUCT: &str = "fir 1
func @product(%x: tensor<[M, K], f32>, param %w: tensor<[5, K], f32>) {
  %a = neg %x : tensor<[M, K], f32>
  %p = mma %a, %w : tensor<[M, 5], f32>
  %y = neg %p : tensor<[M, 5], f32>
  return %y
}
";

#[test]
fn a_plain_product_goes_to_the_library() {
    let setup = Setup::new();
    let fixture = tier(PRODUCT, &[("M", 70), ("K", 8)]).with_library(Ok(setup.blas()));
    assert_eq!(check(&fixture, &setup.device), [KERNEL; 3]);
    let run = fixture.run(Some(&setup.device), &RunOptions::default().debug(true)).unwrap();
    let record = run.segments[1].launch.as_ref().unwrap();
    assert_eq!((record.kernel.as_str(), record.extents.as_slice()), ("cublasLtMatmul", &[1, 70, 5, 8][..]));
    assert!(run.segments[1].kernel_seconds.is_some());
    let placed = OnDevice::new(&fixture, &setup.device);
    let mut prepared = placed.prepare().unwrap();
    assert_eq!(prepared.kernels(), 3);
    placed.check_launches(&mut prepared);
    // The library needs the alignment of an element.
    let mut addresses = placed.addresses();
    *addresses.get_mut(&fixture.value("w")).unwrap() += 2;
    // SAFETY: the addresses are refused.
    let refused = unsafe { placed.preparation().unwrap().bind_all(addresses).build() }.unwrap_err();
    assert_eq!(refused.code, "pointer_alignment");
}

#[test]
fn a_product_without_the_library_runs_on_the_fallback() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let reason = RunReason { code: "no_blas", message: "there is none".to_owned() };
    let fixture = tier(PRODUCT, &[("M", 3), ("K", 8)]).with_library(Err(reason));
    assert_eq!(check(&fixture, &device), [KERNEL, ("fallback", Some("no_blas")), KERNEL]);
    assert_eq!(OnDevice::new(&fixture, &device).prepare().unwrap_err().code, "no_blas");
}

#[test]
fn a_product_of_nothing_is_zero_or_nothing() {
    let setup = Setup::new();
    for (m, k) in [(0, 8), (3, 0), (0, 0)] {
        let fixture = tier(PRODUCT, &[("M", m), ("K", k)]).with_library(Ok(setup.blas()));
        assert_eq!(check(&fixture, &setup.device), [KERNEL; 3], "M = {m}, K = {k}");
        let placed = OnDevice::new(&fixture, &setup.device);
        placed.check_launches(&mut placed.prepare().unwrap());
    }
}

const SUMS: &str = "fir 1
func @sums(%x: tensor<[M, K], f32>, %c: tensor<[M], f32>) {
  %s = reduce %x {axes = [1], kind = sum} : tensor<[M], f32>
  %m = reduce %x {axes = [1], kind = mean} : tensor<[M], f32>
  %y = add %s, %c : tensor<[M], f32>
  return %y, %m
}
";

#[test]
fn a_row_kernel_over_nothing_gives_the_results_of_the_fallback() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for (m, k) in [(0, 4), (3, 0), (0, 0)] {
        let fixture = tier(SUMS, &[("M", m), ("K", k)]);
        assert_eq!(check(&fixture, &device), [KERNEL; 3], "M = {m}, K = {k}");
        let placed = OnDevice::new(&fixture, &device);
        let mut prepared = placed.prepare().unwrap();
        placed.check_launches(&mut prepared);
        // Means of nothing are NaN, which is copied. The sums are zero.
        assert_eq!(prepared.kernels(), usize::from(m > 0));
    }
}

#[test]
fn results_of_nothing_that_depend_on_other_values_are_not_prepared() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let text = "fir 1
func @pads(%x: tensor<[0, 4], f32>, %c: tensor<[3], f32>) {
  %s = add %x, %c : tensor<[0, 4], f32>
  return %s
}
";
    assert!(fourfold_ir::load(text).is_err(), "extents that do not broadcast");
    let mut fixture = tier(SUMS, &[("M", 3), ("K", 0)]);
    let [first, second] = [fixture.value("c"), fixture.value("x")];
    // The plan of the first reduction claims to read `%c` too.
    if let fourfold_scheduler::SegmentKind::Kernel(plan) = &mut fixture.partition.segments[0].kind
        && let fourfold_scheduler::Plan::Row(row) = &mut **plan
    {
        assert_eq!(row.operands[0].value, second);
        row.operands[0].value = first;
    }
    let refused = OnDevice::new(&fixture, &device).prepare().unwrap_err();
    assert_eq!((refused.code, refused.segment), ("extent_range", Some(0)));
    assert!(refused.message.contains("`%c`"), "{refused}");
}

const SEVERAL_VIEWS: &str = "fir 1
func @several(%x: tensor<[M, 6], f32>) {
  %of_input = reshape %x : tensor<[M, 2, 3], f32>
  %again = reshape %of_input : tensor<[M, 3, 2], f32>
  %a = neg %x : tensor<[M, 6], f32>
  %between = reshape %a : tensor<[M, 3, 2], f32>
  %first = reshape %between : tensor<[M, 2, 3], f32>
  %second = reshape %a : tensor<[M, 6, 1], f32>
  %b = neg %between : tensor<[M, 3, 2], f32>
  %of_output = reshape %b : tensor<[M, 6], f32>
  return %again, %second, %first, %b, %of_output, %of_input
}
";

#[test]
fn outputs_that_are_views_are_written_once_and_copied_otherwise() {
    let stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    for m in [0, 1, 70] {
        let fixture = tier(SEVERAL_VIEWS, &[("M", m)]);
        let placed = OnDevice::new(&fixture, &device);
        let mut prepared = placed.prepare().unwrap();
        // `%a` is in the memory of `%second`, and `%b` in its own.
        assert_eq!(prepared.workspace().1, 0);
        let launches = stand_in.count(Counter::Launches);
        placed.check_launches(&mut prepared);
        assert_eq!(stand_in.count(Counter::Launches) - launches, if m == 0 { 0 } else { 6 });
    }
}

const CHAIN: &str = "fir 1
func @chain(%x: tensor<[M, 64], f32>) {
  %a = neg %x : tensor<[M, 64], f32>
  %b = neg %a : tensor<[M, 64], f32>
  %v = reshape %b : tensor<[M, 8, 8], f32>
  %c = neg %v : tensor<[M, 8, 8], f32>
  %d = neg %c : tensor<[M, 8, 8], f32>
  %e = add %d, %v : tensor<[M, 8, 8], f32>
  %y = neg %e : tensor<[M, 8, 8], f32>
  return %y
}
";

#[test]
fn intermediates_share_memory_by_liveness() {
    let _stand_in = StandIn::new();
    let device = Device::open(0).unwrap();
    let fixture = tier(CHAIN, &[("M", 4)]).with_row_workspace(1, 700).with_row_workspace(6, 1000);
    let placed = OnDevice::new(&fixture, &device);
    let preparation = placed.preparation().unwrap();
    let plan = preparation.memory().clone();
    // a, b, c, d and e of 1024 bytes, and workspaces of 768 and 1024. b, which is v, lives until e; beside it live two
    // values at once.
    assert_eq!((plan.total_bytes(), plan.live_bytes(), plan.bytes), (5 * 1024 + 768 + 1024, 3072, 3072));
    assert_eq!((plan.steps, preparation.workspace_size()), (6, 3072));
    let part = |name: &str| {
        let value = MemoryContent::Value(fixture.value(name));
        plan.parts.iter().find(|part| part.content == value).unwrap()
    };
    assert_eq!((part("b").first, part("b").last), (1, 4), "until its view is read");
    assert!(plan.parts.iter().all(|part| part.offset % 256 == 0));
    let mut prepared = placed.prepare().unwrap();
    placed.check_launches(&mut prepared);

    // Without kernels, the plan has no workspaces.
    let without = plan_memory(&fixture.program, &fixture.partition, &fixture.symbols()).unwrap();
    assert_eq!((without.parts.len(), without.bytes, without.steps), (5, 3072, 6));
    let mut mixed = tier(CHAIN, &[("M", 4)]);
    mixed.partition.segments[3].kind = fourfold_scheduler::SegmentKind::Fallback;
    let refused = plan_memory(&mixed.program, &mixed.partition, &mixed.symbols()).unwrap_err();
    assert_eq!((refused.code, refused.segment), ("fallback_segment", Some(3)));

    let refusal = |symbols: &SymbolValues| {
        let refused = plan_memory(&fixture.program, &fixture.partition, symbols).unwrap_err();
        assert_eq!((refused.code, refused.segment), ("extent_range", Some(0)));
        refused.message
    };
    let mut symbols = SymbolValues::default();
    let missing = "`%a` has no size without an extent of the symbol `M`; give it one";
    assert_eq!(refusal(&symbols), missing);
    let of_m = fixture.program.module().symbols.keys().next().unwrap();
    for extent in [1 << 56, u64::MAX] {
        symbols.set(of_m, extent);
        let large = "`%a` is too large: with these extents, its bytes exceed the address space";
        assert_eq!(refusal(&symbols), large);
    }
}
