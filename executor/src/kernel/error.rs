//! Load errors, and the status of kernel calls.

use std::fmt;
use std::path::PathBuf;

use crate::transient::Transient;

/// The reason that a kernel's library was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file does not exist.
    #[error("the library `{}` does not exist", path.display())]
    NotFound {
        /// The expected path.
        path: PathBuf,
    },
    /// The file changed after it was verified.
    #[error("refusing to load `{}`: {reason}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// The change.
        reason: String,
    },
    /// The dynamic linker rejected the file.
    #[error("cannot load `{}`: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The dynamic linker's message.
        reason: String,
    },
    /// The library is not a kernel of this version.
    #[error("`{}` lacks the symbol `{symbol}`", path.display())]
    MissingSymbol {
        /// The file.
        path: PathBuf,
        /// The missing symbol.
        symbol: &'static str,
    },
    /// The library has another interface version.
    #[error("`{}` has kernel ABI version {found}, but version {expected} is required", path.display())]
    AbiMismatch {
        /// The file.
        path: PathBuf,
        /// The library's version.
        found: u32,
        /// The supported version.
        expected: u32,
    },
    /// The library's self-description does not parse.
    #[error("cannot parse the metadata of `{}`: {reason}", path.display())]
    BadMetadata {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        reason: String,
    },
}

impl LoadError {
    /// The stable code that reports and tests use.
    pub fn code(&self) -> &'static str {
        match self {
            LoadError::NotFound { .. } => "library_missing",
            LoadError::Changed { .. } => self.transient().map_or("library_changed", Transient::code),
            LoadError::Open { .. } => self.transient().map_or("dlopen_error", Transient::code),
            LoadError::MissingSymbol { .. } => "missing_symbol",
            LoadError::AbiMismatch { .. } => "abi_mismatch",
            LoadError::BadMetadata { .. } => "bad_metadata",
        }
    }

    /// The transient failure that prevented loading a good library: memory, file handles, or a file system.
    pub(crate) fn transient(&self) -> Option<Transient> {
        match self {
            LoadError::Open { reason, .. } | LoadError::Changed { reason, .. } => {
                reason.lines().find_map(Transient::said)
            }
            _ => None,
        }
    }

    /// Returns true if, for a freshly built library, only a bug in Fourfold explains the error.
    pub(crate) fn is_our_bug(&self) -> bool {
        !matches!(self, LoadError::NotFound { .. } | LoadError::Changed { .. } | LoadError::Open { .. })
    }
}

/// A kernel's refusal: a nonzero code and a message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Status {
    /// 1 to 11 are CUTLASS's codes; 100 to 999, Fourfold's; from 1000 on, 1000 plus a CUDA error.
    pub code: i32,
    /// The kernel's message; may be empty.
    pub message: String,
}

impl Status {
    /// CUTLASS's code for any problem that its kernel does not support.
    pub const INVALID: i32 = 11;
    /// An extent is negative or too large.
    pub const EXTENT: i32 = 100;
    /// A pointer is misaligned or missing.
    pub const POINTER: i32 = 101;
    /// The workspace is too small.
    pub const WORKSPACE: i32 = 102;
    /// A C++ exception was caught at the interface.
    pub const EXCEPTION: i32 = 103;
    /// An index of a `gather` is outside its axis.
    pub const INDEX: i32 = 104;
    /// A CUDA call failed: the code is this plus the `cudaError_t`, which equals the corresponding `CUresult`.
    pub const CUDA: i32 = 1000;

    /// The CUDA error, if the code encodes one.
    pub fn cuda_error(&self) -> Option<i32> {
        self.code.checked_sub(Status::CUDA).filter(|error| *error > 0)
    }

    /// The stable name of the code, as reports use it.
    pub fn name(&self) -> &'static str {
        match self.code {
            0 => "success",
            1 => "misaligned_operand",
            2 => "invalid_data_type",
            3 => "invalid_layout",
            4 => "invalid_problem",
            5 => "not_supported",
            6 => "workspace_null",
            7 => "internal",
            8 => "arch_mismatch",
            9 => "insufficient_driver",
            10 => "memory_allocation",
            Status::INVALID => "invalid",
            Status::EXTENT => "extent_out_of_range",
            Status::POINTER => "bad_pointer",
            Status::WORKSPACE => "workspace_too_small",
            Status::EXCEPTION => "exception",
            Status::INDEX => "index_out_of_range",
            _ if self.cuda_error().is_some() => "cuda_error",
            _ => "unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel returned status {} ({})", self.code, self.name())?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}
