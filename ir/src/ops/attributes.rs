//! The attributes of ops as text has them, and their errors.

use std::fmt;

use super::{PadAmount, SliceRange};
use crate::numeric::Nvfp4Formula;

/// The value of an attribute as it is written in text.
#[derive(Clone, Debug, PartialEq)]
pub enum AttributeValue {
    /// A number: `16`, `-1.5`, `1e-12`, `inf`, `-inf`, `nan`.
    Number(f64),
    /// A bare word: `floor`, `true`.
    Word(String),
    /// `[1, 2]`
    Numbers(Vec<f64>),
}

impl AttributeValue {
    pub(super) fn word(word: &str) -> AttributeValue {
        AttributeValue::Word(word.to_owned())
    }
}

impl fmt::Display for AttributeValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeValue::Number(number) => write_number(f, *number),
            AttributeValue::Word(word) => f.write_str(word),
            AttributeValue::Numbers(numbers) => {
                f.write_str("[")?;
                for (index, number) in numbers.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { ", " })?;
                    write_number(f, *number)?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Writes the shortest text that parses to the same number. Integers have no decimal point, NaN has no sign.
fn write_number(f: &mut fmt::Formatter<'_>, number: f64) -> fmt::Result {
    if number.is_nan() {
        return f.write_str("nan");
    }
    let text = format!("{number:?}");
    f.write_str(text.strip_suffix(".0").unwrap_or(&text))
}

/// An error in the mnemonic, attributes or named operands of an op.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AttributeError {
    /// No op has this mnemonic.
    #[error("unknown op `{0}`")]
    UnknownOp(String),
    /// The op has no such attribute.
    #[error("`{op}` has no attribute `{name}`")]
    UnknownAttribute {
        /// The mnemonic.
        op: String,
        /// The attribute.
        name: String,
    },
    /// A required attribute is missing.
    #[error("`{op}` requires the attribute `{name}` ({expected})")]
    Missing {
        /// The mnemonic.
        op: String,
        /// The attribute.
        name: &'static str,
        /// The allowed values.
        expected: &'static str,
    },
    /// An attribute's value has the wrong form.
    #[error("attribute `{name}` of `{op}` must be {expected}, not {found}")]
    Invalid {
        /// The mnemonic.
        op: String,
        /// The attribute.
        name: &'static str,
        /// The allowed values.
        expected: &'static str,
        /// The value given.
        found: String,
    },
    /// The op has no named operand with this name.
    #[error("`{op}` has no named operand `{name}`")]
    UnknownNamedOperand {
        /// The mnemonic.
        op: String,
        /// The operand's name.
        name: String,
    },
}

/// The attributes of a formula that differ from the default.
pub(super) fn formula_attributes(formula: Nvfp4Formula) -> Vec<(&'static str, AttributeValue)> {
    let default = Nvfp4Formula::DEFAULT;
    let mut attributes = Vec::new();
    if formula.amax != default.amax {
        attributes.push(("amax", AttributeValue::word(formula.amax.name())));
    }
    if formula.codes != default.codes {
        attributes.push(("codes", AttributeValue::word(formula.codes.name())));
    }
    if formula.global != default.global {
        attributes.push(("global", AttributeValue::word(formula.global.name())));
    }
    if !formula.guard {
        attributes.push(("guard", AttributeValue::word("false")));
    }
    if formula.scale_min != default.scale_min {
        attributes.push(("scale_min", AttributeValue::Number(f64::from(formula.scale_min.get()))));
    }
    let (edges, default) = (formula.mx, default.mx);
    if edges.infinity != default.infinity {
        attributes.push(("infinity", AttributeValue::word(edges.infinity.name())));
    }
    if edges.least_scale != default.least_scale {
        attributes.push(("least_scale", AttributeValue::Number(f64::from(edges.least_scale.get()))));
    }
    if edges.least_step != default.least_step {
        attributes.push(("least_step", AttributeValue::word(edges.least_step.name())));
    }
    if edges.nan != default.nan {
        attributes.push(("nan", AttributeValue::word(edges.nan.name())));
    }
    attributes
}

pub(super) fn slice_attributes(ranges: &[SliceRange]) -> Vec<(&'static str, AttributeValue)> {
    let list = |number: fn(&SliceRange) -> f64| AttributeValue::Numbers(ranges.iter().map(number).collect());
    let mut attributes = vec![
        ("axes", list(|range| f64::from(range.axis))),
        ("ends", list(|range| range.end as f64)),
        ("starts", list(|range| range.start as f64)),
    ];
    if ranges.iter().any(|range| range.step != 1) {
        attributes.push(("steps", list(|range| range.step as f64)));
    }
    attributes
}

pub(super) fn pad_attributes(amounts: &[PadAmount], value: f64) -> Vec<(&'static str, AttributeValue)> {
    let list = |number: fn(&PadAmount) -> f64| AttributeValue::Numbers(amounts.iter().map(number).collect());
    vec![
        ("axes", list(|amount| f64::from(amount.axis))),
        ("high", list(|amount| amount.high as f64)),
        ("low", list(|amount| amount.low as f64)),
        ("value", AttributeValue::Number(value)),
    ]
}
