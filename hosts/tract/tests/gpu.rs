//! The kernels of two FP4 linears on this machine's GPU, compared with tract's own runtime.

mod common;

use std::process::ExitCode;

use common::two_linears::{check, model};
use fourfold::executor::device::{DeviceError, discover};
use fourfold::executor::toolchain::ToolchainOptions;
use fourfold::{Backend, CompileOptions, Options};
use fourfold_tract::Fourfold;
use libtest_mimic::{Arguments, Trial};
use tract_core::internal::*;

fn main() -> ExitCode {
    // Without a driver or a GPU for our kernels the test is skipped; a failing driver fails it.
    let has_kernels = || {
        let backend = Backend::new(&Options::default()).ok()?;
        Some(backend.execution().is_ok() && !backend.capabilities().formats.is_empty())
    };
    let skip = match discover() {
        Err(DeviceError::NoDriver) => true,
        Ok(_) => !has_kernels().unwrap_or(false),
        Err(_) => false,
    };
    let trial =
        Trial::test("two_linears_equal_tract", || Ok(on_the_gpu().map_err(|error| format!("{error:#}"))?));
    libtest_mimic::run(&Arguments::from_args(), vec![trial.with_ignored_flag(skip)]).exit_code()
}

fn on_the_gpu() -> TractResult<()> {
    let toolchain = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    let runtime = Fourfold::new(Options::default(), CompileOptions::default().toolchain(toolchain));
    let report = runtime.rewrite(&mut model(false)?.into_decluttered()?)?;
    ensure!(report.segments.len() == 2, "{report}");
    ensure!(report.segments.iter().all(|segment| segment.unavailable.is_none()), "{report}");
    check(&runtime, "this GPU", 2.0)
}
