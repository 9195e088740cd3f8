//! Properties of random programs: printing is a fixed point, the verifier is total, the partition passes the
//! checker, and the fallback equals the interpreter.
//!
//! `FOURFOLD_PROGRAMS` sets the number of programs for the last two: 1,000 by default, 4,000 in the second tier, and
//! 10,000 with the feature `full`.

use fourfold::ir::{ElementType, Entity, Module, Op, Value, text, verify};
use fourfold_tests::check::{Counts, check_run, program, take_counts};
use fourfold_tests::generate::case;
use fourfold_tests::random::Random;
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};

/// The number of programs for the last two properties.
const RUN_PROGRAMS: u32 = if cfg!(feature = "full") {
    10_000
} else if cfg!(feature = "slow") {
    4_000
} else {
    1_000
};
/// The number of threads of the last two properties. It is fixed, so that every machine tries the same programs.
const PARTS: u32 = 4;
/// The number of programs for the cheap properties.
const PROGRAMS: u32 = 2000;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(PROGRAMS))]

    #[test]
    fn printing_is_a_fixed_point(seed: u64, steps in 1usize..16) {
        let module = case(seed, steps).module;
        let printed = text::print(&module);
        let parsed = text::parse(&printed).expect("printed text parses").module;
        prop_assert_eq!(&text::print(&parsed), &printed);
        let again = text::parse(&printed).expect("the text parsed before").module;
        prop_assert_eq!(parsed, again);
    }

    #[test]
    fn the_verifier_is_total(seed: u64, steps in 1usize..12, damage in 1usize..4) {
        let case = case(seed, steps);
        program(&case);
        let mut module = case.module;
        let mut random = Random::new(seed ^ 0xDA4A6E);
        for _ in 0..damage {
            damage_module(&mut module, &mut random);
        }
        let printed = text::print(&module);
        prop_assert!(!printed.is_empty());
        match verify(module) {
            Ok(program) => prop_assert!(!program.module().outputs.is_empty()),
            Err(invalid) => {
                prop_assert!(!invalid.errors.is_empty());
                for error in &invalid.errors {
                    prop_assert!(!error.diagnostic(None).render("module", "").is_empty());
                }
            }
        }
    }
}

/// Changes one thing, so that most results are wrong in one place.
fn damage_module(module: &mut Module, random: &mut Random) {
    let value = Value::from_index(random.below(module.values.len() + 2));
    let op = Op::from_index(random.below(module.ops.len().max(1)));
    if module.ops.is_empty() {
        module.outputs.push(value);
        return;
    }
    let first = Value::from_index(random.below(module.values.len()));
    let second = Value::from_index(random.below(module.values.len()));
    match random.below(9) {
        0 => module.outputs.push(value),
        1 => module.ops[op].operands.push(value),
        2 => {
            module.ops[op].operands.pop();
        }
        3 => module.ops[op].operands.iter_mut().for_each(|operand| *operand = value),
        4 => module.values[first].ty = module.values[second].ty.clone(),
        5 => module.values[first].ty.element = random.pick(&ElementType::ALL),
        6 => module.values[first].ty.shape.push(fourfold::ir::Dim::fixed(random.bits() >> random.below(64))),
        7 => module.values[first].name = module.values[second].name.clone(),
        _ => {
            let other = Op::from_index(random.below(module.ops.len()));
            module.ops[op].kind = module.ops[other].kind.clone();
        }
    }
}

/// One test for the last two properties, so that each program is interpreted once.
#[test]
fn partitions_prove_themselves_and_the_fallback_equals_the_interpreter() {
    let programs: u32 = match std::env::var("FOURFOLD_PROGRAMS") {
        Ok(number) => number.parse().expect("FOURFOLD_PROGRAMS is a number"),
        Err(_) => RUN_PROGRAMS,
    };
    let run = |part: u32| {
        let mut config = config(programs.div_ceil(PARTS));
        if let RngSeed::Fixed(seed) = &mut config.rng_seed {
            *seed += u64::from(part);
        }
        TestRunner::new(config).run(&(any::<u64>(), 1usize..12), |(seed, steps)| {
            check_run(seed, steps);
            Ok(())
        })
    };
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..PARTS).map(|part| scope.spawn(move || run(part))).collect();
        for run in runs {
            if let Err(error) = run.join().expect("a failing program is reported by its runner") {
                panic!("{error}");
            }
        }
    });
    let counts = take_counts();
    println!("{counts:#?}");
    let Counts { programs, with_kernel, with_two, with_dag, exact_kernels, .. } = counts;
    let at_least = |percent: usize, found: usize, what: &str| {
        assert!(found * 100 >= programs * percent, "at least {percent} % {what}: {found} of {programs}");
    };
    at_least(40, with_kernel, "of the programs have a kernel segment");
    at_least(10, with_two, "of the programs have two");
    at_least(2, counts.normalized, "are changed by normalization");
    at_least(5, with_dag, "have an epilogue that is not a chain");
    at_least(10, counts.with_several, "have a kernel with several outputs");
    at_least(4, counts.with_blocks, "have a kernel that quantizes");
    at_least(4, counts.with_reduction, "have a kernel that reduces");
    at_least(1, counts.with_chain, "have a kernel that reads another kernel's output");
    assert!(
        exact_kernels * 4 >= with_kernel,
        "too few kernel segments are compared bit for bit: {exact_kernels}"
    );
    for code in ["unsupported_epilogue_op", "value_escapes", "operand_shape", "n_alignment", "output_dtype"] {
        assert!(counts.rejections.contains_key(code), "no program has a near miss for {code}");
    }
}

/// An f16 sum whose terms cancel beyond the precision of f32: one order of summation overflows, another gives a
/// small number.
#[test]
fn an_overflow_within_the_bound_of_a_sum_is_no_error() {
    check_run(16_372_662_262_289_081_757, 9);
}
