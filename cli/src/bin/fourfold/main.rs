//! The command line of Fourfold: `replay`, `explain`, `compile`, `import`, `verify`, `bench`, `profile`, `toolchain`,
//! `cache` and `doctor`, and for tuning `sweep`, `merge`, `select` and `heatmap`.
//!
//! With `--json`, every exit prints one object on the standard output: a report, or `ok`, `fault` and `error`.
//! That includes wrong arguments, an interrupt and a panic.

// These macros panic if the stream cannot be written; `tell!` and `print` do not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

/// Prints a message on stderr. If that fails, the report and the exit code still tell the outcome.
macro_rules! tell {
    ($($words:tt)*) => { $crate::told(format_args!($($words)*)) };
}

mod bench;
mod cache;
mod compile;
mod doctor;
mod exhaustion;
mod import;
mod interrupt;
mod pack;
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
use fourfold_cli::replay::{explain, explain_memory};
use fourfold_cli::{Error, Report, Summary, exit_code};
use fourfold_executor::{ignore_file_size_signal, stdout_on_stderr, write_to_stdout};
use place::Place;

#[derive(Parser)]
#[command(
    name = "fourfold",
    version,
    about = "Plan, run and check programs with block-scaled FP4 matrix multiplications",
    after_help = "Example:\n  fourfold replay fixtures/minilm_ffn.fir\n\n\
                  Exit codes: 0 ok, 1 a value is wrong, 2 bad input, 3 this machine lacks something (a toolchain, a \
                  required kernel, memory, open files, disk space), 70 a bug in Fourfold, 130 interrupted"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program and compare every expected value
    Replay(replay::Arguments),
    /// Plan a program and list which ops become kernels, and why others do not
    #[command(after_help = "Examples:\n  fourfold explain fixtures/attention.fir --target sm_120a\n  \
        fourfold explain fixtures/minilm_ffn_qdq.fir --proof\n  \
        fourfold explain fixtures/attention.fir --memory\n\n\
        Exit codes: 0 ok, 2 bad input, 3 this machine lacks something, 70 a bug in Fourfold, 130 interrupted")]
    Explain {
        /// The program: a .fir file, or `-` for the standard input
        file: PathBuf,
        #[command(flatten)]
        place: Place,
        /// Print the full justification of each kernel: every rule with its ops
        #[arg(long)]
        proof: bool,
        /// Print the memory plan of a prepared program: the offset, size and lifetime of each intermediate
        #[arg(long)]
        memory: bool,
        /// Set the extent of a symbol for --memory [default: that of the `; sample:` line]
        #[arg(long, value_name = "NAME=EXTENT", value_parser = replay::symbol_extent, requires = "memory")]
        symbol: Vec<(String, u64)>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Run programs on the GPU and compare every result
    Verify(verify::Arguments),
    /// Emit and build the kernels of a program and print their resources
    Compile(compile::Arguments),
    /// Build the kernels of programs into one file, for machines that shall build none
    Pack(pack::Arguments),
    /// Turn a quantized model into programs that read its tensors in place
    Import(import::Arguments),
    /// Measure suites of programs against a copy and against torch, and check every output
    Bench(bench::Arguments),
    /// Profile or sanitize the kernel of one segment with ncu and compute-sanitizer
    #[cfg(feature = "tune")]
    Profile(profile::Arguments),
    /// Find or install the CUDA compiler and CUTLASS
    Toolchain(toolchain::Arguments),
    /// List, verify, prune or share the cached kernels
    Cache(cache::Arguments),
    /// Report what this machine has for building and running kernels, and how to fix what is missing
    Doctor(doctor::Arguments),
    #[cfg(feature = "tune")]
    #[command(flatten)]
    Tune(tune::Command),
}

/// The exit code if a required kernel did not run.
const EXIT_ENVIRONMENT: u8 = 3;
/// The exit code if an expectation was not met.
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

/// Runs a command and returns the message of a panic, whose location has been printed to stderr.
fn caught<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        text.unwrap_or_else(|| "a panic without a message".to_owned())
    })
}

fn run(command: Command) -> ExitCode {
    match command {
        Command::Replay(arguments) => replay::run(arguments),
        Command::Explain { file, place, proof, memory, symbol, json } => match place.options() {
            Ok(options) => {
                let report = match memory {
                    true => explain_memory(&file, &options, &symbol),
                    false => explain(&file, &options),
                };
                let report = report.map(|report| Report { show_proof: proof, ..report });
                finish(report, json, true, false, None)
            }
            Err(message) => misused(&message, json),
        },
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Compile(arguments) => compile::run(&arguments),
        Command::Pack(arguments) => pack::run(&arguments),
        Command::Import(arguments) => import::run(&arguments),
        Command::Bench(arguments) => bench::run(&arguments),
        #[cfg(feature = "tune")]
        Command::Profile(arguments) => profile::run(&arguments),
        Command::Toolchain(arguments) => toolchain::run(arguments),
        Command::Cache(arguments) => cache::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
        #[cfg(feature = "tune")]
        Command::Tune(command) => tune::run(&command),
    }
}

/// Prints a report or the error instead of one, and returns the exit code. `bundle` is the bundle that was
/// requested.
fn finish(
    result: Result<Report, Error>,
    json: bool,
    verbose: bool,
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
        // Every expectation is met, but a required kernel or bundle is missing, so the command failed.
        (Ok(report), true) if report.ok && code != 0 => {
            print(&to_json(&Report { ok: false, fault: Some(Fault::Environment), ..report.clone() }))
        }
        (Ok(report), true) => print(&to_json(report)),
        (Ok(report), false) if verbose => print(&report.to_string()),
        (Ok(report), false) => print(&Summary(report).to_string()),
        (Err(error), json) => return fail_with(error, json, bundle),
    };
    leave(code, printed)
}

/// Prints the error that `--require-kernels` is not met.
fn tell_of_missing_kernels(ran: usize, planned: usize) {
    match planned {
        0 => tell!("error: --require-kernels: no kernel was planned"),
        _ => {
            tell!("error: --require-kernels: {ran} of {planned} planned kernels ran")
        }
    }
}

/// Runs code that may call libraries which print, such as kernels in debug mode, and keeps stdout clean for the
/// report.
fn with_stdout_kept<T>(run: impl FnOnce() -> T) -> T {
    // Without a standard output, there is nothing to keep clean.
    let _kept = stdout_on_stderr().ok();
    run()
}

/// Ends with an error of the arguments.
fn misused(message: &str, json: bool) -> ExitCode {
    fail_as(Fault::InvalidInput, message, json)
}

/// Ends with an error that has only a message.
fn fail_as(fault: Fault, message: &str, json: bool) -> ExitCode {
    tell!("error: {message}");
    let printed = if json { print(&to_json(&failure(fault.name(), message))) } else { Ok(()) };
    leave(exit_code(fault), printed)
}

/// Returns the object that replaces a report.
fn failure(fault: &str, message: &str) -> serde_json::Value {
    serde_json::json!({ "ok": false, "fault": fault, "error": message, "diagnostics": [] })
}

/// Ends with an error: as text on stderr and, with `--json`, as an object on stdout.
fn fail(error: &Error, json: bool) -> ExitCode {
    fail_with(error, json, None)
}

/// Ends like [`fail`]; the object also names the bundle of the failed run.
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

/// Ends with `code`, or with an error if the report could not be printed.
fn leave(code: u8, printed: std::io::Result<()>) -> ExitCode {
    interrupt::begin_report();
    // A reader may close the pipe early (`| head`); that is no error.
    match printed {
        Ok(()) => ExitCode::from(code),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            tell!("error: cannot write the report: {error}");
            ExitCode::from(EXIT_ENVIRONMENT)
        }
    }
}

/// Writes a report to the standard output, with control characters of names escaped.
fn print(text: &str) -> std::io::Result<()> {
    print_bytes(without_controls(text).as_bytes())
}

/// Writes a file to the standard output unchanged.
fn print_bytes(bytes: &[u8]) -> std::io::Result<()> {
    interrupt::begin_report();
    write_to_stdout(bytes)
}

fn told(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{}", without_controls(&line.to_string()));
}

/// Escapes control characters other than newline and tab, so that names and quoted lines cannot control a terminal.
fn without_controls(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '\n' | '\t' => safe.push(letter),
            _ if letter.is_control() => safe.extend(letter.escape_default()),
            _ => safe.push(letter),
        }
    }
    safe
}

/// Returns a path as text for JSON; bytes that are not UTF-8 are replaced.
fn shown(path: impl AsRef<std::path::Path>) -> String {
    path.as_ref().to_string_lossy().into_owned()
}

fn to_json(value: &impl serde::Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("every report is representable as JSON");
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
        "help": error.remedy(),
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
