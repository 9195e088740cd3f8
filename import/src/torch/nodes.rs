//! Translates the nodes of a graph, one by one.

use std::path::Path;

use fourfold_executor::TensorReference;
use fourfold_ir::{Module, OpKind, Value};

use super::arguments::{Arguments, Reason};
use super::builder::{Entry, Translator};
use super::graph::{Graph, Node};
use super::{attention, elementwise, linear, logic, movement, shape};
use crate::imported::{LeftOut, LeftOutCode};
use crate::origins::Origins;

/// A translated graph. Its module is not verified.
pub(super) struct Translated {
    pub module: Module,
    pub tensors: Vec<TensorReference>,
    pub notes: Vec<String>,
    pub origins: Origins,
}

/// Translates a graph whose tensors lie in `file`.
///
/// # Errors
/// The first node or parameter without an equivalent.
pub(super) fn translate(graph: &Graph, name: &str, file: &Path) -> Result<Translated, LeftOut> {
    let mut translator = Translator::new(name, file);
    let left_out = |name: &str, message: String| LeftOut {
        name: name.to_owned(),
        code: LeftOutCode::UnsupportedOperator,
        message,
    };
    for input in &graph.inputs {
        let value = translator
            .ty(&input.ty)
            .map(|ty| Entry::Tensor(translator.builder.input(&input.name, ty)))
            .and_then(|entry| translator.define(&input.name, entry));
        value.map_err(|reason| left_out(&input.name, format!("input `{}` {reason}", input.name)))?;
    }
    for parameter in &graph.parameters {
        translator.parameter(parameter).map_err(|reason| {
            left_out(&parameter.name, format!("parameter `{}` {reason}", parameter.name))
        })?;
    }
    for node in &graph.nodes {
        translator
            .origins
            .begin(translator.builder.op_count(), format!("node `{}` ({})", node.name, node.op));
        let entry = self::node(&mut translator, node).and_then(|entry| translator.define(&node.name, entry));
        entry
            .map_err(|reason| left_out(&node.name, format!("node `{}` ({}) {reason}", node.name, node.op)))?;
    }
    let mut outputs: Vec<Value> = Vec::new();
    for output in &graph.outputs {
        let value = translator.tensor(output);
        let mut value = value.map_err(|reason| left_out("outputs", format!("an output {reason}")))?;
        // A program returns each value once.
        if outputs.contains(&value) {
            let ty = translator.builder.ty(value).clone();
            value = translator.builder.op(OpKind::Reshape, &[value], &[("", ty)])[0];
        }
        outputs.push(value);
    }
    let Translator { builder, tensors, notes, origins, .. } = translator;
    Ok(Translated { module: builder.finish(&outputs), tensors, notes, origins })
}

/// Nodes that check what a program's types state, and compute nothing.
const ASSERTIONS: [&str; 7] = [
    "_assert_tensor_metadata.default",
    "_assert_scalar.default",
    "_assert_async.msg",
    "sym_constrain_range.default",
    "sym_constrain_range_for_size.default",
    "sym_size.int",
    "sym_numel.default",
];

fn node<'a>(t: &mut Translator<'a>, node: &'a Node) -> Result<Entry, Reason> {
    let arguments = Arguments { node };
    let op = node.op.strip_prefix("aten.").unwrap_or(&node.op);
    if let Some(index) = is_getitem(op).then(|| arguments.integer(1, "index")).transpose()? {
        return item(t, arguments, index);
    }
    // Python's own functions compute with extents.
    if node.ty.get("extent").is_some() || op.starts_with("<built-in") || ASSERTIONS.contains(&op) {
        return Ok(Entry::Extent);
    }
    let results = [
        elementwise::translate,
        shape::translate,
        linear::translate,
        attention::translate,
        movement::translate,
        logic::translate,
    ];
    for translate in results {
        if let Some(entry) = translate(t, op, arguments)? {
            return Ok(entry);
        }
    }
    Err("is an operator that has no equivalent".to_owned())
}

fn item(t: &Translator<'_>, arguments: Arguments<'_>, index: i64) -> Result<Entry, Reason> {
    let entry = t.entry(arguments.get(0, "input")?)?;
    let Entry::Many(values) = entry else { return Err("takes an item of a single tensor".to_owned()) };
    let item = usize::try_from(index).ok().and_then(|index| values.get(index).copied().flatten());
    item.map(Entry::Tensor).ok_or_else(|| format!("takes the result {index}, which is not computed"))
}

fn is_getitem(op: &str) -> bool {
    op.contains("getitem")
}
