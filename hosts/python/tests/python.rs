//! Builds the wheel, installs it beside pinned packages and runs the Python tests. `tests/run.py` does the work.
#![cfg(feature = "slow")]

use std::path::Path;
use std::process::Command;

#[test]
fn the_wheel_passes_its_tests() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run.py");
    let status = Command::new("python3").arg(script).status().expect("python3 is installed");
    assert!(status.success(), "tests/run.py failed: {status}");
}
