//! Parses and verifies a program text.

use crate::diagnostics::{Diagnostic, Spans};
use crate::program::Program;
use crate::text::{Parsed, parse};
use crate::verify::verify;

/// Parses and verifies a program text.
///
/// # Errors
/// Returns the errors of [`parse`], or those of [`verify`] with their places in the text.
pub fn load(source: &str) -> Result<(Program, Spans), Vec<Diagnostic>> {
    let Parsed { module, spans } = parse(source)?;
    match verify(module) {
        Ok(program) => Ok((program, spans)),
        Err(invalid) => Err(invalid.errors.iter().map(|error| error.diagnostic(Some(&spans))).collect()),
    }
}
