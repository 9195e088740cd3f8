//! Random programs over a bounded set of kernels, on the GPU.

use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use fourfold::ir::{Tensor, Value, sample};
use fourfold::{Backend, Compiled, Event, Planned, RunOptions, SessionInput};
use fourfold_cli::VerifyReport;
use fourfold_cli::verify::{VerifyOptions, verify};
use fourfold_tests::kit::{GPU_PROGRAMS, KitCounts, KitProgram, MOST_SOURCES, kit_program};

use crate::{backend, compile_options};

/// The number of failing rows and programs that a message shows.
const SHOWN: usize = 5;

/// Builds the kernels once, and compares every value of every program with the interpreter, as `fourfold verify` does.
/// Then calls each program through a session, whose outputs have the bits of a run.
///
/// `FOURFOLD_PROGRAMS` sets another number of programs.
pub fn random_programs() -> Result<()> {
    let count = match std::env::var("FOURFOLD_PROGRAMS") {
        Ok(number) => number.parse().context("FOURFOLD_PROGRAMS is a number")?,
        Err(_) => GPU_PROGRAMS,
    };
    let start = Instant::now();
    let backend = backend().context("no GPU found")?;
    let made: Vec<KitProgram> = (0..count).map(kit_program).collect();
    let mut counts = KitCounts::default();
    let mut plans: Vec<Planned> = Vec::new();
    let folder = tempfile::tempdir()?;
    for (seed, made) in made.iter().enumerate() {
        let planned = backend.plan(made.program());
        backend.check(&planned).with_context(|| format!("seed {seed}\n{}", made.text))?;
        counts.add(&planned, backend.capabilities());
        plans.push(planned);
        fs::write(folder.path().join(file_name(seed)), &made.text)?;
    }
    println!("{counts}");
    ensure!(counts.refused.is_empty(), "{}", counts.refused.join("\n"));
    ensure!(counts.sources() <= MOST_SOURCES, "{} sources", counts.sources());
    ensure!(counts.with_two_device * 2 >= counts.programs, "{counts}");
    let options = VerifyOptions { compile: compile_options(), ..VerifyOptions::default() };
    let quiet = |event: &Event| {
        if !matches!(event, Event::Note(_)) {
            eprintln!("{event}");
        }
    };
    let report = verify(&[folder.path().to_owned()], &options, &quiet)?;
    check(&report, &made)?;
    println!(
        "{} values compared, {} kernels and {} device segments ran, after {:.0?}",
        report.compared,
        report.ran_kernels,
        report.ran_device_segments,
        start.elapsed()
    );
    let calls = all_sessions(&backend, plans, &made)?;
    println!("sessions: {calls:?}, after {:.0?}", start.elapsed());
    ensure!(calls.prepared * 10 >= calls.all * 9, "{calls:?}");
    Ok(())
}

fn file_name(seed: usize) -> String {
    format!("{seed:05}.fir")
}

/// Checks that every row is right, and that every segment ran on the device if its plan takes the extents.
fn check(report: &VerifyReport, made: &[KitProgram]) -> Result<()> {
    let text = |file: &str| {
        let seed: usize = file.trim_end_matches(".fir").parse().unwrap_or(usize::MAX);
        made.get(seed).map_or("", |made| &made.text)
    };
    let wrong: Vec<String> = report
        .rows
        .iter()
        .filter(|row| !row.ok)
        .take(SHOWN)
        .map(|row| format!("{row:?}\n{}", text(&row.fixture)))
        .collect();
    let off_device = report.off_device.iter().filter(|it| it.reason.as_deref() != Some("extent_range"));
    let elsewhere: Vec<String> =
        off_device.take(SHOWN).map(|it| format!("{it:?}\n{}", text(&it.fixture))).collect();
    ensure!(report.ok && wrong.is_empty(), "{} rows, among them:\n{}", report.rows.len(), wrong.join("\n"));
    ensure!(elsewhere.is_empty(), "segments ran on the CPU:\n{}", elsewhere.join("\n"));
    ensure!(report.left_out.is_empty(), "{:?}", report.left_out);
    // Products over an empty K run on the CPU, as their plans say.
    let planned = report.kernels + report.device_segments;
    ensure!(
        report.off_device.len() * 50 <= planned,
        "{} of {planned} ran on the CPU",
        report.off_device.len()
    );
    Ok(())
}

/// Calls the programs on several threads, which share the device.
fn all_sessions(backend: &Backend, plans: Vec<Planned>, made: &[KitProgram]) -> Result<Calls> {
    let threads = thread::available_parallelism().map_or(1, |count| count.get().min(8));
    let mut shares: Vec<Vec<(usize, Planned)>> = (0..threads).map(|_| Vec::new()).collect();
    for (seed, planned) in plans.into_iter().enumerate() {
        shares[seed % threads].push((seed, planned));
    }
    let work = |share: Vec<(usize, Planned)>| {
        let (seeds, plans): (Vec<usize>, Vec<Planned>) = share.into_iter().unzip();
        let mut calls = Calls::default();
        for (seed, compiled) in seeds.iter().zip(backend.compile_all(plans, &compile_options(), &|_| ())) {
            sessions(&compiled, &made[*seed], &mut calls)
                .with_context(|| format!("session of seed {seed}\n{}", made[*seed].text))?;
        }
        anyhow::Ok(calls)
    };
    thread::scope(|scope| {
        let threads: Vec<_> = shares.into_iter().map(|share| scope.spawn(|| work(share))).collect();
        let mut total = Calls::default();
        for thread in threads {
            let calls = thread.join().expect("a failing call is an error")?;
            total = Calls { all: total.all + calls.all, prepared: total.prepared + calls.prepared };
        }
        Ok(total)
    })
}

/// The calls of sessions, and those that launched a prepared program.
#[derive(Debug, Default)]
struct Calls {
    all: usize,
    prepared: usize,
}

/// Calls a program with each of its inputs, and with the first again.
fn sessions(compiled: &Compiled, made: &KitProgram, calls: &mut Calls) -> Result<()> {
    let cases = cases(compiled, made)?;
    let mut session = compiled.session(cases[0].0.clone())?;
    for (tensors, outputs) in cases.iter().chain(&cases[..1]) {
        let wanted = session.inputs();
        let inputs: HashMap<&str, SessionInput<'_>> =
            wanted.iter().map(|name| (name.as_str(), (&tensors[name]).into())).collect();
        let run = session.run(&inputs)?;
        calls.all += 1;
        calls.prepared += usize::from(run.refused.is_none());
        for (index, (found, want)) in run.outputs.iter().zip(outputs).enumerate() {
            ensure!(found.as_ref() == Some(want), "output {index} differs from that of a run");
        }
    }
    Ok(())
}

/// Inputs by name, and the outputs of a run. All cases have the params of the first.
type Case = (HashMap<String, Tensor>, Vec<Tensor>);

fn cases(compiled: &Compiled, made: &KitProgram) -> Result<Vec<Case>> {
    let program = compiled.planned().original();
    let module = program.module();
    let mut cases: Vec<Case> = Vec::new();
    for recipe in &made.recipes {
        let mut tensors = sample::inputs(program, recipe)?;
        if let Some((first, _)) = cases.first() {
            for value in module.inputs.iter().filter(|value| module.is_param(**value)) {
                let name = module.name_of(*value);
                tensors.insert(name.to_owned(), first[name].clone());
            }
        }
        let run = compiled.run(&tensors, &RunOptions::default().poison(0xFF))?;
        let output = |value: &Value| run.value(*value).cloned().context("an output");
        let outputs = module.outputs.iter().map(output).collect::<Result<_>>()?;
        cases.push((tensors, outputs));
    }
    Ok(cases)
}
