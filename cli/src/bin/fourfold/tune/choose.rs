//! Selects kernels from records, for the commands that need a selection.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use fourfold_tuner::manifest::read_problems;
use fourfold_tuner::matrix::Matrix;
use fourfold_tuner::record::Record;
use fourfold_tuner::records;
use fourfold_tuner::select::{Margin, Selection, best_of, minimum_set};

/// The records and the goal of a selection.
#[derive(Args)]
pub struct Choose {
    /// Files of records, as `fourfold sweep` writes them
    #[arg(required = true, value_name = "RECORDS")]
    records: Vec<PathBuf>,
    /// Choose the fewest kernels that reach this share of the best kernel's speed on every problem
    #[arg(long, value_name = "SHARE", default_value_t = 0.97)]
    min_efficiency: f64,
    /// Choose at most N kernels instead, with the largest mean efficiency
    #[arg(long, value_name = "N", conflicts_with = "min_efficiency")]
    at_most: Option<usize>,
    /// Tolerate efficiencies below SHARE by up to X, or by the noise of the measurements
    #[arg(long, value_name = "noise|X", default_value = "noise", value_parser = margin)]
    margin: Margin,
    /// Read the weights of problems from FILE, one problem and its weight per line [default: all problems, equally]
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Keep only the records of this GPU
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Keep only the records of this target
    #[arg(long, value_name = "TARGET")]
    target: Option<String>,
    /// Stop the search for a better choice after SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    time_limit: u64,
}

fn margin(text: &str) -> Result<Margin, String> {
    match (text, text.parse()) {
        ("noise", _) => Ok(Margin::Noise),
        (_, Ok(margin)) => Ok(Margin::Given(margin)),
        _ => Err(format!("expected `noise` or a number, found `{text}`")),
    }
}

/// A matrix of records and the kernels selected from it.
pub struct Chosen {
    pub matrix: Matrix,
    pub selection: Selection,
}

impl Choose {
    /// Reads the records and selects kernels.
    pub fn choose(&self) -> Result<Chosen> {
        let weights = match &self.weights {
            None => Vec::new(),
            Some(path) => {
                let text = super::files::read_text(path)?;
                read_problems(&text).with_context(|| path.display().to_string())?
            }
        };
        let matrix = Matrix::from_records(&self.kept(read_all(&self.records)?), &weights)?;
        ensure!(
            !matrix.kernels.is_empty(),
            "no record has a measurement: run the sweep on a machine with a GPU, without --compile-only"
        );
        let limit = Duration::from_secs(self.time_limit);
        let selection = match self.at_most {
            Some(kernels) => best_of(&matrix, kernels, limit)?,
            None => minimum_set(&matrix, self.min_efficiency, self.margin, limit)?,
        };
        Ok(Chosen { matrix, selection })
    }

    /// Returns the matrix of other records, filtered in the same way.
    pub fn other(&self, paths: &[PathBuf]) -> Result<Matrix> {
        Ok(Matrix::from_records(&self.kept(read_all(paths)?), &[])?)
    }

    fn kept(&self, mut records: Vec<Record>) -> Vec<Record> {
        records.retain(|record| {
            let of_target = self.target.as_ref().is_none_or(|target| *target == record.target);
            let of_gpu = |gpu: &String| record.machine.as_ref().is_none_or(|machine| machine.gpu == *gpu);
            of_target && self.gpu.as_ref().is_none_or(of_gpu)
        });
        records
    }

    /// Returns the input files.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        self.records.iter().chain(&self.weights).map(PathBuf::as_path)
    }

    /// Returns the goal as text.
    pub fn goal(&self) -> String {
        match self.at_most {
            Some(kernels) => format!("at most {kernels} kernels, the largest mean efficiency"),
            None => format!("the fewest kernels for {} of the best on each problem", self.min_efficiency),
        }
    }
}

/// Reads the records of all files, each record once.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<Record>> {
    let mut files = Vec::new();
    for path in paths {
        let lines = super::files::read(path)?;
        if let Some(torn) = &lines.torn {
            tell!("{}: {torn}", path.display());
        }
        files.push((path.display().to_string(), lines.records));
    }
    let named: Vec<(&str, Vec<Record>)> =
        files.iter().map(|(name, records)| (name.as_str(), records.clone())).collect();
    Ok(records::merge(&named)?)
}
