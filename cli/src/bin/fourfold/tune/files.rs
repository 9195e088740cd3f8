//! Files of records, and whatever else these commands read and write.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourfold_executor::{
    AppendFile, FileError, RECORDS_LIMIT, TEXT_LIMIT, is_standard_stream, read_input, write_file,
};
use fourfold_tuner::record::Record;
use fourfold_tuner::records::{self, Lines};

/// The text of a file, or of the standard input.
pub fn read_text(path: &Path) -> Result<String> {
    Ok(read_input(path, TEXT_LIMIT)?)
}

/// The records of a file, or of the standard input.
pub fn read(path: &Path) -> Result<Lines> {
    let text = read_input(path, RECORDS_LIMIT)?;
    records::read(&text).with_context(|| path.display().to_string())
}

/// A file that records are added to, by this process alone.
pub struct Log {
    file: AppendFile,
}

impl Log {
    /// Opens a file, or makes one; what a killed writer left of a last line is cut off. Also gives what it holds.
    pub fn open(path: &Path) -> Result<(Log, Lines)> {
        let name = || path.display().to_string();
        if is_standard_stream(path) {
            bail!(
                "records are read before any are added, so --out must be a file; `./-` is one of that name"
            );
        }
        let (mut file, text) = AppendFile::open(path, RECORDS_LIMIT).map_err(|error| {
            let is_locked = matches!(error, FileError::Locked { .. });
            let error = anyhow::Error::from(error);
            if is_locked {
                error.context("another sweep adds to the file: give this one a file of its own with --out")
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

    /// Adds a record, as one write, and waits until it is on the disk.
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

/// The files that a command writes besides its report. One of them may be the standard output, `-`.
pub struct Outputs {
    /// True if one is.
    pub on_stdout: bool,
}

impl Outputs {
    /// The files that were named; refused where the standard output would hold two things.
    pub fn new<'a>(paths: impl IntoIterator<Item = &'a Path>, json: bool) -> Result<Outputs> {
        let count = paths.into_iter().filter(|path| is_standard_stream(path)).count();
        ensure!(count < 2, "`-` is given twice, and the standard output can be written once");
        ensure!(
            count == 0 || !json,
            "--json prints its object on the standard output: write to a file, not to `-`"
        );
        Ok(Outputs { on_stdout: count == 1 })
    }

    /// Refuses an output that is one of the inputs: what was measured would be lost.
    pub fn spare<'a>(
        outputs: impl IntoIterator<Item = &'a Path>,
        inputs: impl IntoIterator<Item = &'a Path>,
    ) -> Result<()> {
        let inputs: Vec<&Path> = inputs.into_iter().filter(|input| !is_standard_stream(input)).collect();
        for output in outputs.into_iter().filter(|output| !is_standard_stream(output)) {
            let same = inputs.iter().find(|input| is_same_file(output, input));
            ensure!(
                same.is_none(),
                "`{}` is read by this command and would be written over: give the output another name",
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
