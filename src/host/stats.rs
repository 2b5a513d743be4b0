//! Statistics of page-locked memory, with the names and meanings of PyTorch's host allocator.
//!
//! | statistic | counts |
//! |---|---|
//! | `active_requests`, `active_bytes` | blocks handed out or waiting for streams; sizes as rounded |
//! | `allocations`, `allocated_bytes` | what is held of the driver, in use or free |
//! | `num_host_alloc`, `num_host_free` | how often memory was taken of the driver or given back: regions; in the virtual form requests and emptyings, whatever the number of their chunks |
//! | `host_alloc_time`, `host_free_time` | what the driver's calls for it took that succeeded, microseconds; `count` is that of the calls: in the virtual form one for each chunk |

use crate::stats::Stat;

/// How long calls of one kind took, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationStat {
    /// All calls together.
    pub total: u64,
    /// The longest.
    pub max: u64,
    /// The shortest; 0 when there was none.
    pub min: u64,
    /// How many.
    pub count: u64,
    /// Nanoseconds of all calls, so that short ones add up.
    nanos: u64,
}

impl DurationStat {
    /// The mean; 0 when there was no call.
    #[must_use]
    pub fn avg(&self) -> u64 {
        self.total.checked_div(self.count).unwrap_or(0)
    }

    /// Counts a call of that many nanoseconds.
    pub(super) fn add(&mut self, nanos: u64) {
        let micros = nanos / 1000;
        self.nanos += nanos;
        self.total = self.nanos / 1000;
        self.max = self.max.max(micros);
        self.min = if self.count == 0 { micros } else { self.min.min(micros) };
        self.count += 1;
    }
}

/// What is counted where the driver is called.
#[derive(Clone, Debug, Default)]
pub(super) struct Times {
    pub(super) alloc: DurationStat,
    pub(super) free: DurationStat,
    /// Regions or registrations that a failed call left behind and a second refusal kept there.
    pub(super) lost: u64,
}

/// Statistics of a [`PinnedAllocator`](super::PinnedAllocator); sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedStats {
    /// Blocks in use (count): handed out, or freed and waiting for streams.
    pub active_requests: Stat,
    /// Their bytes, as rounded.
    pub active_bytes: Stat,
    /// Regions, or reservations, held (count).
    pub allocations: Stat,
    /// Page-locked memory held of the driver.
    pub allocated_bytes: Stat,
    /// Memory taken of the driver (count): regions, or requests that chunks were mapped for.
    pub num_host_alloc: u64,
    /// Memory given back to the driver (count).
    pub num_host_free: u64,
    /// How long taking memory took.
    pub host_alloc_time: DurationStat,
    /// How long giving memory back took.
    pub host_free_time: DurationStat,
    /// Freed and waiting for streams: a part of `active_bytes`.
    pub waiting_bytes: u64,
    /// Regions or registrations that a failed call left with the driver, and that it then refused to take back (count).
    pub lost: u64,
}

impl PinnedStats {
    /// Free memory that is kept for requests to come.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        (self.allocated_bytes.current - self.active_bytes.current).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_calls_add_up() {
        let mut stat = DurationStat::default();
        assert_eq!((stat.avg(), stat.min), (0, 0));
        for nanos in [600, 600, 3_000] {
            stat.add(nanos);
        }
        assert_eq!((stat.total, stat.max, stat.min, stat.count, stat.avg()), (4, 3, 0, 3, 1));
    }
}
