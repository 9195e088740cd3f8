//! The program as plain data: values, ops, symbols, inputs and outputs. A module may be malformed;
//! [`crate::verify`] turns a well-formed one into a [`Program`](crate::Program).

use std::fmt;

use crate::entities::{Arena, Entity, Op, Symbol, Value};
use crate::ops::OpKind;
use crate::types::{Dim, TensorType, display_dim};

/// A program: one dataflow function.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// The function's name, without the `@`.
    pub name: String,
    /// The names of the symbols.
    pub symbols: Arena<Symbol, String>,
    /// Every value: the inputs first, then the results of the ops in order.
    pub values: Arena<Value, ValueData>,
    /// The inputs, in the order of the signature.
    pub inputs: Vec<Value>,
    /// The ops, each after the ops that define its operands.
    pub ops: Arena<Op, Operation>,
    /// The values that the program returns.
    pub outputs: Vec<Value>,
}

/// Name, type and definition of a value.
#[derive(Clone, Debug, PartialEq)]
pub struct ValueData {
    /// The name without the `%`, made of letters, digits, `_` and `.`. Inputs and outputs bind by name.
    pub name: String,
    /// The type.
    pub ty: TensorType,
    /// The definition.
    pub def: ValueDef,
}

/// The definition of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueDef {
    /// An input of the program.
    Input {
        /// Position in [`Module::inputs`].
        index: usize,
        /// True for a `param`, such as a weight: it is immutable for the life of the compiled program.
        param: bool,
    },
    /// A result of an op.
    Result {
        /// The op.
        op: Op,
        /// Position in [`Operation::results`].
        index: usize,
    },
}

/// One operation.
#[derive(Clone, Debug, PartialEq)]
pub struct Operation {
    /// The operation and its attributes.
    pub kind: OpKind,
    /// The positional operands, then the named ones in the order of [`OpKind::named_operands`].
    pub operands: Vec<Value>,
    /// The results.
    pub results: Vec<Value>,
}

/// The operands of a `scaled_mma`, `grouped_scaled_mma` or `masked_scaled_mma` by role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaledMmaOperands {
    /// A, `[.., M, K]`.
    pub a: Value,
    /// Scales of A, `[.., M, K/V]`; absent beside a 16-bit A.
    pub sfa: Option<Value>,
    /// B, `[.., N, K]`.
    pub b: Value,
    /// Scales of B, `[.., N, K/V]`.
    pub sfb: Value,
    /// The end of each group of rows, `[E]`, or the rows of each in a `masked_scaled_mma`; absent in a `scaled_mma`.
    pub offsets: Option<Value>,
    /// The factor of the product: an f32 scalar, or one for each group.
    pub alpha: Option<Value>,
    /// The end of each group in sfa, `[E]`, if sfa has whole tiles for each group.
    pub sfa_ends: Option<Value>,
    /// The addend, `[.., M, N]`.
    pub c: Option<Value>,
    /// The factor of c: an f32 scalar.
    pub beta: Option<Value>,
}

impl Module {
    /// An empty program.
    pub fn new(name: impl Into<String>) -> Module {
        Module {
            name: name.into(),
            symbols: Arena::new(),
            values: Arena::new(),
            inputs: Vec::new(),
            ops: Arena::new(),
            outputs: Vec::new(),
        }
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &TensorType {
        &self.values[value].ty
    }

    /// The name of a value without the `%`; `?` for a value that does not exist.
    pub fn name_of(&self, value: Value) -> &str {
        self.values.get(value).map_or("?", |data| data.name.as_str())
    }

    /// The op that defines a value; `None` for an input.
    pub fn defining_op(&self, value: Value) -> Option<Op> {
        match self.values[value].def {
            ValueDef::Result { op, .. } => Some(op),
            ValueDef::Input { .. } => None,
        }
    }

    /// Returns true for a `param`.
    pub fn is_param(&self, value: Value) -> bool {
        matches!(self.values.get(value), Some(ValueData { def: ValueDef::Input { param: true, .. }, .. }))
    }

    /// By op: true if it depends on params and constants only, and its operands and results have fixed extents. Such
    /// ops have the same results in every call.
    pub fn constant_ops(&self) -> Vec<bool> {
        let is_fixed = |value: &Value| self.ty(*value).shape.iter().all(|dim| dim.as_fixed().is_some());
        let mut constant = vec![false; self.ops.len()];
        for (op, operation) in self.ops.iter() {
            let is_known = |value: &Value| match self.defining_op(*value) {
                Some(producer) => constant[producer.index()],
                None => self.is_param(*value) && is_fixed(value),
            };
            constant[op.index()] =
                operation.operands.iter().all(is_known) && operation.results.iter().all(is_fixed);
        }
        constant
    }

    /// The operands of a `scaled_mma` or `grouped_scaled_mma` by role; `None` for another op, or with the wrong number
    /// of operands.
    pub fn scaled_mma_operands(&self, op: Op) -> Option<ScaledMmaOperands> {
        let operation = self.ops.get(op)?;
        let (count, weight_only, grouped, [alpha, sfa_ends, c, beta]) = match operation.kind {
            OpKind::ScaledMma(mma) => {
                (mma.operand_count(), mma.weight_only, false, [mma.alpha, false, mma.c, mma.beta])
            }
            OpKind::GroupedScaledMma(mma) => {
                (mma.operand_count(), mma.weight_only, true, [mma.alpha, mma.sfa_ends, false, false])
            }
            _ => return None,
        };
        if operation.operands.len() != count {
            return None;
        }
        let mut operands = operation.operands.iter().copied();
        let mut take = |present: bool| if present { operands.next() } else { None };
        Some(ScaledMmaOperands {
            a: take(true)?,
            sfa: take(!weight_only),
            b: take(true)?,
            sfb: take(true)?,
            offsets: take(grouped),
            alpha: take(alpha),
            sfa_ends: take(sfa_ends),
            c: take(c),
            beta: take(beta),
        })
    }

    /// An extent as text.
    pub fn display_dim<'a>(&'a self, dim: &'a Dim) -> impl fmt::Display + 'a {
        display_dim(dim, &self.symbols)
    }

    /// A type as text.
    pub fn display_type<'a>(&'a self, ty: &'a TensorType) -> impl fmt::Display + 'a {
        ty.display(&self.symbols)
    }

    /// The label of an op in reports: `%name = mnemonic`, or `%a, %b = mnemonic` with several results.
    pub fn op_label(&self, op: Op) -> String {
        let operation = &self.ops[op];
        let mut label = String::new();
        for (index, result) in operation.results.iter().enumerate() {
            if index > 0 {
                label.push_str(", ");
            }
            label.push('%');
            label.push_str(self.name_of(*result));
        }
        label.push_str(" = ");
        label.push_str(operation.kind.mnemonic());
        label
    }

    /// Returns the symbol with this name, and adds it if it is new.
    pub fn intern_symbol(&mut self, name: &str) -> Symbol {
        let known = self.symbols.iter().find(|(_, known)| known.as_str() == name).map(|(symbol, _)| symbol);
        known.unwrap_or_else(|| self.symbols.push(name.to_owned()))
    }

    /// Adds an input.
    pub fn push_input(&mut self, name: impl Into<String>, ty: TensorType, param: bool) -> Value {
        let index = self.inputs.len();
        let value =
            self.values.push(ValueData { name: name.into(), ty, def: ValueDef::Input { index, param } });
        self.inputs.push(value);
        value
    }

    /// Adds an op with results of these names and types.
    pub fn push_op(&mut self, kind: OpKind, operands: Vec<Value>, results: Vec<(String, TensorType)>) -> Op {
        let op = Op::from_index(self.ops.len());
        let results = results
            .into_iter()
            .enumerate()
            .map(|(index, (name, ty))| {
                self.values.push(ValueData { name, ty, def: ValueDef::Result { op, index } })
            })
            .collect();
        self.ops.push(Operation { kind, operands, results })
    }
}
