//! Errors.

use fourfold::Fault;
use fourfold::executor::FileError;
use fourfold_import::{ImportError, OnnxGraphError};
use ort_sys::OrtErrorCode;

/// The reason that a call of the provider fails.
#[derive(Debug, thiserror::Error)]
pub enum ProviderError {
    /// A call of ONNX Runtime failed.
    #[error("{function}: {message}")]
    Runtime { function: &'static str, message: String },
    /// A provider option has an unusable value.
    #[error("the provider option `{name}` is `{value}`; expected {expected}")]
    Option { name: &'static str, value: String, expected: &'static str },
    /// No provider option has this name.
    #[error("no provider option is named `{name}`; the options are {}", .known.join(", "))]
    UnknownOption { name: String, known: &'static [&'static str] },
    /// Nodes that the provider has claimed have no program.
    #[error("{node}: {message}")]
    Region { node: String, message: String },
    /// An EPContext node cannot be loaded.
    #[error("EPContext node `{node}`: {message}")]
    Context { node: String, message: String },
    /// A tensor does not fit the compiled program.
    #[error("input {position} of `{node}`: {message}")]
    Input { node: String, position: usize, message: String },
    /// A result does not fit an output of the node.
    #[error("output {position} of `{node}`: {message}")]
    Output { node: String, position: usize, message: String },
    /// A call fails. The program calls the node's inputs `%i0`, `%i1` and so on.
    #[error("`{node}`, with {inputs}: {}", fourfold::chain(.source.as_ref()))]
    Run { node: String, inputs: String, source: Box<fourfold::Error> },
    /// A file cannot be written or read.
    #[error("cannot {action} {path}: {source}")]
    File { action: &'static str, path: String, source: std::io::Error },
    /// The file of an EPContext cannot be written.
    #[error(transparent)]
    ContextFile(#[from] FileError),
    /// The temporary file of a region cannot be written or read.
    #[error(transparent)]
    Graph(#[from] OnnxGraphError),
    /// The weights of a region cannot be read.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Fourfold cannot plan, compile or run a program.
    #[error("{}", fourfold::chain(.0.as_ref()))]
    Fourfold(Box<fourfold::Error>),
}

impl From<fourfold::Error> for ProviderError {
    fn from(error: fourfold::Error) -> ProviderError {
        ProviderError::Fourfold(Box::new(error))
    }
}

impl ProviderError {
    /// The code of the status. It is never `ORT_EP_FAIL`, at which Python's `run` drops the session, and starts another
    /// one without the provider.
    pub fn code(&self) -> OrtErrorCode {
        let of = |error: &fourfold::Error| match error.fault() {
            Fault::InvalidInput => OrtErrorCode::ORT_INVALID_ARGUMENT,
            Fault::Unsupported => OrtErrorCode::ORT_NOT_IMPLEMENTED,
            _ => OrtErrorCode::ORT_FAIL,
        };
        match self {
            ProviderError::Option { .. } | ProviderError::Input { .. } => OrtErrorCode::ORT_INVALID_ARGUMENT,
            ProviderError::Context { .. } => OrtErrorCode::ORT_INVALID_GRAPH,
            ProviderError::Run { source, .. } => of(source),
            ProviderError::Fourfold(error) => of(error),
            _ => OrtErrorCode::ORT_FAIL,
        }
    }
}
