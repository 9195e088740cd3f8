//! Rules, and the match of a rule: queries for its conditions, and terms added with a record for the proof.

use egg::{Applier, Id, Language, Pattern, PatternAst, Rewrite, Subst, Symbol, Var};
use fourfold_ir::{BlockFormat, ElementType, TensorType};

use super::language::{Applied, Attribute, OwnAttribute, Term, Terms, Types, attribute, type_of};
use super::weight_only::Matrices;

/// A named rule: if the left side matches and the conditions of `apply` hold, the results equal the whole
/// match.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    /// The reason why the bits stay the same; for a contract rule, the roundings it drops and the ranges it
    /// assumes.
    pub(crate) why: &'static str,
    pub(crate) contract: bool,
    pub(crate) left: &'static str,
    pub(crate) apply: fn(&mut RuleMatch<'_>) -> Vec<Id>,
}

/// A match of a rule's left side.
pub(crate) struct RuleMatch<'a> {
    egraph: &'a mut Terms,
    subst: &'a Subst,
    /// The terms that the left side matched, the whole match first, and those that conditions examined.
    terms: Vec<Term>,
    created: Vec<Term>,
}

impl RuleMatch<'_> {
    /// The class bound to a variable of the left side.
    pub(crate) fn get(&self, name: &str) -> Id {
        self.subst[variable(name)]
    }

    /// The term of the whole match.
    pub(crate) fn whole(&self) -> Option<Term> {
        self.terms.first().cloned()
    }

    pub(crate) fn ty(&self, class: Id) -> Option<&TensorType> {
        type_of(self.egraph, class)
    }

    pub(crate) fn element(&self, class: Id) -> Option<ElementType> {
        Some(self.ty(class)?.element)
    }

    pub(crate) fn attribute(&self, class: Id) -> Option<Attribute> {
        attribute(self.egraph, class)
    }

    /// The number, if the class is a splat constant.
    pub(crate) fn splat(&self, class: Id) -> Option<f64> {
        self.egraph[class].data.splat.map(f64::from_bits)
    }

    /// Returns whether the target has a kernel for a weight-only product with this B.
    pub(crate) fn has_weight_only_kernel(&self, format: BlockFormat, b: Id, result: ElementType) -> bool {
        let Some([.., n, k]) = self.ty(b).map(|ty| &ty.shape[..]) else { return false };
        self.egraph.analysis.target.has_kernel(format, n, k, Matrices { result, c: None })
    }

    /// Returns whether several ops, or an op and the caller, use a value of the class.
    pub(crate) fn is_shared(&self, class: Id) -> bool {
        self.egraph[class].data.shared
    }

    pub(crate) fn is_absent(&self, class: Id) -> bool {
        self.egraph[class].nodes.contains(&Term::Absent)
    }

    /// Compares classes by their canonical ids.
    pub(crate) fn same(&self, left: Id, right: Id) -> bool {
        self.egraph.find(left) == self.egraph.find(right)
    }

    /// The terms of a class.
    pub(crate) fn terms(&self, class: Id) -> Vec<Term> {
        self.egraph[class].nodes.clone()
    }

    /// Records a term that a condition examined, as part of the proof.
    pub(crate) fn using(&mut self, term: Term) {
        if !self.terms.contains(&term) {
            self.terms.push(term);
        }
    }

    /// Returns the class of a term, and adds the term if it is new.
    pub(crate) fn add(&mut self, term: Term) -> Id {
        if let Some(known) = self.egraph.lookup(term.clone()) {
            return known;
        }
        self.created.push(term.clone());
        self.egraph.add(term)
    }

    /// The class of an attribute.
    pub(crate) fn attribute_term(&mut self, attribute: Attribute) -> Id {
        self.egraph.add(Term::Attribute(attribute))
    }

    pub(crate) fn absent(&mut self) -> Id {
        self.egraph.add(Term::Absent)
    }

    /// The attribute of a shape.
    pub(crate) fn shape_term(&mut self, shape: &fourfold_ir::Shape) -> Id {
        let shape = self.egraph.analysis.tables.shapes.intern(shape);
        self.attribute_term(Attribute::Own(OwnAttribute::Shape(shape)))
    }

    /// The shape of an attribute.
    pub(crate) fn reshaped_shape(&self, class: Id) -> Option<fourfold_ir::Shape> {
        match self.attribute(class)? {
            Attribute::Own(OwnAttribute::Shape(shape)) => {
                Some(self.egraph.analysis.tables.shapes.get(shape).clone())
            }
            _ => None,
        }
    }

    /// The type of a term in the e-graph.
    pub(crate) fn type_of_term(&self, term: &Term) -> Option<&TensorType> {
        self.ty(self.egraph.lookup(term.clone())?)
    }

    /// The attribute of a permutation.
    pub(crate) fn permutation_term(&mut self, permutation: &Vec<u32>) -> Id {
        let permutation = self.egraph.analysis.tables.permutations.intern(permutation);
        self.attribute_term(Attribute::Own(OwnAttribute::Permutation(permutation)))
    }

    /// The axes of a permutation attribute.
    pub(crate) fn permutation(&self, class: Id) -> Option<Vec<u32>> {
        match self.attribute(class)? {
            Attribute::Own(OwnAttribute::Permutation(permutation)) => {
                Some(self.egraph.analysis.tables.permutations.get(permutation).clone())
            }
            _ => None,
        }
    }
}

/// Applies a rule where its conditions hold, and logs the application.
struct Logged {
    rule: usize,
    left: PatternAst<Term>,
    apply: fn(&mut RuleMatch<'_>) -> Vec<Id>,
}

impl Applier<Term, Types> for Logged {
    fn apply_one(
        &self,
        egraph: &mut Terms,
        class: Id,
        subst: &Subst,
        _: Option<&PatternAst<Term>>,
        _: Symbol,
    ) -> Vec<Id> {
        let terms = instantiate(&self.left, egraph, subst);
        let mut matched = RuleMatch { egraph, subst, terms, created: Vec::new() };
        let results = (self.apply)(&mut matched);
        let RuleMatch { terms, created, .. } = matched;
        let mut changed = Vec::new();
        for result in &results {
            if egraph.union(class, *result) {
                changed.push(class);
            }
        }
        if let Some(result) = results.first()
            && (!changed.is_empty() || !created.is_empty())
        {
            egraph.analysis.log.push(Applied { rule: self.rule, matched: terms, created, result: *result });
        }
        changed
    }
}

/// The terms of a left side under a substitution, the whole match first.
fn instantiate(left: &PatternAst<Term>, egraph: &Terms, subst: &Subst) -> Vec<Term> {
    let mut classes: Vec<Option<Id>> = Vec::new();
    let mut terms = Vec::new();
    for node in left.as_ref() {
        classes.push(match node {
            egg::ENodeOrVar::Var(variable) => Some(subst[*variable]),
            egg::ENodeOrVar::ENode(term) => {
                let known = term.children().iter().all(|child| classes[usize::from(*child)].is_some());
                let term = term.clone().map_children(|child| classes[usize::from(child)].unwrap_or(child));
                let class = if known { egraph.lookup(term.clone()) } else { None };
                if class.is_some() && term.is_op() {
                    terms.push(term);
                }
                class
            }
        });
    }
    terms.reverse();
    terms
}

/// Compiles a rule for egg.
pub(crate) fn compile(position: usize, rule: &Rule) -> Rewrite<Term, Types> {
    let left: Pattern<Term> = rule.left.parse().expect("a rule contains only words of the language");
    let applier = Logged { rule: position, left: left.ast.clone(), apply: rule.apply };
    Rewrite::new(rule.name, left, applier).expect("an applier without variables binds none")
}

fn variable(name: &str) -> Var {
    name.parse().expect("a variable has the form ?name")
}
