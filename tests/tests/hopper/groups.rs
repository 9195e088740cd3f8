//! Kernels of groups of rows: every distribution of rows to groups, offsets out of range, and all formats.

use std::collections::HashMap;

use fourfold::codegen::hopper::Tile;
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{BlockFormat, ElementType, Entity as _, Tensor, bind, interpret};
use fourfold_tests::built::turn;
use fourfold_tests::random::Random;

use crate::programs::{Program, UNWRITTEN};
use crate::simulation::Simulation;

/// E, the rows of A, N, K and the SMs of a device.
pub type Case = [u64; 5];

const VALUES: &str = "fir 1
func @main(
    %a: tensor<[M, K], CODES_A>, %sfa: tensor<[M, G], LINEAR>, %b: tensor<[L, N, K], CODES_B>,
    %sfb: tensor<[L, N, G], SCALES>, %ends: tensor<[L], i32>, %alpha: tensor<[L], f32>,
    %row: tensor<[N], f32>, %column: tensor<[M, 1], f16>, %matrix: tensor<[M, N], bf16>
) {
  %d = grouped_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[M, N], f32>
  %x = add %d, %row : tensor<[M, N], f32>
  %y = mul %x, %column : tensor<[M, N], f32>
  %narrow = convert %y : tensor<[M, N], bf16>
  %z = add %narrow, %matrix : tensor<[M, N], bf16>
  return %y, %z
}
";

const WEIGHT_ONLY: &str = "fir 1
func @main(
    %a: tensor<[M, K], CODES_A>, %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %ends: tensor<[L], i32>, %alpha: tensor<[], f32>, %column: tensor<[M, 1], f32>
) {
  %d = grouped_scaled_mma %a, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[M, N], f32>
  %y = mul %d, %column : tensor<[M, N], f32>
  return %y
}
";

const PLAIN: &str = "fir 1
func @main(
    %a: tensor<[M, K], CODES_A>, %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>, %ends: tensor<[L], i32>
) {
  %d = grouped_scaled_mma %a, %b, %sfb, %ends {block = BLOCK} : tensor<[M, N], bf16>
  return %d
}
";

/// F is half of N. The even columns of the product are the gate.
const PAIRS: &str = "fir 1
func @main(
    %a: tensor<[M, K], CODES_A>, %sfa: tensor<[M, G], LINEAR>, %b: tensor<[L, N, K], CODES_B>,
    %sfb: tensor<[L, N, G], SCALES>, %ends: tensor<[L], i32>, %alpha: tensor<[L], f32>,
    %row: tensor<[F], f32>, %column: tensor<[M, 1], f16>, %matrix: tensor<[M, F], bf16>
) {
  %d = grouped_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[M, N], f32>
  %gate = slice %d {axes = [1], starts = [0], ends = [N], steps = [2]} : tensor<[M, F], f32>
  %up = slice %d {axes = [1], starts = [1], ends = [N], steps = [2]} : tensor<[M, F], f32>
  %biased = add %gate, %row : tensor<[M, F], f32>
  %active = relu %biased : tensor<[M, F], f32>
  %x = mul %up, %column : tensor<[M, F], f32>
  %y = mul %active, %x : tensor<[M, F], f32>
  %sum = add %y, %matrix : tensor<[M, F], f32>
  %z = convert %sum : tensor<[M, F], bf16>
  return %y, %z
}
";

/// Pairs of columns beside a 16-bit A.
const WIDE_PAIRS: &str = "fir 1
func @main(
    %a: tensor<[M, K], CODES_A>, %b: tensor<[L, N, K], CODES_B>, %sfb: tensor<[L, N, G], SCALES>,
    %ends: tensor<[L], i32>, %alpha: tensor<[], f32>, %column: tensor<[M, 1], f32>
) {
  %d = grouped_scaled_mma %a, %b, %sfb, %ends, alpha = %alpha {block = BLOCK} : tensor<[M, N], f32>
  %gate = slice %d {axes = [1], starts = [0], ends = [N], steps = [2]} : tensor<[M, F], f32>
  %up = slice %d {axes = [1], starts = [1], ends = [N], steps = [2]} : tensor<[M, F], f32>
  %x = mul %up, %column : tensor<[M, F], f32>
  %open = relu %gate : tensor<[M, F], f32>
  %y = mul %open, %x : tensor<[M, F], f32>
  return %y
}
";

const fn scaled(name: &'static str, format: BlockFormat, signature: &'static str) -> Program {
    Program {
        name,
        format,
        signature,
        text: VALUES,
        c: "",
        alpha: "alpha",
        operands: &["row", "column", "matrix"],
        fills: &[UNWRITTEN; 2],
    }
}

const fn weight_only(
    name: &'static str,
    format: BlockFormat,
    text: &'static str,
    alpha: &'static str,
    operands: &'static [&'static str],
    signature: &'static str,
) -> Program {
    Program { name, format, signature, text, c: "", alpha, operands, fills: &[UNWRITTEN; 1] }
}

const PROGRAMS: [Program; 8] = [
    scaled(
        "grouped_nvfp4",
        BlockFormat::NVFP4,
        "nvfp4 grouped_alpha alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
    ),
    scaled(
        "grouped_mxfp4",
        BlockFormat::MXFP4,
        "mxfp4 grouped_alpha alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
    ),
    scaled(
        "grouped_mxfp8_mxfp4",
        BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        "mxfp8 x mxfp4 grouped_alpha alpha row=f32 column=f16 matrix=bf16 d=f32@s1 d=bf16",
    ),
    weight_only(
        "grouped_bf16_nvfp4",
        BlockFormat::NVFP4.weight_only(ElementType::BF16),
        WEIGHT_ONLY,
        "alpha",
        &["column"],
        "bf16 x nvfp4 grouped alpha column=f32 d=f32",
    ),
    weight_only(
        "grouped_bf16_mxfp4",
        BlockFormat::MXFP4.weight_only(ElementType::BF16),
        PLAIN,
        "",
        &[],
        "bf16 x mxfp4 grouped d=bf16",
    ),
    weight_only(
        "grouped_f16_nvfp4",
        BlockFormat::NVFP4.weight_only(ElementType::F16),
        PLAIN,
        "",
        &[],
        "f16 x nvfp4 grouped d=bf16",
    ),
    Program {
        text: PAIRS,
        ..scaled(
            "grouped_nvfp4_pairs",
            BlockFormat::NVFP4,
            "nvfp4 grouped_alpha pair alpha row=f32 column=f16 matrix=bf16 d=f32@s3 d=bf16",
        )
    },
    weight_only(
        "grouped_bf16_mxfp4_pairs",
        BlockFormat::MXFP4.weight_only(ElementType::BF16),
        WIDE_PAIRS,
        "alpha",
        &["column"],
        "bf16 x mxfp4 grouped pair alpha column=f32 d=f32",
    ),
];

/// The tiles of kernels of groups of rows.
pub const TILES: [Tile; 6] = [
    Tile::new(16, 128),
    Tile::new(32, 128),
    Tile::new(64, 128),
    Tile::new(128, 128),
    Tile::new(128, 256),
    Tile::new(256, 128),
];

/// The distribution of rows to groups.
#[derive(Clone, Copy, Debug)]
pub enum Ends {
    /// As many rows for each group as possible, the rest for none.
    Uniform,
    /// All rows for this group.
    OneTakesAll(usize),
    /// Random ends, with empty groups and rows of none.
    Random,
    /// No row for any group.
    Nothing,
    /// Ends that descend, are negative, or exceed the number of rows.
    Invalid,
}

/// Returns the ends of a distribution, and those that the kernel makes of them.
pub fn ends(distribution: Ends, groups: usize, rows: i32, random: &mut Random) -> [Vec<i32>; 2] {
    let given: Vec<i32> = match distribution {
        Ends::Uniform => (1..=groups as i32).map(|group| rows / groups as i32 * group).collect(),
        Ends::OneTakesAll(taker) => (0..groups).map(|group| if group < taker { 0 } else { rows }).collect(),
        Ends::Nothing => vec![0; groups],
        Ends::Random => {
            let mut ends: Vec<i32> = (0..groups).map(|_| random.below(rows as usize + 1) as i32).collect();
            ends.sort_unstable();
            ends
        }
        Ends::Invalid => {
            let wild = |random: &mut Random| match random.below(5) {
                0 => i32::MIN,
                1 => i32::MAX,
                2 => -1,
                _ => random.below(2 * rows as usize + 1) as i32,
            };
            (0..groups).map(|_| wild(random)).collect()
        }
    };
    let mut least = 0;
    let made = given.iter().map(|end| {
        least = least.max((*end).clamp(0, rows));
        least
    });
    let made = made.collect();
    [given, made]
}

pub fn integers(values: &[i32]) -> Tensor {
    let values: Vec<f64> = values.iter().copied().map(f64::from).collect();
    Tensor::from_f64(ElementType::I32, vec![values.len()], None, &values).expect("a tensor")
}

/// Runs a case and compares every output with the interpreter's.
fn check(
    program: &Program,
    simulation: &Simulation,
    case: Case,
    distribution: Ends,
    tile: Option<Tile>,
    seed: u64,
) {
    let [groups, m, n, k, sms] = case;
    let name = format!("{} {case:?} {distribution:?} {tile:?} seed={seed}", program.name);
    let position = |tile| simulation.tiles.iter().position(|held| *held == tile).expect("it is held");
    let variant = tile.map_or(u64::MAX, |tile| position(tile) as u64);
    let (loaded, _) = fourfold::ir::load(&program.with([groups, m, n, k]))
        .unwrap_or_else(|errors| panic!("{name}: {}", errors[0].message));
    let rule = if k <= 512 { Rule::Exact } else { Rule::Contest };
    let recipe = Recipe { rule, seed, symbols: vec![("M".to_owned(), m)] };
    let mut tensors: HashMap<String, Tensor> = sample::inputs(&loaded, &recipe).expect("inputs");
    let mut random = Random::new(seed);
    let [given, made] = ends(distribution, groups as usize, m as i32, &mut random);
    if (k / u64::from(program.format.block)).is_multiple_of(4) {
        // NaN in the padding below the last row of a matrix has no effect.
        tensors.get_mut("sfb").into_iter().for_each(sample::fill_padding_with_nan);
    }
    tensors.insert("ends".to_owned(), integers(&made));
    let values = interpret(&loaded, &bind::bind(&loaded, &tensors).expect("all inputs")).expect("values");
    let outputs: Vec<&Tensor> =
        loaded.module().outputs.iter().map(|output| &values[output.index()]).collect();
    tensors.insert("ends".to_owned(), integers(&given));
    let got = program.run(simulation, &name, [groups, m, n, k, sms, seed, variant], &tensors, &outputs);
    let mut rest = &got[crate::simulation::SAID..];
    for (index, output) in outputs.iter().enumerate() {
        let (got, after) = rest.split_at(output.bytes().len());
        let differs = got.iter().zip(output.bytes()).position(|(got, expected)| got != expected);
        assert_eq!(differs, None, "{name}: byte of output {index}, {:?}, ends {given:?}", output.dims());
        rest = after;
    }
}

fn check_all(program: &Program) {
    assert_eq!(program.text.contains("LINEAR"), !program.format.is_weight_only());
    let simulation = program.build(program.name, TILES.to_vec(), None);
    let cases: [(Case, Ends); 15] = [
        ([1, 1, 32, 32, 132], Ends::Uniform),
        ([1, 70, 160, 288, 4], Ends::Uniform),
        ([8, 8, 96, 160, 132], Ends::Uniform),
        ([8, 133, 288, 96, 3], Ends::Uniform),
        ([8, 150, 160, 1056, 2], Ends::OneTakesAll(3)),
        ([32, 32, 64, 288, 5], Ends::Uniform),
        ([32, 300, 96, 64, 132], Ends::Random),
        ([128, 128, 32, 64, 7], Ends::Uniform),
        ([128, 90, 32, 96, 24], Ends::Random),
        ([40, 200, 416, 32, 2], Ends::Random),
        ([6, 40, 64, 512, 2], Ends::Nothing),
        ([33, 257, 32, 160, 5], Ends::Invalid),
        ([256, 256, 32, 288, 132], Ends::Uniform),
        ([300, 310, 32, 32, 11], Ends::Random),
        ([512, 64, 32, 32, 3], Ends::Invalid),
    ];
    for (seed, (case, distribution)) in cases.into_iter().enumerate() {
        // Half of the cases have the tile of the table, and other programs another half.
        let turn = seed + program.name.len();
        let tile = turn.is_multiple_of(2).then(|| TILES[turn / 2 % TILES.len()]);
        check(program, &simulation, case, distribution, tile, seed as u64);
    }
    for tile in TILES {
        check(program, &simulation, [5, 139, 288, 416, 3], Ends::Random, Some(tile), 90);
        check(program, &simulation, [3, 139, 32, 2080, 2], Ends::OneTakesAll(2), Some(tile), 91);
    }
}

#[test]
fn grouped_values_of_nvfp4_are_the_interpreter_s() {
    check_all(&PROGRAMS[0]);
}

#[test]
fn grouped_values_of_mx_are_the_interpreter_s() {
    PROGRAMS[1..3].iter().for_each(check_all);
}

#[test]
fn grouped_values_of_weight_only_products_are_the_interpreter_s() {
    PROGRAMS[3..6].iter().for_each(check_all);
}

#[test]
fn pairs_of_columns_of_groups_are_the_interpreter_s() {
    check_all(&PROGRAMS[6 + turn() % 2]);
}

/// Plants faults in the kernels, each of which the simulation must find.
#[test]
fn faults_of_groups_are_found() {
    let (many, invalid) = ([8, 150, 160, 288, 3], [33, 257, 32, 160, 5]);
    let (scaled, wide) = (&PROGRAMS[0], &PROGRAMS[3]);
    let faults: [(&Program, &str, &str, Case, Ends); 9] = [
        // The rows of another group, its tiles, and its scales of B.
        (
            scaled,
            "store_word(smem.row_of_group(group + 1), next);",
            "store_word(smem.row_of_group(group + 1), row);",
            many,
            Ends::Random,
        ),
        (scaled, "first_tile + load_word(", "load_word(", many, Ends::Random),
        (scaled, "work.batch * p.atoms_n + min(", "work.batch + min(", many, Ends::Random),
        // Rows of the next group stored, and the alpha of another group.
        (scaled, "return kGrouped ? tile.end_row : p.m;", "return p.m;", many, Ends::Random),
        (scaled, "tile.batch, tile.batch < p.groups);", "0, tile.batch < p.groups);", many, Ends::Random),
        // Ends that are not made valid.
        (
            scaled,
            "min(max(static_cast<int>(ends[i]), 0), most)",
            "static_cast<int>(ends[i])",
            invalid,
            Ends::Invalid,
        ),
        (
            scaled,
            "int const next = max(row, static_cast<int>(load_word(",
            "int const next = max(0, static_cast<int>(load_word(",
            invalid,
            Ends::Invalid,
        ),
        // Scales of another row of A, and elements of a 16-bit A in another order.
        (
            scaled,
            "static_cast<int64_t>(row) * of_row + at;",
            "static_cast<int64_t>(row ^ 1) * of_row + at;",
            many,
            Ends::Random,
        ),
        (wide, "arrange_words(word[0], word[1],", "arrange_words(word[1], word[0],", many, Ends::Random),
    ];
    let tile = Tile::new(64, 128);
    let device = crate::simulation::device_text();
    for (_, what, by, ..) in &faults {
        crate::simulation::without(&device, what, by);
    }
    for (index, (program, what, by, case, distribution)) in faults.into_iter().enumerate() {
        let simulation = program.build(&format!("wrong_groups_{index}"), vec![tile], Some((what, by)));
        let fails = |seed| {
            let run = || check(program, &simulation, case, distribution, Some(tile), seed);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        };
        assert!((0..32).any(fails), "{what}");
    }
}
