//! Plain matrix products on the device, through the cuBLASLt of this machine.
//!
//! The library is loaded at run time. If it is missing or of another major version, [`Blas::load`] returns an error;
//! nothing here panics. Products accumulate in f32 and round once, to the type of D: f32 operands are never shortened
//! to TF32 or bf16, and split-K sums are never kept in 16 bits.

mod chosen;
mod error;
mod functions;
mod library;
mod matmul;
mod open;
mod places;
mod problem;
mod version;

pub use error::BlasError;
pub use matmul::{Matmul, WORKSPACE_LIMIT};
pub use open::Blas;
pub use problem::MatmulProblem;
pub use version::BlasVersion;
