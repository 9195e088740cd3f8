//! `fourfold toolchain`: which compiler and CUTLASS are used, and installing the pinned ones.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use fourfold::{CacheChoice, CompileOptions};
use fourfold_executor::BuildOptions;
use fourfold_executor::environment::Environment;
use fourfold_executor::toolchain::{
    Toolchain, ToolchainError, ToolchainFault, ToolchainOptions, cache_folder, locate, provision,
    provision_from,
};
use serde_json::{Value, json};

/// Which toolchain to use.
#[derive(Args, Clone, Debug)]
pub struct Tools {
    /// The CUDA compiler to use [default: FOURFOLD_NVCC, FOURFOLD_TOOLCHAIN, CUDA_HOME, PATH, the cache]
    #[arg(long, value_name = "FILE")]
    nvcc: Option<PathBuf>,
    /// The CUTLASS to use, a checkout or an installed one [default: FOURFOLD_CUTLASS, FOURFOLD_TOOLCHAIN, CUTLASS_PATH, the cache]
    #[arg(long, value_name = "DIR")]
    cutlass: Option<PathBuf>,
}

/// How kernels are had, for every command that builds some.
#[derive(Args, Clone, Debug)]
pub struct Choice {
    #[command(flatten)]
    tools: Tools,
    /// How long the compiler may take for one kernel
    #[arg(long, value_name = "SECONDS", default_value_t = BuildOptions::TIME_LIMIT.as_secs())]
    time_limit: u64,
    /// Try kernels again that are known not to build with this toolchain
    #[arg(long)]
    retry: bool,
    /// How many compilers this process may run at once; with a cache, all processes together never run more than cores and memory have room for [default: that many]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// A program that starts the compiler, such as sccache
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<PathBuf>,
    /// Neither use nor fill the cache of built kernels
    #[arg(long)]
    no_cache: bool,
}

impl Choice {
    /// How kernels are had; a toolchain may be installed for them.
    pub fn compile_options(&self) -> CompileOptions {
        CompileOptions {
            toolchain: ToolchainOptions { provision: true, ..self.tools.options() },
            build: BuildOptions {
                time_limit: Duration::from_secs(self.time_limit),
                launcher: self.launcher.clone(),
                ..BuildOptions::default()
            },
            cache: if self.no_cache { CacheChoice::None } else { CacheChoice::Usual },
            retry: self.retry,
            jobs: self.jobs.map(|jobs| jobs as usize),
            ..CompileOptions::default()
        }
    }
}

impl Tools {
    /// The options that this choice means, without leave to install anything.
    pub fn options(&self) -> ToolchainOptions {
        ToolchainOptions {
            nvcc: self.nvcc.clone(),
            cutlass: self.cutlass.clone(),
            from: None,
            provision: false,
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
    /// Print the compiler and the CUTLASS that would be used, and where they come from
    #[command(after_help = "Example:\n  fourfold toolchain which --cutlass ~/src/cutlass\n\n\
        Nothing is installed. Exit code 3 when there is none.")]
    Which {
        #[command(flatten)]
        tools: Tools,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
    /// Install the pinned compiler and CUTLASS into the cache, once
    #[command(after_help = "Examples:\n  fourfold toolchain install\n  \
        fourfold toolchain install --from /media/stick/cuda-13.0.88-cutlass-4.2.0.0-x86_64-...\n\n\
        Packages come through python3's pip, with its settings, and must have the pinned hashes. Where there is no \
        network, carry the folder that this prints on another machine: --from copies it into the cache, and \
        FOURFOLD_TOOLCHAIN=DIR uses it where it lies.")]
    Install {
        /// A folder that this command made on another machine
        #[arg(long, value_name = "DIR")]
        from: Option<PathBuf>,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub fn run(arguments: Arguments) -> ExitCode {
    let environment = Environment::from_process();
    match arguments.command {
        Command::Which { tools, json } => match locate(&tools.options(), &environment) {
            Ok(toolchain) => {
                let text = if json { crate::to_json(&description(&toolchain)) } else { lines(&toolchain) };
                crate::leave(0, crate::print(&text))
            }
            Err(error) => fail(&error, json),
        },
        Command::Install { from, json } => match install(from, &environment) {
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

fn install(from: Option<PathBuf>, environment: &Environment) -> Result<PathBuf, ToolchainError> {
    let cache = cache_folder(environment)?;
    let mut progress = |line: &str| tell!("{line}");
    match from {
        Some(folder) => provision_from(&folder, &cache, &mut progress),
        None => provision(&cache, environment, &mut progress),
    }
}

fn fail(error: &ToolchainError, json: bool) -> ExitCode {
    tell!("error: {error}\nwhat to do: {}", error.remedy());
    let code = match error.fault() {
        ToolchainFault::Request => 2,
        ToolchainFault::Machine | ToolchainFault::Network => crate::EXIT_ENVIRONMENT,
    };
    let printed = if json {
        crate::print(&crate::to_json(&json!({
            "ok": false,
            "fault": "toolchain",
            "cause": error.fault().name(),
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
        "cutlass": {
            "path": crate::shown(&toolchain.cutlass),
            "version": toolchain.cutlass_version,
            "origin": toolchain.cutlass_origin.to_string(),
        },
        "cuobjdump": toolchain.cuobjdump.as_ref().map(crate::shown),
        "include": toolchain.include.iter().map(crate::shown).collect::<Vec<_>>(),
        "libraries": toolchain.libraries.iter().map(crate::shown).collect::<Vec<_>>(),
        "passed_over": toolchain.passed_over,
    })
}

fn lines(toolchain: &Toolchain) -> String {
    let cuobjdump = toolchain.cuobjdump.as_ref().map_or("none".to_owned(), |path| path.display().to_string());
    let mut text = format!(
        "nvcc       {:<8} {} ({})\nCUTLASS    {:<8} {} ({})\ncuobjdump  {:<8} {cuobjdump}\n",
        toolchain.nvcc_version,
        toolchain.nvcc.display(),
        toolchain.nvcc_origin,
        toolchain.cutlass_version,
        toolchain.cutlass.display(),
        toolchain.cutlass_origin,
        "",
    );
    for reason in &toolchain.passed_over {
        text += &format!("not used: {reason}\n");
    }
    text
}
