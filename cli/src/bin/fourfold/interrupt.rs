//! Handles Ctrl-C: kills every compiler, removes temporary folders, and exits with 130 and, with `--json`, an
//! object.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::Duration;

use fourfold_executor::service::stop_all;
use fourfold_executor::{keep_ignored, write_to_stdout};

/// The exit code of an interrupted program.
const EXIT_INTERRUPTED: i32 = 130;
/// The time limit for compilers to die.
const LIMIT: Duration = Duration::from_secs(10);
/// The time limit for printing a report, whose reader may never read it.
const PRINTING: Duration = Duration::from_secs(1);

/// The owner of the standard output: nobody yet, the report or the interrupt. It is claimed once, so that only
/// one object is printed.
static PRINTS: AtomicU8 = AtomicU8::new(NOBODY);
const NOBODY: u8 = 0;
const REPORT: u8 = 1;
const INTERRUPT: u8 = 2;

/// Returns true if `who` is the first to claim the standard output.
fn claim(who: u8) -> bool {
    PRINTS.compare_exchange(NOBODY, who, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// Makes SIGINT, SIGTERM and SIGHUP end the program cleanly, unless it was started with the signal ignored.
pub fn handle(json: bool) {
    let stop = move || {
        let prints = claim(INTERRUPT);
        if !prints {
            // A report that is being printed keeps its own exit code, and the program ends by itself.
            thread::sleep(PRINTING);
        }
        stop_all(LIMIT);
        if prints && json {
            let object = crate::failure("interrupted", "interrupted by a signal");
            let _ = write_to_stdout(crate::to_json(&object).as_bytes());
        }
        std::process::exit(EXIT_INTERRUPTED);
    };
    // If no thread can be started for the handler, a signal ends the program at once. The next process cleans up
    // after it.
    let _ = keep_ignored(|| ctrlc::set_handler(stop));
}

/// Claims the standard output for the report. Never returns after an interrupt: cancelled work is no result to
/// report.
pub fn begin_report() {
    claim(REPORT);
    while PRINTS.load(Ordering::SeqCst) == INTERRUPT {
        thread::sleep(LIMIT);
    }
}
