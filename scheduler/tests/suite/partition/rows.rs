//! Row kernels: the regions that they take, and the checker's verdict on plans with a fault.

use fourfold_ir::{Dim, ElementType, Program, ReduceKind};
use fourfold_scheduler::{
    Constraint, Partition, Plan, RowPlan, RowRef, RowShape, RowStepKind, SegmentKind, check, partition,
};

use super::support::with_device;

/// The programs of row kernels among the fixtures.
const FIXTURES: [(&str, &str); 7] = [
    ("broadcast", include_str!("../../../../fixtures/device/rows_broadcast.fir")),
    ("functions", include_str!("../../../../fixtures/device/rows_functions.fir")),
    ("norms", include_str!("../../../../fixtures/device/rows_norms.fir")),
    ("quantize", include_str!("../../../../fixtures/device/rows_quantize.fir")),
    ("reduce", include_str!("../../../../fixtures/device/rows_reduce.fir")),
    ("softmax", include_str!("../../../../fixtures/device/rows_softmax.fir")),
    ("types", include_str!("../../../../fixtures/device/rows_types.fir")),
];

fn planned(source: &str) -> (Program, Partition) {
    let (program, _) = fourfold_ir::load(source).unwrap_or_else(|errors| panic!("{}", errors[0].message));
    let partition = partition(&program, &with_device());
    assert_eq!(check(&program, &with_device(), &partition), Ok(()));
    (program, partition)
}

/// The names of the kinds of all segments, in order.
fn kinds(source: &str) -> Vec<&'static str> {
    let kind = |segment: &fourfold_scheduler::Segment| segment.plan().map_or("fallback", Plan::kind_name);
    planned(source).1.segments.iter().map(kind).collect()
}

#[test]
fn every_op_of_the_fixtures_of_row_kernels_is_in_one() {
    for (name, source) in FIXTURES {
        let found = kinds(source);
        assert!(found.iter().all(|kind| *kind == "row"), "{name}: {found:?}");
    }
    let count = |name: &str| {
        let source = FIXTURES.iter().find(|(fixture, _)| *fixture == name).expect("a fixture").1;
        kinds(source).len()
    };
    assert_eq!(count("norms"), 1, "a residual, two norms and a quantization read each row once");
    assert_eq!(count("softmax"), 2, "a softmax under masks, and the gradient of one");
}

/// A program of f32 matrices `[M, 8]` around these lines.
fn of_lines(lines: &str, returned: &str) -> String {
    format!(
        "fir 1\nfunc @rows(%x: tensor<[M, 8], f32>, %y: tensor<[M, 8], f32>, %c: tensor<[M, 1], f32>,
    param %w: tensor<[8], f32>) {{\n{lines}\n  return {returned}\n}}\n"
    )
}

#[test]
fn a_region_ends_where_a_value_is_complete_only_after_its_kernel() {
    // The codes of a quantization, and a scale that the kernel computes itself.
    let requantized = of_lines(
        "  %wide = broadcast %w : tensor<[M, 8], f32>
  %sum = add %x, %wide : tensor<[M, 8], f32>
  %total = reduce %sum {axes = [0, 1], keep_dims = false, kind = amax} : tensor<[], f32>
  %scaled = div %sum, %total : tensor<[M, 8], f32>",
        "%scaled",
    );
    assert_eq!(kinds(&requantized), ["row", "column", "row"], "{requantized}");
    // One CTA reduces a small tensor.
    let small = requantized.replace("[M, ", "[16, ");
    assert_eq!(kinds(&small), ["row", "row", "row"], "{small}");
}

#[test]
fn a_value_that_is_read_in_another_way_starts_a_region() {
    // A reduction to [8] of a matrix [8, 8] is one element per row, and is then read as one per column.
    let source = "fir 1
func @turned(%x: tensor<[8, 8], f32>) {
  %sum = reduce %x {axes = [1], keep_dims = false, kind = sum} : tensor<[8], f32>
  %y = mul %x, %sum : tensor<[8, 8], f32>
  return %y
}
";
    assert_eq!(kinds(source), ["row", "row"]);
    let kept = source
        .replace("keep_dims = false", "keep_dims = true")
        .replace("tensor<[8], f32>", "tensor<[8, 1], f32>");
    assert_eq!(kinds(&kept), ["row"]);
}

#[test]
fn a_broadcast_of_no_elements_is_written_as_it_is() {
    let source = "fir 1
func @empty(%x: tensor<[0, 7], f16>) {
  %twice = add %x, %x : tensor<[0, 7], f16>
  %y = broadcast %twice : tensor<[2, 0, 7], f16>
  return %y
}
";
    assert_eq!(kinds(source), ["row"]);
}

#[test]
fn linear_scales_have_no_l_and_m() {
    // The blocked scales of the quantization are laid out for L = 1 and M = 64; linear scales of codes with four axes need neither.
    let source = "fir 1
func @scales(%q: tensor<[2, 4, 8, 32], f4E2M1FN>, %s: tensor<[2, 4, 8, 1], f8E8M0FNU, linear>) {
  %x = block_dequantize %q, %s {block = 32} : tensor<[2, 4, 8, 32], f32>
  %flat = reshape %x : tensor<[64, 32], f32>
  %a, %sa = block_quantize %flat {block = 32, scale_rounding = floor} : tensor<[64, 32], f4E2M1FN>, tensor<[64, 1], f8E8M0FNU, blocked>
  return %a, %sa
}
";
    assert_eq!(kinds(source), ["row"]);
}

#[test]
fn what_depends_on_params_only_is_a_region_of_its_own() {
    let source = of_lines(
        "  %half = constant {value = 0.5} : tensor<[], f32>
  %weight = mul %w, %half : tensor<[8], f32>
  %scaled = mul %x, %weight : tensor<[M, 8], f32>",
        "%scaled",
    );
    assert_eq!(kinds(&source), ["row", "row"]);
}

#[test]
fn a_kernel_writes_at_most_four_tensors_and_reads_siblings_operands_once() {
    let functions = ["abs", "neg", "relu", "exp", "sqrt", "floor"];
    let lines: Vec<String> =
        functions.iter().map(|name| format!("  %{name} = {name} %x : tensor<[M, 8], f32>")).collect();
    let returned: Vec<String> = functions.iter().map(|name| format!("%{name}")).collect();
    let (_, partition) = planned(&of_lines(&lines.join("\n"), &returned.join(", ")));
    let written: Vec<usize> = partition.plans().map(|(_, plan)| plan.written().len()).collect();
    assert_eq!(written, [4, 2]);
}

#[test]
fn a_region_with_more_steps_or_operands_than_a_kernel_has_is_cut() {
    let mut lines = String::new();
    for step in 0..150 {
        let before = if step == 0 { "x".to_owned() } else { format!("v{}", step - 1) };
        lines += &format!("  %v{step} = add %{before}, %y : tensor<[M, 8], f32>\n");
    }
    assert_eq!(kinds(&of_lines(&lines, "%v149")).len(), 3);
    let inputs: Vec<String> = (0..20).map(|i| format!("%a{i}: tensor<[M, 8], f32>")).collect();
    let mut lines = "  %s0 = add %a0, %a1 : tensor<[M, 8], f32>\n".to_owned();
    for i in 2..20 {
        lines += &format!("  %s{} = add %s{}, %a{i} : tensor<[M, 8], f32>\n", i - 1, i - 2);
    }
    let source = format!("fir 1\nfunc @many({}) {{\n{lines}  return %s18\n}}\n", inputs.join(", "));
    assert_eq!(kinds(&source).len(), 2);
}

/// A change that makes a plan wrong.
type Fault = (String, Box<dyn Fn(&mut RowPlan)>);

/// Every single change of a step, an operand, an output, an extent or a constraint.
fn faults(plan: &RowPlan) -> Vec<Fault> {
    let mut faults: Vec<Fault> = Vec::new();
    let steps = plan.program.steps.len();
    for (at, step) in plan.program.steps.iter().enumerate() {
        let other = if step.element == ElementType::F32 { ElementType::BF16 } else { ElementType::F32 };
        faults.push((
            format!("element of s{at}"),
            Box::new(move |plan| plan.program.steps[at].element = other),
        ));
        let kind = match step.kind {
            RowStepKind::Reduce(ReduceKind::Max) => RowStepKind::Reduce(ReduceKind::Min),
            RowStepKind::Constant(bits) => RowStepKind::Constant(bits ^ 1),
            _ => RowStepKind::Reduce(ReduceKind::Max),
        };
        faults.push((format!("kind of s{at}"), Box::new(move |plan| plan.program.steps[at].kind = kind)));
        // With one row or one column, some shapes are the same.
        let is_ambiguous = [&plan.m, &plan.k].iter().any(|dim| dim.as_fixed() == Some(1));
        if !matches!(step.kind, RowStepKind::Constant(_)) && !is_ambiguous {
            for shape in [RowShape::Scalar, RowShape::Row, RowShape::Column, RowShape::Matrix] {
                if shape != step.shape {
                    let change = move |plan: &mut RowPlan| plan.program.steps[at].shape = shape;
                    faults.push((format!("s{at} as {shape}"), Box::new(change)));
                }
            }
        }
        for (position, read) in step.operands.iter().enumerate() {
            let all = (0..plan.operands.len()).map(RowRef::Operand).chain((0..steps).map(RowRef::Step));
            for other in all.filter(|other| other != read) {
                let change = move |plan: &mut RowPlan| plan.program.steps[at].operands[position] = other;
                faults.push((format!("operand {position} of s{at} as {other}"), Box::new(change)));
            }
        }
    }
    for at in 0..plan.operands.len() {
        faults.push((
            format!("type of x{at}"),
            Box::new(move |plan| {
                let element = &mut plan.program.operands[at].element;
                *element = if *element == ElementType::I1 { ElementType::I32 } else { ElementType::I1 };
            }),
        ));
        if plan.operands[at].repeat.is_some() {
            faults.push((
                format!("repeats of x{at}"),
                Box::new(move |plan| {
                    if let Some(repeat) = &mut plan.operands[at].repeat {
                        repeat.each = repeat.each.times(&Dim::fixed(2)).expect("small");
                    }
                }),
            ));
            faults
                .push((format!("all rows of x{at}"), Box::new(move |plan| plan.operands[at].repeat = None)));
        }
    }
    for at in 0..plan.program.outputs.len() {
        faults.push((
            format!("output {at}"),
            Box::new(move |plan| {
                plan.program.outputs.remove(at);
            }),
        ));
        for missing in [RowRef::Step(usize::MAX), RowRef::Operand(usize::MAX)] {
            let change = move |plan: &mut RowPlan| plan.program.outputs[at].of = missing;
            faults.push((format!("output {at} of nothing"), Box::new(change)));
        }
    }
    for at in 1..plan.written.len() {
        faults.push((format!("order of output {at}"), Box::new(move |plan| plan.written.swap(at - 1, at))));
    }
    for at in 0..plan.constraints.len() {
        faults.push((
            format!("constraint {at}"),
            Box::new(move |plan| {
                plan.constraints.remove(at);
            }),
        ));
    }
    faults.push(("K".to_owned(), Box::new(|plan| plan.k = plan.k.times(&Dim::fixed(3)).expect("small"))));
    faults.push(("M".to_owned(), Box::new(|plan| plan.m = plan.m.times(&Dim::fixed(3)).expect("small"))));
    faults.push((
        "more".to_owned(),
        Box::new(|plan| {
            plan.constraints.push(Constraint::NotEmpty { name: "K", dim: plan.k.clone() });
        }),
    ));
    faults
}

#[test]
fn every_fault_of_a_plan_is_seen() {
    let mut count = 0;
    for (name, source) in FIXTURES {
        let (program, partition) = planned(source);
        for segment in 0..partition.segments.len() {
            let SegmentKind::Kernel(plan) = &partition.segments[segment].kind else { continue };
            let Plan::Row(plan) = &**plan else { continue };
            for (fault, change) in faults(plan) {
                let mut wrong = plan.clone();
                change(&mut wrong);
                assert_ne!(wrong, *plan, "{name}: segment {segment}: {fault}");
                let mut partition = partition.clone();
                partition.segments[segment].kind = SegmentKind::Kernel(Box::new(Plan::Row(wrong)));
                let verdict = check(&program, &with_device(), &partition);
                assert!(verdict.is_err(), "{name}: segment {segment}: {fault} is not seen in {plan:#?}");
                count += 1;
            }
        }
    }
    assert!(count > 1000, "{count} faults");
}
