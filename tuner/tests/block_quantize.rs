//! Tests of block-quantization kernels: their combinations, their results on the host through their own C interface
//! compared with the interpreter, and a build that loads without a GPU.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::{KernelSource, target};
use fourfold_executor::environment::Environment;
use fourfold_executor::kernel::{self, Device, Extents, Kernel};
use fourfold_executor::toolchain::{Toolchain, ToolchainOptions, locate};
use fourfold_executor::{Artifact, BuildInput, BuildOptions, BuildTools, ToolEnvironment, build};
use fourfold_ir::bind::bind;
use fourfold_ir::{ElementType, Entity, Tensor, interpret, numeric};
use fourfold_tuner::generator::{Broken, Configured, Workload, generator};
use fourfold_tuner::parameters::{Parameters, Value};
use fourfold_tuner::problem::Problem;

const SIMULATION: &str = include_str!("block_quantize/simulate.cc");
const DEVICE: Device = Device { sm_count: 148, max_active_clusters: 0 };

/// Parses parameters such as `threads=256 rows=4`.
fn parameters(text: &str) -> Parameters {
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').expect("a name and a value");
        let value = value.parse().map_or_else(|_| Value::Text(value.to_owned()), Value::Number);
        (name.to_owned(), value)
    };
    Parameters(text.split_whitespace().map(pair).collect())
}

fn try_configure(text: &str, on: &str) -> Result<Box<dyn Configured>, Vec<Broken>> {
    let generator = generator("block_quantize").expect("the generator exists");
    generator.configure(&parameters(text), target(on).expect("a target"), CutlassVersion::PINNED)
}

#[track_caller]
fn configure(text: &str) -> Box<dyn Configured> {
    try_configure(text, "sm_100a").unwrap_or_else(|broken| panic!("{text}: {broken:?}"))
}

/// Every combination of parameter values.
fn combinations() -> Vec<Parameters> {
    let generator = generator("block_quantize").expect("the generator exists");
    generator.parameters().iter().fold(vec![Parameters::default()], |combinations, parameter| {
        let with = |combination: &Parameters, value: &str| {
            let mut combination = combination.clone();
            combination.0.insert(parameter.name.to_owned(), Value::Text(value.to_owned()));
            combination
        };
        let values: Vec<&str> = parameter.values.split(", ").collect();
        assert!(values.contains(&parameter.default), "{}", parameter.name);
        combinations.iter().flat_map(|it| values.iter().map(|value| with(it, value))).collect()
    })
}

#[test]
fn valid_combinations_have_names_and_sources_of_their_own() {
    let generator = generator("block_quantize").expect("the generator exists");
    let mut names = BTreeSet::new();
    let all = combinations();
    for combination in &all {
        let target = target("sm_100a").expect("a target");
        let Ok(configured) = generator.configure(combination, target, CutlassVersion::PINNED) else {
            continue;
        };
        assert!(names.insert(configured.name()), "{} twice", configured.name());
    }
    assert_eq!((all.len(), names.len()), (17_280, 9_648));
}

#[test]
fn a_source_says_what_it_is_and_names_no_cutlass() {
    let source = configure("").source();
    assert_eq!(source.kernel, "quantize_bf16_nvfp4_blocked_t256v8x2r4");
    assert_eq!(
        (source.target, source.architecture, source.opcode),
        ("sm_100a", "100a", "F2FP.SATFINITE.E2M1")
    );
    assert!(!source.text.to_lowercase().contains("cutlass"), "the source does not need CUTLASS");
    assert_eq!(configure("").source(), source);
    for text in
        ["format=mxfp4_floor", "format=mxfp4_ceil", "layout=linear", "input=f32", "turns=1", "padding=memset"]
    {
        assert_ne!(configure(text).source().hash, source.hash, "{text}");
    }
    let hopper = try_configure("", "sm_90a").expect("the settings are valid").source();
    assert_eq!((hopper.architecture, hopper.opcode), ("90a", "STG"));
}

#[test]
fn each_rule_rejects_what_it_is_for_and_says_why() {
    for (text, on, rule) in [
        ("", "cpu", "target"),
        ("values=32", "sm_100a", "block"),
        ("threads=64 rows=32 values=4", "sm_100a", "row"),
        ("input=f32 values=16 turns=8", "sm_100a", "registers"),
        ("threads=1024 values=16 turns=4", "sm_100a", "registers"),
        ("threads=1024 values=4 turns=8", "sm_100a", "registers"),
        ("layout=linear padding=memset", "sm_100a", "padding"),
        ("threads=96", "sm_100a", "values"),
        ("input=f64", "sm_100a", "values"),
        ("stages=3", "sm_100a", "parameters"),
    ] {
        let broken = try_configure(text, on).expect_err(text);
        assert_eq!(broken.iter().map(|it| it.rule.as_str()).collect::<Vec<_>>(), [rule], "{text}");
        for Broken { demands, found, prevents, .. } in broken {
            assert!(!demands.is_empty() && !found.is_empty() && !prevents.is_empty(), "{text}");
        }
    }
    // All broken rules are reported.
    let broken = try_configure("values=32 input=f32 turns=8 threads=64 rows=32", "cpu")
        .expect_err("the settings break rules");
    assert_eq!(broken.len(), 3, "{broken:?}");
    assert!(try_configure("format=mxfp4_floor values=32", "sm_100a").is_ok());
}

#[test]
fn problems_that_are_none_are_refused_with_their_reason() {
    let nvfp4 = configure("");
    let refused =
        |problem: &str| nvfp4.takes(&problem.parse::<Problem>().expect("a problem")).expect_err(problem);
    assert!(refused("128x2x64").contains("N is 2"));
    assert!(refused("128x1x72").contains("not a multiple of 16"));
    assert!(refused("2147483647x1x2147483632").contains("2^31 bytes"));
    assert!(refused("2147483647x2147483647x1x2147483632").contains("2^31 bytes"));
    assert!(nvfp4.workload(&Problem::new(128, 2, 64), 1).is_err());
    assert!(nvfp4.takes(&Problem::new(1, 1, 16)).is_ok());
    assert!(configure("format=mxfp4_ceil").takes(&Problem::new(1, 1, 16)).is_err());
    // The problem is supported, but a reference of 16 GB is not computed.
    let large = Problem::new(1 << 20, 1, 1 << 13);
    assert!(nvfp4.takes(&large).is_ok() && nvfp4.workload(&large, 1).is_err());
    // 128 rows of 2 KiB of values, 512 bytes of codes and 64 scales, plus the per-tensor scale.
    assert_eq!(nvfp4.work(&Problem::new(128, 1, 1024)).bytes, 128 * (2048 + 512 + 64) + 4);
}

fn input<'a>(workload: &'a Workload, role: &str) -> &'a [u8] {
    let found = workload.inputs.iter().find(|(other, _)| other == role);
    &found.expect("the workload has the input").1
}

#[test]
fn the_reference_is_what_the_interpreter_makes_of_a_program() {
    for (given, result, attributes) in [
        ("input=bf16", "f8E4M3FN, blocked", "{block = 16}"),
        ("input=f32 layout=linear", "f8E4M3FN, linear", "{block = 16}"),
        ("input=f16 format=mxfp4_floor", "f8E8M0FNU, blocked", "{block = 32, scale_rounding = floor}"),
        (
            "input=f32 format=mxfp4_ceil layout=linear",
            "f8E8M0FNU, linear",
            "{block = 32, scale_rounding = ceil}",
        ),
    ] {
        let workload = configure(given)
            .workload(&"3x37x1x224".parse().expect("a problem"), 7)
            .expect("the kernel supports the problem");
        let element = match given.split_whitespace().next() {
            Some("input=bf16") => ElementType::BF16,
            Some("input=f16") => ElementType::F16,
            _ => ElementType::F32,
        };
        let is_nvfp4 = !attributes.contains("rounding");
        let (argument, operands) = if is_nvfp4 { (", %g: tensor<[], f32>", "%v, %g") } else { ("", "%v") };
        let columns = if is_nvfp4 { 14 } else { 7 };
        let program = format!(
            "fir 1\nfunc @main(%v: tensor<[3, 37, 224], {element}>{argument}) {{\n  %q, %s = block_quantize {operands} \
             {attributes} : tensor<[3, 37, 224], f4E2M1FN>, tensor<[3, 37, {columns}], {result}>\n  return %q, %s\n}}\n"
        );
        let (program, _) = fourfold_ir::load(&program).expect("the program is valid");
        let tensor = |element, dims, role| {
            Tensor::new(element, dims, None, input(&workload, role).to_vec()).expect("its bytes")
        };
        let mut tensors = HashMap::from([("v".to_owned(), tensor(element, vec![3, 37, 224], "values"))]);
        if is_nvfp4 {
            tensors.insert("g".to_owned(), tensor(ElementType::F32, vec![], "global"));
        }
        let values = interpret(&program, &bind(&program, &tensors).expect("the tensors fit the inputs"))
            .expect("the program can be interpreted");
        let outputs = program.module().outputs.iter().map(|output| values[output.index()].bytes().to_vec());
        assert_eq!(workload.expected, outputs.collect::<Vec<_>>(), "{given}");
    }
}

#[test]
fn the_data_has_what_can_go_wrong_and_is_the_same_for_the_same_seed() {
    for input_type in ["bf16", "f16", "f32"] {
        let configured = configure(&format!("input={input_type}"));
        let problem = Problem::new(130, 1, 2048);
        let workload = configured.workload(&problem, 3).expect("the kernel supports the problem");
        let values: Vec<f32> = match input_type {
            "f32" => {
                input(&workload, "values").as_chunks().0.iter().map(|it| f32::from_le_bytes(*it)).collect()
            }
            _ => {
                let narrow =
                    if input_type == "f16" { numeric::f16_bits_to_f32 } else { numeric::bf16_bits_to_f32 };
                input(&workload, "values")
                    .as_chunks()
                    .0
                    .iter()
                    .map(|it| narrow(u16::from_le_bytes(*it)))
                    .collect()
            }
        };
        let count = |is: &dyn Fn(f32) -> bool| values.iter().filter(|value| is(**value)).count();
        let smallest = if input_type == "f16" { 2f32.powi(-14) } else { f32::MIN_POSITIVE };
        assert!(count(&|x| x != 0.0 && x.abs() < smallest) > 1000, "subnormals");
        assert!(count(&|x| x.is_infinite()) > 10 && count(&|x| x.is_nan()) > 10);
        assert!(
            count(&|x| x == 0.0 && x.is_sign_negative()) > 1000 && count(&|x| x < 0.0) > values.len() / 4
        );
        let zeros = values.chunks(16).filter(|block| block.iter().all(|x| *x == 0.0)).count();
        assert!(zeros > 100 && zeros < values.len() / 16 / 4);
        let magnitudes: BTreeSet<u32> = values.iter().map(|x| x.abs().to_bits()).collect();
        assert!(magnitudes.len() > 1000, "{input_type}: {}", magnitudes.len());
        let scales: BTreeSet<u8> = workload.expected[1].iter().copied().collect();
        assert!(scales.len() > 100, "{input_type}: {} of 128 scales", scales.len());

        let again = configured.workload(&problem, 3).expect("the kernel supports the problem");
        assert!(again.inputs == workload.inputs && again.expected == workload.expected);
        let other = configured.workload(&problem, 4).expect("the kernel supports the problem");
        assert!(other.inputs != workload.inputs);
    }
}

/// Compiles the program that runs a kernel on the host.
fn simulation(configured: &dyn Configured) -> PathBuf {
    let name = configured.name();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("block_quantize").join(&name);
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let write = |file: &str, text: &str| {
        let path = folder.join(file);
        std::fs::write(&path, text).expect("the file can be written");
        path
    };
    for header in ["cuda.h", "cuda_runtime.h", "cuda_fp16.h"] {
        write(header, "");
    }
    write("kernel.cu", &configured.source().text);
    let (source, program) = (write("simulate.cc", SIMULATION), folder.join("simulate"));
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Werror", "-Wno-unknown-pragmas"])
        .arg("-I")
        .arg(&folder)
        .arg("-o")
        .args([&program, &source])
        .output()
        .expect("g++, which nvcc needs too, starts");
    assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
    program
}

/// Compares a kernel's results on the host with the expected ones.
fn check(text: &str, workloads: &[Workload]) {
    let program = simulation(&*configure(text));
    let (mut given, mut has_global) = (Vec::new(), false);
    for Workload { extents, inputs, .. } in workloads {
        let &[l, m, k] = extents.values() else { panic!("{extents:?}") };
        for extent in [l, m, k, inputs[0].1.len() as i64] {
            given.extend(extent.to_ne_bytes());
        }
        given.extend(inputs.iter().flat_map(|(_, bytes)| bytes));
        has_global = inputs.len() == 2;
    }
    let mut child = Command::new(program)
        .args(has_global.then_some("global"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("the stream is piped");
    // The program writes before it has read all input.
    let writer = std::thread::spawn(move || stdin.write_all(&given));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("the writer does not panic").expect("the program reads");
    assert!(output.status.success(), "{text}: {:?}", output.status);
    let mut written = output.stdout.as_slice();
    for workload in workloads {
        let problem = workload.extents;
        for (expected, what) in workload.expected.iter().zip(["codes", "scales"]) {
            let (size, rest) = written.split_first_chunk().expect("a size");
            assert_eq!(u64::from_ne_bytes(*size), expected.len() as u64, "{what}, {text}, {problem:?}");
            let (bytes, rest) = rest.split_at(expected.len());
            let first = bytes.iter().zip(expected).position(|(found, expected)| found != expected);
            assert_eq!(first, None, "{what}, {text}, {problem:?}");
            written = rest;
        }
    }
    assert!(written.is_empty());
}

/// Every type, format and layout, and every value of the other parameters.
const SIMULATED: [&str; 18] = [
    "input=bf16",
    "input=bf16 layout=linear threads=64 values=4 turns=1 rows=1",
    "input=bf16 padding=memset threads=128 values=16 turns=4 rows=8",
    "input=f16 threads=512 values=8 turns=8 rows=32",
    "input=f16 layout=linear threads=1024 values=4 turns=4 rows=2",
    "input=f16 padding=memset threads=64 values=16 turns=1 rows=16",
    "input=f32 threads=128 values=16 turns=2 rows=2",
    "input=f32 layout=linear threads=256 values=8 turns=1 rows=8",
    "input=f32 padding=memset threads=1024 values=4 turns=2 rows=32",
    "input=bf16 format=mxfp4_floor threads=64 values=32 turns=1 rows=16",
    "input=bf16 format=mxfp4_ceil layout=linear threads=512 values=4 turns=2 rows=1",
    "input=bf16 format=mxfp4_ceil padding=memset threads=128 values=16 turns=8 rows=4",
    "input=f16 format=mxfp4_ceil threads=256 values=32 turns=2 rows=32",
    "input=f16 format=mxfp4_floor layout=linear threads=128 values=8 turns=4 rows=2",
    "input=f16 format=mxfp4_floor padding=memset threads=64 values=4 turns=8 rows=8",
    "input=f32 format=mxfp4_floor threads=256 values=8 turns=2 rows=4",
    "input=f32 format=mxfp4_ceil layout=linear threads=128 values=32 turns=1 rows=1",
    "input=f32 format=mxfp4_floor padding=memset threads=512 values=16 turns=1 rows=16",
];

#[test]
fn kernels_write_what_the_interpreter_does_bit_for_bit() {
    for text in SIMULATED {
        // Blocks per row: 1, 6, 7, and enough for several tiles per row.
        let columns: [u64; 4] =
            if text.contains("mxfp4") { [32, 96, 224, 2048] } else { [16, 96, 112, 2048] };
        let shapes = [1, 37, 130, 257].into_iter().flat_map(|m| columns.map(|k| Problem::new(m, 1, k)));
        let batches =
            [Problem { l: 3, ..Problem::new(37, 1, 96) }, Problem { l: 2, ..Problem::new(128, 1, 128) }];
        let configured = configure(text);
        let workload = |problem: Problem| {
            configured.workload(&problem, 0x5EED ^ problem.m).expect("the kernel supports the problem")
        };
        check(text, &shapes.chain(batches).map(workload).collect::<Vec<_>>());
    }
}

#[test]
fn whatever_the_scale_of_the_tensor_is_the_padding_is_zero() {
    let text = "input=bf16 threads=64 values=4 turns=1 rows=8";
    let (m, k, columns) = (37, 96, 6);
    let mut workloads = Vec::new();
    for global in [0.0, -0.0, -1.0, 1e-45, f32::MAX, f32::INFINITY, f32::NAN] {
        let mut workload =
            configure(text).workload(&Problem::new(m, 1, k), 11).expect("the kernel supports the problem");
        // Blocks of zeros have a zero scale and zero codes.
        let mut bytes = input(&workload, "values").to_vec();
        bytes.chunks_mut(2 * 16).step_by(5).for_each(|block| block.fill(0));
        workload.inputs[0] = ("values".to_owned(), bytes.clone());
        let values = Tensor::new(ElementType::BF16, vec![37, 96], None, bytes);
        let (mut codes, mut scales) = (vec![0xEE; 37 * 96], vec![0; numeric::blocked_len(37, columns)]);
        let values = values.expect("its bytes").to_f32();
        for (block, (values, codes)) in values.chunks(16).zip(codes.chunks_mut(16)).enumerate() {
            let at = numeric::blocked_offset(block / columns, block % columns, columns);
            scales[at] = numeric::quantize_nvfp4_block(values, global, codes);
        }
        workload.expected = vec![numeric::pack_e2m1(&codes), scales];
        workload.inputs[1] = ("global".to_owned(), global.to_le_bytes().to_vec());
        workloads.push(workload);
    }
    check(text, &workloads);
}

/// Builds a kernel, and checks that it contains its instruction and has no spills.
fn built(toolchain: &Toolchain, source: &KernelSource) -> Artifact {
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
    let tools = BuildTools {
        nvcc: &toolchain.nvcc,
        include: toolchain.include.clone(),
        libraries: toolchain.libraries.clone(),
        cuobjdump: toolchain.cuobjdump.as_deref(),
        environment: ToolEnvironment::from_process(),
    };
    let artifact = build(&input, &tools, &BuildOptions::default())
        .unwrap_or_else(|error| panic!("{}: {error}", source.kernel));
    let resources = artifact.resources();
    println!(
        "{} {}: {:?} registers, {:?} and {:?} B spilled, {:?}, {} instructions, {:.0} s",
        source.target,
        source.kernel,
        resources.registers,
        resources.spill_stores,
        resources.spill_loads,
        resources.opcodes,
        resources.instructions,
        resources.compile_time.as_secs_f64()
    );
    assert!(resources.registers.is_some_and(|registers| registers > 16), "{resources:?}");
    assert!(resources.opcodes.keys().any(|opcode| opcode.starts_with(source.opcode)), "{resources:?}");
    artifact
}

fn toolchain() -> Toolchain {
    let options = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    locate(&options, &Environment::from_process())
        .unwrap_or_else(|error| panic!("{error}\n{}", error.remedy()))
}

#[test]
fn a_kernel_is_built_and_answers_without_a_gpu() {
    let source = configure("").source();
    let artifact = built(&toolchain(), &source);
    let resources = artifact.resources();
    assert_eq!((resources.spill_stores, resources.spill_loads), (Some(0), Some(0)));
    let kernel = Kernel::load(&artifact).expect("the library loads without a GPU");
    assert_eq!(kernel.metadata().kernel, source.kernel);
    assert_eq!((kernel.metadata().threads, kernel.metadata().stages), (256, None));
    let extents = Extents::new(&[3, 130, 112]);
    let requirements = kernel.query(&DEVICE, &extents).expect("the kernel supports the problem");
    assert_eq!((requirements.workspace, requirements.operands[0]), (0, 0));
    assert_eq!(requirements.outputs[..3], [3 * 130 * 56, 3 * 256 * 8, 0]);
    for row in [0, 1, 31, 32, 127, 128, 129] {
        for block in 0..7 {
            let ours = 2 * numeric::blocked_len(130, 7) + numeric::blocked_offset(row, block, 7);
            let theirs = kernel.scale_offset("y1", &extents, row as i64, block as i64, 2);
            assert_eq!(theirs, Some(ours as i64));
        }
    }
    assert_eq!(kernel.scale_offset("values", &extents, 0, 0, 0), None);
    let refused = |extents: &[i64]| {
        kernel.query(&DEVICE, &Extents::new(extents)).expect_err("the extents are invalid").message
    };
    assert!(refused(&[3, 130, 2, 112]).contains("the extents are L, M, K"));
    assert!(refused(&[3, 130, 120]).contains("not a multiple of 16"));
    assert!(refused(&[3, 130, 0]).contains("K is zero"));
    let empty = kernel.query(&DEVICE, &Extents::new(&[3, 0, 112])).expect("the call is valid");
    assert_eq!(empty.outputs[..2], [0, 0]);
    grids_are_within_what_a_launch_takes(&kernel);
}

/// The grid is one-dimensional. The size of the scales, 512 bytes per 128 rows, limits the extents: at the limit of
/// each extent a launch is within CUDA's grid limits, and one beyond it is rejected. A CTA of 256 threads has 4 rows
/// of 1024 values.
fn grids_are_within_what_a_launch_takes(kernel: &Kernel) {
    const MOST: i64 = (1 << 22) - 1;
    for (limit, beyond, blocks) in [
        ([MOST, 1, 16], [MOST + 1, 1, 16], MOST * 32),
        ([1, MOST * 128, 16], [1, MOST * 128 + 1, 16], MOST * 32),
        ([1, 1, MOST * 64], [1, 1, MOST * 64 + 16], 32 * (MOST * 64).div_euclid(1024) + 32),
    ] {
        let grid = kernel
            .grid(&DEVICE, &Extents::new(&limit))
            .expect("the kernel supports the problem")
            .expect("the library states its grid");
        assert_eq!(grid.map(i64::from), [blocks, 1, 1], "{limit:?}");
        let refused =
            kernel.query(&DEVICE, &Extents::new(&beyond)).expect_err("the problem is beyond the limit");
        assert_eq!(refused.code, kernel::Status::EXTENT, "{refused}");
    }
    let nothing = kernel.grid(&DEVICE, &Extents::new(&[0, 1, 16]));
    assert_eq!(nothing, Ok(Some([0, 0, 0])));
}

/// Takes minutes. Run it after a change of the template or a rule, and read its output.
#[cfg(feature = "full")]
#[test]
fn every_target_builds_what_is_simulated_and_nothing_spills() {
    let toolchain = toolchain();
    for text in SIMULATED {
        for on in ["sm_100a", "sm_103a", "sm_120a", "sm_121a", "sm_90a"] {
            let source = try_configure(text, on).expect("the settings are valid").source();
            let artifact = built(&toolchain, &source);
            let resources = artifact.resources();
            assert_eq!((resources.spill_stores, resources.spill_loads), (Some(0), Some(0)), "{text} {on}");
            Kernel::load(&artifact).expect("the library loads without a GPU");
        }
    }
}
