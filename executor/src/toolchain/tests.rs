//! Fake trees, a fake compiler and a fake package client: what is chosen, what is refused, and what is left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::tree::{ESSENTIAL, MARKER};
use super::*;
use crate::environment::Environment;

/// A machine: a home, a `PATH` of its own, and room for trees.
struct Machine {
    folder: TempDir,
    environment: Environment,
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{}:/usr/bin:/bin", folder.path().join("bin").display());
        let environment = Environment {
            home: Some(folder.path().join("home").into()),
            fourfold_cache_dir: Some(folder.path().join("cache").into()),
            path: Some(path.into()),
            ..Environment::default()
        };
        Machine { folder, environment }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn cache(&self) -> PathBuf {
        self.path("cache")
    }

    fn nvcc(&self, name: &str, version: &str) -> PathBuf {
        let file = self.path(name);
        program(&file, &nvcc_script(version));
        file
    }

    fn cutlass(&self, name: &str, version: [u32; 3]) -> PathBuf {
        let folder = self.path(name);
        write(&folder.join("include/cutlass/version.h"), &version_header(version));
        write(&folder.join("include/cute/tensor.hpp"), "");
        fs::create_dir_all(folder.join("tools/util/include")).unwrap();
        folder
    }

    /// A `python3` that stands in for pip: it counts its calls, is slow, and installs a fake tree.
    fn pip(&self, before: &str) {
        let script = format!(
            "#!/bin/sh\n\
             echo \"$@\" >>{calls}\n\
             while [ $# -gt 0 ]; do case \"$1\" in --target) target=$2; shift;; -r) list=$2; shift;; esac; shift; done\n\
             grep -q -- '--hash=sha256:' \"$list\" || exit 9\n\
             echo 'Collecting nvidia-cuda-nvcc==13.0.88'\n\
             {before}\n\
             for name in {essential}; do mkdir -p \"$target/${{name%/*}}\"; echo \"$name\" >\"$target/$name\"; done\n\
             cat >\"$target/nvidia/cu13/bin/nvcc\" <<'END'\n{nvcc}END\n\
             cat >\"$target/cutlass_library/source/include/cutlass/version.h\" <<'END'\n{header}END\n\
             echo 'Installing collected packages: all'\n",
            calls = self.path("calls").display(),
            essential = ESSENTIAL.join(" "),
            nvcc = nvcc_script("13.0, V13.0.88"),
            header = version_header([4, 2, 0]),
        );
        program(&self.path("bin/python3"), &script);
    }

    fn calls(&self) -> usize {
        fs::read_to_string(self.path("calls")).unwrap_or_default().lines().count()
    }

    fn locate(&self, options: &ToolchainOptions) -> Result<Toolchain, ToolchainError> {
        locate(options, &self.environment)
    }

    fn provision(&self) -> Result<PathBuf, ToolchainError> {
        provision(&self.cache(), &self.environment, &mut |_| {})
    }

    /// What is in the toolchain folder of the cache, without the lock.
    fn kept(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache().join("toolchain")).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        names.filter(|name| !name.ends_with(".lock")).collect()
    }
}

fn nvcc_script(version: &str) -> String {
    format!(
        "#!/bin/sh\necho 'nvcc: NVIDIA (R) Cuda compiler driver'\necho 'Cuda compilation tools, release {version}'\n"
    )
}

fn version_header([major, minor, patch]: [u32; 3]) -> String {
    format!(
        "#pragma once\n#define CUTLASS_MAJOR {major}\n#define CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH {patch} \n"
    )
}

fn write(file: &Path, text: &str) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, text).unwrap();
}

fn program(file: &Path, text: &str) {
    write(file, text);
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

fn options() -> ToolchainOptions {
    ToolchainOptions::default()
}

#[test]
fn what_is_more_explicit_wins_and_the_two_parts_are_independent() {
    let mut machine = Machine::new();
    machine.pip("");
    let tree = machine.provision().unwrap();
    let found = machine.locate(&options()).unwrap();
    assert_eq!((found.nvcc_origin, found.cutlass_origin), (Origin::Provisioned, Origin::Provisioned));
    assert_eq!(found.nvcc, tree.join("nvidia/cu13/bin/nvcc"));
    assert_eq!(found.cutlass, tree.join("cutlass_library/source"));
    assert_eq!(found.cuobjdump, Some(tree.join("nvidia/cu13/bin/cuobjdump")));
    assert_eq!(found.include, [tree.join("nvidia/cu13/include"), tree.join("nvidia/cu13/include/cccl")]);
    assert_eq!(found.libraries, [tree.join("nvidia/cu13/lib")]);
    assert_eq!((found.nvcc_version.as_str(), found.cutlass_version.as_str()), ("13.0.88", "4.2.0"));

    let expect =
        |machine: &Machine, options: &ToolchainOptions, nvcc: (&str, &str), cutlass: (&str, &str)| {
            let found = machine.locate(options).unwrap();
            assert_eq!((found.nvcc_version.as_str(), found.nvcc_origin.to_string().as_str()), nvcc);
            assert_eq!((found.cutlass_version.as_str(), found.cutlass_origin.to_string().as_str()), cutlass);
        };
    let pinned = ("4.2.0", "provisioned");
    machine.nvcc("bin/nvcc", "12.8, V12.8.61");
    expect(&machine, &options(), ("12.8.61", "PATH"), pinned);
    machine.nvcc("cuda/bin/nvcc", "12.9, V12.9.1");
    machine.environment.cuda_home = Some(machine.path("cuda").into());
    expect(&machine, &options(), ("12.9.1", "CUDA_HOME"), pinned);
    machine.environment.cutlass_path = Some(machine.cutlass("cutlass", [4, 5, 1]).into());
    expect(&machine, &options(), ("12.9.1", "CUDA_HOME"), ("4.5.1", "CUTLASS_PATH"));
    machine.environment.fourfold_toolchain = Some(tree.clone().into());
    expect(&machine, &options(), ("13.0.88", "FOURFOLD_TOOLCHAIN"), ("4.2.0", "FOURFOLD_TOOLCHAIN"));
    machine.environment.fourfold_nvcc = Some(machine.nvcc("mine/nvcc", "13.1, V13.1.2").into());
    expect(&machine, &options(), ("13.1.2", "FOURFOLD_NVCC"), ("4.2.0", "FOURFOLD_TOOLCHAIN"));
    machine.environment.fourfold_cutlass = Some(machine.cutlass("newer", [4, 7, 0]).into());
    expect(&machine, &options(), ("13.1.2", "FOURFOLD_NVCC"), ("4.7.0", "FOURFOLD_CUTLASS"));
    let from = ToolchainOptions { from: Some(tree), ..options() };
    expect(&machine, &from, ("13.0.88", "--from"), ("4.2.0", "--from"));
    let nvcc = ToolchainOptions { nvcc: Some(machine.nvcc("other/nvcc", "13.2, V13.2.0")), ..from };
    expect(&machine, &nvcc, ("13.2.0", "--nvcc"), ("4.2.0", "--from"));
    let both = ToolchainOptions { cutlass: Some(machine.cutlass("newest", [5, 0, 0])), ..nvcc };
    expect(&machine, &both, ("13.2.0", "--nvcc"), ("5.0.0", "--cutlass"));
    assert_eq!(machine.calls(), 1);
}

#[test]
fn what_is_named_and_does_not_exist_is_an_error_whatever_else_there_is() {
    let machine = Machine::new();
    machine.nvcc("bin/nvcc", "13.0, V13.0.88");
    machine.environment.find_program("nvcc").unwrap();
    let cutlass = machine.cutlass("cutlass", [4, 2, 0]);
    let good = Environment { cutlass_path: Some(cutlass.into()), ..machine.environment.clone() };
    assert!(locate(&options(), &good).is_ok());
    let nowhere = machine.path("nowhere");
    let named = |options: &ToolchainOptions, environment: &Environment| {
        let error = locate(options, environment).unwrap_err();
        let ToolchainError::Named { named, path, .. } = &error else { panic!("{error}") };
        assert_eq!((path, error.fault()), (&nowhere, ToolchainFault::Request));
        *named
    };
    let value = || Some(nowhere.clone().into_os_string());
    assert_eq!(named(&ToolchainOptions { nvcc: Some(nowhere.clone()), ..options() }, &good), "--nvcc");
    assert_eq!(named(&ToolchainOptions { cutlass: Some(nowhere.clone()), ..options() }, &good), "--cutlass");
    assert_eq!(named(&ToolchainOptions { from: Some(nowhere.clone()), ..options() }, &good), "--from");
    let cases: [(&str, Environment); 5] = [
        ("FOURFOLD_NVCC", Environment { fourfold_nvcc: value(), ..good.clone() }),
        ("FOURFOLD_CUTLASS", Environment { fourfold_cutlass: value(), ..good.clone() }),
        ("FOURFOLD_TOOLCHAIN", Environment { fourfold_toolchain: value(), ..good.clone() }),
        ("CUDA_HOME", Environment { cuda_home: value(), ..good.clone() }),
        ("CUTLASS_PATH", Environment { cutlass_path: value(), ..good.clone() }),
    ];
    for (name, environment) in &cases {
        assert_eq!(named(&ToolchainOptions { provision: true, ..options() }, environment), *name);
    }
    assert_eq!(machine.calls(), 0);
}

#[test]
fn named_things_that_are_something_else_are_told_apart() {
    let machine = Machine::new();
    let message = |options: ToolchainOptions| machine.locate(&options).unwrap_err().to_string();
    let nvcc = |path: PathBuf| message(ToolchainOptions { nvcc: Some(path), ..options() });
    assert!(nvcc(machine.folder.path().to_owned()).contains("which is a folder; name the program in it"));
    write(&machine.path("plain"), "text");
    assert!(nvcc(machine.path("plain")).ends_with("which cannot be executed"));
    program(&machine.path("broken"), "#!/bin/sh\necho oh no; exit 4\n");
    assert!(nvcc(machine.path("broken")).contains("exit code 4 and printed oh no"));
    let old = machine.nvcc("old", "12.4, V12.4.131");
    let error = machine.locate(&ToolchainOptions { nvcc: Some(old), ..options() }).unwrap_err();
    assert!(error.to_string().ends_with("which is nvcc 12.4.131; Fourfold needs 12.8.0 or newer"), "{error}");

    let good = machine.nvcc("good", "13.0, V13.0.88");
    let cutlass = |path: PathBuf| {
        message(ToolchainOptions { nvcc: Some(good.clone()), cutlass: Some(path), ..options() })
    };
    assert!(cutlass(machine.folder.path().to_owned()).contains("which holds no CUTLASS"));
    assert!(cutlass(machine.cutlass("old_cutlass", [3, 9, 2])).contains("CUTLASS 3.9.2"));
    let partial = machine.cutlass("partial", [4, 2, 0]);
    fs::remove_dir_all(partial.join("tools")).unwrap();
    assert!(cutlass(partial).contains("without tools/util/include"));
    // An installed package: the headers lie deeper.
    machine.cutlass("site/cutlass_library/source", [4, 3, 0]);
    let options = ToolchainOptions { nvcc: Some(good), cutlass: Some(machine.path("site")), ..options() };
    assert_eq!(machine.locate(&options).unwrap().cutlass, machine.path("site/cutlass_library/source"));
}

#[test]
fn an_old_compiler_that_nobody_named_is_passed_over() {
    let mut machine = Machine::new();
    machine.nvcc("bin/nvcc", "11.5, V11.5.119");
    fs::create_dir(machine.path("runtime")).unwrap();
    machine.environment.cuda_home = Some(machine.path("runtime").into());
    let error = machine.locate(&options()).unwrap_err();
    let ToolchainError::NotFound { what: "nvcc", passed_over } = &error else { panic!("{error}") };
    assert!(passed_over[0].contains("no bin/nvcc") && passed_over[1].contains("nvcc 11.5.119"), "{error}");
    assert_eq!(error.fault(), ToolchainFault::Machine);
    machine.pip("");
    let found = machine.locate(&ToolchainOptions { provision: true, ..options() }).unwrap();
    assert_eq!(found.nvcc_origin, Origin::Provisioned);
    assert_eq!(found.passed_over.len(), 2);
}

#[test]
fn targets_are_supported_by_the_version_that_knows_them() {
    let mut machine = Machine::new();
    machine.environment.fourfold_cutlass = Some(machine.cutlass("cutlass", [4, 2, 0]).into());
    machine.nvcc("bin/nvcc", "12.8, V12.8.93");
    let found = machine.locate(&options()).unwrap();
    assert!(found.supports("sm_100a") && found.supports("120a") && !found.supports("sm_103a"));
    assert!(!found.supports("cpu"));
    assert_eq!(found.cutlass_include()[1], machine.path("cutlass/tools/util/include"));
}

#[test]
fn many_at_once_install_once() {
    let machine = Machine::new();
    machine.pip("sleep 0.4");
    let places: Vec<PathBuf> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| machine.provision().unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(machine.calls(), 1);
    assert!(places.iter().all(|place| *place == provisioned_folder(&machine.cache())));
    assert_eq!(machine.kept(), [places[0].file_name().unwrap().to_str().unwrap()]);
    let mode = |path: PathBuf| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(machine.cache()), mode(places[0].clone())), (0o700, 0o700));
    // pip does not always keep the bits; cicc was written without.
    assert_eq!(mode(places[0].join("nvidia/cu13/nvvm/bin/cicc")) & 0o111, 0o111);
    let calls = fs::read_to_string(machine.path("calls")).unwrap();
    for option in ["--require-hashes", "--no-deps", "--only-binary=:all:", "--no-compile"] {
        assert!(calls.contains(option), "{calls}");
    }
    machine.provision().unwrap();
    assert_eq!(machine.calls(), 1);
}

#[test]
fn progress_names_packages_and_says_when_it_waits() {
    let machine = Machine::new();
    // The fake client goes on once the other thread has said that it waits.
    let go = machine.path("go");
    machine.pip(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display()));
    let lines = || {
        let mut lines = Vec::new();
        let mut progress = |line: &str| {
            if line.contains("waiting") {
                write(&go, "");
            }
            lines.push(line.to_owned());
        };
        provision(&machine.cache(), &machine.environment, &mut progress).unwrap();
        lines
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(lines);
        (lines(), first.join().unwrap())
    });
    let (waiting, working) = if first.len() < second.len() { (first, second) } else { (second, first) };
    assert!(working.contains(&"getting nvidia-cuda-nvcc==13.0.88".to_owned()), "{working:?}");
    assert_eq!(waiting, ["another process is installing the toolchain; waiting for it"]);
}

#[test]
fn a_failing_client_is_quoted_and_leaves_nothing() {
    let cases: [(&str, &str, ToolchainFault); 6] = [
        (
            "ERROR: No matching distribution found for nvidia-nvvm==13.0.88",
            "NotOffered",
            ToolchainFault::Network,
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", "HashMismatch", ToolchainFault::Network),
        ("WARNING: ... connection broken by NewConnectionError ...", "Offline", ToolchainFault::Network),
        ("ERROR: Could not install packages: No space left on device", "DiskFull", ToolchainFault::Machine),
        ("/usr/bin/python3: No module named pip", "NoPip", ToolchainFault::Machine),
        ("ERROR: something new", "Pip", ToolchainFault::Machine),
    ];
    for (words, variant, fault) in cases {
        let machine = Machine::new();
        machine.pip(&format!("echo partial >\"$target/half\"; echo '{words}' >&2; exit 1"));
        let error = machine.provision().unwrap_err();
        assert!(format!("{error:?}").starts_with(variant), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.fault(), fault);
        assert_eq!(machine.kept(), [""; 0]);
        // The next attempt is not in the way of the failed one.
        machine.pip("");
        machine.provision().unwrap();
    }
    let machine = Machine::new();
    machine.pip("exit 0");
    let error = machine.provision().unwrap_err();
    assert!(matches!(&error, ToolchainError::Incomplete { .. }), "{error}");
    assert_eq!(machine.kept(), [""; 0]);
    let bare = Environment { path: Some("/nonexistent".into()), ..machine.environment.clone() };
    assert!(matches!(provision(&machine.cache(), &bare, &mut |_| {}), Err(ToolchainError::NoPython)));
}

#[test]
fn a_damaged_installation_is_not_used_and_is_done_anew() {
    let machine = Machine::new();
    machine.pip("");
    let place = machine.provision().unwrap();
    let damages: [&dyn Fn(); 4] = [
        &|| fs::remove_file(place.join(MARKER)).unwrap(),
        &|| write(&place.join("nvidia/cu13/bin/ptxas"), "short"),
        &|| fs::remove_file(place.join("cutlass_library/source/include/cute/tensor.hpp")).unwrap(),
        &|| write(&place.join(MARKER), "{"),
    ];
    for (count, damage) in damages.iter().enumerate() {
        damage();
        let error = machine.locate(&options()).unwrap_err();
        assert!(error.to_string().contains("the toolchain in"), "{error}");
        // What a killed installation leaves goes as well.
        let leftover = machine.cache().join("toolchain").join(format!(".partial-{}-dead", pins::key()));
        fs::create_dir_all(leftover.join("tree")).unwrap();
        assert_eq!(machine.provision().unwrap(), place);
        assert_eq!(machine.calls(), count + 2);
        assert_eq!(machine.kept().len(), 1);
        machine.locate(&options()).unwrap();
    }
    // A file that is not essential is noticed by whoever installs.
    write(&place.join("nvidia/cu13/include/stray.h"), "x");
    machine.locate(&options()).unwrap();
    machine.provision().unwrap();
    assert_eq!(machine.calls(), damages.len() + 2);
}

#[test]
fn a_carried_folder_is_copied_or_used_in_place_once_it_is_known_to_be_whole() {
    let source = Machine::new();
    source.pip("");
    let made = source.provision().unwrap();
    let target = Machine::new();
    let carried = target.path("carried");
    fs::create_dir(&carried).unwrap();
    tree::copy(&made, &carried).unwrap();
    let from = |folder: &Path| provision_from(folder, &target.cache(), &mut |_| {});
    let error = from(&carried).unwrap_err();
    assert!(error.to_string().contains("did not finish"), "{error}");
    assert_eq!(target.kept(), [""; 0]);
    fs::copy(made.join(MARKER), carried.join(MARKER)).unwrap();
    let place = from(&carried).unwrap();
    assert_eq!(place, provisioned_folder(&target.cache()));
    assert_eq!(target.locate(&options()).unwrap().nvcc_origin, Origin::Provisioned);
    assert_eq!(target.calls(), 0);
    // In place, with an empty cache.
    let environment = Environment {
        fourfold_toolchain: Some(carried.clone().into()),
        fourfold_cache_dir: Some(target.path("empty").into()),
        ..target.environment.clone()
    };
    assert_eq!(locate(&options(), &environment).unwrap().nvcc, carried.join("nvidia/cu13/bin/nvcc"));
    assert!(!target.path("empty").exists());
    // A link could lead anywhere.
    std::os::unix::fs::symlink("/etc/passwd", carried.join("link")).unwrap();
    assert!(from(&carried).unwrap_err().to_string().contains("neither a file nor a folder"));
}

#[test]
fn the_cache_is_where_the_variables_say() {
    let folder = |cache: Option<&str>, xdg: Option<&str>, home: Option<&str>| {
        cache_folder(&Environment {
            fourfold_cache_dir: cache.map(Into::into),
            xdg_cache_home: xdg.map(Into::into),
            home: home.map(Into::into),
            ..Environment::default()
        })
    };
    assert_eq!(folder(Some("/c"), Some("/x"), Some("/h")).unwrap(), Path::new("/c"));
    assert_eq!(folder(None, Some("/x"), Some("/h")).unwrap(), Path::new("/x/fourfold"));
    assert_eq!(folder(None, Some("relative"), Some("/h")).unwrap(), Path::new("/h/.cache/fourfold"));
    assert!(folder(Some("relative"), None, None).unwrap().is_absolute());
    assert!(matches!(folder(None, None, None), Err(ToolchainError::NoCacheFolder)));
    let error = provision(Path::new("/dev/null/cache"), &Environment::default(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, ToolchainError::Cache { action: "create", .. }), "{error}");
}

#[test]
fn a_diagnosis_says_what_is_missing_and_what_to_do() {
    let machine = Machine::new();
    let bare = Environment { path: Some(machine.path("bin").into()), ..machine.environment.clone() };
    let diagnosis = diagnose(&options(), &bare);
    assert!(!diagnosis.can_build());
    let missing: Vec<&str> = diagnosis
        .findings
        .iter()
        .filter(|finding| finding.state == FindingState::Missing)
        .inspect(|finding| assert!(finding.remedy.is_some(), "{finding:?}"))
        .map(|finding| finding.name)
        .collect();
    assert_eq!(missing, ["nvcc", "CUTLASS", "cuobjdump", "host compiler", "python3 with pip"]);
    assert!(!machine.cache().exists());

    machine.pip("");
    machine.provision().unwrap();
    program(&machine.path("bin/g++"), "#!/bin/sh\necho 'g++ 99.1'\n");
    fs::remove_file(machine.path("bin/python3")).unwrap();
    let diagnosis = diagnose(&options(), &bare);
    assert!(diagnosis.can_build(), "{diagnosis:?}");
    assert_eq!(diagnosis.nvcc, Some(Version(13, 0, 88)));
    let host = diagnosis.findings.iter().find(|finding| finding.name == "host compiler").unwrap();
    assert!(host.detail.starts_with("g++ 99.1 in "), "{host:?}");

    fs::set_permissions(machine.cache(), fs::Permissions::from_mode(0o777)).unwrap();
    let diagnosis = diagnose(&options(), &bare);
    let cache = diagnosis.findings.iter().find(|finding| finding.name == "cache").unwrap();
    assert_eq!(cache.state, FindingState::Note);
    assert!(cache.detail.contains("mode 777") && cache.detail.contains("written by others"), "{cache:?}");
}
