//! Limits on concurrent compilers, in this process and among processes that share a cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use super::lock::{BackOff, FileLock};
use crate::build::BuildOptions;
use crate::process::Cancel;

/// The name prefix of slot locks.
pub(super) const SLOT: &str = "slot-";

/// The number of concurrent builds that fit this machine: one per core, if memory holds their peaks
/// ([`BuildOptions::PEAK_MEMORY`]) with an eighth to spare. A container's memory limit applies. At least 1.
pub fn build_slots() -> usize {
    static SLOTS: OnceLock<usize> = OnceLock::new();
    *SLOTS.get_or_init(|| {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let limit = |file: &str| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        let containers =
            ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"].map(limit);
        let memory = containers.into_iter().flatten().chain(total_memory()).min();
        slots_for(cores, memory)
    })
}

fn slots_for(cores: usize, memory: Option<u64>) -> usize {
    let fitting = memory.map_or(1, |bytes| (bytes - bytes / 8) / BuildOptions::PEAK_MEMORY);
    usize::try_from(fitting).unwrap_or(usize::MAX).min(cores).max(1)
}

fn total_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The number of builds running in this process.
static RUNNING: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

/// Permission to run one compiler in this process.
#[derive(Debug)]
pub(super) struct Permit(());

impl Permit {
    /// Waits for one of `jobs` permits. `None` if cancelled first.
    pub(super) fn wait(jobs: usize, cancel: &Cancel, on_wait: &mut dyn FnMut()) -> Option<Permit> {
        const LOOK: Duration = Duration::from_millis(50);
        let mut told = false;
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= jobs.max(1) && !cancel.is_cancelled() {
            if !std::mem::replace(&mut told, true) {
                on_wait();
            }
            running = CHANGED.wait_timeout(running, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        if cancel.is_cancelled() {
            return None;
        }
        *running += 1;
        Some(Permit(()))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        CHANGED.notify_all();
    }
}

/// Waits for one of the machine's slots, which permits one compiler among all users of this lock folder. `None` if
/// cancelled first.
///
/// # Errors
/// When a lock file cannot be opened.
pub(super) fn acquire(
    locks: &Path,
    cancel: &Cancel,
    on_wait: &mut dyn FnMut(),
) -> io::Result<Option<FileLock>> {
    let paths: Vec<PathBuf> = (0..build_slots()).map(|slot| locks.join(format!("{SLOT}{slot}"))).collect();
    let mut back_off = BackOff::new();
    let mut told = false;
    loop {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        for path in &paths {
            if let Some(lock) = FileLock::attempt(path, false)? {
                return Ok(Some(lock));
            }
        }
        if !std::mem::replace(&mut told, true) {
            on_wait();
        }
        back_off.pause();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_follow_cores_and_memory_and_there_is_always_one() {
        const GIB: u64 = 1 << 30;
        assert_eq!(slots_for(64, Some(512 * GIB)), 64);
        assert_eq!(slots_for(64, Some(128 * GIB)), 18);
        assert_eq!(slots_for(2, Some(23 * GIB)), 2);
        assert_eq!(slots_for(16, Some(2 * GIB)), 1);
        assert_eq!(slots_for(16, None), 1);
        assert!(build_slots() >= 1);
    }

    #[test]
    fn the_machine_has_no_more_slots_than_it_says() {
        let folder = tempfile::tempdir().unwrap();
        let held: Vec<FileLock> = (0..build_slots())
            .map(|_| acquire(folder.path(), &Cancel::new(), &mut || panic!("free")).unwrap().unwrap())
            .collect();
        let cancel = Cancel::new();
        let none = acquire(folder.path(), &cancel, &mut || cancel.cancel()).unwrap();
        assert!(none.is_none());
        drop(held);
        assert!(acquire(folder.path(), &Cancel::new(), &mut || {}).unwrap().is_some());
    }
}
