//! The random programs that run on a GPU, planned: they have few kernels, and every op has one.

use fourfold_tests::kit::{GPU_PROGRAMS, KitCounts, MOST_SOURCES, kit_program};

/// The kinds of plans that the programs must have.
const KINDS: [&str; 6] = ["row", "move", "mma", "view", "scaled_mma", "block_quantize"];

#[test]
fn programs_for_a_gpu_have_few_kernels_and_no_fallback() {
    let backend = fourfold_tests::backend("sm_90a").expect("a known target");
    let mut counts = KitCounts::default();
    for seed in 0..GPU_PROGRAMS {
        let made = kit_program(seed);
        let planned = backend.plan(made.program());
        if let Err(error) = backend.check(&planned) {
            panic!("seed {seed}: {error}\n{}", made.text);
        }
        let before = counts.refused.len();
        counts.add(&planned, backend.capabilities());
        assert_eq!(&counts.refused[before..], &[] as &[String], "seed {seed}\n{}", made.text);
    }
    println!("{counts}\n{}", counts.kernels().join("\n"));
    assert!(counts.sources() <= MOST_SOURCES, "{} sources", counts.sources());
    assert!(counts.with_two_device * 2 >= counts.programs, "{counts}");
    for kind in KINDS {
        assert!(counts.segments.contains_key(kind), "no program has a {kind}");
    }
}

#[test]
fn an_op_on_the_fallback_is_refused_unless_its_types_are_not_listed() {
    let [cpu, gpu] = ["cpu", "sm_90a"].map(|target| fourfold_tests::backend(target).expect("a known target"));
    let made = kit_program(1);
    let planned = cpu.plan(made.program());
    let mut counts = KitCounts::default();
    counts.add(&planned, cpu.capabilities());
    assert_eq!(counts.refused, &[] as &[String], "a CPU lists nothing");
    counts.add(&planned, gpu.capabilities());
    assert_eq!(counts.refused.len(), planned.program().module().ops.len(), "{:?}", counts.refused);
}
