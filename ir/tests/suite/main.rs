//! The integration tests of the IR, in one binary, since each binary costs a link.

mod numeric_differential;
mod text;
mod text_errors;
