//! The template variables of a CUTLASS kernel.

use fourfold_ir::OperandShape;
use serde::Serialize;

use super::configuration::{Cluster, Configuration, Family, TileScheduler};
use crate::cuda::{alignment, element_type};
use crate::epilogue::{Epilogue, body, outputs};
use crate::groups::Groups;
use crate::targets::MAX_GROUPS;

/// The template, which extends `source.cu.j2`.
const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// The template of kernels of groups of rows, which extends the other.
const GROUPED: &str = include_str!("grouped.cu.j2");

/// The verbatim text before CUTLASS's headers in every source that includes them.
pub const HEAD: &str = include_str!("head.cuh");

/// The headers of a family's collectives and kernels, below `cutlass/gemm`. Sm120's headers compute stages as
/// Sm100's do, and its epilogues may have either schedule.
fn headers(family: Family, grouped: bool) -> &'static [&'static str] {
    match family {
        Family::Sm100 if grouped => &[
            "collective/sm100_blockscaled_mma_warpspecialized.hpp",
            "collective/sm100_blockscaled_mma_array_warpspecialized.hpp",
            "collective/builders/sm100_blockscaled_umma_builder.inl",
            "kernel/sm100_gemm_array_tma_warpspecialized.hpp",
        ],
        Family::Sm100 => &[
            "collective/sm100_blockscaled_mma_warpspecialized.hpp",
            "collective/builders/sm100_blockscaled_umma_builder.inl",
            "kernel/sm100_gemm_tma_warpspecialized.hpp",
        ],
        Family::Sm103 => &[
            "collective/sm100_blockscaled_mma_warpspecialized.hpp",
            "collective/sm103_blockscaled_mma_warpspecialized.hpp",
            "collective/builders/sm100_blockscaled_umma_builder.inl",
            "collective/builders/sm103_blockscaled_umma_builder.inl",
            "kernel/sm100_gemm_tma_warpspecialized.hpp",
            "kernel/sm103_blockscaled_gemm_tma_warpspecialized.hpp",
        ],
        Family::Sm120 if grouped => &[
            "collective/sm120_blockscaled_mma_array_tma.hpp",
            "collective/sm100_blockscaled_mma_warpspecialized.hpp",
            "collective/builders/sm100_blockscaled_umma_builder.inl",
            "collective/builders/sm120_common.inl",
            "collective/builders/sm120_blockscaled_mma_builder.inl",
            "kernel/sm90_gemm_array_tma_warpspecialized_cooperative.hpp",
        ],
        Family::Sm120 => &[
            "collective/sm120_blockscaled_mma_tma.hpp",
            "collective/sm100_blockscaled_mma_warpspecialized.hpp",
            "collective/builders/sm100_blockscaled_umma_builder.inl",
            "collective/builders/sm120_common.inl",
            "collective/builders/sm120_blockscaled_mma_builder.inl",
            "kernel/sm90_gemm_tma_warpspecialized_cooperative.hpp",
            "kernel/sm90_gemm_tma_warpspecialized_pingpong.hpp",
        ],
    }
}

/// The template variables specific to CUTLASS kernels.
#[derive(Serialize)]
pub(crate) struct Context {
    headers: &'static [&'static str],
    /// The types of the kernel's A and B, with their scales.
    pair_a: &'static str,
    pair_b: &'static str,
    /// The types of their elements in memory, and the alignments of rows in elements.
    code_a: &'static str,
    code_b: &'static str,
    alignment_a: u32,
    alignment_b: u32,
    /// The multiple of K that CUTLASS itself does not check: whole scales. 1 if it does.
    k_multiple: u32,
    operands: Vec<Node>,
    /// The position of D among the results, or -1.
    result_of_d: i64,
    has_d: bool,
    output_texts: Vec<&'static str>,
    /// The outputs other than D.
    other_outputs: Vec<outputs::Written>,
    /// The node that computes the steps: CUTLASS's, or `Writer` for several outputs.
    root_node: &'static str,
    root_arguments: String,
    element_c: &'static str,
    element_d: &'static str,
    alignment_c: usize,
    alignment_d: usize,
    pointer_c: String,
    pointer_d: String,
    tile: [u32; 3],
    tile_type: String,
    cta_tile: [u32; 3],
    cluster: [u32; 2],
    /// The width of a tile-order band, in tiles.
    band: u32,
    /// True if an MMA tile may span two CTAs, which the scheduler must know.
    has_atom: bool,
    cluster_type: String,
    arch_tag: &'static str,
    epilogue_class_tag: &'static str,
    epilogue_tile_type: String,
    epilogue_tag: String,
    mainloop_tag: String,
    stages_type: String,
    scheduler_tag: &'static str,
    /// The arguments of the tile scheduler that replace its own choices.
    scheduler_arguments: Vec<String>,
    /// True if CTAs wait for each other through the workspace.
    has_locks: bool,
    swapped: bool,
    /// The problem's A, B, M and N under the kernel's names, exchanged if the kernel is swapped.
    a: &'static str,
    b: &'static str,
    m: &'static str,
    n: &'static str,
    d_layout: &'static str,
    problem_shape: &'static str,
    /// `" *"` after a layout of a kernel of groups: an array of tensors.
    array: &'static str,
    load_parameter: &'static str,
    load_argument: &'static str,
    shared_bytes: &'static str,
    #[serde(flatten)]
    groups: Option<GroupContext>,
}

/// The template variables of kernels of groups of rows.
#[derive(Serialize)]
struct GroupContext {
    max_groups: u64,
    has_alpha: bool,
    /// True if each group has its own alpha.
    has_alphas: bool,
    /// True if each group has a matrix of A of its own.
    is_masked: bool,
    /// True if scales of A have whole tiles for each group.
    is_padded: bool,
    /// True if they are blocked.
    is_blocked: bool,
    /// True if the kernel reads a matrix as CUTLASS's source.
    has_source: bool,
    /// True if it reads another matrix.
    has_matrix: bool,
    /// The operands whose address depends on the group, without CUTLASS's source.
    by_row: Vec<ByRow>,
}

/// An operand with an element or a row of elements for each row of D.
#[derive(Serialize)]
struct ByRow {
    name: String,
    element: &'static str,
    /// The position among the operands of the epilogue.
    position: usize,
    is_matrix: bool,
}

/// The template of a kernel.
pub(crate) fn template(configuration: &Configuration) -> &'static str {
    if configuration.groups.is_some() { GROUPED } else { TEMPLATE }
}

/// An input of the epilogue function: its name, its node in the visitor tree, and the node's arguments.
#[derive(Serialize)]
struct Node {
    name: String,
    node: String,
    arguments: String,
}

/// The number of values that outputs are made from; 0 if D is the only output, made from the last step.
pub(crate) fn results(epilogue: &Epilogue) -> usize {
    if epilogue.is_plain() { 0 } else { body::results(epilogue).len() }
}

/// The multiple of N that matrix operands and outputs require. CUTLASS itself checks C and D.
pub(crate) fn n_multiple(epilogue: &Epilogue) -> usize {
    let matrices = epilogue.operands.iter().filter(|operand| operand.shape == OperandShape::Matrix);
    // Without D, CUTLASS requires no multiple of N, not even for C.
    let source = epilogue.source().filter(|_| epilogue.d().is_none());
    let multiples = matrices.map(|matrix| alignment(matrix.element)).chain(source.map(alignment));
    let others = outputs::others(epilogue);
    multiples.chain(others.iter().map(|other| other.n_multiple)).max().unwrap_or(1)
}

pub(crate) fn context(configuration: &Configuration, epilogue: &Epilogue) -> Context {
    let output = epilogue.destination();
    let others = outputs::others(epilogue);
    let results = if epilogue.is_plain() { Vec::new() } else { body::results(epilogue) };
    let d = epilogue.d().map(|d| epilogue.outputs[d].of);
    let result_of_d = results.iter().position(|result| Some(*result) == d);
    // Without a source, its type is void, and D's alignment replaces its alignment.
    let element_c = epilogue.source().map_or("void", element_type);
    let pointer_c = match (epilogue.c, epilogue.source_operand()) {
        (Some(_), _) => Some("p.c".to_owned()),
        (None, operand) => operand.map(|operand| format!("p.operands[{operand}]")),
    };
    let (kernel_a, kernel_b) = match configuration.swapped {
        true => (configuration.b, configuration.a),
        false => (configuration.a, configuration.b),
    };
    let vector = kernel_a.format.scale_vector();
    let groups = configuration.groups.map(|groups| of_groups(groups, epilogue));
    let is_grouped = groups.is_some();
    let root_arguments = if results.is_empty() { "{}".to_owned() } else { outputs::arguments(&others) };
    Context {
        headers: headers(configuration.family, is_grouped),
        pair_a: kernel_a.format.type_text(),
        pair_b: kernel_b.format.type_text(),
        code_a: kernel_a.format.code_text(),
        code_b: kernel_b.format.code_text(),
        alignment_a: kernel_a.alignment,
        alignment_b: kernel_b.alignment,
        k_multiple: if kernel_a.alignment.max(kernel_b.alignment) < vector { vector } else { 1 },
        operands: nodes(epilogue, is_grouped),
        result_of_d: result_of_d.map_or(-1, |index| index as i64),
        has_d: d.is_some(),
        output_texts: outputs::texts(epilogue),
        root_node: if results.is_empty() {
            "cutlass::epilogue::fusion::Sm90Compute<Epilogue, ElementD, float, cutlass::FloatRoundStyle::round_to_nearest>"
        } else if is_grouped {
            "GroupWriter<Outputs>"
        } else {
            "Writer<Outputs>"
        },
        root_arguments: match is_grouped && !results.is_empty() {
            true => format!("{{{root_arguments}, tables.first_rows}}"),
            false => root_arguments,
        },
        other_outputs: others,
        element_c,
        element_d: element_type(output),
        alignment_c: alignment(epilogue.source().unwrap_or(output)),
        alignment_d: alignment(output),
        pointer_c: pointer_c.map_or("nullptr".to_owned(), |p| format!("static_cast<ElementC const *>({p})")),
        pointer_d: match epilogue.d() {
            Some(d) => format!("static_cast<ElementD *>(p.outputs[{}])", outputs::index(epilogue, d)),
            None => "nullptr".to_owned(),
        },
        tile: configuration.tile,
        tile_type: configuration.tile_type(),
        cta_tile: configuration.cta_tile(),
        cluster: match configuration.cluster {
            Cluster::Static(extents) => extents,
            Cluster::Dynamic => [0, 0],
        },
        band: configuration.order.swizzle.max(1),
        has_atom: configuration.family != Family::Sm120,
        cluster_type: configuration.cluster_type(),
        arch_tag: configuration.arch_tag(),
        epilogue_class_tag: configuration.epilogue_class_tag(),
        epilogue_tile_type: configuration.epilogue_tile_type(),
        epilogue_tag: configuration.epilogue_tag(),
        mainloop_tag: configuration.mainloop_tag(),
        stages_type: configuration.stages_type("CollectiveEpilogue"),
        scheduler_tag: configuration.scheduler_tag(),
        scheduler_arguments: scheduler_arguments(configuration),
        has_locks: configuration.scheduler.splits_k(),
        swapped: configuration.swapped,
        a: if configuration.swapped { "b" } else { "a" },
        b: if configuration.swapped { "a" } else { "b" },
        m: if configuration.swapped { "n" } else { "m" },
        n: if configuration.swapped { "m" } else { "n" },
        d_layout: if configuration.swapped { "cutlass::layout::ColumnMajor" } else { "RowMajor" },
        problem_shape: match is_grouped {
            true => "cutlass::gemm::GroupProblemShape<cute::Shape<int, int, int>>",
            false => "cute::Shape<int, int, int, int>",
        },
        array: if is_grouped { " *" } else { "" },
        load_parameter: if is_grouped { ", Which which" } else { "" },
        load_argument: if is_grouped { ", which" } else { "" },
        shared_bytes: match is_grouped {
            true => "(which == Which::kMain ? GemmKernel::SharedStorageSize : 0)",
            false => "GemmKernel::SharedStorageSize",
        },
        groups,
    }
}

fn of_groups(groups: Groups, epilogue: &Epilogue) -> GroupContext {
    let source = epilogue.source_operand();
    let read = epilogue.operands.iter().enumerate().filter(|(index, _)| epilogue.is_read(*index));
    let by_row = read.filter(|(index, operand)| {
        matches!(operand.shape, OperandShape::Column | OperandShape::Matrix) && source != Some(*index)
    });
    let by_row: Vec<ByRow> = by_row
        .map(|(position, operand)| ByRow {
            name: format!("x{position}"),
            element: element_type(operand.element),
            position,
            is_matrix: operand.shape == OperandShape::Matrix,
        })
        .collect();
    GroupContext {
        max_groups: MAX_GROUPS,
        has_alpha: epilogue.alpha,
        has_alphas: groups.has_alphas,
        is_masked: groups.masked,
        is_padded: groups.has_padded_scales(),
        is_blocked: groups.blocked,
        has_source: epilogue.source().is_some(),
        has_matrix: by_row.iter().any(|operand| operand.is_matrix),
        by_row,
    }
}

fn scheduler_arguments(configuration: &Configuration) -> Vec<String> {
    const SCHEDULER: &str = "GemmKernel::TileScheduler";
    let mut lines = Vec::new();
    if let Some(raster) = configuration.raster_tag() {
        lines.push(format!("raster_order = {SCHEDULER}::RasterOrderOptions::{raster}"));
    }
    if configuration.order.swizzle != 1 {
        lines.push(format!("max_swizzle_size = {}", configuration.order.swizzle));
    }
    if let TileScheduler::SplitK(splits) = configuration.scheduler {
        lines.push(format!("splits = {splits}"));
        lines.push("decomposition_mode = decltype(result.scheduler.decomposition_mode)::SplitK".to_owned());
    }
    lines
}

fn nodes(epilogue: &Epilogue, is_grouped: bool) -> Vec<Node> {
    const FUSION: &str = "cutlass::epilogue::fusion";
    let node = |name: &str, node: String, arguments: String| Node { name: name.to_owned(), node, arguments };
    let scalar = |name: &str| {
        node(name, format!("{FUSION}::Sm90ScalarBroadcast<float>"), format!("{{ {{}}, {{p.{name}}}, {{}} }}"))
    };
    let source = |name: &str| node(name, format!("{FUSION}::Sm90SrcFetch<ElementC>"), "{}".to_owned());
    let mut nodes = vec![match is_grouped {
        true => node("acc", "GroupSums".to_owned(), "static_cast<int>(problem.e)".to_owned()),
        false => node("acc", format!("{FUSION}::Sm90AccFetch"), "{}".to_owned()),
    }];
    nodes.extend(epilogue.alpha.then(|| match is_grouped {
        true => node(
            "alpha",
            format!("{FUSION}::Sm90ScalarBroadcast<float, cute::Stride<cute::_0, cute::_0, int64_t>>"),
            "{ {}, {tables.alphas}, { {cute::_0{}, cute::_0{}, 1} } }".to_owned(),
        ),
        false => scalar("alpha"),
    }));
    nodes.extend(epilogue.c.map(|_| source("c")));
    nodes.extend(epilogue.beta.then(|| scalar("beta")));
    let used = epilogue.operands.iter().enumerate().filter(|(index, _)| epilogue.is_read(*index));
    nodes.extend(used.map(|(index, operand)| {
        let name = format!("x{index}");
        let ty = element_type(operand.element);
        let pointer = format!("static_cast<{ty} const *>(p.operands[{index}])");
        match operand.shape {
            OperandShape::Scalar => node(
                &name,
                format!("{FUSION}::Sm90ScalarBroadcast<{ty}>"),
                format!("{{ {{}}, {{{pointer}}}, {{}} }}"),
            ),
            OperandShape::Row => node(
                &name,
                format!("{FUSION}::Sm90RowBroadcast<0, CtaTileShape, {ty}, float>"),
                format!("{{{pointer}, {ty}(0), {{}} }}"),
            ),
            OperandShape::Column if is_grouped => node(
                &name,
                format!("{FUSION}::Sm90ColBroadcast<0, CtaTileShape, {ty} *, float, cute::Stride<cute::_1, cute::_0, cute::_0>, 1>"),
                format!("{{tables.{name}, {ty}(0), {{}} }}"),
            ),
            // One element at a time, because the rows of a matrix have no alignment.
            OperandShape::Column => node(
                &name,
                format!("{FUSION}::Sm90ColBroadcast<0, CtaTileShape, {ty}, float, ColumnStride, 1>"),
                format!("{{{pointer}, {ty}(0), ColumnStride{{cute::_1{{}}, cute::_0{{}}, problem.m}} }}"),
            ),
            OperandShape::Matrix if epilogue.source_operand() == Some(index) => source(&name),
            OperandShape::Matrix if is_grouped => {
                node(&name, format!("GroupMatrix<{ty}>"), format!("{{tables.{name}, problem.n}}"))
            }
            OperandShape::Matrix => node(
                &name,
                format!("{FUSION}::Sm90AuxLoad<0, void, {ty}, RowMajor, void, void>"),
                format!(
                    "{{{pointer}, {ty}(0), cutlass::make_cute_packed_stride(MatrixStride{{}}, {{m, n, l}})}}"
                ),
            ),
        }
    }));
    nodes
}
