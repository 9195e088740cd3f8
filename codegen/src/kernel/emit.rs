//! Fills the templates of kernels.

use fourfold_ir::{BlockFormat, ElementType, OperandShape};
use fourfold_scheduler::EpilogueRef;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

use super::{Epilogue, KernelSpec, body, cutlass, hopper, outputs};
use crate::configuration::Family;
use crate::design::Design;
use crate::targets::MAX_GRID_YZ;

/// The version of the C interface of generated kernels. Raised by every change to it.
pub const ABI_VERSION: u32 = 4;

/// How many operands of an epilogue the interface has room for.
pub const MAX_OPERANDS: usize = 24;

/// How many tensors the interface lets a kernel write.
pub const MAX_OUTPUTS: usize = 8;

/// The template of every source, what every library answers, and the two kinds of kernels.
const SOURCE: &str = "source.cu.j2";
const ABI: &str = "abi.cu.j2";
const CUTLASS: &str = "kernel.cu.j2";
const HOPPER: &str = "hopper/kernel.cu.j2";

/// The text before CUTLASS's headers in the source of every kernel that is built with them, word for word.
pub const HEAD: &str = include_str!("head.cuh");

/// Takes its place in the source of a kernel for sm_90a, which is built without CUTLASS.
pub const HOPPER_HEAD: &str = include_str!("hopper/head.cuh");

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

/// What the templates are filled with.
#[derive(Serialize)]
pub(super) struct Context {
    head: &'static str,
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
    functions: Vec<String>,
    operand_alignments: Vec<u32>,
    max_operands: usize,
    /// What is asked of N, other than what the kernel itself asks.
    n_multiple: usize,
    body: Vec<String>,
    /// How many values the epilogue gives, by number; 0 where there is one without a number.
    results: usize,
    /// The tensors that are written, D among them.
    outputs: Vec<outputs::Tensor>,
    clears: Vec<outputs::Clear>,
    max_outputs: usize,
    /// The most blocks along y and z of a grid.
    max_grid_yz: u64,
    required_pointers: String,
    scalars: Vec<&'static str>,
    abi_version: u32,
    #[serde(flatten)]
    own: Own,
}

/// What only kernels of one kind have.
#[derive(Serialize)]
#[serde(untagged)]
enum Own {
    Cutlass(Box<cutlass::Context>),
    Hopper(Box<hopper::Context>),
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
    let opcode = match &spec.configuration {
        Design::Hopper(configuration) => configuration.opcode(),
        Design::Cutlass(configuration) => match configuration.family {
            Family::Sm100 | Family::Sm103 => "UTCOMMA",
            Family::Sm120 => "OMMA.SF",
        },
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
    let name = match context.own {
        Own::Cutlass(_) => CUTLASS,
        Own::Hopper(_) => HOPPER,
    };
    let template = environment.get_template(name).expect("it was just added");
    template.render(Value::from(Serde(context))).expect("the context has every variable")
}

/// The variables that a kernel's template uses, with those that it is made of.
#[cfg(test)]
pub(super) fn template_variables(design: &Design) -> std::collections::BTreeSet<String> {
    let environment = environment();
    let own = match design {
        Design::Cutlass(_) => CUTLASS,
        Design::Hopper(_) => HOPPER,
    };
    let of = |name| environment.get_template(name).expect("it was just added").undeclared_variables(false);
    [SOURCE, ABI, own].into_iter().flat_map(of).collect()
}

pub(super) fn environment() -> Environment<'static> {
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
    for (name, text) in [
        (SOURCE, include_str!("source.cu.j2")),
        (ABI, include_str!("abi.cu.j2")),
        (CUTLASS, include_str!("kernel.cu.j2")),
        (HOPPER, include_str!("hopper/kernel.cu.j2")),
    ] {
        environment.add_template(name, text).expect("the template parses");
    }
    environment
}

pub(super) fn context(spec: &KernelSpec) -> Context {
    let KernelSpec { target, configuration, epilogue } = spec;
    let (own, results, n_multiple) = match configuration {
        Design::Cutlass(configuration) => (
            Own::Cutlass(Box::new(cutlass::context(configuration, epilogue))),
            cutlass::results(epilogue),
            cutlass::n_multiple(epilogue),
        ),
        Design::Hopper(configuration) => (
            Own::Hopper(Box::new(hopper::context(configuration, epilogue))),
            body::results(epilogue).len(),
            hopper::n_multiple(epilogue),
        ),
    };
    // A and B are of one format wherever there are defaults.
    let block = configuration.block_format().map_or(BlockFormat::NVFP4.block, |format| format.block);
    let mut required = vec!["pointers.a", "pointers.sfa", "pointers.b", "pointers.sfb"];
    required.extend(epilogue.c.map(|_| "pointers.c"));
    Context {
        head: match configuration {
            Design::Cutlass(_) => HEAD,
            Design::Hopper(_) => HOPPER_HEAD,
        },
        generator: env!("CARGO_PKG_VERSION"),
        kernel: spec.name(),
        target: target.name,
        hash: String::new(),
        signature: spec.signature(),
        formula: body::formula(epilogue),
        scale: if block == BlockFormat::NVFP4.block { "ue4m3" } else { "ue8m0" },
        block,
        functions: body::functions(epilogue),
        operand_alignments: epilogue.operands.iter().map(|operand| pointer_alignment(*operand)).collect(),
        max_operands: MAX_OPERANDS,
        n_multiple,
        body: body::statements(epilogue, results == 0),
        results,
        outputs: outputs::tensors(epilogue),
        clears: outputs::clears(epilogue),
        max_outputs: MAX_OUTPUTS,
        max_grid_yz: MAX_GRID_YZ,
        required_pointers: required.join(", "),
        scalars: [(epilogue.alpha, "alpha"), (epilogue.beta, "beta")]
            .into_iter()
            .filter_map(|(present, name)| present.then_some(name))
            .collect(),
        abi_version: ABI_VERSION,
        own,
    }
}

/// Elements in 16 bytes, which is what TMA moves.
pub(super) fn alignment(element: ElementType) -> usize {
    128 / element.storage_bits()
}

/// Whether a step reads an operand. The scale of a quantized tensor is read by whoever writes it.
pub(super) fn is_used(epilogue: &Epilogue, operand: usize) -> bool {
    epilogue.steps.iter().any(|step| step.operands.contains(&EpilogueRef::Operand(operand)))
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

/// FNV-1a, 64 bits: an identity for people and for comparing a library with its source, not a defence.
pub(super) fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
