//! What `replay` and `explain` say, as one object for scripts and as text for people.

mod bundle;
mod decisions;
mod verification;

use std::collections::BTreeMap;
use std::fmt::{self, Write};

use fourfold::{Fault, Planned};
use fourfold_executor::{LaunchRecord, Resources};
use fourfold_ir::{Dim, ElementType, Module};
use fourfold_scheduler::{
    Constraint, EpilogueKind, EpilogueRef, KernelOutput, OutputKind, Plan, ScaledMmaPlan,
};
use serde::Serialize;

use crate::error::exit_code;

pub use bundle::{Bundle, Lack};
pub use verification::{LeftOut, LeftOutFile, VerifyLaunch, VerifyReport, VerifyRow};

/// The report of one program. The keys are an interface: they are added to, not changed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// True if every expectation was met, a run with values that have elements compared at least one, and what the command
    /// was asked for besides was done: kernels that are required ran, and a bundle was written.
    pub ok: bool,
    /// The reason it is not ok, where that is no mismatch: an expectation does not fit its value, or nothing could be compared.
    pub fault: Option<Fault>,
    /// The program's file.
    pub file: String,
    /// What was planned for.
    pub target: String,
    /// The GPU that the target's kernels run on; null where there is none.
    pub device: Option<String>,
    /// Where the inputs came from.
    pub inputs: Option<String>,
    /// The extents of the symbols in this run.
    pub symbols: BTreeMap<String, u64>,
    /// Planned kernel segments.
    pub kernels: usize,
    /// Kernel segments that really ran as a kernel.
    pub ran_kernels: usize,
    /// In the order in which they run.
    pub segments: Vec<SegmentReport>,
    /// One for each op of the program as it was given, in its order; then one for each op that normalization inserted.
    pub decisions: Vec<DecisionReport>,
    /// The number of comparisons with at least one element.
    pub compared: usize,
    /// One for each comparison.
    pub outputs: Vec<OutputReport>,
    /// Ops of the normalized program that lost a rounding which the program states, each with the rules that drop it.
    pub contracted: Vec<String>,
    /// Anything else worth knowing.
    pub notes: Vec<String>,
    /// The bundle that the replay was kept in.
    pub bundle: Option<Bundle>,
    /// Why it is in none, though it should be.
    pub bundle_error: Option<String>,
    /// Whether the text shows the proof of each kernel.
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
    /// What the kernel is; null for a fallback segment.
    pub kernel: Option<String>,
    /// Its extents, as `L x M x N x K`.
    pub extents: Option<String>,
    /// The rules that make its ops one kernel.
    pub rules: Vec<String>,
    /// Every rule that justifies it, in order: those of normalization with what they turned into what, then those that
    /// make its ops one kernel, each with its op.
    pub proof: Vec<String>,
    /// What a call must meet for the kernel to be launched.
    pub constraints: Vec<String>,
    /// The configuration of the kernel: its tile, cluster and schedules.
    pub configuration: Option<String>,
    /// Why it was chosen.
    pub why: Option<String>,
    /// What the built kernel costs; null unless it was built.
    pub resources: Option<ResourceReport>,
    /// `kernel`, `emulated`, `fallback` or `not_run`.
    pub ran: &'static str,
    /// The code of why it did not run as a kernel.
    pub reason: Option<String>,
    /// The same for people.
    pub message: Option<String>,
    /// How long it took, moving data included.
    pub seconds: Option<f64>,
    /// How long its kernel took on the device; null where it did not run as one.
    pub kernel_seconds: Option<f64>,
    /// Bytes that were moved to the device for it.
    pub bytes_to_device: u64,
    /// Bytes that were moved from the device for it.
    pub bytes_to_host: u64,
    /// What its kernel was given; null but in debug mode.
    pub launch: Option<LaunchRecord>,
}

/// What a built kernel costs, read back from its binary.
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
    /// All instructions.
    pub instructions: usize,
    /// The size of the library in bytes.
    pub library_bytes: u64,
    /// How long the compiler took.
    pub compile_seconds: f64,
    /// How long the disassembler took.
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
        let (stages, shared, threads) = (number(self.stages), self.shared_memory, self.threads);
        write!(
            f,
            "{registers} registers, {spills} B spilled, {stages} stages, {shared} B shared, {threads} threads; "
        )?;
        for (opcode, count) in &self.opcodes {
            write!(f, "{count} {opcode}, ")?;
        }
        write!(f, "{:.0} s to build", self.compile_seconds + self.census_seconds)
    }
}

/// What became of one op.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionReport {
    /// `%name = mnemonic`
    pub op: String,
    /// The position of its segment.
    pub segment: Option<usize>,
    /// Why it is not in a kernel; null when it is.
    pub code: Option<&'static str>,
    /// The same for people.
    pub message: String,
    /// What the program's author can do about it.
    pub advice: Option<&'static str>,
    /// The op of the normalized program that it became; null when it is the same, or gone.
    pub became: Option<String>,
    /// Whether normalization inserted it.
    pub inserted: bool,
}

/// One comparison.
#[derive(Clone, Debug, Serialize)]
pub struct OutputReport {
    /// The value.
    pub name: String,
    /// The segment that computed it; null for an input.
    pub segment: Option<usize>,
    /// What is demanded: `bit-equal` (of values the sign of zero aside), or how far apart elements may be.
    pub rule: String,
    /// What it was compared with: a tensor of the data, or `interpreter`.
    pub expected: String,
    /// Where the value came from: `run`, or `interpreter` for one that was fused away.
    pub source: &'static str,
    /// How many elements were compared.
    pub elements: usize,
    /// The largest difference; infinite, which JSON writes as null, where one side is NaN or infinite alone.
    pub max_abs_err: f64,
    /// The same over the largest magnitude.
    pub max_rel_err: f64,
    /// What the latter may be; null where differing codes are counted instead.
    pub tolerance: Option<f64>,
    /// How many codes may differ, where they are counted.
    pub may_differ: Option<usize>,
    /// Elements too far apart.
    pub mismatches: usize,
    /// Elements rounded the other way, accepted because the unrounded value lies near the middle, or, where it is not
    /// known, because they are one step apart and few; and codes and scales of a quantization that a legitimate error of
    /// its operand moved. They count neither as mismatches nor in the errors above.
    pub moved_roundings: usize,
    /// The largest difference among those.
    pub moved_max_abs_err: f64,
    /// The worst mismatch.
    pub worst: Option<WorstReport>,
    /// The reason nothing was compared: the expectation does not fit the value. Null otherwise.
    pub error: Option<String>,
    /// Whether the expectation is met.
    pub ok: bool,
}

/// One mismatching element.
#[derive(Clone, Debug, Serialize)]
pub struct WorstReport {
    /// Outermost first.
    pub index: Vec<usize>,
    /// What was computed, as text, so that NaN and infinity survive JSON.
    pub got: String,
    /// What was expected.
    pub want: String,
}

impl Report {
    /// Says whether all is well with a run, of which at least one output has elements, or none.
    pub(crate) fn conclude(&mut self, has_elements: bool) {
        self.compared = self.outputs.iter().filter(|output| output.elements > 0).count();
        let is_unfit = self.outputs.iter().any(|output| output.error.is_some());
        let is_wrong = self.outputs.iter().any(|output| !output.ok && output.error.is_none());
        self.fault = match (is_wrong, is_unfit) {
            (true, _) => None,
            (false, true) => Some(Fault::InvalidInput),
            // The interpreter takes too long for each of them.
            (false, false) if self.compared == 0 && has_elements => Some(Fault::ResourceLimit),
            (false, false) => None,
        };
        self.ok = !is_wrong && self.fault.is_none();
    }

    /// The exit code of the command line: 1 for a mismatch, else that of what kept values from being compared.
    pub fn exit_code(&self) -> u8 {
        match self.fault {
            Some(fault) => exit_code(fault),
            None => u8::from(!self.ok),
        }
    }

    /// A report of a plan that has not run.
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
                    kernel: plan.map(plan_name),
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
            compared: 0,
            outputs: Vec::new(),
            contracted: decisions::contracted(planned),
            notes: Vec::new(),
            bundle: None,
            bundle_error: None,
            show_proof: false,
        }
    }
}

impl OutputReport {
    /// An expectation that cannot be one of the value.
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
            ok: false,
        }
    }
}

/// A readable name of a generated kernel: [`kernel_name`], or `block_quantize>nvfp4`.
fn plan_name(plan: &Plan) -> String {
    match plan {
        Plan::ScaledMma(plan) => kernel_name(plan),
        Plan::BlockQuantize(plan) => {
            format!("block_quantize>{}", quantized_name(plan.format.element, plan.scale_rounding.is_some()))
        }
    }
}

/// A readable name of a format of codes and scales.
fn quantized_name(element: ElementType, is_mx: bool) -> String {
    match (is_mx, element) {
        (false, _) => "nvfp4".to_owned(),
        (true, ElementType::F4E2M1FN) => "mxfp4".to_owned(),
        (true, element) => format!("mx:{element}"),
    }
}

/// A readable name of a kernel: its format, what its epilogue does and what it writes, such as
/// `nvfp4_scaled_mm+alpha+add+gelu>bf16`.
pub fn kernel_name(plan: &ScaledMmaPlan) -> String {
    /// Of a longer epilogue the rest is counted.
    const NAMED: usize = 8;
    let mut name = format!("{}_scaled_mm", plan.format);
    for (present, text) in
        [(plan.alpha.is_some(), "alpha"), (plan.c.is_some(), "c"), (plan.beta.is_some(), "beta")]
    {
        if present {
            name.push('+');
            name.push_str(text);
        }
    }
    let functions: Vec<&str> = plan.epilogue.iter().filter_map(|step| function(&step.kind)).collect();
    for function in functions.iter().take(NAMED) {
        name.push('+');
        name.push_str(function);
    }
    if NAMED < functions.len() {
        let _ = write!(name, "+{} more", functions.len() - NAMED);
    }
    let outputs: Vec<String> = plan.outputs.iter().map(|output| output_name(plan, output)).collect();
    name.push('>');
    name.push_str(&outputs.join(","));
    name
}

/// What is written: `bf16`, `nvfp4`, `mx:f8E4M3FN`, `amax:row`.
fn output_name(plan: &ScaledMmaPlan, output: &KernelOutput) -> String {
    match output.kind {
        OutputKind::Value { .. } => match output.of {
            EpilogueRef::Step(step) => plan.epilogue.get(step).map_or(plan.accumulator, |step| step.element),
            EpilogueRef::Accumulator | EpilogueRef::Operand(_) => plan.accumulator,
        }
        .to_string(),
        OutputKind::Quantized { element, scale_rounding, .. } => {
            quantized_name(element, scale_rounding.is_some())
        }
        OutputKind::Reduced { kind, shape, .. } => format!("{}:{shape}", kind.name()),
    }
}

/// What a step computes; `None` for what computes nothing.
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
    let named: Vec<(&str, &Dim)> = match plan {
        Plan::ScaledMma(plan) => vec![("L", &plan.batch), ("M", &plan.m), ("N", &plan.n), ("K", &plan.k)],
        Plan::BlockQuantize(plan) => vec![("L", &plan.batch), ("M", &plan.m), ("K", &plan.k)],
    };
    let named: Vec<String> =
        named.into_iter().map(|(name, dim)| format!("{name}={}", module.display_dim(dim))).collect();
    named.join(" ")
}

fn constraints(module: &Module, plan: &Plan) -> Vec<String> {
    let extent = |name: &str, dim: &Dim| {
        let text = module.display_dim(dim).to_string();
        if text == name { text } else { format!("{name} = {text}") }
    };
    let mut lines = Vec::new();
    // One line for all pointers of one alignment: there are as many as operands.
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
                lines.push(format!("D has at most {limit} tiles of {rows}x{columns}"));
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

fn how_it_ran(segment: &SegmentReport) -> String {
    let mut text = match segment.ran {
        "kernel" => "ran as its kernel".to_owned(),
        "emulated" => "ran as its kernel, emulated".to_owned(),
        other => format!("ran on the {other}"),
    };
    if let Some(seconds) = segment.seconds {
        let _ = write!(text, " in {:.2} ms", seconds * 1e3);
    }
    if let Some(seconds) = segment.kernel_seconds {
        let _ = write!(text, ", of which {:.1} µs on the device", seconds * 1e6);
    }
    for (bytes, to) in [(segment.bytes_to_device, "to the device"), (segment.bytes_to_host, "to the host")] {
        if bytes > 0 {
            let _ = write!(text, ", {bytes} B moved {to}");
        }
    }
    if let Some(reason) = &segment.reason {
        let _ = write!(text, ": {reason}");
    }
    if let Some(message) = &segment.message {
        let _ = write!(text, " ({message})");
    }
    text
}

/// The report as text for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = match &self.device {
            Some(device) => format!("on {device}"),
            None => "no device".to_owned(),
        };
        writeln!(f, "{} for {}, {device}", self.file, self.target)?;
        if let Some(inputs) = &self.inputs {
            let symbols: String = self.symbols.iter().fold(String::new(), |mut text, (name, extent)| {
                let _ = write!(text, ", {name} = {extent}");
                text
            });
            writeln!(f, "inputs: {inputs}{symbols}")?;
        }
        let (kernels, ran) = (self.kernels, self.ran_kernels);
        let plural = if kernels == 1 { "" } else { "s" };
        writeln!(f, "\nplan: {kernels} kernel segment{plural}, {ran} ran as a kernel")?;
        for (index, segment) in self.segments.iter().enumerate() {
            let title = match (&segment.kernel, &segment.extents) {
                (Some(kernel), Some(extents)) => format!("{kernel}  {extents}"),
                _ => format!("{} ops", segment.ops.len()),
            };
            writeln!(f, "  {index:>2}  {:<8}  {title}", segment.kind)?;
            if self.show_proof {
                for step in &segment.proof {
                    writeln!(f, "                {step}")?;
                }
            } else if !segment.rules.is_empty() {
                writeln!(f, "                justified by {}", segment.rules.join(", "))?;
            }
            if let (Some(configuration), Some(why)) = (&segment.configuration, &segment.why) {
                writeln!(f, "                as {configuration}: {why}")?;
            }
            if let Some(resources) = &segment.resources {
                writeln!(f, "                {resources}")?;
            }
            for constraint in &segment.constraints {
                writeln!(f, "                requires that {constraint}")?;
            }
            if segment.ran != "not_run" {
                writeln!(f, "                {}", how_it_ran(segment))?;
            }
            if let Some(launch) = &segment.launch {
                for line in launch.to_string().lines() {
                    writeln!(f, "                {line}")?;
                }
            }
        }
        if !self.contracted.is_empty() {
            writeln!(f, "\ncontracted, so that a rounding which the program states is dropped:")?;
            for line in &self.contracted {
                writeln!(f, "  {line}")?;
            }
        }
        writeln!(f, "\ndecisions:")?;
        let width = self.decisions.iter().map(|d| d.op.chars().count()).max().unwrap_or(0).min(44);
        for decision in &self.decisions {
            let segment = decision.segment.map_or("-".to_owned(), |segment| segment.to_string());
            let code = decision.code.map_or(String::new(), |code| format!("{code}: "));
            // The message names its op for those who see nothing else; here it stands at the left.
            let message = decision.message.strip_prefix(&decision.op).unwrap_or(&decision.message);
            let message = message.trim_start_matches([':', ' ']);
            writeln!(f, "  {:<width$}  segment {segment:>2}  {code}{message}", decision.op)?;
        }
        if !self.outputs.is_empty() {
            writeln!(f, "\noutputs:")?;
            let width = self.outputs.iter().map(|o| o.name.chars().count()).max().unwrap_or(0);
            let expected = self.outputs.iter().map(|o| o.expected.chars().count()).max().unwrap_or(0);
            for output in &self.outputs {
                let (name, against, source) = (&output.name, &output.expected, output.source);
                let limit = match (output.tolerance, output.may_differ) {
                    (Some(tolerance), _) => format!("error {:.2e} of {tolerance:.0e}", output.max_rel_err),
                    (None, Some(count)) => format!("{} of {count} codes differ", output.mismatches),
                    (None, None) => String::new(),
                };
                let moved = match output.moved_roundings {
                    0 => String::new(),
                    count if output.may_differ.is_some() => format!(", {count} codes moved"),
                    count => format!(", {count} roundings moved"),
                };
                if let Some(error) = &output.error {
                    writeln!(f, "  %{name:<width$}  against {against:<expected$}  NOT COMPARED: {error}")?;
                    continue;
                }
                let verdict = if output.ok { "ok" } else { "MISMATCH" };
                writeln!(
                    f,
                    "  %{name:<width$}  against {against:<expected$}  from {source:<11}  {limit}{moved}  {verdict}"
                )?;
                if let (false, Some(worst)) = (output.ok, &output.worst) {
                    let (count, index) = (output.mismatches, &worst.index);
                    let (got, want) = (&worst.got, &worst.want);
                    writeln!(
                        f,
                        "      {count} elements differ; the worst is {index:?}: {got}, expected {want}"
                    )?;
                }
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let count = self.outputs.len();
        let met = self.outputs.iter().filter(|output| output.ok).count();
        match (self.inputs.is_some(), self.ok) {
            (false, _) => Ok(()),
            (true, true) if self.compared == 0 => {
                writeln!(f, "\nnothing was compared: no value has elements")
            }
            (true, false) if count == 0 => {
                writeln!(
                    f,
                    "\nNOTHING WAS COMPARED: give the expected results in the data, as `expected.NAME`"
                )
            }
            (true, true) => writeln!(f, "\nok: {met} of {count} expectations met"),
            (true, false) if self.fault.is_some() => {
                writeln!(f, "\nNOT COMPARED: {met} of {count} expectations met")
            }
            (true, false) => writeln!(f, "\nMISMATCH: {met} of {count} expectations met"),
        }
    }
}
