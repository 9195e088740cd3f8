//! Runs column kernels on the host, and compares their results with the meaning of the reduction.

use fourfold_codegen::columns::ColumnSpec;
use fourfold_codegen::target;
use fourfold_ir::scalar;
use fourfold_ir::{BinaryKind, ElementType, ReduceKind};
use fourfold_scheduler::ColumnProgram;

use super::reference::{Call, Random, Tensor, decode, encode, pack};
use super::simulation::{compile, message, run};

use ElementType::{BF16, F16, F32};

/// O, A, B, C and I of each call: packets and single elements, long and short, one result and many, two groups of
/// reduced axes, and nothing to reduce.
const EXTENTS: [[usize; 5]; 19] = [
    [1, 1, 1, 70001, 1],
    [1, 1, 1, 4096, 1],
    [1, 1, 1, 37, 91],
    [1, 1, 1, 64, 256],
    [1, 1, 1, 3000, 24],
    [1, 1, 1, 2100, 2],
    [3, 1, 1, 37, 5],
    [2, 1, 1, 0, 7],
    [1, 1, 1, 0, 1],
    [1, 1, 1, 1, 13],
    [1, 1, 1, 1, 1],
    [5, 3, 4, 7, 6],
    [2, 300, 3, 7, 8],
    [2, 5, 3, 49, 1],
    [2, 50, 3, 64, 1],
    [4, 1, 3, 40, 1],
    [300, 1, 1, 4, 5],
    [0, 1, 1, 4, 5],
    [1, 0, 2, 3, 4],
];

/// The result, in f64 with ascending indices.
fn reduced(kind: ReduceKind, [o, a, b, c, i]: [usize; 5], values: &[f64]) -> Vec<f64> {
    let of_nothing = match kind {
        ReduceKind::Sum | ReduceKind::Mean | ReduceKind::Amax => 0.0,
        ReduceKind::Max => f64::NEG_INFINITY,
        ReduceKind::Min => f64::INFINITY,
    };
    let mut results = vec![of_nothing; o * b * i];
    for (index, x) in values.iter().enumerate() {
        let (inner, rest) = (index % i, index / i / c);
        let (middle, outer) = (rest % b, rest / b / a);
        let result = &mut results[(outer * b + middle) * i + inner];
        *result = match kind {
            ReduceKind::Sum | ReduceKind::Mean => *result + x,
            ReduceKind::Max => scalar::binary(BinaryKind::Max, *result, *x),
            ReduceKind::Min => scalar::binary(BinaryKind::Min, *result, *x),
            ReduceKind::Amax => scalar::binary(BinaryKind::Max, *result, x.abs()),
        };
    }
    if kind == ReduceKind::Mean {
        results.iter_mut().for_each(|result| *result /= (a * c) as f64);
    }
    results
}

fn call(program: ColumnProgram, extents: [usize; 5], random: &mut Random) -> Call {
    let ColumnProgram { kind, element } = program;
    // In some calls, sums are exact in every order. Others have one infinity or NaN at most, or only extremes.
    let is_sum = matches!(kind, ReduceKind::Sum | ReduceKind::Mean);
    let count = extents.iter().product();
    let mut code = || {
        let is_tame = is_sum || random.below(4) > 0;
        random.code(element, is_tame)
    };
    let mut codes: Vec<u32> = (0..count).map(|_| code()).collect();
    if let Some(last) = codes.len().checked_sub(1).filter(|_| is_sum && random.below(2) == 0) {
        let special = [f64::NEG_INFINITY, f64::INFINITY, f64::NAN][random.below(3) as usize];
        codes[random.below(last as u64 + 1) as usize] = encode(element, special);
    }
    let values: Vec<f64> = codes.iter().map(|code| decode(element, *code)).collect();
    let results: Vec<u32> =
        reduced(kind, extents, &values).into_iter().map(|result| encode(element, result)).collect();
    let tensor = |codes: &[u32], is_close| Tensor { element, bytes: pack(element, codes), is_close };
    Call {
        extents: extents.iter().map(|extent| *extent as i64).collect(),
        operands: vec![tensor(&codes, false)],
        // The kernel rounds a mean to f32 first.
        outputs: vec![tensor(&results, kind == ReduceKind::Mean && element != F32)],
    }
}

fn simulate(kind: ReduceKind, element: ElementType) {
    let program = ColumnProgram { kind, element };
    let spec = ColumnSpec { target: target("sm_90a").expect("a known target"), program };
    let name = spec.name();
    let simulator = compile(&name, &spec.emit().text);
    let mut random = Random(0xC01);
    let mut calls = Vec::new();
    for is_aligned in [true, false] {
        for extents in EXTENTS {
            let title =
                format!("{name} {extents:?} {}", if is_aligned { "aligned" } else { "at an odd address" });
            calls.push((title, call(program, extents, &mut random), is_aligned));
        }
    }
    let input = calls.iter().flat_map(|(_, call, is_aligned)| message(call, *is_aligned)).collect();
    let calls: Vec<(String, &Call)> = calls.iter().map(|(title, call, _)| (title.clone(), call)).collect();
    run(&name, &simulator, input, &calls);
}

#[test]
fn column_kernels_compute_their_reductions() {
    simulate(ReduceKind::Sum, F32);
    simulate(ReduceKind::Mean, BF16);
    simulate(ReduceKind::Amax, BF16);
    simulate(ReduceKind::Max, F16);
}

#[test]
#[ignore = "compiles and simulates fifteen kernels, which takes a minute"]
fn all_column_kernels_compute_their_reductions() {
    for kind in ReduceKind::ALL.iter().copied() {
        for element in [F16, BF16, F32] {
            simulate(kind, element);
        }
    }
}
