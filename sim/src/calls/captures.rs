//! Graph capture on streams of the current device.

use crate::call::Call;
use crate::exec::{CaptureMode, CaptureStatus};
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclmdlRICaptureBegin`.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream, 107027 while it is captured.
    pub fn capture_begin(&self, stream: u64, mode: CaptureMode) -> Result<(), i32> {
        self.queue(Call::CaptureBegin, format_args!("{stream:#x}, {mode:?}"), |exec, device| {
            exec.capture_begin(device, stream, mode)
        })
    }

    /// `aclmdlRICaptureGetInfo`: the state and the graph (0 if there is none).
    ///
    /// # Errors
    /// The ACL code: 100000 for a null stream.
    pub fn capture_get_info(&self, stream: u64) -> Result<(CaptureStatus, u64), i32> {
        self.queue(Call::CaptureGetInfo, format_args!("{stream:#x}"), |exec, device| {
            exec.capture_get_info(device, stream)
        })
    }

    /// Whether a stream is being captured: the same call, with an answer for the default stream.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle.
    pub fn is_capturing(&self, stream: u64) -> Result<bool, i32> {
        self.queue(Call::CaptureGetInfo, format_args!("{stream:#x}"), |exec, device| {
            exec.is_capturing(device, stream)
        })
    }

    /// `aclmdlRICaptureEnd`: the graph.
    ///
    /// # Errors
    /// The ACL code: 107029 if the stream is not captured, 107025 while a forked stream is not
    /// joined, and the other refusals of the call.
    pub fn capture_end(&self, stream: u64) -> Result<u64, i32> {
        self.queue(Call::CaptureEnd, format_args!("{stream:#x}"), |exec, device| {
            exec.capture_end(device, stream)
        })
    }

    /// `aclmdlRICaptureThreadExchangeMode`: the mode this thread had.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn capture_exchange_mode(&self, mode: CaptureMode) -> Result<CaptureMode, i32> {
        self.call(Call::CaptureThreadExchangeMode, format_args!("{mode:?}"), || {
            Ok(self.inner.executor.capture_exchange_mode(mode))
        })
    }

    /// `aclmdlRIExecuteAsync`: queues one run of a graph.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown graph.
    pub fn graph_execute(&self, graph: u64, stream: u64) -> Result<(), i32> {
        self.queue(Call::GraphExecute, format_args!("{graph:#x}, stream={stream:#x}"), |exec, device| {
            exec.capture_execute(device, graph, stream)
        })
    }

    /// `aclmdlRIDestroy`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107000 for an unknown graph.
    pub fn graph_destroy(&self, graph: u64) -> Result<(), i32> {
        self.call(Call::GraphDestroy, format_args!("{graph:#x}"), || {
            Inner::executed(self.inner.executor.capture_destroy(graph))
        })
    }
}
