//! Compiles the elementwise functions of generated kernels for the host and compares them with `ir::scalar`: NaN
//! and infinity must agree, and other results within 4 ulp. The host's mathematics library stands in for CUDA's.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use fourfold::codegen::{UNARY_FUNCTIONS, device_functions};
use fourfold::ir::scalar;
use fourfold_tests::random::Random;

const SHIMS: &str = r#"
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>
#define __device__
#define __forceinline__ inline
static float __fmul_rn(float x, float y) { return x * y; }
static float __fadd_rn(float x, float y) { return x + y; }
static float __fdiv_rn(float x, float y) { return x / y; }
static float __fsqrt_rn(float x) { return std::sqrt(x); }
static float __frcp_rn(float x) { return 1.0f / x; }
static uint32_t __float_as_uint(float x) { uint32_t bits; std::memcpy(&bits, &x, 4); return bits; }
static float __uint_as_float(uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
"#;

const MAIN: &str = r#"
int main() {
  float x;
  while (std::fread(&x, sizeof(x), 1, stdin) == 1) {
    float const results[] = {CALLS};
    std::fwrite(results, sizeof(results), 1, stdout);
  }
}
"#;

/// Returns the results of every device function for each number.
fn device(numbers: &[f32]) -> Vec<f32> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("functions");
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    let (source, program) = (folder.join("functions.cc"), folder.join("functions"));
    let calls: Vec<String> = UNARY_FUNCTIONS.iter().map(|kind| format!("fn_{}(x)", kind.name())).collect();
    let main = MAIN.replace("CALLS", &calls.join(", "));
    let text = format!("{SHIMS}\n{}\n{main}", device_functions(&UNARY_FUNCTIONS));
    std::fs::write(&source, text).expect("the file can be written");
    let mut compiler = Command::new("g++");
    compiler.args(["-std=c++17", "-O2", "-ffp-contract=off", "-w", "-o"]).args([&program, &source]);
    let compiled = compiler.output().expect("g++, which nvcc needs too, starts");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
    let mut input = child.stdin.take().expect("the stream is piped");
    // The program writes while it reads.
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("the writer does not panic").expect("the program reads");
    assert!(output.status.success());
    output.stdout.as_chunks().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
}

/// Returns the distance in units of the distance of neighbours at the expected number.
fn ulps(got: f32, want: f64) -> f64 {
    let exponent = ((want.abs().to_bits() >> 52) as i32) - 1023;
    (f64::from(got) - want).abs() / 2f64.powi(exponent.clamp(-126, 127) - 23)
}

#[test]
fn device_functions_are_nan_and_infinite_where_the_definition_is_and_within_4_ulp_elsewhere() {
    let mut random = Random::new(0x51_1A);
    let positive = [
        0.0,
        1e-45,
        4e-45,
        f32::MIN_POSITIVE,
        1e-20,
        0.5,
        1.0,
        12.0,
        15.0,
        88.7,
        89.0,
        103.0,
        120.0,
        121.0,
        1e30,
        f32::MAX / 2.0,
        f32::MAX,
        f32::INFINITY,
    ];
    let mut numbers: Vec<f32> = positive.iter().flat_map(|x| [*x, -x]).chain([f32::NAN]).collect();
    numbers.extend((0..200_000).map(|_| f32::from_bits(random.bits() as u32)));
    numbers.extend((0..200_000).map(|_| (random.below(1 << 24) as f32 / (1 << 23) as f32 - 1.0) * 20.0));
    let (results, kinds) = (device(&numbers), UNARY_FUNCTIONS);
    assert_eq!(results.len(), numbers.len() * kinds.len());
    for (x, results) in numbers.iter().zip(results.chunks(kinds.len())) {
        for (kind, got) in kinds.iter().zip(results) {
            let want = scalar::unary(*kind, f64::from(*x));
            let rounded = want as f32;
            let is_right = match rounded.is_finite() {
                true => got.is_finite() && ulps(*got, want) <= 4.0,
                false => *got == rounded || (got.is_nan() && rounded.is_nan()),
            };
            assert!(is_right, "{kind} of {x:e} is {got:e}, not {want:e}");
        }
    }
}
