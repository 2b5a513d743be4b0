//! Streams and events of the current device, and queued work. 0 is the default stream.

use std::sync::atomic::Ordering::Relaxed;

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::exec::{EVENT_DEFAULT, Executor, WAIT_FOREVER, Work, check_event_flags, is_timeout};
use crate::hooks::StreamState;
use crate::refusal::{Answer, refuse};
use crate::sim::{Inner, Sim};

/// The lowest priority of a stream.
const LEAST_PRIORITY: u32 = 7;

impl Sim {
    /// A call on the current device that the executor answers; `handles` are those among its arguments.
    pub(super) fn queue<T>(
        &self,
        call: Call,
        arguments: std::fmt::Arguments<'_>,
        handles: &[Handle],
        ask: impl FnOnce(&Executor, u32) -> Result<T, i32>,
    ) -> Result<T, i32> {
        self.call(call, arguments, || {
            let context = self.context_for(handles)?;
            Inner::executed(ask(&self.inner.executor, context))
        })
    }

    /// A call about an event, whatever device is current.
    pub(super) fn event<T>(
        &self,
        call: Call,
        event: u64,
        ask: impl FnOnce(&Executor) -> Result<T, i32>,
    ) -> Result<T, i32> {
        self.call(call, format_args!("{event:#x}"), || {
            if event == 0 {
                return refuse(codes::INVALID_PARAM, "null event");
            }
            Inner::executed(ask(&self.inner.executor))
        })
    }

    /// Says once that queued work of the device touched memory that was not there: what a wait does.
    pub(super) fn report_fault(&self, device: u32) -> Answer<()> {
        let fault = self.inner.faulted.get(device as usize);
        if fault.is_some_and(|fault| fault.swap(false, Relaxed)) { refuse_faulted() } else { Ok(()) }
    }

    /// What a query does: says the same of the current device, and leaves it to be said again.
    fn show_fault(&self) -> Result<(), i32> {
        let here = self.here().ok();
        let fault = here.and_then(|here| self.inner.faulted.get(here.device as usize));
        let faulted = fault.is_some_and(|fault| fault.load(Relaxed));
        if faulted { Err(codes::RT_AICORE_TRAP_WRITE_OVERFLOW) } else { Ok(()) }
    }

    /// Queries an event. The error of the device comes in place of a status.
    fn query(
        &self,
        call: Call,
        event: u64,
        ask: impl FnOnce(&Executor) -> Result<bool, i32>,
    ) -> Result<bool, i32> {
        self.event(call, event, |exec| ask(exec).and_then(|status| self.show_fault().map(|()| status)))
    }

    fn wait_event(&self, call: Call, event: u64, timeout: i32) -> Result<(), i32> {
        self.event(call, event, |exec| {
            exec.synchronize_event(event, timeout)?;
            self.wait_for_others(event, timeout)?;
            let here = self.here().ok();
            here.map_or(Ok(()), |here| self.report_fault(here.device)).map_err(|refusal| refusal.code)
        })?;
        self.pools_after_wait();
        Ok(())
    }

    /// `aclrtCreateStream`.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 207008 when there are no more.
    pub fn create_stream(&self) -> Result<u64, i32> {
        let made =
            self.queue(Call::CreateStream, format_args!(""), &[], |exec, device| exec.create_stream(device))?;
        self.inner.hooks.stream_changed(made, StreamState::Created);
        Ok(made)
    }

    /// `aclrtCreateStreamWithConfig`. The priority is cut to 7; priority and flags can be asked for
    /// and mean nothing else here, but that a wait for a stream with one of the flags 0x4 and 0x10 comes
    /// back at once.
    ///
    /// # Errors
    /// As [`create_stream`](Self::create_stream).
    pub fn create_stream_with_config(&self, priority: u32, flags: u32) -> Result<u64, i32> {
        let arguments = format_args!("priority={priority}, flags={flags:#x}");
        let made = self.queue(Call::CreateStreamWithConfig, arguments, &[], |exec, device| {
            exec.create_stream_with(device, priority.min(LEAST_PRIORITY), flags)
        })?;
        self.inner.hooks.stream_changed(made, StreamState::Created);
        Ok(made)
    }

    /// `aclrtDestroyStream`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107017 for a stale handle, 107027 while it is captured.
    pub fn destroy_stream(&self, stream: u64) -> Result<(), i32> {
        self.end_stream(Call::DestroyStream, stream, false)
    }

    /// `aclrtDestroyStreamForce`: drops work that has not begun.
    ///
    /// # Errors
    /// As [`destroy_stream`](Self::destroy_stream).
    pub fn destroy_stream_force(&self, stream: u64) -> Result<(), i32> {
        self.end_stream(Call::DestroyStreamForce, stream, true)
    }

    fn end_stream(&self, call: Call, stream: u64, force: bool) -> Result<(), i32> {
        self.call(call, format_args!("{stream:#x}"), || {
            let context = self.context_for(&[Handle::NamedStream(stream)])?;
            let executor = &self.inner.executor;
            Inner::executed(executor.check_destroy(context, stream))?;
            self.inner.hooks.stream_changed(stream, StreamState::Ending);
            Inner::executed(executor.destroy_stream(context, stream, force))?;
            self.inner.settings.lock().forget_stream(stream);
            self.inner.allocators.lock().unregister(stream);
            Ok(())
        })
    }

    /// `aclrtStreamQuery`: whether everything queued is complete.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107027 while it is captured, 507043 as for
    /// [`query_event_status`](Self::query_event_status).
    pub fn stream_query(&self, stream: u64) -> Result<bool, i32> {
        self.queue(
            Call::StreamQuery,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| {
                exec.stream_query(device, stream).and_then(|done| self.show_fault().map(|()| done))
            },
        )
    }

    /// `aclrtSynchronizeStream`.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107027 while it is captured, 507043 if queued work
    /// touched memory that was not there.
    pub fn synchronize_stream(&self, stream: u64) -> Result<(), i32> {
        self.wait_stream(Call::SynchronizeStream, stream, WAIT_FOREVER)
    }

    /// `aclrtSynchronizeStreamWithTimeout`, in milliseconds.
    ///
    /// # Errors
    /// As [`synchronize_stream`](Self::synchronize_stream); 107000 for 0 and below -1, 507046 when
    /// the time is over.
    pub fn synchronize_stream_with_timeout(&self, stream: u64, timeout: i32) -> Result<(), i32> {
        self.wait_stream(Call::SynchronizeStreamWithTimeout, stream, timeout)
    }

    fn wait_stream(&self, call: Call, stream: u64, timeout: i32) -> Result<(), i32> {
        self.call(call, format_args!("{stream:#x}, timeout={timeout}"), || {
            let executor = &self.inner.executor;
            Inner::executed(executor.check_stream(stream))?;
            check_timeout(timeout)?;
            let here = self.here()?;
            Inner::executed(self.inner.executor.synchronize_stream(here.context, stream, timeout))?;
            self.pools_after_wait();
            self.report_fault(here.device)
        })
    }

    /// `aclrtSynchronizeDevice`.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107027 while a stream of it is captured.
    pub fn synchronize_device(&self) -> Result<(), i32> {
        self.wait_device(Call::SynchronizeDevice, WAIT_FOREVER)
    }

    /// `aclrtSynchronizeDeviceWithTimeout`, in milliseconds.
    ///
    /// # Errors
    /// As [`synchronize_device`](Self::synchronize_device); 107000 for 0 and below -1, 507046 when
    /// the time is over.
    pub fn synchronize_device_with_timeout(&self, timeout: i32) -> Result<(), i32> {
        self.wait_device(Call::SynchronizeDeviceWithTimeout, timeout)
    }

    fn wait_device(&self, call: Call, timeout: i32) -> Result<(), i32> {
        self.call(call, format_args!("timeout={timeout}"), || {
            check_timeout(timeout)?;
            let here = self.here()?;
            Inner::executed(self.inner.executor.synchronize_device(here.context, timeout))?;
            self.pools_after_wait();
            self.report_fault(here.device)
        })
    }

    /// `aclrtCreateEvent`: an event of the old mode.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device.
    pub fn create_event(&self) -> Result<u64, i32> {
        self.queue(Call::CreateEvent, format_args!(""), &[], |exec, device| {
            exec.create_event(device, EVENT_DEFAULT, false)
        })
    }

    /// `aclrtCreateEventWithFlag`: an event of the old mode.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107000 for wrong flags.
    pub fn create_event_with_flag(&self, flags: u32) -> Result<u64, i32> {
        self.call(Call::CreateEventWithFlag, format_args!("flags={flags:#x}"), || {
            Inner::executed(check_event_flags(flags))?;
            let device = self.current()?;
            Inner::executed(self.inner.executor.create_event(device, flags, false))
        })
    }

    /// `aclrtCreateEventExWithFlag`: an event of the new mode.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107000 for wrong flags.
    pub fn create_event_ex(&self, flags: u32) -> Result<u64, i32> {
        self.call(Call::CreateEventExWithFlag, format_args!("flags={flags:#x}"), || {
            Inner::executed(check_event_flags(flags))?;
            let device = self.current()?;
            Inner::executed(self.inner.executor.create_event(device, flags, true))
        })
    }

    /// `aclrtDestroyEvent`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107017 for a stale handle.
    pub fn destroy_event(&self, event: u64) -> Result<(), i32> {
        self.event(Call::DestroyEvent, event, |exec| exec.destroy_event(event))
    }

    /// `aclrtRecordEvent`.
    ///
    /// # Errors
    /// The ACL code: 100000 for a null event, 107017 for a stale handle, 207007 without an event of
    /// the device.
    pub fn record_event(&self, event: u64, stream: u64) -> Result<(), i32> {
        let handles = [Handle::Event(event), Handle::Stream(stream)];
        let arguments = format_args!("{event:#x}, stream={stream:#x}");
        self.queue(Call::RecordEvent, arguments, &handles, |exec, device| {
            exec.record_event(device, event, stream)
        })
    }

    /// `aclrtResetEvent`: only for events of the old mode.
    ///
    /// # Errors
    /// The ACL code: 207000 for an event of the new mode.
    pub fn reset_event(&self, event: u64, stream: u64) -> Result<(), i32> {
        let handles = [Handle::Event(event), Handle::Stream(stream)];
        let arguments = format_args!("{event:#x}, stream={stream:#x}");
        self.queue(Call::ResetEvent, arguments, &handles, |exec, device| {
            exec.reset_event(device, event, stream)
        })
    }

    /// `aclrtQueryEventStatus`: whether the last record is complete.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107028 for a captured event, 507043 until the next wait
    /// if queued work of the current device touched memory that was not there.
    pub fn query_event_status(&self, event: u64) -> Result<bool, i32> {
        self.query(Call::QueryEventStatus, event, |exec| {
            Ok(exec.query_event_status(event)? && self.others_done(event)?)
        })
    }

    /// `aclrtQueryEvent`: the same, for events of the old mode.
    ///
    /// # Errors
    /// The ACL code: 207000 for an event of the new mode.
    pub fn query_event(&self, event: u64) -> Result<bool, i32> {
        self.query(Call::QueryEvent, event, |exec| Ok(exec.query_event(event)? && self.others_done(event)?))
    }

    /// `aclrtQueryEventWaitStatus`: whether no wait for the event is pending; old mode only.
    ///
    /// # Errors
    /// The ACL code: 207000 for an event of the new mode.
    pub fn query_event_wait_status(&self, event: u64) -> Result<bool, i32> {
        self.event(Call::QueryEventWaitStatus, event, |exec| exec.query_event_wait_status(event))
    }

    /// `aclrtSynchronizeEvent`.
    ///
    /// # Errors
    /// The ACL code: 107017 for a stale handle, 107028 for a captured event, 507043 if queued work of the
    /// current device touched memory that was not there.
    pub fn synchronize_event(&self, event: u64) -> Result<(), i32> {
        self.wait_event(Call::SynchronizeEvent, event, WAIT_FOREVER)
    }

    /// `aclrtSynchronizeEventWithTimeout`, in milliseconds.
    ///
    /// # Errors
    /// As [`synchronize_event`](Self::synchronize_event); 107000 for 0 and below -1, 507047 when the
    /// time is over.
    pub fn synchronize_event_with_timeout(&self, event: u64, timeout: i32) -> Result<(), i32> {
        self.wait_event(Call::SynchronizeEventWithTimeout, event, timeout)
    }

    /// `aclrtEventElapsedTime`, in milliseconds.
    ///
    /// # Errors
    /// The ACL code: 507000 if one was never recorded, 107006 without a time.
    pub fn event_elapsed_time(&self, start: u64, end: u64) -> Result<f32, i32> {
        self.call(Call::EventElapsedTime, format_args!("{start:#x}, {end:#x}"), || {
            Inner::executed(not_null(start).and_then(|()| not_null(end)))?;
            Inner::executed(self.inner.executor.elapsed(start, end))
        })
    }

    /// `aclrtStreamWaitEvent`: later work on the stream waits for the event.
    ///
    /// # Errors
    /// The ACL code: 107000 for an event that was never recorded.
    pub fn stream_wait_event(&self, stream: u64, event: u64) -> Result<(), i32> {
        self.call(Call::StreamWaitEvent, format_args!("stream={stream:#x}, {event:#x}"), || {
            let context = self.context_for(&[Handle::Event(event), Handle::Stream(stream)])?;
            self.queue_wait(context, stream, event)
        })
    }

    /// Later work on the stream waits for the event, also for the records of other processes.
    pub(super) fn queue_wait(&self, context: u32, stream: u64, event: u64) -> Answer<()> {
        if self.queue_shared_wait(context, stream, event)? {
            return Ok(());
        }
        Inner::executed(self.inner.executor.stream_wait_event(context, stream, event))
    }

    /// `aclrtLaunchHostFunc`: later work on the stream waits for the function to return.
    ///
    /// # Errors
    /// The ACL code.
    pub fn launch_host_func(&self, stream: u64, work: Work) -> Result<(), i32> {
        self.queue(
            Call::LaunchHostFunc,
            format_args!("stream={stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.launch_host_func(device, stream, work),
        )
    }

    /// Lets that many ticks of virtual time pass for queued work.
    pub fn tick(&self, ticks: u64) {
        self.inner.executor.tick(ticks);
    }
}

fn refuse_faulted() -> Answer<()> {
    refuse(codes::RT_AICORE_TRAP_WRITE_OVERFLOW, "queued work touched memory that was not there")
}

/// The runtime's check of a timeout, which comes before the one of the context.
fn check_timeout(timeout: i32) -> Answer<()> {
    if is_timeout(timeout) { Ok(()) } else { refuse(codes::RT_PARAM_INVALID, "a timeout of 0 or below -1") }
}

/// A check of the layer above the executor.
fn not_null(event: u64) -> Result<(), i32> {
    if event == 0 { Err(codes::INVALID_PARAM) } else { Ok(()) }
}
