//! Handles Ctrl-C: every compiler is killed, temporary folders are removed, and the exit code says so, with `--json` an
//! object too.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use fourfold_executor::service::stop_all;
use fourfold_executor::{keep_ignored, write_to_stdout};

/// The exit code of a program that was interrupted.
const EXIT_INTERRUPTED: i32 = 130;
/// How long compilers may take to die.
const LIMIT: Duration = Duration::from_secs(10);
/// The time that printing a report may take: whoever should read it may never do so.
const PRINTING: Duration = Duration::from_secs(1);

/// The owner of the standard output: nobody yet, the report, or the interrupt. It is decided once, so that one object is printed.
static PRINTS: AtomicU8 = AtomicU8::new(NOBODY);
const NOBODY: u8 = 0;
const REPORT: u8 = 1;
const INTERRUPT: u8 = 2;

/// Returns whether `who` is the first to print.
fn claim(who: u8) -> bool {
    PRINTS.compare_exchange(NOBODY, who, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Has SIGINT, SIGTERM and SIGHUP end this program in good order, but for those that it was started to ignore.
pub fn handle(json: bool) {
    let stop = move || {
        let prints = claim(INTERRUPT);
        if !prints {
            // The report that this would cut off has its own exit code, and the program ends by itself.
            thread::sleep(PRINTING);
        }
        stop_all(LIMIT);
        if prints && json {
            let object = crate::failure("interrupted", "interrupted by a signal");
            let _ = write_to_stdout(crate::to_json(&object).as_bytes());
        }
        std::process::exit(EXIT_INTERRUPTED);
    };
    // Without a handler, as where there is no thread for it, a signal ends the program at once, and whoever comes next
    // puts away what it left.
    let _ = keep_ignored(|| ctrlc::set_handler(stop));
}

/// Claims the standard output for the report. Does not return once the program was interrupted: what was cancelled is no
/// result to report.
pub fn begin_report() {
    claim(REPORT);
    while PRINTS.load(Ordering::SeqCst) == INTERRUPT {
        thread::sleep(LIMIT);
    }
}
