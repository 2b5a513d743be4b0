//! What an allocator tells of itself: snapshots, its history, and what goes to the outside in the background.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{DeviceAllocator, stats_export};
use crate::driver::{DeviceId, Stream};
use crate::history::log::Said;
use crate::history::worker::Worker;
use crate::history::{Action, HistoryBatch, HistoryOptions, HistoryStatus, intern, set_context};
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
        if observe.history_entries > 0 {
            self.history
                .start(&HistoryOptions { entries: observe.history_entries, ..HistoryOptions::default() });
        }
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
        let now = self.driver.now();
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
            time: now,
        };
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
        if with_events {
            let HistoryBatch { events, lost } = self.history.kept();
            full.dropped_events = lost;
            for state in &mut full.devices {
                state.events = events.iter().filter(|event| event.device == state.device).copied().collect();
                let said = Said::of_block(Action::Snapshot, 0, 0, 0, Stream(0));
                self.marks.note_for(state.device, said);
            }
            full.add_contexts();
        }
        full
    }

    /// Begins to keep the newest events: allocations, frees, maps and unmaps, moves, sleep and wake, waits, failures. What
    /// happens is noted where it happens; the front cache stays in use. Started again, it goes on with other options. For
    /// the cost of an event see benches/README.md in the repository.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ascend_alloc::driver::{SimDriver, Stream};
    /// use ascend_alloc::history::{Action, Context, HistoryOptions, context, with_context};
    /// use ascend_alloc::{Config, DeviceAllocator};
    ///
    /// # fn main() -> ascend_alloc::Result<()> {
    /// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
    /// let allocator = DeviceAllocator::new(Config::default(), driver)?;
    /// allocator.start_history(&HistoryOptions { entries: 1000, ..HistoryOptions::default() });
    /// let ptr = with_context("weights", || allocator.allocate(0, 3 << 20, 0, Stream(0)))?;
    /// allocator.deallocate(ptr)?;
    /// let events = allocator.history().events;
    /// let actions: Vec<_> = events.iter().map(|event| event.action).collect();
    /// assert_eq!(actions, [Action::SegmentMap, Action::Allocate, Action::FreeCompleted]);
    /// assert_eq!(context(events[1].context.unwrap()), Some(Context::Text("weights".to_owned())));
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_history(&self, options: &HistoryOptions) {
        self.history.note_time(self.driver.now());
        self.history.start(options);
    }

    /// Ends the history: its events go, and their memory. Files that are being written go on.
    pub fn stop_history(&self) {
        self.history.stop();
    }

    /// The events that the history has, by number, and how many of those since its start it has not.
    #[must_use]
    pub fn history(&self) -> HistoryBatch {
        self.history.kept()
    }

    /// The events since the start or the last call of this, by number, and how many of those were dropped since.
    /// The history goes on, and keeps them all the same.
    #[must_use]
    pub fn drain_history(&self) -> HistoryBatch {
        self.history.drain()
    }

    /// How the history stands.
    #[must_use]
    pub fn history_status(&self) -> HistoryStatus {
        self.history.status()
    }

    /// Says something to the history: an event with the text as its context, a marker in a trace. Nothing while nobody
    /// keeps events. Device 0 stands for all.
    pub fn mark(&self, text: &str) {
        if self.history.is_on() {
            let before = set_context(Some(intern(text)));
            self.history.note_time(self.driver.now());
            self.marks.note(Said::of_block(Action::UserDefined, 0, 0, 0, Stream(0)));
            set_context(before);
        }
    }

    /// Tells that the program has waited on the host for a stream, which the allocator cannot know. It is kept by traces
    /// that are recorded, and by histories that keep uses; it changes nothing else.
    pub fn note_host_wait(&self, device: DeviceId, stream: Stream) {
        if self.marks.wants_uses() {
            self.history.note_time(self.driver.now());
            self.marks.note_for(device, Said::of_block(Action::HostWait, 0, 0, 0, stream));
        }
    }

    /// How often something could not be written that the settings or the program wanted to be told to the outside:
    /// statistics, history, traces, reports. None of that disturbs the program.
    #[must_use]
    pub fn failed_writes(&self) -> u64 {
        self.tellers.failed.load(Relaxed)
    }
}
