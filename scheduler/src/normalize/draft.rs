//! A program during rewriting: ops are added and removed, values keep their names.

use std::collections::{BTreeSet, HashMap, HashSet};

use fourfold_ir::{Entity, Module, Op, OpKind, Program, TensorType, Value, ValueData, ValueDef};

/// A module with ops in no particular order, and a note on each op's state and origin.
pub(crate) struct Draft {
    pub(crate) module: Module,
    /// By value: the live ops that use it.
    users: Vec<BTreeSet<Op>>,
    is_output: Vec<bool>,
    /// By op.
    notes: Vec<Note>,
    names: HashSet<String>,
    next_numbers: HashMap<String, usize>,
}

/// The state and origin of an op.
#[derive(Clone, Debug, Default)]
pub(crate) struct Note {
    pub(crate) gone: bool,
    /// The position in the program: a new op takes the position of an old one.
    pub(crate) position: usize,
    /// The op that replaced it, if it is gone.
    pub(crate) successor: Option<Op>,
    /// The rules that removed it, if it is gone without a successor.
    pub(crate) reasons: Vec<usize>,
    /// For a new op, the ops that it replaces and the rules, in order. `None` for an op of the original
    /// program.
    pub(crate) made: Option<(Vec<Op>, Vec<usize>)>,
}

/// A result of a new op.
#[derive(Clone, Debug)]
pub(crate) enum Definition {
    /// A value that another op defines so far.
    Known(Value),
    /// A new value with this name and type.
    New(String, TensorType),
}

impl Draft {
    pub(crate) fn new(program: &Program) -> Draft {
        let module = program.module().clone();
        let mut users = vec![BTreeSet::new(); module.values.len()];
        for (op, operation) in module.ops.iter() {
            for operand in &operation.operands {
                users[operand.index()].insert(op);
            }
        }
        let is_output = module.values.keys().map(|value| program.facts().is_output(value)).collect();
        let notes = module.ops.keys().map(|op| Note { position: op.index(), ..Note::default() }).collect();
        let names = module.values.values().map(|data| data.name.clone()).collect();
        Draft { module, users, is_output, notes, names, next_numbers: HashMap::new() }
    }

    pub(crate) fn users(&self, value: Value) -> &BTreeSet<Op> {
        &self.users[value.index()]
    }

    pub(crate) fn is_output(&self, value: Value) -> bool {
        self.is_output[value.index()]
    }

    pub(crate) fn note(&self, op: Op) -> &Note {
        &self.notes[op.index()]
    }

    pub(crate) fn note_mut(&mut self, op: Op) -> &mut Note {
        &mut self.notes[op.index()]
    }

    /// The defining op of a value and its kind; `None` for an input.
    pub(crate) fn definition(&self, value: Value) -> Option<(Op, &OpKind)> {
        let op = self.module.defining_op(value)?;
        Some((op, &self.module.ops[op].kind))
    }

    /// Adds an op with a new result, called `name` or, if that name is in use, `name.2`, `name.3`, ….
    pub(crate) fn add(
        &mut self,
        kind: OpKind,
        operands: Vec<Value>,
        name: &str,
        ty: TensorType,
        note: Note,
    ) -> Op {
        let name = self.fresh(name);
        let op = self.module.push_op(kind, operands, vec![(name, ty)]);
        self.users.push(BTreeSet::new());
        self.is_output.push(false);
        self.enlist(op, note);
        op
    }

    /// Adds an op that defines these values from now on. Their former ops are left without results.
    pub(crate) fn redefine(
        &mut self,
        values: &[Value],
        kind: OpKind,
        operands: Vec<Value>,
        note: Note,
    ) -> Op {
        let op = self.module.push_op(kind, operands, Vec::new());
        for (index, value) in values.iter().enumerate() {
            if let ValueDef::Result { op: before, .. } = self.module.values[*value].def {
                self.module.ops[before].results.clear();
            }
            self.module.values[*value].def = ValueDef::Result { op, index };
        }
        self.module.ops[op].results.extend(values);
        self.enlist(op, note);
        op
    }

    /// Adds an op whose results are values that other ops define so far, or new values.
    pub(crate) fn define(
        &mut self,
        kind: OpKind,
        operands: Vec<Value>,
        results: Vec<Definition>,
        note: Note,
    ) -> Op {
        let results: Vec<Value> = results
            .into_iter()
            .map(|result| match result {
                Definition::Known(value) => value,
                Definition::New(name, ty) => {
                    let name = self.fresh(&name);
                    self.users.push(BTreeSet::new());
                    self.is_output.push(false);
                    // `redefine` states the definition.
                    self.module.values.push(ValueData {
                        name,
                        ty,
                        def: ValueDef::Input { index: 0, param: false },
                    })
                }
            })
            .collect();
        self.redefine(&results, kind, operands, note)
    }

    /// Replaces one operand of an op.
    pub(crate) fn set_operand(&mut self, op: Op, position: usize, value: Value) {
        let before = std::mem::replace(&mut self.module.ops[op].operands[position], value);
        if !self.module.ops[op].operands.contains(&before) {
            self.users[before.index()].remove(&op);
        }
        self.users[value.index()].insert(op);
    }

    fn enlist(&mut self, op: Op, note: Note) {
        for operand in self.module.ops[op].operands.clone() {
            self.users[operand.index()].insert(op);
        }
        self.notes.push(note);
    }

    /// Replaces every use of a value by another value of the same type.
    pub(crate) fn replace(&mut self, value: Value, by: Value) {
        for user in std::mem::take(&mut self.users[value.index()]) {
            for operand in self.module.ops[user].operands.iter_mut().filter(|operand| **operand == value) {
                *operand = by;
            }
            self.users[by.index()].insert(user);
        }
    }

    /// Removes ops without results or with unused results, then the ops that become unused.
    pub(crate) fn remove_unused(&mut self, candidates: impl IntoIterator<Item = Op>) {
        let mut open: Vec<Op> = candidates.into_iter().collect();
        while let Some(op) = open.pop() {
            let results = &self.module.ops[op].results;
            let used = results.iter().any(|value| self.is_output(*value) || !self.users(*value).is_empty());
            if self.notes[op.index()].gone || used {
                continue;
            }
            self.notes[op.index()].gone = true;
            for operand in self.module.ops[op].operands.clone() {
                self.users[operand.index()].remove(&op);
                open.extend(self.module.defining_op(operand));
            }
        }
    }

    fn fresh(&mut self, wanted: &str) -> String {
        // The number at which the last search for this name ended, because many ops may ask for the same
        // name.
        let next = self.next_numbers.entry(wanted.to_owned()).or_insert(1);
        loop {
            let name = if *next == 1 { wanted.to_owned() } else { format!("{wanted}.{next}") };
            *next += 1;
            if self.names.insert(name.clone()) {
                return name;
            }
        }
    }
}
