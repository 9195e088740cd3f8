//! Prepared launches: submitting them checks nothing, allocates nothing and waits for nothing.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use fourfold_ir::Value;

use super::call::unprepared;
use super::homes::Homes;
use super::launch::{Launch, Unready};
use super::layout::{Alignment, CopySource, CopyValue, Outside, ZeroValue};
use super::memory::PART_ALIGNMENT;
use super::roles::Roles;
use super::{ALIAS, FaultPlace, MISSING_ADDRESS, POINTER_ALIGNMENT, Refused, RunError, WORKSPACE_SIZE};
use crate::device::{Buffer, Device, DeviceError, Fork, Stream};
use crate::kernel::Status;

/// The built launches of a program or segment, ready to be put on a stream.
///
/// It belongs to one device. Several launches may be in flight if the device runs them one after the other, as on one
/// stream: they share the workspace. It must not be dropped while a launch is in flight, as the caller of
/// [`PreparedProgram::launch`] promises.
#[derive(Debug)]
pub struct PreparedProgram {
    pub(super) steps: Vec<ReadyStep>,
    /// The second stream, and the steps that run on it; `None` if all run on the caller's.
    pub(super) second_stream: Option<(Fork, Vec<usize>)>,
    pub(super) addresses: HashMap<Value, u64>,
    pub(super) places: Places,
    pub(super) outside: Vec<Outside>,
    pub(super) alignments: Vec<Alignment>,
    pub(super) workspace: (u64, u64),
    pub(super) _owned: Option<Buffer>,
    pub(super) _residents: Vec<Arc<Buffer>>,
    pub(super) device: Device,
}

/// The places of values in the program's own memory.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) homes: Homes,
    /// The addresses of intermediates.
    pub(super) intermediates: HashMap<Value, u64>,
    /// The addresses of constants, by part of the memory.
    pub(super) constants: HashMap<usize, u64>,
}

impl Places {
    /// The address of a value, given those of inputs and outputs.
    pub(super) fn address(&self, value: Value, addresses: &HashMap<Value, u64>) -> Option<u64> {
        let home = self.homes.home(value);
        self.intermediates.get(&home).or_else(|| addresses.get(&home)).copied()
    }

    /// The source and the target of a copy.
    fn copy(&self, copy: &CopyValue, addresses: &HashMap<Value, u64>) -> Option<(u64, u64)> {
        let from = match copy.from {
            CopySource::Value(value) => self.address(value, addresses),
            CopySource::Constant(part) => self.constants.get(&part).copied(),
        };
        Some((from?, self.address(copy.to, addresses)?))
    }
}

#[derive(Debug)]
pub(super) enum ReadyStep {
    Call(ReadyCall),
    /// A value with its address.
    Zero(ZeroValue, u64),
    /// A copy with the addresses of its source and target.
    Copy(CopyValue, u64, u64),
}

impl ReadyStep {
    /// Finds the address of a value to fill with zeros.
    pub(super) fn zero(
        zero: ZeroValue,
        places: &Places,
        addresses: &HashMap<Value, u64>,
    ) -> Option<ReadyStep> {
        Some(ReadyStep::Zero(zero, places.address(zero.value, addresses)?))
    }

    /// Finds the addresses of a copy.
    pub(super) fn copy(
        copy: CopyValue,
        places: &Places,
        addresses: &HashMap<Value, u64>,
    ) -> Option<ReadyStep> {
        let (from, to) = places.copy(&copy, addresses)?;
        Some(ReadyStep::Copy(copy, from, to))
    }

    /// Enqueues the step.
    ///
    /// # Safety
    /// As for [`PreparedProgram::launch`]. The context must be current.
    unsafe fn enqueue(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        match self {
            // SAFETY: the caller vouches for it.
            ReadyStep::Call(call) => unsafe { call.launch.launch(stream) },
            // SAFETY: the value is at this address, in our own memory or in memory that the caller vouches for.
            ReadyStep::Zero(zero, address) => unsafe {
                stream.fill_at(*address, usize::try_from(zero.bytes).unwrap_or(usize::MAX), 0)
            },
            // SAFETY: as above. Source and target do not overlap: outputs overlap nothing.
            ReadyStep::Copy(copy, from, to) => unsafe {
                stream.copy_at(*from, *to, usize::try_from(copy.bytes).unwrap_or(usize::MAX))
            },
        }
    }
}

#[derive(Debug)]
pub(super) struct ReadyCall {
    pub(super) segment: usize,
    /// The labels of its ops, if it may end with a fault.
    pub(super) ops: Vec<String>,
    pub(super) roles: Roles,
    pub(super) launch: Launch,
}

impl PreparedProgram {
    /// Enqueues every kernel, library call and copy on a stream. Can be captured in a graph. Short branches run on
    /// the program's second stream, after earlier work on the caller's stream and before later work on it.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream belongs to another device. When a launch fails, the driver's
    /// error if it has one; earlier kernels are then already on the stream.
    ///
    /// # Safety
    /// Until the device is done, this must not be dropped, and all memory that it reads or writes must stay valid. Work
    /// that uses the workspace, such as another launch of this, must be ordered before or after this launch, as on one
    /// stream. Each launch of a graph that captured it is a launch of it.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if !self.device.owns(stream) {
            return Err(DeviceError::OtherDevice { what: "stream" });
        }
        let _current = self.device.enter()?;
        let steps = &mut self.steps;
        let Some((fork, second)) = &self.second_stream else {
            // SAFETY: the caller vouches for it.
            return steps.iter_mut().try_for_each(|step| unsafe { step.enqueue(stream) });
        };
        fork.beside(stream, |first, side| {
            steps.iter_mut().enumerate().try_for_each(|(index, step)| {
                let stream = if second.binary_search(&index).is_ok() { side } else { first };
                // SAFETY: the caller vouches for it. Steps on different streams write no memory that the other uses.
                unsafe { step.enqueue(stream) }
            })
        })
    }

    /// Replaces the addresses of some inputs and outputs; the others stay.
    ///
    /// # Errors
    /// When an address is unsuitable; all old addresses then stay.
    ///
    /// # Safety
    /// As for [`Preparation::build`](super::Preparation::build). Launches in flight, and graphs that captured this, keep
    /// the old addresses.
    pub unsafe fn update_addresses(&mut self, addresses: &HashMap<Value, u64>) -> Result<(), Refused> {
        let mut all = self.addresses.clone();
        all.extend(addresses);
        check_addresses(&self.outside, &self.alignments, &all, self.workspace)?;
        let _current = self.device.enter().map_err(|error| Refused::device(&error, None))?;
        for index in 0..self.steps.len() {
            // SAFETY: the caller vouches for the addresses.
            let updated = unsafe { self.update_step(index, &all) };
            if let Err(refused) = updated {
                let old = self.addresses.clone();
                for changed in 0..=index {
                    // SAFETY: these are the previous addresses, which the caller vouched for before.
                    let _ = unsafe { self.update_step(changed, &old) };
                }
                return Err(refused);
            }
        }
        self.addresses = all;
        Ok(())
    }

    /// Returns the first fault of ended launches since the last query, as an error that names the op, and forgets all
    /// faults. Results of launches with a fault are wrong.
    ///
    /// A fault is an index of a `gather` outside its axis, or what emulated instructions do not allow. A launch itself
    /// reports none. Waits for the device if a kernel of the program may end with a fault.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// No launch may be in flight, and the workspace must still be valid.
    pub unsafe fn fault(&mut self) -> Result<Option<RunError>, DeviceError> {
        let finds = |step: &ReadyStep| matches!(step, ReadyStep::Call(call) if call.launch.finds_faults());
        if !self.steps.iter().any(finds) {
            return Ok(None);
        }
        let _current = self.device.enter()?;
        let mut first = None;
        for step in &mut self.steps {
            let ReadyStep::Call(call) = step else { continue };
            // SAFETY: the context is current; the caller vouches for the rest. Workspaces of such kernels share memory
            // with nothing.
            let Some(status) = (unsafe { call.launch.fault() }) else { continue };
            first.get_or_insert_with(|| RunError::Device {
                segment: call.segment,
                kernel: call.launch.kernel_name(),
                source: match status.code {
                    Status::INDEX => DeviceError::Launch { status },
                    _ => DeviceError::Emulation { status },
                },
                place: Box::new(FaultPlace { ops: call.ops.clone(), launch: None }),
            });
        }
        Ok(first)
    }

    /// True if these addresses are in use.
    pub(super) fn has_addresses(&self, addresses: &[(Value, u64)]) -> bool {
        addresses.iter().all(|(value, address)| self.addresses.get(value) == Some(address))
    }

    /// The address and size in bytes of the kernels' working memory.
    pub fn workspace(&self) -> (u64, u64) {
        self.workspace
    }

    /// The number of kernels and library calls in a launch; 0 for an empty problem.
    pub fn kernels(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, ReadyStep::Call(_))).count()
    }

    /// # Safety
    /// As for [`PreparedProgram::update_addresses`].
    unsafe fn update_step(&mut self, index: usize, addresses: &HashMap<Value, u64>) -> Result<(), Refused> {
        let places = &self.places;
        match &mut self.steps[index] {
            ReadyStep::Call(call) => {
                // SAFETY: the context is current; the caller vouches for the addresses.
                unsafe { call.launch.update(&call.roles, |value| places.address(value, addresses)) }
                    .map_err(|unready| refused(unready, Ok(()), call.segment))
            }
            ReadyStep::Zero(zero, address) => {
                let found = places.address(zero.value, addresses);
                *address = found.ok_or_else(|| without_address(zero.segment))?;
                Ok(())
            }
            ReadyStep::Copy(copy, from, to) => {
                let found = places.copy(copy, addresses);
                (*from, *to) = found.ok_or_else(|| without_address(copy.segment))?;
                Ok(())
            }
        }
    }
}

fn without_address(segment: usize) -> Refused {
    Refused::new(MISSING_ADDRESS, Some(segment), "an operand or result of the kernel has no address")
}

pub(super) fn refused(unready: Unready, waited: Result<(), DeviceError>, segment: usize) -> Refused {
    let status = match (unready, &waited) {
        (Unready::Refused(status), _) => status,
        (Unready::Missing, Ok(())) => return without_address(segment),
        (Unready::Missing, Err(error)) => return Refused::device(error, Some(segment)),
    };
    match unprepared(status, waited) {
        Ok(reason) => Refused::new(reason.code, Some(segment), reason.message),
        Err(error) => Refused::device(&error, Some(segment)),
    }
}

pub(super) fn check_workspace((address, bytes): (u64, u64), needed: u64) -> Result<(u64, u64), Refused> {
    if bytes < needed || (address == 0 && needed > 0) || address.checked_add(bytes).is_none() {
        let message = format!("the workspace has {bytes} bytes at {address:#x}; {needed} bytes are required");
        return Err(Refused::new(WORKSPACE_SIZE, None, message));
    }
    if needed > 0 && !address.is_multiple_of(PART_ALIGNMENT) {
        let message =
            format!("the workspace is at {address:#x}, which is not a multiple of {PART_ALIGNMENT}");
        return Err(Refused::new(POINTER_ALIGNMENT, None, message));
    }
    Ok((address, needed))
}

/// Checks that every value has an aligned address, and that no written memory overlaps other memory.
pub(super) fn check_addresses(
    outside: &[Outside],
    alignments: &[Alignment],
    addresses: &HashMap<Value, u64>,
    workspace: (u64, u64),
) -> Result<(), Refused> {
    let mut ranges = Vec::with_capacity(outside.len());
    for Outside { value, name, bytes, is_output } in outside {
        let address = addresses.get(value).copied();
        let end = address.and_then(|address| address.checked_add(*bytes));
        match (address, end) {
            (Some(address), Some(end)) if *bytes == 0 || address != 0 => {
                ranges.push(Range { start: address, end, name: Some(name), written: *is_output });
            }
            _ => {
                let message = format!("`%{name}` of {bytes} bytes has no address");
                return Err(Refused::new(MISSING_ADDRESS, None, message));
            }
        }
    }
    for Alignment { segment, value, bytes } in alignments {
        if let Some(address) = addresses.get(value)
            && !address.is_multiple_of(*bytes)
        {
            let name = outside.iter().find(|outside| outside.value == *value).map_or("", |found| &found.name);
            let message = format!("`%{name}` is at {address:#x}, which is not a multiple of {bytes}");
            return Err(Refused::new(POINTER_ALIGNMENT, Some(*segment), message));
        }
    }
    check_overlaps(ranges, workspace)
}

/// Checks that memory written by kernels overlaps nothing else.
fn check_overlaps(mut ranges: Vec<Range<'_>>, (address, bytes): (u64, u64)) -> Result<(), Refused> {
    // The sum cannot overflow: `check_workspace` has checked it.
    ranges.push(Range { start: address, end: address.saturating_add(bytes), name: None, written: true });
    ranges.retain(|range| range.start < range.end);
    ranges.sort_by_key(|range| range.start);
    // The earlier ranges that end last: among all ranges, and among the written ones.
    let (mut any, mut written): (Option<Range<'_>>, Option<Range<'_>>) = (None, None);
    let further = |old: Option<Range<'_>>, new| old.is_none_or(|old: Range<'_>| old.end < new);
    for range in ranges {
        let before = if range.written { any } else { written };
        if let Some(before) = before.filter(|before| range.start < before.end) {
            let message = format!("{before} and {range} share memory, and a kernel writes to it");
            return Err(Refused::new(ALIAS, None, message));
        }
        if further(any, range.end) {
            any = Some(range);
        }
        if range.written && further(written, range.end) {
            written = Some(range);
        }
    }
    Ok(())
}

/// A range of the caller's memory, or the workspace, which has no name.
#[derive(Clone, Copy)]
struct Range<'a> {
    start: u64,
    end: u64,
    name: Option<&'a str>,
    written: bool,
}

impl fmt::Display for Range<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => write!(f, "`%{name}`"),
            None => f.write_str("the workspace"),
        }
    }
}
