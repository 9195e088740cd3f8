//! Sources of every kind of move.

use fourfold_ir::{ElementType, ScaleLayout};
use fourfold_scheduler::{MAX_MOVE_OPERANDS, MoveProgram};

use super::MoveSpec;
use crate::source::{MAX_EXTENTS, MAX_OPERANDS};
use crate::spec::KernelSpec;
use crate::targets::TARGETS;

fn programs() -> Vec<MoveProgram> {
    let mut programs =
        vec![MoveProgram::Gather, MoveProgram::PaddedEnds, MoveProgram::GroupScales, MoveProgram::GroupRows];
    programs.extend([ScaleLayout::Linear, ScaleLayout::Blocked].map(|to| MoveProgram::Swizzle { to }));
    for bits in [8, 16, 32] {
        programs.extend([MoveProgram::Strided { bits }, MoveProgram::Pad { bits }]);
    }
    let floats = [ElementType::F16, ElementType::BF16, ElementType::F32];
    for element in floats {
        programs.push(MoveProgram::TopK { element });
        programs.extend(floats.map(|to| MoveProgram::ScatterAdd { from: element, to }));
    }
    programs.extend((2..=MAX_MOVE_OPERANDS as u32).map(|operands| MoveProgram::Concat { operands }));
    programs
}

#[test]
fn equal_specifications_give_equal_bytes_and_different_ones_different_names() {
    let mut names = Vec::new();
    for program in programs() {
        for target in [&TARGETS[0], &TARGETS[TARGETS.len() - 1]] {
            let spec: KernelSpec = MoveSpec { target, program }.into();
            let source = spec.emit();
            assert_eq!(source, spec.emit());
            assert!(source.text.contains(&format!("\\\"signature\\\":\\\"{}\\\"", spec.signature())));
            assert_eq!(source.target, target.name);
        }
        names.push(MoveSpec { target: &TARGETS[0], program }.name());
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn every_call_fits_the_interface() {
    for program in programs() {
        let spec = MoveSpec { target: &TARGETS[0], program };
        let interface = spec.interface();
        assert!(interface.extents.len() <= MAX_EXTENTS && interface.operands.len() <= MAX_OPERANDS);
        // The fault of a launch is part of the interface exactly where one is possible.
        let has_fault = spec.emit().text.contains("int32_t fourfold_fault(");
        assert_eq!(has_fault, program == MoveProgram::Gather, "{program:?}");
    }
}
