//! `fourfold select`: chooses the fewest kernels that serve every problem, or the best N.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use fourfold_tuner::matrix::Matrix;
use fourfold_tuner::select::Proof;
use serde_json::{Value, json};

use super::Finished;
use super::choose::{Choose, Chosen};
use super::files::Outputs;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  fourfold select hopper.jsonl --min-efficiency 0.97 --table hopper.table.toml\n  \
    fourfold select hopper.jsonl --at-most 3 --unseen unseen.jsonl\n\n\
    `fourfold compile`, `replay` and `verify` read the table with --dispatch. `-` is the standard input or output.\n\n\
    Exit codes: 0 ok, 1 no kernel serves some problem, 2 bad input, 3 the table cannot be written"
)]
pub struct Arguments {
    #[command(flatten)]
    choose: Choose,
    /// Write the dispatch table, which covers unmeasured shapes too, to FILE
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Evaluate the choice on records of the same kernels on other problems
    #[arg(long, value_name = "RECORDS")]
    unseen: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    super::finish(select(arguments), arguments.json)
}

fn select(arguments: &Arguments) -> Result<Finished> {
    let outputs = Outputs::new(arguments.table.as_deref(), arguments.json)?;
    let unseen = arguments.unseen.iter().map(PathBuf::as_path);
    Outputs::spare(arguments.table.as_deref(), arguments.choose.inputs().chain(unseen))?;
    let chosen = arguments.choose.choose()?;
    let Chosen { matrix, selection } = &chosen;
    let names: Vec<&str> =
        selection.kernels.iter().map(|kernel| matrix.kernels[*kernel].name.as_str()).collect();
    let mut text = format!(
        "{}: {} of {}, {}",
        arguments.choose.goal(),
        names.len(),
        matrix.kernels.len(),
        selection.proof
    );
    if let Some(ties) = &selection.ties {
        text += &format!("; no choice of this size has a larger mean: {ties}");
    }
    let percent =
        |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    text += &format!("\nmean {}, worst {}\n", percent(selection.mean), percent(selection.worst));
    for (position, name) in names.iter().enumerate() {
        let parameters = &matrix.kernels[selection.kernels[position]].parameters;
        text += &format!("  {}: {name}\n     {parameters}\n", letter(position));
    }
    let mut rows = Vec::new();
    text += &format!("\n{:<24} {:>10} {:>10}  kernel\n", "problem", "us", "of best");
    for (problem, kernel) in selection.assignment.iter().enumerate() {
        let row = row(matrix, problem, *kernel);
        let which = kernel.and_then(|kernel| selection.kernels.iter().position(|known| *known == kernel));
        text += &line(&row, &which.map_or("no correct kernel".to_owned(), letter));
        rows.push(row);
    }
    let needs_table = arguments.table.is_some() || !arguments.unseen.is_empty();
    let table = match super::table::learn(&chosen) {
        Ok(table) => {
            text += &format!("\nthe table: {}\n", table.summary);
            Some(table)
        }
        Err(error) if needs_table => return Err(error),
        // Kernels that no dispatch table can name may be chosen too.
        Err(error) => {
            text += &format!("\nno table: {error:#}\n");
            None
        }
    };
    if let (Some(path), Some(table)) = (&arguments.table, &table) {
        outputs.write(path, table.text.as_bytes())?;
        text += &format!("written to {}: use it with --dispatch\n", path.display());
    }
    let (mut unseen, mut best_of_chosen) = (Vec::new(), Vec::new());
    if let (false, Some(table)) = (arguments.unseen.is_empty(), &table) {
        let other = arguments.choose.other(&arguments.unseen)?;
        text += "\nthe table on the unseen problems:\n";
        let of_other =
            |kernel: usize| other.kernels.iter().position(|known| known.id == matrix.kernels[kernel].id);
        let all: Vec<usize> = selection.kernels.iter().copied().filter_map(of_other).collect();
        for problem in 0..other.problems.len() {
            let picked = table.pick(&other.problems[problem].problem);
            let row = row(&other, problem, picked.and_then(of_other));
            let efficiencies = all.iter().filter_map(|kernel| other.efficiency(problem, *kernel));
            best_of_chosen.push(efficiencies.reduce(f64::max));
            let which = picked.and_then(|kernel| selection.kernels.iter().position(|known| *known == kernel));
            text += &line(&row, &which.map_or("none".to_owned(), letter));
            unseen.push(row);
        }
        let worst = unseen.iter().map(|row| row.efficiency.unwrap_or(0.0)).fold(1.0, f64::min);
        let least = best_of_chosen.iter().map(|best| best.unwrap_or(0.0)).fold(1.0, f64::min);
        text += &format!("worst {:.1} %", 100.0 * worst);
        text += &format!(
            "; the best of the chosen kernels loses at most {:.1} % on each\n",
            100.0 * (1.0 - least)
        );
    }
    let (is_optimal, bound) = match selection.proof {
        Proof::Optimal => (true, None),
        Proof::Incumbent { bound, .. } => (false, Some(bound)),
    };
    let object = json!({
        "ok": selection.uncovered.is_empty(),
        "goal": arguments.choose.goal(),
        "optimal": is_optimal,
        "bound": bound,
        "mean": selection.mean,
        "worst": selection.worst,
        "kernels": selection.kernels.iter().map(|kernel| &matrix.kernels[*kernel]).collect::<Vec<_>>(),
        "problems": rows.iter().map(Row::object).collect::<Vec<_>>(),
        "unseen": unseen.iter().map(Row::object).collect::<Vec<_>>(),
        "unseen_best_of_chosen": best_of_chosen,
        "table": arguments.table.as_ref().map(crate::shown),
    });
    let code = if selection.uncovered.is_empty() { 0 } else { crate::EXIT_MISMATCH };
    let text = crate::without_controls(&text);
    Ok(Finished { text, object, code, on_stdout: outputs.on_stdout })
}

/// A problem and the kernel selected for it.
struct Row {
    problem: String,
    kernel: Option<String>,
    us: Option<f64>,
    efficiency: Option<f64>,
}

impl Row {
    fn object(&self) -> Value {
        let Row { problem, kernel, us, efficiency } = self;
        json!({ "problem": problem, "kernel": kernel, "us": us, "efficiency": efficiency })
    }
}

fn row(matrix: &Matrix, problem: usize, kernel: Option<usize>) -> Row {
    Row {
        problem: matrix.problems[problem].problem.to_string(),
        kernel: kernel.map(|kernel| matrix.kernels[kernel].id.clone()),
        us: kernel.and_then(|kernel| matrix.time_us(problem, kernel)),
        efficiency: kernel.and_then(|kernel| matrix.efficiency(problem, kernel)),
    }
}

fn line(row: &Row, which: &str) -> String {
    let us = row.us.map_or("-".to_owned(), |us| format!("{us:.1}"));
    let share = row.efficiency.map_or("-".to_owned(), |share| format!("{:.1} %", 100.0 * share));
    format!("{:<24} {us:>10} {share:>10}  {which}\n", row.problem)
}

/// A, B, ... Z, K26, K27, ...
fn letter(position: usize) -> String {
    match u8::try_from(position) {
        Ok(small @ 0..26) => char::from(b'A' + small).to_string(),
        _ => format!("K{position}"),
    }
}
