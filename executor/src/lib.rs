//! What happens: files, data, and the execution of partitioned programs.
//!
//! This is the only crate with `unsafe` and the only one that touches the outside world. [`read_text`] and
//! [`read_tensors`] bring a program and its data in; [`run`] executes a partition; [`fallback`] computes whatever
//! no kernel takes.

#![allow(unsafe_code, reason = "vector instructions, gemm, and allocations that may fail")]

mod data;
pub mod fallback;
mod files;
mod run;

pub use data::{
    DataError, DataFile, RawTensor, TensorDataError, read_tensors, read_tensors_given, write_tensors,
};
pub use files::{FileError, read_text};
pub use run::{NO_DEVICE, Ran, Run, RunError, RunOptions, RunReason, SegmentRun, run};
