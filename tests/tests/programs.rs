//! Random programs of the kit, from end to end on the stand-in driver: they are planned, proved, run segment by segment,
//! and called through sessions. Each kernel evaluates its segment with the interpreter, on the memory that it is given.
//! So every value has the bits of the interpreter if bindings, lifetimes, views and the order of launches are right.
//!
//! `FOURFOLD_PROGRAMS` sets the number of programs: 1,000 by default, and 10,000 in the second tier.
#![allow(unsafe_code, reason = "the stand-ins are libraries, and kernels take addresses")]

#[path = "programs/kernels.rs"]
mod kernels;
#[path = "programs/stand_in.rs"]
mod stand_in;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use fourfold::executor::blas::Blas;
use fourfold::executor::device::{Buffer, Device, DeviceError};
use fourfold::executor::{
    DeviceTensor, HOST_OPERAND, Machine, NOT_CHOSEN, Ran, Run, RunOptions, Session, SessionInput, SessionRun,
    run,
};
use fourfold::ir::{Entity, Program, SymbolValues, Tensor, bind, interpret, sample, text};
use fourfold::scheduler::{Plan, violated};
use fourfold::{Backend, Planned};
use fourfold_tests::kit::{KitCounts, KitProgram, MOST_SOURCES, kit_program};

use kernels::Kernels;
use stand_in::StandIn;

/// The number of programs.
const PROGRAMS: u64 = if cfg!(feature = "slow") { 10_000 } else { 1_000 };

/// The devices of the stand-in driver, and their targets.
const DEVICES: [(usize, &str); 2] = [(0, "sm_100a"), (1, "sm_90a")];

/// The calls that ran.
#[derive(Debug, Default)]
struct Calls {
    runs: usize,
    /// Calls of sessions that launched a prepared program.
    prepared: usize,
    /// Calls that ran segment by segment, by the code of the reason.
    refused: HashMap<&'static str, usize>,
}

#[test]
fn random_programs_on_the_stand_in_device_have_the_bits_of_the_interpreter() {
    let programs: u64 = match std::env::var("FOURFOLD_PROGRAMS") {
        Ok(number) => number.parse().expect("FOURFOLD_PROGRAMS is a number"),
        Err(_) => PROGRAMS,
    };
    let stand_in = StandIn::new();
    let next = AtomicU64::new(0);
    let totals = Mutex::new((KitCounts::default(), Calls::default()));
    let threads = thread::available_parallelism().map_or(1, |count| count.get().min(4));
    thread::scope(|scope| {
        let work = || {
            let mut places = DEVICES.map(|(ordinal, target)| Place::new(&stand_in, ordinal, target));
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= programs {
                    break;
                }
                places[seed as usize % 2].check(seed, &totals);
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in threads {
            thread.join().expect("a failing program is reported by its thread");
        }
    });
    let (counts, calls) = totals.into_inner().unwrap_or_else(PoisonError::into_inner);
    println!("{counts}\n{calls:?}");
    assert_eq!(stand_in.memories(), 0, "device memory is left");
    assert_eq!(counts.programs as u64, programs);
    assert!(counts.sources() <= DEVICES.len() * MOST_SOURCES, "{counts}");
    assert!(counts.with_two_device * 2 >= counts.programs, "{counts}");
    assert!(calls.prepared * 10 >= calls.runs * 9, "{calls:?}");
}

/// A device, a backend of its target, and stand-in kernels, for one thread.
struct Place {
    backend: Backend,
    device: Device,
    blas: Blas,
    kernels: Kernels,
}

impl Place {
    fn new(stand_in: &StandIn, ordinal: usize, target: &str) -> Place {
        let device = Device::open(ordinal).expect("a device of the stand-in");
        let blas = stand_in.blas(&device);
        let backend = fourfold_tests::backend(target).expect("a known target");
        Place { backend, device, blas, kernels: Kernels::default() }
    }

    /// Plans a program, proves its partition, runs it and calls it through a session.
    fn check(&mut self, seed: u64, totals: &Mutex<(KitCounts, Calls)>) {
        let made = kit_program(seed);
        let planned = self.backend.plan(made.program());
        let fail = |what: String| -> ! { panic!("seed {seed}: {what}\n{}", made.text) };
        if let Err(error) = self.backend.check(&planned) {
            fail(error.to_string());
        }
        {
            let (counts, _) = &mut *totals.lock().unwrap_or_else(PoisonError::into_inner);
            let before = counts.refused.len();
            counts.add(&planned, self.backend.capabilities());
            if counts.refused.len() > before {
                fail(counts.refused[before..].join("\n"));
            }
        }
        match self.run(&made, planned) {
            Ok(calls) => {
                let (_, total) = &mut *totals.lock().unwrap_or_else(PoisonError::into_inner);
                total.runs += calls.runs;
                total.prepared += calls.prepared;
                calls
                    .refused
                    .into_iter()
                    .for_each(|(code, count)| *total.refused.entry(code).or_default() += count);
            }
            Err(what) => fail(what),
        }
    }

    fn run(&mut self, made: &KitProgram, planned: Planned) -> Result<Calls, String> {
        let (planned, kernels) = self.kernels.of(planned, &self.blas);
        let (program, partition) = (planned.program(), planned.partition());
        let kernels = Arc::new(kernels);
        let machine = Machine::new(&self.device, &kernels);
        let cases = cases(made, program);
        let mut calls = Calls::default();
        let mut session: Option<Session> = None;
        for case in &cases {
            self.kernels.bind(&case.symbols);
            let bound = bind::bind(program, &case.tensors).map_err(|error| error.to_string())?;
            let options = RunOptions::default().keep_all(true).poison(0xFF);
            let found = run(program, partition, &bound, &options, Some(&machine))
                .map_err(|error| self.kernels.why(&error.to_string()))?;
            check_run(&planned, &found, case)?;
            let session = match &mut session {
                Some(session) => session,
                None => {
                    let program = planned.normalized().shared_program();
                    let (partition, device) = (Arc::new(partition.clone()), self.device.clone());
                    let made = Session::new(
                        program,
                        partition,
                        case.tensors.clone(),
                        Some((device, Arc::clone(&kernels))),
                    );
                    session.insert(made.map_err(|error| self.kernels.why(&error.to_string()))?)
                }
            };
            self.call(program, session, case, &mut calls)?;
        }
        // The first extents again, which the session has prepared, with tensors on the device.
        if let (Some(session), Some(first)) = (&mut session, cases.first()) {
            self.kernels.bind(&first.symbols);
            self.call_on_device(program, session, first, &mut calls)?;
        }
        Ok(calls)
    }

    /// Calls a session with tensors on the host, and compares its outputs.
    fn call(
        &self,
        program: &Program,
        session: &mut Session,
        case: &Case,
        calls: &mut Calls,
    ) -> Result<(), String> {
        let module = program.module();
        let names: Vec<&str> = session.inputs().iter().map(|value| module.name_of(*value)).collect();
        let inputs: Vec<SessionInput<'_>> = names.iter().map(|name| (&case.tensors[*name]).into()).collect();
        let found = session.run(&inputs, &[]).map_err(|error| self.kernels.why(&error.to_string()))?;
        calls.count(&found);
        for (value, output) in module.outputs.iter().zip(&found.outputs) {
            let output = output.as_ref().ok_or("an output is missing")?;
            let wrong = |what| format!("session: %{}: {what}", module.name_of(*value));
            same(output, &case.want[value.index()]).map_err(wrong)?;
        }
        Ok(())
    }

    fn placed<'a>(&self, tensor: &Tensor, buffer: &'a Buffer) -> Result<DeviceTensor<'a>, DeviceError> {
        let (element, dims) = (tensor.element(), tensor.dims().to_vec());
        DeviceTensor::new(&self.device, buffer, element, dims, tensor.layout())
    }

    /// Calls a session with tensors in memory of the caller, and compares what it wrote there.
    fn call_on_device(
        &self,
        program: &Program,
        session: &mut Session,
        case: &Case,
        calls: &mut Calls,
    ) -> Result<(), String> {
        let module = program.module();
        let read: Vec<&Tensor> =
            session.inputs().iter().map(|value| &case.tensors[module.name_of(*value)]).collect();
        let written: Vec<&Tensor> = module.outputs.iter().map(|value| &case.want[value.index()]).collect();
        let stream = self.device.stream();
        let place = |tensors: &[&Tensor], is_input: bool| -> Result<Vec<Buffer>, DeviceError> {
            let buffer = |tensor: &&Tensor| {
                let buffer = self.device.alloc(tensor.bytes().len())?;
                match is_input {
                    true => stream.upload(&buffer, 0, tensor.bytes())?,
                    false => stream.fill(&buffer, 0, buffer.len(), 0xFF)?,
                }
                Ok(buffer)
            };
            tensors.iter().map(buffer).collect()
        };
        let fails = |error: DeviceError| self.kernels.why(&error.to_string());
        let inputs = place(&read, true).map_err(fails)?;
        let outputs = place(&written, false).map_err(fails)?;
        stream.synchronize().map_err(fails)?;
        let given: Result<Vec<_>, DeviceError> =
            read.iter().zip(&inputs).map(|(tensor, buffer)| self.placed(tensor, buffer)).collect();
        let given: Vec<SessionInput<'_>> = given.map_err(fails)?.into_iter().map(Into::into).collect();
        let taken: Result<Vec<_>, DeviceError> =
            written.iter().zip(&outputs).map(|(tensor, buffer)| self.placed(tensor, buffer)).collect();
        let taken: Vec<Option<DeviceTensor<'_>>> = taken.map_err(fails)?.into_iter().map(Some).collect();
        let found = session.run(&given, &taken).map_err(|error| self.kernels.why(&error.to_string()))?;
        calls.count(&found);
        for ((value, want), buffer) in module.outputs.iter().zip(&written).zip(&outputs) {
            let mut bytes = vec![0; buffer.len()];
            stream.download(buffer, 0, &mut bytes).map_err(fails)?;
            let output = Tensor::new(want.element(), want.dims().to_vec(), want.layout(), bytes);
            let wrong = |what| format!("session on the device: %{}: {what}", module.name_of(*value));
            same(&output.map_err(|error| error.to_string())?, want).map_err(wrong)?;
        }
        Ok(())
    }
}

impl Calls {
    fn count(&mut self, run: &SessionRun) {
        self.runs += 1;
        match &run.refused {
            None => self.prepared += 1,
            Some(refused) => *self.refused.entry(refused.code).or_default() += 1,
        }
    }
}

/// The inputs of one call, and every value as the interpreter computes it.
struct Case {
    tensors: HashMap<String, Tensor>,
    symbols: SymbolValues,
    want: Vec<Tensor>,
}

/// The calls of a program. All have the params of the first.
fn cases(made: &KitProgram, program: &Program) -> Vec<Case> {
    let module = program.module();
    let mut cases: Vec<Case> = Vec::new();
    for recipe in &made.recipes {
        let mut tensors = sample::inputs(program, recipe).expect("the recipe names every symbol");
        if let Some(first) = cases.first() {
            for value in module.inputs.iter().filter(|value| module.is_param(**value)) {
                let name = module.name_of(*value);
                tensors.insert(name.to_owned(), first.tensors[name].clone());
            }
        }
        let bound = bind::bind(program, &tensors).expect("the tensors fit the inputs");
        let want = interpret(program, &bound).expect("small programs can be interpreted");
        let symbols = bound.symbols.clone();
        cases.push(Case { tensors, symbols, want });
    }
    cases
}

/// Compares every value of a run, and checks that each segment ran on the device if its plan takes the extents.
fn check_run(planned: &Planned, found: &Run, case: &Case) -> Result<(), String> {
    let (program, partition) = (planned.program(), planned.partition());
    let module = program.module();
    for value in module.values.keys() {
        if let Some(tensor) = found.value(value) {
            same(tensor, &case.want[value.index()])
                .map_err(|what| format!("%{}: {what}", module.name_of(value)))?;
        }
    }
    for (position, (segment, ran)) in partition.segments.iter().zip(&found.segments).enumerate() {
        if ran.reason.as_ref().is_some_and(|reason| reason.code == NOT_CHOSEN) {
            continue;
        }
        let missing = segment.outputs.iter().find(|value| found.value(**value).is_none());
        if let Some(value) = missing {
            return Err(format!("%{} is missing", module.name_of(*value)));
        }
        // A view of a value on the host stays there.
        let is_host_view = matches!(segment.plan(), Some(Plan::View(_) | Plan::Choose(_)))
            && ran.reason.as_ref().is_some_and(|reason| reason.code == HOST_OPERAND);
        let constraints = segment.plan().map_or(&[][..], Plan::constraints);
        let is_refused = violated(constraints, &case.symbols).is_some();
        if ran.ran != Ran::Kernel && !is_host_view && !is_refused {
            let op = text::print_op(module, segment.ops[0]);
            return Err(format!(
                "segment {position} ({op}) ran on the {}: {:?}",
                ran.ran.as_str(),
                ran.reason
            ));
        }
    }
    Ok(())
}

/// Compares every element, and the padding of scales. NaN equals NaN.
fn same(got: &Tensor, want: &Tensor) -> Result<(), String> {
    if got.bytes() == want.bytes() && got.dims() == want.dims() {
        return Ok(());
    }
    if got.dims() != want.dims() {
        return Err(format!("{:?}, not {:?}", got.dims(), want.dims()));
    }
    let (values, wanted) = (got.to_f64(), want.to_f64());
    for (index, (got, want)) in values.iter().zip(&wanted).enumerate() {
        if got.to_bits() != want.to_bits() && !(got.is_nan() && want.is_nan()) {
            return Err(format!("element {index} of {} is {got}, not {want}", values.len()));
        }
    }
    let has_nan = values.iter().any(|value| value.is_nan());
    if has_nan || got.layout().is_some() { Ok(()) } else { Err("bytes differ".to_owned()) }
}
