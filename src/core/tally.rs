//! Statistics as plain counters, and the ceilings that keep peaks exact without a shared counter.
//!
//! The core and every shard of the front cache count their own allocations and frees. A peak is
//! reached only by somebody whose own balance rises, so each holds *room*: how much more it may hand
//! out before the peaks must be looked at. The rooms of all parties never add up to more than what
//! is left below the peaks. Whoever has no room takes the device's lock, the true sum is formed, the
//! peaks are raised if need be, and the room below them is dealt out anew.

use crate::stats::{DriverCalls, LadderSteps, Stat, StatArray};

/// Counts of blocks.
pub(crate) const COUNT: usize = 0;
/// Bytes of blocks.
pub(crate) const BYTES: usize = 1;
/// Bytes asked for.
pub(crate) const REQUESTED: usize = 2;

/// Values by quantity (`COUNT`, `BYTES`, `REQUESTED`) and by column (small, large).
pub(crate) type Split = [[i64; 2]; 3];
/// Values by quantity and by column (all, small, large).
pub(crate) type Columns = [[i64; 3]; 3];

/// The columns of a split.
pub(crate) fn columns(split: &Split) -> Columns {
    split.map(|[small, large]| [small + large, small, large])
}

/// Two splits together.
pub(crate) fn sum(one: &Split, other: &Split) -> Split {
    core::array::from_fn(|q| core::array::from_fn(|column| one[q][column] + other[q][column]))
}

/// Sums over time of what went up and what went down, and what waits now.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// Handed out.
    pub(crate) up: Split,
    /// Given back.
    pub(crate) down: Split,
    /// Given back, and still in use on other streams; `REQUESTED` too.
    pub(crate) waiting: Split,
    /// Active from then on without being handed out: pieces cut off blocks that wait by themselves, and free blocks that
    /// wait once more.
    pub(crate) again: Split,
}

impl Flow {
    /// What is out now.
    pub(crate) fn balance(&self) -> Split {
        let mut balance = self.up;
        for (quantity, columns) in balance.iter_mut().enumerate() {
            for (column, value) in columns.iter_mut().enumerate() {
                *value -= self.down[quantity][column];
            }
        }
        balance
    }

    /// Adds another party's sums.
    pub(crate) fn add(&mut self, other: &Self) {
        for quantity in 0..3 {
            for column in 0..2 {
                self.up[quantity][column] += other.up[quantity][column];
                self.down[quantity][column] += other.down[quantity][column];
                self.waiting[quantity][column] += other.waiting[quantity][column];
                self.again[quantity][column] += other.again[quantity][column];
            }
        }
    }
}

/// A counter with a peak that is known exactly at every change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauge {
    /// All, small, large.
    pub(crate) stats: [Stat; 3],
}

impl Gauge {
    /// Adds to one column and to the sum.
    pub(crate) fn add(&mut self, small: bool, amount: i64) {
        for column in [0, if small { 1 } else { 2 }] {
            let stat = &mut self.stats[column];
            stat.current += amount;
            stat.peak = stat.peak.max(stat.current);
            stat.allocated += amount;
        }
    }

    /// Takes from one column and from the sum.
    pub(crate) fn sub(&mut self, small: bool, amount: i64) {
        for column in [0, if small { 1 } else { 2 }] {
            let stat = &mut self.stats[column];
            stat.current -= amount;
            stat.freed += amount;
        }
    }

    /// As the public type.
    pub(crate) fn array(&self) -> StatArray {
        StatArray { all: self.stats[0], small: self.stats[1], large: self.stats[2] }
    }

    /// Peaks start again from the current values.
    pub(crate) fn reset_peak(&mut self) {
        for stat in &mut self.stats {
            stat.peak = stat.current;
        }
    }

    /// Sums over time start again from zero.
    pub(crate) fn reset_accumulated(&mut self) {
        for stat in &mut self.stats {
            stat.allocated = 0;
            stat.freed = 0;
        }
    }
}

/// The core's counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// Blocks the core itself handed out and took back.
    pub(crate) flow: Flow,
    /// What the core may still hand out before the peaks must be looked at.
    pub(crate) room: Split,
    /// Peaks of what is handed out, by quantity; `REQUESTED` follows the active blocks.
    pub(crate) peak_allocated: Columns,
    /// Peaks of what is handed out or waiting; `REQUESTED` unused.
    pub(crate) peak_active: Columns,
    /// The sums of all parties at the last reset, and what was waiting then.
    pub(crate) base: Flow,
    /// Segments.
    pub(crate) segment: Gauge,
    /// Bytes with physical memory.
    pub(crate) reserved: Gauge,
    /// Free pieces of classic segments.
    pub(crate) inactive: Gauge,
    /// Their bytes.
    pub(crate) inactive_bytes: Gauge,
    /// Classic requests of at least `max_split_size`.
    pub(crate) oversize_allocations: Gauge,
    /// Classic segments of at least `max_split_size`.
    pub(crate) oversize_segments: Gauge,
    /// See [`Stats`](crate::Stats).
    pub(crate) retries: u64,
    /// See [`Stats`](crate::Stats).
    pub(crate) ooms: u64,
    /// See [`Stats`](crate::Stats).
    pub(crate) sync_all: u64,
    /// See [`Stats`](crate::Stats).
    pub(crate) device_alloc: u64,
    /// See [`Stats`](crate::Stats).
    pub(crate) device_free: u64,
    /// Address space reserved, bytes.
    pub(crate) address_space: u64,
    /// Chunks moved.
    pub(crate) moved: u64,
    /// Driver calls.
    pub(crate) calls: DriverCalls,
    /// Steps of the ladder.
    pub(crate) ladder: LadderSteps,
}

impl Tally {
    /// Counts a block handed out; true when there was no room for it and the peaks must be looked at.
    #[inline]
    pub(crate) fn charge(&mut self, small: bool, bytes: u64, requested: u64) -> bool {
        let column = usize::from(!small);
        let mut left = 0;
        for (quantity, amount) in [1, bytes as i64, requested as i64].into_iter().enumerate() {
            self.flow.up[quantity][column] += amount;
            self.room[quantity][column] -= amount;
            left |= self.room[quantity][column];
        }
        left < 0
    }

    /// Counts a block given back.
    #[inline]
    pub(crate) fn refund(&mut self, small: bool, bytes: u64, requested: u64) {
        let column = usize::from(!small);
        for (quantity, amount) in [1, bytes as i64, requested as i64].into_iter().enumerate() {
            self.flow.down[quantity][column] += amount;
            self.room[quantity][column] += amount;
        }
    }

    /// Counts a block whose bytes and requested bytes change (before, after); true as for a charge.
    pub(crate) fn resize(&mut self, small: bool, bytes: (u64, u64), requested: (u64, u64)) -> bool {
        let column = usize::from(!small);
        let mut left = 0;
        for (quantity, (before, after)) in [(BYTES, bytes), (REQUESTED, requested)] {
            let change = after as i64 - before as i64;
            self.flow.up[quantity][column] += change.max(0);
            self.flow.down[quantity][column] += (-change).max(0);
            self.room[quantity][column] -= change;
            left |= self.room[quantity][column];
        }
        left < 0
    }

    /// Counts a block that is freed and must wait.
    ///
    /// It stays active, so it gives no room back; when its wait is over, what is handed out does not
    /// fall, so that gives none back either. The next settling of the peaks does.
    pub(crate) fn wait(&mut self, small: bool, bytes: u64, requested: u64) {
        let column = usize::from(!small);
        for (quantity, amount) in [1, bytes as i64, requested as i64].into_iter().enumerate() {
            self.flow.down[quantity][column] += amount;
            self.flow.waiting[quantity][column] += amount;
        }
    }

    /// Counts a piece that waits and was never handed out by itself; `active` of its bytes were active until now.
    pub(crate) fn wait_only(&mut self, small: bool, bytes: u64, active: u64) {
        let column = usize::from(!small);
        for (quantity, amount, before) in [(COUNT, 1, 0), (BYTES, bytes as i64, active as i64)] {
            self.flow.waiting[quantity][column] += amount;
            self.flow.again[quantity][column] += amount - before;
            self.room[quantity][column] -= amount;
        }
    }

    /// Adds driver calls.
    pub(crate) fn count_calls(&mut self, calls: &DriverCalls) {
        self.calls.add(calls);
    }

    /// Sums over time start again: `flow` is what all parties have counted so far.
    pub(crate) fn restart_sums(&mut self, flow: Flow) {
        self.base = flow;
        self.retries = 0;
        self.ooms = 0;
        self.sync_all = 0;
        self.device_alloc = 0;
        self.device_free = 0;
        self.moved = 0;
        self.calls = DriverCalls::default();
        self.ladder = LadderSteps::default();
        for gauge in self.gauges() {
            gauge.reset_accumulated();
        }
    }

    fn gauges(&mut self) -> [&mut Gauge; 6] {
        [
            &mut self.segment,
            &mut self.reserved,
            &mut self.inactive,
            &mut self.inactive_bytes,
            &mut self.oversize_allocations,
            &mut self.oversize_segments,
        ]
    }

    /// Counts a block that waits and that another party counted until now.
    pub(crate) fn take_over(&mut self, small: bool, bytes: u64, requested: u64) {
        let column = usize::from(!small);
        for (quantity, amount) in [1, bytes as i64, requested as i64].into_iter().enumerate() {
            self.flow.waiting[quantity][column] += amount;
        }
    }

    /// Counts a block that need not wait any more.
    pub(crate) fn wait_over(&mut self, small: bool, bytes: u64, requested: u64) {
        let column = usize::from(!small);
        for (quantity, amount) in [1, bytes as i64, requested as i64].into_iter().enumerate() {
            self.flow.waiting[quantity][column] -= amount;
        }
    }

    /// Raises the peaks to the balance of all parties together, and returns the room below them:
    /// by how much all balances together may rise.
    pub(crate) fn raise(&mut self, flow: &Flow) -> Columns {
        let now = columns(&flow.balance());
        let waiting = columns(&flow.waiting);
        let mut room = Columns::default();
        for quantity in 0..3 {
            for column in 0..3 {
                let value = now[quantity][column];
                let active = value + waiting[quantity][column];
                if quantity == REQUESTED {
                    let peak = &mut self.peak_allocated[quantity][column];
                    *peak = (*peak).max(active);
                    room[quantity][column] = *peak - active;
                } else {
                    let peak = &mut self.peak_allocated[quantity][column];
                    *peak = (*peak).max(value);
                    let below = *peak - value;
                    let peak = &mut self.peak_active[quantity][column];
                    *peak = (*peak).max(active);
                    room[quantity][column] = below.min(*peak - active);
                }
            }
        }
        room
    }

    /// Forgets the peaks; the next [`raise`](Self::raise) sets them to what is out then.
    pub(crate) fn forget_peaks(&mut self) {
        self.peak_allocated = Columns::default();
        self.peak_active = Columns::default();
        for gauge in self.gauges() {
            gauge.reset_peak();
        }
    }
}
