//! Compiles the functions of row kernels for the host and compares them with `ir` bit for bit: conversions of every
//! element type, integers, and dequantization. Instructions of a GPU have plain code here.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fourfold::codegen::quantization_functions;
use fourfold::codegen::row::{element_functions, fp6_functions, row_functions};
use fourfold::ir::scalar::{self, round_to};
use fourfold::ir::{BinaryKind, BitwiseKind, ElementType, UnaryKind, numeric};
use fourfold_tests::random::Random;

use ElementType::{BF16, F4E2M1FN, F6E2M3FN, F6E3M2FN, F8E4M3FN, F8E5M2, F8E8M0FNU, F16, F32, I32};

const HEAD: &str = r#"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#define __device__
#define __forceinline__ inline
"#;

/// Reads records of words for the function that the argument names, and writes its results as words.
const MAIN: &str = r#"
using Words = std::vector<uint32_t>;
static void decoded(uint32_t const *in, Words &out) {
  uint32_t const code = in[0];
  for (float x : {low_bf16(code), high_bf16(code << 16), low_f16(code), high_f16(code << 16), low_f8E4M3FN(code),
                  low_f8E5M2(code), low_f8E8M0FNU(code), low_f4E2M1FN(code), low_f6E2M3FN(code), low_f6E3M2FN(code)}) {
    out.push_back(bits_of(x));
  }
  out.push_back(low_i1(code));
}
static void encoded(uint32_t const *in, Words &out) {
  float const x = float_of(in[0]);
  for (uint32_t pair : {pack_bf16(x, -x), pack_f16(x, -x), pair_f8E4M3FN(x, -x), pair_f8E5M2(x, -x),
                        pair_f4E2M1FN(x, -x), pair_f8E8M0FNU(x, -x), pair_f6E2M3FN(x, -x), pair_f6E3M2FN(x, -x)}) {
    out.push_back(pair);
  }
  for (float y : {round_bf16(x), round_f16(x), round_f8E4M3FN(x), round_f8E5M2(x), round_f4E2M1FN(x), round_f8E8M0FNU(x),
                  round_f6E2M3FN(x), round_f6E3M2FN(x)}) {
    out.push_back(bits_of(y));
  }
  out.push_back(i32_of_float(x)), out.push_back(bitcast_f32_i32(x));
}
// Sixteen codes as their values, those read one by one and in pairs, and the codes as written in fours and in pairs.
static void fp6_pairs(uint32_t const *in, Words &out) {
  uint32_t const words[3] = {in[0], in[1], in[2]};
  uint8_t bytes[12], written[12];
  std::memcpy(bytes, in, 12);
  uint32_t put[3] = {}, four = 0;
  for (int pair = 0; pair < 8; ++pair) {
    uint32_t const codes = fp6_pair(words, pair) & 0xFFFu;
    put_fp6_pair(put, pair, codes);
    four = four >> 12 | codes << 12;
    if (pair % 2 == 1) {
      store_four_fp6(written, 2 * pair - 2, four);
    }
    out.push_back(bits_of(low_f6E2M3FN(codes))), out.push_back(bits_of(low_f6E3M2FN(codes >> 6)));
    out.push_back(bits_of(load_f6E2M3FN(bytes, 2 * pair))), out.push_back(bits_of(load_f6E3M2FN(bytes, 2 * pair + 1)));
  }
  out.insert(out.end(), put, put + 3);
  std::memcpy(put, written, 12);
  out.insert(out.end(), put, put + 3);
}
static void integers(uint32_t const *in, Words &out) {
  int32_t const a = in[0], b = in[1];
  for (int32_t x : {add_i32(a, b), sub_i32(a, b), mul_i32(a, b), max_i32(a, b), min_i32(a, b), and_i32(a, b), or_i32(a, b),
                    shift_left_i32(a, b), shift_right_i32(a, b)}) {
    out.push_back(x);
  }
  float const n = narrow_of_i32(a);
  for (float x : {float_of_i32(a), round_bf16(n), round_f16(n), round_f8E4M3FN(n), round_f8E5M2(n), round_f4E2M1FN(n),
                  round_f6E2M3FN(n), round_f6E3M2FN(n), bitcast_i32_f32(a), bitcast_i32_f8E8M0FNU(a)}) {
    out.push_back(bits_of(x));
  }
  out.push_back(bitcast_f8E8M0FNU_i32(bitcast_i32_f8E8M0FNU(a)));
}
static void dequantized(uint32_t const *in, Words &out) {
  float const c = float_of(in[0]), s = float_of(in[1]), g = float_of(in[2]);
  bool const mx = in[3];
  float const odd = mx ? dequantize_mx_odd(c, s, g) : dequantize_nvfp4_odd(c, s, g), d = dequantize(c, s);
  for (float x : {mx ? dequantize_mx(c, s, g) : dequantize_nvfp4(c, s, g), round_bf16(odd), round_f16(odd), d, round_bf16(d),
                  round_f16(d)}) {
    out.push_back(bits_of(x));
  }
}
static void applied(uint32_t const *in, Words &out) {
  float const x = float_of(in[0]);
  for (float y : {CALLS}) {
    out.push_back(bits_of(y));
  }
}
int main(int, char **arguments) {
  Words in, out;
  uint32_t buffer[4096];
  for (size_t count; (count = std::fread(buffer, 4, 4096, stdin)) > 0;) {
    in.insert(in.end(), buffer, buffer + count);
  }
  char const name = arguments[1][0];
  size_t const record = name == 'i' ? 2 : name == 'p' ? 3 : name == 'q' ? 4 : 1;
  auto const function = name == 'd'   ? decoded
                        : name == 'e' ? encoded
                        : name == 'i' ? integers
                        : name == 'p' ? fp6_pairs
                        : name == 'q' ? dequantized
                                      : applied;
  for (size_t at = 0; at + record <= in.size(); at += record) {
    function(&in[at], out);
  }
  std::fwrite(out.data(), 4, out.size(), stdout);
}
"#;

/// The functions that epilogues do not have.
const FUNCTIONS: [UnaryKind; 8] = [
    UnaryKind::Log,
    UnaryKind::Log2,
    UnaryKind::Exp2,
    UnaryKind::Sin,
    UnaryKind::Cos,
    UnaryKind::Floor,
    UnaryKind::Ceil,
    UnaryKind::Round,
];

/// Returns the results of a function for all records, `width` words for each.
fn run(name: &str, words: &[u32], width: usize) -> Vec<Vec<u32>> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rows").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let (source, program) = (folder.join("rows.cc"), folder.join("rows"));
    let calls = FUNCTIONS.map(|kind| format!("fn_{kind}(x)")).join(", ");
    let elements = [quantization_functions(), element_functions(), fp6_functions()].join("\n");
    let parts = [HEAD, &elements, &row_functions(&FUNCTIONS), MAIN].join("\n");
    std::fs::write(&source, parts.replace("CALLS", &calls)).expect("the file can be written");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-ffp-contract=off", "-w", "-o"]).args([&program, &source]);
    let compiled = compiler.output().expect("g++, which nvcc needs too, starts");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut child = Command::new(&program)
        .arg(name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    child.stdin.take().expect("the stream is piped").write_all(&bytes).expect("the program reads");
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success());
    let results: Vec<u32> =
        output.stdout.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word)).collect();
    results.chunks(width).map(<[u32]>::to_vec).collect()
}

/// Compares bits. All NaNs are equal.
#[track_caller]
fn check(found: u32, expected: f64, what: impl std::fmt::Display) {
    let (found, expected) = (f32::from_bits(found), expected as f32);
    let is_equal = found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
    assert!(is_equal, "{what}: {found:e} is not {expected:e}");
}

/// Bits of special and of random numbers.
fn numbers(random: &mut Random) -> Vec<u32> {
    let mut numbers: Vec<u32> = vec![0, 1, 0x007F_FFFF, 0x0080_0000, 0x7F7F_FFFF, 0x7F80_0000, 0x7FC0_0001];
    // Neighbours of halfway cases: powers of two times small odd numbers.
    for exponent in 0..255u32 {
        for mantissa in [0u32, 0x0010_0000, 0x0020_0000, 0x0060_0000, 0x0070_0000, 0x0000_8000, 0x0000_1000] {
            let bits = exponent << 23 | mantissa;
            numbers.extend([bits.saturating_sub(1), bits, bits + 1]);
        }
    }
    for small in 0..1 << 11u32 {
        numbers.push((small as f32 / 4.0).to_bits());
        // Ties of FP6, and their neighbours.
        let tie = (small as f32 / 32.0).to_bits();
        numbers.extend([tie.saturating_sub(1), tie, tie + 1]);
    }
    let negative: Vec<u32> = numbers.iter().map(|bits| bits | 1 << 31).collect();
    numbers.extend(negative);
    numbers.extend((0..100_000).map(|_| random.bits() as u32));
    numbers
}

fn codes_of(element: ElementType, x: f64) -> u32 {
    match element {
        BF16 => numeric::f64_to_bf16_bits(x).into(),
        F16 => numeric::f64_to_f16_bits(x).into(),
        F8E4M3FN => numeric::e4m3_from_f64(x).into(),
        F8E5M2 => numeric::e5m2_from_f64(x).into(),
        F4E2M1FN => numeric::e2m1_from_f64(x).into(),
        F6E2M3FN => numeric::e2m3_from_f64(x).into(),
        F6E3M2FN => numeric::e3m2_from_f64(x).into(),
        _ => numeric::e8m0_from_f32(x as f32, numeric::ScaleRounding::Floor).into(),
    }
}

const NARROW: [ElementType; 8] = [BF16, F16, F8E4M3FN, F8E5M2, F4E2M1FN, F8E8M0FNU, F6E2M3FN, F6E3M2FN];

#[test]
fn every_code_is_decoded_as_its_type_defines() {
    let codes: Vec<u32> = (0..1 << 16).collect();
    for (code, found) in codes.iter().zip(run("decode", &codes, 11)) {
        let (half, byte) = (*code as u16, *code as u8);
        let expected = [
            numeric::bf16_bits_to_f32(half),
            numeric::bf16_bits_to_f32(half),
            numeric::f16_bits_to_f32(half),
            numeric::f16_bits_to_f32(half),
            numeric::e4m3_to_f32(byte),
            numeric::e5m2_to_f32(byte),
            numeric::e8m0_to_f32(byte),
            numeric::e2m1_to_f32(byte),
            numeric::e2m3_to_f32(byte),
            numeric::e3m2_to_f32(byte),
        ];
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            check(*found, expected.into(), format_args!("format {index} of {code:#x}"));
        }
        assert_eq!(found[10] != 0, byte != 0);
    }
}

#[test]
fn every_number_is_encoded_and_rounded_as_convert_does() {
    let numbers = numbers(&mut Random::new(0x0E5));
    for (bits, found) in numbers.iter().zip(run("encode", &numbers, 18)) {
        let x = f64::from(f32::from_bits(*bits));
        for (index, element) in NARROW.into_iter().enumerate() {
            let width = element.storage_bits();
            let [low, high] = [x, -x].map(|x| codes_of(element, x));
            if !x.is_nan() {
                assert_eq!(found[index], low | high << width, "{element} of {x:e}");
            }
            check(found[NARROW.len() + index], round_to(element, x), format_args!("{element} of {x:e}"));
        }
        assert_eq!(f64::from(found[16] as i32), round_to(I32, x), "i32 of {x:e}");
        assert_eq!(found[17] as i32, scalar::bits_of(x as f32), "bits of {x:e}");
    }
}

#[test]
fn four_codes_of_six_bits_take_three_bytes() {
    let mut random = Random::new(0x6B);
    // Every code at every place, among codes of zeros and of ones.
    let mut words: Vec<u32> = Vec::new();
    for (place, code) in (0..16).flat_map(|place| (0..64u8).map(move |code| (place, code))) {
        for other in [0, 0x3F] {
            let mut codes = [other; 16];
            codes[place] = code;
            let bytes = numeric::pack_codes(&codes, 6);
            words.extend(bytes.as_chunks().0.iter().map(|word| u32::from_le_bytes(*word)));
        }
    }
    words.extend((0..30_000).map(|_| random.bits() as u32));
    for (record, found) in words.chunks(3).zip(run("pairs", &words, 38)) {
        let bytes: Vec<u8> = record.iter().flat_map(|word| word.to_le_bytes()).collect();
        let code = |index: usize| numeric::code_at(&bytes, index, 6);
        for (pair, found) in found[..32].chunks(4).enumerate() {
            let [low, high] =
                [numeric::e2m3_to_f32(code(2 * pair)), numeric::e3m2_to_f32(code(2 * pair + 1))];
            for (found, expected) in found.iter().zip([low, high, low, high]) {
                check(*found, expected.into(), format_args!("pair {pair} of {record:x?}"));
            }
        }
        assert_eq!((&found[32..35], &found[35..]), (record, record), "the codes are written as they are");
    }
}

#[test]
fn integers_wrap_around_and_are_rounded_once() {
    let mut random = Random::new(0x1E7);
    let mut special: Vec<i32> = vec![0, 1, -1, 31, 32, 33, 254, 255, 256, i32::MAX, i32::MIN, 0x7F80_0001];
    for shift in 0..31 {
        for low in [-1i64, 0, 1] {
            // Ties of bf16 and of f16, and their neighbours.
            special.extend([1i64, 3, 257, 259, 2049, 2051].map(|odd| ((odd << shift) + low) as i32));
        }
    }
    let mut words: Vec<u32> = special.iter().flat_map(|a| [*a as u32, random.bits() as u32]).collect();
    words.extend((0..40_000).flat_map(|_| [random.bits() as u32, random.below(80) as u32]));
    words.extend((0..40_000).map(|_| random.bits() as u32 >> random.below(32)));
    for (pair, found) in words.chunks(2).zip(run("integers", &words, 20)) {
        let (a, b) = (pair[0] as i32, pair[1] as i32);
        let arithmetic =
            [BinaryKind::Add, BinaryKind::Sub, BinaryKind::Mul, BinaryKind::Max, BinaryKind::Min];
        let bitwise = [BitwiseKind::And, BitwiseKind::Or, BitwiseKind::ShiftLeft, BitwiseKind::ShiftRight];
        let expected = arithmetic.map(|kind| scalar::integer(kind, a, b).expect("an integer function"));
        let expected = expected.into_iter().chain(bitwise.map(|kind| scalar::bitwise(kind, a, b)));
        for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
            assert_eq!(*found as i32, expected, "function {index} of {a} and {b}");
        }
        let elements = [F32, BF16, F16, F8E4M3FN, F8E5M2, F4E2M1FN, F6E2M3FN, F6E3M2FN];
        for (found, element) in found[9..17].iter().zip(elements) {
            check(*found, round_to(element, a.into()), format_args!("{element} of {a}"));
        }
        check(found[17], scalar::of_bits(a).into(), format_args!("f32 with bits {a:#x}"));
        check(found[18], numeric::e8m0_to_f32(a as u8).into(), format_args!("scale {a:#x}"));
        assert_eq!(found[19], u32::from(a as u8));
    }
}

#[test]
fn dequantization_rounds_the_product_of_three_factors_once() {
    let mut random = Random::new(0xD0);
    let mut globals =
        vec![1.0, -0.37, 0.0, f32::INFINITY, f32::NAN, 1e-45, 3e-39, f32::MAX, 1.0 + f32::EPSILON];
    globals.extend((0..7).map(|_| f32::from_bits(random.bits() as u32)));
    let mut records = Vec::new();
    let mut add = |code: f32, scale: f32, mx: bool, random: &mut Random| {
        for g in [
            random.pick(&globals),
            f32::from_bits(random.bits() as u32),
            1.0 + random.below(1 << 23) as f32 / 8388608.0,
        ] {
            records.extend([code.to_bits(), scale.to_bits(), g.to_bits(), u32::from(mx)]);
        }
    };
    for scale in 0..=255u8 {
        for code in 0..=15u8 {
            add(numeric::e2m1_to_f32(code), numeric::ue4m3_to_f32(scale), false, &mut random);
            add(numeric::e2m1_to_f32(code), numeric::e8m0_to_f32(scale), true, &mut random);
        }
        for code in 0..64u8 {
            add(numeric::e2m3_to_f32(code), numeric::e8m0_to_f32(scale), true, &mut random);
            add(numeric::e3m2_to_f32(code), numeric::e8m0_to_f32(scale), true, &mut random);
        }
        for code in 0..=255u8 {
            add(numeric::e4m3_to_f32(code), numeric::e8m0_to_f32(scale), true, &mut random);
            add(numeric::e5m2_to_f32(code), numeric::e8m0_to_f32(scale), true, &mut random);
        }
    }
    for (record, found) in records.chunks(4).zip(run("quantized", &records, 6)) {
        let [code, scale, global] = [0, 1, 2].map(|index| f64::from(f32::from_bits(record[index])));
        let products = [code * scale * global, code * scale];
        for (found, product) in found.chunks(3).zip(products) {
            for (found, element) in found.iter().zip([F32, BF16, F16]) {
                check(
                    *found,
                    round_to(element, product),
                    format_args!("{element} of {code:e} {scale:e} {global:e}"),
                );
            }
        }
    }
}

/// Returns the distance in units of the distance of neighbours at the expected number.
fn ulps(found: f32, expected: f64) -> f64 {
    let exponent = ((expected.abs().to_bits() >> 52) as i32) - 1023;
    (f64::from(found) - expected).abs() / 2f64.powi(exponent.clamp(-126, 127) - 23)
}

#[test]
fn the_functions_of_row_kernels_are_exact_where_the_definition_demands_it_and_within_4_ulp_elsewhere() {
    let mut random = Random::new(0xF0);
    let mut numbers = numbers(&mut random);
    numbers.extend((-160..160).map(|x| (x as f32).to_bits()));
    numbers.extend(
        (0..50_000).map(|_| ((random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * 150.0).to_bits()),
    );
    for (bits, found) in numbers.iter().zip(run("functions", &numbers, FUNCTIONS.len())) {
        let x = f64::from(f32::from_bits(*bits));
        for (kind, found) in FUNCTIONS.into_iter().zip(found) {
            let expected = scalar::unary(kind, x);
            let found = f32::from_bits(found);
            let is_exact = match kind {
                UnaryKind::Floor | UnaryKind::Ceil | UnaryKind::Round => true,
                UnaryKind::Exp2 => x == x.floor(),
                UnaryKind::Log2 => expected == expected.floor(),
                _ => false,
            };
            let rounded = expected as f32;
            let is_right = match rounded.is_finite() && !is_exact {
                true => found.is_finite() && ulps(found, expected) <= 4.0,
                false => found.to_bits() == rounded.to_bits() || (found.is_nan() && rounded.is_nan()),
            };
            assert!(is_right, "{kind} of {x:e} is {found:e}, not {expected:e}");
        }
    }
}
