//! Kernel builds: compiles a generated kernel with nvcc, and proves from the binary that it matches its plan.
//!
//! Each build runs in its own temporary folder, which also holds the compiler's temporary files and is always
//! removed. The compiler gets an argument vector, a constructed environment, safe relative paths (it starts shells
//! itself), a process group and a time limit. Builds are reproducible: the same source, flags and tools give the same
//! library in any folder.
//!
//! A build is accepted if the compiler succeeds, the library exists, its disassembly contains the required matrix
//! instruction, it loads, and its self-description matches the plan. The instruction is checked because a wrong
//! architecture compiles without an error.

mod artifact;
mod census;
mod compile;
mod environment;
mod error;
mod folder;
mod links;
mod log;
mod translated;

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub(crate) use artifact::Parts;
pub use artifact::{Artifact, BuiltWith, DumpedKernel, Resources};
pub use compile::{FLAGS, Phase, host_flags, semantic_flags};
pub use environment::ToolEnvironment;
pub use error::BuildError;
pub(crate) use folder::{Folder, OWNER, PREFIX, SWEEP_LOCK};

use crate::isolation::is_plain;
use crate::kernel::{Kernel, Metadata};
use crate::process::{Cancel, ToolRun};
use compile::{Compiled, compile};
use links::{LINKS, Links};
use log::LogReader;
pub use log::ToolCause;
pub use translated::ptx_flags;

/// A kernel's source, with the properties that its binary must have.
#[derive(Clone, Copy, Debug)]
pub struct BuildInput<'a> {
    /// The complete source.
    pub text: &'a str,
    /// The kernel's readable name.
    pub kernel: &'a str,
    /// The text that the compiler reads before the source, for emulated kernels. Their binary must not contain
    /// `BPT.TRAP`, which CUTLASS emits for instructions that the architecture lacks.
    pub prelude: Option<&'a str>,
    /// The target that the source was generated for, such as `sm_100a`.
    pub target: &'a str,
    /// The architecture to compile for, without `sm_`, such as `100a`.
    pub architecture: &'a str,
    /// The opcode required in the binary, such as `UTCOMMA`; variants of it qualify.
    pub opcode: &'a str,
    /// The pipeline stages required in the binary, if planned.
    pub stages: Option<u32>,
    /// The translation of the device code to another architecture. Needs a prelude.
    pub translation: Option<Translation>,
}

/// The translation of device code: the source is compiled to PTX for one architecture, and the PTX is rewritten and
/// assembled for [`BuildInput::architecture`]. Enters the cache key, but for the function.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    /// The architecture that the source is compiled for, such as `100a`.
    pub from: &'static str,
    /// The version of the function. Raise it whenever the function's result changes.
    pub version: u32,
    /// Rewrites the kernel's PTX. The second argument is the PTX of the prelude, compiled for
    /// [`BuildInput::architecture`] with the macro `FOURFOLD_LIBRARY`: functions that rewritten instructions call. An
    /// error says which instruction is not understood.
    pub translate: fn(kernel: &str, library: &str) -> Result<String, String>,
}

/// The programs and files that a build uses.
#[derive(Clone, Debug)]
pub struct BuildTools<'a> {
    /// The compiler.
    pub nvcc: &'a Path,
    /// Header folders: CUDA's and CUTLASS's.
    pub include: Vec<PathBuf>,
    /// Library folders: the static CUDA runtime's.
    pub libraries: Vec<PathBuf>,
    /// The disassembler. Required, since nothing can be proved without it.
    pub cuobjdump: Option<&'a Path>,
    /// The host compiler and the rest of the tools' environment.
    pub environment: ToolEnvironment,
}

/// Build settings.
#[derive(Clone, Debug)]
pub struct BuildOptions {
    /// Time limit of the compiler, and again of the disassembler.
    pub time_limit: Duration,
    /// The parent of the temporary folder. Default: the system's temporary folder.
    pub temp_dir: Option<PathBuf>,
    /// Debug mode: line information, CUTLASS's host trace on standard output, and other aids. Enters the cache key.
    /// The build folder's path must have no shell metacharacters, and is recorded in the line information.
    pub debug: bool,
    /// A compiler launcher, such as `sccache`. Does not enter the cache key. It gets one plain compilation (compiler,
    /// arguments with `-c`, one source); linking bypasses it. It chooses the folder of its temporary files. The build
    /// folder's path must have no shell metacharacters, and becomes part of internal symbol names.
    pub launcher: Option<PathBuf>,
    /// Cancels the build: all of its processes are killed.
    pub cancel: Option<Cancel>,
}

impl BuildOptions {
    /// Default time limit: far above the longest build in `docs/reference/pins.md`.
    pub const TIME_LIMIT: Duration = Duration::from_secs(600);

    /// Peak memory of one build, in bytes. `cicc` takes 5.4 GB for a plain kernel and 6.0 GB for a long epilogue
    /// (maximum resident sets, nvcc 13.0.88).
    pub const PEAK_MEMORY: u64 = 6 << 30;
}

impl Default for BuildOptions {
    fn default() -> Self {
        BuildOptions {
            time_limit: BuildOptions::TIME_LIMIT,
            temp_dir: None,
            debug: false,
            launcher: None,
            cancel: None,
        }
    }
}

/// Names in the build folder, which is the compiler's working directory; its messages use them.
const SOURCE: &str = "kernel.cu";
const PRELUDE: &str = "prelude.cuh";
const LIBRARY: &str = "kernel.so";
const TEMPORARY: &str = "tmp";

/// Compiles a kernel, checks the binary, and loads it once to read its self-description. Needs no GPU. The library
/// runs code in this process, so `input` must be a generated source.
///
/// # Errors
/// A [`BuildError`] with the compiler's message and the party at fault. Nothing is left on disk.
pub fn build(
    input: &BuildInput<'_>,
    tools: &BuildTools<'_>,
    options: &BuildOptions,
) -> Result<Artifact, BuildError> {
    let nvcc = present("nvcc", Some(tools.nvcc), &tools.environment)?;
    let cuobjdump = present("cuobjdump", tools.cuobjdump, &tools.environment)?;
    // The folder's name derives from the source: a launcher's cache key includes the path.
    let name = options.launcher.as_ref().map(|_| blake3::hash(input.text.as_bytes()).to_hex());
    let mut folder = Folder::called(options.temp_dir.as_deref(), name.as_ref().map(|name| &name[..16]))
        .map_err(disk("create a temporary folder"))?;
    if options.debug || options.launcher.is_some() {
        check_place(folder.path())?;
    }
    let library = folder.path().join(LIBRARY);
    fs::write(folder.path().join(SOURCE), input.text).map_err(disk("write the source"))?;
    if let Some(prelude) = input.prelude {
        fs::write(folder.path().join(PRELUDE), prelude).map_err(disk("write the prelude"))?;
    }
    fs::create_dir(folder.path().join(TEMPORARY)).map_err(disk("create the compiler's temporary folder"))?;

    let gone = |error| if_folder_is_gone(folder.path(), error);
    let links = Links::new(folder.path())?;
    let disassemble = census::command(&cuobjdump, &links, folder.path(), &tools.environment)?;
    let Compiled { run, reader, phases } =
        compile(&nvcc, &links, input, tools, options, folder.path()).map_err(gone)?;
    let library_bytes = check_library(&library, &run, &reader).map_err(gone)?;
    let (census, census_seconds) =
        census::inspect(disassemble, &cuobjdump, input.opcode, options).map_err(gone)?;
    if !census.holds_required() {
        return Err(BuildError::Census {
            expected: input.opcode.to_owned(),
            found: census.opcodes.into_keys().collect(),
            instructions: census.instructions,
            log: run.log,
        });
    }
    if input.prelude.is_some() && census.traps > 0 {
        return Err(BuildError::Traps { count: census.traps, log: run.log });
    }
    // Only the library is needed from here on; the other files may be large.
    for left in [TEMPORARY, LINKS] {
        fs::remove_dir_all(folder.path().join(left))
            .map_err(disk("remove the compiler's temporary files"))?;
    }

    // SAFETY: the compiler has just made it of the source that we were given, in a folder of our own.
    let kernel = match unsafe { Kernel::open(&library) } {
        Ok(kernel) => kernel,
        Err(source) => return Err(BuildError::Load { source, log: run.log }),
    };
    let metadata = kernel.metadata().clone();
    drop(kernel);
    check_metadata(input, &metadata, &run.log)?;
    // Host and device code may come from different compilers, which must agree on the entry functions.
    let is_there = |entry: &str| census.functions.iter().any(|name| name.starts_with(entry));
    if let Some(missing) = metadata.entry.split_whitespace().find(|entry| !is_there(entry)) {
        let (expected, found) = (missing.to_owned(), census.functions.join(", "));
        return Err(BuildError::Disagrees { what: "entry function", expected, found, log: run.log });
    }
    // Even without a cache, later loads verify this hash.
    let bytes = fs::read(&library).map_err(disk("read the library"))?;
    folder.expect_library(blake3::hash(&bytes));
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
        phases,
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
        built_with: None,
    })
}

/// Rejects a build folder with shell metacharacters in its path. Under a launcher, nvcc pastes the source's real path
/// into shell commands; line information contains the path too.
fn check_place(folder: &Path) -> Result<(), BuildError> {
    let path = folder.canonicalize().map_err(disk("resolve the path of the build folder"))?;
    if is_plain(path.as_os_str()) {
        return Ok(());
    }
    Err(BuildError::UnsafePath { what: "build folder (with a launcher or in debug mode)", path })
}

/// Attributes an error to the file system if the build folder was removed meanwhile, such as by a cleaner of
/// temporary files.
fn if_folder_is_gone(folder: &Path, error: BuildError) -> BuildError {
    let blames = matches!(
        error,
        BuildError::Compile { .. } | BuildError::Inspect { .. } | BuildError::NothingWritten { .. }
    );
    if !blames || [SOURCE, TEMPORARY, OWNER].iter().all(|name| folder.join(name).exists()) {
        return error;
    }
    let why = format!("`{}` was removed while a tool ran in it: {error}", folder.display());
    disk("build in a temporary folder")(io::Error::new(io::ErrorKind::NotFound, why))
}

/// The size of the library, if it is an ELF file.
fn check_library(library: &Path, run: &ToolRun, reader: &LogReader) -> Result<u64, BuildError> {
    const ELF: [u8; 4] = *b"\x7FELF";
    let nothing = |found: &str| match (reader.cause(), reader.complaint()) {
        (cause @ ToolCause::Transient(_), Some(first_error)) => {
            BuildError::Compile { first_error, cause, log: run.log.clone() }
        }
        (_, last_line) => {
            BuildError::NothingWritten { found: found.to_owned(), last_line, log: run.log.clone() }
        }
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
        Ok(()) => Err(nothing("wrote a file that is not an ELF library")),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(nothing("wrote a file that is not an ELF library"))
        }
        Err(source) => Err(disk("read the library")(source)),
    }
}

fn check_metadata(input: &BuildInput<'_>, metadata: &Metadata, log: &str) -> Result<(), BuildError> {
    let check = |what, expected: String, found: String| {
        if expected == found {
            Ok(())
        } else {
            Err(BuildError::Disagrees { what, expected, found, log: log.to_owned() })
        }
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

/// The absolute path of an existing program. A bare name is looked up on the caller's `PATH`.
fn present(
    tool: &'static str,
    path: Option<&Path>,
    environment: &ToolEnvironment,
) -> Result<PathBuf, BuildError> {
    let missing = || BuildError::ToolMissing { tool, path: path.map(Path::to_owned) };
    let path = path.ok_or_else(missing)?;
    if path.parent().is_some_and(|parent| parent.as_os_str().is_empty()) {
        return environment.find(path.as_os_str()).ok_or_else(missing);
    }
    if path.exists() {
        std::path::absolute(path).map_err(disk("determine the working directory"))
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
