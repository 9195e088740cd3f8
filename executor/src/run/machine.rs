//! Where kernels run, and what there is to run.

use std::collections::HashMap;

use super::RunReason;
use crate::device::{Device, Stream};
use crate::kernel::Kernel;

/// The code of a kernel that has no device to run on.
pub const NO_DEVICE: &str = "no_device";
/// The code of a kernel segment for which no kernel was given.
pub const NOT_BUILT: &str = "not_built";
/// The code of a kernel that does not take a problem that its plan accepted: a bug of ours.
pub const KERNEL_REFUSED: &str = "kernel_refused";
/// The code of a kernel for whose operands the device has no memory.
pub const DEVICE_MEMORY: &str = "device_memory";

/// What a kernel segment has to run with.
#[derive(Clone, Debug)]
pub enum SegmentKernel {
    /// The kernel that was built from the segment's own plan. Another would read and write what it should not.
    Ready {
        /// The kernel.
        kernel: Kernel,
        /// Whether it emulates the target's instructions, as the device is not one of the target.
        emulated: bool,
    },
    /// There is none, and why.
    Unavailable(RunReason),
}

/// A device and the kernels for it.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// The device.
    pub device: &'a Device,
    /// By segment position.
    pub kernels: &'a HashMap<usize, SegmentKernel>,
    /// The stream of this device to work on, such as a host's; the device's own when absent.
    pub stream: Option<&'a Stream>,
}

impl<'a> Machine<'a> {
    /// A device with its own stream and kernels for it.
    pub fn new(device: &'a Device, kernels: &'a HashMap<usize, SegmentKernel>) -> Machine<'a> {
        Machine { device, kernels, stream: None }
    }

    /// The stream to work on.
    pub(super) fn stream(&self) -> &'a Stream {
        self.stream.unwrap_or_else(|| self.device.stream())
    }

    /// The name of a segment's kernel; empty when it has none.
    pub(super) fn kernel_name(&self, segment: usize) -> String {
        match self.kernels.get(&segment) {
            Some(SegmentKernel::Ready { kernel, .. }) => kernel.metadata().kernel.clone(),
            _ => String::new(),
        }
    }
}
