//! The file of `verify --report`: everything needed to judge a verification on another machine.
//!
//! The file is rewritten before each run, so that a run that hangs or crashes leaves a file that names it. It holds no
//! user name, no machine name, and no absolute path.

mod entry;
mod private;
mod timing;

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use fourfold::kernels::build_targets;
use fourfold::{Backend, CacheChoice, Compiled, DeviceChoice, Fault, Options, chain};
use fourfold_executor::environment::Environment;
use fourfold_executor::fallback::processor;
use fourfold_executor::toolchain::{ToolchainOptions, locate};
use fourfold_executor::{FileError, create_file, discover, driver_release, is_standard_stream, write_file};
use serde_json::{Value, json};

use crate::doctor::gpu_report;
use crate::error::Error;
use crate::report::VerifyReport;
use crate::version::Version;
use entry::KernelEntry;
use private::Private;

pub(crate) use entry::RunEntry;
pub(crate) use timing::{TimingEntry, time};

/// The name of the format, the value of the key `format`.
const FORMAT: &str = "fourfold verify report";
/// The version of the format. It grows if a key changes its meaning; new keys may come without.
const FORMAT_VERSION: u32 = 1;

/// The step that a verification has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// The programs are planned.
    Planning,
    /// The kernels are built.
    Building,
    /// The programs run and are compared.
    Verifying,
    /// The kernels are timed.
    Timing,
    /// Everything is done.
    Finished,
    /// The command failed.
    Failed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Planning => "planning",
            State::Building => "building",
            State::Verifying => "verifying",
            State::Timing => "timing",
            State::Finished => "finished",
            State::Failed => "failed",
        }
    }
}

/// The file of a verification in progress.
#[derive(Debug)]
pub(crate) struct ReportFile {
    path: PathBuf,
    private: Private,
    state: State,
    /// The program and its inputs that run now.
    running: Option<(String, String)>,
    /// The failure of the command.
    error: Option<Value>,
    started: u64,
    options: Value,
    gpu: Value,
    toolchain: Value,
    kernels: Vec<KernelEntry>,
    /// The kernel segments of every run that ended.
    pub(crate) runs: Vec<RunEntry>,
    /// The error of the last write.
    failure: Option<FileError>,
}

impl ReportFile {
    /// Creates the file, before anything long begins.
    ///
    /// # Errors
    /// Fails if the path is in use or cannot be written.
    pub(crate) fn create(path: &Path, options: Value, named: &[PathBuf]) -> Result<ReportFile, Error> {
        if is_standard_stream(path) {
            return Err(Error::ReportOnStream);
        }
        let mut file = ReportFile {
            path: path.to_owned(),
            private: Private::of_process(named.iter().map(PathBuf::as_path)),
            state: State::Planning,
            running: None,
            error: None,
            started: now(),
            options,
            gpu: Value::Null,
            toolchain: Value::Null,
            kernels: Vec::new(),
            runs: Vec::new(),
            failure: None,
        };
        create_file(path, &file.text(None)).map_err(Error::Report)?;
        Ok(file)
    }

    /// Describes the GPU that was chosen, even if it cannot run the target's kernels.
    pub(crate) fn describe_device(&mut self, backend: &Backend, choice: DeviceChoice) {
        let gpu = match (backend.execution(), choice) {
            (Ok((gpu, _)), _) => Some(gpu.clone()),
            (Err(_), DeviceChoice::None) => None,
            (Err(_), DeviceChoice::First) => discover().ok().and_then(|gpus| gpus.into_iter().next()),
            (Err(_), DeviceChoice::Ordinal(ordinal)) => {
                discover().ok().and_then(|gpus| gpus.into_iter().find(|gpu| gpu.ordinal == ordinal))
            }
        };
        self.gpu = match gpu {
            None => Value::Null,
            Some(gpu) => {
                let mut object = json!(gpu_report(&gpu));
                object["driver_release"] = json!(driver_release());
                object
            }
        };
    }

    /// Describes the toolchain that kernels are built with. Installs nothing.
    pub(crate) fn describe_toolchain(&mut self, backend: &Backend, options: &ToolchainOptions) {
        let mut search = ToolchainOptions { provision: false, ..options.clone() };
        let targets = build_targets(&backend.capabilities().target, backend.emulates());
        search.targets.extend(targets.into_iter().map(str::to_owned));
        let located = locate(&search, &Environment::from_process());
        let (found, error) = (located.as_ref().ok(), located.as_ref().err());
        let cutlass = found.and_then(|found| found.cutlass.as_ref());
        self.toolchain = json!({
            "nvcc": found.map(|found| &found.nvcc_version),
            "nvcc_origin": found.map(|found| found.nvcc_origin.to_string()),
            "cutlass": cutlass.map(|cutlass| &cutlass.version),
            "cutlass_origin": cutlass.map(|cutlass| cutlass.origin.to_string()),
            "passed_over": found.map(|found| &found.passed_over),
            "error": error.map(|error| chain(error)),
        });
    }

    /// Adds the kernels of a program.
    pub(crate) fn add_kernels(&mut self, program: &str, compiled: &Compiled) {
        self.kernels.extend(KernelEntry::all(program, compiled));
    }

    /// Enters a step and writes the file.
    pub(crate) fn enter(&mut self, state: State, running: Option<(&str, &str)>, report: &VerifyReport) {
        self.state = state;
        self.running = running.map(|(program, inputs)| (program.to_owned(), inputs.to_owned()));
        self.write(Some(report));
    }

    /// Records the failure of the command and writes the file.
    pub(crate) fn fail(&mut self, error: &Error) {
        self.state = State::Failed;
        self.error = Some(json!({ "fault": error.fault().name(), "message": error.message() }));
        self.write(None);
    }

    /// Returns the error of the last write.
    pub(crate) fn into_failure(self) -> Option<Error> {
        self.failure.map(Error::Report)
    }

    fn write(&mut self, report: Option<&VerifyReport>) {
        let text = self.text(report);
        self.failure = write_file(&self.path, &text).err();
    }

    fn text(&mut self, report: Option<&VerifyReport>) -> Vec<u8> {
        let running = self.running.as_ref();
        let is_verified = matches!(self.state, State::Timing | State::Finished);
        let mut object = json!({
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "state": self.state.name(),
            "running": running.map(|(program, inputs)| json!({ "program": program, "inputs": inputs })),
            "error": self.error,
            "fourfold": Version::own(),
            "started": self.started,
            "seconds": now().saturating_sub(self.started),
            "options": self.options,
            "gpu": self.gpu,
            "host": {
                "os": std::env::consts::OS,
                "architecture": std::env::consts::ARCH,
                "processor": processor(),
                "threads": std::thread::available_parallelism().ok(),
            },
            "toolchain": self.toolchain,
            "verify": report,
            "exit_code": report.filter(|_| is_verified).map(exit_code),
            "kernels": self.kernels,
            "runs": self.runs,
        });
        self.private.remove_from(&mut object);
        let mut text = serde_json::to_vec_pretty(&object).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// Returns the exit code of a verification with `--require-kernels`: a report without kernels is no success.
fn exit_code(report: &VerifyReport) -> u8 {
    let all_ran = report.kernels > 0 && report.ran_kernels == report.kernels;
    match report.exit_code() {
        0 if !all_ran => crate::exit_code(Fault::Environment),
        code => code,
    }
}

/// Returns the options of a verification that change its results.
pub(crate) fn describe_options(
    paths: usize,
    backend: &Options,
    compile: &fourfold::CompileOptions,
    has_data: bool,
) -> Value {
    let device = match backend.device {
        DeviceChoice::First => json!("first"),
        DeviceChoice::None => json!("none"),
        DeviceChoice::Ordinal(ordinal) => json!(ordinal),
    };
    json!({
        "paths": paths,
        "target": backend.target,
        "device": device,
        "emulate": backend.emulate,
        "contract": backend.contract,
        "dispatch": backend.dispatch.is_some(),
        "data": has_data,
        "debug": compile.debug,
        "allow_known_bad": compile.toolchain.allow_known_bad,
        "cache": compile.cache != CacheChoice::None,
        "retry": compile.retry,
        "jobs": compile.jobs,
        "time_limit_seconds": compile.build.time_limit.as_secs(),
        "launcher": compile.build.launcher.is_some(),
    })
}

/// Returns the seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
