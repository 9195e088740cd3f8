//! Keeps libraries that print off the standard output, where a report belongs.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::stdio::{dup2_stdout, stderr, stdout};

/// The standard output while libraries print elsewhere.
static KEPT: Mutex<Option<OwnedFd>> = Mutex::new(None);
/// The descriptor in [`KEPT`], for a signal handler, which must not lock; negative while there is none.
static REPORT: AtomicI32 = AtomicI32::new(-1);

/// The descriptor of what was the standard output when the process began. Safe in a signal handler.
pub(crate) fn report_descriptor() -> RawFd {
    const STDOUT: RawFd = 1;
    match REPORT.load(Ordering::Relaxed) {
        kept @ 0.. => kept,
        _ => STDOUT,
    }
}

fn kept() -> MutexGuard<'static, Option<OwnedFd>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// While this lives, what is written to the standard output of the process goes to its standard error.
#[derive(Debug)]
#[must_use]
pub struct StdoutOnStderr {
    /// True if it was the first, whose end puts the standard output back.
    is_first: bool,
}

/// Sends the standard output of the process to its standard error, for the time in which a library that prints may do
/// so: CUTLASS traces what its host code does there. [`write_to_stdout`] still reaches the standard output.
///
/// # Errors
/// When there is no standard output or error, or no room for one more open file.
pub fn stdout_on_stderr() -> io::Result<StdoutOnStderr> {
    io::stdout().flush()?;
    let mut kept = kept();
    if kept.is_some() {
        return Ok(StdoutOnStderr { is_first: false });
    }
    // No program that is started meanwhile holds the reader's pipe open.
    let own = fcntl_dupfd_cloexec(stdout(), 3)?;
    dup2_stdout(stderr())?;
    REPORT.store(own.as_raw_fd(), Ordering::Relaxed);
    *kept = Some(own);
    Ok(StdoutOnStderr { is_first: true })
}

impl Drop for StdoutOnStderr {
    fn drop(&mut self) {
        if !self.is_first {
            return;
        }
        // What Rust still holds was meant for where it goes now.
        let _ = io::stdout().flush();
        const ATTEMPTS: usize = 3;
        let mut kept = kept();
        let Some(own) = kept.as_ref() else { return };
        // Where it cannot be restored, reports still reach it by the descriptor that stays.
        if (0..ATTEMPTS).any(|_| dup2_stdout(own).is_ok()) {
            REPORT.store(-1, Ordering::Relaxed);
            *kept = None;
        }
    }
}

/// Writes to the standard output of the process, also while [`stdout_on_stderr`] keeps libraries off it. Locks nothing
/// that a thread may hold which prints, so that an interrupted program can still say so.
///
/// # Errors
/// When not all of it can be written.
pub fn write_to_stdout(mut bytes: &[u8]) -> io::Result<()> {
    let kept = kept();
    let place = match kept.as_ref() {
        Some(own) => own.as_fd(),
        None => stdout(),
    };
    while !bytes.is_empty() {
        match rustix::io::write(place, bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
