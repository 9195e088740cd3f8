//! The errors of the text of a reference.

/// The reason that a text is no reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReferenceError {
    /// Something else was expected at a place.
    #[error("expected {expected}, found `{found}`")]
    Expected {
        /// The expected text.
        expected: &'static str,
        /// The text that begins there.
        found: String,
    },
    /// A name or a path is no JSON string.
    #[error("{what} is not a JSON string: {reason}")]
    String {
        /// The name or the path.
        what: &'static str,
        /// The problem with it.
        reason: String,
    },
    /// The slice of an axis is malformed.
    #[error("expected `I`, `A:B`, `A:B:S` or `:` for each axis, without negative numbers, found `{found}`")]
    Slice {
        /// The slice.
        found: String,
    },
    /// The step of a slice is zero.
    #[error("the slice `{slice}` has the step 0, which must be at least 1")]
    ZeroStep {
        /// The slice.
        slice: String,
    },
    /// A range ends before it starts.
    #[error("the range `{slice}` ends before it starts")]
    Backward {
        /// The range.
        slice: String,
    },
    /// The word after `as` is unknown.
    #[error("unknown encoding `{found}`; `as` takes {known}")]
    Encoding {
        /// The word.
        found: String,
        /// The known words.
        known: String,
    },
}
