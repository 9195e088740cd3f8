//! What this machine has for building and running kernels, what it lacks, and what to do about it.

use std::collections::BTreeSet;
use std::path::Path;

use fourfold::{Backend, CacheChoice, CompileOptions, DeviceChoice, Options, chain};
use fourfold_codegen::{EMULATED_TARGETS, EMULATOR, TARGETS, Target, capabilities};
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

/// What a machine has and lacks. The keys are an interface: they are added to, not changed.
#[derive(Clone, Debug, Serialize)]
pub struct Doctor {
    /// Whether kernels could be built now, and the self-test, if it was run, did not fail.
    pub ok: bool,
    /// Which Fourfold says so.
    pub fourfold: Version,
    /// Each GPU with what runs on it, or why there is none, for people.
    pub devices: Vec<String>,
    /// Each GPU.
    pub gpus: Vec<GpuReport>,
    /// What was looked for, in the order of its use.
    pub findings: Vec<FindingReport>,
    /// What kernels could be planned for.
    pub targets: Vec<TargetReport>,
    /// The cache of built kernels; null where there is none yet, or it cannot be used: a finding then says so.
    pub cache: Option<CacheHealth>,
    /// Every environment variable that has a say.
    pub variables: Vec<VariableReport>,
    /// Whether a kernel really can be built, and run.
    pub self_test: SelfTest,
}

/// A GPU.
#[derive(Clone, Debug, Serialize)]
pub struct GpuReport {
    /// Its number.
    pub ordinal: usize,
    /// Its product name.
    pub name: String,
    /// The compute capability: major, minor.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub sm_count: u32,
    /// Memory, all of it.
    pub memory_bytes: u64,
    /// The CUDA version of the driver: major, minor.
    pub driver: (u32, u32),
    /// The targets whose kernels run on it as they are.
    pub native: Vec<&'static str>,
    /// The targets whose kernels run on it with their matrix instruction emulated.
    pub emulated: Vec<&'static str>,
}

/// One thing that was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FindingReport {
    /// What it is, such as `nvcc`.
    pub name: String,
    /// `ok`; `missing` for what kernels cannot be built without; `note` for what someone should know.
    pub state: &'static str,
    /// What was found, or why it will not do.
    pub detail: String,
    /// What to do about it; null for what is well.
    pub remedy: Option<String>,
}

/// What kernels of one target can do here.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    /// Its name.
    pub name: &'static str,
    /// Which GPUs those are.
    pub hardware: &'static str,
    /// `ok` when its kernels can be built, `missing` when not, `none` when there are none in this version.
    pub state: &'static str,
    /// Why they cannot.
    pub why: Option<String>,
    /// The formats that kernels take.
    pub formats: Vec<String>,
    /// `native` or `emulated` where a GPU here runs them; null where they can be built at most.
    pub runs: Option<&'static str>,
}

/// An environment variable.
#[derive(Clone, Debug, Serialize)]
pub struct VariableReport {
    /// Its name.
    pub name: &'static str,
    /// What its value is.
    pub kind: &'static str,
    /// What holds when it is unset.
    pub default: &'static str,
    /// What it is for.
    pub meaning: &'static str,
    /// Its value; null when it is unset or empty.
    pub value: Option<String>,
}

/// The outcome of the self-test: the smallest kernel, built by the compiler and not taken from any cache, and run on the
/// GPU if there is one that can run or emulate it.
#[derive(Clone, Debug, Serialize)]
pub struct SelfTest {
    /// `passed`, `failed` or `not_run`.
    pub state: &'static str,
    /// For people.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// What the kernel was built for.
    pub target: Option<String>,
    /// What it computes.
    pub kernel: Option<String>,
    /// How it ran: `kernel` or `emulated`; null where no GPU can.
    pub ran: Option<&'static str>,
    /// How long the compiler took.
    pub build_seconds: Option<f64>,
    /// How long the kernel took on the device.
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

    /// It was not asked for.
    fn not_asked_for() -> SelfTest {
        let detail = "it builds a kernel, which takes some half a minute".to_owned();
        SelfTest::of("not_run", detail, Some("run `fourfold doctor --self-test`"))
    }
}

/// Looks at everything, and verifies the cache of kernels; needs no network, does not run the self-test, and changes
/// nothing. It judges by what kernels of the [targets](ToolchainOptions::targets) need, or, where none is named, of the
/// GPUs that are here.
pub fn examine(options: &ToolchainOptions, environment: &Environment) -> Doctor {
    look(options, environment, true)
}

/// As [`examine`]; without `verify` the kernels of the cache are counted and measured, and not read.
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
                // A list may have several places, and a place may be a URL.
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
    /// Runs the self-test, if kernels can be built.
    pub fn test(&mut self, options: &Options, compile: &CompileOptions, progress: &(dyn Fn(&Event) + Sync)) {
        self.self_test = match self.ok {
            true => self_test(options, compile, progress),
            false => {
                let detail = "kernels cannot be built here".to_owned();
                SelfTest::of("not_run", detail, Some("see to what is missing first"))
            }
        };
        self.ok &= self.self_test.state != "failed";
    }
}

/// How the cache of built kernels does.
fn kernel_cache(environment: &Environment, verify: bool) -> (Option<CacheHealth>, FindingReport) {
    let finding = |state: FindingState, detail: String, remedy: Option<String>| FindingReport {
        name: "kernel cache".to_owned(),
        state: state.name(),
        detail,
        remedy,
    };
    // Its tiers are looked at by themselves.
    let health = CacheOptions::from_environment(environment)
        .and_then(|options| Ok((CacheHealth::of(&options, verify)?, options.folder)));
    let health = match health {
        Ok((health, folder)) if is_obstructed(&folder, health.is_some()) => {
            let found = obstacle(&folder);
            let is_missing = found.as_ref().is_some_and(Obstacle::prevents_loading);
            let state = if is_missing { FindingState::Missing } else { FindingState::Note };
            let why = found.map_or_else(String::new, |found| found.to_string());
            let detail = format!("{}: kernels are not kept: {why}", folder.display());
            let remedy =
                "set FOURFOLD_CACHE_DIR to a folder that can be written and whose programs can be run";
            return (health, finding(state, detail, Some(remedy.to_owned())));
        }
        Ok((Some(health), _)) => health,
        Ok((None, folder)) => {
            let detail = format!("{} holds no kernels yet", folder.display());
            return (None, finding(FindingState::Ok, detail, None));
        }
        Err(error) => {
            let detail = format!("kernels are not kept: {}", chain(&error));
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
        detail += &format!("; {known_bad} known not to build (--retry tries again)");
    }
    let is_full = free_bytes.is_some_and(|free| free < LITTLE_ROOM);
    let (state, remedy) = if let Some(refusal) = refused.first() {
        detail += &format!("\n{} refused: {}: {}", refused.len(), refusal.entry, refusal.reason);
        (
            FindingState::Note,
            Some("run `fourfold cache verify --repair`; they are built again when they are needed"),
        )
    } else if !health.writable {
        detail += "\nit cannot be written to: what it has is used, and nothing is added";
        (
            FindingState::Note,
            Some("make it writable for this user, or set FOURFOLD_CACHE_DIR to another folder"),
        )
    } else if is_full {
        (FindingState::Note, Some("free room there, run `fourfold cache prune`, or set FOURFOLD_CACHE_DIR"))
    } else {
        (FindingState::Ok, None)
    };
    let remedy = remedy.map(str::to_owned);
    (Some(health), finding(state, detail, remedy))
}

/// Returns whether no kernel can be kept in a cache folder, or none can be loaded from it. One that has kernels and cannot be
/// written to is used.
fn is_obstructed(folder: &Path, has_kernels: bool) -> bool {
    obstacle(folder).is_some_and(|found| !has_kernels || found.prevents_loading())
}

/// A build needs some tens of megabytes for a moment.
const LITTLE_ROOM: u64 = 256 << 20;

/// The tiers of the cache that this program cannot read. They are named, and not asked.
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

/// The GPUs, and what there is to say of their driver.
fn gpus(environment: &Environment) -> (Vec<Gpu>, FindingReport) {
    let finding = |state: FindingState, detail: String, remedy: Option<&str>| FindingReport {
        name: "driver".to_owned(),
        state: state.name(),
        detail,
        remedy: remedy.map(str::to_owned),
    };
    let note = |detail: String, remedy: &str| (Vec::new(), finding(FindingState::Note, detail, Some(remedy)));
    if environment.fourfold_device.as_ref().is_some_and(|device| device == "none") {
        let detail = "not looked for: FOURFOLD_DEVICE is `none`".to_owned();
        return note(detail, "unset FOURFOLD_DEVICE to use a GPU");
    }
    match discover() {
        Err(error) => note(error.to_string(), error.remedy()),
        Ok(gpus) => match gpus.first() {
            None => note(
                "the driver knows of no GPU".to_owned(),
                "see what `nvidia-smi` shows; CUDA_VISIBLE_DEVICES may hide GPUs",
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

/// What is wrong with the GPU that the environment chooses, if anything.
fn chosen_device(environment: &Environment, gpus: &[Gpu]) -> Option<FindingReport> {
    let text = environment.fourfold_device.as_ref()?.to_string_lossy();
    let (why, remedy) = match text.parse() {
        Ok(DeviceChoice::First | DeviceChoice::None) => return None,
        Ok(DeviceChoice::Ordinal(ordinal)) if gpus.iter().any(|gpu| gpu.ordinal == ordinal) => return None,
        Ok(DeviceChoice::Ordinal(_)) => (
            "there is no GPU of this number here".to_owned(),
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
        detail: format!("FOURFOLD_DEVICE is `{text}`: {why}; what would run kernels is refused"),
        remedy: Some(remedy),
    })
}

/// The targets whose kernels run on a GPU: as they are, and emulated.
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
        (true, _) => "no target's kernels run on it".to_owned(),
    }
}

fn gpu_report(gpu: &Gpu) -> GpuReport {
    let (native, emulated) = runs(gpu);
    GpuReport {
        ordinal: gpu.ordinal,
        name: gpu.name.clone(),
        capability: gpu.capability,
        sm_count: gpu.sm_count,
        memory_bytes: gpu.memory_bytes,
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
    // What is missing besides the tools that are chosen by target is missing for all.
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

/// The smallest program of which every target makes a kernel; M is odd, and N and K leave partial tiles.
const PROGRAM: &str = "fir 1
func @self_test(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[56, 96], f4E2M1FN>, param %sfb: tensor<[56, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 56], f32>
  return %d
}
";

/// Builds the smallest kernel, for the GPU if one can run or emulate it, and compares what it computes there.
pub fn self_test(
    options: &Options,
    compile: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> SelfTest {
    match try_self_test(options, compile, progress) {
        Ok(outcome) => outcome,
        Err(error) => {
            SelfTest::of("failed", error.message(), Some("report this: the program is a fixed one"))
        }
    }
}

fn try_self_test(
    options: &Options,
    compile: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Result<SelfTest, Error> {
    let loaded = load_text("self-test.fir".as_ref(), PROGRAM.to_owned())?;
    let backend = Backend::new(options)?;
    // What a cache has says nothing of the compiler.
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
            outcome.detail = format!("the kernel of {target} was not built: {}", failure.message);
            outcome.remedy = Some(failure.remedy.clone());
            return Ok(outcome);
        }
        None => {
            let reason = compiled.unavailable(0).map_or("no kernel was planned", |reason| &reason.message);
            outcome.detail = format!("the kernel of {target} was not built: {reason}");
            outcome.remedy = Some("run `fourfold toolchain install`".to_owned());
            return Ok(outcome);
        }
    }
    let seconds = outcome.build_seconds.unwrap_or_default();
    if let Err(reason) = backend.execution() {
        outcome.state = "passed";
        let why = reason.message.trim_end_matches(": the kernel ran on the CPU");
        outcome.detail = format!("a kernel of {target} was built in {seconds:.0} s, and not run: {why}");
        return Ok(outcome);
    }
    let recipe = Recipe { rule: Rule::Exact, seed: 1, symbols: vec![("M".to_owned(), 37)] };
    let inputs = sampled_inputs(recipe, &loaded.program)?;
    let report = replay_compiled(&loaded, &compiled, &inputs, Scope::KernelResults)?;
    let segment = report.segments.iter().find(|segment| segment.kind == "kernel");
    let ran = segment.map_or("not_run", |segment| segment.ran);
    outcome.ran = Some(ran);
    outcome.kernel_seconds = segment.and_then(|segment| segment.kernel_seconds);
    let device = report.device.unwrap_or_default();
    if ran != "kernel" && ran != "emulated" {
        let why = segment.and_then(|segment| segment.message.clone()).unwrap_or_default();
        outcome.detail = format!("the kernel of {target} was built and did not run on {device}: {why}");
        outcome.remedy = Some("`fourfold replay FILE --debug` shows what it was given".to_owned());
    } else if !report.ok {
        let wrong: usize = report.outputs.iter().map(|output| output.mismatches).sum();
        outcome.detail = format!("the kernel of {target} ran on {device} and {wrong} elements are wrong");
        outcome.remedy = Some("report this: `fourfold replay FILE --bundle DIR` makes a bundle".to_owned());
    } else {
        outcome.state = "passed";
        let how = if ran == "emulated" { ", emulated" } else { "" };
        outcome.detail =
            format!("a kernel of {target} was built in {seconds:.0} s and is right on {device}{how}");
    }
    Ok(outcome)
}
