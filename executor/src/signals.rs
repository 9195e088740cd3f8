//! Signals that the parent process set to be ignored, as `nohup` does.

use std::fs;

/// SIGHUP, SIGINT and SIGTERM, with the same numbers on every Unix.
const ENDING: [i32; 3] = [1, 2, 15];

/// Runs `install`, which installs signal handlers. Keeps SIGHUP, SIGINT and SIGTERM ignored if they were before: a
/// program started with `nohup` or in the background must go on. If installing fails, perhaps halfway, the other
/// signals get their default action.
///
/// # Errors
/// As `install`.
pub fn keep_ignored<E>(install: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = ignored(&status);
    let outcome = install();
    for number in ENDING {
        if mask >> (number - 1) & 1 == 1 {
            set_disposition(number, IGNORE);
        } else if outcome.is_err() {
            set_disposition(number, DEFAULT);
        }
    }
    outcome
}

/// Makes writes beyond the file size limit (`ulimit -f`) fail with `EFBIG`, like other write errors. The signal,
/// SIGXFSZ, would end the process without a report.
pub fn ignore_file_size_signal() {
    set_disposition(FILE_SIZE_SIGNAL, IGNORE);
}

/// `SIGXFSZ` on Linux for x86 and Arm.
const FILE_SIZE_SIGNAL: i32 = 25;

/// `SIG_DFL`.
const DEFAULT: usize = 0;

/// `SIG_IGN`.
const IGNORE: usize = 1;

/// The ignored signals as a bit mask, parsed from `/proc/self/status`.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

fn set_disposition(number: i32, disposition: usize) {
    unsafe extern "C" {
        fn signal(number: i32, handler: usize) -> usize;
    }
    // SAFETY: C's `signal`, with a signal that can be ignored and no function to call.
    unsafe { signal(number, disposition) };
}

#[cfg(test)]
mod tests {
    use super::ignored;

    #[test]
    fn the_system_says_what_is_ignored() {
        assert_eq!(ignored("Name:\tx\nSigIgn:\t0000000000001001\nSigCgt:\tffff\n"), 0x1001);
        assert_eq!(ignored("Name:\tx\n"), 0);
    }
}
