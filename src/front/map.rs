//! From the address of a block's first byte to what is known of it, without a lock or a hash.
//!
//! ```text
//! address >> 30 --> unit (1 GiB) --> leaf --> entry
//!
//! small blocks:   a leaf for each stretch of 2 MiB has 4096 entries, one for each 512 B
//! larger blocks:  a leaf for each 128 MiB has two entries for each stretch (they are longer than 1 MiB, so
//!                 no three of them begin in one); the second is seldom used and lies apart
//! ```
//!
//! An entry belongs to whoever owns the block: it is written under the device's lock when the core
//! hands out or takes back the block, and under the flag of the block's shard when the front does.
//! Units are never freed, because readers hold no lock; a unit serves whatever is reserved at its
//! addresses next.

use crate::sync::atomic::{
    AtomicU16, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use super::key::{PLACE_BITS, key_of};
use super::uses::{Mask, Uses};
use crate::core::block::BlockId;
use crate::driver::DeviceId;
use crate::sync::{self, Mutex, OnceLock};

/// log2 of the bytes between two places where blocks can begin.
const START_SHIFT: u32 = 9;
/// log2 of the bytes of a unit.
const UNIT_SHIFT: u32 = if sync::SMALLEST { 22 } else { 30 };
/// Addresses of this many bits and more are not covered.
const ADDRESS_BITS: u32 = if sync::SMALLEST { 24 } else { 48 };
/// Units there can be.
const UNITS: usize = 1 << (ADDRESS_BITS - UNIT_SHIFT);
/// log2 of the bytes of a stretch.
const STRETCH_SHIFT: u32 = 21;
/// Stretches of a unit.
const STRETCHES: usize = 1 << (UNIT_SHIFT - STRETCH_SHIFT);
/// Stretches of a leaf for larger blocks, and such leaves of a unit.
const LEAF: usize = if sync::SMALLEST { 2 } else { 64 };
const LEAVES: usize = STRETCHES / LEAF;
/// Places in a stretch where a block can begin.
const STARTS: usize = 1 << (STRETCH_SHIFT - START_SHIFT);

/// No place in the front cache.
pub(crate) const NO_PLACE: u16 = (1 << PLACE_BITS) - 1;
/// Requests of this size or more are not kept in entries: `NO_PLACE` sends them to the core.
pub(crate) const MOST_REQUESTED: u64 = 1 << 36;

/// One block start.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(crate) struct Entry {
    /// Length in units of 512 B (upper half), block id (lower half).
    body: AtomicU64,
    /// Requested bytes (36 bits), kind (1), place of its stream (13), start within its stretch (12), one empty bit,
    /// and whether a block begins here at all (1); zero when none does.
    head: AtomicU64,
    /// On which other streams the block was recorded.
    pub(super) uses: Uses,
    /// Where in its shard the block rests or last rested.
    rests_at: AtomicU16,
}

/// The fields of an entry's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(u64);

/// Bits below the kind and place, as they are in a key, and below the requested bytes.
const KEY_SHIFT: u32 = 14;
const REQUESTED_SHIFT: u32 = KEY_SHIFT + PLACE_BITS + 1;

impl Head {
    /// Nothing begins here.
    pub(crate) const NOTHING: Self = Self(0);

    /// A block that was handed out; it may have been freed since and rest in the front.
    #[inline]
    pub(crate) fn new(requested: u64, (place, small): (u16, bool), address: u64) -> Self {
        let start = Start::of(address).in_stretch() as u64;
        let key = key_of(0, place, small);
        Self((requested << REQUESTED_SHIFT) | (key << KEY_SHIFT) | (start << 2) | 1)
    }

    #[inline]
    pub(crate) fn requested(self) -> u64 {
        self.0 >> REQUESTED_SHIFT
    }

    /// The place of its stream, or [`NO_PLACE`].
    #[inline]
    pub(crate) fn place(self) -> u16 {
        (self.0 >> KEY_SHIFT) as u16 & NO_PLACE
    }

    /// The same block, that the front does not know.
    pub(crate) fn without_place(self) -> Self {
        Self(self.0 | u64::from(NO_PLACE) << KEY_SHIFT)
    }

    /// The same block, handed out for `requested` bytes.
    #[inline]
    pub(crate) fn with_requested(self, requested: u64) -> Self {
        Self((requested << REQUESTED_SHIFT) | (self.0 & ((1 << REQUESTED_SHIFT) - 1)))
    }

    #[inline]
    fn is_nothing(self) -> bool {
        self.0 == 0
    }

    /// Whether a block begins here, at this place of the stretch.
    #[inline]
    fn starts_at(self, start: Start) -> bool {
        self.0 & (((STARTS as u64 - 1) << 2) | 1) == (start.in_stretch() as u64) << 2 | 1
    }
}

/// Where a block may begin: an address, the low bits that are zero for a block turned to the top, so that one
/// comparison tells those that no unit has.
#[derive(Clone, Copy)]
struct Start(u64);

impl Start {
    #[inline]
    fn of(address: u64) -> Self {
        Self(address.rotate_right(START_SHIFT))
    }

    /// The number of its unit; none has it where no block can begin.
    #[inline]
    fn unit(self) -> usize {
        (self.0 >> (UNIT_SHIFT - START_SHIFT)) as usize
    }

    /// The number of its stretch in the unit.
    #[inline]
    fn stretch(self) -> usize {
        (self.0 >> (STRETCH_SHIFT - START_SHIFT)) as usize % STRETCHES
    }

    #[inline]
    fn in_stretch(self) -> usize {
        self.0 as usize % STARTS
    }
}

impl Entry {
    /// What the entry says; only its owner may rely on it.
    #[inline]
    pub(crate) fn head(&self) -> Head {
        Head(self.head.load(Relaxed))
    }

    /// Length in bytes and block.
    #[inline]
    pub(crate) fn body(&self) -> (u64, BlockId) {
        let body = self.body.load(Relaxed);
        ((body >> 32) << 9, body as u32)
    }

    /// What has to agree for the block to serve a request, if `head` is that of this entry.
    #[inline]
    pub(super) fn key(&self, head: Head) -> u64 {
        let len = self.body.load(Relaxed) >> 32;
        len << (PLACE_BITS + 1) | (head.0 >> KEY_SHIFT) & ((1 << (PLACE_BITS + 1)) - 1)
    }

    /// Changes everything but length and block.
    #[inline]
    pub(crate) fn set_head(&self, head: Head) {
        self.head.store(head.0, Relaxed);
    }

    /// Where in its shard the block rests, if it does.
    #[inline]
    pub(super) fn rests_at(&self) -> usize {
        usize::from(self.rests_at.load(Relaxed))
    }

    /// Notes where the block rests from now on.
    #[inline]
    pub(super) fn set_rests_at(&self, at: usize) {
        self.rests_at.store(at as u16, Relaxed);
    }

    /// Notes a use of the live block in a column.
    pub(crate) fn mark(&self, column: usize) {
        self.uses.try_mark(column as u8 + 1);
    }

    /// Forgets the use of the live block in a column.
    pub(crate) fn erase(&self, column: usize) {
        self.uses.erase(column);
    }

    /// Whether the block may have been used on other streams.
    pub(crate) fn is_used(&self) -> bool {
        self.uses.is_touched()
    }

    /// The columns in which the block was used, which are the caller's to remember from now on.
    pub(crate) fn take_uses(&self) -> Mask {
        self.uses.take()
    }

    /// Changes length and block.
    pub(crate) fn set_body(&self, len: u64, block: BlockId) {
        self.body.store(((len >> 9) << 32) | u64::from(block), Relaxed);
    }
}

/// Whose addresses a unit's are: device and column of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// No segment lies here.
    const NOBODY: Self = Self(u32::MAX);

    #[inline]
    fn new(device: DeviceId, small: bool) -> Self {
        Self((device << 1) | u32::from(small))
    }

    /// The device.
    #[inline]
    pub(crate) fn device(self) -> DeviceId {
        self.0 >> 1
    }

    /// Whether blocks here count as small.
    #[inline]
    pub(crate) fn is_small(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The entries of 1 GiB of addresses.
#[derive(Debug)]
struct Unit {
    /// An [`Owner`].
    owner: AtomicU32,
    leaves: Leaves,
}

/// What a unit's entries are in. Whether they are small ones never changes.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box more would be a load more in each call")]
enum Leaves {
    Small([OnceLock<Box<[Entry; STARTS]>>; STRETCHES]),
    Large([OnceLock<Box<LargeLeaf>>; LEAVES]),
}

/// Two entries for each stretch.
#[derive(Debug)]
struct LargeLeaf {
    first: [Entry; LEAF],
    second: [Entry; LEAF],
}

impl Unit {
    fn new(small: bool) -> Self {
        let leaves = if small {
            Leaves::Small(core::array::from_fn(|_| OnceLock::new()))
        } else {
            Leaves::Large(core::array::from_fn(|_| OnceLock::new()))
        };
        Self { owner: AtomicU32::new(Owner::NOBODY.0), leaves }
    }

    fn is_small(&self) -> bool {
        matches!(self.leaves, Leaves::Small(_))
    }

    #[inline]
    fn find(&self, start: Start) -> Option<&Entry> {
        match &self.leaves {
            Leaves::Small(leaves) => {
                let entry = &leaves[start.stretch()].get()?[start.in_stretch()];
                (!entry.head().is_nothing()).then_some(entry)
            }
            Leaves::Large(leaves) => {
                let leaf = leaves[start.stretch() / LEAF].get()?;
                let first = &leaf.first[start.stretch() % LEAF];
                if first.head().starts_at(start) {
                    return Some(first);
                }
                let second = &leaf.second[start.stretch() % LEAF];
                second.head().starts_at(start).then_some(second)
            }
        }
    }

    /// An entry for a block that begins at `start` and has none.
    fn vacant(&self, start: Start) -> &Entry {
        match &self.leaves {
            Leaves::Small(leaves) => {
                let leaf = leaves[start.stretch()].get_or_init(|| boxed(|_| Entry::default()));
                &leaf[start.in_stretch()]
            }
            Leaves::Large(leaves) => {
                let make = || Box::new(LargeLeaf::default());
                let leaf = leaves[start.stretch() / LEAF].get_or_init(make);
                let at = start.stretch() % LEAF;
                if leaf.first[at].head().is_nothing() { &leaf.first[at] } else { &leaf.second[at] }
            }
        }
    }
}

impl Default for LargeLeaf {
    fn default() -> Self {
        Self {
            first: core::array::from_fn(|_| Entry::default()),
            second: core::array::from_fn(|_| Entry::default()),
        }
    }
}

/// An array made on the heap.
pub(super) fn boxed<T, const N: usize>(make: impl FnMut(usize) -> T) -> Box<[T; N]> {
    let items: Box<[T]> = (0..N).map(make).collect();
    items.try_into().unwrap_or_else(|_| unreachable!("as many as the array holds"))
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct AddressMap {
    units: Box<[OnceLock<Box<Unit>>; UNITS]>,
    /// Guards changes of owners.
    owners: Mutex<()>,
}

impl AddressMap {
    /// A map that covers nothing.
    pub(crate) fn new() -> Self {
        Self { units: boxed(|_| OnceLock::new()), owners: Mutex::new(()) }
    }

    /// Covers a segment; false when it is not made of whole units, or a unit is taken or once had blocks
    /// of the other kind: its blocks are then found by the core alone.
    pub(crate) fn cover(&self, device: DeviceId, base: u64, len: u64, small: bool) -> bool {
        if base & ((1 << UNIT_SHIFT) - 1) != 0 || len < 1 << UNIT_SHIFT || (base + len) >> ADDRESS_BITS != 0 {
            return false;
        }
        let _guard = self.owners.lock();
        let taken = |unit: &Unit| unit.owner.load(Relaxed) != Owner::NOBODY.0 || unit.is_small() != small;
        if units_of(base, len).any(|unit| self.units[unit].get().is_some_and(|unit| taken(unit))) {
            return false;
        }
        for unit in units_of(base, len) {
            let unit = self.units[unit].get_or_init(|| Box::new(Unit::new(small)));
            unit.owner.store(Owner::new(device, small).0, Release);
        }
        true
    }

    /// Stops covering a segment that has no live or cached block.
    pub(crate) fn uncover(&self, base: u64, len: u64) {
        let _guard = self.owners.lock();
        for unit in units_of(base, len).filter_map(|unit| self.units[unit].get()) {
            unit.owner.store(Owner::NOBODY.0, Relaxed);
        }
    }

    /// The owner and entry of the block that begins at `address`, live or at rest in the front.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<(Owner, &Entry)> {
        let start = Start::of(address);
        let unit = self.units.get(start.unit())?.get()?;
        // Where there is a block there is an owner.
        let entry = unit.find(start)?;
        Some((Owner(unit.owner.load(Acquire)), entry))
    }

    /// Whose segment lies at an address, if one does that is covered.
    pub(crate) fn owner_of(&self, address: u64) -> Option<Owner> {
        let unit = self.units.get((address >> UNIT_SHIFT) as usize)?.get()?;
        let owner = Owner(unit.owner.load(Acquire));
        (owner != Owner::NOBODY).then_some(owner)
    }

    /// Makes the entry of a block the core hands out. Called under the device's lock.
    pub(crate) fn publish(&self, address: u64, len: u64, block: BlockId, head: Head) {
        let start = Start::of(address);
        let unit = self.units.get(start.unit()).and_then(OnceLock::get);
        let Some(unit) = unit.filter(|unit| unit.owner.load(Acquire) != Owner::NOBODY.0) else { return };
        let entry = unit.vacant(start);
        debug_assert!(entry.head().is_nothing(), "two blocks begin at {address:#x}");
        entry.set_body(len, block);
        entry.uses.reset();
        entry.set_head(head);
    }
}

fn units_of(base: u64, len: u64) -> core::ops::Range<usize> {
    (base >> UNIT_SHIFT) as usize
        ..((base + len) >> UNIT_SHIFT) as usize + usize::from((base + len) & ((1 << UNIT_SHIFT) - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn finds_exactly_the_starts_that_were_published() {
        let map = AddressMap::new();
        assert!(map.cover(3, 16 * GIB, 2 * GIB, false) && map.cover(4, 20 * GIB, GIB, true));
        assert!(!map.cover(3, 17 * GIB, GIB, true), "a unit has one owner");
        assert!(!map.cover(3, 30 * GIB + 512, GIB, true) && !map.cover(3, 30 * GIB, GIB / 2, true));
        let large = [16 * GIB, 16 * GIB + (1 << 20) + 512, 17 * GIB - 512];
        let small = [20 * GIB, 20 * GIB + 512, 21 * GIB - 512];
        for (block, &address) in large.iter().chain(&small).enumerate() {
            let head = Head::new(100 + block as u64, (7, block >= 3), address);
            map.publish(address, 512 * (1 + block as u64), block as u32, head);
        }
        for (block, &address) in large.iter().chain(&small).enumerate() {
            let (owner, entry) = map.find(address).unwrap();
            assert_eq!((owner.device(), owner.is_small()), if block < 3 { (3, false) } else { (4, true) });
            assert_eq!(entry.body(), (512 * (1 + block as u64), block as u32));
            assert_eq!((entry.head().requested(), entry.head().place()), (100 + block as u64, 7));
            assert!(map.find(address + 256).is_none());
        }
        for address in [0, 511, 16 * GIB + 512, 18 * GIB, 20 * GIB + 1024, u64::MAX] {
            assert!(map.find(address).is_none(), "{address:#x}");
        }
    }

    #[test]
    fn heads_keep_their_fields() {
        let head = Head::new(MOST_REQUESTED - 1, (NO_PLACE - 1, true), (5 << 21) + 512 * 77);
        assert_eq!((head.place(), head.requested()), (NO_PLACE - 1, MOST_REQUESTED - 1));
        let again = head.with_requested(42);
        assert_eq!((again.requested(), again.place()), (42, NO_PLACE - 1));
        assert_eq!((again.without_place().requested(), again.without_place().place()), (42, NO_PLACE));
        let entry = Entry::default();
        entry.set_body(512 * 3, 9);
        assert_eq!(entry.key(head), key_of(512 * 3, NO_PLACE - 1, true));
        let starts_at = |head: Head, address| head.starts_at(Start::of(address));
        assert!(starts_at(again, 512 * 77) && !starts_at(again, 512 * 78) && !again.is_nothing());
        assert!(!starts_at(Head::NOTHING, 0));
    }
}
