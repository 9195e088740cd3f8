//! Compilation options: the toolchain, the cache and the compile service that they select.

use std::sync::Arc;

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::cache::{Cache, CacheOptions};
use fourfold_executor::environment::Environment;
use fourfold_executor::service::{CompileService, Event, Failure, ServiceOptions};
use fourfold_executor::toolchain::{
    PINNED, Toolchain, ToolchainError, ToolchainOptions, locate_with_progress,
};
use fourfold_executor::{BuildOptions, Cancel, chain};

/// Options for building and caching kernels.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CompileOptions {
    /// The toolchain to use, or the places to look for one.
    pub toolchain: ToolchainOptions,
    /// Options of each compiler invocation.
    pub build: BuildOptions,
    /// Build kernels even if this machine cannot run them, to inspect their resources.
    pub build_anyway: bool,
    /// The cache for built kernels.
    pub cache: CacheChoice,
    /// Retry kernels whose build failure is recorded in the cache.
    pub retry: bool,
    /// The number of compilers that may run at once. Default: as many as the machine's memory and cores allow.
    pub jobs: Option<usize>,
    /// Build kernels in debug mode, and run in debug mode
    /// ([`RunOptions::debug`](fourfold_executor::RunOptions::debug)).
    pub debug: bool,
}

impl CompileOptions {
    /// Sets [`CompileOptions::toolchain`].
    ///
    /// ```
    /// use fourfold::{CompileOptions, executor::toolchain::ToolchainOptions};
    ///
    /// let options = CompileOptions::default().toolchain(ToolchainOptions { provision: true, ..Default::default() });
    /// assert!(options.toolchain.provision);
    /// ```
    #[must_use]
    pub fn toolchain(mut self, toolchain: ToolchainOptions) -> CompileOptions {
        self.toolchain = toolchain;
        self
    }

    /// Sets [`CompileOptions::build`].
    ///
    /// ```
    /// use fourfold::{CompileOptions, executor::BuildOptions};
    /// use std::time::Duration;
    ///
    /// let build = BuildOptions { time_limit: Duration::from_secs(60), ..Default::default() };
    /// assert_eq!(CompileOptions::default().build(build).build.time_limit.as_secs(), 60);
    /// ```
    #[must_use]
    pub fn build(mut self, build: BuildOptions) -> CompileOptions {
        self.build = build;
        self
    }

    /// Sets [`CompileOptions::build_anyway`].
    ///
    /// ```
    /// # use fourfold::CompileOptions;
    /// assert!(CompileOptions::default().build_anyway(true).build_anyway);
    /// ```
    #[must_use]
    pub fn build_anyway(mut self, build_anyway: bool) -> CompileOptions {
        self.build_anyway = build_anyway;
        self
    }

    /// Sets [`CompileOptions::cache`].
    ///
    /// ```
    /// # use fourfold::{CacheChoice, CompileOptions};
    /// assert_eq!(CompileOptions::default().cache(CacheChoice::None).cache, CacheChoice::None);
    /// ```
    #[must_use]
    pub fn cache(mut self, cache: CacheChoice) -> CompileOptions {
        self.cache = cache;
        self
    }

    /// Sets [`CompileOptions::retry`].
    ///
    /// ```
    /// # use fourfold::CompileOptions;
    /// assert!(CompileOptions::default().retry(true).retry);
    /// ```
    #[must_use]
    pub fn retry(mut self, retry: bool) -> CompileOptions {
        self.retry = retry;
        self
    }

    /// Sets [`CompileOptions::jobs`].
    ///
    /// ```
    /// # use fourfold::CompileOptions;
    /// assert_eq!(CompileOptions::default().jobs(2).jobs, Some(2));
    /// ```
    #[must_use]
    pub fn jobs(mut self, jobs: impl Into<Option<usize>>) -> CompileOptions {
        self.jobs = jobs.into();
        self
    }

    /// Sets [`CompileOptions::debug`].
    ///
    /// ```
    /// # use fourfold::CompileOptions;
    /// assert!(CompileOptions::default().debug(true).debug);
    /// ```
    #[must_use]
    pub fn debug(mut self, debug: bool) -> CompileOptions {
        self.debug = debug;
        self
    }
}

/// Selects the cache for built kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheChoice {
    /// The user's cache folder, with the size and tiers that the environment sets.
    #[default]
    Usual,
    /// A cache with these options.
    At(CacheOptions),
    /// No cache. A kernel exists as long as something in this process uses it.
    None,
}

/// A compile service, and the CUTLASS version that its kernels are configured for.
#[derive(Clone, Debug)]
pub(crate) struct Supply {
    pub(crate) service: CompileService,
    pub(crate) cutlass: CutlassVersion,
    /// Cancels requests to the service.
    pub(crate) cancel: Cancel,
}

impl CompileOptions {
    /// The service for kernels of these targets. Never fails: without a toolchain the service answers from the cache,
    /// and without a cache it builds every kernel. Problems are reported to `progress`.
    pub(crate) fn supply(&self, targets: &[&str], progress: &(dyn Fn(&Event) + Sync)) -> Supply {
        let note = |text: String| progress(&Event::Note(text));
        let found = toolchain(&self.toolchain_for(targets), &mut |line| note(line.to_owned()));
        let cutlass = found.as_ref().map_or_else(|_| pinned_cutlass(), cutlass_version);
        let cache = self.cache.open(self.toolchain.allow_known_bad).unwrap_or_else(|reason| {
            note(reason);
            None
        });
        let service = CompileService::shared(ServiceOptions {
            cache,
            toolchain: found.map(Arc::new).map_err(|error| Arc::new(Failure::from(&error))),
            build: BuildOptions { debug: self.debug || self.build.debug, ..self.build.clone() },
            jobs: self.jobs,
            retry_known_bad: self.retry,
        });
        Supply { service, cutlass, cancel: self.build.cancel.clone().unwrap_or_default() }
    }

    /// The toolchain options, extended to require support for these targets.
    ///
    /// ```
    /// # use fourfold::CompileOptions;
    /// assert_eq!(CompileOptions::default().toolchain_for(&["sm_90a"]).targets, ["sm_90a"]);
    /// ```
    pub fn toolchain_for(&self, targets: &[&str]) -> ToolchainOptions {
        let mut all = self.toolchain.targets.clone();
        all.extend(targets.iter().map(|target| (*target).to_owned()));
        ToolchainOptions { targets: all, ..self.toolchain.clone() }
    }
}

impl CacheChoice {
    /// Opens the cache, unless [`CacheChoice::None`]; or says why it cannot be used.
    fn open(&self, allow_known_bad: bool) -> Result<Option<Cache>, String> {
        let unusable = |error: &dyn std::error::Error| format!("kernels are not cached: {}", chain(error));
        let mut options = match self {
            CacheChoice::None => return Ok(None),
            CacheChoice::At(options) => options.clone(),
            CacheChoice::Usual => CacheOptions::from_environment(&Environment::from_process())
                .map_err(|error| format!("{}; {}", unusable(&error), error.remedy()))?,
        };
        options.allow_known_bad |= allow_known_bad;
        let cache =
            Cache::open(&options).map_err(|error| format!("{}; {}", unusable(&error), error.remedy()))?;
        Ok(Some(cache))
    }
}

/// The toolchain's CUTLASS version, which configurations depend on; the pinned version if it has no CUTLASS.
pub fn cutlass_version(toolchain: &Toolchain) -> CutlassVersion {
    let own = toolchain.cutlass.as_ref().and_then(|cutlass| CutlassVersion::parse(&cutlass.version));
    own.unwrap_or_else(pinned_cutlass)
}

/// The pinned CUTLASS version, which cached kernels are configured for when no toolchain is found.
pub(crate) fn pinned_cutlass() -> CutlassVersion {
    CutlassVersion::parse(PINNED.cutlass).unwrap_or(CutlassVersion::PINNED)
}

/// Finds a toolchain, or installs the pinned one if `options` allow it. Reports slow steps to `progress`.
///
/// # Errors
/// When no toolchain is found and none can be installed.
pub fn toolchain(
    options: &ToolchainOptions,
    progress: &mut dyn FnMut(&str),
) -> Result<Toolchain, ToolchainError> {
    locate_with_progress(options, &Environment::from_process(), progress)
}
