//! What the kernel says: the targets, what the kernels of each can take, what they are built from, and their source.
#![forbid(unsafe_code)]

mod cuda;
pub mod cutlass;
mod design;
pub mod dispatch;
mod emit;
mod epilogue;
mod extents;
pub mod hopper;
pub mod select;
mod source;
mod spec;
mod specify;
mod targets;

pub use cutlass::emulation::{EMULATED_TARGETS, EMULATOR, emulate};
pub use design::Design;
pub use emit::emit;
pub use epilogue::{
    Epilogue, Operand, Output, OutputKind, Step, StepKind, device_functions, output_functions,
    quantization_functions, scale_functions,
};
pub use extents::Extents;
pub use source::{ABI_VERSION, KernelSource, MAX_OPERANDS, MAX_OUTPUTS, Templated, emit_template};
pub use spec::KernelSpec;
pub use specify::specify;
pub use targets::{TARGETS, Target, capabilities, target};
