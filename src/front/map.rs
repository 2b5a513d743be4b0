//! From the address of a block's first byte to what is known of it, without a lock or a hash.
//!
//! ```text
//! address >> 30 --> top table --> region (one segment) --> leaf --> entry
//!
//! region of small blocks: a leaf for each 2 MiB, an entry for each 512 B
//! region of larger ones:  a leaf for each 1 GiB, two entries for each 2 MiB (blocks are longer than
//!                         1 MiB, so no three of them begin in one stretch of 2 MiB)
//! ```
//!
//! An entry belongs to whoever owns the block: it is written under the device's lock when the core
//! hands out or takes back the block, and under the flag of the block's shard when the front does.
//! A region is never freed, because readers hold no lock; the region of a released reservation
//! serves the next one of the same size.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::sync::OnceLock;

use crate::core::block::BlockId;
use crate::driver::DeviceId;
use crate::sync::Mutex;

/// log2 of the unit of the top table.
const TOP_SHIFT: u32 = 30;
/// Addresses at or above this many bits are not covered.
const ADDRESS_BITS: u32 = 48;
/// Segments the map can cover at a time, over all devices.
const REGIONS: usize = 4096;
/// log2 of the stretch that a pair of entries covers in a region of larger blocks.
const STRETCH_SHIFT: u32 = 21;
/// Block starts in a stretch.
const STARTS: u64 = 1 << (STRETCH_SHIFT - 9);

/// No place in the front cache.
pub(crate) const NO_SLOT: u16 = (1 << 14) - 1;
/// Requests of this size or more are not kept in entries: `NO_SLOT` sends them to the core.
pub(crate) const MOST_REQUESTED: u64 = 1 << 36;

/// What a block start is at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// No block known to the front begins here.
    Nothing,
    /// A live block.
    Live,
    /// A block in the front cache.
    Cached,
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

impl Head {
    #[inline]
    pub(crate) fn new(requested: u64, slot: u16, address: u64, mark: Mark) -> Self {
        let start = (address >> 9) & (STARTS - 1);
        Self((requested << 28) | (u64::from(slot) << 14) | (start << 2) | mark as u64)
    }

    #[inline]
    pub(crate) fn requested(self) -> u64 {
        self.0 >> 28
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
    fn starts_at(self, address: u64) -> bool {
        (self.0 >> 2) & (STARTS - 1) == (address >> 9) & (STARTS - 1)
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

/// The entries of one segment.
#[derive(Debug)]
pub(crate) struct Region {
    /// First address.
    base: AtomicU64,
    /// Bytes.
    len: u64,
    /// The device the segment belongs to.
    pub(crate) device: DeviceId,
    /// Whether blocks may be as short as 512 bytes.
    pub(crate) small: bool,
    leaves: Box<[OnceLock<Box<[Entry]>>]>,
}

impl Region {
    #[inline]
    fn entry(&self, address: u64) -> Option<&Entry> {
        let offset = address.wrapping_sub(self.base.load(Relaxed));
        if offset >= self.len || address & 511 != 0 {
            return None;
        }
        if self.small {
            let leaf = self.leaves.get((offset >> STRETCH_SHIFT) as usize)?.get()?;
            return leaf.get(((offset >> 9) & (STARTS - 1)) as usize);
        }
        let leaf = self.leaves.get((offset >> TOP_SHIFT) as usize)?.get()?;
        let pair = 2 * ((offset >> STRETCH_SHIFT) as usize & ((1 << (TOP_SHIFT - STRETCH_SHIFT)) - 1));
        leaf.get(pair..pair + 2)?.iter().find(|entry| {
            let head = entry.head();
            head.starts_at(address) && head.mark() != Mark::Nothing
        })
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct AddressMap {
    /// Region number plus one for each unit of address space; zero where there is none.
    top: Box<[AtomicU32]>,
    regions: Box<[OnceLock<Region>]>,
    /// Numbers of regions that cover nothing at the moment, and the first number never used.
    spare: Mutex<(Vec<u32>, u32)>,
}

impl AddressMap {
    /// A map that covers nothing.
    pub(crate) fn new() -> Self {
        Self {
            top: (0..1usize << (ADDRESS_BITS - TOP_SHIFT)).map(|_| AtomicU32::new(0)).collect(),
            regions: (0..REGIONS).map(|_| OnceLock::new()).collect(),
            spare: Mutex::new((Vec::new(), 0)),
        }
    }

    /// Covers a segment. Nothing when it is not made of whole units or the map is full: its blocks
    /// are then found by the core alone.
    pub(crate) fn cover(&self, device: DeviceId, base: u64, len: u64, small: bool) -> Option<u32> {
        let unit = 1u64 << TOP_SHIFT;
        if !base.is_multiple_of(unit) || len < unit || (base + len) >> ADDRESS_BITS != 0 {
            return None;
        }
        let mut spare = self.spare.lock();
        let units = base >> TOP_SHIFT..(base + len).div_ceil(unit);
        if units.clone().any(|unit| self.top[unit as usize].load(Relaxed) != 0) {
            return None;
        }
        let fits = |&number: &u32| {
            let region = self.regions[number as usize].get();
            region.is_some_and(|r| r.len == len && r.device == device && r.small == small)
        };
        let number = if let Some(at) = spare.0.iter().position(fits) {
            let number = spare.0.swap_remove(at);
            self.regions[number as usize].get()?.base.store(base, Relaxed);
            number
        } else {
            let number = spare.1;
            let shift = if small { STRETCH_SHIFT } else { TOP_SHIFT };
            let leaves = (0..len.div_ceil(1 << shift)).map(|_| OnceLock::new()).collect();
            let region = Region { base: AtomicU64::new(base), len, device, small, leaves };
            self.regions.get(number as usize)?.set(region).ok()?;
            spare.1 += 1;
            number
        };
        for unit in units {
            self.top[unit as usize].store(number + 1, Release);
        }
        Some(number)
    }

    /// Stops covering a segment that has no live or cached block.
    pub(crate) fn uncover(&self, number: u32) {
        let mut spare = self.spare.lock();
        if let Some(region) = self.regions[number as usize].get() {
            let base = region.base.load(Relaxed);
            for unit in base >> TOP_SHIFT..(base + region.len).div_ceil(1 << TOP_SHIFT) {
                self.top[unit as usize].store(0, Relaxed);
            }
            spare.0.push(number);
        }
    }

    /// The region that covers an address.
    #[inline]
    pub(crate) fn region(&self, address: u64) -> Option<&Region> {
        let number = self.top.get((address >> TOP_SHIFT) as usize)?.load(Acquire);
        self.regions.get(number.checked_sub(1)? as usize)?.get()
    }

    /// The device and entry of the block that begins at `address`, live or cached.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<(DeviceId, &Entry)> {
        let region = self.region(address)?;
        Some((region.device, region.entry(address)?))
    }

    /// Makes the entry of a block the core hands out. Called under the device's lock.
    pub(crate) fn publish(&self, region: u32, address: u64, len: u64, block: BlockId, head: Head) {
        let Some(region) = self.regions[region as usize].get() else { return };
        let offset = address - region.base.load(Relaxed);
        let entry = if region.small {
            let leaf = region.leaves[(offset >> STRETCH_SHIFT) as usize].get_or_init(|| new_leaf(STARTS));
            &leaf[((offset >> 9) & (STARTS - 1)) as usize]
        } else {
            let count = 2 << (TOP_SHIFT - STRETCH_SHIFT);
            let leaf = region.leaves[(offset >> TOP_SHIFT) as usize].get_or_init(|| new_leaf(count));
            let pair = 2 * ((offset >> STRETCH_SHIFT) as usize & ((1 << (TOP_SHIFT - STRETCH_SHIFT)) - 1));
            let vacant = leaf[pair].head().mark() == Mark::Nothing;
            &leaf[if vacant { pair } else { pair + 1 }]
        };
        debug_assert_eq!(entry.head().mark(), Mark::Nothing, "two blocks begin at {address:#x}");
        entry.set_body(len, block);
        entry.set_head(head);
    }
}

fn new_leaf(count: u64) -> Box<[Entry]> {
    (0..count).map(|_| Entry::default()).collect()
}
