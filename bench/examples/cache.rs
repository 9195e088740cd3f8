//! Measures the time to get a kernel from the cache on disk: find, verify, load, check.
//!
//! `cargo run --release -p fourfold-bench --example cache -- [--json] [--cache] [--require MILLISECONDS]`
//!
//! Each round is a new process, so nothing is loaded or mapped yet; the start of the process is not measured. The
//! files are in the page cache, as after a first use.
//!
//! Without `--cache`, the kernel is a stand-in with the size of a real library, built with the system's C
//! compiler, in a cache of its own. With `--cache`, every kernel in the user's cache is measured. With
//! `--require`, the exit code is 1 if the median of a kernel exceeds the limit, or if there is no kernel.

use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;
use std::{env, fs};

use fourfold::executor::cache::{Cache, CacheKey, CacheOptions, KeyParts, human_size};
use fourfold::executor::environment::Environment;
use fourfold::executor::kernel::ABI_VERSION;
use fourfold::executor::{BuildInput, BuildOptions, BuildTools, Kernel, ToolEnvironment, build};
use serde_json::json;

const ROUNDS: usize = 101;
/// The first argument of a round's process; the cache folder and the key follow.
const ONCE: &str = "--once";
/// The size of a kernel's library, in bytes.
const SIZES: [usize; 2] = [1 << 20, 2 << 20];

/// The times of one kernel in milliseconds.
struct Times {
    kernel: String,
    bytes: u64,
    get: Vec<f64>,
    load: Vec<f64>,
    total: Vec<f64>,
}

fn main() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [first, folder, key] = arguments.as_slice()
        && first == ONCE
    {
        return once(folder, &key.parse()?).map(|()| ExitCode::SUCCESS);
    }
    let given = |name: &str| arguments.iter().any(|argument| argument == name);
    let require = match arguments.iter().position(|argument| argument == "--require") {
        Some(at) => {
            let value = arguments.get(at + 1).and_then(|value| value.parse::<f64>().ok());
            Some(value.ok_or("--require needs a number of milliseconds")?)
        }
        None => None,
    };
    let times = if given("--cache") {
        let options = CacheOptions::from_environment(&Environment::from_process())?;
        let entries = Cache::open(&options)?.list()?;
        entries.into_iter().map(|entry| measure(&options, &entry.key)).collect::<Result<Vec<_>, _>>()?
    } else {
        let folder = tempfile::tempdir()?;
        let options = CacheOptions::new(folder.path());
        let cache = Cache::open(&options)?;
        SIZES.iter().map(|size| measure(&options, &insert(&cache, *size)?)).collect::<Result<Vec<_>, _>>()?
    };
    let mut text = String::new();
    writeln!(
        text,
        "| kernel | library | get ms | load ms | both: median ms | worst ms |\n|---|---|---|---|---|---|"
    )?;
    let mut rows = Vec::new();
    let mut ok = require.is_none() || !times.is_empty();
    for mut times in times {
        let [get, load, total] = [&mut times.get, &mut times.load, &mut times.total].map(|values| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        });
        let worst = times.total[times.total.len() - 1];
        let (kernel, bytes) = (&times.kernel, times.bytes);
        writeln!(
            text,
            "| {kernel} | {} | {get:.2} | {load:.2} | {total:.2} | {worst:.2} |",
            human_size(bytes)
        )?;
        let is_met = require.is_none_or(|require| total <= require);
        ok &= is_met;
        rows.push(json!({
            "ok": is_met, "kernel": kernel, "library_bytes": bytes, "get_ms": get, "load_ms": load, "median_ms": total,
            "worst_ms": worst,
        }));
    }
    if given("--json") {
        println!("{:#}", json!({ "ok": ok, "rounds": ROUNDS, "require_ms": require, "kernels": rows }));
    } else {
        print!("{text}");
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(options: &CacheOptions, key: &CacheKey) -> Result<Times, Box<dyn std::error::Error>> {
    let artifact = Cache::open(options)?.get(key).artifact.ok_or("the kernel is not in the cache")?;
    let mut times = Times {
        kernel: artifact.kernel().to_owned(),
        bytes: artifact.resources().library_bytes,
        get: vec![],
        load: vec![],
        total: vec![],
    };
    for _ in 0..ROUNDS {
        let mut command = Command::new(env::current_exe()?);
        let output = command.arg(ONCE).arg(&options.folder).arg(key.to_string()).output()?;
        let text = String::from_utf8(output.stdout)?;
        let [get, load] = text.split_whitespace().map(str::parse).collect::<Result<Vec<f64>, _>>()?[..]
        else {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        };
        times.get.push(get);
        times.load.push(load);
        times.total.push(get + load);
    }
    Ok(times)
}

/// Runs one round in its process and prints two times in milliseconds.
fn once(folder: &str, key: &CacheKey) -> Result<(), Box<dyn std::error::Error>> {
    let cache = Cache::open(&CacheOptions::new(folder))?;
    let started = Instant::now();
    let artifact = cache.get(key).artifact.ok_or("the kernel is not in the cache")?;
    let found = started.elapsed();
    // Loading verifies the library again, runs the dynamic linker, and checks the ABI version.
    let kernel = Kernel::load(&artifact)?;
    let loaded = started.elapsed() - found;
    assert_eq!(kernel.abi_version(), ABI_VERSION);
    println!("{} {}", found.as_secs_f64() * 1e3, loaded.as_secs_f64() * 1e3);
    Ok(())
}

/// Builds a stand-in kernel of this size and caches it.
fn insert(cache: &Cache, size: usize) -> Result<CacheKey, Box<dyn std::error::Error>> {
    let stand_ins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../executor/tests/stand_ins");
    let kernel = format!("stand_in_{size}");
    let metadata = format!(
        r#"{{"abi":{ABI_VERSION},"target":"sm_100a","kernel":"{kernel}","tile":[128,128,256],"cluster":[1,1,1],"shared_memory":1,"threads":256,"extents":[],"operands":[],"scalars":[],"outputs":[],"emulated":false}}"#
    );
    let body = fs::read_to_string(stand_ins.join("kernel.c"))?;
    let text = format!(
        "// behave: compile\n// sass: UTCOMMA x\n#define METADATA {metadata:?}\n{body}\n\
         const unsigned char fourfold_ballast[{size}] = {{ 1, 2, 3 }};\n"
    );
    let input = BuildInput {
        text: &text,
        kernel: &kernel,
        prelude: None,
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: None,
        translation: None,
    };
    let (nvcc, cuobjdump) = (stand_ins.join("nvcc.sh"), stand_ins.join("cuobjdump.sh"));
    let tools = BuildTools {
        nvcc: &nvcc,
        include: vec![],
        libraries: vec![],
        cuobjdump: Some(&cuobjdump),
        environment: ToolEnvironment::default(),
    };
    let artifact = build(&input, &tools, &BuildOptions::default())?;
    let key = CacheKey::new(&KeyParts {
        source: &text,
        prelude: None,
        kernel: &kernel,
        target: "sm_100a",
        architecture: "100a",
        opcode: "UTCOMMA",
        stages: None,
        flags: &[],
        nvcc: "stand-in",
        cutlass: "stand-in",
        host: env::consts::ARCH,
        host_compiler: "",
        abi: ABI_VERSION,
    });
    cache.insert(&key, &artifact)?;
    Ok(key)
}
