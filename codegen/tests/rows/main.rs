//! Row kernels of programs that cover every step, element type, shape and output, and column kernels.

mod columns;
mod programs;
mod reference;
mod simulation;

use std::collections::HashSet;
use std::mem::discriminant;

use fourfold_codegen::row::{Configuration, RowSpec};
use fourfold_codegen::{KernelSpec, target};
use fourfold_ir::{BinaryKind, BitwiseKind, ElementType, ReduceKind, UnaryKind};
use fourfold_scheduler::{RowProgram, RowShape, RowStepKind};

use programs::programs;

fn spec(program: &RowProgram, target_name: &str, columns: Option<u64>) -> RowSpec {
    let target = target(target_name).expect("a known target");
    let configuration = Configuration::usual(program, columns, target);
    RowSpec { target, configuration, program: program.clone() }
}

#[test]
fn equal_specifications_have_equal_sources() {
    for ((name, program), target) in programs().iter().zip(["sm_90a", "sm_100a", "sm_120a"].iter().cycle()) {
        let spec = spec(program, target, Some(4096));
        let source = spec.emit();
        assert_eq!(source, KernelSpec::from(spec).emit(), "{name}");
        assert!(source.text.contains(&program.signature()), "{name} states its signature");
    }
}

/// Leaves the sources in a folder, from which a compiler can take them.
#[test]
fn every_program_has_another_source() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("rows");
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let mut hashes = HashSet::new();
    for (name, program) in programs() {
        let source = spec(&program, "sm_90a", Some(4096)).emit();
        std::fs::write(folder.join(format!("{name}.cu")), &source.text).expect("the file can be written");
        assert!(hashes.insert(source.hash), "{name}");
    }
}

#[test]
fn the_programs_cover_every_step_type_and_shape() {
    let programs = programs();
    let steps = || programs.iter().flat_map(|(_, program)| &program.steps);
    let has = |kind: RowStepKind| steps().any(|step| step.kind == kind);
    assert!(UnaryKind::ALL.iter().all(|kind| has(RowStepKind::Unary(*kind))));
    assert!(BinaryKind::ALL.iter().all(|kind| has(RowStepKind::Binary(*kind))));
    assert!(BitwiseKind::ALL.iter().all(|kind| has(RowStepKind::Bitwise(*kind))));
    assert!(ReduceKind::ALL.iter().all(|kind| has(RowStepKind::Reduce(*kind))));
    let kinds: HashSet<_> = steps().map(|step| discriminant(&step.kind)).collect();
    assert_eq!(kinds.len(), 11);
    for element in ElementType::ALL {
        let operands = || programs.iter().flat_map(|(_, program)| &program.operands);
        assert!(operands().any(|operand| operand.element == element), "{element} is read");
        assert!(steps().any(|step| step.element == element), "{element} is computed");
    }
    let shapes: HashSet<RowShape> =
        programs.iter().flat_map(|(_, program)| &program.operands).map(|operand| operand.shape).collect();
    assert!(shapes.len() >= 8, "{shapes:?}");
}

/// The interface of the program with this name.
fn interface(name: &str) -> Vec<String> {
    let programs = programs();
    let (_, program) = programs.iter().find(|(found, _)| found == name).expect("a program");
    let interface = spec(program, "sm_90a", None).interface();
    let roles = interface.operands.iter().chain(&interface.outputs);
    let extents = std::iter::once(interface.extents.join(" "));
    let role = |role: &fourfold_codegen::Role| {
        let extents = role.extents.as_ref().map_or("?".to_owned(), |extents| extents.join(","));
        format!("{} {} [{extents}] {}", role.name, role.element, role.alignment)
    };
    extents.chain(roles.map(role)).collect()
}

#[test]
fn roles_state_the_extents_of_their_shapes() {
    assert_eq!(
        interface("repeats"),
        [
            "L M K R0 P0 R1 P1",
            "x0 bf16 [L,M,K] 2",
            "x1 f32 [P0,K] 4",
            "x2 i1 [P1,K] 1",
            "y0 f32 [L,M,K] 4",
            "y1 f32 [L,M] 4",
        ]
    );
    assert_eq!(
        interface("shapes"),
        [
            "L M K",
            "x0 f32 [L,M,K] 4",
            "x1 f16 [K] 2",
            "x2 bf16 [L,M] 2",
            "x3 f32 [] 4",
            "y0 f16 [K] 2",
            "y1 f32 [L,M] 4",
            "y2 f32 [] 4",
            "y3 f32 [L,M] 4",
        ]
    );
    assert_eq!(
        interface("quantize_column_and_row"),
        [
            "L M K",
            "x0 bf16 [L,M,K] 2",
            "x1 f32 [] 4",
            "x2 bf16 [K] 2",
            "y0 f4E2M1FN [L,M,K] 1",
            "y1 f8E4M3FN [?] 1",
            "y2 f4E2M1FN [K] 1",
            "y3 f8E4M3FN [?] 1",
        ]
    );
    assert_eq!(
        interface("dequantize_f4E2M1FN_f8E4M3FN")[1..3],
        ["x0 f4E2M1FN [L,M,K] 1", "x1 f8E4M3FN [?] 1"]
    );
}

/// The text of the function with this name in a source.
fn function<'a>(source: &'a str, name: &str) -> &'a str {
    let start = source.find(&format!("void {name}(")).unwrap_or_else(|| panic!("{name} is in the source"));
    let length = source[start..].find("\n}\n\n").expect("the function ends");
    &source[start..start + length]
}

#[test]
fn long_rows_are_read_from_global_memory_once() {
    let programs = programs();
    for (name, operands) in [("softmax_bf16", 1), ("rms_norm_nvfp4", 2)] {
        let (_, program) = programs.iter().find(|(found, _)| found == name).expect("a program");
        for columns in [Some(32768), None] {
            let source = spec(program, "sm_90a", columns).emit().text;
            for operand in 0..operands {
                let read = format!("at<uint8_t>(p, {operand}, ");
                let count = |function_name: &str| function(&source, function_name).matches(&read).count();
                assert_eq!((count("copy"), count("compute_stored")), (1, 0), "{name} x{operand}");
            }
            // Both elements of a pair, computed by the loop that adds and by the one that writes: results would take
            // twice the shared memory of operands.
            let exp = function(&source, "compute_stored").matches("fn_exp(").count();
            assert_eq!(exp, if name == "softmax_bf16" { 4 } else { 0 }, "{name}");
        }
    }
}

#[test]
fn rows_of_up_to_4096_elements_stay_in_registers() {
    for (name, program) in programs() {
        for target in ["sm_90a", "sm_120a"] {
            for columns in [32, 1000, 2048, 4096] {
                let configuration = spec(&program, target, Some(columns)).configuration;
                let [_, _, held] = configuration.tile();
                let reduces = program.steps.iter().any(|step| matches!(step.kind, RowStepKind::Reduce(_)));
                let stays = u64::from(held) >= columns && !configuration.is_stored;
                assert!(!reduces || stays, "{name} for {target}, {columns} elements: {configuration:?}");
            }
        }
    }
}

/// The number that a source gives a constant.
fn constant(source: &str, name: &str) -> u32 {
    let start = source.find(&format!(" {name} = ")).expect("a constant") + name.len() + 4;
    source[start..].split([',', ';']).next().and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn ctas_fit_the_shared_memory_of_every_target() {
    let programs = programs();
    for (target, per_cta, clusters) in
        [("sm_90a", 227, 8), ("sm_100a", 227, 8), ("sm_103a", 227, 8), ("sm_120a", 99, 1), ("sm_121a", 99, 1)]
    {
        for name in ["softmax_f32", "rms_norm_nvfp4", "kept_beside"] {
            let (_, program) = programs.iter().find(|(found, _)| found == name).expect("a program");
            for columns in [Some(20_000), Some(100_000), Some(1 << 22), None] {
                let spec = spec(program, target, columns);
                let (configuration, source) = (spec.configuration, spec.emit().text);
                assert!(configuration.is_stored, "{name} for {target}, {columns:?}");
                assert_eq!(constant(&source, "kMostCluster"), clusters);
                let reductions =
                    program.steps.iter().filter(|step| matches!(step.kind, RowStepKind::Reduce(_)));
                let parts = 2 * reductions.count() as u32 * configuration.threads / 32 * 4;
                let [most, full] = ["kMostShared", "kFullShared"].map(|name| constant(&source, name) + parts);
                assert!(most <= per_cta << 10, "{most} bytes of {name} for {target}");
                // A system's own KiB belongs to each CTA.
                assert!(
                    configuration.ctas.min(3) * (full + 1024) <= (per_cta + 1) << 10,
                    "{full} bytes of {name}"
                );
                assert!(configuration.threads * configuration.ctas <= 1024);
            }
        }
    }
}

#[test]
fn rows_in_registers_take_no_shared_memory() {
    let programs = programs();
    let (_, softmax) = programs.iter().find(|(found, _)| found == "softmax_bf16").expect("a program");
    for columns in [1, 128, 1000, 4096, 8192, 16384] {
        let spec = spec(softmax, "sm_90a", Some(columns));
        assert!(!spec.configuration.is_stored && !spec.emit().text.contains("dynamic_memory"), "{columns}");
    }
    // A sum reads its operand once however long the row is.
    let (_, sum) = programs.iter().find(|(found, _)| found == "reduce_bf16").expect("a program");
    assert!(!spec(sum, "sm_90a", Some(1 << 20)).configuration.is_stored);
}
