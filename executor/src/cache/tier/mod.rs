//! Tiers: additional sources of entries, in shared folders, packs or object stores.
//!
//! A tier may fail, hang or hold arbitrary data. Each query runs in its own thread, which is abandoned at a time
//! limit, and a failed tier is skipped for a while. The manifest is read first and bounds the size of all further
//! reads.

mod folder;
#[cfg(feature = "object-store")]
mod object;
mod pack;

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
use pack::PackStore;

/// Time limit of a fetch. An entry takes some megabytes.
const FETCH_LIMIT: Duration = Duration::from_secs(15);
/// Time limit of a push.
const PUSH_LIMIT: Duration = Duration::from_secs(120);
/// Time for which a failed tier is skipped: a hanging tier must not cost every kernel its time limit.
const PAUSE: Duration = Duration::from_secs(60);

/// The result of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pushed {
    /// The entry was written.
    Written,
    /// The entry already existed, and verifies.
    Present,
    /// An entry that did not verify was replaced.
    Replaced,
}

/// Checks that this program can read such a tier, judging by its name. Does not contact the tier.
///
/// # Errors
/// [`CacheError::Tier`] with the reason.
pub fn check_tier(name: &str) -> Result<(), CacheError> {
    Tier::open(name).map(|_| ())
}

/// A source of entries.
pub(super) struct Tier {
    /// The place as configured, credentials included.
    place: String,
    /// The place with credentials removed.
    name: String,
    store: Arc<dyn Store>,
    /// Time limit of a query.
    limit: Duration,
    paused: Mutex<Option<Instant>>,
}

/// Access to one kind of tier.
trait Store: Send + Sync {
    /// Fetches and verifies an entry; `None` if it does not exist.
    fn fetch(&self, key: &CacheKey) -> Result<Option<Contents>, Reason>;

    /// Checks cheaply that the place exists.
    fn reach(&self) -> Result<(), String> {
        Ok(())
    }

    /// Writes an entry, its manifest last. `replace` means that an entry exists and does not verify.
    fn push(&self, contents: &Contents, replace: bool) -> Result<(), String>;
}

impl Tier {
    /// Opens a tier by its URL, folder or pack. Does not contact it.
    pub(super) fn open(name: &str) -> Result<Tier, CacheError> {
        let failed =
            |reason: String| CacheError::Tier { tier: shown_place(name), reason: shown_of(name, &reason) };
        let store: Arc<dyn Store> = if name.contains("://") {
            url_store(name).map_err(failed)?
        } else if name.trim().is_empty() {
            return Err(failed("its name is empty".to_owned()));
        } else if name.contains(char::REPLACEMENT_CHARACTER) {
            return Err(failed("its name is not UTF-8 text".to_owned()));
        } else {
            let path = std::path::absolute(Path::new(name)).map_err(|error| failed(error.to_string()))?;
            if path.is_file() { Arc::new(PackStore::new(path)) } else { Arc::new(FolderStore::new(path)) }
        };
        Ok(Tier::new(name, store))
    }

    /// Like [`Tier::open`], but an invalid tier is created too: it reports its error when queried, and is then
    /// skipped.
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

    /// The place as configured; may contain credentials, so do not print it.
    pub(super) fn place(&self) -> &str {
        &self.place
    }

    /// The place with credentials removed.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Fetches and verifies an entry. `None` if it does not exist or the tier is being skipped.
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

    /// Checks that the place exists, before a push.
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

/// A tier that this program cannot read, with the reason.
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

/// Runs `work` in its own thread, and abandons the thread at the time limit.
fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = sync_channel(1);
    let worker = move || {
        // After the time limit the receiver is gone.
        let _ = sender.send(work());
    };
    let started = crate::parallel::thread_of("cache tier").and_then(|thread| thread.spawn(worker));
    started.map_err(|error| error.to_string())?;
    receiver.recv_timeout(limit).map_err(|error| match error {
        RecvTimeoutError::Timeout => format!("it did not answer within {} s", limit.as_secs_f64()),
        RecvTimeoutError::Disconnected => "the thread that queried it panicked".to_owned(),
    })
}

#[cfg(feature = "object-store")]
fn url_store(url: &str) -> Result<Arc<dyn Store>, String> {
    Ok(Arc::new(object::ObjectTier::new(url)?))
}

#[cfg(not(feature = "object-store"))]
fn url_store(_: &str) -> Result<Arc<dyn Store>, String> {
    Err("this program was built without the feature `object-store`, which URLs require".to_owned())
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
