//! The bundle of a replay, as its report names it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// The folder.
    #[serde(serialize_with = "fourfold_executor::serialize_path")]
    pub folder: PathBuf,
    /// The files the bundle lacks.
    pub lacks: Vec<Lack>,
}

/// A file that a bundle lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// The file, or its contents in words.
    pub what: String,
    /// The reason.
    pub why: String,
}
