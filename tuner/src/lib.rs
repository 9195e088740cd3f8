//! Which kernels are best: what can be generated, what of it is valid, builds, is right and fast, and the fewest that serve
//! all problems.
//!
//! A [`generator`] is a type of kernel: its parameters, which of their combinations are valid, its source, what it is given
//! and what must come out. A [`manifest`] names combinations and problems. A [`sweep`] takes each combination through
//! validity, the compiler and the device, and writes a [`record`] a line; it can be killed, resumed, and split among
//! machines. A [`matrix`] is what the records say, problems by kernels; [`select`] chooses from it, and a dispatch table
//! says which of the chosen a problem gets, also one that nobody measured. [`heatmap`] shows it, [`profile`] asks the
//! vendor's profiler about one kernel.
#![forbid(unsafe_code)]

pub mod dispatch;
pub mod generator;
pub mod matrix;
pub mod parameters;
pub mod problem;
pub mod record;
