//! Builds kernels for every target without a GPU and checks their instructions, their resources, and whether
//! their own answers agree with the promises of the plan.
//!
//! Each run builds one NVFP4 kernel for each target, one MXFP4 kernel for each family, and for each family of Blackwell one kernel
//! with an operand of FP6 or FP8, and one for groups of rows, rotating through configurations and epilogues. `--features full` builds every default
//! configuration of every format and every activation. `dags.rs` builds epilogues of other forms.
//!
//! `kernels/host.rs` compiles only the host code, for every format with an FP6 or FP8 operand, and for groups of rows.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use fourfold::codegen::Extents;
use fourfold::codegen::cutlass::{CutlassVersion, defaults};
use fourfold::codegen::{
    Design, Epilogue, Groups, Operand as EpilogueOperand, Output, OutputKind, ScaledMmaSpec, Step, StepKind,
    UNARY_FUNCTIONS, capabilities, emulate, emulated_capabilities, hopper, select, target,
};
use fourfold::ir::{BinaryKind, BlockFormat, Capabilities, ElementType, OperandShape};
use fourfold::kernels::{BuiltKernel, PlannedKernel, build_input};
use fourfold::scheduler::EpilogueRef;
use fourfold_executor::kernel::Kernel;
use fourfold_executor::{BuildOptions, ptx_flags};
use fourfold_tests::answers::{check_acceptance, check_grid, check_scale_places};
use fourfold_tests::built::{
    artifact, build, check_resources, check_tensor_memory, cutlass, describe, format, loaded, planned,
    scaled_mma, toolchain, turn,
};

#[path = "kernels/host.rs"]
mod host;

/// The targets; those of a family are adjacent.
const TARGETS: [&str; 5] = ["sm_100a", "sm_103a", "sm_120a", "sm_121a", "sm_90a"];

/// A chain of steps, each of which reads the one before, and their operands.
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

    /// Returns the output: the last step.
    fn written(&self) -> Vec<Output> {
        vec![Output { of: EpilogueRef::Step(self.steps.len() - 1), kind: OutputKind::Value }]
    }
}

/// Returns an epilogue by number: every activation and output type, with and without alpha, C, beta and a row.
fn epilogue(index: usize) -> Epilogue {
    const OUTPUTS: [ElementType; 3] = [ElementType::BF16, ElementType::F16, ElementType::F32];
    let output = OUTPUTS[index % 3];
    let mut chain = Chain::default();
    if index % 4 != 3 {
        let row = OUTPUTS[(index / 2) % 3];
        chain.then(StepKind::Binary(BinaryKind::Add), Some(row), ElementType::F32);
    }
    let activation = UNARY_FUNCTIONS[index % UNARY_FUNCTIONS.len()];
    chain.then(StepKind::Unary(activation), None, ElementType::F32);
    if output != ElementType::F32 {
        chain.then(StepKind::Convert, None, output);
    }
    let outputs = chain.written();
    let c = (index % 5 == 2).then_some(OUTPUTS[(index + 1) % 3]);
    Epilogue {
        pair: false,
        alpha: index.is_multiple_of(2),
        c,
        beta: c.is_some() && index % 4 == 2,
        accumulator: ElementType::F32,
        steps: chain.steps,
        operands: chain.operands,
        outputs,
    }
}

/// Returns the epilogue that most layers have, with which no default may spill.
fn usual_epilogue() -> Epilogue {
    let mut chain = Chain::default();
    chain.then(StepKind::Binary(BinaryKind::Add), Some(ElementType::BF16), ElementType::F32);
    chain.then(StepKind::Convert, None, ElementType::BF16);
    let outputs = chain.written();
    Epilogue {
        pair: false,
        alpha: true,
        c: None,
        beta: false,
        accumulator: ElementType::F32,
        steps: chain.steps,
        operands: chain.operands,
        outputs,
    }
}

fn spec(name: &str, design: &Design, epilogue: Epilogue) -> ScaledMmaSpec {
    let configuration = match design {
        Design::Cutlass(configuration) => {
            configuration.with_elements(epilogue.source(), epilogue.destination()).into()
        }
        Design::Hopper(_) => design.clone(),
    };
    ScaledMmaSpec { target: target(name).expect("a known target"), configuration, epilogue }
}

/// Returns the default configurations of a target.
fn designs(name: &str, format: BlockFormat, cutlass: CutlassVersion) -> Vec<Design> {
    match defaults::family(name) {
        Some(family) => {
            select::cutlass::defaults(family, format, cutlass).into_iter().map(Design::from).collect()
        }
        // All tiles in one source, for an unknown M; those for large M, and those for small M.
        None => [None, Some(4096), Some(16)]
            .into_iter()
            .filter_map(|m| select::hopper::choose(format, Extents { l: Some(1), m, n: None, k: None }, true))
            .map(|(configuration, _)| configuration.into())
            .collect(),
    }
}

/// The formats of Blackwell's kernels of groups of rows.
const GROUP_FORMATS: [BlockFormat; 3] =
    [BlockFormat::NVFP4, BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 }, BlockFormat::MXFP4];

/// Returns the kernel of a target of Blackwell for groups of rows with an alpha each.
fn of_groups(name: &str, format: BlockFormat) -> Design {
    let family = defaults::family(name).expect("a target of Blackwell");
    let groups = Groups { has_alphas: true, masked: false, blocked: false };
    select::cutlass::choose_of_groups(family, format, groups).expect("a kernel").0.into()
}

/// Returns the formats of a target of Blackwell that have an operand of FP6 or FP8.
fn formats_of_bytes(name: &str) -> Vec<BlockFormat> {
    of_bytes(capabilities(name))
}

/// Returns those of them that can be emulated.
fn emulated_formats_of_bytes(name: &str) -> Vec<BlockFormat> {
    of_bytes(emulated_capabilities(name))
}

fn of_bytes(capabilities: Option<Capabilities>) -> Vec<BlockFormat> {
    let formats = capabilities.expect("a known target").formats.into_iter().map(|rules| rules.format);
    formats.filter(|format| ![format.a, format.b].iter().all(|it| *it == ElementType::F4E2M1FN)).collect()
}

/// The formats of sm_90a other than FP4 by FP4.
const HOPPER_FORMATS: [BlockFormat; 11] = [
    BlockFormat::NVFP4.weight_only(ElementType::BF16),
    BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
    BlockFormat { a: ElementType::F8E4M3FN, b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
    BlockFormat::MXFP4.weight_only(ElementType::BF16),
    BlockFormat { a: ElementType::F8E5M2, ..BlockFormat::MXFP4 },
    BlockFormat { a: ElementType::F8E5M2, b: ElementType::F8E5M2, ..BlockFormat::MXFP4 },
    BlockFormat::NVFP4.weight_only(ElementType::F16),
    BlockFormat { b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
    BlockFormat { a: ElementType::BF16, b: ElementType::F8E5M2, ..BlockFormat::MXFP4 },
    BlockFormat::MXFP4.weight_only(ElementType::F16),
    BlockFormat { a: ElementType::F16, b: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
];

fn specs(cutlass: CutlassVersion) -> Vec<ScaledMmaSpec> {
    let of = |name: &str, format: BlockFormat| designs(name, format, cutlass);
    if cfg!(feature = "full") {
        let mut specs: Vec<ScaledMmaSpec> = TARGETS
            .iter()
            .flat_map(|name| {
                let bytes = if *name == hopper::TARGET { Vec::new() } else { formats_of_bytes(name) };
                let formats = [BlockFormat::NVFP4, BlockFormat::MXFP4].into_iter().chain(bytes);
                formats.map(move |format| (name, of(name, format)))
            })
            .flat_map(|(name, defaults)| defaults.into_iter().map(|it| spec(name, &it, usual_epilogue())))
            .collect();
        let of_hopper = HOPPER_FORMATS.into_iter().flat_map(|format| of(hopper::TARGET, format));
        specs.extend(of_hopper.map(|it| spec(hopper::TARGET, &it, usual_epilogue())));
        specs.extend((0..UNARY_FUNCTIONS.len()).map(|index| {
            let name = if index.is_multiple_of(2) { "sm_100a" } else { "sm_120a" };
            let configurations = of(name, BlockFormat::NVFP4);
            spec(name, &configurations[index / 2 % configurations.len()], epilogue(index))
        }));
        return specs;
    }
    let mut specs: Vec<ScaledMmaSpec> = TARGETS
        .iter()
        .enumerate()
        .map(|(index, name)| {
            let configurations = of(name, BlockFormat::NVFP4);
            let choice = &configurations[(turn() + index) % configurations.len()];
            // Every second kernel has the usual epilogue, the rest rotate.
            let epilogue = if index % 2 == turn() % 2 { usual_epilogue() } else { epilogue(turn() + index) };
            spec(name, choice, epilogue)
        })
        .collect();
    let families = [&TARGETS[..2], &TARGETS[2..4], &TARGETS[4..]];
    specs.extend(families.into_iter().enumerate().map(|(index, targets)| {
        let name = targets[turn() % targets.len()];
        let configurations = of(name, BlockFormat::MXFP4);
        let choice = &configurations[turn() / 2 % configurations.len()];
        let usual = (turn() / 4 + index).is_multiple_of(2);
        spec(name, choice, if usual { usual_epilogue() } else { epilogue(turn() + index) })
    }));
    // Another format each day. Once all had their turn, they come with another tile, and then for another target.
    specs.extend(families[..2].iter().enumerate().map(|(index, targets)| {
        let formats = formats_of_bytes(targets[0]);
        let number = turn() + index * formats.len() / 2;
        let (format, round) = (formats[number % formats.len()], number / formats.len());
        let tiles = of(targets[0], format).len();
        let name = targets[round / tiles % targets.len()];
        let choice = &of(name, format)[round % tiles];
        let usual = (number + round).is_multiple_of(2);
        spec(name, choice, if usual { usual_epilogue() } else { epilogue(number) })
    }));

    // Groups of rows, for each family, with another format and target each day.
    specs.extend(families[..2].iter().enumerate().map(|(index, targets)| {
        let number = turn() + index;
        let name = targets[number / GROUP_FORMATS.len() % targets.len()];
        spec(name, &of_groups(name, GROUP_FORMATS[number % GROUP_FORMATS.len()]), usual_epilogue())
    }));

    // One of the other formats of Hopper, with all tiles.
    let format = HOPPER_FORMATS[turn() % HOPPER_FORMATS.len()];
    specs.push(spec(hopper::TARGET, &of(hopper::TARGET, format)[0], usual_epilogue()));
    specs
}

/// Held by tests that compile beside each other on two threads: more compilers exceed the machine's memory.
static COMPILERS: Mutex<()> = Mutex::new(());

struct Builds {
    good: Vec<BuiltKernel>,
    /// A kernel of one family, compiled for another.
    crossed: BuiltKernel,
    /// A kernel of sm_120a for an emulating Hopper GPU.
    emulated: BuiltKernel,
    /// The same, with a wrong register mapping for the rows of A.
    misread: BuiltKernel,
}

/// Builds everything once, at most two kernels at a time on two cores.
fn builds() -> &'static Builds {
    static BUILDS: OnceLock<Builds> = OnceLock::new();
    BUILDS.get_or_init(|| {
        let cutlass = cutlass();
        let mut kernels: Vec<PlannedKernel> = specs(cutlass).into_iter().map(planned).collect();
        let sm120 = |format: BlockFormat| designs("sm_120a", format, cutlass);
        let mut crossed = planned(spec("sm_120a", &sm120(BlockFormat::NVFP4)[0], usual_epilogue()));
        crossed.source.architecture = "100a";
        crossed.source.text.push_str("// for another architecture\n");
        kernels.push(crossed);
        let bytes = emulated_formats_of_bytes("sm_120a");
        let format =
            if turn().is_multiple_of(2) { BlockFormat::NVFP4 } else { bytes[turn() / 2 % bytes.len()] };
        let configurations = sm120(format);
        let choice = &configurations[turn() % configurations.len()];
        let mut emulated = planned(spec("sm_120a", choice, epilogue(turn())));
        emulated.source = emulate(&emulated.source).expect("the family can be emulated");
        let mut misread = emulated.clone();
        let map = "register_of_a(int m, int k) { return m / 8 + 2 * (k / (K / 2)); }";
        let prelude = emulated.source.prelude.expect("an emulated source has a prelude");
        assert!(prelude.contains(map), "the prelude contains the map of A");
        let wrong = prelude.replace(map, "register_of_a(int m, int k) { return 2 * (m / 8) + k / (K / 2); }");
        misread.source.prelude = Some(Box::leak(wrong.into_boxed_str()));
        kernels.extend([emulated, misread]);
        // A static is never dropped, so its folder is at a fixed place that the next run clears.
        let mut built = build(kernels, Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
        let mut last = || built.pop().expect("every kernel has an outcome");
        let (misread, emulated, crossed) = (last(), last(), last());
        Builds { good: built, crossed, emulated, misread }
    })
}

#[test]
fn every_target_builds_with_its_mma_and_without_spills() {
    for built in &builds().good {
        println!("{}", describe(built));
        check_resources(built);
        if scaled_mma(built).epilogue == usual_epilogue() {
            let resources = artifact(built).resources();
            let kernel = &built.planned.source.kernel;
            let most = match &scaled_mma(built).configuration {
                Design::Cutlass(configuration) => defaults::spills(configuration),
                Design::Hopper(configuration) => configuration
                    .variants
                    .iter()
                    .map(|tile| tile.spills(configuration.format))
                    .max()
                    .unwrap_or_default(),
            };
            let few = |bytes: Option<u32>| bytes.is_some_and(|bytes| bytes <= most);
            assert!(few(resources.spill_stores) && few(resources.spill_loads), "{kernel}: {resources:?}");
        }
    }
}

/// `ptxas` serializes `wgmma` if it cannot prove that registers are untouched in between, or runs out of them.
/// The kernel is still correct, but a fifth slower, and only the log shows it.
#[test]
fn no_multiplication_of_warpgroups_waits_for_another() {
    for built in &builds().good {
        let log = artifact(built).log();
        assert!(log.contains("ptxas info"), "{}: {log}", built.planned.source.kernel);
        let serialized = serialized(log);
        assert!(serialized.is_empty(), "{}: {serialized:#?}", built.planned.source.kernel);
    }
}

fn serialized(log: &str) -> Vec<&str> {
    log.lines().filter(|line| line.contains("wgmma.mma_async instructions are serialized")).collect()
}

/// Two CTAs share an SM if groups have few rows, so that registers are scarce.
#[test]
fn few_rows_of_groups_are_multiplied_without_waits_and_spills() {
    let _compilers = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let problem = Extents { l: Some(1), m: Some(128), n: None, k: None };
    let kernels = [BlockFormat::NVFP4, HOPPER_FORMATS[0], HOPPER_FORMATS[1]].map(|format| {
        let groups = Groups { has_alphas: true, masked: turn().is_multiple_of(2), blocked: false };
        // Groups are assumed to use a quarter of the rows of their matrices.
        let count = if groups.masked { 2 } else { 8 };
        let (configuration, _) =
            select::hopper::choose_of_groups(format, groups, problem, Some(count)).expect("a kernel");
        assert_eq!(configuration.variants, [hopper::Tile::new(16, 128)]);
        planned(spec(hopper::TARGET, &configuration.into(), usual_epilogue()))
    });
    let built = build(kernels.into(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("few_rows"));
    assert_eq!(built.len(), 3);
    for built in &built {
        let (log, resources) = (artifact(built).log(), artifact(built).resources());
        let kernel = &built.planned.source.kernel;
        assert!(log.contains("ptxas info") && serialized(log).is_empty(), "{kernel}: {log}");
        assert_eq!((resources.spill_stores, resources.spill_loads), (Some(0), Some(0)), "{kernel}: {log}");
        assert!(resources.opcodes.keys().any(|opcode| opcode.starts_with("HGMMA.64x16x16")), "{kernel}");
    }
}

/// Returns the SASS of a kernel's library.
fn disassembled(built: &BuiltKernel) -> String {
    let cuobjdump = toolchain().cuobjdump.as_ref().expect("the toolchain has a disassembler");
    let output = Command::new(cuobjdump)
        .arg("-sass")
        .arg(artifact(built).library())
        .output()
        .expect("cuobjdump starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Returns the kernels of sm_90a.
fn of_hopper() -> impl Iterator<Item = &'static BuiltKernel> {
    builds().good.iter().filter(|built| scaled_mma(built).target.name == hopper::TARGET)
}

/// Returns the SASS of the kernels of sm_90a.
fn hopper_texts() -> impl Iterator<Item = String> {
    of_hopper().map(disassembled)
}

/// Returns the functions of a disassembly, with their names.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("Function :").skip(1).map(|function| (function.lines().next().unwrap_or_default(), function))
}

/// Operands of `wgmma` are read from shared memory, whose stage is then released for the next load. Between the
/// read and the release there must be a wait for the read: a multiplication that uses the result. The compiler
/// preserves only the order in which reads are issued. Every lane releases B; a single lane releases A, which only
/// `wgmma` reads. Beside a 16-bit A that is loaded as it is, a stage of B is read and multiplied word by word before it is released.
#[test]
fn where_b_was_read_from_is_given_back_when_wgmma_has_them() {
    let mut seen = 0;
    for built in of_hopper() {
        let (text, format) = (disassembled(built), format(scaled_mma(built)));
        let by_words = format.is_weight_only() && !hopper::has_two_terms(format);
        for (name, function) in functions(&text).filter(|(_, function)| function.contains("HGMMA")) {
            // The first read without a multiplication, and true if a multiplied stage is not released yet.
            let (mut read, mut is_owed): (Option<&str>, bool) = (None, false);
            for line in function.lines() {
                if line.contains("LDS.128") {
                    read = read.or(Some(line));
                } else if line.contains("HGMMA") {
                    if let Some(read) = read.take() {
                        assert!(
                            by_words || !is_owed,
                            "{name}: an earlier stage is not released before {read}"
                        );
                        (seen, is_owed) = (seen + 1, true);
                    }
                } else if line.contains("SYNCS.ARRIVE")
                    && !line.contains('@')
                    && (is_owed || function_goes_on(function, line))
                {
                    assert_eq!(read, None, "{name}: {line}");
                    is_owed = false;
                }
            }
            assert!(!is_owed, "{name}: the last stage is not released");
        }
    }
    assert!(seen > 0, "no kernel was checked");
}

/// Warps that keep A in registers load B over memory that they have read before. The load must not overtake reads
/// still on their way to registers, so an earlier instruction has waited for each of them: it names a register
/// that the read writes.
#[test]
fn where_operands_were_b_is_asked_for_when_registers_have_them() {
    const READ: &str = "LDS.128 R";
    let (mut seen, mut loops) = (0, 0);
    for text in hopper_texts() {
        for (name, function) in functions(&text).filter(|(name, _)| name.contains("small_m_regs_kernel")) {
            // The first of four registers with the line of its read, and the addresses of the loads.
            let (mut awaited, mut copies): (Vec<(u32, &str)>, Vec<u32>) = (Vec::new(), Vec::new());
            let hexadecimal = |text: &str| u32::from_str_radix(text.trim(), 16).ok();
            for line in function.lines().filter_map(|line| line.split(';').next()) {
                let words = line.split(|c: char| !c.is_ascii_alphanumeric());
                let named: Vec<u32> = words.filter_map(|word| word.strip_prefix('R')?.parse().ok()).collect();
                awaited.retain(|(first, _)| {
                    !named.iter().any(|register| (*first..first + 4).contains(register))
                });
                if let Some((_, behind)) = line.split_once(READ) {
                    let first = behind.split(',').next().and_then(|first| first.parse().ok());
                    awaited.push((first.unwrap_or_else(|| panic!("{name}: {line}")), line));
                    seen += 1;
                } else if line.contains("UTMALDG.") {
                    assert_eq!(awaited, [], "{name}: {line}");
                    let address = line.split("/*").nth(1).and_then(|rest| rest.split("*/").next());
                    copies.push(address.and_then(hexadecimal).unwrap_or_else(|| panic!("{name}: {line}")));
                } else if let Some((_, target)) = line.split_once("BRA 0x") {
                    // The branch repeats a loop that contains loads.
                    let target = hexadecimal(target).unwrap_or_else(|| panic!("{name}: {line}"));
                    if copies.iter().any(|copy| *copy >= target) {
                        loops += 1;
                        assert_eq!(awaited, [], "{name}: {line}");
                    }
                }
            }
        }
    }
    assert!(seen > 0 && loops > 0, "no kernel was checked");
}

/// A kernel launched early begins before the memory it reads is written, except for tiled ones, which wait for A
/// only. It accesses nothing before it has waited, and does not let the next kernel begin, which would not wait
/// for this one. A prefetch into L2 is no read: other kernels' writes go through L2 too.
#[test]
fn who_begins_early_waits_before_memory_is_read() {
    const GLOBAL: [&str; 8] = ["LDG.", "LDGSTS.", "STG.", "UTMALDG.", "UBLKCP", "ATOMG.", "RED.", "PREEXIT"];
    let mut seen = 0;
    for text in hopper_texts() {
        for (name, function) in functions(&text).filter(|(_, function)| !function.contains("HGMMA.")) {
            let (before, _) = function.split_once("ACQBULK").unwrap_or_else(|| panic!("{name} lacks a wait"));
            let early = before.lines().find(|line| GLOBAL.iter().any(|global| line.contains(global)));
            assert_eq!(early, None, "{name}");
            seen += 1;
        }
    }
    assert!(seen > 0, "no kernel was checked");
}

/// Returns true if a multiplication follows a line; reads after the last one are those for D.
fn function_goes_on(function: &str, line: &str) -> bool {
    function.split_once(line).is_some_and(|(_, rest)| rest.contains("HGMMA"))
}

/// Returns the instruction of each tile in a source of sm_90a. All small-M tiles without e4m3 have the same one;
/// its name contains bf16, but not fp16.
fn mmas_of_tiles(configuration: &hopper::Configuration) -> BTreeSet<String> {
    let is_nvfp4 = configuration.format.scale == BlockFormat::NVFP4.scale;
    let operands = if is_nvfp4 && configuration.format.a != ElementType::BF16 { "" } else { ".BF16" };
    let of_tile = |tile: &hopper::Tile| {
        if tile.uses_e4m3() {
            return format!("QGMMA.64x{}x32.F32.E4M3.E4M3", 8 * tile.m);
        }
        let shape =
            if tile.is_small_m() { "HMMA.16816".to_owned() } else { format!("HGMMA.64x{}x16", tile.m) };
        format!("{shape}.F32{operands}")
    };
    configuration.variants.iter().map(of_tile).collect()
}

/// Returns the name of an element in the opcode of an MMA.
fn element_of_mma(element: ElementType) -> &'static str {
    match element {
        ElementType::F4E2M1FN => "E2M1",
        ElementType::F6E2M3FN => "E2M3",
        ElementType::F6E3M2FN => "E3M2",
        ElementType::F8E4M3FN => "E4M3",
        ElementType::F8E5M2 => "E5M2",
        other => panic!("no operand is of {other}"),
    }
}

#[test]
fn the_mma_is_that_of_the_format() {
    for built in &builds().good {
        let mmas = artifact(built).resources().opcodes.keys().filter(|opcode| opcode.contains("MMA"));
        let (target, format) = (scaled_mma(built).target.name, format(scaled_mma(built)));
        if let Design::Hopper(configuration) = &scaled_mma(built).configuration {
            assert_eq!(mmas.collect::<BTreeSet<_>>(), mmas_of_tiles(configuration).iter().collect());
            continue;
        }
        // Each number of scales per instruction has its own name; `.2CTA` marks an instruction of two SMs.
        let expected = match (target, format) {
            ("sm_100a", BlockFormat::NVFP4) => "UTCOMMA.4X",
            ("sm_103a", BlockFormat::NVFP4) => "UTCOMMA.BLOCK16",
            ("sm_100a" | "sm_103a", BlockFormat::MXFP4) => "UTCOMMA",
            ("sm_100a" | "sm_103a", _) => "UTCQMMA",
            (_, BlockFormat::NVFP4) => "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X",
            (_, BlockFormat::MXFP4) => "OMMA.SF.16864.F32.E2M1.E2M1.E8",
            (_, BlockFormat { a, b, .. }) => {
                &format!("QMMA.SF.16832.F32.{}.{}.E8", element_of_mma(a), element_of_mma(b))
            }
        };
        for mma in mmas {
            assert_eq!(mma.replace(".2CTA", ""), expected, "{target} {format}");
        }
    }
}

/// A process binds the C++ runtime to the first definitions it finds. If they were a kernel's, it could never be
/// unloaded.
#[test]
fn a_kernel_is_unloaded_with_its_last_handle() {
    let kernel = Kernel::load(artifact(&builds().good[0])).expect("the kernel loads");
    let library = kernel.path().to_owned();
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps can be read");
        maps.lines().any(|line| line.ends_with(library.to_str().expect("the path is UTF-8")))
    };
    assert!(is_mapped());
    drop(kernel);
    // Other tests may have the library loaded.
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_mapped() {
        assert!(Instant::now() < deadline, "{} stays", library.display());
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_wrong_architecture_is_caught_by_the_census() {
    let failure = builds().crossed.outcome.as_ref().expect_err("the kernel has no MMA");
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
    assert!(count(built.planned.source.opcode) > 0, "{:?}", resources.opcodes);
    let mmas = count("OMMA") + count("QMMA");
    assert_eq!((mmas, resources.traps), (0, 0), "{:?}", resources.opcodes);
    // In every other way it is the kernel of its target.
    let kernel = Kernel::load(artifact(built)).expect("the library loads without a GPU");
    assert_eq!(kernel.metadata().target, "sm_120a");
    assert_eq!(built.planned.source.text, scaled_mma(built).emit().text, "the shipped source");
}

/// Compiles the device code of an emulated kernel to PTX, rewrites it and assembles it, as a build does. Leaves out
/// the host code, which takes a third of a build.
fn assemble(kernel: &PlannedKernel, folder: &Path) -> Result<(), String> {
    let toolchain = toolchain();
    let run = |program: &Path, arguments: &[String]| {
        let output = Command::new(program).args(arguments).current_dir(folder).output();
        let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    };
    let write =
        |name: &str, text: &str| std::fs::write(folder.join(name), text).map_err(|error| error.to_string());
    write("kernel.cu", &kernel.source.text)?;
    write("prelude.cuh", kernel.source.prelude.ok_or("a prelude")?)?;
    let include = [toolchain.cutlass_include(), toolchain.include.clone()].concat();
    let include: Vec<String> = include.iter().map(|folder| format!("-I{}", folder.display())).collect();
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let input = build_input(&kernel.source);
    let flags = ptx_flags(&input, &BuildOptions::default()).ok_or("a translation")?;
    run(&toolchain.nvcc, &[flags, include.clone(), words("-o kernel.ptx kernel.cu")].concat())?;
    let library = "-ptx -rdc=true -DFOURFOLD_LIBRARY -std=c++17 --expt-relaxed-constexpr -arch=sm_90a -o library.ptx \
                   -include prelude.cuh -x=cu /dev/null";
    run(&toolchain.nvcc, &[include, words(library)].concat())?;
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).map_err(|error| error.to_string());
    let translate = input.translation.ok_or("a translation")?.translate;
    write("translated.ptx", &translate(&read("kernel.ptx")?, &read("library.ptx")?)?)?;
    run(&toolchain.nvcc, &words("-cubin -arch=sm_90a -o kernel.cubin translated.ptx"))
}

/// A third of the kernels in each run, which rotates once a day. `--features full` takes all of them. The formats with an
/// FP8 operand take turns.
#[test]
fn every_default_kernel_with_tensor_memory_is_rewritten_for_hopper() {
    let _ = builds();
    let _alone = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = emulated_formats_of_bytes("sm_100a");
    let formats = [BlockFormat::NVFP4, BlockFormat::MXFP4, bytes[turn() / 3 % bytes.len()]];
    let groups = GROUP_FORMATS[turn() / 3 % GROUP_FORMATS.len()];
    let of = |name| {
        let mut designs = formats.map(|format| designs(name, format, cutlass())).concat();
        designs.push(of_groups(name, groups));
        designs
    };
    let kernels: Vec<PlannedKernel> = ["sm_100a", "sm_103a"]
        .into_iter()
        .flat_map(|name| of(name).into_iter().map(move |design| spec(name, &design, usual_epilogue())))
        .map(|spec| {
            let mut kernel = planned(spec);
            kernel.source = emulate(&kernel.source).expect("the family can be emulated");
            kernel
        })
        .collect();
    assert!(kernels.len() >= 18, "{} kernels", kernels.len());
    let thirds = kernels.into_iter().enumerate();
    let is_due = |(index, _): &(usize, PlannedKernel)| cfg!(feature = "full") || index % 3 == turn() % 3;
    let kernels: Vec<PlannedKernel> = thirds.filter(is_due).map(|(_, kernel)| kernel).collect();
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(kernel) = kernels.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let folder = tempfile::tempdir().expect("a folder");
                    if let Err(error) = assemble(kernel, folder.path()) {
                        let failure = format!("{} {}: {error}", kernel.source.target, kernel.source.kernel);
                        failures.lock().expect("no thread panics with it").push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panicked with it");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn a_map_of_fragments_that_is_not_the_library_s_does_not_compile() {
    let failure = builds().misread.outcome.as_ref().expect_err("the fragment map is wrong");
    assert_eq!(failure.code, "compile_error");
    assert!(failure.message.contains("the fragment map of A is not CuTe's"), "{}", failure.message);
}

#[test]
fn kernels_accept_exactly_what_the_plan_promises() {
    builds().good.iter().for_each(|built| check_acceptance(scaled_mma(built), &loaded(built)));
}

#[test]
fn a_grid_that_no_launch_takes_is_refused_and_one_at_the_limit_is_not() {
    builds().good.iter().for_each(|built| check_grid(scaled_mma(built), &loaded(built)));
}

#[test]
fn scales_lie_in_tensor_memory_where_the_rule_says() {
    let of_tcgen05 =
        builds().good.iter().filter(|built| ["UTCOMMA", "UTCQMMA"].contains(&built.planned.source.opcode));
    let mut checked = 0;
    for built in of_tcgen05 {
        check_tensor_memory(built, &disassembled(built));
        checked += 1;
    }
    assert!(checked >= 2, "{checked} kernels have tensor memory");
}

#[test]
fn scales_lie_where_the_kernel_library_says() {
    builds().good.iter().for_each(|built| check_scale_places(scaled_mma(built), &loaded(built)));
}
