//! Near misses of kernel outputs: one too many, of another format, kind or extent, or too early.

use expect_test::expect;
use fourfold_ir::{
    BinaryKind, Builder, Capabilities, Dim, ElementType, Module, OpKind, ReduceKind, ScaleLayout, TensorType,
    UnaryKind, Value,
};
use fourfold_scheduler::ReasonCode;

use super::reasons::{after, near_miss, relu};
use super::support::*;

use ElementType::{BF16, F8E4M3FN, F16, F32};

/// An f32 `%d` of 45 by `n`, and then the ops that define `%y`.
fn after_n(n: u64, build: impl FnOnce(&mut Builder, Value) -> Vec<Value>) -> Module {
    let mut builder = Builder::new("after");
    let d = Gemm::of(F32, 45, n, 96).build(&mut builder, "d");
    let outputs = build(&mut builder, d);
    builder.finish(&outputs)
}

/// NVFP4 codes, `name`, and their scales in this layout.
fn quantize_as(
    builder: &mut Builder,
    name: &str,
    value: Value,
    global: Value,
    layout: ScaleLayout,
) -> [Value; 2] {
    let shape = builder.ty(value).shape.clone();
    let [rows, n] = &shape[..] else { panic!("a matrix") };
    let blocks = vec![rows.clone(), n.divided_by(16).expect("whole blocks")];
    let codes = TensorType::new(shape, ElementType::F4E2M1FN);
    let scales = TensorType::scales(blocks, F8E4M3FN, layout);
    let kind = OpKind::block_quantize(16, None);
    let results = builder.op(kind, &[value, global], &[(name, codes), (&format!("{name}.s"), scales)]);
    [results[0], results[1]]
}

#[test]
fn a_kernel_writes_only_so_many_tensors() {
    let gated = |meet: bool| {
        after(|builder, d| {
            let gate = builder.unary("y", UnaryKind::Sigmoid, d);
            let scaled = builder.unary("scaled", UnaryKind::Silu, d);
            if meet { vec![builder.binary("z", BinaryKind::Mul, gate, scaled)] } else { vec![gate, scaled] }
        })
    };
    near_miss(
        &one_output(),
        Some(gated(true)),
        gated(false),
        ReasonCode::ValueEscapes,
        expect![
            "%y = sigmoid: %d is also used by %scaled = silu, so the kernel of %d = scaled_mma would write 2 tensors; expected at most 1"
        ],
    );
    let branches = |count: usize| {
        after(|builder, d| {
            let kinds = &UnaryKind::ALL[1..count];
            let mut outputs: Vec<_> = kinds.iter().map(|kind| builder.unary("", *kind, d)).collect();
            outputs.push(relu(builder, d));
            outputs
        })
    };
    near_miss(
        &blackwell(),
        Some(branches(4)),
        branches(5),
        ReasonCode::ValueEscapes,
        expect![
            "%y = relu: %d is also used by %8 = rsqrt, so the kernel of %d = scaled_mma would write 5 tensors; expected at most 4"
        ],
    );
    // Codes and their scales are two tensors.
    let quantized = |values: usize| {
        after_n(96, |builder, d| {
            let global = builder.input("g", tensor(&[], F32));
            let mut outputs: Vec<_> =
                UnaryKind::ALL[1..=values].iter().map(|kind| builder.unary("", *kind, d)).collect();
            outputs.extend(quantize_as(builder, "y", d, global, ScaleLayout::Blocked));
            outputs
        })
    };
    near_miss(
        &blackwell(),
        Some(quantized(2)),
        quantized(3),
        ReasonCode::ValueEscapes,
        expect![
            "%y, %y.s = block_quantize: the kernel of %d = scaled_mma would write 5 tensors; expected at most 4"
        ],
    );
}

#[test]
fn written_scales_are_blocked() {
    let quantized = |layout| {
        after_n(96, |builder, d| {
            let global = builder.input("g", tensor(&[1], F32));
            quantize_as(builder, "y", d, global, layout).to_vec()
        })
    };
    near_miss(
        &blackwell(),
        Some(quantized(ScaleLayout::Blocked)),
        quantized(ScaleLayout::Linear),
        ReasonCode::UnsupportedEpilogueOp,
        expect!["%y, %y.s = block_quantize: %y.s are linear scales; expected blocked scales"],
    );
}

#[test]
fn blocks_have_a_format_a_rule_for_n_and_a_largest_size() {
    let quantized = |n, capabilities: &Capabilities| {
        let module = after_n(n, |builder, d| {
            let global = builder.input("g", tensor(&[], F32));
            quantize_as(builder, "y", d, global, ScaleLayout::Blocked).to_vec()
        });
        reason(module, capabilities, "y")
    };
    assert_eq!(quantized(96, &blackwell()), None);
    let (code, message) = quantized(80, &blackwell()).expect("N is no multiple of 32");
    assert_eq!(code, ReasonCode::NAlignment);
    expect![
        "%y, %y.s = block_quantize: N is 80; expected a multiple of 32 for f4E2M1FN with f8E4M3FN per 16"
    ]
    .assert_eq(&message);

    let mut without_nvfp4 = blackwell();
    without_nvfp4.formats[0].epilogue.quantized.remove(0);
    let (code, message) = quantized(96, &without_nvfp4).expect("the format is gone");
    assert_eq!(code, ReasonCode::UnsupportedEpilogueOp);
    expect!["%y, %y.s = block_quantize: the epilogue of %d = scaled_mma does not write f4E2M1FN with scales of f8E4M3FN; expected f4E2M1FN with f8E8M0FNU per 32, f8E4M3FN with f8E8M0FNU per 32, f8E5M2 with f8E8M0FNU per 32"].assert_eq(&message);

    // 128 rows of 2048/16 scales are 2^14 bytes; the scales of B are half of that.
    let mut small = blackwell();
    small.formats[0].max_scale_bytes = 1 << 14;
    let large = |capabilities: &Capabilities| {
        let mut builder = Builder::new("large");
        let global = builder.input("g", tensor(&[], F32));
        let d = Gemm::of(F32, 45, 2048, 64).build(&mut builder, "d");
        let outputs = quantize_as(&mut builder, "y", d, global, ScaleLayout::Blocked);
        reason(builder.finish(&outputs), capabilities, "y")
    };
    assert_eq!(large(&small), None);
    small.formats[0].max_scale_bytes -= 1;
    let (code, message) = large(&small).expect("the scales are too large");
    assert_eq!(code, ReasonCode::ExtentRange);
    expect!["%y, %y.s = block_quantize: the scales of D are too large; expected at most 16383 bytes"]
        .assert_eq(&message);
}

#[test]
fn a_global_scale_is_a_scalar_that_is_there_before() {
    let quantized = |of_d: bool| {
        after_n(96, |builder, d| {
            let source = if of_d { d } else { builder.input("source", tensor(&[45, 96], F32)) };
            let global = reduce(builder, "g", ReduceKind::Amax, &[0, 1], source);
            let y = builder.unary("r", UnaryKind::Relu, d);
            quantize_as(builder, "y", y, global, ScaleLayout::Blocked).to_vec()
        })
    };
    near_miss(
        &blackwell(),
        Some(quantized(false)),
        quantized(true),
        ReasonCode::UnsupportedEpilogueOp,
        expect![
            "%y, %y.s = block_quantize: %g is complete only after the kernel of %d = scaled_mma; expected a value inside its epilogue"
        ],
    );
}

#[test]
fn reductions_have_kinds_axes_and_an_element_type() {
    use ReduceKind::{Amax, Max, Sum};
    let reduced =
        |kind, axes: &'static [u32]| after(move |builder, d| vec![reduce(builder, "y", kind, axes, d)]);
    for kind in [Amax, Max] {
        for axes in [&[0, 1][..], &[0], &[1]] {
            assert_eq!(reason(reduced(kind, axes), &blackwell(), "y"), None, "{kind} {axes:?}");
        }
    }
    let unsupported = ReasonCode::UnsupportedEpilogueOp;
    near_miss(
        &blackwell(),
        None,
        reduced(Sum, &[1]),
        unsupported,
        expect![
            "%y = reduce: the epilogue of %d = scaled_mma does not compute the reduction sum; expected amax or max"
        ],
    );
    let narrow_sum = after(|builder, d| {
        let narrow = builder.convert("narrow", d, BF16);
        vec![reduce(builder, "y", Amax, &[1], narrow)]
    });
    near_miss(
        &blackwell(),
        None,
        narrow_sum,
        unsupported,
        expect!["%y = reduce: the epilogue of %d = scaled_mma does not reduce bf16; expected f32"],
    );
    let batched = |axes: &'static [u32], m: u64| {
        let mut builder = Builder::new("batched");
        let batch = vec![Dim::fixed(3)];
        let gemm = Gemm { batch: batch.clone(), b_batch: batch, ..Gemm::of(F32, m, 72, 96) };
        let d = gemm.build(&mut builder, "d");
        let y = reduce(&mut builder, "y", Max, axes, d);
        builder.finish(&[y])
    };
    near_miss(
        &blackwell(),
        Some(batched(&[0, 1], 45)),
        batched(&[1], 45),
        unsupported,
        expect![
            "%y = reduce: the epilogue of %d = scaled_mma does not reduce along these axes; expected all axes, all but the last, or only the last"
        ],
    );
    for axes in [&[2][..], &[0, 1, 2]] {
        assert_eq!(reason(batched(axes, 45), &blackwell(), "y"), None, "{axes:?}");
    }
    near_miss(
        &blackwell(),
        None,
        batched(&[2], 0),
        ReasonCode::ExtentRange,
        expect!["%y = reduce: the reduction is over zero rows; expected at least 1"],
    );
}

#[test]
fn what_is_complete_only_after_a_kernel_is_not_used_in_it() {
    let normalized = after(|builder, d| {
        let amax = reduce(builder, "amax", ReduceKind::Amax, &[0], d);
        vec![builder.binary("y", BinaryKind::Div, d, amax)]
    });
    near_miss(
        &blackwell(),
        None,
        normalized,
        ReasonCode::UnsupportedEpilogueOp,
        expect![
            "%y = div: %amax is complete only after the kernel of %d = scaled_mma; expected a value inside its epilogue"
        ],
    );
    let around = after(|builder, d| {
        let soft = softmax(builder, "soft", d);
        vec![builder.binary("y", BinaryKind::Mul, d, soft)]
    });
    near_miss(
        &blackwell(),
        None,
        around,
        ReasonCode::ValueEscapes,
        expect![
            "%y = mul: %soft is computed only after the kernel of %d = scaled_mma must have run; expected an input or the result of an earlier segment"
        ],
    );
}

#[test]
fn fp8_values_are_written_or_converted_back() {
    use ElementType::F8E5M2;
    let twice = |element| {
        after_n(96, |builder, d| {
            let narrow = builder.convert("narrow", d, F8E4M3FN);
            vec![builder.convert("y", narrow, element), narrow]
        })
    };
    for element in [BF16, F16, F32] {
        assert_eq!(reason(twice(element), &blackwell(), "y"), None, "{element}");
        assert_eq!(reason(twice(element), &blackwell(), "narrow"), None, "{element}");
    }
    near_miss(
        &blackwell(),
        None,
        twice(F8E5M2),
        ReasonCode::OutputDtype,
        expect!["%y = convert: the result is f8E5M2; expected f16, bf16, f32, f8E4M3FN or f8E5M2"],
    );
    let converted = |n| after_n(n, |builder, d| vec![builder.convert("y", d, F8E5M2)]);
    near_miss(
        &blackwell(),
        Some(converted(80)),
        converted(72),
        ReasonCode::NAlignment,
        expect!["%y = convert: N is 72; expected a multiple of 16 for a f8E5M2 result"],
    );
}
