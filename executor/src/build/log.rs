//! Parsing of compiler output: the first error, its cause, and the resource report of `ptxas -v`.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use crate::fault::BuildFault;
use crate::transient::{Transient, is_located};

/// The reason a tool failed, read from its output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ToolCause {
    /// A resource ran out, or a file system failed; unrelated to the kernel.
    Transient(Transient),
    /// A process of the tool crashed.
    Crash,
    /// The host compiler is missing, unsupported, or refuses its arguments.
    HostCompiler,
    /// A file of the toolchain is missing, or the toolchain refuses its arguments.
    Toolchain,
    /// A diagnostic about the source.
    Source,
    /// The tool reported an error that is not recognized.
    Unknown,
    /// The tool reported no error.
    Silent,
}

impl ToolCause {
    /// The party at fault. The source is generated, so errors in it are our bug.
    pub fn fault(self) -> BuildFault {
        match self {
            ToolCause::Transient(transient) => transient.fault(),
            ToolCause::HostCompiler => BuildFault::Environment,
            ToolCause::Crash | ToolCause::Toolchain | ToolCause::Silent => BuildFault::Toolchain,
            ToolCause::Source | ToolCause::Unknown => BuildFault::OurBug,
        }
    }

    /// Returns true if the same tool would fail again.
    pub(crate) fn is_lasting(self) -> bool {
        match self {
            ToolCause::Transient(_) | ToolCause::Crash | ToolCause::HostCompiler => false,
            ToolCause::Toolchain | ToolCause::Source | ToolCause::Unknown | ToolCause::Silent => true,
        }
    }
}

const SIGKILL: i32 = 9;

/// The longest line quoted in a message, in characters.
const LONGEST_LINE: usize = 400;

/// Facts collected from compiler output, line by line as it is printed, so that truncating a long log loses none.
#[derive(Clone, Debug, Default)]
pub(super) struct LogReader {
    /// The first line that reports an error, verbatim but shortened.
    pub first_error: Option<String>,
    /// The first line that reports a transient failure, and its kind.
    transient: Option<(Transient, String)>,
    /// True after a diagnostic about the source.
    has_diagnostic: bool,
    /// The last non-empty line, verbatim; empty before the first.
    last_line: String,
    /// The maximum of `ptxas -v` over all entry functions; `None` if nothing was reported.
    pub registers: Option<u32>,
    /// Named barriers.
    pub barriers: Option<u32>,
    /// Bytes of stack per thread.
    pub stack: Option<u32>,
    /// Bytes of spill stores per thread.
    pub spill_stores: Option<u32>,
    /// Bytes of spill loads per thread.
    pub spill_loads: Option<u32>,
}

impl LogReader {
    /// Processes the next line.
    pub(super) fn line(&mut self, line: &str) {
        let text = line.trim();
        // Very long output is mostly one repeated line, which adds no information.
        if text.is_empty() || line == self.last_line {
            return;
        }
        self.last_line.clear();
        self.last_line.push_str(line);
        if reports_error(text) {
            self.has_diagnostic |= is_about_source(&text.to_lowercase());
            if self.first_error.is_none() {
                self.first_error = Some(excerpt(text));
            }
        }
        // Indented lines are quoted source or disassembly.
        if self.transient.is_none() && !line.starts_with([' ', '\t']) {
            self.transient = Transient::said(text).map(|transient| (transient, excerpt(text)));
        }
        self.resources(text);
    }

    /// The line to quote for a failure.
    pub(super) fn complaint(&self) -> Option<String> {
        let transient = self.transient.as_ref().map(|(_, line)| line.clone());
        let last_line = || (!self.last_line.is_empty()).then(|| excerpt(self.last_line.trim()));
        transient.or_else(|| self.first_error.clone()).or_else(last_line)
    }

    /// Infers the cause. A transient failure takes precedence over earlier errors: a tool short of memory or disk
    /// space first complains about its own half-written files.
    pub(super) fn cause(&self) -> ToolCause {
        match (&self.transient, &self.first_error) {
            (Some((transient, _)), _) => ToolCause::Transient(*transient),
            (None, Some(line)) => cause_of(line),
            (None, None) => ToolCause::Silent,
        }
    }

    /// The signal that ended the tool or a child: the tool's own, the one named in its output, or the one that a
    /// shell's exit code encodes.
    pub(super) fn signal(&self, status: ExitStatus) -> Option<i32> {
        const SHELL: std::ops::RangeInclusive<i32> = 129..=159;
        if self.transient.is_some() && status.signal() != Some(SIGKILL) {
            return None;
        }
        let by_shell = || {
            let code = status.code().filter(|code| SHELL.contains(code) && !self.has_diagnostic)?;
            Some(code - 128)
        };
        status.signal().or_else(|| child_signal(self.first_error.as_deref()?)).or_else(by_shell)
    }

    fn resources(&mut self, line: &str) {
        if let Some((_, used)) =
            line.split_once("ptxas info").and_then(|(_, rest)| rest.split_once(": Used "))
        {
            for item in used.split(", ") {
                let item = item.trim_start_matches("used ");
                raise(&mut self.registers, quantity(item, "registers"));
                raise(&mut self.barriers, quantity(item, "barriers"));
            }
        } else if line.contains(" bytes spill stores") {
            for item in line.split(", ") {
                raise(&mut self.stack, quantity(item, "bytes stack frame"));
                raise(&mut self.spill_stores, quantity(item, "bytes spill stores"));
                raise(&mut self.spill_loads, quantity(item, "bytes spill loads"));
            }
        }
    }
}

fn raise(maximum: &mut Option<u32>, value: Option<u32>) {
    // `None` sorts below every number.
    *maximum = (*maximum).max(value);
}

/// Parses the number in text such as `12 registers`, given the unit.
fn quantity(item: &str, unit: &str) -> Option<u32> {
    item.trim().strip_suffix(unit)?.trim_end().parse().ok()
}

/// The last `characters` characters of a log, starting at a line boundary if there is one.
pub(super) fn tail(log: &str, characters: usize) -> &str {
    let Some((start, _)) = log.char_indices().rev().nth(characters.saturating_sub(1)) else { return log };
    let tail = &log[start..];
    match tail.find('\n') {
        Some(end) if start > 0 && end + 1 < tail.len() => &tail[end + 1..],
        _ => tail,
    }
}

/// Classifies a failure by its first error line. Transient failures are already excluded.
fn cause_of(first_error: &str) -> ToolCause {
    let line = first_error.to_lowercase();
    let any = |needles: &[&str]| needles.iter().any(|needle| line.contains(needle));
    // `g++: error: ...` or `/usr/bin/x86_64-linux-gnu-g++-13: error: ...` is about the compiler, not the source.
    let speaks = line.split_once(':').is_some_and(|(name, _)| is_host_compiler(name));
    let missed = any(&["not found", "no such file", "cannot execute"])
        && line.split(": ").any(|name| is_host_compiler(name.trim_end_matches(':')));
    let crashed = any(&["signal terminated program", "internal compiler error", "segmentation fault"])
        || any(&["core dumped"]);
    if crashed {
        ToolCause::Crash
    } else if any(&["host compiler", "unsupported gnu version", "unsupported clang version"])
        || speaks
        || missed
    {
        ToolCause::HostCompiler
    } else if line.starts_with("nvcc ")
        || any(&["no such file or directory", "cannot open source file", "not found", "cannot find"])
        || any(&["collect2", "/ld:"])
        || line.starts_with("ld:")
    {
        ToolCause::Toolchain
    } else if is_about_source(&line) {
        ToolCause::Source
    } else {
        ToolCause::Unknown
    }
}

/// Returns true if a lower-cased line has the form of a CUDA tool's diagnostic about the source.
fn is_about_source(line: &str) -> bool {
    const PHRASES: [&str; 6] = [
        "ptxas error",
        "unresolved extern",
        "aborted due to errors",
        "register allocation failed",
        "undefined reference",
        "multiple definition",
    ];
    is_located(line) || PHRASES.iter().any(|phrase| line.contains(phrase))
}

/// Returns true for a host compiler's name, with or without folder, platform and version.
fn is_host_compiler(name: &str) -> bool {
    // `cc1` is covered: without its trailing digit it is `cc`.
    const NAMES: [&str; 7] = ["gcc", "g++", "cc", "c++", "clang", "clang++", "cc1plus"];
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').trim_end_matches('-');
    NAMES.iter().any(|known| name == *known || name.ends_with(&format!("-{known}")))
}

/// The signal that ended a child of the compiler, parsed from nvcc's message.
fn child_signal(first_error: &str) -> Option<i32> {
    let (_, rest) = first_error.split_once("died due to signal ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn reports_error(line: &str) -> bool {
    const PHRASES: [&str; 6] = [
        "segmentation fault",
        "no such file or directory",
        ": not found",
        "cannot find -l",
        "died due to signal",
        "core dumped",
    ];
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    if line.starts_with("ptxas info") || line.contains("warning") {
        return false;
    }
    PHRASES.iter().any(|phrase| line.contains(phrase))
        || ["error:", "error :", "error #", "fatal:", "fatal :"].iter().any(|mark| {
            // `kInternalError:` in a quoted source line is not a report.
            line.match_indices(mark)
                .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_'))
        })
}

fn excerpt(line: &str) -> String {
    match line.char_indices().nth(LONGEST_LINE) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(log: &str) -> LogReader {
        let mut reader = LogReader::default();
        log.lines().for_each(|line| reader.line(line));
        reader
    }

    fn first_error(log: &str) -> Option<String> {
        read(log).first_error
    }

    #[test]
    fn ptxas_lines_are_read_and_the_largest_entry_counts() {
        let log = "\
kernel.cu(12): warning #177-D: variable was declared but never referenced
ptxas info    : 11 bytes gmem
ptxas info    : Compiling entry function '_Z5helpv' for 'sm_120a'
ptxas info    : Function properties for _Z5helpv
    16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 24 registers, used 1 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for _Z4mainv
    8 bytes stack frame, 150 bytes spill stores, 182 bytes spill loads
ptxas info    : Used 168 registers, used 8 barriers
ptxas info    : Compile time = 415.715 ms
";
        let reader = read(log);
        assert_eq!((reader.registers, reader.barriers), (Some(168), Some(8)));
        assert_eq!((reader.stack, reader.spill_stores, reader.spill_loads), (Some(16), Some(150), Some(182)));
        assert_eq!(reader.first_error, None);
    }

    #[test]
    fn no_spills_is_a_number_and_no_report_is_none() {
        let zero = "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n";
        let used = "ptxas info    : Used 168 registers, used 8 barriers\n";
        let reader = read(&format!("{zero}{used}"));
        assert_eq!(
            (reader.registers, reader.spill_stores, reader.spill_loads),
            (Some(168), Some(0), Some(0))
        );
        assert_eq!((read(zero).registers, read(used).spill_stores), (None, None));
    }

    #[track_caller]
    fn check(log: &str, line: &str, cause: ToolCause) {
        let reader = read(log);
        assert_eq!(reader.complaint().as_deref(), Some(line));
        assert_eq!(reader.cause(), cause, "{line}");
    }

    fn exit(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    #[test]
    fn the_first_error_is_found_in_each_tool_s_style_and_blamed() {
        check(
            "x.hpp(3): warning #20012-D: error: nothing\nkernel.cu(7): error: identifier \"y\" is undefined\n\
             1 error detected in the compilation of \"kernel.cu\".\n",
            "kernel.cu(7): error: identifier \"y\" is undefined",
            ToolCause::Source,
        );
        check(
            "kernel.cu:1:10: fatal error: cutlass/gemm.h: No such file or directory\n    1 | #include\n",
            "kernel.cu:1:10: fatal error: cutlass/gemm.h: No such file or directory",
            ToolCause::Toolchain,
        );
        check(
            "nvcc fatal   : Unsupported gpu architecture 'compute_999'\n",
            "nvcc fatal   : Unsupported gpu architecture 'compute_999'",
            ToolCause::Toolchain,
        );
        check(
            "ptxas info    : error: nothing\nptxas k.ptx, line 24; error   : Unknown modifier '.op'\n\
             ptxas fatal   : Ptx assembly aborted due to errors\n",
            "ptxas k.ptx, line 24; error   : Unknown modifier '.op'",
            ToolCause::Source,
        );
        check(
            "gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.\n",
            "gcc: No such file or directory",
            ToolCause::HostCompiler,
        );
        check("sh: 1: cicc: not found\n", "sh: 1: cicc: not found", ToolCause::Toolchain);
        check(
            "g++: fatal error: Killed signal terminated program cc1plus\n",
            "g++: fatal error: Killed signal terminated program cc1plus",
            ToolCause::Transient(Transient::OutOfMemory),
        );
        check(
            "/usr/bin/ld: cannot find -lcudart_static: No such file or directory\ncollect2: error: ld returned 1\n",
            "/usr/bin/ld: cannot find -lcudart_static: No such file or directory",
            ToolCause::Toolchain,
        );
        for line in [
            "gcc: error: unrecognized command-line option '-fno-gnu-unique'",
            "g++: fatal error: cannot specify '-o' with '-c', '-S' or '-E' with multiple files",
            "/usr/bin/x86_64-linux-gnu-g++-13: error: unrecognized command-line option '-m64'",
            "cc1plus: error: unrecognized argument in option '-march=x'",
            "g++: error trying to exec 'cc1plus': execvp: No such file or directory",
            "sh: 1: g++: not found",
        ] {
            assert_eq!(cause_of(line), ToolCause::HostCompiler, "{line}");
        }
        assert_eq!(cause_of("kernel.cu:7:3: error: g++: expected an expression"), ToolCause::Source);
        assert_eq!(cause_of("cudafe++ error: something odd"), ToolCause::Unknown);
        assert_eq!(read("something odd\n").cause(), ToolCause::Silent);
        check(
            "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc later than 15 is not supported!",
            "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc later than 15 is not supported!",
            ToolCause::HostCompiler,
        );
    }

    #[test]
    fn quoted_source_is_no_error_and_long_lines_are_cut() {
        assert_eq!(first_error("    case kInternalError: return 7;\n    if (error) return;\n"), None);
        let cut = first_error(&format!("kernel.cu(1): error: {}\n", "ü".repeat(3000))).unwrap();
        assert!(cut.ends_with(" ...") && cut.chars().count() == LONGEST_LINE + 4);
    }

    #[test]
    fn the_signal_of_a_compiler_s_child_is_read_from_its_parent_s_words() {
        let line = "nvcc error   : 'cicc' died due to signal 11 (Invalid memory reference)";
        assert_eq!(first_error(line).as_deref(), Some(line));
        assert_eq!(child_signal(line), Some(11));
        assert_eq!(child_signal("kernel.cu(1): error: x"), None);
        // A shell encodes the signal in its exit code, unless the source was rejected before.
        assert_eq!(read("half a line").signal(exit(137)), Some(9));
        assert_eq!(read("half a line").signal(exit(1)), None);
        assert_eq!(read("kernel.cu(1): error: x").signal(exit(139)), None);
        // An abort after an out-of-memory message is not a crash.
        let aborted = read("terminate called after throwing an instance of 'std::bad_alloc'");
        assert_eq!(aborted.signal(ExitStatus::from_raw(6)), None);
        assert_eq!(aborted.cause(), ToolCause::Transient(Transient::OutOfMemory));
        assert_eq!(read("crash").signal(ExitStatus::from_raw(11)), Some(11));
    }

    #[test]
    fn a_failure_that_passes_decides_wherever_it_is_reported() {
        let full = "Assembler messages:\n/tmp/x.s: error: cannot write the object\n\
                    /tmp/x.s: Fatal error: can't close kernel.o: No space left on device\n";
        check(
            full,
            "/tmp/x.s: Fatal error: can't close kernel.o: No space left on device",
            ToolCause::Transient(Transient::DiskFull),
        );
        check(
            "<built-in>: fatal error: when writing output to kernel.cpp4.ii: Stale file handle\n",
            "<built-in>: fatal error: when writing output to kernel.cpp4.ii: Stale file handle",
            ToolCause::Transient(Transient::Storage),
        );
        // A diagnostic quotes the line of source.
        let quoted = "kernel.cu(7): error: no suitable conversion\n    return error(out of memory);\n";
        check(quoted, "kernel.cu(7): error: no suitable conversion", ToolCause::Source);
        let named = "kernel.cu(7): error: identifier \"killed\" is undefined\n";
        check(named, named.trim_end(), ToolCause::Source);
    }

    #[test]
    fn the_tail_begins_at_a_line_and_a_complaint_is_the_first_error_or_the_last_line() {
        assert_eq!(tail("one\ntwo\nthree\n", 8), "three\n");
        assert_eq!(tail("short", 100), "short");
        assert_eq!(tail("größer", 4), "ößer");
        assert_eq!(read("a\nb\n\n  \n").complaint().as_deref(), Some("b"));
        assert_eq!(read("b\na\na\n").complaint().as_deref(), Some("a"));
        assert_eq!(read("a\na\nout of memory\na\n").cause(), ToolCause::Transient(Transient::OutOfMemory));
        assert_eq!(read("a: error: x\nb\n").complaint().as_deref(), Some("a: error: x"));
        assert_eq!(read("\n").complaint(), None);
    }
}
