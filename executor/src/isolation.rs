//! Isolation of tools from the caller's environment, except the system's folders and `FOURFOLD_TOOLCHAIN`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::environment::Environment;

/// The system's folders, which end every tool's `PATH`.
pub(crate) const SYSTEM: &str = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin";

/// Clears a command's environment, except the system's folders and `FOURFOLD_TOOLCHAIN`.
pub(crate) fn isolate(command: &mut Command, environment: &Environment) {
    command.env_clear().env("LC_ALL", "C").env("PATH", SYSTEM);
    name_toolchain(command, environment);
}

/// Passes on `FOURFOLD_TOOLCHAIN`. CUDA's tools do not read it; a wrapper script used as nvcc may need it to find the
/// real nvcc.
pub(crate) fn name_toolchain(command: &mut Command, environment: &Environment) {
    if let Some(folder) = environment.fourfold_toolchain.as_ref().filter(|folder| is_plain(folder)) {
        command.env("FOURFOLD_TOOLCHAIN", folder);
    }
}

/// Returns true if a name has no special meaning to shells and tools.
pub(crate) fn is_plain(name: &OsStr) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._+-/".contains(&byte);
    !name.is_empty() && !name.as_bytes().starts_with(b"-") && name.as_bytes().iter().copied().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_mean_nothing_to_a_shell() {
        for name in ["g++", "/usr/bin/x86_64-linux-gnu-g++-12", "nvcc", "a_b.c"] {
            assert!(is_plain(name.as_ref()), "{name}");
        }
        for name in
            ["", "-o", "a b", "a,b", "a:b", "$a", "`a`", "a\"b", "a'b", "a\\b", "a\nb", "a;b", "ä", "~a"]
        {
            assert!(!is_plain(name.as_ref()), "{name}");
        }
        assert!(!is_plain(OsStr::from_bytes(b"a\xFF")));
    }
}
