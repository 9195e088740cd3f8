//! This process's temporary folders, which are also removed when it ends without dropping them.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

/// The temporary folders to remove when this process ends abruptly.
static TEMPORARY: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Set when this process is about to end and its work is cancelled.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Marks this process as about to end.
pub(crate) fn begin_end() {
    ENDING.store(true, Ordering::SeqCst);
}

/// Returns true if this process is about to end.
pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::SeqCst)
}

/// Registers a folder for [`remove_temporary`].
pub(crate) fn register_temporary(folder: &Path) {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
}

/// Unregisters a folder that is gone or no longer temporary.
pub(crate) fn forget_temporary(folder: &Path) {
    TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known != folder);
}

/// Removes this process's temporary folders, before it ends without dropping its values. Loaded libraries stay
/// loaded.
pub(crate) fn remove_temporary() {
    for folder in std::mem::take(&mut *TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner)) {
        remove(&folder);
    }
}

/// Removes a folder that may still be written to, by a child of a stopped compiler or another thread.
pub(crate) fn remove(folder: &Path) {
    const ATTEMPTS: usize = 10;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..ATTEMPTS {
        match fs::remove_dir_all(folder) {
            // A temporary file that was to replace another.
            Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
                let _ = fs::remove_file(folder);
                break;
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => thread::sleep(PAUSE),
            _ => break,
        }
    }
}
