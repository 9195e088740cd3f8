//! The stand-in driver and the stand-in cuBLASLt, built with the system's compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use fourfold::executor::blas::Blas;
use fourfold::executor::device::Device;
use fourfold::executor::environment::Environment;
use fourfold_tests::repository;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tempfile::TempDir;

type Get = unsafe extern "C" fn(i32) -> u64;

/// The driver, which stays loaded, and the library.
pub struct StandIn {
    get: Get,
    blas: PathBuf,
    _folder: TempDir,
}

impl StandIn {
    /// Loads the driver. Must precede every search for a driver: the dynamic linker then uses this one, even on a machine
    /// with a GPU.
    pub fn new() -> StandIn {
        let folder = tempfile::tempdir().expect("a folder");
        let stand_ins = repository().join("executor/tests/stand_ins");
        let driver = folder.path().join("libcuda.so");
        compile(&stand_ins.join("libcuda.c"), &driver, &["-Wl,-soname,libcuda.so"]);
        let blas = folder.path().join("libcublasLt.so.13");
        compile(&stand_ins.join("libcublaslt.c"), &blas, &[]);
        // SAFETY: the stand-in has no initializers; the function has this type; the library is never closed.
        let get = unsafe {
            let library = Library::open(Some(&driver), RTLD_NOW | RTLD_LOCAL).expect("the driver loads");
            let get = *library.get::<Get>(c"stand_in_get").expect("a function of the driver");
            std::mem::forget(library);
            get
        };
        StandIn { get, blas, _folder: folder }
    }

    /// The number of allocations of device memory.
    pub fn memories(&self) -> u64 {
        // SAFETY: it reads the first counter.
        unsafe { (self.get)(0) }
    }

    /// The library, on a device.
    pub fn blas(&self, device: &Device) -> Blas {
        let environment =
            Environment { fourfold_cublaslt: Some(self.blas.clone().into()), ..Environment::default() };
        Blas::load_from(device, &environment).expect("the library loads")
    }
}

/// Compiles a stand-in.
pub fn compile(source: &Path, library: &Path, arguments: &[&str]) {
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(library)
        .args(arguments)
        .arg(source)
        .arg("-lm")
        .status();
    assert!(built.expect("cc runs").success(), "{} does not compile", source.display());
}
