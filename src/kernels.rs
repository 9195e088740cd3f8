//! The kernels of a plan: their configurations and sources, and building them.
//!
//! Nothing here can make a program fail: a kernel that cannot be built is reported with the compiler's own words and
//! whose fault it was, and its segment runs on the fallback.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use fourfold_codegen::configuration::CutlassVersion;
use fourfold_codegen::{KernelSource, KernelSpec, emit, emulate, specify, target};
use fourfold_executor::environment::Environment;
use fourfold_executor::toolchain::{Toolchain, ToolchainError, ToolchainOptions, locate_with_progress};
use fourfold_executor::{Artifact, BuildError, BuildInput, BuildOptions, BuildTools, RunReason, build};

use crate::backend::Planned;

/// The kernel of one segment.
#[derive(Clone, Debug)]
pub struct PlannedKernel {
    /// The position of the segment.
    pub segment: usize,
    /// What the kernel depends on.
    pub spec: KernelSpec,
    /// Why this configuration was chosen.
    pub why: String,
    /// Its source.
    pub source: KernelSource,
}

/// What became of building the kernel of one segment.
#[derive(Clone, Debug)]
pub struct BuiltKernel {
    /// The kernel.
    pub planned: PlannedKernel,
    /// The library, or why there is none.
    pub outcome: Result<Artifact, BuildFailure>,
}

/// Why a kernel was not built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildFailure {
    /// A stable code, such as `compile_error`.
    pub code: &'static str,
    /// Whose fault it was.
    pub fault: &'static str,
    /// For people, with the compiler's first error.
    pub message: String,
}

impl From<&BuildFailure> for RunReason {
    fn from(failure: &BuildFailure) -> RunReason {
        let message = format!("{} (fault: {})", failure.message, failure.fault);
        RunReason { code: failure.code, message }
    }
}

impl From<&BuildError> for BuildFailure {
    fn from(error: &BuildError) -> BuildFailure {
        BuildFailure { code: error.code(), fault: error.fault().name(), message: chain(error) }
    }
}

impl From<&ToolchainError> for BuildFailure {
    fn from(error: &ToolchainError) -> BuildFailure {
        let message = format!("{} ({})", chain(error), error.remedy());
        BuildFailure { code: "toolchain_missing", fault: "toolchain", message }
    }
}

/// The kernels of a plan, configured for this version of CUTLASS, in order of segments; with `emulated`, to run on a
/// Hopper GPU.
pub fn planned_kernels(planned: &Planned, cutlass: CutlassVersion, emulated: bool) -> Vec<PlannedKernel> {
    let partition = planned.partition();
    let Some(target) = target(&partition.target) else { return Vec::new() };
    partition
        .kernels()
        .filter_map(|(segment, plan)| {
            let (spec, why) = specify(planned.program(), plan, target, cutlass)?;
            let source = emit(&spec);
            let source = if emulated { emulate(&source)? } else { source };
            Some(PlannedKernel { segment, spec, why, source })
        })
        .collect()
}

/// The version of CUTLASS that a toolchain has, as configurations are chosen by it.
pub fn cutlass_version(toolchain: &Toolchain) -> CutlassVersion {
    CutlassVersion::parse(&toolchain.cutlass_version).unwrap_or(CutlassVersion::PINNED)
}

/// Finds a toolchain, or installs the pinned one, saying on `progress` what takes long.
///
/// # Errors
/// When there is none and none can be installed.
pub fn toolchain(
    options: &ToolchainOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Toolchain, ToolchainError> {
    locate_with_progress(options, &Environment::from_process(), progress)
}

/// Builds kernels, each distinct source once, as many at a time as there are cores, and at most eight.
/// `progress` is told when one begins and ends.
pub fn build_kernels(
    kernels: Vec<PlannedKernel>,
    toolchain: &Toolchain,
    options: &BuildOptions,
    progress: &(dyn Fn(&str) + Sync),
) -> Vec<BuiltKernel> {
    let mut distinct: Vec<&KernelSource> = Vec::new();
    for kernel in &kernels {
        if !distinct.contains(&&kernel.source) {
            distinct.push(&kernel.source);
        }
    }
    let outcomes: Mutex<HashMap<&KernelSource, Result<Artifact, BuildFailure>>> = Mutex::default();
    let next = AtomicUsize::new(0);
    let workers = thread::available_parallelism().map_or(1, usize::from).min(MOST_BUILDS).min(distinct.len());
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(source) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
                    progress(&format!("building {}", source.kernel));
                    let outcome = build_one(source, toolchain, options);
                    progress(&match &outcome {
                        Ok(artifact) => {
                            let seconds = artifact.resources().compile_time.as_secs_f64();
                            format!("built {} in {seconds:.0} s", source.kernel)
                        }
                        Err(failure) => format!("{}: {}", source.kernel, failure.message),
                    });
                    // A poisoned map is whole: an insertion cannot stop halfway in our code.
                    let mut outcomes = outcomes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                    outcomes.insert(source, outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    let found: Vec<_> = kernels.iter().map(|kernel| outcomes.get(&kernel.source).cloned()).collect();
    kernels
        .into_iter()
        .zip(found)
        .map(|(planned, outcome)| {
            let outcome = outcome.expect("every distinct source was built by one of the threads above");
            BuiltKernel { planned, outcome }
        })
        .collect()
}

/// A bound on memory, which is not asked for: each build runs a compiler of its own.
const MOST_BUILDS: usize = 8;

fn build_one(
    source: &KernelSource,
    toolchain: &Toolchain,
    options: &BuildOptions,
) -> Result<Artifact, BuildFailure> {
    let mut include = toolchain.cutlass_include().to_vec();
    include.extend(toolchain.include.iter().cloned());
    let tools = BuildTools {
        nvcc: &toolchain.nvcc,
        include,
        libraries: toolchain.libraries.clone(),
        cuobjdump: toolchain.cuobjdump.as_deref(),
    };
    let input = BuildInput {
        text: &source.text,
        kernel: &source.kernel,
        prelude: source.prelude,
        target: source.target,
        architecture: source.architecture,
        opcode: source.opcode,
        // An epilogue's own tiles may take the room of a stage: the count is read back and reported.
        stages: None,
    };
    build(&input, &tools, options).map_err(|error| BuildFailure::from(&error))
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let also = error.to_string();
        // A transparent error repeats its cause.
        if !text.ends_with(&also) {
            text = format!("{text}: {also}");
        }
        cause = error.source();
    }
    text
}
