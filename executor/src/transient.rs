//! Transient failures of disk space, memory, processes or file systems, as reported by the system or a tool. They are
//! unrelated to the kernel and are not recorded.

use std::io;

use rustix::io::Errno;

use crate::fault::BuildFault;

/// A kind of transient failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transient {
    /// Disk space or the user's quota ran out, or a limit on the size of files was reached.
    DiskFull,
    /// Memory ran out, or the kernel killed a process to free some.
    OutOfMemory,
    /// Processes, threads, file handles or locks ran out.
    OutOfProcesses,
    /// A file system or device failed, timed out, is read-only, busy, or refuses access.
    Storage,
}

/// The phrases that tools print for each kind, in lower case: the C library's messages, and the tools' own.
const PHRASES: [(Transient, &[&str]); 5] = [
    (
        Transient::DiskFull,
        &[
            "no space left on device",
            "no space left",
            "disk quota exceeded",
            "file too large",
            "file size limit exceeded",
            "disk full",
        ],
    ),
    (
        Transient::OutOfMemory,
        &[
            "killed",
            "out of memory",
            "cannot allocate memory",
            "memory exhausted",
            "memory allocation failure",
            "not enough memory",
            "insufficient memory",
            "bad_alloc",
        ],
    ),
    (
        Transient::OutOfProcesses,
        &[
            "cannot fork",
            "fork failed",
            "resource temporarily unavailable",
            "too many open files",
            "too many open files in system",
            "no locks available",
        ],
    ),
    (
        Transient::Storage,
        &[
            "input/output error",
            "stale file handle",
            "stale nfs file handle",
            "read-only file system",
            "remote i/o error",
            "transport endpoint is not connected",
            "no such device",
            "no such device or address",
            "connection timed out",
            "device or resource busy",
            "text file busy",
            "interrupted system call",
            "structure needs cleaning",
            "permission denied",
            "operation not permitted",
        ],
    ),
    // The dynamic linker's message, alone or followed by a reason.
    (Transient::OutOfMemory, &["failed to map segment from shared object"]),
];

impl Transient {
    /// Classifies a system error, if it is transient.
    pub(crate) fn of(error: &io::Error) -> Option<Transient> {
        // Errors created from a kind alone have no number.
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => return Some(Transient::DiskFull),
            io::ErrorKind::OutOfMemory => return Some(Transient::OutOfMemory),
            io::ErrorKind::WouldBlock => return Some(Transient::OutOfProcesses),
            _ => {}
        }
        Some(match Errno::from_raw_os_error(error.raw_os_error()?) {
            Errno::FBIG => Transient::DiskFull,
            Errno::MFILE | Errno::NFILE | Errno::NOLCK => Transient::OutOfProcesses,
            Errno::IO
            | Errno::STALE
            | Errno::ROFS
            | Errno::REMOTEIO
            | Errno::NOTCONN
            | Errno::NODEV
            | Errno::NXIO
            | Errno::TIMEDOUT
            | Errno::HOSTDOWN
            | Errno::BUSY
            | Errno::TXTBSY
            | Errno::INTR
            | Errno::UCLEAN
            | Errno::ACCESS
            | Errno::PERM => Transient::Storage,
            _ => return None,
        })
    }

    /// Classifies a line of a tool's output, if it reports a transient failure. Quoted names are ignored; in a
    /// diagnostic with a source location, only the last words matter.
    pub(crate) fn said(line: &str) -> Option<Transient> {
        let line = line.to_lowercase();
        if line.contains("warning") {
            return None;
        }
        let is_located = is_located(&line);
        // The C++ runtime quotes the exception's name: `terminate called after throwing an instance of
        // 'std::bad_alloc'`.
        if !is_located && line.contains("'std::bad_alloc'") {
            return Some(Transient::OutOfMemory);
        }
        let line = without_quoted(&line);
        let kind = |(kind, phrases): &(Transient, &[&str])| {
            phrases.iter().any(|phrase| holds(&line, phrase, is_located)).then_some(*kind)
        };
        PHRASES.iter().find_map(kind)
    }

    /// A stable code for reports, one of [`FAILURE_CODES`](crate::service::FAILURE_CODES).
    pub fn code(self) -> &'static str {
        match self {
            Transient::DiskFull => "disk_full",
            Transient::OutOfMemory => "out_of_memory",
            Transient::OutOfProcesses => "out_of_processes",
            Transient::Storage => "disk",
        }
    }

    /// Returns true for the code of a transient failure.
    pub(crate) fn is_code(code: &str) -> bool {
        PHRASES.iter().any(|(transient, _)| transient.code() == code)
    }

    /// The party at fault.
    pub fn fault(self) -> BuildFault {
        match self {
            Transient::DiskFull | Transient::OutOfMemory | Transient::OutOfProcesses => {
                BuildFault::ResourceLimit
            }
            Transient::Storage => BuildFault::Environment,
        }
    }
}

/// Returns true if a lower-case line is a diagnostic with a location: `kernel.cu(7): error: ...`, `kernel.cu:7:3:
/// error: ...`, `ptxas kernel.ptx, line 7; error   : ...`.
pub(crate) fn is_located(line: &str) -> bool {
    let marks = ["error:", "error :", "error #", "error   :"];
    let ends_with_place = |before: &str| {
        let before = before.trim_end().trim_end_matches(|c: char| c.is_ascii_lowercase() || c == ' ');
        let before = before.trim_end_matches([':', ';', ' ']);
        let number = before.trim_end_matches(')');
        let place = number.trim_end_matches(|c: char| c.is_ascii_digit());
        place.len() < number.len() && (place.ends_with(['(', ':']) || place.ends_with(", line "))
    };
    marks.iter().any(|mark| line.split_once(mark).is_some_and(|(before, _)| ends_with_place(before)))
}

/// Returns true if a phrase occurs as separate words, not within a name or path; with `at_end`, only at the end of
/// the line.
fn holds(line: &str, phrase: &str, at_end: bool) -> bool {
    line.match_indices(phrase).any(|(start, _)| {
        let (before, after) = (&line[..start], &line[start + phrase.len()..]);
        let begins = before.is_empty() || before.ends_with([' ', '\t', ':', '(', '[']);
        let ends = after.is_empty() || after.starts_with([' ', '\t', ':', ',', ';', ')', ']', '.', '!']);
        begins && ends && (!at_end || after.trim_end_matches(['.', ')', '!', ' ']).is_empty())
    })
}

/// Removes quoted text from a line: names of files and of the source.
fn without_quoted(line: &str) -> String {
    let mut kept = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(start) = rest.find(['"', '\'', '`']) {
        let (before, quoted) = rest.split_at(start);
        kept.push_str(before);
        let close = if quoted.starts_with('"') { '"' } else { '\'' };
        // An apostrophe within a word opens no quotation.
        let opens = !before.ends_with(|c: char| c.is_alphanumeric());
        match quoted[1..].find(close).filter(|_| opens) {
            Some(end) => rest = &quoted[end + 2..],
            None => {
                kept.push_str(&quoted[..1]);
                rest = &quoted[1..];
            }
        }
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_errno_that_passes_has_a_kind_and_its_words_have_the_same() {
        use Transient::{DiskFull, OutOfMemory, OutOfProcesses, Storage};
        for (errno, words, kind) in [
            (Errno::NOSPC, "No space left on device", DiskFull),
            (Errno::DQUOT, "Disk quota exceeded", DiskFull),
            (Errno::FBIG, "File too large", DiskFull),
            (Errno::NOMEM, "Cannot allocate memory", OutOfMemory),
            (Errno::AGAIN, "Resource temporarily unavailable", OutOfProcesses),
            (Errno::MFILE, "Too many open files", OutOfProcesses),
            (Errno::NFILE, "Too many open files in system", OutOfProcesses),
            (Errno::IO, "Input/output error", Storage),
            (Errno::STALE, "Stale file handle", Storage),
            (Errno::ROFS, "Read-only file system", Storage),
            (Errno::TIMEDOUT, "Connection timed out", Storage),
            (Errno::ACCESS, "Permission denied", Storage),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(Transient::of(&error), Some(kind), "{error}");
            assert!(error.to_string().contains(words), "{error}");
            for line in [
                format!("<built-in>: fatal error: when writing output to kernel.cpp4.ii: {words}"),
                format!("cutlass/gemm.h:7:10: fatal error: cute/tensor.hpp: {words}"),
                format!("kernel.cu(3): catastrophic error: {words}"),
                format!("sh: 1: cannot create '/tmp/it''s': {words}"),
                format!("nvcc fatal   : Could not open output file x ({words})"),
            ] {
                assert_eq!(Transient::said(&line), Some(kind), "{line}");
            }
        }
        for errno in [Errno::NOENT, Errno::EXIST, Errno::INVAL, Errno::NOEXEC] {
            assert_eq!(Transient::of(&errno.into()), None, "{errno}");
        }
    }

    #[test]
    fn tools_have_words_of_their_own() {
        for (line, kind) in [
            ("g++: fatal error: Killed signal terminated program cc1plus", Transient::OutOfMemory),
            ("Killed", Transient::OutOfMemory),
            ("sh: line 1: 4242 Killed                  cicc -arch x", Transient::OutOfMemory),
            ("virtual memory exhausted: Cannot allocate memory", Transient::OutOfMemory),
            (
                "cc1plus: out of memory allocating 65536 bytes after a total of 1 bytes",
                Transient::OutOfMemory,
            ),
            ("kernel.cu(40): catastrophic error: out of memory", Transient::OutOfMemory),
            ("terminate called after throwing an instance of 'std::bad_alloc'", Transient::OutOfMemory),
            ("ptxas fatal   : Memory allocation failure", Transient::OutOfMemory),
            (
                "cc1: error while loading shared libraries: x.so: failed to map segment from shared object",
                Transient::OutOfMemory,
            ),
            (
                "/a/k.so: failed to map segment from shared object: Operation not permitted",
                Transient::Storage,
            ),
            ("sh: 0: Cannot fork", Transient::OutOfProcesses),
            ("bash: fork: retry: Resource temporarily unavailable", Transient::OutOfProcesses),
            ("cuobjdump: can't open: Stale NFS file handle", Transient::Storage),
        ] {
            assert_eq!(Transient::said(line), Some(kind), "{line}");
        }
    }

    #[test]
    fn what_is_said_of_the_source_is_no_such_failure() {
        for line in [
            "kernel.cu(7): error: identifier \"killed\" is undefined",
            "kernel.cu(7): error: class \"std::bad_alloc\" has no member \"x\"",
            "kernel.cu(7): error: a thread is killed by this branch",
            "/home/killed/kernel.cu:7:3: error: 'out of memory' was not declared in this scope",
            "kernel.cu:7:3: error: 'std::bad_alloc' does not name a type",
            "ptxas kernel.ptx, line 24; error   : Out of memory is no instruction here",
            "x.h(3): warning #1: out of memory",
            "/srv/killed/x: undefined reference to `out of memory'",
            "error: is_killed",
        ] {
            assert_eq!(Transient::said(line), None, "{line}");
        }
    }

    #[test]
    fn places_in_files_are_told_from_names_of_tools() {
        for line in [
            "kernel.cu(7): error: x",
            "kernel.cu(7): error #20: x",
            "kernel.cu(7): catastrophic error: x",
            "kernel.cu:7:3: error: x",
            "kernel.cu:7:3: fatal error: x",
            "/tmp/cc.s:12: error: x",
            "ptxas k.ptx, line 24; error   : x",
        ] {
            assert!(is_located(line), "{line}");
        }
        for line in [
            "g++: error: x",
            "nvcc error   : x",
            "<built-in>: fatal error: x",
            "cc1plus: fatal error: x",
            ": error:",
        ] {
            assert!(!is_located(line), "{line}");
        }
    }
}
