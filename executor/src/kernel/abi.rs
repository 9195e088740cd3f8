//! The C interface of a generated kernel, as data and function types. The generator writes the other side of it.

use std::ffi::{c_char, c_void};
use std::path::Path;

use libloading::os::unix::Library;

use super::LoadError;

/// The version of the interface that this crate speaks.
pub const ABI_VERSION: u32 = 4;

/// How many operands of an epilogue [`Pointers`] has room for.
pub const MAX_OPERANDS: usize = 24;

/// How many tensors [`Pointers`] has room for that a kernel writes.
pub const MAX_OUTPUTS: usize = 8;

/// What a kernel needs to know of the device it is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Device {
    /// Multiprocessors.
    pub sm_count: i32,
    /// Clusters of the kernel's shape that fit the device at once; 0 where clusters are not used, or the kernel's
    /// scheduler does not ask. That is so for all that is generated: where a cluster is more than one block, each
    /// tile gets one, whatever the device has.
    pub max_active_clusters: i32,
}

/// The extents of one call: D is `[l, m, n]`, A is `[l, m, k]` and B is `[l, n, k]`, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Problem {
    /// Batch.
    pub l: i64,
    /// Rows of A and D.
    pub m: i64,
    /// Rows of B, columns of D.
    pub n: i64,
    /// The summed extent.
    pub k: i64,
}

/// What a call must bring, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Requirements {
    /// Workspace on the device.
    pub workspace: u64,
    /// The blocked scales of A, all matrices of the batch.
    pub sfa: u64,
    /// The blocked scales of B, all matrices of the batch.
    pub sfb: u64,
    /// What the kernel writes of each output, in the order of [`Pointers::outputs`], the padding of scales included; 0
    /// beyond the last.
    pub outputs: [u64; MAX_OUTPUTS],
}

/// The device addresses of one call; null where the kernel has no such operand.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Pointers {
    /// A, packed.
    pub a: *const c_void,
    /// The scales of A, blocked.
    pub sfa: *const c_void,
    /// B, packed.
    pub b: *const c_void,
    /// The scales of B, blocked.
    pub sfb: *const c_void,
    /// C.
    pub c: *const c_void,
    /// alpha, one f32 on the device.
    pub alpha: *const f32,
    /// beta, one f32 on the device.
    pub beta: *const f32,
    /// What the epilogue reads besides, in the order of the plan.
    pub operands: [*const c_void; MAX_OPERANDS],
    /// How many of them there are.
    pub operand_count: u32,
    /// What the kernel writes, in the order of the plan: codes before their scales.
    pub outputs: [*mut c_void; MAX_OUTPUTS],
    /// How many of them there are.
    pub output_count: u32,
}

type AbiVersion = unsafe extern "C" fn() -> u32;
type Metadata = unsafe extern "C" fn() -> *const c_char;
type Query =
    unsafe extern "C" fn(*const Device, *const Problem, *mut Requirements, *mut c_char, usize) -> i32;
type Grid = unsafe extern "C" fn(*const Device, *const Problem, *mut u32, *mut c_char, usize) -> i32;
type Prepare = unsafe extern "C" fn(
    *const Device,
    *const Problem,
    *const Pointers,
    *mut c_void,
    usize,
    *mut c_void,
    *mut *mut c_void,
    *mut c_char,
    usize,
) -> i32;
type UpdatePointers = unsafe extern "C" fn(*mut c_void, *const Pointers, *mut c_char, usize) -> i32;
type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;
type Destroy = unsafe extern "C" fn(*mut c_void);
type ScaleOffset = unsafe extern "C" fn(i32, *const Problem, i64, i64, i64) -> i64;

/// The functions of a loaded library. They are good for as long as the library that they came from is open.
#[derive(Debug)]
pub(super) struct Symbols {
    pub(super) metadata: Metadata,
    pub(super) query: Query,
    /// For tests and tools: no launch needs it, so a library may lack it.
    pub(super) grid: Option<Grid>,
    pub(super) prepare: Prepare,
    pub(super) update_pointers: UpdatePointers,
    pub(super) launch: Launch,
    pub(super) destroy: Destroy,
    pub(super) scale_offset: ScaleOffset,
}

impl Symbols {
    /// Checks the version, and only then looks the other functions up.
    pub(super) fn resolve(library: &Library, path: &Path) -> Result<Symbols, LoadError> {
        // SAFETY: the type is the one the interface gives the function in every version of it.
        let abi_version: AbiVersion = unsafe { symbol(library, path, "fourfold_abi_version")? };
        // SAFETY: the function takes nothing and returns a constant, in every version.
        let found = unsafe { abi_version() };
        if found != ABI_VERSION {
            return Err(LoadError::AbiMismatch { path: path.to_owned(), found, expected: ABI_VERSION });
        }
        // SAFETY: the library says that it has this version of the interface, which gives these functions these types.
        unsafe {
            Ok(Symbols {
                metadata: symbol(library, path, "fourfold_metadata")?,
                query: symbol(library, path, "fourfold_query")?,
                grid: symbol(library, path, "fourfold_grid").ok(),
                prepare: symbol(library, path, "fourfold_prepare")?,
                update_pointers: symbol(library, path, "fourfold_update_pointers")?,
                launch: symbol(library, path, "fourfold_launch")?,
                destroy: symbol(library, path, "fourfold_destroy")?,
                scale_offset: symbol(library, path, "fourfold_scale_offset")?,
            })
        }
    }
}

/// A function of the library.
///
/// # Safety
/// `F` must be the function's own type, and the result must not be called once the library is closed.
unsafe fn symbol<F: Copy>(library: &Library, path: &Path, name: &'static str) -> Result<F, LoadError> {
    // SAFETY: the caller vouches for the type.
    match unsafe { library.get::<F>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(LoadError::MissingSymbol { path: path.to_owned(), symbol: name }),
    }
}
