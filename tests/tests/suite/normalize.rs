//! Normalizes random programs: bits are equal, every remaining value is unchanged, and a second pass changes
//! nothing.

use fourfold::executor::RunOptions;
use fourfold::ir::{Entity, Program, bind, interpret, sample, text, verify};
use fourfold::scheduler::{NormalizeOptions, Normalized, normalize};
use fourfold::{Backend, Claim, CompileOptions};
use fourfold_cli::replay::load;
use fourfold_tests::generate::case;
use fourfold_tests::random::Random;

const PROGRAMS: u64 = 400;

#[test]
fn normalized_programs_have_the_bits_of_the_original() {
    let mut changed = 0;
    let mut random = Random::new(0x0412_3A11);
    for _ in 0..PROGRAMS {
        let (seed, steps) = (random.bits(), 1 + random.below(12));
        let case = case(seed, steps);
        let program =
            verify(case.module).unwrap_or_else(|_| panic!("{seed}: the generator's program is valid"));
        let normalized = normalize(&program, &NormalizeOptions::default());
        assert!(
            !normalize(normalized.program(), &NormalizeOptions::default()).is_changed(),
            "{seed} {steps}: a second pass changed the program"
        );
        changed += u64::from(normalized.is_changed());
        check_same_bits(&program, &normalized, &case.recipe, seed);
    }
    assert!(changed * 20 >= PROGRAMS, "only {changed} of {PROGRAMS} programs changed");
}

/// Callers request values of the original program, even if normalization removed them.
#[test]
fn a_run_has_the_values_of_the_program_as_it_was_given() {
    let loaded =
        load(&fourfold_tests::repository().join("fixtures/normalize/exact.fir")).expect("the fixture loads");
    let program = loaded.program;
    let recipe = sample::Recipe { rule: sample::Rule::Exact, seed: 3, symbols: vec![("B".to_owned(), 3)] };
    let tensors = sample::inputs(&program, &recipe).expect("the recipe names every symbol");
    let want = interpret(&program, &bind::bind(&program, &tensors).expect("the tensors fit the inputs"))
        .expect("the program is small");
    let backend = fourfold_tests::backend("sm_120a").expect("a target");
    let planned = backend.plan(program.clone());
    assert!(planned.normalized().is_changed() && planned.partition().kernels().count() == 1);
    let options = RunOptions::default().keep_all(true);
    let named = |name: &str| program.facts().value_named(name).expect("the program has the value");
    let (y, scaled, product) = (named("y"), named("scaled"), named("product"));
    let run = planned.run(&tensors, &options).expect("the program runs");
    assert_eq!(run.value(y), Some(&want[y.index()]));
    assert_eq!(run.value(scaled), Some(&want[scaled.index()]));
    assert_eq!(run.value(product), None, "the value is part of %scaled");
    let compiled = backend.compile(planned, &CompileOptions::default(), &|_| {});
    let run = compiled.run(&tensors, &RunOptions::default()).expect("the program runs");
    assert_eq!(run.value(y), Some(&want[y.index()]));

    let options = fourfold_tests::options("sm_120a").claim(Claim::KernelsOnly).contract(true);
    let claimed = Backend::new(&options).expect("a target").plan(program);
    assert!(!claimed.normalized().is_changed(), "the host keeps its own ops");
    assert!(claimed.claimed().is_empty());
}

/// Every value that both programs have, outputs included.
fn check_same_bits(program: &Program, normalized: &Normalized, recipe: &sample::Recipe, seed: u64) {
    if !normalized.is_changed() {
        return;
    }
    let tensors = sample::inputs(program, recipe).expect("the recipe names every symbol");
    let evaluate = |program: &Program| {
        let bound = bind::bind(program, &tensors).expect("both programs have the same inputs");
        interpret(program, &bound).expect("small programs are interpreted")
    };
    let (want, got) = (evaluate(program), evaluate(normalized.program()));
    for value in program.module().values.keys() {
        let Some(new) = normalized.value(value) else { continue };
        let (want, got) = (&want[value.index()], &got[new.index()]);
        assert_eq!((want.element(), want.dims()), (got.element(), got.dims()));
        let codes = want.to_codes() == got.to_codes();
        let same = codes
            || want
                .to_f64()
                .iter()
                .zip(&got.to_f64())
                .all(|(want, got)| want.to_bits() == got.to_bits() || (want.is_nan() && got.is_nan()));
        assert!(
            same,
            "{seed}: %{} differs\n{}\n{}",
            program.module().name_of(value),
            text::print(program.module()),
            text::print(normalized.program().module())
        );
    }
    let outputs = &program.module().outputs;
    assert!(outputs.iter().all(|output| normalized.value(*output).is_some()));
}
