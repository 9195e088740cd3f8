//! Tests of `top_k`, `group_rows` and `scatter_add` against the interpreter.

use fourfold_ir::InterpretError;

use super::*;

/// Small numbers of a type, many of them equal, and some of them NaN.
fn numbers(element: ElementType, dims: &[usize], seed: u64) -> Tensor {
    let mut state = seed + 1;
    let count: usize = dims.iter().product();
    let number = |state: &mut u64| match random(state) % 23 {
        0 => f64::NAN,
        1 => f64::NEG_INFINITY,
        2 => -0.0,
        number => number as f64 * 0.375 - 3.75,
    };
    let values: Vec<f64> = (0..count).map(|_| number(&mut state)).collect();
    Tensor::from_f64(element, dims.to_vec(), None, &values).unwrap()
}

fn ids(dims: &[usize], groups: usize, seed: u64) -> Tensor {
    let mut state = seed + 7;
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|_| (random(&mut state) as usize % groups) as f64).collect();
    Tensor::from_f64(I32, dims.to_vec(), None, &values).unwrap()
}

#[test]
fn the_greatest_elements_equal_the_interpreter() {
    for element in [F16, BF16, F32] {
        for (seed, (dims, k)) in
            [(vec![3, 37, 61], 5), (vec![129, 8], 8), (vec![1000], 1), (vec![0, 4], 2), (vec![2, 1], 1)]
                .into_iter()
                .enumerate()
        {
            let x = numbers(element, &dims, seed as u64);
            let taken = [&dims[..dims.len() - 1], &[k]].concat();
            let results = [(element, &taken[..], None), (I32, &taken[..], None)];
            check(&OpKind::TopK { k: k as u32 }, &[&x], &results);
        }
    }
}

#[test]
fn sorted_rows_equal_the_interpreter() {
    for (seed, (dims, groups)) in
        [(vec![37, 2], 8), (vec![3, 40, 8], 256), (vec![500, 1], 1), (vec![0, 4], 3), (vec![4, 0], 3)]
            .into_iter()
            .enumerate()
    {
        let ids = ids(&dims, groups, seed as u64);
        let count = [dims.iter().product::<usize>()];
        let results = [(I32, &count[..], None), (I32, &count[..], None), (I32, &[groups][..], None)];
        check(&OpKind::GroupRows { groups: groups as u32 }, &[&ids], &results);
    }
}

#[test]
fn scattered_sums_equal_the_interpreter() {
    for (seed, (rows, to, columns)) in
        [(300, 37, vec![70]), (5, 9, vec![3, 500]), (64, 1, vec![]), (0, 3, vec![4]), (7, 2, vec![0])]
            .into_iter()
            .enumerate()
    {
        let at = ids(&[rows], to, seed as u64);
        for (element, result) in [(F32, F32), (BF16, F32), (F16, BF16), (F32, F16)] {
            let x = numbers(element, &[&[rows], &columns[..]].concat(), seed as u64);
            check(&OpKind::ScatterAdd, &[&x, &at], &[(result, &[&[to], &columns[..]].concat(), None)]);
        }
    }
}

/// An empty tensor may have any extent besides that of 0.
#[test]
fn more_elements_than_an_i32_counts_are_an_error() {
    let columns = 1 << 31;
    let x = Tensor::zeros(F16, vec![0, columns], None).unwrap();
    let kind = OpKind::TopK { k: 2 };
    let program = program(&kind, &[&x], &[(F16, &[0, 2], None), (I32, &[0, 2], None)]);
    let op = program.module().ops.keys().next().unwrap();
    let found = run_op(&program, op, &[&x], &SymbolValues::default()).unwrap_err();
    assert_eq!(found, FallbackError::Positions { count: columns });
}

#[test]
fn an_id_without_a_group_and_an_index_outside_the_result_are_errors_that_name_it() {
    let symbols = SymbolValues::default();
    let bad = Tensor::from_f64(I32, vec![1, 2], None, &[2.0, 3.0]).unwrap();
    let kind = OpKind::GroupRows { groups: 3 };
    let results = [(I32, &[2][..], None), (I32, &[2][..], None), (I32, &[3][..], None)];
    let program_of_ids = program(&kind, &[&bad], &results);
    let op = program_of_ids.module().ops.keys().next().unwrap();
    let found = run_op(&program_of_ids, op, &[&bad], &symbols).unwrap_err();
    assert_eq!(found, FallbackError::Group { position: 1, id: 3, groups: 3 });
    let meant = interpret_op(&program_of_ids, op, &[&bad], &symbols).unwrap_err();
    assert!(matches!(meant, InterpretError::Group { position: 1, id: 3, groups: 3, .. }), "{meant}");

    let x = numbers(F32, &[2], 1);
    let bad = Tensor::from_f64(I32, vec![2], None, &[-1.0, 0.0]).unwrap();
    let program = program(&OpKind::ScatterAdd, &[&x, &bad], &[(F32, &[3], None)]);
    let op = program.module().ops.keys().next().unwrap();
    let found = run_op(&program, op, &[&x, &bad], &symbols).unwrap_err();
    assert_eq!(found, FallbackError::Index { position: 0, index: -1, axis: 0, extent: 3 });
    let meant = interpret_op(&program, op, &[&x, &bad], &symbols).unwrap_err();
    assert!(
        matches!(meant, InterpretError::Index { position: 0, index: -1, axis: 0, extent: 3, .. }),
        "{meant}"
    );
}
