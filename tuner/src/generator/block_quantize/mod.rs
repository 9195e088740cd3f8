//! Sweeps the kernel of a `block_quantize` by itself ([`fourfold_codegen::block_quantize`]).
//!
//! A problem of a sweep has N = 1: M rows of K values are quantized, and nothing is multiplied.

mod rules;
mod settings;
mod workload;

use fourfold_codegen::block_quantize::{BlockQuantizeSpec, Configuration};
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::{KernelSource, Target};
use fourfold_ir::ScaleLayout;

use self::settings::PARAMETERS;
use super::{Broken, Configured, Generator, Parameter, Work, Workload};
use crate::parameters::Parameters;
use crate::problem::Problem;

/// The targets that have such a kernel.
const TARGETS: [&str; 5] = ["sm_100a", "sm_103a", "sm_120a", "sm_121a", "sm_90a"];

/// The type of block-quantization kernels.
#[derive(Clone, Copy, Debug)]
pub struct BlockQuantize;

impl Generator for BlockQuantize {
    fn name(&self) -> &'static str {
        "block_quantize"
    }

    fn about(&self) -> &'static str {
        "block quantization of matrix rows: bf16, f16 or f32 to FP4 codes with one scale per block"
    }

    fn targets(&self) -> &'static [&'static str] {
        &TARGETS
    }

    fn parameters(&self) -> &'static [Parameter] {
        &PARAMETERS
    }

    fn configure(
        &self,
        parameters: &Parameters,
        target: &'static Target,
        _: CutlassVersion,
    ) -> Result<Box<dyn Configured>, Vec<Broken>> {
        let configuration = settings::read(parameters)?;
        rules::check(&configuration, target)?;
        Ok(Box::new(Quantizer { configuration, target }))
    }
}

/// A configured block-quantization kernel.
#[derive(Clone, Debug)]
struct Quantizer {
    configuration: Configuration,
    target: &'static Target,
}

impl Configured for Quantizer {
    fn name(&self) -> String {
        self.configuration.name()
    }

    fn source(&self) -> KernelSource {
        BlockQuantizeSpec { target: self.target, configuration: self.configuration }.emit()
    }

    fn takes(&self, problem: &Problem) -> Result<(), String> {
        /// The interface's limit for scales in the padded layout.
        const MOST_SCALE_BYTES: u64 = i32::MAX as u64;
        let Problem { l, m, n, k } = *problem;
        let block = u64::from(self.configuration.format.block());
        if n != 1 {
            return Err(format!("N is {n}, but must be 1: the kernel quantizes M rows of K values"));
        }
        if !k.is_multiple_of(block) {
            return Err(format!("K is {k}, which is not a multiple of {block}"));
        }
        let bytes = m.next_multiple_of(128).checked_mul((k / block).next_multiple_of(4));
        match bytes.and_then(|bytes| bytes.checked_mul(l)) {
            Some(bytes) if bytes <= MOST_SCALE_BYTES => Ok(()),
            _ => Err("the scales take 2^31 bytes or more in the padded layout".to_owned()),
        }
    }

    fn workload(&self, problem: &Problem, seed: u64) -> Result<Workload, String> {
        self.takes(problem)?;
        workload::workload(&self.configuration, problem, seed)
    }

    fn workload_key(&self) -> String {
        let Configuration { input, format, layout, .. } = self.configuration;
        format!("{input} {format} {layout}")
    }

    /// Counts one division per value.
    fn work(&self, problem: &Problem) -> Work {
        let Configuration { input, format, layout, .. } = self.configuration;
        let Problem { l, m, k, .. } = *problem;
        let (values, blocks) = (l * m * k, k / u64::from(format.block()));
        let scales = match layout {
            ScaleLayout::Linear => l * m * blocks,
            ScaleLayout::Blocked => l * m.next_multiple_of(128) * blocks.next_multiple_of(4),
        };
        let global = if format.has_global() { 4 } else { 0 };
        let bytes = values * input.storage_bits() as u64 / 8 + values / 2 + scales + global;
        Work { bytes, flops: values }
    }
}
