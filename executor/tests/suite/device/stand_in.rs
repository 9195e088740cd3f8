//! The stand-in driver and stand-in kernels, built with the system's compiler.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use fourfold_executor::Kernel;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use tempfile::TempDir;

/// The counters of the driver, in its order.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    Memories,
    Bytes,
    Streams,
    Events,
    Contexts,
    Waits,
    Up,
    Down,
    Graphs,
    Allocations,
    Launches,
    Depth,
    /// Work enqueued on a stream while the context of another device was current.
    Strays,
    /// Allocations of page-locked host memory that are not freed.
    Pinned,
    PinnedAllocations,
    /// Copies from or to the host that are not through page-locked memory.
    Pageable,
    /// Copies from or to the host.
    Copies,
    /// Kernels prepared, which loads them onto the device.
    Loads,
}

type Set = unsafe extern "C" fn(i32, u64);
type Get = unsafe extern "C" fn(i32) -> u64;

struct Driver {
    set: Set,
    get: Get,
    _folder: TempDir,
}

/// Loaded before any search for a driver, and under the name that is searched for. The dynamic linker then uses this
/// driver even on a machine with a GPU.
static DRIVER: LazyLock<Driver> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("libcuda.so");
    compile("libcuda.c", &path, &["-Wl,-soname,libcuda.so".to_owned()]);
    // SAFETY: the stand-in has no initializers; its functions have these types; it is never closed.
    unsafe {
        let library = Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL).unwrap();
        let (set, get) =
            (*library.get::<Set>(c"stand_in_set").unwrap(), *library.get::<Get>(c"stand_in_get").unwrap());
        std::mem::forget(library);
        Driver { set, get, _folder: folder }
    }
});

/// The resources that every test must free.
const KEPT: [Counter; 9] = [
    Counter::Pinned,
    Counter::Memories,
    Counter::Bytes,
    Counter::Streams,
    Counter::Events,
    Counter::Contexts,
    Counter::Graphs,
    Counter::Depth,
    Counter::Strays,
];

static IN_USE: Mutex<()> = Mutex::new(());

/// The driver, for one test at a time. On drop, all resources must have been freed.
pub struct StandIn {
    _in_use: MutexGuard<'static, ()>,
}

impl StandIn {
    pub fn new() -> StandIn {
        let stand_in = StandIn { _in_use: IN_USE.lock().unwrap_or_else(PoisonError::into_inner) };
        stand_in.reset();
        stand_in
    }

    /// Memory that may be in use at once.
    pub fn limit(&self, bytes: u64) {
        // SAFETY: it stores a number.
        unsafe { (DRIVER.set)(0, bytes) }
    }

    /// Makes the next work fail with this error; 0 heals the device.
    pub fn fault(&self, code: u64) {
        // SAFETY: it stores a number.
        unsafe { (DRIVER.set)(1, code) }
    }

    /// Bytes of L2 of the devices that are opened from now on.
    pub fn l2(&self, bytes: u64) {
        // SAFETY: it stores a number.
        unsafe { (DRIVER.set)(4, bytes) }
    }

    /// The cluster size, in CTAs, of kernels launched from now on; 0 for none.
    pub fn cluster(&self, blocks: u64) {
        // SAFETY: it stores a number.
        unsafe { (DRIVER.set)(5, blocks) }
    }

    /// Page-locked host memory that may be in use at once.
    pub fn limit_pinned(&self, bytes: u64) {
        // SAFETY: it stores a number.
        unsafe { (DRIVER.set)(6, bytes) }
    }

    /// Makes a device's context current on this thread, as a host may have done.
    pub fn make_current(&self, ordinal: u64) {
        // SAFETY: there is such a device.
        unsafe { (DRIVER.set)(3, ordinal) }
    }

    /// Acts like the end of the process: lost memory is freed, and the device is healthy.
    pub fn reset(&self) {
        // SAFETY: no test holds memory when it begins, or after the device was lost and its buffers were dropped.
        unsafe { (DRIVER.set)(2, 0) }
        self.limit(u64::MAX);
        self.limit_pinned(u64::MAX);
        self.fault(0);
        self.l2(1 << 20);
        self.cluster(2);
    }

    pub fn count(&self, counter: Counter) -> u64 {
        // SAFETY: it reads a number.
        unsafe { (DRIVER.get)(counter as i32) }
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for counter in KEPT {
            assert_eq!(self.count(counter), 0, "{counter:?} are left");
        }
    }
}

/// The stand-in kernel with these definitions, loaded separately: its code is unloaded with the last handle. The roles
/// are members of a JSON object.
pub fn kernel(signature: &str, roles: &str, defines: &[&str]) -> Kernel {
    kernel_of("gemm.c", signature, roles, defines)
}

/// As [`kernel`], from another source.
pub fn kernel_of(source: &str, signature: &str, roles: &str, defines: &[&str]) -> Kernel {
    /// The number of the library that was compiled with these arguments.
    type Numbers = Mutex<HashMap<Vec<String>, usize>>;
    static COMPILED: LazyLock<(TempDir, Numbers)> =
        LazyLock::new(|| (tempfile::tempdir().unwrap(), Mutex::default()));
    let (folder, numbers) = &*COMPILED;
    let mut arguments: Vec<String> = defines.iter().map(|define| format!("-D{define}")).collect();
    arguments.push(format!("-DSIGNATURE={signature:?}"));
    arguments.push(format!("-DROLES={roles:?}"));
    // Part of the key, since equal definitions may give another kernel.
    arguments.push(format!("-DSOURCE={source:?}"));
    let mut numbers = numbers.lock().unwrap_or_else(PoisonError::into_inner);
    let (next, known) = (numbers.len(), numbers.get(&arguments).copied());
    let compiled = folder.path().join(format!("kernel{}.so", known.unwrap_or(next)));
    if known.is_none() {
        compile(source, &compiled, &arguments);
        numbers.insert(arguments, next);
    }
    drop(numbers);
    // A copy, because the dynamic linker identifies libraries by file. It may be deleted once it is loaded.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernel.so");
    fs::copy(&compiled, &path).unwrap();
    // SAFETY: the stand-in has no initializers, and its functions are those of the interface.
    unsafe { Kernel::open(&path) }.unwrap()
}

pub fn compile(source: &str, library: &Path, arguments: &[String]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_ins").join(source);
    let built = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-o"])
        .arg(library)
        .args(arguments)
        .arg(source)
        .arg("-lm")
        .status();
    assert!(built.unwrap().success());
}
