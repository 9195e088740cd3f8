//! Errors of the commands, whose fault each is, and the exit codes.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use fourfold::{Fault, chain};
use fourfold_executor::{DataError, FileError, LaunchRecord, RunError, SealedError, TensorDataError};
use fourfold_ir::sample::SampleError;
use fourfold_ir::{BindError, Diagnostic, InterpretError};

/// The exit code for a fault: 2 for what the caller can mend, 3 for what this machine lacks, 70 for a bug of ours.
pub fn exit_code(fault: Fault) -> u8 {
    match fault {
        Fault::InvalidInput | Fault::Unsupported => 2,
        Fault::ResourceLimit | Fault::Device | Fault::Environment => 3,
        Fault::Bug => 70,
    }
}

/// Whose fault a file error is.
pub fn fault_of_file(error: &FileError) -> Fault {
    match error {
        FileError::Write { source, .. } if is_shortage(source) => Fault::ResourceLimit,
        FileError::Write { .. } => Fault::Environment,
        FileError::TooLong { .. } => Fault::ResourceLimit,
        other => other.io().map_or(Fault::InvalidInput, of_reading),
    }
}

fn fault_of_data(error: &DataError) -> Fault {
    match error {
        DataError::Write { source, .. } if is_shortage(source) => Fault::ResourceLimit,
        DataError::Write { .. } => Fault::Environment,
        DataError::Memory { .. } => Fault::ResourceLimit,
        DataError::Input { source, .. } if is_resource_limit(source) => Fault::ResourceLimit,
        other => other.io().map_or(Fault::InvalidInput, of_reading),
    }
}

/// Whose fault it is that a file which was named cannot be read: the caller's, where its name is wrong or it is not
/// for this user.
fn of_reading(error: &io::Error) -> Fault {
    match error.kind() {
        _ if is_shortage(error) => Fault::ResourceLimit,
        ErrorKind::NotFound
        | ErrorKind::PermissionDenied
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::InvalidFilename
        | ErrorKind::InvalidInput
        | ErrorKind::UnexpectedEof => Fault::InvalidInput,
        // A loop of links has no stable kind.
        _ if error.raw_os_error() == Some(LINK_LOOP) => Fault::InvalidInput,
        _ => Fault::Environment,
    }
}

/// `ELOOP`.
const LINK_LOOP: i32 = 40;

/// Why a bundle could not be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Its folder or files.
    #[error(transparent)]
    Folder(#[from] SealedError),
    /// What a bundle says of itself is not what bundles say.
    #[error("`{}` is a bundle that does not say how it is replayed: {reason}", folder.display())]
    About {
        /// The bundle.
        folder: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A bundle lacks what a replay needs.
    #[error("the bundle `{}` lacks `{name}`", folder.display())]
    Lacks {
        /// The bundle.
        folder: PathBuf,
        /// The file.
        name: &'static str,
    },
    /// The segment that was to be cut out is not there.
    #[error("there is no segment {segment}; the program has {count}")]
    NoSuchSegment {
        /// What was asked for.
        segment: usize,
        /// How many there are, counted from 0.
        count: usize,
    },
    /// The segment that was to be cut out could not be.
    #[error("segment {segment} could not be cut out: {reason}")]
    Cut {
        /// The segment.
        segment: usize,
        /// Why not.
        reason: String,
    },
    /// There was nothing to be kept: the program itself could not be read.
    #[error("there is no bundle, as the program could not be read")]
    NoProgram,
}

/// Why a program was not partitioned, run or compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program's text is not a program.
    #[error("{} is not a valid program", file.display())]
    Program {
        /// The file.
        file: PathBuf,
        /// Its text.
        source_text: String,
        /// Every error in it, in order.
        diagnostics: Vec<Diagnostic>,
    },
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A data file could not be used.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Tensors do not fit the program's inputs.
    #[error("{0}{remedy}", remedy = remedy_of_bind(.0))]
    Bind(#[from] BindError),
    /// Seeded inputs could not be made.
    #[error("{0}{remedy}", remedy = remedy_of_sample(.0))]
    Sample(#[from] SampleError),
    /// A folder with programs has none.
    #[error("there is no program in `{}`: no file in it or below it ends in .fir", folder.display())]
    NoPrograms {
        /// The folder.
        folder: PathBuf,
    },
    /// An expected tensor cannot be compared with the value of its name.
    #[error("`{tensor}` is {found}, but %{value} is {expected}")]
    Expected {
        /// The tensor of the data.
        tensor: String,
        /// What it is.
        found: String,
        /// The value.
        value: String,
        /// What the value is.
        expected: String,
    },
    /// The data name an expectation that the program or the data lack.
    #[error("{0}")]
    Missing(String),
    /// A bundle could not be written or read.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The program could not be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The program could not be interpreted.
    #[error(transparent)]
    Interpret(#[from] InterpretError),
    /// A run that was to keep every value did not.
    #[error("bug: `{0}` is needed for a comparison and was not kept; please report the program")]
    NotKept(String),
    /// There is not enough memory.
    #[error("{what} takes {bytes} bytes, more than there is memory")]
    Memory {
        /// The purpose of the memory.
        what: String,
        /// Bytes that were needed.
        bytes: usize,
    },
    /// Interpreting the program would take too long.
    #[error("`{op}` is too large for the interpreter; give its expected result in the data")]
    TooMuchWork {
        /// The op, as `%name = mnemonic`.
        op: String,
    },
    /// The program could not be planned or compiled.
    #[error(transparent)]
    Backend(Box<fourfold::Error>),
}

impl Error {
    /// Whose fault it was.
    pub fn fault(&self) -> Fault {
        match self {
            Error::Backend(error) => error.fault(),
            Error::Run(error) => fourfold::run_fault(error),
            Error::Bundle(BundleError::Folder(SealedError::Disk { .. })) => Fault::Environment,
            Error::File(error) => fault_of_file(error),
            Error::Data(error) | Error::Bundle(BundleError::Folder(SealedError::Data(error))) => {
                fault_of_data(error)
            }
            Error::NotKept(_) => Fault::Bug,
            Error::Sample(SampleError::Tensor { source, .. }) if source.is_resource_limit() => {
                Fault::ResourceLimit
            }
            Error::Sample(SampleError::Extents { .. }) => Fault::ResourceLimit,
            Error::Memory { .. } => Fault::ResourceLimit,
            Error::Interpret(InterpretError::Memory { .. }) => Fault::ResourceLimit,
            error if error.is_too_large_to_interpret() => Fault::ResourceLimit,
            Error::Interpret(_) => Fault::Bug,
            _ => Fault::InvalidInput,
        }
    }

    /// Returns whether the interpreter does not take values of this size, however much memory there is.
    pub(crate) fn is_too_large_to_interpret(&self) -> bool {
        match self {
            Error::Interpret(InterpretError::Result { source, .. }) => source.is_resource_limit(),
            Error::Interpret(InterpretError::TooLarge { .. } | InterpretError::Extents { .. })
            | Error::TooMuchWork { .. } => true,
            _ => false,
        }
    }

    /// The error as shown to people, ending in a newline: diagnostics with their source lines.
    pub fn render(&self) -> String {
        match self {
            Error::Program { file, source_text, diagnostics } => {
                let file = file.display().to_string();
                diagnostics.iter().map(|diagnostic| diagnostic.render(&file, source_text)).collect()
            }
            other => {
                let launch = other.launch().map_or_else(String::new, |launch| format!("{launch}\n"));
                format!("error: {}\n{launch}", other.message())
            }
        }
    }

    /// What the kernel that failed was given, where that is known: in debug mode.
    pub fn launch(&self) -> Option<&LaunchRecord> {
        match self {
            Error::Run(RunError::Device { place, .. }) => place.launch.as_ref(),
            _ => None,
        }
    }

    /// The error with its causes, on one line.
    pub fn message(&self) -> String {
        chain(self)
    }
}

/// Returns whether memory, open files or processes were not enough.
fn is_shortage(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::OutOfMemory | ErrorKind::WouldBlock)
        || matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

const ENFILE: i32 = 23;
const EMFILE: i32 = 24;

fn is_resource_limit(error: &TensorDataError) -> bool {
    match error {
        TensorDataError::Tensor(source) => source.is_resource_limit(),
        TensorDataError::TooLarge { .. } => true,
        _ => false,
    }
}

/// The remedy where data do not give a symbol its extent.
fn remedy_of_bind(error: &BindError) -> String {
    match error {
        BindError::Undetermined { name } => format!("; give its extent with `--symbol {name}=EXTENT`"),
        _ => String::new(),
    }
}

/// The remedy where a symbol has no extent and inputs are seeded.
fn remedy_of_sample(error: &SampleError) -> String {
    match error {
        SampleError::MissingSymbol { name } => format!(
            "; give its extent with `--symbol {name}=EXTENT` of `fourfold replay`, or as `{name}=EXTENT` on the \
             program's `; sample:` line"
        ),
        _ => String::new(),
    }
}

impl From<fourfold::Error> for Error {
    fn from(error: fourfold::Error) -> Error {
        match error {
            fourfold::Error::Bind(error) => Error::Bind(error),
            fourfold::Error::Run(error) => Error::Run(error),
            error => Error::Backend(Box::new(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_is_the_machine_s_fault_and_a_wrong_name_the_caller_s() {
        let path = || PathBuf::from("x");
        let file = |kind: ErrorKind, write: bool| match write {
            true => fault_of_file(&FileError::Write { path: path(), source: kind.into() }),
            false => fault_of_file(&FileError::Read { path: path(), source: kind.into() }),
        };
        for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::StorageFull] {
            assert_eq!(file(kind, true), Fault::Environment, "{kind}");
            let written = DataError::Write { path: path(), source: kind.into() };
            let sealed = SealedError::Data(written);
            assert_eq!(Error::Bundle(BundleError::Folder(sealed)).fault(), Fault::Environment, "{kind}");
        }
        assert_eq!(file(ErrorKind::NotFound, false), Fault::InvalidInput);
        assert_eq!(file(ErrorKind::OutOfMemory, false), Fault::ResourceLimit);
        for (number, fault) in
            [(5, Fault::Environment), (116, Fault::Environment), (24, Fault::ResourceLimit)]
        {
            // EIO, ESTALE, EMFILE.
            let source = io::Error::from_raw_os_error(number);
            assert_eq!(fault_of_file(&FileError::Read { path: path(), source }), fault, "{number}");
        }
        assert_eq!(fault_of_file(&FileError::NotRegular { path: path() }), Fault::InvalidInput);
    }
}
