//! Freed blocks at hand: pairs of the same size without the lock of the heap.
//!
//! ```text
//! HostPtr { address, slot } ─► entry: address, length, state
//! length ─► one of 64 lists of resting blocks of one length, each behind its own flag
//! ```
//!
//! Every live block has an entry, so a pointer leads to its length without a hash. A block that nobody recorded a
//! use of may rest here when it is freed: the host is done with it, so the next request of that length may have it
//! at once. The heap below counts it as live meanwhile; whoever needs the heap brings all resting blocks back
//! first ([`Front::drain`]).
//!
//! | state of an entry | means |
//! |---|---|
//! | vacant | no block |
//! | live | handed out; may rest |
//! | used | handed out, and recorded on a stream; only the heap may take it back |
//! | resting | in the list of its length |
//! | claimed | on its way back to the heap |
//!
//! States change under the flag of the list of the entry's length. The fields are relaxed atomics.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::collections::HashMap;
use std::sync::OnceLock;

use super::HostPtr;
use crate::sync::{Flag, FlagGuard, Mutex};

/// Lists of resting blocks.
const LISTS: usize = 64;
/// Entries of a chunk of the table.
const CHUNK: usize = 1024;
/// Chunks there can be: 16 million live blocks.
const CHUNKS: usize = 16 << 10;
/// No entry.
const NONE: u32 = u32::MAX;

const VACANT: u32 = 0;
const LIVE: u32 = 1;
const USED: u32 = 2;
const RESTING: u32 = 3;
const CLAIMED: u32 = 4;

#[derive(Debug, Default)]
struct Entry {
    address: AtomicU64,
    len: AtomicU64,
    state: AtomicU32,
    /// The next in the list of resting blocks.
    next: AtomicU32,
}

/// Resting blocks of one length, and what happened here.
#[derive(Debug)]
#[repr(align(64))]
struct List {
    flag: Flag,
    head: AtomicU32,
    len: AtomicU64,
    taken: AtomicU64,
    taken_bytes: AtomicU64,
    put: AtomicU64,
    put_bytes: AtomicU64,
    drained: AtomicU64,
    drained_bytes: AtomicU64,
}

/// What was counted since the start: blocks and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    /// Handed out from here.
    pub(super) taken: (i64, i64),
    /// Freed into here.
    pub(super) put: (i64, i64),
    /// Brought back to the heap, which counts them as freed.
    pub(super) drained: (i64, i64),
}

/// What became of a block that was freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Put {
    /// It rests.
    Rests,
    /// It is the caller's to give back to the heap; nobody else can free it.
    Claimed,
    /// No live block begins there.
    NotLive,
}

/// The numbers of entries that have no block, and entries by address.
#[derive(Debug, Default)]
struct Numbers {
    free: Vec<u32>,
    next: u32,
    by_address: HashMap<u64, u32>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Front {
    chunks: Box<[OnceLock<Box<[Entry]>>]>,
    lists: Box<[List]>,
    numbers: Mutex<Numbers>,
}

impl Front {
    pub(super) fn new() -> Self {
        let list = |_| List {
            flag: Flag::default(),
            head: AtomicU32::new(NONE),
            len: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            put: AtomicU64::new(0),
            put_bytes: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            drained_bytes: AtomicU64::new(0),
        };
        Self {
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            lists: (0..LISTS).map(list).collect(),
            numbers: Mutex::default(),
        }
    }

    /// A resting block of exactly that length.
    #[inline]
    pub(super) fn take(&self, len: u64) -> Option<HostPtr> {
        let list = self.list(len);
        if list.head.load(Relaxed) == NONE || list.len.load(Relaxed) != len {
            return None;
        }
        let _guard = list.flag.lock();
        let slot = list.head.load(Relaxed);
        if slot == NONE || list.len.load(Relaxed) != len {
            return None;
        }
        let entry = self.entry(slot)?;
        list.head.store(entry.next.load(Relaxed), Relaxed);
        entry.state.store(LIVE, Relaxed);
        add(&list.taken, 1);
        add(&list.taken_bytes, len);
        Some(HostPtr { address: entry.address.load(Relaxed), slot })
    }

    /// Frees a block: with `rest` it may rest here.
    #[inline]
    pub(super) fn put(&self, ptr: HostPtr, rest: bool) -> Put {
        let Some((entry, list, _guard)) = self.locked(ptr) else { return Put::NotLive };
        match entry.state.load(Relaxed) {
            LIVE => {}
            USED => {
                entry.state.store(CLAIMED, Relaxed);
                return Put::Claimed;
            }
            _ => return Put::NotLive,
        }
        let len = entry.len.load(Relaxed);
        let head = list.head.load(Relaxed);
        if !rest || (head != NONE && list.len.load(Relaxed) != len) {
            entry.state.store(CLAIMED, Relaxed);
            return Put::Claimed;
        }
        entry.state.store(RESTING, Relaxed);
        entry.next.store(head, Relaxed);
        list.head.store(ptr.slot, Relaxed);
        list.len.store(len, Relaxed);
        add(&list.put, 1);
        add(&list.put_bytes, len);
        Put::Rests
    }

    /// Notes that a live block is used by a stream: it never rests. False when it is not live.
    pub(super) fn mark_used(&self, ptr: HostPtr) -> bool {
        let Some((entry, _list, _guard)) = self.locked(ptr) else { return false };
        match entry.state.load(Relaxed) {
            LIVE | USED => {
                entry.state.store(USED, Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Makes a block known that the heap has handed out; nothing when there are too many.
    pub(super) fn admit(&self, address: u64, len: u64) -> Option<HostPtr> {
        let mut numbers = self.numbers.lock();
        let slot = match numbers.free.pop() {
            Some(slot) => slot,
            None if (numbers.next as usize) < CHUNK * CHUNKS => {
                numbers.next += 1;
                numbers.next - 1
            }
            None => return None,
        };
        numbers.by_address.insert(address, slot);
        drop(numbers);
        let chunk = &self.chunks[slot as usize / CHUNK];
        let entries = chunk.get_or_init(|| (0..CHUNK).map(|_| Entry::default()).collect());
        let entry = &entries[slot as usize % CHUNK];
        // A stale pointer may look at the entry now: it is vacant until the flag is taken.
        let _guard = self.list(len).flag.lock();
        entry.address.store(address, Relaxed);
        entry.len.store(len, Relaxed);
        entry.state.store(LIVE, Relaxed);
        Some(HostPtr { address, slot })
    }

    /// Forgets a claimed block, before the heap may hand its address out again.
    pub(super) fn dismiss(&self, ptr: HostPtr) {
        if let Some((entry, _list, _guard)) = self.locked(ptr) {
            entry.state.store(VACANT, Relaxed);
            entry.address.store(0, Relaxed);
        }
        let mut numbers = self.numbers.lock();
        numbers.by_address.remove(&ptr.address);
        numbers.free.push(ptr.slot);
    }

    /// The live block that begins at an address.
    pub(super) fn find(&self, address: u64) -> Option<HostPtr> {
        let slot = self.numbers.lock().by_address.get(&address).copied()?;
        let live = matches!(self.entry(slot)?.state.load(Relaxed), LIVE | USED);
        live.then_some(HostPtr { address, slot })
    }

    /// The length of a live block.
    pub(super) fn len(&self, ptr: HostPtr) -> Option<u64> {
        let (entry, _list, _guard) = self.locked(ptr)?;
        matches!(entry.state.load(Relaxed), LIVE | USED).then(|| entry.len.load(Relaxed))
    }

    /// Takes all resting blocks out; each is claimed, and to be given back to the heap.
    pub(super) fn drain(&self) -> Vec<HostPtr> {
        let mut out = Vec::new();
        for list in &self.lists {
            if list.head.load(Relaxed) == NONE {
                continue;
            }
            let _guard = list.flag.lock();
            let mut slot = list.head.swap(NONE, Relaxed);
            let len = list.len.load(Relaxed);
            while let Some(entry) = self.entry(slot) {
                entry.state.store(CLAIMED, Relaxed);
                add(&list.drained, 1);
                add(&list.drained_bytes, len);
                out.push(HostPtr { address: entry.address.load(Relaxed), slot });
                slot = entry.next.load(Relaxed);
            }
        }
        out
    }

    /// What was counted so far.
    pub(super) fn flow(&self) -> Flow {
        let mut flow = Flow::default();
        for list in &self.lists {
            let _guard = list.flag.lock();
            for (sum, count, bytes) in [
                (&mut flow.taken, &list.taken, &list.taken_bytes),
                (&mut flow.put, &list.put, &list.put_bytes),
                (&mut flow.drained, &list.drained, &list.drained_bytes),
            ] {
                sum.0 += count.load(Relaxed) as i64;
                sum.1 += bytes.load(Relaxed) as i64;
            }
        }
        flow
    }

    fn list(&self, len: u64) -> &List {
        // Lengths are multiples of 512; the multiplication spreads them over the upper bits.
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        &self.lists[((len >> 9).wrapping_mul(SPREAD) >> 58) as usize]
    }

    fn entry(&self, slot: u32) -> Option<&Entry> {
        self.chunks.get(slot as usize / CHUNK)?.get()?.get(slot as usize % CHUNK)
    }

    /// The entry of a block that begins at the pointer's address, with its list's flag taken.
    #[inline]
    fn locked(&self, ptr: HostPtr) -> Option<(&Entry, &List, FlagGuard<'_>)> {
        let entry = self.entry(ptr.slot)?;
        loop {
            let len = entry.len.load(Relaxed);
            let list = self.list(len);
            let guard = list.flag.lock();
            if entry.len.load(Relaxed) != len {
                // The entry was given to another block meanwhile.
                continue;
            }
            let same = entry.address.load(Relaxed) == ptr.address && ptr.address != 0;
            return same.then_some((entry, list, guard));
        }
    }
}

/// Adds under the list's flag.
#[inline]
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Relaxed).wrapping_add(more), Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_rests_once_and_serves_its_length_alone() {
        let front = Front::new();
        let ptr = front.admit(0x1000, 512).unwrap();
        assert_eq!(front.put(ptr, true), Put::Rests);
        assert_eq!(front.put(ptr, true), Put::NotLive, "freed twice");
        assert_eq!(front.find(0x1000), None);
        assert_eq!(front.take(1024), None);
        assert_eq!(front.take(512), Some(ptr));
        assert_eq!(front.take(512), None);
        assert_eq!(front.find(0x1000), Some(ptr));
        let flow = front.flow();
        assert_eq!((flow.put, flow.taken, flow.drained), ((1, 512), (1, 512), (0, 0)));
    }

    #[test]
    fn a_used_block_is_claimed_once() {
        let front = Front::new();
        let ptr = front.admit(0x2000, 4096).unwrap();
        assert!(front.mark_used(ptr));
        assert_eq!(front.put(ptr, true), Put::Claimed);
        assert_eq!(front.put(ptr, true), Put::NotLive);
        assert!(!front.mark_used(ptr));
        front.dismiss(ptr);
        let other = front.admit(0x8000, 512).unwrap();
        assert_eq!(other.slot, ptr.slot, "the entry serves another block");
        assert_eq!(front.put(ptr, true), Put::NotLive, "a stale pointer");
        assert_eq!(front.put(other, false), Put::Claimed);
    }

    #[test]
    fn draining_takes_every_list() {
        let front = Front::new();
        let ptrs: Vec<_> = (1..=200).map(|n| front.admit(n << 20, n * 512).unwrap()).collect();
        let resting = ptrs.iter().filter(|&&ptr| front.put(ptr, true) == Put::Rests).count();
        assert!(resting > LISTS / 2, "{resting}");
        let mut drained = front.drain();
        assert_eq!(drained.len(), resting);
        drained.sort_by_key(|ptr| ptr.address);
        drained.dedup();
        assert_eq!(drained.len(), resting);
        assert!(front.drain().is_empty());
    }
}
