//! Streams, their events, and graphs recorded from them.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUgraph, CUgraphExec, CUgraphExecUpdateResultInfo, CUresult, CUstream,
    CUstream_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::context::{Context, Entered};
use super::driver::{check, error};
use super::{Buffer, DeviceError};

/// A stream: work on it runs in submission order.
#[derive(Debug)]
pub struct Stream {
    raw: CUstream,
    owned: bool,
    context: Arc<Context>,
}

// SAFETY: a stream may be used from every thread; the driver does its own locking.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    pub(super) fn create(context: &Arc<Context>) -> Result<Stream, DeviceError> {
        let _current = context.enter()?;
        let mut raw = ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, and the handle is live.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Stream { raw, owned: true, context: Arc::clone(context) })
    }

    /// # Safety
    /// It must be a stream of this context, and live for as long as the result is used.
    pub(super) unsafe fn borrow(context: &Arc<Context>, stream: *mut c_void) -> Stream {
        Stream { raw: stream.cast(), owned: false, context: Arc::clone(context) }
    }

    /// The raw `CUstream`.
    pub fn raw(&self) -> *mut c_void {
        self.raw.cast()
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn shared_context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Copies bytes into a buffer, in stream order. Returns when the copy is complete.
    ///
    /// # Errors
    /// As for [`Stream::upload_all`].
    pub fn upload(&self, to: &Buffer, offset: usize, bytes: &[u8]) -> Result<(), DeviceError> {
        self.upload_all(&[(to, offset, bytes)])
    }

    /// Copies bytes into buffers at the given offsets, in order, after earlier work on the stream. Returns when all
    /// copies are complete. Without bytes to copy, does nothing and does not wait.
    ///
    /// # Errors
    /// [`DeviceError::Range`] and [`DeviceError::OtherDevice`], before anything is copied; the driver's error; or an
    /// error while the stream is being captured.
    pub fn upload_all(&self, copies: &[(&Buffer, usize, &[u8])]) -> Result<(), DeviceError> {
        let mut placed = Vec::with_capacity(copies.len());
        for (to, offset, bytes) in copies {
            let address = to.part(*offset, bytes.len(), &self.context)?;
            if !bytes.is_empty() {
                placed.push((address, *bytes));
            }
        }
        if placed.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        self.refuse_capture("cuMemcpyHtoDAsync")?;
        let issued = placed.iter().try_for_each(|(address, bytes)| {
            // SAFETY: the part lies within the buffer. Bytes and buffers are borrowed until this function returns,
            // which is only after the copies. Nothing between here and the wait returns or panics, even when a later
            // copy is refused. If the wait fails, the context is lost, and nothing runs in it any more.
            check("cuMemcpyHtoDAsync", unsafe {
                sys::cuMemcpyHtoDAsync_v2(*address, bytes.as_ptr().cast(), bytes.len(), self.raw)
            })
        });
        let waited = self.wait();
        issued.and(waited)
    }

    /// Copies bytes out of a buffer, in stream order. Returns when the copy is complete.
    ///
    /// # Errors
    /// [`DeviceError::Range`]; [`DeviceError::OtherDevice`]; the driver's error, which may stem from earlier work; or
    /// an error while the stream is being captured.
    pub fn download(&self, from: &Buffer, offset: usize, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let address = from.part(offset, bytes.len(), &self.context)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        self.refuse_capture("cuMemcpyDtoHAsync")?;
        // SAFETY: as in `upload`; `bytes` is borrowed exclusively during the wait.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), self.raw)
        })?;
        self.wait()
    }

    /// Fills a part of a buffer with a byte. Does not wait for the device.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::OtherDevice`], or the driver's error.
    pub fn fill(&self, buffer: &Buffer, offset: usize, len: usize, byte: u8) -> Result<(), DeviceError> {
        let address = buffer.part(offset, len, &self.context)?;
        if len == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: the part lies within the buffer, whose memory is freed only after the device is done with it.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, byte, len, self.raw) })
    }

    /// Fills `len` bytes at an address. Does not wait for the device, and can be captured.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// The address must point to `len` bytes of this stream's device, which stay valid until the device is done.
    pub(crate) unsafe fn fill_at(&self, address: u64, len: usize, byte: u8) -> Result<(), DeviceError> {
        let _current = self.context.enter()?;
        // SAFETY: the caller vouches for the memory.
        check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, byte, len, self.raw) })
    }

    /// Copies `len` bytes from one address to another. Does not wait for the device, and can be captured.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// Both addresses must point to `len` bytes of this stream's device, which stay valid until the device is done and
    /// do not overlap.
    pub(crate) unsafe fn copy_at(&self, from: u64, to: u64, len: usize) -> Result<(), DeviceError> {
        let _current = self.context.enter()?;
        // SAFETY: the caller vouches for the memory.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, len, self.raw) })
    }

    /// Copies host bytes to an address, in stream order. Returns when the copy is complete.
    ///
    /// # Errors
    /// The driver's error, or an error while the stream is being captured.
    ///
    /// # Safety
    /// The address must point to as many bytes of this stream's device.
    pub(crate) unsafe fn upload_at(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller vouches for the memory, and the bytes are borrowed until the copy is complete.
        unsafe { self.enqueue_upload(to, bytes) }?;
        let _current = self.context.enter()?;
        self.wait()
    }

    /// Enqueues a copy of host bytes to an address. Does not wait.
    ///
    /// # Errors
    /// The driver's error, or an error while the stream is being captured.
    ///
    /// # Safety
    /// The address must point to as many bytes of this stream's device. Both stay valid until the device is done.
    pub(crate) unsafe fn enqueue_upload(&self, to: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        self.refuse_capture("cuMemcpyHtoDAsync")?;
        // SAFETY: the caller vouches for the memory.
        check("cuMemcpyHtoDAsync", unsafe {
            sys::cuMemcpyHtoDAsync_v2(to, bytes.as_ptr().cast(), bytes.len(), self.raw)
        })
    }

    /// Enqueues a copy from an address to host bytes. Does not wait.
    ///
    /// # Errors
    /// As for [`Stream::enqueue_upload`].
    ///
    /// # Safety
    /// As for [`Stream::enqueue_upload`], and nothing uses the host bytes until the device is done.
    pub(crate) unsafe fn enqueue_download(&self, from: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let _current = self.context.enter()?;
        self.refuse_capture("cuMemcpyDtoHAsync")?;
        // SAFETY: the caller vouches for the memory.
        check("cuMemcpyDtoHAsync", unsafe {
            sys::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), from, bytes.len(), self.raw)
        })
    }

    /// Copies a part of a buffer to a part of another one, which must not overlap it. Does not wait for the device.
    ///
    /// # Errors
    /// [`DeviceError::Range`], [`DeviceError::OtherDevice`], or the driver's error.
    pub fn copy(
        &self,
        from: &Buffer,
        from_offset: usize,
        to: &Buffer,
        to_offset: usize,
        len: usize,
    ) -> Result<(), DeviceError> {
        let source = from.part(from_offset, len, &self.context)?;
        let target = to.part(to_offset, len, &self.context)?;
        if len == 0 {
            return Ok(());
        }
        let _current = self.context.enter()?;
        // SAFETY: as in `fill`.
        check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, len, self.raw) })
    }

    /// Records an event after all earlier work on the stream.
    ///
    /// # Errors
    /// The driver's error.
    pub fn record(&self) -> Result<Event, DeviceError> {
        let _current = self.context.enter()?;
        // Not `CU_EVENT_DISABLE_TIMING`: events are used for timing.
        let event = Event::create(&self.context, CUevent_flags::CU_EVENT_DEFAULT)?;
        // SAFETY: event and stream are live and of one context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, self.raw) })?;
        Ok(event)
    }

    /// Waits for all work on the stream.
    ///
    /// # Errors
    /// The driver's error, which may stem from earlier work.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let _current = self.context.enter()?;
        self.wait()
    }

    /// The driver's error for this stream, if any, after another library's call on it failed. Does not wait, and
    /// leaves a capture in progress alone.
    pub(crate) fn fault(&self) -> Option<DeviceError> {
        let _current = match self.context.enter() {
            Ok(current) => current,
            Err(error) => return Some(error),
        };
        match self.is_captured() {
            // The default stream cannot be queried while another stream is being captured.
            Ok(true) | Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) => None,
            Err(failed) => Some(error("cuStreamIsCapturing", failed)),
            // SAFETY: the stream is live, and not captured.
            Ok(false) => match unsafe { sys::cuStreamQuery(self.raw) } {
                CUresult::CUDA_SUCCESS | CUresult::CUDA_ERROR_NOT_READY => None,
                failed => Some(error("cuStreamQuery", failed)),
            },
        }
    }

    /// Captures the work that `record` puts on this stream, without running it. Other threads' work is unaffected.
    ///
    /// # Errors
    /// The error of `record`; or the driver's, if `record` did something that cannot be captured, such as waiting.
    pub fn capture(&self, record: impl FnOnce() -> Result<(), DeviceError>) -> Result<Graph, DeviceError> {
        let _current = self.context.enter()?;
        let graph = self.record_graph(record)?;
        let mut raw = ptr::null_mut();
        // SAFETY: the graph is live and ours.
        check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph.0, 0) })?;
        Ok(Graph { raw, context: Arc::clone(&self.context) })
    }

    /// Captures a graph. The context must be current.
    pub(super) fn record_graph(
        &self,
        record: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<Recorded, DeviceError> {
        // Relaxed: recorded calls only launch, and the host's other threads may allocate meanwhile.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(self.raw, mode) })?;
        let mut capture = Capture { stream: self, ended: false };
        let recorded = record();
        let graph = capture.end();
        recorded?;
        graph
    }

    fn wait(&self) -> Result<(), DeviceError> {
        // SAFETY: the stream is live.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(self.raw) })
    }

    /// Refuses to capture copies from or to the host, which would run when the host memory is gone.
    fn refuse_capture(&self, call: &'static str) -> Result<(), DeviceError> {
        match self.is_captured() {
            Ok(false) => Ok(()),
            Ok(true) => Err(error(call, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)),
            Err(failed) => Err(error("cuStreamIsCapturing", failed)),
        }
    }

    /// Returns true during a capture. The context must be current.
    fn is_captured(&self) -> Result<bool, CUresult> {
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: the stream and the status are live.
        match unsafe { sys::cuStreamIsCapturing(self.raw, &mut status) } {
            CUresult::CUDA_SUCCESS => Ok(status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE),
            failed => Err(failed),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.owned {
            return;
        }
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the stream is ours; the driver releases it when its work is done.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A capture in progress. It is always ended, so that the host's stream stays usable.
struct Capture<'a> {
    stream: &'a Stream,
    ended: bool,
}

impl Capture<'_> {
    fn end(&mut self) -> Result<Recorded, DeviceError> {
        self.ended = true;
        let mut graph = ptr::null_mut();
        // SAFETY: this thread has begun the capture.
        let result = unsafe { sys::cuStreamEndCapture(self.stream.raw, &mut graph) };
        let recorded = Recorded(graph);
        check("cuStreamEndCapture", result)?;
        Ok(recorded)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.end();
        }
    }
}

/// A recorded graph; null if the capture failed.
#[derive(Debug)]
pub(super) struct Recorded(CUgraph);

impl Recorded {
    pub(super) fn raw(&self) -> CUgraph {
        self.0
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the graph is ours; executable graphs instantiated from it do not need it.
            let _ = unsafe { sys::cuGraphDestroy(self.0) };
        }
    }
}

/// A point in a stream's work.
#[derive(Debug)]
pub struct Event {
    raw: CUevent,
    context: Arc<Context>,
}

// SAFETY: an event may be used from every thread; the driver does its own locking.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn create(context: &Arc<Context>, flags: CUevent_flags) -> Result<Event, DeviceError> {
        let _current = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: the context is current, and the handle is live.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut raw, flags as u32) })?;
        Ok(Event { raw, context: Arc::clone(context) })
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }

    /// Waits for both events and returns the milliseconds between them.
    ///
    /// # Errors
    /// The driver's error, which may stem from earlier work.
    pub fn elapsed_ms(&self, later: &Event) -> Result<f32, DeviceError> {
        let _current = self.context.enter()?;
        for event in [self, later] {
            // SAFETY: the event is live and was recorded.
            check("cuEventSynchronize", unsafe { sys::cuEventSynchronize(event.raw) })?;
        }
        let mut milliseconds = 0.0;
        // SAFETY: both events are live and record times; the float is live.
        check("cuEventElapsedTime", unsafe {
            sys::cuEventElapsedTime_v2(&mut milliseconds, self.raw, later.raw)
        })?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the event is ours; the driver releases it once it has occurred.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

/// An executable graph: recorded work that can be launched repeatedly.
#[derive(Debug)]
pub struct Graph {
    raw: CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: a graph may be used from every thread, one at a time.
unsafe impl Send for Graph {}

impl Graph {
    /// Replaces the recorded work by the work that `record` puts on `stream`, without running it. The kernels and
    /// their order must be the same; addresses and extents may differ. Launches in progress are unaffected.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream belongs to another device; the error of `record`; or the driver's
    /// error, such as for different kernels. The graph is then unchanged, except that after an error of
    /// `cuGraphExecUpdate` it may be partly updated and must not be launched.
    pub fn update(
        &mut self,
        stream: &Stream,
        record: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let _current = self.enter_for(stream)?;
        let graph = stream.record_graph(record)?;
        let mut outcome = MaybeUninit::<CUgraphExecUpdateResultInfo>::uninit();
        // SAFETY: both graphs are live and ours, and so is the output. It is ignored, since the result has the same
        // information.
        check("cuGraphExecUpdate", unsafe {
            sys::cuGraphExecUpdate_v2(self.raw, graph.raw(), outcome.as_mut_ptr())
        })
    }

    /// Enqueues the recorded work on a stream. Does not wait for the device.
    ///
    /// # Errors
    /// [`DeviceError::OtherDevice`] when the stream belongs to another device than the graph, or the driver's error.
    ///
    /// # Safety
    /// Everything recorded must still be valid. Its memory must exist until the device is done, and other work that uses
    /// it must be ordered before or after the launch. A recorded kernel is code of a library, which the graph does
    /// not keep loaded. So the [`PreparedProgram`](crate::PreparedProgram) or [`Prepared`](crate::kernel::Prepared)
    /// whose launch was recorded must live until the device is done.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<(), DeviceError> {
        let _current = self.enter_for(stream)?;
        // SAFETY: graph and stream are live; the caller vouches for what was recorded.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.raw, stream.raw) })
    }

    /// Makes the context current if the stream belongs to it.
    fn enter_for(&self, stream: &Stream) -> Result<Entered, DeviceError> {
        match self.context.is(&stream.context) {
            true => self.context.enter(),
            false => Err(DeviceError::OtherDevice { what: "stream" }),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        // SAFETY: the graph is ours; the driver releases it when its launches are done.
        let _ = unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
