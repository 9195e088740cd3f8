//! The hosts that embed Fourfold: the packages that each needs, those installed, and the versions that were tested.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fourfold_executor::run_tool;
use serde::{Deserialize, Serialize};

use crate::doctor::FindingReport;

const HOSTS: &str = include_str!("../../hosts/hosts.toml");

/// The time limit of a program that is asked for versions.
const LIMIT: Duration = Duration::from_secs(60);

/// Prints the installed version of each named package, or null, as one line of JSON after a mark.
const SCRIPT: &str = "
import sys
# Packages of the working folder do not count.
sys.path = [place for place in sys.path if place]
import importlib.metadata, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print('\\n@', json.dumps({name: version(name) for name in sys.argv[1:]}))
";

/// The state of one host on this machine. Its keys are a stable interface: keys may be added, never changed.
#[derive(Clone, Debug, Serialize)]
pub struct HostReport {
    /// True if everything that the host needs is installed.
    pub ok: bool,
    /// The host's name, such as `torch`.
    pub host: String,
    /// The host's title.
    pub title: String,
    /// The page that describes its installation, in the repository.
    pub guide: String,
    /// The Python interpreter that was asked; null if the host has no Python packages.
    pub python: Option<String>,
    /// One finding for each package: `ok` in a tested version, `note` in another or for an optional one, `missing`
    /// if a required one is not installed.
    pub findings: Vec<FindingReport>,
}

#[derive(Deserialize)]
struct File {
    host: Vec<Host>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    name: String,
    title: String,
    guide: String,
    package: Vec<Package>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Package {
    name: String,
    kind: Kind,
    required: bool,
    tested: Vec<String>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Python,
    PkgConfig,
    Crate,
}

fn hosts() -> Vec<Host> {
    toml::from_str::<File>(HOSTS).expect("a test reads the list of hosts").host
}

/// The names of the hosts.
pub fn host_names() -> Vec<String> {
    hosts().into_iter().map(|host| host.name).collect()
}

/// Examines one host; `None` if no host has this name. Starts the interpreter `python`, or pkg-config, if the host's
/// packages need it. Uses no network and changes nothing.
pub fn examine_host(name: &str, python: &Path) -> Option<HostReport> {
    let Host { name: host, title, guide, package: packages } =
        hosts().into_iter().find(|host| host.name == name)?;
    let of_python: Vec<&str> =
        packages.iter().filter(|it| it.kind == Kind::Python).map(|it| it.name.as_str()).collect();
    let versions = (!of_python.is_empty()).then(|| python_versions(python, &of_python));
    let asked = versions.as_ref().map(|_| python.display().to_string());
    let finding = |package: &Package| {
        let found = match (package.kind, &versions) {
            (Kind::Python, Some(Ok(versions))) => Ok(versions.get(&package.name).cloned().flatten()),
            (Kind::Python, Some(Err(why))) => Err(why.clone()),
            (Kind::Python, None) => Ok(None),
            (Kind::PkgConfig, _) => pkg_config_version(&package.name),
            (Kind::Crate, _) => return resolved_by_cargo(package),
        };
        judge(package, found, &guide)
    };
    let findings: Vec<FindingReport> = packages.iter().map(finding).collect();
    let ok = findings.iter().all(|finding| finding.state != "missing");
    Some(HostReport { ok, host, title, guide, python: asked, findings })
}

fn judge(package: &Package, found: Result<Option<String>, String>, guide: &str) -> FindingReport {
    let tested = package.tested.join(" or ");
    let report = |state, detail: String, remedy: Option<String>| FindingReport {
        name: package.name.clone(),
        state,
        detail,
        remedy,
    };
    let absent = if package.required { "missing" } else { "note" };
    match found {
        Ok(Some(version)) if package.tested.contains(&version) => {
            report("ok", format!("{version}, as tested"), None)
        }
        Ok(Some(version)) => {
            let detail = format!("{version}; tested with {tested}");
            report("note", detail, Some(format!("if the host fails, try version {tested}")))
        }
        Ok(None) => {
            let detail = format!("not installed; tested with {tested}");
            report(absent, detail, Some(format!("see {guide}")))
        }
        Err(why) => {
            report(absent, format!("unknown: {why}"), Some("name the interpreter with --python".to_owned()))
        }
    }
}

fn resolved_by_cargo(package: &Package) -> FindingReport {
    FindingReport {
        name: package.name.clone(),
        state: "ok",
        detail: format!("resolved by cargo; tested with {}", package.tested.join(" or ")),
        remedy: None,
    }
}

/// The installed versions of Python packages.
fn python_versions(python: &Path, names: &[&str]) -> Result<BTreeMap<String, Option<String>>, String> {
    let mut command = Command::new(python);
    command.arg("-c").arg(SCRIPT).args(names);
    let run = run_tool(&mut command, LIMIT).map_err(|error| format!("`{}`: {error}", python.display()))?;
    // Site packages may print something, too.
    let line = run.log.lines().rev().find_map(|line| line.strip_prefix("@ "));
    match line.map(serde_json::from_str) {
        Some(Ok(versions)) if run.succeeded() => Ok(versions),
        _ => Err(format!("`{}` ended with {}", python.display(), run.ending())),
    }
}

fn pkg_config_version(name: &str) -> Result<Option<String>, String> {
    let run = run_tool(Command::new("pkg-config").args(["--modversion", name]), LIMIT);
    match run {
        Ok(run) if run.succeeded() => Ok(Some(run.log.trim().to_owned())),
        // Without pkg-config nothing can be installed that it knows.
        Ok(_) | Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_host_is_described() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let known = hosts();
        let mut guides: Vec<String> = known.iter().map(|host| host.guide.clone()).collect();
        for host in &known {
            assert!(!host.package.is_empty() && !host.title.is_empty(), "{}", host.name);
            assert!(host.package.iter().all(|package| !package.tested.is_empty()), "{}", host.name);
        }
        let mut present: Vec<String> = std::fs::read_dir(folder.join("hosts"))
            .expect("a folder")
            .map(|entry| entry.expect("an entry"))
            .filter(|entry| entry.path().is_dir())
            .map(|entry| format!("hosts/{}/README.md", entry.file_name().to_string_lossy()))
            .collect();
        guides.sort();
        present.sort();
        assert_eq!(guides, present);
    }

    /// The tested versions are those that the hosts' own files pin.
    #[test]
    fn tested_versions_are_pinned_by_the_tests_of_the_host() {
        let read = |file: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hosts").join(file);
            std::fs::read_to_string(path).expect("a file")
        };
        for (package, pin) in [
            ("torch", read("python/tests/requirements.txt")),
            ("torchao", read("python/tests/requirements.txt")),
            ("onnxruntime", read("onnxruntime/tests/provider/requirements.txt")),
            ("tract-core", read("tract/Cargo.toml")),
        ] {
            let known = hosts();
            let mut packages = known.iter().flat_map(|host| &host.package);
            let tested = &packages.find(|it| it.name == package).expect("a package").tested[0];
            let pins = [format!("{package}=={tested}"), format!("{package} = \"={tested}\"")];
            assert!(pin.lines().any(|line| pins.iter().any(|pin| line == pin)), "{package} {tested}");
        }
    }

    #[test]
    fn versions_are_judged() {
        let package = |required| Package {
            name: "torch".to_owned(),
            kind: Kind::Python,
            required,
            tested: vec!["2.11.0".to_owned(), "2.15.0".to_owned()],
        };
        let judged = |required, found: Result<Option<&str>, &str>| {
            let found = found.map(|version| version.map(str::to_owned)).map_err(str::to_owned);
            let FindingReport { state, detail, .. } =
                judge(&package(required), found, "hosts/python/README.md");
            (state, detail)
        };
        assert_eq!(judged(true, Ok(Some("2.15.0"))), ("ok", "2.15.0, as tested".to_owned()));
        assert_eq!(
            judged(true, Ok(Some("2.12.0"))),
            ("note", "2.12.0; tested with 2.11.0 or 2.15.0".to_owned())
        );
        assert_eq!(judged(true, Ok(None)).0, "missing");
        assert_eq!(judged(false, Ok(None)).0, "note");
        assert_eq!(judged(true, Err("no python")), ("missing", "unknown: no python".to_owned()));
    }

    #[test]
    fn an_interpreter_is_asked() {
        let versions = python_versions(Path::new("python3"), &["pip", "no-such-package"]).expect("versions");
        assert!(versions["pip"].is_some() && versions["no-such-package"].is_none(), "{versions:?}");
        let why = python_versions(Path::new("/no/such/python"), &["pip"]).expect_err("no interpreter");
        assert!(why.contains("/no/such/python"), "{why}");
        assert!(python_versions(Path::new("false"), &["pip"]).is_err());
        assert!(examine_host("no such host", Path::new("python3")).is_none());
    }
}
