//! The report as text and as an object.

use std::time::Duration;

use serde_json::json;

use super::*;

fn times(median: f64) -> Times {
    Times::of(&[vec![median, median + 1.0, median - 1.0], vec![median; 3]]).expect("samples")
}

fn case(name: &str, us: Option<f64>, state: CaseState) -> CaseReport {
    let peer = |ratio: f64| PeerReport::Measured { times: times(100.0 * ratio), ratio };
    let peers = us.map_or_else(BTreeMap::new, |_| {
        let failed = PeerReport::Failed { error: "RuntimeError: no kernel".to_owned() };
        BTreeMap::from([
            ("eager".to_owned(), peer(2.0)),
            ("compile".to_owned(), if name == "second" { failed } else { peer(1.25) }),
        ])
    });
    CaseReport {
        suite: "softmax".to_owned(),
        case: name.to_owned(),
        element: Some("bf16".to_owned()),
        size: BTreeMap::from([("M".to_owned(), 4096), ("N".to_owned(), 8192)]),
        size_text: "bf16 M=4096 N=8192".to_owned(),
        state,
        reasons: match state {
            CaseState::Ok => Vec::new(),
            CaseState::Wrong => vec!["%y: 3 of 64 elements differ".to_owned()],
            _ => vec!["segment 0 is on the fallback: %y = softmax".to_owned()],
        },
        kernels: usize::from(us.is_some()),
        bytes: 134_217_728,
        sets: 4,
        calls: 20,
        rotating: true,
        times: us.map(times),
        gb_per_s: us.map(|us| 134_217.728 / us),
        copy: us.map(|us| times(us * 0.9)),
        percent_of_copy: us.map(|_| 90.0),
        peers,
        checked: us.map(|_| Checked {
            ok: state == CaseState::Ok,
            rows: (name == "first").then_some(64),
            elements: 64,
            mismatches: if state == CaseState::Wrong { 3 } else { 0 },
            wrong: Vec::new(),
        }),
    }
}

fn report(cases: Vec<CaseReport>) -> BenchReport {
    let machine = MachineReport {
        gpu: "NVIDIA H100 (sm_90, 132 SMs, 79.1 GiB)".to_owned(),
        l2_bytes: 50 << 20,
        driver: Some("580.65".to_owned()),
        driver_cuda: "13.0".to_owned(),
        target: "sm_90a".to_owned(),
        fourfold: "0.1.0".to_owned(),
        nvcc: Some("13.1".to_owned()),
        cutlass: Some("4.5.0".to_owned()),
        peers: Some(PeerVersions {
            python: "3.12.0".to_owned(),
            torch: "2.9.0".to_owned(),
            triton: None,
            cuda: Some("13.0".to_owned()),
            gpu: "NVIDIA H100".to_owned(),
        }),
    };
    let rounds = Rounds { warm_up: Duration::from_millis(200), replays: 15, limit: Duration::from_secs(10) };
    BenchReport::new(machine, ProtocolReport::new(2, &rounds), cases, vec!["a remark".to_owned()])
}

#[test]
fn the_table_has_times_shares_ratios_and_reasons() {
    let cases = vec![
        case("first", Some(50.0), CaseState::Ok),
        case("second", Some(20.0), CaseState::Wrong),
        CaseReport { rotating: false, ..case("third", Some(3.5), CaseState::Ok) },
        case("fourth", None, CaseState::NotOnTheDevice),
    ];
    let expected = "\
NVIDIA H100 (sm_90, 132 SMs, 79.1 GiB), driver 580.65 (CUDA 13.0), sm_90a
peers: torch 2.9.0, Python 3.12.0; a ratio is the peer's time divided by ours

softmax
  case            size                   us   GB/s  % of copy  eager  compile  checked
  first           bf16 M=4096 N=8192  50.00   2684       90.0  2.00x    1.25x  64 rows
  second          bf16 M=4096 N=8192  20.00   6711       90.0  2.00x   failed  WRONG
  third           bf16 M=4096 N=8192  3.50*  38348       90.0  2.00x    1.25x  all
  fourth          bf16 M=4096 N=8192      -      -          -      -        -  not on the device
  geometric mean                                         90.0  2.00x    1.25x
  second bf16 M=4096 N=8192: %y: 3 of 64 elements differ
  second bf16 M=4096 N=8192: compile failed: RuntimeError: no kernel
  fourth bf16 M=4096 N=8192: segment 0 is on the fallback: %y = softmax
note: a remark
";
    let report = report(cases);
    assert_eq!(report.to_string(), expected);
    assert_eq!((report.ok, report.exit_code()), (false, 1));
}

#[test]
fn the_object_has_every_figure() {
    let report = report(vec![case("first", Some(50.0), CaseState::Ok)]);
    assert_eq!((report.ok, report.exit_code()), (true, 0));
    let object = serde_json::to_value(&report).expect("an object");
    let times = json!({
        "median_us": 50.0, "min_us": 49.0, "p90_us": 51.0, "rounds_us": [50.0, 50.0],
        "samples_us": [50.0, 51.0, 49.0, 50.0, 50.0, 50.0],
    });
    let case = &object["cases"][0];
    assert_eq!(case["times"], times);
    assert_eq!((&case["type"], &case["size"]), (&"bf16".into(), &json!({ "M": 4096, "N": 8192 })));
    assert_eq!((&case["state"], &case["rotating"]), (&"ok".into(), &true.into()));
    assert_eq!(case["peers"]["compile"]["ratio"], 1.25);
    assert_eq!(
        case["checked"],
        json!({ "ok": true, "rows": 64, "elements": 64, "mismatches": 0, "wrong": [] })
    );
    assert_eq!(object["protocol"], json!({ "rounds": 2, "warm_up_ms": 200, "replays": 15, "cold_l2": true }));
    let suite = &object["suites"][0];
    assert_eq!((&suite["suite"], &suite["measured"]), (&"softmax".into(), &1.into()));
    let ratio = suite["ratios"]["eager"].as_f64().expect("a number");
    assert!((ratio - 2.0).abs() < 1e-12, "{suite}");
    assert_eq!(object["machine"]["peers"]["torch"], "2.9.0");
}

#[test]
fn a_case_that_was_not_measured_gives_exit_3_and_a_drift_is_named() {
    let missing = report(vec![case("fourth", None, CaseState::NotOnTheDevice)]);
    assert_eq!(missing.exit_code(), 3);
    assert!(!missing.to_string().contains("geometric mean"), "{missing}");
    let drifting = Times::of(&[vec![10.0; 5], vec![10.5; 5]]).expect("samples");
    assert!((drifting.drift_percent() - 5.0).abs() < 1e-9);
    let case = CaseReport { times: Some(drifting), ..case("first", Some(10.0), CaseState::Ok) };
    let text = report(vec![case]).to_string();
    assert!(text.contains("first bf16 M=4096 N=8192: the medians of the rounds differ by 5.0 %"), "{text}");
    assert_eq!(Times::of(&[Vec::new(), Vec::new()]), None);
    assert_eq!(Times::of(&[vec![f64::NAN]]), None);
}
