//! What codes and scales a right kernel may give where the values that it quantizes are not known to the last bit.
//!
//! Each element of a block is an interval, so the largest magnitude is one, and as quantizing is monotonic, the scale
//! lies between those of its ends. The codes are held against the kernel's own scale: each lies between the codes of
//! the ends of its interval under that scale. All of it is computed as `fourfold_ir::numeric` computes it.

use fourfold_ir::numeric::{self, MxElement, ScaleRounding};
use fourfold_ir::{ElementType, Tensor};

use super::interval::Interval;
use super::reduced::magnitudes;
use crate::compare::{Comparison, Verdict, compare_by};

/// How a block is quantized.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRule {
    /// Of the codes.
    pub(super) element: ElementType,
    /// Elements per scale.
    pub(super) block: usize,
    /// Absent for NVFP4.
    pub(super) rounding: Option<ScaleRounding>,
    /// The per-tensor scale of NVFP4; 1 where there is none.
    pub(super) global: f32,
}

/// What a kernel's blocks are.
pub(super) struct BlockComparison {
    pub(super) codes: Comparison,
    pub(super) scales: Comparison,
    /// Elements of blocks of which nothing is known.
    pub(super) free: usize,
}

/// Codes and their scales.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) codes: &'a Tensor,
    pub(super) scales: &'a Tensor,
}

/// Compares blocks with those of the reference, where `interval` says what the element at a position may be.
pub(super) fn compare_blocks(
    rule: BlockRule,
    got: Blocks<'_>,
    want: Blocks<'_>,
    mut interval: impl FnMut(usize) -> Interval,
) -> BlockComparison {
    let codes = [got.codes.to_codes(), want.codes.to_codes()];
    // Bit 7 of an NVFP4 scale has no meaning.
    let mask = if rule.rounding.is_none() { 0x7F } else { 0xFF };
    let scales = [got.scales, want.scales]
        .map(|scales| -> Vec<u8> { scales.to_codes().into_iter().map(|scale| scale & mask).collect() });
    let mut code_verdicts = Vec::with_capacity(codes[0].len());
    let mut scale_verdicts = Vec::with_capacity(scales[0].len());
    let mut free = 0;
    let mut ends = Vec::with_capacity(rule.block);
    for (block, (got_scale, want_scale)) in scales[0].iter().zip(&scales[1]).enumerate() {
        let elements = block * rule.block..(block + 1) * rule.block;
        ends.clear();
        ends.extend(elements.clone().map(&mut interval));
        let known = Known::of(&ends);
        if known == Known::Nothing {
            free += rule.block;
        }
        let scale = known.verdict(got_scale == want_scale, || rule.has_scale(&ends, *got_scale));
        for (index, ends) in elements.zip(&ends) {
            let (got, want) = (codes[0][index], codes[1][index]);
            code_verdicts.push(match known.verdict(got == want, || rule.has_code(*ends, *got_scale, got)) {
                // Another scale has other codes, and is counted itself.
                Verdict::Moved if scale != Verdict::Same => Verdict::Free,
                verdict => verdict,
            });
        }
        scale_verdicts.push(scale);
    }
    BlockComparison {
        codes: compare_by(got.codes, want.codes, &code_verdicts),
        scales: compare_by(got.scales, want.scales, &scale_verdicts).with_padding_of(got.scales),
        free,
    }
}

/// What is known of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Every bit.
    All,
    /// Each element to within an interval.
    Intervals,
    /// An element may be anything, and so may the scale.
    Nothing,
}

impl Known {
    fn of(ends: &[Interval]) -> Known {
        // One NaN decides the block.
        if ends.iter().any(|[low, high]| low.is_nan() && high.is_nan())
            || ends.iter().all(|[low, high]| low == high)
        {
            return Known::All;
        }
        let is_bounded = |ends: &Interval| ends.iter().all(|end| end.is_finite());
        if ends.iter().all(is_bounded) { Known::Intervals } else { Known::Nothing }
    }

    fn verdict(self, is_same: bool, is_admissible: impl FnOnce() -> bool) -> Verdict {
        match self {
            Known::All => Verdict::of(is_same),
            Known::Nothing if is_same => Verdict::Same,
            Known::Nothing => Verdict::Free,
            // What is the same must be admissible as well: a code is not right under another scale.
            Known::Intervals if !is_admissible() => Verdict::Wrong,
            Known::Intervals if is_same => Verdict::Same,
            Known::Intervals => Verdict::Moved,
        }
    }
}

impl BlockRule {
    /// Whether a block with elements in these intervals may have this scale.
    fn has_scale(&self, ends: &[Interval], scale: u8) -> bool {
        let (mut least, mut most) = (0f64, 0f64);
        for ends in ends {
            let [low, high] = magnitudes(*ends);
            (least, most) = (least.max(low), most.max(high));
        }
        // Both are values of f32 or a narrower type.
        let scales = [least, most].map(|amax| self.scale(amax as f32));
        (scales[0].min(scales[1])..=scales[0].max(scales[1])).contains(&scale)
    }

    /// Whether an element in this interval may have this code under a scale.
    fn has_code(&self, [low, high]: Interval, scale: u8, code: u8) -> bool {
        // Zero may have either sign: intervals do not keep it.
        let low = if low == 0.0 { -0.0 } else { low };
        let high = if high == 0.0 { 0.0 } else { high };
        let ranks = [low, high].map(|end| self.rank(self.code(end as f32, scale)));
        (ranks[0]..=ranks[1]).contains(&self.rank(code))
    }

    /// The scale of a block whose largest magnitude is `amax`.
    fn scale(&self, amax: f32) -> u8 {
        match self.rounding {
            None => numeric::quantize_nvfp4_block(&[amax], self.global, &mut [0]),
            Some(rounding) => numeric::quantize_mx_block(&[amax], self.mx_element(), rounding, &mut [0]),
        }
    }

    /// The code of a value in a block of this scale.
    fn code(&self, value: f32, scale: u8) -> u8 {
        match self.rounding {
            None => {
                let step = numeric::ue4m3_to_f32(scale) * self.global;
                if step == 0.0 { 0 } else { numeric::e2m1_from_f32(value / step) }
            }
            Some(_) => self.mx_element().encode(value / numeric::e8m0_to_f32(scale)),
        }
    }

    /// Codes in the order of their values, -0 below +0.
    fn rank(&self, code: u8) -> i32 {
        let sign = if self.element == ElementType::F4E2M1FN { 0x08 } else { 0x80 };
        let magnitude = i32::from(code & (sign - 1));
        if code & sign == 0 { magnitude } else { -magnitude - 1 }
    }

    fn mx_element(&self) -> MxElement {
        match self.element {
            ElementType::F8E4M3FN => MxElement::E4M3,
            ElementType::F8E5M2 => MxElement::E5M2,
            _ => MxElement::E2M1,
        }
    }
}
