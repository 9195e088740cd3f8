//! Generators of products take every format of their targets, without a GPU.

use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::dispatch::{Otherwise, Table, Tables};
use fourfold_codegen::hopper::TILES;
use fourfold_codegen::{capabilities, target};
use fourfold_ir::BlockFormat;
use fourfold_tuner::generator::{Broken, Configured, generator};
use fourfold_tuner::parameters::{Parameters, Value};
use fourfold_tuner::problem::Problem;

fn configure(with: &str, on: &str, values: &[(&str, String)]) -> Result<Box<dyn Configured>, Vec<Broken>> {
    let values = values.iter().map(|(name, value)| ((*name).to_owned(), Value::Text(value.clone())));
    let generator = generator(with).expect("the generator exists");
    generator.configure(&Parameters(values.collect()), target(on).expect("a target"), CutlassVersion::PINNED)
}

fn formats(target: &str) -> impl Iterator<Item = BlockFormat> {
    capabilities(target).expect("a target").formats.into_iter().map(|rules| rules.format)
}

/// Each format of sm_90a has kernels of its tiles alone, with data of both operands, and a table may name them.
#[test]
fn every_format_of_hopper_is_configured_with_each_of_its_tiles() {
    let problem = Problem::new(3, 40, 96);
    for format in formats("sm_90a") {
        for tile in TILES {
            let values = [("format", format.to_string()), ("tile", format!("{}x{}", tile.m, tile.n))];
            let kernel = match configure("scaled_mma.sm90", "sm_90a", &values) {
                Ok(kernel) => kernel,
                Err(broken) => {
                    assert!(!tile.takes(format) && broken[0].rule == "tile", "{format} {tile}: {broken:?}");
                    continue;
                }
            };
            assert!(tile.takes(format), "{format} {tile}");
            assert!(kernel.source().text.contains("kElementB"), "{format} {tile}");
            let entry = kernel.entry().expect("tables name it");
            if tile.is_small_m() {
                // Only rules name it: it does not cover every problem.
                continue;
            }
            let default = Otherwise { kernel: entry, why: "it was the fastest".to_owned() };
            let table = Table {
                targets: vec!["sm_90a".to_owned()],
                formats: vec![format],
                note: "a test".to_owned(),
                rules: Vec::new(),
                default,
            };
            let text = Tables { tables: vec![table.clone()] }.to_text().expect("text");
            let read = Tables::parse(&text).expect("a table");
            assert_eq!(read.find("sm_90a", format), Some(&table), "{text}");
            if tile.m != 64 {
                continue;
            }
            assert_eq!(kernel.takes(&problem), Ok(()), "{format}");
            assert!(kernel.takes(&Problem::new(3, 40, 80)).is_err(), "{format}: K of half a block");
            let workload = kernel.workload(&problem, 7).expect("data");
            let sizes: Vec<(&str, usize)> =
                workload.inputs.iter().map(|(role, bytes)| (role.as_str(), bytes.len())).collect();
            let bytes =
                |element: fourfold_ir::ElementType, rows: usize| rows * 96 * element.storage_bits() / 8;
            // Scales of up to 128 rows, of four groups at a time.
            let of_scales = if format.block == 16 { 1024 } else { 512 };
            let [a, b] = [("a", bytes(format.a, 3)), ("b", bytes(format.b, 40))];
            let expected: &[(&str, usize)] = if format.is_weight_only() {
                &[a, b, ("sfb", of_scales)]
            } else {
                &[a, ("sfa", of_scales), b, ("sfb", of_scales)]
            };
            assert_eq!(sizes, expected, "{format}");
            assert!(workload.expected[0].iter().any(|byte| *byte != 0), "{format}");
            let scales = |rows: usize| rows * 96 / format.block as usize;
            let of_a = if format.is_weight_only() { 0 } else { scales(3) };
            let moved = a.1 + of_a + b.1 + scales(40) + 3 * 40 * 2;
            assert_eq!(kernel.work(&problem).bytes, moved as u64, "{format}");
        }
    }
}

#[test]
fn formats_of_other_targets_are_refused_by_name() {
    for (with, on) in
        [("scaled_mma.sm90", "sm_90a"), ("scaled_mma.sm100", "sm_100a"), ("scaled_mma.sm120", "sm_121a")]
    {
        for format in formats("sm_90a").chain(formats("sm_100a")) {
            let is_taken = formats(on).any(|known| known == format);
            let configured = configure(with, on, &[("format", format.to_string())]);
            let broken = configured.err().unwrap_or_default();
            let names_it =
                broken.iter().any(|it| it.rule == "value" && it.found == format!("format={format}"));
            assert_eq!(names_it, !is_taken, "{on} {format}: {broken:?}");
        }
    }
}
