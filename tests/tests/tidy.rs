//! Holds the absences that ARCHITECTURE.md states, and a few rules of the house.

use std::path::{Path, PathBuf};

use fourfold_tests::repository;

/// A crate, the crates of ours that it may use, and words that its sources may not contain.
struct Rule {
    folder: &'static str,
    may_use: &'static [&'static str],
    absent: &'static [(&'static str, &'static str)],
}

const IO: [(&str, &str); 5] = [
    ("std::fs", "files are the executor's"),
    ("std::io", "I/O is the executor's"),
    ("std::net", "nothing uses the network"),
    ("std::process", "processes are the executor's"),
    ("std::env", "the environment is the executor's"),
];

fn rules() -> Vec<Rule> {
    vec![
        Rule {
            folder: "ir",
            may_use: &[],
            absent: &[("cudarc", "the IR knows no GPU"), ("CUTLASS", "nor its kernels")],
        },
        Rule {
            folder: "scheduler",
            may_use: &["fourfold-ir"],
            absent: &[
                ("cutlass", "targets are plain capabilities here"),
                ("CUTLASS", "targets are plain capabilities here"),
                ("cuda", "targets are plain capabilities here"),
                ("CUDA", "targets are plain capabilities here"),
            ],
        },
        Rule {
            folder: "codegen",
            may_use: &["fourfold-ir", "fourfold-scheduler"],
            absent: &[
                ("std::time", "the same plan gives the same bytes"),
                ("cudarc", "codegen knows no device"),
            ],
        },
        Rule {
            folder: "executor",
            may_use: &["fourfold-ir", "fourfold-scheduler", "fourfold-codegen"],
            absent: &[
                ("interpret(", "the fallback and the interpreter check each other"),
                ("interpret_op", "same"),
            ],
        },
    ]
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("the folder can be listed").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn all_rust_files() -> Vec<PathBuf> {
    ["src", "ir", "scheduler", "codegen", "executor", "tests", "bench"]
        .iter()
        .flat_map(|folder| rust_files(&repository().join(folder)))
        .collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn manifest(folder: &str) -> toml::Table {
    read(&repository().join(folder).join("Cargo.toml")).parse().expect("a manifest")
}

/// The part of a source before its unit tests, which may do what the crate may not.
fn without_tests<'a>(file: &Path, source: &'a str) -> &'a str {
    if is_test(file) { "" } else { source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source) }
}

fn is_test(file: &Path) -> bool {
    file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

#[test]
fn stated_absences_hold() {
    for rule in rules() {
        let src = repository().join(rule.folder).join("src");
        let files = rust_files(&src);
        assert!(files.len() > 1 || rule.folder == "codegen", "{} has sources", rule.folder);
        let io = if rule.folder == "executor" { &[][..] } else { &IO[..] };
        for file in files {
            let source = read(&file);
            for (word, why) in rule.absent.iter().chain(io) {
                assert!(
                    !without_tests(&file, &source).contains(word),
                    "{} says `{word}`: {why}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn crates_use_only_the_crates_below_them() {
    for rule in rules() {
        let manifest = manifest(rule.folder);
        let dependencies = manifest["dependencies"].as_table().expect("a table");
        for name in dependencies.keys().filter(|name| name.starts_with("fourfold")) {
            assert!(rule.may_use.contains(&name.as_str()), "{} may not use {name}", rule.folder);
        }
    }
}

#[test]
fn only_the_executor_has_unsafe_code() {
    for folder in ["src", "ir/src", "scheduler/src", "codegen/src", "tests/src", "bench/src"] {
        let lib = repository().join(folder).join("lib.rs");
        assert!(read(&lib).contains("#![forbid(unsafe_code)]"), "{} forbids unsafe code", lib.display());
    }
}

#[test]
fn no_crate_knows_an_embedding_host() {
    let hosts = ["tract", "burn", "candle", "luminal", "onnxruntime"];
    for folder in ["src", "ir", "scheduler", "codegen", "executor"] {
        for dependency in manifest(if folder == "src" { "." } else { folder })["dependencies"]
            .as_table()
            .expect("a table")
            .keys()
        {
            assert!(
                !hosts.iter().any(|host| dependency.starts_with(host)),
                "{folder} depends on {dependency}"
            );
        }
    }
}

#[test]
fn every_source_says_what_it_is_for_and_fits_a_screenful_of_screens() {
    const MOST_LINES: usize = 900;
    for file in all_rust_files() {
        let source = read(&file);
        assert!(source.starts_with("//!"), "{} begins with `//!`", file.display());
        assert!(source.lines().count() <= MOST_LINES, "{} is longer than {MOST_LINES} lines", file.display());
        for (number, line) in source.lines().enumerate() {
            // The text of a rendered error, pinned in a test, may end in spaces.
            assert!(
                line.trim_end() == line || is_test(&file),
                "{}:{} has trailing space",
                file.display(),
                number + 1
            );
        }
    }
}

#[test]
fn no_test_is_switched_off_or_expects_a_panic() {
    let off = ["#[ign", "ore]"].concat();
    let panics = ["#[should", "_panic"].concat();
    for file in all_rust_files() {
        let source = read(&file);
        assert!(!source.contains(&off) && !source.contains(&panics), "{}", file.display());
    }
}

#[test]
fn every_workspace_dependency_is_used() {
    let root = manifest(".");
    let declared = root["workspace"]["dependencies"].as_table().expect("a table");
    let used: Vec<String> = [".", "ir", "scheduler", "codegen", "executor", "tests", "bench"]
        .iter()
        .flat_map(|folder| {
            let manifest = manifest(folder);
            ["dependencies", "dev-dependencies"]
                .iter()
                .filter_map(|section| manifest.get(*section)?.as_table().cloned())
                .flat_map(|table| table.keys().cloned().collect::<Vec<_>>())
                .collect::<Vec<_>>()
        })
        .collect();
    for name in declared.keys() {
        assert!(used.contains(name), "{name} is declared and not used");
    }
}
