//! Tests of files: reading, refusal and replacement.

use super::*;

#[test]
fn text_is_read_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.fir");
    fs::write(&path, "fir 1 ; größer\n").unwrap();
    assert_eq!(read_text(&path).unwrap(), "fir 1 ; größer\n");
}

#[test]
fn a_missing_file_and_bytes_that_are_no_text_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("program.fir");
    assert!(matches!(read_text(&path), Err(FileError::Read { path: found, .. }) if found == path));
    fs::write(&path, b"fir 1\n\xFF").unwrap();
    let error = read_text(&path).unwrap_err();
    assert!(matches!(&error, FileError::NotText { offset: 6, .. }));
    assert!(error.to_string().contains("program.fir"));
}

#[test]
fn files_below_a_folder_are_found_in_order() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("b/c")).unwrap();
    for name in ["z.fir", "b/a.fir", "b/c/x.fir", "b/a.txt", "fir"] {
        fs::write(folder.path().join(name), "").unwrap();
    }
    let found = files_below(folder.path(), "fir").unwrap();
    let names: Vec<_> = found.iter().map(|path| path.strip_prefix(folder.path()).unwrap()).collect();
    assert_eq!(names, ["b/a.fir", "b/c/x.fir", "z.fir"].map(Path::new));
    let error = files_below(&folder.path().join("absent"), "fir").unwrap_err();
    assert!(error.to_string().contains("absent"));
}

#[test]
fn what_is_not_a_regular_file_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut paths = vec![folder.path().to_owned()];
    if cfg!(unix) {
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // A link is judged by its target.
        let link = folder.path().join("link");
        #[cfg(unix)]
        std::os::unix::fs::symlink(&pipe, &link).unwrap();
        paths.extend([pipe, link, PathBuf::from("/dev/zero")]);
    }
    for path in paths {
        let error = read_text(&path).unwrap_err();
        assert!(matches!(&error, FileError::NotRegular { path: found } if *found == path));
        assert_eq!(error.to_string(), format!("`{}` is not a regular file", path.display()));
    }
}

fn fifo(folder: &Path) -> PathBuf {
    let pipe = folder.join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    pipe
}

#[test]
fn no_more_of_a_file_is_read_than_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("long.fir");
    File::create(&path).unwrap().set_len(TEXT_LIMIT + 1).unwrap();
    let error = read_text(&path).unwrap_err();
    assert!(matches!(error, FileError::TooLong { limit: TEXT_LIMIT, .. }), "{error}");
    fs::write(&path, "1234").unwrap();
    assert_eq!(read_input(&path, 4).unwrap(), "1234");
    let error = read_input(&path, 3).unwrap_err().to_string();
    assert!(error.contains("long.fir") && error.contains("more than 3 bytes"), "{error}");
}

#[test]
fn a_file_is_replaced_as_a_whole_and_keeps_its_permissions_and_links() {
    use std::os::unix::fs::PermissionsExt;

    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("out"), folder.path().join("link"));
    write_file(&path, b"first").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("out", &link).unwrap();
    // A process that has the file open keeps reading the old content.
    let mut before = File::open(&path).unwrap();
    write_file(&link, b"second").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    let mut read = String::new();
    before.read_to_string(&mut read).unwrap();
    assert_eq!(read, "first");
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file stays");
}

#[test]
fn a_new_file_overwrites_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    create_file(&path, b"first").unwrap();
    std::os::unix::fs::symlink("absent", folder.path().join("link")).unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for name in ["new", "link", "folder"] {
        let path = folder.path().join(name);
        let error = create_file(&path, b"second").unwrap_err();
        assert!(matches!(&error, FileError::Exists { path: found } if *found == path), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), b"first");
    let error = create_file(&folder.path().join("absent/new"), b"x").unwrap_err();
    assert!(matches!(&error, FileError::Write { .. }), "{error}");
    assert!(!error.io().unwrap().to_string().contains(".fourfold-"), "{error:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "no temporary file stays");
}

#[test]
fn what_cannot_be_written_is_no_missing_file() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), "").unwrap();
    for path in ["absent/out", "file/out"] {
        let path = folder.path().join(path);
        let error = write_file(&path, b"x").unwrap_err();
        assert!(matches!(error, FileError::Write { .. }), "{}", path.display());
        assert!(error.io().is_some_and(|error| !error.to_string().contains(".fourfold-")), "{error:?}");
        let opened = AppendFile::open(&path, 10).map(|_| ());
        assert!(matches!(opened, Err(FileError::Write { .. })), "{}", path.display());
    }
}

#[test]
fn nothing_but_a_regular_file_is_written_or_added_to() {
    let folder = tempfile::tempdir().unwrap();
    for path in [fifo(folder.path()), folder.path().to_owned(), "/dev/full".into(), "/dev/null".into()] {
        assert!(matches!(write_file(&path, b"x"), Err(FileError::NotRegular { .. })), "{}", path.display());
        let opened = AppendFile::open(&path, 10).map(|_| ());
        assert!(matches!(opened, Err(FileError::NotRegular { .. })), "{}", path.display());
    }
}

#[test]
fn lines_are_added_to_what_is_there_by_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records");
    let (mut first, text) = AppendFile::open(&path, 100).unwrap();
    assert_eq!(text, "");
    first.append(b"one\ntw").unwrap();
    let second = AppendFile::open(&path, 100).map(|_| ());
    assert!(matches!(second, Err(FileError::Locked { .. })));
    first.cut(4).unwrap();
    first.append(b"two\n").unwrap();
    drop(first);
    assert_eq!(AppendFile::open(&path, 100).unwrap().1, "one\ntwo\n");
    assert!(matches!(AppendFile::open(&path, 7).map(|_| ()), Err(FileError::TooLong { limit: 7, .. })));
}
