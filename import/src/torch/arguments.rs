//! The arguments of a node, read by position or keyword.

use serde_json::Value as Json;

use super::graph::Node;

/// The reason that a node cannot be translated.
pub(super) type Reason = String;

/// Reads the arguments of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arguments<'a> {
    pub node: &'a Node,
}

impl<'a> Arguments<'a> {
    /// The argument at a position, or with the keyword `name`; `None` if it is absent or null.
    pub fn find(self, position: usize, name: &str) -> Option<&'a Json> {
        self.node.args.get(position).or_else(|| self.node.kwargs.get(name)).filter(|value| !value.is_null())
    }

    /// The argument, which must be present.
    pub fn get(self, position: usize, name: &str) -> Result<&'a Json, Reason> {
        self.find(position, name).ok_or_else(|| format!("has no argument `{name}`"))
    }

    /// An integer.
    pub fn integer(self, position: usize, name: &str) -> Result<i64, Reason> {
        integer(self.get(position, name)?).ok_or_else(|| format!("argument `{name}` is not an integer"))
    }

    /// A boolean with the default false.
    pub fn flag(self, position: usize, name: &str) -> Result<bool, Reason> {
        match self.find(position, name) {
            Some(value) => value.as_bool().ok_or_else(|| format!("argument `{name}` is not a boolean")),
            None => Ok(false),
        }
    }

    /// A number, if present.
    pub fn number(self, position: usize, name: &str) -> Result<Option<f64>, Reason> {
        match self.find(position, name) {
            Some(value) => {
                number(value).map(Some).ok_or_else(|| format!("argument `{name}` is not a number"))
            }
            None => Ok(None),
        }
    }

    /// A list of integers; a single integer is a list of one.
    pub fn integers(self, position: usize, name: &str) -> Result<Option<Vec<i64>>, Reason> {
        let Some(value) = self.find(position, name) else { return Ok(None) };
        let list = match value {
            Json::Array(items) => items.iter().map(integer).collect(),
            single => integer(single).map(|single| vec![single]),
        };
        list.map(Some).ok_or_else(|| format!("argument `{name}` is not a list of integers"))
    }

    /// Requires that an argument is absent or null.
    pub fn absent(self, position: usize, name: &str) -> Result<(), Reason> {
        match self.find(position, name) {
            Some(_) => Err(format!("argument `{name}` is not supported")),
            None => Ok(()),
        }
    }
}

/// An integer; torch writes the largest i64 for the end of an axis.
fn integer(value: &Json) -> Option<i64> {
    value.as_i64()
}

/// A number, or one of the special numbers that JSON cannot express.
pub(super) fn number(value: &Json) -> Option<f64> {
    match value.get("number").and_then(Json::as_str) {
        Some("nan") => Some(f64::NAN),
        Some("inf") => Some(f64::INFINITY),
        Some("-inf") => Some(f64::NEG_INFINITY),
        Some(_) => None,
        None => value.as_f64(),
    }
}

/// The name of the node that an argument refers to.
pub(super) fn node_name(value: &Json) -> Option<&str> {
    value.get("node").and_then(Json::as_str)
}
