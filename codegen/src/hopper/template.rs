//! The template variables of a Hopper kernel.

use fourfold_ir::{BlockFormat, ElementType, OperandShape};
use serde::Serialize;

use super::configuration::{Choice, Configuration};
use super::tiles::Tile;
use crate::cuda::{alignment, element_type};
use crate::epilogue::{Epilogue, outputs};

/// The template, which extends `source.cu.j2`.
pub(crate) const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The head of an sm_90a source. It replaces CUTLASS's headers.
pub const HEAD: &str = include_str!("device/head.cuh");

/// The verbatim kernel text in every source for sm_90a.
pub const KERNEL: &str = concat!(
    include_str!("device/instructions.cuh"),
    "\n",
    include_str!("device/decode.cuh"),
    "\n",
    include_str!("device/parameters.cuh"),
    "\n",
    include_str!("device/padded_scales.cuh"),
    "\n",
    include_str!("device/exact_sum.cuh"),
    "\n",
    include_str!("device/decode_a.cuh"),
    "\n",
    include_str!("device/tiled/traits.cuh"),
    "\n",
    include_str!("device/tiled/tile_scheduler.cuh"),
    "\n",
    include_str!("device/tiled/groups.cuh"),
    "\n",
    include_str!("device/tiled/decode_ahead.cuh"),
    "\n",
    include_str!("device/tiled/load.cuh"),
    "\n",
    include_str!("device/tiled/reduce_store.cuh"),
    "\n",
    include_str!("device/tiled/mainloop.cuh"),
    "\n",
    include_str!("device/tiled/kernel.cuh"),
    "\n",
    include_str!("device/small_m/traits.cuh"),
    "\n",
    include_str!("device/small_m/load.cuh"),
    "\n",
    include_str!("device/small_m/decode_a.cuh"),
    "\n",
    include_str!("device/small_m/mainloop.cuh"),
    "\n",
    include_str!("device/small_m/output.cuh"),
    "\n",
    include_str!("device/small_m/kernel.cuh"),
    "\n",
    include_str!("device/small_m_regs/traits.cuh"),
    "\n",
    include_str!("device/small_m_regs/load.cuh"),
    "\n",
    include_str!("device/small_m_regs/mainloop.cuh"),
    "\n",
    include_str!("device/small_m_regs/kernel.cuh"),
    "\n",
    include_str!("device/select.cuh"),
);

const PLAN: &str = include_str!("device/plan.cuh");
const LAUNCH: &str = include_str!("device/launch.cuh");

const OPERANDS: &str = include_str!("device/operands.cuh");
const EPILOGUE: &str = include_str!("device/epilogue.cuh");

/// The device code that passes a thread's row of columns to the outputs on sm_90a, for compilation after the
/// outputs' code.
pub fn row_output_functions() -> &'static str {
    EPILOGUE
}

/// The multiple of K that aligns rows of FP4 to 16 bytes. Blocks of MX are as long.
const K_MULTIPLE: u32 = 32;

/// The template variables specific to Hopper kernels.
#[derive(Serialize)]
pub(crate) struct Context {
    operands: Vec<Read>,
    output_texts: Vec<&'static str>,
    operands_text: &'static str,
    epilogue_text: &'static str,
    kernel_text: &'static str,
    plan_text: &'static str,
    launch_text: &'static str,
    /// The outputs.
    written: Vec<outputs::Written>,
    outputs_arguments: String,
    has_blocks: bool,
    /// True if all outputs are values.
    is_simple: bool,
    /// True if the epilogue pairs columns.
    has_pair: bool,
    is_mx: bool,
    /// The groups of rows, if any.
    groups: Option<GroupsView>,
    /// True if the kernel has no groups and reads linear scales of A.
    linear_sfa: bool,
    /// The element types of A and B.
    element_a: &'static str,
    element_b: &'static str,
    /// True if A has scales: it is not of 16 bits.
    has_scales_a: bool,
    /// True if operands are decoded to bf16, false if to fp16.
    uses_bf16: bool,
    tile: [u32; 3],
    k_multiple: u32,
    /// The largest M, if all tiles are for small M.
    max_m: Option<u32>,
    variants: Vec<Tile>,
    choices: Vec<Line>,
    /// True if there are tiles for larger M, for which a separate kernel decodes A first.
    has_tiled: bool,
    /// True if a tile may keep A in registers, in a separate kernel.
    has_small_m_regs: bool,
    load_parameter: &'static str,
    load_argument: &'static str,
    shared_bytes: &'static str,
}

/// The alpha of groups of rows: one for each group, one for all, or none; and their form.
#[derive(Serialize)]
struct GroupsView {
    has_alpha: bool,
    has_alphas: bool,
    is_masked: bool,
    /// True if scales of A have whole tiles for each group.
    is_padded: bool,
    /// True if they are blocked.
    is_blocked: bool,
}

/// An input of the epilogue function: its name, the expression that reads it, and its address.
#[derive(Clone, Serialize)]
struct Read {
    name: String,
    element: &'static str,
    read: String,
    /// Empty for a computed input.
    pointer: String,
    /// True for a scalar.
    is_scalar: bool,
}

/// A table line, with the tile's position in the source.
#[derive(Serialize)]
struct Line {
    max_m: u32,
    max_n: u32,
    max_k: u32,
    variant: usize,
    cluster: u32,
}

/// The multiple of N that aligns rows of operands and outputs to 16 bytes.
pub(crate) fn n_multiple(epilogue: &Epilogue) -> usize {
    let matrices = epilogue.operands.iter().filter(|operand| operand.shape == OperandShape::Matrix);
    let read = matrices.map(|matrix| matrix.element).chain(epilogue.c).map(alignment);
    let written = outputs::written(epilogue, None).into_iter().map(|output| output.n_multiple);
    let of_d = read.chain(written).max().unwrap_or(1);
    if epilogue.pair { 2 * of_d } else { of_d }
}

pub(crate) fn context(configuration: &Configuration, epilogue: &Epilogue) -> Context {
    let written = outputs::written(epilogue, None);
    let line = |(choice, variant): (&Choice, usize)| {
        let Choice { max_m, max_n, max_k, cluster, .. } = *choice;
        Line { max_m, max_n, max_k, variant, cluster }
    };
    Context {
        operands: reads(epilogue, configuration.groups.is_some_and(|groups| groups.has_alphas)),
        output_texts: outputs::own_texts(epilogue),
        operands_text: OPERANDS,
        epilogue_text: EPILOGUE,
        kernel_text: KERNEL,
        plan_text: PLAN,
        launch_text: LAUNCH,
        outputs_arguments: outputs::arguments(&written),
        written,
        has_blocks: outputs::has_blocks(epilogue),
        is_simple: epilogue.only_values(),
        has_pair: epilogue.pair,
        groups: configuration.groups.map(|groups| GroupsView {
            has_alpha: epilogue.alpha,
            has_alphas: groups.has_alphas,
            is_masked: groups.masked,
            is_padded: groups.has_padded_scales(),
            is_blocked: groups.blocked,
        }),
        linear_sfa: configuration.linear_sfa,
        is_mx: configuration.format.block == BlockFormat::MXFP4.block,
        element_a: element_of(configuration.format.a),
        element_b: element_of(configuration.format.b),
        has_scales_a: !configuration.format.is_weight_only(),
        uses_bf16: configuration.format.block == BlockFormat::MXFP4.block
            || configuration.format.a == ElementType::BF16,
        tile: configuration.tile(),
        k_multiple: K_MULTIPLE,
        max_m: configuration.max_m(),
        variants: configuration.variants.clone(),
        choices: configuration.choices().map(line).collect(),
        has_tiled: configuration.max_m().is_none(),
        has_small_m_regs: configuration.groups.is_none()
            && !configuration.linear_sfa
            && configuration.variants.iter().any(|tile| tile.may_keep_a_in_registers(configuration.format)),
        load_parameter: ", int variant",
        load_argument: ", variant",
        shared_bytes: "shared_bytes(variant)",
    }
}

/// The device code's name of an element type of A or B.
fn element_of(element: ElementType) -> &'static str {
    match element {
        ElementType::F8E4M3FN => "kE4m3",
        ElementType::F8E5M2 => "kE5m2",
        ElementType::F16 => "kF16",
        ElementType::BF16 => "kBf16",
        _ => "kE2m1",
    }
}

fn reads(epilogue: &Epilogue, has_alphas: bool) -> Vec<Read> {
    let read = |name: &str, element, how: &str, pointer: String| Read {
        name: name.to_owned(),
        element,
        read: format!("read_{how}<N>(arguments.{name}{})", if how == "scalar" { "" } else { ", here" }),
        is_scalar: how == "scalar" && !pointer.is_empty(),
        pointer,
    };
    let scalar = |name: &str| read(name, "float", "scalar", format!("p.{name}"));
    let acc = Read { read: "acc".to_owned(), ..read("acc", "float", "scalar", String::new()) };
    let odd = Read { name: "odd".to_owned(), read: "odd".to_owned(), ..acc.clone() };
    let mut reads = vec![acc];
    reads.extend(epilogue.pair.then_some(odd));
    let alphas = || read("alpha", "float", "scalar", "static_cast<float const *>(p.alphas)".to_owned());
    reads.extend(epilogue.alpha.then(|| if has_alphas { alphas() } else { scalar("alpha") }));
    reads.extend(epilogue.c.map(|element| {
        let ty = element_type(element);
        read("c", ty, "matrix", format!("static_cast<{ty} const *>(p.c)"))
    }));
    reads.extend(epilogue.beta.then(|| scalar("beta")));
    let used = epilogue.operands.iter().enumerate().filter(|(index, _)| epilogue.is_read(*index));
    reads.extend(used.map(|(index, operand)| {
        let ty = element_type(operand.element);
        let how = match operand.shape {
            OperandShape::Scalar => "scalar",
            OperandShape::Row => "row",
            OperandShape::Column => "column",
            OperandShape::Matrix => "matrix",
        };
        let pointer = format!("static_cast<{ty} const *>(p.operands[{index}])");
        read(&format!("x{index}"), ty, how, pointer)
    }));
    reads
}
