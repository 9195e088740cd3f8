//! Tests that need a GPU. Without one that runs our kernels natively, every test is skipped by name; a failing
//! driver is a failure.
#![allow(unsafe_code, reason = "prepared programs take device addresses")]

#[path = "gpu/debug.rs"]
mod debug;
#[path = "gpu/groups.rs"]
mod groups;
#[path = "gpu/many.rs"]
mod many;
#[path = "gpu/planted.rs"]
mod planted;
#[path = "gpu/products.rs"]
mod products;
#[path = "gpu/random.rs"]
mod random;
#[path = "gpu/sessions.rs"]
mod sessions;

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use fourfold::executor::device::{Buffer, Device, DeviceError, Stream, discover};
use fourfold::executor::toolchain::ToolchainOptions;
use fourfold::executor::{PreparedProgram, Ran, RunOptions};
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{ElementType, SymbolValues, Tensor, Value, bind, interpret};
use fourfold::{Backend, Claim, CompileOptions, Compiled, Options};
use fourfold_cli::VerifyRow;
use fourfold_cli::replay::load;
use fourfold_cli::verify::{VerifyOptions, verify};
use fourfold_tests::repository;
use libtest_mimic::{Arguments, Completion, Trial};

type Test = fn() -> Result<()>;

fn main() -> ExitCode {
    let tests: [(&str, Test); 14] = [
        ("the_gpu_says_what_it_is", says_what_it_is),
        ("every_fixture_runs_as_a_kernel_and_is_right", every_fixture),
        ("a_graph_of_groups_is_replayed_with_other_ends", graphs_of_groups),
        ("a_value_moves_once_and_only_where_it_is_needed", moves_once),
        ("a_prepared_program_is_launched_captured_and_pointed_elsewhere", prepared),
        ("every_output_of_a_prepared_program_is_written_by_every_launch", prepared_outputs),
        ("a_graph_is_replayed_with_other_data_and_other_addresses", many::replayed),
        ("kernels_of_a_mixed_program_are_prepared_one_by_one", prepared_segments),
        ("epilogues_quantize_where_a_host_takes_kernels_only", kernels_only),
        ("what_cannot_be_prepared_is_refused_with_its_code", refused),
        ("a_kernel_without_memory_runs_on_the_fallback", out_of_memory),
        ("calls_of_sessions_on_several_threads_give_the_bits_of_a_run", sessions::sessions),
        ("random_programs_of_few_kernels_are_those_of_the_interpreter", random::random_programs),
        ("debug_mode_describes_a_launch_and_its_bundle_is_replayed_bit_for_bit", debug::debug_mode),
    ];
    let found = discover();
    let skip = match &found {
        Err(DeviceError::NoDriver) => true,
        Ok(gpus) => gpus.is_empty() || backend().is_none(),
        Err(_) => false,
    };
    let broken = found.err().filter(|error| *error != DeviceError::NoDriver).map(|error| error.to_string());
    let trial = |name: &str, test: Box<dyn FnOnce() -> Result<Completion> + Send>| {
        let broken = broken.clone();
        let run = move || match broken {
            Some(error) => Err(error.into()),
            None => test().map_err(|error| format!("{error:#}").into()),
        };
        Trial::ignorable_test(name, run).with_ignored_flag(skip)
    };
    let mut trials = Vec::new();
    for (name, test) in tests {
        trials.push(trial(name, Box::new(move || test().map(|()| Completion::Completed))));
    }
    trials.push(trial("kernels_of_another_target_run_emulated_on_a_hopper", Box::new(emulated_fixtures)));
    trials.push(trial("faults_planted_in_emulated_kernels_are_found", Box::new(planted::planted_faults)));
    trials.push(trial(
        "emulated_groups_have_the_rows_that_ends_mean_and_faults_are_found",
        Box::new(groups::groups),
    ));
    trials.push(trial("plain_products_are_those_of_the_interpreter", Box::new(products::plain_products)));
    trials.push(trial("two_devices_are_used_in_turns_and_at_once", Box::new(many::two_devices)));
    // Tests run one at a time, because one of them allocates all of the GPU's memory.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns a backend whose kernels run on this machine's GPU.
fn backend() -> Option<Backend> {
    let backend = Backend::new(&Options::default()).ok()?;
    (backend.execution().is_ok() && !backend.capabilities().formats.is_empty()).then_some(backend)
}

fn compile_options() -> CompileOptions {
    let toolchain = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    CompileOptions::default().toolchain(toolchain)
}

fn compile(source: &str) -> Result<Compiled> {
    compile_with(&backend().context("no GPU found")?, source)
}

/// Compiles for a host that takes kernels only: epilogues also quantize where a kernel of its own would be faster.
fn compile_kernels(source: &str) -> Result<Compiled> {
    compile_with(&Backend::new(&Options::default().claim(Claim::KernelsOnly))?, source)
}

fn compile_with(backend: &Backend, source: &str) -> Result<Compiled> {
    let (program, _) =
        fourfold::ir::load(source).map_err(|errors| anyhow::anyhow!("{}", errors[0].message))?;
    let compiled = backend.compile(backend.plan(program), &compile_options(), &|line| eprintln!("{line}"));
    for (segment, _) in compiled.planned().partition().kernels() {
        if let Some(reason) = compiled.unavailable(segment) {
            bail!("segment {segment}: {}: {}", reason.code, reason.message);
        }
    }
    Ok(compiled)
}

/// Two kernels; the first computes the C of the second.
const CHAIN: &str = "fir 1
func @chain(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[72, 96], f4E2M1FN>, param %sfb: tensor<[72, 6], f8E4M3FN, blocked>,
    %x: tensor<[M, 160], f4E2M1FN>, %sfx: tensor<[M, 10], f8E4M3FN, blocked>,
    param %w: tensor<[72, 160], f4E2M1FN>, param %sfw: tensor<[72, 10], f8E4M3FN, blocked>
) {
  %c = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 72], f32>
  %d = scaled_mma %x, %sfx, %w, %sfw, c = %c {block = 16} : tensor<[M, 72], bf16>
  return %d
}
";

/// A kernel, an op on the fallback, a device segment, and a kernel.
const MIXED: &str = "fir 1
func @mixed(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[160, 96], f4E2M1FN>, param %sfb: tensor<[160, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>,
    param %w: tensor<[72, 160], f4E2M1FN>, param %sfw: tensor<[72, 10], f8E4M3FN, blocked>,
    param %v: tensor<[160, 160], f32>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 160], f32>
  %share = mma %h, %v : tensor<[M, 160], bf16>
  %centred = sub %h, %share : tensor<[M, 160], f32>
  %q, %sq = block_quantize %centred, %g {block = 16} : tensor<[M, 160], f4E2M1FN>, tensor<[M, 10], f8E4M3FN, blocked>
  %d = scaled_mma %q, %sq, %w, %sfw {block = 16} : tensor<[M, 72], f32>
  return %d
}
";

/// A kernel that writes a value, a reduction of it, and its blocks, which the second kernel reads.
const OUTPUTS: &str = "fir 1
func @outputs(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[160, 96], f4E2M1FN>, param %sfb: tensor<[160, 6], f8E4M3FN, blocked>, %g: tensor<[], f32>,
    param %w: tensor<[72, 160], f4E2M1FN>, param %sfw: tensor<[72, 10], f8E4M3FN, blocked>
) {
  %h = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 160], f32>
  %y = relu %h : tensor<[M, 160], f32>
  %q, %sq = block_quantize %y, %g {block = 16} : tensor<[M, 160], f4E2M1FN>, tensor<[M, 10], f8E4M3FN, blocked>
  %peak = reduce %y {axes = [0, 1], kind = amax} : tensor<[], f32>
  %d = scaled_mma %q, %sq, %w, %sfw, alpha = %peak {block = 16} : tensor<[M, 72], f32>
  return %y, %sq, %peak, %d
}
";

fn recipe(m: u64, seed: u64) -> Recipe {
    Recipe { rule: Rule::Exact, seed, symbols: vec![("M".to_owned(), m)] }
}

fn says_what_it_is() -> Result<()> {
    let backend = backend().context("no GPU found")?;
    let (gpu, _) = backend.execution().map_err(|reason| anyhow::anyhow!(reason.message))?;
    ensure!(gpu.sm_count > 0 && gpu.memory_bytes > 1 << 30 && gpu.l2_bytes > 1 << 20, "{gpu:?}");
    ensure!(gpu.driver_version >= (13, 0) && gpu.target().is_some(), "{gpu:?}");
    let device = Device::open(gpu.ordinal)?;
    ensure!(device.gpu() == gpu);
    let stream = device.new_stream()?;
    let (from, to) = (device.alloc(1 << 20)?, device.alloc(1 << 20)?);
    let bytes: Vec<u8> = (0..1u32 << 20).map(|i| (i * 7 + i / 251) as u8).collect();
    stream.upload(&from, 0, &bytes)?;
    stream.fill(&to, 0, 1 << 20, 0xFF)?;
    let before = stream.record()?;
    stream.copy(&from, 1000, &to, 0, (1 << 20) - 1000)?;
    let after = stream.record()?;
    let mut back = vec![0; 1 << 20];
    stream.download(&to, 0, &mut back)?;
    ensure!(
        back[..(1 << 20) - 1000] == bytes[1000..]
            && back[(1 << 20) - 1000..].iter().all(|byte| *byte == 0xFF)
    );
    ensure!(before.elapsed_ms(&after)? >= 0.0);
    Ok(())
}

fn every_fixture() -> Result<()> {
    let options = VerifyOptions { compile: compile_options(), ..VerifyOptions::default() };
    let report = verify(&[repository().join("fixtures")], &options, &|line| eprintln!("{line}"))?;
    // A plan that reduces by `max` requires rows, so a call without rows runs on the fallback.
    let without_rows = |row: &&VerifyRow| {
        row.ran == "fallback"
            && row.reason.as_deref() == Some("extent_range")
            && row.extents.is_some_and(|of| of[1] == 0)
    };
    let elsewhere: HashSet<_> =
        report.rows.iter().filter(without_rows).map(|row| (&row.fixture, &row.inputs)).collect();
    ensure!(report.ok && report.ran_kernels + elsewhere.len() == report.kernels, "{report}");
    let backend = backend().context("no GPU found")?;
    ensure!(!report.emulated, "{report}");
    // Every fixture with a kernel for this target ran.
    let mut expected = 0;
    for file in fourfold_tests::fixtures()? {
        let Ok(loaded) = load(&file) else { continue };
        let planned = backend.plan_with(loaded.program, &loaded.header.allow);
        let kernels = planned.partition().kernels().count();
        expected += kernels * loaded.header.samples.len().max(usize::from(!loaded.header.data.is_empty()));
    }
    ensure!(
        expected >= 40 && report.kernels == expected,
        "{} of {expected} kernels: {report}",
        report.kernels
    );
    Ok(())
}

fn graphs_of_groups() -> Result<()> {
    let options = VerifyOptions { compile: compile_options(), graphs: true, ..VerifyOptions::default() };
    let folders = ["grouped", "moe"].map(|name| repository().join("fixtures").join(name));
    let report = verify(&folders, &options, &|line| eprintln!("{line}"))?;
    ensure!(report.ok, "{report}");
    let replayed = report.rows.iter().filter(|row| row.rule.ends_with("replays") && row.elements > 0);
    ensure!(replayed.count() >= 40, "{report}");
    Ok(())
}

/// A few fixtures, each with a different feature: layouts, both formats, batches, every kind of output.
/// `fourfold verify fixtures --emulate` runs all of them.
const EMULATED: [&str; 6] = [
    "shapes/exact_m91",
    "shapes/exact_m130",
    "epilogue/dag_mxfp4",
    "epilogue/dag_batch",
    "outputs/dag_out_max",
    "outputs/dag_out_nvfp4_symbolic",
];

fn emulated_fixtures() -> Result<Completion> {
    for target in ["sm_120a", "sm_100a"] {
        let options = Options::default().emulate(true).target(target.to_owned());
        if let Err(reason) = Backend::new(&options)?.execution() {
            return Ok(Completion::ignored_with(reason.message));
        }
        let options =
            VerifyOptions { backend: options, compile: compile_options(), ..VerifyOptions::default() };
        let files = EMULATED.map(|name| repository().join(format!("fixtures/{name}.fir")));
        let report = verify(&files, &options, &|line| eprintln!("{line}"))?;
        ensure!(report.ok && report.ran_kernels == report.kernels, "{report}");
        ensure!(report.kernels >= EMULATED.len() && report.emulated, "{report}");
        let native = report.rows.iter().find(|row| row.ran == "kernel");
        ensure!(native.is_none(), "{native:?}");
    }
    Ok(Completion::Completed)
}

fn moves_once() -> Result<()> {
    let compiled = compile(MIXED)?;
    let program = compiled.planned().program();
    let tensors = sample::inputs(program, &recipe(43, 5))?;
    let run = compiled.run(&tensors, &RunOptions::default().poison(0xFF))?;
    let bytes =
        |names: &[&str]| -> u64 { names.iter().map(|name| tensors[*name].bytes().len() as u64).sum() };
    let (h, d) = (43 * 160 * 4, 43 * 72 * 4);
    let moved: Vec<(u64, u64)> = run.segments.iter().map(|s| (s.moved.to_device, s.moved.to_host)).collect();
    // The product of f32 as bf16 is computed on the host. The row kernel reads %h where the first kernel left it, and
    // leaves the codes and scales where the second reads them.
    let expected = [
        (bytes(&["a", "sfa", "b", "sfb"]), 0),
        (0, h),
        (h / 2 + bytes(&["g"]), 0),
        (bytes(&["w", "sfw"]), d),
    ];
    ensure!(moved == expected, "{moved:?}, not {expected:?}");
    let bound = bind::bind(program, &tensors)?;
    let want = interpret(program, &bound)?;
    let output = program.module().outputs[0];
    let (got, want) = (run.value(output).context("an output")?, &want[fourfold::ir::Entity::index(output)]);
    let largest = want.to_f64().iter().fold(0f64, |largest, value| largest.max(value.abs()));
    let far = got
        .to_f64()
        .iter()
        .zip(want.to_f64())
        .filter(|(got, want)| (*got - want).abs() > 1e-5 * largest)
        .count();
    ensure!(far == 0, "{far} elements differ");
    Ok(())
}

/// Uploads the inputs of a program to the device.
struct OnDevice {
    buffers: HashMap<Value, Buffer>,
    symbols: SymbolValues,
    want: Tensor,
    output: Value,
}

fn on_device(compiled: &Compiled, stream: &Stream, device: &Device, m: u64, seed: u64) -> Result<OnDevice> {
    let program = compiled.planned().program();
    let tensors = sample::inputs(program, &recipe(m, seed))?;
    let bound = bind::bind(program, &tensors)?;
    let mut buffers = HashMap::new();
    for (value, tensor) in program.module().inputs.iter().zip(&bound.inputs) {
        let buffer = device.alloc(tensor.bytes().len())?;
        stream.upload(&buffer, 0, tensor.bytes())?;
        buffers.insert(*value, buffer);
    }
    let output = program.module().outputs[0];
    let want = interpret(program, &bound)?.swap_remove(fourfold::ir::Entity::index(output));
    buffers.insert(output, device.alloc(want.bytes().len())?);
    Ok(OnDevice { buffers, symbols: bound.symbols, want, output })
}

impl OnDevice {
    fn addresses(&self) -> HashMap<Value, u64> {
        self.buffers.iter().map(|(value, buffer)| (*value, buffer.address())).collect()
    }

    fn poison(&self, stream: &Stream) -> Result<()> {
        let buffer = &self.buffers[&self.output];
        Ok(stream.fill(buffer, 0, buffer.len(), 0xFF)?)
    }

    fn check(&self, stream: &Stream, what: &str) -> Result<()> {
        let mut bytes = vec![0; self.want.bytes().len()];
        stream.download(&self.buffers[&self.output], 0, &mut bytes)?;
        let got = Tensor::new(ElementType::BF16, self.want.dims().to_vec(), None, bytes)?;
        let differ = got.to_f64().iter().zip(self.want.to_f64()).filter(|(got, want)| *got != want).count();
        ensure!(differ == 0, "{what}: {differ} of {} elements differ", self.want.count());
        Ok(())
    }
}

fn prepared() -> Result<()> {
    let compiled = compile(CHAIN)?;
    let machine = compiled.machine().context("a machine")?;
    let (_program, _partition) = (compiled.planned().program(), compiled.planned().partition());
    let device = machine.device();
    let stream = device.new_stream()?;
    for m in [1, 37, 130] {
        let first = on_device(&compiled, &stream, device, m, 11)?;
        let second = on_device(&compiled, &stream, device, m, 12)?;
        let preparation = compiled.prepare(&first.symbols)?;
        let bytes = preparation.workspace_size();
        ensure!(bytes >= m * 72 * 4, "the intermediate is in the workspace, of {bytes} bytes");
        let workspace = device.alloc(bytes as usize)?;
        // SAFETY: the buffers have the sizes of the program's values and live to the end of this iteration.
        let mut call: PreparedProgram =
            unsafe { preparation.bind_all(first.addresses()).workspace(workspace.address(), bytes).build() }?;
        ensure!(call.kernels() == 2);
        for turn in 0..3 {
            first.poison(&stream)?;
            // SAFETY: the stream is the device's; the download waits for the launch.
            unsafe { call.launch(&stream) }?;
            first.check(&stream, &format!("M = {m}, launch {turn}"))?;
        }
        // SAFETY: nothing is launched during the capture, and each launch is waited for.
        let graph = stream.capture(|| unsafe { call.launch(&stream) })?;
        for turn in 0..3 {
            first.poison(&stream)?;
            // SAFETY: the captured buffers are alive, and the download waits for the launch.
            unsafe { graph.launch(&stream) }?;
            first.check(&stream, &format!("M = {m}, graph {turn}"))?;
        }
        // SAFETY: as for `build`; the last launch has been waited for.
        unsafe { call.update_addresses(&second.addresses()) }?;
        second.poison(&stream)?;
        // SAFETY: as above.
        unsafe { call.launch(&stream) }?;
        second.check(&stream, &format!("M = {m}, other addresses"))?;
        // The graph still uses the addresses of its capture.
        first.poison(&stream)?;
        // SAFETY: as above; the first buffers are still alive.
        unsafe { graph.launch(&stream) }?;
        first.check(&stream, &format!("M = {m}, the graph after that"))?;
        drop(graph);
        drop(call);
        // A stream of the host, and a workspace that Fourfold allocates.
        let host = device.new_stream()?;
        // SAFETY: `host` outlives it.
        let borrowed = unsafe { device.borrow_stream(host.raw()) };
        // SAFETY: as above.
        let mut call = unsafe { compiled.prepare(&first.symbols)?.bind_all(first.addresses()).build() }?;
        first.poison(&borrowed)?;
        // SAFETY: as above.
        unsafe { call.launch(&borrowed) }?;
        first.check(&borrowed, &format!("M = {m}, a borrowed stream"))?;
    }
    Ok(())
}

/// Checks that a prepared program writes the outputs of a run at every launch: combined values must start anew
/// each time.
fn prepared_outputs() -> Result<()> {
    let compiled = compile_kernels(OUTPUTS)?;
    let machine = compiled.machine().context("a machine")?;
    let (program, partition) = (compiled.planned().program(), compiled.planned().partition());
    let (module, device) = (program.module(), machine.device());
    ensure!(partition.kernels().count() == 2 && partition.segments.len() == 2, "{partition:?}");
    let stream = device.new_stream()?;
    for m in [1, 37, 130, 0] {
        let tensors = sample::inputs(program, &recipe(m, 31))?;
        let bound = bind::bind(program, &tensors)?;
        let run = compiled.run(&tensors, &RunOptions::default().poison(0xFF))?;
        let interpreted = interpret(program, &bound)?;
        let mut buffers = HashMap::new();
        for (value, tensor) in module.inputs.iter().zip(&bound.inputs) {
            let buffer = device.alloc(tensor.bytes().len())?;
            stream.upload(&buffer, 0, tensor.bytes())?;
            buffers.insert(*value, buffer);
        }
        for (position, value) in module.outputs.iter().enumerate() {
            let (got, want) =
                (run.value(*value).context("an output")?, &interpreted[fourfold::ir::Entity::index(*value)]);
            // The second sum is not exact in every order.
            ensure!(position == 3 || got == want, "M = {m}: %{}", module.name_of(*value));
            buffers.insert(*value, device.alloc(got.bytes().len())?);
        }
        let addresses = buffers.iter().map(|(value, buffer)| (*value, buffer.address()));
        // SAFETY: the buffers have the sizes of the program's values and live to the end of this iteration.
        let mut call = unsafe { compiled.prepare(&bound.symbols)?.bind_all(addresses).build() }?;
        ensure!(call.kernels() == if m == 0 { 0 } else { 2 });
        for moved in [false, true] {
            if moved {
                // The memsets before a launch must clear the new addresses.
                let mut elsewhere = HashMap::new();
                for value in &module.outputs {
                    elsewhere.insert(*value, device.alloc(buffers[value].len())?);
                }
                let addresses = elsewhere.iter().map(|(value, buffer)| (*value, buffer.address())).collect();
                // SAFETY: nothing is in flight, and the new buffers live as long as the old ones.
                unsafe { call.update_addresses(&addresses) }?;
                buffers.extend(elsewhere);
            }
            // SAFETY: nothing is launched during the capture, and each launch is waited for.
            let graph = stream.capture(|| unsafe { call.launch(&stream) })?;
            for turn in 0..4 {
                for value in &module.outputs {
                    stream.fill(&buffers[value], 0, buffers[value].len(), 0xFF)?;
                }
                // SAFETY: the stream is the device's; the downloads wait for the launch.
                unsafe { if turn % 2 == 0 { call.launch(&stream) } else { graph.launch(&stream) } }?;
                for value in &module.outputs {
                    let want = run.value(*value).context("an output")?;
                    let mut found = vec![0; want.bytes().len()];
                    stream.download(&buffers[value], 0, &mut found)?;
                    let name = module.name_of(*value);
                    ensure!(found == want.bytes(), "M = {m}, moved: {moved}, launch {turn}: %{name}");
                }
            }
        }
    }
    Ok(())
}

fn prepared_segments() -> Result<()> {
    let compiled = compile(MIXED)?;
    let (program, partition) = (compiled.planned().program(), compiled.planned().partition());
    let machine = compiled.machine().context("a machine")?;
    let device = machine.device();
    let host = device.new_stream()?;
    // SAFETY: `host` is a stream of this device and outlives it.
    let stream = unsafe { device.borrow_stream(host.raw()) };
    let kernels: Vec<usize> = partition.plans().map(|(segment, _)| segment).collect();
    ensure!(kernels == [0, 2, 3], "{kernels:?}");
    for m in [1, 37, 130] {
        let tensors = sample::inputs(program, &recipe(m, 21))?;
        let bound = bind::bind(program, &tensors)?;
        let values = interpret(program, &bound)?;
        for &segment in &kernels {
            let planned = &partition.segments[segment];
            let tensor = |value: &Value| {
                let input = program.module().inputs.iter().position(|input| input == value);
                input.map_or(&values[fourfold::ir::Entity::index(*value)], |at| bound.inputs[at])
            };
            let mut buffers = HashMap::new();
            for value in planned.inputs.iter().chain(&planned.outputs) {
                buffers.insert(*value, device.alloc(tensor(value).bytes().len())?);
            }
            for value in &planned.inputs {
                stream.upload(&buffers[value], 0, tensor(value).bytes())?;
            }
            let output = planned.outputs[0];
            let d = &buffers[&output];
            let addresses = buffers.iter().map(|(value, buffer)| (*value, buffer.address()));
            let preparation =
                compiled.prepare_segment(segment, &bound.symbols)?.stream(&stream)?.bind_all(addresses);
            let bytes = preparation.workspace_size();
            let workspace = device.alloc(bytes as usize)?;
            // SAFETY: the buffers have the sizes of the program's values and live to the end of this iteration.
            let mut call = unsafe { preparation.workspace(workspace.address(), bytes).build() }?;
            ensure!(call.kernels() == 1);
            stream.fill(d, 0, d.len(), 0xFF)?;
            // SAFETY: the stream is the device's; the download waits for the launch.
            unsafe { call.launch(&stream) }?;
            let want = tensor(&output);
            let mut found = vec![0; d.len()];
            stream.download(d, 0, &mut found)?;
            let got = Tensor::new(want.element(), want.dims().to_vec(), None, found)?;
            let largest = want.to_f64().iter().fold(0f64, |largest, value| largest.max(value.abs()));
            let far = got
                .to_f64()
                .iter()
                .zip(want.to_f64())
                .filter(|(got, want)| got.is_nan() || (*got - want).abs() > 1e-5 * largest)
                .count();
            ensure!(largest > 0.0 && far == 0, "segment {segment}, M = {m}: {far} elements differ");
        }
    }
    Ok(())
}

/// Programs of one kernel, which quantizes, also on targets that otherwise quantize in a kernel of its own.
fn kernels_only() -> Result<()> {
    let backend = Backend::new(&Options::default().claim(Claim::KernelsOnly))?;
    let mut found = 0;
    for file in fourfold_tests::fixtures()? {
        let source = std::fs::read_to_string(&file)?;
        let is_output = file.parent().is_some_and(|folder| folder.ends_with("outputs"));
        // Of these functions, results may differ in the last digits, and codes then differ.
        let is_exact = !["exp", "sqrt", "tanh", "erf", "sigmoid", "gelu", "silu"]
            .iter()
            .any(|op| source.contains(&format!("= {op} ")));
        if !is_output || !is_exact || !source.contains("block_quantize") {
            continue;
        }
        let Ok((program, _)) = fourfold::ir::load(&source) else { continue };
        let planned = backend.plan(program);
        let partition = planned.partition();
        if partition.segments.len() != 1 || partition.kernels().count() != 1 {
            continue;
        }
        found += 1;
        let compiled = backend.compile(planned, &compile_options(), &|line| eprintln!("{line}"));
        let program = compiled.planned().program();
        let symbols: Vec<_> = program.module().symbols.values().map(|name| (name.clone(), 37)).collect();
        let tensors = sample::inputs(program, &Recipe { rule: Rule::Exact, seed: 9, symbols })?;
        let run = compiled.run(&tensors, &RunOptions::default())?;
        let name = file.display();
        ensure!(run.segments.iter().all(|segment| segment.reason.is_none()), "{name}: {:?}", run.segments);
        let bound = bind::bind(program, &tensors)?;
        let expected = interpret(program, &bound)?;
        for &output in &program.module().outputs {
            let expected = &expected[fourfold::ir::Entity::index(output)];
            ensure!(run.value(output) == Some(expected), "{name}: %{}", program.module().name_of(output));
        }
    }
    ensure!(found >= 5, "only {found} programs");
    Ok(())
}

fn refused() -> Result<()> {
    let compiled = compile(CHAIN)?;
    let machine = compiled.machine().context("a machine")?;
    let program = compiled.planned().program();
    let stream = machine.device().stream();
    let good = on_device(&compiled, stream, machine.device(), 37, 1)?;
    let check = |addresses: HashMap<Value, u64>, workspace, code: &str| {
        let mut preparation = compiled.prepare(&good.symbols)?.bind_all(addresses);
        if let Some((address, bytes)) = workspace {
            preparation = preparation.workspace(address, bytes);
        }
        // SAFETY: the call is rejected, so nothing is launched; the valid addresses are those of live buffers.
        match unsafe { preparation.build() } {
            Ok(_) => bail!("prepared, and {code} was expected"),
            Err(refused) if refused.code == code => Ok(()),
            Err(refused) => bail!("{}: {}, and {code} was expected", refused.code, refused.message),
        }
    };
    let changed = |value: Value, change: &dyn Fn(u64) -> u64| {
        let mut addresses = good.addresses();
        addresses.entry(value).and_modify(|address| *address = change(*address));
        addresses
    };
    let a = program.module().inputs[0];
    let mut without = good.addresses();
    without.remove(&a);
    check(without, None, "missing_address")?;
    check(changed(a, &|address| address + 4), None, "pointer_alignment")?;
    let output = good.buffers[&good.output].address();
    check(changed(a, &|_| output), None, "alias")?;
    check(good.addresses(), Some((output, 16)), "workspace_size")?;
    let mixed = compile(MIXED)?;
    match mixed.prepare(&good.symbols) {
        Err(refused) if refused.code == "fallback_segment" => Ok(()),
        Err(other) => bail!("{other:?}"),
        Ok(_) => bail!("prepared, and fallback_segment was expected"),
    }
}

fn out_of_memory() -> Result<()> {
    let compiled = compile(CHAIN)?;
    let device = compiled.device().context("a device")?;
    // All of the GPU's memory, in pieces that halve until none is left.
    let mut taken = Vec::new();
    let mut piece = 1usize << 36;
    while piece >= 1 << 16 {
        match device.alloc(piece) {
            Ok(buffer) => taken.push(buffer),
            Err(_) => piece /= 2,
        }
    }
    let program = compiled.planned().program();
    let tensors = sample::inputs(program, &recipe(70_001, 3))?;
    let run = compiled.run(&tensors, &RunOptions::default());
    drop(taken);
    let run = run?;
    for segment in &run.segments {
        ensure!(segment.ran == Ran::Fallback, "{segment:?}");
        let code = segment.reason.as_ref().map(|reason| reason.code);
        ensure!(code == Some("device_memory"), "{segment:?}");
    }
    let run = compiled.run(&tensors, &RunOptions::default())?;
    ensure!(run.segments.iter().all(|s| matches!(s.ran, Ran::Kernel | Ran::Emulated)), "{:?}", run.segments);
    Ok(())
}
