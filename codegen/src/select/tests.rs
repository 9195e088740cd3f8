//! The default tables, and flaws of kernels that a table names.

use fourfold_ir::BlockFormat;

use super::default_tables;
use crate::cutlass::configuration::{Cluster, TileScheduler};
use crate::cutlass::{CutlassVersion, defaults};
use crate::dispatch::tests::{NEWEST, extents, table};
use crate::dispatch::{Collectives, Flaw, Kernel, Kind, Place, Shared, Tables};
use crate::extents::Extents;
use crate::{TARGETS, capabilities};

#[test]
fn there_is_a_default_table_for_every_target_and_format_and_it_is_sound() {
    for target in TARGETS.iter().filter(|target| Kind::of(target.name).is_some()) {
        for capability in capabilities(target.name).expect(target.name).formats {
            let format = capability.format;
            let table = default_tables().find(target.name, format).expect(target.name);
            for cutlass in [CutlassVersion::PINNED, NEWEST] {
                assert_eq!(table.check(cutlass), Ok(()), "{} {format}", target.name);
            }
        }
    }
    assert_eq!(default_tables().find("cpu", BlockFormat::NVFP4), None);
    let text = default_tables().to_text().expect("it can be written");
    assert_eq!(&Tables::parse(&text).expect("it can be read"), default_tables());
}

#[test]
fn a_kernel_that_is_valid_nowhere_and_a_default_for_small_m_are_flaws() {
    let mut table = table();
    assert_eq!(table.check(CutlassVersion::PINNED), Ok(()));
    table.rules[0].kernel = Kernel::Cutlass(Collectives::of_tile([128, 96, 256]));
    table.rules[1].kernel = Kernel::Hopper(Shared { tile: [64, 128], cluster: 0 });
    let flaws: Vec<String> =
        table.check(NEWEST).expect_err("two flaws").iter().map(ToString::to_string).collect();
    assert_eq!(flaws.len(), 2, "{flaws:?}");
    assert!(
        flaws[0].starts_with("the kernel { tile = [128, 96, 256] } of rule 1 is invalid everywhere: rule 9 "),
        "{flaws:?}"
    );
    assert!(flaws[1].ends_with("sm_100a has kernels of another kind"), "{flaws:?}");

    let hopper = |kernel: &str| {
        let text = format!(
            "schema = 1\n[[table]]\ntargets = [\"sm_90a\"]\nformats = [\"nvfp4\"]\n[table.default]\n\
             kernel = {kernel}\nwhy = \"\"\n"
        );
        Tables::parse(&text)
    };
    let small_m = hopper("{ tile = [8, 128] }").expect_err("it takes small M only").to_string();
    assert!(
        small_m.starts_with("table 1: the default { tile = [8, 128] } supports small M only"),
        "{small_m}"
    );
    let eight = hopper("{ tile = [64, 128], cluster = 8 }").expect("it is well-formed").tables.remove(0);
    let flaws = eight.check(NEWEST).expect_err("eight do not share it");
    assert!(matches!(&flaws[..], [Flaw::Kernel { place: Place::Default, .. }]), "{flaws:?}");
}

/// A kernel is checked against its rule's minimum CUTLASS version.
#[test]
fn narrow_tiles_of_sm120_are_there_from_the_version_on_that_has_them() {
    let nvfp4 = |n| [128, n, 128];
    // Few tiles use a quarter or half of an SM's N; N = 10240 has 80 whole tiles, which is enough.
    let columns = [8, 16, 32, 33, 64, 65, 4736, 4864, 9472, 10240];
    for (format, cutlass, expected) in [
        (BlockFormat::NVFP4, CutlassVersion::new(4, 4, 3), [[128, 128, 256]; 10]),
        (
            BlockFormat::NVFP4,
            CutlassVersion::new(4, 5, 0),
            [32, 32, 32, 64, 64, 32, 32, 64, 64, 0].map(|n| if n == 0 { [128, 128, 256] } else { nvfp4(n) }),
        ),
        (
            BlockFormat::NVFP4,
            NEWEST,
            [8, 16, 32, 64, 64, 32, 32, 64, 64, 0].map(|n| if n == 0 { [128, 128, 256] } else { nvfp4(n) }),
        ),
        (
            BlockFormat::MXFP4,
            CutlassVersion::new(4, 5, 0),
            [32, 32, 32, 64, 64, 32, 32, 64, 64, 0].map(|n| match n {
                0 => [128, 128, 256],
                32 => [128, 32, 256],
                n => [128, n, 128],
            }),
        ),
    ] {
        let table = default_tables().find("sm_120a", format).expect("a table");
        let chosen = columns.map(|n| match table.pick(extents(1, n, 4096), cutlass).kernel {
            Kernel::Cutlass(collectives) => collectives.tile,
            Kernel::Hopper(_) => panic!("a kernel of another target"),
        });
        assert_eq!(chosen, expected, "{format} {cutlass}");
    }
}

/// Five hundred small matrices occupy as many SMs as one large one.
#[test]
fn tiles_of_all_matrices_are_counted() {
    let small = |l| Extents { l, ..extents(128, 128, 4096) };
    let cases: [(&str, BlockFormat, CutlassVersion); 4] = [
        ("sm_100a", BlockFormat::NVFP4, CutlassVersion::PINNED),
        ("sm_103a", BlockFormat::MXFP4, CutlassVersion::PINNED),
        ("sm_120a", BlockFormat::NVFP4, NEWEST),
        ("sm_121a", BlockFormat::MXFP4, NEWEST),
    ];
    for (target, format, cutlass) in cases {
        let table = default_tables().find(target, format).expect("a table");
        let why = |l| table.pick(small(l), cutlass).why;
        for few in [None, Some(0), Some(1)] {
            assert!(why(few).starts_with("128x128 tiles would occupy 1 of"), "{target}: {}", why(few));
        }
        assert!(why(Some(74)).starts_with("128x128 tiles would occupy 74 of"), "{target}: {}", why(Some(74)));
        for many in [148, 512] {
            assert!(!why(Some(many)).contains("tiles would occupy"), "{target}: {}", why(Some(many)));
        }
    }
}

/// Callers pass 0 for the number of clusters that fit a device. The default scheduler of the sm_100 family
/// launches one cluster per tile regardless of the device. Only the static and stream-K schedulers would
/// query it, and only for clusters of several CTAs.
#[test]
fn no_kernel_asks_how_many_clusters_fit_a_device() {
    for target in ["sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
        let family = defaults::family(target).expect("a Blackwell");
        for capability in capabilities(target).expect(target).formats {
            let format = capability.format;
            let configurations = super::cutlass::defaults(family, format, CutlassVersion::PINNED);
            assert!(!configurations.is_empty());
            for configuration in configurations {
                let single = configuration.cluster == Cluster::Static([1, 1]);
                assert!(
                    single || configuration.scheduler == TileScheduler::Default,
                    "{}",
                    configuration.name()
                );
            }
        }
    }
}

/// The lines in a kernel are those of the table that lists its format.
#[test]
fn the_lines_of_a_format_on_hopper_are_those_of_its_table() {
    for format in capabilities("sm_90a").expect("a target").formats.into_iter().map(|it| it.format) {
        let table = default_tables().find("sm_90a", format).expect("a table");
        for (m, n, k) in [(192, 8192, 8192), (96, 8192, 8192), (16, 4096, 7168), (384, 14_336, 4096)] {
            let problem = Extents { l: Some(1), m: Some(m), n: Some(n), k: Some(k) };
            let (_, why) = super::hopper::choose(format, problem, true).expect("a kernel");
            let tile = why.split(": ").nth(1).and_then(|it| it.split(' ').next()).expect("a tile");
            let picked = table.pick(problem, CutlassVersion::PINNED).why;
            assert!(picked.contains(tile), "{format}: {why}, but the table: {picked}");
        }
    }
}
