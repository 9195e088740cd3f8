//! Emulation: sm_120 and sm_100 kernels on a Hopper GPU, from the same source.
//!
//! A prelude precedes the source. For sm_120 it replaces the missing instructions in C++. Kernels for sm_100 keep
//! accumulators in tensor memory, which Hopper lacks: they are compiled for their own target to PTX, in which calls
//! replace instructions. See `docs/internals/emulation.md`.

mod ptx;

use std::sync::LazyLock;

use fourfold_ir::Capabilities;

use crate::block_quantize;
use crate::cutlass::HEAD;
use crate::source::{KernelKind, KernelSource, Translation};
use crate::targets::capabilities;

pub use ptx::{PtxText, RewriteError, RewriteProblem, rewrite as rewrite_ptx};

/// The targets whose kernels can be emulated.
pub const EMULATED_TARGETS: [&str; 4] = ["sm_120a", "sm_121a", "sm_100a", "sm_103a"];

/// The targets among them whose kernels use tensor memory.
const WITH_TENSOR_MEMORY: [&str; 2] = ["sm_100a", "sm_103a"];

/// The target of the emulating GPU.
pub const EMULATOR: &str = "sm_90a";

/// Replaces the MMA instructions and the 4-bit TMA types. Checks fragment layouts against CuTe's at compile time.
static PRELUDE: LazyLock<String> = LazyLock::new(|| {
    let parts = [
        HEAD,
        ELEMENTS,
        include_str!("../cutlass/emulation.cuh"),
        COPIES,
        include_str!("../cutlass/emulation_bytes.cuh"),
    ];
    parts.join("\n")
});

/// Decodes the elements of mxf8f6f4.
const ELEMENTS: &str = include_str!("elements.cuh");

/// Lays out copies of 4-bit codes that TMA would spread over bytes.
const COPIES: &str = include_str!("copies.cuh");

/// Replaces the 4-bit TMA types and the tensor copies of CTA pairs, and reads faults. With `FOURFOLD_LIBRARY` it is
/// instead the functions that rewritten instructions call.
static TENSOR_MEMORY: LazyLock<String> = LazyLock::new(|| {
    let state = include_str!("tensor_memory/state.cuh");
    let library = [
        state,
        include_str!("tensor_memory/ptx.cuh"),
        ELEMENTS,
        include_str!("tensor_memory/device.cuh"),
        include_str!("tensor_memory/mma.cuh"),
        include_str!("tensor_memory/functions.cuh"),
    ];
    let prelude = [
        HEAD,
        COPIES,
        include_str!("tensor_memory/prelude.cuh"),
        state,
        include_str!("tensor_memory/host.cuh"),
    ];
    format!("#ifdef FOURFOLD_LIBRARY\n{}\n#else\n{}\n#endif\n", library.join("\n"), prelude.join("\n"))
});

/// The SASS name of the integer dot product that replaces the MMA of FP4 by FP4.
const DOT_PRODUCT: &str = "IDP.4A";

/// The SASS name of the addition that replaces other MMAs, whose products are exact in f32.
const ADDITION: &str = "DADD";

/// The opcodes of MMAs whose elements have a byte each.
const OF_BYTES: [&str; 2] = ["UTCQMMA", "QMMA.SF"];

/// The version of the rewriting of PTX, for cache keys. Raise it whenever its result changes.
const TRANSLATION: u32 = 2;

/// A kernel without an MMA only needs to know that it is emulated: it then converts to e2m1 in software.
const WITHOUT_PRODUCT: &str = "#define FOURFOLD_EMULATED 1\n";

/// The capabilities of a target whose kernels are emulated, for planning: those of the target without the formats that
/// emulation lacks, which have an operand of FP6. `None` for a target without emulation.
pub fn emulated_capabilities(target: &str) -> Option<Capabilities> {
    let mut capabilities = capabilities(target).filter(|_| EMULATED_TARGETS.contains(&target))?;
    let formats = std::mem::take(&mut capabilities.formats);
    let (lacking, has): (Vec<_>, Vec<_>) =
        formats.into_iter().partition(|rules| rules.format.a.is_fp6() || rules.format.b.is_fp6());
    capabilities.formats = has;
    capabilities.not_emulated = lacking.into_iter().map(|rules| rules.format).collect();
    Some(capabilities)
}

/// Returns the same kernel for a Hopper GPU: the text is unchanged, and a prelude precedes it. `None` for a kernel of
/// another target.
///
/// An emulated run proves layouts, descriptors, pipelines, epilogue and arguments. It does not prove the MMA
/// instruction, the 4-bit TMA type, or the hardware's order of accumulation.
pub fn emulate(source: &KernelSource) -> Option<KernelSource> {
    let translation = Translation { from: source.architecture, version: TRANSLATION };
    let product = if OF_BYTES.contains(&source.opcode) { ADDITION } else { DOT_PRODUCT };
    let (opcode, prelude, translation) = match source.kind {
        KernelKind::ScaledMma if WITH_TENSOR_MEMORY.contains(&source.target) => {
            (product, TENSOR_MEMORY.as_str(), Some(translation))
        }
        KernelKind::ScaledMma => (product, PRELUDE.as_str(), None),
        KernelKind::BlockQuantize | KernelKind::Row | KernelKind::Move | KernelKind::Column => {
            (block_quantize::STORE, WITHOUT_PRODUCT, None)
        }
    };
    EMULATED_TARGETS.contains(&source.target).then(|| KernelSource {
        architecture: EMULATOR.trim_start_matches("sm_"),
        opcode,
        prelude: Some(prelude),
        translation,
        ..source.clone()
    })
}
