//! The formula by which `block_quantize` computes NVFP4 scales and codes, with the edges of the MX formats.
//!
//! Programs that write the quantization out op by op differ in a few roundings and guards. Each field of
//! [`Nvfp4Formula`] is one of these differences, so that every such program equals one formula bit for bit.

use std::fmt;
use std::str::FromStr;

use super::formats::{e2m1_from_f32, e4m3_from_f32, e4m3_to_f32, ue4m3_from_f32, ue4m3_to_f32};
use super::mx_formula::MxEdges;
use crate::named::named;

/// The largest `f4E2M1FN` value. The scale maps a block's largest magnitude to it.
const E2M1_MAX: f32 = 6.0;

/// The largest `f8E4M3FN` value.
const E4M3_MAX: f32 = 448.0;

/// rn(1/6).
const SIXTH: f32 = 1.0 / E2M1_MAX;

/// The way in which a factor enters a formula.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scaling {
    /// As a divisor.
    #[default]
    Divide,
    /// As a multiplier.
    Multiply,
}

/// The way in which a code follows from a value v, the block's scale s and the per-tensor scale g.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CodeFormula {
    /// rn(v / step), with step = rn(s · g), or rn(s / g) if g multiplies.
    #[default]
    Quotient,
    /// rn(v · rn(1 / step)).
    ReciprocalStep,
    /// rn(v · rn(rn(1 / g) / s)), or rn(v · rn(g / s)) if g multiplies.
    ReciprocalScale,
}

/// The lower bound of a scale before it is rounded: a number of at most 448. Minus infinity means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScaleMin(u32);

impl ScaleMin {
    /// The bound; `None` for NaN and numbers above 448.
    pub fn new(bound: f32) -> Option<ScaleMin> {
        (bound <= E4M3_MAX).then_some(ScaleMin(bound.to_bits()))
    }

    /// The bound as a number.
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

/// The formula of an NVFP4 quantization. The default is the meaning of `block_quantize` without attributes.
///
/// ```text
/// t = rn(rn(amax / 6) / g)             amax: Multiply gives rn(amax · rn(1/6)), global: Multiply gives rn(.. · g)
/// s = e4m3(clamp(t, scale_min, 448))
/// q = e2m1(v as `codes` says)
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nvfp4Formula {
    /// The lower bound of t.
    pub scale_min: ScaleMin,
    /// The way in which 6 enters t.
    pub amax: Scaling,
    /// The way in which g enters t; it enters the step inversely.
    pub global: Scaling,
    /// The way in which codes are computed.
    pub codes: CodeFormula,
    /// True if scales are unsigned, and codes are 0 where amax or the step is 0. Without guards, the formula is taken
    /// literally: 0/0 is NaN, and the scale has the sign of t.
    pub guard: bool,
    /// The edges of the MX formats, to which no other field applies. The default for NVFP4.
    pub mx: MxEdges,
}

impl Default for Nvfp4Formula {
    fn default() -> Nvfp4Formula {
        Nvfp4Formula::DEFAULT
    }
}

/// The operation that turns a value into its code, for one block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Nvfp4Step {
    /// The code is 0.
    Zero,
    /// The code is that of the quotient.
    Divide(f32),
    /// The code is that of the product.
    Multiply(f32),
}

impl Nvfp4Step {
    /// The `f4E2M1FN` code of a value.
    #[inline]
    pub fn code(self, v: f32) -> u8 {
        match self {
            Nvfp4Step::Zero => 0x0,
            Nvfp4Step::Divide(step) => e2m1_from_f32(v / step),
            Nvfp4Step::Multiply(factor) => e2m1_from_f32(v * factor),
        }
    }
}

impl Nvfp4Formula {
    /// The meaning of `block_quantize` without attributes.
    pub const DEFAULT: Nvfp4Formula = Nvfp4Formula {
        scale_min: ScaleMin(0),
        amax: Scaling::Divide,
        global: Scaling::Divide,
        codes: CodeFormula::Quotient,
        guard: true,
        mx: MxEdges::DEFAULT,
    };

    /// The scale of a block whose largest magnitude is `amax`: NaN if any value is NaN, 0 for an empty block.
    pub fn scale(self, amax: f32, global: f32) -> u8 {
        let of_global = |x: f32| match self.global {
            Scaling::Divide => x / global,
            Scaling::Multiply => x * global,
        };
        // A block of zeros has the same scale under every g, 0 and NaN included.
        let t = if self.guard && amax == 0.0 {
            0.0
        } else {
            of_global(match self.amax {
                Scaling::Divide => amax / E2M1_MAX,
                Scaling::Multiply => amax * SIXTH,
            })
        };
        // The conversion saturates at 448, which is the upper bound.
        let t = at_least(t, self.scale_min.get());
        if self.guard { ue4m3_from_f32(t) } else { e4m3_from_f32(t) }
    }

    /// The operation that computes the codes of a block with this scale.
    pub fn step(self, scale: u8, amax: f32, global: f32) -> Nvfp4Step {
        let s = if self.guard { ue4m3_to_f32(scale) } else { e4m3_to_f32(scale) };
        let step = match self.global {
            Scaling::Divide => s * global,
            Scaling::Multiply => s / global,
        };
        if self.guard && (amax == 0.0 || step == 0.0) {
            return Nvfp4Step::Zero;
        }
        match (self.codes, self.global) {
            (CodeFormula::Quotient, _) => Nvfp4Step::Divide(step),
            (CodeFormula::ReciprocalStep, _) => Nvfp4Step::Multiply(1.0 / step),
            (CodeFormula::ReciprocalScale, Scaling::Divide) => Nvfp4Step::Multiply(1.0 / global / s),
            (CodeFormula::ReciprocalScale, Scaling::Multiply) => Nvfp4Step::Multiply(global / s),
        }
    }
}

/// The IEEE 754-2019 maximum: NaN propagates and -0 < +0.
fn at_least(x: f32, least: f32) -> f32 {
    let keeps = x.is_nan() || x > least || (x == least && x.is_sign_positive());
    if keeps { x } else { least }
}

named!(Scaling { Divide => "divide", Multiply => "multiply", });
named!(CodeFormula {
    Quotient => "quotient",
    ReciprocalStep => "reciprocal_step",
    ReciprocalScale => "reciprocal_scale",
});

/// Writes an identifier, such as `sixth_gmul_rstep_unguarded_min3c800000`; nothing for the default. Names and
/// signatures of kernels contain it.
impl fmt::Display for Nvfp4Formula {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.amax == Scaling::Multiply).then(|| "sixth".to_owned()),
            (self.global == Scaling::Multiply).then(|| "gmul".to_owned()),
            match self.codes {
                CodeFormula::Quotient => None,
                CodeFormula::ReciprocalStep => Some("rstep".to_owned()),
                CodeFormula::ReciprocalScale => Some("rscale".to_owned()),
            },
            (!self.guard).then(|| "unguarded".to_owned()),
            (self.scale_min.0 != 0).then(|| format!("min{:08x}", self.scale_min.0)),
        ];
        let words: Vec<String> = words.into_iter().flatten().chain(self.mx.words()).collect();
        f.write_str(&words.join("_"))
    }
}

/// A word that names no formula.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no NVFP4 formula has this name")]
pub struct UnknownFormula;

impl FromStr for Nvfp4Formula {
    type Err = UnknownFormula;

    fn from_str(text: &str) -> Result<Nvfp4Formula, UnknownFormula> {
        let mut formula = Nvfp4Formula::DEFAULT;
        for word in text.split('_').filter(|word| !word.is_empty()) {
            match word {
                "sixth" => formula.amax = Scaling::Multiply,
                "gmul" => formula.global = Scaling::Multiply,
                "rstep" => formula.codes = CodeFormula::ReciprocalStep,
                "rscale" => formula.codes = CodeFormula::ReciprocalScale,
                "unguarded" => formula.guard = false,
                _ if formula.mx.apply(word).is_some() => {}
                _ => {
                    let bits = word.strip_prefix("min").ok_or(UnknownFormula)?;
                    let bits = u32::from_str_radix(bits, 16).map_err(|_| UnknownFormula)?;
                    formula.scale_min = ScaleMin::new(f32::from_bits(bits)).ok_or(UnknownFormula)?;
                }
            }
        }
        Ok(formula)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{InfinityScale, LeastScale, LeastStep, NanScale};
    use super::*;

    fn bound(least: f32) -> ScaleMin {
        ScaleMin::new(least).expect("the bound is valid")
    }

    /// Every combination of words and a few bounds.
    fn formulas() -> Vec<Nvfp4Formula> {
        let both = [Scaling::Divide, Scaling::Multiply];
        let mut all = Vec::new();
        for amax in both {
            for global in both {
                for &codes in CodeFormula::ALL {
                    for guard in [true, false] {
                        for least in [0.0, -0.0, 0.015625, 448.0, -1.0, f32::NEG_INFINITY] {
                            let scale_min = bound(least);
                            let mx = MxEdges::DEFAULT;
                            all.push(Nvfp4Formula { scale_min, amax, global, codes, guard, mx });
                        }
                    }
                }
            }
        }
        for infinity in InfinityScale::ALL {
            for nan in NanScale::ALL {
                for least_step in LeastStep::ALL {
                    for byte in [0, 1, 0xFE] {
                        let least_scale = LeastScale::of_byte(byte).expect("a number");
                        let mx =
                            MxEdges { infinity: *infinity, nan: *nan, least_scale, least_step: *least_step };
                        all.extend(
                            (mx != MxEdges::DEFAULT).then_some(Nvfp4Formula { mx, ..Nvfp4Formula::DEFAULT }),
                        );
                    }
                }
            }
        }
        all
    }

    #[test]
    fn formulas_read_back_as_they_are_written() {
        assert_eq!(Nvfp4Formula::DEFAULT.to_string(), "");
        let mut texts: Vec<String> = formulas().iter().map(Nvfp4Formula::to_string).collect();
        for (formula, text) in formulas().iter().zip(&texts) {
            assert_eq!(text.parse(), Ok(*formula), "{text}");
        }
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), formulas().len());
        for wrong in ["1/7", "leastff", "least", "min", "min7fc00000", "min43e00001", "unguarded;"] {
            assert_eq!(wrong.parse::<Nvfp4Formula>(), Err(UnknownFormula), "{wrong}");
        }
    }

    #[test]
    fn a_scale_has_a_lower_bound() {
        let tiny = Nvfp4Formula { scale_min: bound(0.015625), ..Nvfp4Formula::DEFAULT };
        assert_eq!(tiny.scale(1e-9, 1.0), 0x08, "2^-6");
        assert_eq!(tiny.scale(0.0, f32::NAN), 0x08, "zeros have e4m3(scale_min) under any g");
        assert_eq!(tiny.step(0x08, 0.0, 1.0), Nvfp4Step::Zero);
        assert_eq!(tiny.scale(f32::NAN, 1.0), 0x7F);
        assert_eq!(tiny.scale(6.0, -1.0), 0x08);
        assert_eq!(ScaleMin::new(449.0), None);
        assert_eq!(ScaleMin::new(f32::NAN), None);
    }

    #[test]
    fn without_guards_the_formula_is_literal() {
        let literal = Nvfp4Formula { guard: false, ..Nvfp4Formula::DEFAULT };
        // 0/0 is NaN: the scale is NaN if g is 0, and codes are +6 where the step is 0.
        assert_eq!(literal.scale(0.0, 0.0), 0x7F);
        assert_eq!(literal.scale(0.0, 1.0), 0x00);
        let step = literal.step(0x00, 0.0, 1.0);
        assert_eq!([0.0, -0.0, 1.0, -1.0].map(|v| step.code(v)), [0x7, 0x7, 0x7, 0xF]);
        // -0 keeps its sign where the step is not 0.
        let least = Nvfp4Formula { scale_min: bound(0.015625), ..literal };
        assert_eq!(least.step(0x08, 0.0, 1.0).code(-0.0), 0x8);
        // A negative g: max(-t, +0) is +0, and without a lower bound the scale is signed.
        assert_eq!(literal.scale(6.0, -1.0), 0x00);
        let signed = Nvfp4Formula { scale_min: bound(f32::NEG_INFINITY), ..literal };
        assert_eq!(signed.scale(6.0, -1.0), 0xB8, "-1");
        assert_eq!(signed.step(0xB8, 6.0, -1.0).code(3.0), 0x5, "-1 · -1 is 1");
    }

    /// The operand pairs were found by search.
    #[test]
    fn each_rounding_can_be_seen() {
        let amax = |scaling| Nvfp4Formula { amax: scaling, ..Nvfp4Formula::DEFAULT };
        let (block, g) = (f32::from_bits(0x3F4B_331E), f32::from_bits(0x3CBC_799E));
        assert_eq!(amax(Scaling::Divide).scale(block, g), 0x4B);
        assert_eq!(amax(Scaling::Multiply).scale(block, g), 0x4C);
        let global = |scaling| Nvfp4Formula { global: scaling, ..Nvfp4Formula::DEFAULT };
        assert_eq!(global(Scaling::Divide).scale(6.0, 4.0), 0x28);
        assert_eq!(global(Scaling::Multiply).scale(6.0, 4.0), 0x48);
        assert_eq!(global(Scaling::Divide).step(0x38, 1.0, 4.0), Nvfp4Step::Divide(4.0));
        assert_eq!(global(Scaling::Multiply).step(0x38, 1.0, 4.0), Nvfp4Step::Divide(0.25));
        let codes = |codes, global| Nvfp4Formula { codes, global, ..Nvfp4Formula::DEFAULT };
        let (step, g) = (CodeFormula::ReciprocalStep, 3.0f32);
        assert_eq!(codes(step, Scaling::Divide).step(0x38, 1.0, g), Nvfp4Step::Multiply(1.0 / 3.0));
        let scale = CodeFormula::ReciprocalScale;
        assert_eq!(codes(scale, Scaling::Divide).step(0x3E, 1.0, g), Nvfp4Step::Multiply(1.0 / 3.0 / 1.75));
        assert_eq!(codes(scale, Scaling::Multiply).step(0x3E, 1.0, g), Nvfp4Step::Multiply(3.0 / 1.75));
    }
}
