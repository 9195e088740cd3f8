//! Imports a model: writes its programs, and plans each of them.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};

use fourfold::{Backend, Options};
use fourfold_executor::files_in;
use fourfold_import::{Import, ImportOptions, ImportedProgram};
use fourfold_ir::{Module, text, verify};
use fourfold_scheduler::ReasonCode;
use serde::Serialize;

use crate::error::Error;
use crate::report::counted;

/// A report of `fourfold import`.
#[derive(Clone, Debug, Serialize)]
pub struct ImportReport {
    /// True if there is a program. An import that fails has no report.
    pub ok: bool,
    /// The target that the programs are planned for.
    pub target: String,
    /// The programs, in the order of the model's modules.
    pub programs: Vec<ImportedReport>,
    /// The parts of the model that did not become programs.
    pub left_out: Vec<LeftOutReport>,
    /// The number of .fir files in the folder that this import did not write.
    pub other_files: usize,
}

/// A program of a report.
#[derive(Clone, Debug, Serialize)]
pub struct ImportedReport {
    /// The path of the module in the model.
    pub name: String,
    /// The kind of the module: `linear`, `group`, `mlp`, `block` or `graph`.
    pub kind: &'static str,
    /// The file of the program.
    #[serde(serialize_with = "serialize_file")]
    pub file: PathBuf,
    /// The number of planned kernels.
    pub kernels: usize,
    /// The reason codes of the ops outside kernels, sorted.
    pub codes: Vec<&'static str>,
    /// Facts about the format that the program does not state.
    pub notes: Vec<String>,
}

/// A part of a model that did not become a program.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOutReport {
    /// The name of the module, tensor or node.
    pub name: String,
    /// The reason, as a stable code.
    pub code: &'static str,
    /// The reason in words.
    pub message: String,
}

fn serialize_file<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    fourfold_executor::serialize_path(path, serializer)
}

/// Imports a model, writes its programs to `folder` and plans each of them. `progress` receives the number of planned
/// programs and the number of all programs.
///
/// # Errors
/// Fails if the model is malformed, a file cannot be written, or [`Backend::new`] fails.
pub fn import(
    source: &Path,
    options: &ImportOptions,
    folder: &Path,
    backend: &Options,
    progress: &dyn Fn(usize, usize),
) -> Result<ImportReport, Error> {
    let backend = Backend::new(backend)?;
    let import = fourfold_import::import(source, options)?;
    let written = fourfold_import::write(&import, folder)?;
    let mut planner = Planner { backend: &backend, known: HashMap::new() };
    let count = import.programs.len();
    let own: HashSet<&PathBuf> = written.iter().map(|written| &written.file).collect();
    // A folder that cannot be listed has no count, but the programs are there.
    let in_folder = files_in(folder, "fir").unwrap_or_default();
    let other_files = in_folder.iter().filter(|file| !own.contains(file)).count();
    let mut programs = Vec::with_capacity(count);
    for (index, (program, written)) in import.programs.iter().zip(written).enumerate() {
        progress(index, count);
        let (kernels, codes) = planner.plan(program)?;
        let (name, kind, notes) = (program.name.clone(), program.kind.name(), program.notes.clone());
        programs.push(ImportedReport { name, kind, file: written.file, kernels, codes, notes });
    }
    Ok(ImportReport {
        ok: !programs.is_empty(),
        target: backend.capabilities().target.clone(),
        programs,
        left_out: left_out(import),
        other_files,
    })
}

fn left_out(import: Import) -> Vec<LeftOutReport> {
    let report = |left: fourfold_import::LeftOut| {
        let fourfold_import::LeftOut { name, code, message } = left;
        LeftOutReport { name, code: code.name(), message }
    };
    import.left_out.into_iter().map(report).collect()
}

/// Plans programs. Layers of a model repeat, so programs that differ in their names only are planned once.
struct Planner<'a> {
    backend: &'a Backend,
    known: HashMap<String, (usize, Vec<&'static str>)>,
}

impl Planner<'_> {
    fn plan(&mut self, program: &ImportedProgram) -> Result<(usize, Vec<&'static str>), Error> {
        let unnamed = Module { name: "main".to_owned(), ..program.module.clone() };
        let key = text::print(&unnamed);
        if let Some(planned) = self.known.get(&key) {
            return Ok(planned.clone());
        }
        let verified = verify(unnamed).map_err(|_| fourfold_import::ImportError::InvalidProgram {
            name: program.name.clone(),
            reason: "the verifier refuses it".to_owned(),
        })?;
        let planned = self.backend.plan(verified);
        self.backend.check(&planned)?;
        let partition = planned.partition();
        let rejections = partition.decisions.iter().filter_map(|decision| decision.rejection.as_ref());
        let codes: BTreeSet<&'static str> = rejections.map(|rejection| rejection.code.as_str()).collect();
        let result = (partition.kernels().count(), codes.into_iter().collect::<Vec<_>>());
        self.known.insert(key, result.clone());
        Ok(result)
    }
}

impl ImportedReport {
    /// Returns the codes without that of ops which only lack a kernel to join, if there are others.
    fn causes(&self) -> Vec<&'static str> {
        let follows = ReasonCode::NoScaledMmaProducer.as_str();
        let causes: Vec<&str> = self.codes.iter().copied().filter(|code| *code != follows).collect();
        if causes.is_empty() { self.codes.clone() } else { causes }
    }
}

/// A name of a model on one line: control characters are escaped.
fn in_line(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut line = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { line.extend(letter.escape_default()) } else { line.push(letter) }
    }
    Cow::Owned(line)
}

impl fmt::Display for ImportReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for program in &self.programs {
            let kernels = match program.kernels {
                0 => format!("no kernel ({})", program.causes().join(", ")),
                1 => "1 kernel".to_owned(),
                count => format!("{count} kernels"),
            };
            let file = program.file.to_string_lossy();
            writeln!(f, "{} {}: {kernels}, {}", program.kind, in_line(&program.name), in_line(&file))?;
        }
        for left in &self.left_out {
            writeln!(f, "left out {}: {} ({})", in_line(&left.name), in_line(&left.message), left.code)?;
        }
        let kernels: usize = self.programs.iter().map(|program| program.kernels).sum();
        let (programs, left) = (self.programs.len(), self.left_out.len());
        let [programs, kernels] = [counted(programs, "program"), counted(kernels, "kernel")];
        writeln!(f, "{programs} with {kernels} on {}, {left} left out", self.target)
    }
}
