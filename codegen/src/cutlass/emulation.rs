//! Kernels of the sm_120 family on a Hopper GPU: the same source, with what Hopper lacks replaced.

use std::sync::LazyLock;

use super::template::HEAD;
use crate::source::KernelSource;

/// Targets whose kernels can be emulated.
pub const EMULATED_TARGETS: [&str; 2] = ["sm_120a", "sm_121a"];

/// The target of the GPUs that emulate.
pub const EMULATOR: &str = "sm_90a";

/// Replaces the matrix instruction and the 4-bit TMA type, and checks its map of fragments against CuTe's while it is
/// compiled.
static PRELUDE: LazyLock<String> = LazyLock::new(|| format!("{HEAD}\n{}", include_str!("emulation.cuh")));

/// The integer dot product that stands for the matrix instruction.
const OPCODE: &str = "IDP.4A";

/// The same kernel for a Hopper GPU: its text is untouched, the compiler reads a prelude before it. It proves layouts,
/// descriptors, pipelines, epilogue and arguments; not the matrix instruction, the 4-bit TMA type, or the hardware's
/// order of accumulation. `None` for a kernel of another family: those keep accumulators in tensor memory.
pub fn emulate(source: &KernelSource) -> Option<KernelSource> {
    EMULATED_TARGETS.contains(&source.target).then(|| KernelSource {
        architecture: EMULATOR.trim_start_matches("sm_"),
        opcode: OPCODE,
        prelude: Some(PRELUDE.as_str()),
        ..source.clone()
    })
}
