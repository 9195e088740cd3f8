//! Parses the operands of the instructions that the rewriter replaces.

use super::error::RewriteProblem;
use super::statement::Instruction;
use super::token::{Token, TokenKind};

/// The names of inserted registers and parameters begin with it, and so do the library's functions.
pub(super) const RESERVED: &str = "fourfold_";

/// An operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operand<'a> {
    /// A register, a symbol, an immediate, or `_`.
    Value(String),
    /// A predicate after `!`.
    Not(&'a str),
    /// `register|predicate`.
    Pair,
    /// `[base]` or `[base+offset]`.
    Address(Address<'a>),
    /// `{a, b}`.
    List(Vec<String>),
}

/// An address operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address<'a> {
    /// A register or a symbol.
    pub base: &'a str,
    /// An integer, with its sign if negative.
    pub offset: Option<String>,
}

/// Parses all operands of an instruction.
///
/// # Errors
/// Returns an operand of another form, or with a reserved name.
pub(super) fn operands<'a>(instruction: &Instruction<'a>) -> Result<Vec<Operand<'a>>, RewriteProblem> {
    let tokens = instruction.operands.as_slice();
    if tokens.is_empty() {
        return Ok(Vec::new());
    }
    let reserved = tokens.iter().find(|token| {
        token.kind == TokenKind::Word && token.text.trim_start_matches('%').starts_with(RESERVED)
    });
    match reserved {
        Some(token) => Err(RewriteProblem::Reserved(token.text.to_owned())),
        None => split(tokens).into_iter().map(operand).collect(),
    }
}

/// Splits tokens at the commas outside brackets and braces.
fn split<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0_usize;
    tokens
        .split(|token| {
            match token.text {
                "[" | "{" => depth += 1,
                "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && token.is(",")
        })
        .collect()
}

fn operand<'a>(tokens: &[Token<'a>]) -> Result<Operand<'a>, RewriteProblem> {
    let unknown = || RewriteProblem::Operand(tokens.iter().map(|token| token.text).collect());
    if let Some(value) = value(tokens) {
        return Ok(Operand::Value(value));
    }
    match tokens {
        [not, word] if not.is("!") && is_word(word) => Ok(Operand::Not(word.text)),
        [register, bar, predicate] if is_word(register) && bar.is("|") && is_word(predicate) => {
            Ok(Operand::Pair)
        }
        [open, inside @ .., close] if open.is("[") && close.is("]") => {
            address(inside).map(Operand::Address).ok_or_else(unknown)
        }
        [open, inside @ .., close] if open.is("{") && close.is("}") => {
            split(inside).into_iter().map(value).collect::<Option<_>>().map(Operand::List).ok_or_else(unknown)
        }
        _ => Err(unknown()),
    }
}

/// Reads `word` or `-word`.
fn value(tokens: &[Token<'_>]) -> Option<String> {
    match tokens {
        [word] if is_word(word) => Some(word.text.to_owned()),
        [minus, word] if minus.is("-") && is_word(word) => Some(format!("-{}", word.text)),
        _ => None,
    }
}

/// Reads `base`, `base+offset`, `base+-offset` or `base-offset`.
fn address<'a>(tokens: &[Token<'a>]) -> Option<Address<'a>> {
    let (base, offset) = tokens.split_first()?;
    let offset = match offset {
        [] => None,
        [plus, offset @ ..] if plus.is("+") => Some(value(offset)?),
        [minus, _] if minus.is("-") => Some(value(offset)?),
        _ => return None,
    };
    let is_integer = |text: &str| text.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit());
    let known = is_word(base) && offset.as_deref().is_none_or(is_integer);
    known.then_some(Address { base: base.text, offset })
}

fn is_word(token: &Token<'_>) -> bool {
    token.kind == TokenKind::Word && !token.is_dotted()
}

/// Returns true for an immediate, as opposed to a register or a symbol.
pub(super) fn is_immediate(value: &str) -> bool {
    value.trim_start_matches('-').starts_with(|c: char| c.is_ascii_digit())
}

/// The operands of one instruction, taken from the front.
pub(super) struct Operands<'a> {
    operands: std::vec::IntoIter<Operand<'a>>,
}

impl<'a> Operands<'a> {
    /// Parses the operands of an instruction with this number of them.
    ///
    /// # Errors
    /// Returns an unknown operand, or a wrong number.
    pub fn of(instruction: &Instruction<'a>, expected: usize) -> Result<Self, RewriteProblem> {
        let operands = operands(instruction)?;
        let found = operands.len();
        if found != expected {
            let opcode = instruction.opcode.clone();
            return Err(RewriteProblem::OperandCount { opcode, expected, found });
        }
        Ok(Self { operands: operands.into_iter() })
    }

    /// Takes the next operand.
    pub fn any(&mut self) -> Result<Operand<'a>, RewriteProblem> {
        // `of` checked the number; a caller that takes more sees an empty operand.
        self.operands.next().ok_or_else(|| RewriteProblem::Operand(String::new()))
    }

    /// Takes a register or an immediate.
    pub fn value(&mut self) -> Result<String, RewriteProblem> {
        match self.any()? {
            Operand::Value(value) if value != "_" => Ok(value),
            other => Err(unsupported(&other)),
        }
    }

    /// Takes an address.
    pub fn address(&mut self) -> Result<Address<'a>, RewriteProblem> {
        match self.any()? {
            Operand::Address(address) => Ok(address),
            other => Err(unsupported(&other)),
        }
    }

    /// Takes registers in braces, or a single register without.
    pub fn list(&mut self) -> Result<Vec<String>, RewriteProblem> {
        match self.any()? {
            Operand::List(list) => Ok(list),
            Operand::Value(value) => Ok(vec![value]),
            other => Err(unsupported(&other)),
        }
    }
}

/// Returns the problem of an operand that does not fit its position.
pub(super) fn unsupported(operand: &Operand<'_>) -> RewriteProblem {
    RewriteProblem::Operand(match operand {
        Operand::Value(value) => value.clone(),
        Operand::Not(predicate) => format!("!{predicate}"),
        Operand::Pair => "register|predicate".to_owned(),
        Operand::Address(Address { base, offset: None }) => format!("[{base}]"),
        Operand::Address(Address { base, offset: Some(offset) }) => format!("[{base}+{offset}]"),
        Operand::List(list) => format!("{{{}}}", list.join(", ")),
    })
}
