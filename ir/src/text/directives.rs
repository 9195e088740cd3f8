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

/// The directives of a file in order. Other comments, and everything from the line that begins with `func` on, are
/// passed over, and so is whatever lies beyond 4 GiB.
pub fn directives(source: &str) -> Vec<Directive> {
    let mut found = Vec::new();
    let mut offset = 0;
    for (index, line) in source.split_inclusive('\n').enumerate() {
        let text = line.trim();
        let is_function =
            text.strip_prefix("func").is_some_and(|rest| !rest.bytes().next().is_some_and(is_name));
        if is_function {
            break;
        }
        if let Some((key, value)) = directive(text) {
            // Both are slices of the line: the key's place follows from what stands before it.
            let start = offset + line.find(key).unwrap_or_default();
            let end = offset + line.trim_end().len();
            let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(end)) else { break };
            let (key, value) = (key.to_owned(), value.to_owned());
            found.push(Directive { key, value, line: index + 1, span: Span { start, end } });
        }
        offset += line.len();
    }
    found
}

fn directive(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.strip_prefix(';')?.trim_start().split_once(':')?;
    let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    is_key.then_some((key, value.trim()))
}
