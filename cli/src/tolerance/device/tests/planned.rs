//! Segments as the scheduler plans them: those of the fixtures with row kernels.

use std::path::{Path, PathBuf};

use fourfold_ir::sample::{self, Rule};
use fourfold_ir::{Entity, interpret};
use fourfold_scheduler::partition;

use super::super::row::{Row, Rows};
use super::device::written_by;
use super::*;
use crate::load::load;

/// Calls `body` with each segment of the device tier of a program, on each of its samples.
fn each_segment(file: &Path, mut body: impl FnMut(&SegmentOps<'_>, &Plan, &Written, &str)) {
    let loaded = load(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let capabilities = fourfold_codegen::capabilities("sm_90a").expect("a target");
    let partition = partition(&loaded.program, &capabilities);
    for recipe in &loaded.header.samples {
        let tensors = sample::inputs(&loaded.program, recipe).expect("inputs");
        let bound = bind::bind_given(&loaded.program, &tensors, &recipe.symbols).expect("they fit");
        let values = interpret(&loaded.program, &bound).expect("it is small");
        for (segment, plan) in partition.plans().filter(|(_, plan)| plan.scaled_mma().is_none()) {
            let planned = &partition.segments[segment];
            let operands = planned.inputs.iter().map(|value| (*value, &values[value.index()])).collect();
            let run = SegmentOps {
                program: &loaded.program,
                segment,
                ops: &planned.ops,
                symbols: &bound.symbols,
                rule: Some(recipe.rule),
                operands,
                interpret: true,
            };
            let written = plan.written();
            let right = written.iter().map(|value| (*value, values[value.index()].clone())).collect();
            let seed = recipe.seed;
            body(&run, plan, &right, &format!("{}, seed {seed}, segment {segment}", file.display()));
        }
    }
}

fn each_row_kernel(file: &Path, mut body: impl FnMut(&SegmentOps<'_>, &RowPlan, &Written, &str)) {
    each_segment(file, |run, plan, right, place| {
        if let Plan::Row(plan) = plan {
            body(run, plan, right, place);
        }
    });
}

fn fixtures() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/device");
    let files = fourfold_executor::files_below(&folder, "fir").expect("the folder is there");
    assert!(files.len() >= 5, "{files:?}");
    files
}

#[test]
fn every_planned_segment_accepts_the_interpreter_s_values_and_copies_keep_every_bit() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures");
    let mut files = fixtures();
    files.extend(fourfold_executor::files_below(&folder.join("ops"), "fir").expect("the folder is there"));
    files.push(folder.join("attention.fir"));
    for file in files {
        each_segment(&file, |run, plan, right, place| {
            let compare = |written: &Written| {
                let compared = compare_plan(run.clone(), plan, &|value| written.get(&value));
                failures(&compared.expect("it is small"), run.program)
            };
            assert_eq!(compare(right), Vec::<String>::new(), "{place}");
            if !matches!(plan, Plan::Move(_) | Plan::View(_)) {
                return;
            }
            let (value, tensor) = right.iter().next().expect("a result");
            for byte in [0, tensor.bytes().len() / 2].into_iter().filter(|byte| *byte < tensor.bytes().len())
            {
                let mut wrong = right.clone();
                wrong.get_mut(value).expect("a result").bytes_mut()[byte] ^= 1;
                assert_eq!(compare(&wrong).len(), 1, "{place}: byte {byte}");
            }
        });
    }
}

fn failures(compared: &[Compared], program: &Program) -> Vec<String> {
    let wrong = compared.iter().filter(|compared| !compared.comparison.ok);
    wrong
        .map(|compared| {
            let name = program.module().name_of(compared.value);
            format!("%{name}, {}: {:?}", compared.rule, compared.comparison)
        })
        .collect()
}

#[test]
fn a_device_that_computes_the_plan_in_f32_is_right() {
    let mut kernels = 0;
    for file in fixtures() {
        each_row_kernel(&file, |run, plan, right, place| {
            kernels += 1;
            let whole = Plan::Row(plan.clone());
            let compare = |written: &Written| {
                let compared = compare_plan(run.clone(), &whole, &|value| written.get(&value));
                failures(&compared.expect("it is small"), run.program)
            };
            let none: Vec<String> = Vec::new();
            assert_eq!(compare(right), none, "{place}: the interpreter's values");
            for error in [2e-7, -2e-7] {
                assert_eq!(compare(&written_by(run, plan, error)), none, "{place}: off by {error}");
            }
        });
    }
    assert!(kernels > 20, "{kernels} row kernels");
}

#[test]
fn the_intervals_of_a_plan_contain_the_interpreter_s_values() {
    for file in fixtures() {
        each_row_kernel(&file, |run, plan, right, place| {
            let rows = Rows::new(run, plan).expect("operands");
            let mut row = Row::default();
            let mut written = plan.written.iter();
            let mut values = Vec::new();
            for output in &plan.program.outputs {
                let value = written.next().expect("a value");
                match output.kind {
                    RowOutputKind::Value => values.push((output.of, right[value].to_f64(), *value)),
                    RowOutputKind::Quantized { .. } => drop(written.next()),
                }
            }
            for index in 0..rows.rows {
                rows.evaluate(index, &mut row);
                for (of, wants, value) in &values {
                    let is_column = plan.program.shape(*of) == RowShape::Column;
                    let count = if is_column { 1 } else { rows.columns };
                    for column in 0..count {
                        let [[low, high], _] = row.value(*of, column);
                        let want = wants[index * count + column];
                        let name = run.program.module().name_of(*value);
                        let is_within = low <= want && want <= high || want.is_nan();
                        assert!(is_within, "{place}: %{name} at {index}, {column}: {want} in {low}..{high}");
                    }
                }
            }
        });
    }
}

#[test]
fn sums_of_exact_samples_have_the_interpreter_s_bits() {
    let source = "fir 1
; sample: exact seed=3
func @f(%x: tensor<[9, 100], bf16>) {
  %y = reduce %x {axes = [1], keep_dims = false, kind = sum} : tensor<[9], f32>
  return %y
}
";
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sum.fir");
    std::fs::write(&file, source.replace("f32>\n  return", "bf16>\n  return")).expect("a file");
    let mut rules = Vec::new();
    each_row_kernel(&file, |run, plan, right, _| {
        assert_eq!(run.rule, Some(Rule::Exact));
        let compared = compare_plan(run.clone(), &Plan::Row(plan.clone()), &|value| right.get(&value));
        rules.extend(compared.expect("it is small").into_iter().map(|compared| compared.rule));
    });
    assert_eq!(rules, [BIT_EQUAL]);
}
