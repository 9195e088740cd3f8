//! Loads a kernel's library and asks it about itself; none of this needs a GPU.
//!
//! A library stays loaded while any [`Kernel`] or [`Prepared`] that came from it lives, and is closed with the last of
//! them. Closing unregisters its code from the device, so the last handle must not be dropped while work is in flight;
//! only launching can bring that about, and launching is `unsafe` for that reason.
//!
//! A library is code, and is believed: what it says of itself ([`Metadata`]) and answers to a question
//! ([`Kernel::query`]) decides what memory it is given. So a kernel comes from [`build`](crate::build()), or from
//! [`Kernel::open`], whose caller vouches for the file.

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

/// What a kernel's library says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The version of the interface.
    pub abi: u32,
    /// The architecture it was built for, such as `sm_100a`.
    pub target: String,
    /// The kernel's readable name.
    pub kernel: String,
    /// The tile: M, N and K in elements. Of several kernels the largest, as in what follows.
    pub tile: [u32; 3],
    /// The cluster in blocks; 1 where it is chosen for each call.
    pub cluster: [u32; 3],
    /// Stages of the main loop, where the kernel has one.
    #[serde(default)]
    pub stages: Option<u32>,
    /// Bytes of shared memory per block.
    pub shared_memory: u64,
    /// Threads per block.
    pub threads: u32,
    /// The description of what the kernel reads and writes, equal to the plan's
    /// [`signature`](fourfold_scheduler::Plan::signature); empty if the library does not say.
    #[serde(default)]
    pub signature: String,
    /// The names of the extents of a call, in order: `L`, `M`, `N`, `K`.
    pub extents: Vec<String>,
    /// The tensors that the kernel reads, in order.
    pub operands: Vec<Role>,
    /// The names of the f32 numbers that the kernel reads, in order: `alpha`, `beta`.
    pub scalars: Vec<String>,
    /// The tensors that the kernel writes, in order: codes before their scales.
    pub outputs: Vec<Role>,
    /// Whether it was compiled for another architecture than its target's, with the target's instructions emulated.
    pub emulated: bool,
    /// What the name of its kernel begins with in the binary: it says how large the parameters and the shared memory
    /// are that are launched with it. With several kernels, of which each call gets one, all of them, a space between
    /// two. Empty if it does not say.
    #[serde(default)]
    pub entry: String,
    /// A digest of what it was generated from.
    #[serde(default)]
    pub hash: String,
}

/// One tensor of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Role {
    /// The name: `a`, `sfa`, `b`, `sfb`, `c`, `values`, `x0` for an operand of an epilogue, `y0` for an output.
    pub role: String,
    /// The name of the element type.
    pub element: String,
    /// The names of the extents whose product is the number of elements; absent where the kernel says the bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extents: Option<Vec<String>>,
}

impl Metadata {
    /// The extent of this name in a call.
    pub fn extent(&self, name: &str, extents: &Extents) -> Option<i64> {
        let position = self.extents.iter().position(|known| known == name)?;
        extents.values().get(position).copied()
    }

    /// True if a call of these extents launches nothing: L or M is 0.
    pub fn is_empty(&self, extents: &Extents) -> bool {
        ["L", "M"].iter().any(|name| self.extent(name, extents) == Some(0))
    }

    /// The number of elements of a role; `None` where the kernel says the bytes, or beyond 64 bits.
    pub fn elements(&self, role: &Role, extents: &Extents) -> Option<u64> {
        let mut elements = 1u64;
        for name in role.extents.as_ref()? {
            elements = elements.checked_mul(u64::try_from(self.extent(name, extents)?).ok()?)?;
        }
        Some(elements)
    }
}

impl Kernel {
    /// Loads a kernel that was built earlier.
    ///
    /// # Errors
    /// As for [`Kernel::load`].
    ///
    /// # Safety
    /// Loading runs the library's initializers, and everything about the kernel calls its functions: it must be one
    /// that [`build`](crate::build()) made of a generated source. The file must stay as it is while it is loaded: to
    /// replace it, rename another file onto it.
    pub unsafe fn open(library: &Path) -> Result<Kernel, LoadError> {
        Kernel::from_parts(library, None)
    }

    /// The version of the interface that the library has.
    pub fn abi_version(&self) -> u32 {
        self.loaded.metadata.abi
    }

    /// What the library says about itself.
    pub fn metadata(&self) -> &Metadata {
        &self.loaded.metadata
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.loaded.path
    }

    /// Asks whether the kernel takes these extents on such a device, and for the bytes that a call must bring.
    ///
    /// # Errors
    /// The kernel's own refusal.
    pub fn query(&self, device: &Device, extents: &Extents) -> Result<Requirements, Status> {
        let mut requirements = Requirements::default();
        answer(|message, size| {
            // SAFETY: every pointer is to a live object of the interface's type and is not kept; the function reads no
            // other memory, keeps no state and lets no exception out.
            unsafe { (self.symbols().query)(device, extents, &mut requirements, message, size) }
        })?;
        Ok(requirements)
    }

    /// The grid with which the kernel is launched for a problem on such a device: blocks along x, y and z, all 0 where
    /// nothing is launched. `None` for a library that does not say.
    ///
    /// # Errors
    /// The kernel's own refusal, that of [`Kernel::query`].
    pub fn grid(&self, device: &Device, extents: &Extents) -> Result<Option<[u32; 3]>, Status> {
        let Some(grid) = self.symbols().grid else { return Ok(None) };
        let mut blocks = [0; 3];
        answer(|message, size| {
            // SAFETY: every pointer is to a live object of the interface's type and is not kept, three numbers among them;
            // the function reads no other memory, keeps no state and lets no exception out.
            unsafe { grid(device, extents, blocks.as_mut_ptr(), message, size) }
        })?;
        Ok(Some(blocks))
    }

    /// The offset in the scales of `role` (`sfa`, `sfb`, an output) of the scale of `row` and the `block`-th group of
    /// elements along K (along N for an output) of matrix `batch`, in bytes; with CUTLASS by its own layout. `None` where
    /// the kernel has no such scales or does not take the extents.
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
        // SAFETY: the string and the extents are live and not kept; the function is arithmetic on its arguments.
        let offset = unsafe { function(role.as_ptr(), extents, row, block, batch) };
        (offset >= 0).then_some(offset)
    }

    /// Builds the launch parameters of one call.
    ///
    /// # Errors
    /// The kernel's own refusal: an extent, a pointer, the workspace, or a CUDA call that failed.
    ///
    /// # Safety
    /// The context of the device to run on must be current, `device` must describe it, and `stream` (a `CUstream`, null
    /// for the default one) must belong to it. `addresses` must hold those of buffers that are as large as
    /// [`Kernel::query`] and the extents say; `workspace` must be the
    /// device address of `workspace_size` bytes, or null if that is 0. All of it must stay valid until the call is
    /// dropped or its addresses are updated, and no other call may use the workspace meanwhile.
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
            // SAFETY: the host pointers are to live objects of the interface's types and are not kept; the caller
            // vouches for the device's.
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
            // SAFETY: this kernel's prepare has just made it for us.
            Some(handle) => Ok(unsafe { Prepared::new(handle, self.clone()) }),
            None => Err(Status {
                code: Status::EXCEPTION,
                message: "the kernel prepared a call and returned none".into(),
            }),
        }
    }

    /// As [`Kernel::open`]; `files` is dropped after the library is closed.
    pub(crate) fn from_parts(path: &Path, files: Option<Files>) -> Result<Kernel, LoadError> {
        // Without a separator the dynamic linker would search its own folders.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if !path.exists() {
            return Err(LoadError::NotFound { path });
        }
        let cannot_open = |reason: String| LoadError::Open { path: path.clone(), reason };
        let (name, alias) = loadable_name(&path).map_err(|error| cannot_open(error.to_string()))?;
        // SAFETY: it is a file that this crate built, or the caller of `open` says so: the library's initializers are
        // those of nvcc and of the static CUDA runtime, which register its device code and touch no driver.
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

/// Whatever keeps the files of a library in their place.
pub(crate) type Files = Arc<dyn Debug + Send + Sync>;

/// Fields are dropped in order: the library is closed before its files go. The dynamic linker knows libraries by their
/// path, so a path must not be used anew while it is loaded.
#[derive(Debug)]
struct Loaded {
    symbols: Symbols,
    metadata: Metadata,
    path: PathBuf,
    _library: Library,
    _alias: Option<File>,
    _files: Option<Files>,
}

/// The name by which the dynamic linker takes this file. It replaces `$LIB` and the like in a path; such a file is named
/// by its descriptor, which must stay open while the library is loaded, so that no other gets the same name.
fn loadable_name(path: &Path) -> io::Result<(PathBuf, Option<File>)> {
    if !path.as_os_str().as_bytes().contains(&b'$') {
        return Ok((path.to_owned(), None));
    }
    let file = File::open(path)?;
    Ok((format!("/proc/self/fd/{}", file.as_raw_fd()).into(), Some(file)))
}

fn read_metadata(symbols: &Symbols, path: &Path) -> Result<Metadata, LoadError> {
    let bad = |reason: String| LoadError::BadMetadata { path: path.to_owned(), reason };
    // SAFETY: the function takes nothing and returns a static string.
    let text = unsafe { (symbols.metadata)() };
    if text.is_null() {
        return Err(bad("there is none".to_owned()));
    }
    // SAFETY: it is not null, and the interface says that it is a string with an end that lives as long as the library.
    let text = unsafe { CStr::from_ptr(text) };
    let metadata: Metadata =
        serde_json::from_slice(text.to_bytes()).map_err(|error| bad(error.to_string()))?;
    if metadata.abi != ABI_VERSION {
        return Err(bad(format!("it claims version {} of the interface", metadata.abi)));
    }
    Ok(metadata)
}

/// Runs a function that answers with a status and a message.
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
