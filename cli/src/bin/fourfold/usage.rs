//! Answers wrong arguments and requests for help.

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use fourfold::Fault;

/// Returns true if `--json` is among the arguments, even if others are wrong. Arguments after `--` are not
/// options.
pub fn wants_json(arguments: &[OsString]) -> bool {
    let options = arguments.iter().skip(1).take_while(|argument| *argument != "--");
    options.into_iter().any(|argument| argument.to_str().is_some_and(is_json))
}

fn is_json(argument: &str) -> bool {
    argument.strip_prefix("--json").is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

/// Ends with help, the version, or the error of the arguments.
pub fn answer(error: &clap::Error, json: bool) -> ExitCode {
    crate::interrupt::begin_report();
    let fault = Fault::InvalidInput;
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return crate::leave(0, error.print().and_then(|()| std::io::stdout().flush()));
    }
    // stderr may be closed.
    let _ = error.print();
    let printed = match json {
        true => crate::print(&crate::to_json(&crate::failure(fault.name(), &message(error)))),
        false => Ok(()),
    };
    crate::leave(fourfold_cli::exit_code(fault), printed)
}

/// Returns the error on one line, without the usage and the hint at `--help`.
fn message(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "no command is given".to_owned();
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let said = text.lines().take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let words: Vec<&str> = said.flat_map(str::split_whitespace).collect();
    words.join(" ")
}
