//! Says why an op that uses the result of a kernel is not in that kernel.

use fourfold_ir::{BinaryKind, FormatCapability, Module, Op, OpKind, Program, Value};

use crate::partition::{EpilogueKind, KernelPlan};
use crate::reason::{ReasonCode, Rejection};
use crate::rewrite::ShapeClass;
use crate::root::{Divides, element_list};

/// A kernel whose result the op uses.
#[derive(Clone, Copy)]
pub(crate) struct Producer<'a> {
    pub(crate) plan: &'a KernelPlan,
    pub(crate) capability: &'a FormatCapability,
}

/// Why `op` is in none of the kernels whose results it uses: the reason of the kernel that was closest to taking it.
/// `None` when it uses no kernel's result.
pub(crate) fn left_out<'a>(
    program: &Program,
    op: Op,
    producers: impl IntoIterator<Item = Producer<'a>>,
) -> Option<Rejection> {
    let mut closest: Option<(Obstacle, Rejection)> = None;
    for producer in producers {
        let (obstacle, code, what) = obstacle(program, op, producer);
        if closest.as_ref().is_none_or(|(nearest, _)| *nearest < obstacle) {
            let message = format!("{}: {what}", program.module().op_label(op));
            closest = Some((obstacle, Rejection::new(code, message)));
        }
    }
    closest.map(|(_, rejection)| rejection)
}

/// What stands between an op and a kernel, the farthest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Obstacle {
    Kind,
    Operand,
    Order,
    Element,
    Alignment,
    Escape,
}

fn obstacle(program: &Program, op: Op, producer: Producer<'_>) -> (Obstacle, ReasonCode, String) {
    let Producer { plan, capability } = producer;
    let module = program.module();
    let operation = &module.ops[op];
    let (Some(stage), &[result]) = (Stage::of_op(&operation.kind, capability), &operation.results[..]) else {
        let functions: Vec<_> = capability.activations.iter().map(|kind| kind.name()).collect();
        let what = format!(
            "the epilogue of {} does not compute {}; expected add, convert or one of {}",
            module.op_label(plan.root),
            operation.kind.mnemonic(),
            functions.join(", ")
        );
        return (Obstacle::Kind, ReasonCode::UnsupportedEpilogueOp, what);
    };
    if stage == Stage::Bias
        && let Some(what) = bias_fault(module, op, producer)
    {
        return (Obstacle::Operand, ReasonCode::BiasShape, what);
    }
    if let Some(step) = plan.epilogue.iter().find(|step| stage <= Stage::of_step(&step.kind)) {
        let what = format!(
            "it follows {} in the epilogue; expected bias, activation and conversion in this order, each at most once",
            module.op_label(step.op)
        );
        return (Obstacle::Order, ReasonCode::EpilogueOrder, what);
    }
    let element = module.ty(result).element;
    let Some(rule) = capability.output(element) else {
        let known = element_list(capability.outputs.iter().map(|output| output.element));
        return (
            Obstacle::Element,
            ReasonCode::OutputDtype,
            format!("the result is {element}; expected {known}"),
        );
    };
    if Divides::of(&plan.n, rule.n_multiple) == Divides::Never {
        let n = module.display_dim(&plan.n);
        let what = format!("N is {n}; expected a multiple of {} for a {element} result", rule.n_multiple);
        return (Obstacle::Alignment, ReasonCode::NAlignment, what);
    }
    if let Some(others) = other_uses(program, plan.output, op) {
        let what = format!("%{} is also {others}; expected no other use of it", module.name_of(plan.output));
        return (Obstacle::Escape, ReasonCode::ValueEscapes, what);
    }
    // Nothing known stands in the way, so that a rule is missing: the op still gets an answer.
    let what = format!("no rule takes it into the epilogue of {}", module.op_label(plan.root));
    (Obstacle::Kind, ReasonCode::UnsupportedEpilogueOp, what)
}

/// The stages of an epilogue in their order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Bias,
    Activation,
    Convert,
}

impl Stage {
    fn of_op(kind: &OpKind, capability: &FormatCapability) -> Option<Stage> {
        match kind {
            OpKind::Binary(BinaryKind::Add) => Some(Stage::Bias),
            OpKind::Unary(kind) if capability.activations.contains(kind) => Some(Stage::Activation),
            OpKind::Convert => Some(Stage::Convert),
            _ => None,
        }
    }

    fn of_step(kind: &EpilogueKind) -> Stage {
        match kind {
            EpilogueKind::ColumnBias(_) => Stage::Bias,
            EpilogueKind::Activation(_) => Stage::Activation,
            EpilogueKind::Convert => Stage::Convert,
        }
    }
}

fn bias_fault(module: &Module, op: Op, Producer { plan, capability }: Producer<'_>) -> Option<String> {
    let n = module.display_dim(&plan.n);
    let elements = element_list(capability.bias.iter().copied());
    let expected = format!("expected a bias for each column, [{n}] or [1, {n}], of {elements}");
    let Some(bias) = module.ops[op].operands.iter().find(|operand| **operand != plan.output) else {
        return Some(format!("%{} is added to itself; {expected}", module.name_of(plan.output)));
    };
    let ty = module.ty(*bias);
    let fits = ShapeClass::of(ty, &module.ty(plan.output).shape) == ShapeClass::Columns
        && capability.bias.contains(&ty.element);
    (!fits).then(|| format!("%{} is {}; {expected}", module.name_of(*bias), module.display_type(ty)))
}

/// How a value is used besides by `op`, for a message; `None` when it is not. Reads a few users only: a value may
/// have very many, each of which gets a message.
fn other_uses(program: &Program, value: Value, op: Op) -> Option<String> {
    const NAMED: usize = 3;
    let module = program.module();
    let users = program.facts().users(value);
    let mut named: Vec<Op> = Vec::new();
    let mut rest = users;
    while let [user, later @ ..] = rest
        && named.len() < NAMED
    {
        if *user != op && named.last() != Some(user) {
            named.push(*user);
        }
        rest = later;
    }
    let last_named = named.last().copied();
    let more =
        rest.partition_point(|user| *user < op) + rest.len() - rest.partition_point(|user| *user <= op);
    let repeated = rest.iter().take_while(|user| Some(**user) == last_named).count();
    let mut uses: Vec<String> =
        named.iter().map(|user| format!("used by {}", module.op_label(*user))).collect();
    if repeated < more {
        uses.push(format!("used {} times more", more - repeated));
    }
    if program.facts().is_output(value) {
        uses.push("returned by the program".to_owned());
    }
    (!uses.is_empty()).then(|| uses.join(", "))
}
