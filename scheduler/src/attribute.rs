//! Leaves and attributes of terms, shared by the kernel language ([`crate::language`]) and the language of
//! normalization.

use std::fmt;
use std::str::FromStr;

use fourfold_ir::{BinaryKind, ElementType, Predicate, UnaryKind};

/// An external value of a region, identified by its position in the region's list of leaves: `v0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Leaf(pub(crate) usize);

/// An attribute of a term: the part of an op that is not an operand. `Own` holds the attributes of one
/// language only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Attribute<Own> {
    Unary(UnaryKind),
    Binary(BinaryKind),
    Predicate(Predicate),
    Element(ElementType),
    /// The bit patterns of two f64 bounds, so that `Eq` and `Hash` apply.
    Bounds([u64; 2]),
    Own(Own),
}

/// A word that names neither a leaf nor an attribute.
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

impl<Own: fmt::Display> fmt::Display for Attribute<Own> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attribute::Unary(kind) => f.write_str(kind.name()),
            Attribute::Binary(kind) => f.write_str(kind.name()),
            Attribute::Predicate(predicate) => f.write_str(predicate.name()),
            Attribute::Element(element) => f.write_str(element.name()),
            Attribute::Bounds([min, max]) => {
                write!(f, "{:?}..{:?}", f64::from_bits(*min), f64::from_bits(*max))
            }
            Attribute::Own(own) => own.fmt(f),
        }
    }
}

impl<Own: FromStr> FromStr for Attribute<Own> {
    type Err = UnknownWord;
    fn from_str(text: &str) -> Result<Attribute<Own>, UnknownWord> {
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
            .or_else(|| text.parse().ok().map(Attribute::Own))
            .ok_or(UnknownWord)
    }
}
