//! The run step of a sweep: verifies results and measures times on the device.

use std::collections::{BTreeMap, BTreeSet};

use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::measure::{self, CallData, MeasureOptions, Outcome};
use fourfold_executor::service::has_passed;

use super::plan::{Done, Planned, Task};
use super::{Counts, Shard, Sink, SweepError, Told, Tools};
use crate::generator::{Configured, Workload};
use crate::problem::{Problem, Weighted};
use crate::record::{Check, Machine, Record, State, Timing};

/// Options of [`run`].
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// The measurement options.
    pub measure: MeasureOptions,
    /// Stop timing kernels slower than this factor × the best so far, and record them as [`State::Slow`].
    pub slow: f64,
    /// The shard of the problems.
    pub shard: Shard,
    /// The seed of the data.
    pub seed: u64,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions { measure: MeasureOptions::default(), slow: 4.0, shard: Shard::ALL, seed: 1 }
    }
}

/// The description of a device in records.
pub fn machine(device: &Device) -> Machine {
    let gpu = device.gpu();
    let (major, minor) = gpu.driver_version;
    Machine {
        gpu: gpu.name.clone(),
        sms: gpu.sm_count,
        driver: format!("CUDA {major}.{minor}"),
        l2_bytes: gpu.l2_bytes,
    }
}

/// Runs every built kernel for the device's target on every problem of the shard, and records the outcomes. `clock`
/// returns seconds since 1970.
///
/// # Errors
/// If the device fails for good, a record cannot be written, or the sweep is cancelled. A kernel that made the device
/// fail is recorded, so that the next sweep continues after it.
#[allow(clippy::too_many_arguments, reason = "tasks, options, device and callbacks are separate concerns")]
pub fn run(
    tasks: &[Task],
    problems: &[Weighted],
    done: &Done,
    options: &RunOptions,
    tools: &Tools<'_>,
    device: &Device,
    clock: &dyn Fn() -> u64,
    sink: &mut Sink<'_>,
    progress: &(dyn Fn(&Told<'_>) + Sync),
) -> Result<Counts, SweepError> {
    let machine = machine(device);
    let of_target = |task: &&Task| Some(task.combination.target.name) == device.gpu().target();
    let own: Vec<&Task> = tasks.iter().filter(of_target).collect();
    let problems: Vec<Problem> = problems
        .iter()
        .enumerate()
        .filter(|(position, _)| options.shard.has(*position))
        .map(|(_, weighted)| weighted.problem)
        .collect();
    let is_open = |task: &Task, problem: &Problem| {
        matches!(task.planned, Planned::Kernel { .. }) && !done.has_run(&task.id, problem, Some(&machine))
    };
    let open = problems.iter().map(|it| own.iter().filter(|task| is_open(task, it)).count()).sum();
    progress(&Told::Runs { runs: open, done: own.len() * problems.len() - open });
    let mut counts = Counts::default();
    let mut unbuilt = BTreeSet::new();
    for problem in &problems {
        let mut workloads = BTreeMap::new();
        let mut best: Option<f64> = None;
        for task in own.iter().filter(|task| is_open(task, problem)) {
            let Planned::Kernel { configured, request, .. } = &task.planned else { continue };
            // The build step recorded failed builds. A build that timed out is not retried for every problem.
            if unbuilt.contains(&task.id) {
                continue;
            }
            let Ok(built) = tools.service.get(request, tools.cancel, &|event| progress(&Told::Build(event)))
            else {
                if tools.cancel.is_cancelled() {
                    return Err(SweepError::Cancelled);
                }
                unbuilt.insert(task.id.clone());
                continue;
            };
            let base = task.record(State::Refused, Some(*problem), clock());
            let base = Record { machine: Some(machine.clone()), ..base };
            let mut failed = None;
            let record = match workload(configured.as_ref(), problem, options.seed, &mut workloads) {
                Err(reason) => Record { message: Some(reason), ..base },
                Ok(workload) => match built.kernel() {
                    Err(failure) => {
                        let passes = has_passed(failure.code, &failure.message);
                        let state = if passes { State::Deferred } else { State::LaunchError };
                        Record { state, message: Some(failure.message.clone()), ..base }
                    }
                    Ok(kernel) => {
                        let call = CallData {
                            extents: workload.extents,
                            inputs: &workload.inputs,
                            expected: &workload.expected,
                        };
                        let quick_us = best.map(|best| best * options.slow);
                        let measure = MeasureOptions { quick_us, ..options.measure };
                        match measure::measure(kernel, device, call, &measure) {
                            Ok(outcome) => recorded(base, outcome, workload.rule),
                            Err(error) => {
                                let message = Some(format!("{error}; {}", error.remedy()));
                                let state = match error {
                                    // Another process may hold the memory.
                                    DeviceError::OutOfMemory { .. } => State::Deferred,
                                    _ => State::LaunchError,
                                };
                                failed = Some(error);
                                Record { state, message, ..base }
                            }
                        }
                    }
                },
            };
            if let (State::Good, Some(timing)) = (record.state, &record.timing) {
                best = Some(best.map_or(timing.median_us, |best| best.min(timing.median_us)));
            }
            counts.add(record.state);
            sink(&record).map_err(|source| SweepError::Sink { source })?;
            progress(&Told::Recorded(&record));
            if let Some(source) = failed.filter(DeviceError::is_sticky) {
                let (kernel, problem) = (task.name.clone(), *problem);
                return Err(SweepError::Device { kernel, problem, source: Box::new(source) });
            }
        }
    }
    Ok(counts)
}

/// Returns the workload of a kernel, computed once per workload key.
fn workload<'a>(
    configured: &dyn Configured,
    problem: &Problem,
    seed: u64,
    known: &'a mut BTreeMap<String, Result<Workload, String>>,
) -> Result<&'a Workload, String> {
    configured.takes(problem)?;
    let make = || configured.workload(problem, seed);
    known.entry(configured.workload_key()).or_insert_with(make).as_ref().map_err(Clone::clone)
}

fn recorded(base: Record, outcome: Outcome, rule: &str) -> Record {
    let check = |bytes, wrong, first| Some(Check { rule: rule.to_owned(), bytes, wrong, first });
    match outcome {
        Outcome::Good { timing, compared } => {
            let l2 = if timing.is_rotating() { "rotating" } else { "warm" };
            let timing = Timing {
                median_us: timing.median_us,
                min_us: timing.min_us,
                p90_us: timing.p90_us,
                dispersion: timing.dispersion,
                calls: u32::try_from(timing.calls).unwrap_or(u32::MAX),
                copies: u32::try_from(timing.copies).unwrap_or(u32::MAX),
                l2: l2.to_owned(),
                clocks_mhz: None,
                samples_us: timing.samples_us,
            };
            Record { state: State::Good, timing: Some(timing), check: check(compared, 0, None), ..base }
        }
        Outcome::Slow { estimate_us, compared } => {
            let message = Some(format!("about {estimate_us:.1} us (first estimate)"));
            Record { state: State::Slow, message, check: check(compared, 0, None), ..base }
        }
        Outcome::Refused(refusal) => Record { message: Some(refusal.to_string()), ..base },
        Outcome::LaunchFailed(error) => {
            Record { state: State::LaunchError, message: Some(error.to_string()), ..base }
        }
        Outcome::Wrong(wrong) => Record {
            state: State::Wrong,
            message: Some(wrong.to_string()),
            check: check(wrong.compared, wrong.wrong, Some(wrong.to_string())),
            ..base
        },
    }
}
