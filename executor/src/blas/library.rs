//! Opening the library: presence, version, and names of errors.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use super::error::BlasError;
use super::functions::{Functions, Status};
use super::places::{named, places};
use super::version::BlasVersion;
use crate::environment::Environment;

/// The loaded library. It is never unloaded, since it registers code with the device.
#[derive(Debug)]
pub(super) struct Library {
    functions: Functions,
    path: PathBuf,
    version: BlasVersion,
}

impl Library {
    /// Opens the library that the environment names, or else the first usable one.
    pub(super) fn find(environment: &Environment) -> Result<Library, BlasError> {
        if let Some(path) = named(environment)? {
            return match Library::open(&path) {
                Ok(library) => library,
                Err(problem) => {
                    Err(BlasError::Named { path, problem: format!("which cannot be loaded: {problem}") })
                }
            };
        }
        let mut tried = Vec::new();
        for place in places(environment) {
            match Library::open(&place) {
                Ok(Ok(library)) => return Ok(library),
                Ok(Err(unusable)) => tried.push(unusable.to_string()),
                // A name without a folder is looked up by the system, which often has no such library.
                Err(_) if place.parent() == Some(Path::new("")) => {}
                Err(problem) => tried.push(format!("cannot load `{}`: {problem}", place.display())),
            }
        }
        Err(BlasError::Missing { tried })
    }

    /// Opens one library. The outer error is the text of the loader.
    fn open(path: &Path) -> Result<Result<Library, BlasError>, String> {
        // SAFETY: the initializers of cuBLASLt have no conditions. A file of that name is trusted, as the driver is.
        let library =
            unsafe { libloading::Library::new(path) }.map_err(|error| crate::causes::chain(&error))?;
        // SAFETY: the library is cuBLASLt by its name, and it stays loaded.
        let functions = match unsafe { Functions::of(&library) } {
            Ok(functions) => functions,
            Err(function) => return Ok(Err(BlasError::Function { path: path.to_owned(), function })),
        };
        mem::forget(library);
        let path = loaded_path(functions.version as *const c_void).unwrap_or_else(|| path.to_owned());
        // SAFETY: the function has no conditions.
        let version = BlasVersion::of(unsafe { (functions.version)() });
        if !version.is_supported() {
            return Ok(Err(BlasError::Version { path, found: version }));
        }
        Ok(Ok(Library { functions, path, version }))
    }

    pub(super) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn version(&self) -> BlasVersion {
        self.version
    }

    /// Converts a call's result.
    pub(super) fn check(&self, call: &'static str, status: Status) -> Result<(), BlasError> {
        match status {
            0 => Ok(()),
            code => Err(BlasError::Call { call, code, name: self.status_name(code) }),
        }
    }

    /// The name of a status.
    pub(super) fn status_name(&self, status: Status) -> String {
        // SAFETY: the function takes any status, and returns a static string or null.
        let name = unsafe { (self.functions.status_name)(status) };
        if name.is_null() {
            return "unknown".to_owned();
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
    }
}

/// A `Dl_info`.
#[repr(C)]
struct ObjectInfo {
    path: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

/// The file that holds a function. The loader resolves names without a folder.
fn loaded_path(function: *const c_void) -> Option<PathBuf> {
    unsafe extern "C" {
        fn dladdr(address: *const c_void, info: *mut ObjectInfo) -> c_int;
    }
    let mut info = ObjectInfo {
        path: ptr::null(),
        base: ptr::null_mut(),
        symbol: ptr::null(),
        address: ptr::null_mut(),
    };
    // SAFETY: the function takes any address, and `info` is live.
    if unsafe { dladdr(function, &mut info) } == 0 || info.path.is_null() {
        return None;
    }
    // SAFETY: it is a NUL-terminated string that lives as long as the library, which is never unloaded.
    let path = unsafe { CStr::from_ptr(info.path) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path.to_bytes())))
}
