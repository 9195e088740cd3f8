//! Versions known to be bad are not used for their targets, and kernels built by them are rebuilt.

use std::sync::Arc;

use fourfold_executor::cache::{Cache, CacheOptions, Reason};
use fourfold_executor::service::{CompileService, Event, Outcome, Source, Versions};
use fourfold_executor::toolchain::PINNED;
use fourfold_executor::{Artifact, BuildInput, Cancel};

use super::fixture::{Bench, good};

/// A service whose compiler has this version.
fn service(bench: &Bench, nvcc: &str, allow_known_bad: bool) -> CompileService {
    let mut options = bench.options();
    let mut toolchain = options.toolchain.as_deref().unwrap().clone();
    toolchain.nvcc_version = nvcc.to_owned();
    toolchain.allow_known_bad = allow_known_bad;
    options.toolchain = Ok(Arc::new(toolchain));
    options.cache = Some(cache(bench, allow_known_bad));
    CompileService::new(options)
}

fn cache(bench: &Bench, allow_known_bad: bool) -> Cache {
    Cache::open(&CacheOptions { allow_known_bad, ..CacheOptions::new(bench.path("cache")) }).unwrap()
}

/// A source for a target that listed compilers are bad for.
fn text(number: usize) -> String {
    good(number).replace("sm_100a", "sm_120a")
}

fn input(text: &str) -> BuildInput<'_> {
    BuildInput { target: "sm_120a", architecture: "120a", ..super::fixture::input(text) }
}

fn get(service: &CompileService, text: &str) -> (Outcome, Vec<Event>) {
    let events = std::sync::Mutex::new(Vec::new());
    let request = service.request(&input(text));
    let outcome = service.get(&request, &Cancel::new(), &|event| events.lock().unwrap().push(event.clone()));
    (outcome, events.into_inner().unwrap())
}

const BAD: &str = "13.0.88";

#[test]
fn a_machine_whose_only_compiler_is_listed_has_what_the_pins_built_and_builds_nothing() {
    let bench = Bench::new();
    assert!(get(&service(&bench, PINNED.nvcc, false), &text(1)).0.is_ok());
    assert_eq!(bench.builds(), 1);
    let bad = service(&bench, BAD, false);
    let (outcome, _) = get(&bad, &text(1));
    assert_eq!(outcome.expect("it is in the cache").source(), &Source::Cache);
    let failure = get(&bad, &text(2)).0.expect_err("it is in no cache");
    assert_eq!(failure.code, "toolchain_known_bad");
    for word in ["nvcc 13.0.88", "sm_120a", "release notes"] {
        assert!(failure.message.contains(word), "{failure}");
    }
    assert!(failure.remedy.contains("fourfold toolchain install"), "{}", failure.remedy);
    assert_eq!((bench.builds(), bench.names("failures").len()), (1, 0));
    // The compiler is used for other targets.
    let good = super::fixture::get(&bad, &good(3)).0;
    assert!(good.is_ok(), "{good:?}");
    assert_eq!(bench.builds(), 2);
}

#[test]
fn a_compiler_that_is_bad_for_what_an_emulated_kernel_is_compiled_for_is_not_used() {
    let bench = Bench::new();
    // Good for sm_100a, but bad for the Hopper architecture that the kernel is compiled for.
    let service = service(&bench, BAD, false);
    let source = good(1);
    let input = BuildInput { architecture: "90a", ..super::fixture::input(&source) };
    let failure = service.get(&service.request(&input), &Cancel::new(), &|_| {}).expect_err("it is listed");
    assert_eq!(failure.code, "toolchain_known_bad");
    assert_eq!(bench.builds(), 0);
}

#[test]
fn an_entry_that_a_listed_compiler_built_is_refused_and_removed_unless_that_is_allowed() {
    let bench = Bench::new();
    let allowed = service(&bench, BAD, true);
    let key = allowed.request(&input(&text(1))).key();
    let tools =
        |artifact: &Artifact| artifact.tools().map(|tools| (tools.nvcc.clone(), tools.cutlass.clone()));
    let (outcome, _) = get(&allowed, &text(1));
    let built = outcome.expect("it is allowed");
    assert_eq!(tools(built.artifact()), Some((BAD.to_owned(), "none".to_owned())));
    drop(built);
    assert!(cache(&bench, true).get(&key).artifact.is_some());
    // The version and the key differ from those of the pinned toolchain.
    assert_ne!(Versions::pinned().nvcc, BAD);
    assert_ne!(service(&bench, BAD, false).request(&input(&text(1))).key(), key);

    let strict = cache(&bench, false);
    let refusal = strict.verify(false).unwrap().remove(0).refusal.expect("it is refused");
    let Reason::KnownBad { tool: "nvcc", version, .. } = &refusal.reason else { panic!("{refusal}") };
    assert_eq!((version.as_str(), refusal.reason.code()), (BAD, "known_bad"));
    assert!(strict.push(&bench.path("temp").display().to_string(), &[key]).unwrap()[0].outcome.is_err());
    let lookup = strict.get(&key);
    assert!(lookup.artifact.is_none() && lookup.notes.len() == 1, "{:?}", lookup.notes);
    assert_eq!(bench.names("entries").len(), 0);
    // An entry in a tier stays there, but is not used.
    let (outcome, _) = get(&service(&bench, BAD, true), &text(1));
    assert!(outcome.is_ok());
    std::fs::rename(bench.path("cache/kernels/entries"), bench.path("tier")).unwrap();
    let options = CacheOptions::new(bench.path("cache"));
    let tiers = vec![bench.path("tier").display().to_string()];
    let lookup = Cache::open(&CacheOptions { tiers, ..options }).unwrap().get(&key);
    assert!(lookup.artifact.is_none(), "{lookup:?}");
    assert!(matches!(lookup.notes[0].reason, Reason::KnownBad { .. }), "{:?}", lookup.notes);
}
