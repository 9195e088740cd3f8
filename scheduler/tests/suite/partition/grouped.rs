//! Kernels of groups of rows.

use expect_test::expect;
use fourfold_ir::ElementType::{BF16, F4E2M1FN, F8E4M3FN, F32, I32};
use fourfold_ir::{
    BinaryKind, Builder, Capabilities, Dim, GroupedScaledMma, Module, OpKind, ReduceKind, ScaleLayout,
    TensorType, Value,
};
use fourfold_scheduler::{Plan, ReasonCode, SegmentKind, check};

use super::support::*;

fn with_groups() -> Capabilities {
    let mut capabilities = blackwell();
    for rules in &mut capabilities.formats {
        rules.max_groups = Some(300);
        rules.has_masked = true;
        rules.has_group_scales = true;
    }
    capabilities
}

/// A product of M rows in groups with an alpha for each, and D.
fn product(builder: &mut Builder, groups: u64, k: u64, layout: ScaleLayout, alphas: bool) -> Value {
    let m = builder.symbol("M");
    let a = builder.input("a", TensorType::new(vec![m.clone(), Dim::fixed(k)], F4E2M1FN));
    let of_a = vec![m.clone(), Dim::fixed(k / 16)];
    let sfa = builder.input("sfa", TensorType::scales(of_a, F8E4M3FN, ScaleLayout::Linear));
    let b = builder.param("b", tensor(&[groups, 72, k], F4E2M1FN));
    let of_b = [groups, 72, k / 16].map(Dim::fixed).to_vec();
    let sfb = builder.param("sfb", TensorType::scales(of_b, F8E4M3FN, layout));
    let ends = builder.input("ends", tensor(&[groups], I32));
    let of_alpha = if alphas { tensor(&[groups], F32) } else { tensor(&[], F32) };
    let alpha = builder.input("alpha", of_alpha);
    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
        block: 16,
        weight_only: false,
        alpha: true,
        masked: false,
        sfa_ends: false,
    });
    let ty = TensorType::new(vec![m, Dim::fixed(72)], F32);
    builder.op(kind, &[a, sfa, b, sfb, ends, alpha], &[("d", ty)])[0]
}

/// The product, weighted by row and rounded to bf16.
fn weighted(groups: u64, k: u64, layout: ScaleLayout, alphas: bool) -> Module {
    let mut builder = Builder::new("grouped");
    let d = product(&mut builder, groups, k, layout, alphas);
    let m = builder.ty(d).shape[0].clone();
    let weights = builder.input("weights", TensorType::new(vec![m, Dim::fixed(1)], F32));
    let y = builder.binary("y", BinaryKind::Mul, d, weights);
    let z = builder.convert("z", y, BF16);
    builder.finish(&[z])
}

#[test]
fn the_plan_has_offsets_alphas_and_the_extent_of_the_groups() {
    let (program, partition) = planned(weighted(7, 96, ScaleLayout::Blocked, true), &with_groups());
    expect![[r#"
        0 kernel nvfp4 1xMx72x96 f32 -> %z
            %y = mul(acc, column %weights f32) f32
            %z = convert(%y) bf16
          %a %sfa %b %sfb %ends %alpha %weights -> %z
    "#]]
    .assert_eq(&text(&program, &partition));
    expect![[r#"
        M = M <= 2147483647
        scales of A, 1 x M x 96/16 <= 2147483647
        %a by 16
        %sfa by 16
        %b by 16
        %sfb by 16
        %weights by 16
        %ends by 4
        %alpha by 4
        %z by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
    let plan = Plan::from(partition.kernels().next().expect("a kernel").1.clone());
    let names = |roles: Vec<(String, Value)>| roles.into_iter().map(|(role, _)| role).collect::<Vec<_>>();
    let roles = plan.roles();
    assert_eq!(names(roles.operands), ["a", "sfa", "b", "sfb", "offsets", "alphas", "x0"]);
    assert!(roles.scalars.is_empty());
    assert_eq!(plan.signature(&program), "nvfp4 grouped_alpha alpha column=f32 d=bf16");
    let dims: Vec<&str> = plan.dims().into_iter().map(|(name, _)| name).collect();
    assert_eq!(dims, ["L", "M", "N", "K", "E"]);
}

#[test]
fn one_alpha_is_a_scalar() {
    let (program, partition) = planned(weighted(7, 96, ScaleLayout::Blocked, false), &with_groups());
    let plan = Plan::from(partition.kernels().next().expect("a kernel").1.clone());
    assert_eq!(plan.roles().scalars.len(), 1);
    assert_eq!(plan.signature(&program), "nvfp4 grouped alpha column=f32 d=bf16");
}

#[test]
fn groups_that_no_kernel_takes_have_their_reasons() {
    let of = |module, capabilities: &Capabilities| reason(module, capabilities, "d").expect("a reason");
    let mut without = blackwell();
    without.formats.iter_mut().for_each(|rules| rules.max_groups = None);
    let (code, message) = of(weighted(7, 96, ScaleLayout::Blocked, true), &without);
    assert_eq!(code, ReasonCode::GroupedUnsupported);
    expect!["%d = grouped_scaled_mma: sm_100a has no kernel for a grouped_scaled_mma of nvfp4"]
        .assert_eq(&message);
    let (code, message) = of(weighted(7, 96, ScaleLayout::Linear, true), &with_groups());
    assert_eq!(code, ReasonCode::ScaleLayout);
    expect!["%d = grouped_scaled_mma: %sfb, the scales of B, are linear; expected blocked"]
        .assert_eq(&message);
    let (code, message) = of(weighted(301, 96, ScaleLayout::Blocked, true), &with_groups());
    assert_eq!(code, ReasonCode::ExtentRange);
    expect!["%d = grouped_scaled_mma: E is 301; expected at most 300"].assert_eq(&message);
    let (code, _) = of(weighted(7, 80, ScaleLayout::Blocked, true), &with_groups());
    assert_eq!(code, ReasonCode::KAlignment);
}

#[test]
fn a_kernel_of_groups_writes_values_only() {
    let mut builder = Builder::new("grouped");
    let d = product(&mut builder, 7, 96, ScaleLayout::Blocked, true);
    let amax = reduce(&mut builder, "amax", ReduceKind::Amax, &[0, 1], d);
    let (code, message) = reason(builder.finish(&[d, amax]), &with_groups(), "amax").expect("a reason");
    assert_eq!(code, ReasonCode::UnsupportedEpilogueOp);
    expect!["%amax = reduce: a kernel of groups of rows writes values only"].assert_eq(&message);
}

#[test]
fn the_checker_finds_other_groups() {
    let (program, partition) = planned(weighted(7, 96, ScaleLayout::Blocked, true), &with_groups());
    let changes: [fn(&mut fourfold_scheduler::Groups); 3] = [
        |groups| groups.has_alphas = false,
        |groups| groups.count = Dim::fixed(8),
        |groups| groups.offsets = fourfold_ir::Entity::from_index(0),
    ];
    for change in changes {
        let mut changed = partition.clone();
        for segment in &mut changed.segments {
            if let SegmentKind::Kernel(plan) = &mut segment.kind
                && let Plan::ScaledMma(plan) = &mut **plan
            {
                change(plan.groups.as_mut().expect("groups"));
            }
        }
        assert!(check(&program, &with_groups(), &changed).is_err());
    }
}

/// A product of M rows in seven groups, whose scales have whole tiles for each group.
fn padded() -> Module {
    let mut builder = Builder::new("padded");
    let [m, p] = ["M", "P"].map(|name| builder.symbol(name));
    let a = builder.input("a", TensorType::new(vec![m.clone(), Dim::fixed(96)], F4E2M1FN));
    let of_a = TensorType::scales(vec![p, Dim::fixed(6)], F8E4M3FN, ScaleLayout::Blocked);
    let sfa = builder.input("sfa", of_a);
    let b = builder.param("b", tensor(&[7, 72, 96], F4E2M1FN));
    let of_b = [7, 72, 6].map(Dim::fixed).to_vec();
    let sfb = builder.param("sfb", TensorType::scales(of_b, F8E4M3FN, ScaleLayout::Blocked));
    let ends = builder.input("ends", tensor(&[7], I32));
    let sfa_ends = builder.input("sfa_ends", tensor(&[7], I32));
    let kind =
        GroupedScaledMma { block: 16, weight_only: false, alpha: false, masked: false, sfa_ends: true };
    let operands = [a, sfa, b, sfb, ends, sfa_ends];
    let d = TensorType::new(vec![m, Dim::fixed(72)], F32);
    let d = builder.op(OpKind::GroupedScaledMma(kind), &operands, &[("d", d)])[0];
    builder.finish(&[d])
}

#[test]
fn padded_scales_have_rows_and_ends_of_their_own() {
    let (program, partition) = planned(padded(), &with_groups());
    let plan = Plan::from(partition.kernels().next().expect("a kernel").1.clone());
    assert_eq!(plan.signature(&program), "nvfp4 grouped blocked d=f32");
    let dims: Vec<&str> = plan.dims().into_iter().map(|(name, _)| name).collect();
    assert_eq!(dims, ["L", "M", "N", "K", "E", "P"]);
    let roles: Vec<String> = plan.roles().operands.into_iter().map(|(role, _)| role).collect();
    assert_eq!(roles, ["a", "sfa", "b", "sfb", "offsets", "sfa_ends"]);
    expect![[r#"
        0 kernel nvfp4 1xMx72x96 f32 -> %d
          %a %sfa %b %sfb %ends %sfa_ends -> %d
    "#]]
    .assert_eq(&text(&program, &partition));
    let changes: [fn(&mut fourfold_scheduler::Groups); 3] = [
        |groups| groups.scales = Some([1, 8].map(Dim::fixed)),
        |groups| groups.scales = None,
        |groups| groups.sfa_ends = Some(fourfold_ir::Entity::from_index(4)),
    ];
    for change in changes {
        let mut changed = partition.clone();
        for segment in &mut changed.segments {
            if let SegmentKind::Kernel(plan) = &mut segment.kind
                && let Plan::ScaledMma(plan) = &mut **plan
            {
                change(plan.groups.as_mut().expect("groups"));
            }
        }
        assert!(check(&program, &with_groups(), &changed).is_err());
    }
    let mut without = with_groups();
    without.formats.iter_mut().for_each(|rules| rules.has_group_scales = false);
    assert!(check(&program, &without, &partition).is_err(), "a kernel that the target lacks");
    let (code, message) = reason(padded(), &without, "d").expect("a reason");
    assert_eq!(code, ReasonCode::ScaleLayout);
    expect!["%d = grouped_scaled_mma: %sfa, the scales of A, are blocked; expected linear"]
        .assert_eq(&message);
}

/// A product of seven matrices of M rows, weighted by row and rounded to bf16.
fn masked(of_a: ScaleLayout) -> Module {
    let mut builder = Builder::new("masked");
    let m = builder.symbol("M");
    let of = |last: u64| vec![Dim::fixed(7), m.clone(), Dim::fixed(last)];
    let a = builder.input("a", TensorType::new(of(96), F4E2M1FN));
    let sfa = builder.input("sfa", TensorType::scales(of(6), F8E4M3FN, of_a));
    let b = builder.param("b", tensor(&[7, 72, 96], F4E2M1FN));
    let of_b = [7, 72, 6].map(Dim::fixed).to_vec();
    let sfb = builder.param("sfb", TensorType::scales(of_b, F8E4M3FN, ScaleLayout::Blocked));
    let counts = builder.input("counts", tensor(&[7], I32));
    let kind =
        GroupedScaledMma { block: 16, weight_only: false, alpha: false, masked: true, sfa_ends: false };
    let d = TensorType::new(of(72), F32);
    let d = builder.op(OpKind::GroupedScaledMma(kind), &[a, sfa, b, sfb, counts], &[("d", d)])[0];
    let weights = builder.input("weights", TensorType::new(of(1), F32));
    let y = builder.binary("y", BinaryKind::Mul, d, weights);
    let z = builder.convert("z", y, BF16);
    builder.finish(&[z])
}

#[test]
fn matrices_of_groups_are_rows_of_one() {
    let (program, partition) = planned(masked(ScaleLayout::Linear), &with_groups());
    let (_, plan) = partition.kernels().next().expect("a kernel");
    assert!(plan.groups.as_ref().is_some_and(|groups| groups.masked && !groups.has_alphas));
    assert_eq!(program.module().display_dim(&plan.m).to_string(), "7*M");
    let plan = Plan::from(plan.clone());
    assert_eq!(plan.signature(&program), "nvfp4 masked column=f32 d=bf16");
    let mut changed = partition.clone();
    for segment in &mut changed.segments {
        if let SegmentKind::Kernel(plan) = &mut segment.kind
            && let Plan::ScaledMma(plan) = &mut **plan
        {
            plan.groups.as_mut().expect("groups").masked = false;
        }
    }
    assert!(check(&program, &with_groups(), &changed).is_err());
}

#[test]
fn matrices_of_groups_may_have_blocked_scales() {
    let (program, partition) = planned(masked(ScaleLayout::Blocked), &with_groups());
    let plan = Plan::from(partition.kernels().next().expect("a kernel").1.clone());
    assert_eq!(plan.signature(&program), "nvfp4 masked blocked column=f32 d=bf16");
    let dims: Vec<&str> = plan.dims().into_iter().map(|(name, _)| name).collect();
    assert_eq!(dims, ["L", "M", "N", "K", "E"]);
    expect![[r#"
        M = 7*M <= 2147483647
        scales of A, 1 x 7*M x 96/16 <= 2147483647
        scales of A's groups, 7 x M x 96/16 <= 2147483647
        %a by 16
        %sfa by 16
        %b by 16
        %sfb by 16
        %weights by 16
        %counts by 4
        %z by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
}

#[test]
fn masked_products_that_no_kernel_takes_have_their_reasons() {
    let of = |module, capabilities: &Capabilities| reason(module, capabilities, "d").expect("a reason");
    let mut without = with_groups();
    without.formats.iter_mut().for_each(|rules| rules.has_masked = false);
    let (code, message) = of(masked(ScaleLayout::Linear), &without);
    assert_eq!(code, ReasonCode::GroupedUnsupported);
    expect!["%d = masked_scaled_mma: sm_100a has no kernel for a masked_scaled_mma of nvfp4"]
        .assert_eq(&message);
    let (program, partition) = planned(masked(ScaleLayout::Linear), &with_groups());
    assert!(
        check(&program, &without, &partition).is_err(),
        "the checker finds a kernel that the target lacks"
    );
    without.formats.iter_mut().for_each(|rules| (rules.has_masked, rules.has_group_scales) = (true, false));
    let (code, message) = of(masked(ScaleLayout::Blocked), &without);
    assert_eq!(code, ReasonCode::ScaleLayout);
    expect!["%d = masked_scaled_mma: %sfa, the scales of A, are blocked; expected linear"]
        .assert_eq(&message);
}
