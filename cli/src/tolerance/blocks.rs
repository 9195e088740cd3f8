//! Compares codes and scales of quantized blocks whose elements are known only to within intervals.
//!
//! The largest magnitude of a block lies in an interval, and quantizing is monotonic, so the scale lies between
//! those of the ends. Each code is compared under the kernel's own scale: it lies between the codes of the ends
//! of its interval. Everything is computed as `fourfold_ir::numeric` computes it.

use fourfold_ir::numeric::{MxElement, Nvfp4Formula, ScaleRounding};
use fourfold_ir::{ElementType, Tensor};

use super::interval::Interval;
use super::reduced::magnitudes;
use super::within::with_free;
use crate::compare::{Comparison, Verdict, compare_by};

/// The quantization of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlockRule {
    /// The type of the codes.
    pub(super) element: ElementType,
    /// Elements per scale.
    pub(super) block: usize,
    /// The rounding of MX scales; `None` for NVFP4.
    pub(super) rounding: Option<ScaleRounding>,
    /// The formula of NVFP4, and the edges of MX.
    pub(super) formula: Nvfp4Formula,
    /// The per-tensor scale of NVFP4; 1 without one.
    pub(super) global: f32,
}

/// The comparison of a kernel's blocks.
pub(super) struct BlockComparison {
    pub(super) codes: Comparison,
    pub(super) scales: Comparison,
    /// The numbers of codes and scales without a bound.
    pub(super) free_codes: usize,
    pub(super) free_scales: usize,
}

/// Codes and their scales.
#[derive(Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) codes: &'a Tensor,
    pub(super) scales: &'a Tensor,
}

/// Compares blocks with the reference. `interval` returns the interval of the element at a position.
pub(super) fn compare_blocks(
    rule: BlockRule,
    got: Blocks<'_>,
    want: Blocks<'_>,
    mut interval: impl FnMut(usize) -> Interval,
) -> BlockComparison {
    let codes = [got.codes.to_codes(), want.codes.to_codes()];
    // Bit 7 of an NVFP4 scale has no meaning, except that a formula without guards reads it as a sign.
    let mask = if rule.is_unsigned() { 0x7F } else { 0xFF };
    let scales = [got.scales, want.scales]
        .map(|scales| -> Vec<u8> { scales.to_codes().into_iter().map(|scale| scale & mask).collect() });
    let mut code_verdicts = Vec::with_capacity(codes[0].len());
    let mut scale_verdicts = Vec::with_capacity(scales[0].len());
    let (mut free_codes, mut free_scales) = (0, 0);
    let mut ends = Vec::with_capacity(rule.block);
    for (block, (got_scale, want_scale)) in scales[0].iter().zip(&scales[1]).enumerate() {
        let elements = block * rule.block..(block + 1) * rule.block;
        ends.clear();
        ends.extend(elements.clone().map(&mut interval));
        let known = Known::of(&ends);
        // Zeros have code 0 under any global scale. A global scale of NaN does not change that.
        let may_be_zeros = rule.is_unsigned() && *got_scale == rule.scale(0.0) && ends.iter().all(spans_zero);
        free_scales += usize::from(known == Known::Some && rule.least_scale(&ends) == 0);
        // An element without a bound may be NaN, and then so may the scale.
        let is_nan = known == Known::Some && rule.is_nan(*got_scale);
        let scale = known.verdict(got_scale == want_scale, || is_nan || rule.has_scale(&ends, *got_scale));
        for (index, ends) in elements.zip(&ends) {
            let (got, want) = (codes[0][index], codes[1][index]);
            if is_nan || !is_bounded(ends) && known == Known::Some {
                free_codes += 1;
                code_verdicts.push(if got == want { Verdict::Same } else { Verdict::Free });
                continue;
            }
            let has_code = || may_be_zeros && got == 0 || rule.has_code(*ends, *got_scale, got);
            code_verdicts.push(match known.verdict(got == want, has_code) {
                // A moved scale has other codes; the scale itself is tallied as moved.
                Verdict::Moved if scale != Verdict::Same => Verdict::Free,
                verdict => verdict,
            });
        }
        scale_verdicts.push(scale);
    }
    let of_codes = compare_by(got.codes, want.codes, &code_verdicts);
    let of_scales = compare_by(got.scales, want.scales, &scale_verdicts).with_padding_of(got.scales);
    BlockComparison {
        codes: with_free(of_codes, free_codes, code_verdicts.len()),
        scales: with_free(of_scales, free_scales, scale_verdicts.len()),
        free_codes,
        free_scales,
    }
}

/// The knowledge about a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Every element is known exactly.
    All,
    /// Each element is known to within an interval.
    Intervals,
    /// At least one element has no bound, so the scale is bounded from below only, by the other elements.
    Some,
}

impl Known {
    fn of(ends: &[Interval]) -> Known {
        // One NaN decides the block.
        if ends.iter().any(|[low, high]| low.is_nan() && high.is_nan())
            || ends.iter().all(|[low, high]| low == high)
        {
            return Known::All;
        }
        if ends.iter().all(is_bounded) { Known::Intervals } else { Known::Some }
    }

    fn verdict(self, is_same: bool, is_admissible: impl FnOnce() -> bool) -> Verdict {
        match self {
            Known::All => Verdict::of(is_same),
            // Equality does not suffice: under another scale the same code is wrong.
            _ if !is_admissible() => Verdict::Wrong,
            _ if is_same => Verdict::Same,
            Known::Intervals => Verdict::Moved,
            // An element of any size moves a scale by any distance.
            Known::Some => Verdict::Free,
        }
    }
}

fn is_bounded(ends: &Interval) -> bool {
    ends.iter().all(|end| end.is_finite())
}

fn spans_zero(ends: &Interval) -> bool {
    ends[0] <= 0.0 && 0.0 <= ends[1]
}

impl BlockRule {
    /// Returns true if a block with elements in these intervals may have this scale.
    fn has_scale(&self, ends: &[Interval], scale: u8) -> bool {
        let [least, most] = self.extreme_magnitudes(ends);
        if least == 0.0 && scale == self.scale(0.0) {
            return true;
        }
        // Zeros have a scale of their own, and the scale of any other block may be NaN.
        let scales = [least.max(f32::from_bits(1)), most].map(|amax| self.scale(amax));
        most > 0.0 && (scales[0].min(scales[1])..=scales[0].max(scales[1])).contains(&scale)
    }

    /// Returns the smallest scale of such a block.
    fn least_scale(&self, ends: &[Interval]) -> u8 {
        let [one, other] = self.extreme_magnitudes(ends).map(|amax| self.scale(amax));
        one.min(other)
    }

    /// Returns the least and the largest magnitude of such a block.
    fn extreme_magnitudes(&self, ends: &[Interval]) -> [f32; 2] {
        let (mut least, mut most) = (0f64, 0f64);
        for ends in ends {
            let [low, high] = magnitudes(*ends);
            (least, most) = (least.max(low), most.max(high));
        }
        // Every value is in f32 or a narrower type. Infinity has the largest scale, or NaN.
        [least, most].map(|amax| (amax as f32).min(f32::MAX))
    }

    /// Returns true if bit 7 of a scale has no meaning.
    fn is_unsigned(&self) -> bool {
        self.rounding.is_none() && self.formula.guard
    }

    /// Returns true if a scale is NaN.
    fn is_nan(&self, scale: u8) -> bool {
        scale == if self.rounding.is_none() { 0x7F } else { 0xFF }
    }

    /// Returns true if an element in this interval may have this code under a scale.
    fn has_code(&self, [low, high]: Interval, scale: u8, code: u8) -> bool {
        // Intervals do not keep the sign of zero, so a zero end stands for both.
        let low = if low == 0.0 { -0.0 } else { low };
        let high = if high == 0.0 { 0.0 } else { high };
        let ranks = [low, high].map(|end| self.rank(self.code(end as f32, scale)));
        // A negative step reverses the order.
        (ranks[0].min(ranks[1])..=ranks[0].max(ranks[1])).contains(&self.rank(code))
    }

    /// Returns the scale of a block whose largest magnitude is `amax`.
    fn scale(&self, amax: f32) -> u8 {
        match self.rounding {
            None => self.formula.scale(amax, self.global),
            Some(rounding) => self.formula.mx.scale(amax, self.mx_element(), rounding),
        }
    }

    /// Returns the code of a value in a block of this scale.
    fn code(&self, value: f32, scale: u8) -> u8 {
        match self.rounding {
            // The caller handles blocks of zeros, so the amax is not zero.
            None => self.formula.step(scale, 1.0, self.global).code(value),
            Some(_) => self.mx_element().encode(value / self.formula.mx.step(scale)),
        }
    }

    /// Orders codes by their values, -0 below +0.
    fn rank(&self, code: u8) -> i32 {
        let sign = 1 << (self.element.storage_bits() - 1);
        let magnitude = i32::from(code & (sign - 1));
        if code & sign == 0 { magnitude } else { -magnitude - 1 }
    }

    fn mx_element(&self) -> MxElement {
        MxElement::of(self.element).unwrap_or(MxElement::E2M1)
    }
}

#[cfg(test)]
mod tests {
    use fourfold_ir::{ScaleLayout, numeric};

    use super::*;

    const MX_ELEMENTS: [ElementType; 5] = [
        ElementType::F4E2M1FN,
        ElementType::F6E2M3FN,
        ElementType::F6E3M2FN,
        ElementType::F8E4M3FN,
        ElementType::F8E5M2,
    ];

    fn rules() -> Vec<BlockRule> {
        let element = ElementType::F4E2M1FN;
        let nvfp4 = [1.0, 0.0371, 0.0, -1.0, f32::NAN].map(|global| BlockRule {
            element,
            block: 16,
            rounding: None,
            formula: Nvfp4Formula::DEFAULT,
            global,
        });
        let mx = MX_ELEMENTS.into_iter().flat_map(|element| {
            [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even].map(|rounding| BlockRule {
                element,
                block: 32,
                rounding: Some(rounding),
                formula: Nvfp4Formula::DEFAULT,
                global: 1.0,
            })
        });
        nvfp4.into_iter().chain(mx).collect()
    }

    /// Quantizes rows of 96 by the definition.
    fn quantized(rule: BlockRule, values: &[f32]) -> (Tensor, Tensor) {
        let mut codes = vec![0; values.len()];
        let blocks = values.chunks(rule.block).zip(codes.chunks_mut(rule.block));
        let scales: Vec<u8> = blocks
            .map(|(values, codes)| match rule.rounding {
                None => numeric::quantize_nvfp4_block(values, rule.global, codes),
                Some(rounding) => numeric::quantize_mx_block(values, rule.mx_element(), rounding, codes),
            })
            .collect();
        let rows = values.len() / 96;
        let element = if rule.rounding.is_none() { ElementType::F8E4M3FN } else { ElementType::F8E8M0FNU };
        let blocked = Some(ScaleLayout::Blocked);
        (
            Tensor::from_codes(rule.element, vec![rows, 96], None, codes).expect("the shape"),
            Tensor::from_codes(element, vec![rows, 96 / rule.block], blocked, scales).expect("the shape"),
        )
    }

    fn compared(rule: BlockRule, got: &[f32], want: &[f32], ends: &[Interval]) -> BlockComparison {
        let (got, want) = (quantized(rule, got), quantized(rule, want));
        let blocks = |of: &'_ (Tensor, Tensor)| -> (Tensor, Tensor) { of.clone() };
        let (got, want) = (blocks(&got), blocks(&want));
        compare_blocks(
            rule,
            Blocks { codes: &got.0, scales: &got.1 },
            Blocks { codes: &want.0, scales: &want.1 },
            |index| ends[index],
        )
    }

    /// Returns numbers of many sizes and both signs.
    fn numbers(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        (0..count).map(|_| (next() - 0.5) * 2f32.powf(6.0 * next())).collect()
    }

    #[test]
    fn whatever_lies_within_the_intervals_quantizes_to_something_admissible() {
        for (seed, rule) in rules().into_iter().enumerate() {
            for (width, rows) in [(0.0, 3), (1e-5, 5), (1e-2, 7), (0.7, 7)] {
                let want = numbers(seed as u64 + 1, 96 * rows);
                let offsets = numbers(seed as u64 + 100, 96 * rows);
                let got: Vec<f32> =
                    want.iter().zip(&offsets).map(|(want, offset)| want + width * offset).collect();
                let ends: Vec<Interval> = want
                    .iter()
                    .zip(&got)
                    .map(|(a, b)| [f64::from(a.min(*b)), f64::from(a.max(*b))])
                    .collect();
                let compared = compared(rule, &got, &want, &ends);
                let free = compared.free_codes + compared.free_scales;
                let mismatches = (compared.codes.mismatches, compared.scales.mismatches, free);
                assert_eq!(mismatches, (0, 0, 0), "{rule:?} {width}");
                if width == 0.0 {
                    assert_eq!((compared.codes.moved_roundings, compared.scales.moved_roundings), (0, 0));
                }
            }
        }
    }

    #[test]
    fn blocks_that_may_be_zeros_have_the_scale_and_the_codes_of_zeros_or_of_what_they_may_be() {
        for rule in rules() {
            let small: Vec<f32> = numbers(9, 96 * 2).iter().map(|value| value * 1e-3).collect();
            let zeros = vec![0.0; small.len()];
            let ends: Vec<Interval> =
                small.iter().map(|value| [f64::from(value.min(0.0)), f64::from(value.max(0.0))]).collect();
            for (got, want) in [(&zeros, &zeros), (&zeros, &small), (&small, &zeros)] {
                let compared = compared(rule, got, want, &ends);
                let mismatches = (compared.codes.mismatches, compared.scales.mismatches);
                assert_eq!(mismatches, (0, 0), "{rule:?}");
            }
            if rule.global.is_nan() {
                let (want_codes, want_scales) = quantized(rule, &zeros);
                let ones = Tensor::from_codes(
                    want_scales.element(),
                    vec![2, 6],
                    want_scales.layout(),
                    vec![0x38; 12],
                );
                let ones = ones.expect("the shape");
                let got = Blocks { codes: &want_codes, scales: &ones };
                let want = Blocks { codes: &want_codes, scales: &want_scales };
                let compared = compare_blocks(rule, got, want, |index| ends[index]);
                assert_eq!(
                    compared.scales.mismatches, 12,
                    "a scale is 0 or NaN under a global one that is NaN"
                );
            }
        }
    }

    #[test]
    fn what_lies_outside_is_a_mismatch_and_nan_decides_a_block() {
        for rule in rules().into_iter().filter(|rule| rule.global > 0.0) {
            let want = numbers(3, 96 * 4);
            let near: Vec<Interval> =
                want.iter().map(|value| [f64::from(*value) - 1e-6, f64::from(*value) + 1e-6]).collect();
            let doubled: Vec<f32> = want.iter().map(|value| value * 2.0).collect();
            let compared_doubled = compared(rule, &doubled, &want, &near);
            assert_eq!(compared_doubled.scales.mismatches, 96 * 4 / rule.block, "{rule:?}");
            let negated: Vec<f32> = want.iter().map(|value| -value).collect();
            let compared_negated = compared(rule, &negated, &want, &near);
            assert_eq!(compared_negated.scales.mismatches, 0);
            assert!(compared_negated.codes.mismatches > 96, "{rule:?}");

            let mut with_nan = (want.clone(), near.clone());
            (with_nan.0[5], with_nan.1[5]) = (f32::NAN, [f64::NAN; 2]);
            let right = compared(rule, &with_nan.0, &with_nan.0, &with_nan.1);
            assert_eq!((right.codes.mismatches, right.scales.mismatches, right.free_codes), (0, 0, 0));
            let without = compared(rule, &want, &with_nan.0, &with_nan.1);
            assert_eq!(without.scales.mismatches, 1);
            assert!(without.codes.mismatches > 0);
        }
    }

    #[test]
    fn an_unbounded_element_frees_its_own_code_and_the_scale_upwards() {
        for rule in rules().into_iter().filter(|rule| rule.global > 0.0) {
            let want = numbers(4, 96);
            let mut ends: Vec<Interval> = want.iter().map(|value| [f64::from(*value); 2]).collect();
            ends[rule.block] = [f64::NEG_INFINITY, f64::INFINITY];
            let mut got = want.clone();
            got[rule.block] = 1e9;
            let compared = compared(rule, &got, &want, &ends);
            assert_eq!((compared.free_codes, compared.free_scales), (1, 0));
            assert_eq!((compared.codes.mismatches, compared.scales.mismatches), (0, 0), "{rule:?}");

            // Another element of the block gets a code that is wrong under that scale.
            let (mut codes, scales) = quantized(rule, &got);
            let (want_codes, want_scales) = quantized(rule, &want);
            let mut changed = codes.to_codes();
            changed[rule.block + 3] ^= match rule.element {
                ElementType::F4E2M1FN => 0x7,
                element if element.is_fp6() => 0x1F,
                _ => 0x3F,
            };
            codes = Tensor::from_codes(rule.element, vec![1, 96], None, changed).expect("the shape");
            let blocks = |codes, scales| Blocks { codes, scales };
            let wanted = blocks(&want_codes, &want_scales);
            let of = compare_blocks(rule, blocks(&codes, &scales), wanted, |index| ends[index]);
            assert_eq!((of.codes.mismatches, of.scales.mismatches), (1, 0), "{rule:?}");

            // The scale is below that of the known elements.
            let least = want_scales.to_codes().iter().map(|scale| scale - 1).collect();
            let (dims, layout) = (want_scales.dims().to_vec(), want_scales.layout());
            let below = Tensor::from_codes(want_scales.element(), dims, layout, least).expect("the shape");
            let of = compare_blocks(rule, blocks(&want_codes, &below), wanted, |index| ends[index]);
            assert!(of.scales.mismatches + 1 >= 96 / rule.block && of.codes.mismatches > 0, "{rule:?}");
        }
    }

    #[test]
    fn few_may_be_free() {
        let rule = BlockRule {
            element: ElementType::F4E2M1FN,
            block: 16,
            rounding: None,
            formula: Nvfp4Formula::DEFAULT,
            global: 1.0,
        };
        let want = numbers(4, 96);
        let mut ends: Vec<Interval> = want.iter().map(|value| [f64::from(*value); 2]).collect();
        ends[17] = [f64::NEG_INFINITY, f64::INFINITY];
        assert!(compared(rule, &want, &want, &ends).codes.ok);
        ends[18..20].fill([f64::NEG_INFINITY, f64::INFINITY]);
        let three = compared(rule, &want, &want, &ends);
        assert!(three.free_codes == 3 && !three.codes.ok && three.scales.ok);
        assert!(three.codes.unbounded && !three.scales.unbounded);
        ends[16..48].fill([f64::NEG_INFINITY, f64::INFINITY]);
        let two = compared(rule, &want, &want, &ends);
        assert!(two.free_scales == 2 && !two.scales.ok);
    }

    #[test]
    fn few_may_move() {
        let rule = BlockRule {
            element: ElementType::F4E2M1FN,
            block: 16,
            rounding: None,
            formula: Nvfp4Formula::DEFAULT,
            global: 1.0,
        };
        let count = 96 * 10;
        // Every block has scale 1, and its other elements lie at the middle of 1 and 1.5.
        let at = |value: f32| -> Vec<f32> {
            (0..count).map(|index| if index % 16 == 0 { 6.0 } else { value }).collect()
        };
        let ends: Vec<Interval> =
            (0..count).map(|index| if index % 16 == 0 { [6.0; 2] } else { [1.2499, 1.2501] }).collect();
        let (low, high) = (at(1.2499), at(1.2501));
        let all = compared(rule, &high, &low, &ends);
        assert_eq!((all.codes.mismatches, all.codes.moved_roundings), (0, count / 16 * 15));
        assert!(!all.codes.ok && all.scales.ok, "every code rounded the other way is no accident");
        let one_in = |part: usize| -> Vec<f32> {
            (0..count).map(|index| if index % part == 1 { high[index] } else { low[index] }).collect()
        };
        assert!(compared(rule, &one_in(60), &low, &ends).codes.ok);
        assert!(!compared(rule, &one_in(20), &low, &ends).codes.ok);

        // Every scale lies at the middle of 1 and 1.125: a tie.
        let peak = |value: f32| -> Vec<f32> {
            (0..count).map(|index| if index % 16 == 0 { value } else { 0.1 }).collect()
        };
        let ends: Vec<Interval> = (0..count)
            .map(|index| if index % 16 == 0 { [6.374, 6.376] } else { [f64::from(0.1f32); 2] })
            .collect();
        let moved = compared(rule, &peak(6.376), &peak(6.374), &ends);
        assert_eq!((moved.scales.mismatches, moved.scales.moved_roundings), (0, count / 16));
        assert!(!moved.scales.ok);
        assert_eq!(moved.codes.moved_roundings, 0, "codes of a moved scale are not counted again");
        let mut one = peak(6.374);
        one[160] = 6.376;
        let moved = compared(rule, &one, &peak(6.374), &ends);
        assert!(moved.scales.ok && moved.codes.ok && moved.scales.moved_roundings == 1);
    }

    #[test]
    fn codes_are_held_against_the_kernel_s_own_scale() {
        let rule = BlockRule {
            element: ElementType::F4E2M1FN,
            block: 16,
            rounding: None,
            formula: Nvfp4Formula::DEFAULT,
            global: 1.0,
        };
        // The scale may be 1 or 1.125. 5.1 rounds to 6 under 1, and 5.1 / 1.125 = 4.53 rounds to 4.
        let values: Vec<f32> = (0..96).map(|index| if index % 16 == 0 { 6.374 } else { 5.1 }).collect();
        let ends: Vec<Interval> = values
            .iter()
            .map(|value| if *value > 6.0 { [6.374, 6.376] } else { [f64::from(*value); 2] })
            .collect();
        let (codes, scales) = quantized(rule, &values);
        let moved = {
            let mut codes_of = scales.to_codes();
            codes_of[2] += 1;
            Tensor::from_codes(scales.element(), scales.dims().to_vec(), scales.layout(), codes_of)
                .expect("the shape")
        };
        let want = Blocks { codes: &codes, scales: &scales };
        let compared =
            compare_blocks(rule, Blocks { codes: &codes, scales: &moved }, want, |index| ends[index]);
        assert_eq!((compared.scales.moved_roundings, compared.scales.mismatches), (1, 0));
        assert_eq!(compared.codes.mismatches, 15, "the codes of the other scale");
        assert_eq!(compared.codes.worst.expect("a code").index, [0, 33]);
    }
}
