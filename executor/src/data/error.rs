//! Errors of reading and writing data files.

use std::io;
use std::path::{Path, PathBuf};

use fourfold_ir::{BindError, ElementType, TensorError};

use super::reference::TensorEncoding;
use super::slice::AxisSlice;

/// The reason that a data file could not be read or written. Each variant names the file, and the tensor if there is
/// one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be opened or read.
    #[error("cannot read `{}`", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The path is a folder, pipe or device.
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
        /// The system's error.
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
    /// The file does not start with a valid safetensors header.
    #[error("`{}` is not a safetensors file: {reason}", path.display())]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// The problem with its header.
        reason: String,
    },
    /// The file's length does not match its header.
    #[error(
        "`{}` is truncated or damaged: its header describes {expected} bytes{}, but the file has {found}",
        path.display(), last(tensor.as_deref())
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// The last tensor in the file, if any.
        tensor: Option<String>,
        /// The total size of header and tensors, in bytes.
        expected: u64,
        /// The size of the file, in bytes.
        found: u64,
    },
    /// The header has two entries with the same name.
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
    /// Bytes before a tensor belong to no tensor.
    #[error(
        "`{}`: the bytes {start} to {end} of the data belong to no tensor; the next one, `{tensor}`, begins after them",
        path.display()
    )]
    Hole {
        /// The file.
        path: PathBuf,
        /// The first such byte.
        start: u64,
        /// The byte after the last such byte.
        end: u64,
        /// The tensor that follows.
        tensor: String,
    },
    /// Memory is insufficient for a tensor.
    #[error("`{}`: cannot allocate {bytes} bytes for the tensor `{tensor}`", path.display())]
    Memory {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The tensor's size, in bytes.
        bytes: u64,
    },
    /// A tensor's header entry is inconsistent.
    #[error("`{}`: the header's entry for the tensor `{tensor}` is invalid: {reason}", path.display())]
    Entry {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The problem with it.
        reason: String,
    },
    /// The parts of an input are not those of its first axis.
    #[error("the references to indices of the input `%{input}: {ty}` do not make it: {fault}")]
    Parts {
        /// The input.
        input: String,
        /// The input's type.
        ty: String,
        /// The wrong part.
        fault: PartsFault,
    },
    /// A tensor does not fit the type of its input.
    #[error("`{}`: {tensor} does not fit the input `%{input}: {ty}`", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// The tensor, such as "the tensor `w`".
        tensor: String,
        /// The input.
        input: String,
        /// The input's type.
        ty: String,
        /// The mismatch.
        source: Box<TensorDataError>,
    },
    /// The inputs imply contradictory symbol values, or leave a symbol undetermined that blocked scales need.
    #[error("{}: the tensors do not determine the extents of the program's inputs", listed(files))]
    Bind {
        /// The data files.
        files: Vec<PathBuf>,
        /// The contradiction.
        source: Box<BindError>,
    },
    /// An input that determines the extents of blocked scales is missing.
    #[error("{} no tensor for the input `%{input}: {ty}`", have(files))]
    MissingInput {
        /// The data files.
        files: Vec<PathBuf>,
        /// The input.
        input: String,
        /// Its type.
        ty: String,
    },
    /// A reference names a tensor that its file lacks.
    #[error(
        "{} no tensor `{tensor}`, to which the input `%{input}` refers{}",
        have(files), meant(nearest.as_deref())
    )]
    NoTensor {
        /// The file, or the data files.
        files: Vec<PathBuf>,
        /// The tensor.
        tensor: String,
        /// The input.
        input: String,
        /// The tensor with the most similar name.
        nearest: Option<String>,
    },
    /// A reference names no file, and there is no data file either.
    #[error(
        "the input `%{input}` refers to the tensor `{tensor}` of a data file, but there is none; add `in \"FILE\"` to \
         its `; tensor:` line, or a `; data: FILE` line"
    )]
    NoDataFile {
        /// The tensor.
        tensor: String,
        /// The input.
        input: String,
    },
    /// A reference is for an input that the program lacks.
    #[error("the program has no input `%{input}`, for which a tensor is named")]
    NoInput {
        /// The input.
        input: String,
    },
    /// A reference takes bytes beyond the end of a file.
    #[error("`{}` has {length} bytes, so the bytes {start}:{end} of the input `%{input}` are not in it", path.display())]
    NoBytes {
        /// The file.
        path: PathBuf,
        /// The input.
        input: String,
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
        /// The size of the file, in bytes.
        length: u64,
    },
    /// Bytes of a file differ from those that a reference was made for.
    #[error(
        "`{}` has changed since the program was made: the bytes {start}:{end}, which the input `%{input}` needs, have \
         another hash; import the model again",
        path.display()
    )]
    Changed {
        /// The file.
        path: PathBuf,
        /// The input.
        input: String,
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
}

impl DataError {
    pub(super) fn changed(path: &Path, input: &str, start: u64, end: u64) -> DataError {
        DataError::Changed { path: path.to_owned(), input: input.to_owned(), start, end }
    }

    /// The system's error, if there is one.
    pub fn io(&self) -> Option<&io::Error> {
        match self {
            DataError::Read { source, .. } | DataError::Write { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Lists files.
fn listed(files: &[PathBuf]) -> String {
    let listed: Vec<String> = files.iter().map(|file| format!("`{}`", file.display())).collect();
    match listed.as_slice() {
        [] => "the data".to_owned(),
        [one] => one.clone(),
        [many @ .., last] => format!("{} and {last}", many.join(", ")),
    }
}

/// Lists files as the subject of "have".
fn have(files: &[PathBuf]) -> String {
    format!("{} {}", listed(files), if files.len() > 1 { "have" } else { "has" })
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

fn last(tensor: Option<&str>) -> String {
    tensor.map_or_else(String::new, |tensor| format!(" (up to the end of the tensor `{tensor}`)"))
}

/// The reason that a stored tensor does not have some type.
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
    /// The shape differs.
    #[error("its shape is {found:?} in elements, not {expected:?}")]
    Shape {
        /// The expected shape.
        expected: Vec<usize>,
        /// The stored shape, in elements of the type.
        found: Vec<usize>,
    },
    /// The shape does not match the type's symbolic extents.
    #[error("its shape is {found:?} in elements, which is not of the form [{expected}]")]
    ShapePattern {
        /// The type's extents.
        expected: String,
        /// The stored shape, in elements of the type.
        found: Vec<usize>,
    },
    /// The last extent of FP4 data is odd or missing.
    #[error("its shape is {shape:?}, but FP4 is packed in pairs along the last axis, which must be even")]
    OddFp4 {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The last extent of FP6 data in bytes is no multiple of three.
    #[error("its shape is {shape:?}, but FP6 is packed along the last axis, four in three bytes")]
    OddFp6 {
        /// The shape, in bytes.
        shape: Vec<usize>,
    },
    /// The size of blocked scales does not match their padded extents.
    #[error(
        "its shape is {shape:?}, {found} bytes, but blocked scales {dims:?} take {expected} bytes: rows rounded up \
         to 128 times columns rounded up to 4 for each matrix"
    )]
    BlockedSize {
        /// The extents of the scales, without padding.
        dims: Vec<usize>,
        /// The required bytes.
        expected: u64,
        /// The stored bytes.
        found: u64,
        /// The stored shape.
        shape: Vec<usize>,
    },
    /// The size of a range of bytes does not match the type.
    #[error("it has {found} bytes, but {dims:?} {element} takes {expected}")]
    Bytes {
        /// The element type.
        element: ElementType,
        /// The extents.
        dims: Vec<usize>,
        /// The required bytes.
        expected: u64,
        /// The bytes of the range.
        found: u64,
    },
    /// A slice has more axes than the tensor.
    #[error("its slice has {axes} axes, but its shape is {shape:?}")]
    SliceRank {
        /// The axes of the slice.
        axes: usize,
        /// The stored shape.
        shape: Vec<usize>,
    },
    /// A slice exceeds the extent of an axis.
    #[error("the slice `{slice}` of axis {axis} exceeds its shape {shape:?}")]
    SliceBounds {
        /// The axis, from 0.
        axis: usize,
        /// The slice of the axis.
        slice: AxisSlice,
        /// The stored shape.
        shape: Vec<usize>,
    },
    /// A slice of elements that are smaller than a byte begins or ends within one.
    #[error("its slice takes parts of bytes, because an element of {dtype} is smaller than a byte")]
    SliceInByte {
        /// The dtype.
        dtype: String,
    },
    /// The encoding has no meaning for the tensor.
    #[error("`as {}` is for {}, but this is {element} stored as {found}", encoding.name(), encoding.takes())]
    Encoding {
        /// The encoding.
        encoding: TensorEncoding,
        /// The element type.
        element: ElementType,
        /// The dtype.
        found: String,
    },
    /// An extent exceeds that of any tensor.
    #[error("its shape is {shape:?}, which exceeds the address space")]
    TooLarge {
        /// The shape.
        shape: Vec<usize>,
    },
    /// The type itself is invalid.
    #[error(transparent)]
    Tensor(#[from] TensorError),
}

/// The reason that references to parts do not make an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PartsFault {
    /// The input has an extent that is not fixed, or no extent.
    #[error("only an input with fixed extents has parts")]
    Extents,
    /// The input has a reference to a whole tensor, too.
    #[error("another reference is to the whole input")]
    Whole,
    /// No reference has an index of the first axis.
    #[error("no reference is to index {part} of the first axis, whose extent is {count}")]
    Missing {
        /// The index.
        part: u64,
        /// The extent of the first axis.
        count: u64,
    },
    /// Two references have one index.
    #[error("two references are to index {part}")]
    Repeated {
        /// The index.
        part: u64,
    },
    /// An index is outside the first axis.
    #[error("index {part} is outside the first axis, whose extent is {count}")]
    Outside {
        /// The index.
        part: u64,
        /// The extent of the first axis.
        count: u64,
    },
    /// A part does not end with a byte.
    #[error("its parts share bytes")]
    SharedBytes,
}
