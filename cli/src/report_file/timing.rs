//! Times a kernel of a run with the run's own operands and results.

use fourfold::Compiled;
use fourfold_executor::kernel::Extents;
use fourfold_executor::measure::{CallData, MeasureOptions, Outcome, measure};
use fourfold_executor::{DeviceError, Run, SegmentKernel};
use fourfold_ir::{Bound, Tensor, Value};
use serde::Serialize;

/// The timing of one kernel on the operands of one run.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct TimingEntry {
    /// `timed`; `slow` if only an estimate was made; `differs` if a launch wrote other bytes than the run; `refused`,
    /// `launch_failed` or `device_failed` if there is no time.
    pub(crate) state: &'static str,
    /// The median over the samples, in microseconds per launch. The next three are of the same samples.
    median_us: Option<f64>,
    /// The minimum.
    min_us: Option<f64>,
    /// The 90th percentile.
    p90_us: Option<f64>,
    /// Half the interquartile range, divided by the median.
    dispersion: Option<f64>,
    /// One sample per replay of a graph: its time divided by its launches.
    samples_us: Vec<f64>,
    /// Launches per graph.
    launches: Option<usize>,
    /// Copies of all operands and outputs that the launches rotate through.
    copies: Option<usize>,
    /// True if the copies exceed three times L2, so that each launch reads its operands from memory.
    exceeds_l2: Option<bool>,
    /// The estimate of a slow kernel, in microseconds per launch.
    estimate_us: Option<f64>,
    /// The bytes compared with the results of the run, over all launches.
    compared_bytes: Option<u64>,
    /// The reason for the absence of a time.
    message: Option<String>,
}

impl TimingEntry {
    /// An entry without a time.
    pub(crate) fn without(state: &'static str, message: impl Into<String>) -> TimingEntry {
        TimingEntry { state, message: Some(message.into()), ..TimingEntry::default() }
    }
}

/// Launches the kernel of a segment many times on the operands of a run, and compares each result with the run's,
/// byte by byte.
///
/// # Errors
/// Fails if the device fails; [`DeviceError::is_sticky`] tells whether it can go on.
pub(crate) fn time(
    compiled: &Compiled,
    segment: usize,
    bound: &Bound<'_>,
    run: &Run,
) -> Result<TimingEntry, DeviceError> {
    let refused = |why: &str| Ok(TimingEntry::without("refused", why));
    let (program, partition) = (compiled.planned().program(), compiled.planned().partition());
    let Some(machine) = compiled.machine() else { return refused("no device runs this kernel") };
    let Some(SegmentKernel::Ready(kernel)) = machine.kernels().get(&segment) else {
        return refused("the kernel is not loaded");
    };
    let Some(plan) = partition.segments.get(segment).and_then(|segment| segment.plan()) else {
        return refused("the segment has no kernel");
    };
    let module = program.module();
    let tensor = |value: Value| -> Option<&Tensor> {
        let position = module.inputs.iter().position(|input| *input == value);
        position.and_then(|position| bound.inputs.get(position).copied()).or_else(|| run.value(value))
    };
    let bytes = |value: Value| Some(tensor(value)?.bytes().to_vec());
    let metadata = kernel.metadata();
    let planned = plan.extents(&bound.symbols).unwrap_or_default();
    let extent = |name: &String| Some(planned.iter().find(|(known, _)| known == name)?.1);
    let extents: Option<Vec<i64>> = metadata.extents.iter().map(extent).collect();
    let roles = plan.roles();
    let inputs = roles.operands.iter().chain(&roles.scalars);
    let inputs: Option<Vec<(String, Vec<u8>)>> =
        inputs.map(|(role, value)| Some((role.clone(), bytes(*value)?))).collect();
    let output = |role: &str| bytes(roles.outputs.iter().find(|(known, _)| known == role)?.1);
    let expected: Option<Vec<Vec<u8>>> = metadata.outputs.iter().map(|it| output(&it.role)).collect();
    let (Some(extents), Some(inputs), Some(expected)) = (extents, inputs, expected) else {
        return refused("the run did not keep every operand and result of the kernel");
    };
    let call = CallData { extents: Extents::new(&extents), inputs: &inputs, expected: &expected };
    let outcome = measure(kernel, machine.device(), call, &MeasureOptions::default())?;
    Ok(match outcome {
        Outcome::Good { timing, compared } => TimingEntry {
            state: "timed",
            median_us: Some(timing.median_us),
            min_us: Some(timing.min_us),
            p90_us: Some(timing.p90_us),
            dispersion: Some(timing.dispersion),
            launches: Some(timing.calls),
            copies: Some(timing.copies),
            exceeds_l2: Some(timing.is_rotating()),
            compared_bytes: Some(compared),
            samples_us: timing.samples_us,
            ..TimingEntry::default()
        },
        Outcome::Slow { estimate_us, compared } => TimingEntry {
            state: "slow",
            estimate_us: Some(estimate_us),
            compared_bytes: Some(compared),
            ..TimingEntry::default()
        },
        Outcome::Refused(refusal) => TimingEntry::without("refused", refusal.to_string()),
        Outcome::LaunchFailed(error) => TimingEntry::without("launch_failed", error.to_string()),
        Outcome::Wrong(wrong) => TimingEntry {
            compared_bytes: Some(wrong.compared),
            ..TimingEntry::without("differs", wrong.to_string())
        },
    })
}
