//! libtorch's stable C functions, found in the running process.
//!
//! Nothing of libtorch is linked, so that one library serves every supported version. The names and types are those of
//! `torch/csrc/inductor/aoti_torch/c/shim.h` and `torch/csrc/stable/c/shim.h`.

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_NOW};

use crate::error::Error;

/// A tensor of libtorch.
pub type TensorHandle = *mut c_void;
/// A library of ops.
pub type LibraryHandle = *mut c_void;
/// An op's kernel, called with a stack, the number of arguments and the number of results.
pub type KernelFn = unsafe extern "C-unwind" fn(*mut u64, u64, u64);

/// Do not load a library that is not loaded yet. The value is Linux's.
const RTLD_NOLOAD: i32 = 4;

macro_rules! functions {
    ($($name:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions that every supported version has.
        #[derive(Debug)]
        pub struct Shim {
            $(#[doc = concat!("`", $symbol, "`")] pub $name: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// `aoti_torch_check`: throws a C++ exception unless its first argument is true.
            pub check: unsafe extern "C-unwind" fn(bool, *const c_char, *const c_char, u32, *const c_char),
            /// Frees the memory of an optional argument.
            pub free_optional: unsafe extern "C" fn(*mut u64) -> i32,
            /// The element types.
            pub types: Vec<(Element, i32)>,
        }

        impl Shim {
            fn load(library: &Library) -> Result<Shim, String> {
                Ok(Shim {
                    // SAFETY: the types are those of libtorch's headers.
                    $($name: unsafe { find(library, concat!($symbol, "\0"))? },)*
                    // SAFETY: as above.
                    check: unsafe { find(library, "aoti_torch_check\0")? },
                    // SAFETY: as above. Versions before 2.13 take memory of C++'s `new`, which `delete` frees; its
                    // missing result is not read.
                    free_optional: unsafe {
                        find(library, "torch_delete_stable_ivalue\0").or_else(|_| find(library, "_ZdlPv\0"))?
                    },
                    types: Element::all(library),
                })
            }
        }
    };
}

functions! {
    init_def: "aoti_torch_library_init_def" (*const c_char, *const c_char, u32, *mut LibraryHandle) -> i32;
    def: "aoti_torch_library_def" (LibraryHandle, *const c_char) -> i32;
    init_impl: "aoti_torch_library_init_impl"
        (*const c_char, *const c_char, *const c_char, u32, *mut LibraryHandle) -> i32;
    implement: "torch_library_impl" (LibraryHandle, *const c_char, KernelFn, u64) -> i32;
    call: "aoti_torch_call_dispatcher" (*const c_char, *const c_char, *mut u64) -> i32;
    contiguous_format: "aoti_torch_memory_format_contiguous_format" () -> i32;
    device_cpu: "aoti_torch_device_type_cpu" () -> i32;
    device_cuda: "aoti_torch_device_type_cuda" () -> i32;
    delete_tensor: "aoti_torch_delete_tensor_object" (TensorHandle) -> i32;
    data: "aoti_torch_get_data_ptr" (TensorHandle, *mut *mut c_void) -> i32;
    rank: "aoti_torch_get_dim" (TensorHandle, *mut i64) -> i32;
    sizes: "aoti_torch_get_sizes" (TensorHandle, *mut *const i64) -> i32;
    is_contiguous: "aoti_torch_is_contiguous" (TensorHandle, *mut bool) -> i32;
    dtype: "aoti_torch_get_dtype" (TensorHandle, *mut i32) -> i32;
    device_type: "aoti_torch_get_device_type" (TensorHandle, *mut i32) -> i32;
    device_index: "aoti_torch_get_device_index" (TensorHandle, *mut i32) -> i32;
    empty: "aoti_torch_empty_strided" (i64, *const i64, *const i64, i32, i32, i32, *mut TensorHandle) -> i32;
    create_guard: "aoti_torch_create_device_guard" (i32, *mut *mut c_void) -> i32;
    delete_guard: "aoti_torch_delete_device_guard" (*mut c_void) -> i32;
    list_new: "torch_new_list_reserve_size" (usize, *mut *mut c_void) -> i32;
    list_size: "torch_list_size" (*mut c_void, *mut usize) -> i32;
    list_get: "torch_list_get_item" (*mut c_void, usize, *mut u64) -> i32;
    list_push: "torch_list_push_back" (*mut c_void, u64) -> i32;
    list_delete: "torch_delete_list" (*mut c_void) -> i32;
    string_length: "torch_string_length" (*mut c_void, *mut usize) -> i32;
    string_data: "torch_string_c_str" (*mut c_void, *mut *const c_char) -> i32;
    string_delete: "torch_delete_string" (*mut c_void) -> i32;
}

/// # Safety
/// `T` is the type of the function.
unsafe fn find<T: Copy>(library: &Library, symbol: &str) -> Result<T, String> {
    // SAFETY: the caller vouches for the type. The library is never closed.
    match unsafe { library.get::<T>(symbol.as_bytes()) } {
        Ok(function) => Ok(*function),
        Err(_) => Err(format!(
            "this PyTorch has no {}; fourfold.torch needs version 2.10 or newer",
            symbol.trim_end_matches('\0')
        )),
    }
}

/// An element type that ops take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of torch's dtypes")]
pub enum Element {
    UInt8,
    Int32,
    Bool,
    Float16,
    BFloat16,
    Float32,
    Float8E4M3,
    Float8E5M2,
    Float8E8M0,
    /// Two codes in a byte.
    Float4x2,
}

impl Element {
    fn all(library: &Library) -> Vec<(Element, i32)> {
        use Element::*;
        let names = [
            (UInt8, "aoti_torch_dtype_uint8\0"),
            (Int32, "aoti_torch_dtype_int32\0"),
            (Bool, "aoti_torch_dtype_bool\0"),
            (Float16, "aoti_torch_dtype_float16\0"),
            (BFloat16, "aoti_torch_dtype_bfloat16\0"),
            (Float32, "aoti_torch_dtype_float32\0"),
            (Float8E4M3, "aoti_torch_dtype_float8_e4m3fn\0"),
            (Float8E5M2, "aoti_torch_dtype_float8_e5m2\0"),
            (Float8E8M0, "aoti_torch_dtype_float8_e8m0fnu\0"),
            (Float8E8M0, "torch_dtype_float8_e8m0fnu\0"),
            (Float4x2, "aoti_torch_dtype_float4_e2m1fn_x2\0"),
            (Float4x2, "torch_dtype_float4_e2m1fn_x2\0"),
        ];
        let one = |(element, symbol): (Element, &str)| {
            // SAFETY: these functions take nothing and return the number of the type.
            let function: unsafe extern "C" fn() -> i32 = unsafe { find(library, symbol).ok()? };
            // SAFETY: as above.
            Some((element, unsafe { function() }))
        };
        names.into_iter().filter_map(one).collect()
    }

    /// The DLPack code, bits and lanes.
    pub fn dlpack(self) -> (u8, u8, u16) {
        match self {
            Element::UInt8 => (1, 8, 1),
            Element::Int32 => (0, 32, 1),
            Element::Bool => (6, 8, 1),
            Element::Float16 => (2, 16, 1),
            Element::BFloat16 => (4, 16, 1),
            Element::Float32 => (2, 32, 1),
            Element::Float8E4M3 => (10, 8, 1),
            Element::Float8E5M2 => (12, 8, 1),
            Element::Float8E8M0 => (14, 8, 1),
            Element::Float4x2 => (17, 4, 2),
        }
    }

    /// The element type in the text of a program, if it has numbers without scales.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Element::Int32 => Some("i32"),
            Element::Float16 => Some("f16"),
            Element::BFloat16 => Some("bf16"),
            Element::Float32 => Some("f32"),
            _ => None,
        }
    }
}

static SHIM: OnceLock<Result<Shim, String>> = OnceLock::new();

/// The functions of the loaded libtorch.
///
/// # Errors
/// When no libtorch is loaded, or a function is missing.
pub fn shim() -> Result<&'static Shim, Error> {
    let loaded = SHIM.get_or_init(|| {
        let library = open("libtorch_cpu.so").ok_or("PyTorch is not loaded: import torch first")?;
        let shim = Shim::load(&library);
        // The functions must stay valid.
        std::mem::forget(library);
        shim
    });
    loaded.as_ref().map_err(|message| Error::argument(message.clone()))
}

/// A library that is loaded already.
pub fn open(name: &str) -> Option<Library> {
    // SAFETY: the library is loaded, so no initializer runs.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_NOLOAD) }.ok()
}

impl Shim {
    /// The number of an element type.
    pub fn number(&self, element: Element) -> Result<i32, Error> {
        let found = self.types.iter().find(|(known, _)| *known == element);
        found
            .map(|(_, number)| *number)
            .ok_or_else(|| Error::argument(format!("this PyTorch has no {element:?}")))
    }

    /// The element type of a number.
    pub fn element(&self, number: i32) -> Result<Element, Error> {
        let found = self.types.iter().find(|(_, known)| *known == number);
        found.map(|(element, _)| *element).ok_or_else(|| {
            Error::argument("a tensor has a dtype that Fourfold does not take; see hosts/python/README.md")
        })
    }
}

/// Fails if a function of libtorch returned an error.
pub fn ok(status: i32, what: &'static str) -> Result<(), Error> {
    if status == 0 { Ok(()) } else { Err(Error::Torch(what)) }
}

/// A tensor, freed when dropped.
#[derive(Debug)]
pub struct Tensor(pub TensorHandle);

// SAFETY: libtorch counts references atomically.
unsafe impl Send for Tensor {}

impl Drop for Tensor {
    fn drop(&mut self) {
        if let Ok(shim) = shim()
            && !self.0.is_null()
        {
            // SAFETY: the handle is ours.
            unsafe { (shim.delete_tensor)(self.0) };
        }
    }
}

/// The place of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Memory of the host.
    Host,
    /// A GPU's ordinal.
    Cuda(i32),
}

impl Tensor {
    /// Allocates a contiguous tensor.
    pub fn empty(sizes: &[i64], element: Element, place: Place) -> Result<Tensor, Error> {
        let shim = shim()?;
        let mut strides = vec![1i64; sizes.len()];
        for axis in (1..sizes.len()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(sizes[axis].max(1));
        }
        let (kind, index) = match place {
            Place::Host => (shim.device_cpu, 0),
            Place::Cuda(index) => (shim.device_cuda, index),
        };
        // SAFETY: both functions take nothing.
        let kind = unsafe { kind() };
        let number = shim.number(element)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: both arrays have as many elements as there are axes.
        let status = unsafe {
            let rank = sizes.len() as i64;
            (shim.empty)(rank, sizes.as_ptr(), strides.as_ptr(), number, kind, index, &raw mut handle)
        };
        ok(status, "to allocate an output")?;
        Ok(Tensor(handle))
    }

    /// The extents.
    pub fn sizes(&self) -> Result<Vec<i64>, Error> {
        let shim = shim()?;
        let (mut rank, mut sizes) = (0i64, std::ptr::null());
        // SAFETY: the handle is live.
        unsafe {
            ok((shim.rank)(self.0, &raw mut rank), "a tensor")?;
            ok((shim.sizes)(self.0, &raw mut sizes), "a tensor")?;
        }
        let rank = usize::try_from(rank).unwrap_or(0);
        if rank == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the array has as many elements as there are axes.
        Ok(unsafe { std::slice::from_raw_parts(sizes, rank) }.to_vec())
    }

    /// The element type.
    pub fn element(&self) -> Result<Element, Error> {
        let shim = shim()?;
        let mut number = 0;
        // SAFETY: the handle is live.
        ok(unsafe { (shim.dtype)(self.0, &raw mut number) }, "a tensor")?;
        shim.element(number)
    }

    /// The place.
    pub fn place(&self) -> Result<Place, Error> {
        let shim = shim()?;
        let (mut kind, mut index) = (0, 0);
        // SAFETY: the handle is live, and the other functions take nothing.
        unsafe {
            ok((shim.device_type)(self.0, &raw mut kind), "a tensor")?;
            ok((shim.device_index)(self.0, &raw mut index), "a tensor")?;
            match kind {
                _ if kind == (shim.device_cpu)() => Ok(Place::Host),
                _ if kind == (shim.device_cuda)() => Ok(Place::Cuda(index)),
                _ => Err(Error::argument("a tensor is neither on the CPU nor on CUDA")),
            }
        }
    }

    /// The address of the first element.
    pub fn address(&self) -> Result<*mut c_void, Error> {
        let mut address = std::ptr::null_mut();
        // SAFETY: the handle is live.
        ok(unsafe { (shim()?.data)(self.0, &raw mut address) }, "a tensor")?;
        Ok(address)
    }

    /// The tensor in compact row-major memory: itself, or a copy.
    pub fn contiguous(self) -> Result<Tensor, Error> {
        let shim = shim()?;
        let mut is_contiguous = false;
        // SAFETY: the handle is live.
        ok(unsafe { (shim.is_contiguous)(self.0, &raw mut is_contiguous) }, "a tensor")?;
        if is_contiguous {
            return Ok(self);
        }
        // SAFETY: the function takes nothing.
        let format = unsafe { (shim.contiguous_format)() };
        let mut stack = [self.0 as u64, u64::from(format.cast_unsigned())];
        // The dispatcher takes the reference.
        std::mem::forget(self);
        // SAFETY: the stack has the arguments of the op, and room for its result.
        let status = unsafe { (shim.call)(c"aten::contiguous".as_ptr(), c"".as_ptr(), stack.as_mut_ptr()) };
        ok(status, "to copy a tensor that is not contiguous; pass uint8 views of FP4 and FP8")?;
        Ok(Tensor(stack[0] as TensorHandle))
    }
}
