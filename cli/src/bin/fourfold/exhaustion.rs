//! Ends the program in good order when a small allocation fails: with an exit code, a report and no core dump.

use fourfold::Fault;
use fourfold_executor::{Allocator, report_memory_exhaustion};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Has memory that runs out end this program with the exit code and, with `--json`, the object of a resource limit. The
/// arguments are not parsed yet: parsing allocates too.
pub fn handle() {
    let fault = Fault::ResourceLimit;
    let message = "there is not enough memory";
    let object =
        serde_json::json!({ "ok": false, "fault": fault.name(), "error": message, "diagnostics": [] });
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    let stdout = if wants_json { crate::to_json(&object) } else { String::new() };
    let stderr = format!("error: {message}\nhelp: raise the limit (ulimit -v), or take smaller tensors\n");
    report_memory_exhaustion(stdout, stderr, fourfold_cli::exit_code(fault));
}
