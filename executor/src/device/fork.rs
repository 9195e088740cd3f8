//! A second stream beside a caller's: work on it begins after the caller's earlier work, and ends before its later
//! work.

use std::ptr;

use cudarc::driver::sys::{
    self, CUevent_flags, CUevent_wait_flags, CUresult, CUstreamCaptureStatus, cuuint64_t,
};

use super::driver::{check, error};
use super::stream::Event;
use super::{Device, DeviceError, Stream};

/// A stream for work beside that of other streams, and the events that order it.
#[derive(Debug)]
pub(crate) struct Fork {
    side: Stream,
    forked: Event,
    joined: Event,
}

impl Fork {
    /// Creates a stream and two events on a device.
    ///
    /// # Errors
    /// The driver's error.
    pub(crate) fn new(device: &Device) -> Result<Fork, DeviceError> {
        let side = device.new_stream()?;
        let (forked, joined) = (untimed(&side)?, untimed(&side)?);
        Ok(Fork { side, forked, joined })
    }

    /// Calls `work` with `stream` and a second stream, which runs concurrently. Does not wait for the device, and can
    /// be captured. Earlier work on `stream` is done before either begins, and later work on it begins after both.
    ///
    /// If another stream's capture holds the second stream, both are `stream`.
    ///
    /// # Errors
    /// The driver's error, or that of `work`.
    pub(crate) fn beside(
        &self,
        stream: &Stream,
        work: impl FnOnce(&Stream, &Stream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let _current = stream.context().enter()?;
        if !self.is_free_for(stream)? {
            return work(stream, stream);
        }
        follow(&self.side, &self.forked, stream)?;
        let done = work(stream, &self.side);
        // Even after an error: a capture can only end if this stream has joined it.
        let joined = follow(stream, &self.joined, &self.side);
        done.and(joined)
    }

    /// Returns whether work may begin on the second stream: it is in no capture, or in that of `stream`. The context
    /// must be current.
    fn is_free_for(&self, stream: &Stream) -> Result<bool, DeviceError> {
        let own = capture(&self.side).map_err(|failed| error("cuStreamGetCaptureInfo", failed))?;
        match capture(stream) {
            // The default stream cannot be queried while another stream is being captured.
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => Ok(false),
            Err(failed) => Err(error("cuStreamGetCaptureInfo", failed)),
            Ok(captured) => Ok(own.is_none() || own == captured),
        }
    }
}

/// Lets later work on `stream` wait for earlier work on `other`. The context must be current.
fn follow(stream: &Stream, event: &Event, other: &Stream) -> Result<(), DeviceError> {
    // SAFETY: event and streams are live and of one context.
    check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw(), other.raw().cast()) })?;
    let flags = CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT as u32;
    // SAFETY: as above.
    check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(stream.raw().cast(), event.raw(), flags) })
}

/// An event that only orders work.
fn untimed(stream: &Stream) -> Result<Event, DeviceError> {
    Event::create(stream.shared_context(), CUevent_flags::CU_EVENT_DISABLE_TIMING)
}

/// The number of the capture that a stream is in, unique in the process; `None` outside a capture. The context must be
/// current.
fn capture(stream: &Stream) -> Result<Option<cuuint64_t>, CUresult> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut number = 0;
    // SAFETY: the stream, the status and the number are live; the other outputs are optional.
    let result = unsafe {
        sys::cuStreamGetCaptureInfo_v3(
            stream.raw().cast(),
            &mut status,
            &mut number,
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
            ptr::null_mut(),
        )
    };
    match result {
        CUresult::CUDA_SUCCESS => {
            Ok((status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE).then_some(number))
        }
        failed => Err(failed),
    }
}
