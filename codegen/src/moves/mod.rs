//! Kernels that copy elements bit for bit: transpose, broadcast, slice, pad, concat, gather, swizzled scales and scales
//! of groups. One computes the ends of padded groups. Three route rows: they select the greatest elements, sort ids by
//! group, and add rows.
//!
//! Extents, strides and offsets are numbers of a call. One library chooses the way of each call on the host: packets of
//! up to 16 bytes along the result, or tiles that are transposed in shared memory.

mod template;

use fourfold_ir::{ElementType, ScaleLayout};
use fourfold_scheduler::MoveProgram;

use crate::device_tier::{COLUMNS_OF_SUM, ROWS_OF_TOP_K};
use crate::source::{Interface, KernelSource, Role};
use crate::targets::Target;

/// Threads per CTA.
const THREADS: u32 = 256;

/// Packets per thread.
const TURNS: u32 = 4;

/// Columns of a `scatter_add` per thread.
const COLUMNS: u32 = 8;

// Plans limit grids by these numbers.
const _: () = assert!(COLUMNS_OF_SUM == (THREADS * COLUMNS) as u64 && ROWS_OF_TOP_K == (THREADS / 32) as u64);

/// The specification of one kernel that copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoveSpec {
    /// The target that the kernel is compiled for.
    pub target: &'static Target,
    /// The copy.
    pub program: MoveProgram,
}

impl MoveSpec {
    /// A readable name, such as `move_strided16`, `move_concat3` or `move_swizzle_blocked`.
    pub fn name(&self) -> String {
        match self.program {
            MoveProgram::Strided { bits } => format!("move_strided{bits}"),
            MoveProgram::Pad { bits } => format!("move_pad{bits}"),
            MoveProgram::Concat { operands } => format!("move_concat{operands}"),
            MoveProgram::Gather => "move_gather".to_owned(),
            MoveProgram::Swizzle { to } => format!("move_swizzle_{to}"),
            MoveProgram::PaddedEnds => "move_padded_ends".to_owned(),
            MoveProgram::GroupScales => "move_group_scales".to_owned(),
            MoveProgram::GroupRows => "move_group_rows".to_owned(),
            MoveProgram::ScatterAdd { from, to } => {
                format!("move_scatter_add_{}_{}", float(from).to_lowercase(), float(to).to_lowercase())
            }
            MoveProgram::TopK { element } => format!("move_top_k_{}", float(element).to_lowercase()),
        }
    }

    /// The tile of a CTA in units, as a row: the packets of 16 bytes that it copies, the ends that it computes, the ids
    /// that it sorts at once, or the columns whose sums it computes. A `top_k` has a tile of whole rows.
    pub fn tile(&self) -> [u32; 3] {
        match self.program {
            MoveProgram::PaddedEnds | MoveProgram::GroupRows => [1, 1, THREADS * TURNS],
            MoveProgram::ScatterAdd { .. } => [1, 1, THREADS * COLUMNS],
            MoveProgram::TopK { .. } => [THREADS / 32, 1, 1],
            _ => [1, 1, THREADS * TURNS * 16 / self.unit()],
        }
    }

    /// The signature, which equals the plan's.
    pub fn signature(&self) -> String {
        self.program.signature()
    }

    /// The roles of a call: the operands `x0` and so on, then the results `y0` and so on. The kernel reports every
    /// size in bytes, because most kernels depend on the width of elements only.
    pub fn interface(&self) -> Interface {
        let element = match self.unit() {
            1 => ElementType::I1,
            2 => ElementType::BF16,
            _ => ElementType::F32,
        };
        let role = |name: &str, alignment: u32| Role { alignment, ..Role::padded_scales(name, element) };
        let alignments: Vec<u32> = match self.program {
            MoveProgram::Strided { .. } | MoveProgram::Pad { .. } => vec![self.unit()],
            MoveProgram::Concat { operands } => vec![1; operands as usize],
            MoveProgram::Gather => vec![1, 4],
            MoveProgram::Swizzle { to: ScaleLayout::Blocked } => vec![1],
            MoveProgram::Swizzle { to: ScaleLayout::Linear } => vec![16],
            MoveProgram::PaddedEnds => vec![4],
            MoveProgram::GroupScales => vec![1, 4, 4],
            MoveProgram::GroupRows => vec![4],
            MoveProgram::ScatterAdd { from, .. } => vec![bytes_of(from), 4],
            MoveProgram::TopK { .. } => vec![self.unit()],
        };
        let results: Vec<u32> = match self.program {
            MoveProgram::Strided { .. } | MoveProgram::Pad { .. } | MoveProgram::PaddedEnds => {
                vec![self.unit()]
            }
            MoveProgram::Swizzle { to: ScaleLayout::Blocked } | MoveProgram::GroupScales => vec![16],
            MoveProgram::GroupRows => vec![4, 4, 4],
            MoveProgram::ScatterAdd { to, .. } => vec![bytes_of(to)],
            MoveProgram::TopK { .. } => vec![self.unit(), 4],
            _ => vec![1],
        };
        let named = |prefix: char, alignments: Vec<u32>| {
            let roles = alignments.into_iter().enumerate();
            roles.map(|(at, alignment)| role(&format!("{prefix}{at}"), alignment)).collect()
        };
        Interface {
            extents: self.program.extent_names(),
            operands: named('x', alignments),
            scalars: Vec::new(),
            outputs: named('y', results),
        }
    }

    /// The bytes of a unit.
    fn unit(&self) -> u32 {
        match self.program {
            MoveProgram::Strided { bits } | MoveProgram::Pad { bits } => bits / 8,
            MoveProgram::PaddedEnds | MoveProgram::GroupRows => 4,
            MoveProgram::ScatterAdd { to, .. } => bytes_of(to),
            MoveProgram::TopK { element } => bytes_of(element),
            _ => 1,
        }
    }

    /// Emits the source of the kernel. Equal specifications give equal bytes.
    pub fn emit(&self) -> KernelSource {
        template::emit(self)
    }
}

fn bytes_of(element: ElementType) -> u32 {
    element.storage_bits() as u32 / 8
}

/// The name of a floating-point type in sources.
fn float(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "F16",
        ElementType::BF16 => "BF16",
        _ => "F32",
    }
}

#[cfg(test)]
mod tests;
