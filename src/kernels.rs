//! The kernels of a plan: their configurations and sources, and having them built.
//!
//! Nothing here can make a program fail: a kernel that cannot be had is reported with the compiler's own words, whose
//! fault it was and what to do, and its segment runs on the fallback.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::{EMULATOR, KernelSource, KernelSpec, emulate, specify, target};
use fourfold_executor::cache::CacheKey;
use fourfold_executor::service::{
    CompileService, Event, Failure, Outcome, Request, ServiceOptions, build_slots,
};
use fourfold_executor::toolchain::Toolchain;
use fourfold_executor::{Artifact, BuildInput, BuildOptions, Cancel, DumpedKernel, spawn_workers};

use crate::backend::Planned;
use crate::compile_options::CompileOptions;
pub use crate::compile_options::{cutlass_version, toolchain};

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

impl PlannedKernel {
    /// Writes the source of a kernel that was not built, and what the compiler printed, into `folder`, which is created,
    /// as [`Artifact::dump`] names them, and returns their paths.
    ///
    /// # Errors
    /// When one of them cannot be written.
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

/// What became of building the kernel of one segment.
#[derive(Clone, Debug)]
pub struct BuiltKernel {
    /// The kernel.
    pub planned: PlannedKernel,
    /// The library, or why there is none.
    pub outcome: Result<Artifact, Arc<Failure>>,
    /// The file in the cache that has the failure with all that the compiler printed, where there is one.
    pub record: Option<PathBuf>,
}

/// The kernels of a plan, configured for this version of CUTLASS, in order of segments; with `emulated`, to run on a
/// Hopper GPU.
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

/// The architectures that the kernels of a target are written for and compiled for.
pub fn build_targets(target: &str, emulated: bool) -> Vec<&str> {
    if emulated { vec![target, EMULATOR] } else { vec![target] }
}

/// Builds kernels without a cache, each distinct one once, as many at a time as the machine has room for.
/// `progress` is told what happens.
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

/// Has every kernel of a plan, as these options say, without a device; and the toolchain, if there is one. Without it
/// the kernels are had that the cache has. `progress` is told what happens.
pub fn compile_kernels(
    planned: &Planned,
    emulated: bool,
    options: &CompileOptions,
    progress: &(dyn Fn(&Event) + Sync),
) -> (Vec<BuiltKernel>, Option<Toolchain>) {
    let targets = build_targets(&planned.partition().target, emulated);
    let supply = options.supply(&targets, progress);
    let kernels = planned_kernels(planned, supply.cutlass, emulated);
    let outcomes = get_kernels(&supply.service, &kernels, &supply.cancel, progress);
    let built = outcomes.into_iter().zip(kernels);
    let built =
        built.map(|(outcome, planned)| BuiltKernel::new(planned, &outcome, &supply.service)).collect();
    let toolchain = supply.service.options().toolchain.as_ref().ok();
    (built, toolchain.map(|toolchain| Toolchain::clone(toolchain)))
}

/// Has kernels from a service, each distinct one once; one outcome for each, in order.
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
    // Some may wait for another process: more ask than can build.
    let builders = service.options().jobs.unwrap_or_else(build_slots);
    let workers = builders.saturating_mul(2).max(FEWEST_ASKING).min(distinct.len());
    let ask = || {
        while let Some(request) = distinct.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = service.get(request, cancel, progress);
            // A poisoned map is whole: an insertion cannot stop halfway in our code.
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

/// The service that options mean for kernels of these targets, and the version of CUTLASS that kernels for it are
/// configured for. `progress` is told what is missing.
pub fn compile_service(
    options: &CompileOptions,
    targets: &[&str],
    progress: &(dyn Fn(&Event) + Sync),
) -> (CompileService, CutlassVersion) {
    let supply = options.supply(targets, progress);
    (supply.service, supply.cutlass)
}

/// The request for a source.
pub fn request(service: &CompileService, source: &KernelSource) -> Request {
    service.request(&build_input(source))
}

/// A source as it is built.
pub fn build_input(source: &KernelSource) -> BuildInput<'_> {
    BuildInput {
        text: &source.text,
        kernel: &source.kernel,
        prelude: source.prelude,
        target: source.target,
        architecture: source.architecture,
        opcode: source.opcode,
        // An epilogue's own tiles may take the room of a stage: the count is read back and reported.
        stages: None,
    }
}

impl BuiltKernel {
    /// What became of a planned kernel.
    pub(crate) fn new(planned: PlannedKernel, outcome: &Outcome, service: &CompileService) -> BuiltKernel {
        let outcome = outcome.as_ref().map(|built| built.artifact().clone()).map_err(Arc::clone);
        let record =
            outcome.as_ref().err().and_then(|_| service.record(request(service, &planned.source).key()));
        BuiltKernel { planned, outcome, record }
    }
}
