//! Errors of the commands, their faults and their exit codes.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use fourfold::{Fault, chain};
use fourfold_executor::{DataError, FileError, LaunchRecord, RunError, SealedError, TensorDataError};
use fourfold_import::ImportError;
use fourfold_ir::sample::SampleError;
use fourfold_ir::{BindError, Diagnostic, InterpretError};

/// Returns the exit code of a fault: 2 for input the caller can fix, 3 for something this machine lacks, 70 for a
/// bug in Fourfold.
pub fn exit_code(fault: Fault) -> u8 {
    match fault {
        Fault::InvalidInput | Fault::Unsupported => 2,
        Fault::ResourceLimit | Fault::Device | Fault::Environment => 3,
        Fault::Bug => 70,
    }
}

/// Returns the fault of a file error.
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

/// Returns the fault of a named file that cannot be read: the caller's if the name is wrong or the file denies
/// access.
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

/// Errors of writing or reading a bundle.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BundleError {
    /// Accessing the folder or its files failed.
    #[error(transparent)]
    Folder(#[from] SealedError),
    /// The bundle's description of its run cannot be used.
    #[error("the bundle `{}` has no valid description of its run: {reason}", folder.display())]
    About {
        /// The bundle.
        folder: PathBuf,
        /// The defect.
        reason: String,
    },
    /// The bundle lacks a file that a replay needs.
    #[error("the bundle `{}` lacks `{name}`", folder.display())]
    Lacks {
        /// The bundle.
        folder: PathBuf,
        /// The missing file.
        name: &'static str,
    },
    /// The requested segment does not exist.
    #[error("the program has no segment {segment}; its {count} segments are numbered from 0")]
    NoSuchSegment {
        /// The requested segment.
        segment: usize,
        /// The number of segments; their positions begin at 0.
        count: usize,
    },
    /// The requested segment could not become a program of its own.
    #[error("segment {segment} cannot become a program of its own: {reason}")]
    Cut {
        /// The segment.
        segment: usize,
        /// The reason.
        reason: String,
    },
    /// The program itself could not be read, so there is nothing to keep.
    #[error("the program could not be read, so no bundle was written")]
    NoProgram,
}

/// An error in a file of suites.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}, {place}: {reason}")]
pub struct SuiteError {
    /// The file.
    pub file: String,
    /// The line, or the suite, the case and the key.
    pub place: String,
    /// The defect.
    pub reason: String,
    /// The remedy.
    pub help: &'static str,
}

/// Errors of partitioning, running or comparing a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The text is not a valid program.
    #[error("{} is not a valid program", file.display())]
    Program {
        /// The file.
        file: PathBuf,
        /// The text.
        source_text: String,
        /// Every error in the text, in order.
        diagnostics: Vec<Diagnostic>,
    },
    /// Reading or writing a file failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Reading or writing a data file failed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The tensors do not fit the program's inputs.
    #[error("{0}{remedy}", remedy = remedy_of_bind(.0))]
    Bind(#[from] BindError),
    /// The seeded inputs could not be generated.
    #[error("{0}{remedy}", remedy = remedy_of_sample(.0))]
    Sample(#[from] SampleError),
    /// The folder holds no program.
    #[error("`{}` has no program: no file in or below it ends in .fir", folder.display())]
    NoPrograms {
        /// The folder.
        folder: PathBuf,
    },
    /// An expected tensor does not fit the value it belongs to.
    #[error("`{tensor}` is {found}, but %{value} is {expected}")]
    Expected {
        /// The tensor of the data file.
        tensor: String,
        /// The type and shape of the tensor.
        found: String,
        /// The value.
        value: String,
        /// The type and shape of the value.
        expected: String,
    },
    /// The data file or the program lacks an expected tensor or value.
    #[error("{0}")]
    Missing(String),
    /// A `--data` file has no tensor of the program.
    #[error("the program uses no tensor of {}, which has {has}; its inputs are {inputs}, and its results {expected}",
        file.display())]
    UnusedData {
        /// The file.
        file: PathBuf,
        /// The names of its tensors.
        has: String,
        /// The names that tensors of inputs have.
        inputs: String,
        /// The names that expected results have.
        expected: String,
    },
    /// The data have some of the inputs that the `; sample:` line could draw, but not all of them.
    #[error(
        "{missing} missing: --data has {given}, so the `; sample:` line draws no other input; the program takes \
             {types}"
    )]
    MissingInputs {
        /// The missing inputs, with the verb.
        missing: String,
        /// The inputs that a file has.
        given: String,
        /// The missing inputs with their types.
        types: String,
    },
    /// Writing or reading a bundle failed.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// Importing a model failed.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Running the program failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Interpreting the program failed.
    #[error(transparent)]
    Interpret(#[from] InterpretError),
    /// A run that had to keep every value did not keep this one.
    #[error("bug: the run did not keep the value `{0}`, which a comparison needs; please report the program")]
    NotKept(String),
    /// Memory is insufficient.
    #[error("cannot allocate {bytes} bytes for {what}")]
    Memory {
        /// The purpose of the memory.
        what: String,
        /// The bytes needed.
        bytes: usize,
    },
    /// Interpreting the program would take too long.
    #[error("`{op}` is too large for the interpreter; give its expected result in the data")]
    TooMuchWork {
        /// The op, as `%name = mnemonic`.
        op: String,
    },
    /// A file of suites is wrong.
    #[error(transparent)]
    Suite(#[from] SuiteError),
    /// The command needs a GPU.
    #[error("nothing can be measured: {message}")]
    NoDevice {
        /// The reason.
        message: String,
    },
    /// A required peer is missing.
    #[error("no peer can be measured: {message}")]
    NoPeer {
        /// The reason.
        message: String,
    },
    /// The report file was not written.
    #[error(transparent)]
    Report(FileError),
    /// The report was to be the standard output.
    #[error("--report must name a file, because the report is written several times")]
    ReportOnStream,
    /// Planning or compiling the program failed.
    #[error(transparent)]
    Backend(Box<fourfold::Error>),
}

impl Error {
    /// Returns the party at fault.
    pub fn fault(&self) -> Fault {
        match self {
            Error::Backend(error) => error.fault(),
            Error::Run(error) => fourfold::run_fault(error),
            Error::Bundle(BundleError::Folder(SealedError::Disk { .. })) => Fault::Environment,
            Error::File(error) | Error::Report(error) => fault_of_file(error),
            Error::Data(error) | Error::Bundle(BundleError::Folder(SealedError::Data(error))) => {
                fault_of_data(error)
            }
            // The limit of a configuration is far above those of real models.
            Error::Import(ImportError::File(FileError::TooLong { .. })) => Fault::InvalidInput,
            Error::Import(ImportError::File(error)) => fault_of_file(error),
            Error::Import(ImportError::Data(error)) => fault_of_data(error),
            Error::NoDevice { .. } | Error::NoPeer { .. } => Fault::Environment,
            Error::NotKept(_) | Error::Import(ImportError::InvalidProgram { .. }) => Fault::Bug,
            Error::Sample(SampleError::Tensor { source, .. }) if source.is_resource_limit() => {
                Fault::ResourceLimit
            }
            Error::Sample(SampleError::Extents { .. }) => Fault::ResourceLimit,
            Error::Memory { .. } => Fault::ResourceLimit,
            Error::Interpret(InterpretError::Memory { .. }) => Fault::ResourceLimit,
            error if error.is_too_large_to_interpret() => Fault::ResourceLimit,
            Error::Interpret(
                InterpretError::Index { .. }
                | InterpretError::Offset { .. }
                | InterpretError::GroupCount { .. }
                | InterpretError::Group { .. }
                | InterpretError::PaddedEnd { .. },
            ) => Fault::InvalidInput,
            Error::Interpret(_) => Fault::Bug,
            _ => Fault::InvalidInput,
        }
    }

    /// Returns true if the interpreter refuses values of this size, however much memory is available.
    pub(crate) fn is_too_large_to_interpret(&self) -> bool {
        match self {
            Error::Interpret(InterpretError::Result { source, .. }) => source.is_resource_limit(),
            Error::Interpret(InterpretError::TooLarge { .. } | InterpretError::Extents { .. })
            | Error::TooMuchWork { .. } => true,
            _ => false,
        }
    }

    /// Returns the error as text for people, ending in a newline. Diagnostics come with their source lines.
    pub fn render(&self) -> String {
        match self {
            Error::Program { file, source_text, diagnostics } => {
                let file = file.display().to_string();
                diagnostics.iter().map(|diagnostic| diagnostic.render(&file, source_text)).collect()
            }
            other => {
                let launch = other.launch().map_or_else(String::new, |launch| format!("{launch}\n"));
                let line = |word: &str, text: Option<&str>| {
                    text.map_or_else(String::new, |text| format!("{word}: {text}\n"))
                };
                let (note, help) = (line("note", other.cause()), line("help", other.remedy()));
                format!("error: {}\n{note}{help}{launch}", other.message())
            }
        }
    }

    /// Returns the party at fault in words, for an error that names none.
    fn cause(&self) -> Option<&'static str> {
        match self {
            Error::Report(FileError::Write { .. }) => {
                Some("this machine does not let the file be written (fault: environment)")
            }
            Error::Report(_) | Error::ReportOnStream => {
                Some("the path cannot be used (fault: invalid_input)")
            }
            _ => None,
        }
    }

    /// Returns the remedy, for an error whose message has none.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Error::Report(FileError::Exists { .. }) => {
                Some("name another file with --report, or move this one away")
            }
            Error::Report(_) => {
                Some("name a file with --report in a folder that exists and that you may write to")
            }
            Error::ReportOnStream => Some("write `--report ./-` for a file named `-`"),
            Error::UnusedData { .. } => {
                Some("name each tensor of the file like an input, or `expected.NAME` for the result %NAME")
            }
            Error::Suite(error) => Some(error.help),
            Error::NoDevice { .. } => Some("run it on a machine with a GPU of the target, or add --dry-run"),
            Error::NoPeer { .. } => {
                Some("name a Python that has torch with CUDA with --python, or use --peers none")
            }
            Error::MissingInputs { .. } => Some("add these inputs to the --data file, or give none"),
            _ => None,
        }
    }

    /// Returns the arguments of the launch that failed, which are recorded in debug mode only.
    pub fn launch(&self) -> Option<&LaunchRecord> {
        match self {
            Error::Run(RunError::Device { place, .. }) => place.launch.as_ref(),
            _ => None,
        }
    }

    /// Returns the error with its causes, on one line.
    pub fn message(&self) -> String {
        chain(self)
    }

    /// Returns [`message`](Error::message), and the diagnostics of a program with their places and source lines.
    pub(crate) fn detailed(&self) -> String {
        match self {
            Error::Program { .. } => format!("{}\n{}", self.message(), self.render().trim_end()),
            _ => self.message(),
        }
    }
}

/// Returns true if memory, open files or processes ran out.
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

/// Returns the remedy if the data do not determine the extent of a symbol.
fn remedy_of_bind(error: &BindError) -> String {
    match error {
        BindError::Undetermined { name } => format!("; give its extent with `--symbol {name}=EXTENT`"),
        _ => String::new(),
    }
}

/// Returns the remedy if seeded inputs lack the extent of a symbol.
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
