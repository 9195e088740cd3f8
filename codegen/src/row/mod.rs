//! Row kernels: elementwise steps and reductions along the last axis, in one kernel that reads each row once.

mod body;
mod template;

use fourfold_ir::ScaleLayout;
use fourfold_scheduler::{RowOutputKind, RowProgram, RowShape};

use crate::source::{Interface, KernelSource, Role};
use crate::targets::Target;

/// The parameters of a row kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Configuration {
    /// Threads per CTA.
    pub threads: u32,
    /// Threads per row, a power of two of at least 32.
    pub row_threads: u32,
    /// Consecutive elements per thread and turn.
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
    pub fn interface(&self) -> Interface {
        let operands = self.program.operands.iter().enumerate().map(|(index, operand)| {
            let (extents, alignment): (&[&'static str], u32) = match operand.shape {
                RowShape::Scalar => (&[], 1),
                RowShape::Row => (&["K"], 1),
                RowShape::Column => (&["L", "M"], 1),
                RowShape::Matrix | RowShape::Scales { .. } => (&["L", "M", "K"], 1),
            };
            let alignment = alignment.max(operand.element.storage_bits() as u32 / 8);
            Role { alignment, ..Role::tensor(&format!("x{index}"), operand.element, extents) }
        });
        let mut outputs = Vec::new();
        for output in &self.program.outputs {
            let name = |outputs: &Vec<Role>| format!("y{}", outputs.len());
            match output.kind {
                RowOutputKind::Value => {
                    let element = self.program.element(output.of);
                    let extents: &[&'static str] = if body::is_element(&self.program, output.of) {
                        &["L", "M", "K"]
                    } else {
                        &["L", "M"]
                    };
                    let alignment = (element.storage_bits() as u32 / 8).max(1);
                    outputs.push(Role { alignment, ..Role::tensor(&name(&outputs), element, extents) });
                }
                RowOutputKind::Quantized { format, .. } => {
                    outputs.push(Role::tensor(&name(&outputs), format.element, &["L", "M", "K"]));
                    outputs.push(Role::padded_scales(&name(&outputs), format.scale));
                }
            }
        }
        Interface { extents: vec!["L", "M", "K"], operands: operands.collect(), scalars: Vec::new(), outputs }
    }

    /// Returns whether rows must consist of whole vectors: codes of several elements share bytes or scales.
    fn needs_vectors(&self) -> bool {
        let is_quantized = |kind: RowOutputKind| matches!(kind, RowOutputKind::Quantized { .. });
        self.program.outputs.iter().any(|output| is_quantized(output.kind))
    }

    /// Returns whether an output has blocked scales.
    fn is_blocked(&self) -> bool {
        self.program.outputs.iter().any(|output| {
            matches!(output.kind, RowOutputKind::Quantized { layout: ScaleLayout::Blocked, .. })
        })
    }

    /// Emits the source of the kernel. Equal specifications give equal bytes.
    pub fn emit(&self) -> KernelSource {
        template::emit(self)
    }
}
