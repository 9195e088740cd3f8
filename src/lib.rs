//! Fourfold: a fusion backend for block-scaled FP4 matrix multiplication, embedded by graph compilers.
//!
//! Fourfold takes a dataflow graph, fuses the ops around each `scaled_mma` into one kernel, compiles the kernels with
//! nvcc and runs them. Every other op runs on a CPU fallback, with a stable reason code.
//!
//! # Entry points
//!
//! - [`Backend::plan`] normalizes a verified program ([`scheduler::normalize`]) and partitions it into segments.
//!   Normalization also turns products of dequantized operands into `scaled_mma`.
//! - [`Backend::compile`] builds and loads the kernels that this machine can run;
//!   [`Backend::compile_in_background`] does not wait for them.
//! - [`Compiled::run`] runs the whole program on host tensors. The result lists each segment, and the reason if it ran
//!   on the fallback.
//! - [`Compiled::session`] runs the program repeatedly with resident params, on host or device tensors.
//! - [`Compiled::run_segment`] runs one segment, for hosts that keep other ops ([`Claim`]).
//! - [`Compiled::prepare`] and [`Compiled::prepare_segment`] build launches on the host's device memory and stream.
//! - [`kernels`] exposes configurations, sources and builds of single kernels.
//!
//! The `fourfold-cli` crate replays, verifies and diagnoses programs with this interface.
//!
//! # Features
//!
//! - `object-store` adds object stores, such as `s3://`, as tiers of the kernel cache. Off by default.
//!
//! # Example
//!
//! A linear layer with a bias, for any M. Without a GPU or nvcc it runs on the fallback.
//!
//! ```
//! use fourfold::ir::{BinaryKind, Builder, Dim, ElementType, ScaleLayout, ScaledMmaOptions, TensorType, sample};
//! use fourfold::{Backend, CompileOptions, Options};
//!
//! let mut builder = Builder::new("layer");
//! let m = builder.symbol("M");
//! let [n, k, blocks] = [56, 96, 6].map(Dim::fixed);
//! let codes = |rows: &Dim| TensorType::new(vec![rows.clone(), k.clone()], ElementType::F4E2M1FN);
//! let scales = |rows: &Dim| {
//!     TensorType::scales(vec![rows.clone(), blocks.clone()], ElementType::F8E4M3FN, ScaleLayout::Blocked)
//! };
//! let a = builder.input("a", codes(&m));
//! let sfa = builder.input("sfa", scales(&m));
//! let b = builder.param("b", codes(&n));
//! let sfb = builder.param("sfb", scales(&n));
//! let bias = builder.param("bias", TensorType::new(vec![n.clone()], ElementType::BF16));
//! let product = builder.scaled_mma("product", a, sfa, b, sfb, 16, ElementType::F32, ScaledMmaOptions::default());
//! let biased = builder.binary("biased", BinaryKind::Add, product, bias);
//! let backend = Backend::new(&Options::default().target("sm_120a"))?;
//! let planned = backend.plan_module(builder.finish(&[biased]))?;
//! assert_eq!(planned.partition().kernels().count(), 1);
//!
//! let compiled = backend.compile(planned, &CompileOptions::default(), &|line| eprintln!("{line}"));
//! let recipe = sample::Recipe { rule: sample::Rule::Exact, seed: 1, symbols: vec![("M".into(), 37)] };
//! let inputs = sample::inputs(compiled.planned().program(), &recipe)?;
//! let run = compiled.run(&inputs, &Default::default())?;
//! assert_eq!(run.value(biased).expect("an output").dims(), [37, 56]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod backend;
mod choices;
mod compile_options;
mod compiled;
mod error;
pub mod kernels;
mod options;
mod session;

pub use backend::{Backend, ClaimedSegment, Execution, Planned};
pub use choices::{Arm, Choice};
pub use compile_options::{CacheChoice, CompileOptions};
pub use compiled::Compiled;
pub use error::{Error, Fault, run_fault};
pub use fourfold_codegen as codegen;
pub use fourfold_executor as executor;
pub use fourfold_executor::chain;
pub use fourfold_executor::device::{Device, DeviceError, Stream};
pub use fourfold_executor::service::{Event, Wait};
pub use fourfold_executor::{
    DeviceTensor, Preparation, PreparedProgram, Refused, Run, RunOptions, SegmentRun, SessionError,
    SessionInput, SessionRun,
};
pub use fourfold_ir as ir;
pub use fourfold_scheduler as scheduler;
pub use options::{Claim, DEFAULT_EMULATED_TARGET, DEFAULT_TARGET, DeviceChoice, Options};
pub use session::Session;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_may_share_everything_between_threads() {
        fn check<T: Send + Sync>() {}
        check::<Options>();
        check::<CompileOptions>();
        check::<RunOptions>();
        check::<Backend>();
        check::<Planned>();
        check::<Compiled>();
        check::<Error>();
    }

    #[test]
    fn a_session_may_be_moved_to_another_thread() {
        fn check<T: Send>() {}
        check::<Session>();
    }
}
