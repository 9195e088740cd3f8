//! Changes the text of the device functions. The comparison of results must find each change.

use std::path::Path as FilePath;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use fourfold_tests::random::Random;

use super::case::{Case, Format, Path};
use super::device::{Device, compile, functions};
use super::problem::Problem;

/// Texts of the device functions, and what replaces them.
const FAULTS: [(&str, &str); 48] = [
    // Shared memory: the bits of the swizzle, the distance of rows and of groups of rows, and the start.
    ("(at >> 3 & ((1u << bits) - 1) << 4)", "(at >> 3 & ((1u << bits) - 2) << 4)"),
    ("(at >> 3 & ((1u << bits) - 1) << 4)", "(at >> 4 & ((1u << bits) - 1) << 4)"),
    ("return at ^ (at >> 3", "return at + 0 * (at >> 3"),
    ("bits = layout == 0 ? 0 : 4 - layout / 2;", "bits = layout == 0 ? 0 : layout / 2;"),
    ("row / 8 * stride", "row / 8 * (128u << bits)"),
    ("row % 8 * (16u << bits)", "row % 8 * 128u"),
    ("start = (low & 0x3FFFu) << 4;", "start = (low & 0x3FF8u) << 4;"),
    ("start = (low & 0x3FFFu) << 4;", "start = (low & 0x1FFFu) << 4;"),
    // Codes: their order, their signs, their magnitudes, and the blocks.
    (
        "bool const has_codes = codes.load(cta, a, row);",
        "bool const has_codes = codes.load(cta, a, row); for (auto &w : codes.words) w = __byte_perm(w, 0, 0x2301);",
    ),
    (
        "{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}",
        "{high.x, high.y, high.z, high.w, low.x, low.y, low.z, low.w}",
    ),
    ("words[2 * i + 1] = twice(codes[i] >> 16);", "words[2 * i + 1] = twice(codes[i] >> 12);"),
    ("codes >> 3 & 0x1111u", "codes >> 3 & 0x0111u"),
    ("0x0C080604u", "0x0C080605u"),
    ("i * (block / 4) + k", "i * 4 + k"),
    // Bytes: the values of each type, the places of spread codes, and the types of A and B.
    ("0x1p120f", "0x1p121f"),
    ("widened(magnitude, 21, 0x1p112f)", "widened(magnitude, 20, 0x1p112f)"),
    ("(code & 8u) << 28", "(code & 4u) << 29"),
    ("widened(code & 7u, 22, 0x1p126f)", "widened(code & 7u, 22, 0x1p125f)"),
    ("(within >> 7 & 7u) * 64", "(within >> 7 & 7u) * 32"),
    ("address_of_codes(address, matrix.start & 0x380u)", "address_of_codes(address, 0u)"),
    ("(address >> 4 & 7u) ^ (address >> 7 & 7u), within", "(address >> 4 & 7u), within"),
    ("upper ? value.z : value.x", "upper ? value.x : value.z"),
    ("format == kE4m3 ? of_e4m3(code)", "format != kE4m3 ? of_e4m3(code)"),
    ("elements.load(cta, a, row, descriptor.a_format)", "elements.load(cta, a, row, descriptor.b_format)"),
    ("values[at + i] = of_e2m1(", "values[at + (i ^ 1)] = of_e2m1("),
    ("set(16 * piece + 8, value.z, format);", "set(16 * piece + 8, value.y, format);"),
    // Scales: their values, columns, lanes, IDs, and copies.
    ("static_cast<float>(mantissa) * 0x1p-9f", "static_cast<float>(mantissa) * 0x1p-10f"),
    ("exponent = code >> 3 & 0xFu", "exponent = code >> 3 & 0x1Fu"),
    ("(code + 896u) << 52", "(code + 895u) << 52"),
    ("first + row / 32;", "first + row / 64;"),
    ("memory.at(column, row % 32)", "memory.at(column, (row + 1) % 32)"),
    ("sfb + n / 32, copy * 32 + n % 32", "sfb + n / 64, copy * 32 + n % 32"),
    ("sfb + n / 32, copy * 32 + n % 32", "sfb + n / 32, copy * 32 + n % 16"),
    (">> 8 * descriptor.sfa_id;", ">> 8 * descriptor.sfb_id;"),
    (">> 8 * descriptor.sfb_id;", ">> 8 * descriptor.sfa_id;"),
    (
        "store(cta.memory.at(column + i, copy * 32 + row)",
        "store(cta.memory.at(column + i, (copy & 1) * 32 + row)",
    ),
    (
        "store(cta.memory.at(column + i, copy * 32 + row)",
        "store(cta.memory.at(column + i, copy * 32 + (row ^ 1))",
    ),
    ("{value.x, value.y, value.z, value.w};\n      for", "{value.y, value.x, value.z, value.w};\n      for"),
    // Two SMs: the share of B, its rows, and the scales of the other CTA.
    ("n < share() ? first : second", "first"),
    ("b, n % share())", "b, n)"),
    ("b, n % share(), descriptor.b_format", "b, n, descriptor.b_format"),
    ("Cta const &cta = index == 0 ? first : second;", "Cta const &cta = first;"),
    (
        "Cta const cta = cta_of_pair(of.group, index, valid);",
        "Cta const cta = cta_of_pair(of.group, 0, valid);",
    ),
    // D: columns, and numbers that are not added.
    ("cta.memory.at(d + n, row);", "cta.memory.at(d + (n ^ 1), row);"),
    ("of.accumulates != 0 ?", "of.accumulates == 0 ?"),
    (
        "row_scales[i] = scale_of(scales >> 8 * i & 0xFFu, powers_of_two) * 0.25;",
        "row_scales[i] = scale_of(scales & 0xFFu, powers_of_two) * 0.25;",
    ),
    // Queues: an instruction that is lost, and lanes that do not wait for each other.
    ("store(&queue.count, count + 1);", "store(&queue.count, count + (count != 3));"),
    ("    if (lanes > 1) {\n      __syncwarp();\n    }\n", ""),
];

/// Returns cases that together use each part of the device functions.
fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for format in Format::ALL {
        for (group, n, width, path) in
            [(1, 72, 32, Path::Flush), (1, 136, 64, Path::Thread), (2, 144, 128, Path::Flush)]
        {
            let steps = vec![2, 1];
            let (place, stride) = (2, if width == 64 { 2 } else { 1 });
            let case = Case { steps, place, stride, accumulates: true, path, ..Case::pair(format) };
            cases.push(Case { group, n, width: format.width(width), ..case.clone() });
        }
    }
    cases
}

/// Returns whether a comparison fails.
fn is_found(program: &FilePath, problems: &[Problem]) -> bool {
    let mut device = Device::run(program);
    cases().iter().any(|case| {
        let problem = &problems[case.format.index()];
        case.check(&mut device, problem).is_err_and(|error| {
            // Not only a read of unwritten memory: the results differ.
            error.starts_with("D of") || error.starts_with("CTA")
        })
    })
}

#[test]
fn what_is_wrong_is_found() {
    let text = functions();
    for (what, _) in FAULTS {
        assert_eq!(text.matches(what).count(), 1, "{what}");
    }
    let problems = Format::ALL.map(|format| Problem::exact(format, &mut Random::new(0xF001)));
    assert!(
        !is_found(&compile("faultless", &text, "-O0"), &problems),
        "without a fault, all results are right"
    );
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some((what, by)) = FAULTS.get(index) else { break };
                    let program = compile(&format!("wrong_{index}"), &text.replace(what, by), "-O0");
                    if !is_found(&program, &problems) {
                        missed.lock().expect("no thread panics with it").push((what, by));
                    }
                }
            });
        }
    });
    assert_eq!(missed.into_inner().expect("no thread panicked with it"), [] as [(&&str, &&str); 0]);
}
