//! The text form of a program: parser, printer and directives.
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
//! comment that ends with the line. Elsewhere, except after the first line, a line end is a space. Positional operands
//! precede named ones; named operands and attributes may have any order. The grammar contains no mnemonics:
//! [`crate::OpKind::from_text`] interprets a parsed op, so a new op needs no grammar.
//!
//! # Printing
//!
//! The printed form is canonical. Attributes are sorted by name, named operands have the op's order, and the factors
//! of an extent have the order of their symbols' first occurrence in the text. Printing, parsing and printing again
//! gives the same text. Parsing a printed program gives the same module, up to the numbering of symbols and values.
//!
//! # Errors
//!
//! Every error is a [`Diagnostic`] with one of these codes. After an error the parser continues with the next
//! statement; it stops after 20 errors.
//!
//! | code | meaning |
//! |---|---|
//! | `syntax` | the text does not follow the grammar |
//! | `bad_version` | the first line is not `fir 1` |
//! | `unknown_value` | an operand or output has no definition before it |
//! | `duplicate_value` | two values have one name |
//! | `unknown_op` | no op has this mnemonic |
//! | `bad_attribute` | an attribute is unknown, missing, repeated or malformed |
//! | `bad_operand` | a named operand is unknown, repeated or before a positional one |
//! | `bad_number` | a number is malformed or too large |
//! | `bad_type` | an element type, layout or extent is invalid |
//! | `result_count` | an op has more or fewer results than result types |
//! | `too_large` | the text is longer than 4 GiB |

mod directives;
mod errors;
mod lexer;
mod names;
mod parser;
mod print;
mod types;

pub use directives::{Comment, Directive, comments, directives};
pub use names::nearest;
pub use print::{print, print_op};

use crate::diagnostics::{Diagnostic, Spans};
use crate::module::Module;

/// The version of the text form that this crate parses and prints.
pub const VERSION: &str = "1";

/// A parsed program, not yet verified.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The program.
    pub module: Module,
    /// The source spans of its parts.
    pub spans: Spans,
}

/// Parses a program, in time linear in the length of the text.
///
/// # Errors
/// Returns at most 20 errors, in text order.
pub fn parse(source: &str) -> Result<Parsed, Vec<Diagnostic>> {
    parser::parse(source, u32::MAX as usize)
}
