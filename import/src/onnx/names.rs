//! Names of values in a program.

use std::collections::HashMap;

/// The maximum length of a name that is made from one of the model.
const MAX_NAME: usize = 96;

/// The names in use.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The number of names that begin with each word.
    used: HashMap<String, u32>,
}

impl Names {
    /// Reserves a name. Returns false if it is taken.
    pub(super) fn reserve(&mut self, name: &str) -> bool {
        self.used.insert(name.to_owned(), 1).is_none()
    }

    /// A new name like one of the model.
    pub(super) fn like(&mut self, name: &str) -> String {
        let word = word(name);
        if self.reserve(&word) {
            return word;
        }
        loop {
            let count = self.used.entry(word.clone()).or_insert(1);
            *count += 1;
            let name = format!("{word}_{count}");
            if self.reserve(&name) {
                return name;
            }
        }
    }
}

/// A name as the program language allows it: letters, digits, `_` and `.`, not beginning with `.` or a digit.
pub(super) fn word(name: &str) -> String {
    let mut word = String::new();
    for letter in name.chars().take(MAX_NAME) {
        let letter = match letter {
            letter if letter.is_ascii_alphanumeric() || letter == '_' => letter,
            '/' | '.' | ':' => '.',
            _ => '_',
        };
        if letter != '.' || !(word.is_empty() || word.ends_with('.')) {
            word.push(letter);
        }
    }
    let word = word.trim_end_matches('.');
    match word.chars().next() {
        None => "v".to_owned(),
        Some(first) if first.is_ascii_digit() => format!("v{word}"),
        Some(_) => word.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_model_become_words() {
        for (name, expected) in [
            ("/query/MatMul_output_0", "query.MatMul_output_0"),
            ("onnx::Add_12", "onnx.Add_12"),
            ("12", "v12"),
            ("", "v"),
            ("./", "v"),
            ("a b%c", "a_b_c"),
            ("é", "_"),
        ] {
            assert_eq!(word(name), expected, "{name}");
        }
        assert_eq!(word(&"a".repeat(1000)).len(), MAX_NAME);
    }

    #[test]
    fn names_are_unique() {
        let mut names = Names::default();
        assert!(names.reserve("x"));
        assert!(!names.reserve("x"));
        let made: Vec<String> = ["x", "x", "x_2", "y"].iter().map(|name| names.like(name)).collect();
        assert_eq!(made, ["x_2", "x_3", "x_2_2", "y"]);
    }
}
