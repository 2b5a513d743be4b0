//! Shards: where freed blocks wait for the next request of the same size on the same stream.
//!
//! ```text
//! small blocks   128 sets of 2 slots; size and stream choose the set; they rest until they are wanted
//! large blocks   one queue of 16 slots in the order they were freed; the core takes the whole queue
//!                back before it next serves this shard, so that it places large blocks as if each
//!                free had reached it at once; unless that served nothing but what was just taken back
//! both           a ring for those that other streams may still use
//! ```
//!
//! Streams are spread over the shards of their device. A shard's counts of allocations and frees are
//! its own, so that two threads on two streams share no cache line.

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::counts::Counts;
use super::key::{hash, len_of, place_of};
use super::lane::{Lane, Waiter};
use super::map::{AddressMap, Head};
use super::returning::Returning;
use super::ring::Ring;
use super::streams::Streams;
use crate::core::block::BlockId;
use crate::core::snapshot::Resting;
use crate::core::stream::StreamId;
use crate::core::tally::{Columns, Flow, Split};
use crate::history::Action;
use crate::history::log::{Noter, Said};
use crate::sync::{self, Flag};

/// Sets of a shard.
const SETS: usize = if sync::SMALLEST {
    2
} else if sync::SMALL {
    4
} else {
    128
};
/// Slots of a set.
const WAYS: usize = 2;
/// Slots for small blocks; those of the queue follow.
pub(super) const SMALL: usize = SETS * WAYS;
/// Slots of the queue of large blocks.
pub(super) const QUEUE: usize = if sync::SMALLEST { 2 } else { 16 };

/// Where in a shard the slots of the ring begin.
pub(super) const RING: usize = SMALL + QUEUE;

/// A block at rest.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Its address.
    pub(super) address: AtomicU64,
    /// Its length in bytes, shifted left by 5, its column in the statistics (bit 13), and its
    /// stream's place; zero when empty.
    pub(super) key: AtomicU64,
    /// The epoch in which it was freed.
    pub(super) epoch: AtomicU32,
    /// Bytes it was last asked for with.
    pub(super) requested: AtomicU64,
}

/// Blocks and counts of some of the streams.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Shard {
    pub(super) flag: Flag,
    /// Whether anything ever rested here; until then there is nothing to sum up.
    pub(super) used: AtomicBool,
    /// Whether there may be small blocks in the sets.
    pub(super) held: AtomicBool,
    /// Large blocks in the queue; they are in its first slots, oldest first.
    pub(super) queued: AtomicU32,
    /// Frees of blocks that rested here, where idle memory goes back now and then; not counted elsewhere.
    pub(super) counted: AtomicU32,
    /// Whether the queue stays when the core serves this shard.
    pub(super) returning: Returning,
    /// Of large and small blocks, in this order.
    pub(super) counts: [Counts; 2],
    pub(super) slots: Box<[Slot; SMALL + QUEUE]>,
    /// Blocks that other streams may still use.
    pub(super) ring: Ring,
    /// Where what happens here is noted.
    pub(super) noter: Noter,
}

impl Shard {
    /// An empty one.
    pub(super) fn new(noter: Noter) -> Self {
        Self {
            flag: Flag::default(),
            used: AtomicBool::new(false),
            held: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            counted: AtomicU32::new(0),
            returning: Returning::default(),
            counts: Default::default(),
            slots: super::map::boxed(|_| Slot::default()),
            ring: Ring::default(),
            noter,
        }
    }
}

/// A block that leaves the front for the core.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rested {
    /// The block.
    pub(crate) block: BlockId,
    /// The epoch of its home in which it was freed.
    pub(crate) epoch: u32,
    /// Bytes it was last asked for with.
    pub(crate) requested: u64,
    /// The streams that may still use it, and the epoch each has to pass.
    pub(crate) users: [Option<(StreamId, u32)>; 2],
}

#[inline]
fn set_of(key: u64) -> usize {
    hash(key, SETS.ilog2()) % SETS * WAYS
}

impl Shard {
    /// The slot that holds a block of this key: of a set, or the latest in the queue.
    #[inline(always)]
    pub(super) fn find(&self, key: u64, small: bool) -> Option<usize> {
        if small {
            let set = set_of(key);
            let is_it = |at: &usize| self.slots[*at].key.load(Relaxed) == key;
            return Some(set).filter(is_it).or_else(|| Some(set + 1).filter(is_it));
        }
        let queued = self.queued.load(Relaxed) as usize;
        (SMALL..SMALL + queued.min(QUEUE)).rev().find(|&at| self.slots[at].key.load(Relaxed) == key)
    }

    /// Notes that something rests here.
    #[inline(always)]
    pub(super) fn set_used(&self) {
        // A store is dear just before the flag is taken the next time; a look is not.
        if !self.used.load(Relaxed) {
            self.used.store(true, Relaxed);
        }
    }

    /// A slot for a freed block: one that is empty of the key's set, or the next of the queue.
    #[inline(always)]
    pub(super) fn vacant(&self, key: u64, small: bool) -> Option<usize> {
        if small {
            let set = set_of(key);
            let is_empty = |at: &usize| self.slots[*at].key.load(Relaxed) == 0;
            return Some(set).filter(is_empty).or_else(|| Some(set + 1).filter(is_empty));
        }
        let queued = self.queued.load(Relaxed) as usize;
        (queued < QUEUE).then_some(SMALL + queued)
    }

    /// Whether the block that begins at `address`, and rested in that slot the last time, does so now.
    #[inline(always)]
    pub(super) fn holds(&self, at: usize, address: u64) -> bool {
        match self.ring.lane_of(at.wrapping_sub(RING)) {
            Some((lane, at)) => lane.holds(at, address),
            None => self.slots.get(at).is_some_and(|slot| slot.address.load(Relaxed) == address),
        }
    }

    /// Takes a block out of its slot.
    #[inline(always)]
    pub(super) fn remove(&self, at: usize, map: &AddressMap) {
        if at < SMALL {
            self.slots[at].address.store(0, Relaxed);
            self.slots[at].key.store(0, Relaxed);
        } else {
            self.unqueue(at, map);
        }
    }

    /// Takes a slot out of the queue; the later ones move up.
    #[inline(always)]
    fn unqueue(&self, at: usize, map: &AddressMap) {
        let last = SMALL + self.queued.load(Relaxed) as usize - 1;
        if at < last {
            self.close_gap(at, last, map);
        }
        self.slots[last].address.store(0, Relaxed);
        self.slots[last].key.store(0, Relaxed);
        self.queued.store((last - SMALL) as u32, Relaxed);
    }

    /// Moves later ones of the queue up to a slot that becomes vacant.
    #[inline(never)]
    fn close_gap(&self, at: usize, last: usize, map: &AddressMap) {
        // Where the queue stays its order means nothing.
        let from = if self.returning.stays() { last } else { at + 1 };
        (from..=last).zip(at..).for_each(|(from, to)| self.move_slot(from, to, map));
    }

    /// Moves a block of the queue to another slot.
    fn move_slot(&self, from: usize, to: usize, map: &AddressMap) {
        let (source, slot) = (&self.slots[from], &self.slots[to]);
        slot.key.store(source.key.load(Relaxed), Relaxed);
        slot.address.store(source.address.load(Relaxed), Relaxed);
        slot.epoch.store(source.epoch.load(Relaxed), Relaxed);
        slot.requested.store(source.requested.load(Relaxed), Relaxed);
        note_move(map, slot.address.load(Relaxed), to);
    }

    /// Takes everything out; the blocks leave the address map.
    pub(super) fn drain(&self, map: &AddressMap, streams: &Streams, each: &mut impl FnMut(Rested)) {
        self.empty(map, 0..SMALL, each);
        self.held.store(false, Relaxed);
        self.drain_ring(true, map, true, streams, each);
        self.empty(map, SMALL..SMALL + QUEUE, each);
        self.queued.store(0, Relaxed);
        self.drain_ring(false, map, true, streams, each);
        self.returning.forget();
    }

    /// Takes the queue out, and large blocks that other streams have passed since.
    #[inline]
    pub(super) fn drain_queue(&self, map: &AddressMap, streams: &Streams, each: &mut impl FnMut(Rested)) {
        let queued = self.queued.load(Relaxed) as usize;
        if queued > 0 {
            let slots = SMALL..SMALL + queued.min(QUEUE);
            if self.returning.is_noting() {
                let keys = self.slots[slots.clone()].iter().map(|slot| slot.key.load(Relaxed));
                keys.for_each(|key| self.returning.note_taken(key));
            }
            self.empty(map, slots, each);
            self.queued.store(0, Relaxed);
        }
        if self.may_have_passed(streams) {
            self.drain_ring(false, map, false, streams, each);
        }
    }

    /// Whether there is anything for [`drain_queue`](Self::drain_queue).
    #[inline]
    pub(super) fn has_queue(&self, streams: &Streams) -> bool {
        !self.returning.stays() && (self.queued.load(Relaxed) != 0 || self.may_have_passed(streams))
    }

    /// Whether large blocks wait that other streams may have passed since somebody last looked.
    #[inline]
    fn may_have_passed(&self, streams: &Streams) -> bool {
        self.ring.may_be_over(false, streams)
    }

    /// Whether there is anything for [`drain`](Self::drain).
    pub(super) fn has_any(&self) -> bool {
        let waiting = !self.ring.is_empty(true) || !self.ring.is_empty(false);
        self.held.load(Relaxed) || self.queued.load(Relaxed) != 0 || waiting
    }

    /// Empties slots; their blocks leave the address map.
    fn empty(&self, map: &AddressMap, slots: core::ops::Range<usize>, each: &mut impl FnMut(Rested)) {
        for slot in self.slots[slots].iter().filter(|slot| slot.key.load(Relaxed) != 0) {
            slot.key.store(0, Relaxed);
            if let Some((_, entry)) = map.find(slot.address.swap(0, Relaxed)) {
                let (_, block) = entry.body();
                entry.set_head(Head::NOTHING);
                let (epoch, requested) = (slot.epoch.load(Relaxed), slot.requested.load(Relaxed));
                each(Rested { block, epoch, requested, users: [None; 2] });
            }
        }
    }

    /// Takes the blocks of a kind out of the ring: all, or those that wait no more.
    fn drain_ring(
        &self,
        small: bool,
        map: &AddressMap,
        all: bool,
        streams: &Streams,
        each: &mut impl FnMut(Rested),
    ) {
        self.sweep(small, streams);
        let any = self.ring.set_none_over(small);
        if any || all {
            self.empty_lanes(small, map, |_| true, all, streams, each);
        }
    }

    /// Takes the blocks out of lanes that nothing has left since the last time; with those that wait.
    pub(super) fn drain_idle(&self, map: &AddressMap, streams: &Streams, each: &mut impl FnMut(Rested)) {
        for small in [true, false] {
            if !self.ring.is_empty(small) {
                self.sweep(small, streams);
                self.empty_lanes(small, map, |lane| !lane.is_empty() && lane.is_idle(), true, streams, each);
            }
        }
    }

    /// Takes blocks out of lanes that are `meant`: all, or those that wait no more.
    fn empty_lanes(
        &self,
        small: bool,
        map: &AddressMap,
        meant: impl Fn(&Lane) -> bool,
        all: bool,
        streams: &Streams,
        each: &mut impl FnMut(Rested),
    ) {
        let leaves = |slot: &Waiter, key: u64| {
            if !all && slot.waits() {
                return false;
            }
            if !small && !all {
                self.returning.note_passed(key);
            }
            let requested = slot.requested.load(Relaxed);
            let mut users = [None; 2];
            if slot.waits() {
                self.counts(small).hand_over(len_of(key), requested);
                users = slot.uses().map(|one| streams.resolve(one).filter(|_| !streams.is_over(one)));
            }
            if let Some((_, entry)) = map.find(slot.address.load(Relaxed)) {
                let (_, block) = entry.body();
                entry.set_head(Head::NOTHING);
                each(Rested { block, epoch: slot.epoch.load(Relaxed), requested, users });
            }
            true
        };
        self.ring.take_out(small, meant, leaves, |address, at| note_move(map, address, RING + at));
    }

    /// What a column of the statistics counts.
    #[inline]
    pub(super) fn counts(&self, small: bool) -> &Counts {
        &self.counts[usize::from(small)]
    }

    /// Counts what waits no more as free.
    fn sweep(&self, small: bool, streams: &Streams) {
        self.ring.sweep(small, streams, |slot, key| {
            let (address, requested) = (slot.address.load(Relaxed), slot.requested.load(Relaxed));
            let (len, stream) = (len_of(key), streams.handle(place_of(key)));
            self.counts(small).wait_over(len, requested);
            self.noter.note(Said::of_block(Action::FreeCompleted, address, len, requested, stream));
        });
    }

    /// Counts what waits no more as free, in both columns.
    pub(super) fn sweep_all(&self, streams: &Streams) {
        self.sweep(true, streams);
        self.sweep(false, streams);
    }

    /// Its sums. What was not looked at since its streams have passed counts as waiting.
    pub(super) fn flow(&self) -> Flow {
        let mut flow = Flow::default();
        for (at, small) in [true, false].into_iter().enumerate() {
            let waiting = self.ring.waiting(small);
            let read = self.counts(small).read(waiting);
            for (quantity, waits) in waiting.into_iter().enumerate() {
                flow.up[quantity][at] = read.up[quantity];
                flow.down[quantity][at] = read.up[quantity] - read.out[quantity];
                flow.waiting[quantity][at] = waits;
            }
        }
        flow
    }

    /// Takes from `left` what the columns wished, where there is enough of it.
    pub(super) fn wish_from(&self, left: &mut Columns) -> Split {
        let mut room = Split::default();
        for (column, small) in [true, false].into_iter().enumerate() {
            let Some(wish) = self.counts(small).wish() else { continue };
            let fits = |(quantity, wish): (usize, &i64)| {
                let left = &left[quantity];
                *wish <= left[0].min(left[1 + column])
            };
            if wish.iter().enumerate().all(fits) {
                for (quantity, wish) in wish.into_iter().enumerate() {
                    left[quantity][0] -= wish;
                    left[quantity][1 + column] -= wish;
                    room[quantity][column] = wish;
                }
            }
        }
        room
    }

    /// Gives each column this room instead of what it has.
    pub(super) fn set_room(&self, room: &Split) {
        for (column, small) in [true, false].into_iter().enumerate() {
            self.counts(small).set_room(room.map(|columns| columns[column]));
        }
    }

    /// Adds the blocks here to `all`.
    pub(super) fn list(&self, streams: &Streams, all: &mut Vec<Resting>) {
        self.sweep_all(streams);
        for slot in self.slots.iter().filter(|slot| slot.key.load(Relaxed) != 0) {
            all.push(Resting {
                address: slot.address.load(Relaxed),
                len: len_of(slot.key.load(Relaxed)),
                requested: slot.requested.load(Relaxed),
                waits: false,
            });
        }
        for small in [false, true] {
            all.extend(self.ring.all(small).map(|(slot, key)| Resting {
                address: slot.address.load(Relaxed),
                len: len_of(key),
                requested: slot.requested.load(Relaxed),
                waits: slot.waits(),
            }));
        }
    }
}

/// Notes that a resting block has another slot.
fn note_move(map: &AddressMap, address: u64, at: usize) {
    if let Some((_, entry)) = map.find(address) {
        entry.set_rests_at(at);
    }
}
