//! Every reason code has a near miss among the fixtures and an entry in `docs/reference/reasons.md`. Every failure code
//! has an entry in `docs/reference/failures.md`, and every error has a fixture.

use fourfold::executor::service::{FAILURE_CODES, FailureCode};
use fourfold::ir::VerifyErrorKind;
use fourfold::scheduler::ReasonCode;
use fourfold_cli::replay::explain;
use fourfold_tests::repository;

#[test]
fn every_code_has_a_fixture_that_shows_it() {
    for code in ReasonCode::ALL {
        let file = repository().join(format!("fixtures/reject/{code}.fir"));
        let source =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let target = source
            .lines()
            .find_map(|line| line.strip_prefix("; test: partition "))
            .unwrap_or_else(|| panic!("{} has no partition test", file.display()));
        let (target, emulated) = match target.split_once(' ') {
            Some((target, "emulated")) => (target, true),
            _ => (target, false),
        };
        let report = explain(&file, &fourfold_tests::options(target).emulate(emulated))
            .unwrap_or_else(|error| panic!("{}", error.render()));
        assert!(
            report.decisions.iter().any(|decision| decision.code == Some(code.as_str())),
            "{code}:\n{report}"
        );
    }
}

#[test]
fn the_documentation_lists_every_code() {
    let mut text = String::from(
        "# Reason codes\n\n\
         Every op that the plan leaves outside kernels has one of these codes. `fourfold explain FILE` prints them. The codes\n\
         are stable: scripts may rely on them. `fixtures/reject/CODE.fir` is a near miss for each.\n\n\
         A segment that did not run as planned has another code: one of the run, such as `no_device` or `device_memory`, or a\n\
         [failure code](failures.md) of its build.\n\n\
         | code | what to do |\n|---|---|\n",
    );
    for code in ReasonCode::ALL {
        text.push_str(&format!("| `{code}` | {} |\n", code.advice()));
    }
    let file = repository().join("docs/reference/reasons.md");
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(&file, &text).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/reference/reasons.md is out of date; run FOURFOLD_BLESS=1 cargo test");
}

#[test]
fn the_documentation_lists_every_failure() {
    let mut text = String::from(
        "# Failure codes\n\n\
         A kernel that was not found, built or loaded has one of these codes, and its segment runs on the fallback. Reports add\n\
         the compiler's message and the party at fault. The codes are stable.\n\n\
         A failure that depends on the kernel or the compiler is remembered. The same compiler does not try that kernel again\n\
         unless `--retry` is given. If the compiler's output names no error in the source, the build is\n\
         retried once before the failure is recorded.\n\n\
         Two kinds of failures are never remembered: failures of builds with `--launcher`, and transient failures (time,\n\
         memory, disk space, processes, an unreachable file system, a crash).\n\n\
         | code | when | what to do | may be remembered |\n|---|---|---|---|\n",
    );
    for FailureCode { code, meaning, remedy, lasts } in FAILURE_CODES {
        let remembered = if *lasts { "yes" } else { "no" };
        text.push_str(&format!("| `{code}` | {meaning} | {remedy} | {remembered} |\n"));
    }
    let file = repository().join("docs/reference/failures.md");
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(&file, &text).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/reference/failures.md is out of date; run FOURFOLD_BLESS=1 cargo test");
}

/// Errors that no text can cause: the parser rejects it earlier with its own code, or the tables of a hand-built
/// module disagree. The verifier's own tests show each.
const ONLY_BUILT_BY_HAND: [(&str, &str); 8] = [
    ("bad_name", "the grammar allows no other names"),
    ("duplicate_name", "the parser reports duplicate_value"),
    ("input_table", "the parser keeps the tables"),
    ("result_table", "the parser keeps the tables"),
    ("unknown_operand", "the parser reports unknown_value"),
    ("unknown_output", "the parser reports unknown_value"),
    ("unknown_symbol", "the parser interns symbols"),
    ("use_before_definition", "the parser reports unknown_value"),
];

#[test]
fn every_error_has_a_fixture_that_shows_it() {
    for code in VerifyErrorKind::CODES {
        let by_hand = ONLY_BUILT_BY_HAND.iter().any(|(known, _)| known == code);
        let file = repository().join(format!("fixtures/errors/{code}.fir"));
        assert!(
            file.exists() != by_hand,
            "{} must exist exactly if {code} is not in ONLY_BUILT_BY_HAND",
            file.display()
        );
    }
    let folder = repository().join("fixtures/errors");
    for entry in std::fs::read_dir(&folder).expect("the folder can be listed") {
        let file = entry.expect("the folder can be listed").path();
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        // A truncated program is a syntax error like any other, but the most common one.
        let code = if name == "truncated" { "syntax".to_owned() } else { name };
        let source =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert!(source.contains(&format!("; error[{code}]: ")), "{} expects {code}", file.display());
    }
}
