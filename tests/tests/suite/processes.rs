//! Many processes request the same kernels, with the real compiler: each kernel is compiled once, and every process
//! receives it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fourfold::executor::cache::{Cache, CacheOptions};
use fourfold::executor::environment::Environment;
use fourfold::executor::service::{CompileService, ServiceOptions, Versions};
use fourfold::executor::toolchain::{ToolchainOptions, locate};
use fourfold::executor::{BuildInput, BuildOptions, Cancel};

const PROCESSES: usize = 64;
const KEYS: usize = 4;
const KERNEL: &str = "small_sm120";

/// A small kernel with the interface of a generated one and a real block-scaled matrix instruction. The compiler
/// needs seconds for it instead of a minute.
fn source(number: usize) -> String {
    let abi = fourfold::executor::kernel::ABI_VERSION;
    let metadata = format!(
        r#"{{"abi":{abi},"target":"sm_120a","kernel":"{KERNEL}","tile":[16,8,64],"cluster":[1,1,1],"shared_memory":0,"threads":32,"signature":"","extents":[],"operands":[],"scalars":[],"outputs":[],"emulated":false,"hash":"{number:04}"}}"#
    );
    format!(
        r#"#include <cstddef>
#include <cstdint>
#include "cutlass/version.h"
extern "C" __global__ void multiply(const uint32_t *in, float *out) {{
    float d[4] = {{}};
    const uint32_t *a = in + threadIdx.x * 8;
    asm volatile("mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "
                 "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%0,%1,%2,%3}}, {{%10}}, {{%11,%12}}, {{%10}}, {{%11,%12}};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "h"(uint16_t(0)), "h"(uint16_t(0)));
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = d[i] + {number}.0f;
}}
extern "C" {{
uint32_t fourfold_abi_version(void) {{ return {abi}; }}
const char *fourfold_metadata(void) {{ return {metadata:?}; }}
int32_t fourfold_query(const void *, const void *, void *, char *, size_t) {{ return {number}; }}
int32_t fourfold_prepare(const void *, const void *, const void *, void *, size_t, void *, void **, char *, size_t) {{ return 1; }}
int32_t fourfold_update_pointers(void *, const void *, char *, size_t) {{ return 1; }}
int32_t fourfold_launch(void *, void *) {{ return 1; }}
void fourfold_destroy(void *) {{}}
}}
"#
    )
}

/// Returns a program that starts the compiler and counts the starts.
fn launcher(folder: &Path) -> PathBuf {
    folder.join("launcher.sh")
}

/// The file to which the launcher adds a line for each compiler.
fn launches(folder: &Path) -> PathBuf {
    folder.join("launches")
}

/// Returns a service with the provisioned toolchain and a separate cache.
fn service(folder: &Path) -> CompileService {
    let options = ToolchainOptions { provision: true, ..ToolchainOptions::default() };
    let toolchain = locate(&options, &Environment::from_process()).expect("the toolchain is provisioned");
    CompileService::new(ServiceOptions {
        cache: Some(Cache::open(&CacheOptions::new(folder)).expect("a cache")),
        toolchain: Ok(Arc::new(toolchain)),
        build: BuildOptions { launcher: Some(launcher(folder)), ..BuildOptions::default() },
        jobs: None,
        retry_known_bad: false,
    })
}

#[test]
fn sixty_four_processes_that_want_four_kernels_cause_four_compilations() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!("#!/bin/sh\necho $$ >> '{}'\nexec \"$@\"\n", launches(folder.path()).display());
    std::fs::write(launcher(folder.path()), script).expect("a script");
    std::fs::set_permissions(launcher(folder.path()), Permissions::from_mode(0o755)).expect("a script");
    let path = concat!(module_path!(), "::one_of_many");
    let (_, test) = path.split_once("::").expect("a path begins with the crate");
    let children: Vec<_> = (0..PROCESSES)
        .map(|index| {
            Command::new(std::env::current_exe().expect("this program"))
                .args(["--exact", test, "--nocapture", "--test-threads=1"])
                .env("FOURFOLD_TEST_OTHER", format!("{index} {}", folder.path().display()))
                .stdout(Stdio::piped())
                .spawn()
                .expect("the child starts")
        })
        .collect();
    for (index, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().expect("the child ends");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "process {index}: {}: {said}", output.status);
        let mut got: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("kernel ")).collect();
        got.sort_unstable();
        assert_eq!(got, ["0 is 0000", "1 is 0001", "2 is 0002", "3 is 0003"], "process {index}: {said}");
    }
    let launches = std::fs::read_to_string(launches(folder.path())).expect("compilers were started");
    assert_eq!(launches.lines().count(), KEYS);
    let entries = std::fs::read_dir(folder.path().join("kernels/entries")).expect("entries").count();
    assert_eq!(entries, KEYS);
    // A machine without a compiler looks for kernels of the pinned one.
    let service = service(folder.path());
    if let Ok(toolchain) = &service.options().toolchain
        && toolchain.nvcc_origin == fourfold::executor::toolchain::Origin::Provisioned
    {
        assert_eq!(Versions::of(toolchain), Versions::pinned());
    }
}

/// The child process: requests every kernel, each process in another order.
#[test]
fn one_of_many() {
    let Ok(role) = std::env::var("FOURFOLD_TEST_OTHER") else { return };
    let (index, folder) = role.split_once(' ').expect("a number and a folder");
    let (index, folder): (usize, PathBuf) = (index.parse().expect("a number"), folder.into());
    let service = service(&folder);
    for number in 0..KEYS {
        let number = (index + number) % KEYS;
        let text = source(number);
        let request = service.request(&BuildInput {
            text: &text,
            kernel: KERNEL,
            prelude: None,
            target: "sm_120a",
            architecture: "120a",
            opcode: "OMMA",
            stages: None,
            translation: None,
        });
        let built = service.get(&request, &Cancel::new(), &|_| {});
        let built = built.unwrap_or_else(|failure| panic!("{failure}: {:?}", failure.log));
        let kernel = built.kernel().expect("the kernel loads");
        assert!(built.artifact().resources().opcodes.keys().any(|opcode| opcode.starts_with("OMMA")));
        println!("\nkernel {number} is {}", kernel.metadata().hash);
    }
}
