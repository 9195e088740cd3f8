//! Faults planted in the PTX of sm_100a kernels: an emulated run must find each, by a wrong value or a numbered fault.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, anyhow, ensure};
use fourfold::codegen::dispatch::Tables;
use fourfold::codegen::rewrite_ptx;
use fourfold::executor::device::{Device, DeviceError};
use fourfold::executor::kernel::Kernel;
use fourfold::executor::{
    Artifact, BuildInput, BuildOptions, BuildTools, Machine, Ran, RunError, RunOptions, SegmentKernel,
    ToolEnvironment, build, run,
};
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{Entity, Tensor, bind, interpret};
use fourfold::kernels::{build_input, planned_kernels};
use fourfold::{Backend, Options, Planned};
use fourfold_tests::built::{cutlass, toolchain};
use libtest_mimic::Completion;

/// A fault: its name, the kernel that it is planted in, and the change of the kernel's PTX.
struct Fault(&'static str, &'static Subject, fn(&str) -> Result<String>);

/// A program with a forced kernel.
struct Subject {
    format: &'static str,
    kernel: &'static str,
    text: &'static str,
}

/// Several tiles per CTA, each of four steps of tile K, so that stages, accumulators and scheduler answers differ.
const NVFP4: Subject = Subject {
    format: "nvfp4",
    kernel: "tile = [128, 64, 256]",
    text: "fir 1
func @main(
    %a: tensor<[300, 800], f4E2M1FN>, %sfa: tensor<[300, 50], f8E4M3FN, blocked>,
    param %b: tensor<[264, 800], f4E2M1FN>, param %sfb: tensor<[264, 50], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[300, 264], f32>
  return %d
}
",
};

const MXFP4: Subject = Subject {
    format: "mxfp4",
    kernel: "tile = [128, 64, 256]",
    text: "fir 1
func @main(
    %a: tensor<[150, 544], f4E2M1FN>, %sfa: tensor<[150, 17], f8E8M0FNU, blocked>,
    param %b: tensor<[72, 544], f4E2M1FN>, param %sfb: tensor<[72, 17], f8E8M0FNU, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 32} : tensor<[150, 72], f32>
  return %d
}
",
};

/// FP4 that TMA would spread over bytes, beside FP8.
const W4A8: Subject = Subject {
    format: "mxfp8 x mxfp4",
    kernel: "tile = [128, 64, 128]",
    text: "fir 1
func @main(
    %a: tensor<[300, 640], f8E4M3FN>, %sfa: tensor<[300, 20], f8E8M0FNU, blocked>,
    param %b: tensor<[264, 640], f4E2M1FN>, param %sfb: tensor<[264, 20], f8E8M0FNU, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 32} : tensor<[300, 264], f32>
  return %d
}
",
};

/// The same on two SMs.
const W4A8_PAIR: Subject = Subject { kernel: "tile = [256, 128, 128], cluster = [2, 1]", ..W4A8 };

/// Two SMs share each tile.
const PAIR: Subject = Subject { kernel: "tile = [256, 128, 256], cluster = [2, 1]", ..NVFP4 };

/// The position of an operand, in brackets or not, behind the opcode.
type Position = usize;

/// Changes an operand of the instructions that begin with `opcode`. `value` writes the new value of the operand, a
/// register of this type, into the register `planted`.
fn operand(ptx: &str, opcode: &str, position: Position, of: &str, value: &str) -> Result<String> {
    let mut found = 0;
    let mut text = String::with_capacity(ptx.len());
    for line in ptx.split_inclusive('\n') {
        let Some((before, rest)) = line.split_once(opcode).filter(|(before, _)| !before.contains("//"))
        else {
            text.push_str(line);
            continue;
        };
        let end = rest.find([' ', '\t', '{', '[']).context("an instruction without operands")?;
        let (modifiers, operands) = rest.split_at(end);
        let (operands, after) = operands.split_once(';').context("an instruction on one line")?;
        let mut list = split(operands);
        let given = list.get(position).with_context(|| format!("{opcode}: no operand {position}"))?.clone();
        let inner = given.trim_matches(['[', ']']).to_owned();
        list[position] = given.replace(&inner, "%planted");
        let change = value.replace("planted", "%planted").replace("given", &inner);
        text.push_str(&format!(
            "{{ .reg .{of} %planted; {change} {before}{opcode}{modifiers} {}; }}{after}",
            list.join(", ")
        ));
        found += 1;
    }
    ensure!(found > 0, "no {opcode}");
    Ok(text)
}

/// Splits operands at the commas outside of braces and brackets.
fn split(operands: &str) -> Vec<String> {
    let (mut list, mut depth) = (vec![String::new()], 0);
    for letter in operands.trim().chars() {
        depth += i32::from(matches!(letter, '{' | '[')) - i32::from(matches!(letter, '}' | ']'));
        match list.last_mut() {
            Some(last) if letter != ',' || depth > 0 => last.push(letter),
            _ => list.push(String::new()),
        }
    }
    list.iter().map(|operand| operand.trim().to_owned()).collect()
}

const MMA: &str = "tcgen05.mma";
const COPY: &str = "tcgen05.cp";

const FAULTS: [Fault; 24] = [
    Fault("none, NVFP4", &NVFP4, |ptx| Ok(ptx.to_owned())),
    Fault("none, MXFP4", &MXFP4, |ptx| Ok(ptx.to_owned())),
    Fault("none, two SMs", &PAIR, |ptx| Ok(ptx.to_owned())),
    Fault("none, W4A8", &W4A8, |ptx| Ok(ptx.to_owned())),
    Fault("none, W4A8 on two SMs", &W4A8_PAIR, |ptx| Ok(ptx.to_owned())),
    // From e4m3 to e5m2.
    Fault("elements of A", &W4A8, |ptx| operand(ptx, MMA, 3, "b32", "xor.b32 planted, given, 0x80;")),
    // From one step along K to another.
    Fault("start of spread codes", &W4A8, |ptx| operand(ptx, MMA, 2, "b64", "xor.b64 planted, given, 2;")),
    Fault("descriptor start of A", &NVFP4, |ptx| operand(ptx, MMA, 1, "b64", "xor.b64 planted, given, 2;")),
    Fault("descriptor start of B", &NVFP4, |ptx| operand(ptx, MMA, 2, "b64", "xor.b64 planted, given, 2;")),
    // From 128 to 64 bytes.
    Fault("swizzle", &NVFP4, |ptx| {
        operand(ptx, MMA, 1, "b64", "xor.b64 planted, given, 0xC000000000000000;")
    }),
    Fault("leading byte offset", &NVFP4, |ptx| {
        operand(ptx, MMA, 1, "b64", "or.b64 planted, given, 0x20000;")
    }),
    Fault("stride byte offset", &NVFP4, |ptx| {
        operand(ptx, MMA, 2, "b64", "xor.b64 planted, given, 0xC000000000;")
    }),
    Fault("column of SFA", &NVFP4, |ptx| operand(ptx, MMA, 4, "b32", "xor.b32 planted, given, 4;")),
    Fault("column of SFB", &NVFP4, |ptx| operand(ptx, MMA, 5, "b32", "xor.b32 planted, given, 1;")),
    Fault("scale ID", &MXFP4, |ptx| operand(ptx, MMA, 3, "b32", "xor.b32 planted, given, 0x40000000;")),
    Fault("lane group of a copy", &NVFP4, |ptx| {
        operand(ptx, COPY, 0, "b32", "or.b32 planted, given, 0x200000;")
    }),
    Fault("source of a copy", &NVFP4, |ptx| operand(ptx, COPY, 1, "b64", "xor.b64 planted, given, 8;")),
    // A stage of A has 16 KiB.
    Fault("stage index", &NVFP4, |ptx| operand(ptx, MMA, 1, "b64", "xor.b64 planted, given, 0x400;")),
    Fault("accumulator buffer", &NVFP4, |ptx| operand(ptx, MMA, 0, "b32", "xor.b32 planted, given, 64;")),
    Fault("column of tcgen05.ld", &NVFP4, |ptx| {
        operand(ptx, "tcgen05.ld", 1, "b32", "xor.b32 planted, given, 1;")
    }),
    Fault("phase bit", &NVFP4, |ptx| {
        operand(ptx, "mbarrier.try_wait", 2, "b32", "xor.b32 planted, given, 1;")
    }),
    Fault("expect_tx bytes", &NVFP4, |ptx| {
        operand(ptx, "mbarrier.arrive.expect_tx.shared::cta.b64", 2, "b32", "add.u32 planted, given, 16;")
    }),
    Fault("scheduler's answer", &NVFP4, |ptx| {
        operand(ptx, "clusterlaunchcontrol.try_cancel", 0, "b32", "add.u32 planted, given, 16;")
    }),
    Fault("mask of two SMs", &PAIR, |ptx| {
        operand(ptx, "tcgen05.commit", 1, "b16", "and.b16 planted, given, 1;")
    }),
];

/// Plants fault number `INDEX`, then translates.
fn plant<const INDEX: usize>(kernel: &str, library: &str) -> Result<String, String> {
    let changed = (FAULTS[INDEX].2)(kernel).map_err(|error| format!("{error:#}"))?;
    rewrite_ptx(&changed, library).map_err(|error| error.to_string())
}

macro_rules! plants {
    ($($index:literal)*) => { [$(plant::<$index>),*] };
}

type Translate = fn(kernel: &str, library: &str) -> Result<String, String>;

const PLANTS: [Translate; FAULTS.len()] =
    plants!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23);

fn planned(subject: &Subject) -> Result<Planned> {
    let table = format!(
        "schema = 1\n[[table]]\ntargets = [\"sm_100a\"]\nformats = [\"{}\"]\nnote = \"forced\"\n[table.default]\n\
         kernel = {{ {} }}\nwhy = \"forced\"\n",
        subject.format, subject.kernel
    );
    let tables = Tables::parse(&table)?;
    let options =
        Options::default().emulate(true).target("sm_100a".to_owned()).dispatch(std::sync::Arc::new(tables));
    let (program, _) = fourfold::ir::load(subject.text).map_err(|errors| anyhow!("{}", errors[0].message))?;
    Ok(Backend::new(&options)?.plan(program))
}

fn build_planted(index: usize) -> Result<Artifact> {
    let planned = planned(FAULTS[index].1)?;
    let kernel = planned_kernels(&planned, cutlass(), true).pop().context("a kernel")?;
    let mut input = build_input(&kernel.source);
    input.translation.as_mut().context("a translation")?.translate = PLANTS[index];
    build_of(&input)
}

/// Builds a kernel without the cache.
pub(super) fn build_of(input: &BuildInput<'_>) -> Result<Artifact> {
    let toolchain = toolchain();
    let tools = BuildTools {
        nvcc: &toolchain.nvcc,
        include: [toolchain.cutlass_include(), toolchain.include.clone()].concat(),
        libraries: toolchain.libraries.clone(),
        cuobjdump: toolchain.cuobjdump.as_deref(),
        environment: ToolEnvironment::from_process(),
    };
    Ok(build(input, &tools, &BuildOptions::default())?)
}

/// Runs the kernel. Returns how a fault was seen, or `None` if all values are right.
fn symptom(index: usize, artifact: &Artifact, device: &Device) -> Result<Option<String>> {
    let planned = planned(FAULTS[index].1)?;
    for seed in 0..4 {
        let recipe = Recipe { rule: Rule::Contest, seed, symbols: Vec::new() };
        let tensors = sample::inputs(planned.program(), &recipe)?;
        let seen = differs(&planned, artifact, device, &tensors, &tensors)?;
        if seen.is_some() {
            return Ok(seen);
        }
    }
    Ok(None)
}

/// Runs a program of one kernel on `given`, and compares its outputs, of four bytes per element, with the interpreter's
/// on `meant`. Returns how a fault was seen, or `None` if all values are right.
pub(super) fn differs(
    planned: &Planned,
    artifact: &Artifact,
    device: &Device,
    given: &HashMap<String, Tensor>,
    meant: &HashMap<String, Tensor>,
) -> Result<Option<String>> {
    let program = planned.program();
    let kernels = HashMap::from([(0, SegmentKernel::Ready(Kernel::load(artifact)?))]);
    let machine = Machine::new(device, &kernels);
    let (options, bound) = (RunOptions::default().poison(0xFF), bind::bind(program, given)?);
    let ran = match run(program, planned.partition(), &bound, &options, Some(&machine)) {
        Err(RunError::Device { source: DeviceError::Emulation { status }, .. }) => {
            return Ok(Some(status.message));
        }
        ran => ran?,
    };
    ensure!(ran.segments[0].ran == Ran::Emulated, "{:?}", ran.segments);
    let values = interpret(program, &bind::bind(program, meant)?)?;
    for output in &program.module().outputs {
        let expected = &values[output.index()];
        let got = ran.value(*output).context("an output")?;
        let wrong =
            got.bytes().chunks(4).zip(expected.bytes().chunks(4)).filter(|(got, want)| got != want).count();
        if wrong > 0 {
            return Ok(Some(format!("WRONG: {wrong} of {} elements", expected.bytes().len() / 4)));
        }
    }
    Ok(None)
}

pub fn planted_faults() -> Result<Completion> {
    let backend = Backend::new(&Options::default().emulate(true).target("sm_100a".to_owned()))?;
    let gpu = match backend.execution() {
        Ok((gpu, _)) => gpu,
        Err(reason) => return Ok(Completion::ignored_with(reason.message)),
    };
    let (next, built) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= FAULTS.len() {
                        break;
                    }
                    let artifact = build_planted(index);
                    built.lock().expect("no thread panics with it").push((index, artifact));
                }
            });
        }
    });
    let device = Device::open(gpu.ordinal)?;
    let mut built = built.into_inner().expect("no thread panicked with it");
    built.sort_by_key(|(index, _)| *index);
    let mut unseen = Vec::new();
    for (index, artifact) in built {
        let name = FAULTS[index].0;
        let seen = symptom(index, &artifact.with_context(|| name.to_owned())?, &device)
            .with_context(|| name.to_owned())?;
        println!("{name}: {}", seen.as_deref().unwrap_or("all values are right"));
        if seen.is_some() == name.starts_with("none") {
            unseen.push(name);
        }
    }
    ensure!(unseen.is_empty(), "not as expected: {unseen:?}");
    Ok(Completion::Completed)
}
