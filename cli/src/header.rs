//! The directives in the comments above a program: data, samples, tolerances, tests.
//!
//! Directives stand before the function, one per line:
//! - `; data: FILE`: the tensors, in a safetensors file beside the program; may repeat, and later files add or replace
//!   tensors;
//! - `; tensor: INPUT = "NAME"[SLICE] in "FILE" as WORD`: the tensor of one input, read in place
//!   ([`TensorReference`]);
//! - `; sample: RULE seed=N [SYMBOL=EXTENT ...]`: seeded inputs ([`fourfold_ir::sample`]); may repeat;
//! - `; tolerance: [NAME] T`: the tolerance of value NAME, or of every other value, relative to its largest
//!   magnitude;
//! - `; expected: NAME = TENSOR [linear | blocked], N may differ`: the codes of value NAME are those of TENSOR in
//!   the data. The layout is that of stored scales [default: that of NAME];
//! - `; allow: contract`: normalization may drop roundings that the program states;
//! - `; test: KIND ...`: the file tests that run on the program.
//!
//! Other comments are free text, unless they look like a misspelt directive. That is a key with a typo, in another case
//! or without its colon, or a directive below the function or after code. These are errors, so that a directive is
//! never ignored by accident.

mod spelling;

use std::collections::BTreeMap;

use fourfold_executor::{ReferenceError, TensorReference};
use fourfold_ir::sample::{Recipe, Rule};
use fourfold_ir::text::{self, Comment, Directive};
use fourfold_ir::{Diagnostic, Program, ScaleLayout, Span};
use fourfold_scheduler::NormalizeOptions;

use self::spelling::nearest;

const KEYS: [&str; 7] = ["data", "tensor", "sample", "tolerance", "expected", "allow", "test"];
/// The kinds of file tests.
const TESTS: [&str; 5] = ["partition", "normalize", "emit", "run", "error"];

/// The directives of a file.
#[derive(Clone, Debug, Default)]
pub struct Header {
    /// The data files, relative to the program's folder.
    pub data: Vec<String>,
    /// The tensors of single inputs.
    pub tensors: Vec<TensorReference>,
    /// The recipes of seeded inputs, in order.
    pub samples: Vec<Recipe>,
    /// The tolerance of every value without one of its own.
    pub tolerance: Option<f64>,
    /// Tolerances by value name.
    pub tolerances: BTreeMap<String, f64>,
    /// Values that equal a tensor of the data whose name is not `expected.NAME`.
    pub expected: Vec<ExpectedCodes>,
    /// The rewrites that normalization may make.
    pub allow: NormalizeOptions,
    /// The file tests.
    pub tests: Vec<String>,
}

/// A value and the tensor of the data that holds its codes.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpectedCodes {
    /// The name of the value.
    pub value: String,
    /// The name of the tensor.
    pub tensor: String,
    /// The layout of stored scales; `None` if it is that of the value.
    pub layout: Option<ScaleLayout>,
    /// The number of elements that may differ.
    pub may_differ: usize,
}

/// Reads the directives of a program's text. A directive that names a value must name one of `program`.
///
/// # Errors
/// Returns every malformed directive and every comment that looks like one, each with its place.
pub fn read(source: &str, program: &Program) -> Result<Header, Vec<Diagnostic>> {
    let mut header = Header::default();
    let mut errors = Vec::new();
    for comment in text::comments(source) {
        let read = match comment.directive().filter(|_| comment.is_before) {
            Some(directive) => header.add(&directive, program),
            None => check_comment(&comment, program),
        };
        if let Err(message) = read {
            errors.push(wrong(comment.span, message));
        }
    }
    errors.extend(
        trailing(source)
            .into_iter()
            .filter_map(|comment| Some(wrong(comment.span, check_comment(&comment, program).err()?))),
    );
    if errors.is_empty() { Ok(header) } else { Err(errors) }
}

/// Returns the comments after code on a line, none of which is a directive.
fn trailing(source: &str) -> Vec<Comment<'_>> {
    let mut found = Vec::new();
    let mut offset = 0;
    for (index, line) in source.split_inclusive('\n').enumerate() {
        if let Some(at) = line.find(';').filter(|at| !line[..*at].trim().is_empty()) {
            let text = line[at + 1..].trim();
            let start = offset + at + 1 + line[at + 1..].len() - line[at + 1..].trim_start().len();
            let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(start + text.len())) else {
                break;
            };
            found.push(Comment { text, line: index + 1, span: Span { start, end }, is_before: false });
        }
        offset += line.len();
    }
    found
}

impl Header {
    /// Replaces tolerances: one without a name replaces all of the file, and one with a name that of its value.
    pub(crate) fn replace_tolerances(
        &mut self,
        given: &[(Option<String>, f64)],
        program: &Program,
    ) -> Result<(), String> {
        if let Some((_, tolerance)) = given.iter().find(|(name, _)| name.is_none()) {
            self.tolerances.clear();
            self.tolerance = Some(*tolerance);
        }
        for (name, tolerance) in given {
            let Some(name) = name else { continue };
            if program.facts().value_named(name).is_none() {
                let values = program.module().values.values().map(|value| value.name.as_str());
                let meant = text::nearest(name, values);
                let meant = meant.map_or_else(String::new, |meant| format!("; did you mean `{meant}`?"));
                return Err(format!("the tolerance of %{name}: the program has no value %{name}{meant}"));
            }
            self.tolerances.insert(name.clone(), *tolerance);
        }
        Ok(())
    }

    /// Returns the tolerance that the file states for a value.
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
            "data" => self.data.push(value.to_owned()),
            "tensor" => {
                let reference = read_reference(value, program)?;
                // Indices of the first axis have a line each.
                for known in self.tensors.iter().filter(|known| known.input == reference.input) {
                    let what = match (known.part, reference.part) {
                        (None, None) => "a second `tensor` line".to_owned(),
                        (Some(known), Some(index)) if known != index => continue,
                        (Some(index), Some(_)) => format!("a second `tensor` line for index {index}"),
                        (Some(index), None) | (None, Some(index)) => {
                            format!("a `tensor` line for all of it and one for index {index}")
                        }
                    };
                    return Err(format!("the input %{} has {what}", reference.input));
                }
                self.tensors.push(reference);
            }
            "sample" => self.samples.push(read_sample(value, program)?),
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
                    return Err("this tolerance is given twice".to_owned());
                }
            }
            "expected" => {
                let expected = read_expected(value)?;
                check_value(&expected.value)?;
                self.expected.push(expected);
            }
            "allow" if value == "contract" => self.allow.contract = true,
            "allow" => return Err(format!("expected `contract`, found `{value}`")),
            "test" => {
                let kind = value.split_whitespace().next().unwrap_or_default();
                if let Some(meant) = nearest(kind, &TESTS).filter(|meant| *meant != kind) {
                    return Err(format!("unknown test `{kind}`; did you mean `{meant}`?"));
                }
                self.tests.push(value.to_owned());
            }
            key => {
                if let Some(meant) = nearest(key, &KEYS) {
                    return Err(format!("unknown directive `{key}`; did you mean `{meant}`?"));
                }
            }
        }
        Ok(())
    }
}

/// Fails if a comment looks like a misspelt directive.
fn check_comment(comment: &Comment<'_>, program: &Program) -> Result<(), String> {
    // Below the function, and after `;;`, `; ;` or `;#`.
    let text = comment.text.trim_start_matches([';', '#', ' ', '\t']);
    let end = text.find(|c: char| !c.is_ascii_alphabetic() && c != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let rest = rest.trim_start();
    let value = rest.strip_prefix([':', '=']).map(str::trim);
    let lower = word.to_ascii_lowercase();
    let Some(key) = nearest(&lower, &KEYS) else { return Ok(()) };
    let is_key = lower == key;
    let is_meant = match value {
        // `; Tolerance: 1e-3` and `; tolerance : 1e-3`; below the function any text may follow.
        Some(_) if is_key && comment.is_before && rest.starts_with(':') => true,
        Some(value) => reads(key, value, program),
        // `; expected x = y` without a count, but not `; expected to be x = y`.
        None if key == "expected" && names_two(rest, program) => true,
        // `; tolerance 1e-3`, but not `; tolerance is not needed`.
        None => is_key && reads(key, rest, program),
    };
    match (is_meant, comment.is_before) {
        (false, _) => Ok(()),
        (true, false) if is_key && word == key && comment.directive().is_some() => {
            Err(format!("the directive `{key}` has no effect here; write it above the function"))
        }
        (true, _) => {
            let value = value.unwrap_or(rest);
            Err(format!("this comment looks like a directive; did you mean `; {key}: {value}`?"))
        }
    }
}

/// Returns true if a text is `NAME = TENSOR` and NAME is a value.
fn names_two(text: &str, program: &Program) -> bool {
    let is_word = |text: &str| !text.is_empty() && !text.contains(char::is_whitespace);
    text.split_once('=').is_some_and(|(value, tensor)| {
        let tensor = tensor.split(',').next().unwrap_or_default().trim();
        program.facts().value_named(value.trim()).is_some() && is_word(tensor)
    })
}

/// Returns true if a directive with this value would be valid.
fn reads(key: &str, value: &str, program: &Program) -> bool {
    let mut words = value.split_whitespace();
    match key {
        // Any text may name a file or a test, so these two are judged by stricter rules.
        "data" => words.next().is_some_and(|word| word.ends_with(".safetensors")) && words.next().is_none(),
        "test" => words.next().is_some_and(|word| TESTS.contains(&word)) && words.count() < 2,
        _ => {
            let directive = Directive {
                key: key.to_owned(),
                value: value.to_owned(),
                line: 0,
                span: Span { start: 0, end: 0 },
            };
            Header::default().add(&directive, program).is_ok()
        }
    }
}

fn wrong(span: Span, message: String) -> Diagnostic {
    Diagnostic { code: "bad_directive", message, span: Some(span), op: None, notes: Vec::new() }
}

/// Parses a tolerance.
pub(crate) fn read_tolerance(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // A tolerance beyond 1 would accept zeros.
        Ok(tolerance) if (0.0..=1.0).contains(&tolerance) => Ok(tolerance),
        _ => Err(format!("expected a tolerance from 0 to 1, such as `1e-5` or `fc2 1e-4`, found `{text}`")),
    }
}

fn read_reference(text: &str, program: &Program) -> Result<TensorReference, String> {
    let reference: TensorReference = text.parse().map_err(|error: ReferenceError| error.to_string())?;
    let module = program.module();
    let inputs = || module.inputs.iter().map(|input| module.name_of(*input));
    if inputs().any(|name| name == reference.input) {
        return Ok(reference);
    }
    let input = &reference.input;
    Err(match text::nearest(input, inputs()) {
        Some(meant) => format!("the program has no input %{input}; did you mean `{meant}`?"),
        None => format!("the program has no input %{input}"),
    })
}

fn read_sample(text: &str, program: &Program) -> Result<Recipe, String> {
    let mut words = text.split_whitespace();
    let rule = words
        .next()
        .and_then(Rule::from_name)
        .ok_or_else(|| format!("expected `exact`, `contest` or `normal`, then `seed=N`, found `{text}`"))?;
    let mut recipe = Recipe { rule, seed: 0, symbols: Vec::new() };
    let mut has_seed = false;
    for word in words {
        let (name, number) = word
            .split_once('=')
            .and_then(|(name, number)| Some((name, number.parse::<u64>().ok()?)))
            .ok_or_else(|| format!("expected `seed=N` or `SYMBOL=EXTENT`, found `{word}`"))?;
        match name {
            "seed" if has_seed => return Err("`seed` is given twice".to_owned()),
            "seed" => {
                recipe.seed = number;
                has_seed = true;
            }
            _ if program.module().symbols.iter().any(|(_, known)| known == name) => {
                recipe.symbols.push((name.to_owned(), number));
            }
            _ => return Err(no_symbol(name, program)),
        }
    }
    Ok(recipe)
}

fn no_symbol(name: &str, program: &Program) -> String {
    let symbols = program.module().symbols.iter().map(|(_, known)| known.as_str());
    let known: Vec<&str> = symbols.chain(["seed"]).collect();
    let listed: Vec<String> = known.iter().map(|known| format!("`{known}`")).collect();
    match nearest(&name.to_ascii_lowercase(), &["seed"]) {
        Some(meant) => format!("the program has no symbol `{name}`; did you mean `{meant}`?"),
        None => format!("the program has no symbol `{name}`; a sample takes {}", listed.join(", ")),
    }
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
    use fourfold_executor::AxisSlice;

    use super::*;

    fn read_header(directives: &str) -> Result<Header, Vec<Diagnostic>> {
        let source = format!(
            "fir 1\n{directives}func @f(%fc1: tensor<[M], f32>, %fc2: tensor<[B], f32>) {{\n  return %fc1, %fc2\n}}\n"
        );
        let (program, _) = fourfold_ir::load(&source).expect("the program is valid");
        read(&source, &program)
    }

    #[test]
    fn every_directive_is_read_and_other_comments_are_not() {
        let header = read_header(
            "; A note: with a colon.\n; notes: none\n; data: a.safetensors\n; sample: exact seed=7 M=3 B=2\n\
             ; data: b.safetensors\n; tensor: fc2 = \"b.c\"[3] in \"../m.safetensors\"\n\
             ; tolerance: 1e-5\n; tolerance: fc2 1e-4\n; expected: fc1 = fc2.input, 4 may differ\n\
             ; expected: fc2 = fc2.scale linear, 0 may differ\n; allow: contract\n; test: run\n",
        )
        .expect("all are well-formed");
        assert_eq!(header.data, ["a.safetensors", "b.safetensors"]);
        let slice = vec![AxisSlice::Index(3)];
        let tensors = [TensorReference::tensor("fc2", "b.c").sliced(slice).in_file("../m.safetensors")];
        assert_eq!(header.tensors, tensors);
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
    fn given_tolerances_replace_those_of_the_file() {
        let lines = "; tolerance: 1e-5\n; tolerance: fc2 1e-4\n";
        let source = format!(
            "fir 1\n{lines}func @f(%fc1: tensor<[2], f32>, %fc2: tensor<[2], f32>) {{\n  return %fc1\n}}\n"
        );
        let (program, _) = fourfold_ir::load(&source).expect("the program is valid");
        let replaced = |given: &[(Option<&str>, f64)]| {
            let mut header = read(&source, &program).expect("it is well-formed");
            let given: Vec<_> = given.iter().map(|(name, t)| (name.map(str::to_owned), *t)).collect();
            header.replace_tolerances(&given, &program)?;
            Ok::<_, String>((header.tolerance_of("fc1"), header.tolerance_of("fc2")))
        };
        assert_eq!(replaced(&[]), Ok((Some(1e-5), Some(1e-4))));
        assert_eq!(replaced(&[(None, 1e-3)]), Ok((Some(1e-3), Some(1e-3))));
        assert_eq!(replaced(&[(Some("fc2"), 1e-2)]), Ok((Some(1e-5), Some(1e-2))));
        assert_eq!(replaced(&[(Some("fc2"), 1e-2), (None, 0.0)]), Ok((Some(0.0), Some(1e-2))));
        let error = replaced(&[(Some("fc_2"), 1e-2)]).expect_err("there is no such value");
        assert!(error.contains("no value %fc_2; did you mean `fc2`?"), "{error}");
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
            "sample: exact seed=1 seed=2",
            "expected: fc1 = b",
            "expected: fc3 = b, 1 may differ",
            "expected: fc1 = b square, 1 may differ",
            "allow: everything",
            "alow: contract",
            "tensor: fc1 = b",
            "tensor: fc1 = \"b\"[-1]",
            "tensor: fc1 = \"b\" as bytes",
            "tensor: fc3 = \"b\"",
            "tensor: fc1 = bytes 0:4",
        ] {
            let directives = format!("; {line}\n");
            let errors = read_header(&directives).expect_err(line);
            assert_eq!(errors.len(), 1, "{line}");
            let source = format!("fir 1\n{directives}");
            assert_eq!(errors[0].line_and_column(&source).map(|place| place.0), Some(2), "{line}");
        }
        assert!(read_header("; tolerance: 1e-3\n; tolerance: 1e-4\n").is_err(), "two of one kind");
        let twice =
            read_header("; tensor: fc1 = \"a\"\n; tensor: fc1 = \"b\"\n").expect_err("two for one input");
        assert!(twice[0].message.contains("%fc1 has a second `tensor` line"), "{twice:?}");
        let parts = |first: &str, second: &str| {
            read_header(&format!("; tensor: fc1{first} = \"a\"\n; tensor: fc1{second} = \"b\"\n"))
        };
        assert_eq!(parts("[0]", "[1]").expect("two parts").tensors.len(), 2);
        for (first, second, expected) in [
            ("[1]", "[1]", "a second `tensor` line for index 1"),
            ("", "[1]", "a `tensor` line for all of it and one for index 1"),
            ("[2]", "", "a `tensor` line for all of it and one for index 2"),
        ] {
            let errors = parts(first, second).expect_err("lines that contradict each other");
            assert!(errors[0].message.contains(expected), "{errors:?}");
        }
    }

    #[test]
    fn a_comment_that_is_nearly_a_directive_names_the_right_one() {
        for (line, meant) in [
            ("smaple: exact seed=1", "`sample`"),
            ("samples: exact seed=1", "`sample`"),
            ("tolarence: 1e-3", "`tolerance`"),
            ("expect: fc1 = b, 1 may differ", "`expected`"),
            ("allowed: contract", "`allow`"),
            ("tset: run", "`test`"),
            ("test: eror", "`error`"),
            ("test: partion sm_100a", "`partition`"),
            ("Sample: exact seed=1", "`; sample: exact seed=1`"),
            ("SAMPLE: exakt", "`; sample: exakt`"),
            ("sample : exact seed=1", "`; sample: exact seed=1`"),
            ("sample exact seed=1", "`; sample: exact seed=1`"),
            ("sample = exact seed=1", "`; sample: exact seed=1`"),
            ("; sample: exact seed=1", "`; sample: exact seed=1`"),
            ("Smaple: exact seed=1", "`; sample: exact seed=1`"),
            ("tolerance 1e-3", "`; tolerance: 1e-3`"),
            ("allow contract", "`; allow: contract`"),
            ("data a.safetensors", "`; data: a.safetensors`"),
            ("test run", "`; test: run`"),
            ("expected fc1 = b, 1 may differ", "`; expected: fc1 = b, 1 may differ`"),
            ("expected fc1 = b", "`; expected: fc1 = b`"),
            ("tensors: fc1 = \"a\"", "`tensor`"),
            ("Tensor: fc1 = \"a\"", "`; tensor: fc1 = \"a\"`"),
            ("tensor fc1 = \"a\" in \"f\"", "`; tensor: fc1 = \"a\" in \"f\"`"),
            ("tensor: bias.fc2 = \"a\"", "no input %bias.fc2"),
            ("tensor: fc_1 = \"a\"", "did you mean `fc1`?"),
            ("sample: exact sed=1", "`seed`"),
            ("sample: exact Q=1", "`M`, `B`, `seed`"),
        ] {
            let errors = read_header(&format!("; {line}\n")).expect_err(line);
            assert!(errors.len() == 1 && errors[0].message.contains(meant), "{line}: {errors:?}");
        }
    }

    #[test]
    fn prose_is_no_directive() {
        for line in [
            "The data are those of a checkpoint.",
            "data come from a checkpoint",
            "sample data",
            "test whether the bias is added",
            "expected to be exact",
            "tolerance is not needed",
            "tensor names are those of the checkpoint",
            "allow for rounding",
            "example: none",
            "note: nothing",
            "state: of the art",
            "Date: today",
            "Text: none",
            "same: as before",
            "a.b: c",
            "",
        ] {
            let read = read_header(&format!("; {line}\n"));
            assert!(read.is_ok(), "{line}: {read:?}");
        }
    }

    #[test]
    fn a_directive_below_the_function_is_an_error_and_what_reads_otherwise_is_not() {
        let source = "fir 1\nfunc @f(%x: tensor<[4], f32>) {\n  return %x\n}\n";
        let read_below = |line: &str| {
            let source = format!("{source}; {line}\n");
            let (program, _) = fourfold_ir::load(&source).expect("the program is valid");
            read(&source, &program)
        };
        let errors = read_below("tolerance: 1e-3").expect_err("it does not count");
        assert!(errors[0].message.contains("above the function"), "{errors:?}");
        let behind = source
            .replace("  return", "  ; a note\n  return")
            .replace("%x\n}", "%x ; sample: exact seed=4\n}");
        let (program, _) = fourfold_ir::load(&behind).expect("the program is valid");
        let errors = read(&behind, &program).expect_err("it does not count");
        let message = &errors[0].message;
        assert!(errors.len() == 1 && message.contains("above the function"), "{errors:?}");
        assert_eq!(errors[0].line_and_column(&behind), Some((4, 15)), "{errors:?}");
        for line in ["tolerance: see below", "data: 12 bytes", "test: of nothing", "gone: %x = constant"] {
            assert!(read_below(line).is_ok(), "{line}");
        }
    }
}
