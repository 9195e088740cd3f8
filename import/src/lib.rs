//! Turns quantized checkpoints into programs that read their tensors in place.
//!
//! [`import()`] reads a folder in the Hugging Face layout, or one safetensors file. It reads headers, configuration
//! files and scales of whole tensors, never the weights. Each linear becomes a program with input `%x` and result `%y`.
//! Its `param` inputs are [references](fourfold_executor::TensorReference) to the tensors of the checkpoint. Linears
//! that share an input, feed-forward blocks, and the blocks of known architectures become programs, too. What does not
//! become a program is [left out](LeftOut), with a stable code and a message.
//!
//! [`write()`] writes the programs of an import to a folder.
#![forbid(unsafe_code)]

mod assemble;
mod below;
mod blocks;
mod checkpoint;
mod error;
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
mod program;
mod settings;
mod shards;
mod torch;
mod write;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use fourfold_executor::{files_in, is_present};

use checkpoint::Checkpoint;
pub use error::ImportError;
pub use imported::{Import, ImportedProgram, LeftOut, LeftOutCode, ProgramKind};
pub use options::ImportOptions;
pub use write::{WrittenProgram, write};

/// The file name extension of GGUF files.
const GGUF: &str = "gguf";

/// The file name extension of ONNX files.
const ONNX: &str = "onnx";

/// Imports a folder in the Hugging Face layout, a safetensors file or an ONNX file.
///
/// # Errors
/// When the source or one of its files cannot be read, is malformed, or has a form that is not known.
pub fn import(source: &Path, options: &ImportOptions) -> Result<Import, ImportError> {
    options.check()?;
    if source.is_dir() || !source.exists() {
        return folder(source, options);
    }
    match source.extension().and_then(OsStr::to_str) {
        Some("safetensors") => assemble::checkpoint(&Checkpoint::of_file(source)?, options),
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
        return assemble::checkpoint(&checkpoint, options);
    }
    let files = files_in(folder, ONNX)?;
    if !files.is_empty() {
        return onnx_files(&files, options);
    }
    let files = files_in(folder, GGUF)?;
    if !files.is_empty() {
        return gguf::import(&files, options);
    }
    match Checkpoint::of_folder(folder, true)? {
        Some(checkpoint) => assemble::checkpoint(&checkpoint, options),
        None => Err(ImportError::NoModel { path: folder.to_owned() }),
    }
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
