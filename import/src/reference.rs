//! References to stored tensors, which programs read in place.

use std::fmt;
use std::path::PathBuf;

/// A part of a tensor of a file, and the form that it is stored in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorReference {
    /// The file. [`crate::write()`] makes the path relative to the program.
    pub file: PathBuf,
    /// The place in the file.
    pub place: Place,
    /// The form of the stored bytes.
    pub form: StoredForm,
}

/// The place of a tensor in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A tensor of a safetensors file, and the selected part of each of its leading axes.
    Tensor {
        /// The name.
        name: String,
        /// The selection, in stored elements. Axes without an item are whole.
        slice: Vec<SliceItem>,
    },
    /// A range of bytes of any file.
    Bytes {
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
    },
}

/// The selected part of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceItem {
    /// One index; the axis disappears.
    Index(u64),
    /// The indices from `start` to `end`, exclusive, in steps of `step`.
    Range {
        /// The first index.
        start: u64,
        /// The index after the last; `None` is the extent.
        end: Option<u64>,
        /// The distance of two indices.
        step: u64,
    },
}

/// The form of stored bytes that differs from the form in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredForm {
    /// As in memory: row-major; FP4 with the even index in the low nibble.
    Plain,
    /// FP4 with the even index in the high nibble.
    HighNibbleFirst,
    /// The last two axes are exchanged: FP4 is packed along the last but one axis.
    Transposed,
}

impl TensorReference {
    /// A whole tensor of a safetensors file, stored as in memory.
    pub fn tensor(file: impl Into<PathBuf>, name: impl Into<String>) -> TensorReference {
        let place = Place::Tensor { name: name.into(), slice: Vec::new() };
        TensorReference { file: file.into(), place, form: StoredForm::Plain }
    }

    /// A range of bytes of a file, stored as in memory.
    pub fn bytes(file: impl Into<PathBuf>, start: u64, end: u64) -> TensorReference {
        TensorReference { file: file.into(), place: Place::Bytes { start, end }, form: StoredForm::Plain }
    }

    /// The same tensor, stored in another form.
    #[must_use]
    pub fn stored(self, form: StoredForm) -> TensorReference {
        TensorReference { form, ..self }
    }

    /// The part of the tensor that `items` select. No effect on a range of bytes.
    #[must_use]
    pub fn sliced(mut self, items: Vec<SliceItem>) -> TensorReference {
        if let Place::Tensor { slice, .. } = &mut self.place {
            *slice = items;
        }
        self
    }
}

impl fmt::Display for SliceItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SliceItem::Index(index) => write!(f, "{index}"),
            SliceItem::Range { start, end, step } => {
                write!(f, "{start}:")?;
                end.iter().try_for_each(|end| write!(f, "{end}"))?;
                if *step == 1 { Ok(()) } else { write!(f, ":{step}") }
            }
        }
    }
}

impl fmt::Display for TensorReference {
    /// Writes the value of a `; tensor:` directive, after `INPUT =`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |text: &str| serde_json::Value::from(text).to_string();
        match &self.place {
            Place::Tensor { name, slice } => {
                f.write_str(&quoted(name))?;
                for (index, item) in slice.iter().enumerate() {
                    write!(f, "{}{item}", if index == 0 { "[" } else { ", " })?;
                }
                f.write_str(if slice.is_empty() { "" } else { "]" })?;
            }
            Place::Bytes { start, end } => write!(f, "bytes {start}:{end}")?,
        }
        write!(f, " in {}", quoted(&self.file.to_string_lossy()))?;
        match self.form {
            StoredForm::Plain => Ok(()),
            StoredForm::HighNibbleFirst => f.write_str(" as high_nibble_first"),
            StoredForm::Transposed => f.write_str(" as transposed"),
        }
    }
}
