//! Kernels really built for every target, without a GPU: the instructions that they must contain, what they cost,
//! and whether their own answers agree with what the plan promises.
//!
//! Each run builds one NVFP4 kernel for each target, one MXFP4 kernel for each family, and a kernel for each family of one
//! of the programs `fixtures/gemm/dag_*.fir`, taking turns through configurations and epilogues; `--features full` builds
//! every default configuration of both formats, every activation, and every one of those programs for both families,
//! and its log is `docs/full-build.log`.

use std::sync::OnceLock;

use fourfold::codegen::configuration::{Configuration, CutlassVersion};
use fourfold::codegen::{
    Epilogue, KernelSpec, Operand as EpilogueOperand, Step, StepKind, capabilities, defaults, emit, emulate,
    stages, target,
};
use fourfold::ir::{BinaryKind, BlockFormat, Dim, ElementType, OperandShape, UnaryKind, numeric, text};
use fourfold::kernels::{
    BuiltKernel, PlannedKernel, build_kernels, cutlass_version, planned_kernels, toolchain,
};
use fourfold::scheduler::EpilogueRef;
use fourfold_executor::kernel::{Device, Kernel, Operand, Problem};
use fourfold_executor::toolchain::ToolchainOptions;
use fourfold_executor::{Artifact, BuildOptions};
use fourfold_tests::random::Random;

const TARGETS: [&str; 4] = ["sm_100a", "sm_103a", "sm_120a", "sm_121a"];
const DEVICE: Device = Device { sm_count: 148, max_active_clusters: 74 };
const SECONDS_A_DAY: u64 = 86_400;

/// The turn: one a day, so that a failure stays where it is while it is looked into.
fn turn() -> usize {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    (now.as_secs() / SECONDS_A_DAY) as usize
}

/// Steps of which each uses the one before, and what they read.
#[derive(Default)]
struct Chain {
    steps: Vec<Step>,
    operands: Vec<EpilogueOperand>,
}

impl Chain {
    fn then(&mut self, kind: StepKind, read: Option<ElementType>, element: ElementType) {
        let last = self.steps.len().checked_sub(1);
        let mut operands = vec![last.map_or(EpilogueRef::Accumulator, EpilogueRef::Step)];
        operands.extend(read.map(|_| EpilogueRef::Operand(self.operands.len())));
        self.operands.extend(read.map(|element| EpilogueOperand { shape: OperandShape::Row, element }));
        self.steps.push(Step { kind, operands, element });
    }
}

/// An epilogue by number: every activation and output type, with and without alpha, C, beta and a row.
fn epilogue(index: usize) -> Epilogue {
    const OUTPUTS: [ElementType; 3] = [ElementType::BF16, ElementType::F16, ElementType::F32];
    let output = OUTPUTS[index % 3];
    let mut chain = Chain::default();
    if index % 4 != 3 {
        let row = OUTPUTS[(index / 2) % 3];
        chain.then(StepKind::Binary(BinaryKind::Add), Some(row), ElementType::F32);
    }
    let activation = UnaryKind::ALL[index % UnaryKind::ALL.len()];
    chain.then(StepKind::Unary(activation), None, ElementType::F32);
    if output != ElementType::F32 {
        chain.then(StepKind::Convert, None, output);
    }
    let c = (index % 5 == 2).then_some(OUTPUTS[(index + 1) % 3]);
    Epilogue {
        alpha: index.is_multiple_of(2),
        c,
        beta: c.is_some() && index % 4 == 2,
        accumulator: ElementType::F32,
        steps: chain.steps,
        operands: chain.operands,
    }
}

/// The epilogue that most layers have, with which no default may spill.
fn usual_epilogue() -> Epilogue {
    let mut chain = Chain::default();
    chain.then(StepKind::Binary(BinaryKind::Add), Some(ElementType::BF16), ElementType::F32);
    chain.then(StepKind::Convert, None, ElementType::BF16);
    Epilogue {
        alpha: true,
        c: None,
        beta: false,
        accumulator: ElementType::F32,
        steps: chain.steps,
        operands: chain.operands,
    }
}

/// The kernels of the programs with epilogues of many forms, in the order of their files.
fn dags(name: &str, cutlass: CutlassVersion) -> Vec<KernelSpec> {
    let backend = fourfold_tests::backend(name).expect("a known target");
    let is_dag = |file: &std::path::PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("dag_"))
    };
    let files = fourfold_tests::fixtures().expect("fixtures can be listed").into_iter().filter(is_dag);
    let specs: Vec<KernelSpec> = files
        .map(|file| {
            let source = std::fs::read_to_string(&file).expect("a fixture can be read");
            let Ok((program, _)) = text::load(&source) else { panic!("{} is not valid", file.display()) };
            let mut kernels = planned_kernels(&backend.plan(program), cutlass, false);
            assert_eq!(kernels.len(), 1, "{}", file.display());
            kernels.remove(0).spec
        })
        .collect();
    assert!(specs.len() >= 12, "there are {}", specs.len());
    specs
}

fn spec(name: &str, configuration: &Configuration, epilogue: Epilogue) -> KernelSpec {
    let configuration = configuration.with_elements(epilogue.source(), epilogue.output());
    KernelSpec { target: target(name).expect("a known target"), configuration, epilogue }
}

fn specs(cutlass: CutlassVersion) -> Vec<KernelSpec> {
    let of = |name: &str, format: BlockFormat| {
        defaults::defaults(defaults::family(name).expect("a Blackwell"), format, cutlass)
    };
    if cfg!(feature = "full") {
        let mut specs: Vec<KernelSpec> = TARGETS
            .iter()
            .flat_map(|name| [BlockFormat::NVFP4, BlockFormat::MXFP4].map(|format| (name, of(name, format))))
            .flat_map(|(name, defaults)| defaults.into_iter().map(|it| spec(name, &it, usual_epilogue())))
            .collect();
        specs.extend((0..UnaryKind::ALL.len()).map(|index| {
            let name = if index.is_multiple_of(2) { "sm_100a" } else { "sm_120a" };
            let configurations = of(name, BlockFormat::NVFP4);
            spec(name, &configurations[index / 2 % configurations.len()], epilogue(index))
        }));
        specs.extend(["sm_100a", "sm_120a"].into_iter().flat_map(|name| dags(name, cutlass)));
        return specs;
    }
    let mut specs: Vec<KernelSpec> = TARGETS
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let configurations = of(name, BlockFormat::NVFP4);
            let choice = &configurations[(turn() + index) % configurations.len()];
            // Two of the four have the usual epilogue, two take their turn.
            let epilogue = if index % 2 == turn() % 2 { usual_epilogue() } else { epilogue(turn() + index) };
            spec(name, choice, epilogue)
        })
        .collect();
    specs.extend([&TARGETS[..2], &TARGETS[2..]].into_iter().enumerate().map(|(index, targets)| {
        let name = targets[turn() % 2];
        let configurations = of(name, BlockFormat::MXFP4);
        let choice = &configurations[turn() / 2 % configurations.len()];
        let usual = (turn() / 4 + index).is_multiple_of(2);
        spec(name, choice, if usual { usual_epilogue() } else { epilogue(turn() + index) })
    }));
    specs.extend([&TARGETS[..2], &TARGETS[2..]].into_iter().enumerate().map(|(index, targets)| {
        let mut dags = dags(targets[(turn() + 1) % 2], cutlass);
        // Each of the families is half a round ahead of the other.
        let count = dags.len();
        dags.swap_remove((turn() + index * count / 2) % count)
    }));
    specs
}

fn format(spec: &KernelSpec) -> BlockFormat {
    spec.configuration.block_format().expect("a format that programs have")
}

struct Builds {
    cutlass: CutlassVersion,
    good: Vec<BuiltKernel>,
    /// A kernel of one family, compiled for the other.
    crossed: BuiltKernel,
    /// A kernel of sm_120a that is to run on a Hopper GPU.
    emulated: BuiltKernel,
    /// The same, with rows of A looked for in the wrong registers.
    misread: BuiltKernel,
}

/// Everything is built once, at most two at a time on two cores.
fn builds() -> &'static Builds {
    static BUILDS: OnceLock<Builds> = OnceLock::new();
    BUILDS.get_or_init(|| {
        let options = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
        let toolchain = toolchain(&options, &mut |line| eprintln!("{line}"))
            .unwrap_or_else(|error| panic!("{error}\n{}", error.remedy()));
        let planned = |spec: KernelSpec| PlannedKernel {
            segment: 0,
            source: emit(&spec),
            why: "a test".to_owned(),
            spec,
        };
        let cutlass = cutlass_version(&toolchain);
        let mut kernels: Vec<PlannedKernel> = specs(cutlass).into_iter().map(planned).collect();
        let family = defaults::family("sm_120a").expect("a Blackwell");
        let sm120 = defaults::defaults(family, BlockFormat::NVFP4, CutlassVersion::PINNED);
        let mut crossed = planned(spec("sm_120a", &sm120[0], usual_epilogue()));
        crossed.source.architecture = "100a";
        crossed.source.text.push_str("// for another architecture\n");
        kernels.push(crossed);
        let mut emulated = planned(spec("sm_120a", &sm120[turn() % sm120.len()], epilogue(turn())));
        emulated.source = emulate(&emulated.source).expect("the family can be emulated");
        let mut misread = emulated.clone();
        let map = "register_of_a(int m, int k) { return m / 8 + 2 * (k / 32); }";
        let prelude = emulated.source.prelude.expect("it has one");
        assert!(prelude.contains(map), "the prelude states its map of A");
        let wrong = prelude.replace(map, "register_of_a(int m, int k) { return 2 * (m / 8) + k / 32; }");
        misread.source.prelude = Some(Box::leak(wrong.into_boxed_str()));
        kernels.extend([emulated, misread]);
        // What a static holds is never dropped: its folders lie where the next run finds and removes them.
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).expect("the folder for kernels can be made");
        let options = BuildOptions { temp_dir: Some(folder), ..BuildOptions::default() };
        let mut built = build_kernels(kernels, &toolchain, &options, &|line| eprintln!("{line}"));
        let mut last = || built.pop().expect("every kernel has an outcome");
        let (misread, emulated, crossed) = (last(), last(), last());
        Builds { cutlass, good: built, crossed, emulated, misread }
    })
}

fn artifact(built: &BuiltKernel) -> &Artifact {
    built.outcome.as_ref().unwrap_or_else(|failure| {
        panic!("{}: {} ({})", built.planned.source.kernel, failure.message, failure.code)
    })
}

#[test]
fn every_target_builds_with_its_mma_and_without_spills() {
    for built in &builds().good {
        let resources = artifact(built).resources();
        let (kernel, opcode) = (&built.planned.source.kernel, built.planned.source.opcode);
        let configuration = &built.planned.spec.configuration;
        println!(
            "{} {kernel}: {} registers, {} B spilled, {} stages, {} B shared, {} threads, {:?}, {:.0} s",
            built.planned.spec.target.name,
            resources.registers.expect("the compiler reports registers"),
            resources.spill_stores.expect("the compiler reports spills"),
            resources.stages.expect("the library reports stages"),
            resources.shared_memory,
            resources.threads,
            resources.opcodes,
            resources.compile_time.as_secs_f64(),
        );
        assert!(resources.opcodes.keys().any(|found| found.starts_with(opcode)), "{kernel} has {opcode}");
        if built.planned.spec.epilogue == usual_epilogue() {
            assert_eq!((resources.spill_stores, resources.spill_loads), (Some(0), Some(0)), "{kernel}");
        }
        // MXFP4 with a 16-bit C takes all that Sm120 has: a byte more, and no launch succeeds.
        let budget = stages::budget(configuration, builds().cutlass).expect("a default has a budget");
        assert!(resources.shared_memory <= budget.capacity, "{kernel}: {budget:?}");
        // Fused vectors take shared memory that the formula does not count: a stage may be lost, none appears.
        let formula = stages::stages(configuration, builds().cutlass).expect("a default has stages");
        assert!(
            resources.stages.is_some_and(|stages| 2 <= stages && stages <= formula),
            "{kernel}: {formula}"
        );
    }
}

#[test]
fn the_mma_is_that_of_the_format() {
    for built in &builds().good {
        let mmas = artifact(built).resources().opcodes.keys().filter(|opcode| opcode.contains("OMMA"));
        let (target, format) = (built.planned.spec.target.name, format(&built.planned.spec));
        // Each number of scales per instruction has its own name; `.2CTA` marks an instruction of two SMs.
        let expected = match (target, format) {
            ("sm_100a", BlockFormat::NVFP4) => "UTCOMMA.4X",
            ("sm_103a", BlockFormat::NVFP4) => "UTCOMMA.BLOCK16",
            ("sm_100a" | "sm_103a", BlockFormat::MXFP4) => "UTCOMMA",
            (_, BlockFormat::NVFP4) => "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X",
            _ => "OMMA.SF.16864.F32.E2M1.E2M1.E8",
        };
        for mma in mmas {
            assert_eq!(mma.replace(".2CTA", ""), expected, "{target} {format}");
        }
    }
}

#[test]
fn a_wrong_architecture_is_caught_by_the_census() {
    let failure = builds().crossed.outcome.as_ref().expect_err("it has no MMA");
    assert_eq!(failure.code, "no_mma", "{}", failure.message);
}

#[test]
fn an_emulated_kernel_has_what_stands_for_the_mma_and_no_invalid_path() {
    let built = &builds().emulated;
    let resources = artifact(built).resources();
    let count = |opcode: &str| -> usize {
        let found = resources.opcodes.iter().filter(|(name, _)| name.starts_with(opcode));
        found.map(|(_, count)| count).sum()
    };
    println!("{}: {:?}, {} traps", built.planned.source.kernel, resources.opcodes, resources.traps);
    assert!(count("IDP.4A") > 0, "{:?}", resources.opcodes);
    assert_eq!((count("OMMA"), resources.traps), (0, 0), "{:?}", resources.opcodes);
    // It is the kernel of its target in every other way.
    let kernel = Kernel::load(artifact(built)).expect("it loads without a GPU");
    assert_eq!(kernel.metadata().target, "sm_120a");
    assert_eq!(built.planned.source.text, emit(&built.planned.spec).text, "the shipped source");
}

#[test]
fn a_map_of_fragments_that_is_not_the_library_s_does_not_compile() {
    let failure = builds().misread.outcome.as_ref().expect_err("the map is wrong");
    assert_eq!(failure.code, "compile_error");
    assert!(failure.message.contains("the fragment map of A is not CuTe's"), "{}", failure.message);
}

/// What the plan of such a kernel promises: the call is right exactly when these hold.
fn meets_the_rules(spec: &KernelSpec, problem: &Problem) -> bool {
    let capabilities = capabilities(spec.target.name).expect("a known target");
    let format = capabilities.format(format(spec)).expect("a format of the target");
    let extents = [problem.l, problem.m, problem.n, problem.k];
    if extents.iter().any(|extent| *extent < 0 || format.max_extent < *extent as u64) {
        return false;
    }
    if problem.l == 0 || problem.m == 0 {
        return true; // nothing is launched
    }
    let scale_bytes = |rows: i64| {
        let matrix =
            numeric::checked_blocked_len(rows as usize, problem.k as usize / format.format.block as usize);
        matrix
            .and_then(|bytes| bytes.checked_mul(problem.l as usize))
            .is_some_and(|bytes| bytes as u64 <= format.max_scale_bytes)
    };
    if !scale_bytes(problem.m) || !scale_bytes(problem.n) {
        return false;
    }
    let divides = |extent: i64, of: u64| Dim::fixed(extent as u64).is_multiple_of(of);
    let d = format.output(spec.epilogue.output()).expect("an output type").n_multiple;
    let c = spec.epilogue.c.map_or(1, |c| format.c(c).expect("a type of C").n_multiple);
    problem.n > 0
        && problem.k > 0
        && divides(problem.k, format.k_multiple)
        && divides(problem.n, d)
        && divides(problem.n, c)
        && spec.epilogue.operands.iter().all(|operand| {
            let rule = format.epilogue.operand(operand.shape).and_then(|rule| rule.element(operand.element));
            divides(problem.n, rule.expect("a type that is read").n_multiple)
        })
}

#[test]
fn kernels_accept_exactly_what_the_plan_promises() {
    const SHAPES: usize = 200;
    for built in &builds().good {
        let kernel = Kernel::load(artifact(built)).expect("it loads without a GPU");
        let mut random = Random::new(0xACCE);
        let (mut good, mut bad) = (0, 0);
        let block = format(&built.planned.spec).block as usize;
        for _ in 0..SHAPES {
            let problem = Problem {
                l: random.pick(&[1, 1, 1, 2, 3, 0]),
                m: random.pick(&[0, 1, 37, 91, 128, 129, 130, 257, 1000]),
                n: random.pick(&[4, 8, 12, 24, 40, 72, 100, 136, 7, 256, 264, 0]),
                // 2^28 has scales of 2^30 bytes per 128 rows in MXFP4, and of 2^31 in NVFP4.
                k: random.pick(&[32, 96, 160, 256, 480, 7168, 48, 16, 40, 0, 3 << 32, 1 << 30, 1 << 28]),
            };
            let expected = meets_the_rules(&built.planned.spec, &problem);
            let answer = kernel.query(&DEVICE, &problem);
            assert_eq!(
                answer.is_ok(),
                expected,
                "{problem:?}: {answer:?} of {}",
                built.planned.source.kernel
            );
            good += usize::from(expected);
            bad += usize::from(!expected);
            let Ok(requirements) = answer else { continue };
            if problem.l == 0 || problem.m == 0 {
                assert_eq!((requirements.workspace, requirements.sfa, requirements.sfb), (0, 0, 0));
                continue;
            }
            let columns = problem.k as usize / block;
            let bytes = |rows: i64| problem.l as usize * numeric::blocked_len(rows as usize, columns);
            assert_eq!(requirements.sfa as usize, bytes(problem.m), "{problem:?}");
            assert_eq!(requirements.sfb as usize, bytes(problem.n), "{problem:?}");
            assert!(
                requirements.workspace < 1 << 24,
                "a persistent kernel needs little: {}",
                requirements.workspace
            );
        }
        assert!(good >= SHAPES / 10 && bad >= SHAPES / 10, "{good} good and {bad} bad shapes");
    }
}

#[test]
fn scales_lie_where_the_kernel_library_says() {
    for built in &builds().good {
        let kernel = Kernel::load(artifact(built)).expect("it loads without a GPU");
        let mut random = Random::new(0x5CA1E);
        for (m, n, k, l) in [(1, 8, 32, 1), (130, 72, 96, 3), (37, 264, 160, 2), (257, 136, 1056, 1)] {
            let problem = Problem { l, m, n, k };
            for (operand, rows) in [(Operand::A, m), (Operand::B, n)] {
                let columns = k as usize / format(&built.planned.spec).block as usize;
                let matrix = numeric::blocked_len(rows as usize, columns);
                for _ in 0..100 {
                    let row = random.below(rows as usize);
                    let block = random.below(columns);
                    let batch = random.below(l as usize);
                    let ours = batch * matrix + numeric::blocked_offset(row, block, columns);
                    let theirs =
                        kernel.scale_offset(operand, &problem, row as i64, block as i64, batch as i64);
                    assert_eq!(theirs, ours as i64, "{operand:?} ({row}, {block}, {batch}) of {problem:?}");
                }
            }
        }
    }
}
