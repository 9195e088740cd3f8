//! Compares the host time of a prepared launch with `cudaLaunchKernelEx` of an empty kernel with the same
//! parameter bytes, grid, cluster, block, shared memory and attributes, after the same memsets.
#![allow(unsafe_code, reason = "prepared programs take addresses, and the bare launch is C")]

mod allocations;
mod bare;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use fourfold::executor::device::{Buffer, Device, Node, Recording, Stream};
use fourfold::executor::toolchain::ToolchainOptions;
use fourfold::executor::{PreparedProgram, RunOptions, run};
use fourfold::ir::{Value, bind, sample};
use fourfold::{Backend, CompileOptions, Compiled, Options};
use fourfold_cli::replay::{Loaded, load};
use fourfold_tests::repository;
use serde_json::{Value as Json, json};

use allocations::Allocations;
use bare::{Bare, BareWork};

/// Fixtures: plain, with C, with all operands, with many operands, with the most operands, with cleared outputs,
/// two kernels.
const FIXTURES: [&str; 7] = [
    "shapes/exact_m1.fir",
    "epilogue/c_without_beta.fir",
    "epilogue/epilogue_full.fir",
    "epilogue/dag_two_matrices.fir",
    "epilogue/dag_largest.fir",
    "outputs/dag_out_nvfp4_value.fir",
    "shapes/two_kernels.fir",
];

/// Warm-up batches of each kind: the first launches load modules and grow queues.
const WARM_UP: usize = 5;

/// Compare the host time of a prepared launch with a bare launch of an empty kernel
#[derive(Parser)]
#[command(
    after_help = "Example:\n  cargo run --release -p fourfold-bench --example launch -- --require 1.2\n\n\
    Exit codes: 0 ok, 1 above RATIO or an allocation was made, 3 no GPU or no compiler"
)]
struct Cli {
    /// Launch these programs, which must consist of kernels [default: seven fixtures]
    programs: Vec<PathBuf>,
    /// Launch N times before waiting
    #[arg(long, value_name = "N", default_value_t = 50)]
    launches: usize,
    /// Run N batches of each kind in turns and report the median
    #[arg(long, value_name = "N", default_value_t = 101)]
    rounds: usize,
    /// Exit with 1 if a launch takes more than this multiple of a bare one
    #[arg(long, value_name = "RATIO")]
    require: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match measure_all(&cli) {
        Ok(report) => {
            match cli.json {
                true => println!("{:#}", report.json()),
                false => println!("{report}"),
            }
            ExitCode::from(u8::from(!report.ok()))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(3)
        }
    }
}

/// Returns a backend whose kernels run on this machine's GPU.
fn backend() -> Result<Backend> {
    let backend = Backend::new(&Options::default())?;
    if backend.execution().is_err() || backend.capabilities().formats.is_empty() {
        bail!("no GPU on this machine runs kernels");
    }
    Ok(backend)
}

fn measure_all(cli: &Cli) -> Result<Report> {
    let backend = backend()?;
    let (gpu, execution) = backend.execution().map_err(|reason| anyhow::anyhow!(reason.message))?;
    eprintln!("{gpu}, {} {execution:?}", backend.capabilities().target);
    let toolchain_options = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    let toolchain = fourfold::kernels::toolchain(&toolchain_options, &mut |line| eprintln!("{line}"))?;
    let programs: Vec<Loaded> = paths(cli).iter().map(|path| load(path)).collect::<Result<_, _>>()?;
    let planned = programs.iter().map(|loaded| backend.plan(loaded.program.clone())).collect();
    let options = CompileOptions::default().toolchain(toolchain_options);
    let compiled = backend.compile_all(planned, &options, &|line| eprintln!("{line}"));

    let mut subjects = Vec::new();
    for (loaded, compiled) in programs.iter().zip(&compiled) {
        let name = loaded.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        subjects.push(Subject::new(name.clone(), loaded, compiled).with_context(|| name)?);
    }
    let sizes: BTreeSet<usize> = subjects.iter().flat_map(Subject::parameter_bytes).collect();
    let sizes: Vec<usize> = sizes.into_iter().collect();
    eprintln!("building empty kernels of {sizes:?} parameter bytes");
    let bare = Bare::build(&sizes, &toolchain, gpu)?;
    let mut rows = Vec::new();
    for subject in &mut subjects {
        eprintln!("measuring {}", subject.name);
        let name = subject.name.clone();
        rows.push(subject.measure(&bare, cli).with_context(|| name)?);
    }
    Ok(Report { gpu: gpu.to_string(), execution: format!("{execution:?}"), rows, require: cli.require })
}

fn paths(cli: &Cli) -> Vec<PathBuf> {
    if !cli.programs.is_empty() {
        return cli.programs.clone();
    }
    // The repository may have moved since the build.
    let here = PathBuf::from("fixtures");
    let folder = if here.is_dir() { here } else { repository().join("fixtures") };
    FIXTURES.iter().map(|name| folder.join(name)).collect()
}

/// A program that is ready to launch. Fields are dropped in order: the launches before their memory.
struct Subject<'a> {
    name: String,
    call: PreparedProgram,
    recording: Recording,
    stream: Stream,
    device: &'a Device,
    _buffers: HashMap<Value, Buffer>,
}

impl<'a> Subject<'a> {
    fn new(name: String, loaded: &Loaded, compiled: &'a Compiled) -> Result<Subject<'a>> {
        for (segment, _) in compiled.planned().partition().kernels() {
            if let Some(reason) = compiled.unavailable(segment) {
                bail!("segment {segment}: {}: {}", reason.code, reason.message);
            }
        }
        let machine = compiled.machine().context("the program has no kernels")?;
        let device = compiled.device().context("the program has no kernels")?;
        let (program, partition) = (compiled.planned().program(), compiled.planned().partition());
        let recipe = loaded.header.samples.first().context("the program has no `sample` line")?;
        let tensors = sample::inputs(program, recipe)?;
        let bound = bind::bind(program, &tensors)?;
        let ran = run(program, partition, &bound, &RunOptions::default(), Some(&machine))?;
        let stream = device.new_stream()?;
        let module = program.module();
        let mut buffers = HashMap::new();
        for (value, tensor) in module.inputs.iter().zip(&bound.inputs) {
            let buffer = device.alloc(tensor.bytes().len())?;
            stream.upload(&buffer, 0, tensor.bytes())?;
            buffers.insert(*value, buffer);
        }
        for value in &module.outputs {
            let bytes = ran.value(*value).context("an output was not computed")?.bytes();
            let buffer = device.alloc(bytes.len())?;
            stream.fill(&buffer, 0, buffer.len(), 0xFF)?;
            buffers.insert(*value, buffer);
        }
        let addresses = buffers.iter().map(|(value, buffer)| (*value, buffer.address()));
        // SAFETY: the buffers have the sizes of the program's values, and are dropped after the call that uses them.
        let mut call = unsafe { compiled.prepare(&bound.symbols)?.bind_all(addresses).build() }?;
        // SAFETY: the launch is waited for before the call is used again.
        unsafe { call.launch(&stream) }?;
        stream.synchronize()?;
        for value in &module.outputs {
            let want = ran.value(*value).context("an output was not computed")?.bytes();
            let mut found = vec![0; want.len()];
            stream.download(&buffers[value], 0, &mut found)?;
            ensure!(found == want, "%{} differs from the result of a run", module.name_of(*value));
        }
        // SAFETY: nothing is launched while it is recorded.
        let recording = stream.inspect(|| unsafe { call.launch(&stream) })?;
        ensure!(!recording.nodes().is_empty(), "the recorded launch is empty");
        Ok(Subject { name, call, recording, stream, device, _buffers: buffers })
    }

    fn parameter_bytes(&self) -> Vec<usize> {
        let kernel = |node: &Node| match node {
            Node::Kernel(kernel) => Some(kernel.parameter_bytes),
            _ => None,
        };
        self.recording.nodes().iter().filter_map(kernel).collect()
    }

    fn measure(&mut self, bare: &Bare, cli: &Cli) -> Result<Row> {
        let nodes = self.recording.nodes().to_vec();
        let work = bare.like(&nodes, true)?;
        let memsets = bare.like(&nodes, false)?;
        let has_memsets = nodes.iter().any(|node| matches!(node, Node::Memset(_)));
        let (call, recording, stream) = (&mut self.call, &self.recording, &self.stream);
        let batch = |times: &mut Times, launch: &mut dyn FnMut() -> Result<()>| -> Result<()> {
            let before = Allocations::now();
            let start = Instant::now();
            for _ in 0..cli.launches {
                launch()?;
            }
            times.batches.push(start.elapsed().as_secs_f64() / cli.launches as f64);
            times.allocations.add_since(before);
            Ok(stream.synchronize()?)
        };
        let bare_batch = |times: &mut Times, work: &BareWork<'_>| {
            // SAFETY: loading the library made the context current, and the subject owns the memory.
            batch(times, &mut || unsafe { work.launch(stream) })
        };
        let mut times: [Times; 4] = std::array::from_fn(|_| Times::with_room(cli.rounds + WARM_UP));
        let mut free_before = 0;
        for round in 0..cli.rounds + WARM_UP {
            if round == WARM_UP {
                times.iter_mut().for_each(Times::clear);
                free_before = self.device.free_memory()?;
            }
            for turn in 0..times.len() {
                let which = (round + turn) % times.len();
                let times = &mut times[which];
                match which {
                    // SAFETY: here and below: one stream runs the launches in order, and the buffers outlive them.
                    0 => batch(times, &mut || Ok(unsafe { call.launch(stream) }?))?,
                    1 => bare_batch(times, &work)?,
                    // SAFETY: as above.
                    2 => batch(times, &mut || Ok(unsafe { recording.launch(stream) }?))?,
                    _ if has_memsets => bare_batch(times, &memsets)?,
                    _ => {}
                }
            }
        }
        let free_after = self.device.free_memory()?;
        // On a host thread without the context, a launch pushes and pops it.
        let mut without_context = Times::with_room(cli.rounds);
        std::thread::scope(|scope| {
            let measured = scope.spawn(|| -> Result<()> {
                for _ in 0..cli.rounds / 4 + 1 {
                    // SAFETY: as above.
                    batch(&mut without_context, &mut || Ok(unsafe { call.launch(stream) }?))?;
                }
                Ok(())
            });
            measured.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })?;
        let [launch, bare, driver, memsets] = times;
        Ok(Row {
            name: self.name.clone(),
            launch: launch.median(),
            bare: bare.median(),
            driver: driver.median(),
            memsets: if has_memsets { memsets.median() } else { 0.0 },
            without_context: without_context.median(),
            allocations: launch.allocations,
            bare_allocations: bare.allocations,
            device_bytes: free_before as i64 - free_after as i64,
            nodes,
        })
    }
}

/// Seconds per launch of each batch.
struct Times {
    batches: Vec<f64>,
    allocations: Allocations,
}

impl Times {
    /// Reserves room for this many batches, so that measuring allocates nothing.
    fn with_room(batches: usize) -> Times {
        Times { batches: Vec::with_capacity(batches + 1), allocations: Allocations::default() }
    }

    fn clear(&mut self) {
        self.batches.clear();
        self.allocations = Allocations::default();
    }

    fn median(&self) -> f64 {
        let mut sorted = self.batches.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

/// The results of one program, in seconds per launch.
struct Row {
    name: String,
    launch: f64,
    bare: f64,
    driver: f64,
    memsets: f64,
    without_context: f64,
    allocations: Allocations,
    bare_allocations: Allocations,
    device_bytes: i64,
    nodes: Vec<Node>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.launch / self.bare
    }

    /// Returns true if Fourfold allocates nothing per launch. The driver allocates about once in a thousand
    /// launches; an allocation by Fourfold would show in each launch or batch.
    fn allocates_nothing(&self) -> bool {
        const THE_DRIVER_S: u64 = 4;
        let extra = self.allocations.all > self.bare_allocations.all + THE_DRIVER_S;
        self.allocations.rust == 0 && !extra && self.device_bytes <= 0
    }

    fn ok(&self, require: Option<f64>) -> bool {
        self.allocates_nothing() && require.is_none_or(|require| self.ratio() <= require)
    }

    fn json(&self, require: Option<f64>) -> Json {
        let microseconds = |seconds: f64| (seconds * 1e9).round() / 1e3;
        let kernels = self.nodes.iter().filter_map(|node| match node {
            Node::Kernel(kernel) => Some(json!({
                "grid": kernel.grid, "block": kernel.block, "cluster": kernel.cluster,
                "shared_memory": kernel.shared_memory, "parameter_bytes": kernel.parameter_bytes,
            })),
            _ => None,
        });
        json!({
            "program": self.name,
            "ok": self.ok(require),
            "ratio": self.ratio(),
            "launch_us": microseconds(self.launch),
            "bare_us": microseconds(self.bare),
            "bare_memsets_us": microseconds(self.memsets),
            "driver_us": microseconds(self.driver),
            "launch_without_context_us": microseconds(self.without_context),
            "rust_allocations": self.allocations.rust,
            "allocations": self.allocations.all,
            "bare_allocations": self.bare_allocations.all,
            "device_bytes": self.device_bytes,
            "memsets": self.nodes.len() - kernels.clone().count(),
            "kernels": kernels.collect::<Vec<_>>(),
        })
    }
}

struct Report {
    gpu: String,
    execution: String,
    rows: Vec<Row>,
    require: Option<f64>,
}

impl Report {
    fn ok(&self) -> bool {
        self.rows.iter().all(|row| row.ok(self.require))
    }

    fn json(&self) -> Json {
        let rows: Vec<Json> = self.rows.iter().map(|row| row.json(self.require)).collect();
        json!({
            "ok": self.ok(), "gpu": self.gpu, "execution": self.execution, "require": self.require, "rows": rows,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {}; host microseconds per launch, medians", self.gpu, self.execution)?;
        writeln!(
            f,
            "{:<22} {:>7} {:>7} {:>6} {:>8} {:>7} {:>7}  allocated  kernels + memsets, parameter bytes",
            "program", "launch", "bare", "ratio", "memsets", "driver", "no ctx"
        )?;
        for row in &self.rows {
            let sizes: Vec<String> = row
                .nodes
                .iter()
                .filter_map(|node| match node {
                    Node::Kernel(kernel) => Some(kernel.parameter_bytes.to_string()),
                    _ => None,
                })
                .collect();
            let us = |seconds: f64| format!("{:.3}", seconds * 1e6);
            writeln!(
                f,
                "{:<22} {:>7} {:>7} {:>6.3} {:>8} {:>7} {:>7}  {:>9}  {} + {}, {}{}",
                row.name,
                us(row.launch),
                us(row.bare),
                row.ratio(),
                us(row.memsets),
                us(row.driver),
                us(row.without_context),
                format!("{}/{}/{}", row.allocations.rust, row.allocations.all, row.device_bytes),
                sizes.len(),
                row.nodes.len() - sizes.len(),
                sizes.join(" "),
                if row.ok(self.require) { "" } else { "  <- not ok" }
            )?;
        }
        writeln!(
            f,
            "bare: the same memsets, and cudaLaunchKernelEx of an equivalent empty kernel; memsets: its memsets alone"
        )?;
        writeln!(
            f,
            "driver: the recorded launch through the driver alone; no ctx: from a thread without context"
        )?;
        write!(
            f,
            "allocated: by Rust, by the whole process, device bytes; {}",
            match self.ok() {
                true => "ok",
                false => "NOT OK",
            }
        )
    }
}
