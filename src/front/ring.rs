//! Freed blocks that other streams may still use, until those have passed.
//!
//! ```text
//! lane of a key   | - | b | b | b | w | w | w | - |      b: over, w: not known to be over
//!                       ^head       ^ready      ^tail    positions count on for ever
//! ```
//!
//! Blocks of one key go round in one lane, in the order they were freed; large and small blocks have lanes of their
//! own. A slot keeps which epochs of which columns must be over, two at most. While they are not known to be, the
//! block counts as waiting; once somebody looks and finds that they are, as free. How much waits is summed up when
//! somebody asks, so that a pair of calls need not count it. Everything is changed under the shard's flag.

use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{self, OnceLock};

use super::counts::Amounts;
use super::key::{hash, is_small, len_of};
use super::streams::{Streams, Use};
use super::uses::COLUMNS;

/// Blocks of one key in a shard, at most.
const SLOTS: usize = if sync::SMALLEST {
    2
} else if sync::SMALL {
    8
} else {
    512
};
/// Keys a shard can have blocks of, of one kind.
const LANES: usize = if sync::SMALL { 2 } else { 16 };
/// Slots of all lanes of both kinds.
const ALL: usize = SLOTS * LANES * 2;

/// A block in a lane.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    /// Its address; zero when the slot is vacant.
    pub(super) address: AtomicU64,
    /// Bytes it was last asked for with.
    pub(super) requested: AtomicU64,
    /// What must be over: a [`Use`], with the column of another one (plus one, shifted left by 4) where there are two;
    /// zero once all is known to be.
    uses: AtomicU64,
    /// The epoch of the other.
    second: AtomicU64,
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
    /// How many blocks there may be.
    most: AtomicU32,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Ring {
    /// Those of large blocks, then those of small ones.
    lanes: [Lane; 2 * LANES],
    /// What is known of all lanes of a kind.
    kinds: [Kind; 2],
    /// Those of each lane together. Made when there is the first block.
    slots: OnceLock<Box<[Waiter; ALL]>>,
}

/// What is known of the large or the small blocks together.
#[derive(Debug, Default)]
struct Kind {
    /// Lanes with blocks.
    open: AtomicU32,
    /// What was known to be over when they were last swept.
    swept: AtomicU32,
    /// Whether any are known to be over since they were last taken out.
    over: AtomicBool,
    /// The sum of all positions when what waits was last summed up.
    summed: AtomicU32,
    /// What waited then.
    sums: [AtomicI64; 3],
}

/// The number of the lane a key would have; the neighbour of that will do as well.
#[inline]
fn number_of(key: u64) -> usize {
    usize::from(is_small(key)) * LANES + hash(key, LANES.ilog2()) % LANES
}

/// The numbers of all lanes of a kind.
fn numbers(small: bool) -> core::ops::Range<usize> {
    let first = usize::from(small) * LANES;
    first..first + LANES
}

impl Ring {
    /// Whether there is no block of that kind.
    #[inline]
    pub(super) fn is_empty(&self, small: bool) -> bool {
        self.lanes[numbers(small)].iter().all(Lane::is_empty)
    }

    /// Whether that slot holds the block that begins at `address`.
    #[inline]
    pub(super) fn holds(&self, at: usize, address: u64) -> bool {
        let slot = self.slots.get().and_then(|slots| slots.get(at));
        slot.is_some_and(|slot| slot.address.load(Relaxed) == address)
    }

    /// The number of the lane of a key, if there are blocks of that key.
    #[inline]
    pub(super) fn lane(&self, key: u64) -> Option<usize> {
        let number = number_of(key);
        let is_it = |number: &usize| self.lanes[*number].key.load(Relaxed) == key;
        Some(number).filter(is_it).or_else(|| Some(number ^ 1).filter(is_it))
    }

    /// Adds a block; returns its slot, if there is one. `most` is asked how many bytes of this key there may be when there
    /// was no block of it; one block there may be in any case.
    #[inline]
    pub(super) fn push(
        &self,
        (address, key): (u64, u64),
        requested: u64,
        epoch: u32,
        uses: [Use; 2],
        most: impl FnOnce() -> u64,
    ) -> Option<usize> {
        let number = match self.lane(key) {
            Some(number) => number,
            None => self.open(key, most())?,
        };
        let lane = &self.lanes[number];
        let (head, tail) = (lane.head.load(Relaxed), lane.tail.load(Relaxed));
        if tail.wrapping_sub(head) >= lane.most.load(Relaxed) {
            return None;
        }
        let at = number * SLOTS + tail as usize % SLOTS;
        let slot = &self.slots.get_or_init(|| super::map::boxed(|_| Waiter::default()))[at];
        slot.address.store(address, Relaxed);
        slot.requested.store(requested, Relaxed);
        slot.set_uses(uses);
        slot.epoch.store(epoch, Relaxed);
        lane.tail.store(tail.wrapping_add(1), Relaxed);
        Some(at)
    }

    /// The slot of the oldest block of a lane, where it has one.
    #[inline]
    pub(super) fn first(&self, number: usize) -> Option<&Waiter> {
        let head = self.lanes[number].head.load(Relaxed) as usize;
        self.slots.get().map(|slots| &slots[number * SLOTS + head % SLOTS])
    }

    /// Takes the oldest block of a lane out.
    #[inline]
    pub(super) fn pop(&self, number: usize, slot: &Waiter) {
        slot.address.store(0, Relaxed);
        let lane = &self.lanes[number];
        let head = lane.head.load(Relaxed).wrapping_add(1);
        lane.head.store(head, Relaxed);
        if head == lane.tail.load(Relaxed) {
            self.close(lane);
        }
    }

    /// Lets an empty lane have blocks of this key, if there is one for it.
    #[cold]
    #[inline(never)]
    fn open(&self, key: u64, most: u64) -> Option<usize> {
        let number = number_of(key);
        let number = [number, number ^ 1].into_iter().find(|&number| self.lanes[number].is_empty())?;
        let lane = &self.lanes[number];
        lane.key.store(key, Relaxed);
        lane.limit(most);
        let open = &self.kind(is_small(key)).open;
        open.store(open.load(Relaxed) + 1, Relaxed);
        Some(number)
    }

    /// The last block has left a lane.
    #[cold]
    #[inline(never)]
    fn close(&self, lane: &Lane) {
        let open = &self.kind(is_small(lane.key.swap(0, Relaxed))).open;
        open.store(open.load(Relaxed) - 1, Relaxed);
    }

    /// Lanes with blocks: of large ones, of small ones.
    pub(super) fn open_lanes(&self) -> [u32; 2] {
        [&self.kinds[0], &self.kinds[1]].map(|kind| kind.open.load(Relaxed))
    }

    /// Whether the oldest block of a lane, if there is one, is over.
    #[inline]
    pub(super) fn is_ready(&self, number: usize, streams: &Streams, most: &AtomicU64) -> bool {
        let lane = &self.lanes[number];
        lane.head.load(Relaxed) != lane.ready.load(Relaxed) || self.look(number, streams, most)
    }

    /// Finds out how many blocks of a lane, from the oldest on, are over; whether there are any. From now on the lane
    /// may have `most` bytes of blocks.
    #[cold]
    #[inline(never)]
    fn look(&self, number: usize, streams: &Streams, most: &AtomicU64) -> bool {
        let mut judge = Judge::new(streams);
        let ready = self.blocks(number).take_while(|slot| judge.is_over(slot)).count();
        let lane = &self.lanes[number];
        lane.limit(most.load(Relaxed));
        lane.ready.store(lane.head.load(Relaxed).wrapping_add(ready as u32), Relaxed);
        ready != 0
    }

    /// The blocks of a lane, from the oldest on.
    #[inline]
    fn blocks(&self, number: usize) -> impl Iterator<Item = &Waiter> {
        let lane = &self.lanes[number];
        let (head, tail) = (lane.head.load(Relaxed), lane.tail.load(Relaxed));
        let slots = self.slots.get().map_or(&[][..], |slots| &slots[number * SLOTS..][..SLOTS]);
        let (begin, len) = (head as usize % SLOTS, tail.wrapping_sub(head) as usize);
        let (wrapped, rest) = slots.split_at(begin.min(slots.len()));
        let first = &rest[..len.min(rest.len())];
        first.iter().chain(&wrapped[..len - first.len()])
    }

    /// All blocks of a kind, and their keys.
    pub(super) fn all(&self, small: bool) -> impl Iterator<Item = (&Waiter, u64)> {
        numbers(small).filter(|&number| !self.lanes[number].is_empty()).flat_map(|number| {
            let key = self.lanes[number].key.load(Relaxed);
            self.blocks(number).map(move |slot| (slot, key))
        })
    }

    /// Whether there may be no more blocks in a lane.
    pub(super) fn is_full(&self, number: usize) -> bool {
        let lane = &self.lanes[number];
        lane.tail.load(Relaxed).wrapping_sub(lane.head.load(Relaxed)) >= lane.most.load(Relaxed)
    }

    /// Looks at all blocks of a kind (and their keys), those of each key from the oldest on, and takes those out
    /// that `leaves` says are leaving. `moved` is told of those that get another slot.
    pub(super) fn take_out(
        &self,
        small: bool,
        mut leaves: impl FnMut(&Waiter, u64) -> bool,
        mut moved: impl FnMut(u64, usize),
    ) {
        let Some(slots) = self.slots.get() else { return };
        for number in numbers(small) {
            let (lane, slots) = (&self.lanes[number], &slots[number * SLOTS..][..SLOTS]);
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
                    self.close(lane);
                }
                self.forget_sums(small);
            }
        }
    }

    fn forget_sums(&self, small: bool) {
        // From here on positions only rise, until somebody forgets the sums again.
        self.kind(small).summed.store(self.positions(small).wrapping_sub(1), Relaxed);
    }

    /// Whether there may be blocks of that kind that wait no more.
    #[inline]
    pub(super) fn may_be_over(&self, small: bool, streams: &Streams) -> bool {
        let kind = self.kind(small);
        (kind.over.load(Relaxed) || kind.swept.load(Relaxed) != streams.known()) && !self.is_empty(small)
    }

    /// All of that kind that are over are being taken out; whether there are any.
    pub(super) fn set_none_over(&self, small: bool) -> bool {
        self.kind(small).over.swap(false, Relaxed)
    }

    /// Notes which blocks of a kind are over, if anything new is known since the last time; `over` gets each, with
    /// its key.
    pub(super) fn sweep(&self, small: bool, streams: &Streams, mut over: impl FnMut(&Waiter, u64)) {
        let kind = self.kind(small);
        let now = streams.known();
        if kind.swept.load(Relaxed) == now {
            return;
        }
        let mut judge = Judge::new(streams);
        let mut any = false;
        self.all(small).for_each(|(slot, key)| {
            if judge.is_over(slot) && slot.waits() {
                slot.uses.store(0, Relaxed);
                any = true;
                over(slot, key);
            }
        });
        kind.swept.store(now, Relaxed);
        if any {
            kind.over.store(true, Relaxed);
            self.forget_sums(small);
        }
    }

    /// What of a kind waits: blocks, bytes, requested bytes.
    pub(super) fn waiting(&self, small: bool) -> Amounts {
        let (kind, positions) = (self.kind(small), self.positions(small));
        if kind.summed.swap(positions, Relaxed) != positions {
            let mut sums = Amounts::default();
            self.all(small).filter(|(slot, _)| slot.waits()).for_each(|(slot, key)| {
                let amounts = [1, len_of(key) as i64, slot.requested.load(Relaxed) as i64];
                sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
            });
            kind.sums.iter().zip(sums).for_each(|(to, sum)| to.store(sum, Relaxed));
        }
        core::array::from_fn(|quantity| kind.sums[quantity].load(Relaxed))
    }

    /// A number that changes whenever a block of that kind comes or goes.
    fn positions(&self, small: bool) -> u32 {
        let both = |lane: &Lane| lane.head.load(Relaxed).wrapping_add(lane.tail.load(Relaxed));
        self.lanes[numbers(small)].iter().fold(0, |sum, lane| sum.wrapping_add(both(lane)))
    }

    #[inline]
    fn kind(&self, small: bool) -> &Kind {
        &self.kinds[usize::from(small)]
    }
}

/// Tells which blocks are over. Many in a row wait for the same, which is judged once.
struct Judge<'a> {
    streams: &'a Streams,
    /// What was judged last, if it stands alone, and how.
    last: (Use, bool),
}

impl<'a> Judge<'a> {
    fn new(streams: &'a Streams) -> Self {
        Self { streams, last: (Use::default(), true) }
    }

    #[inline(always)]
    fn is_over(&mut self, slot: &Waiter) -> bool {
        if slot.uses.load(Relaxed) == self.last.0.0 { self.last.1 } else { self.judge(slot.uses()) }
    }

    fn judge(&mut self, [first, second]: [Use; 2]) -> bool {
        let over = self.streams.is_over(first) && self.streams.is_over(second);
        if second == Use::default() {
            self.last = (first, over);
        }
        over
    }
}

impl Lane {
    /// Lets it have so many bytes of blocks, or one block.
    fn limit(&self, most: u64) {
        let blocks = most / len_of(self.key.load(Relaxed)).max(1);
        self.most.store(blocks.clamp(1, SLOTS as u64) as u32, Relaxed);
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
        self.uses.load(Relaxed) != 0
    }

    /// What must be over; a use that is zero stands for nothing.
    pub(super) fn uses(&self) -> [Use; 2] {
        let uses = self.uses.load(Relaxed);
        let column = uses >> 4 & 0xF;
        let second = if column == 0 { 0 } else { self.second.load(Relaxed) << 8 | column };
        [Use(uses & !0xF0), Use(second)]
    }

    #[inline]
    fn set_uses(&self, [first, second]: [Use; 2]) {
        if second != Use::default() {
            self.second.store(second.0 >> 8, Relaxed);
        }
        self.uses.store(first.0 | (second.0 & 0xF) << 4, Relaxed);
    }

    fn replace_by(&self, from: &Self) {
        self.address.store(from.address.swap(0, Relaxed), Relaxed);
        self.requested.store(from.requested.load(Relaxed), Relaxed);
        self.uses.store(from.uses.load(Relaxed), Relaxed);
        self.second.store(from.second.load(Relaxed), Relaxed);
        self.epoch.store(from.epoch.load(Relaxed), Relaxed);
    }
}

/// Both columns of a waiter have room beside each other.
const _: () = assert!(COLUMNS < 16);
