//! Sources from a template with a context of its own.

use minijinja::value::{Serde, Value};
use serde::Serialize;

use super::{KernelKind, KernelSource, LIMITS, Limits, environment, fnv1a};
use crate::targets::Target;

/// A kernel made from a template of its own, which extends `source.cu.j2`: its blocks are filled there, and the
/// interface, the launch and what every library answers are those of all kernels.
#[derive(Clone, Debug)]
pub(crate) struct Templated<'a, C> {
    /// The template's text.
    pub(crate) template: &'a str,
    /// The kernel's readable name.
    pub(crate) kernel: String,
    /// The kind of kernel.
    pub(crate) kind: KernelKind,
    /// What it is compiled for.
    pub(crate) target: &'static Target,
    /// What the name of an instruction in the binary must begin with.
    pub(crate) opcode: &'static str,
    /// The variables of the template, and those of `source.cu.j2` and `abi.cu.j2` that are not the same for all kernels.
    pub(crate) context: C,
}

#[derive(Serialize)]
struct Context<'a, C> {
    generator: &'static str,
    kernel: &'a str,
    target: &'static str,
    hash: &'a str,
    #[serde(flatten)]
    limits: Limits,
    #[serde(flatten)]
    own: &'a C,
}

/// The source of a kernel with its own template. Equal arguments give equal bytes.
///
/// # Panics
/// When the template does not fit its context, which is a bug that every test of it would show.
pub(crate) fn emit_template<C: Serialize>(kernel: Templated<'_, C>) -> KernelSource {
    let Templated { template, kernel, kind, target, opcode, context } = kernel;
    let environment = environment();
    let template = environment.template_from_str(template).expect("the template parses");
    let render = |hash: &str| {
        let context = Context {
            generator: env!("CARGO_PKG_VERSION"),
            kernel: &kernel,
            target: target.name,
            hash,
            limits: LIMITS,
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
        kind,
        target: target.name,
        architecture: target.name.trim_start_matches("sm_"),
        opcode,
        prelude: None,
        hash,
    }
}
