//! The executor's calls on events.

use std::sync::Arc;

use super::clock::{Place, Snapshot};
use super::codes;
use super::event::{EVENT_IPC, EVENT_TIME_LINE, Event, EventMirror, refuse_if};
use super::scheduler::{Guard, refuse_in_work};
use super::stream::Op;
use super::{Executor, State, is_timeout};

impl Executor {
    /// A new event. `ex` is the new mode (`aclrtCreateEventExWithFlag`); in the old mode
    /// `flags` are those of `aclrtCreateEventWithFlag`, or [`EVENT_DEFAULT`](super::EVENT_DEFAULT)
    /// for `aclrtCreateEvent`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `PARAM_INVALID` for no flags, unknown ones, or ones that do not go
    /// together; `NO_EVENT_RESOURCE` when a million exist.
    pub fn create_event(&self, device: u32, flags: u32, ex: bool) -> Result<u64, i32> {
        let mut state = self.shared.lock();
        let device = state.device_of(device)?;
        let event = Event::new(device, flags, ex)?;
        state.events.insert(event).ok_or(codes::NO_EVENT_RESOURCE)
    }

    /// Destroys an event. Records and waits already queued are not affected.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `EVENT_CAPTURED` while its record is part of a
    /// running capture.
    pub fn destroy_event(&self, event: u64) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let index = free_of_capture(&state, event)?;
        state.retire_event(index);
        Ok(())
    }

    /// Records an event: it is complete when what is queued to the stream now is done. In a
    /// capture the record goes into the graph.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero event, `INVALID_HANDLE`, `INVALID_DEVICE`, `STREAM_CONTEXT` when
    /// stream or event belong to another device, `NO_EVENT_RESOURCE` when the device's events are
    /// used up, `FEATURE_NOT_SUPPORT` for an old-mode event in a capture,
    /// `STREAM_CAPTURE_INVALIDATED`, `INTERNAL_ERROR` inside the closure of a task.
    pub fn record_event(&self, device: u32, event: u64, stream: u64) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        let index = state.event(event)?;
        let slot = state.own_slot(device, stream)?;
        let device = state.stream(slot).device;
        let (ex, hardware, foreign) =
            event_at(&state, index, |event| (event.ex, event.hardware, event.device != device))?;
        refuse_if(foreign, codes::STREAM_CONTEXT)?;
        if let Some(captured) = state.capture_record(slot, ex)? {
            if let Some(event) = state.events.at_mut(index) {
                (event.record, event.time, event.captured) = (None, None, Some(captured));
            }
            return Ok(());
        }
        if !hardware {
            let full = state.event_counts[device as usize] >= state.config.max_events;
            refuse_if(full, codes::NO_EVENT_RESOURCE)?;
            state.event_counts[device as usize] += 1;
        }
        let stream = state.stream(slot);
        let place = Place { slot, number: stream.last + 1 };
        let record = Snapshot { place, ..stream.snapshot(slot) };
        if let Some(event) = state.events.at_mut(index) {
            (event.record, event.time, event.captured) = (Some(record), None, None);
            event.hardware = true;
            event.pending += 1;
            if let Some(mirror) = &event.mirror {
                mirror.recorded();
            }
        }
        self.enqueue(&mut state, slot, Op::Record { event: index });
        Ok(())
    }

    /// Whether the last record is done; if so the host knows it. An event never recorded is
    /// complete in the new mode and not in the old, and teaches nothing.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `EVENT_CAPTURED`, `FEATURE_NOT_SUPPORT` for an
    /// external event.
    pub fn query_event_status(&self, event: u64) -> Result<bool, i32> {
        let mut state = self.shared.lock();
        let index = free_of_capture(&state, event)?;
        event_at(&state, index, Event::not_external)??;
        query(&mut state, index)
    }

    /// As [`query_event_status`](Self::query_event_status), for events of the old mode only
    /// (`aclrtQueryEvent`). True is complete.
    ///
    /// # Errors
    /// As there, and `FEATURE_NOT_SUPPORT` for an event of the new mode.
    pub fn query_event(&self, event: u64) -> Result<bool, i32> {
        let mut state = self.shared.lock();
        let index = free_of_capture(&state, event)?;
        event_at(&state, index, Event::old_mode_only)??;
        query(&mut state, index)
    }

    /// Whether all stream waits queued for an event of the old mode are done. Teaches nothing.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `EVENT_CAPTURED`, `FEATURE_NOT_SUPPORT` for an
    /// event of the new mode.
    pub fn query_event_wait_status(&self, event: u64) -> Result<bool, i32> {
        let state = self.shared.lock();
        let index = free_of_capture(&state, event)?;
        event_at(&state, index, Event::old_mode_only)??;
        event_at(&state, index, |event| event.pending_waits == 0)
    }

    /// Makes an event of the old mode one that is not recorded. Waits already queued for its
    /// record stand. The reset counts at once; the stream gets an empty operation for it.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `INVALID_DEVICE`, `STREAM_CONTEXT`,
    /// `EVENT_CAPTURED`, `FEATURE_NOT_SUPPORT` for an event of the new mode, one without `SYNC`, or
    /// a capturing stream.
    pub fn reset_event(&self, device: u32, event: u64, stream: u64) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        let index = free_of_capture(&state, event)?;
        let slot = state.own_slot(device, stream)?;
        event_at(&state, index, Event::old_mode_only)??;
        event_at(&state, index, Event::needs_sync)??;
        refuse_if(state.stream(slot).capture.is_some(), codes::FEATURE_NOT_SUPPORT)?;
        if let Some(event) = state.events.at_mut(index) {
            (event.record, event.time) = (None, None);
        }
        self.enqueue(&mut state, slot, Op::NOTHING);
        Ok(())
    }

    /// The host waits for the last record of an event; returns at once if there is none. `timeout`
    /// as in [`Executor::synchronize_stream`].
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `PARAM_INVALID` for a timeout of zero or less
    /// than -1, `EVENT_CAPTURED`, `FEATURE_NOT_SUPPORT` for an external event,
    /// `EVENT_SYNC_TIMEOUT`, `INTERNAL_ERROR` inside the closure of a task.
    pub fn synchronize_event(&self, event: u64, timeout: i32) -> Result<(), i32> {
        let mut state = self.shared.lock();
        state.event(event)?;
        refuse_if(!is_timeout(timeout), codes::PARAM_INVALID)?;
        let index = free_of_capture(&state, event)?;
        event_at(&state, index, Event::not_external)??;
        let Some(record) = event_at(&state, index, |event| event.record.clone())? else { return Ok(()) };
        if !self.wait_for(&mut state, record.place, timeout)? {
            return Err(codes::EVENT_SYNC_TIMEOUT);
        }
        state.learn(&record);
        Ok(())
    }

    /// Later work on the stream waits for the last record of an event, of any device. Inside a
    /// capture, or for an event recorded in one, the wait goes into the graph.
    ///
    /// # Errors
    /// `INVALID_PARAM` for a zero event, `INVALID_HANDLE`, `INVALID_DEVICE`, `STREAM_CONTEXT`,
    /// `PARAM_INVALID` for an event that is not recorded, `FEATURE_NOT_SUPPORT` for one without
    /// `SYNC` or an old-mode one in a capture, `CAPTURE_DEPENDENCY`, `STREAM_CAPTURE_IMPLICIT`,
    /// `STREAM_CAPTURE_CONFLICT`, `STREAM_CAPTURE_INVALIDATED`, `INTERNAL_ERROR` inside the closure
    /// of a task.
    pub fn stream_wait_event(&self, device: u32, stream: u64, event: u64) -> Result<(), i32> {
        refuse_in_work()?;
        let mut guard = self.shared.lock();
        let state: &mut State = &mut guard;
        let index = state.event(event)?;
        let slot = state.own_slot(device, stream)?;
        event_at(state, index, Event::needs_sync)??;
        let (record, captured, ex) =
            event_at(state, index, |event| (event.record.clone(), event.captured.clone(), event.ex))?;
        let captured = captured.filter(|captured| state.is_capturing_into(captured.model));
        if state.capture_wait(slot, captured.as_ref(), ex)? {
            return Ok(());
        }
        let record = record.ok_or(codes::PARAM_INVALID)?;
        let State { streams, host, events, .. } = state;
        record.join_into(&mut streams[slot as usize].clock, slot, host);
        if let Some(event) = events.at_mut(index) {
            event.pending += 1;
            event.pending_waits += 1;
        }
        self.enqueue(&mut guard, slot, Op::Wait { on: record.place, event: index });
        Ok(())
    }

    /// Milliseconds between the completion of two records; a tick is a microsecond in
    /// deterministic mode. Negative if `end` was done first. Teaches the host nothing.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `EVENT_CAPTURED`, `INTERNAL_ERROR` if one was
    /// never recorded, `EVENT_TIMESTAMP_INVALID` if one is not complete or has no `TIME_LINE`.
    pub fn elapsed(&self, start: u64, end: u64) -> Result<f32, i32> {
        let state = self.shared.lock();
        let (start, end) = (free_of_capture(&state, start)?, free_of_capture(&state, end)?);
        let (start, end) = (event_at(&state, start, time_of)?, event_at(&state, end, time_of)?);
        refuse_if(start == Err(codes::INTERNAL_ERROR), codes::INTERNAL_ERROR)?;
        refuse_if(end == Err(codes::INTERNAL_ERROR), codes::INTERNAL_ERROR)?;
        let (start, end) = (start?, end?);
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation)] // a duration for people
        let milliseconds = (i128::from(end) - i128::from(start)) as f64 / 1e6;
        #[allow(clippy::cast_possible_truncation)]
        Ok(milliseconds as f32)
    }
}

impl Executor {
    /// When the last record was done: microseconds since the start (see [`Executor::elapsed`]).
    ///
    /// # Errors
    /// As [`Executor::elapsed`], for one event.
    pub fn timestamp(&self, event: u64) -> Result<u64, i32> {
        let state = self.shared.lock();
        let index = free_of_capture(&state, event)?;
        event_at(&state, index, time_of)?.map(|nanoseconds| nanoseconds / 1000)
    }

    /// Shares an event with other processes. A mirror that it has stays.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`, `FEATURE_NOT_SUPPORT` for an event that was not made
    /// with `IPC`.
    pub fn mirror_event(&self, event: u64, mirror: Arc<dyn EventMirror>) -> Result<(), i32> {
        let mut state = self.shared.lock();
        let index = state.event(event)?;
        event_at(&state, index, |event| {
            refuse_if(event.flags & EVENT_IPC == 0, codes::FEATURE_NOT_SUPPORT)
        })??;
        if let Some(event) = state.events.at_mut(index) {
            event.mirror.get_or_insert(mirror);
        }
        Ok(())
    }

    /// What an event is shared by, if it is.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`.
    pub fn event_mirror(&self, event: u64) -> Result<Option<Arc<dyn EventMirror>>, i32> {
        let state = self.shared.lock();
        let index = state.event(event)?;
        event_at(&state, index, |event| event.mirror.clone())
    }

    /// Whether an event was recorded by this process, and not reset.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`.
    pub fn is_recorded(&self, event: u64) -> Result<bool, i32> {
        let state = self.shared.lock();
        let index = state.event(event)?;
        event_at(&state, index, |event| event.record.is_some())
    }

    /// A small number, used by no other event at the same time.
    ///
    /// # Errors
    /// `INVALID_PARAM` for zero, `INVALID_HANDLE`.
    pub fn event_id(&self, event: u64) -> Result<u32, i32> {
        self.shared.lock().event(event)
    }
}

fn time_of(event: &Event) -> Result<u64, i32> {
    refuse_if(event.record.is_none(), codes::INTERNAL_ERROR)?;
    refuse_if(event.flags & EVENT_TIME_LINE == 0, codes::EVENT_TIMESTAMP_INVALID)?;
    event.time.ok_or(codes::EVENT_TIMESTAMP_INVALID)
}

/// Something of the event at an index.
fn event_at<T>(state: &State, index: u32, read: impl FnOnce(&Event) -> T) -> Result<T, i32> {
    state.events.at(index).map(read).ok_or(codes::INVALID_HANDLE)
}

/// The index of an event whose record is not part of a running capture.
fn free_of_capture(state: &State, event: u64) -> Result<u32, i32> {
    let index = state.event(event)?;
    let captured = event_at(state, index, |event| event.captured.as_ref().map(|record| record.model))?;
    refuse_if(captured.is_some_and(|model| state.is_capturing_into(model)), codes::EVENT_CAPTURED)?;
    Ok(index)
}

/// Whether the last record is done; the host then knows it.
fn query(state: &mut Guard<'_>, index: u32) -> Result<bool, i32> {
    let (record, ex) = event_at(state, index, |event| (event.record.clone(), event.ex))?;
    let Some(record) = record else { return Ok(ex) };
    let done = state.is_done(record.place);
    if done {
        state.learn(&record);
    }
    Ok(done)
}
