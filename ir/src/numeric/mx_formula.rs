//! The edges of an MX quantization: blocks with an infinity or a NaN, and the smallest scales.
//!
//! Programs that write the quantization out op by op agree on ordinary blocks and differ at the edges. Each field of
//! [`MxEdges`] is one of these differences, so that every such program equals one formula bit for bit.

use super::formats::{ONE_POINT_75, ScaleRounding, e8m0_to_f32};
use super::mx_element::MxElement;
use crate::named::named;

/// The byte of the largest `f8E8M0FNU` value, 2^127.
const LARGEST: u8 = 0xFE;

/// The `f8E8M0FNU` byte of NaN.
const NAN: u8 = 0xFF;

/// The scale of a block with an infinity and no NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InfinityScale {
    /// 2^127.
    #[default]
    Largest,
    /// That of a block whose largest magnitude is 2^128, as exponent arithmetic on the bits gives it.
    Exponent,
}

/// The scale and the step of a block with a NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NanScale {
    /// Both are NaN, and so is every code.
    #[default]
    Propagate,
    /// The scale is NaN and the step is infinite: codes of finite values are 0.
    InfiniteStep,
    /// Both are those of a block with an infinity.
    Infinity,
}

/// The step of a block whose scale is 2^-127, the least one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeastStep {
    /// The scale.
    #[default]
    Scale,
    /// 2^-126, the least normal f32.
    Normal,
    /// 1.
    One,
}

/// A lower bound of MX scales: a power of two. The default is 2^-127, which bounds nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeastScale(u8);

impl LeastScale {
    /// The bound; `None` unless it is a power of two from 2^-127 to 2^127.
    pub fn new(bound: f32) -> Option<LeastScale> {
        (0..=LARGEST).find(|byte| e8m0_to_f32(*byte) == bound).map(LeastScale)
    }

    /// The bound with this `f8E8M0FNU` byte; `None` for NaN.
    pub fn of_byte(byte: u8) -> Option<LeastScale> {
        (byte != NAN).then_some(LeastScale(byte))
    }

    /// The `f8E8M0FNU` byte of the bound.
    pub fn byte(self) -> u8 {
        self.0
    }

    /// The bound as a number.
    pub fn get(self) -> f32 {
        e8m0_to_f32(self.0)
    }
}

/// The edges of an MX quantization. The default is the meaning of `block_quantize` without attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MxEdges {
    /// The scale of a block with an infinity.
    pub infinity: InfinityScale,
    /// The scale and the step of a block with a NaN.
    pub nan: NanScale,
    /// The lower bound of scales.
    pub least_scale: LeastScale,
    /// The step where the scale is 2^-127.
    pub least_step: LeastStep,
}

impl MxEdges {
    /// The meaning of `block_quantize` without attributes.
    pub const DEFAULT: MxEdges = MxEdges {
        infinity: InfinityScale::Largest,
        nan: NanScale::Propagate,
        least_scale: LeastScale(0),
        least_step: LeastStep::Scale,
    };

    /// The `f8E8M0FNU` scale of a block whose largest magnitude is `amax`: NaN if any value is NaN, 0 for an empty
    /// block.
    pub fn scale(self, amax: f32, element: MxElement, rounding: ScaleRounding) -> u8 {
        let amax = match self.nan {
            NanScale::Infinity if amax.is_nan() => f32::INFINITY,
            _ if amax.is_nan() => return NAN,
            _ => amax,
        };
        if amax == f32::INFINITY && self.infinity == InfinityScale::Largest {
            return LARGEST;
        }
        // amax = m * 2^e and max = m' * 2^emax with both m in [1, 2), so amax / max lies in
        // (2^(e - emax - 1), 2^(e - emax)] if m <= m', and in the binade above otherwise. A subnormal amax
        // ends at byte 0 either way.
        let above = match rounding {
            ScaleRounding::Floor => false,
            ScaleRounding::Ceil => mantissa(amax) > mantissa(element.max_value()),
            ScaleRounding::Even => mantissa(amax) >= ONE_POINT_75,
        };
        // An infinity has the exponent 255 and the mantissa 0.
        let power = (amax.to_bits() >> 23) + u32::from(above);
        let byte = power.saturating_sub(u32::from(element.max_exponent()));
        (byte as u8).max(self.least_scale.0)
    }

    /// The divisor of the values of a block with this scale.
    pub fn step(self, scale: u8) -> f32 {
        match (scale, self.least_step) {
            (NAN, _) if self.nan == NanScale::InfiniteStep => f32::INFINITY,
            (0, LeastStep::Normal) => f32::MIN_POSITIVE,
            (0, LeastStep::One) => 1.0,
            _ => e8m0_to_f32(scale),
        }
    }

    /// The words of these edges that are not the default, as they are part of names and signatures.
    pub(super) fn words(self) -> Vec<String> {
        let words = [
            (self.infinity == InfinityScale::Exponent).then(|| "infexp".to_owned()),
            match self.nan {
                NanScale::Propagate => None,
                NanScale::InfiniteStep => Some("nanstep".to_owned()),
                NanScale::Infinity => Some("naninf".to_owned()),
            },
            (self.least_scale.0 != 0).then(|| format!("least{:02x}", self.least_scale.0)),
            match self.least_step {
                LeastStep::Scale => None,
                LeastStep::Normal => Some("normalstep".to_owned()),
                LeastStep::One => Some("onestep".to_owned()),
            },
        ];
        words.into_iter().flatten().collect()
    }

    /// Applies one of [`MxEdges::words`]. `None` for any other word.
    pub(super) fn apply(&mut self, word: &str) -> Option<()> {
        match word {
            "infexp" => self.infinity = InfinityScale::Exponent,
            "nanstep" => self.nan = NanScale::InfiniteStep,
            "naninf" => self.nan = NanScale::Infinity,
            "normalstep" => self.least_step = LeastStep::Normal,
            "onestep" => self.least_step = LeastStep::One,
            _ => {
                let byte = u8::from_str_radix(word.strip_prefix("least")?, 16).ok()?;
                self.least_scale = LeastScale::of_byte(byte)?;
            }
        }
        Some(())
    }
}

/// The mantissa bits of `v`.
fn mantissa(v: f32) -> u32 {
    v.to_bits() & 0x007F_FFFF
}

named!(InfinityScale { Largest => "largest", Exponent => "exponent", });
named!(NanScale { Propagate => "propagate", InfiniteStep => "infinite_step", Infinity => "infinity", });
named!(LeastStep { Scale => "scale", Normal => "normal", One => "one", });

#[cfg(test)]
mod tests {
    use super::*;

    const FP4: MxElement = MxElement::E2M1;

    #[test]
    fn edges_change_only_blocks_at_the_edges() {
        let all = InfinityScale::ALL.iter().flat_map(|infinity| {
            NanScale::ALL.iter().flat_map(move |nan| {
                LeastStep::ALL.iter().map(move |least_step| MxEdges {
                    infinity: *infinity,
                    nan: *nan,
                    least_step: *least_step,
                    ..MxEdges::DEFAULT
                })
            })
        });
        for edges in all {
            for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even] {
                let scale = |amax: f32| edges.scale(amax, FP4, rounding);
                assert_eq!([0.0, 1e-40, 4.0].map(scale), [0, 0, 127], "{edges:?}");
                let ordinary = MxEdges::DEFAULT.scale(7.0, FP4, rounding);
                assert_eq!((scale(7.0), edges.step(ordinary)), (ordinary, e8m0_to_f32(ordinary)));
                let infinite = scale(f32::INFINITY);
                assert_eq!(infinite, if edges.infinity == InfinityScale::Largest { 0xFE } else { 253 });
                match edges.nan {
                    NanScale::Propagate => assert!(edges.step(scale(f32::NAN)).is_nan()),
                    NanScale::InfiniteStep => {
                        assert_eq!((scale(f32::NAN), edges.step(0xFF)), (0xFF, f32::INFINITY));
                    }
                    NanScale::Infinity => assert_eq!(scale(f32::NAN), infinite),
                }
            }
        }
    }

    #[test]
    fn the_least_scale_and_the_least_step_are_bounds() {
        let edges = MxEdges { least_scale: LeastScale::new(0.5).expect("a power"), ..MxEdges::DEFAULT };
        assert_eq!([0.0, 3.0, 8.0].map(|amax| edges.scale(amax, FP4, ScaleRounding::Floor)), [126, 126, 128]);
        let step = |least_step| MxEdges { least_step, ..MxEdges::DEFAULT }.step(0);
        assert_eq!(step(LeastStep::Scale), 2f32.powi(-126) / 2.0);
        assert_eq!([step(LeastStep::Normal), step(LeastStep::One)], [2f32.powi(-126), 1.0]);
        assert_eq!([0.75, 0.0, -1.0, f32::INFINITY, f32::NAN].map(LeastScale::new), [None; 5]);
    }
}
