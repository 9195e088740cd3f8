//! The element formats of MX blocks.

use super::formats::{
    e2m1_from_f32, e2m1_to_f32, e2m3_from_f64, e2m3_to_f32, e3m2_from_f64, e3m2_to_f32, e4m3_from_f32,
    e4m3_to_f32, e5m2_from_f32, e5m2_to_f32,
};
use crate::types::ElementType;

/// The element format of an MX block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MxElement {
    /// `f4E2M1FN`: MXFP4.
    E2M1,
    /// `f6E2M3FN`: MXFP6 with more precision.
    E2M3,
    /// `f6E3M2FN`: MXFP6 with more range.
    E3M2,
    /// `f8E4M3FN`: MXFP8 with more precision.
    E4M3,
    /// `f8E5M2`: MXFP8 with more range.
    E5M2,
}

impl MxElement {
    /// The format of block data of this type; `None` for other types.
    pub fn of(element: ElementType) -> Option<MxElement> {
        Some(match element {
            ElementType::F4E2M1FN => Self::E2M1,
            ElementType::F6E2M3FN => Self::E2M3,
            ElementType::F6E3M2FN => Self::E3M2,
            ElementType::F8E4M3FN => Self::E4M3,
            ElementType::F8E5M2 => Self::E5M2,
            _ => return None,
        })
    }

    /// The exponent of the largest finite value (emax in the OCP MX specification).
    pub fn max_exponent(self) -> u8 {
        match self {
            Self::E2M1 | Self::E2M3 => 2,
            Self::E3M2 => 4,
            Self::E4M3 => 8,
            Self::E5M2 => 15,
        }
    }

    /// The largest finite value.
    pub fn max_value(self) -> f32 {
        match self {
            Self::E2M1 => 6.0,
            Self::E2M3 => 7.5,
            Self::E3M2 => 28.0,
            Self::E4M3 => 448.0,
            Self::E5M2 => 57344.0,
        }
    }

    /// Encodes `v` with the conversion of the format.
    #[inline]
    pub fn encode(self, v: f32) -> u8 {
        match self {
            Self::E2M1 => e2m1_from_f32(v),
            Self::E2M3 => e2m3_from_f64(f64::from(v)),
            Self::E3M2 => e3m2_from_f64(f64::from(v)),
            Self::E4M3 => e4m3_from_f32(v),
            Self::E5M2 => e5m2_from_f32(v),
        }
    }

    /// Decodes a code with the `*_to_f32` function of the format.
    #[inline]
    pub fn decode(self, code: u8) -> f32 {
        match self {
            Self::E2M1 => e2m1_to_f32(code),
            Self::E2M3 => e2m3_to_f32(code),
            Self::E3M2 => e3m2_to_f32(code),
            Self::E4M3 => e4m3_to_f32(code),
            Self::E5M2 => e5m2_to_f32(code),
        }
    }
}
