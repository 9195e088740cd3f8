//! `fourfold verify`: runs the kernels of programs on the GPU that is here and compares every result.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fourfold_cli::VerifyReport;
use fourfold_cli::verify::{VerifyOptions, verify};

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(after_help = "Examples:\n  fourfold verify fixtures --require-kernels\n  \
    fourfold verify fixtures/minilm_ffn.fir --data another_layer.safetensors\n  \
    FOURFOLD_TOOLCHAIN=toolchain ./fourfold verify fixtures --require-kernels --json\n\n\
    On a GPU of the target kernels run as they are; with --emulate those of sm_120a run on a Hopper GPU with \
    their matrix instruction emulated. The third example is for a machine without Rust or network: carry the program, the fixtures and the \
    folder that `fourfold toolchain install` prints there. Exit codes: 0 every row is as demanded, 1 a result is wrong, \
    2 bad input, 3 the device failed or, with --require-kernels, a kernel did not run as one, 130 interrupted.")]
pub struct Arguments {
    /// Programs, and folders with programs
    #[arg(default_value = "fixtures")]
    paths: Vec<PathBuf>,
    /// The tensors of every program, a .safetensors file, instead of what it names
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// Look for a fault: kernels with line information and CUTLASS's trace, poisoned workspaces, and errors that say what
    /// a launch was given
    #[arg(long)]
    debug: bool,
    #[command(flatten)]
    choice: Choice,
    /// Exit with 3 when a planned kernel did not run as one, or none was planned
    #[arg(long)]
    require_kernels: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let backend = match arguments.place.options() {
        Ok(backend) => backend,
        Err(message) => return crate::misused(&message, arguments.json),
    };
    let options = VerifyOptions {
        backend,
        compile: arguments.choice.compile_options().debug(arguments.debug),
        data: arguments.data.clone(),
    };
    let progress = Progress::new(arguments.json);
    let report =
        crate::with_stdout_kept(|| verify(&arguments.paths, &options, &|event| progress.event(event)));
    drop(progress);
    let report = match report {
        Ok(report) => report,
        Err(error) => return crate::fail(&error, arguments.json),
    };
    let all_ran = report.kernels > 0 && report.ran_kernels == report.kernels;
    let lacks_kernels = arguments.require_kernels && !all_ran;
    if lacks_kernels {
        crate::tell_of_missing_kernels(report.ran_kernels, report.kernels);
    }
    let code = match report.exit_code() {
        0 if lacks_kernels => crate::EXIT_ENVIRONMENT,
        code => code,
    };
    let text = match arguments.json {
        true => crate::to_json(&VerifyReport { ok: report.ok && !lacks_kernels, ..report }),
        false => report.to_string(),
    };
    crate::leave(code, crate::print(&text))
}
