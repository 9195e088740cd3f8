//! Builds the wheel, installs it beside pinned packages and runs the Python tests. `tests/run.py` does the work.
#![cfg(feature = "slow")]

use std::path::Path;
use std::process::Command;

fn run(arguments: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut tests = Command::new("python3");
    tests.arg("tests/run.py").args(arguments).current_dir(folder);
    let status = tests.status().expect("python3 is installed");
    assert!(status.success(), "{tests:?} failed: {status}");
}

#[test]
fn the_wheel_passes_its_tests() {
    run(&[]);
}

#[test]
fn the_vllm_plugin_passes_its_tests() {
    run(&["--package", "../vllm"]);
}

#[test]
fn the_gemm_benchmark_passes_its_tests() {
    run(&["--script", "../../bench/gemm/tests.py"]);
}
