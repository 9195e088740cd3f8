//! Reads the attributes and named operands of one op from their text.

use super::{AttributeError, AttributeValue, ConstantValue, PadAmount, SliceRange};
use crate::numeric::{
    CodeFormula, InfinityScale, LeastScale, LeastStep, MxEdges, NanScale, Nvfp4Formula, ScaleMin, Scaling,
};

/// Reads attributes by name, and knows which were read.
pub(super) struct AttributeReader<'a> {
    op: &'a str,
    attributes: &'a [(&'a str, AttributeValue)],
    used: Vec<&'static str>,
}

impl<'a> AttributeReader<'a> {
    pub(super) fn new(op: &'a str, attributes: &'a [(&'a str, AttributeValue)]) -> AttributeReader<'a> {
        AttributeReader { op, attributes, used: Vec::new() }
    }

    fn find(&mut self, name: &'static str) -> Option<&'a AttributeValue> {
        self.used.push(name);
        self.attributes.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn require(
        &mut self,
        name: &'static str,
        expected: &'static str,
    ) -> Result<&'a AttributeValue, AttributeError> {
        self.find(name).ok_or(AttributeError::Missing { op: self.op.to_owned(), name, expected })
    }

    fn invalid(&self, name: &'static str, expected: &'static str, found: &AttributeValue) -> AttributeError {
        AttributeError::Invalid { op: self.op.to_owned(), name, expected, found: found.to_string() }
    }

    pub(super) fn number(&mut self, name: &'static str) -> Result<f64, AttributeError> {
        let expected = "a number";
        match self.require(name, expected)? {
            AttributeValue::Number(number) => Ok(*number),
            other => Err(self.invalid(name, expected, other)),
        }
    }

    /// The formula of an NVFP4 quantization. An absent attribute has its default.
    pub(super) fn formula(&mut self) -> Result<Nvfp4Formula, AttributeError> {
        let scaling = "divide or multiply";
        let codes = "quotient, reciprocal_step or reciprocal_scale";
        let formula = Nvfp4Formula {
            amax: self.optional_word("amax", scaling, Scaling::from_name)?.unwrap_or_default(),
            global: self.optional_word("global", scaling, Scaling::from_name)?.unwrap_or_default(),
            codes: self.optional_word("codes", codes, CodeFormula::from_name)?.unwrap_or_default(),
            guard: self.optional_word("guard", "true or false", bool_from_name)?.unwrap_or(true),
            mx: self.edges()?,
            ..Nvfp4Formula::DEFAULT
        };
        let Some(value) = self.find("scale_min") else { return Ok(formula) };
        let bounded = match value {
            AttributeValue::Number(number) if f64::from(*number as f32) == *number => {
                ScaleMin::new(*number as f32)
            }
            _ => None,
        };
        let invalid = || self.invalid("scale_min", "an f32 of at most 448", value);
        Ok(Nvfp4Formula { scale_min: bounded.ok_or_else(invalid)?, ..formula })
    }

    /// The edges of an MX quantization. An absent attribute has its default.
    fn edges(&mut self) -> Result<MxEdges, AttributeError> {
        let infinity = self.optional_word("infinity", "largest or exponent", InfinityScale::from_name)?;
        let nan = self.optional_word("nan", "propagate, infinite_step or infinity", NanScale::from_name)?;
        let least_step = self.optional_word("least_step", "scale, normal or one", LeastStep::from_name)?;
        let least_scale = match self.find("least_scale") {
            None => Some(LeastScale::default()),
            Some(AttributeValue::Number(number)) if f64::from(*number as f32) == *number => {
                LeastScale::new(*number as f32)
            }
            Some(_) => None,
        };
        let Some(least_scale) = least_scale else {
            let found = self.require("least_scale", "a power of two")?;
            return Err(self.invalid("least_scale", "a power of two from 2^-127 to 2^127", found));
        };
        Ok(MxEdges {
            infinity: infinity.unwrap_or_default(),
            nan: nan.unwrap_or_default(),
            least_scale,
            least_step: least_step.unwrap_or_default(),
        })
    }

    pub(super) fn whole(&mut self, name: &'static str) -> Result<u32, AttributeError> {
        let expected = "a whole number";
        match self.require(name, expected)? {
            AttributeValue::Number(number) if is_whole(*number) => Ok(*number as u32),
            other @ AttributeValue::Number(number) if is_too_large(*number, MOST_U32) => {
                Err(self.invalid(name, AT_MOST_U32, other))
            }
            other => Err(self.invalid(name, expected, other)),
        }
    }

    pub(super) fn whole_list(&mut self, name: &'static str) -> Result<Vec<u32>, AttributeError> {
        let expected = "a list of whole numbers";
        match self.require(name, expected)? {
            AttributeValue::Numbers(numbers) if numbers.iter().all(|number| is_whole(*number)) => {
                Ok(numbers.iter().map(|number| *number as u32).collect())
            }
            other if has_too_large(other, MOST_U32) => Err(self.invalid(name, EACH_AT_MOST_U32, other)),
            other => Err(self.invalid(name, expected, other)),
        }
    }

    /// A list of one number per axis of the attribute `axes`.
    fn list_per_axis(
        &mut self,
        name: &'static str,
        axes: usize,
        value: &AttributeValue,
    ) -> Result<Vec<u64>, AttributeError> {
        match value {
            AttributeValue::Numbers(numbers)
                if numbers.len() == axes && numbers.iter().all(|number| is_whole_u64(*number)) =>
            {
                Ok(numbers.iter().map(|number| *number as u64).collect())
            }
            other if has_too_large(other, MOST_U64) => Err(self.invalid(name, EACH_AT_MOST_U64, other)),
            other => Err(self.invalid(name, PER_AXIS, other)),
        }
    }

    fn required_per_axis(&mut self, name: &'static str, axes: usize) -> Result<Vec<u64>, AttributeError> {
        let value = self.require(name, PER_AXIS)?;
        self.list_per_axis(name, axes, value)
    }

    /// The ranges of a `slice`. Steps are 1 by default.
    pub(super) fn ranges(&mut self) -> Result<Vec<SliceRange>, AttributeError> {
        let axes = self.whole_list("axes")?;
        let starts = self.required_per_axis("starts", axes.len())?;
        let ends = self.required_per_axis("ends", axes.len())?;
        let steps = match self.find("steps") {
            Some(value) => self.list_per_axis("steps", axes.len(), value)?,
            None => vec![1; axes.len()],
        };
        let bounds = starts.into_iter().zip(ends).zip(steps);
        let ranges = axes.into_iter().zip(bounds);
        Ok(ranges.map(|(axis, ((start, end), step))| SliceRange { axis, start, end, step }).collect())
    }

    /// The amounts of a `pad`.
    pub(super) fn amounts(&mut self) -> Result<Vec<PadAmount>, AttributeError> {
        let axes = self.whole_list("axes")?;
        let low = self.required_per_axis("low", axes.len())?;
        let high = self.required_per_axis("high", axes.len())?;
        let amounts = axes.into_iter().zip(low.into_iter().zip(high));
        Ok(amounts.map(|(axis, (low, high))| PadAmount { axis, low, high }).collect())
    }

    pub(super) fn constant(&mut self, name: &'static str) -> Result<ConstantValue, AttributeError> {
        let expected = "a number or a list of numbers";
        match self.require(name, expected)? {
            AttributeValue::Number(number) => Ok(ConstantValue::Splat(*number)),
            AttributeValue::Numbers(numbers) => Ok(ConstantValue::Dense(numbers.clone())),
            other => Err(self.invalid(name, expected, other)),
        }
    }

    pub(super) fn word<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, AttributeError> {
        self.optional_word(name, expected, parse)?.ok_or(AttributeError::Missing {
            op: self.op.to_owned(),
            name,
            expected,
        })
    }

    pub(super) fn optional_word<T>(
        &mut self,
        name: &'static str,
        expected: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, AttributeError> {
        match self.find(name) {
            None => Ok(None),
            Some(value @ AttributeValue::Word(word)) => match parse(word) {
                Some(parsed) => Ok(Some(parsed)),
                None => Err(self.invalid(name, expected, value)),
            },
            Some(other) => Err(self.invalid(name, expected, other)),
        }
    }

    pub(super) fn finish(self) -> Result<(), AttributeError> {
        match self.attributes.iter().find(|(name, _)| !self.used.contains(name)) {
            None => Ok(()),
            Some((name, _)) => {
                Err(AttributeError::UnknownAttribute { op: self.op.to_owned(), name: (*name).to_owned() })
            }
        }
    }
}

/// Takes named operands, and knows which were taken.
pub(super) struct NamedOperands<'a> {
    names: &'a [&'a str],
    taken: Vec<&'a str>,
}

impl<'a> NamedOperands<'a> {
    pub(super) fn new(names: &'a [&'a str]) -> NamedOperands<'a> {
        NamedOperands { names, taken: Vec::new() }
    }

    pub(super) fn take(&mut self, name: &str) -> bool {
        let found = self.names.iter().find(|found| **found == name);
        self.taken.extend(found);
        found.is_some()
    }

    pub(super) fn finish(self, op: &str) -> Result<(), AttributeError> {
        if self.taken.len() == self.names.len() {
            return Ok(());
        }
        let stray = self.names.iter().find(|name| !self.taken.contains(name));
        Err(AttributeError::UnknownNamedOperand {
            op: op.to_owned(),
            name: stray.map_or_else(|| "(repeated)".to_owned(), |name| (*name).to_owned()),
        })
    }
}

/// The expected value of an attribute with one number per axis.
const PER_AXIS: &str = "a list of whole numbers, one for each of `axes`";

const MOST_U32: f64 = u32::MAX as f64;
const AT_MOST_U32: &str = "at most 4294967295";
const EACH_AT_MOST_U32: &str = "a list of numbers of at most 4294967295";

/// The greatest whole number up to which an f64 represents every one.
const MOST_U64: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;
const EACH_AT_MOST_U64: &str = "a list of numbers of at most 9007199254740992";

/// Returns true for the whole numbers that an f64 represents exactly.
fn is_whole_u64(number: f64) -> bool {
    number.fract() == 0.0 && (0.0..=MOST_U64).contains(&number)
}

fn is_whole(number: f64) -> bool {
    number.fract() == 0.0 && (0.0..=MOST_U32).contains(&number)
}

/// Returns true for a whole number above a limit.
fn is_too_large(number: f64, most: f64) -> bool {
    number.fract() == 0.0 && most < number
}

/// Returns true for a list of whole numbers, of which some are above a limit.
fn has_too_large(value: &AttributeValue, most: f64) -> bool {
    let AttributeValue::Numbers(numbers) = value else { return false };
    let is_whole = |number: &f64| number.fract() == 0.0 && *number >= 0.0;
    numbers.iter().all(is_whole) && numbers.iter().any(|number| is_too_large(*number, most))
}

pub(super) fn bool_from_name(name: &str) -> Option<bool> {
    match name {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}
