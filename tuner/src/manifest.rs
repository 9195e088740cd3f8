//! Which combinations are swept, and on which problems, as a file says it:
//!
//! ```toml
//! schema = 1
//!
//! [[sweep]]
//! name = "tiles"                         # what messages call it
//! generator = "scaled_mma.sm100"
//! targets = ["sm_100a"]
//! base = { d = "bf16" }                  # of every combination below
//! product = { tile = ["128x64x256", "128x128x256"], cluster = ["1x1", "2x1"] }
//! list = [{ tile = "256x256x256", sms = 2, cluster = "2x1", epilogue_tile = "128x64" }]
//! exclude = [{ tile = "128x64x256", cluster = "2x1" }]
//!
//! [problems]
//! suites = ["contest"]
//! list = [{ problem = "1x8192x8192", weight = 4.0 }]
//! files = ["mine.txt"]                   # a problem a line
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

/// The version of manifests.
pub const SCHEMA: u32 = 1;

/// More combinations than this are a mistake: nobody waits for their compilers.
pub const MOST_COMBINATIONS: usize = 100_000;

/// A manifest, as it is written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Sets of combinations.
    #[serde(default)]
    pub sweep: Vec<Sweep>,
    /// What they are run on.
    #[serde(default)]
    pub problems: Problems,
}

/// A set of combinations.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// What messages call it.
    #[serde(default)]
    pub name: Option<String>,
    /// The type of kernel.
    pub generator: String,
    /// What it is built for.
    pub targets: Vec<String>,
    /// Values of every combination, unless it has its own.
    #[serde(default)]
    pub base: Parameters,
    /// Every value of each with every value of the others.
    #[serde(default)]
    pub product: BTreeMap<String, OneOrMany>,
    /// Combinations one by one.
    #[serde(default)]
    pub list: Vec<Parameters>,
    /// Combinations with all values of one of these are left out.
    #[serde(default)]
    pub exclude: Vec<Parameters>,
}

/// A value, or several.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    /// One.
    One(Value),
    /// Several.
    Many(Vec<Value>),
}

/// Problems, from wherever they come.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Problems {
    /// Suites by name.
    #[serde(default)]
    pub suites: Vec<String>,
    /// Problems one by one.
    #[serde(default)]
    pub list: Vec<Weighted>,
    /// Files with a problem a line, beside the manifest.
    #[serde(default)]
    pub files: Vec<String>,
    /// Programs whose `scaled_mma` are problems, beside the manifest.
    #[serde(default)]
    pub graphs: Vec<Graph>,
}

/// A program as a source of problems.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// The program.
    pub file: String,
    /// The values of each of its symbols: every one with every one of the others.
    #[serde(default)]
    pub symbols: BTreeMap<String, Vec<u64>>,
    /// How much each counts.
    #[serde(default = "one")]
    pub weight: f64,
}

fn one() -> f64 {
    1.0
}

/// A combination to be swept.
#[derive(Clone, Debug)]
pub struct Combination {
    /// The type of kernel.
    pub generator: &'static dyn Generator,
    /// What it is built for.
    pub target: &'static Target,
    /// All parameters, defaults included.
    pub parameters: Parameters,
}

/// What is wrong with a manifest. Its writer's fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is not TOML of this form.
    #[error("{message}")]
    Syntax {
        /// With line and column.
        message: String,
    },
    /// It is of another version.
    #[error("the manifest has schema {found}; this program reads {SCHEMA}")]
    Schema {
        /// Its version.
        found: u32,
    },
    /// There is no such type of kernel.
    #[error("{sweep}: there is no generator `{name}`; there are {known}")]
    Generator {
        /// Which set.
        sweep: String,
        /// What it says.
        name: String,
        /// All that there are.
        known: String,
    },
    /// It names no target, so nothing would be swept.
    #[error("{sweep}: `targets` is empty; name at least one")]
    NoTarget {
        /// The set.
        sweep: String,
    },
    /// The type of kernel is not built for it.
    #[error("{sweep}: {generator} has no kernels for `{target}`; it has some for {known}")]
    Target {
        /// Which set.
        sweep: String,
        /// The type of kernel.
        generator: String,
        /// What it says.
        target: String,
        /// All that there are.
        known: String,
    },
    /// The type of kernel has no such parameter.
    #[error("{sweep}: {generator} has no parameter `{name}`; it has {known}")]
    Parameter {
        /// Which set.
        sweep: String,
        /// The type of kernel.
        generator: String,
        /// What it says.
        name: String,
        /// All that there are.
        known: String,
    },
    /// A parameter without a value.
    #[error(
        "{sweep}: `{name}` has an empty list, so that there is no combination; give it a value or leave it out"
    )]
    Empty {
        /// Which set.
        sweep: String,
        /// The parameter.
        name: String,
    },
    /// There are too many.
    #[error("{sweep}: more than {MOST_COMBINATIONS} combinations; split it, or leave values out")]
    TooMany {
        /// Which set.
        sweep: String,
    },
    /// There is no such suite.
    #[error("there is no suite `{name}`; there are {known}")]
    Suite {
        /// What it says.
        name: String,
        /// All that there are.
        known: String,
    },
    /// A weight that is no weight.
    #[error("{problem} has the weight {weight}; a weight is a number from 1e-9 to 1e9")]
    Weight {
        /// The problem.
        problem: Problem,
        /// What it says.
        weight: String,
    },
    /// A line of a list of problems that is none.
    #[error("line {line}: {reason}")]
    Line {
        /// From 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// When it is not of this form; what it means is looked at by [`combinations`](Self::combinations).
    pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
        let manifest: Manifest = toml::from_str(text)
            .map_err(|error| ManifestError::Syntax { message: error.to_string().trim_end().to_owned() })?;
        match manifest.schema {
            SCHEMA => Ok(manifest),
            found => Err(ManifestError::Schema { found }),
        }
    }

    /// Every combination once, in the order in which they are written.
    ///
    /// # Errors
    /// When something has a name that nothing has, or there are too many.
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
            // A number and the same number in quotes are the same value.
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

/// A value as it is kept: numbers as numbers.
fn written(text: &str) -> Value {
    text.parse().map_or_else(|_| Value::Text(text.to_owned()), Value::Number)
}

impl Problems {
    /// The problems of suites and of the list. Those of files and graphs are their reader's to add.
    ///
    /// # Errors
    /// When there is no such suite, or a weight is none.
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

/// The weights that a problem may have: the sums and shares of any number of these are finite.
const WEIGHTS: RangeInclusive<f64> = 1e-9..=1e9;

/// Problems, one a line: `128x7168x2048`, with a weight behind it where it is not 1; what follows a `#` is a comment.
///
/// # Errors
/// When a line is none.
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
            Some(word) => {
                word.parse().ok().filter(|weight| WEIGHTS.contains(weight)).ok_or_else(|| {
                    error(format!("`{word}` is no weight, which is a number from 1e-9 to 1e9"))
                })?
            }
        };
        if let Some(word) = words.next() {
            return Err(error(format!("`{word}` is more than a problem and its weight")));
        }
        problems.push(Weighted { problem, weight });
    }
    Ok(problems)
}

/// Every problem once: the weights of the same ones are added.
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
