//! `fourfold pack`: one machine builds kernels, and another takes them from the file.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::machine::Machine;

/// Two different kernels.
const TWO: &str = "fir 1
; sample: exact seed=5 M=37
func @two(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[64, 96], f4E2M1FN>, param %sfb: tensor<[64, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  %e = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], bf16>
  return %d, %e
}
";

/// One of them, with other extents.
const ONE: &str = "fir 1
; sample: exact seed=6 M=9
func @one(
    %a: tensor<[M, 96], f4E2M1FN>, %sfa: tensor<[M, 6], f8E4M3FN, blocked>,
    param %b: tensor<[64, 96], f4E2M1FN>, param %sfb: tensor<[64, 6], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  return %d
}
";

fn machine() -> Machine {
    let machine = Machine::with_program(TWO, "");
    fs::create_dir(machine.path("more")).expect("a folder");
    machine.write("more/one.fir", ONE);
    machine
}

fn said(output: &Output) -> String {
    [output.stdout.clone(), output.stderr.clone()]
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .concat()
}

/// Packs both programs, and returns the JSON report.
fn pack(machine: &Machine) -> Value {
    let programs = [machine.name("program.fir"), machine.name("more")];
    let output =
        machine.run("0", &["pack", &programs[0], &programs[1], "-o", &machine.name("pack"), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    serde_json::from_slice(&output.stdout).expect("an object")
}

/// A compiler that rejects everything.
const FAILING: &str = "case \"$1\" in --version | --dryrun) \
    echo 'Cuda compilation tools, release 13.1, V13.1.115'; exit 0;; esac; exit 1";

/// Packs one program.
fn pack_of(machine: &Machine, program: &str) {
    let output = machine.run("0", &["pack", &machine.name(program), "-o", &machine.name("pack")]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}

/// The number of kernels that a machine's compiler built.
fn compilers(machine: &Machine) -> usize {
    let calls = fs::read_to_string(machine.path("nvcc.calls")).unwrap_or_default();
    calls.lines().filter(|call| call.contains("-shared")).count()
}

/// Replays a program on a machine whose only source of kernels besides its compiler is a tier.
fn replay(machine: &Machine, program: &str, tier: &Path) -> Value {
    let mut command = machine.command("0");
    command.args(["replay", &machine.name(program), "--json", "--build"]).env("FOURFOLD_CACHE_TIERS", tier);
    command.args(["--nvcc", &machine.name("nvcc"), "--cutlass", &machine.name("cutlass")]);
    let output = command.output().expect("the program starts");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {}", said(&output)))
}

#[test]
fn a_machine_with_a_pack_builds_nothing() {
    let first = machine();
    let report = pack(&first);
    assert_eq!((report["ok"].as_bool(), report["programs"].as_u64()), (Some(true), Some(2)));
    assert_eq!(report["kernels"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(compilers(&first), 2, "each distinct kernel is built once");
    let second = machine();
    let report = replay(&second, "more/one.fir", &first.path("pack"));
    assert_eq!((report["ok"].as_bool(), report["ran_kernels"].as_u64()), (Some(true), Some(1)), "{report}");
    assert_eq!(compilers(&second), 0, "the kernel is in the pack");
    let other = machine();
    replay(&other, "program.fir", &first.path("more"));
    assert_eq!(compilers(&other), 2, "a tier without the kernels is no pack");
}

#[test]
fn a_damaged_pack_is_refused_and_named() {
    let first = machine();
    let output = first.run("0", &["pack", &first.name("more"), "-o", &first.name("pack")]);
    assert!(said(&output).contains("1 kernels of 1 programs for sm_100a in "), "{}", said(&output));
    let good = fs::read(first.path("pack")).expect("a file");
    let library = b"\x7fELF";
    let at = good.windows(4).position(|bytes| bytes == library).expect("a library");
    let mut changed = good.clone();
    changed[at + 100] ^= 1;
    let mut header = good.clone();
    header[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    for (name, bytes) in
        [("changed", changed), ("cut", good[..at + 50].to_vec()), ("header", header), ("empty", Vec::new())]
    {
        let second = machine();
        let damaged = second.path(name);
        fs::write(&damaged, bytes).expect("a file");
        let output = second.run("0", &["compile", &second.name("more/one.fir")]);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        fs::remove_dir_all(second.path("cache")).expect("a cache");
        let mut command = second.command("0");
        command.args(["compile", &second.name("more/one.fir"), "--nvcc", &second.name("nvcc")]);
        command.args(["--cutlass", &second.name("cutlass")]).env("FOURFOLD_CACHE_TIERS", &damaged);
        let output = command.output().expect("the program starts");
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(
            said(&output).contains(&format!("cache tier `{}`", damaged.display())),
            "{name}: {}",
            said(&output)
        );
        assert_eq!(compilers(&second), 2, "{name}: the kernel is built");
    }
}

#[test]
fn a_pack_is_written_as_a_whole_or_not_at_all() {
    let machine = machine();
    pack_of(&machine, "program.fir");
    let before = fs::read(machine.path("pack")).expect("a file");
    fs::remove_dir_all(machine.path("cache")).expect("a cache");
    machine.script("nvcc", FAILING);
    let output = machine.run("0", &["pack", &machine.name("program.fir"), "-o", &machine.name("pack")]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("2 of 2 kernels were not built, so "), "{}", said(&output));
    assert_eq!(fs::read(machine.path("pack")).expect("a file"), before);
}

#[test]
fn places_that_cannot_be_written_are_named_before_anything_is_built() {
    let machine = machine();
    for (name, problem) in [
        ("more", "it exists and is not a pack, so it is not replaced"),
        ("program.fir", "it exists and is not a pack, so it is not replaced"),
        ("nowhere/pack", "does not exist"),
    ] {
        let output = machine.run("0", &["pack", &machine.name("program.fir"), "-o", &machine.name(name)]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(problem), "{}", said(&output));
    }
    assert_eq!(fs::read_to_string(machine.path("program.fir")).expect("a file"), TWO);
    assert_eq!(compilers(&machine), 0);
    let output = machine.run("0", &["pack", &machine.name("absent"), "-o", &machine.name("pack")]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
}

#[test]
fn nothing_is_pushed_to_a_pack() {
    let machine = machine();
    pack(&machine);
    let before = fs::read(machine.path("pack")).expect("a file");
    let output =
        machine.command("0").args(["cache", "push", "--to", &machine.name("pack")]).output().expect("a run");
    assert!(said(&output).contains("already present"), "{}", said(&output));
    assert_eq!(fs::read(machine.path("pack")).expect("a file"), before);
}
