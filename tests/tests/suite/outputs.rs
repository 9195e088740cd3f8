//! Simulates the outputs of kernels other than D on the host. The device code runs thread by thread, over the layouts
//! of all families, and is compared with `ir::numeric`. Not tested here: the layouts are those of the collectives,
//! which the device code checks at compile time.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use fourfold::codegen::hopper::row_output_functions;
use fourfold::codegen::output_functions;
use fourfold::ir::ScaleRounding;
use fourfold::ir::numeric::{self, MxElement};
use fourfold_tests::built::toolchain;
use fourfold_tests::random::Random;

const SIMULATION: &str = include_str!("outputs/simulate.cc");

/// Returns the program, compiled once for all tests of this file.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let toolchain = toolchain();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("outputs");
        std::fs::create_dir_all(&folder).expect("the folder can be created");
        let (source, program) = (folder.join("simulate.cc"), folder.join("simulate"));
        let text = SIMULATION.replace("FUNCTIONS", &output_functions());
        let text = text.replace("ROWS_OF_THREADS", row_output_functions());
        std::fs::write(&source, text).expect("the file can be written");
        let mut compiler = Command::new("g++");
        // CUTLASS's headers name intrinsics that only nvcc declares.
        compiler.args(["-std=c++17", "-O1", "-ffp-contract=off", "-fpermissive", "-w"]);
        for folder in toolchain.cutlass_include().iter().chain(&toolchain.include) {
            compiler.arg("-I").arg(folder);
        }
        let compiled = compiler.arg("-o").args([&program, &source]).output().expect("g++ starts");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        program
    })
}

/// The parts of the simulation's output, in order.
struct Written(Vec<u8>);

impl Written {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let rest = self.0.split_off(count);
        std::mem::replace(&mut self.0, rest)
    }

    fn floats(&mut self, count: usize) -> Vec<f32> {
        let bytes = self.bytes(4 * count);
        bytes.as_chunks().0.iter().map(|word| f32::from_ne_bytes(*word)).collect()
    }
}

fn simulate(family: &str, [l, m, n]: [usize; 3], global: f32, values: &[f32]) -> Written {
    let mut child = Command::new(program())
        .arg(family)
        .args([l, m, n].map(|extent| extent.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let input = std::iter::once(&global).chain(values).flat_map(|x| x.to_ne_bytes());
    child
        .stdin
        .take()
        .expect("the stream is piped")
        .write_all(&input.collect::<Vec<u8>>())
        .expect("the program reads its input");
    let output = child.wait_with_output().expect("the program ends");
    assert!(output.status.success(), "{:?}", output.status);
    Written(output.stdout)
}

/// Returns values of very different sizes, with special ones in between.
fn values(count: usize, random: &mut Random, special: bool) -> Vec<f32> {
    const SPECIAL: [f32; 5] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX];
    let mut value = || {
        let x = (random.below(2001) as f32 - 1000.0) / 64.0;
        let x = x * 2f32.powi(random.below(12) as i32 - 9);
        if special && random.below(400) == 0 { random.pick(&SPECIAL) } else { x }
    };
    (0..count).map(|_| value()).collect()
}

/// Returns packed codes, and scales in the blocked layout, of `[l, m, n]`.
fn quantized(
    values: &[f32],
    [l, m, n]: [usize; 3],
    block: usize,
    is_packed: bool,
    quantize: impl Fn(&[f32], &mut [u8]) -> u8,
) -> (Vec<u8>, Vec<u8>) {
    let matrix = numeric::blocked_len(m, n / block);
    let (mut codes, mut scales) = (vec![0; values.len()], vec![0; l * matrix]);
    for (index, (values, codes)) in values.chunks(block).zip(codes.chunks_mut(block)).enumerate() {
        let (row, column) = (index / (n / block), index % (n / block));
        let at = row / m * matrix + numeric::blocked_offset(row % m, column, n / block);
        scales[at] = quantize(values, codes);
    }
    (if is_packed { numeric::pack_e2m1(&codes) } else { codes }, scales)
}

/// NaN wins, and -0 is below +0.
fn largest(values: impl Iterator<Item = f32>) -> f32 {
    values.fold(f32::NEG_INFINITY, |a, b| {
        if a.is_nan() || b.is_nan() {
            f32::NAN
        } else if a.total_cmp(&b).is_lt() {
            b
        } else {
            a
        }
    })
}

#[track_caller]
fn check_floats(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
        assert!(same, "{what} {index}: {got:e}, not {expected:e}");
    }
}

const FAMILIES: [&str; 3] = ["sm100", "sm120", "sm90"];

#[test]
fn all_outputs_of_all_families_are_those_of_the_interpreter() {
    let mut random = Random::new(0x0117);
    // Global scales of tensors that are zero or not finite. Here, too, every block of zeros is zero.
    let unusual = [0.0, -0.0, -1.0, f32::INFINITY, f32::NAN];
    for (case, shape) in
        [[1, 1, 32], [1, 37, 96], [2, 130, 160], [1, 128, 128], [3, 91, 64]].into_iter().enumerate()
    {
        for (family, special) in FAMILIES.into_iter().flat_map(|family| [(family, false), (family, true)]) {
            let [l, m, n] = shape;
            let mut x = values(l * m * n, &mut random, special);
            for zeros in x.chunks_mut(32).step_by(3) {
                zeros.iter_mut().enumerate().for_each(|(i, x)| *x = if i % 2 == 0 { 0.0 } else { -0.0 });
            }
            let half: Vec<f32> = x.iter().map(|x| 0.5 * x).collect();
            let usual = 2f32.powi(random.below(9) as i32 - 6) * 0.9;
            let global = if special { unusual[case] } else { usual };
            let mut written = simulate(family, shape, global, &x);
            let case = format!("{family} {shape:?}");

            let nvfp4 =
                |values: &[f32], codes: &mut [u8]| numeric::quantize_nvfp4_block(values, global, codes);
            let fp8 = |values: &[f32], codes: &mut [u8]| {
                numeric::quantize_mx_block(values, MxElement::E4M3, ScaleRounding::Floor, codes)
            };
            let mxfp4 = |values: &[f32], codes: &mut [u8]| {
                numeric::quantize_mx_block(values, MxElement::E2M1, ScaleRounding::Ceil, codes)
            };
            for (name, (codes, scales)) in [
                ("nvfp4", quantized(&x, shape, 16, true, nvfp4)),
                ("mxfp8", quantized(&half, shape, 32, false, fp8)),
                ("mxfp4", quantized(&x, shape, 32, true, mxfp4)),
            ] {
                assert!(written.bytes(codes.len()) == codes, "codes of {name}, {case}");
                assert!(written.bytes(scales.len()) == scales, "scales of {name}, {case}");
            }

            check_floats(&format!("value, {case}"), &written.floats(x.len()), &half);
            let narrow = |x: &f32| numeric::bf16_bits_to_f32(numeric::f32_to_bf16_bits(*x));
            let bf16: Vec<f32> = x.iter().map(narrow).collect();
            let bits = written.bytes(2 * x.len());
            let bits =
                bits.as_chunks().0.iter().map(|half| numeric::bf16_bits_to_f32(u16::from_ne_bytes(*half)));
            check_floats(&format!("narrow value, {case}"), &bits.collect::<Vec<_>>(), &bf16);

            let column =
                |values: &[f32], c: usize| values.iter().skip(c).step_by(n).copied().collect::<Vec<_>>();
            let magnitudes = |values: Vec<f32>| largest(values.into_iter().map(f32::abs));
            let over_rows = |of: &dyn Fn(usize) -> f32| (0..n).map(of).collect::<Vec<_>>();
            for (name, expected) in [
                ("amax", vec![magnitudes(x.clone())]),
                ("amax of columns", over_rows(&|c| magnitudes(column(&half, c)))),
                ("max", vec![largest(x.iter().copied())]),
                ("max of columns", over_rows(&|c| largest(column(&x, c).into_iter()))),
                ("max of rows", x.chunks(n).map(|row| largest(row.iter().copied())).collect()),
            ] {
                check_floats(&format!("{name}, {case}"), &written.floats(expected.len()), &expected);
            }
            check_floats(&format!("D, {case}"), &written.floats(x.len()), &bf16);
            assert!(written.0.is_empty());
        }
    }
}

#[test]
fn a_largest_number_below_zero_is_found() {
    let shape = [1, 37, 64];
    let mut random = Random::new(0xBE);
    let x: Vec<f32> = values(37 * 64, &mut random, false).into_iter().map(|x| -x.abs() - 1.0).collect();
    for family in FAMILIES {
        let mut written = simulate(family, shape, 1.0, &x);
        let tail = 4 * (1 + 64 + 1 + 64 + 37 + x.len());
        let before = written.0.len() - tail;
        written.bytes(before + 4 * (1 + 64));
        check_floats(family, &written.floats(1), &[largest(x.iter().copied())]);
        written.floats(64);
        let rows: Vec<f32> = x.chunks(64).map(|row| largest(row.iter().copied())).collect();
        check_floats(family, &written.floats(37), &rows);
    }
}
