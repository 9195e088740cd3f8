//! Turns quantized models into programs that read their tensors in place.
//!
//! [`import()`] takes one of these sources:
//!
//! - a folder in the Hugging Face layout, or one safetensors file
//! - an ONNX file, or a folder of them
//! - a GGUF file, or a folder with the files of one model
//! - the JSON of a torch.export graph, or its folder
//!
//! It reads headers, configuration files and scales of whole tensors, never the weights. Each linear becomes a program
//! with input `%x` and result `%y`. Its `param` inputs are [references](fourfold_executor::TensorReference) to the
//! tensors of the model. Four more parts of a checkpoint become programs: linears that share an input, feed-forward
//! blocks, mixtures of experts, and blocks of known architectures. A graph becomes one program. [`OnnxGraph`] is for hosts
//! that run graphs.
//!
//! Other parts are [left out](LeftOut), each with a stable code and a message. [`write()`] writes the
//! programs of an import to a folder.
#![forbid(unsafe_code)]

mod assemble;
mod below;
mod blocks;
mod checkpoint;
mod error;
mod experts;
mod fields;
mod formats;
mod gguf;
mod groups;
mod imported;
mod json;
mod layers;
mod linear;
mod onnx;
mod options;
mod origins;
mod program;
mod settings;
mod shards;
mod torch;
mod write;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use fourfold_executor::{files_in, is_present, is_standard_stream};

use checkpoint::Checkpoint;
pub use error::ImportError;
pub use imported::{Import, ImportedProgram, LeftOut, LeftOutCode, ProgramKind};
pub use onnx::{OnnxGraph, OnnxGraphError};
pub use options::ImportOptions;
pub use write::{WrittenProgram, write};

/// The file name extension of GGUF files.
const GGUF: &str = "gguf";

/// The file name extension of safetensors files.
const SAFETENSORS: &str = "safetensors";

/// The file name extension of ONNX files.
const ONNX: &str = "onnx";

/// Imports a model: a folder, or a .safetensors, .onnx, .gguf or .json file.
///
/// # Errors
/// When the source or one of its files cannot be read, is malformed, or has an unknown form.
pub fn import(source: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    options.check()?;
    if is_standard_stream(source) {
        return Err(ImportError::StandardInput);
    }
    if source.is_dir() || !source.exists() {
        return folder(source, options);
    }
    match source.extension().and_then(OsStr::to_str) {
        Some(SAFETENSORS) => assemble::checkpoint(&Checkpoint::of_file(source)?, options),
        Some("json") => torch::import(source, options),
        Some(ONNX) => onnx::import(source, "", options),
        Some(GGUF) => gguf::import(&[source.to_owned()], options),
        _ => Err(ImportError::UnknownSource { path: source.to_owned() }),
    }
}

fn folder(folder: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    let graph = folder.join(torch::GRAPH_FILE);
    if is_present(&graph)? {
        return torch::import(&graph, options);
    }
    if let Some(checkpoint) = Checkpoint::of_folder(folder, false)? {
        return with_others(assemble::checkpoint(&checkpoint, options)?, folder, &[ONNX, GGUF]);
    }
    let files = files_in(folder, ONNX)?;
    if !files.is_empty() {
        return with_others(onnx_files(&files, options)?, folder, &[GGUF, SAFETENSORS]);
    }
    let files = files_in(folder, GGUF)?;
    if !files.is_empty() {
        return with_others(gguf::import(&files, options)?, folder, &[SAFETENSORS]);
    }
    match Checkpoint::of_folder(folder, true)? {
        Some(checkpoint) => assemble::checkpoint(&checkpoint, options),
        None => Err(ImportError::NoModel { path: folder.to_owned() }),
    }
}

/// Reports the files of a folder that have another format than the imported model.
fn with_others(mut import: Import, folder: &Path, extensions: &[&str]) -> Result<Import, ImportError> {
    for extension in extensions {
        for file in files_in(folder, extension)? {
            let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let message = format!("`{name}` is not read, because the folder holds a model in another format");
            import.left_out.push(LeftOut { name, code: LeftOutCode::OtherModel, message });
        }
    }
    Ok(import)
}

/// Imports the ONNX files of a folder. With several, the linears of each have the name of their file in front.
fn onnx_files(files: &[PathBuf], options: &ImportOptions) -> Result<Import, ImportError> {
    let mut all = Import::default();
    for file in files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let prefix = if files.len() > 1 { format!("{stem}.") } else { String::new() };
        let import = onnx::import(file, &prefix, options)?;
        all.programs.extend(import.programs);
        all.left_out.extend(import.left_out);
    }
    Ok(all)
}
