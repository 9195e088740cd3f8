//! The commands of `fourfold` as a library: replay, explain, verify, bundles and diagnosis of the machine.
//!
//! The binary `fourfold` parses arguments, calls this crate and prints its reports. Use the crate to run the same
//! checks from a test or a tool. A graph compiler that embeds Fourfold uses the crate [`fourfold`] instead.
//!
//! # Entry points
//!
//! | function | command | purpose |
//! |---|---|---|
//! | [`replay::explain`] | `explain` | plans a program and lists the decision on each op, without running it |
//! | [`replay::replay`] | `replay` | runs a program or a bundle and compares every expected value |
//! | [`replay::replay_bundled`] | `replay --bundle` | also writes the run to a folder that replays elsewhere |
//! | [`verify::verify`](fn@verify::verify) | `verify` | compares every value that the kernels of many programs write |
//! | [`import::import`](fn@import::import) | `import` | turns a quantized model into programs |
//! | [`bench::bench`](fn@bench::bench) | `bench` | times suites of programs, checks them, and compares them with torch |
//! | [`doctor::examine`] | `doctor` | reports what this machine has for building and running kernels |
//! | [`hosts::examine_host`] | `doctor --host` | reports the installed packages of a host, and the tested versions |
//!
//! Each returns a report that serializes to the object of `--json`. [`Report`] and [`VerifyReport`] also display as
//! text; [`Summary`] is the short text of a [`Report`]. [`Error`] and the reports return the command's exit code.
//!
//! # Example
//!
//! ```
//! use std::path::Path;
//!
//! use fourfold::{DeviceChoice, Options};
//! use fourfold_cli::Summary;
//! use fourfold_cli::replay::{ReplayOptions, explain, replay};
//!
//! # fn main() -> Result<(), fourfold_cli::Error> {
//! let file = Path::new("../fixtures/minilm_ffn.fir");
//! let backend = Options::default().target("sm_90a").device(DeviceChoice::None);
//!
//! let plan = explain(file, &backend)?;
//! assert_eq!((plan.kernels, plan.segments.len()), (2, 5));
//!
//! // Without a GPU, everything runs on the CPU fallback and is compared all the same.
//! let report = replay(file, &ReplayOptions { backend, ..ReplayOptions::default() }, &|_| {})?;
//! assert!(report.ok && report.ran_kernels == 0);
//! print!("{}", Summary(&report));
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `tune` (default): the commands `sweep`, `merge`, `select`, `heatmap` and `profile`;
//! - `object-store`: object stores, such as `s3://`, as tiers of the kernel cache.
#![forbid(unsafe_code)]

pub mod bench;
pub mod bundle;
mod compare;
pub mod doctor;
mod error;
mod expectations;
mod extract;
mod header;
pub mod hosts;
pub mod import;
mod load;
mod precision;
mod recorded;
pub mod replay;
mod report;
mod report_file;
mod run;
mod tolerance;
mod unused;
mod unused_rows;
pub mod verify;
mod version;

pub use error::{BundleError, Error, SuiteError, exit_code, fault_of_file};
pub use header::{ExpectedCodes, Header};
pub use report::{
    DecisionReport, LeftOut, LeftOutFile, MemoryPartReport, MemoryReport, OffDevice, OutputReport, Report,
    ResourceReport, SegmentReport, Summary, VerifyLaunch, VerifyReport, VerifyRow, WorstReport, kernel_name,
    plan_name,
};
