//! Explains why an op that uses a kernel's result is not in that kernel.

use fourfold_ir::{
    EpilogueCapability, Module, Op, OperandShape, OutputCapability, Program, QuantizedCapability, Value,
};

use crate::geometry::{Divides, operand_shape};
use crate::legality::{Illegal, check_legal, holds_block};
use crate::plan::{EpilogueKind, OutputKind, ScaledMmaPlan};
use crate::properties::{is_inlinable, is_sink};
use crate::reason::{ReasonCode, element_list, scale_message};
use crate::root::Root;

/// A kernel that computes an operand of the op.
#[derive(Clone, Copy)]
pub(crate) struct Producer<'a> {
    pub(crate) plan: &'a ScaledMmaPlan,
    pub(crate) root: &'a Root<'a>,
    /// Returns whether an op is in this kernel.
    pub(crate) has: &'a dyn Fn(Op) -> bool,
    /// True if the target computes the op faster in a kernel of its own.
    pub(crate) is_faster_alone: bool,
    /// The operand that kept the op from joining this kernel, because it is computed too late.
    pub(crate) late: Option<Value>,
    /// Returns whether a value is available when this kernel starts.
    pub(crate) before: &'a dyn Fn(Value) -> bool,
}

impl Producer<'_> {
    fn inside(&self, program: &Program, value: Value) -> bool {
        let module = program.module();
        let computed = |op: &Op| (self.has)(*op) && !is_sink(&module.ops[*op].kind);
        module.defining_op(value).as_ref().is_some_and(computed)
    }
}

/// The reason why an op is not in a kernel.
pub(crate) struct Obstacle {
    pub(crate) rank: Rank,
    pub(crate) code: ReasonCode,
    pub(crate) message: String,
}

impl Obstacle {
    fn new(rank: Rank, code: ReasonCode, message: String) -> Obstacle {
        Obstacle { rank, code, message }
    }
}

/// The closeness of an op to joining a kernel, the farthest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Kind,
    Operand,
    Element,
    Alignment,
    Order,
    Limit,
    Escape,
}

/// Finds the obstacle that keeps an op out of the producer's kernel.
pub(crate) fn explain(program: &Program, op: Op, producer: Producer<'_>) -> Obstacle {
    let Producer { plan, root, .. } = producer;
    let module = program.module();
    let operation = &module.ops[op];
    let label = module.op_label(plan.root);
    let inside = |value| producer.inside(program, value);
    let own = |value: &&Value| !inside(**value) && module.defining_op(**value).is_some_and(producer.has);
    if let Some(value) = operation.operands.iter().find(own) {
        let name = module.name_of(*value);
        let what = format!(
            "%{name} is complete only after the kernel of {label}; expected a value inside its epilogue"
        );
        return Obstacle::new(Rank::Kind, ReasonCode::UnsupportedEpilogueOp, what);
    }
    let reads = match check_legal(program, root, op, inside) {
        Ok(reads) => reads,
        Err(Illegal::Grouped | Illegal::LinearScales(_)) if producer.is_faster_alone => {
            return faster_alone(&label);
        }
        Err(illegal) => return explain_illegal(program, op, producer, illegal),
    };
    if let Some(obstacle) = unwritable(module, op, root) {
        return obstacle;
    }
    if producer.is_faster_alone {
        return faster_alone(&label);
    }
    let late = |value: Value| {
        let name = module.name_of(value);
        let what = format!(
            "%{name} is computed only after the kernel of {label} must have run; expected an input or the result of an \
             earlier segment"
        );
        Obstacle::new(Rank::Order, ReasonCode::ValueEscapes, what)
    };
    if let Some(value) = producer.late {
        return late(value);
    }
    if let Some(what) = full(program, op, producer, &reads) {
        return Obstacle::new(Rank::Limit, ReasonCode::EpilogueLimit, what);
    }
    if let Some(what) = too_many_outputs(program, op, producer) {
        return Obstacle::new(Rank::Escape, ReasonCode::ValueEscapes, what);
    }
    // A producer of one of its operands left the kernel.
    if let Some((value, _)) = reads.iter().find(|(value, _)| !(producer.before)(*value)) {
        return late(*value);
    }
    // The op fits now, but was trimmed together with a user that did not fit.
    let what = format!(
        "it was trimmed from the kernel of {label} with ops that exceed its limits; expected fewer ops"
    );
    Obstacle::new(Rank::Limit, ReasonCode::EpilogueLimit, what)
}

/// The target quantizes faster in a kernel of its own than in that of this op.
fn faster_alone(label: &str) -> Obstacle {
    let what = format!("the target quantizes faster in a kernel of its own than in that of {label}");
    Obstacle::new(Rank::Limit, ReasonCode::FasterAlone, what)
}

fn explain_illegal(program: &Program, op: Op, producer: Producer<'_>, illegal: Illegal) -> Obstacle {
    let Producer { plan, root, .. } = producer;
    let module = program.module();
    let operation = &module.ops[op];
    let epilogue = &root.capability.epilogue;
    let label = module.op_label(plan.root);
    let shown = |value: Value| module.display_type(module.ty(value)).to_string();
    let kind = |what| Obstacle::new(Rank::Kind, ReasonCode::UnsupportedEpilogueOp, what);
    let operand = |what| Obstacle::new(Rank::Operand, ReasonCode::OperandShape, what);
    let alignment = |what| Obstacle::new(Rank::Alignment, ReasonCode::NAlignment, what);
    let n = module.display_dim(root.columns());
    match illegal {
        Illegal::Kind => kind(format!(
            "the epilogue of {label} does not compute {}; expected {}",
            operation.kind.mnemonic(),
            computed(epilogue)
        )),
        Illegal::ReduceKind(found) => {
            let known: Vec<_> = epilogue.reductions.iter().map(|kind| kind.name()).collect();
            kind(format!(
                "the epilogue of {label} does not compute the reduction {found}; expected {}",
                known.join(" or ")
            ))
        }
        Illegal::ReduceElement(found) => {
            kind(format!("the epilogue of {label} does not reduce {found}; expected f32"))
        }
        Illegal::ReduceAxes => kind(format!(
            "the epilogue of {label} does not reduce along these axes; expected all axes, all but the last, or only \
             the last"
        )),
        Illegal::ReduceNothing => Obstacle::new(
            Rank::Alignment,
            ReasonCode::ExtentRange,
            "the reduction is over zero rows; expected at least 1".to_owned(),
        ),
        Illegal::LinearScales(scales) => {
            kind(format!("%{} are linear scales; expected blocked scales", module.name_of(scales)))
        }
        Illegal::Format => {
            let known = epilogue.quantized.iter().filter(|rule| holds_block(root, rule.block));
            let known: Vec<_> = known.map(block_format).collect();
            let found = operation.results.iter().map(|result| module.ty(*result).element.name());
            let found: Vec<_> = found.collect();
            kind(format!(
                "the epilogue of {label} does not write {}; expected {}",
                found.join(" with scales of "),
                known.join(", ")
            ))
        }
        Illegal::FormatN(rule) => alignment(format!(
            "N is {n}; expected a multiple of {} for {}",
            rule.n_multiple,
            block_format(&rule)
        )),
        Illegal::ScaleBytes => {
            let what = scale_message("D", root.capability.max_scale_bytes);
            Obstacle::new(Rank::Alignment, ReasonCode::ExtentRange, what)
        }
        Illegal::ScaleRows => {
            let (batch, m) = (module.display_dim(&plan.batch), module.display_dim(&plan.m));
            kind(format!(
                "the scales of {batch} matrices of {m} rows are padded separately, and the kernel computes one matrix; \
                 expected M a multiple of 128"
            ))
        }
        Illegal::Grouped => kind("a kernel of groups of rows writes values only".to_owned()),
        Illegal::ResultShape => {
            let (found, expected) = (shown(operation.results[0]), module.display_type(root.d(module)));
            operand(format!("the result is {found}; expected the shape of the kernel's result, {expected}"))
        }
        Illegal::Operand(value) => {
            let (name, found) = (module.name_of(value), shown(value));
            operand(format!("%{name} is {found}; expected {}", readable(module, root)))
        }
        Illegal::OperandN(value, rule) => {
            let OutputCapability { element, n_multiple } = rule;
            let name = module.name_of(value);
            alignment(format!(
                "N is {n}; expected a multiple of {n_multiple} for %{name}, a {element} matrix"
            ))
        }
        Illegal::Element(found) => {
            let known = element_list(epilogue.elements.iter().copied());
            let what = format!("the result is {found}; expected {known}");
            Obstacle::new(Rank::Element, ReasonCode::OutputDtype, what)
        }
    }
}

/// The obstacle to writing an op's result. [`check_legal`] already covers sinks.
fn unwritable(module: &Module, op: Op, root: &Root<'_>) -> Option<Obstacle> {
    let operation = &module.ops[op];
    if is_sink(&operation.kind) {
        return None;
    }
    let element = module.ty(operation.results[0]).element;
    let Some(rule) = root.capability.output(element) else {
        let known = element_list(root.capability.outputs.iter().map(|output| output.element));
        let what = format!("the result is {element}; expected {known}");
        return Some(Obstacle::new(Rank::Element, ReasonCode::OutputDtype, what));
    };
    (Divides::of(root.columns(), rule.n_multiple) == Divides::Never).then(|| {
        let n = module.display_dim(root.columns());
        let what = format!("N is {n}; expected a multiple of {} for a {element} result", rule.n_multiple);
        Obstacle::new(Rank::Alignment, ReasonCode::NAlignment, what)
    })
}

/// The ops that the epilogue computes, listed for a message.
fn computed(epilogue: &EpilogueCapability) -> String {
    let mut names: Vec<&str> = epilogue.binary.iter().map(|kind| kind.name()).collect();
    names.extend(epilogue.unary.iter().map(|kind| kind.name()));
    names.extend(epilogue.clamp.then_some("clamp"));
    names.extend(epilogue.select.then_some(["compare", "select"]).into_iter().flatten());
    names.extend((!epilogue.quantized.is_empty()).then_some("block_quantize"));
    names.extend((!epilogue.reductions.is_empty()).then_some("reduce"));
    format!("{} or convert", names.join(", "))
}

fn block_format(rule: &QuantizedCapability) -> String {
    format!("{} with {} per {}", rule.element, rule.scale, rule.block)
}

/// The operands that an epilogue reads, listed for a message.
fn readable(module: &Module, root: &Root<'_>) -> String {
    let n = module.display_dim(root.columns());
    let d = root.d(module);
    let mut column: Vec<String> = d.shape.iter().map(|dim| module.display_dim(dim).to_string()).collect();
    let matrix = format!("[{}]", column.join(", "));
    if let Some(last) = column.last_mut() {
        *last = "1".to_owned();
    }
    let mut kinds = Vec::new();
    for rule in &root.capability.epilogue.operands {
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

/// The limit on steps or operands that the kernel would exceed with this op, worded for a message. Outputs
/// are checked separately.
fn full(
    program: &Program,
    op: Op,
    producer: Producer<'_>,
    reads: &[(Value, OperandShape)],
) -> Option<String> {
    let Producer { plan, root, .. } = producer;
    let module = program.module();
    let epilogue = &root.capability.epilogue;
    let label = module.op_label(plan.root);
    let counted =
        plan.epilogue.iter().filter(|step| !matches!(step.kind, EpilogueKind::Constant { .. })).count();
    let most = epilogue.max_steps;
    if most <= counted && !is_sink(&module.ops[op].kind) {
        return Some(format!("the epilogue of {label} already has {counted} steps; expected at most {most}"));
    }
    let mut values: Vec<(Value, OperandShape)> =
        plan.operands.iter().map(|operand| (operand.value, operand.shape)).collect();
    values.extend(reads);
    // A constant that is also used outside is read like any other operand.
    let constants = module.ops[op].operands.iter().filter(|operand| is_inlinable(program, **operand));
    let shared = constants.filter(|constant| program.facts().users(**constant).len() > 1);
    let d = &root.d(module).shape;
    values.extend(
        shared.filter_map(|constant| Some((*constant, operand_shape(&module.ty(*constant).shape, d)?))),
    );
    values.sort_unstable();
    values.dedup();
    epilogue.operands.iter().find_map(|rule| {
        let count = values.iter().filter(|(_, shape)| *shape == rule.shape).count();
        let (most, shape) = (rule.most, rule.shape);
        (most < count).then(|| {
            format!("the epilogue of {label} would read {count} {shape} operands; expected at most {most}")
        })
    })
}

/// The limit on outputs, worded for a message, if the kernel would exceed it with this op and its visible
/// results.
fn too_many_outputs(program: &Program, op: Op, producer: Producer<'_>) -> Option<String> {
    let Producer { plan, root, has, .. } = producer;
    let module = program.module();
    let most = root.capability.epilogue.max_outputs;
    let mut used = module.ops[op].operands.clone();
    used.sort_unstable();
    used.dedup();
    // An operand need not be written once the op, its last outside user, joins.
    let few = |value: Value| {
        program.facts().users(value).len() <= 3 * (1 + plan.epilogue.len() + plan.outputs.len())
    };
    let sealed = |value: Value| {
        let users = program.facts().users(value);
        !program.facts().is_output(value) && few(value) && users.iter().all(|user| *user == op || has(*user))
    };
    let written = plan.outputs.iter().filter(|output| match output.kind {
        OutputKind::Value { value } => !(used.contains(&value) && sealed(value)),
        OutputKind::Quantized { .. } | OutputKind::Reduced { .. } => true,
    });
    let tensors: usize = written
        .map(|output| if matches!(output.kind, OutputKind::Quantized { .. }) { 2 } else { 1 })
        .chain([module.ops[op].results.len()])
        .sum();
    if tensors <= most {
        return None;
    }
    let label = module.op_label(plan.root);
    let also = used.iter().filter(|value| producer.inside(program, **value)).find_map(|value| {
        Some(format!(
            "%{} is also {}, so ",
            module.name_of(*value),
            other_uses(program, *value, op, producer)?
        ))
    });
    let also = also.unwrap_or_default();
    Some(format!("{also}the kernel of {label} would write {tensors} tensors; expected at most {most}"))
}

/// The uses of a value outside the kernel other than `op`, worded for a message; `None` without any. Names only a few
/// users, because a value may have very many.
fn other_uses(program: &Program, value: Value, op: Op, producer: Producer<'_>) -> Option<String> {
    const NAMED: usize = 3;
    let module = program.module();
    let is_other = |user: Op| user != op && !(producer.has)(user);
    let users = program.facts().users(value);
    let mut named: Vec<Op> = Vec::new();
    let mut rest = users;
    while let [user, later @ ..] = rest
        && named.len() < NAMED
    {
        if is_other(*user) && named.last() != Some(user) {
            named.push(*user);
        }
        rest = later;
    }
    let in_rest =
        |user: Op| rest.partition_point(|found| *found <= user) - rest.partition_point(|found| *found < user);
    let mut counted: Vec<Op> = producer.plan.ops().chain([op]).chain(named.last().copied()).collect();
    counted.sort_unstable();
    counted.dedup();
    let more = rest.len() - counted.into_iter().map(in_rest).sum::<usize>();
    let mut uses: Vec<String> =
        named.iter().map(|user| format!("used by {}", module.op_label(*user))).collect();
    if more > 0 {
        uses.push(format!("used {more} more times"));
    }
    if program.facts().is_output(value) {
        uses.push("returned by the program".to_owned());
    }
    (!uses.is_empty()).then(|| uses.join(", "))
}
