//! The nodes of a graph that the ops of its program come from.

use fourfold_ir::{ConstantValue, Dim, Entity, Module, OpKind, Place, Program, ValueDef, verify};

use crate::imported::LeftOutCode;

/// The nodes that ops come from. Each node adds ops behind those of the nodes before it.
#[derive(Debug, Default)]
pub(crate) struct Origins {
    /// The number of ops before those of each node, and the name of the node for messages.
    starts: Vec<(usize, String)>,
}

impl Origins {
    /// Records that the ops from now on come from a node.
    pub(crate) fn begin(&mut self, ops: usize, node: String) {
        self.starts.push((ops, node));
    }

    /// The node of an op.
    pub(crate) fn of(&self, op: usize) -> Option<&str> {
        let after = self.starts.partition_point(|(start, _)| *start <= op);
        self.starts.get(after.checked_sub(1)?).map(|(_, node)| node.as_str())
    }

    /// Verifies the program of a graph. `original` returns the position that an op had when it was recorded.
    ///
    /// # Errors
    /// The code and the message for a program that is invalid, or fails on every input.
    pub(crate) fn verified(
        &self,
        module: Module,
        original: impl Fn(usize) -> usize,
    ) -> Result<Program, (LeftOutCode, String)> {
        let named = |op: Option<usize>, reason: String| match op.and_then(|op| self.of(original(op))) {
            Some(node) => format!("{node}: {reason}"),
            None => format!("its program would not be valid: {reason}"),
        };
        let program = match verify(module) {
            Ok(program) => program,
            Err(invalid) => {
                let Some(error) = invalid.errors.first() else {
                    return Err((LeftOutCode::UnsupportedOperator, "its program is not valid".to_owned()));
                };
                let op = if let Place::Op(op) = error.place { Some(op.index()) } else { None };
                return Err((code_of(error.code()), named(op, error.kind.to_string())));
            }
        };
        match outside(program.module()) {
            Some((op, reason)) => Err((LeftOutCode::UnsupportedOperator, named(Some(op), reason))),
            None => Ok(program),
        }
    }
}

/// Finds a gather whose constant indices are outside its axis.
fn outside(module: &Module) -> Option<(usize, String)> {
    for (at, op) in module.ops.values().enumerate() {
        let (OpKind::Gather { axis }, [x, indices]) = (&op.kind, &op.operands[..]) else { continue };
        let ValueDef::Result { op: source, .. } = module.values[*indices].def else { continue };
        let OpKind::Constant(value) = &module.ops[source].kind else { continue };
        let values = match value {
            ConstantValue::Splat(value) => std::slice::from_ref(value),
            ConstantValue::Dense(values) => values,
        };
        let extent =
            module.ty(*x).shape.get(*axis as usize).and_then(Dim::as_fixed).map(|extent| extent as f64);
        let wrong = |index: &&f64| **index < 0.0 || extent.is_some_and(|extent| **index >= extent);
        if let Some(index) = values.iter().find(wrong) {
            let of = extent.map_or_else(String::new, |extent| format!(" of {extent}"));
            return Some((at, format!("it takes index {index}{of}")));
        }
    }
    None
}

/// Errors of element types and attributes mean that no op has the meaning of the node.
fn code_of(code: &str) -> LeftOutCode {
    let is_shape =
        ["shape", "extent", "rank", "mismatch", "broadcast", "count", "axis", "axes", "permutation"]
            .iter()
            .any(|part| code.contains(part));
    match is_shape && code != "element_mismatch" {
        true => LeftOutCode::WrongShape,
        false => LeftOutCode::UnsupportedOperator,
    }
}
