//! Measures suites of programs against a copy and against torch, and checks every output.
//!
//! [`suites`] reads suites from `bench/suites.toml` and from files of users, [`jobs`] expands them to programs and
//! sizes, [`dry_run`] plans these, and [`bench()`] measures them.

mod check;
mod jobs;
mod peers;
mod plan;
mod report;
mod rows;
mod run;
mod suites;

pub use check::Checked;
pub use jobs::{Job, Jobs, jobs};
pub use peers::PeerVersions;
pub use plan::{DryReport, ProgramReport, SegmentPlan, dry_run};
pub use report::{
    BenchReport, CaseReport, CaseState, MachineReport, PEERS, PeerReport, ProtocolReport, SuiteReport, Times,
};
pub use run::{BenchOptions, PeerChoice, bench};
pub use suites::{Case, Peer, Suite, built_in, parse, suites};
