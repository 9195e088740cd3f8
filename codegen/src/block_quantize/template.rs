//! The template variables of a block quantization kernel.

use fourfold_ir::numeric::{MxEdges, Nvfp4Formula};
use fourfold_ir::{ElementType, ScaleLayout, ScaleRounding};
use serde::Serialize;

use super::{BlockQuantizeSpec, Configuration, Padding};
use crate::epilogue::{
    e2m1_functions, edge_functions, even_functions, formula_functions, outputs::blocks,
    quantization_functions, scale_functions,
};
use crate::source::{Interface, KernelKind, KernelSource, Templated, emit_template};

/// The template, which extends `source.cu.j2`.
const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The SASS name of the instruction that converts to e2m1, on targets that have one.
const CONVERSION: &str = "F2FP.SATFINITE.E2M1";

/// The instruction expected in a binary without that conversion. A kernel that computes nothing stores
/// nothing.
pub(crate) const STORE: &str = "STG";

/// Returns whether a thread estimates its eight codes of NVFP4, because no instruction converts to e2m1.
fn is_estimated(spec: &BlockQuantizeSpec) -> bool {
    let Configuration { format, values, .. } = spec.configuration;
    let is_nvfp4 = format.element() == ElementType::F4E2M1FN && format.scale_rounding().is_none();
    is_nvfp4 && values == 8 && !crate::hopper::has_e2m1_conversion(spec.target)
}

/// Emits the source of a kernel. Equal specifications give equal bytes.
pub(crate) fn emit(spec: &BlockQuantizeSpec) -> KernelSource {
    let is_fp4 = spec.configuration.format.element() == ElementType::F4E2M1FN;
    let opcode = if is_fp4 && crate::hopper::has_e2m1_conversion(spec.target) { CONVERSION } else { STORE };
    emit_template(Templated {
        template: TEMPLATE,
        kernel: spec.configuration.name(),
        kind: KernelKind::BlockQuantize,
        target: spec.target,
        opcode,
        context: context(spec),
    })
}

/// The variables of the template and of the templates that it extends.
#[derive(Serialize)]
struct Context {
    formula: [String; 1],
    signature: String,
    interface: Interface,
    input: String,
    values_of_word: usize,
    block: u32,
    blocks_type: String,
    bits: usize,
    has_global: bool,
    is_blocked: bool,
    writes_padding: bool,
    threads: u32,
    values: u32,
    turns: u32,
    rows: u32,
    has_conversion: bool,
    /// True if codes are estimated, and computed exactly near ties only.
    is_estimated: bool,
    e2m1_functions: &'static str,
    quantization_functions: String,
    scale_functions: &'static str,
    /// Empty: no CUTLASS header is needed.
    head: &'static str,
    load_parameter: &'static str,
    load_argument: &'static str,
    shared_bytes: u32,
    n_multiple: u32,
    outputs: [Output; 2],
    clears: Vec<Clear>,
}

/// A tensor that the kernel writes.
#[derive(Serialize)]
struct Output {
    bytes: String,
    /// 0, because the template locates the scales itself.
    scale_block: u32,
}

/// A memset before the kernel.
#[derive(Serialize)]
struct Clear {
    output: u32,
    byte: &'static str,
    condition: String,
    why: &'static str,
}

/// The device functions of a format.
fn functions(scale_rounding: Option<ScaleRounding>, formula: Nvfp4Formula) -> String {
    let more = match scale_rounding {
        Some(_) if formula.mx != MxEdges::DEFAULT => edge_functions(),
        Some(ScaleRounding::Even) => even_functions(),
        _ if formula != Nvfp4Formula::DEFAULT => formula_functions(),
        _ => return quantization_functions().to_owned(),
    };
    format!("{}\n{more}", quantization_functions())
}

fn context(spec: &BlockQuantizeSpec) -> Context {
    let Configuration { input, format, layout, padding, threads, values, turns, rows } = spec.configuration;
    let (block, is_blocked) = (format.block(), layout == ScaleLayout::Blocked);
    let global = if format.has_global() { ", global" } else { "" };
    let scale_bytes = match layout {
        ScaleLayout::Blocked => format!("l * scale_bytes(m, k / {block})"),
        ScaleLayout::Linear => format!("l * m * (k / {block})"),
    };
    let clear = Clear {
        output: 1,
        byte: "0x00",
        condition: format!(" && (problem.m % 128 != 0 || problem.k / {block} % 4 != 0)"),
        why: "Scales beyond the last row and column are zero.",
    };
    Context {
        formula: [format!(
            "y0[l, m, k], y1[l, m, k / {block}] = quantize(values[l, m, k]; {format}{global})"
        )],
        signature: spec.signature(),
        interface: spec.interface(),
        input: input.to_string(),
        values_of_word: 32 / input.storage_bits(),
        block,
        blocks_type: blocks(format.element(), format.scale_rounding(), format.formula()),
        bits: format.element().storage_bits(),
        has_global: format.has_global(),
        is_blocked,
        writes_padding: is_blocked && padding == Padding::Kernel,
        threads,
        values,
        turns,
        rows,
        has_conversion: crate::hopper::has_e2m1_conversion(spec.target),
        is_estimated: is_estimated(spec),
        e2m1_functions: e2m1_functions(),
        quantization_functions: functions(format.scale_rounding(), format.formula()),
        scale_functions: scale_functions(),
        head: "",
        load_parameter: "",
        load_argument: "",
        shared_bytes: 0,
        n_multiple: 1,
        outputs: [format!("l * m * k * {} / 8", format.element().storage_bits()), scale_bytes]
            .map(|bytes| Output { bytes, scale_block: 0 }),
        clears: if padding == Padding::Memset { vec![clear] } else { Vec::new() },
    }
}
