//! Sources of every column kernel.

use fourfold_ir::{ElementType, ReduceKind};
use fourfold_scheduler::ColumnProgram;

use super::ColumnSpec;
use crate::spec::KernelSpec;
use crate::targets::TARGETS;

#[test]
fn equal_specifications_give_equal_bytes_and_different_ones_different_names() {
    let mut names = Vec::new();
    for element in [ElementType::F16, ElementType::BF16, ElementType::F32] {
        for kind in ReduceKind::ALL.iter().copied() {
            let program = ColumnProgram { kind, element };
            for target in [&TARGETS[0], &TARGETS[TARGETS.len() - 1]] {
                let spec: KernelSpec = ColumnSpec { target, program }.into();
                let source = spec.emit();
                assert_eq!(source, spec.emit());
                assert!(source.text.contains(&format!("\\\"signature\\\":\\\"{}\\\"", spec.signature())));
                assert_eq!(source.target, target.name);
            }
            names.push(ColumnSpec { target: &TARGETS[0], program }.name());
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}
