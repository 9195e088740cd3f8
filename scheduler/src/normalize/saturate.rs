//! Applies the rules to a region until they add nothing, and caches the rewritten regions.

use core::time::Duration;
use std::collections::HashMap;
use std::rc::Rc;

use egg::{Id, Language, Rewrite, Runner};

use super::expression::Expression;
use super::extract::{Rewritten, extract};
use super::language::{Tables, Term, Terms, Types};
use super::weight_only::WeightOnly;

/// Rewrites regions; equal regions are rewritten once.
pub(crate) struct Saturation {
    rules: Vec<Rewrite<Term, Types>>,
    pub(crate) tables: Tables,
    known: HashMap<Expression, Option<Rc<Rewritten>>>,
    target: Rc<WeightOnly>,
}

impl Saturation {
    pub(crate) fn new(rules: Vec<Rewrite<Term, Types>>, target: WeightOnly) -> Saturation {
        Saturation { rules, tables: Tables::default(), known: HashMap::new(), target: Rc::new(target) }
    }

    /// The rewritten form of a region; `None` if it is unchanged.
    pub(crate) fn rewrite(&mut self, expression: &Expression) -> Option<Rc<Rewritten>> {
        if let Some(known) = self.known.get(expression) {
            return known.clone();
        }
        let (egraph, classes) = self.saturate(expression);
        let found = extract(&egraph, &classes, expression).map(Rc::new);
        self.tables = egraph.analysis.tables;
        self.known.insert(expression.clone(), found.clone());
        found
    }

    /// Applies the rules to a region. The bounds are numbers of iterations and terms, not time, so the result
    /// does not depend on the machine. A region that reaches a bound keeps the terms found so far.
    fn saturate(&mut self, expression: &Expression) -> (Terms, Vec<Id>) {
        const MOST_ITERATIONS: usize = 24;
        const MOST_TERMS: usize = 4000;
        let types = Types {
            tables: std::mem::take(&mut self.tables),
            leaves: expression.leaves.clone(),
            target: Rc::clone(&self.target),
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
