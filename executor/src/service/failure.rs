//! Failures as data: a stable code, the party at fault, a remedy, and the compiler's own message.

use std::error::Error;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};

use crate::build::BuildError;
use crate::causes::chain;
use crate::fault::BuildFault;
use crate::kernel::LoadError;
use crate::toolchain::{ToolchainError, ToolchainFault};
use crate::transient::Transient;

/// The reason that a kernel is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// One of [`FAILURE_CODES`].
    pub code: &'static str,
    /// The party at fault.
    pub fault: BuildFault,
    /// A one-line message with the compiler's first error.
    pub message: String,
    /// The remedy, as a sentence without its final period.
    pub remedy: String,
    /// The compiler's first error, verbatim.
    pub first_error: Option<String>,
    /// The compiler's output, if it ran.
    pub log: Option<String>,
    /// True if the same compiler would fail again. Such a failure is retried only on request.
    pub lasting: bool,
    /// True if the failure was read from a record rather than observed now.
    #[serde(skip)]
    pub remembered: bool,
}

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCode {
    /// The stable code in reports.
    pub code: &'static str,
    /// The condition that the code reports.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    /// True if such a failure may last: it concerns the kernel or the compiler, and is recorded.
    pub lasts: bool,
}

impl FailureCode {
    /// Finds a code by its name.
    pub fn find(name: &str) -> Option<&'static FailureCode> {
        FAILURE_CODES.iter().find(|known| known.code == name)
    }
}

/// Returns true if a recorded failure turns out to be transient, judging by its code and text. Its kernel is then
/// tried again.
pub fn has_passed(code: &str, words: &str) -> bool {
    FailureCode::find(code).is_some_and(|known| !known.lasts)
        || words.lines().any(|line| Transient::said(line).is_some())
}

const fn code(code: &'static str, meaning: &'static str, remedy: &'static str) -> FailureCode {
    FailureCode { code, meaning, remedy, lasts: false }
}

/// A code whose failures may last.
const fn lasting(code: &'static str, meaning: &'static str, remedy: &'static str) -> FailureCode {
    FailureCode { code, meaning, remedy, lasts: true }
}

const INSTALL: &str =
    "run `fourfold toolchain install`, or use --nvcc and --cutlass (FOURFOLD_NVCC, FOURFOLD_CUTLASS)";
const REPORT: &str =
    "report the program and the compiler's log; until it is fixed, the segment runs on the fallback";
const FREE: &str = "free space there, or set FOURFOLD_CACHE_DIR or TMPDIR to a folder with more";

/// Every failure code: of builds, of loading and of toolchains.
pub const FAILURE_CODES: &[FailureCode] = &[
    code("toolchain_missing", "No nvcc, CUTLASS or cuobjdump was found", INSTALL),
    code(
        "toolchain_unusable",
        "A named tool is invalid or cannot be started",
        "name one that works, or drop the option or variable",
    ),
    code(
        "toolchain_too_old",
        "The named nvcc or CUTLASS is too old",
        "name a newer one, or run `fourfold toolchain install` and name none",
    ),
    code(
        "toolchain_known_bad",
        "The only nvcc or CUTLASS found is known to build wrong kernels for the target",
        "run `fourfold toolchain install` and name no other version, or pass --allow-known-bad \
         (FOURFOLD_ALLOW_KNOWN_BAD)",
    ),
    code(
        "toolchain_damaged",
        "A toolchain copied from another machine is incomplete or changed",
        "run `fourfold toolchain install` on a machine with a network, and copy the folder that it prints",
    ),
    lasting(
        "target_unsupported",
        "The compiler is too old for the target",
        "run `fourfold toolchain install`, or name a newer compiler with --nvcc (FOURFOLD_NVCC)",
    ),
    code("launcher_missing", "The compiler launcher was not found", "install it, or omit --launcher"),
    code(
        "unsafe_path",
        "Shell metacharacters are in a tool's file name or, with a launcher or in debug mode, in the path of the build \
         folder",
        "rename it, or set FOURFOLD_CACHE_DIR to a path without them",
    ),
    code(
        "no_cache_folder",
        "No variable names a cache folder for the toolchain",
        "set FOURFOLD_CACHE_DIR to a writable folder",
    ),
    code(
        "cache_unusable",
        "The folder for the toolchain cannot be read or written",
        "set FOURFOLD_CACHE_DIR to a writable folder",
    ),
    code(
        "no_packages",
        "No compiler packages exist for this processor",
        "install a CUDA toolkit and set FOURFOLD_NVCC to its nvcc",
    ),
    code(
        "no_python",
        "python3, whose pip installs the compiler, was not found",
        "install python3 with pip, or copy a toolchain from another machine with `fourfold toolchain install --from \
         DIR`",
    ),
    code(
        "no_pip",
        "python3 has no pip, which installs the compiler",
        "install python3 with pip, or copy a toolchain from another machine with `fourfold toolchain install --from \
         DIR`",
    ),
    code(
        "offline",
        "The package index could not be reached",
        "check the network and pip's settings, or copy a toolchain from another machine with `fourfold toolchain \
         install --from DIR`",
    ),
    code(
        "packages_not_offered",
        "The package index does not offer the pinned packages",
        "update pip to 20.3 or newer, or check the package index that it is configured to use",
    ),
    code(
        "package_mismatch",
        "A package does not have its pinned hash",
        "check the package index that pip is configured to use; its packages were not installed",
    ),
    code(
        "packages_incomplete",
        "The downloaded packages lack files or have an unexpected version",
        "check the package index that pip is configured to use; its packages were not installed",
    ),
    code(
        "pip_failed",
        "pip failed for another reason",
        "run `python3 -m pip --version` and fix what it reports",
    ),
    lasting(
        "compile_error",
        "The compiler rejected the source, or lacks a file",
        "read the compiler's log; if compiler files are missing, reinstall the compiler and run with --retry",
    ),
    code(
        "compile_timeout",
        "The compiler exceeded its time limit and was killed with its children",
        "raise --time-limit, or run fewer builds at once with --jobs",
    ),
    code(
        "compiler_crashed",
        "A signal terminated the compiler or one of its children",
        "run again; if it crashes again, try another version of the compiler",
    ),
    code(
        "out_of_memory",
        "The compiler ran out of memory, or could not be started for lack of it",
        "run fewer builds at once with --jobs, or use a machine with more memory",
    ),
    code(
        "out_of_processes",
        "The limit on processes, threads or open files was reached",
        "run fewer builds at once with --jobs, or raise the limits (`ulimit -u`, `ulimit -n`)",
    ),
    code(
        "disk_full",
        "The file system of the temporary files, the cache or the toolchain is full, or a quota is reached",
        FREE,
    ),
    code(
        "disk",
        "A file or folder could not be read or written, or was removed while in use",
        "check the file systems and permissions of the temporary folder and of FOURFOLD_CACHE_DIR",
    ),
    lasting(
        "no_output",
        "The compiler reported success but wrote no library",
        "check the compiler with `fourfold doctor`",
    ),
    lasting(
        "inspect_error",
        "The library could not be disassembled",
        "check cuobjdump and nvdisasm with `fourfold doctor`",
    ),
    lasting("no_mma", "The binary lacks its matrix instruction", REPORT),
    lasting("not_emulated", "An emulated kernel has an instruction that cannot be emulated", REPORT),
    lasting("metadata_mismatch", "Library metadata does not match the plan", REPORT),
    code("library_missing", "The library no longer exists", "run again to rebuild the kernel"),
    code(
        "library_changed",
        "The library changed after it was built",
        "run again to rebuild the kernel; check which users and processes write to FOURFOLD_CACHE_DIR",
    ),
    code(
        "dlopen_error",
        "The dynamic linker rejected the library",
        "read the linker's message, and install the missing libraries",
    ),
    lasting("missing_symbol", "The library lacks a symbol of the kernel ABI", REPORT),
    lasting("abi_mismatch", "The library has another kernel ABI version", REPORT),
    lasting("bad_metadata", "Library metadata cannot be parsed", REPORT),
    code("cancelled", "The build was cancelled", "request the kernel again"),
    code("internal_error", "A bug in Fourfold stopped the build", REPORT),
];

/// A failure record of this version or another.
#[derive(Deserialize)]
struct Written {
    code: String,
    fault: BuildFault,
    message: String,
    remedy: String,
    first_error: Option<String>,
    log: Option<String>,
    lasting: bool,
}

impl<'de> Deserialize<'de> for Failure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Failure, D::Error> {
        let Written { code, fault, message, remedy, first_error, log, lasting } =
            Written::deserialize(deserializer)?;
        let unknown = || serde::de::Error::custom(format!("unknown failure code `{code}`"));
        let known = FailureCode::find(&code).ok_or_else(unknown)?;
        // Earlier versions recorded some transient failures as lasting.
        let lasting = lasting && !has_passed(&code, first_error.as_deref().unwrap_or_default());
        Ok(Failure { code: known.code, fault, message, remedy, first_error, log, lasting, remembered: false })
    }
}

impl Failure {
    /// Creates a failure with its code's remedy.
    pub(crate) fn new(code: &'static str, fault: BuildFault, message: impl Into<String>) -> Failure {
        let remedy = FailureCode::find(code).map_or_else(String::new, |known| known.remedy.to_owned());
        let message = message.into();
        Failure {
            code,
            fault,
            message,
            remedy,
            first_error: None,
            log: None,
            lasting: false,
            remembered: false,
        }
    }

    pub(super) fn cancelled(kernel: &str) -> Failure {
        let message = format!("the build of kernel {kernel} was cancelled");
        Failure::new("cancelled", BuildFault::Caller, message)
    }

    /// The party at fault.
    pub fn fault(&self) -> BuildFault {
        self.fault
    }

    /// The remedy.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {}

impl From<&BuildError> for Failure {
    fn from(error: &BuildError) -> Failure {
        Failure {
            first_error: error.first_error().map(str::to_owned),
            log: error.log().map(str::to_owned),
            lasting: error.is_lasting(),
            ..Failure::new(error.code(), error.fault(), chain(error))
        }
    }
}

impl From<&ToolchainError> for Failure {
    fn from(error: &ToolchainError) -> Failure {
        let fault = match (error, error.fault()) {
            (ToolchainError::DiskFull { .. }, _) => BuildFault::ResourceLimit,
            (ToolchainError::Shortage { shortage, .. }, _) => shortage.fault(),
            (_, ToolchainFault::Request | ToolchainFault::Machine | ToolchainFault::Network) => {
                BuildFault::Toolchain
            }
        };
        Failure { remedy: error.remedy().to_owned(), ..Failure::new(error.code(), fault, chain(error)) }
    }
}

impl From<&LoadError> for Failure {
    fn from(error: &LoadError) -> Failure {
        let fault = match error.transient() {
            Some(transient) => transient.fault(),
            None if error.is_our_bug() => BuildFault::OurBug,
            None => BuildFault::Environment,
        };
        Failure::new(error.code(), fault, chain(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_listed_once_with_what_to_do() {
        for (index, code) in FAILURE_CODES.iter().enumerate() {
            let first = FAILURE_CODES.iter().position(|other| other.code == code.code);
            assert_eq!(first, Some(index), "{} is listed twice", code.code);
            assert!(!code.meaning.is_empty() && !code.remedy.is_empty());
            assert!(!code.remedy.ends_with('.') && !code.meaning.ends_with('.'), "{}", code.code);
            assert!(code.code.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
        }
    }

    /// The codes that a source file mentions, read from its text so that no new code is missed.
    fn codes_in(source: &str) -> Vec<&str> {
        let (_, function) = source.split_once("pub fn code(&self)").expect("it has codes");
        let (function, _) = function.split_once("\n    }\n").expect("the function ends");
        function.split('"').skip(1).step_by(2).collect()
    }

    #[test]
    fn every_code_that_an_error_gives_is_listed() {
        let sources = [
            include_str!("../build/error.rs"),
            include_str!("../toolchain/error.rs"),
            include_str!("../kernel/error.rs"),
        ];
        let mut count = 0;
        for code in sources.into_iter().flat_map(codes_in) {
            assert!(FailureCode::find(code).is_some(), "`{code}` is not listed");
            count += 1;
        }
        assert!(count > 30, "{count}");
    }

    #[test]
    fn a_failure_survives_being_written_down() {
        let mut failure = Failure::new("compile_error", BuildFault::OurBug, "kernel.cu(7): error: größer");
        (failure.lasting, failure.log) = (true, Some("line 1\nline 2\n".to_owned()));
        let text = serde_json::to_string(&failure).unwrap();
        assert_eq!(serde_json::from_str::<Failure>(&text).unwrap(), failure);
        let unknown = text.replace("compile_error", "of_the_future");
        assert!(serde_json::from_str::<Failure>(&unknown).is_err());
    }
}
