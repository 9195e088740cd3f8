//! Holds `docs/reference/cli.md` to what every command prints with `--help`.

use std::path::Path;
use std::process::Command;

/// The help of a command, without the spaces at the ends of its lines.
fn help(command: &[&str]) -> String {
    let output =
        Command::new(env!("CARGO_BIN_EXE_fourfold")).args(command).arg("--help").output().expect("it starts");
    assert!(output.status.success(), "{command:?} has help");
    let text = String::from_utf8(output.stdout).expect("help is text");
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

/// The names of the commands that a help lists, without `help` itself.
fn commands(help: &str) -> Vec<&str> {
    let lines =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect()
}

/// A section for a command, and one for each command below it.
fn section(page: &mut String, command: &[&str]) {
    let help = help(command);
    let name = [&["fourfold"], command].concat().join(" ");
    page.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", help.trim_end()));
    for below in commands(&help) {
        section(page, &[command, &[below]].concat());
    }
}

#[test]
fn the_documentation_has_the_help_of_every_command() {
    let mut page = String::from(
        "# Command line\n\n\
         The help of every command, as `fourfold COMMAND --help` prints it. Every command has `--json`, which prints one\n\
         object on every exit. [Environment variables](environment.md) replace some options.\n",
    );
    section(&mut page, &[]);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/cli.md");
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        std::fs::write(&file, &page).expect("docs/ can be written");
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(found == page, "docs/reference/cli.md is out of date; run FOURFOLD_BLESS=1 cargo test");
}
