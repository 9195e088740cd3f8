//! One near miss per code: an accepted program, and the smallest change that is refused.

use expect_test::{Expect, expect};
use fourfold_ir::{
    BinaryKind, BlockFormat, Builder, Capabilities, Dim, ElementType, Module, OpKind, Predicate, ScaleLayout,
    ScaledMmaOptions, TensorType, UnaryKind, Value,
};
use fourfold_scheduler::ReasonCode;

use super::support::*;

use ElementType::{BF16, F8E4M3FN, F8E8M0FNU, F16, F32};

/// Checks that `taken` has `%y` in a kernel, and that `refused` does not, with this reason.
#[track_caller]
pub fn near_miss(
    capabilities: &Capabilities,
    taken: Option<Module>,
    refused: Module,
    code: ReasonCode,
    message: Expect,
) {
    if let Some(taken) = taken {
        assert_eq!(reason(taken, capabilities, "y"), None);
    }
    let (found, text) = reason(refused, capabilities, "y").expect("a reason");
    assert_eq!(found, code);
    message.assert_eq(&text);
}

fn root(gemm: &Gemm) -> Module {
    let mut builder = Builder::new("root");
    let y = gemm.build(&mut builder, "y");
    builder.finish(&[y])
}

/// An f32 `%d` of 45 by 72, and then the ops that define `%y`.
pub fn after(build: impl FnOnce(&mut Builder, Value) -> Vec<Value>) -> Module {
    let mut builder = Builder::new("after");
    let d = Gemm::of(F32, 45, 72, 96).build(&mut builder, "d");
    let outputs = build(&mut builder, d);
    builder.finish(&outputs)
}

pub fn relu(builder: &mut Builder, value: Value) -> Value {
    builder.unary("y", UnaryKind::Relu, value)
}

fn add_of_type(ty: TensorType) -> Module {
    after(|builder, d| {
        let bias = builder.param("bias", ty);
        vec![builder.binary("y", BinaryKind::Add, d, bias)]
    })
}

#[test]
fn plain_mma_is_left_to_the_fallback() {
    let mut builder = Builder::new("plain");
    let a = builder.input("a", tensor(&[45, 96], BF16));
    let b = builder.input("b", tensor(&[72, 96], BF16));
    let bias = builder.param("bias", tensor(&[72], F32));
    let y = builder.mma("y", a, b, F32);
    let sum = builder.binary("sum", BinaryKind::Add, y, bias);
    near_miss(
        &blackwell(),
        Some(root(&Gemm::of(F32, 45, 72, 96))),
        builder.finish(&[sum]),
        ReasonCode::NotScaledMma,
        expect![
            "%y = mma: a plain mma never becomes a kernel; expected scaled_mma, whose operands have scales"
        ],
    );
}

#[test]
fn an_op_beside_a_kernel_is_not_in_it() {
    let beside = after(|builder, d| {
        let x = builder.input("x", tensor(&[45, 72], F32));
        vec![d, relu(builder, x)]
    });
    near_miss(
        &blackwell(),
        Some(after(|builder, d| vec![relu(builder, d)])),
        beside,
        ReasonCode::NoScaledMmaProducer,
        expect!["%y = relu: no operand comes from a kernel; expected the result of a scaled_mma in a kernel"],
    );
}

#[test]
fn an_op_after_a_refused_scaled_mma_names_it() {
    let mut builder = Builder::new("after_refused");
    let d = Gemm::of(F32, 45, 72, 48).build(&mut builder, "d");
    let y = relu(&mut builder, d);
    near_miss(
        &blackwell(),
        None,
        builder.finish(&[y]),
        ReasonCode::NoScaledMmaProducer,
        expect![
            "%y = relu: %d = scaled_mma is not in a kernel (k_alignment); expected the result of a scaled_mma in a kernel"
        ],
    );
}

#[test]
fn what_no_epilogue_computes_stays_outside() {
    let normalized = after(|builder, d| vec![softmax(builder, "y", d)]);
    near_miss(
        &blackwell(),
        Some(after(|builder, d| vec![relu(builder, d)])),
        normalized,
        ReasonCode::UnsupportedEpilogueOp,
        expect![
            "%y = softmax: the epilogue of %d = scaled_mma does not compute softmax; expected add, sub, mul, div, max, min, neg, abs, exp, sqrt, rsqrt, reciprocal, tanh, erf, sigmoid, relu, gelu, gelu_tanh, silu, clamp, compare, select, block_quantize, reduce or convert"
        ],
    );
    // Fixing its other use would not help it, so that is not the reason.
    let escaping = after(|builder, d| vec![d, softmax(builder, "y", d)]);
    assert_eq!(reason(escaping, &blackwell(), "y").map(|r| r.0), Some(ReasonCode::UnsupportedEpilogueOp));
}

#[test]
fn what_a_target_lacks_stays_outside() {
    let followed = |kind| {
        let mut builder = Builder::new("followed");
        let d = Gemm::of(BF16, 45, 48, 128).build(&mut builder, "d");
        let ty = builder.ty(d).clone();
        let y = builder.op(kind, &[d], &[("y", ty)])[0];
        builder.finish(&[y])
    };
    near_miss(
        &narrow(),
        Some(followed(OpKind::Unary(UnaryKind::Relu))),
        followed(OpKind::Unary(UnaryKind::Tanh)),
        ReasonCode::UnsupportedEpilogueOp,
        expect![
            "%y = tanh: the epilogue of %d = scaled_mma does not compute tanh; expected add, relu or convert"
        ],
    );
    let clamp = OpKind::Clamp { min: 0.0, max: 6.0 };
    assert_eq!(reason(followed(clamp.clone()), &blackwell(), "y"), None);
    let (code, _) = reason(followed(clamp), &narrow(), "y").expect("the target has no clamp");
    assert_eq!(code, ReasonCode::UnsupportedEpilogueOp);
}

#[test]
fn an_epilogue_has_a_largest_size() {
    let chain = |steps: usize| {
        after(|builder, d| {
            let last = (1..steps).fold(d, |value, _| builder.unary("", UnaryKind::Relu, value));
            vec![relu(builder, last)]
        })
    };
    near_miss(
        &blackwell(),
        Some(chain(32)),
        chain(33),
        ReasonCode::EpilogueLimit,
        expect!["%y = relu: the epilogue of %d = scaled_mma already has 32 steps; expected at most 32"],
    );
    let rows = |count: u64| {
        after(|builder, d| {
            let mut value = d;
            for index in 1..=count {
                let row = builder.param(&format!("row{index}"), tensor(&[72], F32));
                let name = if index == count { "y" } else { "" };
                value = builder.binary(name, BinaryKind::Add, value, row);
            }
            vec![value]
        })
    };
    near_miss(
        &blackwell(),
        Some(rows(3)),
        rows(4),
        ReasonCode::EpilogueLimit,
        expect!["%y = add: the epilogue of %d = scaled_mma would read 4 row operands; expected at most 3"],
    );
}

#[test]
fn a_comparison_is_not_written() {
    let masked = |chosen: bool| {
        after(|builder, d| {
            let zero = constant(builder, "zero", 0.0);
            let y = compare(builder, "y", Predicate::Gt, d, zero);
            if chosen { vec![select(builder, "z", [y, d, zero])] } else { vec![y] }
        })
    };
    near_miss(
        &blackwell(),
        Some(masked(true)),
        masked(false),
        ReasonCode::OutputDtype,
        expect!["%y = compare: the result is i1; expected f16, bf16, f32, f8E4M3FN or f8E5M2"],
    );
}

#[test]
fn a_value_that_is_used_elsewhere_needs_room_among_the_outputs() {
    near_miss(
        &one_output(),
        Some(after(|builder, d| vec![relu(builder, d)])),
        after(|builder, d| vec![d, relu(builder, d)]),
        ReasonCode::ValueEscapes,
        expect![
            "%y = relu: %d is also returned by the program, so the kernel of %d = scaled_mma would write 2 tensors; expected at most 1"
        ],
    );
    let many = after(|builder, d| {
        let mut outputs = vec![relu(builder, d)];
        for name in ["s0", "s1", "s2", "s3", "s4"] {
            outputs.push(softmax(builder, name, d));
        }
        outputs.push(builder.binary("square", BinaryKind::Mul, d, d));
        outputs
    });
    near_miss(
        &one_output(),
        None,
        many,
        ReasonCode::ValueEscapes,
        expect![
            "%y = relu: %d is also used by %s0 = softmax, used by %s1 = softmax, used by %s2 = softmax, used 4 more times, so the kernel of %d = scaled_mma would write 2 tensors; expected at most 1"
        ],
    );
    let twice = after(|builder, d| {
        let square = builder.binary("square", BinaryKind::Mul, d, d);
        vec![square, relu(builder, d)]
    });
    near_miss(
        &one_output(),
        None,
        twice,
        ReasonCode::ValueEscapes,
        expect![
            "%y = relu: %d is also used by %square = mul, so the kernel of %d = scaled_mma would write 2 tensors; expected at most 1"
        ],
    );
}

#[test]
fn padded_scales_are_not_flattened_over_a_batch() {
    let batched =
        |m, b_batch: Vec<Dim>| root(&Gemm { batch: vec![Dim::fixed(3)], b_batch, ..Gemm::new(m, 72, 96) });
    near_miss(
        &blackwell(),
        Some(batched(Dim::fixed(128), vec![])),
        batched(Dim::fixed(130), vec![]),
        ReasonCode::OperandLayout,
        expect![
            "%y = scaled_mma: one B is shared by 3 matrices of M = 130 rows, whose scales are padded separately; expected a B for each matrix, or M a multiple of 128"
        ],
    );
    assert_eq!(reason(batched(Dim::fixed(130), vec![Dim::fixed(3)]), &blackwell(), "y"), None);
    // Linear scales have no padding, so kernels that read them flatten any rows.
    let hopper = fourfold_codegen::capabilities("sm_90a").expect("a target");
    let of_layout = |layout| {
        let layouts = [layout, ScaleLayout::Blocked];
        root(&Gemm { batch: vec![Dim::fixed(3)], layouts, ..Gemm::of(F32, 130, 72, 96) })
    };
    near_miss(
        &hopper,
        Some(of_layout(ScaleLayout::Linear)),
        of_layout(ScaleLayout::Blocked),
        ReasonCode::OperandLayout,
        expect![
            "%y = scaled_mma: one B is shared by 3 matrices of M = 130 rows, whose scales are padded separately; expected a B for each matrix, or M a multiple of 128, or linear scales of A"
        ],
    );
}

#[test]
fn a_batch_needs_kernels_that_walk_it() {
    let batched = |l| {
        let batch = vec![Dim::fixed(l)];
        root(&Gemm { batch: batch.clone(), b_batch: batch, ..Gemm::of(BF16, 45, 48, 128) })
    };
    near_miss(
        &narrow(),
        Some(batched(1)),
        batched(3),
        ReasonCode::OperandLayout,
        expect!["%y = scaled_mma: the batch has 3 matrices; expected one"],
    );
}

#[test]
fn scales_must_be_blocked() {
    let gemm = Gemm::of(F32, 45, 72, 96);
    for (layouts, message) in [
        (
            [ScaleLayout::Blocked, ScaleLayout::Linear],
            expect!["%y = scaled_mma: %y.sfb, the scales of B, are linear; expected blocked"],
        ),
        (
            [ScaleLayout::Linear, ScaleLayout::Blocked],
            expect!["%y = scaled_mma: %y.sfa, the scales of A, are linear; expected blocked"],
        ),
    ] {
        let linear = root(&Gemm { layouts, ..gemm.clone() });
        near_miss(&blackwell(), Some(root(&gemm)), linear, ReasonCode::ScaleLayout, message);
    }
}

#[test]
fn scales_must_be_of_a_standard_format() {
    let gemm = Gemm::of(F32, 45, 72, 96);
    for (scale, block, message) in [
        (
            F8E8M0FNU,
            16,
            expect![
                "%y = scaled_mma: the scales are f8E8M0FNU per 16; expected f8E4M3FN per 16 for FP4, or f8E8M0FNU per 32"
            ],
        ),
        (
            F8E4M3FN,
            32,
            expect![
                "%y = scaled_mma: the scales are f8E4M3FN per 32; expected f8E4M3FN per 16 for FP4, or f8E8M0FNU per 32"
            ],
        ),
    ] {
        let other = root(&Gemm { scale, block, ..gemm.clone() });
        near_miss(&blackwell(), Some(root(&gemm)), other, ReasonCode::ScaleDtype, message);
    }
}

#[test]
fn k_must_be_a_multiple() {
    near_miss(
        &blackwell(),
        Some(root(&Gemm::of(F32, 45, 72, 96))),
        root(&Gemm::of(F32, 45, 72, 80)),
        ReasonCode::KAlignment,
        expect!["%y = scaled_mma: K is 80; expected a multiple of 32"],
    );
}

#[test]
fn n_must_be_a_multiple_for_the_result_and_for_c() {
    near_miss(
        &blackwell(),
        Some(root(&Gemm::of(F32, 45, 12, 96))),
        root(&Gemm::of(BF16, 45, 12, 96)),
        ReasonCode::NAlignment,
        expect!["%y = scaled_mma: N is 12; expected a multiple of 8 for a bf16 result"],
    );
    let with_c = |element| {
        let mut builder = Builder::new("with_c");
        let c = builder.input("c", tensor(&[45, 12], element));
        let options = ScaledMmaOptions { c: Some(c), ..ScaledMmaOptions::default() };
        let y = Gemm { options, ..Gemm::of(F32, 45, 12, 96) }.build(&mut builder, "y");
        builder.finish(&[y])
    };
    near_miss(
        &blackwell(),
        Some(with_c(F32)),
        with_c(F16),
        ReasonCode::NAlignment,
        expect!["%y = scaled_mma: N is 12; expected a multiple of 8 for a f16 C"],
    );
}

#[test]
fn extents_have_a_range() {
    near_miss(
        &blackwell(),
        Some(root(&Gemm::of(F32, 0, 72, 96))),
        root(&Gemm::of(F32, 45, 0, 96)),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: N is 0; expected at least 1"],
    );
    near_miss(
        &blackwell(),
        None,
        root(&Gemm::of(F32, 45, 72, 0)),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: K is 0; expected at least 1"],
    );
    near_miss(
        &narrow(),
        Some(root(&Gemm::of(BF16, 4096, 48, 128))),
        root(&Gemm::of(BF16, 4097, 48, 128)),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: M is 4097; expected at most 4096"],
    );
    let flat = |l| root(&Gemm { batch: vec![Dim::fixed(l)], ..Gemm::of(BF16, 1024, 48, 128) });
    near_miss(
        &narrow(),
        Some(flat(4)),
        flat(5),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: L*M is 5 * 1024; expected at most 4096"],
    );
}

#[test]
fn the_grid_of_a_launch_has_a_range() {
    let batched = |l| {
        let batch = vec![Dim::fixed(l)];
        root(&Gemm { batch: batch.clone(), b_batch: batch, ..Gemm::of(F32, 1, 72, 96) })
    };
    near_miss(
        &blackwell(),
        Some(batched(65_535)),
        batched(65_536),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: L is 65536; expected at most 65535"],
    );
    near_miss(
        &blackwell(),
        Some(root(&Gemm::of(F32, 1, 4_194_048, 96))),
        root(&Gemm::of(F32, 1, 4_194_052, 96)),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: N is 4194052; expected at most 4194048"],
    );
    near_miss(
        &narrow(),
        Some(root(&Gemm::of(BF16, 4096, 64, 128))),
        root(&Gemm::of(BF16, 4096, 80, 128)),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: the result has 640 tiles of 32x16; expected at most 600"],
    );
    // Many matrices that share one B are flattened into one, whose tiles extend along x.
    let flat = Gemm { batch: vec![Dim::fixed(65_536)], ..Gemm::of(F32, 128, 72, 96) };
    assert_eq!(reason(root(&flat), &blackwell(), "y"), None);
}

#[test]
fn the_target_must_have_the_format() {
    // FP8 activations with FP4 weights.
    let mx = Gemm { scale: F8E8M0FNU, block: 32, ..Gemm::of(F32, 45, 72, 96) };
    let mut builder = Builder::new("mixed");
    let [_, sfa, b, sfb] = mx.inputs(&mut builder, "x");
    let a = builder.input("a", tensor(&[45, 96], ElementType::F8E4M3FN));
    let y = builder.scaled_mma("y", a, sfa, b, sfb, 32, F32, ScaledMmaOptions::default());
    let mixed = builder.finish(&[y]);
    let mut fp4 = blackwell();
    fp4.formats.retain(|rules| [BlockFormat::NVFP4, BlockFormat::MXFP4].contains(&rules.format));
    near_miss(
        &fp4,
        Some(root(&mx)),
        mixed,
        ReasonCode::TargetLacksFormat,
        expect![
            "%y = scaled_mma: the operands are mxfp8 x mxfp4; expected a format of sm_100a, which has nvfp4, mxfp4"
        ],
    );
    let none = Capabilities {
        target: "sm_99a".to_owned(),
        formats: Vec::new(),
        not_emulated: Vec::new(),
        block_quantize: None,
        device: Default::default(),
    };
    near_miss(
        &none,
        None,
        root(&Gemm::of(F32, 45, 72, 96)),
        ReasonCode::TargetLacksFormat,
        expect!["%y = scaled_mma: the operands are nvfp4; expected a format of sm_99a, which has no formats"],
    );
}

#[test]
fn an_emulated_target_must_have_the_format_too() {
    let of = |element| {
        let mut builder = Builder::new("six");
        let a = builder.input("a", tensor(&[45, 128], ElementType::F8E4M3FN));
        let b = builder.param("b", tensor(&[72, 128], element));
        let scales =
            |rows| TensorType::scales(vec![Dim::fixed(rows), Dim::fixed(4)], F8E8M0FNU, ScaleLayout::Blocked);
        let sfa = builder.input("sfa", scales(45));
        let sfb = builder.param("sfb", scales(72));
        let y = builder.scaled_mma("y", a, sfa, b, sfb, 32, F32, ScaledMmaOptions::default());
        builder.finish(&[y])
    };
    let emulated = |target| fourfold_codegen::emulated_capabilities(target).expect("an emulated target");
    for target in ["sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
        let native = fourfold_codegen::capabilities(target).expect("a target");
        assert_eq!(reason(of(ElementType::F6E2M3FN), &native, "y"), None, "{target}");
        assert_eq!(
            native.formats.len(),
            emulated(target).formats.len() + emulated(target).not_emulated.len()
        );
    }
    near_miss(
        &emulated("sm_120a"),
        Some(of(ElementType::F8E5M2)),
        of(ElementType::F6E2M3FN),
        ReasonCode::FormatNotEmulated,
        expect![
            "%y = scaled_mma: the operands are mxfp8 x mxfp6, which sm_120a has kernels for, but these are not emulated; expected a GPU of sm_120a, or another format"
        ],
    );
    assert_eq!(fourfold_codegen::emulated_capabilities("sm_90a"), None);
}

#[test]
fn results_have_the_types_that_kernels_write() {
    let converted = |element| after(|builder, d| vec![builder.convert("y", d, element)]);
    near_miss(
        &blackwell(),
        Some(converted(BF16)),
        converted(ElementType::I32),
        ReasonCode::OutputDtype,
        expect!["%y = convert: the result is i32; expected f16, bf16, f32, f8E4M3FN or f8E5M2"],
    );
    near_miss(
        &narrow(),
        Some(root(&Gemm::of(BF16, 45, 48, 128))),
        root(&Gemm::of(F32, 45, 48, 128)),
        ReasonCode::OutputDtype,
        expect!["%y = scaled_mma: the result is f32; expected bf16"],
    );
    // The bf16 product is written, but not as f32 with a bias on top.
    let mut builder = Builder::new("widened");
    let bias = builder.param("bias", tensor(&[48], BF16));
    let d = Gemm::of(BF16, 45, 48, 128).build(&mut builder, "d");
    let wide = builder.convert("y", d, F32);
    let sum = builder.binary("sum", BinaryKind::Add, wide, bias);
    near_miss(
        &narrow(),
        None,
        builder.finish(&[sum]),
        ReasonCode::OutputDtype,
        expect!["%y = convert: the result is f32; expected bf16"],
    );
}

#[test]
fn c_has_the_types_that_kernels_read() {
    let with_c = |element| {
        let mut builder = Builder::new("with_c");
        let c = builder.input("c", tensor(&[45, 48], element));
        let options = ScaledMmaOptions { c: Some(c), ..ScaledMmaOptions::default() };
        let y = Gemm { options, ..Gemm::of(BF16, 45, 48, 128) }.build(&mut builder, "y");
        builder.finish(&[y])
    };
    near_miss(
        &narrow(),
        Some(with_c(F32)),
        with_c(BF16),
        ReasonCode::OutputDtype,
        expect!["%y = scaled_mma: C (%c) is bf16; expected f32"],
    );
}

#[test]
fn operands_lie_beside_the_result_in_one_of_four_ways() {
    for ty in [tensor(&[72], F16), tensor(&[1, 72], F32), tensor(&[45, 1], BF16), tensor(&[45, 72], F32)] {
        assert_eq!(reason(add_of_type(ty), &blackwell(), "y"), None);
    }
    for dims in [&[][..], &[1], &[1, 1]] {
        assert_eq!(reason(add_of_type(tensor(dims, F32)), &blackwell(), "y"), None);
    }
    near_miss(
        &blackwell(),
        None,
        add_of_type(tensor(&[3, 45, 72], F32)),
        ReasonCode::OperandShape,
        expect![
            "%y = add: the result is tensor<[3, 45, 72], f32>; expected the shape of the kernel's result, tensor<[45, 72], f32>"
        ],
    );
    assert_eq!(
        reason(add_of_type(tensor(&[1, 1, 72], F32)), &blackwell(), "y").map(|r| r.0),
        Some(ReasonCode::OperandShape)
    );
    let biased = |element| {
        let mut builder = Builder::new("biased");
        let bias = builder.param("bias", tensor(&[48], element));
        let d = Gemm::of(BF16, 45, 48, 128).build(&mut builder, "d");
        let sum = builder.binary("y", BinaryKind::Add, d, bias);
        let out = builder.convert("out", sum, BF16);
        builder.finish(&[out])
    };
    near_miss(
        &narrow(),
        Some(biased(BF16)),
        biased(F16),
        ReasonCode::OperandShape,
        expect!["%y = add: %bias is tensor<[48], f16>; expected [48] of bf16"],
    );
}

#[test]
fn a_vector_for_some_axes_of_a_batch_is_no_operand() {
    let added = |dims: &[u64]| {
        let mut builder = Builder::new("batched");
        let batch = vec![Dim::fixed(3)];
        let gemm = Gemm { batch: batch.clone(), b_batch: batch, ..Gemm::of(F32, 45, 72, 96) };
        let d = gemm.build(&mut builder, "d");
        let x = builder.param("x", tensor(dims, F32));
        let y = builder.binary("y", BinaryKind::Add, d, x);
        builder.finish(&[y])
    };
    for dims in [&[1, 1, 72][..], &[3, 45, 1], &[3, 45, 72], &[72]] {
        assert_eq!(reason(added(dims), &blackwell(), "y"), None, "{dims:?}");
    }
    for dims in [&[3, 1, 1][..], &[45, 1], &[1, 45, 72], &[45, 72]] {
        let (code, _) = reason(added(dims), &blackwell(), "y").expect("the shape is not an operand shape");
        assert_eq!(code, ReasonCode::OperandShape, "{dims:?}");
    }
    near_miss(
        &blackwell(),
        None,
        added(&[3, 1, 72]),
        ReasonCode::OperandShape,
        expect![
            "%y = add: %x is tensor<[3, 1, 72], f32>; expected a scalar of f16, bf16 or f32; [72] of f16, bf16 or f32; [3, 45, 1] of f16, bf16 or f32; [3, 45, 72] of f16, bf16 or f32"
        ],
    );
}

#[test]
fn n_must_be_a_multiple_for_a_matrix_that_is_read() {
    let added = |element| {
        let mut builder = Builder::new("residual");
        let d = Gemm::of(F32, 45, 12, 96).build(&mut builder, "d");
        let x = builder.input("x", tensor(&[45, 12], element));
        let y = builder.binary("y", BinaryKind::Add, d, x);
        builder.finish(&[y])
    };
    near_miss(
        &blackwell(),
        Some(added(F32)),
        added(BF16),
        ReasonCode::NAlignment,
        expect!["%y = add: N is 12; expected a multiple of 8 for %x, a bf16 matrix"],
    );
}

#[test]
fn nothing_is_planned_for_the_cpu() {
    let cpu = fourfold_codegen::capabilities("cpu").expect("a target");
    near_miss(
        &cpu,
        None,
        root(&Gemm::of(F32, 45, 72, 96)),
        ReasonCode::CpuTarget,
        expect!["%y = scaled_mma: the target cpu has no kernels; expected a GPU target"],
    );
}

#[test]
fn of_several_kernels_the_one_that_was_closest_gives_the_reason() {
    // %bias does not have %d's shape, but %d only fails to take the sum because it is also returned.
    let mut builder = Builder::new("closest");
    let bias = Gemm::of(F32, 1, 72, 96).build(&mut builder, "bias");
    let d = Gemm::of(F32, 45, 72, 96).build(&mut builder, "d");
    let y = builder.binary("y", BinaryKind::Add, bias, d);
    near_miss(
        &one_output(),
        None,
        builder.finish(&[d, y]),
        ReasonCode::ValueEscapes,
        expect![
            "%y = add: %d is also returned by the program, so the kernel of %d = scaled_mma would write 2 tensors; expected at most 1"
        ],
    );
}

#[test]
fn the_scales_of_an_operand_have_a_largest_size() {
    // 4096 x 4096 / 16 is 2^20 bytes, beyond the mock table's 2^19; half of the rows fit.
    near_miss(
        &narrow(),
        Some(root(&Gemm::of(BF16, 2048, 48, 4096))),
        root(&Gemm::of(BF16, 4096, 48, 4096)),
        ReasonCode::ExtentRange,
        expect!["%y = scaled_mma: the scales of A are too large; expected at most 524288 bytes"],
    );
}
