//! A bundle while it is written: its files and the list of what it lacks.

use fourfold_executor::{SealedError, SealedWriter};
use serde::Serialize;

use super::Lack;

/// A bundle that is being written.
pub(super) struct Writing {
    pub(super) folder: SealedWriter,
    pub(super) lacks: Vec<Lack>,
}

impl Writing {
    /// Records a file that cannot be provided.
    pub(super) fn lack(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.lacks.push(Lack { what: what.into(), why: why.into() });
    }

    pub(super) fn json(&mut self, name: &str, object: &impl Serialize) -> Result<(), SealedError> {
        match serde_json::to_string_pretty(object) {
            Ok(text) => self.folder.write(name, format!("{text}\n").as_bytes()),
            Err(error) => {
                self.lack(name, error.to_string());
                Ok(())
            }
        }
    }
}
