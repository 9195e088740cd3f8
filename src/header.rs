//! What the comments above a program say about running it: data, samples, tolerances, tests.
//!
//! Directives stand before the function, one per line:
//! - `; data: FILE` — the tensors, a safetensors file beside the program;
//! - `; sample: RULE seed=N [SYMBOL=EXTENT ...]` — seeded inputs instead ([`fourfold_ir::sample`]); may repeat;
//! - `; tolerance: [NAME] T` — of one expected value, or of all others, relative to its largest magnitude;
//! - `; expected: NAME = TENSOR, N may differ` — the codes of value NAME are the tensor TENSOR of the data;
//! - `; test: KIND ...` — what the file tests do with the program.
//!
//! Other comments are comments.

use std::collections::BTreeMap;

use fourfold_ir::sample::{Recipe, Rule};
use fourfold_ir::text::{self, Directive};
use fourfold_ir::{Diagnostic, Span};

/// The directives of a file.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The data file, relative to the program's folder.
    pub data: Option<String>,
    /// Seeded inputs, in order.
    pub samples: Vec<Recipe>,
    /// The tolerance of values that have none of their own.
    pub tolerance: Option<f64>,
    /// Tolerances by value name.
    pub tolerances: BTreeMap<String, f64>,
    /// Values that equal tensors of the data that are not called `expected.NAME`.
    pub expected: Vec<ExpectedCodes>,
    /// The tests.
    pub tests: Vec<String>,
}

/// A value whose codes are a tensor of the data.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedCodes {
    /// The name of the value.
    pub value: String,
    /// The name of the tensor.
    pub tensor: String,
    /// How many elements may differ.
    pub may_differ: usize,
}

/// Reads the directives of a program's text.
///
/// # Errors
/// Every directive that is not of the form above, with its place.
pub fn read(source: &str) -> Result<Header, Vec<Diagnostic>> {
    let mut header = Header::default();
    let mut errors = Vec::new();
    for directive in text::directives(source) {
        if let Err(message) = header.add(&directive) {
            errors.push(wrong(directive.span, message));
        }
    }
    if errors.is_empty() { Ok(header) } else { Err(errors) }
}

impl Header {
    /// The tolerance of a value's comparison, if the file states one.
    pub fn tolerance_of(&self, name: &str) -> Option<f64> {
        self.tolerances.get(name).copied().or(self.tolerance)
    }

    fn add(&mut self, directive: &Directive) -> Result<(), String> {
        let value = directive.value.as_str();
        match directive.key.as_str() {
            "data" if self.data.is_some() => return Err("there is a `data` line already".to_owned()),
            "data" => self.data = Some(value.to_owned()),
            "sample" => self.samples.push(read_sample(value)?),
            "tolerance" => match value.split_once(' ') {
                Some((name, tolerance)) => {
                    self.tolerances.insert(name.to_owned(), read_tolerance(tolerance.trim())?);
                }
                None => self.tolerance = Some(read_tolerance(value)?),
            },
            "expected" => self.expected.push(read_expected(value)?),
            "test" => self.tests.push(value.to_owned()),
            _ => {}
        }
        Ok(())
    }
}

fn wrong(span: Span, message: String) -> Diagnostic {
    Diagnostic { code: "bad_directive", message, span: Some(span), op: None, notes: Vec::new() }
}

fn read_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(tolerance) if tolerance >= 0.0 && tolerance.is_finite() => Ok(tolerance),
        _ => Err(format!("expected a tolerance such as `1e-5` or `fc2 1e-4`, found `{text}`")),
    }
}

fn read_sample(text: &str) -> Result<Recipe, String> {
    let mut words = text.split_whitespace();
    let rule = words
        .next()
        .and_then(Rule::from_name)
        .ok_or_else(|| format!("expected `exact`, `contest` or `normal`, then `seed=N`, found `{text}`"))?;
    let mut recipe = Recipe { rule, seed: 0, symbols: Vec::new() };
    for word in words {
        let (name, number) = word
            .split_once('=')
            .and_then(|(name, number)| Some((name, number.parse::<u64>().ok()?)))
            .ok_or_else(|| format!("expected `seed=N` or `SYMBOL=EXTENT`, found `{word}`"))?;
        match name {
            "seed" => recipe.seed = number,
            _ => recipe.symbols.push((name.to_owned(), number)),
        }
    }
    Ok(recipe)
}

fn read_expected(text: &str) -> Result<ExpectedCodes, String> {
    let parse = || {
        let (value, rest) = text.split_once('=')?;
        let (tensor, count) = rest.split_once(',')?;
        let may_differ = count.trim().strip_suffix("may differ")?.trim().parse().ok()?;
        Some(ExpectedCodes { value: value.trim().to_owned(), tensor: tensor.trim().to_owned(), may_differ })
    };
    parse().ok_or_else(|| format!("expected `NAME = TENSOR, N may differ`, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directive_is_read_and_other_comments_are_not() {
        let header = read(
            "fir 1\n; A note: with a colon.\n; data: a.safetensors\n; sample: exact seed=7 M=3 B=2\n\
             ; tolerance: 1e-5\n; tolerance: fc2 1e-4\n; expected: q = fc2.input, 4 may differ\n; test: run\n\
             func @f() {\n}\n",
        )
        .expect("all are well-formed");
        assert_eq!(header.data.as_deref(), Some("a.safetensors"));
        assert_eq!(header.samples[0].symbols, vec![("M".to_owned(), 3), ("B".to_owned(), 2)]);
        assert_eq!(header.samples[0].seed, 7);
        assert_eq!(header.tolerance_of("fc2"), Some(1e-4));
        assert_eq!(header.tolerance_of("fc1"), Some(1e-5));
        let expected = ExpectedCodes { value: "q".into(), tensor: "fc2.input".into(), may_differ: 4 };
        assert_eq!(header.expected, vec![expected]);
        assert_eq!(header.tests, vec!["run"]);
    }

    #[test]
    fn a_wrong_directive_is_named_with_its_place() {
        for line in
            ["tolerance: -1", "tolerance: x y", "sample: fast seed=1", "sample: exact M=", "expected: a = b"]
        {
            let source = format!("fir 1\n; {line}\nfunc @f() {{\n}}\n");
            let errors = read(&source).expect_err(line);
            assert_eq!(errors.len(), 1, "{line}");
            assert_eq!(errors[0].line_and_column(&source).map(|place| place.0), Some(2), "{line}");
        }
    }
}
