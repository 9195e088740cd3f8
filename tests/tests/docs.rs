//! The program in the README is a program, and does what the README says; its table of features is what there is.

use std::collections::BTreeMap;

use fourfold::DEFAULT_TARGET;
use fourfold::codegen::ScaledMmaSpec;
use fourfold_tests::dags::{DAG_TARGETS, features, kernels};
use fourfold_tests::{backend, repository};

#[test]
fn the_program_in_the_readme_is_one_kernel() {
    let readme = std::fs::read_to_string(repository().join("README.md")).expect("there is a README");
    let blocks: Vec<&str> =
        readme.split("```text\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let program = blocks.iter().find(|block| block.starts_with("fir 1")).expect("the README shows a program");
    let (program, _) = fourfold::ir::load(program)
        .unwrap_or_else(|errors| panic!("{}", errors[0].render("README.md", program)));
    let planned = backend(DEFAULT_TARGET).expect("the default target exists").plan(program);
    assert_eq!(planned.partition().kernels().count(), 1);
}

const BEGIN: &str =
    "<!-- features: FOURFOLD_BLESS=1 cargo test -p fourfold-tests --test docs rewrites this table -->\n";
const END: &str = "<!-- end of features -->";

/// Each feature with a program that has it on every family, so that no row can name a test that is none.
fn feature_table() -> String {
    let kernels: Vec<BTreeMap<String, ScaledMmaSpec>> =
        DAG_TARGETS.iter().map(|target| kernels(target).expect("the programs have kernels")).collect();
    let mut table =
        "| feature | sm_100a | sm_120a | sm_90a | on a Hopper | cpu |\n|---|---|---|---|---|---|\n"
            .to_owned();
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
    let path = repository().join("README.md");
    let readme = std::fs::read_to_string(&path).expect("there is a README");
    let (before, rest) = readme.split_once(BEGIN).expect("the README has the table");
    let (table, after) = rest.split_once(END).expect("the table ends");
    let expected = feature_table();
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{expected}{END}{after}"))
            .expect("the README can be written");
    } else {
        assert_eq!(table, expected, "FOURFOLD_BLESS=1 cargo test -p fourfold-tests --test docs rewrites it");
    }
}
