//! Prepared launches: submitting them checks nothing, allocates nothing and waits for nothing.

use std::collections::HashMap;
use std::fmt;

use fourfold_ir::Value;

use super::call::unprepared;
use super::launch::{Launch, Unready};
use super::layout::{Alignment, Outside, PART_ALIGNMENT, ZeroValue};
use super::roles::Roles;
use super::{ALIAS, MISSING_ADDRESS, POINTER_ALIGNMENT, Refused, WORKSPACE_SIZE};
use crate::device::{Buffer, Device, DeviceError, Stream};

/// The built launches of a program or segment, ready to be put on a stream.
///
/// It belongs to one device and may have at most one launch in flight. It must not be dropped while a launch is in
/// flight, as the caller of [`PreparedProgram::launch`] promises.
#[derive(Debug)]
pub struct PreparedProgram {
    pub(super) steps: Vec<ReadyStep>,
    pub(super) addresses: HashMap<Value, u64>,
    pub(super) intermediates: HashMap<Value, u64>,
    pub(super) outside: Vec<Outside>,
    pub(super) alignments: Vec<Alignment>,
    pub(super) workspace: (u64, u64),
    pub(super) _owned: Option<Buffer>,
    pub(super) device: Device,
}

#[derive(Debug)]
pub(super) enum ReadyStep {
    Call(ReadyCall),
    /// A value with its address.
    Zero(ZeroValue, u64),
}

#[derive(Debug)]
pub(super) struct ReadyCall {
    pub(super) segment: usize,
    pub(super) roles: Roles,
    pub(super) launch: Launch,
}

impl PreparedProgram {
    /// Enqueues every kernel on a stream. Can be captured in a graph.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream belongs to another device. When a launch fails, the driver's
    /// error if it has one; earlier kernels are then already on the stream.
    ///
    /// # Safety
    /// Until the device is done, this must not be launched again, changed or dropped, and all memory that it reads or
    /// writes must stay valid. Each launch of a graph that captured it is a launch of it.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if !self.device.owns(stream) {
            return Err(DeviceError::OtherDevice { what: "stream" });
        }
        let _current = self.device.enter()?;
        for step in &mut self.steps {
            match step {
                // SAFETY: the context is current; the caller vouches for the rest.
                ReadyStep::Call(call) => unsafe { call.launch.launch(stream)? },
                // SAFETY: the value is at this address, in our own memory or in memory that the caller vouches for.
                ReadyStep::Zero(zero, address) => unsafe {
                    stream.fill_at(*address, usize::try_from(zero.bytes).unwrap_or(usize::MAX), 0)?;
                },
            }
        }
        Ok(())
    }

    /// Replaces the addresses of some inputs and outputs; the others stay.
    ///
    /// # Errors
    /// When an address is unsuitable; all old addresses then stay.
    ///
    /// # Safety
    /// As for [`Preparation::build`](super::Preparation::build). No launch may be in flight. Graphs that captured
    /// this keep the old addresses.
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

    /// The address and size in bytes of the kernels' working memory.
    pub fn workspace(&self) -> (u64, u64) {
        self.workspace
    }

    /// The number of kernels in a launch; 0 for an empty problem.
    pub fn kernels(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, ReadyStep::Call(_))).count()
    }

    /// # Safety
    /// As for [`PreparedProgram::update_addresses`].
    unsafe fn update_step(&mut self, index: usize, addresses: &HashMap<Value, u64>) -> Result<(), Refused> {
        match &mut self.steps[index] {
            ReadyStep::Call(call) => {
                let intermediates = &self.intermediates;
                let address = |value| address_of(value, addresses, intermediates, call.segment).ok();
                // SAFETY: the context is current; the caller vouches for the addresses.
                unsafe { call.launch.update(&call.roles, address) }
                    .map_err(|unready| refused(unready, Ok(()), call.segment))
            }
            ReadyStep::Zero(zero, address) => {
                *address = address_of(zero.value, addresses, &self.intermediates, zero.segment)?;
                Ok(())
            }
        }
    }
}

pub(super) fn address_of(
    value: Value,
    addresses: &HashMap<Value, u64>,
    intermediates: &HashMap<Value, u64>,
    segment: usize,
) -> Result<u64, Refused> {
    let address = intermediates.get(&value).or_else(|| addresses.get(&value)).copied();
    address.ok_or_else(|| without_address(segment))
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
