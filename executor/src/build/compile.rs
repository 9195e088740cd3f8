//! Compiler invocation: flags, passes, and phase times.
//!
//! A source that supports it is compiled in two concurrent passes. nvcc's front end would read such a source twice
//! and the host compiler once more. Instead, one pass compiles the kernel to a fatbin (`FOURFOLD_DEVICE`), the other
//! compiles the host code (`FOURFOLD_HOST`), and both are linked. If that fails to compile, the whole source is
//! compiled with one plain command. A launcher such as sccache gets one plain compilation, the form that it can
//! cache; the result is linked without it.

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

/// The flags of a one-pass build that enter cache keys, without architecture and toolchain flags. Two passes split
/// them.
///
/// `-O1` applies to host code; device code is always optimized. `-fno-gnu-unique` is set because the dynamic linker
/// never unloads a library with unique symbols, which CCCL defines. Nor does it unload a library to whose symbols
/// another library is bound, as can happen with templates of the C++ runtime. Therefore only the interface is exported.
///
/// The fixed random seed and stripped symbols make builds reproducible: nvcc names temporary files after its process
/// ID, and their names become symbols.
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

/// The seed of the compiler's unique names. Each library has one source, so they cannot clash.
pub(super) const SEED: &str = "-frandom-seed=fourfold";

/// The linker's version script, which exports only the interface.
const EXPORTS: &str = "exports.map";
const EXPORTS_TEXT: &str = "{ global: fourfold_*; local: *; };\n";

/// The macros that a source mentions if it supports two passes.
const PASSES: [&str; 2] = ["FOURFOLD_DEVICE", "FOURFOLD_HOST"];

/// The flags of the device pass.
const DEVICE_FLAGS: [&str; 7] = [
    "-fatbin",
    "-DFOURFOLD_DEVICE",
    "-std=c++17",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xptxas=-v",
    SEED,
];

/// The flags of the host pass. It also parses CUTLASS's device code, which host compilers reject by default.
/// `-fpermissive` makes them accept it; none of it is used.
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

/// The flags that link both objects.
const LINK_FLAGS: [&str; 5] = [
    "-shared",
    "-Xcompiler=-fPIC",
    "--no-device-link",
    "-Xlinker=--version-script=exports.map",
    "-Xlinker=--strip-all",
];

/// The source as passed to nvcc: an empty file that includes it. nvcc pastes the real path of its input into shell
/// commands and into internal names; `/dev/null` is the same everywhere.
pub(super) const INCLUDED: [&str; 4] = ["-include", SOURCE, "-x=cu", "/dev/null"];

/// An object that holds the fatbin in the section where CUDA's tools look for it.
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
pub(super) const BINARY: &str = "kernel.fatbin";
const HOST_OBJECT: &str = "host.o";

/// The object file that a launcher compiles to.
const OBJECT: &str = "kernel.o";

/// The flags that [`BuildOptions::debug`] adds: line information and CUTLASS's host trace. Assertions stay off: they
/// use registers that some kernels cannot spare, and their traps would look like those of a missing instruction.
const DEBUG_FLAGS: [&str; 2] = ["-lineinfo", "-DCUTLASS_DEBUG_TRACE_LEVEL=1"];

/// The characters kept of the log of a timed-out tool or a failed disassembly.
pub(super) const LOG_TAIL: usize = 64 << 10;

/// The file for `nvcc --time`.
const TIMES: &str = "tmp/times.csv";

/// The time that one build phase took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// The program, such as `cicc`.
    pub name: String,
    /// Its wall-clock time.
    pub seconds: f64,
}

/// The result of a successful compilation.
pub(super) struct Compiled {
    pub(super) run: ToolRun,
    pub(super) reader: LogReader,
    pub(super) phases: Vec<Phase>,
}

/// The flags that determine the result, in order: the part of a cache key without paths, thread counts and launchers.
/// One-pass and two-pass builds share keys because they produce the same kernel. If a flag change breaks that, change
/// the context of cache keys as well.
pub fn semantic_flags(input: &BuildInput<'_>, options: &BuildOptions) -> Vec<String> {
    let mut flags: Vec<String> = FLAGS.map(str::to_owned).into();
    flags.extend(pass_flags(input, options));
    flags.push(gencode(input.architecture));
    if let Some(translation) = &input.translation {
        // No option of the compiler: it only enters the key.
        flags.push(format!("translate={},{}", translation.from, translation.version));
    }
    flags
}

/// Compiles the source in `folder` to the library there.
pub(super) fn compile(
    nvcc: &Path,
    links: &Links<'_>,
    input: &BuildInput<'_>,
    tools: &BuildTools<'_>,
    options: &BuildOptions,
    folder: &Path,
) -> Result<Compiled, BuildError> {
    fs::write(folder.join(EXPORTS), EXPORTS_TEXT).map_err(disk("write the export map"))?;
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
    // A whole compilation would leave out the translation.
    if let Some(translation) = &input.translation {
        return compiler.translated(translation);
    }
    // A launcher handles a compiler, not its parts.
    if let Some(launcher) = &options.launcher {
        return compiler.launched(launcher);
    }
    if !PASSES.iter().all(|pass| input.text.contains(pass)) {
        return compiler.whole();
    }
    match compiler.passes() {
        Err(BuildError::Compile { first_error, .. }) => {
            // Only errors from the whole source are reported.
            let mut compiled = compiler.whole()?;
            compiled.run.log = format!("two-pass compilation failed: {first_error}\n{}", compiled.run.log);
            Ok(compiled)
        }
        outcome => outcome,
    }
}

/// The flags that compile only the host code of a source: the library then lacks `fourfold_image`, its kernel's binary.
pub fn host_flags(input: &BuildInput<'_>, options: &BuildOptions) -> Vec<String> {
    // Line information applies to device code only.
    let shared = pass_flags(input, options).into_iter().filter(|flag| flag != "-lineinfo");
    HOST_FLAGS.into_iter().map(str::to_owned).chain(shared).collect()
}

/// The flags that both passes share.
pub(super) fn pass_flags(input: &BuildInput<'_>, options: &BuildOptions) -> Vec<String> {
    let debug = DEBUG_FLAGS.iter().filter(|_| options.debug);
    let prelude = ["-include", PRELUDE];
    debug.chain(prelude.iter().filter(|_| input.prelude.is_some())).map(|flag| (*flag).to_owned()).collect()
}

pub(super) fn gencode(architecture: &str) -> String {
    format!("-gencode=arch=compute_{architecture},code=sm_{architecture}")
}

pub(super) type Outcome = Result<(ToolRun, LogReader), BuildError>;

/// One source with its compiler.
pub(super) struct Compiler<'a> {
    nvcc: &'a Path,
    /// The compiler and its arguments, all by relative names.
    program: PathBuf,
    host: Vec<OsString>,
    pub(super) include: Vec<OsString>,
    libraries: Vec<OsString>,
    pub(super) input: &'a BuildInput<'a>,
    environment: &'a ToolEnvironment,
    pub(super) options: &'a BuildOptions,
    pub(super) folder: &'a Path,
    started: Instant,
}

impl Compiler<'_> {
    /// Compiles with one plain command.
    fn whole(&self) -> Result<Compiled, BuildError> {
        let mut command = self.command();
        command.args(semantic_flags(self.input, self.options)).args(["--time", TIMES]);
        command.args(&self.include).args(&self.libraries);
        command.args(["-o", LIBRARY]).args(INCLUDED);
        let (run, reader) = self.run(&mut command, self.options.cancel.as_ref())?;
        Ok(Compiled { run, reader, phases: self.read_phases() })
    }

    /// Compiles through a launcher, with the necessary flags only, since a launcher does not know all of them. Then
    /// links with a plain command.
    fn launched(&self, launcher: &Path) -> Result<Compiled, BuildError> {
        let mut compilation = Command::new(present(LAUNCHER, Some(launcher), self.environment)?);
        // Use the same name in every folder, so that the launcher's knowledge of the compiler stays valid.
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

    /// Compiles device and host code concurrently, then links.
    fn passes(&self) -> Result<Compiled, BuildError> {
        let flags = pass_flags(self.input, self.options);
        let mut device = self.command();
        device.args(DEVICE_FLAGS).arg(gencode(self.input.architecture)).args(&flags).args(["--time", TIMES]);
        device.args(&self.include).args(["-o", BINARY]).args(INCLUDED);
        self.with_host(|stop| self.run(&mut device, Some(stop)))
    }

    /// Compiles the host code while `device` makes the fatbin, then links both.
    pub(super) fn with_host(
        &self,
        device: impl FnOnce(&Cancel) -> Outcome + Send,
    ) -> Result<Compiled, BuildError> {
        fs::write(self.folder.join(IMAGE), IMAGE_TEXT).map_err(disk("write the source"))?;
        let mut host = self.command();
        host.args(host_flags(self.input, self.options));
        host.args(&self.include).args(["-o", HOST_OBJECT, SOURCE]);
        let (device, host) = self.side_by_side(device, |stop| self.run(&mut host, Some(stop)));
        let ((device, host), (mut run, reader)) = match (device, host) {
            (Ok(device), Ok((host, _))) => ((device.0.seconds, host), device),
            // The pass that failed has cancelled the other.
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

    /// Runs two passes concurrently. A failure cancels the other.
    fn side_by_side<'s>(
        &self,
        first: impl FnOnce(&Cancel) -> Outcome + Send + 's,
        second: impl FnOnce(&Cancel) -> Outcome + Send + 's,
    ) -> (Outcome, Outcome) {
        const POLL: Duration = Duration::from_millis(10);
        type Pass<'s> = Box<dyn FnOnce(&Cancel) -> Outcome + Send + 's>;
        let stop = Cancel::new();
        let run = |pass: Pass<'s>| {
            let outcome = pass(&stop);
            if outcome.is_err() {
                stop.cancel();
            }
            outcome
        };
        let no_thread = |source| Err(BuildError::Spawn { tool: "build thread", source });
        thread::scope(|scope| {
            let passes: [Pass<'s>; 2] = [Box::new(first), Box::new(second)];
            let run = &run;
            let threads =
                passes.map(|pass| parallel::thread_of("build step")?.spawn_scoped(scope, move || run(pass)));
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

    /// The compiler command without a task.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        self.environment.apply(&mut command, self.folder, &[]);
        command.args(&self.host);
        command
    }

    fn read_phases(&self) -> Vec<Phase> {
        fs::read_to_string(self.folder.join(TIMES)).map_or_else(|_| Vec::new(), |text| phases(&text))
    }

    /// Runs the compiler until it ends or reaches the time limit.
    pub(super) fn run(&self, command: &mut Command, cancel: Option<&Cancel>) -> Outcome {
        self.run_as(command, cancel, ("nvcc", self.nvcc))
    }

    /// Runs a program under this name and path.
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
            None => format!("no output, {}", run.ending()),
        };
        Err(BuildError::Compile { first_error, cause, log: run.log })
    }
}

/// Parses the output of `nvcc --time`: CSV whose second column is the program, and whose last two are time and unit.
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
            translation: None,
        };
        let plain = BuildOptions { launcher: Some("sccache".into()), ..BuildOptions::default() };
        let debug = BuildOptions { debug: true, ..BuildOptions::default() };
        let flags = semantic_flags(&input, &plain);
        assert_eq!(flags, semantic_flags(&input, &BuildOptions::default()));
        assert_eq!(flags.last().unwrap(), "-gencode=arch=compute_120a,code=sm_120a");
        let emulated = BuildInput { prelude: Some("x"), architecture: "90a", ..input };
        let translate: fn(&str, &str) -> Result<String, String> = |kernel, _| Ok(kernel.to_owned());
        let translation = |version| Some(super::super::Translation { from: "100a", version, translate });
        let all = [
            semantic_flags(&BuildInput { translation: translation(1), ..emulated }, &plain),
            semantic_flags(&BuildInput { translation: translation(2), ..emulated }, &plain),
            flags,
            semantic_flags(&input, &debug),
            semantic_flags(&emulated, &plain),
            semantic_flags(&emulated, &debug),
        ];
        assert!(all.iter().enumerate().all(|(at, flags)| !all[..at].contains(flags)));
    }
}
