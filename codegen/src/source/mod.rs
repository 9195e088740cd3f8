//! What the sources of all kernels have in common: the templates of every source, the C interface above all.

mod interface;
mod template;

use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

use crate::targets::MAX_GRID_YZ;

pub use self::interface::{Interface, Role};
pub(crate) use self::template::{Templated, emit_template};

/// The version of the C interface of generated kernels. Raised by every change to it.
pub const ABI_VERSION: u32 = 5;

/// The most extents of a call.
pub const MAX_EXTENTS: usize = 8;

/// The most tensors that a kernel reads.
pub const MAX_OPERANDS: usize = 32;

/// The most single numbers that a kernel reads from device memory.
pub const MAX_SCALARS: usize = 8;

/// The most tensors that a kernel writes.
pub const MAX_OUTPUTS: usize = 8;

/// The limits of the interface, as templates print them.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Limits {
    abi_version: u32,
    max_extents: usize,
    max_operands: usize,
    max_scalars: usize,
    max_outputs: usize,
    /// The most blocks along y and z of a grid.
    max_grid_yz: u64,
}

/// The limits of every kernel.
pub(crate) const LIMITS: Limits = Limits {
    abi_version: ABI_VERSION,
    max_extents: MAX_EXTENTS,
    max_operands: MAX_OPERANDS,
    max_scalars: MAX_SCALARS,
    max_outputs: MAX_OUTPUTS,
    max_grid_yz: MAX_GRID_YZ,
};

/// The templates of every source, and of what every library answers.
pub(crate) const SOURCE: &str = "source.cu.j2";
pub(crate) const ABI: &str = "abi.cu.j2";

/// The kinds of generated kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelKind {
    /// A `scaled_mma` with its epilogue.
    ScaledMma,
    /// A `block_quantize` by itself.
    BlockQuantize,
}

/// The source of one kernel. Equal specifications give equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// The whole translation unit.
    pub text: String,
    /// A readable name.
    pub kernel: String,
    /// The kind of kernel, which decides how it is emulated.
    pub kind: KernelKind,
    /// What it was generated for, and what it says of itself: `sm_100a`.
    pub target: &'static str,
    /// The architecture that it is compiled for, as the compiler spells it: `100a`.
    pub architecture: &'static str,
    /// What the name of an instruction in the binary must begin with: without it the kernel has no MMA.
    pub opcode: &'static str,
    /// What the compiler reads before the text; see [`emulate`](crate::emulate).
    pub prelude: Option<&'static str>,
    /// A hash of everything in the text but itself.
    pub hash: String,
}

/// The environment of templates that extend [`SOURCE`].
pub(crate) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    let syntax = minijinja::syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build()
        .expect("the syntax is minijinja's own");
    environment.set_syntax(syntax);
    for (name, text) in [(SOURCE, include_str!("source.cu.j2")), (ABI, include_str!("abi.cu.j2"))] {
        environment.add_template(name, text).expect("the template parses");
    }
    environment
}

/// FNV-1a, 64 bits: an identity for people and for comparing a library with its source, not a defence.
pub(crate) fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
