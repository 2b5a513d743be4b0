//! The executor's calls on captures and graphs.

use super::capture::{CaptureMode, CaptureStatus};
use super::codes;
use super::event::refuse_if;
use super::{Executor, refuse_in_work};

impl Executor {
    /// Begins a capture: what is queued to the stream goes into a graph and does not run.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero stream, `FEATURE_NOT_SUPPORT` for a default stream's handle,
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_CAPTURED`.
    pub fn capture_begin(&self, device: u32, stream: u64, mode: CaptureMode) -> Result<(), i32> {
        refuse_if(stream == 0, codes::INVALID_PARAM)?;
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        state.capture_begin(slot, mode)
    }

    /// Whether the stream is being captured, and the graph's handle (zero if it is not).
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero stream, `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`.
    pub fn capture_get_info(&self, device: u32, stream: u64) -> Result<(CaptureStatus, u64), i32> {
        refuse_if(stream == 0, codes::INVALID_PARAM)?;
        let state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        Ok(state.capture_status(slot))
    }

    /// Whether the stream is being captured; a default stream (also zero) never is.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`.
    pub fn is_capturing(&self, device: u32, stream: u64) -> Result<bool, i32> {
        let state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        Ok(state.stream(slot).capture.is_some())
    }

    /// Ends the capture that began on the stream and returns the graph's handle. After every error
    /// but `STREAM_CAPTURE_UNMATCHED` the capture is gone without a graph.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero stream, `FEATURE_NOT_SUPPORT` for a default stream's handle,
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_NOT_CAPTURED`,
    /// `STREAM_CAPTURE_UNMATCHED` on a stream that was only forked into the capture,
    /// `STREAM_CAPTURE_WRONG_THREAD`, `STREAM_UNJOINED`, `STREAM_CAPTURE_INVALIDATED`.
    pub fn capture_end(&self, device: u32, stream: u64) -> Result<u64, i32> {
        refuse_if(stream == 0, codes::INVALID_PARAM)?;
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        state.capture_end(slot)
    }

    /// Queues one run of a graph to a stream: a task with everything the captured tasks touch.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero graph, `PARAM_INVALID` for one that does not exist,
    /// `MODEL_CAPTURED` for one still being captured, else as [`Executor::submit`].
    pub fn capture_execute(&self, device: u32, model: u64, stream: u64) -> Result<(), i32> {
        refuse_in_work()?;
        let task = self.shared.lock().capture_task(device, model)?;
        self.submit(device, stream, task)
    }

    /// Destroys a graph. Runs already queued stay.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `PARAM_INVALID` for one that does not exist, `MODEL_CAPTURED` for
    /// one still being captured.
    pub fn capture_destroy(&self, model: u64) -> Result<(), i32> {
        self.shared.lock().capture_destroy(model)
    }

    /// Spoils the capture of a stream, as a failing captured task does on a device.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_NOT_CAPTURED`,
    /// `STREAM_CAPTURE_INVALIDATED` if it is spoilt already.
    pub fn capture_invalidate(&self, device: u32, stream: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        state.capture_invalidate(slot)
    }

    /// Sets the calling thread's capture mode and returns the one before: a thread in another mode
    /// than [`CaptureMode::Global`] may copy synchronously while another thread captures globally.
    pub fn capture_exchange_mode(&self, mode: CaptureMode) -> CaptureMode {
        self.shared.lock().capture_exchange_mode(mode)
    }

    /// Refuses a synchronous copy or fill by the calling thread where a running capture on the
    /// device forbids it. The capture stays sound.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `CAPTURE_MODE_NOT_SUPPORT`.
    pub fn check_synchronous_copy(&self, device: u32) -> Result<(), i32> {
        let state = self.shared.lock();
        refuse_if(device >= state.config.devices, codes::INVALID_DEVICE)?;
        state.capture_refuse_copy(device)
    }
}
