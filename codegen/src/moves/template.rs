//! The template variables of a kernel that copies.

use fourfold_ir::ScaleLayout;
use fourfold_scheduler::{MAX_MOVE_AXES, MAX_PAD_AXES, MoveProgram};
use minijinja::context;
use serde::Serialize;

use super::{MoveSpec, THREADS, TURNS};
use crate::source::{Interface, KernelKind, KernelSource, Templated, emit_template, environment};

/// The template, which extends `source.cu.j2`.
const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The instruction expected in the binary. A kernel that copies nothing stores nothing.
const STORE: &str = "STG";

/// The comment above a kernel that copies.
const COPIES: &str = "\
// Copies bit for bit. A packet is the widest power of two of bytes, up to 16, that the addresses and extents of a call
// allow. Offsets have 64 bits.";

/// The comment above a kernel that lays out scales of groups.
const GROUP_SCALES: &str = "\
// Copies bit for bit. The result has tiles of 128 rows x 4 scales, and a warp writes one at a time. Group e begins at
// row x1[e-1] of x0 and at row x2[e-1] of y0. Any ends are safe: rows that are not in x0 are zero.";

/// The comment above a kernel that computes ends.
const PADDED_ENDS: &str = "\
// A warp computes 32 ends from all ends before them. An end of x0 below the one before it counts as that, and no result
// exceeds 2^31 - 1.";

/// Emits the source of a kernel. Equal specifications give equal bytes.
pub(super) fn emit(spec: &MoveSpec) -> KernelSource {
    emit_template(Templated {
        template: TEMPLATE,
        kernel: spec.name(),
        kind: KernelKind::Move,
        target: spec.target,
        opcode: STORE,
        context: context(spec),
    })
}

/// The variables of the template and of the templates that it extends.
#[derive(Serialize)]
struct Context {
    about: &'static str,
    formula: [&'static str; 1],
    signature: String,
    interface: Interface,
    threads: u32,
    turns: u32,
    /// CTAs that an SM holds at least.
    ctas: u32,
    tile: [u32; 3],
    packets: &'static str,
    device: String,
    host: String,
    /// The size of each operand in bytes, as an expression.
    operand_bytes: Vec<String>,
    has_fault: bool,
    /// The condition that nothing is launched.
    empty: String,
    /// The function that checks the numbers of a call.
    own_extents: String,
    /// Tensors without elements need no address.
    takes_null: bool,
    head: &'static str,
    load_parameter: &'static str,
    load_argument: &'static str,
    shared_bytes: u32,
    outputs: [Output; 1],
    clears: [u8; 0],
}

/// The tensor that the kernel writes.
#[derive(Serialize)]
struct Output {
    bytes: String,
    /// 0, because no scale has a place in the interface.
    scale_block: u32,
}

/// A product of numbers of a call, as `prefix0`, `prefix1` and so on, of a number of them.
fn product(prefix: char, count: usize, unit: u32) -> String {
    let numbers: Vec<String> = (0..count).map(|at| format!("problem.{prefix}{at}")).collect();
    format!("product_of({{{}, {unit}}})", numbers.join(", "))
}

/// A copy's texts: its formula, code for device and host, sizes in bytes, and conditions.
struct Parts {
    about: &'static str,
    formula: &'static str,
    device: &'static str,
    host: &'static str,
    operand_bytes: Vec<String>,
    result_bytes: String,
    /// The condition that nothing is launched.
    empty: String,
    /// The condition that the numbers of a call agree, so that the kernel stays within its tensors.
    agree: String,
    axes: usize,
    operands: u32,
    to_blocked: bool,
}

fn parts(spec: &MoveSpec) -> Parts {
    let unit = spec.unit();
    let common = Parts {
        about: COPIES,
        formula: "",
        device: "",
        host: "",
        operand_bytes: Vec::new(),
        result_bytes: String::new(),
        empty: "bytes_of_result(problem) == 0".to_owned(),
        agree: "true".to_owned(),
        axes: 0,
        operands: 0,
        to_blocked: false,
    };
    match spec.program {
        MoveProgram::Strided { .. } => Parts {
            formula: "y0[i0, .., i5] = x0[o0 + o1 + o2 + i0 * s0 + .. + i5 * s5]",
            device: include_str!("device/strided.cuh"),
            host: include_str!("device/strided_host.cuh"),
            operand_bytes: vec![format!("product_of({{problem.e, {unit}}})")],
            result_bytes: product('d', MAX_MOVE_AXES, unit),
            agree: strided_agrees(),
            axes: MAX_MOVE_AXES,
            ..common
        },
        MoveProgram::Pad { .. } => Parts {
            formula: "y0[i0, .., i4] = x0[i0 - p0, .., i4 - p4], or f outside",
            device: include_str!("device/pad.cuh"),
            host: include_str!("device/pad_host.cuh"),
            operand_bytes: vec![product('e', MAX_PAD_AXES, unit)],
            result_bytes: product('d', MAX_PAD_AXES, unit),
            agree: "problem.f <= UINT_MAX".to_owned(),
            axes: MAX_PAD_AXES,
            ..common
        },
        MoveProgram::Concat { operands } => Parts {
            formula: "y0[o, :] = x0[o, :] ++ x1[o, :] ++ ..",
            device: include_str!("device/concat.cuh"),
            host: include_str!("device/concat_host.cuh"),
            operand_bytes: (0..operands)
                .map(|at| format!("product_of({{problem.o, problem.r{at}}})"))
                .collect(),
            result_bytes: "product_of({problem.o, problem.r})".to_owned(),
            agree: concat_agrees(operands),
            operands,
            ..common
        },
        MoveProgram::Gather => Parts {
            formula: "y0[o, c, i] = x0[o, x1[c], i]",
            device: include_str!("device/gather.cuh"),
            host: include_str!("device/gather_host.cuh"),
            operand_bytes: vec![
                "product_of({problem.o, problem.a, problem.i})".to_owned(),
                "product_of({problem.c, 4})".to_owned(),
            ],
            result_bytes: "product_of({problem.o, problem.c, problem.i})".to_owned(),
            // Indices are checked even if the result has no elements.
            empty: "problem.c == 0".to_owned(),
            ..common
        },
        MoveProgram::Swizzle { to } => {
            let to_blocked = to == ScaleLayout::Blocked;
            let linear = "product_of({problem.l, problem.m, problem.b})".to_owned();
            let blocked =
                "product_of({problem.l, (problem.m + 127) / 128, (problem.b + 3) / 4, 512})".to_owned();
            let [operand, result] = if to_blocked { [linear, blocked] } else { [blocked, linear] };
            Parts {
                formula: if to_blocked { "y0 = blocked(x0)" } else { "y0 = linear(x0)" },
                device: include_str!("device/swizzle.cuh"),
                host: include_str!("device/swizzle_host.cuh"),
                operand_bytes: vec![operand],
                result_bytes: result,
                to_blocked,
                ..common
            }
        }
        MoveProgram::PaddedEnds => Parts {
            about: PADDED_ENDS,
            formula: "y0[e] = y0[e-1] + (x0[e] - x0[e-1], rounded up to a multiple of r)",
            device: include_str!("device/padded_ends.cuh"),
            host: include_str!("device/padded_ends_host.cuh"),
            operand_bytes: vec!["product_of({problem.e, 4})".to_owned()],
            result_bytes: "product_of({problem.e, 4})".to_owned(),
            agree: "problem.r > 0 && problem.r <= UINT_MAX".to_owned(),
            ..common
        },
        MoveProgram::GroupScales => Parts {
            about: GROUP_SCALES,
            formula: "y0 = blocked(x0), moved by groups: row x2[e-1] + i of y0 is row x1[e-1] + i of x0",
            device: include_str!("device/group_scales.cuh"),
            host: include_str!("device/group_scales_host.cuh"),
            operand_bytes: [
                "product_of({problem.m, problem.b})",
                "product_of({problem.e, 4})",
                "product_of({problem.e, 4})",
            ]
            .map(str::to_owned)
            .to_vec(),
            result_bytes: "product_of({(problem.p + 127) / 128, (problem.b + 3) / 4, 512})".to_owned(),
            ..common
        },
    }
}

/// The condition that every read of a strided move is inside its operand.
fn strided_agrees() -> String {
    let steps = (0..MAX_MOVE_AXES)
        .map(|at| format!("static_cast<__int128>(problem.d{at} - (problem.d{at} > 0)) * problem.s{at}"));
    let offsets = ["o0", "o1", "o2"].map(|name| format!("static_cast<__int128>(problem.{name})"));
    let last = steps.chain(offsets).collect::<Vec<_>>().join(" +\n          ");
    format!("bytes_of_result(problem) == 0 ||\n      {last} < problem.e")
}

/// The condition that the rows of the operands are the row of the result.
fn concat_agrees(operands: u32) -> String {
    let rows: Vec<String> = (0..operands).map(|at| format!("static_cast<__int128>(problem.r{at})")).collect();
    format!("{} == problem.r", rows.join(" + "))
}

/// The function that checks the numbers of a call.
fn own_extents(spec: &MoveSpec, parts: &Parts) -> String {
    let numbers: Vec<String> =
        spec.program.extent_names().iter().map(|name| format!("problem.{}", name.to_lowercase())).collect();
    let sizes: Vec<&str> = parts.operand_bytes.iter().map(String::as_str).collect();
    format!(
        "// Bytes of the result; -1 beyond 2^62 - 1.
inline int64_t bytes_of_result(Problem const &problem) {{
  return {result};
}}

inline int32_t check_extents(Problem const &problem, char *message, size_t size) {{
  for (int64_t number : {{{numbers}}}) {{
    if (number < 0 || number > LLONG_MAX / 1024) {{
      return fail(kExtent, \"an extent is negative or exceeds 2^53-1\", message, size);
    }}
  }}
  for (int64_t bytes : {{bytes_of_result(problem), {sizes}}}) {{
    if (bytes < 0) {{
      return fail(kExtent, \"a tensor has 2^62 bytes or more\", message, size);
    }}
  }}
  if (!({agree})) {{
    return fail(kExtent, \"the extents contradict each other\", message, size);
  }}
  return kOk;
}}",
        result = parts.result_bytes,
        numbers = numbers.join(", "),
        sizes = sizes.join(", "),
        agree = parts.agree,
    )
}

fn render(text: &str, parts: &Parts, unit: u32) -> String {
    let environment = environment();
    let template = environment.template_from_str(text).expect("the template parses");
    let Parts { axes, operands, to_blocked, .. } = parts;
    template.render(context! { unit, axes, operands, to_blocked }).expect("the context has every variable")
}

fn context(spec: &MoveSpec) -> Context {
    let parts = parts(spec);
    Context {
        about: parts.about,
        formula: [parts.formula],
        signature: spec.signature(),
        interface: spec.interface(),
        threads: THREADS,
        turns: TURNS,
        ctas: 4,
        tile: spec.tile(),
        packets: concat!(include_str!("device/packets.cuh"), include_str!("device/copies.cuh")),
        device: render(parts.device, &parts, spec.unit()),
        host: render(parts.host, &parts, spec.unit()),
        has_fault: spec.program == MoveProgram::Gather,
        own_extents: own_extents(spec, &parts),
        takes_null: true,
        head: "",
        load_parameter: "",
        load_argument: "",
        shared_bytes: 0,
        outputs: [Output {
            bytes: "static_cast<uint64_t>(bytes_of_result(problem))".to_owned(),
            scale_block: 0,
        }],
        clears: [],
        operand_bytes: parts.operand_bytes,
        empty: parts.empty,
    }
}
