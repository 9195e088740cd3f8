//! The flaws of a well-formed table.

use std::fmt;

use super::{Condition, Kernel, Table};

/// A place in a table, displayed as `rule 3` (numbered from 1) or `the default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The rule at this position.
    Rule(usize),
    /// The table's default.
    Default,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Rule(position) => write!(f, "rule {}", position + 1),
            Place::Default => f.write_str("the default"),
        }
    }
}

/// A flaw of a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// No problem can meet a rule's condition.
    #[error("{0} matches no problem: correct its bounds or remove it")]
    Never(Place),
    /// An earlier rule takes every problem that this place could take.
    #[error(
        "{place} is unreachable, because {by} takes all of its problems: move it before {by} or remove it"
    )]
    Shadowed {
        /// The unreachable rule or default.
        place: Place,
        /// The earlier rule.
        by: Place,
    },
    /// A kernel is not valid for any of the table's targets and formats.
    #[error("the kernel {kernel} of {place} is invalid everywhere: {why}")]
    Kernel {
        /// The place that names the kernel.
        place: Place,
        /// The kernel.
        kernel: Kernel,
        /// The reason for the first target and format.
        why: String,
    },
    /// A default takes small M only.
    #[error("the default {0} supports small M only: name a tile with M = 64 or more")]
    Partial(Kernel),
}

impl Table {
    /// Finds flaws that are independent of the CUTLASS version: unreachable rules, and a default for small M
    /// only.
    pub fn rule_flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        let always = Condition::default();
        let rules = self.rules.iter().enumerate().map(|(at, rule)| (Place::Rule(at), &rule.when));
        for (position, (place, when)) in rules.chain([(Place::Default, &always)]).enumerate() {
            let mut earlier = self.rules[..position.min(self.rules.len())].iter();
            if when.is_empty() {
                flaws.push(Flaw::Never(place));
            } else if let Some(by) = earlier.position(|rule| rule.when.contains(when)) {
                flaws.push(Flaw::Shadowed { place, by: Place::Rule(by) });
            }
        }
        if self.default.kernel.is_for_small_m() {
            flaws.push(Flaw::Partial(self.default.kernel));
        }
        flaws
    }
}
