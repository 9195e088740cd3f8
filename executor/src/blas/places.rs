//! The places that are searched for the library.

use std::path::{Path, PathBuf};

use super::error::BlasError;
use crate::environment::Environment;
use crate::toolchain::toolkit_roots;

/// The library's names, newest first.
const NAMES: [&str; 2] = ["libcublasLt.so.13", "libcublasLt.so.12"];

/// The library that `FOURFOLD_CUBLASLT` names: a file, or the folder of one.
pub(super) fn named(environment: &Environment) -> Result<Option<PathBuf>, BlasError> {
    let Some(named) = &environment.fourfold_cublaslt else { return Ok(None) };
    let path = PathBuf::from(named);
    let path = std::path::absolute(&path).unwrap_or(path);
    let problem = |path: PathBuf, problem: &str| BlasError::Named { path, problem: problem.to_owned() };
    if !path.exists() {
        return Err(problem(path, "which does not exist"));
    }
    if !path.is_dir() {
        return Ok(Some(path));
    }
    match NAMES.iter().map(|name| path.join(name)).find(|file| file.is_file()) {
        Some(file) => Ok(Some(file)),
        None => Err(problem(path, "which contains neither libcublasLt.so.13 nor libcublasLt.so.12")),
    }
}

/// The libraries to try, in order: existing files of CUDA toolkits and of Python packages beside them, then the
/// names for the system's search.
pub(super) fn places(environment: &Environment) -> Vec<PathBuf> {
    let mut places = Vec::new();
    for root in toolkit_roots(environment) {
        for folder in folders(&root) {
            places.extend(NAMES.iter().map(|name| folder.join(name)).filter(|file| file.is_file()));
        }
    }
    places.extend(NAMES.iter().map(PathBuf::from));
    let mut seen = Vec::new();
    places.retain(|place| {
        !seen.contains(place) && {
            seen.push(place.clone());
            true
        }
    });
    places
}

/// The folders with libraries of a toolkit, and of Python packages installed beside it.
fn folders(root: &Path) -> Vec<PathBuf> {
    let target = format!("targets/{}-linux/lib", std::env::consts::ARCH);
    let mut folders: Vec<PathBuf> = ["lib64", "lib", &target].iter().map(|name| root.join(name)).collect();
    // The packages of CUDA 13 share one folder; those of CUDA 12 have one folder each.
    if let Some(packages) = root.parent().filter(|parent| parent.ends_with("nvidia")) {
        folders.extend(["cu13/lib", "cublas/lib"].map(|name| packages.join(name)));
    }
    folders
}
