//! Reports: the decision for each op of a program, before anything is built.

use fourfold::ir::{Entity, Op};
use fourfold::scheduler::{Fate, Tier};
use fourfold::{Planned, ir};

use crate::abi::{
    self, Decision, QuerySupportArgs, Segment, Str, TIER_DEVICE, TIER_FALLBACK, TIER_KERNEL, TIER_REMOVED,
};
use crate::backend::{BackendHandle, Shared};
use crate::error::{ErrorHandle, guard};
use crate::handles::{destroy, give, handles};
use crate::memory::{borrow, handle, read};

/// The decisions and segments of a plan, with the text that they point to.
#[derive(Debug)]
pub struct ReportHandle {
    decisions: Vec<Decision>,
    segments: Vec<Segment>,
    _texts: Vec<String>,
}

handles! { ReportHandle = Report "report" }

/// Parses, verifies and plans a program.
pub(crate) fn plan(shared: &Shared, source: &str) -> Result<Planned, ErrorHandle> {
    let (program, _) = ir::load(source).map_err(|diagnostics| ErrorHandle::program(&diagnostics, source))?;
    Ok(shared.backend.plan(program))
}

impl ReportHandle {
    fn new(planned: &Planned) -> ReportHandle {
        let partition = planned.partition();
        let module = planned.original().module();
        let mut texts = Vec::new();
        let mut keep = |text_of: String| {
            let place = Str::of(&text_of);
            // Moving the string does not move its bytes.
            texts.push(text_of);
            place
        };
        let segments: Vec<Segment> = (partition.segments.iter())
            .map(|segment| Segment {
                tier: tier(segment.tier()),
                op_count: u32::try_from(segment.ops.len()).unwrap_or(u32::MAX),
                name: keep(segment.plan().map_or(String::new(), |plan| plan.signature(planned.program()))),
            })
            .collect();
        let decisions = (module.ops.keys())
            .map(|op: Op| {
                let name = keep(module.op_label(op));
                let index = u32::try_from(op.index()).unwrap_or(u32::MAX);
                let removed = Decision {
                    op: index,
                    segment: u32::MAX,
                    tier: TIER_REMOVED,
                    reserved: 0,
                    name,
                    reason: Str::of(""),
                    message: Str::of(""),
                };
                let now = match planned.normalized().fate(op) {
                    Fate::Kept(now) | Fate::Part { op: now, .. } => *now,
                    Fate::Gone { .. } => return removed,
                };
                let decision = &partition.decisions[now.index()];
                let (reason, message) = match &decision.rejection {
                    Some(rejection) => (rejection.code.as_str(), rejection.message.clone()),
                    None => ("", String::new()),
                };
                Decision {
                    segment: u32::try_from(decision.segment).unwrap_or(u32::MAX),
                    tier: segments[decision.segment].tier,
                    reason: Str::of(reason),
                    message: keep(message),
                    ..removed
                }
            })
            .collect();
        ReportHandle { decisions, segments, _texts: texts }
    }
}

fn tier(tier: Tier) -> u32 {
    match tier {
        Tier::Kernel => TIER_KERNEL,
        Tier::Device => TIER_DEVICE,
        Tier::Fallback => TIER_FALLBACK,
    }
}

/// `fourfold_api.query_support`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn query_support(args: *mut QuerySupportArgs) -> *mut abi::Error {
    guard(|| {
        // SAFETY: the caller vouches for the struct, and for the memory that it points to.
        let known = unsafe { read(args)? };
        // SAFETY: as above.
        let (backend, source) =
            unsafe { (handle::<BackendHandle>(known.backend)?, borrow(known.ir, "the program")?) };
        let report = Box::new(ReportHandle::new(&plan(&backend.0, source)?));
        // SAFETY: `read` has checked that the struct has these fields.
        let out = unsafe { &mut *args };
        (out.decisions, out.decision_count) = (report.decisions.as_ptr(), report.decisions.len());
        (out.segments, out.segment_count) = (report.segments.as_ptr(), report.segments.len());
        out.report = give(*report);
        Ok(())
    })
}

/// `fourfold_api.report_destroy`.
///
/// # Safety
/// As the header says.
pub unsafe extern "C" fn report_destroy(report: *mut abi::Report) {
    // SAFETY: the caller vouches for it.
    unsafe { destroy::<ReportHandle>(report) }
}
