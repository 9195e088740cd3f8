//! The building thread: looks a kernel up, builds it, and keeps it or the failure.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::flight::Flight;
use super::lock::{FileLock, Waited};
use super::slots::{self, Permit, build_slots};
use super::{Built, Event, Failure, Inner, Request, Source, failure_store};
use crate::build::{Artifact, BuildError, BuildOptions, BuildTools, BuiltWith, ToolEnvironment, build};
use crate::cache::{Origin, Refusal};
use crate::fault::BuildFault;
use crate::toolchain::{NO_CUTLASS, Toolchain, Version, oldest_nvcc_for};
use crate::transient::Transient;

impl Inner {
    /// Returns the kernel from the cache, or builds it. Waits for a build slot, and for the lock of its key.
    pub(super) fn produce(&self, request: &Request, flight: &Flight) -> Result<Built, Failure> {
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
