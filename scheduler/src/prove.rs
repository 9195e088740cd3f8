//! Proves by rewriting that a `scaled_mma` and the ops that follow it are one kernel.
//!
//! Named rules rewrite an [`Expression`] in three steps:
//! 1. The `scaled_mma` becomes the normal form `(kernel root acc)`.
//! 2. Each following op is lifted into it: `(kernel root expression)`.
//! 3. A writable value, quantized or reduced results included, becomes `(write root expression)`.
//!
//! A term without a rule has no kernel; no rule mentions `mma`. The kernel is the largest lifted part of the
//! region that writes every value used outside and stays within the limits.

use core::time::Duration;
use std::collections::HashMap;
use std::sync::Arc;

use egg::{EGraph, Id, Language, RecExpr, Rewrite, Runner, StopReason};
use fourfold_ir::FormatCapability;

use self::analysis::Types;
use self::rules::rules;
use crate::expression::{Expression, Proved, TypeEnvironment};
use crate::language::KernelTerm;
use crate::trim::Trimmer;

mod analysis;
mod rules;

/// A region's proved kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProvedKernel {
    /// The members that are in the kernel, ascending.
    pub(crate) members: Vec<usize>,
    /// The members, sinks excluded, whose values are written, ascending.
    pub(crate) written: Vec<usize>,
    /// The leaves that are constants inlined in the kernel.
    pub(crate) inlined: Vec<usize>,
    /// The names of the rules: one per op, in order, then one per written value.
    pub(crate) proof: Vec<String>,
}

/// Finds kernels under the rules of one format on one target.
pub(crate) struct Prover {
    capability: Arc<FormatCapability>,
    rules: Vec<Rewrite<KernelTerm, Types>>,
    known: HashMap<Expression, Option<ProvedKernel>>,
}

impl Prover {
    pub(crate) fn new(capability: &FormatCapability) -> Prover {
        Prover { capability: Arc::new(capability.clone()), rules: rules(), known: HashMap::new() }
    }

    /// Returns the largest kernel rooted at the region's `scaled_mma`; `None` if there is none. Equal regions
    /// are proved once.
    pub(crate) fn largest_kernel(&mut self, expression: Expression) -> Option<ProvedKernel> {
        if let Some(known) = self.known.get(&expression) {
            return known.clone();
        }
        let found = self.prove(&expression);
        self.known.insert(expression, found.clone());
        found
    }

    fn prove(&self, expression: &Expression) -> Option<ProvedKernel> {
        let (egraph, terms) = self.saturate(&expression.nodes, &expression.types);
        let rules = egraph.analysis.applied_rules(&egraph);
        let term = |member: usize| egraph.find(terms[usize::from(expression.members[member].term)]);
        let halves_join = expression.members.iter().flat_map(|member| &member.halves).all(|half| {
            let class = egraph.find(terms[usize::from(*half)]);
            egraph[class].iter().any(|node| matches!(node, KernelTerm::Kernel(_)))
        });
        if !halves_join {
            return None;
        }
        let has = |member: usize, is: fn(&KernelTerm) -> bool| egraph[term(member)].iter().any(is);
        let proved = (0..expression.members.len()).map(|member| Proved {
            lifted: has(member, |node| matches!(node, KernelTerm::Kernel(_))),
            writable: has(member, |node| matches!(node, KernelTerm::Write(_))),
        });
        let trimmer = Trimmer::new(expression, &self.capability, proved);
        let inside = trimmer.largest_kernel()?;
        let members: Vec<usize> = (0..inside.len()).filter(|member| inside[*member]).collect();
        let written: Vec<usize> =
            members.iter().copied().filter(|member| trimmer.is_written(*member, &inside)).collect();
        let rule = |member: usize| rules.get(&term(member));
        let term_of = |id: &Id| egraph.find(terms[usize::from(*id)]);
        let halves = expression.members[0].halves.iter().filter_map(|half| rules.get(&term_of(half)));
        let (root, others) = members.split_first()?;
        let lifted =
            rule(*root).into_iter().chain(halves).chain(others.iter().filter_map(|other| rule(*other)));
        let lifted = lifted.map(|rules| rules.lifted.to_string());
        let stored = written.iter().filter_map(|member| Some(rule(*member)?.written?.to_string()));
        let proof = lifted.chain(stored).collect();
        Some(ProvedKernel { proof, written, inlined: trimmer.inlined(&inside), members })
    }

    /// Applies the rules until they add nothing. Returns the class of every node. The bounds are numbers of
    /// iterations and nodes, not time, so the result does not depend on the machine.
    fn saturate(
        &self,
        nodes: &RecExpr<KernelTerm>,
        types: &TypeEnvironment,
    ) -> (EGraph<KernelTerm, Types>, Vec<Id>) {
        // Each iteration lifts one op, and adds an expression, a kernel and at most one written kernel.
        let iterations = nodes.as_ref().len() + 2;
        let most_nodes = 8 * iterations;
        let mut egraph = EGraph::new(Types::new(types, &self.capability));
        let mut classes: Vec<Id> = Vec::with_capacity(nodes.as_ref().len());
        for node in nodes.as_ref() {
            let node = node.clone().map_children(|child| classes[usize::from(child)]);
            classes.push(egraph.add(node));
        }
        let runner = Runner::<KernelTerm, Types, ()>::new(Types::new(types, &self.capability))
            .with_egraph(egraph)
            .with_scheduler(egg::SimpleScheduler)
            .with_iter_limit(iterations)
            .with_node_limit(most_nodes)
            .with_time_limit(Duration::MAX)
            .run(&self.rules);
        debug_assert!(matches!(runner.stop_reason, Some(StopReason::Saturated)), "{:?}", runner.stop_reason);
        (runner.egraph, classes)
    }
}

#[cfg(test)]
mod tests;
