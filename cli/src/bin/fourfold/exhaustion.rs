//! Ends the program with an exit code and a report, without a core dump, when a small allocation fails.

use fourfold::Fault;
use fourfold_executor::{Allocator, report_memory_exhaustion};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

/// Makes exhausted memory end the program with the exit code and, with `--json`, the object of a resource limit.
/// It searches the raw arguments, because parsing them allocates too.
pub fn handle() {
    let fault = Fault::ResourceLimit;
    let message = "memory is exhausted";
    let object =
        serde_json::json!({ "ok": false, "fault": fault.name(), "error": message, "diagnostics": [] });
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    let stdout = if wants_json { crate::to_json(&object) } else { String::new() };
    let stderr = format!("error: {message}\nhelp: raise the limit (ulimit -v) or use smaller tensors\n");
    report_memory_exhaustion(stdout, stderr, fourfold_cli::exit_code(fault));
}
