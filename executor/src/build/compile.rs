//! Runs the compiler on a source: with which flags, what it printed, and how long its phases took.
//!
//! A generated source can be compiled in two passes side by side. nvcc would have its front end read all of it twice,
//! and the host's compiler once more after that; so the kernel is compiled to a binary by itself (`FOURFOLD_DEVICE`),
//! and what calls it by the host's compiler alone (`FOURFOLD_HOST`), to which the binary is linked. Where the compiler
//! refuses that, the source is compiled whole, with one plain command. A launcher gets a plain compilation,
//! which is what those programs know and keep the outcome of; what it gives is linked without it.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use serde::{Deserialize, Serialize};

use super::error::LAUNCHER;
use super::log::{self, LogReader};
use super::{
    BuildError, BuildFault, BuildInput, BuildOptions, BuildTools, LIBRARY, PRELUDE, SOURCE, TEMPORARY, disk,
    not_run, present,
};
use crate::process::{Cancel, ToolRun, run_tool_watched};

/// The flags that every kernel is compiled with, without those that depend on the architecture or on the toolchain.
///
/// `-O1` is of the host's code; device code is always optimized. `-fno-gnu-unique`, because the dynamic linker never
/// unloads a library with a unique symbol, and CCCL has some; nor one to whose symbols another is bound, as the C++
/// runtime is to its templates wherever it finds them first: so only the interface is seen from outside.
pub const FLAGS: [&str; 9] = [
    "-std=c++17",
    "-O1",
    "-DNDEBUG",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fno-gnu-unique",
    "-Xptxas=-v",
    "-Xlinker=--version-script=exports.map",
    "-shared",
];

/// What the linker makes visible of a library, and the file that says so.
const EXPORTS: &str = "exports.map";
const EXPORTS_TEXT: &str = "{ global: fourfold_*; local: *; };\n";

/// What a source names that can be compiled in two passes.
const PASSES: [&str; 2] = ["FOURFOLD_DEVICE", "FOURFOLD_HOST"];

/// The flags of the pass that compiles the kernel.
const DEVICE_FLAGS: [&str; 6] =
    ["-fatbin", "-DFOURFOLD_DEVICE", "-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas=-v"];

/// The flags of the pass that compiles what calls it. CUTLASS's device code is read there too, and the host's compiler
/// would rather not: it is made to, and nothing of it is used.
const HOST_FLAGS: [&str; 9] = [
    "-x=c++",
    "-c",
    "-DFOURFOLD_HOST",
    "-std=c++17",
    "-O1",
    "-DNDEBUG",
    "-Xcompiler=-fPIC",
    "-Xcompiler=-fno-gnu-unique",
    "-Xcompiler=-fpermissive,-w",
];

/// The flags that link both.
const LINK_FLAGS: [&str; 4] =
    ["-shared", "-Xcompiler=-fPIC", "--no-device-link", "-Xlinker=--version-script=exports.map"];

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

/// How much of a log a time-out keeps, in characters.
pub(super) const LOG_TAIL: usize = 64 << 10;

/// The file that nvcc writes the times of its phases to.
const TIMES: &str = "times.csv";

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
    input: &BuildInput<'_>,
    tools: &BuildTools<'_>,
    options: &BuildOptions,
    folder: &Path,
) -> Result<Compiled, BuildError> {
    fs::write(folder.join(EXPORTS), EXPORTS_TEXT).map_err(disk("write what the library exports"))?;
    let compiler = Compiler { nvcc, input, tools, options, folder, started: Instant::now() };
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
    input: &'a BuildInput<'a>,
    tools: &'a BuildTools<'a>,
    options: &'a BuildOptions,
    folder: &'a Path,
    started: Instant,
}

impl Compiler<'_> {
    /// With one plain command.
    fn whole(&self) -> Result<Compiled, BuildError> {
        let times = self.folder.join(TEMPORARY).join(TIMES);
        let mut command = Command::new(self.nvcc);
        command.args(semantic_flags(self.input, self.options)).arg("--time").arg(&times);
        command.args(self.places("-I", &self.tools.include)?);
        command.args(self.places("-L", &self.tools.libraries)?);
        command.args(["-o", LIBRARY, SOURCE]);
        let (run, reader) = self.run(&mut command, self.options.cancel.as_ref())?;
        Ok(Compiled { run, reader, phases: read_phases(&times) })
    }

    /// With a plain compilation by a launcher, which gets no flags but those that it needs, as it has not met all of
    /// them, and with a plain command that links.
    fn launched(&self, launcher: &Path) -> Result<Compiled, BuildError> {
        let mut compilation = Command::new(present(LAUNCHER, Some(launcher))?);
        compilation.arg(self.nvcc);
        let links = |flag: &String| flag == "-shared" || flag.starts_with("-Xlinker");
        compilation.args(semantic_flags(self.input, self.options).iter().filter(|flag| !links(flag)));
        compilation.args(self.places("-I", &self.tools.include)?);
        compilation.args(["-c", "-o", OBJECT, SOURCE]);
        let cancel = self.options.cancel.as_ref();
        // What it starts to stay, such as a server, must not remember a folder that vanishes.
        let (mut run, reader) = self.run_as(&mut compilation, cancel, (LAUNCHER, launcher), None)?;
        let mut link = Command::new(self.nvcc);
        link.args(LINK_FLAGS).args(self.places("-L", &self.tools.libraries)?);
        link.args(["-o", LIBRARY, OBJECT]);
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
        let times = self.folder.join(TEMPORARY).join(TIMES);
        let flags = pass_flags(self.input, self.options);
        let include = self.places("-I", &self.tools.include)?;
        let mut device = Command::new(self.nvcc);
        device.args(DEVICE_FLAGS).arg(gencode(self.input)).args(&flags).arg("--time").arg(&times);
        device.args(&include).args(["-o", BINARY, SOURCE]);
        let mut host = Command::new(self.nvcc);
        // Line information is of device code only.
        host.args(HOST_FLAGS).args(flags.iter().filter(|flag| *flag != "-lineinfo"));
        host.args(&include).args(["-o", HOST_OBJECT, SOURCE]);
        let (device, host) = self.side_by_side(&mut device, &mut host);
        let ((device, host), (mut run, reader)) = match (device, host) {
            (Ok(device), Ok((host, _))) => ((device.0.seconds, host), device),
            // Whichever failed has stopped the other.
            (Err(BuildError::Cancelled { .. }), Err(error)) | (Err(error), _) | (_, Err(error)) => {
                return Err(error);
            }
        };
        let mut link = Command::new(self.nvcc);
        link.args(LINK_FLAGS).args(self.places("-L", &self.tools.libraries)?);
        link.args(["-o", LIBRARY, HOST_OBJECT, IMAGE]);
        let (linked, _) = self.run(&mut link, self.options.cancel.as_ref())?;
        let mut phases = read_phases(&times);
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
        thread::scope(|scope| {
            let first = scope.spawn(|| run(first));
            let second = scope.spawn(|| run(second));
            while !(first.is_finished() && second.is_finished()) {
                if self.options.cancel.as_ref().is_some_and(Cancel::is_cancelled) {
                    stop.cancel();
                }
                thread::sleep(POLL);
            }
            let join = |handle: thread::ScopedJoinHandle<'_, _>| {
                handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            (join(first), join(second))
        })
    }

    /// Folders, each after a flag. The compiler has another working directory than the caller.
    fn places(&self, flag: &str, folders: &[PathBuf]) -> Result<Vec<OsString>, BuildError> {
        let absolute = |folder: &PathBuf| Ok([flag.into(), std::path::absolute(folder)?.into()]);
        let arguments: io::Result<Vec<[OsString; 2]>> = folders.iter().map(absolute).collect();
        Ok(arguments.map_err(disk("find the working directory"))?.into_iter().flatten().collect())
    }

    /// Runs the compiler until it succeeds, or fails, or the time is over.
    fn run(&self, command: &mut Command, cancel: Option<&Cancel>) -> Outcome {
        self.run_as(command, cancel, ("nvcc", self.nvcc), Some(&self.folder.join(TEMPORARY)))
    }

    /// Runs a program of this name and path, whose temporary files lie where it is told, or where it likes.
    fn run_as(
        &self,
        command: &mut Command,
        cancel: Option<&Cancel>,
        (name, path): (&'static str, &Path),
        temporary: Option<&Path>,
    ) -> Outcome {
        // Messages are read, so they must be in one language; flags come from us alone.
        command.current_dir(self.folder).env("LC_ALL", "C");
        if let Some(temporary) = temporary {
            command.env("TMPDIR", temporary);
        }
        command.env_remove("NVCC_APPEND_FLAGS").env_remove("NVCC_PREPEND_FLAGS");
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
        let signal = status.signal().or_else(|| log::child_signal(reader.first_error.as_deref()?));
        if let Some(signal) = signal {
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
        let fault = reader.first_error.as_deref().map_or(BuildFault::Toolchain, log::blame);
        let first_error = match reader.complaint() {
            Some(complaint) => complaint,
            None => format!("it printed nothing and ended with {}", run.ending()),
        };
        Err(BuildError::Compile { first_error, fault, log: run.log })
    }
}

fn read_phases(times: &Path) -> Vec<Phase> {
    fs::read_to_string(times).map_or_else(|_| Vec::new(), |text| phases(&text))
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
