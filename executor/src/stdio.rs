//! Keeps output of libraries off standard output, which is for reports.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::stdio::{dup2_stdout, stderr, stdout};

/// The original standard output, while libraries print elsewhere.
static KEPT: Mutex<Option<OwnedFd>> = Mutex::new(None);
/// The descriptor in [`KEPT`], for a signal handler, which must not lock; negative if there is none.
static REPORT: AtomicI32 = AtomicI32::new(-1);

/// The descriptor of the process's original standard output. Async-signal-safe.
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

/// While this exists, writes to the process's standard output go to standard error.
#[derive(Debug)]
#[must_use]
pub struct StdoutOnStderr {
    /// True for the first instance, whose drop restores standard output.
    is_first: bool,
}

/// Redirects the process's standard output to standard error while a library may print: CUTLASS traces its host code
/// there. [`write_to_stdout`] still reaches the original standard output.
///
/// # Errors
/// When there is no standard output or error, or no file descriptor is left.
pub fn stdout_on_stderr() -> io::Result<StdoutOnStderr> {
    io::stdout().flush()?;
    let mut kept = kept();
    if kept.is_some() {
        return Ok(StdoutOnStderr { is_first: false });
    }
    // Close-on-exec, so that programs started meanwhile do not hold the reader's pipe open.
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
        // Output still buffered by Rust belongs to the current destination.
        let _ = io::stdout().flush();
        const ATTEMPTS: usize = 3;
        let mut kept = kept();
        let Some(own) = kept.as_ref() else { return };
        // If restoring fails, reports still use the kept descriptor.
        if (0..ATTEMPTS).any(|_| dup2_stdout(own).is_ok()) {
            REPORT.store(-1, Ordering::Relaxed);
            *kept = None;
        }
    }
}

/// Writes to the process's original standard output, even under [`stdout_on_stderr`]. Takes no lock that a printing
/// thread may hold, so that an interrupted program can still report.
///
/// # Errors
/// When the bytes cannot all be written.
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
