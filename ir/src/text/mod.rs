//! The text form of a program: reading, printing and directives.
//!
//! ```text
//! fir 1
//!
//! ; data: layer.safetensors
//! func @main(%x: tensor<[M, 384], f4E2M1FN>, param %w: tensor<[1536, 384], f4E2M1FN>, ...) {
//!   %acc = scaled_mma %x, %sx, %w, %sw, alpha = %alpha {block = 16} : tensor<[M, 1536], f32>
//!   %q, %s = block_quantize %acc, %g {block = 16} : tensor<[M, 1536], f4E2M1FN>, tensor<[M, 96], f8E4M3FN, linear>
//!   return %q, %s
//! }
//! ```
//!
//! # Grammar
//!
//! ```text
//! program   = "fir" "1" newline function
//! function  = "func" @name "(" [ input { "," input } ] ")" "{" { op } return "}"
//! input     = [ "param" ] %name ":" type
//! op        = %name { "," %name } "=" word [ operands ] [ attributes ] ":" type { "," type }
//! operands  = operand { "," operand }                 operand = %name | word "=" %name
//! attributes = "{" [ word "=" value { "," word "=" value } ] "}"
//! value     = number | word | "[" [ number { "," number } ] "]"
//! return    = "return" [ %name { "," %name } ]
//! type      = "tensor" "<" "[" [ extent { "," extent } ] "]" "," word [ "," ( "linear" | "blocked" ) ] ">"
//! extent    = factor { "*" factor }                   factor  = digits | word
//! number    = [ "-" ] digits [ "." digits ] [ ( "e" | "E" ) [ "+" | "-" ] digits ] | [ "-" ] "inf" | "nan"
//! ```
//!
//! A name is ASCII letters, digits, `_` and `.`; a word is a name that does not begin with a digit. `;` starts a
//! comment that ends with the line. Apart from that and the first line, line ends are spaces. An op parses without
//! its mnemonic being known; [`crate::OpKind::from_text`] then says what it is, so a new op needs no grammar.
//! Positional operands come before named ones; named operands and attributes may stand in any order.
//!
//! # Printing
//!
//! The printed form is canonical: attributes sorted by name, named operands in the op's order, the factors of an
//! extent in the order in which the text first mentions their symbols. Printing, parsing and printing again gives
//! the same text, and parsing a printed program gives the same module up to the numbering of symbols and values.
//!
//! # Errors
//!
//! Every error is a [`Diagnostic`] with one of these codes. After an error the parser goes on with the next
//! statement; it stops after 20 errors.
//!
//! | code | meaning |
//! |---|---|
//! | `syntax` | the text does not follow the grammar |
//! | `bad_version` | the first line is not `fir 1` |
//! | `unknown_value` | an operand or output has no definition before it |
//! | `duplicate_value` | two values have one name |
//! | `unknown_op` | no op has this mnemonic |
//! | `bad_attribute` | an attribute is unknown, missing, repeated or of the wrong form |
//! | `bad_operand` | a named operand is unknown, repeated or before a positional one |
//! | `bad_number` | a number is malformed or too large |
//! | `bad_type` | an element type, layout or extent is not one |
//! | `result_count` | an op has more results than result types, or fewer |
//! | `too_large` | the text is longer than 4 GiB |

mod directives;
mod errors;
mod lexer;
mod names;
mod parser;
mod print;
mod types;

pub use directives::{Comment, Directive, comments, directives};
pub use print::{print, print_op};

use crate::diagnostics::{Diagnostic, Spans};
use crate::module::Module;

/// The version of the text form that this crate reads and writes.
pub const VERSION: &str = "1";

/// A program that was read from text; [`crate::verify`] says whether it means something.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The program.
    pub module: Module,
    /// Where its parts stand in the text.
    pub spans: Spans,
}

/// Reads a program. Takes time linear in the length of the text.
///
/// # Errors
/// What is wrong with the text, in the order of the text; at most 20 errors.
pub fn parse(source: &str) -> Result<Parsed, Vec<Diagnostic>> {
    parser::parse(source, u32::MAX as usize)
}
