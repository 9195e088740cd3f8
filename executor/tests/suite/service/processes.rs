//! Many processes request the same kernels: each kernel is built once, and every process gets it.

use std::path::Path;

use fourfold_executor::Cancel;
use fourfold_executor::service::CompileService;

use super::fixture::{Bench, good, options, other, request, role, source};

const PROCESSES: usize = 64;
const KEYS: usize = 4;

#[test]
fn sixty_four_processes_that_want_four_kernels_cause_four_builds() {
    let bench = Bench::new();
    let folder = bench.folder.path().to_str().unwrap();
    let children: Vec<_> = (0..PROCESSES)
        .map(|index| other(test_name!(one_of_many), &[folder, &index.to_string()]).spawn().unwrap())
        .collect();
    for (index, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "process {index}: {said}");
        assert_eq!(said.matches("kernel: ").count(), KEYS, "process {index}: {said}");
    }
    assert_eq!(bench.builds(), KEYS);
    assert_eq!(bench.names("entries").len(), KEYS);
    bench.assert_clean();
}

/// The child process: gets every kernel, in its own order, and calls it.
#[test]
fn one_of_many() {
    let Some(words) = role() else { return };
    let service = CompileService::new(options(Path::new(&words[0])));
    let index: usize = words[1].parse().unwrap();
    for number in 0..KEYS {
        let request = request(&service, &good((index + number) % KEYS));
        let built = service.get(&request, &Cancel::new(), &|_| {}).expect("a kernel");
        let kernel = built.kernel().expect("it loads");
        println!("kernel: {} {}", request.key(), kernel.metadata().tile[0]);
    }
}

#[test]
fn processes_that_wait_for_a_build_share_its_failure_also_one_that_does_not_last() {
    let bench = Bench::with("sleep 0.5; echo 'cicc: out of memory'; exit 1");
    let folder = bench.folder.path().to_str().unwrap();
    let children: Vec<_> =
        (0..8).map(|_| other(test_name!(one_that_fails), &[folder]).spawn().unwrap()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.contains("failure: out_of_memory cicc: out of memory"), "{said}");
    }
    // Processes that waited for the failed build share its failure. One that starts late may try again.
    assert!((1..=2).contains(&bench.builds()), "{}", bench.builds());
    let (outcome, _) = super::fixture::get(&bench.service(), &source("compile", 0, ""));
    let before = bench.builds();
    assert_eq!(outcome.unwrap_err().code, "out_of_memory");
    assert!(before >= 2, "it was tried again");
    bench.assert_clean();
}

#[test]
fn one_that_fails() {
    let Some(words) = role() else { return };
    let service = CompileService::new(options(Path::new(&words[0])));
    let outcome = service.get(&request(&service, &source("compile", 0, "")), &Cancel::new(), &|_| {});
    let failure = outcome.expect_err("it fails");
    println!("failure: {} {}", failure.code, failure.first_error.as_deref().unwrap_or_default());
}
