//! Kernel selection: the default tables, the format of A by M, the configurations of named kernels, and their validity.

mod activations;
pub mod cutlass;
pub mod hopper;
mod tables;
#[cfg(test)]
mod tests;
mod validity;

pub use self::activations::{ActivationChoice, ActivationTables, Activations, ActivationsError, Quantized};
pub use self::tables::default_tables;
