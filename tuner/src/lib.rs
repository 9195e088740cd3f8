//! Sweeps over kernel configurations, kernel selection, dispatch tables, heat-maps and profiling.
//!
//! # Entry points
//!
//! | step | module | result |
//! |---|---|---|
//! | define a type of kernel | [`generator`] | parameters, validity rules, source, reference data |
//! | list combinations and problems | [`manifest`], [`suites`] | combinations, weighted problems |
//! | build, verify and time each combination | [`sweep`] | one [`record`] per line |
//! | read and join records | [`records`], [`matrix`] | times, problems × kernels |
//! | choose the kernels to keep | [`select`] | a selection, with a proof of optimality or a bound |
//! | assign every problem a kernel | [`dispatch`] | a dispatch table, also for problems without measurements |
//! | show the times | [`heatmap`] | HTML, SVG, PNG or terminal text |
//! | compare with other libraries | [`bars`] | SVG or HTML |
//! | profile one kernel | [`profile`] | counters of `ncu`, findings of `compute-sanitizer` |
//!
//! A sweep can be killed, resumed, and split among machines. `fourfold sweep`, `select`, `heatmap` and `profile` are
//! the command-line front ends.
//!
//! # Features
//!
//! `full` (off by default) makes the tests build every simulated kernel of `block_quantize` for every target, which
//! takes minutes. It adds nothing to the library.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//!
//! use fourfold_tuner::matrix::{Cell, Kernel, Matrix};
//! use fourfold_tuner::problem::{Problem, Weighted};
//! use fourfold_tuner::record::State;
//! use fourfold_tuner::select::{Margin, Proof, minimum_set};
//!
//! // Times in microseconds: two problems, three kernels.
//! let times = [[10.0, 14.0, 10.3], [30.0, 20.0, 20.4]];
//! let kernel = |id: &str| Kernel {
//!     id: id.to_owned(),
//!     generator: "scaled_mma.sm90".to_owned(),
//!     target: "sm_90a".to_owned(),
//!     name: format!("kernel_{id}"),
//!     parameters: Default::default(),
//! };
//! let cell = |us: f64| Some(Cell { state: State::Good, median_us: Some(us), noise: 0.0 });
//! let matrix = Matrix {
//!     problems: [64, 512].map(|m| Weighted { problem: Problem::new(m, 4096, 4096), weight: 1.0 }).to_vec(),
//!     kernels: ["a", "b", "c"].map(kernel).to_vec(),
//!     cells: times.as_flattened().iter().map(|us| cell(*us)).collect(),
//!     machine: None,
//! };
//!
//! // One kernel reaches 95 % of the best time on both problems.
//! let selection = minimum_set(&matrix, 0.95, Margin::Given(0.0), Duration::from_secs(1))?;
//! assert_eq!(selection.kernels, [2]);
//! assert_eq!(selection.proof, Proof::Optimal);
//! # Ok::<(), fourfold_tuner::select::SelectError>(())
//! ```
#![forbid(unsafe_code)]

pub mod bars;
pub mod dispatch;
pub mod generator;
pub mod heatmap;
pub mod manifest;
pub mod matrix;
pub mod parameters;
pub mod problem;
pub mod profile;
pub mod record;
pub mod records;
pub mod select;
pub mod suites;
pub mod sweep;
