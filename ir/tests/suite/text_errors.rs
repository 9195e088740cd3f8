//! Rendered errors of malformed texts. `UPDATE_EXPECT=1` rewrites the expectations.

use expect_test::{Expect, expect};
use fourfold_ir::text::parse;

/// The errors of each text.
#[track_caller]
fn check_texts(sources: &[impl AsRef<str>], expected: Expect) {
    let mut rendered = String::new();
    for source in sources.iter().map(AsRef::as_ref) {
        let errors = parse(source).expect_err("the text must be rejected");
        rendered.extend(errors.iter().map(|error| error.render("test.fir", source)));
    }
    expected.assert_eq(&rendered);
}

/// The errors of each statement in an otherwise valid function.
#[track_caller]
fn check_statements(statements: &[&str], expected: Expect) {
    let function = |statement: &&str| {
        format!("fir 1\nfunc @f(%x: tensor<[M], f32>) {{\n  {statement}\n  return %x\n}}\n")
    };
    let sources: Vec<String> = statements.iter().map(function).collect();
    check_texts(&sources, expected);
}

#[test]
fn a_wrong_or_missing_version_is_named() {
    check_texts(
        &[
            "fir 2\nfunc @f() { return }",
            "func @f() {\n  return %y\n}",
            "",
            "module {\n}",
            "fir 1 func @f() { return }",
            "fir\nfunc @f() { return }",
        ],
        expect![[r#"
            error[bad_version]: version 2 of the text form is not supported; use version 1
              ┌─ test.fir:1:5
              │
            1 │ fir 2
              │     ^

            error[bad_version]: expected `fir 1` as the first line, found `func`
              ┌─ test.fir:1:1
              │
            1 │ func @f() {
              │ ^^^^
              │
              = help: begin the file with `fir 1`, the version of the text form

            error[unknown_value]: unknown value `%y`
              ┌─ test.fir:2:10
              │
            2 │   return %y
              │          ^^

            error[bad_version]: expected `fir 1` as the first line, found the end of the file
              ┌─ test.fir:1:1
              │
            1 │ 
              │ ^
              │
              = help: begin the file with `fir 1`, the version of the text form

            error[bad_version]: expected `fir 1` as the first line, found `module`
              ┌─ test.fir:1:1
              │
            1 │ module {
              │ ^^^^^^
              │
              = help: begin the file with `fir 1`, the version of the text form

            error[syntax]: expected the end of the line after the version, found `func`
              ┌─ test.fir:1:7
              │
            1 │ fir 1 func @f() { return }
              │       ^^^^

            error[syntax]: expected the version of the text form after `fir`, found `func`
              ┌─ test.fir:2:1
              │
            2 │ func @f() { return }
              │ ^^^^

        "#]],
    );
}

#[test]
fn an_undefined_value_suggests_the_nearest_name_or_the_later_definition() {
    check_texts(
        &["fir 1
func @f(%fc1.input: tensor<[M], f32>) {
  %a = add %fc1_input, %late : tensor<[M], f32>
  %b = relu %b : tensor<[M], f32>
  %late = relu %nothing : tensor<[M], f32>
  return %a, %lat
}
"],
        expect![[r#"
            error[unknown_value]: unknown value `%fc1_input`
              ┌─ test.fir:3:12
              │
            3 │   %a = add %fc1_input, %late : tensor<[M], f32>
              │            ^^^^^^^^^^
              │
              = help: did you mean `%fc1.input`?

            error[unknown_value]: unknown value `%late`
              ┌─ test.fir:3:24
              │
            3 │   %a = add %fc1_input, %late : tensor<[M], f32>
              │                        ^^^^^
              │
              = note: it is defined at line 5; a value must be defined before its uses

            error[unknown_value]: unknown value `%b`
              ┌─ test.fir:4:13
              │
            4 │   %b = relu %b : tensor<[M], f32>
              │             ^^
              │
              = note: it is a result of this op, and an op cannot use its own results

            error[unknown_value]: unknown value `%nothing`
              ┌─ test.fir:5:16
              │
            5 │   %late = relu %nothing : tensor<[M], f32>
              │                ^^^^^^^^

            error[unknown_value]: unknown value `%lat`
              ┌─ test.fir:6:14
              │
            6 │   return %a, %lat
              │              ^^^^
              │
              = help: did you mean `%late`?

        "#]],
    );
}

#[test]
fn a_name_is_defined_once() {
    check_texts(
        &["fir 1
func @f(%x: tensor<[M], f32>, %x: tensor<[M], f32>) {
  %y, %y = block_quantize %x {block = 16} : tensor<[M], f32>, tensor<[M], f32>
  %x = relu %y : tensor<[M], f32>
  return %x
}
"],
        expect![[r#"
            error[duplicate_value]: `%x` is defined twice
              ┌─ test.fir:2:31
              │
            2 │ func @f(%x: tensor<[M], f32>, %x: tensor<[M], f32>) {
              │                               ^^
              │
              = note: the first definition is at line 2

            error[duplicate_value]: `%y` is defined twice
              ┌─ test.fir:3:7
              │
            3 │   %y, %y = block_quantize %x {block = 16} : tensor<[M], f32>, tensor<[M], f32>
              │       ^^
              │
              = note: the first definition is at line 3

            error[duplicate_value]: `%x` is defined twice
              ┌─ test.fir:4:3
              │
            4 │   %x = relu %y : tensor<[M], f32>
              │   ^^
              │
              = note: the first definition is at line 2

        "#]],
    );
}

#[test]
fn an_unknown_op_suggests_the_nearest() {
    check_statements(
        &["%y = rellu %x {a = 1, b = two, c = [3]} : tensor<[M], f32>", "%y = einsum %x : tensor<[M], f32>"],
        expect![[r#"
            error[unknown_op]: unknown op `rellu`
              ┌─ test.fir:3:8
              │
            3 │   %y = rellu %x {a = 1, b = two, c = [3]} : tensor<[M], f32>
              │        ^^^^^
              │
              = help: did you mean `relu`?

            error[unknown_op]: unknown op `einsum`
              ┌─ test.fir:3:8
              │
            3 │   %y = einsum %x : tensor<[M], f32>
              │        ^^^^^^
              │
              = note: the ops are scaled_mma, grouped_scaled_mma, masked_scaled_mma, mma, swizzle_scales, group_scales, block_quantize, block_dequantize, convert, bitcast, clamp, compare, select, reshape, transpose, broadcast, slice, concat, choose, gather, top_k, group_rows, padded_ends, scatter_add, pad, reduce, softmax, layer_norm, constant, neg, abs, exp, sqrt, rsqrt, reciprocal, tanh, erf, sigmoid, relu, gelu, gelu_tanh, silu, log, sin, cos, floor, ceil, round, exp2, log2, add, sub, mul, div, max, min, pow, and, or, shift_left, shift_right

        "#]],
    );
}

#[test]
fn attributes_are_checked_where_they_stand() {
    let many: Vec<String> = (0..17).map(|index| format!("a{index} = 1")).collect();
    check_statements(
        &[
            "%y = softmax %x : tensor<[M], f32>",
            "%y = softmax %x {axis = 0, axes = [1]} : tensor<[M], f32>",
            "%y = softmax %x {axis = 0, axis = 1} : tensor<[M], f32>",
            "%y = softmax %x {axis = 1.5} : tensor<[M], f32>",
            "%y = softmax %x {axis = 4294967296} : tensor<[M], f32>",
            "%y = reduce %x {kind = sum, axes = [0, 4294967296]} : tensor<[M], f32>",
            "%y = slice %x {axes = [0], ends = [9007199254740994], starts = [0]} : tensor<[M], f32>",
            "%y = slice %x {axes = [0], ends = [9007199254740994], starts = [0.5]} : tensor<[M], f32>",
            "%y = reduce %x {kind = median, axes = [0]} : tensor<[M], f32>",
            &format!("%y = relu %x {{{}}} : tensor<[M], f32>", many.join(", ")),
        ],
        expect![[r#"
            error[bad_attribute]: `softmax` requires the attribute `axis` (a whole number)
              ┌─ test.fir:3:8
              │
            3 │   %y = softmax %x : tensor<[M], f32>
              │        ^^^^^^^
              │
              = help: write `{axis = ...}` after the operands

            error[bad_attribute]: `softmax` has no attribute `axes`
              ┌─ test.fir:3:30
              │
            3 │   %y = softmax %x {axis = 0, axes = [1]} : tensor<[M], f32>
              │                              ^^^^

            error[bad_attribute]: the attribute `axis` is given twice
              ┌─ test.fir:3:30
              │
            3 │   %y = softmax %x {axis = 0, axis = 1} : tensor<[M], f32>
              │                              ^^^^

            error[bad_attribute]: attribute `axis` of `softmax` must be a whole number, not 1.5
              ┌─ test.fir:3:27
              │
            3 │   %y = softmax %x {axis = 1.5} : tensor<[M], f32>
              │                           ^^^

            error[bad_attribute]: attribute `axis` of `softmax` must be at most 4294967295, not 4294967296
              ┌─ test.fir:3:27
              │
            3 │   %y = softmax %x {axis = 4294967296} : tensor<[M], f32>
              │                           ^^^^^^^^^^

            error[bad_attribute]: attribute `axes` of `reduce` must be a list of numbers of at most 4294967295, not [0, 4294967296]
              ┌─ test.fir:3:38
              │
            3 │   %y = reduce %x {kind = sum, axes = [0, 4294967296]} : tensor<[M], f32>
              │                                      ^^^^^^^^^^^^^^^

            error[bad_attribute]: attribute `ends` of `slice` must be a list of numbers of at most 9007199254740992, not [9007199254740994]
              ┌─ test.fir:3:37
              │
            3 │   %y = slice %x {axes = [0], ends = [9007199254740994], starts = [0]} : tensor<[M], f32>
              │                                     ^^^^^^^^^^^^^^^^^^

            error[bad_attribute]: attribute `starts` of `slice` must be a list of whole numbers, one for each of `axes`, not [0.5]
              ┌─ test.fir:3:66
              │
            3 │   %y = slice %x {axes = [0], ends = [9007199254740994], starts = [0.5]} : tensor<[M], f32>
              │                                                                  ^^^^^

            error[bad_attribute]: attribute `kind` of `reduce` must be sum, max, min, mean or amax, not median
              ┌─ test.fir:3:26
              │
            3 │   %y = reduce %x {kind = median, axes = [0]} : tensor<[M], f32>
              │                          ^^^^^^

            error[bad_attribute]: an op has at most 16 attributes
              ┌─ test.fir:3:151
              │
            3 │   %y = relu %x {a0 = 1, a1 = 1, a2 = 1, a3 = 1, a4 = 1, a5 = 1, a6 = 1, a7 = 1, a8 = 1, a9 = 1, a10 = 1, a11 = 1, a12 = 1, a13 = 1, a14 = 1, a15 = 1, a16 = 1} : tensor<[M], f32>
              │                                                                                                                                                       ^^^

        "#]],
    );
}

#[test]
fn numbers_are_well_formed_and_fit() {
    check_statements(
        &[
            "%y = constant {value = 1.2.3} : tensor<[], f32>",
            "%y = constant {value = [1, 1e999]} : tensor<[], f32>",
            "%y = constant {value = -nan} : tensor<[], f32>",
            "%y = constant {value = [1, x]} : tensor<[], f32>",
        ],
        expect![[r#"
            error[bad_number]: `1.2.3` is not a number
              ┌─ test.fir:3:26
              │
            3 │   %y = constant {value = 1.2.3} : tensor<[], f32>
              │                          ^^^^^
              │
              = help: write a number as `16`, `-1.5`, `1e-12`, `inf`, `-inf` or `nan`

            error[bad_number]: `1e999` is too large for a 64-bit float
              ┌─ test.fir:3:30
              │
            3 │   %y = constant {value = [1, 1e999]} : tensor<[], f32>
              │                              ^^^^^
              │
              = help: write `inf` or `-inf` for infinity

            error[bad_number]: `-nan` is not a number
              ┌─ test.fir:3:26
              │
            3 │   %y = constant {value = -nan} : tensor<[], f32>
              │                          ^^^^
              │
              = help: write a number as `16`, `-1.5`, `1e-12`, `inf`, `-inf` or `nan`

            error[syntax]: expected a number, found `x`
              ┌─ test.fir:3:30
              │
            3 │   %y = constant {value = [1, x]} : tensor<[], f32>
              │                              ^

        "#]],
    );
}

#[test]
fn named_operands_are_checked() {
    check_statements(
        &[
            "%y = relu %x, alpha = %x : tensor<[M], f32>",
            "%y = grouped_scaled_mma %x, %x, %x, %x, %x, sfa_ends = %x, c = %x {block = 16} : tensor<[M], f32>",
            "%y = grouped_scaled_mma %x, %x, %x, %x, %x, c = %x, alpha = %x {block = 16} : tensor<[M], f32>",
            "%y = scaled_mma %x, %x, %x, %x, alpha = %x, sfa_ends = %x {block = 16} : tensor<[M], f32>",
            "%y = mma %x, alpha = %x, %x : tensor<[M], f32>",
            "%y = mma %x, %x, c = %x, c = %x : tensor<[M], f32>",
            "%y = mma %x, %x, c = 1 : tensor<[M], f32>",
        ],
        expect![[r#"
            error[bad_operand]: `relu` has no named operand `alpha`
              ┌─ test.fir:3:17
              │
            3 │   %y = relu %x, alpha = %x : tensor<[M], f32>
              │                 ^^^^^

            error[bad_operand]: `grouped_scaled_mma` has no named operand `c`
              ┌─ test.fir:3:62
              │
            3 │   %y = grouped_scaled_mma %x, %x, %x, %x, %x, sfa_ends = %x, c = %x {block = 16} : tensor<[M], f32>
              │                                                              ^

            error[bad_operand]: `grouped_scaled_mma` has no named operand `c`
              ┌─ test.fir:3:47
              │
            3 │   %y = grouped_scaled_mma %x, %x, %x, %x, %x, c = %x, alpha = %x {block = 16} : tensor<[M], f32>
              │                                               ^

            error[bad_operand]: `scaled_mma` has no named operand `sfa_ends`
              ┌─ test.fir:3:47
              │
            3 │   %y = scaled_mma %x, %x, %x, %x, alpha = %x, sfa_ends = %x {block = 16} : tensor<[M], f32>
              │                                               ^^^^^^^^

            error[bad_operand]: a positional operand follows a named one
              ┌─ test.fir:3:28
              │
            3 │   %y = mma %x, alpha = %x, %x : tensor<[M], f32>
              │                            ^^

            error[bad_operand]: the operand `c` is given twice
              ┌─ test.fir:3:28
              │
            3 │   %y = mma %x, %x, c = %x, c = %x : tensor<[M], f32>
              │                            ^

            error[syntax]: expected a value such as `%x`, found the number `1`
              ┌─ test.fir:3:24
              │
            3 │   %y = mma %x, %x, c = 1 : tensor<[M], f32>
              │                        ^

        "#]],
    );
}

#[test]
fn types_are_checked_where_they_stand() {
    check_statements(
        &[
            "%y = relu %x : tensor<[M], F32>",
            "%y = relu %x : tensor<[M], quarter>",
            "%y = relu %x : tensor<[M], f8E8M0FNU, swizzled>",
            "%y = relu %x : tensor<[18446744073709551616], f32>",
            "%y = relu %x : tensor<[4294967296*M*4294967296], f32>",
            "%y = relu %x : tensor<[M, -1], f32>",
            "%y = relu %x : tensor<[M, 3x], f32>",
            "%y = relu %x : f32",
        ],
        expect![[r#"
            error[bad_type]: unknown element type `F32`
              ┌─ test.fir:3:30
              │
            3 │   %y = relu %x : tensor<[M], F32>
              │                              ^^^
              │
              = help: did you mean `f32`?

            error[bad_type]: unknown element type `quarter`
              ┌─ test.fir:3:30
              │
            3 │   %y = relu %x : tensor<[M], quarter>
              │                              ^^^^^^^
              │
              = note: the element types are f4E2M1FN, f6E2M3FN, f6E3M2FN, f8E4M3FN, f8E5M2, f8E8M0FNU, f16, bf16, f32, i32, i1

            error[bad_type]: expected the scale layout `linear` or `blocked`, found `swizzled`
              ┌─ test.fir:3:41
              │
            3 │   %y = relu %x : tensor<[M], f8E8M0FNU, swizzled>
              │                                         ^^^^^^^^

            error[bad_type]: the extent `18446744073709551616` does not fit 64 bits
              ┌─ test.fir:3:26
              │
            3 │   %y = relu %x : tensor<[18446744073709551616], f32>
              │                          ^^^^^^^^^^^^^^^^^^^^

            error[bad_type]: the extent `4294967296*M*4294967296` does not fit 64 bits
              ┌─ test.fir:3:26
              │
            3 │   %y = relu %x : tensor<[4294967296*M*4294967296], f32>
              │                          ^^^^^^^^^^^^^^^^^^^^^^^

            error[bad_type]: expected an extent, found `-1`
              ┌─ test.fir:3:29
              │
            3 │   %y = relu %x : tensor<[M, -1], f32>
              │                             ^^
              │
              = help: write an extent as a whole number, a symbol, or a product such as `4*B*S`

            error[bad_type]: expected an extent, found `3x`
              ┌─ test.fir:3:29
              │
            3 │   %y = relu %x : tensor<[M, 3x], f32>
              │                             ^^
              │
              = help: write an extent as a whole number, a symbol, or a product such as `4*B*S`

            error[syntax]: expected a type such as `tensor<[M, 384], bf16>`, found `f32`
              ┌─ test.fir:3:18
              │
            3 │   %y = relu %x : f32
              │                  ^^^

        "#]],
    );
}

#[test]
fn ranks_and_products_beyond_reason_are_refused() {
    let of_rank = |rank| format!("%y = relu %x\n : tensor<[{}], f32>", vec!["1"; rank].join(", "));
    let of_factors = |count| format!("%y = relu %x\n : tensor<[{}], f32>", vec!["M"; count].join("*"));
    check_statements(
        &[&of_rank(65), &of_factors(65)],
        expect![[r#"
        error[bad_type]: a type has at most 64 extents
          ┌─ test.fir:4:4
          │
        4 │  : tensor<[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], f32>
          │    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

        error[bad_type]: an extent has at most 64 symbols
          ┌─ test.fir:4:12
          │
        4 │  : tensor<[M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M*M], f32>
          │            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^

    "#]],
    );
    for statement in [of_rank(64), of_factors(64)] {
        assert!(parse(&format!("fir 1\nfunc @f(%x: tensor<[], f32>) {{\n{statement} return %y }}")).is_ok());
    }
}

#[test]
fn results_and_types_are_as_many() {
    check_statements(
        &["%y, %s = relu %x : tensor<[M], f32>", "%y = relu %x : tensor<[M], f32>, tensor<[M], f32>"],
        expect![[r#"
            error[result_count]: the op has 2 results but 1 result type
              ┌─ test.fir:3:22
              │
            3 │   %y, %s = relu %x : tensor<[M], f32>
              │                      ^^^^^^^^^^^^^^^^
              │
              = help: write one type for each result, separated by commas

            error[result_count]: the op has 1 result but 2 result types
              ┌─ test.fir:3:18
              │
            3 │   %y = relu %x : tensor<[M], f32>, tensor<[M], f32>
              │                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
              │
              = help: write one type for each result, separated by commas

        "#]],
    );
}

#[test]
fn syntax_errors_say_what_was_found_and_expected() {
    check_statements(
        &[
            "%y = relu %x",
            "%y = relu",
            "%y = relu %x,",
            "%y =",
            "%y relu %x : tensor<[M], f32>",
            "relu %x : tensor<[M], f32>",
            "retrun %x",
            "%y = relu %x, : tensor<[M], f32>",
            "%y = relu % x : tensor<[M], f32>",
            "%größe = relu %x : tensor<[M], f32>",
            "%y = relu %x : tensor<M, f32>",
            "%y = relu %x -> tensor<[M], f32>",
        ],
        expect![[r#"
            error[syntax]: expected `:` and the result types, or `,` and an operand, or attributes in `{}`, found the end of the line
              ┌─ test.fir:3:15
              │
            3 │   %y = relu %x
              │               ^

            error[syntax]: expected `:` and the result types, or `,` and an operand, or attributes in `{}`, found the end of the line
              ┌─ test.fir:3:12
              │
            3 │   %y = relu
              │            ^

            error[syntax]: expected an operand such as `%x` or `alpha = %x`, found the end of the line
              ┌─ test.fir:3:16
              │
            3 │   %y = relu %x,
              │                ^

            error[syntax]: expected the name of an op, such as `relu`, found the end of the line
              ┌─ test.fir:3:7
              │
            3 │   %y =
              │       ^

            error[syntax]: expected `=` after the names of the results, found `relu`
              ┌─ test.fir:3:6
              │
            3 │   %y relu %x : tensor<[M], f32>
              │      ^^^^

            error[syntax]: expected a statement, found `relu`
              ┌─ test.fir:3:3
              │
            3 │   relu %x : tensor<[M], f32>
              │   ^^^^
              │
              = help: name the results: `%name = relu ... : type`

            error[syntax]: expected a statement, found `retrun`
              ┌─ test.fir:3:3
              │
            3 │   retrun %x
              │   ^^^^^^
              │
              = help: did you mean `return`?

            error[syntax]: expected an operand such as `%x` or `alpha = %x`, found `:`
              ┌─ test.fir:3:17
              │
            3 │   %y = relu %x, : tensor<[M], f32>
              │                 ^

            error[syntax]: expected `:` and the result types, or `,` and an operand, or attributes in `{}`, found the character `%`
              ┌─ test.fir:3:13
              │
            3 │   %y = relu % x : tensor<[M], f32>
              │             ^
              │
              = help: write a name of letters, digits, `_` and `.` after `%`

            error[syntax]: expected `=` after the names of the results, found the character `ö`
              ┌─ test.fir:3:6
              │
            3 │   %größe = relu %x : tensor<[M], f32>
              │      ^
              │
              = note: names consist of ASCII letters, digits, `_` and `.`

            error[syntax]: expected `[` and the extents, found `M`
              ┌─ test.fir:3:25
              │
            3 │   %y = relu %x : tensor<M, f32>
              │                         ^

            error[syntax]: expected `:` and the result types, or `,` and an operand, or attributes in `{}`, found the character `-`
              ┌─ test.fir:3:16
              │
            3 │   %y = relu %x -> tensor<[M], f32>
              │                ^

        "#]],
    );
}

#[test]
fn the_function_is_closed_and_alone() {
    check_texts(
        &[
            "fir 1\nfunc @f() {\n}\n",
            "fir 1\nfunc @f() {\n  return\n",
            "fir 1\nfunc @f() {\n  return\n  %x = relu %y : tensor<[], f32>\n}\n",
            "fir 1\nfunc @f() {\n  return\n}\nfunc @g() {\n  return\n}\n",
            "fir 1\nfunc @f(",
            "fir 1\nfunc main() { return }",
        ],
        expect![[r#"
            error[syntax]: the function has no `return`
              ┌─ test.fir:3:1
              │
            3 │ }
              │ ^
              │
              = help: end it with the outputs, such as `return %y`

            error[syntax]: expected `}` after `return`, which ends the function, found the end of the file
              ┌─ test.fir:3:9
              │
            3 │   return
              │         ^

            error[syntax]: expected `}` after `return`, which ends the function, found the end of the line
              ┌─ test.fir:3:9
              │
            3 │   return
              │         ^

            error[syntax]: expected the end of the file after the function's `}`, found `func`
              ┌─ test.fir:5:1
              │
            5 │ func @g() {
              │ ^^^^
              │
              = note: a file contains one function

            error[syntax]: expected an input such as `%x: tensor<[M, 384], bf16>`, found the end of the file
              ┌─ test.fir:2:9
              │
            2 │ func @f(
              │         ^

            error[syntax]: expected the function's name, such as `@main`, found `main`
              ┌─ test.fir:2:6
              │
            2 │ func main() { return }
              │      ^^^^

        "#]],
    );
}

#[test]
fn several_errors_are_reported_without_following_ones() {
    check_texts(
        &["fir 1
func @f(
  %a: tensor<[M], f31>,
  %b tensor<[M], f32>,
  param %c: tensor<[M], f32> %d: tensor<[M], f32>,
  %e: tensor<[M], f32>
) {
  %y = relu %a, : tensor<[M], f32>
  %z = softmax %b {
    axis = zero
  } : tensor<[M], f32>
  %v = relu %y,
  %w = add %y, %z : tensor<[M], f32>
  ) nonsense (
  %q,
  %s = block_quantise %w {block = 16} : tensor<[M], f32>, tensor<[M], f32>
  return %w, %c, %e, %q, %s, %missing
}
"],
        expect![[r#"
            error[bad_type]: unknown element type `f31`
              ┌─ test.fir:3:19
              │
            3 │   %a: tensor<[M], f31>,
              │                   ^^^
              │
              = help: did you mean `f32`?

            error[syntax]: expected `:` and the input's type, found `tensor`
              ┌─ test.fir:4:6
              │
            4 │   %b tensor<[M], f32>,
              │      ^^^^^^

            error[syntax]: expected `,` or `)` after an input, found the value `%d`
              ┌─ test.fir:5:30
              │
            5 │   param %c: tensor<[M], f32> %d: tensor<[M], f32>,
              │                              ^^

            error[syntax]: expected an operand such as `%x` or `alpha = %x`, found `:`
              ┌─ test.fir:8:17
              │
            8 │   %y = relu %a, : tensor<[M], f32>
              │                 ^

            error[bad_attribute]: attribute `axis` of `softmax` must be a whole number, not zero
               ┌─ test.fir:10:12
               │
            10 │     axis = zero
               │            ^^^^

            error[syntax]: expected an operand such as `%x` or `alpha = %x`, found the end of the line
               ┌─ test.fir:12:16
               │
            12 │   %v = relu %y,
               │                ^

            error[syntax]: expected a statement, found `)`
               ┌─ test.fir:14:3
               │
            14 │   ) nonsense (
               │   ^
               │
               = help: write `%name = op ... : type` or `return ...`

            error[unknown_op]: unknown op `block_quantise`
               ┌─ test.fir:16:8
               │
            16 │   %s = block_quantise %w {block = 16} : tensor<[M], f32>, tensor<[M], f32>
               │        ^^^^^^^^^^^^^^
               │
               = help: did you mean `block_quantize`?

            error[unknown_value]: unknown value `%missing`
               ┌─ test.fir:17:30
               │
            17 │   return %w, %c, %e, %q, %s, %missing
               │                              ^^^^^^^^

        "#]],
    );
}

#[test]
fn errors_stop_at_twenty() {
    let statement = "  %y = relu %missing : tensor<[], f32>\n";
    let source = format!("fir 1\nfunc @f() {{\n{}  return\n}}\n", statement.repeat(30));
    let errors = parse(&source).unwrap_err();
    assert_eq!(errors.len(), 20);
    let last_note = errors[19].notes.last().unwrap();
    assert_eq!(last_note, "note: parsing stopped after 20 errors; there may be more");
    assert!(errors.is_sorted_by_key(|error| error.span.unwrap().start));
}
