//! The terms that rewrite rules speak of.

use std::fmt;
use std::str::FromStr;

use egg::Id;
use fourfold_ir::{BinaryKind, ElementType, OperandShape, Predicate, ReduceKind, ScaleRounding, UnaryKind};

egg::define_language! {
    /// Ops, and the parts of the normal form.
    pub(crate) enum Fir {
        "none" = Absent,
        // a, sfa, b, sfb, alpha, c, beta
        "scaled_mma" = ScaledMma([Id; 7]),
        "mma" = Mma([Id; 2]),
        // The first child says which: a rule speaks of all functions at once.
        "unary" = Unary([Id; 2]),
        "binary" = Binary([Id; 3]),
        "clamp" = Clamp([Id; 2]),
        "compare" = Compare([Id; 3]),
        "convert" = Convert([Id; 2]),
        "select" = Select([Id; 3]),
        // The per-tensor scale comes last, or is absent.
        "quantize" = Quantize([Id; 3]),
        "reduce" = Reduce([Id; 2]),
        // The normal form: the operands of the scaled_mma; that and an expression of its result; the same, written.
        "root" = Root([Id; 7]),
        "kernel" = Kernel([Id; 2]),
        "write" = Write([Id; 2]),
        "acc" = Accumulator,
        Attribute(Attribute),
        Leaf(Leaf),
    }
}

/// A value that the region uses and does not define, by its position among them: `v0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Leaf(pub(crate) usize);

/// Which function, predicate, bounds, element type, format or reduction an op has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Attribute {
    Unary(UnaryKind),
    Binary(BinaryKind),
    Predicate(Predicate),
    Element(ElementType),
    /// The bits of two f64, so that equal ones are the same.
    Bounds([u64; 2]),
    /// What `block_quantize` gives.
    Blocks {
        element: ElementType,
        scale: ElementType,
        block: u32,
        scale_rounding: Option<ScaleRounding>,
    },
    /// How, and to what.
    Reduction(ReduceKind, OperandShape),
}

/// No text is one of the language's words.
#[derive(Debug)]
pub(crate) struct UnknownWord;

impl fmt::Display for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl FromStr for Leaf {
    type Err = UnknownWord;
    fn from_str(text: &str) -> Result<Leaf, UnknownWord> {
        text.strip_prefix('v').and_then(|number| number.parse().ok()).map(Leaf).ok_or(UnknownWord)
    }
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Unary(kind) => f.write_str(kind.name()),
            Attribute::Binary(kind) => f.write_str(kind.name()),
            Attribute::Predicate(predicate) => f.write_str(predicate.name()),
            Attribute::Element(element) => f.write_str(element.name()),
            Attribute::Bounds([min, max]) => {
                write!(f, "{:?}..{:?}", f64::from_bits(*min), f64::from_bits(*max))
            }
            Attribute::Blocks { element, scale, block, scale_rounding } => {
                write!(f, "{element}:{scale}/{block}")?;
                match scale_rounding {
                    None => Ok(()),
                    Some(ScaleRounding::Floor) => f.write_str(":floor"),
                    Some(ScaleRounding::Ceil) => f.write_str(":ceil"),
                }
            }
            Attribute::Reduction(kind, shape) => write!(f, "{kind}@{shape}"),
        }
    }
}

impl FromStr for Attribute {
    type Err = UnknownWord;
    fn from_str(text: &str) -> Result<Attribute, UnknownWord> {
        let bounds = || {
            let (min, max) = text.split_once("..")?;
            let bits = |text: &str| text.parse::<f64>().ok().map(f64::to_bits);
            Some(Attribute::Bounds([bits(min)?, bits(max)?]))
        };
        UnaryKind::from_name(text)
            .map(Attribute::Unary)
            .or_else(|| BinaryKind::from_name(text).map(Attribute::Binary))
            .or_else(|| Predicate::from_name(text).map(Attribute::Predicate))
            .or_else(|| ElementType::from_name(text).map(Attribute::Element))
            .or_else(bounds)
            .or_else(|| blocks(text))
            .or_else(|| reduction(text))
            .ok_or(UnknownWord)
    }
}

fn blocks(text: &str) -> Option<Attribute> {
    let (element, rest) = text.split_once(':')?;
    let (scale, rest) = rest.split_once('/')?;
    let (block, scale_rounding) = match rest.split_once(':') {
        None => (rest, None),
        Some((block, "floor")) => (block, Some(ScaleRounding::Floor)),
        Some((block, "ceil")) => (block, Some(ScaleRounding::Ceil)),
        Some(_) => return None,
    };
    let (element, scale) = (ElementType::from_name(element)?, ElementType::from_name(scale)?);
    Some(Attribute::Blocks { element, scale, block: block.parse().ok()?, scale_rounding })
}

fn reduction(text: &str) -> Option<Attribute> {
    let (kind, shape) = text.split_once('@')?;
    let shape = OperandShape::ALL.into_iter().find(|known| known.name() == shape)?;
    Some(Attribute::Reduction(ReduceKind::from_name(kind)?, shape))
}
