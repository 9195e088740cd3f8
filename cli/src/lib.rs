//! The commands of `fourfold` as a library: replay, explain, verify, bundles, reports and diagnosis.
//!
//! [`mod@replay`] runs a program from a file and compares every expected value, [`verify`](mod@verify) does so for the
//! kernels of many programs, [`bundle`] keeps a replay in a folder that can be replayed elsewhere, and [`doctor`] says
//! what this machine has and lacks. The binary `fourfold` parses arguments, calls these and prints their reports. Hosts
//! that embed Fourfold need none of it: they use the crate `fourfold`.
#![forbid(unsafe_code)]

pub mod bundle;
mod compare;
pub mod doctor;
mod error;
mod expectations;
mod extract;
mod header;
mod load;
mod precision;
mod recorded;
pub mod replay;
mod report;
mod run;
mod tolerance;
pub mod verify;
mod version;

pub use error::{BundleError, Error, exit_code, fault_of_file};
pub use header::{ExpectedCodes, Header};
pub use report::{
    DecisionReport, LeftOut, LeftOutFile, OutputReport, Report, ResourceReport, SegmentReport, VerifyLaunch,
    VerifyReport, VerifyRow, WorstReport, kernel_name,
};
