//! Checks the documents against the repository: links, named files, programs, the table of epilogue features, the book.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use fourfold::DEFAULT_TARGET;
use fourfold::codegen::ScaledMmaSpec;
use fourfold_tests::dags::{DAG_TARGETS, features, kernels};
use fourfold_tests::{backend, repository};

/// Every file of the repository, relative to its root, without build outputs.
fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![repository()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
            let path = entry.expect("the entry can be read").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy();
            let built = name == "target" || path.ends_with("docs/book");
            if path.is_dir() && !built && !name.starts_with('.') {
                folders.push(path);
            } else if path.is_file() {
                files
                    .push(path.strip_prefix(repository()).expect("the file is in the repository").to_owned());
            }
        }
    }
    files
}

/// Every Markdown file, with its text.
fn documents() -> BTreeMap<PathBuf, String> {
    let documents = files().into_iter().filter(|file| file.extension().is_some_and(|it| it == "md"));
    let text = |file: &PathBuf| std::fs::read_to_string(repository().join(file)).expect("the file is text");
    documents.map(|file| (file.clone(), text(&file))).collect()
}

/// The lines of a document that are prose: fenced code is left out.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Splits a line at backquotes: the text outside code spans, and the spans.
fn spans(line: &str) -> (String, Vec<&str>) {
    let parts: Vec<&str> = line.split('`').collect();
    let outside = parts.iter().step_by(2).copied().collect::<Vec<_>>().join("`");
    (outside, parts.into_iter().skip(1).step_by(2).collect())
}

/// The targets of inline links and images in a line of prose.
fn links(line: &str) -> Vec<String> {
    let (outside, _) = spans(line);
    let targets = outside.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// The anchors of a document: its headings as GitHub and mdBook spell them in links.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for line in prose(text).filter(|line| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let count = seen.entry(slug.clone()).or_default();
        anchors.insert(if *count == 0 { slug } else { format!("{slug}-{count}") });
        *count += 1;
    }
    anchors
}

/// A path without `.` and `..`; `None` where it leaves the repository.
fn normalized(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::Normal(part) => normal.push(part),
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir if normal.pop() => {}
            _ => return None,
        }
    }
    Some(normal)
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_of_the_repository() {
    let documents = documents();
    let mut broken = Vec::new();
    for (file, text) in &documents {
        for link in prose(text).flat_map(links) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let folder = file.parent().unwrap_or(Path::new(""));
            let target = if path.is_empty() { Some(file.clone()) } else { normalized(&folder.join(path)) };
            let holds = target.is_some_and(|target| {
                let heading = |text: &String| anchor.is_empty() || anchors(text).contains(anchor);
                repository().join(&target).exists()
                    && documents.get(&target).map_or(anchor.is_empty(), heading)
            });
            if !holds {
                broken.push(format!("{}: {link}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// The paths that a code span names: `a/{b,c}.rs` names two.
fn expanded(span: &str) -> Vec<String> {
    let Some((before, rest)) = span.split_once('{') else { return vec![span.to_owned()] };
    let Some((choices, after)) = rest.split_once('}') else { return vec![span.to_owned()] };
    choices.split(',').flat_map(|choice| expanded(&format!("{before}{}{after}", choice.trim()))).collect()
}

/// Returns true if a path has a placeholder in capitals, as in `fixtures/reject/CODE.fir`.
fn is_pattern(path: &str) -> bool {
    path.contains(['*', '<', '…'])
        || path
            .split(['/', '.', '_'])
            .any(|part| part.len() > 2 && part.chars().all(|c| c.is_ascii_uppercase()))
}

/// The extensions of sources. A name with one of them is a file anywhere in the repository.
const SOURCES: [&str; 6] = [".rs", ".cu", ".cuh", ".j2", ".toml", ".fir"];

/// Returns true if a code span names a missing file or folder: a path from the root, or the name of a source.
fn names_nothing(span: &str, names: &BTreeSet<String>) -> bool {
    if span.contains([' ', '(', '|', '=', '"', ';']) || is_pattern(span) {
        return false;
    }
    match span.split_once('/') {
        Some((top, _)) => {
            let is_path = !top.is_empty() && !top.starts_with('.') && repository().join(top).is_dir();
            is_path && !repository().join(span).exists()
        }
        None => {
            let is_source = SOURCES.iter().any(|ending| span.len() > ending.len() && span.ends_with(ending));
            is_source && !names.contains(span)
        }
    }
}

#[test]
fn every_file_that_a_document_names_exists() {
    let names: BTreeSet<String> =
        files().iter().filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned())).collect();
    let mut missing = Vec::new();
    for (file, text) in documents() {
        // Lab notes and the changelog are historical records.
        if file.starts_with("docs/lab") || file == Path::new("CHANGELOG.md") {
            continue;
        }
        for line in prose(&text) {
            let named = spans(line).1.into_iter().flat_map(expanded);
            let absent = named.filter(|span| names_nothing(span, &names));
            missing.extend(absent.map(|path| format!("{}: {path}", file.display())));
        }
    }
    assert!(missing.is_empty(), "missing files:\n{}", missing.join("\n"));
}

#[test]
fn a_broken_name_link_or_anchor_would_be_found() {
    let names = BTreeSet::from(["grow.rs".to_owned()]);
    for (span, is_wrong) in [
        ("scheduler/src/grow.rs", false),
        ("scheduler/src/absent.rs", true),
        ("scheduler/absent/", true),
        ("grow.rs", false),
        ("absent.rs", true),
        ("fixtures/reject/CODE.fir", false),
        ("a/b", false),
        (".rs", false),
    ] {
        assert_eq!(names_nothing(span, &names), is_wrong, "{span}");
    }
    assert_eq!(expanded("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
    assert_eq!(links("see [a](b.md) and `[c](d.md)` and ![e](f.svg)"), ["b.md", "f.svg"]);
    let headings = "# A b\n```\n# no\n```\n## small_m, at last\n## A b\n";
    assert_eq!(anchors(headings).into_iter().collect::<Vec<_>>(), ["a-b", "a-b-1", "small_m-at-last"]);
    assert_eq!(normalized(Path::new("docs/a/../b.md")), Some(PathBuf::from("docs/b.md")));
    assert_eq!(normalized(Path::new("docs/../../b.md")), None);
}

#[test]
fn the_book_has_every_page_once() {
    let documents = documents();
    let summary = documents.get(Path::new("docs/SUMMARY.md")).expect("the book has a summary");
    let mut listed: Vec<PathBuf> =
        prose(summary).flat_map(links).filter_map(|link| normalized(&Path::new("docs").join(link))).collect();
    listed.sort();
    let pages = documents.keys().filter(|file| file.starts_with("docs") && !file.ends_with("SUMMARY.md"));
    assert_eq!(
        listed,
        pages.cloned().collect::<Vec<_>>(),
        "docs/SUMMARY.md lists every page under docs/ once"
    );
}

#[test]
fn the_readme_is_short() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("the README exists");
    assert!(readme.lines().count() <= 120, "the README has {} lines", readme.lines().count());
}

#[test]
fn every_program_in_the_documents_has_a_kernel() {
    let backend = backend(DEFAULT_TARGET).expect("the default target exists");
    let mut programs = 0;
    for (file, text) in documents() {
        let blocks = text.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next());
        for source in blocks.filter(|block| block.starts_with("fir 1")) {
            let (program, _) = fourfold::ir::load(source)
                .unwrap_or_else(|errors| panic!("{}", errors[0].render(&file.display().to_string(), source)));
            let planned = backend.plan(program);
            assert_eq!(planned.partition().kernels().count(), 1, "{}", file.display());
            programs += 1;
        }
    }
    assert!(programs > 0, "docs/reference/language.md shows a program");
}

const BEGIN: &str = "<!-- features: FOURFOLD_BLESS=1 cargo test -p fourfold-tests --test suite docs:: rewrites this table -->\n";
const END: &str = "<!-- end of features -->";

/// Each feature with a program that has it on every family, so that every row names an existing test.
fn feature_table() -> String {
    let kernels: Vec<BTreeMap<String, ScaledMmaSpec>> =
        DAG_TARGETS.iter().map(|target| kernels(target).expect("the programs have kernels")).collect();
    let mut table =
        "| feature | sm_100a | sm_120a | sm_90a | Hopper GPU | cpu |\n|---|---|---|---|---|---|\n".to_owned();
    for feature in features() {
        let has = |kernels: &BTreeMap<String, ScaledMmaSpec>, name: &String| {
            kernels.get(name).is_some_and(|spec| (feature.holds)(&spec.epilogue))
        };
        // The kernel with the fewest steps shows it best.
        let shown = kernels[0].iter().filter(|(name, _)| kernels.iter().all(|kernels| has(kernels, name)));
        let (name, _) = shown
            .min_by_key(|(name, spec)| (spec.epilogue.steps.len() + spec.epilogue.outputs.len(), name.len()))
            .unwrap_or_else(|| panic!("no program shows `{}`", feature.name));
        let program = program(name.split('.').next().unwrap_or(name));
        table += &format!(
            "| {} | `sm_100a/{name}` | `sm_120a/{name}` | `sm_90a/{name}` | `{program}` | `{program}.fir` |\n",
            feature.name
        );
    }
    table
}

/// The path of a program below `fixtures/`, without its ending.
fn program(name: &str) -> String {
    let files = fourfold_tests::fixtures().expect("fixtures can be listed");
    let file = files.iter().find(|file| file.file_stem().is_some_and(|stem| stem == name));
    let root = repository().join("fixtures");
    let below = file.and_then(|file| file.strip_prefix(&root).ok()).expect("a fixture has this name");
    below.with_extension("").display().to_string()
}

#[test]
fn the_table_of_features_names_the_tests_that_show_them() {
    let path = repository().join("docs/reference/epilogues.md");
    let page = std::fs::read_to_string(&path).expect("the page on epilogues exists");
    let (before, rest) = page.split_once(BEGIN).expect("the page has the table");
    let (table, after) = rest.split_once(END).expect("the table ends");
    let expected = feature_table();
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}"))
            .expect("the page can be written");
    } else {
        assert_eq!(
            table, expected,
            "FOURFOLD_BLESS=1 cargo test -p fourfold-tests --test suite docs:: rewrites it"
        );
    }
}
