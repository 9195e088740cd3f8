//! Recorded failures by key: a kernel that failed to compile is retried only on request.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::Failure;
use crate::build::{BuildOptions, ToolEnvironment};
use crate::cache::CacheKey;
use crate::environment::Environment;
use crate::toolchain::Toolchain;

/// The failure records in a cache folder.
#[derive(Clone, Debug)]
pub(super) struct Failures {
    folder: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Record {
    failure: Failure,
    /// The toolchain that failed, as written by [`stamp`].
    toolchain: String,
    /// Build options that are not part of the key.
    #[serde(default)]
    options: String,
    /// The time of the failure, in milliseconds since 1970.
    at: u64,
}

/// The maximum number of records; the oldest are removed.
const MOST: usize = 512;
/// The maximum total size of records, in bytes; the newest always stays.
const MOST_BYTES: u64 = 64 << 20;
/// The maximum size of a record, in bytes: both ends of a log, and the other fields.
const LONGEST: u64 = 4 << 20;

impl Failures {
    /// Opens the records in `folder`, creating the folder.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub(super) fn new(folder: PathBuf) -> io::Result<Failures> {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        Ok(Failures { folder })
    }

    /// The lasting failure recorded for this key and this exact toolchain. Its cause was inferred from messages, so
    /// it does not carry over to another compiler or wrapper.
    pub(super) fn known(&self, key: CacheKey, toolchain: &str) -> Option<Failure> {
        let record = self.read(key).filter(|record| record.toolchain == toolchain)?;
        record.failure.lasting.then(|| remembered(record.failure))
    }

    /// The failure of another process's attempt at or after `since` (milliseconds since 1970) with the same toolchain
    /// and options. Attempts with another time limit or launcher do not apply.
    pub(super) fn recent(
        &self,
        key: CacheKey,
        since: u64,
        toolchain: &str,
        options: &str,
    ) -> Option<Failure> {
        let record = self.read(key)?;
        let applies = record.at >= since && record.toolchain == toolchain && record.options == options;
        applies.then(|| remembered(record.failure))
    }

    /// Records a failure, even a transient one: processes waiting for this build receive it.
    ///
    /// # Errors
    /// When the record cannot be written.
    pub(super) fn record(
        &self,
        key: CacheKey,
        failure: &Failure,
        toolchain: &str,
        options: &str,
    ) -> io::Result<()> {
        let (failure, toolchain, options) = (failure.clone(), toolchain.to_owned(), options.to_owned());
        let record = Record { failure, toolchain, options, at: now() };
        let text = serde_json::to_string_pretty(&record)?;
        let mut file = tempfile::Builder::new().prefix(".").tempfile_in(&self.folder)?;
        file.write_all(text.as_bytes())?;
        file.persist(self.path(key)).map_err(|error| error.error)?;
        self.bound()
    }

    /// Removes the record of a key.
    pub(super) fn forget(&self, key: CacheKey) {
        let _ = fs::remove_file(self.path(key));
    }

    fn path(&self, key: CacheKey) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }

    /// Ignores malformed records and other users' files: the kernel is then tried.
    fn read(&self, key: CacheKey) -> Option<Record> {
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.path(key)).ok()?;
        let metadata = file.metadata().ok()?;
        if !metadata.is_file() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return None;
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }

    fn bound(&self) -> io::Result<()> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if let Ok(metadata) = entry.metadata() {
                files.push((metadata.modified().unwrap_or(UNIX_EPOCH), entry.path(), metadata.len()));
            }
        }
        files.sort();
        let mut bytes = 0_u64;
        for (newer, (_, path, size)) in files.iter().rev().enumerate() {
            bytes = bytes.saturating_add(*size);
            if newer >= MOST || newer > 0 && bytes > MOST_BYTES {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }
}

/// The options that may affect a build's outcome but are not part of its key.
pub(super) fn options_of(build: &BuildOptions) -> String {
    let BuildOptions { time_limit, temp_dir, debug: _, launcher, cancel: _ } = build;
    format!("{time_limit:?} {temp_dir:?} {launcher:?}")
}

/// Counts the lasting failures in a folder, which need not exist.
pub(super) fn count_lasting(folder: &Path) -> usize {
    let failures = Failures { folder: folder.to_owned() };
    let key = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(".json")?.parse().ok();
    let keys = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(key);
    keys.filter_map(|key| failures.read(key)).filter(|record| record.failure.lasting).count()
}

fn remembered(failure: Failure) -> Failure {
    Failure { remembered: true, ..failure }
}

/// The current time in milliseconds since 1970.
pub(super) fn now() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(passed.as_millis()).unwrap_or(u64::MAX)
}

/// Identifies an installed compiler, so that a repaired one differs: path and modification time of each program,
/// including host compiler and launcher, and the environment visible to them.
pub(super) fn stamp(
    toolchain: &Toolchain,
    launcher: Option<&Path>,
    environment: &Environment,
    visible: &ToolEnvironment,
) -> String {
    let one = |path: &Path| {
        let metadata = fs::metadata(path).ok();
        let changed = metadata.map_or((0, 0, 0), |it| (it.len(), it.mtime(), it.mtime_nsec()));
        format!("{} {changed:?}", path.display())
    };
    let cutlass = toolchain.cutlass.as_ref().map(|cutlass| &*cutlass.path);
    let tools = [Some(&*toolchain.nvcc), toolchain.cuobjdump.as_deref(), cutlass, launcher];
    // A bare name is found on `PATH`.
    let found = launcher.and_then(|launcher| environment.find_program(launcher));
    let host = environment.host_compilers();
    // If nvcc is a wrapper script, it may now select another toolkit.
    let toolkit = toolchain.include.iter().chain(&toolchain.libraries).map(|folder| &**folder);
    tools
        .into_iter()
        .flatten()
        .chain(found.iter().chain(&host).map(|path| &**path))
        .chain(toolkit)
        .map(one)
        .chain([visible.identity().to_owned()])
        .collect::<Vec<_>>()
        .join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::BuildFault;
    use crate::toolchain::Origin;

    fn key(digit: char) -> CacheKey {
        digit.to_string().repeat(64).parse().unwrap()
    }

    fn failure(fault: BuildFault, lasting: bool) -> Failure {
        Failure { lasting, log: Some("all of it\n".into()), ..Failure::new("compile_error", fault, "no") }
    }

    #[test]
    fn lasting_failures_are_known_and_others_only_to_those_who_waited() {
        let folder = tempfile::tempdir().unwrap();
        let failures = Failures::new(folder.path().join("failures")).unwrap();
        let before = now();
        failures.record(key('a'), &failure(BuildFault::OurBug, true), "one", "").unwrap();
        failures.record(key('b'), &failure(BuildFault::Toolchain, true), "one", "").unwrap();
        failures.record(key('c'), &failure(BuildFault::ResourceLimit, false), "one", "").unwrap();
        let known = |digit, toolchain| failures.known(key(digit), toolchain).is_some();
        for digit in ['a', 'b'] {
            assert!(known(digit, "one") && !known(digit, "two"), "whosever fault it seems to be");
        }
        assert!(!known('c', "one") && !known('d', "one"));
        let shared = failures.recent(key('c'), before, "one", "").unwrap();
        assert!(shared.remembered && shared.log.as_deref() == Some("all of it\n"));
        assert!(failures.recent(key('c'), now() + 1000, "one", "").is_none());
        assert!(failures.recent(key('c'), before, "two", "").is_none());
        assert!(failures.recent(key('c'), before, "one", "more time").is_none());
        // Transient failures and malformed records are excluded.
        fs::write(failures.path(key('e')), "{").unwrap();
        fs::write(failures.folder.join("note.json"), "{}").unwrap();
        assert_eq!(count_lasting(&failures.folder), 2);
        assert_eq!(count_lasting(&folder.path().join("absent")), 0);
        failures.forget(key('a'));
        assert!(!known('a', "one"));
    }

    #[test]
    fn another_host_compiler_or_launcher_or_a_mended_one_is_another_compiler() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            use std::os::unix::fs::PermissionsExt;
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        };
        let toolchain = Toolchain {
            nvcc: write("nvcc", "nvcc"),
            include: Vec::new(),
            libraries: Vec::new(),
            cutlass: None,
            cuobjdump: None,
            nvcc_version: "13.0.88".to_owned(),
            nvcc_origin: Origin::Provisioned,
            allow_known_bad: false,
            passed_over: Vec::new(),
        };
        for name in ["g++", "gcc", "other"] {
            write(name, name);
        }
        let path = Some(folder.path().into());
        let usual = Environment { path: path.clone(), ..Environment::default() };
        let visible = |environment: &Environment| ToolEnvironment::new(environment);
        let of = |environment: &Environment| stamp(&toolchain, None, environment, &visible(environment));
        let other = Environment { nvcc_ccbin: Some("other".into()), ..usual.clone() };
        let whole = Environment { nvcc_ccbin: path.clone(), ..usual.clone() };
        let before = [of(&usual), of(&other), of(&whole)];
        assert!(before[0] != before[1] && before[0] == before[2], "{before:?}");
        let launcher = folder.path().join("other");
        assert_ne!(stamp(&toolchain, Some(&launcher), &usual, &visible(&usual)), before[0]);
        let libraries = Environment { ld_library_path: Some("/lib".into()), ..usual.clone() };
        assert_ne!(of(&libraries), before[0]);
        let elsewhere = Toolchain { libraries: vec!["/another/toolkit/lib".into()], ..toolchain.clone() };
        assert_ne!(stamp(&elsewhere, None, &usual, &visible(&usual)), before[0]);
        write("other", "it is mended");
        assert_ne!(of(&other), before[1]);
        assert_eq!(of(&usual), before[0]);
        write("gcc", "it is mended");
        assert_ne!(of(&usual), before[0]);
    }

    #[test]
    fn what_is_no_record_counts_as_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let failures = Failures::new(folder.path().to_owned()).unwrap();
        fs::write(failures.path(key('a')), "{").unwrap();
        fs::create_dir(failures.path(key('b'))).unwrap();
        std::os::unix::fs::symlink("/dev/zero", failures.path(key('c'))).unwrap();
        for digit in ['a', 'b', 'c'] {
            assert!(failures.known(key(digit), "one").is_none());
        }
        failures.record(key('a'), &failure(BuildFault::OurBug, true), "one", "").unwrap();
        assert!(failures.known(key('a'), "one").is_some());
    }

    #[test]
    fn their_bytes_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let failures = Failures::new(folder.path().to_owned()).unwrap();
        for name in ["a", "b", "c"] {
            // Sparse files: they have a size but use no disk space.
            fs::File::create(folder.path().join(name)).unwrap().set_len(MOST_BYTES / 2 - 4096).unwrap();
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        failures.record(key('a'), &failure(BuildFault::OurBug, true), "one", "").unwrap();
        assert!(!folder.path().join("a").exists() && folder.path().join("b").exists());
        assert!(failures.known(key('a'), "one").is_some());
    }

    #[test]
    fn their_number_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let failures = Failures::new(folder.path().to_owned()).unwrap();
        for number in 0..MOST + 5 {
            fs::write(folder.path().join(number.to_string()), "").unwrap();
        }
        failures.record(key('a'), &failure(BuildFault::OurBug, true), "one", "").unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MOST);
        assert!(failures.known(key('a'), "one").is_some(), "the newest stays");
    }
}
