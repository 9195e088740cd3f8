//! `fourfold verify`: runs programs on the GPU and compares every result.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fourfold_cli::verify::{VerifyOptions, verify};
use fourfold_cli::{OffDevice, VerifyReport};

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(after_help = "Examples:\n  fourfold verify fixtures --require-kernels\n  \
    fourfold verify fixtures/minilm_ffn.fir --data another_layer.safetensors\n  \
    FOURFOLD_TOOLCHAIN=toolchain ./fourfold verify fixtures --require-kernels --json\n  \
    fourfold verify fixtures --require-kernels --report report.json\n  \
    fourfold verify fixtures/attention.fir --require-device\n  \
    fourfold verify fixtures/grouped --graph\n\n\
    Segments of the kernel tier are rooted at a scaled_mma; the device tier has row and column kernels, moves, \
    plain mma, views and constants. --require-device fails unless a segment of the device tier was planned and every \
    segment of either tier ran on the GPU, and names those that did not. A segment whose results have no elements needs no \
    GPU.\n\n\
    Kernels run natively on a GPU of their target; with --emulate, those of Blackwell targets run on Hopper, with the \
    instructions that it lacks emulated. The third example runs on a machine without Rust or network: copy the \
    program, the fixtures and the folder that `fourfold toolchain install` prints.\n\n\
    --report also times each kernel and writes FILE before each run, so FILE names a run that hangs or crashes. It \
    holds no user name, machine name or absolute path. Send it to the project if your GPU is a Blackwell.\n\n\
    --graph captures each program with seeded inputs once per set of extents, and replays it with five seeds: each replay must \
    have the bytes of a run. Programs with fallback segments or plain mma have no graph, and a row says so.\n\n\
    A --data file that no program uses is an error.\n\n\
    A row ends in WRONG if a result is wrong, and in FAILED if the run failed. It ends in `no bound` if nothing is \
    wrong, but too few elements have an error bound (square roots or divisions near 0).\n\n\
    Exit codes: 0 every row is right, 1 a row is WRONG or has no bound, 2 bad input, 3 the device failed, the \
    report was not written or, with --require-kernels or --require-device, a segment did not run on the GPU, 70 a bug in Fourfold, 130 interrupted")]
pub struct Arguments {
    /// Programs, and folders with programs
    #[arg(default_value = "fixtures")]
    paths: Vec<PathBuf>,
    /// Add the tensors of this .safetensors file to those that each program names; repeat it for several files, of which
    /// a later one replaces tensors of the same name
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    /// Also capture each program in a CUDA graph, and replay it on the inputs of other seeds
    #[arg(long)]
    graph: bool,
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
    /// Exit with 3 unless device segments were planned and every segment planned for the GPU ran there
    #[arg(long)]
    require_device: bool,
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
        graphs: arguments.graph,
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
    let is_off_device = arguments.require_device && !report.is_on_device();
    if is_off_device {
        tell_of_the_fallback(&report);
    }
    let lacks = lacks_kernels || is_off_device;
    match (&arguments.report, &report.report_error) {
        (Some(_), Some(error)) => tell!("error: the report is not complete: {error}"),
        (Some(path), None) => tell!("wrote {}", path.display()),
        (None, _) => {}
    }
    let lacks_report = report.report_error.is_some();
    let code = match report.exit_code() {
        0 if lacks || lacks_report => crate::EXIT_ENVIRONMENT,
        code => code,
    };
    let text = match arguments.json {
        true => crate::to_json(&VerifyReport { ok: report.ok && !lacks && !lacks_report, ..report }),
        false => report.to_string(),
    };
    crate::leave(code, crate::print(&text))
}

/// Prints the error that `--require-device` is not met, with the segments that ran on the fallback.
fn tell_of_the_fallback(report: &VerifyReport) {
    /// More segments than these are counted.
    const NAMED: usize = 10;
    /// More ops of a segment than these are counted.
    const OPS: usize = 3;
    let off = &report.off_device;
    match (report.device_segments, off.len()) {
        (0, 0) => tell!("error: --require-device: no device segment was planned"),
        (_, 0) => tell!("error: --require-device: a run failed"),
        (_, count) => {
            let planned = report.device_segments + report.kernels;
            tell!(
                "error: --require-device: {count} of {planned} segments planned for the GPU ran on the fallback"
            );
        }
    }
    for OffDevice { fixture, inputs, segment, ops, message, .. } in off.iter().take(NAMED) {
        let why = message.as_deref().unwrap_or("no reason was recorded");
        let more = ops.len().saturating_sub(OPS);
        let more = if more > 0 { format!(" and {more} more ops") } else { String::new() };
        let ops = ops.iter().take(OPS).map(String::as_str).collect::<Vec<_>>().join(", ");
        tell!("note: {fixture}, {inputs}: segment {segment}, {ops}{more}: {why}");
    }
    if NAMED < off.len() {
        tell!("note: {} more; `off_device` of --json lists all", off.len() - NAMED);
    }
}
