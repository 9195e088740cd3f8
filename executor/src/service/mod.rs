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
mod registry;
mod request;
mod slots;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

pub use event::{Event, Source};
pub use failure::{FAILURE_CODES, Failure, FailureCode, has_passed};
pub use flight::{Listener, Outcome};
pub use health::CacheHealth;
pub use pending::{Pending, Wait};
pub use request::{Request, Versions};
pub use slots::build_slots;
use slots::{Permit, SLOT};

use crate::build::{
    Artifact, BuildError, BuildInput, BuildOptions, BuildTools, BuiltWith, ToolEnvironment, build,
};
use crate::cache::{Cache, CacheKey, Origin, Refusal};
use crate::environment::Environment;
use crate::fault::BuildFault;
use crate::kernel::Kernel;
use crate::parallel;
use crate::process::Cancel;
use crate::temporary::{begin_end, remove_temporary};
use crate::toolchain::{KnownBad, NO_CUTLASS, Tool, Toolchain, Version, oldest_nvcc_for};
use crate::transient::Transient;
use failure_store::Failures;
use flight::{Flight, Found, Table};
use lock::{FileLock, Waited};

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

    fn produce(&self, request: &Request, flight: &Flight) -> Result<Built, Failure> {
        let begun = failure_store::now();
        let mut refused = false;
        if let Some(built) = self.look(request, flight, &mut refused) {
            return Ok(built);
        }
        let toolchain = self.options.toolchain.as_ref().map_err(|failure| Failure::clone(failure))?;
        self.check_toolchain(request, toolchain)?;
        let launcher = self.options.build.launcher.as_deref();
        let stamp = failure_store::stamp(toolchain, launcher, &self.environment, &self.tools);
        let options = failure_store::options_of(&self.options.build);
        if let Some(failure) = self.remembered_failure(request, &stamp) {
            return Err(failure);
        }
        let cutlass = request.uses_cutlass().then(|| toolchain.cutlass_state());
        let waiting =
            |owner: String| flight.tell(Event::Waiting { kernel: Arc::clone(request.kernel()), owner });
        let cancelled = || Failure::cancelled(request.kernel());
        // Before the key's lock: waiting for a permit must not keep other processes from the kernel.
        let jobs = self.options.jobs.unwrap_or_else(build_slots);
        let mut busy = || waiting("a free build slot".to_owned());
        let Some(permit) = Permit::wait(jobs, &flight.cancel, &mut busy) else { return Err(cancelled()) };
        let mut held = None;
        if let Some(places) = &self.places {
            let path = places.locks.join(request.key().to_string());
            match FileLock::acquire(&path, &flight.cancel, &mut |owner| waiting(owner)) {
                Ok(Waited::Cancelled) => return Err(cancelled()),
                Ok(Waited::Acquired(lock, has_waited)) => {
                    held = Some(lock);
                    // Another process may have built it between the first lookup and the lock. A copy refused just
                    // now would only come from its tier again.
                    if (has_waited || !refused)
                        && let Some(built) = self.look(request, flight, &mut refused)
                    {
                        return Ok(built);
                    }
                    if has_waited
                        && let Some(failure) = places.failures.recent(request.key(), begun, &stamp, &options)
                    {
                        return Err(failure);
                    }
                    if let Some(failure) = self.remembered_failure(request, &stamp) {
                        return Err(failure);
                    }
                }
                Err(error) => flight.tell(unlocked(request, &error)),
            }
        }
        let locks = self.places.as_ref().filter(|_| held.is_some()).map(|places| places.locks.as_path());
        let slot = match locks.map(|locks| slots::acquire(locks, &flight.cancel, &mut busy)) {
            None => None,
            Some(Ok(None)) => return Err(cancelled()),
            Some(Ok(slot)) => slot,
            Some(Err(error)) => {
                flight.tell(unlocked(request, &error));
                None
            }
        };
        // Without a lock the cache folder is read-only.
        let cache = self.options.cache.as_ref().filter(|_| held.is_some());
        let temporary = cache.map(|cache| {
            if let Err(error) = cache.try_sweep()
                && !self.has_told_of_sweep.swap(true, Ordering::Relaxed)
            {
                let trouble = format!("cannot remove the leftovers of killed builds: {error}");
                flight.tell(Event::Note(trouble));
            }
            cache.temporary()
        });
        let result = self.build(request, toolchain, flight, temporary);
        // If the tools changed meanwhile, the key does not describe the kernel.
        let other_headers = cutlass.as_ref().is_some_and(|cutlass| {
            cutlass.identity != self.versions.cutlass || toolchain.cutlass_state() != *cutlass
        });
        let is_mislabelled =
            other_headers || ToolEnvironment::new(&self.environment).identity() != self.tools.identity();
        let artifact = match result {
            Ok(artifact) => {
                let cutlass = cutlass.map_or_else(|| NO_CUTLASS.to_owned(), |cutlass| cutlass.identity);
                artifact.built_with(BuiltWith { nvcc: toolchain.nvcc_version.clone(), cutlass })
            }
            Err(error) => {
                let mut failure = Failure::from(&error);
                // The output may come from the launcher, which is not evidence about the compiler.
                failure.lasting &= self.options.build.launcher.is_none();
                if is_shared(&error) && !is_mislabelled {
                    self.remember(request, &failure, (&stamp, &options), flight);
                }
                return Err(failure);
            }
        };
        // Let the next compiler start while this kernel is stored.
        drop((slot, permit));
        if is_mislabelled {
            flight.tell(changed_tools(request, toolchain, other_headers));
            return Ok(Built::new(artifact, Source::Compiler));
        }
        Ok(self.keep(request, flight, artifact, held, refused))
    }

    /// Stores a new kernel in the cache, and releases its lock. `refused` means that the cache had a copy that could not be
    /// loaded.
    fn keep(
        &self,
        request: &Request,
        flight: &Flight,
        artifact: Artifact,
        held: Option<FileLock>,
        refused: bool,
    ) -> Built {
        if let Some(places) = &self.places {
            places.failures.forget(request.key());
        }
        let kept = match &self.options.cache {
            None => artifact.clone(),
            Some(cache) => cache.insert(&request.key(), &artifact).unwrap_or_else(|error| {
                flight.tell(Event::Note(format!("{} is not cached: {error}", request.kernel())));
                artifact.clone()
            }),
        };
        drop(held);
        let built = Built::new(kept, Source::Compiler);
        // A read-only cache still has the refused copy, and another process may have restored it.
        if refused && built.kernel().is_err() {
            return Built::new(artifact, Source::Compiler);
        }
        built
    }

    /// Looks up and loads the cached kernel. One that cannot be loaded is removed from the cache and sets `refused`.
    /// Keys do not include the C library, and a tier's builder may have had a newer one.
    fn look(&self, request: &Request, flight: &Flight, refused: &mut bool) -> Option<Built> {
        let cache = self.options.cache.as_ref()?;
        let lookup = cache.get(&request.key());
        let tell = |note: &Refusal| {
            let kernel = Arc::clone(request.kernel());
            flight.tell(Event::Refused { kernel, reason: note.to_string() });
        };
        lookup.notes.iter().for_each(tell);
        let (source, tier) = match lookup.origin {
            Origin::Local => (Source::Cache, None),
            Origin::Tier(tier) => (Source::Tier(tier.clone()), Some(tier)),
        };
        let built = Built::new(lookup.artifact?, source);
        let failure = match built.kernel() {
            Ok(_) => return Some(built),
            Err(failure) => failure,
        };
        *refused = true;
        // Release it before removal.
        drop(built);
        if Transient::is_code(failure.code) {
            let (kernel, reason) =
                (Arc::clone(request.kernel()), format!("{failure}; its entry stays in the cache"));
            flight.tell(Event::Refused { kernel, reason });
            return None;
        }
        tell(&cache.refuse(&request.key(), tier.as_deref(), failure.message.clone()));
        None
    }

    /// The known-bad list entry that excludes the toolchain for these targets, if any.
    fn known_bad_for(&self, targets: &[&str]) -> Option<(Tool, String, &'static KnownBad)> {
        self.options.toolchain.as_ref().ok()?.known_bad(targets)
    }

    /// Checks that the toolchain may build the kernel, and has the required parts.
    fn check_toolchain(&self, request: &Request, toolchain: &Toolchain) -> Result<(), Failure> {
        if let Some((tool, version, bad)) = self.known_bad_for(&request.targets()) {
            let message = format!("{} {version} is not used: it is {bad}", tool.name());
            return Err(Failure::new("toolchain_known_bad", BuildFault::Toolchain, message));
        }
        if request.uses_cutlass() && toolchain.cutlass.is_none() {
            let message = format!("no CUTLASS was found, which kernels for {} need", request.target());
            return Err(Failure::new("toolchain_missing", BuildFault::Toolchain, message));
        }
        Ok(())
    }

    fn remembered_failure(&self, request: &Request, stamp: &str) -> Option<Failure> {
        if self.options.retry_known_bad {
            return None;
        }
        self.places.as_ref()?.failures.known(request.key(), stamp)
    }

    /// Skips cancellations, which do not concern other requests.
    fn remember(
        &self,
        request: &Request,
        failure: &Failure,
        (stamp, options): (&str, &str),
        flight: &Flight,
    ) {
        let Some(places) = &self.places else { return };
        if failure.fault == BuildFault::Caller {
            return;
        }
        if let Err(error) = places.failures.record(request.key(), failure, stamp, options) {
            let kernel = request.kernel();
            flight.tell(Event::Note(format!("the failure of {kernel} is not recorded: {error}")));
        }
    }

    /// Builds a kernel. A doubtful failure ([`BuildError::is_doubtful`]) is retried once in a fresh folder, since its
    /// cause may have been transient. With a launcher no failure lasts, so none is retried.
    fn build(
        &self,
        request: &Request,
        toolchain: &Toolchain,
        flight: &Flight,
        temporary: Option<PathBuf>,
    ) -> Result<Artifact, BuildError> {
        let input = request.input();
        let kernel = Arc::clone(request.kernel());
        check_target(toolchain, input.architecture)?;
        flight.tell(Event::Started { kernel: Arc::clone(&kernel), target: Arc::clone(request.target()) });
        let mut include = if request.uses_cutlass() { toolchain.cutlass_include() } else { Vec::new() };
        include.extend(toolchain.include.iter().cloned());
        let tools = BuildTools {
            nvcc: &toolchain.nvcc,
            include,
            libraries: toolchain.libraries.clone(),
            cuobjdump: toolchain.cuobjdump.as_deref(),
            environment: self.tools.clone(),
        };
        let mut options = BuildOptions { cancel: Some(flight.cancel.clone()), ..self.options.build.clone() };
        options.temp_dir = options.temp_dir.or(temporary);
        match build(&input, &tools, &options) {
            Err(error) if error.is_doubtful() && options.launcher.is_none() => {
                flight.tell(Event::Note(format!("building {kernel} once more in a fresh folder: {error}")));
                build(&input, &tools, &options)
            }
            result => result,
        }
    }
}

/// Returns true if other processes would fail the same way with the same options. A program that this process could
/// not start may work elsewhere.
fn is_shared(error: &BuildError) -> bool {
    !matches!(error, BuildError::Spawn { .. } | BuildError::ToolMissing { .. })
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

/// The note that a kernel is not cached, because its key no longer describes the tools.
fn changed_tools(request: &Request, toolchain: &Toolchain, has_other_headers: bool) -> Event {
    let what = if has_other_headers {
        let place = toolchain.cutlass.as_ref().map(|cutlass| cutlass.path.display().to_string());
        format!("headers in `{}`", place.unwrap_or_default())
    } else {
        "host compiler".to_owned()
    };
    let kernel = request.kernel();
    Event::Note(format!(
        "{kernel} is not cached: the {what} changed after this process checked it; restart the process to cache it"
    ))
}

fn unlocked(request: &Request, error: &std::io::Error) -> Event {
    Event::Note(format!(
        "building {} without a lock, so other processes may build it too: {error}",
        request.kernel()
    ))
}

/// Checks that the compiler is new enough, as far as known. The compiler itself rejects other targets.
fn check_target(toolchain: &Toolchain, architecture: &str) -> Result<(), BuildError> {
    let Some(oldest) = oldest_nvcc_for(architecture) else { return Ok(()) };
    match Version::parse(&toolchain.nvcc_version) {
        Some(found) if found < oldest => Err(BuildError::Unsupported {
            target: format!("sm_{architecture}"),
            found: found.to_string(),
            needed: Some(oldest.to_string()),
        }),
        _ => Ok(()),
    }
}

/// All builds of this process, of all services.
static FLIGHTS: Mutex<Flights> = Mutex::new(Flights { all: Vec::new(), are_over: false });

struct Flights {
    all: Vec<Weak<Flight>>,
    are_over: bool,
}

fn register(flight: &Arc<Flight>) {
    let mut flights = FLIGHTS.lock().unwrap_or_else(PoisonError::into_inner);
    flights.all.retain(|flight| flight.upgrade().is_some_and(|flight| !flight.has_ended()));
    flights.all.push(Arc::downgrade(flight));
    if flights.are_over {
        flight.cancel.cancel();
    }
}

/// Stops all builds of this process, current and future, before it exits. Kills their compilers and removes temporary
/// folders. Waits at most `limit`; returns true if all builds have ended.
pub fn stop_all(limit: Duration) -> bool {
    begin_end();
    let all_ended = stop_flights(limit);
    remove_temporary();
    all_ended
}

fn stop_flights(limit: Duration) -> bool {
    let deadline = Instant::now().checked_add(limit);
    let flights: Vec<Arc<Flight>> = {
        let mut flights = FLIGHTS.lock().unwrap_or_else(PoisonError::into_inner);
        flights.are_over = true;
        flights.all.iter().filter_map(Weak::upgrade).collect()
    };
    flights.iter().for_each(|flight| flight.cancel.cancel());
    loop {
        if flights.iter().all(|flight| flight.has_ended()) {
            return true;
        }
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
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
