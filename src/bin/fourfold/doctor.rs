//! `fourfold doctor`: what this machine has for building kernels, what it lacks, and what to do about it.

use std::process::ExitCode;

use clap::Args;
use fourfold_codegen::{EMULATED_TARGETS, EMULATOR, TARGETS, Target, capabilities};
use fourfold_executor::device::{Gpu, discover};
use fourfold_executor::environment::{Environment, VARIABLES};
use fourfold_executor::toolchain::{Diagnosis, FindingState, diagnose, oldest_nvcc_for};
use serde_json::{Value, json};

use crate::toolchain::Choice;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  fourfold doctor\n  fourfold doctor --nvcc /usr/local/cuda/bin/nvcc --json\n\n\
    Exit code 0 when kernels could be built now, else 3. Nothing is changed, and no network is used."
)]
pub struct Arguments {
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let environment = Environment::from_process();
    let diagnosis = diagnose(&arguments.choice.options(), &environment);
    let text = if arguments.json {
        crate::to_json(&object(&diagnosis, &environment))
    } else {
        report(&diagnosis, &environment)
    };
    let code = if diagnosis.can_build() { 0 } else { crate::EXIT_ENVIRONMENT };
    crate::leave(code, crate::print(&text))
}

/// Each GPU with what runs on it, or why there is none.
fn devices(environment: &Environment) -> Vec<(FindingState, String)> {
    let note = |text: String| vec![(FindingState::Note, text)];
    if environment.fourfold_device.as_ref().is_some_and(|device| device == "none") {
        return note("not looked for: FOURFOLD_DEVICE is `none`".to_owned());
    }
    match discover() {
        Err(error) => note(format!("{error}: kernels are built and run on the CPU; {}", error.remedy())),
        Ok(gpus) if gpus.is_empty() => {
            note("the driver knows of no GPU: kernels are built and run on the CPU".to_owned())
        }
        Ok(gpus) => gpus.iter().map(|gpu| (FindingState::Ok, format!("{gpu}: {}", what_runs(gpu)))).collect(),
    }
}

fn what_runs(gpu: &Gpu) -> String {
    let has_kernels = |target: &str| capabilities(target).is_some_and(|found| !found.formats.is_empty());
    match gpu.target() {
        Some(target) if has_kernels(target) => format!("runs kernels of {target}"),
        Some(EMULATOR) => format!("runs kernels of {} emulated", EMULATED_TARGETS.join(" and ")),
        _ => "no target's kernels run on it".to_owned(),
    }
}

fn report(diagnosis: &Diagnosis, environment: &Environment) -> String {
    let mut text = String::new();
    for finding in &diagnosis.findings {
        text += &format!("{:<8} {:<17} {}\n", finding.state.name(), finding.name, indent(&finding.detail));
        if let Some(remedy) = &finding.remedy {
            text += &format!("{:26} -> {remedy}\n", "");
        }
    }
    for (state, detail) in devices(environment) {
        text += &format!("{:<8} {:<17} {detail}\n", state.name(), "device");
    }
    text += "\nTargets\n";
    for target in TARGETS {
        let (state, why) = target_state(target, diagnosis);
        text += &format!("{state:<8} {:<17} {}{why}\n", target.name, target.hardware);
    }
    text += "\nVariables\n";
    for variable in VARIABLES {
        let value = std::env::var_os(variable.name).filter(|value| !value.is_empty());
        let value = value.map_or("unset".to_owned(), |value| value.display().to_string());
        text += &format!("{:<19} {value}\n", variable.name);
        text +=
            &format!("{:19} {} ({}; default: {})\n", "", variable.meaning, variable.kind, variable.default);
    }
    text += if diagnosis.can_build() {
        "\nKernels can be built here\n"
    } else {
        "\nKernels cannot be built here: everything runs on the fallback until the missing things are there\n"
    };
    text
}

fn indent(detail: &str) -> String {
    detail.replace('\n', &format!("\n{:27}", ""))
}

/// Whether kernels of a target can be built, and why not.
fn target_state(target: &Target, diagnosis: &Diagnosis) -> (&'static str, String) {
    if capabilities(target.name).is_none_or(|capabilities| capabilities.formats.is_empty()) {
        return ("none", "; no kernels in this version".to_owned());
    }
    match (diagnosis.nvcc, oldest_nvcc_for(target.name)) {
        (Some(found), Some(oldest)) if found >= oldest && diagnosis.can_build() => ("ok", String::new()),
        (Some(found), Some(oldest)) if found < oldest => ("missing", format!("; needs nvcc {oldest}")),
        _ => ("missing", "; see above".to_owned()),
    }
}

fn object(diagnosis: &Diagnosis, environment: &Environment) -> Value {
    let findings: Vec<Value> = diagnosis
        .findings
        .iter()
        .map(|finding| {
            json!({
                "name": finding.name,
                "state": finding.state.name(),
                "detail": finding.detail,
                "remedy": finding.remedy,
            })
        })
        .collect();
    let targets: Vec<Value> = TARGETS
        .iter()
        .map(|target| json!({"name": target.name, "state": target_state(target, diagnosis).0}))
        .collect();
    let variables: Vec<Value> = VARIABLES
        .iter()
        .map(|variable| {
            json!({
                "name": variable.name,
                "kind": variable.kind,
                "default": variable.default,
                "meaning": variable.meaning,
                "value": std::env::var_os(variable.name).map(|value| value.display().to_string()),
            })
        })
        .collect();
    json!({
        "ok": diagnosis.can_build(),
        "devices": devices(environment).into_iter().map(|(_, detail)| detail).collect::<Vec<_>>(),
        "findings": findings,
        "targets": targets,
        "variables": variables,
    })
}
