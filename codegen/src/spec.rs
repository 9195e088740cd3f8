//! Everything that a kernel depends on.

use crate::design::Design;
use crate::epilogue::Epilogue;
use crate::targets::Target;

/// Everything that a kernel depends on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSpec {
    /// What it is compiled for.
    pub target: &'static Target,
    /// Tiles, clusters, schedules, stages.
    pub configuration: Design,
    /// What follows the accumulator.
    pub epilogue: Epilogue,
}

impl KernelSpec {
    /// A readable name: `nvfp4_scaled_mm_sm100_128x128x256_1sm_c1x1_alpha_add_gelu_bf16`. Not unique; see
    /// [`KernelSource::hash`](crate::KernelSource::hash).
    pub fn name(&self) -> String {
        let format = self.configuration.block_format().map_or(String::new(), |format| format!("{format}_"));
        format!("{format}scaled_mm_{}_{}", self.configuration.name(), self.epilogue.name())
    }

    /// What the kernel reads and writes: `nvfp4 alpha c=bf16 beta row=f16 matrix=bf16 d=bf16`. What follows the format
    /// is there only if the kernel has it: the epilogue's operands in their order, and the outputs in theirs. These are
    /// values, `d=bf16`; codes and scales, `q=f4E2M1FN:f8E4M3FN/16*x2` with the position of the tensor's own scale among
    /// the operands, or `q=f8E5M2:f8E8M0FNU/32:floor`; and reductions, `amax=row`; each followed by `@acc` or `@s3`
    /// where it is not made of what is computed last. A library says it of itself, and whoever calls it compares it
    /// with the plan: a kernel of another signature would read or write memory that is not meant for it.
    pub fn signature(&self) -> String {
        let format =
            self.configuration.block_format().map_or("mixed".to_owned(), |format| format.to_string());
        let mut parts = vec![format];
        parts.extend(self.epilogue.signature());
        parts.join(" ")
    }
}
