//! Fills the template of the kernel.

use fourfold_ir::{ElementType, OperandShape};
use fourfold_scheduler::EpilogueRef;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

use super::{Epilogue, KernelSpec, body, outputs};
use crate::configuration::{Cluster, Family};

/// The version of the C interface of generated kernels. Raised by every change to it.
pub const ABI_VERSION: u32 = 4;

/// How many operands of an epilogue the interface has room for.
pub const MAX_OPERANDS: usize = 24;

/// How many tensors the interface lets a kernel write.
pub const MAX_OUTPUTS: usize = 8;

const TEMPLATE: &str = include_str!("kernel.cu.j2");

/// What comes before CUTLASS's headers in the source of every kernel, word for word.
pub const HEAD: &str = include_str!("head.cuh");

/// Below `cutlass/gemm`, the headers of the collectives and kernels that a family has. Those of Sm120 count stages as
/// Sm100's do, and its epilogues may be of either schedule.
fn headers(family: Family) -> &'static [&'static str] {
    match family {
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

/// The source of one kernel. Equal specifications give equal bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelSource {
    /// The whole translation unit.
    pub text: String,
    /// A readable name.
    pub kernel: String,
    /// What it was generated for, and what it says of itself: `sm_100a`.
    pub target: &'static str,
    /// The architecture that it is compiled for, as the compiler spells it: `100a`.
    pub architecture: &'static str,
    /// What the name of an instruction in the binary must begin with: without it the kernel has no MMA.
    pub opcode: &'static str,
    /// What the compiler reads before the text; see [`emulate`](super::emulate).
    pub prelude: Option<&'static str>,
    /// A hash of everything in the text but itself.
    pub hash: String,
}

/// What the template is filled with.
#[derive(Serialize)]
pub(super) struct Context {
    head: &'static str,
    headers: &'static [&'static str],
    generator: &'static str,
    kernel: String,
    target: &'static str,
    hash: String,
    signature: String,
    formula: Vec<String>,
    /// `ue4m3` or `ue8m0`.
    scale: &'static str,
    /// Elements of K that share a scale.
    block: u32,
    operand_type: &'static str,
    functions: Vec<String>,
    operands: Vec<Node>,
    operand_alignments: Vec<u32>,
    max_operands: usize,
    /// What the matrices among the operands ask of N beside C and D, of which CUTLASS knows.
    n_multiple: usize,
    body: Vec<String>,
    /// How many values the outputs are made of; 0 where D is the only one, and the last that is computed.
    results: usize,
    /// Which of them is D, or -1.
    result_of_d: i64,
    has_d: bool,
    /// The tensors that are written, D among them.
    outputs: Vec<outputs::Tensor>,
    /// What is written besides D.
    other_outputs: Vec<outputs::Written>,
    output_texts: Vec<&'static str>,
    clears: Vec<outputs::Clear>,
    max_outputs: usize,
    /// What computes the steps: CUTLASS's node, or one of our own where there are several outputs.
    root_node: &'static str,
    root_arguments: String,
    element_c: &'static str,
    element_d: &'static str,
    alignment_c: usize,
    alignment_d: usize,
    pointer_c: String,
    pointer_d: String,
    required_pointers: String,
    scalars: Vec<&'static str>,
    tile: [u32; 3],
    tile_type: String,
    cta_tile: [u32; 3],
    cluster: [u32; 2],
    cluster_type: String,
    arch_tag: &'static str,
    epilogue_class_tag: &'static str,
    epilogue_tile_type: String,
    epilogue_tag: String,
    mainloop_tag: String,
    stages_type: String,
    scheduler_tag: &'static str,
    abi_version: u32,
}

/// What the epilogue's function is given: its name there, its node in the visitor tree, and that node's arguments.
#[derive(Serialize)]
struct Node {
    name: String,
    node: String,
    arguments: String,
}

/// The source of a kernel.
///
/// # Panics
/// When the template does not fit its context, which is a bug that every test of this function would show.
pub fn emit(spec: &KernelSpec) -> KernelSource {
    let mut context = context(spec);
    // The text without its hash is what is hashed.
    let hash = fnv1a(render(&context).as_bytes());
    context.hash.clone_from(&hash);
    let text = render(&context);
    let opcode = match spec.configuration.family {
        Family::Sm100 | Family::Sm103 => "UTCOMMA",
        Family::Sm120 => "OMMA.SF",
    };
    let architecture = spec.target.name.trim_start_matches("sm_");
    KernelSource {
        text,
        kernel: context.kernel,
        target: spec.target.name,
        architecture,
        opcode,
        prelude: None,
        hash,
    }
}

fn render(context: &Context) -> String {
    let environment = environment();
    let template = environment.get_template("kernel.cu.j2").expect("it was just added");
    template.render(Value::from(Serde(context))).expect("the context has every variable")
}

/// The variables that the template uses.
#[cfg(test)]
pub(super) fn template_variables() -> std::collections::BTreeSet<String> {
    let environment = environment();
    let template = environment.get_template("kernel.cu.j2").expect("it was just added");
    template.undeclared_variables(false).into_iter().collect()
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    let syntax = minijinja::syntax::SyntaxConfig::builder()
        .trim_blocks(true)
        .lstrip_blocks(true)
        .keep_trailing_newline(true)
        .build()
        .expect("the syntax is minijinja's own");
    environment.set_syntax(syntax);
    environment.add_template("kernel.cu.j2", TEMPLATE).expect("the template parses");
    environment
}

pub(super) fn context(spec: &KernelSpec) -> Context {
    let KernelSpec { target, configuration, epilogue } = spec;
    let output = epilogue.destination();
    let others = outputs::others(epilogue);
    let results = if epilogue.is_plain() { Vec::new() } else { body::results(epilogue) };
    let d = epilogue.d().map(|d| epilogue.outputs[d].of);
    let result_of_d = results.iter().position(|result| Some(*result) == d);
    // Without a source the type is void, and the alignment of D stands in for it.
    let element_c = epilogue.source().map_or("void", element_type);
    let pointer_c = match (epilogue.c, epilogue.source_operand()) {
        (Some(_), _) => Some("p.c".to_owned()),
        (None, operand) => operand.map(|operand| format!("p.operands[{operand}]")),
    };
    let alignment = |element: ElementType| 128 / element.storage_bits();
    let matrices = epilogue.operands.iter().filter(|operand| operand.shape == OperandShape::Matrix);
    // Without D CUTLASS asks nothing of N, not even what C asks.
    let source = epilogue.source().filter(|_| d.is_none());
    let n_multiples = matrices.map(|matrix| alignment(matrix.element)).chain(source.map(alignment));
    let n_multiples = n_multiples.chain(others.iter().map(|other| other.n_multiple));
    let mut required = vec!["pointers.a", "pointers.sfa", "pointers.b", "pointers.sfb"];
    required.extend(epilogue.c.map(|_| "pointers.c"));
    Context {
        head: HEAD,
        headers: headers(configuration.family),
        generator: env!("CARGO_PKG_VERSION"),
        kernel: spec.name(),
        target: target.name,
        hash: String::new(),
        signature: spec.signature(),
        formula: body::formula(epilogue),
        // A and B are of one format wherever there are defaults.
        scale: configuration.a.format.scale_text(),
        block: configuration.a.format.scale_vector(),
        operand_type: configuration.a.format.type_text(),
        functions: body::functions(epilogue),
        operands: nodes(epilogue),
        operand_alignments: epilogue.operands.iter().map(|operand| pointer_alignment(*operand)).collect(),
        max_operands: MAX_OPERANDS,
        n_multiple: n_multiples.max().unwrap_or(1),
        body: body::statements(epilogue),
        results: results.len(),
        result_of_d: result_of_d.map_or(-1, |index| index as i64),
        has_d: d.is_some(),
        outputs: outputs::tensors(epilogue),
        output_texts: outputs::texts(epilogue),
        clears: outputs::clears(epilogue),
        max_outputs: MAX_OUTPUTS,
        root_node: if results.is_empty() {
            "cutlass::epilogue::fusion::Sm90Compute<Epilogue, ElementD, float, cutlass::FloatRoundStyle::round_to_nearest>"
        } else {
            "Writer<Outputs>"
        },
        root_arguments: if results.is_empty() { "{}".to_owned() } else { outputs::arguments(&others) },
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
        required_pointers: required.join(", "),
        scalars: [(epilogue.alpha, "alpha"), (epilogue.beta, "beta")]
            .into_iter()
            .filter_map(|(present, name)| present.then_some(name))
            .collect(),
        tile: configuration.tile,
        tile_type: configuration.tile_type(),
        cta_tile: configuration.cta_tile(),
        cluster: match configuration.cluster {
            Cluster::Static(extents) => extents,
            Cluster::Dynamic => [0, 0],
        },
        cluster_type: configuration.cluster_type(),
        arch_tag: configuration.arch_tag(),
        epilogue_class_tag: configuration.epilogue_class_tag(),
        epilogue_tile_type: configuration.epilogue_tile_type(),
        epilogue_tag: configuration.epilogue_tag(),
        mainloop_tag: configuration.mainloop_tag(),
        stages_type: configuration.stages_type("CollectiveEpilogue"),
        scheduler_tag: configuration.scheduler_tag(),
        abi_version: ABI_VERSION,
    }
}

pub(super) fn element_type(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "cutlass::half_t",
        ElementType::BF16 => "cutlass::bfloat16_t",
        ElementType::F8E4M3FN => "cutlass::float_e4m3_t",
        ElementType::F8E5M2 => "cutlass::float_e5m2_t",
        _ => "float",
    }
}

/// Bytes that the address of an operand is a multiple of: those of an element, but for vectors and matrices.
fn pointer_alignment(operand: super::Operand) -> u32 {
    match operand.shape {
        OperandShape::Scalar => (operand.element.storage_bits() / 8) as u32,
        OperandShape::Row | OperandShape::Column | OperandShape::Matrix => 16,
    }
}

fn nodes(epilogue: &Epilogue) -> Vec<Node> {
    const FUSION: &str = "cutlass::epilogue::fusion";
    let node = |name: &str, node: String, arguments: String| Node { name: name.to_owned(), node, arguments };
    let scalar = |name: &str| {
        node(name, format!("{FUSION}::Sm90ScalarBroadcast<float>"), format!("{{ {{}}, {{p.{name}}}, {{}} }}"))
    };
    let source = |name: &str| node(name, format!("{FUSION}::Sm90SrcFetch<ElementC>"), "{}".to_owned());
    let mut nodes = vec![node("acc", format!("{FUSION}::Sm90AccFetch"), "{}".to_owned())];
    nodes.extend(epilogue.alpha.then(|| scalar("alpha")));
    nodes.extend(epilogue.c.map(|_| source("c")));
    nodes.extend(epilogue.beta.then(|| scalar("beta")));
    // The scale of a quantized tensor is read by whoever writes it.
    let is_used =
        |index: usize| epilogue.steps.iter().any(|step| step.operands.contains(&EpilogueRef::Operand(index)));
    let used = epilogue.operands.iter().enumerate().filter(|(index, _)| is_used(*index));
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
            // One element at a time: the rows of a matrix need not begin at a multiple of anything.
            OperandShape::Column => node(
                &name,
                format!("{FUSION}::Sm90ColBroadcast<0, CtaTileShape, {ty}, float, ColumnStride, 1>"),
                format!("{{{pointer}, {ty}(0), ColumnStride{{cute::_1{{}}, cute::_0{{}}, problem.m}} }}"),
            ),
            OperandShape::Matrix if epilogue.source_operand() == Some(index) => source(&name),
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

/// FNV-1a, 64 bits: an identity for people and for comparing a library with its source, not a defence.
fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
