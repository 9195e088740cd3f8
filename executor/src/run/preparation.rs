//! Preparation: builds launches at the caller's addresses, for a program without fallback segments or for one segment.

use std::collections::HashMap;
use std::sync::Arc;

use fourfold_ir::{Program, SymbolValues, Value};
use fourfold_scheduler::Partition;

use super::homes::Homes;
use super::launch::{Launch, Unready};
use super::layout::{Layout, PlacedCall, Scope, Step, lay_out};
use super::memory::{MemoryContent, MemoryPlan};
use super::prepared::{
    Places, PreparedProgram, ReadyCall, ReadyStep, check_addresses, check_workspace, refused,
};
use super::residents::Residents;
use super::{Machine, Outside, Refused};
use crate::device::{Buffer, Fork, Stream};

/// Builder of launches for a program without fallback segments, or for one segment. Its kernels have admitted the
/// extents, so their memory requirements are known.
///
/// [`bind`](Preparation::bind) sets the address of each input and output, [`workspace`](Preparation::workspace) the
/// kernels' working memory, and [`build`](Preparation::build) creates the launches.
#[must_use]
pub struct Preparation<'a> {
    machine: Machine<'a>,
    layout: Layout<'a>,
    addresses: HashMap<Value, u64>,
    workspace: Option<(u64, u64)>,
    /// Kept by the prepared program.
    residents: Vec<Arc<Buffer>>,
    /// True once the caller has given an address.
    has_given: bool,
}

impl<'a> Preparation<'a> {
    /// Prepares a whole program. Every launch reads all inputs, params included, and computes anew what depends on
    /// params only: the host may change a param between launches. [`Session::prepare`](super::Session::prepare) computes
    /// such values once.
    ///
    /// # Errors
    /// When a segment runs on the fallback, or its kernel cannot run here with these extents.
    pub fn of_program(
        program: &Program,
        partition: &Partition,
        symbols: &SymbolValues,
        machine: &Machine<'a>,
    ) -> Result<Preparation<'a>, Refused> {
        Preparation::of(program, partition, &Scope::program(program, partition, symbols), symbols, machine)
    }

    /// Prepares one segment, for a host that runs the others itself.
    ///
    /// # Errors
    /// When the segment does not exist, or cannot run here as a kernel with these extents.
    pub fn of_segment(
        program: &Program,
        partition: &Partition,
        segment: usize,
        symbols: &SymbolValues,
        machine: &Machine<'a>,
    ) -> Result<Preparation<'a>, Refused> {
        let scope = Scope::segment(program, partition, segment)?;
        Preparation::of(program, partition, &scope, symbols, machine)
    }

    /// Prepares the part of a program that resident values leave. Their addresses are bound.
    pub(super) fn beside(
        program: &Program,
        partition: &Partition,
        symbols: &SymbolValues,
        machine: &Machine<'a>,
        residents: &Residents,
    ) -> Result<Preparation<'a>, Refused> {
        let scope = Scope::beside(program, partition, symbols, residents);
        let preparation = Preparation::of(program, partition, &scope, symbols, machine)?;
        let resident = residents.on_device().iter();
        let mut preparation =
            preparation.bind_all(resident.clone().map(|(value, buffer)| (*value, buffer.address())));
        preparation.residents = resident.map(|(_, buffer)| Arc::clone(buffer)).collect();
        preparation.has_given = false;
        Ok(preparation)
    }

    fn of(
        program: &Program,
        partition: &Partition,
        scope: &Scope<'_>,
        symbols: &SymbolValues,
        machine: &Machine<'a>,
    ) -> Result<Preparation<'a>, Refused> {
        let layout = lay_out(program, partition, scope, symbols, machine)?;
        Ok(Preparation {
            machine: *machine,
            layout,
            addresses: HashMap::new(),
            workspace: None,
            residents: Vec::new(),
            has_given: false,
        })
    }

    /// Makes [`build`](Preparation::build) use this stream, such as a host's, instead of the device's own.
    ///
    /// # Errors
    /// When the stream does not belong to this device.
    pub fn stream(self, stream: &'a Stream) -> Result<Preparation<'a>, Refused> {
        let machine = self.machine.with_stream(stream).map_err(|error| Refused::device(&error, None))?;
        Ok(Preparation { machine, ..self })
    }

    /// The device memory required in addition to inputs and outputs, in bytes: intermediates and workspaces.
    pub fn workspace_size(&self) -> u64 {
        self.layout.memory.bytes
    }

    /// Returns true if the caller has given an address or a workspace.
    pub(crate) fn has_given(&self) -> bool {
        self.has_given
    }

    /// The inputs and outputs that have no address yet.
    pub(crate) fn unbound(&self) -> impl Iterator<Item = &Outside> {
        self.layout.outside.iter().filter(|outside| !self.addresses.contains_key(&outside.value))
    }

    /// The layout of that memory.
    pub fn memory(&self) -> &MemoryPlan {
        &self.layout.memory
    }

    /// Sets the device address of an input or output. 0 is valid for a value without elements.
    pub fn bind(mut self, value: Value, address: u64) -> Preparation<'a> {
        self.addresses.insert(value, address);
        self.has_given = true;
        self
    }

    /// Sets the device addresses of several inputs and outputs.
    pub fn bind_all(mut self, addresses: impl IntoIterator<Item = (Value, u64)>) -> Preparation<'a> {
        self.addresses.extend(addresses);
        self.has_given = true;
        self
    }

    /// Sets the kernels' working memory: at least [`workspace_size`](Preparation::workspace_size) bytes, aligned to
    /// 256. Without it, [`build`](Preparation::build) allocates.
    pub fn workspace(mut self, address: u64, bytes: u64) -> Preparation<'a> {
        self.workspace = Some((address, bytes));
        self.has_given = true;
        self
    }

    /// Builds the launches. Waits for the machine's stream, which must not be capturing.
    ///
    /// # Errors
    /// When a value has no address or an unsuitable one, the workspace is too small, or a kernel refuses.
    ///
    /// # Safety
    /// Each address must point to memory on this device that is at least as large as its value; likewise the
    /// workspace. All of this memory must stay valid, and the workspace must have no other use, until the result is
    /// dropped or has other addresses.
    pub unsafe fn build(self) -> Result<PreparedProgram, Refused> {
        let Preparation { machine, layout, addresses, workspace, residents, has_given: _ } = self;
        let Layout { steps: planned, memory, homes, constants, outside, alignments } = layout;
        let device = machine.device();
        let (workspace, owned) = match workspace {
            Some(given) => (check_workspace(given, memory.bytes)?, None),
            None => {
                let size = usize::try_from(memory.bytes).unwrap_or(usize::MAX);
                let buffer = device.alloc(size).map_err(|error| Refused::device(&error, None))?;
                ((buffer.address(), memory.bytes), Some(buffer))
            }
        };
        let places = places(homes, &memory, workspace.0);
        check_addresses(&outside, &alignments, &addresses, workspace)?;
        let stream = machine.stream();
        let _current = device.enter().map_err(|error| Refused::device(&error, None))?;
        let mut steps = Vec::with_capacity(planned.len());
        let mut failure = None;
        for step in planned {
            let segment = step.segment();
            let ready = match step {
                Step::Zero(zero) => ReadyStep::zero(zero, &places, &addresses).ok_or(Unready::Missing),
                Step::Copy(copy) => ReadyStep::copy(copy, &places, &addresses).ok_or(Unready::Missing),
                Step::Call(call) => {
                    // A kernel without a workspace gets 0: its part may be the end of the memory, which is not ours.
                    let own = memory.parts[call.workspace].offset + workspace.0;
                    let own = if call.call.workspace == 0 { 0 } else { own };
                    // SAFETY: the context is current, and the stream belongs to it. Intermediates and workspaces have
                    // parts of our own or the caller's memory that overlap nothing live at the same time. The caller
                    // vouches for the rest; `admit` has checked the sizes.
                    unsafe { ready(call, |value| places.address(value, &addresses), own, stream) }
                }
            };
            match ready {
                Ok(step) => steps.push(step),
                Err(unready) => {
                    failure = Some((segment, unready));
                    break;
                }
            }
        }
        // A kernel may have cleared its workspace on this stream, but is launched on others. After a failure, the
        // workspace belongs to the caller again.
        let waited = stream.synchronize();
        if let Some((segment, unready)) = failure {
            return Err(refused(unready, waited, segment));
        }
        waited.map_err(|error| Refused::device(&error, None))?;
        for (part, tensor) in constants {
            let Some(address) = places.constants.get(&part) else { continue };
            // SAFETY: the part is as large as the tensor, and no step writes it.
            unsafe { stream.upload_at(*address, tensor.bytes()) }
                .map_err(|error| Refused::device(&error, None))?;
        }
        let fork = (!memory.second_stream.is_empty()).then(|| Fork::new(device)).transpose();
        let fork = fork.map_err(|error| Refused::device(&error, None))?;
        Ok(PreparedProgram {
            steps,
            second_stream: fork.map(|fork| (fork, memory.second_stream)),
            addresses,
            places,
            outside,
            alignments,
            workspace,
            _owned: owned,
            _residents: residents,
            device: device.clone(),
        })
    }
}

/// The addresses of parts of the memory at `base`.
fn places(homes: Homes, memory: &MemoryPlan, base: u64) -> Places {
    let (mut intermediates, mut constants) = (HashMap::new(), HashMap::new());
    for (index, part) in memory.parts.iter().enumerate() {
        let address = base + part.offset;
        match part.content {
            MemoryContent::Value(value) => drop(intermediates.insert(value, address)),
            MemoryContent::Constant(_) => drop(constants.insert(index, address)),
            MemoryContent::Stored(value) => {
                constants.insert(index, address);
                // A caller's memory for the value receives a copy.
                if !homes.is_outside(value) {
                    intermediates.insert(value, address);
                }
            }
            MemoryContent::Workspace { .. } => {}
        }
    }
    Places { homes, intermediates, constants }
}

/// Builds one launch, or returns the reason that there is none.
///
/// # Safety
/// As for [`Launch::of`].
unsafe fn ready(
    placed: Box<PlacedCall<'_>>,
    address: impl Fn(Value) -> Option<u64>,
    workspace: u64,
    stream: &Stream,
) -> Result<ReadyStep, Unready> {
    let PlacedCall { segment, ops, call, .. } = *placed;
    // SAFETY: the caller vouches for all of it.
    let launch = unsafe { Launch::of(&call, address, workspace, stream)? };
    Ok(ReadyStep::Call(ReadyCall { segment, ops, roles: call.roles, launch }))
}
