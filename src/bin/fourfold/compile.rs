//! `fourfold compile`: emits and builds the kernels of a program and prints what they cost.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fourfold::kernels::{
    BuildFailure, BuiltKernel, build_kernels, cutlass_version, planned_kernels, toolchain,
};
use fourfold::replay::load;
use fourfold::{Backend, Options, ResourceReport};
use fourfold_executor::toolchain::Toolchain;
use serde_json::{Value, json};

use crate::place::Place;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(
    after_help = "Example:\n  fourfold compile fixtures/minilm_ffn.fir --target sm_120a --dump kernels\n\n\
    The compiler and CUTLASS are found as `fourfold toolchain which` says, and installed into the cache when there \
    are none. No GPU is needed. Exit codes: 0 every kernel was built, 2 bad input, 3 one was not, 70 one was not and \
    that is a bug of ours."
)]
pub struct Arguments {
    /// The program, a .fir file
    file: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Leave each kernel's .cu, .so and .log in this folder
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One kernel and where its files were left.
struct Compiled {
    built: BuiltKernel,
    files: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let place = match arguments.place.options() {
        Ok(options) => options,
        Err(message) => return crate::misused(&message, arguments.json),
    };
    let planned = match plan(arguments, &place) {
        Ok(planned) => planned,
        Err(error) => return crate::fail(&error, arguments.json),
    };
    let emulate = place.emulate;
    let mut options = arguments.choice.options();
    options.provision = true;
    let target = planned.partition().target.clone();
    let found = toolchain(&options, &mut |line| eprintln!("{line}"));
    let (toolchain, compiled) = match found {
        Ok(toolchain) => {
            let kernels = planned_kernels(&planned, cutlass_version(&toolchain), emulate);
            let progress = |line: &str| eprintln!("{line}");
            let built = build_kernels(kernels, &toolchain, &arguments.choice.build_options(), &progress);
            (Some(toolchain), built.into_iter().map(|built| dump(built, arguments)).collect())
        }
        Err(error) => {
            let failure = BuildFailure::from(&error);
            let kernels =
                planned_kernels(&planned, fourfold::codegen::configuration::CutlassVersion::PINNED, emulate);
            let refuse = |planned| BuiltKernel { planned, outcome: Err(failure.clone()) };
            let compiled: Vec<Compiled> = kernels
                .into_iter()
                .map(|kernel| Compiled { built: refuse(kernel), files: Vec::new() })
                .collect();
            (None, compiled)
        }
    };
    let text = if arguments.json {
        crate::to_json(&object(arguments, &target, toolchain.as_ref(), &compiled))
    } else {
        lines(arguments, &target, toolchain.as_ref(), &compiled)
    };
    crate::leave(exit_code(&compiled), crate::print(&text))
}

fn plan(arguments: &Arguments, place: &Options) -> Result<fourfold::Planned, fourfold::Error> {
    let loaded = load(&arguments.file)?;
    let backend = Backend::new(place)?;
    fourfold::replay::plan(&backend, &loaded)
}

fn dump(mut built: BuiltKernel, arguments: &Arguments) -> Compiled {
    let mut files = Vec::new();
    if let (Some(folder), Ok(artifact)) = (&arguments.dump, &built.outcome) {
        match artifact.dump(folder) {
            Ok(dumped) => files.extend(dumped),
            Err(error) => {
                let message = format!("cannot write to {}: {error}", folder.display());
                built.outcome = Err(BuildFailure { code: "disk", fault: "environment", message });
            }
        }
    }
    Compiled { built, files }
}

fn exit_code(compiled: &[Compiled]) -> u8 {
    let failures = || compiled.iter().filter_map(|compiled| compiled.built.outcome.as_ref().err());
    if failures().any(|failure| failure.fault == "our_bug") {
        fourfold::Fault::Bug.exit_code()
    } else if failures().next().is_some() {
        crate::EXIT_ENVIRONMENT
    } else {
        0
    }
}

fn object(
    arguments: &Arguments,
    target: &str,
    toolchain: Option<&Toolchain>,
    compiled: &[Compiled],
) -> Value {
    let kernels: Vec<Value> = compiled
        .iter()
        .map(|Compiled { built, files }| {
            let (source, configuration) = (&built.planned.source, &built.planned.spec.configuration);
            json!({
                "segment": built.planned.segment,
                "kernel": source.kernel,
                "hash": source.hash,
                "emulated": source.prelude.is_some(),
                "configuration": configuration.name(),
                "tile": configuration.tile,
                "why": built.planned.why,
                "resources": built.outcome.as_ref().ok().map(|artifact| ResourceReport::from(artifact.resources())),
                "error": built.outcome.as_ref().err().map(|failure| {
                    json!({ "code": failure.code, "fault": failure.fault, "message": failure.message })
                }),
                "files": files,
            })
        })
        .collect();
    json!({
        "ok": compiled.iter().all(|compiled| compiled.built.outcome.is_ok()),
        "file": arguments.file,
        "target": target,
        "toolchain": toolchain.map(|toolchain| json!({
            "nvcc": toolchain.nvcc,
            "nvcc_version": toolchain.nvcc_version,
            "cutlass": toolchain.cutlass,
            "cutlass_version": toolchain.cutlass_version,
        })),
        "kernels": kernels,
    })
}

fn lines(
    arguments: &Arguments,
    target: &str,
    toolchain: Option<&Toolchain>,
    compiled: &[Compiled],
) -> String {
    let mut text = format!("{} for {target}", arguments.file.display());
    if let Some(toolchain) = toolchain {
        let (nvcc, cutlass) = (&toolchain.nvcc_version, &toolchain.cutlass_version);
        text.push_str(&format!(", nvcc {nvcc}, CUTLASS {cutlass}"));
    }
    text.push('\n');
    if compiled.is_empty() {
        text.push_str("no op becomes a kernel; `fourfold explain` says why\n");
    }
    for Compiled { built, files } in compiled {
        let planned = &built.planned;
        text.push_str(&format!("\nsegment {}: {}\n", planned.segment, planned.source.kernel));
        text.push_str(&format!("  {}: {}\n", planned.spec.configuration.name(), planned.why));
        match &built.outcome {
            Ok(artifact) => text.push_str(&format!("  {}\n", ResourceReport::from(artifact.resources()))),
            Err(failure) => {
                text.push_str(&format!(
                    "  {}: {} (fault: {})\n",
                    failure.code, failure.message, failure.fault
                ));
            }
        }
        for file in files {
            text.push_str(&format!("  {}\n", file.display()));
        }
    }
    text
}
