//! Dispatch tables: text, selection and flaws.

use super::*;
use crate::cutlass::configuration::Family;

pub(crate) const NEWEST: CutlassVersion = CutlassVersion::new(4, 7, 0);

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

pub(crate) fn extents(m: u64, n: u64, k: u64) -> Extents {
    Extents { l: Some(1), m: Some(m), n: Some(n), k: Some(k) }
}

pub(crate) fn table() -> Table {
    Tables::parse(TABLE).expect("it is well-formed").tables.remove(0)
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
        .map(|kernel| kernel.configuration(Family::Sm100, BlockFormat::NVFP4))
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
        ("schema = 1", "schema = 2", "the table has schema 2, but this version reads schema 1"),
        ("schema = 1\n", "", "the table has schema none"),
        ("schema = 1", "schema = ", "the table is not TOML: "),
        ("schema = 1", "schema = 1\nmore = 2", "the file: `more` is unknown"),
        ("sm_100a\"", "sm_1\"", "table 1: `sm_1` is not a target with kernels; those are sm_100a, sm_103a"),
        ("sm_100a\"", "sm_100a\", \"sm_120a\"", "table 1: `targets` belong to different families"),
        ("[\"sm_100a\"]", "[]", "table 1: `targets` is empty"),
        ("nvfp4", "mxfp5", "table 1: `mxfp5` is not a format with kernels; those are nvfp4, mxfp4, "),
        ("[\"nvfp4\"]", "[]", "table 1: `formats` is empty"),
        (
            "max = 128",
            "most = 128",
            "table 1, rule 1: `when`: unknown field `most`, expected one of `min`, `max`",
        ),
        ("max = 128", "max = -1", "table 1, rule 1: `when`: "),
        ("multiple_of = 64", "multiple_of = 0", "table 1, rule 1: `when.n.multiple_of` is 0"),
        ("of = [256, 256]", "of = [0, 256]", "table 1, rule 2: `when.tiles.of` has an extent of 0"),
        ("{ k = {}, ", "{ cutlass = \"x\", ", "table 1, rule 2: `when`: `x` is not a CUTLASS version"),
        ("stream_k", "spiral", "table 1, rule 1: `kernel`: unknown variant `spiral`"),
        ("[128, 64, 256]", "[128, 64]", "table 1, rule 1: `kernel`: "),
        (
            "by {n}",
            "by {tiles}",
            "table 1, rule 1: `why` has an unknown placeholder at `{tiles}`; known are {m}, {n}, {k}",
        ),
        ("by {n}", "by {", "table 1, rule 1: `why` has an unknown placeholder at `{`"),
        ("[table.default]", "[table.other]", "table 1: `default` is missing"),
        ("why = \"the rest", "reason = \"the rest", "table 1, the default: `why` is missing"),
        ("m = { max = 128 }", "m = { min = 129, max = 128 }", "table 1: rule 1 matches no problem"),
        ("at_least = 200, of", "at_least = 2, at_most = 1, of", "table 1: rule 2 matches no problem"),
    ];
    for (text, by, message) in cases {
        assert!(TABLE.contains(text), "{text}");
        let error = Tables::parse(&TABLE.replacen(text, by, 1)).expect_err(by).to_string();
        assert!(error.starts_with(message), "{by}: {error}");
    }
    let twice = format!("{TABLE}{}", TABLE.replacen("schema = 1\n", "", 1));
    let error = Tables::parse(&twice).expect_err("one is enough").to_string();
    assert_eq!(error, "table 2: an earlier table also covers sm_100a and nvfp4: keep one of them");
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
        // For one matrix it is contained.
        ("{ tiles = { of = [128, 128], at_most = 4 } }", "{ m = { max = 256 }, n = { max = 256 } }"),
        ("{ tiles = { of = [128, 128], at_least = 4 } }", "{ m = { min = 256 }, n = { min = 128 } }"),
        ("{ k = { max = 64 }, cutlass = \"4.5.0\" }", "{ k = { max = 64 } }"),
    ] {
        assert!(!shadowed(first, second), "{first} {second}");
    }
}

/// A condition that is reported as contained holds for fewer problems, tried on all small ones.
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
