//! The error of the PTX rewriter.

use std::fmt;

/// A PTX text that [`rewrite_ptx`](crate::rewrite_ptx) reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtxText {
    /// The kernel, for sm_100a or sm_103a.
    Kernel,
    /// The device functions that replace missing instructions, for sm_90a.
    Library,
}

impl fmt::Display for PtxText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PtxText::Kernel => "kernel",
            PtxText::Library => "library",
        })
    }
}

/// A statement of a PTX text that has no known equivalent on sm_90a.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}, line {line}: {problem}: `{statement}`")]
pub struct RewriteError {
    /// The text with the statement.
    pub text: PtxText,
    /// The line of the statement's first word, from 1.
    pub line: usize,
    /// The statement on one line, without comments, truncated to 200 characters.
    pub statement: String,
    /// The unknown part of the statement.
    pub problem: RewriteProblem,
}

/// The unknown part of a PTX statement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RewriteProblem {
    /// The instruction's opcode is not in the list of sm_90a opcodes.
    #[error("unknown instruction {0}")]
    Opcode(String),
    /// The opcode is known, but not this modifier of it.
    #[error("unknown modifier .{modifier} of {opcode}")]
    Modifier {
        /// The first component of the opcode, or the first two.
        opcode: String,
        /// The modifier, without the leading dot.
        modifier: String,
    },
    /// The opcode and its modifiers are known, but not their combination.
    #[error("unsupported form {0}")]
    Form(String),
    /// The instruction is replaced unconditionally, so it cannot have a guard.
    #[error("unsupported guard of {0}")]
    Guard(String),
    /// The instruction has too few or too many operands.
    #[error("{opcode} with {found} operands instead of {expected}")]
    OperandCount {
        /// The full opcode.
        opcode: String,
        /// The supported number of operands.
        expected: usize,
        /// The number of operands of the statement.
        found: usize,
    },
    /// The operand's kind does not fit its position.
    #[error("unsupported operand {0}")]
    Operand(String),
    /// The operand's name begins with `fourfold_`, as the names of inserted registers do.
    #[error("reserved name {0}")]
    Reserved(String),
    /// The directive is unknown, or a word of it that begins with a dot.
    #[error("unknown directive {0}")]
    Directive(String),
    /// The function is external or replaces the instruction, and the library does not define it.
    #[error("the library does not define {0}")]
    Undefined(String),
    /// The library's PTX version, which differs from the kernel's.
    #[error("the library has PTX version {0}")]
    Version(String),
    /// The text is for another target.
    #[error("unsupported target {0}")]
    Target(String),
    /// `.version`, `.target` and `.address_size 64` do not begin the text, each once and in this order.
    #[error("a header other than .version, .target, .address_size 64")]
    Header,
    /// A brace has no partner, or a statement stands on the wrong side of one.
    #[error("misplaced statement or brace")]
    Structure,
    /// A comment, a string or a statement does not end.
    #[error("unterminated text")]
    Unterminated,
}
