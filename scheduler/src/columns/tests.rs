//! Plans of column kernels as text, random reductions against the checker, and constants.

use expect_test::{Expect, expect};
use fourfold_ir::{
    Builder, Capabilities, ColumnCapability, Dim, ElementType, Module, OpKind, Program, ReduceKind,
    TensorType, verify,
};

use super::{is_column, plan_column};
use crate::check::{CheckError, check};
use crate::partition::partition;
use crate::plan::{ColumnPlan, ConstantPlan, Constraint, Partition, Plan, SegmentKind};

fn capabilities() -> Capabilities {
    fourfold_codegen::capabilities("sm_90a").expect("a known target")
}

fn columns() -> ColumnCapability {
    // The crate under test and the one that `fourfold_codegen` uses are two instances, which share `fourfold_ir`.
    capabilities().device.columns.expect("the target has column kernels")
}

/// The plan of each op as text, with the kind of the segment that computes it.
fn expect_plans(body: &str, expected: Expect) {
    let source = format!("fir 1\nfunc @f({body}\n");
    let (program, _) = fourfold_ir::load(&source).unwrap_or_else(|errors| panic!("{errors:?}"));
    let module = program.module();
    let found = partition(&program, &capabilities());
    assert_eq!(check(&program, &capabilities(), &found), Ok(()));
    let lines = module.ops.iter().map(|(op, operation)| {
        let name = module.name_of(operation.results[0]);
        let decision = &found.decisions[fourfold_ir::Entity::index(op)];
        let kind = found.segments[decision.segment].plan().map_or("fallback", Plan::kind_name);
        let plan = match plan_column(&program, &columns(), op) {
            None => "no column".to_owned(),
            Some(plan) => {
                let dims = ColumnPlan::EXTENTS.into_iter().zip(&plan.extents);
                let dims: Vec<String> =
                    dims.map(|(name, dim)| format!("{name}={}", module.display_dim(dim))).collect();
                let limits: Vec<String> =
                    plan.constraints.iter().map(|limit| limit_text(&program, limit)).collect();
                format!("{} {}; {}", plan.program.signature(), dims.join(" "), limits.join(", "))
            }
        };
        format!("{name} in {kind}: {plan}\n")
    });
    expected.assert_eq(&lines.collect::<String>());
}

fn limit_text(program: &Program, limit: &Constraint) -> String {
    match limit {
        Constraint::AtMost { name, .. } => format!("{name} limited"),
        Constraint::PointerAlignment { value, bytes } => {
            format!("%{} at {bytes}", program.module().name_of(*value))
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn adjacent_axes_are_one_and_trailing_ones_are_rows() {
    expect_plans(
        "%x: tensor<[2, M, 3, 64], bf16>, %w: tensor<[M, 4099], f32>, %z: tensor<[4, 1, N, 1, 8], f16>, %s: tensor<[64], f32>) {
  %a = reduce %x {axes = [1], keep_dims = false, kind = sum} : tensor<[2, 3, 64], bf16>
  %b = reduce %x {axes = [0, 1], keep_dims = true, kind = mean} : tensor<[1, 1, 3, 64], bf16>
  %c = reduce %x {axes = [0, 2], keep_dims = false, kind = amax} : tensor<[M, 64], bf16>
  %d = reduce %x {axes = [1, 3], keep_dims = false, kind = max} : tensor<[2, 3], bf16>
  %e = reduce %x {axes = [2, 3], keep_dims = false, kind = max} : tensor<[2, M], bf16>
  %f = reduce %w {axes = [0, 1], keep_dims = false, kind = amax} : tensor<[], f32>
  %g = reduce %z {axes = [0, 2, 4], keep_dims = false, kind = min} : tensor<[1, 1], f16>
  %h = reduce %z {axes = [1, 3], keep_dims = false, kind = sum} : tensor<[4, N, 8], f16>
  %i = reduce %s {axes = [0], keep_dims = false, kind = sum} : tensor<[], f32>
  return %a, %b, %c, %d, %e, %f, %g, %h, %i
}",
        expect![[r#"
            a in column: column sum bf16 O=2 A=1 B=1 C=M I=192; C limited, %x at 2, %a at 2
            b in column: column mean bf16 O=1 A=1 B=1 C=2*M I=192; C limited, %x at 2, %b at 2
            c in column: column amax bf16 O=1 A=2 B=M C=3 I=64; B limited, %x at 2, %c at 2
            d in column: column max bf16 O=2 A=M B=3 C=64 I=1; A limited, %x at 2, %d at 2
            e in row: column max bf16 O=2*M A=1 B=1 C=192 I=1; O limited, %x at 2, %e at 2
            f in column: column amax f32 O=1 A=1 B=1 C=4099*M I=1; C limited, %w at 4, %f at 4
            g in column: column min f16 O=1 A=1 B=1 C=32*N I=1; C limited, %z at 2, %g at 2
            h in column: column sum f16 O=1 A=1 B=1 C=1 I=32*N; I limited, %z at 2, %h at 2
            i in row: column sum f32 O=1 A=1 B=1 C=64 I=1; %s at 4, %i at 4
        "#]],
    );
}

#[test]
fn three_groups_of_axes_and_missing_capabilities_stay_on_the_fallback() {
    expect_plans(
        "%x: tensor<[2, M, 3, M, 4, 5], f32>) {
  %a = reduce %x {axes = [0, 2, 4], keep_dims = false, kind = sum} : tensor<[M, M, 5], f32>
  return %a
}",
        expect![[r#"
            a in fallback: no column
        "#]],
    );
    let source = "fir 1
func @f(%x: tensor<[M, 64], f32>) {
  %a = reduce %x {axes = [0], keep_dims = false, kind = sum} : tensor<[64], f32>
  return %a
}
";
    let (program, _) = fourfold_ir::load(source).unwrap_or_else(|errors| panic!("{errors:?}"));
    let op = program.module().ops.keys().next().expect("an op");
    assert!(is_column(&program, &columns(), op));
    let least = ColumnCapability { max_extent: 63, ..columns() };
    let none = ColumnCapability { reductions: vec![ReduceKind::Max], ..columns() };
    let others = ColumnCapability { elements: vec![ElementType::BF16], ..columns() };
    for capability in [least, none, others] {
        assert!(!is_column(&program, &capability, op));
        let mut capabilities = capabilities();
        capabilities.device.columns = Some(capability);
        let found = partition(&program, &capabilities);
        assert_eq!(found.segments[0].kind, SegmentKind::Fallback);
        // A plan of the usual target exceeds these.
        let planned = partition(&program, &self::capabilities());
        let refused = check(&program, &capabilities, &planned).expect_err("the target has no such kernel");
        let is_rule = |error: &CheckError| matches!(error, CheckError::Capability { .. });
        assert!(refused.iter().any(is_rule), "{refused:?}");
    }
}

/// A seeded generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit
    }
}

fn random_reduction(random: &mut Random) -> Module {
    let mut builder = Builder::new("f");
    let symbols = ["M", "K"].map(|name| builder.symbol(name));
    let rank = 1 + random.below(6);
    let extent = |random: &mut Random| match random.below(8) {
        0 => Dim::fixed(1),
        1 => symbols[0].clone(),
        2 => symbols[1].times(&Dim::fixed(3)).expect("a product"),
        _ => Dim::fixed(2 + random.below(6)),
    };
    let shape: Vec<Dim> = (0..rank).map(|_| extent(random)).collect();
    let mut axes: Vec<u32> = (0..rank as u32).filter(|_| random.below(2) == 0).collect();
    if axes.is_empty() {
        axes.push(0);
    }
    let element = [ElementType::F16, ElementType::BF16, ElementType::F32][random.below(3) as usize];
    let kind = ReduceKind::ALL[random.below(ReduceKind::ALL.len() as u64) as usize];
    let keep_dims = random.below(2) == 0;
    let x = builder.input("x", TensorType::new(shape.clone(), element));
    let is_reduced = |axis: usize| axes.contains(&(axis as u32));
    let kept = shape.iter().enumerate().filter(|(axis, _)| keep_dims || !is_reduced(*axis));
    let kept = kept.map(|(axis, dim)| if is_reduced(axis) { Dim::fixed(1) } else { dim.clone() }).collect();
    let op = OpKind::Reduce { kind, axes: axes.clone(), keep_dims };
    let results = builder.op(op, &[x], &[("y", TensorType::new(kept, element))]);
    builder.finish(&results)
}

/// A plan with each field changed in turn, so that it means something else.
fn faults(plan: &ColumnPlan) -> Vec<ColumnPlan> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut ColumnPlan)| {
        let mut wrong = plan.clone();
        change(&mut wrong);
        all.push(wrong);
    };
    for kind in ReduceKind::ALL.iter().copied().filter(|kind| *kind != plan.program.kind) {
        with(&|wrong| wrong.program.kind = kind);
    }
    for element in ElementType::ALL.iter().copied().filter(|element| *element != plan.program.element) {
        with(&|wrong| wrong.program.element = element);
    }
    with(&|wrong| wrong.operand = plan.result);
    with(&|wrong| wrong.result = plan.operand);
    for at in 0..5 {
        with(&|wrong| wrong.extents[at] = plan.extents[at].times(&Dim::fixed(2)).expect("a product"));
        with(&|wrong| wrong.extents[at] = Dim::fixed(13));
        for other in at + 1..5 {
            with(&|wrong| wrong.extents.swap(at, other));
        }
    }
    for at in 0..plan.constraints.len() {
        with(&|wrong| {
            wrong.constraints.remove(at);
        });
    }
    with(&|wrong| {
        wrong.constraints.push(Constraint::NotEmpty { name: "C", dim: plan.extents[3].clone() });
    });
    all
}

/// Returns whether two views, in which every extent is at least 2 or fixed, add the same elements to the same results:
/// they are equal once axes of one index are left out.
fn means_the_same(plan: &ColumnPlan, other: &ColumnPlan) -> bool {
    let axes = |plan: &ColumnPlan| -> Vec<(bool, Dim)> {
        let mut axes: Vec<(bool, Dim)> = Vec::new();
        for (at, dim) in plan.extents.iter().enumerate().filter(|(_, dim)| dim.as_fixed() != Some(1)) {
            match axes.last_mut() {
                Some((is_reduced, last)) if *is_reduced == (at % 2 == 1) => {
                    *last = last.times(dim).expect("a product");
                }
                _ => axes.push((at % 2 == 1, dim.clone())),
            }
        }
        axes
    };
    axes(plan) == axes(other)
}

#[test]
fn every_plan_passes_the_check_and_every_fault_fails_it() {
    let (mut planned, mut found, mut left) = (0, 0, 0);
    for seed in 0..400 {
        let program = verify(random_reduction(&mut Random(seed)))
            .unwrap_or_else(|errors| panic!("seed {seed}: {errors:?}"));
        let op = program.module().ops.keys().next().expect("an op");
        let Some(plan) = plan_column(&program, &columns(), op) else {
            left += 1;
            continue;
        };
        planned += 1;
        let mut partition: Partition = partition(&program, &capabilities());
        partition.segments[0].kind = SegmentKind::Kernel(Box::new(Plan::Column(plan.clone())));
        assert_eq!(check(&program, &capabilities(), &partition), Ok(()), "seed {seed}: {plan:?}");
        for wrong in faults(&plan) {
            let same_fields = ColumnPlan { extents: plan.extents.clone(), ..wrong.clone() } == plan;
            if same_fields && means_the_same(&plan, &wrong) {
                // The constraints name the extents, but the two views may have none.
                continue;
            }
            found += 1;
            partition.segments[0].kind = SegmentKind::Kernel(Box::new(Plan::Column(wrong.clone())));
            assert!(
                check(&program, &capabilities(), &partition).is_err(),
                "seed {seed}: {plan:?} is not {wrong:?}"
            );
        }
    }
    assert!(planned > 200 && found > 2000 && left > 0, "{planned} {found} {left}");
}

#[test]
fn constants_with_several_values_are_device_memory_and_every_fault_is_seen() {
    let source = "fir 1
func @f(%x: tensor<[2, 3], f32>) {
  %c = constant {value = [1, 2, 3, 4, 5, 6]} : tensor<[2, 3], f32>
  %splat = constant {value = 2} : tensor<[2, 3], f32>
  %a = add %x, %c : tensor<[2, 3], f32>
  %y = mul %a, %splat : tensor<[2, 3], f32>
  return %y
}
";
    let (program, _) = fourfold_ir::load(source).unwrap_or_else(|errors| panic!("{errors:?}"));
    let mut partition = partition(&program, &capabilities());
    assert_eq!(check(&program, &capabilities(), &partition), Ok(()));
    let kinds: Vec<&str> = partition.plans().map(|(_, plan)| plan.kind_name()).collect();
    assert_eq!(kinds, ["constant", "row"]);
    let [op, splat, add, _] = program.module().ops.keys().collect::<Vec<_>>()[..] else { panic!("four ops") };
    let result = |op| program.module().ops[op].results[0];
    for wrong in [
        ConstantPlan { op, result: result(splat) },
        ConstantPlan { op: splat, result: result(splat) },
        ConstantPlan { op: add, result: result(add) },
    ] {
        partition.segments[0].kind = SegmentKind::Kernel(Box::new(Plan::Constant(wrong)));
        let errors = check(&program, &capabilities(), &partition).expect_err("the plan is wrong");
        assert!(errors.iter().any(|error| matches!(error, CheckError::Shape { .. })), "{errors:?}");
    }
    let plan = ConstantPlan { op, result: result(op) };
    partition.segments[0].kind = SegmentKind::Kernel(Box::new(Plan::Constant(plan)));
    let mut none = capabilities();
    none.device.moves = None;
    let errors = check(&program, &none, &partition).expect_err("the target has no constants");
    assert!(errors.iter().any(|error| matches!(error, CheckError::Capability { .. })), "{errors:?}");
}
