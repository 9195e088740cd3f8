//! Tests with fake trees, a fake compiler and a fake pip: selection, refusal and leftovers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::tree::{CUTLASS_LICENSE, ESSENTIAL, MARKER};
use super::*;
use crate::environment::Environment;

/// A fake machine: a home, its own `PATH`, and a folder for trees.
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

    fn cutlass(&self, name: &str, [major, minor, patch]: [u32; 3]) -> PathBuf {
        let folder = self.path(name);
        write(&folder.join("include/cutlass/version.h"), &version_header(Version(major, minor, patch)));
        write(&folder.join("include/cute/tensor.hpp"), "");
        fs::create_dir_all(folder.join("tools/util/include")).unwrap();
        folder
    }

    /// A fake `python3` with pip: it counts downloads, is slow, and unpacks a fake tree.
    fn pip(&self, before: &str) {
        self.pip_that(before, "");
    }

    /// Like [`pip`](Self::pip), with commands that run before it unpacks.
    fn pip_that(&self, before: &str, before_unpacking: &str) {
        let of = |part: Part| {
            let names = ESSENTIAL.iter().filter(|(of, _)| *of == part).map(|(_, name)| *name);
            names.collect::<Vec<_>>().join(" ")
        };
        let script = format!(
            "#!/bin/sh\n\
             case \"$*\" in *'pip config list'*) exit 0;; esac\n\
             case \"$*\" in *'pip download'*)\n\
               echo \"$@\" $(cut -d= -f1 requirements.txt) >>{calls}\n\
               grep -q -- '--hash=sha256:' requirements.txt || exit 9\n\
               echo 'Collecting nvidia-cuda-nvcc==13.1.115'\n\
               {before}\n\
               exit 0;;\n\
             esac\n\
             for tree; do :; done\n\
             {before_unpacking}\n\
             names=\n\
             if grep -q nvidia-cuda-nvcc plan.json; then names='{compiler}'; fi\n\
             if grep -q cutlass/include plan.json; then names=\"$names {cutlass}\"; fi\n\
             for name in $names; do mkdir -p \"$tree/${{name%/*}}\"; echo \"$name\" >\"$tree/$name\"; done\n\
             test -e \"$tree/nvidia\" && cat >\"$tree/nvidia/cu13/bin/nvcc\" <<'END'\n{nvcc}END\n\
             test -e \"$tree/cutlass\" && cat >\"$tree/cutlass/include/cutlass/version.h\" <<'END'\n{header}END\n\
             exit 0\n",
            calls = self.path("calls").display(),
            compiler = of(Part::Compiler),
            cutlass = of(Part::Cutlass),
            nvcc = nvcc_script(&format!("13.1, V{}", PINNED.nvcc)),
            header = version_header(Version::parse(PINNED.cutlass).unwrap()),
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
        self.provision_parts(&Part::ALL)
    }

    fn provision_parts(&self, parts: &[Part]) -> Result<PathBuf, ToolchainError> {
        provision(&self.cache(), parts, &self.environment, &mut |_| {})
    }

    /// The entries of the cache's toolchain folder, without the lock.
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

fn version_header(Version(major, minor, patch): Version) -> String {
    format!(
        "/****\n * Copyright (c) NVIDIA\n * Redistribution is permitted.\n ****/\n#pragma once\n#define CUTLASS_MAJOR {major}\n#define CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH {patch} \n"
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
    let cutlass = found.cutlass.clone().unwrap();
    assert_eq!((found.nvcc_origin, cutlass.origin), (Origin::Provisioned, Origin::Provisioned));
    assert_eq!(found.nvcc, tree.join("nvidia/cu13/bin/nvcc"));
    assert_eq!(cutlass.path, tree.join("cutlass"));
    // The pinned packages identify it.
    assert_eq!(found.cutlass_identity(), PINNED.cutlass);
    let license = fs::read_to_string(tree.join(CUTLASS_LICENSE)).unwrap();
    assert_eq!(license, "Copyright (c) NVIDIA\nRedistribution is permitted.\n");
    assert_eq!(found.cuobjdump, Some(tree.join("nvidia/cu13/bin/cuobjdump")));
    assert_eq!(found.include, [tree.join("nvidia/cu13/include"), tree.join("nvidia/cu13/include/cccl")]);
    assert_eq!(found.libraries, [tree.join("nvidia/cu13/lib")]);
    assert_eq!((found.nvcc_version.as_str(), cutlass.version.as_str()), (PINNED.nvcc, PINNED.cutlass));

    let expect =
        |machine: &Machine, options: &ToolchainOptions, nvcc: (&str, &str), cutlass: (&str, &str)| {
            let found = machine.locate(options).unwrap();
            assert_eq!((found.nvcc_version.as_str(), found.nvcc_origin.to_string().as_str()), nvcc);
            let other = found.cutlass.unwrap();
            assert_eq!((other.version.as_str(), other.origin.to_string().as_str()), cutlass);
        };
    let pinned = (PINNED.cutlass, "provisioned");
    machine.nvcc("bin/nvcc", "12.8, V12.8.61");
    expect(&machine, &options(), ("12.8.61", "PATH"), pinned);
    machine.nvcc("cuda/bin/nvcc", "12.9, V12.9.1");
    machine.environment.cuda_home = Some(machine.path("cuda").into());
    expect(&machine, &options(), ("12.9.1", "CUDA_HOME"), pinned);
    machine.environment.cutlass_path = Some(machine.cutlass("cutlass", [4, 5, 1]).into());
    expect(&machine, &options(), ("12.9.1", "CUDA_HOME"), ("4.5.1", "CUTLASS_PATH"));
    machine.environment.fourfold_toolchain = Some(tree.clone().into());
    expect(&machine, &options(), (PINNED.nvcc, "FOURFOLD_TOOLCHAIN"), (PINNED.cutlass, "FOURFOLD_TOOLCHAIN"));
    machine.environment.fourfold_nvcc = Some(machine.nvcc("mine/nvcc", "13.1, V13.1.2").into());
    expect(&machine, &options(), ("13.1.2", "FOURFOLD_NVCC"), (PINNED.cutlass, "FOURFOLD_TOOLCHAIN"));
    machine.environment.fourfold_cutlass = Some(machine.cutlass("newer", [4, 7, 0]).into());
    expect(&machine, &options(), ("13.1.2", "FOURFOLD_NVCC"), ("4.7.0", "FOURFOLD_CUTLASS"));
    let from = ToolchainOptions { from: Some(tree), ..options() };
    expect(&machine, &from, (PINNED.nvcc, "--from"), (PINNED.cutlass, "--from"));
    let nvcc = ToolchainOptions { nvcc: Some(machine.nvcc("other/nvcc", "13.2, V13.2.0")), ..from };
    expect(&machine, &nvcc, ("13.2.0", "--nvcc"), (PINNED.cutlass, "--from"));
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
    assert!(cutlass(machine.folder.path().to_owned()).contains("which contains neither include/cutlass"));
    assert!(cutlass(machine.cutlass("old_cutlass", [3, 9, 2])).contains("CUTLASS 3.9.2"));
    let partial = machine.cutlass("partial", [4, 2, 0]);
    fs::remove_dir_all(partial.join("tools")).unwrap();
    assert!(cutlass(partial).contains("without tools/util/include"));
    // An installed package has its headers in a subfolder.
    machine.cutlass("site/cutlass_library/source", [4, 3, 0]);
    let options = ToolchainOptions { nvcc: Some(good), cutlass: Some(machine.path("site")), ..options() };
    let found = machine.locate(&options).unwrap().cutlass.unwrap();
    assert_eq!(found.path, machine.path("site/cutlass_library/source"));
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
    // pip does not always keep permission bits; cicc was written without the executable bit.
    assert_eq!(mode(places[0].join("nvidia/cu13/nvvm/bin/cicc")) & 0o111, 0o111);
    let calls = fs::read_to_string(machine.path("calls")).unwrap();
    for option in ["--require-hashes", "--no-deps", "--only-binary=:all:"] {
        assert!(calls.contains(option), "{calls}");
    }
    machine.provision().unwrap();
    assert_eq!(machine.calls(), 1);
}

#[test]
fn progress_names_packages_and_says_when_it_waits() {
    let machine = Machine::new();
    // The fake pip continues once the other thread has reported that it waits.
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
        provision(&machine.cache(), &Part::ALL, &machine.environment, &mut progress).unwrap();
        lines
    };
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(lines);
        (lines(), first.join().unwrap())
    });
    let (waiting, working) = if first.len() < second.len() { (first, second) } else { (second, first) };
    assert!(working.contains(&"getting nvidia-cuda-nvcc==13.1.115".to_owned()), "{working:?}");
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
        machine.pip(&format!("echo partial >wheels/half; echo '{words}' >&2; exit 1"));
        let error = machine.provision().unwrap_err();
        assert!(format!("{error:?}").starts_with(variant), "{error:?}");
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(error.fault(), fault);
        assert_eq!(machine.kept(), [""; 0]);
        // A failed attempt does not affect the next one.
        machine.pip("");
        machine.provision().unwrap();
    }
    let machine = Machine::new();
    // The disk fills while files are unpacked; a wheel is not the pinned one.
    for (words, variant) in [
        ("OSError: [Errno 28] No space left on device", "DiskFull"),
        ("ERROR: no downloaded wheel of nvidia-nvvm has the pinned hash", "HashMismatch"),
    ] {
        machine.pip_that("", &format!("echo '{words}' >&2; exit 1"));
        let error = machine.provision().unwrap_err();
        assert!(format!("{error:?}").starts_with(variant), "{error:?}");
        assert_eq!(machine.kept(), [""; 0]);
    }
    machine.pip_that("", "exit 0");
    let error = machine.provision().unwrap_err();
    assert!(matches!(&error, ToolchainError::Incomplete { .. }), "{error}");
    assert_eq!(machine.kept(), [""; 0]);
    let bare = Environment { path: Some("/nonexistent".into()), ..machine.environment.clone() };
    assert!(matches!(
        provision(&machine.cache(), &Part::ALL, &bare, &mut |_| {}),
        Err(ToolchainError::NoPython)
    ));
}

#[test]
fn a_damaged_installation_is_not_used_and_is_done_anew() {
    let machine = Machine::new();
    machine.pip("");
    let place = machine.provision().unwrap();
    let damages: [&dyn Fn(); 4] = [
        &|| fs::remove_file(place.join("nvidia").join(MARKER)).unwrap(),
        &|| write(&place.join("nvidia/cu13/bin/ptxas"), "short"),
        &|| fs::remove_file(place.join("cutlass/include/cute/tensor.hpp")).unwrap(),
        &|| write(&place.join("cutlass").join(MARKER), "{"),
    ];
    for (count, damage) in damages.iter().enumerate() {
        damage();
        let error = machine.locate(&options()).unwrap_err();
        assert!(error.to_string().contains("the toolchain in"), "{error}");
        // The leftovers of a killed installation are removed too.
        let leftover = machine.cache().join("toolchain").join(format!(".partial-{}-dead", pins::key()));
        fs::create_dir_all(leftover.join("tree")).unwrap();
        assert_eq!(machine.provision().unwrap(), place);
        assert_eq!(machine.calls(), count + 2);
        assert_eq!(machine.kept().len(), 1);
        machine.locate(&options()).unwrap();
    }
    // A changed non-essential file is noticed only when installing.
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
    let markers = ["nvidia", "cutlass"].map(|part| Path::new(part).join(MARKER));
    tree::copy(&made, &carried).unwrap();
    markers.iter().for_each(|marker| fs::remove_file(carried.join(marker)).unwrap());
    let from = |folder: &Path| provision_from(folder, &target.cache(), &Part::ALL, &mut |_| {});
    let error = from(&carried).unwrap_err();
    assert!(error.to_string().contains("was interrupted"), "{error}");
    assert_eq!(target.kept(), [""; 0]);
    for marker in &markers {
        fs::copy(made.join(marker), carried.join(marker)).unwrap();
    }
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
    std::os::unix::fs::symlink("/etc/passwd", carried.join("nvidia/link")).unwrap();
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
    let error = provision(Path::new("/dev/null/cache"), &Part::ALL, &Environment::default(), &mut |_| {})
        .unwrap_err();
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
    let diagnosis = diagnose(&options(), &bare);
    let host = diagnosis.findings.iter().find(|finding| finding.name == "host compiler").unwrap();
    assert_eq!(host.state, FindingState::Missing, "nvcc calls gcc as well: {host:?}");
    assert!(host.detail.contains("nvcc requires `gcc`") && host.remedy.is_some(), "{host:?}");
    program(&machine.path("bin/gcc"), "#!/bin/sh\necho 'gcc 99.1'\n");
    fs::remove_file(machine.path("bin/python3")).unwrap();
    let diagnosis = diagnose(&options(), &bare);
    assert!(diagnosis.can_build(), "{diagnosis:?}");
    assert!(diagnosis.targets.iter().all(|target| target.problem.is_none()), "{diagnosis:?}");
    assert_eq!(diagnosis.nvcc, Version::parse(PINNED.nvcc));
    let host = diagnosis.findings.iter().find(|finding| finding.name == "host compiler").unwrap();
    assert!(host.detail.starts_with("g++ 99.1 in "), "{host:?}");

    fs::set_permissions(machine.cache(), fs::Permissions::from_mode(0o777)).unwrap();
    let diagnosis = diagnose(&options(), &bare);
    let cache = diagnosis.findings.iter().find(|finding| finding.name == "cache").unwrap();
    assert_eq!(cache.state, FindingState::Note);
    assert!(
        cache.detail.contains("mode 777") && cache.detail.contains("writable by other users"),
        "{cache:?}"
    );
}

/// The origin of the compiler that is chosen for these targets.
fn chosen_for(machine: &Machine, targets: &[&str]) -> Result<String, ToolchainError> {
    let targets = targets.iter().map(|target| (*target).to_owned()).collect();
    machine.locate(&ToolchainOptions { targets, ..options() }).map(|found| found.nvcc_origin.to_string())
}

#[test]
fn a_listed_compiler_is_passed_over_for_its_targets_only() {
    let mut machine = Machine::new();
    machine.environment.fourfold_cutlass = Some(machine.cutlass("cutlass", [4, 5, 0]).into());
    machine.nvcc("bin/nvcc", "13.0, V13.0.88");
    // Without an alternative, no compiler is found, and the error names the reason.
    let error = chosen_for(&machine, &["sm_120a"]).unwrap_err();
    assert_eq!((error.code(), error.fault()), ("toolchain_known_bad", ToolchainFault::Machine));
    assert!(error.to_string().contains("release notes") && error.is_absence(), "{error}");
    assert!(error.remedy().contains("fourfold toolchain install"));
    assert_eq!(chosen_for(&machine, &["sm_100a"]).unwrap(), "PATH");
    // A command that may install does.
    machine.pip("");
    let targets = vec!["sm_90a".to_owned()];
    let found = machine.locate(&ToolchainOptions { provision: true, targets, ..options() }).unwrap();
    assert_eq!((found.nvcc_origin, machine.calls()), (Origin::Provisioned, 1));
    assert!(found.passed_over[0].contains("nvcc 13.0.88"), "{:?}", found.passed_over);
    for (targets, origin) in [
        (&["sm_90a"][..], "provisioned"),
        (&["sm_120a"], "provisioned"),
        (&["sm_100a", "sm_90a"], "provisioned"),
        (&["sm_100a"], "PATH"),
        (&["sm_103a"], "PATH"),
        (&[], "PATH"),
    ] {
        assert_eq!(chosen_for(&machine, targets).unwrap(), origin, "{targets:?}");
    }
    // A shared compiler that does not support a target is skipped too.
    machine.nvcc("bin/nvcc", "12.8, V12.8.93");
    assert_eq!(chosen_for(&machine, &["sm_103a"]).unwrap(), "provisioned");
    assert_eq!(chosen_for(&machine, &["sm_100a"]).unwrap(), "PATH");
}

#[test]
fn a_listed_version_that_is_named_is_refused_unless_that_is_allowed() {
    let mut machine = Machine::new();
    let nvcc = machine.nvcc("mine/nvcc", "13.3, V13.3.73");
    machine.environment.cutlass_path = Some(machine.cutlass("old", [4, 3, 6]).into());
    let cutlass = machine.cutlass("cutlass", [4, 4, 0]);
    let named = ToolchainOptions {
        nvcc: Some(nvcc),
        cutlass: Some(cutlass),
        targets: vec!["sm_121a".to_owned()],
        provision: true,
        ..options()
    };
    let error = machine.locate(&named).unwrap_err();
    assert_eq!((error.code(), error.fault()), ("toolchain_known_bad", ToolchainFault::Request));
    assert!(error.to_string().starts_with("--nvcc names `"), "{error}");
    assert_eq!(machine.calls(), 0, "what is named is a mistake, and nothing is installed for it");
    let named = ToolchainOptions { provision: false, ..named };
    let allowed = ToolchainOptions { allow_known_bad: true, ..named.clone() };
    assert!(machine.locate(&allowed).unwrap().allow_known_bad);
    for (value, is_allowed) in [("1", true), ("0", false)] {
        machine.environment.fourfold_allow_known_bad = Some(value.into());
        assert_eq!(machine.locate(&named).is_ok(), is_allowed, "{value}");
    }
    // A shared CUTLASS is skipped likewise, and only matters for kernels that use it.
    machine.environment.fourfold_allow_known_bad = None;
    let shared =
        ToolchainOptions { nvcc: Some(machine.nvcc("good/nvcc", "13.2, V13.2.86")), cutlass: None, ..named };
    let error = machine.locate(&shared).unwrap_err();
    assert!(error.is_absence() && error.to_string().contains("CUTLASS 4.3.6"), "{error}");
    let hopper = ToolchainOptions { targets: vec!["sm_90a".to_owned()], ..shared.clone() };
    assert_eq!(machine.locate(&hopper).unwrap().cutlass.unwrap().version, "4.3.6");
    machine.pip("");
    machine.provision().unwrap();
    assert_eq!(machine.locate(&shared).unwrap().cutlass.unwrap().origin, Origin::Provisioned);
}

#[test]
fn a_hopper_needs_the_compiler_only_and_cutlass_is_added_later() {
    let machine = Machine::new();
    machine.pip("");
    assert_eq!(parts_for(&["sm_90a"]), [Part::Compiler]);
    assert_eq!(
        (parts_for(&["sm_90a", "sm_120a"]), parts_for::<&str>(&[])),
        (Part::ALL.into(), Part::ALL.into())
    );
    let place = machine.provision_parts(&[Part::Compiler]).unwrap();
    let calls = fs::read_to_string(machine.path("calls")).unwrap();
    assert!(calls.contains("nvidia-cuda-nvcc") && !calls.contains("flashinfer"), "{calls}");
    assert!(!place.join("cutlass").exists());
    let located =
        |target: &str| machine.locate(&ToolchainOptions { targets: vec![target.to_owned()], ..options() });
    let hopper = located("sm_90a").unwrap();
    assert_eq!((&hopper.cutlass, hopper.cutlass_identity().as_str()), (&None, NO_CUTLASS));
    assert!(hopper.cutlass_include().is_empty());
    let error = located("sm_120a").unwrap_err();
    assert!(matches!(error, ToolchainError::NotFound { what: "CUTLASS", .. }), "{error}");

    // The diagnosis is per target.
    program(&machine.path("bin/g++"), "#!/bin/sh\necho g++\n");
    program(&machine.path("bin/gcc"), "#!/bin/sh\necho gcc\n");
    for (target, can_build) in [("sm_90a", true), ("sm_120a", false)] {
        let targets = vec![target.to_owned()];
        let diagnosis = diagnose(&ToolchainOptions { targets, ..options() }, &machine.environment);
        assert_eq!(diagnosis.can_build(), can_build, "{target}: {diagnosis:?}");
        let of = |name| diagnosis.targets.iter().find(|found| found.target == name).unwrap();
        assert!(of("sm_90a").problem.is_none(), "{diagnosis:?}");
        assert!(of("sm_100a").problem.as_ref().unwrap().contains("no usable CUTLASS"), "{diagnosis:?}");
    }

    // A carried toolchain without CUTLASS serves these targets too.
    let target = Machine::new();
    let from = |parts: &[Part]| provision_from(&place, &target.cache(), parts, &mut |_| {});
    assert!(from(&Part::ALL).unwrap_err().to_string().contains("CUTLASS is not installed there"));
    from(&[Part::Compiler]).unwrap();

    machine.provision().unwrap();
    let calls = fs::read_to_string(machine.path("calls")).unwrap();
    let added = calls.lines().nth(1).unwrap();
    assert!(added.contains("flashinfer") && !added.contains("nvidia-"), "{added}");
    assert_eq!(located("sm_120a").unwrap().cutlass.unwrap().version, PINNED.cutlass);
    assert_eq!(machine.calls(), 2);
}

#[test]
fn headers_of_another_version_than_keys_would_hold_are_not_installed() {
    let machine = Machine::new();
    machine.pip("");
    let script = fs::read_to_string(machine.path("bin/python3")).unwrap();
    program(
        &machine.path("bin/python3"),
        &script.replace("#define CUTLASS_MINOR", "#define CUTLASS_MINOR 9\n//"),
    );
    let error = machine.provision().unwrap_err();
    assert!(matches!(&error, ToolchainError::Incomplete { reason } if reason.contains("4.9.0")), "{error}");
    assert_eq!(machine.kept(), [""; 0]);
}

#[test]
fn nothing_that_is_set_for_pip_diverts_a_download() {
    let mut machine = Machine::new();
    machine.pip("");
    let log = machine.path("log");
    let record = format!("#!/bin/sh\n{{ echo \"== $*\"; env; }} >>{}\n", log.display());
    let script = fs::read_to_string(machine.path("bin/python3")).unwrap();
    let says = "case \"$*\" in *'pip config list'*) echo \"global.index-url='https://file'\"; \
                echo \"global.proxy='http://file'\"; echo \"global.target='/file'\"; exit 0;; esac\n";
    program(&machine.path("bin/python3"), &script.replace("#!/bin/sh\n", &format!("{record}{says}")));
    let hostile = [
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_ROOT",
        "PIP_USER",
        "PIP_NO_DEPS",
        "PIP_DRY_RUN",
        "PIP_REPORT",
        "PIP_DEST",
        "PIP_PLATFORM",
        "PIP_ABI",
        "PIP_PYTHON_VERSION",
        "PIP_IMPLEMENTATION",
        "PIP_REQUIREMENT",
        "PIP_CONSTRAINT",
        "PIP_NO_BINARY",
        "PIP_ONLY_BINARY",
        "PIP_PYTHON",
        "PIP_LOG",
        "PIP_QUIET",
        "PIP_REQUIRE_VIRTUALENV",
        "PIP_REQUIRE_HASHES",
        "PIP_CACHE_DIR",
        "PIP_ISOLATED",
        "PIP_HELP",
        "PIP_VERSION",
        "PIP_PRE",
        "PIP_SRC",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "PYTHONWARNINGS",
        "PYTHONINSPECT",
        "TMPDIR",
        "LD_PRELOAD",
    ];
    let kept = [("PIP_INDEX_URL", "https://mirror"), ("PIP_RETRIES", "0"), ("https_proxy", "http://proxy")];
    let path = machine.environment.path.clone();
    machine.environment = Environment {
        fourfold_cache_dir: machine.environment.fourfold_cache_dir.clone(),
        ..Environment::from_lookup(|name| match name {
            "PATH" => path.clone(),
            "PIP_CONFIG_FILE" => Some("/users/pip.conf".into()),
            _ if hostile.contains(&name) => Some("/diverted".into()),
            _ => kept.iter().find(|(kept, _)| *kept == name).map(|(_, value)| (*value).into()),
        })
    };
    machine.provision().unwrap();
    let log = fs::read_to_string(log).unwrap();
    let mut calls = log.split("== ").skip(1);
    let (settings, download, unpack) = (calls.next().unwrap(), calls.next().unwrap(), calls.next().unwrap());
    assert!(calls.next().is_none() && download.starts_with("-m pip download "), "{log}");
    for call in [settings, download, unpack] {
        assert!(!call.contains("/diverted"), "{call}");
    }
    let value = |name: &str| download.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
    // Variables precede files. Other settings in files are ignored, as are files that pip would read itself.
    assert_eq!(value("PIP_INDEX_URL"), Some("https://mirror"));
    assert_eq!((value("PIP_PROXY"), value("https_proxy")), (Some("http://file"), Some("http://proxy")));
    assert_eq!((value("PIP_CONFIG_FILE"), value("PIP_RETRIES")), (Some("/dev/null"), Some("1")));
    let pip: Vec<&str> = download.lines().filter(|line| line.starts_with("PIP_")).collect();
    assert_eq!(pip.len(), 5, "{pip:?}");
    assert!(settings.contains("PIP_CONFIG_FILE=/users/pip.conf"), "{settings}");
}

/// Makes a wheel with Python's own library, and returns its hash.
fn wheel(machine: &Machine, name: &str, files: &str) -> String {
    let make = "import hashlib, json, sys, zipfile\n\
                with zipfile.ZipFile(sys.argv[1], 'w') as wheel:\n\
                \x20   for name, (text, mode) in json.loads(sys.argv[2]).items():\n\
                \x20       entry = zipfile.ZipInfo(name)\n\
                \x20       entry.external_attr = mode << 16\n\
                \x20       wheel.writestr(entry, text)\n\
                print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())\n";
    fs::create_dir_all(machine.path("wheels")).unwrap();
    let file = machine.path("wheels").join(name);
    let output =
        std::process::Command::new("python3").args(["-c", make]).arg(file).arg(files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn only_what_is_needed_is_unpacked_and_only_from_the_pinned_wheel() {
    let machine = Machine::new();
    let files = r#"{"pkg/include/a.h": ["a", 420], "pkg/bin/tool": ["tool", 493], "pkg/other/b.h": ["b", 420],
                    "pkg-1.dist-info/licenses/LICENSE": ["licence", 420],
                    "pkg-1.dist-info/licenses/LICENSE.other": ["other", 420]}"#;
    let hash = wheel(&machine, "pkg-1-py3-none-any.whl", files);
    let evil = wheel(&machine, "evil.whl", r#"{"pkg/include/../../../evil": ["evil", 420]}"#);
    write(&machine.path("unpack.py"), include_str!("unpack.py"));
    let unpack = |hash: &str, takes: &str, tree: &str| {
        let plan = format!(r#"[{{"name": "pkg", "hashes": ["0", "{hash}"], "takes": {takes}}}]"#);
        write(&machine.path("plan.json"), &plan);
        let mut command = std::process::Command::new("python3");
        command.current_dir(machine.folder.path()).args(["-I", "unpack.py", "plan.json", "wheels", tree]);
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stderr).unwrap())
    };
    let takes = r#"[["pkg/include/", "x/include/"], ["pkg/bin/", "x/bin/"],
                    ["pkg-1.dist-info/licenses/LICENSE", "x/licenses/pkg"]]"#;
    assert_eq!(unpack(&hash, takes, "tree"), (true, String::new()));
    let read = |name: &str| fs::read_to_string(machine.path("tree").join(name));
    assert_eq!(
        (read("x/include/a.h").unwrap(), read("x/licenses/pkg").unwrap()),
        ("a".into(), "licence".into())
    );
    assert_eq!(tree::inventory(&machine.path("tree")).unwrap().0, 3);
    let mode = |name: &str| machine.path("tree").join(name).metadata().unwrap().permissions().mode() & 0o111;
    assert_eq!((mode("x/bin/tool"), mode("x/include/a.h")), (0o111, 0));

    let (ok, said) = unpack(&"1".repeat(64), takes, "other");
    assert!(!ok && said.contains("no downloaded wheel of pkg has the pinned hash"), "{said}");
    let (ok, said) = unpack(&evil, takes, "a/b/c");
    assert!(!ok && said.contains("a wheel contains a file with the unsafe name"), "{said}");
    assert!(!machine.path("a/evil").exists() && !machine.path("evil").exists());
    let (ok, said) = unpack(&hash, r#"[["absent/", "x/"]]"#, "empty");
    assert!(!ok && said.contains("none of the required files"), "{said}");
}

#[test]
fn a_script_in_place_of_nvcc_leads_to_the_toolkit_of_the_nvcc_that_it_starts() {
    let mut machine = Machine::new();
    for name in
        ["kit/include/cuda_runtime.h", "kit/include/cccl/cuda/std/version", "kit/lib/libcudart_static.a"]
    {
        write(&machine.path(name), "");
    }
    let dryrun =
        "case \"$1\" in --dryrun) echo \"#$ _SPACE_= \"; echo \"#$ TOP=$(dirname $0)/..\"; exit 0;; esac\n";
    let says = nvcc_script("13.1, V13.1.115").replace("#!/bin/sh\n", &format!("#!/bin/sh\n{dryrun}"));
    program(&machine.path("kit/bin/nvcc"), &says);
    program(&machine.path("scripts/nvcc"), "#!/bin/sh\nexec \"$FOURFOLD_TOOLCHAIN/bin/nvcc\" \"$@\"\n");
    machine.environment.fourfold_toolchain = Some(machine.path("kit").into());
    program(&machine.path("kit/bin/cuobjdump"), "#!/bin/sh\n");
    let found = |machine: &Machine| {
        let nvcc = Some(machine.path("scripts/nvcc"));
        let cutlass = Some(machine.cutlass("cutlass", [4, 5, 0]));
        machine.locate(&ToolchainOptions { nvcc, cutlass, ..options() })
    };
    let toolchain = found(&machine).unwrap();
    let kit = machine.path("kit").canonicalize().unwrap();
    assert_eq!(toolchain.nvcc, machine.path("scripts/nvcc"));
    assert_eq!(toolchain.include, [kit.join("include"), kit.join("include/cccl")]);
    assert_eq!(toolchain.libraries, [kit.join("lib")]);
    assert_eq!(toolchain.cuobjdump.unwrap().canonicalize().unwrap(), kit.join("bin/cuobjdump"));
    // A folder with shell metacharacters is not passed on.
    machine.environment.fourfold_toolchain = Some(machine.path("kit;true").into());
    let error = found(&machine).unwrap_err().to_string();
    assert!(error.contains("which does not report its version"), "{error}");
}

#[test]
fn a_link_to_nvcc_is_resolved_and_one_to_a_launcher_is_not() {
    let machine = Machine::new();
    machine.nvcc("kit/bin/nvcc", "13.1, V13.1.115");
    write(&machine.path("kit/bin/nvcc.profile"), "");
    machine.nvcc("launchers/launcher", "13.1, V13.1.115");
    fs::create_dir(machine.path("links")).unwrap();
    let cutlass = machine.cutlass("cutlass", [4, 5, 0]);
    for (real, link, expected) in [
        ("kit/bin/nvcc", "links/nvcc", "kit/bin/nvcc"),
        ("launchers/launcher", "links/nvcc-cached", "links/nvcc-cached"),
    ] {
        std::os::unix::fs::symlink(machine.path(real), machine.path(link)).unwrap();
        let nvcc = Some(machine.path(link));
        let found = machine.locate(&ToolchainOptions { nvcc, cutlass: Some(cutlass.clone()), ..options() });
        assert_eq!(found.unwrap().nvcc.canonicalize().unwrap(), machine.path(real).canonicalize().unwrap());
        let nvcc = Some(machine.path(link));
        let found = machine.locate(&ToolchainOptions { nvcc, cutlass: Some(cutlass.clone()), ..options() });
        assert!(found.unwrap().nvcc.ends_with(expected));
    }
}

#[test]
fn what_is_no_regular_file_is_named_and_never_waited_for() {
    let mut machine = Machine::new();
    let pipe = |path: &Path| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    // The marker of a toolchain.
    fs::create_dir_all(machine.path("carried/cutlass")).unwrap();
    pipe(&machine.path("carried/nvidia").join(MARKER));
    let from = Some(machine.path("carried"));
    let error = machine.locate(&ToolchainOptions { from: from.clone(), ..options() }).unwrap_err();
    assert!(matches!(error, ToolchainError::Damaged { .. }), "{error:?}");
    assert!(error.to_string().contains("not a regular file"), "{error}");
    let diagnosis = diagnose(&ToolchainOptions { from, ..options() }, &machine.environment);
    assert!(!diagnosis.can_build());
    // A host compiler, which is hashed.
    for compiler in [machine.path("pipe"), "/dev/zero".into()] {
        if !compiler.exists() {
            pipe(&compiler);
        }
        machine.environment.nvcc_ccbin = Some(compiler.into());
        let tools = crate::build::ToolEnvironment::new(&machine.environment);
        assert!(!tools.identity().is_empty());
    }
    // A header of CUTLASS.
    let nvcc = machine.nvcc("nvcc", "13.1, V13.1.115");
    let cutlass = machine.cutlass("cutlass", [4, 5, 0]);
    pipe(&cutlass.join("include/cutlass/pipe.h"));
    let named = ToolchainOptions { nvcc: Some(nvcc), cutlass: Some(cutlass.clone()), ..options() };
    assert!(machine.locate(&named).unwrap().cutlass_identity().starts_with("4.5.0+"));
    fs::remove_file(cutlass.join("include/cutlass/version.h")).unwrap();
    pipe(&cutlass.join("include/cutlass/version.h"));
    let error = machine.locate(&named).unwrap_err();
    assert!(matches!(error, ToolchainError::Named { named: "--cutlass", .. }), "{error}");
}

#[test]
fn a_cutlass_of_another_program_does_not_matter_where_none_is_needed() {
    let mut machine = Machine::new();
    let nvcc = Some(machine.nvcc("nvcc", "13.1, V13.1.115"));
    machine.environment.cutlass_path = Some(machine.path("nowhere").into());
    let located = |target: &str| {
        let targets = vec![target.to_owned()];
        machine.locate(&ToolchainOptions { nvcc: nvcc.clone(), targets, ..options() })
    };
    assert_eq!(located("sm_90a").unwrap().cutlass, None);
    let error = located("sm_120a").unwrap_err();
    assert!(matches!(error, ToolchainError::Named { named: "CUTLASS_PATH", .. }), "{error}");
}

#[test]
fn the_doctor_is_not_content_with_a_compiler_that_is_too_old_for_a_target() {
    let machine = Machine::new();
    let nvcc = Some(machine.nvcc("kit/bin/nvcc", "12.8, V12.8.93"));
    program(&machine.path("kit/bin/cuobjdump"), "#!/bin/sh\n");
    program(&machine.path("bin/g++"), "#!/bin/sh\necho g++\n");
    program(&machine.path("bin/gcc"), "#!/bin/sh\necho gcc\n");
    let cutlass = Some(machine.cutlass("cutlass", [4, 5, 0]));
    for (targets, can_build) in [(vec![], true), (vec!["sm_100a"], true), (vec!["sm_103a"], false)] {
        let targets: Vec<String> = targets.into_iter().map(str::to_owned).collect();
        let asked = ToolchainOptions {
            nvcc: nvcc.clone(),
            cutlass: cutlass.clone(),
            targets: targets.clone(),
            ..options()
        };
        assert_eq!(diagnose(&asked, &machine.environment).can_build(), can_build, "{targets:?}");
    }
}
