//! Backends: options as text, and the log.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fourfold::codegen::dispatch::Tables;
use fourfold::executor::cache::{CacheOptions, check_tier};
use fourfold::executor::environment::Environment;
use fourfold::executor::read_text;
use fourfold::{Backend, CacheChoice, Claim, CompileOptions, Event, Options, chain};

use crate::abi::{self, BackendCreateArgs, LogFn, Str};
use crate::error::{ErrorHandle, guard};
use crate::handles::{destroy, give, handles, look};
use crate::memory::{array, borrow, read};

/// A backend, shared with the modules that it compiled.
#[derive(Debug)]
pub struct BackendHandle(pub(crate) Arc<Shared>);

handles! { BackendHandle = Backend "backend" }

/// The state of a backend.
#[derive(Debug)]
pub struct Shared {
    pub(crate) backend: Backend,
    pub(crate) compile: CompileOptions,
    pub(crate) log: Log,
}

/// The host's log function.
#[derive(Clone, Copy, Debug)]
pub struct Log {
    function: Option<LogFn>,
    user: *mut c_void,
}

// SAFETY: the header requires a function that may be called on any thread with this pointer.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

/// The levels of log lines.
const INFO: i32 = 0;
const WARNING: i32 = 1;

impl Log {
    /// Passes an event to the host.
    pub(crate) fn event(&self, event: &Event) {
        let level = match event {
            Event::Failed { .. } | Event::Refused { .. } => WARNING,
            _ => INFO,
        };
        if let Some(function) = self.function {
            let line = event.to_string();
            // SAFETY: the host vouches for its function; the line lives for the call.
            unsafe { function(self.user, level, Str::of(&line)) };
        }
    }
}

/// The options that the host may set, with their meaning in the header.
const KEYS: [&str; 13] = [
    "target",
    "device",
    "claim",
    "contract",
    "keep_weights",
    "dispatch",
    "emulate",
    "provision",
    "known_bad",
    "cache",
    "tiers",
    "jobs",
    "build",
];

/// The options of planning and of compilation.
#[derive(Debug, Default)]
struct Choices {
    options: Options,
    compile: CompileOptions,
    /// The cache folder, or `none`.
    cache: Option<String>,
    /// The tiers, separated by commas.
    tiers: Option<String>,
}

impl Choices {
    fn set(&mut self, key: &str, value: &str) -> Result<(), ErrorHandle> {
        let wrong = |expected: &str| {
            ErrorHandle::argument(format!("the option `{key}` is `{value}`; expected {expected}"))
        };
        let switch = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(wrong("`true` or `false`")),
        };
        match key {
            "target" => self.options.target = Some(value.to_owned()),
            "device" => {
                self.options.device = value.parse().map_err(|_| wrong("the number of a GPU or `none`"))?
            }
            "claim" => {
                self.options.claim = Claim::from_name(value)
                    .ok_or_else(|| wrong("`everything`, `device` or `kernels_only`"))?;
            }
            "contract" => self.options.contract = switch()?,
            "keep_weights" => self.options.keep_weights = switch()?,
            "dispatch" => self.options.dispatch = Some(Arc::new(tables(value)?)),
            "emulate" => self.options.emulate = switch()?,
            "provision" => self.compile.toolchain.provision = switch()?,
            "known_bad" => self.compile.toolchain.allow_known_bad = switch()?,
            "cache" => self.cache = Some(value.to_owned()),
            "tiers" => self.tiers = Some(value.to_owned()),
            "jobs" => match value.parse() {
                Ok(jobs) if jobs > 0 => self.compile.jobs = Some(jobs),
                _ => return Err(wrong("a number above 0")),
            },
            "build" => {
                self.compile.build_anyway = match value {
                    "always" => true,
                    "needed" => false,
                    _ => return Err(wrong("`always` or `needed`")),
                }
            }
            _ => {
                let message = format!("no option is named `{key}`; the options are {}", KEYS.join(", "));
                return Err(ErrorHandle::argument(message));
            }
        }
        Ok(())
    }

    /// The cache that the options select.
    fn cache(&self) -> Result<CacheChoice, ErrorHandle> {
        match (self.cache.as_deref(), self.tiers.as_deref()) {
            (None, None) => return Ok(CacheChoice::Usual),
            (Some("none"), None) => return Ok(CacheChoice::None),
            (Some("none"), Some(_)) => {
                return Err(ErrorHandle::argument(
                    "kernels of `tiers` are kept in the cache, but `cache` is `none`",
                ));
            }
            _ => {}
        }
        let mut cache = CacheOptions::from_environment(&Environment::from_process())
            .map_err(|error| ErrorHandle::argument(format!("{}; {}", chain(&error), error.remedy())))?;
        if let Some(folder) = &self.cache {
            cache.folder = PathBuf::from(folder);
        }
        if let Some(tiers) = &self.tiers {
            cache.tiers =
                tiers.split(',').map(str::trim).filter(|tier| !tier.is_empty()).map(str::to_owned).collect();
            cache
                .tiers
                .iter()
                .try_for_each(|tier| check_tier(tier))
                .map_err(|error| ErrorHandle::argument(format!("{}; {}", chain(&error), error.remedy())))?;
        }
        Ok(CacheChoice::At(cache))
    }
}

/// Reads dispatch tables from a file.
fn tables(file: &str) -> Result<Tables, ErrorHandle> {
    let text = read_text(Path::new(file))
        .map_err(|error| ErrorHandle::argument(format!("the dispatch tables: {}", chain(&error))))?;
    Tables::parse(&text)
        .map_err(|error| ErrorHandle::argument(format!("the dispatch tables {file}: {}", chain(&error))))
}

/// `fourfold_api.backend_create`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn backend_create(args: *mut BackendCreateArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let entries = unsafe { array(known.options, known.option_count, "options")? };
        let mut choices = Choices::default();
        for entry in entries {
            // SAFETY: as above.
            let (key, value) =
                unsafe { (borrow(entry.key, "the key of an option")?, borrow(entry.value, "an option")?) };
            choices.set(key, value)?;
        }
        choices.compile.cache = choices.cache()?;
        let backend = Backend::new(&choices.options)?;
        let log = Log { function: known.log, user: known.log_user };
        let shared = Shared { backend, compile: choices.compile, log };
        // SAFETY: `read` has checked that the struct has this field.
        unsafe { (*args).backend = give(BackendHandle(Arc::new(shared))) };
        Ok(())
    })
}

/// `fourfold_api.backend_destroy`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn backend_destroy(backend: *mut abi::Backend) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<BackendHandle>(backend) }
}

/// `fourfold_api.backend_target`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn backend_target(backend: *const abi::Backend) -> Str {
    // SAFETY: the caller vouches for it.
    unsafe { look::<BackendHandle>(backend) }
        .map_or(Str::of(""), |backend| Str::of(&backend.0.backend.capabilities().target))
}
