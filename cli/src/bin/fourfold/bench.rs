//! `fourfold bench`: measures suites of programs against a copy and against torch.

#[cfg(feature = "tune")]
mod picture;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use fourfold_cli::Error;
use fourfold_cli::bench::{BenchOptions, BenchReport, Jobs, PeerChoice, Suite, bench, dry_run, jobs, suites};
use fourfold_executor::measure::Rounds;
use serde_json::json;

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(after_help = "Examples:\n  fourfold bench --list\n  fourfold bench --suite smoke\n  \
    fourfold bench --suite softmax --suite norm_quant --svg bench.svg --json > bench.json\n  \
    fourfold bench --suite mine --suites mine.toml --peers none\n  \
    fourfold bench --dry-run --target sm_90a\n\n\
    Each case is a program at several sizes. Calls rotate through sets of inputs and outputs that exceed three times \
    the L2 cache, as one CUDA graph; params stay on the device. The program, a copy of as many bytes, and torch, eager \
    and compiled, are measured in turn, in two rounds. The outputs of the last replay are compared with the program on \
    the CPU: all of them, or for large sizes up to 32 rows from both ends. A ratio is the peer's time divided by ours. \
    A `*` marks times with a warm L2 cache.\n\n\
    Exit codes: 0 ok, 1 an output is wrong, 2 bad input, 3 no GPU, a required peer is missing, or a case was not \
    measured, 70 a bug in Fourfold, 130 interrupted")]
pub struct Arguments {
    /// Measure this suite; may be given several times [default: all]
    #[arg(long = "suite", value_name = "NAME")]
    names: Vec<String>,
    /// Add the suites of FILE, a .toml file, which replace suites of the same name; may be given several times
    #[arg(long = "suites", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// List the suites with their cases and sizes
    #[arg(long)]
    list: bool,
    /// Print the segments and kernels of each program, without a GPU; with --json also the kernels' sources
    #[arg(long, conflicts_with = "list")]
    dry_run: bool,
    /// Measure only the first and the last size of each case, with shorter rounds
    #[arg(long)]
    quick: bool,
    /// Compare with these peers [default: torch if it is available]
    #[arg(long, value_name = "PEERS")]
    peers: Option<PeersArgument>,
    /// Run peers with this Python
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
    /// Draw the ratios as bars on an HTML page
    #[cfg(feature = "tune")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "dry_run"])]
    html: Option<PathBuf>,
    /// Draw the ratios as bars in an SVG image
    #[cfg(feature = "tune")]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["list", "dry_run"])]
    svg: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PeersArgument {
    /// None
    None,
    /// torch, eager and compiled; exit with 3 if it is not available
    Torch,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let options = match arguments.place.options() {
        Ok(options) => options,
        Err(message) => return crate::misused(&message, arguments.json),
    };
    let read = || {
        let suites = suites(&arguments.files)?;
        let jobs = jobs(&suites, &arguments.names, arguments.quick)?;
        Ok((suites, jobs))
    };
    let (suites, jobs) = match read() {
        Ok(read) => read,
        Err(error) => return crate::fail(&error, arguments.json),
    };
    if arguments.list {
        return list(arguments, &suites, &jobs);
    }
    if arguments.dry_run {
        return match dry_run(&jobs, &options) {
            Ok(report) if arguments.json => finish(report.exit_code(), &crate::to_json(&report)),
            Ok(report) => finish(report.exit_code(), &report.to_string()),
            Err(error) => crate::fail(&error, arguments.json),
        };
    }
    let options = BenchOptions {
        backend: options,
        compile: arguments.choice.compile_options(),
        rounds: rounds(arguments.quick),
        peers: match arguments.peers {
            None => PeerChoice::Available,
            Some(PeersArgument::None) => PeerChoice::None,
            Some(PeersArgument::Torch) => PeerChoice::Torch,
        },
        python: arguments.python.clone(),
    };
    let report = match measure(arguments, &jobs, &options) {
        Ok(report) => report,
        Err(error) => return crate::fail(&error, arguments.json),
    };
    let text = if arguments.json { crate::to_json(&report) } else { report.to_string() };
    #[cfg(feature = "tune")]
    if let Err(error) = picture::write(&report, arguments.html.as_deref(), arguments.svg.as_deref()) {
        // The measurements are printed all the same.
        tell!("error: {error}");
        return finish(report.exit_code().max(crate::EXIT_ENVIRONMENT), &text);
    }
    finish(report.exit_code(), &text)
}

/// Measures the jobs, with a line for each on stderr.
fn measure(arguments: &Arguments, jobs: &Jobs, options: &BenchOptions) -> Result<BenchReport, Error> {
    let progress = Progress::new(arguments.json);
    let report = crate::with_stdout_kept(|| {
        bench(jobs, options, &|event| progress.event(event), &|line| tell!("{line}"))
    });
    drop(progress);
    report
}

/// The lengths of a round.
fn rounds(quick: bool) -> Rounds {
    match quick {
        true => Rounds { warm_up: Duration::from_millis(50), replays: 7, limit: Duration::from_secs(2) },
        false => Rounds::default(),
    }
}

fn finish(code: u8, text: &str) -> ExitCode {
    crate::leave(code, crate::print(text))
}

/// Lists the chosen suites.
fn list(arguments: &Arguments, suites: &[Suite], jobs: &Jobs) -> ExitCode {
    let chosen = suites.iter().filter(|suite| jobs.jobs.iter().any(|job| job.suite == suite.name));
    let mut text = String::new();
    let mut objects = Vec::new();
    for suite in chosen {
        text += &format!("{}  {}\n", suite.name, suite.about);
        let mut cases = Vec::new();
        for case in &suite.cases {
            let of_case = jobs.jobs.iter().filter(|job| job.suite == suite.name && job.case == case.name);
            let sizes: Vec<String> = of_case.map(fourfold_cli::bench::Job::size_text).collect();
            text += &format!("  {}: {}\n", case.name, sizes.join(", "));
            cases.push(json!({ "case": case.name, "sizes": sizes, "peer": case.peer.is_some() }));
        }
        objects
            .push(json!({ "suite": suite.name, "about": suite.about, "file": suite.file, "cases": cases }));
    }
    match arguments.json {
        true => finish(0, &crate::to_json(&json!({ "ok": true, "suites": objects }))),
        false => finish(0, &text),
    }
}
