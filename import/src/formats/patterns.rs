//! Lists of module names and patterns in configurations.

use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use crate::options::matches;

/// The prefix of a regular expression, which must match from the start of a name.
const EXPRESSION: &str = "re:";
/// The maximum number of regular expressions of a list, and of bytes of each when compiled.
const MAX_EXPRESSIONS: usize = 64;
const MAX_COMPILED: usize = 1 << 20;

/// The names, globs and regular expressions of a list.
#[derive(Default)]
pub(super) struct Patterns<'a> {
    names: BTreeSet<&'a str>,
    globs: Vec<&'a str>,
    expressions: Vec<(&'a str, Regex)>,
    /// The first regular expression that is not understood, such as one that looks ahead.
    pub(super) unknown: Option<&'a str>,
}

impl<'a> Patterns<'a> {
    /// Reads the texts of lists.
    pub(super) fn new(lists: impl IntoIterator<Item = &'a Value>) -> Patterns<'a> {
        let mut patterns = Patterns::default();
        for text in lists.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str) {
            match text.strip_prefix(EXPRESSION) {
                Some(expression) if patterns.expressions.len() < MAX_EXPRESSIONS => {
                    let anchored = format!("^(?:{expression})");
                    match RegexBuilder::new(&anchored).size_limit(MAX_COMPILED).build() {
                        Ok(compiled) => patterns.expressions.push((text, compiled)),
                        Err(_) => patterns.unknown = patterns.unknown.or(Some(text)),
                    }
                }
                Some(_) => patterns.unknown = patterns.unknown.or(Some(text)),
                None if text.contains(['*', '?']) => patterns.globs.push(text),
                None => {
                    patterns.names.insert(text);
                }
            }
        }
        patterns
    }

    /// The pattern that a module has, if there is one.
    pub(super) fn of(&self, module: &str) -> Option<&'a str> {
        let name = self.names.get(module).copied();
        let glob = || self.globs.iter().copied().find(|glob| matches(glob.as_bytes(), module.as_bytes()));
        let expression =
            || self.expressions.iter().find(|(_, compiled)| compiled.is_match(module)).map(|(text, _)| *text);
        name.or_else(glob).or_else(expression)
    }

    /// The name of a class of linears, if there is one.
    pub(super) fn linears(&self) -> Option<&'a str> {
        self.names.iter().copied().find(|name| !name.contains('.') && name.ends_with("Linear"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Patterns;

    #[test]
    fn a_pattern_is_a_name_a_glob_or_an_expression() {
        let list = json!(["lm_head", "*.gate", "re:.*up_proj$", "re:mlp", "re:^(?!a).*", 7]);
        let patterns = Patterns::new([&list]);
        assert_eq!(patterns.of("lm_head"), Some("lm_head"));
        assert_eq!(patterns.of("a.gate"), Some("*.gate"));
        assert_eq!(patterns.of("a.up_proj"), Some("re:.*up_proj$"));
        assert_eq!(patterns.of("mlp.0"), Some("re:mlp"));
        assert_eq!(patterns.of("a.mlp.0"), None, "an expression begins at the start");
        assert_eq!(patterns.unknown, Some("re:^(?!a).*"));
        assert_eq!(patterns.linears(), None);
        let list = json!(["Linear"]);
        assert_eq!(Patterns::new([&list]).linears(), Some("Linear"));
    }
}
