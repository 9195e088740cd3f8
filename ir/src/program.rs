//! A verified program: a module, and the facts that verification proved about it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use crate::entities::{Entity, Op, Value};
use crate::module::Module;
use crate::types::{Dim, ElementType, ScaleLayout};

/// A module that passed [`crate::verify`]. Only the verifier creates one, and it is immutable, so later stages index
/// by its entities without checking again.
#[derive(Clone, Debug)]
pub struct Program {
    module: Module,
    facts: Facts,
}

impl Program {
    pub(crate) fn new(module: Module, facts: Facts) -> Program {
        Program { module, facts }
    }

    /// The verified module.
    pub fn module(&self) -> &Module {
        &self.module
    }

    /// The facts that verification proved.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }
}

/// Facts about a verified module: uses, outputs, names, and the extents of each `scaled_mma`.
#[derive(Clone, Debug)]
pub struct Facts {
    /// `users[user_starts[v]..user_starts[v + 1]]` are the ops that use value v.
    user_starts: Vec<u32>,
    users: Vec<Op>,
    outputs: Vec<bool>,
    matmuls: BTreeMap<Op, Matmul>,
    names: HashMap<String, Value>,
}

impl Facts {
    /// Collects the facts of a module that passed every check.
    pub(crate) fn collect(module: &Module, matmuls: BTreeMap<Op, Matmul>) -> Facts {
        let mut user_starts = vec![0u32; module.values.len() + 1];
        for operation in module.ops.values() {
            for operand in &operation.operands {
                user_starts[operand.index() + 1] += 1;
            }
        }
        for index in 1..user_starts.len() {
            user_starts[index] += user_starts[index - 1];
        }
        let mut next = user_starts.clone();
        let mut users = vec![Op::from_index(0); user_starts[module.values.len()] as usize];
        for (op, operation) in module.ops.iter() {
            for operand in &operation.operands {
                let slot = &mut next[operand.index()];
                users[*slot as usize] = op;
                *slot += 1;
            }
        }
        let mut outputs = vec![false; module.values.len()];
        for output in &module.outputs {
            outputs[output.index()] = true;
        }
        let names = module.values.iter().map(|(value, data)| (data.name.clone(), value)).collect();
        Facts { user_starts, users, outputs, matmuls, names }
    }

    /// The ops that use a value, in program order. An op that uses it twice is listed twice.
    pub fn users(&self, value: Value) -> &[Op] {
        let start = self.user_starts[value.index()] as usize;
        let end = self.user_starts[value.index() + 1] as usize;
        &self.users[start..end]
    }

    /// Returns true if the value is an output of the program.
    pub fn is_output(&self, value: Value) -> bool {
        self.outputs[value.index()]
    }

    /// Every `scaled_mma` with its extents and format, in program order.
    pub fn matmuls(&self) -> impl ExactSizeIterator<Item = (Op, &Matmul)> {
        self.matmuls.iter().map(|(op, matmul)| (*op, matmul))
    }

    /// The extents and format of a `scaled_mma`; `None` for any other op.
    pub fn matmul(&self, op: Op) -> Option<&Matmul> {
        self.matmuls.get(&op)
    }

    /// The value with this name (without the `%`).
    pub fn value_named(&self, name: &str) -> Option<Value> {
        self.names.get(name).copied()
    }
}

/// The extents and format of one `scaled_mma`, `grouped_scaled_mma` or `masked_scaled_mma`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matmul {
    /// L: the product of the leading extents of A.
    pub batch: Dim,
    /// M: rows of A and D.
    pub m: Dim,
    /// N: rows of B, columns of D.
    pub n: Dim,
    /// K: columns of A and B.
    pub k: Dim,
    /// True if B has the leading extents of A. Otherwise B has rank 2 and is shared by all L matrices.
    pub b_batched: bool,
    /// E, the number of groups of rows, each with a matrix of B of its own; absent in a `scaled_mma`. L is then 1.
    pub groups: Option<Dim>,
    /// True for a `masked_scaled_mma`. M then counts the rows of the matrices of all groups.
    pub masked: bool,
    /// The matrices and the rows of an sfa that is blocked for each group: one matrix of P rows with whole tiles for each,
    /// or a matrix for each. `None` in a `scaled_mma`, and beside linear scales.
    pub group_scales: Option<[Dim; 2]>,
    /// The format of operands and scales.
    pub format: BlockFormat,
    /// The layout of A's scales; `None` for a 16-bit A, which has none.
    pub sfa_layout: Option<ScaleLayout>,
    /// The layout of B's scales.
    pub sfb_layout: ScaleLayout,
}

/// The element types of a block-scaled multiplication. If A is `f16` or `bf16`, it has no scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockFormat {
    /// Element type of A.
    pub a: ElementType,
    /// Element type of B.
    pub b: ElementType,
    /// Element type of the scales.
    pub scale: ElementType,
    /// Elements of K per scale.
    pub block: u32,
}

impl BlockFormat {
    /// FP4 with an unsigned e4m3 scale per 16 elements.
    pub const NVFP4: BlockFormat = BlockFormat {
        a: ElementType::F4E2M1FN,
        b: ElementType::F4E2M1FN,
        scale: ElementType::F8E4M3FN,
        block: 16,
    };

    /// FP4 with a power-of-two scale per 32 elements.
    pub const MXFP4: BlockFormat = BlockFormat {
        a: ElementType::F4E2M1FN,
        b: ElementType::F4E2M1FN,
        scale: ElementType::F8E8M0FNU,
        block: 32,
    };

    /// The format of a weight-only multiplication: an unscaled A of this type beside the B of `self`.
    pub const fn weight_only(self, a: ElementType) -> BlockFormat {
        BlockFormat { a, ..self }
    }

    /// Returns true if A has no scales.
    pub fn is_weight_only(self) -> bool {
        self.a.is_half()
    }

    /// Returns true for the standard formats: NVFP4, and the MX formats (`f8E8M0FNU` scales per 32 elements, FP4,
    /// FP6 or FP8 operands in any combination), each also with a 16-bit A.
    pub fn is_standard(self) -> bool {
        let a = if self.is_weight_only() { self.b } else { self.a };
        let nvfp4 = BlockFormat { a, ..self } == BlockFormat::NVFP4;
        let mx = self.scale == ElementType::F8E8M0FNU && self.block == 32;
        nvfp4 || (mx && a.is_block_data() && self.b.is_block_data())
    }

    /// The name of an operand's format: `nvfp4`, `mxfp4`, `mxfp6` (e2m3), `mxfp6_e3m2`, `mxfp8` (e4m3), `mxfp8_e5m2`, or
    /// the name of a 16-bit type. `None` if it has none.
    fn operand_name(self, element: ElementType) -> Option<&'static str> {
        match (element, self.scale, self.block) {
            (ElementType::F16 | ElementType::BF16, ..) => Some(element.name()),
            (ElementType::F4E2M1FN, ElementType::F8E4M3FN, 16) => Some("nvfp4"),
            (ElementType::F4E2M1FN, ElementType::F8E8M0FNU, 32) => Some("mxfp4"),
            (ElementType::F6E2M3FN, ElementType::F8E8M0FNU, 32) => Some("mxfp6"),
            (ElementType::F6E3M2FN, ElementType::F8E8M0FNU, 32) => Some("mxfp6_e3m2"),
            (ElementType::F8E4M3FN, ElementType::F8E8M0FNU, 32) => Some("mxfp8"),
            (ElementType::F8E5M2, ElementType::F8E8M0FNU, 32) => Some("mxfp8_e5m2"),
            _ => None,
        }
    }
}

impl fmt::Display for BlockFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match [self.a, self.b].map(|element| self.operand_name(element)) {
            [Some(a), Some(b)] if a == b => f.write_str(a),
            [Some(a), Some(b)] => write!(f, "{a} x {b}"),
            _ => write!(f, "{} x {} with {} per {}", self.a, self.b, self.scale, self.block),
        }
    }
}
