//! Accepted kernels: parts of the epilogue, layouts, batches, and constraints on calls.

use expect_test::expect;
use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, Dim, ElementType, Module, Predicate, ScaledMmaOptions, Symbol,
    SymbolValues, TensorType, UnaryKind, Value,
};
use fourfold_scheduler::{Constraint, EpilogueKind, EpilogueRef, ReasonCode, violated};

use super::support::*;

use ElementType::{BF16, F16, F32};

fn full_epilogue() -> Module {
    let mut builder = Builder::new("full");
    let m = builder.symbol("M");
    let alpha = builder.input("alpha", tensor(&[], F32));
    let c = builder.input("c", TensorType::new(vec![m.clone(), Dim::fixed(136)], BF16));
    let beta = builder.input("beta", tensor(&[1], F32));
    let bias = builder.param("bias", tensor(&[136], F16));
    let options = ScaledMmaOptions { alpha: Some(alpha), c: Some(c), beta: Some(beta) };
    let d = Gemm { options, ..Gemm::new(m, 136, 352) }.build(&mut builder, "d");
    let biased = builder.binary("biased", BinaryKind::Add, bias, d);
    let y = builder.unary("y", UnaryKind::Silu, biased);
    let out = builder.convert("out", y, BF16);
    builder.finish(&[out])
}

#[test]
fn bias_activation_and_conversion_run_in_one_kernel() {
    check_partition(
        full_epilogue(),
        expect![[r#"
            0 kernel nvfp4 1xMx136x352 f32 -> %out
                %biased = add(row %bias f16, acc) f32
                %y = silu(%biased) f32
                %out = convert(%y) bf16
              %alpha %c %beta %bias %d.a %d.sfa %d.b %d.sfb -> %out
        "#]],
    );
}

#[test]
fn the_plan_states_every_operand_the_proof_and_what_a_call_must_meet() {
    let (program, partition) = planned(full_epilogue(), &blackwell());
    let (_, plan) = partition.kernels().next().expect("a kernel");
    let value = |name| program.facts().value_named(name);
    assert_eq!((plan.alpha, plan.c, plan.beta), (value("alpha"), value("c"), value("beta")));
    assert_eq!(
        [Some(plan.a), plan.sfa, Some(plan.b), Some(plan.sfb)],
        ["d.a", "d.sfa", "d.b", "d.sfb"].map(value)
    );
    assert_eq!(
        plan.proof,
        [
            "scaled_mma-is-root",
            "binary-joins-after-operand",
            "unary-joins",
            "convert-joins",
            "result-is-written"
        ]
    );
    expect![[r#"
        M = M <= 2147483647
        scales of A, 1 x M x 352/16 <= 2147483647
        %d.a by 16
        %d.sfa by 16
        %d.b by 16
        %d.sfb by 16
        %c by 16
        %bias by 16
        %out by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
}

#[test]
fn each_step_keeps_the_rounding_that_the_program_states() {
    let mut builder = Builder::new("narrow_steps");
    let bias = builder.param("bias", tensor(&[1, 104], BF16));
    let d = Gemm::of(BF16, 37, 104, 224).build(&mut builder, "d");
    let biased = builder.binary("biased", BinaryKind::Add, d, bias);
    let y = builder.unary("y", UnaryKind::Relu, biased);
    let out = builder.convert("out", y, F32);
    check_partition(
        builder.finish(&[out]),
        expect![[r#"
            0 kernel nvfp4 1x37x104x224 bf16 -> %out
                %biased = add(acc, row %bias bf16) bf16
                %y = relu(%biased) bf16
                %out = convert(%y) f32
              %bias %d.a %d.sfa %d.b %d.sfb -> %out
        "#]],
    );
}

#[test]
fn a_bias_of_another_type_widens_the_sum() {
    let mut builder = Builder::new("widening");
    let bias = builder.param("bias", tensor(&[104], F16));
    let d = Gemm::of(BF16, 1, 104, 96).build(&mut builder, "d");
    let biased = builder.binary("biased", BinaryKind::Add, d, bias);
    check_partition(
        builder.finish(&[biased]),
        expect![[r#"
            0 kernel nvfp4 1x1x104x96 bf16 -> %biased
                %biased = add(acc, row %bias f16) f32
              %bias %d.a %d.sfa %d.b %d.sfb -> %biased
        "#]],
    );
}

#[test]
fn any_part_of_the_epilogue_may_be_absent() {
    for parts in 0..8u32 {
        let [bias, activation, conversion] = [1, 2, 4].map(|part| parts & part != 0);
        let mut builder = Builder::new("parts");
        let vector = builder.param("bias", tensor(&[1, 1, 56], F32));
        let batch = vec![Dim::fixed(3)];
        let gemm = Gemm { batch: batch.clone(), b_batch: batch, ..Gemm::new(Dim::fixed(91), 56, 96) };
        let mut value = gemm.build(&mut builder, "d");
        if bias {
            value = builder.binary("biased", BinaryKind::Add, value, vector);
        }
        if activation {
            value = builder.unary("activated", UnaryKind::GeluTanh, value);
        }
        if conversion {
            value = builder.convert("converted", value, F16);
        }
        let (program, partition) = planned(builder.finish(&[value]), &blackwell());
        assert_eq!(partition.segments.len(), 1, "{}", text(&program, &partition));
        let (_, plan) = partition.kernels().next().expect("a kernel");
        assert_eq!(plan.epilogue.len() as u32, parts.count_ones());
        assert_eq!(plan.written().collect::<Vec<_>>(), [value]);
        assert_eq!((plan.batch.as_fixed(), plan.b_batched), (Some(3), true));
    }
}

#[test]
fn a_conversion_that_cannot_be_written_leaves_the_rest_in_the_kernel() {
    let mut builder = Builder::new("prefix");
    let bias = builder.param("bias", tensor(&[12], F32));
    let d = Gemm::of(F32, 130, 12, 96).build(&mut builder, "d");
    let biased = builder.binary("biased", BinaryKind::Add, d, bias);
    let out = builder.convert("out", biased, BF16);
    let more = builder.unary("more", UnaryKind::Relu, out);
    check_partition(
        builder.finish(&[more]),
        expect![[r#"
            0 kernel nvfp4 1x130x12x96 f32 -> %biased
                %biased = add(acc, row %bias f32) f32
              %bias %d.a %d.sfa %d.b %d.sfb -> %biased
            1 fallback %out = convert; %more = relu
              %biased -> %more
            op2 in 1: n_alignment: %out = convert: N is 12; expected a multiple of 8 for a bf16 result
            op3 in 1: no_scaled_mma_producer: %more = relu: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
        "#]],
    );
}

#[test]
fn a_conversion_can_make_a_result_writable_that_is_not_on_its_own() {
    let mut builder = Builder::new("widened");
    let d = Gemm::of(BF16, 37, 12, 96).build(&mut builder, "d");
    let wide = builder.convert("wide", d, F32);
    check_partition(
        builder.finish(&[wide]),
        expect![[r#"
            0 kernel nvfp4 1x37x12x96 bf16 -> %wide
                %wide = convert(acc) f32
              %d.a %d.sfa %d.b %d.sfb -> %wide
        "#]],
    );
    // The narrow target writes only bf16, so three ops must come first.
    let mut builder = Builder::new("late");
    let bias = builder.param("bias", tensor(&[48], BF16));
    let d = Gemm::of(F32, 37, 48, 128).build(&mut builder, "d");
    let biased = builder.binary("biased", BinaryKind::Add, d, bias);
    let y = builder.unary("y", UnaryKind::Relu, biased);
    let out = builder.convert("out", y, BF16);
    let (_, partition) = planned(builder.finish(&[out]), &narrow());
    let (_, plan) = partition.kernels().next().expect("a kernel");
    assert_eq!(plan.epilogue.len(), 3);
}

#[test]
fn one_row_may_be_added_to_another_and_to_itself() {
    let mut builder = Builder::new("rows");
    let left = Gemm::of(F32, 1, 56, 96).build(&mut builder, "left");
    let right = Gemm::of(F32, 1, 56, 96).build(&mut builder, "right");
    let sum = builder.binary("sum", BinaryKind::Add, left, right);
    let alone = Gemm::of(F32, 1, 56, 96).build(&mut builder, "alone");
    let twice = builder.binary("twice", BinaryKind::Add, alone, alone);
    check_partition(
        builder.finish(&[sum, twice]),
        expect![[r#"
            0 kernel nvfp4 1x1x56x96 f32 -> %left
              %left.a %left.sfa %left.b %left.sfb -> %left
            1 kernel nvfp4 1x1x56x96 f32 -> %twice
                %twice = add(acc, acc) f32
              %alone.a %alone.sfa %alone.b %alone.sfb -> %twice
            2 kernel nvfp4 1x1x56x96 f32 -> %sum
                %sum = add(row %left f32, acc) f32
              %left %right.a %right.sfa %right.b %right.sfb -> %sum
        "#]],
    );
}

fn shared_b(m: Dim, l: Dim, builder: &mut Builder) -> fourfold_ir::Value {
    Gemm { batch: vec![l], element: BF16, ..Gemm::new(m, 40, 224) }.build(builder, "d")
}

#[test]
fn a_shared_b_flattens_the_batch_when_scales_have_no_padding_between_matrices() {
    let mut builder = Builder::new("flat");
    let [l, s] = ["L", "S"].map(|name| builder.symbol(name));
    let m = Dim::product(256, s.symbols().to_vec());
    let d = shared_b(m, l, &mut builder);
    let (program, partition) = planned(builder.finish(&[d]), &blackwell());
    expect![[r#"
        0 kernel nvfp4 Lx256*Sx40x224 bf16 -> %d
          %d.a %d.sfa %d.b %d.sfb -> %d
    "#]]
    .assert_eq(&text(&program, &partition));
    expect![[r#"
        L*M = 256*L*S <= 2147483647
        scales of A, 1 x 256*L*S x 224/16 <= 2147483647
        %d.a by 16
        %d.sfa by 16
        %d.b by 16
        %d.sfb by 16
        %d by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
    let (_, plan) = partition.kernels().next().expect("a kernel");
    assert!(!plan.b_batched);
}

#[test]
fn a_batch_of_one_needs_no_flattening() {
    let mut builder = Builder::new("one");
    let d = shared_b(Dim::fixed(45), Dim::fixed(1), &mut builder);
    let (_, partition) = planned(builder.finish(&[d]), &blackwell());
    assert_eq!(partition.kernels().count(), 1);
}

#[test]
fn no_rows_are_legal() {
    let mut builder = Builder::new("empty");
    let d = Gemm::of(BF16, 0, 40, 224).build(&mut builder, "d");
    let (_, partition) = planned(builder.finish(&[d]), &blackwell());
    assert_eq!(partition.kernels().count(), 1);
}

#[test]
fn extents_that_cannot_be_proved_are_checked_for_each_call() {
    let mut builder = Builder::new("symbolic");
    let [m, j, s] = ["M", "J", "S"].map(|name| builder.symbol(name));
    let n = Dim::product(2, j.symbols().to_vec());
    let k = Dim::product(16, s.symbols().to_vec());
    let c = builder.input("c", TensorType::new(vec![m.clone(), n.clone()], F32));
    let options = ScaledMmaOptions { c: Some(c), ..ScaledMmaOptions::default() };
    let d = Gemm { n, k, options, element: BF16, ..Gemm::new(m, 0, 0) }.build(&mut builder, "d");
    let (program, partition) = planned(builder.finish(&[d]), &blackwell());
    expect![[r#"
        K = 16*S % 32 == 0 or k_alignment
        N = 2*J % 8 == 0 or n_alignment
        M = M <= 2147483647
        N = 2*J <= 4194048
        K = 16*S <= 2147483647
        1 x M x 2*J in 128x64 <= 134217727
        scales of A, 1 x M x 16*S/16 <= 2147483647
        scales of B, 1 x 2*J x 16*S/16 <= 2147483647
        N = 2*J > 0
        K = 16*S > 0
        %d.a by 16
        %d.sfa by 16
        %d.b by 16
        %d.sfb by 16
        %c by 16
        %d by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));

    let (_, plan) = partition.kernels().next().expect("a kernel");
    let symbols: Vec<Symbol> = program.module().symbols.keys().collect();
    let call = |extents: [u64; 3]| {
        let mut values = SymbolValues::default();
        for (symbol, extent) in symbols.iter().zip(extents) {
            values.set(*symbol, extent);
        }
        violated(&plan.constraints, &values).map(|rejection| (rejection.code, rejection.message))
    };
    let refused = |code, message: &str| Some((code, message.to_owned()));
    assert_eq!(call([37, 28, 6]), None);
    assert_eq!(call([0, 28, 6]), None);
    assert_eq!(call([37, 28, 3]), refused(ReasonCode::KAlignment, "K is 48; expected a multiple of 32"));
    assert_eq!(call([37, 6, 6]), refused(ReasonCode::NAlignment, "N is 12; expected a multiple of 8"));
    assert_eq!(call([37, 0, 6]), refused(ReasonCode::ExtentRange, "N is 0; expected at least 1"));
    assert_eq!(call([37, 28, 0]), refused(ReasonCode::ExtentRange, "K is 0; expected at least 1"));
    assert_eq!(
        call([1 << 31, 28, 6]),
        refused(ReasonCode::ExtentRange, "M is 2147483648; expected at most 2147483647")
    );
    assert_eq!(call([37, 2_097_024, 6]), None);
    assert_eq!(
        call([37, 2_097_028, 6]),
        refused(ReasonCode::ExtentRange, "N is 4194056; expected at most 4194048")
    );
    // 2^14 tiles along M, and one less than 2^13 along N, or exactly as many.
    assert_eq!(call([1 << 21, ((1 << 13) - 1) * 32, 2]), None);
    assert_eq!(
        call([1 << 21, (1 << 13) * 32, 2]),
        refused(
            ReasonCode::ExtentRange,
            "the result has 134217728 tiles of 128x64; expected at most 134217727"
        )
    );
    assert_eq!(
        violated(&plan.constraints, &SymbolValues::default()).map(|r| r.code),
        Some(ReasonCode::ExtentRange)
    );
    assert_eq!(call([37, 28, 1 << 62]).map(|(code, _)| code), Some(ReasonCode::ExtentRange));
}

#[test]
fn n_must_suit_both_c_and_the_result() {
    // On the narrow target C requires N % 24 and D requires N % 16.
    let multiples = |n: Dim, name: &str| {
        let mut builder = Builder::new(name);
        let _ = builder.symbol("N");
        let c = builder.input("c", TensorType::new(vec![Dim::fixed(9), n.clone()], F32));
        let options = ScaledMmaOptions { c: Some(c), ..ScaledMmaOptions::default() };
        let d = Gemm { n, options, ..Gemm::of(BF16, 9, 0, 128) }.build(&mut builder, "d");
        let (_, partition) = planned(builder.finish(&[d]), &narrow());
        let plan = partition.kernels().next().map(|(_, plan)| plan.clone());
        let of = |constraint: &Constraint| match constraint {
            Constraint::Multiple { name: "N", of, .. } => Some(*of),
            _ => None,
        };
        plan.map(|plan| plan.constraints.iter().filter_map(of).collect::<Vec<_>>())
    };
    let symbol = fourfold_ir::Entity::from_index(0);
    assert_eq!(multiples(Dim::symbol(symbol), "symbolic"), Some(vec![48]));
    assert_eq!(multiples(Dim::fixed(96), "both"), Some(vec![]));
    assert_eq!(multiples(Dim::fixed(72), "c_only"), None);
    assert_eq!(multiples(Dim::fixed(64), "d_only"), None);
}

#[test]
fn the_same_value_in_two_roles_is_one_constraint() {
    let mut builder = Builder::new("square");
    let [a, sfa, ..] = Gemm::of(F32, 64, 64, 96).inputs(&mut builder, "x");
    let d = builder.scaled_mma("d", a, sfa, a, sfa, 16, F32, ScaledMmaOptions::default());
    let (program, partition) = planned(builder.finish(&[d]), &blackwell());
    expect![[r#"
        %x.a by 16
        %x.sfa by 16
        %d by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
}

#[test]
fn every_activation_is_taken() {
    for kind in fourfold_codegen::UNARY_FUNCTIONS {
        let mut builder = Builder::new("activation");
        let d = Gemm::of(F16, 37, 56, 96).build(&mut builder, "d");
        let y = builder.unary("y", kind, d);
        let (_, partition) = planned(builder.finish(&[y]), &blackwell());
        let (_, plan) = partition.kernels().next().expect("a kernel");
        assert_eq!(plan.epilogue[0].kind, EpilogueKind::Unary(kind));
        assert_eq!(plan.epilogue[0].operands, [EpilogueRef::Accumulator]);
        assert_eq!(plan.epilogue[0].element, F16);
    }
}

#[test]
fn any_standard_format_is_taken_where_the_target_lists_it() {
    let only = |format| {
        let mut capabilities = blackwell();
        capabilities.formats.truncate(1);
        capabilities.formats[0].format = format;
        capabilities
    };
    let mut builder = Builder::new("mx");
    let gemm = Gemm { scale: ElementType::F8E8M0FNU, block: 32, ..Gemm::of(F32, 45, 72, 96) };
    let d = gemm.build(&mut builder, "d");
    let module = builder.finish(&[d]);
    let kernels = |module: Module, format| planned(module, &only(format)).1.kernels().count();
    assert_eq!(kernels(module.clone(), BlockFormat::MXFP4), 1);
    assert_eq!(kernels(module, BlockFormat::NVFP4), 0);

    // FP8 activations with FP4 weights.
    let mut builder = Builder::new("mixed");
    let [_, sfa, b, sfb] = gemm.inputs(&mut builder, "x");
    let a = builder.input("a", tensor(&[45, 96], ElementType::F8E4M3FN));
    let d = builder.scaled_mma("d", a, sfa, b, sfb, 32, F32, ScaledMmaOptions::default());
    let module = builder.finish(&[d]);
    let mixed = BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 };
    assert_eq!(kernels(module.clone(), mixed), 1);
    assert_eq!(kernels(module, BlockFormat::MXFP4), 0);
}

/// A 37 by 72 f32 product, and the ops that use it.
fn made_of(build: impl FnOnce(&mut Builder, Value) -> Vec<Value>) -> Module {
    let mut builder = Builder::new("dag");
    let d = Gemm::of(F32, 37, 72, 96).build(&mut builder, "d");
    let outputs = build(&mut builder, d);
    builder.finish(&outputs)
}

#[test]
fn every_shape_of_operand_runs_in_one_kernel() {
    let module = made_of(|builder, d| {
        let row = builder.param("row", tensor(&[1, 72], F16));
        let column = builder.input("column", tensor(&[37, 1], BF16));
        let scalar = builder.input("scalar", tensor(&[1], F32));
        let residual = builder.input("residual", tensor(&[37, 72], BF16));
        let scaled = builder.binary("scaled", BinaryKind::Mul, d, column);
        let by_row = builder.binary("by_row", BinaryKind::Div, row, scaled);
        let shifted = builder.binary("shifted", BinaryKind::Sub, by_row, scalar);
        let sum = builder.binary("sum", BinaryKind::Add, residual, shifted);
        vec![builder.convert("out", sum, BF16)]
    });
    check_partition(
        module,
        expect![[r#"
        0 kernel nvfp4 1x37x72x96 f32 -> %out
            %scaled = mul(acc, column %column bf16) f32
            %by_row = div(row %row f16, %scaled) f32
            %shifted = sub(%by_row, scalar %scalar f32) f32
            %sum = add(matrix %residual bf16, %shifted) f32
            %out = convert(%sum) bf16
          %d.a %d.sfa %d.b %d.sfb %row %column %scalar %residual -> %out
    "#]],
    );
}

#[test]
fn shared_sub_expressions_are_computed_once_and_constants_are_part_of_the_kernel() {
    let module = made_of(|builder, d| {
        let [half, one] = [("half", 0.5), ("one", 1.0)].map(|(name, x)| constant(builder, name, x));
        let x = builder.binary("x", BinaryKind::Mul, d, half);
        let t = builder.unary("t", UnaryKind::Tanh, x);
        let u = builder.binary("u", BinaryKind::Add, t, one);
        let y = builder.binary("y", BinaryKind::Mul, x, u);
        vec![builder.binary("z", BinaryKind::Add, y, u)]
    });
    check_partition(
        module,
        expect![[r#"
        0 kernel nvfp4 1x37x72x96 f32 -> %z
            %half = constant 0.5() f32
            %x = mul(acc, %half) f32
            %t = tanh(%x) f32
            %one = constant 1() f32
            %u = add(%t, %one) f32
            %y = mul(%x, %u) f32
            %z = add(%y, %u) f32
          %d.a %d.sfa %d.b %d.sfb -> %z
    "#]],
    );
}

#[test]
fn a_constant_that_others_use_too_is_a_scalar() {
    let module = made_of(|builder, d| {
        let half = constant(builder, "half", 0.5);
        let x = builder.input("x", tensor(&[5], F32));
        let elsewhere = builder.binary("elsewhere", BinaryKind::Mul, x, half);
        vec![builder.binary("y", BinaryKind::Mul, half, d), elsewhere]
    });
    check_partition(
        module,
        expect![[r#"
        0 fallback %half = constant; %elsewhere = mul
          %x -> %half %elsewhere
        1 kernel nvfp4 1x37x72x96 f32 -> %y
            %y = mul(scalar %half f32, acc) f32
          %d.a %d.sfa %d.b %d.sfb %half -> %y
        op1 in 0: no_scaled_mma_producer: %half = constant: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
        op2 in 0: no_scaled_mma_producer: %elsewhere = mul: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
    "#]],
    );
}

#[test]
fn a_choice_by_comparison_runs_in_one_kernel() {
    let module = made_of(|builder, d| {
        let slope = constant(builder, "slope", 0.01);
        let zero = constant(builder, "zero", 0.0);
        let positive = compare(builder, "positive", Predicate::Gt, d, zero);
        let small = builder.binary("small", BinaryKind::Mul, d, slope);
        vec![select(builder, "y", [positive, d, small])]
    });
    check_partition(
        module,
        expect![[r#"
        0 kernel nvfp4 1x37x72x96 f32 -> %y
            %zero = constant 0() f32
            %positive = gt(acc, %zero) i1
            %slope = constant 0.01() f32
            %small = mul(acc, %slope) f32
            %y = select(%positive, acc, %small) f32
          %d.a %d.sfa %d.b %d.sfb -> %y
    "#]],
    );
}

#[test]
fn values_that_are_returned_are_written_besides() {
    let module = made_of(|builder, d| {
        let gate = builder.unary("gate", UnaryKind::Sigmoid, d);
        let y = builder.binary("y", BinaryKind::Mul, d, gate);
        let z = builder.unary("z", UnaryKind::Relu, y);
        let w = builder.unary("w", UnaryKind::Neg, y);
        vec![z, w]
    });
    check_partition(
        module,
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 f32 -> %z %w
                %gate = sigmoid(acc) f32
                %y = mul(acc, %gate) f32
                %z = relu(%y) f32
                %w = neg(%y) f32
              %d.a %d.sfa %d.b %d.sfb -> %z %w
        "#]],
    );
    let module = made_of(|builder, d| {
        let gate = builder.unary("gate", UnaryKind::Sigmoid, d);
        let y = builder.binary("y", BinaryKind::Mul, d, gate);
        vec![builder.unary("z", UnaryKind::Relu, y), gate]
    });
    check_partition(
        module,
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 f32 -> %gate %z
                %gate = sigmoid(acc) f32
                %y = mul(acc, %gate) f32
                %z = relu(%y) f32
              %d.a %d.sfa %d.b %d.sfb -> %gate %z
        "#]],
    );
}

#[test]
fn what_depends_on_the_kernel_by_another_path_cannot_be_its_operand() {
    let module = made_of(|builder, d| {
        let y = builder.unary("y", UnaryKind::Relu, d);
        let soft = softmax(builder, "soft", y);
        vec![builder.binary("z", BinaryKind::Add, y, soft)]
    });
    check_partition(
        module,
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 f32 -> %y
                %y = relu(acc) f32
              %d.a %d.sfa %d.b %d.sfb -> %y
            1 fallback %soft = softmax; %z = add
              %y -> %z
            op2 in 1: unsupported_epilogue_op: %soft = softmax: the epilogue of %d = scaled_mma does not compute softmax; expected add, sub, mul, div, max, min, neg, abs, exp, sqrt, rsqrt, reciprocal, tanh, erf, sigmoid, relu, gelu, gelu_tanh, silu, clamp, compare, select, block_quantize, reduce or convert
            op3 in 1: value_escapes: %z = add: %soft is computed only after the kernel of %d = scaled_mma must have run; expected an input or the result of an earlier segment
        "#]],
    );
}

#[test]
fn two_products_meet_in_the_later_kernel() {
    let module = made_of(|builder, d| {
        let e = Gemm::of(F32, 37, 72, 128).build(builder, "e");
        let gate = builder.unary("gate", UnaryKind::Silu, d);
        vec![builder.binary("y", BinaryKind::Mul, gate, e)]
    });
    check_partition(
        module,
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 f32 -> %gate
                %gate = silu(acc) f32
              %d.a %d.sfa %d.b %d.sfb -> %gate
            1 kernel nvfp4 1x37x72x128 f32 -> %y
                %y = mul(matrix %gate f32, acc) f32
              %e.a %e.sfa %e.b %e.sfb %gate -> %y
        "#]],
    );
}

#[test]
fn a_dead_branch_is_written_for_nobody() {
    let module = made_of(|builder, d| {
        builder.unary("dead", UnaryKind::Exp, d);
        vec![builder.unary("y", UnaryKind::Relu, d)]
    });
    check_partition(
        module,
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 f32 -> %dead %y
                %dead = exp(acc) f32
                %y = relu(acc) f32
              %d.a %d.sfa %d.b %d.sfb -> %y
        "#]],
    );
}
