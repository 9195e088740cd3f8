//! The decoding of every code with every scale, and of scales at the ends of their range.

use std::collections::BTreeSet;
use std::process::Command;

use fourfold::codegen::hopper::Tile;
use fourfold::ir::{BlockFormat, ElementType, numeric};

use crate::programs::{PROGRAMS, WEIGHT_ONLY_PROGRAMS};

#[test]
fn scales_at_the_ends_of_their_range_give_the_interpreter_s_values() {
    for program in PROGRAMS.iter().chain(&WEIGHT_ONLY_PROGRAMS).filter(|program| program.fp8().is_some()) {
        let tiles = [Tile::new(8, 128), Tile::new(64, 128), Tile::new(128, 64), Tile::new(128, 256)];
        let simulation = program.build(&format!("{}_ends", program.name), tiles.to_vec(), None);
        let largest = if program.format.a == ElementType::F16 { 354 } else { 330 };
        for (tile, total) in tiles.into_iter().flat_map(|tile| [160, 254, largest].map(|total| (tile, total)))
        {
            let m = if tile.is_small_m() { 5 } else { 37 };
            program.check_ends(&simulation, [2, m, 40, 512, 7], tile, total);
        }
        let without = Some(("if (!any) {", "if (true) {"));
        let simulation = program.build(&format!("{}_ends_wrong", program.name), tiles[..2].to_vec(), without);
        for tile in &tiles[..2] {
            let check = || program.check_ends(&simulation, [1, 5, 40, 512, 7], *tile, largest);
            assert!(std::panic::catch_unwind(check).is_err(), "{}: no sum was computed again", program.name);
        }
    }
}

/// An FP8 code times its scale is exact up to a power of two, and each of eight codes has its own position. NaN and
/// infinity stay, and so does a product that bf16 cannot hold become infinity or NaN.
#[test]
fn every_fp8_code_is_decoded_exactly_with_every_scale() {
    for program in PROGRAMS.iter().chain(&WEIGHT_ONLY_PROGRAMS) {
        let Some(element) = program.fp8() else { continue };
        let is_e4m3 = element == ElementType::F8E4M3FN;
        let exponent = if is_e4m3 { 3 } else { 10 };
        let simulation = program.build(&format!("{}_decoded", program.name), vec![Tile::new(8, 128)], None);
        let output = Command::new(simulation.program).arg("decode").output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let halves: Vec<u16> =
            output.stdout.as_chunks().0.iter().map(|half| u16::from_ne_bytes(*half)).collect();
        let mut parts = halves.chunks_exact(8);
        let mut places = [None; 8];
        for scale in 0..=255u8 {
            for place in &mut places {
                for code in 0..=255u8 {
                    let part = parts.next().expect("all of them");
                    let part: Vec<f64> =
                        part.iter().map(|bits| f64::from(numeric::bf16_bits_to_f32(*bits))).collect();
                    let value = if is_e4m3 { numeric::e4m3_to_f32(code) } else { numeric::e5m2_to_f32(code) };
                    let product = f64::from(value) * 2f64.powi(i32::from(scale) - 127 + exponent);
                    let case = format!("{code:#x} with {scale:#x}: {part:?}");
                    let has_factor = i32::from(scale) + exponent <= 254;
                    if scale == 255 || (!has_factor && value != 0.0) {
                        assert!(part.iter().all(|part| part.is_nan()), "{case}");
                        continue;
                    }
                    let found: Vec<usize> = (0..8).filter(|at| part[*at] != 0.0).collect();
                    if value == 0.0 {
                        assert!(found.is_empty(), "{case}");
                        continue;
                    }
                    let at = *place.get_or_insert(*found.first().expect("a place"));
                    assert_eq!(found, [at], "{case}");
                    let is_held = product.abs() < 2f64.powi(128);
                    let expected = if is_held { product } else { f64::INFINITY.copysign(product) };
                    assert!(part[at] == expected || (part[at].is_nan() && value.is_nan()), "{case}");
                }
            }
        }
        assert!(parts.next().is_none());
        let distinct: BTreeSet<_> = places.iter().map(|place| place.expect("a place")).collect();
        assert_eq!(distinct.len(), 8);
    }
}

/// A decoded code times its scale is exact up to a power of two, and each of eight codes has its own position.
#[test]
fn every_code_is_decoded_exactly_with_every_scale() {
    let programs = PROGRAMS[..2].iter().chain(&WEIGHT_ONLY_PROGRAMS);
    for program in programs.filter(|program| program.fp8().is_none()) {
        let is_mx = program.format.scale == BlockFormat::MXFP4.scale;
        let is_bf16 = is_mx || program.format.a == ElementType::BF16;
        let simulation = program.build(&format!("{}_decoded", program.name), vec![Tile::new(8, 128)], None);
        let output = Command::new(simulation.program).arg("decode").output().expect("the program starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let halves: Vec<u16> =
            output.stdout.as_chunks().0.iter().map(|half| u16::from_ne_bytes(*half)).collect();
        let mut parts = halves.chunks_exact(8);
        let mut places = [None; 8];
        for scale in 0..=255u8 {
            let of_scale =
                if is_mx { numeric::e8m0_to_f32(scale) } else { numeric::ue4m3_to_f32(scale & 0x7F) };
            let factor = 2f64.powi(match (is_mx, is_bf16) {
                (true, _) => -3,
                (false, true) => -7,
                (false, false) => -14,
            });
            for _half in 0..if is_mx { 1 } else { 2 } {
                for place in &mut places {
                    for code in 0..16u8 {
                        let part = parts.next().expect("all of them");
                        let wide = |bits: u16| {
                            f64::from(if is_bf16 {
                                numeric::bf16_bits_to_f32(bits)
                            } else {
                                numeric::f16_bits_to_f32(bits)
                            })
                        };
                        let case = format!("{code:#x} with {scale:#x}");
                        if of_scale.is_nan() {
                            assert!(part.iter().all(|bits| wide(*bits).is_nan()), "{case}");
                            continue;
                        }
                        let expected = f64::from(numeric::e2m1_to_f32(code)) * f64::from(of_scale) * factor;
                        let found: Vec<usize> = (0..8).filter(|at| wide(part[*at]) != 0.0).collect();
                        if expected == 0.0 {
                            assert!(found.is_empty(), "{case}");
                            continue;
                        }
                        let at = *place.get_or_insert(*found.first().expect("a place"));
                        assert_eq!((found.as_slice(), wide(part[at])), ([at].as_slice(), expected), "{case}");
                    }
                }
            }
        }
        assert!(parts.next().is_none());
        let distinct: BTreeSet<_> = places.iter().map(|place| place.expect("a place")).collect();
        assert_eq!(distinct.len(), 8);
    }
}
