//! The outputs of a kernel: their tensors, and the device code that writes outputs other than D.

use fourfold_ir::numeric::{CodeFormula, InfinityScale, MxEdges, NanScale, Nvfp4Formula, Scaling};
use fourfold_ir::{ElementType, OperandShape, ReduceKind, ScaleRounding};
use serde::Serialize;

use super::{Epilogue, Output, OutputKind, body};
use crate::cuda::element_type;
use crate::source::Role;

const FORMATS: &str = include_str!("outputs/formats.cuh");
const FORMULA: &str = include_str!("outputs/formula.cuh");
const EDGES: &str = include_str!("outputs/edges.cuh");
const EVEN: &str = include_str!("outputs/even.cuh");
const E2M1: &str = include_str!("outputs/e2m1.cuh");
const SUBTILE: &str = include_str!("outputs/subtile.cuh");
const PLACE: &str = include_str!("outputs/place.cuh");
const NODE: &str = include_str!("outputs/node.cuh");
const VALUE: &str = include_str!("outputs/value.cuh");
const REDUCED: &str = include_str!("outputs/reduced.cuh");
const SCALES: &str = include_str!("outputs/scales.cuh");
const QUANTIZED: &str = include_str!("outputs/quantized.cuh");

/// The device functions that quantize blocks, for compilation by themselves, also on the host.
pub fn quantization_functions() -> &'static str {
    FORMATS
}

/// The device functions that quantize MX blocks with other edges than the default. They follow
/// [`quantization_functions`].
pub fn edge_functions() -> &'static str {
    EDGES
}

/// The device functions that quantize NVFP4 blocks by other formulas than the default. They follow
/// [`quantization_functions`].
pub fn formula_functions() -> &'static str {
    FORMULA
}

/// The device functions that compute e2m1 codes where no instruction does. They follow [`quantization_functions`].
pub(crate) fn e2m1_functions() -> &'static str {
    E2M1
}

/// The device functions that round MX scales as [`ScaleRounding::Even`]. They follow [`quantization_functions`].
pub fn even_functions() -> &'static str {
    EVEN
}

/// The device functions that locate blocked scales. They follow [`quantization_functions`].
pub fn scale_functions() -> &'static str {
    SCALES
}

/// The device code of all kinds of outputs, for compilation by itself.
pub fn output_functions() -> String {
    [SUBTILE, PLACE, NODE, VALUE, REDUCED, FORMATS, EVEN, FORMULA, SCALES, QUANTIZED].join("\n")
}

/// An output tensor of the C interface.
#[derive(Serialize)]
pub(crate) struct Tensor {
    /// The number of bytes, as an expression in `l`, `m` and `n`.
    bytes: String,
    /// Elements per scale, for blocked scales; 0 for other tensors.
    scale_block: u32,
}

/// An output that generated device code writes.
#[derive(Serialize)]
pub(crate) struct Written {
    /// The C++ type of its writer.
    node: String,
    /// The writer's pointers.
    arguments: String,
    /// The multiple of N that it requires.
    #[serde(skip)]
    pub(crate) n_multiple: usize,
}

/// A memset before the launch.
#[derive(Serialize)]
pub(crate) struct Clear {
    /// The position of the tensor.
    output: usize,
    byte: &'static str,
    /// A further condition, in terms of `problem`.
    condition: String,
    why: &'static str,
}

/// The position of an output's first tensor among all output tensors.
pub(crate) fn index(epilogue: &Epilogue, output: usize) -> usize {
    let tensors = epilogue.outputs[..output].iter().map(|output| match output.kind {
        OutputKind::Quantized { .. } => 2,
        OutputKind::Value | OutputKind::Reduced { .. } => 1,
    });
    tensors.sum()
}

/// The extent of the columns of D: N, or half of it if the epilogue pairs columns.
pub(crate) fn columns(epilogue: &Epilogue) -> &'static str {
    if epilogue.pair { "F" } else { "N" }
}

/// The output tensors in the order of the interface: codes before their scales.
pub(crate) fn tensors(epilogue: &Epilogue) -> Vec<Tensor> {
    let n = columns(epilogue).to_lowercase();
    let matrix = |element: ElementType| {
        let bytes = match element.storage_bits() {
            4 => format!("l * m * {n} / 2"),
            bits => format!("l * m * {n} * {}", bits / 8),
        };
        Tensor { bytes, scale_block: 0 }
    };
    let mut tensors = Vec::new();
    for output in &epilogue.outputs {
        match output.kind {
            OutputKind::Value => tensors.push(matrix(epilogue.element(output.of))),
            OutputKind::Quantized { element, block, .. } => {
                tensors.push(matrix(element));
                let bytes = format!("l * scale_bytes(m, {n} / {block})");
                tensors.push(Tensor { bytes, scale_block: block });
            }
            OutputKind::Reduced { shape, .. } => {
                let bytes = match shape {
                    OperandShape::Row => format!("{n} * 4"),
                    OperandShape::Column => "l * m * 4".to_owned(),
                    OperandShape::Scalar | OperandShape::Matrix => "4".to_owned(),
                };
                tensors.push(Tensor { bytes, scale_block: 0 });
            }
        }
    }
    tensors
}

/// The roles of the output tensors, `y0` first, in the order of [`tensors`].
pub(crate) fn roles(epilogue: &Epilogue) -> Vec<Role> {
    let columns = columns(epilogue);
    let d = ["L", "M", columns];
    let mut roles: Vec<Role> = Vec::new();
    for output in &epilogue.outputs {
        let name = |offset: usize| format!("y{}", roles.len() + offset);
        let new = match output.kind {
            OutputKind::Value => vec![Role::tensor(&name(0), epilogue.element(output.of), &d)],
            OutputKind::Quantized { element, scale_rounding, .. } => {
                let scale =
                    if scale_rounding.is_some() { ElementType::F8E8M0FNU } else { ElementType::F8E4M3FN };
                vec![Role::tensor(&name(0), element, &d), Role::padded_scales(&name(1), scale)]
            }
            OutputKind::Reduced { shape, .. } => {
                let extents: &[&'static str] = match shape {
                    OperandShape::Row => &d[2..],
                    OperandShape::Column => &["L", "M"],
                    OperandShape::Scalar | OperandShape::Matrix => &[],
                };
                // Atomics combine single elements.
                vec![Role { alignment: 4, ..Role::tensor(&name(0), ElementType::F32, extents) }]
            }
        };
        roles.extend(new);
    }
    roles
}

/// The outputs other than D, in order.
pub(crate) fn others(epilogue: &Epilogue) -> Vec<Written> {
    written(epilogue, epilogue.d())
}

/// The outputs except the one at `except`, in order.
pub(crate) fn written(epilogue: &Epilogue, except: Option<usize>) -> Vec<Written> {
    let results = body::results(epilogue);
    let of = |output: &Output| results.iter().position(|result| *result == output.of).unwrap_or_default();
    let outputs = epilogue.outputs.iter().enumerate().filter(|(position, _)| Some(*position) != except);
    let written = outputs.map(|(position, output)| {
        let (first, of) = (index(epilogue, position), of(output));
        match output.kind {
            OutputKind::Value => {
                let element = epilogue.element(output.of);
                let ty = element_type(element);
                Written {
                    node: format!("ValueOutput<{of}, {ty}>"),
                    arguments: format!("static_cast<{ty} *>(p.outputs[{first}])"),
                    n_multiple: 128 / element.storage_bits(),
                }
            }
            OutputKind::Quantized { global, element, block, scale_rounding, formula } => {
                let global = match global {
                    Some(operand) => format!("static_cast<float const *>(p.operands[{operand}])"),
                    None => "nullptr".to_owned(),
                };
                let bytes = |tensor: usize| format!("static_cast<uint8_t *>(p.outputs[{tensor}])");
                Written {
                    node: format!("QuantizedOutput<{of}, {}>", blocks(element, scale_rounding, formula)),
                    arguments: format!("{}, {}, {global}", bytes(first), bytes(first + 1)),
                    n_multiple: (128 / element.storage_bits()).max(block as usize),
                }
            }
            OutputKind::Reduced { kind, shape } => {
                let left = match shape {
                    OperandShape::Row => "kRow",
                    OperandShape::Column => "kColumn",
                    OperandShape::Scalar | OperandShape::Matrix => "kScalar",
                };
                Written {
                    node: format!("ReducedOutput<{of}, {}, Left::{left}>", reduction(kind)),
                    arguments: format!("static_cast<float *>(p.outputs[{first}])"),
                    n_multiple: 1,
                }
            }
        }
    });
    written.collect()
}

/// The arguments of the node that writes these outputs.
pub(crate) fn arguments(others: &[Written]) -> String {
    let outputs: Vec<String> =
        others.iter().map(|other| format!("{}{{{}}}", other.node, other.arguments)).collect();
    format!("Outputs{{{}}}", outputs.join(", "))
}

/// The device code beyond CUTLASS's, each part after its dependencies.
pub(crate) fn texts(epilogue: &Epilogue) -> Vec<&'static str> {
    if epilogue.is_plain() {
        return Vec::new();
    }
    let mut texts = vec![SUBTILE, PLACE, NODE];
    texts.extend(sinks(epilogue, epilogue.d()));
    if has_blocks(epilogue) {
        texts.extend(block_texts(epilogue));
    }
    texts
}

/// The device code of a kernel without CUTLASS. It always includes the layout of scales.
pub(crate) fn own_texts(epilogue: &Epilogue) -> Vec<&'static str> {
    let mut texts = vec![PLACE];
    texts.extend(sinks(epilogue, None));
    if has_blocks(epilogue) {
        texts.extend(block_texts(epilogue));
    } else {
        texts.push(SCALES);
    }
    texts
}

/// The device code that quantizes blocks.
fn block_texts(epilogue: &Epilogue) -> Vec<&'static str> {
    let has = |matches: fn(Option<ScaleRounding>, Nvfp4Formula) -> bool| {
        epilogue.outputs.iter().any(|output| match output.kind {
            OutputKind::Quantized { scale_rounding, formula, .. } => matches(scale_rounding, formula),
            OutputKind::Value | OutputKind::Reduced { .. } => false,
        })
    };
    let even =
        has(|rounding, formula| rounding == Some(ScaleRounding::Even) && formula == Nvfp4Formula::DEFAULT)
            .then_some(EVEN);
    let edges = has(|_, formula| formula.mx != MxEdges::DEFAULT).then_some(EDGES);
    let formula =
        has(|rounding, formula| rounding.is_none() && formula != Nvfp4Formula::DEFAULT).then_some(FORMULA);
    [Some(FORMATS), even, edges, formula, Some(SCALES), Some(QUANTIZED)].into_iter().flatten().collect()
}

/// Returns whether an output is quantized in blocks.
pub(crate) fn has_blocks(epilogue: &Epilogue) -> bool {
    epilogue.outputs.iter().any(|output| matches!(output.kind, OutputKind::Quantized { .. }))
}

/// The device code that writes values and reductions, except the output at `except`.
fn sinks(epilogue: &Epilogue, except: Option<usize>) -> Vec<&'static str> {
    let has = |is: fn(OutputKind) -> bool| {
        let mut outputs = epilogue.outputs.iter().enumerate();
        outputs.any(|(position, output)| Some(position) != except && is(output.kind))
    };
    let mut texts = Vec::new();
    if has(|kind| matches!(kind, OutputKind::Value)) {
        texts.push(VALUE);
    }
    if has(|kind| matches!(kind, OutputKind::Reduced { .. })) {
        texts.push(REDUCED);
    }
    texts
}

/// The memsets before a launch.
pub(crate) fn clears(epilogue: &Epilogue) -> Vec<Clear> {
    let n = columns(epilogue).to_lowercase();
    let outputs = epilogue.outputs.iter().enumerate();
    let clears = outputs.filter_map(|(position, output)| {
        let first = index(epilogue, position);
        match output.kind {
            OutputKind::Value => None,
            OutputKind::Quantized { block, .. } => Some(Clear {
                output: first + 1,
                byte: "0x00",
                condition: format!(" && (problem.m % 128 != 0 || problem.{n} / {block} % 4 != 0)"),
                why: "Scales beyond the last row and column are zero.",
            }),
            OutputKind::Reduced { kind, .. } => Some(Clear {
                output: first,
                byte: if kind == ReduceKind::Max { "0xFF" } else { "0x00" },
                condition: String::new(),
                why: "The identity of the reduction, below every number.",
            }),
        }
    });
    clears.collect()
}

/// The device type that quantizes a block.
pub(crate) fn blocks(
    element: ElementType,
    scale_rounding: Option<ScaleRounding>,
    formula: Nvfp4Formula,
) -> String {
    let format = match element {
        ElementType::F8E4M3FN => "E4m3",
        ElementType::F8E5M2 => "E5m2",
        ElementType::F6E2M3FN => "E2m3",
        ElementType::F6E3M2FN => "E3m2",
        _ => "E2m1",
    };
    match scale_rounding {
        None if formula == Nvfp4Formula::DEFAULT => "Nvfp4".to_owned(),
        None => formula_type(formula),
        Some(rounding) if formula.mx != MxEdges::DEFAULT => edges_type(format, rounding, formula.mx),
        Some(ScaleRounding::Even) => format!("MxEven<{format}>"),
        Some(rounding) => format!("Mx<{format}, {}>", rounding == ScaleRounding::Ceil),
    }
}

/// The device type that quantizes an MX block with these edges, of [`edge_functions`]. `format` is `E2m1`, `E2m3`,
/// `E3m2`, `E4m3` or `E5m2`.
pub fn edges_type(format: &str, rounding: ScaleRounding, edges: MxEdges) -> String {
    let power = match rounding {
        ScaleRounding::Floor => "kFloor",
        ScaleRounding::Ceil => "kCeil",
        ScaleRounding::Even => "kEven",
    };
    let nan = match edges.nan {
        NanScale::Propagate => "kPropagate",
        NanScale::InfiniteStep => "kInfiniteStep",
        NanScale::Infinity => "kInfinity",
    };
    // The reciprocal of the step of the least scale, which is a power of two.
    let factor = (1.0 / edges.step(0)).to_bits();
    let (least, literal) = (edges.least_scale.byte(), edges.infinity == InfinityScale::Exponent);
    format!("MxBy<{format}, Power::{power}, {least:#04x}u, {literal}, NanRule::{nan}, {factor:#010x}u>")
}

/// The device type that quantizes an NVFP4 block by this formula, of [`formula_functions`].
pub fn formula_type(formula: Nvfp4Formula) -> String {
    let scaling = |scaling: Scaling| match scaling {
        Scaling::Divide => "kDivide",
        Scaling::Multiply => "kMultiply",
    };
    let codes = match formula.codes {
        CodeFormula::Quotient => "kQuotient",
        CodeFormula::ReciprocalStep => "kReciprocalStep",
        CodeFormula::ReciprocalScale => "kReciprocalScale",
    };
    format!(
        "Nvfp4By<{:#010x}u, Factor::{}, Factor::{}, CodeRule::{codes}, {}>",
        formula.scale_min.get().to_bits(),
        scaling(formula.amax),
        scaling(formula.global),
        formula.guard
    )
}

fn reduction(kind: ReduceKind) -> &'static str {
    match kind {
        ReduceKind::Max => "Max",
        _ => "Amax",
    }
}
