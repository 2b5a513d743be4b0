//! The statistics of one device, from what its core and its front count.

use std::sync::atomic::Ordering::Relaxed;

use super::device::Device;
use crate::core::Core;
use crate::core::snapshot::Snapshot;
use crate::core::tally::{self, Gauge, REQUESTED};
use crate::stats::{StatArray, Stats};

impl Device {
    pub(super) fn stats(&self) -> Stats {
        self.stats_under(&self.core.lock())
    }

    /// The same under the core's lock.
    pub(super) fn stats_under(&self, core: &Core) -> Stats {
        self.stats_with(core, self.front.flow())
    }

    pub(super) fn reset_peaks(&self) {
        let mut core = self.core.lock();
        core.tally.forget_peaks();
        core.pools.gauges().for_each(Gauge::reset_peak);
        self.settle_peaks(&mut core);
    }

    pub(super) fn reset_accumulated(&self) {
        let mut core = self.core.lock();
        let mut flow = self.front.flow();
        flow.add(&core.tally.flow);
        core.tally.restart_sums(flow);
        core.pools.gauges().for_each(Gauge::reset_accumulated);
        self.size_mismatches.store(0, Relaxed);
    }

    /// The statistics of a device, from what its core and its front count. Under the core's lock.
    fn stats_with(&self, core: &Core, mut flow: tally::Flow) -> Stats {
        let tally = &core.tally;
        flow.add(&tally.flow);
        let array = |quantity: usize, active: bool| stat_array(tally, &flow, quantity, active);
        Stats {
            allocation: array(tally::COUNT, false),
            allocated_bytes: array(tally::BYTES, false),
            requested_bytes: array(tally::REQUESTED, true),
            active: array(tally::COUNT, true),
            active_bytes: array(tally::BYTES, true),
            segment: tally.segment.array(),
            reserved_bytes: tally.reserved.array(),
            inactive_split: tally.inactive.array(),
            inactive_split_bytes: tally.inactive_bytes.array(),
            oversize_allocations: tally.oversize_allocations.stats[0],
            oversize_segments: tally.oversize_segments.stats[0],
            num_alloc_retries: tally.retries,
            num_ooms: tally.ooms,
            num_sync_all_streams: tally.sync_all,
            num_device_alloc: tally.device_alloc,
            num_device_free: tally.device_free,
            max_split_size: shown(core.config.max_split_size),
            reserved_address_space: tally.address_space,
            cached_handles: core.cached_bytes(),
            sleeping_bytes: core.sleeping_bytes() as u64,
            chunks_moved: tally.moved,
            size_mismatches: self.size_mismatches.load(Relaxed),
            calls: tally.calls,
            ladder: tally.ladder,
        }
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let core = self.core.lock();
        core.snapshot(&self.front.resting())
    }

    /// Memory and statistics of one moment.
    pub(super) fn snapshot_with_stats(&self) -> (Snapshot, Stats) {
        let core = self.core.lock();
        let (resting, flow) = self.front.account();
        (core.snapshot(&resting), self.stats_with(&core, flow))
    }
}

/// A size as PyTorch's statistics show it: -1 when there is none.
pub(super) fn shown(bytes: Option<u64>) -> i64 {
    bytes.map_or(-1, |bytes| bytes as i64)
}

fn stat_array(tally: &tally::Tally, flow: &tally::Flow, quantity: usize, active: bool) -> StatArray {
    let waiting = tally::columns(&flow.waiting)[quantity];
    let waited = tally::columns(&tally.base.waiting)[quantity];
    let (up, down) = (tally::columns(&flow.up)[quantity], tally::columns(&flow.down)[quantity]);
    let (base_up, base_down) =
        (tally::columns(&tally.base.up)[quantity], tally::columns(&tally.base.down)[quantity]);
    let again = tally::columns(&flow.again)[quantity];
    let base_again = tally::columns(&tally.base.again)[quantity];
    let peaks = if active && quantity != REQUESTED { &tally.peak_active } else { &tally.peak_allocated };
    let stat = |column: usize| {
        let (waits, waited) = if active { (waiting[column], waited[column]) } else { (0, 0) };
        let again = if active { again[column] - base_again[column] } else { 0 };
        crate::stats::Stat {
            current: up[column] - down[column] + waits,
            peak: peaks[quantity][column],
            allocated: up[column] - base_up[column] + again,
            freed: down[column] - base_down[column] - (waits - waited) + again,
        }
    };
    StatArray { all: stat(0), small: stat(1), large: stat(2) }
}
