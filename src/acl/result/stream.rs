//! Streams, events and capture. A null stream is the default stream of the thread's context.

use core::ffi::c_void;

use crate::acl::sys;
use crate::acl::table::Acl;
use crate::driver::DriverResult;

impl Acl {
    /// A new stream in this thread's context. Priority 0 is the highest; flags are `ACL_STREAM_*`.
    pub fn create_stream(&self, priority: u32, flags: u32) -> DriverResult<sys::aclrtStream> {
        let mut stream = core::ptr::null_mut();
        let arguments = format_args!("priority={priority}, flag={flags:#x}");
        let function = self.functions.aclrtCreateStreamWithConfig;
        self.call("aclrtCreateStreamWithConfig", function, arguments, |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut stream, priority, flags) }
        })?;
        Ok(stream)
    }

    /// A new stream with the default priority and flags.
    pub fn create_default_stream(&self) -> DriverResult<sys::aclrtStream> {
        let mut stream = core::ptr::null_mut();
        self.call("aclrtCreateStream", self.functions.aclrtCreateStream, format_args!(""), |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut stream) }
        })?;
        Ok(stream)
    }

    /// Destroys a stream after its work.
    ///
    /// # Safety
    ///
    /// The stream is live and not used afterwards.
    pub unsafe fn destroy_stream(&self, stream: sys::aclrtStream) -> DriverResult<()> {
        let arguments = format_args!("stream={stream:?}");
        self.call("aclrtDestroyStream", self.functions.aclrtDestroyStream, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(stream) }
        })
    }

    /// Whether all work of the stream is done.
    ///
    /// # Safety
    ///
    /// The stream is null or live.
    pub unsafe fn stream_is_idle(&self, stream: sys::aclrtStream) -> DriverResult<bool> {
        let mut status = sys::ACL_STREAM_STATUS_RESERVED;
        let arguments = format_args!("stream={stream:?}");
        self.call("aclrtStreamQuery", self.functions.aclrtStreamQuery, arguments, |function| {
            // SAFETY: as this function's, and a place to write to.
            unsafe { function(stream, &mut status) }
        })?;
        Ok(status == sys::ACL_STREAM_STATUS_COMPLETE)
    }

    /// Waits for the stream.
    ///
    /// # Safety
    ///
    /// The stream is null or live.
    pub unsafe fn synchronize_stream(&self, stream: sys::aclrtStream) -> DriverResult<()> {
        let arguments = format_args!("stream={stream:?}");
        self.call("aclrtSynchronizeStream", self.functions.aclrtSynchronizeStream, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(stream) }
        })
    }

    /// The same for at most so many milliseconds; 0 is refused, -1 waits for ever.
    ///
    /// # Safety
    ///
    /// The stream is null or live.
    pub unsafe fn synchronize_stream_with_timeout(
        &self,
        stream: sys::aclrtStream,
        milliseconds: i32,
    ) -> DriverResult<()> {
        let arguments = format_args!("stream={stream:?}, timeout={milliseconds}");
        let function = self.functions.aclrtSynchronizeStreamWithTimeout;
        self.call("aclrtSynchronizeStreamWithTimeout", function, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(stream, milliseconds) }
        })
    }

    /// Lets later work of the stream wait for the event.
    ///
    /// # Safety
    ///
    /// The stream is null or live, the event is live and was recorded.
    pub unsafe fn stream_wait_event(
        &self,
        stream: sys::aclrtStream,
        event: sys::aclrtEvent,
    ) -> DriverResult<()> {
        let arguments = format_args!("stream={stream:?}, event={event:?}");
        self.call("aclrtStreamWaitEvent", self.functions.aclrtStreamWaitEvent, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(stream, event) }
        })
    }

    /// A new event that may be recorded again; flags are `ACL_EVENT_*`.
    pub fn create_event(&self, flags: u32) -> DriverResult<sys::aclrtEvent> {
        let mut event = core::ptr::null_mut();
        let arguments = format_args!("flag={flags:#x}");
        let function = self.functions.aclrtCreateEventExWithFlag;
        self.call("aclrtCreateEventExWithFlag", function, arguments, |function| {
            // SAFETY: a place to write to.
            unsafe { function(&mut event, flags) }
        })?;
        Ok(event)
    }

    /// Destroys an event; what waits for it is not disturbed.
    ///
    /// # Safety
    ///
    /// The event is live and not used afterwards.
    pub unsafe fn destroy_event(&self, event: sys::aclrtEvent) -> DriverResult<()> {
        let arguments = format_args!("event={event:?}");
        self.call("aclrtDestroyEvent", self.functions.aclrtDestroyEvent, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(event) }
        })
    }

    /// The event completes when the work now in the stream has.
    ///
    /// # Safety
    ///
    /// The event is live, the stream is null or live.
    pub unsafe fn record_event(&self, event: sys::aclrtEvent, stream: sys::aclrtStream) -> DriverResult<()> {
        let arguments = format_args!("event={event:?}, stream={stream:?}");
        self.call("aclrtRecordEvent", self.functions.aclrtRecordEvent, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(event, stream) }
        })
    }

    /// Whether the event's last record has completed; true for one never recorded.
    ///
    /// # Safety
    ///
    /// The event is live.
    pub unsafe fn event_is_complete(&self, event: sys::aclrtEvent) -> DriverResult<bool> {
        let mut status = sys::ACL_EVENT_RECORDED_STATUS_NOT_READY;
        let arguments = format_args!("event={event:?}");
        self.call("aclrtQueryEventStatus", self.functions.aclrtQueryEventStatus, arguments, |function| {
            // SAFETY: as this function's, and a place to write to.
            unsafe { function(event, &mut status) }
        })?;
        Ok(status == sys::ACL_EVENT_RECORDED_STATUS_COMPLETE)
    }

    /// Waits for the event's last record.
    ///
    /// # Safety
    ///
    /// The event is live.
    pub unsafe fn synchronize_event(&self, event: sys::aclrtEvent) -> DriverResult<()> {
        let arguments = format_args!("event={event:?}");
        self.call("aclrtSynchronizeEvent", self.functions.aclrtSynchronizeEvent, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(event) }
        })
    }

    /// The same for at most so many milliseconds; 0 is refused, -1 waits for ever.
    ///
    /// # Safety
    ///
    /// The event is live.
    pub unsafe fn synchronize_event_with_timeout(
        &self,
        event: sys::aclrtEvent,
        milliseconds: i32,
    ) -> DriverResult<()> {
        let arguments = format_args!("event={event:?}, timeout={milliseconds}");
        let function = self.functions.aclrtSynchronizeEventWithTimeout;
        self.call("aclrtSynchronizeEventWithTimeout", function, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(event, milliseconds) }
        })
    }

    /// The state of the stream's capture (`ACL_MODEL_RI_CAPTURE_STATUS_*`) and the graph, null
    /// where nothing is captured.
    ///
    /// # Safety
    ///
    /// The stream is live. Null is refused: a default stream cannot be captured.
    pub unsafe fn capture_info(
        &self,
        stream: sys::aclrtStream,
    ) -> DriverResult<(sys::aclmdlRICaptureStatus, sys::aclmdlRI)> {
        let (mut status, mut graph) = (sys::ACL_MODEL_RI_CAPTURE_STATUS_NONE, core::ptr::null_mut());
        let arguments = format_args!("stream={stream:?}");
        self.call("aclmdlRICaptureGetInfo", self.functions.aclmdlRICaptureGetInfo, arguments, |function| {
            // SAFETY: as this function's, and two places to write to.
            unsafe { function(stream, &mut status, &mut graph) }
        })?;
        Ok((status, graph))
    }

    /// Sets the capture mode of this thread (`ACL_MODEL_RI_CAPTURE_MODE_*`); answers the old one.
    pub fn exchange_capture_mode(
        &self,
        mode: sys::aclmdlRICaptureMode,
    ) -> DriverResult<sys::aclmdlRICaptureMode> {
        let mut exchanged = mode;
        let arguments = format_args!("mode={mode}");
        let function = self.functions.aclmdlRICaptureThreadExchangeMode;
        self.call("aclmdlRICaptureThreadExchangeMode", function, arguments, |function| {
            // SAFETY: a place to read from and to write to.
            unsafe { function(&mut exchanged) }
        })?;
        Ok(exchanged)
    }

    /// Has `callback` called when the graph is destroyed.
    ///
    /// # Safety
    ///
    /// The graph is live. The callback may be called from any thread with `context` until then; it
    /// must not call ACL.
    pub unsafe fn on_graph_destroyed(
        &self,
        graph: sys::aclmdlRI,
        callback: sys::aclrtCallback,
        context: *mut c_void,
    ) -> DriverResult<()> {
        let arguments = format_args!("modelRI={graph:?}");
        let function = self.functions.aclmdlRIDestroyRegisterCallback;
        self.call("aclmdlRIDestroyRegisterCallback", function, arguments, |function| {
            // SAFETY: as this function's.
            unsafe { function(graph, callback, context) }
        })
    }
}
