//! Generates CUDA sources of block-scaled FP4 and FP8 GEMM kernels, with CUTLASS for Blackwell and without it for Hopper.
//!
//! - [`capabilities`] describes a target of [`TARGETS`] as data, for [`fourfold_scheduler::partition()`].
//! - [`specify`] derives a [`KernelSpec`] from a plan: a configuration and an epilogue, with the reason for the choice.
//!   [`select`] has the default dispatch tables. [`dispatch`] reads other tables.
//! - [`KernelSpec::emit`] generates the [`KernelSource`]: one translation unit with a C interface.
//! - [`emulate`] adapts the source of an sm_120 kernel to a Hopper GPU. [`rewrite_ptx`] adapts the PTX of an sm_100
//!   kernel.
//!
//! Generation is pure: it reads no clock, file, environment or device, and equal plans give equal bytes. The crate has
//! no optional features.
//!
//! ```
//! use fourfold_codegen::cutlass::CutlassVersion;
//! use fourfold_codegen::{capabilities, specify, target};
//! use fourfold_scheduler::partition;
//!
//! let source = "fir 1
//! func @layer(%a: tensor<[37, 64], f4E2M1FN>, %sfa: tensor<[37, 4], f8E4M3FN, blocked>,
//!     param %b: tensor<[24, 64], f4E2M1FN>, param %sfb: tensor<[24, 4], f8E4M3FN, blocked>) {
//!   %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], bf16>
//!   return %d
//! }
//! ";
//! let (program, _) = fourfold_ir::load(source).expect("a valid program");
//! let target = target("sm_120a").expect("a known target");
//! let partition = partition(&program, &capabilities(target.name).expect("a known target"));
//! let (_, plan) = partition.plans().next().expect("a kernel");
//!
//! let (spec, why) = specify(&program, plan, target, CutlassVersion::PINNED, None).expect("a kernel");
//! assert_eq!(spec.signature(), plan.signature(&program));
//! let kernel = spec.emit();
//! assert_eq!(kernel.architecture, "120a");
//! assert!(kernel.text.contains("extern \"C\""), "{} ({why})", kernel.kernel);
//! ```
#![forbid(unsafe_code)]

pub mod block_quantize;
pub mod columns;
mod cuda;
pub mod cutlass;
mod design;
mod device_tier;
pub mod dispatch;
mod emit;
mod emulation;
mod epilogue;
mod extents;
mod groups;
pub mod hopper;
pub mod moves;
pub mod row;
pub mod select;
mod source;
mod spec;
mod specify;
mod targets;

pub use design::Design;
pub use emulation::{
    EMULATED_TARGETS, EMULATOR, PtxText, RewriteError, RewriteProblem, emulate, emulated_capabilities,
    rewrite_ptx,
};
pub use epilogue::{
    Epilogue, Operand, Output, OutputKind, Step, StepKind, device_functions, edge_functions, edges_type,
    even_functions, formula_functions, formula_type, output_functions, quantization_functions,
    scale_functions,
};
pub use extents::Extents;
pub use groups::Groups;
pub use source::{
    ABI_VERSION, Interface, KernelKind, KernelSource, MAX_EXTENTS, MAX_OPERANDS, MAX_OUTPUTS, MAX_SCALARS,
    Role, Translation,
};
pub use spec::{KernelSpec, ScaledMmaSpec};
pub use specify::specify;
pub use targets::{BINARY_FUNCTIONS, TARGETS, Target, UNARY_FUNCTIONS, capabilities, format, target};
