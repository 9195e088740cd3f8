//! What the comments above a program say about running it: data, samples, tolerances, tests.
//!
//! Directives stand before the function, one per line:
//! - `; data: FILE` — the tensors, a safetensors file beside the program;
//! - `; sample: RULE seed=N [SYMBOL=EXTENT ...]` — seeded inputs ([`fourfold_ir::sample`]); may repeat;
//! - `; tolerance: [NAME] T` — of one value, or of all others, relative to its largest magnitude;
//! - `; expected: NAME = TENSOR [linear | blocked], N may differ` — the codes of value NAME are the tensor TENSOR of
//!   the data, for scales with the layout in which they are stored there (that of NAME when it is not said);
//! - `; allow: contract` — normalization may drop roundings that the program states;
//! - `; test: KIND ...` — what the file tests do with the program.
//!
//! Other comments are comments.

use std::collections::BTreeMap;

use fourfold_ir::sample::{Recipe, Rule};
use fourfold_ir::text::{self, Directive};
use fourfold_ir::{Diagnostic, Program, ScaleLayout, Span};
use fourfold_scheduler::NormalizeOptions;

const KEYS: [&str; 6] = ["data", "sample", "tolerance", "expected", "allow", "test"];

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
    /// What normalization may do.
    pub allow: NormalizeOptions,
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
    /// The layout in which scales are stored, when it is not that of the value.
    pub layout: Option<ScaleLayout>,
    /// How many elements may differ.
    pub may_differ: usize,
}

/// Reads the directives of a program's text. Those that name values must name values of `program`.
///
/// # Errors
/// Every directive that is not of the form above, with its place.
pub fn read(source: &str, program: &Program) -> Result<Header, Vec<Diagnostic>> {
    let mut header = Header::default();
    let mut errors = Vec::new();
    for directive in text::directives(source) {
        if let Err(message) = header.add(&directive, program) {
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

    fn add(&mut self, directive: &Directive, program: &Program) -> Result<(), String> {
        let value = directive.value.as_str();
        let check_value = |name: &str| match program.facts().value_named(name) {
            Some(_) => Ok(()),
            None => Err(format!("the program has no value %{name}")),
        };
        match directive.key.as_str() {
            "data" if self.data.is_some() => return Err("there is a `data` line already".to_owned()),
            "data" => self.data = Some(value.to_owned()),
            "sample" => self.samples.push(read_sample(value)?),
            "tolerance" => {
                let replaced = match value.split_once(' ') {
                    Some((name, tolerance)) => {
                        let tolerance = read_tolerance(tolerance.trim())?;
                        check_value(name)?;
                        self.tolerances.insert(name.to_owned(), tolerance).is_some()
                    }
                    None => self.tolerance.replace(read_tolerance(value)?).is_some(),
                };
                if replaced {
                    return Err("there is such a `tolerance` line already".to_owned());
                }
            }
            "expected" => {
                let expected = read_expected(value)?;
                check_value(&expected.value)?;
                self.expected.push(expected);
            }
            "allow" if value == "contract" => self.allow.contract = true,
            "allow" => return Err(format!("expected `contract`, found `{value}`")),
            "test" => self.tests.push(value.to_owned()),
            key => {
                if let Some(meant) = KEYS.iter().find(|known| is_misspelt(key, known)) {
                    return Err(format!("there is no directive `{key}`; is it meant to be `{meant}`?"));
                }
            }
        }
        Ok(())
    }
}

/// Whether a word is one letter away from another: one more, one less, or one changed.
fn is_misspelt(word: &str, known: &str) -> bool {
    let (word, known) = (word.as_bytes(), known.as_bytes());
    let same_start = word.iter().zip(known).take_while(|(a, b)| a == b).count();
    let same_end = word.iter().rev().zip(known.iter().rev()).take_while(|(a, b)| a == b).count();
    let longer = word.len().max(known.len());
    word.len().abs_diff(known.len()) <= 1 && same_start + same_end + 1 >= longer
}

fn wrong(span: Span, message: String) -> Diagnostic {
    Diagnostic { code: "bad_directive", message, span: Some(span), op: None, notes: Vec::new() }
}

fn read_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // Beyond 1 even zeros would do.
        Ok(tolerance) if (0.0..=1.0).contains(&tolerance) => Ok(tolerance),
        _ => Err(format!("expected a tolerance from 0 to 1, such as `1e-5` or `fc2 1e-4`, found `{text}`")),
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
        let (value, mut words) = (value.trim().to_owned(), tensor.split_whitespace());
        let tensor = words.next()?.to_owned();
        let layout = match words.next() {
            None => None,
            Some("linear") => Some(ScaleLayout::Linear),
            Some("blocked") => Some(ScaleLayout::Blocked),
            Some(_) => return None,
        };
        words.next().is_none().then_some(ExpectedCodes { value, tensor, layout, may_differ })
    };
    parse()
        .ok_or_else(|| format!("expected `NAME = TENSOR [linear | blocked], N may differ`, found `{text}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_header(directives: &str) -> Result<Header, Vec<Diagnostic>> {
        let source = format!(
            "fir 1\n{directives}func @f(%fc1: tensor<[4], f32>, %fc2: tensor<[4], f32>) {{\n  return %fc1, %fc2\n}}\n"
        );
        let (program, _) = text::load(&source).expect("the program is valid");
        read(&source, &program)
    }

    #[test]
    fn every_directive_is_read_and_other_comments_are_not() {
        let header = read_header(
            "; A note: with a colon.\n; notes: none\n; data: a.safetensors\n; sample: exact seed=7 M=3 B=2\n\
             ; tolerance: 1e-5\n; tolerance: fc2 1e-4\n; expected: fc1 = fc2.input, 4 may differ\n\
             ; expected: fc2 = fc2.scale linear, 0 may differ\n; allow: contract\n; test: run\n",
        )
        .expect("all are well-formed");
        assert_eq!(header.data.as_deref(), Some("a.safetensors"));
        assert_eq!(header.samples[0].symbols, vec![("M".to_owned(), 3), ("B".to_owned(), 2)]);
        assert_eq!(header.samples[0].seed, 7);
        assert_eq!(header.tolerance_of("fc2"), Some(1e-4));
        assert_eq!(header.tolerance_of("fc1"), Some(1e-5));
        let expected = |value: &str, tensor: &str, layout, may_differ| ExpectedCodes {
            value: value.to_owned(),
            tensor: tensor.to_owned(),
            layout,
            may_differ,
        };
        assert_eq!(header.expected[0], expected("fc1", "fc2.input", None, 4));
        assert_eq!(header.expected[1], expected("fc2", "fc2.scale", Some(ScaleLayout::Linear), 0));
        assert_eq!(header.tests, vec!["run"]);
        assert!(header.allow.contract);
        assert!(!read_header("; test: run\n").expect("it is well-formed").allow.contract);
    }

    #[test]
    fn a_wrong_directive_is_named_with_its_place() {
        for line in [
            "tolerance: -1",
            "tolerance: 1e300",
            "tolerance: nan",
            "tolerance: x y",
            "tolerance: fc3 1e-3",
            "tolerances: 1e-3",
            "dta: file",
            "sample: fast seed=1",
            "sample: exact M=",
            "expected: fc1 = b",
            "expected: fc3 = b, 1 may differ",
            "expected: fc1 = b square, 1 may differ",
            "allow: everything",
            "alow: contract",
        ] {
            let directives = format!("; {line}\n");
            let errors = read_header(&directives).expect_err(line);
            assert_eq!(errors.len(), 1, "{line}");
            let source = format!("fir 1\n{directives}");
            assert_eq!(errors[0].line_and_column(&source).map(|place| place.0), Some(2), "{line}");
        }
        assert!(read_header("; tolerance: 1e-3\n; tolerance: 1e-4\n").is_err(), "two of one kind");
    }
}
