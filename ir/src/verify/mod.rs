//! Proves that a module means something.
//!
//! [`verify`] reports every error, in program order: the module as a whole, inputs, ops, outputs. Every result
//! type is stated in the program, so an op is checked against the types of its operands as they are written, and
//! an error in one op causes none in another. An op that touches a malformed type, or whose operands are not all
//! there, is not checked further. It never panics, whatever the module, and takes time linear in its size.
//!
//! What is checked, by the code of the error:
//!
//! *Names and SSA*
//! - Names are made of letters, digits, `_` and `.` (`bad_name`), and no two values or symbols share one
//!   (`duplicate_name`).
//! - The lists of inputs and results and the definitions of values agree (`input_table`, `result_table`).
//! - Operands exist (`unknown_operand`) and are inputs or results of earlier ops (`use_before_definition`).
//! - Symbols exist (`unknown_symbol`), and each that is used occurs in some input's shape (`unbound_symbol`).
//!
//! *Arity and attributes*
//! - An op has the operands and results that it takes (`operand_count`, `result_count`, `beta_without_c`).
//! - A block is 16 or 32 (`block_size`). MX quantization says how it rounds scales and has no per-tensor scale,
//!   NVFP4 the reverse (`scale_rounding_missing`, `scale_rounding_unexpected`, `global_scale_missing`,
//!   `global_scale_unexpected`).
//! - Axes exist (`axis_out_of_range`), ascend (`axes_order`), and there is one to reduce (`no_axes`); a permutation
//!   is one (`permutation`). Bounds and eps are usable numbers (`clamp_bounds`, `eps`).
//! - A constant has a fixed shape (`constant_shape`) of a bearable size (`constant_too_large`), as many values as
//!   elements (`constant_count`), and each is one of its type (`constant_value`).
//!
//! *Types by themselves*
//! - A rank is at most 8 (`rank_too_large`), an extent the product of at most 32 symbols (`too_many_symbols`) and
//!   a constant of at most 2^40, a tensor's constants have a product of at most 2^46, zeros not counted
//!   (`extent_too_large`). So the constant of a product of a type's extents always fits 64 bits.
//! - The last extent of FP4 is even (`packed_extent`). Only scale types of rank two or more have a layout
//!   (`layout_on_type`), and `f8E8M0FNU` always has one (`scale_without_layout`).
//!
//! *Element types*
//! - Operands have types that the op takes (`operand_element`, `scalar_operand`) and that go together
//!   (`element_mismatch`, `format`); the result has the type that follows (`result_element`) or one that the op
//!   can give (`target_element`).
//!
//! *Shapes*
//! - Operands have the axes that the op needs (`operand_rank`) and the shapes that follow from each other
//!   (`operand_shape`, `k_mismatch`, `batch_mismatch`, `not_broadcastable`, `element_count`), K consists of whole
//!   blocks for every value of its symbols (`block_multiple`), and the result has the shape that follows
//!   (`result_shape`).
//!
//! *Scale tensors*
//! - They go only where an op takes them (`unexpected_scales`, `blocked_convert`), nothing else goes there
//!   (`expected_scales`), and only ops that make them give them (`result_layout`). One scale stands for each block
//!   (`scale_shape`), and a change of layout changes it (`swizzle_nothing`).
//!
//! *Outputs*
//! - There is one (`no_outputs`), each exists (`unknown_output`) and none is repeated (`duplicate_output`). An
//!   output may be an input.
//!
//! What is not checked: whether an op is of any use, what only run time knows (that extents fit the symbols, that
//! `N` is not empty, what the bytes of a scale say), whether the inputs' shapes *determine* every symbol (`[B*S]`
//! alone determines neither; [`crate::bind`] says so), and whether any target takes the program.

mod error;
mod structure;
#[cfg(test)]
mod tests;

pub use error::VerifyErrorKind;

use crate::diagnostics::{Diagnostic, Place, Spans};
use crate::module::Module;
use crate::program::{Facts, Program};

/// A module that was refused, with every reason.
#[derive(Clone, Debug)]
pub struct Invalid {
    /// The module, unchanged.
    pub module: Module,
    /// At least one error, in program order.
    pub errors: Vec<VerifyError>,
}

/// One thing that is wrong with a module.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyError {
    /// What it is about.
    pub place: Place,
    /// What is wrong.
    pub kind: VerifyErrorKind,
    /// The op as text, when it is about an op.
    pub op_text: Option<String>,
}

impl VerifyError {
    /// The stable code of what is wrong.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// The error for people, with its place in the source when there is one.
    pub fn diagnostic(&self, spans: Option<&Spans>) -> Diagnostic {
        Diagnostic {
            code: self.code(),
            message: self.kind.to_string(),
            span: spans.and_then(|spans| spans.of(self.place)),
            op: self.op_text.clone(),
            notes: vec![self.kind.note().to_owned()],
        }
    }
}

/// Checks a module; the module's documentation in `verify/mod.rs` lists what is checked.
///
/// # Errors
/// The module itself with everything that is wrong with it.
pub fn verify(module: Module) -> Result<Program, Box<Invalid>> {
    let checked = structure::check(&module);
    if !checked.errors.is_empty() {
        return Err(Box::new(Invalid { module, errors: checked.errors }));
    }
    let facts = Facts::collect(&module, checked.matmuls);
    Ok(Program::new(module, facts))
}
