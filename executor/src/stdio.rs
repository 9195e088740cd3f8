//! Keeps libraries that print off the standard output, where a report belongs.

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::io::dup;
use rustix::stdio::{dup2_stdout, stderr, stdout};

/// While this lives, what is written to the standard output of the process goes to its standard error.
#[derive(Debug)]
#[must_use]
pub struct StdoutOnStderr {
    stdout: OwnedFd,
}

/// Sends the standard output of the process to its standard error, for the time in which a library that prints may do
/// so: CUTLASS traces what its host code does there.
///
/// # Errors
/// When there is no standard output or error, or no room for one more open file.
pub fn stdout_on_stderr() -> io::Result<StdoutOnStderr> {
    io::stdout().flush()?;
    let kept = dup(stdout())?;
    dup2_stdout(stderr())?;
    Ok(StdoutOnStderr { stdout: kept })
}

impl Drop for StdoutOnStderr {
    fn drop(&mut self) {
        // What Rust still holds was meant for where it goes now.
        let _ = io::stdout().flush();
        let _ = dup2_stdout(&self.stdout);
    }
}
