//! The `; key: value` comments at the head of a file.

use super::lexer::is_name;
use crate::diagnostics::Span;

/// A comment line `; key: value` that stands before the function. What it means is up to who reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// Lower-case letters and `_`.
    pub key: String,
    /// The rest of the line, without surrounding white space; may be empty.
    pub value: String,
    /// The line, from 1.
    pub line: usize,
    /// From the key to the end of the value.
    pub span: Span,
}

/// A line that is a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comment<'a> {
    /// The text behind the `;`, without surrounding white space.
    pub text: &'a str,
    /// The line, from 1.
    pub line: usize,
    /// Of the text.
    pub span: Span,
    /// True if it stands before the function.
    pub is_before: bool,
}

/// The directives of a file in order. Other comments, and everything from the line that begins with `func` on, are
/// passed over, and so is whatever lies beyond 4 GiB.
pub fn directives(source: &str) -> Vec<Directive> {
    comments(source).iter().take_while(|comment| comment.is_before).filter_map(Comment::directive).collect()
}

/// The lines that are comments, in order, without whatever lies beyond 4 GiB.
pub fn comments(source: &str) -> Vec<Comment<'_>> {
    let mut found = Vec::new();
    let (mut offset, mut is_before) = (0, true);
    for (index, line) in source.split_inclusive('\n').enumerate() {
        let text = line.trim();
        let is_function =
            text.strip_prefix("func").is_some_and(|rest| !rest.bytes().next().is_some_and(is_name));
        is_before &= !is_function;
        if let Some(text) = text.strip_prefix(';').map(str::trim_start) {
            let end = offset + line.trim_end().len();
            let (Ok(start), Ok(end)) = (u32::try_from(end - text.len()), u32::try_from(end)) else { break };
            found.push(Comment { text, line: index + 1, span: Span { start, end }, is_before });
        }
        offset += line.len();
    }
    found
}

impl Comment<'_> {
    /// The directive that the comment is, if it is one.
    pub fn directive(&self) -> Option<Directive> {
        let (key, value) = self.text.split_once(':')?;
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
        let directive = |value: &str| Directive {
            key: key.to_owned(),
            value: value.to_owned(),
            line: self.line,
            span: self.span,
        };
        is_key.then(|| directive(value.trim()))
    }
}
