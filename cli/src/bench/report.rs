//! The report of a benchmark, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt;

use fourfold_executor::measure::{Rounds, summary};
use serde::Serialize;

use super::check::Checked;
use super::peers::PeerVersions;

/// The peers, in the order of their columns.
pub const PEERS: [&str; 2] = ["eager", "compile"];

/// The report of a benchmark.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BenchReport {
    /// True if every case was measured and its outputs are right.
    pub ok: bool,
    /// The GPU and the versions of everything that was measured.
    pub machine: MachineReport,
    /// The lengths of a measurement.
    pub protocol: ProtocolReport,
    /// Geometric means of the suites.
    pub suites: Vec<SuiteReport>,
    /// One entry for each case, element type and size.
    pub cases: Vec<CaseReport>,
    /// Remarks, such as the reason that no peer was measured.
    pub notes: Vec<String>,
}

/// The machine of a measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MachineReport {
    /// The GPU with its compute capability, SMs and memory.
    pub gpu: String,
    /// The L2 cache in bytes.
    pub l2_bytes: u64,
    /// The release of the driver, if the system tells it.
    pub driver: Option<String>,
    /// The CUDA version of the driver.
    pub driver_cuda: String,
    /// The target of the kernels.
    pub target: String,
    /// The version of Fourfold.
    pub fourfold: String,
    /// The version of nvcc, if a kernel was built with one.
    pub nvcc: Option<String>,
    /// The version of CUTLASS.
    pub cutlass: Option<String>,
    /// The versions of the peers; `None` if none was measured.
    pub peers: Option<PeerVersions>,
}

/// The lengths of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProtocolReport {
    /// The rounds. In each, the program, the copy and the peers are measured in turn.
    pub rounds: usize,
    /// The warm-up before each measurement, in milliseconds.
    pub warm_up_ms: u64,
    /// The timed replays of a graph in each round.
    pub replays: usize,
    /// True if the caches are cold: the sets exceed three times the L2 cache, unless a case says otherwise.
    pub cold_l2: bool,
}

impl ProtocolReport {
    /// The protocol of some rounds.
    pub(super) fn new(rounds: usize, each: &Rounds) -> ProtocolReport {
        let warm_up_ms = u64::try_from(each.warm_up.as_millis()).unwrap_or(u64::MAX);
        ProtocolReport { rounds, warm_up_ms, replays: each.replays, cold_l2: true }
    }
}

/// Geometric means of a suite, over the cases that have the figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SuiteReport {
    /// The suite.
    pub suite: String,
    /// The number of cases that were measured.
    pub measured: usize,
    /// The number of cases.
    pub cases: usize,
    /// The mean share of the copy's bandwidth, in percent.
    pub percent_of_copy: Option<f64>,
    /// The mean ratio to each peer.
    pub ratios: BTreeMap<String, f64>,
}

/// The times of one thing over both rounds, in microseconds per call.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Times {
    /// The median.
    pub median_us: f64,
    /// The minimum.
    pub min_us: f64,
    /// The 90th percentile.
    pub p90_us: f64,
    /// The medians of the rounds.
    pub rounds_us: Vec<f64>,
    /// Every sample, round after round.
    pub samples_us: Vec<f64>,
}

impl Times {
    /// Summarizes the samples of rounds; `None` without samples.
    pub(super) fn of(rounds: &[Vec<f64>]) -> Option<Times> {
        let samples: Vec<f64> = rounds.iter().flatten().copied().collect();
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let all = summary(&samples);
        let rounds_us =
            rounds.iter().filter(|round| !round.is_empty()).map(|round| summary(round).median).collect();
        let (median_us, min_us, p90_us) = (all.median, all.min, all.p90);
        Some(Times { median_us, min_us, p90_us, rounds_us, samples_us: samples })
    }

    /// The largest distance of a round's median from the smallest one, in percent.
    pub(super) fn drift_percent(&self) -> f64 {
        let (least, most) =
            self.rounds_us.iter().fold((f64::INFINITY, 0f64), |(a, b), us| (a.min(*us), b.max(*us)));
        if least > 0.0 && least.is_finite() { (most / least - 1.0) * 100.0 } else { 0.0 }
    }
}

/// The result of a peer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PeerReport {
    /// It was measured.
    Measured {
        /// The times.
        times: Times,
        /// Its time divided by ours: above 1 we are faster.
        ratio: f64,
    },
    /// It failed.
    Failed {
        /// The last line of its error.
        error: String,
    },
}

/// The state of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CaseState {
    /// It was measured, and its outputs are right.
    Ok,
    /// It was measured, and an output is wrong.
    Wrong,
    /// A segment has no kernel on the device.
    NotOnTheDevice,
    /// The device, its memory or the comparison failed.
    Failed,
}

/// One program at one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CaseReport {
    /// The suite.
    pub suite: String,
    /// The case.
    pub case: String,
    /// The element type, if the case lists types.
    #[serde(rename = "type")]
    pub element: Option<String>,
    /// The extents.
    pub size: BTreeMap<String, u64>,
    /// The element type and the extents as text.
    #[serde(skip)]
    pub size_text: String,
    /// The state.
    pub state: CaseState,
    /// The reasons, unless it is `ok`.
    pub reasons: Vec<String>,
    /// The kernels and library calls of one call.
    pub kernels: usize,
    /// The bytes of inputs and outputs of one call, and those of params that exceed the L2 cache together.
    pub bytes: u64,
    /// The sets that calls rotate through.
    pub sets: usize,
    /// The calls of a graph.
    pub calls: usize,
    /// True if the sets exceed three times the L2 cache.
    pub rotating: bool,
    /// The times of the program.
    pub times: Option<Times>,
    /// Bytes per time.
    pub gb_per_s: Option<f64>,
    /// The times of a copy of as many bytes.
    pub copy: Option<Times>,
    /// The copy's time divided by the program's, in percent.
    pub percent_of_copy: Option<f64>,
    /// The peers, by name.
    pub peers: BTreeMap<String, PeerReport>,
    /// The comparison of the outputs.
    pub checked: Option<Checked>,
}

impl CaseReport {
    fn ratio(&self, peer: &str) -> Option<f64> {
        match self.peers.get(peer)? {
            PeerReport::Measured { ratio, .. } => Some(*ratio),
            PeerReport::Failed { .. } => None,
        }
    }
}

/// The geometric mean; `None` without values.
fn geometric_mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value.ln(), count + 1));
    (count > 0).then(|| (sum / count as f64).exp())
}

impl BenchReport {
    /// Builds a report, with the means of each suite.
    pub(super) fn new(
        machine: MachineReport,
        protocol: ProtocolReport,
        cases: Vec<CaseReport>,
        notes: Vec<String>,
    ) -> BenchReport {
        let mut suites: Vec<SuiteReport> = Vec::new();
        for case in &cases {
            if suites.iter().any(|suite| suite.suite == case.suite) {
                continue;
            }
            let of_suite = || cases.iter().filter(|other| other.suite == case.suite);
            let ratios = PEERS.iter().filter_map(|peer| {
                let mean = geometric_mean(of_suite().filter_map(|case| case.ratio(peer)))?;
                Some(((*peer).to_owned(), mean))
            });
            suites.push(SuiteReport {
                suite: case.suite.clone(),
                measured: of_suite().filter(|case| case.times.is_some()).count(),
                cases: of_suite().count(),
                percent_of_copy: geometric_mean(of_suite().filter_map(|case| case.percent_of_copy)),
                ratios: ratios.collect(),
            });
        }
        let ok = cases.iter().all(|case| case.state == CaseState::Ok);
        BenchReport { ok, machine, protocol, suites, cases, notes }
    }

    /// The exit code: 1 if an output is wrong, 3 if a case was not measured.
    pub fn exit_code(&self) -> u8 {
        let has = |state: CaseState| self.cases.iter().any(|case| case.state == state);
        match self.ok {
            true => 0,
            false if has(CaseState::Wrong) => 1,
            false => 3,
        }
    }
}

/// The largest drift between rounds of a steady measurement, in percent.
const STEADY_PERCENT: f64 = 2.0;

/// The header of the table.
const HEADER: [&str; 8] = ["case", "size", "us", "GB/s", "% of copy", "eager", "compile", "checked"];

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MachineReport { gpu, driver, driver_cuda, target, peers, .. } = &self.machine;
        let driver = driver.as_deref().unwrap_or("of unknown release");
        writeln!(f, "{gpu}, driver {driver} (CUDA {driver_cuda}), {target}")?;
        if let Some(PeerVersions { python, torch, .. }) = peers {
            writeln!(f, "peers: torch {torch}, Python {python}; a ratio is the peer's time divided by ours")?;
        }
        for suite in &self.suites {
            writeln!(f, "\n{}", suite.suite)?;
            let mut rows = vec![HEADER.map(str::to_owned)];
            let cases = self.cases.iter().filter(|case| case.suite == suite.suite);
            rows.extend(cases.clone().map(row));
            if suite.measured > 1 {
                rows.push(mean_row(suite));
            }
            write_table(f, &rows)?;
            for case in cases {
                for reason in &case.reasons {
                    writeln!(f, "  {} {}: {reason}", case.case, case.size_text)?;
                }
                let drift = case.times.as_ref().map_or(0.0, Times::drift_percent);
                if drift > STEADY_PERCENT {
                    let name = format!("{} {}", case.case, case.size_text);
                    writeln!(
                        f,
                        "  {name}: the medians of the rounds differ by {drift:.1} %; measure it again"
                    )?;
                }
                for (peer, report) in &case.peers {
                    if let PeerReport::Failed { error } = report {
                        writeln!(f, "  {} {}: {peer} failed: {error}", case.case, case.size_text)?;
                    }
                }
            }
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        Ok(())
    }
}

fn row(case: &CaseReport) -> [String; 8] {
    let number = |value: Option<f64>, digits: usize| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
    };
    let peer = |name: &str| match case.peers.get(name) {
        None => "-".to_owned(),
        Some(PeerReport::Failed { .. }) => "failed".to_owned(),
        Some(PeerReport::Measured { ratio, .. }) => format!("{ratio:.2}x"),
    };
    let checked = match (&case.state, &case.checked) {
        (CaseState::Wrong, _) => "WRONG".to_owned(),
        (CaseState::NotOnTheDevice, _) => "not on the device".to_owned(),
        (CaseState::Failed, _) => "FAILED".to_owned(),
        (CaseState::Ok, Some(Checked { rows: Some(rows), .. })) => format!("{rows} rows"),
        (CaseState::Ok, Some(_)) => "all".to_owned(),
        (CaseState::Ok, None) => "-".to_owned(),
    };
    let cold = if case.rotating || case.times.is_none() { "" } else { "*" };
    [
        case.case.clone(),
        case.size_text.clone(),
        number(case.times.as_ref().map(|times| times.median_us), 2) + cold,
        number(case.gb_per_s, 0),
        number(case.percent_of_copy, 1),
        peer(PEERS[0]),
        peer(PEERS[1]),
        checked,
    ]
}

fn mean_row(suite: &SuiteReport) -> [String; 8] {
    let ratio =
        |peer: &str| suite.ratios.get(peer).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"));
    let percent = suite.percent_of_copy.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.1}"));
    let empty = String::new;
    let name = "geometric mean".to_owned();
    [name, empty(), empty(), empty(), percent, ratio(PEERS[0]), ratio(PEERS[1]), empty()]
}

/// Writes rows with columns of equal width: the first two and the last flush left, figures flush right.
fn write_table(f: &mut fmt::Formatter<'_>, rows: &[[String; 8]]) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    for row in rows {
        let mut line = String::from("  ");
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(width(column).saturating_sub(cell.chars().count()));
            let is_left = column < 2 || column == row.len() - 1;
            line += &if is_left { format!("{cell}{pad}  ") } else { format!("{pad}{cell}  ") };
        }
        writeln!(f, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
