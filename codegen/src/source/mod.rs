//! The common parts of all kernel sources: base templates and the C interface.

mod interface;
mod template;

use std::sync::{LazyLock, Mutex, PoisonError};

use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

use crate::targets::MAX_GRID_YZ;

pub(crate) use self::interface::WIDE;
pub use self::interface::{Interface, Role};
pub(crate) use self::template::{Templated, emit_template};

/// The version of the C interface of generated kernels. Every change to the interface raises it.
pub const ABI_VERSION: u32 = 6;

/// The maximum number of extents of a call.
pub const MAX_EXTENTS: usize = 16;

/// The maximum number of tensors that a kernel reads.
pub const MAX_OPERANDS: usize = 32;

/// The maximum number of scalars that a kernel reads from device memory.
pub const MAX_SCALARS: usize = 8;

/// The maximum number of tensors that a kernel writes.
pub const MAX_OUTPUTS: usize = 8;

/// The interface limits for templates.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Limits {
    abi_version: u32,
    max_extents: usize,
    max_operands: usize,
    max_scalars: usize,
    max_outputs: usize,
    /// The largest grid extent along y and z.
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

/// The base template of every source, and the template of its C interface.
pub(crate) const SOURCE: &str = "source.cu.j2";
pub(crate) const ABI: &str = "abi.cu.j2";

/// The kinds of generated kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KernelKind {
    /// A `scaled_mma` with its epilogue.
    ScaledMma,
    /// A standalone `block_quantize`.
    BlockQuantize,
    /// Elementwise steps and reductions along rows.
    Row,
    /// Elements copied to other places.
    Move,
    /// A reduction along any axes.
    Column,
}

/// The device code is compiled to PTX for another architecture, rewritten by
/// [`rewrite_ptx`](crate::rewrite_ptx), and assembled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Translation {
    /// The architecture that the compiler targets: `100a`.
    pub from: &'static str,
    /// The version of the rewriting, for cache keys.
    pub version: u32,
}

/// The source of one kernel. Equal specifications give equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// The whole translation unit.
    pub text: String,
    /// A readable name.
    pub kernel: String,
    /// The kind of kernel, which determines its emulation.
    pub kind: KernelKind,
    /// The target, such as `sm_100a`. The library's metadata states it too.
    pub target: &'static str,
    /// The compilation architecture in nvcc's spelling: `100a`.
    pub architecture: &'static str,
    /// The prefix of an instruction's SASS name that must occur in the binary; without it the kernel lacks
    /// its MMA.
    pub opcode: &'static str,
    /// The text that the compiler reads before the source; see [`emulate`](crate::emulate).
    pub prelude: Option<&'static str>,
    /// The rewriting of the device code for [`architecture`](KernelSource::architecture); `None` if the compiler
    /// targets it.
    pub translation: Option<Translation>,
    /// A hash of the text, excluding the hash itself.
    pub hash: String,
}

/// The name under which [`kernel_environment`] has the kernel's template.
pub(crate) const KERNEL: &str = "kernel.cu.j2";

/// The template environment, with the templates that others extend or include, which are parsed once.
pub(crate) fn environment() -> Environment<'static> {
    static PARSED: LazyLock<Environment<'static>> = LazyLock::new(parse);
    PARSED.clone()
}

/// The template environment with a kernel's template, too. Each template is parsed once.
///
/// # Panics
/// If the template does not parse: a bug that any test of its kernels detects.
pub(crate) fn kernel_environment(template: &'static str) -> Environment<'static> {
    static PARSED: Mutex<Vec<(&str, Environment<'static>)>> = Mutex::new(Vec::new());
    let mut parsed = PARSED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, environment)) = parsed.iter().find(|(text, _)| std::ptr::eq(*text, template)) {
        return environment.clone();
    }
    let mut environment = environment();
    environment.add_template(KERNEL, template).expect("the template parses");
    parsed.push((template, environment.clone()));
    environment
}

fn parse() -> Environment<'static> {
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
    let templates = [
        (SOURCE, include_str!("source.cu.j2")),
        (ABI, include_str!("abi.cu.j2")),
        ("cutlass/kernel.cu.j2", include_str!("../cutlass/kernel.cu.j2")),
        ("cutlass/group_nodes.cu.j2", include_str!("../cutlass/group_nodes.cu.j2")),
        ("cutlass/group_kernel.cu.j2", include_str!("../cutlass/group_kernel.cu.j2")),
        ("row/host.cu.j2", include_str!("../row/host.cu.j2")),
    ];
    for (name, text) in templates {
        environment.add_template(name, text).expect("the template parses");
    }
    environment
}

/// The 64-bit FNV-1a hash: an identity for reports and for matching a library to its source, not a defence.
pub(crate) fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
