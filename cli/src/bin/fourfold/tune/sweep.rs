//! `fourfold sweep`: builds and measures the kernels of a manifest and records the outcomes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Args;
use fourfold::DeviceChoice;
use fourfold::kernels::{compile_service, request};
use fourfold_executor::device::{Device, DeviceError};
use fourfold_executor::environment::Environment;
use fourfold_executor::measure::MeasureOptions;
use fourfold_executor::service::has_passed;
use fourfold_executor::{Cancel, is_standard_stream};
use fourfold_tuner::manifest::{Manifest, merged, read_problems};
use fourfold_tuner::record::{Record, State};
use fourfold_tuner::sweep::{
    BuildOptions, Counts, Done, RunOptions, Shard, Task, Told, Tools, build, plan, run as run_on,
};
use serde_json::json;

use super::files::{Log, read_text};
use super::progress::{Progress, word};
use crate::toolchain::Choice;

#[derive(Args)]
#[command(
    after_help = "Example:\n  fourfold sweep --manifest tuning/quantize.toml --compile-only --out records.jsonl\n\n\
    A second run continues where the first ended; records are only appended. With --shard 1/4 to 4/4, four machines \
    share a sweep; `fourfold merge` joins their files.\n\n\
    Exit codes: 0 the sweep is complete, even if kernels failed, 1 the compiler built a kernel that the rules reject, \
    2 bad input, 3 this machine cannot build kernels, some kernels were deferred because time, memory or disk space \
    ran out, or records could not be written, 130 interrupted"
)]
pub struct Arguments {
    /// Read the kernels and problems of this manifest
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    /// Append records to FILE [default: the manifest's name with .jsonl, in the current folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only check and build each kernel; needs no GPU
    #[arg(long)]
    compile_only: bool,
    /// Read problems from FILE instead of the manifest, one per line, such as 128x7168x2048
    #[arg(long, value_name = "FILE")]
    problems: Option<PathBuf>,
    /// Use GPU number N [default: FOURFOLD_DEVICE, else the first]
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Measure with N replays and take their median
    #[arg(long, value_name = "N", default_value_t = 15)]
    replays: usize,
    /// Stop timing kernels slower than FACTOR × the best of a problem
    #[arg(long, value_name = "FACTOR", default_value_t = 4.0)]
    slow: f64,
    /// Run part I of N of the sweep
    #[arg(long, value_name = "I/N", default_value_t = Shard::ALL)]
    shard: Shard,
    /// Also compile N kernels that the rules reject, to confirm that the compiler rejects them
    #[arg(long, value_name = "N", default_value_t = 0)]
    confirm: usize,
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    super::finish(sweep(arguments), arguments.json)
}

fn sweep(arguments: &Arguments) -> Result<super::Finished> {
    let path = &arguments.manifest;
    let text = read_text(path)?;
    let manifest = Manifest::parse(&text).with_context(|| path.display().to_string())?;
    let combinations = manifest.combinations().with_context(|| path.display().to_string())?;
    let problems = match &arguments.problems {
        Some(file) => {
            let text = read_text(file)?;
            merged(read_problems(&text).with_context(|| file.display().to_string())?)
        }
        None => super::problems::all(&manifest.problems, path.parent().unwrap_or(Path::new(".")))
            .with_context(|| path.display().to_string())?,
    };
    let device = if arguments.compile_only { None } else { Some(open(arguments)?) };
    let out = match &arguments.out {
        Some(out) => out.clone(),
        None if is_standard_stream(path) => bail!("name the file of records with --out"),
        None => PathBuf::from(path.file_stem().unwrap_or_default()).with_extension("jsonl"),
    };
    let (mut log, before) = Log::open(&out)?;
    let progress = Progress::new(arguments.json);
    if let Some(torn) = &before.torn {
        tell!("{}: {torn}", out.display());
    }
    let options = arguments.choice.compile_options();
    let targets: BTreeSet<&str> = combinations.iter().map(|it| it.target.name).collect();
    let targets: Vec<&str> = targets.into_iter().collect();
    let (service, cutlass) = compile_service(&options, &targets, &|event| progress.tell(&Told::Build(event)));
    let cancel = Cancel::default();
    let request = |source: &_| request(&service, source);
    let tools = Tools { service: &service, cutlass, request: &request, cancel: &cancel };
    let tasks =
        plan(&combinations, if arguments.compile_only { arguments.shard } else { Shard::ALL }, &tools);
    let done = Done::of(&before.records);
    let building = BuildOptions { jobs: options.jobs, confirm: arguments.confirm, retry: options.retry };
    let mut confirmed: Vec<(String, bool)> = before.records.iter().filter_map(confirmation).collect();
    let mut sink = |record: &_| {
        confirmed.extend(confirmation(record));
        log.append(record).map_err(Into::into)
    };
    let counts = build(&tasks, &done, &building, &tools, &clock, &mut sink, &|told| progress.tell(told))?;
    let runs = match &device {
        None => Counts::default(),
        Some(device) => {
            let options = RunOptions {
                measure: MeasureOptions { replays: arguments.replays, ..MeasureOptions::default() },
                slow: arguments.slow,
                shard: arguments.shard,
                ..RunOptions::default()
            };
            let tell = |told: &Told<'_>| progress.tell(told);
            run_on(&tasks, &problems, &done, &options, &tools, device, &clock, &mut sink, &tell)?
        }
    };
    drop(progress);
    let swept = Swept {
        arguments,
        out: &out,
        combinations: combinations.len(),
        tasks: &tasks,
        problems: problems.len(),
        counts: &counts,
        runs: &runs,
        confirmed: &confirmed,
        device: device.as_ref(),
    };
    Ok(swept.finished())
}

/// The outcome of a sweep.
struct Swept<'a> {
    arguments: &'a Arguments,
    out: &'a Path,
    combinations: usize,
    tasks: &'a [Task],
    problems: usize,
    counts: &'a Counts,
    runs: &'a Counts,
    /// Rejected kernels that were compiled all the same, and true for each that the compiler rejected.
    confirmed: &'a [(String, bool)],
    device: Option<&'a Device>,
}

impl Swept<'_> {
    fn contradicted(&self) -> Vec<&str> {
        let accepted = self.confirmed.iter().filter(|(_, refused)| !refused);
        accepted.map(|(name, _)| name.as_str()).collect()
    }

    fn deferred(&self) -> usize {
        self.counts.of(State::Deferred) + self.runs.of(State::Deferred)
    }

    fn finished(&self) -> super::Finished {
        let code = match (self.contradicted().is_empty(), self.deferred()) {
            (false, _) => crate::EXIT_MISMATCH,
            (true, 0) => 0,
            (true, _) => crate::EXIT_ENVIRONMENT,
        };
        let text = crate::without_controls(&self.text());
        super::Finished { text, object: self.object(), code, on_stdout: false }
    }

    fn object(&self) -> serde_json::Value {
        let contradicted = self.contradicted();
        let asked = self.confirmed.len();
        json!({
            "ok": contradicted.is_empty() && self.deferred() == 0,
            "manifest": crate::shown(&self.arguments.manifest),
            "records": crate::shown(self.out),
            "shard": self.arguments.shard.to_string(),
            "combinations": self.combinations,
            "problems": self.problems,
            "kernels": counts_object(self.counts),
            "runs": counts_object(self.runs),
            "confirmed": { "asked": asked, "refused": asked - contradicted.len() },
            "device": self.device.map(|device| device.gpu().name.clone()),
        })
    }

    fn text(&self) -> String {
        let Swept { arguments, tasks, problems, counts, runs, confirmed, device, .. } = *self;
        let (contradicted, deferred) = (self.contradicted(), self.deferred());
        let given =
            [State::Built, State::CompileError, State::NoMma, State::Deferred].map(|state| counts.of(state));
        let asked: usize = given.iter().sum();
        let share = if asked == 0 { 100.0 } else { 100.0 * given[0] as f64 / asked as f64 };
        let mut text = format!(
            "{}: {} combinations, {} of them in shard {}\n",
            arguments.manifest.display(),
            self.combinations,
            tasks.len(),
            arguments.shard
        );
        for (state, count) in &counts.0 {
            text += &format!("  {:<14} {count}\n", word(*state));
        }
        text += &format!("{} of {asked} compiled kernels were built ({share:.1} %)\n", given[0]);
        if !confirmed.is_empty() {
            text += &format!(
                "the compiler rejected {} of {} kernels that the rules reject\n",
                confirmed.len() - contradicted.len(),
                confirmed.len()
            );
            for name in &contradicted {
                text += &format!("  the compiler builds a kernel that the rules reject: {name}\n");
            }
        }
        if let Some(device) = device {
            text += &format!("on {problems} problems on {}:\n", device.gpu());
            let is_other = |task: &&Task| Some(task.combination.target.name) != device.gpu().target();
            match tasks.iter().filter(is_other).count() {
                0 => {}
                others => text += &format!("  {others} kernels are for another target and were not run\n"),
            }
            for (state, count) in &runs.0 {
                text += &format!("  {:<14} {count}\n", word(*state));
            }
        }
        if deferred > 0 {
            text += &format!(
                "the sweep is incomplete: time, memory or disk space ran out for {deferred}, or the compiler crashed; run \
             it again to retry these\n"
            );
        }
        text += &format!("records: {}\n", self.out.display());
        text
    }
}

/// Returns the name of a rejected kernel that was compiled all the same, and true if the compiler rejected it.
fn confirmation(record: &Record) -> Option<(String, bool)> {
    let build = record.build.as_ref().filter(|_| record.state == State::Invalid)?;
    let words = record.message.as_deref().unwrap_or_default();
    // A compiler that ran out of time rejected nothing.
    if build.failure.as_deref().is_some_and(|code| has_passed(code, words)) {
        return None;
    }
    Some((record.name.clone(), build.failure.is_some()))
}

/// Opens the requested GPU.
fn open(arguments: &Arguments) -> Result<Device> {
    let ordinal = match (arguments.device, Environment::from_process().fourfold_device) {
        (Some(ordinal), _) => ordinal,
        (None, None) => 0,
        (None, Some(text)) => match text.to_string_lossy().parse() {
            Ok(DeviceChoice::Ordinal(ordinal)) => ordinal,
            Ok(DeviceChoice::First) => 0,
            Ok(DeviceChoice::None) => {
                bail!("FOURFOLD_DEVICE is `none`: add --compile-only, or name a GPU with --device")
            }
            Err(error) => bail!("FOURFOLD_DEVICE: {error}"),
        },
    };
    Device::open(ordinal).map_err(|source| NoDevice { source }.into())
}

/// No GPU is available for measuring.
#[derive(Debug, thiserror::Error)]
#[error("no GPU to measure on; add --compile-only to build only")]
pub struct NoDevice {
    source: DeviceError,
}

fn counts_object(counts: &Counts) -> serde_json::Value {
    counts
        .0
        .iter()
        .map(|(state, count)| (word(*state).replace(' ', "_"), json!(count)))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn clock() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
