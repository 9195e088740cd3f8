//! Reads the protobuf values of a file for the decoder of `rten-onnx`, within bounds.
//!
//! The decoder adds lengths to positions without a check, and its varint reader does not end on eleven continuation
//! bytes. So this reader refuses lengths beyond the file and overlong varints before the decoder sees them.

use fourfold_executor::{RegularFile, io_error};
use rten_onnx::protobuf::varint::{MAX_VARINT_LEN, read_varint};
use rten_onnx::protobuf::{ErrorKind, FieldTypes, ProtobufError, ReadValue};

/// The maximum number of fields. Each takes at most a few hundred bytes of memory.
const MAX_FIELDS: u32 = 1 << 22;
/// The maximum number of bytes in all names together.
const MAX_TEXT: u64 = 64 << 20;
/// The number of bytes that are read at once.
const WINDOW: u64 = 64 << 10;

/// The place of a `bytes` field in the file. The bytes are read only if they are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) start: u64,
    pub(super) length: u64,
}

impl Span {
    pub(super) fn end(self) -> u64 {
        self.start + self.length
    }
}

/// The decoder requires a view of `bytes` fields, but does not use it.
impl AsRef<[u8]> for Span {
    fn as_ref(&self) -> &[u8] {
        &[]
    }
}

/// The types of fields: names are owned, bytes stay in the file.
pub(super) struct InFile;

impl FieldTypes for InFile {
    type String = String;
    type Bytes = Span;
}

/// The kind of value that follows in the file.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Tag,
    Number,
    Length,
}

/// A reader of protobuf values with a position in a file.
pub(super) struct Reader<'a> {
    file: &'a RegularFile,
    position: u64,
    window: Vec<u8>,
    window_start: u64,
    next: Next,
    fields: u32,
    text: u64,
}

impl<'a> Reader<'a> {
    pub(super) fn new(file: &'a RegularFile) -> Reader<'a> {
        Reader { file, position: 0, window: Vec::new(), window_start: 0, next: Next::Tag, fields: 0, text: 0 }
    }

    fn rest(&self) -> u64 {
        self.file.length().saturating_sub(self.position)
    }

    /// The next bytes, at most `count`, which is at most [`WINDOW`]. Fewer at the end of the file.
    fn peek(&mut self, count: u64) -> Result<&[u8], ProtobufError> {
        let count = count.min(self.rest());
        let window_end = self.window_start + self.window.len() as u64;
        if self.position < self.window_start || self.position + count > window_end {
            self.window = self.file.read(self.position, self.rest().min(WINDOW)).map_err(broken)?;
            self.window_start = self.position;
        }
        let start = (self.position - self.window_start) as usize;
        Ok(&self.window[start..start + count as usize])
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], ProtobufError> {
        let bytes = self.peek(N as u64)?;
        let bytes = bytes.try_into().map_err(|_| ProtobufError::new(ErrorKind::Eof))?;
        self.position += N as u64;
        self.next = Next::Tag;
        Ok(bytes)
    }

    fn require(&self, count: u64) -> Result<(), ProtobufError> {
        if count <= self.rest() {
            return Ok(());
        }
        let (at, rest) = (self.position, self.rest());
        Err(limit(format!("the field at byte {at} has {count} bytes, but the file ends after {rest}")))
    }
}

impl ReadValue for Reader<'_> {
    type Types = InFile;

    fn read_i32(&mut self) -> Result<i32, ProtobufError> {
        self.fixed().map(i32::from_le_bytes)
    }

    fn read_i64(&mut self) -> Result<i64, ProtobufError> {
        self.fixed().map(i64::from_le_bytes)
    }

    fn read_varint(&mut self) -> Result<u64, ProtobufError> {
        let bytes = self.peek(MAX_VARINT_LEN as u64)?;
        let (value, taken) = varint(bytes)?;
        self.position += taken;
        self.next = match self.next {
            Next::Tag => {
                self.fields += 1;
                if self.fields > MAX_FIELDS {
                    return Err(limit(format!(
                        "the file has more than {MAX_FIELDS} protobuf fields, the limit"
                    )));
                }
                match value & 7 {
                    0 => Next::Number,
                    2 => Next::Length,
                    _ => Next::Tag,
                }
            }
            Next::Number => Next::Tag,
            Next::Length => {
                self.require(value)?;
                Next::Tag
            }
        };
        Ok(value)
    }

    fn read_bytes(&mut self, len: usize) -> Result<Span, ProtobufError> {
        let span = Span { start: self.position, length: len as u64 };
        self.skip(len)?;
        Ok(span)
    }

    fn read_string(&mut self, len: usize) -> Result<String, ProtobufError> {
        self.require(len as u64)?;
        self.text += len as u64;
        if self.text > MAX_TEXT {
            return Err(limit(format!("the names of the file take more than {MAX_TEXT} bytes, the limit")));
        }
        let bytes = match len as u64 {
            length if length <= WINDOW => self.peek(length)?.to_vec(),
            length => self.file.read(self.position, length).map_err(broken)?,
        };
        self.position += len as u64;
        String::from_utf8(bytes).map_err(|_| ProtobufError::new(ErrorKind::InvalidUtf8))
    }

    fn skip(&mut self, len: usize) -> Result<(), ProtobufError> {
        self.require(len as u64)?;
        self.position += len as u64;
        Ok(())
    }

    fn position(&self) -> u64 {
        self.position
    }
}

/// Reads the varint at the start of `bytes`. Returns it and its size.
pub(super) fn varint(bytes: &[u8]) -> Result<(u64, u64), ProtobufError> {
    let first = &bytes[..bytes.len().min(MAX_VARINT_LEN)];
    if first.is_empty() {
        return Err(ProtobufError::new(ErrorKind::Eof));
    }
    // The decoder's reader does not end without a last byte.
    if first.iter().all(|byte| *byte >= 0x80) {
        return Err(ProtobufError::new(ErrorKind::InvalidVarint));
    }
    let mut rest = first;
    let value = read_varint(&mut rest)?;
    Ok((value, (first.len() - rest.len()) as u64))
}

fn limit(message: String) -> ProtobufError {
    ProtobufError::new(ErrorKind::IoError(io_error(message)))
}

fn broken(error: fourfold_executor::FileError) -> ProtobufError {
    ProtobufError::new(ErrorKind::IoError(io_error(error)))
}
