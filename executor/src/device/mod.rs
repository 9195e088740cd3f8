//! GPUs: discovery, memory, streams, events and graphs, through the machine's driver.
//!
//! The driver is loaded at run time. If it is missing or too old, [`discover`] returns an error; nothing here panics.
//! Work put on a [`Stream`] runs in order; nothing tracks the use of buffers. Each call makes the device's primary
//! context current, and restores the thread's own when it returns.

mod buffer;
mod context;
mod driver;
mod error;
mod fork;
mod gpu;
mod open;
mod pinned;
mod recording;
mod stream;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use error::DeviceError;
pub(crate) use fork::Fork;
pub use gpu::{Gpu, discover};
pub use open::Device;
pub(crate) use pinned::Pinned;
pub use recording::{KernelNode, MemsetNode, Node, Recording};
pub use stream::{Event, Graph, Stream};

/// The oldest supported driver, CUDA 13.0, in the encoding of `cuDriverGetVersion`.
pub const NEEDED_DRIVER: u32 = 13_000;
