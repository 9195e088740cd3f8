//! Runs kernels on the host, every thread of them, and compares their outputs with the meaning of the program.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fourfold_ir::ElementType;
use fourfold_scheduler::RowProgram;

use super::reference::{Call, Extents, Random, Tensor, call, decode, unpack};
use super::{programs, spec};

/// The bytes before and after each output that nothing may write.
const GUARD: usize = 64;

/// Rows in registers, rows that are longer, rows of one element, rows at odd addresses, and no rows. Their number is
/// even, since an FP4 column has pairs.
fn extents(multiple: usize, repeats: bool) -> Vec<Extents> {
    let of = |l, m, k, is_aligned| Extents { l, m, k, is_aligned };
    let mut all = vec![
        of(1, 4, 256, true),
        of(2, 5, 96, true),
        of(1, 2, 4128, true),
        of(1, 2, 64, false),
        of(1, 130, 32, true),
    ];
    if multiple <= 2 {
        all.push(of(3, 6, 38, true));
    }
    if multiple == 4 {
        all.extend([of(3, 6, 36, true), of(1, 300, 4, true), of(1, 5, 12, false)]);
    }
    if multiple == 1 {
        all.extend([of(3, 6, 37, true), of(1, 300, 1, true)]);
    }
    if !repeats {
        all.push(of(2, 0, 64, true));
    }
    all
}

/// Rows in the shared memory of one CTA and of clusters, where the last CTA may have no element, and other rows: in
/// registers, shorter than a block of them or at odd addresses.
fn long_extents(multiple: usize, repeats: bool) -> Vec<Extents> {
    let of = |l, m, k, is_aligned| Extents { l, m, k, is_aligned };
    let mut all =
        vec![of(2, 2, 4128, true), of(1, 2, 36960, true), of(1, 2, 4160, false), of(1, 2, 96, true)];
    if multiple <= 2 {
        all.push(of(1, 2, 8198, true));
    }
    if multiple == 4 {
        all.push(of(1, 2, 8204, true));
    }
    if !repeats {
        all.push(of(1, 0, 32768, true));
    }
    all
}

/// A row that eight CTAs share.
fn longest_extents(_: usize, _: bool) -> Vec<Extents> {
    vec![Extents { l: 1, m: 1, k: 131_072, is_aligned: true }]
}

/// The number that K is a multiple of, as the kernel states it.
fn k_multiple(source: &str) -> usize {
    let stated = source.split("K is not a multiple of ").nth(1).and_then(|rest| rest.split('"').next());
    stated.map_or(1, |number| number.parse().expect("a number"))
}

pub fn message(call: &Call, is_aligned: bool) -> Vec<u8> {
    let mut bytes = (call.extents.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(call.extents.iter().flat_map(|extent| extent.to_ne_bytes()));
    for (tensors, is_read) in [(&call.operands, true), (&call.outputs, false)] {
        bytes.extend((tensors.len() as u32).to_ne_bytes());
        for tensor in tensors {
            let distance = if is_aligned { 0 } else { (tensor.element.storage_bits() as u32 / 8).max(1) };
            bytes.extend([tensor.bytes.len() as u32, distance].iter().flat_map(|word| word.to_ne_bytes()));
            bytes.extend(if is_read { &tensor.bytes[..] } else { &[] });
        }
    }
    bytes
}

/// Compares an output. All NaNs are equal. Functions may differ by 4 ulp of f32, which is at most one ulp of a shorter
/// type.
#[track_caller]
fn check(found: &[u8], expected: &Tensor, what: &str) {
    let element = expected.element;
    let (found, wanted) = (unpack(element, found), unpack(element, &expected.bytes));
    for (index, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
        let [x, y] = [found, wanted].map(|code| decode(element, *code));
        let distance = match expected.is_close {
            true if element == ElementType::F32 => 4,
            true => 1,
            false => 0,
        };
        let is_equal = found == wanted || (x.is_nan() && y.is_nan());
        let is_near = found.abs_diff(*wanted) <= distance && !x.is_nan() && !y.is_nan();
        assert!(is_equal || is_near, "{what}, element {index} of {element}: {x:e} is not {y:e}");
    }
}

/// Compiles a kernel for the host. Returns the program that runs calls of it.
pub fn compile(name: &str, source: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rows-simulation").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be created");
    std::fs::write(folder.join("kernel.cu"), source).expect("the file can be written");
    std::fs::write(folder.join("simulate.cc"), include_str!("simulate.cc")).expect("the file can be written");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rows/cuda");
    let compiled = Command::new("g++")
        .args(["-std=c++17", "-O1", "-ffp-contract=off", "-w", "-I"])
        .arg(headers)
        .args(["-o", "simulate", "simulate.cc"])
        .current_dir(&folder)
        .output()
        .expect("g++, which nvcc needs too, starts");
    assert!(compiled.status.success(), "{name}: {}", String::from_utf8_lossy(&compiled.stderr));
    folder.join("simulate")
}

/// Compiles the kernel of a program for the host and compares its outputs.
fn simulate(name: &str, program: &RowProgram) {
    simulate_calls(name, program, &spec(program, "sm_90a", Some(4096)).emit().text, extents);
}

fn simulate_calls(name: &str, program: &RowProgram, source: &str, extents: fn(usize, bool) -> Vec<Extents>) {
    let simulator = compile(name, source);
    let mut random = Random(0x0F01D);
    let repeats = program.operands.iter().any(|operand| operand.repeats);
    let calls: Vec<(Extents, Call)> = extents(k_multiple(source), repeats)
        .into_iter()
        .map(|extents| (extents, call(program, extents, &mut random)))
        .collect();
    let input = calls.iter().flat_map(|(extents, call)| message(call, extents.is_aligned)).collect();
    let calls: Vec<(String, &Call)> =
        calls.iter().map(|(extents, call)| (format!("{name} {extents:?}"), call)).collect();
    run(name, &simulator, input, &calls);
}

/// Runs calls, which have names, and compares their outputs.
pub fn run(name: &str, simulator: &Path, input: Vec<u8>, calls: &[(String, &Call)]) {
    let mut child = Command::new(simulator)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("the stream is piped");
    // The program writes while it reads. It stops reading if a call fails.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("the writer does not panic");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let mut rest = &output.stdout[..];
    for (call_name, call) in calls {
        for (index, expected) in call.outputs.iter().enumerate() {
            let (guarded, after) = rest.split_at(expected.bytes.len() + 2 * GUARD);
            rest = after;
            let (found, guards) = (&guarded[GUARD..guarded.len() - GUARD], |byte: &u8| *byte == 0xA5);
            let outside = [&guarded[..GUARD], &guarded[guarded.len() - GUARD..]];
            let what = format!("{call_name} y{index}");
            assert!(outside.iter().all(|bytes| bytes.iter().all(guards)), "{what} writes outside");
            check(found, expected, &what);
        }
    }
    assert!(rest.is_empty(), "{name} writes as much as expected");
}

#[test]
fn kernels_of_every_form_compute_their_programs() {
    const NAMES: [&str; 15] = [
        "convert_f32_0",
        "convert_f6E2M3FN_0",
        "convert_f6E3M2FN_1",
        "dequantize_f6E2M3FN_f8E8M0FNU_global",
        "mx_f6E3M2FN",
        "outer_fp6",
        "requantize_fp6",
        "rms_norm_nvfp4",
        "two_blocks_blocked",
        "quantize_column_and_row",
        "requantize",
        "repeats",
        "outer",
        "shared",
        "shapes",
    ];
    let programs = programs::programs();
    for name in NAMES {
        let (_, program) = programs.iter().find(|(found, _)| found == name).expect("a program");
        simulate(name, program);
    }
}

#[test]
fn rows_in_shared_memory_have_the_same_results() {
    const CASES: [(&str, &str, Option<u64>); 10] = [
        ("kept_fp6", "sm_90a", Some(65536)),
        ("kept_fp6", "sm_120a", None),
        ("rms_norm_nvfp4", "sm_90a", Some(32768)),
        ("kept_f32", "sm_90a", Some(32768)),
        ("kept_f16", "sm_90a", Some(32768)),
        ("kept_i1", "sm_90a", Some(32768)),
        ("kept_wide", "sm_120a", Some(32768)),
        ("kept_wide", "sm_90a", None),
        ("kept_beside", "sm_90a", Some(32768)),
        ("kept_beside", "sm_120a", None),
    ];
    let programs = programs::programs();
    for (name, target, columns) in CASES {
        let (_, program) = programs.iter().find(|(found, _)| found == name).expect("a program");
        let source = spec(program, target, columns).emit().text;
        assert!(source.contains("compute_stored"), "{name}");
        let length = columns.map_or("any".to_owned(), |columns| columns.to_string());
        let extents = if name == "kept_f32" { longest_extents } else { long_extents };
        simulate_calls(&format!("{name}_{target}_{length}"), program, &source, extents);
    }
}

#[test]
#[ignore = "compiles and simulates a hundred kernels, which takes minutes"]
fn kernels_of_all_programs_compute_them() {
    for (name, program) in programs::programs() {
        // A quotient of functions and sums has a larger error than one function.
        if !name.starts_with("softmax") {
            simulate(&name, &program);
        }
    }
}
