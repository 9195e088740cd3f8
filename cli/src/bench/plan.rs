//! Plans jobs without a GPU: their segments and the sources of their kernels.

use std::collections::BTreeMap;
use std::fmt;

use fourfold::codegen::cutlass::CutlassVersion;
use fourfold::kernels::planned_kernels;
use fourfold::{Backend, Options, Planned};
use serde::Serialize;

use super::jobs::{Job, Jobs};
use crate::error::Error;
use crate::report::plan_name;

/// The plans of jobs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DryReport {
    /// True if no program has a fallback segment.
    pub ok: bool,
    /// The target.
    pub target: String,
    /// One entry for each distinct program.
    pub programs: Vec<ProgramReport>,
    /// The distinct kernel sources by name and hash.
    pub sources: BTreeMap<String, String>,
}

/// The plan of a program.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProgramReport {
    /// The suite.
    pub suite: String,
    /// The case.
    pub case: String,
    /// The sizes that use the program.
    pub sizes: Vec<String>,
    /// The segments in run order.
    pub segments: Vec<SegmentPlan>,
    /// The reasons of the fallback segments.
    pub fallback: Vec<String>,
}

/// The plan of a segment.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SegmentPlan {
    /// `kernel`, `device` or `fallback`.
    pub tier: &'static str,
    /// The plan, or the ops of a fallback segment.
    pub name: String,
    /// The key of the kernel's source in [`DryReport::sources`]; `None` if it needs none.
    pub source: Option<String>,
}

/// Plans every job.
///
/// # Errors
/// If the target is unknown or a plan is inconsistent.
pub fn dry_run(jobs: &Jobs, options: &Options) -> Result<DryReport, Error> {
    let backend = Backend::new(options)?;
    let target = backend.capabilities().target.clone();
    let mut report = DryReport { ok: true, target, programs: Vec::new(), sources: BTreeMap::new() };
    for (position, program) in jobs.programs.iter().enumerate() {
        let planned = backend.plan(program.clone());
        backend.check(&planned)?;
        let of_program: Vec<&Job> = jobs.jobs.iter().filter(|job| job.program == position).collect();
        let Some(first) = of_program.first() else { continue };
        let mut sources: BTreeMap<usize, String> = BTreeMap::new();
        for kernel in planned_kernels(&planned, CutlassVersion::PINNED, backend.emulates()) {
            let key = format!("{} {}", kernel.source.kernel, kernel.source.hash);
            sources.insert(kernel.segment, key.clone());
            report.sources.insert(key, kernel.source.text);
        }
        let module = planned.program().module();
        let segments = planned.partition().segments.iter().enumerate().map(|(position, segment)| {
            let ops = || segment.ops.iter().map(|op| module.op_label(*op)).collect::<Vec<_>>().join(", ");
            SegmentPlan {
                tier: segment.tier().name(),
                name: segment.plan().map_or_else(ops, |plan| plan_name(module, plan)),
                source: sources.get(&position).cloned(),
            }
        });
        let fallback = fallback_reasons(&planned);
        report.ok &= fallback.is_empty();
        report.programs.push(ProgramReport {
            suite: first.suite.clone(),
            case: first.case.clone(),
            sizes: of_program.iter().map(|job| job.size_text()).collect(),
            segments: segments.collect(),
            fallback,
        });
    }
    Ok(report)
}

/// The fallback segments of a plan, each with the reason of its first op.
pub(super) fn fallback_reasons(planned: &Planned) -> Vec<String> {
    let module = planned.program().module();
    let partition = planned.partition();
    let fallback = partition.segments.iter().enumerate().filter(|(_, segment)| segment.plan().is_none());
    let reason = |(position, segment): (usize, &fourfold::scheduler::Segment)| {
        let op = segment.ops.first()?;
        let label = module.op_label(*op);
        let rejection = partition.decisions[fourfold_ir::Entity::index(*op)].rejection.as_ref();
        let why =
            rejection.map_or_else(String::new, |why| format!(": {} ({})", why.message, why.code.as_str()));
        Some(format!("segment {position} is on the fallback: {label}{why}"))
    };
    fallback.filter_map(reason).collect()
}

impl DryReport {
    /// The exit code: 3 if a program has a fallback segment.
    pub fn exit_code(&self) -> u8 {
        if self.ok { 0 } else { 3 }
    }
}

impl fmt::Display for DryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for program in &self.programs {
            writeln!(f, "{}/{} {}", program.suite, program.case, program.sizes.join(", "))?;
            for (position, SegmentPlan { tier, name, source }) in program.segments.iter().enumerate() {
                let source = source.as_ref().map_or_else(String::new, |source| format!("  {source}"));
                writeln!(f, "  {position} {tier} {name}{source}")?;
            }
            for reason in &program.fallback {
                writeln!(f, "  {reason}")?;
            }
        }
        let (programs, sources) = (self.programs.len(), self.sources.len());
        writeln!(f, "{programs} programs, {sources} kernel sources for {}", self.target)
    }
}
