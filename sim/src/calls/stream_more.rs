//! What streams and events can be asked beyond the usual: numbers, priorities, variants of waits.

use super::handles::Handle;
use crate::call::Call;
use crate::codes;
use crate::refusal::refuse;
use crate::sim::{Inner, Sim};

impl Sim {
    /// `aclrtStreamGetId`.
    ///
    /// # Errors
    /// The ACL code: 107002 without a device, 107017 for a stale handle.
    pub fn stream_id(&self, stream: u64) -> Result<i32, i32> {
        self.queue(
            Call::StreamGetId,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.stream_info(device, stream).map(|info| info.id as i32),
        )
    }

    /// `aclrtStreamGetPriority`: 0 is the highest.
    ///
    /// # Errors
    /// As [`stream_id`](Self::stream_id).
    pub fn stream_priority(&self, stream: u64) -> Result<u32, i32> {
        self.queue(
            Call::StreamGetPriority,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.stream_info(device, stream).map(|info| info.priority),
        )
    }

    /// `aclrtStreamGetFlags`: as given at the creation.
    ///
    /// # Errors
    /// As [`stream_id`](Self::stream_id).
    pub fn stream_flags(&self, stream: u64) -> Result<u32, i32> {
        self.queue(
            Call::StreamGetFlags,
            format_args!("{stream:#x}"),
            &[Handle::Stream(stream)],
            |exec, device| exec.stream_info(device, stream).map(|info| info.flags),
        )
    }

    /// `aclrtStreamAbort`: drops work that has not begun; every later wait for the stream answers
    /// 107023.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107017 for a stale handle, 107027 while it is captured.
    pub fn stream_abort(&self, stream: u64) -> Result<(), i32> {
        self.queue(
            Call::StreamAbort,
            format_args!("{stream:#x}"),
            &[Handle::NamedStream(stream)],
            |exec, device| exec.abort_stream(device, stream),
        )
    }

    /// `aclrtStreamWaitEventWithTimeout`, in seconds; 0 is no limit. The limit is not enforced: a
    /// wait of the model ends when the record is done.
    ///
    /// # Errors
    /// As [`stream_wait_event`](Self::stream_wait_event); 107000 for a negative time.
    pub fn stream_wait_event_with_timeout(&self, stream: u64, event: u64, seconds: i32) -> Result<(), i32> {
        let arguments = format_args!("stream={stream:#x}, {event:#x}, {seconds} s");
        self.call(Call::StreamWaitEventWithTimeout, arguments, || {
            if event == 0 {
                return refuse(codes::INVALID_PARAM, "null event");
            }
            let executor = &self.inner.executor;
            Inner::executed(executor.event_id(event).and_then(|_| executor.check_stream(stream)))?;
            if seconds < 0 {
                return refuse(codes::RT_PARAM_INVALID, "a negative time");
            }
            let context = self.context()?;
            self.queue_wait(context, stream, event)
        })
    }

    /// `aclrtStreamWaitEventWithFlag`: flag 0 is the usual wait, 1 one outside a capture.
    ///
    /// # Errors
    /// As [`stream_wait_event`](Self::stream_wait_event); 107000 for another flag.
    pub fn stream_wait_event_with_flag(&self, stream: u64, event: u64, flag: u32) -> Result<(), i32> {
        let arguments = format_args!("stream={stream:#x}, {event:#x}, flag={flag}");
        self.call(Call::StreamWaitEventWithFlag, arguments, || {
            check_flagged(event, flag)?;
            let context = self.context_for(&[Handle::Event(event), Handle::Stream(stream)])?;
            self.queue_wait(context, stream, event)
        })
    }

    /// `aclrtRecordEventWithFlag`: flag 0 is the usual record, 1 one outside a capture.
    ///
    /// # Errors
    /// As [`record_event`](Self::record_event); 107000 for another flag.
    pub fn record_event_with_flag(&self, event: u64, stream: u64, flag: u32) -> Result<(), i32> {
        let arguments = format_args!("{event:#x}, stream={stream:#x}, flag={flag}");
        self.call(Call::RecordEventWithFlag, arguments, || {
            check_flagged(event, flag)?;
            let context = self.context_for(&[Handle::Event(event), Handle::Stream(stream)])?;
            Inner::executed(self.inner.executor.record_event(context, event, stream))
        })
    }

    /// `aclrtEventGetTimestamp`: microseconds since the machine was built at which the record was
    /// done.
    ///
    /// # Errors
    /// As [`event_elapsed_time`](Self::event_elapsed_time).
    pub fn event_timestamp(&self, event: u64) -> Result<u64, i32> {
        self.event(Call::EventGetTimestamp, event, |exec| exec.timestamp(event))
    }

    /// `aclrtGetEventId`.
    ///
    /// # Errors
    /// The ACL code: 100000 for null, 107017 for a stale handle.
    pub fn event_id(&self, event: u64) -> Result<u32, i32> {
        self.event(Call::GetEventId, event, |exec| exec.event_id(event))
    }
}

fn check_flagged(event: u64, flag: u32) -> crate::refusal::Answer<()> {
    if event == 0 {
        return refuse(codes::INVALID_PARAM, "null event");
    }
    if flag > 1 {
        return refuse(codes::RT_PARAM_INVALID, "no such flag");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::exec::{EVENT_SYNC, EVENT_TIME_LINE};
    use crate::{Sim, SimConfig, codes};

    #[test]
    fn streams_say_what_they_were_created_with() {
        let sim = Sim::new(SimConfig { max_streams: 3, max_events: 2, ..SimConfig::default() });
        sim.set_device(0).unwrap();
        assert_eq!((sim.stream_available(), sim.event_available()), (Ok(3), Ok(2)));
        let one = sim.create_stream_with_config(9, 3).unwrap();
        let two = sim.create_stream().unwrap();
        assert_eq!((sim.stream_priority(one), sim.stream_flags(one)), (Ok(7), Ok(3)));
        assert_eq!((sim.stream_priority(two), sim.stream_flags(two)), (Ok(0), Ok(0)));
        assert_ne!(sim.stream_id(one), sim.stream_id(two));
        assert_eq!((sim.stream_available(), sim.stream_priority_range()), (Ok(1), Ok((7, 0))));
        sim.destroy_stream(one).unwrap();
        assert_eq!(sim.stream_id(one), Err(codes::RT_INVALID_HANDLE));
        assert_eq!(sim.stream_abort(0), Err(codes::INVALID_PARAM));
    }

    #[test]
    fn variants_of_records_and_waits_check_their_own_arguments_first() {
        let sim = Sim::new(SimConfig::default());
        sim.set_device(0).unwrap();
        let event = sim.create_event_ex(EVENT_SYNC | EVENT_TIME_LINE).unwrap();
        assert_eq!(sim.event_timestamp(event), Err(codes::RT_INTERNAL_ERROR));
        assert_eq!(sim.record_event_with_flag(event, 0, 2), Err(codes::RT_PARAM_INVALID));
        assert_eq!(sim.record_event_with_flag(0, 0, 2), Err(codes::INVALID_PARAM));
        sim.tick(7);
        sim.record_event_with_flag(event, 0, 0).unwrap();
        assert_eq!(sim.event_timestamp(event), Ok(7));
        assert_eq!(sim.stream_wait_event_with_timeout(0, event, -1), Err(codes::RT_PARAM_INVALID));
        sim.stream_wait_event_with_timeout(0, event, 0).unwrap();
        sim.stream_wait_event_with_flag(0, event, 1).unwrap();
        assert_eq!(sim.count("aclrtStreamWaitEvent"), 0);
    }
}
