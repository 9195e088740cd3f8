//! Sources made from a kernel's own template.

use minijinja::value::{Serde, Value};
use serde::Serialize;

use super::{KERNEL, KernelKind, KernelSource, LIMITS, Limits, fnv1a, kernel_environment};
use crate::targets::Target;

/// A kernel with its own template, which extends `source.cu.j2` and fills its blocks. The interface, the
/// launch and the library's queries are common to all kernels.
#[derive(Clone, Debug)]
pub(crate) struct Templated<C> {
    /// The template's text.
    pub(crate) template: &'static str,
    /// The kernel's readable name.
    pub(crate) kernel: String,
    /// The kind of kernel.
    pub(crate) kind: KernelKind,
    /// The compilation target.
    pub(crate) target: &'static Target,
    /// The prefix of an instruction's SASS name that must occur in the binary.
    pub(crate) opcode: &'static str,
    /// The variables of the template, and the kernel-specific ones of `source.cu.j2` and `abi.cu.j2`.
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

/// Emits the source of a kernel with its own template. Equal arguments give equal bytes.
///
/// # Panics
/// If the template does not match its context: a bug that any test of this function detects.
pub(crate) fn emit_template<C: Serialize>(kernel: Templated<C>) -> KernelSource {
    let Templated { template, kernel, kind, target, opcode, context } = kernel;
    let environment = kernel_environment(template);
    let template = environment.get_template(KERNEL).expect("the environment has it");
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
    // The hash covers the text with an empty hash.
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
        translation: None,
        hash,
    }
}
