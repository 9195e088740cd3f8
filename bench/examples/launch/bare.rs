//! Measures the lower bound of a launch's cost: the same memsets and empty kernels, launched by the CUDA runtime.

use std::ffi::{CStr, OsString, c_char, c_void};
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fourfold::executor::device::{Gpu, KernelNode, Node, Stream};
use fourfold::executor::run_tool;
use fourfold::executor::toolchain::Toolchain;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::allocations::Allocations;

const SOURCE: &str = include_str!("bare.cu");
const COMPILE_LIMIT: Duration = Duration::from_secs(120);

type UseDevice = unsafe extern "C" fn(i32) -> i32;
type ErrorText = unsafe extern "C" fn(i32) -> *const c_char;
type Prepare = unsafe extern "C" fn(*const Call, *mut *mut c_void) -> i32;
type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;
type Memset = unsafe extern "C" fn(*mut c_void, i32, u64, *mut c_void) -> i32;
type Destroy = unsafe extern "C" fn(*mut c_void);
type Allocate = unsafe extern "C" fn();

/// The parameters of a launch in the library's C layout.
#[repr(C)]
struct Call {
    grid: [u32; 3],
    block: [u32; 3],
    cluster: [u32; 3],
    shared_memory: u32,
    parameter_bytes: u32,
}

/// The compiled `bare.cu`.
pub struct Bare {
    error_text: ErrorText,
    prepare: Prepare,
    launch: Launch,
    memset: Memset,
    destroy: Destroy,
    _library: Library,
}

/// A copy of recorded work that computes nothing.
pub struct BareWork<'a> {
    bare: &'a Bare,
    steps: Vec<Step>,
}

enum Step {
    Kernel(*mut c_void),
    Memset { address: u64, byte: u8, bytes: u64 },
}

impl Bare {
    /// Compiles the library for kernels of these parameter bytes, and makes the device's context current.
    pub fn build(sizes: &[usize], toolchain: &Toolchain, gpu: &Gpu) -> Result<Bare> {
        ensure!(sizes.iter().all(|bytes| *bytes > 0), "kernels need at least one parameter byte: {sizes:?}");
        let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
        let library = folder.path().join("bare.so");
        compile(sizes, toolchain, gpu, folder.path(), &library)?;
        // SAFETY: the library was just built from `bare.cu`; its only initializers are those of the CUDA runtime.
        let library = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_LOCAL) }.context("bare.so")?;
        // SAFETY: the types match `bare.cu`, and the library stays open while they are used.
        let (use_device, allocate, bare) = unsafe {
            let use_device = *library.get::<UseDevice>(c"bare_use_device")?;
            let allocate = *library.get::<Allocate>(c"bare_allocate")?;
            let bare = Bare {
                error_text: *library.get::<ErrorText>(c"bare_error")?,
                prepare: *library.get::<Prepare>(c"bare_prepare")?,
                launch: *library.get::<Launch>(c"bare_launch")?,
                memset: *library.get::<Memset>(c"bare_memset")?,
                destroy: *library.get::<Destroy>(c"bare_destroy")?,
                _library: library,
            };
            (use_device, allocate, bare)
        };
        let before = Allocations::now();
        // SAFETY: `bare_allocate` allocates a byte and frees it.
        unsafe { allocate() };
        ensure!(Allocations::now().all == before.all + 1, "allocations in C are not counted");
        // SAFETY: `bare_use_device` accepts any number.
        bare.check("cudaSetDevice", unsafe { use_device(i32::try_from(gpu.ordinal)?) })?;
        Ok(bare)
    }

    /// Copies the recorded memsets and kernels, or only the memsets.
    pub fn like(&self, nodes: &[Node], kernels: bool) -> Result<BareWork<'_>> {
        let mut work = BareWork { bare: self, steps: Vec::new() };
        for node in nodes {
            match node {
                Node::Kernel(node) if kernels => {
                    let step = self.kernel(node)?;
                    work.steps.push(step);
                }
                Node::Kernel(_) => {}
                Node::Memset(node) => {
                    let (byte, bytes) = node.bytes().with_context(|| format!("{node:?}"))?;
                    work.steps.push(Step::Memset { address: node.address, byte, bytes: bytes as u64 });
                }
                other => bail!("the launch contains an unsupported node: {other:?}"),
            }
        }
        Ok(work)
    }

    fn kernel(&self, node: &KernelNode) -> Result<Step> {
        ensure!(!node.cooperative, "cooperative launches are not supported: {node:?}");
        let call = Call {
            grid: node.grid,
            block: node.block,
            cluster: node.cluster.unwrap_or_default(),
            shared_memory: node.shared_memory,
            parameter_bytes: u32::try_from(node.parameter_bytes)?,
        };
        let mut launch = ptr::null_mut();
        // SAFETY: the library does not keep the call; the launch is written to a live pointer.
        self.check("bare_prepare", unsafe { (self.prepare)(&call, &mut launch) })
            .with_context(|| format!("{node:?}"))?;
        Ok(Step::Kernel(launch))
    }

    fn check(&self, call: &str, error: i32) -> Result<()> {
        if error == 0 {
            return Ok(());
        }
        // SAFETY: the runtime returns a static string for every number.
        let text = unsafe { CStr::from_ptr((self.error_text)(error)) };
        bail!("{call} failed: {} ({error})", text.to_string_lossy())
    }
}

impl BareWork<'_> {
    /// Launches the work on a stream.
    ///
    /// # Safety
    /// The stream's context must be current. The memory of the memsets must live until the device has finished.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        for step in &self.steps {
            match step {
                Step::Kernel(launch) => {
                    // SAFETY: `prepare` created the launch; the caller guarantees the stream.
                    let error = unsafe { (self.bare.launch)(*launch, stream.raw()) };
                    self.bare.check("cudaLaunchKernelEx", error)?;
                }
                Step::Memset { address, byte, bytes } => {
                    let address = ptr::with_exposed_provenance_mut(*address as usize);
                    // SAFETY: the caller guarantees memory and stream.
                    let error =
                        unsafe { (self.bare.memset)(address, i32::from(*byte), *bytes, stream.raw()) };
                    self.bare.check("cudaMemsetAsync", error)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for BareWork<'_> {
    fn drop(&mut self) {
        for step in &self.steps {
            if let Step::Kernel(launch) = step {
                // SAFETY: `prepare` created the launch, and it is not used again.
                unsafe { (self.bare.destroy)(*launch) }
            }
        }
    }
}

fn compile(sizes: &[usize], toolchain: &Toolchain, gpu: &Gpu, folder: &Path, library: &Path) -> Result<()> {
    let source = folder.join("bare.cu");
    std::fs::write(&source, SOURCE).context("cannot write bare.cu")?;
    let (major, minor) = gpu.capability;
    let sizes: String = sizes.iter().map(|bytes| format!("BYTES({bytes})")).collect();
    let mut command = Command::new(&toolchain.nvcc);
    command.args(["-std=c++17", "-O3", "-shared", "-Xcompiler=-fPIC"]);
    command.arg(format!("-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}"));
    command.arg(format!("-DFOURFOLD_PARAMETER_BYTES={sizes}"));
    for (flag, folders) in [("-I", &toolchain.include), ("-L", &toolchain.libraries)] {
        for folder in folders {
            let mut argument = OsString::from(flag);
            argument.push(folder);
            command.arg(argument);
        }
    }
    command.arg("-o").arg(library).arg(&source);
    command.env_remove("NVCC_APPEND_FLAGS").env_remove("NVCC_PREPEND_FLAGS");
    let run = run_tool(&mut command, COMPILE_LIMIT).context("nvcc")?;
    ensure!(run.succeeded(), "nvcc ended with {}:\n{}", run.ending(), run.log);
    Ok(())
}
