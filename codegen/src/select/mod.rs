//! Which kernel a problem gets: the default tables, what the kernels of a table are built from, and whether they are valid.

pub mod cutlass;
pub mod hopper;
mod tables;
#[cfg(test)]
mod tests;
mod validity;

pub use self::tables::default_tables;
