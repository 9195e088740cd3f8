//! Exchange with tiers: fetching, adopting and pushing entries.

use std::path::Path;
use std::{fs, io};

use super::entry::{Contents, Identity, Trust, Unusable};
use super::error::{Action, CacheError, Reason, Refusal};
use super::key::CacheKey;
use super::manifest::LIBRARY;
use super::tier::{Pushed, Tier};
use super::{Cache, usage};
use crate::build::{Artifact, Folder};

/// The result of pushing one entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushResult {
    /// The entry's key.
    pub key: CacheKey,
    /// The action taken, or the reason for none.
    pub outcome: Result<Pushed, PushError>,
}

/// The reason an entry was not pushed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The entry does not exist.
    #[error("the cache has no such entry")]
    Absent,
    /// The entry does not verify.
    #[error("the entry is rejected: {reason}")]
    Refused {
        /// The problem with the entry.
        reason: String,
    },
    /// The destination rejected the entry.
    #[error("{reason}")]
    Place {
        /// The destination's message.
        reason: String,
    },
}

impl Cache {
    /// Copies entries to a folder or object store that serves as a tier. Entries that exist there and verify are left
    /// alone. Results are in the order of `keys`.
    ///
    /// # Errors
    /// When the destination does not exist, or this program cannot write to it.
    pub fn push(&self, to: &str, keys: &[CacheKey]) -> Result<Vec<PushResult>, CacheError> {
        let refused = |reason: String| CacheError::Target { reason };
        let tier = Tier::open(to).map_err(|error| match error {
            CacheError::Tier { reason, .. } => refused(reason),
            error => error,
        })?;
        tier.reach().map_err(refused)?;
        let push = |key: &CacheKey| {
            let in_use = usage::hold(&self.use_file(key));
            let path = self.entry(key);
            let read = Contents::read(&path, key, Trust::Owner);
            let outcome = match read.and_then(|contents| self.admit(&path, contents)) {
                Ok(contents) => tier.push(contents).map_err(|reason| PushError::Place { reason }),
                Err(Unusable::Absent) => Err(PushError::Absent),
                Err(Unusable::Refused(reason, _)) => Err(PushError::Refused { reason: reason.to_string() }),
            };
            drop(in_use);
            PushResult { key: *key, outcome }
        };
        Ok(keys.iter().map(push).collect())
    }

    /// Removes the entry of a kernel that this machine cannot load, so that it is rebuilt. Happens when the builder's
    /// machine had newer shared libraries. `tier` names the entry's origin.
    pub fn refuse(&self, key: &CacheKey, tier: Option<&str>, why: String) -> Refusal {
        let path = self.entry(key);
        let action = match Identity::at(&path) {
            Ok(identity) => self.discard(&path, identity),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Action::Removed,
            Err(error) => Action::Stuck { why: error.to_string() },
        };
        let tier = tier.map(str::to_owned);
        Refusal { entry: key.to_string(), tier, reason: Reason::Load { why }, action }
    }

    /// Looks up a kernel in the tiers. Returns it with its tier's name.
    pub(super) fn ask_tiers(&self, key: &CacheKey, notes: &mut Vec<Refusal>) -> Option<(Artifact, String)> {
        for tier in &self.inner.tiers {
            match tier.fetch(key) {
                Ok(Some(contents)) => {
                    if let Some(reason) = self.objection(&contents) {
                        notes.push(note(key, tier.name(), reason));
                        continue;
                    }
                    if let Some(artifact) = self.adopt(key, contents, tier.name(), notes) {
                        return Some((artifact, tier.name().to_owned()));
                    }
                }
                Ok(None) => {}
                Err(reason) => notes.push(note(key, tier.name(), reason)),
            }
        }
        None
    }

    /// Copies a tier's kernel into the local cache. If that fails, unpacks it for this process only.
    fn adopt(
        &self,
        key: &CacheKey,
        contents: Contents,
        tier: &str,
        notes: &mut Vec<Refusal>,
    ) -> Option<Artifact> {
        let mut not_kept = |why: String| notes.push(note(key, tier, Reason::NotKept { why }));
        match self.publish(key, &contents) {
            Ok(artifact) => return Some(artifact),
            Err(error) => not_kept(error.to_string()),
        }
        let temporary = self.temporary();
        match unpack(&contents, Some(&temporary)).or_else(|_| unpack(&contents, None)) {
            Ok(folder) => Some(contents.into_artifact(folder)),
            Err(error) => {
                not_kept(error.to_string());
                None
            }
        }
    }
}

fn note(key: &CacheKey, tier: &str, reason: Reason) -> Refusal {
    Refusal { entry: key.to_string(), tier: Some(tier.to_owned()), reason, action: Action::Left }
}

/// Unpacks a library into a temporary folder that lives as long as its kernel.
fn unpack(contents: &Contents, parent: Option<&Path>) -> io::Result<Folder> {
    let mut folder = Folder::new(parent)?;
    fs::write(folder.path().join(LIBRARY), contents.library())?;
    folder.expect_library(contents.library_hash());
    Ok(folder)
}
