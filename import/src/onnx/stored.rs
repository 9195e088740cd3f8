//! Stored tensors: initializers and constants.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use fourfold_executor::{FileError, RangeHash, RegularFile, chain};
use fourfold_ir::{ElementType, Tensor};
use rten_onnx::onnx::{DataLocation, DataType};

use super::problem::shown;
use super::proto::{self, Run};
use super::reader::{Span, varint};

/// The maximum size of a tensor whose values are read, instead of referred to.
const MAX_VALUES: u64 = 256 << 20;
/// The maximum number of elements of a tensor, as in the verifier.
const MAX_ELEMENTS: u64 = 1 << 46;
/// The maximum rank of a stored tensor.
const MAX_RANK: usize = 32;

/// A tensor that the file holds.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) ty: DataType,
    held: Held,
}

/// The place of the values.
#[derive(Clone, Debug)]
enum Held {
    /// A range of bytes, row-major and little-endian.
    Bytes {
        file: PathBuf,
        start: u64,
        end: u64,
    },
    /// Numbers in protobuf's encoding.
    Floats(Vec<Run<f32>>),
    Integers(Vec<Run<i64>>),
    /// Bytes that no file holds, as of an attribute.
    Here(Vec<u8>),
}

/// The bits of an element in a file; `None` for types that no op of a program takes.
fn bits(ty: DataType) -> Option<u64> {
    Some(match ty {
        DataType::INT64 | DataType::UINT64 | DataType::DOUBLE => 64,
        DataType::FLOAT | DataType::INT32 | DataType::UINT32 => 32,
        DataType::FLOAT16 | DataType::BFLOAT16 | DataType::INT16 | DataType::UINT16 => 16,
        DataType::FLOAT8E4M3FN
        | DataType::FLOAT8E5M2
        | DataType::FLOAT8E8M0
        | DataType::FLOAT8E4M3FNUZ
        | DataType::FLOAT8E5M2FNUZ
        | DataType::INT8
        | DataType::UINT8
        | DataType::BOOL => 8,
        DataType::FLOAT4E2M1 | DataType::INT4 | DataType::UINT4 => 4,
        _ => return None,
    })
}

/// The element type of a program for a data type. 64-bit integers become 32-bit ones.
pub(super) fn element_of(ty: DataType) -> Option<ElementType> {
    Some(match ty {
        DataType::FLOAT => ElementType::F32,
        DataType::FLOAT16 => ElementType::F16,
        DataType::BFLOAT16 => ElementType::BF16,
        DataType::FLOAT8E4M3FN => ElementType::F8E4M3FN,
        DataType::FLOAT8E5M2 => ElementType::F8E5M2,
        DataType::FLOAT8E8M0 => ElementType::F8E8M0FNU,
        DataType::FLOAT4E2M1 => ElementType::F4E2M1FN,
        DataType::INT32 | DataType::INT64 => ElementType::I32,
        DataType::BOOL => ElementType::I1,
        _ => return None,
    })
}

/// The files that hold tensors of a model.
pub(super) struct Files {
    pub(super) model: RegularFile,
    /// The lengths of files with external data, by path.
    lengths: HashMap<PathBuf, u64>,
}

impl Files {
    pub(super) fn new(model: RegularFile) -> Files {
        Files { model, lengths: HashMap::new() }
    }

    /// The length of a file with external data, which must be below the model's folder.
    fn length_of(&mut self, path: &Path) -> Result<u64, String> {
        if let Some(length) = self.lengths.get(path) {
            return Ok(*length);
        }
        let file = RegularFile::open(path).map_err(|error| chain(&error))?;
        if !file.is_beside(&self.model).map_err(|error| chain(&error))? {
            return Err(format!("`{}` is a link that leads out of the model's folder", path.display()));
        }
        self.lengths.insert(path.to_owned(), file.length());
        Ok(file.length())
    }

    /// Hashes a range of bytes of the model or of external data.
    pub(super) fn hash(&self, file: &Path, start: u64, end: u64) -> Result<RangeHash, FileError> {
        match file == self.model.path() {
            true => self.model.hash(start, end),
            false => RegularFile::open(file)?.hash(start, end),
        }
    }
}

impl Stored {
    /// A tensor of bytes that no file holds.
    pub(super) fn here(name: &str, dims: Vec<u64>, ty: DataType, bytes: Vec<u8>) -> Stored {
        Stored { name: name.to_owned(), dims, ty, held: Held::Here(bytes) }
    }

    /// Checks a tensor of the file. The reason for a failure names the tensor.
    pub(super) fn of(name: &str, tensor: proto::Tensor, files: &mut Files) -> Result<Stored, String> {
        let ty = DataType(tensor.data_type);
        let wrong = |reason: String| Err(format!("tensor `{}`: {reason}", shown(name)));
        let mut dims = Vec::new();
        let stated = integers(&tensor.dims, &files.model, MAX_RANK as u64);
        for dim in stated.map_err(|reason| format!("tensor `{}`: its extents: {reason}", shown(name)))? {
            match u64::try_from(dim) {
                Ok(dim) => dims.push(dim),
                Err(_) => return wrong(format!("it has the extent {dim}")),
            }
        }
        let count = dims.iter().filter(|dim| **dim != 0).try_fold(1u64, |count, dim| count.checked_mul(*dim));
        let Some(count) = count.filter(|count| *count <= MAX_ELEMENTS) else {
            return wrong(format!("the shape {dims:?} has too many elements"));
        };
        let count = if dims.contains(&0) { 0 } else { count };
        if tensor.has_segment {
            return wrong("it is stored in segments, which are not supported".to_owned());
        }
        let size = bits(ty).map(|bits| (count * bits).div_ceil(8));
        let held = match hold(&tensor, size, count, files) {
            Ok(held) => held,
            Err(reason) => return wrong(reason),
        };
        Ok(Stored { name: name.to_owned(), dims, ty, held })
    }

    /// The number of elements.
    pub(super) fn count(&self) -> u64 {
        self.dims.iter().product()
    }

    /// The place of the bytes if a file holds them in the form of a program's tensors.
    pub(super) fn in_place(&self) -> Option<(&Path, u64, u64)> {
        match &self.held {
            Held::Bytes { file, start, end } => Some((file, *start, *end)),
            _ => None,
        }
    }

    /// The values as bytes, row-major and little-endian.
    pub(super) fn read(&self, files: &Files) -> Result<Vec<u8>, String> {
        let wrong = |reason: String| format!("tensor `{}`: {reason}", shown(&self.name));
        match &self.held {
            Held::Here(bytes) => Ok(bytes.clone()),
            Held::Bytes { file, start, end } => {
                let size = end - start;
                if size > MAX_VALUES {
                    return Err(wrong(format!("its values take {size} bytes, more than {MAX_VALUES}")));
                }
                let read = match file == files.model.path() {
                    true => files.model.read(*start, size),
                    false => RegularFile::open(file).and_then(|file| file.read(*start, size)),
                };
                read.map_err(|error| wrong(chain(&error)))
            }
            Held::Floats(runs) => {
                let values = floats(runs, &files.model).map_err(wrong)?;
                Ok(values.iter().flat_map(|value| value.to_le_bytes()).collect())
            }
            Held::Integers(runs) => self.integer_bytes(runs, files).map_err(wrong),
        }
    }

    fn integer_bytes(&self, runs: &[Run<i64>], files: &Files) -> Result<Vec<u8>, String> {
        let values = integers(runs, &files.model, MAX_VALUES / 8)?;
        let size = bits(self.ty).ok_or("it has an unknown type")?;
        let wanted = if size == 4 { self.count().div_ceil(2) } else { self.count() };
        if values.len() as u64 != wanted {
            return Err(format!("it has {} values, but its shape needs {wanted}", values.len()));
        }
        // FP4 and other narrow types take one byte of each number.
        let width = (size as usize).div_ceil(8);
        Ok(values.iter().flat_map(|value| value.to_le_bytes().into_iter().take(width)).collect())
    }

    /// The values of a tensor of a type that programs have.
    pub(super) fn tensor(&self, files: &Files) -> Result<Tensor, String> {
        let wrong = |reason: String| format!("tensor `{}`: {reason}", shown(&self.name));
        let bytes = self.read(files)?;
        let dims: Vec<usize> = self.dims.iter().map(|dim| *dim as usize).collect();
        let made = match self.ty {
            DataType::INT64 => {
                let values = integers_of(&bytes).map(i32::try_from).collect::<Result<Vec<i32>, _>>();
                let values = values.map_err(|_| wrong("a value is outside the range of i32".to_owned()))?;
                let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                Tensor::new(ElementType::I32, dims, None, bytes)
            }
            DataType::DOUBLE => {
                let values: Vec<f32> =
                    integers_of(&bytes).map(|bits| f64::from_bits(bits as u64) as f32).collect();
                Tensor::from_f32(dims, &values)
            }
            ty => match element_of(ty).filter(|element| *element != ElementType::F8E8M0FNU) {
                Some(element) => Tensor::new(element, dims, None, bytes),
                None => return Err(wrong(format!("the type {ty} has no equivalent"))),
            },
        };
        made.map_err(|error| wrong(error.to_string()))
    }

    /// The values of a small tensor of integers or booleans; `None` for other types.
    pub(super) fn integers(&self, files: &Files) -> Result<Option<Vec<i64>>, String> {
        let is_integer = matches!(self.ty, DataType::INT64 | DataType::INT32 | DataType::BOOL);
        if !is_integer {
            return Ok(None);
        }
        let bytes = self.read(files)?;
        Ok(Some(match self.ty {
            DataType::INT64 => integers_of(&bytes).collect(),
            DataType::INT32 => bytes
                .chunks_exact(4)
                .map(|chunk| i64::from(i32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]])))
                .collect(),
            _ => bytes.iter().map(|byte| i64::from(*byte != 0)).collect(),
        }))
    }
}

fn integers_of(bytes: &[u8]) -> impl Iterator<Item = i64> {
    bytes.chunks_exact(8).map(|chunk| i64::from_le_bytes(chunk.try_into().unwrap_or_default()))
}

/// Finds the values of a tensor of `count` elements and, for known types, `size` bytes.
fn hold(tensor: &proto::Tensor, size: Option<u64>, count: u64, files: &mut Files) -> Result<Held, String> {
    if tensor.location == DataLocation::EXTERNAL.0 {
        return external(tensor, size, files);
    }
    let path = files.model.path().to_owned();
    if let Some(span) = tensor.raw_data {
        return match size {
            Some(size) if size != span.length => {
                Err(format!("it has {} bytes, but its type and shape need {size}", span.length))
            }
            _ => Ok(Held::Bytes { file: path, start: span.start, end: span.end() }),
        };
    }
    if tensor.has_other_data {
        return Err("it holds text or unsigned 64-bit numbers, which are not supported".to_owned());
    }
    match (&tensor.float_data[..], &tensor.int32_data[..], &tensor.int64_data[..], &tensor.double_data[..]) {
        // Packed numbers of a fixed size are stored as in memory.
        ([Run::Packed(span)], [], [], []) | ([], [], [], [Run::Packed(span)])
            if Some(span.length) == size =>
        {
            Ok(Held::Bytes { file: path, start: span.start, end: span.end() })
        }
        (floats, [], [], []) if !floats.is_empty() => {
            let found = total(floats, 4);
            match tensor.data_type == DataType::FLOAT.0 && found == count {
                true => Ok(Held::Floats(floats.to_vec())),
                false => Err(format!("it has {found} floats, but its type and shape need {count} numbers")),
            }
        }
        ([], integers, [], []) if !integers.is_empty() => {
            let widen = |run: &Run<i32>| match run {
                Run::One(value) => Run::One(i64::from(*value)),
                Run::Packed(span) => Run::Packed(*span),
            };
            Ok(Held::Integers(integers.iter().map(widen).collect()))
        }
        ([], [], integers, []) if !integers.is_empty() => Ok(Held::Integers(integers.to_vec())),
        ([], [], [], []) if count == 0 => Ok(Held::Here(Vec::new())),
        ([], [], [], []) => Err("it has no values".to_owned()),
        _ => Err("it has values in several fields, or doubles that are not packed".to_owned()),
    }
}

/// Finds external data: a file beside the model, or below its folder.
fn external(tensor: &proto::Tensor, size: Option<u64>, files: &mut Files) -> Result<Held, String> {
    let value =
        |key: &str| tensor.external.iter().find(|entry| entry.key == key).map(|entry| entry.value.trim());
    let number = |key: &str| match value(key) {
        None => Ok(None),
        Some(text) => text
            .parse::<u64>()
            .map(Some)
            .map_err(|_| format!("the {key} of its external data is `{}`, not a number", shown(text))),
    };
    let location = value("location").filter(|location| !location.is_empty());
    let location = location.ok_or("its external data has no location")?;
    let is_below = Path::new(location).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_below || location.contains(['\\', '\0']) {
        return Err(format!(
            "its external data is in `{}`, which is not a path below the model's folder",
            shown(location)
        ));
    }
    let folder = files.model.path().parent().unwrap_or(Path::new("")).to_owned();
    let path = folder.join(location);
    let total = files.length_of(&path).map_err(|error| format!("its external data: {error}"))?;
    let start = number("offset")?.unwrap_or(0);
    let length = match (number("length")?, size) {
        (Some(length), Some(size)) if length != size => {
            return Err(format!("its external data has {length} bytes, but its type and shape need {size}"));
        }
        (Some(length), _) => length,
        (None, Some(size)) => size,
        (None, None) => total.saturating_sub(start),
    };
    match start.checked_add(length).filter(|end| *end <= total) {
        Some(end) => Ok(Held::Bytes { file: path, start, end }),
        None => Err(format!(
            "its external data takes {length} bytes from byte {start} of `{}`, which has {total}",
            shown(location)
        )),
    }
}

fn total<T>(runs: &[Run<T>], width: u64) -> u64 {
    runs.iter()
        .map(|run| match run {
            Run::One(_) => 1,
            Run::Packed(span) => span.length / width,
        })
        .sum()
}

/// The bytes of a packed list of at most `most` bytes.
fn packed(span: Span, file: &RegularFile, most: u64) -> Result<Vec<u8>, String> {
    if span.length > most {
        return Err(format!("the list at byte {} has {} bytes, more than {most}", span.start, span.length));
    }
    file.read(span.start, span.length).map_err(|error| chain(&error))
}

/// The floats of a list.
pub(super) fn floats(runs: &[Run<f32>], file: &RegularFile) -> Result<Vec<f32>, String> {
    let mut values = Vec::new();
    for run in runs {
        match run {
            Run::One(value) => values.push(*value),
            Run::Packed(span) => {
                let bytes = packed(*span, file, MAX_VALUES)?;
                let (chunks, rest) = bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(format!(
                        "the list of floats at byte {} has {} bytes",
                        span.start, span.length
                    ));
                }
                values.extend(chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)));
            }
        }
    }
    Ok(values)
}

/// The integers of a list. Fails if there are more than `most`.
pub(super) fn integers(runs: &[Run<i64>], file: &RegularFile, most: u64) -> Result<Vec<i64>, String> {
    let mut values = Vec::new();
    for run in runs {
        match run {
            Run::One(value) => values.push(*value),
            Run::Packed(span) => {
                // A number takes at most ten bytes.
                let bytes = packed(*span, file, most.saturating_mul(10).min(MAX_VALUES))?;
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (value, taken) =
                        varint(rest).map_err(|error| format!("the list at byte {}: {error}", span.start))?;
                    rest = &rest[taken as usize..];
                    values.push(value as i64);
                    if values.len() as u64 > most {
                        return Err(format!("a list has more than {most} numbers"));
                    }
                }
            }
        }
        if values.len() as u64 > most {
            return Err(format!("a list has more than {most} numbers"));
        }
    }
    Ok(values)
}
