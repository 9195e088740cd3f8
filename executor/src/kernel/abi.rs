//! The C interface of generated kernels, as data and function types. The code generator emits the other side.

use std::ffi::{c_char, c_void};
use std::path::Path;
use std::ptr;

use libloading::os::unix::Library;

use super::LoadError;

/// The interface version that this crate supports.
pub const ABI_VERSION: u32 = 6;

/// The maximum number of extents.
pub const MAX_EXTENTS: usize = 16;

/// The maximum number of tensors that a kernel reads.
pub const MAX_OPERANDS: usize = 32;

/// The maximum number of f32 scalars that a kernel reads from device memory.
pub const MAX_SCALARS: usize = 8;

/// The maximum number of tensors that a kernel writes.
pub const MAX_OUTPUTS: usize = 8;

/// Device properties that a kernel needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Device {
    /// The number of SMs.
    pub sm_count: i32,
    /// The number of the kernel's clusters that fit the device at once. 0 if unused. Generated kernels do not use it:
    /// with clusters of several CTAs, each tile gets one cluster on any device.
    pub max_active_clusters: i32,
}

/// The extents of one call in elements, in the order of [`Metadata::extents`](super::Metadata::extents).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Extents {
    values: [i64; MAX_EXTENTS],
    count: u32,
}

impl Extents {
    /// Wraps extents in the kernel's order.
    ///
    /// # Panics
    /// When there are more than [`MAX_EXTENTS`].
    pub fn new(extents: &[i64]) -> Extents {
        let mut values = [0; MAX_EXTENTS];
        values[..extents.len()].copy_from_slice(extents);
        Extents { values, count: extents.len() as u32 }
    }

    /// The extents of a `scaled_mma` kernel: D is `[l, m, n]`, A is `[l, m, k]` and B is `[l, n, k]`.
    pub fn of_product(l: i64, m: i64, n: i64, k: i64) -> Extents {
        Extents::new(&[l, m, n, k])
    }

    /// The extents.
    pub fn values(&self) -> &[i64] {
        &self.values[..self.count as usize]
    }
}

/// The memory that a call requires, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Requirements {
    /// Device workspace.
    pub workspace: u64,
    /// The size of each operand that does not follow from its extents, such as padded scales; 0 for the others.
    pub operands: [u64; MAX_OPERANDS],
    /// The bytes written to each output, padding included; 0 beyond the last output.
    pub outputs: [u64; MAX_OUTPUTS],
}

/// The device addresses of one call, each list in the order of the kernel's [`Metadata`](super::Metadata).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Addresses {
    operands: [*const c_void; MAX_OPERANDS],
    operand_count: u32,
    scalars: [*const c_void; MAX_SCALARS],
    scalar_count: u32,
    outputs: [*mut c_void; MAX_OUTPUTS],
    output_count: u32,
}

impl Default for Addresses {
    fn default() -> Addresses {
        Addresses {
            operands: [ptr::null(); MAX_OPERANDS],
            operand_count: 0,
            scalars: [ptr::null(); MAX_SCALARS],
            scalar_count: 0,
            outputs: [ptr::null_mut(); MAX_OUTPUTS],
            output_count: 0,
        }
    }
}

impl Addresses {
    /// Wraps the addresses of operands, scalars and outputs; `None` if there are more than the interface supports.
    pub fn new(
        operands: &[*const c_void],
        scalars: &[*const c_void],
        outputs: &[*mut c_void],
    ) -> Option<Addresses> {
        let mut addresses = Addresses::default();
        addresses.operands.get_mut(..operands.len())?.copy_from_slice(operands);
        addresses.scalars.get_mut(..scalars.len())?.copy_from_slice(scalars);
        addresses.outputs.get_mut(..outputs.len())?.copy_from_slice(outputs);
        addresses.operand_count = operands.len() as u32;
        addresses.scalar_count = scalars.len() as u32;
        addresses.output_count = outputs.len() as u32;
        Some(addresses)
    }
}

type AbiVersion = unsafe extern "C" fn() -> u32;
type Metadata = unsafe extern "C" fn() -> *const c_char;
type Query =
    unsafe extern "C" fn(*const Device, *const Extents, *mut Requirements, *mut c_char, usize) -> i32;
type Grid = unsafe extern "C" fn(*const Device, *const Extents, *mut u32, *mut c_char, usize) -> i32;
type Prepare = unsafe extern "C" fn(
    *const Device,
    *const Extents,
    *const Addresses,
    *mut c_void,
    usize,
    *mut c_void,
    *mut *mut c_void,
    *mut c_char,
    usize,
) -> i32;
type UpdatePointers = unsafe extern "C" fn(*mut c_void, *const Addresses, *mut c_char, usize) -> i32;
type Launch = unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32;
type Destroy = unsafe extern "C" fn(*mut c_void);
type Fault = unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> i32;
type ScaleOffset = unsafe extern "C" fn(*const c_char, *const Extents, i64, i64, i64) -> i64;

/// The functions of a loaded library, valid while the library is open.
#[derive(Debug)]
pub(super) struct Symbols {
    pub(super) metadata: Metadata,
    pub(super) query: Query,
    /// For tests and tools; optional, since no launch needs it.
    pub(super) grid: Option<Grid>,
    pub(super) prepare: Prepare,
    pub(super) update_pointers: UpdatePointers,
    pub(super) launch: Launch,
    pub(super) destroy: Destroy,
    /// For tests; absent if the kernel has no scales.
    pub(super) scale_offset: Option<ScaleOffset>,
    /// Only of kernels whose launches can end with a fault.
    pub(super) fault: Option<Fault>,
}

impl Symbols {
    /// Checks the version before it looks up the other functions.
    pub(super) fn resolve(library: &Library, path: &Path) -> Result<Symbols, LoadError> {
        // SAFETY: the function has this type in every version of the interface.
        let abi_version: AbiVersion = unsafe { symbol(library, path, "fourfold_abi_version")? };
        // SAFETY: in every version, the function takes no arguments and returns a constant.
        let found = unsafe { abi_version() };
        if found != ABI_VERSION {
            return Err(LoadError::AbiMismatch { path: path.to_owned(), found, expected: ABI_VERSION });
        }
        // SAFETY: the library declares this version of the interface, in which the functions have these types.
        unsafe {
            Ok(Symbols {
                metadata: symbol(library, path, "fourfold_metadata")?,
                query: symbol(library, path, "fourfold_query")?,
                grid: symbol(library, path, "fourfold_grid").ok(),
                prepare: symbol(library, path, "fourfold_prepare")?,
                update_pointers: symbol(library, path, "fourfold_update_pointers")?,
                launch: symbol(library, path, "fourfold_launch")?,
                destroy: symbol(library, path, "fourfold_destroy")?,
                scale_offset: symbol(library, path, "fourfold_scale_offset").ok(),
                fault: symbol(library, path, "fourfold_fault").ok(),
            })
        }
    }
}

/// Looks up a function of the library.
///
/// # Safety
/// `F` must be the function's type, and the result must not be called after the library is closed.
unsafe fn symbol<F: Copy>(library: &Library, path: &Path, name: &'static str) -> Result<F, LoadError> {
    // SAFETY: the caller vouches for the type.
    match unsafe { library.get::<F>(name) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(LoadError::MissingSymbol { path: path.to_owned(), symbol: name }),
    }
}
