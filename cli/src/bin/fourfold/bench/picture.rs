//! Pictures of a benchmark: bars of the time of each peer, and of a copy, divided by ours.

use std::path::Path;

use fourfold_cli::bench::{BenchReport, CaseReport, PEERS, PeerReport};
use fourfold_executor::write_file;
use fourfold_tuner::bars::{BarRow, BarValue, Bars};

/// Writes the pictures that have a file.
pub fn write(report: &BenchReport, html: Option<&Path>, svg: Option<&Path>) -> Result<(), String> {
    let bars = bars(report);
    let failed = |error: String| format!("the picture cannot be drawn: {error}");
    if let Some(path) = html {
        let page = bars.html().map_err(|error| failed(error.to_string()))?;
        write_file(path, page.as_bytes()).map_err(|error| fourfold::chain(&error))?;
    }
    if let Some(path) = svg {
        let image = bars.svg().map_err(|error| failed(error.to_string()))?;
        write_file(path, image.as_bytes()).map_err(|error| fourfold::chain(&error))?;
    }
    Ok(())
}

/// Arranges the cases by suite.
fn bars(report: &BenchReport) -> Bars {
    let mut rows = Vec::new();
    for suite in &report.suites {
        let means = suite.ratios.iter().map(|(peer, ratio)| format!(", {peer} {ratio:.2}x"));
        let means: String = means.collect();
        let copy = suite.percent_of_copy.map_or_else(String::new, |percent| format!(", copy {percent:.0} %"));
        let heading = match (means.is_empty(), copy.is_empty()) {
            (true, true) => suite.suite.clone(),
            _ => format!("{} (geometric means{copy}{means})", suite.suite),
        };
        rows.push(BarRow::Heading(heading));
        let cases = report.cases.iter().filter(|case| case.suite == suite.suite);
        rows.extend(cases.map(group));
    }
    let machine = &report.machine;
    let peers = machine.peers.as_ref().map(|peers| format!(", torch {}", peers.torch)).unwrap_or_default();
    Bars {
        title: "Time of a copy and of torch divided by the time of Fourfold".to_owned(),
        caption: vec![
            format!("{}, {}{peers}", machine.gpu, machine.target),
            "A bar to the right of 1x: Fourfold is faster. The copy moves as many bytes.".to_owned(),
        ],
        series: ["copy"].iter().chain(&PEERS).map(|name| (*name).to_owned()).collect(),
        rows,
    }
}

fn group(case: &CaseReport) -> BarRow {
    let state = if case.times.is_some() { "" } else { ", not measured" };
    let copy = case.percent_of_copy.map_or(BarValue::None, |percent| BarValue::Ratio(percent / 100.0));
    let peers = PEERS.iter().map(|peer| match case.peers.get(*peer) {
        Some(PeerReport::Measured { ratio, .. }) => BarValue::Ratio(*ratio),
        Some(PeerReport::Failed { .. }) => BarValue::Failed,
        None => BarValue::None,
    });
    BarRow::Group {
        label: format!("{} {}{state}", case.case, case.size_text),
        values: [copy].into_iter().chain(peers).collect(),
    }
}
