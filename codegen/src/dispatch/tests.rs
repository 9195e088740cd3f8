//! Tables as text, what they say, and what is wrong with some.

use super::*;
use crate::TARGETS;

const FORMATS: [BlockFormat; 2] = [BlockFormat::NVFP4, BlockFormat::MXFP4];
const NEWEST: CutlassVersion = CutlassVersion::new(4, 7, 0);

const TABLE: &str = r#"schema = 1

[[table]]
targets = ["sm_100a"]
formats = ["nvfp4"]
note = "measured somewhere"

[[table.rule]]
when = { m = { max = 128 }, n = { min = 512, multiple_of = 64 } }
kernel = { scheduler = "stream_k", stages = 5, tile = [128, 64, 256] }
why = "{m} rows by {n}"

[[table.rule]]
when = { k = {}, tiles = { at_least = 200, of = [256, 256] } }
kernel = { cluster = [4, 1], epilogue_tile = [128, 64], tile = [256, 256, 256] }
why = "{tiles} tiles, K = {k}"

[table.default]
kernel = { epilogue = "no_smem", tile = [128, 128, 256] }
why = "the rest, M = {m}"
"#;

fn extents(m: u64, n: u64, k: u64) -> Extents {
    Extents { l: Some(1), m: Some(m), n: Some(n), k: Some(k) }
}

fn table() -> Table {
    Tables::parse(TABLE).expect("it is well-formed").tables.remove(0)
}

#[test]
fn there_is_a_default_table_for_every_target_and_format_and_it_is_sound() {
    for target in TARGETS.iter().filter(|target| Kind::of(target.name).is_some()) {
        for format in FORMATS {
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
fn the_first_rule_that_holds_gives_the_kernel_and_says_why_with_the_problems_numbers() {
    let table = table();
    let pick = |problem| {
        let pick = table.pick(problem, CutlassVersion::PINNED);
        (pick.rule, pick.why)
    };
    assert_eq!(pick(extents(128, 512, 32)), (Some(0), "128 rows by 512".to_owned()));
    assert_eq!(pick(extents(129, 512, 32)), (None, "the rest, M = 129".to_owned()));
    assert_eq!(pick(extents(128, 448, 32)).0, None, "N is too small");
    assert_eq!(pick(extents(128, 520, 32)).0, None, "N is no multiple");
    assert_eq!(pick(extents(4096, 4096, 64)), (Some(1), "256 tiles, K = 64".to_owned()));
    let unknown = Extents { l: Some(1), m: None, n: Some(512), k: Some(32) };
    assert_eq!(pick(unknown), (None, "the rest, M = unknown".to_owned()));
    assert_eq!(pick(Extents { k: None, ..extents(4096, 4096, 64) }).0, None, "K is to be known");
    assert_eq!(table.kernels().len(), 3);
    let names: Vec<_> = table
        .kernels()
        .into_iter()
        .map(|kernel| kernel.configuration(crate::configuration::Family::Sm100, BlockFormat::NVFP4))
        .map(|configuration| configuration.expect("a kernel").name())
        .collect();
    assert_eq!(
        names,
        [
            "sm100_128x128x256_1sm_c1x1_nosmem",
            "sm100_128x64x256_1sm_c1x1_s5_streamk",
            "sm100_256x256x256_2sm_c4x1_e128x64",
        ]
    );
}

#[test]
fn a_table_is_the_same_when_it_was_written_and_read() {
    let tables = Tables::parse(TABLE).expect("it is well-formed");
    let text = tables.to_text().expect("it can be written");
    assert_eq!(text, TABLE);
    let mut beyond = tables.clone();
    beyond.tables[0].rules[0].when.m = Some(Bounds::up_to(u64::MAX));
    let error = beyond.to_text().expect_err("TOML has no such number").to_string();
    assert!(error.starts_with("table 1, rule 1: "), "{error}");
}

#[test]
fn what_is_wrong_in_a_text_is_said_with_its_place() {
    let cases = [
        ("schema = 1", "schema = 2", "the table is of schema 2, and schema 1 is what is read"),
        ("schema = 1\n", "", "the table is of schema none"),
        ("schema = 1", "schema = ", "the table is not TOML: "),
        ("schema = 1", "schema = 1\nmore = 2", "the file: `more` is unknown"),
        ("sm_100a\"", "sm_1\"", "table 1: `sm_1` is no target with kernels; those are sm_100a, sm_103a"),
        ("sm_100a\"", "sm_100a\", \"sm_120a\"", "table 1: `targets` are of different families"),
        ("[\"sm_100a\"]", "[]", "table 1: `targets` is empty"),
        ("nvfp4", "mxfp8", "table 1: `mxfp8` is no format that has kernels"),
        ("[\"nvfp4\"]", "[]", "table 1: `formats` is empty"),
        (
            "max = 128",
            "most = 128",
            "table 1, rule 1: `when`: unknown field `most`, expected one of `min`, `max`",
        ),
        ("max = 128", "max = -1", "table 1, rule 1: `when`: "),
        ("multiple_of = 64", "multiple_of = 0", "table 1, rule 1: `when.n.multiple_of` is 0"),
        ("of = [256, 256]", "of = [0, 256]", "table 1, rule 2: `when.tiles.of` has an extent of 0"),
        ("{ k = {}, ", "{ cutlass = \"x\", ", "table 1, rule 2: `when`: `x` is no version of CUTLASS"),
        ("stream_k", "spiral", "table 1, rule 1: `kernel`: unknown variant `spiral`"),
        ("[128, 64, 256]", "[128, 64]", "table 1, rule 1: `kernel`: "),
        ("by {n}", "by {tiles}", "table 1, rule 1: `why` asks for `{tiles}`: it can ask for {m}, {n}, {k}"),
        ("by {n}", "by {", "table 1, rule 1: `why` asks for `{`"),
        ("[table.default]", "[table.other]", "table 1: `default` is missing"),
        ("why = \"the rest", "reason = \"the rest", "table 1, the default: `why` is missing"),
        ("m = { max = 128 }", "m = { min = 129, max = 128 }", "table 1: rule 1 holds for no problem"),
        ("at_least = 200, of", "at_least = 2, at_most = 1, of", "table 1: rule 2 holds for no"),
    ];
    for (text, by, message) in cases {
        assert!(TABLE.contains(text), "{text}");
        let error = Tables::parse(&TABLE.replacen(text, by, 1)).expect_err(by).to_string();
        assert!(error.starts_with(message), "{by}: {error}");
    }
    let twice = format!("{TABLE}{}", TABLE.replacen("schema = 1\n", "", 1));
    let error = Tables::parse(&twice).expect_err("one is enough").to_string();
    assert_eq!(error, "table 2: an earlier table is for sm_100a and nvfp4 too: keep one of them");
}

#[test]
fn a_rule_that_is_never_reached_is_found_where_bounds_say_so() {
    let shadowed = |first: &str, second: &str| {
        let rule = |when: &str| {
            format!("[[table.rule]]\nwhen = {when}\nkernel = {{ tile = [128, 64, 256] }}\nwhy = \"\"\n")
        };
        let head = "schema = 1\n[[table]]\ntargets = [\"sm_100a\"]\nformats = [\"nvfp4\"]\n";
        let default = "[table.default]\nkernel = { tile = [128, 128, 256] }\nwhy = \"\"\n";
        let text = format!("{head}{}{}{default}", rule(first), rule(second));
        match Tables::parse(&text) {
            Ok(_) => false,
            Err(TableError::Flawed { flaw: Flaw::Shadowed { place, by }, .. }) => {
                assert_eq!((place, by), (Place::Rule(1), Place::Rule(0)));
                true
            }
            Err(other) => panic!("{other}"),
        }
    };
    for (first, second) in [
        ("{ m = { max = 128 } }", "{ m = { max = 64 } }"),
        ("{ m = {} }", "{ m = { min = 4 }, k = {} }"),
        ("{ m = { min = 3, max = 9 } }", "{ m = { min = 4, max = 9 }, n = { max = 8 } }"),
        ("{ n = { multiple_of = 64 } }", "{ n = { multiple_of = 128 } }"),
        ("{ n = { multiple_of = 64 } }", "{ n = { min = 192, max = 192 } }"),
        ("{ m = {} }", "{ tiles = { of = [128, 128], at_most = 5 } }"),
        ("{ tiles = { of = [128, 128], at_most = 9 } }", "{ tiles = { of = [128, 128], at_most = 5 } }"),
        ("{ tiles = { of = [128, 128], at_least = 4 } }", "{ m = { min = 256 }, n = { min = 256 } }"),
        ("{ k = { max = 64 } }", "{ k = { max = 64 }, cutlass = \"4.5.0\" }"),
    ] {
        assert!(shadowed(first, second), "{first} {second}");
    }
    for (first, second) in [
        ("{ m = { max = 64 } }", "{ m = { max = 128 } }"),
        ("{ m = {} }", "{ n = { max = 128 } }"),
        ("{ m = { max = 128 }, n = {} }", "{ m = { max = 64 } }"),
        ("{ n = { multiple_of = 128 } }", "{ n = { multiple_of = 64 } }"),
        ("{ tiles = { of = [128, 128], at_most = 4 } }", "{ tiles = { of = [128, 64], at_most = 4 } }"),
        // Of one matrix it would be.
        ("{ tiles = { of = [128, 128], at_most = 4 } }", "{ m = { max = 256 }, n = { max = 256 } }"),
        ("{ tiles = { of = [128, 128], at_least = 4 } }", "{ m = { min = 256 }, n = { min = 128 } }"),
        ("{ k = { max = 64 }, cutlass = \"4.5.0\" }", "{ k = { max = 64 } }"),
    ] {
        assert!(!shadowed(first, second), "{first} {second}");
    }
}

/// What is said to be shadowed is: by all small problems.
#[test]
fn a_condition_that_contains_another_holds_wherever_that_does() {
    let mut conditions = Vec::new();
    let bounds = [
        None,
        Some(Bounds::default()),
        Some(Bounds::up_to(3)),
        Some(Bounds { min: Some(2), ..Bounds::default() }),
    ];
    let multiple = Some(Bounds { multiple_of: Some(2), ..Bounds::default() });
    let single = Some(Bounds { min: Some(4), max: Some(4), multiple_of: None });
    let counted = |at_least, at_most| Some(Tiles { of: [2, 3], at_least, at_most });
    let tiles = [None, counted(None, Some(2)), counted(Some(2), None), counted(Some(1), Some(4))];
    for m in bounds.into_iter().chain([multiple, single]) {
        for n in bounds {
            for tiles in tiles {
                conditions.push(Condition { m, n, tiles, ..Condition::default() });
            }
        }
    }
    let small: Vec<Option<u64>> = (0..9).map(Some).chain([None]).collect();
    let mut contained = 0;
    for (one, other) in conditions.iter().flat_map(|one| conditions.iter().map(move |other| (one, other))) {
        let matrices = [None, Some(0), Some(1), Some(3)];
        let problems = small
            .iter()
            .flat_map(|m| small.iter().map(move |n| (m, n)))
            .flat_map(|(m, n)| matrices.map(|l| Extents { l, m: *m, n: *n, k: None }));
        let mut met = problems.filter(|problem| other.holds(*problem, NEWEST)).peekable();
        assert!(!other.is_empty() || met.peek().is_none(), "{other:?}");
        if one.contains(other) {
            contained += 1;
            assert!(met.all(|problem| one.holds(problem, NEWEST)), "{one:?} {other:?}");
        }
    }
    assert!(contained > 1000, "{contained}");
}

#[test]
fn a_kernel_that_is_valid_nowhere_and_a_default_for_few_rows_are_flaws() {
    let mut table = table();
    assert_eq!(table.check(CutlassVersion::PINNED), Ok(()));
    table.rules[0].kernel = Kernel::Cutlass(Collectives::of_tile([128, 96, 256]));
    table.rules[1].kernel = Kernel::Hopper(Shared { tile: [64, 128], cluster: 0 });
    let flaws: Vec<String> =
        table.check(NEWEST).expect_err("two flaws").iter().map(ToString::to_string).collect();
    assert_eq!(flaws.len(), 2, "{flaws:?}");
    assert!(
        flaws[0].starts_with("the kernel { tile = [128, 96, 256] } of rule 1 is valid nowhere: rule 9 "),
        "{flaws:?}"
    );
    assert!(flaws[1].ends_with("it is of another kind than the kernels of sm_100a"), "{flaws:?}");

    let hopper = |kernel: &str| {
        let text = format!(
            "schema = 1\n[[table]]\ntargets = [\"sm_90a\"]\nformats = [\"nvfp4\"]\n[table.default]\n\
             kernel = {kernel}\nwhy = \"\"\n"
        );
        Tables::parse(&text)
    };
    let few = hopper("{ tile = [8, 128] }").expect_err("it takes few rows").to_string();
    assert!(few.starts_with("table 1: the default { tile = [8, 128] } takes few rows of A only"), "{few}");
    let eight = hopper("{ tile = [64, 128], cluster = 8 }").expect("it is well-formed").tables.remove(0);
    let flaws = eight.check(NEWEST).expect_err("eight do not share it");
    assert!(matches!(&flaws[..], [Flaw::Kernel { place: Place::Default, .. }]), "{flaws:?}");
}

/// A cutlass that a rule demands is what its kernel is held to.
#[test]
fn narrow_tiles_of_sm120_are_there_from_the_version_on_that_has_them() {
    let nvfp4 = |n| [128, n, 128];
    // Of few tiles, a quarter of an SM's each, or half of one; N = 10240 has 80, enough for whole ones.
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
            assert!(why(few).starts_with("1 tiles of 128x128 leave"), "{target}: {}", why(few));
        }
        assert!(why(Some(74)).starts_with("74 tiles of 128x128 leave"), "{target}: {}", why(Some(74)));
        for many in [148, 512] {
            assert!(!why(Some(many)).contains("tiles of 128x128 leave"), "{target}: {}", why(Some(many)));
        }
    }
}
