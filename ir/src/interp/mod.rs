//! The meaning of every op, evaluated.

use crate::bind::Bound;
use crate::entities::Op;
use crate::program::Program;
use crate::tensor::Tensor;
use crate::types::SymbolValues;

/// Why a verified program could not be evaluated on these inputs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InterpretError {
    /// Stub.
    #[error("stub")]
    Stub,
}

/// Stub.
pub fn interpret(_program: &Program, _bound: &Bound<'_>) -> Result<Vec<Tensor>, InterpretError> {
    Err(InterpretError::Stub)
}

/// Stub.
pub fn interpret_op(
    _program: &Program,
    _op: Op,
    _operands: &[&Tensor],
    _symbols: &SymbolValues,
) -> Result<Vec<Tensor>, InterpretError> {
    Err(InterpretError::Stub)
}
