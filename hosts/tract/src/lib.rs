//! Fourfold as a runtime of [tract](https://github.com/sonos/tract).
//!
//! `runtime_for_name("fourfold")` prepares a model: [`Fourfold`] translates it into one program, partitions that once,
//! and puts one node in place of each kernel segment. Everything else stays with tract.
//!
//! Registration happens in a link-time constructor. A binary that only lists this crate in `Cargo.toml` does not link
//! it, and the name is unknown. It needs `use fourfold_tract as _;`, or any other use of the crate.
#![forbid(unsafe_code)]

mod error;
mod extract;
mod format;
mod import;
mod onnx;
mod ops;
mod order;
mod report;
mod runtime;
mod segment;

pub use error::Error;
pub use format::Format;
pub use onnx::{DOMAIN, onnx, register_ops};
pub use ops::{BlockDequantize, BlockQuantize, ScaledMm};
pub use report::{Fate, NodeReport, Reason, Report, SegmentReport, reason};
pub use runtime::{Fourfold, NAME, REPORT_PROPERTY};
