//! Segments: reservations with chunks behind them, or single blocks of the driver.
//!
//! A *reserved* segment is one address reservation that serves one size class. Its granules are
//! backed one by one; each chunk is one physical handle, mapped whole at a granule border. A
//! *classic* segment is one driver allocation that cannot move or shrink.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;

use super::block::BlockId;
use super::pool::PoolIndex;
use super::steps;
use crate::driver::PhysicalHandle;

/// Kinds of segments a pool can have; some of the numbers are no kind.
pub(crate) const KINDS: usize = 8;

/// Requests of at most this size are small. They are kept apart, so that a small block does not pin a
/// chunk among large ones.
pub(crate) const SMALL_LIMIT: u64 = 1 << 20;

/// Requests of at least this size follow `base_addr_aligned_kb`.
pub(crate) const ALIGNED_FROM: u64 = 2 << 20;

/// Which segments a request is placed in: those of one pool and one kind.
///
/// ```text
/// bits   31 ........ 3   2         1         0
///        pool            growing   classic   large
/// ```
///
/// A *growing* segment belongs to one growing buffer; no request is ever placed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Class(u32);

impl Class {
    /// Reserved segments of the default pool for requests up to 1 MiB.
    pub(crate) const SMALL: Self = Self(0);
    const LARGE: u32 = 1;
    const CLASSIC: u32 = 2;
    const GROWING: u32 = 4;

    /// The reserved class, in the default pool, of a request of `bytes` (without the pad).
    #[inline]
    pub(crate) fn of(bytes: u64) -> Self {
        Self((bytes > SMALL_LIMIT) as u32)
    }

    /// The same class in another pool.
    #[inline]
    pub(crate) fn within(self, pool: PoolIndex) -> Self {
        Self(pool << 3 | self.0 & 7)
    }

    /// The class of the growing buffers of a pool; they count as large.
    pub(crate) fn growing(pool: PoolIndex) -> Self {
        Self(Self::GROWING | Self::LARGE).within(pool)
    }

    /// The classic class of the same pool that serves the same requests.
    #[inline]
    pub(crate) fn classic(self) -> Self {
        Self(self.0 | Self::CLASSIC)
    }

    /// The class of the same pool and the same kind of segments that serves requests of the other size.
    pub(crate) fn other_size(self) -> Self {
        Self(self.0 ^ Self::LARGE)
    }

    /// All classes of a pool.
    pub(crate) fn all(pool: PoolIndex) -> [Self; KINDS] {
        core::array::from_fn(|kind| Self(kind as u32).within(pool))
    }

    /// Whether its blocks count as small in the statistics.
    #[inline]
    pub(crate) fn is_small(self) -> bool {
        self.0 & Self::LARGE == 0
    }

    /// Whether its segments are single driver blocks.
    #[inline]
    pub(crate) fn is_classic(self) -> bool {
        self.0 & Self::CLASSIC != 0
    }

    /// Whether its segments are single driver blocks for large requests.
    #[inline]
    pub(crate) fn is_classic_large(self) -> bool {
        self.is_classic() && !self.is_small()
    }

    /// Whether its segments belong to one growing buffer each.
    #[inline]
    pub(crate) fn is_growing(self) -> bool {
        self.0 & Self::GROWING != 0
    }

    /// The pool.
    #[inline]
    pub(crate) fn pool(self) -> PoolIndex {
        self.0 >> 3
    }

    /// Which of the pool's kinds of segments.
    #[inline]
    pub(crate) fn kind(self) -> usize {
        self.0 as usize & (KINDS - 1)
    }
}

/// Which stream freed something in a chunk last, and in which epoch; epoch 0 while nobody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The stream.
    pub(crate) stream: u32,
    /// Its epoch.
    pub(crate) epoch: u32,
}

/// One reservation or one classic driver block.
#[derive(Debug)]
pub(crate) struct Segment {
    /// First address.
    pub(crate) base: u64,
    /// Bytes of address space in use.
    pub(crate) len: u64,
    /// What the driver called its first address; differs from `base` only by alignment.
    pub(crate) origin: u64,
    /// Bytes the driver reserved.
    pub(crate) span: u64,
    /// Which requests it serves.
    pub(crate) class: Class,
    /// The first block; blocks tile the segment from there.
    pub(crate) first: BlockId,
    /// The chunk behind each granule, as far as any ever had one; empty for classic segments. A wide chunk is
    /// behind several.
    pub(crate) chunks: Vec<Option<PhysicalHandle>>,
    /// Wide chunks: their first granule's address, and how many granules they have.
    pub(crate) wide: BTreeMap<u64, u32>,
    /// The stamp of each of these granules; apart, because frees touch nothing else.
    stamps: Vec<Stamp>,
    /// Bytes with physical memory.
    pub(crate) mapped: u64,
    /// Whether the address map covers it; if not, block starts are in a table of the core.
    pub(crate) covered: bool,
    /// Whether a growing buffer owns it, so that it stays even while nothing is mapped.
    pub(crate) owned: bool,
}

impl Segment {
    /// A segment whose blocks are not made yet.
    pub(crate) fn new(base: u64, len: u64, class: Class, covered: bool) -> Self {
        Self {
            base,
            len,
            origin: base,
            span: len,
            class,
            first: super::block::NONE,
            chunks: Vec::new(),
            wide: BTreeMap::new(),
            stamps: Vec::new(),
            mapped: 0,
            covered,
            owned: false,
        }
    }

    /// The chunk of the granule that starts at `addr`.
    #[inline]
    pub(crate) fn chunk(&self, addr: u64, shift: u32) -> Option<PhysicalHandle> {
        self.chunks.get(((addr - self.base) >> shift) as usize).copied().flatten()
    }

    /// The chunks in address order: address, handle and granules of each.
    pub(crate) fn each_chunk(&self, shift: u32) -> impl Iterator<Item = (u64, PhysicalHandle, u32)> {
        let mut at = 0;
        core::iter::from_fn(move || {
            loop {
                let chunk = *self.chunks.get(at)?;
                let address = self.base + ((at as u64) << shift);
                let span = self.wide.get(&address).copied().unwrap_or(1);
                at += span as usize;
                if let Some(handle) = chunk {
                    return Some((address, handle, span));
                }
            }
        })
    }

    /// Whether the granule is one of a wide chunk.
    pub(crate) fn is_wide(&self, addr: u64, shift: u32) -> bool {
        self.wide_around(addr, shift).is_some()
    }

    /// Where the chunk begins that is behind an address, or would be.
    pub(crate) fn first_of_chunk(&self, addr: u64, shift: u32) -> u64 {
        self.wide_around(addr, shift).unwrap_or(addr >> shift << shift)
    }

    /// Where the wide chunk begins that is behind an address, if one is.
    fn wide_around(&self, addr: u64, shift: u32) -> Option<u64> {
        self.wide_behind(addr, shift).map(|(first, _)| first)
    }

    /// The wide chunk behind an address, if one is: where it begins, and its bytes.
    pub(crate) fn wide_behind(&self, addr: u64, shift: u32) -> Option<(u64, u64)> {
        let (&first, &span) = self.wide.range(..=addr).next_back()?;
        let bytes = u64::from(span) << shift;
        (addr < first + bytes).then_some((first, bytes))
    }

    /// The stamp of that granule.
    #[inline]
    pub(crate) fn stamp(&self, addr: u64, shift: u32) -> Stamp {
        self.stamps.get(((addr - self.base) >> shift) as usize).copied().unwrap_or_default()
    }

    /// Sets the chunk of the granule that starts at `addr`; a new one is stamped with epoch 0 of `stream`.
    pub(crate) fn set_chunk(&mut self, addr: u64, shift: u32, chunk: Option<PhysicalHandle>, stream: u32) {
        let index = ((addr - self.base) >> shift) as usize;
        if index >= self.chunks.len() {
            self.chunks.resize(index + 1, None);
            self.stamps.resize(index + 1, Stamp::default());
        }
        if !self.wide.is_empty() && chunk.is_none() {
            self.wide.remove(&addr);
        }
        self.chunks[index] = chunk;
        self.stamps[index] = Stamp { stream, epoch: 0 };
    }

    /// Stamps every granule that ever had a chunk.
    pub(crate) fn stamp_all(&mut self, new: Stamp) {
        self.stamps.fill(new);
    }

    /// Stamps every chunk that `addr..end` touches with a free by `stream` in `epoch`, which may be
    /// earlier than its `open` epoch when the block rested in the front.
    ///
    /// A chunk has room for one stamp. Within one stream the later epoch covers the earlier one; a stamp
    /// of another stream hides what this stream may have done before, so then the open epoch is noted.
    #[inline]
    pub(crate) fn set_stamps(&mut self, addr: u64, end: u64, shift: u32, new: Stamp, open: u32) {
        let first = ((addr - self.base) >> shift) as usize;
        let last = ((end - 1 - self.base) >> shift) as usize;
        let stamps = &mut self.stamps[first..=last];
        if new.epoch == open {
            return stamps.fill(new);
        }
        for stamp in stamps {
            let epoch = if stamp.stream == new.stream { stamp.epoch.max(new.epoch) } else { open };
            *stamp = Stamp { stream: new.stream, epoch };
        }
    }
}

/// All segments of a device, by number and by address.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    slab: Slab<Segment>,
    /// First address and number of each.
    by_base: BTreeSet<(u64, u32)>,
}

impl Segments {
    /// Adds a segment that is made of its number.
    pub(crate) fn add(&mut self, make: impl FnOnce(u32) -> Segment) -> u32 {
        let place = self.slab.vacant_entry();
        let number = place.key() as u32;
        let segment = place.insert(make(number));
        self.by_base.insert((segment.base, number));
        number
    }

    /// Takes a segment out.
    pub(crate) fn remove(&mut self, number: usize) -> Segment {
        let segment = self.slab.remove(number);
        self.by_base.remove(&(segment.base, number as u32));
        segment
    }

    /// A segment, if there is one of that number.
    pub(crate) fn get(&self, number: usize) -> Option<&Segment> {
        self.slab.get(number)
    }

    /// All segments, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Segment)> {
        self.slab.iter().inspect(|_| steps::step())
    }

    /// The same, to be changed.
    #[cfg(test)]
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut Segment)> {
        self.slab.iter_mut()
    }

    /// Those that begin at an address or before it, the nearest first.
    pub(crate) fn back_from(&self, address: u64) -> impl Iterator<Item = (usize, &Segment)> {
        let numbers = self.by_base.range(..=(address, u32::MAX)).rev();
        numbers.map(|&(_, number)| (number as usize, &self[number as usize])).inspect(|_| steps::step())
    }
}

impl core::ops::Index<usize> for Segments {
    type Output = Segment;

    #[inline]
    fn index(&self, number: usize) -> &Segment {
        &self.slab[number]
    }
}

impl core::ops::IndexMut<usize> for Segments {
    #[inline]
    fn index_mut(&mut self, number: usize) -> &mut Segment {
        &mut self.slab[number]
    }
}
