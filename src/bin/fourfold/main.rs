//! The command line: `fourfold replay`, `explain`, `compile`, `verify`, `toolchain` and `doctor`.

mod compile;
mod doctor;
mod place;
mod toolchain;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use fourfold::replay::{ReplayOptions, explain, replay};
use fourfold::{CompileOptions, Error, Fault, Report};
use fourfold_executor::toolchain::ToolchainOptions;
use place::Place;

#[derive(Parser)]
#[command(
    version,
    about = "Plans, runs and checks programs with block-scaled FP4 matrix multiplications",
    after_help = "Exit codes: 0 ok, 1 a value is not what was expected, 2 bad input, 3 something is missing here (a \
                  toolchain, a required kernel, room for the report), 70 a bug of ours"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a program and compare every expected value
    #[command(
        after_help = "Example:\n  fourfold replay fixtures/minilm_ffn.fir --data another_layer.safetensors\n\n\
        Inputs come from --data, else from the file that the program's `; data:` line names, else from its first \
        `; sample:` line, else they are seeded. Each tensor `expected.NAME` of the data is compared with the \
        program's value NAME; outputs without one are compared with the interpreter."
    )]
    Replay {
        /// The program, a .fir file
        file: PathBuf,
        /// The tensors, a .safetensors file
        #[arg(long, value_name = "FILE")]
        data: Option<PathBuf>,
        #[command(flatten)]
        place: Place,
        /// The extent of a symbol, for seeded inputs
        #[arg(long, value_name = "NAME=EXTENT", value_parser = symbol_extent)]
        symbol: Vec<(String, u64)>,
        /// Build the kernels also where they cannot run, to see what they cost
        #[arg(long)]
        build: bool,
        #[command(flatten)]
        choice: toolchain::Choice,
        /// Exit with 3 when a planned kernel did not run as one
        #[arg(long)]
        require_kernels: bool,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say which ops become kernels, and why the others do not
    #[command(after_help = "Examples:\n  fourfold explain fixtures/attention.fir --target sm_120a\n  \
        fourfold explain fixtures/minilm_ffn_qdq.fir --proof")]
    Explain {
        /// The program, a .fir file
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
    /// Find or install the CUDA compiler and CUTLASS
    Toolchain(toolchain::Arguments),
    /// Say what this machine has for building kernels, what it lacks, and what to do about it
    Doctor(doctor::Arguments),
}

/// The exit code when a kernel was required and did not run.
const EXIT_ENVIRONMENT: u8 = 3;
/// The exit code when an expectation was not met.
const EXIT_MISMATCH: u8 = 1;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Replay { file, data, place, symbol, build, choice, require_kernels, json } => {
            let backend = match place.options() {
                Ok(backend) => backend,
                Err(message) => return misused(&message, json),
            };
            let options = ReplayOptions {
                backend,
                compile: CompileOptions {
                    toolchain: ToolchainOptions { provision: true, ..choice.options() },
                    build: choice.build_options(),
                    build_anyway: build,
                },
                data,
                symbols: symbol,
            };
            finish(replay(&file, &options, &|line| eprintln!("{line}")), json, require_kernels)
        }
        Command::Explain { file, place, proof, json } => match place.options() {
            Ok(options) => {
                let report = explain(&file, &options).map(|report| Report { show_proof: proof, ..report });
                finish(report, json, false)
            }
            Err(message) => misused(&message, json),
        },
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Compile(arguments) => compile::run(&arguments),
        Command::Toolchain(arguments) => toolchain::run(arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    }
}

fn finish(result: Result<Report, Error>, json: bool, require_kernels: bool) -> ExitCode {
    let code = match &result {
        Ok(report) if !report.ok => EXIT_MISMATCH,
        Ok(report) if require_kernels && report.ran_kernels != report.kernels => EXIT_ENVIRONMENT,
        Ok(_) => 0,
        Err(error) => error.fault().exit_code(),
    };
    let printed = match (&result, json) {
        (Ok(report), true) => print(&to_json(report)),
        (Ok(report), false) => print(&report.to_string()),
        (Err(error), json) => return fail(error, json),
    };
    leave(code, printed)
}

/// Ends with bad input that is no program's.
fn misused(message: &str, json: bool) -> ExitCode {
    let fault = Fault::InvalidInput;
    eprintln!("error: {message}");
    let object =
        serde_json::json!({ "ok": false, "fault": fault.name(), "error": message, "diagnostics": [] });
    let printed = if json { print(&to_json(&object)) } else { Ok(()) };
    leave(fault.exit_code(), printed)
}

/// Ends with an error: for people on stderr, and as an object on stdout where that was asked for.
fn fail(error: &Error, json: bool) -> ExitCode {
    eprint!("{}", error.render());
    let printed = if json { print(&to_json(&error_object(error))) } else { Ok(()) };
    leave(error.fault().exit_code(), printed)
}

/// Ends with `code`, unless the report could not be printed.
fn leave(code: u8, printed: std::io::Result<()>) -> ExitCode {
    // A closed pipe (`| head`) is the reader's choice, not an error.
    match printed {
        Ok(()) => ExitCode::from(code),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            eprintln!("error: cannot write the report: {error}");
            ExitCode::from(EXIT_ENVIRONMENT)
        }
    }
}

fn print(text: &str) -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
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
    })
}

fn symbol_extent(text: &str) -> Result<(String, u64), String> {
    text.split_once('=')
        .and_then(|(name, extent)| Some((name.to_owned(), extent.parse().ok()?)))
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("expected NAME=EXTENT, such as M=37, not `{text}`"))
}
