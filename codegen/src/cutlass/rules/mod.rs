//! The rules that a configuration must pass before nvcc sees it, as data: what each demands and what it prevents.
//!
//! Rules 1 to 17 were compared with every configuration of `fixtures/combos.jsonl` (`tests/combos.rs`): they reject
//! what nvcc rejects and accept what it builds, but for builds that stop at types and would fail in the body.
//! Of the others 22, 27, 30, 32 and 33 are refused by the compiler too; the rest compile and are wrong or not at their best
//! ([`RuleKind`]), and a kernel that breaks 29 was seen to compute wrong results when it ran emulated. Rules 25 and 26 judge a call, not a configuration, and live where
//! calls are prepared. What is demanded of any version but 4.2.0 and 4.7.0 was
//! read in the sources between them: there, compile every tile in use once.

mod checks;
mod rule;
mod table;

use std::fmt;

use self::checks::Subject;
pub use self::rule::{Rule, RuleKind};
pub use self::table::RULES;
use super::configuration::Configuration;
use super::version::CutlassVersion;

/// A rule that a configuration breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: &'static Rule,
    /// What was found instead of what it demands.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({}): {}; found {}", self.rule.number, self.rule.scope, self.rule.text, self.found)
    }
}

/// Holds a configuration against every rule. `target` is what nvcc is told: `sm_100a`, …
///
/// # Errors
/// Every rule that it breaks, in order of number.
pub fn check(
    configuration: &Configuration,
    cutlass: CutlassVersion,
    target: &str,
) -> Result<(), Vec<Violation>> {
    let subject = Subject { configuration, cutlass, target };
    let violations: Vec<_> = RULES
        .iter()
        .filter_map(|rule| (rule.check)(&subject).map(|found| Violation { rule, found }))
        .collect();
    if violations.is_empty() { Ok(()) } else { Err(violations) }
}

/// Why a configuration cannot be used at all: the rules that it breaks, advice aside.
pub fn invalid(configuration: &Configuration, cutlass: CutlassVersion, target: &str) -> Vec<Violation> {
    let mut violations = check(configuration, cutlass, target).err().unwrap_or_default();
    violations.retain(|violation| violation.rule.kind != RuleKind::Advice);
    violations
}

/// Broken rules in a line.
pub(crate) fn texts(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
