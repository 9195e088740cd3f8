//! What can be wrong with a data file.

use std::io;
use std::path::PathBuf;

use fourfold_ir::{BindError, ElementType, TensorError};

/// Why a data file could not be read or written. Each names the file, and the tensor where there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is a folder, a pipe or a device.
    #[error("`{}` is not a regular file", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write `{}`", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Two tensors to be written have the same name.
    #[error("`{}` cannot hold two tensors named `{tensor}`", path.display())]
    DuplicateName {
        /// The file.
        path: PathBuf,
        /// The name.
        tensor: String,
    },
    /// The file does not begin as a safetensors file does.
    #[error("`{}` is not a safetensors file: {reason}", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with its beginning.
        reason: String,
    },
    /// The file ends before, or goes on after, what its header describes.
    #[error(
        "`{}` is truncated or damaged: its header describes {expected} bytes{}, the file has {found}",
        path.display(), last(tensor.as_deref())
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// The tensor that ends last, if there is one.
        tensor: Option<String>,
        /// Bytes that header and tensors take together.
        expected: u64,
        /// Bytes in the file.
        found: u64,
    },
    /// The header has two entries of one name.
    #[error("`{}`: the header has two entries for the tensor `{tensor}`", path.display())]
    RepeatedEntry {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// Two tensors share bytes.
    #[error(
        "`{}`: the tensors `{first}` and `{second}` overlap: `{first}` ends at byte {end} of the data, `{second}` \
         begins at byte {start}",
        path.display()
    )]
    Overlap {
        /// The file.
        path: PathBuf,
        /// The tensor that begins first.
        first: String,
        /// The byte at which it ends.
        end: u64,
        /// The other tensor.
        second: String,
        /// The byte at which it begins.
        start: u64,
    },
    /// Bytes before a tensor belong to none.
    #[error(
        "`{}`: the bytes {start} to {end} of the data belong to no tensor; the next one, `{tensor}`, begins after them",
        path.display()
    )]
    Hole {
        /// The file.
        path: PathBuf,
        /// The first of the bytes.
        start: u64,
        /// The byte after the last.
        end: u64,
        /// The tensor that begins there.
        tensor: String,
    },
    /// There is no memory for a tensor.
    #[error("`{}`: there is no memory for the {bytes} bytes of the tensor `{tensor}`", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its size.
        bytes: u64,
    },
    /// The header's entry for a tensor is wrong in itself.
    #[error("`{}`: the header's entry for the tensor `{tensor}` is wrong: {reason}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor does not fit the type of the input that it is named after.
    #[error("`{}`: the tensor `{tensor}` does not fit the input `%{tensor}: {ty}`", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The tensor and the input.
        tensor: String,
        /// The input's type.
        ty: String,
        /// How it does not fit.
        source: Box<TensorDataError>,
    },
    /// The inputs contradict each other about a symbol, or leave one undetermined that blocked scales need.
    #[error("`{}`: the tensors do not give the extents of the program's inputs", path.display())]
    Bind {
        /// The file.
        path: PathBuf,
        /// The contradiction.
        source: Box<BindError>,
    },
    /// An input that determines the extents of blocked scales has no tensor.
    #[error("`{}` has no tensor for the input `%{input}: {ty}`", path.display())]
    MissingInput {
        /// The file.
        path: PathBuf,
        /// The input.
        input: String,
        /// Its type.
        ty: String,
    },
}

impl DataError {
    /// The system's error, if there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            DataError::Read { source, .. } | DataError::Write { source, .. } => Some(source),
            _ => None,
        }
    }
}

fn last(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(", of which the tensor `{tensor}` has the last"))
}

/// Why a stored tensor cannot be read as some type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorDataError {
    /// The dtype cannot hold the element type.
    #[error("its dtype is {found}, but {element} is stored as {accepted}")]
    Dtype {
        /// The element type.
        element: ElementType,
        /// The dtypes that can hold it.
        accepted: String,
        /// The dtype in the file.
        found: String,
    },
    /// The shape is another.
    #[error("its shape is {found:?} in elements, not {expected:?}")]
    Shape {
        /// The shape that it should have.
        expected: Vec<usize>,
        /// The shape that it has, in elements of the type.
        found: Vec<usize>,
    },
    /// The shape is none that the type's symbols allow.
    #[error("its shape is {found:?} in elements, which is not of the form [{expected}]")]
    ShapePattern {
        /// The extents of the type.
        expected: String,
        /// The shape that it has, in elements of the type.
        found: Vec<usize>,
    },
    /// FP4 with an odd last extent, or none.
    #[error("its shape is {shape:?}, but FP4 is packed in pairs along the last axis, which must be even")]
    OddFp4 {
        /// The shape.
        shape: Vec<usize>,
    },
    /// Blocked scales do not fill their padded buffer.
    #[error(
        "its shape is {shape:?}, {found} bytes, but blocked scales {dims:?} take {expected} bytes: rows rounded up \
         to 128 times columns rounded up to 4 for each matrix"
    )]
    BlockedSize {
        /// The extents of the scales without padding.
        dims: Vec<usize>,
        /// Bytes that they take.
        expected: usize,
        /// Bytes stored.
        found: usize,
        /// The shape stored.
        shape: Vec<usize>,
    },
    /// An extent is beyond what any tensor has.
    #[error("its shape is {shape:?}, larger than memory can be")]
    TooLarge {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The type itself cannot be.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}
