//! Signals that whoever started this program has it ignore, as `nohup` does.

use std::fs;

/// SIGHUP, SIGINT and SIGTERM, which every Unix numbers so.
const ENDING: [i32; 3] = [1, 2, 15];

/// Runs what installs handlers for signals, and has those of SIGHUP, SIGINT and SIGTERM that were ignored before be
/// ignored afterwards: who starts a program with `nohup`, or behind a shell, wants it to go on. Where installing fails,
/// perhaps halfway, the others end the process as they do without a handler.
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

/// Has writes beyond the limit on the size of files (`ulimit -f`) fail with `EFBIG`, as other failures of writing do. The
/// signal for it, SIGXFSZ, would end the process without a report.
pub fn ignore_file_size_signal() {
    set_disposition(FILE_SIZE_SIGNAL, IGNORE);
}

/// `SIGXFSZ` of Linux on x86 and Arm.
const FILE_SIZE_SIGNAL: i32 = 25;

/// `SIG_DFL`.
const DEFAULT: usize = 0;

/// `SIG_IGN`.
const IGNORE: usize = 1;

/// The signals that are ignored, a bit for each, from what the system says of a process.
fn ignored(status: &str) -> u64 {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

fn set_disposition(number: i32, disposition: usize) {
    unsafe extern "C" {
        fn signal(number: i32, handler: usize) -> usize;
    }
    // SAFETY: C's `signal` with the number of a signal that can be ignored, and no function to call.
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
