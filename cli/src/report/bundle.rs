//! The bundle that a replay was kept in, as its report names it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A bundle that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Bundle {
    /// Its folder.
    #[serde(serialize_with = "fourfold_executor::serialize_path")]
    pub folder: PathBuf,
    /// What it could not be given.
    pub lacks: Vec<Lack>,
}

/// Something that a bundle could not be given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// The file, or what it would have been.
    pub what: String,
    /// Why not.
    pub why: String,
}
