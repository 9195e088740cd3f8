//! The temporary folders of this process, which it removes also when it ends without dropping them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

/// The temporary folders to remove when this process ends abruptly.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Whether this process is about to end, and what it does is cancelled.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Says that this process is about to end.
pub(crate) fn begin_end() {
    ENDING.store(true, Ordering::SeqCst);
}

/// Returns whether this process is about to end.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Has [`remove_temporary`] remove a folder too, until [`forget_temporary`].
pub(crate) fn register_temporary(folder: &Path) {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

/// Has [`remove_temporary`] leave a folder alone, which is gone or no longer temporary.
pub(crate) fn forget_temporary(folder: &Path) {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known != folder);
}

/// Removes the temporary folders of this process, which is about to end without dropping what it has. A library that
/// is loaded stays so.
pub(crate) fn remove_temporary() {
    for folder in std::mem::take(&mut *TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)) {
        remove(&folder);
    }
}

/// Removes a folder into which somebody may still write: a child of a stopped compiler, or another thread.
pub(crate) fn remove(folder: &Path) {
    const ATTEMPTS: usize = 10;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..ATTEMPTS {
        match fs::remove_dir_all(folder) {
            // A file that was being written to replace another.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let _ = fs::remove_file(folder);
                break;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => break,
        }
    }
}
