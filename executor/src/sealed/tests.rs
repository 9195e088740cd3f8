//! Tests of sealed folders: replacement, refusal, and leftovers.

use std::os::unix::fs::symlink;

use fourfold_ir::ElementType;
use serde_json::json;

use super::*;

const FORMAT: SealedFormat = SealedFormat { name: "test folder", version: 3 };

fn write(target: &Path, text: &str) -> Result<PathBuf, SealedError> {
    let mut writer = SealedWriter::begin(target, FORMAT)?;
    writer.write("a.txt", text.as_bytes())?;
    writer.write("deep/er/b.txt", b"")?;
    let tensor = Tensor::from_f32(vec![3], &[1.0, -2.5, 7.0]).unwrap();
    writer.write_tensors("data.safetensors", &[("x", &tensor)])?;
    writer.seal(json!({"text": text}))
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_read_back_and_nothing_else_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("new/bundle");
    assert_eq!(write(&target, "one").unwrap(), target);
    let sealed = Sealed::open(&target, FORMAT).unwrap();
    assert_eq!(sealed.about(), &json!({"text": "one"}));
    assert_eq!(sealed.names(), ["a.txt", "data.safetensors", "deep/er/b.txt"]);
    assert_eq!(fs::read(sealed.path("a.txt").unwrap()).unwrap(), b"one");
    assert_eq!(sealed.path("manifest.json"), None);
    assert_eq!(names(target.parent().unwrap()), ["bundle"]);
    // A moved folder still verifies, and an added file does not matter.
    let moved = folder.path().join("moved");
    fs::rename(&target, &moved).unwrap();
    fs::write(moved.join("note"), "mine").unwrap();
    assert_eq!(Sealed::open(&moved, FORMAT).unwrap().names().len(), 3);
    let module = fourfold_ir::Module::new("none");
    let data = crate::read_tensors(&moved.join("data.safetensors"), &module).unwrap();
    assert_eq!(data.other["x"].as_stored().unwrap().element(), ElementType::F32);
}

#[test]
fn one_of_its_kind_is_replaced_and_anything_else_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    fs::create_dir(&target).unwrap();
    write(&target, "one").unwrap();
    fs::remove_file(target.join("a.txt")).unwrap();
    write(&target, "two").unwrap();
    assert_eq!(Sealed::open(&target, FORMAT).unwrap().about()["text"], "two");
    assert_eq!(names(folder.path()), ["bundle"]);

    let other = folder.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("thesis.txt"), "years").unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "data").unwrap();
    let link = folder.path().join("link");
    symlink(&target, &link).unwrap();
    for taken in [&other, &file, &link] {
        let error = write(taken, "three").unwrap_err();
        assert!(matches!(&error, SealedError::Occupied { folder, .. } if folder == taken), "{error}");
    }
    assert_eq!(fs::read_to_string(other.join("thesis.txt")).unwrap(), "years");
    assert_eq!(names(folder.path()), ["bundle", "file", "link", "other"]);
}

#[test]
fn a_writer_that_does_not_finish_leaves_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    write(&target, "one").unwrap();
    let mut writer = SealedWriter::begin(&target, FORMAT).unwrap();
    writer.write("a.txt", b"two").unwrap();
    assert!(matches!(writer.copy("b", &folder.path().join("absent")), Err(SealedError::Disk { .. })));
    drop(writer);
    assert_eq!(Sealed::open(&target, FORMAT).unwrap().about()["text"], "one");
    assert_eq!(names(folder.path()), ["bundle"]);
    // Something appears at the target meanwhile.
    let place = folder.path().join("place");
    let writer = SealedWriter::begin(&place, FORMAT).unwrap();
    fs::create_dir(&place).unwrap();
    fs::write(place.join("thesis.txt"), "years").unwrap();
    assert!(matches!(writer.seal(Value::Null), Err(SealedError::Occupied { .. })));
    assert_eq!(names(folder.path()), ["bundle", "place"]);
}

#[test]
fn names_stay_inside() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = SealedWriter::begin(&folder.path().join("bundle"), FORMAT).unwrap();
    writer.write("twice", b"1").unwrap();
    for name in ["", "../out", "/etc/out", "a/../../out", "manifest.json", "manifest.b3", "twice", "./a"] {
        assert!(matches!(writer.write(name, b"2"), Err(SealedError::Name { .. })), "{name}");
    }
}

#[test]
fn whatever_is_missing_or_changed_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    let open = || Sealed::open(&target, FORMAT);
    let again = || {
        fs::remove_dir_all(&target).unwrap();
        write(&target, "one").unwrap();
    };
    write(&target, "one").unwrap();
    let is_changed = |error: SealedError, file: &str| match error {
        SealedError::Changed { name, .. } => name == file,
        _ => false,
    };
    for file in ["a.txt", "data.safetensors", "deep/er/b.txt"] {
        again();
        fs::remove_file(target.join(file)).unwrap();
        assert!(matches!(open().unwrap_err(), SealedError::Missing { name, .. } if name == file));
        again();
        symlink(target.join("manifest.b3"), target.join("link")).unwrap();
        fs::rename(target.join("link"), target.join(file)).unwrap();
        assert!(is_changed(open().unwrap_err(), file));
    }
    // Another size, the same size with a bit flipped, and two files swapped.
    again();
    fs::write(target.join("a.txt"), "longer").unwrap();
    assert!(is_changed(open().unwrap_err(), "a.txt"));
    fs::write(target.join("a.txt"), "onf").unwrap();
    assert!(is_changed(open().unwrap_err(), "a.txt"));
    again();
    fs::rename(target.join("a.txt"), target.join("deep/er/b.txt")).unwrap();
    fs::write(target.join("a.txt"), "").unwrap();
    assert!(is_changed(open().unwrap_err(), "a.txt"));

    again();
    let manifest = target.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"one\"", "\"two\"")).unwrap();
    assert!(is_changed(open().unwrap_err(), "manifest.json"));
    fs::write(&manifest, text.replace("\"version\": 3", "\"version\": 4")).unwrap();
    assert!(matches!(open().unwrap_err(), SealedError::Version { found: 4, expected: 3, .. }));
    fs::write(&manifest, text.replace("test folder", "folder")).unwrap();
    assert!(matches!(open().unwrap_err(), SealedError::Other { .. }));
    for damaged in [&text[..text.len() / 2], "", "[]", "7"] {
        fs::write(&manifest, damaged).unwrap();
        assert!(matches!(open().unwrap_err(), SealedError::Other { .. }), "{damaged}");
    }
    // A sealed manifest with a name that leads out of the folder.
    let escaping = text.replace("a.txt", "../a.txt");
    fs::write(&manifest, &escaping).unwrap();
    let hash = blake3::hash(escaping.as_bytes()).to_hex();
    fs::write(target.join("manifest.b3"), format!("{hash}  manifest.json\n")).unwrap();
    assert!(matches!(open().unwrap_err(), SealedError::Name { .. }));
    assert!(matches!(write(&target, "two"), Err(SealedError::Occupied { stranger: None, .. })));
    fs::remove_file(&manifest).unwrap();
    assert!(open().unwrap_err().to_string().contains("is not a test folder: it has no manifest.json"));
}

/// The result of opening a folder, which must come within a second.
fn said_soon(folder: &Path) -> String {
    let (sender, receiver) = std::sync::mpsc::channel();
    let folder = folder.to_owned();
    std::thread::spawn(move || sender.send(Sealed::open(&folder, FORMAT).map_err(|error| error.to_string())));
    let outcome = receiver.recv_timeout(std::time::Duration::from_secs(10)).expect("it says something soon");
    outcome.expect_err("it is refused")
}

#[test]
fn pipes_devices_links_and_endless_files_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    let pipe = |path: &Path| {
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    let zero = |path: &Path| symlink("/dev/zero", path).unwrap();
    let huge = |path: &Path| File::create(path).unwrap().set_len(1 << 40).unwrap();
    for (name, words) in [
        ("manifest.json", "its manifest.json is invalid: it"),
        ("manifest.b3", "`manifest.b3` in"),
        ("a.txt", "`a.txt` in"),
    ] {
        for make in [&pipe as &dyn Fn(&Path), &zero, &huge] {
            let _ = fs::remove_dir_all(&target);
            write(&target, "one").unwrap();
            fs::remove_file(target.join(name)).unwrap();
            make(&target.join(name));
            let said = said_soon(&target);
            assert!(said.contains(words), "{said}");
            // Replacing it does not block either: it is refused.
            assert!(matches!(write(&target, "two"), Err(SealedError::Occupied { .. })), "{name}");
        }
    }
    // A folder that holds only a pipe.
    let empty = folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    pipe(&empty.join("manifest.json"));
    assert!(said_soon(&empty).contains("it is not a regular file"));
    assert!(said_soon(&empty.join("manifest.json")).contains("cannot read"));
    assert!(matches!(write(&empty, "one"), Err(SealedError::Occupied { stranger: None, .. })));
}

#[test]
fn a_link_in_the_place_of_a_folder_is_refused_and_one_to_the_whole_is_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    write(&target, "one").unwrap();
    symlink(&target, folder.path().join("link")).unwrap();
    assert!(Sealed::open(&folder.path().join("link"), FORMAT).is_ok());
    for place in ["deep", "deep/er"] {
        let elsewhere = folder.path().join("elsewhere");
        fs::rename(target.join(place), &elsewhere).unwrap();
        symlink(&elsewhere, target.join(place)).unwrap();
        let said = said_soon(&target);
        assert!(said.contains("`deep/er/b.txt` in") && said.contains("` is not a folder"), "{said}");
        // The link is a foreign file.
        assert!(matches!(write(&target, "two"), Err(SealedError::Occupied { .. })));
        fs::remove_file(target.join(place)).unwrap();
        fs::rename(&elsewhere, target.join(place)).unwrap();
        assert!(Sealed::open(&target, FORMAT).is_ok());
    }
}

#[test]
fn a_folder_in_which_something_was_changed_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    let written = write(&target, "one").unwrap();
    let length = fs::metadata(written.join("a.txt")).unwrap().len() as usize;
    // Longer, shorter, and of the same length.
    for text in ["x".repeat(length + 1), String::new(), "x".repeat(length)] {
        let path = target.join("a.txt");
        let before = fs::read(&path).unwrap();
        fs::write(&path, &text).unwrap();
        let error = write(&target, "two").unwrap_err().to_string();
        assert!(error.contains("with the changed file `a.txt`"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        fs::write(&path, before).unwrap();
    }
    // A manifest that differs from its hash.
    let path = target.join("manifest.json");
    let before = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{before} ")).unwrap();
    let error = write(&target, "two").unwrap_err().to_string();
    assert!(error.contains("with the changed file `manifest.b3`"), "{error}");
    fs::write(&path, before).unwrap();
    fs::remove_file(target.join("a.txt")).unwrap();
    write(&target, "two").unwrap();
}

#[test]
fn a_folder_to_which_something_was_added_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("bundle");
    write(&target, "one").unwrap();
    for name in ["notes.txt", "deep/notes.txt", "deep/er/.hidden", "mine/notes.txt"] {
        let path = target.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "years").unwrap();
        let error = write(&target, "two").unwrap_err();
        let found = if name.starts_with("mine") { "`mine`" } else { name };
        assert!(
            error.to_string().contains("with the added file") && error.to_string().contains(found),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "years");
        fs::remove_file(&path).unwrap();
    }
    fs::remove_dir(target.join("mine")).unwrap();
    // The foreign file appears while the new folder is being written.
    let writer = SealedWriter::begin(&target, FORMAT).unwrap();
    fs::write(target.join("notes.txt"), "years").unwrap();
    assert!(matches!(writer.seal(Value::Null), Err(SealedError::Occupied { .. })));
    fs::remove_file(target.join("notes.txt")).unwrap();
    write(&target, "two").unwrap();
    assert_eq!(names(folder.path()), ["bundle"]);
}
