//! References from a program's inputs to tensors in other files, as the directive `; tensor:` writes them.

use std::fmt;
use std::str::FromStr;

use super::reference_error::ReferenceError;
use super::slice::AxisSlice;
use crate::files::RangeHash;

/// The source of one input of a program: a tensor of a file, a slice of one, or raw bytes. It is read in place.
///
/// [`Display`](fmt::Display) prints the value of a `; tensor:` directive, and [`FromStr`] parses it:
///
/// ```
/// use fourfold_executor::{AxisSlice, TensorReference};
///
/// let reference = TensorReference::tensor("w", "experts.gate_up")
///     .sliced(vec![AxisSlice::Index(3), AxisSlice::Range { start: 0, end: 64, step: 2 }])
///     .in_file("model-00001-of-00002.safetensors");
/// let text = r#"w = "experts.gate_up"[3, 0:64:2] in "model-00001-of-00002.safetensors""#;
/// assert_eq!(reference.to_string(), text);
/// assert_eq!(text.parse(), Ok(reference));
///
/// let bytes = TensorReference::bytes("bias", 1024, 4096, "model.onnx");
/// assert_eq!(bytes.to_string(), r#"bias = bytes 1024:4096 in "model.onnx""#);
///
/// let part = TensorReference::tensor("up", "experts.7.up_proj.weight").as_part(7);
/// assert_eq!(part.to_string(), r#"up[7] = "experts.7.up_proj.weight""#);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorReference {
    /// The name of the input, without `%`.
    pub input: String,
    /// The index along the first axis of the input that this tensor fills; `None` if it is the whole input. Each index has
    /// a reference of its own.
    pub part: Option<u64>,
    /// The place of the tensor.
    pub source: TensorSource,
    /// The encoding of its bytes; `None` for that of safetensors files.
    pub encoding: Option<TensorEncoding>,
}

/// The place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorSource {
    /// A tensor of a safetensors file.
    Tensor {
        /// Its name in the file.
        name: String,
        /// The part of each axis, outermost first. Axes beyond the list are whole.
        slice: Vec<AxisSlice>,
        /// The file, relative to the program's folder; `None` for the program's data files.
        file: Option<String>,
    },
    /// A range of bytes of any file: a row-major, little-endian tensor of the input's type.
    Bytes {
        /// The first byte.
        start: u64,
        /// The byte after the last.
        end: u64,
        /// The file, relative to the program's folder.
        file: String,
        /// The hash by which a change of the file is detected; `None` for no check.
        hash: Option<RangeHash>,
    },
}

/// An encoding of bytes that differs from that of safetensors files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TensorEncoding {
    /// FP4 packed in bytes, with the even index of the last axis in the high nibble.
    HighNibbleFirst,
    /// The last two axes are exchanged, and FP4 is packed along the last axis of the input: bytes `[K/2, N]` are an
    /// input `[N, K]`.
    Transposed,
    /// Bytes are MXFP4 blocks of GGUF, of 17 bytes each. The input is their codes or their scales.
    GgufMxfp4,
    /// Bytes are NVFP4 blocks of GGUF, of 36 bytes each. The input is their codes or their scales.
    GgufNvfp4,
}

impl TensorEncoding {
    /// Every encoding.
    pub const ALL: [TensorEncoding; 4] = [
        TensorEncoding::HighNibbleFirst,
        TensorEncoding::Transposed,
        TensorEncoding::GgufMxfp4,
        TensorEncoding::GgufNvfp4,
    ];

    /// The word after `as`.
    pub fn name(self) -> &'static str {
        match self {
            TensorEncoding::HighNibbleFirst => "high_nibble_first",
            TensorEncoding::Transposed => "transposed",
            TensorEncoding::GgufMxfp4 => "gguf_mxfp4",
            TensorEncoding::GgufNvfp4 => "gguf_nvfp4",
        }
    }

    /// The tensors that may have the encoding.
    pub(super) fn takes(self) -> &'static str {
        match self {
            TensorEncoding::HighNibbleFirst => "FP4 packed in bytes",
            TensorEncoding::Transposed => "matrices of bytes that are not blocked scales",
            TensorEncoding::GgufMxfp4 => {
                "bytes of a GGUF file: f4E2M1FN in rows of whole blocks of 32, and linear f8E8M0FNU"
            }
            TensorEncoding::GgufNvfp4 => {
                "bytes of a GGUF file: f4E2M1FN in rows of whole blocks of 64, and linear f8E4M3FN"
            }
        }
    }
}

impl TensorReference {
    /// Refers to a tensor of the program's data files.
    pub fn tensor(input: impl Into<String>, name: impl Into<String>) -> TensorReference {
        let source = TensorSource::Tensor { name: name.into(), slice: Vec::new(), file: None };
        TensorReference { input: input.into(), part: None, source, encoding: None }
    }

    /// Refers to the bytes from `start` to before `end` of a file.
    pub fn bytes(input: impl Into<String>, start: u64, end: u64, file: impl Into<String>) -> TensorReference {
        let source = TensorSource::Bytes { start, end, file: file.into(), hash: None };
        TensorReference { input: input.into(), part: None, source, encoding: None }
    }

    /// States the hash of bytes of the file: those of the reference, or those that describe its structure. Reading fails
    /// if they have another hash. Has no effect on tensors with a name.
    #[must_use]
    pub fn checked(mut self, range: RangeHash) -> TensorReference {
        if let TensorSource::Bytes { hash, .. } = &mut self.source {
            *hash = Some(range);
        }
        self
    }

    /// Takes a slice of the tensor. Has no effect on bytes.
    #[must_use]
    pub fn sliced(mut self, axes: Vec<AxisSlice>) -> TensorReference {
        if let TensorSource::Tensor { slice, .. } = &mut self.source {
            *slice = axes;
        }
        self
    }

    /// Makes the tensor one index of the first axis of the input.
    #[must_use]
    pub fn as_part(mut self, index: u64) -> TensorReference {
        self.part = Some(index);
        self
    }

    /// Names the file, relative to the program's folder.
    #[must_use]
    pub fn in_file(mut self, path: impl Into<String>) -> TensorReference {
        match &mut self.source {
            TensorSource::Tensor { file, .. } => *file = Some(path.into()),
            TensorSource::Bytes { file, .. } => *file = path.into(),
        }
        self
    }

    /// States the encoding.
    #[must_use]
    pub fn encoded(mut self, encoding: TensorEncoding) -> TensorReference {
        self.encoding = Some(encoding);
        self
    }

    /// The file, relative to the program's folder; `None` for the program's data files.
    pub fn file(&self) -> Option<&str> {
        match &self.source {
            TensorSource::Tensor { file, .. } => file.as_deref(),
            TensorSource::Bytes { file, .. } => Some(file),
        }
    }
}

impl fmt::Display for TensorReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.part {
            Some(part) => write!(f, "{}[{part}] = ", self.input)?,
            None => write!(f, "{} = ", self.input)?,
        }
        match &self.source {
            TensorSource::Tensor { name, slice, .. } => {
                f.write_str(&quoted(name))?;
                if !slice.is_empty() {
                    let axes: Vec<String> = slice.iter().map(ToString::to_string).collect();
                    write!(f, "[{}]", axes.join(", "))?;
                }
            }
            TensorSource::Bytes { start, end, hash, .. } => {
                write!(f, "bytes {start}:{end}")?;
                if let Some(hash) = hash {
                    f.write_str(" blake3 ")?;
                    if (hash.start, hash.end) != (*start, *end) {
                        write!(f, "{}:{} ", hash.start, hash.end)?;
                    }
                    write!(f, "{}", blake3::Hash::from_bytes(hash.blake3))?;
                }
            }
        }
        if let Some(file) = self.file() {
            write!(f, " in {}", quoted(file))?;
        }
        match self.encoding {
            Some(encoding) => write!(f, " as {}", encoding.name()),
            None => Ok(()),
        }
    }
}

/// A text as a JSON string, which has no line breaks.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl FromStr for TensorReference {
    type Err = ReferenceError;

    fn from_str(text: &str) -> Result<TensorReference, ReferenceError> {
        let mut rest = Rest(text.trim());
        let input = rest.word("the name of an input")?.to_owned();
        let part = rest.part()?;
        rest.expect("=", "`=` after the input")?;
        let is_bytes = !rest.0.starts_with('"');
        let source = if is_bytes {
            rest.keyword("bytes", "a tensor's name in quotes, or `bytes A:B in \"FILE\"`")?;
            let text = rest.text();
            let (start, end) = byte_range(text)?;
            let hash = match rest.keyword("blake3", "") {
                Ok(()) => Some(rest.hash(start, end)?),
                Err(_) => None,
            };
            rest.keyword("in", "`in \"FILE\"` after the bytes")?;
            TensorSource::Bytes { start, end, file: rest.file()?, hash }
        } else {
            let name = rest.string("the tensor's name")?;
            let slice = rest.slice()?;
            let file = match rest.keyword("in", "") {
                Ok(()) => Some(rest.file()?),
                Err(_) => None,
            };
            TensorSource::Tensor { name, slice, file }
        };
        let encoding = match rest.keyword("as", "") {
            Ok(()) => Some(rest.encoding()?),
            Err(_) => None,
        };
        if !rest.0.is_empty() {
            let place = match (&source, encoding) {
                (_, Some(_)) => "nothing more",
                (TensorSource::Tensor { file: None, .. }, None) => {
                    "`[SLICE]`, `in \"FILE\"`, `as WORD` or nothing more"
                }
                _ => "`as WORD` or nothing more",
            };
            return Err(expected(place, rest.0));
        }
        Ok(TensorReference { input, part, source, encoding })
    }
}

fn byte_range(text: &str) -> Result<(u64, u64), ReferenceError> {
    match AxisSlice::parse(text)? {
        AxisSlice::Range { start, end, step: 1 } => Ok((start, end)),
        _ => Err(expected("`A:B`, a range of bytes", text)),
    }
}

fn expected(expected: &'static str, found: &str) -> ReferenceError {
    ReferenceError::Expected { expected, found: found.to_owned() }
}

/// The text that is not parsed yet, without leading space.
struct Rest<'a>(&'a str);

impl<'a> Rest<'a> {
    /// Takes a number of bytes and the space behind them.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.0.split_at(bytes);
        self.0 = rest.trim_start();
        taken
    }

    /// Takes the text before the next space.
    fn text(&mut self) -> &'a str {
        let end = self.0.find(char::is_whitespace).unwrap_or(self.0.len());
        self.take(end)
    }

    /// Takes a hash, after its range if that is not `start:end`.
    fn hash(&mut self, start: u64, end: u64) -> Result<RangeHash, ReferenceError> {
        let mut text = self.text();
        let (mut start, mut end) = (start, end);
        if text.contains(':') {
            (start, end) = byte_range(text)?;
            text = self.text();
        }
        match blake3::Hash::from_hex(text) {
            Ok(hash) => Ok(RangeHash { start, end, blake3: *hash.as_bytes() }),
            Err(_) => Err(expected("a BLAKE3 hash of 64 hexadecimal digits", text)),
        }
    }

    /// Takes a word of letters, digits, `_` and `.`.
    fn word(&mut self, what: &'static str) -> Result<&'a str, ReferenceError> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '.';
        match self.0.find(|letter| !is_part(letter)).unwrap_or(self.0.len()) {
            0 => Err(expected(what, self.0)),
            end => Ok(self.take(end)),
        }
    }

    fn expect(&mut self, token: &str, what: &'static str) -> Result<(), ReferenceError> {
        match self.0.starts_with(token) {
            true => {
                self.take(token.len());
                Ok(())
            }
            false => Err(expected(what, self.0)),
        }
    }

    /// Takes a word that is this one.
    fn keyword(&mut self, keyword: &str, what: &'static str) -> Result<(), ReferenceError> {
        match Rest(self.0).word(what) {
            Ok(word) if word == keyword => self.expect(keyword, what),
            _ => Err(expected(what, self.0)),
        }
    }

    fn string(&mut self, what: &'static str) -> Result<String, ReferenceError> {
        if !self.0.starts_with('"') {
            return Err(expected(what, self.0));
        }
        let mut strings = serde_json::Deserializer::from_str(self.0).into_iter::<String>();
        let reason = match strings.next() {
            Some(Ok(string)) => {
                let end = strings.byte_offset();
                self.take(end);
                return Ok(string);
            }
            Some(Err(error)) => error.to_string(),
            None => "it is missing".to_owned(),
        };
        let place = reason.rfind(" at line ").unwrap_or(reason.len());
        Err(ReferenceError::String { what, reason: reason[..place].to_owned() })
    }

    fn file(&mut self) -> Result<String, ReferenceError> {
        let file = self.string("a file in quotes")?;
        if file.is_empty() { Err(expected("the path of a file", "\"\"")) } else { Ok(file) }
    }

    /// Takes the part of each axis, if there is a slice.
    fn slice(&mut self) -> Result<Vec<AxisSlice>, ReferenceError> {
        if !self.0.starts_with('[') {
            return Ok(Vec::new());
        }
        let end = self.0.find(']').ok_or_else(|| expected("a slice that ends with `]`", self.0))?;
        let axes = self.0[1..end].split(',').map(AxisSlice::parse).collect();
        self.take(end + 1);
        axes
    }

    /// Takes the index of a part in brackets, if there is one.
    fn part(&mut self) -> Result<Option<u64>, ReferenceError> {
        let found = self.0;
        match self.slice()?[..] {
            [] if self.0 == found => Ok(None),
            [AxisSlice::Index(index)] => Ok(Some(index)),
            _ => Err(expected("the index of a part, as in `w[3]`", found)),
        }
    }

    fn encoding(&mut self) -> Result<TensorEncoding, ReferenceError> {
        let found = self.word("an encoding after `as`")?;
        TensorEncoding::ALL.into_iter().find(|encoding| encoding.name() == found).ok_or_else(|| {
            let known = TensorEncoding::ALL.map(|encoding| format!("`{}`", encoding.name()));
            ReferenceError::Encoding { found: found.to_owned(), known: known.join(", ") }
        })
    }
}

#[cfg(test)]
mod tests;
