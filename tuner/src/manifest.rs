//! Sweep manifests: TOML files that list combinations and problems.
//!
//! ```toml
//! schema = 1
//!
//! [[sweep]]
//! name = "tiles"                         # for messages
//! generator = "scaled_mma.sm100"
//! targets = ["sm_100a"]
//! base = { d = "bf16" }                  # applies to all combinations below
//! product = { tile = ["128x64x256", "128x128x256"], cluster = ["1x1", "2x1"] }
//! list = [{ tile = "256x256x256", sms = 2, cluster = "2x1", epilogue_tile = "128x64" }]
//! exclude = [{ tile = "128x64x256", cluster = "2x1" }]
//!
//! [problems]
//! suites = ["contest"]
//! list = [{ problem = "1x8192x8192", weight = 4.0 }]
//! files = ["mine.txt"]                   # one problem per line
//! graphs = [{ file = "layer.fir", symbols = { M = [1, 64] } }]
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use fourfold_codegen::{Target, target};
use serde::Deserialize;

use crate::generator::{Generator, generator};
use crate::parameters::{Parameters, Value};
use crate::problem::{Problem, Weighted};
use crate::suites;

/// The manifest version.
pub const SCHEMA: u32 = 1;

/// The maximum number of combinations. More are assumed to be a mistake, because compiling them would take too long.
pub const MOST_COMBINATIONS: usize = 100_000;

/// A parsed manifest.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version, [`SCHEMA`].
    pub schema: u32,
    /// The sets of combinations.
    #[serde(default)]
    pub sweep: Vec<Sweep>,
    /// The problems to run.
    #[serde(default)]
    pub problems: Problems,
}

/// A set of combinations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// The name in messages.
    #[serde(default)]
    pub name: Option<String>,
    /// The type of kernel.
    pub generator: String,
    /// The targets to build for.
    pub targets: Vec<String>,
    /// Default values of every combination.
    #[serde(default)]
    pub base: Parameters,
    /// The Cartesian product of these values.
    #[serde(default)]
    pub product: BTreeMap<String, OneOrMany>,
    /// Single combinations.
    #[serde(default)]
    pub list: Vec<Parameters>,
    /// Excludes the combinations that have all values of one of these.
    #[serde(default)]
    pub exclude: Vec<Parameters>,
}

/// One value or a list of values.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One value.
    One(Value),
    /// A list of values.
    Many(Vec<Value>),
}

/// The sources of problems.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problems {
    /// Suites by name.
    #[serde(default)]
    pub suites: Vec<String>,
    /// Single problems.
    #[serde(default)]
    pub list: Vec<Weighted>,
    /// Files with one problem per line, relative to the manifest.
    #[serde(default)]
    pub files: Vec<String>,
    /// Programs whose `scaled_mma` ops are problems, relative to the manifest.
    #[serde(default)]
    pub graphs: Vec<Graph>,
}

/// A program as a source of problems.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// The program file.
    pub file: String,
    /// The values of each symbol. Their Cartesian product is used.
    #[serde(default)]
    pub symbols: BTreeMap<String, Vec<u64>>,
    /// The weight of each problem.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// One combination of parameter values for one target.
#[derive(Clone, Debug)]
pub struct Combination {
    /// The type of kernel.
    pub generator: &'static dyn Generator,
    /// The target to build for.
    pub target: &'static Target,
    /// All parameters, defaults included.
    pub parameters: Parameters,
}

/// An error in a manifest. Its author is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The text is not TOML of this form.
    #[error("{message}")]
    Syntax {
        /// The parser's message, with line and column.
        message: String,
    },
    /// The manifest has another version.
    #[error("the manifest has schema {found}, but only schema {SCHEMA} is supported")]
    Schema {
        /// The version found.
        found: u32,
    },
    /// The generator is unknown.
    #[error("{sweep}: unknown generator `{name}`; the generators are {known}")]
    Generator {
        /// The set.
        sweep: String,
        /// The name given.
        name: String,
        /// All generators.
        known: String,
    },
    /// The set has no target, so nothing would be swept.
    #[error("{sweep}: `targets` is empty; name at least one")]
    NoTarget {
        /// The set.
        sweep: String,
    },
    /// The generator does not support the target.
    #[error("{sweep}: {generator} does not support the target `{target}`; it supports {known}")]
    Target {
        /// The set.
        sweep: String,
        /// The type of kernel.
        generator: String,
        /// The target given.
        target: String,
        /// All targets of the generator.
        known: String,
    },
    /// The generator has no such parameter.
    #[error("{sweep}: {generator} has no parameter `{name}`; its parameters are {known}")]
    Parameter {
        /// The set.
        sweep: String,
        /// The type of kernel.
        generator: String,
        /// The name given.
        name: String,
        /// All parameters of the generator.
        known: String,
    },
    /// A parameter has an empty list of values.
    #[error(
        "{sweep}: the list of `{name}` is empty, so there are no combinations; add a value or remove the parameter"
    )]
    Empty {
        /// The set.
        sweep: String,
        /// The parameter.
        name: String,
    },
    /// There are too many combinations.
    #[error("{sweep}: more than {MOST_COMBINATIONS} combinations; split the sweep, or remove values")]
    TooMany {
        /// The set.
        sweep: String,
    },
    /// The suite is unknown.
    #[error("unknown suite `{name}`; the suites are {known}")]
    Suite {
        /// The name given.
        name: String,
        /// All suites.
        known: String,
    },
    /// A weight is out of range.
    #[error("{problem} has the weight {weight}; a weight is a number from 1e-9 to 1e9")]
    Weight {
        /// The problem.
        problem: Problem,
        /// The weight given.
        weight: String,
    },
    /// A line of a problem file is malformed.
    #[error("line {line}: {reason}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The reason.
        reason: String,
    },
}

impl Manifest {
    /// Parses a manifest. [`combinations`](Self::combinations) checks its contents.
    ///
    /// # Errors
    /// If the text is not TOML of this form, or has another version.
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let manifest: Manifest = toml::from_str(text)
            .map_err(|error| ManifestError::Syntax { message: error.to_string().trim_end().to_owned() })?;
        match manifest.schema {
            SCHEMA => Ok(manifest),
            found => Err(ManifestError::Schema { found }),
        }
    }

    /// Expands the sets to combinations, without duplicates, in manifest order.
    ///
    /// # Errors
    /// If a generator, target or parameter is unknown, or there are too many combinations.
    pub fn combinations(&self) -> Result<Vec<Combination>, ManifestError> {
        let mut seen = BTreeSet::new();
        let mut combinations = Vec::new();
        for (position, sweep) in self.sweep.iter().enumerate() {
            let name = sweep.name.as_ref().map_or(String::new(), |name| format!(" (`{name}`)"));
            let name = format!("sweep {}{name}", position + 1);
            for combination in sweep.combinations(&name)? {
                let key =
                    (combination.generator.name(), combination.target.name, combination.parameters.clone());
                if seen.insert(key) {
                    combinations.push(combination);
                }
                if combinations.len() > MOST_COMBINATIONS {
                    return Err(ManifestError::TooMany { sweep: name });
                }
            }
        }
        Ok(combinations)
    }
}

impl Sweep {
    fn combinations(&self, sweep: &str) -> Result<Vec<Combination>, ManifestError> {
        let sweep = || sweep.to_owned();
        let generator = generator(&self.generator).ok_or_else(|| ManifestError::Generator {
            sweep: sweep(),
            name: self.generator.clone(),
            known: crate::generator::GENERATORS.iter().map(|it| it.name()).collect::<Vec<_>>().join(", "),
        })?;
        let names = self.product.keys().chain(
            [&self.base].into_iter().chain(&self.list).chain(&self.exclude).flat_map(|it| it.0.keys()),
        );
        for name in names {
            if generator.parameters().iter().all(|parameter| parameter.name != name) {
                let known = generator.parameters().iter().map(|it| it.name).collect::<Vec<_>>().join(", ");
                let (generator, name) = (self.generator.clone(), name.clone());
                return Err(ManifestError::Parameter { sweep: sweep(), generator, name, known });
            }
        }
        let mut base = Parameters::default();
        for parameter in generator.parameters() {
            base.0.insert(parameter.name.to_owned(), written(parameter.default));
        }
        base.0.extend(self.base.0.clone());
        let mut all = Vec::new();
        if !self.product.is_empty() || self.list.is_empty() {
            all.push(base.clone());
        }
        for (name, values) in &self.product {
            let values = match values {
                OneOrMany::One(value) => std::slice::from_ref(value),
                OneOrMany::Many(values) => values,
            };
            if values.is_empty() {
                return Err(ManifestError::Empty { sweep: sweep(), name: name.clone() });
            }
            if all.len().saturating_mul(values.len()) > MOST_COMBINATIONS {
                return Err(ManifestError::TooMany { sweep: sweep() });
            }
            let with = |parameters: &Parameters, value: &Value| {
                let mut parameters = parameters.clone();
                parameters.0.insert(name.clone(), value.clone());
                parameters
            };
            all = all.iter().flat_map(|it| values.iter().map(|value| with(it, value))).collect();
        }
        all.extend(self.list.iter().map(|own| {
            let mut parameters = base.clone();
            parameters.0.extend(own.0.clone());
            parameters
        }));
        for parameters in &mut all {
            // A number in quotes is the same value as the number.
            for value in parameters.0.values_mut() {
                *value = written(&value.to_string());
            }
        }
        let is_excluded = |parameters: &Parameters| {
            let has = |(name, value): (&String, &Value)| {
                parameters.get(name).is_some_and(|own| own.to_string() == value.to_string())
            };
            self.exclude.iter().any(|excluded| excluded.0.iter().all(has))
        };
        all.retain(|parameters| !is_excluded(parameters));
        let mut combinations = Vec::new();
        if self.targets.is_empty() {
            return Err(ManifestError::NoTarget { sweep: sweep() });
        }
        for name in &self.targets {
            let known = target(name).filter(|target| generator.targets().contains(&target.name));
            let target = known.ok_or_else(|| ManifestError::Target {
                sweep: sweep(),
                generator: self.generator.clone(),
                target: name.clone(),
                known: generator.targets().join(", "),
            })?;
            combinations.extend(all.iter().map(|parameters| Combination {
                generator,
                target,
                parameters: parameters.clone(),
            }));
        }
        Ok(combinations)
    }
}

/// Converts a text to a value: a number if possible.
fn written(text: &str) -> Value {
    text.parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Number)
}

impl Problems {
    /// The problems of suites and of the list. The caller adds those of files and graphs.
    ///
    /// # Errors
    /// If a suite is unknown or a weight is out of range.
    pub fn named(&self) -> Result<Vec<Weighted>, ManifestError> {
        let mut problems = Vec::new();
        for name in &self.suites {
            let known = || suites::names().join(", ");
            let suite = suites::suite(name)
                .ok_or_else(|| ManifestError::Suite { name: name.clone(), known: known() })?;
            problems.extend(suite);
        }
        problems.extend(self.list.iter().cloned());
        for Weighted { problem, weight } in &problems {
            if !WEIGHTS.contains(weight) {
                return Err(ManifestError::Weight { problem: *problem, weight: weight.to_string() });
            }
        }
        Ok(problems)
    }
}

/// The allowed weights. Sums and ratios of any number of them are finite.
const WEIGHTS: RangeInclusive<f64> = 1e-9..=1e9;

/// Parses a problem file: one problem per line, such as `128x7168x2048`, with an optional weight after it. `#` starts a
/// comment.
///
/// # Errors
/// Returns the first malformed line.
pub fn read_problems(text: &str) -> Result<Vec<Weighted>, ManifestError> {
    let mut problems = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let error = |reason: String| ManifestError::Line { line: index + 1, reason };
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let Some(problem) = words.next() else { continue };
        let problem: Problem =
            problem.parse().map_err(|wrong: crate::problem::ProblemError| error(wrong.to_string()))?;
        let weight = match words.next() {
            None => 1.0,
            Some(word) => word
                .parse()
                .ok()
                .filter(|weight| WEIGHTS.contains(weight))
                .ok_or_else(|| error(format!("`{word}` is not a weight, a number from 1e-9 to 1e9")))?,
        };
        if let Some(word) = words.next() {
            return Err(error(format!("unexpected `{word}` after the problem and its weight")));
        }
        problems.push(Weighted { problem, weight });
    }
    Ok(problems)
}

/// Merges duplicate problems by adding their weights.
pub fn merged(problems: Vec<Weighted>) -> Vec<Weighted> {
    let mut merged: Vec<Weighted> = Vec::new();
    for weighted in problems {
        match merged.iter_mut().find(|known| known.problem == weighted.problem) {
            Some(known) => known.weight += weighted.weight,
            None => merged.push(weighted),
        }
    }
    merged
}
