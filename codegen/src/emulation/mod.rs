//! Emulation: sm_120 kernels on a Hopper GPU, from the same source, with a prelude that replaces missing
//! instructions.

mod ptx;

use std::sync::LazyLock;

use crate::block_quantize;
use crate::cutlass::HEAD;
use crate::source::{KernelKind, KernelSource};

pub use ptx::{PtxText, RewriteError, RewriteProblem, rewrite as rewrite_ptx};

/// The targets whose kernels can be emulated.
pub const EMULATED_TARGETS: [&str; 2] = ["sm_120a", "sm_121a"];

/// The target of the emulating GPU.
pub const EMULATOR: &str = "sm_90a";

/// Replaces the MMA instruction and the 4-bit TMA type. Checks its fragment layout against CuTe's at compile
/// time.
static PRELUDE: LazyLock<String> =
    LazyLock::new(|| format!("{HEAD}\n{}", include_str!("../cutlass/emulation.cuh")));

/// The SASS name of the integer dot product that replaces the MMA instruction.
const DOT_PRODUCT: &str = "IDP.4A";

/// A kernel without an MMA only needs to know that it is emulated: it then converts to e2m1 in software.
const WITHOUT_PRODUCT: &str = "#define FOURFOLD_EMULATED 1\n";

/// Returns the same kernel for a Hopper GPU: the text is unchanged, and a prelude precedes it. `None` for a
/// kernel of another family, which keeps accumulators in tensor memory.
///
/// An emulated run proves layouts, descriptors, pipelines, epilogue and arguments. It does not prove the MMA
/// instruction, the 4-bit TMA type, or the hardware's order of accumulation.
pub fn emulate(source: &KernelSource) -> Option<KernelSource> {
    let (opcode, prelude) = match source.kind {
        KernelKind::ScaledMma => (DOT_PRODUCT, PRELUDE.as_str()),
        KernelKind::BlockQuantize => (block_quantize::STORE, WITHOUT_PRODUCT),
    };
    EMULATED_TARGETS.contains(&source.target).then(|| KernelSource {
        architecture: EMULATOR.trim_start_matches("sm_"),
        opcode,
        prelude: Some(prelude),
        ..source.clone()
    })
}
