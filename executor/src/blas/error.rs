//! Errors of the matrix library.

use std::path::PathBuf;

use fourfold_ir::ElementType;

use super::problem::MatmulProblem;
use super::version::BlasVersion;
use crate::device::DeviceError;

/// The reason that cuBLASLt cannot be used, or cannot compute a product.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BlasError {
    /// No library was found.
    #[error(
        "there is no cuBLASLt library (libcublasLt.so.13 or libcublasLt.so.12){}",
        .tried.iter().map(|tried| format!("; {tried}")).collect::<String>()
    )]
    Missing {
        /// The libraries that were found but not used, with reasons.
        tried: Vec<String>,
    },
    /// The library that `FOURFOLD_CUBLASLT` names cannot be opened.
    #[error("FOURFOLD_CUBLASLT names `{}`, {problem}", .path.display())]
    Named {
        /// The path.
        path: PathBuf,
        /// The problem, as a clause that starts with `which`.
        problem: String,
    },
    /// A file is not cuBLASLt: it lacks a function.
    #[error("`{}` lacks the function {function}", .path.display())]
    Function {
        /// The file.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// The library has a major version that is not supported.
    #[error("cuBLASLt {found} in `{}` is not supported; expected version 12 or 13", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: BlasVersion,
    },
    /// An extent is out of range. Callers handle products without elements: D is empty if L, M or N is 0, and zero
    /// if K is 0.
    #[error("{name} is {extent}; expected 1 to {}", i32::MAX)]
    Extent {
        /// The extent's name: `L`, `M`, `N`, `K` or `L*M`.
        name: &'static str,
        /// Its value.
        extent: i64,
    },
    /// The library does not multiply these element types.
    #[error("cuBLASLt does not compute mma of {} and {} with a result of {}", .elements[0], .elements[1], .elements[2])]
    Elements {
        /// The element types of A, B and D.
        elements: [ElementType; 3],
    },
    /// The library has no algorithm for a problem.
    #[error("cuBLASLt has no algorithm for {problem}")]
    NoAlgorithm {
        /// The problem.
        problem: MatmulProblem,
    },
    /// A call of the library failed.
    #[error("{call} failed: {name} ({code})")]
    Call {
        /// The call.
        call: &'static str,
        /// The `cublasStatus_t`.
        code: i32,
        /// Its name.
        name: String,
    },
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

impl BlasError {
    /// The stable code that reports and tests use.
    pub fn code(&self) -> &'static str {
        match self {
            BlasError::Missing { .. }
            | BlasError::Named { .. }
            | BlasError::Function { .. }
            | BlasError::Version { .. } => "no_blas",
            BlasError::Extent { .. } => "extent_range",
            BlasError::Elements { .. } | BlasError::NoAlgorithm { .. } => "no_algorithm",
            BlasError::Call { .. } => "device_error",
            BlasError::Device(error) => error.code(),
        }
    }

    /// Advice for the machine's owner.
    pub fn remedy(&self) -> &'static str {
        match self {
            BlasError::Missing { .. } | BlasError::Function { .. } | BlasError::Version { .. } => {
                "install cuBLAS 12 or 13, from the CUDA toolkit or the Python package `nvidia-cublas`, or set \
                 FOURFOLD_CUBLASLT to libcublasLt.so.13"
            }
            BlasError::Named { .. } => {
                "set FOURFOLD_CUBLASLT to libcublasLt.so.13 or its folder, or unset it to search for the library"
            }
            BlasError::Extent { .. } | BlasError::Elements { .. } | BlasError::NoAlgorithm { .. } => {
                "run this op on the fallback"
            }
            BlasError::Call { .. } => "check the device with `nvidia-smi`, and free device memory",
            BlasError::Device(error) => error.remedy(),
        }
    }
}
