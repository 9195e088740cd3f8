//! Each rule, before and after.

use expect_test::{Expect, expect};
use fourfold_ir::SymbolValues;

use crate::support::{check_same_bits, describe, function, normalized};

const OPERANDS: &str = "%a: tensor<[37, 64], f4E2M1FN>, %sa: tensor<[37, 4], f8E4M3FN, linear>, \
     param %b: tensor<[24, 64], f4E2M1FN>, param %sb: tensor<[24, 4], f8E4M3FN, linear>";

/// An exact rewriting: the same bits on poisoned data.
#[track_caller]
fn check(inputs: &str, body: &str, expected: Expect) {
    let program = function(inputs, body);
    let normalized = normalized(&program, false);
    expected.assert_eq(&describe(&program, &normalized));
    check_same_bits(&program, &normalized, 12, &SymbolValues::default());
}

#[test]
fn a_product_of_dequantized_operands_is_a_scaled_mma() {
    check(
        OPERANDS,
        "  %x = block_dequantize %a, %sa {block = 16} : tensor<[37, 64], f32>
  %y = block_dequantize %b, %sb {block = 16} : tensor<[24, 64], f32>
  %d = mma %x, %y : tensor<[37, 24], f32>
  return %d",
        expect![[r#""#]],
    );
}
