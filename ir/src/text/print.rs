//! Prints programs in their canonical form.

use std::fmt::Write;

use crate::entities::{Entity, Op, Symbol, Value};
use crate::module::{Module, Operation};
use crate::types::{Dim, TensorType};

/// The signature is printed on one line if it fits this width.
const MAX_COLUMNS: usize = 100;

/// Prints a program. Parsing the text gives an equal module, up to the numbering of symbols and values, and printing
/// that gives the same text. Accepts any module: a reference to a missing value is printed as a placeholder such as
/// `value7`, which does not parse.
pub fn print(module: &Module) -> String {
    let out = String::with_capacity(128 * (module.inputs.len() + module.ops.len() + 1));
    let order = SymbolOrder { ranks: vec![None; module.symbols.len()], next: 0 };
    let mut printer = Printer { module, out, order: Some(order) };
    printer.program();
    printer.out
}

/// Prints one op on one line, without indentation. Accepts any module, as [`print()`] does.
pub fn print_op(module: &Module, op: Op) -> String {
    let mut printer = Printer { module, out: String::new(), order: None };
    match module.ops.get(op) {
        Some(operation) => printer.operation(operation),
        None => printer.put(op),
    }
    printer.out
}

struct Printer<'a> {
    module: &'a Module,
    out: String,
    /// `None` when printing a single op: symbols then have the module's order.
    order: Option<SymbolOrder>,
}

/// The order of the symbols' first occurrence in the text. The parser numbers symbols in this order and sorts the
/// factors of an extent by number, so printing factors in this order makes printing a fixed point.
struct SymbolOrder {
    ranks: Vec<Option<u32>>,
    next: u32,
}

impl SymbolOrder {
    fn sort(&mut self, symbols: &mut [Symbol]) {
        symbols.sort_by_key(|symbol| {
            let rank = self.ranks.get(symbol.index()).copied().flatten();
            (rank.unwrap_or(u32::MAX), *symbol)
        });
    }

    fn mention(&mut self, symbol: Symbol) {
        if let Some(rank @ None) = self.ranks.get_mut(symbol.index()) {
            *rank = Some(self.next);
            self.next += 1;
        }
    }
}

impl Printer<'_> {
    fn program(&mut self) {
        self.out.push_str("fir ");
        self.out.push_str(super::VERSION);
        self.out.push_str("\n\nfunc @");
        self.out.push_str(&self.module.name);
        self.out.push('(');
        self.inputs();
        self.out.push_str(") {\n");
        for operation in self.module.ops.values() {
            self.out.push_str("  ");
            self.operation(operation);
            self.out.push('\n');
        }
        self.out.push_str("  return");
        self.list(" ", &self.module.outputs, Printer::value);
        self.out.push_str("\n}\n");
    }

    fn inputs(&mut self) {
        let start = self.out.len();
        self.list("", &self.module.inputs, Printer::input);
        let line = self.out.rfind('\n').map_or(0, |newline| newline + 1);
        if self.out[line..].chars().count() + ") {".len() <= MAX_COLUMNS {
            return;
        }
        // The ranks of the first attempt remain valid: it printed the symbols in the same order.
        self.out.truncate(start);
        for (index, input) in self.module.inputs.iter().enumerate() {
            self.out.push_str(if index == 0 { "\n    " } else { ",\n    " });
            self.input(*input);
        }
        self.out.push('\n');
    }

    fn input(&mut self, input: Value) {
        if self.module.is_param(input) {
            self.out.push_str("param ");
        }
        self.value(input);
        self.out.push_str(": ");
        self.value_type(input);
    }

    fn operation(&mut self, operation: &Operation) {
        let kind = &operation.kind;
        if !operation.results.is_empty() {
            self.list("", &operation.results, Printer::value);
            self.out.push_str(" = ");
        }
        self.out.push_str(kind.mnemonic());
        let names = kind.named_operands();
        let positional = operation.operands.len().saturating_sub(names.len());
        self.list(" ", &operation.operands[..positional], Printer::value);
        for (index, (name, operand)) in names.into_iter().zip(&operation.operands[positional..]).enumerate() {
            self.out.push_str(if positional == 0 && index == 0 { " " } else { ", " });
            self.out.push_str(name);
            self.out.push_str(" = ");
            self.value(*operand);
        }
        let attributes = kind.attributes();
        for (index, (name, value)) in attributes.iter().enumerate() {
            self.out.push_str(if index == 0 { " {" } else { ", " });
            self.out.push_str(name);
            self.out.push_str(" = ");
            self.put(value);
        }
        if !attributes.is_empty() {
            self.out.push('}');
        }
        self.list(" : ", &operation.results, Printer::value_type);
    }

    /// Prints the prefix and the values, separated by commas; nothing if there are no values.
    fn list(&mut self, prefix: &str, values: &[Value], print: impl Fn(&mut Self, Value)) {
        for (index, value) in values.iter().enumerate() {
            self.out.push_str(if index == 0 { prefix } else { ", " });
            print(self, *value);
        }
    }

    fn value(&mut self, value: Value) {
        match self.module.values.get(value) {
            Some(data) => {
                self.out.push('%');
                self.out.push_str(&data.name);
            }
            None => self.put(value),
        }
    }

    fn value_type(&mut self, value: Value) {
        match self.module.values.get(value) {
            Some(data) => self.tensor_type(&data.ty),
            None => self.out.push('?'),
        }
    }

    fn tensor_type(&mut self, ty: &TensorType) {
        self.out.push_str("tensor<[");
        for (index, dim) in ty.shape.iter().enumerate() {
            self.out.push_str(if index == 0 { "" } else { ", " });
            self.dim(dim);
        }
        self.out.push_str("], ");
        self.out.push_str(ty.element.name());
        if let Some(layout) = ty.layout {
            self.out.push_str(", ");
            self.out.push_str(layout.name());
        }
        self.out.push('>');
    }

    fn dim(&mut self, dim: &Dim) {
        let Some(order) = self.order.as_mut().filter(|_| !dim.symbols().is_empty()) else {
            return self.put(self.module.display_dim(dim));
        };
        let mut symbols = dim.symbols().to_vec();
        order.sort(&mut symbols);
        symbols.iter().for_each(|symbol| order.mention(*symbol));
        if dim.constant() != 1 {
            self.put(dim.constant());
            self.out.push('*');
        }
        for (index, symbol) in symbols.into_iter().enumerate() {
            self.out.push_str(if index == 0 { "" } else { "*" });
            self.out.push_str(self.module.symbols.get(symbol).map_or("?", String::as_str));
        }
    }

    fn put(&mut self, item: impl std::fmt::Display) {
        write!(self.out, "{item}").expect("writing to a String cannot fail");
    }
}
