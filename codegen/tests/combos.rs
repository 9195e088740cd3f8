//! Replays every configuration that nvcc has compiled. The rules and the stage formula must agree with the
//! outcomes.

use std::collections::BTreeMap;

use fourfold_codegen::Groups;
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_codegen::cutlass::configuration::{
    Cluster, Configuration, Epilogue, EpilogueSchedule, Family, Format, Fp6, Fp8, Kind, Mainloop, Operand,
    OperatorClass, Prefetch, Sms, Stages, TileOrder, TileScheduler,
};
use fourfold_codegen::cutlass::rules::{check, invalid};
use fourfold_codegen::cutlass::stages::{automatic_stages, stages};
use fourfold_codegen::select::cutlass::defaults;
use fourfold_ir::{BlockFormat, ElementType};
use serde_json::Value;

const COMBOS: &str = include_str!("../../fixtures/combos.jsonl");
const V47: (&str, CutlassVersion) = ("v47", CutlassVersion::new(4, 7, 0));
const V42: (&str, CutlassVersion) = ("v42", CutlassVersion::new(4, 2, 0));
/// The rules that predict what compiles. Later rules reject configurations that compile but are wrong.
const COMPILER_RULES: std::ops::RangeInclusive<u32> = 1..=17;

struct Record {
    json: Value,
    line: usize,
    configuration: Configuration,
    target: String,
}

impl Record {
    fn outcome(&self, version: &str) -> &Value {
        &self.json[version]
    }

    fn built(&self, version: &str) -> bool {
        self.outcome(version)["ok"].as_bool().expect("every record has an outcome for each version")
    }

    fn rules_broken(&self, cutlass: CutlassVersion) -> Vec<u32> {
        match check(&self.configuration, cutlass, &self.target) {
            Ok(()) => Vec::new(),
            Err(violations) => violations.iter().map(|violation| violation.rule.number).collect(),
        }
    }

    fn compiler_rules_broken(&self, cutlass: CutlassVersion) -> Vec<u32> {
        self.rules_broken(cutlass).into_iter().filter(|rule| COMPILER_RULES.contains(rule)).collect()
    }
}

fn records() -> Vec<Record> {
    COMBOS
        .lines()
        .enumerate()
        .map(|(index, line)| {
            let json: Value = serde_json::from_str(line).expect("a line is a JSON object");
            let configuration = configuration(&json);
            let target = json["sm"].as_str().expect("sm").to_owned();
            Record { json, line: index + 1, configuration, target }
        })
        .collect()
}

fn text<'a>(json: &'a Value, key: &str) -> Option<&'a str> {
    json.get(key).map(|value| value.as_str().unwrap_or_else(|| panic!("{key} is text")))
}

fn number(json: &Value) -> u32 {
    json.as_u64().and_then(|number| u32::try_from(number).ok()).expect("a small number")
}

fn configuration(json: &Value) -> Configuration {
    let family = match text(json, "arch") {
        Some("Sm100") => Family::Sm100,
        Some("Sm103") => Family::Sm103,
        Some("Sm120") => Family::Sm120,
        other => panic!("{other:?}"),
    };
    let operand = |format: &str, layout: &str, alignment: &str| Operand {
        format: match text(json, format).expect(format) {
            "nv4" => Format::Nvfp4,
            "mx4" => Format::Mxfp4,
            "mx6" => Format::Mxfp6(Fp6::E3m2),
            "mx8" => Format::Mxfp8(Fp8::E4m3),
            "mx8e5" => Format::Mxfp8(Fp8::E5m2),
            "u4nv" => Format::UltraNvfp4,
            "u4mx" => Format::UltraMxfp4,
            other => panic!("{other}"),
        },
        k_major: number(&json[layout]) == 1,
        alignment: number(&json[alignment]),
    };
    let cluster = match (number(&json["cl"][0]), number(&json["cl"][1])) {
        (0, 0) => Cluster::Dynamic,
        (m, n) => Cluster::Static([m, n]),
    };
    let grouped = json.get("grouped").is_some_and(|grouped| grouped == true);
    let (mainloop, sms) = mainloop(text(json, "ms").expect("ms"), grouped);
    let (schedule, epilogue_sms, epilogue_grouped) = epilogue(text(json, "es").expect("es"));
    let element = |name: &str| match name {
        "cutlass::half_t" => ElementType::F16,
        "float" => ElementType::F32,
        other => panic!("{other}"),
    };
    let mut configuration = Configuration {
        family,
        a: operand("A", "LA", "alA"),
        b: operand("B", "LB", "alB"),
        tile: [0, 1, 2].map(|axis| number(&json["tile"][axis])),
        cluster,
        sms: sms.unwrap_or(Sms::One),
        mainloop,
        groups: grouped.then_some(Groups { has_alphas: false, masked: false, blocked: false }),
        epilogue: Epilogue {
            schedule,
            sms: epilogue_sms.unwrap_or(Sms::One),
            grouped: epilogue_grouped,
            tile: None,
            class: match text(json, "eop") {
                None => OperatorClass::BlockScaledTensorOp,
                Some("OpClassTensorOp") => OperatorClass::TensorOp,
                other => panic!("{other:?}"),
            },
        },
        stages: json.get("stages").map_or(Stages::Auto, |stages| Stages::Fixed(number(stages))),
        scheduler: match text(json, "sched") {
            None => TileScheduler::Default,
            Some("streamk") => TileScheduler::StreamK,
            other => panic!("{other:?}"),
        },
        c: match text(json, "C") {
            None => Some(ElementType::BF16),
            Some("void") => None,
            Some(other) => Some(element(other)),
        },
        d: text(json, "D").map_or(ElementType::BF16, element),
        d_row_major: json.get("LD").is_none_or(|layout| number(layout) == 1),
        order: TileOrder::default(),
        swapped: false,
    };
    if configuration.mainloop == Mainloop::Auto && family == Family::Sm100 {
        configuration.sms = configuration.auto_sms();
    }
    configuration
}

/// The schedule of a tag, and its SM count if it names one.
fn mainloop(tag: &str, grouped: bool) -> (Mainloop, Option<Sms>) {
    if tag == "Auto" {
        return (Mainloop::Auto, None);
    }
    let tag = tag.strip_prefix("Kernel").expect("a kernel's tag");
    if let Some(digit) = tag.strip_prefix("MixedTmaCpAsyncWarpSpecialized") {
        assert_eq!(digit, "1SmBlockScaledSm100");
        return (Mainloop::Sm100MixedTmaCpAsync, Some(Sms::One));
    }
    assert_eq!(tag.starts_with("PtrArray"), grouped, "{tag}");
    let tag = tag.strip_prefix("PtrArray").unwrap_or(tag);
    let tag = tag.strip_prefix("TmaWarpSpecialized").expect("a TMA main loop");
    let (sms, rest) = match (tag.strip_prefix("1Sm"), tag.strip_prefix("2Sm")) {
        (Some(rest), _) => (Some(Sms::One), rest),
        (_, Some(rest)) => (Some(Sms::Two), rest),
        _ => (None, tag),
    };
    let mainloop = match rest {
        "Nvf4Sm100" => Mainloop::Sm100(Kind::Nvf4),
        "Mxf4Sm100" => Mainloop::Sm100(Kind::Mxf4),
        "Mxf8f6f4Sm100" => Mainloop::Sm100(Kind::Mxf8f6f4),
        "BlockScaledSm100" => Mainloop::Sm100BlockScaled,
        "BlockScaledMxNvf4UltraVs16Sm103" => Mainloop::Sm103Ultra { vector: 16, prefetch: Prefetch::Default },
        "BlockScaledMxNvf4UltraVs32Sm103" => Mainloop::Sm103Ultra { vector: 32, prefetch: Prefetch::Default },
        "Cooperative" => Mainloop::Cooperative,
        "Pingpong" => Mainloop::Pingpong,
        "Nvf4Sm120" => Mainloop::Sm120 { kind: Kind::Nvf4, pingpong: false },
        "Mxf8f6f4Sm120" => Mainloop::Sm120 { kind: Kind::Mxf8f6f4, pingpong: false },
        "PingpongMxf8f6f4Sm120" => Mainloop::Sm120 { kind: Kind::Mxf8f6f4, pingpong: true },
        other => panic!("{other}"),
    };
    (mainloop, sms)
}

/// The schedule of a tag, its SM count if it names one, and true for a PtrArray form.
fn epilogue(tag: &str) -> (EpilogueSchedule, Option<Sms>, bool) {
    let (tag, grouped) = match tag.strip_prefix("PtrArray") {
        Some(tag) => (tag, true),
        None => (tag, false),
    };
    let (schedule, sms) = match tag {
        "Auto" => (EpilogueSchedule::Auto, None),
        "TmaWarpSpecialized1Sm" => (EpilogueSchedule::Tma, Some(Sms::One)),
        "TmaWarpSpecialized2Sm" => (EpilogueSchedule::Tma, Some(Sms::Two)),
        "TmaWarpSpecialized1SmNvf4" => (EpilogueSchedule::TmaNvf4, Some(Sms::One)),
        "NoSmemWarpSpecialized1Sm" => (EpilogueSchedule::NoSmem, Some(Sms::One)),
        "NoSmemWarpSpecialized2Sm" => (EpilogueSchedule::NoSmem, Some(Sms::Two)),
        "TmaWarpSpecializedCooperative" => (EpilogueSchedule::Cooperative, None),
        other => panic!("{other}"),
    };
    (schedule, sms, grouped)
}

/// The numbers of records that nvcc rejected, that it built, and that the compiler rules accept of those; and
/// the lines that it built but the rules reject, by rules.
fn agreement(
    (version, cutlass): (&str, CutlassVersion),
) -> (usize, usize, usize, BTreeMap<Vec<u32>, Vec<usize>>) {
    let (mut failed, mut built, mut accepted) = (0, 0, 0);
    let mut exceptions: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
    let mut missed = Vec::new();
    for record in records() {
        let broken = record.compiler_rules_broken(cutlass);
        match (record.built(version), broken.is_empty()) {
            (false, false) => failed += 1,
            (false, true) => missed.push((record.line, record.outcome(version)["errs"].clone())),
            (true, true) => (built, accepted) = (built + 1, accepted + 1),
            (true, false) => {
                built += 1;
                // A types-only build proves nothing about the body, which fails here.
                assert_eq!(record.json["mode"], "types", "line {}: {broken:?}", record.line);
                assert_eq!(record.configuration.family, Family::Sm120, "line {}: {broken:?}", record.line);
                exceptions.entry(broken).or_default().push(record.line);
            }
        }
    }
    assert_eq!(missed, [], "{version}: refused by nvcc, accepted by the rules");
    let named: BTreeMap<_, _> = exceptions.iter().map(|(rules, lines)| (rules, lines.len())).collect();
    println!(
        "CUTLASS {cutlass}: {failed} failures rejected, {accepted} of {built} built accepted, {named:?} by rule"
    );
    (failed, built, accepted, exceptions)
}

fn counts(exceptions: &BTreeMap<Vec<u32>, Vec<usize>>) -> Vec<(Vec<u32>, usize)> {
    exceptions.iter().map(|(rules, lines)| (rules.clone(), lines.len())).collect()
}

#[test]
fn on_4_7_every_failure_is_rejected_and_all_but_nine_types_only_builds_are_accepted() {
    let (failed, built, accepted, exceptions) = agreement(V47);
    assert_eq!((failed, built, accepted), (81, 292, 283));
    // Sm120 tiles of 64 rows.
    assert_eq!(counts(&exceptions), [(vec![12], 9)]);
}

#[test]
fn on_4_2_every_failure_is_rejected_and_all_but_24_types_only_builds_are_accepted() {
    let (failed, built, accepted, exceptions) = agreement(V42);
    assert_eq!((failed, built, accepted), (104, 269, 245));
    // Sm120 tiles of 64 rows, tiles narrower than 128 columns, and MX with tile K = 64.
    assert_eq!(counts(&exceptions), [(vec![11], 2), (vec![12], 5), (vec![12, 13], 4), (vec![13], 13)]);
}

#[test]
fn built_records_that_later_rules_reject_are_wrong_targets_misfits_spills_and_wrong_results() {
    for (version, cutlass) in [V47, V42] {
        let mut silent: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for record in records().iter().filter(|record| record.built(version)) {
            for rule in record.rules_broken(cutlass).into_iter().filter(|rule| !COMPILER_RULES.contains(rule))
            {
                silent.entry(rule).or_default().push(record.line);
            }
        }
        let counts: Vec<_> = silent.iter().map(|(rule, lines)| (*rule, lines.len())).collect();
        println!("CUTLASS {cutlass}: built and rejected by later rules {counts:?}");
        assert_eq!(counts, [(18, 6), (20, 2), (23, 30), (28, 8), (29, 2)], "{silent:?}");
    }
}

/// Built rows that the rules reject on either version, with the reason: five configurations.
const EXCEPTIONS: [(&[usize], u32, &str); 5] = [
    (&[64], 20, "built, and `initialize` fails: two stages of 128x256x128 are more than shared memory has"),
    (&[347], 20, "built, and `initialize` fails: two stages of 256x128x128 are more than shared memory has"),
    (&[79], 11, "MX with 64 of K: types only, no row has its body, and the body does not build"),
    (&[281], 11, "MX with 64 of K: types only, no row has its body, and the body does not build"),
    (&[299, 312], 29, "one configuration at both depths: it builds, and computes wrong results"),
];

/// A row's expected validity. Valid: built to a kernel with an MMA, or built as types if no row of the same
/// family, tile M and tile N failed to build or lacks its MMA.
#[test]
fn the_rules_of_validity_agree_with_every_row_but_for_five_configurations() {
    for (version, cutlass) in [V42, V47] {
        validity(version, cutlass);
    }
}

fn validity(version: &str, cutlass: CutlassVersion) {
    let records = records();
    // A kernel for an architecture without the instruction builds, but has no MMA.
    let has_mma = |record: &Record| match record.configuration.family {
        Family::Sm100 => ["sm_100a", "sm_100f", "sm_103a"].contains(&record.target.as_str()),
        Family::Sm103 => record.target == "sm_103a",
        Family::Sm120 => ["sm_120a", "sm_120f", "sm_121a"].contains(&record.target.as_str()),
    };
    let is_kernel = |record: &Record| record.json["mode"] == "full";
    let against = |types: &Record| {
        records.iter().filter(|full| is_kernel(full)).any(|full| {
            let [m, n, _] = full.configuration.tile;
            let same = full.configuration.family == types.configuration.family
                && [m, n] == [types.configuration.tile[0], types.configuration.tile[1]];
            let refused = same && has_mma(full) && !full.built(version);
            refused || (same && full.target == types.target && full.built(version) && !has_mma(full))
        })
    };
    let mut exceptions = BTreeMap::new();
    let mut agreed = [0, 0];
    for record in &records {
        let accepted =
            record.built(version) && if is_kernel(record) { has_mma(record) } else { !against(record) };
        let broken: Vec<u32> = invalid(&record.configuration, cutlass, &record.target)
            .iter()
            .map(|violation| violation.rule.number)
            .collect();
        match accepted == broken.is_empty() {
            true => agreed[usize::from(accepted)] += 1,
            false => {
                assert!(accepted, "line {}: refused by nvcc, accepted by the rules", record.line);
                exceptions.insert(record.line, broken);
            }
        }
    }
    println!(
        "CUTLASS {cutlass}: {} accepted and {} rejected rows agree; exceptions {exceptions:?}",
        agreed[1], agreed[0]
    );
    // The headers of 4.7 themselves reject MX types with tile K = 64.
    let is_built = |line: usize| records[line - 1].built(version);
    let named: BTreeMap<usize, Vec<u32>> = EXCEPTIONS
        .iter()
        .flat_map(|(lines, rule, _)| lines.iter().map(|line| (*line, vec![*rule])))
        .filter(|(line, _)| is_built(*line))
        .collect();
    assert_eq!(exceptions, named);
    assert_eq!(agreed[0] + agreed[1] + named.len(), records.len());
}

#[test]
fn the_formula_gives_the_recorded_stages_of_every_valid_build() {
    for ((version, cutlass), valid, invalid) in
        // Types-only builds of tiles that rules 12 and 13 reject.
        [(V47, [162, 11, 12, 99, 7], vec![175]), (V42, [162, 11, 12, 74, 7], vec![52, 175, 309])]
    {
        let mut equal: BTreeMap<String, usize> = BTreeMap::new();
        let mut different = Vec::new();
        for record in records().iter().filter(|record| record.built(version)) {
            let recorded = number(&record.outcome(version)["stages"]);
            let computed = stages(&record.configuration, cutlass);
            if computed == Some(recorded) {
                let grouped = if record.configuration.groups.is_some() { " grouped" } else { "" };
                *equal.entry(format!("{:?}{grouped}", record.configuration.family)).or_default() += 1;
            } else {
                let broken = record.compiler_rules_broken(cutlass);
                assert!(!broken.is_empty(), "line {}: {computed:?}, not {recorded}", record.line);
                different.push(record.line);
            }
        }
        println!(
            "CUTLASS {cutlass}: stages equal for {equal:?}, different for the invalid lines {different:?}"
        );
        let families = ["Sm100", "Sm100 grouped", "Sm103", "Sm120", "Sm120 grouped"];
        assert_eq!(families.map(|family| equal.get(family).copied().unwrap_or(0)), valid, "{version}");
        assert_eq!(different, invalid, "{version}");
    }
}

#[test]
fn a_configuration_can_say_every_tag_that_was_built() {
    for record in records() {
        let unprefixed = |tag: String| tag.rsplit("::").next().expect("a tag").to_owned();
        let spelled = |key, auto: &str| match text(&record.json, key) {
            Some("Auto") => auto.to_owned(),
            tag => tag.expect(key).to_owned(),
        };
        let configuration = &record.configuration;
        assert_eq!(unprefixed(configuration.mainloop_tag()), spelled("ms", "KernelScheduleAuto"));
        assert_eq!(unprefixed(configuration.epilogue_tag()), spelled("es", "EpilogueScheduleAuto"));
        assert_eq!(
            configuration.arch_tag(),
            format!("cutlass::arch::{}", text(&record.json, "arch").expect("arch"))
        );
    }
}

/// Stage numbers that nvcc 13.0.88 gave with CUTLASS 4.2.0, at a tile K of 64, where a stage is smallest.
#[test]
fn every_pair_of_c_and_d_has_the_stages_that_the_builders_give() {
    use ElementType::{BF16, F32};
    let pinned = V42.1;
    let usual = |family: Family, tile: [u32; 3]| {
        let found = defaults(family, BlockFormat::NVFP4, pinned)
            .into_iter()
            .find(|c| c.tile[0] == tile[0])
            .expect("a default");
        let mut configuration = Configuration { tile, ..found };
        // The numbers are for this epilogue tile.
        configuration.epilogue.tile = configuration.epilogue.tile.map(|[rows, _]| [rows, 32]);
        configuration
    };
    let tiles100 = [[128, 128, 64], [128, 64, 64], [128, 192, 64], [256, 256, 64]];
    let tiles120 = [[128, 128, 64], [128, 128, 128], [128, 128, 256]];
    for (c, d, sm100, sm120) in [
        (Some(BF16), BF16, [21, 28, 15, 20], [9, 4, 2]),
        (None, BF16, [23, 29, 18, 22], [9, 4, 2]),
        (Some(F32), F32, [21, 27, 13, 16], [8, 4, 2]),
        (None, F32, [21, 27, 16, 20], [8, 4, 2]),
        (Some(F32), BF16, [21, 27, 13, 16], [8, 4, 2]),
        (Some(BF16), F32, [21, 27, 13, 16], [8, 4, 2]),
    ] {
        let counts =
            |family, tile| stages(&usual(family, tile).with_elements(c, d), pinned).expect("a formula");
        assert_eq!(tiles100.map(|tile| counts(Family::Sm100, tile)), sm100, "C {c:?}, D {d:?}");
        assert_eq!(tiles120.map(|tile| counts(Family::Sm120, tile)), sm120, "C {c:?}, D {d:?}");
    }
}

#[test]
fn epilogue_tiles_and_element_types_change_the_stages_as_measured() {
    let wide = |tile, c, d| {
        let record = records().into_iter().find(|record| {
            record.configuration.family == Family::Sm100
                && record.configuration.tile == [256, 256, 256]
                && record.configuration.mainloop == Mainloop::Sm100(Kind::Nvf4)
        });
        let mut configuration = record.expect("the fixture has the tile").configuration.with_elements(c, d);
        configuration.epilogue.tile = tile;
        automatic_stages(&configuration, V42.1)
    };
    let bf16 = ElementType::BF16;
    assert_eq!(wide(None, Some(bf16), bf16), Some(3));
    assert_eq!(wide(Some([128, 64]), Some(bf16), bf16), Some(4));
    assert_eq!(wide(Some([128, 32]), Some(bf16), bf16), Some(5));
    assert_eq!(wide(None, None, bf16), Some(4));
    assert_eq!(wide(Some([128, 64]), None, bf16), Some(5));
    assert_eq!(wide(None, Some(ElementType::F32), ElementType::F32), Some(0));
}

#[test]
fn absurd_tiles_are_rejected_not_computed() {
    for extent in [0, 1, 1 << 16, u32::MAX] {
        for axis in 0..3 {
            for record in records() {
                let mut configuration = record.configuration.clone();
                configuration.tile[axis] = extent;
                configuration.epilogue.tile = Some([extent, 128]);
                assert!(check(&configuration, V47.1, &record.target).is_err(), "{configuration}");
            }
        }
    }
}

/// The outcomes with the pinned version, recorded by `bench/compile/combos.py` with nvcc 13.1.115. Six of the
/// slowest builds are missing.
#[test]
fn the_pinned_version_builds_what_the_rules_take() {
    let (mut refused_but_built, mut taken_but_refused, mut count) = (Vec::new(), Vec::new(), 0);
    for record in records() {
        let Some(built) = record.outcome("v45")["ok"].as_bool() else { continue };
        count += 1;
        match (record.compiler_rules_broken(CutlassVersion::PINNED).is_empty(), built) {
            (true, false) => taken_but_refused.push(record.line),
            (false, true) => refused_but_built.push(record.line),
            _ => {}
        }
    }
    assert_eq!((count, taken_but_refused), (367, Vec::new()));
    // Sm120 tiles of 64 rows, built as types only: their bodies fail.
    assert_eq!(refused_but_built, [52, 68, 77, 102, 110, 126, 139, 175, 294]);
}
