//! Builds whose device code is translated to another architecture, between the compiler and the assembler.

use std::fs;

use super::compile::{BINARY, Compiled, Compiler, INCLUDED, Outcome, SEED, gencode, pass_flags};
use super::{BuildError, BuildInput, BuildOptions, PRELUDE, Translation, disk};
use crate::process::Cancel;

/// The flags of the pass that compiles the source to PTX. Relocatable code may call functions that it does not define.
const PTX_FLAGS: [&str; 7] =
    ["-ptx", "-rdc=true", "-DFOURFOLD_DEVICE", "-std=c++17", "-DNDEBUG", "--expt-relaxed-constexpr", SEED];

/// The flags of the pass that compiles the prelude's functions. Without relocatable code, none would be kept.
const LIBRARY_FLAGS: [&str; 6] =
    ["-ptx", "-rdc=true", "-DFOURFOLD_LIBRARY", "-std=c++17", "--expt-relaxed-constexpr", SEED];

/// The flags of the assembler.
const ASSEMBLE_FLAGS: [&str; 2] = ["-fatbin", "-Xptxas=-v"];

const KERNEL_PTX: &str = "kernel.ptx";
const LIBRARY_PTX: &str = "library.ptx";
const TRANSLATED: &str = "translated.ptx";

/// The flags that compile the source to the PTX that is translated; `None` if the source is not translated.
pub fn ptx_flags(input: &BuildInput<'_>, options: &BuildOptions) -> Option<Vec<String>> {
    let translation = input.translation.as_ref()?;
    let mut flags: Vec<String> = PTX_FLAGS.map(str::to_owned).into();
    flags.push(gencode_ptx(translation.from));
    flags.extend(pass_flags(input, options));
    Some(flags)
}

impl Compiler<'_> {
    /// Compiles the device code to PTX, translates and assembles it, beside the host pass. Never compiles the whole
    /// source: that would leave out the translation.
    pub(super) fn translated(&self, translation: &Translation) -> Result<Compiled, BuildError> {
        self.with_host(|stop| self.translate(translation, stop))
    }

    fn translate(&self, translation: &Translation, stop: &Cancel) -> Outcome {
        let mut library = self.command();
        library.args(LIBRARY_FLAGS).arg(gencode_ptx(self.input.architecture)).args(&self.include);
        library.args(["-o", LIBRARY_PTX, "-include", PRELUDE, "-x=cu", "/dev/null"]);
        let (library, _) = self.run(&mut library, Some(stop))?;
        let mut kernel = self.command();
        kernel.args(ptx_flags(self.input, self.options).unwrap_or_default()).args(&self.include);
        kernel.args(["-o", KERNEL_PTX]).args(INCLUDED);
        let (kernel, _) = self.run(&mut kernel, Some(stop))?;
        let read = |name| fs::read_to_string(self.folder.join(name)).map_err(disk("read the compiler's PTX"));
        let log = [library.log, kernel.log].concat();
        let text = match (translation.translate)(&read(KERNEL_PTX)?, &read(LIBRARY_PTX)?) {
            Ok(text) => text,
            Err(error) => return Err(BuildError::Translate { error, log }),
        };
        fs::write(self.folder.join(TRANSLATED), text).map_err(disk("write the translated PTX"))?;
        let mut assemble = self.command();
        assemble.args(ASSEMBLE_FLAGS).arg(gencode(self.input.architecture));
        assemble.args(["-o", BINARY, TRANSLATED]);
        let (mut run, reader) = self.run(&mut assemble, Some(stop))?;
        run.seconds += library.seconds + kernel.seconds;
        run.log = [log, run.log].concat();
        run.log_truncated |= library.log_truncated | kernel.log_truncated;
        Ok((run, reader))
    }
}

fn gencode_ptx(architecture: &str) -> String {
    format!("-gencode=arch=compute_{architecture},code=compute_{architecture}")
}
