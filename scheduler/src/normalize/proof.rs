//! The history of a region: the rule application that added each term, and proofs of terms from it.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap, HashSet};

use egg::{Id, Language};

use super::language::{Applied, Term, Terms};

/// The terms of a region and the rule applications on them, in canonical classes.
pub(crate) struct History<'a> {
    egraph: &'a Terms,
    /// By op of the region: its own term.
    terms: Vec<Term>,
    /// The application that added a term.
    created: HashMap<Term, usize>,
    /// The applications that united a class with an existing one.
    united: HashMap<Id, Vec<usize>>,
    /// The applications, with their terms made canonical.
    log: Vec<Applied>,
    /// The ops that each term replaces, computed once per term on demand.
    parts: RefCell<HashMap<Term, BTreeSet<usize>>>,
}

/// The proof of a term.
pub(crate) struct Justification {
    /// The ops of the region that it replaces.
    pub(crate) from: BTreeSet<usize>,
    /// The rules that justify it, in order.
    pub(crate) rules: Vec<usize>,
    /// The last op that matched in the proof.
    pub(crate) near: Option<usize>,
}

impl<'a> History<'a> {
    /// The history of an e-graph in which the ops of the region have these terms.
    pub(crate) fn new(egraph: &'a Terms, terms: Vec<Term>) -> History<'a> {
        let canonical = |term: &Term| term.clone().map_children(|child| egraph.find(child));
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
        History { egraph, terms, created, united, log, parts: RefCell::default() }
    }

    /// Returns whether no rule was applied.
    pub(crate) fn is_empty(&self) -> bool {
        self.log.is_empty()
    }

    /// By op of the region: its own term.
    pub(crate) fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The terms that rules added, with the positions of their applications.
    pub(crate) fn created(&self) -> &HashMap<Term, usize> {
        &self.created
    }

    /// The proof of a term that defines the result of an op of the region, or a result of its own.
    pub(crate) fn justify(&self, term: &Term, defines: Option<usize>) -> Justification {
        let mut proof = Proof::new(self);
        proof.justify(term);
        let near = proof.touched.iter().next_back().copied();
        let mut from = self.parts(term, self.log.len());
        let mut rules = proof.rules;
        if !self.created.contains_key(term) {
            // Another op computes the term, which now defines an equal output.
            from.extend(self.own(term));
            rules = defines.map_or_else(Vec::new, |op| self.reasons(op));
        }
        Justification { from, rules, near }
    }

    /// The rules by which an op's result equals another value: those applied to its term, and then to their
    /// results.
    pub(crate) fn reasons(&self, op: usize) -> Vec<usize> {
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
    /// The op of the region with this term.
    fn own(&self, term: &Term) -> Option<usize> {
        self.terms.iter().position(|own| own == term)
    }

    /// The applications before `before` that united an operand of a term with an existing class.
    fn united_below(&self, term: &Term, before: usize) -> Vec<usize> {
        let classes = term.operands().iter().map(|operand| self.egraph.find(*operand));
        let united = classes.flat_map(|class| self.united.get(&class).into_iter().flatten().copied());
        united.filter(|position| *position < before).collect()
    }

    /// The ops that a term replaces, if it was added before `before`. An application's result replaces all
    /// ops that matched. A term of the same kind as the whole match only moved, and replaces that op. Any
    /// other added term was inserted, and replaces none.
    fn parts(&self, term: &Term, before: usize) -> BTreeSet<usize> {
        let Some(&position) = self.created.get(term).filter(|position| **position < before) else {
            return BTreeSet::new();
        };
        if let Some(known) = self.parts.borrow().get(term) {
            return known.clone();
        }
        let parts = self.parts_of(term, position);
        self.parts.borrow_mut().insert(term.clone(), parts.clone());
        parts
    }

    /// Computes [`History::parts`] for a term that the application at this position added.
    fn parts_of(&self, term: &Term, position: usize) -> BTreeSet<usize> {
        let mut parts = BTreeSet::new();
        let applied = &self.log[position];
        let is_result = self.egraph.lookup(term.clone()) == Some(applied.result);
        let whole = applied.matched.first();
        // A rule that adds a multiplication moves nothing. Nor does one whose result has the kind of the term
        // it replaces.
        let is_of_kind = |term: &Term| {
            whole.is_some_and(|whole| term.matches(whole))
                && self.egraph.lookup(term.clone()) == Some(applied.result)
        };
        let moves =
            !applied.created.iter().any(|term| matches!(term, Term::ScaledMma(_)) || is_of_kind(term));
        let moved =
            |term: &Term| moves && whole.is_some_and(|whole| term.is_elementwise() && term.matches(whole));
        if !is_result {
            return match whole.filter(|_| moved(term)) {
                Some(whole) => match self.own(whole) {
                    Some(op) => BTreeSet::from([op]),
                    None => self.parts(whole, position),
                },
                None => parts,
            };
        }
        let has_moved = !moved(term) && applied.created.iter().any(moved);
        for matched in &applied.matched {
            if !(has_moved && Some(matched) == whole) {
                match self.own(matched) {
                    Some(op) => {
                        parts.insert(op);
                    }
                    None => parts.extend(self.parts(matched, position)),
                }
            }
            for earlier in self.united_below(matched, position) {
                for term in &self.log[earlier].matched {
                    match self.own(term) {
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

/// Collects the rules that justify a term, each after the rules it depends on.
struct Proof<'a> {
    history: &'a History<'a>,
    seen: HashSet<usize>,
    /// The ops that matched in the proof.
    touched: BTreeSet<usize>,
    rules: Vec<usize>,
}

impl<'a> Proof<'a> {
    fn new(history: &'a History<'a>) -> Proof<'a> {
        Proof { history, seen: HashSet::new(), touched: BTreeSet::new(), rules: Vec::new() }
    }

    fn justify(&mut self, term: &Term) {
        if let Some(&applied) = self.history.created.get(term) {
            self.follow(applied);
        }
    }

    fn follow(&mut self, position: usize) {
        if !self.seen.insert(position) {
            return;
        }
        let history = self.history;
        let applied = &history.log[position];
        for term in &applied.matched {
            match history.own(term) {
                Some(op) => {
                    self.touched.insert(op);
                }
                None => self.justify(term),
            }
            for earlier in history.united_below(term, position) {
                self.follow(earlier);
            }
        }
        self.rules.push(applied.rule);
    }
}
