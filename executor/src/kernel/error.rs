//! Why a library was not loaded, and what a loaded kernel answers when it refuses.

use std::fmt;
use std::path::PathBuf;

use crate::transient::Transient;

/// Why a kernel's library was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// There is no such file.
    #[error("there is no library at `{}`", path.display())]
    NotFound {
        /// Where it was expected.
        path: PathBuf,
    },
    /// It changed after it was verified.
    #[error("`{}` is refused: {reason}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How.
        reason: String,
    },
    /// The dynamic linker refused it.
    #[error("cannot load `{}`: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the dynamic linker said.
        reason: String,
    },
    /// It is a library, and not a kernel of this version.
    #[error("`{}` lacks the symbol `{symbol}`", path.display())]
    MissingSymbol {
        /// The file.
        path: PathBuf,
        /// The symbol.
        symbol: &'static str,
    },
    /// It was built for another version of the interface.
    #[error("`{}` has version {found} of the kernel interface, and version {expected} is needed", path.display())]
    AbiMismatch {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
        /// Ours.
        expected: u32,
    },
    /// What it says about itself cannot be understood.
    #[error("the metadata of `{}` cannot be read: {reason}", path.display())]
    BadMetadata {
        /// The file.
        path: PathBuf,
        /// Why.
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

    /// The shortage that kept a good library from being loaded, if it passes: memory, file handles, or a file system.
    pub(crate) fn transient(&self) -> Option<Transient> {
        match self {
            LoadError::Open { reason, .. } | LoadError::Changed { reason, .. } => {
                reason.lines().find_map(Transient::said)
            }
            _ => None,
        }
    }

    /// Whether a library that was just built can only fail so through a bug of ours.
    pub(crate) fn is_our_bug(&self) -> bool {
        !matches!(self, LoadError::NotFound { .. } | LoadError::Changed { .. } | LoadError::Open { .. })
    }
}

/// What a kernel answers when it refuses: a code other than 0, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Status {
    /// 1 to 11 are CUTLASS's own; from 100 on they are Fourfold's; from 1000 on they are 1000 and a CUDA error.
    pub code: i32,
    /// What the kernel said; it may be empty.
    pub message: String,
}

impl Status {
    /// CUTLASS's answer to every problem that its kernel cannot take.
    pub const INVALID: i32 = 11;
    /// An extent is negative or too large.
    pub const EXTENT: i32 = 100;
    /// A pointer is misaligned or missing.
    pub const POINTER: i32 = 101;
    /// The workspace is too small.
    pub const WORKSPACE: i32 = 102;
    /// A C++ exception was caught at the border.
    pub const EXCEPTION: i32 = 103;
    /// A CUDA call failed: the code is this and the `cudaError_t`, which is the `CUresult` of the same meaning.
    pub const CUDA: i32 = 1000;

    /// The CUDA error, if it is one.
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
            _ if self.cuda_error().is_some() => "cuda_error",
            _ => "unknown",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel answered {} ({})", self.code, self.name())?;
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}
