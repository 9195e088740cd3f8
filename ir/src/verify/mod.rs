//! Checks that a module is well-formed and well-typed.
//!
//! [`verify`] reports every error, in program order: the module as a whole, inputs, ops, outputs. The program states
//! every result type, so an op is checked against the stated types of its operands, and an error in one op causes none
//! in another. An op with a malformed type or a missing operand is not checked further. `verify` never panics, and its
//! time is linear in the size of the module.
//!
//! The checks, with the code of each error:
//!
//! *Names and SSA*
//! - Names consist of letters, digits, `_` and `.` (`bad_name`), and are unique among values and among symbols
//!   (`duplicate_name`).
//! - The lists of inputs and results agree with the definitions of values (`input_table`, `result_table`).
//! - Operands exist (`unknown_operand`) and are inputs or results of earlier ops (`use_before_definition`).
//! - Symbols exist (`unknown_symbol`), and each symbol in use occurs in an input's shape (`unbound_symbol`).
//!
//! *Arity and attributes*
//! - The numbers of operands and results fit the op (`operand_count`, `result_count`), and beta comes with c
//!   (`beta_without_c`).
//! - A block is 16 or 32 (`block_size`).
//! - Block-scaled A comes with its scales (`scales_missing`), and a 16-bit A without (`scales_unexpected`).
//! - MX quantization has a scale rounding and no per-tensor scale; NVFP4 has a per-tensor scale and no scale rounding
//!   (`scale_rounding_missing`, `scale_rounding_unexpected`, `formula_unexpected`, `edges_unexpected`,
//!   `global_scale_missing`, `global_scale_unexpected`).
//! - Axes exist (`axis_out_of_range`) and ascend (`axes_order`). A reduction has at least one (`no_axes`), and a
//!   transposition's attribute is a permutation (`permutation`).
//! - Ranges of a slice are within fixed extents (`slice_range`, `slice_symbol`). The extents that `concat` and `pad`
//!   add up have a sum (`extent_sum`), a padding is a value of its type (`pad_value`), and no byte of FP4 is split
//!   (`packed_axis`).
//! - `choose` has an end for each operand but the last, in ascending order (`choose_ends`).
//! - `top_k` takes at least one and at most all elements of a fixed extent (`top_k`), and `group_rows` has groups
//!   (`no_groups`). `padded_ends` has a multiple (`no_multiple`), of 128 for ends of blocked scales
//!   (`padded_multiple`).
//! - A blocked sfa of a `grouped_scaled_mma` has ends of groups (`grouped_layout`), and no other sfa has
//!   (`sfa_ends_unexpected`).
//! - Bounds and eps are usable numbers (`clamp_bounds`, `eps`).
//! - A constant has a fixed shape (`constant_shape`) of at most 2^24 elements (`constant_too_large`), one value per
//!   element (`constant_count`), and values of its type (`constant_value`).
//!
//! *Types by themselves*
//! - A rank is at most 8 (`rank_too_large`).
//! - An extent is a product of at most 32 symbols (`too_many_symbols`) and a constant of at most 2^40. The product of a
//!   type's constants, without zeros, is at most 2^46 (`extent_too_large`). Any product of a type's extents therefore
//!   has a constant that fits 64 bits.
//! - The last extent of FP4 is even, and that of FP6 a multiple of four (`packed_extent`).
//! - Only scale types of rank 2 or more have a layout (`layout_on_type`), and `f8E8M0FNU` always has one
//!   (`scale_without_layout`).
//!
//! *Element types*
//! - The op accepts the operands' types (`operand_element`, `scalar_operand`), also in combination
//!   (`element_mismatch`, `format`).
//! - The result has the type determined by the operands (`result_element`), or one that the op can produce
//!   (`target_element`).
//!
//! *Shapes*
//! - Operands have the rank that the op needs (`operand_rank`), and their shapes agree (`operand_shape`, `k_mismatch`,
//!   `batch_mismatch`, `not_broadcastable`, `element_count`).
//! - K consists of whole blocks for every value of its symbols (`block_multiple`).
//! - The result has the shape determined by the operands (`result_shape`).
//!
//! *Scale tensors*
//! - Scales are used only where an op takes them (`unexpected_scales`, `blocked_convert`), and no other tensor is used
//!   there (`expected_scales`).
//! - Only ops that produce scales have results with a layout (`result_layout`).
//! - There is one scale per block (`scale_shape`), and `swizzle_scales` changes the layout (`swizzle_nothing`).
//!   `group_scales` makes blocked scales of linear ones (`group_scales_layout`).
//!
//! *Outputs*
//! - There is at least one output (`no_outputs`). Each exists (`unknown_output`) and is listed once
//!   (`duplicate_output`). An output may be an input.
//!
//! Not checked:
//! - the usefulness of an op;
//! - run-time facts: extents that fit the symbols, an empty N, the bytes of a scale;
//! - that the inputs' shapes *determine* every symbol ([`crate::bind`] reports that: `[B*S]` alone determines neither);
//! - support of the program by any target.

mod error;
mod structure;
#[cfg(test)]
mod tests;

pub use error::VerifyErrorKind;

use crate::diagnostics::{Diagnostic, Place, Spans};
use crate::module::Module;
use crate::program::{Facts, Program};

/// A module that failed verification, with all errors.
#[derive(Clone, Debug)]
pub struct Invalid {
    /// The module, unchanged.
    pub module: Module,
    /// At least one error, in program order.
    pub errors: Vec<VerifyError>,
}

/// One error in a module.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifyError {
    /// The part of the module that the error is about.
    pub place: Place,
    /// The error.
    pub kind: VerifyErrorKind,
    /// The op as text, for an error about an op.
    pub op_text: Option<String>,
}

impl VerifyError {
    /// The stable code of the error.
    pub fn code(&self) -> &'static str {
        self.kind.code()
    }

    /// Converts the error to a diagnostic, with its place in the source text if `spans` are given.
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

/// Checks that a module is well-formed and well-typed.
///
/// Checks names, SSA form, arity, attributes, types, shapes, scale layouts and outputs. Time is linear in the size of
/// the module. [`VerifyErrorKind`] has one variant per property.
///
/// # Errors
/// Returns the module with all its errors, in program order.
pub fn verify(module: Module) -> Result<Program, Box<Invalid>> {
    let checked = structure::check(&module);
    if !checked.errors.is_empty() {
        return Err(Box::new(Invalid { module, errors: checked.errors }));
    }
    let facts = Facts::collect(&module, checked.matmuls);
    Ok(Program::new(module, facts))
}
