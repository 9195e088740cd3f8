//! Kernels of groups of rows whose scales of A have whole tiles for each group.

use std::collections::HashMap;

use fourfold::codegen::hopper::Tile;
use fourfold::ir::sample::{self, Recipe, Rule};
use fourfold::ir::{BlockFormat, ElementType, Entity as _, ScaleLayout, Tensor, bind, interpret, numeric};
use fourfold_tests::random::Random;

use crate::groups::{Case, Ends, TILES, ends, integers};
use crate::programs::{Program, UNWRITTEN};
use crate::simulation::{SAID, Simulation};

/// R is the number of rows of scales.
const VALUES: &str = "fir 1
func @main(
    %a: tensor<[M, K], CODES_A>, %sfa: tensor<[R, G], SCALES>, %b: tensor<[L, N, K], CODES_B>,
    %sfb: tensor<[L, N, G], SCALES>, %ends: tensor<[L], i32>, %sfa_ends: tensor<[L], i32>, %alpha: tensor<[L], f32>,
    %column: tensor<[M, 1], f16>
) {
  %d = grouped_scaled_mma %a, %sfa, %b, %sfb, %ends, alpha = %alpha, sfa_ends = %sfa_ends {block = BLOCK} : tensor<[M, N], f32>
  %y = mul %d, %column : tensor<[M, N], f32>
  return %y
}
";

const fn program(name: &'static str, format: BlockFormat, signature: &'static str) -> Program {
    let (operands, fills): (&[&str], &[u8]) = (&["column"], &[UNWRITTEN]);
    Program { name, format, signature, text: VALUES, c: "", alpha: "alpha", operands, fills }
}

const PROGRAMS: [Program; 3] = [
    program("padded_nvfp4", BlockFormat::NVFP4, "nvfp4 grouped_alpha blocked alpha column=f16 d=f32"),
    program("padded_mxfp4", BlockFormat::MXFP4, "mxfp4 grouped_alpha blocked alpha column=f16 d=f32"),
    program(
        "padded_mxfp8_mxfp4",
        BlockFormat { a: ElementType::F8E4M3FN, ..BlockFormat::MXFP4 },
        "mxfp8 x mxfp4 grouped_alpha blocked alpha column=f16 d=f32",
    ),
];

/// The ends of groups in the scales, some of which have a tile too many.
fn padded(made: &[i32], random: &mut Random) -> Vec<i32> {
    let (mut before, mut end) = (0, 0);
    let padded = made.iter().map(|made| {
        end += (made - before + 127) / 128 * 128 + if random.percent(30) { 128 } else { 0 };
        before = *made;
        end
    });
    padded.collect()
}

/// Sets the scales of rows of no group to NaN, and the padding of rows if no padding lies beside them.
fn poison(sfa: &mut Tensor, made: &[i32], padded: &[i32]) {
    let nan = if sfa.element() == ElementType::F8E8M0FNU { 0xFF } else { 0x7F };
    let columns = sfa.dims()[1];
    let begins = |ends: &[i32]| [&[0], &ends[..ends.len() - 1]].concat();
    let (rows, first) = (begins(made), begins(padded));
    let is_used = |row: i32| (0..made.len()).any(|at| (0..made[at] - rows[at]).contains(&(row - first[at])));
    for row in 0..sfa.dims()[0] {
        if !is_used(row as i32) {
            for column in 0..columns {
                sfa.bytes_mut()[numeric::blocked_offset(row, column, columns)] = nan;
            }
        }
    }
    if columns.is_multiple_of(4) {
        sample::fill_padding_with_nan(sfa);
    }
}

/// Adds to the exponents of blocked scales.
pub fn moved(scales: &Tensor, by: i16) -> Tensor {
    let codes = scales.to_codes().into_iter().map(|code| (i16::from(code) + by) as u8).collect();
    let dims = scales.dims().to_vec();
    Tensor::from_codes(scales.element(), dims, Some(ScaleLayout::Blocked), codes).expect("a tensor")
}

/// A case, its distribution of rows, and the number that moves exponents of scales.
type Run = (Case, Ends, i16);

/// The operands of a case, and the ends that are given to the kernel.
struct Operands {
    loaded: fourfold::ir::Program,
    tensors: HashMap<String, Tensor>,
    given: Vec<i32>,
}

/// `exponent` moves the scales of A up and those of B down.
fn operands(program: &Program, case: Case, distribution: Ends, seed: u64, exponent: i16) -> Operands {
    let [groups, m, n, k, _] = case;
    let (loaded, _) = fourfold::ir::load(&program.with([groups, m, n, k])).expect("a program");
    let mut random = Random::new(seed);
    let [given, made] = ends(distribution, groups as usize, m as i32, &mut random);
    let padded = padded(&made, &mut random);
    // A part of a tile may follow the last group.
    let rows = padded[padded.len() - 1] as u64 + random.pick(&[0, 0, 5, 130]);
    let rule = if k <= 512 { Rule::Exact } else { Rule::Contest };
    let recipe = Recipe { rule, seed, symbols: vec![("M".to_owned(), m), ("R".to_owned(), rows)] };
    let mut tensors = sample::inputs(&loaded, &recipe).expect("inputs");
    if exponent != 0 {
        for (name, by) in [("sfa", exponent), ("sfb", -exponent)] {
            let scales = moved(&tensors[name], by);
            tensors.insert(name.to_owned(), scales);
        }
    }
    poison(tensors.get_mut("sfa").expect("an input"), &made, &padded);
    tensors.insert("ends".to_owned(), integers(&made));
    tensors.insert("sfa_ends".to_owned(), integers(&padded));
    Operands { loaded, tensors, given }
}

/// Runs a case and compares the output with the interpreter's.
fn check(
    program: &Program,
    simulation: &Simulation,
    (case, distribution, exponent): Run,
    tile: Option<Tile>,
    seed: u64,
) {
    let [groups, m, n, k, sms] = case;
    let name = format!("{} {case:?} {distribution:?} {tile:?} seed={seed}", program.name);
    let position = |tile| simulation.tiles.iter().position(|held| *held == tile).expect("it is held");
    let variant = tile.map_or(u64::MAX, |tile| position(tile) as u64);
    let Operands { loaded, mut tensors, given } = operands(program, case, distribution, seed, exponent);
    let values = interpret(&loaded, &bind::bind(&loaded, &tensors).expect("all inputs")).expect("values");
    let output = &values[loaded.module().outputs[0].index()];
    assert!(output.to_f32().iter().all(|value| value.is_finite()), "{name}");
    tensors.insert("ends".to_owned(), integers(&given));
    let got = program.run(simulation, &name, [groups, m, n, k, sms, seed, variant], &tensors, &[output]);
    let differs = got[SAID..].iter().zip(output.bytes()).position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "{name}: byte of {:?}, ends {given:?}", output.dims());
}

const CASES: [Run; 12] = [
    ([1, 1, 32, 32, 132], Ends::Uniform, 0),
    ([1, 140, 160, 288, 4], Ends::Uniform, 0),
    ([8, 8, 96, 160, 132], Ends::Uniform, 0),
    ([8, 150, 160, 1056, 2], Ends::OneTakesAll(3), 0),
    ([32, 300, 96, 64, 132], Ends::Random, 0),
    ([33, 257, 32, 160, 5], Ends::Random, 0),
    ([128, 90, 32, 96, 24], Ends::Random, 0),
    ([40, 200, 416, 32, 2], Ends::Random, 0),
    ([6, 40, 64, 512, 2], Ends::Nothing, 0),
    ([33, 257, 32, 160, 5], Ends::Invalid, 0),
    ([300, 310, 32, 32, 11], Ends::Random, 0),
    ([512, 64, 32, 32, 3], Ends::Invalid, 0),
];

#[test]
fn products_with_whole_tiles_of_scales_are_the_interpreter_s() {
    for program in &PROGRAMS {
        let simulation = program.build(program.name, TILES.to_vec(), None);
        for (seed, case) in CASES.into_iter().enumerate() {
            let number = seed + program.name.len();
            let tile = (number % 2 == 0).then(|| TILES[number / 2 % TILES.len()]);
            check(program, &simulation, case, tile, seed as u64);
        }
        // Elements that bf16 cannot hold: sums are computed again.
        if program.format.a == ElementType::F8E4M3FN {
            for (seed, exponent) in [(20, 120), (21, 119)] {
                check(program, &simulation, ([7, 139, 96, 160, 3], Ends::Random, exponent), None, seed);
            }
        }
    }
}

/// Wrong ends in the scales give wrong scales, but no access out of bounds: memory ends at a page that cannot be read.
#[test]
fn wrong_ends_in_scales_read_within_them() {
    let program = &PROGRAMS[2];
    let simulation = program.build("padded_wrong", TILES.to_vec(), None);
    let case = [33, 257, 32, 160, 5];
    for seed in 0..6 {
        let Operands { loaded, mut tensors, given } =
            operands(program, case, Ends::Random, seed, if seed % 2 == 0 { 0 } else { 120 });
        let values = interpret(&loaded, &bind::bind(&loaded, &tensors).expect("inputs")).expect("values");
        let mut random = Random::new(seed);
        let wild = given.iter().map(|_| match random.below(4) {
            0 => i32::MIN,
            1 => i32::MAX,
            2 => -1,
            _ => random.below(9000) as i32,
        });
        tensors.insert("sfa_ends".to_owned(), integers(&wild.collect::<Vec<i32>>()));
        if seed > 3 {
            let dims = vec![0, tensors["sfa"].dims()[1]];
            let none = Tensor::new(ElementType::F8E8M0FNU, dims, Some(ScaleLayout::Blocked), Vec::new());
            tensors.insert("sfa".to_owned(), none.expect("a tensor"));
        }
        let numbers = [33, 257, 32, 160, 5, seed, u64::MAX];
        let output = &values[loaded.module().outputs[0].index()];
        let got = program.run(&simulation, "wrong ends", numbers, &tensors, &[output]);
        assert_ne!(&got[SAID..], output.bytes(), "wrong ends make a difference");
    }
}

/// Plants faults in the kernels, each of which the simulation must find.
#[test]
fn faults_of_padded_scales_are_found() {
    let many = ([40, 290, 96, 288, 3], Ends::Random, 0);
    let invalid = ([33, 257, 32, 160, 5], Ends::Invalid, 0);
    let one = ([8, 150, 160, 288, 2], Ends::OneTakesAll(3), 0);
    let wide = ([7, 139, 96, 160, 3], Ends::Random, 120);
    let (narrow, bytes) = (&PROGRAMS[0], &PROGRAMS[2]);
    let faults: [(&Program, &str, &str, Run); 9] = [
        // The scales of the next row, of another group, and of rows before the group.
        (
            narrow,
            "static_cast<int>(first + (row - begin))",
            "static_cast<int>(first + (row - begin) + 1)",
            one,
        ),
        (
            narrow,
            "load_ordered(sfa_ends + group - 1) : 0;\n    end",
            "load_ordered(sfa_ends + group) : 0;\n    end",
            many,
        ),
        (
            narrow,
            "uint32_t const of_begin = lane() == 0 ? before : previous;",
            "uint32_t const of_begin = previous;",
            many,
        ),
        // The groups after the first 32, and the rows of other lanes.
        (narrow, "before = __shfl_sync(kWarp, static_cast<uint32_t>(end), 31, 32);", "before = 0;", many),
        (narrow, "if (__ballot_sync(kWarp, !is_found) == 0) {", "if (next == 0) {", many),
        (narrow, "32 / kRows * i, 32);", "0, 32);", many),
        // Ends that do not ascend.
        (
            narrow,
            "end = lane() < distance ? end : max(end, other);",
            "end = lane() < distance ? end : other;",
            invalid,
        ),
        // Sums computed again.
        (bytes, "begin = max(begin, static_cast<int>(load_ordered(offsets + before)));", "begin = 0;", wide),
        (
            bytes,
            "uint32_t const first = group > 0 ? load_ordered(sfa_ends + group - 1)",
            "uint32_t const first = group > 0 ? load_ordered(sfa_ends + group)",
            wide,
        ),
    ];
    let tile = Tile::new(64, 128);
    for (index, (program, what, by, case)) in faults.into_iter().enumerate() {
        let simulation = program.build(&format!("wrong_padded_{index}"), vec![tile], Some((what, by)));
        let fails = |seed| {
            let run = || check(program, &simulation, case, Some(tile), seed);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
        };
        assert!((0..16).any(fails), "{what}");
    }
}
