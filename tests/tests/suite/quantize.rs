//! Compiles the block quantization of generated kernels for the host and compares it with `ir::numeric` bit for
//! bit.
//!
//! The text is the same on host and device, except for the conversion instructions of a GPU, which plain code
//! replaces here.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fourfold::codegen::row::{element_functions, fp6_functions, nvfp4_functions};
use fourfold::codegen::{
    edge_functions, edges_type, even_functions, formula_functions, formula_type, quantization_functions,
};
use fourfold::ir::ScaleRounding;
use fourfold::ir::numeric::{
    self, CodeFormula, InfinityScale, LeastScale, LeastStep, MxEdges, MxElement, NanScale, Nvfp4Formula,
    ScaleMin, Scaling,
};
use fourfold_tests::random::Random;

const MAIN: &str = r#"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <vector>
#define __device__
#define __forceinline__ inline
#define __noinline__

FUNCTIONS

// The instructions of a GPU that estimates use.
static uint32_t __byte_perm(uint32_t low, uint32_t high, uint32_t selector) {
  uint64_t const bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7u) * 8 & 0xFFu) << 8 * i;
  }
  return result;
}
static uint32_t __vminu2(uint32_t a, uint32_t b) {
  uint32_t const low = (a & 0xFFFFu) < (b & 0xFFFFu) ? a & 0xFFFFu : b & 0xFFFFu;
  return ((a >> 16 < b >> 16 ? a : b) & 0xFFFF0000u) | low;
}
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
struct float4 {
  float x, y, z, w;
};
struct uint4 {
  uint32_t x, y, z, w;
};

// The number of blocks that estimates did not decide.
static size_t exact = 0;

ESTIMATES

// The way to compute codes: `e` for each value, `f` and `p` by estimates for floats and for packed bf16.
static char way;

template <class Blocks, class Values>
Nvfp4Codes estimated(Values const &values, uint32_t amax, float global) {
  if constexpr (std::is_same_v<Blocks, Nvfp4>) {
    return nvfp4(values, amax, nvfp4_tensor(global));
  } else {
    return nvfp4_by<Blocks>(values, amax, global);
  }
}

// The least number of blocks for which estimates must decide, in percent. With fewer, the program ends with 2.
static size_t least;

template <class Blocks>
void estimate(std::vector<float> const &in, std::vector<uint8_t> &out) {
  size_t const blocks = in.size() / 17;
  for (size_t at = 0; at + 17 <= in.size(); at += 17) {
    float const *values = &in[at], global = in[at + 16];
    uint32_t amax = 0, packed[8] = {};
    for (int i = 0; i < 16; ++i) {
      uint32_t const bits = bits_of(values[i]);
      amax = (bits & kMagnitudeBits) > amax ? bits & kMagnitudeBits : amax;
      packed[i / 2] |= bits >> 16 << i % 2 * 16;
    }
    Nvfp4Codes const codes =
        way == 'p' ? estimated<Blocks>(PackedValues{packed}, amax, global) : estimated<Blocks>(FloatValues{values}, amax, global);
    out.push_back(codes.scale);
    for (int i = 0; i < 16; ++i) {
      out.push_back(codes.words[i / 8] >> i % 8 * 4 & 0xFu);
    }
  }
  if ((blocks - exact) * 100 < blocks * least) {
    std::exit(2);
  }
}

// Reads blocks of values and a global scale; writes a scale, and codes one per byte.
template <class Blocks>
void quantize(std::vector<float> const &in, std::vector<uint8_t> &out) {
  if constexpr (Blocks::kBlock == 16) {
    if (way != 'e') {
      return estimate<Blocks>(in, out);
    }
  }
  constexpr int kRecord = Blocks::kBlock + 1, kBits = Blocks::Element::kBits;
  for (size_t at = 0; at + kRecord <= in.size(); at += kRecord) {
    float const global = in[at + Blocks::kBlock];
    uint32_t amax = 0;
    for (int i = 0; i < Blocks::kBlock; ++i) {
      uint32_t const magnitude = bits_of(in[at + i]) & kMagnitudeBits;
      amax = magnitude > amax ? magnitude : amax;
    }
    uint32_t const scale = Blocks::scale(amax, global);
    typename Blocks::Step const step = Blocks::step(scale, amax, global);
    out.push_back(scale);
    for (int i = 0; i < Blocks::kBlock; i += 2) {
      uint32_t const pair = Blocks::codes(in[at + i], in[at + i + 1], step);
      out.push_back(pair & ((1u << kBits) - 1u));
      out.push_back(pair >> kBits);
    }
  }
}

int main(int argc, char **argv) {
  std::vector<float> in;
  float buffer[4096];
  for (size_t count; (count = std::fread(buffer, sizeof(float), 4096, stdin)) > 0;) {
    in.insert(in.end(), buffer, buffer + count);
  }
  std::vector<uint8_t> out;
  way = argv[2][0], least = std::atoi(argv[3]);
  switch (argv[1][0]) {
FORMULAS
    case 'n': quantize<Nvfp4>(in, out); break;
    case '0': quantize<Mx<E2m1, false>>(in, out); break;
    case '1': quantize<Mx<E2m1, true>>(in, out); break;
    case '2': quantize<Mx<E4m3, false>>(in, out); break;
    case '3': quantize<Mx<E4m3, true>>(in, out); break;
    case '4': quantize<Mx<E5m2, false>>(in, out); break;
    case '5': quantize<Mx<E5m2, true>>(in, out); break;
    case '6': quantize<MxEven<E2m1>>(in, out); break;
    case '7': quantize<MxEven<E4m3>>(in, out); break;
    case '8': quantize<MxEven<E5m2>>(in, out); break;
    case 'u': quantize<Mx<E2m3, false>>(in, out); break;
    case 'v': quantize<Mx<E2m3, true>>(in, out); break;
    case 'w': quantize<MxEven<E2m3>>(in, out); break;
    case 'x': quantize<Mx<E3m2, false>>(in, out); break;
    case 'y': quantize<Mx<E3m2, true>>(in, out); break;
    case 'z': quantize<MxEven<E3m2>>(in, out); break;
    default: return argc;
  }
  std::fwrite(out.data(), 1, out.size(), stdout);
}
"#;

/// Returns formulas that differ from the default, each with the name of its case: every combination of the ways in
/// which 6, g and codes enter, with and without guards, and each bound at least once.
fn formulas() -> Vec<(char, Nvfp4Formula)> {
    const BOUNDS: [f32; 6] = [0.0, 0.015625, f32::NEG_INFINITY, -0.0, 448.0, -1.0];
    let scaling = [Scaling::Divide, Scaling::Multiply];
    (0..48usize)
        .map(|index| {
            let formula = Nvfp4Formula {
                scale_min: ScaleMin::new(BOUNDS[index % 5 + index / 24]).expect("the bound is valid"),
                amax: scaling[index % 2],
                global: scaling[index / 2 % 2],
                codes: CodeFormula::ALL[index / 4 % 3],
                guard: index / 12 % 2 == 1,
                ..Nvfp4Formula::DEFAULT
            };
            let name = char::from(b'A' + index as u8);
            (if name < '\\' { name } else { char::from(name as u8 + 1) }, formula)
        })
        .filter(|(name, _)| !"n012345".contains(*name))
        .collect()
}

/// Returns MX formats whose edges differ from the default, each with the name of its case.
fn edges() -> Vec<(char, MxElement, ScaleRounding, MxEdges)> {
    const NAMES: &str = "!#$%&()*+,-./:;<=>?@{|}~";
    const ELEMENTS: [MxElement; 5] =
        [MxElement::E2M1, MxElement::E4M3, MxElement::E5M2, MxElement::E2M3, MxElement::E3M2];
    const ROUNDINGS: [ScaleRounding; 3] = [ScaleRounding::Floor, ScaleRounding::Ceil, ScaleRounding::Even];
    let of_index = |(index, name): (usize, char)| {
        let edges = MxEdges {
            infinity: InfinityScale::ALL[index % 2],
            nan: NanScale::ALL[index / 2 % 3],
            least_scale: LeastScale::of_byte([0, 0, 1, 97, 0xFE][index % 5]).expect("a number"),
            least_step: LeastStep::ALL[(index + 1) % 3],
        };
        (name, ELEMENTS[index / 3 % 5], ROUNDINGS[index % 3], edges)
    };
    NAMES.chars().enumerate().map(of_index).collect()
}

fn format_name(element: MxElement) -> &'static str {
    match element {
        MxElement::E2M1 => "E2m1",
        MxElement::E2M3 => "E2m3",
        MxElement::E3M2 => "E3m2",
        MxElement::E4M3 => "E4m3",
        MxElement::E5M2 => "E5m2",
    }
}

/// Returns the program, compiled once for all tests of this file.
fn program() -> &'static Path {
    static PROGRAM: std::sync::OnceLock<std::path::PathBuf> = std::sync::OnceLock::new();
    PROGRAM.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quantize");
        std::fs::create_dir_all(&folder).expect("the folder can be created");
        let source = folder.join("quantize.cc");
        let functions =
            [quantization_functions(), even_functions(), edge_functions(), formula_functions()].join("\n");
        let cases = formulas().into_iter().map(|(name, formula)| {
            format!("    case '{name}': quantize<{}>(in, out); break;\n", formula_type(formula))
        });
        let edge_cases = edges().into_iter().map(|(name, element, rounding, edges)| {
            let blocks = edges_type(format_name(element), rounding, edges);
            format!("    case '{name}': quantize<{blocks}>(in, out); break;\n")
        });
        let cases = cases.chain(edge_cases);
        let call = "return nvfp4_exactly<Blocks>(";
        let estimates = nvfp4_functions();
        assert_eq!(estimates.matches(call).count(), 2, "floats and packed bf16");
        let estimates = estimates.replace(call, &call.replace("return ", "return ++exact, "));
        let estimates = [element_functions(), &estimates, fp6_functions()].join("\n");
        let text = MAIN
            .replace("FUNCTIONS", &functions)
            .replace("ESTIMATES", &estimates)
            .replace("FORMULAS", &cases.collect::<String>());
        std::fs::write(&source, text).expect("the file can be written");
        let program = folder.join("quantize");
        let compiled = Command::new("g++")
            .args([
                "-std=c++17",
                "-O2",
                "-ffp-contract=off",
                "-Wall",
                "-Wno-unknown-pragmas",
                "-Werror",
                "-o",
            ])
            .args([&program, &source])
            .output()
            .expect("g++, which nvcc needs too, starts");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        program
    })
}

/// Returns a scale and the codes that the device functions compute for each block, which is followed by its
/// global scale. `way` is how: value by value, or by estimates, which must decide for a share of the blocks.
fn device(format: &str, (way, percent): (&str, usize), records: &[f32]) -> Vec<u8> {
    let mut child = Command::new(program())
        .args([format, way, &percent.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let bytes: Vec<u8> = records.iter().flat_map(|x| x.to_ne_bytes()).collect();
    // The program writes nothing before it has read everything.
    child.stdin.take().expect("the stream is piped").write_all(&bytes).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{format} {way} {percent}: {}", output.status);
    output.stdout
}

/// Compares blocks computed value by value; those of NVFP4 also by estimates, from floats and from bf16.
#[track_caller]
fn check(format: &str, block: usize, records: &[f32], expected: impl Fn(&[f32], f32, &mut [u8]) -> u8) {
    check_way(format, ("e", 0), block, records, &expected);
    if block == 16 {
        check_estimates(format, 0, records, &expected);
    }
}

#[track_caller]
fn check_estimates(
    format: &str,
    percent: usize,
    records: &[f32],
    expected: &impl Fn(&[f32], f32, &mut [u8]) -> u8,
) {
    check_way(format, ("f", percent), 16, records, expected);
    let narrow = |(index, x): (usize, &f32)| match index % 17 {
        16 => *x,
        _ => f32::from_bits(x.to_bits() & 0xFFFF_0000),
    };
    let packed: Vec<f32> = records.iter().enumerate().map(narrow).collect();
    check_way(format, ("p", percent), 16, &packed, expected);
}

#[track_caller]
fn check_way(
    format: &str,
    way: (&str, usize),
    block: usize,
    records: &[f32],
    expected: &impl Fn(&[f32], f32, &mut [u8]) -> u8,
) {
    let device = device(format, way, records);
    assert_eq!(device.len(), records.len(), "one scale per block, plus the global one");
    for (record, got) in records.chunks(block + 1).zip(device.chunks(block + 1)) {
        let mut codes = vec![0; block];
        let scale = expected(&record[..block], record[block], &mut codes);
        assert_eq!((got[0], &got[1..]), (scale, &codes[..]), "{format} {way:?} {record:?}");
    }
}

/// Returns numbers at which something changes, and random bits.
fn number(random: &mut Random) -> f32 {
    const SPECIAL: [f32; 12] = [
        0.0,
        -0.0,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
        -f32::NAN,
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::MIN,
        1e-45,
        6.0,
        448.0,
    ];
    match random.below(20) {
        0 => random.pick(&SPECIAL),
        1..4 => f32::from_bits(random.bits() as u32),
        _ => (random.below(129) as f32 - 64.0) / 8.0,
    }
}

/// Returns blocks with one magnitude each, most of them without NaN and infinities.
fn blocks(count: usize, block: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut records = Vec::with_capacity(count * (block + 1));
    for _ in 0..count {
        let tame = random.percent(80);
        let exponent =
            if random.percent(20) { random.below(270) as i32 - 140 } else { random.below(24) as i32 - 12 };
        for _ in 0..block {
            let x = number(&mut random);
            let x = if tame && !x.is_finite() { 1.0 } else { x };
            let x = if tame && x.abs() > 8.0 {
                f32::from_bits(x.to_bits() & 0x80FF_FFFF | 0x3F80_0000)
            } else {
                x
            };
            records.push((f64::from(x) * 2f64.powi(exponent)) as f32);
        }
        records.push(match random.below(12) {
            0 => number(&mut random),
            1..4 => 1.0,
            4..8 => 2f32.powi(random.below(40) as i32 - 20),
            _ => f32::from_bits(0x3000_0000 + (random.bits() as u32 & 0x1FFF_FFFF)),
        });
    }
    records
}

/// Returns blocks as those of activations: values around 0, and a global scale of any significand, which leaves their
/// scales in the middle of the range. With `is_factor`, values are multiplied by it.
fn usual(count: usize, is_factor: bool, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut records = Vec::with_capacity(count * 17);
    for _ in 0..count {
        let size = 2f32.powi(random.below(12) as i32 - 6);
        let mut amax = 0.0f32;
        for _ in 0..16 {
            let uniform = |random: &mut Random| random.below(1 << 20) as f32 / (1 << 19) as f32 - 1.0;
            let x = size * (0..3).map(|_| uniform(&mut random)).sum::<f32>();
            amax = amax.max(x.abs());
            records.push(x);
        }
        let scale = 1.0 + random.below(200) as f32 + random.below(1 << 20) as f32 / (1 << 20) as f32;
        let global = amax / 6.0 / scale;
        records.push(if is_factor { 1.0 / global } else { global });
    }
    records
}

const GLOBALS: [f32; 16] = [
    1.0,
    0.37,
    0.011_7,
    1.0e-3,
    3.0e20,
    1.0e36,
    3.4e38,
    1.0e-37,
    7.0e-40,
    1.0e-45,
    0.0,
    -0.0,
    -1.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
];

#[test]
fn nvfp4_blocks_of_every_formula_are_those_of_the_interpreter() {
    let formulas = formulas();
    assert_eq!(formulas.len(), 47, "`n` names another case");
    for (index, (name, formula)) in formulas.into_iter().enumerate() {
        let expected = |values: &[f32], global: f32, codes: &mut [u8]| {
            numeric::quantize_nvfp4_block_by(formula, values, global, codes)
        };
        let mut records = blocks(4_000, 16, 0xF5 + index as u64);
        // Zeros of both signs and numbers next to zero, and numbers of every size, under each global scale.
        for global in GLOBALS {
            for least in 0..6 {
                records.extend((0..16).map(|i| f32::from_bits(if i == 7 { least } else { (i % 2) << 31 })));
                records.push(global);
            }
            for size in [1e-40f32, 1e-6, 1.0, 448.0, 1e30, f32::MAX, f32::INFINITY, f32::NAN] {
                records.extend((0..16).map(|i| (i as f32 - 7.5) / 7.5 * size));
                records.push(global);
            }
        }
        check(&name.to_string(), 16, &records, expected);
        let records = usual(4_000, formula.global == Scaling::Multiply, 0xF6 + index as u64);
        // With the largest scale as the least, codes are 0 or near it.
        let percent = if formula.scale_min.get() == 448.0 { 0 } else { 90 };
        check_estimates(&name.to_string(), percent, &records, &expected);
    }
}

#[test]
fn nvfp4_blocks_are_those_of_the_interpreter() {
    let expected =
        |values: &[f32], global: f32, codes: &mut [u8]| numeric::quantize_nvfp4_block(values, global, codes);
    check("n", 16, &blocks(100_000, 16, 0xF4), expected);
    check_estimates("n", 90, &usual(100_000, false, 0xF5), &expected);
    // Every scale, and the numbers around each tie of the codes; zeros, and numbers next to zero.
    let mut records = Vec::new();
    for global in GLOBALS {
        for least in 0..6 {
            records.extend((0..16).map(|i| f32::from_bits(if i == 7 { least } else { (i % 2) << 31 })));
            records.push(global);
        }
        for scale in 0..=0x7E {
            let step = numeric::ue4m3_to_f32(scale) * global;
            // A block whose scale saturates, with infinities or the largest numbers.
            for largest in [f32::INFINITY, f32::MAX] {
                let ramp = (0..14).map(|i| (i as f32 - 6.5) * step);
                records.extend([largest, -largest].into_iter().chain(ramp));
                records.push(global);
            }
            for (tie, sign) in
                [0.25f32, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0].iter().flat_map(|t| [(t, 1.0), (t, -1.0)])
            {
                let mut values = vec![6.0 * step];
                let mut x = tie * step * sign;
                for _ in 0..7 {
                    x = x.next_down();
                }
                for _ in 0..15 {
                    values.push(x);
                    x = x.next_up();
                }
                records.extend(values);
                records.push(global);
            }
        }
    }
    check("n", 16, &records, expected);
}

#[test]
fn mx_blocks_are_those_of_the_interpreter() {
    use ScaleRounding::{Ceil, Even, Floor};
    let formats = [
        ("0", MxElement::E2M1, Floor),
        ("1", MxElement::E2M1, Ceil),
        ("2", MxElement::E4M3, Floor),
        ("3", MxElement::E4M3, Ceil),
        ("4", MxElement::E5M2, Floor),
        ("5", MxElement::E5M2, Ceil),
        ("6", MxElement::E2M1, Even),
        ("7", MxElement::E4M3, Even),
        ("8", MxElement::E5M2, Even),
        ("u", MxElement::E2M3, Floor),
        ("v", MxElement::E2M3, Ceil),
        ("w", MxElement::E2M3, Even),
        ("x", MxElement::E3M2, Floor),
        ("y", MxElement::E3M2, Ceil),
        ("z", MxElement::E3M2, Even),
    ];
    for (name, element, rounding) in formats {
        let expected = |values: &[f32], _: f32, codes: &mut [u8]| {
            numeric::quantize_mx_block(values, element, rounding, codes)
        };
        check(name, 32, &blocks(20_000, 32, 0x3A), expected);
        check(name, 32, &around_changes(), expected);
    }
}

#[test]
fn mx_blocks_with_other_edges_are_those_of_the_interpreter() {
    for (name, element, rounding, edges) in edges() {
        let expected = |values: &[f32], _: f32, codes: &mut [u8]| {
            numeric::quantize_mx_block_by((rounding, edges), values, element, codes)
        };
        let name = name.to_string();
        check(&name, 32, &blocks(5_000, 32, 0x3B), expected);
        check(&name, 32, &around_changes(), expected);
    }
}

/// Returns blocks of every exponent, with significands around the points where codes and scales change.
fn around_changes() -> Vec<f32> {
    let mut records = Vec::new();
    for exponent in 0..255u32 {
        for significand in 0..32u32 {
            let around = (exponent << 23 | significand << 18).wrapping_sub(15);
            let sign = |i: u32| if i.is_multiple_of(3) { 0x8000_0000 } else { 0 };
            records.extend((0..32).map(|i| f32::from_bits(around.wrapping_add(i) & 0x7FFF_FFFF | sign(i))));
            records.push(0.0);
        }
    }
    records
}
