//! Runs kernels once more with NaN as the padding of blocked scales.

use std::collections::HashMap;

use fourfold::Compiled;
use fourfold_executor::{Ran, RunOptions, SegmentRun};
use fourfold_ir::{ElementType, Module, ScaleLayout, Tensor, Value, bind, sample};
use fourfold_scheduler::ScaledMmaPlan;

use super::{Candidate, extents};
use crate::error::Error;
use crate::expectations::check_work;
use crate::load::Inputs;
use crate::report::{Report, VerifyRow, kernel_name};
use crate::tolerance::{Compared, KernelRun, SegmentOps};

/// The effect that NaN padding of scales must have on the results of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    /// The padding lies beside the scales of a row and meets operands that are zero. Zero times NaN is NaN, so
    /// every element of D is NaN, on every target.
    Everywhere,
    /// The padding lies below the last row only, or the kernel does not use it: no element may change.
    Nowhere,
}

/// The targets on which a row of scales affects only its own row of D. The rule is not applied to targets on which no
/// GPU has confirmed this.
const ROWS_ARE_APART: [&str; 1] = ["sm_90a"];

/// The targets whose kernels with FP8 operands compute sums that are not finite again, from the elements within K.
const FP8_IS_RECOMPUTED: [&str; 1] = ["sm_90a"];

/// Returns the effect of padding beside the scales of rows.
fn beside(plan: &ScaledMmaPlan, target: &str) -> Shows {
    let is_fp8 = |element| matches!(element, ElementType::F8E4M3FN | ElementType::F8E5M2);
    match FP8_IS_RECOMPUTED.contains(&target) && [plan.format.a, plan.format.b].into_iter().any(is_fp8) {
        true => Shows::Nowhere,
        false => Shows::Everywhere,
    }
}

/// Runs again with NaN as the padding of blocked scales, for kernels that must show it, or, if there are none,
/// for kernels that must not.
pub(super) fn nan_rows(
    candidate: &Candidate,
    compiled: &Compiled,
    inputs: &Inputs,
    report: &Report,
) -> Result<Vec<VerifyRow>, Error> {
    let Inputs::Sampled { tensors, recipe } = inputs else { return Ok(Vec::new()) };
    let program = compiled.planned().program();
    let partition = compiled.planned().partition();
    let module = program.module();
    let target = partition.target.as_str();
    let padding = |name: &str, plan: &ScaledMmaPlan| {
        let tensor = tensors.get(name).filter(|tensor| tensor.layout() == Some(ScaleLayout::Blocked))?;
        match tensor.dims() {
            _ if tensor.count() == 0 => None,
            // Rows of no group have no products, so their elements are not NaN.
            [.., columns] if !columns.is_multiple_of(4) && plan.groups.is_some() => None,
            [.., columns] if !columns.is_multiple_of(4) => Some(beside(plan, target)),
            [.., rows, _] if !rows.is_multiple_of(128) => Some(Shows::Nowhere),
            _ => None,
        }
    };
    let concerned = |shows: Shows| -> Vec<(usize, &ScaledMmaPlan)> {
        let kernels = partition.kernels().filter(|(segment, plan)| {
            let is_given = |value: &Value| module.defining_op(*value).is_none();
            let mut given = plan.sfa.into_iter().chain([plan.sfb]).filter(is_given);
            let ran = report.segments[*segment].ran;
            given.any(|value| padding(module.name_of(value), plan) == Some(shows))
                && (ran == "kernel" || ran == "emulated")
        });
        kernels.collect()
    };
    let mut shows = Shows::Everywhere;
    let mut kernels = concerned(shows);
    if kernels.is_empty() && ROWS_ARE_APART.contains(&target) {
        shows = Shows::Nowhere;
        kernels = concerned(shows);
    }
    if kernels.is_empty() {
        return Ok(Vec::new());
    }
    let mut poisoned: HashMap<String, Tensor> = HashMap::new();
    for (name, tensor) in tensors {
        let bytes = tensor.bytes().len();
        let no_memory = |_| Error::Memory { what: format!("a copy of %{name}"), bytes };
        let mut copy = tensor.try_clone().map_err(no_memory)?;
        sample::fill_padding_with_nan(&mut copy);
        poisoned.insert(name.clone(), copy);
    }
    let bound = bind::bind_given(program, &poisoned, &recipe.symbols)?;
    // Fills results with a value that they must not have. Otherwise, where NaN is required, memory that still holds NaN
    // from the previous run would pass.
    let poison = match shows {
        Shows::Everywhere => 0,
        Shows::Nowhere => 0xFF,
    };
    let run =
        compiled.run_normalized(&bound, &RunOptions::default().keep_all(true).poison(poison).locate(true))?;
    let mut rows = Vec::new();
    for (segment, plan) in kernels {
        let ops = SegmentOps::of(program, partition, segment, &bound, &run, Some(recipe.rule))?;
        let interpret = check_work(program, &bound, ops.ops).is_ok();
        let kernel = KernelRun { run: SegmentOps { interpret, ..ops }, plan };
        let compared = match shows {
            Shows::Everywhere => kernel.compare_nan(&|value| run.value(value))?,
            Shows::Nowhere => kernel.compare(&|value| run.value(value))?,
        };
        let described = format!("{}, NaN padding", inputs.describe());
        let row = VerifyRow {
            segment: Some(segment),
            kernel: Some(kernel_name(plan)),
            kind: Some("kernel"),
            plan: Some("scaled_mma"),
            extents: extents(plan, report, program),
            ..VerifyRow::note(&candidate.name, &described, "")
        };
        let compared = compared.into_iter().filter(|compared| compared.want.count() > 0);
        rows.extend(
            compared
                .map(|compared| compared_row(row.clone(), compared, shows, &run.segments[segment], module)),
        );
    }
    Ok(rows)
}

/// Completes the row of a kernel with the comparison of a value.
fn compared_row(
    row: VerifyRow,
    compared: Compared,
    shows: Shows,
    ran: &SegmentRun,
    module: &Module,
) -> VerifyRow {
    let Compared { value, want, rule, comparison, by, .. } = compared;
    // NaN compared with NaN has no distance.
    let distance = |distance: f64| if shows == Shows::Nowhere { distance } else { 0.0 };
    VerifyRow {
        value: module.name_of(value).to_owned(),
        ran: ran.ran.as_str(),
        reason: ran.reason.as_ref().map(|reason| reason.code.to_owned()),
        message: ran.reason.as_ref().map(|reason| reason.message.clone()),
        rule,
        against: by.to_owned(),
        elements: want.count(),
        mismatches: comparison.mismatches,
        moved_roundings: comparison.moved_roundings,
        max_abs_err: distance(comparison.max_abs_err),
        max_rel_err: distance(comparison.max_rel_err),
        worst: comparison.worst.map(|worst| format!("{:?}: {}", worst.index, worst.got)),
        seconds: ran.kernel_seconds.or(Some(ran.seconds)),
        unbounded: comparison.unbounded,
        ok: comparison.ok && matches!(ran.ran, Ran::Kernel | Ran::Emulated),
        ..row
    }
}
