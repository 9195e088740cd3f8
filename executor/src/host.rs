//! The machine's name and the release of its GPU driver.

use std::fs;

/// Returns the machine's network name, if the system tells it.
pub fn host_name() -> Option<String> {
    first_word(&fs::read_to_string("/proc/sys/kernel/hostname").ok()?)
}

/// Returns the release of the NVIDIA kernel driver, such as `580.82.07`, if one is loaded and tells it.
pub fn driver_release() -> Option<String> {
    release(&fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

fn first_word(text: &str) -> Option<String> {
    text.split_whitespace().next().map(str::to_owned)
}

/// Finds the first number with a point on the line of the kernel module.
fn release(text: &str) -> Option<String> {
    let is_release = |word: &&str| {
        let parts: Vec<&str> = word.split('.').collect();
        parts.len() > 1 && parts.iter().all(|part| part.parse::<u32>().is_ok())
    };
    text.lines().next()?.split_whitespace().find(is_release).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_the_first_number_with_a_point() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build  (b@h)  Wed\n\
                    GCC version:  gcc version 13.3.0\n";
        assert_eq!(release(open).as_deref(), Some("580.82.07"));
        assert_eq!(
            release("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124").as_deref(),
            Some("570.124")
        );
        for unknown in ["", "NVRM version: 7", "NVRM\n580.82"] {
            assert_eq!(release(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn a_name_is_one_word() {
        assert_eq!(first_word("node-7\n").as_deref(), Some("node-7"));
        assert_eq!(first_word("\n"), None);
    }
}
