//! A caller that waits for a permit of its own process holds no lock that other processes need.

use std::thread;
use std::time::Duration;

use fourfold_executor::Cancel;
use fourfold_executor::service::{CompileService, ServiceOptions};

use super::fixture::{Bench, good, request, stand_in};

#[test]
fn a_process_that_builds_one_at_a_time_locks_one_key_at_a_time() {
    let bench = Bench::with(&format!("sleep 0.2; exec '{}' \"$@\"", stand_in("nvcc.sh").display()));
    let service = CompileService::new(ServiceOptions { jobs: Some(1), ..bench.options() });
    let locked = || bench.names("locks").iter().filter(|name| !name.starts_with("slot-")).count();
    let most = thread::scope(|scope| {
        let builds: Vec<_> = (0..3)
            .map(|number| {
                let service = &service;
                scope.spawn(move || {
                    service.get(&request(service, &good(number)), &Cancel::new(), &|_| {}).unwrap();
                })
            })
            .collect();
        let mut most = 0;
        while !builds.iter().all(thread::ScopedJoinHandle::is_finished) {
            most = most.max(locked());
            thread::sleep(Duration::from_millis(1));
        }
        most
    });
    // The finished kernel may be stored while the next build begins.
    assert!((1..=2).contains(&most), "{most} keys were locked at once");
    assert_eq!(bench.builds(), 3);
}
