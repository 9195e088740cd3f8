//! What the kernel says: the targets, what the kernels of each can take, what they are built from, and their source.
#![forbid(unsafe_code)]

pub mod configuration;
pub mod defaults;
mod design;
pub mod dispatch;
pub mod grid;
pub mod hopper;
mod kernel;
pub mod rules;
pub mod stages;
mod targets;
pub mod tensor_memory;

pub use design::Design;
pub use kernel::{
    ABI_VERSION, EMULATED_TARGETS, EMULATOR, Epilogue, HEAD, HOPPER_HEAD, HOPPER_KERNEL, KernelSource,
    KernelSpec, MAX_OPERANDS, MAX_OUTPUTS, Operand, Output, OutputKind, Step, StepKind, Templated,
    device_functions, emit, emit_template, emulate, output_functions, quantization_functions,
    row_output_functions, scale_functions, specify,
};
pub use targets::{TARGETS, Target, capabilities, target};
