//! Tool versions known to build wrong kernels, as data.
//!
//! A listed version is not used for a listed target. Such a tool is skipped in the search, rejected when named, and
//! its cached kernels are rebuilt. `--allow-known-bad` and `FOURFOLD_ALLOW_KNOWN_BAD` disable these rules.

use std::fmt;

use super::version::Version;

/// A versioned tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// The CUDA compiler, with `ptxas`.
    Nvcc,
    /// The CUTLASS headers.
    Cutlass,
}

impl Tool {
    /// The name in messages and reports.
    pub fn name(self) -> &'static str {
        match self {
            Tool::Nvcc => "nvcc",
            Tool::Cutlass => "CUTLASS",
        }
    }
}

/// A range of versions known to be bad for some targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownBad {
    /// The tool.
    pub tool: Tool,
    /// The first bad version.
    pub from: Version,
    /// The first good version after it.
    pub below: Version,
    /// The affected targets. Both a kernel's target and its compiled architecture matter: an emulated sm_120a kernel
    /// is affected by entries for sm_120a and for sm_90a.
    pub targets: &'static [&'static str],
    /// The symptom.
    pub symptom: &'static str,
    /// The source of the report.
    pub source: &'static str,
}

/// The consumer and workstation Blackwell targets.
const SM120: &[&str] = &["sm_120a", "sm_121a"];

/// All known-bad versions.
pub const KNOWN_BAD: &[KnownBad] = &[
    KnownBad {
        tool: Tool::Nvcc,
        from: Version(0, 0, 0),
        below: Version(13, 1, 115),
        targets: SM120,
        symptom: "CuTe GEMMs can silently compute wrong results on GB202",
        source: "CUDA 13.1 Update 1 release notes, resolved issues",
    },
    KnownBad {
        tool: Tool::Nvcc,
        from: Version(13, 0, 0),
        below: Version(13, 1, 0),
        targets: &["sm_90a"],
        symptom: "ptxas can write to invalid shared memory",
        source: "fla-org/flash-linear-attention#1262",
    },
    KnownBad {
        tool: Tool::Nvcc,
        from: Version(13, 3, 0),
        below: Version(13, 4, 0),
        targets: SM120,
        symptom: "ptxas can emit an unaligned STL.128",
        source: "NVIDIA/cutlass#3581",
    },
    KnownBad {
        tool: Tool::Cutlass,
        from: Version(0, 0, 0),
        below: Version(4, 4, 0),
        targets: SM120,
        symptom: "scale factors in shared memory can be misaligned",
        source: "NVIDIA/cutlass#2905, NVIDIA/cutlass#2906",
    },
];

impl KnownBad {
    /// Returns true if a version is in the range.
    pub fn covers(&self, version: Version) -> bool {
        (self.from..self.below).contains(&version)
    }

    /// Returns true if a target (`sm_120a` or `120a`) is affected.
    pub fn is_about(&self, target: &str) -> bool {
        let name = |target: &str| target.strip_prefix("sm_").unwrap_or(target).to_owned();
        self.targets.iter().any(|bad| name(bad) == name(target))
    }
}

impl fmt::Display for KnownBad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KnownBad { targets, symptom, source, .. } = self;
        write!(f, "known to be bad for {}: {symptom} ({source})", targets.join(", "))
    }
}

/// The first entry of [`KNOWN_BAD`] that covers this version of a tool and any of these targets.
pub fn known_bad<'t>(
    tool: Tool,
    version: Version,
    targets: impl IntoIterator<Item = &'t str>,
) -> Option<&'static KnownBad> {
    let mut listed = KNOWN_BAD.iter().filter(|bad| bad.tool == tool && bad.covers(version));
    let targets: Vec<&str> = targets.into_iter().collect();
    listed.find(|bad| targets.iter().any(|target| bad.is_about(target)))
}

/// All entries that cover this version of a tool, for any target.
pub fn all_known_bad(tool: Tool, version: Version) -> impl Iterator<Item = &'static KnownBad> {
    KNOWN_BAD.iter().filter(move |bad| bad.tool == tool && bad.covers(version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_where_the_fix_begins() {
        let nvcc = |text: &str, target: &'static str| {
            known_bad(Tool::Nvcc, Version::parse(text).expect("a version"), [target]).is_some()
        };
        for (version, bad) in [
            ("12.8.93", ["sm_120a", "sm_121a"].as_slice()),
            ("13.0.88", &["sm_90a", "sm_120a", "sm_121a"]),
            ("13.1.80", &["sm_120a", "sm_121a"]),
            ("13.1.115", &[]),
            ("13.2.86", &[]),
            ("13.3.73", &["sm_120a", "sm_121a"]),
            ("13.4.92", &[]),
        ] {
            for target in ["sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"] {
                assert_eq!(nvcc(version, target), bad.contains(&target), "{version} {target}");
            }
        }
        let cutlass = |version, target: &'static str| known_bad(Tool::Cutlass, version, [target]).is_some();
        assert!(cutlass(Version(4, 3, 6), "120a") && !cutlass(Version(4, 4, 0), "120a"));
        assert!(!cutlass(Version(4, 2, 0), "sm_100a"));
    }

    #[test]
    fn the_documentation_lists_every_entry() {
        let mut text = String::from(
            "# Versions that are known to build wrong kernels\n\n\
             A listed version is not used for its targets:\n\n\
             - The search for tools skips it.\n\
             - Naming it with an option or a variable is an error.\n\
             - Cached kernels that were built with it are rebuilt.\n\n\
             `--allow-known-bad` and `FOURFOLD_ALLOW_KNOWN_BAD` allow listed versions. For kernels that run emulated\n\
             on Hopper, the entries of sm_90a apply too.\n\n\
             | tool | from | before | targets | symptom | source |\n|---|---|---|---|---|---|\n",
        );
        for KnownBad { tool, from, below, targets, symptom, source } in KNOWN_BAD {
            let from = if *from == Version(0, 0, 0) { "any".to_owned() } else { from.to_string() };
            let (tool, targets) = (tool.name(), targets.join(", "));
            text += &format!("| {tool} | {from} | {below} | {targets} | {symptom} | {source} |\n");
        }
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/known_bad.md");
        if std::env::var_os("FOURFOLD_BLESS").is_some() {
            std::fs::write(&file, &text).unwrap();
        }
        let found = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(found == text, "docs/reference/known_bad.md is out of date; run FOURFOLD_BLESS=1 cargo test");
    }

    #[test]
    fn an_emulated_kernel_counts_for_both_of_its_targets() {
        let bad = |version| known_bad(Tool::Nvcc, version, ["sm_120a", "90a"]).map(|bad| bad.targets);
        assert_eq!(bad(Version(13, 1, 80)), Some(SM120));
        assert!(known_bad(Tool::Nvcc, Version(13, 0, 88), ["sm_100a", "90a"]).is_some());
        assert_eq!(bad(Version(13, 1, 115)), None);
    }

    #[test]
    fn every_entry_says_what_is_wrong_and_who_says_so() {
        for bad in KNOWN_BAD {
            assert!(bad.from < bad.below && !bad.targets.is_empty(), "{bad:?}");
            assert!(!bad.symptom.is_empty() && !bad.source.is_empty(), "{bad:?}");
            assert!(bad.targets.iter().all(|target| target.starts_with("sm_")), "{bad:?}");
        }
    }
}
