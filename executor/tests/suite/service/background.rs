//! Kernels that are built in the background.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use fourfold_executor::service::{Event, Wait};
use fourfold_executor::{Cancel, PendingKernel};

use super::fixture::{Bench, good, request, stand_in};

fn slow(seconds: f64) -> String {
    format!("sleep {seconds}; exec '{}' \"$@\"", stand_in("nvcc.sh").display())
}

#[test]
fn a_pending_kernel_is_there_when_it_is_built_and_waiting_is_bounded() {
    let bench = Bench::with(&slow(1.5));
    let service = bench.service();
    let events = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&events);
    let pending = service.start(
        request(&service, &good(1)),
        Arc::new(move |event: &Event| seen.lock().unwrap().push(event.clone())),
    );
    assert!(pending.try_get().is_none());
    let kernel = PendingKernel::new(pending);
    let started = Instant::now();
    assert!(kernel.wait(Wait::Never).is_none());
    assert!(kernel.wait(Wait::AtMost(Duration::from_millis(50))).is_none());
    assert!(started.elapsed() < Duration::from_millis(1300), "{:?}", started.elapsed());
    let loaded = kernel.wait(Wait::Forever).unwrap().unwrap();
    assert_eq!(loaded.metadata().threads, 256);
    assert!(kernel.wait(Wait::Never).is_some() && kernel.outcome().unwrap().is_ok());
    let events = events.lock().unwrap();
    assert!(matches!(events.as_slice(), [Event::Started { .. }, Event::Finished { .. }]), "{events:?}");
    // A second request for the kernel is ready at once, even if its listener panics.
    let panics = |_: &Event| std::panic::resume_unwind(Box::new("listener"));
    let again = service.start(request(&service, &good(1)), Arc::new(panics));
    assert!(again.try_get().unwrap().is_ok());
    assert_eq!(bench.builds(), 1);
}

#[test]
fn dropping_what_nobody_else_wants_ends_its_build_with_all_its_processes() {
    let bench = Bench::with("sleep 100 & sleep 100");
    let service = bench.service();
    let [one, two] = [1, 1].map(|number| service.start(request(&service, &good(number)), Arc::new(|_| {})));
    while bench.builds() == 0 {
        thread::sleep(Duration::from_millis(5));
    }
    drop(one);
    thread::sleep(Duration::from_millis(150));
    assert!(two.try_get().is_none(), "somebody still wants it");
    drop(two);
    let started = Instant::now();
    while !bench.names("tmp").is_empty() {
        assert!(started.elapsed() < Duration::from_secs(5), "its folder stays");
        thread::sleep(Duration::from_millis(5));
    }
    bench.assert_no_processes();
}

#[test]
fn a_kernel_that_cannot_be_built_says_so_in_the_background_too() {
    let bench = Bench::with("echo 'kernel.cu(3): error: no'; exit 1");
    let service = bench.service();
    let kernel = PendingKernel::new(service.start(request(&service, &good(1)), Arc::new(|_| {})));
    let reason = kernel.wait(Wait::Forever).unwrap().unwrap_err();
    assert_eq!(reason.code, "compile_error");
    assert!(reason.message.contains("kernel.cu(3): error: no"), "{}", reason.message);
    // A concurrent request in the foreground gets the same kernel.
    let outcome = service.get(&request(&service, &good(1)), &Cancel::new(), &|_| {});
    assert_eq!(outcome.unwrap_err().code, "compile_error");
    assert_eq!(bench.builds(), 1);
}
