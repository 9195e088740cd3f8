//! The entries of a report file: one for each kernel of a program, and one for each kernel segment of a run.

use std::collections::BTreeMap;

use fourfold::Compiled;
use fourfold_executor::service::Failure;
use serde::Serialize;
use serde_json::{Value, json};

use super::timing::TimingEntry;
use crate::report::{ResourceReport, plan_name};

/// The maximum size of a compiler log in bytes. The first errors are at its beginning.
const LOG_LIMIT: usize = 16 << 10;

/// A kernel of a program.
#[derive(Debug, Serialize)]
pub(super) struct KernelEntry {
    /// The program's file, as in the rows of the verification.
    program: String,
    /// The position of the segment.
    segment: usize,
    /// `kernel` or `device`.
    kind: &'static str,
    /// The readable name, as in the rows.
    kernel: String,
    /// The name in the generated source.
    source: String,
    /// The hash of the generated source.
    hash: String,
    target: &'static str,
    /// The architecture that the compiler was told.
    architecture: &'static str,
    /// The instruction that the binary must have.
    opcode: &'static str,
    emulated: bool,
    /// The interface of the kernel.
    signature: String,
    /// The fused ops.
    ops: Vec<String>,
    /// The tile, cluster and schedules.
    configuration: String,
    /// The reason for this configuration.
    why: String,
    /// The version of the compiler; null unless the kernel was built.
    nvcc: Option<String>,
    /// The version of CUTLASS.
    cutlass: Option<String>,
    /// The resources, read back from the binary; null unless the kernel was built.
    resources: Option<ResourceReport>,
    /// The failed build.
    failure: Option<Value>,
    /// The reason why the kernel cannot run here.
    unavailable: Option<Value>,
}

impl KernelEntry {
    /// Returns an entry for each kernel that was configured.
    pub(super) fn all(program: &str, compiled: &Compiled) -> Vec<KernelEntry> {
        let planned = compiled.planned();
        let module = planned.program().module();
        let entry = |kernel: &fourfold::kernels::PlannedKernel| {
            let segment = planned.partition().segments.get(kernel.segment)?;
            let plan = segment.plan()?;
            let built = compiled.built().iter().find(|built| built.planned.segment == kernel.segment);
            let artifact = built.and_then(|built| built.outcome.as_ref().ok());
            let tools = artifact.and_then(|artifact| artifact.tools());
            let unavailable = compiled.unavailable(kernel.segment);
            let source = &kernel.source;
            Some(KernelEntry {
                program: program.to_owned(),
                segment: kernel.segment,
                kind: segment.tier().name(),
                kernel: plan_name(module, plan),
                source: source.kernel.clone(),
                hash: source.hash.clone(),
                target: source.target,
                architecture: source.architecture,
                opcode: source.opcode,
                emulated: source.prelude.is_some(),
                signature: plan.signature(planned.program()),
                ops: segment.ops.iter().map(|op| module.op_label(*op)).collect(),
                configuration: kernel.spec.configuration_name(),
                why: kernel.why.clone(),
                nvcc: tools.map(|tools| tools.nvcc.clone()),
                cutlass: tools.map(|tools| tools.cutlass.clone()),
                resources: artifact.map(|artifact| ResourceReport::from(artifact.resources())),
                failure: built.and_then(|built| built.outcome.as_ref().err()).map(|failure| failed(failure)),
                unavailable: unavailable
                    .map(|reason| json!({ "code": reason.code, "message": reason.message })),
            })
        };
        compiled.configured().iter().filter_map(entry).collect()
    }
}

fn failed(failure: &Failure) -> Value {
    let log = failure.log.as_deref().map(|log| {
        let end = log.len().min(LOG_LIMIT);
        log[..log.floor_char_boundary(end)].to_owned()
    });
    json!({
        "code": failure.code,
        "fault": failure.fault.name(),
        "message": failure.message,
        "first_error": failure.first_error,
        "remedy": failure.remedy,
        "log": log,
    })
}

/// A kernel segment of one run.
#[derive(Debug, Serialize)]
pub(crate) struct RunEntry {
    /// The program's file, as in the rows of the verification.
    pub(crate) program: String,
    /// The origin of the inputs.
    pub(crate) inputs: String,
    /// The extents of the symbols.
    pub(crate) symbols: BTreeMap<String, u64>,
    /// The position of the segment.
    pub(crate) segment: usize,
    /// The readable name of the kernel.
    pub(crate) kernel: Option<String>,
    /// The extents of the launch by name.
    pub(crate) extents: Option<BTreeMap<&'static str, i64>>,
    /// `kernel`, `emulated`, `fallback` or `not_run`.
    pub(crate) ran: &'static str,
    /// The reason code if it did not run as a kernel.
    pub(crate) reason: Option<String>,
    /// The reason as text.
    pub(crate) message: Option<String>,
    /// The time of the one launch that was compared, in microseconds.
    pub(crate) compared_us: Option<f64>,
    /// The timing of many launches; null if nothing was launched.
    pub(crate) timing: Option<TimingEntry>,
    /// The program's position and that of its inputs.
    #[serde(skip)]
    pub(crate) place: (usize, usize),
}
