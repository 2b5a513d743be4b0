//! Shards: where freed blocks wait for the next request of the same size on the same stream.
//!
//! ```text
//! small blocks   128 sets of 2 slots; size and stream choose the set; they rest until they are wanted
//! large blocks   one queue of 16 slots in the order they were freed; the core takes the whole queue
//!                back before it next serves this shard, so that it places large blocks as if each
//!                free had reached it at once
//! ```
//!
//! Streams are spread over the shards of their device. A shard's counts of allocations and frees are
//! its own, so that two threads on two streams share no cache line.

use core::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed};

use super::map::{AddressMap, Entry, Head, NO_SLOT};
use crate::core::block::BlockId;
use crate::core::stream::StreamId;
use crate::core::tally::{Flow, Split};
use crate::driver::Stream;
use crate::sync::{Flag, FlagGuard};

/// Shards of a device.
pub(crate) const SHARDS: usize = 32;
/// Sets of a shard.
const SETS: usize = 128;
/// Slots of a set.
const WAYS: usize = 2;
/// Slots for small blocks; those of the queue follow.
const SMALL: usize = SETS * WAYS;
/// Slots of the queue of large blocks.
const QUEUE: usize = 16;
/// Places for streams; those beyond go to the core each time.
const STREAMS: usize = 4096;
/// Places looked at for a stream.
const PROBES: usize = 8;
/// Marks a stream's place as free for another.
const VACATED: u64 = u64::MAX;
/// Marks the place of a destroyed stream that blocks still refer to.
const DISMISSED: u64 = u64::MAX - 1;

/// A block at rest.
#[derive(Debug, Default)]
struct Slot {
    /// Its address.
    address: AtomicU64,
    /// Its length in bytes, shifted left by 5, its column in the statistics (bit 13), and its
    /// stream's place; zero when empty.
    key: AtomicU64,
    /// The epoch in which it was freed.
    epoch: AtomicU32,
    /// Bytes it was last asked for with.
    requested: AtomicU64,
}

/// A stream that the front knows.
#[derive(Debug, Default)]
struct StreamPlace {
    /// The raw handle plus one; zero when the place was never used.
    handle: AtomicU64,
    /// The number the core knows it by.
    id: AtomicU32,
    /// The stream's open epoch, or zero when nothing of it may rest; changed only under the flag of
    /// its shard.
    epoch: AtomicU32,
}

/// What a shard counts of one column of the statistics, by quantity (count, bytes, requested bytes).
#[derive(Debug, Default)]
struct Column {
    /// Sums of what was handed out.
    up: [AtomicI64; 3],
    /// How much more may be handed out before the device's peaks must be looked at.
    room: [AtomicI64; 3],
    /// What is out plus `room`: constant except when room is dealt out.
    sum: [AtomicI64; 3],
}

/// Blocks and counts of some of the streams.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    flag: Flag,
    /// Whether anything ever rested here; until then there is nothing to sum up.
    used: AtomicBool,
    /// Whether there may be small blocks in the sets.
    held: AtomicBool,
    /// Large blocks in the queue; they are in its first slots, oldest first.
    queued: AtomicU32,
    /// Large and small blocks, in this order.
    columns: [Column; 2],
    slots: Box<[Slot; SMALL + QUEUE]>,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            flag: Flag::default(),
            used: AtomicBool::new(false),
            held: AtomicBool::new(false),
            queued: AtomicU32::new(0),
            columns: Default::default(),
            slots: super::map::boxed(|_| Slot::default()),
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
}

/// What became of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block rests in a slot.
    Done,
    /// The core has to take it back.
    ByCore,
}

/// The front cache of one device.
#[derive(Debug)]
pub(crate) struct Front {
    shards: Box<[Shard; SHARDS]>,
    streams: Box<[StreamPlace; STREAMS]>,
    /// Whether freed blocks may rest here at all.
    enabled: AtomicBool,
}

#[inline]
fn key_of(len: u64, place: u16, small: bool) -> u64 {
    (len << 5) | (u64::from(small) << 13) | u64::from(place)
}

#[inline]
fn set_of(key: u64) -> usize {
    (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 57) as usize % SETS * WAYS
}

impl Front {
    /// An empty front that knows the default stream, as number 0 with epoch 1, in place 0.
    pub(crate) fn new(enabled: bool) -> Self {
        let front = Self {
            shards: super::map::boxed(|_| Shard::default()),
            streams: super::map::boxed(|_| StreamPlace::default()),
            enabled: AtomicBool::new(enabled),
        };
        front.streams[0].epoch.store(u32::from(enabled), Relaxed);
        front.streams[0].handle.store(1, Relaxed);
        front
    }

    /// Switches the cache. The epochs of all streams must be set anew, and what rests drained, afterwards.
    pub(crate) fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Relaxed);
    }

    /// The address of a resting block of exactly `len` bytes that `stream` freed.
    #[inline]
    pub(crate) fn take(
        &self,
        map: &AddressMap,
        stream: Stream,
        len: u64,
        requested: u64,
        small: bool,
    ) -> Option<u64> {
        let place = self.place_of(stream)?;
        let shard = self.shard(place);
        let key = key_of(len, place, small);
        // A look without the flag spares it when there is nothing; what is seen is looked at again.
        let at = shard.find(key, small)?;
        let _guard = shard.flag.try_lock()?;
        let at = if shard.slots[at].key.load(Relaxed) == key { at } else { shard.find(key, small)? };
        if !shard.charge(small, len, requested) {
            return None;
        }
        let slot = &shard.slots[at];
        let address = slot.address.load(Relaxed);
        if slot.requested.load(Relaxed) != requested
            && let Some((_, entry)) = map.find(address)
        {
            entry.set_head(entry.head().with_requested(requested));
        }
        if small {
            slot.key.store(0, Relaxed)
        } else {
            shard.unqueue(at)
        }
        Some(address)
    }

    /// Lets a freed block rest, if there is room for it.
    #[inline]
    pub(crate) fn put(&self, entry: &Entry, address: u64, small: bool) -> Freed {
        let head = entry.head();
        let place = head.slot();
        let Some(stream) = self.streams.get(place as usize) else { return Freed::ByCore };
        let shard = self.shard(place);
        let Some(_guard) = shard.flag.try_lock() else { return Freed::ByCore };
        let epoch = stream.epoch.load(Relaxed);
        if entry.head() != head || epoch == 0 {
            return Freed::ByCore;
        }
        let (len, _) = entry.body();
        let key = key_of(len, place, small);
        let Some(at) = shard.vacant(key, address, small) else { return Freed::ByCore };
        shard.used.store(true, Relaxed);
        let slot = &shard.slots[at];
        slot.key.store(key, Relaxed);
        slot.address.store(address, Relaxed);
        slot.epoch.store(epoch, Relaxed);
        slot.requested.store(head.requested(), Relaxed);
        if small {
            shard.held.store(true, Relaxed);
        } else {
            shard.queued.store((at - SMALL) as u32 + 1, Relaxed);
        }
        shard.refund(small, len, head.requested());
        Freed::Done
    }

    /// Whether the block of this entry rests. Called under the flag of its shard.
    pub(crate) fn rests(&self, entry: &Entry, address: u64, small: bool) -> bool {
        let place = entry.head().slot();
        let key = key_of(entry.body().0, place, small);
        place != NO_SLOT && self.shard(place).holds(key, address, small)
    }

    /// The number the core knows a stream by, if the front knows the stream.
    #[inline]
    pub(crate) fn core_id(&self, stream: Stream) -> Option<(u16, StreamId)> {
        let place = self.place_of(stream)?;
        Some((place, self.streams[place as usize].id.load(Relaxed)))
    }

    /// Takes the flag that guards the entries of blocks of this stream's place.
    pub(crate) fn guard(&self, place: u16) -> Option<FlagGuard<'_>> {
        (place != NO_SLOT).then(|| self.shard(place).flag.lock())
    }

    /// The same, after the queue of that shard was taken out. Called under the device's lock.
    #[inline]
    pub(crate) fn guard_drained(
        &self,
        place: u16,
        map: &AddressMap,
        mut each: impl FnMut(Rested),
    ) -> Option<FlagGuard<'_>> {
        let guard = self.guard(place)?;
        self.shard(place).drain_queue(map, &mut each);
        Some(guard)
    }

    /// Takes all resting blocks out; `each` gets them one by one. Called under the device's lock.
    pub(crate) fn drain(&self, map: &AddressMap, mut each: impl FnMut(Rested)) {
        for shard in self.shards.iter() {
            if !shard.held.load(Relaxed) && shard.queued.load(Relaxed) == 0 {
                continue;
            }
            let _guard = shard.flag.lock();
            shard.drain(map, 0..SMALL, &mut each);
            shard.held.store(false, Relaxed);
            shard.drain(map, SMALL..SMALL + QUEUE, &mut each);
            shard.queued.store(0, Relaxed);
        }
    }

    /// Takes the queue of one shard out. Called under the device's lock.
    #[inline]
    pub(crate) fn drain_queue(&self, place: u16, map: &AddressMap, mut each: impl FnMut(Rested)) {
        let shard = self.shard(place);
        if shard.queued.load(Relaxed) == 0 {
            return;
        }
        let _guard = shard.flag.lock();
        shard.drain_queue(map, &mut each);
    }

    /// The place of a stream, made if there is room. Called under the device's lock.
    pub(crate) fn admit(&self, stream: Stream, id: StreamId, epoch: u32) -> Option<u16> {
        if let Some(place) = self.place_of(stream) {
            return Some(place);
        }
        let name = stream.0.wrapping_add(1);
        let probe = |step: usize| (start_of(stream) + step) % STREAMS;
        let free = (0..PROBES).map(probe).find(|&at| {
            let handle = self.streams[at].handle.load(Relaxed);
            handle == 0 || handle == VACATED
        })?;
        if name == 0 || name >= DISMISSED {
            return None;
        }
        let _guard = self.shard(free as u16).flag.lock();
        self.streams[free].epoch.store(self.open_epoch(epoch), Relaxed);
        self.streams[free].id.store(id, Relaxed);
        self.streams[free].handle.store(name, core::sync::atomic::Ordering::Release);
        Some(free as u16)
    }

    /// Makes the stream unknown: nothing rests under its name from now on. What does is to be drained.
    pub(crate) fn dismiss(&self, place: u16) {
        let _guard = self.shard(place).flag.lock();
        self.streams[place as usize].handle.store(DISMISSED, Relaxed);
        self.streams[place as usize].epoch.store(0, Relaxed);
    }

    /// Lets another stream have the place of a dismissed one, to which no block refers any more.
    pub(crate) fn vacate(&self, place: u16) {
        self.streams[place as usize].handle.store(VACATED, Relaxed);
    }

    /// Tells frees of the stream which epoch they belong to from now on.
    pub(crate) fn set_epoch(&self, place: u16, epoch: u32) {
        let _guard = self.shard(place).flag.lock();
        if self.streams[place as usize].handle.load(Relaxed) != DISMISSED {
            self.streams[place as usize].epoch.store(self.open_epoch(epoch), Relaxed);
        }
    }

    fn open_epoch(&self, epoch: u32) -> u32 {
        if self.enabled.load(Relaxed) { epoch } else { 0 }
    }

    /// The sums of all shards.
    pub(crate) fn flow(&self) -> Flow {
        let mut sum = Flow::default();
        for shard in self.used() {
            let _guard = shard.flag.lock();
            sum.add(&shard.flow());
        }
        sum
    }

    /// Forms the balance of all shards and takes their room away, so that none can rise until
    /// [`deal`](Self::deal) is called. Returns it and how many shards are in use.
    pub(crate) fn gather(&self) -> (Split, i64) {
        let mut sum = Flow::default();
        let mut used = 0;
        for shard in self.used() {
            let _guard = shard.flag.lock();
            let flow = shard.flow();
            shard.set_room(&flow.balance(), &Split::default());
            used += 1;
            sum.add(&flow);
        }
        (sum.balance(), used)
    }

    /// Gives each shard in use room below the peaks.
    pub(crate) fn deal(&self, share: &Split) {
        for shard in self.used() {
            let _guard = shard.flag.lock();
            shard.set_room(&shard.flow().balance(), share);
        }
    }

    /// The blocks that rest here: address, bytes and epoch. Called under the device's lock.
    pub(crate) fn resting(&self) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        for shard in self.shards.iter() {
            let _guard = shard.flag.lock();
            let full = shard.slots.iter().filter(|slot| slot.key.load(Relaxed) != 0);
            all.extend(full.map(|slot| (slot.address.load(Relaxed), slot.key.load(Relaxed) >> 14 << 9)));
        }
        all
    }

    /// Shards that have anything to tell. One that is used for the first time meanwhile has no room yet,
    /// so that it can only have counted blocks given back.
    fn used(&self) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(|shard| shard.used.load(Relaxed))
    }

    #[inline]
    fn shard(&self, place: u16) -> &Shard {
        &self.shards[place as usize % SHARDS]
    }

    #[inline]
    fn place_of(&self, stream: Stream) -> Option<u16> {
        if stream.0 == 0 {
            return Some(0);
        }
        let at = start_of(stream);
        let name = stream.0.wrapping_add(1);
        if self.streams[at].handle.load(Acquire) == name {
            return Some(at as u16);
        }
        self.probe(at, name)
    }

    /// Looks for a stream that is not where it should be.
    #[cold]
    #[inline(never)]
    fn probe(&self, start: usize, name: u64) -> Option<u16> {
        for step in 0..PROBES {
            let at = (start + step) & (STREAMS - 1);
            let handle = self.streams[at].handle.load(Acquire);
            if handle == name {
                return Some(at as u16);
            }
            if handle == 0 {
                return None;
            }
        }
        None
    }
}

#[inline]
fn start_of(stream: Stream) -> usize {
    (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 52) as usize % STREAMS
}

impl Shard {
    /// The slot that holds a block of this key: of a set, or the latest in the queue.
    #[inline]
    fn find(&self, key: u64, small: bool) -> Option<usize> {
        if small {
            let set = set_of(key);
            let is_it = |at: &usize| self.slots[*at].key.load(Relaxed) == key;
            return Some(set).filter(is_it).or(Some(set + 1).filter(is_it));
        }
        let queued = self.queued.load(Relaxed) as usize;
        (SMALL..SMALL + queued.min(QUEUE)).rev().find(|&at| self.slots[at].key.load(Relaxed) == key)
    }

    /// A slot for a freed block: one that is empty of the key's set, or the next of the queue. None when
    /// there is none, or when the block rests already.
    #[inline]
    fn vacant(&self, key: u64, address: u64, small: bool) -> Option<usize> {
        if self.holds(key, address, small) {
            return None;
        }
        if small {
            let set = set_of(key);
            let is_empty = |at: &usize| self.slots[*at].key.load(Relaxed) == 0;
            return Some(set).filter(is_empty).or(Some(set + 1).filter(is_empty));
        }
        let queued = self.queued.load(Relaxed) as usize;
        (queued < QUEUE).then_some(SMALL + queued)
    }

    /// Whether a block of this key and address rests here.
    #[inline]
    fn holds(&self, key: u64, address: u64, small: bool) -> bool {
        let is_it = |slot: &Slot| slot.address.load(Relaxed) == address && slot.key.load(Relaxed) == key;
        if small {
            let set = set_of(key);
            return is_it(&self.slots[set]) || is_it(&self.slots[set + 1]);
        }
        let queued = self.queued.load(Relaxed) as usize;
        queued > 0 && (SMALL..SMALL + queued.min(QUEUE)).any(|at| is_it(&self.slots[at]))
    }

    /// Takes a slot out of the queue; the later ones move up.
    fn unqueue(&self, at: usize) {
        let queued = self.queued.load(Relaxed) as usize;
        let last = SMALL + queued - 1;
        for at in at..last {
            let (to, from) = (&self.slots[at], &self.slots[at + 1]);
            to.key.store(from.key.load(Relaxed), Relaxed);
            to.address.store(from.address.load(Relaxed), Relaxed);
            to.epoch.store(from.epoch.load(Relaxed), Relaxed);
            to.requested.store(from.requested.load(Relaxed), Relaxed);
        }
        self.slots[last].key.store(0, Relaxed);
        self.queued.store(queued as u32 - 1, Relaxed);
    }

    /// Empties the queue.
    #[inline]
    fn drain_queue(&self, map: &AddressMap, each: &mut impl FnMut(Rested)) {
        let queued = self.queued.load(Relaxed) as usize;
        if queued > 0 {
            self.drain(map, SMALL..SMALL + queued.min(QUEUE), each);
            self.queued.store(0, Relaxed);
        }
    }

    /// Empties slots; their blocks leave the address map.
    fn drain(&self, map: &AddressMap, slots: core::ops::Range<usize>, each: &mut impl FnMut(Rested)) {
        for slot in self.slots[slots].iter().filter(|slot| slot.key.load(Relaxed) != 0) {
            slot.key.store(0, Relaxed);
            let address = slot.address.load(Relaxed);
            if let Some((_, entry)) = map.find(address) {
                let (_, block) = entry.body();
                entry.set_head(Head::NOTHING);
                each(Rested { block, epoch: slot.epoch.load(Relaxed) });
            }
        }
    }

    /// Counts a block handed out, unless there is no room for it below a peak.
    #[inline]
    fn charge(&self, small: bool, bytes: u64, requested: u64) -> bool {
        let column = &self.columns[usize::from(small)];
        let amounts = [1, bytes as i64, requested as i64];
        let left: [i64; 3] = core::array::from_fn(|q| column.room[q].load(Relaxed) - amounts[q]);
        if left[0] | left[1] | left[2] < 0 {
            return false;
        }
        for quantity in 0..3 {
            let up = &column.up[quantity];
            up.store(up.load(Relaxed) + amounts[quantity], Relaxed);
            column.room[quantity].store(left[quantity], Relaxed);
        }
        true
    }

    /// Counts a block given back.
    #[inline]
    fn refund(&self, small: bool, bytes: u64, requested: u64) {
        let column = &self.columns[usize::from(small)];
        for (room, amount) in column.room.iter().zip([1, bytes as i64, requested as i64]) {
            room.store(room.load(Relaxed) + amount, Relaxed);
        }
    }

    fn flow(&self) -> Flow {
        let mut flow = Flow::default();
        for (at, column) in [&self.columns[1], &self.columns[0]].into_iter().enumerate() {
            for quantity in 0..3 {
                let up = column.up[quantity].load(Relaxed);
                let out = column.sum[quantity].load(Relaxed) - column.room[quantity].load(Relaxed);
                flow.up[quantity][at] = up;
                flow.down[quantity][at] = up - out;
            }
        }
        flow
    }

    /// Gives each column the room of its share, where `balance` is out.
    fn set_room(&self, balance: &Split, share: &Split) {
        for (at, column) in [&self.columns[1], &self.columns[0]].into_iter().enumerate() {
            for quantity in 0..3 {
                let room = share[quantity][at];
                column.room[quantity].store(room, Relaxed);
                column.sum[quantity].store(balance[quantity][at] + room, Relaxed);
            }
        }
    }
}
