//! Column kernels: reductions along any axes, and of long tensors to few elements.
//!
//! Extents are numbers of a call, so one kernel serves every reduction of its kind and element type. Sums are in f32, in
//! an order that depends on the extents only.

mod template;

use fourfold_scheduler::{ColumnPlan, ColumnProgram};

use crate::source::{Interface, KernelSource, Role};
use crate::targets::Target;

/// Threads per CTA.
const THREADS: u32 = 256;

/// CTAs that an SM holds at least.
const CTAS: u32 = 4;

/// The specification of one column kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColumnSpec {
    /// The target that the kernel is compiled for.
    pub target: &'static Target,
    /// The reduction.
    pub program: ColumnProgram,
}

impl ColumnSpec {
    /// A readable name, such as `column_sum_bf16`.
    pub fn name(&self) -> String {
        format!("column_{}_{}", self.program.kind, self.program.element)
    }

    /// The tile of a CTA in elements where rows are long: packets of 16 bytes for each lane of a warp, and the least
    /// terms of its eight warps.
    pub fn tile(&self) -> [u32; 3] {
        [1, 32 * 16 / self.bytes(), 64]
    }

    /// The signature, which equals the plan's.
    pub fn signature(&self) -> String {
        self.program.signature()
    }

    /// The roles of a call: the operand `x0` `[O, A, B, C, I]` and the result `y0` `[O, B, I]`.
    pub fn interface(&self) -> Interface {
        let alignment = self.bytes();
        let role = |name: &str, extents: &[&'static str]| Role {
            alignment,
            ..Role::tensor(name, self.program.element, extents)
        };
        Interface {
            extents: ColumnPlan::EXTENTS.to_vec(),
            operands: vec![role("x0", &ColumnPlan::EXTENTS)],
            scalars: Vec::new(),
            outputs: vec![role("y0", &["O", "B", "I"])],
        }
    }

    /// The bytes of an element.
    fn bytes(&self) -> u32 {
        self.program.element.storage_bits() as u32 / 8
    }

    /// Emits the source of the kernel. Equal specifications give equal bytes.
    pub fn emit(&self) -> KernelSource {
        template::emit(self)
    }
}

#[cfg(test)]
mod tests;
