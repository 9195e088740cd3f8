//! Proves that a module means something.

use crate::diagnostics::{Diagnostic, Place, Spans};
use crate::module::Module;
use crate::program::Program;

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

/// What is wrong.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VerifyErrorKind {
    /// Stub.
    #[error("stub")]
    Stub,
}

impl VerifyError {
    /// The error for people, with its place in the source when there is one.
    pub fn diagnostic(&self, _spans: Option<&Spans>) -> Diagnostic {
        Diagnostic { code: "stub", message: String::new(), span: None, op: None, notes: Vec::new() }
    }
}

/// Checks a module.
pub fn verify(module: Module) -> Result<Program, Box<Invalid>> {
    let facts = crate::program::Facts::collect(&module, Default::default());
    Ok(Program::new(module, facts))
}
