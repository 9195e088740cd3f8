//! The segment that `fourfold profile` examines, and its place among the launches of a run.

use fourfold::{Backend, Options, Planned};
use fourfold_cli::replay::{Loaded, plan};
use fourfold_cli::{Error, Report as Replayed, plan_name};
use fourfold_ir::{Entity, Op, SymbolValues, Tensor, Value, bind};
use fourfold_scheduler::{MovePlan, MoveProgram, Plan, Segment};
use fourfold_tuner::profile::{Launched, Selection};

/// The program and the segment to examine.
pub struct Subject {
    pub backend: Backend,
    pub planned: Planned,
    pub segment: usize,
    /// The name of the segment's kernel.
    pub kernel: String,
}

impl Subject {
    /// Plans a program and selects the segment, or returns the reason why none fits.
    pub fn new(
        loaded: Loaded,
        place: &Options,
        wanted: Option<usize>,
    ) -> Result<Result<Subject, String>, Error> {
        let backend = Backend::new(place)?;
        let planned = plan(&backend, &loaded)?;
        let selected = select(&planned, wanted).map(|segment| (segment, name(&planned, segment)));
        Ok(selected.map(|(segment, kernel)| Subject {
            backend,
            planned,
            segment,
            kernel: kernel.unwrap_or_default(),
        }))
    }

    /// True if the segment is a call of the vendor's library.
    pub fn is_library_call(&self) -> bool {
        is_library_call(&self.planned, self.segment)
    }

    /// The launches of these segments.
    pub fn launched(&self, segments: impl Iterator<Item = usize>) -> Vec<Launched> {
        let launched = |segment| Some(Launched { segment, kernel: name(&self.planned, segment)? });
        segments.filter_map(launched).collect()
    }

    /// The segment's launch among those of a run. `entries` are the names of the kernels in each library, by segment.
    pub fn selection(&self, launched: &[Launched], entries: &[(usize, String)]) -> Selection {
        let before = || launched.iter().filter(|launched| launched.segment < self.segment);
        let calls = before().filter(|launched| is_library_call(&self.planned, launched.segment)).count();
        let kernels = before().count() - calls;
        let names = entries.iter().map(|(_, entry)| entry.as_str());
        if self.is_library_call() {
            return Selection::library_call(names, kernels, calls);
        }
        let own = entries.iter().find(|(segment, _)| *segment == self.segment);
        Selection::new(own.map_or("", |(_, entry)| entry), names, kernels).after_library_calls(calls)
    }

    /// Returns the bytes that the kernel reads and those it writes, each once; `None` if an extent is unknown.
    pub fn counted(&self, replayed: Option<&Replayed>) -> (Option<u64>, Option<u64>) {
        let module = self.planned.program().module();
        let mut symbols = SymbolValues::default();
        for (symbol, name) in module.symbols.iter() {
            if let Some(extent) = replayed.and_then(|replayed| replayed.symbols.get(name)) {
                symbols.set(symbol, *extent);
            }
        }
        let bytes = |value: Value| {
            let ty = module.ty(value);
            let dims = bind::concrete_dims(ty, &symbols)?;
            Some(Tensor::byte_len(ty.element, &dims, ty.layout).ok()? as u64)
        };
        let segment = &self.planned.partition().segments[self.segment];
        let written = segment.plan().and_then(|plan| sum(plan.written(), bytes));
        let read = match segment.plan() {
            Some(Plan::Move(plan)) => moved(plan, segment, bytes),
            _ => sum(segment.inputs.iter().copied(), bytes),
        };
        (read, written)
    }
}

fn sum(values: impl IntoIterator<Item = Value>, bytes: impl Fn(Value) -> Option<u64>) -> Option<u64> {
    values.into_iter().try_fold(0u64, |sum, value| sum.checked_add(bytes(value)?))
}

/// The bytes that a move reads. It may select elements or repeat them, so it needs at most as many as it writes.
/// `concat`, `scatter_add` and `top_k` read all operands.
fn moved(plan: &MovePlan, segment: &Segment, bytes: impl Fn(Value) -> Option<u64>) -> Option<u64> {
    let moves = |value: &Value| Some(bytes(*value)?.min(bytes(plan.results[0])?));
    match (plan.program, &plan.operands[..]) {
        (MoveProgram::ScatterAdd { .. } | MoveProgram::TopK { .. }, _)
        | (MoveProgram::Concat { .. }, _)
        | (_, []) => sum(segment.inputs.iter().copied(), bytes),
        (_, [operand, indices @ ..]) => moves(operand)?.checked_add(sum(indices.iter().copied(), &bytes)?),
    }
}

/// The name of a segment's kernel or library call; `None` if it launches nothing.
fn name(planned: &Planned, segment: usize) -> Option<String> {
    match planned.partition().segments.get(segment)?.plan()? {
        Plan::View(_) | Plan::Choose(_) => None,
        plan => Some(plan_name(planned.program().module(), plan)),
    }
}

fn is_library_call(planned: &Planned, segment: usize) -> bool {
    matches!(planned.partition().segments[segment].plan(), Some(Plan::Mma(_)))
}

/// Selects the wanted segment, or else the first kernel, or else the first segment with a generated kernel.
fn select(planned: &Planned, wanted: Option<usize>) -> Result<usize, String> {
    let partition = planned.partition();
    let launches: Vec<usize> =
        (0..partition.segments.len()).filter(|segment| name(planned, *segment).is_some()).collect();
    if launches.is_empty() {
        return Err("no op of the program becomes a kernel; `fourfold explain` lists the reasons".to_owned());
    }
    let Some(wanted) = wanted else {
        let first = partition.kernels().map(|(segment, _)| segment).next();
        let generated = || launches.iter().copied().find(|segment| !is_library_call(planned, *segment));
        return Ok(first.or_else(generated).unwrap_or(launches[0]));
    };
    if launches.contains(&wanted) {
        return Ok(wanted);
    }
    let why = why_not(planned, wanted);
    let there: Vec<String> = launches.iter().map(usize::to_string).collect();
    Err(format!("segment {wanted} is not a kernel: {why}; the kernels are segments {}", there.join(", ")))
}

/// The reason that a segment has no launch to examine.
fn why_not(planned: &Planned, segment: usize) -> String {
    let (module, partition) = (planned.program().module(), planned.partition());
    let Some(found) = partition.segments.get(segment) else {
        return format!("the program has {} segments, numbered from 0", partition.segments.len());
    };
    if let Some(Plan::View(view)) = found.plan() {
        let (result, operand) = (module.name_of(view.result), module.name_of(view.operand));
        return format!(
            "it is a view, so `%{result}` has the memory of `%{operand}` and nothing is launched"
        );
    }
    if let Some(Plan::Choose(choice)) = found.plan() {
        let result = module.name_of(choice.result);
        return format!(
            "it is a choice, so `%{result}` has the memory of an operand and nothing is launched"
        );
    }
    let rejection = |op: &Op| partition.decisions.get(op.index())?.rejection.as_ref();
    let rejected = found.ops.iter().find_map(rejection);
    match rejected {
        Some(rejection) => {
            format!("it runs on the fallback ({}: {})", rejection.code.as_str(), rejection.message)
        }
        None => "it runs on the fallback".to_owned(),
    }
}
