//! A rule as data: its requirement, and the failure that it prevents.

use std::fmt;

use super::checks::Subject;

/// The effect of breaking a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleKind {
    /// The compiler rejects the configuration.
    Compiler,
    /// It compiles without a diagnostic, but has no MMA, cannot be launched, or computes a wrong result.
    Silent,
    /// It works, but is slower or accepts fewer problems than it could. No default breaks such a rule.
    Advice,
}

/// One requirement.
pub struct Rule {
    /// The stable number.
    pub number: u32,
    /// The effect of breaking it.
    pub kind: RuleKind,
    /// The configurations to which it applies.
    pub scope: &'static str,
    /// The requirement.
    pub text: &'static str,
    /// The compiler's message, or the failure, without the rule.
    pub prevents: &'static str,
    /// Returns the part of the configuration that breaks the rule, if any.
    pub(super) check: fn(&Subject) -> Option<String>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule").field("number", &self.number).field("text", &self.text).finish_non_exhaustive()
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.number == other.number
    }
}

impl Eq for Rule {}
