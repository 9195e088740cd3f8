//! The tuning commands: sweep kernels, join records, select kernels, draw heat-maps.

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
use fourfold::Fault;
use fourfold_executor::FileError;
use fourfold_tuner::sweep::SweepError;
use serde_json::Value;

#[derive(Subcommand)]
pub enum Command {
    /// Build and measure the kernels of a manifest and record the outcome of each
    Sweep(sweep::Arguments),
    /// Join the records of several machines
    Merge(merge::Arguments),
    /// Choose the fewest kernels that serve every problem, or the best N, and write a dispatch table
    Select(select::Arguments),
    /// Draw a heat-map of the speed of each kernel on each problem
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

/// The result of a command.
struct Finished {
    /// The text for people. It may hold the colours of a terminal, so each command escapes the names in it.
    text: String,
    /// The object for scripts.
    object: Value,
    code: u8,
    /// True if the standard output receives a file; the text then goes to stderr.
    on_stdout: bool,
}

/// Writing a file to the standard output failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot write to the standard output: {error}")]
struct Unprinted {
    error: std::io::Error,
}

/// The program cannot be used; the text has its diagnostics.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
struct Refused {
    text: String,
    fault: Fault,
}

impl From<fourfold_cli::Error> for Refused {
    fn from(error: fourfold_cli::Error) -> Refused {
        let text = error.render();
        let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned();
        Refused { text, fault: error.fault() }
    }
}

/// Prints the result or the error, and returns the exit code.
fn finish(finished: anyhow::Result<Finished>, json: bool) -> ExitCode {
    let error = match finished {
        Ok(finished) if finished.on_stdout => {
            tell!("{}", finished.text.trim_end());
            return crate::leave(finished.code, Ok(()));
        }
        Ok(finished) => {
            let text = if json { crate::to_json(&finished.object) } else { finished.text };
            return crate::leave(finished.code, crate::print_bytes(text.as_bytes()));
        }
        Err(error) => error,
    };
    // A reader may close the pipe early (`| head`); that is no error.
    if let Some(Unprinted { error }) = error.downcast_ref::<Unprinted>()
        && error.kind() == std::io::ErrorKind::BrokenPipe
    {
        return crate::leave(0, Ok(()));
    }
    crate::fail_as(fault_of(&error), &format!("{error:#}"), json)
}

fn fault_of(error: &anyhow::Error) -> Fault {
    let fault_of_cause = |cause: &(dyn std::error::Error + 'static)| {
        let is_environment =
            cause.is::<SweepError>() || cause.is::<sweep::NoDevice>() || cause.is::<Unprinted>();
        let of_file = || cause.downcast_ref::<FileError>().map(fourfold_cli::fault_of_file);
        let of_program = || cause.downcast_ref::<Refused>().map(|refused| refused.fault);
        if is_environment { Some(Fault::Environment) } else { of_file().or_else(of_program) }
    };
    error.chain().find_map(fault_of_cause).unwrap_or(Fault::InvalidInput)
}
