//! The template variables of a column kernel.

use fourfold_ir::{ElementType, ReduceKind};
use minijinja::context;
use serde::Serialize;

use super::{CTAS, ColumnSpec, THREADS};
use crate::epilogue::quantization_functions;
use crate::row::{element_functions, reduction_functions};
use crate::source::{Interface, KernelKind, KernelSource, Templated, emit_template, environment};

/// The template, which extends `source.cu.j2`.
const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The instruction expected in the binary. A kernel that computes nothing stores nothing.
const STORE: &str = "STG";

/// The function that checks the numbers of a call.
const OWN_EXTENTS: &str = "inline int32_t check_extents(Problem const &problem, char *message, size_t size) {
  for (int64_t number : {problem.o, problem.a, problem.b, problem.c, problem.i}) {
    if (number < 0 || number > LLONG_MAX / 1024) {
      return fail(kExtent, \"an extent is negative or exceeds 2^53-1\", message, size);
    }
  }
  // An extent of 0 must not hide products that are too large.
  auto const least = [](int64_t number) { return number > 0 ? number : 1; };
  if (product_of({least(problem.o), least(problem.a), least(problem.b), least(problem.c), least(problem.i), 4}) < 0) {
    return fail(kExtent, \"a tensor has 2^62 bytes or more\", message, size);
  }
  return kOk;
}";

/// Emits the source of a kernel. Equal specifications give equal bytes.
pub(super) fn emit(spec: &ColumnSpec) -> KernelSource {
    emit_template(Templated {
        template: TEMPLATE,
        kernel: spec.name(),
        kind: KernelKind::Column,
        target: spec.target,
        opcode: STORE,
        context: context(spec),
    })
}

/// The variables of the template and of the templates that it extends.
#[derive(Serialize)]
struct Context {
    formula: [String; 1],
    signature: String,
    interface: Interface,
    tile: [u32; 3],
    quantization_functions: &'static str,
    element_functions: &'static str,
    packets: &'static str,
    reduction_functions: String,
    device: String,
    host: String,
    /// The condition that nothing is launched.
    empty: &'static str,
    own_extents: &'static str,
    /// An operand without elements needs no address.
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

fn render(text: &str, spec: &ColumnSpec) -> String {
    let element = match spec.program.element {
        ElementType::BF16 => "Bf16",
        ElementType::F16 => "F16",
        _ => "F32",
    };
    let reduction = match spec.program.kind {
        ReduceKind::Sum | ReduceKind::Mean => "Sum",
        ReduceKind::Max => "Max",
        ReduceKind::Min => "Min",
        ReduceKind::Amax => "Amax",
    };
    let environment = environment();
    let template = environment.template_from_str(text).expect("the template parses");
    let variables = context! {
        element,
        reduction,
        is_mean => spec.program.kind == ReduceKind::Mean,
        threads => THREADS,
        ctas => CTAS,
        bytes => spec.bytes(),
    };
    template.render(variables).expect("the context has every variable")
}

fn context(spec: &ColumnSpec) -> Context {
    Context {
        formula: [format!("y0[o, b, i] = {} over a and c of x0[o, a, b, c, i]", spec.program.kind)],
        signature: spec.signature(),
        interface: spec.interface(),
        tile: spec.tile(),
        quantization_functions: quantization_functions(),
        element_functions: element_functions(),
        packets: include_str!("../moves/device/packets.cuh"),
        reduction_functions: reduction_functions(),
        device: render(include_str!("device/column.cuh"), spec),
        host: render(include_str!("device/column_host.cuh"), spec),
        empty: "problem.o == 0 || problem.b == 0 || problem.i == 0",
        own_extents: OWN_EXTENTS,
        takes_null: true,
        head: "",
        load_parameter: "",
        load_argument: "",
        shared_bytes: 0,
        outputs: [Output { bytes: format!("o * b * i * {}", spec.bytes()), scale_block: 0 }],
        clears: [],
    }
}
