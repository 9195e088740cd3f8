//! Tests with programs that hang, fork, flood, crash and close their output.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::*;

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

/// Returns true if a process runs; a zombie does not.
fn is_running(pid: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}

fn assert_ends_soon(pid: &str) {
    let started = Instant::now();
    while is_running(pid) {
        assert!(started.elapsed() < Duration::from_secs(5), "process {pid} still runs");
        thread::sleep(Duration::from_millis(5));
    }
}

fn first_line(file: &Path) -> String {
    std::fs::read_to_string(file).expect("the script wrote its file").trim().to_owned()
}

#[test]
fn both_streams_are_kept_in_order_and_input_is_empty() {
    let run =
        run_tool(&mut shell("echo one; echo two >&2; cat; echo three; exit 3"), Duration::from_secs(20))
            .unwrap();
    assert_eq!(run.log, "one\ntwo\nthree\n");
    assert_eq!(run.status.and_then(|status| status.code()), Some(3));
    assert_eq!((run.ending().as_str(), run.succeeded(), run.log_truncated), ("exit code 3", false, false));
}

#[test]
fn arguments_are_passed_as_they_are() {
    let hostile = "$(touch x); `y` 'z' \"\n*";
    let run = run_tool(Command::new("printf").args(["%s", hostile]), Duration::from_secs(20)).unwrap();
    assert_eq!((run.log.as_str(), run.succeeded()), (hostile, true));
}

#[test]
fn a_time_out_kills_grandchildren_that_hold_the_pipe() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("echo started; sleep 300 & echo $! >{0}/pid; wait", folder.path().display());
    let started = Instant::now();
    let run = run_tool(&mut shell(&script), Duration::from_millis(700)).unwrap();
    assert!(run.status.is_none());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(run.log, "started\n");
    assert_eq!(run.ending(), "a time-out after 1 s");
    assert_ends_soon(&first_line(&folder.path().join("pid")));
}

#[test]
fn what_a_program_leaves_behind_is_killed_and_does_not_delay_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("sleep 300 & echo $! >{0}/pid; echo done", folder.path().display());
    let run = run_tool(&mut shell(&script), Duration::from_secs(60)).unwrap();
    assert!(run.succeeded() && run.seconds < 5.0, "{run:?}");
    assert_eq!(run.log, "done\n");
    assert_ends_soon(&first_line(&folder.path().join("pid")));
}

#[test]
fn a_descendant_that_leaves_the_group_cannot_hold_the_caller() {
    let run = run_tool(&mut shell("setsid sleep 3 & echo done"), Duration::from_secs(60)).unwrap();
    assert!(run.succeeded() && run.seconds < 2.0, "{run:?}");
    assert_eq!(run.log, "done\n");
}

#[test]
fn a_descendant_that_leaves_the_group_and_never_stops_printing_cannot_hold_the_caller() {
    let started = Instant::now();
    let run = run_tool(&mut shell("setsid timeout 8 yes & exit 1"), Duration::from_secs(60)).unwrap();
    let late = run_tool(&mut shell("setsid timeout 8 yes & sleep 60"), Duration::from_secs(1)).unwrap();
    assert!(run.status.is_some() && late.status.is_none());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
}

#[test]
fn a_flood_is_bounded_and_keeps_both_ends() {
    let script = "echo first; head -c 104857600 /dev/zero | tr '\\0' x; echo; echo last; exit 1";
    let run = run_tool(&mut shell(script), Duration::from_secs(60)).unwrap();
    assert_eq!(run.status.and_then(|status| status.code()), Some(1));
    assert!(run.log_truncated && run.log.len() < 2 * KEPT + 100, "{}", run.log.len());
    assert!(run.log.starts_with("first\nxxxx") && run.log.ends_with("xxxx\nlast\n"));
    let printed = "first\n".len() + 104_857_600 + "\nlast\n".len();
    assert!(run.log.contains(&format!("\n[... {} bytes left out ...]\n", printed - 2 * KEPT)));
    assert!(run.seconds < 20.0, "{}", run.seconds);
}

#[test]
fn a_flood_without_end_stops_at_the_limit() {
    let run = run_tool(&mut shell("yes"), Duration::from_millis(300)).unwrap();
    assert!(run.status.is_none() && run.seconds < 5.0);
    assert!(run.log.starts_with("y\ny\n"));
}

#[test]
fn a_log_of_just_the_kept_size_is_whole() {
    let run = run_tool(&mut shell("head -c 524288 /dev/zero | tr '\\0' x"), Duration::from_secs(20)).unwrap();
    assert_eq!((run.log.len(), run.log_truncated), (2 * KEPT, false));
    let run = run_tool(&mut shell("head -c 524289 /dev/zero | tr '\\0' x"), Duration::from_secs(20)).unwrap();
    assert!(run.log_truncated && run.log.contains("[... 1 bytes left out ...]"));
}

#[test]
fn a_crash_is_reported_by_its_signal() {
    let run = run_tool(&mut shell("echo before; kill -SEGV $$"), Duration::from_secs(20)).unwrap();
    assert_eq!(run.status.and_then(|status| status.signal()), Some(11));
    assert_eq!((run.log.as_str(), run.ending().as_str()), ("before\n", "signal 11 (SIGSEGV)"));
}

#[test]
fn a_program_that_closes_its_output_is_still_waited_for() {
    let run = run_tool(&mut shell("exec >&- 2>&-; sleep 0.3; exit 7"), Duration::from_secs(20)).unwrap();
    assert_eq!(run.status.and_then(|status| status.code()), Some(7));
    assert!(run.seconds >= 0.3);
}

#[test]
fn a_program_that_does_not_exist_is_an_error() {
    let error = run_tool(&mut Command::new("/nonexistent/nvcc"), Duration::from_secs(1)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
}

#[test]
fn lines_are_seen_as_they_come_and_a_panic_of_the_watcher_kills_the_group() {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("sleep 300 & echo $! >{0}/pid; echo one; echo two; wait", folder.path().display());
    let mut seen = Vec::new();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        run_tool_watched(&mut shell(&script), Duration::from_secs(60), None, &mut |line| {
            seen.push(line.to_owned());
            assert!(line != "two", "stop here");
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(seen, ["one", "two"]);
    assert_ends_soon(&first_line(&folder.path().join("pid")));
}

#[test]
fn a_wish_to_stop_ends_the_whole_group_at_once() {
    let cancel = Cancel::new();
    let run = thread::scope(|scope| {
        let wish = cancel.clone();
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(200));
            wish.cancel();
        });
        let mut command = shell("sleep 60 & sleep 60");
        run_tool_watched(&mut command, Duration::from_secs(60), Some(&cancel), &mut |_| {}).unwrap()
    });
    assert!(run.cancelled && run.status.is_none());
    assert!(run.seconds < 10.0, "{}", run.seconds);
    assert!(run.ending().starts_with("being cancelled"), "{}", run.ending());
}

#[test]
fn a_group_dies_with_the_process_that_started_it() {
    let folder = tempfile::tempdir().unwrap();
    let pid = folder.path().join("pid");
    // A second run of this test binary owns the group; it is killed without any chance to clean up.
    let mut owner = Command::new(std::env::current_exe().unwrap());
    owner.args(["process::tests::owner_of_a_group", "--exact"]).env("FOURFOLD_TEST_OTHER", &pid);
    let mut owner = owner.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let started = Instant::now();
    while !std::fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
        assert!(started.elapsed() < Duration::from_secs(20), "the owner's program never started");
        thread::sleep(Duration::from_millis(5));
    }
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_ends_soon(&first_line(&pid));
}

#[test]
fn owner_of_a_group() {
    // Run by the test above as another process; by itself it does nothing.
    let Some(pid) = std::env::var_os("FOURFOLD_TEST_OTHER") else { return };
    let script = format!("sleep 300 & echo $! >{}; wait", Path::new(&pid).display());
    run_tool(&mut shell(&script), Duration::from_secs(300)).unwrap();
}
