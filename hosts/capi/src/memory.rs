//! Reading the caller's memory: argument structs, arrays and text.

use std::slice;

use crate::abi::Str;
use crate::error::ErrorHandle;
use crate::handles::{Handle, look};

/// An argument struct. It begins with its size, and all bytes zero are a valid value.
///
/// # Safety
/// The type is `repr(C)`, its first field is the size, and all bytes zero are a valid value.
pub unsafe trait Args: Copy {
    /// The name in the header.
    const NAME: &'static str;
    /// The size in version 1.0, which every caller has at least.
    const SIZE: usize;
}

macro_rules! args {
    ($($ty:ident $name:literal $size:literal)*) => {$(
        // SAFETY: the type is `repr(C)`, begins with `struct_size`, and consists of integers, pointers and options of
        // functions.
        unsafe impl Args for crate::abi::$ty {
            const NAME: &'static str = $name;
            const SIZE: usize = $size;
        }
        const _: () = assert!(size_of::<crate::abi::$ty>() >= $size);
    )*};
}

args! {
    BackendCreateArgs "fourfold_backend_create_args" 56
    QuerySupportArgs "fourfold_query_support_args" 80
    CompileArgs "fourfold_compile_args" 56
    ModuleWaitArgs "fourfold_module_wait_args" 40
    ModuleInfoArgs "fourfold_module_info_args" 152
    ExecuteArgs "fourfold_execute_args" 80
    SessionCreateArgs "fourfold_session_create_args" 64
    SessionRunArgs "fourfold_session_run_args" 64
    PrepareArgs "fourfold_prepare_args" 112
    LaunchArgs "fourfold_launch_args" 64
}

/// Copies the fields that the caller knows; the others are zero.
///
/// # Safety
/// The pointer is null, or points to a struct whose first field is its size in bytes.
pub unsafe fn read<T: Args>(args: *const T) -> Result<T, ErrorHandle> {
    if args.is_null() {
        return Err(ErrorHandle::argument(format!("the {} is NULL", T::NAME)));
    }
    // SAFETY: the struct begins with its size.
    let size = unsafe { args.cast::<usize>().read() };
    if size < T::SIZE {
        return Err(ErrorHandle::argument(format!(
            "{}.struct_size is {size}, which is less than {}; set it to sizeof({})",
            T::NAME,
            T::SIZE,
            T::NAME,
        )));
    }
    // SAFETY: all bytes zero are a valid value.
    let mut known: T = unsafe { std::mem::zeroed() };
    let common = size.min(size_of::<T>());
    // SAFETY: both have at least this many bytes, and are distinct.
    unsafe { std::ptr::copy_nonoverlapping(args.cast::<u8>(), (&raw mut known).cast::<u8>(), common) };
    Ok(known)
}

/// The caller's array.
///
/// # Safety
/// The pointer is null, or points to `count` live elements.
pub unsafe fn array<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], ErrorHandle> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(ErrorHandle::argument(format!("{what} is NULL, but its count is {count}")));
    }
    if !pointer.is_aligned() || count > isize::MAX as usize / size_of::<T>() {
        return Err(ErrorHandle::argument(format!("{what} is at {pointer:p}, with {count} elements")));
    }
    // SAFETY: the caller vouches for it.
    Ok(unsafe { slice::from_raw_parts(pointer, count) })
}

/// The caller's text.
///
/// # Safety
/// The text is null, or points to `len` live bytes.
pub unsafe fn borrow<'a>(text: Str, what: &str) -> Result<&'a str, ErrorHandle> {
    // SAFETY: the caller vouches for it.
    let bytes = unsafe { array(text.ptr.cast::<u8>(), text.len, what)? };
    std::str::from_utf8(bytes).map_err(|error| ErrorHandle::argument(format!("{what} is not UTF-8: {error}")))
}

/// A handle.
///
/// # Safety
/// The pointer is null or a live handle.
pub unsafe fn handle<'a, T: Handle>(pointer: *const T::Opaque) -> Result<&'a T, ErrorHandle> {
    // SAFETY: the caller vouches for it.
    unsafe { look::<T>(pointer) }.ok_or_else(|| ErrorHandle::argument(format!("the {} is NULL", T::NAME)))
}
