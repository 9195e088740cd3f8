//! Kernels of groups that use some rows of a matrix each: every distribution of counts, and counts out of range.

use std::collections::HashMap;

use fourfold::codegen::hopper::Tile;
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{BlockFormat, ElementType, Entity as _, ScaleLayout, Tensor, bind, interpret, numeric};
use fourfold_tests::random::Random;

use crate::padded::moved;
use crate::programs::{Program, UNWRITTEN};
use crate::simulation::{SAID, Simulation};

/// E, the rows of a matrix of A, N, K and the SMs of a device.
type Case = [u64; 5];

const VALUES: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], LINEAR>, %b: tensor<[L, N, K], CODES_B>,
    %sfb: tensor<[L, N, G], SCALES>, %ends: tensor<[L], i32>, %alpha: tensor<[L], f32>,
    %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>, %matrix: tensor<[L, M, N], bf16>
) {
  %d = masked_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %narrow = convert %y : tensor<[L, M, N], bf16>
  %z = add %narrow, %matrix : tensor<[L, M, N], bf16>
  return %y, %z
}
";

/// The same with a buffer of blocked scales for each matrix of A.
const BLOCKED: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %sfa: tensor<[L, M, G], SCALES>, %b: tensor<[L, N, K], CODES_B>,
    %sfb: tensor<[L, N, G], SCALES>, %ends: tensor<[L], i32>, %alpha: tensor<[L], f32>,
    %row: tensor<[N], f32>, %column: tensor<[L, M, 1], f16>, %matrix: tensor<[L, M, N], bf16>
) {
  %d = masked_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[L, M, N], f32>
  %x = add %d, %row : tensor<[L, M, N], f32>
  %y = mul %x, %column : tensor<[L, M, N], f32>
  %narrow = convert %y : tensor<[L, M, N], bf16>
  %z = add %narrow, %matrix : tensor<[L, M, N], bf16>
  return %y, %z
}
";

/// F is half of N. The even columns of the product are the gate.
const PAIRS: &str = "fir 1
func @main(
    %a: tensor<[L, M, K], CODES_A>, %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %ends: tensor<[L], i32>, %alpha: tensor<[], f32>
) {
  %d = masked_scaled_mma %a, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[L, M, N], f32>
  %gate = slice %d {axes = [2], starts = [0], ends = [N], steps = [2]} : tensor<[L, M, F], f32>
  %up = slice %d {axes = [2], starts = [1], ends = [N], steps = [2]} : tensor<[L, M, F], f32>
  %active = relu %gate : tensor<[L, M, F], f32>
  %y = mul %active, %up : tensor<[L, M, F], f32>
  return %y
}
";

const PROGRAMS: [Program; 5] = [
    Program {
        name: "masked_nvfp4",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 masked_alpha alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
        text: VALUES,
        c: "",
        alpha: "alpha",
        operands: &["row", "column", "matrix"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "masked_mxfp8_mxfp4",
        format: BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        signature: "mxfp8 x mxfp4 masked_alpha alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
        text: VALUES,
        c: "",
        alpha: "alpha",
        operands: &["row", "column", "matrix"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "masked_nvfp4_blocked",
        format: BlockFormat::NVFP4,
        signature: "nvfp4 masked_alpha blocked alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
        text: BLOCKED,
        c: "",
        alpha: "alpha",
        operands: &["row", "column", "matrix"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "masked_mxfp8_mxfp4_blocked",
        format: BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        signature: "mxfp8 x mxfp4 masked_alpha blocked alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
        text: BLOCKED,
        c: "",
        alpha: "alpha",
        operands: &["row", "column", "matrix"],
        fills: &[UNWRITTEN; 2],
    },
    Program {
        name: "masked_bf16_mxfp4_pairs",
        format: BlockFormat::MXFP4.weight_only(ElementType::BF16),
        signature: "bf16 x mxfp4 masked pair alpha d=f32",
        text: PAIRS,
        c: "",
        alpha: "alpha",
        operands: &[],
        fills: &[UNWRITTEN; 1],
    },
];

/// The tiles of kernels of groups of rows.
const TILES: [Tile; 5] =
    [Tile::new(16, 128), Tile::new(32, 128), Tile::new(64, 128), Tile::new(128, 128), Tile::new(128, 256)];

/// The rows that groups use of their matrices.
#[derive(Clone, Copy, Debug)]
enum Counts {
    /// No row.
    Nothing,
    /// All rows.
    All,
    /// All rows of one matrix.
    One(usize),
    /// One row of each.
    Single,
    /// Random numbers, half of them 0.
    Random,
    /// Numbers that are negative or exceed the rows.
    Invalid,
}

/// Returns the counts of a distribution, and those that the kernel makes of them.
fn counts(distribution: Counts, groups: usize, rows: i32, random: &mut Random) -> [Vec<i32>; 2] {
    let mut one = |group: usize| match distribution {
        Counts::Nothing => 0,
        Counts::All => rows,
        Counts::One(taker) => {
            if group == taker {
                rows
            } else {
                0
            }
        }
        Counts::Single => 1,
        Counts::Random if random.percent(50) => 0,
        Counts::Random => random.below(rows as usize + 1) as i32,
        Counts::Invalid => match random.below(5) {
            0 => i32::MIN,
            1 => i32::MAX,
            2 => -1,
            _ => random.below(2 * rows as usize + 1) as i32,
        },
    };
    let given: Vec<i32> = (0..groups).map(&mut one).collect();
    let made = given.iter().map(|count| (*count).clamp(0, rows)).collect();
    [given, made]
}

fn integers(values: &[i32]) -> Tensor {
    let values: Vec<f64> = values.iter().copied().map(f64::from).collect();
    Tensor::from_f64(ElementType::I32, vec![values.len()], None, &values).expect("a tensor")
}

/// Sets the rows of matrices that belong to no group to bytes that are NaN, or the largest codes.
fn poison(tensor: &mut Tensor, made: &[i32], rows: usize) {
    if tensor.layout() == Some(ScaleLayout::Blocked) {
        return poison_blocked(tensor, made, rows);
    }
    let row = tensor.bytes().len() / (made.len() * rows);
    for (group, count) in made.iter().enumerate() {
        let from = (group * rows + *count as usize) * row;
        tensor.bytes_mut()[from..(group + 1) * rows * row].fill(0x7F);
    }
}

/// The same for a buffer of blocked scales for each matrix. The padding below the rows is NaN, too, if none lies beside them.
fn poison_blocked(scales: &mut Tensor, made: &[i32], rows: usize) {
    let columns = scales.dims()[2];
    let matrix = numeric::blocked_len(rows, columns);
    for (group, count) in made.iter().enumerate() {
        for row in *count as usize..rows {
            for column in 0..columns {
                let at = group * matrix + numeric::blocked_offset(row, column, columns);
                scales.bytes_mut()[at] = if scales.element() == ElementType::F8E8M0FNU { 0xFF } else { 0x7F };
            }
        }
    }
    if columns.is_multiple_of(4) {
        sample::fill_padding_with_nan(scales);
    }
}

/// Runs a case. Compares the rows that groups use with the interpreter's; the others must not be written.
fn check(
    program: &Program,
    simulation: &Simulation,
    case: Case,
    distribution: Counts,
    tile: Option<Tile>,
    seed: u64,
) {
    let [groups, rows, n, k, sms] = case;
    let name = format!("{} {case:?} {distribution:?} {tile:?} seed={seed}", program.name);
    let position = |tile| simulation.tiles.iter().position(|held| *held == tile).expect("it is held");
    let variant = tile.map_or(u64::MAX, |tile| position(tile) as u64);
    let (loaded, _) = fourfold::ir::load(&program.with([groups, rows, n, k]))
        .unwrap_or_else(|errors| panic!("{name}: {}", errors[0].message));
    let rule = if k <= 512 { Rule::Exact } else { Rule::Contest };
    let recipe = Recipe { rule, seed, symbols: vec![("M".to_owned(), rows)] };
    let mut tensors: HashMap<String, Tensor> = sample::inputs(&loaded, &recipe).expect("inputs");
    let mut random = Random::new(seed);
    let [given, made] = counts(distribution, groups as usize, rows as i32, &mut random);
    if program.text == BLOCKED && program.format.a == ElementType::F8E4M3FN && seed % 2 == 1 {
        // Elements that bf16 cannot hold: sums are computed again.
        for (name, by) in [("sfa", 120), ("sfb", -120)] {
            let scales = moved(&tensors[name], by);
            tensors.insert(name.to_owned(), scales);
        }
    }
    for matrices in ["a", "sfa", "column", "matrix"] {
        tensors.get_mut(matrices).into_iter().for_each(|it| poison(it, &made, rows as usize));
    }
    tensors.insert("ends".to_owned(), integers(&made));
    let values = interpret(&loaded, &bind::bind(&loaded, &tensors).expect("all inputs")).expect("values");
    let outputs: Vec<&Tensor> =
        loaded.module().outputs.iter().map(|output| &values[output.index()]).collect();
    tensors.insert("ends".to_owned(), integers(&given));
    let numbers = [groups, groups * rows, n, k, sms, seed, variant];
    let got = program.run(simulation, &name, numbers, &tensors, &outputs);
    let mut rest = &got[SAID..];
    for (index, output) in outputs.iter().enumerate() {
        let (got, after) = rest.split_at(output.bytes().len());
        let row = got.len() / (groups * rows) as usize;
        let is_used = |at: usize| {
            let (group, place) = (at / row / rows as usize, at / row % rows as usize);
            place < made[group] as usize
        };
        let expected = |at: usize| if is_used(at) { output.bytes()[at] } else { UNWRITTEN };
        let differs = (0..got.len()).find(|at| got[*at] != expected(*at));
        assert_eq!(differs, None, "{name}: byte of output {index}, {:?}, counts {given:?}", output.dims());
        rest = after;
    }
}

#[test]
fn rows_that_groups_use_are_the_interpreter_s_and_others_are_not_written() {
    let cases: [(Case, Counts); 12] = [
        ([1, 1, 32, 32, 132], Counts::All),
        ([1, 70, 160, 288, 4], Counts::Random),
        ([1, 9, 96, 96, 4], Counts::Nothing),
        ([8, 9, 96, 160, 132], Counts::Single),
        ([8, 33, 288, 96, 3], Counts::All),
        ([8, 40, 160, 1056, 2], Counts::One(3)),
        ([32, 16, 64, 288, 5], Counts::Random),
        ([32, 20, 32, 64, 132], Counts::Nothing),
        ([128, 7, 32, 64, 7], Counts::Single),
        ([128, 5, 32, 96, 24], Counts::Random),
        ([33, 17, 32, 160, 5], Counts::Invalid),
        ([512, 3, 32, 32, 3], Counts::Invalid),
    ];
    for program in &PROGRAMS {
        let simulation = program.build(program.name, TILES.to_vec(), None);
        for (seed, (case, distribution)) in cases.into_iter().enumerate() {
            // The selected tile, or another one in turn.
            let number = seed + program.name.len();
            let tile = (number % 2 == 0).then(|| TILES[number / 2 % TILES.len()]);
            check(program, &simulation, case, distribution, tile, seed as u64);
        }
        for (number, tile) in TILES.into_iter().enumerate() {
            match (number + program.name.len()) % 2 {
                0 => check(program, &simulation, [3, 139, 160, 288, 3], Counts::Random, Some(tile), 90),
                _ => check(program, &simulation, [3, 139, 32, 2080, 2], Counts::One(2), Some(tile), 91),
            }
        }
    }
}

/// Plants faults in the kernels, each of which the simulation must find.
#[test]
fn faults_of_counts_are_found() {
    let many = [8, 40, 160, 288, 3];
    let faults: [(&str, &str, Counts); 8] = [
        // The rows of another group's matrix, rows that it does not use, and its tiles.
        ("int const row = kMasked ? group * p.group_rows", "int const row = kMasked ? group", Counts::Random),
        ("+ (kMasked ? row : 0);", "+ (kMasked ? row + 1 : 0);", Counts::Random),
        ("tiles += tiles_of(load_word(smem.row_of_group(group + 1)));", "tiles += tiles_of(1);", Counts::All),
        // Counts that are not made valid.
        ("int const most = kMasked ? p.group_rows : p.m;", "int const most = p.m;", Counts::Invalid),
        // Rows that are not decoded, and the counts of other groups.
        (
            "static_cast<int>(m) < static_cast<int>(",
            "static_cast<int>(m) + 1 < static_cast<int>(",
            Counts::All,
        ),
        ("load_ordered(p.counts + batch)", "load_ordered(p.counts + batch / 2)", Counts::Random),
        // Blocked scales of another matrix, and of other rows where a sum is computed again.
        ("static_cast<int64_t>(batch) * p.atoms_m + m / 128", "m / 128", Counts::Random),
        ("kMasked ? m - batch * p.group_rows : m;", "m;", Counts::Random),
    ];
    let tile = Tile::new(32, 128);
    for (index, (what, by, distribution)) in faults.into_iter().enumerate() {
        let program = if index < 6 { &PROGRAMS[0] } else { &PROGRAMS[3] };
        let simulation = program.build(&format!("wrong_counts_{index}"), vec![tile], Some((what, by)));
        let fails = |seed| {
            let run = || check(program, &simulation, many, distribution, Some(tile), seed);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        };
        assert!((0..16).any(fails), "{what}");
    }
}
