//! What a kernel reads, from what it says of itself: a call that brings less is not made.

use std::fmt;

use fourfold_ir::{BlockFormat, ElementType, OperandShape, ReduceKind};

use crate::kernel::{MAX_OPERANDS, Problem, Requirements};

/// A place in the interface of kernels for what they read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Slot {
    /// A, packed.
    A,
    /// The blocked scales of A.
    Sfa,
    /// B, packed.
    B,
    /// The blocked scales of B.
    Sfb,
    /// C.
    C,
    /// alpha, one f32.
    Alpha,
    /// beta, one f32.
    Beta,
    /// What the epilogue reads, by position.
    Operand(usize),
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slot::A => f.write_str("A"),
            Slot::Sfa => f.write_str("the scales of A"),
            Slot::B => f.write_str("B"),
            Slot::Sfb => f.write_str("the scales of B"),
            Slot::C => f.write_str("C"),
            Slot::Alpha => f.write_str("alpha"),
            Slot::Beta => f.write_str("beta"),
            Slot::Operand(position) => write!(f, "operand {position}"),
        }
    }
}

/// How many bytes a kernel of this signature reads of each slot. Its first words are the formats of A and B as
/// [`signature_of`](crate::signature_of) writes them; a kernel that multiplies nothing has other words there, and says
/// what it reads in the place of each, an element type, as `a=bf16`. What it writes is not looked at: the kernel itself
/// says how much that is.
///
/// # Errors
/// Why that cannot be known, as a sentence without its end.
pub(super) fn reads(
    signature: &str,
    problem: &Problem,
    requirements: &Requirements,
) -> Result<Vec<(Slot, u64)>, String> {
    let size = |element: ElementType, extents: &[i64]| {
        let bits = element.storage_bits() as u64;
        let product = |product: u64, extent: &i64| product.checked_mul(u64::try_from(*extent).ok()?);
        let bits = extents.iter().try_fold(bits, product);
        bits.map(|bits| bits.div_ceil(8)).ok_or_else(|| "its extents are negative or too large".to_owned())
    };
    let Problem { l, m, n, k } = *problem;
    let words: Vec<&str> = signature.split_whitespace().collect();
    let is_part = |word: &&str| word.contains('=') || ["alpha", "beta"].contains(word);
    let (kind, parts) = words.split_at(words.iter().position(is_part).unwrap_or(words.len()));
    let mut found = Vec::new();
    if let Some((a, b)) = multiplied(kind) {
        found.extend([(Slot::A, size(a, &[l, m, k])?), (Slot::B, size(b, &[l, n, k])?)]);
        found.extend([(Slot::Sfa, requirements.sfa), (Slot::Sfb, requirements.sfb)]);
    }
    let mut operands = 0;
    for part in parts {
        let (name, rest) = part.split_once('=').unwrap_or((part, "f32"));
        if ["d", "q"].contains(&name) || ReduceKind::from_name(name).is_some() {
            continue;
        }
        let element = ElementType::from_name(rest);
        let element = element.ok_or_else(|| format!("the kernel reads `{part}`, which is not understood"))?;
        let shape = OperandShape::ALL.into_iter().find(|shape| shape.name() == name);
        found.push(match (name, shape) {
            ("a", _) => (Slot::A, size(element, &[l, m, k])?),
            ("b", _) => (Slot::B, size(element, &[l, n, k])?),
            ("c", _) => (Slot::C, size(element, &[l, m, n])?),
            ("alpha", _) => (Slot::Alpha, size(element, &[])?),
            ("beta", _) => (Slot::Beta, size(element, &[])?),
            (_, Some(shape)) => {
                let extents = match shape {
                    OperandShape::Scalar => &[][..],
                    OperandShape::Row => &[n],
                    OperandShape::Column => &[l, m],
                    OperandShape::Matrix => &[l, m, n],
                };
                operands += 1;
                (Slot::Operand(operands - 1), size(element, extents)?)
            }
            _ => return Err(format!("the kernel reads `{part}`, which is not understood")),
        });
    }
    if operands > MAX_OPERANDS {
        return Err(format!("the kernel reads {operands} operands, and there is room for {MAX_OPERANDS}"));
    }
    if !found.iter().any(|(slot, _)| *slot == Slot::A) {
        return Err(format!("the kernel says `{signature}` of itself, and not what it reads"));
    }
    Ok(found)
}

/// The element types of A and B, if the words are a format's name.
fn multiplied(words: &[&str]) -> Option<(ElementType, ElementType)> {
    let named = |format: BlockFormat| words == [format.to_string()];
    if let Some(format) = [BlockFormat::NVFP4, BlockFormat::MXFP4].into_iter().find(|format| named(*format)) {
        return Some((format.a, format.b));
    }
    match words {
        [a, "x", b, "with", _, "per", _] => Some((ElementType::from_name(a)?, ElementType::from_name(b)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBLEM: Problem = Problem { l: 2, m: 3, n: 8, k: 64 };
    const SCALES: Requirements = Requirements { workspace: 0, sfa: 1024, sfb: 2048, outputs: [0; 8] };

    #[test]
    fn every_operand_of_a_signature_has_its_size() {
        let expected = |signature: &str| reads(signature, &PROBLEM, &SCALES);
        let both = [(Slot::A, 192), (Slot::B, 512), (Slot::Sfa, 1024), (Slot::Sfb, 2048)];
        for format in ["nvfp4", "mxfp4"] {
            assert_eq!(expected(&format!("{format} d=bf16")).unwrap(), both);
        }
        let epilogue = "nvfp4 alpha c=bf16 beta row=f16 column=f32 matrix=bf16 scalar=f32 d=f32@acc \
                        q=f4E2M1FN:f8E4M3FN/16*x3 amax=row max=scalar";
        let rest = [
            (Slot::Alpha, 4),
            (Slot::C, 2 * 3 * 8 * 2),
            (Slot::Beta, 4),
            (Slot::Operand(0), 16),
            (Slot::Operand(1), 24),
            (Slot::Operand(2), 96),
            (Slot::Operand(3), 4),
        ];
        assert_eq!(expected(epilogue).unwrap(), [&both[..], &rest].concat());
        let mixed = expected("f8E4M3FN x f4E2M1FN with f8E8M0FNU per 32 d=f32").unwrap();
        assert_eq!(mixed[..2], [(Slot::A, 384), (Slot::B, 512)]);
        assert_eq!(
            expected("block_quantize a=bf16 scalar=f32 q=f4E2M1FN:f8E4M3FN/16*x0").unwrap(),
            [(Slot::A, 768), (Slot::Operand(0), 4)]
        );
    }

    #[test]
    fn what_is_not_understood_is_not_guessed() {
        let error = |signature: &str| reads(signature, &PROBLEM, &SCALES).unwrap_err();
        assert_eq!(
            error("nvfp4 diagonal=f32 d=f32"),
            "the kernel reads `diagonal=f32`, which is not understood"
        );
        assert_eq!(error("nvfp4 row=f12 d=f32"), "the kernel reads `row=f12`, which is not understood");
        assert_eq!(error("mixed d=f32"), "the kernel says `mixed d=f32` of itself, and not what it reads");
        assert_eq!(error(""), "the kernel says `` of itself, and not what it reads");
        let words = ["nvfp4"].into_iter().chain([" row=f32"; MAX_OPERANDS + 1]).collect::<String>();
        assert_eq!(error(&words), "the kernel reads 25 operands, and there is room for 24");
        for problem in [Problem { m: -1, ..PROBLEM }, Problem { m: i64::MAX, ..PROBLEM }] {
            let error = reads("nvfp4 d=f32", &problem, &SCALES).unwrap_err();
            assert_eq!(error, "its extents are negative or too large");
        }
    }
}
