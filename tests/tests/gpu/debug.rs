//! Debug mode and bundles on a GPU.

use std::fs;

use anyhow::{Context, Result, ensure};
use fourfold::executor::stdout_on_stderr;
use fourfold_cli::Report;
use fourfold_cli::bundle::BundleOptions;
use fourfold_cli::replay::{ReplayOptions, replay, replay_bundled};
use fourfold_tests::repository;

use super::compile_options;

/// In debug mode, with poisoned outputs and workspaces, a kernel is correct and its launch is described. Its bundle
/// replays with the same bits, in debug mode again.
pub fn debug_mode() -> Result<()> {
    // In debug mode, CUTLASS's host code prints to the standard output.
    let _kept = stdout_on_stderr()?;
    let options = ReplayOptions { compile: compile_options().debug(true), ..ReplayOptions::default() };
    let folder = tempfile::tempdir()?;
    let bundle = BundleOptions { folder: folder.path().join("bundle"), segment: None };
    let file = repository().join("fixtures/epilogue/epilogue_full.fir");
    let told = |event: &fourfold::Event| eprintln!("{event}");
    let bundled = replay_bundled(&file, &options, &bundle, &told)?;
    let report = bundled.outcome?;
    check(&report)?;
    let written = bundled.bundle?;
    ensure!(written.lacks.is_empty(), "{:?}", written.lacks);
    let command = fs::read_to_string(written.folder.join("kernels/0/command.txt"))?;
    ensure!(command.contains("-lineinfo"), "{command}");

    // The options leave out the debug mode, because the bundle records it.
    let usual = ReplayOptions { compile: compile_options(), ..ReplayOptions::default() };
    let again = replay(&written.folder, &usual, &told)?;
    check(&again)?;
    let recorded: Vec<_> = again.outputs.iter().filter(|output| output.expected == "recorded").collect();
    ensure!(!recorded.is_empty(), "no output was compared with the bundle");
    for output in recorded {
        ensure!(output.ok && output.rule == "bit-equal", "{}: {}", output.name, output.rule);
    }
    Ok(())
}

fn check(report: &Report) -> Result<()> {
    ensure!(report.ok && report.kernels == 1 && report.ran_kernels == 1, "{report}");
    let launch = report.segments[0].launch.as_ref().context("the report does not describe the launch")?;
    eprintln!("{launch}");
    for argument in &launch.arguments {
        ensure!(argument.address != 0 && argument.bytes <= argument.capacity, "{argument:?}");
        let needed = u64::from(argument.required_alignment.unwrap_or(1));
        ensure!(argument.alignment >= needed, "{argument:?}");
        ensure!(argument.poison == argument.written.then_some(0xFF), "{argument:?}");
    }
    ensure!(launch.arguments.iter().any(|argument| argument.written), "the launch writes no argument");
    Ok(())
}
