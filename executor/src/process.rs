//! Runs a program of a toolchain within bounds: of time, of memory for its log, and of what it leaves behind.
//!
//! Compilers start compilers: stopping only the first leaves its children running, and they keep the pipe open. So
//! each program gets a process group of its own, and the whole group is killed on a time-out, when the program
//! has ended (whatever it left behind), when the caller unwinds, and when this process dies, however it does: a guard
//! in the group waits for that. Only a descendant that leaves the group on purpose (`setsid`) survives; it cannot delay
//! the caller by more than [`DRAIN`].

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// A wish to stop, which clones share.
#[derive(Clone, Default)]
pub struct Cancel {
    wish: Arc<Wish>,
}

#[derive(Default)]
struct Wish {
    is_there: AtomicBool,
    told: Mutex<Vec<Weak<dyn Stops>>>,
}

/// Something that is told of a wish to stop.
pub(crate) trait Stops: Send + Sync {
    /// It has come.
    fn stop(&self);
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("wished", &self.is_cancelled()).finish_non_exhaustive()
    }
}

impl Cancel {
    /// A wish that nobody has yet.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Asks for an end. It cannot be taken back.
    pub fn cancel(&self) {
        self.wish.is_there.store(true, Ordering::Relaxed);
        let told = std::mem::take(&mut *self.told());
        told.iter().filter_map(Weak::upgrade).for_each(|other| other.stop());
    }

    /// Has somebody told of it, at once if it has come already.
    pub(crate) fn tell(&self, other: Weak<dyn Stops>) {
        let mut told = self.told();
        // Whoever cancels says so before looking at the list.
        if self.is_cancelled() {
            drop(told);
            other.upgrade().inspect(|other| other.stop());
            return;
        }
        told.push(other);
        // Those that are gone would gather otherwise.
        if told.len().is_power_of_two() {
            told.retain(|other| other.strong_count() > 0);
        }
    }

    fn told(&self) -> MutexGuard<'_, Vec<Weak<dyn Stops>>> {
        // A poisoned list is whole: nothing is called while it is locked.
        self.wish.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody has asked for an end.
    pub fn is_cancelled(&self) -> bool {
        self.wish.is_there.load(Ordering::Relaxed)
    }
}

/// What became of a program.
#[derive(Clone, Debug)]
pub struct ToolRun {
    /// How it ended; `None` when it was stopped at its time limit, or because that was wished.
    pub status: Option<ExitStatus>,
    /// Whether it was stopped because that was wished.
    pub cancelled: bool,
    /// What it printed on stdout and stderr, in order: the first and the last 256 KiB of it.
    pub log: String,
    /// Whether the middle of the log was left out; the log says how much.
    pub log_truncated: bool,
    /// Wall-clock time in seconds.
    pub seconds: f64,
}

impl ToolRun {
    /// Whether it ended by itself with exit code 0.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, in words: `exit code 1`, `signal 11 (SIGSEGV)`, `a time-out after 60 s`.
    pub fn ending(&self) -> String {
        let Some(status) = self.status else {
            let why = if self.cancelled { "being cancelled" } else { "a time-out" };
            return format!("{why} after {:.0} s", self.seconds);
        };
        match (status.code(), status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => match signal_name(signal) {
                Some(name) => format!("signal {signal} ({name})"),
                None => format!("signal {signal}"),
            },
            (None, None) => status.to_string(),
        }
    }
}

/// How much of the beginning and of the end of a log is kept, in bytes.
const KEPT: usize = 256 << 10;
/// How long to wait for output that is still in the pipe once the group is dead.
const DRAIN: Duration = Duration::from_millis(500);
/// How often to look whether the program has ended while it prints nothing.
const POLL: Duration = Duration::from_millis(10);
/// How long to retry a program that is still open for writing.
const BUSY: Duration = Duration::from_secs(1);

/// Runs a program to its end or to its time limit.
///
/// Standard input is empty; stdout and stderr are merged into the log. Nothing of the program's group is running
/// when this returns.
///
/// # Errors
/// When the program cannot be started or watched. A program that fails, crashes or hangs is no error here.
pub fn run_tool(command: &mut Command, limit: Duration) -> io::Result<ToolRun> {
    run_tool_watched(command, limit, None, &mut |_| {})
}

/// As [`run_tool`], but it ends when `cancel` is wished; `watch` sees each line as it is printed.
///
/// # Errors
/// As [`run_tool`].
pub fn run_tool_watched(
    command: &mut Command,
    limit: Duration,
    cancel: Option<&Cancel>,
    watch: &mut dyn FnMut(&str),
) -> io::Result<ToolRun> {
    let started = Instant::now();
    let (reader, writer) = io::pipe()?;
    let guard = Guard::start();
    let number = guard.as_ref().map_or(0, |guard| guard.process.id().cast_signed());
    command.process_group(number).stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let child = spawn(command);
    // The command holds our copies of the pipe's writing end: with them, reading would never see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut group = Group { child: child?, guard, reaped: false };
    let chunks = read_in_background(reader)?;

    let mut log = Log::default();
    let mut lines = Lines::default();
    let mut take = |chunk: Vec<u8>| {
        log.push(&chunk);
        lines.push(&chunk, watch);
    };
    let mut pipe_is_open = true;
    let (stopped, cancelled) = loop {
        if group.program_has_exited()? {
            break (false, false);
        }
        if cancel.is_some_and(Cancel::is_cancelled) {
            break (true, true);
        }
        let left = limit.saturating_sub(started.elapsed());
        if left.is_zero() {
            break (true, false);
        }
        if !pipe_is_open {
            thread::sleep(POLL.min(left));
            continue;
        }
        match chunks.recv_timeout(POLL.min(left)) {
            Ok(chunk) => take(chunk?),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => pipe_is_open = false,
        }
    };
    let status = group.stop()?;
    let seconds = started.elapsed().as_secs_f64();
    let drained = Instant::now() + DRAIN;
    // Also where there is always more: who has left the group may print for ever.
    loop {
        let left = drained.saturating_duration_since(Instant::now());
        match chunks.recv_timeout(left) {
            Ok(chunk) if !left.is_zero() => take(chunk?),
            _ => break,
        }
    }
    lines.finish(watch);
    let log_truncated = log.left_out > 0;
    let status = (!stopped).then_some(status);
    Ok(ToolRun { status, cancelled, log: log.into_text(), log_truncated, seconds })
}

/// Starts a program. One that was written a moment ago may still be open for writing in a process that another
/// thread has forked and that has not yet reached its `exec`; that passes.
fn spawn(command: &mut Command) -> io::Result<Child> {
    let started = Instant::now();
    loop {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy && started.elapsed() < BUSY => {
                thread::sleep(POLL);
            }
            result => return result,
        }
    }
}

/// Reads until the end of the pipe, at most a few chunks ahead of the caller. The thread ends with the pipe, or at
/// its next chunk after the caller has gone.
fn read_in_background(mut reader: io::PipeReader) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = sync_channel(8);
    crate::parallel::thread_of("tool log")?.spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => break,
                Ok(size) => {
                    if sender.send(Ok(buffer[..size].to_vec())).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A disassembly without its end would look like that of another kernel.
                Err(error) => {
                    let _ = sender.send(Err(error));
                    break;
                }
            }
        }
    })?;
    Ok(receiver)
}

/// A process that leads a group and kills it when this process is gone. A build may be the work of a minute and of
/// gigabytes: nobody would be left to stop it when its owner was killed.
struct Guard {
    process: Child,
    /// Nobody writes to it: that it is closed is what says that we are gone.
    ours: Option<io::PipeWriter>,
}

impl Guard {
    /// A guard, or none where there is no shell: its group is then stopped in all other cases only.
    fn start() -> Option<Guard> {
        let (theirs, ours) = io::pipe().ok()?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read -r nothing; kill -KILL 0"]).env_clear().process_group(0);
        command.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().ok()?;
        Some(Guard { process, ours: Some(ours) })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        // Where it could not be killed it now kills itself, and its group.
        self.ours = None;
        let _ = self.process.wait();
    }
}

/// A program and its process group, which the guard leads if there is one; dropping it kills the group.
struct Group {
    child: Child,
    guard: Option<Guard>,
    reaped: bool,
}

impl Group {
    /// Looks without reaping: as long as the leader is not reaped, the group's number cannot pass to strangers.
    fn program_has_exited(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.child)), options) {
            Ok(status) => Ok(status.is_some()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills what is left of the group, then reaps the program. One that had ended keeps its own status.
    fn stop(&mut self) -> io::Result<ExitStatus> {
        let leader = self.guard.as_ref().map_or(&self.child, |guard| &guard.process);
        // A group that is gone already, or that has become another user's, is not ours to stop.
        let _ = kill_process_group(Pid::from_child(leader), Signal::KILL);
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.stop();
        }
    }
}

/// The beginning and the end of what was printed.
#[derive(Default)]
struct Log {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Log {
    fn push(&mut self, mut bytes: &[u8]) {
        let into_head = bytes.len().min(KEPT - self.head.len());
        self.head.extend_from_slice(&bytes[..into_head]);
        bytes = &bytes[into_head..];
        self.tail.extend(bytes);
        let excess = self.tail.len().saturating_sub(KEPT);
        self.tail.drain(..excess);
        self.left_out += excess as u64;
    }

    fn into_text(self) -> String {
        let tail: Vec<u8> = self.tail.into();
        if self.left_out == 0 {
            return String::from_utf8_lossy(&[self.head, tail].concat()).into_owned();
        }
        let left_out = self.left_out;
        let head = String::from_utf8_lossy(&self.head);
        let tail = String::from_utf8_lossy(&tail);
        format!("{head}\n[... {left_out} bytes left out ...]\n{tail}")
    }
}

/// Cuts output into lines; a line without end is handed on in pieces.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
}

impl Lines {
    const LONGEST: usize = 8 << 10;

    fn push(&mut self, bytes: &[u8], watch: &mut dyn FnMut(&str)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.partial.len() > Self::LONGEST {
                self.finish(watch);
            }
        }
    }

    fn finish(&mut self, watch: &mut dyn FnMut(&str)) {
        let line = std::mem::take(&mut self.partial);
        if !line.is_empty() {
            watch(String::from_utf8_lossy(&line).trim_end());
        }
    }
}

fn signal_name(signal: i32) -> Option<&'static str> {
    let names = [
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::ILL, "SIGILL"),
        (Signal::INT, "SIGINT"),
        (Signal::KILL, "SIGKILL"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::TERM, "SIGTERM"),
        (Signal::XCPU, "SIGXCPU"),
    ];
    names.iter().find(|(known, _)| known.as_raw() == signal).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests;
