//! The kernels of Blackwell, which are built from CUTLASS's collectives: what a kernel is built from, as data, which of
//! that is valid, and the template that it fills.

pub mod configuration;
pub mod defaults;
mod epilogue_tile;
pub mod grid;
pub mod rules;
pub mod stages;
mod tags;
pub(crate) mod template;
pub mod tensor_memory;
mod version;

pub use self::template::HEAD;
pub use self::version::CutlassVersion;
