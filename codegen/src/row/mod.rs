//! Row kernels: elementwise steps and reductions along the last axis, in one kernel that reads each row once.

mod functions;
mod interface;
mod operands;
mod outputs;
mod phases;
mod statements;
mod template;
mod values;

use fourfold_scheduler::{RowOutputKind, RowProgram, RowShape, RowStepKind};

pub use self::functions::row_functions;
pub(crate) use self::template::reduction_functions;
pub use self::template::{element_functions, nvfp4_functions};
use crate::source::{Interface, KernelSource};
use crate::targets::Target;

/// The parameters of a row kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Threads per CTA.
    pub threads: u32,
    /// Threads per row, a power of two of at least 32.
    pub row_threads: u32,
    /// Consecutive elements per thread and turn: a power of two from 8 to 32, and a multiple of the elements per
    /// scale of every quantized output.
    pub values: u32,
    /// Turns per thread whose elements stay in registers.
    pub turns: u32,
    /// CTAs that an SM holds at once.
    pub ctas: u32,
    /// True if rows that registers do not hold are kept in shared memory. A CTA then has one row.
    pub is_stored: bool,
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
    /// The default parameters for rows of `columns` elements, and for rows of 8192 if their number is not fixed.
    ///
    /// A thread holds one block of values if the program quantizes, and otherwise 16 bytes of a 16-bit type. As many
    /// threads share a row as it has such groups, up to 512 or 1024; longer rows take up to four turns. The numbers are
    /// the fastest measured on one H100, see `docs/lab/rows/README.md`.
    ///
    /// Rows of other lengths stay in shared memory if the program reads them several times (`Configuration::is_stored`).
    pub fn usual(program: &RowProgram, columns: Option<u64>, target: &Target) -> Configuration {
        let blocks = program.outputs.iter().filter_map(|output| match output.kind {
            RowOutputKind::Quantized { format, .. } => Some(format.block),
            RowOutputKind::Value => None,
        });
        let block = blocks.max();
        let values = block.unwrap_or(8);
        let groups = columns.unwrap_or(8192).div_ceil(u64::from(values)).clamp(32, 1 << 16);
        let groups = groups.next_power_of_two() as u32;
        let matrices = program.operands.iter().filter(|operand| operand.shape == RowShape::Matrix);
        let bytes: u32 = matrices.map(|operand| values * operand.element.storage_bits() as u32 / 8).sum();
        let stored = phases::stored(program, template::keeps_shared(target));
        let stored = stored.into_iter().map(|operand| &program.operands[operand]);
        let bits: u64 = stored.map(|operand| operand.element.storage_bits() as u64).sum();
        let has_reductions = program.steps.iter().any(|step| matches!(step.kind, RowStepKind::Reduce(_)));
        let (row_threads, turns, ctas) = match block {
            Some(_) => quantizing(groups, bytes, has_reductions),
            None => {
                // A turn and its successor stay in at most 64 registers, as do two turns of kept 16-bit results.
                let keeps = !phases::kept(program).is_empty();
                let is_small = bytes <= 16;
                let limit = if !keeps {
                    4
                } else if is_small {
                    2
                } else {
                    1
                };
                let most = (128 / bytes.max(16)).clamp(1, limit).next_power_of_two();
                match has_reductions {
                    true => plain(groups, most, keeps, [is_small, is_small || bits == 0]),
                    false => elementwise(groups, most),
                }
            }
        };
        let least = if block.is_none() && ctas == 4 { 256 } else { 128 };
        let threads = row_threads.max(least);
        let is_long = columns.is_none_or(|columns| columns > u64::from(row_threads * values * turns));
        let is_stored = is_long && bits > 0 && threads == row_threads;
        match columns {
            Some(columns) if is_stored => {
                let (threads, turns, ctas) = stored_rows(columns * bits / 8, bytes, block.is_some(), target);
                Configuration { threads, row_threads: threads, values, turns, ctas, is_stored }
            }
            _ => Configuration { threads, row_threads, values, turns, ctas, is_stored },
        }
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

/// The threads per row, turns and CTAs of a program that quantizes rows of so many blocks. Most leave 80 registers per
/// thread, since 64 do not hold the values of two blocks and the next ones.
fn quantizing(groups: u32, bytes: u32, has_reductions: bool) -> (u32, u32, u32) {
    match groups {
        _ if !has_reductions => (groups.min(128), 1, 6),
        0..=128 => (groups, 1, 8),
        256 => (256, 1, 3),
        512 if bytes <= 32 => (256, 2, 3),
        512 => (512, 1, 2),
        1024 if bytes <= 32 => (512, 2, 1),
        _ => (1024, 1, 1),
    }
}

/// The threads, turns and CTAs of rows that take `row_bytes` of shared memory.
///
/// While one CTA of an SM computes, the copies of others are in flight. Three CTAs of up to 75 KB fit an SM. If half of
/// their copies are in flight, those of softmax over 32768 bf16 elements are 48 KB: two CTAs share a row and copy 32 KB
/// each. Where no cluster shares a long row, fewer CTAs have more threads.
fn stored_rows(row_bytes: u64, bytes: u32, quantizes: bool, target: &Target) -> (u32, u32, u32) {
    let turns = if bytes <= 32 { 2 } else { 1 };
    let fits = u64::from(target.shared_memory) / row_bytes.max(1);
    match (quantizes, target.cluster_ctas > 1 || fits >= 4) {
        (true, true) => (256, 1, 3),
        (true, false) => (512, 1, 1),
        (false, true) => (256, turns, 4),
        (false, false) if fits >= 2 => (512, turns, 2),
        (false, false) => (1024, 1, 1),
    }
}

/// The same of elementwise programs, given the most turns whose elements stay in 64 registers.
fn elementwise(groups: u32, most: u32) -> (u32, u32, u32) {
    let row_threads = groups.min(512);
    (row_threads, (groups / row_threads).min(most), if row_threads == 512 { 2 } else { 4 })
}

/// The same of other programs. `keeps`: results stay in registers. `is_small`: a thread reads 16 bytes per turn.
/// `fits`: rows of 16384 elements do not leave the registers for shared memory.
fn plain(groups: u32, most: u32, keeps: bool, [is_small, fits]: [bool; 2]) -> (u32, u32, u32) {
    match groups {
        0..=128 if keeps && is_small => (groups, 1, 10),
        0..=256 => (groups, 1, 4),
        512 if is_small => (256, 2, 4),
        512 => (512, 1, 2),
        1024 => (512, most.min(2), 2),
        2048 if most == 4 && fits => (512, 4, 2),
        _ if fits => (1024, most.min(2), 1),
        _ => (512, most.min(2), 2),
    }
}

impl RowSpec {
    /// The signature, which equals the plan's.
    pub fn signature(&self) -> String {
        self.program.signature()
    }

    /// The roles of a call: the operands `x0`, .., then the outputs, codes before their scales.
    ///
    /// An operand or output is `[K]`, `[L, M]` or `[L, M, K]` by its shape, and a scalar has one element. An operand
    /// that repeats rows is `[P0, K]` or `[P0]`. Codes of a value of shape row are `[K]`; all others are `[L, M, K]`.
    pub fn interface(&self) -> Interface {
        interface::interface(&self.program)
    }

    /// Emits the source of the kernel. Equal specifications give equal bytes.
    pub fn emit(&self) -> KernelSource {
        template::emit(self)
    }
}
