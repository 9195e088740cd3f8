//! The template variables of a kernel that copies.

use fourfold_ir::{ElementType, ScaleLayout};
use fourfold_scheduler::{MAX_MOVE_AXES, MAX_PAD_AXES, MoveProgram};
use minijinja::context;
use serde::Serialize;

use super::{COLUMNS, MoveSpec, THREADS, TURNS, bytes_of, float};
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
// A warp computes 32 ends from all ends before them. An end of x0 below the one before it is replaced by that one,
// and no result exceeds 2^31 - 1.";

/// The comment above a kernel that sorts ids.
const GROUP_ROWS: &str = "\
// A CTA has one group. It counts the ids of groups before its own, and then writes its positions in ascending order. An
// id of x0 outside of the groups is clamped to them.";

/// The comment above a kernel that adds rows.
const SCATTER_ADD: &str = "\
// A CTA has a tile of one row of y0. It adds the rows of x0 whose index is that row, in ascending order, in f32, and
// rounds once.
// So the order of sums does not depend on other CTAs. A row of x0 whose index is outside of y0 is left out.";

/// The comment above a kernel that selects elements.
const TOP_K: &str = "\
// A warp has one row, and finds the greatest remaining element k times. NaN is greater than any number, -0 equals 0, and
// of equal elements the first comes first. Values are copied bit for bit.";

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
    outputs: Vec<Output>,
    clears: [u8; 0],
}

/// A tensor that the kernel writes.
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
    /// The size of each result in bytes, as an expression.
    result_bytes: Vec<String>,
    /// The condition that nothing is launched.
    empty: String,
    /// The condition that the numbers of a call agree, so that the kernel stays within its tensors.
    agree: String,
    axes: usize,
    operands: u32,
    to_blocked: bool,
    /// The element types that are read and written; empty for copies.
    types: [&'static str; 2],
}

fn parts(spec: &MoveSpec) -> Parts {
    let unit = spec.unit();
    let common = Parts {
        about: COPIES,
        formula: "",
        device: "",
        host: "",
        operand_bytes: Vec::new(),
        result_bytes: Vec::new(),
        empty: "bytes_of_result(problem) == 0".to_owned(),
        agree: "true".to_owned(),
        axes: 0,
        operands: 0,
        to_blocked: false,
        types: [""; 2],
    };
    match spec.program {
        MoveProgram::Strided { .. } => Parts {
            formula: "y0[i0, .., i5] = x0[o0 + o1 + o2 + i0 * s0 + .. + i5 * s5]",
            device: include_str!("device/strided.cuh"),
            host: include_str!("device/strided_host.cuh"),
            operand_bytes: vec![format!("product_of({{problem.e, {unit}}})")],
            result_bytes: vec![product('d', MAX_MOVE_AXES, unit)],
            agree: strided_agrees(),
            axes: MAX_MOVE_AXES,
            ..common
        },
        MoveProgram::Pad { .. } => Parts {
            formula: "y0[i0, .., i4] = x0[i0 - p0, .., i4 - p4], or f outside",
            device: include_str!("device/pad.cuh"),
            host: include_str!("device/pad_host.cuh"),
            operand_bytes: vec![product('e', MAX_PAD_AXES, unit)],
            result_bytes: vec![product('d', MAX_PAD_AXES, unit)],
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
            result_bytes: vec!["product_of({problem.o, problem.r})".to_owned()],
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
            result_bytes: vec!["product_of({problem.o, problem.c, problem.i})".to_owned()],
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
                result_bytes: vec![result],
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
            result_bytes: vec!["product_of({problem.e, 4})".to_owned()],
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
            result_bytes: vec!["product_of({(problem.p + 127) / 128, (problem.b + 3) / 4, 512})".to_owned()],
            ..common
        },
        MoveProgram::GroupRows | MoveProgram::ScatterAdd { .. } | MoveProgram::TopK { .. } => {
            routing_parts(spec.program, common)
        }
    }
}

/// The texts of a kernel that routes rows. Positions and indices are i32.
fn routing_parts(program: MoveProgram, common: Parts) -> Parts {
    let positions = || "product_of({problem.m, 4})".to_owned();
    let elements =
        |numbers: &str, element: ElementType| format!("product_of({{{numbers}, {}}})", bytes_of(element));
    match program {
        MoveProgram::ScatterAdd { from, to } => Parts {
            about: SCATTER_ADD,
            formula: "y0[n, c] = the sum of x0[m, c] for x1[m] = n",
            device: concat!(
                include_str!("device/masks.cuh"),
                include_str!("device/floats.cuh"),
                include_str!("device/scatter_add.cuh")
            ),
            host: include_str!("device/scatter_add_host.cuh"),
            operand_bytes: vec![elements("problem.m, problem.c", from), positions()],
            result_bytes: vec![elements("problem.n, problem.c", to)],
            empty: "problem.m == 0 || bytes_of_result(problem) == 0".to_owned(),
            agree: "problem.m <= INT_MAX".to_owned(),
            types: [float(from), float(to)],
            ..common
        },
        MoveProgram::TopK { element } => Parts {
            about: TOP_K,
            formula: "y0[m, :], y1[m, :] = the k greatest elements of x0[m, :], and their indices",
            device: include_str!("device/top_k.cuh"),
            host: include_str!("device/top_k_host.cuh"),
            operand_bytes: vec![elements("problem.m, problem.c", element)],
            result_bytes: vec![
                elements("problem.m, problem.k", element),
                elements("problem.m, problem.k", ElementType::I32),
            ],
            agree: "problem.k <= problem.c && problem.c <= INT_MAX".to_owned(),
            types: [float(element); 2],
            ..common
        },
        _ => Parts {
            about: GROUP_ROWS,
            formula: "y0 = the positions of x0, sorted by id; y1 = y0 / c; y2[e] = the number of ids <= e",
            device: concat!(include_str!("device/masks.cuh"), include_str!("device/group_rows.cuh")),
            host: include_str!("device/group_rows_host.cuh"),
            operand_bytes: vec![positions()],
            result_bytes: vec![positions(), positions(), "product_of({problem.e, 4})".to_owned()],
            agree: "problem.m <= INT_MAX && problem.e > 0".to_owned(),
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
    let others = parts.operand_bytes.iter().chain(&parts.result_bytes[1..]);
    let sizes: Vec<&str> = others.map(String::as_str).collect();
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
        result = parts.result_bytes[0],
        numbers = numbers.join(", "),
        sizes = sizes.join(", "),
        agree = parts.agree,
    )
}

fn render(text: &str, parts: &Parts, unit: u32) -> String {
    let environment = environment();
    let template = environment.template_from_str(text).expect("the template parses");
    let Parts { axes, operands, to_blocked, .. } = parts;
    let [from, to] = parts.types;
    let context = context! { unit, axes, operands, to_blocked, from, to, columns => COLUMNS };
    template.render(context).expect("the context has every variable")
}

fn outputs(parts: &Parts) -> Vec<Output> {
    let first = "bytes_of_result(problem)";
    let sizes = std::iter::once(first).chain(parts.result_bytes[1..].iter().map(String::as_str));
    let output = |bytes: &str| Output { bytes: format!("static_cast<uint64_t>({bytes})"), scale_block: 0 };
    sizes.map(output).collect()
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
        outputs: outputs(&parts),
        clears: [],
        operand_bytes: parts.operand_bytes,
        empty: parts.empty,
    }
}
