//! The front cache of one device: its shards, and the streams they know.

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;

use super::key::{is_small, key_of, len_of, place_of};
use super::lane::Lane;
use super::map::{AddressMap, Entry, NO_PLACE};
use super::shard::{RING, Rested, SMALL, Shard};
use super::streams::{PLACES, Streams, Use};
use crate::core::stream::StreamId;
use crate::driver::{DeviceId, Stream};
use crate::history::Action;
use crate::history::log::{History, Lists, Noter, Said};
use crate::sync::{self, FlagGuard};

/// Shards of a device.
const SHARDS: usize = if sync::SMALL { 2 } else { 32 };

/// Frees of a shard after which it is time to look after idle memory.
const APART: u32 = 64;

/// What became of a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The block rests in a slot.
    Done,
    /// The core has to take it back.
    ByCore,
}

/// What a request for a large block did not find.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Missed {
    /// A block of so many bytes.
    Length(u64),
    /// One that waits no more; there are some of its length.
    Waits,
}

/// What is known of a block that is being freed, before it is seen whether it is live.
struct FreedBlock<'a> {
    shard: &'a Shard,
    key: u64,
    /// Bytes it was last asked for with.
    requested: u64,
    /// The open epoch of its home.
    epoch: u32,
    /// The flag of the shard.
    _guard: FlagGuard<'a>,
}

/// The front cache of one device.
#[derive(Debug)]
pub(crate) struct Front {
    shards: Box<[Shard; SHARDS]>,
    /// Streams that have a place in each shard.
    inhabitants: [AtomicU32; SHARDS],
    streams: Streams,
    /// Bytes of the blocks of one key that may wait, if there are several: of large ones, of small ones.
    most_waiting: [AtomicU64; 2],
    /// Whether large blocks may rest in the queues.
    queues: AtomicBool,
}

impl Front {
    /// An empty front that knows the default stream, as number 0 with epoch 1, in place 0. It notes what happens in
    /// lists that [`lists`](Self::lists) made.
    pub(crate) fn new(enabled: bool, lists: &Arc<Lists>) -> Self {
        let front = Self {
            shards: super::map::boxed(|at| Shard::new(Noter::new(lists, at))),
            inhabitants: core::array::from_fn(|_| AtomicU32::new(0)),
            streams: Streams::new(enabled),
            most_waiting: Default::default(),
            queues: AtomicBool::new(true),
        };
        front.inhabitants[0].store(1, Relaxed);
        front
    }

    /// Lists for a front and its core.
    pub(crate) fn lists(history: &Arc<History>, device: DeviceId) -> Arc<Lists> {
        Lists::new(history, device, SHARDS)
    }

    /// Switches the cache. The epochs of all streams must be set anew, and what rests drained, afterwards.
    pub(crate) fn enable(&self, enabled: bool) {
        self.streams.enable(enabled);
    }

    /// The address of a resting block of exactly `len` bytes that `stream` freed. `LOG`: whether to note that, if
    /// anybody keeps events; a way without it is for calls that know that nobody does.
    #[inline]
    pub(crate) fn take<const LOG: bool>(
        &self,
        map: &AddressMap,
        stream: Stream,
        len: u64,
        requested: u64,
        small: bool,
    ) -> Option<u64> {
        let place = self.streams.place_of(stream)?;
        let shard = self.shard(place);
        let key = key_of(len, place, small);
        // A look without the flag spares it when there is nothing; what is seen is looked at again.
        let Some(at) = shard.find(key, small) else {
            let lane = shard.ring.lane(key)?;
            return self.take_waiting::<LOG>(map, shard, lane, key, stream, requested);
        };
        let _guard = shard.flag.try_lock()?;
        let at = if shard.slots[at].key.load(Relaxed) == key { at } else { shard.find(key, small)? };
        if !shard.counts(small).charge(len, requested) {
            return None;
        }
        let slot = &shard.slots[at];
        let address = slot.address.load(Relaxed);
        if slot.requested.load(Relaxed) != requested {
            note_request(map, address, requested);
        }
        shard.remove(at, map);
        if LOG {
            shard.noter.note_now(Said::of_block(Action::Allocate, address, len, requested, stream));
        }
        Some(address)
    }

    /// The same among the blocks that other streams used, where those have passed.
    #[inline(always)]
    fn take_waiting<const LOG: bool>(
        &self,
        map: &AddressMap,
        shard: &Shard,
        lane: &Lane,
        key: u64,
        stream: Stream,
        requested: u64,
    ) -> Option<u64> {
        let (ring, len) = (&shard.ring, len_of(key));
        let _guard = shard.flag.try_lock()?;
        if lane.key() != key {
            return None;
        }
        let (head, slot) = ring.ready(lane, &self.streams, self.most(is_small(key)))?;
        let last = slot.requested.load(Relaxed);
        let counts = shard.counts(is_small(key));
        let waited = slot.waits();
        let charged =
            if waited { counts.resume(len, last, requested) } else { counts.charge(len, requested) };
        if !charged {
            return None;
        }
        let address = slot.address.load(Relaxed);
        if last != requested {
            note_request(map, address, requested);
        }
        ring.pop(lane, key, head);
        if LOG {
            if waited {
                shard.noter.note_now(Said::of_block(Action::FreeCompleted, address, len, last, stream));
            }
            shard.noter.note_now(Said::of_block(Action::Allocate, address, len, requested, stream));
        }
        Some(address)
    }

    /// Lets a freed block rest, if there is room for it. `LOG` as for [`take`](Self::take).
    #[inline]
    pub(crate) fn put<const LOG: bool>(&self, entry: &Entry, address: u64) -> Freed {
        // Whoever recorded the block comes before whoever frees it.
        if entry.uses.is_touched() {
            return self.put_used::<LOG>(entry, address);
        }
        let Some(block) = self.freed(entry) else { return Freed::ByCore };
        let (shard, key) = (block.shard, block.key);
        if shard.holds(entry.rests_at(), address) {
            return Freed::ByCore;
        }
        let (small, len) = (is_small(key), len_of(key));
        if !small && !self.queues.load(Relaxed) {
            return Freed::ByCore;
        }
        let Some(at) = shard.vacant(key, small) else { return Freed::ByCore };
        shard.set_used();
        let slot = &shard.slots[at];
        slot.key.store(key, Relaxed);
        slot.address.store(address, Relaxed);
        slot.epoch.store(block.epoch, Relaxed);
        slot.requested.store(block.requested, Relaxed);
        entry.set_rests_at(at);
        if small {
            shard.held.store(true, Relaxed);
        } else {
            shard.queued.store((at - SMALL) as u32 + 1, Relaxed);
        }
        shard.counts(small).refund(len, block.requested);
        if LOG {
            self.note_free(Action::FreeCompleted, &block, address);
        }
        Freed::Done
    }

    /// The same for a block that was used on other streams: it waits in the ring until those have passed.
    #[inline(always)]
    fn put_used<const LOG: bool>(&self, entry: &Entry, address: u64) -> Freed {
        let Some(column) = entry.uses.only() else { return self.put_much_used::<LOG>(entry, address) };
        let Some(block) = self.freed(entry) else { return Freed::ByCore };
        let Some(one) = self.streams.open(column) else { return Freed::ByCore };
        let waiter = (block.requested, block.epoch, [one, Use::default()]);
        let before = entry.rests_at().wrapping_sub(RING);
        let at = match block.shard.ring.push_again(before, (address, block.key), waiter) {
            Some(at) => at,
            None => match self.push(entry, address, one, Use::default()) {
                Some(at) => at,
                None => return Freed::ByCore,
            },
        };
        entry.set_rests_at(RING + at);
        entry.uses.clear_only(column);
        if LOG {
            self.note_free(Action::FreeRequested, &block, address);
        }
        Freed::Done
    }

    /// The same where those are several, or one of the later ones.
    #[cold]
    #[inline(never)]
    fn put_much_used<const LOG: bool>(&self, entry: &Entry, address: u64) -> Freed {
        let Some(block) = self.freed(entry) else { return Freed::ByCore };
        let Some([one, two]) = self.streams.uses(entry.uses.mask()) else { return Freed::ByCore };
        let Some(at) = self.push(entry, address, one, two) else { return Freed::ByCore };
        entry.set_rests_at(RING + at);
        entry.uses.clear();
        if LOG {
            self.note_free(Action::FreeRequested, &block, address);
        }
        Freed::Done
    }

    /// Lets a block that is being freed wait in whichever lane; its slot there. Nothing where it is not live, or no lane has
    /// room. Under the flag.
    #[cold]
    #[inline(never)]
    fn push(&self, entry: &Entry, address: u64, one: Use, two: Use) -> Option<usize> {
        let head = entry.head();
        let (key, shard) = (entry.key(head), self.shard(head.place()));
        if shard.holds(entry.rests_at(), address) {
            return None;
        }
        let most = || {
            // Perhaps nothing has rested in the shard before.
            shard.set_used();
            self.most(is_small(key)).load(Relaxed)
        };
        let waiter = (head.requested(), self.streams.epoch(head.place()), [one, two]);
        shard.ring.push((address, key), waiter, most)
    }

    /// A block that is being freed, with the flag of its shard held; nothing where the core alone takes it back. Whether it is
    /// live is still to be seen.
    #[inline(always)]
    fn freed(&self, entry: &Entry) -> Option<FreedBlock<'_>> {
        let head = entry.head();
        let place = head.place();
        // `NO_PLACE` is among these; the comparison spares another one where the place is looked up.
        if usize::from(place) >= PLACES {
            return None;
        }
        let shard = self.shard(place);
        let guard = shard.flag.try_lock()?;
        let epoch = self.streams.epoch(place);
        if entry.head() != head || epoch == 0 {
            return None;
        }
        let (key, requested) = (entry.key(head), head.requested());
        Some(FreedBlock { shard, key, requested, epoch, _guard: guard })
    }

    /// Notes a free.
    fn note_free(&self, action: Action, block: &FreedBlock<'_>, address: u64) {
        let stream = self.streams.handle(place_of(block.key));
        let said = Said::of_block(action, address, len_of(block.key), block.requested, stream);
        block.shard.noter.note_now(said);
    }

    /// How many bytes of one key may wait.
    #[inline]
    fn most(&self, small: bool) -> &AtomicU64 {
        &self.most_waiting[usize::from(small)]
    }

    /// Notes that a live block is used on another stream. False where the core has to be asked: about a
    /// block that it alone frees, about a stream without a column, or because the block is not live.
    #[inline]
    pub(crate) fn record(&self, entry: &Entry, address: u64, stream: Stream) -> bool {
        let place = entry.head().place();
        let Some((user, column)) = self.streams.place_and_column(stream) else { return false };
        if usize::from(place) >= PLACES || self.shard(place).holds(entry.rests_at(), address) {
            return false;
        }
        user == place || entry.uses.try_mark(column)
    }

    /// Notes that a live block is used on another stream, if anybody keeps such events.
    pub(crate) fn note_use(&self, entry: &Entry, address: u64, stream: Stream) {
        let place = entry.head().place();
        if place == NO_PLACE {
            return;
        }
        let noter = &self.shard(place).noter;
        if noter.wants_uses() {
            let (len, _) = entry.body();
            noter.note_apart(Said::of_block(Action::StreamUse, address, len, 0, stream));
        }
    }

    /// Whether the block of this entry is in the front. For a block that somebody else may free or ask for
    /// at this moment, only under the flag of its shard.
    #[inline]
    pub(crate) fn rests(&self, entry: &Entry, address: u64) -> bool {
        let place = entry.head().place();
        place != NO_PLACE && self.shard(place).holds(entry.rests_at(), address)
    }

    /// The number the core knows a stream by, if the front knows the stream.
    #[inline]
    pub(crate) fn core_id(&self, stream: Stream) -> Option<(u16, StreamId)> {
        let place = self.streams.place_of(stream)?;
        Some((place, self.streams.id(place)))
    }

    /// Takes the flag that guards the entries of blocks of this stream's place.
    pub(crate) fn guard(&self, place: u16) -> Option<FlagGuard<'_>> {
        (place != NO_PLACE).then(|| self.shard(place).flag.lock())
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
        let shard = self.shard(place);
        if shard.has_queue(&self.streams) {
            shard.drain_queue(map, &self.streams, &mut each);
        }
        Some(guard)
    }

    /// Takes all resting blocks out; `each` gets them one by one. Called under the device's lock.
    pub(crate) fn drain(&self, map: &AddressMap, mut each: impl FnMut(Rested)) {
        for shard in self.shards.iter().filter(|shard| shard.has_any()) {
            let _guard = shard.flag.lock();
            shard.drain(map, &self.streams, &mut each);
        }
    }

    /// The same of one shard that has any, another one with each `turn`.
    pub(crate) fn drain_in_turn(&self, turn: usize, map: &AddressMap, mut each: impl FnMut(Rested)) {
        let any = || self.shards.iter().filter(|shard| shard.has_any());
        let Some(at) = turn.checked_rem(any().count()) else { return };
        if let Some(shard) = any().nth(at) {
            let _guard = shard.flag.lock();
            shard.drain(map, &self.streams, &mut each);
        }
    }

    /// Counts a free of a block of that entry, and tells whether it is time to look after what is idle.
    pub(crate) fn is_time(&self, entry: &Entry) -> bool {
        let place = entry.head().place();
        if place == NO_PLACE {
            return false;
        }
        let counted = &self.shard(place).counted;
        // Of two threads that come here at once one may not be counted, which does not matter.
        let frees = counted.load(Relaxed).wrapping_add(1);
        counted.store(frees, Relaxed);
        frees.is_multiple_of(APART)
    }

    /// How many frees there may have been since it was last time.
    pub(crate) fn unseen(&self) -> u64 {
        u64::from(APART) * self.used().count() as u64
    }

    /// Takes the blocks out of lanes that nothing has left since the last time, so that the others may have more. Called
    /// under the device's lock.
    pub(crate) fn drain_idle(&self, map: &AddressMap, mut each: impl FnMut(Rested)) {
        for (_, shard) in self.used() {
            if shard.ring.open_lanes() != [0; 2] {
                let _guard = shard.flag.lock();
                shard.drain_idle(map, &self.streams, &mut each);
            }
        }
    }

    /// Takes the queue of one shard out. Called under the device's lock.
    #[inline]
    pub(crate) fn drain_queue(&self, place: u16, map: &AddressMap, mut each: impl FnMut(Rested)) {
        let shard = self.shard(place);
        if shard.has_queue(&self.streams) {
            let _guard = shard.flag.lock();
            shard.drain_queue(map, &self.streams, &mut each);
        }
    }

    /// Whether the large blocks of the shard of a stream stay where they are while others serve a request.
    pub(crate) fn stays(&self, stream: Stream, small: bool) -> bool {
        !small && self.streams.place_of(stream).is_some_and(|place| self.shard(place).returning.stays())
    }

    /// Notes that a large block is taken out of the map by the core, mostly because it is freed. Called under the device's
    /// lock.
    #[inline]
    pub(crate) fn note_taken(&self, entry: &Entry) {
        let head = entry.head();
        if head.place() != NO_PLACE {
            self.shard(head.place()).returning.note_taken(entry.key(head));
        }
    }

    /// Notes that the core is asked for a large block by a stream of that place. Called under the device's lock.
    #[inline]
    pub(crate) fn note_asked(&self, place: u16, missed: Missed) {
        let returning = &self.shard(place).returning;
        match missed {
            Missed::Length(len) => returning.note_asked(key_of(len, place, false)),
            Missed::Waits => returning.note_held_up(),
        }
    }

    /// The place of a stream, made if there is room. Called under the device's lock.
    pub(crate) fn admit(&self, stream: Stream, id: StreamId, epoch: u32) -> Option<u16> {
        if let Some(place) = self.streams.place_of(stream) {
            return Some(place);
        }
        let count = |place: u16| self.inhabitants[place as usize % SHARDS].load(Relaxed);
        let place = self.streams.vacancy(stream, count)?;
        self.inhabitants[place as usize % SHARDS].store(count(place) + 1, Relaxed);
        let _guard = self.shard(place).flag.lock();
        self.streams.settle(place, stream, id, epoch);
        Some(place)
    }

    /// Makes the stream unknown: nothing rests under its name from now on, and the core takes back what
    /// was recorded on it. What rests is to be drained.
    pub(crate) fn dismiss(&self, place: u16) {
        if let Some(column) = self.streams.column(place) {
            self.streams.set_column(column, 0);
            self.pass_through();
        }
        let _guard = self.shard(place).flag.lock();
        self.streams.dismiss(place);
    }

    /// Lets another stream have the place of a dismissed one, to which no block refers any more.
    pub(crate) fn vacate(&self, place: u16) {
        let count = &self.inhabitants[place as usize % SHARDS];
        count.store(count.load(Relaxed) - 1, Relaxed);
        self.streams.vacate(place);
    }

    /// Tells frees which epochs they belong to from now on, of streams by place, before any event is recorded
    /// that closes the epochs before.
    pub(crate) fn set_epochs(&self, epochs: impl Iterator<Item = (u16, u32)>) {
        let mut recorded_on = false;
        for (place, epoch) in epochs {
            let guard = self.shard(place).flag.lock();
            self.streams.set_epoch(place, epoch);
            drop(guard);
            // A stream that is gone has no column any more.
            if let Some(column) = self.streams.column(place) {
                self.streams.set_column(column, epoch);
                recorded_on = true;
            }
        }
        if recorded_on {
            self.pass_through();
        }
    }

    /// Waits until every free that may have seen what was true before is over.
    fn pass_through(&self) {
        for (shard, count) in self.shards.iter().zip(&self.inhabitants) {
            if count.load(Relaxed) > 0 {
                drop(shard.flag.lock());
            }
        }
    }

    /// The column of the stream of a place, if it has one.
    pub(crate) fn column(&self, place: u16) -> Option<usize> {
        self.streams.column(place)
    }

    /// Gives the stream of a place a column, if there is one left. Called under the device's lock.
    pub(crate) fn attach(&self, place: u16, id: StreamId, open: u32, completed: u32) -> Option<usize> {
        let column = self.streams.free_column().filter(|_| self.streams.is_enabled())?;
        self.streams.attach(column, place, id, open, completed);
        Some(column)
    }

    /// Takes a column away from a stream that is gone, once nothing refers to it.
    pub(crate) fn detach(&self, column: usize) {
        self.streams.detach(column);
    }

    /// The streams that have columns.
    pub(crate) fn attached(&self) -> impl Iterator<Item = (usize, StreamId)> {
        self.streams.attached()
    }

    /// Tells up to which epoch everything of a column's stream is over.
    pub(crate) fn complete(&self, column: usize, completed: u32) {
        self.streams.complete(column, completed);
    }

    /// Opens or closes the queues of large blocks. What rests there is served, or goes back with the next request.
    pub(crate) fn open_queues(&self, open: bool) {
        // A store is dear for those who only look; most calls change nothing.
        if self.queues.load(Relaxed) != open {
            self.queues.store(open, Relaxed);
        }
    }

    /// Sets how many bytes may wait of the blocks of one length and stream: so many, divided by the number of shards where
    /// any of that kind do. Threads on streams of their own would together have more than there is room for, and take what
    /// waits from each other.
    pub(crate) fn set_most_waiting(&self, bytes: u64) {
        let mut shards = [0; 2];
        for (_, shard) in self.used() {
            let open = shard.ring.open_lanes();
            shards.iter_mut().zip(open).for_each(|(count, lanes)| *count += u64::from(lanes > 0));
        }
        for (most, shards) in self.most_waiting.iter().zip(shards) {
            let bytes = bytes / shards.max(1);
            // A store is dear for those who only look.
            if most.load(Relaxed) != bytes {
                most.store(bytes, Relaxed);
            }
        }
    }

    /// Shards that have anything to tell. One that is used for the first time meanwhile has no room yet,
    /// so that it can only have counted blocks given back.
    fn used(&self) -> impl Iterator<Item = (usize, &Shard)> {
        self.shards.iter().enumerate().filter(|(_, shard)| shard.used.load(Relaxed))
    }

    #[inline]
    fn shard(&self, place: u16) -> &Shard {
        &self.shards[place as usize % SHARDS]
    }
}

/// Notes what a block that is handed out again was asked for with.
#[inline(never)]
fn note_request(map: &AddressMap, address: u64, requested: u64) {
    if let Some((_, entry)) = map.find(address) {
        entry.set_head(entry.head().with_requested(requested));
    }
}

mod held_up;
mod sums;

pub(crate) use held_up::HoldUp;

#[cfg(all(test, ascend_alloc_loom))]
mod models;

#[cfg(test)]
mod tests;
