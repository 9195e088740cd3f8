//! The device and kernels that a run uses.

use std::collections::HashMap;

use super::{PendingKernel, RunReason};
use crate::blas::{Blas, BlasError};
use crate::device::{Device, DeviceError, Stream};
use crate::kernel::Kernel;
use crate::service::Wait;

/// The name of a library call in errors.
pub(super) const PRODUCT: &str = "cublasLtMatmul";

/// The kernel of a kernel segment, or its absence.
#[derive(Clone, Debug)]
pub enum SegmentKernel {
    /// The kernel built from the segment's own plan. A kernel with another
    /// [`signature`](fourfold_scheduler::Plan::signature) or for another device is refused. A kernel with the same
    /// signature but another computation goes unnoticed.
    Ready(Kernel),
    /// No kernel, with the reason.
    Unavailable(RunReason),
    /// The vendor's matrix library, for a plain `mma`.
    Library(Blas),
    /// A kernel being built. Meanwhile the segment runs on the fallback, unless the call may wait.
    Pending(PendingKernel),
}

/// The kernels of a program, by segment position.
pub type Kernels = HashMap<usize, SegmentKernel>;

impl From<&BlasError> for RunReason {
    fn from(error: &BlasError) -> RunReason {
        let message = format!("{error} ({}): the product ran on the CPU", error.remedy());
        RunReason { code: error.code(), message }
    }
}

/// A device, one of its streams, and kernels for it.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    device: &'a Device,
    kernels: &'a Kernels,
    /// A stream of the device's context; `None` for the device's own.
    stream: Option<&'a Stream>,
}

impl<'a> Machine<'a> {
    /// A device with its own stream, and its kernels by segment position.
    pub fn new(device: &'a Device, kernels: &'a Kernels) -> Machine<'a> {
        Machine { device, kernels, stream: None }
    }

    /// Uses another stream, such as a host's.
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
    pub fn kernels(&self) -> &'a Kernels {
        self.kernels
    }

    /// The stream in use.
    pub fn stream(&self) -> &'a Stream {
        self.stream.unwrap_or_else(|| self.device.stream())
    }

    /// The name of a segment's kernel; empty without one.
    pub(super) fn kernel_name(&self, segment: usize) -> String {
        match self.kernels.get(&segment) {
            Some(SegmentKernel::Ready(kernel)) => kernel.metadata().kernel.clone(),
            Some(SegmentKernel::Library(_)) => PRODUCT.to_owned(),
            Some(SegmentKernel::Pending(pending)) => match pending.wait(Wait::Never) {
                Some(Ok(kernel)) => kernel.metadata().kernel.clone(),
                _ => String::new(),
            },
            _ => String::new(),
        }
    }
}
