//! The commands that tune: which kernels there are, what became of them, and which are best.

mod choose;
mod files;
mod heatmap;
mod merge;
mod problems;
mod progress;
mod select;
mod sweep;
mod table;

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
    /// Choose the fewest kernels that serve all problems, or the best of so many, and write a dispatch table
    Select(select::Arguments),
    /// Draw problems by kernels
    Heatmap(heatmap::Arguments),
}

pub fn run(command: &Command) -> ExitCode {
    match command {
        Command::Sweep(arguments) => sweep::run(arguments),
        Command::Merge(arguments) => merge::run(arguments),
        Command::Select(arguments) => select::run(arguments),
        Command::Heatmap(arguments) => heatmap::run(arguments),
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
            let is_environment = error.is::<SweepError>()
                || error.is::<sweep::NoDevice>()
                || error.downcast_ref::<std::io::Error>().is_some_and(|error| !is_given(error));
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

/// Whether a file that was named is to blame, and not this machine.
fn is_given(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::NotFound | std::io::ErrorKind::InvalidData | std::io::ErrorKind::IsADirectory
    )
}
