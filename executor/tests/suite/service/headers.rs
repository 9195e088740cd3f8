//! CUTLASS headers that change while a process runs: no kernel is stored under a key that does not describe it.

use std::fs;

use fourfold_executor::service::Event;

use super::fixture::{Bench, get, good, good_with_cutlass, request, stand_in};

#[test]
fn a_changed_header_is_another_key_for_the_next_service_of_the_same_process() {
    let bench = Bench::new();
    let header = bench.path("cutlass/include/gemm.h");
    fs::write(&header, "one").unwrap();
    let key = || request(&bench.service(), &good_with_cutlass(1)).key();
    let first = key();
    assert_eq!(key(), first);
    fs::write(&header, "another").unwrap();
    let second = key();
    assert_ne!(second, first);
    fs::write(bench.path("cutlass/tools/util/include/more.h"), "").unwrap();
    assert_ne!(key(), second);
    fs::remove_file(bench.path("cutlass/tools/util/include/more.h")).unwrap();
    fs::write(&header, "one").unwrap();
    assert_eq!(key(), first);
}

#[test]
fn a_kernel_without_cutlass_has_the_same_key_with_any_cutlass_and_with_none() {
    let bench = Bench::new();
    let key = |with_cutlass: bool| {
        let mut options = bench.options();
        if !with_cutlass {
            let mut toolchain = options.toolchain.as_deref().unwrap().clone();
            toolchain.cutlass = None;
            options.toolchain = Ok(std::sync::Arc::new(toolchain));
        }
        let service = fourfold_executor::service::CompileService::new(options);
        (request(&service, &good(1)).key(), get(&service, &good(1)).0, get(&service, &good_with_cutlass(2)).0)
    };
    let (first, built, _) = key(false);
    assert!(built.is_ok(), "{built:?}");
    fs::write(bench.path("cutlass/include/gemm.h"), "one").unwrap();
    let (second, ..) = key(true);
    assert_eq!(first, second);
    // A kernel that needs CUTLASS is not built without it.
    let (_, _, missing) = key(false);
    assert_eq!(missing.unwrap_err().code, "toolchain_missing");
}

#[test]
fn what_was_compiled_with_headers_that_have_changed_is_given_and_not_kept() {
    let bench = Bench::new();
    let header = bench.path("cutlass/include/gemm.h");
    fs::write(&header, "one").unwrap();
    let noted = |events: &[Event]| {
        events.iter().any(|event| matches!(event, Event::Note(note) if note.contains("headers")))
    };
    // Before the build.
    let service = bench.service();
    fs::write(&header, "another").unwrap();
    let (outcome, events) = get(&service, &good_with_cutlass(1));
    assert!(outcome.is_ok() && noted(&events), "{events:?}");
    // The header changes during the build, and is restored before its end.
    let body = format!(
        "echo more > '{0}'; printf another > '{0}'; exec '{1}' \"$@\"",
        header.display(),
        stand_in("nvcc.sh").display()
    );
    bench.compiler(&body);
    let (outcome, events) = get(&bench.service(), &good_with_cutlass(2));
    assert!(outcome.is_ok() && noted(&events), "{events:?}");
    // The failure of such a build says nothing about the current headers.
    bench.compiler(&format!("echo more >> '{}'; echo 'kernel.cu(1): error: no'; exit 1", header.display()));
    let (outcome, _) = get(&bench.service(), &good_with_cutlass(3));
    assert!(outcome.is_err());
    assert_eq!((bench.names("entries").len(), bench.names("failures").len()), (0, 0));
    bench.compiler(&format!("exec '{}' \"$@\"", stand_in("nvcc.sh").display()));
    let (outcome, events) = get(&bench.service(), &good_with_cutlass(3));
    assert!(outcome.is_ok() && !noted(&events), "{events:?}");
    assert_eq!(bench.names("entries").len(), 1);
}
