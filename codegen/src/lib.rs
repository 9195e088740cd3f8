//! What the kernel says: the targets, what the kernels of each can take, and what they are built from.
#![forbid(unsafe_code)]

pub mod configuration;
pub mod defaults;
pub mod rules;
pub mod stages;
mod targets;

pub use targets::{TARGETS, Target, capabilities, target};
