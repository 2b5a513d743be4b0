//! Resetting a device.

use super::event::refuse_if;
use super::{Executor, WAIT_FOREVER, codes, refuse_in_work};

impl Executor {
    /// Destroys every stream and event of a device and ends its captures without a graph; finished
    /// graphs of the device go too. Work that has not begun is dropped, work that runs is waited
    /// for. Afterwards nothing of the device can run, so the host knows all of it to be done. The
    /// default stream is a new one: empty, with another handle.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INTERNAL_ERROR` inside the closure of a task.
    pub fn reset_device(&self, device: u32) -> Result<(), i32> {
        refuse_in_work()?;
        let mut state = self.shared.lock();
        refuse_if(device >= state.config.devices, codes::INVALID_DEVICE)?;
        let last = state.capture_reset(device);
        let points = state.device_snapshots(device);
        for point in &points {
            state.stream_mut(point.place.slot).drop_work();
        }
        for point in &points {
            // A callback may have held it up.
            self.shared.go_on(&mut state, point.place.slot);
        }
        for point in &points {
            self.wait_for(&mut state, point.place, WAIT_FOREVER)?;
        }
        for point in &points {
            let stream = state.stream_mut(point.place.slot);
            (stream.failure, stream.aborted) = (None, None);
            state.learn(point);
        }
        let streams: Vec<u32> = state.stream_handles.live().map(|(_, slot)| *slot).collect();
        for slot in streams {
            let stream = state.stream(slot);
            match (stream.device == device, stream.default) {
                (true, false) => state.detach_stream(slot),
                (true, true) => state.rename_stream(slot),
                _ => {}
            }
        }
        for context in state.config.devices..state.contexts.len() as u32 {
            if state.device_of(context) == Ok(device) {
                state.end_context(context);
            }
        }
        let all = state.events.live().filter(|(_, event)| event.device == device);
        let events: Vec<u64> = all.map(|(handle, _)| handle).collect();
        for event in events {
            if let Ok(index) = state.event(event) {
                state.retire_event(index);
            }
        }
        drop(state);
        last.into_iter().for_each(|call| call());
        Ok(())
    }
}
