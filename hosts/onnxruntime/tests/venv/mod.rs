//! A virtual environment with the pinned packages, in the cache folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use fourfold::executor::environment::Environment;
use fourfold::executor::toolchain::cache_folder;

const REQUIREMENTS: &str = include_str!("../provider/requirements.txt");

/// The Python of the environment, which is installed at the first call. Other processes wait for it.
pub fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let cache = cache_folder(&Environment::from_process()).expect("a cache folder");
        let hash = blake3::hash(REQUIREMENTS.as_bytes()).to_hex();
        let folder = cache.join("test-venvs").join(format!("onnxruntime-{}", &hash[..16]));
        fs::create_dir_all(&folder).expect("a folder in the cache");
        let lock = File::create(folder.join("lock")).expect("a lock");
        lock.lock().expect("the lock");
        let (venv, complete) = (folder.join("venv"), folder.join("complete"));
        let python = venv.join("bin/python");
        if !complete.exists() {
            let requirements = folder.join("requirements.txt");
            fs::write(&requirements, REQUIREMENTS).expect("the list of packages");
            run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
            let install =
                ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "-r"];
            run(Command::new(&python).args(install).arg(&requirements));
            fs::write(&complete, "").expect("the mark of a complete environment");
        }
        python
    })
}

fn run(command: &mut Command) {
    let output = command.output().expect("Python 3 with the modules venv and pip");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{error}", output.status);
}
