//! Output of libraries goes to standard error while standard output is reserved for reports, and not afterwards.

use std::process::Command;

use fourfold_executor::{stdout_on_stderr, write_to_stdout};
use rustix::stdio::stdout;

/// Writes as a C library does, past the buffer of Rust's standard output.
fn print(text: &str) {
    assert_eq!(rustix::io::write(stdout(), text.as_bytes()), Ok(text.len()));
}

/// Runs as the process that the other test observes.
#[test]
fn prints() {
    print("before\n");
    let kept = stdout_on_stderr().unwrap();
    print("meanwhile\n");
    println!("rust");
    let inner = stdout_on_stderr().unwrap();
    write_to_stdout(b"report\n").unwrap();
    drop(inner);
    print("still\n");
    drop(kept);
    write_to_stdout(b"last\n").unwrap();
    print("afterwards\n");
}

#[test]
fn the_standard_output_is_kept_for_a_while() {
    let itself = std::env::current_exe().unwrap();
    let output = Command::new(itself).args(["--exact", "prints", "--nocapture"]).output().unwrap();
    assert!(output.status.success());
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(out.contains("before") && out.contains("afterwards"), "{out}");
    assert!(out.contains("report") && out.contains("last"), "{out}");
    assert!(err.contains("meanwhile") && err.contains("rust") && err.contains("still"), "{err}");
    assert!(
        !out.contains("meanwhile") && !out.contains("rust\n") && !err.contains("afterwards"),
        "{out}{err}"
    );
}
