//! A `block_quantize` outside every epilogue becomes a segment of the device tier.

use fourfold_ir::{
    BinaryKind, Builder, Capabilities, DeviceCapability, Dim, ElementType, Entity, Module, OpKind, Program,
    ScaleLayout, ScaleRounding, SymbolValues, TensorType, UnaryKind, Value,
};
use fourfold_scheduler::{
    BlockQuantizePlan, CheckError, Constraint, Partition, Plan, ReasonCode, SegmentKind, Tier, check,
    partition, violated,
};

use super::support::*;

use ElementType::{BF16, F4E2M1FN, F8E5M2, F8E8M0FNU, F16, F32};

/// Quantizes values before a product, and the product's result in its epilogue.
fn around_a_product() -> Module {
    let mut builder = Builder::new("around");
    let m = builder.symbol("M");
    let values = builder.input("values", TensorType::new(vec![m.clone(), Dim::fixed(96)], F16));
    let global = builder.input("g", tensor(&[], F32));
    let active = builder.unary("active", UnaryKind::Gelu, values);
    let [a, sfa] = quantize(&mut builder, "a", active, global);
    let [_, _, b, sfb] = Gemm { m, ..Gemm::of(F32, 1, 64, 96) }.inputs(&mut builder, "w");
    let d = builder.scaled_mma("d", a, sfa, b, sfb, 16, BF16, Default::default());
    let [q, s] = quantize(&mut builder, "next", d, global);
    builder.finish(&[q, s])
}

fn of_target(module: Module, target: &str) -> (Program, Partition) {
    let program = verified(module);
    // Without row kernels, which would take the ops around a quantization.
    let capabilities = fourfold_codegen::capabilities(target).expect("a target");
    let capabilities = Capabilities { device: DeviceCapability::default(), ..capabilities };
    let partition = partition(&program, &capabilities);
    assert_eq!(check(&program, &capabilities, &partition), Ok(()), "{}", text(&program, &partition));
    (program, partition)
}

const AROUND: &str = "\
0 fallback %active = gelu
  %values -> %active
1 device block_quantize 1xMx96 f16 to f4E2M1FN per 16 blocked
  %g %active -> %a.q %a.s
2 kernel nvfp4 1xMx64x96 bf16 -> %next.q %next.s
    quantize acc to f4E2M1FN per 16 by scalar %g f32
  %g %a.q %a.s %w.b %w.sfb -> %next.q %next.s
op0 in 0: no_scaled_mma_producer: %active = gelu: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
op1 in 1: no_scaled_mma_producer: %a.q, %a.s = block_quantize: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
";

/// The same where an epilogue that quantizes is slower than a kernel of its own.
const AROUND_HOPPER: &str = "\
0 fallback %active = gelu
  %values -> %active
1 device block_quantize 1xMx96 f16 to f4E2M1FN per 16 blocked
  %g %active -> %a.q %a.s
2 kernel nvfp4 1xMx64x96 bf16 -> %d
  %a.q %a.s %w.b %w.sfb -> %d
3 device block_quantize 1xMx64 bf16 to f4E2M1FN per 16 blocked
  %g %d -> %next.q %next.s
op0 in 0: no_scaled_mma_producer: %active = gelu: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
op1 in 1: no_scaled_mma_producer: %a.q, %a.s = block_quantize: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
op3 in 3: faster_alone: %next.q, %next.s = block_quantize: the target quantizes faster in a kernel of its own than in that of %d = scaled_mma
";

#[test]
fn a_quantization_behind_a_product_is_a_device_segment_where_that_is_faster() {
    let (program, partition) = of_target(around_a_product(), "sm_90a");
    assert_eq!(text(&program, &partition), AROUND_HOPPER);
    // A host that takes kernels only has the epilogue quantize.
    let capabilities = fourfold_codegen::capabilities("sm_90a").expect("a target");
    let device = DeviceCapability::default();
    let kernels_only = Capabilities { block_quantize: None, device, ..capabilities };
    let kernels = fourfold_scheduler::partition(&program, &kernels_only);
    assert_eq!(check(&program, &kernels_only, &kernels), Ok(()));
    assert!(text(&program, &kernels).contains("quantize acc to f4E2M1FN per 16"));
}

#[test]
fn linear_scales_are_no_reason_where_no_layout_would_join() {
    let of = |target: &str| {
        let mut builder = Builder::new("linear");
        let d = Gemm::of(BF16, 37, 64, 96).build(&mut builder, "d");
        let global = builder.input("g", tensor(&[], F32));
        let kind = OpKind::block_quantize(16, None);
        let scales =
            TensorType::scales([37, 4].map(Dim::fixed).to_vec(), ElementType::F8E4M3FN, ScaleLayout::Linear);
        let results = builder.op(kind, &[d, global], &[("y", tensor(&[37, 64], F4E2M1FN)), ("s", scales)]);
        let capabilities = fourfold_codegen::capabilities(target).expect("a target");
        reason(builder.finish(&results), &capabilities, "y").expect("a reason")
    };
    assert_eq!(of("sm_90a").0, ReasonCode::FasterAlone);
    let expected = "%y, %s = block_quantize: %s are linear scales; expected blocked scales";
    assert_eq!(of("sm_120a"), (ReasonCode::UnsupportedEpilogueOp, expected.to_owned()));
}

#[test]
fn a_quantization_before_a_product_is_a_device_segment_and_one_behind_it_an_output() {
    for target in ["sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
        let (program, partition) = of_target(around_a_product(), target);
        assert_eq!(text(&program, &partition), AROUND, "{target}");
        let tiers: Vec<Tier> = partition.segments.iter().map(|segment| segment.tier()).collect();
        assert_eq!(tiers, [Tier::Fallback, Tier::Device, Tier::Kernel]);
        assert_eq!((partition.kernels().count(), partition.plans().count()), (1, 2));
        let device = &partition.segments[1];
        let reason = partition.decisions[device.ops[0].index()].rejection.as_ref();
        assert_eq!(
            reason.map(|reason| reason.code),
            Some(ReasonCode::NoScaledMmaProducer),
            "the op is outside every kernel"
        );
    }
    let (_, partition) = of_target(around_a_product(), "cpu");
    assert_eq!(partition.plans().count(), 0);
}

/// Stands for the symbol M among extents.
const SYMBOLIC: u64 = u64::MAX;

/// One quantization of values with these extents.
fn alone(dims: &[u64], input: ElementType, element: ElementType, layout: ScaleLayout) -> Module {
    let mut builder = Builder::new("alone");
    let dims: Vec<Dim> = dims
        .iter()
        .map(|dim| if *dim == SYMBOLIC { builder.symbol("M") } else { Dim::fixed(*dim) })
        .collect();
    let dims = &dims[..];
    let values = builder.input("v", TensorType::new(dims.to_vec(), input));
    let mut blocks = dims.to_vec();
    let last = blocks.last_mut().expect("a row");
    *last = last.divided_by(32).expect("whole blocks");
    let kind = OpKind::block_quantize(32, Some(ScaleRounding::Ceil));
    let types = [TensorType::new(dims.to_vec(), element), TensorType::scales(blocks, F8E8M0FNU, layout)];
    let [codes, scales] = types;
    let results = builder.op(kind, &[values], &[("q", codes), ("s", scales)]);
    builder.finish(&results)
}

fn plan_of(partition: &Partition) -> Option<&BlockQuantizePlan> {
    match partition.plans().next()?.1 {
        Plan::BlockQuantize(plan) => Some(plan),
        _ => None,
    }
}

#[test]
fn every_type_and_layout_has_a_device_segment() {
    for input in [BF16, F16, F32] {
        for element in [F4E2M1FN, ElementType::F8E4M3FN, F8E5M2] {
            for layout in [ScaleLayout::Blocked, ScaleLayout::Linear] {
                let module = alone(&[3, 5, 37, 96], input, element, layout);
                let (program, partition) = of_target(module, "sm_90a");
                let plan = plan_of(&partition).expect("a device segment");
                assert_eq!((plan.input, plan.format.element, plan.layout), (input, element, layout));
                let extents = Plan::BlockQuantize(plan.clone()).extents(&SymbolValues::default());
                assert_eq!(extents, Some(vec![("L", 15), ("M", 37), ("K", 96)]));
                let signature = Plan::BlockQuantize(plan.clone()).signature(&program);
                assert_eq!(
                    signature,
                    format!("block_quantize values={input} q={element}:f8E8M0FNU/32:ceil {layout}")
                );
            }
        }
    }
}

#[test]
fn extents_that_no_launch_takes_are_the_fallback_s() {
    const ROWS: u64 = 1 << 21;
    let of = |dims: &[u64]| {
        let (_, partition) = of_target(alone(dims, BF16, F4E2M1FN, ScaleLayout::Blocked), "sm_90a");
        plan_of(&partition).is_some()
    };
    assert!(of(&[ROWS, 32 * 1020]) && !of(&[ROWS, 32 * 1024]), "2^31 bytes of scales are one too many");
    assert!(!of(&[37, 0]) && of(&[0, 32]), "a row without values has no blocks");
    assert!(!of(&[1 << 31, 32]) && !of(&[1 << 31, 1, 32]));

    let (program, partition) =
        of_target(alone(&[SYMBOLIC, 64], BF16, F4E2M1FN, ScaleLayout::Linear), "sm_90a");
    let plan = plan_of(&partition).expect("a device segment");
    let symbol = program.module().symbols.keys().next().expect("M");
    let call = |m: u64| {
        let mut values = SymbolValues::default();
        values.set(symbol, m);
        violated(&plan.constraints, &values).map(|rejection| (rejection.code, rejection.message))
    };
    assert_eq!((call(0), call(1), call((1 << 29) - 128)), (None, None, None));
    let bytes = "the scales of the result are too large; expected at most 2147483647 bytes";
    assert_eq!(call(1 << 29), Some((ReasonCode::ExtentRange, bytes.to_owned())));
    let extent = "M is 2147483648; expected at most 2147483647";
    assert_eq!(call(1 << 31), Some((ReasonCode::ExtentRange, extent.to_owned())));
}

#[test]
fn the_checker_notices_whatever_is_wrong_with_a_device_segment() {
    type Change = fn(&mut BlockQuantizePlan);
    let changes: [Change; 15] = [
        |plan| std::mem::swap(&mut plan.codes, &mut plan.scales),
        |plan| plan.values = plan.codes,
        |plan| plan.global = Some(plan.values),
        |plan| plan.input = F32,
        |plan| plan.format.element = F8E5M2,
        |plan| plan.format.block = 16,
        |plan| plan.scale_rounding = Some(ScaleRounding::Floor),
        |plan| plan.layout = ScaleLayout::Linear,
        |plan| plan.batch = Dim::fixed(2),
        |plan| plan.m = Dim::fixed(36),
        |plan| plan.k = Dim::fixed(96),
        |plan| plan.constraints.clear(),
        |plan| drop(plan.constraints.pop()),
        |plan| plan.constraints.push(Constraint::NotEmpty { name: "K", dim: plan.k.clone() }),
        |plan| {
            for constraint in &mut plan.constraints {
                if let Constraint::ScaleBytes { limit, .. } = constraint {
                    *limit += 1;
                }
            }
        },
    ];
    let module = alone(&[SYMBOLIC, 64], BF16, F4E2M1FN, ScaleLayout::Blocked);
    let (program, right) = of_target(module, "sm_90a");
    let capabilities = fourfold_codegen::capabilities("sm_90a").expect("a target");
    for (number, change) in changes.iter().enumerate() {
        let mut partition = right.clone();
        let SegmentKind::Kernel(plan) = &mut partition.segments[0].kind else { panic!("no plan") };
        let Plan::BlockQuantize(plan) = &mut **plan else { panic!("another plan") };
        change(plan);
        assert!(check(&program, &capabilities, &partition).is_err(), "change {number}");
    }
    // A target without device kernels, and an op of the device tier without a reason.
    let cpu = fourfold_codegen::capabilities("cpu").expect("a target");
    let of_cpu = Partition { target: "cpu".to_owned(), ..right.clone() };
    assert!(check(&program, &cpu, &of_cpu).is_err());
    let mut silent = right;
    silent.decisions[0].rejection = None;
    let errors = check(&program, &capabilities, &silent).expect_err("the decision has no reason");
    assert!(matches!(errors[..], [CheckError::Reason { in_kernel: false, found: None, .. }]), "{errors:?}");
}

#[test]
fn a_value_of_a_device_segment_may_feed_several_kernels_in_either_order() {
    let mut builder = Builder::new("several");
    let values: Value = builder.input("v", tensor(&[37, 64], F32));
    let global = builder.input("g", tensor(&[], F32));
    let [q, s] = quantize(&mut builder, "q", values, global);
    let mut products = Vec::new();
    for name in ["left", "right"] {
        let [_, _, b, sfb] = Gemm::of(F32, 37, 48, 64).inputs(&mut builder, name);
        products.push(builder.scaled_mma(name, q, s, b, sfb, 16, F32, Default::default()));
    }
    let sum = builder.binary("sum", BinaryKind::Add, products[0], products[1]);
    let (program, partition) = of_target(builder.finish(&[sum]), "sm_100a");
    let tiers: Vec<Tier> = partition.segments.iter().map(|segment| segment.tier()).collect();
    assert_eq!(tiers, [Tier::Device, Tier::Kernel, Tier::Kernel], "{}", text(&program, &partition));
}
