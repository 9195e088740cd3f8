//! The build step of a sweep: validity rules and the compiler.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use fourfold_executor::service::{Event, Failure, Outcome, Source, build_slots, has_passed};
use fourfold_executor::toolchain::NO_CUTLASS;
use fourfold_executor::{BuildFault, spawn_workers};

use super::plan::{Done, Planned, Task};
use super::{Counts, Sink, SweepError, Told, Tools};
use crate::record::{Build, Record, State};

/// Options of [`build`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BuildOptions {
    /// Concurrent compilers; by default one per core, as far as memory allows.
    pub jobs: Option<usize>,
    /// Number of invalid combinations to compile nevertheless, spread over the rules, to confirm that the compiler
    /// rejects them.
    pub confirm: usize,
    /// Rebuild kernels that are recorded as failed.
    pub retry: bool,
}

/// Checks and builds every combination that is not recorded yet, and records the outcomes in the order of completion.
/// `clock` returns seconds since 1970.
///
/// # Errors
/// If no kernel can be built on this machine, a record cannot be written, or the sweep is cancelled.
pub fn build(
    tasks: &[Task],
    done: &Done,
    options: &BuildOptions,
    tools: &Tools<'_>,
    clock: &dyn Fn() -> u64,
    sink: &mut Sink<'_>,
    progress: &(dyn Fn(&Told<'_>) + Sync),
) -> Result<Counts, SweepError> {
    let mut counts = Counts::default();
    let is_done = |task: &Task| match done.kernel(&task.id) {
        Some(State::Deferred) => false,
        Some(State::CompileError | State::NoMma) => !options.retry,
        known => known.is_some(),
    };
    for task in tasks.iter().filter(|task| is_done(task)) {
        counts.add(done.kernel(&task.id).unwrap_or(State::Built));
    }
    let open: Vec<&Task> = tasks.iter().filter(|task| !is_done(task)).collect();
    let confirmed = confirmed(&open, options.confirm);
    // Records first what needs no compiler.
    let (now, later): (Vec<&Task>, Vec<&Task>) = open.into_iter().partition(|task| {
        matches!(task.planned, Planned::Invalid(_)) && !confirmed.contains(&task.id.as_str())
    });
    progress(&Told::Needed { kernels: later.len(), done: tasks.len() - now.len() - later.len() });
    let mut keep = |record: Record| {
        counts.add(record.state);
        sink(&record).map_err(|source| SweepError::Sink { source })?;
        progress(&Told::Recorded(&record));
        Ok(())
    };
    for task in now {
        keep(unasked(task, clock()))?;
    }
    let next = AtomicUsize::new(0);
    let workers = options.jobs.unwrap_or_else(build_slots).max(1).min(later.len());
    thread::scope(|scope| {
        let (sender, outcomes) = mpsc::channel();
        let (next, later) = (&next, &later);
        let asks = move || {
            while let Some(task) = later.get(next.fetch_add(1, Ordering::Relaxed)) {
                let outcome = ask(task, tools, progress);
                // The receiver is gone if the sweep has ended.
                if sender.send((*task, outcome)).is_err() {
                    return;
                }
            }
        };
        let has_workers = spawn_workers(scope, "sweep", workers, asks) > 0;
        let mut keep_outcome = |(task, outcome): (&Task, Option<Outcome>)| match outcome {
            Some(outcome) => record(task, &outcome, tools, clock()).and_then(&mut keep),
            // It has no source, so there is nothing to confirm.
            None => keep(unasked(task, clock())),
        };
        let result = if has_workers {
            outcomes.iter().try_for_each(&mut keep_outcome)
        } else {
            later.iter().try_for_each(|task| keep_outcome((task, ask(task, tools, progress))))
        };
        // Stops the workers after their current builds, which end up in the cache.
        next.store(usize::MAX / 2, Ordering::Relaxed);
        result
    })?;
    Ok(counts)
}

/// The record of an invalid combination that was not compiled.
fn unasked(task: &Task, at: u64) -> Record {
    let broken = match &task.planned {
        Planned::Invalid(broken) => broken.clone(),
        Planned::Kernel { .. } => Vec::new(),
    };
    Record { broken, ..task.record(State::Invalid, None, at) }
}

/// Chooses at most `most` invalid combinations that the compiler should reject, in turn by broken rule.
fn confirmed<'a>(tasks: &[&'a Task], most: usize) -> Vec<&'a str> {
    let mut by_rule = std::collections::BTreeMap::<&str, Vec<&'a str>>::new();
    for task in tasks {
        if let Planned::Invalid(broken) = &task.planned
            && let Some(first) = broken.iter().find(|broken| broken.refused)
        {
            by_rule.entry(&first.rule).or_default().push(&task.id);
        }
    }
    let mut turns: Vec<_> = by_rule.into_values().map(Vec::into_iter).collect();
    let mut confirmed = Vec::new();
    while confirmed.len() < most {
        let before = confirmed.len();
        for turn in &mut turns {
            confirmed.extend(turn.next().filter(|_| confirmed.len() < most));
        }
        if confirmed.len() == before {
            break;
        }
    }
    confirmed
}

/// Builds a kernel; `None` if there is no source.
fn ask(task: &Task, tools: &Tools<'_>, progress: &(dyn Fn(&Told<'_>) + Sync)) -> Option<Outcome> {
    let tell = |event: &Event| progress(&Told::Build(event));
    match &task.planned {
        Planned::Kernel { request, .. } => Some(tools.service.get(request, tools.cancel, &tell)),
        Planned::Invalid(_) => {
            let combination = &task.combination;
            let unchecked = combination.generator.unchecked(&combination.parameters, combination.target)?;
            let request = (tools.request)(&unchecked.source());
            Some(tools.service.get(&request, tools.cancel, &tell))
        }
    }
}

fn record(task: &Task, outcome: &Outcome, tools: &Tools<'_>, at: u64) -> Result<Record, SweepError> {
    let (nvcc, cutlass) = match &tools.service.options().toolchain {
        Ok(toolchain) => {
            let cutlass = toolchain.cutlass.as_ref().map_or(NO_CUTLASS, |cutlass| &cutlass.version);
            (toolchain.nvcc_version.clone(), cutlass.to_owned())
        }
        Err(_) => Default::default(),
    };
    let mut build = Build {
        nvcc,
        cutlass,
        key: String::new(),
        compiled: false,
        seconds: 0.0,
        registers: None,
        spill_stores: None,
        stages: None,
        shared_memory: None,
        failure: None,
        log: None,
    };
    let (mut state, message) = match outcome {
        Ok(built) => {
            let resources = built.artifact().resources();
            build.compiled = *built.source() == Source::Compiler;
            build.seconds = resources.compile_time.as_secs_f64();
            build.registers = resources.registers;
            build.spill_stores = resources.spill_stores.map(u64::from);
            build.stages = resources.stages;
            build.shared_memory = Some(resources.shared_memory);
            (State::Built, None)
        }
        Err(failure) => {
            endless(failure)?;
            build.failure = Some(failure.code.to_owned());
            build.compiled = !failure.remembered;
            build.log = failure.log.clone();
            let state = match failure.code {
                "no_mma" => State::NoMma,
                code if has_passed(code, &failure.message) => State::Deferred,
                _ => State::CompileError,
            };
            (state, Some(failure.message.clone()))
        }
    };
    let broken = match &task.planned {
        Planned::Invalid(broken) => {
            state = State::Invalid;
            broken.clone()
        }
        Planned::Kernel { configured, request, .. } => {
            build.key = request.key().to_string();
            configured.advice(tools.cutlass)
        }
    };
    Ok(Record { message, broken, build: Some(build), ..task.record(state, None, at) })
}

/// Returns an error for a failure that every other kernel would have as well.
fn endless(failure: &Arc<Failure>) -> Result<(), SweepError> {
    match failure.fault {
        BuildFault::Caller => Err(SweepError::Cancelled),
        // The compiler may crash on this kernel only.
        _ if failure.code == "compiler_crashed" => Ok(()),
        BuildFault::Toolchain | BuildFault::Environment => {
            Err(SweepError::Toolchain { failure: Arc::clone(failure) })
        }
        BuildFault::OurBug | BuildFault::ResourceLimit => Ok(()),
    }
}
