//! `fourfold import`: turns a quantized model into programs that read its tensors in place.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use fourfold_cli::import::import;
use fourfold_import::ImportOptions;
use fourfold_ir::ElementType;

use crate::place::Place;

/// The time between two lines of progress.
const BETWEEN_LINES: Duration = Duration::from_secs(5);
/// The exit code if nothing was imported.
const EXIT_INPUT: u8 = 2;

#[derive(Args)]
#[command(after_help = "Examples:\n  fourfold import Llama-3.1-8B-NVFP4 -o programs\n  \
    fourfold import model.safetensors --select '*.mlp.*' --input-type f32 --output-type f32 -o programs --json\n  \
    fourfold import model.onnx -o programs\n  \
    fourfold import exported/graph.json -o programs\n\n\
    Reads headers and configuration files only. The programs refer to the tensors of SOURCE in place, so keep SOURCE \
    where it is. Programs of an earlier import stay in DIR; their number is noted.\n\n\
    Exit codes: 0 ok, also if parts were left out, 2 bad input or nothing was imported, 3 the programs \
    could not be written, 70 a bug in Fourfold, 130 interrupted")]
pub struct Arguments {
    /// The model: a folder in the Hugging Face layout, a .safetensors, .gguf or .onnx file, or the .json of a
    /// torch.export graph
    source: PathBuf,
    /// Import only modules whose names match GLOB; `*` stands for any characters, `?` for one [default: all]
    #[arg(long, value_name = "GLOB")]
    select: Option<String>,
    /// Name the number of rows of %x SYMBOL
    #[arg(long, value_name = "SYMBOL", default_value = "M")]
    m: String,
    /// Give %x the type T [default: the model's]
    #[arg(long, value_name = "T")]
    input_type: Option<ActivationType>,
    /// Give %y the type T [default: the model's]
    #[arg(long, value_name = "T")]
    output_type: Option<ActivationType>,
    /// Write the programs to DIR, which is created if it is missing; existing files of the same names are replaced
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum ActivationType {
    F32,
    Bf16,
    F16,
}

impl ActivationType {
    fn element(self) -> ElementType {
        match self {
            ActivationType::F32 => ElementType::F32,
            ActivationType::Bf16 => ElementType::BF16,
            ActivationType::F16 => ElementType::F16,
        }
    }
}

/// Notes programs of an earlier import: a command that takes the folder takes them, too.
fn tell_of_other_files(count: usize, folder: &Path) {
    let folder = folder.display();
    match count {
        1 => tell!("note: {folder} has another .fir file, which this import did not write"),
        _ => tell!("note: {folder} has {count} other .fir files, which this import did not write"),
    }
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let backend = match arguments.place.options() {
        Ok(options) => options,
        Err(message) => return crate::misused(&message, arguments.json),
    };
    let options = ImportOptions {
        select: arguments.select.clone(),
        m: arguments.m.clone(),
        input_type: arguments.input_type.map(ActivationType::element),
        output_type: arguments.output_type.map(ActivationType::element),
    };
    let last = Cell::new(Instant::now());
    let progress = |planned: usize, count: usize| {
        if last.get().elapsed() >= BETWEEN_LINES {
            last.set(Instant::now());
            tell!("planned {planned} of {count} programs");
        }
    };
    match import(&arguments.source, &options, &arguments.output, &backend, &progress) {
        Ok(report) => {
            if report.other_files > 0 {
                tell_of_other_files(report.other_files, &arguments.output);
            }
            let text = if arguments.json { crate::to_json(&report) } else { report.to_string() };
            let printed = crate::print(&text);
            if !report.ok {
                tell!(
                    "error: nothing was imported: every part of {} was left out",
                    arguments.source.display()
                );
            }
            crate::leave(if report.ok { 0 } else { EXIT_INPUT }, printed)
        }
        Err(error) => crate::fail(&error, arguments.json),
    }
}
