//! Tests of records: reading, merging, and building a matrix.

use std::collections::BTreeMap;

use fourfold_tuner::matrix::{Matrix, MatrixError};
use fourfold_tuner::parameters::{Parameters, Value};
use fourfold_tuner::problem::{Problem, Weighted};
use fourfold_tuner::record::{Machine, Record, SCHEMA, State, Timing};
use fourfold_tuner::records::{Lines, ReadError, merge, read};

const SMALL: Problem = Problem::new(128, 256, 512);
const LARGE: Problem = Problem::new(4096, 4096, 4096);

fn machine() -> Machine {
    Machine { gpu: "NVIDIA B200".to_owned(), sms: 148, driver: "580.95".to_owned(), l2_bytes: 126 << 20 }
}

fn timing(median_us: f64) -> Timing {
    Timing {
        samples_us: vec![median_us],
        median_us,
        min_us: median_us,
        p90_us: median_us,
        dispersion: 0.005,
        calls: 20,
        copies: 4,
        l2: "rotating".to_owned(),
        clocks_mhz: None,
    }
}

/// A record of a kernel on a problem, with an optional time.
fn record(kernel: &str, problem: Problem, state: State, median_us: Option<f64>) -> Record {
    let tile = Value::from("128x128x256");
    Record {
        schema: SCHEMA,
        kernel: kernel.to_owned(),
        generator: "scaled_mma.sm100".to_owned(),
        target: "sm_100a".to_owned(),
        name: format!("tile {kernel}"),
        parameters: Parameters(BTreeMap::from([("tile".to_owned(), tile)])),
        problem: Some(problem),
        workload: Some("scaled_mma nvfp4 bf16".to_owned()),
        state,
        message: None,
        broken: Vec::new(),
        build: None,
        timing: median_us.map(timing),
        check: None,
        machine: Some(machine()),
        at: 1_700_000_000,
    }
}

fn good(kernel: &str, problem: Problem, median_us: f64) -> Record {
    record(kernel, problem, State::Good, Some(median_us))
}

fn text(records: &[Record]) -> String {
    records.iter().map(|record| serde_json::to_string(record).expect("JSON") + "\n").collect()
}

#[test]
fn a_matrix_has_what_was_tried() {
    let mut built = good("c", SMALL, 1.0);
    (built.problem, built.timing, built.state) = (None, None, State::Built);
    let records =
        [good("b", LARGE, 200.0), good("a", SMALL, 10.0), record("b", SMALL, State::Refused, None), built];
    let matrix = Matrix::from_records(&records, &[]).expect("a matrix");
    let ids: Vec<&str> = matrix.kernels.iter().map(|kernel| &*kernel.id).collect();
    // A kernel that was only built has no column.
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(matrix.problems.iter().map(|row| row.problem).collect::<Vec<_>>(), [SMALL, LARGE]);
    assert_eq!((matrix.time_us(0, 0), matrix.time_us(1, 1)), (Some(10.0), Some(200.0)));
    // A refused problem has a cell; one that was not tried has none.
    assert_eq!(matrix.cell(0, 1).map(|cell| (cell.state, cell.median_us)), Some((State::Refused, None)));
    assert_eq!(matrix.cell(1, 0), None);
    assert_eq!(matrix.machine, Some(machine()));

    let mut reversed = records.to_vec();
    reversed.reverse();
    assert_eq!(Matrix::from_records(&reversed, &[]), Ok(matrix));
    assert_eq!(Matrix::from_records(&[], &[]), Ok(Matrix::default()));
}

#[test]
fn rows_are_the_weighted_problems() {
    let unknown = Problem::new(1, 2, 3);
    let weights = |weights: [f64; 3]| {
        [unknown, LARGE, unknown]
            .iter()
            .zip(weights)
            .map(|(problem, weight)| Weighted { problem: *problem, weight })
            .collect::<Vec<_>>()
    };
    let records = [good("a", SMALL, 10.0), good("a", LARGE, 200.0)];
    let matrix = Matrix::from_records(&records, &weights([2.0, 1.0, 0.5])).expect("a matrix");
    let rows: Vec<(Problem, f64)> = matrix.problems.iter().map(|row| (row.problem, row.weight)).collect();
    assert_eq!(rows, [(unknown, 2.5), (LARGE, 1.0)]);
    assert_eq!((matrix.best_us(0), matrix.best_us(1)), (None, Some(200.0)));
    for weight in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Matrix::from_records(&records, &weights([1.0, weight, 1.0])).expect_err("no weight");
        assert!(matches!(error, MatrixError::Weight { problem: LARGE, .. }), "{error}");
    }
}

#[test]
fn all_that_was_measured_counts() {
    let again = |times: &[f64]| -> Vec<Record> { times.iter().map(|time| good("a", SMALL, *time)).collect() };
    let cell = |records: &[Record]| {
        *Matrix::from_records(records, &[]).expect("a matrix").cell(0, 0).expect("a cell")
    };
    // With one measurement, the noise is its dispersion.
    assert_eq!((cell(&again(&[10.0])).median_us, cell(&again(&[10.0])).noise), (Some(10.0), 0.005));
    assert_eq!(cell(&again(&[10.0, 30.0, 11.0])).median_us, Some(11.0));
    let two = cell(&again(&[10.0, 12.0]));
    assert_eq!(two.median_us, Some(11.0));
    assert!((two.noise - 2.0 / 11.0).abs() < 1e-12, "{two:?}");
    // The dispersion of a measurement counts if it exceeds the spread of the medians.
    let mut records = again(&[10.0, 10.0]);
    records[1].timing.as_mut().expect("a time").dispersion = 0.03;
    assert_eq!(cell(&records).noise, 0.03);

    // A kernel that was once wrong has no time, regardless of earlier or later records.
    for state in [State::Wrong, State::LaunchError, State::Refused] {
        for position in 0..3 {
            let mut records = again(&[10.0, 11.0]);
            records.insert(position, record("a", SMALL, state, (state == State::Wrong).then_some(5.0)));
            assert_eq!((cell(&records).state, cell(&records).median_us), (state, None));
        }
    }
    // A slow kernel is correct, with or without a time.
    let slow = [record("a", SMALL, State::Slow, Some(90.0))];
    assert_eq!((cell(&slow).state, cell(&slow).median_us), (State::Slow, Some(90.0)));
    let slow = [record("a", SMALL, State::Slow, None)];
    assert_eq!((cell(&slow).state, cell(&slow).median_us), (State::Slow, None));
}

#[test]
fn what_is_not_comparable_is_refused() {
    let error = |change: fn(&mut Record)| {
        let mut other = good("b", SMALL, 11.0);
        change(&mut other);
        let records = [good("a", SMALL, 10.0), other];
        Matrix::from_records(&records, &[]).expect_err("not comparable").to_string()
    };
    let machines = error(|record| record.machine.as_mut().expect("a machine").driver = "590.1".to_owned());
    for part in ["driver 580.95", "driver 590.1", "keep the records of one `machine`"] {
        assert!(machines.contains(part), "{machines}");
    }
    let caches = error(|record| record.timing.as_mut().expect("a time").l2 = "warm".to_owned());
    assert!(caches.contains("`rotating` and `warm`") && caches.contains("one `timing.l2`"), "{caches}");
    let targets = error(|record| record.target = "sm_120a".to_owned());
    let work = error(|record| record.workload = Some("scaled_mma nvfp4 f32".to_owned()));
    assert!(work.contains("nvfp4 bf16` and `scaled_mma nvfp4 f32`") && work.contains("`workload`"), "{work}");
    assert!(targets.contains("`sm_100a` and `sm_120a`") && targets.contains("one `target`"), "{targets}");
    let nowhere = error(|record| record.machine = None);
    assert!(nowhere.contains("kernel b on 128x256x512 has a time and no `machine`"), "{nowhere}");
    let time = error(|record| record.timing.as_mut().expect("a time").median_us = 0.0);
    assert!(time.contains("its median is 0"), "{time}");
    let time = error(|record| record.timing = None);
    assert!(time.contains("its median is absent"), "{time}");
    let conflict = error(|record| {
        record.kernel = "a".to_owned();
        record.parameters = Parameters::default();
    });
    assert!(conflict.contains("kernel a has parameters `tile=128x128x256`"), "{conflict}");
}

#[test]
fn lines_are_read() {
    let records = [good("a", SMALL, 10.0), record("b", LARGE, State::Wrong, None)];
    let whole = text(&records);
    let lines = |records: &[Record]| Lines { records: records.to_vec(), torn: None };
    assert_eq!(read(&whole), Ok(lines(&records)));
    assert_eq!(read(""), Ok(lines(&[])));
    let blank = format!("\n{}\r\n  \n", whole.trim_end().replace('\n', "\r\n\n"));
    assert_eq!(read(&blank), Ok(lines(&records)));
    // A last line without a newline that parses is complete.
    assert_eq!(read(whole.trim_end()), Ok(lines(&records)));

    // The writer was killed anywhere in the second line.
    let first = text(&records[..1]);
    for length in first.len() + 1..whole.len() - 1 {
        let read = read(&whole[..length]).expect("the first line is whole");
        let torn = read.torn.expect("the second line is torn");
        assert_eq!((read.records.as_slice(), torn.line), (&records[..1], 2));
        assert_eq!(torn.text, whole[first.len()..length].trim());
        assert!(torn.to_string().contains("line 2 has no end"), "{torn}");
    }
}

#[test]
fn what_is_no_record_is_refused_with_its_line() {
    let good = text(&[good("a", SMALL, 10.0)]);
    let line = |text: String| read(&text).expect_err("no record");
    let error = line(format!("{good}{}{good}", good.replace("\"schema\":1", "\"schema\":2")));
    assert_eq!(error, ReadError::Schema { line: 2, found: 2 });
    let error = line(format!("{good}{{\"schema\":3,\"unheard\":[]}}\n"));
    assert_eq!(error, ReadError::Schema { line: 2, found: 3 });
    // Also as the last line without a newline: another version wrote it completely.
    let error = line(format!("{good}{{\"schema\":3,\"unheard\":[]}}"));
    assert_eq!(error, ReadError::Schema { line: 2, found: 3 });
    for (bad, says) in [
        ("no JSON\n", "expected ident"),
        ("[]\n", "invalid length 0"),
        ("{\"schema\":1}\n", "missing field `kernel`"),
        (&good.replace("128x256x512", "128x0x512"), "`128x0x512` is not a problem"),
        (&good.replace("\"good\"", "\"fine\""), "unknown variant `fine`"),
        // An incomplete line that was continued.
        (&format!("{}\n", &good[..40]), "EOF"),
        // The last line is not a prefix of a record.
        ("no JSON", "expected ident"),
    ] {
        let error = line(format!("{good}\n{bad}")).to_string();
        assert!(error.starts_with("line 3, column ") && error.contains(says), "{error}");
        assert!(!error.contains("at line 1"), "{error}");
    }
}

#[test]
fn files_are_merged() {
    let (a, b) = (good("a", SMALL, 10.0), good("b", SMALL, 12.0));
    let mut later = a.clone();
    later.at += 1;
    let files =
        [("one.jsonl", vec![a.clone(), b.clone()]), ("two.jsonl", vec![a.clone(), later.clone(), b.clone()])];
    // Copies are dropped; a repeated measurement is not a copy.
    assert_eq!(merge(&files), Ok(vec![a.clone(), b.clone(), later]));
    assert_eq!(merge(&[]), Ok(Vec::new()));

    let mut other = a.clone();
    other.target = "sm_120a".to_owned();
    let conflict =
        merge(&[("one.jsonl", vec![b.clone(), a]), ("two.jsonl", vec![b, other])]).expect_err("a conflict");
    let text = conflict.to_string();
    assert!(text.contains("kernel a has target `sm_100a` in one.jsonl and `sm_120a` in two.jsonl"), "{text}");
}
