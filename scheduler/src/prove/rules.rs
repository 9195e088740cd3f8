//! The rules by which ops become part of a kernel, with their typed conditions.

use egg::{Applier, EGraph, Id, Pattern, PatternAst, Rewrite, Subst, Symbol, Var};
use fourfold_ir::{ElementType, OperandShape, QuantizedCapability};

use super::analysis::{Types, arithmetic};
use crate::expression::{Class, Type, is_readable};
use crate::language::{Attribute, KernelTerm, SinkAttribute};

/// All rules: those for the root, for the ops that join it, and for outputs.
pub(super) fn rules() -> Vec<Rewrite<KernelTerm, Types>> {
    use Condition::{Blocks, GlobalScale, OperandsOfRoot, Reduction, Written};
    let (f, x, g) = (variable("?f"), variable("?x"), variable("?g"));
    let root = rule(
        "scaled_mma-is-root",
        "(scaled_mma ?a ?sfa ?b ?sfb ?alpha ?c ?beta)",
        "(kernel (root ?a ?sfa ?b ?sfb ?alpha ?c ?beta) acc)",
        vec![OperandsOfRoot],
    );
    let written = [
        rule("result-is-written", "(kernel ?r ?x)", "(write ?r ?x)", vec![Written]),
        rule(
            "quantize-joins",
            "(quantize ?f (kernel ?r ?x) ?g)",
            "(write ?r (quantize ?f ?x ?g))",
            vec![Blocks(f, x), GlobalScale(g)],
        ),
        rule(
            "reduce-joins",
            "(reduce ?f (kernel ?r ?x))",
            "(write ?r (reduce ?f ?x))",
            vec![Reduction(f, x)],
        ),
    ];
    let halves = [
        rule("even-columns-join", "(even (kernel ?r acc))", "(kernel ?r even-acc)", Vec::new()),
        rule("odd-columns-join", "(odd (kernel ?r acc))", "(kernel ?r odd-acc)", Vec::new()),
    ];
    [root].into_iter().chain(halves).chain(joining_rules()).chain(written).collect()
}

/// The rules that lift an elementwise op into the kernel of its operands.
fn joining_rules() -> Vec<Rewrite<KernelTerm, Types>> {
    use Condition::{Attribute, Operand, Result};
    let lifted = |name: &str, from: &str, to: &str, conditions: &[Condition]| {
        rule(name, from, to, [conditions, &[Result]].concat())
    };
    let (f, y, z) = (variable("?f"), variable("?y"), variable("?z"));
    vec![
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
    ]
}

/// A typed condition of a rule.
#[derive(Clone, Copy, Debug)]
enum Condition {
    /// The operands of the `scaled_mma` have the format, and the epilogue can read C.
    OperandsOfRoot,
    /// The epilogue supports this function, comparison or clamp.
    Attribute(Var),
    /// The epilogue can read this external value, or it is a constant.
    Operand(Var),
    /// The epilogue rounds to the element type of the result.
    Result,
    /// The element type of the result can be written.
    Written,
    /// The epilogue can write this quantized format from this value.
    Blocks(Var, Var),
    /// The per-tensor scale is absent, or an external f32 scalar.
    GlobalScale(Var),
    /// The epilogue supports this reduction, and the value is f32.
    Reduction(Var, Var),
}

impl Condition {
    fn holds(self, egraph: &EGraph<KernelTerm, Types>, class: Id, subst: &Subst) -> bool {
        let Types { capability, environment, .. } = &egraph.analysis;
        let element = egraph[class].data.element;
        match self {
            Condition::OperandsOfRoot => {
                let of = |name: &str| egraph[subst[variable(name)]].data;
                let format = capability.format;
                let scales = |class| Type { element: Some(format.scale), class, inlined: false };
                let of_a =
                    if environment.has_linear_sfa { Class::LinearScales } else { Class::BlockedScales };
                of("?a").element == Some(format.a)
                    && of("?b").element == Some(format.b)
                    && if format.is_weight_only() {
                        of("?sfa").class == Class::NoValue
                    } else {
                        of("?sfa") == scales(of_a)
                    }
                    && of("?sfb") == scales(Class::BlockedScales)
                    && of("?c").element.is_none_or(|element| capability.c(element).is_some())
            }
            Condition::Attribute(variable) => {
                let epilogue = &capability.epilogue;
                match egraph[subst[variable]].nodes[..] {
                    [KernelTerm::Attribute(Attribute::Unary(kind))] => epilogue.unary.contains(&kind),
                    [KernelTerm::Attribute(Attribute::Binary(kind))] => epilogue.binary.contains(&kind),
                    [KernelTerm::Attribute(Attribute::Predicate(_))] => epilogue.select,
                    [KernelTerm::Attribute(Attribute::Bounds(_))] => epilogue.clamp,
                    // [`Condition::Result`] checks the type that it converts to.
                    [KernelTerm::Attribute(Attribute::Element(_))] => true,
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
                let [
                    KernelTerm::Attribute(Attribute::Own(SinkAttribute::Blocks {
                        element,
                        scale,
                        block,
                        ..
                    })),
                ] = egraph[subst[format]].nodes[..]
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
                let absent = matches!(egraph[subst[variable]].nodes[..], [KernelTerm::Absent]);
                let scalar = ty.class == Class::Operand(OperandShape::Scalar)
                    && ty.element == Some(ElementType::F32)
                    && is_readable(ty, capability, environment);
                absent || scalar
            }
            Condition::Reduction(how, value) => {
                let [KernelTerm::Attribute(Attribute::Own(SinkAttribute::Reduction(kind, _)))] =
                    egraph[subst[how]].nodes[..]
                else {
                    return false;
                };
                environment.reductions.contains(&kind)
                    && egraph[subst[value]].data.element == Some(ElementType::F32)
            }
        }
    }
}

/// An applier that checks conditions and logs its rule.
struct Conditional {
    conditions: Vec<Condition>,
    pattern: Pattern<KernelTerm>,
}

impl Applier<KernelTerm, Types> for Conditional {
    fn apply_one(
        &self,
        egraph: &mut EGraph<KernelTerm, Types>,
        class: Id,
        subst: &Subst,
        ast: Option<&PatternAst<KernelTerm>>,
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

fn rule(name: &str, from: &str, to: &str, conditions: Vec<Condition>) -> Rewrite<KernelTerm, Types> {
    let parsed =
        |text: &str| text.parse::<Pattern<KernelTerm>>().expect("a rule contains only words of the language");
    Rewrite::new(name, parsed(from), Conditional { conditions, pattern: parsed(to) })
        .expect("the right side of a rule has only variables of the left side")
}

fn variable(name: &str) -> Var {
    name.parse().expect("a variable has the form ?name")
}
