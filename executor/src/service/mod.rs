//! The compile service: supplies kernels, compiling each once.
//!
//! A kernel is looked up in this process, then in the cache and its tiers, and is otherwise built. Requests for the
//! same key within a process share one build. Between processes, a lock on the key serializes builds, and locked
//! slots limit the number of compilers on a machine. A build is cancelled, and its processes killed, when its last
//! waiter leaves. Locks, processes and temporary folders end with their owner, so a killed process blocks nobody.
//!
//! Failures are data ([`Failure`]). A failure that the same compiler would repeat is recorded with its diagnostics,
//! and retried only on request. An unusable cache is reported as a note, and builds continue without it.

mod event;
mod failure;
mod failure_store;
mod flight;
mod health;
mod lock;
mod pending;
mod produce;
mod registry;
mod request;
mod slots;
mod stop;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

pub use event::{Event, Source};
pub use failure::{FAILURE_CODES, Failure, FailureCode, has_passed};
pub use flight::{Listener, Outcome};
pub use health::CacheHealth;
pub use pending::{Pending, Wait};
pub use request::{Request, Versions};
use slots::SLOT;
pub use slots::build_slots;
pub use stop::stop_all;

use crate::build::{Artifact, BuildInput, BuildOptions, ToolEnvironment};
use crate::cache::{Cache, CacheKey};
use crate::environment::Environment;
use crate::fault::BuildFault;
use crate::kernel::Kernel;
use crate::parallel;
use crate::process::Cancel;
use crate::toolchain::{KnownBad, Tool, Toolchain};
use failure_store::Failures;
use flight::{Flight, Found, Table};
use stop::register;

/// Options of a compile service.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The cache. Without one, a kernel exists as long as something in this process uses it.
    pub cache: Option<Cache>,
    /// The toolchain, or the reason that there is none. Cached kernels need no toolchain.
    pub toolchain: Result<Arc<Toolchain>, Arc<Failure>>,
    /// Build options. `cancel` is ignored: each call passes its own.
    pub build: BuildOptions,
    /// Maximum number of concurrent compilers in this process. Default: as many as fit the machine ([`build_slots`]),
    /// which is also the limit of all processes that share a cache.
    pub jobs: Option<usize>,
    /// Retry kernels with a recorded failure.
    pub retry_known_bad: bool,
}

/// Supplies kernels. Clones share one service.
#[derive(Clone)]
pub struct CompileService {
    inner: Arc<Inner>,
}

struct Inner {
    options: ServiceOptions,
    versions: Versions,
    /// The environment at the time that keys were computed.
    environment: Environment,
    tools: ToolEnvironment,
    /// The versions in keys of kernels that this toolchain may not build.
    pinned: Versions,
    places: Option<Places>,
    table: Table,
    has_told_of_sweep: AtomicBool,
}

/// Folders shared between processes, inside the cache folder.
#[derive(Debug)]
struct Places {
    locks: PathBuf,
    failures: Failures,
}

/// A kernel in use.
#[derive(Debug)]
pub struct Built {
    artifact: Artifact,
    source: Source,
    kernel: OnceLock<Result<Kernel, Arc<Failure>>>,
}

impl Built {
    fn new(artifact: Artifact, source: Source) -> Built {
        Built { artifact, source, kernel: OnceLock::new() }
    }

    /// The library and its properties.
    pub fn artifact(&self) -> &Artifact {
        &self.artifact
    }

    /// The kernel's original source.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The loaded kernel. Normally it is loaded before [`CompileService::get`] returns.
    ///
    /// # Errors
    /// When the library cannot be loaded.
    pub fn kernel(&self) -> Result<&Kernel, Arc<Failure>> {
        let load = || Kernel::load(&self.artifact).map_err(|error| Arc::new(Failure::from(&error)));
        self.kernel.get_or_init(load).as_ref().map_err(Arc::clone)
    }
}

impl std::fmt::Debug for CompileService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompileService").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

impl CompileService {
    /// Creates a service. A cache whose folder does not support locks is used without them.
    pub fn new(options: ServiceOptions) -> CompileService {
        let environment = Environment::from_process();
        let tools = ToolEnvironment::new(&environment);
        let versions = match &options.toolchain {
            Ok(toolchain) => {
                Versions { host_compiler: tools.identity().to_owned(), ..Versions::of(toolchain) }
            }
            // Nothing is compiled, so this machine's host compiler is irrelevant.
            Err(_) => Versions::pinned(),
        };
        if let Some(cache) = &options.cache {
            // An error here recurs at the first build, which reports it.
            cache.sweep();
        }
        let places = options.cache.as_ref().and_then(|cache| {
            let locks = cache.folder().join("locks");
            DirBuilder::new().recursive(true).mode(0o700).create(&locks).ok()?;
            lock::sweep(&locks, SLOT);
            let failures = Failures::new(cache.folder().join(FAILURES)).ok()?;
            Some(Places { locks, failures })
        });
        let table = Table::new(places.is_none());
        CompileService {
            inner: Arc::new(Inner {
                options,
                versions,
                environment,
                tools,
                pinned: Versions::pinned(),
                places,
                table,
                has_told_of_sweep: AtomicBool::new(false),
            }),
        }
    }

    /// The service's options.
    pub fn options(&self) -> &ServiceOptions {
        &self.inner.options
    }

    /// Creates a request for this kernel as this service would build it. If its toolchain is known bad for the
    /// target, the request is for the pinned toolchain's kernel.
    pub fn request(&self, input: &BuildInput<'_>) -> Request {
        let is_refused = self.inner.known_bad_for(&[input.target, input.architecture]).is_some();
        let versions = if is_refused { &self.inner.pinned } else { &self.inner.versions };
        Request::new(input, versions, &self.inner.options.build)
    }

    /// Returns a loaded kernel or the reason that there is none. Calls `events` on this thread. A kernel live in this
    /// process is returned at once.
    ///
    /// # Errors
    /// When the kernel cannot be built, or `cancel` is cancelled.
    pub fn get(&self, request: &Request, cancel: &Cancel, events: &(dyn Fn(&Event) + Sync)) -> Outcome {
        if let Some(built) = self.inner.table.live(request.key()) {
            events(&Event::Hit { kernel: Arc::clone(request.kernel()), source: Source::Memory });
            return Ok(built);
        }
        let waiter = match self.enter(request, None) {
            Entered::Known(event, outcome) => {
                events(&event);
                return outcome;
            }
            Entered::Waiting(waiter) => waiter,
        };
        waiter.wait(cancel, events)
    }

    /// Builds and loads a kernel in the background. Events come on the building thread. If the outcome is already
    /// known, or no thread can be created, they come on this thread before the call returns. A panicking listener
    /// affects nobody else.
    pub fn start(&self, request: Request, events: Listener) -> Pending {
        match self.enter(&request, Some(Arc::clone(&events))) {
            Entered::Known(event, outcome) => {
                let _ = catch_unwind(AssertUnwindSafe(|| events(&event)));
                Pending::ready(request, outcome)
            }
            Entered::Waiting(waiter) => Pending::new(request, waiter),
        }
    }

    /// Returns true if the kernel is live in this process.
    pub fn is_live(&self, request: &Request) -> bool {
        self.inner.table.live(request.key()).is_some()
    }

    /// The file with the recorded failure and the compiler's full output, if it exists.
    pub fn record(&self, key: CacheKey) -> Option<PathBuf> {
        let cache = self.inner.options.cache.as_ref()?;
        let file = cache.folder().join(FAILURES).join(format!("{key}.json"));
        file.is_file().then_some(file)
    }

    fn enter(&self, request: &Request, listener: Option<Listener>) -> Entered {
        let forgives = self.inner.options.retry_known_bad;
        let (waiter, flight) =
            match self.inner.table.enter(request.key(), request.kernel(), forgives, listener) {
                Found::Here(outcome) => return Entered::Known(end(request, &outcome, None), outcome),
                Found::Flying(waiter) => return Entered::Waiting(waiter),
                Found::New(waiter, flight) => (waiter, flight),
            };
        let (inner, request) = (Arc::clone(&self.inner), request.clone());
        let copies = (Arc::clone(&inner), request.clone(), Arc::clone(&flight));
        register(&flight);
        let work = move || inner.fly(&request, &flight);
        if parallel::thread_of("kernel build").and_then(|thread| thread.spawn(work)).is_err() {
            // Build on this thread: a cached kernel needs no other, and a build without processes ends at once.
            let (inner, request, flight) = copies;
            inner.fly(&request, &flight);
        }
        Entered::Waiting(waiter)
    }
}

/// The folder of failure records, inside the cache.
const FAILURES: &str = "failures";

enum Entered {
    Known(Event, Outcome),
    Waiting(flight::Waiter),
}

/// The last event of a kernel. `seconds` is set if it was compiled now.
fn end(request: &Request, outcome: &Outcome, seconds: Option<f64>) -> Event {
    let kernel = Arc::clone(request.kernel());
    match (outcome, seconds) {
        (Ok(_), Some(seconds)) => Event::Finished { kernel, seconds },
        (Ok(_), None) => Event::Hit { kernel, source: Source::Memory },
        (Err(failure), _) => Event::Failed { kernel, failure: Arc::clone(failure) },
    }
}

impl Inner {
    /// The body of a build thread. Waiters are notified on every outcome.
    fn fly(&self, request: &Request, flight: &Arc<Flight>) {
        let outcome = guarded(request.kernel(), || {
            let built = Arc::new(self.produce(request, flight)?);
            // Load now, so that users need not wait. An error is stored in `built`.
            let _ = built.kernel();
            Ok(built)
        });
        let source = outcome.as_ref().ok().map(|built| built.source.clone());
        self.land(request, flight, outcome, source);
    }

    fn land(&self, request: &Request, flight: &Arc<Flight>, outcome: Outcome, source: Option<Source>) {
        flight.tell(match (&outcome, source) {
            (Ok(built), Some(Source::Compiler) | None) => {
                let seconds = built.artifact.resources().compile_time.as_secs_f64();
                end(request, &outcome, Some(seconds))
            }
            (Ok(_), Some(source)) => Event::Hit { kernel: Arc::clone(request.kernel()), source },
            (Err(_), _) => end(request, &outcome, None),
        });
        self.table.land(request.key(), flight, outcome);
    }

    /// The known-bad list entry that excludes the toolchain for these targets, if any.
    fn known_bad_for(&self, targets: &[&str]) -> Option<(Tool, String, &'static KnownBad)> {
        self.options.toolchain.as_ref().ok()?.known_bad(targets)
    }
}

/// Runs a build; turns a panic into a failure.
fn guarded(kernel: &str, work: impl FnOnce() -> Result<Arc<Built>, Failure>) -> Outcome {
    let panic = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => return outcome.map_err(Arc::new),
        Err(panic) => panic,
    };
    let words = panic.downcast_ref::<&str>().map(|words| (*words).to_owned());
    let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
    let words = words.unwrap_or_else(|| "no message".to_owned());
    let message = format!("bug: building {kernel} panicked: {words}");
    Err(Arc::new(Failure::new("internal_error", BuildFault::OurBug, message)))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn those_who_wait_for_a_build_that_panics_get_a_failure() {
        let table = Table::new(true);
        let kernel: Arc<str> = "kernel".into();
        let key = "7".repeat(64).parse().expect("a key");
        let Found::New(waiter, flight) = table.enter(key, &kernel, false, None) else { panic!("it is new") };
        let outcome = thread::scope(|scope| {
            scope.spawn(|| {
                // Panics without printing a message.
                let outcome = guarded(&kernel, || std::panic::resume_unwind(Box::new("out of luck")));
                table.land(key, &flight, outcome);
            });
            waiter.wait(&Cancel::new(), &|_| {})
        });
        let failure = outcome.expect_err("it panicked");
        assert_eq!(
            (failure.code, failure.fault, failure.lasting),
            ("internal_error", BuildFault::OurBug, false)
        );
        assert!(failure.message.contains("out of luck"), "{failure}");
        assert!(matches!(table.enter(key, &kernel, false, None), Found::New(..)), "it can be tried again");
    }
}
