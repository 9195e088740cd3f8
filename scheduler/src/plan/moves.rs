//! The plan of a move: elements copied bit for bit to other places, the ends of padded groups, or routed rows.

use fourfold_ir::{Dim, ElementType, Op, ScaleLayout, Value};

use super::Constraint;

/// The plan of a kernel that copies elements bit for bit: `transpose`, `broadcast`, `slice`, `pad`, `concat`, `gather`,
/// `swizzle_scales` or `group_scales`. Also that of `padded_ends`, `top_k`, `group_rows` or `scatter_add`, which compute
/// and have one kernel each.
#[derive(Clone, Debug, PartialEq)]
pub struct MovePlan {
    /// The op.
    pub op: Op,
    /// The copy, without names and extents.
    pub program: MoveProgram,
    /// The values that the kernel reads, in the order of the op's operands. Operands without elements are left out.
    pub operands: Vec<Value>,
    /// The values that it writes, in the order of the op's results.
    pub results: Vec<Value>,
    /// The numbers of a call, in the order of [`MoveProgram::extent_names`].
    pub extents: Vec<Dim>,
    /// The conditions that a call must meet before the kernel is launched.
    pub constraints: Vec<Constraint>,
}

/// A copy, independent of names and extents. Equal copies have equal kernels.
///
/// Extents, strides and offsets are numbers of a call, so one kernel serves every op of its kind. Units are elements
/// of `bits` bits, or bytes where the program states no width. FP4 is moved in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveProgram {
    /// `transpose`, `broadcast` and `slice` to a result `[D0, .., D5]`.
    ///
    /// Its unit at index `[i0, .., i5]` is the operand's unit O0 + O1 + O2 + Σ i · S. The operand has E units. Adjacent
    /// axes that move together are one axis, and extents of 1 precede them.
    Strided {
        /// The bits of a unit: 8, 16 or 32.
        bits: u32,
    },
    /// `pad` of an operand `[E0, .., E4]` to `[D0, .., D4]`.
    ///
    /// The result's unit at index i is the operand's at i - P, or F where that is outside the operand.
    Pad {
        /// The bits of a unit: 8, 16 or 32.
        bits: u32,
    },
    /// `concat` of operands `[O, R0]`, `[O, R1]` and so on to `[O, R]`, with R their sum.
    Concat {
        /// The number of operands.
        operands: u32,
    },
    /// `gather` of x `[O, A, I]` at indices `[C]` to `[O, C, I]`. An index outside 0..A is a fault of the launch.
    Gather,
    /// `swizzle_scales` of scales `[L, M, B]`, from row-major to blocked or back. Padding becomes zero.
    Swizzle {
        /// The layout of the result. Linear includes numbers without a layout.
        to: ScaleLayout,
    },
    /// `padded_ends` of ends `[E]`, with groups padded to a multiple of R rows.
    ///
    /// An end below the one before it is replaced by that one. A padded end is at most 2^31 - 1.
    PaddedEnds,
    /// `group_scales` of scales `[M, B]`, ends `[E]` and sfa_ends `[E]` to blocked scales `[P, B]`.
    ///
    /// Rows that hold no scales become zero. Wrong ends give wrong scales, but no access is out of bounds.
    GroupScales,
    /// `group_rows` of M ids in rows of C, for E groups.
    ///
    /// An id outside of 0..E is clamped to the groups.
    GroupRows,
    /// `scatter_add` of x `[M, C]` at indices `[M]` to `[N, C]`.
    ///
    /// A row of x whose index is outside of 0..N is left out.
    ScatterAdd {
        /// The element type of x.
        from: ElementType,
        /// The element type of the result.
        to: ElementType,
    },
    /// `top_k` of x `[M, C]` to `[M, K]`.
    TopK {
        /// The element type of x.
        element: ElementType,
    },
}

/// The maximum number of axes of a strided move, after adjacent axes that move together are joined.
pub const MAX_MOVE_AXES: usize = 6;

/// The maximum number of offsets of a strided move. Offsets that are multiples of the same symbols are joined.
pub const MAX_MOVE_OFFSETS: usize = 3;

/// The maximum number of axes of a `pad`, after axes without padding are joined to the axis before them.
pub const MAX_PAD_AXES: usize = 5;

/// The maximum number of operands of a `concat` in one kernel.
pub const MAX_MOVE_OPERANDS: usize = 8;

const RESULT: [&str; MAX_MOVE_AXES] = ["D0", "D1", "D2", "D3", "D4", "D5"];
const STRIDES: [&str; MAX_MOVE_AXES] = ["S0", "S1", "S2", "S3", "S4", "S5"];
const OFFSETS: [&str; MAX_MOVE_OFFSETS] = ["O0", "O1", "O2"];
const OPERAND: [&str; MAX_PAD_AXES] = ["E0", "E1", "E2", "E3", "E4"];
const PADDING: [&str; MAX_PAD_AXES] = ["P0", "P1", "P2", "P3", "P4"];
const ROWS: [&str; MAX_MOVE_OPERANDS] = ["R0", "R1", "R2", "R3", "R4", "R5", "R6", "R7"];

impl MoveProgram {
    /// A description of the copy, which the generated library also reports.
    ///
    /// Examples are `move 16 strided`, `move 8 pad`, `move concat 3`, `move gather`, `move swizzle blocked`,
    /// `move group_scales` and `move scatter_add f32 bf16`.
    pub fn signature(&self) -> String {
        match self {
            MoveProgram::Strided { bits } => format!("move {bits} strided"),
            MoveProgram::Pad { bits } => format!("move {bits} pad"),
            MoveProgram::Concat { operands } => format!("move concat {operands}"),
            MoveProgram::Gather => "move gather".to_owned(),
            MoveProgram::Swizzle { to } => format!("move swizzle {to}"),
            MoveProgram::PaddedEnds => "move padded_ends".to_owned(),
            MoveProgram::GroupScales => "move group_scales".to_owned(),
            MoveProgram::GroupRows => "move group_rows".to_owned(),
            MoveProgram::ScatterAdd { from, to } => format!("move scatter_add {from} {to}"),
            MoveProgram::TopK { element } => format!("move top_k {element}"),
        }
    }

    /// The names of the numbers of a call in the C interface, in order.
    pub fn extent_names(&self) -> Vec<&'static str> {
        match self {
            MoveProgram::Strided { .. } => {
                RESULT.iter().chain(&STRIDES).chain(&OFFSETS).chain(&["E"]).copied().collect()
            }
            MoveProgram::Pad { .. } => RESULT
                .iter()
                .take(MAX_PAD_AXES)
                .chain(&OPERAND)
                .chain(&PADDING)
                .chain(&["F"])
                .copied()
                .collect(),
            MoveProgram::Concat { operands } => {
                ["O", "R"].iter().chain(ROWS.iter().take(*operands as usize)).copied().collect()
            }
            MoveProgram::Gather => vec!["O", "A", "I", "C"],
            MoveProgram::Swizzle { .. } => vec!["L", "M", "B"],
            MoveProgram::PaddedEnds => vec!["E", "R"],
            MoveProgram::GroupScales => vec!["M", "B", "E", "P"],
            MoveProgram::GroupRows => vec!["M", "C", "E"],
            MoveProgram::ScatterAdd { .. } => vec!["M", "N", "C"],
            MoveProgram::TopK { .. } => vec!["M", "C", "K"],
        }
    }
}
