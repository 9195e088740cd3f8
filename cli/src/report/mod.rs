//! The report of `replay` and `explain`, as one object for scripts and as text for people.

mod bundle;
mod choices;
mod decisions;
mod memory;
mod summary;
mod text;
mod verification;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use fourfold::{Fault, Planned};
use fourfold_executor::{LaunchRecord, Resources};
use fourfold_ir::{Dim, ElementType, Module};
use fourfold_scheduler::{
    Constraint, EpilogueKind, EpilogueRef, KernelOutput, OutputKind, Plan, RowOutputKind, RowPlan,
    RowStepKind, ScaledMmaPlan,
};
use serde::Serialize;

use crate::error::exit_code;

pub use bundle::{Bundle, Lack};
pub use choices::ChoiceReport;
pub use memory::{MemoryPartReport, MemoryReport};
pub use summary::Summary;
pub(crate) use text::counted;
pub use verification::{LeftOut, LeftOutFile, OffDevice, VerifyLaunch, VerifyReport, VerifyRow};

/// The report of one program. Its keys are a stable interface: keys may be added, never changed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// True if every expectation was met and, unless no value has elements, at least one was compared. Also false
    /// if a required kernel did not run or a requested bundle was not written.
    pub ok: bool,
    /// The fault if `ok` is false without a mismatch: an expectation does not fit its value, or nothing could be
    /// compared.
    pub fault: Option<Fault>,
    /// The program's file.
    pub file: String,
    /// The target of the plan.
    pub target: String,
    /// The GPU that runs the target's kernels; null without one.
    pub device: Option<String>,
    /// The origin of the inputs.
    pub inputs: Option<String>,
    /// The extents of the symbols in this run.
    pub symbols: BTreeMap<String, u64>,
    /// The number of planned kernel segments.
    pub kernels: usize,
    /// The number of kernel segments that ran as a kernel.
    pub ran_kernels: usize,
    /// The segments, in the order in which they run.
    pub segments: Vec<SegmentReport>,
    /// The decisions: one for each op of the original program, in order, then one for each op that normalization
    /// inserted.
    pub decisions: Vec<DecisionReport>,
    /// The choices by an extent; absent if the program has none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<ChoiceReport>,
    /// The number of comparisons with at least one element.
    pub compared: usize,
    /// The comparisons.
    pub outputs: Vec<OutputReport>,
    /// Ops of the normalized program that lost a rounding the program states, each with the rules that drop it.
    pub contracted: Vec<String>,
    /// Other remarks.
    pub notes: Vec<String>,
    /// The bundle that was written.
    pub bundle: Option<Bundle>,
    /// The reason why a requested bundle was not written.
    pub bundle_error: Option<String>,
    /// The memory of the program's intermediates; absent unless `explain --memory` asks for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryReport>,
    /// True if the text shows the proof of each kernel.
    #[serde(skip)]
    pub show_proof: bool,
}

/// One segment.
#[derive(Clone, Debug, Serialize)]
pub struct SegmentReport {
    /// `kernel` or `fallback`.
    pub kind: &'static str,
    /// The ops of the normalized program, as `%name = mnemonic`.
    pub ops: Vec<String>,
    /// The name of the kernel; null for a fallback segment.
    pub kernel: Option<String>,
    /// The extents of the kernel, as `L=… M=… N=… K=…`.
    pub extents: Option<String>,
    /// The rules that fuse the ops into one kernel.
    pub rules: Vec<String>,
    /// The full justification, in order: each rewrite of normalization with the ops before and after, then each
    /// rule that fuses an op.
    pub proof: Vec<String>,
    /// The constraints that a call must meet to launch the kernel.
    pub constraints: Vec<String>,
    /// The configuration of the kernel: its tile, cluster and schedules.
    pub configuration: Option<String>,
    /// The reason for this configuration.
    pub why: Option<String>,
    /// The resources of the built kernel; null unless it was built.
    pub resources: Option<ResourceReport>,
    /// `kernel`, `emulated`, `fallback` or `not_run`.
    pub ran: &'static str,
    /// The reason code if the segment did not run as a kernel.
    pub reason: Option<String>,
    /// The reason as text.
    pub message: Option<String>,
    /// The time of the segment, transfers included.
    pub seconds: Option<f64>,
    /// The time of the kernel on the device; null if the segment did not run as a kernel.
    pub kernel_seconds: Option<f64>,
    /// The bytes transferred to the device.
    pub bytes_to_device: u64,
    /// The bytes transferred from the device.
    pub bytes_to_host: u64,
    /// The arguments of the launch; null except in debug mode.
    pub launch: Option<LaunchRecord>,
}

/// The resources of a built kernel, read back from its binary.
#[derive(Clone, Debug, Serialize)]
pub struct ResourceReport {
    /// Registers per thread.
    pub registers: Option<u32>,
    /// Bytes of spill stores per thread.
    pub spill_stores: Option<u32>,
    /// Bytes of spill loads per thread.
    pub spill_loads: Option<u32>,
    /// Bytes of shared memory per block.
    pub shared_memory: u64,
    /// Threads per block.
    pub threads: u32,
    /// Stages of the main loop.
    pub stages: Option<u32>,
    /// Matrix instructions and scale copies.
    pub opcodes: BTreeMap<String, usize>,
    /// The number of instructions.
    pub instructions: usize,
    /// The size of the library in bytes.
    pub library_bytes: u64,
    /// The time of the compiler.
    pub compile_seconds: f64,
    /// The time of the disassembler.
    pub census_seconds: f64,
}

impl From<&Resources> for ResourceReport {
    fn from(resources: &Resources) -> ResourceReport {
        ResourceReport {
            registers: resources.registers,
            spill_stores: resources.spill_stores,
            spill_loads: resources.spill_loads,
            shared_memory: resources.shared_memory,
            threads: resources.threads,
            stages: resources.stages,
            opcodes: resources.opcodes.clone(),
            instructions: resources.instructions,
            library_bytes: resources.library_bytes,
            compile_seconds: resources.compile_time.as_secs_f64(),
            census_seconds: resources.census_time.as_secs_f64(),
        }
    }
}

impl fmt::Display for ResourceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<u32>| value.map_or("?".to_owned(), |value| value.to_string());
        let (registers, spills) = (number(self.registers), number(self.spill_stores));
        let (shared, threads) = (self.shared_memory, self.threads);
        // A kernel without a mainloop has no stages.
        let stages = self.stages.map_or(String::new(), |stages| format!("{stages} stages, "));
        write!(
            f,
            "{registers} registers, {spills} B spilled, {stages}{shared} B shared, {threads} threads; "
        )?;
        for (opcode, count) in &self.opcodes {
            write!(f, "{count} {opcode}, ")?;
        }
        write!(f, "{:.0} s to build", self.compile_seconds + self.census_seconds)
    }
}

/// The decision on one op.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionReport {
    /// The op, as `%name = mnemonic`.
    pub op: String,
    /// The position of the op's segment.
    pub segment: Option<usize>,
    /// The reason code of an op outside kernels; null for an op in one.
    pub code: Option<&'static str>,
    /// The reason or the op's role as text.
    pub message: String,
    /// The remedy for the program's author.
    pub advice: Option<&'static str>,
    /// The op of the normalized program that replaces it; null if it is unchanged or gone.
    pub became: Option<String>,
    /// True if normalization inserted the op.
    pub inserted: bool,
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct OutputReport {
    /// The name of the value.
    pub name: String,
    /// The segment that computed it; null for an input.
    pub segment: Option<usize>,
    /// The rule: `bit-equal` (a zero may have either sign, codes excepted), or the largest difference allowed.
    pub rule: String,
    /// The reference: a tensor of the data, `interpreter` or `fallback`.
    pub expected: String,
    /// The origin of the value: `run`, or `interpreter` for a value that was fused away.
    pub source: &'static str,
    /// The number of compared elements.
    pub elements: usize,
    /// The largest difference. It is infinite, which JSON writes as null, if only one side is NaN or infinite.
    pub max_abs_err: f64,
    /// The largest difference over the largest magnitude.
    pub max_rel_err: f64,
    /// The largest `max_rel_err` allowed; null if differing codes are counted instead.
    pub tolerance: Option<f64>,
    /// The number of codes that may differ, if they are counted.
    pub may_differ: Option<usize>,
    /// The number of elements that are too far apart.
    pub mismatches: usize,
    /// The number of elements that were rounded the other way, or whose code or scale moved with a legitimate
    /// error of its operand. Such an element lies near the middle of two neighbours, or is one step off where the
    /// unrounded value is unknown. It adds neither to the mismatches nor to the errors above.
    pub moved_roundings: usize,
    /// The largest difference among the moved elements.
    pub moved_max_abs_err: f64,
    /// The worst mismatch.
    pub worst: Option<WorstReport>,
    /// The reason why nothing was compared: the expectation does not fit the value. Null otherwise.
    pub error: Option<String>,
    /// True if `ok` proves little: the data have the expectation, the tolerance is that of a value behind an FP4 or
    /// FP8 quantization, and the error exceeds the tolerance of the value's own type.
    pub loose: bool,
    /// True if nothing is wrong but too few elements have a bound to call the value right. `ok` is false then.
    #[serde(skip)]
    pub unbounded: bool,
    /// True if the expectation is met.
    pub ok: bool,
}

/// One mismatching element.
#[derive(Clone, Debug, Serialize)]
pub struct WorstReport {
    /// The index, outermost first.
    pub index: Vec<usize>,
    /// The computed value, as text so that NaN and infinity survive JSON.
    pub got: String,
    /// The expected value.
    pub want: String,
}

impl Report {
    /// Sets the verdict. `has_elements` is true if an output of the run has elements.
    pub(crate) fn conclude(&mut self, has_elements: bool) {
        self.compared = self.outputs.iter().filter(|output| output.elements > 0).count();
        let is_unfit = self.outputs.iter().any(|output| output.error.is_some());
        let is_wrong = self.outputs.iter().any(|output| !output.ok && output.error.is_none());
        self.fault = match (is_wrong, is_unfit) {
            (true, _) => None,
            (false, true) => Some(Fault::InvalidInput),
            // Every value is too large for the interpreter.
            (false, false) if self.compared == 0 && has_elements => Some(Fault::ResourceLimit),
            (false, false) => None,
        };
        self.ok = !is_wrong && self.fault.is_none();
    }

    /// Returns the exit code: 1 for a mismatch, else that of the fault.
    pub fn exit_code(&self) -> u8 {
        match self.fault {
            Some(fault) => exit_code(fault),
            None => u8::from(!self.ok),
        }
    }

    /// Creates the report of a plan that has not run.
    pub fn of_plan(file: &str, planned: &Planned) -> Report {
        let module = planned.program().module();
        let partition = planned.partition();
        let segments = partition
            .segments
            .iter()
            .map(|segment| {
                let (plan, kernel) = (segment.plan(), segment.kernel());
                SegmentReport {
                    kind: segment.tier().name(),
                    ops: segment.ops.iter().map(|op| module.op_label(*op)).collect(),
                    kernel: plan.map(|plan| plan_name(module, plan)),
                    extents: plan.map(|plan| extents(module, plan)),
                    rules: kernel.map_or_else(Vec::new, |plan| plan.proof.clone()),
                    proof: kernel.map_or_else(Vec::new, |plan| decisions::proof(planned, segment, plan)),
                    constraints: plan.map_or_else(Vec::new, |plan| constraints(module, plan)),
                    configuration: None,
                    why: None,
                    resources: None,
                    ran: "not_run",
                    reason: None,
                    message: None,
                    seconds: None,
                    kernel_seconds: None,
                    bytes_to_device: 0,
                    bytes_to_host: 0,
                    launch: None,
                }
            })
            .collect::<Vec<_>>();
        Report {
            ok: true,
            fault: None,
            file: file.to_owned(),
            target: partition.target.clone(),
            device: None,
            inputs: None,
            symbols: BTreeMap::new(),
            kernels: partition.kernels().count(),
            ran_kernels: 0,
            segments,
            decisions: decisions::decisions(planned),
            choices: choices::choices(planned),
            compared: 0,
            outputs: Vec::new(),
            contracted: decisions::contracted(planned),
            notes: Vec::new(),
            bundle: None,
            bundle_error: None,
            memory: None,
            show_proof: false,
        }
    }
}

impl OutputReport {
    /// A report on an expectation that does not fit its value.
    pub(crate) fn unfit(name: &str, expected: &str, why: String) -> OutputReport {
        OutputReport {
            name: name.to_owned(),
            segment: None,
            rule: String::new(),
            expected: expected.to_owned(),
            source: "run",
            elements: 0,
            max_abs_err: 0.0,
            max_rel_err: 0.0,
            tolerance: None,
            may_differ: None,
            mismatches: 0,
            moved_roundings: 0,
            moved_max_abs_err: 0.0,
            worst: None,
            error: Some(why),
            loose: false,
            unbounded: false,
            ok: false,
        }
    }
}

/// A readable name of a segment on the GPU: [`kernel_name`], `block_quantize>nvfp4`, `row+mul+mean+rsqrt>nvfp4`,
/// `move:transpose`, `column:amax`, `mma`, `view`, `choose`, `constant`.
pub fn plan_name(module: &Module, plan: &Plan) -> String {
    match plan {
        Plan::Row(plan) => row_name(plan),
        Plan::Move(plan) => format!("move:{}", module.ops[plan.op].kind.mnemonic()),
        Plan::Column(plan) => format!("column:{}", plan.program.kind),
        Plan::Mma(_) | Plan::View(_) | Plan::Choose(_) | Plan::Constant(_) => plan.kind_name().to_owned(),
        Plan::ScaledMma(plan) => kernel_name(plan),
        Plan::BlockQuantize(plan) => {
            format!("block_quantize>{}", quantized_name(plan.format.element, plan.scale_rounding.is_some()))
        }
    }
}

fn row_name(plan: &RowPlan) -> String {
    let functions = plan.program.steps.iter().filter_map(|step| match step.kind {
        RowStepKind::Constant(_) | RowStepKind::Convert => None,
        RowStepKind::Unary(kind) => Some(kind.name()),
        RowStepKind::Binary(kind) => Some(kind.name()),
        RowStepKind::Bitwise(kind) => Some(kind.name()),
        RowStepKind::Bitcast => Some("bitcast"),
        RowStepKind::Dequantize => Some("dequantize"),
        RowStepKind::Clamp { .. } => Some("clamp"),
        RowStepKind::Compare(predicate) => Some(predicate.name()),
        RowStepKind::Select => Some("select"),
        RowStepKind::Reduce(kind) => Some(kind.name()),
    });
    let outputs = plan.program.outputs.iter().map(|output| match output.kind {
        RowOutputKind::Value => plan.program.element(output.of).to_string(),
        RowOutputKind::Quantized { format, scale_rounding, .. } => {
            quantized_name(format.element, scale_rounding.is_some())
        }
    });
    format!("row{}>{}", function_names(functions), outputs.collect::<Vec<_>>().join(","))
}

/// Joins the names of functions, each after a `+`.
fn function_names<'a>(functions: impl Iterator<Item = &'a str>) -> String {
    /// Functions beyond this number are counted, not named.
    const NAMED: usize = 8;
    let functions: Vec<&str> = functions.collect();
    let mut name: String = functions.iter().take(NAMED).flat_map(|function| ["+", function]).collect();
    if NAMED < functions.len() {
        let _ = write!(name, "+{} more", functions.len() - NAMED);
    }
    name
}

/// A readable name of a format of codes and scales.
fn quantized_name(element: ElementType, is_mx: bool) -> String {
    match (is_mx, element) {
        (false, _) => "nvfp4".to_owned(),
        (true, ElementType::F4E2M1FN) => "mxfp4".to_owned(),
        (true, element) => format!("mx:{element}"),
    }
}

/// Returns a readable name of a kernel from its format, epilogue and outputs, such as
/// `nvfp4_scaled_mm+alpha+add+gelu>bf16`, or `nvfp4_grouped_scaled_mm>bf16` and `nvfp4_masked_scaled_mm>bf16` for rows in
/// groups.
pub fn kernel_name(plan: &ScaledMmaPlan) -> String {
    let grouped = match &plan.groups {
        Some(groups) if groups.masked => "masked_",
        Some(_) => "grouped_",
        None => "",
    };
    let mut name = format!("{}_{grouped}scaled_mm", plan.format);
    let parts = [
        (plan.pair.is_some(), "pair"),
        (plan.alpha.is_some(), "alpha"),
        (plan.c.is_some(), "c"),
        (plan.beta.is_some(), "beta"),
    ];
    for (present, text) in parts {
        if present {
            name.push('+');
            name.push_str(text);
        }
    }
    name.push_str(&function_names(plan.epilogue.iter().filter_map(|step| function(&step.kind))));
    let outputs: Vec<String> = plan.outputs.iter().map(|output| output_name(plan, output)).collect();
    name.push('>');
    name.push_str(&outputs.join(","));
    name
}

/// Returns the name of an output: `bf16`, `nvfp4`, `mx:f8E4M3FN`, `amax:row`.
fn output_name(plan: &ScaledMmaPlan, output: &KernelOutput) -> String {
    match output.kind {
        OutputKind::Value { .. } => match output.of {
            EpilogueRef::Step(step) => plan.epilogue.get(step).map_or(plan.accumulator, |step| step.element),
            EpilogueRef::Accumulator | EpilogueRef::Odd | EpilogueRef::Operand(_) => plan.accumulator,
        }
        .to_string(),
        OutputKind::Quantized { element, scale_rounding, .. } => {
            quantized_name(element, scale_rounding.is_some())
        }
        OutputKind::Reduced { kind, shape, .. } => format!("{}:{shape}", kind.name()),
    }
}

/// Returns the name of the function a step computes; `None` for a constant or conversion.
fn function(kind: &EpilogueKind) -> Option<&'static str> {
    match kind {
        EpilogueKind::Constant { .. } | EpilogueKind::Convert => None,
        EpilogueKind::Unary(kind) => Some(kind.name()),
        EpilogueKind::Binary(kind) => Some(kind.name()),
        EpilogueKind::Clamp { .. } => Some("clamp"),
        EpilogueKind::Compare(predicate) => Some(predicate.name()),
        EpilogueKind::Select => Some("select"),
    }
}

fn extents(module: &Module, plan: &Plan) -> String {
    let named: Vec<String> =
        plan.dims().into_iter().map(|(name, dim)| format!("{name}={}", module.display_dim(dim))).collect();
    named.join(" ")
}

fn constraints(module: &Module, plan: &Plan) -> Vec<String> {
    let extent = |name: &str, dim: &Dim| {
        let text = module.display_dim(dim).to_string();
        if text == name { text } else { format!("{text} ({name} of the kernel)") }
    };
    let mut lines = Vec::new();
    // One line lists all pointers of one alignment, since every operand has one.
    let mut pointers: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for constraint in plan.constraints() {
        match constraint {
            Constraint::Multiple { name, dim, of, .. } => {
                lines.push(format!("{} is a multiple of {of}", extent(name, dim)));
            }
            Constraint::AtMost { name, dim, limit } => {
                lines.push(format!("{} is at most {limit}", extent(name, dim)));
            }
            Constraint::ScaleBytes { name, limit, .. } => {
                lines.push(format!("the scales of {name} take at most {limit} bytes"));
            }
            Constraint::Tiles { tile: [rows, columns], limit, .. } => {
                lines.push(format!("the result has at most {limit} tiles of {rows}x{columns}"));
            }
            Constraint::NotEmpty { name, dim } => lines.push(format!("{} is not zero", extent(name, dim))),
            Constraint::PointerAlignment { value, bytes } => {
                pointers.entry(*bytes).or_default().push(format!("%{}", module.name_of(*value)));
            }
        }
    }
    lines.extend(
        pointers.iter().map(|(bytes, names)| format!("{} are aligned to {bytes} bytes", names.join(", "))),
    );
    lines
}
