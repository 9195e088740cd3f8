//! `fourfold verify`: runs the kernels of programs on the GPU and compares every result.

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
    FOURFOLD_TOOLCHAIN=toolchain ./fourfold verify fixtures --require-kernels --json\n  \
    fourfold verify fixtures --require-kernels --report report.json\n\n\
    Kernels run natively on a GPU of their target; with --emulate, those of Blackwell targets run on Hopper, with the \
    instructions that it lacks emulated. The third example runs on a machine without Rust or network: copy the \
    program, the fixtures and the folder that `fourfold toolchain install` prints.\n\n\
    --report also times each kernel and writes FILE before each run, so FILE names a run that hangs or crashes. It \
    holds no user name, machine name or absolute path. Send it to the project if your GPU is a Blackwell.\n\n\
    A --data file that no program uses is an error.\n\n\
    A row ends in WRONG if a result is wrong, and in FAILED if the run failed. It ends in `no bound` if nothing is \
    wrong, but too few elements have an error bound (square roots or divisions near 0).\n\n\
    Exit codes: 0 every row is right, 1 a row is WRONG or has no bound, 2 bad input, 3 the device failed, the \
    report was not written or, with --require-kernels, a kernel did not run, 70 a bug in Fourfold, 130 interrupted")]
pub struct Arguments {
    /// Programs, and folders with programs
    #[arg(default_value = "fixtures")]
    paths: Vec<PathBuf>,
    /// Add the tensors of this .safetensors file to those that each program names; repeat it for several files, of which
    /// a later one replaces tensors of the same name
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Time every kernel too, and write the machine, kernels, comparisons and times to FILE, which must not exist
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    /// Build with line information and CUTLASS tracing, poison workspaces, record the arguments of
    /// launches
    #[arg(long)]
    debug: bool,
    #[command(flatten)]
    choice: Choice,
    /// Exit with 3 unless kernels were planned and all of them ran as kernels
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
        report: arguments.report.clone(),
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
    match (&arguments.report, &report.report_error) {
        (Some(_), Some(error)) => tell!("error: the report is not complete: {error}"),
        (Some(path), None) => tell!("wrote {}", path.display()),
        (None, _) => {}
    }
    let lacks_report = report.report_error.is_some();
    let code = match report.exit_code() {
        0 if lacks_kernels || lacks_report => crate::EXIT_ENVIRONMENT,
        code => code,
    };
    let text = match arguments.json {
        true => crate::to_json(&VerifyReport { ok: report.ok && !lacks_kernels && !lacks_report, ..report }),
        false => report.to_string(),
    };
    crate::leave(code, crate::print(&text))
}
