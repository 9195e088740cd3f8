//! Reading and writing of safetensors files, and binding of tensors to program inputs.

mod allocation;
mod bind;
mod decode;
mod dtype;
mod error;
mod gguf;
mod header;
mod parts;
mod place;
mod raw;
mod reference;
mod reference_error;
mod safetensors_file;
mod selection;
mod slice;
#[cfg(test)]
mod source_tests;
mod sources;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::{Module, Tensor};
use safetensors::View;

pub use self::error::{DataError, PartsFault, TensorDataError};
pub use self::header::StoredTensor;
pub use self::raw::RawTensor;
pub use self::reference::{TensorEncoding, TensorReference, TensorSource};
pub use self::reference_error::ReferenceError;
pub use self::safetensors_file::SafetensorsFile;
pub use self::slice::AxisSlice;
pub use self::sources::{DataSources, OpenSources, OtherTensors};
use crate::files::{FileError, write_file};

/// The name prefix of expected results.
const EXPECTED_PREFIX: &str = "expected.";

/// The tensors of data files, sorted by their role in a program.
#[derive(Clone, Debug, Default)]
pub struct DataFile {
    /// The tensors of the program's inputs, in the inputs' types.
    pub inputs: HashMap<String, Tensor>,
    /// The tensors named `expected.NAME`, by NAME, in name order.
    pub expected: Vec<(String, RawTensor)>,
    /// Other tensors.
    pub other: HashMap<String, RawTensor>,
    /// Tensors that were left out because a later file replaces an input that they belong to, with the reason.
    pub stale: BTreeMap<String, String>,
    /// The files that were opened.
    pub files: Vec<PathBuf>,
    /// True if references of the program were resolved.
    pub has_references: bool,
}

/// Reads a safetensors file. A tensor named as an input of `module` must fit the input's type: FP4 may be stored as
/// `F4` or packed in `U8` or `U32`, 8-bit floats as `U8`, and wider floats as another float. The extents of blocked
/// scales follow from the other inputs; their stored shape may be any of the same size. An input without a tensor is
/// no error here.
///
/// # Errors
/// When the file cannot be read or is not a valid safetensors file, or a tensor does not fit its input's type.
pub fn read_tensors(path: &Path, module: &Module) -> Result<DataFile, DataError> {
    read_tensors_given(path, module, &[])
}

/// Like [`read_tensors`], with some symbol values given, as in [`fourfold_ir::bind::bind_given`].
///
/// # Errors
/// As [`read_tensors`], and when there are blocked scales and the given values do not fit the program.
pub fn read_tensors_given(
    path: &Path,
    module: &Module,
    given: &[(String, u64)],
) -> Result<DataFile, DataError> {
    let sources = DataSources { given: vec![path.to_owned()], ..DataSources::default() };
    sources.read(module, given, OtherTensors::All)
}

/// Writes a safetensors file that [`read_tensors`] can read: FP4 packed in `U8`, blocked scales with their padded
/// extents. The file is written atomically.
///
/// # Errors
/// When the file cannot be written, the path exists and is not a regular file, or two tensors have the same name.
pub fn write_tensors(path: &Path, tensors: &[(&str, &Tensor)]) -> Result<(), DataError> {
    write(path, tensors.iter().map(|(name, tensor)| ((*name).to_owned(), Stored::new(tensor))).collect())
}

/// Writes a safetensors file with the tensors of data files: the inputs in their types, and the others as stored. The
/// file is written atomically.
///
/// # Errors
/// As [`write_tensors`], and when a tensor has an unknown dtype.
pub fn write_data(path: &Path, data: &DataFile) -> Result<(), DataError> {
    let inputs = data.inputs.iter().map(|(name, tensor)| Ok((name.clone(), Stored::new(tensor))));
    let expected = data.expected.iter().map(|(name, tensor)| (format!("{EXPECTED_PREFIX}{name}"), tensor));
    let others = data.other.iter().map(|(name, tensor)| (name.clone(), tensor));
    let raw = expected.chain(others).map(|(name, tensor)| match Stored::raw(tensor) {
        Some(stored) => Ok((name, stored)),
        None => Err(DataError::Write {
            path: path.to_owned(),
            source: io::Error::other(format!("the dtype {} of `{name}` is unknown", tensor.dtype)),
        }),
    });
    write(path, inputs.chain(raw).collect::<Result<_, _>>()?)
}

fn write(path: &Path, mut tensors: Vec<(String, Stored<'_>)>) -> Result<(), DataError> {
    tensors.sort_unstable_by(|(left, _), (right, _)| left.cmp(right));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(DataError::DuplicateName { path: path.to_owned(), tensor: pair[0].0.clone() });
    }
    let total = tensors.iter().map(|(_, tensor)| tensor.bytes.len()).sum();
    check_memory(total)
        .map_err(|error| DataError::Write { path: path.to_owned(), source: out_of_memory(error) })?;
    let bytes = safetensors::serialize(tensors, None)
        .map_err(|error| DataError::Write { path: path.to_owned(), source: io::Error::other(error) })?;
    write_file(path, &bytes).map_err(|error| of_file(path, error))
}

fn of_file(path: &Path, error: FileError) -> DataError {
    let path = path.to_owned();
    match error {
        FileError::Read { source, .. } => DataError::Read { path, source },
        FileError::Write { source, .. } => DataError::Write { path, source },
        FileError::NotRegular { .. } => DataError::NotRegular { path },
        other => DataError::Read { path, source: io::Error::other(other) },
    }
}

fn out_of_memory(error: NoMemory) -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, error)
}

/// A tensor in its stored form.
struct Stored<'a> {
    bytes: &'a [u8],
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
}

impl<'a> Stored<'a> {
    fn new(tensor: &'a Tensor) -> Stored<'a> {
        let (dtype, shape) = (dtype::of_element(tensor.element()), dtype::stored_shape(tensor));
        Stored { bytes: tensor.bytes(), dtype, shape }
    }

    /// A tensor as it was read; `None` if its dtype is unknown.
    fn raw(tensor: &'a RawTensor) -> Option<Stored<'a>> {
        let dtype = serde_json::from_value(tensor.dtype.as_str().into()).ok()?;
        Some(Stored { bytes: &tensor.bytes, dtype, shape: tensor.dims.clone() })
    }
}

impl View for Stored<'_> {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}
