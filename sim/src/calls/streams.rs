//! Streams, events and queued work.

use crate::call::Call;
use crate::exec::Task;
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclrtCreateStream` on the current device.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 207008 when there are no more.
    pub fn create_stream(&self) -> Result<u64, i32> {
        self.call(Call::CreateStream, format_args!(""), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.create_stream(device))
        })
    }

    /// `aclrtCreateEventExWithFlag` on the current device.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107000 for wrong flags, 207007 when there are no more.
    pub fn create_event_ex(&self, flags: u32) -> Result<u64, i32> {
        self.call(Call::CreateEventExWithFlag, format_args!("flags={flags:#x}"), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.create_event(device, flags, true))
        })
    }

    /// `aclrtDestroyEvent`.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle.
    pub fn destroy_event(&self, event: u64) -> Result<(), i32> {
        self.call(Call::DestroyEvent, format_args!("{event:#x}"), || {
            Inner::executed(self.inner.executor.destroy_event(event))
        })
    }

    /// `aclrtRecordEvent`.
    ///
    /// # Errors
    /// The ACL code.
    pub fn record_event(&self, event: u64, stream: u64) -> Result<(), i32> {
        self.call(Call::RecordEvent, format_args!("{event:#x}, stream={stream:#x}"), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.record_event(device, event, stream))
        })
    }

    /// `aclrtQueryEventStatus`: whether it is complete.
    ///
    /// # Errors
    /// The ACL code.
    pub fn query_event_status(&self, event: u64) -> Result<bool, i32> {
        self.call(Call::QueryEventStatus, format_args!("{event:#x}"), || {
            Inner::executed(self.inner.executor.query_event_status(event))
        })
    }

    /// `aclrtSynchronizeEvent`.
    ///
    /// # Errors
    /// The ACL code.
    pub fn synchronize_event(&self, event: u64) -> Result<(), i32> {
        self.call(Call::SynchronizeEvent, format_args!("{event:#x}"), || {
            Inner::executed(self.inner.executor.synchronize_event(event, -1))
        })
    }

    /// `aclrtStreamWaitEvent`.
    ///
    /// # Errors
    /// The ACL code.
    pub fn stream_wait_event(&self, stream: u64, event: u64) -> Result<(), i32> {
        self.call(Call::StreamWaitEvent, format_args!("stream={stream:#x}, {event:#x}"), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.stream_wait_event(device, stream, event))
        })
    }

    /// `aclrtSynchronizeStream`.
    ///
    /// # Errors
    /// The ACL code.
    pub fn synchronize_stream(&self, stream: u64) -> Result<(), i32> {
        self.call(Call::SynchronizeStream, format_args!("{stream:#x}"), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.synchronize_stream(device, stream, -1))
        })
    }

    /// `aclrtSynchronizeDevice` of the current device.
    ///
    /// # Errors
    /// The ACL code.
    pub fn synchronize_device(&self) -> Result<(), i32> {
        self.call(Call::SynchronizeDevice, format_args!(""), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.synchronize_device(device, -1))
        })
    }

    /// Whether a stream of the current device is being captured (`aclmdlRICaptureGetInfo`).
    ///
    /// # Errors
    /// The ACL code.
    pub fn is_capturing(&self, stream: u64) -> Result<bool, i32> {
        self.call(Call::CaptureGetInfo, format_args!("{stream:#x}"), || {
            let device = self.current()?;
            Inner::executed(self.inner.executor.is_capturing(device, stream))
        })
    }

    /// Queues a task on a stream of the current device.
    ///
    /// # Errors
    /// The ACL code.
    pub fn submit(&self, stream: u64, task: Task) -> Result<(), i32> {
        let device = self.current().map_err(|refusal| refusal.code)?;
        self.inner.executor.submit(device, stream, task)
    }

    /// Lets that many ticks of virtual time pass.
    pub fn tick(&self, ticks: u64) {
        self.inner.executor.tick(ticks);
    }
}
