//! Applies the rules to one region until they add nothing, and chooses what the region becomes.
//!
//! Chosen is, for every class of equal terms, the term with the fewest multiplications that no kernel takes (`mma`), of
//! those the fewest ops, of those the fewest elements computed by elementwise ops, of those the least bytes moved between
//! ops, and of those what the program says already. A term used twice counts twice; the choice is by class, so that it is
//! computed once all the same.

use core::time::Duration;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use egg::{CostFunction, Extractor, Id, Language, RecExpr, Rewrite, Runner};
use fourfold_ir::TensorType;

use super::language::{Applied, Attribute, LeafInfo, Tables, Term, Terms, Types, attribute, type_of};

/// A region as rules see it: canonical, so that equal regions are equal here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The nodes.
    pub(crate) nodes: RecExpr<Term>,
    /// The ops, each after those that it uses.
    pub(crate) ops: Vec<Member>,
    /// What is known of the leaves.
    pub(crate) leaves: Vec<LeafInfo>,
}

/// An op of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Its term.
    pub(crate) term: Id,
    /// Whether its result must exist: something outside the region uses it.
    pub(crate) exported: bool,
    /// Whether the program returns its result, so that the name must exist.
    pub(crate) output: bool,
    /// Whether something besides one op sees its result.
    pub(crate) shared: bool,
}

/// What a region becomes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rewritten {
    /// The new ops, each after those that it uses.
    pub(crate) made: Vec<Made>,
    /// By op of the region.
    pub(crate) fates: Vec<MemberFate>,
}

/// A new op.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Made {
    /// What it computes, its children being meaningless but for their number.
    pub(crate) term: Term,
    /// By child of the term: attributes.
    pub(crate) attributes: Vec<Attribute>,
    /// By operand of the term; absent ones are `None`.
    pub(crate) operands: Vec<Option<Reference>>,
    /// Its type, in [`Tables::types`].
    pub(crate) ty: usize,
    /// The op of the region whose result it now defines; otherwise it has one of its own.
    pub(crate) defines: Option<usize>,
    /// The ops of the region whose part it takes.
    pub(crate) from: Vec<usize>,
    /// The rules that justify it, in order.
    pub(crate) rules: Vec<usize>,
    /// An op of the region that a reader would call it after.
    pub(crate) near: Option<usize>,
}

/// A value of a rewritten region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A value from outside.
    Leaf(usize),
    /// The result of an op of the region, whatever defines it now.
    Member(usize),
    /// The result of a new op that defines none of those.
    Made(usize),
}

/// What becomes of an op of a region.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MemberFate {
    /// Nothing.
    Kept,
    /// Its result is the same as another value.
    Same(Reference, Vec<usize>),
    /// It is gone if nothing uses it any more; this one took its part.
    Part(usize),
    /// It is gone if nothing uses it any more.
    Unneeded,
}

/// Rewrites regions, equal ones once.
pub(crate) struct Saturation {
    rules: Vec<Rewrite<Term, Types>>,
    pub(crate) tables: Tables,
    known: HashMap<Expression, Option<std::rc::Rc<Rewritten>>>,
}

impl Saturation {
    pub(crate) fn new(rules: Vec<Rewrite<Term, Types>>) -> Saturation {
        Saturation { rules, tables: Tables::default(), known: HashMap::new() }
    }

    /// What a region becomes, `None` when it stays as it is.
    pub(crate) fn rewrite(&mut self, expression: &Expression) -> Option<std::rc::Rc<Rewritten>> {
        if let Some(known) = self.known.get(expression) {
            return known.clone();
        }
        let (egraph, classes) = self.saturate(expression);
        let found = Choice::new(&egraph, &classes, expression).rewritten().map(std::rc::Rc::new);
        self.tables = egraph.analysis.tables;
        self.known.insert(expression.clone(), found.clone());
        found
    }

    /// Bounded by counts and never by the clock, so that a result does not depend on the machine. A region at the
    /// bound is rewritten as far as the rules came.
    fn saturate(&mut self, expression: &Expression) -> (Terms, Vec<Id>) {
        const MOST_ITERATIONS: usize = 24;
        const MOST_TERMS: usize = 4000;
        let types = Types {
            tables: std::mem::take(&mut self.tables),
            leaves: expression.leaves.clone(),
            log: Vec::new(),
        };
        let mut egraph = Terms::new(types);
        let mut classes: Vec<Id> = Vec::with_capacity(expression.nodes.as_ref().len());
        for node in expression.nodes.as_ref() {
            let node = node.clone().map_children(|child| classes[usize::from(child)]);
            classes.push(egraph.add(node));
        }
        for member in &expression.ops {
            let class = classes[usize::from(member.term)];
            let mut known = egraph[class].data;
            known.shared |= member.shared;
            egraph.set_analysis_data(class, known);
        }
        egraph.rebuild();
        let runner = Runner::<Term, Types, ()>::new(Types::default())
            .with_egraph(egraph)
            .with_scheduler(egg::SimpleScheduler)
            .with_iter_limit(MOST_ITERATIONS)
            .with_node_limit(MOST_TERMS)
            .with_time_limit(Duration::MAX)
            .run(&self.rules);
        (runner.egraph, classes)
    }
}

/// What a term costs with everything below it, compared from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
struct Cost {
    multiplications: u64,
    ops: u64,
    elements: u64,
    bytes: u64,
    created: u64,
    /// Not the end of a chain of ops that a kernel computes, so that what follows reads it from memory.
    unfused: bool,
}

struct Costs<'a> {
    egraph: &'a Terms,
    created: &'a HashMap<Term, usize>,
}

impl CostFunction<Term> for Costs<'_> {
    type Cost = Cost;

    fn cost<C: FnMut(Id) -> Cost>(&mut self, term: &Term, mut costs: C) -> Cost {
        let mut cost = Cost { unfused: true, ..Cost::default() };
        if let Term::Leaf(leaf) = term {
            // A constant is an op that goes with its last user.
            cost.ops = u64::from(self.egraph.analysis.leaves[leaf.0].splat.is_some());
        }
        if !term.is_op() {
            return cost;
        }
        let mut joins = matches!(term, Term::ScaledMma(_));
        for operand in term.operands() {
            let below = costs(*operand);
            cost.multiplications = cost.multiplications.saturating_add(below.multiplications);
            cost.ops = cost.ops.saturating_add(below.ops);
            cost.elements = cost.elements.saturating_add(below.elements);
            cost.bytes = cost.bytes.saturating_add(below.bytes);
            cost.created = cost.created.saturating_add(below.created);
            joins |= term.is_elementwise() && !below.unfused;
        }
        cost.ops = cost.ops.saturating_add(1);
        cost.multiplications = cost.multiplications.saturating_add(u64::from(matches!(term, Term::Mma(_))));
        cost.created = cost.created.saturating_add(u64::from(self.created.contains_key(term)));
        let result = self.egraph.lookup(term.clone());
        if term.is_elementwise() {
            let computed = result.and_then(|class| type_of(self.egraph, class)).map_or(0, elements);
            cost.elements = cost.elements.saturating_add(computed);
        }
        if !joins {
            let moved = |class: Id| type_of(self.egraph, class).map_or(0, bytes);
            let read = term.operands().iter().map(|operand| moved(*operand)).fold(0, u64::saturating_add);
            let written = result.map_or(0, moved);
            cost.bytes = cost.bytes.saturating_add(read).saturating_add(written);
        }
        cost.unfused = !joins;
        cost
    }
}

/// About how many bytes a value has.
fn bytes(ty: &TensorType) -> u64 {
    elements(ty).saturating_mul(ty.element.storage_bits() as u64).div_ceil(8)
}

/// About how many elements a value has.
fn elements(ty: &TensorType) -> u64 {
    /// What an extent is taken for that is known at run time only.
    const USUAL: u64 = 256;
    let extent = |dim: &fourfold_ir::Dim| {
        dim.symbols().iter().fold(dim.constant(), |extent, _| extent.saturating_mul(USUAL))
    };
    ty.shape.iter().map(extent).fold(1, u64::saturating_mul)
}

/// What was chosen for each class, and how it came about.
struct Choice<'a> {
    egraph: &'a Terms,
    expression: &'a Expression,
    /// By op: its class and its own term.
    classes: Vec<Id>,
    terms: Vec<Term>,
    /// The application that added a term.
    created: HashMap<Term, usize>,
    /// The applications that united a class with one that was there.
    united: HashMap<Id, Vec<usize>>,
    /// The applications with their terms as they are now.
    log: Vec<Applied>,
    /// The ops in each class, in order.
    members: BTreeMap<Id, Vec<usize>>,
    /// Whose parts the terms take, as far as it was asked: terms are shared, and each is worked out once.
    parts: RefCell<HashMap<Term, BTreeSet<usize>>>,
}

impl<'a> Choice<'a> {
    fn new(egraph: &'a Terms, ids: &[Id], expression: &'a Expression) -> Choice<'a> {
        let canonical = |term: &Term| term.clone().map_children(|child| egraph.find(child));
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
        let log: Vec<Applied> = egraph
            .analysis
            .log
            .iter()
            .map(|applied| Applied {
                rule: applied.rule,
                matched: applied.matched.iter().map(canonical).collect(),
                created: applied.created.iter().map(canonical).collect(),
                result: egraph.find(applied.result),
            })
            .collect();
        let own: HashSet<&Term> = terms.iter().collect();
        let mut created = HashMap::new();
        let mut united: HashMap<Id, Vec<usize>> = HashMap::new();
        for (position, applied) in log.iter().enumerate() {
            for term in applied.created.iter().filter(|term| !own.contains(term)) {
                created.entry(term.clone()).or_insert(position);
            }
            if applied.created.is_empty() {
                united.entry(applied.result).or_default().push(position);
            }
        }
        let mut members: BTreeMap<Id, Vec<usize>> = BTreeMap::new();
        for (position, class) in classes.iter().enumerate() {
            members.entry(*class).or_default().push(position);
        }
        let parts = RefCell::default();
        Choice { egraph, expression, classes, terms, created, united, log, members, parts }
    }

    /// What the region becomes; `None` when that is what it is.
    fn rewritten(&self) -> Option<Rewritten> {
        if self.log.is_empty() {
            return None;
        }
        let extractor = Extractor::new(self.egraph, Costs { egraph: self.egraph, created: &self.created });
        let ops = &self.expression.ops;
        // What must exist: the classes of exported results, and what an output that only equals another value is
        // computed from.
        let mut needed =
            Needed { choice: self, extractor: &extractor, order: Vec::new(), seen: HashSet::new() };
        for (op, member) in ops.iter().enumerate() {
            if member.exported {
                needed.visit(self.classes[op]);
            }
        }
        let keep_own: Vec<usize> = (0..ops.len()).filter(|op| self.keeps_own(&extractor, *op)).collect();
        for op in &keep_own {
            for operand in self.terms[*op].operands() {
                needed.visit(*operand);
            }
        }
        let order = needed.order;
        let multiplications = |terms: &mut dyn Iterator<Item = &Term>| {
            terms.filter(|term| matches!(term, Term::Mma(_) | Term::ScaledMma(_))).count()
        };
        let mut chosen = order.iter().map(|class| extractor.find_best_node(*class));
        if multiplications(&mut chosen) > multiplications(&mut self.terms.iter()) {
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
                    if self.terms[op] == *term {
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
                    fates[op] = MemberFate::Same(reference, self.reasons(op));
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

    /// The op of a class whose result stands for it: an output if there is one, else the one that has the chosen term,
    /// else an exported one.
    fn representative(&self, class: Id, term: &Term) -> Option<usize> {
        let members = self.members.get(&class)?;
        let ops = &self.expression.ops;
        let find = |is: &dyn Fn(&usize) -> bool| members.iter().copied().find(is);
        find(&|op| ops[*op].output)
            .or_else(|| find(&|op| self.terms[*op] == *term))
            .or_else(|| find(&|op| ops[*op].exported))
            .or_else(|| members.first().copied())
    }

    /// Whether an op gives an output that equals a value of another name: the op stays, for the name.
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
        let mut proof = Proof::new(self);
        proof.justify(term);
        let mut from = proof.parts(term, self.log.len());
        if !self.created.contains_key(term) {
            // What another op computes, under the name of an output that equals it.
            from.extend(self.own(term));
            proof.rules = defines.map_or_else(Vec::new, |op| self.reasons(op));
        }
        let near = defines.or_else(|| proof.touched.iter().next_back().copied());
        Made {
            term: term.clone(),
            attributes: attributes.iter().filter_map(|class| attribute(self.egraph, *class)).collect(),
            operands: operands.iter().map(|class| references.get(class).copied().flatten()).collect(),
            ty: self.egraph[class].data.ty.expect("a term of the graph that is an op has a type"),
            defines,
            from: from.into_iter().collect(),
            rules: proof.rules,
            near,
        }
    }

    /// The op of the region that has a term.
    fn own(&self, term: &Term) -> Option<usize> {
        self.terms.iter().position(|own| own == term)
    }

    /// The applications before one that united an operand of a term with what was there.
    fn united_below(&self, term: &Term, before: usize) -> Vec<usize> {
        let classes = term.operands().iter().map(|operand| self.egraph.find(*operand));
        let united = classes.flat_map(|class| self.united.get(&class).into_iter().flatten().copied());
        united.filter(|position| *position < before).collect()
    }

    /// Why an op's result equals another value: what was applied to its term, and to what that gave.
    fn reasons(&self, op: usize) -> Vec<usize> {
        let mut proof = Proof::new(self);
        let mut term = &self.terms[op];
        for _ in 0..self.log.len() {
            let applied = |(_, applied): &(usize, &Applied)| applied.matched.first() == Some(term);
            let Some((position, applied)) = self.log.iter().enumerate().find(applied) else { break };
            proof.follow(position);
            let Some(next) = applied.created.last() else { break };
            term = next;
        }
        proof.rules
    }
}

/// Orders classes so that each comes after those that its chosen term uses.
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

/// Collects the rules behind a term, those that an application rests on before it.
struct Proof<'a> {
    choice: &'a Choice<'a>,
    seen: HashSet<usize>,
    /// The ops that matched on the way.
    touched: BTreeSet<usize>,
    rules: Vec<usize>,
}

impl<'a> Proof<'a> {
    fn new(choice: &'a Choice<'a>) -> Proof<'a> {
        Proof { choice, seen: HashSet::new(), touched: BTreeSet::new(), rules: Vec::new() }
    }

    fn justify(&mut self, term: &Term) {
        if let Some(&applied) = self.choice.created.get(term) {
            self.follow(applied);
        }
    }

    fn follow(&mut self, position: usize) {
        if !self.seen.insert(position) {
            return;
        }
        let choice = self.choice;
        let applied = &choice.log[position];
        for term in &applied.matched {
            match choice.own(term) {
                Some(op) => {
                    self.touched.insert(op);
                }
                None => self.justify(term),
            }
            for earlier in choice.united_below(term, position) {
                self.follow(earlier);
            }
        }
        self.rules.push(applied.rule);
    }

    /// The ops whose part a term takes that was added before `before`. Of the terms that one application added, the
    /// result takes the parts of all that matched; one of the kind of the whole match, which only moved, takes the
    /// part of that; any other was inserted and takes none.
    fn parts(&self, term: &Term, before: usize) -> BTreeSet<usize> {
        let choice = self.choice;
        let Some(&position) = choice.created.get(term).filter(|position| **position < before) else {
            return BTreeSet::new();
        };
        if let Some(known) = choice.parts.borrow().get(term) {
            return known.clone();
        }
        let parts = self.parts_of(term, position);
        choice.parts.borrow_mut().insert(term.clone(), parts.clone());
        parts
    }

    /// The same of a term that the application at this position added.
    fn parts_of(&self, term: &Term, position: usize) -> BTreeSet<usize> {
        let choice = self.choice;
        let mut parts = BTreeSet::new();
        let applied = &choice.log[position];
        let is_result = choice.egraph.lookup(term.clone()) == Some(applied.result);
        let whole = applied.matched.first();
        // A rule that makes a multiplication moves nothing, nor does one whose result is of the kind of what it replaces.
        let is_of_kind = |term: &Term| {
            whole.is_some_and(|whole| term.matches(whole))
                && choice.egraph.lookup(term.clone()) == Some(applied.result)
        };
        let moves =
            !applied.created.iter().any(|term| matches!(term, Term::ScaledMma(_)) || is_of_kind(term));
        let moved =
            |term: &Term| moves && whole.is_some_and(|whole| term.is_elementwise() && term.matches(whole));
        if !is_result {
            return match whole.filter(|_| moved(term)) {
                Some(whole) => match choice.own(whole) {
                    Some(op) => BTreeSet::from([op]),
                    None => self.parts(whole, position),
                },
                None => parts,
            };
        }
        let has_moved = !moved(term) && applied.created.iter().any(moved);
        for matched in &applied.matched {
            if !(has_moved && Some(matched) == whole) {
                match choice.own(matched) {
                    Some(op) => {
                        parts.insert(op);
                    }
                    None => parts.extend(self.parts(matched, position)),
                }
            }
            for earlier in choice.united_below(matched, position) {
                for term in &choice.log[earlier].matched {
                    match choice.own(term) {
                        Some(op) => {
                            parts.insert(op);
                        }
                        None => parts.extend(self.parts(term, earlier)),
                    }
                }
            }
        }
        parts
    }
}
