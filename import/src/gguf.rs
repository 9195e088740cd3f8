//! GGUF files: linears with MXFP4 or NVFP4 blocks become programs that read them in place.
//!
//! A linear `NAME` has `NAME.weight` and perhaps `NAME.bias`. With NVFP4, `NAME.scale` is the global scale of the
//! weight. Extents are innermost first. Experts are stacked: a weight `[K, N, E]` becomes E linears.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fourfold_executor::{RangeHash, RegularFile, TensorEncoding, TensorReference};
use fourfold_ir::{ElementType, ScaleLayout};
use gguf_rs_lib::format::GGUFTensorType;
use gguf_rs_lib::reader::GGUFFileReader;
use gguf_rs_lib::tensor::TensorInfo;

use crate::assemble;
use crate::error::ImportError;
use crate::fields::{FACTOR, Refusal, is_factor, value_of};
use crate::formats::Reading;
use crate::imported::{Import, LeftOutCode};
use crate::linear::{Activation, Convention, Linear, Scalar, Scales, Stored, Weight};
use crate::options::ImportOptions;
use crate::program::Activations;

/// The names of the tensors of a linear, after its name.
const FIELDS: [&str; 4] = ["weight", FACTORS, "input_scale", "bias"];

/// The last part of the name of a tensor with a factor of a weight, or of each expert.
const FACTORS: &str = "scale";

/// The maximum number of experts that share a tensor.
const MAX_EXPERTS: u64 = 1 << 16;

/// Imports the files of one model. Activations have the type f32, in which llama.cpp computes, unless the options say
/// otherwise.
///
/// # Errors
/// When a file cannot be read or is malformed, two files hold one tensor, or parts of the model are missing.
pub(crate) fn import(files: &[PathBuf], options: &ImportOptions) -> Result<Import, ImportError> {
    let model = Model::load(files)?;
    let mut reading = Reading::default();
    for (name, tensors) in &model.modules {
        let module = Module { name, tensors, permutes: model.permutes(name) };
        match module.blocks() {
            Ok(blocks) => reading.add(name, module.linears(blocks)),
            Err(refusal) => reading.leave_out(name, refusal.code, refusal.message),
        }
    }
    let types = Activations {
        input: options.input_type.unwrap_or(ElementType::F32),
        output: options.output_type.unwrap_or(ElementType::F32),
    };
    assemble::linears(&reading, types, options)
}

/// The headers of a model's files.
#[derive(Default)]
struct Model {
    /// The tensors, by module and by the last part of their names.
    modules: BTreeMap<String, BTreeMap<String, Tensor>>,
    architecture: String,
}

/// A tensor and its place.
struct Tensor {
    file: String,
    /// The hash of the file's header, which states the places of all tensors.
    header: RangeHash,
    start: u64,
    end: u64,
    ty: GGUFTensorType,
    /// Innermost first.
    extents: Vec<u64>,
    /// The values of a `scale` tensor; empty for others.
    factors: Vec<f64>,
}

impl Model {
    fn load(files: &[PathBuf]) -> Result<Model, ImportError> {
        let mut model = Model::default();
        let mut owners: BTreeMap<String, &Path> = BTreeMap::new();
        for path in files {
            let malformed = |reason: String| ImportError::Malformed { path: path.clone(), reason };
            let text = path.to_str().ok_or_else(|| ImportError::PathText { path: path.clone() })?;
            let file = RegularFile::open(path)?;
            let reader = GGUFFileReader::new(file.reader())
                .map_err(|error| malformed(format!("it is not a GGUF file of version 3: {error}")))?;
            let parts = reader.metadata().get_u64("split.count").unwrap_or(1);
            if parts > 1 && parts != files.len() as u64 {
                let found = files.len();
                return Err(malformed(format!(
                    "it is one of {parts} files of a model, but {found} are given"
                )));
            }
            if let Some(architecture) = reader.metadata().get_string("general.architecture") {
                architecture.clone_into(&mut model.architecture);
            }
            let header = file.hash(0, reader.tensor_data_offset().min(file.length()))?;
            for info in reader.tensor_infos() {
                let mut tensor =
                    Tensor::of(info, reader.tensor_data_offset(), header, text).ok_or_else(|| {
                        malformed(format!("the tensor `{}` does not fit in the file", info.name()))
                    })?;
                if let Some(first) = owners.insert(info.name().to_owned(), path) {
                    let (first, second, tensor) = (first.to_owned(), path.clone(), info.name().to_owned());
                    return Err(ImportError::RepeatedTensor { first, second, tensor });
                }
                let (module, field) = info.name().rsplit_once('.').unwrap_or((info.name(), ""));
                if field == FACTORS {
                    tensor.read_factors(&file)?;
                }
                model.modules.entry(module.to_owned()).or_default().insert(field.to_owned(), tensor);
            }
        }
        Ok(model)
    }

    /// Returns true if llama.cpp's converter exchanges rows of a weight.
    fn permutes(&self, module: &str) -> bool {
        self.architecture == "llama" && (module.ends_with(".attn_q") || module.ends_with(".attn_k"))
    }
}

impl Tensor {
    fn of(info: &TensorInfo, data: u64, header: RangeHash, file: &str) -> Option<Tensor> {
        let start = data.checked_add(info.data_offset())?;
        let end = start.checked_add(info.checked_expected_data_size().ok()?)?;
        let extents = info.shape().dims().to_vec();
        Some(Tensor {
            file: file.to_owned(),
            header,
            start,
            end,
            ty: info.tensor_type(),
            extents,
            factors: Vec::new(),
        })
    }

    /// Refers to part `index` of `count` equal parts.
    fn part(&self, index: u64, count: u64) -> TensorReference {
        let size = (self.end - self.start) / count;
        let start = self.start + index * size;
        TensorReference::bytes("", start, start + size, &*self.file).checked(self.header)
    }

    /// The element type of a tensor of floats.
    fn element(&self) -> Option<ElementType> {
        match self.ty {
            GGUFTensorType::F32 => Some(ElementType::F32),
            GGUFTensorType::F16 => Some(ElementType::F16),
            GGUFTensorType::BF16 => Some(ElementType::BF16),
            _ => None,
        }
    }

    /// Reads the numbers of a tensor with a factor of each expert. Other types and sizes are left to
    /// `floats`.
    fn read_factors(&mut self, file: &RegularFile) -> Result<(), ImportError> {
        const WIDEST: u64 = 4;
        let Some(element) = self.element() else { return Ok(()) };
        let size = self.end - self.start;
        if size > MAX_EXPERTS * WIDEST || self.end > file.length() {
            return Ok(());
        }
        let bytes = file.read(self.start, size)?;
        let number = |bytes: &[u8]| {
            let mut bits = [0; 8];
            bits[..bytes.len()].copy_from_slice(bytes);
            f64::from(value_of(element, u64::from_le_bytes(bits)))
        };
        self.factors = bytes.chunks_exact(element.storage_bits() / 8).map(number).collect();
        Ok(())
    }

    /// Part `index` of `count` as a tensor of floats.
    fn floats(&self, name: &str, shape: Vec<u64>, (index, count): (u64, u64)) -> Result<Stored, Refusal> {
        let Some(element) = self.element() else {
            let message = format!("the tensor `{name}` is {:?}, expected F32, F16 or BF16", self.ty);
            return Err(Refusal::new(LeftOutCode::WrongDtype, message));
        };
        let elements = shape.iter().product::<u64>().checked_mul(count);
        if self.extents.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent)) != elements {
            let (found, of) =
                (&self.extents, if count > 1 { format!(" of {count} experts") } else { String::new() });
            let message = format!("the tensor `{name}` has the extents {found:?}, expected {shape:?}{of}");
            return Err(Refusal::new(LeftOutCode::WrongShape, message));
        }
        if let Some(factor) = self.factors.get(index as usize).filter(|factor| !is_factor(**factor)) {
            let of = if count > 1 { format!(" of expert {index}") } else { String::new() };
            let message = format!("the factor{of} in `{name}` is {factor}; expected {FACTOR}");
            return Err(Refusal::new(LeftOutCode::InvalidScale, message));
        }
        Ok(Stored { reference: self.part(index, count), element, shape })
    }
}

/// The format of the blocks of a weight.
#[derive(Clone, Copy)]
enum Blocks {
    Mxfp4,
    Nvfp4,
}

impl Blocks {
    /// The number of codes of a block.
    fn codes(self) -> u64 {
        match self {
            Blocks::Mxfp4 => 32,
            Blocks::Nvfp4 => 64,
        }
    }
}

/// The tensors of a module.
struct Module<'a> {
    name: &'a str,
    tensors: &'a BTreeMap<String, Tensor>,
    permutes: bool,
}

impl Module<'_> {
    /// The format of the weight, or the reason that the module is left out.
    fn blocks(&self) -> Result<Blocks, Refusal> {
        let refused = |code, message: String| Err(Refusal::new(code, message));
        let Some(weight) = self.tensors.get("weight") else {
            return refused(LeftOutCode::UnusedTensor, format!("`{}` has no weight", self.name));
        };
        match weight.ty {
            GGUFTensorType::MXFP4 => Ok(Blocks::Mxfp4),
            GGUFTensorType::NVFP4 => Ok(Blocks::Nvfp4),
            _ if weight.extents.len() < 2 => {
                refused(LeftOutCode::NotALinear, "its weight is not a matrix".to_owned())
            }
            ty @ (GGUFTensorType::F32 | GGUFTensorType::F16 | GGUFTensorType::BF16) => {
                refused(LeftOutCode::NotQuantized, format!("its weight is {ty:?}"))
            }
            ty => {
                let message = format!("its weight is {ty:?}: only MXFP4 and NVFP4 are imported");
                refused(LeftOutCode::UnsupportedFormat, message)
            }
        }
    }

    /// The linears: one, or one for each expert.
    fn linears(&self, blocks: Blocks) -> Result<Vec<Linear>, Refusal> {
        if let Some(field) = self.tensors.keys().find(|field| !FIELDS.contains(&field.as_str())) {
            let message = format!("the tensor `{}.{field}` is not part of the format", self.name);
            return Err(Refusal::new(LeftOutCode::UnknownFormat, message));
        }
        let extents = &self.tensors["weight"].extents;
        let wrong = |expected: &str| {
            let message = format!("its weight has the extents {extents:?}, expected {expected}");
            Refusal::new(LeftOutCode::WrongShape, message)
        };
        let of_block = blocks.codes();
        if extents.contains(&0) || !extents[0].is_multiple_of(of_block) {
            return Err(wrong(&format!("rows of whole blocks of {of_block}")));
        }
        match extents[..] {
            [k, n] => Ok(vec![self.linear(blocks, self.name.to_owned(), [n, k], (0, 1))?]),
            [k, n, experts] if experts <= MAX_EXPERTS => (0..experts)
                .map(|index| self.linear(blocks, format!("{}.{index}", self.name), [n, k], (index, experts)))
                .collect(),
            _ => Err(wrong(&format!("a matrix, or at most {MAX_EXPERTS} matrices"))),
        }
    }

    /// The linear at `part`: its index among those of the weight, and their number.
    fn linear(
        &self,
        blocks: Blocks,
        name: String,
        [n, k]: [u64; 2],
        part: (u64, u64),
    ) -> Result<Linear, Refusal> {
        let (encoding, element, block) = match blocks {
            Blocks::Mxfp4 => (TensorEncoding::GgufMxfp4, ElementType::F8E8M0FNU, 32),
            Blocks::Nvfp4 => (TensorEncoding::GgufNvfp4, ElementType::F8E4M3FN, 16),
        };
        let stored = |field: &str, shape: Vec<u64>| {
            let whole = format!("{}.{field}", self.name);
            self.tensors.get(field).map(|tensor| tensor.floats(&whole, shape, part)).transpose()
        };
        let convention = Convention::Multiply;
        let global = stored(FACTORS, vec![1])?.map(|stored| Scalar { stored, convention, bits: None });
        let bias = stored("bias", vec![n])?;
        let reference = self.tensors["weight"].part(part.0, part.1).encoded(encoding);
        let scales = Scales::Block {
            reference: reference.clone(),
            element,
            block,
            layout: ScaleLayout::Linear,
            global,
        };
        let mut notes = Vec::new();
        if self.tensors.contains_key("input_scale") {
            notes.push("The scale of quantized inputs is not used: x is multiplied as it is.".to_owned());
        }
        if self.permutes {
            notes.push(
                "Rows are in llama.cpp's order: those of the two halves of each head alternate.".to_owned(),
            );
        }
        let weight = Weight { codes: reference, element: ElementType::F4E2M1FN, scales };
        Ok(Linear { name, n, k, weight, activation: Activation::Plain, input_factor: None, bias, notes })
    }
}
