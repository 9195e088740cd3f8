//! Where the kernels of programs come from: the toolchain, the cache and the service that options mean.

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
    /// The toolchain to use.
    pub toolchain: ToolchainOptions,
    /// How to build with it.
    pub build: BuildOptions,
    /// Build kernels that cannot run here too, to see what they cost.
    pub build_anyway: bool,
    /// Where built kernels are kept.
    pub cache: CacheChoice,
    /// Try kernels again of which is known that they cannot be built.
    pub retry: bool,
    /// How many compilers may run at once; as many as the machine has room for where none is given.
    pub jobs: Option<usize>,
    /// Look for a fault: kernels are built in debug mode, and every run is in it
    /// ([`RunOptions::debug`](fourfold_executor::RunOptions::debug)).
    pub debug: bool,
}

impl CompileOptions {
    /// Uses this toolchain.
    #[must_use]
    pub fn toolchain(mut self, toolchain: ToolchainOptions) -> CompileOptions {
        self.toolchain = toolchain;
        self
    }

    /// Builds with these options.
    #[must_use]
    pub fn build(mut self, build: BuildOptions) -> CompileOptions {
        self.build = build;
        self
    }

    /// Builds kernels that cannot run here, too.
    #[must_use]
    pub fn build_anyway(mut self, build_anyway: bool) -> CompileOptions {
        self.build_anyway = build_anyway;
        self
    }

    /// Keeps built kernels in this cache.
    #[must_use]
    pub fn cache(mut self, cache: CacheChoice) -> CompileOptions {
        self.cache = cache;
        self
    }

    /// Tries kernels again that are known not to build.
    #[must_use]
    pub fn retry(mut self, retry: bool) -> CompileOptions {
        self.retry = retry;
        self
    }

    /// Runs at most this many compilers at once.
    #[must_use]
    pub fn jobs(mut self, jobs: impl Into<Option<usize>>) -> CompileOptions {
        self.jobs = jobs.into();
        self
    }

    /// Builds and runs in debug mode.
    #[must_use]
    pub fn debug(mut self, debug: bool) -> CompileOptions {
        self.debug = debug;
        self
    }
}

/// Where built kernels are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CacheChoice {
    /// In the user's cache folder, with the size and the tiers that the environment asks for.
    #[default]
    Usual,
    /// Here.
    At(CacheOptions),
    /// Nowhere: each kernel lives as long as somebody uses it.
    None,
}

/// A service, and what the kernels that it builds are configured for.
#[derive(Clone, Debug)]
pub(crate) struct Supply {
    pub(crate) service: CompileService,
    pub(crate) cutlass: CutlassVersion,
    /// Ends what is asked of the service.
    pub(crate) cancel: Cancel,
}

impl CompileOptions {
    /// The service that these options mean, for kernels of these targets. Nothing here fails: without a toolchain it has
    /// what the cache has, and without a cache it builds; `progress` is told.
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

    /// The toolchain to look for where kernels of these targets are to be built.
    pub fn toolchain_for(&self, targets: &[&str]) -> ToolchainOptions {
        let mut all = self.toolchain.targets.clone();
        all.extend(targets.iter().map(|target| (*target).to_owned()));
        ToolchainOptions { targets: all, ..self.toolchain.clone() }
    }
}

impl CacheChoice {
    /// The cache, if it is not to be without; or in words why it cannot be used.
    fn open(&self, allow_known_bad: bool) -> Result<Option<Cache>, String> {
        let unusable = |error: &dyn std::error::Error| format!("kernels are not kept: {}", chain(error));
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

/// The version of CUTLASS that a toolchain has, as configurations are chosen by it; the pinned one where it has none.
pub fn cutlass_version(toolchain: &Toolchain) -> CutlassVersion {
    let own = toolchain.cutlass.as_ref().and_then(|cutlass| CutlassVersion::parse(&cutlass.version));
    own.unwrap_or_else(pinned_cutlass)
}

/// The version of the pinned CUTLASS: without a toolchain the cache has kernels that were configured for it.
pub(crate) fn pinned_cutlass() -> CutlassVersion {
    CutlassVersion::parse(PINNED.cutlass).unwrap_or(CutlassVersion::PINNED)
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
