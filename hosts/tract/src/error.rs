//! Errors of this crate.

use tract_core::prelude::TractError;

/// The reason that a model was not rewritten, or an op did not run. tract carries it inside its own error, where
/// `TractError::downcast_ref` finds it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Fourfold cannot plan for the target, open the device, or run a segment.
    #[error(transparent)]
    Fourfold(#[from] fourfold::Error),
    /// The operands or attributes of an op do not fit it.
    #[error("{op}: {message}")]
    Op {
        /// The op, such as `ScaledMm`.
        op: &'static str,
        /// The operand or attribute, the value found, and the value expected.
        message: String,
    },
    /// A tensor of tract has no counterpart in Fourfold.
    #[error("{0}")]
    Tensor(String),
    /// tract refused a change of the model.
    #[error("tract refused the change of the model: {0:#}")]
    Tract(TractError),
}

impl Error {
    pub(crate) fn op(op: &'static str, message: impl Into<String>) -> Error {
        Error::Op { op, message: message.into() }
    }
}
