//! Compares a two-layer model of the small graph compiler with the host's own ops, for several numbers of rows.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use fourfold::executor::Ran;
use fourfold::executor::device::{DeviceError, discover};
use fourfold::executor::toolchain::ToolchainOptions;
use fourfold::{Backend, Claim, CompileOptions, DeviceChoice, Options};
use fourfold_embed::{Activations, Graph, Model, Node, Weights, quantize};
use libtest_mimic::{Arguments, Trial};

const ROWS: [usize; 5] = [1, 37, 91, 130, 0];
const COLUMNS: [usize; 3] = [96, 160, 56];

fn main() -> ExitCode {
    // Without a driver or a GPU for our kernels the test is skipped; a failing driver fails it.
    let skip = match discover() {
        Err(DeviceError::NoDriver) => true,
        Ok(gpus) => gpus.is_empty() || device().is_none(),
        Err(_) => false,
    };
    let device = Trial::test("two_layers_run_as_kernels_on_the_gpu", || {
        Ok(on_the_gpu().map_err(|e| format!("{e:#}"))?)
    });
    let trials = vec![
        Trial::test("two_layers_run_on_the_fallback_without_a_gpu", || {
            Ok(on_the_fallback().map_err(|error| format!("{error:#}"))?)
        }),
        Trial::test("a_host_that_keeps_its_ops_cannot_run_the_program_whole", || {
            Ok(whole().map_err(|error| format!("{error:#}"))?)
        }),
        device.with_ignored_flag(skip),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Options that run kernels on this machine's GPU.
fn device() -> Option<Options> {
    let options = Options::default().claim(Claim::KernelsOnly);
    let backend = Backend::new(&options).ok()?;
    (backend.execution().is_ok() && !backend.capabilities().formats.is_empty()).then_some(options)
}

/// Returns small numbers that differ from their neighbours.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next() * (1.0 + 3.0 * next())).collect()
}

fn activations(seed: u64, rows: usize, columns: usize) -> Activations {
    Activations { rows, columns, values: numbers(seed, rows * columns) }
}

fn graph() -> Graph {
    let weights =
        |seed, n, k| Weights { codes: quantize(&activations(seed, n, k)), bias: numbers(seed + 100, n) };
    let mut graph = Graph::default();
    let input = graph.add(Node::Input(COLUMNS[0]));
    let norm = graph.add(Node::RmsNorm(input));
    let quantized = graph.add(Node::Quantize(norm));
    let hidden = graph.add(Node::Linear(quantized, weights(1, COLUMNS[1], COLUMNS[0])));
    let hidden = graph.add(Node::Gelu(hidden));
    let norm = graph.add(Node::RmsNorm(hidden));
    let quantized = graph.add(Node::Quantize(norm));
    graph.add(Node::Linear(quantized, weights(2, COLUMNS[2], COLUMNS[1])));
    graph
}

/// The host adds the values before and after the activation, so one kernel returns both.
fn residual() -> Graph {
    let mut graph = Graph::default();
    let input = graph.add(Node::Input(COLUMNS[0]));
    let quantized = graph.add(Node::Quantize(input));
    let codes = quantize(&activations(3, COLUMNS[1], COLUMNS[0]));
    let hidden = graph.add(Node::Linear(quantized, Weights { codes, bias: numbers(103, COLUMNS[1]) }));
    let activated = graph.add(Node::Gelu(hidden));
    graph.add(Node::Add(hidden, activated));
    graph
}

fn check_residual(options: &Options, compile: &CompileOptions, ran: impl Fn(Ran) -> bool) -> Result<()> {
    let backend = Backend::new(options)?;
    let model = Model::compile(residual(), &backend, compile)?;
    ensure!(model.claimed_nodes() == [2, 3], "claimed {:?}", model.claimed_nodes());
    for rows in ROWS {
        let input = activations(40 + rows as u64, rows, COLUMNS[0]);
        let want = residual().run(&input)?;
        let (got, trace) = model.run(&input)?;
        ensure!(trace.len() == 1 && ran(trace[0].ran), "one kernel replaces two nodes, not {trace:?}");
        let largest = want.values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        ensure!(got.values.len() == rows * COLUMNS[1]);
        for (index, (got, want)) in got.values.iter().zip(&want.values).enumerate() {
            ensure!((got - want).abs() <= 1e-5 * largest, "M = {rows}, element {index}: {got}, not {want}");
        }
    }
    Ok(())
}

fn check(options: &Options, compile: &CompileOptions, ran: impl Fn(Ran) -> bool) -> Result<()> {
    check_residual(options, compile, &ran)?;
    let backend = Backend::new(options)?;
    let model = Model::compile(graph(), &backend, compile)?;
    ensure!(model.claimed_nodes() == [3, 4, 7], "claimed {:?}", model.claimed_nodes());
    for rows in ROWS {
        let input = activations(7 + rows as u64, rows, COLUMNS[0]);
        let want = graph().run(&input)?;
        let (got, trace) = model.run(&input)?;
        ensure!(trace.len() == 2, "two kernels replace three nodes, not {trace:?}");
        ensure!(trace.iter().all(|segment| ran(segment.ran)), "M = {rows}: {trace:?}");
        ensure!((got.rows, got.columns, got.values.len()) == (rows, COLUMNS[2], rows * COLUMNS[2]));
        let largest = want.values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
        for (index, (got, want)) in got.values.iter().zip(&want.values).enumerate() {
            ensure!((got - want).abs() <= 1e-5 * largest, "M = {rows}, element {index}: {got}, not {want}");
        }
        ensure!(rows == 0 || largest > 1.0, "the largest result is at most 1");
    }
    Ok(())
}

fn on_the_fallback() -> Result<()> {
    let options = Options::default().target("sm_120a").device(DeviceChoice::None).claim(Claim::KernelsOnly);
    check(&options, &CompileOptions::default(), |ran| ran == Ran::Fallback)
}

fn on_the_gpu() -> Result<()> {
    let options = device().ok_or_else(|| anyhow::anyhow!("no GPU found"))?;
    let toolchain = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    let compile = CompileOptions::default().toolchain(toolchain);
    check(&options, &compile, |ran| matches!(ran, Ran::Kernel | Ran::Emulated))
}

fn whole() -> Result<()> {
    use fourfold::ir::{Builder, ElementType, TensorType, UnaryKind};
    let mut builder = Builder::new("host_only");
    let m = builder.symbol("M");
    let x = builder.input("x", TensorType::new(vec![m], ElementType::F32));
    let y = builder.unary("y", UnaryKind::Gelu, x);
    let options = Options::default().device(DeviceChoice::None).claim(Claim::KernelsOnly);
    let planned = Backend::new(&options)?.plan_module(builder.finish(&[y]))?;
    ensure!(planned.claimed().is_empty());
    let error = planned.run(&Default::default(), &Default::default()).expect_err("nothing is claimed");
    ensure!(error.to_string().contains("`%y = gelu` is not claimed"), "{error}");
    Ok(())
}
