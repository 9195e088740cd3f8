//! Checks the absences that docs/internals/architecture.md states, and a few rules of the project.

mod modules;

use std::path::{Path, PathBuf};

use fourfold_tests::repository;

/// A crate, the workspace crates that it may use, and words that its sources must not contain.
struct Rule {
    folder: &'static str,
    may_use: &'static [&'static str],
    absent: &'static [(&'static str, &'static str)],
}

const IO: [(&str, &str); 6] = [
    ("std::fs", "only the executor accesses files"),
    ("std::io", "only the executor does I/O"),
    ("std::net", "no crate uses the network"),
    ("std::process", "only the executor starts processes"),
    ("std::env", "only the executor reads the environment"),
    ("std::time", "results depend on the arguments only"),
];

/// The members of the workspace, with the root package as `.`.
const PACKAGES: [&str; 11] = [
    ".",
    "ir",
    "scheduler",
    "codegen",
    "executor",
    "import",
    "tuner",
    "cli",
    "tests",
    "examples/embed",
    "bench",
];

/// The hosts, which have lints of their own: they consist of the border to another system.
fn hosts() -> Vec<String> {
    let members = manifest(".")["workspace"]["members"].as_array().expect("an array").clone();
    let members = members.iter().map(|member| member.as_str().expect("a folder").to_owned());
    members.filter(|member| member.starts_with("hosts/")).collect()
}

fn rules() -> Vec<Rule> {
    vec![
        Rule {
            folder: "ir",
            may_use: &[],
            absent: &[
                ("cudarc", "the IR is independent of GPUs"),
                ("CUTLASS", "the IR is independent of kernels"),
            ],
        },
        Rule {
            folder: "scheduler",
            may_use: &["fourfold-ir"],
            absent: &[
                ("cutlass", "the scheduler knows targets only by their capabilities"),
                ("CUTLASS", "the scheduler knows targets only by their capabilities"),
                ("cuda", "the scheduler knows targets only by their capabilities"),
                ("CUDA", "the scheduler knows targets only by their capabilities"),
            ],
        },
        Rule {
            folder: "codegen",
            may_use: &["fourfold-ir", "fourfold-scheduler"],
            absent: &[("cudarc", "codegen does not access devices")],
        },
        Rule {
            folder: "executor",
            may_use: &["fourfold-ir", "fourfold-scheduler", "fourfold-codegen"],
            absent: &[],
        },
        Rule {
            folder: "import",
            may_use: &["fourfold-ir", "fourfold-executor"],
            absent: &[("unsafe ", "files are read through the executor")],
        },
        Rule {
            folder: "tuner",
            may_use: &["fourfold-ir", "fourfold-scheduler", "fourfold-codegen", "fourfold-executor"],
            absent: &[],
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
    ["src", "ir", "scheduler", "codegen", "executor", "import", "tuner", "cli", "tests", "bench", "hosts"]
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

/// Returns a source up to its unit tests, which may do things the crate may not.
fn without_tests<'a>(file: &Path, source: &'a str) -> &'a str {
    if is_test(file) { "" } else { source.split("#[cfg(test)]\nmod tests {").next().unwrap_or(source) }
}

fn is_test(file: &Path) -> bool {
    // `repository()` itself goes through `tests/`.
    let file = file.strip_prefix(repository()).unwrap_or(file);
    file.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "tests.rs")
}

/// Returns the lines that are not comments.
fn code(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter(|line| !line.trim_start().starts_with("//"))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the members of `std` that a source names, as `std::member`: after `std::`, and in the groups
/// `std::{..}`, which may span lines. `std` under another name is `std as`.
fn std_members(source: &str) -> Vec<String> {
    let code: String = code(source).flat_map(|line| [line, " "]).collect();
    let mut members = Vec::new();
    for (at, _) in code.match_indices("std") {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        if code[..at].ends_with(is_part) || code[at + 3..].starts_with(is_part) {
            continue;
        }
        let rest = code[at + 3..].trim_start();
        if rest.starts_with("as ") {
            members.push("std as".to_owned());
        }
        let Some(rest) = rest.strip_prefix("::") else { continue };
        match rest.trim_start().strip_prefix('{') {
            None => members.extend(first_word(rest).map(|word| format!("std::{word}"))),
            Some(group) => {
                members.extend(group_members(group).into_iter().map(|word| format!("std::{word}")))
            }
        }
    }
    members
}

/// Returns the word, or the `*`, at the beginning of a path.
fn first_word(path: &str) -> Option<&str> {
    let path = path.trim_start();
    if path.starts_with('*') { Some("*") } else { words(path).next() }
}

/// Returns the first word of each part of `a, b::{c, d}, e as f}`; `self as x` renames the crate itself.
fn group_members(group: &str) -> Vec<&str> {
    let (mut members, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in group.char_indices() {
        let ends = depth == 0 && matches!(c, ',' | '}');
        if ends {
            members.extend(first_word(&group[start..at]));
            start = at + 1;
        }
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            _ => {}
        }
    }
    members
}

#[test]
fn members_of_std_are_seen_however_they_are_imported() {
    for (source, expected) in [
        ("use std::fmt;", &["std::fmt"][..]),
        ("use std::{fs, io};", &["std::fs", "std::io"]),
        (
            "use std::{\n    collections::{HashMap, HashSet},\n    fs as files,\n};",
            &["std::collections", "std::fs"],
        ),
        ("use ::std::{fmt, io::{self, Read}, net::TcpStream};", &["std::fmt", "std::io", "std::net"]),
        ("let x = std :: env::var(name); nonstd::fs", &["std::env"]),
        ("use std as s;", &["std as"]),
        ("use std::{self as s, fmt};", &["std::self", "std::fmt"]),
        ("use std::*;", &["std::*"]),
        ("use std::{fmt, *};", &["std::fmt", "std::*"]),
        ("// use std::{fs, io};", &[]),
    ] {
        assert_eq!(std_members(source), expected, "{source}");
    }
}

#[test]
fn sources_are_told_from_tests() {
    let is_test = |file: &str| is_test(&repository().join(file));
    assert!(is_test("tests/tests/suite/main.rs") && is_test("executor/src/fallback/tests.rs"));
    assert!(!is_test("ir/src/lib.rs") && !is_test("src/lib.rs") && !is_test("scheduler/src/check.rs"));
}

#[test]
fn the_fallback_never_calls_the_interpreter() {
    let calls =
        |source: &str| code(source).flat_map(words).any(|word| ["interpret", "interpret_op"].contains(&word));
    assert!(calls("use fourfold_ir::{Tensor, interpret as i};") && calls("fourfold_ir::interpret_op(x)"));
    assert!(!calls("/// As interpret does.\nlet interpreted = 1;"));
    for file in rust_files(&repository().join("executor/src")) {
        let source = read(&file);
        assert!(
            !calls(without_tests(&file, &source)),
            "{}: the fallback and the interpreter check each other",
            file.display()
        );
    }
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
            let source = without_tests(&file, &source);
            for (word, why) in rule.absent {
                assert!(!source.contains(word), "{} contains `{word}`: {why}", file.display());
            }
            let members = std_members(source);
            let hidden = ["std as", "std::self", "std::*"].map(|how| (how, "it hides the imported members"));
            for (member, why) in io.iter().chain(&hidden) {
                assert!(
                    !members.iter().any(|used| used == member),
                    "{} uses `{member}`: {why}",
                    file.display()
                );
            }
        }
    }
}

/// Files named by users may be devices, pipes or endless; only `executor::files` handles them.
#[test]
fn the_facade_and_the_command_line_open_no_files() {
    let files: Vec<PathBuf> =
        ["src", "cli/src"].iter().flat_map(|folder| rust_files(&repository().join(folder))).collect();
    assert!(
        files.iter().any(|file| file.ends_with("bin/fourfold/main.rs")),
        "the list includes the command line"
    );
    for file in files {
        let source = read(&file);
        let members = std_members(without_tests(&file, &source));
        for member in ["std::fs", "std::net", "std as", "std::self", "std::*"] {
            assert!(
                !members.iter().any(|used| used == member),
                "{} uses `{member}`: only the executor accesses files",
                file.display()
            );
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
    for folder in [
        "src",
        "ir/src",
        "scheduler/src",
        "codegen/src",
        "import/src",
        "tuner/src",
        "cli/src",
        "tests/src",
        "bench/src",
    ] {
        let lib = repository().join(folder).join("lib.rs");
        assert!(read(&lib).contains("#![forbid(unsafe_code)]"), "{} forbids unsafe code", lib.display());
    }
    // Binaries, benches and integration tests are separate crates, which only the lint covers.
    let lints = manifest(".")["workspace"]["lints"]["rust"].clone();
    assert_eq!(lints["unsafe_code"].as_str(), Some("deny"), "the workspace denies unsafe code");
    for package in PACKAGES {
        let manifest = manifest(package);
        let inherits = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        assert_eq!(
            inherits.and_then(toml::Value::as_bool),
            Some(true),
            "{package} has the workspace's lints"
        );
    }
    // An allocator needs unsafe code, and so does launching prepared programs, which take addresses, and loading a library
    // without its device code.
    let allowed = [
        "executor/src/lib.rs",
        "bench/examples/launch/main.rs",
        "executor/tests/out_of_memory.rs",
        "executor/tests/suite/build.rs",
        "executor/tests/suite/classes/mod.rs",
        "executor/tests/suite/device/mod.rs",
        "tests/tests/gpu.rs",
        "tests/tests/kernels/host.rs",
        "tests/tests/programs.rs",
    ]
    .map(|path| repository().join(path));
    let allow = ["allow(unsafe", "_code"].concat();
    for file in all_rust_files() {
        let source = read(&file);
        assert_eq!(
            source.contains(&allow),
            allowed.contains(&file),
            "{} must allow unsafe code exactly if it is in the list",
            file.display()
        );
    }
    assert!(
        read(&allowed[0]).contains(&format!("#![{allow}, reason = ")),
        "the executor allows unsafe code without a reason"
    );
}

#[test]
fn hosts_that_embed_the_library_get_no_command_line_solver_or_plotting() {
    let dependencies = |folder: &str| manifest(folder)["dependencies"].as_table().expect("a table").clone();
    let library = dependencies(".");
    let others: Vec<&String> = library.keys().filter(|name| !name.starts_with("fourfold-")).collect();
    assert_eq!(others, ["serde", "thiserror"]);
    for command in ["fourfold-tuner", "fourfold-cli"] {
        assert!(!library.contains_key(command), "the library uses {command}");
    }
    assert_eq!(dependencies("cli")["fourfold-tuner"]["optional"].as_bool(), Some(true));
}

#[test]
fn no_crate_knows_an_embedding_host() {
    let own: Vec<String> = hosts().iter().map(|host| package_name(host)).collect();
    assert!(own.contains(&"fourfold-capi".to_owned()), "{own:?}");
    let others = ["tract", "burn", "candle", "luminal", "onnxruntime", "ort", "pyo3"];
    for folder in PACKAGES {
        for section in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for name in manifest(folder).get(section).and_then(|it| it.as_table()).into_iter().flatten() {
                let is_host = own.contains(name.0) || others.iter().any(|host| name.0.starts_with(host));
                assert!(!is_host, "{folder} depends on {}", name.0);
            }
        }
    }
}

fn package_name(folder: &str) -> String {
    manifest(folder)["package"]["name"].as_str().expect("a name").to_owned()
}

#[test]
fn every_source_says_what_it_is_for_and_fits_a_screenful_of_screens() {
    const MOST_LINES: usize = 900;
    for file in all_rust_files() {
        let source = read(&file);
        assert!(source.starts_with("//!"), "{} begins with `//!`", file.display());
        assert!(source.lines().count() <= MOST_LINES, "{} has more than {MOST_LINES} lines", file.display());
        for (number, line) in source.lines().enumerate() {
            // The text of a rendered error, pinned in a test, may end in spaces.
            assert!(
                line.trim_end() == line || is_test(&file),
                "{}:{} has trailing white space",
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
    let packages = PACKAGES.map(str::to_owned).into_iter().chain(hosts());
    let used: Vec<String> = packages
        .flat_map(|folder| {
            let manifest = manifest(&folder);
            ["dependencies", "dev-dependencies"]
                .iter()
                .filter_map(|section| manifest.get(*section)?.as_table().cloned())
                .flat_map(|table| table.keys().cloned().collect::<Vec<_>>())
                .collect::<Vec<_>>()
        })
        .collect();
    for name in declared.keys() {
        assert!(used.contains(name), "{name} is declared, but not used");
    }
}

#[test]
fn no_crate_has_a_cycle_of_modules() {
    let roots = ["ir", "scheduler", "codegen", "executor", "import", "tuner", "cli", "."].map(str::to_owned);
    let roots = roots.into_iter().chain(hosts()).map(|folder| format!("{folder}/src/lib.rs"));
    let binary = "cli/src/bin/fourfold/main.rs".to_owned();
    let mut cycles = Vec::new();
    for root in roots.chain([binary]) {
        let read = modules::Crate::read(&repository().join(&root)).unwrap_or_else(|error| panic!("{error}"));
        cycles.extend(read.cycles().into_iter().map(|cycle| format!("{root}, {cycle}")));
    }
    assert!(cycles.is_empty(), "cycles of modules:\n{}", cycles.join("\n"));
}
