//! Programs rejected because the types of operands and results do not agree.

use expect_test::expect;

use super::refused::{PLAIN, RELU, nvfp4, one, product, quantize};
use super::*;
use crate::ops::{
    BinaryKind, BitwiseKind, OpKind, Predicate, ReduceKind, ScaleRounding, ScaledMma, SliceRange,
};
use crate::types::ElementType::{F6E2M3FN, F8E5M2, F8E8M0FNU, I1, I32};

#[test]
fn element_types() {
    let x = |element| ty(&[4, 2], element);
    check(
        one(x(F4E2M1FN), RELU, x(F4E2M1FN)),
        expect![[r#"
            op0 `%y = relu %x : tensor<[4, 2], f4E2M1FN>`: operand_element: relu takes f16, bf16 or f32 as operand, but `%x` is tensor<[4, 2], f4E2M1FN>
        "#]],
    );
    check(
        one(x(F32), RELU, x(F16)),
        expect![[r#"
            op0 `%y = relu %x : tensor<[4, 2], f16>`: result_element: the element type of `%y: tensor<[4, 2], f16>` must be f32
        "#]],
    );
    check(
        one(x(F32), OpKind::Convert, x(I1)),
        expect![[r#"
            op0 `%y = convert %x : tensor<[4, 2], i1>`: target_element: convert cannot produce `%y: tensor<[4, 2], i1>`
        "#]],
    );
    check(
        one(x(F32), OpKind::Reshape, x(I32)),
        expect![[r#"
            op0 `%y = reshape %x : tensor<[4, 2], i32>`: result_element: the element type of `%y: tensor<[4, 2], i32>` must be f32
        "#]],
    );
    let transpose = OpKind::Transpose { permutation: vec![1, 0] };
    check(
        one(x(F4E2M1FN), transpose, ty(&[2, 4], F4E2M1FN)),
        expect![[r#"
            op0 `%y = transpose %x {permutation = [1, 0]} : tensor<[2, 4], f4E2M1FN>`: operand_element: transpose takes any type but f4E2M1FN, f6E2M3FN and f6E3M2FN as operand, but `%x` is tensor<[4, 2], f4E2M1FN>
        "#]],
    );
    check(
        one(x(F4E2M1FN), OpKind::Broadcast, ty(&[5, 4, 2], F4E2M1FN)),
        expect![[r#"
            op0 `%y = broadcast %x : tensor<[5, 4, 2], f4E2M1FN>`: operand_element: broadcast takes any type but f4E2M1FN, f6E2M3FN and f6E3M2FN as operand, but `%x` is tensor<[4, 2], f4E2M1FN>
        "#]],
    );
    let six = |shape: &[u64]| ty(shape, F6E2M3FN);
    check(
        one(six(&[4, 6]), OpKind::Convert, ty(&[4, 6], F32)),
        expect![[r#"
            input 0: packed_extent: `%x: tensor<[4, 6], f6E2M3FN>` needs a last extent that is known to be a multiple of 4
        "#]],
    );
    let transpose = OpKind::Transpose { permutation: vec![1, 0] };
    check(
        one(six(&[4, 8]), transpose, six(&[8, 4])),
        expect![[r#"
        op0 `%y = transpose %x {permutation = [1, 0]} : tensor<[8, 4], f6E2M3FN>`: operand_element: transpose takes any type but f4E2M1FN, f6E2M3FN and f6E3M2FN as operand, but `%x` is tensor<[4, 8], f6E2M3FN>
    "#]],
    );
    let slice = OpKind::Slice { ranges: vec![SliceRange { axis: 0, start: 1, end: 3, step: 1 }] };
    check(
        one(six(&[4, 8]), slice, six(&[2, 8])),
        expect![[r#"
        op0 `%y = slice %x {axes = [0], ends = [3], starts = [1]} : tensor<[2, 8], f6E2M3FN>`: operand_element: slice takes any type but f6E2M3FN and f6E3M2FN as operand, but `%x` is tensor<[4, 8], f6E2M3FN>
    "#]],
    );
    check(
        one(six(&[4, 8]), RELU, six(&[4, 8])),
        expect![[r#"
        op0 `%y = relu %x : tensor<[4, 8], f6E2M3FN>`: operand_element: relu takes f16, bf16 or f32 as operand, but `%x` is tensor<[4, 8], f6E2M3FN>
    "#]],
    );
    let reduce = OpKind::Reduce { kind: ReduceKind::Sum, axes: vec![0], keep_dims: false };
    check(
        one(x(I32), reduce, ty(&[2], I32)),
        expect![[r#"
            op0 `%y = reduce %x {axes = [0], kind = sum} : tensor<[2], i32>`: operand_element: reduce takes f16, bf16 or f32 as operand, but `%x` is tensor<[4, 2], i32>
        "#]],
    );
    check(
        |b| {
            let [half, brain, integer, boolean] =
                [("half", F16), ("brain", BF16), ("int", I32), ("bool", I1)].map(|(n, e)| b.input(n, x(e)));
            let add = OpKind::Binary(BinaryKind::Add);
            let compare = OpKind::Compare(Predicate::Lt);
            [
                b.op(add.clone(), &[half, brain], &[("joined", x(BF16))]),
                b.op(add, &[half, integer], &[("mixed", x(F32))]),
                b.op(compare.clone(), &[half, integer], &[("unlike", x(I1))]),
                b.op(compare.clone(), &[boolean, boolean], &[("booleans", x(I1))]),
                b.op(compare, &[half, brain], &[("number", x(F32))]),
                b.op(OpKind::Select, &[half, half, half], &[("condition", x(F16))]),
                b.op(OpKind::Select, &[boolean, integer, integer], &[("integers", x(F32))]),
                b.op(OpKind::Mma, &[half, brain], &[("m", ty(&[4, 4], F32))]),
                b.op(OpKind::Mma, &[integer, half], &[("n", ty(&[4, 4], I32))]),
            ]
            .concat()
        },
        expect![[r#"
            op0 `%joined = add %half, %brain : tensor<[4, 2], bf16>`: result_element: the element type of `%joined: tensor<[4, 2], bf16>` must be f32
            op1 `%mixed = add %half, %int : tensor<[4, 2], f32>`: element_mismatch: `%half: tensor<[4, 2], f16>` and `%int: tensor<[4, 2], i32>` must have the same element type
            op2 `%unlike = compare %half, %int {predicate = lt} : tensor<[4, 2], i1>`: element_mismatch: `%half: tensor<[4, 2], f16>` and `%int: tensor<[4, 2], i32>` must have the same element type
            op3 `%booleans = compare %bool, %bool {predicate = lt} : tensor<[4, 2], i1>`: operand_element: compare takes f16, bf16, f32 or i32 as left, but `%bool` is tensor<[4, 2], i1>
            op3 `%booleans = compare %bool, %bool {predicate = lt} : tensor<[4, 2], i1>`: operand_element: compare takes f16, bf16, f32 or i32 as right, but `%bool` is tensor<[4, 2], i1>
            op4 `%number = compare %half, %brain {predicate = lt} : tensor<[4, 2], f32>`: result_element: the element type of `%number: tensor<[4, 2], f32>` must be i1
            op5 `%condition = select %half, %half, %half : tensor<[4, 2], f16>`: operand_element: select takes i1 as condition, but `%half` is tensor<[4, 2], f16>
            op6 `%integers = select %bool, %int, %int : tensor<[4, 2], f32>`: result_element: the element type of `%integers: tensor<[4, 2], f32>` must be i32
            op7 `%m = mma %half, %brain : tensor<[4, 4], f32>`: element_mismatch: `%half: tensor<[4, 2], f16>` and `%brain: tensor<[4, 2], bf16>` must have the same element type
            op8 `%n = mma %int, %half : tensor<[4, 4], i32>`: operand_element: mma takes f16, bf16 or f32 as a, but `%int` is tensor<[4, 2], i32>
            op8 `%n = mma %int, %half : tensor<[4, 4], i32>`: result_element: the element type of `%n: tensor<[4, 4], i32>` must be f16, bf16 or f32
        "#]],
    );
    let [_, sfa, b, sfb] = nvfp4();
    check(
        product([ty(&[37, 64], F8E5M2), sfa, b, sfb], 16, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: format: f8E5M2 data with f8E4M3FN scales per 16 elements is not a format of this op
        "#]],
    );
    let [_, sfa, b, sfb] = nvfp4();
    check(
        product([ty(&[37, 64], F16), sfa, b, sfb], 16, ty(&[37, 24], F8E4M3FN)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f8E4M3FN>`: scales_unexpected: scaled_mma takes `%a: tensor<[37, 64], f16>` as a, which has no scales, and `%sfa` as sfa
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f8E4M3FN>`: result_element: the element type of `%d: tensor<[37, 24], f8E4M3FN>` must be f16, bf16 or f32
        "#]],
    );
    let weight_only = |a: TensorType| {
        move |builder: &mut Builder| {
            let [_, _, b, sfb] = nvfp4();
            let operands = [builder.input("a", a), builder.input("b", b), builder.input("sfb", sfb)];
            let kind = OpKind::ScaledMma(ScaledMma { weight_only: true, ..PLAIN });
            builder.op(kind, &operands, &[("d", ty(&[37, 24], F32))])
        }
    };
    check(
        weight_only(ty(&[37, 64], F32)),
        expect![[r#"
        op0 `%d = scaled_mma %a, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: operand_element: scaled_mma takes f16 or bf16 as a, but `%a` is tensor<[37, 64], f32>
    "#]],
    );
    check(
        weight_only(ty(&[37, 64], F4E2M1FN)),
        expect![[r#"
        op0 `%d = scaled_mma %a, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: scales_missing: scaled_mma takes `%a: tensor<[37, 64], f4E2M1FN>` as a without its scales
    "#]],
    );
    check(
        weight_only(ty(&[37, 80], BF16)),
        expect![[r#"
        op0 `%d = scaled_mma %a, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: k_mismatch: `%a: tensor<[37, 80], bf16>` and `%b: tensor<[24, 64], f4E2M1FN>` differ in their last extent, K
    "#]],
    );
    check(
        weight_only(sf(&[37, 64], F8E4M3FN, Linear)),
        expect![[r#"
        op0 `%d = scaled_mma %a, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: unexpected_scales: scaled_mma takes no scale tensor as a, but `%a` is tensor<[37, 64], f8E4M3FN, linear>
    "#]],
    );
    let [a, sfa, b, _] = nvfp4();
    let mixed = [a, sfa, b, sf(&[24, 4], F8E8M0FNU, Linear)];
    check(
        product(mixed, 16, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: element_mismatch: `%sfa: tensor<[37, 4], f8E4M3FN, blocked>` and `%sfb: tensor<[24, 4], f8E8M0FNU, linear>` must have the same element type
        "#]],
    );
    for (kind, operands, result) in [
        (OpKind::Bitcast, vec![ty(&[5], BF16)], ty(&[5], I32)),
        (OpKind::Bitcast, vec![ty(&[5], F32)], ty(&[5], F32)),
        (OpKind::Bitcast, vec![ty(&[5], I32)], ty(&[5], F16)),
        (OpKind::Bitwise(BitwiseKind::And), vec![ty(&[5], F32), ty(&[5], I32)], ty(&[5], F32)),
    ] {
        let mut b = Builder::new("main");
        let names = ["x", "y"];
        let values: Vec<Value> =
            operands.into_iter().zip(names).map(|(operand, name)| b.input(name, operand)).collect();
        let z = b.op(kind, &values, &[("z", result)])[0];
        let invalid = verify(b.finish(&[z])).expect_err("the types do not fit");
        let codes: Vec<&str> = invalid.errors.iter().map(|error| error.kind.code()).collect();
        assert!(codes.iter().all(|code| matches!(*code, "operand_element" | "result_element")), "{codes:?}");
    }
    let (codes, scales) = (ty(&[5, 64], F8E4M3FN), sf(&[5, 4], F8E8M0FNU, Linear));
    let floor = Some(ScaleRounding::Floor);
    check(
        quantize(ty(&[5, 64], F32), None, 16, floor, codes, scales),
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v {block = 16, scale_rounding = floor} : tensor<[5, 64], f8E4M3FN>, tensor<[5, 4], f8E8M0FNU, linear>`: format: f8E4M3FN data with f8E8M0FNU scales per 16 elements is not a format of this op
        "#]],
    );
    let (codes, scales) = (ty(&[5, 64], F16), sf(&[5, 4], F8E4M3FN, Linear));
    let g = Some(ty(&[2], F32));
    check(
        quantize(ty(&[5, 64], I32), g, 16, None, codes, scales),
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v, %g {block = 16} : tensor<[5, 64], f16>, tensor<[5, 4], f8E4M3FN, linear>`: operand_element: block_quantize takes f16, bf16 or f32 as v, but `%v` is tensor<[5, 64], i32>
            op0 `%codes, %scales = block_quantize %v, %g {block = 16} : tensor<[5, 64], f16>, tensor<[5, 4], f8E4M3FN, linear>`: result_element: the element type of `%codes: tensor<[5, 64], f16>` must be f4E2M1FN, f6E2M3FN, f6E3M2FN, f8E4M3FN or f8E5M2
            op0 `%codes, %scales = block_quantize %v, %g {block = 16} : tensor<[5, 64], f16>, tensor<[5, 4], f8E4M3FN, linear>`: scalar_operand: g must be f32 of shape [] or [1], but `%g` is tensor<[2], f32>
        "#]],
    );
    check(
        |b| {
            let mut operands = nvfp4_operands(b, 37, 24, 64).to_vec();
            operands.push(b.input("alpha", ty(&[24], F32)));
            operands.push(b.input("c", ty(&[37, 24], I32)));
            operands.push(b.input("beta", ty(&[1], F16)));
            let mma = OpKind::ScaledMma(ScaledMma {
                block: 16,
                weight_only: false,
                alpha: true,
                c: true,
                beta: true,
            });
            b.op(mma, &operands, &[("d", ty(&[37, 24], F16))])
        },
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha, c = %c, beta = %beta {block = 16} : tensor<[37, 24], f16>`: scalar_operand: alpha must be f32 of shape [] or [1], but `%alpha` is tensor<[24], f32>
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha, c = %c, beta = %beta {block = 16} : tensor<[37, 24], f16>`: scalar_operand: beta must be f32 of shape [] or [1], but `%beta` is tensor<[1], f16>
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb, alpha = %alpha, c = %c, beta = %beta {block = 16} : tensor<[37, 24], f16>`: operand_element: scaled_mma takes f16, bf16 or f32 as c, but `%c` is tensor<[37, 24], i32>
        "#]],
    );
}

#[test]
fn shapes() {
    let f32s = |extents: &[u64]| ty(extents, F32);
    check(
        one(f32s(&[3, 5]), RELU, f32s(&[5, 3])),
        expect![[r#"
            op0 `%y = relu %x : tensor<[5, 3], f32>`: result_shape: the shape of `%y: tensor<[5, 3], f32>` must be [3, 5]
        "#]],
    );
    check(
        one(f32s(&[3, 5]), OpKind::Reshape, f32s(&[5, 4])),
        expect![[r#"
            op0 `%y = reshape %x : tensor<[5, 4], f32>`: element_count: [3, 5] and [5, 4] are not known to have the same number of elements
        "#]],
    );
    check(
        one(f32s(&[3, 5]), OpKind::Broadcast, f32s(&[3])),
        expect![[r#"
            op0 `%y = broadcast %x : tensor<[3], f32>`: not_broadcastable: the shapes of broadcast do not broadcast: [3, 5], [3]
        "#]],
    );
    check(
        one(f32s(&[3, 5]), OpKind::Broadcast, f32s(&[2, 4, 5])),
        expect![[r#"
            op0 `%y = broadcast %x : tensor<[2, 4, 5], f32>`: not_broadcastable: the shapes of broadcast do not broadcast: [3, 5], [2, 4, 5]
        "#]],
    );
    let transpose = OpKind::Transpose { permutation: vec![2, 0, 1] };
    check(
        one(f32s(&[3, 5, 7]), transpose, f32s(&[5, 7, 3])),
        expect![[r#"
            op0 `%y = transpose %x {permutation = [2, 0, 1]} : tensor<[5, 7, 3], f32>`: result_shape: the shape of `%y: tensor<[5, 7, 3], f32>` must be [7, 3, 5]
        "#]],
    );
    for (keep_dims, expected) in [
        (
            true,
            expect![[r#"
                op0 `%y = reduce %x {axes = [0, 2], keep_dims = true, kind = max} : tensor<[3, 7], f32>`: result_shape: the shape of `%y: tensor<[3, 7], f32>` must be [1, 5, 1]
            "#]],
        ),
        (
            false,
            expect![[r#"
                op0 `%y = reduce %x {axes = [0, 2], kind = max} : tensor<[3, 7], f32>`: result_shape: the shape of `%y: tensor<[3, 7], f32>` must be [5]
            "#]],
        ),
    ] {
        let reduce = OpKind::Reduce { kind: ReduceKind::Max, axes: vec![0, 2], keep_dims };
        check(one(f32s(&[3, 5, 7]), reduce, f32s(&[3, 7])), expected);
    }
    check(
        |b| {
            let (m, n) = (b.symbol("M"), b.symbol("N"));
            let x = b.input("x", TensorType::new(vec![m.clone(), Dim::fixed(4)], F32));
            let y = b.input("y", TensorType::new(vec![n.clone(), Dim::fixed(4)], F32));
            let sum = b.binary("sum", BinaryKind::Add, x, y);
            let flat = TensorType::new(vec![Dim::fixed(4).times(&n).expect("the product is small")], F32);
            let flat = b.op(OpKind::Reshape, &[x], &[("flat", flat)])[0];
            let condition = b.input("condition", ty(&[2, 3], I1));
            let chosen = b.op(OpKind::Select, &[condition, x, x], &[("chosen", b.ty(x).clone())])[0];
            vec![sum, flat, chosen]
        },
        expect![[r#"
            op0 `%sum = add %x, %y : tensor<[M, 4], f32>`: not_broadcastable: the shapes of add do not broadcast: [M, 4], [N, 4]
            op1 `%flat = reshape %x : tensor<[4*N], f32>`: element_count: [M, 4] and [4*N] are not known to have the same number of elements
            op2 `%chosen = select %condition, %x, %x : tensor<[M, 4], f32>`: not_broadcastable: the shapes of select do not broadcast: [2, 3], [M, 4], [M, 4]
        "#]],
    );
    check(
        |b| {
            let (x, w) = (b.input("x", ty(&[5, 3], F32)), b.input("w", ty(&[5], F32)));
            let scalar = b.input("scalar", ty(&[], F32));
            let norm = OpKind::LayerNorm { eps: 0.0 };
            let y = b.op(norm.clone(), &[x, w, scalar], &[("y", ty(&[5, 3], F32))])[0];
            let z = b.op(norm, &[scalar, w, w], &[("z", ty(&[], F32))])[0];
            vec![y, z]
        },
        expect![[r#"
            op0 `%y = layer_norm %x, %w, %scalar {eps = 0} : tensor<[5, 3], f32>`: operand_shape: weight must have the shape [3], but `%w` is tensor<[5], f32>
            op0 `%y = layer_norm %x, %w, %scalar {eps = 0} : tensor<[5, 3], f32>`: operand_shape: bias must have the shape [3], but `%scalar` is tensor<[], f32>
            op1 `%z = layer_norm %scalar, %w, %w {eps = 0} : tensor<[], f32>`: operand_rank: x must have rank 1 or more, but `%scalar` is tensor<[], f32>
        "#]],
    );
    check(
        |b| {
            let a = b.input("a", ty(&[3, 37, 64], F16));
            let longer = b.input("longer", ty(&[24, 65], F16));
            let other_batch = b.input("other_batch", ty(&[4, 24, 64], F16));
            let flat = b.input("flat", ty(&[64], F16));
            let matrix = b.input("matrix", ty(&[24, 64], F16));
            [
                b.op(OpKind::Mma, &[a, longer], &[("k", ty(&[3, 37, 24], F32))]),
                b.op(OpKind::Mma, &[a, other_batch], &[("l", ty(&[3, 37, 24], F32))]),
                b.op(OpKind::Mma, &[matrix, a], &[("deeper", ty(&[24, 37], F32))]),
                b.op(OpKind::Mma, &[a, flat], &[("vector", ty(&[3, 37], F32))]),
                b.op(OpKind::Mma, &[a, matrix], &[("d", ty(&[37, 24], F32))]),
            ]
            .concat()
        },
        expect![[r#"
            op0 `%k = mma %a, %longer : tensor<[3, 37, 24], f32>`: k_mismatch: `%a: tensor<[3, 37, 64], f16>` and `%longer: tensor<[24, 65], f16>` differ in their last extent, K
            op1 `%l = mma %a, %other_batch : tensor<[3, 37, 24], f32>`: batch_mismatch: the leading extents of `%other_batch: tensor<[4, 24, 64], f16>` differ from those of `%a: tensor<[3, 37, 64], f16>`
            op2 `%deeper = mma %matrix, %a : tensor<[24, 37], f32>`: batch_mismatch: the leading extents of `%a: tensor<[3, 37, 64], f16>` differ from those of `%matrix: tensor<[24, 64], f16>`
            op3 `%vector = mma %a, %flat : tensor<[3, 37], f32>`: operand_rank: b must have rank 2 or more, but `%flat` is tensor<[64], f16>
            op4 `%d = mma %a, %matrix : tensor<[37, 24], f32>`: result_shape: the shape of `%d: tensor<[37, 24], f32>` must be [3, 37, 24]
        "#]],
    );
    check(
        |b| {
            let mut operands = nvfp4_operands(b, 37, 24, 64).to_vec();
            operands.push(b.input("c", ty(&[24], F16)));
            let mma = OpKind::ScaledMma(ScaledMma { c: true, ..PLAIN });
            b.op(mma, &operands, &[("d", ty(&[24, 37], F16))])
        },
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb, c = %c {block = 16} : tensor<[24, 37], f16>`: operand_shape: c must have the shape [37, 24], but `%c` is tensor<[24], f16>
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb, c = %c {block = 16} : tensor<[24, 37], f16>`: result_shape: the shape of `%d: tensor<[24, 37], f16>` must be [37, 24]
        "#]],
    );
    let [_, sfa, _, sfb] = nvfp4();
    let ragged = [ty(&[37, 56], F4E2M1FN), sfa, ty(&[24, 72], F4E2M1FN), sfb];
    check(
        product(ragged, 16, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: k_mismatch: `%a: tensor<[37, 56], f4E2M1FN>` and `%b: tensor<[24, 72], f4E2M1FN>` differ in their last extent, K
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: block_multiple: the last extent of `%a: tensor<[37, 56], f4E2M1FN>` is not known to be a multiple of the block, 16
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: block_multiple: the last extent of `%b: tensor<[24, 72], f4E2M1FN>` is not known to be a multiple of the block, 16
        "#]],
    );
    check(
        |b| {
            let k = b.symbol("K");
            let dim = |factor: u64| Dim::fixed(factor).times(&k).expect("the product is small");
            let v = b.input("v", TensorType::new(vec![Dim::fixed(3), dim(8)], F32));
            let g = b.input("g", ty(&[], F32));
            let codes = TensorType::new(vec![Dim::fixed(3), dim(8)], F4E2M1FN);
            let scales = TensorType::scales(vec![Dim::fixed(3), k.clone()], F8E4M3FN, Linear);
            let quantize = OpKind::block_quantize(16, None);
            b.op(quantize, &[v, g], &[("codes", codes), ("scales", scales)])
        },
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v, %g {block = 16} : tensor<[3, 8*K], f4E2M1FN>, tensor<[3, K], f8E4M3FN, linear>`: block_multiple: the last extent of `%v: tensor<[3, 8*K], f32>` is not known to be a multiple of the block, 16
        "#]],
    );
}

#[test]
fn scale_tensors() {
    let scales = |layout| sf(&[37, 4], F8E4M3FN, layout);
    check(
        one(scales(Linear), RELU, scales(Linear)),
        expect![[r#"
            op0 `%y = relu %x : tensor<[37, 4], f8E4M3FN, linear>`: unexpected_scales: relu takes no scale tensor as operand, but `%x` is tensor<[37, 4], f8E4M3FN, linear>
            op0 `%y = relu %x : tensor<[37, 4], f8E4M3FN, linear>`: result_layout: relu does not produce scales, but `%y` is tensor<[37, 4], f8E4M3FN, linear>
        "#]],
    );
    check(
        one(scales(Linear), OpKind::Reshape, ty(&[148], F8E4M3FN)),
        expect![[r#"
            op0 `%y = reshape %x : tensor<[148], f8E4M3FN>`: unexpected_scales: reshape takes no scale tensor as operand, but `%x` is tensor<[37, 4], f8E4M3FN, linear>
        "#]],
    );
    accept(program(one(scales(Linear), OpKind::Reshape, sf(&[148, 1], F8E4M3FN, Linear))));
    check(
        one(scales(Blocked), OpKind::Reshape, sf(&[148, 1], F8E4M3FN, Blocked)),
        expect![[r#"
            op0 `%y = reshape %x : tensor<[148, 1], f8E4M3FN, blocked>`: unexpected_scales: reshape takes no scale tensor as operand, but `%x` is tensor<[37, 4], f8E4M3FN, blocked>
            op0 `%y = reshape %x : tensor<[148, 1], f8E4M3FN, blocked>`: result_layout: reshape does not produce scales, but `%y` is tensor<[148, 1], f8E4M3FN, blocked>
        "#]],
    );
    check(
        one(scales(Linear), OpKind::Reshape, sf(&[148, 1], F8E4M3FN, Blocked)),
        expect![[r#"
            op0 `%y = reshape %x : tensor<[148, 1], f8E4M3FN, blocked>`: unexpected_scales: reshape takes no scale tensor as operand, but `%x` is tensor<[37, 4], f8E4M3FN, linear>
            op0 `%y = reshape %x : tensor<[148, 1], f8E4M3FN, blocked>`: result_layout: reshape does not produce scales, but `%y` is tensor<[148, 1], f8E4M3FN, blocked>
        "#]],
    );
    check(
        one(ty(&[37, 4], F8E4M3FN), OpKind::Reshape, sf(&[148, 1], F8E4M3FN, Linear)),
        expect![[r#"
            op0 `%y = reshape %x : tensor<[148, 1], f8E4M3FN, linear>`: result_layout: reshape does not produce scales, but `%y` is tensor<[148, 1], f8E4M3FN, linear>
        "#]],
    );
    check(
        one(scales(Blocked), OpKind::Convert, ty(&[37, 4], F32)),
        expect![[r#"
            op0 `%y = convert %x : tensor<[37, 4], f32>`: blocked_convert: `%x: tensor<[37, 4], f8E4M3FN, blocked>` has the blocked layout and cannot be converted
        "#]],
    );
    check(
        one(scales(Linear), OpKind::Convert, ty(&[37, 4], F8E4M3FN)),
        expect![[r#"
            op0 `%y = convert %x : tensor<[37, 4], f8E4M3FN>`: result_element: the element type of `%y: tensor<[37, 4], f8E4M3FN>` must be f16, bf16 or f32
        "#]],
    );
    check(
        one(ty(&[37, 4], F32), OpKind::Convert, scales(Linear)),
        expect![[r#"
            op0 `%y = convert %x : tensor<[37, 4], f8E4M3FN, linear>`: result_layout: convert does not produce scales, but `%y` is tensor<[37, 4], f8E4M3FN, linear>
        "#]],
    );
    check(
        one(scales(Blocked), OpKind::SwizzleScales, scales(Blocked)),
        expect![[r#"
            op0 `%y = swizzle_scales %x : tensor<[37, 4], f8E4M3FN, blocked>`: swizzle_nothing: swizzle_scales from blocked to blocked changes nothing
        "#]],
    );
    check(
        one(scales(Blocked), OpKind::SwizzleScales, ty(&[37, 4], F16)),
        expect![[r#"
            op0 `%y = swizzle_scales %x : tensor<[37, 4], f16>`: expected_scales: swizzle_scales requires a scale tensor as scales, but `%y` is tensor<[37, 4], f16>
        "#]],
    );
    check(
        one(ty(&[37, 4], F8E4M3FN), OpKind::SwizzleScales, ty(&[37, 4], F8E4M3FN)),
        expect![[r#"
            op0 `%y = swizzle_scales %x : tensor<[37, 4], f8E4M3FN>`: expected_scales: swizzle_scales requires a scale tensor as scales, but `%x` is tensor<[37, 4], f8E4M3FN>
            op0 `%y = swizzle_scales %x : tensor<[37, 4], f8E4M3FN>`: expected_scales: swizzle_scales requires a scale tensor as scales, but `%y` is tensor<[37, 4], f8E4M3FN>
        "#]],
    );
    let other = sf(&[4, 37], F8E8M0FNU, Blocked);
    check(
        one(scales(Linear), OpKind::SwizzleScales, other),
        expect![[r#"
            op0 `%y = swizzle_scales %x : tensor<[4, 37], f8E8M0FNU, blocked>`: result_element: the element type of `%y: tensor<[4, 37], f8E8M0FNU, blocked>` must be f8E4M3FN
            op0 `%y = swizzle_scales %x : tensor<[4, 37], f8E8M0FNU, blocked>`: result_shape: the shape of `%y: tensor<[4, 37], f8E8M0FNU, blocked>` must be [37, 4]
        "#]],
    );
    let [a, sfa, b, sfb] = nvfp4();
    check(
        product([sfa, a, sfb, b], 16, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: unexpected_scales: scaled_mma takes no scale tensor as a, but `%a` is tensor<[37, 4], f8E4M3FN, blocked>
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: unexpected_scales: scaled_mma takes no scale tensor as b, but `%b` is tensor<[24, 4], f8E4M3FN, linear>
        "#]],
    );
    let [a, _, b, _] = nvfp4();
    let types = [a, ty(&[37, 4], F8E4M3FN), b, ty(&[24, 4], F32)];
    check(
        product(types, 16, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: expected_scales: scaled_mma requires a scale tensor as sfa, but `%sfa` is tensor<[37, 4], f8E4M3FN>
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: expected_scales: scaled_mma requires a scale tensor as sfb, but `%sfb` is tensor<[24, 4], f32>
        "#]],
    );
    let [a, _, b, _] = nvfp4();
    // Scales with the padded shape, and scales with the rows of the other matrix.
    let types = [a, sf(&[128, 4], F8E4M3FN, Blocked), b, sf(&[37, 4], F8E4M3FN, Linear)];
    check(
        product(types, 16, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: scale_shape: the scales of `%a` must have the shape [37, 4], but `%sfa` is tensor<[128, 4], f8E4M3FN, blocked>
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[37, 24], f32>`: scale_shape: the scales of `%b` must have the shape [24, 4], but `%sfb` is tensor<[37, 4], f8E4M3FN, linear>
        "#]],
    );
    let batched = [
        ty(&[3, 37, 64], F4E2M1FN),
        sf(&[3, 37, 4], F8E4M3FN, Linear),
        ty(&[24, 64], F4E2M1FN),
        sf(&[3, 24, 4], F8E4M3FN, Linear),
    ];
    check(
        product(batched, 16, ty(&[3, 37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[3, 37, 24], f32>`: scale_shape: the scales of `%b` must have the shape [24, 4], but `%sfb` is tensor<[3, 24, 4], f8E4M3FN, linear>
        "#]],
    );
    check(
        |b| {
            let codes = b.input("codes", ty(&[2, 64], F8E5M2));
            let scales = b.input("scales", sf(&[2, 2], F8E4M3FN, Linear));
            let g = b.input("g", ty(&[1, 1], F32));
            b.op(OpKind::BlockDequantize { block: 16 }, &[codes, scales, g], &[("v", ty(&[64, 2], I32))])
        },
        expect![[r#"
            op0 `%v = block_dequantize %codes, %scales, %g {block = 16} : tensor<[64, 2], i32>`: format: f8E5M2 data with f8E4M3FN scales per 16 elements is not a format of this op
            op0 `%v = block_dequantize %codes, %scales, %g {block = 16} : tensor<[64, 2], i32>`: scalar_operand: g must be f32 of shape [] or [1], but `%g` is tensor<[1, 1], f32>
            op0 `%v = block_dequantize %codes, %scales, %g {block = 16} : tensor<[64, 2], i32>`: result_element: the element type of `%v: tensor<[64, 2], i32>` must be f16, bf16 or f32
            op0 `%v = block_dequantize %codes, %scales, %g {block = 16} : tensor<[64, 2], i32>`: result_shape: the shape of `%v: tensor<[64, 2], i32>` must be [2, 64]
            op0 `%v = block_dequantize %codes, %scales, %g {block = 16} : tensor<[64, 2], i32>`: scale_shape: the scales of `%codes` must have the shape [2, 4], but `%scales` is tensor<[2, 2], f8E4M3FN, linear>
        "#]],
    );
}
