//! `fourfold compile`: emits and builds the kernels of a program and prints their resources.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fourfold::kernels::{BuiltKernel, compile_kernels};
use fourfold::{Backend, Options};
use fourfold_cli::ResourceReport;
use fourfold_cli::replay::load;
use fourfold_executor::BuildFault;
use fourfold_executor::toolchain::Toolchain;
use serde_json::{Value, json};

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(
    after_help = "Example:\n  fourfold compile fixtures/minilm_ffn.fir --target sm_120a --dump kernels\n\n\
    Uses the compiler and CUTLASS that `fourfold toolchain which` prints, and installs them into the cache if there \
    are none. Needs no GPU.\n\n\
    Exit codes: 0 every kernel was built, 2 bad input, 3 a kernel was not built or its files could not be written, \
    70 a kernel was not built because of a bug in Fourfold, 130 interrupted"
)]
pub struct Arguments {
    /// The program: a .fir file, or `-` for the standard input
    file: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Write each kernel's .cu, .so and .log to DIR; a failed build writes the files that exist
    #[arg(long, value_name = "DIR")]
    dump: Option<PathBuf>,
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// One kernel and the files written for it.
struct Compiled {
    built: BuiltKernel,
    files: Vec<PathBuf>,
    /// The error of writing them.
    dump_error: Option<String>,
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
    let target = planned.partition().target.clone();
    let progress = Progress::new(arguments.json);
    let options = arguments.choice.compile_options();
    let (built, toolchain) =
        compile_kernels(&planned, place.emulate, &options, &|event| progress.event(event));
    drop(progress);
    let compiled: Vec<Compiled> = built.into_iter().map(|built| dump(built, arguments)).collect();
    let text = if arguments.json {
        crate::to_json(&object(arguments, &target, toolchain.as_ref(), &compiled))
    } else {
        lines(arguments, &target, toolchain.as_ref(), &compiled)
    };
    crate::leave(exit_code(&compiled), crate::print(&text))
}

fn plan(arguments: &Arguments, place: &Options) -> Result<fourfold::Planned, fourfold_cli::Error> {
    let loaded = load(&arguments.file)?;
    let backend = Backend::new(place)?;
    fourfold_cli::replay::plan(&backend, &loaded)
}

fn dump(built: BuiltKernel, arguments: &Arguments) -> Compiled {
    let (mut files, mut dump_error) = (Vec::new(), None);
    if let Some(folder) = &arguments.dump {
        let dumped = match &built.outcome {
            Ok(artifact) => artifact.dump(folder),
            Err(failure) => built.planned.dump_failed(failure, folder),
        };
        match dumped {
            Ok(dumped) => files = dumped,
            Err(error) => dump_error = Some(format!("cannot write to {}: {error}", folder.display())),
        }
    }
    Compiled { built, files, dump_error }
}

fn exit_code(compiled: &[Compiled]) -> u8 {
    let failures = || compiled.iter().filter_map(|compiled| compiled.built.outcome.as_ref().err());
    if failures().any(|failure| failure.fault == BuildFault::OurBug) {
        fourfold_cli::exit_code(fourfold::Fault::Bug)
    } else if failures().next().is_some() || compiled.iter().any(|compiled| compiled.dump_error.is_some()) {
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
        .map(|Compiled { built, files, dump_error }| {
            let (source, spec) = (&built.planned.source, &built.planned.spec);
            json!({
                "segment": built.planned.segment,
                "kernel": source.kernel,
                "hash": source.hash,
                "emulated": source.prelude.is_some(),
                "configuration": spec.configuration_name(),
                "tile": spec.tile(),
                "why": built.planned.why,
                "resources": built.outcome.as_ref().ok().map(|artifact| ResourceReport::from(artifact.resources())),
                "error": built.outcome.as_ref().err().map(|failure| {
                    json!({
                        "code": failure.code,
                        "fault": failure.fault.name(),
                        "message": failure.message,
                        "remedy": failure.remedy,
                        "first_error": failure.first_error,
                        "log": failure.log,
                        "remembered": failure.remembered,
                        "record": built.record.as_ref().map(crate::shown),
                    })
                }),
                "files": files.iter().map(crate::shown).collect::<Vec<_>>(),
                "dump_error": dump_error,
            })
        })
        .collect();
    json!({
        "ok": exit_code(compiled) == 0,
        "file": crate::shown(&arguments.file),
        "target": target,
        "toolchain": toolchain.map(|toolchain| json!({
            "nvcc": crate::shown(&toolchain.nvcc),
            "nvcc_version": toolchain.nvcc_version,
            "cutlass": toolchain.cutlass.as_ref().map(|cutlass| crate::shown(&cutlass.path)),
            "cutlass_version": toolchain.cutlass.as_ref().map(|cutlass| &cutlass.version),
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
        let cutlass = toolchain.cutlass.as_ref().map_or("none", |cutlass| &cutlass.version);
        let nvcc = &toolchain.nvcc_version;
        text.push_str(&format!(", nvcc {nvcc}, CUTLASS {cutlass}"));
    }
    text.push('\n');
    if compiled.is_empty() {
        text.push_str("no op becomes a kernel; `fourfold explain` lists the reasons\n");
    }
    for Compiled { built, files, dump_error } in compiled {
        let planned = &built.planned;
        text.push_str(&format!("\nsegment {}: {}\n", planned.segment, planned.source.kernel));
        text.push_str(&format!("  {}: {}\n", planned.spec.configuration_name(), planned.why));
        match &built.outcome {
            Ok(artifact) => text.push_str(&format!("  {}\n", ResourceReport::from(artifact.resources()))),
            Err(failure) => {
                text.push_str(&format!(
                    "  {}: {} (fault: {})\n  help: {}\n",
                    failure.code,
                    failure.message,
                    failure.fault.name(),
                    failure.remedy
                ));
                // With --dump, the log is one of the files below.
                let is_below = files.iter().any(|file| file.extension().is_some_and(|end| end == "log"));
                if failure.log.is_some() && !is_below {
                    text.push_str(&match &built.record {
                        Some(record) => format!("  the compiler's log is in {}; ", record.display()),
                        None => "  the compiler's log is not kept; ".to_owned(),
                    });
                    text.push_str("--dump DIR writes it to DIR, with the source\n");
                }
                if failure.remembered && failure.lasting {
                    text.push_str("  this failure is recorded from an earlier build; --retry builds again\n");
                }
            }
        }
        if let Some(error) = dump_error {
            text.push_str(&format!("  {error}\n  help: name a writable folder with --dump\n"));
        }
        for file in files {
            text.push_str(&format!("  {}\n", file.display()));
        }
    }
    text
}
