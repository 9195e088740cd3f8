//! The library with a handle for one device.

use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::chosen::Kept;
use super::error::BlasError;
use super::functions::Object;
use super::library::Library;
use super::version::BlasVersion;
use crate::device::Device;
use crate::environment::Environment;

/// The vendor's library, with a handle for one device. Clones share the handle.
#[derive(Clone, Debug)]
pub struct Blas {
    open: Arc<Open>,
}

#[derive(Debug)]
struct Open {
    /// Holds no `Blas`, so that the last clone closes the library.
    kept: Mutex<Kept>,
    library: Library,
    handle: Mutex<Handle>,
    device: Device,
}

/// A `cublasLtHandle_t`.
#[derive(Debug)]
pub(super) struct Handle(pub(super) Object);

// SAFETY: a handle may be used from every thread, one at a time, which the mutex ensures.
unsafe impl Send for Handle {}

impl Blas {
    /// Loads the library that this process's environment names, or else the first one found, and creates a handle.
    ///
    /// `docs/reference/environment.md` lists the places that are searched.
    ///
    /// # Errors
    /// [`BlasError::Missing`] when there is no library; [`BlasError::Version`] for other versions than 12 and 13; the
    /// error of a library that `FOURFOLD_CUBLASLT` names; or the library's error on this device.
    pub fn load(device: &Device) -> Result<Blas, BlasError> {
        Blas::load_from(device, &Environment::from_process())
    }

    /// Loads the library that an environment names.
    ///
    /// # Errors
    /// As for [`Blas::load`].
    pub fn load_from(device: &Device, environment: &Environment) -> Result<Blas, BlasError> {
        let library = Library::find(environment)?;
        let mut handle = ptr::null_mut();
        let _current = device.enter()?;
        // SAFETY: the device's context is current, and the handle is live.
        let status = unsafe { (library.functions().create)(&mut handle) };
        library.check("cublasLtCreate", status)?;
        let handle = Mutex::new(Handle(handle));
        let open = Open { kept: Mutex::default(), library, handle, device: device.clone() };
        Ok(Blas { open: Arc::new(open) })
    }

    /// Returns the path and version of the library that [`Blas::load_from`] would use, without a device.
    ///
    /// # Errors
    /// As for [`Blas::load`], except for errors of the device.
    pub fn find(environment: &Environment) -> Result<(PathBuf, BlasVersion), BlasError> {
        let library = Library::find(environment)?;
        Ok((library.path().to_owned(), library.version()))
    }

    /// The library's version.
    pub fn version(&self) -> BlasVersion {
        self.open.library.version()
    }

    /// The library's path.
    pub fn path(&self) -> &Path {
        self.open.library.path()
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.open.device
    }

    pub(super) fn handle(&self) -> MutexGuard<'_, Handle> {
        self.open.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.open.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn library(&self) -> &Library {
        &self.open.library
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let Ok(_current) = self.device.enter() else { return };
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the handle is ours, and every `Matmul` that uses it holds it.
        let _ = unsafe { (self.library.functions().destroy)(handle.0) };
    }
}
