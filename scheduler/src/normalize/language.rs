//! The terms of normalization rules, and the analysis of each: its type, whether it is a splat constant, and
//! whether more than one op uses it.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::rc::Rc;
use std::str::FromStr;

use egg::{Analysis, DidMerge, EGraph, Id, Language};
use fourfold_ir::{Dim, ElementType, ScaleLayout, Shape, TensorType, broadcast_shape};

use super::weight_only::WeightOnly;
use crate::attribute::{self, Leaf, UnknownWord};

egg::define_language! {
    /// Ops. Attributes are children, so that one rule covers all functions, types and shapes. The children
    /// determine the type of a term.
    pub(crate) enum Term {
        "none" = Absent,
        // element, a, b
        "mma" = Mma([Id; 3]),
        // element, block, a, sfa, b, sfb, alpha, c, beta
        "scaled_mma" = ScaledMma([Id; 9]),
        // element, block, codes, scales, g
        "dequantize" = Dequantize([Id; 5]),
        "swizzle" = Swizzle([Id; 2]),
        "reshape" = Reshape([Id; 2]),
        "transpose" = Transpose([Id; 2]),
        "convert" = Convert([Id; 2]),
        "unary" = Unary([Id; 2]),
        "binary" = Binary([Id; 3]),
        "clamp" = Clamp([Id; 2]),
        "compare" = Compare([Id; 3]),
        "select" = Select([Id; 3]),
        Attribute(Attribute),
        Leaf(Leaf),
    }
}

impl Term {
    /// The operand children, absent ones included. The other children are attributes.
    pub(crate) fn operands(&self) -> &[Id] {
        let attributes = match self {
            Term::Absent | Term::Attribute(_) | Term::Leaf(_) | Term::Select(_) => 0,
            Term::ScaledMma(_) | Term::Dequantize(_) => 2,
            _ => 1,
        };
        &self.children()[attributes..]
    }

    /// Returns whether the term is an op.
    pub(crate) fn is_op(&self) -> bool {
        !matches!(self, Term::Absent | Term::Attribute(_) | Term::Leaf(_))
    }

    /// Returns whether each element of the result depends only on the same element of the operands.
    pub(crate) fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Term::Convert(_)
                | Term::Unary(_)
                | Term::Binary(_)
                | Term::Clamp(_)
                | Term::Compare(_)
                | Term::Select(_)
        )
    }
}

/// The attributes of normalization terms: elementwise ones, and those of moves and formats.
pub(crate) type Attribute = attribute::Attribute<OwnAttribute>;

/// The attributes specific to normalization. Shapes and permutations are positions in [`Tables`]. No rule
/// names one in its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum OwnAttribute {
    /// True for blocked scales.
    Blocked(bool),
    Block(u32),
    Shape(usize),
    Permutation(usize),
}

impl fmt::Display for OwnAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OwnAttribute::Blocked(true) => f.write_str("blocked"),
            OwnAttribute::Blocked(false) => f.write_str("linear"),
            OwnAttribute::Block(block) => write!(f, "block{block}"),
            OwnAttribute::Shape(shape) => write!(f, "shape{shape}"),
            OwnAttribute::Permutation(permutation) => write!(f, "permutation{permutation}"),
        }
    }
}

impl FromStr for OwnAttribute {
    type Err = UnknownWord;
    fn from_str(_: &str) -> Result<OwnAttribute, UnknownWord> {
        Err(UnknownWord)
    }
}

/// An interning table: each distinct item once, by position.
#[derive(Debug)]
pub(crate) struct Table<T> {
    items: Vec<T>,
    positions: HashMap<T, usize>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { items: Vec::new(), positions: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    pub(crate) fn intern(&mut self, item: &T) -> usize {
        if let Some(position) = self.positions.get(item) {
            return *position;
        }
        self.items.push(item.clone());
        self.positions.insert(item.clone(), self.items.len() - 1);
        self.items.len() - 1
    }

    pub(crate) fn get(&self, position: usize) -> &T {
        &self.items[position]
    }
}

/// The types, shapes and permutations of a program, interned so that terms are small and `Copy`.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) types: Table<TensorType>,
    pub(crate) shapes: Table<Shape>,
    pub(crate) permutations: Table<Vec<u32>>,
}

/// The properties of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeafInfo {
    /// Its type, in [`Tables::types`].
    pub(crate) ty: usize,
    /// For a splat constant, the bits of the number as an f64.
    pub(crate) splat: Option<u64>,
}

/// The analysis of a class of equal terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Its type, in [`Tables::types`]; `None` for a class that is no value.
    pub(crate) ty: Option<usize>,
    /// For a splat constant, the bits of the number as an f64.
    pub(crate) splat: Option<u64>,
    /// True if several ops, or an op and the caller, use a value in the class.
    pub(crate) shared: bool,
}

/// One application of a rule, for the proof.
#[derive(Clone, Debug)]
pub(crate) struct Applied {
    /// The rule's position.
    pub(crate) rule: usize,
    /// The terms that the left side matched, the whole match first.
    pub(crate) matched: Vec<Term>,
    /// The terms that it added.
    pub(crate) created: Vec<Term>,
    /// The class united with the match.
    pub(crate) result: Id,
}

/// The analysis of the e-graph: types, the target, and the log of applied rules.
#[derive(Debug, Default)]
pub(crate) struct Types {
    pub(crate) tables: Tables,
    pub(crate) leaves: Vec<LeafInfo>,
    /// The weight-only products that the target computes.
    pub(crate) target: Rc<WeightOnly>,
    pub(crate) log: Vec<Applied>,
}

/// The e-graph of terms.
pub(crate) type Terms = EGraph<Term, Types>;

impl Analysis<Term> for Types {
    type Data = Known;

    fn make(egraph: &mut Terms, term: &Term, _: Id) -> Known {
        if let Term::Leaf(leaf) = term {
            let LeafInfo { ty, splat } = egraph.analysis.leaves[leaf.0];
            return Known { ty: Some(ty), splat, shared: false };
        }
        let ty = result_type(egraph, term);
        let ty = ty.map(|ty| egraph.analysis.tables.types.intern(&ty));
        Known { ty, splat: None, shared: false }
    }

    fn merge(&mut self, a: &mut Known, b: Known) -> DidMerge {
        debug_assert_eq!(a.ty, b.ty, "a rule changed the type of a term");
        let merged = Known { ty: a.ty, splat: a.splat.or(b.splat), shared: a.shared || b.shared };
        let changed = DidMerge(merged != *a, merged != b);
        *a = merged;
        changed
    }
}

/// The type of a class; `None` if it is no value.
pub(crate) fn type_of(egraph: &Terms, class: Id) -> Option<&TensorType> {
    egraph[class].data.ty.map(|ty| egraph.analysis.tables.types.get(ty))
}

/// The attribute in a class.
pub(crate) fn attribute(egraph: &Terms, class: Id) -> Option<Attribute> {
    egraph[class].nodes.iter().find_map(|term| match term {
        Term::Attribute(attribute) => Some(*attribute),
        _ => None,
    })
}

/// The type that `fourfold_ir` gives a term; `None` if it gives none.
fn result_type(egraph: &Terms, term: &Term) -> Option<TensorType> {
    let ty = |class: Id| type_of(egraph, class);
    let element = |class: Id| match attribute(egraph, class)? {
        Attribute::Element(element) => Some(element),
        _ => None,
    };
    let broadcast = |operands: &[Id]| {
        operands.iter().try_fold(Shape::new(), |shape, operand| broadcast_shape(&shape, &ty(*operand)?.shape))
    };
    let join = |x: Id, y: Id| {
        let (x, y) = (ty(x)?.element, ty(y)?.element);
        if x == y { Some(x) } else { x.join(y) }
    };
    let result = match *term {
        Term::Absent | Term::Attribute(_) | Term::Leaf(_) => return None,
        Term::Mma([to, a, b]) => TensorType::new(product_shape(ty(a)?, ty(b)?)?, element(to)?),
        Term::ScaledMma([to, _, a, _, b, ..]) => {
            TensorType::new(product_shape(ty(a)?, ty(b)?)?, element(to)?)
        }
        Term::Dequantize([to, _, codes, ..]) => TensorType::new(ty(codes)?.shape.clone(), element(to)?),
        Term::Swizzle([to, x]) => {
            let Attribute::Own(OwnAttribute::Blocked(blocked)) = attribute(egraph, to)? else { return None };
            let layout = if blocked { ScaleLayout::Blocked } else { ScaleLayout::Linear };
            TensorType { layout: Some(layout), ..ty(x)?.clone() }
        }
        Term::Reshape([to, x]) => {
            let Attribute::Own(OwnAttribute::Shape(shape)) = attribute(egraph, to)? else { return None };
            TensorType { shape: egraph.analysis.tables.shapes.get(shape).clone(), ..ty(x)?.clone() }
        }
        Term::Transpose([by, x]) => {
            let Attribute::Own(OwnAttribute::Permutation(permutation)) = attribute(egraph, by)? else {
                return None;
            };
            let permutation = egraph.analysis.tables.permutations.get(permutation);
            let x = ty(x)?;
            let axes = permutation.iter().map(|axis| x.shape.get(*axis as usize).cloned());
            TensorType { shape: axes.collect::<Option<Shape>>()?, ..x.clone() }
        }
        Term::Convert([to, x]) => TensorType::new(ty(x)?.shape.clone(), element(to)?),
        Term::Unary([_, x]) | Term::Clamp([_, x]) => ty(x)?.clone(),
        Term::Binary([_, x, y]) => TensorType::new(broadcast(&[x, y])?, join(x, y)?),
        Term::Compare([_, x, y]) => TensorType::new(broadcast(&[x, y])?, ElementType::I1),
        Term::Select([condition, x, y]) => TensorType::new(broadcast(&[condition, x, y])?, join(x, y)?),
    };
    Some(result)
}

/// The shape `[.., M, N]` of A `[.., M, K]` times B `[.., N, K]`.
fn product_shape(a: &TensorType, b: &TensorType) -> Option<Shape> {
    let ([batch @ .., m, _], [.., n, _]) = (&a.shape[..], &b.shape[..]) else { return None };
    let shape: Vec<Dim> = batch.iter().chain([m, n]).cloned().collect();
    Some(shape)
}
