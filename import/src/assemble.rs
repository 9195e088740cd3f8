//! Assembles the programs of a checkpoint.

use std::collections::BTreeMap;

use crate::checkpoint::Checkpoint;
use crate::error::ImportError;
use crate::formats;
use crate::imported::{Import, ImportedProgram, LeftOut, LeftOutCode};
use crate::linear::Linear;
use crate::options::ImportOptions;
use crate::program::{self, Activations};
use crate::write::file_name;

/// The longest file name of common file systems, in bytes.
const LONGEST_FILE_NAME: usize = 255;

/// Builds the program of every selected linear of a checkpoint.
///
/// # Errors
/// When the pattern selects nothing.
pub(crate) fn checkpoint(checkpoint: &Checkpoint, options: &ImportOptions) -> Result<Import, ImportError> {
    let reading = formats::read(checkpoint);
    let model = formats::model_type(checkpoint);
    let types = Activations {
        input: options.input_type.unwrap_or(model),
        output: options.output_type.unwrap_or(model),
    };
    let names = || reading.linears.iter().map(|linear| &linear.name);
    check_selection(options, names().chain(reading.left_out.iter().map(|left| &left.name)))?;
    let mut assembly = Assembly::default();
    for left in &reading.left_out {
        if options.selects(&left.name) {
            assembly.import.left_out.push(left.clone());
        }
    }
    for linear in reading.linears.iter().filter(|linear| options.selects(&linear.name)) {
        assembly.add_linear(linear, types, options)?;
    }
    Ok(assembly.import)
}

/// Fails if the pattern selects no name.
fn check_selection<'a>(
    options: &ImportOptions,
    names: impl Iterator<Item = &'a String> + Clone,
) -> Result<(), ImportError> {
    let Some(pattern) = &options.select else { return Ok(()) };
    match names.clone().next() {
        Some(example) if !names.clone().any(|name| options.selects(name)) => {
            let (pattern, example) = (pattern.clone(), example.clone());
            Err(ImportError::SelectsNothing { pattern, count: names.count(), example })
        }
        _ => Ok(()),
    }
}

/// The programs so far, and their file names.
#[derive(Default)]
struct Assembly {
    import: Import,
    /// The program of each file.
    files: BTreeMap<String, String>,
}

impl Assembly {
    fn add_linear(
        &mut self,
        linear: &Linear,
        types: Activations,
        options: &ImportOptions,
    ) -> Result<(), ImportError> {
        match program::linear(linear, types, options) {
            Ok(program) => self.add(program),
            // The verifier bounds extents, and a checkpoint may exceed them.
            Err(ImportError::InvalidProgram { name, reason }) => {
                self.leave_out(name, LeftOutCode::WrongShape, reason);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Adds a program, unless its file would be that of another one.
    fn add(&mut self, program: ImportedProgram) {
        let file = file_name(&program.name);
        if file.len() > LONGEST_FILE_NAME {
            let message = format!("its file name would have {} bytes, above {LONGEST_FILE_NAME}", file.len());
            self.leave_out(program.name, LeftOutCode::NameCollision, message);
        } else if let Some(other) = self.files.get(&file) {
            let message = format!("its file `{file}` is that of `{other}`");
            self.leave_out(program.name, LeftOutCode::NameCollision, message);
        } else {
            self.files.insert(file, program.name.clone());
            self.import.programs.push(program);
        }
    }

    fn leave_out(&mut self, name: String, code: LeftOutCode, message: String) {
        self.import.left_out.push(LeftOut { name, code, message });
    }
}
