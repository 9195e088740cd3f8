//! Writes the kernels of a bundle: source, build command and build outcome.

use fourfold::kernels::{build_input, build_targets, planned_kernels};
use fourfold_codegen::cutlass::CutlassVersion;
use fourfold_executor::environment::Environment;
use fourfold_executor::kernel::ABI_VERSION;
use fourfold_executor::toolchain::{Toolchain, ToolchainOptions, locate};
use fourfold_executor::{BuildOptions, ptx_flags, semantic_flags};
use serde_json::json;

use super::writing::Writing;
use super::{BundleError, Lack};
use crate::report::ResourceReport;
use crate::run::{ReplayOptions, Stages};

/// Writes `kernels/N/` for each kernel segment N.
pub(super) fn write_kernels(
    writing: &mut Writing,
    options: &ReplayOptions,
    stages: &Stages,
) -> Result<(), BundleError> {
    let Some(compiled) = &stages.compiled else {
        writing.lack("kernels", "the replay failed before kernels were planned");
        return Ok(());
    };
    let emulated = stages.backend.as_ref().is_some_and(|backend| backend.emulates());
    let planned = match compiled.configured().is_empty() {
        true => &planned_kernels(compiled.planned(), CutlassVersion::PINNED, emulated)[..],
        false => compiled.configured(),
    };
    if planned.is_empty() {
        return Ok(());
    }
    // Writing a bundle installs nothing.
    let targets = build_targets(&compiled.planned().partition().target, emulated);
    let search = ToolchainOptions { provision: false, ..options.compile.toolchain_for(&targets) };
    let toolchain = locate(&search, &Environment::from_process());
    if let Err(error) = &toolchain {
        writing.lack("kernels/*/command.txt: the paths", error.to_string());
    }
    for kernel in planned {
        let folder = format!("kernels/{}", kernel.segment);
        let source = &kernel.source;
        writing.folder.write(&format!("{folder}/kernel.cu"), source.text.as_bytes())?;
        if let Some(prelude) = source.prelude {
            writing.folder.write(&format!("{folder}/prelude.cuh"), prelude.as_bytes())?;
        }
        let toolchain = toolchain.as_ref().ok();
        let build = BuildOptions { debug: compiled.is_in_debug_mode(), ..options.compile.build.clone() };
        let flags = semantic_flags(&build_input(source), &build);
        let command = match ptx_flags(&build_input(source), &build) {
            Some(flags) => command_line(toolchain, REWRITTEN, &flags, "kernel.ptx"),
            None => command_line(toolchain, EQUIVALENT, &flags, "kernel.so"),
        };
        writing.folder.write(&format!("{folder}/command.txt"), command.as_bytes())?;
        let built = compiled.built().iter().find(|built| built.planned.segment == kernel.segment);
        let outcome = built.map(|built| &built.outcome);
        let failure = outcome.and_then(|outcome| outcome.as_ref().err());
        let artifact = outcome.and_then(|outcome| outcome.as_ref().ok());
        let log = artifact.map(|artifact| artifact.log()).or_else(|| failure?.log.as_deref());
        match log {
            Some(log) => writing.folder.write(&format!("{folder}/build.log"), log.as_bytes())?,
            None => {
                let unavailable = compiled.unavailable(kernel.segment).map(|reason| reason.message.clone());
                let why = failure.map(|failure| failure.message.clone()).or(unavailable);
                let why = why.unwrap_or_else(|| "the kernel was not built".to_owned());
                writing.lacks.push(Lack { what: format!("{folder}/build.log"), why });
            }
        }
        let object = json!({
            "segment": kernel.segment,
            "kernel": source.kernel,
            "hash": source.hash,
            "target": source.target,
            "architecture": source.architecture,
            "opcode": source.opcode,
            "emulated": source.prelude.is_some(),
            "configuration": kernel.spec.configuration_name(),
            "why": kernel.why,
            "abi": ABI_VERSION,
            "flags": flags,
            "nvcc": toolchain.map(|toolchain| toolchain.nvcc_version.clone()),
            "cutlass": toolchain.and_then(|it| it.cutlass.as_ref()).map(|cutlass| cutlass.version.clone()),
            "built": artifact.is_some(),
            "resources": artifact.map(|artifact| ResourceReport::from(artifact.resources())),
            "error": failure.map(|failure| {
                json!({
                    "code": failure.code,
                    "fault": failure.fault.name(),
                    "message": failure.message,
                    "remedy": failure.remedy,
                })
            }),
            "unavailable": compiled.unavailable(kernel.segment).map(|reason| {
                json!({ "code": reason.code, "message": reason.message })
            }),
        });
        writing.json(&format!("{folder}/kernel.json"), &object)?;
    }
    Ok(())
}

const EQUIVALENT: &str =
    "# One equivalent command. Fourfold compiles the kernel and its launcher in parallel and links them.";
const REWRITTEN: &str = "# Compiles the kernel to PTX. Fourfold rewrites the PTX before it is assembled for another \
                         architecture, so no single command builds the library.";

/// Returns one shell command that builds `output` in a kernel's folder. Without a toolchain, its paths are
/// placeholders.
fn command_line(toolchain: Option<&Toolchain>, remark: &str, flags: &[String], output: &str) -> String {
    let mut words: Vec<String> = vec![match toolchain {
        Some(toolchain) => toolchain.nvcc.display().to_string(),
        None => "nvcc".to_owned(),
    }];
    words.extend(flags.iter().cloned());
    match toolchain {
        Some(toolchain) => {
            let include = toolchain.cutlass_include().into_iter().chain(toolchain.include.iter().cloned());
            words.extend(include.map(|folder| format!("-I{}", folder.display())));
            words.extend(toolchain.libraries.iter().map(|folder| format!("-L{}", folder.display())));
        }
        None => words.extend(["-I$CUTLASS/include", "-I$CUTLASS/tools/util/include"].map(str::to_owned)),
    }
    words.extend(["-o", output, "kernel.cu"].map(str::to_owned));
    format!("{remark}\n{}\n", words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "))
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./,+:$".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}
