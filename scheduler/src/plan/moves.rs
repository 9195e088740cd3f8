//! The plan of a move: elements copied bit for bit to other places.

use fourfold_ir::{Dim, ElementType, Op, ScaleLayout, Value};

use super::Constraint;

/// The plan of a kernel that copies elements bit for bit: `transpose`, `broadcast`, `slice`, `pad`, `concat`, `gather` or
/// `swizzle_scales`.
#[derive(Clone, Debug, PartialEq)]
pub struct MovePlan {
    /// The op.
    pub op: Op,
    /// The copy, without names and extents.
    pub program: MoveProgram,
    /// The values that the kernel reads, in the order of the op's operands.
    pub operands: Vec<Value>,
    /// The value that it writes.
    pub result: Value,
    /// The extents of a call, in the order that [`MoveKind`] states.
    pub extents: Vec<Dim>,
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
}

/// A copy, independent of names and extents. Equal copies have equal kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MoveProgram {
    /// The copy.
    pub kind: MoveKind,
    /// The element type. Kernels depend on its width only, but a signature names it.
    pub element: ElementType,
}

/// The kind of a copy, with the extents of a call. Adjacent axes that move together are one axis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MoveKind {
    /// `transpose`, `broadcast`, `slice` and `pad`. Result axis d reads the operand as `axes[d]` states.
    ///
    /// Extents: those of the result, then those of the operand. Result axes that read no operand axis repeat.
    Strided {
        /// By result axis.
        axes: Vec<MoveAxis>,
        /// The number of operand axes.
        operand_axes: u32,
        /// The bits of elements whose index is outside the operand, as `pad` adds them; `None` if there are none.
        fill: Option<u32>,
    },
    /// `concat` of this many operands `[O, N_i, I]` to `[O, ΣN_i, I]`. Extents: O, I, then N_0, N_1 and so on.
    Concat {
        /// The number of operands.
        operands: u32,
    },
    /// `gather` of x `[O, N, I]` at indices `[C]` to `[O, C, I]`. Extents: O, N, I, C. An index outside 0..N is a fault.
    Gather,
    /// `swizzle_scales` of scales `[L, M, B]`. Extents: L, M, B, with B the scales of one row.
    Swizzle {
        /// The layout of the operand; `None` for numbers without a layout, which are row-major.
        from: Option<ScaleLayout>,
        /// The layout of the result, likewise.
        to: Option<ScaleLayout>,
    },
}

/// The operand index of a result axis: `start + index * step` along `operand`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MoveAxis {
    /// The operand axis; `None` if the result repeats along this axis.
    pub operand: Option<u32>,
    /// The first index, negative where `pad` adds elements before it.
    pub start: i64,
    /// The distance of two indices, at least 1.
    pub step: u64,
}

impl MoveProgram {
    /// A description of the copy, which the generated library also reports.
    ///
    /// Examples are `move bf16 strided 1+0*1,0+0*1 of 2`, `move f32 concat 3`, `move bf16 gather` and
    /// `move f8E4M3FN swizzle linear blocked`.
    pub fn signature(&self) -> String {
        let layout = |layout: Option<ScaleLayout>| layout.map_or("plain", ScaleLayout::name);
        let kind = match &self.kind {
            MoveKind::Strided { axes, operand_axes, fill } => {
                let axis = |axis: &MoveAxis| match axis.operand {
                    Some(of) => format!("{of}{:+}*{}", axis.start, axis.step),
                    None => "repeat".to_owned(),
                };
                let axes: Vec<String> = axes.iter().map(axis).collect();
                let fill = fill.map_or(String::new(), |bits| format!(" fill {bits:08x}"));
                format!("strided {} of {operand_axes}{fill}", axes.join(","))
            }
            MoveKind::Concat { operands } => format!("concat {operands}"),
            MoveKind::Gather => "gather".to_owned(),
            MoveKind::Swizzle { from, to } => format!("swizzle {} {}", layout(*from), layout(*to)),
        };
        format!("move {} {kind}", self.element)
    }

    /// The names of the extents of a call in the C interface, in order.
    pub fn extent_names(&self) -> Vec<&'static str> {
        const RESULT: [&str; MAX_MOVE_AXES] = ["D0", "D1", "D2", "D3", "D4", "D5"];
        const OPERAND: [&str; MAX_MOVE_AXES] = ["E0", "E1", "E2", "E3", "E4", "E5"];
        const JOINED: [&str; MAX_MOVE_OPERANDS] = ["N0", "N1", "N2", "N3", "N4", "N5", "N6", "N7"];
        match &self.kind {
            MoveKind::Strided { axes, operand_axes, .. } => {
                let of_operand = OPERAND.iter().take(*operand_axes as usize);
                RESULT.iter().take(axes.len()).chain(of_operand).copied().collect()
            }
            MoveKind::Concat { operands } => {
                ["O", "I"].iter().chain(JOINED.iter().take(*operands as usize)).copied().collect()
            }
            MoveKind::Gather => vec!["O", "N", "I", "C"],
            MoveKind::Swizzle { .. } => vec!["L", "M", "B"],
        }
    }
}

/// The maximum number of axes of a strided move, after adjacent axes that move together are joined.
pub const MAX_MOVE_AXES: usize = 6;

/// The maximum number of operands of a `concat` in one kernel.
pub const MAX_MOVE_OPERANDS: usize = 8;
