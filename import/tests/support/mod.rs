//! Expectations of checkpoints, and programs with the tensors that they refer to.

use std::collections::HashMap;
use std::error::Error;
use std::path::{Path, PathBuf};

use fourfold_executor::{DataSources, OtherTensors, SafetensorsFile, TensorReference, read_text};
use fourfold_import::ImportOptions;
use fourfold_ir::{ElementType, Program, Tensor, load, text};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

pub(crate) type Inputs = HashMap<String, Tensor>;

pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/models")
}

/// The expected tensors of a folder, widened to f64.
pub(crate) struct Expected(pub(crate) SafetensorsFile);

impl Expected {
    pub(crate) fn find(&self, name: &str) -> Option<Vec<f64>> {
        let raw = self.0.read(self.0.find(name)?).expect("the tensor can be read");
        raw.as_f64().or_else(|| Some(raw.as_stored()?.to_f32().into_iter().map(f64::from).collect()))
    }

    pub(crate) fn need(&self, name: &str) -> Result<Vec<f64>> {
        self.find(name).ok_or_else(|| format!("expected.safetensors has no `{name}`").into())
    }
}

/// Reads a written program with the tensors that it refers to.
pub(crate) fn read_program(file: &Path, rows: usize) -> Result<(Program, Inputs)> {
    let source = read_text(file)?;
    let (program, _) = load(&source).map_err(|errors| errors[0].message.clone())?;
    let references: Vec<TensorReference> = text::directives(&source)
        .into_iter()
        .filter(|directive| directive.key == "tensor")
        .map(|directive| directive.value.parse())
        .collect::<std::result::Result<_, _>>()?;
    let folder = file.parent().expect("the file is in a folder").to_owned();
    let sources = DataSources { references, folder, ..DataSources::default() };
    let data = sources.read(program.module(), &[("M".to_owned(), rows as u64)], OtherTensors::Named(&[]))?;
    Ok((program, data.inputs))
}

pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

/// Compares rows of `found`, where `counts` allows it; returns the largest error relative to the largest magnitude.
pub(crate) fn error_of_rows(found: &[f64], expected: &[f64], columns: usize, is_compared: &[bool]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let rows = found.chunks(columns).zip(expected.chunks(columns)).zip(is_compared);
    let error = rows
        .filter(|(_, is_compared)| **is_compared)
        .flat_map(|((found, expected), _)| found.iter().zip(expected).map(|(a, b)| (a - b).abs()))
        .fold(0.0, f64::max);
    error / largest(expected).max(f64::MIN_POSITIVE)
}

/// Options that round neither x nor y.
pub(crate) fn exact() -> ImportOptions {
    ImportOptions {
        input_type: Some(ElementType::F32),
        output_type: Some(ElementType::F32),
        ..ImportOptions::default()
    }
}
