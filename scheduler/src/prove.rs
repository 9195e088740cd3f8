//! Proves by rewriting that a `scaled_mma` and what follows it are one kernel.
//!
//! A region of a program becomes an expression whose leaves are opaque values. Named rules turn the `scaled_mma` into
//! the normal form `(kernel root acc)`, lift one op after the other into it, `(kernel root expression)`, and what can be
//! written into `(write root expression)`: a value, its blocks quantized, its elements combined. What has no rule has no
//! kernel: `mma` is an operator of its own, which no rule mentions. Then the kernel is the largest part of the region
//! that was lifted, writes all that is seen of it outside, and keeps within the limits.

use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use egg::{
    Analysis, Applier, DidMerge, EGraph, Id, Language, Pattern, PatternAst, RecExpr, Rewrite, Runner,
    StopReason, Subst, Symbol, Var,
};
use fourfold_ir::{
    Dim, ElementType, FormatCapability, OperandShape, QuantizedCapability, ReduceKind, ScaleLayout,
    TensorType,
};

use crate::trim::{Cut, Proved};
use crate::language::{Attribute, Fir};
use crate::legality::is_narrow;

/// What rules know of a term.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type {
    /// `None` for what is no value.
    pub(crate) element: Option<ElementType>,
    /// What it can be to a kernel.
    pub(crate) class: Class,
    /// Set for a leaf that is one number everywhere and that only steps of the region use.
    pub(crate) inlined: bool,
}

/// What a term can be to a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// A value of a shape that an epilogue can have beside D.
    Operand(OperandShape),
    /// Scales in the blocked layout.
    BlockedScales,
    /// Another value from outside.
    Other,
    /// The result of an op of the region, of the shape of D.
    Computed,
    /// Not a value: an absent operand or an attribute.
    NoValue,
}

/// The class of a value from outside under a `scaled_mma` with a result of shape `d`. With one row in D, a vector of N
/// is both a row and a matrix: it counts as a row.
pub(crate) fn operand_class(ty: &TensorType, d: &[Dim]) -> Class {
    match ty.layout {
        Some(ScaleLayout::Blocked) => Class::BlockedScales,
        Some(ScaleLayout::Linear) => Class::Other,
        None => operand_shape(&ty.shape, d).map_or(Class::Other, Class::Operand),
    }
}

/// How a shape lies beside D, as far as an epilogue can have it.
pub(crate) fn operand_shape(shape: &[Dim], d: &[Dim]) -> Option<OperandShape> {
    fn is_one(dim: &Dim) -> bool {
        dim.as_fixed() == Some(1)
    }
    fn significant(shape: &[Dim]) -> &[Dim] {
        let ones = shape.iter().take_while(|dim| is_one(dim)).count();
        &shape[ones..]
    }
    let [rows @ .., n] = d else { return None };
    if d.len() < shape.len() {
        return None;
    }
    match shape {
        _ if shape.iter().all(is_one) => Some(OperandShape::Scalar),
        [ones @ .., last] if last == n && ones.iter().all(is_one) => Some(OperandShape::Row),
        [of_rows @ .., one] if is_one(one) && significant(of_rows) == significant(rows) => {
            Some(OperandShape::Column)
        }
        _ => (significant(shape) == significant(d)).then_some(OperandShape::Matrix),
    }
}

/// All that a region's rewriting depends on besides its expression and the target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TypeEnvironment {
    /// By leaf.
    pub(crate) leaves: Vec<Type>,
    /// The element type of the `scaled_mma`.
    pub(crate) accumulator: ElementType,
    /// The element types of results whose rule for N this region's N can meet.
    pub(crate) writable: Vec<ElementType>,
    /// The element types of matrices whose rule for N this region's N can meet.
    pub(crate) matrices: Vec<ElementType>,
    /// The formats of blocks whose rule for N this region's N can meet.
    pub(crate) quantized: Vec<QuantizedCapability>,
    /// The reductions that this region's M and L allow.
    pub(crate) reductions: Vec<ReduceKind>,
}

/// An op of a region.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Member {
    /// Its term.
    pub(crate) term: Id,
    /// Whether no other member can use its results.
    pub(crate) sink: bool,
    /// What it is computed of; nothing for the `scaled_mma`.
    pub(crate) operands: Vec<Source>,
    /// How many results it has.
    pub(crate) tensors: usize,
    /// Whether a result has to be written even when every member is in the kernel.
    pub(crate) seen: bool,
}

/// What a member is computed of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Source {
    /// The result of an earlier member.
    Member(usize),
    /// A value from outside.
    Leaf(usize),
}

/// A `scaled_mma` and what follows it, as an expression: canonical, so that equal regions are equal here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The nodes.
    pub(crate) nodes: RecExpr<Fir>,
    /// The ops, the `scaled_mma` first; each after those that it uses.
    pub(crate) members: Vec<Member>,
    /// The types.
    pub(crate) types: TypeEnvironment,
}

/// What a region proved to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Match {
    /// Which members are in the kernel, ascending.
    pub(crate) members: Vec<usize>,
    /// Those of them, no sinks, whose value is written, ascending.
    pub(crate) written: Vec<usize>,
    /// The constants among the leaves that are part of the kernel.
    pub(crate) inlined: Vec<usize>,
    /// The names of the rules, in the order of the ops, then for each value that is written.
    pub(crate) proof: Vec<String>,
}

/// Finds kernels under the rules of one format on one target.
pub(crate) struct Rewriter {
    capability: Arc<FormatCapability>,
    rules: Vec<Rewrite<Fir, Types>>,
    known: HashMap<Expression, Option<Match>>,
}

impl Rewriter {
    pub(crate) fn new(capability: &FormatCapability) -> Rewriter {
        Rewriter { capability: Arc::new(capability.clone()), rules: rules(), known: HashMap::new() }
    }

    /// The largest kernel that begins with the region's `scaled_mma`, `None` when there is none. Equal regions are
    /// rewritten once.
    pub(crate) fn largest_kernel(&mut self, expression: Expression) -> Option<Match> {
        if let Some(known) = self.known.get(&expression) {
            return known.clone();
        }
        let found = self.rewrite(&expression);
        self.known.insert(expression, found.clone());
        found
    }

    fn rewrite(&self, expression: &Expression) -> Option<Match> {
        let (egraph, terms) = self.saturate(&expression.nodes, &expression.types);
        let rules = egraph.analysis.fired(&egraph);
        let term = |member: usize| egraph.find(terms[usize::from(expression.members[member].term)]);
        let has = |member: usize, is: fn(&Fir) -> bool| egraph[term(member)].iter().any(is);
        let proved = (0..expression.members.len()).map(|member| Proved {
            lifted: has(member, |node| matches!(node, Fir::Kernel(_))),
            writable: has(member, |node| matches!(node, Fir::Write(_))),
        });
        let cut = Cut::new(expression, &self.capability, proved);
        let inside = cut.largest()?;
        let members: Vec<usize> = (0..inside.len()).filter(|member| inside[*member]).collect();
        let written: Vec<usize> =
            members.iter().copied().filter(|member| cut.is_written(*member, &inside)).collect();
        let rule = |member: usize| rules.get(&term(member));
        let lifted = members.iter().filter_map(|member| Some(rule(*member)?.lifted.to_string()));
        let stored = written.iter().filter_map(|member| Some(rule(*member)?.written?.to_string()));
        let proof = lifted.chain(stored).collect();
        Some(Match { proof, written, inlined: cut.inlined(&inside), members })
    }

    /// Applies the rules until they add nothing; gives the class of every node. Bounded by counts and never by the
    /// clock, so that a result does not depend on the machine.
    fn saturate(&self, nodes: &RecExpr<Fir>, types: &TypeEnvironment) -> (EGraph<Fir, Types>, Vec<Id>) {
        // One op is lifted in each iteration, and adds an expression, a kernel and perhaps a written one.
        let iterations = nodes.as_ref().len() + 2;
        let most_nodes = 8 * iterations;
        let mut egraph = EGraph::new(Types::new(types, &self.capability));
        let mut classes: Vec<Id> = Vec::with_capacity(nodes.as_ref().len());
        for node in nodes.as_ref() {
            let node = node.clone().map_children(|child| classes[usize::from(child)]);
            classes.push(egraph.add(node));
        }
        let runner = Runner::<Fir, Types, ()>::new(Types::new(types, &self.capability))
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

/// A value from outside that an epilogue can read, constants aside.
pub(crate) fn is_readable(ty: Type, capability: &FormatCapability, types: &TypeEnvironment) -> bool {
    let (Class::Operand(shape), Some(element)) = (ty.class, ty.element) else { return false };
    let fits_n = shape != OperandShape::Matrix || types.matrices.contains(&element);
    fits_n && capability.epilogue.operand(shape).is_some_and(|rule| rule.element(element).is_some())
}

fn rules() -> Vec<Rewrite<Fir, Types>> {
    use Condition::{Attribute, Blocks, GlobalScale, Operand, OperandsOfRoot, Reduction, Result, Written};
    let lifted = |name: &str, from: &str, to: &str, conditions: &[Condition]| {
        rule(name, from, to, [conditions, &[Result]].concat())
    };
    let (f, x, y, z) = (variable("?f"), variable("?x"), variable("?y"), variable("?z"));
    vec![
        rule(
            "scaled_mma-is-root",
            "(scaled_mma ?a ?sfa ?b ?sfb ?alpha ?c ?beta)",
            "(kernel (root ?a ?sfa ?b ?sfb ?alpha ?c ?beta) acc)",
            vec![OperandsOfRoot],
        ),
        lifted("unary-joins", "(unary ?f (kernel ?r ?x))", "(kernel ?r (unary ?f ?x))", &[Attribute(f)]),
        lifted("clamp-joins", "(clamp ?f (kernel ?r ?x))", "(kernel ?r (clamp ?f ?x))", &[Attribute(f)]),
        lifted(
            "convert-joins",
            "(convert ?f (kernel ?r ?x))",
            "(kernel ?r (convert ?f ?x))",
            &[Attribute(f)],
        ),
        lifted(
            "binary-joins-with-operand",
            "(binary ?f (kernel ?r ?x) ?y)",
            "(kernel ?r (binary ?f ?x ?y))",
            &[Attribute(f), Operand(y)],
        ),
        lifted(
            "binary-joins-after-operand",
            "(binary ?f ?y (kernel ?r ?x))",
            "(kernel ?r (binary ?f ?y ?x))",
            &[Attribute(f), Operand(y)],
        ),
        lifted(
            "binary-joins-branches",
            "(binary ?f (kernel ?r ?x) (kernel ?r ?y))",
            "(kernel ?r (binary ?f ?x ?y))",
            &[Attribute(f)],
        ),
        lifted(
            "compare-joins-with-operand",
            "(compare ?f (kernel ?r ?x) ?y)",
            "(kernel ?r (compare ?f ?x ?y))",
            &[Attribute(f), Operand(y)],
        ),
        lifted(
            "compare-joins-after-operand",
            "(compare ?f ?y (kernel ?r ?x))",
            "(kernel ?r (compare ?f ?y ?x))",
            &[Attribute(f), Operand(y)],
        ),
        lifted(
            "compare-joins-branches",
            "(compare ?f (kernel ?r ?x) (kernel ?r ?y))",
            "(kernel ?r (compare ?f ?x ?y))",
            &[Attribute(f)],
        ),
        lifted(
            "select-joins-branches",
            "(select (kernel ?r ?x) (kernel ?r ?y) (kernel ?r ?z))",
            "(kernel ?r (select ?x ?y ?z))",
            &[],
        ),
        lifted(
            "select-joins-with-then",
            "(select (kernel ?r ?x) ?y (kernel ?r ?z))",
            "(kernel ?r (select ?x ?y ?z))",
            &[Operand(y)],
        ),
        lifted(
            "select-joins-with-else",
            "(select (kernel ?r ?x) (kernel ?r ?y) ?z)",
            "(kernel ?r (select ?x ?y ?z))",
            &[Operand(z)],
        ),
        lifted(
            "select-joins-with-both",
            "(select (kernel ?r ?x) ?y ?z)",
            "(kernel ?r (select ?x ?y ?z))",
            &[Operand(y), Operand(z)],
        ),
        rule("result-is-written", "(kernel ?r ?x)", "(write ?r ?x)", vec![Written]),
        rule(
            "quantize-joins",
            "(quantize ?f (kernel ?r ?x) ?g)",
            "(write ?r (quantize ?f ?x ?g))",
            vec![Blocks(f, x), GlobalScale(variable("?g"))],
        ),
        rule(
            "reduce-joins",
            "(reduce ?f (kernel ?r ?x))",
            "(write ?r (reduce ?f ?x))",
            vec![Reduction(f, x)],
        ),
    ]
}

/// A typed condition of a rule.
#[derive(Clone, Copy, Debug)]
enum Condition {
    /// The operands of the `scaled_mma` are of the format, and C can be read.
    OperandsOfRoot,
    /// The epilogue has this function, or comparisons, or clamping.
    Attribute(Var),
    /// A value from outside that the epilogue reads, or a constant.
    Operand(Var),
    /// The epilogue rounds to the element type of the result.
    Result,
    /// A written value may have the element type of the result.
    Written,
    /// The epilogue writes blocks in this format, and the value is one that can be quantized.
    Blocks(Var, Var),
    /// Nothing, or an f32 scalar from outside.
    GlobalScale(Var),
    /// The epilogue reduces like this, and the value is f32.
    Reduction(Var, Var),
}

impl Condition {
    fn holds(self, egraph: &EGraph<Fir, Types>, class: Id, subst: &Subst) -> bool {
        let Types { capability, environment, .. } = &egraph.analysis;
        let element = egraph[class].data.element;
        match self {
            Condition::OperandsOfRoot => {
                let of = |name: &str| egraph[subst[variable(name)]].data;
                let format = capability.format;
                let blocked =
                    Type { element: Some(format.scale), class: Class::BlockedScales, inlined: false };
                of("?a").element == Some(format.a)
                    && of("?b").element == Some(format.b)
                    && of("?sfa") == blocked
                    && of("?sfb") == blocked
                    && of("?c").element.is_none_or(|element| capability.c(element).is_some())
            }
            Condition::Attribute(variable) => {
                let epilogue = &capability.epilogue;
                match egraph[subst[variable]].nodes[..] {
                    [Fir::Attribute(Attribute::Unary(kind))] => epilogue.unary.contains(&kind),
                    [Fir::Attribute(Attribute::Binary(kind))] => epilogue.binary.contains(&kind),
                    [Fir::Attribute(Attribute::Predicate(_))] => epilogue.select,
                    [Fir::Attribute(Attribute::Bounds(_))] => epilogue.clamp,
                    // What it converts to is what the result is.
                    [Fir::Attribute(Attribute::Element(_))] => true,
                    _ => false,
                }
            }
            Condition::Operand(variable) => {
                let ty = egraph[subst[variable]].data;
                ty.inlined || is_readable(ty, capability, environment)
            }
            Condition::Result => element.is_some_and(|element| {
                element == ElementType::I1 || capability.epilogue.elements.contains(&element)
            }),
            Condition::Written => element.is_some_and(|element| environment.writable.contains(&element)),
            Condition::Blocks(format, value) => {
                let [Fir::Attribute(Attribute::Blocks { element, scale, block, .. })] =
                    egraph[subst[format]].nodes[..]
                else {
                    return false;
                };
                let same = |rule: &QuantizedCapability| {
                    (rule.element, rule.scale, rule.block) == (element, scale, block)
                };
                environment.quantized.iter().any(same)
                    && arithmetic(egraph[subst[value]].data.element).is_some()
            }
            Condition::GlobalScale(variable) => {
                let ty = egraph[subst[variable]].data;
                let absent = matches!(egraph[subst[variable]].nodes[..], [Fir::Absent]);
                let scalar = ty.class == Class::Operand(OperandShape::Scalar)
                    && ty.element == Some(ElementType::F32)
                    && is_readable(ty, capability, environment);
                absent || scalar
            }
            Condition::Reduction(how, value) => {
                let [Fir::Attribute(Attribute::Reduction(kind, _))] = egraph[subst[how]].nodes[..] else {
                    return false;
                };
                environment.reductions.contains(&kind)
                    && egraph[subst[value]].data.element == Some(ElementType::F32)
            }
        }
    }
}

/// A rule that applies under conditions, and says so.
struct Conditional {
    conditions: Vec<Condition>,
    pattern: Pattern<Fir>,
}

impl Applier<Fir, Types> for Conditional {
    fn apply_one(
        &self,
        egraph: &mut EGraph<Fir, Types>,
        class: Id,
        subst: &Subst,
        ast: Option<&PatternAst<Fir>>,
        rule: Symbol,
    ) -> Vec<Id> {
        if !self.conditions.iter().all(|condition| condition.holds(egraph, class, subst)) {
            return Vec::new();
        }
        let changed = self.pattern.apply_one(egraph, class, subst, ast, rule);
        if !changed.is_empty() {
            egraph.analysis.applied.push((class, rule));
        }
        changed
    }

    fn vars(&self) -> Vec<Var> {
        self.pattern.vars()
    }
}

fn rule(name: &str, from: &str, to: &str, conditions: Vec<Condition>) -> Rewrite<Fir, Types> {
    let parsed =
        |text: &str| text.parse::<Pattern<Fir>>().expect("the words of a rule are those of the language");
    Rewrite::new(name, parsed(from), Conditional { conditions, pattern: parsed(to) })
        .expect("the right side of a rule has no variables but those of the left")
}

fn variable(name: &str) -> Var {
    name.parse().expect("a variable is written ?name")
}

/// The typed analysis: the element type and the class of every term; and which rules were applied to it.
pub(crate) struct Types {
    environment: TypeEnvironment,
    capability: Arc<FormatCapability>,
    applied: Vec<(Id, Symbol)>,
}

/// The rules that made a term part of a kernel.
struct Fired {
    lifted: Symbol,
    written: Option<Symbol>,
}

impl Types {
    fn new(environment: &TypeEnvironment, capability: &Arc<FormatCapability>) -> Types {
        Types { environment: environment.clone(), capability: Arc::clone(capability), applied: Vec::new() }
    }

    /// By class: a term is lifted by the first rule that was applied to it, and written by the second.
    fn fired(&self, egraph: &EGraph<Fir, Types>) -> BTreeMap<Id, Fired> {
        let mut fired: BTreeMap<Id, Fired> = BTreeMap::new();
        for (class, rule) in &self.applied {
            fired
                .entry(egraph.find(*class))
                .and_modify(|fired| {
                    fired.written.get_or_insert(*rule);
                })
                .or_insert(Fired { lifted: *rule, written: None });
        }
        fired
    }
}

impl Analysis<Fir> for Types {
    type Data = Type;

    fn make(egraph: &mut EGraph<Fir, Types>, node: &Fir, _: Id) -> Type {
        let ty = |id: &Id| egraph[*id].data;
        let no_value = |element| Type { element, class: Class::NoValue, inlined: false };
        let computed = |element| Type { element, class: Class::Computed, inlined: false };
        match node {
            Fir::Absent | Fir::Attribute(_) => no_value(match node {
                Fir::Attribute(Attribute::Element(element)) => Some(*element),
                _ => None,
            }),
            Fir::Leaf(leaf) => egraph.analysis.environment.leaves.get(leaf.0).copied().unwrap_or(Type {
                element: None,
                class: Class::Other,
                inlined: false,
            }),
            Fir::ScaledMma(_) | Fir::Root(_) | Fir::Accumulator => {
                computed(Some(egraph.analysis.environment.accumulator))
            }
            // Nothing is known of it, so that no condition on it ever holds.
            Fir::Mma(_) => Type { element: None, class: Class::Other, inlined: false },
            Fir::Unary([_, x]) | Fir::Clamp([_, x]) => computed(arithmetic(ty(x).element)),
            Fir::Convert([to, x]) => computed(converted(ty(x).element, ty(to).element)),
            Fir::Quantize([format, ..]) => computed(match egraph[*format].nodes[..] {
                [Fir::Attribute(Attribute::Blocks { element, .. })] => Some(element),
                _ => None,
            }),
            Fir::Reduce([_, x]) => computed(ty(x).element),
            Fir::Binary([_, x, y]) => computed(join(ty(x), ty(y))),
            Fir::Compare([_, x, y]) => computed(join(ty(x), ty(y)).map(|_| ElementType::I1)),
            Fir::Select([condition, x, y]) => {
                let chosen = ty(condition).element == Some(ElementType::I1);
                computed(join(ty(x), ty(y)).filter(|_| chosen))
            }
            Fir::Kernel([_, x]) | Fir::Write([_, x]) => computed(ty(x).element),
        }
    }

    fn merge(&mut self, a: &mut Type, b: Type) -> DidMerge {
        debug_assert_eq!(*a, b, "a rule changed the type of a term");
        DidMerge(false, false)
    }
}

/// FP8 values are converted back, and no further.
fn converted(from: Option<ElementType>, to: Option<ElementType>) -> Option<ElementType> {
    match from? {
        narrow if is_narrow(narrow) => arithmetic(to),
        from => arithmetic(Some(from)).and(to),
    }
}

/// Nothing is computed of comparisons but `select`.
fn arithmetic(element: Option<ElementType>) -> Option<ElementType> {
    element.filter(|element| element.is_arithmetic())
}

fn join(left: Type, right: Type) -> Option<ElementType> {
    left.element?.join(right.element?)
}

#[cfg(test)]
mod tests;
