//! The template variables of a row kernel.

use fourfold_ir::numeric::Nvfp4Formula;
use fourfold_ir::{ElementType, QuantizedFormat, ScaleLayout, ScaleRounding};
use fourfold_scheduler::{RowOutputKind, RowProgram, RowShape};
use minijinja::context;
use serde::Serialize;

use super::body::{self, Kept, Phase, Written};
use super::{Configuration, RowSpec};
use crate::epilogue::outputs::blocks;
use crate::epilogue::{
    device_functions, even_functions, formula_functions, quantization_functions, scale_functions,
};
use crate::source::{Interface, KernelKind, KernelSource, Templated, emit_template, environment};

/// The template, which extends `source.cu.j2`.
const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The instruction expected in the binary. A kernel that computes nothing stores nothing.
const STORE: &str = "STG";

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
    has_nvfp4: bool,
    quantization_functions: String,
    scale_functions: &'static str,
    row_functions: String,
    nvfp4_functions: &'static str,
    functions: Vec<String>,
    threads: u32,
    row_threads: u32,
    values: u32,
    turns: u32,
    ctas: u32,
    slots: usize,
    needs_vectors: bool,
    is_blocked: bool,
    all_operands: Vec<Operand>,
    matrices: Vec<Operand>,
    vectors: Vec<Operand>,
    scalars: String,
    /// Type, name and value of what all rows share.
    shared: Vec<[String; 3]>,
    phases: Vec<Phase>,
    kept: Vec<Kept>,
    row_outputs: Vec<OutputText>,
    outputs_count: usize,
    /// Elements per scale in the checks of `abi.cu.j2`.
    block: u32,
    head: &'static str,
    load_parameter: &'static str,
    load_argument: &'static str,
    shared_bytes: u32,
    n_multiple: u32,
    outputs: Vec<Output>,
    clears: [u8; 0],
}

/// An operand of the kernel.
#[derive(Clone, Debug, Serialize)]
struct Operand {
    index: usize,
    element: String,
    bits: usize,
    /// The bytes before the elements at `column`, of the row and of a row operand.
    at_column: String,
    at_own_column: String,
    /// Statements that load the elements at `column` and `other`.
    load_pair_matrix: String,
    load_pair_row: String,
}

/// A tensor that the kernel writes.
#[derive(Serialize)]
struct Output {
    bytes: String,
    /// 0, because the kernel's own functions locate scales.
    scale_block: u32,
}

/// The statements that write an output of a [`RowProgram`].
#[derive(Default, Serialize)]
struct OutputText {
    declare: String,
    put: String,
    store: String,
    store_one: String,
    store_first: String,
    store_second: String,
    /// The statement that zeroes the scale of a block outside the matrix; empty if there is no padding.
    pad: String,
}

fn operand(index: usize, element: ElementType) -> Operand {
    let pair = |place: &dyn Fn(&str) -> String| {
        let load = |column: &str| format!("load_{element}(p.operands[{index}], {})", place(column));
        match element {
            ElementType::BF16 | ElementType::F16 => {
                format!("uint32_t const x{index} = pack_{element}({}, {});", load("column"), load("other"))
            }
            _ => format!("float const x{index}a = {}, x{index}b = {};", load("column"), load("other")),
        }
    };
    Operand {
        index,
        element: element.to_string(),
        bits: element.storage_bits(),
        at_column: bytes("(start + column)", element.storage_bits()),
        at_own_column: bytes("static_cast<int64_t>(column)", element.storage_bits()),
        load_pair_matrix: pair(&|column| format!("start + {column}")),
        load_pair_row: pair(&|column| column.to_owned()),
    }
}

/// The members and statements of what all rows share, and the statements of a row: its own loads, and the shared names.
fn scalars(program: &RowProgram) -> (Vec<[String; 3]>, String) {
    let (mut shared, mut lines) = (Vec::new(), Vec::new());
    for (index, operand) in program.operands.iter().enumerate() {
        let element = operand.element;
        match operand.shape {
            RowShape::Scalar => {
                shared.push(["float".to_owned(), format!("x{index}"), format!("load_{element}(p.operands[{index}], 0)")]);
            }
            RowShape::Column => lines.push(format!(
                "  float const x{index} = row.is_inside ? load_{element}(p.operands[{index}], row.index) : 0.0f;"
            )),
            RowShape::Row | RowShape::Matrix | RowShape::Scales { .. } => {}
        }
    }
    for (position, output) in program.outputs.iter().enumerate() {
        if let RowOutputKind::Quantized { format, scale_rounding, formula, global: Some(global), .. } =
            output.kind
        {
            if is_nvfp4(format, scale_rounding, formula) {
                let value = format!("nvfp4_tensor(load_f32(p.operands[{global}], 0))");
                shared.push(["Nvfp4Tensor".to_owned(), format!("tensor{position}"), value]);
            }
        }
    }
    lines.extend(shared.iter().map(|[ty, name, _]| format!("  {ty} const {name} = shared_values.{name};")));
    (shared, lines.join("\n"))
}

/// Returns whether a quantization has the fast path of `nvfp4.cuh`.
fn is_nvfp4(format: QuantizedFormat, rounding: Option<ScaleRounding>, formula: Nvfp4Formula) -> bool {
    format.block == 16 && rounding.is_none() && formula == Nvfp4Formula::DEFAULT
}

/// The statements that write the outputs.
fn outputs(program: &RowProgram, phases: &[Phase]) -> Vec<OutputText> {
    let mut at = 0;
    let written = |position: usize| -> Option<&Written> {
        phases
            .iter()
            .flat_map(|phase| phase.outputs.iter().chain(&phase.columns))
            .find(|it| it.output == position)
    };
    let texts = program.outputs.iter().enumerate().map(|(position, output)| {
        let Some(written) = written(position) else { return OutputText::default() };
        let text = match output.kind {
            RowOutputKind::Value => value(position, at, program.element(output.of), written),
            RowOutputKind::Quantized { .. } => quantized(position, at, output.kind, written),
        };
        at += if matches!(output.kind, RowOutputKind::Value) { 1 } else { 2 };
        text
    });
    texts.collect()
}

/// The bytes before a number of elements, as an expression.
fn bytes(elements: &str, bits: usize) -> String {
    match bits {
        4 => format!("({elements} >> 1)"),
        8 => elements.to_owned(),
        _ => format!("{elements} * {}", bits / 8),
    }
}

fn value(position: usize, at: usize, element: ElementType, written: &Written) -> OutputText {
    let [a, b] = &written.values;
    let bits = element.storage_bits();
    let pair = match element {
        ElementType::F8E4M3FN => format!("encode_pair<E4m3>({a}, {b})"),
        _ => format!("encode_pair<E5m2>({a}, {b})"),
    };
    let put = match element {
        ElementType::BF16 | ElementType::F16 => format!("o{position}.words[pair] = {};", written.packed),
        ElementType::F32 => {
            format!(
                "o{position}.words[2 * pair] = bits_of({a}), o{position}.words[2 * pair + 1] = bits_of({b});"
            )
        }
        _ => format!(
            "o{position}.words[pair / 2] = pair % 2 == 0 ? {pair} : o{position}.words[pair / 2] | {pair} << 16;"
        ),
    };
    let words = format!("Words<kValues * {bits} / 8>");
    OutputText {
        declare: format!("{words} o{position};"),
        put,
        store: format!(
            "*reinterpret_cast<{words} *>(static_cast<uint8_t *>(p.outputs[{at}]) + {}) = o{position};",
            bytes("(start + column)", bits)
        ),
        store_one: format!("store_{element}(p.outputs[{at}], row.index, {a});"),
        store_first: format!("store_{element}(p.outputs[{at}], start + column, {a});"),
        store_second: format!("store_{element}(p.outputs[{at}], start + other, {b});"),
        pad: String::new(),
    }
}

fn quantized(position: usize, at: usize, kind: RowOutputKind, written: &Written) -> OutputText {
    let RowOutputKind::Quantized { format, layout, global, scale_rounding, formula } = kind else {
        return OutputText::default();
    };
    let [a, b] = &written.values;
    let (q, m, block) = (format!("q{position}"), format!("m{position}"), format.block);
    let amax = if written.packed.is_empty() {
        format!("{m} = larger({m}, larger(bits_of({a}) & kMagnitudeBits, bits_of({b}) & kMagnitudeBits));")
    } else {
        format!("{m} = __vmaxu2({m}, {} & 0x7FFF7FFFu);", written.packed)
    };
    // f16 magnitudes have another exponent than f32's, so they are converted.
    let packed_element = if written.packed.is_empty() {
        ""
    } else if a.contains("low_f16") {
        "f16"
    } else {
        "bf16"
    };
    let largest = match packed_element {
        "" => m.clone(),
        "bf16" => format!("larger({m} & 0xFFFF0000u, {m} << 16)"),
        _ => format!("larger(bits_of(low_f16({m})), bits_of(high_f16({m})))"),
    };
    let place = match layout {
        ScaleLayout::Blocked => format!("scale_place(p, row, static_cast<uint32_t>(column) / {block}u)"),
        ScaleLayout::Linear => format!("(start + column) >> {}", block.trailing_zeros()),
    };
    let bits = format.element.storage_bits();
    let words = format!("Words<kValues * {bits} / 8>");
    let codes = if is_nvfp4(format, scale_rounding, formula) && global.is_some() {
        format!(
            "Nvfp4Codes const r{position} = nvfp4({q}, {largest}, tensor{position});\n      \
             {words} const o{position} = {{{{r{position}.words[0], r{position}.words[1]}}}};\n      \
             uint32_t const scale{position} = r{position}.scale;"
        )
    } else {
        let ty = blocks(format.element, scale_rounding, formula);
        let global = global.map_or("1.0f".to_owned(), |global| format!("x{global}"));
        format!(
            "uint32_t const amax{position} = {largest}, scale{position} = {ty}::scale(amax{position}, {global});\n      \
             {words} const o{position} = codes_of<{ty}, {bits}>({q}, {ty}::step(scale{position}, amax{position}, {global}));"
        )
    };
    let scales = at + 1;
    OutputText {
        declare: format!("float {q}[kValues];\n      uint32_t {m} = 0u;"),
        put: format!("{q}[2 * pair] = {a}, {q}[2 * pair + 1] = {b};\n        {amax}"),
        store: format!(
            "{codes}\n      *reinterpret_cast<{words} *>(static_cast<uint8_t *>(p.outputs[{at}]) + {}) = o{position};\n      \
             static_cast<uint8_t *>(p.outputs[{scales}])[{place}] = static_cast<uint8_t>(scale{position});",
            bytes("(start + column)", bits)
        ),
        pad: match layout {
            ScaleLayout::Blocked => format!("static_cast<uint8_t *>(p.outputs[{scales}])[{place}] = 0;"),
            ScaleLayout::Linear => String::new(),
        },
        ..OutputText::default()
    }
}

/// The size of each written tensor, as an expression.
fn sizes(program: &RowProgram) -> Vec<Output> {
    let mut sizes = Vec::new();
    for output in &program.outputs {
        match output.kind {
            RowOutputKind::Value => {
                let bits = program.element(output.of).storage_bits();
                let elements = if body::is_element(program, output.of) { "l * m * k" } else { "l * m" };
                sizes.push(format!("{elements} * {bits} / 8"));
            }
            RowOutputKind::Quantized { format, layout, .. } => {
                let block = format.block;
                sizes.push(format!("l * m * k * {} / 8", format.element.storage_bits()));
                sizes.push(match layout {
                    ScaleLayout::Blocked => format!("l * scale_bytes(m, k / {block})"),
                    ScaleLayout::Linear => format!("l * m * (k / {block})"),
                });
            }
        }
    }
    sizes.into_iter().map(|bytes| Output { bytes, scale_block: 0 }).collect()
}

/// The device functions of the formats that the program quantizes to.
fn format_functions(program: &RowProgram) -> String {
    let mut text = quantization_functions().to_owned();
    let has = |wanted: &dyn Fn(Option<ScaleRounding>, Nvfp4Formula) -> bool| {
        program.outputs.iter().any(|output| match output.kind {
            RowOutputKind::Quantized { scale_rounding, formula, .. } => wanted(scale_rounding, formula),
            RowOutputKind::Value => false,
        })
    };
    if has(&|rounding, _| rounding == Some(ScaleRounding::Even)) {
        text = format!("{text}\n{}", even_functions());
    }
    if has(&|_, formula| formula != Nvfp4Formula::DEFAULT) {
        text = format!("{text}\n{}", formula_functions());
    }
    text
}

/// The device functions of rows: `row.cuh` repeats those of 16-bit types.
fn row_functions() -> String {
    let environment = environment();
    let template =
        environment.template_from_str(include_str!("device/row.cuh")).expect("the template parses");
    template.render(context! {}).expect("the template has no variables")
}

fn context(spec: &RowSpec) -> Context {
    let Configuration { threads, row_threads, values, turns, ctas } = spec.configuration;
    let program = &spec.program;
    let phases = body::phases(program);
    let operands: Vec<(Operand, RowShape)> = program
        .operands
        .iter()
        .enumerate()
        .map(|(index, it)| (operand(index, it.element), it.shape))
        .collect();
    let of = |shape: RowShape| {
        operands
            .iter()
            .filter(|(_, found)| *found == shape)
            .map(|(operand, _)| operand.clone())
            .collect::<Vec<_>>()
    };
    let has_nvfp4 = program.outputs.iter().any(|output| match output.kind {
        RowOutputKind::Quantized { format, scale_rounding, formula, global, .. } => {
            global.is_some() && is_nvfp4(format, scale_rounding, formula)
        }
        RowOutputKind::Value => false,
    });
    let blocks = program.outputs.iter().filter_map(|output| match output.kind {
        RowOutputKind::Quantized { format, .. } => Some(format.block),
        RowOutputKind::Value => None,
    });
    let outputs = sizes(program);
    let (shared, scalars) = scalars(program);
    Context {
        formula: [spec.signature()],
        signature: spec.signature(),
        interface: spec.interface(),
        has_conversion: spec.target.name != crate::hopper::TARGET,
        has_nvfp4,
        quantization_functions: format_functions(program),
        scale_functions: scale_functions(),
        row_functions: row_functions(),
        nvfp4_functions: include_str!("device/nvfp4.cuh"),
        functions: vec![device_functions(&body::unary_kinds(program))],
        threads,
        row_threads,
        values,
        turns,
        ctas,
        slots: phases.iter().map(|phase| phase.reductions.len()).sum(),
        needs_vectors: spec.needs_vectors(),
        is_blocked: spec.is_blocked(),
        matrices: of(RowShape::Matrix),
        vectors: of(RowShape::Row),
        all_operands: operands.iter().map(|(operand, _)| operand.clone()).collect(),
        scalars,
        shared,
        kept: body::kept(program),
        row_outputs: self::outputs(program, &phases),
        outputs_count: outputs.len(),
        phases,
        block: blocks.max().unwrap_or(16),
        head: "",
        load_parameter: "",
        load_argument: "",
        shared_bytes: 0,
        n_multiple: 1,
        outputs,
        clears: [],
    }
}
