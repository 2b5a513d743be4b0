//! What happens to page-locked memory: its history, and its metrics.

use core::sync::atomic::Ordering::Relaxed;

use metrics::{Label, counter, gauge};

use super::PinnedAllocator;
use crate::driver::Stream;
use crate::history::{Event, HistoryBatch, HistoryOptions, HistoryStatus};

impl PinnedAllocator {
    /// Begins to keep the newest events of this allocator; what holds for
    /// [`DeviceAllocator::start_history`](crate::DeviceAllocator::start_history) holds here. Its numbers are its own.
    ///
    /// While a history is kept every block goes through the heap: none rests at hand, so that calls cost more than
    /// an event. Bytes asked for are those of the block, which is all that is known of it. The device of an event is
    /// that of its stream, and where it has none (stream 0 of the options' device) the host did it.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use ascend_alloc::driver::SimDriver;
    /// use ascend_alloc::history::{Action, HistoryOptions};
    /// use ascend_alloc::host::{PinnedAllocator, PinnedOptions};
    ///
    /// # fn main() -> ascend_alloc::Result<()> {
    /// let driver = Arc::new(SimDriver::new(ascend_sim::Sim::new(ascend_sim::SimConfig::default())));
    /// let pinned = PinnedAllocator::new(PinnedOptions::default(), driver)?;
    /// pinned.start_history(&HistoryOptions::default());
    /// let ptr = pinned.allocate(5 << 20, 0)?;
    /// pinned.deallocate(ptr)?;
    /// let actions: Vec<_> = pinned.history().events.iter().map(|event| event.action).collect();
    /// assert_eq!(actions, [Action::SegmentAlloc, Action::Allocate, Action::FreeCompleted]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn start_history(&self, options: &HistoryOptions) {
        // What still comes to rest after this is brought back by whoever next asks the heap, and told then.
        self.noted.store(true, Relaxed);
        self.bring_back();
        self.heap.start_history(options);
    }

    /// Ends the history: its events go, and their memory.
    pub fn stop_history(&self) {
        self.heap.stop_history();
        self.noted.store(false, Relaxed);
    }

    /// The events that the history has, by number, and how many of those since its start it has not.
    #[must_use]
    pub fn history(&self) -> HistoryBatch {
        self.with_streams(self.heap.history())
    }

    /// The events since the start or the last call of this, by number, and how many of those were dropped since.
    #[must_use]
    pub fn drain_history(&self) -> HistoryBatch {
        self.with_streams(self.heap.drain_history())
    }

    /// How the history stands.
    #[must_use]
    pub fn history_status(&self) -> HistoryStatus {
        self.heap.history_status()
    }

    /// Puts the streams of devices in the place of the heap's numbers.
    fn with_streams(&self, mut batch: HistoryBatch) -> HistoryBatch {
        let host = (self.options().device, Stream(0));
        for Event { device, stream, .. } in &mut batch.events {
            (*device, *stream) = self.source.streams.stream(*stream).unwrap_or(host);
        }
        batch
    }

    /// Sets the metrics of page-locked memory ([`publish::HOST_METRICS`](crate::publish::HOST_METRICS)) to the
    /// statistics, through the recorder that the program has installed; without one nothing happens. On demand,
    /// from any thread. The label `device` is that of the options; `more` are put behind it, to tell several
    /// allocators of one device apart.
    pub fn publish(&self, more: &[(&'static str, String)]) {
        let mut labels = vec![Label::new("device", self.options().device.to_string())];
        labels.extend(more.iter().map(|(key, value)| Label::new(*key, value.clone())));
        let stats = self.stats();
        let unsigned = |value: i64| u64::try_from(value).unwrap_or(0);
        for (name, value) in [
            ("ascend_alloc_host_active_bytes", stats.active_bytes.current),
            ("ascend_alloc_host_active_bytes_peak", stats.active_bytes.peak),
            ("ascend_alloc_host_reserved_bytes", stats.allocated_bytes.current),
            ("ascend_alloc_host_reserved_bytes_peak", stats.allocated_bytes.peak),
            ("ascend_alloc_host_blocks", stats.active_requests.current),
        ] {
            gauge!(name, labels.clone()).set(value as f64);
        }
        gauge!("ascend_alloc_host_waiting_bytes", labels.clone()).set(stats.waiting_bytes as f64);
        for (name, value) in [
            ("ascend_alloc_host_allocations_total", unsigned(stats.active_requests.allocated)),
            ("ascend_alloc_host_frees_total", unsigned(stats.active_requests.freed)),
        ] {
            counter!(name, labels.clone()).absolute(value);
        }
        for (call, count, time) in [
            ("alloc", stats.num_host_alloc, stats.host_alloc_time.total),
            ("free", stats.num_host_free, stats.host_free_time.total),
        ] {
            let mut labels = labels.clone();
            labels.push(Label::new("call", call));
            counter!("ascend_alloc_host_driver_calls_total", labels.clone()).absolute(count);
            counter!("ascend_alloc_host_driver_microseconds_total", labels).absolute(time);
        }
    }
}
