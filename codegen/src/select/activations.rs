//! The format of A for a weight in NVFP4, by M, as a measured table.

use std::fmt;
use std::sync::LazyLock;

use fourfold_ir::{BlockFormat, ElementType};
use serde::Deserialize;

use crate::cutlass::CutlassVersion;
use crate::dispatch::{Bounds, Condition};
use crate::extents::Extents;
use crate::targets;

/// The schema version of the table.
const SCHEMA: u32 = 1;

/// The numbers that a product multiplies a weight in NVFP4 with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activations {
    /// 16-bit numbers as they are.
    W4A16,
    /// NVFP4, to which a kernel quantizes them.
    W4A4,
}

/// The kernel that quantizes A for W4A4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantized {
    /// It is there for the product only.
    Apart,
    /// It also computes other ops, so it runs anyway.
    Anyway,
}

/// A choice for some M.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationChoice {
    /// The largest M; `None` for the last choice.
    pub up_to: Option<u64>,
    /// The numbers.
    pub activations: Activations,
    /// The measured reason, as a sentence without its period.
    pub why: String,
}

/// The reason why a text is not a valid table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActivationsError {
    /// The text is not TOML, or a field is missing, unknown or malformed.
    #[error("the table of activations: {0}")]
    Syntax(String),
    /// The schema version is not supported.
    #[error("the table of activations has schema {0}, but this version reads schema {SCHEMA}")]
    Schema(u32),
    /// A table is wrong.
    #[error("table {table} of activations: {message}")]
    Wrong {
        /// The table's number, from 1.
        table: usize,
        /// The error, and the correction.
        message: String,
    },
}

/// Tables, at most one per target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivationTables(Vec<Table>);

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    table: Vec<Table>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    targets: Vec<String>,
    #[allow(dead_code, reason = "for people")]
    note: String,
    #[serde(default)]
    rule: Vec<Rule>,
    default: Otherwise,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    /// Without it, the rule holds for both.
    quantized: Option<Quantized>,
    when: Condition,
    activations: Activations,
    why: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Otherwise {
    activations: Activations,
    why: String,
}

impl Activations {
    /// The name in reports: `W4A16` or `W4A4`.
    pub fn name(self) -> &'static str {
        match self {
            Activations::W4A16 => "W4A16",
            Activations::W4A4 => "W4A4",
        }
    }

    /// True if a target has kernels for it.
    fn has_kernels(self, target: &targets::Target) -> bool {
        match self {
            Activations::W4A16 => [ElementType::BF16, ElementType::F16]
                .iter()
                .all(|element| target.formats.contains(&BlockFormat::NVFP4.weight_only(*element))),
            Activations::W4A4 => target.formats.contains(&BlockFormat::NVFP4),
        }
    }
}

impl fmt::Display for Activations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ActivationTables {
    /// The measured tables: one for every target with kernels.
    pub fn measured() -> &'static ActivationTables {
        static TABLES: LazyLock<ActivationTables> = LazyLock::new(|| {
            ActivationTables::parse(include_str!("activations.toml")).expect("our own table is valid")
        });
        &TABLES
    }

    /// Parses tables.
    ///
    /// # Errors
    /// The first error, with the number of its table.
    pub fn parse(text: &str) -> Result<ActivationTables, ActivationsError> {
        let File { schema, table: tables } =
            toml::from_str(text).map_err(|error| ActivationsError::Syntax(error.to_string()))?;
        if schema != SCHEMA {
            return Err(ActivationsError::Schema(schema));
        }
        for (position, table) in tables.iter().enumerate() {
            let earlier = tables[..position].iter().flat_map(|table| &table.targets);
            let checked = table.check(&earlier.map(String::as_str).collect::<Vec<_>>());
            checked.map_err(|message| ActivationsError::Wrong { table: position + 1, message })?;
        }
        Ok(ActivationTables(tables))
    }

    /// The choices for a weight `[N, K]` on a target, by ascending M; empty for a target without kernels. Neighbors
    /// differ in the numbers or in the reason.
    pub fn choices(&self, target: &str, n: u64, k: u64, quantized: Quantized) -> Vec<ActivationChoice> {
        let Some(table) = self.0.iter().find(|table| table.targets.iter().any(|name| name == target)) else {
            return Vec::new();
        };
        // The first M after each bound. Between two of these, the same rules hold.
        let bounds = table.rule.iter().filter_map(|rule| rule.when.m);
        let mut starts: Vec<u64> = bounds
            .flat_map(|Bounds { min, max, .. }| [min, max.and_then(|max| max.checked_add(1))])
            .flatten()
            .chain([0])
            .collect();
        starts.sort_unstable();
        starts.dedup();
        let mut choices: Vec<ActivationChoice> = Vec::new();
        for (position, m) in starts.iter().enumerate() {
            let (activations, why) = table.pick(*m, n, k, quantized);
            let up_to = starts.get(position + 1).map(|next| next - 1);
            match choices.last_mut() {
                Some(last) if (last.activations, last.why.as_str()) == (activations, why) => {
                    last.up_to = up_to
                }
                _ => choices.push(ActivationChoice { up_to, activations, why: why.to_owned() }),
            }
        }
        choices
    }
}

impl Table {
    fn pick(&self, m: u64, n: u64, k: u64, quantized: Quantized) -> (Activations, &str) {
        let problem = Extents { l: Some(1), m: Some(m), n: Some(n), k: Some(k) };
        let holds = |rule: &&Rule| {
            rule.quantized.is_none_or(|it| it == quantized)
                && rule.when.holds(problem, CutlassVersion::PINNED)
        };
        let rule = self.rule.iter().find(holds);
        rule.map_or((self.default.activations, &self.default.why), |rule| (rule.activations, &rule.why))
    }

    fn check(&self, earlier: &[&str]) -> Result<(), String> {
        if self.targets.is_empty() {
            return Err("`targets` is empty: name at least one target, such as sm_90a".to_owned());
        }
        let picked = || self.rule.iter().map(|rule| rule.activations).chain([self.default.activations]);
        for (position, name) in self.targets.iter().enumerate() {
            let target = targets::target(name).filter(|target| !target.formats.is_empty());
            let target = target.ok_or_else(|| format!("`{name}` is not a target with kernels"))?;
            if earlier.contains(&name.as_str()) || self.targets[..position].contains(name) {
                return Err(format!("{name} has a table already: keep one of them"));
            }
            if let Some(missing) = picked().find(|activations| !activations.has_kernels(target)) {
                return Err(format!("{name} has no kernels for {missing}: choose the other"));
            }
        }
        for (position, rule) in self.rule.iter().enumerate() {
            let at = position + 1;
            if rule.when.tiles.is_some() || rule.when.cutlass.is_some() {
                return Err(format!("rule {at} has a condition that is no bound on m, n or k: remove it"));
            }
            if rule.when.m.is_some_and(|m| m.multiple_of.is_some()) {
                return Err(format!("rule {at} requires multiples of M: give `min` and `max` only"));
            }
            if rule.when.is_empty() {
                return Err(format!("rule {at} matches no product: correct its bounds or remove it"));
            }
            let covers = |by: &Rule| {
                (by.quantized.is_none() || by.quantized == rule.quantized) && by.when.contains(&rule.when)
            };
            if let Some(by) = self.rule[..position].iter().position(covers) {
                return Err(format!("rule {at} is unreachable, because rule {} takes all of it", by + 1));
            }
        }
        let mut reasons = self.rule.iter().map(|rule| &rule.why).chain([&self.default.why]);
        match reasons.any(String::is_empty) {
            true => Err("a `why` is empty: state the measurement".to_owned()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wrong(table: &str) -> String {
        ActivationTables::parse(&format!("schema = 1\n[[table]]\nnote = \"\"\n{table}"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn every_target_with_kernels_has_a_table_and_hopper_has_a_choice() {
        let tables = ActivationTables::measured();
        for target in targets::TARGETS {
            for quantized in [Quantized::Apart, Quantized::Anyway] {
                let choices = tables.choices(target.name, 8192, 8192, quantized);
                assert_eq!(choices.is_empty(), target.formats.is_empty(), "{}", target.name);
                assert!(choices.iter().all(|choice| choice.activations.has_kernels(target)));
            }
        }
        let shown = |target, quantized| {
            let choices = tables.choices(target, 8192, 8192, quantized);
            choices.iter().map(|it| (it.up_to, it.activations)).collect::<Vec<_>>()
        };
        use Activations::{W4A4, W4A16};
        assert_eq!(shown("sm_90a", Quantized::Apart), [(None, W4A16)]);
        assert_eq!(shown("sm_90a", Quantized::Anyway), [(Some(128), W4A4), (None, W4A16)]);
        assert_eq!(shown("sm_120a", Quantized::Apart), [(None, W4A4)]);
        assert!(shown("cpu", Quantized::Apart).is_empty());
    }

    #[test]
    fn a_wrong_table_is_refused_with_its_correction() {
        let default = "[table.default]\nactivations = \"w4a4\"\nwhy = \"x\"";
        let rule = |text: &str| format!("targets = [\"sm_90a\"]\n[[table.rule]]\n{text}\n{default}");
        let of = |what: &str| format!("{what}\nactivations = \"w4a4\"\nwhy = \"x\"");
        for (text, message) in [
            (format!("targets = []\n{default}"), "`targets` is empty"),
            (format!("targets = [\"cpu\"]\n{default}"), "`cpu` is not a target with kernels"),
            (format!("targets = [\"sm_90a\", \"sm_90a\"]\n{default}"), "has a table already"),
            (
                "targets = [\"sm_120a\"]\n[table.default]\nactivations = \"w4a16\"\nwhy = \"x\"".to_owned(),
                "sm_120a has no kernels for W4A16",
            ),
            (rule(&of("when = { m = { multiple_of = 8 } }")), "multiples of M"),
            (rule(&of("when = { m = { min = 9, max = 8 } }")), "rule 1 matches no product"),
            (rule(&of("when = { cutlass = \"4.5.0\" }")), "no bound on m, n or k"),
            (
                rule(&format!("{}\n[[table.rule]]\n{}", of("when = {}"), of("when = { n = { max = 9 } }"))),
                "rule 2 is unreachable, because rule 1",
            ),
            (rule(&of("when = {}\nwherefore = 1")), "unknown field `wherefore`"),
            (rule("when = {}\nactivations = \"w4a4\"\nwhy = \"\""), "a `why` is empty"),
        ] {
            let found = wrong(&text);
            assert!(found.contains(message), "{found}");
        }
        assert_eq!(ActivationTables::parse("schema = 2\ntable = []"), Err(ActivationsError::Schema(2)));
    }

    proptest! {
        /// Random rules: the choice of each M is that of the first rule that holds.
        #[test]
        fn choices_are_those_of_the_rules_at_every_edge(
            rules in prop::collection::vec((0..40u64, 0..60u64, any::<bool>(), any::<bool>()), 0..6),
            n in 1..50u64,
        ) {
            let rules: Vec<Rule> = rules.into_iter().enumerate().map(|(at, (min, len, of_n, few))| Rule {
                quantized: few.then_some(Quantized::Apart),
                when: Condition {
                    m: Some(Bounds { min: Some(min), max: Some(min + len), multiple_of: None }),
                    n: of_n.then_some(Bounds::up_to(25)),
                    ..Condition::default()
                },
                activations: if at % 2 == 0 { Activations::W4A4 } else { Activations::W4A16 },
                why: at.to_string(),
            }).collect();
            let default = Otherwise { activations: Activations::W4A16, why: "default".to_owned() };
            let table = Table { targets: vec!["sm_90a".to_owned()], note: String::new(), rule: rules, default };
            let tables = ActivationTables(vec![table.clone()]);
            for quantized in [Quantized::Apart, Quantized::Anyway] {
                let choices = tables.choices("sm_90a", n, 7, quantized);
                prop_assert!(choices.last().is_some_and(|last| last.up_to.is_none()));
                prop_assert!(choices.is_sorted_by(|one, next| one.up_to.is_some_and(|end| next.up_to.is_none_or(|next| end < next))));
                for m in 0..110 {
                    let chosen = choices.iter().find(|choice| choice.up_to.is_none_or(|end| m <= end)).unwrap();
                    prop_assert_eq!((chosen.activations, chosen.why.as_str()), table.pick(m, n, 7, quantized));
                }
            }
        }
    }
}
