//! Functions of the program: queued to streams for subscribed threads, and called at changes of
//! devices and streams.

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::exec::Work;
use crate::hooks::{DeviceStateCallback, ExceptionCallback, StreamStateCallback, TaskAbortCallback};
use crate::refusal::refuse;
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclrtSubscribeReport`: the thread with that number takes the callbacks of a stream. Threads
    /// are told apart by whatever number they use in [`process_report`](Self::process_report).
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107017 for a stale stream, 107011 for a stream that is
    /// subscribed to or has had a host function, 107012 when 1024 threads have.
    pub fn subscribe_report(&self, thread: u64, stream: u64) -> Result<(), i32> {
        let arguments = format_args!("{thread:#x}, stream={stream:#x}");
        self.queue(Call::SubscribeReport, arguments, &[Handle::Stream(stream)], |exec, device| {
            exec.subscribe_report(thread, device, stream)
        })
    }

    /// `aclrtUnSubscribeReport`.
    ///
    /// # Errors
    /// The ACL code: 107011 if this thread is not the stream's.
    pub fn unsubscribe_report(&self, thread: u64, stream: u64) -> Result<(), i32> {
        self.queue(
            Call::UnSubscribeReport,
            format_args!("{thread:#x}, stream={stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.unsubscribe_report(thread, device, stream),
        )
    }

    /// `aclrtProcessReport`: runs one callback of the calling thread, which subscribed as `thread`;
    /// waits for one up to `timeout` milliseconds, -1 for ever.
    ///
    /// # Errors
    /// The ACL code: 100000 for a timeout of 0 and below -1, 107012 for a thread that has not
    /// subscribed, 507012 when the time is over.
    ///
    /// # Panics
    /// When the callback does.
    pub fn process_report(&self, thread: u64, timeout: i32) -> Result<(), i32> {
        self.call(Call::ProcessReport, format_args!("{timeout}"), || {
            Inner::executed(self.inner.executor.process_report(thread, timeout))
        })
    }

    /// `aclrtLaunchCallback`: queues a function for the thread that has subscribed to the stream;
    /// `None` is a null function. With block type 1 the stream goes on when the function has returned.
    ///
    /// # Errors
    /// The ACL code: 100000 for an unknown block type, 107000 for a null function, 107015 for a
    /// stream that nobody has subscribed to.
    pub fn launch_callback(&self, work: Option<Work>, block_type: u32, stream: u64) -> Result<(), i32> {
        self.call(Call::LaunchCallback, format_args!("block={block_type}, stream={stream:#x}"), || {
            if block_type > 1 {
                return refuse(codes::INVALID_PARAM, "no such block type");
            }
            let Some(work) = work else {
                return refuse(codes::RT_PARAM_INVALID, "null function");
            };
            let context = self.context_for(&[Handle::Stream(stream)])?;
            Inner::executed(self.inner.executor.launch_callback(context, stream, work, block_type == 1))
        })
    }

    /// `aclrtRegDeviceStateCallback`: the function of that name is called before and after every
    /// `aclrtSetDevice` (0, 1), and before and after the reset that drops the last reference (2, 3).
    /// `None` unregisters.
    ///
    /// # Errors
    /// The ACL code: 100000 for an empty name.
    pub fn set_device_state_callback(
        &self,
        name: &str,
        call: Option<DeviceStateCallback>,
    ) -> Result<(), i32> {
        self.call(Call::RegDeviceStateCallback, format_args!("{name}"), || {
            not_empty(name)?;
            self.inner.hooks.set_device(name, call);
            Ok(())
        })
    }

    /// `aclrtRegStreamStateCallback`: the function of that name is called when a stream was created
    /// (1) and before one is destroyed (2). `None` unregisters.
    ///
    /// # Errors
    /// The ACL code: 100000 for an empty name.
    pub fn set_stream_state_callback(
        &self,
        name: &str,
        call: Option<StreamStateCallback>,
    ) -> Result<(), i32> {
        self.call(Call::RegStreamStateCallback, format_args!("{name}"), || {
            not_empty(name)?;
            self.inner.hooks.set_stream(name, call);
            Ok(())
        })
    }

    /// `aclrtSetDeviceTaskAbortCallback`: the function of that name is called before and after
    /// `aclrtDeviceTaskAbort`. `None` unregisters.
    ///
    /// # Errors
    /// The ACL code: 100000 for an empty name.
    pub fn set_task_abort_callback(&self, name: &str, call: Option<TaskAbortCallback>) -> Result<(), i32> {
        self.call(Call::SetDeviceTaskAbortCallback, format_args!("{name}"), || {
            not_empty(name)?;
            self.inner.hooks.set_abort(name, call);
            Ok(())
        })
    }

    /// `aclrtSetExceptionInfoCallback`: the function is called when queued work touches memory that
    /// is not there.
    ///
    /// # Errors
    /// Only a planned one.
    pub fn set_exception_callback(&self, call: Option<ExceptionCallback>) -> Result<(), i32> {
        self.call(Call::SetExceptionInfoCallback, format_args!(""), || {
            self.inner.hooks.set_exception(call);
            Ok(())
        })
    }

    /// `aclrtDeviceTaskAbort`: drops the work of a device that has not begun; the next wait for each
    /// of its streams answers 107022.
    ///
    /// # Errors
    /// The ACL code: 107001 for a device that is not visible, 507000 if a function registered for
    /// aborts fails.
    pub fn device_task_abort(&self, device: i32, timeout: u32) -> Result<(), i32> {
        self.call(Call::DeviceTaskAbort, format_args!("{device}, timeout={timeout}"), || {
            let driver = self.visible(device)?;
            let failed = |stage| self.inner.hooks.aborting(device, stage, timeout) != 0;
            if failed(0) {
                return refuse(codes::RT_INTERNAL_ERROR, "a function registered for aborts failed");
            }
            Inner::executed(self.inner.executor.abort_device(driver))?;
            if failed(1) {
                return refuse(codes::RT_INTERNAL_ERROR, "a function registered for aborts failed");
            }
            Ok(())
        })
    }
}

fn not_empty(name: &str) -> crate::refusal::Answer<()> {
    if name.is_empty() { refuse(codes::INVALID_PARAM, "empty name") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    use parking_lot::Mutex;

    use crate::{ExecMode, LAG_NEVER, Sim, SimConfig, Task, codes};

    #[test]
    fn changes_of_devices_and_streams_are_told() {
        let sim = Sim::new(SimConfig { devices: 2, ..SimConfig::default() });
        let told: Arc<Mutex<Vec<(u64, u32)>>> = Arc::default();
        let (devices, streams) = (Arc::clone(&told), Arc::clone(&told));
        let on_device = Arc::new(move |device: i32, state| devices.lock().push((device as u64, state)));
        let on_stream = Arc::new(move |stream, state| streams.lock().push((stream, state)));
        assert_eq!(sim.set_device_state_callback("", None), Err(codes::INVALID_PARAM));
        sim.set_device_state_callback("test", Some(on_device)).unwrap();
        sim.set_stream_state_callback("test", Some(on_stream)).unwrap();
        assert_eq!(sim.set_device(7), Err(codes::RT_INVALID_DEVICEID));
        sim.set_device(1).unwrap();
        let stream = sim.create_stream().unwrap();
        sim.destroy_stream(stream).unwrap();
        assert_eq!(sim.destroy_stream(stream), Err(codes::RT_INVALID_HANDLE));
        sim.reset_device(1).unwrap();
        assert_eq!(*told.lock(), [(1, 0), (1, 1), (stream, 1), (stream, 2), (1, 2), (1, 3)]);
        sim.set_device_state_callback("test", None).unwrap();
        sim.set_device(1).unwrap();
        assert_eq!(told.lock().len(), 6);
    }

    #[test]
    fn an_abort_drops_work_and_is_told_at_the_next_wait() {
        let sim = Sim::new(SimConfig { lag: LAG_NEVER, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let ran = Arc::new(AtomicU32::new(0));
        let (one, two) = (sim.create_stream().unwrap(), sim.create_stream().unwrap());
        for stream in [one, two] {
            let ran = Arc::clone(&ran);
            sim.submit(
                stream,
                Task::new("kernel").works(move || {
                    ran.fetch_add(1, Relaxed);
                }),
            )
            .unwrap();
        }
        sim.stream_abort(one).unwrap();
        assert_eq!(sim.synchronize_stream(one), Err(107_023));
        assert_eq!(sim.synchronize_stream(one), Err(107_023));
        sim.set_task_abort_callback("no", Some(Arc::new(|_, stage, _| i32::from(stage == 0)))).unwrap();
        assert_eq!(sim.device_task_abort(0, 10), Err(codes::RT_INTERNAL_ERROR));
        sim.set_task_abort_callback("no", None).unwrap();
        sim.device_task_abort(0, 10).unwrap();
        assert_eq!(sim.synchronize_stream(two), Err(107_022));
        assert_eq!(sim.synchronize_stream(two), Ok(()));
        assert_eq!(ran.load(Relaxed), 0);
    }

    #[test]
    fn callbacks_run_in_the_thread_that_subscribed() {
        let sim = Sim::new(SimConfig { exec_mode: ExecMode::Threads, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        let stream = sim.create_stream().unwrap();
        assert_eq!(sim.launch_callback(None, 2, stream), Err(codes::INVALID_PARAM));
        assert_eq!(sim.launch_callback(None, 1, stream), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.launch_callback(Some(Box::new(|| ())), 1, stream), Err(107_015));
        assert_eq!(sim.process_report(9, 0), Err(codes::INVALID_PARAM));
        assert_eq!(sim.process_report(9, 5), Err(107_012));
        sim.subscribe_report(9, stream).unwrap();
        assert_eq!(sim.subscribe_report(8, stream), Err(107_011));
        assert_eq!(sim.process_report(9, 5), Err(507_012));
        let seen: Arc<Mutex<Vec<u32>>> = Arc::default();
        for number in 0..3 {
            let seen = Arc::clone(&seen);
            sim.launch_callback(Some(Box::new(move || seen.lock().push(number))), 1, stream).unwrap();
        }
        let server = {
            let sim = sim.clone();
            std::thread::spawn(move || (0..3).map(|_| sim.process_report(9, -1)).collect::<Vec<_>>())
        };
        sim.synchronize_stream(stream).unwrap();
        assert_eq!(*seen.lock(), [0, 1, 2], "the stream waits for blocking callbacks");
        assert_eq!(server.join().unwrap(), [Ok(()); 3]);
        sim.unsubscribe_report(9, stream).unwrap();
        assert_eq!(sim.unsubscribe_report(9, stream), Err(107_011));
    }
}
