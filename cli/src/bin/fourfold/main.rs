//! The command line: `fourfold replay`, `explain`, `compile`, `verify`, `profile`, `toolchain`, `cache`, `doctor`, and
//! those that tune: `sweep`, `merge`, `select` and `heatmap`.
//!
//! Every exit with `--json` prints one object on the standard output: a report, or `ok`, `fault` and `error`, also when
//! the arguments are wrong, the program is interrupted, or it panics.

// They panic where nothing can be written: `tell!` and `print` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// Tells people something on stderr. Where that cannot be written, the report and the exit code say what there is to say.
macro_rules! tell {
    ($($words:tt)*) => { $crate::told(format_args!($($words)*)) };
}

mod cache;
mod compile;
mod doctor;
mod exhaustion;
mod interrupt;
mod place;
#[cfg(feature = "tune")]
mod profile;
mod progress;
mod replay;
mod toolchain;
#[cfg(feature = "tune")]
mod tune;
mod usage;
mod verify;

use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fourfold::Fault;
use fourfold_cli::bundle::{Bundle, BundleError};
use fourfold_cli::replay::explain;
use fourfold_cli::{Error, Report, exit_code};
use fourfold_executor::{ignore_file_size_signal, stdout_on_stderr, write_to_stdout};
use place::Place;

#[derive(Parser)]
#[command(
    name = "fourfold",
    version,
    about = "Plans, runs and checks programs with block-scaled FP4 matrix multiplications",
    after_help = "Exit codes: 0 ok, 1 a value is not what was expected, 2 bad input, 3 something is missing here (a \
                  toolchain, a required kernel, memory, open files, room for the report), 70 a bug of ours, 130 interrupted"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program and compare every expected value
    Replay(replay::Arguments),
    /// Say which ops become kernels, and why the others do not
    #[command(after_help = "Examples:\n  fourfold explain fixtures/attention.fir --target sm_120a\n  \
        fourfold explain fixtures/minilm_ffn_qdq.fir --proof")]
    Explain {
        /// The program, a .fir file, or `-` for the standard input
        file: PathBuf,
        #[command(flatten)]
        place: Place,
        /// Say of each kernel which rules justify it, each with its ops
        #[arg(long)]
        proof: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run the kernels of programs on the GPU that is here, and compare every result
    Verify(verify::Arguments),
    /// Emit and build the kernels of a program, and print what they cost
    Compile(compile::Arguments),
    /// Have the vendor's profiler and sanitizer look at the kernel of one segment
    #[cfg(feature = "tune")]
    Profile(profile::Arguments),
    /// Find or install the CUDA compiler and CUTLASS
    Toolchain(toolchain::Arguments),
    /// Look at, verify, shrink or share the kernels that were built
    Cache(cache::Arguments),
    /// Say what this machine has for building kernels, what it lacks, and what to do about it
    Doctor(doctor::Arguments),
    #[cfg(feature = "tune")]
    #[command(flatten)]
    Tune(tune::Command),
}

/// The exit code when a kernel was required and did not run.
const EXIT_ENVIRONMENT: u8 = 3;
/// The exit code when an expectation was not met.
const EXIT_MISMATCH: u8 = 1;

fn main() -> ExitCode {
    exhaustion::handle();
    ignore_file_size_signal();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let json = usage::wants_json(&arguments);
    interrupt::handle(json);
    let command = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli.command,
        Err(error) => return usage::answer(&error, json),
    };
    match caught(|| run(command)) {
        Ok(code) => code,
        Err(message) => fail_as(Fault::Bug, &format!("bug: {message}; please report it"), json),
    }
}

/// Runs a command, or returns the message of its panic. The place of the panic is on stderr by then.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "it panicked without a message".to_owned())
    })
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Replay(arguments) => replay::run(arguments),
        Command::Explain { file, place, proof, json } => match place.options() {
            Ok(options) => {
                let report = explain(&file, &options).map(|report| Report { show_proof: proof, ..report });
                finish(report, json, false, None)
            }
            Err(message) => misused(&message, json),
        },
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Compile(arguments) => compile::run(&arguments),
        #[cfg(feature = "tune")]
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Toolchain(arguments) => toolchain::run(arguments),
        Command::Cache(arguments) => cache::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        #[cfg(feature = "tune")]
        Command::Tune(command) => tune::run(&command),
    }
}

/// Ends with a report, or why there is none; and with the bundle that was to be written.
fn finish(
    result: Result<Report, Error>,
    json: bool,
    require_kernels: bool,
    bundle: Option<&Result<Bundle, BundleError>>,
) -> ExitCode {
    let code = match &result {
        Ok(report) if report.exit_code() != 0 => report.exit_code(),
        Ok(_) if bundle.is_some_and(Result::is_err) => EXIT_ENVIRONMENT,
        Ok(report) if require_kernels && report.ran_kernels != report.kernels => EXIT_ENVIRONMENT,
        Ok(_) => 0,
        Err(error) => exit_code(error.fault()),
    };
    for output in result.iter().flat_map(|report| &report.outputs) {
        if let Some(error) = &output.error {
            tell!("error: {error}");
        }
    }
    let lacks_kernels = |report: &Report| require_kernels && report.ran_kernels != report.kernels;
    if let Ok(report) = &result
        && lacks_kernels(report)
    {
        tell_of_missing_kernels(report.ran_kernels, report.kernels);
    }
    let printed = match (&result, json) {
        // A bundle or a kernel that is required and not there: every expectation is met, and the command failed.
        (Ok(report), true) if report.ok && code != 0 => {
            print(&to_json(&Report { ok: false, fault: Some(Fault::Environment), ..report.clone() }))
        }
        (Ok(report), true) => print(&to_json(report)),
        (Ok(report), false) => print(&report.to_string()),
        (Err(error), json) => return fail_with(error, json, bundle),
    };
    leave(code, printed)
}

/// Says why `--require-kernels` is not met.
fn tell_of_missing_kernels(ran: usize, planned: usize) {
    match planned {
        0 => tell!("error: no kernel was planned, and --require-kernels asks for one"),
        _ => {
            tell!("error: {ran} of {planned} planned kernels ran, and --require-kernels asks for all of them")
        }
    }
}

/// Runs what may call libraries that print, of kernels in debug mode, with the standard output kept for the report.
fn with_stdout_kept<T>(run: impl FnOnce() -> T) -> T {
    // Where there is no standard output, nothing can spoil it.
    let _kept = stdout_on_stderr().ok();
    run()
}

/// Ends with bad input that is no program's.
fn misused(message: &str, json: bool) -> ExitCode {
    fail_as(Fault::InvalidInput, message, json)
}

/// Ends with an error that is no more than its words.
fn fail_as(fault: Fault, message: &str, json: bool) -> ExitCode {
    tell!("error: {message}");
    let printed = if json { print(&to_json(&failure(fault.name(), message))) } else { Ok(()) };
    leave(exit_code(fault), printed)
}

/// The object that is printed instead of a report.
fn failure(fault: &str, message: &str) -> serde_json::Value {
    serde_json::json!({ "ok": false, "fault": fault, "error": message, "diagnostics": [] })
}

/// Ends with an error: for people on stderr, and as an object on stdout where that was asked for.
fn fail(error: &Error, json: bool) -> ExitCode {
    fail_with(error, json, None)
}

/// [`fail`] where the failure was to be kept in a bundle.
fn fail_with(error: &Error, json: bool, bundle: Option<&Result<Bundle, BundleError>>) -> ExitCode {
    let text = error.render();
    tell!("{}", text.strip_suffix('\n').unwrap_or(&text));
    let mut object = error_object(error);
    if let Some(bundle) = bundle {
        object["bundle"] = serde_json::json!(bundle.as_ref().ok());
        object["bundle_error"] = serde_json::json!(bundle.as_ref().err().map(|error| fourfold::chain(error)));
    }
    let printed = if json { print(&to_json(&object)) } else { Ok(()) };
    leave(exit_code(error.fault()), printed)
}

/// Ends with `code`, unless the report could not be printed.
fn leave(code: u8, printed: std::io::Result<()>) -> ExitCode {
    interrupt::begin_report();
    // A closed pipe (`| head`) is the reader's choice, not an error.
    match printed {
        Ok(()) => ExitCode::from(code),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            tell!("error: cannot write the report: {error}");
            ExitCode::from(EXIT_ENVIRONMENT)
        }
    }
}

fn print(text: &str) -> std::io::Result<()> {
    print_bytes(text.as_bytes())
}

fn print_bytes(bytes: &[u8]) -> std::io::Result<()> {
    interrupt::begin_report();
    write_to_stdout(bytes)
}

fn told(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{}", without_controls(&line.to_string()));
}

/// A text for a terminal, in which names of files and quoted lines control nothing.
fn without_controls(text: &str) -> String {
    let is_harmless = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    let escape = |letter: char| {
        if is_harmless(letter) { letter.to_string() } else { letter.escape_default().to_string() }
    };
    text.chars().map(escape).collect()
}

/// A path as JSON has it: what is no UTF-8 in it is replaced.
fn shown(path: impl AsRef<std::path::Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

fn to_json(value: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("reports hold only what JSON can say");
    text.push('\n');
    text
}

fn error_object(error: &Error) -> serde_json::Value {
    let diagnostics: Vec<serde_json::Value> = match error {
        Error::Program { source_text, diagnostics, .. } => diagnostics
            .iter()
            .map(|diagnostic| {
                let place = diagnostic.line_and_column(source_text);
                serde_json::json!({
                    "code": diagnostic.code,
                    "message": diagnostic.message,
                    "line": place.map(|place| place.0),
                    "column": place.map(|place| place.1),
                    "op": diagnostic.op,
                    "notes": diagnostic.notes,
                })
            })
            .collect(),
        _ => Vec::new(),
    };
    let fault: Fault = error.fault();
    serde_json::json!({
        "ok": false,
        "fault": fault.name(),
        "error": error.message(),
        "diagnostics": diagnostics,
        "launch": error.launch(),
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_panic_is_a_value_with_its_message() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let number = 7;
        let results = [super::caught(|| panic!("plain")), super::caught(|| panic!("number {number}"))];
        std::panic::set_hook(quiet);
        assert_eq!(results, [Err::<(), _>("plain".to_owned()), Err("number 7".to_owned())]);
        assert_eq!(super::caught(|| number), Ok(7));
    }
}
