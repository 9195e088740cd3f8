//! Says why an op that uses the result of a kernel is not in that kernel.

use fourfold_ir::{EpilogueCapability, FormatCapability, Module, Op, OpKind, OperandShape, Program, Value};

use crate::partition::{EpilogueKind, KernelPlan};
use crate::reason::{ReasonCode, Rejection};
use crate::rewrite::operand_shape;
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
    Element,
    Alignment,
    Limit,
    Escape,
}

fn obstacle(program: &Program, op: Op, producer: Producer<'_>) -> (Obstacle, ReasonCode, String) {
    let Producer { plan, capability } = producer;
    let module = program.module();
    let operation = &module.ops[op];
    let (true, &[result]) = (is_computed(&operation.kind, &capability.epilogue), &operation.results[..])
    else {
        let what = format!(
            "the epilogue of {} does not compute {}; expected {}",
            module.op_label(plan.root),
            operation.kind.mnemonic(),
            computed(&capability.epilogue)
        );
        return (Obstacle::Kind, ReasonCode::UnsupportedEpilogueOp, what);
    };
    if let Some((code, what)) = operand_fault(program, op, producer) {
        return (Obstacle::Operand, code, what);
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
    if let Some(others) = other_uses(program, plan.first_written(), op) {
        let name = module.name_of(plan.first_written());
        let returned = program.facts().is_output(plan.first_written());
        let expected = if returned { "no other use of it" } else { "all its uses to meet in one result" };
        let what = format!("%{name} is also {others}; expected {expected}");
        return (Obstacle::Escape, ReasonCode::ValueEscapes, what);
    }
    if let Some(what) = full(program, op, producer) {
        return (Obstacle::Limit, ReasonCode::EpilogueLimit, what);
    }
    // Nothing known stands in the way, so that a rule is missing: the op still gets an answer.
    let what = format!("no rule takes it into the epilogue of {}", module.op_label(plan.root));
    (Obstacle::Kind, ReasonCode::UnsupportedEpilogueOp, what)
}

fn is_computed(kind: &OpKind, epilogue: &EpilogueCapability) -> bool {
    match kind {
        OpKind::Unary(kind) => epilogue.unary.contains(kind),
        OpKind::Binary(kind) => epilogue.binary.contains(kind),
        OpKind::Clamp { .. } => epilogue.clamp,
        OpKind::Compare(_) | OpKind::Select => epilogue.select,
        OpKind::Convert => true,
        _ => false,
    }
}

/// What the epilogue computes, as a message lists it.
fn computed(epilogue: &EpilogueCapability) -> String {
    let mut names: Vec<&str> = epilogue.binary.iter().map(|kind| kind.name()).collect();
    names.extend(epilogue.unary.iter().map(|kind| kind.name()));
    names.extend(epilogue.clamp.then_some("clamp"));
    names.extend(epilogue.select.then_some(["compare", "select"]).into_iter().flatten());
    format!("{} or convert", names.join(", "))
}

/// Why the epilogue does not read what the op uses besides the kernel's result.
fn operand_fault(program: &Program, op: Op, producer: Producer<'_>) -> Option<(ReasonCode, String)> {
    let Producer { plan, capability } = producer;
    let module = program.module();
    let operation = &module.ops[op];
    let d = &module.ty(plan.first_written()).shape;
    let shape = |value: Value| module.display_type(module.ty(value)).to_string();
    let result = operation.results[0];
    if module.ty(result).shape != *d {
        let (found, expected) = (shape(result), shape(plan.first_written()));
        let what =
            format!("the result is {found}, while that of the kernel is {expected}; expected its shape");
        return Some((ReasonCode::OperandShape, what));
    }
    for &operand in operation.operands.iter().filter(|operand| **operand != plan.first_written()) {
        let ty = module.ty(operand);
        let known = operand_shape(&ty.shape, d).filter(|_| ty.layout.is_none());
        let rule = known.and_then(|shape| capability.epilogue.operand(shape));
        let rule = rule.and_then(|rule| rule.element(ty.element));
        let Some(rule) = rule else {
            let (name, found) = (module.name_of(operand), shape(operand));
            let what = format!("%{name} is {found}; expected {}", readable(module, plan, capability));
            return Some((ReasonCode::OperandShape, what));
        };
        if Divides::of(&plan.n, rule.n_multiple) == Divides::Never {
            let (n, name) = (module.display_dim(&plan.n), module.name_of(operand));
            let (multiple, element) = (rule.n_multiple, rule.element);
            let what = format!("N is {n}; expected a multiple of {multiple} for %{name}, a {element} matrix");
            return Some((ReasonCode::NAlignment, what));
        }
    }
    None
}

/// What an epilogue reads, as a message lists it.
fn readable(module: &Module, plan: &KernelPlan, capability: &FormatCapability) -> String {
    let n = module.display_dim(&plan.n);
    let d = module.ty(plan.first_written());
    let mut column: Vec<String> = d.shape.iter().map(|dim| module.display_dim(dim).to_string()).collect();
    let matrix = format!("[{}]", column.join(", "));
    if let Some(last) = column.last_mut() {
        *last = "1".to_owned();
    }
    let mut kinds = Vec::new();
    for rule in &capability.epilogue.operands {
        let shape = match rule.shape {
            OperandShape::Scalar => "a scalar".to_owned(),
            OperandShape::Row => format!("[{n}]"),
            OperandShape::Column => format!("[{}]", column.join(", ")),
            OperandShape::Matrix => matrix.clone(),
        };
        kinds.push(format!("{shape} of {}", element_list(rule.elements.iter().map(|rule| rule.element))));
    }
    kinds.join("; ")
}

/// What the kernel would have too many of with this op.
fn full(program: &Program, op: Op, producer: Producer<'_>) -> Option<String> {
    let Producer { plan, capability } = producer;
    let module = program.module();
    let label = module.op_label(plan.root);
    let counted =
        plan.epilogue.iter().filter(|step| !matches!(step.kind, EpilogueKind::Constant { .. })).count();
    let most = capability.epilogue.max_steps;
    if most <= counted {
        return Some(format!("the epilogue of {label} has {counted} steps; expected at most {most}"));
    }
    let d = &module.ty(plan.first_written()).shape;
    let mut values: Vec<Value> = plan.operands.iter().map(|operand| operand.value).collect();
    values.extend(module.ops[op].operands.iter().filter(|operand| **operand != plan.first_written()));
    values.sort_unstable();
    values.dedup();
    capability.epilogue.operands.iter().find_map(|rule| {
        let is_one = |value: &&Value| operand_shape(&module.ty(**value).shape, d) == Some(rule.shape);
        let (count, most, shape) = (values.iter().filter(is_one).count(), rule.most, rule.shape);
        (most < count).then(|| {
            format!("the epilogue of {label} would read {count} {shape} operands; expected at most {most}")
        })
    })
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
