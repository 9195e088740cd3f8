//! Edits of a text.

use std::ops::Range;

/// A range of bytes and the text in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edit {
    pub range: Range<usize>,
    pub text: String,
}

impl Edit {
    /// Applies edits that do not overlap. At equal places their order is kept.
    pub fn apply(text: &str, mut edits: Vec<Edit>) -> String {
        edits.sort_by_key(|edit| edit.range.start);
        let mut result = String::with_capacity(text.len());
        let mut end = 0;
        for edit in edits {
            result.push_str(text.get(end..edit.range.start).unwrap_or_default());
            result.push_str(&edit.text);
            end = edit.range.end;
        }
        result.push_str(text.get(end..).unwrap_or_default());
        result
    }
}
