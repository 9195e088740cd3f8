//! The kernels of a plan: configuration, source generation and building.
//!
//! Nothing here makes a program fail. A kernel that cannot be built is reported with the compiler's message, the
//! fault and a remedy, and its segment runs on the fallback.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::{EMULATOR, KernelSource, KernelSpec, emulate, rewrite_ptx, specify, target};
use fourfold_executor::cache::CacheKey;
use fourfold_executor::service::{
    CompileService, Event, Failure, Outcome, Request, ServiceOptions, build_slots,
};
use fourfold_executor::toolchain::Toolchain;
use fourfold_executor::{
    Artifact, BuildInput, BuildOptions, Cancel, DumpedKernel, Translation, spawn_workers,
};

use crate::backend::Planned;
use crate::compile_options::CompileOptions;
pub use crate::compile_options::{cutlass_version, toolchain};

/// The kernel of one segment.
#[derive(Clone, Debug)]
pub struct PlannedKernel {
    /// The segment's position in the partition.
    pub segment: usize,
    /// The specification that the source is generated from.
    pub spec: KernelSpec,
    /// The rule that selected this configuration.
    pub why: String,
    /// The generated source.
    pub source: KernelSource,
}

impl PlannedKernel {
    /// Writes the source and compiler log of a kernel that failed to build into `folder`, and returns the files'
    /// paths. Creates the folder; names files as [`Artifact::dump`] does.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn dump_failed(&self, failure: &Failure, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let KernelSource { kernel, hash, text, prelude, .. } = &self.source;
        let files = DumpedKernel {
            kernel,
            hash,
            source: text,
            library: None,
            log: failure.log.as_deref(),
            prelude: *prelude,
        };
        files.write(folder)
    }
}

/// The build result of one segment's kernel.
#[derive(Clone, Debug)]
pub struct BuiltKernel {
    /// The kernel.
    pub planned: PlannedKernel,
    /// The kernel's key in caches and packs.
    pub key: CacheKey,
    /// The built library, or the build failure.
    pub outcome: Result<Artifact, Arc<Failure>>,
    /// The cache's record of the failure, with the compiler's full output, if one was written.
    pub record: Option<PathBuf>,
}

/// Configures and emits the kernels of a plan for a CUTLASS version, in segment order. With `emulated`, the sources
/// run on a Hopper GPU.
///
/// ```
/// use fourfold::kernels::planned_kernels;
/// use fourfold::{Backend, DeviceChoice, Options, codegen::cutlass::CutlassVersion};
/// # let text = std::fs::read_to_string("fixtures/shapes/exact_m1.fir")?;
/// # let (program, _) = fourfold::ir::load(&text).expect("a valid program");
///
/// let planned = Backend::new(&Options::default().device(DeviceChoice::None))?.plan(program);
/// assert_eq!(planned_kernels(&planned, CutlassVersion::PINNED, false).len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn planned_kernels(planned: &Planned, cutlass: CutlassVersion, emulated: bool) -> Vec<PlannedKernel> {
    let partition = planned.partition();
    let Some(target) = target(&partition.target) else { return Vec::new() };
    partition
        .plans()
        .filter_map(|(segment, plan)| {
            let (spec, why) = specify(planned.program(), plan, target, cutlass, planned.dispatch())?;
            let source = spec.emit();
            let source = if emulated { emulate(&source)? } else { source };
            Some(PlannedKernel { segment, spec, why, source })
        })
        .collect()
}

/// The architectures that a target's kernels are written for and compiled for.
///
/// ```
/// # use fourfold::kernels::build_targets;
/// assert_eq!(build_targets("sm_120a", true), ["sm_120a", "sm_90a"]);
/// ```
pub fn build_targets(target: &str, emulated: bool) -> Vec<&str> {
    if emulated { vec![target, EMULATOR] } else { vec![target] }
}

/// Builds kernels without a cache. Each distinct kernel is built once, as many at a time as memory and cores allow.
/// Events are reported to `progress`.
pub fn build_kernels(
    kernels: Vec<PlannedKernel>,
    toolchain: &Toolchain,
    options: &BuildOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> Vec<BuiltKernel> {
    let service = CompileService::new(ServiceOptions {
        cache: None,
        toolchain: Ok(Arc::new(toolchain.clone())),
        build: options.clone(),
        jobs: None,
        retry_known_bad: false,
    });
    let cancel = options.cancel.clone().unwrap_or_default();
    let outcomes = get_kernels(&service, &kernels, &cancel, progress);
    let built = outcomes.into_iter().zip(kernels);
    built.map(|(outcome, planned)| BuiltKernel::new(planned, &outcome, &service)).collect()
}

/// Builds every kernel of a plan, without a device, and returns the toolchain if one was found. Without a toolchain,
/// only cached kernels succeed. Events are reported to `progress`.
pub fn compile_kernels(
    planned: &Planned,
    emulated: bool,
    options: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> (Vec<BuiltKernel>, Option<Toolchain>) {
    let (mut built, toolchain) = compile_kernels_of(&[planned], emulated, options, progress);
    (built.pop().unwrap_or_default(), toolchain)
}

/// Like [`compile_kernels`], for several plans of one target. Each distinct kernel is built once.
pub fn compile_kernels_of(
    plans: &[&Planned],
    emulated: bool,
    options: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> (Vec<Vec<BuiltKernel>>, Option<Toolchain>) {
    let target = plans.first().map_or("", |planned| planned.partition().target.as_str());
    let supply = options.supply(&build_targets(target, emulated), progress);
    let of_plan = |planned: &&Planned| planned_kernels(planned, supply.cutlass, emulated);
    let kernels: Vec<Vec<PlannedKernel>> = plans.iter().map(of_plan).collect();
    let outcomes = get_kernels(&supply.service, &kernels.concat(), &supply.cancel, progress);
    let mut outcomes = outcomes.into_iter();
    let mut built = |planned: PlannedKernel| {
        let outcome = outcomes.next().expect("every kernel has an outcome");
        BuiltKernel::new(planned, &outcome, &supply.service)
    };
    let built = kernels.into_iter().map(|kernels| kernels.into_iter().map(&mut built).collect()).collect();
    let toolchain = supply.service.options().toolchain.as_ref().ok();
    (built, toolchain.map(|toolchain| Toolchain::clone(toolchain)))
}

/// Requests kernels from a service, each distinct kernel once. Returns one outcome per kernel, in order.
pub fn get_kernels(
    service: &CompileService,
    kernels: &[PlannedKernel],
    cancel: &Cancel,
    progress: &(dyn Fn(&Event) + Sync),
) -> Vec<Outcome> {
    let requests: Vec<Request> = kernels.iter().map(|kernel| request(service, &kernel.source)).collect();
    let mut keys = HashSet::new();
    let distinct: Vec<&Request> = requests.iter().filter(|request| keys.insert(request.key())).collect();
    progress(&Event::Needed { kernels: distinct.len() });
    let outcomes: Mutex<HashMap<CacheKey, Outcome>> = Mutex::default();
    let next = AtomicUsize::new(0);
    // Twice the builders: a request may be waiting for another process's build.
    let builders = service.options().jobs.unwrap_or_else(build_slots);
    let workers = builders.saturating_mul(2).max(FEWEST_ASKING).min(distinct.len());
    let ask = || {
        while let Some(request) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = service.get(request, cancel, progress);
            // A poisoned map is still valid: none of our code panics halfway through an insertion.
            outcomes.lock().unwrap_or_else(PoisonError::into_inner).insert(request.key(), outcome);
        }
    };
    thread::scope(|scope| {
        if spawn_workers(scope, "kernel request", workers, ask) == 0 {
            ask();
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
    let outcome = |request: &Request| outcomes.get(&request.key()).cloned();
    requests
        .iter()
        .map(|it| outcome(it).expect("every key was asked for by one of the threads above"))
        .collect()
}

const FEWEST_ASKING: usize = 8;

/// The compile service for kernels of these targets, and the CUTLASS version to configure them for. Missing parts are
/// reported to `progress`.
pub fn compile_service(
    options: &CompileOptions,
    targets: &[&str],
    progress: &(dyn Fn(&Event) + Sync),
) -> (CompileService, CutlassVersion) {
    let supply = options.supply(targets, progress);
    (supply.service, supply.cutlass)
}

/// The service's request for a source.
pub fn request(service: &CompileService, source: &KernelSource) -> Request {
    service.request(&build_input(source))
}

/// The build input for a source.
pub fn build_input(source: &KernelSource) -> BuildInput<'_> {
    BuildInput {
        text: &source.text,
        kernel: &source.kernel,
        prelude: source.prelude,
        target: source.target,
        architecture: source.architecture,
        opcode: source.opcode,
        // Unset: an epilogue's own tiles may displace a stage, so the count is read back and reported.
        stages: None,
        translation: source.translation.map(|translation| Translation {
            from: translation.from,
            version: translation.version,
            translate: |kernel, library| rewrite_ptx(kernel, library).map_err(|error| error.to_string()),
        }),
    }
}

impl BuiltKernel {
    /// The build result of a planned kernel.
    pub(crate) fn new(planned: PlannedKernel, outcome: &Outcome, service: &CompileService) -> BuiltKernel {
        let outcome = outcome.as_ref().map(|built| built.artifact().clone()).map_err(Arc::clone);
        let key = request(service, &planned.source).key();
        let record = outcome.as_ref().err().and_then(|_| service.record(key));
        BuiltKernel { planned, key, outcome, record }
    }
}
