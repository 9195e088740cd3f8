//! The part of cuBLASLt's C interface that is used, equal in versions 12 and 13.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

/// A `cublasStatus_t`; 0 is success.
pub(super) type Status = c_int;

/// A pointer to an opaque object of the library.
pub(super) type Object = *mut c_void;

pub(super) const STATUS_INVALID_VALUE: Status = 7;
pub(super) const STATUS_NOT_SUPPORTED: Status = 15;

/// `cudaDataType`.
pub(super) mod data_type {
    pub(in super::super) const F32: i32 = 0;
    pub(in super::super) const F16: i32 = 2;
    pub(in super::super) const BF16: i32 = 14;
}

/// `cublasComputeType_t`.
pub(super) mod compute {
    /// f32, without a conversion of the operands to shorter types.
    pub(in super::super) const F32: i32 = 68;
    /// f32 in every phase, even where the environment allows emulation by shorter types.
    pub(in super::super) const F32_PEDANTIC: i32 = 69;
}

/// `cublasOperation_t`.
pub(super) mod operation {
    pub(in super::super) const NONE: i32 = 0;
    pub(in super::super) const TRANSPOSE: i32 = 1;
}

/// `cublasLtMatmulDescAttributes_t`.
pub(super) mod desc {
    pub(in super::super) const TRANSPOSE_A: c_int = 3;
    pub(in super::super) const TRANSPOSE_B: c_int = 4;
    use super::c_int;
}

/// `cublasLtMatrixLayoutAttribute_t`.
pub(super) mod layout {
    pub(in super::super) const BATCH_COUNT: c_int = 5;
    pub(in super::super) const BATCH_STRIDE: c_int = 6;
    use super::c_int;
}

/// `cublasLtMatmulPreferenceAttributes_t`.
pub(super) mod preference {
    pub(in super::super) const MAX_WORKSPACE: c_int = 1;
    pub(in super::super) const REDUCTION_SCHEMES: c_int = 3;
    /// The minimum alignments of A, B, C and D.
    pub(in super::super) const ALIGNMENTS: [c_int; 4] = [5, 6, 7, 8];
    /// Partial sums of split-K in the compute type. Algorithms without split-K are always allowed.
    pub(in super::super) const REDUCE_IN_COMPUTE_TYPE: u32 = 2;
    use super::c_int;
}

/// A `cublasLtMatmulAlgo_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Algorithm([u64; 8]);

/// A `cublasLtMatmulHeuristicResult_t`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Found {
    pub(super) algorithm: Algorithm,
    pub(super) workspace: usize,
    pub(super) state: Status,
    waves: f32,
    reserved: [c_int; 4],
}

type Destroy = unsafe extern "C" fn(Object) -> Status;
type SetAttribute = unsafe extern "C" fn(Object, c_int, *const c_void, usize) -> Status;

/// The functions. All but `version` and `status_name` need a device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Functions {
    pub(super) version: unsafe extern "C" fn() -> usize,
    pub(super) status_name: unsafe extern "C" fn(Status) -> *const c_char,
    pub(super) create: unsafe extern "C" fn(*mut Object) -> Status,
    pub(super) destroy: Destroy,
    pub(super) desc_create: unsafe extern "C" fn(*mut Object, c_int, c_int) -> Status,
    pub(super) desc_destroy: Destroy,
    pub(super) desc_set: SetAttribute,
    pub(super) layout_create: unsafe extern "C" fn(*mut Object, c_int, u64, u64, i64) -> Status,
    pub(super) layout_destroy: Destroy,
    pub(super) layout_set: SetAttribute,
    pub(super) preference_create: unsafe extern "C" fn(*mut Object) -> Status,
    pub(super) preference_destroy: Destroy,
    pub(super) preference_set: SetAttribute,
    pub(super) heuristic: unsafe extern "C" fn(
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        c_int,
        *mut Found,
        *mut c_int,
    ) -> Status,
    pub(super) matmul: unsafe extern "C" fn(
        Object,
        Object,
        *const c_void,
        *const c_void,
        Object,
        *const c_void,
        Object,
        *const c_void,
        *const c_void,
        Object,
        *mut c_void,
        Object,
        *const Algorithm,
        *mut c_void,
        usize,
        *mut c_void,
    ) -> Status,
}

impl Functions {
    /// Looks up the functions, or returns the name of one that is missing.
    ///
    /// # Safety
    /// The library must be cuBLASLt, and must stay loaded while the functions are used.
    pub(super) unsafe fn of(library: &Library) -> Result<Functions, &'static str> {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the caller vouches for the library; versions 12 and 13 declare these types.
                unsafe { library.get($name.as_bytes()) }.map(|found| *found).map_err(|_| $name)?
            };
        }
        Ok(Functions {
            version: function!("cublasLtGetVersion"),
            status_name: function!("cublasLtGetStatusName"),
            create: function!("cublasLtCreate"),
            destroy: function!("cublasLtDestroy"),
            desc_create: function!("cublasLtMatmulDescCreate"),
            desc_destroy: function!("cublasLtMatmulDescDestroy"),
            desc_set: function!("cublasLtMatmulDescSetAttribute"),
            layout_create: function!("cublasLtMatrixLayoutCreate"),
            layout_destroy: function!("cublasLtMatrixLayoutDestroy"),
            layout_set: function!("cublasLtMatrixLayoutSetAttribute"),
            preference_create: function!("cublasLtMatmulPreferenceCreate"),
            preference_destroy: function!("cublasLtMatmulPreferenceDestroy"),
            preference_set: function!("cublasLtMatmulPreferenceSetAttribute"),
            heuristic: function!("cublasLtMatmulAlgoGetHeuristic"),
            matmul: function!("cublasLtMatmul"),
        })
    }
}
