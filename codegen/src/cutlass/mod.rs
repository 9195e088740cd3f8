//! Blackwell kernels, built from CUTLASS collectives: their configuration as data, the rules that make a
//! configuration valid, and the template.

pub mod configuration;
pub mod defaults;
mod epilogue_tile;
mod format;
pub mod grid;
pub mod rules;
pub mod stages;
mod tags;
pub(crate) mod template;
pub mod tensor_memory;
mod version;

pub use self::template::HEAD;
pub use self::version::CutlassVersion;
