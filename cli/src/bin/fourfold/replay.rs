//! `fourfold replay`: runs a program, or the bundle of an earlier run, and compares the results.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fourfold::Event;
use fourfold_cli::bundle::BundleOptions;
use fourfold_cli::replay::{Bundled, ReplayOptions, replay, replay_bundled};

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  fourfold replay fixtures/minilm_ffn.fir --data another_layer.safetensors\n  \
    fourfold replay up_proj.fir --data oracle.safetensors --tolerance y=1e-5\n  \
    fourfold replay layer.fir --data model.safetensors --data oracle.safetensors\n  \
    fourfold replay fixtures/minilm_ffn.fir --debug --bundle found\n  fourfold replay found\n\n\
    An input comes from the last --data file that has a tensor of its name, else from its `; tensor:` line, else from \
    the last `; data:` file. A `; tensor:` line without a file names a tensor of all these files. If --data has every \
    input, the program's own files are not read. Beside `; tensor:` lines, the first `; sample:` line draws the \
    inputs that are still missing. If --data has some of these, it must have all. A program without any file \
    takes its inputs from its first `; sample:` line, else they are seeded.\n\n\
    Each tensor `expected.NAME` of the data is compared with the program's value NAME; outputs without \
    one are compared with the interpreter. An expectation is left out if a later --data file replaces an input of its \
    file. A --data file of which no tensor is used is an error; other unused tensors are noted. --tolerance T replaces \
    every `; tolerance:` line, --tolerance NAME=T that of NAME. Without one, a value behind an FP4 or FP8 quantization \
    may differ by 0.25. `loose` marks an expectation that is met by such a tolerance only. A result that misses its \
    expectation is compared once more on the codes of the data, if they have those of a quantization before it.\n\n\
    The report has one line per segment and per compared value; -v prints the full report.\n\n\
    --bundle writes a folder that can be replayed on another machine, even if the run fails. It contains the program, \
    its inputs and outputs, the source and build command of each kernel, the report, and the output of `doctor`. \
    --bundle fails before the run if DIR exists and is neither an unmodified bundle nor an empty folder.\n\n\
    Replaying a bundle uses the target and options of its run and compares the outputs with the recorded ones. \
    --target and --emulate replace the recorded target, and --dispatch replaces the table. Recorded --contract, \
    --debug and --build cannot be switched off.\n\n\
    Exit codes: 0 ok, 1 a value is wrong or lacks bounds, 2 bad input, 3 the device failed, a required kernel did not \
    run, no value could be compared, or the bundle could not be written, 70 a bug in Fourfold, 130 interrupted"
)]
pub struct Arguments {
    /// The program: a .fir file, `-` for the standard input, or the folder of a bundle
    file: PathBuf,
    /// Add the tensors of this .safetensors file to those that the program names; repeat it for several files, of which
    /// a later one replaces tensors of the same name
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// Set the extent of a symbol [default: that of the data or the `; sample:` line]
    #[arg(long, value_name = "NAME=EXTENT", value_parser = symbol_extent)]
    symbol: Vec<(String, u64)>,
    /// Allow value NAME, or every value, to differ by T times its largest magnitude [default: the program's `;
    /// tolerance:` lines]
    #[arg(long, value_name = "[NAME=]T", value_parser = tolerance)]
    tolerance: Vec<(Option<String>, f64)>,
    /// Build the kernels even if they cannot run here, and print their resources
    #[arg(long)]
    build: bool,
    /// Build with line information and CUTLASS tracing, poison workspaces, print the arguments of launches
    #[arg(long)]
    debug: bool,
    /// Write a bundle of the run to DIR; an unmodified bundle there is replaced
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// Write only segment N to the bundle, as a separate program
    #[arg(long, value_name = "N", requires = "bundle")]
    segment: Option<usize>,
    #[command(flatten)]
    choice: Choice,
    /// Exit with 3 unless every planned kernel ran as a kernel
    #[arg(long)]
    require_kernels: bool,
    /// Print constraints, justifications and every decision, as `explain` does; implied by --build and --debug
    #[arg(short, long)]
    verbose: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { file, data, place, symbol, tolerance, build, debug, bundle, segment, choice, .. } =
        arguments;
    let (require_kernels, json) = (arguments.require_kernels, arguments.json);
    let verbose = arguments.verbose || build || debug;
    let backend = match place.options() {
        Ok(backend) => backend,
        Err(message) => return crate::misused(&message, json),
    };
    if let Some(name) = twice(&symbol) {
        return crate::misused(&format!("--symbol `{name}` is given twice"), json);
    }
    if let Some(name) = twice(&tolerance) {
        let of = name.as_ref().map_or_else(String::new, |name| format!(" of `{name}`"));
        return crate::misused(&format!("--tolerance{of} is given twice"), json);
    }
    let options = ReplayOptions {
        backend,
        compile: choice.compile_options().build_anyway(build).debug(debug),
        data,
        symbols: symbol,
        tolerances: tolerance,
    };
    let progress = Progress::new(json);
    let told = |event: &Event| progress.event(event);
    let Some(folder) = bundle else {
        let result = crate::with_stdout_kept(|| replay(&file, &options, &told));
        drop(progress);
        return crate::finish(result, json, verbose, require_kernels, None);
    };
    let bundle = BundleOptions { folder, segment };
    let bundled = crate::with_stdout_kept(|| replay_bundled(&file, &options, &bundle, &told));
    drop(progress);
    let Bundled { outcome, bundle } = match bundled {
        Ok(bundled) => bundled,
        Err(error) => return crate::fail(&error, json),
    };
    match &bundle {
        Ok(bundle) => {
            tell!("bundle: {}", bundle.folder.display());
            for lack in &bundle.lacks {
                tell!("the bundle lacks {}: {}", lack.what, lack.why);
            }
        }
        Err(error) => tell!("error: no bundle was written: {}", fourfold::chain(error)),
    }
    crate::finish(outcome, json, verbose, require_kernels, Some(&bundle))
}

/// Returns a name that is given twice.
fn twice<N: PartialEq, T>(given: &[(N, T)]) -> Option<&N> {
    let known = |at: usize| given[..at].iter().any(|(name, _)| *name == given[at].0);
    (0..given.len()).find(|at| known(*at)).map(|at| &given[at].0)
}

fn tolerance(text: &str) -> Result<(Option<String>, f64), String> {
    let (name, number) = match text.split_once('=') {
        Some((name, number)) => (Some(name.trim_start_matches('%').to_owned()), number),
        None => (None, text),
    };
    match number.parse() {
        // A tolerance beyond 1 would accept zeros.
        Ok(tolerance) if (0.0..=1.0).contains(&tolerance) && name.as_deref() != Some("") => {
            Ok((name, tolerance))
        }
        _ => Err(format!("expected a tolerance from 0 to 1, such as 1e-5 or y=1e-5, not `{text}`")),
    }
}

pub fn symbol_extent(text: &str) -> Result<(String, u64), String> {
    text.split_once('=')
        .and_then(|(name, extent)| Some((name.to_owned(), extent.parse().ok()?)))
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("expected NAME=EXTENT, such as M=37, not `{text}`"))
}
