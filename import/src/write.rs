//! Writes imported programs to a folder.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use fourfold_executor::{create_folder, path_from, remove_link, write_generated_file, write_tensors};
use fourfold_ir::{Symbol, Tensor, text};

use crate::error::ImportError;
use crate::imported::{Import, ImportedProgram};

/// The longest name of a file without its extension, in bytes. File systems allow 255, and a temporary file has more.
const LONGEST_STEM: usize = 200;
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
/// NAME.safetensors. Creates the folder if it is missing. A file or link that exists is replaced.
///
/// A name that is too long for a file is shortened. Such a name, and one that differs from another in case only, ends
/// in a hash.
///
/// # Errors
/// When the folder cannot be created, or a file cannot be written.
pub fn write(import: &Import, folder: &Path) -> Result<Vec<WrittenProgram>, ImportError> {
    create_folder(folder)?;
    let mut relative = RelativePaths { folder, last: None };
    let mut written = Vec::with_capacity(import.programs.len());
    let mut stems = FileStems::default();
    for program in &import.programs {
        let stem = stems.of(&program.name);
        let file = folder.join(format!("{stem}.fir"));
        let data = format!("{stem}.safetensors");
        if !program.data.is_empty() {
            remove_link(&folder.join(&data))?;
            let tensors: Vec<(&str, &Tensor)> =
                program.data.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            write_tensors(&folder.join(&data), &tensors)?;
        }
        write_generated_file(&file, text_of(program, &data, &mut relative)?.as_bytes())?;
        written.push(WrittenProgram { name: program.name.clone(), file });
    }
    Ok(written)
}

/// The names of files without their extensions.
#[derive(Default)]
struct FileStems {
    /// Those so far, in lower case, since some file systems ignore case.
    taken: BTreeSet<String>,
}

impl FileStems {
    /// The stem of a program's file. It ends in a hash of the name if it is shortened, or if another file has it.
    fn of(&mut self, program: &str) -> String {
        let stem = word(program);
        let hashed = || format!("{}-{:016x}", &stem[..stem.len().min(LONGEST_STEM)], hash_of(program));
        let is_free = stem.len() <= LONGEST_STEM && !self.taken.contains(&stem.to_ascii_lowercase());
        let stem = if is_free { stem } else { hashed() };
        self.taken.insert(stem.to_ascii_lowercase());
        stem
    }
}

/// The FNV-1a hash of a name. Files keep their names across versions.
fn hash_of(name: &str) -> u64 {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, fold)
}

/// A name as the program language allows it: ASCII letters, digits, `_` and `.`, not beginning with `.`.
pub(crate) fn word(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '.' { c } else { '_' };
    let word: String = name.chars().map(safe).collect();
    if word.is_empty() || word.starts_with('.') { format!("_{word}") } else { word }
}

/// The text of a program: its directives and its function.
fn text_of(
    program: &ImportedProgram,
    data: &str,
    relative: &mut RelativePaths<'_>,
) -> Result<String, ImportError> {
    let printed = text::print(&program.module);
    let (version, function) = printed.split_once('\n').unwrap_or((&printed, ""));
    let mut lines = vec![version.to_owned()];
    lines.push(format!("; The {} `{}`.", program.kind, one_line(&program.name)));
    lines.extend(program.notes.iter().map(|note| format!("; {}", one_line(note))));
    if !program.data.is_empty() {
        lines.push(format!("; data: {data}"));
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

#[cfg(test)]
mod tests {
    use super::FileStems;

    #[test]
    fn a_file_name_is_short_and_distinct_without_case() {
        let mut stems = FileStems::default();
        let names = ["a.b", "A.b", "a.B"].map(|name| stems.of(name));
        assert_eq!(names[0], "a.b");
        assert!(names[1].starts_with("A.b-") && names[2].starts_with("a.B-"), "{names:?}");
        assert_ne!(names[1].to_ascii_lowercase(), names[2].to_ascii_lowercase());
        let long = ["x", "y"].map(|end| stems.of(&format!("{}{end}", "a".repeat(5000))));
        assert!(long[0] != long[1] && long.iter().all(|stem| stem.len() == 217), "{long:?}");
    }
}
