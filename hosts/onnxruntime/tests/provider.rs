//! The provider in ONNX Runtime, driven from Python.
//!
//! The tests install pinned packages into the cache folder, once. `provider/cases.py` has a function for each test.
#![cfg(feature = "slow")]

mod venv;

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test has a path");
    let name =
        format!("{}fourfold_onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    test.with_file_name(name)
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs Python, and returns its output.
fn python(arguments: &[&str], prepare: impl FnOnce(&mut Command)) -> String {
    let mut command = Command::new(venv::python());
    command.args(arguments).env("PYTHONDONTWRITEBYTECODE", "1");
    prepare(&mut command);
    let output = command.output().expect("Python runs");
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{arguments:?}: {}\n{out}{err}", output.status);
    out
}

fn run(case: &str) {
    let script = folder().join("tests/provider/cases.py");
    let (script, library) = (script.display().to_string(), library().display().to_string());
    assert_eq!(python(&[&script, &library, case], |_| ()).trim_end(), format!("{case}: ok"));
}

macro_rules! cases {
    ($($test:ident: $case:literal,)*) => { $(#[test] fn $test() { run($case); })* };
}

cases! {
    fp4_models_run_at_all_optimization_levels_and_for_any_m: "levels",
    results_are_within_the_bound_of_their_roundings: "precision",
    gemm_runs_with_both_orders_of_its_weight: "gemm",
    refused_parts_stay_with_the_cpu_provider: "refused_parts",
    regions_never_wait_for_each_other: "crossed",
    fp4_is_dequantized_for_every_reader: "must_claim",
    unusable_models_and_options_fail_with_a_reason: "near_misses",
    wrong_shapes_are_an_error_of_the_call: "wrong_shapes",
    packed_fp4_weights_are_multiplied: "packed_weight",
    fp4_activations_are_given_by_pointer: "given_codes",
    subgraphs_have_regions: "in_subgraphs",
    other_forms_of_fp4_have_the_expected_results: "other_forms",
    fp8_chains_run_as_one_program: "fp8",
    contexts_are_written_loaded_and_checked: "context",
    the_file_of_a_context_is_replaced_as_a_whole: "context_file",
    foreign_contexts_are_refused_without_a_crash: "hostile_context",
    eight_threads_share_a_session: "threads",
    a_panic_is_a_status: "panics",
    the_library_can_be_unregistered: "registration",
}

/// The README's example, with the package that `pip install` builds.
#[test]
fn the_readme_holds_for_the_installed_package() {
    let target = tempfile::tempdir().expect("a folder");
    let to = target.path().display().to_string();
    let package = folder().display().to_string();
    // The profile and the feature of this test, so that cargo has built the library already.
    let options = ["-C", "profile=dev", "-C", "features=slow"];
    let install =
        ["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check", "--target", &to];
    python(&[&install[..], &options, &[&package]].concat(), |command| {
        let target = library();
        let target = target.ancestors().nth(3).expect("the library is in `deps` of a profile of the target");
        command.env("CARGO_TARGET_DIR", target).env("CARGO", env!("CARGO"));
    });
    let readme = std::fs::read_to_string(folder().join("README.md")).expect("the README");
    let (_, rest) = readme.split_once("```python\n").expect("the README has an example");
    let (example, rest) = rest.split_once("```").expect("the example ends");
    let (_, rest) = rest.split_once("```text\n").expect("the README has its output");
    let (expected, _) = rest.split_once("```").expect("the output ends");
    let found = python(&["-W", "error", "-c", example], |command| {
        command.env("PYTHONPATH", target.path());
    });
    assert_eq!(found, expected);
}
