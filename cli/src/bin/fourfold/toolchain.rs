//! `fourfold toolchain`: prints the compiler and CUTLASS in use, and installs the pinned ones.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use fourfold::codegen::TARGETS;
use fourfold::{CacheChoice, CompileOptions};
use fourfold_executor::BuildOptions;
use fourfold_executor::environment::Environment;
use fourfold_executor::toolchain::{
    PINNED, Tool, Toolchain, ToolchainError, ToolchainFault, ToolchainOptions, Version, all_known_bad,
    cache_folder, locate, oldest_nvcc_for, parts_for, provision, provision_from,
};
use serde_json::{Value, json};

/// The tools of the toolchain.
#[derive(Args, Clone, Debug)]
pub struct Tools {
    /// Use this CUDA compiler [default: FOURFOLD_NVCC, FOURFOLD_TOOLCHAIN, CUDA_HOME, PATH, the cache]
    #[arg(long, value_name = "FILE")]
    nvcc: Option<PathBuf>,
    /// Use this CUTLASS, a checkout or an installation [default: FOURFOLD_CUTLASS, FOURFOLD_TOOLCHAIN,
    /// CUTLASS_PATH, the cache]
    #[arg(long, value_name = "DIR")]
    cutlass: Option<PathBuf>,
    /// Use tools that are known to build wrong kernels for the target [default: FOURFOLD_ALLOW_KNOWN_BAD]
    #[arg(long)]
    allow_known_bad: bool,
}

/// Options for building and caching kernels.
#[derive(Args, Clone, Debug)]
pub struct Choice {
    #[command(flatten)]
    tools: Tools,
    /// Kill the compiler of a kernel after SECONDS
    #[arg(long, value_name = "SECONDS", default_value_t = BuildOptions::TIME_LIMIT.as_secs())]
    time_limit: u64,
    /// Retry kernels whose build with this toolchain failed before
    #[arg(long)]
    retry: bool,
    /// Run at most N compilers at once; the limit for all processes that share the cache still applies [default: as
    /// cores and memory allow]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// Start the compiler through PROGRAM, such as sccache
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<PathBuf>,
    /// Neither read nor fill the cache of built kernels
    #[arg(long)]
    no_cache: bool,
}

impl Choice {
    /// Returns the options for building kernels; they may install a toolchain.
    pub fn compile_options(&self) -> CompileOptions {
        CompileOptions::default()
            .toolchain(ToolchainOptions { provision: true, ..self.tools.options() })
            .build(BuildOptions {
                time_limit: Duration::from_secs(self.time_limit),
                launcher: self.launcher.clone(),
                ..BuildOptions::default()
            })
            .cache(if self.no_cache { CacheChoice::None } else { CacheChoice::Usual })
            .retry(self.retry)
            .jobs(self.jobs.map(|jobs| jobs as usize))
    }
}

impl Tools {
    /// Returns [`options`](Self::options) for one target, if it is given.
    pub fn options_for(&self, target: Option<String>) -> ToolchainOptions {
        ToolchainOptions { targets: target.into_iter().collect(), ..self.options() }
    }

    /// Returns the options for finding a toolchain, without installing one.
    pub fn options(&self) -> ToolchainOptions {
        ToolchainOptions {
            nvcc: self.nvcc.clone(),
            cutlass: self.cutlass.clone(),
            allow_known_bad: self.allow_known_bad,
            ..ToolchainOptions::default()
        }
    }
}

#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the compiler and the CUTLASS in use, and where each was found
    #[command(after_help = "Example:\n  fourfold toolchain which --cutlass ~/src/cutlass\n\n\
        Installs nothing. If these tools build wrong kernels for a target, Fourfold uses other tools for it; \
        --target shows those.\n\n\
        Exit codes: 0 ok, 2 bad input, 3 no toolchain was found")]
    Which {
        #[command(flatten)]
        tools: Tools,
        /// Choose the tools for TARGET, such as sm_90a [default: any]
        #[arg(long, value_name = "TARGET", value_parser = target)]
        target: Option<String>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Install the pinned compiler and CUTLASS into the cache, once
    #[command(after_help = install_help())]
    Install {
        /// Install only what TARGET needs, such as sm_90a, which needs no CUTLASS [default: everything]
        #[arg(long, value_name = "TARGET", value_parser = target)]
        target: Vec<String>,
        /// Copy from a folder that this command made on another machine
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

fn install_help() -> String {
    let (nvcc, cutlass) = (PINNED.nvcc, PINNED.cutlass);
    format!(
        "Examples:\n  fourfold toolchain install\n  fourfold toolchain install --target sm_90a\n  \
         fourfold toolchain install --from /media/stick/cuda-{nvcc}-cutlass-{cutlass}-x86_64-...\n\n\
         Packages are fetched with python3's pip and must have the pinned hashes. Only pip's settings for index, proxy \
         and certificates are used. Without a network, run this command on another machine and bring the folder that \
         it prints: --from copies it into the cache, and FOURFOLD_TOOLCHAIN=DIR uses it in place.\n\n\
         Exit codes: 0 ok, 2 bad input, 3 the toolchain could not be installed, 130 interrupted"
    )
}

/// Returns the name of a target that kernels can be built for.
pub fn target(name: &str) -> Result<String, String> {
    match TARGETS.iter().find(|target| target.name == name && oldest_nvcc_for(name).is_some()) {
        Some(target) => Ok(target.name.to_owned()),
        None => {
            let known =
                TARGETS.iter().map(|target| target.name).filter(|name| oldest_nvcc_for(name).is_some());
            Err(format!(
                "no kernels can be built for it; the targets are {}",
                known.collect::<Vec<_>>().join(", ")
            ))
        }
    }
}

pub fn run(arguments: Arguments) -> ExitCode {
    let environment = Environment::from_process();
    match arguments.command {
        Command::Which { tools, target, json } => match locate(&tools.options_for(target), &environment) {
            Ok(toolchain) => {
                let text = if json { crate::to_json(&description(&toolchain)) } else { lines(&toolchain) };
                crate::leave(0, crate::print(&text))
            }
            Err(error) => fail(&error, json),
        },
        Command::Install { target, from, json } => match install(&target, from, &environment) {
            Ok(folder) => {
                let text = if json {
                    crate::to_json(&json!({"ok": true, "toolchain": crate::shown(&folder)}))
                } else {
                    format!("{}\n", folder.display())
                };
                crate::leave(0, crate::print(&text))
            }
            Err(error) => fail(&error, json),
        },
    }
}

fn install(
    targets: &[String],
    from: Option<PathBuf>,
    environment: &Environment,
) -> Result<PathBuf, ToolchainError> {
    let cache = cache_folder(environment)?;
    let parts = parts_for(targets);
    let mut progress = |line: &str| tell!("{line}");
    match from {
        Some(folder) => provision_from(&folder, &cache, &parts, &mut progress),
        None => provision(&cache, &parts, environment, &mut progress),
    }
}

fn fail(error: &ToolchainError, json: bool) -> ExitCode {
    tell!("error: {error}\nhelp: {}", error.remedy());
    let code = match error.fault() {
        ToolchainFault::Request => 2,
        ToolchainFault::Machine | ToolchainFault::Network => crate::EXIT_ENVIRONMENT,
    };
    let printed = if json {
        crate::print(&crate::to_json(&json!({
            "ok": false,
            "fault": "toolchain",
            "cause": error.fault().name(),
            "code": error.code(),
            "error": error.to_string(),
            "remedy": error.remedy(),
        })))
    } else {
        Ok(())
    };
    crate::leave(code, printed)
}

fn description(toolchain: &Toolchain) -> Value {
    json!({
        "ok": true,
        "nvcc": {
            "path": crate::shown(&toolchain.nvcc),
            "version": toolchain.nvcc_version,
            "origin": toolchain.nvcc_origin.to_string(),
        },
        "cutlass": toolchain.cutlass.as_ref().map(|cutlass| json!({
            "path": crate::shown(&cutlass.path),
            "version": cutlass.version,
            "origin": cutlass.origin.to_string(),
        })),
        "cuobjdump": toolchain.cuobjdump.as_ref().map(crate::shown),
        "include": toolchain.include.iter().map(crate::shown).collect::<Vec<_>>(),
        "libraries": toolchain.libraries.iter().map(crate::shown).collect::<Vec<_>>(),
        "passed_over": toolchain.passed_over,
        "known_bad": known_bad(toolchain),
    })
}

fn lines(toolchain: &Toolchain) -> String {
    let cuobjdump = toolchain.cuobjdump.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    let part = |name: &str, version: &str, path: String| format!("{name:<10} {version:<8} {path}\n");
    let nvcc = format!("{} ({})", toolchain.nvcc.display(), toolchain.nvcc_origin);
    let mut text = part("nvcc", &toolchain.nvcc_version, nvcc);
    text += &match &toolchain.cutlass {
        Some(cutlass) => {
            part("CUTLASS", &cutlass.version, format!("{} ({})", cutlass.path.display(), cutlass.origin))
        }
        None => part("CUTLASS", "none", "not needed".to_owned()),
    };
    text += &part("cuobjdump", "", cuobjdump);
    for bad in known_bad(toolchain) {
        text += &format!("{bad}\n");
    }
    for reason in &toolchain.passed_over {
        text += &format!("not used: {reason}\n");
    }
    text
}

/// Returns the known faults of the versions of a toolchain, as text.
fn known_bad(toolchain: &Toolchain) -> Vec<String> {
    let cutlass = toolchain.cutlass.as_ref().map(|cutlass| (Tool::Cutlass, &cutlass.version));
    let tools = [(Tool::Nvcc, &toolchain.nvcc_version)].into_iter().chain(cutlass);
    let of = |(tool, text): (Tool, &String)| {
        let bad = Version::parse(text).into_iter().flat_map(move |version| all_known_bad(tool, version));
        bad.map(|bad| format!("{} {text} is {bad}", tool.name())).collect::<Vec<_>>()
    };
    tools.flat_map(of).collect()
}
