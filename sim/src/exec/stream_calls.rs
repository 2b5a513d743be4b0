//! The executor's calls that ask streams for what they are, and that abort them.

use super::clock::Snapshot;
use super::event::refuse_if;
use super::state::State;
use super::{Executor, WAIT_FOREVER, codes, refuse_in_work};

/// What a stream was created with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// A small number, used by no other stream at the same time.
    pub id: u32,
    /// 0 is the highest.
    pub priority: u32,
    /// The flags of its creation.
    pub flags: u32,
}

/// A point of a stream: everything queued to it until then.
#[derive(Clone, Debug)]
pub struct Mark(Snapshot);

impl Executor {
    /// The point of a stream behind everything queued to it now.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn mark(&self, device: u32, stream: u64) -> Result<Mark, i32> {
        let state = self.shared.lock();
        let slot = state.slot(device, stream)?;
        Ok(Mark(state.stream(slot).snapshot(slot)))
    }

    /// Whether the host knows everything before the point to be done.
    #[must_use]
    pub fn knows_mark(&self, mark: &Mark) -> bool {
        self.shared.lock().host.knows(mark.0.place)
    }

    /// Whether everything before the point is done; if so the host knows it.
    #[must_use]
    pub fn query_mark(&self, mark: &Mark) -> bool {
        let mut state = self.shared.lock();
        let done = state.is_done(mark.0.place);
        if done {
            state.learn(&mark.0);
        }
        done
    }

    /// The host waits for a point. Inside the closure of a task it does not, and learns nothing.
    pub fn wait_mark(&self, mark: &Mark) {
        let mut state = self.shared.lock();
        if !state.host.knows(mark.0.place)
            && self.wait_for(&mut state, mark.0.place, WAIT_FOREVER) == Ok(true)
        {
            state.learn(&mark.0);
        }
    }

    /// A further context of a device, with streams of its own: its number, which is no device's.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `NO_STREAM_RESOURCE`.
    pub fn open_context(&self, device: u32) -> Result<u32, i32> {
        self.shared.lock().add_context(device)
    }

    /// Whether [`close_context`](Self::close_context) may end a context: no stream of it is captured.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `STREAM_CAPTURED`.
    pub fn check_close(&self, context: u32) -> Result<(), i32> {
        let state = self.shared.lock();
        state.device_of(context)?;
        refuse_if(state.context_captures(context), codes::STREAM_CAPTURED)
    }

    /// Ends a context of [`open_context`](Self::open_context): waits for its work and destroys its
    /// streams.
    ///
    /// # Errors
    /// `INVALID_DEVICE` for a device's own number and a context that has ended; `INTERNAL_ERROR`
    /// inside the closure of a task.
    pub fn close_context(&self, context: u32) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        state.device_of(context)?;
        refuse_if(context < state.config.devices, codes::INVALID_DEVICE)?;
        for point in state.context_snapshots(context) {
            self.wait_for(&mut state, point.place, WAIT_FOREVER)?;
        }
        state.end_context(context);
        Ok(())
    }

    /// How many streams can still be created on a device, and how many events recorded.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn available(&self, device: u32) -> Result<(u32, u32), i32> {
        let state = self.shared.lock();
        let device = state.device_of(device)?;
        let (streams, events) = (state.stream_counts[device as usize], state.event_counts[device as usize]);
        Ok((state.config.max_streams.saturating_sub(streams), state.config.max_events.saturating_sub(events)))
    }

    /// What a stream was created with.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, `INVALID_HANDLE`.
    pub fn stream_info(&self, device: u32, stream: u64) -> Result<StreamInfo, i32> {
        let state = self.shared.lock();
        let slot = state.slot(device, stream)?;
        let stream = state.stream(slot);
        Ok(StreamInfo { id: slot, priority: stream.priority, flags: stream.flags })
    }

    /// Whether [`destroy_stream`](Self::destroy_stream) would take the stream.
    ///
    /// # Errors
    /// As there.
    pub fn check_destroy(&self, device: u32, stream: u64) -> Result<(), i32> {
        self.shared.lock().may_destroy(device, stream).map(|_| ())
    }

    /// One line for each stream (without default streams), event and graph that exists, with the call
    /// that made it.
    #[must_use]
    pub fn left(&self) -> Vec<String> {
        let state = self.shared.lock();
        let mut lines = Vec::new();
        for (handle, slot) in state.stream_handles.live() {
            let stream = state.stream(*slot);
            if !stream.default {
                lines
                    .push(format!("stream {handle:#x} of device {}, made by {}", stream.device, stream.made));
            }
        }
        for (handle, event) in state.events.live() {
            lines.push(format!("event {handle:#x} of device {}, made by {}", event.device, event.made));
        }
        lines.extend(state.graphs_left());
        lines
    }

    /// Drops the work of a stream that has not begun; every later wait for the stream answers
    /// `STREAM_ABORT`.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_DEVICE`, `INVALID_HANDLE`, `STREAM_CONTEXT`,
    /// `STREAM_CAPTURED`.
    pub fn abort_stream(&self, device: u32, stream: u64) -> Result<(), i32> {
        refuse_if(stream == 0, codes::INVALID_PARAM)?;
        let mut state = self.shared.lock();
        let slot = state.own_slot(device, stream)?;
        refuse_if(state.stream(slot).capture.is_some(), codes::STREAM_CAPTURED)?;
        let aborted = state.stream_mut(slot);
        aborted.drop_work();
        aborted.aborted = Some(codes::STREAM_ABORT);
        self.shared.go_on(&mut state, slot);
        Ok(())
    }

    /// Drops the work of a device that has not begun; the next wait for each of its streams answers
    /// `DEVICE_TASK_ABORT`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INTERNAL_ERROR` inside the closure of a task.
    pub fn abort_device(&self, device: u32) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        refuse_if(device >= state.config.devices, codes::INVALID_DEVICE)?;
        for point in state.device_snapshots(device) {
            let slot = point.place.slot;
            let stream = state.stream_mut(slot);
            stream.drop_work();
            stream.failure = Some(codes::DEVICE_TASK_ABORT);
            self.shared.go_on(&mut state, slot);
        }
        Ok(())
    }
}

impl State {
    /// Takes a context's streams away; what is queued to them stays.
    pub(super) fn end_context(&mut self, context: u32) {
        let slots: Vec<u32> = self.stream_handles.live().map(|(_, slot)| *slot).collect();
        for slot in slots {
            if self.stream(slot).context == context {
                self.detach_stream(slot);
            }
        }
        if let Some(context) = self.contexts.get_mut(context as usize) {
            context.open = false;
        }
    }

    /// The slot of a stream that can be destroyed.
    pub(super) fn may_destroy(&self, device: u32, stream: u64) -> Result<u32, i32> {
        refuse_if(stream == 0, codes::INVALID_PARAM)?;
        let slot = self.own_slot(device, stream)?;
        refuse_if(self.stream(slot).default, codes::PARAM_INVALID)?;
        refuse_if(self.stream(slot).capture.is_some(), codes::STREAM_CAPTURED)?;
        Ok(slot)
    }
}
