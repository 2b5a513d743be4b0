//! What a shard counts of one column of the statistics.
//!
//! ```text
//! sum = out + waiting + room        changes only when room is dealt out, or a waiting block leaves
//! up  = everything ever handed out;  down = up - out
//! ```
//!
//! A block that waits keeps the room it took: it is active all the time, so handing it out again needs
//! none. What waits is in the ring and not counted here. All numbers are changed under the shard's flag.

use crate::sync::atomic::{AtomicI64, AtomicU32, Ordering::Relaxed};

/// By quantity: count, bytes, requested bytes.
pub(crate) type Amounts = [i64; 3];

/// For how many deals a wish is remembered.
const REMEMBERED: u32 = 16;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Counts {
    up: [AtomicI64; 3],
    room: [AtomicI64; 3],
    sum: [AtomicI64; 3],
    /// What was asked for in vain: it comes before what is shared equally.
    wish: [AtomicI64; 3],
    /// Deals for which the wish still holds.
    wished: AtomicU32,
}

/// One reading of [`Counts`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    pub(super) up: Amounts,
    pub(super) out: Amounts,
}

#[inline]
fn add(to: &AtomicI64, amount: i64) {
    to.store(to.load(Relaxed) + amount, Relaxed);
}

/// What one block counts for.
#[inline]
pub(super) fn amounts(bytes: u64, requested: u64) -> Amounts {
    [1, bytes as i64, requested as i64]
}

impl Counts {
    /// Counts a block handed out, unless there is no room for it below a peak.
    #[inline(always)]
    pub(super) fn charge(&self, bytes: u64, requested: u64) -> bool {
        let amounts = amounts(bytes, requested);
        let left: Amounts = core::array::from_fn(|q| self.room[q].load(Relaxed) - amounts[q]);
        if left[0] | left[1] | left[2] < 0 {
            return false;
        }
        for quantity in 0..3 {
            add(&self.up[quantity], amounts[quantity]);
            self.room[quantity].store(left[quantity], Relaxed);
        }
        true
    }

    /// Counts a block given back.
    #[inline(always)]
    pub(super) fn refund(&self, bytes: u64, requested: u64) {
        self.room.iter().zip(amounts(bytes, requested)).for_each(|(room, amount)| add(room, amount));
    }

    /// Counts a waiting block handed out again, for `requested` bytes instead of `before`, unless there is
    /// no room for the difference.
    #[inline(always)]
    pub(super) fn resume(&self, bytes: u64, before: u64, requested: u64) -> bool {
        let more = requested as i64 - before as i64;
        if more != 0 {
            let left = self.room[2].load(Relaxed) - more;
            if left < 0 {
                return false;
            }
            self.room[2].store(left, Relaxed);
        }
        self.up.iter().zip(amounts(bytes, requested)).for_each(|(up, amount)| add(up, amount));
        true
    }

    /// A block waits no more and is free.
    pub(super) fn wait_over(&self, bytes: u64, requested: u64) {
        self.refund(bytes, requested);
    }

    /// A block waits elsewhere from now on.
    pub(super) fn hand_over(&self, bytes: u64, requested: u64) {
        self.sum.iter().zip(amounts(bytes, requested)).for_each(|(sum, amount)| add(sum, -amount));
    }

    /// The numbers now, while so much waits.
    pub(super) fn read(&self, waiting: Amounts) -> Reading {
        let load = |values: &[AtomicI64; 3]| -> Amounts { core::array::from_fn(|q| values[q].load(Relaxed)) };
        let (up, room, sum) = (load(&self.up), load(&self.room), load(&self.sum));
        Reading { up, out: core::array::from_fn(|q| sum[q] - room[q] - waiting[q]) }
    }

    /// What handing out a waiting block again adds to the sums.
    pub(super) fn need_to_resume(before: u64, requested: u64) -> Amounts {
        [0, 0, (requested as i64 - before as i64).max(0)]
    }

    /// Whether so much can be handed out below the peaks.
    pub(super) fn has_room(&self, need: Amounts) -> bool {
        self.room.iter().zip(need).all(|(room, need)| need <= room.load(Relaxed))
    }

    /// Adds room for one block that was asked for in vain, and remembers the wish.
    pub(super) fn grant(&self, need: Amounts) {
        let holds = self.wished.load(Relaxed) > 0;
        for (quantity, amount) in need.into_iter().enumerate() {
            let before = if holds { self.wish[quantity].load(Relaxed) } else { 0 };
            self.wish[quantity].store(before.max(amount), Relaxed);
            add(&self.room[quantity], amount);
            add(&self.sum[quantity], amount);
        }
        self.wished.store(REMEMBERED, Relaxed);
    }

    /// The wish of before, if it still holds; this was one deal more.
    pub(super) fn wish(&self) -> Option<Amounts> {
        let left = self.wished.load(Relaxed).checked_sub(1)?;
        self.wished.store(left, Relaxed);
        Some(core::array::from_fn(|q| self.wish[q].load(Relaxed)))
    }

    /// Gives new room instead of what is left.
    pub(super) fn set_room(&self, room: Amounts) {
        for (quantity, room) in room.into_iter().enumerate() {
            let before = self.room[quantity].swap(room, Relaxed);
            add(&self.sum[quantity], room - before);
        }
    }
}
