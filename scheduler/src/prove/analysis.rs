//! The analysis of terms: the element type and the class of each term, and the rules applied to it.

use std::collections::BTreeMap;
use std::sync::Arc;

use egg::{Analysis, DidMerge, EGraph, Id, Symbol};
use fourfold_ir::{ElementType, FormatCapability};

use crate::expression::{Class, Type, TypeEnvironment};
use crate::language::{Attribute, KernelTerm, SinkAttribute};
use crate::properties::is_fp8;

/// The analysis data of the e-graph.
pub(super) struct Types {
    pub(super) environment: TypeEnvironment,
    pub(super) capability: Arc<FormatCapability>,
    /// The classes to which rules were applied, with the rules, in order.
    pub(super) applied: Vec<(Id, Symbol)>,
}

/// The rules that lifted and wrote a term.
pub(super) struct AppliedRules {
    pub(super) lifted: Symbol,
    pub(super) written: Option<Symbol>,
}

impl Types {
    pub(super) fn new(environment: &TypeEnvironment, capability: &Arc<FormatCapability>) -> Types {
        Types { environment: environment.clone(), capability: Arc::clone(capability), applied: Vec::new() }
    }

    /// By class: the first rule applied to a term lifted it, the second wrote it.
    pub(super) fn applied_rules(&self, egraph: &EGraph<KernelTerm, Types>) -> BTreeMap<Id, AppliedRules> {
        let mut rules: BTreeMap<Id, AppliedRules> = BTreeMap::new();
        for (class, rule) in &self.applied {
            rules
                .entry(egraph.find(*class))
                .and_modify(|known| {
                    known.written.get_or_insert(*rule);
                })
                .or_insert(AppliedRules { lifted: *rule, written: None });
        }
        rules
    }
}

impl Analysis<KernelTerm> for Types {
    type Data = Type;

    fn make(egraph: &mut EGraph<KernelTerm, Types>, node: &KernelTerm, _: Id) -> Type {
        let ty = |id: &Id| egraph[*id].data;
        let no_value = |element| Type { element, class: Class::NoValue, inlined: false };
        let computed = |element| Type { element, class: Class::Computed, inlined: false };
        match node {
            KernelTerm::Absent | KernelTerm::Attribute(_) => no_value(match node {
                KernelTerm::Attribute(Attribute::Element(element)) => Some(*element),
                _ => None,
            }),
            KernelTerm::Leaf(leaf) => {
                egraph.analysis.environment.leaves.get(leaf.0).copied().unwrap_or(Type {
                    element: None,
                    class: Class::Other,
                    inlined: false,
                })
            }
            KernelTerm::ScaledMma(_)
            | KernelTerm::Root(_)
            | KernelTerm::Accumulator
            | KernelTerm::EvenAccumulator
            | KernelTerm::OddAccumulator
            | KernelTerm::Even(_)
            | KernelTerm::Odd(_) => computed(Some(egraph.analysis.environment.accumulator)),
            // No type is known, so no condition on the term holds.
            KernelTerm::Mma(_) => Type { element: None, class: Class::Other, inlined: false },
            KernelTerm::Unary([_, x]) | KernelTerm::Clamp([_, x]) => computed(arithmetic(ty(x).element)),
            KernelTerm::Convert([to, x]) => computed(converted(ty(x).element, ty(to).element)),
            KernelTerm::Quantize([format, ..]) => computed(match egraph[*format].nodes[..] {
                [KernelTerm::Attribute(Attribute::Own(SinkAttribute::Blocks { element, .. }))] => {
                    Some(element)
                }
                _ => None,
            }),
            KernelTerm::Reduce([_, x]) => computed(ty(x).element),
            KernelTerm::Binary([_, x, y]) => computed(join(ty(x), ty(y))),
            KernelTerm::Compare([_, x, y]) => computed(join(ty(x), ty(y)).map(|_| ElementType::I1)),
            KernelTerm::Select([condition, x, y]) => {
                let chosen = ty(condition).element == Some(ElementType::I1);
                computed(join(ty(x), ty(y)).filter(|_| chosen))
            }
            KernelTerm::Kernel([_, x]) | KernelTerm::Write([_, x]) => computed(ty(x).element),
        }
    }

    fn merge(&mut self, a: &mut Type, b: Type) -> DidMerge {
        debug_assert_eq!(*a, b, "a rule changed the type of a term");
        DidMerge(false, false)
    }
}

/// An FP8 value can only be converted back to an arithmetic type.
fn converted(from: Option<ElementType>, to: Option<ElementType>) -> Option<ElementType> {
    match from? {
        narrow if is_fp8(narrow) => arithmetic(to),
        from => arithmetic(Some(from)).and(to),
    }
}

/// A comparison is only an operand of `select`.
pub(super) fn arithmetic(element: Option<ElementType>) -> Option<ElementType> {
    element.filter(|element| element.is_arithmetic())
}

fn join(left: Type, right: Type) -> Option<ElementType> {
    left.element?.join(right.element?)
}
