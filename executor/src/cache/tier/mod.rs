//! Further places with entries: folders that a fleet shares, and object stores.
//!
//! A tier may fail, hang, or hold anything. So it is asked in a thread of its own, which is left behind when it does not
//! answer in time, and a tier that failed is left alone for a while. Its manifest is read first, and decides how much
//! else is read.

mod folder;
#[cfg(feature = "object-store")]
mod object;

use std::fmt;
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::entry::Contents;
use super::error::{CacheError, Reason};
use super::key::CacheKey;
use super::shown::{shown_of, shown_place};
use folder::FolderStore;

/// How long a tier may take to answer. An entry has some megabytes.
const FETCH_LIMIT: Duration = Duration::from_secs(15);
/// How long a tier may take to accept an entry.
const PUSH_LIMIT: Duration = Duration::from_secs(120);
/// How long a tier that failed is left alone: one that hangs must not cost every kernel its time limit.
const PAUSE: Duration = Duration::from_secs(60);

/// What became of a pushed entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pushed {
    /// It was written.
    Written,
    /// It was there already, and verifies.
    Present,
    /// What was there was refused, and is replaced.
    Replaced,
}

/// Whether this program can read such a tier, by its name; nothing is asked of the tier.
///
/// # Errors
/// When it cannot, and why.
pub fn check_tier(name: &str) -> Result<(), CacheError> {
    Tier::open(name).map(|_| ())
}

/// A place with entries.
pub(super) struct Tier {
    /// As it was given, with whatever is secret in it.
    place: String,
    /// As it is shown.
    name: String,
    store: Arc<dyn Store>,
    /// How long it may take to answer.
    limit: Duration,
    paused: Mutex<Option<Instant>>,
}

/// How a kind of tier is read and written.
trait Store: Send + Sync {
    /// The entry of a key, verified; `None` where there is none.
    fn fetch(&self, key: &CacheKey) -> Result<Option<Contents>, Reason>;

    /// Whether the place is there, as far as that can be seen without asking much.
    fn reach(&self) -> Result<(), String> {
        Ok(())
    }

    /// Writes an entry, its manifest last. `replace` says that one is there that does not verify.
    fn push(&self, contents: &Contents, replace: bool) -> Result<(), String>;
}

impl Tier {
    /// The tier of this name: a URL, or a folder. Nothing is asked of it yet.
    pub(super) fn open(name: &str) -> Result<Tier, CacheError> {
        let failed =
            |reason: String| CacheError::Tier { tier: shown_place(name), reason: shown_of(name, &reason) };
        let store: Arc<dyn Store> = if name.contains("://") {
            url_store(name).map_err(failed)?
        } else if name.trim().is_empty() {
            return Err(failed("it has no name".to_owned()));
        } else if name.contains(char::REPLACEMENT_CHARACTER) {
            return Err(failed("its name is no text".to_owned()));
        } else {
            let folder = std::path::absolute(Path::new(name)).map_err(|error| failed(error.to_string()))?;
            Arc::new(FolderStore::new(folder))
        };
        Ok(Tier::new(name, store))
    }

    /// As [`Tier::open`]; what cannot be used says so when it is asked, and is then left alone for a while.
    pub(super) fn open_or_refuse(name: &str) -> Tier {
        Tier::open(name).unwrap_or_else(|error| {
            let why = match error {
                CacheError::Tier { reason, .. } => reason,
                other => other.to_string(),
            };
            Tier::new(name, Arc::new(Unusable(why)))
        })
    }

    fn new(place: &str, store: Arc<dyn Store>) -> Tier {
        let (place, name) = (place.to_owned(), shown_place(place));
        Tier { place, name, store, limit: FETCH_LIMIT, paused: Mutex::new(None) }
    }

    /// What was given for it, which is not to be shown.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// Its name as it is shown.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The entry of a key, verified; `None` where there is none, or where the tier has just failed.
    pub(super) fn fetch(&self, key: &CacheKey) -> Result<Option<Contents>, Reason> {
        let now = Instant::now();
        if self.paused.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|until| now < until) {
            return Ok(None);
        }
        let (store, key) = (Arc::clone(&self.store), *key);
        match within(self.limit, move || store.fetch(&key)) {
            Ok(Err(Reason::Unreachable { why })) | Err(why) => {
                *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + PAUSE);
                Err(Reason::Unreachable { why: shown_of(&self.place, &why) })
            }
            Ok(result) => result,
        }
    }

    /// Makes sure that the place is there, before something is pushed.
    pub(super) fn reach(&self) -> Result<(), String> {
        let store = Arc::clone(&self.store);
        within(self.limit, move || store.reach())?
    }

    pub(super) fn push(&self, contents: Contents) -> Result<Pushed, String> {
        let store = Arc::clone(&self.store);
        let push = move || {
            let replace = match store.fetch(&contents.manifest.key) {
                Ok(Some(_)) => return Ok(Pushed::Present),
                Ok(None) => false,
                Err(Reason::Unreachable { why }) => return Err(why),
                Err(_) => true,
            };
            store.push(&contents, replace)?;
            Ok(if replace { Pushed::Replaced } else { Pushed::Written })
        };
        within(PUSH_LIMIT, push).flatten().map_err(|why| shown_of(&self.place, &why))
    }
}

/// A tier that this program cannot read, and why.
struct Unusable(String);

impl Store for Unusable {
    fn fetch(&self, _: &CacheKey) -> Result<Option<Contents>, Reason> {
        Err(Reason::Unreachable { why: self.0.clone() })
    }

    fn push(&self, _: &Contents, _: bool) -> Result<(), String> {
        Err(self.0.clone())
    }
}

impl fmt::Debug for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tier").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Does something in a thread of its own, and leaves it behind when it takes too long.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = sync_channel(1);
    let worker = move || {
        // Nobody waits any more for what comes too late.
        let _ = sender.send(work());
    };
    let started = crate::parallel::thread_of("cache tier").and_then(|thread| thread.spawn(worker));
    started.map_err(|error| error.to_string())?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("it did not answer within {} s", limit.as_secs_f64()),
        RecvTimeoutError::Disconnected => "asking it failed".to_owned(),
    })
}

#[cfg(feature = "object-store")]
fn url_store(url: &str) -> Result<Arc<dyn Store>, String> {
    Ok(Arc::new(object::ObjectTier::new(url)?))
}

#[cfg(not(feature = "object-store"))]
fn url_store(_: &str) -> Result<Arc<dyn Store>, String> {
    Err("this program was built without the feature `object-store`, which reads URLs".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers only when it is too late.
    struct Hanging;

    impl Store for Hanging {
        fn fetch(&self, _: &CacheKey) -> Result<Option<Contents>, Reason> {
            std::thread::park();
            Ok(None)
        }

        fn push(&self, _: &Contents, _: bool) -> Result<(), String> {
            panic!("nobody pushes")
        }
    }

    #[test]
    fn a_tier_that_hangs_costs_its_time_limit_once() {
        let limit = Duration::from_millis(50);
        let tier = Tier { limit, ..Tier::new("hanging", Arc::new(Hanging)) };
        let key = "0".repeat(64).parse().unwrap();
        let started = Instant::now();
        match tier.fetch(&key) {
            Err(Reason::Unreachable { why }) => {
                assert!(why.contains("did not answer within 0.05 s"), "{why}")
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(tier.fetch(&key), Ok(None)));
        assert!(started.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_store_that_panics_is_one_that_cannot_be_reached() {
        assert!(within(FETCH_LIMIT, || -> () { std::panic::resume_unwind(Box::new(())) }).is_err());
    }
}
