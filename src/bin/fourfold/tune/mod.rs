//! The commands that tune: which kernels there are, what became of them, and which are best.

mod choose;
mod files;
mod merge;
mod problems;
mod progress;
mod sweep;

use std::process::ExitCode;

use clap::Subcommand;
use fourfold_tuner::sweep::SweepError;
use serde_json::{Value, json};

#[derive(Subcommand)]
pub enum Command {
    /// Take the kernels of a manifest through validity, the compiler and the GPU, and record what became of each
    Sweep(sweep::Arguments),
    /// Join the records of several machines
    Merge(merge::Arguments),
}

pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Sweep(arguments) => sweep::run(arguments),
        Command::Merge(arguments) => merge::run(arguments),
    }
}

/// What a command found out.
struct Finished {
    /// For people.
    text: String,
    /// For programs.
    object: Value,
    code: u8,
}

/// Ends with what was found out, or why nothing was.
fn finish(finished: anyhow::Result<Finished>, json: bool) -> ExitCode {
    match finished {
        Ok(finished) => {
            let text = if json { crate::to_json(&finished.object) } else { finished.text };
            crate::leave(finished.code, crate::print(&text))
        }
        Err(error) => {
            let is_environment = error.downcast_ref::<SweepError>().is_some_and(sweep::is_environment)
                || error.downcast_ref::<std::io::Error>().is_some();
            let fault = if is_environment { "environment" } else { fourfold::Fault::InvalidInput.name() };
            let code = if is_environment {
                crate::EXIT_ENVIRONMENT
            } else {
                fourfold::Fault::InvalidInput.exit_code()
            };
            eprintln!("error: {error:#}");
            let object =
                json!({ "ok": false, "fault": fault, "error": format!("{error:#}"), "diagnostics": [] });
            let printed = if json { crate::print(&crate::to_json(&object)) } else { Ok(()) };
            crate::leave(code, printed)
        }
    }
}
