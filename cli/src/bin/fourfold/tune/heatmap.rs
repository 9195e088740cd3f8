//! `fourfold heatmap`: draws a heat-map of the speed of each kernel on each problem.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use fourfold_tuner::heatmap::Heatmap;
use serde_json::json;

use super::Finished;
use super::choose::{Choose, Chosen};
use super::files::Outputs;

#[derive(Args)]
#[command(after_help = "Example:\n  fourfold heatmap hopper.jsonl --html hopper.html --png hopper.png\n\n\
    Rows are problems and columns are kernels; a cell shows the speed of the kernel relative to the best of its row. \
    The kernels that `fourfold select` chooses are marked. `-` is the standard input or output.\n\n\
    Exit codes: 0 ok, 2 bad input, 3 a picture cannot be written")]
pub struct Arguments {
    #[command(flatten)]
    choose: Choose,
    /// Write an HTML page that shows details on hover
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write an SVG image
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a PNG image
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Set the title
    #[arg(long, default_value = "Share of the best kernel's speed")]
    title: String,
    /// Draw at most N columns of text
    #[arg(long, value_name = "N", default_value_t = 120)]
    width: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    super::finish(draw(arguments), arguments.json)
}

fn draw(arguments: &Arguments) -> Result<Finished> {
    let named = [&arguments.html, &arguments.svg, &arguments.png].into_iter().flatten().map(PathBuf::as_path);
    let outputs = Outputs::new(named.clone(), arguments.json)?;
    Outputs::spare(named, arguments.choose.inputs())?;
    let Chosen { matrix, selection } = arguments.choose.choose()?;
    let machine = matrix.machine.as_ref().map_or("no machine".to_owned(), |machine| {
        format!("{}, {} SMs, driver {}", machine.gpu, machine.sms, machine.driver)
    });
    let caption = format!("{machine}\nchosen: {} ({})", arguments.choose.goal(), selection.proof);
    let map = Heatmap::new(&matrix, &selection.kernels, &selection.assignment, &arguments.title, &caption)?;
    let mut files = Vec::new();
    if let Some(path) = &arguments.html {
        outputs.write(path, map.html()?.as_bytes())?;
        files.push(path);
    }
    if let Some(path) = &arguments.svg {
        outputs.write(path, map.svg().context("the image")?.as_bytes())?;
        files.push(path);
    }
    if let Some(path) = &arguments.png {
        outputs.write(path, &map.png().context("the image")?)?;
        files.push(path);
    }
    let mut text = map.terminal(arguments.width, std::io::stdout().is_terminal());
    for file in &files {
        text += &crate::without_controls(&format!("{}\n", file.display()));
    }
    let object = json!({
        "ok": true,
        "problems": matrix.problems.len(),
        "kernels": matrix.kernels.len(),
        "chosen": selection.kernels.iter().map(|kernel| &matrix.kernels[*kernel].id).collect::<Vec<_>>(),
        "files": files.iter().map(crate::shown).collect::<Vec<_>>(),
    });
    Ok(Finished { text, object, code: 0, on_stdout: outputs.on_stdout })
}
