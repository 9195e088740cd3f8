//! The order, labels and texts of a heat-map, common to all output formats.

use std::collections::BTreeMap;

use crate::matrix::Matrix;
use crate::record::State;

use super::Blank;

/// The longest column label, in characters. Tooltips and the kernel lists show the full name.
const LABEL: usize = 44;

/// A matrix in display order.
#[derive(Clone, Debug)]
pub(super) struct Arranged {
    pub rows: Vec<Row>,
    pub columns: Vec<Column>,
    /// Number of selected columns. They come first.
    pub chosen: usize,
    /// The common prefix of all names, which labels omit.
    pub prefix: String,
    cells: Vec<Cell>,
}

/// A row: one problem.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub label: String,
    pub weight: f64,
    pub best_us: Option<f64>,
    pub served: Served,
}

/// The coverage of a problem by the selection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Served {
    /// There is no selection.
    Unasked,
    /// Covered by the kernel of this column, with its efficiency if known.
    By(usize, Option<f64>),
    /// Not covered, although a correct kernel exists.
    Uncovered,
    /// Not covered, because no kernel is correct and timed.
    Hopeless,
}

/// A column: one kernel.
#[derive(Clone, Debug)]
pub(super) struct Column {
    /// A short, unique label: the name without the common prefix.
    pub label: String,
    pub name: String,
    pub id: String,
    pub generator: String,
    pub target: String,
    pub parameters: String,
    /// The mean efficiency over the timed problems.
    pub mean: Option<f64>,
    /// Number of timed problems.
    pub timed: usize,
    /// Number of problems that the selection assigns to it.
    pub serves: usize,
}

/// A cell: one kernel on one problem.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub shown: Shown,
    pub state: Option<State>,
    pub median_us: Option<f64>,
    pub noise: f64,
    /// True if no kernel is faster.
    pub best: bool,
}

/// The content of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Shown {
    /// An efficiency, above 0 and at most 1.
    Efficiency(f64),
    Blank(Blank),
}

impl Arranged {
    pub fn new(matrix: &Matrix, chosen: &[usize], assignment: &[Option<usize>]) -> Arranged {
        let (problems, kernels) = (matrix.problems.len(), matrix.kernels.len());
        let shown: Vec<Cell> = (0..problems)
            .flat_map(|problem| (0..kernels).map(move |kernel| cell(matrix, problem, kernel)))
            .collect();
        let efficiencies = |kernel: usize| -> Vec<f64> {
            (0..problems).filter_map(|problem| shown[problem * kernels + kernel].efficiency()).collect()
        };

        // Sums, not means: a kernel that is best on a single problem is not the best kernel.
        let totals: Vec<f64> = (0..kernels).map(|kernel| efficiencies(kernel).iter().sum()).collect();
        let mut columns: Vec<usize> = (0..kernels).collect();
        columns.sort_by(|&a, &b| {
            let kernel = |position: usize| &matrix.kernels[position];
            chosen
                .contains(&b)
                .cmp(&chosen.contains(&a))
                .then(totals[b].total_cmp(&totals[a]))
                .then_with(|| kernel(a).name.cmp(&kernel(b).name))
                .then_with(|| kernel(a).id.cmp(&kernel(b).id))
                .then(a.cmp(&b))
        });
        let mut rows: Vec<usize> = (0..problems).collect();
        rows.sort_by_key(|&row| {
            let problem = matrix.problems[row].problem;
            (problem.m, problem.n, problem.k, problem.l, row)
        });

        let (prefix, labels) = labels(&columns.iter().map(|&k| &matrix.kernels[k]).collect::<Vec<_>>());
        let place = |kernel: usize| columns.iter().position(|&column| column == kernel);
        let served = |problem: usize| {
            let known = assignment.get(problem).copied().flatten();
            match known.and_then(|kernel| Some((place(kernel)?, kernel))) {
                Some((column, kernel)) => Served::By(column, shown[problem * kernels + kernel].efficiency()),
                None if (0..kernels)
                    .all(|kernel| shown[problem * kernels + kernel].efficiency().is_none()) =>
                {
                    Served::Hopeless
                }
                None if chosen.is_empty() => Served::Unasked,
                None => Served::Uncovered,
            }
        };
        Arranged {
            rows: rows
                .iter()
                .map(|&row| Row {
                    label: matrix.problems[row].problem.to_string(),
                    weight: matrix.problems[row].weight,
                    best_us: matrix.best_us(row).filter(|us| usable(*us)),
                    served: served(row),
                })
                .collect(),
            columns: columns
                .iter()
                .zip(labels)
                .map(|(&position, label)| {
                    let kernel = &matrix.kernels[position];
                    let known = efficiencies(position);
                    Column {
                        label,
                        name: plain(&kernel.name),
                        id: plain(&kernel.id),
                        generator: plain(&kernel.generator),
                        target: plain(&kernel.target),
                        parameters: plain(&kernel.parameters.to_string()),
                        mean: (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64),
                        timed: known.len(),
                        serves: assignment.iter().filter(|kernel| **kernel == Some(position)).count(),
                    }
                })
                .collect(),
            chosen: columns.iter().filter(|kernel| chosen.contains(kernel)).count(),
            prefix,
            cells: rows
                .iter()
                .flat_map(|&row| columns.iter().map(move |&column| (row, column)))
                .map(|(row, column)| shown[row * kernels + column])
                .collect(),
        }
    }

    /// The cell at a display position.
    pub fn cell(&self, row: usize, column: usize) -> &Cell {
        &self.cells[row * self.columns.len() + column]
    }

    pub fn is_chosen(&self, column: usize) -> bool {
        column < self.chosen
    }

    /// The kinds of blank cells that occur.
    pub fn blanks(&self) -> Vec<Blank> {
        let has = |blank: &Blank| self.cells.iter().any(|cell| cell.shown == Shown::Blank(*blank));
        Blank::ALL.into_iter().filter(has).collect()
    }

    /// A summary in sentences. For an empty heat-map, the reason why it is empty.
    pub fn summary(&self) -> Vec<String> {
        let (rows, columns) = (self.rows.len(), self.columns.len());
        if rows == 0 || columns == 0 {
            return vec![format!("The heat-map is empty: {} and {}.", problems(rows), kernels(columns))];
        }
        let mut lines = Vec::new();
        let count = |served: Served| self.rows.iter().filter(|row| row.served == served).count();
        let known: Vec<f64> = self
            .rows
            .iter()
            .filter_map(|row| if let Served::By(_, efficiency) = row.served { efficiency } else { None })
            .collect();
        let by = self.rows.iter().filter(|row| matches!(row.served, Served::By(..))).count();
        let mut first = format!("{}, {}.", problems(rows), kernels(columns));
        if self.chosen > 0 {
            first.push_str(&format!(" {} selected: {by} of {} covered", self.chosen, problems(rows)));
            if let Some(worst) = known.iter().copied().min_by(f64::total_cmp) {
                let mean = known.iter().sum::<f64>() / known.len() as f64;
                first.push_str(&format!(
                    ", mean efficiency {} %, worst {} %",
                    percent_fine(mean),
                    percent_fine(worst)
                ));
            }
            first.push('.');
        } else {
            first.push_str(" No kernel is selected.");
        }
        lines.push(first);
        let (uncovered, hopeless) = (count(Served::Uncovered), count(Served::Hopeless));
        if hopeless == rows {
            lines.push("No kernel is correct and timed on any problem.".to_owned());
        } else if hopeless > 0 {
            lines.push(format!("On {} no kernel is correct and timed.", problems(hopeless)));
        }
        if uncovered > 0 {
            lines.push(format!(
                "On {} a kernel is correct, but no selected kernel supports it.",
                problems(uncovered)
            ));
        }
        if !self.prefix.is_empty() {
            lines.push(format!("All kernel names begin with {}", self.prefix));
        }
        lines
    }
}

impl Cell {
    pub fn efficiency(&self) -> Option<f64> {
        if let Shown::Efficiency(efficiency) = self.shown { Some(efficiency) } else { None }
    }

    /// The text in the cell.
    pub fn mark(&self) -> String {
        match self.shown {
            Shown::Efficiency(efficiency) => percent(efficiency).to_string(),
            Shown::Blank(blank) => blank.letter().to_string(),
        }
    }

    /// A one-line description.
    pub fn words(&self) -> String {
        match self.shown {
            Shown::Efficiency(efficiency) => {
                let best = if self.best { ", the best" } else { "" };
                let us = self.median_us.map(time).unwrap_or_default();
                format!(
                    "{us}, efficiency {} %{best}, noise {:.1} %",
                    percent_fine(efficiency),
                    self.noise * 100.0
                )
            }
            Shown::Blank(blank) => {
                let time = self.median_us.map(|us| format!(" ({})", time(us))).unwrap_or_default();
                format!("{}{time}", blank.words())
            }
        }
    }

    /// The state, as it is written in records.
    pub fn state(&self) -> String {
        let spelled = self.state.and_then(|state| serde_json::to_value(state).ok());
        spelled.and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_else(|| "none".to_owned())
    }
}

fn usable(us: f64) -> bool {
    us.is_finite() && us > 0.0
}

fn cell(matrix: &Matrix, problem: usize, kernel: usize) -> Cell {
    let Some(cell) = matrix.cell(problem, kernel) else {
        return Cell {
            shown: Shown::Blank(Blank::Unknown),
            state: None,
            median_us: None,
            noise: 0.0,
            best: false,
        };
    };
    let median_us = cell.median_us.filter(|us| usable(*us));
    // A matrix has no times of incorrect kernels. Should it have one, it is not shown as an efficiency.
    let efficiency = matrix
        .efficiency(problem, kernel)
        .filter(|efficiency| cell.state == State::Good && usable(*efficiency) && *efficiency <= 1.0);
    let shown = efficiency.map_or(Shown::Blank(Blank::of(cell.state)), Shown::Efficiency);
    let best = efficiency == Some(1.0);
    Cell { shown, state: Some(cell.state), median_us, noise: cell.noise, best }
}

/// The common prefix of all names, cut at a word boundary, and a unique label for each kernel.
fn labels(kernels: &[&crate::matrix::Kernel]) -> (String, Vec<String>) {
    let names: Vec<String> = kernels.iter().map(|kernel| plain(&kernel.name)).collect();
    let prefix = common_prefix(&names).to_owned();
    let mut labels: Vec<String> = names.iter().map(|name| shortened(&name[prefix.len()..], LABEL)).collect();
    let alike = |labels: &[String]| -> Vec<bool> {
        let mut counts = BTreeMap::new();
        for label in labels {
            *counts.entry(label.clone()).or_insert(0) += 1;
        }
        labels.iter().map(|label| counts[label] > 1).collect()
    };
    for (position, alike) in alike(&labels).into_iter().enumerate() {
        if alike {
            let id: String = plain(&kernels[position].id).chars().take(8).collect();
            labels[position] = format!("{} #{id}", shortened(&labels[position], LABEL - 10));
        }
    }
    for (position, alike) in alike(&labels).into_iter().enumerate() {
        if alike {
            labels[position] = format!("{} ({})", labels[position], position + 1);
        }
    }
    (prefix, labels)
}

fn common_prefix(names: &[String]) -> &str {
    let [first, rest @ ..] = names else { return "" };
    if rest.is_empty() {
        return "";
    }
    let common = |other: &String| {
        first.char_indices().zip(other.chars()).find(|((_, a), b)| a != b).map_or(
            // One name is a prefix of the other.
            first.len().min(other.len()),
            |((at, _), _)| at,
        )
    };
    let end = rest.iter().map(common).min().unwrap_or(0);
    // Cuts between words, and leaves no name empty.
    let shortest = names.iter().map(String::len).min().unwrap_or(0);
    let cut = first[..end]
        .char_indices()
        .filter(|(_, c)| matches!(c, '_' | '-' | '.' | ' ' | '/' | ':'))
        .map(|(at, c)| at + c.len_utf8())
        .rfind(|cut| *cut < shortest);
    &first[..cut.unwrap_or(0)]
}

/// Shortens a text to `most` characters by removing its middle.
pub(super) fn shortened(text: &str, most: usize) -> String {
    let chars: Vec<char> = text.chars().collect();
    if chars.len() <= most {
        return text.to_owned();
    }
    let kept = most.saturating_sub(1);
    let head = kept.div_ceil(2);
    chars[..head].iter().chain(&['…']).chain(&chars[chars.len() - (kept - head)..]).take(most).collect()
}

/// Replaces characters that control a terminal, are invalid in XML, or change the text direction.
pub(super) fn plain(text: &str) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
            || matches!(c, '\u{feff}' | '\u{fffe}' | '\u{ffff}')
    };
    text.chars().map(|c| if steers(c) { '\u{fffd}' } else { c }).collect()
}

/// Whole percent, rounded down.
pub(super) fn percent(efficiency: f64) -> u32 {
    (efficiency * 100.0).floor() as u32
}

/// Percent with one decimal, rounded down.
pub(super) fn percent_fine(efficiency: f64) -> String {
    format!("{:.1}", (efficiency * 1000.0).floor() / 10.0)
}

/// Microseconds with four significant digits.
pub(super) fn time(us: f64) -> String {
    let digits = match us {
        us if us < 10.0 => 3,
        us if us < 100.0 => 2,
        us if us < 1000.0 => 1,
        _ => 0,
    };
    format!("{us:.digits$} µs")
}

pub(super) fn problems(count: usize) -> String {
    format!("{count} problem{}", if count == 1 { "" } else { "s" })
}

fn kernels(count: usize) -> String {
    format!("{count} kernel{}", if count == 1 { "" } else { "s" })
}
