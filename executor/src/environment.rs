//! Every environment variable that Fourfold reads: a list of them, and their values as a plain struct.
//!
//! Code below the command line takes an [`Environment`] as a value. So its behavior depends on its arguments only,
//! and tests need not modify the process.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// An environment variable, as `doctor` prints it.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// The variable's name.
    pub name: &'static str,
    /// The kind of value: `file`, `folder`, `list of folders`, `list`, `size`, `number or none` or `flag`.
    pub kind: &'static str,
    /// The behavior when unset or empty.
    pub default: &'static str,
    /// The variable's purpose.
    pub meaning: &'static str,
}

impl Variable {
    /// The value in this process; `None` if unset or empty.
    pub fn value(&self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }
}

/// Every environment variable that Fourfold reads.
pub const VARIABLES: &[Variable] = &[
    Variable {
        name: "FOURFOLD_NVCC",
        kind: "file",
        default: "nvcc of FOURFOLD_TOOLCHAIN, CUDA_HOME, PATH or the cache, in this order",
        meaning: "The CUDA compiler that builds kernels",
    },
    Variable {
        name: "FOURFOLD_CUTLASS",
        kind: "folder",
        default: "CUTLASS of FOURFOLD_TOOLCHAIN, CUTLASS_PATH or the cache, in this order",
        meaning: "The CUTLASS for building kernels: a checkout, or an installed cutlass_library",
    },
    Variable {
        name: "FOURFOLD_TOOLCHAIN",
        kind: "folder",
        default: "none",
        meaning: "A toolchain that `toolchain install` created on another machine, used in place",
    },
    Variable {
        name: "FOURFOLD_CACHE_DIR",
        kind: "folder",
        default: "XDG_CACHE_HOME/fourfold, then HOME/.cache/fourfold",
        meaning: "The folder of the installed toolchain and the built kernels",
    },
    Variable {
        name: "FOURFOLD_CACHE_SIZE",
        kind: "size",
        default: "4GiB",
        meaning: "The size limit of the kernel cache; entries in use are never evicted",
    },
    Variable {
        name: "FOURFOLD_CACHE_TIERS",
        kind: "list",
        default: "none",
        meaning: "Shared places to search for kernels that the cache lacks, separated by commas: folders, \
                  packs that `fourfold pack` wrote, and, with the feature object-store, URLs (s3://, gs://, az://, \
                  https://, file://). Credentials come from the variables of the stores (AWS_..., GOOGLE_..., \
                  AZURE_...). Kernels found there are executed: name trusted places only",
    },
    Variable {
        name: "FOURFOLD_DEVICE",
        kind: "number or none",
        default: "the first GPU",
        meaning: "The GPU that kernels run on if no option names one; with `none`, the command line uses no GPU",
    },
    Variable {
        name: "FOURFOLD_CUBLASLT",
        kind: "file or folder",
        default: "cuBLASLt of CUDA toolkits, of Python packages beside them, or of the system's loader, in this order",
        meaning: "The cuBLASLt library that multiplies matrices in `mma`: libcublasLt.so.13 or libcublasLt.so.12",
    },
    Variable {
        name: "FOURFOLD_ALLOW_KNOWN_BAD",
        kind: "flag",
        default: "unset",
        meaning: "Use compilers and CUTLASS versions that are known to build wrong kernels for the target; `0` \
                  means unset",
    },
    Variable {
        name: "CUDA_HOME",
        kind: "folder",
        default: "none",
        meaning: "A CUDA toolkit; its bin/nvcc is used if it is new enough",
    },
    Variable {
        name: "CUTLASS_PATH",
        kind: "folder",
        default: "none",
        meaning: "A CUTLASS checkout; other programs read this variable too",
    },
    Variable {
        name: "XDG_CACHE_HOME",
        kind: "folder",
        default: "HOME/.cache",
        meaning: "The user's cache folder; must be absolute",
    },
    Variable { name: "HOME", kind: "folder", default: "none", meaning: "The user's home folder" },
    Variable {
        name: "PATH",
        kind: "list of folders",
        default: "none",
        meaning: "The folders searched for nvcc, cuobjdump, the host compiler and python3",
    },
    Variable {
        name: "NVCC_CCBIN",
        kind: "file or folder",
        default: "g++ on PATH",
        meaning: "The host compiler; unless it is the system's g++, it is part of the cache keys of kernels",
    },
    Variable {
        name: "LD_LIBRARY_PATH",
        kind: "list of folders",
        default: "none",
        meaning: "Passed to the compiler, and part of the cache keys of kernels, only if the host compiler is not \
                  the system's g++",
    },
    Variable {
        name: "TMPDIR",
        kind: "folder",
        default: "/tmp",
        meaning: "The parent of temporary build folders when no cache is used",
    },
    Variable {
        name: "FOURFOLD_BLESS",
        kind: "flag",
        default: "unset",
        meaning: "Makes tests rewrite their expectations instead of comparing with them",
    },
    Variable {
        name: "FOURFOLD_PROGRAMS",
        kind: "number",
        default: "1000",
        meaning: "The number of random programs that a test tries; 4000 or 10000 in the second tier",
    },
    Variable {
        name: "FOURFOLD_TEST_OTHER",
        kind: "text",
        default: "unset",
        meaning: "The task of a child process that a test starts",
    },
];

/// The pip options that apply to downloads: package indexes and access to them. Each may be set in pip's
/// configuration files or as a variable: `index-url` as `PIP_INDEX_URL`.
pub const PIP_OPTIONS: &[&str] = &[
    "cert",
    "client-cert",
    "default-timeout",
    "extra-index-url",
    "find-links",
    "index-url",
    "keyring-provider",
    "no-index",
    "proxy",
    "retries",
    "timeout",
    "trusted-host",
];

/// The variables passed to `python3` for downloads, besides `HOME` and `PATH`: [`PIP_OPTIONS`], the location of pip's
/// configuration files, network access, and Python's own requirements. No others are passed.
pub const PIP_VARIABLES: &[&str] = &[
    "PIP_CERT",
    "PIP_CLIENT_CERT",
    "PIP_CONFIG_FILE",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_EXTRA_INDEX_URL",
    "PIP_FIND_LINKS",
    "PIP_INDEX_URL",
    "PIP_KEYRING_PROVIDER",
    "PIP_NO_INDEX",
    "PIP_PROXY",
    "PIP_RETRIES",
    "PIP_TIMEOUT",
    "PIP_TRUSTED_HOST",
    "XDG_CONFIG_DIRS",
    "XDG_CONFIG_HOME",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "SSL_CERT_DIR",
    "SSL_CERT_FILE",
    "NETRC",
    "LD_LIBRARY_PATH",
    "PYENV_ROOT",
    "PYENV_VERSION",
];

/// The variables' values; an empty one is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// `FOURFOLD_NVCC`.
    pub fourfold_nvcc: Option<OsString>,
    /// `FOURFOLD_CUTLASS`.
    pub fourfold_cutlass: Option<OsString>,
    /// `FOURFOLD_TOOLCHAIN`.
    pub fourfold_toolchain: Option<OsString>,
    /// `FOURFOLD_CACHE_DIR`.
    pub fourfold_cache_dir: Option<OsString>,
    /// `FOURFOLD_CACHE_SIZE`.
    pub fourfold_cache_size: Option<OsString>,
    /// `FOURFOLD_CACHE_TIERS`.
    pub fourfold_cache_tiers: Option<OsString>,
    /// `FOURFOLD_DEVICE`.
    pub fourfold_device: Option<OsString>,
    /// `FOURFOLD_CUBLASLT`.
    pub fourfold_cublaslt: Option<OsString>,
    /// `FOURFOLD_ALLOW_KNOWN_BAD`.
    pub fourfold_allow_known_bad: Option<OsString>,
    /// `CUDA_HOME`.
    pub cuda_home: Option<OsString>,
    /// `CUTLASS_PATH`.
    pub cutlass_path: Option<OsString>,
    /// `XDG_CACHE_HOME`.
    pub xdg_cache_home: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
    /// `PATH`.
    pub path: Option<OsString>,
    /// `NVCC_CCBIN`.
    pub nvcc_ccbin: Option<OsString>,
    /// `LD_LIBRARY_PATH`.
    pub ld_library_path: Option<OsString>,
    /// The variables passed to a compiler launcher, by name: see [`is_for_launchers`].
    pub launcher: BTreeMap<String, OsString>,
    /// The [`PIP_VARIABLES`] that are set.
    pub pip_variables: Vec<(&'static str, OsString)>,
}

/// Returns true if a compiler launcher (`--launcher`) gets this variable: the settings of its cache and server, and
/// network access. A launcher passes its environment on to the compiler, so variables that a compiler reads are
/// excluded, as are those that select another compiler.
pub fn is_for_launchers(name: &str) -> bool {
    const PREFIXES: [&str; 6] = ["SCCACHE_", "CCACHE_", "AWS_", "AZURE_", "GOOGLE_", "ACTIONS_"];
    const NOT: [&str; 5] =
        ["CCACHE_CC", "CCACHE_COMPILER", "CCACHE_PATH", "CCACHE_PREFIX", "CCACHE_PREFIX_CPP"];
    const NAMES: [&str; 16] = [
        "HOME",
        "USER",
        "LOGNAME",
        "TMPDIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_RUNTIME_DIR",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        "TZ",
    ];
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !NOT.contains(&name)
}

/// The host compilers that nvcc calls by default: the first compiles, the second is queried for its properties.
pub(crate) const HOST_COMPILERS: [&str; 2] = ["g++", "gcc"];

impl Environment {
    /// The environment of this process.
    pub fn from_process() -> Environment {
        let launcher = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
            .filter(|(name, _)| is_for_launchers(name))
            .collect();
        Environment { launcher, ..Environment::from_lookup(|name| std::env::var_os(name)) }
    }

    /// Builds the environment from `lookup`, without the variables for launchers.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<OsString>) -> Environment {
        let value = |name: &str| lookup(name).filter(|value| !value.is_empty());
        Environment {
            fourfold_nvcc: value("FOURFOLD_NVCC"),
            fourfold_cutlass: value("FOURFOLD_CUTLASS"),
            fourfold_toolchain: value("FOURFOLD_TOOLCHAIN"),
            fourfold_cache_dir: value("FOURFOLD_CACHE_DIR"),
            fourfold_cache_size: value("FOURFOLD_CACHE_SIZE"),
            fourfold_cache_tiers: value("FOURFOLD_CACHE_TIERS"),
            fourfold_device: value("FOURFOLD_DEVICE"),
            fourfold_cublaslt: value("FOURFOLD_CUBLASLT"),
            fourfold_allow_known_bad: value("FOURFOLD_ALLOW_KNOWN_BAD"),
            cuda_home: value("CUDA_HOME"),
            cutlass_path: value("CUTLASS_PATH"),
            xdg_cache_home: value("XDG_CACHE_HOME"),
            home: value("HOME"),
            path: value("PATH"),
            nvcc_ccbin: value("NVCC_CCBIN"),
            ld_library_path: value("LD_LIBRARY_PATH"),
            launcher: BTreeMap::new(),
            pip_variables: PIP_VARIABLES.iter().filter_map(|name| Some((*name, value(name)?))).collect(),
        }
    }

    /// Returns true if known-bad versions are allowed.
    pub fn allows_known_bad(&self) -> bool {
        self.fourfold_allow_known_bad.as_ref().is_some_and(|value| value != "0")
    }

    /// The host compilers that nvcc would use: those found, or those named.
    pub(crate) fn host_compilers(&self) -> Vec<PathBuf> {
        match self.nvcc_ccbin.as_ref().map(PathBuf::from) {
            None => HOST_COMPILERS.iter().filter_map(|name| self.find_program(name)).collect(),
            Some(chosen) if chosen.components().count() <= 1 => {
                self.find_program(&chosen).into_iter().collect()
            }
            // nvcc also accepts a compiler's folder.
            Some(chosen) if chosen.is_dir() => HOST_COMPILERS.iter().map(|name| chosen.join(name)).collect(),
            Some(chosen) => vec![chosen],
        }
    }

    /// The first program with this name on `PATH`. Skips relative entries, so that the result does not depend on the
    /// current folder.
    pub fn find_program(&self, name: impl AsRef<OsStr>) -> Option<PathBuf> {
        std::env::split_paths(self.path.as_ref()?)
            .filter(|folder| folder.is_absolute())
            .map(|folder| folder.join(name.as_ref()))
            .find(|file| is_program(file))
    }
}

/// Returns true for an executable file.
pub(crate) fn is_program(file: &Path) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;

    use super::*;

    #[test]
    fn every_variable_that_is_read_is_listed_once() {
        let read = RefCell::new(Vec::new());
        Environment::from_lookup(|name| {
            read.borrow_mut().push(name.to_owned());
            None
        });
        let mut listed: Vec<&str> = VARIABLES.iter().map(|variable| variable.name).collect();
        // Both the host compiler and python3 may need it.
        listed.extend(PIP_VARIABLES.iter().filter(|name| **name != "LD_LIBRARY_PATH"));
        let count = listed.len();
        listed.sort_unstable();
        listed.dedup();
        assert_eq!(listed.len(), count);
        let mut read = read.into_inner();
        // Read by tests and the standard library.
        read.extend(
            ["FOURFOLD_BLESS", "FOURFOLD_PROGRAMS", "FOURFOLD_TEST_OTHER", "TMPDIR"].map(str::to_owned),
        );
        read.sort_unstable();
        read.dedup();
        assert_eq!(read, listed);
    }

    #[test]
    fn launchers_get_their_settings_and_nothing_that_changes_what_is_compiled() {
        for name in ["HOME", "SCCACHE_DIR", "CCACHE_DIR", "AWS_ACCESS_KEY_ID", "https_proxy"] {
            assert!(is_for_launchers(name), "{name}");
        }
        let names = "PATH PTXAS_FLAGS CPATH INCLUDES LD_PRELOAD LD_LIBRARY_PATH NVCC_APPEND_FLAGS NVCC_CCBIN GCC_EXEC_PREFIX \
                     COMPILER_PATH CCACHE_PREFIX CCACHE_COMPILER CCACHE_CC";
        for name in names.split_whitespace() {
            assert!(!is_for_launchers(name), "{name}");
        }
    }

    #[test]
    fn every_option_of_the_package_client_has_its_variable() {
        for option in PIP_OPTIONS {
            let name = format!("PIP_{}", option.to_uppercase().replace('-', "_"));
            assert!(PIP_VARIABLES.contains(&&*name), "{name}");
        }
    }

    #[test]
    fn an_empty_value_counts_as_unset() {
        let environment = Environment::from_lookup(|name| (name != "HOME").then(OsString::new));
        assert_eq!(environment, Environment::default());
    }

    #[test]
    fn programs_are_found_in_absolute_folders_and_only_when_executable() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = ["first", "second"].map(|name| folder.path().join(name));
        for (place, mode) in [(&first, 0o644), (&second, 0o755)] {
            fs::create_dir(place).unwrap();
            fs::write(place.join("tool"), "#!/bin/sh\n").unwrap();
            fs::set_permissions(place.join("tool"), fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = std::env::join_paths([Path::new("."), &first, &second]).unwrap();
        let environment = Environment { path: Some(path), ..Environment::default() };
        assert_eq!(environment.find_program("tool"), Some(second.join("tool")));
        assert_eq!(environment.find_program("other"), None);
        assert_eq!(Environment::default().find_program("tool"), None);
    }
}
