//! Where kernels run, and what there is to run.

use std::collections::HashMap;

use super::{PendingKernel, RunReason};
use crate::device::{Device, DeviceError, Stream};
use crate::kernel::Kernel;
use crate::service::Wait;

/// What a kernel segment has to run with.
#[derive(Clone, Debug)]
pub enum SegmentKernel {
    /// The kernel that was built from the segment's own plan. One of another [`signature`](fourfold_scheduler::Plan::signature), or for
    /// another device, is refused; one of the same signature that computes something else is not noticed.
    Ready(Kernel),
    /// There is none, and why.
    Unavailable(RunReason),
    /// It is still being had. Until it is there the segment runs on the fallback, unless the call may wait.
    Pending(PendingKernel),
}

/// A device, a stream of it to work on, and the kernels for it.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    device: &'a Device,
    kernels: &'a HashMap<usize, SegmentKernel>,
    /// One of the device's context.
    stream: Option<&'a Stream>,
}

impl<'a> Machine<'a> {
    /// A device with its own stream and kernels for it, by segment position.
    pub fn new(device: &'a Device, kernels: &'a HashMap<usize, SegmentKernel>) -> Machine<'a> {
        Machine { device, kernels, stream: None }
    }

    /// The same with another stream to work on, such as a host's.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream does not belong to this device.
    pub fn with_stream(self, stream: &'a Stream) -> Result<Machine<'a>, DeviceError> {
        match self.device.owns(stream) {
            true => Ok(Machine { stream: Some(stream), ..self }),
            false => Err(DeviceError::OtherDevice { what: "stream" }),
        }
    }

    /// The device.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// The kernels, by segment position.
    pub fn kernels(&self) -> &'a HashMap<usize, SegmentKernel> {
        self.kernels
    }

    /// The stream to work on.
    pub fn stream(&self) -> &'a Stream {
        self.stream.unwrap_or_else(|| self.device.stream())
    }

    /// The name of a segment's kernel; empty when it has none.
    pub(super) fn kernel_name(&self, segment: usize) -> String {
        match self.kernels.get(&segment) {
            Some(SegmentKernel::Ready(kernel)) => kernel.metadata().kernel.clone(),
            Some(SegmentKernel::Pending(pending)) => match pending.wait(Wait::Never) {
                Some(Ok(kernel)) => kernel.metadata().kernel.clone(),
                _ => String::new(),
            },
            _ => String::new(),
        }
    }
}
