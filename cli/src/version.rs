//! The version of Fourfold that writes a report.

use serde::{Deserialize, Serialize};

/// The version of Fourfold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The version of the package.
    pub version: String,
    /// What it was built from, as `git describe` names it; null where whoever built it did not say it in
    /// `FOURFOLD_GIT_DESCRIBE`.
    pub described: Option<String>,
}

impl Version {
    /// This one.
    pub fn own() -> Version {
        Version {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            described: option_env!("FOURFOLD_GIT_DESCRIBE")
                .filter(|text| !text.is_empty())
                .map(str::to_owned),
        }
    }
}
