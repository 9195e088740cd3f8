//! `fourfold pack`: builds the kernels of programs and writes them into one file.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use fourfold::kernels::{BuiltKernel, compile_kernels_of};
use fourfold::{Backend, Options, Planned};
use fourfold_cli::Error;
use fourfold_cli::replay::load;
use fourfold_cli::verify::programs;
use fourfold_executor::cache::{CacheError, CacheKey, Packed, check_pack_place, human_size, write_pack};
use serde_json::json;

use crate::place::Place;
use crate::progress::Progress;
use crate::toolchain::Choice;

#[derive(Args)]
#[command(after_help = "Example:\n  fourfold pack programs --target sm_90a -o model.kernels\n  \
    FOURFOLD_CACHE_TIERS=model.kernels fourfold replay programs/model.layers.0.mlp.up_proj.fir\n\n\
    Every distinct kernel is built once, side by side with others. A machine that names the file in \
    FOURFOLD_CACHE_TIERS takes the kernels from it. It needs no compiler; if it has one of the pack's version, or none, \
    it builds nothing. It runs the code in the file, so use packs from trusted places only.\n\n\
    Exit codes: 0 every kernel is in the file, 2 bad input, 3 no file was written (a kernel was not built, or \
    the place cannot be written), 130 interrupted")]
pub struct Arguments {
    /// The programs: .fir files, and folders of them
    #[arg(required = true, value_name = "FILE|DIR")]
    programs: Vec<PathBuf>,
    /// Write the kernels to FILE; replaces a pack, and nothing else
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    place: Place,
    #[command(flatten)]
    choice: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let place = match arguments.place.options() {
        Ok(options) => options,
        Err(message) => return crate::misused(&message, arguments.json),
    };
    if let Err(error) = check_pack_place(&arguments.output) {
        return crate::misused(&format!("{error}; {}", error.remedy()), arguments.json);
    }
    let plans = match plan(arguments, &place) {
        Ok(plans) => plans,
        Err(error) => return crate::fail(&error, arguments.json),
    };
    let progress = Progress::new(arguments.json);
    let options = arguments.choice.compile_options();
    let borrowed: Vec<&Planned> = plans.iter().collect();
    let (built, _) = compile_kernels_of(&borrowed, place.emulate, &options, &|event| progress.event(event));
    drop(progress);
    let mut known = BTreeSet::new();
    let distinct: Vec<&BuiltKernel> =
        built.iter().flatten().filter(|kernel| known.insert(kernel.key)).collect();
    let failed: Vec<&BuiltKernel> =
        distinct.iter().copied().filter(|kernel| kernel.outcome.is_err()).collect();
    let kernels: Vec<(CacheKey, &_)> =
        distinct.iter().filter_map(|kernel| Some((kernel.key, kernel.outcome.as_ref().ok()?))).collect();
    let packed = if failed.is_empty() { Some(write_pack(&arguments.output, &kernels)) } else { None };
    let target = plans.first().map_or("", |planned| planned.partition().target.as_str());
    let programs = (plans.len(), target);
    let (text, object, code) = report(arguments, programs, &distinct, &failed, packed);
    crate::leave(code, crate::print(&if arguments.json { crate::to_json(&object) } else { text }))
}

fn plan(arguments: &Arguments, place: &Options) -> Result<Vec<Planned>, Error> {
    let backend = Backend::new(place)?;
    let mut plans = Vec::new();
    for path in &arguments.programs {
        for file in programs(path)? {
            plans.push(fourfold_cli::replay::plan(&backend, &load(&file)?)?);
        }
    }
    Ok(plans)
}

/// The report as text and as JSON, and the exit code.
fn report(
    arguments: &Arguments,
    (programs, target): (usize, &str),
    distinct: &[&BuiltKernel],
    failed: &[&BuiltKernel],
    packed: Option<Result<Packed, CacheError>>,
) -> (String, serde_json::Value, u8) {
    let mut text = String::new();
    let mut errors = Vec::new();
    for kernel in failed {
        let Err(failure) = &kernel.outcome else { continue };
        let _ = writeln!(
            text,
            "{}: {}: {}\n  help: {}",
            kernel.planned.source.kernel, failure.code, failure.message, failure.remedy
        );
        errors.push(json!({ "kernel": kernel.planned.source.kernel, "code": failure.code, "message": failure.message }));
    }
    let (output, count) = (arguments.output.display(), distinct.len());
    let (bytes, error) = match &packed {
        Some(Ok(Packed { bytes, .. })) => {
            let size = human_size(*bytes);
            let _ = writeln!(text, "{count} kernels of {programs} programs for {target} in {output}, {size}");
            (Some(*bytes), None)
        }
        Some(Err(error)) => {
            let _ = writeln!(text, "error: {error}\nhelp: {}", error.remedy());
            (None, Some(error.to_string()))
        }
        None => {
            let failed = failed.len();
            let _ = writeln!(text, "{failed} of {count} kernels were not built, so {output} was not written");
            (None, None)
        }
    };
    let ok = bytes.is_some();
    let kernels: Vec<_> = (distinct.iter())
        .map(|kernel| json!({ "key": kernel.key, "kernel": kernel.planned.source.kernel }))
        .collect();
    let object = json!({
        "ok": ok, "file": crate::shown(&arguments.output), "target": target, "programs": programs, "kernels": kernels, "bytes": bytes,
        "failed": errors, "error": error,
    });
    (text, object, if ok { 0 } else { crate::EXIT_ENVIRONMENT })
}
