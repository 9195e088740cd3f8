//! What the kernel says: the targets, and what the kernels of each can take.
#![forbid(unsafe_code)]

mod targets;

pub use targets::{TARGETS, Target, capabilities, target};
