//! The host code of a kernel holds its whole interface, and compiles in seconds. So every run takes every format with an
//! operand of FP6 or FP8, while families of Blackwell, targets, tiles and epilogues rotate.

#![allow(unsafe_code, reason = "the libraries are not built by the executor")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use fourfold::codegen::cutlass::defaults;
use fourfold::codegen::{Epilogue, Groups, Output, OutputKind, ScaledMmaSpec, StepKind, select};
use fourfold::ir::{BinaryKind, BlockFormat, ElementType, OperandShape};
use fourfold::kernels::{PlannedKernel, build_input};
use fourfold::scheduler::EpilogueRef;
use fourfold_executor::kernel::Kernel;
use fourfold_executor::{BuildOptions, host_flags};
use fourfold_tests::answers::{check_acceptance, check_grid, check_scale_places};
use fourfold_tests::built::{check_budget, cutlass, format, planned, toolchain, turn};

use super::{
    COMPILERS, Chain, GROUP_FORMATS, TARGETS, builds, designs, epilogue, formats_of_bytes, spec,
    usual_epilogue,
};

/// Stands for the binary of the kernel, which no query reads.
const IMAGE: &str = "\nunsigned char const fourfold_image[1] = {0};\n";

/// Returns the kernels to compile: one of each format, which is that of another family the next day, of another target
/// after two days, and has another tile after four.
fn specs() -> Vec<ScaledMmaSpec> {
    let formats = formats_of_bytes(TARGETS[0]).into_iter().enumerate();
    let of = |(index, format): (usize, BlockFormat)| {
        let number = turn() + index;
        // Targets of a family are adjacent.
        let name = TARGETS[2 * (number % 2) + number / 2 % 2];
        let designs = designs(name, format, cutlass());
        let usual = number.is_multiple_of(3);
        let epilogue = if usual { usual_epilogue() } else { epilogue(number) };
        spec(name, &designs[number / 4 % designs.len()], epilogue)
    };
    formats.map(of).collect()
}

/// Compiles the host code of a kernel to a library, and loads it.
fn host(kernel: &PlannedKernel, folder: &Path) -> Result<Kernel, String> {
    let toolchain = toolchain();
    let nvcc = |arguments: Vec<String>| {
        let output = Command::new(&toolchain.nvcc).args(arguments).current_dir(folder).output();
        let output = output.map_err(|error| format!("{}: {error}", toolchain.nvcc.display()))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    };
    let flag = |flag: &str, folders: &[PathBuf]| -> Vec<String> {
        folders.iter().map(|folder| format!("{flag}{}", folder.display())).collect()
    };
    let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    std::fs::write(folder.join("kernel.cu"), kernel.source.text.clone() + IMAGE)
        .map_err(|error| error.to_string())?;
    let include = flag("-I", &[toolchain.cutlass_include(), toolchain.include.clone()].concat());
    let flags = host_flags(&build_input(&kernel.source), &BuildOptions::default());
    nvcc([flags, include, words("-o host.o kernel.cu")].concat())?;
    let libraries = flag("-L", &toolchain.libraries);
    nvcc([words("-shared --no-device-link -o kernel.so host.o"), libraries].concat())?;
    // SAFETY: the library is that of a generated source, and its file does not change while it is loaded.
    unsafe { Kernel::open(&folder.join("kernel.so")) }.map_err(|error| error.to_string())
}

/// Checks a loaded kernel as if it had its device code.
fn check(spec: &ScaledMmaSpec, kernel: &Kernel) {
    let metadata = kernel.metadata();
    assert_eq!((&*metadata.target, &*metadata.kernel), (spec.target.name, &*spec.name()));
    let configuration = spec.configuration.cutlass().expect("a kernel of Blackwell");
    check_budget(configuration, metadata.stages, metadata.shared_memory);
    check_acceptance(spec, kernel);
    check_grid(spec, kernel);
    check_scale_places(spec, kernel);
}

/// Returns the kernels of groups of rows: each format, for a target of each family, which rotates, as epilogues do.
fn specs_of_groups() -> Vec<ScaledMmaSpec> {
    let families = [&TARGETS[..2], &TARGETS[2..4]].into_iter().enumerate();
    let of = |(index, targets): (usize, &'static [&'static str])| {
        GROUP_FORMATS.into_iter().enumerate().map(move |(position, format)| {
            let number = turn() + 3 * index + position;
            let name = targets[number % targets.len()];
            let family = defaults::family(name).expect("a target of Blackwell");
            let masked = (number / 3).is_multiple_of(2);
            let blocked = (number / 2).is_multiple_of(2);
            let groups = Groups { has_alphas: number.is_multiple_of(2), masked, blocked };
            let chosen = select::cutlass::choose_of_groups(family, format, groups);
            let (configuration, _) = chosen.expect("a kernel");
            spec(name, &configuration.into(), epilogue_of_groups(number))
        })
    };
    families.flat_map(of).collect()
}

/// Returns an epilogue of groups of rows by number: alpha, a row, a column, up to two matrices and up to two outputs.
fn epilogue_of_groups(index: usize) -> Epilogue {
    const OUTPUTS: [ElementType; 3] = [ElementType::BF16, ElementType::F16, ElementType::F32];
    let element = |offset: usize| OUTPUTS[(index + offset) % 3];
    let shapes = [OperandShape::Row, OperandShape::Column, OperandShape::Matrix, OperandShape::Matrix];
    let mut chain = Chain::default();
    for (position, shape) in shapes.into_iter().enumerate().take(1 + index % 4) {
        chain.then(StepKind::Binary(BinaryKind::Add), Some(element(position)), ElementType::F32);
        chain.operands[position].shape = shape;
    }
    chain.then(StepKind::Convert, None, element(1));
    let mut outputs = chain.written();
    if index.is_multiple_of(2) {
        outputs.push(Output { of: EpilogueRef::Accumulator, kind: OutputKind::Value });
    }
    Epilogue { alpha: true, steps: chain.steps, operands: chain.operands, outputs, ..usual_epilogue() }
}

#[test]
fn host_code_of_groups_answers_as_the_plan_promises() {
    let _ = builds();
    let _alone = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let specs = specs_of_groups();
    let started = Instant::now();
    assert_eq!(check_all(&specs).len(), 3);
    println!("{} kernels in {:.0} s", specs.len(), started.elapsed().as_secs_f64());
}

#[test]
fn host_code_of_every_format_answers_as_the_plan_promises() {
    let _ = builds();
    let _alone = COMPILERS.lock().unwrap_or_else(PoisonError::into_inner);
    let (specs, started) = (specs(), Instant::now());
    let checked = check_all(&specs);
    println!("{} kernels in {:.0} s", specs.len(), started.elapsed().as_secs_f64());
    assert_eq!(checked.len(), 24, "{checked:?}");
}

/// Compiles and checks kernels, two at a time. Returns the names of their formats.
fn check_all(specs: &[ScaledMmaSpec]) -> Vec<String> {
    let (next, checked) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(spec) = specs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = format!("{} {}", spec.target.name, spec.name());
                    let folder = tempfile::tempdir().expect("a folder");
                    let kernel = host(&planned(spec.clone()), folder.path())
                        .unwrap_or_else(|error| panic!("{name}: {error}"));
                    check(spec, &kernel);
                    println!("{name}: {} stages", kernel.metadata().stages.unwrap_or_default());
                    checked.lock().expect("no thread panics with it").push(format(spec).to_string());
                }
            });
        }
    });
    let mut checked = checked.into_inner().expect("no thread panicked with it");
    checked.sort();
    checked.dedup();
    checked
}
