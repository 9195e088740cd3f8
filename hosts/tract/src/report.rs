//! The report of a rewritten model.

use std::fmt;

/// Reason codes of nodes that were not handed to Fourfold. The codes of [`fourfold::scheduler::ReasonCode`] follow
/// for nodes that were, but are in no kernel.
pub mod reason {
    /// The op has no counterpart.
    pub const UNSUPPORTED_OP: &str = "unsupported_op";
    /// The element type has no counterpart.
    pub const UNSUPPORTED_TYPE: &str = "unsupported_type";
    /// The shape has no counterpart.
    pub const UNSUPPORTED_SHAPE: &str = "unsupported_shape";
    /// A product without two block-scaled operands stays with tract.
    pub const PLAIN_PRODUCT: &str = "plain_product";
    /// A dequantization stays with tract unless products alone read it.
    pub const DEQUANTIZED: &str = "dequantized";
    /// Fourfold's verifier refused the translation.
    pub const INVALID: &str = "invalid";
    /// The node needs, through an op of tract, a result of the segment that it would be part of.
    pub const BEHIND_HOST_OP: &str = "behind_host_op";
    /// The operands are constants.
    pub const CONSTANT: &str = "constant";
}

/// The reason that a node stays with tract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// A code of [`reason`] or of [`fourfold::scheduler::ReasonCode`].
    pub code: &'static str,
    /// For people: the value found and the value expected.
    pub message: String,
}

impl Reason {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Reason {
        Reason { code, message: message.into() }
    }
}

/// The executor of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The segment with this number computes the node.
    Segment(usize),
    /// The node is gone: the segments that read it compute it themselves.
    Absorbed,
    /// tract computes the node.
    Kept(Reason),
}

/// One node of the model before it was rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The node's name.
    pub name: String,
    /// The op's name in tract.
    pub op: String,
    /// The executor.
    pub fate: Fate,
}

/// One segment: a node that replaces others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// The name of the node in the model.
    pub name: String,
    /// The code and message that keep its kernel from running here, such as `no_device`. It runs on the fallback then.
    pub unavailable: Option<(String, String)>,
}

/// The result of [`Fourfold::rewrite`](crate::Fourfold::rewrite).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The target of the plan, such as `sm_90a`.
    pub target: String,
    /// Every node except sources and constants, in an order in which they can run.
    pub nodes: Vec<NodeReport>,
    /// The segments, by number.
    pub segments: Vec<SegmentReport>,
}

impl Report {
    /// The reason that the node `name` stays with tract; `None` if it does not, or does not exist.
    pub fn kept(&self, name: &str) -> Option<&Reason> {
        match &self.nodes.iter().find(|node| node.name == name)?.fate {
            Fate::Kept(reason) => Some(reason),
            Fate::Segment(_) | Fate::Absorbed => None,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.segments.len() == 1 { "" } else { "s" };
        writeln!(f, "target {}, {} segment{plural}", self.target, self.segments.len())?;
        for node in &self.nodes {
            write!(f, "{:<24} {:<16} ", node.name, node.op)?;
            match &node.fate {
                Fate::Segment(segment) => writeln!(f, "segment {segment}")?,
                Fate::Absorbed => writeln!(f, "absorbed")?,
                Fate::Kept(reason) => writeln!(f, "tract    {}: {}", reason.code, reason.message)?,
            }
        }
        for (index, segment) in self.segments.iter().enumerate() {
            write!(f, "segment {index}: {}", segment.name)?;
            match &segment.unavailable {
                Some((code, message)) => writeln!(f, ", on the fallback: {code}: {message}")?,
                None => writeln!(f, ", on the device")?,
            }
        }
        Ok(())
    }
}
