//! Emits the source of a `scaled_mma` kernel from its specification. Pure: equal specifications give equal
//! bytes.

#[cfg(test)]
mod tests;

use fourfold_ir::BlockFormat;
use minijinja::value::{Serde, Value};
use serde::Serialize;

use crate::cutlass::configuration::{Family, Kind};
use crate::cutlass::template as cutlass;
use crate::design::Design;
use crate::epilogue::{body, formula, outputs};
use crate::hopper::template as hopper;
use crate::source::{Interface, KERNEL, KernelKind, KernelSource, LIMITS, Limits, fnv1a, kernel_environment};
use crate::spec::{KernelSpec, ScaledMmaSpec};

/// The template variables of every `scaled_mma` kernel.
#[derive(Serialize)]
struct Context {
    #[serde(skip)]
    template: &'static str,
    head: &'static str,
    generator: &'static str,
    kernel: String,
    target: &'static str,
    hash: String,
    signature: String,
    formula: Vec<String>,
    /// `ue4m3` or `ue8m0`.
    scale: &'static str,
    /// Elements along K per scale.
    block: u32,
    functions: Vec<String>,
    interface: Interface,
    /// The multiple of N that the epilogue requires, beyond the kernel's own.
    n_multiple: usize,
    body: Vec<String>,
    /// The number of numbered results of the epilogue; 0 for a single unnumbered one.
    results: usize,
    /// The output tensors, including D.
    outputs: Vec<outputs::Tensor>,
    clears: Vec<outputs::Clear>,
    #[serde(flatten)]
    limits: Limits,
    #[serde(flatten)]
    own: Own,
}

/// The template variables of one backend.
#[derive(Serialize)]
#[serde(untagged)]
enum Own {
    Cutlass(Box<cutlass::Context>),
    Hopper(Box<hopper::Context>),
}

/// Emits the source of a kernel.
///
/// # Panics
/// If the template does not match its context: a bug that any test of this function detects.
pub(crate) fn emit(spec: &ScaledMmaSpec) -> KernelSource {
    let mut context = context(spec);
    // The hash covers the text with an empty hash.
    let hash = fnv1a(render(&context).as_bytes());
    context.hash.clone_from(&hash);
    let text = render(&context);
    let opcode = match &spec.configuration {
        Design::Hopper(configuration) => configuration.opcode(),
        Design::Cutlass(configuration) => match (configuration.family, configuration.kind()) {
            (Family::Sm100 | Family::Sm103, Kind::Mxf8f6f4) => "UTCQMMA",
            (Family::Sm100 | Family::Sm103, _) => "UTCOMMA",
            (Family::Sm120, Kind::Mxf8f6f4) => "QMMA.SF",
            (Family::Sm120, _) => "OMMA.SF",
        },
    };
    let architecture = spec.target.name.trim_start_matches("sm_");
    KernelSource {
        text,
        kernel: context.kernel,
        kind: KernelKind::ScaledMma,
        target: spec.target.name,
        architecture,
        opcode,
        prelude: None,
        translation: None,
        hash,
    }
}

impl KernelSpec {
    /// Emits the source of the kernel. Equal specifications give equal bytes.
    ///
    /// # Panics
    /// If the template does not match its context: a bug that any test of this function detects.
    pub fn emit(&self) -> KernelSource {
        match self {
            KernelSpec::ScaledMma(spec) => spec.emit(),
            KernelSpec::BlockQuantize(spec) => spec.emit(),
            KernelSpec::Row(spec) => spec.emit(),
            KernelSpec::Move(spec) => spec.emit(),
            KernelSpec::Column(spec) => spec.emit(),
        }
    }
}

impl ScaledMmaSpec {
    /// Emits the source of the kernel.
    ///
    /// # Panics
    /// As [`KernelSpec::emit`].
    pub fn emit(&self) -> KernelSource {
        emit(self)
    }
}

fn render(context: &Context) -> String {
    let environment = kernel_environment(context.template);
    let template = environment.get_template(KERNEL).expect("the environment has it");
    template.render(Value::from(Serde(context))).expect("the context has every variable")
}

fn context(spec: &ScaledMmaSpec) -> Context {
    let ScaledMmaSpec { target, configuration, epilogue } = spec;
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
    // Defaults exist only for formats of programs.
    let block = configuration.block_format().map_or(BlockFormat::NVFP4.block, |format| format.block);
    Context {
        template: match configuration {
            Design::Cutlass(configuration) => cutlass::template(configuration),
            Design::Hopper(_) => hopper::TEMPLATE,
        },
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
        interface: spec.interface(),
        n_multiple,
        body: body::statements(epilogue, results == 0),
        results,
        outputs: outputs::tensors(epilogue),
        clears: outputs::clears(epilogue),
        limits: LIMITS,
        own,
    }
}
