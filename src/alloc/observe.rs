//! What an allocator tells of itself: snapshots.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{DeviceAllocator, stats_export};
use crate::history::worker::Worker;
use crate::snapshot::{DeviceState, FullSnapshot};

/// What is told to the outside in the background; ends with the allocator.
#[derive(Debug, Default)]
pub(super) struct Tellers {
    stats: Option<Worker>,
    /// What could not be written.
    failed: Arc<AtomicU64>,
}

impl DeviceAllocator {
    /// Begins to tell what the settings want to be told.
    pub(super) fn tell_as_configured(&mut self) {
        let observe = &self.config.observe;
        let source = stats_export::Source {
            devices: Arc::clone(&self.devices),
            driver: Arc::clone(&self.driver),
            period_ms: observe.stats_export_ms,
            made: 0,
        };
        self.tellers.stats = stats_export::start(observe, source, &self.tellers.failed);
    }

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

    /// How often something could not be written that the settings or the program wanted to be told to the outside:
    /// statistics, history, traces, reports. None of that disturbs the program.
    #[must_use]
    pub fn failed_writes(&self) -> u64 {
        self.tellers.failed.load(Relaxed)
    }
}
