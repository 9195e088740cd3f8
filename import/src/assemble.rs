//! Assembles the programs of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use crate::blocks;
use crate::checkpoint::Checkpoint;
use crate::error::ImportError;
use crate::experts;
use crate::formats::{self, Reading};
use crate::groups::{self, Group};
use crate::imported::{Import, ImportedProgram, LeftOut, LeftOutCode};
use crate::layers;
use crate::options::ImportOptions;
use crate::program::{self, Activations};
use crate::write::word;

/// Builds the program of every selected linear.
///
/// # Errors
/// When the pattern selects nothing.
pub(crate) fn linears(
    reading: &Reading,
    types: Activations,
    options: &ImportOptions,
) -> Result<Import, ImportError> {
    let linears = reading.linears.iter().map(|linear| linear.name.as_str());
    check_selection(options, linears.chain(reading.left_out.iter().map(|left| left.name.as_str())))?;
    Assembly::of(reading, types, options).map(|assembly| assembly.import)
}

/// Builds the program of every selected linear, group, mixture of experts and block of a checkpoint.
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
    let by_name = reading.linears.iter().map(|linear| (linear.name.as_str(), linear)).collect();
    let (groups, no_groups) = groups::find(&by_name, checkpoint);
    let (blocks, no_blocks) = layers::find(&by_name, checkpoint);
    let (mixtures, no_mixtures) = experts::find(&by_name, checkpoint, types.input);
    let not_built = no_groups.into_iter().chain(no_mixtures).chain(no_blocks).collect::<Vec<_>>();
    let linears = reading.linears.iter().map(|linear| linear.name.as_str());
    let linears = linears.chain(blocks.iter().map(|block| block.name.as_str()));
    let linears = linears.chain(mixtures.iter().map(|mixture| mixture.name.as_str()));
    let others = reading.left_out.iter().chain(&not_built).map(|left| left.name.as_str());
    check_selection(options, linears.chain(groups.iter().map(Group::name)).chain(others))?;
    let mut assembly = Assembly::of(&reading, types, options)?;
    let mut used = BTreeSet::new();
    for group in groups.iter().filter(|group| options.selects(group.name())) {
        assembly.add(groups::program(group, types, options)?);
    }
    for mixture in mixtures.iter().filter(|mixture| options.selects(&mixture.name)) {
        assembly.add(experts::program(mixture, types, options)?);
        used.insert(&*mixture.router_module);
    }
    for block in blocks.iter().filter(|block| options.selects(&block.name)) {
        assembly.add(blocks::program(block, types, options)?);
        used.extend(block.norm_modules.iter().map(String::as_str));
    }
    // The blocks and mixtures have them.
    assembly.import.left_out.retain(|left| !used.contains(left.name.as_str()));
    let not_built = not_built.into_iter().filter(|left| options.selects(&left.name));
    assembly.import.left_out.extend(joined(not_built));
    Ok(assembly.import)
}

/// Joins entries with one reason, since the layers of a model mostly have the same.
fn joined(left_out: impl Iterator<Item = LeftOut>) -> Vec<LeftOut> {
    let mut joined: Vec<LeftOut> = Vec::new();
    let mut places: BTreeMap<(LeftOutCode, String), (usize, usize, String)> = BTreeMap::new();
    for left in left_out {
        let key = (left.code, left.message.clone());
        if let Some((_, count, last)) = places.get_mut(&key) {
            *count += 1;
            *last = left.name;
        } else {
            places.insert(key, (joined.len(), 0, String::new()));
            joined.push(left);
        }
    }
    for (at, count, last) in places.into_values().filter(|(_, count, _)| *count > 0) {
        joined[at].message.push_str(&format!("; the same for {count} more, up to `{last}`"));
    }
    joined
}

/// Fails if the pattern selects no name.
fn check_selection<'a>(
    options: &ImportOptions,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), ImportError> {
    let Some(pattern) = &options.select else { return Ok(()) };
    match names.clone().next() {
        Some(example) if !names.clone().any(|name| options.selects(name)) => {
            let (pattern, example) = (pattern.clone(), example.to_owned());
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
    /// The programs of the selected linears.
    fn of(reading: &Reading, types: Activations, options: &ImportOptions) -> Result<Assembly, ImportError> {
        let mut assembly = Assembly::default();
        let left_out = reading.left_out.iter().filter(|left| options.selects(&left.name));
        assembly.import.left_out.extend(left_out.cloned());
        for linear in reading.linears.iter().filter(|linear| options.selects(&linear.name)) {
            assembly.add(program::linear(linear, types, options)?);
        }
        Ok(assembly)
    }

    /// Adds a program, unless its file would be that of another one.
    fn add(&mut self, program: ImportedProgram) {
        let file = word(&program.name);
        if let Some(other) = self.files.get(&file) {
            let message = format!("its file `{file}.fir` is that of `{other}`");
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
