//! The reasons that a graph does not become a program.

use crate::error::ImportError;
use crate::imported::{LeftOut, LeftOutCode};

/// The reason that a graph, or a part of it, does not become a program.
#[derive(Debug)]
pub(super) enum Problem {
    /// The file is malformed or cannot be read.
    Failed(ImportError),
    /// The part has no equivalent.
    Refused(LeftOut),
}

impl From<ImportError> for Problem {
    fn from(error: ImportError) -> Problem {
        Problem::Failed(error)
    }
}

/// Refuses a part of the graph.
pub(super) fn refused<T>(
    name: impl Into<String>,
    code: LeftOutCode,
    message: impl Into<String>,
) -> Result<T, Problem> {
    Err(Problem::Refused(LeftOut { name: name.into(), code, message: message.into() }))
}

/// The first part of a name that a hostile file may have made long, for messages.
pub(super) fn shown(name: &str) -> String {
    const MOST: usize = 120;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}
