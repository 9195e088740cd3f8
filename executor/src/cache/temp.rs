//! Sweeping: removes the temporary folders of dead processes, and kills compilers that still run in them.
//!
//! The owner of each folder keeps a file in it locked. The lock ends with the process, so a free lock means that the
//! folder is abandoned. Orphaned compilers keep writing into the folder and are killed first: processes that were
//! started there after the folder was made and have no terminal.

use std::fs::{self, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, PidfdFlags, Signal, geteuid, pidfd_open, pidfd_send_signal};

use super::entry::remove;
use super::usage::{self, lock_within};
use crate::build::{OWNER, PREFIX, SWEEP_LOCK};

/// The result of a sweep.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Folders removed.
    pub folders: usize,
    /// Processes killed.
    pub processes: usize,
}

/// Time limit for acquiring the sweep lock.
const PATIENCE: Duration = Duration::from_millis(200);
/// Time limit for killed processes to exit.
const DYING: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(5);

/// The unit of times in `/proc/PID/stat`: `USER_HZ`, 100 on every supported architecture.
const TICKS_PER_SECOND: u64 = 100;
/// Maximum difference between process and file clocks.
const CLOCKS: Duration = Duration::from_millis(50);

/// A folder whose owner is dead.
struct Dead {
    path: PathBuf,
    /// The time at which the owner signed the folder, before it started processes there. `None` if it never did.
    since: Option<SystemTime>,
}

/// Removes the folders of dead owners in `temporary`.
///
/// # Errors
/// When a folder cannot be inspected or locked. The other dead folders are removed nevertheless.
pub(super) fn sweep(temporary: &Path) -> io::Result<Swept> {
    let mut swept = Swept::default();
    let names = folders(temporary)?;
    if names.is_empty() {
        return Ok(swept);
    }
    // Opened for writing: some file systems, such as NFS, lock only such files.
    let lock = usage::open(&temporary.with_file_name(SWEEP_LOCK), true)?;
    if !lock_within(&lock, false, PATIENCE)? {
        // Another process is making folders or sweeping; a later sweep does the work.
        return Ok(swept);
    }
    let (mut dead, mut trouble) = (Vec::new(), None);
    for path in names {
        match look(&path) {
            Ok(State::Dead(since)) => dead.push(Dead { path, since }),
            Ok(State::Alive) => {}
            Err(error) => trouble = trouble.or(Some(error)),
        }
    }
    drop(lock);
    if !dead.is_empty() {
        swept.processes = kill_inside(&dead);
    }
    for folder in dead {
        // A folder that cannot be removed is retried at the next sweep.
        swept.folders += usize::from(remove(&folder.path).is_ok());
    }
    trouble.map_or(Ok(swept), Err)
}

fn folders(temporary: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(temporary)? {
        let entry = entry?;
        let is_ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_ours && entry.file_type()?.is_dir() {
            folders.push(entry.path());
        }
    }
    Ok(folders)
}

enum State {
    Alive,
    Dead(Option<SystemTime>),
}

/// Checks whether a process holds the folder. The caller's lock keeps new folders from being made, so a folder
/// without an owner file is abandoned or being removed.
fn look(folder: &Path) -> io::Result<State> {
    let owner = match usage::open(&folder.join(OWNER), false) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::Dead(None)),
        result => result?,
    };
    match owner.try_lock() {
        Ok(()) => Ok(State::Dead(owner.metadata()?.modified().ok())),
        Err(TryLockError::WouldBlock) => Ok(State::Alive),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Kills this user's compilers in the folders, including any that they start meanwhile.
fn kill_inside(folders: &[Dead]) -> usize {
    let deadline = Instant::now() + DYING;
    let mut killed = std::collections::BTreeSet::new();
    loop {
        let found = processes_inside(folders);
        if found.is_empty() || Instant::now() > deadline {
            return killed.len();
        }
        for process in found {
            let Some(pid) = Pid::from_raw(process) else { continue };
            // The handle pins the process. The PID may have been reused before it was opened, so check again with the
            // handle open.
            let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { continue };
            if works_inside(process, folders) && pidfd_send_signal(&handle, Signal::KILL).is_ok() {
                killed.insert(process);
            }
        }
        thread::sleep(PAUSE);
    }
}

fn processes_inside(folders: &[Dead]) -> Vec<i32> {
    let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|process| works_inside(*process, folders))
        .collect()
}

/// Returns true if the folder's owner may have left this process behind. A user's shell does not match: it has a
/// terminal, or is older than the folder.
fn works_inside(process: i32, folders: &[Dead]) -> bool {
    let place = PathBuf::from(format!("/proc/{process}"));
    let is_ours = fs::metadata(&place).is_ok_and(|metadata| metadata.uid() == geteuid().as_raw());
    let own = i32::try_from(std::process::id()).is_ok_and(|own| own == process);
    if !is_ours || own {
        return false;
    }
    let Ok(cwd) = fs::read_link(place.join("cwd")) else { return false };
    let Some(folder) = folders.iter().find(|folder| cwd.starts_with(&folder.path)) else { return false };
    let started = || start_without_terminal(&fs::read_to_string(place.join("stat")).ok()?);
    folder.since.zip(started()).is_some_and(|(since, started)| started + CLOCKS >= since)
}

/// The process's start time from its `stat` text; `None` if it has a terminal.
fn start_without_terminal(stat: &str) -> Option<SystemTime> {
    // The program name in parentheses may contain any character.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    let (terminal, ticks) = (fields.get(4)?.parse::<i32>().ok()?, fields.get(19)?.parse::<u64>().ok()?);
    let uptime: f64 = fs::read_to_string("/proc/uptime").ok()?.split_whitespace().next()?.parse().ok()?;
    let since_boot = Duration::from_millis(ticks.checked_mul(1000 / TICKS_PER_SECOND)?);
    let age = Duration::try_from_secs_f64(uptime).ok()?.saturating_sub(since_boot);
    if terminal == 0 { SystemTime::now().checked_sub(age) } else { None }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn asleep(folder: &Path) -> Child {
        Command::new("setsid").args(["sleep", "60"]).current_dir(folder).spawn().unwrap()
    }

    #[test]
    fn only_what_was_started_after_the_folder_and_without_a_terminal_is_killed() {
        let outer = tempfile::tempdir().unwrap();
        let temporary = fs::canonicalize(outer.path()).unwrap().join("tmp");
        let folder = temporary.join("fourfold-a");
        fs::create_dir_all(&folder).unwrap();
        let mut bystander = asleep(&folder);
        thread::sleep(CLOCKS * 4);
        fs::write(folder.join(OWNER), "").unwrap();
        let mut compiler = asleep(&folder);
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::read_link(format!("/proc/{}/cwd", compiler.id())).is_ok_and(|cwd| cwd != folder) {
            assert!(Instant::now() < deadline, "it does not start");
            thread::sleep(PAUSE);
        }
        let swept = sweep(&temporary);
        let alive = bystander.try_wait().unwrap().is_none();
        for process in [&mut bystander, &mut compiler] {
            let _ = process.kill();
        }
        assert_eq!(swept.unwrap(), Swept { folders: 1, processes: 1 });
        assert!(alive && !folder.exists());
        bystander.wait().unwrap();
        compiler.wait().unwrap();
        let rest = "1 2 3 TTY -1 0 0 0 0 0 0 0 0 0 20 0 1 0 50 0";
        let stat = |terminal: &str| format!("7 (a ) b) S {}", rest.replace("TTY", terminal));
        assert!(start_without_terminal(&stat("0")).unwrap() < SystemTime::now());
        assert!(start_without_terminal(&stat("34816")).is_none());
    }

    #[test]
    fn what_cannot_be_locked_is_said_and_the_rest_is_swept() {
        let outer = tempfile::tempdir().unwrap();
        let temporary = outer.path().join("tmp");
        fs::create_dir_all(temporary.join("fourfold-a").join(OWNER)).unwrap();
        fs::create_dir(temporary.join("fourfold-b")).unwrap();
        assert!(sweep(&temporary).is_err());
        assert!(temporary.join("fourfold-a").exists() && !temporary.join("fourfold-b").exists());
        fs::remove_dir_all(temporary.join("fourfold-a")).unwrap();
        // No lock, no sweep.
        fs::create_dir(temporary.join("fourfold-c")).unwrap();
        fs::remove_file(outer.path().join(SWEEP_LOCK)).unwrap();
        fs::create_dir(outer.path().join(SWEEP_LOCK)).unwrap();
        assert!(sweep(&temporary).is_err() && temporary.join("fourfold-c").exists());
    }
}
