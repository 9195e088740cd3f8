//! What can be wrong with a table that is well-formed.

use std::fmt;

use super::{Condition, Kernel, Table};

/// A place in a table. Displayed: `rule 3`, counted from 1, or `the default`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The rule at this position.
    Rule(usize),
    /// What takes what no rule takes.
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

/// Something that is wrong with a table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// A rule that no problem can meet.
    #[error("{0} holds for no problem: mend its bounds, or remove it")]
    Never(Place),
    /// What no problem gets as far as.
    #[error("{place} is never reached, as {by} takes all that it takes: put it first, or remove it")]
    Shadowed {
        /// What is not reached.
        place: Place,
        /// What takes all of it.
        by: Place,
    },
    /// A kernel that is valid for none of the table's targets and formats.
    #[error("the kernel {kernel} of {place} is valid nowhere: {why}")]
    Kernel {
        /// Where it is named.
        place: Place,
        /// The kernel.
        kernel: Kernel,
        /// Why it is not valid for the first target and format.
        why: String,
    },
    /// A default that does not take every problem.
    #[error("the default {0} takes small M only: name a tile with M = 64 or more")]
    Partial(Kernel),
}

impl Table {
    /// What is wrong whatever the version of CUTLASS: rules that are never reached, and a default that does not take all.
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
