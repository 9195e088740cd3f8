//! Compiles a generated kernel with nvcc and proves from the binary that it is the kernel that was planned.
//!
//! A build happens in a temporary folder of its own, in which the compiler's own temporary files lie too, and which
//! is removed on every way out. The compiler gets an argument vector (no shell), an environment without variables
//! that would add flags, a process group, and a time limit. What comes out is accepted when the compiler succeeded,
//! the library is there, its disassembly contains the matrix instruction (a wrong architecture compiles silently to
//! a kernel without one), it can be loaded, and it says of itself what was planned.

mod artifact;
mod census;
mod error;
mod folder;
mod log;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub use artifact::{Artifact, Resources};
pub use error::{BuildError, BuildFault};
pub(crate) use folder::Folder;

use crate::kernel::{Kernel, Metadata};
use crate::process::{ToolRun, run_tool_watched};
use census::Census;
use log::LogReader;

/// The source of a kernel, and what is known of it beforehand.
#[derive(Clone, Copy, Debug)]
pub struct BuildInput<'a> {
    /// The complete source.
    pub text: &'a str,
    /// The kernel's readable name.
    pub kernel: &'a str,
    /// What the compiler reads before the source, if anything. It means that the kernel runs emulated, so the binary
    /// must hold no path that CUTLASS marks as invalid for its architecture: `BPT.TRAP`.
    pub prelude: Option<&'a str>,
    /// What the source was generated for, such as `sm_100a`.
    pub target: &'a str,
    /// The architecture that it is compiled for, without its `sm_`, such as `100a`.
    pub architecture: &'a str,
    /// The opcode that the binary must contain, or a variant of it, such as `UTCOMMA`.
    pub opcode: &'a str,
    /// The stages that the binary must have, where the plan says so.
    pub stages: Option<u32>,
}

/// The programs and files that a build uses.
#[derive(Clone, Debug)]
pub struct BuildTools<'a> {
    /// The compiler.
    pub nvcc: &'a Path,
    /// Folders with headers: CUDA's, CUTLASS's.
    pub include: Vec<PathBuf>,
    /// Folders with libraries: the static CUDA runtime's.
    pub libraries: Vec<PathBuf>,
    /// The disassembler. Without it nothing is built, because nothing could be proved of it.
    pub cuobjdump: Option<&'a Path>,
}

/// How to build.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// How long the compiler may take.
    pub time_limit: Duration,
    /// Where the temporary folder lies; the system's folder for temporary files if there is none.
    pub temp_dir: Option<PathBuf>,
}

impl BuildOptions {
    /// Ten times what a kernel takes on one slow core.
    pub const TIME_LIMIT: Duration = Duration::from_secs(600);
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions { time_limit: BuildOptions::TIME_LIMIT, temp_dir: None }
    }
}

/// Names inside the temporary folder, which is the compiler's working directory: messages name the source so.
const SOURCE: &str = "kernel.cu";
const PRELUDE: &str = "prelude.cuh";
const LIBRARY: &str = "kernel.so";
const TEMPORARY: &str = "tmp";

/// How much of a log a time-out keeps, in characters.
const LOG_TAIL: usize = 4000;

/// How long the disassembler may take; it needs a second.
const CENSUS_LIMIT: Duration = Duration::from_secs(120);

/// The flags that every kernel is compiled with, without those that depend on the architecture or on the toolchain.
///
/// `-fno-gnu-unique`, because the dynamic linker never unloads a library with a unique symbol, and CCCL has some.
pub const FLAGS: [&str; 8] = [
    "-std=c++17",
    "-O3",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fno-gnu-unique",
    "-Xptxas=-v",
    "-shared",
];

/// Compiles a kernel, checks the binary, and loads it once to ask it about itself. No GPU is needed. The source and
/// the tools are the caller's, and what comes of them runs in this process: the source must be a generated one.
///
/// # Errors
/// Whatever went wrong, with the compiler's own words and whose fault it was. Nothing is left on disk then.
pub fn build(
    input: &BuildInput<'_>,
    tools: &BuildTools<'_>,
    options: &BuildOptions,
) -> Result<Artifact, BuildError> {
    let nvcc = present("nvcc", Some(tools.nvcc))?;
    let cuobjdump = present("cuobjdump", tools.cuobjdump)?;
    let folder = Folder::new(options.temp_dir.as_deref()).map_err(disk("make a temporary folder"))?;
    let library = folder.path().join(LIBRARY);
    fs::write(folder.path().join(SOURCE), input.text).map_err(disk("write the source"))?;
    if let Some(prelude) = input.prelude {
        fs::write(folder.path().join(PRELUDE), prelude).map_err(disk("write the prelude"))?;
    }
    fs::create_dir(folder.path().join(TEMPORARY)).map_err(disk("make a folder for the compiler"))?;

    let (run, reader) = compile(&nvcc, input, tools, options.time_limit, folder.path())?;
    let library_bytes = check_library(&library, &run, &reader)?;
    let (census, census_seconds) = inspect(&cuobjdump, &folder)?;
    if !census.holds(input.opcode) {
        return Err(BuildError::Census {
            expected: input.opcode.to_owned(),
            found: census.opcodes.into_keys().collect(),
            instructions: census.instructions,
        });
    }
    if input.prelude.is_some() && census.traps > 0 {
        return Err(BuildError::Traps { count: census.traps });
    }
    // Only the library is needed from here on; what the compiler left otherwise may be large.
    fs::remove_dir_all(folder.path().join(TEMPORARY))
        .map_err(disk("remove the compiler's temporary files"))?;

    // SAFETY: the compiler has just made it of the source that we were given, in a folder of our own.
    let kernel = unsafe { Kernel::open(&library) }.map_err(BuildError::Load)?;
    let metadata = kernel.metadata().clone();
    drop(kernel);
    check_metadata(input, &metadata)?;
    let resources = Resources {
        registers: reader.registers,
        spill_stores: reader.spill_stores,
        spill_loads: reader.spill_loads,
        stack: reader.stack,
        barriers: reader.barriers,
        shared_memory: metadata.shared_memory,
        threads: metadata.threads,
        stages: metadata.stages,
        opcodes: census.opcodes,
        instructions: census.instructions,
        traps: census.traps,
        library_bytes,
        compile_time: Duration::from_secs_f64(run.seconds),
        census_time: Duration::from_secs_f64(census_seconds),
    };
    Ok(Artifact {
        folder: Arc::new(folder),
        library,
        kernel: input.kernel.to_owned(),
        source: input.text.to_owned(),
        prelude: input.prelude.map(str::to_owned),
        log: run.log,
        resources,
        metadata,
    })
}

/// The arguments for the compiler, which runs in the folder with the source.
fn arguments(input: &BuildInput<'_>, tools: &BuildTools<'_>) -> io::Result<Vec<OsString>> {
    let architecture = input.architecture;
    let mut arguments: Vec<OsString> = FLAGS.map(OsString::from).into();
    if input.prelude.is_some() {
        arguments.extend(["-include", PRELUDE].map(OsString::from));
    }
    arguments.push(format!("-gencode=arch=compute_{architecture},code=sm_{architecture}").into());
    for (flag, folders) in [("-I", &tools.include), ("-L", &tools.libraries)] {
        for folder in folders {
            // The compiler has another working directory than the caller.
            arguments.extend([OsString::from(flag), std::path::absolute(folder)?.into()]);
        }
    }
    arguments.extend(["-o", LIBRARY, SOURCE].map(OsString::from));
    Ok(arguments)
}

fn compile(
    nvcc: &Path,
    input: &BuildInput<'_>,
    tools: &BuildTools<'_>,
    limit: Duration,
    folder: &Path,
) -> Result<(ToolRun, LogReader), BuildError> {
    let mut command = Command::new(nvcc);
    command.args(arguments(input, tools).map_err(disk("find the working directory"))?).current_dir(folder);
    // Messages are read, so they must be in one language; flags come from us alone.
    command.env("TMPDIR", folder.join(TEMPORARY)).env("LC_ALL", "C");
    command.env_remove("NVCC_APPEND_FLAGS").env_remove("NVCC_PREPEND_FLAGS");
    let mut reader = LogReader::default();
    let run = run_tool_watched(&mut command, limit, &mut |line| reader.line(line))
        .map_err(not_run("nvcc", nvcc))?;
    let Some(status) = run.status else {
        return Err(BuildError::Timeout {
            tool: "nvcc",
            seconds: limit.as_secs_f64(),
            last_line: reader.complaint(),
            log_tail: log::tail(&run.log, LOG_TAIL).to_owned(),
        });
    };
    let signal = status.signal().or_else(|| log::child_signal(reader.first_error.as_deref()?));
    if let Some(signal) = signal {
        return Err(BuildError::Signal { tool: "nvcc", signal, last_line: reader.complaint(), log: run.log });
    }
    if status.success() {
        return Ok((run, reader));
    }
    let fault = reader.first_error.as_deref().map_or(BuildFault::Toolchain, log::blame);
    let first_error = match reader.complaint() {
        Some(complaint) => complaint,
        None => format!("it printed nothing and ended with {}", run.ending()),
    };
    Err(BuildError::Compile { first_error, fault, log: run.log })
}

/// The size of the library, if it is one.
fn check_library(library: &Path, run: &ToolRun, reader: &LogReader) -> Result<u64, BuildError> {
    const ELF: [u8; 4] = *b"\x7FELF";
    let nothing = |found: &str| BuildError::NothingWritten {
        found: found.to_owned(),
        last_line: reader.complaint(),
        log: run.log.clone(),
    };
    let mut file = match File::open(library) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(nothing("wrote no library")),
        Err(source) => return Err(disk("open the library")(source)),
    };
    let size = file.metadata().map_err(disk("read the library"))?.len();
    let mut magic = [0; ELF.len()];
    match file.read_exact(&mut magic) {
        _ if size == 0 => Err(nothing("wrote an empty library")),
        Ok(()) if magic == ELF => Ok(size),
        Ok(()) => Err(nothing("wrote something that is no library")),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(nothing("wrote something that is no library"))
        }
        Err(source) => Err(disk("read the library")(source)),
    }
}

/// Disassembles the library and counts its instructions.
fn inspect(cuobjdump: &Path, folder: &Folder) -> Result<(Census, f64), BuildError> {
    let mut command = Command::new(cuobjdump);
    command.args(["-sass", LIBRARY]).current_dir(folder.path());
    command.env("TMPDIR", folder.path().join(TEMPORARY)).env("LC_ALL", "C");
    let mut census = Census::default();
    let mut reader = LogReader::default();
    let run = run_tool_watched(&mut command, CENSUS_LIMIT, &mut |line| {
        census.line(line);
        reader.line(line);
    })
    .map_err(not_run("cuobjdump", cuobjdump))?;
    if run.status.is_none() {
        return Err(BuildError::Timeout {
            tool: "cuobjdump",
            seconds: CENSUS_LIMIT.as_secs_f64(),
            last_line: reader.first_error,
            log_tail: log::tail(&run.log, LOG_TAIL).to_owned(),
        });
    }
    if !run.succeeded() {
        let complaint = reader.complaint().unwrap_or_else(|| "it printed nothing".to_owned());
        return Err(BuildError::Inspect { first_error: format!("{complaint} ({})", run.ending()) });
    }
    Ok((census, run.seconds))
}

fn check_metadata(input: &BuildInput<'_>, metadata: &Metadata) -> Result<(), BuildError> {
    let check = |what, expected: String, found: String| {
        if expected == found { Ok(()) } else { Err(BuildError::Disagrees { what, expected, found }) }
    };
    check("name", input.kernel.to_owned(), metadata.kernel.clone())?;
    check("target", input.target.to_owned(), metadata.target.clone())?;
    let kind = |emulated: bool| if emulated { "emulated" } else { "native" }.to_owned();
    check("kind", kind(input.prelude.is_some()), kind(metadata.emulated))?;
    match (input.stages, metadata.stages) {
        (None, _) => Ok(()),
        (Some(expected), Some(found)) => check("number of stages", expected.to_string(), found.to_string()),
        (Some(expected), None) => check("number of stages", expected.to_string(), "not given".to_owned()),
    }
}

/// The absolute path of a program, if there is one. A bare name is left to the search path.
fn present(tool: &'static str, path: Option<&Path>) -> Result<PathBuf, BuildError> {
    let missing = || BuildError::ToolMissing { tool, path: path.map(Path::to_owned) };
    let path = path.ok_or_else(missing)?;
    if path.parent().is_some_and(|parent| parent.as_os_str().is_empty()) {
        return Ok(path.to_owned());
    }
    if path.exists() {
        std::path::absolute(path).map_err(disk("find the working directory"))
    } else {
        Err(missing())
    }
}

fn not_run(tool: &'static str, path: &Path) -> impl FnOnce(io::Error) -> BuildError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::NotFound => BuildError::ToolMissing { tool, path: Some(path) },
        _ => BuildError::Spawn { tool, source },
    }
}

fn disk(action: &'static str) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Disk { action: action.to_owned(), source }
}
