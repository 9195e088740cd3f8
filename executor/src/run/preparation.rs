//! Preparation: builds launches at the caller's addresses, for a program of kernels only or for one kernel segment.

use std::collections::HashMap;

use fourfold_ir::{Program, SymbolValues, Value};
use fourfold_scheduler::Partition;

use super::launch::{Launch, Unready};
use super::layout::{Layout, PlacedCall, Scope, Step, lay_out};
use super::prepared::{
    PreparedProgram, ReadyCall, ReadyStep, address_of, check_addresses, check_workspace, refused,
};
use super::{Machine, Refused};
use crate::device::Stream;

/// Builder of launches for a program of kernels only, or for one kernel segment. Its kernels have admitted the
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
}

impl<'a> Preparation<'a> {
    /// Prepares a whole program.
    ///
    /// # Errors
    /// When a segment is not a kernel segment, or its kernel cannot run here with these extents.
    pub fn of_program(
        program: &Program,
        partition: &Partition,
        symbols: &SymbolValues,
        machine: &Machine<'a>,
    ) -> Result<Preparation<'a>, Refused> {
        Preparation::of(program, partition, &Scope::program(program, partition), symbols, machine)
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
        Preparation::of(program, partition, &Scope::segment(partition, segment)?, symbols, machine)
    }

    fn of(
        program: &Program,
        partition: &Partition,
        scope: &Scope<'_>,
        symbols: &SymbolValues,
        machine: &Machine<'a>,
    ) -> Result<Preparation<'a>, Refused> {
        let layout = lay_out(program, partition, scope, symbols, machine)?;
        Ok(Preparation { machine: *machine, layout, addresses: HashMap::new(), workspace: None })
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
        self.layout.bytes
    }

    /// Sets the device address of an input or output. 0 is valid for a value without elements.
    pub fn bind(mut self, value: Value, address: u64) -> Preparation<'a> {
        self.addresses.insert(value, address);
        self
    }

    /// Sets the device addresses of several inputs and outputs.
    pub fn bind_all(mut self, addresses: impl IntoIterator<Item = (Value, u64)>) -> Preparation<'a> {
        self.addresses.extend(addresses);
        self
    }

    /// Sets the kernels' working memory: at least [`workspace_size`](Preparation::workspace_size) bytes, aligned to
    /// 256. Without it, [`build`](Preparation::build) allocates.
    pub fn workspace(mut self, address: u64, bytes: u64) -> Preparation<'a> {
        self.workspace = Some((address, bytes));
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
        let Preparation { machine, layout, addresses, workspace } = self;
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
        check_addresses(&layout.outside, &layout.alignments, &addresses, workspace)?;

        let stream = machine.stream();
        let _current = device.enter().map_err(|error| Refused::device(&error, None))?;
        let mut steps = Vec::with_capacity(layout.steps.len());
        let mut failure = None;
        for step in layout.steps {
            let call = match step {
                Step::Call(call) => call,
                Step::Zero(zero) => {
                    let Ok(address) = address_of(zero.value, &addresses, &intermediates, zero.segment) else {
                        failure = Some((zero.segment, Unready::Missing));
                        break;
                    };
                    steps.push(ReadyStep::Zero(zero, address));
                    continue;
                }
            };
            let segment = call.segment;
            let address = |value| address_of(value, &addresses, &intermediates, segment).ok();
            // SAFETY: the context is current, and the stream belongs to it. Intermediates and workspaces have places
            // in our own or the caller's memory that overlap nothing used at the same time. The caller vouches for the
            // rest; `admit` has checked the sizes.
            match unsafe { ready(call, address, workspace.0, stream) } {
                Ok(call) => steps.push(ReadyStep::Call(call)),
                Err(failed) => {
                    failure = Some(failed);
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
}

/// Builds one launch, or returns its segment and the reason that there is none.
///
/// # Safety
/// As for [`Launch::of`].
unsafe fn ready(
    placed: Box<PlacedCall<'_>>,
    address: impl Fn(Value) -> Option<u64>,
    workspace: u64,
    stream: &Stream,
) -> Result<ReadyCall, (usize, Unready)> {
    let (segment, call) = (placed.segment, placed.call);
    // A kernel without a workspace gets 0: its offset may be the end of the allocation, which is not ours.
    let workspace = if call.workspace == 0 { 0 } else { workspace + placed.workspace };
    // SAFETY: the caller vouches for all of it.
    let launch = unsafe { Launch::of(&call, address, workspace, stream) };
    let launch = launch.map_err(|unready| (segment, unready))?;
    Ok(ReadyCall { segment, roles: call.roles, launch })
}
