//! Opcode census: counts the instructions of a disassembled kernel. A wrong architecture compiles without an error to
//! a kernel without its MMA instruction.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::compile::LOG_TAIL;
use super::links::Links;
use super::log::{self, LogReader, ToolCause};
use super::{BuildError, BuildOptions, LIBRARY, ToolEnvironment, not_run};
use crate::environment::is_program;
use crate::process::run_tool_watched;

/// The characters kept of a function's name; template names have thousands.
const LONGEST_NAME: usize = 256;

/// Instruction counts of a disassembly.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Census {
    /// Counts by full opcode of matrix instructions (`UTCOMMA.2CTA.4X`, `OMMA.SF...`, `HGMMA...`), integer dot
    /// products (`IDP.4A...`, which emulate one), scale copies (`UTCCP...`) and the required opcode.
    pub opcodes: BTreeMap<String, usize>,
    /// The required opcode; a variant of it also qualifies.
    required: String,
    /// Count of all instructions.
    pub instructions: usize,
    /// The first characters of each function's name.
    pub functions: Vec<String>,
    /// Count of `BPT.TRAP`, which CUTLASS's device assertions compile to on an architecture that lacks an
    /// instruction.
    pub traps: usize,
}

/// The command that disassembles the library in `folder`. It runs nvdisasm, found beside cuobjdump or on the caller's
/// `PATH`.
pub(super) fn command(
    cuobjdump: &Path,
    links: &Links<'_>,
    folder: &Path,
    environment: &ToolEnvironment,
) -> Result<Command, BuildError> {
    const NVDISASM: &str = "nvdisasm";
    let program = links.program("cuobjdump", cuobjdump)?;
    let beside =
        |path: &Path| path.parent().map(|folder| folder.join(NVDISASM)).filter(|file| is_program(file));
    let nvdisasm = beside(cuobjdump)
        .or_else(|| beside(&cuobjdump.canonicalize().ok()?))
        .or_else(|| environment.find(NVDISASM.as_ref()));
    let nvdisasm = nvdisasm.map(|path| links.program(NVDISASM, &path)).transpose()?;
    let mut command = Command::new(program);
    command.args(["-sass", LIBRARY]);
    let first: Vec<&Path> = nvdisasm.as_deref().and_then(Path::parent).into_iter().collect();
    environment.apply(&mut command, folder, &first);
    Ok(command)
}

/// Disassembles a library and counts its instructions. Returns the census and the seconds it took.
pub(super) fn inspect(
    mut command: Command,
    cuobjdump: &Path,
    required: &str,
    options: &BuildOptions,
) -> Result<(Census, f64), BuildError> {
    let mut census = Census { required: required.to_owned(), ..Census::default() };
    let mut reader = LogReader::default();
    let run = run_tool_watched(&mut command, options.time_limit, options.cancel.as_ref(), &mut |line| {
        census.line(line);
        reader.line(line);
    })
    .map_err(not_run("cuobjdump", cuobjdump))?;
    if run.cancelled {
        return Err(BuildError::Cancelled { tool: "cuobjdump", seconds: run.seconds });
    }
    // The output is megabytes long; only its end matters.
    let log = || log::tail(&run.log, LOG_TAIL).to_owned();
    let Some(status) = run.status else {
        return Err(BuildError::Timeout {
            tool: "cuobjdump",
            seconds: options.time_limit.as_secs_f64(),
            last_line: reader.first_error,
            log_tail: log(),
        });
    };
    if let Some(signal) = reader.signal(status).filter(|_| !status.success()) {
        let last_line = reader.complaint();
        return Err(BuildError::Signal { tool: "cuobjdump", signal, last_line, log: log() });
    }
    if !status.success() {
        // The disassembler reads a library, so its other errors are not about the source.
        let cause = match reader.cause() {
            cause @ (ToolCause::Transient(_) | ToolCause::Crash) => cause,
            _ => ToolCause::Toolchain,
        };
        let complaint = reader.complaint().unwrap_or_else(|| "no output".to_owned());
        let first_error = format!("{complaint} ({})", run.ending());
        return Err(BuildError::Inspect { first_error, cause, log: log() });
    }
    Ok((census, run.seconds))
}

impl Census {
    /// Counts one line of `cuobjdump -sass` output. The text is megabytes long and is not kept.
    pub(super) fn line(&mut self, line: &str) {
        if let Some(name) = line.trim_start().strip_prefix("Function : ") {
            self.functions.push(name.chars().take(LONGEST_NAME).collect());
            return;
        }
        let Some(opcode) = opcode(line) else { return };
        self.instructions += 1;
        // `HFMA2.MMA` is a packed fp16 fused multiply-add despite its name.
        let is_matrix = opcode.contains("MMA") && !opcode.starts_with("HFMA2");
        let is_required = is_variant(opcode, &self.required);
        if is_required || is_matrix || opcode.starts_with("IDP") || opcode.starts_with("UTCCP") {
            *self.opcodes.entry(opcode.to_owned()).or_default() += 1;
        } else if opcode == "BPT.TRAP" {
            self.traps += 1;
        }
    }

    /// Returns true if the required opcode was found.
    pub(super) fn holds_required(&self) -> bool {
        self.opcodes.keys().any(|opcode| is_variant(opcode, &self.required))
    }
}

/// Returns true for `required` and its variants: `UTCOMMA.4X` is a variant of `UTCOMMA`, `UTCOMMAX` is not.
fn is_variant(opcode: &str, required: &str) -> bool {
    opcode.strip_prefix(required).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Extracts the opcode from a line such as `/*3060*/  @!P0 OMMA.SF.16864 R4, ... ;  /* 0x70... */`. `None` for other
/// lines: function names contain `MMA` too, and the encoding's second half has its own line.
fn opcode(line: &str) -> Option<&str> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    if address.is_empty() || !address.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut words = rest.split_whitespace();
    let mut word = words.next()?.trim_start_matches('{');
    while word.is_empty() || word.starts_with('@') {
        word = words.next()?;
    }
    let word = word.trim_end_matches(';');
    word.starts_with(|c: char| c.is_ascii_uppercase()).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SASS: &str = "
\tcode for sm_100a
\t\tFunction : _ZN7cutlass8MMA_AtomIJNS4_17SM100_MMA_MXF4_SSE
\t.headerflags\t@\"EF_CUDA_SM100\"
        /*0000*/                   LDC R1, c[0x0][0x37c] ;                       /* 0x0000df00ff017b82 */
                                                                                 /* 0x000fe20000000800 */
        /*3520*/                   UTCCP.T.S.4x32dp128bit tmem[UR26+0x100], gdesc[UR60] ;  /* 0x0001003c1a0079e7 */
        /*3630*/                   UTCOMMA.4X gdesc[UR48], gdesc[UR50], tmem[UR15], UP1 ;  /* 0x800a2e32300075ea */
        /*3660*/              @!UP0 UTCOMMA.4X gdesc[UR42], gdesc[UR44], tmem[UR15], UPT ; /* 0x8008282c2a0075ea */
        /*3670*/                   UTCBAR [UR5], URZ ;                           /* 0x000000ff050073e9 */
        /*3678*/                   HFMA2.MMA R3, -RZ, RZ, 0, 0 ;                 /* 0x00000000ff037435 */
        /*3680*/              @P0  BPT.TRAP 0x1 ;                                /* 0x000000040000795c */
        /*3690*/                   BPT.INT 0x1 ;                                 /* 0x000000040000795c */
        /*12a40*/                  EXIT ;                                        /* 0x000000000000794d */
";

    fn count(sass: &str) -> Census {
        count_with(sass, "UTCOMMA")
    }

    fn count_with(sass: &str, required: &str) -> Census {
        let mut census = Census { required: required.to_owned(), ..Census::default() };
        sass.lines().for_each(|line| census.line(line));
        census
    }

    #[test]
    fn instructions_are_counted_and_names_of_functions_are_not() {
        let census = count(SASS);
        let expected = [("UTCCP.T.S.4x32dp128bit", 1), ("UTCOMMA.4X", 2)];
        assert_eq!(census.opcodes, expected.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!((census.instructions, census.traps), (9, 1));
        assert_eq!(census.functions, ["_ZN7cutlass8MMA_AtomIJNS4_17SM100_MMA_MXF4_SSE"]);
    }

    #[test]
    fn a_required_opcode_is_met_by_its_variants_only() {
        let holds = |required| count_with(SASS, required).holds_required();
        assert!(holds("UTCOMMA") && holds("UTCOMMA.4X"));
        assert!(!holds("OMMA.SF") && !holds("UTCOM") && !holds("UTCOMMA.2CTA"));
    }

    #[test]
    fn what_is_required_is_counted_whatever_it_is() {
        let census = count_with(SASS, "UTCBAR");
        assert!(census.holds_required());
        let expected = [("UTCBAR", 1), ("UTCCP.T.S.4x32dp128bit", 1), ("UTCOMMA.4X", 2)];
        assert_eq!(census.opcodes, expected.map(|(name, count)| (name.to_owned(), count)).into());
    }

    #[test]
    fn text_that_is_no_disassembly_counts_nothing() {
        assert_eq!(
            count("MMA\n/* OMMA.SF */ OMMA.SF\n/*zz*/ OMMA\n/*0*/\ncuobjdump info: no code\n"),
            count("")
        );
    }
}
