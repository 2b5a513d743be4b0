//! Freed blocks of one key that other streams may still use, in the order they were freed.
//!
//! ```text
//! | - | b | b | b | w | w | w | - |      b: over, w: not known to be over
//!       ^head       ^ready      ^tail    positions count on for ever; the slots go round
//! ```
//!
//! How much waits is summed up when somebody asks, so that a pair of calls need not count it.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::sync::{self, OnceLock};

use super::key::len_of;
use super::streams::Use;
use super::uses::COLUMNS;

/// Blocks of a lane, at most.
pub(super) const SLOTS: usize = if sync::SMALLEST {
    2
} else if sync::SMALL {
    8
} else {
    1024
};

/// What is kept of a block that waits: what it was last asked for with, bytes; the epoch of its home in which it was freed;
/// what must be over.
pub(super) type ToWait = (u64, u32, [Use; 2]);

/// A block in a lane.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(super) struct Waiter {
    /// Its address.
    pub(super) address: AtomicU64,
    /// Bytes it was last asked for with.
    pub(super) requested: AtomicU64,
    /// What must be over: a [`Use`], with the column of another one (plus one, shifted left by 4) where there are two;
    /// zero once all is known to be.
    uses: AtomicU64,
    /// The epoch of the other.
    second: AtomicU32,
    /// The epoch of its home in which it was freed.
    pub(super) epoch: AtomicU32,
}

/// See the module's documentation. A line of the cache each.
#[derive(Debug, Default)]
#[repr(align(64))]
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
    /// Where they are. Made when there is the first block.
    slots: OnceLock<Box<[Waiter; SLOTS]>>,
    /// What the latest block waits for, a [`Use`]; zero where that is more than one.
    latest: AtomicU64,
    /// From this position on each block waits for the same column as those before it, and the last one perhaps for another
    /// one too. Epochs of a column rise while any block waits for one, so none of these is over before those before it.
    rising: AtomicU32,
    /// What waited when somebody last asked.
    sum: Sum,
    /// The head when it was last seen whether the lane is in use.
    seen: AtomicU32,
    /// What was known to be over when it was last counted how many blocks are.
    known: AtomicU32,
}

/// What waited once. What has come and gone since is still in the slots, unless others have come in its place, so that only
/// that need be looked at.
#[derive(Debug, Default)]
struct Sum {
    /// The lane's head then.
    head: AtomicU32,
    /// Its tail.
    tail: AtomicU32,
    /// Blocks that waited.
    blocks: AtomicU32,
    /// Bytes they were last asked for with.
    requested: AtomicU64,
}

impl Lane {
    /// The key of the blocks; zero while there are none.
    #[inline]
    pub(super) fn key(&self) -> u64 {
        self.key.load(Relaxed)
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head.load(Relaxed) == self.tail.load(Relaxed)
    }

    /// How many blocks there are.
    pub(super) fn len(&self) -> u32 {
        self.tail.load(Relaxed).wrapping_sub(self.head.load(Relaxed))
    }

    /// Whether there may be no more blocks.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= self.most.load(Relaxed)
    }

    /// Lets an empty lane have blocks of a key.
    pub(super) fn open(&self, key: u64) {
        self.key.store(key, Relaxed);
    }

    /// The last block has left; its key.
    pub(super) fn close(&self) -> u64 {
        self.key.swap(0, Relaxed)
    }

    /// Lets it have so many bytes of blocks, or one block. Long blocks take half of the slots: a length that is not asked for
    /// any more keeps what it has, of which the others then have less.
    pub(super) fn limit(&self, most: u64) {
        const LONG: u64 = 128 << 10;
        let len = len_of(self.key()).max(1);
        let slots = if len > LONG { SLOTS / 2 } else { SLOTS };
        self.most.store((most / len).clamp(1, slots as u64) as u32, Relaxed);
    }

    /// Whether that slot holds the block that begins at `address`.
    #[inline]
    pub(super) fn holds(&self, at: usize, address: u64) -> bool {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        self.holds_among(at, head, tail.wrapping_sub(head), address)
    }

    /// The same among so many blocks from the position `head` on. A slot that has been left is mostly before that.
    #[inline(always)]
    fn holds_among(&self, at: usize, head: u32, blocks: u32, address: u64) -> bool {
        let is_taken = (at as u32).wrapping_sub(head) % (SLOTS as u32) < blocks;
        is_taken && self.slots.get().is_some_and(|slots| slots[at].address.load(Relaxed) == address)
    }

    /// Adds a block and returns its slot; nothing where there is no room.
    pub(super) fn push(&self, address: u64, waiter: ToWait) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        let slots = self.slots.get_or_init(|| super::map::boxed(|_| Waiter::default()));
        let tail = self.tail.load(Relaxed);
        self.follow(waiter.2, tail);
        Some(self.add(slots, tail, address, waiter))
    }

    /// Takes into account that the block at the position `tail`, which is being added, does not wait for the same as the latest.
    #[cold]
    #[inline(never)]
    fn follow(&self, [first, second]: [Use; 2], tail: u32) {
        if first.column() != Use(self.latest.load(Relaxed)).column() {
            self.rising.store(tail, Relaxed);
        }
        self.latest.store(if second == Use::default() { first.0 } else { 0 }, Relaxed);
    }

    /// The same for a block that was in the slot `before` the last time it waited, and waits for one thing; nothing where it is
    /// there now.
    #[inline(always)]
    pub(super) fn push_again(&self, before: usize, address: u64, waiter: ToWait) -> Option<usize> {
        let slots = self.slots.get()?;
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let blocks = tail.wrapping_sub(head);
        if blocks >= self.most.load(Relaxed) || self.holds_among(before, head, blocks, address) {
            return None;
        }
        if self.latest.load(Relaxed) != waiter.2[0].0 {
            self.follow(waiter.2, tail);
        }
        Some(self.add(slots, tail, address, waiter))
    }

    /// Adds a block at the position `tail`.
    #[inline(always)]
    fn add(&self, slots: &[Waiter; SLOTS], tail: u32, address: u64, waiter: ToWait) -> usize {
        let (requested, epoch, uses) = waiter;
        let at = tail as usize % SLOTS;
        let slot = &slots[at];
        slot.address.store(address, Relaxed);
        slot.requested.store(requested, Relaxed);
        slot.set_uses(uses);
        slot.epoch.store(epoch, Relaxed);
        self.tail.store(tail.wrapping_add(1), Relaxed);
        at
    }

    /// Whether no block has left since somebody last asked that.
    pub(super) fn is_idle(&self) -> bool {
        let head = self.head();
        self.seen.swap(head, Relaxed) == head
    }

    /// The position of the oldest block.
    #[inline]
    pub(super) fn head(&self) -> u32 {
        self.head.load(Relaxed)
    }

    /// The block at a position, where there is one.
    #[inline]
    pub(super) fn at(&self, position: u32) -> Option<&Waiter> {
        self.slots.get().map(|slots| &slots[position as usize % SLOTS])
    }

    /// Takes the oldest block out, which is at the position `head`; whether that was the last.
    #[inline]
    pub(super) fn pop(&self, head: u32) -> bool {
        let next = head.wrapping_add(1);
        self.head.store(next, Relaxed);
        next == self.tail.load(Relaxed)
    }

    /// Whether the oldest block, which is at the position `head`, is known to be over.
    #[inline]
    pub(super) fn is_ready(&self, head: u32) -> bool {
        head != self.ready.load(Relaxed)
    }

    /// Whether more may be over than what was known at the last time this was asked.
    #[inline]
    pub(super) fn is_news(&self, known: u32) -> bool {
        let is_new = self.known.load(Relaxed) != known;
        if is_new {
            self.known.store(known, Relaxed);
        }
        is_new
    }

    /// Notes how many blocks, from the oldest on, are over; whether there are any. Only where their epochs do not rise each is
    /// looked at.
    pub(super) fn set_ready(&self, is_over: impl Fn([Use; 2]) -> bool) -> bool {
        let Some(slots) = self.slots.get() else { return false };
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let is_over_at = |step: u32| is_over(slots[head.wrapping_add(step) as usize % SLOTS].uses());
        let blocks = tail.wrapping_sub(head);
        let mixed = self.mixed(head, blocks);
        let mut ready = (0..mixed).find(|&step| !is_over_at(step)).unwrap_or(mixed);
        if ready == mixed && ready < blocks && is_over_at(ready) {
            ready = if is_over_at(blocks - 1) { blocks } else { first_not(ready..blocks, is_over_at) };
        }
        if mixed == 0 {
            // So that positions that count on for ever do not leave it behind too far.
            self.rising.store(head, Relaxed);
        }
        self.ready.store(head.wrapping_add(ready), Relaxed);
        ready != 0
    }

    /// How many of so many blocks from the position `head` on may wait for epochs that do not rise.
    fn mixed(&self, head: u32, blocks: u32) -> u32 {
        (self.rising.load(Relaxed).wrapping_sub(head) as i32).clamp(0, blocks as i32) as u32
    }

    /// Ends the waits of all blocks for which `is_over` is true; whether there were any. Where their epochs rise nothing is
    /// looked at behind one that is not over.
    pub(super) fn end_waits(
        &self,
        mut is_over: impl FnMut(&Waiter) -> bool,
        mut ended: impl FnMut(&Waiter),
    ) -> bool {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let mixed = self.mixed(head, tail.wrapping_sub(head)) as usize;
        let mut any = false;
        for (step, slot) in self.blocks().enumerate() {
            if !is_over(slot) {
                if step >= mixed {
                    break;
                }
            } else if slot.waits() {
                slot.end_wait();
                ended(slot);
                any = true;
            }
        }
        if any {
            self.forget_sum();
        }
        any
    }

    /// The blocks, from the oldest on.
    #[inline]
    pub(super) fn blocks(&self) -> impl Iterator<Item = &Waiter> {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let slots = self.slots.get().map_or(&[][..], |slots| &slots[..]);
        let (begin, len) = (head as usize % SLOTS, tail.wrapping_sub(head) as usize);
        let (wrapped, rest) = slots.split_at(begin.min(slots.len()));
        let first = &rest[..len.min(rest.len())];
        first.iter().chain(&wrapped[..len - first.len()])
    }

    /// Looks at all blocks, from the oldest on, and takes those out that `leaves` says are leaving. `moved` is told of those
    /// that get another slot. Whether the last has left.
    pub(super) fn take_out(
        &self,
        mut leaves: impl FnMut(&Waiter) -> bool,
        mut moved: impl FnMut(u64, usize),
    ) -> bool {
        let Some(slots) = self.slots.get() else { return false };
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let mut to = head;
        let mut from = head;
        while from != tail {
            let slot = &slots[from as usize % SLOTS];
            if !leaves(slot) {
                if from != to {
                    let at = to as usize % SLOTS;
                    slots[at].replace_by(slot);
                    moved(slots[at].address.load(Relaxed), at);
                }
                to = to.wrapping_add(1);
            }
            from = from.wrapping_add(1);
        }
        if to == tail {
            return false;
        }
        self.tail.store(to, Relaxed);
        self.ready.store(head, Relaxed);
        // So that it is counted anew how many are over.
        self.known.store(self.known.load(Relaxed).wrapping_sub(1), Relaxed);
        self.forget_sum();
        to == head
    }

    /// What waits now: blocks, and bytes they were last asked for with.
    pub(super) fn waiting(&self) -> (u32, u64) {
        let (head, tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        if (head, tail) != (self.sum.head.load(Relaxed), self.sum.tail.load(Relaxed))
            && let Some(slots) = self.slots.get()
        {
            self.sum.follow(head, tail, slots);
        }
        (self.sum.blocks.load(Relaxed), self.sum.requested.load(Relaxed))
    }

    /// What is in the slots is no more what was looked at.
    fn forget_sum(&self) {
        let head = self.head.load(Relaxed);
        self.sum.set(head, head, (0, 0));
    }
}

impl Sum {
    fn set(&self, head: u32, tail: u32, (blocks, requested): (u32, u64)) {
        self.head.store(head, Relaxed);
        self.tail.store(tail, Relaxed);
        self.blocks.store(blocks, Relaxed);
        self.requested.store(requested, Relaxed);
    }

    /// Counts what has come and gone.
    fn follow(&self, head: u32, tail: u32, slots: &[Waiter; SLOTS]) {
        let (was_head, was_tail) = (self.head.load(Relaxed), self.tail.load(Relaxed));
        let (gone, kept) = (head.wrapping_sub(was_head), was_tail.wrapping_sub(head) as i32);
        let (mut blocks, mut requested, mut from) = (0, 0, head);
        // All are counted anew where that is less work, or where others have come in place of what has gone.
        if tail.wrapping_sub(was_head) <= SLOTS as u32 && i64::from(gone) < i64::from(kept) {
            let before = waiting_among(slots, was_head, gone);
            blocks = self.blocks.load(Relaxed) - before.0;
            requested = self.requested.load(Relaxed) - before.1;
            from = was_tail;
        }
        let come = waiting_among(slots, from, tail.wrapping_sub(from));
        self.set(head, tail, (blocks + come.0, requested + come.1));
    }
}

/// The first of these for which `is_over` is false, where it is true up to one and false from that on.
fn first_not(steps: core::ops::Range<u32>, is_over: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (steps.start, steps.end);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_over(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// What waits from a position on among so many: blocks, and bytes they were last asked for with.
fn waiting_among(slots: &[Waiter; SLOTS], from: u32, count: u32) -> (u32, u64) {
    let each = (0..count).map(|step| &slots[from.wrapping_add(step) as usize % SLOTS]);
    let waiting = each.filter(|slot| slot.waits());
    waiting.fold((0, 0), |(blocks, bytes), slot| (blocks + 1, bytes + slot.requested.load(Relaxed)))
}

impl Waiter {
    /// Whether the block counts as waiting.
    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.uses.load(Relaxed) != 0
    }

    /// All is over.
    fn end_wait(&self) {
        self.uses.store(0, Relaxed);
    }

    /// Whether it is that which must be over, and nothing else.
    #[inline]
    pub(super) fn waits_for(&self, one: Use) -> bool {
        self.uses.load(Relaxed) == one.0
    }

    /// What must be over; a use that is zero stands for nothing.
    pub(super) fn uses(&self) -> [Use; 2] {
        let uses = self.uses.load(Relaxed);
        let column = uses >> 4 & 0xF;
        let second = if column == 0 { 0 } else { u64::from(self.second.load(Relaxed)) << 8 | column };
        [Use(uses & !0xF0), Use(second)]
    }

    #[inline]
    fn set_uses(&self, [first, second]: [Use; 2]) {
        if second != Use::default() {
            self.second.store((second.0 >> 8) as u32, Relaxed);
        }
        self.uses.store(first.0 | (second.0 & 0xF) << 4, Relaxed);
    }

    fn replace_by(&self, from: &Self) {
        self.address.store(from.address.load(Relaxed), Relaxed);
        self.requested.store(from.requested.load(Relaxed), Relaxed);
        self.uses.store(from.uses.load(Relaxed), Relaxed);
        self.second.store(from.second.load(Relaxed), Relaxed);
        self.epoch.store(from.epoch.load(Relaxed), Relaxed);
    }
}

/// Both columns of a waiter have room beside each other.
const _: () = assert!(COLUMNS < 16);

#[cfg(test)]
mod tests {
    use super::super::key::key_of;
    use super::*;

    #[test]
    fn as_many_are_ready_as_are_over_one_after_the_other() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut some, mut all) = (0, 0);
        for _ in 0..2000 {
            let lane = Lane::default();
            lane.open(key_of(512, 0, true));
            lane.limit(u64::MAX);
            let mut waiting = std::collections::VecDeque::new();
            let (mut open, mut over) = ([1_u32; 3], [0_u32; 3]);
            let mut before = Vec::new();
            for address in 0..u64::from(random.u32(1..60)) {
                let column = random.usize(..12).saturating_sub(9);
                let one = Use(u64::from(open[column]) << 8 | (column as u64 + 1));
                let two =
                    if random.u8(..20) == 0 { Use(u64::from(open[2]) << 8 | 3) } else { Use::default() };
                let two = if column == 2 { Use::default() } else { two };
                let waiter = (1, 1, [one, two]);
                let again = before.pop().filter(|_| two == Use::default());
                let at = again.and_then(|before| lane.push_again(before, address, waiter));
                if at.or_else(|| lane.push(address, waiter)).is_some() {
                    waiting.push_back([one, two]);
                }
                let closed = random.usize(..3);
                open[closed] += u32::from(random.u8(..8) == 0);
                over[closed] = random.u32(over[closed]..open[closed]);
                let is_over = |uses: [Use; 2]| {
                    let passed =
                        |one: &Use| one.0 == 0 || (one.0 >> 8) as u32 <= over[(one.0 & 0xF) as usize - 1];
                    uses.iter().all(passed)
                };
                match random.u8(..10) {
                    0..4 => {
                        let ready = waiting.iter().take_while(|&&uses| is_over(uses)).count();
                        assert_eq!(lane.set_ready(is_over), ready > 0);
                        let marked = lane.ready.load(Relaxed).wrapping_sub(lane.head());
                        assert_eq!(marked as usize, ready, "{waiting:?} {over:?}");
                        some += usize::from(ready > 0 && ready < waiting.len());
                        all += usize::from(ready == waiting.len());
                        let gone = random.usize(..=ready);
                        for _ in 0..gone {
                            before.push(lane.head() as usize % SLOTS);
                            lane.pop(lane.head());
                        }
                        waiting.drain(..gone);
                    }
                    4 => {
                        lane.take_out(|slot| slot.address.load(Relaxed).is_multiple_of(3), |_, _| ());
                        waiting = lane.blocks().map(Waiter::uses).collect();
                    }
                    5 => {
                        let ended = std::cell::Cell::new(0);
                        let before = lane.blocks().filter(|slot| slot.waits()).count();
                        let count = |_: &Waiter| ended.set(ended.get() + 1);
                        assert_eq!(lane.end_waits(|slot| is_over(slot.uses()), count), ended.get() > 0);
                        assert!(lane.blocks().all(|slot| !slot.waits() || !is_over(slot.uses())));
                        assert_eq!(lane.blocks().filter(|slot| slot.waits()).count(), before - ended.get());
                    }
                    _ => {}
                }
            }
        }
        assert!(some > 100 && all > 100, "{some} {all}");
    }

    #[test]
    fn only_news_and_blocks_that_left_are_a_reason_to_count_anew() {
        let lane = Lane::default();
        lane.open(key_of(512, 0, true));
        lane.limit(u64::MAX);
        for address in 0..4 {
            lane.push(address, (1, 1, [Use(1 << 8 | 1), Use::default()]));
        }
        assert!(lane.is_news(7));
        assert!(!lane.is_news(7));
        lane.take_out(|_| false, |_, _| ());
        assert!(!lane.is_news(7));
        lane.take_out(|slot| slot.address.load(Relaxed) == 2, |_, _| ());
        assert!(lane.is_news(7));
        assert!(lane.is_news(8));
    }
}
