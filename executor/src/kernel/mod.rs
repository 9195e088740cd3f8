//! Loading and querying of kernel libraries; needs no GPU.
//!
//! A library stays loaded while any [`Kernel`] or [`Prepared`] made from it exists. Closing it unregisters its code
//! from the device, so the last handle must not be dropped while work is in flight. Only launching can cause that,
//! which is why it is `unsafe`.
//!
//! A library is code and is trusted: its self-description ([`Metadata`]) and its answers ([`Kernel::query`])
//! determine the memory it gets. So a kernel comes from [`build`](crate::build()), or from [`Kernel::open`], whose
//! caller vouches for the file.

mod abi;
mod error;
mod prepared;

use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

pub use abi::{
    ABI_VERSION, Addresses, Device, Extents, MAX_EXTENTS, MAX_OPERANDS, MAX_OUTPUTS, MAX_SCALARS,
    Requirements,
};
pub use error::{LoadError, Status};
pub use prepared::Prepared;

use crate::causes::chain;
use abi::Symbols;

/// A loaded kernel. Clones share the library.
#[derive(Clone, Debug)]
pub struct Kernel {
    loaded: Arc<Loaded>,
}

/// A kernel library's self-description.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The interface version.
    pub abi: u32,
    /// The target that it was built for, such as `sm_100a`.
    pub target: String,
    /// The kernel's readable name.
    pub kernel: String,
    /// The tile: M, N and K in elements. If the library has several kernels, this and the next fields are maxima.
    pub tile: [u32; 3],
    /// The cluster in CTAs; 1 if chosen per call.
    pub cluster: [u32; 3],
    /// Pipeline stages of the mainloop, if the kernel has any.
    #[serde(default)]
    pub stages: Option<u32>,
    /// Bytes of shared memory per CTA.
    pub shared_memory: u64,
    /// Threads per CTA.
    pub threads: u32,
    /// The kernel's inputs and outputs, equal to the plan's [`signature`](fourfold_scheduler::Plan::signature); empty
    /// if undeclared.
    #[serde(default)]
    pub signature: String,
    /// The names of a call's extents, in order: `L`, `M`, `N`, `K`.
    pub extents: Vec<String>,
    /// The tensors read, in order.
    pub operands: Vec<Role>,
    /// The names of the f32 scalars read, in order: `alpha`, `beta`.
    pub scalars: Vec<String>,
    /// The tensors written, in order: codes before their scales.
    pub outputs: Vec<Role>,
    /// True if it was compiled for another architecture than its target's, with emulated instructions.
    pub emulated: bool,
    /// The prefix of the kernel's function name in the binary, which encodes its parameter and shared-memory sizes.
    /// If calls choose among several kernels, all their prefixes, separated by spaces. Empty if undeclared.
    #[serde(default)]
    pub entry: String,
    /// A digest of the kernel's specification.
    #[serde(default)]
    pub hash: String,
}

/// One tensor of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// The role: `a`, `sfa`, `b`, `sfb`, `c`, `values`, `x0` for an epilogue operand, `y0` for an output.
    pub role: String,
    /// The element type's name.
    pub element: String,
    /// The names of the extents whose product is the number of elements; absent if the kernel reports bytes instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<String>>,
}

impl Metadata {
    /// The extent with this name.
    pub fn extent(&self, name: &str, extents: &Extents) -> Option<i64> {
        let position = self.extents.iter().position(|known| known == name)?;
        extents.values().get(position).copied()
    }

    /// Returns true if a call with these extents launches nothing: L or M is 0.
    pub fn is_empty(&self, extents: &Extents) -> bool {
        ["L", "M"].iter().any(|name| self.extent(name, extents) == Some(0))
    }

    /// The number of elements of a role; `None` if the kernel reports bytes instead, or beyond 64 bits.
    pub fn elements(&self, role: &Role, extents: &Extents) -> Option<u64> {
        let mut elements = 1u64;
        for name in role.extents.as_ref()? {
            elements = elements.checked_mul(u64::try_from(self.extent(name, extents)?).ok()?)?;
        }
        Some(elements)
    }
}

impl Kernel {
    /// Loads a kernel built earlier.
    ///
    /// # Errors
    /// As for [`Kernel::load`].
    ///
    /// # Safety
    /// Loading runs the library's initializers, and using the kernel calls its functions. So the library must be one
    /// that [`build`](crate::build()) made from a generated source. The file must not change while it is loaded; to
    /// replace it, rename another file onto it.
    pub unsafe fn open(library: &Path) -> Result<Kernel, LoadError> {
        Kernel::from_parts(library, None)
    }

    /// The library's interface version.
    pub fn abi_version(&self) -> u32 {
        self.loaded.metadata.abi
    }

    /// The library's self-description.
    pub fn metadata(&self) -> &Metadata {
        &self.loaded.metadata
    }

    /// The library's path.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// Checks that the kernel supports these extents on such a device, and returns the memory that a call requires.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn query(&self, device: &Device, extents: &Extents) -> Result<Requirements, Status> {
        let mut requirements = Requirements::default();
        answer(|message, size| {
            // SAFETY: every pointer is to a live object of the interface's type, and is not kept. The function reads
            // no other memory, keeps no state and lets no exception out.
            unsafe { (self.symbols().query)(device, extents, &mut requirements, message, size) }
        })?;
        Ok(requirements)
    }

    /// The launch grid of a problem on such a device: CTAs along x, y and z, all 0 if nothing is launched. `None` if
    /// the library does not report it.
    ///
    /// # Errors
    /// The kernel's refusal, as for [`Kernel::query`].
    pub fn grid(&self, device: &Device, extents: &Extents) -> Result<Option<[u32; 3]>, Status> {
        let Some(grid) = self.symbols().grid else { return Ok(None) };
        let mut blocks = [0; 3];
        answer(|message, size| {
            // SAFETY: every pointer is to a live object of the interface's type, one of them to three numbers, and is
            // not kept. The function reads no other memory, keeps no state and lets no exception out.
            unsafe { grid(device, extents, blocks.as_mut_ptr(), message, size) }
        })?;
        Ok(Some(blocks))
    }

    /// The offset in bytes of one scale within the scales of `role` (`sfa`, `sfb` or an output). It is the scale of
    /// `row` and of the `block`-th group along K (for an output, along N), of matrix `batch`. CUTLASS kernels compute
    /// it with CUTLASS's own layout. `None` if the kernel has no such scales or rejects the extents.
    pub fn scale_offset(
        &self,
        role: &str,
        extents: &Extents,
        row: i64,
        block: i64,
        batch: i64,
    ) -> Option<i64> {
        let role = CString::new(role).ok()?;
        let function = self.symbols().scale_offset?;
        // SAFETY: the string and the extents are live and not kept; the function only computes with its arguments.
        let offset = unsafe { function(role.as_ptr(), extents, row, block, batch) };
        (offset >= 0).then_some(offset)
    }

    /// Returns true if launches may end with a fault; see [`Prepared::fault`].
    pub fn finds_faults(&self) -> bool {
        self.symbols().fault.is_some()
    }

    /// Builds the launch parameters of one call.
    ///
    /// # Errors
    /// The kernel's refusal: of an extent, a pointer or the workspace, or because of a failed CUDA call.
    ///
    /// # Safety
    /// The context of the device to run on must be current, `device` must describe that device, and `stream` (a
    /// `CUstream`, null for the default one) must belong to it. `addresses` must point to buffers as large as
    /// [`Kernel::query`] and the extents require. `workspace` must be the device address of `workspace_size` bytes,
    /// or null if that is 0. All of this memory must stay valid until the call is dropped or its addresses are
    /// updated. A launch expects nothing of the workspace's content, so other work may use it between launches, but
    /// not during one.
    pub unsafe fn prepare(
        &self,
        device: &Device,
        extents: &Extents,
        addresses: &Addresses,
        workspace: *mut c_void,
        workspace_size: usize,
        stream: *mut c_void,
    ) -> Result<Prepared, Status> {
        let mut handle = ptr::null_mut();
        answer(|message, size| {
            // SAFETY: the host pointers are to live objects of the interface's types, and are not kept. The caller
            // vouches for the device pointers.
            unsafe {
                (self.symbols().prepare)(
                    device,
                    extents,
                    addresses,
                    workspace,
                    workspace_size,
                    stream,
                    &mut handle,
                    message,
                    size,
                )
            }
        })?;
        match NonNull::new(handle) {
            // SAFETY: this kernel's `fourfold_prepare` has just created it, and nothing else owns it.
            Some(handle) => Ok(unsafe { Prepared::new(handle, self.clone()) }),
            None => Err(Status {
                code: Status::EXCEPTION,
                message: "the kernel reported success but returned no prepared call".into(),
            }),
        }
    }

    /// Like [`Kernel::open`]; `files` is dropped after the library is closed.
    pub(crate) fn from_parts(path: &Path, files: Option<Files>) -> Result<Kernel, LoadError> {
        // For a name without a separator, the dynamic linker would search its own folders.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if !path.exists() {
            return Err(LoadError::NotFound { path });
        }
        let cannot_open = |reason: String| LoadError::Open { path: path.clone(), reason };
        let (name, alias) = loadable_name(&path).map_err(|error| cannot_open(error.to_string()))?;
        // SAFETY: this crate built the file, or the caller of `open` vouches for it. The library's initializers are
        // those of nvcc and the static CUDA runtime, which register its device code and do not call the driver.
        let library = unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_LOCAL) }
            .map_err(|error| cannot_open(chain(&error)))?;
        let symbols = Symbols::resolve(&library, &path)?;
        let metadata = read_metadata(&symbols, &path)?;
        let loaded = Loaded { symbols, metadata, path, _library: library, _alias: alias, _files: files };
        Ok(Kernel { loaded: Arc::new(loaded) })
    }

    fn symbols(&self) -> &Symbols {
        &self.loaded.symbols
    }
}

/// Keeps a library's files in place.
pub(crate) type Files = Arc<dyn Debug + Send + Sync>;

/// A loaded library. Fields drop in order, so that the library is closed before its files are removed. The dynamic
/// linker identifies libraries by path, so a path must not be reused while it is loaded.
#[derive(Debug)]
struct Loaded {
    symbols: Symbols,
    metadata: Metadata,
    path: PathBuf,
    _library: Library,
    _alias: Option<File>,
    _files: Option<Files>,
}

/// The file name to pass to the dynamic linker. It expands `$LIB` and the like, so a path with `$` is replaced by its
/// descriptor's path. The descriptor must stay open while the library is loaded, so that its number is not reused.
fn loadable_name(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    if !path.as_os_str().as_bytes().contains(&b'$') {
        return Ok((path.to_owned(), None));
    }
    let file = File::open(path)?;
    Ok((format!("/proc/self/fd/{}", file.as_raw_fd()).into(), Some(file)))
}

fn read_metadata(symbols: &Symbols, path: &Path) -> Result<Metadata, LoadError> {
    let bad = |reason: String| LoadError::BadMetadata { path: path.to_owned(), reason };
    // SAFETY: the function takes no arguments and returns a static string.
    let text = unsafe { (symbols.metadata)() };
    if text.is_null() {
        return Err(bad("the library returns none".to_owned()));
    }
    // SAFETY: it is not null, and by the interface it is a NUL-terminated string that lives as long as the library.
    let text = unsafe { CStr::from_ptr(text) };
    let metadata: Metadata =
        serde_json::from_slice(text.to_bytes()).map_err(|error| bad(error.to_string()))?;
    if metadata.abi != ABI_VERSION {
        return Err(bad(format!("it states kernel ABI version {}", metadata.abi)));
    }
    Ok(metadata)
}

/// Calls a function that returns a status and writes a message.
fn answer(call: impl FnOnce(*mut c_char, usize) -> i32) -> Result<(), Status> {
    const LONGEST_MESSAGE: usize = 1024;
    let mut message = [0u8; LONGEST_MESSAGE];
    let code = call(message.as_mut_ptr().cast(), message.len());
    if code == 0 {
        return Ok(());
    }
    let length = message.iter().position(|&byte| byte == 0).unwrap_or(message.len());
    Err(Status { code, message: String::from_utf8_lossy(&message[..length]).into_owned() })
}
