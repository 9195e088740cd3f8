//! Examines what this machine offers for building and running kernels, what it lacks, and how to fix that.

use std::collections::BTreeSet;
use std::path::Path;

use fourfold::{Backend, CacheChoice, CompileOptions, DeviceChoice, Options, chain};
use fourfold_codegen::{EMULATED_TARGETS, EMULATOR, TARGETS, Target, capabilities};
use fourfold_executor::blas::Blas;
use fourfold_executor::cache::{CacheOptions, check_tier, human_size, shown_place};
use fourfold_executor::device::{Gpu, discover};
use fourfold_executor::environment::{Environment, VARIABLES};
use fourfold_executor::service::CacheHealth;
use fourfold_executor::service::Event;
use fourfold_executor::toolchain::{
    Diagnosis, FindingState, Obstacle, TargetFinding, Tool, ToolchainOptions, diagnose, obstacle,
};
use fourfold_ir::sample::{Recipe, Rule};
use serde::Serialize;

use crate::error::Error;
use crate::expectations::Scope;
use crate::load::{load_text, sampled_inputs};
use crate::report::kernel_name;
use crate::run::{plan, replay_compiled};
use crate::version::Version;

/// The state of a machine. Its keys are a stable interface: keys may be added, never changed.
#[derive(Clone, Debug, Serialize)]
pub struct Doctor {
    /// True if kernels can be built and the self-test did not fail.
    pub ok: bool,
    /// The version of Fourfold that wrote the report.
    pub fourfold: Version,
    /// One line of text for each GPU and the targets it runs, or the reason why none is usable.
    pub devices: Vec<String>,
    /// The GPUs.
    pub gpus: Vec<GpuReport>,
    /// The items examined, in the order of their use.
    pub findings: Vec<FindingReport>,
    /// The targets.
    pub targets: Vec<TargetReport>,
    /// The cache of built kernels; null if it does not exist yet or cannot be used, which a finding reports.
    pub cache: Option<CacheHealth>,
    /// The environment variables that Fourfold reads.
    pub variables: Vec<VariableReport>,
    /// The outcome of the self-test.
    pub self_test: SelfTest,
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuReport {
    /// The ordinal.
    pub ordinal: usize,
    /// The product name.
    pub name: String,
    /// The compute capability: major, minor.
    pub capability: (u32, u32),
    /// The number of multiprocessors.
    pub sm_count: u32,
    /// The total memory in bytes.
    pub memory_bytes: u64,
    /// The size of the L2 cache in bytes.
    pub l2_bytes: u64,
    /// The maximum shared memory of one block in bytes.
    pub shared_memory_bytes: u32,
    /// The CUDA version of the driver: major, minor.
    pub driver: (u32, u32),
    /// The targets whose kernels run on it natively.
    pub native: Vec<&'static str>,
    /// The targets whose kernels run on it with their matrix instruction emulated.
    pub emulated: Vec<&'static str>,
}

/// One examined item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingReport {
    /// The name, such as `nvcc`.
    pub name: String,
    /// `ok`; `missing` if kernels cannot be built without it; `note` for other remarks.
    pub state: &'static str,
    /// The item that was found, or its defect.
    pub detail: String,
    /// The remedy; null if none is needed.
    pub remedy: Option<String>,
}

/// The state of one target on this machine.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// The name.
    pub name: &'static str,
    /// The hardware.
    pub hardware: &'static str,
    /// `ok` if its kernels can be built, `missing` if not, `none` if this version has no kernels for it.
    pub state: &'static str,
    /// The reason why its kernels cannot be built.
    pub why: Option<String>,
    /// The formats of its kernels.
    pub formats: Vec<String>,
    /// `native` or `emulated` if a GPU of this machine runs its kernels; else null.
    pub runs: Option<&'static str>,
}

/// An environment variable.
#[derive(Clone, Debug, Serialize)]
pub struct VariableReport {
    /// The name.
    pub name: &'static str,
    /// The type of its value.
    pub kind: &'static str,
    /// The behaviour if it is unset.
    pub default: &'static str,
    /// The purpose.
    pub meaning: &'static str,
    /// The value; null if it is unset or empty.
    pub value: Option<String>,
}

/// The outcome of the self-test. It builds a small kernel without any cache and runs it if a GPU can run or
/// emulate it.
#[derive(Clone, Debug, Serialize)]
pub struct SelfTest {
    /// `passed`, `failed` or `not_run`.
    pub state: &'static str,
    /// The outcome as text.
    pub detail: String,
    /// The remedy.
    pub remedy: Option<String>,
    /// The target of the kernel.
    pub target: Option<String>,
    /// The name of the kernel.
    pub kernel: Option<String>,
    /// `kernel` or `emulated`; null if no GPU can run it.
    pub ran: Option<&'static str>,
    /// The time of the compiler.
    pub build_seconds: Option<f64>,
    /// The time of the kernel on the device.
    pub kernel_seconds: Option<f64>,
}

impl SelfTest {
    fn of(state: &'static str, detail: String, remedy: Option<&str>) -> SelfTest {
        SelfTest {
            state,
            detail,
            remedy: remedy.map(str::to_owned),
            target: None,
            kernel: None,
            ran: None,
            build_seconds: None,
            kernel_seconds: None,
        }
    }

    /// The outcome without `--self-test`.
    fn not_asked_for() -> SelfTest {
        let detail = "it was not requested; it builds a kernel, which takes about half a minute".to_owned();
        SelfTest::of("not_run", detail, Some("run `fourfold doctor --self-test`"))
    }
}

/// Examines the machine and verifies the cache of kernels. Needs no network, changes nothing and runs no
/// self-test. Judges by the needs of the [targets](ToolchainOptions::targets) or, if none is named, of the
/// machine's GPUs.
pub fn examine(options: &ToolchainOptions, environment: &Environment) -> Doctor {
    look(options, environment, true)
}

/// Examines like [`examine`]. Without `verify`, cached kernels are counted but not read.
pub(crate) fn look(options: &ToolchainOptions, environment: &Environment, verify: bool) -> Doctor {
    let (gpus, driver) = gpus(environment);
    let mut options = options.clone();
    if options.targets.is_empty() {
        let native: BTreeSet<&str> = gpus.iter().flat_map(|gpu| runs(gpu).0).collect();
        options.targets = native.into_iter().map(str::to_owned).collect();
    }
    let diagnosis = diagnose(&options, environment);
    let mut findings: Vec<FindingReport> = diagnosis
        .findings
        .iter()
        .map(|finding| FindingReport {
            name: finding.name.to_owned(),
            state: finding.state.name(),
            detail: finding.detail.clone(),
            remedy: finding.remedy.clone(),
        })
        .collect();
    let (cache, kernels) = kernel_cache(environment, verify);
    findings.push(kernels);
    findings.extend(unusable_tiers(environment));
    findings.push(driver.clone());
    findings.push(matrix_library(environment));
    findings.extend(chosen_device(environment, &gpus));
    let devices = match gpus.is_empty() {
        true => vec![format!("{}: kernels are built and run on the CPU", driver.detail)],
        false => gpus.iter().map(|gpu| format!("{gpu}: {}", what_runs(gpu))).collect(),
    };
    let ok = findings.iter().all(|finding| finding.state != FindingState::Missing.name());
    let targets = TARGETS.iter().map(|target| target_report(target, &diagnosis, &gpus)).collect();
    let variables = VARIABLES
        .iter()
        .map(|variable| VariableReport {
            name: variable.name,
            kind: variable.kind,
            default: variable.default,
            meaning: variable.meaning,
            value: variable.value().map(|value| {
                // The value may be a list, and a place may be a URL with a password to hide.
                value.to_string_lossy().split(',').map(shown_place).collect::<Vec<_>>().join(",")
            }),
        })
        .collect();
    Doctor {
        ok,
        fourfold: Version::own(),
        devices,
        gpus: gpus.iter().map(gpu_report).collect(),
        findings,
        targets,
        cache,
        variables,
        self_test: SelfTest::not_asked_for(),
    }
}

impl Doctor {
    /// Runs the self-test if kernels can be built.
    pub fn test(&mut self, options: &Options, compile: &CompileOptions, progress: &(dyn Fn(&Event) + Sync)) {
        self.self_test = match self.ok {
            true => self_test(options, compile, progress),
            false => {
                let detail = "kernels cannot be built here".to_owned();
                SelfTest::of("not_run", detail, Some("install the missing items first"))
            }
        };
        self.ok &= self.self_test.state != "failed";
    }
}

/// Examines the cache of built kernels.
fn kernel_cache(environment: &Environment, verify: bool) -> (Option<CacheHealth>, FindingReport) {
    let finding = |state: FindingState, detail: String, remedy: Option<String>| FindingReport {
        name: "kernel cache".to_owned(),
        state: state.name(),
        detail,
        remedy,
    };
    // The tiers have findings of their own.
    let health = CacheOptions::from_environment(environment)
        .and_then(|options| Ok((CacheHealth::of(&options, verify)?, options.folder)));
    let health = match health {
        Ok((health, folder)) if is_obstructed(&folder, health.is_some()) => {
            let found = obstacle(&folder);
            let is_missing = found.as_ref().is_some_and(Obstacle::prevents_loading);
            let state = if is_missing { FindingState::Missing } else { FindingState::Note };
            let why = found.map_or_else(String::new, |found| found.to_string());
            let detail = format!("{}: kernels are not cached: {why}", folder.display());
            let remedy = "set FOURFOLD_CACHE_DIR to a writable folder on a file system that allows execution";
            return (health, finding(state, detail, Some(remedy.to_owned())));
        }
        Ok((Some(health), _)) => health,
        Ok((None, folder)) => {
            let detail = format!("{} holds no kernels yet", folder.display());
            return (None, finding(FindingState::Ok, detail, None));
        }
        Err(error) => {
            let detail = format!("kernels are not cached: {}", chain(&error));
            return (None, finding(FindingState::Note, detail, Some(error.remedy().to_owned())));
        }
    };
    let CacheHealth { folder, entries, bytes, capacity, refused, known_bad, free_bytes, .. } = &health;
    let mut detail = format!(
        "{}: {entries} kernel{}, {} of {}",
        folder.display(),
        if *entries == 1 { "" } else { "s" },
        human_size(*bytes),
        human_size(*capacity)
    );
    if let Some(last) = health.last_use {
        let minutes = last.elapsed().unwrap_or_default().as_secs() / 60;
        detail += &match minutes {
            0..120 => format!(", used {minutes} min ago"),
            120..2880 => format!(", used {} h ago", minutes / 60),
            _ => format!(", used {} days ago", minutes / 1440),
        };
    }
    if let Some(free) = free_bytes {
        detail += &format!(", {} free", human_size(*free));
    }
    if !health.verified {
        detail += ", not verified";
    }
    if *known_bad > 0 {
        detail += &format!("; {known_bad} recorded build failures (--retry tries again)");
    }
    let is_full = free_bytes.is_some_and(|free| free < LITTLE_ROOM);
    let (state, remedy) = if let Some(refusal) = refused.first() {
        detail += &format!("\n{} rejected: {}: {}", refused.len(), refusal.entry, refusal.reason);
        (
            FindingState::Note,
            Some("run `fourfold cache verify --repair`; the kernels are rebuilt when needed"),
        )
    } else if !health.writable {
        detail += "\nit is read-only: its kernels are used and none are added";
        (
            FindingState::Note,
            Some("make it writable for this user, or set FOURFOLD_CACHE_DIR to another folder"),
        )
    } else if is_full {
        (
            FindingState::Note,
            Some("free disk space there, run `fourfold cache prune`, or set FOURFOLD_CACHE_DIR"),
        )
    } else {
        (FindingState::Ok, None)
    };
    let remedy = remedy.map(str::to_owned);
    (Some(health), finding(state, detail, remedy))
}

/// Returns true if a folder can neither keep nor load kernels. A read-only folder that holds kernels is usable.
fn is_obstructed(folder: &Path, has_kernels: bool) -> bool {
    obstacle(folder).is_some_and(|found| !has_kernels || found.prevents_loading())
}

/// The free space below which the doctor warns. A build temporarily needs some tens of megabytes.
const LITTLE_ROOM: u64 = 256 << 20;

/// Returns a finding for each tier of the cache that this build cannot read. No tier is contacted.
fn unusable_tiers(environment: &Environment) -> Vec<FindingReport> {
    let tiers =
        CacheOptions::from_environment(environment).map_or_else(|_| Vec::new(), |options| options.tiers);
    let unusable = tiers.iter().filter_map(|tier| check_tier(tier).err());
    unusable
        .map(|error| FindingReport {
            name: "kernel tier".to_owned(),
            state: FindingState::Note.name(),
            detail: chain(&error),
            remedy: Some(error.remedy().to_owned()),
        })
        .collect()
}

/// Returns the GPUs and the finding on their driver.
fn gpus(environment: &Environment) -> (Vec<Gpu>, FindingReport) {
    let finding = |state: FindingState, detail: String, remedy: Option<&str>| FindingReport {
        name: "driver".to_owned(),
        state: state.name(),
        detail,
        remedy: remedy.map(str::to_owned),
    };
    let note = |detail: String, remedy: &str| (Vec::new(), finding(FindingState::Note, detail, Some(remedy)));
    if environment.fourfold_device.as_ref().is_some_and(|device| device == "none") {
        let detail = "skipped: FOURFOLD_DEVICE is `none`".to_owned();
        return note(detail, "unset FOURFOLD_DEVICE to use a GPU");
    }
    match discover() {
        Err(error) => note(error.to_string(), error.remedy()),
        Ok(gpus) => match gpus.first() {
            None => note(
                "the driver reports no GPU".to_owned(),
                "compare with `nvidia-smi`; CUDA_VISIBLE_DEVICES may hide GPUs",
            ),
            Some(gpu) => {
                let ((major, minor), count) = (gpu.driver_version, gpus.len());
                let detail =
                    format!("CUDA {major}.{minor}, {count} GPU{}", if count == 1 { "" } else { "s" });
                let finding = finding(FindingState::Ok, detail, None);
                (gpus, finding)
            }
        },
    }
}

/// Returns the finding on the library that multiplies matrices in `mma`. No kernel needs it.
fn matrix_library(environment: &Environment) -> FindingReport {
    let (state, detail, remedy) = match Blas::find(environment) {
        Ok((path, version)) => (FindingState::Ok, format!("{version}, {}", path.display()), None),
        Err(error) => {
            (FindingState::Note, format!("{error}; mma runs on the CPU"), Some(error.remedy().to_owned()))
        }
    };
    FindingReport { name: "cuBLASLt".to_owned(), state: state.name(), detail, remedy }
}

/// Returns a finding if `FOURFOLD_DEVICE` selects a GPU that is not usable.
fn chosen_device(environment: &Environment, gpus: &[Gpu]) -> Option<FindingReport> {
    let text = environment.fourfold_device.as_ref()?.to_string_lossy();
    let (why, remedy) = match text.parse() {
        Ok(DeviceChoice::First | DeviceChoice::None) => return None,
        Ok(DeviceChoice::Ordinal(ordinal)) if gpus.iter().any(|gpu| gpu.ordinal == ordinal) => return None,
        Ok(DeviceChoice::Ordinal(_)) => (
            "this machine has no GPU of this number".to_owned(),
            match gpus.len() {
                0 => "set it to `none`, or unset it".to_owned(),
                1 => "set it to 0 or `none`, or unset it".to_owned(),
                count => format!("set it to a number from 0 to {} or to `none`, or unset it", count - 1),
            },
        ),
        Err(error) => (error, "set it to the number of a GPU or to `none`, or unset it".to_owned()),
    };
    Some(FindingReport {
        name: "device".to_owned(),
        state: FindingState::Note.name(),
        detail: format!("FOURFOLD_DEVICE is `{text}`: {why}; commands that run kernels fail"),
        remedy: Some(remedy),
    })
}

/// Returns the targets whose kernels run natively on a GPU, and those it emulates.
fn runs(gpu: &Gpu) -> (Vec<&'static str>, Vec<&'static str>) {
    let native =
        TARGETS.iter().filter(|target| gpu.target() == Some(target.name) && has_kernels(target.name));
    let emulated = if gpu.target() == Some(EMULATOR) { EMULATED_TARGETS.to_vec() } else { Vec::new() };
    (native.map(|target| target.name).collect(), emulated)
}

fn what_runs(gpu: &Gpu) -> String {
    let (native, emulated) = runs(gpu);
    let (native, emulated) = (native.join(" and "), emulated.join(" and "));
    match (native.is_empty(), emulated.is_empty()) {
        (false, true) => format!("runs kernels of {native}"),
        (false, false) => format!("runs kernels of {native}, and, with --emulate, those of {emulated}"),
        (true, _) => "runs the kernels of no target".to_owned(),
    }
}

pub(crate) fn gpu_report(gpu: &Gpu) -> GpuReport {
    let (native, emulated) = runs(gpu);
    GpuReport {
        ordinal: gpu.ordinal,
        name: gpu.name.clone(),
        capability: gpu.capability,
        sm_count: gpu.sm_count,
        memory_bytes: gpu.memory_bytes,
        l2_bytes: gpu.l2_bytes,
        shared_memory_bytes: gpu.shared_memory_per_block_optin,
        driver: gpu.driver_version,
        native,
        emulated,
    }
}

fn has_kernels(target: &str) -> bool {
    capabilities(target).is_some_and(|found| !found.formats.is_empty())
}

fn target_report(target: &Target, diagnosis: &Diagnosis, gpus: &[Gpu]) -> TargetReport {
    let formats = capabilities(target.name).map_or_else(Vec::new, |found| found.formats);
    let formats: Vec<String> = formats.iter().map(|found| found.format.to_string()).collect();
    let found = diagnosis.targets.iter().find(|found| found.target == target.name);
    // Any other missing item is missing for every target.
    let is_chosen = |name: &str| [Tool::Nvcc, Tool::Cutlass].iter().any(|tool| tool.name() == name);
    let mut other = diagnosis.findings.iter().filter(|finding| !is_chosen(finding.name));
    let (state, why) = match found {
        _ if formats.is_empty() => ("none", Some("no kernels in this version".to_owned())),
        Some(TargetFinding { problem: Some(problem), .. }) => ("missing", Some(problem.clone())),
        Some(_) if other.all(|finding| finding.state != FindingState::Missing) => ("ok", None),
        _ => ("missing", Some("see above".to_owned())),
    };
    let here =
        |which: fn(&Gpu) -> Vec<&'static str>| gpus.iter().any(|gpu| which(gpu).contains(&target.name));
    let runs = match (here(|gpu| runs(gpu).0), here(|gpu| runs(gpu).1)) {
        (true, _) => Some("native"),
        (false, true) => Some("emulated"),
        (false, false) => None,
    };
    TargetReport { name: target.name, hardware: target.hardware, state, why, formats, runs }
}

/// The smallest program that becomes a kernel on every target; M is odd, and N and K leave partial tiles.
const PROGRAM: &str = "fir 1
func @self_test(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[56, 96], f4E2M1FN>, param %sfb: tensor<[56, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 56], f32>
  return %d
}
";

/// Builds the smallest kernel, for the GPU if one can run or emulate it, and compares its result.
pub fn self_test(
    options: &Options,
    compile: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> SelfTest {
    match try_self_test(options, compile, progress) {
        Ok(outcome) => outcome,
        Err(error) => SelfTest::of(
            "failed",
            error.message(),
            Some("report this: the self-test always runs the same program"),
        ),
    }
}

fn try_self_test(
    options: &Options,
    compile: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<SelfTest, Error> {
    let loaded = load_text("self-test.fir".as_ref(), PROGRAM.to_owned())?;
    let backend = Backend::new(options)?;
    // A cached kernel would not test the compiler.
    let compile = compile.clone().build_anyway(true).cache(CacheChoice::None).retry(true);
    let compiled = backend.compile(plan(&backend, &loaded)?, &compile, progress);
    let mut outcome = SelfTest::of("failed", String::new(), None);
    outcome.target = Some(backend.capabilities().target.clone());
    let plan = compiled.planned().partition().kernels().next().map(|(_, plan)| plan);
    outcome.kernel = plan.map(kernel_name);
    let target = outcome.target.clone().unwrap_or_default();
    match compiled.built().first().map(|built| &built.outcome) {
        Some(Ok(artifact)) => {
            outcome.build_seconds = Some(artifact.resources().compile_time.as_secs_f64());
        }
        Some(Err(failure)) => {
            outcome.detail = format!("the kernel for {target} was not built: {}", failure.message);
            outcome.remedy = Some(failure.remedy.clone());
            return Ok(outcome);
        }
        None => {
            let reason = compiled.unavailable(0).map_or("no kernel was planned", |reason| &reason.message);
            outcome.detail = format!("the kernel for {target} was not built: {reason}");
            outcome.remedy = Some("run `fourfold toolchain install`".to_owned());
            return Ok(outcome);
        }
    }
    let seconds = outcome.build_seconds.unwrap_or_default();
    if let Err(reason) = backend.execution() {
        outcome.state = "passed";
        let why = reason.message.trim_end_matches(": kernels run on the CPU");
        outcome.detail = format!("a kernel for {target} was built in {seconds:.0} s and not run: {why}");
        return Ok(outcome);
    }
    let recipe = Recipe { rule: Rule::Exact, seed: 1, symbols: vec![("M".to_owned(), 37)] };
    let inputs = sampled_inputs(recipe, &loaded.program)?;
    let report = replay_compiled(&loaded, &compiled, &inputs, Scope::DeviceResults)?;
    let segment = report.segments.iter().find(|segment| segment.kind == "kernel");
    let ran = segment.map_or("not_run", |segment| segment.ran);
    outcome.ran = Some(ran);
    outcome.kernel_seconds = segment.and_then(|segment| segment.kernel_seconds);
    let device = report.device.unwrap_or_default();
    if ran != "kernel" && ran != "emulated" {
        let why = segment.and_then(|segment| segment.message.clone()).unwrap_or_default();
        outcome.detail = format!("the kernel for {target} was built and did not run on {device}: {why}");
        outcome.remedy =
            Some("run `fourfold replay FILE --debug` to see the arguments of the launch".to_owned());
    } else if !report.ok {
        let wrong: usize = report.outputs.iter().map(|output| output.mismatches).sum();
        outcome.detail = format!("the kernel for {target} ran on {device}; {wrong} elements are wrong");
        outcome.remedy =
            Some("report this, with a bundle from `fourfold replay FILE --bundle DIR`".to_owned());
    } else {
        outcome.state = "passed";
        let how = if ran == "emulated" { ", emulated" } else { "" };
        outcome.detail =
            format!("a kernel for {target} was built in {seconds:.0} s and is right on {device}{how}");
    }
    Ok(outcome)
}
