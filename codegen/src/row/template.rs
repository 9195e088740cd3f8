//! The template variables of a row kernel.

use std::sync::LazyLock;

use fourfold_ir::numeric::{MxEdges, Nvfp4Formula};
use fourfold_ir::{ReduceKind, ScaleLayout, ScaleRounding};
use fourfold_scheduler::{RowOutputKind, RowProgram, RowShape, RowStepKind};
use minijinja::context;
use serde::Serialize;

use super::operands::{Operands, operands};
use super::outputs::{Estimate, OutputText, estimate, outputs};
use super::phases::{self, Kept, Phase, is_once};
use super::{Configuration, RowSpec, interface, statements, values};
use crate::epilogue::{
    e2m1_functions, edge_functions, even_functions, formula_functions, quantization_functions,
    scale_functions,
};
use crate::source::{Interface, KernelKind, KernelSource, Templated, emit_template, environment};

/// The template, which extends `source.cu.j2`.
const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The instruction expected in the binary. A kernel that computes nothing stores nothing.
const STORE: &str = "STG";

/// Bytes of shared memory that the system reserves per CTA.
const RESERVED: u32 = 1 << 10;

const ELEMENTS: &str = include_str!("device/elements.cuh");

/// The device functions of numbers and element types, for compilation by themselves, also on the host. They follow
/// [`quantization_functions`].
pub fn element_functions() -> &'static str {
    ELEMENTS
}

/// The device functions that quantize blocks to NVFP4 with few instructions, for compilation by themselves, also on the
/// host. They follow [`quantization_functions`], [`formula_functions`] and [`element_functions`].
pub fn nvfp4_functions() -> String {
    [e2m1_functions(), include_str!("device/nvfp4.cuh")].join("\n")
}

/// The device functions of FP6, for compilation by themselves, also on the host. They follow [`quantization_functions`]
/// and [`element_functions`].
pub fn fp6_functions() -> &'static str {
    include_str!("device/fp6.cuh")
}

/// Emits the source of a kernel. Equal specifications give equal bytes.
pub(super) fn emit(spec: &RowSpec) -> KernelSource {
    emit_template(Templated {
        template: TEMPLATE,
        kernel: spec.configuration.name(),
        kind: KernelKind::Row,
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
    has_conversion: bool,
    has_mean: bool,
    has_nvfp4: bool,
    has_fp6: bool,
    quantization_functions: String,
    scale_functions: &'static str,
    element_functions: &'static str,
    row_functions: &'static str,
    stored_functions: &'static str,
    nvfp4_functions: String,
    fp6_functions: &'static str,
    functions: Vec<String>,
    threads: u32,
    row_threads: u32,
    values: u32,
    turns: u32,
    ctas: u32,
    /// True if a CTA computes row after row, and reads the next one ahead.
    is_persistent: bool,
    /// True if shared memory keeps rows that registers do not hold, and the bytes of a thread and turn of them.
    is_stored: bool,
    stored_bytes: u32,
    /// The most CTAs that share such a row.
    clusters: u32,
    /// The most bytes of dynamic shared memory, and the most of a CTA that leaves room for others on its SM.
    shared_bytes: u32,
    full_bytes: u32,
    slots: usize,
    /// The elements that a thread handles at once if rows are not vectors.
    chunk: u32,
    /// True if it writes FP6.
    fp6_output: bool,
    k_multiple: u32,
    /// True if rows are located in their matrix, and if rows of padding are written.
    has_batches: bool,
    is_padded: bool,
    all_operands: usize,
    operands: Operands,
    operand_sizes: Vec<(usize, String)>,
    repeats: usize,
    /// Statements per row: the names of what all rows share.
    shared_names: Vec<String>,
    /// Type, name and value of what all rows share.
    shared: Vec<[String; 3]>,
    phases: Vec<Phase>,
    once: Option<Phase>,
    kept: Vec<Kept>,
    row_outputs: Vec<OutputText>,
    /// The tensors that are stored as vectors.
    vector_outputs: Vec<usize>,
    outputs_count: usize,
    /// Elements per scale in the checks of `abi.cu.j2`.
    block: u32,
    head: &'static str,
    load_parameter: &'static str,
    load_argument: &'static str,
    n_multiple: u32,
    outputs: Vec<interface::Output>,
    clears: [u8; 0],
}

/// The values that all rows share: scalar operands and the divisors of NVFP4.
fn shared(program: &RowProgram, operands: &Operands, has_conversion: bool) -> Vec<[String; 3]> {
    let mut shared = operands.shared.clone();
    for (position, output) in program.outputs.iter().enumerate() {
        let RowOutputKind::Quantized { global: Some(global), .. } = output.kind else { continue };
        if estimate(output.kind, has_conversion) == Some(Estimate::Default) {
            let value = format!("nvfp4_tensor(load_f32(p.operands[{global}], 0))");
            shared.push(["Nvfp4Tensor".to_owned(), format!("tensor{position}"), value]);
        }
    }
    shared
}

/// The device functions of the formats that the program quantizes to.
fn format_functions(program: &RowProgram) -> String {
    let has = |wanted: &dyn Fn(Option<ScaleRounding>, Nvfp4Formula) -> bool| {
        program.outputs.iter().any(|output| match output.kind {
            RowOutputKind::Quantized { scale_rounding, formula, .. } => wanted(scale_rounding, formula),
            RowOutputKind::Value => false,
        })
    };
    let has_edges = |formula: Nvfp4Formula| formula.mx != MxEdges::DEFAULT;
    let mut texts = vec![quantization_functions()];
    if has(&|rounding, formula| rounding == Some(ScaleRounding::Even) && !has_edges(formula)) {
        texts.push(even_functions());
    }
    if has(&|rounding, formula| rounding.is_some() && has_edges(formula)) {
        texts.push(edge_functions());
    }
    if has(&|rounding, formula| rounding.is_none() && formula != Nvfp4Formula::DEFAULT) {
        texts.push(formula_functions());
    }
    texts.join("\n")
}

/// The device functions of rows: `row.cuh` repeats those of 16-bit types.
fn row_functions() -> &'static str {
    static RENDERED: LazyLock<String> = LazyLock::new(|| {
        let (extremes, reductions) = (extremes(), include_str!("device/reductions.cuh"));
        let environment = environment();
        let template =
            environment.template_from_str(include_str!("device/row.cuh")).expect("the template parses");
        template.render(context! { extremes, reductions }).expect("the context has every variable")
    });
    &RENDERED
}

/// The device functions `op_max` and `op_min`.
fn extremes() -> String {
    let environment = environment();
    let template =
        environment.template_from_str(include_str!("device/extremes.cuh")).expect("the template parses");
    template.render(context! {}).expect("the template has no variables")
}

/// The device functions that combine numbers: `Sum`, `Max`, `Min` and `Amax`. They follow [`quantization_functions`].
pub(crate) fn reduction_functions() -> String {
    [&extremes(), include_str!("device/reductions.cuh")].join("\n")
}

/// The tensors that are stored as vectors, by position.
fn vector_outputs(program: &RowProgram) -> Vec<usize> {
    let mut at = 0;
    let mut vectors = Vec::new();
    for (position, output) in program.outputs.iter().enumerate() {
        let is_value = output.kind == RowOutputKind::Value;
        let is_matrix = !is_value || program.shape(output.of) == RowShape::Matrix;
        if is_matrix && !is_once(program, position) {
            vectors.push(at);
        }
        at += if is_value { 1 } else { 2 };
    }
    vectors
}

/// Places the operands that shared memory keeps. Returns the bytes of a thread and turn.
fn place_stored(program: &RowProgram, operands: &mut Operands, values: u32) -> u32 {
    let stored = phases::stored(program);
    let mut before = 0;
    for operand in operands.matrices.iter_mut().filter(|operand| stored.contains(&operand.index)) {
        operand.is_stored = true;
        operand.stored_before = before;
        before += values * operand.bits as u32 / 8;
    }
    before
}

/// The most bytes of dynamic shared memory of a CTA, and the most of one that leaves room for others on its SM: three
/// CTAs, or fewer if registers hold fewer.
fn shared_limits(spec: &RowSpec, slots: usize) -> [u32; 2] {
    let Configuration { row_threads, ctas, .. } = spec.configuration;
    // The parts of warps, as other rows exchange them: `shared` in the kernel.
    let fixed = (2 * slots as u32 * (row_threads / 32) * 4).next_multiple_of(16);
    let most = spec.target.shared_memory - fixed;
    // An SM has the memory of its largest CTA, and each CTA takes a part of its own.
    let each = (spec.target.shared_memory + RESERVED) / ctas.min(3);
    [most, most.min(each.saturating_sub(RESERVED + fixed)) / 16 * 16]
}

fn context(spec: &RowSpec) -> Context {
    let Configuration { threads, row_threads, values, turns, ctas, is_persistent, is_stored } =
        spec.configuration;
    let program = &spec.program;
    let (phases, once) = (phases::phases(program), phases::once(program));
    let mut operands = operands(program);
    let stored_bytes = place_stored(program, &mut operands, values);
    let slots = phases.iter().map(|phase| phase.reductions.len()).sum();
    let [shared_bytes, full_bytes] = if is_stored { shared_limits(spec, slots) } else { [0, 0] };
    let blocked = |position: usize| {
        let kind = program.outputs[position].kind;
        !is_once(program, position)
            && matches!(kind, RowOutputKind::Quantized { layout: ScaleLayout::Blocked, .. })
    };
    let is_padded = (0..program.outputs.len()).any(blocked);
    let reads_blocked = program
        .operands
        .iter()
        .any(|operand| matches!(operand.shape, RowShape::Scales { layout: ScaleLayout::Blocked, .. }));
    let quantized = program.outputs.iter().filter_map(|output| match output.kind {
        RowOutputKind::Quantized { format, .. } => Some(format.block),
        RowOutputKind::Value => None,
    });
    let fp6_output = values::writes_fp6(program);
    let outputs = interface::output_sizes(program);
    let has_conversion = crate::hopper::has_e2m1_conversion(spec.target);
    let shared = shared(program, &operands, has_conversion);
    let all_phases: Vec<&Phase> = phases.iter().chain(&once).collect();
    Context {
        formula: [spec.signature()],
        signature: spec.signature(),
        interface: spec.interface(),
        has_conversion,
        has_mean: program.steps.iter().any(|step| step.kind == RowStepKind::Reduce(ReduceKind::Mean)),
        has_nvfp4: program.outputs.iter().any(|output| estimate(output.kind, has_conversion).is_some()),
        has_fp6: values::has_fp6(program),
        quantization_functions: format_functions(program),
        scale_functions: scale_functions(),
        element_functions: element_functions(),
        row_functions: row_functions(),
        stored_functions: include_str!("device/stored.cuh"),
        nvfp4_functions: nvfp4_functions(),
        fp6_functions: fp6_functions(),
        functions: vec![super::row_functions(&statements::unary_kinds(program))],
        threads,
        row_threads,
        values,
        turns,
        ctas,
        is_persistent,
        is_stored,
        stored_bytes,
        clusters: spec.target.cluster_ctas,
        shared_bytes,
        full_bytes,
        slots,
        chunk: quantized.max().unwrap_or(if fp6_output { 4 } else { 2 }),
        fp6_output,
        k_multiple: interface::k_multiple(program),
        has_batches: is_padded || reads_blocked,
        is_padded,
        all_operands: program.operands.len().max(1),
        operand_sizes: interface::operand_sizes(program),
        repeats: interface::repeats(program),
        shared_names: shared
            .iter()
            .map(|[ty, name, _]| format!("{ty} const {name} = shared_values.{name};"))
            .collect(),
        shared,
        kept: phases::kept(program),
        row_outputs: self::outputs(program, &all_phases, has_conversion),
        vector_outputs: vector_outputs(program),
        outputs_count: outputs.len(),
        once,
        phases,
        operands,
        block: interface::least_block(program),
        head: "",
        load_parameter: "",
        load_argument: "",
        n_multiple: 1,
        outputs,
        clears: [],
    }
}
