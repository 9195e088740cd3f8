//! What the kernel says: the targets, what the kernels of each can take, what they are built from, and their source.
#![forbid(unsafe_code)]

pub mod block_quantize;
mod cuda;
pub mod cutlass;
mod design;
pub mod dispatch;
mod emit;
mod emulation;
mod epilogue;
mod extents;
pub mod hopper;
pub mod select;
mod source;
mod spec;
mod specify;
mod targets;

pub use design::Design;
pub use emulation::{EMULATED_TARGETS, EMULATOR, emulate};
pub use epilogue::{
    Epilogue, Operand, Output, OutputKind, Step, StepKind, device_functions, output_functions,
    quantization_functions, scale_functions,
};
pub use extents::Extents;
pub use source::{
    ABI_VERSION, Interface, KernelKind, KernelSource, MAX_EXTENTS, MAX_OPERANDS, MAX_OUTPUTS, MAX_SCALARS,
    Role,
};
pub use spec::{KernelSpec, ScaledMmaSpec};
pub use specify::specify;
pub use targets::{TARGETS, Target, capabilities, target};
