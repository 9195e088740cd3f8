//! The source of a kernel from its specification. It is a pure function: equal specifications give equal bytes.

#[cfg(test)]
mod tests;

use fourfold_ir::{BlockFormat, OperandShape};
use minijinja::value::{Serde, Value};
use serde::Serialize;

use crate::cutlass::configuration::Family;
use crate::cutlass::template as cutlass;
use crate::design::Design;
use crate::epilogue::{Operand, body, formula, outputs};
use crate::hopper::template as hopper;
use crate::source::{ABI_VERSION, KernelSource, MAX_OPERANDS, MAX_OUTPUTS, environment, fnv1a};
use crate::spec::KernelSpec;
use crate::targets::MAX_GRID_YZ;

/// What the templates are filled with.
#[derive(Serialize)]
struct Context {
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

/// The name of the kernel's own template beside those of every source.
const KERNEL: &str = "kernel.cu.j2";

fn render(context: &Context) -> String {
    let mut environment = environment();
    let own = match context.own {
        Own::Cutlass(_) => cutlass::TEMPLATE,
        Own::Hopper(_) => hopper::TEMPLATE,
    };
    environment.add_template(KERNEL, own).expect("the template parses");
    let template = environment.get_template(KERNEL).expect("it was just added");
    template.render(Value::from(Serde(context))).expect("the context has every variable")
}

fn context(spec: &KernelSpec) -> Context {
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
            Design::Cutlass(_) => cutlass::HEAD,
            Design::Hopper(_) => hopper::HEAD,
        },
        generator: env!("CARGO_PKG_VERSION"),
        kernel: spec.name(),
        target: target.name,
        hash: String::new(),
        signature: spec.signature(),
        formula: formula::formula(epilogue),
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

/// Bytes that the address of an operand is a multiple of: those of an element, but for vectors and matrices.
fn pointer_alignment(operand: Operand) -> u32 {
    match operand.shape {
        OperandShape::Scalar => (operand.element.storage_bits() / 8) as u32,
        OperandShape::Row | OperandShape::Column | OperandShape::Matrix => 16,
    }
}
