//! Writes imported programs to a folder.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use fourfold_executor::{create_folder, path_from, write_generated_file, write_tensors};
use fourfold_ir::{Symbol, Tensor, text};

use crate::error::ImportError;
use crate::imported::{Import, ImportedProgram};

/// The extent of each symbol in sample lines.
const SAMPLE_EXTENT: u64 = 16;

/// A program that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenProgram {
    /// The name of the program.
    pub name: String,
    /// Its file.
    pub file: PathBuf,
}

/// Writes every program of an import to `folder`, as NAME.fir, and values that no file of the model holds to
/// NAME.safetensors. Creates the folder if it is missing. A file that exists
/// is replaced.
///
/// # Errors
/// When the folder cannot be created, or a file cannot be written.
pub fn write(import: &Import, folder: &Path) -> Result<Vec<WrittenProgram>, ImportError> {
    create_folder(folder)?;
    let mut relative = RelativePaths { folder, last: None };
    let mut written = Vec::with_capacity(import.programs.len());
    for program in &import.programs {
        let file = folder.join(file_name(&program.name));
        if !program.data.is_empty() {
            let tensors: Vec<(&str, &Tensor)> =
                program.data.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            write_tensors(&folder.join(data_name(&program.name)), &tensors)?;
        }
        write_generated_file(&file, text_of(program, &mut relative)?.as_bytes())?;
        written.push(WrittenProgram { name: program.name.clone(), file });
    }
    Ok(written)
}

/// The name of a program's file. Characters that a file name or a value name cannot have become `_`.
pub(crate) fn file_name(program: &str) -> String {
    format!("{}.fir", word(program))
}

/// The name of the file with the values of a program that no other file holds.
fn data_name(program: &str) -> String {
    format!("{}.safetensors", word(program))
}

/// A name as the program language allows it: ASCII letters, digits, `_` and `.`, not beginning with `.`.
pub(crate) fn word(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' };
    let word: String = name.chars().map(safe).collect();
    if word.is_empty() || word.starts_with('.') { format!("_{word}") } else { word }
}

/// The text of a program: its directives and its function.
fn text_of(program: &ImportedProgram, relative: &mut RelativePaths<'_>) -> Result<String, ImportError> {
    let printed = text::print(&program.module);
    let (version, function) = printed.split_once('\n').unwrap_or((&printed, ""));
    let mut lines = vec![version.to_owned()];
    lines.push(format!("; The {} `{}`.", program.kind, one_line(&program.name)));
    lines.extend(program.notes.iter().map(|note| format!("; {}", one_line(note))));
    if !program.data.is_empty() {
        lines.push(format!("; data: {}", data_name(&program.name)));
    }
    for reference in &program.tensors {
        let file = reference.file().map(|file| relative.of(file)).transpose()?;
        let reference = file.into_iter().fold(reference.clone(), |reference, file| reference.in_file(file));
        lines.push(format!("; tensor: {reference}"));
    }
    lines.push(sample_of(program));
    lines.push(function.to_owned());
    Ok(lines.join("\n"))
}

/// The line that draws inputs without a tensor, such as `%x`, so that a program replays by itself.
fn sample_of(program: &ImportedProgram) -> String {
    let module = &program.module;
    let shapes = module.inputs.iter().map(|input| &module.ty(*input).shape);
    // A symbol that no input has, as of the extent 0*M, has no value.
    let used: HashSet<Symbol> = shapes.flatten().flat_map(|dim| dim.symbols()).copied().collect();
    let symbols = module.symbols.iter().filter(|(symbol, _)| used.contains(symbol));
    let symbols = symbols.map(|(_, name)| format!(" {name}={SAMPLE_EXTENT}"));
    format!("; sample: normal seed=0{}", symbols.collect::<String>())
}

/// A text without line ends and other control characters, which would end a comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The paths of files relative to a folder. Neighbouring references mostly name one file.
struct RelativePaths<'a> {
    folder: &'a Path,
    last: Option<(String, String)>,
}

impl RelativePaths<'_> {
    fn of(&mut self, file: &str) -> Result<String, ImportError> {
        if let Some((known, relative)) = &self.last
            && known == file
        {
            return Ok(relative.clone());
        }
        let relative = path_from(self.folder, Path::new(file))?;
        let Some(relative) = relative.to_str() else { return Err(ImportError::PathText { path: relative }) };
        self.last = Some((file.to_owned(), relative.to_owned()));
        Ok(relative.to_owned())
    }
}
