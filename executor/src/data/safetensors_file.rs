//! Safetensors files that are read tensor by tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::allocation::zeros;
use super::error::DataError;
use super::header::{self, StoredTensor};
use super::{RawTensor, of_file};
use crate::files::open_regular;

/// An open safetensors file. Opening it reads and checks the header only, and each tensor is read on request. So a
/// file may be larger than memory.
///
/// Symbolic links are followed, since caches of checkpoints consist of them. The file itself must be a regular one.
///
/// ```
/// use fourfold_executor::{SafetensorsFile, write_tensors};
/// use fourfold_ir::Tensor;
///
/// let folder = std::env::temp_dir().join("fourfold-doc-safetensors");
/// std::fs::create_dir_all(&folder)?;
/// let path = folder.join("data.safetensors");
/// write_tensors(&path, &[("x", &Tensor::from_f32(vec![2], &[1.0, 2.0])?)])?;
///
/// let file = SafetensorsFile::open(&path)?;
/// let x = file.find("x").expect("it was written");
/// assert_eq!((x.dtype.as_str(), x.shape.as_slice(), x.end - x.start), ("F32", &[2][..], 8));
/// assert_eq!(file.read(x)?.bytes[..4], 1f32.to_le_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SafetensorsFile {
    path: PathBuf,
    file: File,
    length: u64,
    /// In file order.
    tensors: Vec<StoredTensor>,
    /// Positions in `tensors`, in name order.
    by_name: Vec<usize>,
    metadata: BTreeMap<String, String>,
}

impl SafetensorsFile {
    /// Opens a file, and reads and checks its header: at most 100 MB of JSON, no name twice, and tensors that cover the
    /// rest of the file exactly once.
    ///
    /// # Errors
    /// When the file cannot be read, is not a regular file, or has an invalid header.
    pub fn open(path: &Path) -> Result<SafetensorsFile, DataError> {
        let (file, length) = open_regular(path).map_err(|error| of_file(path, error))?;
        let header::Header { tensors, metadata } = header::read(path, &file, length)?;
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_unstable_by(|left, right| tensors[*left].name.cmp(&tensors[*right].name));
        Ok(SafetensorsFile { path: path.to_owned(), file, length, tensors, by_name, metadata })
    }

    /// The path that the file was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The size of the file in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// The header's map `__metadata__`; empty if there is none.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Finds a tensor by name.
    pub fn find(&self, name: &str) -> Option<&StoredTensor> {
        let found = self.by_name.binary_search_by(|at| self.tensors[*at].name.as_str().cmp(name));
        found.ok().map(|at| &self.tensors[self.by_name[at]])
    }

    /// Reads the bytes of a tensor of this file.
    ///
    /// # Errors
    /// When the file cannot be read, or memory is insufficient.
    pub fn read(&self, tensor: &StoredTensor) -> Result<RawTensor, DataError> {
        let mut bytes = self.room_for(&tensor.name, tensor.end.saturating_sub(tensor.start))?;
        self.read_at(&mut bytes, tensor.start)?;
        Ok(RawTensor { dtype: tensor.dtype.clone(), dims: tensor.shape.clone(), bytes })
    }

    /// Allocates `count` zero bytes for a tensor.
    pub(super) fn room_for(&self, tensor: &str, count: u64) -> Result<Vec<u8>, DataError> {
        zeros(count).ok_or_else(|| DataError::Memory {
            path: self.path.clone(),
            tensor: tensor.to_owned(),
            bytes: count,
        })
    }

    pub(super) fn read_at(&self, bytes: &mut [u8], start: u64) -> Result<(), DataError> {
        let failed = |source: io::Error| DataError::Read { path: self.path.clone(), source };
        self.file.read_exact_at(bytes, start).map_err(failed)
    }
}

impl fmt::Debug for SafetensorsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SafetensorsFile");
        shown.field("path", &self.path).field("length", &self.length);
        shown.field("tensors", &self.tensors.len()).finish_non_exhaustive()
    }
}
