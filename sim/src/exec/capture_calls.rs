//! The executor's calls on captures and graphs.

use super::capture::{CaptureMode, CaptureStatus};
use super::codes;
use super::event::refuse_if;
use super::task::{Access, Work};
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

    /// What the kernels of a graph touch (tasks but for those of [`Executor::submit_repeatable`]), each
    /// range with its task's label.
    ///
    /// # Errors
    /// As [`capture_destroy`](Self::capture_destroy).
    pub fn graph_kernels(&self, model: u64) -> Result<Vec<(&'static str, Access)>, i32> {
        self.shared.lock().graph_kernels(model)
    }

    /// Destroys a graph. Runs already queued stay. Functions that wanted to be told are called.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `PARAM_INVALID` for one that does not exist, `MODEL_CAPTURED` for
    /// one still being captured.
    pub fn capture_destroy(&self, model: u64) -> Result<(), i32> {
        self.capture_destroy_telling(model)?.into_iter().for_each(|call| call());
        Ok(())
    }

    /// The same; the caller calls the functions.
    ///
    /// # Errors
    /// As [`capture_destroy`](Self::capture_destroy).
    pub fn capture_destroy_telling(&self, model: u64) -> Result<Vec<Work>, i32> {
        self.shared.lock().capture_destroy(model)
    }

    /// Whether a graph exists and its capture has ended.
    ///
    /// # Errors
    /// As [`capture_destroy`](Self::capture_destroy).
    pub fn check_graph(&self, model: u64) -> Result<(), i32> {
        self.shared.lock().finished_model(model).map(|_| ())
    }

    /// The function is called when the graph is destroyed.
    ///
    /// # Errors
    /// As [`capture_destroy`](Self::capture_destroy).
    pub fn on_graph_destroyed(&self, model: u64, call: Work) -> Result<(), i32> {
        self.shared.lock().tell_destroyed(model, call)
    }

    /// Whether a capture can begin on the stream, but for its mode and for another capture.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero stream, `FEATURE_NOT_SUPPORT` for a default stream's handle,
    /// `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn check_capture_stream(&self, device: u32, stream: u64) -> Result<(), i32> {
        refuse_if(stream == 0, codes::INVALID_PARAM)?;
        let state = self.shared.lock();
        let slot = state.slot(device, stream)?;
        refuse_if(state.stream(slot).default, codes::FEATURE_NOT_SUPPORT)
    }

    /// Begins a group of captured tasks.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_NOT_CAPTURED`,
    /// `STREAM_TASK_GROUP_STATUS` inside a group.
    pub fn task_group_begin(&self, device: u32, stream: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        let stream = state.stream_mut(slot);
        refuse_if(stream.capture.is_none(), codes::STREAM_NOT_CAPTURED)?;
        refuse_if(stream.group_open, codes::STREAM_TASK_GROUP_STATUS)?;
        stream.group_open = true;
        Ok(())
    }

    /// Ends a group of captured tasks: its handle.
    ///
    /// # Errors
    /// As [`task_group_begin`](Self::task_group_begin), `STREAM_TASK_GROUP_STATUS` outside a group.
    pub fn task_group_end(&self, device: u32, stream: u64) -> Result<u64, i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        let stream = state.stream_mut(slot);
        refuse_if(stream.capture.is_none(), codes::STREAM_NOT_CAPTURED)?;
        refuse_if(!stream.group_open, codes::STREAM_TASK_GROUP_STATUS)?;
        stream.group_open = false;
        Ok(state.new_group())
    }

    /// Begins the update of a group: tasks queued to the stream are not run until its end.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`,
    /// `STREAM_CAPTURED`, `PARAM_INVALID` for an unknown group, `STREAM_TASK_GROUP_STATUS` inside an
    /// update.
    pub fn task_update_begin(&self, device: u32, stream: u64, group: u64) -> Result<(), i32> {
        refuse_if(stream == 0 || group == 0, codes::INVALID_PARAM)?;
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        refuse_if(state.stream(slot).capture.is_some(), codes::STREAM_CAPTURED)?;
        refuse_if(!state.is_group(group), codes::PARAM_INVALID)?;
        let stream = state.stream_mut(slot);
        refuse_if(stream.updating, codes::STREAM_TASK_GROUP_STATUS)?;
        stream.updating = true;
        Ok(())
    }

    /// Ends the update of a group.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`, `STREAM_TASK_GROUP_STATUS` outside an
    /// update.
    pub fn task_update_end(&self, device: u32, stream: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        let stream = state.stream_mut(slot);
        refuse_if(!stream.updating, codes::STREAM_TASK_GROUP_STATUS)?;
        stream.updating = false;
        Ok(())
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
        state.device_of(device)?;
        state.capture_refuse_copy(device)
    }
}
