//! Plans of plain products, and planted faults that the checker finds.

use expect_test::{Expect, expect};
use fourfold_ir::{
    Capabilities, DeviceCapability, Dim, ElementType, MmaCapability, Op, Program, SymbolValues, load,
};

use super::plan_mma;
use crate::check::{CheckError, check};
use crate::constraints::violated;
use crate::plan::{Constraint, Decision, MmaPlan, Partition, Plan, Segment, SegmentKind};
use crate::reason::{ReasonCode, Rejection};

const BF16: ElementType = ElementType::BF16;
const F16: ElementType = ElementType::F16;
const F32: ElementType = ElementType::F32;
const LIMIT: u64 = 1000;

fn capability() -> MmaCapability {
    MmaCapability { elements: vec![[BF16, BF16, BF16], [BF16, BF16, F32], [F32; 3]], max_extent: LIMIT }
}

fn capabilities(mma: Option<MmaCapability>) -> Capabilities {
    let device = DeviceCapability { mma, ..DeviceCapability::default() };
    Capabilities {
        target: "mock".to_owned(),
        formats: Vec::new(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device,
    }
}

/// A program with one product of operands of these types.
fn product(a: &str, b: &str, d: &str) -> Program {
    let text = format!(
        "fir 1\nfunc @product(%a: tensor<{a}>, %b: tensor<{b}>) {{\n  %d = mma %a, %b : tensor<{d}>\n  return %d\n}}\n"
    );
    load(&text).unwrap_or_else(|error| panic!("{error:?}\n{text}")).0
}

fn only_op(program: &Program) -> Op {
    program.module().ops.keys().next().expect("one op")
}

/// A partition with the product as a library call.
fn planned(program: &Program, plan: &MmaPlan) -> Partition {
    let (module, op) = (program.module(), only_op(program));
    let mut inputs = module.inputs.clone();
    inputs.retain(|input| module.ops[op].operands.contains(input));
    let outputs = module.outputs.clone();
    let kind = SegmentKind::Kernel(Box::new(Plan::Mma(plan.clone())));
    let rejection = Some(Rejection::new(ReasonCode::NotScaledMma, "a plain mma"));
    Partition {
        target: "mock".to_owned(),
        segments: vec![Segment { ops: vec![op], inputs, outputs, kind }],
        decisions: vec![Decision { segment: 0, rejection }],
    }
}

fn checked(program: &Program, plan: &MmaPlan) -> Result<(), Vec<CheckError>> {
    check(program, &capabilities(Some(capability())), &planned(program, plan))
}

/// Compares the plan as text, and proves it.
fn expect_plan(a: &str, b: &str, d: &str, expected: &Expect) {
    let program = product(a, b, d);
    let Some(plan) = plan_mma(&program, &capability(), only_op(&program)) else {
        return expected.assert_eq("no plan");
    };
    assert_eq!(checked(&program, &plan), Ok(()), "{plan:?}");
    let show = |dim: &Dim| program.module().display_dim(dim).to_string();
    let MmaPlan { batch, m, n, k, .. } = &plan;
    let [l, m, n, k] = [batch, m, n, k].map(show);
    let mut text = format!("{} L={l} M={m} N={n} K={k}", plan.signature());
    for constraint in &plan.constraints {
        text += &match constraint {
            Constraint::AtMost { name, dim, limit } => format!("; {name} = {} <= {limit}", show(dim)),
            Constraint::NotEmpty { name, dim } => format!("; {name} = {} > 0", show(dim)),
            other => format!("; {other:?}"),
        };
    }
    expected.assert_eq(&text);
}

#[test]
fn a_product_is_planned_with_its_extents() {
    expect_plan(
        "[37, 8], bf16",
        "[24, 8], bf16",
        "[37, 24], f32",
        &expect!["mma a=bf16 b=bf16 d=f32 L=1 M=37 N=24 K=8"],
    );
    expect_plan(
        "[2, 3, 37, 8], bf16",
        "[2, 3, 24, 8], bf16",
        "[2, 3, 37, 24], bf16",
        &expect!["mma a=bf16 b=bf16 d=bf16 batched L=6 M=37 N=24 K=8"],
    );
    expect_plan(
        "[2, 3, 37, 8], f32",
        "[24, 8], f32",
        "[2, 3, 37, 24], f32",
        &expect!["mma a=f32 b=f32 d=f32 L=6 M=37 N=24 K=8"],
    );
    expect_plan(
        "[L, M, K], f32",
        "[L, N, K], f32",
        "[L, M, N], f32",
        &expect![
            "mma a=f32 b=f32 d=f32 batched L=L M=M N=N K=K; L = L <= 1000; M = M <= 1000; N = N <= 1000; K = K <= 1000; K = K > 0"
        ],
    );
    expect_plan(
        "[L, M, K], f32",
        "[N, K], f32",
        "[L, M, N], f32",
        &expect![
            "mma a=f32 b=f32 d=f32 L=L M=M N=N K=K; L*M = L*M <= 1000; N = N <= 1000; K = K <= 1000; K = K > 0"
        ],
    );
    expect_plan(
        "[1, M, 8], f32",
        "[24, 8], f32",
        "[1, M, 24], f32",
        &expect!["mma a=f32 b=f32 d=f32 L=1 M=M N=24 K=8; M = M <= 1000"],
    );
    expect_plan(
        "[0, 8], f32",
        "[24, 8], f32",
        "[0, 24], f32",
        &expect!["mma a=f32 b=f32 d=f32 L=1 M=0 N=24 K=8"],
    );
    expect_plan(
        "[1000, 1000], f32",
        "[1, 1000], f32",
        "[1000, 1], f32",
        &expect!["mma a=f32 b=f32 d=f32 L=1 M=1000 N=1 K=1000"],
    );
}

#[test]
fn products_that_the_library_does_not_take_have_no_plan() {
    let none = expect!["no plan"];
    expect_plan("[37, 8], f16", "[24, 8], f16", "[37, 24], f16", &none);
    expect_plan("[37, 8], f32", "[24, 8], f32", "[37, 24], bf16", &none);
    expect_plan("[37, 0], f32", "[24, 0], f32", "[37, 24], f32", &none);
    expect_plan("[1001, 8], f32", "[24, 8], f32", "[1001, 24], f32", &none);
    expect_plan("[8, 8], f32", "[1001, 8], f32", "[8, 1001], f32", &none);
    expect_plan("[8, 1001], f32", "[8, 1001], f32", "[8, 8], f32", &none);
    expect_plan("[1001, 8, 8], f32", "[1001, 8, 8], f32", "[1001, 8, 8], f32", &none);
    // One B serves 1008 rows.
    expect_plan("[2, 504, 8], f32", "[8, 8], f32", "[2, 504, 8], f32", &none);
}

#[test]
fn a_call_beyond_the_limits_is_refused() {
    let program = product("[L, M, K], f32", "[N, K], f32", "[L, M, N], f32");
    let plan = plan_mma(&program, &capability(), only_op(&program)).expect("a plan");
    let refused = |extents: [(&str, u64); 4]| {
        let mut symbols = SymbolValues::default();
        for (name, extent) in extents {
            let symbol =
                program.module().symbols.iter().find(|(_, found)| *found == name).expect("a symbol").0;
            symbols.set(symbol, extent);
        }
        violated(&plan.constraints, &symbols).map(|rejection| rejection.message)
    };
    assert_eq!(refused([("L", 2), ("M", 500), ("N", 1000), ("K", 1000)]), None);
    assert_eq!(refused([("L", 0), ("M", 500), ("N", 0), ("K", 1)]), None, "nothing is launched");
    let rows = refused([("L", 2), ("M", 501), ("N", 1), ("K", 1)]);
    assert_eq!(rows.as_deref(), Some("L*M is 1002; expected at most 1000"));
    let columns = refused([("L", 1), ("M", 1), ("N", 1001), ("K", 1)]);
    assert_eq!(columns.as_deref(), Some("N is 1001; expected at most 1000"));
    let sums = refused([("L", 1), ("M", 1), ("N", 1), ("K", 0)]);
    assert_eq!(sums.as_deref(), Some("K is 0; expected at least 1"));
}

#[test]
fn every_planted_fault_is_found() {
    type Fault = (&'static str, fn(&mut MmaPlan));
    let faults: [Fault; 15] = [
        ("shape", |plan| std::mem::swap(&mut plan.a, &mut plan.b)),
        ("shape", |plan| plan.a = plan.d),
        ("shape", |plan| plan.b = plan.a),
        ("shape", |plan| plan.d = plan.a),
        ("elements", |plan| plan.elements = [F32; 3]),
        ("elements", |plan| plan.elements = [BF16, BF16, F16]),
        ("batch", |plan| plan.batch = Dim::fixed(3)),
        ("m", |plan| plan.m = plan.n.clone()),
        ("n", |plan| plan.n = plan.k.clone()),
        ("k", |plan| plan.k = plan.m.clone()),
        ("b_batched", |plan| plan.b_batched = true),
        ("missing", |plan| plan.constraints.clear()),
        ("missing", |plan| drop(plan.constraints.pop())),
        ("extra", |plan| plan.constraints.push(Constraint::NotEmpty { name: "N", dim: plan.n.clone() })),
        ("missing", |plan| {
            if let Constraint::AtMost { limit, .. } = &mut plan.constraints[0] {
                *limit += 1;
            }
        }),
    ];
    let program = product("[2, M, K], bf16", "[N, K], bf16", "[2, M, N], f32");
    let right = plan_mma(&program, &capability(), only_op(&program)).expect("a plan");
    assert_eq!(checked(&program, &right), Ok(()));
    for (number, (expected, plant)) in faults.iter().enumerate() {
        let mut plan = right.clone();
        plant(&mut plan);
        let errors = checked(&program, &plan).expect_err("a fault");
        let is_found = |error: &CheckError| match error {
            CheckError::Field { field, .. } => field == expected,
            CheckError::Shape { .. } => *expected == "shape",
            CheckError::Constraint { .. } => *expected == "missing",
            CheckError::ExtraConstraint { .. } => *expected == "extra",
            _ => false,
        };
        assert!(errors.iter().any(is_found), "fault {number}: {errors:?}");
    }
}

#[test]
fn a_plan_is_refused_on_a_target_without_its_rules() {
    let program = product("[2, 30, 8], f32", "[24, 8], f32", "[2, 30, 24], f32");
    let plan = plan_mma(&program, &capability(), only_op(&program)).expect("a plan");
    let partition = planned(&program, &plan);
    let halves = MmaCapability { elements: vec![[BF16; 3]], ..capability() };
    let small = |max_extent| MmaCapability { max_extent, ..capability() };
    for (rules, rule) in [
        (None, "it has no library for mma"),
        (Some(halves), "its library does not multiply these types"),
        (Some(small(59)), "an extent exceeds its limit"),
    ] {
        let errors = check(&program, &capabilities(rules), &partition).expect_err("it is refused");
        let expected = CheckError::Capability { segment: 0, rule: rule.to_owned() };
        assert_eq!(errors, [expected]);
    }
    assert_eq!(check(&program, &capabilities(Some(small(60))), &partition), Ok(()));
    // Another op, and a segment of two.
    let relu = load(
        "fir 1\nfunc @two(%a: tensor<[4, 8], f32>) {\n  %d = mma %a, %a : tensor<[4, 4], f32>\n  \
         %y = relu %d : tensor<[4, 4], f32>\n  return %y\n}\n",
    )
    .expect("a program")
    .0;
    let plan = plan_mma(&relu, &capability(), only_op(&relu)).expect("a plan");
    let [first, second] = [0, 1].map(|at| relu.module().ops.keys().nth(at).expect("two ops"));
    assert_eq!(plan_mma(&relu, &capability(), second), None);
    for ops in [vec![first, second], vec![second]] {
        let mut partition = planned(&relu, &MmaPlan { op: *ops.last().expect("an op"), ..plan.clone() });
        partition.segments[0].ops = ops;
        let errors = check(&relu, &capabilities(Some(capability())), &partition).expect_err("it is refused");
        assert!(errors.iter().any(|error| matches!(error, CheckError::Shape { .. })), "{errors:?}");
    }
}
