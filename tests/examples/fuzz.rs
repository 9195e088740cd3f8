//! Checks random programs until it is interrupted, or for a number of seconds. `check.rs` lists the properties.

use std::panic;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use fourfold::ir::text;
use fourfold_tests::check::{check_run, take_counts};
use fourfold_tests::generate::case;
use fourfold_tests::random::Random;

const HELP: &str = "Check random programs against the interpreter, and their partitions against the checker

Usage: fuzz [SECONDS [SEED]]

SECONDS  Stop after this many seconds [default: run until interrupted]
SEED     Start the random sequence with this number [default: the time]

The first program that fails is printed with its seed, and the exit code is 1.

Example: cargo run --release -p fourfold-tests --example fuzz -- 60";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers: Result<Vec<u64>, _> = arguments.iter().map(|argument| argument.parse()).collect();
    let Ok(numbers) = numbers else {
        println!("{HELP}");
        let asked = arguments.iter().any(|argument| argument == "--help" || argument == "-h");
        return if asked { ExitCode::SUCCESS } else { ExitCode::from(2) };
    };
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let first = numbers.get(1).copied().unwrap_or(clock.as_secs());
    let end = numbers.first().map(|seconds| Duration::from_secs(*seconds));
    let (start, mut told) = (Instant::now(), Instant::now());
    let mut random = Random::new(first);
    let mut count = 0u64;
    while end.is_none_or(|end| start.elapsed() < end) {
        let (seed, steps) = (random.bits(), 1 + random.below(15));
        if panic::catch_unwind(|| check_run(seed, steps)).is_err() {
            println!("seed {seed}, {steps} steps, program {count} of the sequence from {first}:");
            println!("{}", text::print(&case(seed, steps).module));
            return ExitCode::FAILURE;
        }
        count += 1;
        if told.elapsed() >= Duration::from_secs(10) {
            told = Instant::now();
            eprintln!("{count} programs in {:.0} s", start.elapsed().as_secs_f64());
        }
    }
    println!("{count} programs passed\n{:#?}", take_counts());
    ExitCode::SUCCESS
}
