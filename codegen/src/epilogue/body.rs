//! The epilogue as one elementwise function of the accumulator and the operands.

use fourfold_ir::{BinaryKind, ElementType, Predicate, UnaryKind};
use fourfold_scheduler::EpilogueRef;

use super::{Epilogue, OutputKind, Step, StepKind, functions};
use crate::cuda::element_type;

/// The statements that compute the results from the accumulator `v`: `result[i]` for a single result, or
/// `result[0][i]` and so on. Each step is a variable, so shared values are computed once.
pub(crate) fn statements(epilogue: &Epilogue, one_result: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if epilogue.pair {
        lines.push("float w = odd[i];".to_owned());
    }
    if epilogue.alpha {
        lines.push("v = __fmul_rn(alpha[i], v);".to_owned());
        lines.extend(epilogue.pair.then(|| "w = __fmul_rn(alpha[i], w);".to_owned()));
    }
    if epilogue.c.is_some() {
        let beta = if epilogue.beta { "beta[i]" } else { "1.0f" };
        lines.push(format!("v = __fmaf_rn({beta}, c[i], v);"));
    }
    for value in [EpilogueRef::Accumulator, EpilogueRef::Odd] {
        if sum_is_rounded(epilogue, value) {
            let name = name(value);
            lines.push(format!("{name} = round_{}({name});", epilogue.accumulator));
        }
    }
    for (position, step) in epilogue.steps.iter().enumerate() {
        let value = expression(step);
        let ty = if step.element == ElementType::I1 { "bool" } else { "float" };
        if is_rounded(epilogue, position) {
            lines.push(format!("{ty} const s{position} = round_{}({value});", step.element));
        } else {
            lines.push(format!("{ty} const s{position} = {value};"));
        }
    }
    if one_result {
        lines.push(format!("result[i] = {};", name(epilogue.last())));
    } else {
        let results = results(epilogue).into_iter().enumerate();
        lines.extend(results.map(|(index, value)| format!("result[{index}][i] = {};", name(value))));
    }
    lines
}

/// The values that outputs are made from, without duplicates, in order of first use.
pub(crate) fn results(epilogue: &Epilogue) -> Vec<EpilogueRef> {
    let mut results = Vec::new();
    for output in &epilogue.outputs {
        if !results.contains(&output.of) {
            results.push(output.of);
        }
    }
    results
}

fn name(value: EpilogueRef) -> String {
    match value {
        EpilogueRef::Accumulator => "v".to_owned(),
        EpilogueRef::Odd => "w".to_owned(),
        EpilogueRef::Step(step) => format!("s{step}"),
        EpilogueRef::Operand(operand) => format!("x{operand}[i]"),
    }
}

/// The device functions that the statements call, without duplicates: roundings and functions.
pub(crate) fn functions(epilogue: &Epilogue) -> Vec<String> {
    let steps = epilogue.steps.iter().enumerate();
    let rounded = steps.filter(|(position, _)| is_rounded(epilogue, *position));
    let mut elements: Vec<ElementType> = rounded.map(|(_, step)| step.element).collect();
    let sums = [EpilogueRef::Accumulator, EpilogueRef::Odd];
    let is_rounded_sum = sums.into_iter().any(|sum| sum_is_rounded(epilogue, sum));
    elements.extend(is_rounded_sum.then_some(epilogue.accumulator));
    elements.sort_unstable();
    elements.dedup();
    let mut functions: Vec<String> = elements.into_iter().map(rounding_source).collect();
    let has = |kinds: &[BinaryKind], clamp: bool| {
        epilogue.steps.iter().any(|step| match step.kind {
            StepKind::Binary(kind) => kinds.contains(&kind),
            StepKind::Clamp { .. } => clamp,
            _ => false,
        })
    };
    functions.extend(has(&[BinaryKind::Max], true).then(|| extremum_source("max")));
    functions.extend(has(&[BinaryKind::Min], true).then(|| extremum_source("min")));
    let mut kinds: Vec<UnaryKind> = epilogue
        .steps
        .iter()
        .filter_map(|step| match step.kind {
            StepKind::Unary(kind) => Some(kind),
            _ => None,
        })
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    functions.extend(functions::sources(&kinds));
    functions
}

fn expression(step: &Step) -> String {
    let operand = |index: usize| name(step.operands.get(index).copied().unwrap_or(EpilogueRef::Accumulator));
    match step.kind {
        StepKind::Constant(bits) => literal(bits),
        StepKind::Unary(kind) => format!("fn_{kind}({})", operand(0)),
        StepKind::Binary(kind) => {
            // A plan has only functions of the capabilities.
            let function = function(kind).unwrap_or("unsupported");
            format!("{function}({}, {})", operand(0), operand(1))
        }
        StepKind::Clamp { lower, upper } => {
            format!("op_min(op_max({}, {}), {})", operand(0), literal(lower), literal(upper))
        }
        StepKind::Compare(predicate) => format!("{} {} {}", operand(0), comparison(predicate), operand(1)),
        StepKind::Select => format!("{} ? {} : {}", operand(0), operand(1), operand(2)),
        StepKind::Convert => operand(0),
    }
}

/// Returns whether a sum, the accumulator or that of an odd column, is rounded before the steps.
fn sum_is_rounded(epilogue: &Epilogue, sum: EpilogueRef) -> bool {
    let exists = sum == EpilogueRef::Accumulator || epilogue.pair;
    exists && epilogue.accumulator != ElementType::F32 && !is_only_written(epilogue, sum)
}

/// Returns whether a step is rounded where it is computed: it has more digits than its element type, and is
/// used other than by writing it.
fn is_rounded(epilogue: &Epilogue, position: usize) -> bool {
    has_more_digits(&epilogue.steps[position]) && !is_only_written(epilogue, EpilogueRef::Step(position))
}

/// Returns whether a value is only written. It is then rounded by the store.
fn is_only_written(epilogue: &Epilogue, value: EpilogueRef) -> bool {
    let is_used = epilogue.steps.iter().any(|step| step.operands.contains(&value));
    let mut outputs = epilogue.outputs.iter().filter(|output| output.of == value);
    !is_used && outputs.all(|output| output.kind == OutputKind::Value)
}

/// Returns whether a step can have more digits than its element type. A step that selects an operand or flips
/// a sign cannot.
fn has_more_digits(step: &Step) -> bool {
    if matches!(step.element, ElementType::F32 | ElementType::I1) {
        return false;
    }
    match step.kind {
        StepKind::Unary(kind) => !matches!(kind, UnaryKind::Neg | UnaryKind::Abs | UnaryKind::Relu),
        StepKind::Binary(kind) => !matches!(kind, BinaryKind::Max | BinaryKind::Min),
        StepKind::Convert => true,
        StepKind::Constant(_) | StepKind::Clamp { .. } | StepKind::Compare(_) | StepKind::Select => false,
    }
}

/// The device function of a kind; `None` for one that is not in [`crate::BINARY_FUNCTIONS`]. The intrinsics round once, and the compiler
/// does not fuse them.
pub(crate) fn function(kind: BinaryKind) -> Option<&'static str> {
    Some(match kind {
        BinaryKind::Add => "__fadd_rn",
        BinaryKind::Sub => "__fsub_rn",
        BinaryKind::Mul => "__fmul_rn",
        BinaryKind::Div => "__fdiv_rn",
        BinaryKind::Max => "op_max",
        BinaryKind::Min => "op_min",
        BinaryKind::Pow => return None,
    })
}

/// The C++ comparison operator. IEEE semantics, as in programs: with NaN only `!=` holds.
pub(crate) fn comparison(predicate: Predicate) -> &'static str {
    match predicate {
        Predicate::Eq => "==",
        Predicate::Ne => "!=",
        Predicate::Lt => "<",
        Predicate::Le => "<=",
        Predicate::Gt => ">",
        Predicate::Ge => ">=",
    }
}

/// The exact literal of any f32, including infinities and NaN.
pub(crate) fn literal(bits: u32) -> String {
    format!("__uint_as_float(0x{bits:08x}u)")
}

fn rounding_source(element: ElementType) -> String {
    let ty = element_type(element);
    format!(
        "__device__ __forceinline__ float round_{element}(float x) {{\n  return static_cast<float>({ty}(x));\n}}\n"
    )
}

fn extremum_source(name: &str) -> String {
    format!(
        "\
// NaN propagates, and -0 is below +0.
__device__ __forceinline__ float op_{name}(float a, float b) {{
  float result;
  asm(\"{name}.NaN.f32 %0, %1, %2;\" : \"=f\"(result) : \"f\"(a), \"f\"(b));
  return result;
}}
"
    )
}
