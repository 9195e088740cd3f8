//! Reads and writes files of records and the other files of the tuning commands.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourfold_executor::{
    AppendFile, FileError, RECORDS_LIMIT, TEXT_LIMIT, is_standard_stream, read_input, write_file,
};
use fourfold_tuner::record::Record;
use fourfold_tuner::records::{self, Lines};

/// Reads the text of a file, or of the standard input.
pub fn read_text(path: &Path) -> Result<String> {
    Ok(read_input(path, TEXT_LIMIT)?)
}

/// Reads the records of a file, or of the standard input.
pub fn read(path: &Path) -> Result<Lines> {
    let text = read_input(path, RECORDS_LIMIT)?;
    records::read(&text).with_context(|| path.display().to_string())
}

/// A file that this process alone appends records to.
pub struct Log {
    file: AppendFile,
}

impl Log {
    /// Opens or creates a file and returns the records it holds. A last line that a killed writer left incomplete
    /// is cut off.
    pub fn open(path: &Path) -> Result<(Log, Lines)> {
        let name = || path.display().to_string();
        if is_standard_stream(path) {
            bail!(
                "--out must be a file, because its records are read first; write `./-` for a file named `-`"
            );
        }
        let (mut file, text) = AppendFile::open(path, RECORDS_LIMIT).map_err(|error| {
            let is_locked = matches!(error, FileError::Locked { .. });
            let error = anyhow::Error::from(error);
            if is_locked {
                error.context("another sweep is writing this file: name another one with --out")
            } else {
                error
            }
        })?;
        let lines = records::read(&text).with_context(name)?;
        let whole = match &lines.torn {
            Some(_) => text.rfind('\n').map_or(0, |end| end + 1),
            None => text.len(),
        };
        file.cut(whole as u64)?;
        if whole > 0 && !text[..whole].ends_with('\n') {
            file.append(b"\n")?;
        }
        Ok((Log { file }, lines))
    }

    /// Appends a record with one write and waits until it is on the disk.
    pub fn append(&mut self, record: &Record) -> Result<()> {
        let mut line = serde_json::to_vec(record).context("a record")?;
        line.push(b'\n');
        Ok(self.file.append(&line)?)
    }
}

fn is_same_file(left: &Path, right: &Path) -> bool {
    left == right
        || matches!((left.canonicalize(), right.canonicalize()), (Ok(left), Ok(right)) if left == right)
}

/// The files that a command writes besides its report. One may be the standard output, `-`.
pub struct Outputs {
    /// True if one of them is the standard output.
    pub on_stdout: bool,
}

impl Outputs {
    /// Checks the named files; fails if the standard output would receive two things.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a Path>, json: bool) -> Result<Outputs> {
        let count = paths.into_iter().filter(|path| is_standard_stream(path)).count();
        ensure!(count < 2, "`-` is given twice, but the standard output can receive only one file");
        ensure!(
            count == 0 || !json,
            "--json prints its object on the standard output: write the file to a path, not to `-`"
        );
        Ok(Outputs { on_stdout: count == 1 })
    }

    /// Fails if an output is one of the inputs, whose measurements would be lost.
    pub fn spare<'a>(
        outputs: impl IntoIterator<Item = &'a Path>,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<()> {
        let inputs: Vec<&Path> = inputs.into_iter().filter(|input| !is_standard_stream(input)).collect();
        for output in outputs.into_iter().filter(|output| !is_standard_stream(output)) {
            let same = inputs.iter().find(|input| is_same_file(output, input));
            ensure!(
                same.is_none(),
                "`{}` is an input of this command: give the output another name",
                output.display()
            );
        }
        Ok(())
    }

    /// Writes a whole file.
    pub fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        match is_standard_stream(path) {
            true => crate::print_bytes(bytes).map_err(|error| super::Unprinted { error }.into()),
            false => Ok(write_file(path, bytes)?),
        }
    }
}
