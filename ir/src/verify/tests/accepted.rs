//! Accepted programs, and the facts proved about them.

use std::collections::BTreeSet;

use expect_test::expect;

use super::*;
use crate::numeric::Nvfp4Formula;
use crate::ops::{
    BinaryKind, BitwiseKind, ConstantValue, GroupedScaledMma, OpKind, PadAmount, Predicate, ReduceKind,
    ScaleRounding, ScaledMma, SliceRange, UnaryKind,
};
use crate::program::{BlockFormat, Matmul};
use crate::types::ElementType::{F8E5M2, F8E8M0FNU, I1, I32};

/// A program with every op, every named operand and both layouts. The totality tests mutate it.
pub(super) fn every_op() -> Module {
    let mut b = Builder::new("every.op");
    let m = b.symbol("M");
    let rows = |inner: u64, element| TensorType::new(vec![m.clone(), Dim::fixed(inner)], element);
    let x = b.input("x", rows(96, BF16));
    let g = b.input("g", ty(&[1], F32));
    let alpha = b.input("alpha", ty(&[], F32));
    let beta = b.input("beta", ty(&[1], F32));
    let w = b.param("w", ty(&[48, 96], F4E2M1FN));
    let sfw = b.param("sfw", sf(&[48, 6], F8E4M3FN, Linear));
    let bias = b.param("layer.0.bias", ty(&[48], F16));

    let scales = TensorType::scales(vec![m.clone(), Dim::fixed(6)], F8E4M3FN, Linear);
    let quantized =
        b.op(OpKind::block_quantize(16, None), &[x, g], &[("xq", rows(96, F4E2M1FN)), ("sfx", scales)]);
    let (xq, sfx) = (quantized[0], quantized[1]);
    let sfx_blocked = b.swizzle_scales("sfx.blocked", sfx, Blocked);
    let sfw_blocked = b.swizzle_scales("sfw.blocked", sfw, Blocked);
    let x_again = b.op(OpKind::BlockDequantize { block: 16 }, &[xq, sfx, g], &[("x2", rows(96, F32))])[0];
    let w_again = b.op(OpKind::BlockDequantize { block: 16 }, &[w, sfw], &[("w2", ty(&[48, 96], F32))])[0];
    let scale_values = b.convert("sfx.f32", sfx, F32);
    let c = b.mma("c", x_again, w_again, F16);
    let options = ScaledMmaOptions { alpha: Some(alpha), c: Some(c), beta: Some(beta) };
    let mut y = b.scaled_mma("y", xq, sfx_blocked, w, sfw_blocked, 16, BF16, options);
    y = b.binary("y.bias", BinaryKind::Add, y, bias);
    for &kind in UnaryKind::ALL {
        y = b.unary(&format!("y.{kind}"), kind, y);
    }
    for &kind in BinaryKind::ALL {
        y = b.binary(&format!("y2.{kind}"), kind, y, bias);
    }
    let clamped =
        b.op(OpKind::Clamp { min: f64::NEG_INFINITY, max: 6.0 }, &[y], &[("clamped", rows(48, F32))])[0];
    let positive = b.op(OpKind::Compare(Predicate::Gt), &[clamped, alpha], &[("positive", rows(48, I1))])[0];
    let chosen = b.op(OpKind::Select, &[positive, y, bias], &[("chosen", rows(48, F32))])[0];
    let counts = b.convert("counts", positive, I32);
    let bits = b.op(OpKind::Bitcast, &[clamped], &[("bits", rows(48, I32))])[0];
    let mut masked = bits;
    for &kind in BitwiseKind::ALL {
        masked = b.op(OpKind::Bitwise(kind), &[masked, bits], &[(&format!("bits.{kind}"), rows(48, I32))])[0];
    }
    let powers = TensorType::scales(rows(48, F32).shape, F8E8M0FNU, Linear);
    let bytes = b.op(OpKind::Bitcast, &[masked], &[("bytes", powers.clone())])[0];
    let rounded = b.op(OpKind::Convert, &[clamped], &[("rounded", powers)])[0];
    let exponents = b.op(OpKind::Bitcast, &[rounded], &[("exponents", rows(48, I32))])[0];
    let same = b.op(OpKind::Compare(Predicate::Eq), &[counts, counts], &[("same", rows(48, I1))])[0];
    let picked = b.op(OpKind::Select, &[same, counts, counts], &[("picked", rows(48, I32))])[0];
    let heads = TensorType::new(vec![m.clone(), Dim::fixed(3), Dim::fixed(16)], F32);
    let heads = b.op(OpKind::Reshape, &[chosen], &[("heads", heads)])[0];
    let turned = TensorType::new(vec![Dim::fixed(3), m.clone(), Dim::fixed(16)], F32);
    let turned = b.op(OpKind::Transpose { permutation: vec![1, 0, 2] }, &[heads], &[("turned", turned)])[0];
    let soft = TensorType::new(b.ty(turned).shape.clone(), F32);
    let soft = b.op(OpKind::Softmax { axis: 2 }, &[turned], &[("soft", soft)])[0];
    let reduce = |kind, keep_dims| OpKind::Reduce { kind, axes: vec![0, 2], keep_dims };
    let kept = TensorType::new(vec![Dim::fixed(1), m.clone(), Dim::fixed(1)], F32);
    let kept = b.op(reduce(ReduceKind::Mean, true), &[soft], &[("kept", kept)])[0];
    let dropped = TensorType::new(vec![m.clone()], F32);
    let dropped = b.op(reduce(ReduceKind::Amax, false), &[soft], &[("dropped", dropped)])[0];
    let one = b.op(OpKind::Constant(ConstantValue::Splat(1.0)), &[], &[("one", ty(&[48], F16))])[0];
    let listed = ConstantValue::Dense(vec![1.5, f64::NAN, -7.0, 1e9]);
    let listed = b.op(OpKind::Constant(listed), &[], &[("listed", ty(&[2, 2], F4E2M1FN))])[0];
    let normal = b.op(OpKind::LayerNorm { eps: 1e-5 }, &[chosen, one, bias], &[("normal", rows(48, F32))])[0];
    let spread = b.op(OpKind::Broadcast, &[one], &[("spread", rows(48, F16))])[0];
    let mut outputs = vec![x, sfx_blocked, scale_values, picked, kept, dropped, listed, normal, spread];
    outputs.extend([bytes, exponents]);
    outputs.push(routed(&mut b, chosen, m.clone()));
    outputs.extend(grouped(&mut b, m.clone()));
    outputs.extend(moved(&mut b, w, counts, m));
    b.finish(&outputs)
}

/// Ops that take, join or add elements, on FP4 codes `[48, 96]` and on integers `[M, 48]`.
fn moved(b: &mut Builder, codes: Value, counts: Value, m: Dim) -> [Value; 2] {
    let ranges = [(0, 0, 48, 2), (1, 32, 64, 1)];
    let ranges = ranges.map(|(axis, start, end, step)| SliceRange { axis, start, end, step }).to_vec();
    let sliced = b.op(OpKind::Slice { ranges }, &[codes], &[("sliced", ty(&[24, 32], F4E2M1FN))])[0];
    let amounts = vec![PadAmount { axis: 1, low: 0, high: 64 }];
    let padded = OpKind::Pad { amounts, value: 0.5 };
    let padded = b.op(padded, &[sliced], &[("padded", ty(&[24, 96], F4E2M1FN))])[0];
    let rows = |rows: Dim| TensorType::new(vec![rows, Dim::fixed(48)], I32);
    let twice = Dim::fixed(2).times(&m).expect("the product is small");
    let sum = b.op(OpKind::Binary(BinaryKind::Add), &[counts, counts], &[("sum", rows(m))])[0];
    let joined = b.op(OpKind::Concat { axis: 0 }, &[counts, sum], &[("joined", rows(twice.clone()))])[0];
    let gathered = TensorType::new(vec![twice.clone(), Dim::fixed(48), Dim::fixed(96)], F4E2M1FN);
    let gathered = b.op(OpKind::Gather { axis: 0 }, &[padded, joined], &[("gathered", gathered)])[0];
    let chosen = OpKind::Choose { axis: 0, ends: vec![1, 96] };
    let chosen = b.op(chosen, &[joined, joined, joined], &[("taken", rows(twice))])[0];
    [chosen, gathered]
}

/// Three groups of NVFP4 rows, each with its own alpha, or with whole tiles of scales for each, and three matrices with the same matrices of B.
fn grouped(b: &mut Builder, m: Dim) -> [Value; 3] {
    let of = |shape: &[Dim], element| TensorType::new(shape.to_vec(), element);
    let [three, five, two, k] = [3, 5, 2, 32].map(Dim::fixed);
    let a = b.input("grouped_a", of(&[m.clone(), k.clone()], F4E2M1FN));
    let sfa_ty = TensorType::scales(vec![m.clone(), two.clone()], F8E4M3FN, Linear);
    let sfa = b.input("grouped_sfa", sfa_ty);
    let weight = b.input("grouped_b", of(&[three.clone(), five.clone(), k], F4E2M1FN));
    let sfb_ty = TensorType::scales(vec![three.clone(), five.clone(), two], F8E4M3FN, Blocked);
    let sfb = b.input("grouped_sfb", sfb_ty);
    let ends = b.input("grouped_ends", ty(&[3], I32));
    let alpha = b.input("grouped_alpha", ty(&[3], F32));
    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
        block: 16,
        weight_only: false,
        alpha: true,
        masked: false,
        sfa_ends: false,
    });
    let of_rows = of(&[m.clone(), five.clone()], BF16);
    let grouped = b.op(kind, &[a, sfa, weight, sfb, ends, alpha], &[("grouped", of_rows.clone())])[0];
    let sfa_ends = b.op(OpKind::PaddedEnds { multiple: 128 }, &[ends], &[("padded_ends", ty(&[3], I32))])[0];
    let sfa_ty = TensorType::scales(vec![Dim::fixed(640), Dim::fixed(2)], F8E4M3FN, Blocked);
    let sfa = b.op(OpKind::GroupScales, &[sfa, ends, sfa_ends], &[("group_scales", sfa_ty)])[0];
    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
        block: 16,
        weight_only: false,
        alpha: false,
        masked: false,
        sfa_ends: true,
    });
    let padded = b.op(kind, &[a, sfa, weight, sfb, ends, sfa_ends], &[("grouped_whole", of_rows)])[0];
    let a = b.input("masked_a", of(&[three.clone(), m.clone(), Dim::fixed(32)], F16));
    let kind = GroupedScaledMma { block: 16, weight_only: true, alpha: true, masked: true, sfa_ends: false };
    let of_matrices = of(&[three, m, five], BF16);
    let kind = OpKind::GroupedScaledMma(kind);
    [grouped, padded, b.op(kind, &[a, weight, sfb, ends, alpha], &[("masked_d", of_matrices)])[0]]
}

/// The weighted rows of the best of eight groups, `[M, 48]`, added up.
fn routed(b: &mut Builder, scores: Value, m: Dim) -> Value {
    let pair = |element| TensorType::new(vec![m.clone(), Dim::fixed(2)], element);
    let twice = Dim::fixed(2).times(&m).expect("the product is small");
    let flat = |element| TensorType::new(vec![twice.clone()], element);
    let taken = b.op(OpKind::TopK { k: 2 }, &[scores], &[("best", pair(F32)), ("ids", pair(I32))]);
    let results = [("positions", flat(I32)), ("rows", flat(I32)), ("ends", ty(&[8], I32))];
    let sorted = b.op(OpKind::GroupRows { groups: 8 }, &[taken[1]], &results);
    let values = b.op(OpKind::Reshape, &[taken[0]], &[("values", flat(F32))])[0];
    let total = TensorType::new(vec![m.clone()], BF16);
    b.op(OpKind::ScatterAdd, &[values, sorted[1]], &[("total", total)])[0]
}

/// A `scaled_mma` of operands of these types.
fn product(types: [TensorType; 4], block: u32) -> Module {
    let mut b = Builder::new("main");
    let mut names = ["a", "sfa", "b", "sfb"].into_iter();
    let [a, sfa, w, sfw] = types.map(|ty| b.input(names.next().unwrap_or("more"), ty));
    let d = b.scaled_mma("d", a, sfa, w, sfw, block, F32, ScaledMmaOptions::default());
    b.finish(&[d])
}

fn matmul(program: &Program) -> Matmul {
    let (_, matmul) = program.facts().matmuls().next().expect("the program multiplies");
    matmul.clone()
}

#[test]
fn a_program_of_every_op_is_accepted() {
    let program = accept(every_op());
    let used: BTreeSet<&str> =
        program.module().ops.values().map(|operation| operation.kind.mnemonic()).collect();
    let others = [
        "scaled_mma",
        "grouped_scaled_mma",
        "masked_scaled_mma",
        "mma",
        "swizzle_scales",
        "group_scales",
        "block_quantize",
        "block_dequantize",
        "convert",
        "bitcast",
        "clamp",
        "compare",
        "select",
        "reshape",
        "transpose",
        "broadcast",
        "slice",
        "concat",
        "choose",
        "gather",
        "top_k",
        "group_rows",
        "padded_ends",
        "scatter_add",
        "pad",
        "reduce",
        "softmax",
        "layer_norm",
        "constant",
    ];
    let unary = UnaryKind::ALL.iter().map(|kind| kind.name());
    let binary = BinaryKind::ALL.iter().map(|kind| kind.name());
    let bitwise = BitwiseKind::ALL.iter().map(|kind| kind.name());
    assert_eq!(used, unary.chain(binary).chain(bitwise).chain(others).collect());
}

#[test]
fn facts_say_who_uses_what_and_what_is_returned() {
    let program = accept(every_op());
    let (module, facts) = (program.module(), program.facts());
    let named = |name: &str| facts.value_named(name).expect("the program has the value");
    let op = |name: &str| module.defining_op(named(name)).expect("an op defines the value");

    let users = ["same", "same", "picked", "picked", "sum", "sum", "joined"];
    assert_eq!(facts.users(named("counts")), users.map(op));
    assert!(facts.is_output(named("x")) && !facts.is_output(named("y")));
    let multiplications = ["y", "grouped", "grouped_whole", "masked_d"].map(op);
    assert_eq!(facts.matmuls().map(|(op, _)| op).collect::<Vec<_>>(), multiplications);
    assert!(facts.matmul(op("c")).is_none(), "a plain mma is not a scaled_mma");
}

#[test]
fn a_matmul_fact_has_the_extents_the_format_and_the_layouts() {
    let program = accept(every_op());
    let m = Dim::symbol(program.module().symbols.keys().next().expect("M is a symbol"));
    let expected = Matmul {
        batch: Dim::fixed(1),
        m,
        n: Dim::fixed(48),
        k: Dim::fixed(96),
        b_batched: false,
        groups: None,
        masked: false,
        group_scales: None,
        format: BlockFormat::NVFP4,
        sfa_layout: Some(Blocked),
        sfb_layout: Blocked,
    };
    assert_eq!(matmul(&program), expected);
}

#[test]
fn b_may_have_the_batch_of_a_or_serve_all_of_it() {
    let a = || [ty(&[3, 37, 64], F4E2M1FN), sf(&[3, 37, 4], F8E4M3FN, Linear)];
    let [a_ty, sfa] = a();
    let batched = [a_ty, sfa, ty(&[3, 91, 64], F4E2M1FN), sf(&[3, 91, 4], F8E4M3FN, Blocked)];
    let found = matmul(&accept(product(batched, 16)));
    assert_eq!((found.batch, found.b_batched), (Dim::fixed(3), true));
    assert_eq!((found.m, found.n, found.k), (Dim::fixed(37), Dim::fixed(91), Dim::fixed(64)));

    let [a_ty, sfa] = a();
    let shared = [a_ty, sfa, ty(&[91, 64], F4E2M1FN), sf(&[91, 4], F8E4M3FN, Blocked)];
    let found = matmul(&accept(product(shared, 16)));
    assert_eq!((found.batch, found.b_batched), (Dim::fixed(3), false));
    assert_eq!((found.sfa_layout, found.sfb_layout), (Some(Linear), Blocked));
}

#[test]
fn a_16_bit_a_has_no_scales_and_every_block_format_beside_it() {
    use crate::types::ElementType::{F8E5M2, F8E8M0FNU};
    let formats = [
        (F4E2M1FN, F8E4M3FN, 16, "nvfp4"),
        (F4E2M1FN, F8E8M0FNU, 32, "mxfp4"),
        (F8E4M3FN, F8E8M0FNU, 32, "mxfp8"),
        (F8E5M2, F8E8M0FNU, 32, "mxfp8_e5m2"),
    ];
    for (a, (b, scale, block, name)) in [F16, BF16].into_iter().flat_map(|a| formats.map(|of_b| (a, of_b))) {
        let mut builder = Builder::new("main");
        let m = builder.symbol("M");
        let x = builder.input("x", TensorType::new(vec![Dim::fixed(3), m.clone(), Dim::fixed(96)], a));
        let w = builder.input("w", ty(&[40, 96], b));
        let sfw = builder.input("sfw", sf(&[40, 96 / u64::from(block)], scale, Blocked));
        let y = builder.scaled_mma("y", x, None, w, sfw, block, BF16, ScaledMmaOptions::default());
        let program = accept(builder.finish(&[y]));
        let found = matmul(&program);
        let expected = BlockFormat { a, b, scale, block };
        assert_eq!((found.format, found.m, found.sfa_layout), (expected, m, None));
        assert_eq!((found.b_batched, found.batch, found.sfb_layout), (false, Dim::fixed(3), Blocked));
        assert!(expected.is_standard() && expected.is_weight_only());
        assert_eq!(expected.to_string(), format!("{a} x {name}"));
        let of_b = BlockFormat { a: b, ..expected };
        assert_eq!((of_b.to_string(), of_b.weight_only(a)), (name.to_owned(), expected));
        let operands = program.module().scaled_mma_operands(program.facts().matmuls().next().unwrap().0);
        let operands = operands.expect("it multiplies");
        assert_eq!((operands.a, operands.sfa, operands.b, operands.sfb), (x, None, w, sfw));
    }
    let unusual = BlockFormat { block: 32, ..BlockFormat::NVFP4 };
    assert!(!unusual.is_standard() && !unusual.weight_only(BF16).is_standard());
    assert!(!BlockFormat::NVFP4.weight_only(F32).is_standard());
}

#[test]
fn symbolic_extents_multiply_and_divide() {
    let mut b = Builder::new("main");
    let (batch, s, k) = (b.symbol("B"), b.symbol("S"), b.symbol("K"));
    let tokens = TensorType::new(vec![batch.clone(), s.clone(), Dim::fixed(4)], BF16);
    let tokens = b.input("tokens", tokens);
    // K is 32 times a symbol: whole blocks for every value of it.
    let wide = Dim::fixed(32).times(&k).expect("the product is small");
    let blocks = Dim::fixed(2).times(&k).expect("the product is small");
    let rows = Dim::fixed(4).times(&batch).and_then(|dim| dim.times(&s)).expect("the product is small");
    let a = b.input("a", TensorType::new(vec![rows.clone(), wide.clone()], F4E2M1FN));
    let sfa = b.input("sfa", TensorType::scales(vec![rows.clone(), blocks.clone()], F8E4M3FN, Blocked));
    let w = b.input("w", TensorType::new(vec![Dim::fixed(130), wide.clone()], F4E2M1FN));
    let sfw = b.input("sfw", TensorType::scales(vec![Dim::fixed(130), blocks], F8E4M3FN, Blocked));
    let y = b.scaled_mma("y", a, sfa, w, sfw, 16, BF16, ScaledMmaOptions::default());
    // [4*B*S] has as many elements as [S, B, 4].
    let flat = b.op(OpKind::Reshape, &[tokens], &[("flat", TensorType::new(vec![rows.clone()], BF16))])[0];
    let column = TensorType::new(vec![s, Dim::fixed(4), batch, Dim::fixed(1)], BF16);
    let column = b.op(OpKind::Reshape, &[flat], &[("column", column)])[0];
    let found = matmul(&accept(b.finish(&[y, column])));
    assert_eq!((found.m, found.k), (rows, wide));
}

#[test]
fn every_legal_format_multiplies_and_dequantizes() {
    let data = [F4E2M1FN, F8E4M3FN, F8E5M2];
    let mut accepted = 0;
    for a in data {
        for w in data {
            for scale in [F8E4M3FN, F8E8M0FNU] {
                for block in [16u32, 32] {
                    let legal = scale == F8E8M0FNU || (a == F4E2M1FN && w == F4E2M1FN);
                    let blocks = 64 / u64::from(block);
                    let types = [
                        ty(&[37, 64], a),
                        sf(&[37, blocks], scale, Linear),
                        ty(&[5, 64], w),
                        sf(&[5, blocks], scale, Blocked),
                    ];
                    assert_eq!(verify(product(types, block)).is_ok(), legal, "{a} {w} {scale} {block}");
                    accepted += usize::from(legal);
                    let mut b = Builder::new("main");
                    let codes = b.input("codes", ty(&[2, 3, 64], a));
                    let scales = b.input("scales", sf(&[2, 3, blocks], scale, Linear));
                    let v = [("v", ty(&[2, 3, 64], BF16))];
                    let v = b.op(OpKind::BlockDequantize { block }, &[codes, scales], &v);
                    let legal = scale == F8E8M0FNU || a == F4E2M1FN;
                    assert_eq!(verify(b.finish(&v)).is_ok(), legal, "{a} {scale} {block}");
                }
            }
        }
    }
    assert_eq!(accepted, 9 * 2 + 2);
}

#[test]
fn both_families_quantize() {
    for (data, rounding) in
        [(F4E2M1FN, ScaleRounding::Floor), (F8E4M3FN, ScaleRounding::Ceil), (F8E5M2, ScaleRounding::Floor)]
    {
        let kind = OpKind::block_quantize(32, Some(rounding));
        let module = program(|b| {
            let v = b.input("v", ty(&[91, 96], F16));
            b.op(kind, &[v], &[("codes", ty(&[91, 96], data)), ("scales", sf(&[91, 3], F8E8M0FNU, Blocked))])
        });
        accept(module);
    }
}

#[test]
fn only_a_formula_without_guards_quantizes_to_nvfp4_without_a_global_scale() {
    for guard in [true, false] {
        let kind = OpKind::BlockQuantize {
            block: 16,
            scale_rounding: None,
            formula: Nvfp4Formula { guard, ..Nvfp4Formula::DEFAULT },
        };
        let results = [("codes", ty(&[91, 96], F4E2M1FN)), ("scales", sf(&[91, 6], F8E4M3FN, Linear))];
        let module = program(|b| {
            let v = b.input("v", ty(&[91, 96], F16));
            b.op(kind, &[v], &results)
        });
        assert_eq!(verify(module).is_ok(), !guard);
    }
}

#[test]
fn fp8_numbers_become_scales_of_either_layout_and_back() {
    let plain = ty(&[91, 6], F8E4M3FN);
    for layout in [Linear, Blocked] {
        let module = program(|b| {
            let x = b.input("x", plain.clone());
            let scales = b.op(OpKind::SwizzleScales, &[x], &[("s", sf(&[91, 6], F8E4M3FN, layout))])[0];
            b.op(OpKind::SwizzleScales, &[scales], &[("y", plain.clone())])
        });
        accept(module);
    }
}

#[test]
fn every_conversion_but_to_scales_and_booleans_is_accepted() {
    for from in ElementType::ALL.into_iter().filter(|from| *from != F8E8M0FNU) {
        for to in ElementType::ALL.into_iter().filter(|to| *to != F8E8M0FNU) {
            let module = program(|b| {
                let x = b.input("x", ty(&[3, 4], from));
                vec![b.convert("y", x, to)]
            });
            assert_eq!(verify(module).is_ok(), to != I1, "{from} to {to}");
        }
    }
    for to in ElementType::ALL {
        let module = program(|b| {
            let x = b.input("x", sf(&[3, 2], F8E8M0FNU, Linear));
            vec![b.convert("y", x, to)]
        });
        assert_eq!(verify(module).is_ok(), to.is_arithmetic(), "linear scales to {to}");
    }
}

#[test]
fn empty_tensors_and_largest_sizes_are_accepted() {
    let module = program(|b| {
        let none = b.input("none", ty(&[0, 1 << 40], F32));
        let empty = b.op(OpKind::Reshape, &[none], &[("empty", ty(&[5, 0, 7], F32))])[0];
        let huge = b.input("huge", ty(&[1 << 40, 1 << 6], F4E2M1FN));
        let constant = OpKind::Constant(ConstantValue::Dense(Vec::new()));
        let nothing = b.op(constant, &[], &[("nothing", ty(&[0], I32))])[0];
        vec![empty, huge, nothing]
    });
    accept(module);
    let types = [
        ty(&[0, 0], F4E2M1FN),
        sf(&[0, 0], F8E4M3FN, Linear),
        ty(&[7, 0], F4E2M1FN),
        sf(&[7, 0], F8E4M3FN, Linear),
    ];
    accept(product(types, 16));
}

#[test]
fn unused_symbols_and_unused_inputs_are_no_error() {
    let module = program(|b| {
        b.symbol("never");
        b.input("spare", ty(&[3], I1));
        vec![b.input("x", ty(&[], F32))]
    });
    accept(module);
}

#[test]
fn an_op_after_a_wrong_one_is_checked_against_the_stated_type() {
    check(
        |b| {
            let x = b.input("x", ty(&[3, 5], F32));
            // Later ops are checked against the stated type, so they have no errors.
            let wrong = b.op(OpKind::Unary(UnaryKind::Relu), &[x], &[("wrong", ty(&[3, 7], F32))])[0];
            let fine = b.unary("fine", UnaryKind::Relu, wrong);
            let other = b.op(OpKind::Mma, &[x], &[("other", ty(&[3, 3], F16))])[0];
            let also_fine = b.unary("also_fine", UnaryKind::Relu, other);
            vec![fine, also_fine]
        },
        expect![[r#"
            op0 `%wrong = relu %x : tensor<[3, 7], f32>`: result_shape: the shape of `%wrong: tensor<[3, 7], f32>` must be [3, 5]
            op2 `%other = mma %x : tensor<[3, 3], f16>`: operand_count: mma takes 2 operand(s), not 1
        "#]],
    );
}

#[test]
fn a_diagnostic_has_the_op_as_text_and_advice() {
    let module = program(|b| {
        let operands = nvfp4_operands(b, 37, 24, 64);
        let short = b.input("short", ty(&[24, 32], F4E2M1FN));
        let mma = OpKind::ScaledMma(ScaledMma {
            block: 16,
            weight_only: false,
            alpha: false,
            c: false,
            beta: false,
        });
        let [a, sfa, _, sfb] = operands;
        b.op(mma, &[a, sfa, short, sfb], &[("d", ty(&[37, 24], BF16))])
    });
    let invalid = verify(module).expect_err("K differs");
    let text: String =
        invalid.errors.iter().map(|error| error.diagnostic(None).render("x.fir", "")).collect();
    expect![[r#"
        error[k_mismatch]: `%a: tensor<[37, 64], f4E2M1FN>` and `%short: tensor<[24, 32], f4E2M1FN>` differ in their last extent, K
         = note: in `%d = scaled_mma %a, %sfa, %short, %sfb {block = 16} : tensor<[37, 24], bf16>`
         = help: transpose a B of [K, N]; operands are K-major, A [.., M, K] and B [.., N, K]

        error[scale_shape]: the scales of `%short` must have the shape [24, 2], but `%sfb` is tensor<[24, 4], f8E4M3FN, linear>
         = note: in `%d = scaled_mma %a, %sfa, %short, %sfb {block = 16} : tensor<[37, 24], bf16>`
         = note: there is one scale per block of the last axis; the shape excludes padding in both layouts

    "#]].assert_eq(&text);
}
