//! What Ctrl-C does: every compiler is killed, temporary folders are removed, and the exit code says so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fourfold_executor::keep_ignored;
use fourfold_executor::service::stop_all;

/// The exit code of a program that was interrupted.
const EXIT_INTERRUPTED: i32 = 130;
/// How long compilers may take to die.
const LIMIT: Duration = Duration::from_secs(10);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Has SIGINT, SIGTERM and SIGHUP end this program in good order, but for those that it was started to ignore.
pub fn handle() {
    let stop = || {
        INTERRUPTED.store(true, Ordering::SeqCst);
        stop_all(LIMIT);
        std::process::exit(EXIT_INTERRUPTED);
    };
    // Without a handler the program ends at once, and whoever comes next puts away what it left.
    let _ = keep_ignored(|| ctrlc::set_handler(stop));
}

/// Does not return once the program was interrupted: what was cancelled is no result to report.
pub fn settle() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        thread::sleep(LIMIT);
    }
}
