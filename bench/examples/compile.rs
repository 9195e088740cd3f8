//! Measures the phases of a cold build, beside a comparable build.
//!
//! `cargo run --release -p fourfold-bench --example compile -- [--rounds N] [--target T] [--json]`
//!
//! The default kernels of sm_120a and sm_100a (`compile/default.fir`) are built from scratch, in turns:
//!
//! - `ours`: the build of `fourfold`, two passes in parallel. Its processor time includes the checks
//!   (disassembly, first loading) that the others lack;
//! - `relative`: one translation unit with CUTLASS's adapter and all of its headers (`compile/sm_*.cu`). It has the
//!   flags of nvFuser's just-in-time path: PTX beside the binary, `-O3`, extended lambdas, packed tuples;
//! - `flags`: the current source in one translation unit with those flags, which isolates the effect of the source.
//!
//! Other load on the machine changes the wall-clock time, so the processor time of all processes of a build (user
//! and system, from `/proc`) is printed too. The example `cache` measures kernels from the cache.

use std::error::Error;
use std::path::Path;
use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use fourfold::codegen::KernelSource;
use fourfold::executor::toolchain::{Toolchain, ToolchainOptions};
use fourfold::executor::{BuildInput, BuildOptions, BuildTools, Phase, ToolEnvironment, build, run_tool};
use fourfold::kernels::{cutlass_version, planned_kernels};
use fourfold::{Backend, DeviceChoice, Options};
use serde_json::json;

const PROGRAM: &str = include_str!("../compile/default.fir");
const TARGETS: [(&str, &str); 2] =
    [("sm_120a", include_str!("../compile/sm_120a.cu")), ("sm_100a", include_str!("../compile/sm_100a.cu"))];
const ROUNDS: usize = 3;
const KINDS: [&str; 3] = ["ours", "relative", "flags"];

/// The flags of `relative`, without architecture and folders. The definition replaces a header that nvFuser's
/// build generates.
const RELATIVE_FLAGS: [&str; 15] = [
    "-std=c++17",
    "-O3",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
    "-x=cu",
    "-shared",
    "-DCUTE_USE_PACKED_TUPLE=1",
    "-DCUTLASS_ENABLE_TENSOR_CORE_MMA=1",
    "-DCUTLASS_DEBUG_TRACE_LEVEL=0",
    "-DNDEBUG",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fno-strict-aliasing",
    "-Xcompiler=-Wno-deprecated-declarations",
    "-Xcompiler=-Wno-conversion",
    "--threads=32",
];

/// One build.
struct Sample {
    wall: f64,
    /// User and system time of all processes, in seconds.
    cpu: f64,
    phases: Vec<Phase>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).map(String::as_str)
    };
    let rounds = value("--rounds").map_or(Ok(ROUNDS), str::parse)?.max(1);
    let toolchain = fourfold::kernels::toolchain(
        &ToolchainOptions { provision: true, ..ToolchainOptions::default() },
        &mut |line| eprintln!("{line}"),
    )?;
    let mut report = Vec::new();
    for (target, baseline) in TARGETS {
        if value("--target").is_some_and(|wanted| wanted != target) {
            continue;
        }
        let source = kernel(target, &toolchain)?;
        let mut samples: [Vec<Sample>; 3] = Default::default();
        for round in 0..rounds {
            // Turns spread initial slowness, such as a cold disk, over all kinds of builds.
            for turn in 0..KINDS.len() {
                let kind = (turn + round) % KINDS.len();
                let sample = match kind {
                    0 => ours(&source, &toolchain)?,
                    1 => relative(baseline, &source, &toolchain)?,
                    _ => relative(&source.text, &source, &toolchain)?,
                };
                eprintln!(
                    "{target} {}: {:.1} s, processor {:.1} s (round {} of {rounds})",
                    KINDS[kind],
                    sample.wall,
                    sample.cpu,
                    round + 1
                );
                samples[kind].push(sample);
            }
        }
        report.push((target, source.kernel, samples));
    }
    let json = arguments.iter().any(|argument| argument == "--json");
    print(&report, rounds, json);
    Ok(())
}

/// Returns the default kernel of a target.
fn kernel(target: &str, toolchain: &Toolchain) -> Result<KernelSource, Box<dyn Error>> {
    let (program, _) = fourfold::ir::load(PROGRAM).map_err(|diagnostics| format!("{diagnostics:?}"))?;
    let device = DeviceChoice::None;
    let backend = Backend::new(&Options::default().target(target).device(device))?;
    let kernels = planned_kernels(&backend.plan(program), cutlass_version(toolchain), false);
    Ok(kernels.into_iter().next().ok_or("the program has no kernel")?.source)
}

fn ours(source: &KernelSource, toolchain: &Toolchain) -> Result<Sample, Box<dyn Error>> {
    let mut include = toolchain.cutlass_include().to_vec();
    include.extend(toolchain.include.iter().cloned());
    let tools = BuildTools {
        nvcc: &toolchain.nvcc,
        include,
        libraries: toolchain.libraries.clone(),
        cuobjdump: toolchain.cuobjdump.as_deref(),
        environment: ToolEnvironment::from_process(),
    };
    let input = BuildInput {
        text: &source.text,
        kernel: &source.kernel,
        prelude: source.prelude,
        target: source.target,
        architecture: source.architecture,
        opcode: source.opcode,
        stages: None,
        translation: None,
    };
    let before = processor_time()?;
    let artifact = build(&input, &tools, &BuildOptions::default())?;
    let resources = artifact.resources();
    Ok(Sample {
        wall: resources.compile_time.as_secs_f64(),
        cpu: processor_time()? - before,
        phases: resources.phases.clone(),
    })
}

/// Compiles a source as one translation unit, as `relative` does.
fn relative(text: &str, source: &KernelSource, toolchain: &Toolchain) -> Result<Sample, Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("kernel.cu"), text)?;
    let architecture = source.architecture;
    let mut command = Command::new(&toolchain.nvcc);
    command.current_dir(folder.path()).env("TMPDIR", folder.path()).args(RELATIVE_FLAGS);
    command
        .arg(format!("-gencode=arch=compute_{architecture},code=[compute_{architecture},sm_{architecture}]"));
    let folders = |flag: &'static str, folders: &[std::path::PathBuf]| -> Vec<std::ffi::OsString> {
        folders.iter().flat_map(|folder| [flag.into(), folder.clone().into()]).collect()
    };
    command.args(folders("-I", &toolchain.cutlass_include())).args(folders("-I", &toolchain.include));
    command.args(folders("-L", &toolchain.libraries));
    command.args(["--time", "times.csv", "-o", "kernel.so", "kernel.cu"]);
    let (before, started) = (processor_time()?, Instant::now());
    let run = run_tool(&mut command, BuildOptions::TIME_LIMIT)?;
    let sample =
        Sample { wall: started.elapsed().as_secs_f64(), cpu: processor_time()? - before, phases: vec![] };
    if !run.succeeded() {
        return Err(format!("nvcc ended with {}: {}", run.ending(), run.log).into());
    }
    Ok(Sample { phases: phases(&folder.path().join("times.csv"))?, ..sample })
}

/// Returns the phases that `nvcc --time` reports.
fn phases(times: &Path) -> Result<Vec<Phase>, Box<dyn Error>> {
    let text = fs::read_to_string(times)?;
    let phases = text.lines().filter_map(|line| {
        let columns: Vec<&str> = line.split(',').map(str::trim).collect();
        let [_, program, .., time, "ms"] = columns[..] else { return None };
        Some(Phase { name: program.to_owned(), seconds: time.parse::<f64>().ok()? / 1e3 })
    });
    Ok(phases.collect())
}

/// Returns user and system time of all finished child processes, in seconds.
fn processor_time() -> Result<f64, Box<dyn Error>> {
    /// The clock ticks per second that Linux reports to programs.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, may contain anything.
    let (_, rest) = stat.rsplit_once(')').ok_or("/proc/self/stat has no program name")?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: Result<Vec<f64>, _> = fields[13..15].iter().map(|field| field.parse::<f64>()).collect();
    Ok(ticks?.iter().sum::<f64>() / TICKS_PER_SECOND)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns the median of each phase, in the order of the first round.
fn median_phases(samples: &[Sample]) -> Vec<Phase> {
    let first = samples[0].phases.iter().enumerate();
    let median_of =
        |at: usize| median(samples.iter().filter_map(|sample| Some(sample.phases.get(at)?.seconds)));
    first.map(|(at, phase)| Phase { name: phase.name.clone(), seconds: median_of(at) }).collect()
}

fn print(report: &[(&str, String, [Vec<Sample>; 3])], rounds: usize, json: bool) {
    let mut targets = Vec::new();
    for (target, name, samples) in report {
        let wall = samples.each_ref().map(|samples| median(samples.iter().map(|sample| sample.wall)));
        let cpu = samples.each_ref().map(|samples| median(samples.iter().map(|sample| sample.cpu)));
        let phases = samples.each_ref().map(|samples| median_phases(samples));
        if json {
            let kinds: serde_json::Map<String, serde_json::Value> = (0..KINDS.len())
                .map(|kind| {
                    let phases: Vec<_> = phases[kind]
                        .iter()
                        .map(|phase| json!({ "name": phase.name, "seconds": phase.seconds }))
                        .collect();
                    let all: Vec<_> =
                        samples[kind].iter().map(|sample| json!([sample.wall, sample.cpu])).collect();
                    let object = json!({
                        "wall_s": wall[kind], "processor_s": cpu[kind], "phases": phases, "samples": all,
                    });
                    (KINDS[kind].to_owned(), object)
                })
                .collect();
            targets.push(json!({
                "target": target, "kernel": name, "kinds": kinds,
                "ratio_wall": wall[0] / wall[1], "ratio_processor": cpu[0] / cpu[1],
            }));
            continue;
        }
        println!("{target}: {name}\n\n| | wall s | processor s | phases, wall s |\n|---|---|---|---|");
        for kind in 0..KINDS.len() {
            let phases: Vec<String> = phases[kind]
                .iter()
                .filter(|phase| phase.seconds >= 0.05)
                .map(|phase| format!("{} {:.1}", phase.name, phase.seconds))
                .collect();
            println!("| {} | {:.1} | {:.1} | {} |", KINDS[kind], wall[kind], cpu[kind], phases.join(", "));
        }
        println!("| ours / relative | {:.2} | {:.2} | |\n", wall[0] / wall[1], cpu[0] / cpu[1]);
    }
    if json {
        println!("{:#}", json!({ "rounds": rounds, "required_ratio": 0.5, "targets": targets }));
    }
}
