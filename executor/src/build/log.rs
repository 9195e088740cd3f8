//! Reads what the compiler printed: its first error, whose fault that was, and what `ptxas -v` says about resources.

use super::BuildFault;

/// The longest excerpt of a line that goes into a message, in characters.
const LONGEST_LINE: usize = 400;

/// What matters in a compiler's output, gathered line by line while it prints, so that a very long log loses nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct LogReader {
    /// The first line that reports an error, in the tool's own words; a long one is cut.
    pub first_error: Option<String>,
    /// The last line that says anything.
    pub last_line: Option<String>,
    /// What `ptxas -v` reports, as the maximum over the entry functions; `None` where it reports nothing.
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
    /// Takes the next line.
    pub(super) fn line(&mut self, line: &str) {
        let text = line.trim();
        if text.is_empty() {
            return;
        }
        if self.first_error.is_none() && reports_error(text) {
            self.first_error = Some(excerpt(text));
        }
        self.last_line = Some(excerpt(text));
        self.resources(text);
    }

    /// What to quote when the compiler failed.
    pub(super) fn complaint(&self) -> Option<String> {
        self.first_error.clone().or_else(|| self.last_line.clone())
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
    // `None` is less than every number.
    *maximum = (*maximum).max(value);
}

/// The number in `12 registers`, given the unit.
fn quantity(item: &str, unit: &str) -> Option<u32> {
    item.trim().strip_suffix(unit)?.trim_end().parse().ok()
}

/// The end of a log, at most `characters` long, from the beginning of a line where one begins there.
pub(super) fn tail(log: &str, characters: usize) -> &str {
    let Some((start, _)) = log.char_indices().rev().nth(characters.saturating_sub(1)) else { return log };
    let tail = &log[start..];
    match tail.find('\n') {
        Some(end) if start > 0 && end + 1 < tail.len() => &tail[end + 1..],
        _ => tail,
    }
}

/// Whose fault a compiler's first error is.
///
/// The source is generated, so what a compiler finds in it is our bug, unless what it misses belongs to the
/// toolchain or to the machine.
pub(super) fn blame(first_error: &str) -> BuildFault {
    let line = first_error.to_lowercase();
    let any = |needles: &[&str]| needles.iter().any(|needle| line.contains(needle));
    // `g++: error: ...`, `/usr/bin/x86_64-linux-gnu-g++-13: error: ...`: it speaks of itself, not of the source.
    let speaks = line.split_once(':').is_some_and(|(name, _)| is_host_compiler(name));
    let missed = any(&["not found", "no such file", "cannot execute"])
        && line.split(": ").any(|name| is_host_compiler(name.trim_end_matches(':')));
    if any(&[
        "killed",
        "out of memory",
        "cannot allocate memory",
        "memory exhausted",
        "bad_alloc",
        "failed to map segment",
        "no space left",
    ]) {
        BuildFault::ResourceLimit
    } else if any(&["host compiler", "unsupported gnu version", "unsupported clang version"])
        || speaks
        || missed
    {
        BuildFault::Environment
    } else if line.starts_with("nvcc ")
        || any(&["no such file or directory", "cannot open source file", "not found", "cannot find"])
        || any(&["collect2", "/ld:"])
        || line.starts_with("ld:")
    {
        BuildFault::Toolchain
    } else {
        BuildFault::OurBug
    }
}

/// Whether this is the name of a host compiler, with or without its folder, platform and version.
fn is_host_compiler(name: &str) -> bool {
    // Without its `1`, `cc1` is `cc`.
    const NAMES: [&str; 7] = ["gcc", "g++", "cc", "c++", "clang", "clang++", "cc1plus"];
    let name = name.rsplit('/').next().unwrap_or(name);
    let name = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.').trim_end_matches('-');
    NAMES.iter().any(|known| name == *known || name.ends_with(&format!("-{known}")))
}

/// The signal that ended one of the compiler's own children, as nvcc reports it in its log.
pub(super) fn child_signal(first_error: &str) -> Option<i32> {
    let (_, rest) = first_error.split_once("died due to signal ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn reports_error(line: &str) -> bool {
    const PHRASES: [&str; 13] = [
        "killed",
        "segmentation fault",
        "no such file or directory",
        ": not found",
        "cannot find -l",
        "died due to signal",
        "no space left on device",
        "out of memory",
        "memory exhausted",
        "cannot allocate memory",
        "bad_alloc",
        "failed to map segment",
        "core dumped",
    ];
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    if line.starts_with("ptxas info") || line.contains("warning") {
        return false;
    }
    PHRASES.iter().any(|phrase| line.contains(phrase))
        || ["error:", "error :", "error #", "fatal:", "fatal :"].iter().any(|mark| {
            // `kInternalError:` in a quoted line of source is no report.
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
    fn check(log: &str, line: &str, fault: BuildFault) {
        assert_eq!(first_error(log).as_deref(), Some(line));
        assert_eq!(blame(line), fault);
    }

    #[test]
    fn the_first_error_is_found_in_each_tool_s_style_and_blamed() {
        check(
            "x.hpp(3): warning #20012-D: error: nothing\nkernel.cu(7): error: identifier \"y\" is undefined\n\
             1 error detected in the compilation of \"kernel.cu\".\n",
            "kernel.cu(7): error: identifier \"y\" is undefined",
            BuildFault::OurBug,
        );
        check(
            "kernel.cu:1:10: fatal error: cutlass/gemm.h: No such file or directory\n    1 | #include\n",
            "kernel.cu:1:10: fatal error: cutlass/gemm.h: No such file or directory",
            BuildFault::Toolchain,
        );
        check(
            "nvcc fatal   : Unsupported gpu architecture 'compute_999'\n",
            "nvcc fatal   : Unsupported gpu architecture 'compute_999'",
            BuildFault::Toolchain,
        );
        check(
            "ptxas info    : error: nothing\nptxas k.ptx, line 24; error   : Unknown modifier '.op'\n\
             ptxas fatal   : Ptx assembly aborted due to errors\n",
            "ptxas k.ptx, line 24; error   : Unknown modifier '.op'",
            BuildFault::OurBug,
        );
        check(
            "gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.\n",
            "gcc: No such file or directory",
            BuildFault::Environment,
        );
        check("sh: 1: cicc: not found\n", "sh: 1: cicc: not found", BuildFault::Toolchain);
        check(
            "g++: fatal error: Killed signal terminated program cc1plus\n",
            "g++: fatal error: Killed signal terminated program cc1plus",
            BuildFault::ResourceLimit,
        );
        check(
            "/usr/bin/ld: cannot find -lcudart_static: No such file or directory\ncollect2: error: ld returned 1\n",
            "/usr/bin/ld: cannot find -lcudart_static: No such file or directory",
            BuildFault::Toolchain,
        );
        for line in [
            "gcc: error: unrecognized command-line option '-fno-gnu-unique'",
            "g++: fatal error: cannot specify '-o' with '-c', '-S' or '-E' with multiple files",
            "/usr/bin/x86_64-linux-gnu-g++-13: error: unrecognized command-line option '-m64'",
            "cc1plus: error: unrecognized argument in option '-march=x'",
            "g++: error trying to exec 'cc1plus': execvp: No such file or directory",
            "sh: 1: g++: not found",
        ] {
            assert_eq!(blame(line), BuildFault::Environment, "{line}");
        }
        assert_eq!(blame("kernel.cu:7:3: error: g++: expected an expression"), BuildFault::OurBug);
        check(
            "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc later than 15 is not supported!",
            "crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc later than 15 is not supported!",
            BuildFault::Environment,
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
    }

    #[test]
    fn the_tail_begins_at_a_line_and_a_complaint_is_the_first_error_or_the_last_line() {
        assert_eq!(tail("one\ntwo\nthree\n", 8), "three\n");
        assert_eq!(tail("short", 100), "short");
        assert_eq!(tail("größer", 4), "ößer");
        assert_eq!(read("a\nb\n\n  \n").complaint().as_deref(), Some("b"));
        assert_eq!(read("a: error: x\nb\n").complaint().as_deref(), Some("a: error: x"));
        assert_eq!(read("\n").complaint(), None);
    }
}
