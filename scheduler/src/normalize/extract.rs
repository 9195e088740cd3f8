//! Extracts the cheapest form of a region.
//!
//! The cheapest term ([`super::cost`]) is chosen per class of equal terms, so a term that is used twice is
//! computed once.

use std::collections::{BTreeMap, HashMap, HashSet};

use egg::{Extractor, Id, Language};

use super::cost::Costs;
use super::expression::{Expression, Member};
use super::language::{Attribute, Term, Terms, Types, attribute};
use super::proof::{History, Justification};

/// The rewritten form of a region.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rewritten {
    /// The new ops, each after its operands.
    pub(crate) made: Vec<Made>,
    /// The fate of each op of the region.
    pub(crate) fates: Vec<MemberFate>,
}

/// A new op.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Made {
    /// The term. Only the number of its children is meaningful.
    pub(crate) term: Term,
    /// The attributes, by child of the term.
    pub(crate) attributes: Vec<Attribute>,
    /// The operands, in order; `None` for an absent one.
    pub(crate) operands: Vec<Option<Reference>>,
    /// Its type, in [`Tables::types`].
    pub(crate) ty: usize,
    /// The op of the region whose result it now defines; `None` if it defines a new result.
    pub(crate) defines: Option<usize>,
    /// The ops of the region that it replaces.
    pub(crate) from: Vec<usize>,
    /// The rules that justify it, in order.
    pub(crate) rules: Vec<usize>,
    /// The op of the region to name it after.
    pub(crate) near: Option<usize>,
}

/// A value of a rewritten region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A value from outside the region.
    Leaf(usize),
    /// The result of an op of the region, regardless of the op that now defines it.
    Member(usize),
    /// The result of a new op that defines no member's result.
    Made(usize),
}

/// The fate of an op of a region.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MemberFate {
    /// It is unchanged.
    Kept,
    /// Its result equals another value, by these rules.
    Same(Reference, Vec<usize>),
    /// The new op at this position replaces it. It is removed once unused.
    Part(usize),
    /// It is removed once unused.
    Unneeded,
}

/// Extracts the cheapest form of a region, given the class of each of its terms; `None` if the region is
/// unchanged.
pub(crate) fn extract(egraph: &Terms, classes: &[Id], expression: &Expression) -> Option<Rewritten> {
    Choice::new(egraph, classes, expression).rewritten()
}

/// The choice of a term for each class.
struct Choice<'a> {
    egraph: &'a Terms,
    expression: &'a Expression,
    /// By op: its class.
    classes: Vec<Id>,
    history: History<'a>,
    /// The ops in each class, in order.
    members: BTreeMap<Id, Vec<usize>>,
}

impl<'a> Choice<'a> {
    fn new(egraph: &'a Terms, ids: &[Id], expression: &'a Expression) -> Choice<'a> {
        let class = |member: &Member| egraph.find(ids[usize::from(member.term)]);
        let classes: Vec<Id> = expression.ops.iter().map(class).collect();
        let terms: Vec<Term> = expression
            .ops
            .iter()
            .map(|member| {
                let term = &expression.nodes[member.term];
                term.clone().map_children(|child| egraph.find(ids[usize::from(child)]))
            })
            .collect();
        let mut members: BTreeMap<Id, Vec<usize>> = BTreeMap::new();
        for (position, class) in classes.iter().enumerate() {
            members.entry(*class).or_default().push(position);
        }
        Choice { egraph, expression, classes, history: History::new(egraph, terms), members }
    }

    fn rewritten(&self) -> Option<Rewritten> {
        if self.history.is_empty() {
            return None;
        }
        let extractor =
            Extractor::new(self.egraph, Costs { egraph: self.egraph, created: self.history.created() });
        let ops = &self.expression.ops;
        // The required classes: exported results, and the operands of outputs that only equal another value.
        let mut needed =
            Needed { choice: self, extractor: &extractor, order: Vec::new(), seen: HashSet::new() };
        for (op, member) in ops.iter().enumerate() {
            if member.exported {
                needed.visit(self.classes[op]);
            }
        }
        let keep_own: Vec<usize> = (0..ops.len()).filter(|op| self.keeps_own(&extractor, *op)).collect();
        for op in &keep_own {
            for operand in self.history.terms()[*op].operands() {
                needed.visit(*operand);
            }
        }
        let order = needed.order;
        let multiplications = |terms: &mut dyn Iterator<Item = &Term>| {
            terms.filter(|term| matches!(term, Term::Mma(_) | Term::ScaledMma(_))).count()
        };
        let mut chosen = order.iter().map(|class| extractor.find_best_node(*class));
        if multiplications(&mut chosen) > multiplications(&mut self.history.terms().iter()) {
            return None;
        }

        let mut made: Vec<Made> = Vec::new();
        let mut references: HashMap<Id, Option<Reference>> = HashMap::new();
        let mut fates = vec![MemberFate::Unneeded; ops.len()];
        for op in keep_own {
            fates[op] = MemberFate::Kept;
        }
        for class in order {
            let term = extractor.find_best_node(class);
            let representative = self.representative(class, term);
            let reference = match (term, representative) {
                (Term::Leaf(leaf), _) => Some(Reference::Leaf(leaf.0)),
                (Term::Absent | Term::Attribute(_), _) => None,
                (_, Some(op)) => {
                    if self.history.terms()[op] == *term {
                        fates[op] = MemberFate::Kept;
                    } else {
                        let new = self.make(term, Some(op), &references);
                        fates[op] = MemberFate::Part(made.len());
                        made.push(new);
                    }
                    Some(Reference::Member(op))
                }
                (_, None) => {
                    made.push(self.make(term, None, &references));
                    Some(Reference::Made(made.len() - 1))
                }
            };
            references.insert(class, reference);
            let Some(reference) = reference else { continue };
            for &op in self.members.get(&class).into_iter().flatten() {
                if fates[op] == MemberFate::Unneeded {
                    fates[op] = MemberFate::Same(reference, self.history.reasons(op));
                }
            }
        }
        let mut claimed = HashSet::new();
        for (position, new) in made.iter().enumerate() {
            for &op in &new.from {
                if fates[op] != MemberFate::Kept && (claimed.insert(op) || new.defines == Some(op)) {
                    fates[op] = MemberFate::Part(position);
                }
            }
        }
        let changed = !made.is_empty() || fates.iter().any(|fate| matches!(fate, MemberFate::Same(..)));
        changed.then_some(Rewritten { made, fates })
    }

    /// The op of a class whose result represents the class: an output, else the op with the chosen term, else
    /// an exported one, else the first.
    fn representative(&self, class: Id, term: &Term) -> Option<usize> {
        let members = self.members.get(&class)?;
        let ops = &self.expression.ops;
        let find = |is: &dyn Fn(&usize) -> bool| members.iter().copied().find(is);
        find(&|op| ops[*op].output)
            .or_else(|| find(&|op| self.history.terms()[*op] == *term))
            .or_else(|| find(&|op| ops[*op].exported))
            .or_else(|| members.first().copied())
    }

    /// Returns whether an output only equals a value of another name. Its op stays, to keep the name.
    fn keeps_own(&self, extractor: &Extractor<'_, Costs<'_>, Term, Types>, op: usize) -> bool {
        if !self.expression.ops[op].output {
            return false;
        }
        let class = self.classes[op];
        let term = extractor.find_best_node(class);
        matches!(term, Term::Leaf(_)) || self.representative(class, term) != Some(op)
    }

    fn make(&self, term: &Term, defines: Option<usize>, references: &HashMap<Id, Option<Reference>>) -> Made {
        let operands = term.operands();
        let attributes = &term.children()[..term.children().len() - operands.len()];
        let class = self.egraph.lookup(term.clone()).expect("a chosen term is in the graph");
        let Justification { from, rules, near } = self.history.justify(term, defines);
        Made {
            term: term.clone(),
            attributes: attributes.iter().filter_map(|class| attribute(self.egraph, *class)).collect(),
            operands: operands.iter().map(|class| references.get(class).copied().flatten()).collect(),
            ty: self.egraph[class].data.ty.expect("an op in the graph has a type"),
            defines,
            from: from.into_iter().collect(),
            rules,
            near: defines.or(near),
        }
    }
}

/// Orders classes so that each follows the operands of its chosen term.
struct Needed<'a> {
    choice: &'a Choice<'a>,
    extractor: &'a Extractor<'a, Costs<'a>, Term, Types>,
    order: Vec<Id>,
    seen: HashSet<Id>,
}

impl Needed<'_> {
    fn visit(&mut self, class: Id) {
        let class = self.choice.egraph.find(class);
        if self.seen.insert(class) {
            for child in self.extractor.find_best_node(class).children() {
                self.visit(*child);
            }
            self.order.push(class);
        }
    }
}
