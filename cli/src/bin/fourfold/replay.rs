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
    fourfold replay fixtures/minilm_ffn.fir --debug --bundle found\n  fourfold replay found\n\n\
    Inputs come from --data, else from the program's `; data:` line, else from its first `; sample:` line, else they \
    are seeded. Each tensor `expected.NAME` of the data is compared with the program's value NAME; outputs without \
    one are compared with the interpreter.\n\n\
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
    /// Read the tensors from this .safetensors file [default: the one that the program names]
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// Set the extent of a symbol [default: that of the data or the `; sample:` line]
    #[arg(long, value_name = "NAME=EXTENT", value_parser = symbol_extent)]
    symbol: Vec<(String, u64)>,
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
    let Arguments { file, data, place, symbol, build, debug, bundle, segment, choice, .. } = arguments;
    let (require_kernels, json) = (arguments.require_kernels, arguments.json);
    let verbose = arguments.verbose || build || debug;
    let backend = match place.options() {
        Ok(backend) => backend,
        Err(message) => return crate::misused(&message, json),
    };
    if let Some(name) = twice(&symbol) {
        return crate::misused(&format!("--symbol `{name}` is given twice"), json);
    }
    let options = ReplayOptions {
        backend,
        compile: choice.compile_options().build_anyway(build).debug(debug),
        data,
        symbols: symbol,
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
fn twice(symbols: &[(String, u64)]) -> Option<&str> {
    let known = |at: usize| symbols[..at].iter().any(|(name, _)| *name == symbols[at].0);
    (0..symbols.len()).find(|at| known(*at)).map(|at| symbols[at].0.as_str())
}

fn symbol_extent(text: &str) -> Result<(String, u64), String> {
    text.split_once('=')
        .and_then(|(name, extent)| Some((name.to_owned(), extent.parse().ok()?)))
        .filter(|(name, _)| !name.is_empty())
        .ok_or_else(|| format!("expected NAME=EXTENT, such as M=37, not `{text}`"))
}
