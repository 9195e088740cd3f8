//! Walks a module in program order and checks tables, names, symbols and each type by itself. [`crate::typing`]
//! checks the ops.

use std::collections::{BTreeMap, HashSet};

use super::{VerifyError, VerifyErrorKind as Kind};
use crate::diagnostics::Place;
use crate::entities::{Entity, Op, Symbol, Value};
use crate::module::{Module, ValueDef};
use crate::program::Matmul;
use crate::types::{ElementType, TensorType};
use crate::typing;

/// The largest rank. Bounds the work per op.
const MAX_RANK: usize = 8;
/// The maximum number of symbols of an extent, enough to merge eight axes of four symbols each. Bounds the work per
/// extent.
const MAX_SYMBOLS: usize = 32;
/// The largest constant of an extent. With [`MAX_COUNT`] it keeps byte sizes within 64 bits: an element takes at most
/// 4 bytes, and blocked padding multiplies a size by at most 512.
const MAX_EXTENT: u64 = 1 << 40;
/// The largest product of a type's constants.
const MAX_COUNT: u64 = 1 << 46;

/// The result of the walk.
pub(super) struct Checked {
    /// All errors, in program order.
    pub(super) errors: Vec<VerifyError>,
    /// Extents and format of each well-typed `scaled_mma`.
    pub(super) matmuls: BTreeMap<Op, Matmul>,
}

/// Checks a whole module.
pub(super) fn check(module: &Module) -> Checked {
    let mut walk = Walk {
        module,
        names: HashSet::with_capacity(module.values.len()),
        sound: vec![false; module.values.len()],
        bound: vec![false; module.symbols.len()],
        errors: Vec::new(),
        matmuls: BTreeMap::new(),
    };
    walk.check_module();
    walk.check_inputs();
    walk.check_ops();
    walk.check_outputs();
    Checked { errors: walk.errors, matmuls: walk.matmuls }
}

struct Walk<'a> {
    module: &'a Module,
    names: HashSet<&'a str>,
    /// Per value: its type has been checked and is valid by itself.
    sound: Vec<bool>,
    /// Per symbol: an input's shape contains it, or its absence has been reported.
    bound: Vec<bool>,
    errors: Vec<VerifyError>,
    matmuls: BTreeMap<Op, Matmul>,
}

impl<'a> Walk<'a> {
    fn report(&mut self, place: Place, kind: Kind) {
        let op_text = match place {
            Place::Op(op) => Some(crate::text::print_op(self.module, op)),
            Place::Module | Place::Input(_) | Place::Output(_) => None,
        };
        self.errors.push(VerifyError { place, kind, op_text });
    }

    fn check_module(&mut self) {
        let module = self.module;
        if !is_value_name(&module.name) {
            let kind = Kind::BadName { what: "function", name: module.name.clone(), allowed: VALUE_NAME };
            self.report(Place::Module, kind);
        }
        let mut names = HashSet::with_capacity(module.symbols.len());
        for name in module.symbols.values() {
            if !is_symbol_name(name) {
                let kind = Kind::BadName { what: "symbol", name: name.clone(), allowed: SYMBOL_NAME };
                self.report(Place::Module, kind);
            } else if !names.insert(name) {
                self.report(Place::Module, Kind::DuplicateName { what: "symbol", name: name.clone() });
            }
        }
        // Finds values whose definition names a list entry that is another value. `check_inputs` and `check_ops`
        // check the other direction.
        for (value, data) in module.values.iter() {
            match data.def {
                ValueDef::Input { index, .. } => {
                    if module.inputs.get(index) != Some(&value) {
                        let kind = Kind::InputTable { position: index, value: value_text(module, value) };
                        self.report(Place::Module, kind);
                    }
                }
                ValueDef::Result { op, index } => {
                    if module.ops.get(op).and_then(|operation| operation.results.get(index)) != Some(&value) {
                        let (op, value) = (op.to_string(), value_text(module, value));
                        self.report(Place::Module, Kind::ResultTable { op, position: index, value });
                    }
                }
            }
        }
        if module.outputs.is_empty() {
            self.report(Place::Module, Kind::NoOutputs {});
        }
    }

    fn check_inputs(&mut self) {
        let module = self.module;
        for (position, &value) in module.inputs.iter().enumerate() {
            let place = Place::Input(position);
            let def = module.values.get(value).map(|data| data.def);
            if !matches!(def, Some(ValueDef::Input { index, .. }) if index == position) {
                self.report(place, Kind::InputTable { position, value: value_text(module, value) });
                continue;
            }
            self.check_value(place, value);
            for symbol in module.ty(value).shape.iter().flat_map(|dim| dim.symbols()) {
                if let Some(bound) = self.bound.get_mut(symbol.index()) {
                    *bound = true;
                }
            }
        }
    }

    fn check_ops(&mut self) {
        let module = self.module;
        for (op, operation) in module.ops.iter() {
            let place = Place::Op(op);
            let (mnemonic, arity) = (operation.kind.mnemonic(), typing::arity(&operation.kind));
            // With a wrong count the roles of the operands are unknown, so no further errors are reported.
            let mut checkable = arity.operands.contains(&operation.operands.len());
            if checkable {
                for (position, &value) in operation.operands.iter().enumerate() {
                    checkable &= self.check_operand(op, position, value);
                }
            } else {
                let (least, most) = (arity.operands.start(), arity.operands.end());
                let expected = match *most {
                    most if *least == most => most.to_string(),
                    usize::MAX => format!("{least} or more"),
                    most => format!("{least} or {most}"),
                };
                let found = operation.operands.len();
                self.report(place, Kind::OperandCount { mnemonic, expected, found });
            }
            if operation.results.len() == arity.results {
                for (position, &value) in operation.results.iter().enumerate() {
                    checkable &= self.check_result(op, position, value);
                }
            } else {
                let (expected, found) = (arity.results, operation.results.len());
                self.report(place, Kind::ResultCount { mnemonic, expected, found });
                for &value in &operation.results {
                    self.trust_stated_type(value);
                }
                checkable = false;
            }
            if checkable {
                let typed = typing::check_op(module, op);
                for kind in typed.errors {
                    self.report(place, kind);
                }
                if let Some(matmul) = typed.matmul {
                    self.matmuls.insert(op, matmul);
                }
            }
        }
    }

    /// Returns true if an operand exists and its type is valid.
    fn check_operand(&mut self, op: Op, position: usize, value: Value) -> bool {
        let module = self.module;
        let kind = &module.ops[op].kind;
        let (mnemonic, operand) = (kind.mnemonic(), typing::operand_role(kind, position));
        match module.values.get(value).map(|data| data.def) {
            None => {
                self.report(
                    Place::Op(op),
                    Kind::UnknownOperand { mnemonic, operand, value: value.to_string() },
                );
                false
            }
            Some(ValueDef::Result { op: definer, .. }) if definer.index() >= op.index() => {
                // If the defining op does not exist, `result_table` has been reported.
                if definer.index() < module.ops.len() {
                    let value = value_text(module, value);
                    self.report(Place::Op(op), Kind::UseBeforeDefinition { mnemonic, operand, value });
                }
                false
            }
            Some(_) => self.sound[value.index()],
        }
    }

    /// Returns true if a result exists and its type is valid.
    fn check_result(&mut self, op: Op, position: usize, value: Value) -> bool {
        let module = self.module;
        let place = Place::Op(op);
        let def = module.values.get(value).map(|data| data.def);
        if def != Some(ValueDef::Result { op, index: position }) {
            let value = value_text(module, value);
            self.report(place, Kind::ResultTable { op: op.to_string(), position, value });
            return false;
        }
        self.check_value(place, value);
        for &symbol in module.ty(value).shape.iter().flat_map(|dim| dim.symbols()) {
            if self.bound.get(symbol.index()) == Some(&false) {
                self.bound[symbol.index()] = true;
                let (symbol, ty) = (module.symbols[symbol].clone(), self.type_text(value));
                self.report(place, Kind::UnboundSymbol { symbol, value: value_text(module, value), ty });
            }
        }
        self.sound[value.index()]
    }

    /// Checks the name and the type of a value at its definition.
    fn check_value(&mut self, place: Place, value: Value) {
        let data = &self.module.values[value];
        if !is_value_name(&data.name) {
            let kind = Kind::BadName { what: "value", name: data.name.clone(), allowed: VALUE_NAME };
            self.report(place, kind);
        } else if !self.names.insert(&data.name) {
            self.report(place, Kind::DuplicateName { what: "value", name: data.name.clone() });
        }
        let kinds = self.type_errors(value, &data.ty);
        self.sound[value.index()] = kinds.is_empty();
        for kind in kinds {
            self.report(place, kind);
        }
    }

    /// Marks the type of a value as checked, so that later ops are checked against it although its own op is not.
    fn trust_stated_type(&mut self, value: Value) {
        if let Some(data) = self.module.values.get(value) {
            self.sound[value.index()] = self.type_errors(value, &data.ty).is_empty();
        }
    }

    /// The errors of a type by itself. If the rank or the number of symbols is too large, that is the only error,
    /// because the text of the type would be too long for others.
    fn type_errors(&self, value: Value, ty: &TensorType) -> Vec<Kind> {
        let name = || value_text(self.module, value);
        if ty.rank() > MAX_RANK {
            return vec![Kind::RankTooLarge { value: name(), rank: ty.rank(), limit: MAX_RANK }];
        }
        if let Some(count) = ty.shape.iter().map(|dim| dim.symbols().len()).find(|count| *count > MAX_SYMBOLS)
        {
            return vec![Kind::TooManySymbols { value: name(), count, limit: MAX_SYMBOLS }];
        }
        let known = |symbol: &&Symbol| self.module.symbols.get(**symbol).is_none();
        if let Some(symbol) = ty.shape.iter().flat_map(|dim| dim.symbols()).find(known) {
            return vec![Kind::UnknownSymbol { value: name(), symbol: symbol.to_string() }];
        }
        let mut kinds = Vec::new();
        let constants = || ty.shape.iter().map(|dim| dim.constant());
        // `max(1)`: with zeros, the overflow check would depend on the order of multiplication.
        let count = constants().try_fold(1u64, |count, constant| count.checked_mul(constant.max(1)));
        if constants().any(|constant| constant > MAX_EXTENT) || count.is_none_or(|count| count > MAX_COUNT) {
            kinds.push(Kind::ExtentTooLarge { value: name(), ty: self.type_text(value) });
        }
        let packed = ty.element.packed_count() as u64;
        if packed > 1 && !ty.shape.last().is_some_and(|last| last.is_multiple_of(packed)) {
            kinds.push(Kind::PackedExtent { value: name(), ty: self.type_text(value), packed });
        }
        if ty.layout.is_some() && !(ty.element.is_scale() && ty.rank() >= 2) {
            kinds.push(Kind::LayoutOnType { value: name(), ty: self.type_text(value) });
        }
        if ty.layout.is_none() && ty.element == ElementType::F8E8M0FNU {
            kinds.push(Kind::ScaleWithoutLayout { value: name(), ty: self.type_text(value) });
        }
        kinds
    }

    fn type_text(&self, value: Value) -> String {
        self.module.display_type(self.module.ty(value)).to_string()
    }

    fn check_outputs(&mut self) {
        let module = self.module;
        let mut seen = vec![false; module.values.len()];
        for (position, &value) in module.outputs.iter().enumerate() {
            match seen.get_mut(value.index()) {
                None => {
                    self.report(Place::Output(position), Kind::UnknownOutput { value: value.to_string() })
                }
                Some(true) => {
                    let kind = Kind::DuplicateOutput { value: value_text(module, value) };
                    self.report(Place::Output(position), kind);
                }
                Some(seen) => *seen = true,
            }
        }
    }
}

const VALUE_NAME: &str = "letters, digits, `_` and `.`";
const SYMBOL_NAME: &str = "letters, digits, `_` and `.`, and begin with a letter or `_`";

fn is_value_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.')
}

/// Unlike a value name, a symbol name cannot begin with a digit, so that an extent such as `4*B` is unambiguous.
fn is_symbol_name(name: &str) -> bool {
    is_value_name(name) && name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
}

/// `%name`, or the entity (`value7`) of a value that does not exist.
fn value_text(module: &Module, value: Value) -> String {
    module.values.get(value).map_or_else(|| value.to_string(), |data| format!("%{}", data.name))
}
