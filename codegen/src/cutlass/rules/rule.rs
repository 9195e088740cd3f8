//! A rule as data: what it demands, and what it prevents.

use std::fmt;

use super::checks::Subject;

/// What becomes of a configuration that breaks a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuleKind {
    /// The compiler refuses it.
    Compiler,
    /// It compiles without a word, and has no MMA, cannot be launched, or computes something else.
    Silent,
    /// It works, and is slower or takes less than it could. No default breaks it.
    Advice,
}

/// One demand.
pub struct Rule {
    /// Its number; stable.
    pub number: u32,
    /// What becomes of a configuration that breaks it.
    pub kind: RuleKind,
    /// The configurations it concerns.
    pub scope: &'static str,
    /// What it demands.
    pub text: &'static str,
    /// What the compiler says, or what goes wrong, without it.
    pub prevents: &'static str,
    /// What is wrong with this subject, if anything.
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
