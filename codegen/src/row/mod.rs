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
pub use self::template::{element_functions, fp6_functions, nvfp4_functions};
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
    /// True if a CTA computes row after row, and reads the next one while it computes one. Otherwise other CTAs of the
    /// SM read their rows meanwhile, which takes fewer registers.
    pub is_persistent: bool,
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
    /// In a turn, a thread takes one block of values if the program quantizes, and otherwise 16 bytes of a 16-bit type.
    /// Sixteen elements of FP6 are whole words, and take the registers of 32 bytes of a 16-bit type.
    /// Up to 1024 threads share a row, with up to four turns, or eight for sums of 65536 elements. The numbers are the
    /// fastest measured on an H100 or H200, see `docs/lab/rows/README.md`.
    ///
    /// Rows of other lengths stay in shared memory if the program reads them several times (`Configuration::is_stored`).
    pub fn usual(program: &RowProgram, columns: Option<u64>, target: &Target) -> Configuration {
        let blocks = program.outputs.iter().filter_map(|output| match output.kind {
            RowOutputKind::Quantized { format, .. } => Some(format.block),
            RowOutputKind::Value => None,
        });
        let block = blocks.max();
        let (values, least_bytes) = match block {
            Some(block) => (block, 0),
            None if values::has_rows_of_fp6(program) => (16, 32),
            None => (8, 0),
        };
        let groups = columns.unwrap_or(8192).div_ceil(u64::from(values)).clamp(32, 1 << 16);
        let groups = groups.next_power_of_two() as u32;
        let matrices = program.operands.iter().filter(|operand| operand.shape == RowShape::Matrix);
        let bytes: u32 = matrices.map(|operand| values * operand.element.storage_bits() as u32 / 8).sum();
        let bytes = bytes.max(least_bytes);
        let stored = phases::stored(program).into_iter().map(|operand| &program.operands[operand]);
        let bits: u64 = stored.map(|operand| operand.element.storage_bits() as u64).sum();
        let has_reductions = program.steps.iter().any(|step| matches!(step.kind, RowStepKind::Reduce(_)));
        let rows = match block {
            Some(_) => quantizing(groups, bytes, has_reductions),
            None if has_reductions => Reducing::of(program, bytes, bits == 0).rows(groups),
            None => elementwise(groups, bytes),
        };
        let Rows { row_threads, turns, ctas, is_persistent } = rows;
        let least = if block.is_none() && (4..=6).contains(&ctas) { 256 } else { 128 };
        let threads = row_threads.max(least);
        let is_long = columns.is_none_or(|columns| columns > u64::from(row_threads * values * turns));
        let is_stored = is_long && bits > 0 && threads == row_threads;
        let usual = Configuration { threads, row_threads, values, turns, ctas, is_persistent, is_stored };
        match columns {
            Some(columns) if is_stored => {
                let (threads, turns, ctas) = stored_rows(columns * bits / 8, bytes, block.is_some(), target);
                Configuration { threads, row_threads: threads, turns, ctas, ..usual }
            }
            _ => usual,
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

/// Threads per row, turns, CTAs per SM, and `Configuration::is_persistent`.
struct Rows {
    row_threads: u32,
    turns: u32,
    ctas: u32,
    is_persistent: bool,
}

/// The rows of a program that quantizes, of so many blocks. Most leave 80 registers per thread or more, since 64 do not
/// hold the values of two blocks and the next ones.
fn quantizing(groups: u32, bytes: u32, has_reductions: bool) -> Rows {
    let (row_threads, turns, ctas) = match groups {
        _ if !has_reductions => (groups.min(128), 1, 6),
        0..=128 => (groups, 1, 8),
        256 => (256, 1, 3),
        512 if bytes <= 32 => (256, 2, 2),
        512 => (512, 1, 2),
        1024 if bytes <= 32 => (512, 2, 1),
        _ => (1024, 1, 1),
    };
    Rows { row_threads, turns, ctas, is_persistent: true }
}

/// The threads, turns and CTAs of rows that take `row_bytes` of shared memory.
///
/// While one CTA of an SM computes, the copies of others are in flight. Three CTAs of up to 75 KB fit an SM. Where no
/// cluster shares a long row, fewer CTAs have more threads. The numbers are measured like the others.
fn stored_rows(row_bytes: u64, bytes: u32, quantizes: bool, target: &Target) -> (u32, u32, u32) {
    let turns = if bytes <= 32 { 2 } else { 1 };
    let fits = u64::from(target.shared_memory) / row_bytes.max(1);
    match (quantizes, target.cluster_ctas > 1 || fits >= 4) {
        (true, true) => (256, 1, 3),
        (true, false) => (512, 1, 1),
        (false, true) if bytes <= 16 && fits >= 3 => (256, 4, 3),
        (false, true) if bytes <= 16 => (512, 1, 3),
        (false, true) => (256, turns, 4),
        (false, false) if fits >= 2 => (512, turns, 2),
        (false, false) => (1024, 1, 1),
    }
}

/// The rows of an elementwise program, whose threads read so many bytes per turn: at most 64 bytes in registers, and as
/// many of the next turn.
fn elementwise(groups: u32, bytes: u32) -> Rows {
    let row_threads = groups.min(512);
    let turns = (groups / row_threads).min(turns_of_bytes(bytes, 4));
    Rows { row_threads, turns, ctas: if row_threads == 512 { 2 } else { 4 }, is_persistent: true }
}

/// A program that reduces and does not quantize.
struct Reducing {
    /// Bytes that a thread reads per turn.
    bytes: u32,
    /// True if results stay in registers.
    keeps: bool,
    /// True if no phase reads an operand again.
    is_read_once: bool,
}

impl Reducing {
    fn of(program: &RowProgram, bytes: u32, is_read_once: bool) -> Reducing {
        Reducing { bytes, keeps: !phases::kept(program).is_empty(), is_read_once }
    }

    fn rows(self, groups: u32) -> Rows {
        // At most 16 bytes per turn.
        let is_small = self.bytes <= 16;
        let most = turns_of_bytes(self.bytes, if self.keeps { 1 } else { 2 });
        let (row_threads, turns, ctas) = match groups {
            0..=64 if self.keeps && is_small => (groups, 1, 10),
            0..=64 => (groups, 1, 4),
            // More turns give a warp more exponentials between barriers.
            128..=512 if self.keeps && is_small => (groups / 4, 4, 8),
            128 | 256 if is_small => (groups / 2, 2, 6),
            128 | 256 => (groups, 1, if self.keeps { 4 } else { 5 }),
            512 if is_small => (256, 2, 6),
            512 if most >= 2 => (256, 2, 4),
            512 => (512, 1, 2),
            1024 if is_small => (256, 4, if self.keeps { 4 } else { 5 }),
            2048 if is_small => (512, 4, 2),
            // A CTA alone on its SM has many loads in flight, those of a whole row where registers hold it.
            8192 if is_small && self.is_read_once && !self.keeps => (1024, 8, 1),
            _ if self.is_read_once => (1024, turns_of_bytes(self.bytes, if self.keeps { 1 } else { 4 }), 1),
            _ => (512, most, 2),
        };
        Rows { row_threads, turns, ctas, is_persistent: groups <= 64 }
    }
}

/// The turns whose bytes, at most 128, and whose successors stay in registers.
fn turns_of_bytes(bytes: u32, most: u32) -> u32 {
    (128 / bytes.max(16)).clamp(1, most).next_power_of_two()
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
