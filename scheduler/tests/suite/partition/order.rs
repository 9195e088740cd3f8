//! The segments of a program, and their order.

use std::time::Instant;

use expect_test::expect;
use fourfold_ir::{BinaryKind, Builder, Dim, ElementType, Module, ScaledMmaOptions, TensorType, UnaryKind};
use fourfold_scheduler::{check, partition};

use super::support::*;

use ElementType::{BF16, F32};

#[test]
fn a_program_without_ops_has_no_segments() {
    let mut builder = Builder::new("nothing");
    let x = builder.input("x", tensor(&[3], F32));
    check_partition(builder.finish(&[x]), expect![""]);
}

#[test]
fn an_op_between_two_kernels_runs_between_them() {
    let mut builder = Builder::new("between");
    let m = builder.symbol("M");
    let global = builder.input("g", tensor(&[], F32));
    let h = Gemm::new(m.clone(), 160, 96).build(&mut builder, "h");
    let r = builder.unary("r", UnaryKind::Relu, h);
    let [q, s] = quantize(&mut builder, "r", r, global);
    let [_, _, b, sfb] = Gemm::new(Dim::fixed(1), 56, 160).inputs(&mut builder, "w");
    let d = builder.scaled_mma("d", q, s, b, sfb, 16, F32, ScaledMmaOptions::default());
    check_partition(
        builder.finish(&[q, d]),
        expect![[r#"
            0 kernel nvfp4 1xMx160x96 f32 -> %r.q %r.s
                %r = relu(acc) f32
                quantize %r to f4E2M1FN per 16 by scalar %g f32
              %g %h.a %h.sfa %h.b %h.sfb -> %r.q %r.s
            1 kernel nvfp4 1xMx56x160 f32 -> %d
              %r.q %r.s %w.b %w.sfb -> %d
        "#]],
    );
}

#[test]
fn a_bias_that_is_defined_after_the_root_runs_before_the_kernel() {
    let mut builder = Builder::new("late_bias");
    let x = builder.input("x", tensor(&[9, 72], F32));
    let d = Gemm::of(F32, 37, 72, 96).build(&mut builder, "d");
    let bias = column_sums(&mut builder, "bias", x);
    let y = builder.binary("y", BinaryKind::Add, d, bias);
    check_partition(
        builder.finish(&[y]),
        expect![[r#"
            0 fallback %bias = reduce
              %x -> %bias
            1 kernel nvfp4 1x37x72x96 f32 -> %y
                %y = add(acc, row %bias f32) f32
              %d.a %d.sfa %d.b %d.sfb %bias -> %y
            op1 in 0: no_scaled_mma_producer: %bias = reduce: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
        "#]],
    );
}

#[test]
fn a_kernel_waits_for_a_bias_that_comes_from_a_later_kernel() {
    let mut builder = Builder::new("bias_of_a_kernel");
    let first = Gemm::of(F32, 37, 72, 96).build(&mut builder, "first");
    let second = Gemm::of(F32, 9, 72, 96).build(&mut builder, "second");
    let sums = column_sums(&mut builder, "sums", second);
    let y = builder.binary("y", BinaryKind::Add, first, sums);
    check_partition(
        builder.finish(&[y]),
        expect![[r#"
            0 kernel nvfp4 1x9x72x96 f32 -> %second
              %second.a %second.sfa %second.b %second.sfb -> %second
            1 fallback %sums = reduce
              %second -> %sums
            2 kernel nvfp4 1x37x72x96 f32 -> %y
                %y = add(acc, row %sums f32) f32
              %first.a %first.sfa %first.b %first.sfb %sums -> %y
            op2 in 1: unsupported_epilogue_op: %sums = reduce: the epilogue of %second = scaled_mma does not compute the reduction sum; expected amax or max
        "#]],
    );
}

#[test]
fn a_kernel_feeds_the_c_operand_of_another() {
    let mut builder = Builder::new("chain");
    let c = Gemm::of(BF16, 37, 72, 96).build(&mut builder, "c");
    let options = ScaledMmaOptions { c: Some(c), ..ScaledMmaOptions::default() };
    let d = Gemm { options, ..Gemm::of(BF16, 37, 72, 128) }.build(&mut builder, "d");
    check_partition(
        builder.finish(&[d]),
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 bf16 -> %c
              %c.a %c.sfa %c.b %c.sfb -> %c
            1 kernel nvfp4 1x37x72x128 bf16 -> %d
              %c %d.a %d.sfa %d.b %d.sfb -> %d
        "#]],
    );
}

/// %x feeds two kernels, whose results are combined. Another op depends on neither.
fn diamond() -> Module {
    let mut builder = Builder::new("diamond");
    let x = builder.input("x", tensor(&[37, 96], F32));
    let global = builder.input("g", tensor(&[], F32));
    let [q, s] = quantize(&mut builder, "x", x, global);
    let mut side = |name: &str| {
        let [_, _, b, sfb] = Gemm::of(F32, 1, 72, 96).inputs(&mut builder, name);
        builder.scaled_mma(name, q, s, b, sfb, 16, F32, ScaledMmaOptions::default())
    };
    let (up, gate) = (side("up"), side("gate"));
    let activated = builder.unary("activated", UnaryKind::Silu, gate);
    let y = builder.binary("y", BinaryKind::Mul, activated, up);
    let apart = builder.unary("apart", UnaryKind::Exp, x);
    builder.finish(&[y, apart])
}

#[test]
fn two_kernels_share_an_input_and_meet_again() {
    check_partition(
        diamond(),
        expect![[r#"
            0 fallback %x.q, %x.s = block_quantize; %apart = exp
              %x %g -> %x.q %x.s %apart
            1 kernel nvfp4 1x37x72x96 f32 -> %up
              %x.q %x.s %up.b %up.sfb -> %up
            2 kernel nvfp4 1x37x72x96 f32 -> %y
                %activated = silu(acc) f32
                %y = mul(%activated, matrix %up f32) f32
              %x.q %x.s %up %gate.b %gate.sfb -> %y
            op0 in 0: no_scaled_mma_producer: %x.q, %x.s = block_quantize: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
            op5 in 0: no_scaled_mma_producer: %apart = exp: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
        "#]],
    );
}

#[test]
fn rebuilding_a_program_gives_the_same_partition() {
    let (_, first) = planned(diamond(), &blackwell());
    let (_, second) = planned(diamond(), &blackwell());
    assert_eq!(first, second);
}

#[test]
fn a_result_that_nobody_uses_is_no_output() {
    let mut builder = Builder::new("unused");
    let d = Gemm::of(F32, 37, 72, 96).build(&mut builder, "d");
    builder.unary("x", UnaryKind::Relu, d);
    let other = builder.input("other", tensor(&[3], F32));
    check_partition(
        builder.finish(&[other]),
        expect![[r#"
            0 kernel nvfp4 1x37x72x96 f32 -> %x
                %x = relu(acc) f32
              %d.a %d.sfa %d.b %d.sfb -> (none)
        "#]],
    );
}

const OPS: usize = 100_000;

/// One `scaled_mma` per five ops, side by side.
fn wide() -> Module {
    let mut builder = Builder::new("wide");
    let [a, sfa, b, sfb] = Gemm::of(F32, 37, 72, 96).inputs(&mut builder, "x");
    let bias = builder.param("bias", tensor(&[72], BF16));
    let mut outputs = Vec::new();
    for _ in 0..OPS / 5 {
        let d = builder.scaled_mma("", a, sfa, b, sfb, 16, F32, ScaledMmaOptions::default());
        let sum = builder.binary("", BinaryKind::Add, d, bias);
        let y = builder.unary("", UnaryKind::Relu, sum);
        let out = builder.convert("", y, BF16);
        outputs.push(softmax(&mut builder, "", out));
    }
    builder.finish(&outputs)
}

/// The same number of kernels in a chain, each with different extents.
fn deep() -> Module {
    let mut builder = Builder::new("deep");
    let global = builder.input("g", tensor(&[], F32));
    let x = builder.input("x", tensor(&[37, 96], F32));
    let [mut q, mut s] = quantize(&mut builder, "", x, global);
    let mut k = 96;
    for index in 0..OPS / 5 {
        let n = 32 * (1 + index as u64 % 1000);
        let b = builder.param(&format!("b{index}"), tensor(&[n, k], ElementType::F4E2M1FN));
        let scales = vec![Dim::fixed(n), Dim::fixed(k / 16)];
        let ty = TensorType::scales(scales, ElementType::F8E4M3FN, fourfold_ir::ScaleLayout::Blocked);
        let sfb = builder.param(&format!("sfb{index}"), ty);
        let d = builder.scaled_mma("", q, s, b, sfb, 16, F32, ScaledMmaOptions::default());
        let y = builder.unary("", UnaryKind::ALL[index % UnaryKind::ALL.len()], d);
        let soft = softmax(&mut builder, "", y);
        let exp = builder.unary("", UnaryKind::Exp, soft);
        let name = format!("q{index}");
        [q, s] = quantize(&mut builder, &name, exp, global);
        k = n;
    }
    builder.finish(&[q, s])
}

/// Epilogues of nine steps with shared values, in very many different forms.
fn dags() -> Module {
    let mut builder = Builder::new("dags");
    let [a, sfa, b, sfb] = Gemm::of(F32, 37, 72, 96).inputs(&mut builder, "x");
    let row = builder.param("row", tensor(&[72], BF16));
    let residual = builder.input("residual", tensor(&[37, 72], F32));
    let mut outputs = Vec::new();
    for index in 0..OPS / 10 {
        let mut form = index % 4096;
        let mut pick = |count: usize| {
            let choice = form % count;
            form /= count;
            choice
        };
        let x = builder.scaled_mma("", a, sfa, b, sfb, 16, F32, ScaledMmaOptions::default());
        let mut values = vec![x];
        for step in 0..7 {
            let last = values[step];
            let other = [row, residual, values[step / 2], x][pick(4)];
            let unary = step % 3 == 1;
            values.push(if unary {
                builder.unary("", UnaryKind::ALL[pick(4)], last)
            } else {
                builder.binary("", BinaryKind::ALL[step % 6], last, other)
            });
        }
        let sum = builder.binary("", BinaryKind::Add, values[7], values[3]);
        outputs.push(builder.convert("", sum, BF16));
    }
    builder.finish(&outputs)
}

/// One kernel whose result very many ops use.
fn fan_out() -> Module {
    let mut builder = Builder::new("fan_out");
    let d = Gemm::of(F32, 37, 72, 96).build(&mut builder, "d");
    let outputs: Vec<_> = (1..OPS).map(|_| builder.unary("", UnaryKind::Relu, d)).collect();
    builder.finish(&outputs)
}

#[test]
fn large_programs_take_time_proportional_to_their_size() {
    for (name, module, kernels) in [
        ("wide", wide(), OPS / 5),
        ("deep", deep(), OPS / 5),
        ("fan_out", fan_out(), 1),
        ("dags", dags(), OPS / 10),
    ] {
        let program = verified(module);
        let capabilities = blackwell();
        let start = Instant::now();
        let result = partition(&program, &capabilities);
        let partitioned = start.elapsed();
        assert_eq!(result.kernels().count(), kernels);
        let start = Instant::now();
        assert_eq!(check(&program, &capabilities, &result), Ok(()));
        let ops = program.module().ops.len();
        println!("{name}: {ops} ops partitioned in {partitioned:?}, checked in {:?}", start.elapsed());
    }
}
