//! The errors of an import. Each names its file, and the tensor at fault if there is one.

use std::path::PathBuf;

use fourfold_executor::{DataError, FileError};
use fourfold_ir::ElementType;

/// The reason that a source cannot be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// A safetensors file cannot be read, or is malformed.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A file is not JSON.
    #[error("`{}` is not JSON: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A file is not the JSON of a torch.export graph.
    #[error("`{}` is not a torch.export graph: {source}; to import a checkpoint, name its folder or a weights file",
        path.display())]
    NotGraph {
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// The source is `-`.
    #[error(
        "a model cannot be read from the standard input: name a folder or a file (`./-` for a file named `-`)"
    )]
    StandardInput,
    /// A configuration or index file does not have the expected form.
    #[error("`{}`: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The wrong part, and the expected one.
        reason: String,
    },
    /// An index assigns a tensor to a shard that does not hold it.
    #[error("`{}` assigns the tensor `{tensor}` to `{shard}`, which does not hold it", path.display())]
    NotInShard {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The name of the shard.
        shard: String,
    },
    /// An index names a shard outside its folder.
    #[error("`{}` assigns the tensor `{tensor}` to the shard `{shard}`, which is not the name of a file beside it",
        path.display())]
    ShardPath {
        /// The index.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The shard as the index names it.
        shard: String,
    },
    /// Two files hold a tensor of the same name.
    #[error("`{}` and `{}` both hold the tensor `{tensor}`", first.display(), second.display())]
    RepeatedTensor {
        /// One file.
        first: PathBuf,
        /// The other file.
        second: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// A folder holds no model.
    #[error("`{}` holds no model: expected graph.json, or files that end in .safetensors, .onnx or .gguf",
        path.display())]
    NoModel {
        /// The folder.
        path: PathBuf,
    },
    /// The source is neither a folder nor a file of a known format.
    #[error("`{}` is not a model: expected a folder, or a .safetensors, .onnx, .gguf or .json file", path.display())]
    UnknownSource {
        /// The source.
        path: PathBuf,
    },
    /// The symbol of M is not a word.
    #[error("`{symbol}` is not a symbol: expected letters, digits, `_` and `.`, not beginning with a digit")]
    Symbol {
        /// The symbol.
        symbol: String,
    },
    /// An activation type is not arithmetic.
    #[error("{element} is not a type of activations: expected f32, bf16 or f16")]
    ActivationType {
        /// The type.
        element: ElementType,
    },
    /// A path is not text, and a program cannot name it.
    #[error("`{}` is not UTF-8, so a program cannot name it; rename the file or its folder", path.display())]
    PathText {
        /// The path.
        path: PathBuf,
    },
    /// No program has a name that the pattern selects.
    #[error("`{pattern}` selects none of the {count} names, such as `{example}`")]
    SelectsNothing {
        /// The pattern.
        pattern: String,
        /// The number of names of modules.
        count: usize,
        /// The name of one of them.
        example: String,
    },
    /// An imported program is not valid: a bug.
    #[error("bug: the program of `{name}` is not valid: {reason}; please report the model")]
    InvalidProgram {
        /// The name of the program.
        name: String,
        /// The verifier's first error.
        reason: String,
    },
}
