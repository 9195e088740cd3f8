//! Removes private data from a report: folders, the user's name and the machine's name.

use std::path::{Path, PathBuf};

use fourfold_executor::environment::Environment;
use fourfold_executor::host_name;
use serde_json::Value;

/// The keys of texts that tools or the system wrote. Only there, names are replaced: elsewhere a user called
/// `kernel` would change the report.
const WRITTEN_BY_OTHERS: [&str; 6] = ["error", "first_error", "log", "message", "passed_over", "remedy"];

/// The private data of this process.
#[derive(Debug, Default)]
pub(super) struct Private {
    /// Folders whose names can contain spaces, the longest first.
    folders: Vec<String>,
    /// Names, each with its replacement.
    names: Vec<(String, &'static str)>,
}

impl Private {
    /// The private data of this process. `named` are the paths on the command line.
    pub(super) fn of_process<'a>(named: impl IntoIterator<Item = &'a Path>) -> Private {
        let home = Environment::from_process().home.map(PathBuf::from);
        let user = home.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let mut folders: Vec<String> = Vec::new();
        let mut add = |folder: &Path| {
            // The root folder is no secret, and is part of every path.
            if folder.is_absolute() && folder.parent().is_some() {
                // A slash at the end is dropped.
                let folder: PathBuf = folder.components().collect();
                folders.push(folder.to_string_lossy().into_owned());
            }
        };
        for path in named {
            path.parent().into_iter().for_each(&mut add);
            Some(path).filter(|path| path.is_dir()).into_iter().for_each(&mut add);
        }
        let others = [home, std::env::current_dir().ok(), Some(std::env::temp_dir())];
        others.iter().flatten().for_each(|folder| add(folder));
        Private::new(folders, user, host_name())
    }

    fn new(mut folders: Vec<String>, user: Option<String>, host: Option<String>) -> Private {
        folders.sort_by_key(|folder| std::cmp::Reverse(folder.len()));
        folders.dedup();
        let names = [(user, "<user>"), (host, "<host>")];
        let names = names.into_iter().filter_map(|(name, shown)| Some((name?, shown)));
        Private { folders, names: names.filter(|(name, _)| !name.is_empty()).collect() }
    }

    /// Removes private data from every text of an object.
    pub(super) fn remove_from(&self, value: &mut Value) {
        self.remove_below(value, "");
    }

    fn remove_below(&self, value: &mut Value, key: &str) {
        match value {
            Value::String(text) => *text = self.cleaned(text, WRITTEN_BY_OTHERS.contains(&key)),
            Value::Array(values) => values.iter_mut().for_each(|value| self.remove_below(value, key)),
            Value::Object(object) => {
                object.iter_mut().for_each(|(key, value)| self.remove_below(value, key));
            }
            _ => {}
        }
    }

    /// Returns a text without folders: of each path, its last component stays. `replace_names` also replaces the
    /// names of the user and the machine.
    fn cleaned(&self, text: &str, replace_names: bool) -> String {
        let mut text = text.to_owned();
        for folder in &self.folders {
            text = replaced(&text, folder, "/folder", is_in_component);
        }
        text = without_folders(&text);
        for (name, shown) in self.names.iter().filter(|_| replace_names) {
            text = replaced(&text, name, shown, |c| c.is_alphanumeric() || c == '_');
        }
        text
    }
}

/// Replaces a phrase wherever neither neighbour continues it.
fn replaced(text: &str, phrase: &str, by: &str, continues: impl Fn(char) -> bool) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(phrase) {
        let (before, behind) = (&rest[..at], &rest[at + phrase.len()..]);
        let previous = before.chars().next_back().or_else(|| clean.chars().next_back());
        // A path may follow an option: -I/usr/include.
        let begins = phrase.starts_with('/') || !previous.is_some_and(&continues);
        let ends = !behind.chars().next().is_some_and(&continues);
        clean.push_str(before);
        clean.push_str(if begins && ends { by } else { phrase });
        rest = behind;
    }
    clean.push_str(rest);
    clean
}

/// Replaces each path that is absolute, or leads up or home, by its last component.
fn without_folders(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if !begins_path(&clean, rest) {
            clean.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        }
        let path = path_at(rest, clean.chars().next_back());
        let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        clean.push_str(if matches!(name, "" | "~" | "..") { "folder" } else { name });
        rest = &rest[path.len()..];
    }
    clean
}

/// Returns true if a path begins here, and not a fraction, an option or the rest of a relative path.
fn begins_path(before: &str, rest: &str) -> bool {
    let mut letters = rest.chars();
    let is_absolute = letters.next() == Some('/') && letters.next().is_some_and(is_in_component);
    if !is_absolute && !rest.starts_with("../") && !rest.starts_with("~/") {
        return false;
    }
    let follows_option = ["-I", "-L"].iter().any(|option| before.ends_with(option));
    let continues = |c: char| is_in_component(c) || matches!(c, ')' | ']' | '%' | '}');
    follows_option || !before.chars().next_back().is_some_and(continues)
}

/// Returns the path at the beginning of a text. After a quotation mark it extends to the next one.
fn path_at(rest: &str, previous: Option<char>) -> &str {
    let line = rest.lines().next().unwrap_or(rest);
    let quoted = previous.filter(|mark| matches!(mark, '`' | '\'' | '"')).and_then(|mark| line.find(mark));
    let end = quoted.unwrap_or_else(|| {
        line.find(|c: char| !is_in_component(c) && !matches!(c, '/' | '+' | '@' | '=')).unwrap_or(line.len())
    });
    line[..end].trim_end_matches('.')
}

fn is_in_component(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '~')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn private() -> Private {
        let folders = ["/home/ada l", "/home/ada l/my work", "/tmp"].map(str::to_owned).to_vec();
        Private::new(folders, Some("ada".to_owned()), Some("engine-1".to_owned()))
    }

    #[test]
    fn of_a_path_only_the_last_component_stays() {
        let cleaned = |text| private().cleaned(text, false);
        for (text, expected) in [
            ("cannot read `/home/x/a b/c.fir`: no", "cannot read `c.fir`: no"),
            ("/opt/cuda/include/a.h(12): error", "a.h(12): error"),
            ("see /var/log/x.log.", "see x.log."),
            ("-I/usr/include -L/usr/lib64 -o k.so", "-Iinclude -Llib64 -o k.so"),
            ("PATH=/usr/bin:/home/bob/bin", "PATH=bin:bin"),
            ("../bob/program.fir, ~/data/x", "program.fir, x"),
            ("s3://bucket/key and file:///srv/y", "s3:/key and file://y"),
            ("in /home/ada l/my work/p/q.fir at", "in q.fir at"),
            ("in `/home/ada l`", "in `folder`"),
            ("/tmp is full", "folder is full"),
            ("/tmpfs is full", "tmpfs is full"),
            ("a\n/x/y\n/z/w", "a\ny\nw"),
        ] {
            assert_eq!(cleaned(text), expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_private_path_stays() {
        for text in [
            "γ_K·Σ|a·b| + 4 ulp",
            "q=f4E2M1FN:f8E4M3FN/16*x2",
            "outputs/dag_out.fir",
            "fixtures/minilm_ffn0.safetensors",
            "1/2, (a)/b, 50%/x, M / N, and/or",
            "        /*0010*/  UTCOMMA.4X R1 ;",
            "// a comment",
            "/",
            "",
        ] {
            assert_eq!(private().cleaned(text, true), text);
        }
    }

    #[test]
    fn names_are_replaced_only_in_texts_of_others() {
        let mut object = json!({
            "ran": "ada",
            "message": "ada@engine-1: adamant engine-10",
            "log": ["by ada"],
            "kernels": [{ "failure": { "first_error": "ada_x ada" } }],
        });
        private().remove_from(&mut object);
        let expected = json!({
            "ran": "ada",
            "message": "<user>@<host>: adamant engine-10",
            "log": ["by <user>"],
            "kernels": [{ "failure": { "first_error": "ada_x <user>" } }],
        });
        assert_eq!(object, expected);
    }
}
