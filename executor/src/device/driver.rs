//! The driver: presence, version, and error texts.
//!
//! `cudarc` resolves a function at its first call, and panics if there is no driver or the driver lacks the function.
//! So the library is first opened here and queried for its version. From [`NEEDED_DRIVER`] on, it has every function
//! that we call.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use libloading::Library;

use super::{DeviceError, NEEDED_DRIVER};

/// A usable driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Driver {
    /// The version, in the encoding of `cuDriverGetVersion`.
    pub(super) version: u32,
    /// True if it is initialized. Otherwise it found no device, and every call would fail.
    pub(super) has_devices: bool,
}

/// Loads and initializes this machine's driver. Must precede every other driver call.
pub(super) fn driver() -> Result<Driver, DeviceError> {
    static READY: OnceLock<Driver> = OnceLock::new();
    if let Some(ready) = READY.get() {
        return Ok(*ready);
    }
    // The names that cudarc tries, in the same order, so that both load the same library.
    let driver = probe(cudarc::get_lib_name_candidates("cuda"))?;
    Ok(*READY.get_or_init(|| driver))
}

/// Queries the first of these libraries that can be opened.
pub(super) fn probe(names: impl IntoIterator<Item = String>) -> Result<Driver, DeviceError> {
    // SAFETY: libcuda's initializers have no conditions.
    let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok());
    let library = library.ok_or(DeviceError::NoDriver)?;
    let driver = ask(&library);
    // An initialized driver runs threads of its own and must stay loaded.
    mem::forget(library);
    driver
}

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;
type GetErrorText = unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int;

fn ask(library: &Library) -> Result<Driver, DeviceError> {
    const STUB: c_int = CUresult::CUDA_ERROR_STUB_LIBRARY as c_int;
    const NO_DEVICE: c_int = CUresult::CUDA_ERROR_NO_DEVICE as c_int;
    // SAFETY: every version of the driver has these functions with these types. A `CUresult` is an int; read as one,
    // it may be a value that a later driver added.
    let found = unsafe { (library.get::<Init>(c"cuInit"), library.get::<GetVersion>(c"cuDriverGetVersion")) };
    let (Ok(init), Ok(get_version)) = found else { return Err(DeviceError::NoDriver) };
    let mut version = 0;
    // SAFETY: flags must be 0, and the version is written to a live int.
    let (initialized, versioned) = unsafe { (init(0), get_version(&mut version)) };
    if initialized == STUB || versioned == STUB {
        return Err(DeviceError::NoDriver);
    }
    if versioned != 0 {
        return Err(raw_error(library, "cuDriverGetVersion", versioned));
    }
    let version = u32::try_from(version).unwrap_or(0);
    if version < NEEDED_DRIVER {
        return Err(DeviceError::DriverTooOld { found: version, needed: NEEDED_DRIVER });
    }
    match initialized {
        0 => Ok(Driver { version, has_devices: true }),
        NO_DEVICE => Ok(Driver { version, has_devices: false }),
        code => Err(raw_error(library, "cuInit", code)),
    }
}

fn raw_error(library: &Library, call: &'static str, code: c_int) -> DeviceError {
    let text = |function: &CStr| {
        // SAFETY: as in `ask`.
        let function = unsafe { library.get::<GetErrorText>(function) }.ok()?;
        let mut text = ptr::null();
        // SAFETY: the pointer is live; the function takes any code.
        let found = unsafe { function(code, &mut text) } == 0;
        found.then(|| static_text(text))
    };
    let name = text(c"cuGetErrorName").unwrap_or_default();
    let message = text(c"cuGetErrorString").unwrap_or_default();
    DeviceError::Cuda { call, code, name, message }
}

/// Converts a call's result.
pub(super) fn check(call: &'static str, result: CUresult) -> Result<(), DeviceError> {
    match result {
        CUresult::CUDA_SUCCESS => Ok(()),
        failed => Err(error(call, failed)),
    }
}

/// Converts a failed call to an error with the driver's text.
pub(super) fn error(call: &'static str, result: CUresult) -> DeviceError {
    let (mut name, mut message) = (ptr::null(), ptr::null());
    // SAFETY: the driver is loaded, since it returned a result. Both functions only write a pointer to a static
    // string, or null for an unknown result.
    unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut message);
    }
    DeviceError::Cuda { call, code: result as i32, name: static_text(name), message: static_text(message) }
}

fn static_text(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: it is not null, and the driver's texts are NUL-terminated strings that live as long as the driver.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
