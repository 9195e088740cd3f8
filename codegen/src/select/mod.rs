//! Kernel selection: the default tables, the configurations of named kernels, and their validity.

pub mod cutlass;
pub mod hopper;
mod tables;
#[cfg(test)]
mod tests;
mod validity;

pub use self::tables::default_tables;
