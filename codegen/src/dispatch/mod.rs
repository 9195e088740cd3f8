//! Which kernel a problem gets, as data: ordered rules and a default that takes what no rule takes.
//!
//! [`default_tables`](crate::select::default_tables) is what holds where nothing was tuned. A file of the same form replaces it, target by target and
//! format by format:
//!
//! ```toml
//! schema = 1
//!
//! [[table]]
//! targets = ["sm_100a"]
//! formats = ["nvfp4"]
//! note = "where it comes from"
//!
//! [[table.rule]]
//! when = { m = { max = 128 }, n = { multiple_of = 64 }, tiles = { of = [128, 128], at_most = 147 } }
//! kernel = { tile = [128, 64, 256] }
//! why = "{tiles} tiles of 128x128 leave some of 148 SMs idle, so tile N is 64"
//!
//! [table.default]
//! kernel = { tile = [128, 128, 256] }
//! why = "the usual tile"
//! ```

mod condition;
mod entry;
mod flaws;
mod text;

use fourfold_ir::BlockFormat;

pub use self::condition::{Bounds, Condition, Tiles};
pub use self::entry::{Collectives, EpilogueName, Kernel, Kind, ScheduleName, SchedulerName, Shared};
pub use self::flaws::{Flaw, Place};
pub use self::text::TableError;
use crate::cutlass::CutlassVersion;
use crate::extents::Extents;

/// The version of the form of tables. A reader refuses others.
pub const SCHEMA: u32 = 1;

/// Tables, at most one for each pair of target and format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// In the order in which they are asked.
    pub tables: Vec<Table>,
}

/// Which kernel a problem gets on some targets, with operands of some formats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The targets that it is for, all of one kind.
    pub targets: Vec<String>,
    /// The formats of A and B.
    pub formats: Vec<BlockFormat>,
    /// Where it comes from, for people.
    pub note: String,
    /// The first that holds gives the kernel.
    pub rules: Vec<Rule>,
    /// What a problem gets that no rule takes.
    pub default: Otherwise,
}

/// A kernel for the problems that meet a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What is demanded of a problem.
    pub when: Condition,
    /// What it gets.
    pub kernel: Kernel,
    /// Why, as a sentence without its end. `{m}`, `{n}` and `{k}` stand for extents, `{tiles}` for how many tiles the
    /// condition counts.
    pub why: String,
}

/// A kernel for every problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otherwise {
    /// What a problem gets.
    pub kernel: Kernel,
    /// Why, as in a rule.
    pub why: String,
}

/// What a table says to a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The position of the rule that gave it; `None` for the default.
    pub rule: Option<usize>,
    /// Why, with the problem's own numbers.
    pub why: String,
}

impl Tables {
    /// The table for a target and a format.
    pub fn find(&self, target: &str, format: BlockFormat) -> Option<&Table> {
        self.tables
            .iter()
            .find(|table| table.targets.iter().any(|name| name == target) && table.formats.contains(&format))
    }
}

impl Table {
    /// The kernel of a problem. No condition on an extent that is not known holds.
    pub fn pick(&self, problem: Extents, cutlass: CutlassVersion) -> Pick<'_> {
        match self.rules.iter().enumerate().find(|(_, rule)| rule.when.holds(problem, cutlass)) {
            Some((position, rule)) => Pick {
                kernel: &rule.kernel,
                rule: Some(position),
                why: text::fill(&rule.why, problem, rule.when.tiles),
            },
            None => Pick {
                kernel: &self.default.kernel,
                rule: None,
                why: text::fill(&self.default.why, problem, None),
            },
        }
    }

    /// Every kernel that it names, the default first, each once.
    pub fn kernels(&self) -> Vec<&Kernel> {
        let mut kernels = vec![&self.default.kernel];
        for rule in &self.rules {
            if !kernels.contains(&&rule.kernel) {
                kernels.push(&rule.kernel);
            }
        }
        kernels
    }
}

#[cfg(test)]
pub(crate) mod tests;
