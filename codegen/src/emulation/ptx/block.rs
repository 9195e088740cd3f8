//! Builds the PTX that replaces an instruction: a scope with its own registers and parameters.

use std::fmt::Write;

use super::operand::Address;
use super::statement::Instruction;

/// The type of a parameter of a library function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    B32,
    B64,
    F32,
}

impl Type {
    fn name(self) -> &'static str {
        match self {
            Type::B32 => "b32",
            Type::B64 => "b64",
            Type::F32 => "f32",
        }
    }
}

/// An argument of a call: a register or an immediate, with the parameter's type.
pub(super) type Argument<'a> = (Type, &'a str);

/// PTX in place of an instruction, and the library function that it calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replacement {
    pub text: String,
    pub callee: Option<&'static str>,
}

/// A scope under construction.
pub(super) struct Block {
    text: String,
    callee: Option<&'static str>,
    addresses: usize,
}

impl Block {
    /// Opens a scope.
    pub fn new(comment: &str) -> Block {
        let text = format!("{{ // fourfold: {comment}\n");
        Block { text, callee: None, addresses: 0 }
    }

    /// Adds a statement, with its semicolon.
    pub fn line(&mut self, statement: &str) {
        self.text.push('\t');
        self.text.push_str(statement);
        self.text.push('\n');
    }

    /// Returns a 32-bit address as a register, into which it adds an offset first.
    pub fn address(&mut self, address: &Address<'_>) -> String {
        let Address { base, offset } = address;
        if base.starts_with('%') && offset.is_none() {
            return (*base).to_owned();
        }
        // A word without `%` may be a symbol, which only `mov` reads.
        let register = format!("fourfold_address{}", self.addresses);
        self.addresses += 1;
        self.line(&format!(".reg .b32 {register};"));
        self.line(&format!("mov.b32 {register}, {base};"));
        if let Some(offset) = offset {
            self.line(&format!("add.s32 {register}, {register}, {offset};"));
        }
        register
    }

    /// Calls a library function.
    pub fn call(&mut self, function: &'static str, arguments: &[Argument<'_>], result: Option<Argument<'_>>) {
        self.callee = Some(function);
        let mut names = Vec::new();
        for (index, (kind, value)) in arguments.iter().enumerate() {
            let (kind, name) = (kind.name(), format!("fourfold_argument{index}"));
            self.line(&format!(".param .{kind} {name};"));
            self.line(&format!("st.param.{kind} [{name}], {value};"));
            names.push(name);
        }
        let mut call = "call ".to_owned();
        if let Some((kind, _)) = result {
            self.line(&format!(".param .{} fourfold_result;", kind.name()));
            call.push_str("(fourfold_result), ");
        }
        call.push_str(function);
        if !names.is_empty() {
            let _ = write!(call, ", ({})", names.join(", "));
        }
        call.push(';');
        self.line(&call);
        if let Some((kind, register)) = result {
            self.line(&format!("ld.param.{} {register}, [fourfold_result];", kind.name()));
        }
    }

    /// Closes the scope.
    pub fn close(mut self) -> Replacement {
        self.text.push_str("\t}");
        Replacement { text: self.text, callee: self.callee }
    }
}

/// Returns the components of an opcode.
pub(super) fn components<'a>(instruction: &'a Instruction<'_>) -> Vec<&'a str> {
    instruction.opcode.split('.').collect()
}
