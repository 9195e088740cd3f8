//! Builds kernels without a GPU and checks each one: its instructions and its resources.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};

use fourfold::codegen::ScaledMmaSpec;
use fourfold::codegen::cutlass::configuration::Configuration;
use fourfold::codegen::cutlass::{CutlassVersion, stages, tensor_memory};
use fourfold::executor::kernel::Kernel;
use fourfold::executor::toolchain::{Toolchain, ToolchainOptions};
use fourfold::executor::{Artifact, BuildOptions};
use fourfold::ir::BlockFormat;
use fourfold::kernels::{BuiltKernel, PlannedKernel, build_kernels, cutlass_version};

const SECONDS_A_DAY: u64 = 86_400;

/// Returns the position in a rotation that advances once a day, so that a failure stays while it is investigated.
pub fn turn() -> usize {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_secs() / SECONDS_A_DAY) as usize
}

/// Returns the toolchain, found or installed once.
///
/// # Panics
/// Panics if there is none and none can be installed.
pub fn toolchain() -> &'static Toolchain {
    static TOOLCHAIN: OnceLock<Toolchain> = OnceLock::new();
    TOOLCHAIN.get_or_init(|| {
        let options = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
        fourfold::kernels::toolchain(&options, &mut |line| eprintln!("{line}"))
            .unwrap_or_else(|error| panic!("{error}\n{}", error.remedy()))
    })
}

/// Returns the version of CUTLASS in the toolchain.
pub fn cutlass() -> CutlassVersion {
    cutlass_version(toolchain())
}

/// Returns the planned kernel of a specification.
pub fn planned(spec: ScaledMmaSpec) -> PlannedKernel {
    PlannedKernel { segment: 0, source: spec.emit(), why: "forced by a test".to_owned(), spec: spec.into() }
}

/// Builds kernels in a new folder below `folder`, which is cleared of an earlier run's first.
///
/// # Panics
/// Panics if the folder cannot be created.
pub fn build(kernels: Vec<PlannedKernel>, folder: PathBuf) -> Vec<BuiltKernel> {
    static CLEARED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
    {
        let mut cleared = CLEARED.lock().unwrap_or_else(PoisonError::into_inner);
        if !cleared.contains(&folder) {
            let _ = std::fs::remove_dir_all(&folder);
            std::fs::create_dir_all(&folder).expect("the folder for kernels can be created");
            cleared.push(folder.clone());
        }
    }
    let options = BuildOptions { temp_dir: Some(folder), ..BuildOptions::default() };
    build_kernels(kernels, toolchain(), &options, &|line| eprintln!("{line}"))
}

/// The specification of a `scaled_mma` kernel.
///
/// # Panics
/// Panics if the kernel is of another kind.
pub fn scaled_mma(built: &BuiltKernel) -> &ScaledMmaSpec {
    built.planned.spec.scaled_mma().expect("a scaled_mma kernel")
}

/// Returns the library of a built kernel.
///
/// # Panics
/// Panics with the compiler's message if the build failed.
pub fn artifact(built: &BuiltKernel) -> &Artifact {
    built.outcome.as_ref().unwrap_or_else(|failure| {
        panic!("{}: {} ({})", built.planned.source.kernel, failure.message, failure.code)
    })
}

/// Loads a built kernel.
///
/// # Panics
/// Panics if the build failed or the library cannot be loaded.
pub fn loaded(built: &BuiltKernel) -> Kernel {
    Kernel::load(artifact(built)).expect("the library loads without a GPU")
}

/// Returns the format of a kernel's operands.
pub fn format(spec: &ScaledMmaSpec) -> BlockFormat {
    spec.configuration.block_format().expect("a block format")
}

/// Returns the resources of a kernel on one line.
pub fn describe(built: &BuiltKernel) -> String {
    let resources = artifact(built).resources();
    format!(
        "{} {}: {} registers, {} B spilled, {} stages, {} B shared, {} threads, {:?}, {:.0} s",
        scaled_mma(built).target.name,
        built.planned.source.kernel,
        resources.registers.expect("the compiler reports registers"),
        resources.spill_stores.expect("the compiler reports spills"),
        resources.stages.expect("the library reports stages"),
        resources.shared_memory,
        resources.threads,
        resources.opcodes,
        resources.compile_time.as_secs_f64(),
    )
}

/// The largest shared memory of a CTA on sm_90a, in bytes.
const HOPPER_SHARED_MEMORY: u64 = 227 << 10;

/// Checks that a kernel has its matrix instruction and stages and fits on the device.
///
/// # Panics
/// Panics if it does not.
pub fn check_resources(built: &BuiltKernel) {
    let resources = artifact(built).resources();
    let (kernel, opcode) = (&built.planned.source.kernel, built.planned.source.opcode);
    let configuration = &scaled_mma(built).configuration;
    assert!(resources.opcodes.keys().any(|found| found.starts_with(opcode)), "{kernel} lacks {opcode}");
    let Some(configuration) = configuration.cutlass() else {
        assert!(resources.shared_memory <= HOPPER_SHARED_MEMORY, "{kernel}: {resources:?}");
        assert!(resources.stages.is_some_and(|stages| 2 <= stages), "{kernel}: {resources:?}");
        return;
    };
    check_budget(configuration, resources.stages, resources.shared_memory);
}

/// Checks that a kernel has as many stages as the generator computes, or fewer, and fits on the device.
///
/// # Panics
/// Panics if it does not.
pub fn check_budget(configuration: &Configuration, found: Option<u32>, shared_memory: u64) {
    // MXFP4 with a 16-bit C uses all of Sm120's shared memory: with one byte more, every launch fails.
    let budget = stages::budget(configuration, cutlass()).expect("a default has a budget");
    assert!(shared_memory <= budget.capacity, "{configuration}: {budget:?}");
    // Fused vectors take shared memory that the formula ignores, so a stage may be lost but none gained.
    let formula = stages::stages(configuration, cutlass()).expect("a default has stages");
    let fits = found.is_some_and(|stages| 2 <= stages && stages <= formula);
    assert!(fits, "{configuration}: {found:?} of {formula}");
}

/// Checks that scales are in the tensor memory columns of the generator's rule, by the offsets at which they are
/// copied.
///
/// # Panics
/// Panics if they are not, or are outside the allocation.
pub fn check_tensor_memory(built: &BuiltKernel, sass: &str) {
    /// The columns that one copy writes.
    const OF_COPY: u64 = 4;
    let Some(configuration) = scaled_mma(built).configuration.cutlass() else { return };
    let Some(expected) = tensor_memory::columns(configuration) else { return };
    let copies = scale_columns(sass);
    let name = &built.planned.source.kernel;
    let first = copies.first().copied().unwrap_or_else(|| panic!("{name} copies no scales"));
    let end = copies.last().map_or(0, |last| last + OF_COPY);
    assert!(end <= tensor_memory::CAPACITY, "{name}: scales end at column {end}");
    assert_eq!((first, end), (expected.accumulators, expected.total()), "{name}: {copies:?}");
    // The range in between is copied without gaps.
    let all = (first..end).step_by(OF_COPY as usize);
    assert!(all.eq(copies.iter().copied()), "{name}: {copies:?}");
}

/// Returns the columns, relative to the allocation, at which copies of scales in a disassembly begin, in order:
/// `UTCCP.T.S.4x32dp128bit tmem[UR27+0x1e0], gdesc[UR54]`.
fn scale_columns(sass: &str) -> BTreeSet<u64> {
    let copies =
        sass.lines().filter_map(|line| line.split_once("UTCCP")?.1.split_once("tmem[")?.1.split_once(']'));
    let column = |(place, _): (&str, &str)| match place.split_once("+0x") {
        Some((_, offset)) => u64::from_str_radix(offset, 16).expect("an offset"),
        None => 0,
    };
    copies.map(column).collect()
}
