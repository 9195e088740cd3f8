//! Measures jobs: builds every kernel, then times and checks one program at one size after another.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use fourfold::{Backend, CompileOptions, Compiled, Error as BackendError, Event, Options};
use fourfold_executor::device::{Device, DeviceError, Gpu};
use fourfold_executor::measure::{CaptureError, LEAST_CALLS, LastOutputs, Rotation, Rounds};
use fourfold_executor::{DEVICE_ERROR, DEVICE_MEMORY, Refused, RunError, RunOptions, driver_release};
use fourfold_ir::memory::{NoMemory, check_memory};
use fourfold_ir::sample::{self, Recipe};
use fourfold_ir::{Bound, Program, Symbol, Tensor, TensorError, Value, bind};

use super::check::Comparison;
use super::jobs::{Job, Jobs};
use super::peers::{PeerRound, PeerSamples, Peers, Starting};
use super::plan::fallback_reasons;
use super::report::{
    BenchReport, CaseReport, CaseState, MachineReport, PEERS, PeerReport, ProtocolReport, Times,
};
use super::rows::{axes, drawn, gather_all, repeated};
use crate::error::Error;
use crate::version::Version;

/// The rounds of a measurement: ours, the copy and the peers alternate.
const ROUNDS: usize = 2;

/// The seed of every input. Ends of groups are drawn with equally many rows in each ([`sample::Distribution::Equal`]).
const SEED: u64 = 5;

/// The times that a peer process is started again after it ended.
const RESTARTS: usize = 3;

/// The peers to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerChoice {
    /// None.
    None,
    /// torch if it is available.
    Available,
    /// torch; it is an error if it is not available.
    Torch,
}

/// Options of a benchmark.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// The target and the device.
    pub backend: Options,
    /// Options of the compiler.
    pub compile: CompileOptions,
    /// The lengths of a round.
    pub rounds: Rounds,
    /// The peers.
    pub peers: PeerChoice,
    /// The Python interpreter.
    pub python: PathBuf,
}

/// Measures every job. `tell` gets a line for each.
///
/// # Errors
/// Without a GPU or required peers, or if a plan is inconsistent. A case that cannot be measured is part of the report.
pub fn bench(
    jobs: &Jobs,
    options: &BenchOptions,
    progress: &(dyn Fn(&Event) + Sync),
    tell: &dyn Fn(&str),
) -> Result<BenchReport, Error> {
    let backend = Backend::new(&options.backend)?;
    let gpu = match backend.execution() {
        Ok((gpu, _)) => gpu.clone(),
        Err(reason) => {
            let message = reason.message.trim_end_matches(": kernels run on the CPU").to_owned();
            return Err(Error::NoDevice { message });
        }
    };
    let mut notes = Vec::new();
    // torch is imported while kernels are built.
    let wants_peers = options.peers != PeerChoice::None && jobs.jobs.iter().any(|job| job.peer.is_some());
    let starting = wants_peers.then(|| Starting::spawn(&options.python, &gpu));
    let mut plans = Vec::with_capacity(jobs.programs.len());
    for program in &jobs.programs {
        let planned = backend.plan(program.clone());
        backend.check(&planned)?;
        plans.push(planned);
    }
    let compiled = backend.compile_all(plans, &options.compile, progress);
    let peers = match starting.map(|starting| starting.and_then(Starting::ready)) {
        Some(Ok(peers)) => Some(peers),
        Some(Err(message)) if options.peers == PeerChoice::Torch => return Err(Error::NoPeer { message }),
        Some(Err(message)) => {
            notes.push(format!("no peer was measured: {message}"));
            None
        }
        None => {
            notes.push("no peer was measured: none was asked for".to_owned());
            None
        }
    };
    let machine = machine(&backend, &gpu, &compiled, peers.as_ref());
    let mut bench =
        Bench { gpu: &gpu, options, peers, restarts: 0, tensors: HashMap::new(), program: None, lost: None };
    let count = jobs.jobs.len();
    let mut cases = Vec::with_capacity(count);
    for (position, job) in jobs.jobs.iter().enumerate() {
        let case = bench.case(job, &compiled[job.program]);
        tell(&format!("[{}/{count}] {}", position + 1, line(&case)));
        cases.push(case);
    }
    let protocol = ProtocolReport::new(ROUNDS, &options.rounds);
    Ok(BenchReport::new(machine, protocol, cases, notes))
}

/// Describes the machine.
fn machine(backend: &Backend, gpu: &Gpu, compiled: &[Compiled], peers: Option<&Peers>) -> MachineReport {
    let built = compiled.iter().flat_map(Compiled::built);
    let mut tools = built.filter_map(|built| built.outcome.as_ref().ok()?.tools());
    let first = tools.next();
    // Only some kernels need CUTLASS.
    let with_cutlass = first.into_iter().chain(tools).find(|tools| tools.cutlass != "none");
    let (major, minor) = gpu.driver_version;
    let Version { version, described } = Version::own();
    MachineReport {
        gpu: gpu.to_string(),
        l2_bytes: gpu.l2_bytes,
        driver: driver_release(),
        driver_cuda: format!("{major}.{minor}"),
        target: backend.capabilities().target.clone(),
        fourfold: described.unwrap_or(version),
        nvcc: first.map(|tools| tools.nvcc.clone()),
        cutlass: with_cutlass.map(|tools| tools.cutlass.clone()),
        peers: peers.map(|peers| peers.versions.clone()),
    }
}

/// Describes a case in one line.
fn line(case: &CaseReport) -> String {
    let name = format!("{}/{} {}", case.suite, case.case, case.size_text);
    let Some(times) = &case.times else { return format!("{name}: {}", case.reasons.join("; ")) };
    let mut words = vec![format!("{:.2} us", times.median_us)];
    words.extend(case.percent_of_copy.map(|percent| format!("{percent:.1} % of a copy")));
    for peer in PEERS {
        words.extend(case.peers.get(peer).map(|report| match report {
            PeerReport::Measured { ratio, .. } => format!("{peer} {ratio:.2}x"),
            PeerReport::Failed { .. } => format!("{peer} failed"),
        }));
    }
    words.extend(case.reasons.iter().cloned());
    format!("{name}: {}", words.join(", "))
}

/// The reason that a case has no result.
enum Stop {
    NotOnTheDevice(Vec<String>),
    Failed(Error),
    Wrong(String),
    /// The device failed; true if nothing can run on it any more.
    Device(String, bool),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        match &error {
            Error::Run(RunError::Device { source, .. }) => Stop::Device(error.message(), source.is_sticky()),
            _ => Stop::Failed(error),
        }
    }
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Stop {
        match &error {
            BackendError::Device(source) => {
                let is_sticky = source.is_sticky();
                Stop::Device(fourfold::chain(&error), is_sticky)
            }
            _ => Error::from(error).into(),
        }
    }
}

impl From<DeviceError> for Stop {
    fn from(error: DeviceError) -> Stop {
        Stop::Device(format!("{error}: {}", error.remedy()), error.is_sticky())
    }
}

/// A benchmark in progress.
struct Bench<'a> {
    gpu: &'a Gpu,
    options: &'a BenchOptions,
    peers: Option<Peers>,
    restarts: usize,
    /// The inputs of the last case, which the next one of the same program reuses where they fit.
    tensors: HashMap<String, Tensor>,
    program: Option<usize>,
    /// The reason that the device can run nothing any more.
    lost: Option<String>,
}

impl Bench<'_> {
    /// Measures a job and describes the outcome.
    fn case(&mut self, job: &Job, compiled: &Compiled) -> CaseReport {
        let mut case = CaseReport {
            suite: job.suite.clone(),
            case: job.case.clone(),
            element: job.element.clone(),
            size: job.size.clone(),
            size_text: job.size_text(),
            state: CaseState::Failed,
            reasons: Vec::new(),
            kernels: 0,
            bytes: 0,
            sets: 0,
            calls: 0,
            rotating: false,
            times: None,
            gb_per_s: None,
            copy: None,
            percent_of_copy: None,
            peers: BTreeMap::new(),
            checked: None,
        };
        if let Some(why) = &self.lost {
            case.reasons.push(format!("not measured, because the device was lost: {why}"));
            return case;
        }
        match self.measure(job, compiled, &mut case) {
            Ok(()) => {}
            Err(Stop::NotOnTheDevice(reasons)) => {
                (case.state, case.reasons) = (CaseState::NotOnTheDevice, reasons);
            }
            Err(Stop::Wrong(flaw)) => (case.state, case.reasons) = (CaseState::Wrong, vec![flaw]),
            Err(Stop::Failed(error)) => case.reasons.push(error.message()),
            Err(Stop::Device(message, is_lost)) => {
                case.reasons.push(message.clone());
                self.lost = is_lost.then_some(message);
            }
        }
        case
    }

    fn measure(&mut self, job: &Job, compiled: &Compiled, case: &mut CaseReport) -> Result<(), Stop> {
        let planned = compiled.planned();
        let program = planned.program();
        let module = program.module();
        self.draw(job, program)?;
        let tensors = std::mem::take(&mut self.tensors);
        let bound = bind::bind_given(program, &tensors, &job.symbols).map_err(Error::from)?;
        let device = compiled.device().ok_or_else(|| not_on_the_device(compiled, None))?;
        let last = self.time(job, compiled, device, &tensors, &bound, case)?;
        let run = RunOptions::default().keep_all(true).poison(0xFF);
        let run = compiled.run_normalized(&bound, &run)?;
        let rows = rows_symbol(job, program);
        let rows = rows.and_then(|symbol| Some((symbol, bound.symbols.get(symbol)?)));
        let (bound, last) = (&bound, &last[..]);
        let comparison = Comparison { planned, bound, run: &run, last, rows, rule: job.rule };
        let checked = comparison.check()?;
        case.state = if checked.ok { CaseState::Ok } else { CaseState::Wrong };
        case.reasons.extend(checked.wrong.iter().cloned());
        case.checked = Some(checked);
        let is_param =
            |name: &String| program.facts().value_named(name).is_some_and(|value| module.is_param(value));
        // Large params are drawn once for all sizes.
        self.tensors = tensors.into_iter().filter(|(name, _)| is_param(name)).collect();
        Ok(())
    }

    /// Draws the inputs of a job into `tensors`, of which those of the last job are reused. At most 64 rows are drawn;
    /// larger inputs repeat them.
    fn draw(&mut self, job: &Job, program: &Program) -> Result<(), Error> {
        if self.program.replace(job.program) != Some(job.program) {
            self.tensors.clear();
        }
        let module = program.module();
        let rows = rows_symbol(job, program);
        let is_tiled =
            |symbol: Symbol| module.inputs.iter().all(|input| axes(module, *input, symbol).is_some());
        let rows = rows.filter(|symbol| is_tiled(*symbol));
        let mut symbols = job.symbols.clone();
        let mut extent = 0;
        if let Some(name) = rows.map(|symbol| &module.symbols[symbol])
            && let Some((_, value)) = symbols.iter_mut().find(|(known, _)| known == name)
        {
            extent = *value;
            *value = drawn(extent);
        }
        let full = bind::symbols_given(module, &job.symbols)?;
        self.tensors.retain(|name, tensor| {
            let value = program.facts().value_named(name);
            let dims = value.and_then(|value| bind::concrete_dims(module.ty(value), &full));
            dims.is_some_and(|dims| dims == tensor.dims())
        });
        let recipe = Recipe { rule: job.rule, seed: SEED, symbols };
        let known = &self.tensors;
        let new = sample::some_inputs(program, &recipe, &|name| !known.contains_key(name))?;
        for (name, tensor) in new {
            let too_large = |error: TensorError| {
                let TensorError::Memory { bytes, .. } = error else {
                    return Error::Missing(format!("%{name}: {error}"));
                };
                Error::Memory { what: format!("%{name}"), bytes }
            };
            let value = program.facts().value_named(&name);
            let along = rows.zip(value).and_then(|(symbol, value)| axes(module, value, symbol));
            let mut tensor = match along {
                Some(along) if !along.is_empty() && extent > drawn(extent) => {
                    let no_memory = |NoMemory { bytes }| Error::Memory { what: format!("%{name}"), bytes };
                    let positions = repeated(extent).map_err(no_memory)?;
                    gather_all(&tensor, &along, &positions).map_err(too_large)?
                }
                _ => tensor,
            };
            if let Some(constant) = job.constants.get(&name) {
                let (element, dims, layout) = (tensor.element(), tensor.dims().to_vec(), tensor.layout());
                let no_memory = |NoMemory { bytes }| Error::Memory { what: format!("%{name}"), bytes };
                check_memory(tensor.count().saturating_mul(size_of::<f64>())).map_err(no_memory)?;
                let values = vec![*constant; tensor.count()];
                tensor = Tensor::from_f64(element, dims, layout, &values).map_err(too_large)?;
            }
            self.tensors.insert(name, tensor);
        }
        Ok(())
    }

    /// Times the program, the copy and the peers in turn. Returns the outputs of the last replay.
    fn time(
        &mut self,
        job: &Job,
        compiled: &Compiled,
        device: &Device,
        tensors: &HashMap<String, Tensor>,
        bound: &Bound<'_>,
        case: &mut CaseReport,
    ) -> Result<LastOutputs, Stop> {
        let program = compiled.planned().program();
        let module = program.module();
        let mut params = HashMap::new();
        let mut inputs: HashMap<Value, &[u8]> = HashMap::new();
        let mut shared = 0;
        for (value, tensor) in module.inputs.iter().zip(&bound.inputs) {
            if module.is_param(*value) {
                let name = module.name_of(*value);
                shared += tensor.bytes().len() as u64;
                let (what, bytes) = (format!("a copy of %{name}"), tensor.bytes().len());
                let copy = tensors[name].try_clone().map_err(|_| Error::Memory { what, bytes })?;
                params.insert(name.to_owned(), copy);
            } else {
                inputs.insert(*value, tensor.bytes());
            }
        }
        // Params that fit into L2 are not read from memory by each call.
        let shared = if shared > self.gpu.l2_bytes { shared } else { 0 };
        let session = compiled.session(params)?.with_symbols(job.symbols.clone());
        let prepare = || session.prepare(&bound.symbols);
        let rotation = Rotation::new(device, &inputs, shared, LEAST_CALLS, &prepare);
        let mut rotation = rotation.map_err(|error| stop_of(error, compiled))?;
        let rounds = self.options.rounds;
        let (mut ours, mut copies, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            ours.push(rotation.program_round(&rounds)?);
            copies.push(rotation.copy_round(&rounds)?);
            theirs.push(self.peer_round(round == 0, job, compiled, bound, &rotation));
        }
        let last = rotation.last_outputs()?;
        case.kernels = rotation.kernels();
        (case.bytes, case.sets, case.calls) = (rotation.bytes(), rotation.sets(), rotation.calls());
        case.rotating = rotation.is_rotating();
        (case.times, case.copy) = (Times::of(&ours), Times::of(&copies));
        let median = case.times.as_ref().map(|times| times.median_us).filter(|us| *us > 0.0);
        case.gb_per_s = median.map(|us| case.bytes as f64 / us / 1e3);
        case.percent_of_copy = median.zip(case.copy.as_ref()).map(|(us, copy)| copy.median_us / us * 100.0);
        case.peers = median.map_or_else(BTreeMap::new, |us| peer_reports(theirs, us));
        match last {
            Ok(last) => Ok(last),
            Err(flaw) => Err(Stop::Wrong(flaw.to_string())),
        }
    }

    /// Measures the peers of a job once. A process that ended is started again for the next job.
    fn peer_round(
        &mut self,
        is_first: bool,
        job: &Job,
        compiled: &Compiled,
        bound: &Bound<'_>,
        rotation: &Rotation,
    ) -> PeerRound {
        if job.peer.is_none() {
            return PeerRound::new();
        }
        let module = compiled.planned().program().module();
        let rounds = &self.options.rounds;
        let Some(peers) = &mut self.peers else { return PeerRound::new() };
        let answer = match is_first {
            true => peers.open(job, module, &bound.symbols, rotation, rounds),
            false => peers.again().and_then(|answer| peers.close().map(|()| answer)),
        };
        answer.unwrap_or_else(|error| {
            self.peers = None;
            if self.restarts < RESTARTS {
                self.restarts += 1;
                let started = Starting::spawn(&self.options.python, self.gpu).and_then(Starting::ready);
                self.peers = started.ok();
            }
            let failed = |name: &&str| ((*name).to_owned(), PeerSamples::Failed { error: error.clone() });
            PEERS.iter().map(failed).collect()
        })
    }
}

/// Returns the symbol of the rows.
fn rows_symbol(job: &Job, program: &Program) -> Option<Symbol> {
    let rows = job.rows.as_ref()?;
    program.module().symbols.iter().find(|(_, name)| *name == rows).map(|(symbol, _)| symbol)
}

/// Joins the rounds of each peer. A peer that failed in any round is failed.
fn peer_reports(rounds: Vec<PeerRound>, ours_us: f64) -> BTreeMap<String, PeerReport> {
    let mut reports = BTreeMap::new();
    for name in PEERS {
        let mut samples = Vec::new();
        let mut failure = None;
        for round in &rounds {
            match round.get(name) {
                Some(PeerSamples::Samples { samples: of_round }) => samples.push(of_round.clone()),
                Some(PeerSamples::Failed { error }) => failure = failure.or_else(|| Some(error.clone())),
                None => {}
            }
        }
        let report = match (failure, Times::of(&samples)) {
            (Some(error), _) => Some(PeerReport::Failed { error }),
            (None, Some(times)) => Some(PeerReport::Measured { ratio: times.median_us / ours_us, times }),
            (None, None) => None,
        };
        reports.extend(report.map(|report| (name.to_owned(), report)));
    }
    reports
}

fn stop_of(error: CaptureError, compiled: &Compiled) -> Stop {
    match error {
        CaptureError::Refused(refused) if [DEVICE_ERROR, DEVICE_MEMORY].contains(&refused.code) => {
            Stop::Device(refused.message, false)
        }
        CaptureError::Refused(refused) => not_on_the_device(compiled, Some(&refused)),
        CaptureError::Device(error) => error.into(),
        error => Stop::Failed(Error::NotKept(error.to_string())),
    }
}

/// The reasons that a program cannot be prepared: its fallback segments, the kernels that cannot run here, and the
/// refusal.
fn not_on_the_device(compiled: &Compiled, refused: Option<&Refused>) -> Stop {
    let mut reasons = fallback_reasons(compiled.planned());
    for (segment, _) in compiled.planned().partition().plans() {
        let unavailable = compiled.unavailable(segment);
        reasons.extend(unavailable.map(|reason| format!("segment {segment}: {}", reason.message)));
    }
    if reasons.is_empty() {
        reasons.extend(refused.map(|refused| match refused.segment {
            Some(segment) => format!("segment {segment}: {}", refused.message),
            None => refused.message.clone(),
        }));
    }
    if reasons.is_empty() {
        reasons.push("the program has no kernel".to_owned());
    }
    Stop::NotOnTheDevice(reasons)
}
