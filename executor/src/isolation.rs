//! The part of the caller's environment that no tool escapes: the system's folders, and the folder of a toolchain where
//! its name is plain.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use crate::environment::Environment;

/// The system's folders, which end the `PATH` of the tools.
pub(crate) const SYSTEM: &str = "/usr/local/bin:/usr/bin:/bin:/run/current-system/sw/bin";

/// Has a command see nothing of the caller's environment but the system's folders and `FOURFOLD_TOOLCHAIN`.
pub(crate) fn isolate(command: &mut Command, environment: &Environment) {
    command.env_clear().env("LC_ALL", "C").env("PATH", SYSTEM);
    name_toolchain(command, environment);
}

/// Passes `FOURFOLD_TOOLCHAIN` on. No tool of CUDA reads it; a script that was named in place of nvcc may use it to find
/// the nvcc that it starts.
pub(crate) fn name_toolchain(command: &mut Command, environment: &Environment) {
    if let Some(folder) = environment.fourfold_toolchain.as_ref().filter(|folder| is_plain(folder)) {
        command.env("FOURFOLD_TOOLCHAIN", folder);
    }
}

/// Returns whether no shell and no tool reads anything into a name but itself.
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
