//! Tests of the parsing and interpretation of ncu pages and tool logs. `data/raw_gh100_h200.csv` is the output of ncu
//! on an H200, with the columns used and some others. The other pages are synthetic: `raw_gh100_default.csv` and
//! `raw_gh100_base.csv` are the same report in ncu's default units and in base units.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use expect_test::expect;
use fourfold_tuner::profile::metrics::{self, Chip, METRICS, Source, Unit};
use fourfold_tuner::profile::ncu::{self, BOOST_OPTION, Collect, Counters, Set};
use fourfold_tuner::profile::sanitizer::{self, Check, Finding};
use fourfold_tuner::profile::{
    Launched, PlainRun, Release, Report, Selection, ToolUse, Traffic, Trouble, check_release, raw,
};

/// The kernel names of a Hopper library: two, of which a call launches one.
const ENTRY: &str = "_ZN8fourfold6kernelILi16ELi64ELm1152ELm90000EEEvNS_10ParametersE \
                     _ZN8fourfold6kernelILi128ELi256ELm1152ELm213188EEEvNS_10ParametersE";

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    fs::read_to_string(path).expect("the page exists")
}

fn selection() -> Selection {
    Selection::new(ENTRY, [ENTRY, "_ZN8fourfold6kernelILi16ELi128ELm1152ELm7EEEvNS_10ParametersE"], 3)
}

fn read(page: &str) -> Counters {
    ncu::read(page, Chip::Gh100, &selection()).unwrap_or_else(|trouble| panic!("{trouble}"))
}

#[test]
fn a_page_is_read_by_its_columns_its_units_and_without_its_commas() {
    let counters = read(&data("raw_gh100_default.csv"));
    assert!(counters.kernel.starts_with("_ZN8fourfold6kernelILi128ELi256E"), "{}", counters.kernel);
    assert_eq!(counters.missing().collect::<Vec<_>>(), []);
    for (key, expected) in [
        ("duration", 180.16),
        ("sm_throughput", 61.934211),
        ("dram_bytes_read", 86_690_304.0),
        ("dram_bytes_written", 130_816.0),
        ("tensor_pipe", 95.021),
        ("tensor_subpipe", 94.9),
        ("matrix_instructions", 130_771.0),
        ("tma_instructions", 8448.0),
        ("tma_bytes_loaded", 1_073_741_824.0),
        ("local_stores", 0.0),
        ("registers", 168.0),
        ("shared_memory", 213_188.0),
        ("waves", 1.0),
        ("grid", 132.0),
        ("cluster", 2.0),
        ("limit_barriers", 16.0),
    ] {
        let value = counters.value(key).unwrap_or_else(|| panic!("{key} is there"));
        assert!((value - expected).abs() <= expected * 1e-12, "{key}: {value}, not {expected}");
    }
    let top: Vec<&str> = counters.stalls.iter().take(3).map(|stall| stall.reason).collect();
    assert_eq!(
        top,
        ["gmma", "long_scoreboard", "wait"],
        "`selected` is not a stall, although the page has it"
    );
}

/// The kernel of segment 2 of `fixtures/minilm_ffn.fir`: M = 91, N = 384, K = 1536 in 64x128 tiles.
#[test]
fn a_page_of_an_h200_is_read_and_agrees_with_the_launch() {
    let name = "_ZN8fourfold6kernelILi64ELi128ELm384ELm210432EEEvNS_10ParametersE";
    let page = data("raw_gh100_h200.csv");
    let counters =
        ncu::read(&page, Chip::Gh100, &Selection::new(name, [], 1)).expect("the page can be parsed");
    assert_eq!((counters.kernel.as_str(), counters.missing().collect::<Vec<_>>()), (name, vec![]));
    // Two tiles along M and three along N; two CTAs split the K of each tile.
    let tiles = 2 * 3;
    // The codes of a tile's rows, and the scales of A and B in whole blocks of 128 rows.
    let loaded = tiles * ((64 + 128) * 1536 / 2 + (128 + 128) * 1536 / 16);
    // An instruction has K = 16 and N = 64, so a tile needs two per K-step; each of four warps counts it.
    let instructions = tiles * 1536 / 16 * 2 * 4;
    for (key, expected) in [
        ("grid", f64::from(tiles * 2)),
        ("cluster", 2.0),
        ("waves", 0.09),
        ("registers", 128.0),
        ("shared_memory", 210_432.0),
        ("tma_bytes_loaded", f64::from(loaded)),
        ("matrix_instructions", f64::from(instructions)),
        ("dram_bytes_read", 521_472.0),
        // The output stays in L2. The unit is `byte`, not `Kbyte`, because ncu scales each column by itself.
        ("dram_bytes_written", 0.0),
        ("limit_registers", 65_536.0 / (128.0 * 512.0)),
        ("limit_warps", 64.0 / 16.0),
    ] {
        let value = counters.value(key).unwrap_or_else(|| panic!("{key} is there"));
        assert!((value - expected).abs() <= expected * 1e-12, "{key}: {value}, not {expected}");
    }
    let kernel = "nvfp4_scaled_mm+alpha+add+add>f32".to_owned();
    let report = Report { kernel, counters: Some(counters), traffic: Traffic::default(), ..report() };
    let text = report.to_string();
    let (_, text) = text.split_once("as expected\n\n").expect("the text shows the counters");
    let expected = expect![[r#"
        ncu, counters of gh100: caches are cold and clocks are not locked, so compare
        durations only with other durations of ncu
          duration                       11.36 µs
          SM throughput                    2.45 %
          DRAM throughput                  0.96 %
          L2 throughput                    2.22 %
          L2 hit rate                     56.58 %
          DRAM read                      521472 B
          DRAM written                        0 B
          tensor pipe, whole              17.74 %
          tensor pipe, FP                 17.74 %
          matrix instructions                4608
          TMA instructions                    168
          TMA loaded                    1032192 B
          shared conflicts                  11865
          local loads                           0
          local stores                          0
          warps active                    17.70 %
          registers per thread                128
          shared memory per CTA          210432 B
          CTAs per grid                        12
          CTAs per cluster                      2
          waves                             0.090
          limit by registers                    1
          limit by shared mem.                  1
          limit by warps                        4
          limit by CTAs                        32
          limit by barriers                    32
          warps stalled for      long_scoreboard 2.431, wait 1.252, short_scoreboard 0.574
    "#]];
    expected.assert_eq(text);
}

#[test]
fn base_units_mean_the_same() {
    let [scaled, base] = ["raw_gh100_default.csv", "raw_gh100_base.csv"].map(|name| read(&data(name)));
    for (a, b) in scaled.metrics.iter().zip(&base.metrics) {
        assert_eq!((a.key, a.metric, &a.missing), (b.key, b.metric, &b.missing));
        let (Some(a), Some(b)) = (a.value, b.value) else {
            assert_eq!(a.value, b.value, "{}", a.key);
            continue;
        };
        // ncu prints base units with two decimals.
        assert!((a - b).abs() <= 0.005, "{a} and {b}");
    }
}

#[test]
fn what_is_not_there_is_null_with_its_name_and_why() {
    let any = Selection::new("_ZN8fourfold6kernel", [], 0);
    let page = data("raw_gb202_missing.csv");
    let kernels = raw::parse(&page).expect("the page can be parsed");
    let demangled = r#"void fourfold::kernel<1152, 213188, "a, b">(fourfold::Parameters, int)"#;
    assert_eq!(kernels[0].name, demangled);
    // A demangled name does not identify the segment.
    let trouble = ncu::read(&page, Chip::Gb202, &any).unwrap_err();
    assert!(trouble.message.contains("which is not the segment's kernel"), "{trouble}");

    let quoted = demangled.replace('"', "\"\"");
    let counters = ncu::read(&page.replace(&quoted, "_ZN8fourfold6kernelILm1E"), Chip::Gb202, &any).unwrap();
    let of =
        |key: &str| counters.metrics.iter().find(|it| it.key == key).expect("the metric is in the report");
    assert_eq!((of("duration").value, of("dram_bytes_read").value), (Some(180.16), Some(1.5e6)));
    assert_eq!(of("dram_bytes_read").metric, Some("dram__bytes_op_read.sum"));
    assert_eq!(of("tensor_subpipe").value, Some(42.5));
    for (key, why) in [
        ("sm_throughput", "ncu printed `nan`"),
        ("l2_hit_rate", "ncu printed `n/a`"),
        ("dram_bytes_written", "its unit, `sector`, is not supported"),
        ("l2_throughput", "ncu's report has no such column"),
        ("waves", "ncu's report has no such column"),
        ("matrix_instructions", "gb202 has no such counter"),
    ] {
        assert_eq!((of(key).value, of(key).missing.as_deref()), (None, Some(why)), "{key}");
    }
    assert_eq!(of("matrix_instructions").metric, None);
    let missing: BTreeSet<&str> = counters.missing().map(|(name, _)| name).collect();
    assert!(missing.contains("dram__bytes_op_write.sum"), "{missing:?}");
    assert!(missing.contains("smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"));
    let top: Vec<(&str, Option<f64>)> =
        counters.stalls.iter().take(3).map(|stall| (stall.reason, stall.warps)).collect();
    assert_eq!(
        top,
        [("mio_throttle_pipe_mio", Some(2.5)), ("wait", Some(0.75)), ("mio_throttle", Some(0.01))]
    );
    assert!(counters.stalls[3..].iter().all(|stall| stall.warps.is_none() && stall.missing.is_some()));

    let json = serde_json::to_value(&counters).expect("the counters can be serialized");
    let written = json["metrics"].as_array().unwrap().iter().find(|it| it["key"] == "waves").unwrap();
    assert!(
        written["value"].is_null() && written["metric"] == "launch__waves_per_multiprocessor",
        "{written}"
    );
}

#[test]
fn a_text_that_is_no_page_is_refused() {
    let good = data("raw_gh100_base.csv");
    let lines: Vec<&str> = good.lines().collect();
    let columns = lines[0].split("\",\"").count();
    let row = lines[2].rsplit_once(",\"").unwrap().0;
    for (page, words) in [
        (String::new(), "no header row"),
        ("==ERROR== something\n".to_owned(), "no header row"),
        (format!("{}\n", lines[0]), "not the row of units"),
        (format!("{}\n{}\n", lines[0], lines[2]), "not the row of units"),
        (format!("{}\n{}\n", lines[0], lines[1]), "has 0 kernels"),
        (format!("{}\n{}\n{row}\n", lines[0], lines[1]), &format!("row 3 has {} fields", columns - 1)),
        (good[..good.len() - 2].to_owned(), "within a quoted field"),
        (format!("{good}{}\n", lines[2]), "has 2 kernels"),
        (good.replace("Li128ELi256E", "Li128ELi128E"), "which is not the segment's kernel"),
        (good.replace("Kernel Name", "Kernel"), "no header row"),
    ] {
        let trouble = ncu::read(&page, Chip::Gh100, &selection()).unwrap_err();
        assert_eq!(trouble.code, "unreadable_report");
        assert!(trouble.message.contains(words), "{words}: {trouble}");
    }
    // The profiler's own lines may follow.
    assert_eq!(read(&format!("{good}==PROF== Disconnected from process 1\n")), read(&good));
}

#[test]
fn units_are_converted_and_never_mistaken() {
    for (unit, text, factor) in [
        (Unit::Microseconds, "ns", Some(1e-3)),
        (Unit::Microseconds, "nsecond", Some(1e-3)),
        (Unit::Microseconds, "us", Some(1.0)),
        (Unit::Microseconds, "msecond", Some(1e3)),
        (Unit::Microseconds, "s", Some(1e6)),
        (Unit::Microseconds, "cycle", None),
        (Unit::Bytes, "byte", Some(1.0)),
        (Unit::Bytes, "Kbyte", Some(1e3)),
        (Unit::Bytes, "Kbyte/block", Some(1e3)),
        (Unit::Bytes, "Tbyte", Some(1e12)),
        (Unit::Bytes, "Gbyte/s", None),
        (Unit::Bytes, "byte/second", None),
        (Unit::Bytes, "", None),
        (Unit::Bytes, "sector", None),
        (Unit::Percent, "%", Some(1.0)),
        (Unit::Percent, "", None),
        (Unit::Count, "", Some(1.0)),
        (Unit::Count, "inst", Some(1.0)),
        (Unit::Count, "Kinst", Some(1e3)),
        (Unit::Count, "register/thread", Some(1.0)),
        (Unit::Count, "Mbyte", None),
        (Unit::Count, "Ghz", None),
        (Unit::Count, "inst/cycle", None),
        (Unit::Count, "%", None),
    ] {
        assert_eq!(unit.factor(text), factor, "{unit:?} in `{text}`");
    }
}

#[test]
fn the_table_of_metrics_has_no_name_that_does_not_exist() {
    let keys: BTreeSet<&str> = METRICS.iter().map(|metric| metric.key).collect();
    assert_eq!(keys.len(), METRICS.len());
    for chip in Chip::ALL {
        let asked: Vec<String> = metrics::counters(chip).collect();
        let distinct: BTreeSet<&String> = asked.iter().collect();
        assert_eq!(distinct.len(), asked.len());
        let has = |part: &str| asked.iter().any(|name| name.contains(part));
        // Counters are requested with their roll-up. Launch properties are not requested by name.
        assert!(asked.iter().all(|name| name.contains('.') && !name.starts_with("launch__")));
        assert!(!has("smsp__warps_issue_stalled_") && !has("stalled_selected"), "{asked:?}");
        assert!(!has("sm__pipe_shared_"), "the pipe is not named shared");
        assert_eq!(has("sm__pipe_tensor_op_hmma"), chip == Chip::Gh100);
        assert_eq!(has("sm__pipe_tensor_subpipe_hmma"), chip != Chip::Gh100);
        assert_eq!(has("dram__bytes_read.sum"), chip != Chip::Gb202);
        assert_eq!(has("dram__bytes_op_read.sum"), chip == Chip::Gb202);
        assert_eq!(has("stalled_gmma_") && has("stalled_imc_miss_"), chip == Chip::Gh100);
    }
    let launch = METRICS.iter().filter(|metric| metric.source == Source::Launch);
    assert!(launch.flat_map(|metric| metric.name(Chip::Gb100)).all(|name| name.starts_with("launch__")));
    assert_eq!(Chip::of((10, 3)), Some(Chip::Gb100));
    assert_eq!(Chip::of((8, 0)), None);
}

#[test]
fn ncu_is_asked_for_one_launch_and_to_leave_the_card_alone() {
    let (selection, refused) = (selection(), ["sm__inst_executed_pipe_tma.sum".to_owned()]);
    let report = Path::new("/tmp/a report.ncu-rep");
    let mut collect = Collect {
        chip: Chip::Gh100,
        selection: &selection,
        set: Set::Curated,
        report,
        refused: &refused,
        has_boost_option: false,
    };
    let words = |collect: &Collect| -> Vec<String> {
        collect.arguments().iter().map(|word| word.to_str().unwrap().to_owned()).collect()
    };
    let arguments = words(&collect);
    let value = |name: &str| {
        let at = arguments.iter().position(|word| word == name).unwrap_or_else(|| panic!("{name} is there"));
        arguments[at + 1].clone()
    };
    assert_eq!(value("--clock-control"), "none");
    assert_eq!(value("--kernel-name-base"), "mangled");
    assert_eq!((value("--launch-skip"), value("--launch-count")), ("3".to_owned(), "1".to_owned()));
    // Launches of all segments count as skipped ones.
    let expression = value("--kernel-name");
    let names = expression.strip_prefix("regex:^(").and_then(|rest| rest.strip_suffix(')')).expect("a group");
    assert_eq!(names.split('|').count(), 3);
    assert_eq!(value("--export"), "/tmp/a report.ncu-rep");
    assert!(
        !value("--metrics").contains("pipe_tma") && value("--metrics").contains("gpu__time_duration.sum")
    );
    assert!(!arguments.iter().any(|word| word == "--set" || word == BOOST_OPTION));
    (collect.set, collect.has_boost_option) = (Set::Full, true);
    let arguments = words(&collect).join(" ");
    assert!(arguments.contains("--set full") && arguments.contains(&format!("{BOOST_OPTION} dynamic")));
}

#[test]
fn a_kernel_is_the_segments_only_by_what_its_library_says() {
    let selection = selection();
    assert!(selection.holds("_ZN8fourfold6kernelILi16ELi64ELm1152ELm90000EEEvNS_10ParametersE"));
    assert!(!selection.holds("_ZN8fourfold6kernelILi16ELi128ELm1152ELm7EEEvNS_10ParametersE"));
    // Without stated names, the prefix of all Fourfold kernels is used. Words that are not names are dropped.
    for entry in ["", " ", ".*"] {
        let any = Selection::new(entry, [entry], 0);
        assert!(any.holds("_ZN8fourfold6kernelILm1E") && !any.holds("_ZN7cutlass13device_kernel"));
    }
}

#[test]
fn failures_of_ncu_are_told_apart() {
    let told = |log: &str| ncu::diagnose(log, "exit code 1").code;
    for (log, code) in [
        (
            "==PROF== Connected to process 1 (/usr/bin/x)\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission \
             to access NVIDIA GPU Performance Counters on the target device 0.\n==ERROR== The application returned an \
             error code (9).\n==WARNING== No kernels were profiled.\n",
            "counters_forbidden",
        ),
        (
            "==ERROR== An error was reported by the counter measurement library:\n==ERROR== Failed to initialize the \
             profiler: LibraryNotLoaded. Check that a compatible driver library is loaded.\n",
            "profiler_library",
        ),
        ("==ERROR== unrecognised option '--config-file'. Use --help for further details.\n", "tool_too_old"),
        (
            "==ERROR== The application returned an error code (3).\n==WARNING== No kernels were profiled.\n",
            "run_failed",
        ),
        ("==PROF== Disconnected\n==WARNING== No kernels were profiled.\n", "no_kernel"),
        ("==ERROR== Something else\n", "tool_failed"),
        ("", "tool_failed"),
    ] {
        assert_eq!(told(log), code, "{log}");
    }
    let trouble = ncu::diagnose("==ERROR== Something else\n", "signal 11 (SIGSEGV)");
    assert!(trouble.message.contains("Something else") && trouble.message.contains("SIGSEGV"), "{trouble}");
    assert!(ncu::measured_nothing("==WARNING== No kernels were profiled.\n") && !ncu::measured_nothing(""));
}

#[test]
fn counters_that_ncu_refuses_are_named() {
    let log = "==ERROR== Failed to find metric a__b.sum\n==ERROR== Failed to access the following 2 metrics: c__d.avg, \
               e__f.ratio\n==PROF== Failed to find metric not__an_error\n";
    assert_eq!(ncu::refused(log), ["a__b.sum", "c__d.avg", "e__f.ratio"]);
    assert_eq!(ncu::refused("==ERROR== ERR_NVGPUCTRPERM"), [""; 0]);
}

#[test]
fn releases_are_read_and_held_against_the_card() {
    for (text, release) in [
        (
            "NVIDIA (R) Nsight Compute Command Line Profiler\nCopyright (c) 2018-2025 NVIDIA Corporation\n\
             Version 2025.3.1.0 (build 36398880) (public-release)\n",
            Some(Release(2025, 3)),
        ),
        ("NVIDIA (R) Compute Sanitizer, Version 2024.3.0.0 (public-release)", Some(Release(2024, 3))),
        ("Version x", None),
        ("", None),
    ] {
        assert_eq!(Release::parse(text), release);
    }
    assert_eq!(check_release("ncu", "Version 2022.3.0", (9, 0)), Ok(Some(Release(2022, 3))));
    assert_eq!(check_release("ncu", "no words", (9, 0)), Ok(None), "a tool without a version is tried");
    for (version, capability) in
        [("Version 2022.2.1", (9, 0)), ("Version 2024.3.2", (10, 0)), ("Version 2025.1", (10, 3))]
    {
        let trouble = check_release("ncu", version, capability).unwrap_err();
        assert_eq!(trouble.code, "tool_too_old", "{trouble}");
    }
}

/// The output of memcheck on an H200, with the run's own output shortened.
const MEMCHECKED: &str = "\
========= COMPUTE-SANITIZER
nvfp4_scaled_mm_sm90_x1_8_16_64x128_128x128_128x256_alpha_add_add_f32 from the cache
fixtures/minilm_ffn.fir for sm_90a, on NVIDIA H200 (sm_90, 132 SMs, 139.8 GiB)

decisions:
  %fc2.sfa = swizzle_scales  segment  0  no_scaled_mma_producer: no operand comes from a kernel

outputs:
  %out        against expected.out        from run          error 5.86e-8 of 1e-5  ok

ok: 5 of 5 expectations met
========= ERROR SUMMARY: 0 errors
";

#[test]
fn what_memcheck_printed_of_a_run_without_faults_is_passed() {
    let (finding, trouble) = check(Check::Memcheck, MEMCHECKED, Some(0));
    assert_eq!((finding.ok(), finding.errors, finding.warnings, trouble), (true, Some(0), None, None));
    assert_eq!((finding.summary.as_deref(), &finding.first[..]), (Some("ERROR SUMMARY: 0 errors"), &[][..]));
}

fn check(tool: Check, log: &str, exit: Option<i32>) -> (Finding, Option<Trouble>) {
    let ending = exit.map_or("a time-out after 600 s".to_owned(), |code| format!("exit code {code}"));
    sanitizer::read(tool, log, exit, &ending)
}

#[test]
fn summaries_of_the_sanitizer_are_counted() {
    let clean =
        "========= COMPUTE-SANITIZER\nok: 1 of 1 expectations met\n========= ERROR SUMMARY: 0 errors\n";
    let (finding, trouble) = check(Check::Memcheck, clean, Some(0));
    assert_eq!((finding.ok(), finding.errors, finding.warnings, trouble), (true, Some(0), None, None));
    assert!(finding.first.is_empty());

    let log = "========= COMPUTE-SANITIZER\n========= Invalid __global__ write of size 4 bytes\n=========     at \
               fourfold::kernel+0x90\n=========\n========= ERROR SUMMARY: 1 error\n";
    let (finding, trouble) = check(Check::Memcheck, log, Some(86));
    assert_eq!((finding.ok(), finding.finished, finding.errors, trouble), (false, true, Some(1), None));
    assert_eq!(finding.first, ["Invalid __global__ write of size 4 bytes", "at fourfold::kernel+0x90"]);

    for (summary, exit, errors, warnings) in [
        ("RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)", 0, 0, 0),
        ("RACECHECK SUMMARY: 12 hazards displayed (0 errors, 12 warnings)", 0, 0, 12),
        ("RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)", 86, 1, 0),
    ] {
        let (finding, trouble) = check(Check::Racecheck, &format!("========= {summary}\n"), Some(exit));
        assert_eq!((finding.errors, finding.warnings, trouble), (Some(errors), Some(warnings), None));
        assert_eq!((finding.ok(), finding.summary.as_deref()), (errors == 0, Some(summary)));
    }
}

#[test]
fn a_tool_that_did_not_do_its_work_never_counts_as_clean() {
    let clean = "========= ERROR SUMMARY: 0 errors\n";
    for (log, exit, code) in [
        ("", Some(0), "no_summary"),
        ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", Some(0), "no_summary"),
        (clean, None, "tool_stopped"),
        (clean, Some(3), "run_failed"),
        (
            "========= Error: Device not supported. Please refer to the \"Supported Devices\" section of the sanitizer \
             documentation\n========= ERROR SUMMARY: 2 errors\n",
            Some(86),
            "tool_too_old",
        ),
        (
            "========= Error: Target application terminated before first instrumented API call\n========= ERROR \
             SUMMARY: 0 errors\n",
            Some(0),
            "tool_failed",
        ),
    ] {
        let (finding, trouble) = check(Check::Memcheck, log, exit);
        let trouble = trouble.unwrap_or_else(|| panic!("there is trouble with {log}"));
        assert_eq!((trouble.code, trouble.part.as_str(), finding.ok()), (code, "memcheck", false), "{log}");
    }
}

#[test]
fn initcheck_watches_every_launch_and_the_others_one() {
    let selection = selection();
    for tool in [Check::Memcheck, Check::Racecheck, Check::Initcheck, Check::Synccheck] {
        let arguments: Vec<String> =
            tool.arguments(&selection).iter().map(|word| word.to_str().unwrap().to_owned()).collect();
        assert_eq!(arguments[..2], ["--tool", tool.name()]);
        let skips = arguments.join(" ").contains("--launch-skip 3 --launch-count 1");
        assert_eq!(skips, tool != Check::Initcheck, "{arguments:?}");
        let watched = check(tool, "", Some(0)).0.watched;
        assert_eq!(watched, if skips { "segment" } else { "all" });
    }
}

fn report() -> Report {
    let counters = read(&data("raw_gh100_default.csv"));
    Report {
        ok: false,
        file: "layer.fir".to_owned(),
        target: "sm_90a".to_owned(),
        device: Some("NVIDIA H200 (sm_90, 132 SMs, 139.8 GiB)".to_owned()),
        chip: Some(Chip::Gh100),
        segment: 2,
        kernel: "nvfp4_scaled_mm+add>f32".to_owned(),
        library: None,
        plain: Some(PlainRun {
            ok: Some(true),
            error: None,
            launched: vec![Launched { segment: 2, kernel: "nvfp4_scaled_mm+add>f32".to_owned() }],
        }),
        traffic: Traffic::new(Some(86_000_000), Some(262_144), Some(&counters)),
        counters: Some(counters),
        checks: Vec::new(),
        troubles: Vec::new(),
        tools: vec![ToolUse {
            tool: "ncu",
            path: "/usr/bin/ncu".to_owned(),
            release: Some("2025.3".to_owned()),
            command: Vec::new(),
            seconds: 2.5,
        }],
        kept: None,
    }
}

#[test]
fn the_exit_code_says_the_worst() {
    let clean = check(Check::Memcheck, "========= ERROR SUMMARY: 0 errors\n", Some(0)).0;
    let found = check(Check::Memcheck, "========= ERROR SUMMARY: 2 errors\n", Some(86)).0;
    let trouble = Trouble::new("ncu", "no_tool", "ncu not found", "install it");
    let good = report();
    assert_eq!((good.exit_code(), good.clone().concluded().ok), (0, true));
    let with = |checks: &[&Finding], troubles: &[&Trouble]| Report {
        checks: checks.iter().copied().cloned().collect(),
        troubles: troubles.iter().copied().cloned().collect(),
        ..good.clone()
    };
    assert_eq!(with(&[&clean], &[]).exit_code(), 0);
    assert_eq!(with(&[&clean], &[&trouble]).exit_code(), 3);
    assert_eq!(with(&[&clean, &found], &[&trouble]).exit_code(), 1, "a wrong result outranks a missing part");
    let plain = |ok| Report { plain: Some(PlainRun { ok, error: None, launched: vec![] }), ..good.clone() };
    assert_eq!([plain(Some(false)).exit_code(), plain(None).exit_code()], [1, 3]);
    assert_eq!(Report { plain: None, ..good.clone() }.exit_code(), 3);
    // Errors of a broken tool are not errors of the kernel.
    let log = "========= Error: Device not supported\n========= ERROR SUMMARY: 2 errors\n";
    let (broken, trouble) = check(Check::Memcheck, log, Some(86));
    assert_eq!(with(&[&broken], &[&trouble.unwrap()]).exit_code(), 3);
}

#[test]
fn people_read_a_table() {
    let mut report = report();
    let log = "========= Race reported between Write access at 0x90\n========= RACECHECK SUMMARY: 1 hazard displayed \
               (1 error, 0 warnings)\n";
    report.checks = vec![
        check(Check::Memcheck, "========= ERROR SUMMARY: 0 errors\n", Some(0)).0,
        check(Check::Racecheck, log, Some(86)).0,
    ];
    report.troubles =
        vec![Trouble::new("initcheck", "tool_stopped", "it took too long", "give it more time")];
    let page = data("raw_gh100_default.csv").replace("\"sm__inst_executed_pipe_tma.sum\"", "\"another\"");
    report.counters = Some(read(&page));
    let expected = expect![[r#"
        layer.fir for sm_90a, NVIDIA H200 (sm_90, 132 SMs, 139.8 GiB)
        segment 2: nvfp4_scaled_mm+add>f32
        run without tools: results as expected

        ncu, counters of gh100: caches are cold and clocks are not locked, so compare
        durations only with other durations of ncu
          duration                      180.16 µs
          SM throughput                   61.93 %
          DRAM throughput                 10.51 %
          L2 throughput                   34.25 %
          L2 hit rate                     71.00 %
          DRAM read                    86690304 B, 1.008 of the minimal 86000000 B
          DRAM written                   130816 B, 0.499 of the minimal 262144 B
          tensor pipe, whole              95.02 %
          tensor pipe, FP                 94.90 %
          matrix instructions              130771
          TMA instructions                      ?
          TMA loaded                 1073741824 B
          shared conflicts                     12
          local loads                           0
          local stores                          0
          warps active                    18.75 %
          registers per thread                168
          shared memory per CTA          213188 B
          CTAs per grid                       132
          CTAs per cluster                      2
          waves                                 1
          limit by registers                    1
          limit by shared mem.                  1
          limit by warps                        5
          limit by CTAs                        32
          limit by barriers                    16
          warps stalled for      gmma 7.125, long_scoreboard 1.500, wait 0.750
          missing: sm__inst_executed_pipe_tma.sum: ncu's report has no such column

        compute-sanitizer
          memcheck   ok; the segment's launch, exit code 0
          racecheck  1 error; the segment's launch, exit code 86
                     Race reported between Write access at 0x90

        missing
          initcheck: tool_stopped: it took too long
            help: give it more time
    "#]];
    expected.assert_eq(&report.to_string());
}

#[test]
fn a_library_call_is_found_by_its_position() {
    let collect = |selection: &Selection| {
        let collect = Collect {
            chip: Chip::Gh100,
            selection,
            set: Set::Curated,
            report: Path::new("report"),
            refused: &[],
            has_boost_option: false,
        };
        collect.arguments().iter().map(|it| it.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let checks = |check: Check, selection: &Selection| {
        let words = check.arguments(selection);
        words.iter().map(|it| it.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    };
    let first = Selection::library_call([ENTRY, "_ZN3rowE"], 2, 0);
    assert_eq!((first.measurable(), first.before_of_all()), (Ok(()), Some(2)));
    let text = collect(&first);
    assert!(text.contains("--launch-skip 2 --launch-count 1") && !text.contains("--kernel-name "), "{text}");
    assert!(first.holds("nvjet_sm90_hss_64x64"));
    assert!(!first.holds("_ZN3rowEPKv") && !first.holds("_ZN8fourfold6kernelEv") && !first.holds(ENTRY));
    // Another call may have launched any number of kernels.
    let second = Selection::library_call([ENTRY], 2, 1);
    let trouble = second.measurable().unwrap_err();
    assert_eq!((trouble.code, second.before_of_all()), ("unknown_launch", None));
    assert!(trouble.message.contains("after 1 call of it"), "{trouble}");
    assert!(!checks(Check::Memcheck, &second).contains("--launch-skip"));
    let found = check(Check::Memcheck, "========= ERROR SUMMARY: 0 errors\n", Some(0)).0;
    assert_eq!((found.clone().watching(&first).watched, found.watching(&second).watched), ("segment", "all"));
    // A generated kernel is found by its name all the same, and other calls do not count.
    let kernel = Selection::new(ENTRY, [ENTRY], 3).after_library_calls(2);
    assert_eq!((kernel.measurable(), kernel.before(), kernel.before_of_all()), (Ok(()), 3, None));
    assert!(collect(&kernel).contains("--launch-skip 3 --launch-count 1"));
    assert!(!checks(Check::Racecheck, &kernel).contains("--launch-skip"));
    assert!(checks(Check::Racecheck, &selection()).contains("--launch-skip 3 --launch-count 1"));
}
