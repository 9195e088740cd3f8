//! The list of environment variables is the documentation, and nothing reads a variable that it lacks.

use std::path::{Path, PathBuf};

use fourfold_executor::environment::{PIP_VARIABLES, VARIABLES};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn the_documentation_lists_every_variable() {
    let mut text = String::from(
        "# Environment variables\n\n\
         `fourfold doctor` prints this list with each variable's value, or `unset`. An empty value counts as unset.\n\n\
         | variable | value | default | purpose |\n|---|---|---|---|\n",
    );
    for variable in VARIABLES {
        text += &format!(
            "| `{}` | {} | {} | {} |\n",
            variable.name, variable.kind, variable.default, variable.meaning
        );
    }
    text += "\n## What the compiler sees\n\n\
             nvcc, its parts, the host compiler and the disassembler see only two of the caller's variables:\n\n\
             - `LD_LIBRARY_PATH`, as the table says;\n\
             - `FOURFOLD_TOOLCHAIN`, if it is a plain path, because nvcc may be a script that reads it.\n\n\
             They also get `LC_ALL=C`, a `TMPDIR` in the build folder, and a `PATH` of the system's folders.\n\n\
             A compiler launcher (`--launcher`) also gets its own settings:\n\n\
             - `HOME`, `USER`, `LOGNAME`, `TZ`, and `TMPDIR` if its value is a plain path;\n\
             - `XDG_CACHE_HOME`, `XDG_CONFIG_HOME`, `XDG_RUNTIME_DIR`;\n\
             - `HTTP_PROXY`, `HTTPS_PROXY`, `NO_PROXY` (in either case), `SSL_CERT_DIR`, `SSL_CERT_FILE`;\n\
             - `SCCACHE_...`, `AWS_...`, `AZURE_...`, `GOOGLE_...`, `ACTIONS_...`, and `CCACHE_...` except the variables that\n  \
             name a compiler.\n";
    text += "\n`toolchain install` passes `PATH`, `HOME` and the variables below to python3 and its pip, and no\n\
             others. From pip's configuration files, it takes only settings for package indexes, network access and\n\
             certificates.\n\n";
    let names: Vec<String> = PIP_VARIABLES.iter().map(|name| format!("`{name}`")).collect();
    text += &format!("{}\n", names.join(", "));
    let file = repository().join("docs/reference/environment.md");
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(&file, &text).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == text, "docs/reference/environment.md is out of date; run FOURFOLD_BLESS=1 cargo test");
}

#[test]
fn no_source_reads_a_variable_that_is_not_listed() {
    let mut folders: Vec<PathBuf> =
        ["src", "ir", "scheduler", "codegen", "executor", "tests"].map(|name| repository().join(name)).into();
    let mut reads = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be listed").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.extension().is_none_or(|extension| extension != "rs") {
                continue;
            }
            let source = std::fs::read_to_string(&path).expect("sources are text");
            for (_, rest) in [concat!("env::", "var(\""), concat!("env::", "var_os(\"")]
                .iter()
                .flat_map(|call| source.match_indices(*call).map(|(at, _)| source.split_at(at + call.len())))
            {
                let name = rest.split('"').next().unwrap_or_default();
                let listed = VARIABLES.iter().any(|variable| variable.name == name);
                assert!(listed, "{} reads {name}, which environment::VARIABLES lacks", path.display());
                reads += 1;
            }
        }
    }
    assert!(reads > 0, "reads of variables are found");
}
