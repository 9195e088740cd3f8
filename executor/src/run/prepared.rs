//! Programs of kernels only, and single kernels, prepared once: launching checks nothing, allocates nothing and waits
//! for nothing.

use std::collections::HashMap;
use std::fmt;

use fourfold_ir::{Program, SymbolValues, Value};
use fourfold_scheduler::Partition;

use super::call::unprepared;
use super::layout::{
    Alignment, Layout, Outside, PART_ALIGNMENT, PlacedCall, Scope, Step, ZeroValue, lay_out,
};
use super::roles::{Roles, pointer};
use super::{ALIAS, MISSING_ADDRESS, Machine, POINTER_ALIGNMENT, Refused, WORKSPACE_SIZE};
use crate::device::{Buffer, Device, DeviceError, Stream};
use crate::kernel::{Pointers, Prepared, Status};

/// The bytes of device memory that a program needs besides its inputs and outputs: what its kernels hand to one
/// another, and their workspaces.
///
/// # Errors
/// When the program cannot run as kernels only with these symbol values.
pub fn workspace_size(
    program: &Program,
    partition: &Partition,
    symbols: &SymbolValues,
    machine: &Machine<'_>,
) -> Result<u64, Refused> {
    Ok(lay_out(program, partition, &Scope::program(program, partition), symbols, machine)?.bytes)
}

/// [`workspace_size`] for one segment.
///
/// # Errors
/// When there is no such segment, or it cannot run as a kernel with these symbol values.
pub fn workspace_size_of_segment(
    program: &Program,
    partition: &Partition,
    segment: usize,
    symbols: &SymbolValues,
    machine: &Machine<'_>,
) -> Result<u64, Refused> {
    Ok(lay_out(program, partition, &Scope::segment(partition, segment)?, symbols, machine)?.bytes)
}

/// A program, or a segment of one, whose launches are built: all that remains is to put them on a stream.
///
/// It belongs to one device and has at most one launch in flight. Dropping it while one is in flight is what the
/// caller of [`PreparedProgram::launch`] promises not to do.
#[derive(Debug)]
pub struct PreparedProgram {
    steps: Vec<ReadyStep>,
    addresses: HashMap<Value, u64>,
    intermediates: HashMap<Value, u64>,
    outside: Vec<Outside>,
    alignments: Vec<Alignment>,
    workspace: (u64, u64),
    _owned: Option<Buffer>,
    device: Device,
}

#[derive(Debug)]
enum ReadyStep {
    Call(ReadyCall),
    /// A value, and where it lies.
    Zero(ZeroValue, u64),
}

#[derive(Debug)]
struct ReadyCall {
    segment: usize,
    roles: Roles,
    prepared: Prepared,
}

/// Prepares a program in which every segment is a kernel: checks every constraint, places what the kernels hand to
/// one another, and builds their launches. `addresses` has one for every input and output of the program (0 will do
/// for a value without elements); `workspace` is the address and size of at least [`workspace_size`] bytes, allocated
/// here when it is absent. It waits for the machine's stream, and must not be called while that is captured.
///
/// # Errors
/// When the program cannot run as kernels only, or with these addresses.
///
/// # Safety
/// Each address must be that of memory on this device that is as large as the value, and so must the workspace. All
/// of it must stay valid, and the workspace must have no other use, until the result is dropped or has other addresses.
pub unsafe fn prepare(
    program: &Program,
    partition: &Partition,
    symbols: &SymbolValues,
    machine: &Machine<'_>,
    addresses: &HashMap<Value, u64>,
    workspace: Option<(u64, u64)>,
) -> Result<PreparedProgram, Refused> {
    let layout = lay_out(program, partition, &Scope::program(program, partition), symbols, machine)?;
    // SAFETY: the caller vouches for the memory.
    unsafe { build(layout, machine, addresses, workspace) }
}

/// Prepares one segment that is a kernel, for a host that runs the rest of the program itself. `addresses` has one for
/// each of the segment's inputs and outputs; everything else is as for [`prepare`].
///
/// # Errors
/// When there is no such segment, or it cannot run as a kernel, or not with these addresses.
///
/// # Safety
/// As for [`prepare`].
pub unsafe fn prepare_segment(
    program: &Program,
    partition: &Partition,
    segment: usize,
    symbols: &SymbolValues,
    machine: &Machine<'_>,
    addresses: &HashMap<Value, u64>,
    workspace: Option<(u64, u64)>,
) -> Result<PreparedProgram, Refused> {
    let layout = lay_out(program, partition, &Scope::segment(partition, segment)?, symbols, machine)?;
    // SAFETY: the caller vouches for the memory.
    unsafe { build(layout, machine, addresses, workspace) }
}

/// # Safety
/// As for [`prepare`].
unsafe fn build(
    layout: Layout<'_>,
    machine: &Machine<'_>,
    addresses: &HashMap<Value, u64>,
    workspace: Option<(u64, u64)>,
) -> Result<PreparedProgram, Refused> {
    let device = machine.device();
    let (workspace, owned) = match workspace {
        Some(given) => (check_workspace(given, layout.bytes)?, None),
        None => {
            let size = usize::try_from(layout.bytes).unwrap_or(usize::MAX);
            let buffer = device.alloc(size).map_err(|error| Refused::device(&error, None))?;
            ((buffer.address(), layout.bytes), Some(buffer))
        }
    };
    let intermediates: HashMap<Value, u64> =
        layout.intermediates.iter().map(|(value, offset)| (*value, workspace.0 + offset)).collect();
    let addresses = addresses.clone();
    check_addresses(&layout.outside, &layout.alignments, &addresses, workspace)?;

    let mut placed = Vec::with_capacity(layout.steps.len());
    for step in layout.steps {
        placed.push(match step {
            Step::Call(call) => {
                let pointers = pointers(&call.call.roles, &addresses, &intermediates, call.segment)?;
                PlacedStep::Call(call, Box::new(pointers))
            }
            Step::Zero(zero) => {
                PlacedStep::Zero(zero, address_of(zero.value, &addresses, &intermediates, zero.segment)?)
            }
        });
    }
    let stream = machine.stream();
    let _current = device.enter().map_err(|error| Refused::device(&error, None))?;
    let mut steps = Vec::with_capacity(placed.len());
    let mut failure = None;
    for step in placed {
        let (call, pointers) = match step {
            PlacedStep::Call(call, pointers) => (call, pointers),
            PlacedStep::Zero(zero, address) => {
                steps.push(ReadyStep::Zero(zero, address));
                continue;
            }
        };
        // SAFETY: the context is current and the stream one of its. Intermediates and workspaces have places of their
        // own in memory that is ours or the caller's, who also vouches for the rest; `admit` has checked the sizes.
        match unsafe { ready(call, &pointers, workspace.0, stream) } {
            Ok(call) => steps.push(ReadyStep::Call(call)),
            Err(failed) => {
                failure = Some(failed);
                break;
            }
        }
    }
    // A kernel may have cleared its workspace on this stream: it is launched on others, and when this fails the
    // workspace is the caller's again.
    let waited = stream.synchronize();
    if let Some((segment, status)) = failure {
        return Err(refused(status, waited, segment));
    }
    waited.map_err(|error| Refused::device(&error, None))?;
    Ok(PreparedProgram {
        steps,
        addresses,
        intermediates,
        outside: layout.outside,
        alignments: layout.alignments,
        workspace,
        _owned: owned,
        device: device.clone(),
    })
}

/// A step with its addresses.
enum PlacedStep<'a> {
    Call(PlacedCall<'a>, Box<Pointers>),
    Zero(ZeroValue, u64),
}

/// Builds one launch, or gives its segment and the kernel's answer.
///
/// # Safety
/// As for [`Kernel::prepare`](crate::kernel::Kernel::prepare).
unsafe fn ready(
    placed: PlacedCall<'_>,
    pointers: &Pointers,
    workspace: u64,
    stream: &Stream,
) -> Result<ReadyCall, (usize, Status)> {
    let (segment, call) = (placed.segment, placed.call);
    let size = usize::try_from(call.workspace).unwrap_or(usize::MAX);
    // A kernel without a workspace gets none: the end of the memory is not memory.
    let address = if call.workspace == 0 { 0 } else { workspace + placed.workspace };
    // SAFETY: the caller vouches for all of it.
    let prepared = unsafe {
        call.kernel.prepare(&call.device, &call.problem, pointers, pointer(address), size, stream.raw())
    };
    let prepared = prepared.map_err(|status| (segment, status))?;
    Ok(ReadyCall { segment, roles: call.roles, prepared })
}

impl PreparedProgram {
    /// Puts every kernel on a stream. It can be captured in a graph.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream is not one of the device that this was prepared for. When a launch
    /// fails, the driver's own error if it has one; earlier kernels of the program are then on the stream.
    ///
    /// # Safety
    /// Until the device is done, this must not be launched again, changed or dropped, and what it reads and writes must
    /// stay valid. A graph that captured it counts as a launch whenever it is launched.
    pub unsafe fn launch(&mut self, stream: &Stream) -> Result<(), DeviceError> {
        if !self.device.owns(stream) {
            return Err(DeviceError::OtherDevice { what: "stream" });
        }
        let _current = self.device.enter()?;
        for step in &mut self.steps {
            match step {
                // SAFETY: the context is current; the caller vouches for the rest.
                ReadyStep::Call(call) => unsafe { call.prepared.launch(stream.raw()) }
                    .map_err(|status| stream.fault().unwrap_or(DeviceError::Launch { status }))?,
                // SAFETY: the value lies there, which is ours or what the caller vouches for.
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
    /// When they do not do; the old ones then stay, all of them.
    ///
    /// # Safety
    /// As for [`prepare`]. No launch may be in flight. Graphs that captured this keep the old addresses.
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
                    // SAFETY: these are the addresses that it had.
                    let _ = unsafe { self.update_step(changed, &old) };
                }
                return Err(refused);
            }
        }
        self.addresses = all;
        Ok(())
    }

    /// The address and size of the memory that its kernels work in.
    pub fn workspace(&self) -> (u64, u64) {
        self.workspace
    }

    /// How many kernels a launch puts on the stream; none for an empty problem.
    pub fn kernels(&self) -> usize {
        self.steps.iter().filter(|step| matches!(step, ReadyStep::Call(_))).count()
    }

    /// # Safety
    /// As for [`PreparedProgram::update_addresses`].
    unsafe fn update_step(&mut self, index: usize, addresses: &HashMap<Value, u64>) -> Result<(), Refused> {
        match &mut self.steps[index] {
            ReadyStep::Call(call) => {
                let pointers = pointers(&call.roles, addresses, &self.intermediates, call.segment)?;
                // SAFETY: the context is current; the caller vouches for the addresses.
                unsafe { call.prepared.update_pointers(&pointers) }
                    .map_err(|status| refused(status, Ok(()), call.segment))
            }
            ReadyStep::Zero(zero, address) => {
                *address = address_of(zero.value, addresses, &self.intermediates, zero.segment)?;
                Ok(())
            }
        }
    }
}

fn pointers(
    roles: &Roles,
    addresses: &HashMap<Value, u64>,
    intermediates: &HashMap<Value, u64>,
    segment: usize,
) -> Result<Pointers, Refused> {
    let address = |value| address_of(value, addresses, intermediates, segment).ok();
    roles.pointers(address).ok_or_else(|| without_address(segment))
}

fn address_of(
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

fn refused(status: Status, waited: Result<(), DeviceError>, segment: usize) -> Refused {
    match unprepared(status, waited) {
        Ok(reason) => Refused::new(reason.code, Some(segment), reason.message),
        Err(error) => Refused::device(&error, Some(segment)),
    }
}

fn check_workspace((address, bytes): (u64, u64), needed: u64) -> Result<(u64, u64), Refused> {
    if bytes < needed || (address == 0 && needed > 0) || address.checked_add(bytes).is_none() {
        let message = format!("the workspace has {bytes} bytes at {address:#x}; {needed} are needed");
        return Err(Refused::new(WORKSPACE_SIZE, None, message));
    }
    if needed > 0 && !address.is_multiple_of(PART_ALIGNMENT) {
        let message = format!("the workspace is at {address:#x}, which is no multiple of {PART_ALIGNMENT}");
        return Err(Refused::new(POINTER_ALIGNMENT, None, message));
    }
    Ok((address, needed))
}

/// Whether every value has an address, an aligned one, and no kernel writes to what is something else.
fn check_addresses(
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
            let message = format!("`%{name}` is at {address:#x}, which is no multiple of {bytes}");
            return Err(Refused::new(POINTER_ALIGNMENT, Some(*segment), message));
        }
    }
    check_overlaps(ranges, workspace)
}

/// Whether what a kernel writes is apart from everything else.
fn check_overlaps(mut ranges: Vec<Range<'_>>, (address, bytes): (u64, u64)) -> Result<(), Refused> {
    // The sum was checked when the memory was given.
    ranges.push(Range { start: address, end: address.saturating_add(bytes), name: None, written: true });
    ranges.retain(|range| range.start < range.end);
    ranges.sort_by_key(|range| range.start);
    // Of those before: the one that reaches furthest, and the one that is written and reaches furthest.
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

/// Memory of the caller, or the workspace, which has no name.
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
