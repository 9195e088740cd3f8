//! Proves by rewriting that a `scaled_mma` and what follows it are one kernel.
//!
//! A region of a program becomes an expression whose leaves are opaque values, and named rules turn it into the
//! normal form `(kernel root bias activation output)`, each part `none` where absent, and that into
//! `(write root bias activation output)` when the result can be written. What has no rule has no kernel: `mma` is
//! an operator of its own, which no rule mentions.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use egg::{
    Analysis, DidMerge, EGraph, FlatTerm, Id, Language, Pattern, RecExpr, Rewrite, Runner, StopReason, Subst,
    Var,
};
use fourfold_ir::{Dim, ElementType, FormatCapability, ScaleLayout, TensorType, UnaryKind};

egg::define_language! {
    /// The ops that rules speak of, and the parts of the normal form.
    pub(crate) enum Fir {
        "none" = Absent,
        // a, sfa, b, sfb, alpha, c, beta
        "scaled_mma" = ScaledMma([Id; 7]),
        "mma" = Mma([Id; 2]),
        "add" = Add([Id; 2]),
        Apply(Function, [Id; 1]),
        Convert(Conversion, [Id; 1]),
        Leaf(Leaf),
        // The normal form: the operands of the scaled_mma, then root, bias, activation, output.
        "root" = Root([Id; 7]),
        "kernel" = Kernel([Id; 4]),
        "write" = Write([Id; 4]),
        Activation(Function),
        Output(Conversion),
    }
}

/// A value that the region uses and does not define, by position in [`TypeEnvironment::leaves`]: `v0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Leaf(pub(crate) usize);

/// An activation, by the mnemonic of its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Function(pub(crate) UnaryKind);

/// A conversion to an element type: `convert_bf16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Conversion(pub(crate) ElementType);

/// What rules know of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Type {
    /// `None` for what is no value.
    pub(crate) element: Option<ElementType>,
    /// The shape as seen from the result of the `scaled_mma`.
    pub(crate) class: ShapeClass,
}

/// A shape as seen from the result D of a `scaled_mma`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ShapeClass {
    /// One element for each column of D: `[N]` under leading extents of 1, of a rank that D has.
    Columns,
    /// The shape of D.
    Matrix,
    /// One element.
    Scalar,
    /// Scales in the blocked layout.
    BlockedScales,
    /// Anything else.
    Other,
    /// Not a value: an absent operand or an attribute.
    NoValue,
}

impl ShapeClass {
    /// The class of a type under a `scaled_mma` with a result of shape `d`. With one row in D a vector of N is both
    /// a row of D and a bias: it counts as [`ShapeClass::Columns`].
    pub(crate) fn of(ty: &TensorType, d: &[Dim]) -> ShapeClass {
        if let Some(layout) = ty.layout {
            return if layout == ScaleLayout::Blocked {
                ShapeClass::BlockedScales
            } else {
                ShapeClass::Other
            };
        }
        let one = |dim: &Dim| dim.as_fixed() == Some(1);
        match ty.shape.as_slice() {
            [ones @ .., last] if ty.rank() <= d.len() && d.last() == Some(last) && ones.iter().all(one) => {
                ShapeClass::Columns
            }
            shape if shape == d => ShapeClass::Matrix,
            shape if shape.iter().all(one) => ShapeClass::Scalar,
            _ => ShapeClass::Other,
        }
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
}

/// A `scaled_mma` and what follows it, as an expression: canonical, so that equal regions are equal here.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Expression {
    /// The nodes.
    pub(crate) nodes: RecExpr<Fir>,
    /// How many nodes the `scaled_mma` takes, and then each op after it with everything before.
    pub(crate) prefixes: Vec<usize>,
    /// The types.
    pub(crate) types: TypeEnvironment,
}

/// What a region proved to be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Match {
    /// One for each op after the `scaled_mma` that is in the kernel.
    pub(crate) steps: Vec<Step>,
    /// The names of the rules, in order.
    pub(crate) proof: Vec<String>,
}

/// What one op of a region is in the normal form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// Adds this leaf to every row.
    Bias(Leaf),
    /// Applies a function.
    Activation(UnaryKind),
    /// Converts the result.
    Convert,
}

/// Finds kernels under the rules of one format on one target.
pub(crate) struct Rewriter {
    capability: Arc<FormatCapability>,
    rules: Vec<Rule>,
    known: HashMap<Expression, Option<Match>>,
}

type Rule = Rewrite<Fir, Types>;

impl Rewriter {
    pub(crate) fn new(capability: &FormatCapability) -> Rewriter {
        Rewriter { capability: Arc::new(capability.clone()), rules: rules(capability), known: HashMap::new() }
    }

    /// The longest kernel that begins with the region's `scaled_mma`, `None` when there is none. Equal regions are
    /// rewritten once.
    pub(crate) fn longest_kernel(&mut self, expression: Expression) -> Option<Match> {
        if let Some(known) = self.known.get(&expression) {
            return known.clone();
        }
        let found = self.rewrite(&expression);
        self.known.insert(expression, found.clone());
        found
    }

    fn rewrite(&self, expression: &Expression) -> Option<Match> {
        let mut runner = self.saturate(&expression.nodes, &expression.types);
        debug_assert!(matches!(runner.stop_reason, Some(StopReason::Saturated)), "{:?}", runner.stop_reason);
        expression.prefixes.iter().enumerate().rev().find_map(|(steps, nodes)| {
            let prefix: RecExpr<Fir> = expression.nodes.as_ref()[..*nodes].to_vec().into();
            let (parts, normal) = written_form(&runner.egraph, &prefix)?;
            // Each op adds exactly one part, so the parts in order are the ops in order.
            if parts.len() != steps {
                return None;
            }
            let mut proof = Vec::new();
            for term in runner.explain_equivalence(&prefix, &normal).make_flat_explanation() {
                collect_rule_names(term, &mut proof);
            }
            Some(Match { steps: parts, proof })
        })
    }

    /// Applies the rules until they add nothing. Bounded by counts and never by the clock, so that a result does
    /// not depend on the machine.
    fn saturate(&self, nodes: &RecExpr<Fir>, types: &TypeEnvironment) -> Runner<Fir, Types, ()> {
        const ITERATIONS: usize = 16;
        const NODES: usize = 1_000;
        let analysis = Types { environment: types.clone(), capability: Arc::clone(&self.capability) };
        Runner::<Fir, Types, ()>::new(analysis)
            .with_explanations_enabled()
            .with_scheduler(egg::SimpleScheduler)
            .with_iter_limit(ITERATIONS)
            .with_node_limit(NODES)
            .with_time_limit(Duration::MAX)
            .with_expr(nodes)
            .run(&self.rules)
    }
}

/// The steps of an expression that is equal to a `write`, and that `write`.
fn written_form(egraph: &EGraph<Fir, Types>, expr: &RecExpr<Fir>) -> Option<(Vec<Step>, RecExpr<Fir>)> {
    let class = &egraph[egraph.lookup_expr(expr)?];
    let written = class.iter().find(|node| matches!(node, Fir::Write(_)))?;
    let [_root, parts @ ..] = written.children() else { return None };
    // Below a `write` no rule adds anything: every class has one node.
    let node = |id: Id| egraph[id].nodes[0].clone();
    let steps = parts
        .iter()
        .filter_map(|id| match node(*id) {
            Fir::Leaf(leaf) => Some(Step::Bias(leaf)),
            Fir::Activation(function) => Some(Step::Activation(function.0)),
            Fir::Output(_) => Some(Step::Convert),
            _ => None,
        })
        .collect();
    Some((steps, written.build_recexpr(node)))
}

fn collect_rule_names(term: &FlatTerm<Fir>, names: &mut Vec<String>) {
    names.extend(term.forward_rule.or(term.backward_rule).map(|rule| rule.to_string()));
    for child in &term.children {
        collect_rule_names(child, names);
    }
}

fn rules(capability: &FormatCapability) -> Vec<Rule> {
    let mut rules: Vec<Rule> = vec![
        egg::rewrite!("scaled_mma-is-root";
            "(scaled_mma ?a ?sfa ?b ?sfb ?alpha ?c ?beta)" =>
            "(kernel (root ?a ?sfa ?b ?sfb ?alpha ?c ?beta) none none none)"
            if operands_have_the_format("?a", "?sfa", "?b", "?sfb")
            if can_be_read_as_c("?c")),
        egg::rewrite!("add-is-bias";
            "(add (kernel ?root none none none) ?value)" => "(kernel ?root ?value none none)"
            if is_column_bias("?value")),
        egg::rewrite!("add-is-bias-on-the-left";
            "(add ?value (kernel ?root none none none))" => "(kernel ?root ?value none none)"
            if is_column_bias("?value")),
    ];
    rules.extend(capability.activations.iter().map(|kind| {
        let from = format!("({kind} (kernel ?root ?bias none none))");
        rule(&format!("{kind}-is-activation"), &from, &format!("(kernel ?root ?bias {kind} none)"))
    }));
    rules.extend(capability.outputs.iter().map(|output| {
        let convert = Conversion(output.element);
        let from = format!("({convert} (kernel ?root ?bias ?activation none))");
        rule(&format!("{convert}-is-output"), &from, &format!("(kernel ?root ?bias ?activation {convert})"))
    }));
    rules.push(egg::rewrite!("result-is-written";
        "(kernel ?root ?bias ?activation ?output)" => "(write ?root ?bias ?activation ?output)"
        if result_is_writable));
    rules
}

fn rule(name: &str, from: &str, to: &str) -> Rule {
    let pattern =
        |text: &str| text.parse::<Pattern<Fir>>().expect("the words of a rule are those of the language");
    Rewrite::new(name, pattern(from), pattern(to)).expect("both sides of a rule have the same variables")
}

fn operands_have_the_format(
    a: &str,
    sfa: &str,
    b: &str,
    sfb: &str,
) -> impl Fn(&mut EGraph<Fir, Types>, Id, &Subst) -> bool + use<> {
    let [a, sfa, b, sfb] = [a, sfa, b, sfb].map(variable);
    move |egraph, _, subst| {
        let format = egraph.analysis.capability.format;
        let blocked = Type { element: Some(format.scale), class: ShapeClass::BlockedScales };
        egraph[subst[a]].data.element == Some(format.a)
            && egraph[subst[b]].data.element == Some(format.b)
            && egraph[subst[sfa]].data == blocked
            && egraph[subst[sfb]].data == blocked
    }
}

fn can_be_read_as_c(c: &str) -> impl Fn(&mut EGraph<Fir, Types>, Id, &Subst) -> bool + use<> {
    let c = variable(c);
    move |egraph, _, subst| {
        egraph[subst[c]].data.element.is_none_or(|element| egraph.analysis.capability.c(element).is_some())
    }
}

fn is_column_bias(value: &str) -> impl Fn(&mut EGraph<Fir, Types>, Id, &Subst) -> bool + use<> {
    let value = variable(value);
    move |egraph, _, subst| {
        let Type { element, class } = egraph[subst[value]].data;
        class == ShapeClass::Columns
            && element.is_some_and(|element| egraph.analysis.capability.bias.contains(&element))
    }
}

fn result_is_writable(egraph: &mut EGraph<Fir, Types>, kernel: Id, _: &Subst) -> bool {
    egraph[kernel].data.element.is_some_and(|element| egraph.analysis.environment.writable.contains(&element))
}

fn variable(name: &str) -> Var {
    name.parse().expect("a variable is written ?name")
}

/// The typed analysis: the element type and the shape class of every term.
pub(crate) struct Types {
    environment: TypeEnvironment,
    capability: Arc<FormatCapability>,
}

impl Analysis<Fir> for Types {
    type Data = Type;

    fn make(egraph: &mut EGraph<Fir, Types>, node: &Fir, _: Id) -> Type {
        let ty = |id: &Id| egraph[*id].data;
        let matrix = |element| Type { element, class: ShapeClass::Matrix };
        match node {
            Fir::Absent | Fir::Activation(_) => Type { element: None, class: ShapeClass::NoValue },
            Fir::Output(to) => Type { element: Some(to.0), class: ShapeClass::NoValue },
            Fir::Leaf(leaf) => egraph
                .analysis
                .environment
                .leaves
                .get(leaf.0)
                .copied()
                .unwrap_or(Type { element: None, class: ShapeClass::Other }),
            Fir::ScaledMma(_) | Fir::Root(_) => matrix(Some(egraph.analysis.environment.accumulator)),
            // Nothing is known of it, so that no condition on it ever holds.
            Fir::Mma(_) => Type { element: None, class: ShapeClass::Other },
            Fir::Add([left, right]) => {
                let (left, right) = (ty(left), ty(right));
                let rows = left.class == ShapeClass::Matrix || right.class == ShapeClass::Matrix;
                let class = if rows { ShapeClass::Matrix } else { ShapeClass::Other };
                Type { element: join(left.element, right.element), class }
            }
            Fir::Apply(_, [value]) => ty(value),
            Fir::Convert(to, [value]) => Type { element: Some(to.0), class: ty(value).class },
            Fir::Kernel([root, bias, _, output]) | Fir::Write([root, bias, _, output]) => {
                let added = ty(bias).element;
                let sum = if added.is_some() { join(ty(root).element, added) } else { ty(root).element };
                matrix(ty(output).element.or(sum))
            }
        }
    }

    fn merge(&mut self, a: &mut Type, b: Type) -> DidMerge {
        debug_assert_eq!(*a, b, "a rule changed the type of a term");
        DidMerge(false, false)
    }
}

fn join(left: Option<ElementType>, right: Option<ElementType>) -> Option<ElementType> {
    left?.join(right?)
}

/// No text is one of the language's words.
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

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name())
    }
}

impl FromStr for Function {
    type Err = UnknownWord;
    fn from_str(text: &str) -> Result<Function, UnknownWord> {
        UnaryKind::from_name(text).map(Function).ok_or(UnknownWord)
    }
}

impl fmt::Display for Conversion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "convert_{}", self.0)
    }
}

impl FromStr for Conversion {
    type Err = UnknownWord;
    fn from_str(text: &str) -> Result<Conversion, UnknownWord> {
        text.strip_prefix("convert_").and_then(ElementType::from_name).map(Conversion).ok_or(UnknownWord)
    }
}

#[cfg(test)]
mod tests;
