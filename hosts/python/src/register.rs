//! Definition of the ops, and the border between their kernels and libtorch.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use crate::error::Error;
use crate::ops;
use crate::shim::{KernelFn, Shim, ok, shim};
use crate::stack::{Arguments, Results};

/// The version of libtorch whose conventions for arguments this library follows: 2.10.0.
const CONVENTIONS: u64 = (2 << 56) | (10 << 48);

thread_local! {
    /// The message of an exception. Nothing else may be alive in the frame that throws.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Runs a kernel. Returns false if it failed, with the message in [`MESSAGE`].
///
/// # Safety
/// The stack has the arguments of the schema, and room for `outputs` results.
unsafe fn dispatch(
    stack: *mut u64,
    outputs: u64,
    schema: &str,
    kernel: fn(Arguments) -> Result<Results, Error>,
) -> bool {
    let run = || -> Result<(), Error> {
        // SAFETY: the caller vouches for the stack.
        unsafe { kernel(Arguments::take(stack, schema)?)?.put(stack, outputs) }
    };
    let error = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => return true,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "bug: a panic in Fourfold; please report the call".to_owned(),
    };
    let name = schema.split('(').next().unwrap_or("");
    let message = format!("fourfold::{name}: {}", error.replace('\0', " "));
    MESSAGE.with(|slot| *slot.borrow_mut() = CString::new(message).unwrap_or_default());
    false
}

/// Throws the message as a C++ exception, which libtorch turns into Python's `RuntimeError`.
fn throw() {
    let text = MESSAGE.with(|slot| slot.borrow().as_ptr());
    if let Ok(Shim { check, .. }) = shim() {
        // SAFETY: the texts are live, and no destructor waits in this frame or that of the kernel.
        unsafe {
            check(false, c"fourfold".as_ptr(), c"hosts/python/src/register.rs".as_ptr(), line!(), text)
        };
    }
}

macro_rules! kernels {
    ($($name:ident: $schema:literal;)*) => {
        $(unsafe extern "C-unwind" fn $name(stack: *mut u64, _inputs: u64, outputs: u64) {
            // SAFETY: libtorch calls the kernel with the arguments of its schema.
            if !unsafe { dispatch(stack, outputs, $schema, ops::$name) } {
                throw();
            }
        })*

        /// Name, schema and kernel of each op.
        const OPS: &[(&CStr, &str, KernelFn)] = &[$((name(concat!(stringify!($name), "\0")), $schema, $name)),*];
    };
}

const fn name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the macro appends one NUL"),
    }
}

kernels! {
    segment: "segment(str ir, Tensor[] tensors) -> Tensor[]";
    scaled_mm: "scaled_mm(Tensor a, Tensor? sfa, Tensor b, Tensor sfb, Tensor? alpha=None, Tensor? bias=None, *, \
        str format=\"nvfp4\", bool swizzled_a=False, bool swizzled_b=False, str activation=\"none\", \
        ScalarType out_dtype) -> Tensor";
    scaled_mm_quantized: "scaled_mm_quantized(Tensor a, Tensor? sfa, Tensor b, Tensor sfb, Tensor? alpha=None, \
        Tensor? bias=None, Tensor? scale=None, *, str format=\"nvfp4\", bool swizzled_a=False, bool swizzled_b=False, \
        str activation=\"none\", ScalarType out_dtype, str out_format=\"nvfp4\", \
        bool swizzled_out=False) -> (Tensor, Tensor)";
    scaled_mm_by_m: "scaled_mm_by_m(Tensor a, Tensor b, Tensor sfb, Tensor scale, Tensor? input_scale=None, \
        Tensor? alpha=None, Tensor? bias=None, *, str first=\"measured\", int[] ends=[], \
        ScalarType out_dtype) -> Tensor";
    scaled_mm_kernel: "scaled_mm_kernel(Tensor a, Tensor? sfa, Tensor b, Tensor sfb, Tensor? alpha=None, *, \
        str kernel) -> Tensor";
    grouped_mm: "grouped_mm(Tensor a, Tensor? sfa, Tensor b, Tensor sfb, Tensor ends, Tensor? alpha=None, \
        Tensor? bias=None, Tensor? expert=None, *, str format=\"nvfp4\", bool swizzled_b=False, \
        str activation=\"none\", ScalarType out_dtype) -> Tensor";
    quantize: "quantize(Tensor x, Tensor? scale=None, *, \
        str format=\"nvfp4\", bool swizzled=False, str rounding=\"floor\") -> (Tensor, Tensor)";
    dequantize: "dequantize(Tensor codes, Tensor scales, Tensor? scale=None, *, \
        str format=\"nvfp4\", bool swizzled=False, ScalarType out_dtype) -> Tensor";
    quantize_dynamic: "quantize_dynamic(Tensor x, *, bool swizzled=False) -> (Tensor, Tensor, Tensor)";
    reduce: "reduce(Tensor x, str kind, int[] axes, bool keep_dims=False) -> Tensor";
    softmax: "softmax(Tensor x, int axis) -> Tensor";
    softmax_backward: "softmax_backward(Tensor grad, Tensor y, int axis) -> Tensor";
    copy_transpose: "copy_transpose(Tensor x, int[] permutation) -> Tensor";
}

fn define() -> Result<(), Error> {
    let shim = shim()?;
    let (namespace, file) = (c"fourfold".as_ptr(), c"hosts/python/src/register.rs".as_ptr());
    let mut library = std::ptr::null_mut();
    // SAFETY: the texts are terminated. The library handles are never freed, which would remove the ops.
    unsafe {
        ok((shim.init_def)(namespace, file, line!(), &raw mut library), "the namespace `fourfold`")?;
        for (_, schema, _) in OPS {
            let schema = CString::new(*schema).map_err(|_| Error::Bug("a schema has a NUL".to_owned()))?;
            ok((shim.def)(library, schema.as_ptr()), "the schema of an op")?;
        }
        for key in [c"CPU", c"CUDA"] {
            let mut library = std::ptr::null_mut();
            ok((shim.init_impl)(namespace, key.as_ptr(), file, line!(), &raw mut library), "a dispatch key")?;
            for (name, _, kernel) in OPS {
                ok((shim.implement)(library, name.as_ptr(), *kernel, CONVENTIONS), "the kernel of an op")?;
            }
        }
    }
    Ok(())
}

/// Defines the ops in the libtorch of this process, once. Returns null, or a message that lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn fourfold_torch_register() -> *const c_char {
    static RESULT: OnceLock<Option<CString>> = OnceLock::new();
    let define = || {
        let message = match catch_unwind(define) {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "bug: a panic in Fourfold".to_owned(),
        };
        Some(CString::new(message.replace('\0', " ")).unwrap_or_default())
    };
    RESULT.get_or_init(define).as_ref().map_or(std::ptr::null(), |message| message.as_ptr())
}
