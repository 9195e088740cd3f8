//! The options of an import.

use fourfold_ir::ElementType;

use crate::error::ImportError;

/// The options of an import.
#[derive(Clone, Debug, PartialEq)]
pub struct ImportOptions {
    /// The programs to import, by name: `*` stands for any characters, `?` for one. `None` selects all.
    pub select: Option<String>,
    /// The symbol of the number of rows of `%x`.
    pub m: String,
    /// The type of `%x`: f32, bf16 or f16. `None` is the model's type.
    pub input_type: Option<ElementType>,
    /// The type of `%y`: f32, bf16 or f16. `None` is the model's type.
    pub output_type: Option<ElementType>,
}

impl Default for ImportOptions {
    fn default() -> ImportOptions {
        ImportOptions { select: None, m: "M".to_owned(), input_type: None, output_type: None }
    }
}

impl ImportOptions {
    /// Returns true if a program of this name is selected.
    pub fn selects(&self, name: &str) -> bool {
        self.select.as_ref().is_none_or(|pattern| matches(pattern.as_bytes(), name.as_bytes()))
    }

    /// Checks the symbol and the types.
    ///
    /// # Errors
    /// When the symbol is not a word of the program language, or a type is not f32, bf16 or f16.
    pub fn check(&self) -> Result<(), ImportError> {
        let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
        let begins = self.m.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !begins || !self.m.chars().all(is_letter) {
            return Err(ImportError::Symbol { symbol: self.m.clone() });
        }
        match [self.input_type, self.output_type].into_iter().flatten().find(|ty| !ty.is_arithmetic()) {
            Some(element) => Err(ImportError::ActivationType { element }),
            None => Ok(()),
        }
    }
}

/// Matches a name against a pattern with `*` and `?`, in time proportional to the product of their lengths.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // The last `*`, and the part of the name that it stands for so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(letter) if *letter == b'?' || *letter == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, taken)) => {
                    *taken += 1;
                    (p, n) = (*at + 1, *taken);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_selects_names() {
        for (pattern, name, expected) in [
            ("*", "a.b", true),
            ("", "a", false),
            ("model.layers.0.*", "model.layers.0.mlp.up_proj", true),
            ("model.layers.0.*", "model.layers.10.mlp.up_proj", false),
            ("*.mlp.*_proj", "model.layers.0.mlp.up_proj", true),
            ("*.mlp.*_proj", "model.layers.0.mlp.up_proj.x", false),
            ("layer.?", "layer.1", true),
            ("layer.?", "layer.12", false),
            ("*a*b", "aXbXb", true),
            ("**", "", true),
        ] {
            let options = ImportOptions { select: Some(pattern.to_owned()), ..ImportOptions::default() };
            assert_eq!(options.selects(name), expected, "{pattern} {name}");
        }
        assert!(ImportOptions::default().selects("any"));
    }

    #[test]
    fn a_symbol_is_a_word_and_activations_are_arithmetic() {
        for (symbol, expected) in [("M", true), ("B.S", true), ("", false), ("4", false), ("M N", false)] {
            let options = ImportOptions { m: symbol.to_owned(), ..ImportOptions::default() };
            assert_eq!(options.check().is_ok(), expected, "{symbol}");
        }
        let options = ImportOptions { input_type: Some(ElementType::F8E4M3FN), ..ImportOptions::default() };
        assert!(options.check().is_err());
    }
}
