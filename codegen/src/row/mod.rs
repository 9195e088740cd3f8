//! Row kernels: elementwise steps and reductions along the last axis, in one kernel that reads each row once.

mod functions;
mod interface;
mod operands;
mod outputs;
mod phases;
mod statements;
mod template;
mod values;

use fourfold_scheduler::{RowOutputKind, RowProgram, RowShape};

pub use self::functions::row_functions;
pub use self::template::element_functions;
use crate::source::{Interface, KernelSource};
use crate::targets::Target;

/// The parameters of a row kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Threads per CTA.
    pub threads: u32,
    /// Threads per row, a power of two of at least 32.
    pub row_threads: u32,
    /// Consecutive elements per thread and turn: a power of two from 8 to 32, and a multiple of the elements per scale of
    /// every quantized output.
    pub values: u32,
    /// Turns per thread whose elements stay in registers.
    pub turns: u32,
    /// CTAs that an SM holds at once.
    pub ctas: u32,
}

/// The specification of one row kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RowSpec {
    /// The target that the kernel is compiled for.
    pub target: &'static Target,
    /// The kernel's parameters.
    pub configuration: Configuration,
    /// The computation.
    pub program: RowProgram,
}

impl Configuration {
    /// The default parameters for rows of `columns` elements; `None` if their number is not fixed.
    ///
    /// A thread holds one block of values if the program quantizes, and otherwise 16 bytes of a 16-bit type. As many
    /// threads share a row as it has such groups, up to 512; longer rows take up to four turns.
    pub fn usual(program: &RowProgram, columns: Option<u64>) -> Configuration {
        let blocks = program.outputs.iter().filter_map(|output| match output.kind {
            RowOutputKind::Quantized { format, .. } => Some(format.block),
            RowOutputKind::Value => None,
        });
        let values = blocks.max().unwrap_or(8);
        let groups = columns.map_or(u64::MAX, |columns| columns.div_ceil(u64::from(values)).max(1));
        let row_threads = groups.min(512).next_power_of_two().max(32) as u32;
        let bytes: u32 = program
            .operands
            .iter()
            .filter(|operand| operand.shape == RowShape::Matrix)
            .map(|operand| values * operand.element.storage_bits() as u32 / 8)
            .sum();
        // A turn and its successor stay in at most 64 registers.
        let most = (128 / bytes.max(16)).clamp(1, 4).next_power_of_two();
        let turns = groups.div_ceil(u64::from(row_threads)).min(u64::from(most)).next_power_of_two() as u32;
        let threads = row_threads.max(256);
        Configuration { threads, row_threads, values, turns, ctas: if threads == 512 { 2 } else { 4 } }
    }

    /// A readable name, such as `row_t512r512v16x1`.
    pub fn name(&self) -> String {
        let Configuration { threads, row_threads, values, turns, .. } = self;
        format!("row_t{threads}r{row_threads}v{values}x{turns}")
    }

    /// The tile of a CTA in elements: rows, 1, and elements of a row.
    pub fn tile(&self) -> [u32; 3] {
        [self.threads / self.row_threads, 1, self.row_threads * self.values * self.turns]
    }
}

impl RowSpec {
    /// The signature, which equals the plan's.
    pub fn signature(&self) -> String {
        self.program.signature()
    }

    /// The roles of a call: the operands `x0`, .., then the outputs, codes before their scales.
    ///
    /// An operand or output is `[K]`, `[L, M]` or `[L, M, K]` by its shape, and a scalar has one element. An operand that
    /// repeats rows is `[P0, K]` or `[P0]`. Codes of a value of shape row are `[K]`; all other codes are `[L, M, K]`.
    pub fn interface(&self) -> Interface {
        interface::interface(&self.program)
    }

    /// Emits the source of the kernel. Equal specifications give equal bytes.
    pub fn emit(&self) -> KernelSource {
        template::emit(self)
    }
}
