//! Learns the dispatch table of a selection.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow, ensure};
use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::codegen::dispatch::{self, Table, Tables};
use fourfold::codegen::target;
use fourfold::ir::BlockFormat;
use fourfold_tuner::dispatch::{LearnOptions, Measured, Subject, check_total, extents, learn as learn_table};
use fourfold_tuner::generator::{Configured, generator};
use fourfold_tuner::matrix::Matrix;
use fourfold_tuner::problem::{Problem, Weighted};

use super::choose::Chosen;

/// A dispatch table and the kernels it names.
pub struct Learnt {
    table: Table,
    /// The position of each kernel in the matrix, by its name in the table.
    kernels: Vec<(dispatch::Kernel, usize)>,
    /// The quality of the table, as one line.
    pub summary: String,
    /// The table as text.
    pub text: String,
}

impl Learnt {
    /// Returns the position in the matrix of the kernel that the table selects for a problem.
    pub fn pick(&self, problem: &Problem) -> Option<usize> {
        let picked = self.table.pick(extents(problem), CutlassVersion::PINNED).kernel;
        self.kernels.iter().find(|(kernel, _)| kernel == picked).map(|(_, position)| *position)
    }
}

/// Learns the table of the selected kernels and tests it on a hundred thousand random problems.
pub fn learn(chosen: &Chosen) -> Result<Learnt> {
    let Chosen { matrix, selection } = chosen;
    let configured: BTreeMap<usize, Box<dyn Configured>> = selection
        .kernels
        .iter()
        .map(|kernel| Ok((*kernel, configure(matrix, *kernel)?)))
        .collect::<Result<_>>()?;
    let mut kernels = Vec::new();
    for (position, kernel) in &configured {
        let name = &matrix.kernels[*position].name;
        let entry = kernel.entry().with_context(|| format!("dispatch tables cannot name {name}"))?;
        kernels.push((entry, *position));
    }
    let served: Vec<usize> =
        (0..matrix.problems.len()).filter(|problem| selection.assignment[*problem].is_some()).collect();
    ensure!(!served.is_empty(), "no kernel serves any problem, so there is nothing to learn from");
    let problems: Vec<Weighted> = served.iter().map(|problem| matrix.problems[*problem].clone()).collect();
    let times: Vec<Vec<Option<f64>>> = served
        .iter()
        .map(|problem| kernels.iter().map(|(_, kernel)| matrix.time_us(*problem, *kernel)).collect())
        .collect();
    let names: Vec<dispatch::Kernel> = kernels.iter().map(|(entry, _)| *entry).collect();
    let takes = |entry: &dispatch::Kernel, problem: &Problem| {
        let (_, position) = kernels.iter().find(|(known, _)| known == entry).ok_or("it was not chosen")?;
        configured[position].takes(problem)
    };
    let first = &matrix.kernels[selection.kernels[0]];
    let machine = matrix.machine.as_ref().map_or("no machine".to_owned(), |machine| machine.gpu.clone());
    let subject = Subject {
        targets: vec![first.target.clone()],
        formats: vec![format(matrix, selection.kernels[0])?],
        note: format!("learnt from {} problems on {machine}", served.len()),
    };
    // Kernels of sm_90a choose a variant at each call, by the extents only.
    let counts_tiles = !names.iter().any(|name| matches!(name, dispatch::Kernel::Hopper(_)));
    let measured = Measured { problems: &problems, kernels: &names, times: &times };
    let processors = matrix.machine.as_ref().map(|machine| machine.sms);
    let options = LearnOptions { counts_tiles, processors, ..LearnOptions::default() };
    let learnt = learn_table(subject, measured, &takes, options)?;
    let totals = check_total(&learnt.table, CutlassVersion::PINNED, &takes, random_problems())?;
    let worst = learnt
        .worst
        .map_or(String::new(), |(problem, loss)| format!(", {:.1} % at worst ({problem})", 100.0 * loss));
    let summary = format!(
        "{} rules and a default lose {:.2} % of the best chosen{worst}; {} random problems: {} dispatched, {} refused",
        learnt.table.rules.len(),
        100.0 * learnt.mean_loss,
        RANDOM_PROBLEMS,
        totals.dispatched,
        totals.refused
    );
    let text = Tables { tables: vec![learnt.table.clone()] }.to_text()?;
    Ok(Learnt { table: learnt.table, kernels, summary, text })
}

fn configure(matrix: &Matrix, kernel: usize) -> Result<Box<dyn Configured>> {
    let kernel = &matrix.kernels[kernel];
    let generator =
        generator(&kernel.generator).with_context(|| format!("unknown generator `{}`", kernel.generator))?;
    let target = target(&kernel.target).with_context(|| format!("unknown target `{}`", kernel.target))?;
    generator.configure(&kernel.parameters, target, CutlassVersion::PINNED).map_err(|broken| {
        let first = broken.first().map_or(String::new(), ToString::to_string);
        anyhow!("{} cannot be configured: {first}", kernel.name)
    })
}

fn format(matrix: &Matrix, kernel: usize) -> Result<BlockFormat> {
    let kernel = &matrix.kernels[kernel];
    let name = kernel.parameters.get("format").map(ToString::to_string);
    name.and_then(|name| fourfold::codegen::format(&name))
        .with_context(|| format!("dispatch tables do not know the format of {}", kernel.name))
}

const RANDOM_PROBLEMS: usize = 100_000;

/// Returns problems of every order of magnitude, the same on each call.
fn random_problems() -> impl Iterator<Item = Problem> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut extent = move |multiple: u64| {
        let bits = 1 + random() % 17;
        let extent = 1 + random() % (1 << bits);
        // Some extents break the alignment of every kernel; the table must refuse these problems.
        if random().is_multiple_of(16) { extent } else { extent.next_multiple_of(multiple) }
    };
    (0..RANDOM_PROBLEMS).map(move |_| Problem::new(extent(1), extent(32), extent(32)))
}
