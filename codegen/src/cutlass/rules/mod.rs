//! The rules that a configuration must satisfy before nvcc compiles it, as data.
//!
//! Rules 1 to 17 were compared with every configuration of `fixtures/combos.jsonl` (`tests/combos.rs`). They reject
//! what nvcc rejects and accept what it builds. The exceptions are builds of types only, whose function bodies would
//! not compile.
//!
//! Of the other rules, the compiler also enforces 22, 27, 30, 32 and 33. Configurations that break the rest
//! compile, but are wrong or slower ([`RuleKind`]). A kernel that breaks rule 29 computed wrong results under
//! emulation. Rules 25 and 26 apply to calls, not configurations, and are checked where calls are prepared.
//!
//! For CUTLASS versions other than 4.2.0 and 4.7.0, requirements were read in the sources. Compile every tile
//! in use once with such a version.

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
    /// The part of the configuration that breaks it.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {} ({}): {}; found {}", self.rule.number, self.rule.scope, self.rule.text, self.found)
    }
}

/// Checks a configuration against every rule. `target` is the compilation target, such as `sm_100a`.
///
/// # Errors
/// All violations, by rule number.
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

/// The violations that make a configuration unusable: all except those of advice rules.
pub fn invalid(configuration: &Configuration, cutlass: CutlassVersion, target: &str) -> Vec<Violation> {
    let mut violations = check(configuration, cutlass, target).err().unwrap_or_default();
    violations.retain(|violation| violation.rule.kind != RuleKind::Advice);
    violations
}

/// Joins violations into one line.
pub(crate) fn texts(violations: &[Violation]) -> String {
    let texts: Vec<String> = violations.iter().map(ToString::to_string).collect();
    texts.join("; ")
}
