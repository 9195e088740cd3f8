//! Comments, and the `; key: value` directives at the head of a file.

use super::lexer::is_name;
use crate::diagnostics::Span;

/// A comment line `; key: value` before the function. The reader of the file defines the keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directive {
    /// The key: lower-case letters and `_`.
    pub key: String,
    /// The rest of the line, trimmed; may be empty.
    pub value: String,
    /// The line, from 1.
    pub line: usize,
    /// The key and the value.
    pub span: Span,
}

/// A comment line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comment<'a> {
    /// The text after the `;`, trimmed.
    pub text: &'a str,
    /// The line, from 1.
    pub line: usize,
    /// The span of the text.
    pub span: Span,
    /// True if the comment precedes the function.
    pub is_before: bool,
}

/// The directives of a file in order. Ignores other comments, everything from the line that begins with `func`, and
/// text beyond 4 GiB.
pub fn directives(source: &str) -> Vec<Directive> {
    comments(source).iter().take_while(|comment| comment.is_before).filter_map(Comment::directive).collect()
}

/// The comment lines of a file in order. Ignores text beyond 4 GiB.
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
    /// Parses the comment as a directive; `None` if it is not one.
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
