//! Kernels whose template is somebody else's.

use minijinja::value::{Serde, Value};
use serde::Serialize;

use super::{ABI_VERSION, KernelSource, MAX_OPERANDS, MAX_OUTPUTS, environment, fnv1a};
use crate::targets::{MAX_GRID_YZ, Target};

/// A kernel made from a template of its own, which extends `source.cu.j2`: its blocks are filled there, and the
/// interface, the launch and what every library answers are those of all kernels.
#[derive(Clone, Debug)]
pub struct Templated<'a, C> {
    /// The template's text.
    pub template: &'a str,
    /// The kernel's readable name.
    pub kernel: String,
    /// What it is compiled for.
    pub target: &'static Target,
    /// What the name of an instruction in the binary must begin with.
    pub opcode: &'static str,
    /// The variables of the template, and those of `source.cu.j2` and `abi.cu.j2` that are not the same for all kernels.
    pub context: C,
}

#[derive(Serialize)]
struct Context<'a, C> {
    generator: &'static str,
    kernel: &'a str,
    target: &'static str,
    hash: &'a str,
    max_operands: usize,
    max_outputs: usize,
    /// The most blocks along y and z of a grid.
    max_grid_yz: u64,
    abi_version: u32,
    #[serde(flatten)]
    own: &'a C,
}

/// The source of a kernel with its own template. Equal arguments give equal bytes.
///
/// # Panics
/// When the template does not fit its context, which is a bug that every test of it would show.
pub fn emit_template<C: Serialize>(kernel: Templated<'_, C>) -> KernelSource {
    let Templated { template, kernel, target, opcode, context } = kernel;
    let environment = environment();
    let template = environment.template_from_str(template).expect("the template parses");
    let render = |hash: &str| {
        let context = Context {
            generator: env!("CARGO_PKG_VERSION"),
            kernel: &kernel,
            target: target.name,
            hash,
            max_operands: MAX_OPERANDS,
            max_outputs: MAX_OUTPUTS,
            max_grid_yz: MAX_GRID_YZ,
            abi_version: ABI_VERSION,
            own: &context,
        };
        template.render(Value::from(Serde(&context))).expect("the context has every variable")
    };
    // The text without its hash is what is hashed.
    let hash = fnv1a(render("").as_bytes());
    let text = render(&hash);
    KernelSource {
        text,
        kernel,
        target: target.name,
        architecture: target.name.trim_start_matches("sm_"),
        opcode,
        prelude: None,
        hash,
    }
}
