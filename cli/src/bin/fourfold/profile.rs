//! `fourfold profile`: runs the profiler and the sanitizer of the CUDA toolkit on the launch of one segment.

mod subject;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fourfold::kernels::compile_kernels;
use fourfold::{CompileOptions, Fault, Options};
use fourfold_cli::replay::{ReplayOptions, load, replay};
use fourfold_cli::{Error, Report as Replayed};
use fourfold_executor::device::Gpu;
use fourfold_executor::environment::Environment;
use fourfold_executor::toolchain::ToolchainOptions;
use fourfold_executor::{
    ProfileFolder, Profiler, ProfilerTool, ToolRun, chain, find_profiler, is_standard_stream, this_program,
};
use fourfold_tuner::profile::metrics::Chip;
use fourfold_tuner::profile::ncu::{self, BOOST_OPTION, Collect, Counters, Set};
use fourfold_tuner::profile::sanitizer::{self, Check, Finding};
use fourfold_tuner::profile::{
    LIBRARY_CALL, PlainRun, Release, Report, Selection, ToolUse, Traffic, Trouble, check_release,
};

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Tools;
use subject::Subject;

#[derive(Args)]
#[command(after_help = "Examples:\n  fourfold profile fixtures/minilm_ffn.fir --segment 2\n  \
    fourfold profile fixtures/llama_block.fir --segment 0\n  \
    fourfold profile fixtures/minilm_ffn.fir --tool ncu --tool memcheck --tool racecheck --json\n  \
    fourfold profile fixtures/minilm_ffn.fir --set full --keep profile\n\n\
    Builds the kernels and runs the program once without a tool, to list its launches and check its results. Then runs \
    `fourfold replay` under each tool, with the kernels from the cache. ncu measures the launch of the segment with \
    unlocked clocks and cold caches, so compare its durations only with each other. initcheck checks every launch; \
    the other sanitizer tools check only the launch of the segment. A missing counter is null, with the reason.\n\n\
    N may be any segment that launches a kernel: a `kernel` segment, a row kernel, a move, or a plain mma. The latter is \
    a call of cuBLASLt, which may launch several kernels. ncu measures the first, if no other call precedes it. If a call \
    precedes the segment, the sanitizer checks every launch. Views and fallback segments launch nothing.\n\n\
    A timeline of the whole program is out of scope: use nsys, such as `nsys profile fourfold replay FILE`.\n\n\
    ncu and compute-sanitizer come with the CUDA toolkit. Unavailable data is reported with a remedy; everything else \
    still runs.\n\n\
    Exit codes: 0 complete, 1 a result is wrong or a tool found errors, 2 bad input, 3 this machine lacks something (a \
    GPU, a tool, permission to read counters), 70 a bug in Fourfold, 130 interrupted")]
pub struct Arguments {
    /// The program, a .fir file
    file: PathBuf,
    /// Examine the launch of segment N, as `explain` numbers them [default: the first kernel, else the first segment
    /// with a generated kernel]
    #[arg(long, value_name = "N")]
    segment: Option<usize>,
    /// Run TOOL; may be given several times
    #[arg(long = "tool", value_name = "TOOL", default_value = "ncu")]
    tools: Vec<Tool>,
    /// Collect the counters of the report, or every counter for ncu's viewer (with --keep)
    #[arg(long, value_name = "SET", default_value = "curated")]
    set: SetChoice,
    /// Add the tensors of this .safetensors file to those that the program names; repeat it for several files, of which
    /// a later one replaces tensors of the same name
    #[arg(long, value_name = "FILE")]
    data: Vec<PathBuf>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    toolchain: Tools,
    /// Use this ncu [default: that of CUDA_HOME, then PATH]
    #[arg(long, value_name = "FILE")]
    ncu: Option<PathBuf>,
    /// Use this compute-sanitizer [default: that of CUDA_HOME, then PATH]
    #[arg(long, value_name = "FILE")]
    sanitizer: Option<PathBuf>,
    /// Stop each tool after SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Keep the reports, logs and commands of the tools in DIR
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    /// Counters of the kernel
    Ncu,
    /// Accesses out of bounds
    Memcheck,
    /// Races on shared memory
    Racecheck,
    /// Reads of uninitialized memory
    Initcheck,
    /// Misused barriers
    Synccheck,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SetChoice {
    /// The counters of the report
    Curated,
    /// Every counter of ncu
    Full,
}

impl Tool {
    fn check(self) -> Option<Check> {
        match self {
            Tool::Ncu => None,
            Tool::Memcheck => Some(Check::Memcheck),
            Tool::Racecheck => Some(Check::Racecheck),
            Tool::Initcheck => Some(Check::Initcheck),
            Tool::Synccheck => Some(Check::Synccheck),
        }
    }

    fn program(self) -> ProfilerTool {
        if self == Tool::Ncu { ProfilerTool::Ncu } else { ProfilerTool::ComputeSanitizer }
    }

    fn name(self) -> &'static str {
        self.check().map_or("ncu", Check::name)
    }
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let place = match arguments.place.options() {
        Ok(place) => place,
        Err(message) => return crate::misused(&message, arguments.json),
    };
    if is_standard_stream(&arguments.file) {
        let message =
            "every tool reads the program again, so it must be a file; write `./-` for a file named `-`";
        return crate::misused(message, arguments.json);
    }
    let planned = load(&arguments.file).and_then(|loaded| Subject::new(loaded, &place, arguments.segment));
    let plan = match planned {
        Ok(Ok(plan)) => plan,
        Ok(Err(message)) => return crate::misused(&message, arguments.json),
        Err(error) => return crate::fail(&error, arguments.json),
    };
    let report = match profile(arguments, &place, &plan) {
        Ok(report) => report.concluded(),
        Err(error) => return crate::fail(&error, arguments.json),
    };
    let text = if arguments.json { crate::to_json(&report) } else { report.to_string() };
    crate::leave(report.exit_code(), crate::print(&text))
}

/// A profile in progress: its tools, their runs and their troubles.
struct Session<'a> {
    arguments: &'a Arguments,
    gpu: &'a Gpu,
    folder: ProfileFolder,
    /// The arguments of this program for a run, without its path.
    child: Vec<OsString>,
    selection: Selection,
    tools: Vec<ToolUse>,
    troubles: Vec<Trouble>,
}

fn profile(arguments: &Arguments, place: &Options, plan: &Subject) -> Result<Report, Error> {
    let mut report = Report {
        ok: false,
        file: arguments.file.display().to_string(),
        target: plan.planned.partition().target.clone(),
        device: plan.backend.gpu().map(ToString::to_string),
        chip: plan.backend.gpu().and_then(|gpu| Chip::of(gpu.capability)),
        segment: plan.segment,
        kernel: plan.kernel.clone(),
        library: plan.is_library_call().then_some(LIBRARY_CALL),
        plain: None,
        traffic: Traffic::default(),
        counters: None,
        checks: Vec::new(),
        troubles: Vec::new(),
        tools: Vec::new(),
        kept: None,
    };
    let gpu = match plan.backend.execution() {
        Ok((gpu, _)) => gpu,
        Err(reason) => {
            const REMEDY: &str = "run on a machine with such a GPU, or set --target to that of this machine's GPU, \
                                  which `fourfold doctor` prints";
            report.troubles.push(Trouble::new("device", reason.code, reason.message, REMEDY));
            return Ok(report);
        }
    };
    let mut ready = Vec::new();
    for tool in distinct(&arguments.tools) {
        match find(tool, arguments, gpu) {
            Ok((profiler, release)) => ready.push((tool, profiler, release)),
            Err(trouble) => report.troubles.push(trouble),
        }
    }
    let folder = match ProfileFolder::new(arguments.keep.as_deref()) {
        Ok(folder) => folder,
        Err(error) => {
            let message = format!("cannot create the folder for the files of the tools: {error}");
            let remedy = "name a writable folder with --keep, or set TMPDIR to one";
            report.troubles.push(Trouble::new("folder", "no_folder", message, remedy));
            return Ok(report);
        }
    };
    // Building and running take long and are pointless without a tool.
    if ready.is_empty() {
        return Ok(report);
    }
    let options = ReplayOptions {
        backend: place.clone(),
        compile: compile_options(arguments),
        data: arguments.data.clone(),
        symbols: Vec::new(),
        tolerances: Vec::new(),
    };
    let entries = match build(plan, &options.compile, arguments.json) {
        Ok(entries) => entries,
        Err(trouble) => {
            report.troubles.push(trouble);
            return Ok(report);
        }
    };
    let (plain, replayed) = match run_plain(plan, arguments, &options)? {
        Ok(plain) => plain,
        Err(trouble) => {
            report.troubles.push(trouble);
            return Ok(report);
        }
    };
    let child = match child(arguments, &report.target, gpu, place) {
        Ok(child) => child,
        Err(trouble) => {
            report.troubles.push(trouble);
            return Ok(report);
        }
    };
    let selection = plan.selection(&plain.launched, &entries);
    let mut session =
        Session { arguments, gpu, folder, child, selection, tools: Vec::new(), troubles: Vec::new() };
    for (tool, profiler, release) in &ready {
        match tool.check() {
            None => report.counters = session.measure(profiler, *release),
            Some(check) => report.checks.extend(session.check(check, profiler, *release)),
        }
    }
    let (read, written) = plan.counted(replayed.as_ref());
    report.traffic = Traffic::new(read, written, report.counters.as_ref());
    report.plain = Some(plain);
    report.troubles.append(&mut session.troubles);
    report.tools = session.tools;
    report.kept = session.folder.stays().then(|| session.folder.path().display().to_string());
    Ok(report)
}

fn distinct(tools: &[Tool]) -> Vec<Tool> {
    let mut distinct = Vec::new();
    for tool in tools {
        if !distinct.contains(tool) {
            distinct.push(*tool);
        }
    }
    distinct
}

fn compile_options(arguments: &Arguments) -> CompileOptions {
    let toolchain = ToolchainOptions { provision: true, ..arguments.toolchain.options() };
    CompileOptions::default().toolchain(toolchain)
}

/// Finds the program of a tool and checks that it supports this GPU.
fn find(tool: Tool, arguments: &Arguments, gpu: &Gpu) -> Result<(Profiler, Option<Release>), Trouble> {
    if tool == Tool::Ncu && Chip::of(gpu.capability).is_none() {
        let message = format!("the counters of {gpu} are unknown");
        return Err(Trouble::new(
            tool.name(),
            "unknown_chip",
            message,
            "use a tool of the sanitizer, which needs none: --tool memcheck",
        ));
    }
    let program = tool.program();
    let given = if tool == Tool::Ncu { &arguments.ncu } else { &arguments.sanitizer };
    let profiler = find_profiler(program, given.as_deref(), &Environment::from_process())
        .map_err(|error| Trouble::new(tool.name(), "no_tool", chain(&error), error.remedy(program)))?;
    let release = check_release(tool.name(), &profiler.version, gpu.capability)?;
    Ok((profiler, release))
}

/// Builds every kernel of the program, so that no compiler runs under a tool. Returns the names of the kernels in
/// each library, by segment.
fn build(plan: &Subject, options: &CompileOptions, quiet: bool) -> Result<Vec<(usize, String)>, Trouble> {
    let progress = Progress::new(quiet);
    let emulated = plan.backend.emulates();
    let (built, _) = compile_kernels(&plan.planned, emulated, options, &|event| progress.event(event));
    drop(progress);
    let mut entries = Vec::new();
    for kernel in built {
        let segment = kernel.planned.segment;
        match kernel.outcome {
            Ok(artifact) => entries.push((segment, artifact.metadata().entry.clone())),
            // A different segment runs on the fallback then.
            Err(failure) if segment == plan.segment => {
                return Err(Trouble::new(
                    "build",
                    failure.code,
                    failure.message.clone(),
                    failure.remedy.clone(),
                ));
            }
            Err(_) => {}
        }
    }
    Ok(entries)
}

/// Runs the program without any tool. A failing device is no error here: the sanitizer may explain it.
fn run_plain(
    plan: &Subject,
    arguments: &Arguments,
    options: &ReplayOptions,
) -> Result<Result<(PlainRun, Option<Replayed>), Trouble>, Error> {
    let progress = Progress::new(arguments.json);
    let replayed =
        crate::with_stdout_kept(|| replay(&arguments.file, options, &|event| progress.event(event)));
    drop(progress);
    let replayed = match replayed {
        Ok(replayed) => replayed,
        Err(error) if error.fault() == Fault::Device => {
            let planned = 0..plan.planned.partition().segments.len();
            let plain = PlainRun { ok: None, error: Some(error.message()), launched: plan.launched(planned) };
            return Ok(Ok((plain, None)));
        }
        Err(error) => return Err(error),
    };
    let as_kernel = |segment: &usize| ["kernel", "emulated"].contains(&replayed.segments[*segment].ran);
    let segment = &replayed.segments[plan.segment];
    if !as_kernel(&plan.segment) {
        let code = segment.reason.as_deref().unwrap_or("unknown reason");
        let message = segment.message.as_deref().unwrap_or_default();
        return Ok(Err(Trouble::new(
            "run",
            "not_a_kernel",
            format!("segment {} ran on the fallback: {code}: {message}", plan.segment),
            "run `fourfold replay -v` with the same options; `docs/reference/` lists the codes",
        )));
    }
    let launched = plan.launched((0..replayed.segments.len()).filter(as_kernel));
    Ok(Ok((PlainRun { ok: Some(replayed.ok), error: None, launched }, Some(replayed))))
}

/// Returns the command that a tool runs: this program, with target and GPU as options, so that the environment cannot
/// change them.
fn child(arguments: &Arguments, target: &str, gpu: &Gpu, place: &Options) -> Result<Vec<OsString>, Trouble> {
    let program = this_program().map_err(|error| {
        let message = format!("the path of this program is unknown: {error}");
        Trouble::new("run", "no_program", message, "mount /proc")
    })?;
    let mut child: Vec<OsString> = vec![program.into(), "replay".into(), arguments.file.clone().into()];
    child.extend(["--require-kernels".into(), "--target".into(), target.into()]);
    child.extend(["--device".into(), gpu.ordinal.to_string().into()]);
    child.extend(place.emulate.then(|| "--emulate".into()));
    child.extend(place.contract.then(|| "--contract".into()));
    let tools = arguments.toolchain.options();
    child.extend(tools.allow_known_bad.then(|| "--allow-known-bad".into()));
    child.extend(arguments.data.iter().flat_map(|file| [OsString::from("--data"), file.into()]));
    for (option, path) in [("--nvcc", &tools.nvcc), ("--cutlass", &tools.cutlass)] {
        if let Some(path) = path {
            child.extend([option.into(), path.into()]);
        }
    }
    Ok(child)
}

impl Session<'_> {
    /// Measures the kernel with ncu.
    fn measure(&mut self, profiler: &Profiler, release: Option<Release>) -> Option<Counters> {
        let chip = Chip::of(self.gpu.capability)?;
        let path = self.folder.path().join("ncu.ncu-rep");
        let set = match self.arguments.set {
            SetChoice::Curated => Set::Curated,
            SetChoice::Full => Set::Full,
        };
        if let Err(trouble) = self.selection.measurable() {
            self.troubles.push(trouble);
            return None;
        }
        let has_boost_option = profiler.knows(BOOST_OPTION);
        let mut refused: Vec<String> = Vec::new();
        let selection = self.selection.clone();
        loop {
            let collect = Collect {
                chip,
                selection: &selection,
                set,
                report: &path,
                refused: &refused,
                has_boost_option,
            };
            let mut command = collect.arguments();
            command.extend(self.child.iter().cloned());
            let run = self.run("ncu", profiler, release, &command)?;
            if run.succeeded() && !ncu::measured_nothing(&run.log) {
                break;
            }
            let more = ncu::refused(&run.log);
            // ncu may name one counter at a time. Each is dropped only once, so the loop ends.
            if more.is_empty() || more.iter().all(|name| refused.contains(name)) {
                let trouble = match run.status {
                    Some(_) => ncu::diagnose(&run.log, &run.ending()),
                    None => Trouble::new(
                        "ncu",
                        "tool_stopped",
                        format!("the tool ended with {}", run.ending()),
                        "raise --limit, use a smaller problem, or --set curated, which takes fewer runs",
                    ),
                };
                self.troubles.push(trouble);
                return None;
            }
            refused.extend(more);
        }
        let page = self.run("ncu import", profiler, release, &ncu::import_arguments(&path))?;
        let read = match page.succeeded() {
            // A page that is too long to keep is cut inside a row, which reading it detects.
            true => ncu::read(&page.log, chip, &self.selection),
            false => Err(ncu::diagnose(&page.log, &page.ending())),
        };
        read.map_err(|trouble| self.troubles.push(trouble)).ok()
    }

    /// Checks the kernel with a tool of the sanitizer.
    fn check(&mut self, check: Check, profiler: &Profiler, release: Option<Release>) -> Option<Finding> {
        let mut command = check.arguments(&self.selection);
        command.extend(self.child.iter().cloned());
        let run = self.run(check.name(), profiler, release, &command)?;
        let code = run.status.and_then(|status| status.code());
        let (finding, trouble) = sanitizer::read(check, &run.log, code, &run.ending());
        let finding = finding.watching(&self.selection);
        self.troubles.extend(trouble);
        Some(finding)
    }

    /// Runs a tool and keeps its command and its output.
    fn run(
        &mut self,
        part: &'static str,
        profiler: &Profiler,
        release: Option<Release>,
        arguments: &[OsString],
    ) -> Option<ToolRun> {
        tell!("{part}: {}", profiler.path.display());
        let run = profiler.run(arguments, Duration::from_secs(self.arguments.limit));
        let words =
            std::iter::once(profiler.path.as_os_str()).chain(arguments.iter().map(OsString::as_os_str));
        let command: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                let message = format!("`{}` cannot be run: {error}", profiler.path.display());
                let remedy = "check that the program is intact and executable";
                self.troubles.push(Trouble::new(part, "cannot_run", message, remedy));
                return None;
            }
        };
        let name = part.replace(' ', "-");
        let kept = self.folder.keep(&format!("{name}.log"), &run.log);
        let kept =
            kept.and_then(|()| self.folder.keep(&format!("{name}.command"), &(command.join("\n") + "\n")));
        if let Err(error) = kept {
            let message = format!("cannot store its output: {}", chain(&error));
            self.troubles.push(Trouble::new(
                part,
                "not_kept",
                message,
                "free disk space, or name another folder with --keep",
            ));
        }
        self.tools.push(ToolUse {
            tool: part,
            path: profiler.path.display().to_string(),
            release: release.map(|release| release.to_string()),
            command,
            seconds: run.seconds,
        });
        Some(run)
    }
}
