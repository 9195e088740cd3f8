//! Processes that are killed while they build: no other process blocks or uses their leftovers.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fourfold_executor::Cancel;
use fourfold_executor::service::{CompileService, Event};

use super::fixture::{Bench, get, good, options, other, request, role};

/// The number of builds that are killed.
const KILLS: usize = if cfg!(feature = "slow") { 1000 } else { 100 };
/// The number of processes that build concurrently, each with its own cache.
const WORKERS: usize = 10;
/// The interval, in builds, at which each process measures a complete build.
const MEASURED: usize = 20;

/// A compiler that takes a few hundredths of a second, and writes the library in pieces.
fn compiler(bench: &Bench, library: &Path) {
    let library = library.display();
    bench.compiler(&format!(
        "sleep 0.01; head -c 5000 '{library}' > kernel.so; sleep 0.01; cp '{library}' kernel.so; sleep 0.005"
    ));
}

#[test]
fn builds_killed_at_random_points_leave_nothing_that_is_wrong_or_stuck() {
    let first = Bench::new();
    let library = get(&first.service(), &good(0)).0.unwrap().artifact().library().to_owned();
    let seed = Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20;
    println!("seed {seed}");
    let (next, survived) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let started = Instant::now();
    thread::scope(|scope| {
        for worker in 0..WORKERS {
            let (next, survived, library) = (&next, &survived, &library);
            scope.spawn(move || {
                let bench = Bench::with("");
                compiler(&bench, library);
                let mut random =
                    Random(seed.wrapping_add(worker as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
                let mut whole = Duration::ZERO;
                for turn in 0.. {
                    if turn % MEASURED == 0 {
                        whole = whole_build(&bench, KILLS + turn);
                    }
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= KILLS {
                        break;
                    }
                    let after = whole.mul_f64(random.fraction());
                    let ended = kill_once(&bench, number, after);
                    if ended {
                        // The machine is less busy than when the complete build was measured.
                        whole = after;
                    }
                    survived.fetch_add(usize::from(ended), Ordering::Relaxed);
                    check_next(&bench, number);
                }
                bench.assert_clean();
            });
        }
    });
    let survived = survived.into_inner();
    println!("{KILLS} builds, {survived} ended before they were killed, {:?}", started.elapsed());
    assert!(survived < KILLS / 2, "most must be killed while they build: {survived} were not");
}

/// Starts a build in another process. Returns its output from the start of the build on.
fn begin(bench: &Bench, number: usize) -> (Child, impl Iterator<Item = String>) {
    let folder = bench.folder.path().to_str().unwrap();
    let mut child = other(test_name!(one_that_builds), &[folder, &number.to_string()]).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.ends_with("begins")), "the other process begins");
    (child, lines)
}

/// Measures a complete build while the other processes build.
fn whole_build(bench: &Bench, number: usize) -> Duration {
    let (mut child, mut lines) = begin(bench, number);
    let began = Instant::now();
    assert!(lines.any(|line| line.ends_with("ends")), "the other process builds");
    let took = began.elapsed();
    child.wait().unwrap();
    took
}

/// Kills a build after this time. Returns true if it had ended before.
fn kill_once(bench: &Bench, number: usize, after: Duration) -> bool {
    let (mut child, mut lines) = begin(bench, number);
    thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    lines.any(|line| line.ends_with("ends"))
}

/// Checks that the next caller succeeds soon, without refused entries.
fn check_next(bench: &Bench, number: usize) {
    let started = Instant::now();
    let service = bench.service();
    let (outcome, events) = get(&service, &good(number));
    let built = outcome.unwrap_or_else(|failure| panic!("build {number}: {failure}: {events:?}"));
    let took = started.elapsed();
    assert!(took < Duration::from_secs(20), "build {number}: somebody was stuck: {events:?}");
    assert!(built.kernel().is_ok(), "build {number}");
    assert!(!events.iter().any(|event| matches!(event, Event::Refused { .. })), "build {number}: {events:?}");
    assert_eq!(bench.names("tmp"), Vec::<String>::new(), "build {number}");
    bench.assert_no_processes();
}

#[test]
fn one_that_builds() {
    let Some(words) = role() else { return };
    let service = CompileService::new(options(Path::new(&words[0])));
    let request = request(&service, &good(words[1].parse().unwrap()));
    println!("begins");
    let built = service.get(&request, &Cancel::new(), &|_| {}).expect("a kernel");
    println!("ends");
    drop(built);
}

/// Xorshift. It only has to spread the points over the build.
struct Random(u64);

impl Random {
    fn fraction(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}
