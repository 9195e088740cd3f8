//! The statements that write outputs.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, QuantizedFormat, ScaleLayout, ScaleRounding};
use fourfold_scheduler::{RowOutputKind, RowProgram};
use serde::Serialize;

use super::phases::{Phase, Written};
use super::values::{bytes, is_packed};
use crate::epilogue::outputs::blocks;

/// The statements that write an output of a [`RowProgram`]. A thread has `kCount` elements at `column`. In `wide` ones
/// these are stored as one vector.
#[derive(Default, Serialize)]
pub(super) struct OutputText {
    /// Declares what collects the elements.
    declare_wide: String,
    declare_narrow: String,
    /// Adds a pair of elements.
    put_wide: String,
    put_narrow: String,
    /// Stores all of them.
    store_wide: String,
    store_narrow: String,
    /// Stores the only element of a row, or of all rows.
    store_one: String,
    /// Zeroes the scales of blocks outside the matrix; empty if there is no padding.
    pad: String,
    /// The elements per scale if scales are blocked, and otherwise 0.
    blocked: u32,
    /// The position of the tensor of scales.
    scales: usize,
}

/// The texts of all outputs, given the phases that write them.
pub(super) fn outputs(program: &RowProgram, phases: &[&Phase], has_conversion: bool) -> Vec<OutputText> {
    let mut at = 0;
    let written = |position: usize| -> Option<&Written> {
        let all = phases.iter().flat_map(|phase| phase.outputs.iter().chain(&phase.columns));
        all.into_iter().find(|it| it.output == position)
    };
    let texts = program.outputs.iter().enumerate().map(|(position, output)| {
        let Some(written) = written(position) else { return OutputText::default() };
        let element = program.element(output.of);
        let text = match output.kind {
            RowOutputKind::Value => value(position, at, element, written),
            RowOutputKind::Quantized { .. } => {
                let estimate = estimate(output.kind, has_conversion);
                quantized(position, at, element, (output.kind, estimate), written)
            }
        };
        at += tensors(output.kind);
        text
    });
    texts.collect()
}

/// The number of tensors of an output.
fn tensors(kind: RowOutputKind) -> usize {
    match kind {
        RowOutputKind::Value => 1,
        RowOutputKind::Quantized { .. } => 2,
    }
}

/// The function of `nvfp4.cuh` that computes the codes of a block.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Estimate {
    /// That of the default formula.
    Default,
    /// That of any other formula, which is faster than conversions only where no instruction converts.
    Formula,
}

/// Returns how the codes of an output are estimated; `None` if they are computed one after the other.
pub(super) fn estimate(kind: RowOutputKind, has_conversion: bool) -> Option<Estimate> {
    let RowOutputKind::Quantized { format, scale_rounding: None, formula, global: Some(_), .. } = kind else {
        return None;
    };
    match (format.block, formula == Nvfp4Formula::DEFAULT) {
        (16, true) => Some(Estimate::Default),
        (16, false) if !has_conversion => Some(Estimate::Formula),
        _ => None,
    }
}

fn value(position: usize, at: usize, element: ElementType, written: &Written) -> OutputText {
    let [a, b] = &written.values;
    let bits = element.storage_bits();
    let words = format!("o{position}.words");
    let put_wide = match element {
        ElementType::BF16 | ElementType::F16 => {
            let packed = match written.packed.is_empty() {
                true => format!("pack_{element}({a}, {b})"),
                false => written.packed.clone(),
            };
            format!("{words}[pair] = {packed};")
        }
        ElementType::F32 => {
            format!("{words}[2 * pair] = bits_of({a}), {words}[2 * pair + 1] = bits_of({b});")
        }
        ElementType::I32 => format!(
            "{words}[2 * pair] = static_cast<uint32_t>({a}), {words}[2 * pair + 1] = static_cast<uint32_t>({b});"
        ),
        _ if element.is_fp6() => format!("put_fp6_pair({words}, pair, pair_{element}({a}, {b}));"),
        _ => {
            let (per_word, width) = (16 / bits, 2 * bits);
            format!(
                "{words}[pair / {per_word}] |= pair_{element}({a}, {b}) << (pair % {per_word} * {width});"
            )
        }
    };
    let put_narrow = match element {
        ElementType::F4E2M1FN => format!("store_pair_{element}(p.outputs[{at}], start + at, {a}, {b});"),
        _ if element.is_fp6() => format!(
            "f{position} = f{position} >> 12 | pair_{element}({a}, {b}) << 12;\n        \
             if (pair % 2 == 1) {{\n          store_four_fp6(p.outputs[{at}], start + at - 2, f{position});\n        }}"
        ),
        _ => format!(
            "store_{element}(p.outputs[{at}], start + at, {a});\n        \
             if (is_pair) {{\n          store_{element}(p.outputs[{at}], start + other, {b});\n        }}"
        ),
    };
    let ty = format!("Words<kCount * {bits} / 8>");
    OutputText {
        declare_wide: format!("{ty} o{position} = {{}};"),
        declare_narrow: if element.is_fp6() { format!("uint32_t f{position} = 0u;") } else { String::new() },
        put_wide,
        put_narrow,
        store_wide: format!(
            "*reinterpret_cast<{ty} *>(static_cast<uint8_t *>(p.outputs[{at}]) + {}) = o{position};",
            bytes("(start + column)", bits)
        ),
        store_one: format!("store_{element}(p.outputs[{at}], index, {a});"),
        ..OutputText::default()
    }
}

/// The statement that takes the largest magnitude of a pair, and the expression of the largest magnitude of a block.
fn amax(position: usize, block: u32, element: ElementType, written: &Written) -> [String; 2] {
    let [a, b] = &written.values;
    let (pair, all) = (format!("m{position}[2 * pair / {block}]"), format!("m{position}[sub]"));
    if written.packed.is_empty() {
        let magnitude = |value: &str| format!("bits_of({value}) & kMagnitudeBits");
        let larger = format!("{pair} = larger({pair}, larger({}, {}));", magnitude(a), magnitude(b));
        return [larger, all];
    }
    let larger = format!("{pair} = __vmaxu2({pair}, {} & 0x7FFF7FFFu);", written.packed);
    // f16 magnitudes have another exponent than f32's, so they are converted.
    let all = match element {
        ElementType::BF16 => format!("larger({all} & 0xFFFF0000u, {all} << 16)"),
        _ => format!("larger(bits_of(low_f16({all})), bits_of(high_f16({all})))"),
    };
    [larger, all]
}

fn quantized(
    position: usize,
    at: usize,
    element: ElementType,
    (kind, estimate): (RowOutputKind, Option<Estimate>),
    written: &Written,
) -> OutputText {
    let RowOutputKind::Quantized { format, layout, global, scale_rounding, formula } = kind else {
        return OutputText::default();
    };
    let QuantizedFormat { element: code, block, .. } = format;
    let [a, b] = &written.values;
    debug_assert!(written.packed.is_empty() || is_packed(element));
    let [larger, largest] = amax(position, block, element, written);
    let (bits, scales) = (code.storage_bits(), at + 1);
    let place = match layout {
        ScaleLayout::Blocked => {
            format!("padded_place<{block}>(p, row.position, column / {block}u + sub)")
        }
        ScaleLayout::Linear => format!("((start + column) >> {}) + sub", block.trailing_zeros()),
    };
    let is_pairs = estimate.is_some() && element == ElementType::BF16 && !written.packed.is_empty();
    let from = match is_pairs {
        true => format!("PackedValues{{q{position} + sub * 8}}"),
        false => format!("FloatValues{{q{position} + sub * 16}}"),
    };
    let block_codes = match (estimate, global) {
        (Some(Estimate::Default), _) => format!("nvfp4({from}, {largest}, tensor{position})"),
        (Some(Estimate::Formula), Some(global)) => {
            format!("nvfp4_by<{}>({from}, {largest}, x{global})", blocks(code, scale_rounding, formula))
        }
        _ => quantize_block(position, code, (scale_rounding, formula), global, &largest),
    };
    let (ty, words) = (format!("Words<kCount * {bits} / 8>"), block as usize * bits / 32);
    let blocks = format!("#pragma unroll\n      for (int sub = 0; sub < kCount / {block}; ++sub) {{");
    let scale = format!("static_cast<uint8_t *>(p.outputs[{scales}])[{place}]");
    let codes = format!(
        "{ty} o{position};\n{blocks}\n        auto const codes = {block_codes};\n#pragma unroll\n        \
         for (int i = 0; i < {words}; ++i) {{\n          \
         o{position}.words[sub * {words} + i] = codes.words[i];\n        }}\n        \
         {scale} = static_cast<uint8_t>(codes.scale);\n      }}\n      "
    );
    let to = format!("static_cast<uint8_t *>(p.outputs[{at}]) + {}", bytes("(start + column)", bits));
    let values = if is_pairs {
        format!("uint32_t q{position}[kCount / 2]")
    } else {
        format!("float q{position}[kCount]")
    };
    let declare = format!("{values};\n      uint32_t m{position}[kCount / {block}] = {{}};");
    let put = match is_pairs {
        true => format!("q{position}[pair] = {};\n        {larger}", written.packed),
        false => format!("q{position}[2 * pair] = {a}, q{position}[2 * pair + 1] = {b};\n        {larger}"),
    };
    OutputText {
        declare_wide: declare.clone(),
        declare_narrow: declare,
        put_wide: put.clone(),
        put_narrow: put,
        store_wide: format!("{codes}*reinterpret_cast<{ty} *>({to}) = o{position};"),
        store_narrow: format!("{codes}store_bytes({to}, o{position});"),
        store_one: String::new(),
        pad: match layout {
            ScaleLayout::Blocked => format!("{blocks}\n        {scale} = 0;\n      }}"),
            ScaleLayout::Linear => String::new(),
        },
        blocked: if layout == ScaleLayout::Blocked { block } else { 0 },
        scales,
    }
}

fn quantize_block(
    position: usize,
    code: ElementType,
    (rounding, formula): (Option<ScaleRounding>, Nvfp4Formula),
    global: Option<usize>,
    largest: &str,
) -> String {
    let ty = blocks(code, rounding, formula);
    let block = if rounding.is_some() { 32 } else { 16 };
    let global = global.map_or("1.0f".to_owned(), |global| format!("x{global}"));
    format!("quantize_block<{ty}, {}>(q{position} + sub * {block}, {largest}, {global})", code.storage_bits())
}
