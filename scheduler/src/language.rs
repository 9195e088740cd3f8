//! The terms that rewrite rules speak of.

use std::fmt;
use std::str::FromStr;

use egg::Id;
use fourfold_ir::{BinaryKind, ElementType, Predicate, UnaryKind};

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

/// Which function, predicate, bounds or element type an op has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Attribute {
    Unary(UnaryKind),
    Binary(BinaryKind),
    Predicate(Predicate),
    Element(ElementType),
    /// The bits of two f64, so that equal ones are the same.
    Bounds([u64; 2]),
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
            .ok_or(UnknownWord)
    }
}
