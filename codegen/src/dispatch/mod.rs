//! Dispatch tables: the choice of a kernel for each problem, as data. A table has ordered rules and a
//! default.
//!
//! [`default_tables`](crate::select::default_tables) applies where nothing was tuned. A file of the same form
//! overrides it, per target and format:
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
//! why = "128x128 tiles would occupy {tiles} of 148 SMs, so tile N is 64"
//!
//! [table.default]
//! kernel = { tile = [128, 128, 256] }
//! why = "the default tile"
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

/// The schema version of tables. A reader refuses others.
pub const SCHEMA: u32 = 1;

/// A set of tables, at most one per target and format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The tables, in search order.
    pub tables: Vec<Table>,
}

/// The dispatch table of some targets and formats: it maps a problem to a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// The targets, all of one kind of kernel.
    pub targets: Vec<String>,
    /// The formats of A and B.
    pub formats: Vec<BlockFormat>,
    /// The origin of the table, for people.
    pub note: String,
    /// The rules. The first that holds selects the kernel.
    pub rules: Vec<Rule>,
    /// The kernel for problems that no rule takes.
    pub default: Otherwise,
}

/// A rule: a kernel for the problems that meet a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The condition on a problem.
    pub when: Condition,
    /// The kernel.
    pub kernel: Kernel,
    /// The reason, as a sentence without its period. `{m}`, `{n}` and `{k}` stand for the problem's extents,
    /// `{tiles}` for the number of tiles in the condition.
    pub why: String,
}

/// The default: a kernel for every problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Otherwise {
    /// The kernel.
    pub kernel: Kernel,
    /// The reason, as in a rule.
    pub why: String,
}

/// The kernel that a table selects for a problem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick<'a> {
    /// The kernel.
    pub kernel: &'a Kernel,
    /// The position of the rule; `None` for the default.
    pub rule: Option<usize>,
    /// The reason, with the problem's numbers.
    pub why: String,
}

impl Tables {
    /// Finds the table for a target and a format.
    pub fn find(&self, target: &str, format: BlockFormat) -> Option<&Table> {
        self.tables
            .iter()
            .find(|table| table.targets.iter().any(|name| name == target) && table.formats.contains(&format))
    }
}

impl Table {
    /// Selects the kernel of a problem. A condition on an unknown extent does not hold.
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

    /// The kernels of the table, the default first, without duplicates.
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
