//! Fills the template of the kernel.

use fourfold_ir::{ElementType, UnaryKind};
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::Serialize;

use super::{KernelSpec, StepKind, functions};
use crate::configuration::{Cluster, Family};

/// The version of the C interface of generated kernels. Raised by every change to it.
pub const ABI_VERSION: u32 = 2;

const TEMPLATE: &str = include_str!("kernel.cu.j2");

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
    generator: &'static str,
    kernel: String,
    target: &'static str,
    hash: String,
    signature: String,
    formula: String,
    /// `ue4m3` or `ue8m0`.
    scale: &'static str,
    /// Elements of K that share a scale.
    block: u32,
    operand_type: &'static str,
    functions: Vec<String>,
    operands: Vec<Operand>,
    body: Vec<String>,
    element_c: &'static str,
    element_d: &'static str,
    alignment_c: usize,
    alignment_d: usize,
    pointer_c: &'static str,
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

/// An operand of the epilogue: its name in the function, its node in the visitor tree, and that node's arguments.
#[derive(Serialize)]
struct Operand {
    name: &'static str,
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
    let output = epilogue.output();
    // Without C the type is void, and the alignment of D stands in for it.
    let element_c = epilogue.c.map_or("void", element_type);
    let alignment = |element: ElementType| 128 / element.storage_bits();
    let mut required = vec!["pointers.a", "pointers.sfa", "pointers.b", "pointers.sfb"];
    required.extend(epilogue.c.map(|_| "pointers.c"));
    required.extend(epilogue.bias().map(|_| "pointers.bias"));
    let mut required: Vec<String> = required.into_iter().map(str::to_owned).collect();
    required.push("static_cast<void const *>(pointers.d)".to_owned());
    Context {
        generator: env!("CARGO_PKG_VERSION"),
        kernel: spec.name(),
        target: target.name,
        hash: String::new(),
        signature: spec.signature(),
        formula: formula(spec),
        // A and B are of one format wherever there are defaults.
        scale: configuration.a.format.scale_text(),
        block: configuration.a.format.scale_vector(),
        operand_type: configuration.a.format.type_text(),
        functions: functions_of(spec),
        operands: operands(spec),
        body: body(spec),
        element_c,
        element_d: element_type(output),
        alignment_c: alignment(epilogue.c.unwrap_or(output)),
        alignment_d: alignment(output),
        pointer_c: if epilogue.c.is_some() { "static_cast<ElementC const *>(p.c)" } else { "nullptr" },
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

fn element_type(element: ElementType) -> &'static str {
    match element {
        ElementType::F16 => "cutlass::half_t",
        ElementType::BF16 => "cutlass::bfloat16_t",
        _ => "float",
    }
}

/// The functions that the epilogue calls, each once, and the roundings of narrow steps.
fn functions_of(spec: &KernelSpec) -> Vec<String> {
    let epilogue = &spec.epilogue;
    let mut elements: Vec<ElementType> = narrowings(spec);
    elements.sort_unstable();
    elements.dedup();
    let mut functions: Vec<String> = elements.into_iter().map(rounding_source).collect();
    let mut kinds: Vec<UnaryKind> = epilogue
        .steps
        .iter()
        .filter_map(|step| match step.kind {
            StepKind::Activation(kind) => Some(kind),
            _ => None,
        })
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    functions.extend(functions::sources(&kinds));
    functions
}

/// The element types that something before the last rounding is rounded to. The last is the conversion to D.
fn narrowings(spec: &KernelSpec) -> Vec<ElementType> {
    let epilogue = &spec.epilogue;
    let mut elements = vec![epilogue.accumulator];
    elements.extend(epilogue.steps.iter().map(|step| step.element));
    elements.pop();
    elements.retain(|element| *element != ElementType::F32);
    elements
}

fn rounding_source(element: ElementType) -> String {
    let ty = element_type(element);
    format!(
        "__device__ __forceinline__ float round_{element}(float x) {{\n  return static_cast<float>({ty}(x));\n}}\n"
    )
}

fn operands(spec: &KernelSpec) -> Vec<Operand> {
    const FUSION: &str = "cutlass::epilogue::fusion";
    let epilogue = &spec.epilogue;
    let scalar = |name: &'static str| Operand {
        name,
        node: format!("{FUSION}::Sm90ScalarBroadcast<float>"),
        arguments: format!("{{ {{}}, {{p.{name}}}, {{}} }}"),
    };
    let mut operands =
        vec![Operand { name: "acc", node: format!("{FUSION}::Sm90AccFetch"), arguments: "{}".to_owned() }];
    operands.extend(epilogue.alpha.then(|| scalar("alpha")));
    operands.extend(epilogue.c.map(|_| Operand {
        name: "c",
        node: format!("{FUSION}::Sm90SrcFetch<ElementC>"),
        arguments: "{}".to_owned(),
    }));
    operands.extend(epilogue.beta.then(|| scalar("beta")));
    operands.extend(epilogue.bias().map(|element| {
        let ty = element_type(element);
        Operand {
            name: "bias",
            node: format!("{FUSION}::Sm90RowBroadcast<0, CtaTileShape, {ty}, float>"),
            arguments: format!("{{static_cast<{ty} const *>(p.bias), {ty}(0), {{}} }}"),
        }
    }));
    operands
}

/// The statements that turn the accumulator `v` into the element of D.
fn body(spec: &KernelSpec) -> Vec<String> {
    let epilogue = &spec.epilogue;
    let mut lines = Vec::new();
    if epilogue.alpha {
        lines.push("v = __fmul_rn(alpha[i], v);".to_owned());
    }
    if epilogue.c.is_some() {
        let beta = if epilogue.beta { "beta[i]" } else { "1.0f" };
        lines.push(format!("v = __fmaf_rn({beta}, c[i], v);"));
    }
    let mut rounding = epilogue.accumulator;
    for step in &epilogue.steps {
        if rounding != ElementType::F32 {
            lines.push(format!("v = round_{rounding}(v);"));
        }
        match step.kind {
            StepKind::ColumnBias(_) => lines.push("v = __fadd_rn(v, bias[i]);".to_owned()),
            StepKind::Activation(kind) => lines.push(format!("v = fn_{}(v);", kind.name())),
            StepKind::Convert => {}
        }
        rounding = step.element;
    }
    lines
}

/// What the kernel computes, for its reader.
fn formula(spec: &KernelSpec) -> String {
    let epilogue = &spec.epilogue;
    let mut text = "sum over k of (A · SFA)[l, m, k] · (B · SFB)[l, n, k]".to_owned();
    if epilogue.alpha {
        text = format!("alpha · {text}");
    }
    if epilogue.c.is_some() {
        text = format!("{text} + {}C[l, m, n]", if epilogue.beta { "beta · " } else { "" });
    }
    let mut rounding = epilogue.accumulator;
    for step in &epilogue.steps {
        if rounding != ElementType::F32 {
            text = format!("{rounding}({text})");
        }
        text = match step.kind {
            StepKind::ColumnBias(_) => format!("{text} + bias[n]"),
            StepKind::Activation(kind) => format!("{kind}({text})"),
            StepKind::Convert => text,
        };
        rounding = step.element;
    }
    format!("{rounding}({text})")
}

/// FNV-1a, 64 bits: an identity for people and for comparing a library with its source, not a defence.
fn fnv1a(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    format!("{hash:016x}")
}
