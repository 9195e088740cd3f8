//! The smallest program for each error in names, arity, attributes and types by themselves, with its place and message.
//! `refused_types.rs` tests the types of operands and results.

use std::collections::BTreeSet;

use expect_test::expect;

use super::*;
use crate::entities::{Entity, Op, Symbol};
use crate::module::ValueDef;
use crate::numeric::{InfinityScale, MxEdges, Nvfp4Formula};
use crate::ops::{ConstantValue, OpKind, ReduceKind, ScaleRounding, ScaledMma, UnaryKind};
use crate::types::ElementType::{F8E8M0FNU, I1, I32};
use crate::verify::VerifyErrorKind;

pub(super) const RELU: OpKind = OpKind::Unary(UnaryKind::Relu);
pub(super) const PLAIN: ScaledMma =
    ScaledMma { block: 16, weight_only: false, alpha: false, c: false, beta: false };

/// An input `x` of this type and an op on it with a result `y` of that type.
pub(super) fn one(x: TensorType, kind: OpKind, y: TensorType) -> impl FnOnce(&mut Builder) -> Vec<Value> {
    move |b| {
        let x = b.input("x", x);
        b.op(kind, &[x], &[("y", y)])
    }
}

/// A `scaled_mma` of inputs of these types with the result `d`.
pub(super) fn product(
    types: [TensorType; 4],
    block: u32,
    d: TensorType,
) -> impl FnOnce(&mut Builder) -> Vec<Value> {
    move |b| {
        let [a, sfa, w, sfb] = types;
        let operands = [b.input("a", a), b.input("sfa", sfa), b.input("b", w), b.input("sfb", sfb)];
        b.op(OpKind::ScaledMma(ScaledMma { block, ..PLAIN }), &operands, &[("d", d)])
    }
}

/// The types of a valid `[37, 64] x [24, 64]` NVFP4 multiplication.
pub(super) fn nvfp4() -> [TensorType; 4] {
    [
        ty(&[37, 64], F4E2M1FN),
        sf(&[37, 4], F8E4M3FN, Blocked),
        ty(&[24, 64], F4E2M1FN),
        sf(&[24, 4], F8E4M3FN, Linear),
    ]
}

pub(super) fn quantize(
    v: TensorType,
    g: Option<TensorType>,
    block: u32,
    scale_rounding: Option<ScaleRounding>,
    codes: TensorType,
    scales: TensorType,
) -> impl FnOnce(&mut Builder) -> Vec<Value> {
    move |b| {
        let mut operands = vec![b.input("v", v)];
        operands.extend(g.map(|g| b.input("g", g)));
        b.op(
            OpKind::block_quantize(block, scale_rounding),
            &operands,
            &[("codes", codes), ("scales", scales)],
        )
    }
}

fn constant(value: ConstantValue, y: TensorType) -> impl FnOnce(&mut Builder) -> Vec<Value> {
    move |b| b.op(OpKind::Constant(value), &[], &[("y", y)])
}

#[test]
fn names_and_definitions() {
    check(
        |b| {
            let x = b.input("x y", ty(&[3], F32));
            let y = b.unary("x%y", UnaryKind::Relu, x);
            vec![y]
        },
        expect![[r#"
            input 0: bad_name: the value name `x y` must consist of letters, digits, `_` and `.`
            op0 `%x%y = relu %x y : tensor<[3], f32>`: bad_name: the value name `x%y` must consist of letters, digits, `_` and `.`
        "#]],
    );
    let mut module = Module::new("");
    let symbol = Dim::symbol(module.symbols.push("2B".to_owned()));
    module.symbols.push("N".to_owned());
    module.symbols.push("N".to_owned());
    let x = module.push_input("x", TensorType::new(vec![symbol], F32), false);
    module.outputs.push(x);
    check_module(
        module,
        expect![[r#"
            module: bad_name: the function name `` must consist of letters, digits, `_` and `.`
            module: bad_name: the symbol name `2B` must consist of letters, digits, `_` and `.`, and begin with a letter or `_`
            module: duplicate_name: the symbol name `N` is used twice
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            let y = b.unary("x", UnaryKind::Relu, x);
            vec![b.unary("x", UnaryKind::Relu, y)]
        },
        expect![[r#"
            op0 `%x = relu %x : tensor<[3], f32>`: duplicate_name: the value name `x` is used twice
            op1 `%x = relu %x : tensor<[3], f32>`: duplicate_name: the value name `x` is used twice
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            b.op(RELU, &[Value::from_index(9)], &[("y", ty(&[3], F32))]);
            vec![x]
        },
        expect![[r#"
            op0 `%y = relu value9 : tensor<[3], f32>`: unknown_operand: relu takes value9 as operand, which does not exist
        "#]],
    );
    check(
        |b| {
            b.input("x", ty(&[3], F32));
            let later = Value::from_index(2);
            let y = b.op(RELU, &[later], &[("y", ty(&[3], F32))])[0];
            let z = b.op(RELU, &[y], &[("z", ty(&[3], F32))])[0];
            let own = Value::from_index(3);
            let w = b.op(RELU, &[own], &[("w", ty(&[3], F32))])[0];
            vec![z, w]
        },
        expect![[r#"
            op0 `%y = relu %z : tensor<[3], f32>`: use_before_definition: relu takes `%z` as operand before its definition
            op2 `%w = relu %w : tensor<[3], f32>`: use_before_definition: relu takes `%w` as operand before its definition
        "#]],
    );
}

#[test]
fn tables() {
    let module = || {
        program(|b| {
            let x = b.input("x", ty(&[3], F32));
            let y = b.unary("y", UnaryKind::Relu, x);
            vec![b.unary("z", UnaryKind::Relu, y)]
        })
    };
    let [x, y, z] = [0, 1, 2].map(Value::from_index);
    let mut wrong = module();
    wrong.inputs = vec![x, y];
    check_module(
        wrong,
        expect![[r#"
            input 1: input_table: input 1 and the definition of `%y` disagree
        "#]],
    );
    let mut wrong = module();
    wrong.inputs.clear();
    check_module(
        wrong,
        expect![[r#"
            module: input_table: input 0 and the definition of `%x` disagree
        "#]],
    );
    let mut wrong = module();
    wrong.values[y].def = ValueDef::Result { op: Op::from_index(7), index: 0 };
    check_module(
        wrong,
        expect![[r#"
            module: result_table: result 0 of op7 and the definition of `%y` disagree
            op0 `%y = relu %x : tensor<[3], f32>`: result_table: result 0 of op0 and the definition of `%y` disagree
        "#]],
    );
    let mut wrong = module();
    wrong.ops[Op::from_index(1)].results = vec![y];
    check_module(
        wrong,
        expect![[r#"
            module: result_table: result 0 of op1 and the definition of `%z` disagree
            op1 `%y = relu %y : tensor<[3], f32>`: result_table: result 0 of op1 and the definition of `%y` disagree
        "#]],
    );
    let mut wrong = module();
    wrong.ops[Op::from_index(1)].results = vec![Value::from_index(11)];
    wrong.outputs = vec![x, z];
    check_module(
        wrong,
        expect![[r#"
            module: result_table: result 0 of op1 and the definition of `%z` disagree
            op1 `value11 = relu %y : ?`: result_table: result 0 of op1 and the definition of `value11` disagree
        "#]],
    );
}

#[test]
fn symbols() {
    let stray = || Dim::symbol(Symbol::from_index(5));
    check(
        one(TensorType::new(vec![stray()], F32), RELU, ty(&[3], F32)),
        expect![[r#"
            input 0: unknown_symbol: an extent of `%x` uses symbol5, which does not exist
        "#]],
    );
    check(
        |b| {
            let m = b.symbol("M");
            let x = b.input("x", ty(&[1, 4], F32));
            let wide = TensorType::new(vec![m.clone(), Dim::fixed(4)], F32);
            let y = b.op(OpKind::Broadcast, &[x], &[("y", wide)])[0];
            vec![b.unary("z", UnaryKind::Relu, y)]
        },
        expect![[r#"
            op0 `%y = broadcast %x : tensor<[M, 4], f32>`: unbound_symbol: `%y: tensor<[M, 4], f32>` uses the symbol `M`, which no input's shape contains
        "#]],
    );
}

#[test]
fn arity() {
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            let two = b.op(RELU, &[x, x], &[("two", ty(&[3], F32))]);
            let none = b.op(OpKind::block_quantize(7, None), &[], &[]);
            let mma = OpKind::ScaledMma(ScaledMma { c: true, ..PLAIN });
            let four = b.op(mma, &[x, x, x, x], &[("four", ty(&[3], F32))]);
            [two, none, four].concat()
        },
        expect![[r#"
            op0 `%two = relu %x, %x : tensor<[3], f32>`: operand_count: relu takes 1 operand(s), not 2
            op1 `block_quantize {block = 7}`: operand_count: block_quantize takes 1 or 2 operand(s), not 0
            op1 `block_quantize {block = 7}`: result_count: block_quantize has 2 result(s), not 0
            op2 `%four = scaled_mma %x, %x, %x, c = %x {block = 16} : tensor<[3], f32>`: operand_count: scaled_mma takes 5 operand(s), not 4
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            let pair = b.op(RELU, &[x], &[("y", ty(&[3], F32)), ("z", ty(&[3], F32))]);
            b.op(RELU, &[x], &[]);
            pair
        },
        expect![[r#"
            op0 `%y, %z = relu %x : tensor<[3], f32>, tensor<[3], f32>`: result_count: relu has 1 result(s), not 2
            op1 `relu %x`: result_count: relu has 1 result(s), not 0
        "#]],
    );
    check(
        |b| {
            let mut operands = nvfp4_operands(b, 37, 24, 64).to_vec();
            operands.push(b.input("beta", ty(&[], F32)));
            let mma = OpKind::ScaledMma(ScaledMma { beta: true, ..PLAIN });
            b.op(mma, &operands, &[("d", ty(&[37, 24], F16))])
        },
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb, beta = %beta {block = 16} : tensor<[37, 24], f16>`: beta_without_c: beta multiplies c, but c is missing
        "#]],
    );
}

#[test]
fn attributes() {
    check(
        product(nvfp4(), 8, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma %a, %sfa, %b, %sfb {block = 8} : tensor<[37, 24], f32>`: block_size: a block has 16 or 32 elements, not 8
        "#]],
    );
    let v = || ty(&[5, 64], BF16);
    let codes = || ty(&[5, 64], F4E2M1FN);
    let mx = || sf(&[5, 2], F8E8M0FNU, Linear);
    let nv = || sf(&[5, 4], F8E4M3FN, Linear);
    let g = || Some(ty(&[], F32));
    let ceil = Some(ScaleRounding::Ceil);
    check(
        quantize(v(), None, 32, None, codes(), mx()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v {block = 32} : tensor<[5, 64], f4E2M1FN>, tensor<[5, 2], f8E8M0FNU, linear>`: scale_rounding_missing: quantization with f8E8M0FNU scales requires the attribute scale_rounding
        "#]],
    );
    check(
        quantize(v(), g(), 16, ceil, codes(), nv()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v, %g {block = 16, scale_rounding = ceil} : tensor<[5, 64], f4E2M1FN>, tensor<[5, 4], f8E4M3FN, linear>`: scale_rounding_unexpected: quantization with f8E4M3FN scales takes no attribute scale_rounding
        "#]],
    );
    let bounded = OpKind::BlockQuantize {
        block: 32,
        scale_rounding: ceil,
        formula: Nvfp4Formula { guard: false, ..Nvfp4Formula::DEFAULT },
    };
    check(
        |b: &mut Builder| {
            let v = b.input("v", v());
            b.op(bounded, &[v], &[("codes", codes()), ("scales", mx())])
        },
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v {block = 32, guard = false, scale_rounding = ceil} : tensor<[5, 64], f4E2M1FN>, tensor<[5, 2], f8E8M0FNU, linear>`: formula_unexpected: quantization with f8E8M0FNU scales takes none of the attributes amax, codes, global, guard and scale_min
        "#]],
    );
    let edges = MxEdges { infinity: InfinityScale::Exponent, ..MxEdges::DEFAULT };
    let edged = OpKind::BlockQuantize {
        block: 16,
        scale_rounding: None,
        formula: Nvfp4Formula { guard: false, mx: edges, ..Nvfp4Formula::DEFAULT },
    };
    check(
        |b: &mut Builder| {
            let v = b.input("v", v());
            b.op(edged, &[v], &[("codes", codes()), ("scales", nv())])
        },
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v {block = 16, guard = false, infinity = exponent} : tensor<[5, 64], f4E2M1FN>, tensor<[5, 4], f8E4M3FN, linear>`: edges_unexpected: quantization with f8E4M3FN scales takes none of the attributes infinity, least_scale, least_step and nan
        "#]],
    );
    check(
        quantize(v(), None, 16, None, codes(), nv()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v {block = 16} : tensor<[5, 64], f4E2M1FN>, tensor<[5, 4], f8E4M3FN, linear>`: global_scale_missing: quantization with f8E4M3FN scales requires the per-tensor scale g
        "#]],
    );
    check(
        quantize(v(), g(), 32, ceil, codes(), mx()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize %v, %g {block = 32, scale_rounding = ceil} : tensor<[5, 64], f4E2M1FN>, tensor<[5, 2], f8E8M0FNU, linear>`: global_scale_unexpected: quantization with f8E8M0FNU scales takes no per-tensor scale
        "#]],
    );
    let x = || ty(&[3, 5], F32);
    check(
        one(x(), OpKind::Softmax { axis: 2 }, x()),
        expect![[r#"
            op0 `%y = softmax %x {axis = 2} : tensor<[3, 5], f32>`: axis_out_of_range: `%x: tensor<[3, 5], f32>` has no axis 2
        "#]],
    );
    let reduce = |axes| OpKind::Reduce { kind: ReduceKind::Sum, axes, keep_dims: true };
    check(
        one(x(), reduce(vec![0, 4]), x()),
        expect![[r#"
            op0 `%y = reduce %x {axes = [0, 4], keep_dims = true, kind = sum} : tensor<[3, 5], f32>`: axis_out_of_range: `%x: tensor<[3, 5], f32>` has no axis 4
        "#]],
    );
    check(
        one(x(), reduce(vec![1, 0]), x()),
        expect![[r#"
            op0 `%y = reduce %x {axes = [1, 0], keep_dims = true, kind = sum} : tensor<[3, 5], f32>`: axes_order: the axes [1, 0] are not distinct and ascending
        "#]],
    );
    check(
        one(x(), reduce(vec![1, 1]), x()),
        expect![[r#"
            op0 `%y = reduce %x {axes = [1, 1], keep_dims = true, kind = sum} : tensor<[3, 5], f32>`: axes_order: the axes [1, 1] are not distinct and ascending
        "#]],
    );
    check(
        one(x(), reduce(vec![]), x()),
        expect![[r#"
            op0 `%y = reduce %x {axes = [], keep_dims = true, kind = sum} : tensor<[3, 5], f32>`: no_axes: the reduction has no axes
        "#]],
    );
    for permutation in [vec![0], vec![0, 0], vec![1, 2], vec![1, 0, 0]] {
        let text = format!("{permutation:?} is not a permutation of the axes of `%x: tensor<[3, 5], f32>`");
        let module = program(one(x(), OpKind::Transpose { permutation }, x()));
        let invalid = verify(module).expect_err("the attribute is not a permutation");
        assert_eq!(invalid.errors.iter().map(|error| error.kind.to_string()).collect::<Vec<_>>(), [text]);
    }
    let transpose = OpKind::Transpose { permutation: vec![0, 0] };
    check(
        one(x(), transpose, x()),
        expect![[r#"
            op0 `%y = transpose %x {permutation = [0, 0]} : tensor<[3, 5], f32>`: permutation: [0, 0] is not a permutation of the axes of `%x: tensor<[3, 5], f32>`
        "#]],
    );
    check(
        one(x(), OpKind::Clamp { min: 1.0, max: 0.5 }, x()),
        expect![[r#"
            op0 `%y = clamp %x {max = 0.5, min = 1} : tensor<[3, 5], f32>`: clamp_bounds: no value lies between min = 1 and max = 0.5
        "#]],
    );
    check(
        one(x(), OpKind::Clamp { min: f64::NAN, max: 0.5 }, x()),
        expect![[r#"
            op0 `%y = clamp %x {max = 0.5, min = nan} : tensor<[3, 5], f32>`: clamp_bounds: no value lies between min = nan and max = 0.5
        "#]],
    );
    check(
        |b| {
            let (x, w) = (b.input("x", ty(&[3, 5], F32)), b.input("w", ty(&[5], F32)));
            b.op(OpKind::LayerNorm { eps: -1e-5 }, &[x, w, w], &[("y", ty(&[3, 5], F32))])
        },
        expect![[r#"
            op0 `%y = layer_norm %x, %w, %w {eps = -1e-5} : tensor<[3, 5], f32>`: eps: eps = -1e-5 is not a finite number >= 0
        "#]],
    );
}

#[test]
fn constants() {
    let splat = ConstantValue::Splat;
    check(
        |b| {
            let m = b.symbol("M");
            let x = b.input("x", TensorType::new(vec![m.clone()], F32));
            let y = TensorType::new(vec![Dim::fixed(0), m], F32);
            let y = b.op(OpKind::Constant(splat(1.0)), &[], &[("y", y)])[0];
            vec![x, y]
        },
        expect![[r#"
            op0 `%y = constant {value = 1} : tensor<[0, M], f32>`: constant_shape: the shape of the constant `%y: tensor<[0, M], f32>` contains symbols
        "#]],
    );
    check(
        constant(ConstantValue::Dense(vec![1.0; 5]), ty(&[2, 3], F32)),
        expect![[r#"
            op0 `%y = constant {value = [1, 1, 1, 1, 1]} : tensor<[2, 3], f32>`: constant_count: the constant's shape has 6 elements, but 5 values are given
        "#]],
    );
    check(
        constant(splat(1.0), ty(&[1 << 20, 17], F32)),
        expect![[r#"
            op0 `%y = constant {value = 1} : tensor<[1048576, 17], f32>`: constant_too_large: a constant of 17825792 elements exceeds the limit of 16777216
        "#]],
    );
    check(
        constant(splat(2.0), ty(&[3], I1)),
        expect![[r#"
            op0 `%y = constant {value = 2} : tensor<[3], i1>`: constant_value: value 0 of the constant, 2, is not a value of i1
        "#]],
    );
    check(
        constant(ConstantValue::Dense(vec![1.0, -2147483648.0, 0.5]), ty(&[3], I32)),
        expect![[r#"
            op0 `%y = constant {value = [1, -2147483648, 0.5]} : tensor<[3], i32>`: constant_value: value 2 of the constant, 0.5, is not a value of i32
        "#]],
    );
    check(
        constant(splat(2147483648.0), ty(&[3], I32)),
        expect![[r#"
            op0 `%y = constant {value = 2147483648} : tensor<[3], i32>`: constant_value: value 0 of the constant, 2147483648, is not a value of i32
        "#]],
    );
    check(
        constant(splat(f64::NAN), ty(&[3], I32)),
        expect![[r#"
            op0 `%y = constant {value = nan} : tensor<[3], i32>`: constant_value: value 0 of the constant, nan, is not a value of i32
        "#]],
    );
}

#[test]
fn types_by_themselves() {
    check(
        one(ty(&[1; 9], F32), RELU, ty(&[1; 9], F32)),
        expect![[r#"
            input 0: rank_too_large: the rank of `%x`, 9, exceeds the limit of 8
            op0 `%y = relu %x : tensor<[1, 1, 1, 1, 1, 1, 1, 1, 1], f32>`: rank_too_large: the rank of `%y`, 9, exceeds the limit of 8
        "#]],
    );
    check(
        |b| {
            let m = b.symbol("M").symbols()[0];
            vec![b.input("x", TensorType::new(vec![Dim::product(1, vec![m; 33])], F32))]
        },
        expect![[r#"
            input 0: too_many_symbols: an extent of `%x` has 33 symbols, which exceeds the limit of 32
        "#]],
    );
    check(
        one(ty(&[(1 << 40) + 1], F32), RELU, ty(&[1 << 24, 0, (1 << 22) + 1], F32)),
        expect![[r#"
            input 0: extent_too_large: `%x: tensor<[1099511627777], f32>` is too large
            op0 `%y = relu %x : tensor<[16777216, 0, 4194305], f32>`: extent_too_large: `%y: tensor<[16777216, 0, 4194305], f32>` is too large
        "#]],
    );
    check(
        |b| {
            let k = b.symbol("K");
            let odd = Dim::fixed(3).times(&k).expect("the product is small");
            let x = b.input("x", TensorType::new(vec![Dim::fixed(2), odd], F4E2M1FN));
            let scalar = b.input("scalar", ty(&[], F4E2M1FN));
            vec![b.convert("y", x, F32), b.convert("z", scalar, F32)]
        },
        expect![[r#"
            input 0: packed_extent: `%x: tensor<[2, 3*K], f4E2M1FN>` needs a last extent that is known to be a multiple of 2
            input 1: packed_extent: `%scalar: tensor<[], f4E2M1FN>` needs a last extent that is known to be a multiple of 2
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", sf(&[3, 4], F32, Linear));
            let v = b.input("v", sf(&[4], F8E4M3FN, Blocked));
            vec![x, v]
        },
        expect![[r#"
            input 0: layout_on_type: `%x: tensor<[3, 4], f32, linear>` has a scale layout, but is not a scale tensor
            input 1: layout_on_type: `%v: tensor<[4], f8E4M3FN, blocked>` has a scale layout, but is not a scale tensor
        "#]],
    );
    check(
        one(ty(&[3, 4], F8E8M0FNU), OpKind::Convert, ty(&[3, 4], F32)),
        expect![[r#"
            input 0: scale_without_layout: `%x: tensor<[3, 4], f8E8M0FNU>` has no scale layout
        "#]],
    );
}

#[test]
fn outputs() {
    let x = || ty(&[3], F32);
    check(
        |b| {
            b.input("x", x());
            vec![]
        },
        expect![[r#"
            module: no_outputs: the program has no outputs
        "#]],
    );
    check(
        |b| vec![b.input("x", x()), Value::from_index(3)],
        expect![[r#"
            output 1: unknown_output: the program returns value3, which does not exist
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", x());
            vec![x, x]
        },
        expect![[r#"
            output 1: duplicate_output: `%x` is returned twice
        "#]],
    );
}

#[test]
fn errors_come_in_program_order() {
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            let bad = b.input("bad", ty(&[3], F4E2M1FN));
            let y = b.op(RELU, &[x], &[("y", ty(&[3], F16))])[0];
            let z = b.op(RELU, &[bad], &[("z", ty(&[3], F16))])[0];
            let w = b.op(RELU, &[y], &[("w w", ty(&[4], F16))])[0];
            vec![z, w, z]
        },
        expect![[r#"
            input 1: packed_extent: `%bad: tensor<[3], f4E2M1FN>` needs a last extent that is known to be a multiple of 2
            op0 `%y = relu %x : tensor<[3], f16>`: result_element: the element type of `%y: tensor<[3], f16>` must be f32
            op2 `%w w = relu %y : tensor<[4], f16>`: bad_name: the value name `w w` must consist of letters, digits, `_` and `.`
            op2 `%w w = relu %y : tensor<[4], f16>`: result_shape: the shape of `%w w: tensor<[4], f16>` must be [3]
            output 2: duplicate_output: `%z` is returned twice
        "#]],
    );
}

#[test]
fn every_code_is_expected_above_and_listed_in_the_documentation() {
    let expectations = [
        include_str!("refused.rs"),
        include_str!("refused_types.rs"),
        include_str!("refused_movement.rs"),
        include_str!("refused_grouped.rs"),
    ];
    let expectations = expectations.concat();
    let listed = include_str!("../mod.rs");
    let mut codes = BTreeSet::new();
    for code in VerifyErrorKind::CODES {
        assert!(codes.insert(code), "two kinds have the code {code}");
        assert!(expectations.contains(&format!(": {code}: ")), "no program above is rejected with {code}");
        assert!(listed.contains(&format!("`{code}`")), "the list in verify/mod.rs lacks {code}");
    }
}
