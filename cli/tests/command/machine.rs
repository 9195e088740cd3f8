//! A machine whose GPUs, driver, compiler and kernels are stand-ins that really compute.

#![allow(dead_code, reason = "each test file uses what it needs")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A machine: device 0 is a Blackwell, device 1 a Hopper.
pub struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// [`new`](Self::new), with a program as `program.fir`.
    pub fn with_program(program: &str, defines: &str) -> Machine {
        let machine = Machine::new(defines);
        machine.write("program.fir", program);
        machine
    }

    /// Creates a machine whose compiler builds kernels with these definitions.
    pub fn new(defines: &str) -> Machine {
        Machine::with_cache(defines, 1 << 20)
    }

    /// [`new`](Self::new), with this L2 cache in bytes.
    pub fn with_cache(defines: &str, l2_bytes: u32) -> Machine {
        let machine = Machine { folder: tempfile::tempdir().expect("a folder") };
        let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/stand_ins");
        for name in
            ["cutlass/include/cutlass", "cutlass/include/cute", "cutlass/tools/util/include/cutlass/util"]
        {
            fs::create_dir_all(machine.path(name)).expect("a folder");
        }
        let version = "/* Copyright (c) NVIDIA\n * Redistribution is permitted. */\n\
                       #define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 5\n#define CUTLASS_PATCH 0\n";
        machine.write("cutlass/include/cutlass/version.h", version);
        machine.write("cutlass/include/cutlass/cutlass.h", "");
        machine.write("cutlass/include/cute/tensor.hpp", "");
        machine.write("cutlass/tools/util/include/cutlass/util/packed_stride.hpp", "");
        let driver = Command::new("cc")
            .arg(format!("-DL2_BYTES={l2_bytes}"))
            .args(["-O1", "-shared", "-fPIC", "-Wl,-soname,libcuda.so", "-o"])
            .arg(machine.path("libcuda.so"))
            .arg(stand_ins.join("libcuda.c"))
            .arg("-lm")
            .status();
        assert!(driver.expect("there is a C compiler").success());
        // The metadata of the kernel are those of the source.
        let body = format!(
            r#"case "$1" in --version | --dryrun) echo 'Cuda compilation tools, release 13.1, V13.1.115'; exit 0;; esac
echo "$*" >> "$(dirname "$0")/nvcc.calls"
says() {{ sed -n 's/.*\\"'"$1"'\\":\\"\([^\\]*\)\\".*/\1/p' kernel.cu | head -n 1; }}
roles=$(sed -n 's/.*\\"signature\\":\\"[^\\]*\\",\(.*\),\\"emulated\\".*/\1/p' kernel.cu | head -n 1)
test -e prelude.cuh && emulated=-DEMULATED
exec cc -O1 -shared -fPIC {defines} $emulated "-DKERNEL=\"$(says kernel)\"" "-DTARGET=\"$(says target)\"" \
  "-DSIGNATURE=\"$(says signature)\"" "-DROLES=\"$roles\"" -o kernel.so '{}' -lm"#,
            stand_ins.join("gemm.c").display()
        );
        machine.script("nvcc", &body);
        let line = |opcode: &str| format!("echo '        /*0010*/  {opcode} R1, R2, R3 ;'");
        machine.script(
            "cuobjdump",
            &["UTCOMMA.4X", "IDP.4A.S8.S8", "HGMMA.64x64x16.F32", "STG.E.128"].map(line).join("\n"),
        );
        machine
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).expect("it can be written");
    }

    pub fn script(&self, name: &str, body: &str) {
        self.write(name, &format!("#!/bin/sh\n{body}\n"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("a script");
    }

    /// Runs the program with the toolchain of this machine, on one of its devices.
    pub fn run(&self, device: &str, arguments: &[&str]) -> Output {
        let tools = ["--nvcc", &self.name("nvcc"), "--cutlass", &self.name("cutlass")];
        self.command(device).args(arguments).args(tools).output().expect("the program starts")
    }

    /// Returns the program on this machine, without arguments.
    pub fn command(&self, device: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fourfold"));
        command.env("FOURFOLD_DEVICE", device).env("FOURFOLD_CACHE_DIR", self.path("cache"));
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command
    }
}
