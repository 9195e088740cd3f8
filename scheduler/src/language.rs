//! The terms that the kernel rules rewrite.

use std::fmt;
use std::str::FromStr;

use egg::Id;
use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, OperandShape, ReduceKind, ScaleRounding};

use crate::attribute::{self, Leaf, UnknownWord};

egg::define_language! {
    /// Ops, and the parts of the normal form.
    pub(crate) enum KernelTerm {
        "none" = Absent,
        // a, sfa, b, sfb, alpha, c, beta
        "scaled_mma" = ScaledMma([Id; 7]),
        "mma" = Mma([Id; 2]),
        // The even and the odd columns of a product.
        "even" = Even(Id),
        "odd" = Odd(Id),
        // The first child is the function: one rule covers all functions.
        "unary" = Unary([Id; 2]),
        "binary" = Binary([Id; 3]),
        "clamp" = Clamp([Id; 2]),
        "compare" = Compare([Id; 3]),
        "convert" = Convert([Id; 2]),
        "select" = Select([Id; 3]),
        // The last child is the per-tensor scale, or `none`.
        "quantize" = Quantize([Id; 3]),
        "reduce" = Reduce([Id; 2]),
        // The normal form: the operands of the `scaled_mma`; a root with an expression over its result; a
        // written kernel.
        "root" = Root([Id; 7]),
        "kernel" = Kernel([Id; 2]),
        "write" = Write([Id; 2]),
        "acc" = Accumulator,
        "even-acc" = EvenAccumulator,
        "odd-acc" = OddAccumulator,
        Attribute(Attribute),
        Leaf(Leaf),
    }
}

/// The attributes of kernel terms: elementwise ones and those of sinks.
pub(crate) type Attribute = attribute::Attribute<SinkAttribute>;

/// The attributes of a sink: an op that ends an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SinkAttribute {
    /// The format that `block_quantize` writes.
    Blocks {
        element: ElementType,
        scale: ElementType,
        block: u32,
        scale_rounding: Option<ScaleRounding>,
        formula: Nvfp4Formula,
    },
    /// The reduction and the shape of its result.
    Reduction(ReduceKind, OperandShape),
}

impl fmt::Display for SinkAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SinkAttribute::Blocks { element, scale, block, scale_rounding, formula } => {
                write!(f, "{element}:{scale}/{block}")?;
                match scale_rounding {
                    None if *formula == Nvfp4Formula::DEFAULT => Ok(()),
                    None => write!(f, ":{formula}"),
                    Some(rounding) => {
                        write!(f, ":{}", rounding.name())?;
                        if *formula == Nvfp4Formula::DEFAULT { Ok(()) } else { write!(f, "_{formula}") }
                    }
                }
            }
            SinkAttribute::Reduction(kind, shape) => write!(f, "{kind}@{shape}"),
        }
    }
}

impl FromStr for SinkAttribute {
    type Err = UnknownWord;
    fn from_str(text: &str) -> Result<SinkAttribute, UnknownWord> {
        blocks(text).or_else(|| reduction(text)).ok_or(UnknownWord)
    }
}

fn blocks(text: &str) -> Option<SinkAttribute> {
    let (element, rest) = text.split_once(':')?;
    let (scale, rest) = rest.split_once('/')?;
    let (block, scale_rounding, formula) = match rest.split_once(':') {
        None => (rest, None, Nvfp4Formula::DEFAULT),
        Some((block, words)) => {
            let (first, edges) = words.split_once('_').unwrap_or((words, ""));
            match ScaleRounding::from_name(first) {
                Some(rounding) => (block, Some(rounding), edges.parse().ok()?),
                None => (block, None, words.parse().ok()?),
            }
        }
    };
    let (element, scale) = (ElementType::from_name(element)?, ElementType::from_name(scale)?);
    Some(SinkAttribute::Blocks { element, scale, block: block.parse().ok()?, scale_rounding, formula })
}

fn reduction(text: &str) -> Option<SinkAttribute> {
    let (kind, shape) = text.split_once('@')?;
    let shape = OperandShape::ALL.into_iter().find(|known| known.name() == shape)?;
    Some(SinkAttribute::Reduction(ReduceKind::from_name(kind)?, shape))
}

#[cfg(test)]
mod tests {
    use fourfold_ir::numeric::Nvfp4Formula;
    use fourfold_ir::{ElementType, ScaleRounding};

    use super::{Attribute, Leaf, SinkAttribute};

    #[test]
    fn bounds_read_back_as_they_are_written() {
        for bounds in [[-1.0, 6.0], [f64::NEG_INFINITY, -0.0], [1e-12, f64::INFINITY]] {
            let attribute = Attribute::Bounds(bounds.map(f64::to_bits));
            assert_eq!(attribute.to_string().parse::<Attribute>().ok(), Some(attribute));
        }
        for text in [
            "f4E2M1FN:f8E4M3FN/16",
            "f4E2M1FN:f8E4M3FN/16:gmul_unguarded_min3c800000",
            "f8E5M2:f8E8M0FNU/32:floor",
            "amax@row",
            "max@scalar",
        ] {
            assert_eq!(
                text.parse::<Attribute>().ok().map(|attribute| attribute.to_string()).as_deref(),
                Some(text)
            );
        }
        let rounded = Attribute::Own(SinkAttribute::Blocks {
            element: ElementType::F4E2M1FN,
            scale: ElementType::F8E8M0FNU,
            block: 32,
            scale_rounding: Some(ScaleRounding::Ceil),
            formula: Nvfp4Formula::DEFAULT,
        });
        assert_eq!(rounded.to_string().parse::<Attribute>().ok(), Some(rounded));
        assert!("nothing".parse::<Attribute>().is_err() && "w1".parse::<Leaf>().is_err());
    }
}
