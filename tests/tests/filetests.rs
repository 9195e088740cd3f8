//! One test per `.fir` file below `fixtures/`: the text after the marker line must equal the outcome.
//!
//! `; test:` lines before the function select the tests:
//! - `partition TARGET`: segments and decisions;
//! - `normalize`: the normalized program, with the justification of each op;
//! - `emit TARGET`: the sources of the kernels, which are stored below `fixtures/golden/`;
//! - `run`: a run on the file's data, or on each of its samples. Every expectation must be met, and the digest of
//!   each output as the interpreter computes it must be equal;
//! - `error`: the errors of a rejected program.
//!
//! Every valid program is also printed, parsed and printed again. `FOURFOLD_BLESS=1 cargo test` rewrites the text
//! after the marker.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use fourfold::codegen::KernelKind;
use fourfold::codegen::cutlass::{self, CutlassVersion};
use fourfold::codegen::hopper;
use fourfold::ir::sample;
use fourfold::ir::{Entity, Tensor, bind, interpret, text};
use fourfold::kernels::planned_kernels;
use fourfold::scheduler::{Fate, Origin, Step, normalize};
use fourfold::{Backend, Claim, DEFAULT_TARGET};
use fourfold_cli::replay::{Loaded, ReplayOptions, explain, load, plan, replay, replay_sample};
use fourfold_cli::{Error, Report};
use fourfold_tests::options;
use libtest_mimic::{Arguments, Trial};

const MARKER: &str = "; --- expected (FOURFOLD_BLESS=1 rewrites it) ---";

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = fourfold_tests::repository().join("fixtures");
    let files = fourfold_tests::fixtures().expect("fixtures can be listed");
    let trials = files
        .into_iter()
        .map(|file| {
            let name = file.strip_prefix(&root).unwrap_or(&file).display().to_string();
            Trial::test(name, move || test_file(&file).map_err(|error| format!("{error:#}").into()))
                .with_kind("fir")
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn test_file(file: &Path) -> Result<()> {
    let source = std::fs::read_to_string(file)?;
    let (program, expected) = match source.split_once(MARKER) {
        Some((program, expected)) => (program, expected.trim_start_matches('\n')),
        None => (source.as_str(), ""),
    };
    let actual = as_comments(&outcome(file, program)?);
    if std::env::var_os("FOURFOLD_BLESS").is_some() {
        if actual != expected {
            std::fs::write(file, format!("{program}{MARKER}\n{actual}"))?;
        }
        return Ok(());
    }
    ensure!(
        actual == expected,
        "the outcome changed; if that is intended, run FOURFOLD_BLESS=1 cargo test\n{}",
        first_difference(expected, &actual)
    );
    Ok(())
}

fn as_comments(text: &str) -> String {
    text.lines().map(|line| format!("; {line}").trim_end().to_owned() + "\n").collect()
}

fn first_difference(expected: &str, actual: &str) -> String {
    let (mut expected, mut actual) = (expected.lines(), actual.lines());
    let mut number = 1;
    loop {
        match (expected.next(), actual.next()) {
            (None, None) => return "only white space differs".to_owned(),
            (expected, actual) if expected != actual => {
                let show = |line: Option<&str>| line.unwrap_or("(nothing)").to_owned();
                return format!(
                    "line {number} expected: {}\nline {number} is:       {}",
                    show(expected),
                    show(actual)
                );
            }
            _ => number += 1,
        }
    }
}

/// Returns the outcome of the file's tests as text.
fn outcome(file: &Path, program: &str) -> Result<String> {
    let tests: Vec<String> =
        text::directives(program).into_iter().filter(|d| d.key == "test").map(|d| d.value).collect();
    ensure!(!tests.is_empty(), "the file has no `; test:` line");
    let mut out = String::new();
    for test in tests {
        match test.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["error"] => out.push_str(&errors(file, program)?),
            ["partition", target] => {
                check_printing(program)?;
                out.push_str(&partition(&explain(file, &options(target))?));
            }
            ["partition", target, "emulated"] => {
                let report = explain(file, &options(target).emulate(true))?;
                out.push_str(&partition(&report).replacen(target, &format!("{target} emulated"), 1));
            }
            ["normalize"] => {
                check_printing(program)?;
                out.push_str(&normalized(&load(file)?));
            }
            ["emit", target] => out.push_str(&emit(file, target, Claim::Everything)?),
            // Epilogues then also compute what device segments compute faster.
            ["emit", target, "kernels_only"] => out.push_str(&emit(file, target, Claim::KernelsOnly)?),
            ["run"] => {
                check_printing(program)?;
                out.push_str(&run(&load(file)?)?);
            }
            _ => bail!("unknown test `{test}`"),
        }
    }
    Ok(out)
}

/// Checks that printing, parsing and printing again is a fixed point, and that the parsed module is the printed
/// one.
fn check_printing(program: &str) -> Result<()> {
    let parse = |source: &str| {
        text::parse(source)
            .map(|parsed| parsed.module)
            .map_err(|errors| anyhow::anyhow!("{}", errors[0].message))
    };
    let module = parse(program)?;
    let printed = text::print(&module);
    let again = parse(&printed).context("the printed program does not parse")?;
    ensure!(again == module, "printing and parsing changed the module");
    ensure!(text::print(&again) == printed, "printing is not a fixed point");
    Ok(())
}

fn errors(file: &Path, program: &str) -> Result<String> {
    let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let errors = match (fourfold::ir::load(program), load(file)) {
        (Err(errors), _) => errors,
        // The program is valid, but its directives are not.
        (Ok(_), Err(Error::Program { diagnostics, .. })) => diagnostics,
        _ => bail!("the program is valid, but an error is expected"),
    };
    Ok(errors.iter().map(|error| error.render(&name, program)).collect())
}

fn partition(report: &Report) -> String {
    let mut out = format!("partition {}\n", report.target);
    for (index, segment) in report.segments.iter().enumerate() {
        let title = match (&segment.kernel, &segment.extents) {
            (Some(kernel), Some(extents)) => format!(" {kernel} {extents}"),
            _ => String::new(),
        };
        let _ = writeln!(out, "  {index} {}{title}", segment.kind);
        for constraint in segment.constraints.iter().filter(|constraint| !constraint.contains("aligned")) {
            let _ = writeln!(out, "      requires {constraint}");
        }
        for decision in report.decisions.iter().filter(|decision| decision.segment == Some(index)) {
            let code = decision.code.map_or(String::new(), |code| format!(": {code}"));
            let became = decision.became.as_ref().map_or(String::new(), |op| format!(", became {op}"));
            let inserted = if decision.inserted { " (inserted)" } else { "" };
            let _ = writeln!(out, "      {}{inserted}{became}{code}", decision.op);
        }
    }
    for decision in report.decisions.iter().filter(|decision| decision.segment.is_none()) {
        let _ = writeln!(out, "  gone: {}", decision.op);
    }
    out
}

/// Returns the body of the normalized program; each new op is followed by its origin and its rules.
fn normalized(loaded: &Loaded) -> String {
    let normalized = normalize(&loaded.program, &loaded.header.allow);
    let (before, after) = (loaded.program.module(), normalized.program().module());
    let steps_text = |steps: &[Step]| -> String {
        let text = |step: &Step| format!("{}{}", step.rule, if step.contract { " (contract)" } else { "" });
        steps.iter().map(text).collect::<Vec<_>>().join(", ")
    };
    let mut out = "normalize\n".to_owned();
    for op in after.ops.keys() {
        let _ = writeln!(out, "  {}", text::print_op(after, op));
        if let Origin::Made { from, steps } = normalized.origin(op) {
            let from: Vec<String> = from.iter().map(|op| before.op_label(*op)).collect();
            let from =
                if from.is_empty() { "inserted".to_owned() } else { format!("from {}", from.join(", ")) };
            let _ = writeln!(out, "      {from} by {}", steps_text(steps));
        }
    }
    for op in before.ops.keys() {
        if let Fate::Gone { .. } = normalized.fate(op) {
            let _ = writeln!(out, "  gone: {}", before.op_label(op));
        }
    }
    out
}

/// Placeholders in golden sources for the text that all of them share, or all of sm_90a.
const HEAD_STANDS_HERE: &str = "// (codegen/src/cutlass/head.cuh)\n";
const HOPPER_HEAD_STANDS_HERE: &str = "// (codegen/src/hopper/device/head.cuh)\n";
const KERNEL_STANDS_HERE: &str = "// (codegen/src/hopper/device/{instructions,decode,parameters,decode_a,tiled,small_m,small_m_regs,select})\n";

/// The source of a `scaled_mma` kernel, without the text that all such sources share. Its hash covers that text too.
fn abridged(name: &str, source: &str, target: &str) -> Result<String> {
    let (head, stands_here) = match target == hopper::TARGET {
        true => (hopper::HEAD, HOPPER_HEAD_STANDS_HERE),
        false => (cutlass::HEAD, HEAD_STANDS_HERE),
    };
    ensure!(source.matches(head).count() == 1, "{name} does not contain the head exactly once");
    let text = source.replace(head, stands_here).replace(hopper::KERNEL, KERNEL_STANDS_HERE);
    ensure!(
        (target == hopper::TARGET) == text.contains(KERNEL_STANDS_HERE),
        "{name} must contain the sm_90a kernel exactly if its target is sm_90a"
    );
    Ok(text)
}

/// Compares the source of each kernel with `fixtures/golden/PROGRAM_TARGET_SEGMENT.cu`.
fn emit(file: &Path, target: &str, claim: Claim) -> Result<String> {
    let backend = Backend::new(&options(target).claim(claim))?;
    let planned = plan(&backend, &load(file)?)?;
    let stem = file.file_stem().context("the file has no name")?.to_string_lossy().into_owned();
    let mut out = match claim {
        Claim::Everything => format!("emit {target}\n"),
        claim => format!("emit {target} {}\n", claim.name()),
    };
    for kernel in planned_kernels(&planned, CutlassVersion::PINNED, false) {
        let name = format!("{stem}_{target}_{}.cu", kernel.segment);
        // Moves and rows have few sources, which the programs below `device/` show.
        let is_shared = matches!(kernel.source.kind, KernelKind::Move | KernelKind::Row | KernelKind::Column);
        if is_shared && file.parent().is_none_or(|folder| !folder.ends_with("device")) {
            let _ = writeln!(out, "  {} {}", kernel.segment, kernel.source.kernel);
            continue;
        }
        let golden = fourfold_tests::repository().join("fixtures/golden").join(&name);
        let text = match kernel.source.kind {
            KernelKind::ScaledMma => abridged(&name, &kernel.source.text, target)?,
            // Stored whole: such sources share no text.
            KernelKind::BlockQuantize | KernelKind::Move | KernelKind::Row | KernelKind::Column => {
                kernel.source.text.clone()
            }
        };
        if std::env::var_os("FOURFOLD_BLESS").is_some() {
            std::fs::create_dir_all(golden.parent().context("a folder")?)?;
            std::fs::write(&golden, &text)?;
        }
        let expected = std::fs::read_to_string(&golden).with_context(|| golden.display().to_string())?;
        ensure!(
            expected == text,
            "the source changed; if that is intended, run FOURFOLD_BLESS=1 cargo test\n{name}: {}",
            first_difference(&expected, &text)
        );
        let _ = writeln!(out, "  {} {}: golden/{name}", kernel.segment, kernel.source.kernel);
        let _ = writeln!(out, "      {}", kernel.why);
    }
    Ok(out)
}

fn run(loaded: &Loaded) -> Result<String> {
    let mut out = String::new();
    if !loaded.header.data.is_empty() {
        let options = ReplayOptions { backend: options(DEFAULT_TARGET), ..ReplayOptions::default() };
        let report = replay(&loaded.file, &options, &|_| {})?;
        check_run(&report)?;
        let _ = writeln!(out, "run on {}", loaded.header.data.join(", "));
        for output in &report.outputs {
            let (name, against, source) = (&output.name, &output.expected, output.source);
            let _ = writeln!(out, "  %{name} from {source} against {against}: ok");
        }
        return Ok(out);
    }
    ensure!(!loaded.header.samples.is_empty(), "the file has a run test, but neither data nor a sample");
    for recipe in &loaded.header.samples {
        check_run(&replay_sample(loaded, None, recipe)?)?;
        let symbols: String =
            recipe.symbols.iter().map(|(name, extent)| format!(" {name}={extent}")).collect();
        let _ = writeln!(out, "run {} seed={}{symbols}", recipe.rule.name(), recipe.seed);
        let tensors = sample::inputs(&loaded.program, recipe)?;
        let values = interpret(&loaded.program, &bind::bind(&loaded.program, &tensors)?)?;
        let module = loaded.program.module();
        for output in &module.outputs {
            let tensor = &values[output.index()];
            let (name, element, dims) = (module.name_of(*output), tensor.element(), tensor.dims());
            let _ = writeln!(out, "  %{name} {element} {dims:?} digest {:016x}", digest(tensor));
        }
    }
    Ok(out)
}

fn check_run(report: &Report) -> Result<()> {
    ensure!(!report.outputs.is_empty(), "nothing was compared");
    ensure!(report.ok, "an expectation is not met:\n{report}");
    for segment in
        report.segments.iter().filter(|segment| segment.kind == "kernel" && segment.ran != "kernel")
    {
        ensure!(segment.reason.is_some(), "a kernel did not run, and has no reason:\n{report}");
    }
    Ok(())
}

/// Returns FNV-1a over the values' codes in logical order, which leaves out the padding of blocked scales.
fn digest(tensor: &Tensor) -> u64 {
    tensor
        .to_codes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
