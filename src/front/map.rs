//! From the address of a block's first byte to what is known of it, without a lock or a hash.
//!
//! ```text
//! address >> 30 --> unit (1 GiB) --> entry
//!
//! unit of a segment of small blocks:  a leaf for each 2 MiB, an entry for each 512 B
//! unit of a segment of larger ones:   two entries for each 2 MiB (blocks are longer than 1 MiB, so no
//!                                     three of them begin in one stretch of 2 MiB)
//! ```
//!
//! An entry belongs to whoever owns the block: it is written under the device's lock when the core
//! hands out or takes back the block, and under the flag of the block's shard when the front does.
//! Units are never freed, because readers hold no lock; a unit serves whatever is reserved at its
//! addresses next.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::OnceLock;

use crate::core::block::BlockId;
use crate::driver::DeviceId;
use crate::sync::Mutex;

/// log2 of the bytes of a unit.
const UNIT_SHIFT: u32 = 30;
/// Addresses of this many bits and more are not covered.
const ADDRESS_BITS: u32 = 48;
/// Units there can be.
const UNITS: usize = 1 << (ADDRESS_BITS - UNIT_SHIFT);
/// log2 of the bytes of a stretch.
const STRETCH_SHIFT: u32 = 21;
/// Stretches of a unit.
const STRETCHES: usize = 1 << (UNIT_SHIFT - STRETCH_SHIFT);
/// Places in a stretch where a block can begin.
const STARTS: usize = 1 << (STRETCH_SHIFT - 9);

/// No place in the front cache.
pub(crate) const NO_SLOT: u16 = (1 << 14) - 1;
/// Requests of this size or more are not kept in entries: `NO_SLOT` sends them to the core.
pub(crate) const MOST_REQUESTED: u64 = 1 << 36;

/// What a block start is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// No block known to the front begins here.
    Nothing = 0,
    /// A live block.
    Live = 1,
    /// A block in the front cache.
    Cached = 2,
}

/// One block start.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    /// Length in units of 512 B (upper half), block id (lower half).
    body: AtomicU64,
    /// Requested bytes (36 bits), slot of its stream (14), start within its stretch (12), mark (2).
    head: AtomicU64,
}

/// The fields of an entry's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head(u64);

/// Bits below the requested bytes.
const REQUESTED_SHIFT: u32 = 28;

impl Head {
    #[inline]
    pub(crate) fn new(requested: u64, slot: u16, address: u64, mark: Mark) -> Self {
        let start = (address >> 9) & (STARTS as u64 - 1);
        Self((requested << REQUESTED_SHIFT) | (u64::from(slot) << 14) | (start << 2) | mark as u64)
    }

    #[inline]
    pub(crate) fn requested(self) -> u64 {
        self.0 >> REQUESTED_SHIFT
    }

    #[inline]
    pub(crate) fn slot(self) -> u16 {
        (self.0 >> 14) as u16 & NO_SLOT
    }

    #[inline]
    pub(crate) fn mark(self) -> Mark {
        match self.0 & 3 {
            0 => Mark::Nothing,
            1 => Mark::Live,
            _ => Mark::Cached,
        }
    }

    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.0 & 3 == Mark::Live as u64
    }

    /// The head of a live block that is put to rest.
    #[inline]
    pub(crate) fn put_to_rest(self) -> Self {
        Self(self.0 ^ (Mark::Live as u64 ^ Mark::Cached as u64))
    }

    /// The head of a resting block that is handed out for `requested` bytes.
    #[inline]
    pub(crate) fn woken(self, requested: u64) -> Self {
        let rest = self.0 & ((1 << REQUESTED_SHIFT) - 1);
        Self((requested << REQUESTED_SHIFT) | rest).put_to_rest()
    }

    #[inline]
    fn starts_at(self, address: u64) -> bool {
        // A mark and the start, compared at once; the mark must not be `Nothing`.
        (self.0 >> 2) & (STARTS as u64 - 1) == (address >> 9) & (STARTS as u64 - 1) && self.0 & 3 != 0
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

    /// Changes everything but length and block.
    #[inline]
    pub(crate) fn set_head(&self, head: Head) {
        self.head.store(head.0, Relaxed);
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
    const NOBODY: Self = Self(0);

    #[inline]
    fn new(device: DeviceId, small: bool) -> Self {
        Self(((device + 1) << 1) | u32::from(small))
    }

    /// The device.
    #[inline]
    pub(crate) fn device(self) -> DeviceId {
        (self.0 >> 1) - 1
    }

    /// Whether blocks here count as small.
    #[inline]
    pub(crate) fn is_small(self) -> bool {
        self.0 & 1 != 0
    }
}

/// The entries of one stretch of small blocks.
type Leaf = OnceLock<Box<[Entry; STARTS]>>;

/// The entries of 1 GiB of addresses.
#[derive(Debug, Default)]
struct Unit {
    /// An [`Owner`].
    owner: AtomicU32,
    large: OnceLock<Box<[Entry; 2 * STRETCHES]>>,
    small: OnceLock<Box<[Leaf; STRETCHES]>>,
}

#[inline]
fn stretch_of(address: u64) -> usize {
    (address >> STRETCH_SHIFT) as usize & (STRETCHES - 1)
}

#[inline]
fn start_of(address: u64) -> usize {
    (address >> 9) as usize & (STARTS - 1)
}

impl Unit {
    #[inline]
    fn find(&self, owner: Owner, address: u64) -> Option<&Entry> {
        if owner.is_small() {
            let leaf = self.small.get()?[stretch_of(address)].get()?;
            let entry = &leaf[start_of(address)];
            return (address & 511 == 0 && entry.head().0 & 3 != 0).then_some(entry);
        }
        let entries = self.large.get()?;
        let pair = 2 * stretch_of(address);
        let entry = &entries[pair];
        if address & 511 != 0 {
            return None;
        }
        if entry.head().starts_at(address) {
            return Some(entry);
        }
        let entry = &entries[pair + 1];
        entry.head().starts_at(address).then_some(entry)
    }

    /// An entry for a block that begins at `address` and has none.
    fn vacant(&self, owner: Owner, address: u64) -> &Entry {
        if owner.is_small() {
            let leaves = self.small.get_or_init(|| boxed(|_| OnceLock::new()));
            return &leaves[stretch_of(address)].get_or_init(|| boxed(|_| Entry::default()))
                [start_of(address)];
        }
        let entries = self.large.get_or_init(|| boxed(|_| Entry::default()));
        let pair = 2 * stretch_of(address);
        let vacant = entries[pair].head().mark() == Mark::Nothing;
        &entries[if vacant { pair } else { pair + 1 }]
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

    /// Covers a segment; false when it is not made of whole units or a unit is taken: its blocks
    /// are then found by the core alone.
    pub(crate) fn cover(&self, device: DeviceId, base: u64, len: u64, small: bool) -> bool {
        if base & ((1 << UNIT_SHIFT) - 1) != 0 || len < 1 << UNIT_SHIFT || (base + len) >> ADDRESS_BITS != 0 {
            return false;
        }
        let _guard = self.owners.lock();
        let taken = |unit: &Unit| unit.owner.load(Relaxed) != Owner::NOBODY.0;
        if units_of(base, len).any(|unit| self.units[unit].get().is_some_and(|unit| taken(unit))) {
            return false;
        }
        for unit in units_of(base, len) {
            let unit = self.units[unit].get_or_init(Box::default);
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

    /// Whose the address is.
    #[inline]
    pub(crate) fn owner(&self, address: u64) -> Option<Owner> {
        self.unit(address).map(|(_, owner)| owner)
    }

    /// The owner and entry of the block that begins at `address`, live or cached.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<(Owner, &Entry)> {
        let (unit, owner) = self.unit(address)?;
        Some((owner, unit.find(owner, address)?))
    }

    /// Makes the entry of a block the core hands out. Called under the device's lock.
    pub(crate) fn publish(&self, address: u64, len: u64, block: BlockId, head: Head) {
        let Some((unit, owner)) = self.unit(address) else { return };
        let entry = unit.vacant(owner, address);
        debug_assert_eq!(entry.head().mark(), Mark::Nothing, "two blocks begin at {address:#x}");
        entry.set_body(len, block);
        entry.set_head(head);
    }

    #[inline]
    fn unit(&self, address: u64) -> Option<(&Unit, Owner)> {
        let unit = self.units.get((address >> UNIT_SHIFT) as usize)?.get()?;
        let owner = Owner(unit.owner.load(Acquire));
        (owner != Owner::NOBODY).then_some((unit, owner))
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
            let head = Head::new(100 + block as u64, 7, address, Mark::Live);
            map.publish(address, 512 * (1 + block as u64), block as u32, head);
        }
        for (block, &address) in large.iter().chain(&small).enumerate() {
            let (owner, entry) = map.find(address).unwrap();
            assert_eq!((owner.device(), owner.is_small()), if block < 3 { (3, false) } else { (4, true) });
            assert_eq!(entry.body(), (512 * (1 + block as u64), block as u32));
            assert_eq!((entry.head().requested(), entry.head().slot()), (100 + block as u64, 7));
            assert!(map.find(address + 256).is_none());
        }
        for address in [0, 511, 16 * GIB + 512, 18 * GIB, 20 * GIB + 1024, u64::MAX] {
            assert!(map.find(address).is_none(), "{address:#x}");
        }
    }

    #[test]
    fn heads_keep_their_fields_through_rest_and_waking() {
        let head = Head::new(MOST_REQUESTED - 1, NO_SLOT - 1, (5 << 21) + 512 * 77, Mark::Live);
        let resting = head.put_to_rest();
        assert_eq!((resting.mark(), resting.requested()), (Mark::Cached, MOST_REQUESTED - 1));
        let woken = resting.woken(42);
        assert_eq!((woken.mark(), woken.requested(), woken.slot()), (Mark::Live, 42, NO_SLOT - 1));
        assert!(woken.starts_at(512 * 77) && !woken.starts_at(512 * 78));
    }
}
