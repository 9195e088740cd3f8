//! Simulates the emulation of tensor memory on the host. The device functions that replace sm_100 instructions run as
//! they are, compiled by g++, and each result is compared with an independent definition: layouts from the PTX ISA,
//! products in f64. Not tested here: inline PTX, and the order of memory accesses between threads of the GPU.

mod case;
mod device;
mod faults;
mod functions;
mod planted;
mod problem;

use case::{Case, Format, Path, WIDTHS};
use device::Device;
use fourfold_tests::random::Random;
use problem::Problem;

/// Returns the steps along K that a case multiplies, so that all offsets within a swizzle atom are used.
fn steps(width: u32, turn: usize) -> Vec<usize> {
    match (width, turn % 2) {
        (128, 0) => vec![0, 1, 2, 3],
        (128, _) => vec![3, 1, 2, 0],
        (64, 0) => vec![0, 1],
        (64, _) => vec![3, 2],
        (_, 0) => vec![0, 3],
        (..) => vec![1, 2],
    }
}

/// Returns the cases of a format and group: each N with each swizzle. The other choices take turns.
fn cases(format: Format, group: u32) -> Vec<Case> {
    let mut cases = Vec::new();
    for n in (8 * group..=256).step_by(8 * group as usize) {
        let widths = WIDTHS.into_iter().enumerate().filter(|(_, width)| format.width(*width) == *width);
        for (index, width) in widths {
            let turn = (n / (8 * group)) as usize + index;
            cases.push(Case {
                format,
                group,
                n,
                width,
                steps: steps(width, turn),
                place: turn % 4,
                stride: 1 + turn as u32 / 2 % 2,
                accumulates: !turn.is_multiple_of(3),
                path: Path::ALL[turn / 2 % 4],
                swaps_ids: turn % 4 < 2,
                descending: turn.is_multiple_of(2),
            });
        }
    }
    cases
}

/// Every N with every swizzle gives exact results, for one and two SMs.
#[test]
fn multiplications_with_exact_results_are_right() {
    std::thread::scope(|scope| {
        for format in Format::ALL {
            scope.spawn(move || {
                let mut device = Device::start();
                let problem = Problem::exact(format, &mut Random::new(0x7E45_0A11));
                for group in [1, 2] {
                    let cases = cases(format, group);
                    let widths = WIDTHS.into_iter().filter(|width| format.width(*width) == *width).count();
                    assert_eq!(cases.len() as u32, widths as u32 * 32 / group);
                    for case in cases {
                        case.check(&mut device, &problem).unwrap_or_else(|error| panic!("{case:?}: {error}"));
                    }
                }
            });
        }
    });
}

/// The product of every pair of scale codes is the rounded product of their values.
#[test]
fn every_scale_code_is_decoded() {
    let mut device = Device::start();
    for format in Format::ALL {
        let case = Case { steps: vec![1], n: 256, ..Case::pair(format) };
        case.check(&mut device, &Problem::scales(format)).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
}

/// The product of every pair of elements is the rounded product of their values.
#[test]
fn every_element_is_decoded() {
    let mut device = Device::start();
    for format in Format::ALL {
        let problem = Problem::elements(format);
        for step in 0..4 {
            let case = Case { steps: vec![step], n: 256, ..Case::pair(format) };
            case.check(&mut device, &problem).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
    }
}

/// Results that need rounding lie within the rounding of one f32 sum per block, and NaN scales give NaN.
#[test]
fn multiplications_with_any_scales_are_close() {
    let mut device = Device::start();
    for format in Format::ALL {
        let problem = Problem::any(format, &mut Random::new(0x5CA1E5));
        assert!(problem.sums.iter().flatten().any(|sum| sum.value.is_nan()));
        assert!(problem.sums.iter().flatten().any(|sum| f64::from(sum.value as f32) != sum.value));
        for step in 0..4 {
            let case = Case { steps: vec![step], n: 240, accumulates: false, ..Case::pair(format) };
            case.check(&mut device, &problem).unwrap_or_else(|error| panic!("{case:?}: {error}"));
        }
    }
}
