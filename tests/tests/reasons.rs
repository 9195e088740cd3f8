//! Every rejection code has a near miss among the fixtures and an entry in `docs/reasons.md`.

use fourfold::replay::explain;
use fourfold::scheduler::ReasonCode;
use fourfold_tests::repository;

#[test]
fn every_code_has_a_fixture_that_shows_it() {
    for code in ReasonCode::ALL {
        let file = repository().join(format!("fixtures/reject/{code}.fir"));
        let source = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let target = source
            .lines()
            .find_map(|line| line.strip_prefix("; test: partition "))
            .unwrap_or_else(|| panic!("{} is partitioned for a target", file.display()));
        let report = explain(&file, Some(target)).unwrap_or_else(|error| panic!("{}", error.render()));
        assert!(report.decisions.iter().any(|decision| decision.code == Some(code.as_str())), "{code}:\n{report}");
    }
}

#[test]
fn the_documentation_lists_every_code() {
    let mut text = String::from(
        "# Why an op is not in a kernel\n\n\
         The codes are stable: scripts may rely on them. `fourfold explain FILE` gives one for every op outside a kernel.\n\
         `fixtures/reject/CODE.fir` is a near miss for each.\n\n\
         | code | what to do |\n|---|---|\n",
    );
    for code in ReasonCode::ALL {
        text.push_str(&format!("| `{code}` | {} |\n", code.advice()));
    }
    let file = repository().join("docs/reasons.md");
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(&file, &text).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/reasons.md is out of date; run FOURFOLD_BLESS=1 cargo test --workspace");
}
