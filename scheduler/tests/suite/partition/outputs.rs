//! Outputs of kernels: values, quantized blocks and reductions, and the order of kernels that read each
//! other.

use expect_test::expect;
use fourfold_ir::{
    BinaryKind, Builder, Dim, ElementType, Module, OpKind, ReduceKind, ScaleLayout, ScaleRounding,
    ScaledMmaOptions, Symbol, SymbolValues, TensorType, UnaryKind, Value,
};
use fourfold_scheduler::{OutputKind, ReasonCode, violated};

use super::support::*;

use ElementType::{BF16, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32};

/// A 37 by 96 f32 product, and the ops that use it.
fn made_of(build: impl FnOnce(&mut Builder, Value) -> Vec<Value>) -> Module {
    let mut builder = Builder::new("outputs");
    let d = Gemm::of(F32, 37, 96, 64).build(&mut builder, "d");
    let outputs = build(&mut builder, d);
    builder.finish(&outputs)
}

/// MX codes with blocked scales per 32.
fn mx(
    builder: &mut Builder,
    name: &str,
    element: ElementType,
    rounding: ScaleRounding,
    value: Value,
) -> [Value; 2] {
    let shape = builder.ty(value).shape.clone();
    let mut blocks = shape.clone();
    let last = blocks.last_mut().expect("a matrix");
    *last = last.divided_by(32).expect("whole blocks");
    let kind = OpKind::block_quantize(32, Some(rounding));
    let codes = TensorType::new(shape, element);
    let scales = TensorType::scales(blocks, F8E8M0FNU, ScaleLayout::Blocked);
    let results = builder.op(kind, &[value], &[(name, codes), (&format!("{name}.s"), scales)]);
    [results[0], results[1]]
}

#[test]
fn a_kernel_writes_a_value_its_blocks_and_its_magnitude() {
    let module = made_of(|builder, d| {
        let bias = builder.param("bias", tensor(&[96], BF16));
        let global = builder.input("g", tensor(&[1], F32));
        let sum = builder.binary("sum", BinaryKind::Add, d, bias);
        let amax = reduce(builder, "amax", ReduceKind::Amax, &[0, 1], sum);
        let narrow = builder.convert("narrow", sum, BF16);
        let [q, s] = quantize(builder, "narrow", narrow, global);
        vec![q, s, narrow, amax]
    });
    check_partition(
        module.clone(),
        expect![[r#"
        0 kernel nvfp4 1x37x96x64 f32 -> %amax %narrow %narrow.q %narrow.s
            %sum = add(acc, row %bias bf16) f32
            %narrow = convert(%sum) bf16
            amax of %sum as scalar
            quantize %narrow to f4E2M1FN per 16 by scalar %g f32
          %d.a %d.sfa %d.b %d.sfb %bias %g -> %amax %narrow %narrow.q %narrow.s
    "#]],
    );
    let (program, partition) = planned(module, &blackwell());
    expect![[r#"
        %d.a by 16
        %d.sfa by 16
        %d.b by 16
        %d.sfb by 16
        %bias by 16
        %amax by 4
        %narrow by 16
        %narrow.q by 16
        %narrow.s by 16
    "#]]
    .assert_eq(&constraints(&program, &partition));
    let (_, plan) = partition.kernels().next().expect("a kernel");
    assert_eq!(
        plan.proof,
        [
            "scaled_mma-is-root",
            "binary-joins-with-operand",
            "reduce-joins",
            "convert-joins",
            "quantize-joins",
            "result-is-written"
        ]
    );
}

#[test]
fn every_mx_format_is_written() {
    for element in [ElementType::F4E2M1FN, F8E4M3FN, F8E5M2] {
        for rounding in [ScaleRounding::Floor, ScaleRounding::Ceil] {
            for source in [F32, BF16, F16] {
                let module = made_of(|builder, d| {
                    let value = if source == F32 { d } else { builder.convert("narrow", d, source) };
                    mx(builder, "q", element, rounding, value).to_vec()
                });
                let (_, partition) = planned(module, &blackwell());
                assert_eq!(partition.segments.len(), 1);
                let (_, plan) = partition.kernels().next().expect("a kernel");
                let [output] = &plan.outputs[..] else { panic!("one output: {:?}", plan.outputs) };
                let OutputKind::Quantized { element: found, block, scale_rounding, global, .. } = output.kind
                else {
                    panic!("blocks")
                };
                assert_eq!((found, block, scale_rounding, global), (element, 32, Some(rounding), None));
            }
        }
    }
}

#[test]
fn scales_that_are_written_have_a_largest_size_and_a_maximum_needs_rows() {
    let mut builder = Builder::new("symbolic");
    let [l, m, j] = ["L", "M", "J"].map(|name| builder.symbol(name));
    let n = Dim::product(16, j.symbols().to_vec());
    let batch = vec![l];
    let gemm = Gemm { batch: batch.clone(), b_batch: batch, n, ..Gemm::new(m, 0, 64) };
    let d = gemm.build(&mut builder, "d");
    let global = builder.input("g", tensor(&[], F32));
    let [q, s] = quantize(&mut builder, "d", d, global);
    let largest = reduce(&mut builder, "largest", ReduceKind::Max, &[2], d);
    let (program, partition) = planned(builder.finish(&[q, s, largest]), &blackwell());
    expect![[r#"
        N = 16*J % 32 == 0 or n_alignment
        L = L <= 65535
        M = M <= 2147483647
        N = 16*J <= 4194048
        L x M x 16*J in 128x64 <= 134217727
        scales of A, L x M x 64/16 <= 2147483647
        scales of B, L x 16*J x 64/16 <= 2147483647
        scales of D, L x M x 16*J/16 <= 2147483647
        N = 16*J > 0
        M = M > 0
        L = L > 0
        %d.a by 16
        %d.sfa by 16
        %d.b by 16
        %d.sfb by 16
        %d.q by 16
        %d.s by 16
        %largest by 4
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
    assert_eq!(call([3, 37, 6]), None);
    assert_eq!(call([3, 37, 5]), refused(ReasonCode::NAlignment, "N is 80; expected a multiple of 32"));
    assert_eq!(call([3, 0, 6]), refused(ReasonCode::ExtentRange, "M is 0; expected at least 1"));
    assert_eq!(call([0, 37, 6]), refused(ReasonCode::ExtentRange, "L is 0; expected at least 1"));
    assert_eq!(call([65_535, 1, 2]), None);
    assert_eq!(call([65_536, 1, 2]), refused(ReasonCode::ExtentRange, "L is 65536; expected at most 65535"));
    // 2^17 tiles of 128 rows, with 32 scales per row: 2^29 bytes, and twice as many for four more scale
    // columns.
    assert_eq!(call([1 << 15, 512, 32]), None);
    assert_eq!(
        call([1 << 15, 512, 128]),
        refused(ReasonCode::ExtentRange, "the scales of D are too large; expected at most 2147483647 bytes")
    );
}

#[test]
fn a_flattened_batch_is_written_as_one_matrix() {
    let mut builder = Builder::new("flat");
    let [l, s] = ["L", "S"].map(|name| builder.symbol(name));
    let m = Dim::product(128, s.symbols().to_vec());
    let d = Gemm { batch: vec![l], ..Gemm::new(m, 96, 64) }.build(&mut builder, "d");
    let global = builder.input("g", tensor(&[], F32));
    let blocks = quantize(&mut builder, "d", d, global);
    let row = reduce(&mut builder, "row", ReduceKind::Amax, &[0, 1], d);
    let column = reduce(&mut builder, "column", ReduceKind::Amax, &[2], d);
    let module = builder.finish(&[blocks[0], blocks[1], row, column]);
    check_partition(
        module.clone(),
        expect![[r#"
        0 kernel nvfp4 Lx128*Sx96x64 f32 -> %d.q %d.s %row %column
            quantize acc to f4E2M1FN per 16 by scalar %g f32
            amax of acc as row
            amax of acc as column
          %d.a %d.sfa %d.b %d.sfb %g -> %d.q %d.s %row %column
    "#]],
    );
    let (program, partition) = planned(module, &blackwell());
    expect![[r#"
        L*M = 128*L*S <= 2147483647
        scales of A, 1 x 128*L*S x 64/16 <= 2147483647
        scales of D, 1 x 128*L*S x 96/16 <= 2147483647
        %d.a by 16
        %d.sfa by 16
        %d.b by 16
        %d.sfb by 16
        %d.q by 16
        %d.s by 16
        %row by 4
        %column by 4
    "#]]
    .assert_eq(&constraints(&program, &partition));
}

#[test]
fn a_value_may_be_converted_to_fp8_and_back() {
    let module = made_of(|builder, d| {
        let narrow = builder.convert("narrow", d, F8E4M3FN);
        let wide = builder.convert("wide", narrow, F32);
        let y = builder.unary("y", UnaryKind::Relu, wide);
        vec![narrow, y]
    });
    check_partition(
        module,
        expect![[r#"
        0 kernel nvfp4 1x37x96x64 f32 -> %narrow %y
            %narrow = convert(acc) f8E4M3FN
            %wide = convert(%narrow) f32
            %y = relu(%wide) f32
          %d.a %d.sfa %d.b %d.sfb -> %narrow %y
    "#]],
    );
}

#[test]
fn a_mask_that_is_returned_leaves_with_what_it_chooses() {
    let module = made_of(|builder, d| {
        let zero = constant(builder, "zero", 0.0);
        let y = builder.unary("y", UnaryKind::Tanh, d);
        let mask = compare(builder, "mask", fourfold_ir::Predicate::Gt, y, zero);
        let chosen = select(builder, "chosen", [mask, y, d]);
        let z = builder.unary("z", UnaryKind::Relu, y);
        vec![mask, chosen, z]
    });
    check_partition(
        module,
        expect![[r#"
        0 fallback %zero = constant
          (none) -> %zero
        1 kernel nvfp4 1x37x96x64 f32 -> %d %y %z
            %y = tanh(acc) f32
            %z = relu(%y) f32
          %d.a %d.sfa %d.b %d.sfb -> %d %y %z
        2 fallback %mask = compare; %chosen = select
          %d %zero %y -> %mask %chosen
        op1 in 0: no_scaled_mma_producer: %zero = constant: no operand comes from a kernel; expected the result of a scaled_mma in a kernel
        op3 in 2: output_dtype: %mask = compare: the result is i1; expected f16, bf16, f32, f8E4M3FN or f8E5M2
        op4 in 2: operand_shape: %chosen = select: %mask is tensor<[37, 96], i1>; expected a scalar of f16, bf16 or f32; [96] of f16, bf16 or f32; [37, 1] of f16, bf16 or f32; [37, 96] of f16, bf16 or f32
    "#]],
    );
}

#[test]
fn products_of_one_input_have_outputs_of_their_own() {
    let mut builder = Builder::new("queries_and_keys");
    let m = builder.symbol("M");
    let [a, sfa, b, sfb] = Gemm::new(m.clone(), 96, 64).inputs(&mut builder, "q");
    let [_, _, b2, sfb2] = Gemm::new(Dim::fixed(1), 64, 64).inputs(&mut builder, "k");
    let global = builder.input("g", tensor(&[], F32));
    let q = builder.scaled_mma("query", a, sfa, b, sfb, 16, F32, ScaledMmaOptions::default());
    let k = builder.scaled_mma("key", a, sfa, b2, sfb2, 16, F32, ScaledMmaOptions::default());
    let q_amax = reduce(&mut builder, "query_amax", ReduceKind::Amax, &[1], q);
    let [kq, ks] = quantize(&mut builder, "key", k, global);
    let q_narrow = builder.convert("query_bf16", q, BF16);
    check_partition(
        builder.finish(&[q, q_amax, q_narrow, kq, ks, k]),
        expect![[r#"
        0 kernel nvfp4 1xMx96x64 f32 -> %query %query_amax %query_bf16
            %query_bf16 = convert(acc) bf16
            amax of acc as column
          %q.a %q.sfa %q.b %q.sfb -> %query %query_amax %query_bf16
        1 kernel nvfp4 1xMx64x64 f32 -> %key %key.q %key.s
            quantize acc to f4E2M1FN per 16 by scalar %g f32
          %q.a %q.sfa %k.b %k.sfb %g -> %key %key.q %key.s
    "#]],
    );
}

#[test]
fn a_stage_is_raised_for_an_operand_of_a_later_kernel_only_while_nothing_was_used() {
    let chain = |used: bool| {
        let mut builder = Builder::new("stages");
        let first = Gemm::of(F32, 37, 96, 64).build(&mut builder, "first");
        let second = Gemm::of(F32, 9, 96, 64).build(&mut builder, "second");
        let sums = column_sums(&mut builder, "sums", second);
        let mut outputs = Vec::new();
        if used {
            outputs.push(softmax(&mut builder, "soft", first));
        }
        outputs.push(builder.binary("y", BinaryKind::Add, first, sums));
        reason(builder.finish(&outputs), &blackwell(), "y").map(|(code, _)| code)
    };
    assert_eq!(chain(false), None);
    assert_eq!(chain(true), Some(ReasonCode::ValueEscapes));
}

#[test]
fn kernels_that_use_each_other_twice_close_no_cycle() {
    // %x joins the first kernel; %y joins the second and reads %x; %z would make the first read %y.
    let mut builder = Builder::new("crossing");
    let first = Gemm::of(F32, 37, 96, 64).build(&mut builder, "first");
    let second = Gemm::of(F32, 37, 96, 128).build(&mut builder, "second");
    let x = builder.unary("x", UnaryKind::Exp, first);
    let y = builder.binary("y", BinaryKind::Add, second, x);
    let soft = softmax(&mut builder, "soft", y);
    let z = builder.binary("z", BinaryKind::Mul, x, soft);
    check_partition(
        builder.finish(&[y, z]),
        expect![[r#"
            0 kernel nvfp4 1x37x96x64 f32 -> %x
                %x = exp(acc) f32
              %first.a %first.sfa %first.b %first.sfb -> %x
            1 kernel nvfp4 1x37x96x128 f32 -> %y
                %y = add(acc, matrix %x f32) f32
              %second.a %second.sfa %second.b %second.sfb %x -> %y
            2 fallback %soft = softmax; %z = mul
              %x %y -> %z
            op4 in 2: unsupported_epilogue_op: %soft = softmax: the epilogue of %second = scaled_mma does not compute softmax; expected add, sub, mul, div, max, min, neg, abs, exp, sqrt, rsqrt, reciprocal, tanh, erf, sigmoid, relu, gelu, gelu_tanh, silu, clamp, compare, select, block_quantize, reduce or convert
            op5 in 2: value_escapes: %z = mul: %soft is computed only after the kernel of %first = scaled_mma must have run; expected an input or the result of an earlier segment
        "#]],
    );
}
