//! Runs tools with limits on time, log memory and leftover processes.
//!
//! Compilers start other processes. Stopping only the first leaves its children running, and they keep the pipe open.
//! So each program gets its own process group. The whole group is killed on a time-out, after the program ends, and
//! when the caller unwinds. It is also killed when this process dies for any reason: a guard in the group waits for
//! that. Only a descendant that leaves the group on purpose (`setsid`) survives; it delays the caller by at most
//! [`DRAIN`].

mod lines;

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

pub use lines::{LineError, LineProcess};

/// A cancellation request, shared by its clones.
#[derive(Clone, Default)]
pub struct Cancel {
    wish: Arc<Wish>,
}

#[derive(Default)]
struct Wish {
    is_there: AtomicBool,
    told: Mutex<Vec<Weak<dyn Stops>>>,
}

/// A receiver of a cancellation.
pub(crate) trait Stops: Send + Sync {
    /// Called once, on cancellation.
    fn stop(&self);
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancel").field("wished", &self.is_cancelled()).finish_non_exhaustive()
    }
}

impl Cancel {
    /// Creates a request that is not cancelled.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Cancels. This is final.
    pub fn cancel(&self) {
        self.wish.is_there.store(true, Ordering::Relaxed);
        let told = std::mem::take(&mut *self.told());
        told.iter().filter_map(Weak::upgrade).for_each(|other| other.stop());
    }

    /// Registers a receiver; notifies it at once if already cancelled.
    pub(crate) fn tell(&self, other: Weak<dyn Stops>) {
        let mut told = self.told();
        // `cancel` sets the flag before it takes the list.
        if self.is_cancelled() {
            drop(told);
            other.upgrade().inspect(|other| other.stop());
            return;
        }
        told.push(other);
        // Remove dropped receivers, which would accumulate.
        if told.len().is_power_of_two() {
            told.retain(|other| other.strong_count() > 0);
        }
    }

    fn told(&self) -> MutexGuard<'_, Vec<Weak<dyn Stops>>> {
        // A poisoned list is still valid: nothing is called while it is locked.
        self.wish.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true after cancellation.
    pub fn is_cancelled(&self) -> bool {
        self.wish.is_there.load(Ordering::Relaxed)
    }
}

/// The result of running a program.
#[derive(Clone, Debug)]
pub struct ToolRun {
    /// The exit status; `None` if it was stopped at its time limit or cancelled.
    pub status: Option<ExitStatus>,
    /// True if it was cancelled.
    pub cancelled: bool,
    /// Its stdout and stderr in order: the first and the last 256 KiB.
    pub log: String,
    /// True if the middle of the log was omitted; the log says how much.
    pub log_truncated: bool,
    /// The wall-clock time, in seconds.
    pub seconds: f64,
}

impl ToolRun {
    /// Returns true if it ended by itself with exit code 0.
    pub fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// Describes its end: `exit code 1`, `signal 11 (SIGSEGV)`, `a time-out after 60 s`.
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

/// The bytes kept of each end of a log.
const KEPT: usize = 256 << 10;
/// Time limit for output left in the pipe after the group is dead.
const DRAIN: Duration = Duration::from_millis(500);
/// The interval of checks whether a silent program has ended.
const POLL: Duration = Duration::from_millis(10);
/// Time limit for retrying a program file that is still open for writing.
const BUSY: Duration = Duration::from_secs(1);

/// Runs a program until it ends or reaches its time limit.
///
/// Standard input is empty; stdout and stderr are merged into the log. No process of the program's group is running
/// when this returns.
///
/// # Errors
/// When the program cannot be started or watched. A program that fails, crashes or hangs is no error here.
pub fn run_tool(command: &mut Command, limit: Duration) -> io::Result<ToolRun> {
    run_tool_watched(command, limit, None, &mut |_| {})
}

/// Like [`run_tool`], with cancellation; `watch` receives each line as it is printed.
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
    // The command holds copies of the pipe's writing end; with them, reading would never end.
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
    // Bounded: a process outside the group may print forever.
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

/// Starts a program. A freshly written program may still be open for writing in a process that another thread has
/// forked and that has not reached its `exec`. Retries until it is closed.
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

/// Reads a pipe to its end, at most a few chunks ahead of the caller. The thread ends with the pipe, or at the next
/// chunk after the caller is gone.
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
                // A truncated disassembly would look like that of another kernel.
                Err(error) => {
                    let _ = sender.send(Err(error));
                    break;
                }
            }
        }
    })?;
    Ok(receiver)
}

/// A process that leads a group and kills it when this process dies. Without it, a build whose owner was killed would
/// keep running, for up to a minute and with gigabytes of memory.
#[derive(Debug)]
struct Guard {
    process: Child,
    /// Never written to: its closing tells the guard that this process is gone.
    ours: Option<io::PipeWriter>,
}

impl Guard {
    /// Starts a guard; `None` without a shell, and the group then survives only the death of this process.
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
        // If the kill failed, the guard now kills itself and its group.
        self.ours = None;
        let _ = self.process.wait();
    }
}

/// A program and its process group, led by the guard if there is one. Dropping it kills the group.
#[derive(Debug)]
struct Group {
    child: Child,
    guard: Option<Guard>,
    reaped: bool,
}

impl Group {
    /// Checks without reaping: until the leader is reaped, the group's number cannot be reused.
    fn program_has_exited(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match waitid(WaitId::Pid(Pid::from_child(&self.child)), options) {
            Ok(status) => Ok(status.is_some()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Kills the rest of the group, then reaps the program. A program that had already ended keeps its status.
    fn stop(&mut self) -> io::Result<ExitStatus> {
        let leader = self.guard.as_ref().map_or(&self.child, |guard| &guard.process);
        // Fails if the group is gone, or belongs to another user and is not ours to stop.
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

/// The first and last bytes of output.
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

/// Splits output into lines; very long lines are passed on in pieces.
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
