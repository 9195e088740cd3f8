//! The version of Fourfold, for reports.

use serde::{Deserialize, Serialize};

/// The version of Fourfold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The version of the package.
    pub version: String,
    /// The commit, as `git describe` names it; null unless the build set `FOURFOLD_GIT_DESCRIBE`.
    pub described: Option<String>,
}

impl Version {
    /// The version of this build.
    pub fn own() -> Version {
        Version {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            described: option_env!("FOURFOLD_GIT_DESCRIBE")
                .filter(|text| !text.is_empty())
                .map(str::to_owned),
        }
    }
}
