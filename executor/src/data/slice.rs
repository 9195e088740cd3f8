//! Slices of stored tensors, as in NumPy without negative numbers.

use std::fmt;

use super::reference_error::ReferenceError;

/// The part that a slice takes of one axis of a stored tensor. Units are stored elements: bytes for FP4 packed in `U8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AxisSlice {
    /// The whole axis: `:`.
    Whole,
    /// One index, which removes the axis: `I`.
    Index(u64),
    /// Every `step`-th index from `start` to before `end`: `A:B` or `A:B:S`.
    Range {
        /// The first index.
        start: u64,
        /// The index after the last; at most the axis's extent.
        end: u64,
        /// The distance of indices, at least 1.
        step: u64,
    },
}

impl AxisSlice {
    /// The indices from `start` to before `end`.
    pub fn range(start: u64, end: u64) -> AxisSlice {
        AxisSlice::Range { start, end, step: 1 }
    }

    /// Parses the slice of one axis.
    pub(super) fn parse(text: &str) -> Result<AxisSlice, ReferenceError> {
        let wrong = || ReferenceError::Slice { found: text.to_owned() };
        let number = |text: &str| number(text).ok_or_else(wrong);
        let text = text.trim();
        let parts: Vec<&str> = text.splitn(4, ':').map(str::trim).collect();
        let slice = match parts[..] {
            ["", ""] => AxisSlice::Whole,
            [index] => AxisSlice::Index(number(index)?),
            [start, end] => AxisSlice::range(number(start)?, number(end)?),
            [start, end, step] => {
                AxisSlice::Range { start: number(start)?, end: number(end)?, step: number(step)? }
            }
            _ => return Err(wrong()),
        };
        match slice {
            AxisSlice::Range { step: 0, .. } => Err(ReferenceError::ZeroStep { slice: text.to_owned() }),
            AxisSlice::Range { start, end, .. } if start > end => {
                Err(ReferenceError::Backward { slice: text.to_owned() })
            }
            slice => Ok(slice),
        }
    }
}

/// Parses a number without a sign.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
}

impl fmt::Display for AxisSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AxisSlice::Whole => f.write_str(":"),
            AxisSlice::Index(index) => write!(f, "{index}"),
            AxisSlice::Range { start, end, step: 1 } => write!(f, "{start}:{end}"),
            AxisSlice::Range { start, end, step } => write!(f, "{start}:{end}:{step}"),
        }
    }
}
