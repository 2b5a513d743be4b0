//! Publishing statistics through the `metrics` crate.
//!
//! Nothing on the way of an allocation touches a metric: the counts are plain integers, and one call of
//! [`DeviceAllocator::publish`] sets gauges and counters from them, on demand or on a timer. [`METRICS`] lists all
//! names; `docs/metrics.md` explains them.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use std::sync::Arc;
//! # use std::time::Duration;
//! # let sim = ascend_sim::Sim::new(ascend_sim::SimConfig::default());
//! # let driver = Arc::new(ascend_alloc::driver::SimDriver::new(sim));
//! use ascend_alloc::{Config, DeviceAllocator};
//!
//! let allocator = Arc::new(DeviceAllocator::new(Config::default(), driver)?);
//! // The recorder is the program's: an exporter of the metrics crate, installed before.
//! let timer = allocator.publish_every(Duration::from_secs(1))?;
//! // ... and ends with the timer, or with the allocator.
//! drop(timer);
//! # Ok(())
//! # }
//! ```

mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use metrics::{Label, counter, gauge, histogram};

pub use self::names::{HOST_METRICS, Kind, METRICS, Metric, describe};
use crate::alloc::{DeviceAllocator, PoolStats};
use crate::core::snapshot::{BlockState, Snapshot};
use crate::driver::{DeviceId, Stream};
use crate::history::worker::Worker;
use crate::stats::{StatArray, Stats};

/// A timer does not look at single blocks while there are more of them than this.
const MOST_BLOCKS: i64 = 100_000;
/// Nor does it more often: a look costs as much as some dozen publications of statistics.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_secs(15);

/// What is published of a device; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceFigures {
    /// The device.
    pub device: DeviceId,
    /// Its memory.
    pub total_bytes: u64,
    /// The most that may be held of it, if there is a limit.
    pub limit_bytes: Option<u64>,
    /// Its statistics.
    pub stats: Stats,
    /// Pools other than the default one, by serial.
    pub pools: Vec<PoolFigures>,
    /// Blocks by group, where somebody looked at each of them; else empty.
    pub blocks: Vec<BlockFigures>,
}

/// Blocks of the same pool, class of stream and state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockFigures {
    /// The pool's serial; 0 is the default pool.
    pub pool: u64,
    /// `default` (stream 0) or `other`.
    pub stream: String,
    /// `allocated`, `waiting` or `free`.
    pub state: String,
    /// How many there are.
    pub blocks: u64,
    /// Their bytes together.
    pub bytes: u64,
}

/// What is published of a pool; sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolFigures {
    /// Its serial; 0 is the default pool.
    pub pool: u64,
    /// Its tag.
    pub tag: String,
    /// Handed out.
    pub allocated_bytes: u64,
    /// Handed out or waiting for streams.
    pub active_bytes: u64,
    /// With physical memory behind them.
    pub reserved_bytes: u64,
}

/// What was published of pools and limits: a metric keeps its value until it is set again, so what is gone is told once
/// more, as nothing.
#[derive(Debug, Default)]
pub(crate) struct Published {
    pools: BTreeSet<(DeviceId, u64, String)>,
    limits: BTreeSet<DeviceId>,
}

impl Published {
    /// The figures with what was published before and is gone: pools without bytes, and a limit of the device's memory.
    pub(crate) fn renew(&mut self, mut all: Vec<DeviceFigures>) -> Vec<DeviceFigures> {
        let before = core::mem::take(self);
        for figures in &mut all {
            let device = figures.device;
            let there = figures.pools.iter().map(|pool| (device, pool.pool, pool.tag.clone()));
            self.pools.extend(there);
            let gone = before.pools.iter().filter(|pool| pool.0 == device && !self.pools.contains(pool));
            let gone = gone.map(|(_, pool, tag)| PoolFigures {
                pool: *pool,
                tag: tag.clone(),
                ..PoolFigures::default()
            });
            figures.pools.extend(gone);
            match figures.limit_bytes {
                Some(_) => _ = self.limits.insert(device),
                None if before.limits.contains(&device) => figures.limit_bytes = Some(figures.total_bytes),
                None => {}
            }
        }
        all
    }
}

impl PoolFigures {
    /// Those of a pool's statistics.
    #[must_use]
    pub fn of(pool: u64, stats: &PoolStats) -> Self {
        Self {
            pool,
            tag: stats.tag.clone(),
            allocated_bytes: current(&stats.allocated_bytes),
            active_bytes: current(&stats.active_bytes),
            reserved_bytes: current(&stats.reserved_bytes),
        }
    }
}

impl DeviceFigures {
    /// Sets the gauges and counters of the device through the recorder that is installed; without one nothing
    /// happens. The labels `more` are put behind the label `device` of each.
    pub fn publish(&self, more: &[(&'static str, String)]) {
        let mut labels = vec![Label::new("device", self.device.to_string())];
        labels.extend(more.iter().map(|(key, value)| Label::new(*key, value.clone())));
        let with = |key: &'static str, value: &str| {
            let mut all = labels.clone();
            all.push(Label::new(key, value.to_owned()));
            all
        };
        let stats = &self.stats;
        let arrays = [
            ("ascend_alloc_allocated_bytes", "ascend_alloc_allocated_bytes_peak", &stats.allocated_bytes),
            ("ascend_alloc_active_bytes", "ascend_alloc_active_bytes_peak", &stats.active_bytes),
            ("ascend_alloc_requested_bytes", "ascend_alloc_requested_bytes_peak", &stats.requested_bytes),
            ("ascend_alloc_reserved_bytes", "ascend_alloc_reserved_bytes_peak", &stats.reserved_bytes),
        ];
        for (pool, of) in CLASSES {
            let labels = with("pool", pool);
            for (name, peak, array) in arrays {
                gauge!(name, labels.clone()).set(of(array).current as f64);
                gauge!(peak, labels.clone()).set(of(array).peak as f64);
            }
            let count = of(&stats.allocation);
            gauge!("ascend_alloc_blocks_live", labels.clone()).set(count.current as f64);
            counter!("ascend_alloc_allocations_total", labels.clone()).absolute(unsigned(count.allocated));
            counter!("ascend_alloc_frees_total", labels.clone()).absolute(unsigned(count.freed));
            let bytes = unsigned(of(&stats.allocated_bytes).allocated);
            counter!("ascend_alloc_allocated_bytes_total", labels.clone()).absolute(bytes);
        }
        gauge!("ascend_alloc_device_bytes", labels.clone()).set(self.total_bytes as f64);
        if let Some(limit) = self.limit_bytes {
            gauge!("ascend_alloc_limit_bytes", labels.clone()).set(limit as f64);
        }
        gauge!("ascend_alloc_cached_handle_bytes", labels.clone()).set(stats.cached_handles as f64);
        gauge!("ascend_alloc_address_space_bytes", labels.clone()).set(stats.reserved_address_space as f64);
        gauge!("ascend_alloc_sleeping_bytes", labels.clone()).set(stats.sleeping_bytes as f64);
        counter!("ascend_alloc_ooms_total", labels.clone()).absolute(stats.num_ooms);
        counter!("ascend_alloc_retries_total", labels.clone()).absolute(stats.num_alloc_retries);
        counter!("ascend_alloc_chunks_moved_total", labels.clone()).absolute(stats.chunks_moved);
        counter!("ascend_alloc_size_mismatches_total", labels.clone()).absolute(stats.size_mismatches);
        for (step, count) in stats.ladder.by_name() {
            counter!("ascend_alloc_ladder_steps_total", with("step", step)).absolute(count);
        }
        for (call, count) in stats.calls.by_name() {
            counter!("ascend_alloc_driver_calls_total", with("call", call)).absolute(count);
        }
        for pool in self.all_pools() {
            let mut labels = with("pool", &pool.pool.to_string());
            labels.push(Label::new("tag", pool.tag));
            gauge!("ascend_alloc_pool_allocated_bytes", labels.clone()).set(pool.allocated_bytes as f64);
            gauge!("ascend_alloc_pool_active_bytes", labels.clone()).set(pool.active_bytes as f64);
            gauge!("ascend_alloc_pool_reserved_bytes", labels.clone()).set(pool.reserved_bytes as f64);
        }
        let tags = self.tags();
        for group in &self.blocks {
            let mut labels = with("pool", &group.pool.to_string());
            labels.push(Label::new("tag", tags.get(&group.pool).cloned().unwrap_or_default()));
            labels.push(Label::new("stream", group.stream.clone()));
            labels.push(Label::new("state", group.state.clone()));
            gauge!("ascend_alloc_blocks", labels.clone()).set(group.blocks as f64);
            gauge!("ascend_alloc_block_bytes", labels).set(group.bytes as f64);
        }
    }

    /// The tags of all pools.
    fn tags(&self) -> BTreeMap<u64, String> {
        self.all_pools().into_iter().map(|pool| (pool.pool, pool.tag)).collect()
    }

    /// The blocks of a snapshot by group; those of a pool that has none are there too.
    pub(crate) fn blocks_of(&self, snapshot: &Snapshot) -> Vec<BlockFigures> {
        let figures = |((pool, stream, state), sizes): (Group, Sizes)| BlockFigures {
            pool,
            stream: stream.to_owned(),
            state: state.to_owned(),
            blocks: sizes.values().map(|&count| count as u64).sum(),
            bytes: sizes.iter().map(|(size, &count)| size * count as u64).sum(),
        };
        groups(self, snapshot).into_iter().map(figures).collect()
    }

    /// Whether each block may be looked at now and then.
    pub(crate) fn may_be_looked_at(&self) -> bool {
        self.stats.active.all.current <= MOST_BLOCKS
    }

    /// All pools: the default one has what the others have not.
    fn all_pools(&self) -> Vec<PoolFigures> {
        let rest = |array: &StatArray, of: fn(&PoolFigures) -> u64| {
            self.pools.iter().fold(current(array), |left, pool| left.saturating_sub(of(pool)))
        };
        let default = PoolFigures {
            pool: 0,
            tag: "default".to_owned(),
            allocated_bytes: rest(&self.stats.allocated_bytes, |pool| pool.allocated_bytes),
            active_bytes: rest(&self.stats.active_bytes, |pool| pool.active_bytes),
            reserved_bytes: rest(&self.stats.reserved_bytes, |pool| pool.reserved_bytes),
        };
        std::iter::once(default).chain(self.pools.iter().cloned()).collect()
    }
}

/// A part of a statistic, with the value of the label `pool` for it.
type Part = (&'static str, fn(&StatArray) -> &crate::stats::Stat);

const CLASSES: [Part; 3] =
    [("all", |array| &array.all), ("small", |array| &array.small), ("large", |array| &array.large)];

fn current(array: &StatArray) -> u64 {
    unsigned(array.all.current)
}

fn unsigned(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// Publishes once a period until it is dropped, or the allocator is gone. See
/// [`DeviceAllocator::publish_every`].
#[derive(Debug)]
pub struct PublishTimer {
    _worker: Worker,
}

impl DeviceAllocator {
    /// Sets the metrics of every device that has been used to its statistics, through the recorder that the
    /// program has installed; without one nothing happens. On demand, from any thread. The lock of a device is
    /// held for the copy of its statistics only. [`publish::METRICS`](METRICS) lists the names.
    pub fn publish(&self) {
        for figures in self.figures_to_publish() {
            figures.publish(&[]);
        }
    }

    /// Sets the metrics that need a look at each block, by pool, class of stream and state, and records the size of
    /// each block in the histogram `ascend_alloc_block_size_bytes`. A device's lock is held for a copy of its blocks;
    /// copy and recording took about 95 ns for each block where it was measured. A stream is of the class `default`
    /// (stream 0) or `other`.
    pub fn publish_blocks(&self) {
        for figures in self.figures_to_look_at() {
            if let Ok(snapshot) = self.snapshot(figures.device) {
                publish_snapshot(&figures, &snapshot);
            }
        }
    }

    /// Publishes the statistics once a period, by a thread of its own, and with the first of them and then every 15
    /// seconds what needs a look at each block, while there are at most 100 000. It ends when what is returned is
    /// dropped; the allocator may end before.
    ///
    /// # Errors
    ///
    /// The thread cannot be made.
    pub fn publish_every(self: &Arc<Self>, period: Duration) -> std::io::Result<PublishTimer> {
        let allocator = Arc::downgrade(self);
        let between = turns_between_looks(period);
        let mut turns = 0_u64;
        let turn = move |_last| {
            turn(&allocator, turns.is_multiple_of(between));
            turns += 1;
        };
        let worker = Worker::start("ascend-alloc-publish", period, Arc::default(), turn)?;
        Ok(PublishTimer { _worker: worker })
    }
}

/// Of so many turns one looks at blocks.
fn turns_between_looks(period: Duration) -> u64 {
    let turns = BETWEEN_LOOKS.as_nanos().div_ceil(period.as_nanos().max(1));
    u64::try_from(turns).unwrap_or(u64::MAX).max(1)
}

fn turn(allocator: &Weak<DeviceAllocator>, looks: bool) {
    let Some(allocator) = allocator.upgrade() else { return };
    allocator.publish();
    if !looks {
        return;
    }
    for figures in allocator.figures_to_look_at() {
        if figures.may_be_looked_at()
            && let Ok(snapshot) = allocator.snapshot(figures.device)
        {
            publish_snapshot(&figures, &snapshot);
        }
    }
}

/// Pool, class of stream, state.
type Group = (u64, &'static str, &'static str);

/// How many blocks of each size.
type Sizes = BTreeMap<u64, usize>;

/// The sizes of the blocks of each group.
fn groups(figures: &DeviceFigures, snapshot: &Snapshot) -> BTreeMap<Group, Sizes> {
    let mut groups: BTreeMap<Group, Sizes> = BTreeMap::new();
    for pool in figures.all_pools() {
        for stream in ["default", "other"] {
            for state in ["allocated", "waiting", "free"] {
                // A group that lost its last block is told so.
                groups.insert((pool.pool, stream, state), Sizes::new());
            }
        }
    }
    for segment in &snapshot.segments {
        for block in &segment.blocks {
            let stream = if block.stream == Stream(0) { "default" } else { "other" };
            let state = match block.state {
                BlockState::ActiveAllocated => "allocated",
                BlockState::ActivePendingFree => "waiting",
                BlockState::Inactive | BlockState::InTransit => "free",
            };
            let sizes = groups.entry((segment.pool, stream, state)).or_default();
            *sizes.entry(block.size).or_default() += 1;
        }
    }
    groups
}

fn publish_snapshot(figures: &DeviceFigures, snapshot: &Snapshot) {
    let tags = figures.tags();
    for ((pool, stream, state), sizes) in groups(figures, snapshot) {
        let labels = vec![
            Label::new("device", figures.device.to_string()),
            Label::new("pool", pool.to_string()),
            Label::new("tag", tags.get(&pool).cloned().unwrap_or_default()),
            Label::new("stream", stream),
            Label::new("state", state),
        ];
        let count: usize = sizes.values().sum();
        let bytes: u64 = sizes.iter().map(|(size, &count)| size * count as u64).sum();
        gauge!("ascend_alloc_blocks", labels.clone()).set(count as f64);
        gauge!("ascend_alloc_block_bytes", labels.clone()).set(bytes as f64);
        let histogram = histogram!("ascend_alloc_block_size_bytes", labels.clone());
        for (size, count) in sizes {
            histogram.record_many(size as f64, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_looked_at_every_fifteen_seconds() {
        for (millis, turns) in
            [(0, 15_000_000_000), (1, 15_000), (1_000, 15), (4_000, 4), (15_000, 1), (60_000, 1)]
        {
            assert_eq!(turns_between_looks(Duration::from_millis(millis)), turns, "{millis} ms");
        }
    }
}
