//! Tests of `grouped_scaled_mma` against the interpreter.

use fourfold_ir::{GroupedScaledMma, InterpretError};

use super::*;

/// Scales of few distinct sizes, so that sums are exact.
fn scales(element: ElementType, dims: &[usize], layout: ScaleLayout, seed: usize) -> Tensor {
    let first = if element == E4M3 { 0x30 } else { 124 };
    let count = dims.iter().product::<usize>();
    let codes = (0..count).map(|index| first + ((index * 5 + seed) % 4) as u8).collect();
    Tensor::from_codes(element, dims.to_vec(), Some(layout), codes).unwrap()
}

fn offsets(ends: &[i32]) -> Tensor {
    let ends: Vec<f64> = ends.iter().map(|end| f64::from(*end)).collect();
    Tensor::from_f64(I32, vec![ends.len()], None, &ends).unwrap()
}

/// The rows, and the ends of three groups.
const DISTRIBUTIONS: [(usize, [i32; 3]); 7] = [
    (7, [2, 5, 7]),
    (150, [0, 131, 150]),
    (9, [0, 0, 9]),
    (9, [9, 9, 9]),
    (8, [1, 1, 3]),
    (5, [0, 0, 0]),
    (0, [0, 0, 0]),
];

#[test]
fn groups_equal_the_interpreter() {
    let (n, k) = (38, 64);
    for (rows, ends) in DISTRIBUTIONS {
        for (a, b, scale, block) in
            [(F4, F4, E4M3, 16), (F4, F4, E8M0, 32), (E4M3, F4, E8M0, 32), (E2M3, E2M3, E8M0, 32)]
        {
            for layout in [Linear, Blocked] {
                let blocks = k / block as usize;
                let (a, b) = (tame(a, &[rows, k], 1), tame(b, &[3, n, k], 2));
                let sfa = scales(scale, &[rows, blocks], Linear, 1);
                let sfb = scales(scale, &[3, n, blocks], layout, 2);
                let ends = offsets(&ends);
                for alpha in [None, Some(f32s(&[], &[0.3])), Some(f32s(&[3], &[0.3, -2.0, 7.5]))] {
                    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
                        block,
                        weight_only: false,
                        alpha: alpha.is_some(),
                        masked: false,
                        sfa_ends: false,
                    });
                    let mut operands = vec![&a, &sfa, &b, &sfb, &ends];
                    operands.extend(&alpha);
                    for result in FLOATS {
                        check(&kind, &operands, &[(result, &[rows, n], None)]);
                    }
                }
            }
        }
    }
}

#[test]
fn weight_only_groups_equal_the_interpreter() {
    let (n, k) = (38, 64);
    for (rows, ends) in DISTRIBUTIONS {
        for (a, scale, block) in [(F16, E4M3, 16), (BF16, E8M0, 32)] {
            // Quarters, so that sums are exact.
            let values: Vec<f64> =
                (0..rows * k).map(|index| f64::from(index as i32 * 37 % 65 - 32) / 4.0).collect();
            let a = Tensor::from_f64(a, vec![rows, k], None, &values).unwrap();
            let b = tame(F4, &[3, n, k], 2);
            let sfb = scales(scale, &[3, n, k / block as usize], Blocked, 2);
            let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
                block,
                weight_only: true,
                alpha: false,
                masked: false,
                sfa_ends: false,
            });
            check(&kind, &[&a, &b, &sfb, &offsets(&ends)], &[(BF16, &[rows, n], None)]);
        }
    }
}

#[test]
fn rows_of_no_group_are_zero_even_for_nan() {
    let a = Tensor::from_f64(F16, vec![3, 16], None, &[f64::NAN; 48]).unwrap();
    let (b, sfb) = (tame(F4, &[1, 2, 16], 2), scales(E4M3, &[1, 2, 1], Linear, 0));
    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
        block: 16,
        weight_only: true,
        alpha: false,
        masked: false,
        sfa_ends: false,
    });
    let program = program(&kind, &[&a, &b, &sfb, &offsets(&[1])], &[(F32, &[3, 2], None)]);
    let op = program.module().ops.keys().next().unwrap();
    let result = run_op(&program, op, &[&a, &b, &sfb, &offsets(&[1])], &SymbolValues::default()).unwrap();
    let values = result[0].to_f64();
    assert!(values[..2].iter().all(|value| value.is_nan()));
    assert_eq!(values[2..], [0.0; 4]);
}

#[test]
fn offsets_outside_the_rows_are_errors() {
    let a = tame(F16, &[7, 16], 1);
    let (b, sfb) = (tame(F4, &[3, 2, 16], 2), scales(E4M3, &[3, 2, 1], Linear, 0));
    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
        block: 16,
        weight_only: true,
        alpha: false,
        masked: false,
        sfa_ends: false,
    });
    for (ends, position, offset, least) in [
        ([-1, 3, 7], 0, -1, 0),
        ([3, 2, 7], 1, 2, 3),
        ([3, 5, 8], 2, 8, 5),
        ([0, 0, i32::MIN], 2, i32::MIN, 0),
        ([i32::MAX, 0, 7], 0, i32::MAX, 0),
    ] {
        let ends = offsets(&ends);
        let operands = [&a, &b, &sfb, &ends];
        let program = program(&kind, &operands, &[(F32, &[7, 2], None)]);
        let op = program.module().ops.keys().next().unwrap();
        let error = run_op(&program, op, &operands, &SymbolValues::default()).unwrap_err();
        assert_eq!(error, FallbackError::Offset { position, offset, least, rows: 7 });
        let error = fourfold_ir::interpret_op(&program, op, &operands, &SymbolValues::default()).unwrap_err();
        let found = matches!(&error, InterpretError::Offset { position: p, offset: o, least: l, rows: 7, .. }
            if (*p, *o, *l) == (position, offset, least));
        assert!(found, "{error}");
    }
}

/// Scales of three groups in whole tiles, and their ends there. All other rows and the padding are NaN.
fn padded_scales(scales: &Tensor, ends: &Tensor, extra: i32) -> (Tensor, Tensor) {
    let rows: Vec<usize> = ends.to_f64().into_iter().map(|end| end as usize).collect();
    let mut padded = Vec::new();
    let (mut begin, mut end) = (0, 0);
    for group in &rows {
        end += (group - begin).next_multiple_of(128) as i32 + extra;
        begin = *group;
        padded.push(end);
    }
    let (columns, places) = (scales.dims()[1], [0, padded[0], padded[1]]);
    let dims = vec![end as usize + 5, columns];
    let bytes = vec![0xFF; numeric::blocked_len(dims[0], columns)];
    let mut blocked = Tensor::new(scales.element(), dims, Some(Blocked), bytes).unwrap();
    for (group, end) in rows.iter().enumerate() {
        let begin = if group == 0 { 0 } else { rows[group - 1] };
        for row in begin..*end {
            for column in 0..columns {
                let at = numeric::blocked_offset(places[group] as usize + row - begin, column, columns);
                blocked.bytes_mut()[at] = scales.bytes()[row * columns + column];
            }
        }
    }
    (blocked, offsets(&padded))
}

#[test]
fn groups_with_whole_tiles_of_scales_equal_those_with_linear_scales() {
    let (n, k) = (38, 96);
    for (rows, ends) in DISTRIBUTIONS {
        for (a, scale, block, extra) in [(F4, E4M3, 16, 0), (F4, E8M0, 32, 128), (E4M3, E8M0, 32, 0)] {
            let blocks = k / block as usize;
            let (a, b) = (tame(a, &[rows, k], 1), tame(F4, &[3, n, k], 2));
            let (linear, sfb) =
                (scales(scale, &[rows, blocks], Linear, 1), scales(scale, &[3, n, blocks], Blocked, 2));
            let ends = offsets(&ends);
            let (sfa, sfa_ends) = padded_scales(&linear, &ends, extra);
            let alpha = f32s(&[3], &[0.3, -2.0, 7.5]);
            let kind = |sfa_ends| {
                let (weight_only, alpha, masked) = (false, true, false);
                OpKind::GroupedScaledMma(GroupedScaledMma { block, weight_only, alpha, masked, sfa_ends })
            };
            let result = [(F32, &[rows, n][..], None)];
            let operands = [&a, &sfa, &b, &sfb, &ends, &alpha, &sfa_ends];
            check(&kind(true), &operands, &result);
            let run = |kind: OpKind, operands: &[&Tensor]| {
                let program = program(&kind, operands, &result);
                let op = program.module().ops.keys().next().unwrap();
                run_op(&program, op, operands, &SymbolValues::default()).unwrap().remove(0)
            };
            let of_linear = run(kind(false), &[&a, &linear, &b, &sfb, &ends, &alpha]);
            assert_eq!(run(kind(true), &operands), of_linear);
            let restored = scales_of_rows(&sfa, rows, [&ends, &sfa_ends]).unwrap();
            let last = ends.to_f64()[2] as usize * blocks;
            assert_eq!(restored.bytes()[..last], linear.bytes()[..last]);
            // The producers of both operands.
            check(&OpKind::PaddedEnds { multiple: 128 }, &[&ends], &[(I32, &[3], None)]);
            let dims = sfa.dims();
            check(&OpKind::GroupScales, &[&linear, &ends, &sfa_ends], &[(scale, dims, Some(Blocked))]);
        }
    }
}

#[test]
fn ends_in_scales_without_room_are_errors() {
    let linear = scales(E4M3, &[200, 1], Linear, 1);
    let ends = offsets(&[0, 130, 200]);
    for (padded, position, end, least) in [
        ([0, 128, 384], 1, 128, 130),
        ([0, 200, 384], 1, 200, 130),
        ([0, 256, 256], 2, 256, 326),
        ([128, 384, 512], 2, 512, 454),
        ([-128, 384, 512], 0, -128, 0),
        ([i32::MAX, 0, 0], 0, i64::from(i32::MAX), 0),
    ] {
        let padded = offsets(&padded);
        let operands = [&linear, &ends, &padded];
        let program = program(&OpKind::GroupScales, &operands, &[(E4M3, &[500, 1], Some(Blocked))]);
        let op = program.module().ops.keys().next().unwrap();
        let error = run_op(&program, op, &operands, &SymbolValues::default()).unwrap_err();
        assert_eq!(error, FallbackError::PaddedEnd { position, end, multiple: 128, least, most: 500 });
        let error = fourfold_ir::interpret_op(&program, op, &operands, &SymbolValues::default()).unwrap_err();
        let found = matches!(&error, InterpretError::PaddedEnd { position: p, end: e, least: l, most: 500, .. }
            if (*p, *e, *l) == (position, end, least));
        assert!(found, "{error}");
    }
    let kind = OpKind::PaddedEnds { multiple: 1 << 30 };
    let ends = offsets(&[1, 2, 3]);
    let program = program(&kind, &[&ends], &[(I32, &[3], None)]);
    let op = program.module().ops.keys().next().unwrap();
    let error = run_op(&program, op, &[&ends], &SymbolValues::default()).unwrap_err();
    let (end, most) = (1 << 31, i32::MAX as usize);
    assert_eq!(error, FallbackError::PaddedEnd { position: 1, end, multiple: 1 << 30, least: 0, most });
}

/// Three matrices of these rows, and the rows that each group has.
const COUNTS: [(usize, [i32; 3]); 5] =
    [(7, [2, 0, 7]), (150, [0, 131, 150]), (9, [0, 0, 0]), (1, [1, 1, 1]), (0, [0, 0, 0])];

/// Sets the rows of matrices that belong to no group to NaN, or to other codes.
fn poisoned(a: &Tensor, counts: [i32; 3], nan: f64) -> Tensor {
    let (rows, k) = (a.dims()[1], a.dims()[2]);
    let is_free = |at: usize| at / k % rows >= counts[at / k / rows] as usize;
    let values: Vec<f64> = a.to_f64();
    let values = values.iter().enumerate().map(|(at, value)| if is_free(at) { nan } else { *value });
    Tensor::from_f64(a.element(), a.dims().to_vec(), a.layout(), &values.collect::<Vec<_>>()).unwrap()
}

#[test]
fn masked_groups_equal_the_interpreter_and_ignore_other_rows() {
    let (n, k) = (38, 64);
    for (rows, counts) in COUNTS {
        let given = offsets(&counts);
        for (a, b, scale, block) in [(F4, F4, E4M3, 16), (E4M3, F4, E8M0, 32), (E2M3, E2M3, E8M0, 32)] {
            for layout in [Linear, Blocked] {
                let blocks = k / block as usize;
                let a = tame(a, &[3, rows, k], 1);
                let (b, sfb) = (tame(b, &[3, n, k], 2), scales(scale, &[3, n, blocks], layout, 2));
                let sfa = poisoned(&scales(scale, &[3, rows, blocks], layout, 1), counts, f64::NAN);
                for alpha in [None, Some(f32s(&[3], &[0.3, -2.0, 7.5]))] {
                    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
                        block,
                        weight_only: false,
                        alpha: alpha.is_some(),
                        masked: true,
                        sfa_ends: false,
                    });
                    let mut operands = vec![&a, &sfa, &b, &sfb, &given];
                    operands.extend(&alpha);
                    check(&kind, &operands, &[(BF16, &[3, rows, n], None)]);
                    let program = program(&kind, &operands, &[(F32, &[3, rows, n], None)]);
                    let op = program.module().ops.keys().next().unwrap();
                    let result = run_op(&program, op, &operands, &SymbolValues::default()).unwrap();
                    for (at, value) in result[0].to_f64().into_iter().enumerate() {
                        let is_free = at / n % rows >= counts[at / n / rows] as usize;
                        assert!(if is_free { value == 0.0 } else { value.is_finite() }, "{at} {counts:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn counts_beyond_the_rows_are_errors() {
    let a = tame(F16, &[3, 7, 16], 1);
    let (b, sfb) = (tame(F4, &[3, 2, 16], 2), scales(E4M3, &[3, 2, 1], Linear, 0));
    let kind = OpKind::GroupedScaledMma(GroupedScaledMma {
        block: 16,
        weight_only: true,
        alpha: false,
        masked: true,
        sfa_ends: false,
    });
    for (counts, position, count) in [([-1, 3, 7], 0, -1), ([3, 8, 7], 1, 8), ([0, 7, i32::MIN], 2, i32::MIN)]
    {
        let counts = offsets(&counts);
        let operands = [&a, &b, &sfb, &counts];
        let program = program(&kind, &operands, &[(F32, &[3, 7, 2], None)]);
        let op = program.module().ops.keys().next().unwrap();
        let error = run_op(&program, op, &operands, &SymbolValues::default()).unwrap_err();
        assert_eq!(error, FallbackError::GroupCount { position, count, rows: 7 });
        let error = fourfold_ir::interpret_op(&program, op, &operands, &SymbolValues::default()).unwrap_err();
        let found = matches!(&error, InterpretError::GroupCount { position: p, count: c, rows: 7, .. }
            if (*p, *c) == (position, count));
        assert!(found, "{error}");
    }
}
