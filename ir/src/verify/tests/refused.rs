//! For each way to be wrong, the smallest program that is, with the place and the message: names, arity, attributes
//! and types by themselves. Types of operands and results are in `refused_types.rs`.

use std::collections::BTreeSet;

use expect_test::expect;

use super::*;
use crate::entities::{Entity, Op, Symbol};
use crate::module::ValueDef;
use crate::ops::{ConstantValue, OpKind, ReduceKind, ScaleRounding, ScaledMma, UnaryKind};
use crate::types::ElementType::{F8E8M0FNU, I1, I32};
use crate::verify::VerifyErrorKind;

pub(super) const RELU: OpKind = OpKind::Unary(UnaryKind::Relu);
pub(super) const PLAIN: ScaledMma = ScaledMma { block: 16, alpha: false, c: false, beta: false };

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

/// The types of a right `[37, 64] x [24, 64]` NVFP4 multiplication.
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
            OpKind::BlockQuantize { block, scale_rounding },
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
            input 0: bad_name: a value name is made of letters, digits, `_` and `.`, which `x y` is not
            op0 `%x%y = relu`: bad_name: a value name is made of letters, digits, `_` and `.`, which `x%y` is not
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
            module: bad_name: a function name is made of letters, digits, `_` and `.`, which `` is not
            module: bad_name: a symbol name is made of letters, digits, `_` and `.`, a letter or `_` first, which `2B` is not
            module: duplicate_name: there is already a symbol `N`
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            let y = b.unary("x", UnaryKind::Relu, x);
            vec![b.unary("x", UnaryKind::Relu, y)]
        },
        expect![[r#"
            op0 `%x = relu`: duplicate_name: there is already a value `x`
            op1 `%x = relu`: duplicate_name: there is already a value `x`
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            b.op(RELU, &[Value::from_index(9)], &[("y", ty(&[3], F32))]);
            vec![x]
        },
        expect![[r#"
            op0 `%y = relu`: unknown_operand: relu takes value9 as operand, which the program does not have
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
            op0 `%y = relu`: use_before_definition: relu takes `%z` as operand before it is defined
            op2 `%w = relu`: use_before_definition: relu takes `%w` as operand before it is defined
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
            op0 `%y = relu`: result_table: result 0 of op0 and the definition of `%y` disagree
        "#]],
    );
    let mut wrong = module();
    wrong.ops[Op::from_index(1)].results = vec![y];
    check_module(
        wrong,
        expect![[r#"
            module: result_table: result 0 of op1 and the definition of `%z` disagree
            op1 `%y = relu`: result_table: result 0 of op1 and the definition of `%y` disagree
        "#]],
    );
    let mut wrong = module();
    wrong.ops[Op::from_index(1)].results = vec![Value::from_index(11)];
    wrong.outputs = vec![x, z];
    check_module(
        wrong,
        expect![[r#"
            module: result_table: result 0 of op1 and the definition of `%z` disagree
            op1 `%? = relu`: result_table: result 0 of op1 and the definition of `value11` disagree
        "#]],
    );
}

#[test]
fn symbols() {
    let stray = || Dim::symbol(Symbol::from_index(5));
    check(
        one(TensorType::new(vec![stray()], F32), RELU, ty(&[3], F32)),
        expect![[r#"
            input 0: unknown_symbol: an extent of `%x` is symbol5, which the program does not have
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
            op0 `%y = broadcast`: unbound_symbol: `%y: tensor<[M, 4], f32>` uses the symbol `M`, which no input's shape contains
        "#]],
    );
}

#[test]
fn arity() {
    check(
        |b| {
            let x = b.input("x", ty(&[3], F32));
            let two = b.op(RELU, &[x, x], &[("two", ty(&[3], F32))]);
            let none = b.op(OpKind::BlockQuantize { block: 7, scale_rounding: None }, &[], &[]);
            let mma = OpKind::ScaledMma(ScaledMma { c: true, ..PLAIN });
            let four = b.op(mma, &[x, x, x, x], &[("four", ty(&[3], F32))]);
            [two, none, four].concat()
        },
        expect![[r#"
            op0 `%two = relu`: operand_count: relu has 2 operand(s) and takes 1
            op1 ` = block_quantize`: operand_count: block_quantize has 0 operand(s) and takes 1 or 2
            op1 ` = block_quantize`: result_count: block_quantize has 0 result(s) and gives 2
            op2 `%four = scaled_mma`: operand_count: scaled_mma has 4 operand(s) and takes 5
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
            op0 `%y, %z = relu`: result_count: relu has 2 result(s) and gives 1
            op1 ` = relu`: result_count: relu has 0 result(s) and gives 1
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
            op0 `%d = scaled_mma`: beta_without_c: beta multiplies c, but there is no c
        "#]],
    );
}

#[test]
fn attributes() {
    check(
        product(nvfp4(), 8, ty(&[37, 24], F32)),
        expect![[r#"
            op0 `%d = scaled_mma`: block_size: a block has 16 or 32 elements, not 8
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
            op0 `%codes, %scales = block_quantize`: scale_rounding_missing: quantization with f8E8M0FNU scales needs the attribute scale_rounding
        "#]],
    );
    check(
        quantize(v(), g(), 16, ceil, codes(), nv()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize`: scale_rounding_unexpected: quantization with f8E4M3FN scales has no attribute scale_rounding
        "#]],
    );
    check(
        quantize(v(), None, 16, None, codes(), nv()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize`: global_scale_missing: quantization with f8E4M3FN scales needs the per-tensor scale g
        "#]],
    );
    check(
        quantize(v(), g(), 32, ceil, codes(), mx()),
        expect![[r#"
            op0 `%codes, %scales = block_quantize`: global_scale_unexpected: quantization with f8E8M0FNU scales takes no per-tensor scale
        "#]],
    );
    let x = || ty(&[3, 5], F32);
    check(
        one(x(), OpKind::Softmax { axis: 2 }, x()),
        expect![[r#"
            op0 `%y = softmax`: axis_out_of_range: `%x: tensor<[3, 5], f32>` has no axis 2
        "#]],
    );
    let reduce = |axes| OpKind::Reduce { kind: ReduceKind::Sum, axes, keep_dims: true };
    check(
        one(x(), reduce(vec![0, 4]), x()),
        expect![[r#"
            op0 `%y = reduce`: axis_out_of_range: `%x: tensor<[3, 5], f32>` has no axis 4
        "#]],
    );
    check(
        one(x(), reduce(vec![1, 0]), x()),
        expect![[r#"
            op0 `%y = reduce`: axes_order: the axes [1, 0] are not distinct and ascending
        "#]],
    );
    check(
        one(x(), reduce(vec![1, 1]), x()),
        expect![[r#"
            op0 `%y = reduce`: axes_order: the axes [1, 1] are not distinct and ascending
        "#]],
    );
    check(
        one(x(), reduce(vec![]), x()),
        expect![[r#"
            op0 `%y = reduce`: no_axes: there is no axis to reduce
        "#]],
    );
    for permutation in [vec![0], vec![0, 0], vec![1, 2], vec![1, 0, 0]] {
        let text = format!("{permutation:?} is not a permutation of the axes of `%x: tensor<[3, 5], f32>`");
        let module = program(one(x(), OpKind::Transpose { permutation }, x()));
        let invalid = verify(module).expect_err("it is no permutation");
        assert_eq!(invalid.errors.iter().map(|error| error.kind.to_string()).collect::<Vec<_>>(), [text]);
    }
    let transpose = OpKind::Transpose { permutation: vec![0, 0] };
    check(
        one(x(), transpose, x()),
        expect![[r#"
            op0 `%y = transpose`: permutation: [0, 0] is not a permutation of the axes of `%x: tensor<[3, 5], f32>`
        "#]],
    );
    check(
        one(x(), OpKind::Clamp { min: 1.0, max: 0.5 }, x()),
        expect![[r#"
            op0 `%y = clamp`: clamp_bounds: nothing lies between min = 1 and max = 0.5
        "#]],
    );
    check(
        one(x(), OpKind::Clamp { min: f64::NAN, max: 0.5 }, x()),
        expect![[r#"
            op0 `%y = clamp`: clamp_bounds: nothing lies between min = nan and max = 0.5
        "#]],
    );
    check(
        |b| {
            let (x, w) = (b.input("x", ty(&[3, 5], F32)), b.input("w", ty(&[5], F32)));
            b.op(OpKind::LayerNorm { eps: -1e-5 }, &[x, w, w], &[("y", ty(&[3, 5], F32))])
        },
        expect![[r#"
            op0 `%y = layer_norm`: eps: eps = -1e-5 is not a finite number of at least 0
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
            op0 `%y = constant`: constant_shape: the constant `%y: tensor<[0, M], f32>` has no fixed shape
        "#]],
    );
    check(
        constant(ConstantValue::Dense(vec![1.0; 5]), ty(&[2, 3], F32)),
        expect![[r#"
            op0 `%y = constant`: constant_count: the constant's shape has 6 elements, but 5 values are given
        "#]],
    );
    check(
        constant(splat(1.0), ty(&[1 << 20, 17], F32)),
        expect![[r#"
            op0 `%y = constant`: constant_too_large: a constant of 17825792 elements is beyond the limit of 16777216
        "#]],
    );
    check(
        constant(splat(2.0), ty(&[3], I1)),
        expect![[r#"
            op0 `%y = constant`: constant_value: value 0 of the constant, 2, is not a value of i1
        "#]],
    );
    check(
        constant(ConstantValue::Dense(vec![1.0, -2147483648.0, 0.5]), ty(&[3], I32)),
        expect![[r#"
            op0 `%y = constant`: constant_value: value 2 of the constant, 0.5, is not a value of i32
        "#]],
    );
    check(
        constant(splat(2147483648.0), ty(&[3], I32)),
        expect![[r#"
            op0 `%y = constant`: constant_value: value 0 of the constant, 2147483648, is not a value of i32
        "#]],
    );
    check(
        constant(splat(f64::NAN), ty(&[3], I32)),
        expect![[r#"
            op0 `%y = constant`: constant_value: value 0 of the constant, nan, is not a value of i32
        "#]],
    );
}

#[test]
fn types_by_themselves() {
    check(
        one(ty(&[1; 9], F32), RELU, ty(&[1; 9], F32)),
        expect![[r#"
            input 0: rank_too_large: `%x` has rank 9, beyond the limit of 8
            op0 `%y = relu`: rank_too_large: `%y` has rank 9, beyond the limit of 8
        "#]],
    );
    check(
        |b| {
            let m = b.symbol("M").symbols()[0];
            vec![b.input("x", TensorType::new(vec![Dim::product(1, vec![m; 33])], F32))]
        },
        expect![[r#"
            input 0: too_many_symbols: an extent of `%x` is a product of 33 symbols, beyond the limit of 32
        "#]],
    );
    check(
        one(ty(&[(1 << 40) + 1], F32), RELU, ty(&[1 << 24, 0, (1 << 22) + 1], F32)),
        expect![[r#"
            input 0: extent_too_large: `%x: tensor<[1099511627777], f32>` is larger than any memory
            op0 `%y = relu`: extent_too_large: `%y: tensor<[16777216, 0, 4194305], f32>` is larger than any memory
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
            input 0: packed_extent: the last extent of `%x: tensor<[2, 3*K], f4E2M1FN>` is not known to be even
            input 1: packed_extent: the last extent of `%scalar: tensor<[], f4E2M1FN>` is not known to be even
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", sf(&[3, 4], F32, Linear));
            let v = b.input("v", sf(&[4], F8E4M3FN, Blocked));
            vec![x, v]
        },
        expect![[r#"
            input 0: layout_on_type: `%x: tensor<[3, 4], f32, linear>` has a scale layout, but cannot be the scales of a matrix
            input 1: layout_on_type: `%v: tensor<[4], f8E4M3FN, blocked>` has a scale layout, but cannot be the scales of a matrix
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
            module: no_outputs: the program returns nothing
        "#]],
    );
    check(
        |b| vec![b.input("x", x()), Value::from_index(3)],
        expect![[r#"
            output 1: unknown_output: the program returns value3, which it does not have
        "#]],
    );
    check(
        |b| {
            let x = b.input("x", x());
            vec![x, x]
        },
        expect![[r#"
            output 1: duplicate_output: `%x` is returned already
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
            input 1: packed_extent: the last extent of `%bad: tensor<[3], f4E2M1FN>` is not known to be even
            op0 `%y = relu`: result_element: the element type of `%y: tensor<[3], f16>` must be f32
            op2 `%w w = relu`: bad_name: a value name is made of letters, digits, `_` and `.`, which `w w` is not
            op2 `%w w = relu`: result_shape: the shape of `%w w: tensor<[4], f16>` must be [3]
            output 2: duplicate_output: `%z` is returned already
        "#]],
    );
}

#[test]
fn every_code_is_expected_above_and_listed_in_the_documentation() {
    let expectations = [include_str!("refused.rs"), include_str!("refused_types.rs")].concat();
    let listed = include_str!("../mod.rs");
    let mut codes = BTreeSet::new();
    for code in VerifyErrorKind::CODES {
        assert!(codes.insert(code), "{code} is the code of two kinds");
        assert!(expectations.contains(&format!(": {code}: ")), "no program above is refused for {code}");
        assert!(listed.contains(&format!("`{code}`")), "the list in verify/mod.rs lacks {code}");
    }
}
