//! Runs the compiler on a source: with which flags, what it printed, and how long its phases took.
//!
//! A generated source can be compiled in two passes side by side. nvcc would have its front end read all of it twice,
//! and the host's compiler once more after that; so the kernel is compiled to a binary by itself (`FOURFOLD_DEVICE`),
//! and what calls it by the host's compiler alone (`FOURFOLD_HOST`), to which the binary is linked. Where the compiler
//! refuses that, the source is compiled whole, with one plain command. A launcher gets a plain compilation,
//! which is what those programs know and keep the outcome of; what it gives is linked without it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use serde::{Deserialize, Serialize};

use super::error::LAUNCHER;
use super::links::Links;
use super::log::{self, LogReader};
use super::{
    BuildError, BuildInput, BuildOptions, BuildTools, LIBRARY, PRELUDE, SOURCE, ToolEnvironment, disk,
    not_run, present,
};
use crate::isolation::is_plain;
use crate::parallel;
use crate::process::{Cancel, ToolRun, run_tool_watched};

/// The flags of a build in one pass, which cache keys hold, without those that depend on the architecture or on the
/// toolchain. A build in two passes splits them.
///
/// `-O1` is of the host's code; device code is always optimized. `-fno-gnu-unique`, because the dynamic linker never
/// unloads a library with a unique symbol, and CCCL has some; nor one to whose symbols another is bound, as the C++
/// runtime is to its templates wherever it finds them first: so only the interface is seen from outside.
///
/// The random seed and the symbols that are left out make builds the same: nvcc's temporary files are called by the
/// number of its process, and their names are symbols.
pub const FLAGS: [&str; 11] = [
    "-std=c++17",
    "-O1",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fno-gnu-unique",
    "-Xptxas=-v",
    "-Xlinker=--version-script=exports.map",
    "-Xlinker=--strip-all",
    SEED,
    "-shared",
];

/// The seed with which the compiler makes names unique. Each library has one source.
const SEED: &str = "-frandom-seed=fourfold";

/// What the linker makes visible of a library, and the file that says so.
const EXPORTS: &str = "exports.map";
const EXPORTS_TEXT: &str = "{ global: fourfold_*; local: *; };\n";

/// What a source names that can be compiled in two passes.
const PASSES: [&str; 2] = ["FOURFOLD_DEVICE", "FOURFOLD_HOST"];

/// The flags of the pass that compiles the kernel.
const DEVICE_FLAGS: [&str; 7] = [
    "-fatbin",
    "-DFOURFOLD_DEVICE",
    "-std=c++17",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xptxas=-v",
    SEED,
];

/// The flags of the pass that compiles what calls it. CUTLASS's device code is read there too, and the host's compiler
/// would rather not: it is made to, and nothing of it is used.
const HOST_FLAGS: [&str; 10] = [
    "-x=c++",
    "-c",
    "-DFOURFOLD_HOST",
    "-std=c++17",
    "-O1",
    "-DNDEBUG",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fno-gnu-unique",
    "-Xcompiler=-fpermissive,-w",
    SEED,
];

/// The flags that link both.
const LINK_FLAGS: [&str; 5] = [
    "-shared",
    "-Xcompiler=-fPIC",
    "--no-device-link",
    "-Xlinker=--version-script=exports.map",
    "-Xlinker=--strip-all",
];

/// The source as nvcc is told of it: an empty file that includes it. nvcc pastes the real path of what it compiles into
/// commands for a shell, and names what has internal linkage by it; this one is the same everywhere.
const INCLUDED: [&str; 4] = ["-include", SOURCE, "-x=cu", "/dev/null"];

/// The kernel's binary, as an object that has it where CUDA's tools look for one.
const IMAGE_TEXT: &str = r#"__asm__(
    ".section .nv_fatbin,\"a\"\n"
    ".balign 16\n"
    ".globl fourfold_image\n"
    ".hidden fourfold_image\n"
    "fourfold_image:\n"
    ".incbin \"kernel.fatbin\"\n"
    ".previous\n");
"#;

const IMAGE: &str = "image.cpp";
const BINARY: &str = "kernel.fatbin";
const HOST_OBJECT: &str = "host.o";

/// What a launcher compiles a source to.
const OBJECT: &str = "kernel.o";

/// What [`BuildOptions::debug`] adds: the lines of the source in the binary, and CUTLASS's account of what its host
/// code does. Assertions stay out: they take registers of kernels that have none to spare, and what traps would no
/// longer be told from what an architecture lacks.
const DEBUG_FLAGS: [&str; 2] = ["-lineinfo", "-DCUTLASS_DEBUG_TRACE_LEVEL=1"];

/// The characters kept of the log of a tool that timed out, or of a failed disassembly.
pub(super) const LOG_TAIL: usize = 64 << 10;

/// The file that nvcc writes the times of its phases to.
const TIMES: &str = "tmp/times.csv";

/// What a part of a build took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The program, such as `cicc`.
    pub name: String,
    /// Its wall-clock time.
    pub seconds: f64,
}

/// What a compiler has done.
pub(super) struct Compiled {
    pub(super) run: ToolRun,
    pub(super) reader: LogReader,
    pub(super) phases: Vec<Phase>,
}

/// The flags that change what is built, in order, without paths, thread counts and launchers: what a key holds. A
/// source that is compiled in two passes is the same kernel as one that is compiled whole: whoever changes the flags of the
/// passes so that it no longer is must change the context of keys too.
pub fn semantic_flags(input: &BuildInput<'_>, options: &BuildOptions) -> Vec<String> {
    let mut flags: Vec<String> = FLAGS.map(str::to_owned).into();
    flags.extend(pass_flags(input, options));
    flags.push(gencode(input));
    flags
}

/// Compiles the source that lies in `folder` to the library there.
pub(super) fn compile(
    nvcc: &Path,
    links: &Links<'_>,
    input: &BuildInput<'_>,
    tools: &BuildTools<'_>,
    options: &BuildOptions,
    folder: &Path,
) -> Result<Compiled, BuildError> {
    fs::write(folder.join(EXPORTS), EXPORTS_TEXT).map_err(disk("write what the library exports"))?;
    let places = |flag: &str, name: &str, folders: &[PathBuf]| {
        let mut arguments: Vec<OsString> = Vec::new();
        for (number, folder) in folders.iter().enumerate() {
            arguments.extend([flag.into(), links.folder(&format!("{name}{number}"), folder)?.into()]);
        }
        Ok(arguments)
    };
    let compiler = Compiler {
        nvcc,
        program: links.program("nvcc", nvcc)?,
        host: tools.environment.host_arguments(links)?,
        include: places("-I", "include", &tools.include)?,
        libraries: places("-L", "library", &tools.libraries)?,
        input,
        environment: &tools.environment,
        options,
        folder,
        started: Instant::now(),
    };
    // A launcher knows what a compiler is, and not what its parts are.
    if let Some(launcher) = &options.launcher {
        return compiler.launched(launcher);
    }
    if !PASSES.iter().all(|pass| input.text.contains(pass)) {
        return compiler.whole();
    }
    match compiler.passes() {
        Err(BuildError::Compile { first_error, .. }) => {
            // What the compiler says of the whole source counts.
            let mut compiled = compiler.whole()?;
            compiled.run.log =
                format!("in two passes it did not compile: {first_error}\n{}", compiled.run.log);
            Ok(compiled)
        }
        outcome => outcome,
    }
}

/// Flags that both passes have.
fn pass_flags(input: &BuildInput<'_>, options: &BuildOptions) -> Vec<String> {
    let debug = DEBUG_FLAGS.iter().filter(|_| options.debug);
    let prelude = ["-include", PRELUDE];
    debug.chain(prelude.iter().filter(|_| input.prelude.is_some())).map(|flag| (*flag).to_owned()).collect()
}

fn gencode(input: &BuildInput<'_>) -> String {
    let architecture = input.architecture;
    format!("-gencode=arch=compute_{architecture},code=sm_{architecture}")
}

type Outcome = Result<(ToolRun, LogReader), BuildError>;

/// One source, and what compiles it.
struct Compiler<'a> {
    nvcc: &'a Path,
    /// The compiler as it is called, and arguments for it, all by relative names.
    program: PathBuf,
    host: Vec<OsString>,
    include: Vec<OsString>,
    libraries: Vec<OsString>,
    input: &'a BuildInput<'a>,
    environment: &'a ToolEnvironment,
    options: &'a BuildOptions,
    folder: &'a Path,
    started: Instant,
}

impl Compiler<'_> {
    /// With one plain command.
    fn whole(&self) -> Result<Compiled, BuildError> {
        let mut command = self.command();
        command.args(semantic_flags(self.input, self.options)).args(["--time", TIMES]);
        command.args(&self.include).args(&self.libraries);
        command.args(["-o", LIBRARY]).args(INCLUDED);
        let (run, reader) = self.run(&mut command, self.options.cancel.as_ref())?;
        Ok(Compiled { run, reader, phases: self.read_phases() })
    }

    /// With a plain compilation by a launcher, which gets no flags but those that it needs, as it has not met all of
    /// them, and with a plain command that links.
    fn launched(&self, launcher: &Path) -> Result<Compiled, BuildError> {
        let mut compilation = Command::new(present(LAUNCHER, Some(launcher), self.environment)?);
        // By one name in all folders, so that what the launcher knows of the compiler stays true.
        compilation.arg(if is_plain(self.nvcc.as_os_str()) { self.nvcc } else { &self.program });
        let links = |flag: &String| flag == "-shared" || flag.starts_with("-Xlinker");
        compilation.args(semantic_flags(self.input, self.options).iter().filter(|flag| !links(flag)));
        compilation.args(&self.host).args(&self.include);
        compilation.args(["-c", "-o", OBJECT, SOURCE]);
        let cancel = self.options.cancel.as_ref();
        self.environment.apply_to_launcher(&mut compilation, self.folder);
        let (mut run, reader) = self.run_as(&mut compilation, cancel, (LAUNCHER, launcher))?;
        let mut link = self.command();
        link.args(LINK_FLAGS).args(&self.libraries).args(["-o", LIBRARY, OBJECT]);
        let (linked, _) = self.run(&mut link, cancel)?;
        let phase = |name: &str, seconds| Phase { name: name.to_owned(), seconds };
        let phases = vec![phase(LAUNCHER, run.seconds), phase("link", linked.seconds)];
        run.log = [run.log, linked.log].concat();
        run.log_truncated |= linked.log_truncated;
        run.seconds = self.started.elapsed().as_secs_f64();
        Ok(Compiled { run, reader, phases })
    }

    /// The kernel and what calls it side by side, then both together.
    fn passes(&self) -> Result<Compiled, BuildError> {
        fs::write(self.folder.join(IMAGE), IMAGE_TEXT).map_err(disk("write the source"))?;
        let flags = pass_flags(self.input, self.options);
        let mut device = self.command();
        device.args(DEVICE_FLAGS).arg(gencode(self.input)).args(&flags).args(["--time", TIMES]);
        device.args(&self.include).args(["-o", BINARY]).args(INCLUDED);
        let mut host = self.command();
        // Line information is of device code only.
        host.args(HOST_FLAGS).args(flags.iter().filter(|flag| *flag != "-lineinfo"));
        host.args(&self.include).args(["-o", HOST_OBJECT, SOURCE]);
        let (device, host) = self.side_by_side(&mut device, &mut host);
        let ((device, host), (mut run, reader)) = match (device, host) {
            (Ok(device), Ok((host, _))) => ((device.0.seconds, host), device),
            // Whichever failed has stopped the other.
            (Err(BuildError::Cancelled { .. }), Err(error)) | (Err(error), _) | (_, Err(error)) => {
                return Err(error);
            }
        };
        let mut link = self.command();
        link.args(LINK_FLAGS).args(&self.libraries).args(["-o", LIBRARY, HOST_OBJECT, IMAGE]);
        let (linked, _) = self.run(&mut link, self.options.cancel.as_ref())?;
        let mut phases = self.read_phases();
        if phases.is_empty() {
            phases.push(Phase { name: "device".to_owned(), seconds: device });
        }
        phases.push(Phase { name: "host".to_owned(), seconds: host.seconds });
        phases.push(Phase { name: "link".to_owned(), seconds: linked.seconds });
        run.log = [run.log, host.log, linked.log].concat();
        run.log_truncated |= host.log_truncated | linked.log_truncated;
        run.seconds = self.started.elapsed().as_secs_f64();
        Ok(Compiled { run, reader, phases })
    }

    /// Runs two commands at once. One that fails stops the other.
    fn side_by_side(&self, first: &mut Command, second: &mut Command) -> (Outcome, Outcome) {
        const POLL: Duration = Duration::from_millis(10);
        let stop = Cancel::new();
        let run = |command: &mut Command| {
            let outcome = self.run(command, Some(&stop));
            if outcome.is_err() {
                stop.cancel();
            }
            outcome
        };
        let no_thread = |source| Err(BuildError::Spawn { tool: "a thread for a build", source });
        thread::scope(|scope| {
            let threads = [first, second]
                .map(|command| parallel::thread_of("build step")?.spawn_scoped(scope, || run(command)));
            if threads.iter().any(Result::is_err) {
                stop.cancel();
            }
            while threads.iter().flatten().any(|thread| !thread.is_finished()) {
                if self.options.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                    stop.cancel();
                }
                thread::sleep(POLL);
            }
            let [first, second] = threads.map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(source) => no_thread(source),
            });
            (first, second)
        })
    }

    /// The compiler, without what it is to do.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        self.environment.apply(&mut command, self.folder, &[]);
        command.args(&self.host);
        command
    }

    fn read_phases(&self) -> Vec<Phase> {
        fs::read_to_string(self.folder.join(TIMES)).map_or_else(|_| Vec::new(), |text| phases(&text))
    }

    /// Runs the compiler until it succeeds, or fails, or the time is over.
    fn run(&self, command: &mut Command, cancel: Option<&Cancel>) -> Outcome {
        self.run_as(command, cancel, ("nvcc", self.nvcc))
    }

    /// Runs a program of this name and path.
    fn run_as(
        &self,
        command: &mut Command,
        cancel: Option<&Cancel>,
        (name, path): (&'static str, &Path),
    ) -> Outcome {
        let mut reader = LogReader::default();
        let limit = self.options.time_limit.saturating_sub(self.started.elapsed());
        let run = run_tool_watched(command, limit, cancel, &mut |line| reader.line(line))
            .map_err(not_run(name, path))?;
        if run.cancelled {
            return Err(BuildError::Cancelled { tool: "nvcc", seconds: run.seconds });
        }
        let Some(status) = run.status else {
            return Err(BuildError::Timeout {
                tool: "nvcc",
                seconds: self.options.time_limit.as_secs_f64(),
                last_line: reader.complaint(),
                log_tail: log::tail(&run.log, LOG_TAIL).to_owned(),
            });
        };
        if let Some(signal) = reader.signal(status).filter(|_| !status.success()) {
            return Err(BuildError::Signal {
                tool: "nvcc",
                signal,
                last_line: reader.complaint(),
                log: run.log,
            });
        }
        if status.success() {
            return Ok((run, reader));
        }
        let cause = reader.cause();
        let first_error = match reader.complaint() {
            Some(complaint) => complaint,
            None => format!("it printed nothing and ended with {}", run.ending()),
        };
        Err(BuildError::Compile { first_error, cause, log: run.log })
    }
}

/// The phases in what `nvcc --time` writes: a line for each, of which the second column is the program and the last
/// two are the time and its unit.
fn phases(csv: &str) -> Vec<Phase> {
    csv.lines()
        .filter_map(|line| {
            let columns: Vec<&str> = line.split(',').map(str::trim).collect();
            let [_, program, .., time, "ms"] = columns[..] else { return None };
            Some(Phase { name: program.to_owned(), seconds: time.parse::<f64>().ok()? / 1e3 })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_read_from_what_nvcc_writes() {
        let csv = "source file name , phase name , phase input files , phase output file , arch , tool, metric , unit\n\
                   kernel.cu , gcc (preprocessing 1) , kernel.cu  , kernel.cpp1.ii , compute_120a , nvcc , 728.4500 , ms\n\
                   kernel.cu , cicc , kernel.cpp1.ii  , kernel.ptx , compute_120a , nvcc , 61029.8555 , ms\n\
                   nonsense\n";
        let phase = |name: &str, seconds| Phase { name: name.to_owned(), seconds };
        assert_eq!(phases(csv), [phase("gcc (preprocessing 1)", 0.72845), phase("cicc", 61.0298555)]);
        assert_eq!(phases(""), []);
    }

    #[test]
    fn flags_of_a_key_say_what_is_built_and_not_where() {
        let input = BuildInput {
            text: "",
            kernel: "k",
            prelude: None,
            target: "sm_120a",
            architecture: "120a",
            opcode: "OMMA",
            stages: None,
        };
        let plain = BuildOptions { launcher: Some("sccache".into()), ..BuildOptions::default() };
        let debug = BuildOptions { debug: true, ..BuildOptions::default() };
        let flags = semantic_flags(&input, &plain);
        assert_eq!(flags, semantic_flags(&input, &BuildOptions::default()));
        assert_eq!(flags.last().unwrap(), "-gencode=arch=compute_120a,code=sm_120a");
        let emulated = BuildInput { prelude: Some("x"), architecture: "90a", ..input };
        let all = [
            flags,
            semantic_flags(&input, &debug),
            semantic_flags(&emulated, &plain),
            semantic_flags(&emulated, &debug),
        ];
        assert!(all.iter().enumerate().all(|(at, flags)| !all[..at].contains(flags)));
    }
}
