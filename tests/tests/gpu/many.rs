//! Many launches: a graph replayed with other data and other addresses, and concurrent use of two GPUs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use fourfold::executor::device::{Buffer, Device, DeviceError, Stream, discover};
use fourfold::executor::{Machine, PreparedProgram, Ran, RunOptions};
use fourfold::ir::{Entity, Program, SymbolValues, Tensor, Value, ValueDef, bind, interpret, sample};
use fourfold::{Backend, Compiled, DeviceChoice, Options};
use libtest_mimic::Completion;

use crate::{CHAIN, backend, compile, compile_kernels, compile_options, recipe};

/// One kernel that writes a value, its blocks and its largest element; memsets precede the last two.
const PEAK: &str = "fir 1
func @peak(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[160, 96], f4E2M1FN>, param %sfb: tensor<[160, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 160], f32>
  %y = relu %h : tensor<[M, 160], f32>
  %q, %sq = block_quantize %y, %g {block = 16} : tensor<[M, 160], f4E2M1FN>, tensor<[M, 10], f8E4M3FN, blocked>
  %peak = reduce %y {axes = [0, 1], kind = amax} : tensor<[], f32>
  return %y, %q, %sq, %peak
}
";

const M: u64 = 37;
const POISON: u8 = 0xFF;

/// Inputs of a program and the outputs that the interpreter computes for them, in the program's order.
struct Variant {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// Returns inputs that differ in everything except weights, so that outputs differ too.
fn variants(program: &Program, count: u64) -> Result<(SymbolValues, Vec<Variant>)> {
    let module = program.module();
    let weights = sample::inputs(program, &recipe(M, 100))?;
    let mut variants: Vec<Variant> = Vec::new();
    let mut symbols = None;
    for seed in 100..100 + count {
        let mut tensors = sample::inputs(program, &recipe(M, seed))?;
        for &input in &module.inputs {
            if let ValueDef::Input { param: true, .. } = module.values[input].def {
                let name = module.name_of(input);
                tensors.insert(name.to_owned(), weights[name].clone());
            }
        }
        let bound = bind::bind(program, &tensors)?;
        let values = interpret(program, &bound)?;
        let outputs: Vec<Tensor> = module.outputs.iter().map(|value| values[value.index()].clone()).collect();
        let is_new = variants.iter().all(|variant| variant.outputs[0] != outputs[0]);
        ensure!(is_new, "seed {seed} repeats outputs");
        variants
            .push(Variant { inputs: bound.inputs.iter().map(|tensor| (*tensor).clone()).collect(), outputs });
        symbols = Some(bound.symbols.clone());
    }
    Ok((symbols.context("no variant")?, variants))
}

/// Memory for the inputs and outputs of a program.
struct Place {
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    addresses: HashMap<Value, u64>,
}

impl Place {
    fn new(device: &Device, program: &Program, like: &Variant) -> Result<Place> {
        let alloc = |tensors: &[Tensor]| -> Result<Vec<Buffer>> {
            tensors.iter().map(|tensor| Ok(device.alloc(tensor.bytes().len())?)).collect()
        };
        let (inputs, outputs) = (alloc(&like.inputs)?, alloc(&like.outputs)?);
        let values = program.module().inputs.iter().chain(&program.module().outputs);
        let addresses = values.copied().zip(inputs.iter().chain(&outputs).map(Buffer::address)).collect();
        Ok(Place { inputs, outputs, addresses })
    }

    fn bring(&self, stream: &Stream, variant: &Variant) -> Result<()> {
        let copies: Vec<(&Buffer, usize, &[u8])> =
            self.inputs.iter().zip(&variant.inputs).map(|(to, tensor)| (to, 0, tensor.bytes())).collect();
        Ok(stream.upload_all(&copies)?)
    }

    fn poison(&self, stream: &Stream) -> Result<()> {
        for output in &self.outputs {
            stream.fill(output, 0, output.len(), POISON)?;
        }
        Ok(())
    }

    /// Checks that every output equals the interpreter's, except for the sign of zeros.
    fn check(&self, stream: &Stream, program: &Program, variant: &Variant, what: &str) -> Result<()> {
        for (position, (buffer, want)) in self.outputs.iter().zip(&variant.outputs).enumerate() {
            let mut bytes = vec![0; buffer.len()];
            stream.download(buffer, 0, &mut bytes)?;
            let got = Tensor::new(want.element(), want.dims().to_vec(), want.layout(), bytes)?;
            let (got, want) = (got.to_f64(), want.to_f64());
            let differ = got.iter().zip(&want).filter(|(got, want)| got != want).count();
            let name = program.module().name_of(program.module().outputs[position]);
            ensure!(differ == 0, "{what}: {differ} of {} elements of %{name} differ", want.len());
        }
        Ok(())
    }

    fn check_untouched(&self, stream: &Stream, what: &str) -> Result<()> {
        for buffer in &self.outputs {
            let mut bytes = vec![0; buffer.len()];
            stream.download(buffer, 0, &mut bytes)?;
            ensure!(bytes.iter().all(|byte| *byte == POISON), "{what}: the other addresses were written to");
        }
        Ok(())
    }
}

pub fn replayed() -> Result<()> {
    const REPLAYS: usize = 1000;
    // The number of times that the addresses change.
    const STAY: usize = 50;
    for (source, kernels) in [(CHAIN, 2), (PEAK, 1)] {
        let compiled = compile_kernels(source)?;
        let machine = compiled.machine().context("a machine")?;
        let (program, partition) = (compiled.planned().program(), compiled.planned().partition());
        ensure!(
            partition.kernels().count() == kernels && partition.segments.len() == kernels,
            "{partition:?}"
        );
        let stream = machine.device().new_stream()?;
        let (symbols, variants) = variants(program, 7)?;
        let places = [
            Place::new(machine.device(), program, &variants[0])?,
            Place::new(machine.device(), program, &variants[0])?,
        ];
        // SAFETY: the buffers have the sizes of the program's values and live to the end of this iteration.
        let mut call = unsafe { compiled.prepare(&symbols)?.bind_all(places[0].addresses.clone()).build() }?;
        // SAFETY: here and below: nothing is launched during the capture, and each launch is waited for.
        let mut graph = stream.capture(|| unsafe { call.launch(&stream) })?;
        for turn in 0..REPLAYS {
            let period = turn / STAY;
            let (here, elsewhere) = (&places[period % 2], &places[1 - period % 2]);
            if turn > 0 && turn % STAY == 0 {
                // SAFETY: nothing is in flight, and both sets of buffers live equally long.
                unsafe { call.update_addresses(&here.addresses) }?;
                // SAFETY: as above.
                let record = || unsafe { call.launch(&stream) };
                match period % 3 {
                    0 => graph = stream.capture(record)?,
                    _ => graph.update(&stream, record).with_context(|| format!("replay {turn}"))?,
                }
            }
            let variant = &variants[turn * 3 % variants.len()];
            here.bring(&stream, variant)?;
            here.poison(&stream)?;
            elsewhere.poison(&stream)?;
            // SAFETY: the captured buffers are alive, and the downloads wait for the launch.
            unsafe { graph.launch(&stream) }?;
            here.check(&stream, program, variant, &format!("replay {turn}"))?;
            elsewhere.check_untouched(&stream, &format!("replay {turn}"))?;
        }
    }
    Ok(())
}

/// One of two devices with everything that a launch on it needs.
struct Side<'a> {
    program: &'a Program,
    variants: &'a [Variant],
    call: PreparedProgram,
    stream: Stream,
    place: Place,
}

impl<'a> Side<'a> {
    fn new(
        compiled: &'a Compiled,
        machine: &Machine<'_>,
        symbols: &SymbolValues,
        variants: &'a [Variant],
    ) -> Result<Side<'a>> {
        let program = compiled.planned().program();
        let place = Place::new(machine.device(), program, &variants[0])?;
        let stream = machine.device().new_stream()?;
        // SAFETY: the buffers have the sizes of the program's values and are freed with the call or later.
        let call = unsafe { compiled.prepare(symbols)?.bind_all(place.addresses.clone()).build() }?;
        Ok(Side { program, variants, call, stream, place })
    }

    fn bring(&self, variant: usize) -> Result<()> {
        self.place.bring(&self.stream, &self.variants[variant % self.variants.len()])?;
        self.place.poison(&self.stream)
    }

    fn launch(&mut self) -> Result<()> {
        // SAFETY: everything belongs to one device, and `check` waits before anything else happens to it.
        Ok(unsafe { self.call.launch(&self.stream) }?)
    }

    fn check(&self, variant: usize, what: &str) -> Result<()> {
        let variant = &self.variants[variant % self.variants.len()];
        self.place.check(&self.stream, self.program, variant, what)
    }

    fn turn(&mut self, variant: usize, what: &str) -> Result<()> {
        self.bring(variant)?;
        self.launch()?;
        self.check(variant, what)
    }
}

pub fn two_devices() -> Result<Completion> {
    let gpus = discover()?;
    let backend = backend().context("no GPU found")?;
    let own = backend.gpu().context("no GPU found")?;
    let Some(other) = gpus.iter().find(|gpu| gpu.ordinal != own.ordinal && gpu.target() == own.target())
    else {
        let target = own.target().unwrap_or("any target");
        return Ok(Completion::ignored_with(format!("found one GPU of {target}, but the test needs two")));
    };
    let compiled = compile(CHAIN)?;
    let first = compiled.machine().context("a machine")?;
    let device = Device::open(other.ordinal)?;
    // The same loaded kernels, on the other device.
    let second = Machine::new(&device, first.kernels());
    let (symbols, variants) = variants(compiled.planned().program(), 5)?;
    let mut sides = [
        Side::new(&compiled, &first, &symbols, &variants)?,
        Side::new(&compiled, &second, &symbols, &variants)?,
    ];
    in_turns(&mut sides)?;
    as_graphs(&mut sides)?;
    in_threads(sides)?;
    second_backend(&compiled, other.ordinal)?;
    Ok(Completion::Completed)
}

/// One thread launches on both devices before it waits for either.
fn in_turns(sides: &mut [Side<'_>; 2]) -> Result<()> {
    for turn in 0..100 {
        for (at, side) in sides.iter().enumerate() {
            side.bring(turn + at)?;
        }
        for at in [turn % 2, 1 - turn % 2] {
            sides[at].launch()?;
        }
        for (at, side) in sides.iter().enumerate() {
            side.check(turn + at, &format!("turn {turn}, device {at}"))?;
        }
    }
    let [first, second] = sides;
    // SAFETY: the call is rejected.
    let refused = unsafe { first.call.launch(&second.stream) };
    ensure!(refused == Err(DeviceError::OtherDevice { what: "stream" }), "{refused:?}");
    Ok(())
}

/// Graphs of both devices. While one is captured, with its context current, the other is launched.
fn as_graphs(sides: &mut [Side<'_>; 2]) -> Result<()> {
    let mut graphs = Vec::new();
    for at in [0, 1] {
        let (left, right) = sides.split_at_mut(1);
        let (mine, theirs) =
            if at == 0 { (&mut left[0], &mut right[0]) } else { (&mut right[0], &mut left[0]) };
        theirs.bring(at + 3)?;
        // SAFETY: here and below: everything belongs to one device, and each launch is waited for.
        graphs.push(mine.stream.capture(|| unsafe {
            theirs.call.launch(&theirs.stream)?;
            mine.call.launch(&mine.stream)
        })?);
        theirs.check(at + 3, &format!("while the graph of device {at} is recorded"))?;
    }
    for turn in 0..100 {
        for (at, side) in sides.iter().enumerate() {
            side.bring(turn + 2 * at)?;
        }
        for at in [turn % 2, 1 - turn % 2] {
            // SAFETY: as above.
            unsafe { graphs[at].launch(&sides[at].stream) }?;
        }
        for (at, side) in sides.iter().enumerate() {
            side.check(turn + 2 * at, &format!("replay {turn}, device {at}"))?;
        }
    }
    Ok(())
}

/// Two threads: first each with its own device, then both with both devices.
fn in_threads(mut sides: [Side<'_>; 2]) -> Result<()> {
    thread::scope(|scope| {
        let threads: Vec<_> = sides
            .iter_mut()
            .enumerate()
            .map(|(at, side)| {
                scope.spawn(move || {
                    (0..200).try_for_each(|turn| side.turn(turn + at, &format!("thread {at}, turn {turn}")))
                })
            })
            .collect();
        join(threads)
    })?;
    let sides = sides.map(Mutex::new);
    thread::scope(|scope| {
        let sides = &sides;
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    (0..200).try_for_each(|turn| {
                        let at = (turn + thread) % 2;
                        let mut side = sides[at].lock().unwrap_or_else(PoisonError::into_inner);
                        side.turn(turn + thread, &format!("thread {thread}, turn {turn}, device {at}"))
                    })
                })
            })
            .collect();
        join(threads)
    })
}

fn join(threads: Vec<thread::ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    for thread in threads {
        match thread.join() {
            Ok(result) => result?,
            Err(_) => bail!("a thread panicked"),
        }
    }
    Ok(())
}

/// A backend for the second device compiles for it and runs there.
fn second_backend(on_first: &Compiled, ordinal: usize) -> Result<()> {
    let options = Options::default().device(DeviceChoice::Ordinal(ordinal));
    let backend = Backend::new(&options)?;
    let planned = backend.plan(on_first.planned().original().clone());
    let compiled = backend.compile(planned, &compile_options(), &|line| eprintln!("{line}"));
    let device = compiled.device().context("a device")?;
    ensure!(device.gpu().ordinal == ordinal, "{}", device.gpu());
    let program = compiled.planned().program();
    let tensors = sample::inputs(program, &recipe(M, 100))?;
    let run = compiled.run(&tensors, &RunOptions::default().poison(POISON))?;
    ensure!(run.segments.iter().all(|s| matches!(s.ran, Ran::Kernel | Ran::Emulated)), "{:?}", run.segments);
    let bound = bind::bind(program, &tensors)?;
    let output = program.module().outputs[0];
    let want = interpret(program, &bound)?.swap_remove(output.index()).to_f64();
    let got = run.value(output).context("an output")?.to_f64();
    ensure!(got == want, "a run on the second device gives another result");
    Ok(())
}
