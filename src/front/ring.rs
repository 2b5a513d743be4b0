//! Freed blocks that other streams may still use, until those have passed.
//!
//! ```text
//! lane of a key   | - | b | b | b | w | w | w | - |      b: over, w: not known to be over
//!                       ^head       ^ready      ^tail    positions count on for ever
//! ```
//!
//! Blocks of one key go round in one lane, in the order they were freed. A slot keeps which epochs of which
//! columns must be over, two at most. While they are not known to be, the block counts as waiting; once
//! somebody looks and finds that they are, as free. How much waits is summed up when somebody asks, so that
//! a pair of calls need not count it. Everything is changed under the shard's flag.

use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{self};

use super::counts::Amounts;
use super::key::{hash, len_of};
use super::streams::{Streams, Use};

/// Blocks of one key in a shard, at most.
const SLOTS: usize = if sync::SMALLEST {
    2
} else if sync::SMALL {
    8
} else {
    256
};
/// Keys a shard can have blocks of, of one kind.
const LANES: usize = if sync::SMALL { 2 } else { 16 };
/// Slots of all lanes.
const ALL: usize = SLOTS * LANES;

/// A block in a lane.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    /// Its address; zero when the slot is vacant.
    pub(super) address: AtomicU64,
    /// Bytes it was last asked for with.
    pub(super) requested: AtomicU64,
    /// What must be over, as [`Use`]; the first is zero once all is known to be.
    uses: [AtomicU64; 2],
    /// The epoch of its home in which it was freed.
    pub(super) epoch: AtomicU32,
}

/// Blocks of one key.
#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The key, while there are blocks.
    key: AtomicU64,
    /// The position of the oldest block.
    head: AtomicU32,
    /// Blocks before this position are over.
    ready: AtomicU32,
    /// The position of the next block.
    tail: AtomicU32,
    /// How many blocks there may be; set when the first one comes.
    most: AtomicU32,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Ring {
    lanes: [Lane; LANES],
    slots: Box<[Waiter; ALL]>,
    /// What was known to be over when the ring was last swept.
    swept: AtomicU32,
    /// Whether any are known to be over since they were last taken out.
    over: AtomicBool,
    /// The sum of all positions when what waits was last summed up.
    summed: AtomicU32,
    /// What waited then.
    sums: [AtomicI64; 3],
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            lanes: Default::default(),
            slots: super::map::boxed(|_| Waiter::default()),
            swept: AtomicU32::new(0),
            over: AtomicBool::new(false),
            summed: AtomicU32::new(0),
            sums: Default::default(),
        }
    }
}

#[inline]
fn number_of(key: u64) -> usize {
    hash(key, LANES.ilog2()) % LANES
}

impl Ring {
    /// Whether there is no block here.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.iter().all(Lane::is_empty)
    }

    /// Whether that slot holds the block that begins at `address`.
    #[inline]
    pub(super) fn holds(&self, at: usize, address: u64) -> bool {
        self.slots.get(at).is_some_and(|slot| slot.address.load(Relaxed) == address)
    }

    /// The number of the lane of a key, if it has blocks of that key.
    #[inline]
    pub(super) fn lane(&self, key: u64) -> Option<usize> {
        let number = number_of(key);
        (self.lanes[number].key.load(Relaxed) == key).then_some(number)
    }

    /// Adds a block; returns its slot, if there is one. Of this key there may be `most` bytes, or one block.
    #[inline]
    pub(super) fn push(
        &self,
        (address, key): (u64, u64),
        requested: u64,
        epoch: u32,
        uses: [Use; 2],
        most: &AtomicU64,
    ) -> Option<usize> {
        let number = number_of(key);
        let lane = &self.lanes[number];
        let (head, tail) = (lane.head.load(Relaxed), lane.tail.load(Relaxed));
        if head == tail {
            lane.open(key, most.load(Relaxed));
        } else if lane.key.load(Relaxed) != key || tail.wrapping_sub(head) >= lane.most.load(Relaxed) {
            return None;
        }
        let at = number * SLOTS + tail as usize % SLOTS;
        let slot = &self.slots[at];
        slot.address.store(address, Relaxed);
        slot.requested.store(requested, Relaxed);
        slot.uses[0].store(uses[0].0, Relaxed);
        slot.uses[1].store(uses[1].0, Relaxed);
        slot.epoch.store(epoch, Relaxed);
        lane.tail.store(tail.wrapping_add(1), Relaxed);
        Some(at)
    }

    /// The oldest block of a lane.
    #[inline]
    pub(super) fn first(&self, number: usize) -> &Waiter {
        &self.slots[number * SLOTS + self.lanes[number].head.load(Relaxed) as usize % SLOTS]
    }

    /// Takes the oldest block of a lane out.
    #[inline]
    pub(super) fn pop(&self, number: usize, slot: &Waiter) {
        slot.address.store(0, Relaxed);
        let lane = &self.lanes[number];
        let head = lane.head.load(Relaxed).wrapping_add(1);
        lane.head.store(head, Relaxed);
        if head == lane.tail.load(Relaxed) {
            lane.key.store(0, Relaxed);
        }
    }

    /// Whether the oldest block of a lane, if there is one, is over.
    #[inline]
    pub(super) fn is_ready(&self, number: usize, streams: &Streams) -> bool {
        let lane = &self.lanes[number];
        lane.head.load(Relaxed) != lane.ready.load(Relaxed) || self.look(number, streams)
    }

    /// Finds out how many blocks of a lane, from the oldest on, are over; whether there are any.
    #[cold]
    #[inline(never)]
    fn look(&self, number: usize, streams: &Streams) -> bool {
        let lane = &self.lanes[number];
        let (head, tail) = (lane.head.load(Relaxed), lane.tail.load(Relaxed));
        let mut ready = head;
        // Many in a row wait for the same.
        let mut over = [Use::default(); 2];
        while ready != tail {
            let uses = self.slots[number * SLOTS + ready as usize % SLOTS].uses();
            if uses != over && !uses.iter().all(|&one| streams.is_over(one)) {
                break;
            }
            over = uses;
            ready = ready.wrapping_add(1);
        }
        lane.ready.store(ready, Relaxed);
        ready != head
    }

    /// Whether there may be no more blocks in a lane.
    pub(super) fn is_full(&self, number: usize) -> bool {
        let lane = &self.lanes[number];
        lane.tail.load(Relaxed).wrapping_sub(lane.head.load(Relaxed)) >= lane.most.load(Relaxed)
    }

    /// Looks at all blocks (and their keys), those of each key from the oldest on, and takes those out
    /// that `leaves` says are leaving. `moved` is told of those that get another slot.
    pub(super) fn visit(
        &self,
        mut leaves: impl FnMut(&Waiter, u64) -> bool,
        mut moved: impl FnMut(u64, usize),
    ) {
        for (number, (lane, slots)) in self.lanes.iter().zip(self.slots.chunks(SLOTS)).enumerate() {
            let (head, tail) = (lane.head.load(Relaxed), lane.tail.load(Relaxed));
            let key = lane.key.load(Relaxed);
            let mut to = head;
            let mut from = head;
            while from != tail {
                let slot = &slots[from as usize % SLOTS];
                if leaves(slot, key) {
                    slot.address.store(0, Relaxed);
                } else {
                    if from != to {
                        let at = to as usize % SLOTS;
                        slots[at].replace_by(slot);
                        moved(slots[at].address.load(Relaxed), number * SLOTS + at);
                    }
                    to = to.wrapping_add(1);
                }
                from = from.wrapping_add(1);
            }
            if to != tail {
                lane.tail.store(to, Relaxed);
                lane.ready.store(head, Relaxed);
                if to == head {
                    lane.key.store(0, Relaxed);
                }
                self.forget_sums();
            }
        }
    }

    fn forget_sums(&self) {
        // From here on positions only rise, until somebody forgets the sums again.
        self.summed.store(self.positions().wrapping_sub(1), Relaxed);
    }

    /// Whether there may be blocks that wait no more.
    #[inline]
    pub(super) fn may_be_over(&self, streams: &Streams) -> bool {
        (self.over.load(Relaxed) || self.swept.load(Relaxed) != streams.known()) && !self.is_empty()
    }

    /// All that are over are being taken out.
    pub(super) fn set_none_over(&self) {
        self.over.store(false, Relaxed);
    }

    /// Notes which blocks are over, if anything new is known since the last time; `over` gets each, with its key.
    pub(super) fn sweep(&self, streams: &Streams, mut over: impl FnMut(&Waiter, u64)) {
        let now = streams.known();
        if self.swept.load(Relaxed) == now {
            return;
        }
        let look = |slot: &Waiter, key: u64| {
            if slot.waits() && slot.uses().into_iter().all(|one| streams.is_over(one)) {
                slot.uses.iter().for_each(|one| one.store(0, Relaxed));
                self.over.store(true, Relaxed);
                over(slot, key);
            }
            false
        };
        self.visit(look, |_, _| ());
        self.swept.store(now, Relaxed);
        self.forget_sums();
    }

    /// What waits: blocks, bytes, requested bytes.
    pub(super) fn waiting(&self) -> Amounts {
        let positions = self.positions();
        if self.summed.swap(positions, Relaxed) != positions {
            let mut sums = Amounts::default();
            let add = |slot: &Waiter, key: u64| {
                if slot.waits() {
                    let amounts = [1, len_of(key) as i64, slot.requested.load(Relaxed) as i64];
                    sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
                }
                false
            };
            self.visit(add, |_, _| ());
            self.sums.iter().zip(sums).for_each(|(to, sum)| to.store(sum, Relaxed));
        }
        core::array::from_fn(|quantity| self.sums[quantity].load(Relaxed))
    }

    /// A number that changes whenever a block comes or goes.
    fn positions(&self) -> u32 {
        let both = |lane: &Lane| lane.head.load(Relaxed).wrapping_add(lane.tail.load(Relaxed));
        self.lanes.iter().fold(0, |sum, lane| sum.wrapping_add(both(lane)))
    }
}

impl Lane {
    /// Lets an empty lane have blocks of this key, so many bytes or one block at most.
    #[cold]
    #[inline(never)]
    fn open(&self, key: u64, most: u64) {
        let blocks = most / len_of(key).max(1);
        self.most.store(blocks.clamp(1, SLOTS as u64) as u32, Relaxed);
        self.key.store(key, Relaxed);
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.head.load(Relaxed) == self.tail.load(Relaxed)
    }
}

impl Waiter {
    /// Whether the block counts as waiting.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.uses[0].load(Relaxed) != 0
    }

    /// What must be over; a use that is zero stands for nothing.
    pub(super) fn uses(&self) -> [Use; 2] {
        [&self.uses[0], &self.uses[1]].map(|one| Use(one.load(Relaxed)))
    }

    fn replace_by(&self, from: &Self) {
        self.address.store(from.address.swap(0, Relaxed), Relaxed);
        self.requested.store(from.requested.load(Relaxed), Relaxed);
        self.epoch.store(from.epoch.load(Relaxed), Relaxed);
        for (to, from) in self.uses.iter().zip(&from.uses) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}
