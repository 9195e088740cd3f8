//! Kernels of the sm_120 family on a Hopper GPU: the same source, with what Hopper lacks replaced.

use std::sync::LazyLock;

use crate::block_quantize;
use crate::cutlass::HEAD;
use crate::source::{KernelKind, KernelSource};

/// Targets whose kernels can be emulated.
pub const EMULATED_TARGETS: [&str; 2] = ["sm_120a", "sm_121a"];

/// The target of the GPUs that emulate.
pub const EMULATOR: &str = "sm_90a";

/// Replaces the matrix instruction and the 4-bit TMA type, and checks its map of fragments against CuTe's while it is
/// compiled.
static PRELUDE: LazyLock<String> =
    LazyLock::new(|| format!("{HEAD}\n{}", include_str!("cutlass/emulation.cuh")));

/// The integer dot product that stands for the matrix instruction.
const DOT_PRODUCT: &str = "IDP.4A";

/// A kernel that multiplies nothing only learns that it is emulated: it then converts to e2m1 without an instruction.
const WITHOUT_PRODUCT: &str = "#define FOURFOLD_EMULATED 1\n";

/// The same kernel for a Hopper GPU: its text is untouched, the compiler reads a prelude before it. It proves layouts,
/// descriptors, pipelines, epilogue and arguments; not the matrix instruction, the 4-bit TMA type, or the hardware's
/// order of accumulation. `None` for a kernel of another family: those keep accumulators in tensor memory.
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
