//! Tests of `slice`, `concat`, `gather`, `pad` and integers against the interpreter.

use fourfold_ir::{InterpretError, PadAmount, SliceRange};

use super::*;

/// Codes of a type with any bits, as the interpreter's form of codes.
fn bits(element: ElementType, dims: &[usize], layout: Layout, seed: u64) -> Tensor {
    let mut state = seed + 1;
    let count: usize = dims.iter().product();
    let width = element.storage_bits().div_ceil(8);
    let mask = match element {
        F4 => 15,
        I1 => 1,
        _ => 255,
    };
    let codes = (0..count * width).map(|_| random(&mut state) as u8 & mask).collect();
    Tensor::from_codes(element, dims.to_vec(), layout, codes).unwrap()
}

/// Checks an op that moves elements: every bit equals the interpreter's, NaN included.
#[track_caller]
fn check_bits(kind: &OpKind, operands: &[&Tensor], dims: &[usize]) {
    let results = [(operands[0].element(), dims, operands[0].layout())];
    check(kind, operands, &results);
    let program = program(kind, operands, &results);
    let op = program.module().ops.keys().next().unwrap();
    let expected = interpret_op(&program, op, operands, &SymbolValues::default()).unwrap();
    assert_eq!(run(kind, operands, &results), expected);
}

const MOVED: [(ElementType, Layout); 9] = [
    (F4, None),
    (E4M3, None),
    (E4M3, Some(Linear)),
    (E8M0, Some(Linear)),
    (F16, None),
    (BF16, None),
    (F32, None),
    (I32, None),
    (I1, None),
];

fn slice(ranges: &[(u32, u64, u64, u64)]) -> OpKind {
    let range = |&(axis, start, end, step): &(u32, u64, u64, u64)| SliceRange { axis, start, end, step };
    OpKind::Slice { ranges: ranges.iter().map(range).collect() }
}

#[test]
fn slices_equal_the_interpreter() {
    for (index, (element, layout)) in MOVED.into_iter().enumerate() {
        let x = bits(element, &[7, 34, 130], layout, index as u64);
        check_bits(&slice(&[]), &[&x], &[7, 34, 130]);
        check_bits(&slice(&[(0, 2, 7, 2), (1, 3, 30, 1)]), &[&x], &[3, 27, 130]);
        check_bits(&slice(&[(1, 34, 34, 1)]), &[&x], &[7, 0, 130]);
        check_bits(&slice(&[(0, 6, 7, 1 << 53), (2, 4, 128, 1)]), &[&x], &[1, 34, 124]);
        if element != F4 {
            check_bits(&slice(&[(2, 1, 130, 3)]), &[&x], &[7, 34, 43]);
            check_bits(&slice(&[(1, 0, 33, 4), (2, 129, 130, 1)]), &[&x], &[7, 9, 1]);
        }
    }
    check_bits(&slice(&[]), &[&f32s(&[], &[-0.0])], &[]);
    check_bits(&slice(&[(1, 0, 2, 1)]), &[&bits(F32, &[0, 4], None, 1)], &[0, 2]);
}

#[test]
fn choices_equal_the_interpreter() {
    for (index, (element, layout)) in
        MOVED.into_iter().enumerate().filter(|(_, (_, layout))| layout.is_none())
    {
        for rows in [0, 1, 5, 6, 64] {
            let operands = [1, 2, 3].map(|seed| bits(element, &[rows, 64], layout, index as u64 * 4 + seed));
            let operands: Vec<&Tensor> = operands.iter().collect();
            check_bits(&OpKind::Choose { axis: 0, ends: vec![0, 5] }, &operands, &[rows, 64]);
            check_bits(&OpKind::Choose { axis: 1, ends: vec![63, 64] }, &operands, &[rows, 64]);
        }
    }
}

#[test]
fn concatenations_equal_the_interpreter() {
    for (index, (element, layout)) in MOVED.into_iter().enumerate() {
        let tensor = |dims: &[usize]| bits(element, dims, layout, index as u64 + dims[1] as u64);
        let (x, y, none) = (tensor(&[5, 64, 90]), tensor(&[5, 2, 90]), tensor(&[5, 0, 90]));
        check_bits(&OpKind::Concat { axis: 1 }, &[&none, &x, &none, &y, &x], &[5, 130, 90]);
        check_bits(&OpKind::Concat { axis: 0 }, &[&x, &x], &[10, 64, 90]);
        check_bits(&OpKind::Concat { axis: 2 }, &[&x, &tensor(&[5, 64, 2]), &x], &[5, 64, 182]);
        check_bits(&OpKind::Concat { axis: 2 }, &[&x], &[5, 64, 90]);
        check_bits(&OpKind::Concat { axis: 1 }, &[&none, &none], &[5, 0, 90]);
    }
    let parts: Vec<Tensor> = (0..300).map(|index| bits(F32, &[3, 1], None, index)).collect();
    check_bits(&OpKind::Concat { axis: 1 }, &parts.iter().collect::<Vec<_>>(), &[3, 300]);
}

fn indices(dims: &[usize], extent: usize, seed: u64) -> Tensor {
    let mut state = seed;
    let count: usize = dims.iter().product();
    let values: Vec<f64> = (0..count).map(|_| (random(&mut state) as usize % extent) as f64).collect();
    Tensor::from_f64(I32, dims.to_vec(), None, &values).unwrap()
}

#[test]
fn gathers_equal_the_interpreter() {
    for (index, (element, layout)) in MOVED.into_iter().enumerate() {
        let seed = index as u64;
        let x = bits(element, &[3, 61, 70], layout, seed);
        check_bits(&OpKind::Gather { axis: 1 }, &[&x, &indices(&[9, 20], 61, seed)], &[3, 9, 20, 70]);
        check_bits(&OpKind::Gather { axis: 0 }, &[&x, &indices(&[5], 3, seed)], &[5, 61, 70]);
        check_bits(&OpKind::Gather { axis: 1 }, &[&x, &indices(&[], 61, seed)], &[3, 70]);
        check_bits(&OpKind::Gather { axis: 1 }, &[&x, &indices(&[4, 0], 61, seed)], &[3, 4, 0, 70]);
        if element != F4 {
            check_bits(&OpKind::Gather { axis: 2 }, &[&x, &indices(&[100], 70, seed)], &[3, 61, 100]);
        }
    }
}

#[test]
fn an_index_outside_the_axis_is_an_error_that_names_it() {
    for (dims, taken, bad) in [
        ([3, 4], [2, 4], 3.0),
        ([3, 4], [2, 4], -1.0),
        ([3, 0], [2, 0], 2_147_483_647.0),
        ([0, 4], [2, 4], 0.0),
    ] {
        let x = bits(F32, &dims, None, 1);
        let good = if dims[0] == 0 { -5.0 } else { 2.0 };
        let indices = Tensor::from_f64(I32, vec![2], None, &[good, bad]).unwrap();
        let kind = OpKind::Gather { axis: 0 };
        let program = program(&kind, &[&x, &indices], &[(F32, &taken, None)]);
        let op = program.module().ops.keys().next().unwrap();
        let symbols = SymbolValues::default();
        let (position, index) = if good < 0.0 { (0, -5) } else { (1, bad as i32) };
        let found = run_op(&program, op, &[&x, &indices], &symbols).unwrap_err();
        assert_eq!(found, FallbackError::Index { position, index, axis: 0, extent: dims[0] });
        let meant = interpret_op(&program, op, &[&x, &indices], &symbols).unwrap_err();
        let place = "%out0 = gather".to_owned();
        assert_eq!(meant, InterpretError::Index { place, position, index, axis: 0, extent: dims[0] });
    }
}

#[test]
fn paddings_equal_the_interpreter() {
    let pad = |amounts: &[(u32, u64, u64)], value: f64| {
        let amount = |&(axis, low, high): &(u32, u64, u64)| PadAmount { axis, low, high };
        OpKind::Pad { amounts: amounts.iter().map(amount).collect(), value }
    };
    for (index, (element, layout)) in MOVED.into_iter().enumerate() {
        if layout.is_some() {
            continue;
        }
        let x = bits(element, &[3, 40, 66], None, index as u64);
        for value in [0.0, 1.0, -0.0] {
            check_bits(&pad(&[(0, 1, 2), (2, 2, 4)], value), &[&x], &[6, 40, 72]);
        }
        check_bits(&pad(&[(1, 0, 90)], 1.0), &[&x], &[3, 130, 66]);
        check_bits(&pad(&[(0, 0, 1)], 1.0), &[&bits(element, &[0, 4], None, 1)], &[1, 4]);
        check_bits(&pad(&[(1, 2, 2)], 1.0), &[&bits(element, &[4, 0], None, 1)], &[4, 4]);
        check_bits(&pad(&[], 1.0), &[&x], &[3, 40, 66]);
    }
    for value in [0.1, f64::NAN, -f64::NAN, f64::INFINITY, 1e300] {
        for element in [F4, E4M3, E5M2, F16, BF16, F32] {
            let x = sample(element, &[2, 6], 5);
            check(&pad(&[(0, 1, 0)], value), &[&x], &[(element, &[3, 6], None)]);
        }
    }
    check_bits(&pad(&[], 3.0), &[&f32s(&[], &[-0.0])], &[]);
}

#[test]
fn integer_functions_equal_the_interpreter_and_wrap_around() {
    const EDGES: [f64; 8] =
        [-2147483648.0, -2147483647.0, -46341.0, -1.0, 0.0, 1.0, 65_537.0, 2_147_483_647.0];
    let left = Tensor::from_f64(I32, vec![8, 1], None, &EDGES).unwrap();
    let right = Tensor::from_f64(I32, vec![8], None, &EDGES).unwrap();
    for kind in [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max, BinaryKind::Min] {
        check(&OpKind::Binary(kind), &[&left, &right], &[(I32, &[8, 8], None)]);
        for (index, [left, right, result]) in BROADCASTS.into_iter().enumerate() {
            let (left, right) = (bits(I32, left, None, index as u64), bits(I32, right, None, 9));
            check(&OpKind::Binary(kind), &[&left, &right], &[(I32, result, None)]);
        }
    }
    for predicate in Predicate::ALL {
        check(&OpKind::Compare(*predicate), &[&left, &right], &[(I1, &[8, 8], None)]);
    }
    let condition = bits(I1, &[8, 8], None, 3);
    check(&OpKind::Select, &[&condition, &left, &right], &[(I32, &[8, 8], None)]);
}

/// An empty tensor may have any extents beside its zero.
#[test]
fn extents_of_empty_tensors_are_unbounded() {
    const HUGE: u64 = 1 << 61;
    let mut builder = Builder::new("main");
    let n = builder.symbol("N");
    let twice = Dim::fixed(2).times(&n).unwrap();
    let ty = |dims: &[Dim]| TensorType::new(dims.to_vec(), F32);
    let [zero, one, three] = [0, 1, 3].map(Dim::fixed);
    let x = builder.input("x", ty(&[zero.clone(), n.clone(), n.clone()]));
    let at = builder.input("at", TensorType::new(vec![three.clone()], I32));
    let mut op = |kind, operands: &[Value], dims: &[Dim]| builder.op(kind, operands, &[("", ty(dims))])[0];
    let outputs = [
        op(OpKind::Concat { axis: 1 }, &[x, x], &[zero.clone(), twice, n.clone()]),
        op(OpKind::Concat { axis: 2 }, &[x], &[zero.clone(), n.clone(), n.clone()]),
        op(OpKind::Gather { axis: 1 }, &[x, at], &[zero.clone(), three, n.clone()]),
        op(slice(&[(0, 0, 0, 1)]), &[x], &[zero, n.clone(), n.clone()]),
        op(
            OpKind::Pad { amounts: vec![PadAmount { axis: 0, low: 0, high: 1 }], value: 0.0 },
            &[x],
            &[one, n.clone(), n.clone()],
        ),
    ];
    let program = verify(builder.finish(&outputs)).unwrap_or_else(|invalid| panic!("{:?}", invalid.errors));
    let mut symbols = SymbolValues::default();
    symbols.set(n.symbols()[0], HUGE);
    let x = Tensor::zeros(F32, vec![0, HUGE as usize, HUGE as usize], None).unwrap();
    let at = Tensor::from_f64(I32, vec![3], None, &[0.0, 5.0, 2_147_483_647.0]).unwrap();
    for (op, operation) in program.module().ops.iter() {
        let tensor = |value: &Value| if program.module().ty(*value).element == I32 { &at } else { &x };
        let operands: Vec<&Tensor> = operation.operands.iter().map(tensor).collect();
        let found = run_op(&program, op, &operands, &symbols);
        match operation.kind {
            OpKind::Pad { .. } => assert!(matches!(found, Err(FallbackError::Tensor(_))), "{found:?}"),
            _ => assert_eq!(found.unwrap()[0].count(), 0),
        }
    }
}
