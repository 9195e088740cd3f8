//! A tier in an object store: `s3://`, `gs://`, `az://`, `https://`, `file://`, through the `object_store` crate.
//!
//! Credentials and endpoints come from the variables that each store's own tools read, such as `AWS_ACCESS_KEY_ID`.

use std::collections::BTreeMap;
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use tokio::runtime::{Builder, Runtime};
use url::{Position, Url};

use super::Store;
use crate::cache::entry::Contents;
use crate::cache::error::Reason;
use crate::cache::key::CacheKey;
use crate::cache::manifest::{LONGEST_MANIFEST, MANIFEST, Manifest};

pub(super) struct ObjectTier {
    store: Box<dyn ObjectStore>,
    prefix: Path,
    /// `None` only during drop. Requests run on their own threads (`within`): the calling thread may belong to
    /// another runtime, which must not block on this one.
    runtime: Option<Runtime>,
}

impl Drop for ObjectTier {
    fn drop(&mut self) {
        // Dropping a runtime blocks, which is forbidden on a runtime's thread.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Time limit of one request; with retries it stays within the tier's limit.
const REQUEST_LIMIT: &str = "10 seconds";
const CONNECT_LIMIT: &str = "3 seconds";

/// Two quick retries: callers can do without the tier.
fn retry() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 2, retry_timeout: Duration::from_secs(10) }
}

/// Configures and builds any of the builders, which share these methods but no trait.
macro_rules! store {
    ($builder:expr, $url:expr, $allow_http:expr) => {{
        let builder = $builder.with_url($url).with_retry(retry());
        let builder = builder.with_config("timeout".parse()?, REQUEST_LIMIT);
        let builder = builder.with_config("connect_timeout".parse()?, CONNECT_LIMIT);
        let builder = if $allow_http { builder.with_config("allow_http".parse()?, "true") } else { builder };
        Ok(Box::new(builder.build()?))
    }};
}

impl ObjectTier {
    pub(super) fn new(text: &str) -> Result<ObjectTier, String> {
        let url = Url::parse(text).map_err(|error| error.to_string())?;
        // Fetched libraries are executed; an unencrypted connection would let anybody on the path replace them.
        let is_local = matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        if url.scheme() == "http" && !is_local {
            return Err("plain http is allowed for localhost only; use https".to_owned());
        }
        let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(|error| error.to_string())?;
        let store = open(&scheme, &url).map_err(|error| error.to_string())?;
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        Ok(ObjectTier { store, prefix, runtime: Some(runtime) })
    }

    fn block_on<T, E>(
        &self,
        work: impl Future<Output = Result<T, E>>,
        gone: impl FnOnce(String) -> E,
    ) -> Result<T, E> {
        match &self.runtime {
            Some(runtime) => runtime.block_on(work),
            None => Err(gone("the tier is closed".to_owned())),
        }
    }

    fn path(&self, key: &CacheKey, name: &str) -> Path {
        self.prefix.clone().join(key.to_string()).join(name)
    }

    /// Reads one object of at most `longest` bytes; `None` if it does not exist.
    async fn read(&self, key: &CacheKey, name: &str, longest: u64) -> Result<Option<Vec<u8>>, Reason> {
        let unreachable = |error: object_store::Error| Reason::Unreachable { why: error.to_string() };
        let result = match self.store.get(&self.path(key, name)).await {
            Ok(result) => result,
            Err(object_store::Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(unreachable(error)),
        };
        // Checked before the body is read.
        let found = result.meta.size;
        if found > longest {
            return Err(Reason::Size { name: name.to_owned(), found, expected: longest });
        }
        Ok(Some(result.bytes().await.map_err(unreachable)?.to_vec()))
    }
}

fn open(scheme: &ObjectStoreScheme, url: &Url) -> Result<Box<dyn ObjectStore>, object_store::Error> {
    match scheme {
        ObjectStoreScheme::Local => Ok(Box::new(LocalFileSystem::new())),
        ObjectStoreScheme::AmazonS3 => store!(AmazonS3Builder::from_env(), url.as_str(), false),
        ObjectStoreScheme::GoogleCloudStorage => {
            store!(GoogleCloudStorageBuilder::from_env(), url.as_str(), false)
        }
        ObjectStoreScheme::MicrosoftAzure => store!(MicrosoftAzureBuilder::from_env(), url.as_str(), false),
        ObjectStoreScheme::Http => {
            store!(HttpBuilder::new(), &url[..Position::BeforePath], url.scheme() == "http")
        }
        _ => Err(object_store::Error::NotSupported {
            source: "this kind of object store is not supported".into(),
        }),
    }
}

impl Store for ObjectTier {
    fn fetch(&self, key: &CacheKey) -> Result<Option<Contents>, Reason> {
        let work = async {
            let Some(bytes) = self.read(key, MANIFEST, LONGEST_MANIFEST).await? else { return Ok(None) };
            let manifest = Manifest::parse(&bytes, key)?;
            let mut files = BTreeMap::new();
            for record in &manifest.files {
                let missing = || Reason::Missing { name: record.name.clone() };
                let bytes = self.read(key, &record.name, record.size).await?.ok_or_else(missing)?;
                files.insert(record.name.clone(), bytes);
            }
            Contents::new(manifest, files).map(Some)
        };
        self.block_on(work, |why| Reason::Unreachable { why })
    }

    fn push(&self, contents: &Contents, replace: bool) -> Result<(), String> {
        let key = &contents.manifest.key;
        let said = |error: object_store::Error| error.to_string();
        let work = async {
            if replace {
                // Delete the manifest first: without it nobody reads a mixture of two entries.
                match self.store.delete(&self.path(key, MANIFEST)).await {
                    Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
                    Err(error) => return Err(said(error)),
                }
            }
            for (name, bytes) in &contents.files {
                self.store.put(&self.path(key, name), bytes.clone().into()).await.map_err(said)?;
            }
            let manifest = contents.manifest.to_text().into_bytes();
            self.store.put(&self.path(key, MANIFEST), manifest.into()).await.map_err(said)?;
            Ok(())
        };
        self.block_on(work, |why| why)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Tier, check_tier};
    use super::*;

    #[test]
    fn a_tier_is_opened_asked_and_dropped_inside_a_runtime() {
        let folder = tempfile::tempdir().unwrap();
        let url = Url::from_directory_path(folder.path()).unwrap();
        let key = "0".repeat(64).parse().unwrap();
        let runtime = Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            check_tier(url.as_str()).unwrap();
            let tier = Tier::open(url.as_str()).unwrap();
            assert!(matches!(tier.fetch(&key), Ok(None)));
            drop(tier);
        });
    }
}
