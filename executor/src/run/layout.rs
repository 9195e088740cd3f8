//! Memory layout of prepared programs: one allocation holds all intermediates and workspaces.

use std::collections::HashMap;
use std::ops::Range;

use fourfold_ir::{Program, SymbolValues, Value};
use fourfold_scheduler::{Constraint, Partition, Plan, ReasonCode};

use super::call::{Call, Work, admit, bytes, refused, results_of_nothing};
use super::{ALIAS, FALLBACK_SEGMENT, MISSING_ADDRESS, Machine, NO_SUCH_SEGMENT, Refused};
use crate::service::Wait;

/// The alignment of each part, equal to that of driver allocations.
pub(super) const PART_ALIGNMENT: u64 = 256;

/// A program's calls, and the layout of intermediates and workspaces.
pub(super) struct Layout<'a> {
    /// The steps, in order.
    pub(super) steps: Vec<Step<'a>>,
    /// The offset of each value that a kernel writes and the caller does not receive.
    pub(super) intermediates: HashMap<Value, u64>,
    /// The total size, in bytes.
    pub(super) bytes: u64,
    /// The values that the caller must bind to an address.
    pub(super) outside: Vec<Outside>,
    /// Alignment requirements of addresses.
    pub(super) alignments: Vec<Alignment>,
}

/// The work for a segment.
pub(super) enum Step<'a> {
    /// Launches its kernel.
    Call(Box<PlacedCall<'a>>),
    /// Sets a value to zero, without a launch: a reduction over nothing.
    Zero(ZeroValue),
}

/// A call with its workspace's offset.
pub(super) struct PlacedCall<'a> {
    pub(super) segment: usize,
    pub(super) call: Call<'a>,
    pub(super) workspace: u64,
}

/// A value to fill with zeros.
#[derive(Clone, Copy, Debug)]
pub(super) struct ZeroValue {
    pub(super) segment: usize,
    pub(super) value: Value,
    pub(super) bytes: u64,
}

/// A value in the caller's memory.
#[derive(Clone, Debug)]
pub(super) struct Outside {
    pub(super) value: Value,
    pub(super) name: String,
    pub(super) bytes: u64,
    /// True if a kernel writes it.
    pub(super) is_output: bool,
}

/// An alignment requirement of a value's address.
#[derive(Clone, Debug)]
pub(super) struct Alignment {
    pub(super) segment: usize,
    pub(super) value: Value,
    pub(super) bytes: u64,
}

/// The scope of a preparation: consecutive segments with their inputs and outputs.
pub(super) struct Scope<'a> {
    segments: Range<usize>,
    inputs: &'a [Value],
    outputs: &'a [Value],
}

impl<'a> Scope<'a> {
    /// A whole program.
    pub(super) fn program(program: &'a Program, partition: &Partition) -> Scope<'a> {
        let module = program.module();
        Scope { segments: 0..partition.segments.len(), inputs: &module.inputs, outputs: &module.outputs }
    }

    /// One segment.
    pub(super) fn segment(partition: &'a Partition, segment: usize) -> Result<Scope<'a>, Refused> {
        let count = partition.segments.len();
        match partition.segments.get(segment) {
            Some(planned) => Ok(Scope {
                segments: segment..segment + 1,
                inputs: &planned.inputs,
                outputs: &planned.outputs,
            }),
            None => {
                let message = format!("the partition has no segment {segment}; it has {count}");
                Err(Refused::new(NO_SUCH_SEGMENT, Some(segment), message))
            }
        }
    }
}

/// Admits every kernel call, and assigns an offset to every part.
pub(super) fn lay_out<'a>(
    program: &Program,
    partition: &Partition,
    scope: &Scope<'_>,
    symbols: &SymbolValues,
    machine: &Machine<'a>,
) -> Result<Layout<'a>, Refused> {
    let module = program.module();
    let mut layout = Layout {
        steps: Vec::new(),
        intermediates: HashMap::new(),
        bytes: 0,
        outside: Vec::new(),
        alignments: Vec::new(),
    };
    let mut made = vec![false; module.values.len()];
    let index = fourfold_ir::Entity::index;
    let size = |value: Value, segment: Option<usize>| {
        bytes(program, value, symbols).ok_or_else(|| {
            let name = module.name_of(value);
            Refused::new(
                ReasonCode::ExtentRange.as_str(),
                segment,
                format!("the extents of `%{name}` are unknown"),
            )
        })
    };
    for &input in scope.inputs {
        made[index(input)] = true;
        if scope.outputs.contains(&input) {
            let name = module.name_of(input);
            let message = format!("the program returns its input `%{name}`, which no kernel writes");
            return Err(Refused::new(ALIAS, None, message));
        }
        let name = module.name_of(input).to_owned();
        layout.outside.push(Outside { value: input, name, bytes: size(input, None)?, is_output: false });
    }
    for position in scope.segments.clone() {
        let segment = &partition.segments[position];
        let Some(plan) = segment.plan() else {
            let message = format!("segment {position} runs on the fallback; run such programs with `run`");
            return Err(Refused::new(FALLBACK_SEGMENT, Some(position), message));
        };
        // Callers that want to wait have done so already.
        let deadline = Wait::Never.deadline();
        let call = admit(program, partition, position, plan, symbols, Some(machine), deadline)
            .map_err(|reason| Refused::new(reason.code, Some(position), reason.message))?;
        if let Some(value) = call.roles.reads().find(|value| !made[index(*value)]) {
            let name = module.name_of(value);
            let message = format!("no segment computes `%{name}` before segment {position} reads it");
            return Err(Refused::new(MISSING_ADDRESS, Some(position), message));
        }
        for (value, bytes) in call.written() {
            made[index(value)] = true;
            if scope.outputs.contains(&value) {
                let name = module.name_of(value).to_owned();
                layout.outside.push(Outside { value, name, bytes, is_output: true });
            } else {
                let offset = layout.part(bytes);
                layout.intermediates.insert(value, offset);
            }
        }
        if matches!(call.work, Work::Nothing { .. } | Work::Fallback { .. }) {
            layout.steps.extend(zeros(program, plan, symbols, position)?.into_iter().map(Step::Zero));
        } else {
            for constraint in plan.constraints() {
                if let Constraint::PointerAlignment { value, bytes } = constraint {
                    let bytes = u64::from(*bytes).max(1);
                    layout.alignments.push(Alignment { segment: position, value: *value, bytes });
                }
            }
            let workspace = layout.part(call.workspace);
            layout.steps.push(Step::Call(Box::new(PlacedCall { segment: position, call, workspace })));
        }
    }
    match scope.outputs.iter().find(|output| !made[index(**output)]) {
        None => Ok(layout),
        Some(output) => {
            let name = module.name_of(*output);
            let message = format!("no segment computes the output `%{name}`");
            Err(Refused::new(MISSING_ADDRESS, None, message))
        }
    }
}

/// The values of an empty problem that must be set to zero.
fn zeros(
    program: &Program,
    plan: &Plan,
    symbols: &SymbolValues,
    segment: usize,
) -> Result<Vec<ZeroValue>, Refused> {
    let refuse = |why: &str| {
        let reason = refused(why);
        Refused::new(reason.code, Some(segment), reason.message)
    };
    let results = results_of_nothing(program, plan, symbols).map_err(|error| refuse(&error.to_string()))?;
    let mut zeros = Vec::new();
    for (value, tensor) in results.into_iter().filter(|(_, tensor)| tensor.count() > 0) {
        // A prepared program can only fill memory. Plans exclude reductions with another initial value.
        if tensor.bytes().iter().any(|byte| *byte != 0) {
            let name = program.module().name_of(value);
            return Err(refuse(&format!("`%{name}` is not zero although its problem is empty")));
        }
        zeros.push(ZeroValue { segment, value, bytes: tensor.bytes().len() as u64 });
    }
    Ok(zeros)
}

impl Layout<'_> {
    /// Reserves `bytes` bytes and returns their offset.
    fn part(&mut self, bytes: u64) -> u64 {
        let offset = self.bytes;
        let end = offset.saturating_add(bytes);
        self.bytes = end.checked_next_multiple_of(PART_ALIGNMENT).unwrap_or(u64::MAX);
        offset
    }
}
