//! Freed blocks that other streams may still use, until those have passed.
//!
//! ```text
//! large   | lane | lane | ...      a key has its lane in one of two places,
//! small   | lane | lane | ...      or anywhere among those of its kind where both are taken
//! ```
//!
//! Blocks of one key go round in one [`Lane`], in the order they were freed. A slot keeps which epochs of which columns must
//! be over, two at most. While they are not known to be, the block counts as waiting; once somebody looks and finds that they
//! are, as free. Everything is changed under the shard's flag.

use crate::sync;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::counts::Amounts;
use super::key::{hash, is_small, len_of};
use super::lane::{Lane, SLOTS, ToWait, Waiter};
use super::streams::{Streams, Use};

/// Keys a shard can have blocks of, of one kind.
pub(super) const LANES: usize = if sync::SMALL { 2 } else { 30 };
/// Lanes of a kind that are places for keys; a power of two. The others are for those that find theirs taken.
const PLACES: usize = if sync::SMALL { 2 } else { 16 };

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Ring {
    /// Those of large blocks, then those of small ones.
    lanes: [Lane; 2 * LANES],
    /// What is known of all lanes of a kind.
    kinds: [Kind; 2],
}

/// What is known of the large or the small blocks together.
#[derive(Debug, Default)]
struct Kind {
    /// Lanes with blocks.
    open: AtomicU32,
    /// Those of them that are in neither of the places of their key.
    astray: AtomicU32,
    /// What was known to be over when they were last swept.
    swept: AtomicU32,
    /// Whether any are known to be over since they were last taken out.
    over: AtomicBool,
}

/// An entry keeps in 16 bits where its block rests.
const _: () = assert!(super::shard::RING + 2 * LANES * SLOTS <= 1 << 16);

/// The number of the lane a key should have; the neighbour of that will do as well.
#[inline]
fn number_of(key: u64) -> usize {
    usize::from(is_small(key)) * LANES + hash(key, PLACES.ilog2()) % PLACES
}

/// The numbers of all lanes of a kind.
fn numbers(small: bool) -> core::ops::Range<usize> {
    let first = usize::from(small) * LANES;
    first..first + LANES
}

impl Default for Ring {
    fn default() -> Self {
        Self { lanes: core::array::from_fn(|_| Lane::default()), kinds: Default::default() }
    }
}

impl Ring {
    /// Whether there is no block of that kind.
    #[inline]
    pub(super) fn is_empty(&self, small: bool) -> bool {
        self.kind(small).open.load(Relaxed) == 0
    }

    /// The lane in which that slot is, and its place there.
    #[inline]
    pub(super) fn lane_of(&self, at: usize) -> Option<(&Lane, usize)> {
        Some((self.lanes.get(at / SLOTS)?, at % SLOTS))
    }

    /// The lane of a key, if there are blocks of that key.
    #[inline]
    pub(super) fn lane(&self, key: u64) -> Option<&Lane> {
        let number = number_of(key);
        let (first, second) = (&self.lanes[number], &self.lanes[number ^ 1]);
        if first.key() == key {
            return Some(first);
        }
        if second.key() == key { Some(second) } else { self.search(key) }
    }

    /// The same for a key whose lane, if it has one, is in neither of its places.
    #[cold]
    #[inline(never)]
    fn search(&self, key: u64) -> Option<&Lane> {
        let astray = self.kind(is_small(key)).astray.load(Relaxed);
        if astray == 0 { None } else { self.number(key).map(|number| &self.lanes[number]) }
    }

    /// The number of a key's lane.
    fn number(&self, key: u64) -> Option<usize> {
        numbers(is_small(key)).find(|&number| self.lanes[number].key() == key)
    }

    /// Adds a block to the lane where it was the last time, in the slot `before`, and returns its slot there; nothing where that
    /// is of another key now, has no room, or has the block already.
    #[inline(always)]
    pub(super) fn push_again(
        &self,
        before: usize,
        (address, key): (u64, u64),
        waiter: ToWait,
    ) -> Option<usize> {
        let (lane, place) = self.lane_of(before).filter(|(lane, _)| lane.key() == key)?;
        let at = lane.push_again(place, address, waiter)?;
        Some(before - place + at)
    }

    /// Adds a block to the lane of its key, which is opened if there is none and then asks how many bytes of blocks it may
    /// have; one there may be in any case. Returns its slot; nothing where there is no lane or no room.
    pub(super) fn push(
        &self,
        (address, key): (u64, u64),
        waiter: ToWait,
        most: impl FnOnce() -> u64,
    ) -> Option<usize> {
        let number = self.number(key).or_else(|| self.open(key, most()))?;
        Some(number * SLOTS + self.lanes[number].push(address, waiter)?)
    }

    /// Lets an empty lane have blocks of this key, if there is one for it.
    fn open(&self, key: u64, most: u64) -> Option<usize> {
        let home = number_of(key);
        let mut numbers = [home, home ^ 1].into_iter().chain(numbers(is_small(key)));
        let number = numbers.find(|&number| self.lanes[number].is_empty())?;
        self.lanes[number].open(key);
        self.lanes[number].limit(most);
        self.count(number, key, 1);
        Some(number)
    }

    /// Takes the oldest block of the lane of a key out, which is at the position `head`.
    #[inline]
    pub(super) fn pop(&self, lane: &Lane, key: u64, head: u32) {
        if lane.pop(head) {
            self.close(key);
        }
    }

    /// The last block of a key has left its lane.
    #[cold]
    #[inline(never)]
    fn close(&self, key: u64) {
        if let Some(number) = self.number(key) {
            let key = self.lanes[number].close();
            self.count(number, key, -1);
        }
    }

    /// Counts a lane with blocks, or one less.
    fn count(&self, number: usize, key: u64, more: i32) {
        let add = |count: &AtomicU32| count.store(count.load(Relaxed).wrapping_add_signed(more), Relaxed);
        let kind = self.kind(is_small(key));
        add(&kind.open);
        if number ^ number_of(key) > 1 {
            add(&kind.astray);
        }
    }

    /// Lanes with blocks: of large ones, of small ones.
    pub(super) fn open_lanes(&self) -> [u32; 2] {
        [&self.kinds[0], &self.kinds[1]].map(|kind| kind.open.load(Relaxed))
    }

    /// The oldest block of a lane and its position, if it is over.
    #[inline]
    pub(super) fn ready<'a>(
        &self,
        lane: &'a Lane,
        streams: &Streams,
        most: &AtomicU64,
    ) -> Option<(u32, &'a Waiter)> {
        let head = lane.head();
        let is_ready = lane.is_ready(head) || self.look(lane, streams, most);
        lane.at(head).filter(|_| is_ready).map(|slot| (head, slot))
    }

    /// Finds out how many blocks of a lane, from the oldest on, are over; whether there are any. From now on the lane
    /// may have `most` bytes of blocks.
    #[cold]
    #[inline(never)]
    fn look(&self, lane: &Lane, streams: &Streams, most: &AtomicU64) -> bool {
        lane.limit(most.load(Relaxed));
        // What is freed waits for open epochs, so that without news nothing more is over.
        lane.is_news(streams.known())
            && lane.set_ready(|uses| uses.into_iter().all(|one| streams.is_over(one)))
    }

    /// All blocks of a kind, and their keys.
    pub(super) fn all(&self, small: bool) -> impl Iterator<Item = (&Waiter, u64)> {
        self.open_of(small).flat_map(|lane| lane.blocks().map(|slot| (slot, lane.key())))
    }

    /// Looks at all blocks of a kind (and their keys) in lanes that are `meant`, those of each key from the oldest on, and
    /// takes those out that `leaves` says are leaving. `moved` is told of those that get another slot.
    pub(super) fn take_out(
        &self,
        small: bool,
        meant: impl Fn(&Lane) -> bool,
        mut leaves: impl FnMut(&Waiter, u64) -> bool,
        mut moved: impl FnMut(u64, usize),
    ) {
        for number in numbers(small).filter(|&number| meant(&self.lanes[number])) {
            let lane = &self.lanes[number];
            let key = lane.key();
            if lane.take_out(|slot| leaves(slot, key), |address, at| moved(address, number * SLOTS + at)) {
                self.close(key);
            }
        }
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
        kind.swept.store(now, Relaxed);
        let mut judge = Judge::new(streams);
        for lane in self.open_of(small) {
            if lane.end_waits(|slot| judge.is_over(slot), |slot| over(slot, lane.key())) {
                kind.over.store(true, Relaxed);
            }
        }
    }

    /// What of a kind waits: blocks, bytes, requested bytes.
    pub(super) fn waiting(&self, small: bool) -> Amounts {
        let mut sums = Amounts::default();
        if self.is_empty(small) {
            return sums;
        }
        for lane in self.open_of(small) {
            let (blocks, requested) = lane.waiting();
            let bytes = u64::from(blocks) * len_of(lane.key());
            let amounts = [i64::from(blocks), bytes as i64, requested as i64];
            sums.iter_mut().zip(amounts).for_each(|(sum, amount)| *sum += amount);
        }
        sums
    }

    /// The lanes of a kind that have blocks.
    fn open_of(&self, small: bool) -> impl Iterator<Item = &Lane> {
        self.lanes[numbers(small)].iter().filter(|lane| !lane.is_empty())
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
        if slot.waits_for(self.last.0) { self.last.1 } else { self.judge(slot.uses()) }
    }

    fn judge(&mut self, [first, second]: [Use; 2]) -> bool {
        let over = self.streams.is_over(first) && self.streams.is_over(second);
        if second == Use::default() {
            self.last = (first, over);
        }
        over
    }
}
