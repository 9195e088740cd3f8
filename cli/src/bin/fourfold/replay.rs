//! `fourfold replay`: runs a program, or a bundle of an earlier run, and compares what comes out.

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
    Inputs come from --data, else from the file that the program's `; data:` line names, else from its first \
    `; sample:` line, else they are seeded. Each tensor `expected.NAME` of the data is compared with the \
    program's value NAME; outputs without one are compared with the interpreter.\n\n\
    --bundle writes a folder with all that it takes to replay this run elsewhere, also when the run fails: the program, \
    its inputs and outputs, the source and command line of each kernel, the report, and what `doctor` says. A bundle \
    is replayed for the target and with the options of its run; its outputs are compared with what they were. Of its \
    options --target replaces the target and whether it is emulated, and --dispatch the table; --contract, \
    --debug and --build cannot be taken back. --bundle is refused before anything is run where it would replace what is no bundle.\n\n\
    Exit codes: 0 ok, 1 a value is not what was expected, 2 bad input, or no value could be compared, 3 the device failed, a required kernel did not \
    run as one, or the bundle could not be written, 70 a bug of ours, 130 interrupted."
)]
pub struct Arguments {
    /// The program, a .fir file, or `-` for the standard input; or a bundle, a folder
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
    /// Look for a fault: kernels with line information and CUTLASS's trace, poisoned workspaces, and what each launch
    /// was given
    #[arg(long)]
    debug: bool,
    /// Keep the replay in this folder, as a bundle that `replay` takes; one that is there is replaced, unless
    /// something was added to it
    #[arg(long, value_name = "DIR")]
    bundle: Option<PathBuf>,
    /// What the bundle holds: this segment, as a program of its own, instead of the whole program
    #[arg(long, value_name = "N", requires = "bundle")]
    segment: Option<usize>,
    #[command(flatten)]
    choice: Choice,
    /// Exit with 3 when a planned kernel did not run as one
    #[arg(long)]
    require_kernels: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: Arguments) -> ExitCode {
    let Arguments { file, data, place, symbol, build, debug, bundle, segment, choice, .. } = arguments;
    let (require_kernels, json) = (arguments.require_kernels, arguments.json);
    let backend = match place.options() {
        Ok(backend) => backend,
        Err(message) => return crate::misused(&message, json),
    };
    if let Some(name) = twice(&symbol) {
        return crate::misused(&format!("--symbol gives `{name}` twice"), json);
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
        return crate::finish(result, json, require_kernels, None);
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
    crate::finish(outcome, json, require_kernels, Some(&bundle))
}

/// A name that is given twice.
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
