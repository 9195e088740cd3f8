//! GPUs: finding them, and their memory, streams, events and graphs, through the driver that the machine has.
//!
//! The driver is loaded at run time. Without one, or with one that is too old, [`discover`] says so; nothing here
//! panics for it. Work is put on a [`Stream`] and runs in its order; nothing tracks what a buffer is used for.
//! Every call makes the device's primary context current for as long as it lasts, and the thread's own again.

mod buffer;
mod context;
mod driver;
mod error;
mod gpu;
mod open;
mod recording;
mod stream;
#[cfg(test)]
mod tests;

pub use buffer::Buffer;
pub use error::DeviceError;
pub use gpu::{Gpu, discover};
pub use open::Device;
pub use recording::{KernelNode, MemsetNode, Node, Recording};
pub use stream::{Event, Graph, Stream};

/// The oldest driver that runs our kernels, as `cuDriverGetVersion` counts: CUDA 13.0.
pub const NEEDED_DRIVER: u32 = 13_000;
