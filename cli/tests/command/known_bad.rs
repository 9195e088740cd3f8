//! A machine whose only compiler is known to be bad: cached kernels of the pinned toolchain are served, and none
//! is built.

use std::fs;
use std::process::{Command, Output};

use crate::machine::Machine;
use fourfold_executor::toolchain::PINNED;
use serde_json::Value;

const PROGRAM: &str = "fir 1
; sample: exact seed=5 M=37
func @one(
    %a: tensor<[M, 128], f4E2M1FN>, %sfa: tensor<[M, 8], f8E4M3FN, blocked>,
    param %b: tensor<[64, 128], f4E2M1FN>, param %sfb: tensor<[64, 8], f8E4M3FN, blocked>
) {
  %d = scaled_mma %a, %sfa, %b, %sfb {block = 16} : tensor<[M, 64], f32>
  return %d
}
";

/// The files that an installed toolchain needs besides its compiler, disassembler and CUTLASS.
const OTHERS: [&str; 12] = [
    "nvidia/cu13/bin/nvcc.profile",
    "nvidia/cu13/bin/cudafe++",
    "nvidia/cu13/bin/fatbinary",
    "nvidia/cu13/bin/nvlink",
    "nvidia/cu13/bin/ptxas",
    "nvidia/cu13/bin/nvdisasm",
    "nvidia/cu13/nvvm/bin/cicc",
    "nvidia/cu13/nvvm/libdevice/libdevice.10.bc",
    "nvidia/cu13/include/cuda_runtime.h",
    "nvidia/cu13/include/crt/host_config.h",
    "nvidia/cu13/include/cccl/cuda/std/type_traits",
    "nvidia/cu13/lib/libcudart_static.a",
];

/// A machine on which `toolchain install` installs the stand-in tools.
fn machine() -> Machine {
    let machine = Machine::with_program(PROGRAM, "");
    let tree = machine.path("prepared");
    let put = |name: &str, from: &str| {
        fs::create_dir_all(tree.join(name).parent().expect("a folder")).expect("it can be made");
        fs::copy(machine.path(from), tree.join(name)).expect("it can be copied");
    };
    machine.write("anything", "anything");
    OTHERS.iter().for_each(|name| put(name, "anything"));
    put("nvidia/cu13/lib/libcudadevrt.a", "anything");
    put("nvidia/cu13/bin/nvcc", "nvcc");
    put("nvidia/cu13/bin/cuobjdump", "cuobjdump");
    for name in ["include/cutlass/version.h", "include/cutlass/cutlass.h", "include/cute/tensor.hpp"] {
        put(&format!("cutlass/{name}"), &format!("cutlass/{name}"));
    }
    let stride = "tools/util/include/cutlass/util/packed_stride.hpp";
    put(&format!("cutlass/{stride}"), &format!("cutlass/{stride}"));
    fs::create_dir_all(machine.path("bin")).expect("a folder");
    let unpack = format!("for tree; do :; done; cp -r '{}/.' \"$tree\"", tree.display());
    machine.script("bin/python3", &format!("case \"$*\" in *unpack.py*) {unpack};; esac"));
    machine
}

/// Runs the program with tools found through `PATH` alone.
fn command(machine: &Machine, device: &str) -> Command {
    let mut command = machine.command(device);
    let path = format!("{}:/usr/bin:/bin", machine.name("bin"));
    command.env("PATH", path).env_remove("FOURFOLD_NVCC").env_remove("FOURFOLD_CUTLASS");
    command.env_remove("FOURFOLD_TOOLCHAIN").env_remove("CUDA_HOME").env_remove("CUTLASS_PATH");
    command.env_remove("FOURFOLD_ALLOW_KNOWN_BAD");
    command
}

#[track_caller]
fn json(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
}

#[test]
fn a_machine_whose_only_compiler_is_listed_runs_what_the_pins_built_and_builds_nothing() {
    let machine = machine();
    let file = machine.name("program.fir");
    let run = |arguments: &[&str]| {
        let output = command(&machine, "1").args(arguments).arg("--json").output().expect("it starts");
        (output.status.code(), json(&output))
    };
    let (code, report) = run(&["toolchain", "install"]);
    assert_eq!(code, Some(0), "{report}");
    // Emulation makes both the target and the Hopper GPU that the kernel is compiled for matter.
    let replay = ["replay", &*file, "--emulate", "--require-kernels"];
    let (code, report) = run(&replay);
    assert_eq!((code, &report["segments"][0]["ran"]), (Some(0), &"emulated".into()), "{report}");
    let place = fs::read_dir(machine.path("cache/toolchain")).expect("it is there").flatten();
    let place = place.map(|entry| entry.path()).find(|path| path.is_dir()).expect("the toolchain");
    assert!(place.file_name().expect("a name").to_string_lossy().contains(PINNED.nvcc));
    let calls = |nvcc: &std::path::Path| {
        fs::read_to_string(nvcc.with_file_name("nvcc.calls")).unwrap_or_default().lines().count()
    };
    assert!(calls(&place.join("nvidia/cu13/bin/nvcc")) > 0);

    // Now the only compiler is a listed one, and nothing can be installed.
    fs::remove_dir_all(machine.path("cache/toolchain")).expect("it can be removed");
    machine.script("bin/python3", "echo 'No module named pip' >&2; exit 1");
    let listed = fs::read_to_string(machine.path("nvcc")).expect("a script").replace(PINNED.nvcc, "13.0.88");
    machine.script("bin/nvcc", listed.trim_start_matches("#!/bin/sh\n"));
    fs::copy(machine.path("cuobjdump"), machine.path("bin/cuobjdump")).expect("it can be copied");
    let (code, report) = run(&replay);
    assert_eq!((code, &report["segments"][0]["ran"]), (Some(0), &"emulated".into()), "{report}");
    assert_eq!(calls(&machine.path("bin/nvcc")), 0);
    // A kernel that the cache lacks is not built, and the reason names the compiler.
    let (code, report) = run(&["replay", &file, "--emulate", "--no-cache", "--require-kernels"]);
    assert_eq!(code, Some(3), "{report}");
    let (code, which) = run(&["toolchain", "which", "--target", "sm_120a"]);
    assert_eq!((code, &which["code"]), (Some(3), &"toolchain_known_bad".into()), "{which}");
    assert!(
        which["remedy"].as_str().is_some_and(|text| text.contains("fourfold toolchain install")),
        "{which}"
    );
    let (code, which) =
        run(&["toolchain", "which", "--target", "sm_100a", "--cutlass", &machine.name("cutlass")]);
    assert_eq!((code, &which["nvcc"]["origin"]), (Some(0), &"PATH".into()), "{which}");
    assert!(which["known_bad"].to_string().contains("sm_90a"), "{which}");
    assert_eq!(calls(&machine.path("bin/nvcc")), 0);

    // The doctor reports it for the machine's GPU and for each target.
    let (code, doctor) = run(&["doctor", "--target", "sm_90a"]);
    assert_eq!((code, &doctor["ok"]), (Some(3), &false.into()), "{doctor}");
    let findings = doctor["findings"].as_array().expect("findings");
    let nvcc = findings.iter().find(|finding| finding["name"] == "nvcc").expect("a finding");
    assert!(nvcc["detail"].to_string().contains("known to be bad for sm_90a"), "{nvcc}");

    // An option and a variable override the list.
    let allowed = ["--allow-known-bad", "--cutlass", &machine.name("cutlass")];
    let (code, report) = run(&[&replay[..], &["--no-cache"], &allowed].concat());
    assert_eq!((code, &report["segments"][0]["ran"]), (Some(0), &"emulated".into()), "{report}");
    assert!(calls(&machine.path("bin/nvcc")) > 0);
}
